"""Times of the backend's calls, beside the same on CPU tensors: examples/backend/torch/run.sh bench.py.

Each figure is the median of 31 batches, in nanoseconds per call: "call" until the last call of a
batch has returned, "done" until a synchronization has returned, too.
"""
import statistics
import time

import torch

import torch_devstream  # noqa: F401


def measure(call, device, count):
    """Returns the time of the calls alone, and with the work that they enqueue."""
    called, done = [], []
    for _ in range(33):
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        called.append((time.perf_counter_ns() - start) / count)
        if device == "devstream":
            torch.devstream.synchronize()
        done.append((time.perf_counter_ns() - start) / count)
    return statistics.median(called[2:]), statistics.median(done[2:])


def calls(device):
    """Yields name, call, calls in a batch."""
    one = torch.ones(1, device=device)
    yield "add of 1 element", lambda: one + one, 1000
    yield "add in place of 1 element", lambda: one.add_(one), 1000
    yield "fill of 1 element", lambda: one.fill_(2), 1000
    yield "alloc and free 4 KiB (empty)", lambda: torch.empty(1024, device=device), 1000
    yield "alloc and free 4 MiB (empty)", lambda: torch.empty(1 << 20, device=device), 1000
    for size, name in (256, "1 KiB"), (1 << 18, "1 MiB"):
        a, b = torch.ones(size, device=device), torch.ones(size, device=device)
        host = torch.ones(size)
        yield f"copy {name} on the device", lambda: a.copy_(b), 200
        if device == "devstream":
            pinned = host.pin_memory()
            yield f"copy {name} from pinned", lambda: a.copy_(pinned, non_blocking=True), 200
        yield f"copy {name} from pageable", lambda: a.copy_(host), 200
        yield f"add {name}", lambda: torch.add(a, b, out=b), 200
    matrix = torch.ones(128, 128, device=device)
    yield "product of 128 x 128", lambda: matrix @ matrix, 50
    yield "add of 1 element and item()", lambda: (one + one).item(), 200
    if device == "devstream":
        stream, event = torch.devstream.current_stream(), torch.devstream.Event()
        timed = torch.devstream.Event(enable_timing=True)
        other = torch.devstream.Stream()
        yield "event record", lambda: event.record(stream), 1000
        yield "event record with timing", lambda: timed.record(stream), 1000
        yield "event query", event.query, 1000
        yield "event create, record, destroy", lambda: torch.devstream.Event().record(stream), 1000
        yield "stream query", stream.query, 1000
        yield "stream wait_event", lambda: other.wait_event(event), 1000
        yield "current_stream", torch.devstream.current_stream, 1000
        yield "stream synchronize, idle", stream.synchronize, 1000


def main():
    on_cpu = {name: measure(call, "cpu", count)[1] for name, call, count in calls("cpu")}
    print(f"{'ns per call':34}{'call':>12}{'done':>12}{'on the CPU':>12}")
    for name, call, count in calls("devstream"):
        called, done = measure(call, "devstream", count)
        peer = f"{on_cpu[name]:12,.0f}" if name in on_cpu else ""
        print(f"{name:34}{called:12,.0f}{done:12,.0f}{peer}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
