#!/usr/bin/env python3
"""read_snapshot.py [--partial] FILE.pickle [FILE.json] - reads a snapshot of the allocator as others do, checks it, and says what is in it.

The pickle is read twice: by Python's pickle module and by a reader of our own that keeps to what PyTorch's memory viewer can do (its
opcodes, its numbers, its limit on how much is appended at once). Both must give the same. Then the contents are checked: blocks tile their
segments, sums are the segments' own, and the history can be followed back from the end to its beginning, as the viewer does to draw the
state at any moment, unless --partial says that it has gaps. With a second file the JSON must say what the pickle says.

Prints one "key=value" a line; "wrong=..." for each thing that is wrong, and then exits with 1."""
import json
import pickle
import sys

STATES = {"inactive", "active_allocated", "active_pending_free"}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "oom"}
SEGMENT = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type", "segment_pool_id",
           "is_expandable", "frames", "blocks"}
BLOCK = {"address", "size", "requested_size", "state", "frames"}
SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments", "pinned_num_register_threads",
            "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse", "roundup_power2_divisions",
            "trace_alloc_overflowed", "trace_alloc_max_entries", "max_round_threshold", "max_cached_size"}
EXACT = 1 << 53  # from here on JavaScript's numbers have gaps
wrong = []


def check(condition, text):
    if not condition and len(wrong) < 20:
        wrong.append(text)


def number(data, at, size):
    return int.from_bytes(data[at:at + size], "little")


def read_as_the_viewer(data):
    """The opcodes that the viewer knows and that we write; tuples become lists."""
    import struct
    stack, marks, memo, at, largest = [], [], {}, 0, 0
    assert data[0] == 0x80 and 2 <= data[1] <= 4, "the protocol"
    at = 2
    while True:
        op = data[at:at + 1]
        at += 1
        if op == b".":
            assert at == len(data) and len(stack) == 1 and not marks, "something is left over"
            return stack.pop(), largest
        if op == b"(":
            marks.append(len(stack))
        elif op == b"}":
            stack.append({})
        elif op == b"]":
            stack.append([])
        elif op == b"e":
            mark = marks.pop()
            largest = max(largest, len(stack) - mark)
            stack[mark - 1].extend(stack[mark:])
            del stack[mark:]
        elif op == b"u":
            mark = marks.pop()
            keys, values = stack[mark::2], stack[mark + 1::2]
            assert len(keys) == len(values) == len(set(keys)), "keys of a dictionary"
            assert all(isinstance(k, str) for k in keys), "a key that is no text"
            stack[mark - 1].update(zip(keys, values))
            del stack[mark:]
        elif op == b"X":
            size = number(data, at, 4)
            stack.append(data[at + 4:at + 4 + size].decode("utf-8"))
            at += 4 + size
        elif op == b"K":
            stack.append(data[at])
            at += 1
        elif op == b"M":
            stack.append(number(data, at, 2))
            at += 2
        elif op == b"J":
            stack.append(int.from_bytes(data[at:at + 4], "little", signed=True))
            at += 4
        elif op == b"\x8a":
            size = data[at]
            assert 1 <= size <= 8, "a number of %d bytes" % size
            value = int.from_bytes(data[at + 1:at + 1 + size], "little", signed=True)
            assert abs(value) < EXACT, "%d has no exact place in JavaScript" % value
            stack.append(value)
            at += 1 + size
        elif op == b"G":
            stack.append(struct.unpack(">d", data[at:at + 8])[0])
            at += 8
        elif op == b"\x88" or op == b"\x89":
            stack.append(op == b"\x88")
        elif op == b"\x86":
            stack[-2:] = [stack[-2:]]
        elif op == b"q" or op == b"h":
            if op == b"q":
                memo[data[at]] = stack[-1]
            else:
                stack.append(memo[data[at]])
            at += 1
        elif op == b"r" or op == b"j":
            key = number(data, at, 4)
            if op == b"r":
                memo[key] = stack[-1]
            else:
                stack.append(memo[key])
            at += 4
        else:
            raise AssertionError("opcode %r" % op)


def lists(value):
    """Tuples become lists, as JSON has them."""
    if isinstance(value, dict):
        return {k: lists(v) for k, v in value.items()}
    return [lists(v) for v in value] if isinstance(value, (list, tuple)) else value


