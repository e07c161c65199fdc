#!/usr/bin/env python3
"""Runs tests/ranks/hangs.c: mistakes and failures of process groups, with MPICH and with threads.

    hangs.py [SITUATION...]

ENGINES: engines whose situations are run, "mpi local" without it; "nccl" (a process for each rank)
and "nccl-threads" need HANGS_STANDIN, the folder with the stand-ins for cudart and NCCL.
Each situation must end by itself. The calls of each rank must return the cause, and
tools/devstream-ranks must name the rank and the mistake. Prints "ok" or "FAIL" with the sentence
that was found, and "hangs: N passed, M failed". Compiles the program into build/ranks with CC and
CFLAGS. Without MPICH (tests/ranks/install.sh), only threads are used, and a line says so.
"""

import collections
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STANDIN = os.environ.get("HANGS_STANDIN", "")  # the folder with the stand-ins for cudart and NCCL
PROGRAM = os.path.join(ROOT, "build/ranks/hangs" + ("-nccl" if STANDIN else ""))
TOOL = os.path.join(ROOT, "tools/devstream-ranks")
WARNINGS = ("-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow "
            "-Wstrict-prototypes -Werror").split()
WRONG = 1  # the rank that makes the mistake
LIMIT_S = 20  # for a situation; the longest takes 3 s
TIMEOUT, ABORTED, MISMATCH = "DS_ERR_TIMEOUT", "DS_ERR_ABORTED", "DS_ERR_MISMATCH"
FAILED, FORKED, OK = "DS_ERR_FAILED", "DS_ERR_FORKED", "DS_OK"

Line = collections.namedtuple("Line", "step line result time duration text")


class Outcome:
    """The lines of the ranks of a run, and the report of the tool."""

    def __init__(self, folder, engine, size):
        self.engine, self.size = engine, size
        self.ranks = [self.read(os.path.join(folder, "rank.%d" % i)) for i in range(size)]
        files = [os.path.join(folder, "record.%d" % i) for i in range(size)]
        files = [file for file in files if os.path.exists(file)]
        if not files:
            self.report = {"status": 0, "findings": []}
            return
        done = subprocess.run([sys.executable, TOOL, "--json"] + files, timeout=60,
                              stdout=subprocess.PIPE, universal_newlines=True)
        self.report = json.loads(done.stdout)

    @staticmethod
    def read(path):
        if not os.path.exists(path):
            return []
        with open(path) as file:
            rows = [row.rstrip("\n").split(" ", 5) for row in file]
        return [Line(row[0], int(row[1]), row[2], int(row[3]), int(row[4]) / 1e6, row[5])
                for row in rows]

    def steps(self, rank, name):
        return [line for line in self.ranks[rank] if line.step == name]

    def others(self):
        return [rank for rank in range(self.size) if rank != WRONG]

    def findings(self, kind):
        return [f for f in self.report["findings"] if f["kind"] == kind and f["found"]]


class Wrong(Exception):
    """A situation did not go as it must."""


def require(condition, text, *values):
    if not condition:
        raise Wrong(text % values if values else text)


def returns(out, ranks, step, result, *words, index=0, within=None, after=0):
    """The step must have this result, with the words in its sentence. Returns the sentence."""
    text = ""
    for rank in ranks:
        lines = out.steps(rank, step)
        require(len(lines) > index, "rank %d has not reached step %s", rank, step)
        line = lines[index]
        results = (result,) if isinstance(result, str) else result
        require(line.result in results, "rank %d, %s: %s is not %s: %s", rank, step, line.result,
                "/".join(results), line.text)
        for word in words:
            require(re.search(word, line.text), "rank %d, %s: '%s' is not in: %s", rank, step,
                    word, line.text)
        require(within is None or line.duration <= within, "rank %d, %s took %.3f s", rank, step,
                line.duration)
        require(line.duration >= after, "rank %d, %s took only %.3f s", rank, step, line.duration)
        text = line.text
    return text


def names(out, kind, ranks, *words):
    """The tool must have a finding of the kind, with these ranks and the words."""
    found = out.findings(kind)
    require(found, "the tool has found %s, not '%s'",
            [f["kind"] + ": " + f["text"] for f in out.report["findings"]], kind)
    finding = found[0]
    require(ranks is None or finding["ranks"] == ranks, "the tool names ranks %s: %s",
            finding["ranks"], finding["text"])
    for word in words:
        require(re.search(word, finding["text"]), "'%s' is not in: %s", word, finding["text"])
    return finding["text"]


