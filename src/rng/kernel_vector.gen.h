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

/* Writes the words of a run of blocks, as they are or as uniform numbers in f32. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_16 void ds__rng_run_16(const ds__rng_args *a, const ds__rng_blocks *b,
                                          void *out) {
    enum { LANES = 16 / 8 };
    const uint64_t seed = b->seed;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const size_t blocks = b->blocks;
    const int across = (b->flags & DS__RNG_ACROSS) != 0;
    const int floats = (b->flags & DS__RNG_FLOATS) != 0;
    const int around = (b->flags & DS__RNG_AROUND) != 0;
    char *to = (char *)out;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_16 to_ = (ds__rng_vf_16){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_16 index;
    ds__rng_v64_16 key[20];
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_16){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_16){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 16) {
        ds__rng_v64_16 x0 = index * 0 + counter;
        ds__rng_v64_16 x2 = index * 0 + thread;
        ds__rng_v64_16 p;
        ds__rng_v64_16 q;
        if (across)
            x2 += index + at;
        else
            x0 += index + at;
        ds__rng_v64_16 x1 = x0 >> 32;
        ds__rng_v64_16 x3 = x2 >> 32;
        DS__RNG_ROUND(16, 0);
        DS__RNG_ROUND(16, 1);
        DS__RNG_ROUND(16, 2);
        DS__RNG_ROUND(16, 3);
        DS__RNG_ROUND(16, 4);
        DS__RNG_ROUND(16, 5);
        DS__RNG_ROUND(16, 6);
        DS__RNG_ROUND(16, 7);
        DS__RNG_ROUND(16, 8);
        DS__RNG_ROUND(16, 9);
        x0 = (x0 & 0xffffffffu) | x1 << 32;
        x2 = (x2 & 0xffffffffu) | x3 << 32;
        p = DS__RNG_EVEN_16(x0, x2);
        q = DS__RNG_ODD_16(x0, x2);
        if (floats) {
            DS__RNG_TO_FLOATS(16, p)
            DS__RNG_TO_FLOATS(16, q)
        }
        DS__RNG_PUT(16, to, (ds__rng_vf_16)p);
        DS__RNG_PUT(16, to + 16, (ds__rng_vf_16)q);
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

/* Writes the words of a run of blocks, as they are or as uniform numbers in f32. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_32 void ds__rng_run_32(const ds__rng_args *a, const ds__rng_blocks *b,
                                          void *out) {
    enum { LANES = 32 / 8 };
    const uint64_t seed = b->seed;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const size_t blocks = b->blocks;
    const int across = (b->flags & DS__RNG_ACROSS) != 0;
    const int floats = (b->flags & DS__RNG_FLOATS) != 0;
    const int around = (b->flags & DS__RNG_AROUND) != 0;
    char *to = (char *)out;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_32 to_ = (ds__rng_vf_32){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_32 index;
    ds__rng_v64_32 key[20];
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_32){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_32){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 32) {
        ds__rng_v64_32 x0 = index * 0 + counter;
        ds__rng_v64_32 x2 = index * 0 + thread;
        ds__rng_v64_32 p;
        ds__rng_v64_32 q;
        if (across)
            x2 += index + at;
        else
            x0 += index + at;
        ds__rng_v64_32 x1 = x0 >> 32;
        ds__rng_v64_32 x3 = x2 >> 32;
        DS__RNG_ROUND(32, 0);
        DS__RNG_ROUND(32, 1);
        DS__RNG_ROUND(32, 2);
        DS__RNG_ROUND(32, 3);
        DS__RNG_ROUND(32, 4);
        DS__RNG_ROUND(32, 5);
        DS__RNG_ROUND(32, 6);
        DS__RNG_ROUND(32, 7);
        DS__RNG_ROUND(32, 8);
        DS__RNG_ROUND(32, 9);
        x0 = (x0 & 0xffffffffu) | x1 << 32;
        x2 = (x2 & 0xffffffffu) | x3 << 32;
        p = DS__RNG_EVEN_32(x0, x2);
        q = DS__RNG_ODD_32(x0, x2);
        if (floats) {
            DS__RNG_TO_FLOATS(32, p)
            DS__RNG_TO_FLOATS(32, q)
        }
        DS__RNG_PUT(32, to, (ds__rng_vf_32)p);
        DS__RNG_PUT(32, to + 32, (ds__rng_vf_32)q);
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

/* Writes the words of a run of blocks, as they are or as uniform numbers in f32. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_64 void ds__rng_run_64(const ds__rng_args *a, const ds__rng_blocks *b,
                                          void *out) {
    enum { LANES = 64 / 8 };
    const uint64_t seed = b->seed;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const size_t blocks = b->blocks;
    const int across = (b->flags & DS__RNG_ACROSS) != 0;
    const int floats = (b->flags & DS__RNG_FLOATS) != 0;
    const int around = (b->flags & DS__RNG_AROUND) != 0;
    char *to = (char *)out;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_64 to_ = (ds__rng_vf_64){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_64 index;
    ds__rng_v64_64 key[20];
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_64){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_64){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 64) {
        ds__rng_v64_64 x0 = index * 0 + counter;
        ds__rng_v64_64 x2 = index * 0 + thread;
        ds__rng_v64_64 p;
        ds__rng_v64_64 q;
        if (across)
            x2 += index + at;
        else
            x0 += index + at;
        ds__rng_v64_64 x1 = x0 >> 32;
        ds__rng_v64_64 x3 = x2 >> 32;
        DS__RNG_ROUND(64, 0);
        DS__RNG_ROUND(64, 1);
        DS__RNG_ROUND(64, 2);
        DS__RNG_ROUND(64, 3);
        DS__RNG_ROUND(64, 4);
        DS__RNG_ROUND(64, 5);
        DS__RNG_ROUND(64, 6);
        DS__RNG_ROUND(64, 7);
        DS__RNG_ROUND(64, 8);
        DS__RNG_ROUND(64, 9);
        x0 = (x0 & 0xffffffffu) | x1 << 32;
        x2 = (x2 & 0xffffffffu) | x3 << 32;
        p = DS__RNG_EVEN_64(x0, x2);
        q = DS__RNG_ODD_64(x0, x2);
        if (floats) {
            DS__RNG_TO_FLOATS(64, p)
            DS__RNG_TO_FLOATS(64, q)
        }
        DS__RNG_PUT(64, to, (ds__rng_vf_64)p);
        DS__RNG_PUT(64, to + 64, (ds__rng_vf_64)q);
    }
}
#endif

#endif
