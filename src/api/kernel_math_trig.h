/* api/kernel_math_trig.h - sine and cosine in float32.

   Policy:
   1. |x| = n pi/2 + r with an integer n, |r| <= pi/4. The sine of r is r + r^3 s(r^2), its cosine
      1 - r^2 / 2 + r^4 c(r^2). s and c have degree 2; their errors are 2^-27.9 and 2^-33 of the
      result. Which one is taken, and its sign, follow from n modulo 4.
   2. Up to DS__MATH_NEAR, n has 11 bits. pi/2 is a sum of three parts. The first two have 12 and
      13 bits, so their products with n are exact.
   3. Beyond, |x| = m 2^(8 j - 16) with an integer m < 2^31. Only the part of |x| 2/pi modulo 4
      matters, so the bits of 2/pi whose products with |x| are multiples of 4 are left out. m times
      the next 96 bits gives |x| / (2 pi) modulo 1 with 64 bits (Payne, Hanek: Radian reduction
      for trigonometric functions, 1983). No float but 0 is nearer to a multiple
      of pi/2 than 2^-29.3.

   Invariants: as in kernel_math.h. Both reductions give their results without a branch. Where
   vector code can load from a table by index (AVX2) both are computed and one is selected, so that
   loops are vectorized; elsewhere large arguments take a branch. The bits are the same.
   Locks: none.
   Threads: any. */
#ifndef DS__API_KERNEL_MATH_TRIG_H
#define DS__API_KERNEL_MATH_TRIG_H

#include "kernel_math.h"

/* n of it is 2047. */
#define DS__MATH_NEAR 3216.0f

/* Element i: 32 bits of 2/pi / 2^18 from bit 8 i on. */
DS_KERNEL_CONST uint32_t dsk__math_two_over_pi[24] = {
    0x000028beu, 0x0028be60u, 0x28be60dbu, 0xbe60db93u, 0x60db9391u, 0xdb939105u,
    0x9391054au, 0x91054a7fu, 0x054a7f09u, 0x4a7f09d5u, 0x7f09d5f4u, 0x09d5f47du,
    0xd5f47d4du, 0xf47d4d37u, 0x7d4d3770u, 0x4d377036u, 0x377036d8u, 0x7036d8a5u,
    0x36d8a566u, 0xd8a5664fu, 0xa5664f10u, 0x664f10e4u, 0x4f10e410u, 0x10e4107fu
};

/* n pi/2 + r; n modulo 4 is in the lower bits of n. */
typedef struct dsk__math_angle {
    float r;
    uint32_t n;
} dsk__math_angle;

/* 0 <= a <= DS__MATH_NEAR */
DS_KERNEL_FN dsk__math_angle dsk__math_near_reduce(float a) {
    dsk__math_angle w;
    float t = a * 0.636619747f + 12582912.0f; /* as in kernel_math_exp.h */
    float n = t - 12582912.0f;
    w.r = ((a - n * 1.57080078f) - n * -4.45451587e-6f) - n * 6.07710063e-11f;
    w.n = dsk__math_float_to_bits(t);
    return w;
}

/* a >= 2^9; for other arguments the result has no meaning, but the table is read inside of its
   bounds. */
DS_KERNEL_FN dsk__math_angle dsk__math_far_reduce(float a) {
    dsk__math_angle w;
    uint32_t bits = dsk__math_float_to_bits(a);
    uint32_t k = bits >> 23;
    k = k > 134u ? k - 134u : 0u;
    uint32_t j = k >> 3;
    /* The mantissa times 2^(k mod 8): a variable shift would not be vectorized without AVX2. */
    uint32_t scaled = (bits & 0x7fffffu) | ((150u + (k & 7u)) << 23);
    uint32_t m = (uint32_t)(int32_t)dsk__math_float_from_bits(scaled);

    uint64_t turns = (uint64_t)(m * dsk__math_two_over_pi[j]) << 32;
    turns += (uint64_t)m * dsk__math_two_over_pi[j + 4u];
    turns += (uint64_t)m * dsk__math_two_over_pi[j + 8u] >> 32;
    turns += (uint64_t)1 << 61;
    uint32_t high = (uint32_t)(turns >> 32);
    uint32_t low = (uint32_t)turns;
    w.n = high >> 30;

    /* The fraction in parts that are exact as floats; so is a sum of them that is small. */
    float r = (float)((int32_t)(high & 0x3fffff00u) - 0x20000000);
    r = r + (float)(int32_t)((high & 0xffu) << 16 | low >> 16) * 1.52587891e-5f;
    r = r + (float)(int32_t)(low & 0xffffu) * 2.32830644e-10f;
    w.r = r * 1.46291812e-9f; /* pi/2 2^-30 */
    return w;
}

DS_KERNEL_FN dsk__math_angle dsk__math_angle_reduce(float a) {
#if defined(__AVX2__) && !DS__HAS_APPROX
    dsk__math_angle w = dsk__math_near_reduce(a);
    dsk__math_angle reduced = dsk__math_far_reduce(a);
    w.r = dsk__math_float_select(a > DS__MATH_NEAR, reduced.r, w.r);
    w.n = dsk__math_word_select(a > DS__MATH_NEAR, reduced.n, w.n);
    return w;
#else
    if (a > DS__MATH_NEAR)
        return dsk__math_far_reduce(a);
    return dsk__math_near_reduce(a);
#endif
}

/* Returns the sine of n pi/2 + r, for |r| <= pi/4; the sign is that of bit 31 of `sign` too. */
DS_KERNEL_FN float dsk__math_angle_sine(dsk__math_angle w, uint32_t sign) {
    float z = w.r * w.r;
    float s = -0.000195178975f;
    s = s * z + 0.00833218731f;
    s = s * z - 0.166666552f;
    s = w.r + w.r * z * s;

    float c = 2.44323292e-5f;
    c = c * z - 0.00138873095f;
    c = c * z + 0.0416666456f;
    c = (1.0f - 0.5f * z) + z * z * c;

    uint32_t y = dsk__math_float_to_bits(dsk__math_float_select((int)(w.n & 1u), c, s));
    return dsk__math_float_from_bits(y ^ ((w.n << 30 ^ sign) & 0x80000000u));
}

/** Returns the sine of x, in radians; NaN if x is infinite. The error is at most 2.75 ulp, also
    for large x.
    With AVX2 a loop of the function is vectorized. Else, use ds_sinf_fast for vector code. */
DS_KERNEL_FN float ds_sinf(float x) {
    float a = ds_absf(x);
    float y = dsk__math_angle_sine(dsk__math_angle_reduce(a), dsk__math_float_to_bits(x));
    return dsk__math_float_select(a < dsk__math_infinity(), y, dsk__math_nan());
}

/** Returns the cosine of x, in radians; NaN if x is infinite. The error is at most 2.72 ulp, also
    for large x.
    With AVX2 a loop of the function is vectorized. Else, use ds_cosf_fast for vector code. */
DS_KERNEL_FN float ds_cosf(float x) {
    float a = ds_absf(x);
    dsk__math_angle w = dsk__math_angle_reduce(a);
    w.n += 1u; /* cos x = sin(x + pi/2) */
    float y = dsk__math_angle_sine(w, 0u);
    return dsk__math_float_select(a < dsk__math_infinity(), y, dsk__math_nan());
}

#endif
