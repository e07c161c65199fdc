/* rng/kernel_vector.h - steps of the vector code of fills on the CPU.

   Has the steps that the functions of kernel_vector.gen.h consist of: products of words, shuffles,
   a round of Philox, uniform numbers, stores. kernel_vector.tmpl has these functions, which write
   the words of many blocks: with vectors of 16 bytes, and on x86-64 of 32 and 64 bytes.
   kernel_cpu.h calls them through ds__rng_run.

   Invariants: all sizes of vectors write the same bits. Functions with vectors of 32 and 64 bytes
   run only if ds__os_vector returns that size or a larger one.
   Locks: none.
   Threads: any; the functions have no state. */
#ifndef DS__RNG_KERNEL_VECTOR_H
#define DS__RNG_KERNEL_VECTOR_H

#include "../os/os.h"
#include "kernel_arith.h"

/* A run of blocks: so many counters from (counter, thread) on. */
typedef struct ds__rng_blocks {
    uint64_t seed;
    uint64_t counter;
    uint64_t thread;
    size_t blocks;
    int across; /* 1: the thread goes on from block to block, not the counter */
} ds__rng_blocks;

#ifdef __clang__
#define DS__RNG_EVEN_16(a, b) __builtin_shufflevector(a, b, 0, 2)
#define DS__RNG_ODD_16(a, b) __builtin_shufflevector(a, b, 1, 3)
#define DS__RNG_EVEN_32(a, b) __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define DS__RNG_ODD_32(a, b) __builtin_shufflevector(a, b, 1, 5, 3, 7)
#define DS__RNG_EVEN_64(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define DS__RNG_ODD_64(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#else
#define DS__RNG_EVEN_16(a, b) __builtin_shuffle(a, b, (ds__rng_v64_16){ 0, 2 })
#define DS__RNG_ODD_16(a, b) __builtin_shuffle(a, b, (ds__rng_v64_16){ 1, 3 })
#define DS__RNG_EVEN_32(a, b) __builtin_shuffle(a, b, (ds__rng_v64_32){ 0, 4, 2, 6 })
#define DS__RNG_ODD_32(a, b) __builtin_shuffle(a, b, (ds__rng_v64_32){ 1, 5, 3, 7 })
#define DS__RNG_EVEN_64(a, b) __builtin_shuffle(a, b, (ds__rng_v64_64){ 0, 8, 2, 10, 4, 12, 6, 14 })
#define DS__RNG_ODD_64(a, b) __builtin_shuffle(a, b, (ds__rng_v64_64){ 1, 9, 3, 11, 5, 13, 7, 15 })
#endif

/* The upper halves of lanes, in both halves: processors shuffle where they do not multiply, but
   shift where they do. */
#ifdef __clang__
#define DS__RNG_HIGH_16(x) __builtin_shufflevector(x, x, 1, 1, 3, 3)
#define DS__RNG_HIGH_32(x) __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7)
#define DS__RNG_HIGH_64(x) \
    __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15)
#else
#define DS__RNG_HIGH_16(x) __builtin_shuffle(x, (ds__rng_v32_16){ 1, 1, 3, 3 })
#define DS__RNG_HIGH_32(x) __builtin_shuffle(x, (ds__rng_v32_32){ 1, 1, 3, 3, 5, 5, 7, 7 })
#define DS__RNG_HIGH_64(x) \
    __builtin_shuffle(x, (ds__rng_v32_64){ 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15 })
#endif
#define DS__RNG_HIGH(W, x) (ds__rng_v64_##W) DS__RNG_HIGH_##W((ds__rng_v32_##W)(x))

/* The two halves of lanes, exchanged. */
#ifdef __clang__
#define DS__RNG_SWAP_16(x) __builtin_shufflevector(x, x, 1, 0, 3, 2)
#define DS__RNG_SWAP_32(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#define DS__RNG_SWAP_64(x) \
    __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#else
#define DS__RNG_SWAP_16(x) __builtin_shuffle(x, (ds__rng_v32_16){ 1, 0, 3, 2 })
#define DS__RNG_SWAP_32(x) __builtin_shuffle(x, (ds__rng_v32_32){ 1, 0, 3, 2, 5, 4, 7, 6 })
#define DS__RNG_SWAP_64(x) \
    __builtin_shuffle(x, (ds__rng_v32_64){ 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14 })
#endif
#define DS__RNG_SWAP(W, x) (ds__rng_v64_##W) DS__RNG_SWAP_##W((ds__rng_v32_##W)(x))

#define DS__RNG_PUT(W, to, v)                                        \
    do {                                                             \
        if (around)                                                  \
            DS__VECTOR_STREAM(W, to, v);                             \
        else                                                         \
            *(ds__rng_any_##W *)(void *)(to) = (ds__rng_any_##W)(v); \
    } while (0)

/* A round of the vector of blocks that G names. */
#define DS__RNG_ROUND(W, i, G)                                \
    p##G = DS__VECTOR_TIMES(W, x0##G, 0xD2511F53u);           \
    q##G = DS__VECTOR_TIMES(W, x2##G, 0xCD9E8D57u);           \
    x0##G = DS__RNG_HIGH(W, q##G) ^ x1##G ^ key[2 * (i)];     \
    x2##G = DS__RNG_HIGH(W, p##G) ^ x3##G ^ key[2 * (i) + 1]; \
    x1##G = q##G;                                             \
    x3##G = p##G
/* The last round, which also puts words 0 and 1 into x0, and words 2 and 3 into x2. */
#define DS__RNG_LAST_ROUND(W, i, G)                                         \
    p##G = DS__VECTOR_TIMES(W, x0##G, 0xD2511F53u);                         \
    q##G = DS__VECTOR_TIMES(W, x2##G, 0xCD9E8D57u);                         \
    x0##G = DS__RNG_SWAP(W, q##G) ^ ((x1##G & 0xffffffffu) ^ key[2 * (i)]); \
    x2##G = DS__RNG_SWAP(W, p##G) ^ ((x3##G & 0xffffffffu) ^ key[2 * (i) + 1])
/* After a round of four vectors of blocks. */
#define DS__RNG_IN_STEP(W) DS__VECTOR_IN_STEP(W, x0a, x0b, x0c, x0d, x2a, x2b, x2c, x2d)

#define DS__RNG_TO_FLOATS(W, v)                                                                    \
    {                                                                                              \
        ds__rng_vf_##W u =                                                                         \
            __builtin_convertvector((ds__rng_vi_##W)((ds__rng_v32_##W)(v) >> 8), ds__rng_vf_##W) * \
            0x1p-24f;                                                                              \
        if (!plain) {                                                                              \
            u *= scale;                                                                            \
            DS__ROUNDED(u);                                                                        \
            u += from;                                                                             \
            ds__rng_vi_##W end = u == to_;                                                         \
            u = (ds__rng_vf_##W)(((ds__rng_vi_##W)u & ~end) |                                      \
                                 ((ds__rng_vi_##W)(u * 0 + from) & end));                          \
        }                                                                                          \
        v = (ds__rng_v64_##W)u;                                                                    \
    }

#endif
