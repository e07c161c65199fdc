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
#include "kernel_vector.gen.h"

enum { DS__RNG_LANES = 8 }; /* blocks are made in multiples of it */

static void ds__rng_run(const ds__rng_args *a, uint64_t seed, uint64_t counter, uint64_t thread,
                        int across, void *out, size_t blocks, int floats, int around, int vector) {
#if DS__VECTOR_HAS_64
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
        int around = a->count * 4 >= DS__STREAM_BYTES && (uintptr_t)to % 64 == 0;
        ds__rng_run(a, seed, start + at / 4, 0, 0, to, blocks, 1, around, vector);
        if (around)
            DS__VECTOR_FENCE();
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
    ds__rng_part(a, at, end < a->count ? end : a->count, ds__os_vector());
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
