/* rng/kernel_vector.gen.h - generated from rng/kernel_vector.tmpl by `make headers`. Edit that file. */
#ifndef DS__RNG_KERNEL_VECTOR_GEN_H
#define DS__RNG_KERNEL_VECTOR_GEN_H

#include "kernel_vector.h"

#if DS__VECTOR_HAS_16
/* Vectors of 16 bytes. A lane of 64 bits has a block; its words are in the lower halves, so that
   one instruction multiplies. Neighbours in a pair of lanes are LANES / 2 blocks apart: then a
   block's words are put together by instructions that do not leave the pair. */
typedef uint64_t ds__rng_v64_16 __attribute__((vector_size(16)));
typedef uint32_t ds__rng_v32_16 __attribute__((vector_size(16)));
typedef int32_t ds__rng_vi_16 __attribute__((vector_size(16)));
typedef float ds__rng_vf_16 __attribute__((vector_size(16)));
/* the same, anywhere in memory */
typedef float ds__rng_any_16 __attribute__((vector_size(16), aligned(4), may_alias));

static DS__VECTOR_16 void ds__rng_keys_16(uint64_t seed, ds__rng_v64_16 *key) {
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_16){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_16){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
}

/* Writes the words of a run of blocks, a multiple of DS__RNG_LANES. */
static DS__VECTOR_16 void ds__rng_run_16(const ds__rng_blocks *b, void *out) {
    enum { LANES = 16 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const int across = b->across;
    char *to = (char *)out;
    ds__rng_v64_16 index;
    ds__rng_v64_16 key[20];
    ds__rng_keys_16(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 16) {
        ds__rng_v64_16 x0a = index * 0 + counter;
        ds__rng_v64_16 x2a = index * 0 + thread;
        ds__rng_v64_16 pa;
        ds__rng_v64_16 qa;
        if (across)
            x2a += index + at;
        else
            x0a += index + at;
        ds__rng_v64_16 x1a = x0a >> 32;
        ds__rng_v64_16 x3a = x2a >> 32;
        DS__RNG_ROUND(16, 0, a);
        DS__RNG_ROUND(16, 1, a);
        DS__RNG_ROUND(16, 2, a);
        DS__RNG_ROUND(16, 3, a);
        DS__RNG_ROUND(16, 4, a);
        DS__RNG_ROUND(16, 5, a);
        DS__RNG_ROUND(16, 6, a);
        DS__RNG_ROUND(16, 7, a);
        DS__RNG_ROUND(16, 8, a);
        DS__RNG_LAST_ROUND(16, 9, a);
        *(ds__rng_any_16 *)(void *)to = (ds__rng_any_16)DS__RNG_EVEN_16(x0a, x2a);
        *(ds__rng_any_16 *)(void *)(to + 16) = (ds__rng_any_16)DS__RNG_ODD_16(x0a, x2a);
    }
}

/* Writes the numbers of a run of blocks, a multiple of DS__RNG_FLOAT_LANES, whose counters have the
   same upper half. Four vectors of blocks are computed side by side, because each instruction of
   one vector waits for the one before it. around: the stores go around the caches. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_16 void ds__rng_floats_16(const ds__rng_args *a, const ds__rng_blocks *b,
                                             char *to, int around) {
    enum { LANES = 16 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_16 to_ = (ds__rng_vf_16){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_16 index;
    ds__rng_v64_16 key[20];
    ds__rng_keys_16(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    /* the same in all blocks, so the compiler takes a part of the first rounds out of the loop */
    const ds__rng_v64_16 x1 = index * 0 + (counter >> 32);
    const ds__rng_v64_16 x2 = index * 0 + b->thread;
    const ds__rng_v64_16 x3 = x2 >> 32;
    for (size_t at = 0; at < blocks; at += 4 * LANES, to += 8 * 16) {
        ds__rng_v64_16 x0a = index + (counter + at + 0);
        ds__rng_v64_16 x1a = x1;
        ds__rng_v64_16 x2a = x2;
        ds__rng_v64_16 x3a = x3;
        ds__rng_v64_16 pa;
        ds__rng_v64_16 qa;
        ds__rng_v64_16 x0b = index + (counter + at + LANES);
        ds__rng_v64_16 x1b = x1;
        ds__rng_v64_16 x2b = x2;
        ds__rng_v64_16 x3b = x3;
        ds__rng_v64_16 pb;
        ds__rng_v64_16 qb;
        ds__rng_v64_16 x0c = index + (counter + at + 2*LANES);
        ds__rng_v64_16 x1c = x1;
        ds__rng_v64_16 x2c = x2;
        ds__rng_v64_16 x3c = x3;
        ds__rng_v64_16 pc;
        ds__rng_v64_16 qc;
        ds__rng_v64_16 x0d = index + (counter + at + 3*LANES);
        ds__rng_v64_16 x1d = x1;
        ds__rng_v64_16 x2d = x2;
        ds__rng_v64_16 x3d = x3;
        ds__rng_v64_16 pd;
        ds__rng_v64_16 qd;
        DS__RNG_ROUND(16, 0, a);
        DS__RNG_ROUND(16, 0, b);
        DS__RNG_ROUND(16, 0, c);
        DS__RNG_ROUND(16, 0, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 1, a);
        DS__RNG_ROUND(16, 1, b);
        DS__RNG_ROUND(16, 1, c);
        DS__RNG_ROUND(16, 1, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 2, a);
        DS__RNG_ROUND(16, 2, b);
        DS__RNG_ROUND(16, 2, c);
        DS__RNG_ROUND(16, 2, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 3, a);
        DS__RNG_ROUND(16, 3, b);
        DS__RNG_ROUND(16, 3, c);
        DS__RNG_ROUND(16, 3, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 4, a);
        DS__RNG_ROUND(16, 4, b);
        DS__RNG_ROUND(16, 4, c);
        DS__RNG_ROUND(16, 4, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 5, a);
        DS__RNG_ROUND(16, 5, b);
        DS__RNG_ROUND(16, 5, c);
        DS__RNG_ROUND(16, 5, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 6, a);
        DS__RNG_ROUND(16, 6, b);
        DS__RNG_ROUND(16, 6, c);
        DS__RNG_ROUND(16, 6, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 7, a);
        DS__RNG_ROUND(16, 7, b);
        DS__RNG_ROUND(16, 7, c);
        DS__RNG_ROUND(16, 7, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 8, a);
        DS__RNG_ROUND(16, 8, b);
        DS__RNG_ROUND(16, 8, c);
        DS__RNG_ROUND(16, 8, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_LAST_ROUND(16, 9, a);
        pa = DS__RNG_EVEN_16(x0a, x2a);
        qa = DS__RNG_ODD_16(x0a, x2a);
        DS__RNG_TO_FLOATS(16, pa)
        DS__RNG_TO_FLOATS(16, qa)
        DS__RNG_PUT(16, to + 0 * 16, (ds__rng_vf_16)pa);
        DS__RNG_PUT(16, to + 1 * 16, (ds__rng_vf_16)qa);
        DS__RNG_LAST_ROUND(16, 9, b);
        pb = DS__RNG_EVEN_16(x0b, x2b);
        qb = DS__RNG_ODD_16(x0b, x2b);
        DS__RNG_TO_FLOATS(16, pb)
        DS__RNG_TO_FLOATS(16, qb)
        DS__RNG_PUT(16, to + 2 * 16, (ds__rng_vf_16)pb);
        DS__RNG_PUT(16, to + 3 * 16, (ds__rng_vf_16)qb);
        DS__RNG_LAST_ROUND(16, 9, c);
        pc = DS__RNG_EVEN_16(x0c, x2c);
        qc = DS__RNG_ODD_16(x0c, x2c);
        DS__RNG_TO_FLOATS(16, pc)
        DS__RNG_TO_FLOATS(16, qc)
        DS__RNG_PUT(16, to + 4 * 16, (ds__rng_vf_16)pc);
        DS__RNG_PUT(16, to + 5 * 16, (ds__rng_vf_16)qc);
        DS__RNG_LAST_ROUND(16, 9, d);
        pd = DS__RNG_EVEN_16(x0d, x2d);
        qd = DS__RNG_ODD_16(x0d, x2d);
        DS__RNG_TO_FLOATS(16, pd)
        DS__RNG_TO_FLOATS(16, qd)
        DS__RNG_PUT(16, to + 6 * 16, (ds__rng_vf_16)pd);
        DS__RNG_PUT(16, to + 7 * 16, (ds__rng_vf_16)qd);
    }
}
#endif
#if DS__VECTOR_HAS_32
/* Vectors of 32 bytes. A lane of 64 bits has a block; its words are in the lower halves, so that
   one instruction multiplies. Neighbours in a pair of lanes are LANES / 2 blocks apart: then a
   block's words are put together by instructions that do not leave the pair. */
typedef uint64_t ds__rng_v64_32 __attribute__((vector_size(32)));
typedef uint32_t ds__rng_v32_32 __attribute__((vector_size(32)));
typedef int32_t ds__rng_vi_32 __attribute__((vector_size(32)));
typedef float ds__rng_vf_32 __attribute__((vector_size(32)));
/* the same, anywhere in memory */
typedef float ds__rng_any_32 __attribute__((vector_size(32), aligned(4), may_alias));

static DS__VECTOR_32 void ds__rng_keys_32(uint64_t seed, ds__rng_v64_32 *key) {
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_32){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_32){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
}

/* Writes the words of a run of blocks, a multiple of DS__RNG_LANES. */
static DS__VECTOR_32 void ds__rng_run_32(const ds__rng_blocks *b, void *out) {
    enum { LANES = 32 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const int across = b->across;
    char *to = (char *)out;
    ds__rng_v64_32 index;
    ds__rng_v64_32 key[20];
    ds__rng_keys_32(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 32) {
        ds__rng_v64_32 x0a = index * 0 + counter;
        ds__rng_v64_32 x2a = index * 0 + thread;
        ds__rng_v64_32 pa;
        ds__rng_v64_32 qa;
        if (across)
            x2a += index + at;
        else
            x0a += index + at;
        ds__rng_v64_32 x1a = x0a >> 32;
        ds__rng_v64_32 x3a = x2a >> 32;
        DS__RNG_ROUND(32, 0, a);
        DS__RNG_ROUND(32, 1, a);
        DS__RNG_ROUND(32, 2, a);
        DS__RNG_ROUND(32, 3, a);
        DS__RNG_ROUND(32, 4, a);
        DS__RNG_ROUND(32, 5, a);
        DS__RNG_ROUND(32, 6, a);
        DS__RNG_ROUND(32, 7, a);
        DS__RNG_ROUND(32, 8, a);
        DS__RNG_LAST_ROUND(32, 9, a);
        *(ds__rng_any_32 *)(void *)to = (ds__rng_any_32)DS__RNG_EVEN_32(x0a, x2a);
        *(ds__rng_any_32 *)(void *)(to + 32) = (ds__rng_any_32)DS__RNG_ODD_32(x0a, x2a);
    }
}

/* Writes the numbers of a run of blocks, a multiple of DS__RNG_FLOAT_LANES, whose counters have the
   same upper half. Four vectors of blocks are computed side by side, because each instruction of
   one vector waits for the one before it. around: the stores go around the caches. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_32 void ds__rng_floats_32(const ds__rng_args *a, const ds__rng_blocks *b,
                                             char *to, int around) {
    enum { LANES = 32 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_32 to_ = (ds__rng_vf_32){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_32 index;
    ds__rng_v64_32 key[20];
    ds__rng_keys_32(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    /* the same in all blocks, so the compiler takes a part of the first rounds out of the loop */
    const ds__rng_v64_32 x1 = index * 0 + (counter >> 32);
    const ds__rng_v64_32 x2 = index * 0 + b->thread;
    const ds__rng_v64_32 x3 = x2 >> 32;
    for (size_t at = 0; at < blocks; at += 4 * LANES, to += 8 * 32) {
        ds__rng_v64_32 x0a = index + (counter + at + 0);
        ds__rng_v64_32 x1a = x1;
        ds__rng_v64_32 x2a = x2;
        ds__rng_v64_32 x3a = x3;
        ds__rng_v64_32 pa;
        ds__rng_v64_32 qa;
        ds__rng_v64_32 x0b = index + (counter + at + LANES);
        ds__rng_v64_32 x1b = x1;
        ds__rng_v64_32 x2b = x2;
        ds__rng_v64_32 x3b = x3;
        ds__rng_v64_32 pb;
        ds__rng_v64_32 qb;
        ds__rng_v64_32 x0c = index + (counter + at + 2*LANES);
        ds__rng_v64_32 x1c = x1;
        ds__rng_v64_32 x2c = x2;
        ds__rng_v64_32 x3c = x3;
        ds__rng_v64_32 pc;
        ds__rng_v64_32 qc;
        ds__rng_v64_32 x0d = index + (counter + at + 3*LANES);
        ds__rng_v64_32 x1d = x1;
        ds__rng_v64_32 x2d = x2;
        ds__rng_v64_32 x3d = x3;
        ds__rng_v64_32 pd;
        ds__rng_v64_32 qd;
        DS__RNG_ROUND(32, 0, a);
        DS__RNG_ROUND(32, 0, b);
        DS__RNG_ROUND(32, 0, c);
        DS__RNG_ROUND(32, 0, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 1, a);
        DS__RNG_ROUND(32, 1, b);
        DS__RNG_ROUND(32, 1, c);
        DS__RNG_ROUND(32, 1, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 2, a);
        DS__RNG_ROUND(32, 2, b);
        DS__RNG_ROUND(32, 2, c);
        DS__RNG_ROUND(32, 2, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 3, a);
        DS__RNG_ROUND(32, 3, b);
        DS__RNG_ROUND(32, 3, c);
        DS__RNG_ROUND(32, 3, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 4, a);
        DS__RNG_ROUND(32, 4, b);
        DS__RNG_ROUND(32, 4, c);
        DS__RNG_ROUND(32, 4, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 5, a);
        DS__RNG_ROUND(32, 5, b);
        DS__RNG_ROUND(32, 5, c);
        DS__RNG_ROUND(32, 5, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 6, a);
        DS__RNG_ROUND(32, 6, b);
        DS__RNG_ROUND(32, 6, c);
        DS__RNG_ROUND(32, 6, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 7, a);
        DS__RNG_ROUND(32, 7, b);
        DS__RNG_ROUND(32, 7, c);
        DS__RNG_ROUND(32, 7, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 8, a);
        DS__RNG_ROUND(32, 8, b);
        DS__RNG_ROUND(32, 8, c);
        DS__RNG_ROUND(32, 8, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_LAST_ROUND(32, 9, a);
        pa = DS__RNG_EVEN_32(x0a, x2a);
        qa = DS__RNG_ODD_32(x0a, x2a);
        DS__RNG_TO_FLOATS(32, pa)
        DS__RNG_TO_FLOATS(32, qa)
        DS__RNG_PUT(32, to + 0 * 32, (ds__rng_vf_32)pa);
        DS__RNG_PUT(32, to + 1 * 32, (ds__rng_vf_32)qa);
        DS__RNG_LAST_ROUND(32, 9, b);
        pb = DS__RNG_EVEN_32(x0b, x2b);
        qb = DS__RNG_ODD_32(x0b, x2b);
        DS__RNG_TO_FLOATS(32, pb)
        DS__RNG_TO_FLOATS(32, qb)
        DS__RNG_PUT(32, to + 2 * 32, (ds__rng_vf_32)pb);
        DS__RNG_PUT(32, to + 3 * 32, (ds__rng_vf_32)qb);
        DS__RNG_LAST_ROUND(32, 9, c);
        pc = DS__RNG_EVEN_32(x0c, x2c);
        qc = DS__RNG_ODD_32(x0c, x2c);
        DS__RNG_TO_FLOATS(32, pc)
        DS__RNG_TO_FLOATS(32, qc)
        DS__RNG_PUT(32, to + 4 * 32, (ds__rng_vf_32)pc);
        DS__RNG_PUT(32, to + 5 * 32, (ds__rng_vf_32)qc);
        DS__RNG_LAST_ROUND(32, 9, d);
        pd = DS__RNG_EVEN_32(x0d, x2d);
        qd = DS__RNG_ODD_32(x0d, x2d);
        DS__RNG_TO_FLOATS(32, pd)
        DS__RNG_TO_FLOATS(32, qd)
        DS__RNG_PUT(32, to + 6 * 32, (ds__rng_vf_32)pd);
        DS__RNG_PUT(32, to + 7 * 32, (ds__rng_vf_32)qd);
    }
}
#endif
#if DS__VECTOR_HAS_64
/* Vectors of 64 bytes. A lane of 64 bits has a block; its words are in the lower halves, so that
   one instruction multiplies. Neighbours in a pair of lanes are LANES / 2 blocks apart: then a
   block's words are put together by instructions that do not leave the pair. */
typedef uint64_t ds__rng_v64_64 __attribute__((vector_size(64)));
typedef uint32_t ds__rng_v32_64 __attribute__((vector_size(64)));
typedef int32_t ds__rng_vi_64 __attribute__((vector_size(64)));
typedef float ds__rng_vf_64 __attribute__((vector_size(64)));
/* the same, anywhere in memory */
typedef float ds__rng_any_64 __attribute__((vector_size(64), aligned(4), may_alias));

static DS__VECTOR_64 void ds__rng_keys_64(uint64_t seed, ds__rng_v64_64 *key) {
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_64){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_64){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
}

/* Writes the words of a run of blocks, a multiple of DS__RNG_LANES. */
static DS__VECTOR_64 void ds__rng_run_64(const ds__rng_blocks *b, void *out) {
    enum { LANES = 64 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const int across = b->across;
    char *to = (char *)out;
    ds__rng_v64_64 index;
    ds__rng_v64_64 key[20];
    ds__rng_keys_64(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 64) {
        ds__rng_v64_64 x0a = index * 0 + counter;
        ds__rng_v64_64 x2a = index * 0 + thread;
        ds__rng_v64_64 pa;
        ds__rng_v64_64 qa;
        if (across)
            x2a += index + at;
        else
            x0a += index + at;
        ds__rng_v64_64 x1a = x0a >> 32;
        ds__rng_v64_64 x3a = x2a >> 32;
        DS__RNG_ROUND(64, 0, a);
        DS__RNG_ROUND(64, 1, a);
        DS__RNG_ROUND(64, 2, a);
        DS__RNG_ROUND(64, 3, a);
        DS__RNG_ROUND(64, 4, a);
        DS__RNG_ROUND(64, 5, a);
        DS__RNG_ROUND(64, 6, a);
        DS__RNG_ROUND(64, 7, a);
        DS__RNG_ROUND(64, 8, a);
        DS__RNG_LAST_ROUND(64, 9, a);
        *(ds__rng_any_64 *)(void *)to = (ds__rng_any_64)DS__RNG_EVEN_64(x0a, x2a);
        *(ds__rng_any_64 *)(void *)(to + 64) = (ds__rng_any_64)DS__RNG_ODD_64(x0a, x2a);
    }
}

/* Writes the numbers of a run of blocks, a multiple of DS__RNG_FLOAT_LANES, whose counters have the
   same upper half. Four vectors of blocks are computed side by side, because each instruction of
   one vector waits for the one before it. around: the stores go around the caches. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_64 void ds__rng_floats_64(const ds__rng_args *a, const ds__rng_blocks *b,
                                             char *to, int around) {
    enum { LANES = 64 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_64 to_ = (ds__rng_vf_64){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_64 index;
    ds__rng_v64_64 key[20];
    ds__rng_keys_64(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    /* the same in all blocks, so the compiler takes a part of the first rounds out of the loop */
    const ds__rng_v64_64 x1 = index * 0 + (counter >> 32);
    const ds__rng_v64_64 x2 = index * 0 + b->thread;
    const ds__rng_v64_64 x3 = x2 >> 32;
    for (size_t at = 0; at < blocks; at += 4 * LANES, to += 8 * 64) {
        ds__rng_v64_64 x0a = index + (counter + at + 0);
        ds__rng_v64_64 x1a = x1;
        ds__rng_v64_64 x2a = x2;
        ds__rng_v64_64 x3a = x3;
        ds__rng_v64_64 pa;
        ds__rng_v64_64 qa;
        ds__rng_v64_64 x0b = index + (counter + at + LANES);
        ds__rng_v64_64 x1b = x1;
        ds__rng_v64_64 x2b = x2;
        ds__rng_v64_64 x3b = x3;
        ds__rng_v64_64 pb;
        ds__rng_v64_64 qb;
        ds__rng_v64_64 x0c = index + (counter + at + 2*LANES);
        ds__rng_v64_64 x1c = x1;
        ds__rng_v64_64 x2c = x2;
        ds__rng_v64_64 x3c = x3;
        ds__rng_v64_64 pc;
        ds__rng_v64_64 qc;
        ds__rng_v64_64 x0d = index + (counter + at + 3*LANES);
        ds__rng_v64_64 x1d = x1;
        ds__rng_v64_64 x2d = x2;
        ds__rng_v64_64 x3d = x3;
        ds__rng_v64_64 pd;
        ds__rng_v64_64 qd;
        DS__RNG_ROUND(64, 0, a);
        DS__RNG_ROUND(64, 0, b);
        DS__RNG_ROUND(64, 0, c);
        DS__RNG_ROUND(64, 0, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 1, a);
        DS__RNG_ROUND(64, 1, b);
        DS__RNG_ROUND(64, 1, c);
        DS__RNG_ROUND(64, 1, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 2, a);
        DS__RNG_ROUND(64, 2, b);
        DS__RNG_ROUND(64, 2, c);
        DS__RNG_ROUND(64, 2, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 3, a);
        DS__RNG_ROUND(64, 3, b);
        DS__RNG_ROUND(64, 3, c);
        DS__RNG_ROUND(64, 3, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 4, a);
        DS__RNG_ROUND(64, 4, b);
        DS__RNG_ROUND(64, 4, c);
        DS__RNG_ROUND(64, 4, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 5, a);
        DS__RNG_ROUND(64, 5, b);
        DS__RNG_ROUND(64, 5, c);
        DS__RNG_ROUND(64, 5, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 6, a);
        DS__RNG_ROUND(64, 6, b);
        DS__RNG_ROUND(64, 6, c);
        DS__RNG_ROUND(64, 6, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 7, a);
        DS__RNG_ROUND(64, 7, b);
        DS__RNG_ROUND(64, 7, c);
        DS__RNG_ROUND(64, 7, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 8, a);
        DS__RNG_ROUND(64, 8, b);
        DS__RNG_ROUND(64, 8, c);
        DS__RNG_ROUND(64, 8, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_LAST_ROUND(64, 9, a);
        pa = DS__RNG_EVEN_64(x0a, x2a);
        qa = DS__RNG_ODD_64(x0a, x2a);
        DS__RNG_TO_FLOATS(64, pa)
        DS__RNG_TO_FLOATS(64, qa)
        DS__RNG_PUT(64, to + 0 * 64, (ds__rng_vf_64)pa);
        DS__RNG_PUT(64, to + 1 * 64, (ds__rng_vf_64)qa);
        DS__RNG_LAST_ROUND(64, 9, b);
        pb = DS__RNG_EVEN_64(x0b, x2b);
        qb = DS__RNG_ODD_64(x0b, x2b);
        DS__RNG_TO_FLOATS(64, pb)
        DS__RNG_TO_FLOATS(64, qb)
        DS__RNG_PUT(64, to + 2 * 64, (ds__rng_vf_64)pb);
        DS__RNG_PUT(64, to + 3 * 64, (ds__rng_vf_64)qb);
        DS__RNG_LAST_ROUND(64, 9, c);
        pc = DS__RNG_EVEN_64(x0c, x2c);
        qc = DS__RNG_ODD_64(x0c, x2c);
        DS__RNG_TO_FLOATS(64, pc)
        DS__RNG_TO_FLOATS(64, qc)
        DS__RNG_PUT(64, to + 4 * 64, (ds__rng_vf_64)pc);
        DS__RNG_PUT(64, to + 5 * 64, (ds__rng_vf_64)qc);
        DS__RNG_LAST_ROUND(64, 9, d);
        pd = DS__RNG_EVEN_64(x0d, x2d);
        qd = DS__RNG_ODD_64(x0d, x2d);
        DS__RNG_TO_FLOATS(64, pd)
        DS__RNG_TO_FLOATS(64, qd)
        DS__RNG_PUT(64, to + 6 * 64, (ds__rng_vf_64)pd);
        DS__RNG_PUT(64, to + 7 * 64, (ds__rng_vf_64)qd);
    }
}
#endif

#endif