def known_later(out, ranks, result, *words):
    """After the failure, calls and the status have the cause, too."""
    for rank in ranks:
        calls = out.steps(rank, "call")
        returns(out, [rank], "call", result, *words, index=len(calls) - 1, within=0.1)
    returns(out, ranks, "status", result, *words, within=0.1)


def ends(out, ranks, *, result=OK):
    """The end of the group and of devstream must not wait."""
    for rank in ranks:
        returns(out, [rank], "finalize", OK, index=len(out.steps(rank, "finalize")) - 1, within=1)
        if out.engine in ("mpi", "nccl") or rank == 0:
            returns(out, [rank], "shutdown", result, within=3,
                    index=len(out.steps(rank, "shutdown")) - 1)
            returns(out, [rank], "over", OK)


# ---- situations ----------------------------------------------------------------------------------

Situation = collections.namedtuple("Situation", "name engine size compare check alone environment")
situations = []


def situation(name, engines="mpi local nccl nccl-threads", size=3, compare=False, alone=False, **environment):
    """alone: measures, so no other situation runs at the same time."""
    def add(check):
        for engine in engines.split():
            situations.append(Situation(name, engine, size, compare, check, alone, environment))
        return check
    return add


def on_nccl(out):
    """NCCL carries no messages between ranks: the others meet their own time limit."""
    return out.engine.startswith("nccl")


def calls_of(out, rank):
    """Call sites of the rank's calls in the situation, without the first call of all ranks."""
    return ["hangs.c:%d" % line.line for line in out.steps(rank, "call")[1:]]


@situation("fine")
@situation("fine", compare=True)
def fine(out):
    returns(out, range(3), "sync", OK)
    ends(out, range(3))
    require(out.report["status"] == 0, "the tool has found %s", out.report["findings"])
    return "no difference"


@situation("late", alone=True, HANGS_LIMIT="3000")
def late(out):
    site = calls_of(out, 0)[0]
    text = returns(out, out.others(), "sync", TIMEOUT, "ds_comm_all_reduce at \\S*" + site,
                   "not complete within 3000 ms", within=3.3, after=2.95)
    if on_nccl(out):
        returns(out, [WRONG], "sync", TIMEOUT, "on rank 1 of 3: not complete", within=3.3)
        known_later(out, out.others(), TIMEOUT, site)
    else:
        returns(out, [WRONG], "sync", TIMEOUT, "rank [02]: ds_comm_all_reduce at", within=0.1)
        known_later(out, range(3), TIMEOUT, site)
    ends(out, range(3))
    names(out, "late", [WRONG], "operation 2, all_reduce of 4 float32, sum", site)
    return text


@situation("dead", "mpi nccl", size=4)
def dead(out):
    site = calls_of(out, 0)[0]
    gone_codes = (TIMEOUT, FAILED, ABORTED)
    words = "NCCL reports an error|" if on_nccl(out) else ""
    text = returns(out, out.others(), "sync", gone_codes, words + "ds_comm_all_reduce at \\S*" +
                   site, within=1.5)
    known_later(out, out.others(), gone_codes, words + site)
    ends(out, out.others())
    names(out, "killed", [WRONG], "did not arrive at operation 2", site, "process of rank 1 has")
    return text


@situation("dead", "local nccl-threads")
def gone(out):
    site = calls_of(out, 0)[0]
    text = returns(out, out.others(), "sync", TIMEOUT, site, within=1.3)
    known_later(out, out.others(), TIMEOUT, site)
    ends(out, out.others())
    names(out, "forgotten", [WRONG], "did not arrive at operation 2", site)
    return text


@situation("dead_large", "mpi nccl")
def dead_large(out):
    site = calls_of(out, 0)[0]
    gone_codes = (TIMEOUT, FAILED, ABORTED)
    site = "NCCL reports an error|" + site if on_nccl(out) else site
    text = returns(out, out.others(), "sync", gone_codes, site, within=3)
    known_later(out, out.others(), gone_codes, site)
    ends(out, out.others())
    # NCCL's other ranks find the failure one after the other, so they stop at different calls
    names(out, "killed", None if on_nccl(out) else [WRONG])
    require(WRONG in out.findings("killed")[0]["ranks"], "%s", out.findings("killed"))
    return text


