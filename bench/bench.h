/* bench.h - what the benchmark programs share: the list of rows, the clock, medians, and the file
   of results.

   Each program (devstream, one per peer, the limits) appends its rows to the file named by
   BENCH_RESULTS, tab separated: row, source, value. report.c joins them by median. One program
   per peer, because some spin or keep threads, and would disturb the others in one process. C11;
   also taken in by C++ (oneTBB). */
#ifndef BENCH_H_INCLUDED
#define BENCH_H_INCLUDED

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a goal means. BENCH_MOST: the value is at most the goal. BENCH_SHARE: the value is at
   least that share of the limit. BENCH_PEER: the value is at most that share of OpenMP's. */
enum { BENCH_MOST, BENCH_SHARE, BENCH_PEER };

/* In which plot a row stands. */
enum { BENCH_QUEUE, BENCH_COPY, BENCH_OTHER };

/* X(id, plot, title, unit, meaning of goal, goal or NAN, what it measures and why its limit is
   one) */
/* clang-format off */
#define BENCH_ROWS(X) \
    X(queue1, QUEUE, "one queue, end to end", "ns/op", MOST, 30, \
      "One thread submits tiny operations to one queue, then waits. Time from the first " \
      "submission to the end, divided by the number of operations. Limit: a ring between two " \
      "spinning threads that carries the same 16 bytes.") \
    X(queue8, QUEUE, "8 queues round-robin, end to end", "ns/op", MOST, 20, \
      "The same with eight queues, one operation each in turn. Limit: eight such rings served " \
      "by one spinning thread.") \
    X(hop, QUEUE, "hop between 2 queues by events", "ns/hop", MOST, 150, \
      "Operation on A, record, B waits, operation on B, record, A waits, and so on; all " \
      "submitted in advance. Both fold into one hash, so an early hop is detected. Limit: one " \
      "way between two spinning threads; if both queues run on one thread, the time can be " \
      "lower. oneTBB: a ring of two nodes built in advance, so no hop needs a submission.") \
    X(forkjoin, QUEUE, "fork-join 1-7-1 over 8 queues", "ns", MOST, 2500, \
      "One operation, seven operations on seven queues after it, one operation after all " \
      "seven; repeated. Limit: two hops between spinning threads. oneTBB: a graph built in " \
      "advance that restarts itself.") \
    X(wait_hot, QUEUE, "submit and wait, workers hot", "ns", MOST, 400, \
      "One operation and its wait, repeated. Limit: a round trip between two spinning " \
      "threads.") \
    X(wait_parked, QUEUE, "submit and wait, workers parked", "ns", MOST, 6000, \
      "The same after 2 ms of sleep. Limit: the futex_wake call that wakes one sleeper.") \
    X(submit_parked, QUEUE, "submit alone, workers parked", "ns", MOST, 3000, \
      "Only the submission, after 2 ms of sleep. Limit: as above.") \
    X(host_wait, QUEUE, "host function and wait", "ns", MOST, 5000, \
      "One function on a thread that may block, and its wait, repeated: the median. " \
      "Mutex+condvar: a thread for each queue runs all of its operations. Limit: as above.") \
    X(host_wait_p90, QUEUE, "that, 90th percentile", "ns", MOST, 12000, \
      "Nine of ten such rounds take at most this time.") \
    X(copy_256, OTHER, "copy of 256 bytes and wait", "ns", MOST, 100, \
      "A copy on an idle stream that is not ordered with the legacy stream, and its wait.") \
    X(copy_256_blocking, OTHER, "that, blocking stream", "ns", MOST, 100, \
      "The same on a stream with DS_STREAM_BLOCKING, while the device has a legacy stream.") \
    X(copy_256_legacy, OTHER, "that, legacy stream", "ns", MOST, 100, \
      "The same on the legacy stream.") \
    X(kernel_1000, OTHER, "1,000 kernels and wait, one by one", "ns", MOST, 60, \
      "1,000 kernels of one item on a stream, and their wait, divided by 1,000.") \
    X(closure_1000, OTHER, "that, closures", "ns", MOST, 60, \
      "The same with ds_stream_launch_closure and a payload of 16 bytes, in turns with the " \
      "kernels.") \
    X(idle_cpu, OTHER, "CPU time when idle, 1 to 200 ms", "us", MOST, 100, \
      "CPU time of the whole process from 1 ms to 200 ms after the last operation. Limit: a " \
      "sleeping process without threads; both figures include the cost of waking it.") \
    X(pending_bytes, OTHER, "memory of a pending operation", "bytes", MOST, 256, \
      "100,000 tiny operations wait for a gate; the bytes that the driver reports, including " \
      "reserved blocks.") \
    X(pending_rss, OTHER, "same, by resident memory", "bytes", MOST, 256, \
      "The same by growth of the resident set.") \
    X(streams_new, OTHER, "10,000 streams, just created", "MiB", MOST, 10, \
      "Growth of the resident set.") \
    X(streams_used, OTHER, "10,000 idle streams, each used once", "MiB", MOST, 10, \
      "The same after one operation and a wait on each stream, so the figure includes all " \
      "memory that a stream keeps.") \
    X(call_site, OTHER, "call site", "ns", MOST, NAN, \
      "ds_stream_query by its macro, which passes file and line, minus the same call without " \
      "the macro. Limit: none; a call with two stores.") \
    X(handle_pin, OTHER, "handle: look-up, pin, unpin", "ns", MOST, NAN, \
      "ds_stream_get_flags of a valid stream minus an empty call. Every function with a handle " \
      "pays this cost to find its object and to protect it from a concurrent destroy. Limit: " \
      "a reference count that no other thread touches.") \
    X(range, OTHER, "range, push and pop", "ns", MOST, 20, \
      "ds_range_push and ds_range_pop without a tool and without a hook, minus two empty " \
      "calls. Limit: none.") \
    X(copy_1m, COPY, "copy of 1 MiB", "GB/s", SHARE, 0.9, BENCH_COPY_NOTE) \
    X(copy_16m, COPY, "copy of 16 MiB", "GB/s", SHARE, 0.9, NULL) \
    X(copy_64m, COPY, "copy of 64 MiB", "GB/s", SHARE, 0.9, NULL) \
    X(copy_256m, COPY, "copy of 256 MiB", "GB/s", SHARE, 0.9, NULL) \
    X(copy_1g, COPY, "copy of 1 GiB", "GB/s", SHARE, 0.9, NULL) \
    X(fill_64m, COPY, "fill of 64 MiB", "GB/s", SHARE, 0.9, \
      "As for the copies, with 4-byte values; limits memset, rep stosb and non-temporal " \
      "stores.") \
    X(random_64m, COPY, "uniform float32 in 64 MiB", "GB/s", SHARE, 0.8, \
      "ds_rng_uniform over [0, 1) by element; bytes written divided by time. Limits: those of " \
      "a fill, on the same memory.") \
    X(random_256m, COPY, "uniform float32 in 256 MiB", "GB/s", SHARE, 0.8, NULL) \
    X(compile_decl, OTHER, "compile time, declarations", "ms", MOST, 50, \
      "Compiling a file that includes devstream.h, minus compiling an empty file, at -O2.") \
    X(compile_impl, OTHER, "compile time, implementation", "ms", MOST, 1500, \
      "The same with DEVSTREAM_IMPLEMENTATION: the core with the CPU driver.")
