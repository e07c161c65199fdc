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

/* ds__rng_run makes blocks in multiples of DS__RNG_LANES, ds__rng_run_floats in multiples of
   DS__RNG_FLOAT_LANES. */
enum { DS__RNG_LANES = 8, DS__RNG_FLOAT_LANES = 32 };

/* Writes the words of a run of blocks with vectors of so many bytes. */
static void ds__rng_run(const ds__rng_blocks *b, void *out, int vector) {
#if DS__VECTOR_HAS_64
    if (vector == 64)
        ds__rng_run_64(b, out);
    else if (vector == 32)
        ds__rng_run_32(b, out);
    else
#endif
        ds__rng_run_16(b, out);
    (void)vector;
}

/* Writes the uniform numbers in f32 of a run of blocks, whose counters have the same upper half.
   around: the stores go around the caches. */
static void ds__rng_run_floats(const ds__rng_args *a, const ds__rng_blocks *b, char *out,
                               int around, int vector) {
#if DS__VECTOR_HAS_64
    if (vector == 64)
        ds__rng_floats_64(a, b, out, around);
    else if (vector == 32)
        ds__rng_floats_32(a, b, out, around);
    else
#endif
        ds__rng_floats_16(a, b, out, around);
    if (around)
        DS__VECTOR_FENCE();
    (void)vector;
}

/* Returns the binary logarithm of the number of elements that a block has. */
static int ds__rng_shift(const ds__rng_args *a) {
    if (a->what == DS__RNG_WIDE_INTEGERS)
        return 1;
    return a->what <= DS__RNG_EXPONENTIAL && a->kind == DS__RNG_F64 ? 1 : 2;
}

static size_t ds__rng_size(uint32_t kind) {
    static const unsigned char size[] = { 1, 2, 4, 8, 2, 2, 4, 8 };
    return size[kind];
}

static void ds__rng_values_uniform(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    const uint32_t torch = a->stride > 1;
    if (a->kind == DS__RNG_F64) {
        for (int i = 0; i < 2; i++)
            v[i] = ds__rng_bits64(
                ds__rng_uniform64_of(x.w[2 * i], x.w[2 * i + 1], a->from, a->to, torch));
        return;
    }
    const ds__rng_interval interval = { a->from32, a->scale32, a->from_bits, a->to_bits, a->kind };
    for (int i = 0; i < 4; i++)
        v[i] = ds__rng_uniform_of(x.w[i], interval, torch);
}

static void ds__rng_values_normal(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    float f[4];
    if (a->kind == DS__RNG_F64) {
        ds__rng_doubles d = ds__rng_normals64(x, a->from, a->to);
        v[0] = ds__rng_bits64(d.v[0]);
        v[1] = ds__rng_bits64(d.v[1]);
        return;
    }
    ds__rng_normals(x.w[0], x.w[1], a->from32, a->to32, f);
    ds__rng_normals(x.w[2], x.w[3], a->from32, a->to32, f + 2);
    for (int i = 0; i < 4; i++)
        v[i] = ds__rng_narrow(f[i], a->kind);
}

static void ds__rng_values_exponential(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    if (a->kind == DS__RNG_F64) {
        for (int i = 0; i < 2; i++)
            v[i] = ds__rng_bits64(ds__rng_exponential64_of(x.w[2 * i], x.w[2 * i + 1], a->from));
        return;
    }
    for (int i = 0; i < 4; i++)
        v[i] = ds__rng_narrow(ds__rng_exponential_of(x.w[i], a->from32), a->kind);
}

