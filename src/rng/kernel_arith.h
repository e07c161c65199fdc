/* rng/kernel_arith.h - arithmetic of random numbers, C and device code.

   Computes random numbers from counter and seed: Philox blocks, uniform, normal and exponential
   numbers, integers, and places in a permutation. The CPU forms (rng/kernel_cpu.h) and the GPU
   kernels (kernels/rng.cu) compile the same text. ds__rng_args describes one fill.

   Policy:
   1. Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3;
      SC11) makes a block of four words of a counter of 128 bits and a key of 64 bits, the seed.
      The mapping says which counters and words an element gets.
   2. In torch's mapping there are `stride` threads t, each with the counters (k, t), k = 0, 1,
      ... Word or pair of words i of a thread's counter k is element t + (U k + i) stride. U is
      the number of elements of a block: 4, or 2 for 64-bit numbers. Two normal numbers share two
      words, or four.
   3. The mapping by element is the same with one thread. Elements are in consecutive blocks, so
      an element's number depends only on the seed, the offset and its index. The functions
      ds__rng_*_of make U numbers of a block's words; the kernels write them to their places.

   Invariants: C and device code give the same bits. A product is rounded before it is added
   (DS__ROUNDED), and no function of the C library is called. kernels/rng.cu replaces the
   macros and the functions between `#ifndef DS__RNG_ROLLED` and its #endif.
   Locks: none.
   Threads: any; all functions depend on their arguments only. */
#ifndef DS__RNG_KERNEL_ARITH_H
#define DS__RNG_KERNEL_ARITH_H

#include "../os/device_code.h"

typedef struct ds__rng_words {
    uint32_t w[4];
} ds__rng_words;

typedef struct ds__rng_floats {
    float v[4];
} ds__rng_floats;

typedef struct ds__rng_doubles {
    double v[2];
} ds__rng_doubles;

/* what is written */
enum {
    DS__RNG_8,
    DS__RNG_16,
    DS__RNG_32,
    DS__RNG_64,
    DS__RNG_F16,
    DS__RNG_BF16,
    DS__RNG_F32,
    DS__RNG_F64
};

/* The arguments of a fill of `rows` times `stride` blocks. Block (k, t) has the counter (start + k,
   t) and the elements t + (U k + i) stride - before for i < U, if they are less than count. By
   element: stride is 1. */
typedef struct ds__rng_args {
    void *out;
    /* In a graph: seed and offset, in words, at the time of the launch; the offset is added to
       `start`. Else NULL. */
    const uint64_t *state;
    uint64_t seed;
    uint64_t start;
    uint64_t before;
    uint64_t count;
    uint64_t rows;
    uint32_t stride;
    uint32_t kind;      /* DS__RNG_8 ... */
    uint32_t from_bits; /* from and to as they are written */
    uint32_t to_bits;
    float from32; /* from, to; mean, deviation; rate */
    float to32;
    double from; /* the same */
    double to;
    /* Integers: the smallest one and their number, 0 for 2^64. Bernoulli: the bits of a 1, and how
       many of the 2^32 words give it. Permutations: the bits of n - 1, or 0 if n is small, and
       n. */
    uint64_t low;
    uint64_t range;
    uint32_t what; /* DS__RNG_UNIFORM ... */
    float scale32; /* uniform: to - from, in torch's mapping rounded to the type */
} ds__rng_args;

enum {
    DS__RNG_UNIFORM,
    DS__RNG_NORMAL,
    DS__RNG_EXPONENTIAL,
    DS__RNG_INTEGERS,
    DS__RNG_WIDE_INTEGERS,
    DS__RNG_BERNOULLI,
    DS__RNG_PERMUTATION
};

#ifndef DS__RNG_ROLLED
#define DS__RNG_ROLLED

/* a b + c, rounded once. The product is exact in f64; the sum is made odd where it is not, so
   that rounding it again changes nothing (Boldo, Melquiond: Emulation of FMA and correctly
   rounded sums, 2008). */
static inline float ds__rng_fma32(float a, float b, float c) {
    union {
        double f;
        uint64_t u;
    } s;

    double p = (double)a * b;
    DS__ROUNDED(p);
    s.f = p + c;
    DS__ROUNDED(s.f);
    double d = s.f - p;
    DS__ROUNDED(d);
    double rest = (p - (s.f - d)) + (c - d);
    if (rest != 0 && !(s.u & 1))
        s.u += (uint64_t)((rest > 0) == (s.f > 0) ? 1 : -1);
    return (float)s.f;
}