/* clang-format on */
#define BENCH_COPY_NOTE                                                                        \
    "Device to device on one stream, each followed by a wait; bytes written divided by time. " \
    "Limit: the best of memcpy, rep movsb and non-temporal stores, each on 1 and 2 threads "   \
    "that need no wake-up. The limit uses the same memory, in turn with the copies."

typedef struct bench_row {
    const char *id, *title, *unit, *note;
    double goal;
    int plot, meaning;
} bench_row;

enum {

#define BENCH_COUNT_(id, plot, title, unit, meaning, goal, note) BENCH_INDEX_##id,
    BENCH_ROWS(BENCH_COUNT_)
#undef BENCH_COUNT_
        BENCH_ROW_COUNT
};

#define BENCH_FN __attribute__((unused)) static

static int bench_failed; /* a hash was wrong: the program exits with 1 */

BENCH_FN double bench_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

BENCH_FN double bench_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

BENCH_FN void bench_sleep_us(long us) {
    struct timespec t;
    t.tv_sec = us / 1000000;
    t.tv_nsec = us % 1000000 * 1000;
    nanosleep(&t, NULL);
}

BENCH_FN void bench_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* 1 for a short pass: fewer repetitions, no copies of 256 MiB and more. */
BENCH_FN int bench_quick(void) {
    return getenv("BENCH_QUICK") != NULL;
}

BENCH_FN int bench_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

BENCH_FN double bench_median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, bench_order);
    return n <= 0 ? NAN : n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

BENCH_FN void bench_line(const char *row, const char *source, const char *text) {
    const char *path = getenv("BENCH_RESULTS");
    FILE *f = path ? fopen(path, "a") : stdout;
    if (!f) {
        perror(path);
        exit(1);
    }
    fprintf(f, "%s\t%s\t%s\n", row, source, text);
    if (path)
        fclose(f);
}

/* One value of a row; NaN: the result was wrong. */
BENCH_FN void bench_put(const char *row, const char *source, double value) {
    char text[32];
    if (isnan(value)) {
        bench_failed = 1;
        bench_line(row, source, "WRONG");
        return;
    }
    snprintf(text, sizeof text, "%.6g", value);
    bench_line(row, source, text);
}

/* The source cannot run here; text says what to install. */
BENCH_FN void bench_absent(const char *source, const char *text) {
    bench_line("*", source, text);
}

/* Puts the median of n evaluations of an expression; one that is NaN (a wrong result) makes the
   row wrong. */
#define BENCH_REPEAT(row, source, n, expression)                                     \
    do {                                                                             \
        double bench_v_[64];                                                         \
        int bench_i_, bench_nan_ = 0;                                                \
        for (bench_i_ = 0; bench_i_ < (n) && bench_i_ < 64; bench_i_++) {            \
            bench_v_[bench_i_] = (expression);                                       \
            bench_nan_ |= isnan(bench_v_[bench_i_]);                                 \
        }                                                                            \
        bench_put(row, source, bench_nan_ ? NAN : bench_median(bench_v_, bench_i_)); \
    } while (0)

/* The tiny operation: operations do not commute, so that a lost, doubled or swapped one changes
   the hash. */
#define BENCH_P UINT64_C(0x9e3779b97f4a7c15)

BENCH_FN void bench_fold(uint64_t *h, uint64_t n) {
    *h = *h * BENCH_P + n;
}

/* Folds count hashes, one per cache line, into another. */
BENCH_FN void bench_gather(uint64_t *h, const uint64_t *from, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        bench_fold(h, from[8 * i]);
}

#endif /* BENCH_H_INCLUDED */