def without_times(s):
    """Takes the times out, which each snapshot measures anew, and gives them."""
    return [e.pop("time_us") for e in [s] + [e for trace in s["device_traces"] for e in trace] + s["external_annotations"]]


def check_frames(frames, what):
    check(isinstance(frames, list) and len(frames) <= 1, "frames of " + what)
    for f in frames:
        check(set(f) == {"filename", "line", "name"} and isinstance(f["line"], int), "a frame of " + what)
        check(isinstance(f["filename"], str) and isinstance(f["name"], str) and f["name"], "the texts of a frame of " + what)


def check_segments(s):
    last = (-1, 0)
    for g in s["segments"]:
        check(set(g) - {"pool_label"} == SEGMENT, "keys of a segment: %s" % sorted(g))
        check(g["segment_type"] in ("small", "large"), "segment_type " + str(g["segment_type"]))
        check(isinstance(g["segment_pool_id"], tuple) and len(g["segment_pool_id"]) == 2, "segment_pool_id")
        check(0 <= g["device"] < len(s["device_traces"]), "the device of a segment")
        check((g["device"], g["address"]) >= last, "the order of segments")
        last = (g["device"], g["address"] + g["total_size"])
        check_frames(g["frames"], "a segment")
        at = g["address"]
        for b in g["blocks"]:
            check(set(b) == BLOCK, "keys of a block: %s" % sorted(b))
            check(b["address"] == at, "block %#x is not where the one before it ends" % b["address"])
            check(b["state"] in STATES, "state " + str(b["state"]))
            check(b["size"] > 0 and b["requested_size"] <= b["size"], "sizes of a block")
            check(b["state"] != "inactive" or (b["requested_size"] == 0 and b["frames"] == []), "a free block with an owner")
            check_frames(b["frames"], "a block")
            at += b["size"]
        active = [b for b in g["blocks"] if b["state"] != "inactive"]
        check(at == g["address"] + g["total_size"], "blocks do not fill the segment at %#x" % g["address"])
        check(g["active_size"] == sum(b["size"] for b in active), "active_size")
        check(g["requested_size"] == sum(b["requested_size"] for b in active), "requested_size")
        check(g["allocated_size"] == sum(b["size"] for b in active if b["state"] == "active_allocated"), "allocated_size")


def check_events(trace):
    time = 0
    for e in trace:
        place = "device_free" if e["action"] == "oom" else "addr"
        check(e["action"] in ACTIONS, "action " + str(e["action"]))
        check(set(e) - {"segment_pool_id"} == {"action", place, "size", "stream", "time_us", "frames"}, "keys of an event: %s" % sorted(e))
        check_frames(e["frames"], "an event")
        check(e["time_us"] >= time, "the order of events")
        time = e["time_us"]


def follow_back(segments, trace):
    """From what is there now to the beginning."""
    blocks, runs = {}, []
    for g in segments:
        runs.append([g["address"], g["address"] + g["total_size"]])
        for b in g["blocks"]:
            if b["state"] != "inactive":
                blocks[b["address"]] = b["state"]
    runs.sort()

    def inside(begin, end):
        return next((r for r in runs if r[0] <= begin and end <= r[1]), None)

    def add(begin, end):
        check(not any(r[0] < end and begin < r[1] for r in runs), "a segment at %#x twice" % begin)
        runs.append([begin, end])
        runs.sort()
        for i in range(len(runs) - 1, 0, -1):  # the viewer joins neighbours
            if runs[i - 1][1] == runs[i][0]:
                runs[i - 1][1] = runs[i][1]
                del runs[i]

    def take(begin, end):
        r = inside(begin, end)
        check(r, "a segment at %#x that is not there afterwards" % begin)
        if r:
            runs.remove(r)
            runs.extend(x for x in ([r[0], begin], [end, r[1]]) if x[0] < x[1])

    for i in range(len(runs) - 1, 0, -1):
        if runs[i - 1][1] == runs[i][0]:
            runs[i - 1][1] = runs[i][1]
            del runs[i]
    for e in reversed(trace):
        at, end = e.get("addr", 0), e.get("addr", 0) + e["size"]
        if e["action"] == "alloc":
            check(blocks.pop(at, None) == "active_allocated", "an allocation at %#x that is not there afterwards" % at)
            check(inside(at, end), "a block at %#x outside of all segments" % at)
        elif e["action"] == "free_requested":
            check(blocks.get(at) == "active_pending_free", "a free at %#x of nothing" % at)
            blocks[at] = "active_allocated"
        elif e["action"] == "free_completed":
            check(at not in blocks, "%#x was freed, and is still there" % at)
            blocks[at] = "active_pending_free"
        elif e["action"] in ("segment_free", "segment_unmap"):
            add(at, end)
        elif e["action"] in ("segment_alloc", "segment_map"):
            take(at, end)