def mistake(out, kind, *words):
    """A mistake whose operations may be complete, wait or fail: the engine does not compare."""
    text = names(out, kind, [WRONG], calls_of(out, WRONG)[0], calls_of(out, 0)[0], *words)
    for rank in range(3):
        returns(out, [rank], "sync", (OK, TIMEOUT, FAILED, MISMATCH, ABORTED), within=1.5)
    ends(out, range(3))
    return text


def compared(out, kind, mine, others):
    """The same with DS_RANKS_COMPARE: at once, on all ranks, with both calls."""
    if on_nccl(out) and kind == "order":
        kind = "operation"  # the call waits for the comparison, so the next one is not made
    calls = "rank 0 calls %s.* at \\S*%s, but rank 1 calls %s.* at \\S*%s" % (
        others, calls_of(out, 0)[0], mine, calls_of(out, WRONG)[0])
    text = returns(out, range(3), "sync", MISMATCH, calls, within=0.6)
    known_later(out, range(3), MISMATCH, calls)
    ends(out, range(3))
    names(out, kind, [WRONG], calls_of(out, WRONG)[0], calls_of(out, 0)[0])
    names(out, "mismatch", None, calls)
    return text


@situation("order")
def order(out):
    return mistake(out, "order", "Operations 2 and 3 are swapped")


@situation("order", compare=True)
def order_compared(out):
    return compared(out, "order", "all_gather", "all_reduce")


@situation("count")
def count(out):
    return mistake(out, "count", ": 3 ", "instead of 4 ")


@situation("count", compare=True)
def count_compared(out):
    return compared(out, "count", "all_reduce of 3", "all_reduce of 4")


@situation("type")
def kind_of_elements(out):
    return mistake(out, "type", ": int32 ", "instead of float32 ")


@situation("type", compare=True)
def type_compared(out):
    return compared(out, "type", "all_reduce of 4 int32", "all_reduce of 4 float32")


@situation("root")
def root(out):
    return mistake(out, "root", ": 1 ", "instead of 0 ")


@situation("root", compare=True)
def root_compared(out):
    return compared(out, "root", "broadcast .*root 1", "broadcast .*root 0")


@situation("group", size=4)
@situation("group", size=4, compare=True)
def group(out):
    text = returns(out, [0], "sync", TIMEOUT,
                   "hangs.c:\\d+, operation 1 of group .*split 1, color 0", within=1.5)
    returns(out, [WRONG], "sync", TIMEOUT, "operation 1 of group .*split 2, color 1", within=1.5)
    returns(out, [2, 3], "sync", OK)
    ends(out, range(4))
    names(out, "group", [WRONG], "did not arrive at operation 1",
          "Rank 1 called the same operation in group .*split 2, color 1", calls_of(out, WRONG)[0])
    return text


@situation("forgotten")
@situation("forgotten", compare=True)
def forgotten(out):
    site = calls_of(out, 0)[0]
    text = returns(out, out.others(), "sync", TIMEOUT, "ds_ranks_barrier at \\S*" + site,
                   within=1.5)
    known_later(out, out.others(), TIMEOUT, site)
    ends(out, range(3))
    names(out, "forgotten", [WRONG], "did not arrive at operation 2: barrier", site)
    return text


@situation("skipped")
def skipped(out):
    return mistake(out, "forgotten", "It seems that rank 1 left out a call")


@situation("skipped", compare=True)
def skipped_compared(out):
    text = returns(out, range(3), "sync", MISMATCH, "rank 0 calls broadcast .*" +
                   calls_of(out, 0)[0], "rank 1 calls all_reduce of 2", within=0.6)
    if on_nccl(out):
        names(out, "operation", [WRONG])
    else:
        names(out, "forgotten", [WRONG], "It seems that rank 1 left out a call")
    ends(out, range(3))
    return text


def abort_delay(out, ranks, step="sync"):
    began = min(line.time - line.duration * 1e6 for rank in range(out.size)
                for line in out.steps(rank, "abort"))
    delay = max(out.steps(rank, step)[0].time for rank in ranks) - began
    require(0 <= delay < 100000, "the waits ended %.1f ms after the abort", delay / 1000)
    return delay / 1000


