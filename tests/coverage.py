#!/usr/bin/env python3
"""Writes docs/coverage.md: what the suites run of each header.

coverage.py FOLDER: FOLDER has a file NAME.lcov for each program (llvm-cov export -format=lcov). A
line, branch or function counts if any program runs it. tests/uncovered.txt has the reason for each
function that none runs; a function without a reason is an error. --missing [ROOM] prints the lines
and the outcomes of conditions that none runs; ROOM: a room, a folder of src, or none for all.
"""

import collections
import fnmatch
import glob
import os
import re
import sys

HEADERS = ("devstream.h", "devstream_alloc.h", "devstream_comm.h", "devstream_rng.h",
           "devstream_kernel.h", "devstream_check.h", "devstream_trace.h", "devstream_ranks.h")
ROOM = re.compile(r"^/\* ([a-z]+/[a-z_0-9]+(?:\.gen)?\.h) - ")
LINES, BRANCHES = 99, 90


def header_of_rooms():
    """Returns the shipped header of each room: the one that has the room's opening comment."""
    found = {}
    for header in HEADERS:
        with open(header) as file:
            for line in file:
                room = ROOM.match(line)
                if room:
                    found[room.group(1)] = header
    return found


class Room:
    def __init__(self):
        self.lines = collections.defaultdict(int)
        self.branches = collections.defaultdict(int)
        self.functions = collections.defaultdict(int)
        self.first = {}


def plain(name):
    """A static function has its program's file in front: test.c:name."""
    return name.rpartition(":")[2]


def read(path, rooms):
    room = None
    with open(path) as file:
        for line in file:
            key, _, rest = line.rstrip("\n").partition(":")
            if key == "SF":
                at = rest.rfind("/src/")
                room = rooms[rest[at + 5:]] if at >= 0 else None
            if room is None:
                continue
            if key == "DA":
                number, count = rest.split(",")[:2]
                room.lines[int(number)] += int(count)
            elif key == "BRDA":
                number, block, branch, count = rest.split(",")
                room.branches[(int(number), int(block), int(branch))] += \
                    0 if count == "-" else int(count)
            elif key == "FN":
                number, name = rest.split(",", 1)
                room.first[plain(name)] = int(number)
            elif key == "FNDA":
                count, name = rest.split(",", 1)
                room.functions[plain(name)] += int(count)


def leave_out(room, text):
    """Removes the lines without code: blank lines, comments, directives, and what the preprocessor
    leaves out. clang counts a directive as a line that never ran if it leaves out what follows."""
    inactive, depth, comment = None, 0, False
    for number, line in enumerate(text, 1):
        line = line.strip()
        if re.match(r"#\s*(if|ifdef|ifndef)\b", line):
            depth += 1
        if inactive == depth and re.match(r"#\s*(elif|else|endif)\b", line):
            inactive = None
        if inactive is None and re.match(r"#\s*(if|ifdef|ifndef|elif|else)\b", line) and \
                room.lines.get(number) == 0:
            inactive = depth
        if re.match(r"#\s*endif\b", line):
            depth -= 1
        begins = line.startswith("/*")
        if inactive is not None or not line or line.startswith("#") or comment or \
                (begins and line.endswith("*/")) or (begins and "*/" not in line):
            room.lines.pop(number, None)
        if begins or comment:
            comment = "*/" not in line


def share(covered, all_of):
    return "-" if not all_of else "%.1f %%" % (100.0 * covered / all_of)


def reasons():
    """Returns the lines "FUNCTION reason" of tests/uncovered.txt."""
    found = {}
    if os.path.exists("tests/uncovered.txt"):
        with open("tests/uncovered.txt") as file:
            for line in file:
                if line.strip() and not line.startswith("#"):
                    name, _, reason = line.strip().partition(" ")
                    found[name] = reason.strip()
    return found


def reason_of(why, function):
    """Returns the reason for a function, or None."""
    for pattern, reason in why.items():
        if fnmatch.fnmatchcase(function, pattern):
            return reason
    return None


def figures(rooms, names):
    totals = [0] * 6
    for name in names:
        room = rooms[name]
        for i, part in enumerate((room.lines, room.branches, room.functions)):
            totals[2 * i] += sum(count > 0 for count in part.values())
            totals[2 * i + 1] += len(part)
    return totals


