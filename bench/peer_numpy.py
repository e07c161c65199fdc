"""numpy's Philox (4x64-10) as a peer of random fills: uniform float32 on one thread, and on two with a generator each (numpy gives the interpreter's lock
back while it fills)."""
import os
import statistics
import threading
import time

import numpy

quick = bool(os.environ.get("BENCH_QUICK"))


def fill(generator, part):
    generator.random(dtype=numpy.float32, out=part)


def rate(out, threads):
    parts = numpy.array_split(out, threads)
    generators = [numpy.random.Generator(numpy.random.Philox(seed)) for seed in range(threads)]
    rates = []
    for _ in range(1 if quick else 5):
        workers = [threading.Thread(target=fill, args=pair) for pair in zip(generators, parts)]
        began = time.perf_counter_ns()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rates.append(out.nbytes / (time.perf_counter_ns() - began))
    assert 0.49 < float(out[: 1 << 20].mean()) < 0.51
    return statistics.median(rates)


with open(os.environ["BENCH_RESULTS"], "a") as results:
    for mib in (64,) if quick else (64, 256):
        out = numpy.ones(mib << 18, dtype=numpy.float32)
        for threads in (1, 2):
            print(f"random_{mib}m", f"numpy {threads}", rate(out, threads), sep="\t", file=results)
