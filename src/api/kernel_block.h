/* api/kernel_block.h - block kernels.

   Defines DS_BLOCK_KERNEL_1D, _2D and _3D, and the macros for their bodies: DS_THREADS, DS_SHARED,
   DS_PRIVATE, DS_OWN, and the indices. On a GPU every thread of a block runs the body. Each thread
   runs its own iteration of a thread loop and then waits at a barrier. On the CPU one thread runs
   the body for a block. A thread loop iterates over the block's threads, so no thread waits at a
   barrier (Stratton, Stone, Hwu: MCUDA, LCPC 2008).

   Threads: a block runs on one thread of the CPU driver; several blocks run at the same time. */
#ifndef DS__API_KERNEL_BLOCK_H
#define DS__API_KERNEL_BLOCK_H

#include "kernel_params.h"
#include "kernel_common.h"

/* ---- block kernels --------------------------------------------------------------------------- */

/** Defines the block kernel `name` with `threads` threads per block (1 to 1,024, a constant). The
    body of a block follows:

        DS_BLOCK_KERNEL_1D(block_sums, 256, DS_VALUE(uint32_t, n), DS_READ(float, x, n),
                           DS_WRITE(float, sums, DS_GRID_X)) {
            DS_SHARED(float, part, 256);
            DS_THREADS {
                uint32_t i = DS_BLOCK_X * 256 + DS_THREAD_X;
                part[DS_THREAD_X] = i < n ? x[i] : 0;
            }
            for (unsigned half = 128; half > 0; half /= 2)
                DS_THREADS if (DS_THREAD_X < half) part[DS_THREAD_X] += part[DS_THREAD_X + half];
            DS_THREADS if (DS_THREAD_X == 0) sums[DS_BLOCK_X] = part[0];
        }

    Between two thread loops is a barrier: writes of one loop to shared or global memory are
    visible to the next loop of the block. Code outside of thread loops must do the same for every
    thread of the block, and must not write memory. A thread loop must not be left by break, goto
    or return; `continue` ends the thread's iteration. Extents may use DS_GRID_X, DS_GRID_Y and
    DS_GRID_Z. DS_LAUNCH(block_sums, stream, blocks, n, x, sums) launches the kernel; parameters as
    in DS_KERNEL_1D. */
#define DS_BLOCK_KERNEL_1D(name, threads_x, ...)                                          \
    DS__BLOCK_KERNEL(name, threads_x, 1, 1, (size_t dsk__gx), (dsk__gx), (dsk__gx, 1, 1), \
                     __VA_ARGS__)

/** Defines a block kernel with blocks of threads_x by threads_y threads on a two-dimensional grid,
    otherwise as DS_BLOCK_KERNEL_1D does. DS_LAUNCH(name, stream, blocks_x, blocks_y, ...) launches
    the kernel. */
#define DS_BLOCK_KERNEL_2D(name, threads_x, threads_y, ...)                           \
    DS__BLOCK_KERNEL(name, threads_x, threads_y, 1, (size_t dsk__gx, size_t dsk__gy), \
                     (dsk__gx, dsk__gy), (dsk__gx, dsk__gy, 1), __VA_ARGS__)

/** Defines a block kernel of three dimensions, otherwise as DS_BLOCK_KERNEL_2D does; threads_z is
   at most 64. */
#define DS_BLOCK_KERNEL_3D(name, threads_x, threads_y, threads_z, ...) \
    DS__BLOCK_KERNEL(name, threads_x, threads_y, threads_z,            \
                     (size_t dsk__gx, size_t dsk__gy, size_t dsk__gz), \
                     (dsk__gx, dsk__gy, dsk__gz), (dsk__gx, dsk__gy, dsk__gz), __VA_ARGS__)

#define DS__BLOCK_FUNCTION(name, ...)           \
    DS_KERNEL_FN DS__UNUSED void name##__block( \
        DS__BLOCK *dsk__b DS__UNUSED DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__))