def facts(s):
    print("devices=%d" % len(s["device_traces"]))
    print("annotations=%d" % len(s["external_annotations"]))
    for i, a in enumerate(s["external_annotations"]):
        print("annotation%d=%d:%s" % (i, a["device"], a["name"]))
    print("labels=" + ",".join(sorted({f["name"] for g in s["segments"] for b in g["blocks"] for f in b["frames"]})))
    for d, trace in enumerate(s["device_traces"]):
        segments = [g for g in s["segments"] if g["device"] == d]
        blocks = [b for g in segments for b in g["blocks"]]
        print("%d.name=%s" % (d, s["devices"][d]["name"]))
        print("%d.segments=%d" % (d, len(segments)))
        print("%d.plain_segments=%d" % (d, sum(not g["is_expandable"] for g in segments)))
        for kind in "small", "large":
            of = [g for g in segments if g["segment_type"] == kind]
            for key, name in ("total_size", "reserved"), ("allocated_size", "allocated"), ("active_size", "active"), ("requested_size", "requested"):
                print("%d.%s.%s=%d" % (d, name, kind, sum(g[key] for g in of)))
        for state in STATES:
            print("%d.%s=%d" % (d, state, sum(b["state"] == state for b in blocks)))
        print("%d.pools=%s" % (d, " ".join(sorted({"%d,%d" % g["segment_pool_id"] for g in segments}))))
        print("%d.pool_labels=%s" % (d, ",".join(sorted({g["pool_label"] for g in segments if "pool_label" in g}))))
        print("%d.events=%d" % (d, len(trace)))
        for action in sorted(ACTIONS):
            print("%d.%s=%d" % (d, action, sum(e["action"] == action for e in trace)))
        if trace:
            e = trace[-1]
            print("%d.last=%s" % (d, e["action"]))
            print("%d.last_size=%d" % (d, e["size"]))
            print("%d.last_frame=%s" % (d, ":".join(str(v) for f in e["frames"] for v in (f["filename"], f["line"], f["name"]))))
            print("%d.first_size=%d" % (d, trace[0]["size"]))
        print("%d.overflowed=%d" % (d, s["devices"][d]["history_events"] > s["devices"][d]["history_entries"]))
        ooms = [e for e in trace if e["action"] == "oom"]
        if ooms:
            print("%d.oom_size=%d" % (d, ooms[-1]["size"]))
            print("%d.oom_free=%d" % (d, ooms[-1]["device_free"]))


def main(*arguments):
    partial = arguments[0] == "--partial"
    path, other = (list(arguments[partial:]) + [None])[:2]
    with open(path, "rb") as f:
        data = f.read()
    snapshot = pickle.loads(data)
    viewed, largest = read_as_the_viewer(data)
    check(lists(snapshot) == viewed, "the viewer's reader and Python's do not agree")
    check(largest <= 1000, "%d things are appended at once" % largest)
    check({"segments", "device_traces", "allocator_settings", "external_annotations"} <= set(snapshot), "the keys")
    check(set(snapshot["allocator_settings"]) == SETTINGS, "the settings")
    check_segments(snapshot)
    for d, trace in enumerate(snapshot["device_traces"]):
        check_events(trace)
        if not partial:
            follow_back([g for g in snapshot["segments"] if g["device"] == d], trace)
    if other:
        with open(other, encoding="utf-8") as f:
            said = json.load(f)
        times, others = without_times(viewed), without_times(said)
        check(said == viewed, "the JSON and the pickle do not agree")
        check(all(abs(a - b) < 10000 for a, b in zip(times[1:], others[1:])), "their times do not agree")
        check(others[0] >= times[0], "the JSON was written first")
    facts(snapshot)
    for text in wrong:
        print("wrong=" + text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