/* To f16, to nearest even; not of NaN. What is smaller than the smallest normal number of f16 is
   added to one whose last place is that of f16's. */
static inline uint32_t ds__rng_to_f16(float x) {
    union {
        float f;
        uint32_t u;
    } v, half;

    v.f = x;
    uint32_t sign = v.u >> 16 & 0x8000u;
    uint32_t m = v.u & 0x7fffffffu;
    half.f = (x < 0 ? -x : x) + 0.5f;
    if (m >= 0x477ff000u)
        return sign | 0x7c00u;
    if (m < 0x38800000u)
        return sign | (half.u & 0xffffu);
    return sign | ((m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13);
}
#endif

DS__DEVICE float ds__rng_mul(float a, float b) {
    float p = a * b;
    DS__ROUNDED(p);
    return p;
}

DS__DEVICE double ds__rng_mul64(double a, double b) {
    double p = a * b;
    DS__ROUNDED(p);
    return p;
}

DS__DEVICE uint32_t ds__rng_bits(float x) {
    union {
        float f;
        uint32_t u;
    } v;

    v.f = x;
    return v.u;
}

DS__DEVICE float ds__rng_float(uint32_t x) {
    union {
        float f;
        uint32_t u;
    } v;

    v.u = x;
    return v.f;
}

DS__DEVICE uint64_t ds__rng_bits64(double x) {
    union {
        double f;
        uint64_t u;
    } v;

    v.f = x;
    return v.u;
}

DS__DEVICE double ds__rng_double(uint64_t x) {
    union {
        double f;
        uint64_t u;
    } v;

    v.u = x;
    return v.f;
}

/* Returns the block of a counter: Philox4x32-10. */
DS__DEVICE ds__rng_words ds__rng_philox(uint64_t seed, uint64_t counter, uint64_t thread) {
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    ds__rng_words x;
    x.w[0] = (uint32_t)counter;
    x.w[1] = (uint32_t)(counter >> 32);
    x.w[2] = (uint32_t)thread;
    x.w[3] = (uint32_t)(thread >> 32);
    DS__RNG_ROLLED for (int i = 0; i < 10; i++) {
        uint64_t p = (uint64_t)0xD2511F53u * x.w[0];
        uint64_t q = (uint64_t)0xCD9E8D57u * x.w[2];
        x.w[0] = (uint32_t)(q >> 32) ^ x.w[1] ^ k0;
        x.w[1] = (uint32_t)q;
        x.w[2] = (uint32_t)(p >> 32) ^ x.w[3] ^ k1;
        x.w[3] = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}

/* To nearest even; not of NaN. */
DS__DEVICE uint32_t ds__rng_to_bf16(float x) {
    uint32_t u = ds__rng_bits(x);
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

/* Rounds to the type; returns its bits. */
DS__DEVICE uint32_t ds__rng_narrow(float x, uint32_t kind) {
    if (kind == DS__RNG_F32)
        return ds__rng_bits(x);
    return kind == DS__RNG_F16 ? ds__rng_to_f16(x) : ds__rng_to_bf16(x);
}

/* ---- numbers in [from, to), from in (0, 1] turned over in torch's mapping ---- */

/* In (0, 1], as torch and cuRAND have it. */
DS__DEVICE float ds__rng_above_0(uint32_t w) {
    return (float)w * 0x1p-32f + 0x1p-33f;
}

DS__DEVICE double ds__rng_above_0_64(uint32_t low, uint32_t high) {
    return (double)(low ^ (uint64_t)high << 21) * 0x1p-53 + 0x1p-54;
}

/* Returns a number of [0, 1) that is exact: it has as many bits of the word as the fraction of the
   type. */
DS__DEVICE float ds__rng_below_1(uint32_t w, uint32_t kind) {
    if (kind == DS__RNG_F32)
        return (float)(w >> 8) * 0x1p-24f;
    return kind == DS__RNG_F16 ? (float)(w >> 21) * 0x1p-11f : (float)(w >> 24) * 0x1p-8f;
}

/* An interval [from, to) of numbers of a type, with `to - from` as its scale. to_bits is never
   -0. */
typedef struct ds__rng_interval {
    float from;
    float scale;
    uint32_t from_bits;
    uint32_t to_bits;
    uint32_t kind;
} ds__rng_interval;

/* Returns the bits of a uniform number. A number that is rounded to `to` becomes `from`. If `to` is
   0, so does -0, which is outside of the interval then. */
DS__DEVICE uint32_t ds__rng_uniform_of(uint32_t w, ds__rng_interval x, uint32_t torch) {
    float u;
    if (torch)
        u = ds__rng_fma32(ds__rng_above_0(w), x.scale, x.from);
    else
        u = x.from + ds__rng_mul(ds__rng_below_1(w, x.kind), x.scale);
    uint32_t bits = ds__rng_narrow(u, x.kind);
    uint32_t minus_0 = x.kind == DS__RNG_F32 ? 0x80000000u : 0x8000u;
    return (bits == minus_0 ? 0 : bits) == x.to_bits ? x.from_bits : bits;
}

DS__DEVICE double ds__rng_uniform64_of(uint32_t low, uint32_t high, double from, double to,
                                       uint32_t torch) {
    double u = torch ? ds__rng_above_0_64(low, high)
                     : (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
    u = from + ds__rng_mul64(u, to - from);
    return u >= to ? from : u;
}

/* ---- logarithm, sine and cosine ---- */

/* ln x for normal x in (0, 1]: x = m 2^e, sqrt(1/2) <= m < sqrt(2), and for m the polynomial of
   Cephes' logf. */
DS__DEVICE float ds__rng_log(float x) {
    uint32_t u = ds__rng_bits(x) + (0x3f800000u - 0x3f3504f3u);
    uint32_t s = (u & 0x7fffffu) + 0x3f3504f3u;
    float e = (float)((int32_t)(u >> 23) - 127);
    float f = ds__rng_float(s) - 1.0f;
    float z = ds__rng_mul(f, f);
    float y = 7.0376836292e-2f;
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
DS__DEVICE double ds__rng_log64(double x) {
    uint64_t u = ds__rng_bits64(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    uint64_t s = (u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu;
    double e = (double)((int64_t)(u >> 52) - 1023);
    double f = ds__rng_double(s) - 1.0;
    double t = f / (2.0 + f);
    double z = ds__rng_mul64(t, t);
    double r = 1.479819860511658591e-01;
    double h = 0.5 * ds__rng_mul64(f, f);
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

/* Sine and cosine of (w + 1/2) / 2^32 turns. The polynomials of Cephes' sinf and cosf take the
   distance from the nearest quarter turn, at most an eighth. */
DS__DEVICE void ds__rng_turn(uint32_t w, float *sine, float *cosine) {
    uint32_t at = w + 0x20000000u;
    uint32_t quarter = at >> 30;
    float r =
        ds__rng_mul((float)((int32_t)(at & 0x3fffffffu) - 0x20000000) + 0.5f, 1.46291807927e-9f);
    float z = ds__rng_mul(r, r);
    float s = -1.9515295891e-4f;
    float c = 2.443315711809948e-5f;
    s = ds__rng_mul(s, z) + 8.3321608736e-3f;
    s = ds__rng_mul(s, z) - 1.6666654611e-1f;
    s = ds__rng_mul(ds__rng_mul(s, z), r) + r;
    c = ds__rng_mul(c, z) - 1.388731625493765e-3f;
    c = ds__rng_mul(c, z) + 4.166664568298827e-2f;
    c = ds__rng_mul(ds__rng_mul(c, z), z) - 0.5f * z + 1.0f;
    float swap = quarter & 1 ? s : c;
    s = quarter & 1 ? c : s;
    *sine = quarter & 2 ? -s : s;
    *cosine = (quarter + 1) & 2 ? -swap : swap;
}

/* The same of w + 1/2 of 2^53 parts, with the polynomials of fdlibm's k_sin.c and k_cos.c. */
DS__DEVICE void ds__rng_turn64(uint64_t w, double *sine, double *cosine) {
    uint64_t at = w + ((uint64_t)1 << 50);
    uint32_t quarter = (uint32_t)(at >> 51) & 3;
    double r = ds__rng_mul64(
        (double)((int64_t)(at & (((uint64_t)1 << 51) - 1)) - ((int64_t)1 << 50)) + 0.5,
        6.9757369960172635e-16);
    double z = ds__rng_mul64(r, r);
    double s = 1.58969099521155010221e-10;
    double c = -1.13596475577881948265e-11;
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
    double swap = quarter & 1 ? s : c;
    s = quarter & 1 ? c : s;
    *sine = quarter & 2 ? -s : s;
    *cosine = (quarter + 1) & 2 ? -swap : swap;
}

/* Two normal numbers of two uniform ones (Box, Muller 1958). */
DS__DEVICE void ds__rng_normals(uint32_t a, uint32_t b, float mean, float deviation, float *out) {
    float s = ds__float_sqrt(-2.0f * ds__rng_log(ds__rng_above_0(a)));
    float sine;
    float cosine;
    ds__rng_turn(b, &sine, &cosine);
    out[0] = ds__rng_mul(ds__rng_mul(s, sine), deviation) + mean;
    out[1] = ds__rng_mul(ds__rng_mul(s, cosine), deviation) + mean;
}

DS__DEVICE ds__rng_doubles ds__rng_normals64(ds__rng_words x, double mean, double deviation) {
    ds__rng_doubles d;
    double s = ds__double_sqrt(-2.0 * ds__rng_log64(ds__rng_above_0_64(x.w[0], x.w[1])));
    double sine;
    double cosine;
    ds__rng_turn64(x.w[2] ^ (uint64_t)x.w[3] << 21, &sine, &cosine);
    d.v[0] = ds__rng_mul64(ds__rng_mul64(s, sine), deviation) + mean;
    d.v[1] = ds__rng_mul64(ds__rng_mul64(s, cosine), deviation) + mean;
    return d;
}

/* Returns -ln u / rate. If u is next to 1, half an epsilon replaces -ln u, so 0 does not occur. */
DS__DEVICE float ds__rng_exponential_of(uint32_t w, float rate) {
    float u = ds__rng_above_0(w);
    return (u >= 1.0f - 0x1p-24f ? 0x1p-24f : -ds__rng_log(u)) / rate;
}

DS__DEVICE double ds__rng_exponential64_of(uint32_t low, uint32_t high, double rate) {
    double u = ds__rng_above_0_64(low, high);
    return (u >= 1.0 - 0x1p-53 ? 0x1p-53 : -ds__rng_log64(u)) / rate;
}

/* ---- integers ---- */

/* Returns the high 64 bits of a product. */
DS__DEVICE uint64_t ds__rng_high(uint64_t a, uint64_t b) {
    uint64_t al = (uint32_t)a;
    uint64_t ah = a >> 32;
    uint64_t bl = (uint32_t)b;
    uint64_t bh = b >> 32;
    uint64_t middle = ah * bl + (al * bl >> 32);
    uint64_t other = al * bh + (uint32_t)middle;
    return ah * bh + (middle >> 32) + (other >> 32);
}

/* Integers below `range`; 0 is 2^64. By element: the word scaled from 2^32, or 2^64, to the
   range. */
DS__DEVICE uint64_t ds__rng_below(uint32_t w, uint64_t range, uint32_t torch) {
    return torch && range >> 32 == 0 ? w % (uint32_t)range : (uint32_t)((w * range) >> 32);
}

DS__DEVICE uint64_t ds__rng_below64(uint32_t high, uint32_t low, uint64_t range, uint32_t torch) {
    uint64_t z = (uint64_t)high << 32 | low;
    if (range == 0)
        return z;
    return torch ? z % range : ds__rng_high(z, range);
}

/* ---- permutations ---- */

/* A permutation of few elements: the rank of the key of element i among all keys, of two words
   each. */
enum { DS__RNG_FEW = 256 };

DS__DEVICE uint64_t ds__rng_key(uint64_t seed, uint64_t start, uint64_t i) {
    ds__rng_words x = ds__rng_philox(seed, start + i / 2, 0);
    return i & 1 ? (uint64_t)x.w[2] << 32 | x.w[3] : (uint64_t)x.w[0] << 32 | x.w[1];
}

/* The round function of ds__rng_shuffled. */
DS__DEVICE uint32_t ds__rng_round(uint32_t x, uint32_t key) {
    x = (x ^ key) * 0xD2511F53u;
    x = (x ^ x >> 15) * 0xCD9E8D57u;
    return x ^ x >> 16;
}

/* Returns the place of element i in a permutation of many. A Feistel network with 24 rounds over
   the bits of n - 1 is repeated until it returns a number below n, so each place is computed alone
   (Mitchell, Stokes, Frank, Holmes: Bandwidth-optimal random shuffling for GPUs, 2021; with another
   round function). keys: the words of one block. */
DS__DEVICE uint64_t ds__rng_shuffled(ds__rng_words keys, uint64_t i, uint64_t n, uint32_t bits) {
    uint32_t low = bits / 2;
    /* the network alone makes even permutations only */
    if (i < 2)
        i ^= (keys.w[0] ^ keys.w[1] ^ keys.w[2] ^ keys.w[3]) & 1;
    do {
        uint32_t a = (uint32_t)(i >> low);
        uint32_t b = (uint32_t)i & ((1u << low) - 1);
        uint32_t key = 0;
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

#endif