/* Makes the elements of a block, as bits: 4, or 2 if ds__rng_shift is 1. */
static void ds__rng_values(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    const uint32_t torch = a->stride > 1;
    switch (a->what) {
    case DS__RNG_UNIFORM:
        ds__rng_values_uniform(a, x, v);
        break;
    case DS__RNG_NORMAL:
        ds__rng_values_normal(a, x, v);
        break;
    case DS__RNG_EXPONENTIAL:
        ds__rng_values_exponential(a, x, v);
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

/* Stores the low `size` bytes; returns the address behind them. */
static char *ds__rng_store(char *to, uint64_t bits, size_t size) {
    uint8_t b = (uint8_t)bits;
    uint16_t h = (uint16_t)bits;
    uint32_t w = (uint32_t)bits;
    switch (size) {
    case 1:
        memcpy(to, &b, 1);
        break;
    case 2:
        memcpy(to, &h, 2);
        break;
    case 4:
        memcpy(to, &w, 4);
        break;
    default:
        memcpy(to, &bits, 8);
        break;
    }
    return to + size;
}

/* Elements of an item, and blocks of a batch. */
enum { DS__RNG_ITEM = 1024, DS__RNG_BATCH = 128 };

/* Elements of a fill that one call writes, and where they begin in memory. seed and start: also of
   a graph. */
typedef struct ds__rng_range {
    uint64_t seed;
    uint64_t start;
    uint64_t each; /* elements of a block */
    uint64_t at;
    uint64_t end;
    char *to;
    int vector; /* bytes of a vector */
} ds__rng_range;

/* Returns so many blocks, rounded up to what ds__rng_run writes. */
static size_t ds__rng_lanes(uint64_t blocks) {
    return (size_t)(blocks + DS__RNG_LANES - 1) / DS__RNG_LANES * DS__RNG_LANES;
}

/* Uniform numbers in f32 by element: writes most whole blocks at once. */
static void ds__rng_part_floats(const ds__rng_args *a, ds__rng_range *p) {
    size_t blocks = (size_t)((p->end - p->at) / 4 / DS__RNG_FLOAT_LANES * DS__RNG_FLOAT_LANES);
    int around = ds__stream_pays(0, (size_t)a->count * 4) && (uintptr_t)p->to % 64 == 0;
    ds__rng_blocks run = { .seed = p->seed, .counter = p->start + p->at / 4, .blocks = blocks };
    /* one item at most has such counters in a fill of usual size */
    if (run.counter >> 32 != (run.counter + blocks) >> 32)
        return;
    ds__rng_run_floats(a, &run, p->to, around, p->vector);
    p->at += blocks * 4;
    p->to += blocks * 16;
}

/* In torch's mapping: writes at most DS__RNG_BATCH elements, one of the block of each thread. */
static void ds__rng_part_across(const ds__rng_args *a, ds__rng_range *p) {
    ds__rng_words x[DS__RNG_BATCH];
    uint64_t v[4];
    uint64_t row = p->at / a->stride + a->before;
    uint64_t thread = p->at % a->stride;
    uint64_t n = a->stride - thread < p->end - p->at ? a->stride - thread : p->end - p->at;
    if (n > DS__RNG_BATCH)
        n = DS__RNG_BATCH;
    ds__rng_blocks run = { .seed = p->seed,
                           .counter = p->start + row / p->each,
                           .thread = thread,
                           .blocks = ds__rng_lanes(n),
                           .across = 1 };
    const size_t size = ds__rng_size(a->kind);
    const uint64_t skip = row % p->each;
    char *to = p->to;
    ds__rng_run(&run, x, p->vector);
    for (uint64_t i = 0; i < n; i++) {
        ds__rng_values(a, x[i], v);
        to = ds__rng_store(to, v[skip], size);
    }
    p->at += n;
    p->to = to;
}

/* In the mapping by element: writes the elements of at most DS__RNG_BATCH blocks. */
static void ds__rng_part_along(const ds__rng_args *a, ds__rng_range *p) {
    ds__rng_words x[DS__RNG_BATCH];
    uint64_t v[4];
    const uint64_t each = p->each;
    const uint64_t skip = (p->at + a->before) % each;
    uint64_t n = DS__RNG_BATCH * each - skip;
    if (n > p->end - p->at)
        n = p->end - p->at;
    ds__rng_blocks run = { .seed = p->seed,
                           .counter = p->start + (p->at + a->before) / each,
                           .blocks = ds__rng_lanes((skip + n + each - 1) / each) };
    const size_t size = ds__rng_size(a->kind);
    char *to = p->to;
    ds__rng_run(&run, x, p->vector);
    for (uint64_t i = 0, b = 0; i < skip + n; b++) {
        ds__rng_values(a, x[b], v);
        for (uint64_t k = 0; k < each && i < skip + n; k++, i++)
            if (i >= skip)
                to = ds__rng_store(to, v[k], size);
    }
    p->at += n;
    p->to = to;
}

/* Writes the elements from `at` to `end`. */
static void ds__rng_part(const ds__rng_args *a, uint64_t at, uint64_t end, int vector) {
    ds__rng_range p = { .seed = a->state ? a->state[0] : a->seed,
                        .start = a->start + (a->state ? a->state[1] / 4 : 0),
                        .each = (uint64_t)1 << ds__rng_shift(a),
                        .at = at,
                        .end = end,
                        .to = (char *)a->out + at * ds__rng_size(a->kind),
                        .vector = vector };
    if (a->what == DS__RNG_UNIFORM && a->kind == DS__RNG_F32 && a->stride == 1 && a->before == 0)
        ds__rng_part_floats(a, &p);
    while (p.at < p.end) {
        if (a->stride > 1)
            ds__rng_part_across(a, &p);
        else
            ds__rng_part_along(a, &p);
    }
}

static int ds__rng_items(size_t first, size_t count, const void *args) {
    const ds__rng_args *a = (const ds__rng_args *)args;
    uint64_t at = (uint64_t)first * DS__RNG_ITEM;
    uint64_t end = ((uint64_t)first + count) * DS__RNG_ITEM;
    ds__rng_part(a, at, end < a->count ? end : a->count, ds__os_vector());
    return 0;
}

/* Returns the rank of key i among n keys; of equal keys the first one is less. */
static uint64_t ds__rng_rank(const uint64_t *keys, uint64_t n, uint64_t i) {
    uint64_t rank = 0;
    for (uint64_t j = 0; j < n; j++)
        rank += (uint64_t)((keys[j] < keys[i]) | ((keys[j] == keys[i]) & (j < i)));
    return rank;
}

static int ds__rng_permutation_items(size_t first, size_t count, const void *args) {
    const ds__rng_args *a = (const ds__rng_args *)args;
    const uint64_t seed = a->state ? a->state[0] : a->seed;
    const uint64_t start = a->start + (a->state ? a->state[1] / 4 : 0);
    const uint64_t n = a->range;
    const size_t size = ds__rng_size(a->kind);
    uint64_t at = (uint64_t)first * DS__RNG_ITEM;
    uint64_t end = ((uint64_t)first + count) * DS__RNG_ITEM;
    uint64_t keys[DS__RNG_FEW];
    char *to = (char *)a->out + at * size;
    ds__rng_words x = ds__rng_philox(seed, start, 0);
    if (end > a->count)
        end = a->count;
    if (!a->low)
        for (uint64_t i = 0; i < n; i++)
            keys[i] = ds__rng_key(seed, start, i);
    for (; at < end; at++) {
        uint64_t i = a->before + at;
        uint64_t place =
            a->low ? ds__rng_shuffled(x, i, n, (uint32_t)a->low) : ds__rng_rank(keys, n, i);
        to = ds__rng_store(to, place, size);
    }
    return 0;
}

#endif