@situation("abort", alone=True)
@situation("abort", alone=True, compare=True)
def abort(out):
    words = ("the loss is NaN", "rank 1 has aborted group \"world\" at \\S*hangs.c:")
    returns(out, [WRONG], "abort", OK, within=0.1)
    returns(out, [WRONG], "again", OK, within=0.1)
    if on_nccl(out):
        text = returns(out, out.others(), "sync", TIMEOUT, "within (1000 ms|the time limit)")
        known_later(out, out.others(), TIMEOUT)
        known_later(out, [WRONG], ABORTED, *words)
        ends(out, range(3))
        return text
    text = returns(out, out.others(), "sync", ABORTED, *words)
    delay = abort_delay(out, out.others())
    known_later(out, range(3), ABORTED, *words)
    ends(out, range(3))
    names(out, "abort", None, *words)
    return "%.1f ms: %s" % (delay, text)


@situation("abort_thread", alone=True)
def abort_thread(out):
    words = ("the disk is full", "rank 1 has aborted group \"world\" at \\S*hangs.c:")
    text = returns(out, [1], "sync", ABORTED, *words)
    delay = abort_delay(out, [1])
    known_later(out, [1], ABORTED, *words)
    if on_nccl(out):
        returns(out, [2], "sync", TIMEOUT, "not complete within 1000 ms")
    else:
        returns(out, [2], "sync", ABORTED, *words)
        abort_delay(out, [2])
        returns(out, [0], "status", ABORTED, *words)
        known_later(out, range(3), ABORTED, *words)
    ends(out, range(3))
    names(out, "abort", None, *words)
    return "%.1f ms: %s" % (delay, text)


@situation("second_init")
def second_init(out):
    text = returns(out, [WRONG], "init", TIMEOUT, "within the time limit", within=1.5)
    returns(out, range(3), "sync", OK)
    returns(out, range(3), "status", OK)
    ends(out, range(3))
    return text


@situation("same_rank", "local")
def same_rank(out):
    text = returns(out, [2], "init", "DS_ERR_ILLEGAL_STATE",
                   "rank 1 has joined group \"twice\" already", within=0.1)
    returns(out, [0, 1], "init", TIMEOUT, "2 of 3 ranks have joined group \"twice\"", within=1.5)
    ends(out, range(3))
    return text


@situation("fork")
def fork(out):
    require(len(out.steps(WRONG, "call")) == 3, "the child has not called")
    text = returns(out, [WRONG], "call", FORKED, "fork", index=1)
    returns(out, [WRONG], "status", FORKED)
    returns(out, [WRONG], "abort", FORKED)
    returns(out, [WRONG], "finalize", FORKED)
    returns(out, [WRONG], "child", OK)
    returns(out, range(3), "sync", OK)
    returns(out, out.others(), "status", OK)
    ends(out, range(3))
    require(out.report["status"] == 0, "the tool has found %s", out.report["findings"])
    return text


@situation("failed_stream", "mpi local")  # a stream of a GPU goes on after a closure that fails
def failed_stream(out):
    words = ("its stream failed before the operation|a closure, launched", "on rank 1 of 3")
    text = returns(out, out.others(), "sync", FAILED, *words, within=0.5)
    returns(out, [WRONG], "sync", FAILED, "a closure, launched at \\S*hangs.c:\\d+, failed")
    known_later(out, range(3), FAILED, *words)
    ends(out, out.others() if out.engine == "mpi" else [])
    names(out, "failure", None, *words)
    return text


@situation("failed_group")
def failed_group(out):
    words = ("the first group", "rank 1 has aborted group \"world, split 1, color 0\"")
    if on_nccl(out):  # the other group and its operations go on
        text = returns(out, [WRONG], "sync", ABORTED, *words, within=0.5)
        returns(out, out.others(), "sync", OK)
        ends(out, range(3))
        return text
    text = returns(out, range(3), "sync", (ABORTED, FAILED), *words, within=0.5)
    known_later(out, range(3), (ABORTED, FAILED), *words)
    ends(out, range(3))
    require(not out.findings("pending"), "%s", out.findings("pending"))
    return text


@situation("own_limit", alone=True)
def own_limit(out):
    text = returns(out, out.others(), "sync", TIMEOUT, "not complete within 300 ms", within=0.6,
                   after=0.28)
    known_later(out, out.others(), TIMEOUT, "not complete within 300 ms")
    if not on_nccl(out):
        returns(out, [WRONG], "status", TIMEOUT, "not complete within 300 ms")
    ends(out, range(3))
    return text


