/* rng.h - what the kernels of devstream_rng.h compute: the arithmetic, once for the device (rng.cu) and for the CPU, and the CPU forms.
   tools/kernels.sh copies the marked parts into devstream_rng.h. */
#ifndef RNG_H_INCLUDED
#define RNG_H_INCLUDED
#include "device.h"

#ifdef __CUDA__
#define DS__RNG_ROLLED _Pragma("nounroll") /* in front of a loop, since the text of a kernel has to be short */
#define DS__RNG_ROUNDED(x) (void)0
#define ds__rng_sqrt32 __nvvm_sqrt_rn_f
#define ds__rng_sqrt64 __nvvm_sqrt_rn_d
#define ds__rng_fma32 __nvvm_fma_rn_f
#define ds__rng_to_f16 __nvvm_f2h_rn
#else
#include <string.h>
#endif
/* >>shared */

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11) makes four words of a counter of 128 bits
   and a key of 64, the seed. How counters and words belong to elements is the mapping:
   - torch's: `stride` threads t, each with the counters (k, t), k = 0, 1, ... Word or pair of words i of a thread's counter k is element
     t + (U k + i) stride, where U is how many elements a block has: 4, or 2 of 64-bit numbers; two normal numbers share two words, or four.
   - by element: the same with one thread. Elements lie in the blocks one behind the other, so an element's number depends on the seed, on the
     offset and on its index only.
   A block's words become U numbers (ds__rng_*_of), and the rest is where they go. */
typedef struct ds__rng_words { uint32_t w[4]; } ds__rng_words;
typedef struct ds__rng_floats { float v[4]; } ds__rng_floats;
typedef struct ds__rng_doubles { double v[2]; } ds__rng_doubles;

enum { DS__RNG_8, DS__RNG_16, DS__RNG_32, DS__RNG_64, DS__RNG_F16, DS__RNG_BF16, DS__RNG_F32, DS__RNG_F64 }; /* what is written */

/* What a fill is: `rows` times `stride` blocks, of which block (k, t) has the counter (start + k, t) and the elements t + (U k + i) stride - before
   for i < U, as far as they are less than count. By element: stride is 1. */
typedef struct ds__rng_args {
    void *out;
    const uint64_t *state; /* of a graph: the seed and the offset, in words, that count when it runs; the offset is added to `start`. Else NULL */
    uint64_t seed, start, before, count, rows;
    uint32_t stride;
    uint32_t kind;         /* DS__RNG_* */
    uint32_t from_bits, to_bits; /* from and to as they are written */
    float from32, to32;    /* from, to; mean, deviation; rate */
    double from, to;       /* the same */
    uint64_t low, range;   /* integers: the smallest, and how many there are, 0: 2^64; 0 and 1: what is written for 1, and how many words of 2^32 give
                              it; permutations: the bits of n - 1, 0 where there are few, and n */
    uint32_t what;         /* DS__RNG_UNIFORM and so on */
    float scale32;         /* uniform: to - from, of torch's mapping rounded to the type */
} ds__rng_args;
enum { DS__RNG_UNIFORM, DS__RNG_NORMAL, DS__RNG_EXPONENTIAL, DS__RNG_INTEGERS, DS__RNG_WIDE_INTEGERS, DS__RNG_BERNOULLI, DS__RNG_PERMUTATION };

/* A product that is not to be fused with the sum it goes into, whatever the compiler was told about contraction. */
#ifndef DS__RNG_ROLLED
#define DS__RNG_ROLLED
#if defined(__x86_64__)
#define DS__RNG_ROUNDED(x) __asm__("" : "+x"(x))
static inline float ds__rng_sqrt32(float x) {
    float r;
    __asm__("sqrtss %1, %0" : "=x"(r) : "x"(x)); /* the C library's function might be called for it */
    return r;
}
static inline double ds__rng_sqrt64(double x) {
    double r;
    __asm__("sqrtsd %1, %0" : "=x"(r) : "x"(x));
    return r;
}
#else
#define DS__RNG_ROUNDED(x) __asm__("" : "+w"(x))
static inline float ds__rng_sqrt32(float x) {
    float r;
    __asm__("fsqrt %s0, %s1" : "=w"(r) : "w"(x));
    return r;
}
static inline double ds__rng_sqrt64(double x) {
    double r;
    __asm__("fsqrt %d0, %d1" : "=w"(r) : "w"(x));
    return r;
}
#endif
/* a b + c, rounded once. The product is exact in f64; the sum is made odd where it is not, so that rounding it again changes nothing
   (Boldo, Melquiond: Emulation of FMA and correctly rounded sums, 2008). */
