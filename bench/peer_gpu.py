#!/usr/bin/env python3
"""The rows of cuda.c by PyTorch and CuPy on a GPU, for `make check-gpu PART=bench`.

Two tables in Markdown: CPU time per call, and bytes of device memory read and written per second.
A library that is not installed is named instead. Medians; the streams are not the default ones.
"""

import statistics
import time

ROUNDS, BATCH, RUNS = 101, 64, 11
GIB = 1 << 30


def cpu_ns(call, settle):
    """Nanoseconds of the host for a call: the median of ROUNDS batches."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        times.append((time.perf_counter_ns() - begin) / BATCH)
        settle()
    return statistics.median(times)


def rate(call, ms_of, moved):
    """GB/s of a call that moves so many bytes: the median of RUNS runs after two more."""
    times = [ms_of(call) for _ in range(RUNS + 2)][2:]
    return moved / statistics.median(times) / 1e6


def torch_rows():
    import torch

    torch.cuda.set_device(0)
    s, s2 = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(s):
        d, d2 = (torch.zeros(4096, dtype=torch.uint8, device="cuda") for _ in range(2))
        pin = torch.zeros(4096, dtype=torch.uint8).pin_memory()
        e = torch.cuda.Event()
        e.record(s)
        one = torch.zeros(1, device="cuda")
        one.add_(1)
        s.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=s):
            for _ in range(8):
                one.add_(1)

        def replay():
            graph.replay()

        calls = [
            ("kernel launch (add_ of one element)", lambda: one.add_(1)),
            ("copy, device to device, 4 KiB", lambda: d2.copy_(d)),
            ("copy, pinned to device, 4 KiB", lambda: d.copy_(pin, non_blocking=True)),
            ("fill, 4 KiB", lambda: d.zero_()),
            ("event record", lambda: e.record(s)),
            ("stream waits for event", lambda: s2.wait_event(e)),
            ("graph launch, 8 kernels", replay),
            ("stream query", lambda: s.query()),
            ("stream synchronize, idle", lambda: s.synchronize()),
            ("event synchronize, reached", lambda: e.synchronize()),
            ("allocate and free 1 MiB", lambda: torch.empty(1 << 20, dtype=torch.uint8, device="cuda")),
        ]
        host = {name: cpu_ns(call, torch.cuda.synchronize) for name, call in calls}

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def ms_of(call):
            begin.record(s)
            call()
            end.record(s)
            end.synchronize()
            return begin.elapsed_time(end)

        n = GIB // 4
        a, b, out = (torch.ones(n, device="cuda") for _ in range(3))
        device = {
            "copy, device to device, 1 GiB": rate(lambda: out.copy_(a), ms_of, 2 * GIB),
            "fill, 1 GiB": rate(lambda: out.fill_(1.0), ms_of, GIB),
            "sum of 2, 1 GiB each": rate(lambda: torch.add(a, b, out=out), ms_of, 3 * GIB),
            "uniform float32, 1 GiB": rate(lambda: out.uniform_(), ms_of, GIB),
            "normal float32, 1 GiB": rate(lambda: out.normal_(), ms_of, GIB),
        }
    return "torch " + torch.__version__, host, device


def cupy_rows():
    import cupy

    cupy.cuda.Device(0).use()
    s, s2 = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with s:
        d, d2 = (cupy.zeros(4096, dtype=cupy.uint8) for _ in range(2))
        pin = cupy.cuda.alloc_pinned_memory(4096)
        e = cupy.cuda.Event(disable_timing=True)
        e.record(s)
        one = cupy.zeros(1, dtype=cupy.float32)
        cupy.add(one, 1, out=one)
        s.synchronize()
        s.begin_capture()
        for _ in range(8):
            cupy.add(one, one, out=one)
        graph = s.end_capture()
        calls = [
            ("kernel launch (add_ of one element)", lambda: cupy.add(one, one, out=one)),
            ("copy, device to device, 4 KiB", lambda: d2.data.copy_from_device_async(d.data, 4096, s)),
            ("copy, pinned to device, 4 KiB", lambda: d.data.copy_from_host_async(pin.ptr, 4096, s)),
            ("fill, 4 KiB", lambda: d.data.memset_async(0, 4096, s)),
            ("event record", lambda: e.record(s)),
            ("stream waits for event", lambda: s2.wait_event(e)),
            ("graph launch, 8 kernels", lambda: graph.launch(s)),
            ("stream query", lambda: s.done),
            ("stream synchronize, idle", lambda: s.synchronize()),
            ("event synchronize, reached", lambda: e.synchronize()),
            ("allocate and free 1 MiB", lambda: cupy.cuda.alloc(1 << 20)),
        ]
        host = {name: cpu_ns(call, cupy.cuda.runtime.deviceSynchronize) for name, call in calls}

        begin, end = cupy.cuda.Event(), cupy.cuda.Event()

        def ms_of(call):
            begin.record(s)
            call()
            end.record(s)
            end.synchronize()
            return cupy.cuda.get_elapsed_time(begin, end)

        n = GIB // 4
        a, b, out = (cupy.ones(n, dtype=cupy.float32) for _ in range(3))
        device = {
            "copy, device to device, 1 GiB": rate(
                lambda: out.data.copy_from_device_async(a.data, GIB, s), ms_of, 2 * GIB
            ),
            "fill, 1 GiB": rate(lambda: out.fill(1.0), ms_of, GIB),
            "sum of 2, 1 GiB each": rate(lambda: cupy.add(a, b, out=out), ms_of, 3 * GIB),
            "uniform float32, 1 GiB": rate(
                lambda: cupy.random.random(n, dtype=cupy.float32), ms_of, GIB
            ),
            "normal float32, 1 GiB": rate(
                lambda: cupy.random.standard_normal(n, dtype=cupy.float32), ms_of, GIB
            ),
        }
    return "cupy " + cupy.__version__, host, device


def table(title, unit, columns, digits):
    print(f"\n| {title} | " + " | ".join(f"{name}, {unit}" for name, _ in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for row in columns[0][1]:
        print(f"| {row} | " + " | ".join(f"{values[row]:.{digits}f}" for _, values in columns) + " |")


def main():
    libraries = []
    for read in (torch_rows, cupy_rows):
        try:
            libraries.append(read())
        except ImportError as error:
            print(f"not installed: {error.name}")
    if libraries:
        table("CPU time per call", "ns", [(name, host) for name, host, _ in libraries], 0)
        table("device memory", "GB/s", [(name, device) for name, _, device in libraries], 0)


if __name__ == "__main__":
    main()
