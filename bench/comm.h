/* comm.h - the rows about collectives, which stand in a table of their own. Taken in after
   bench.h, graphs.h and alloc.h, or bench.h alone. */

/* F(X, id, what it is, goal at 4 KiB us, 64 KiB us, 1 MiB us, 64 MiB ms, 256 MiB ms, libtorch's
   figures of 64 KiB to 256 MiB) */
#define BENCH_COMM_OPS_(F, X)                                                         \
    F(X, bcast2, "broadcast, 2", 0.3, 1.5, 13, 3.1, 14, "1.8", "12.7", "3.3", "20.8") \
    F(X, bcast4, "broadcast, 4", 0.3, 3, 48, 7.5, 33, "5.1", "58", "14.2", "65")      \
    F(X, scatter2, "scatter, 2", 0.3, 1.5, 13, 2.7, 13, "3.0", "16", "3.2", "21")     \
    F(X, gather2, "gather, 2", 0.3, 1.5, 13, 2.7, 13, "1.9", "16", "3.2", "20")       \
    F(X, sum2, "reduce_add, 2", 0.3, 1.6, 18, 4.4, 21, "1.9", "19", "5.5", "28")      \
    F(X, sum4, "reduce_add, 4", 0.3, 2, 65, 9, 38, "5.2", "85", "13.7", "65")         \
    F(X, sum8, "reduce_add, 8", 0.3, NAN, NAN, 19, 75, "-", "-", "27-29", "-")        \
    F(X, all2, "all_reduce, 2", 0.3, NAN, NAN, NAN, NAN, "-", "-", "-", "-")
#define BENCH_COMM_SIZES_(X, id, name, g4k, g64k, g1m, g64m, g256m, t64k, t1m, t64m, t256m) \
    X(id##_4k, COMM, name ", 4 KiB", "us", MOST, g4k, NULL)                                 \
    X(id##_64k, COMM, name ", 64 KiB", "us", MOST, g64k, NULL)                              \
    X(id##_1m, COMM, name ", 1 MiB", "us", MOST, g1m, NULL)                                 \
    X(id##_64m, COMM, name ", 64 MiB", "ms", MOST, g64m, NULL)                              \
    X(id##_256m, COMM, name ", 256 MiB", "ms", MOST, g256m, NULL)
#define BENCH_COMM_GIVEN_(X, id, name, g4k, g64k, g1m, g64m, g256m, t64k, t1m, t64m, t256m) \
    X(id##_64k, t64k) X(id##_1m, t1m) X(id##_64m, t64m) X(id##_256m, t256m)

/* As the rows of bench.h: of each collective and size, and those whose results are allocated. */
/* clang-format off */
#define BENCH_COMM_ROWS(X) \
    BENCH_COMM_OPS_(BENCH_COMM_SIZES_, X) \
    X(new_bcast2_4k, COMM, "broadcast, 2, allocated, 4 KiB", "us", MOST, NAN, NULL) \
    X(new_bcast2_1m, COMM, "broadcast, 2, allocated, 1 MiB", "us", MOST, NAN, NULL) \
    X(new_sum4_4k, COMM, "reduce_add, 4, allocated, 4 KiB", "us", MOST, NAN, NULL) \
    X(new_sum4_1m, COMM, "reduce_add, 4, allocated, 1 MiB", "us", MOST, NAN, NULL)
/* clang-format on */
/* libtorch's figures, which are not measured here: row, text. */
#define BENCH_COMM_GIVEN(X) BENCH_COMM_OPS_(BENCH_COMM_GIVEN_, X)

#define BENCH_COMM_NOTE                                                                         \
    "One round enqueues the collective on the streams of all devices and synchronizes each "    \
    "stream. The figure is the median of 1,000 consecutive rounds (fewer from 64 MiB on), CPU " \
    "driver, two workers, f32, existing memory. The size is that of the sent tensor, of the "   \
    "gathered tensor, or of each summed tensor; a broadcast to 2 writes one copy, to 4 three. " \
    "Allocated: the results are new tensors, which are freed in the round. Limit: separate "    \
    "code in the same process and on the same memory. The code makes one pass over all "        \
    "operands with one or two spinning threads, and with stores through or around the caches; " \
    "the best variant counts. OpenMPI: a process for each device, a barrier in each round. "    \
    "libtorch: its CPU operations that do the same, two threads, measured at another time on "  \
    "another machine of two processors; for orientation, and no ratio is formed."

enum { BENCH_COMM = BENCH_OTHER + 4 };

/* Sizes of the rows, and rounds, whole and in a short pass; 0: left out. */
static const struct {
    const char *suffix;
    size_t bytes;
    int rounds, quick;
    double unit_ns;
} bench_comm_sizes[] = { { "4k", 4096, 1000, 200, 1e3 },
                         { "64k", 65536, 1000, 200, 1e3 },
                         { "1m", 1 << 20, 1000, 60, 1e3 },
                         { "64m", (size_t)64 << 20, 12, 3, 1e6 },
                         { "256m", (size_t)256 << 20, 6, 0, 1e6 } };

BENCH_FN int bench_comm_rounds(size_t size) {
    return bench_quick() ? bench_comm_sizes[size].quick : bench_comm_sizes[size].rounds;
}

/* The inputs are small whole numbers, so that every order of a sum gives the same. */
BENCH_FN float bench_comm_value(size_t tensor, size_t at) {
    return (float)((at * 7 + at / 4096 * 3 + tensor * 31) % 1000);
}
