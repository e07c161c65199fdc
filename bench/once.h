/* once.h - the rows about kernels that are written once, which stand in a table of their own. Taken
   in after bench.h, or alone with it. */

/* F(X, id, what it is) */
#define BENCH_ONCE_KERNELS_(F, X)   \
    F(X, once_add, "c = a + b")     \
    F(X, once_saxpy, "c = f a + c") \
    F(X, once_stencil, "5-point stencil")
#define BENCH_ONCE_SIZES_(X, id, name)                      \
    X(id##_12, ONCE, name ", 2^12", "us", PEER, 1.10, NULL) \
    X(id##_14, ONCE, name ", 2^14", "us", PEER, 1.10, NULL) \
    X(id##_16, ONCE, name ", 2^16", "us", PEER, 1.10, NULL) \
    X(id##_18, ONCE, name ", 2^18", "us", PEER, 1.10, NULL) \
    X(id##_20, ONCE, name ", 2^20", "us", PEER, 1.10, NULL) \
    X(id##_22, ONCE, name ", 2^22", "us", PEER, 1.10, NULL) \
    X(id##_24, ONCE, name ", 2^24", "us", PEER, 1.10, NULL) \
    X(id##_26, ONCE, name ", 2^26", "us", PEER, 1.10, NULL)
/* As the rows of bench.h: each kernel with each number of items. */
#define BENCH_ONCE_ROWS(X) BENCH_ONCE_KERNELS_(BENCH_ONCE_SIZES_, X)

#define BENCH_ONCE_NOTE                                                                         \
    "The CPU forms of the kernels in bench/once.kernels.h, on 2^12 to 2^26 items of float32. "  \
    "The figure is the time of a launch and its wait, the median of 15 turns with several "     \
    "launches each; all results are compared. OpenMP: the same loop with `parallel for simd`, " \
    "in the same process and on the same memory, in turn with devstream. Before devstream's "   \
    "turn the threads of OpenMP, which spin after a loop, are ended. Limit: the same loop on "  \
    "one thread, or on two spinning threads, and for `c = a + b` also with stores around the "  \
    "caches; the best variant counts."

enum { BENCH_ONCE = BENCH_OTHER + 5 };

enum { ONCE_SMALLEST = 12, ONCE_LARGEST = 26, ONCE_LARGEST_QUICK = 20, ONCE_ROUNDS = 15 };