@situation("busy_stream", alone=True)
def busy_stream(out):
    text = returns(out, range(3), "sync", TIMEOUT, "not (started|complete) within 400 ms",
                   within=0.7)
    known_later(out, range(3), TIMEOUT, "within 400 ms")
    ends(out, range(3))
    if not on_nccl(out):
        names(out, "stream", [WRONG], "streams of rank 1 had not reached operation 2",
              calls_of(out, WRONG)[0])
    return text


@situation("late_init", "nccl nccl-threads")
def late_init_nccl(out):
    # rank 0 waits for the others inside of NCCL, rank 2 too
    text = returns(out, out.others(), "init", TIMEOUT, "within the time limit", within=0.6)
    returns(out, [WRONG], "init", TIMEOUT, "within the time limit", within=0.3)
    ends(out, range(3))
    return text


@situation("late_init", "local")
def late_init(out):
    text = returns(out, out.others(), "init", TIMEOUT, "2 of 3 ranks have joined group \"late\"",
                   within=0.6)
    returns(out, [WRONG], "init", TIMEOUT, "1 of 3 ranks have joined", within=0.3)
    ends(out, range(3))
    return text


@situation("late_split")
def late_split(out):
    text = returns(out, out.others(), "split", TIMEOUT, "not all ranks have called", within=1.5)
    returns(out, [WRONG], "split", TIMEOUT, within=1.5)
    returns(out, out.others(), "status", TIMEOUT, "ds_ranks_split")
    names(out, "timeout", None, "ds_ranks_split at \\S*hangs.c:")
    ends(out, range(3))
    return text


@situation("shrink", size=4)
def shrink(out):
    returns(out, out.others(), "sync", (TIMEOUT, FAILED, ABORTED), within=1.5)
    returns(out, out.others(), "shrink", OK, within=1)
    returns(out, out.others(), "end", OK, within=1)
    returns(out, out.others(), "end", OK, index=1, within=1)
    returns(out, out.others(), "sum", OK)
    ends(out, out.others())
    return "the others go on"


@situation("no_engine", "local", DEVSTREAM_MPI_LIBRARY="/nowhere.so", LD_LIBRARY_PATH="")
def no_engine(out):
    text = returns(out, range(3), "init", "DS_ERR_UNSUPPORTED", "MPI cannot be loaded .*nowhere.so",
                   "DEVSTREAM_MPI_LIBRARY")
    returns(out, range(3), "init", "DS_ERR_INVALID_VALUE", 'engine is "gloo"; use "mpi", "nccl" or "local"',
            index=1)
    returns(out, range(3), "init", "DS_ERR_INVALID_VALUE", 'engine is ""', index=2)
    returns(out, range(3), "sync", OK)
    ends(out, range(3))
    return text


# ---- running -------------------------------------------------------------------------------------