#define DS__BLOCK_LIMITS(name, x, y, z)                                                         \
    DS__STATIC_ASSERT((x) >= 1 && (y) >= 1 && (z) >= 1 && (x) * (y) * (z) <= 1024 && (z) <= 64, \
                      #name ": a block has 1 to 1,024 threads, at most 64 in z");

#define DS_BLOCK_X (dsk__b->index[0]) /**< index of the block */
#define DS_BLOCK_Y (dsk__b->index[1]) /**< the same in y */
#define DS_BLOCK_Z (dsk__b->index[2]) /**< the same in z */
#define DS_GRID_X (dsk__b->grid[0])   /**< number of blocks */
#define DS_GRID_Y (dsk__b->grid[1])   /**< the same in y */
#define DS_GRID_Z (dsk__b->grid[2])   /**< the same in z */

#ifdef DEVSTREAM_KERNEL_DEVICE
#define DS__BLOCK const dsk__device_block

typedef struct dsk__device_block {
    unsigned index[3];
    unsigned grid[3];
    unsigned thread[3];
} dsk__device_block;

#define DS__BLOCK_KERNEL(name, x, y, z, counts, numbers, dims, ...)                             \
    DS__BLOCK_LIMITS(name, x, y, z)                                                             \
    DS__BLOCK_FUNCTION(name, __VA_ARGS__);                                                      \
    DS__GLOBAL name(DS__EACH(DS__AS_DEVICE_PARAMETER, 0, __VA_ARGS__) ds_kernel_dims dsk__dims, \
                    uint64_t dsk__first, uint64_t dsk__count) {                                 \
        (void)dsk__count;                                                                       \
        const unsigned dsk__t = DS__TID;                                                        \
        const dsk__device_block dsk__block =                                                    \
            dsk__block_at(&dsk__dims, dsk__first + DS__CTAID, dsk__t % (x), dsk__t / (x) % (y), \
                          dsk__t / ((x) * (y)));                                                \
        name##__block(&dsk__block DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__));                   \
    }                                                                                           \
    DS__BLOCK_FUNCTION(name, __VA_ARGS__)

DS_KERNEL_FN dsk__device_block dsk__block_at(const ds_kernel_dims *d, uint64_t i, unsigned x,
                                             unsigned y, unsigned z) {
    uint64_t row = d->n[1] * d->n[2] == 1 ? 0 : dsk__dims_divide(d, 0, i);
    uint64_t plane = d->n[2] == 1 ? 0 : dsk__dims_divide(d, 1, row);
    dsk__device_block b = { { (unsigned)(i - row * d->n[0]), (unsigned)(row - plane * d->n[1]),
                              (unsigned)plane },
                            { (unsigned)d->n[0], (unsigned)d->n[1], (unsigned)d->n[2] },
                            { x, y, z } };
    return b;
}

/** Index of the thread in its block; inside of thread loops only. */
#define DS_THREAD_X (dsk__b->thread[0])
#define DS_THREAD_Y (dsk__b->thread[1])
#define DS_THREAD_Z (dsk__b->thread[2])
#define DS_THREAD_RANK DS__TID
/* `break` ends the inner loop only, so every thread reaches the barrier. */
#define DS_THREADS                                                                       \
    for (int dsk__pass = DS__UNIFORM(__LINE__); dsk__pass; dsk__pass = 0, DS__BARRIER()) \
        for (int dsk__once = 1; dsk__once; dsk__once = 0)
#define DS_PRIVATE(type, name) type name[1]
#define DS_OWN(name) ((name)[0])
#define DS_SHARED(type, name, ...) \
    DS__SHARED_ONLY type name DS__JOIN(DS__EXTENTS_, DS__NUMBER(__VA_ARGS__))(__VA_ARGS__)
#define DS__EXTENTS_1(a) [a]
#define DS__EXTENTS_2(a, b) [a][b]
#define DS__EXTENTS_3(a, b, c) [a][b][c]

#ifdef DEVSTREAM_KERNEL_DEBUG
/* Fails the device if the threads of a block are at different thread loops. They meet in different
   instructions then, which this barrier allows from sm_70 on and bar.sync does not. */
DS_KERNEL_FN int dsk__uniform(int line) {
    DS__SHARED_ONLY int at;
    if (DS__TID == 0)
        at = line;
    __asm__ volatile("barrier.sync 0;" ::: "memory");
    if (at != line)
        DS__TRAP();
    DS__BARRIER();
    return 1;
}

#define DS__UNIFORM(line) dsk__uniform(line)
#else
#define DS__UNIFORM(line) 1
#endif

#else
#define DS__BLOCK ds_kernel_block
#define DS__BLOCK_KERNEL(name, x, y, z, counts, numbers, dims, ...)                               \
    DS__BLOCK_LIMITS(name, x, y, z)                                                               \
    DS__BLOCK_FUNCTION(name, __VA_ARGS__);                                                        \
    DS__KERNEL_ARGS(name, counts, dims, __VA_ARGS__)                                              \
    DS__KERNEL_EXACT __attribute__((noinline)) static void name##__run(                           \
        ds_kernel_block *dsk__outer, const void *dsk__args) {                                     \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;                 \
        /* a copy that no other function sees, so that the extents are constants */               \
        ds_kernel_block dsk__block = *dsk__outer;                                                 \
        dsk__block.threads[0] = (x);                                                              \
        dsk__block.threads[1] = (y);                                                              \
        dsk__block.threads[2] = (z);                                                              \
        name##__block(&dsk__block DS__EACH(DS__AS_FIELD, dsk__a, __VA_ARGS__));                   \
        dsk__outer->in_threads = dsk__block.in_threads;                                           \
    }                                                                                             \
    static int name##__cpu(size_t dsk__first, size_t dsk__count, const void *dsk__args) {         \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;                 \
        return ds_kernel_run_blocks(name##__run, &dsk__a->dsk__dims, dsk__first, dsk__count,      \
                                    dsk__args);                                                   \
    }                                                                                             \
    DS__KERNEL_BYTES(name, (ds_kernel_block * dsk__b DS__UNUSED),                                 \
                     ds_kernel_block dsk__grid = dsk__block_of(&dsk__a->dsk__dims), (&dsk__grid), \
                     __VA_ARGS__)                                                                 \
    DS__KERNEL_DEF(name, counts, numbers, (x) * (y) * (z), 1, __VA_ARGS__)                        \
    DS__BLOCK_FUNCTION(name, __VA_ARGS__)

