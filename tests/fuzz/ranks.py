#!/usr/bin/env python3
"""Flight recorders that are damaged at random, for tools/devstream-ranks: ranks.py SECONDS [SEED]

Begins with the files of tests/tools/ranks.py, changes bytes and numbers, cuts and repeats parts.
The tool must end with a report or a sentence: an exception, or more than ten seconds for a report,
is a failure, and leaves its files in build/.
"""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import random
import signal
import struct
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..", "..")


def load(name, *path):
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(TOP, *path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
maker = load("maker", "tests", "tools", "ranks.py")
tool = load("tool", "tools", "devstream-ranks")
NUMBERS = (0, 1, 2, 7, 255, 4096, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)


def situation(chance):
    """Returns the files of up to four ranks that have called a few operations."""
    ranks = maker.ranks_of(chance.randint(1, 4), chance.randint(0, 3))
    for rank in ranks:
        for _ in range(chance.randint(0, 3)):
            verb = chance.choice(list(maker.VERBS)[1:])
            rank.call(verb, chance.randint(0, 99), chance.randint(1, 5),
                      root=chance.randint(-1, 4), device=chance.randint(-1, 4),
                      count=chance.randint(0, 9), flags=chance.randint(0, 1))
        if chance.random() < 0.3:
            rank.join(maker.SUB, "part", [r.rank for r in ranks if r.rank != 1 or r is rank])
        if chance.random() < 0.2:
            rank.fail(chance.choice([-29, -31, -32, -33, 5]), "text")
        if chance.random() < 0.3:
            rank.closed = 1
    return [rank.data() for rank in ranks]


def place(chance, size):
    """Returns an offset, mostly one of the header, of the notes or of the first entries."""
    areas = ((0, 160), (4096, 4096 + 700), (12288, 12288 + 5 * 192), (0, size))
    low, high = chance.choice(areas)
    return min(chance.randrange(low, high), size - 1)


def damage(chance, data):
    data = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        at = place(chance, len(data))
        how = chance.randrange(6)
        if how == 0:
            data[at] = chance.randrange(256)
        elif how == 1:
            data[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            at -= at % 4
            data[at:at + 4] = struct.pack("<I", chance.choice(NUMBERS))
        elif how == 3:
            at -= at % 8
            data[at:at + 8] = struct.pack("<Q", chance.choice(NUMBERS) << chance.choice((0, 8, 32)))
        elif how == 4 and chance.random() < 0.3:
            del data[at:]
            if not data:
                break
        else:
            other = place(chance, len(data))
            data[at:at + 64] = data[other:other + 64]
    return bytes(data)


def too_long(_number, _frame):
    raise TimeoutError("more than ten seconds for a report")


def report(paths, options):
    sys.argv = ["devstream-ranks"] + options + paths
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = tool.main()
        except SystemExit as end:
            status = end.code
    if status and not out.getvalue() and not errors.getvalue():
        raise AssertionError("status %r without a sentence" % (status,))


def one(chance, folder):
    files = [damage(chance, data) for data in situation(chance)]
    paths = []
    for i, data in enumerate(files):
        paths.append(os.path.join(folder, "rank%d" % i))
        with open(paths[-1], "wb") as file:
            file.write(data)
    signal.alarm(10)
    try:
        report(paths, ["--json"] if chance.random() < 0.3 else [])
    finally:
        signal.alarm(0)


def main():
    seconds = float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    begun, inputs = time.monotonic(), 0
    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() - begun < seconds:
            try:
                one(random.Random(seed * 1000003 + inputs), folder)
            except Exception as error:  # the tool must not raise
                kept = os.path.join(TOP, "build", "fuzz-ranks")
                os.makedirs(kept, exist_ok=True)
                for name in os.listdir(folder):
                    with open(os.path.join(folder, name), "rb") as file, \
                            open(os.path.join(kept, name), "wb") as copy:
                        copy.write(file.read())
                print("FAIL  ranks: input %d of seed %d: %s: %s; its files are in build/fuzz-ranks"
                      % (inputs, seed, type(error).__name__, error))
                return 1
            inputs += 1
    print("fuzz  ranks: %d inputs" % inputs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