static inline float ds__rng_fma32(float a, float b, float c) {
    union { double f; uint64_t u; } s;
    double p = (double)a * b, d, rest;
    DS__RNG_ROUNDED(p);
    s.f = p + c;
    DS__RNG_ROUNDED(s.f);
    d = s.f - p;
    DS__RNG_ROUNDED(d);
    rest = (p - (s.f - d)) + (c - d);
    if (rest != 0 && !(s.u & 1)) s.u += (uint64_t)((rest > 0) == (s.f > 0) ? 1 : -1);
    return (float)s.f;
}
/* To f16, to nearest even; not of NaN. What is smaller than the smallest normal number of f16 is added to one whose last place is that of f16's. */
static inline uint32_t ds__rng_to_f16(float x) {
    union { float f; uint32_t u; } v, small;
    v.f = x;
    uint32_t sign = v.u >> 16 & 0x8000u, m = v.u & 0x7fffffffu;
    small.f = (x < 0 ? -x : x) + 0.5f;
    if (m >= 0x477ff000u) return sign | 0x7c00u;
    if (m < 0x38800000u) return sign | (small.u & 0xffffu);
    return sign | ((m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13);
}
#endif

DEVICE float ds__rng_mul(float a, float b) { float p = a * b; DS__RNG_ROUNDED(p); return p; }
DEVICE double ds__rng_mul64(double a, double b) { double p = a * b; DS__RNG_ROUNDED(p); return p; }
DEVICE uint32_t ds__rng_bits(float x) { union { float f; uint32_t u; } v; v.f = x; return v.u; }
DEVICE float ds__rng_float(uint32_t x) { union { float f; uint32_t u; } v; v.u = x; return v.f; }
DEVICE uint64_t ds__rng_bits64(double x) { union { double f; uint64_t u; } v; v.f = x; return v.u; }
DEVICE double ds__rng_double(uint64_t x) { union { double f; uint64_t u; } v; v.u = x; return v.f; }

DEVICE ds__rng_words ds__rng_philox(uint64_t seed, uint64_t counter, uint64_t thread) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    ds__rng_words x;
    x.w[0] = (uint32_t)counter, x.w[1] = (uint32_t)(counter >> 32), x.w[2] = (uint32_t)thread, x.w[3] = (uint32_t)(thread >> 32);
    DS__RNG_ROLLED for (int i = 0; i < 10; i++) {
        uint64_t p = (uint64_t)0xD2511F53u * x.w[0], q = (uint64_t)0xCD9E8D57u * x.w[2];
        x.w[0] = (uint32_t)(q >> 32) ^ x.w[1] ^ k0;
        x.w[1] = (uint32_t)q;
        x.w[2] = (uint32_t)(p >> 32) ^ x.w[3] ^ k1;
        x.w[3] = (uint32_t)p;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return x;
}

/* To nearest even; not of NaN. */
DEVICE uint32_t ds__rng_to_bf16(float x) {
    uint32_t u = ds__rng_bits(x);
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
DEVICE uint32_t ds__rng_narrow(float x, uint32_t kind) {
    return kind == DS__RNG_F32 ? ds__rng_bits(x) : kind == DS__RNG_F16 ? ds__rng_to_f16(x) : ds__rng_to_bf16(x);
}

/* ---- numbers in [from, to), from in (0, 1] turned over in torch's mapping ---- */

/* In (0, 1], as torch and cuRAND have it. */
DEVICE float ds__rng_above_0(uint32_t w) { return (float)w * 0x1p-32f + 0x1p-33f; }
DEVICE double ds__rng_above_0_64(uint32_t low, uint32_t high) { return (double)(low ^ (uint64_t)high << 21) * 0x1p-53 + 0x1p-54; }

/* The bits of what is written. By element: as many bits of the word as the type's fraction has, so that u is exact. Rounding may reach `to`, which is
   never written as -0; what is less may become that, and is not in the interval then if `to` is 0. */
DEVICE uint32_t ds__rng_uniform_of(uint32_t w, float from, float scale, uint32_t from_bits, uint32_t to_bits, uint32_t kind, uint32_t torch) {
    uint32_t bits;
    float u;
    if (torch) {
        u = ds__rng_fma32(ds__rng_above_0(w), scale, from);
    } else {
        u = kind == DS__RNG_F32 ? (float)(w >> 8) * 0x1p-24f : kind == DS__RNG_F16 ? (float)(w >> 21) * 0x1p-11f : (float)(w >> 24) * 0x1p-8f;
        u = from + ds__rng_mul(u, scale);
    }
    bits = ds__rng_narrow(u, kind);
    return (bits == (kind == DS__RNG_F32 ? 0x80000000u : 0x8000u) ? 0 : bits) == to_bits ? from_bits : bits;
}
DEVICE double ds__rng_uniform64_of(uint32_t low, uint32_t high, double from, double to, uint32_t torch) {
    double u = torch ? ds__rng_above_0_64(low, high) : (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
    u = from + ds__rng_mul64(u, to - from);
    return u >= to ? from : u;
}

/* ---- logarithm, sine and cosine ---- */

/* ln x for normal x in (0, 1]: x = m 2^e, sqrt(1/2) <= m < sqrt(2), and for m the polynomial of Cephes' logf. */
DEVICE float ds__rng_log(float x) {
    uint32_t u = ds__rng_bits(x) + (0x3f800000u - 0x3f3504f3u), s = (u & 0x7fffffu) + 0x3f3504f3u;
    float e = (float)((int32_t)(u >> 23) - 127), f = ds__rng_float(s) - 1.0f, z = ds__rng_mul(f, f), y = 7.0376836292e-2f;
    y = ds__rng_mul(y, f) - 1.1514610310e-1f;
    y = ds__rng_mul(y, f) + 1.1676998740e-1f;
    y = ds__rng_mul(y, f) - 1.2420140846e-1f;
    y = ds__rng_mul(y, f) + 1.4249322787e-1f;
    y = ds__rng_mul(y, f) - 1.6668057665e-1f;
    y = ds__rng_mul(y, f) + 2.0000714765e-1f;
    y = ds__rng_mul(y, f) - 2.4999993993e-1f;
    y = ds__rng_mul(y, f) + 3.3333331174e-1f;
    y = ds__rng_mul(ds__rng_mul(y, f), z) - ds__rng_mul(e, 2.12194440e-4f);
    y = y - 0.5f * z;
    return (f + y) + ds__rng_mul(e, 0.693359375f);
}

/* The same in f64, with the polynomial of fdlibm's e_log.c. */
DEVICE double ds__rng_log64(double x) {
    uint64_t u = ds__rng_bits64(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu), s = (u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu;
    double e = (double)((int64_t)(u >> 52) - 1023), f = ds__rng_double(s) - 1.0, t = f / (2.0 + f), z = ds__rng_mul64(t, t), r = 1.479819860511658591e-01, h = 0.5 * ds__rng_mul64(f, f);
    r = ds__rng_mul64(r, z) + 1.531383769920937332e-01;
    r = ds__rng_mul64(r, z) + 1.818357216161805012e-01;
    r = ds__rng_mul64(r, z) + 2.222219843214978396e-01;
    r = ds__rng_mul64(r, z) + 2.857142874366239149e-01;
    r = ds__rng_mul64(r, z) + 3.999999999940941908e-01;
    r = ds__rng_mul64(r, z) + 6.666666666666735130e-01;
    r = ds__rng_mul64(r, z);
    r = ds__rng_mul64(t, h + r) + ds__rng_mul64(e, 1.90821492927058770002e-10);
    return ds__rng_mul64(e, 6.93147180369123816490e-01) - ((h - r) - f);
}

/* Sine and cosine of w + 1/2 of 2^32 parts of a turn: of what is left of an eighth of a turn on either side of a quarter, with the polynomials of
   Cephes' sinf and cosf. */
DEVICE void ds__rng_turn(uint32_t w, float *sine, float *cosine) {
    uint32_t at = w + 0x20000000u, quarter = at >> 30;
    float r = ds__rng_mul((float)((int32_t)(at & 0x3fffffffu) - 0x20000000) + 0.5f, 1.46291807927e-9f), z = ds__rng_mul(r, r), s = -1.9515295891e-4f, c = 2.443315711809948e-5f, swap;
    s = ds__rng_mul(s, z) + 8.3321608736e-3f;
    s = ds__rng_mul(s, z) - 1.6666654611e-1f;
    s = ds__rng_mul(ds__rng_mul(s, z), r) + r;
    c = ds__rng_mul(c, z) - 1.388731625493765e-3f;
    c = ds__rng_mul(c, z) + 4.166664568298827e-2f;
    c = ds__rng_mul(ds__rng_mul(c, z), z) - 0.5f * z + 1.0f;
    swap = quarter & 1 ? s : c;
    s = quarter & 1 ? c : s;
    *sine = quarter & 2 ? -s : s;
    *cosine = (quarter + 1) & 2 ? -swap : swap;
}
/* The same of z + 1/2 of 2^53 parts, with the polynomials of fdlibm's k_sin.c and k_cos.c. */
DEVICE void ds__rng_turn64(uint64_t w, double *sine, double *cosine) {
    uint64_t at = w + ((uint64_t)1 << 50);
    uint32_t quarter = (uint32_t)(at >> 51) & 3;
    double r = ds__rng_mul64((double)((int64_t)(at & (((uint64_t)1 << 51) - 1)) - ((int64_t)1 << 50)) + 0.5, 6.9757369960172635e-16), z = ds__rng_mul64(r, r);
    double s = 1.58969099521155010221e-10, c = -1.13596475577881948265e-11, swap;
    s = ds__rng_mul64(s, z) - 2.50507602534068634195e-08;
    s = ds__rng_mul64(s, z) + 2.75573137070700676789e-06;
    s = ds__rng_mul64(s, z) - 1.98412698298579493134e-04;
    s = ds__rng_mul64(s, z) + 8.33333333332248946124e-03;
    s = ds__rng_mul64(s, z) - 1.66666666666666324348e-01;
    s = ds__rng_mul64(ds__rng_mul64(s, z), r) + r;
    c = ds__rng_mul64(c, z) + 2.08757232129817482790e-09;
    c = ds__rng_mul64(c, z) - 2.75573143513906633035e-07;
    c = ds__rng_mul64(c, z) + 2.48015872894767294178e-05;
    c = ds__rng_mul64(c, z) - 1.38888888888741095749e-03;
    c = ds__rng_mul64(c, z) + 4.16666666666666019037e-02;
    c = ds__rng_mul64(ds__rng_mul64(c, z), z);
    c = 1.0 - (0.5 * z - c);
    swap = quarter & 1 ? s : c;
    s = quarter & 1 ? c : s;
    *sine = quarter & 2 ? -s : s;
    *cosine = (quarter + 1) & 2 ? -swap : swap;
}

/* Two normal numbers of two uniform ones (Box, Muller 1958). */
DEVICE void ds__rng_normals(uint32_t a, uint32_t b, float mean, float deviation, float *out) {
    float s = ds__rng_sqrt32(-2.0f * ds__rng_log(ds__rng_above_0(a))), sine, cosine;
    ds__rng_turn(b, &sine, &cosine);
    out[0] = ds__rng_mul(ds__rng_mul(s, sine), deviation) + mean;
    out[1] = ds__rng_mul(ds__rng_mul(s, cosine), deviation) + mean;
}
DEVICE ds__rng_doubles ds__rng_normals64(ds__rng_words x, double mean, double deviation) {
    ds__rng_doubles d;
    double s = ds__rng_sqrt64(-2.0 * ds__rng_log64(ds__rng_above_0_64(x.w[0], x.w[1]))), sine, cosine;
    ds__rng_turn64(x.w[2] ^ (uint64_t)x.w[3] << 21, &sine, &cosine);
    d.v[0] = ds__rng_mul64(ds__rng_mul64(s, sine), deviation) + mean;
    d.v[1] = ds__rng_mul64(ds__rng_mul64(s, cosine), deviation) + mean;
    return d;
}

/* -ln u / rate; u that is next to 1 gives half an epsilon, so that 0 does not occur. */
DEVICE float ds__rng_exponential_of(uint32_t w, float rate) {
    float u = ds__rng_above_0(w);
    return (u >= 1.0f - 0x1p-24f ? 0x1p-24f : -ds__rng_log(u)) / rate;
}
DEVICE double ds__rng_exponential64_of(uint32_t low, uint32_t high, double rate) {
    double u = ds__rng_above_0_64(low, high);
    return (u >= 1.0 - 0x1p-53 ? 0x1p-53 : -ds__rng_log64(u)) / rate;
}

/* ---- integers ---- */

/* The highest 64 bits of a product. */
DEVICE uint64_t ds__rng_high(uint64_t a, uint64_t b) {
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32, middle = ah * bl + (al * bl >> 32), other = al * bh + (uint32_t)middle;
    return ah * bh + (middle >> 32) + (other >> 32);
}

/* Integers below `range`, 0: 2^64. By element: a part of the range that is as large as the number is of 2^32, or of 2^64. */
DEVICE uint64_t ds__rng_below(uint32_t w, uint64_t range, uint32_t torch) {
    return torch && range >> 32 == 0 ? w % (uint32_t)range : (uint32_t)((w * range) >> 32);
}
DEVICE uint64_t ds__rng_below64(uint32_t high, uint32_t low, uint64_t range, uint32_t torch) {
    uint64_t z = (uint64_t)high << 32 | low;
    return range == 0 ? z : torch ? z % range : ds__rng_high(z, range);
}

/* ---- permutations ---- */

/* Of few: the rank of number i's key among the keys of all, each of two words. */
enum { DS__RNG_FEW = 256 };
DEVICE uint64_t ds__rng_key(uint64_t seed, uint64_t start, uint64_t i) {
    ds__rng_words x = ds__rng_philox(seed, start + i / 2, 0);
    return i & 1 ? (uint64_t)x.w[2] << 32 | x.w[3] : (uint64_t)x.w[0] << 32 | x.w[1];
}

/* Of many: a Feistel network with 24 rounds over so many bits as there are numbers, walked until it gives one of them; that is a
   permutation, and each place can be computed alone (Mitchell, Stokes, Frank, Holmes: Bandwidth-optimal random shuffling for GPUs, 2021; its
   round function is another). keys: one block's words. */
DEVICE uint32_t ds__rng_round(uint32_t x, uint32_t key) {
    x = (x ^ key) * 0xD2511F53u;
    x = (x ^ x >> 15) * 0xCD9E8D57u;
    return x ^ x >> 16;
}
DEVICE uint64_t ds__rng_shuffled(ds__rng_words keys, uint64_t i, uint64_t n, uint32_t bits) {
    uint32_t low = bits / 2, a, b, key;
    if (i < 2) i ^= (keys.w[0] ^ keys.w[1] ^ keys.w[2] ^ keys.w[3]) & 1; /* such a network alone gives even permutations only */
    do {
        a = (uint32_t)(i >> low), b = (uint32_t)i & ((1u << low) - 1);
        key = 0;
        DS__RNG_ROLLED for (int round = 0; round < 6; round++, key += 0x9E3779B9u) {
            a ^= ds__rng_round(b, keys.w[0] + key) >> (32 - (bits - low));
            b ^= ds__rng_round(a, keys.w[1] + key) >> (32 - low);
            a ^= ds__rng_round(b, keys.w[2] + key) >> (32 - (bits - low));
            b ^= ds__rng_round(a, keys.w[3] + key) >> (32 - low);
        }
        i = (uint64_t)a << low | b;
    } while (i >= n);
    return i;
}
/* <<shared */
#ifndef __CUDA__
/* >>shared */

/* ---- the CPU forms ---- */

/* Vectors of W bytes. A lane of 64 bits has a block; its words are in the lower halves, so that one instruction multiplies. Neighbours in a
   pair of lanes are LANES / 2 blocks apart: then a block's words are put together by instructions that do not leave the pair. */
#define DS__RNG_TYPES(W) \
    typedef uint64_t ds__rng_v64_##W __attribute__((vector_size(W))); \
    typedef uint32_t ds__rng_v32_##W __attribute__((vector_size(W))); \
    typedef int32_t ds__rng_vi_##W __attribute__((vector_size(W))); \
    typedef float ds__rng_vf_##W __attribute__((vector_size(W))); \
    typedef float ds__rng_any_##W __attribute__((vector_size(W), aligned(4), may_alias)); /* that may lie anywhere */
#if defined(__clang__) || !defined(__x86_64__)
#define DS__RNG_TIMES(W, a, b) (((a) & 0xffffffffu) * (ds__rng_v64_##W)((a) * 0 + (b)))
#else
#define DS__RNG_TIMES(W, a, b) DS__RNG_TIMES_##W(a, (ds__rng_v64_##W)((a) * 0 + (b)))
#define DS__RNG_TIMES_16(a, b) (ds__rng_v64_16)__builtin_ia32_pmuludq128((ds__rng_vi_16)(a), (ds__rng_vi_16)(b))
#define DS__RNG_TIMES_32(a, b) (ds__rng_v64_32)__builtin_ia32_pmuludq256((ds__rng_vi_32)(a), (ds__rng_vi_32)(b))
typedef long long ds__rng_vl_64 __attribute__((vector_size(64)));
#define DS__RNG_TIMES_64(a, b) (ds__rng_v64_64)__builtin_ia32_pmuludq512_mask((ds__rng_vi_64)(a), (ds__rng_vi_64)(b), (ds__rng_vl_64)(a), (unsigned char)-1)
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

/* The upper halves of lanes, in both halves: processors shuffle where they do not multiply, but shift where they do. */
#ifdef __clang__
#define DS__RNG_HIGH_16(x) __builtin_shufflevector(x, x, 1, 1, 3, 3)
#define DS__RNG_HIGH_32(x) __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7)
#define DS__RNG_HIGH_64(x) __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15)
#else
#define DS__RNG_HIGH_16(x) __builtin_shuffle(x, (ds__rng_v32_16){ 1, 1, 3, 3 })
#define DS__RNG_HIGH_32(x) __builtin_shuffle(x, (ds__rng_v32_32){ 1, 1, 3, 3, 5, 5, 7, 7 })
#define DS__RNG_HIGH_64(x) __builtin_shuffle(x, (ds__rng_v32_64){ 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15 })
#endif
#define DS__RNG_HIGH(W, x) (ds__rng_v64_##W)DS__RNG_HIGH_##W((ds__rng_v32_##W)(x))

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

#define DS__RNG_PUT(W, to, v) \
    do { \
        if (around) DS__RNG_STREAM(W, to, v); \
        else *(ds__rng_any_##W *)(void *)(to) = (ds__rng_any_##W)(v); \
    } while (0)

/* Words of `blocks` counters from (counter, thread) on, a multiple of the lanes; across: it is the thread that goes on. As they are, or as
   uniform numbers in f32, which with `plain` are those of 0 to 1. */
#define DS__RNG_ROUND(W, i) \
    p = DS__RNG_TIMES(W, x0, 0xD2511F53u), q = DS__RNG_TIMES(W, x2, 0xCD9E8D57u); \
    x0 = DS__RNG_HIGH(W, q) ^ x1 ^ key[2 * (i)], x1 = q, x2 = DS__RNG_HIGH(W, p) ^ x3 ^ key[2 * (i) + 1], x3 = p;
#define DS__RNG_FLOATS(W, v) { \
        ds__rng_vf_##W u = __builtin_convertvector((ds__rng_vi_##W)((ds__rng_v32_##W)(v) >> 8), ds__rng_vf_##W) * 0x1p-24f; \
        if (!plain) { \
            u *= scale; \
            DS__RNG_ROUNDED_VECTOR(u); \
            u += from; \
            ds__rng_vi_##W end = u == to_; \
            u = (ds__rng_vf_##W)(((ds__rng_vi_##W)u & ~end) | ((ds__rng_vi_##W)(u * 0 + from) & end)); \
        } \
        v = (ds__rng_v64_##W)u; \
    }
#if defined(__x86_64__)
#define DS__RNG_ROUNDED_VECTOR(x) __asm__("" : "+x"(x))
#else
#define DS__RNG_ROUNDED_VECTOR(x) __asm__("" : "+w"(x))
#endif
#define DS__RNG_RUN(STATIC, W) \
    DS__RNG_TYPES(W) \
    STATIC void ds__rng_run_##W(const ds__rng_args *a, uint64_t seed, uint64_t counter, uint64_t thread, int across, void *out, size_t blocks, int floats, int around) { \
        enum { LANES = (W) / 8 }; \
        char *to = (char *)out; \
        const float from = a->from32, scale = a->to32 - a->from32; \
        const ds__rng_vf_##W to_ = (ds__rng_vf_##W){ 0 } + a->to32; \
        const int plain = from == 0 && a->to32 == 1; \
        ds__rng_v64_##W index, key[20]; \
        for (uint32_t i = 0; i < 10; i++) { \
            key[2 * i] = (ds__rng_v64_##W){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u); \
            key[2 * i + 1] = (ds__rng_v64_##W){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u); \
        } \
        for (int i = 0; i < LANES; i++) index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2)); \
        for (size_t at = 0; at < blocks; at += LANES, to += 2 * (W)) { \
            ds__rng_v64_##W x0 = index * 0, x2 = x0, x1, x3, p, q; \
            x0 += counter, x2 += thread; \
            if (across) x2 += index + at; else x0 += index + at; \
            x1 = x0 >> 32, x3 = x2 >> 32; \
            DS__RNG_ROUND(W, 0) DS__RNG_ROUND(W, 1) DS__RNG_ROUND(W, 2) DS__RNG_ROUND(W, 3) DS__RNG_ROUND(W, 4) \
            DS__RNG_ROUND(W, 5) DS__RNG_ROUND(W, 6) DS__RNG_ROUND(W, 7) DS__RNG_ROUND(W, 8) DS__RNG_ROUND(W, 9) \
            x0 = (x0 & 0xffffffffu) | x1 << 32, x2 = (x2 & 0xffffffffu) | x3 << 32; \
            p = DS__RNG_EVEN_##W(x0, x2), q = DS__RNG_ODD_##W(x0, x2); \
            if (floats) { \
                DS__RNG_FLOATS(W, p) \
                DS__RNG_FLOATS(W, q) \
            } \
            DS__RNG_PUT(W, to, (ds__rng_vf_##W)p); \
            DS__RNG_PUT(W, to + (W), (ds__rng_vf_##W)q); \
        } \
    }

DS__RNG_RUN(static, 16)
#if defined(__x86_64__)
DS__RNG_RUN(static __attribute__((target("avx2"))), 32)
DS__RNG_RUN(static __attribute__((target("avx512f"))), 64)
static int ds__rng_vector(void) { return __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx2") ? 32 : 16; }
#else
static int ds__rng_vector(void) { return 16; }
#endif

enum { DS__RNG_LANES = 8 }; /* blocks are made in multiples of it */
static void ds__rng_run(const ds__rng_args *a, uint64_t seed, uint64_t counter, uint64_t thread, int across, void *out, size_t blocks, int floats, int around, int vector) {
#if defined(__x86_64__)
    if (vector == 64) ds__rng_run_64(a, seed, counter, thread, across, out, blocks, floats, around);
    else if (vector == 32) ds__rng_run_32(a, seed, counter, thread, across, out, blocks, floats, around);
    else
#endif
    ds__rng_run_16(a, seed, counter, thread, across, out, blocks, floats, around);
    (void)vector;
}

static int ds__rng_shift(const ds__rng_args *a) { return a->what == DS__RNG_WIDE_INTEGERS || (a->what <= DS__RNG_EXPONENTIAL && a->kind == DS__RNG_F64) ? 1 : 2; }
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
        if (kind == DS__RNG_F64) for (int i = 0; i < 2; i++) v[i] = ds__rng_bits64(ds__rng_uniform64_of(x.w[2 * i], x.w[2 * i + 1], a->from, a->to, torch));
        else for (int i = 0; i < 4; i++) v[i] = ds__rng_uniform_of(x.w[i], a->from32, a->scale32, a->from_bits, a->to_bits, kind, torch);
        break;
    case DS__RNG_NORMAL:
        if (kind == DS__RNG_F64) {
            d = ds__rng_normals64(x, a->from, a->to);
            v[0] = ds__rng_bits64(d.v[0]), v[1] = ds__rng_bits64(d.v[1]);
            break;
        }
        ds__rng_normals(x.w[0], x.w[1], a->from32, a->to32, f);
        ds__rng_normals(x.w[2], x.w[3], a->from32, a->to32, f + 2);
        for (int i = 0; i < 4; i++) v[i] = ds__rng_narrow(f[i], kind);
        break;
    case DS__RNG_EXPONENTIAL:
        if (kind == DS__RNG_F64) for (int i = 0; i < 2; i++) v[i] = ds__rng_bits64(ds__rng_exponential64_of(x.w[2 * i], x.w[2 * i + 1], a->from));
        else for (int i = 0; i < 4; i++) v[i] = ds__rng_narrow(ds__rng_exponential_of(x.w[i], a->from32), kind);
        break;
    case DS__RNG_INTEGERS:
        for (int i = 0; i < 4; i++) v[i] = a->low + ds__rng_below(x.w[i], a->range, torch);
        break;
    case DS__RNG_WIDE_INTEGERS:
        for (int i = 0; i < 2; i++) v[i] = a->low + ds__rng_below64(x.w[2 * i], x.w[2 * i + 1], a->range, torch);
        break;
    default:
        for (int i = 0; i < 4; i++) v[i] = x.w[i] < a->range ? a->low : 0;
        break;
    }
}
static char *ds__rng_store(char *to, uint64_t bits, size_t size) {
    uint8_t b = (uint8_t)bits;
    uint16_t h = (uint16_t)bits;
    uint32_t w = (uint32_t)bits;
    memcpy(to, size == 1 ? (const void *)&b : size == 2 ? (const void *)&h : size == 4 ? (const void *)&w : (const void *)&bits, size);
    return to + size;
}

/* Items are so many elements. */
enum { DS__RNG_ITEM = 1024, DS__RNG_BATCH = 128 };
static void ds__rng_part(const ds__rng_args *a, uint64_t at, uint64_t end, int vector) {
    const uint64_t seed = a->state ? a->state[0] : a->seed, start = a->start + (a->state ? a->state[1] / 4 : 0), each = (uint64_t)1 << ds__rng_shift(a);
    const size_t size = ds__rng_size(a->kind);
    char *to = (char *)a->out + at * size;
    ds__rng_words x[DS__RNG_BATCH];
    uint64_t v[4];
    if (a->what == DS__RNG_UNIFORM && a->kind == DS__RNG_F32 && a->stride == 1 && a->before == 0) { /* whole blocks at once */
        size_t blocks = (size_t)((end - at) / 4 / DS__RNG_LANES * DS__RNG_LANES);
        int around = a->count * 4 >= DS__RNG_STREAM_BYTES && (uintptr_t)to % 64 == 0;
        ds__rng_run(a, seed, start + at / 4, 0, 0, to, blocks, 1, around, vector);
        if (around) DS__RNG_FENCE();
        at += blocks * 4;
        to += blocks * 16;
    }
    while (at < end) {
        uint64_t row = a->stride > 1 ? at / a->stride : at, first = (row + a->before) / each, skip = (row + a->before) % each, n; /* of a thread, or all there is */
        uint64_t thread = a->stride > 1 ? at % a->stride : 0;
        if (a->stride > 1) { /* one element of each block */
            n = a->stride - thread < end - at ? a->stride - thread : end - at;
            if (n > DS__RNG_BATCH) n = DS__RNG_BATCH;
            ds__rng_run(a, seed, start + first, thread, 1, x, (size_t)(n + DS__RNG_LANES - 1) / DS__RNG_LANES * DS__RNG_LANES, 0, 0, vector);
            for (uint64_t i = 0; i < n; i++) {
                ds__rng_values(a, x[i], v);
                to = ds__rng_store(to, v[skip], size);
            }
        } else {
            n = DS__RNG_BATCH * each - skip < end - at ? DS__RNG_BATCH * each - skip : end - at;
            size_t blocks = (size_t)((skip + n + each - 1) / each);
            ds__rng_run(a, seed, start + first, 0, 0, x, (blocks + DS__RNG_LANES - 1) / DS__RNG_LANES * DS__RNG_LANES, 0, 0, vector);
            for (uint64_t i = 0, b = 0; i < skip + n; b++) {
                ds__rng_values(a, x[b], v);
                for (uint64_t k = 0; k < each && i < skip + n; k++, i++)
                    if (i >= skip) to = ds__rng_store(to, v[k], size);
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
    const uint64_t seed = a->state ? a->state[0] : a->seed, start = a->start + (a->state ? a->state[1] / 4 : 0), n = a->range;
    const size_t size = ds__rng_size(a->kind);
    uint64_t at = (uint64_t)first * DS__RNG_ITEM, end = ((uint64_t)first + count) * DS__RNG_ITEM, keys[DS__RNG_FEW];
    char *to = (char *)a->out + at * size;
    ds__rng_words x = ds__rng_philox(seed, start, 0);
    if (end > a->count) end = a->count;
    if (!a->low) for (uint64_t i = 0; i < n; i++) keys[i] = ds__rng_key(seed, start, i);
    for (; at < end; at++) {
        uint64_t i = a->before + at, rank = 0;
        if (a->low) rank = ds__rng_shuffled(x, i, n, (uint32_t)a->low);
        else for (uint64_t j = 0; j < n; j++) rank += (keys[j] < keys[i]) | ((keys[j] == keys[i]) & (j < i));
        to = ds__rng_store(to, rank, size);
    }
    return 0;
}
/* <<shared */
#endif
#endif