def run_live_tool(folder, size, result):
    """Waits until the ranks have begun, and runs the tool while the ranks wait for one that is late."""
    time.sleep(0.7)
    files = [os.path.join(folder, "record.%d" % i) for i in range(size)]
    done = subprocess.run([sys.executable, TOOL] + files, timeout=60, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    result.append(done.stdout)


class Ranks:
    """The processes of a situation, one for each rank."""

    def __init__(self, processes):
        self.processes = processes
        self.pids = [process.pid for process in processes]

    def wait(self, timeout=None):
        end = time.monotonic() + timeout if timeout else None
        for process in self.processes:
            process.wait(timeout=max(0.01, end - time.monotonic()) if end else None)


def start(s, folder, mpich):
    environment = dict(os.environ, HANGS_OUT=folder, HANGS_RANKS=str(s.size),
                       DEVSTREAM_CPU_DEVICES="4", HANGS_COMPARE="1" if s.compare else "0",
                       DEVSTREAM_RANKS_RECORD=os.path.join(folder, "record.%r"))
    command = [PROGRAM, s.engine, s.name]
    if s.engine == "mpi":
        environment["LD_LIBRARY_PATH"] = os.path.join(mpich, "lib")
        # The shell stays, so that mpiexec sees an exit status instead of a signal.
        command = [os.path.join(mpich, "bin/mpiexec"), "-disable-auto-cleanup", "-n", str(s.size),
                   "sh", "-c", 'trap "" USR1; "$0" "$@"; exit 0'] + command
    own = [{}]
    if s.engine.startswith("nccl"):
        command[1] = "nccl"
        if s.name == "fine":  # the stand-in is slow
            environment["HANGS_LIMIT"] = "10000"
        environment.update(LD_LIBRARY_PATH=STANDIN, STANDIN_DEVICES="8",
                           STANDIN_NCCL_MISMATCH="error")
        if s.engine == "nccl":
            own = [{"RANK": str(i), "WORLD_SIZE": str(s.size)} for i in range(s.size)]
    environment.update(s.environment)
    log = open(os.path.join(folder, "log"), "w")
    return Ranks([subprocess.Popen(command, env=dict(environment, **more), stdout=log, stderr=log,
                                   start_new_session=True) for more in own])


def check_live(texts):
    require(texts and "Rank 1 did not arrive at operation 2" in texts[0] and
            "it waits for rank 1" in texts[0], "while it hangs, the tool says: %s", texts)


def run_situation(s, mpich):
    """Returns the sentence, or raises Wrong."""
    folder = tempfile.mkdtemp(prefix="ds-hangs-")
    try:
        process = start(s, folder, mpich)
        texts = []
        live = threading.Thread(target=run_live_tool, args=(folder, s.size, texts))
        if s.name == "late":
            live.start()
        try:
            process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            for pid in process.pids:
                try:
                    os.killpg(pid, 9)
                except ProcessLookupError:
                    pass
            process.wait()
            last = [(line[-1].step, line[-1].line) if line else None
                    for line in Outcome(folder, s.engine, s.size).ranks]
            raise Wrong("hangs; the last steps of the ranks are %s" % last)
        if s.name == "late":
            live.join()
            check_live(texts)
        out = Outcome(folder, s.engine, s.size)
        return s.check(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def title(s):
    return "%s, %s%s" % (s.name, s.engine, ", compared" if s.compare else "")


def verdict(s, mpich):
    began = time.monotonic()
    try:
        text, good = run_situation(s, mpich), True
    except (Wrong, IndexError) as wrong:
        text, good = "%s: %s" % (type(wrong).__name__, wrong), False
    except subprocess.TimeoutExpired as late_tool:
        text, good = str(late_tool), False
    print("%-5s %s (%.1f s): %s" % ("ok" if good else "FAIL", title(s), time.monotonic() - began,
                                    text), flush=True)
    return good


def build():
    """Compiles the program."""
    os.makedirs(os.path.dirname(PROGRAM), exist_ok=True)
    command = shlex.split(os.environ.get("CC", "cc")) + ["-std=gnu11", "-O1", "-g"] + \
        shlex.split(os.environ.get("CFLAGS", "")) + WARNINGS + \
        (["-DDEVSTREAM_CUDA_DLOPEN"] if STANDIN else []) + ["-Isrc", "-o", PROGRAM, "tests/ranks/hangs.c", "-pthread", "-lm", "-ldl"]
    return subprocess.run(command, timeout=600).returncode == 0


def main():
    os.chdir(ROOT)
    unknown = set(sys.argv[1:]) - {s.name for s in situations}
    if unknown:
        print("hangs: there is no situation %s" % ", ".join(sorted(unknown)))
        return 2
    if not build():
        print("hangs: the program does not compile")
        return 1
    installed = subprocess.run(["tests/ranks/install.sh", "mpich"], stdout=subprocess.PIPE,
                               universal_newlines=True, timeout=600)
    said = installed.stdout.strip().split("\n")[-1]
    if installed.returncode not in (0, 3):
        print("hangs: tests/ranks/install.sh failed: %s" % said)
        return 1
    mpich = said if installed.returncode == 0 else None
    engines = os.environ.get("ENGINES", "mpi local").split()
    chosen = [s for s in situations if s.engine in engines and
              (not sys.argv[1:] or s.name in sys.argv[1:])]
    skipped_runs = [s for s in chosen if s.engine == "mpi" and not mpich]
    chosen = [s for s in chosen if s not in skipped_runs]
    if skipped_runs:
        print("%s; %d situations are skipped" % (said, len(skipped_runs)))
    results = []
    with ThreadPoolExecutor(3) as pool:
        results += pool.map(lambda s: verdict(s, mpich), [s for s in chosen if not s.alone])
    results += [verdict(s, mpich) for s in chosen if s.alone]
    print("hangs: %d passed, %d failed" % (sum(results), len(results) - sum(results)))
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