def table(rooms, of_header):
    rows, below = [], []
    for header in HEADERS:
        names = [name for name in rooms if of_header.get(name) == header]
        f = figures(rooms, names)
        rows.append("| %s | %s of %d | %s of %d | %d of %d |" % (
            header, share(f[0], f[1]), f[1], share(f[2], f[3]), f[3], f[4], f[5]))
        if f[1] and (100 * f[0] < LINES * f[1] or 100 * f[2] < BRANCHES * f[3]):
            below.append(header)
    return rows, below


def uncalled(rooms, of_header):
    found = []
    for name, room in sorted(rooms.items()):
        if name in of_header:
            found += [(function, name) for function, count in sorted(room.functions.items())
                      if count == 0]
    return found


def worst(rooms, of_header, count):
    """Returns the rooms with the most branches that no program takes."""
    missing = []
    for name, room in rooms.items():
        if name in of_header:
            left = sum(1 for taken in room.branches.values() if not taken)
            missing.append((left, len(room.branches), name))
    return sorted(missing, reverse=True)[:count]


def print_missing(rooms, of_header, part):
    """Prints each line that no program runs and each condition that was never true or never false,
    for people who write tests. Rooms whose name begins with part."""
    for name, room in sorted(rooms.items()):
        if name not in of_header or not name.startswith(part):
            continue
        with open("src/" + name) as file:
            text = file.read().split("\n")
        found = [(line, "line") for line, count in room.lines.items() if not count]
        found += [(line, "never " + ("false" if branch % 2 else "true"))
                  for (line, _, branch), count in room.branches.items()
                  if not count and room.lines.get(line)]
        for line, what in sorted(set(found)):
            print("src/%s:%d: %s: %s" % (name, line, what, text[line - 1].strip()))


PAGE = """# Coverage

With this page you can see what the tests run of each header. `make coverage` measures and writes it.

The suites run on both drivers: the conformance suite on the CPU driver, and through the CUDA driver
on the stand-in for cudart, each also under the check layer; the unit tests; the tests in which calls of
cudart fail; and process groups with MPI. clang counts (source-based coverage): a branch is one
outcome of a condition. A line, branch or function counts if one of the programs runs it.
The goal is %d %% of the lines and %d %% of the branches of each header. Most of the remaining lines need two threads that
meet between two instructions, host memory that is short in spite of a reserve, or a failed call of CUDA or of the system
at a place that no test of failing calls reaches. `tests/coverage.py build/coverage --missing alloc/` lists them.

| header | lines | branches | functions |
|---|---|---|---|
%s

%s

## Functions that no test calls

%s

## Rooms with the most branches that no test takes

| room | not taken | of |
|---|---|---|
%s
"""


def main():
    rooms = collections.defaultdict(Room)
    files = sorted(glob.glob(os.path.join(sys.argv[1], "*.lcov")))
    for path in files:
        read(path, rooms)
    of_header = header_of_rooms()
    for name in of_header:
        if name in rooms:
            with open("src/" + name) as file:
                leave_out(rooms[name], file.read().split("\n"))
    if "--missing" in sys.argv:
        print_missing(rooms, of_header, sys.argv[-1] if sys.argv[-1] != "--missing" else "")
        return 0
    rows, below = table(rooms, of_header)
    why = reasons()
    missing = [(name, room, reason_of(why, name)) for name, room in uncalled(rooms, of_header)]
    bad = ["%s in src/%s is not called, and tests/uncovered.txt has no reason" % (name, room)
           for name, room, reason in missing if reason is None]
    still = sum(reason is not None and reason.startswith("open:") for _, _, reason in missing)
    listed = ["- %s (%s): %s" % (name, room, reason or "no reason yet")
              for name, room, reason in missing]
    reached = "All headers reach the goal." if not below else \
        "Below the goal: %s." % ", ".join(below)
    with open("docs/coverage.md", "w") as page:
        page.write(PAGE % (LINES, BRANCHES, "\n".join(rows), reached,
                           "\n".join(listed) or "None.",
                           "\n".join("| %s | %d | %d |" % (name, left, all_of)
                                     for left, all_of, name in worst(rooms, of_header, 12))))
    print("\n".join(rows))
    for line in bad:
        print("FAIL  coverage: " + line)
    print("coverage: %d programs; %d functions are not called: %d for a reason, %d open, %d without a "
          "reason; %s" % (len(files), len(missing), len(missing) - len(bad) - still, still, len(bad),
                          reached))
    print("coverage: %d passed, %d failed" % (len(HEADERS), len(bad)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
