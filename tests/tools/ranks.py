#!/usr/bin/env python3
"""Situations for tools/devstream-ranks: writes the files of ranks as src/ranks/recorder.h describes
them, and compares the report and the exit status. Prints a line per situation: name, tab, and
"ok" or the report that was wrong.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import time

TOOL = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "devstream-ranks")
VERBS = {name: number for number, name in enumerate(
    "none init split shrink finalize all_reduce reduce broadcast all_gather gather reduce_scatter "
    "scatter all_to_all send receive barrier".split())}
ENQUEUED, STARTED, COMPLETE, FAILED, ABANDONED = range(1, 6)
FLOAT32, INT32 = (2, 32, 1), (0, 32, 1)
ENTRIES, ENTRY, NOTES = 64, 192, 8192
WORLD, SUB = 0x11, 0x22


class Rank:
    """The file of a rank, with one device per rank."""

    def __init__(self, rank, size):
        self.rank, self.size, self.entries, self.notes = rank, size, [], b""
        self.version, self.closed, self.process, self.counts = 1, 0, os.getpid(), {}
        self.first = 0  # number of the last entry that was overwritten
        self.host = os.uname().nodename
        self.join(WORLD, "world", list(range(size)))

    def join(self, group, label, world):
        rank = world.index(self.rank)
        body = struct.pack("<2i4I16s64s", rank, len(world), len(world), rank, 1, len(world), b"mpi",
                           label.encode()) + struct.pack("<%di" % len(world), *world)
        self.note(1, group, body)

    def note(self, kind, group, body):
        size = (16 + len(body) + 7) & ~7
        self.notes += struct.pack("<2IQ", kind, size, group) + body.ljust(size - 16, b"\0")

    def fail(self, result, text, group=WORLD):
        self.note(2, group, struct.pack("<iIQ384s", result, 0, time.monotonic_ns(), text.encode()))

    def call(self, verb, line, status=COMPLETE, group=WORLD, **other):
        """Adds an operation. Transfers have no number among the collectives."""
        o = dict(dtype=FLOAT32, count=1024, reduce=255, root=-1, device=-1, flags=0, started=True)
        if verb == "all_reduce":
            o["reduce"] = 0
        o.update(other)
        sequence, collective = self.counts.get(group, (0, 0))
        is_collective = verb not in ("send", "receive", "finalize", "shrink")
        self.counts[group] = sequence + 1, collective + is_collective
        now = time.monotonic_ns()
        self.entries.append(struct.pack(
            "<8Q2iI4B2BHI32s64s", group, sequence + 1, collective + 1 if is_collective else 0,
            o["count"], 0x5, now, now if status > ENQUEUED and o["started"] else 0,
            now if status > STARTED else 0,
            o["root"], o["device"], line, VERBS[verb], o["reduce"], o["flags"], 0, *o["dtype"], 0,
            ("ds_comm_" + verb).encode(), b"examples/train.c"))
        self.status = getattr(self, "status", []) + [status]

    def data(self):
        entries = [bytes(ENTRY)] * ENTRIES
        for i, body in enumerate(self.entries):
            number = self.first + i + 1
            entries[(number - 1) % ENTRIES] = \
                struct.pack("<Q", number << 8 | self.status[i]) + body
        last = self.first + len(self.entries)
        header = struct.pack("<8s6I2i2IQq64s", b"DSRANKS\0", self.version, ENTRY, 4096, NOTES,
                             4096 + NOTES, ENTRIES, self.rank, self.size, self.process,
                             self.closed, time.monotonic_ns(), time.time_ns(), self.host.encode())
        header += struct.pack("<4Q", last, 0, len(self.notes), 0)
        return header.ljust(4096, b"\0") + self.notes.ljust(NOTES, b"\0") + b"".join(entries)


def ranks_of(size, calls=2):
    """Ranks that have called the same operations, the last one still pending on none."""
    ranks = [Rank(rank, size) for rank in range(size)]
    for rank in ranks:
        rank.call("init", 1, dtype=(0, 0, 0))
        for i in range(calls):
            rank.call("all_reduce", 10 + i, count=100 + i)
    return ranks


def close(ranks):
    for rank in ranks:
        rank.closed = 1


def dead_process():
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def run(files, *options):
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, data in enumerate(files):
            paths.append(os.path.join(folder, "rank%d" % i))
            with open(paths[-1], "wb") as file:
                file.write(data)
        done = subprocess.run([sys.executable, TOOL] + list(options) + paths, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True)
    return done.returncode, done.stdout + done.stderr


situations = []


def situation(name):
    def add(function):
        situations.append((name, function))
    return add


def expect(ranks, status, kinds, *sentences):
    """The kinds of the findings must be these, and the text must have the sentences."""
    files = [rank.data() for rank in ranks]
    code, text = run(files)
    found = json.loads(run(files, "--json")[1])
    seen = [finding["kind"] for finding in found["findings"] if finding["found"]]
    if code == status == found["status"] and sorted(seen) == sorted(kinds) and \
            all(sentence in text for sentence in sentences):
        return None
    return "exit status %d, %s: %s" % (code, seen, text)


@situation("no difference")
def all_good():
    ranks = ranks_of(4)
    close(ranks)
    return expect(ranks, 0, [], "4 files, 1 groups, 12 operations: no difference")


@situation("no difference in running processes")
def all_running():
    ranks = ranks_of(2)
    ranks[1].call("broadcast", 30, root=1)  # the root needs nobody
    return expect(ranks, 0, [], "runs; its file has no end mark", "nothing is pending")


@situation("a rank that is late")
def late():
    ranks = ranks_of(4)
    for rank in (ranks[0], ranks[1], ranks[3]):
        rank.call("all_reduce", 20, STARTED)
    return expect(
        ranks, 1, ["late", "pending"],
        "Rank 2 did not arrive at operation 4: all_reduce of 1024 float32, sum. Ranks 0, 1 and 3 "
        "called it (ds_comm_all_reduce at examples/train.c:20).",
        "The last operation of rank 2 in the group is number 3, all_reduce of 101 float32, sum, "
        "complete (ds_comm_all_reduce at examples/train.c:11).",
        "is pending on ranks 0, 1 and 3, for 0.", "; it waits for rank 2.")


@situation("a rank whose stream is late")
def late_stream():
    ranks = ranks_of(3)
    for rank in ranks:
        rank.call("all_reduce", 20, ENQUEUED if rank.rank == 1 else STARTED)
    return expect(ranks, 1, ["pending"], "it waits for rank 1, whose streams have not reached it")


@situation("a rank that was killed")
def killed():
    ranks = ranks_of(3)
    for rank in ranks[1:]:
        rank.call("all_reduce", 20, STARTED)
    ranks[0].process = dead_process()
    return expect(ranks, 1, ["killed", "killed", "pending"],
                  "Rank 0 did not arrive at operation 4",
                  "The process of rank 0 has ended.",
                  "Rank 0: process %d on %s has ended without closing its file"
                  % (ranks[0].process, ranks[0].host), "it waits for rank 0.")


@situation("a process of another machine")
def elsewhere():
    ranks = ranks_of(2)
    close(ranks)
    ranks[1].closed, ranks[1].host = 0, "elsewhere"
    return expect(ranks, 0, [], "process %d on elsewhere still runs or was killed; this machine "
                  "cannot tell" % ranks[1].process)


@situation("a process whose number has another process now")
def recycled():
    ranks = ranks_of(2)
    close(ranks)
    data = bytearray(ranks[1].data())
    data[44:48] = bytes(4)
    data[56:64] = struct.pack("<q", 10**18)  # long ago
    code, text = run([ranks[0].data(), bytes(data)])
    return None if code == 1 and "has ended without closing its file" in text else text


@situation("a killed process whose parent has not noticed")
def zombie():
    child = subprocess.Popen(["sleep", "100"])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    ranks = ranks_of(2)
    ranks[1].process = child.pid
    wrong = expect(ranks, 1, ["killed"], "Rank 1: process %d on" % child.pid)
    child.wait()
    return wrong


@situation("operations in another order")
def order():
    ranks = ranks_of(4)
    for rank in ranks:
        first = ("all_reduce", 20), ("all_gather", 21)
        for verb, line in reversed(first) if rank.rank == 3 else first:
            rank.call(verb, line, STARTED)
    return expect(ranks, 1, ["order", "pending"],
                  "Rank 3 called another operation number 4 than ranks 0, 1 and 2: all_gather of "
                  "1024 float32 (ds_comm_all_gather at examples/train.c:21) instead of all_reduce "
                  "of 1024 float32, sum (ds_comm_all_reduce at examples/train.c:20).",
                  "Operations 4 and 5 are swapped between ranks 0 and 3.",
                  "; the ranks called different operations. One later operation is pending, too.")


def differs(kind, sentence, **other):
    ranks = ranks_of(3)
    for rank in ranks:
        changed = rank.rank == 1
        options = dict(root=0, reduce=0)
        options.update(other if changed else {})
        rank.call("reduce", 41 if changed else 40, STARTED, **options)
    return expect(ranks, 1, [kind, "pending"], "Rank 1 called operation 4, reduce, with another "
                  "%s than ranks 0 and 2: %s" % (kind, sentence), "train.c:41) instead of",
                  "train.c:40).")


situation("another count")(lambda: differs("count", "1000 (", count=1000))
situation("another type")(lambda: differs("type", "int32 (", dtype=INT32))
situation("another root")(lambda: differs("root", "2 (", root=2))
situation("another reduction")(lambda: differs("reduction", "max (", reduce=2))


@situation("another verb")
def verb():
    ranks = ranks_of(2)
    ranks[0].call("all_reduce", 20, STARTED)
    ranks[1].call("barrier", 21, STARTED, dtype=(0, 0, 0))
    return expect(ranks, 1, ["operation", "pending"], "Rank 1 called another operation number 4 "
                  "than rank 0: barrier (ds_comm_barrier at examples/train.c:21) instead of "
                  "all_reduce of 1024 float32, sum")


@situation("counts that may differ")
def vary():
    ranks = ranks_of(3)
    for rank in ranks:
        rank.call("gather", 20, count=rank.rank, root=0, flags=1)
    close(ranks)
    return expect(ranks, 0, [])


@situation("another group")
def group():
    ranks = ranks_of(3)
    for rank in ranks:
        rank.join(SUB, "rows", [0, 1, 2])
        rank.call("barrier", 15, group=SUB)
        rank.call("all_reduce", 20, STARTED, group=SUB if rank.rank == 1 else WORLD)
    return expect(ranks, 1, ["group", "pending", "pending"],
                  "Rank 1 did not arrive at operation 4",
                  'Rank 1 called the same operation in group "rows", as number 2 '
                  "(ds_comm_all_reduce at examples/train.c:20).")


@situation("a forgotten call")
def forgotten():
    ranks = ranks_of(3)
    for rank in ranks:
        if rank.rank != 2:
            rank.call("broadcast", 20, root=0)
        rank.call("all_reduce", 21, STARTED)
    return expect(ranks, 1, ["forgotten", "pending"], "Rank 2 called another operation number 4",
                  "It seems that rank 2 left out a call.")


@situation("a call too many")
def extra():
    ranks = ranks_of(3)
    for rank in ranks:
        if rank.rank == 0:
            rank.call("broadcast", 20, STARTED, root=0)
        rank.call("all_reduce", 21, STARTED)
    return expect(ranks, 1, ["extra", "pending"], "It seems that rank 0 made one more call.")


@situation("a call that is forgotten at the end")
def forgotten_end():
    ranks = ranks_of(2)
    ranks[0].call("barrier", 20, dtype=(0, 0, 0))
    close(ranks)
    return expect(ranks, 1, ["forgotten"], "Rank 1 did not arrive at operation 4: barrier. "
                  "Rank 0 called it (ds_comm_barrier at examples/train.c:20).")


@situation("an abort")
def abort():
    ranks = ranks_of(2)
    for rank in ranks:
        rank.call("all_reduce", 20, ABANDONED)
        rank.fail(-32, "rank 1: the loss is NaN")
    close(ranks)
    return expect(ranks, 1, ["abort"],
                  "Ranks 0 and 1 recorded the failure DS_ERR_ABORTED: rank 1: the loss is NaN")


@situation("a time limit")
def timeout():
    ranks = ranks_of(3)
    for rank in ranks[:2]:
        rank.call("all_reduce", 20, FAILED)
        rank.fail(-31, "all_reduce was not complete within 2 s")
    close(ranks)
    return expect(ranks, 1, ["timeout", "forgotten"], "Rank 2 did not arrive at operation 4",
                  "recorded the failure DS_ERR_TIMEOUT: all_reduce was not complete within 2 s")


@situation("a rank that calls after the time limit")
def late_arrival():
    ranks = ranks_of(3)
    for rank in ranks[:2]:
        rank.call("all_reduce", 20, FAILED)
    for rank in ranks:
        rank.fail(-31, "all_reduce was not complete within 2 s")
    time.sleep(0.05)
    ranks[2].call("all_reduce", 20, FAILED)
    ranks[2].call("all_reduce", 21, FAILED)
    close(ranks)
    return expect(ranks, 1, ["late", "timeout"], "Rank 2 called operation 4, all_reduce of 1024 "
                  "float32, sum, ", " ms after the group had failed (ds_comm_all_reduce at "
                  "examples/train.c:20)")


@situation("a rank whose stream was late when the group failed")
def behind():
    ranks = ranks_of(3)
    for rank in ranks:
        rank.call("all_reduce", 20, FAILED, started=rank.rank != 1)
        rank.fail(-31, "all_reduce was not complete within 2 s")
    close(ranks)
    return expect(ranks, 1, ["stream", "timeout"], "The streams of rank 1 had not reached "
                  "operation 4, all_reduce of 1024 float32, sum, when the group failed")


@situation("a call before which the group had failed")
def refused_order():
    ranks = ranks_of(3)
    for rank in ranks:
        if rank.rank != 1:
            rank.call("all_reduce", 20, FAILED)
        rank.call("all_gather", 21, FAILED)
        rank.fail(-33, "another operation")
    close(ranks)
    return expect(ranks, 1, ["operation", "mismatch"], "Rank 1 left out a call, or made two in "
                  "another order: its later calls were refused")


@situation("a difference that the group compared")
def mismatch():
    ranks = ranks_of(2)
    for rank in ranks:
        rank.call("all_reduce", 20, FAILED, count=10 + rank.rank)
        rank.fail(-33, "count 10 and 11")
    close(ranks)
    return expect(ranks, 1, ["mismatch", "count"], "recorded the failure DS_ERR_MISMATCH")


@situation("a failed operation without a recorded cause")
def failed():
    ranks = ranks_of(2)
    for rank in ranks:
        rank.call("all_reduce", 20, FAILED if rank.rank else COMPLETE)
    close(ranks)
    return expect(ranks, 1, ["failure"], "Rank 1: all_reduce of 1024 float32, sum failed (")


@situation("a missing file")
def missing():
    ranks = ranks_of(4)
    for rank in ranks:
        rank.call("all_reduce", 20, STARTED)
    del ranks[1]
    return expect(ranks, 1, ["missing", "pending"], "There is no file of rank 1; 3 of 4 were "
                  "named.", "it waits for rank 1.")


@situation("two files of a rank")
def duplicate():
    ranks = ranks_of(2)
    close(ranks)
    return expect([ranks[0], ranks[1], ranks[1]], 1, ["duplicate"], "are both of rank 1")


@situation("ranks of a smaller group")
def subgroup():
    ranks = ranks_of(4)
    for rank in (ranks[1], ranks[3]):
        rank.join(SUB, "", [3, 1])
    ranks[3].call("barrier", 20, STARTED, group=SUB, dtype=(0, 0, 0))
    return expect(ranks, 1, ["late", "pending"], "group 0x22, 2 ranks, engine mpi:",
                  "Rank 1 did not arrive at operation 1: barrier. Rank 3 called it",
                  "Rank 1 called no operation of the group before. Its last one of all is in "
                  "another group: all_reduce of 101 float32, sum, complete")


@situation("transfers that match")
def transfers():
    ranks = ranks_of(2)
    ranks[0].call("send", 20, device=0, root=1)
    ranks[1].call("receive", 30, device=1, root=0)
    close(ranks)
    return expect(ranks, 0, [])


@situation("a receive without a send")
def no_send():
    ranks = ranks_of(2)
    ranks[1].call("receive", 30, STARTED, device=1, root=0)
    return expect(ranks, 1, ["transfer"], "Rank 1: receive of 1024 float32 on device 1 from device "
                  "0, started, for 0.", "has no matching send on device 0 (rank 0).")


@situation("a send without a receive")
def no_receive():
    ranks = ranks_of(2)
    ranks[0].call("send", 20, device=0, root=1)
    close(ranks)
    return expect(ranks, 1, ["transfer"], "has no matching receive on device 1 (rank 1).")


@situation("transfers of other sizes")
def transfer_sizes():
    ranks = ranks_of(2)
    ranks[0].call("send", 20, device=0, root=1, count=10)
    ranks[1].call("receive", 30, STARTED, device=1, root=0, count=20)
    return expect(ranks, 1, ["count"], "Rank 0 sends another count than rank 1 receives: send of "
                  "10 float32 from device 0 to device 1 (ds_comm_send at examples/train.c:20)")


@situation("a ring that was overwritten")
def overwritten():
    ranks = ranks_of(2, calls=100)
    for rank in ranks:
        rank.entries, rank.status = rank.entries[-ENTRIES:], rank.status[-ENTRIES:]
        rank.first = 101 - ENTRIES
    ranks[0].call("all_reduce", 20, STARTED)
    return expect(ranks, 1, ["late", "pending"], "Rank 1 did not arrive at operation 102")


@situation("transfers that are pending on both sides")
def pending_transfers():
    ranks = ranks_of(2)
    ranks[0].call("send", 20, STARTED, device=0, root=1)
    ranks[1].call("receive", 30, ENQUEUED, device=1, root=0)
    return expect(ranks, 1, ["pending"], "Rank 0: send of 1024 float32 from device 0 to device 1 "
                  "is pending, for 0.")


@situation("a group whose operations were overwritten on one rank")
def overwritten_group():
    ranks = ranks_of(2, calls=ENTRIES)
    for rank in ranks:
        rank.entries, rank.status = rank.entries[-ENTRIES:], rank.status[-ENTRIES:]
        rank.first = 1
        rank.join(SUB, "rows", [0, 1])
    ranks[0].call("barrier", 20, group=SUB, dtype=(0, 0, 0))
    close(ranks)
    return expect(ranks, 0, [], "no difference")


@situation("transfers of which the ring has lost some")
def overwritten_transfers():
    ranks = ranks_of(2)
    for i in range(ENTRIES):
        ranks[0].call("send", 20, device=0, root=1, count=i)
        if i > 20:
            ranks[1].call("receive", 30, device=1, root=0, count=i)
    for rank in ranks:
        rank.first = max(0, len(rank.entries) - ENTRIES)
        rank.entries, rank.status = rank.entries[-ENTRIES:], rank.status[-ENTRIES:]
    ranks[0].call("send", 20, STARTED, device=0, root=1, count=999)
    ranks[1].call("receive", 30, STARTED, device=1, root=0, count=ENTRIES)  # that was sent early
    return expect(ranks, 1, ["pending"])


@situation("an entry that was being written")
def incomplete():
    ranks = ranks_of(2)
    ranks[0].call("all_reduce", 20, 0)
    close(ranks)
    return expect(ranks, 0, [], "Rank 0: 1 entries were being written")


@situation("the last operations as a table")
def last():
    ranks = ranks_of(2)
    close(ranks)
    files = [rank.data() for rank in ranks]
    code, text = run(files, "--last", "1")
    entries = json.loads(run(files, "--last", "2", "--json")[1])["files"][1]["entries"]
    if code == 0 and "rank 1, last operations of" in text and "train.c:11" in text and \
            "train.c:10" not in text and [e["line"] for e in entries] == [10, 11]:
        return None
    return text


def refused(change, sentence):
    ranks = ranks_of(2)
    close(ranks)
    code, text = run([ranks[0].data(), change(bytearray(ranks[1].data()))])
    bad = "Traceback" in text or code != 2 or "rank1: " + sentence not in text
    return text if bad else None


def put(at, value):
    def change(data):
        data[at:at + len(value)] = value
        return bytes(data)
    return change


situation("an empty file")(lambda: refused(lambda d: b"", "has 0 bytes, which is too short"))
situation("a truncated file")(lambda: refused(lambda d: bytes(d[:9000]), "is truncated: 9000 of"))
situation("another file")(lambda: refused(put(0, b"<html>"), "is not a flight recorder"))
situation("another version")(lambda: refused(
    put(8, b"\2"), "has version 2; this tool reads version 1"))
situation("a damaged header")(lambda: refused(put(12, b"\1"), "is damaged: the header"))
situation("a damaged note")(lambda: refused(put(4100, b"\xff"), "is damaged: the note at byte"))
situation("a damaged entry")(lambda: refused(
    put(4096 + NOTES, b"\xff\xff"), "is damaged: entry 0 is malformed"))
situation("an unknown operation")(lambda: refused(
    put(4096 + NOTES + 84, b"\x63"), "is damaged: entry 0 has the unknown operation 99"))


@situation("files of random bytes")
def random_bytes():
    data = ranks_of(2)[0].data()
    for seed in range(40):
        changed = bytearray(data)
        for i in range(0, len(data), 97):
            if (i * 2654435761 + seed * 40503) % 64 == 0:
                changed[i] = (i + seed) & 255
        code, text = run([bytes(changed[:200 + (seed % 4) * 8000]) if seed % 2 else bytes(changed)])
        if code not in (0, 1, 2) or "Traceback" in text:
            return text
    return None


@situation("a file that does not exist")
def no_file():
    done = subprocess.run([sys.executable, TOOL, "/nowhere/rank0"], timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    wanted = "devstream-ranks: /nowhere/rank0: No such file or directory\n"
    return None if (done.returncode, done.stdout) == (2, wanted) else done.stdout


if __name__ == "__main__":
    for situation_name, function in situations:
        print("%s\t%s" % (situation_name, (function() or "ok").replace("\n", " | ")))
