/* cpu/kernel.h - kernel launches on the processor.

   Runs a launch (ds__cpu_kernel), and measures how long an item takes. ds__cpu_kernel_items runs
   the first items alone, and splits the rest into a job if that is expected to take long.
   ds__cpu_kernel_failed makes a failure of the device from a status.

   Invariants: while a kernel succeeds, each item runs exactly once. If the first part fails, the
   rest does not run. The estimate of a kernel is not exact: concurrent launches may overwrite it.
   Locks: the kernel, which is user code, runs without a lock of the driver. ds__cpu_job_run
   takes the pool's lock, ds__cpu_kernel_failed takes `object_lock`.
   Threads: the owner of the stream. Pieces also run on other workers and on waiting host
   threads, at the same time. */
#ifndef DS__CPU_KERNEL_H
#define DS__CPU_KERNEL_H

#include "types.h"
#include "failure.h"
#include "queue.h"
#include "scheduler.h"
#include "job.h"
#include "together.h"

static void ds__cpu_kernel_piece(ds__cpu_job *job, size_t piece) {
    const ds__op *op = job->op;
    size_t first = job->first + piece * job->piece_items;
    size_t left = op->u.kernel.items - first;
    int status = op->u.kernel.kernel->cpu_fn(
        first, left < job->piece_items ? left : job->piece_items, job->args);
    if (status)
        atomic_store_explicit(&job->status, status, memory_order_relaxed);
}

/* Returns the number of timed launches, at most 4, from a kernel's estimate. The lower half of an
   estimate has the picoseconds of an item in the last timed launch. */
static inline uint32_t ds__cpu_runs(uint64_t estimate) {
    return (uint32_t)(estimate >> 32);
}

/* Returns the picoseconds of an item. Items of vectorized kernels take less than a nanosecond. */
static uint32_t ds__cpu_item_ps(uint64_t ns, size_t items) {
    double ps = (double)ns * 1000 / (double)items;
    return ps < UINT32_MAX ? (uint32_t)ps : UINT32_MAX;
}

/* Returns the number of pieces of a job that takes so long: some for each thread, since they do not
   begin at the same time. A thread needs some 100 ns to take a piece. */
static size_t ds__cpu_pieces(double ns) {
    size_t threads = (size_t)ds__cpu.workers + 1;
    double pieces = ns / (double)DS__CPU_PIECE_NS;
    if (pieces > 8 * (double)threads)
        return 8 * threads;
    return pieces > 2 * (double)threads ? (size_t)pieces : 2 * threads;
}

/* Runs the launch and returns its status. The first items run alone and are timed. The rest is
   split if it is expected to take long. *known_ps is the time of an item in earlier launches (0:
   not known), and becomes that of this launch. */
static int ds__cpu_kernel_items(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                                const void *args, uint32_t *known_ps) {
    ds__kernel *k = op->u.kernel.kernel;
    size_t n = op->u.kernel.items;
    size_t grain = k->grain ? k->grain : 1;
    size_t first = n / 64;
    /* a long first part would delay the threads that join */
    if (*known_ps && first > DS__CPU_FIRST_NS * UINT64_C(1000) / *known_ps)
        first = DS__CPU_FIRST_NS * UINT64_C(1000) / *known_ps;
    if (first < grain)
        first = grain;
    if (first >= n)
        first = n;
    uint64_t start = ds__now_ns();
    int status = k->cpu_fn(0, first, args);
    uint64_t took = ds__now_ns() - start;
    took -= took < ds__cpu.clock_ns ? took : ds__cpu.clock_ns;
    *known_ps = ds__cpu_item_ps(took, first);
    if (status || first == n)
        return status;
    double rest_ns = (double)took / (double)first * (double)(n - first);
    if (rest_ns < (double)DS__CPU_SPLIT_NS || ds__cpu.is_inline || ds__cpu.seed)
        return k->cpu_fn(first, n - first, args);
    ds__cpu_job job;
    memset(&job, 0, sizeof job);
    size_t pieces = ds__cpu_pieces(rest_ns);
    size_t items = (n - first - 1) / pieces + 1; /* rounded up, also of SIZE_MAX items */
    job.piece_fn = ds__cpu_kernel_piece;
    job.op = op;
    job.args = args;
    job.first = first;
    job.piece_items = items > grain ? items : grain;
    job.pieces = (n - first - 1) / job.piece_items + 1;
    ds__cpu_job_run(w, s, &job, rest_ns >= (double)DS__CPU_CALL_NS);
    return atomic_load_explicit(&job.status, memory_order_relaxed);
}