/** Index of the thread in its block. Inside of thread loops only; elsewhere the name is not
    declared, and the compiler's error names DS_THREADS. */
#define DS_THREAD_X (dsk__x_only_in_DS_THREADS)
#ifdef DEVSTREAM_KERNEL_CHECK
#define DS_THREAD_Y (dsk__x_only_in_DS_THREADS)
#define DS_THREAD_Z (dsk__x_only_in_DS_THREADS)
#define DS_THREAD_RANK (dsk__x_only_in_DS_THREADS)
#else
/** The same in y. */
#define DS_THREAD_Y (dsk__y_only_in_DS_THREADS)
/** The same in z. */
#define DS_THREAD_Z (dsk__z_only_in_DS_THREADS)
/** Number of the thread in its block, x fastest. */
#define DS_THREAD_RANK                                                              \
    ((dsk__z_only_in_DS_THREADS * dsk__b->threads[1] + dsk__y_only_in_DS_THREADS) * \
         dsk__b->threads[0] +                                                       \
     dsk__x_only_in_DS_THREADS)
#endif
/* A loop over the block's threads along an axis. */
#define DS__AXIS(index, axis)      \
    unsigned index = 0;            \
    index < dsk__b->threads[axis]; \
    index++
/** Runs the following statement once per thread of the block, then waits for all threads. */
#ifdef DEVSTREAM_KERNEL_CHECK
/* For clang -fopenmp-simd -fsyntax-only, which refuses break, goto and return in such a loop. */
#define DS_THREADS _Pragma("omp simd") for (DS__AXIS(dsk__x_only_in_DS_THREADS, 0))
#else
#define DS_THREADS                                                           \
    for (dsk__b->in_threads = 1; dsk__b->in_threads; dsk__b->in_threads = 0) \
        for (DS__AXIS(dsk__z_only_in_DS_THREADS, 2))                         \
            for (DS__AXIS(dsk__y_only_in_DS_THREADS, 1))                     \
                DS__INDEPENDENT(DS__AXIS(dsk__x_only_in_DS_THREADS, 0))      \
    for (int dsk__once = 1; dsk__once; dsk__once = 0)
#endif
/** Declares a value of each thread that lives across barriers: a register on a GPU, an array on the
    CPU. Not initialised. */
#define DS_PRIVATE(type, name)            \
    type *name = (type *)dsk__block_take( \
        dsk__b, sizeof(type), dsk__b->threads[0] * dsk__b->threads[1] * dsk__b->threads[2])
/** The running thread's value of a DS_PRIVATE. */
#define DS_OWN(name) ((name)[DS_THREAD_RANK])
/** Declares an array of 1 to 3 dimensions in the shared memory of the block. All arrays of a block
   have at most 48 KiB together. Not initialised. */
#define DS_SHARED(type, name, ...) \
    DS__JOIN(DS__SHARED_, DS__NUMBER(__VA_ARGS__))(type, name, __VA_ARGS__)
#define DS__SHARED_1(type, name, a)  \
    DS__SHARED_LIMIT(type, name, a); \
    type *name = (type *)dsk__block_take(dsk__b, sizeof(type), (a))
#define DS__SHARED_2(type, name, a, b)       \
    DS__SHARED_LIMIT(type, name, (a) * (b)); \
    type(*name)[b] = (type(*)[b])dsk__block_take(dsk__b, sizeof(type), (size_t)(a) * (b))
#define DS__SHARED_3(type, name, a, b, c)          \
    DS__SHARED_LIMIT(type, name, (a) * (b) * (c)); \
    type(*name)[b][c] =                            \
        (type(*)[b][c])dsk__block_take(dsk__b, sizeof(type), (size_t)(a) * (b) * (c))
#define DS__SHARED_LIMIT(type, name, count)                \
    DS__STATIC_ASSERT(sizeof(type) * (count) <= 48 * 1024, \
                      #name ": a block has at most 48 KiB of shared memory")
#endif

#endif
