/* rng/kernel_cpu.h - CPU forms of the generators' kernels.

   Fills memory with random numbers on the CPU driver: ds__rng_items for all distributions and
   ds__rng_permutation_items for permutations. ds__rng_run makes blocks of words with vectors of
   16, 32 or 64 bytes, as the processor allows. ds__rng_size and ds__rng_shift give the size of
   an element and how many elements a block has.

   Invariants: the numbers do not depend on the width of the vectors or on the division into
   items. An item is DS__RNG_ITEM elements. ds__rng_run makes blocks in multiples of
   DS__RNG_LANES, so its output buffer has room for them. Stores around the caches are followed
   by a fence.
   Locks: none.
   Threads: every thread that runs operations of the CPU driver, several for one fill at a
   time. */
#ifndef DS__RNG_KERNEL_CPU_H
#define DS__RNG_KERNEL_CPU_H

#include "../os/os.h"
#include "kernel_arith.h"

/* Vectors of W bytes. A lane of 64 bits has a block; its words are in the lower halves, so that
   one instruction multiplies. Neighbours in a pair of lanes are LANES / 2 blocks apart: then a
   block's words are put together by instructions that do not leave the pair. */
#define DS__RNG_TYPES(W)                                              \
    typedef uint64_t ds__rng_v64_##W __attribute__((vector_size(W))); \
    typedef uint32_t ds__rng_v32_##W __attribute__((vector_size(W))); \
    typedef int32_t ds__rng_vi_##W __attribute__((vector_size(W)));   \
    typedef float ds__rng_vf_##W __attribute__((vector_size(W)));     \
    typedef float ds__rng_any_##W                                     \
        __attribute__((vector_size(W), aligned(4), may_alias)); /* that may lie anywhere */
#if defined(__clang__) || !defined(__x86_64__)
#define DS__RNG_TIMES(W, a, b) (((a)&0xffffffffu) * (ds__rng_v64_##W)((a)*0 + (b)))
#else
#define DS__RNG_TIMES(W, a, b) DS__RNG_TIMES_##W(a, (ds__rng_v64_##W)((a)*0 + (b)))
#define DS__RNG_TIMES_16(a, b) \
    (ds__rng_v64_16) __builtin_ia32_pmuludq128((ds__rng_vi_16)(a), (ds__rng_vi_16)(b))
#define DS__RNG_TIMES_32(a, b) \
    (ds__rng_v64_32) __builtin_ia32_pmuludq256((ds__rng_vi_32)(a), (ds__rng_vi_32)(b))
typedef long long ds__rng_vl_64 __attribute__((vector_size(64)));
#define DS__RNG_TIMES_64(a, b)                                                              \
    (ds__rng_v64_64) __builtin_ia32_pmuludq512_mask((ds__rng_vi_64)(a), (ds__rng_vi_64)(b), \
                                                    (ds__rng_vl_64)(a), (unsigned char)-1)
#endif
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

/* Stores that go around the caches, for results that do not fit there. */
#if defined(__x86_64__) && !defined(DS__SANITIZED)
#ifdef __clang__
#define DS__RNG_STREAM(W, to, v) __builtin_nontemporal_store(v, (ds__rng_vf_##W *)(void *)(to))
#else
#define DS__RNG_STREAM(W, to, v) DS__RNG_MOVNT_##W((float *)(void *)(to), v)
#define DS__RNG_MOVNT_16 __builtin_ia32_movntps
#define DS__RNG_MOVNT_32 __builtin_ia32_movntps256
#define DS__RNG_MOVNT_64 __builtin_ia32_movntps512
#endif
#define DS__RNG_FENCE() __asm__ __volatile__("sfence" ::: "memory")
#else
#define DS__RNG_STREAM(W, to, v) (void)(*(ds__rng_any_##W *)(void *)(to) = (ds__rng_any_##W)(v))
#define DS__RNG_FENCE() (void)0
#endif
#define DS__RNG_STREAM_BYTES ((uint64_t)32 << 20)