/* Runs and times a launch, and returns the kernel's status. Short kernels reach this function only
   for some launches, see ds__cpu_is_short. */
static int ds__cpu_kernel(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op) {
    ds__kernel *k = op->u.kernel.kernel;
    const void *args = (const char *)op + DS__CPU_ARGS_AT;
    size_t n = op->u.kernel.items;
    uint64_t estimate = atomic_load_explicit(&k->estimate, memory_order_relaxed);
    uint32_t runs = ds__cpu_runs(estimate);
    uint32_t item_ps = (uint32_t)estimate;
    if (DS__UNLIKELY(op->flags & DS__OP_TOGETHER)) {
        ds__cpu_long(w, 1);
        int status = ds__cpu_together_run(op, args);
        ds__cpu_long(w, 0);
        return status;
    }
    if (runs < 4 || (double)item_ps * (double)n > (double)DS__CPU_LONG_NS * 1000.0)
        ds__cpu_long(w, 1);
    int status;
    if (n == 1 || k->grain == SIZE_MAX) {
        uint64_t start = ds__now_ns();
        status = k->cpu_fn(0, n, args);
        item_ps = ds__cpu_item_ps(ds__now_ns() - start, n);
    } else {
        status = ds__cpu_kernel_items(w, s, op, args, &item_ps);
    }
    estimate = (uint64_t)(runs < 4 ? runs + 1 : runs) << 32 | item_ps;
    atomic_store_explicit(&k->estimate, estimate, memory_order_relaxed);
    ds__cpu_long(w, 0);
    return status;
}

/* Returns the meaning of a status of ds_kernel_run_blocks; of other statuses "". */
static const char *ds__cpu_kernel_reason(int status) {
    switch (status) {
    case DS__KERNEL_LOOP_LEFT:
        return ": a thread loop was left by return or goto";
    case DS__KERNEL_SCRATCH_SPENT:
        return ": a block needs more scratch memory than a GPU has";
    case DS__KERNEL_NO_SCRATCH:
        return ": out of host memory for the scratch of a block";
    default:
        return "";
    }
}

/* Makes a failure of the device and the stream from the status of the kernel of that number. */
static void ds__cpu_kernel_failed(ds__cpu_stream *s, const ds__op *op, int status,
                                  uint64_t number) {
    char text[384];
    char site[200] = "";
    if (op->file)
        snprintf(site, sizeof site, ", launched at %.160s:%u,", op->file, (unsigned)op->line);
    if (op->kind == DS__OP_KERNEL && op->u.kernel.kernel->ours)
        snprintf(text, sizeof text, "%.60s failed on cpu:%d: %.250s", op->u.kernel.kernel->name,
                 s->device, ds__tls.error);
    else if (op->kind == DS__OP_CLOSURE)
        snprintf(text, sizeof text, "a closure%s failed on cpu:%d with status %d", site, s->device,
                 status);
    else
        snprintf(text, sizeof text, "kernel %.60s%s failed on cpu:%d with status %d%s",
                 op->u.kernel.kernel->name, site, s->device, status, ds__cpu_kernel_reason(status));
    ds__cpu_fail_stream(s, ds__cpu_fail_device(s->device, text), number);
}

#endif