#define DS__RNG_PUT(W, to, v)                                        \
    do {                                                             \
        if (around)                                                  \
            DS__RNG_STREAM(W, to, v);                                \
        else                                                         \
            *(ds__rng_any_##W *)(void *)(to) = (ds__rng_any_##W)(v); \
    } while (0)

/* Words of `blocks` counters from (counter, thread) on, a multiple of the lanes; across: it is
   the thread that goes on. As they are, or as uniform numbers in f32, which with `plain` are
   those of 0 to 1. */
#define DS__RNG_ROUND(W, i)                                                       \
    p = DS__RNG_TIMES(W, x0, 0xD2511F53u), q = DS__RNG_TIMES(W, x2, 0xCD9E8D57u); \
    x0 = DS__RNG_HIGH(W, q) ^ x1 ^ key[2 * (i)], x1 = q,                          \
    x2 = DS__RNG_HIGH(W, p) ^ x3 ^ key[2 * (i) + 1], x3 = p;
#define DS__RNG_FLOATS(W, v)                                                                       \
    {                                                                                              \
        ds__rng_vf_##W u =                                                                         \
            __builtin_convertvector((ds__rng_vi_##W)((ds__rng_v32_##W)(v) >> 8), ds__rng_vf_##W) * \
            0x1p-24f;                                                                              \
        if (!plain) {                                                                              \
            u *= scale;                                                                            \
            DS__RNG_ROUNDED_VECTOR(u);                                                             \
            u += from;                                                                             \
            ds__rng_vi_##W end = u == to_;                                                         \
            u = (ds__rng_vf_##W)(((ds__rng_vi_##W)u & ~end) |                                      \
                                 ((ds__rng_vi_##W)(u * 0 + from) & end));                          \
        }                                                                                          \
        v = (ds__rng_v64_##W)u;                                                                    \
    }
#if defined(__x86_64__)
#define DS__RNG_ROUNDED_VECTOR(x) __asm__("" : "+x"(x))
#else
#define DS__RNG_ROUNDED_VECTOR(x) __asm__("" : "+w"(x))
#endif
#define DS__RNG_RUN(STATIC, W)                                                                     \
    DS__RNG_TYPES(W)                                                                               \
    STATIC void ds__rng_run_##W(const ds__rng_args *a, uint64_t seed, uint64_t counter,            \
                                uint64_t thread, int across, void *out, size_t blocks, int floats, \
                                int around) {                                                      \
        enum { LANES = (W) / 8 };                                                                  \
        char *to = (char *)out;                                                                    \
        const float from = a->from32, scale = a->to32 - a->from32;                                 \
        const ds__rng_vf_##W to_ = (ds__rng_vf_##W){ 0 } + a->to32;                                \
        const int plain = from == 0 && a->to32 == 1;                                               \
        ds__rng_v64_##W index, key[20];                                                            \
        for (uint32_t i = 0; i < 10; i++) {                                                        \
            key[2 * i] = (ds__rng_v64_##W){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);              \
            key[2 * i + 1] = (ds__rng_v64_##W){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);  \
        }                                                                                          \
        for (int i = 0; i < LANES; i++)                                                            \
            index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));                                    \
        for (size_t at = 0; at < blocks; at += LANES, to += 2 * (W)) {                             \
            ds__rng_v64_##W x0 = index * 0, x2 = x0, x1, x3, p, q;                                 \
            x0 += counter, x2 += thread;                                                           \
            if (across)                                                                            \
                x2 += index + at;                                                                  \
            else                                                                                   \
                x0 += index + at;                                                                  \
            x1 = x0 >> 32, x3 = x2 >> 32;                                                          \
            DS__RNG_ROUND(W, 0);                                                                   \
            DS__RNG_ROUND(W, 1);                                                                   \
            DS__RNG_ROUND(W, 2);                                                                   \
            DS__RNG_ROUND(W, 3);                                                                   \
            DS__RNG_ROUND(W, 4);                                                                   \
            DS__RNG_ROUND(W, 5);                                                                   \
            DS__RNG_ROUND(W, 6);                                                                   \
            DS__RNG_ROUND(W, 7);                                                                   \
            DS__RNG_ROUND(W, 8);                                                                   \
            DS__RNG_ROUND(W, 9);                                                                   \
            x0 = (x0 & 0xffffffffu) | x1 << 32, x2 = (x2 & 0xffffffffu) | x3 << 32;                \
            p = DS__RNG_EVEN_##W(x0, x2), q = DS__RNG_ODD_##W(x0, x2);                             \
            if (floats) {                                                                          \
                DS__RNG_FLOATS(W, p)                                                               \
                DS__RNG_FLOATS(W, q)                                                               \
            }                                                                                      \
            DS__RNG_PUT(W, to, (ds__rng_vf_##W)p);                                                 \
            DS__RNG_PUT(W, to + (W), (ds__rng_vf_##W)q);                                           \
        }                                                                                          \
    }

DS__RNG_RUN(static, 16)
#if defined(__x86_64__)
DS__RNG_RUN(static __attribute__((target("avx2"))), 32)
DS__RNG_RUN(static __attribute__((target("avx512f"))), 64)

static int ds__rng_vector(void) {
    return __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx2") ? 32 : 16;
}
#else
static int ds__rng_vector(void) {
    return 16;
}
#endif

enum { DS__RNG_LANES = 8 }; /* blocks are made in multiples of it */

static void ds__rng_run(const ds__rng_args *a, uint64_t seed, uint64_t counter, uint64_t thread,
                        int across, void *out, size_t blocks, int floats, int around, int vector) {
#if defined(__x86_64__)
    if (vector == 64)
        ds__rng_run_64(a, seed, counter, thread, across, out, blocks, floats, around);
    else if (vector == 32)
        ds__rng_run_32(a, seed, counter, thread, across, out, blocks, floats, around);
    else
#endif
        ds__rng_run_16(a, seed, counter, thread, across, out, blocks, floats, around);
    (void)vector;
}

static int ds__rng_shift(const ds__rng_args *a) {
    return a->what == DS__RNG_WIDE_INTEGERS ||
                   (a->what <= DS__RNG_EXPONENTIAL && a->kind == DS__RNG_F64)
               ? 1
               : 2;
}

static size_t ds__rng_size(uint32_t kind) {
    static const unsigned char size[] = { 1, 2, 4, 8, 2, 2, 4, 8 };
    return size[kind];
}

/* What a block's elements are, as bits. */
static void ds__rng_values(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    const uint32_t torch = a->stride > 1, kind = a->kind;
    float f[4];
    ds__rng_doubles d;
    switch (a->what) {
    case DS__RNG_UNIFORM:
        if (kind == DS__RNG_F64)
            for (int i = 0; i < 2; i++)
                v[i] = ds__rng_bits64(
                    ds__rng_uniform64_of(x.w[2 * i], x.w[2 * i + 1], a->from, a->to, torch));
        else
            for (int i = 0; i < 4; i++)
                v[i] = ds__rng_uniform_of(x.w[i], a->from32, a->scale32, a->from_bits, a->to_bits,
                                          kind, torch);
        break;
    case DS__RNG_NORMAL:
        if (kind == DS__RNG_F64) {
            d = ds__rng_normals64(x, a->from, a->to);
            v[0] = ds__rng_bits64(d.v[0]), v[1] = ds__rng_bits64(d.v[1]);
            break;
        }
        ds__rng_normals(x.w[0], x.w[1], a->from32, a->to32, f);
        ds__rng_normals(x.w[2], x.w[3], a->from32, a->to32, f + 2);
        for (int i = 0; i < 4; i++)
            v[i] = ds__rng_narrow(f[i], kind);
        break;
    case DS__RNG_EXPONENTIAL:
        if (kind == DS__RNG_F64)
            for (int i = 0; i < 2; i++)
                v[i] =
                    ds__rng_bits64(ds__rng_exponential64_of(x.w[2 * i], x.w[2 * i + 1], a->from));
        else
            for (int i = 0; i < 4; i++)
                v[i] = ds__rng_narrow(ds__rng_exponential_of(x.w[i], a->from32), kind);
        break;
    case DS__RNG_INTEGERS:
        for (int i = 0; i < 4; i++)
            v[i] = a->low + ds__rng_below(x.w[i], a->range, torch);
        break;
    case DS__RNG_WIDE_INTEGERS:
        for (int i = 0; i < 2; i++)
            v[i] = a->low + ds__rng_below64(x.w[2 * i], x.w[2 * i + 1], a->range, torch);
        break;
    default:
        for (int i = 0; i < 4; i++)
            v[i] = x.w[i] < a->range ? a->low : 0;
        break;
    }
}

static char *ds__rng_store(char *to, uint64_t bits, size_t size) {
    uint8_t b = (uint8_t)bits;
    uint16_t h = (uint16_t)bits;
    uint32_t w = (uint32_t)bits;
    memcpy(to,
           size == 1   ? (const void *)&b
           : size == 2 ? (const void *)&h
           : size == 4 ? (const void *)&w
                       : (const void *)&bits,
           size);
    return to + size;
}

/* Items are so many elements. */
enum { DS__RNG_ITEM = 1024, DS__RNG_BATCH = 128 };

static void ds__rng_part(const ds__rng_args *a, uint64_t at, uint64_t end, int vector) {
    const uint64_t seed = a->state ? a->state[0] : a->seed,
                   start = a->start + (a->state ? a->state[1] / 4 : 0),
                   each = (uint64_t)1 << ds__rng_shift(a);
    const size_t size = ds__rng_size(a->kind);
    char *to = (char *)a->out + at * size;
    ds__rng_words x[DS__RNG_BATCH];
    uint64_t v[4];
    /* whole blocks at once */
    if (a->what == DS__RNG_UNIFORM && a->kind == DS__RNG_F32 && a->stride == 1 && a->before == 0) {
        size_t blocks = (size_t)((end - at) / 4 / DS__RNG_LANES * DS__RNG_LANES);
        int around = a->count * 4 >= DS__RNG_STREAM_BYTES && (uintptr_t)to % 64 == 0;
        ds__rng_run(a, seed, start + at / 4, 0, 0, to, blocks, 1, around, vector);
        if (around)
            DS__RNG_FENCE();
        at += blocks * 4;
        to += blocks * 16;
    }
    while (at < end) {
        /* of a thread, or all there is */
        uint64_t row = a->stride > 1 ? at / a->stride : at, first = (row + a->before) / each,
                 skip = (row + a->before) % each, n;
        uint64_t thread = a->stride > 1 ? at % a->stride : 0;
        if (a->stride > 1) { /* one element of each block */
            n = a->stride - thread < end - at ? a->stride - thread : end - at;
            if (n > DS__RNG_BATCH)
                n = DS__RNG_BATCH;
            ds__rng_run(a, seed, start + first, thread, 1, x,
                        (size_t)(n + DS__RNG_LANES - 1) / DS__RNG_LANES * DS__RNG_LANES, 0, 0,
                        vector);
            for (uint64_t i = 0; i < n; i++) {
                ds__rng_values(a, x[i], v);
                to = ds__rng_store(to, v[skip], size);
            }
        } else {
            n = DS__RNG_BATCH * each - skip < end - at ? DS__RNG_BATCH * each - skip : end - at;
            size_t blocks = (size_t)((skip + n + each - 1) / each);
            ds__rng_run(a, seed, start + first, 0, 0, x,
                        (blocks + DS__RNG_LANES - 1) / DS__RNG_LANES * DS__RNG_LANES, 0, 0, vector);
            for (uint64_t i = 0, b = 0; i < skip + n; b++) {
                ds__rng_values(a, x[b], v);
                for (uint64_t k = 0; k < each && i < skip + n; k++, i++)
                    if (i >= skip)
                        to = ds__rng_store(to, v[k], size);
            }
        }
        at += n;
    }
}

static int ds__rng_items(size_t first, size_t count, const void *args) {
    const ds__rng_args *a = (const ds__rng_args *)args;
    uint64_t at = (uint64_t)first * DS__RNG_ITEM, end = ((uint64_t)first + count) * DS__RNG_ITEM;
    ds__rng_part(a, at, end < a->count ? end : a->count, ds__rng_vector());
    return 0;
}

static int ds__rng_permutation_items(size_t first, size_t count, const void *args) {
    const ds__rng_args *a = (const ds__rng_args *)args;
    const uint64_t seed = a->state ? a->state[0] : a->seed,
                   start = a->start + (a->state ? a->state[1] / 4 : 0), n = a->range;
    const size_t size = ds__rng_size(a->kind);
    uint64_t at = (uint64_t)first * DS__RNG_ITEM, end = ((uint64_t)first + count) * DS__RNG_ITEM,
             keys[DS__RNG_FEW];
    char *to = (char *)a->out + at * size;
    ds__rng_words x = ds__rng_philox(seed, start, 0);
    if (end > a->count)
        end = a->count;
    if (!a->low)
        for (uint64_t i = 0; i < n; i++)
            keys[i] = ds__rng_key(seed, start, i);
    for (; at < end; at++) {
        uint64_t i = a->before + at, rank = 0;
        if (a->low)
            rank = ds__rng_shuffled(x, i, n, (uint32_t)a->low);
        else
            for (uint64_t j = 0; j < n; j++)
                rank += (keys[j] < keys[i]) | ((keys[j] == keys[i]) & (j < i));
        to = ds__rng_store(to, rank, size);
    }
    return 0;
}

#endif
