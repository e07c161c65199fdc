/* api/kernel_math_exp.h - e^x, natural logarithm and hyperbolic tangent in float32.

   Policy:
   1. e^x = 2^n (1 + p) with n = x / ln 2 rounded to an integer, r = x - n ln 2, and
      p = r + r^2 q(r). q has degree 4; its error is 2^-28.2 of the result for |r| <= ln 2 / 2.
   2. ln 2 is a sum of two parts. The first one has 16 bits, so its product with n is exact.
   3. ln x = n ln 2 + f - f^2 / 2 + f^3 q(f) for x = 2^n (1 + f), sqrt(1/2) <= 1 + f < sqrt(2).
      q has degree 7; its error is 2^-27.3 of the result.
   4. tanh x = m / (m + 2) with m = e^(2x) - 1 = 2^n p + (2^n - 1), for |x|.

   Invariants: as in kernel_math.h. n is found by adding 1.5 2^23: the sum has the unit 1, so its
   bits less the bits of 1.5 2^23 are n.
   Locks: none.
   Threads: any. */
#ifndef DS__API_KERNEL_MATH_EXP_H
#define DS__API_KERNEL_MATH_EXP_H

#include "kernel_math.h"

/* e^x = 2^n (1 + p); a negative n is n + 2^32. */
typedef struct dsk__math_power {
    float p;
    uint32_t n;
} dsk__math_power;

/* x is a number of at most 2^21. */
DS_KERNEL_FN dsk__math_power dsk__math_exp_reduce(float x) {
    dsk__math_power e;
    float t = x * 1.44269502f + 12582912.0f;
    float n = t - 12582912.0f;
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;

    float q = 0.00138207572f;
    q = q * r + 0.00836867839f;
    q = q * r + 0.0416682661f;
    q = q * r + 0.166665211f;
    q = q * r + 0.49999994f;
    e.p = r + r * r * q;
    e.n = dsk__math_float_to_bits(t) - 0x4b400000u;
    return e;
}

/** Returns e^x; the error is at most 0.99 ulp. */
DS_KERNEL_FN float ds_expf(float x) {
    float a = dsk__math_float_select(x < 89.0f, x, 89.0f);
    a = dsk__math_float_select(a > -104.0f, a, -104.0f);
    dsk__math_power e = dsk__math_exp_reduce(a);

    /* 2^n as a product, since neither 2^128 nor 2^-150 is a normal number. */
    uint32_t n = e.n + 254u;
    uint32_t half = n >> 1;
    float y = (1.0f + e.p) * dsk__math_float_from_bits(half << 23);
    y = y * dsk__math_float_from_bits((n - half) << 23);
    return dsk__math_float_select(x != x, dsk__math_nan(), y);
}

/** Returns the hyperbolic tangent of x; the error is at most 2.67 ulp. */
DS_KERNEL_FN float ds_tanhf(float x) {
    float a = ds_absf(x);
    a = dsk__math_float_select(a < 10.0f, a, 10.0f);
    dsk__math_power e = dsk__math_exp_reduce(a + a);
    float s = dsk__math_float_from_bits((e.n + 127u) << 23);
    float m = s * e.p + (s - 1.0f);
    uint32_t y = dsk__math_float_to_bits(m / (m + 2.0f));
    y |= dsk__math_float_to_bits(x) & 0x80000000u;
    return dsk__math_float_select(x != x, dsk__math_nan(), dsk__math_float_from_bits(y));
}

/** Returns the natural logarithm of x; -infinity if x is 0, NaN if x < 0. The error is at most
    0.85 ulp. */
DS_KERNEL_FN float ds_logf(float x) {
    int subnormal = x < 1.17549435e-38f;
    uint32_t bits = dsk__math_float_to_bits(dsk__math_float_select(subnormal, x * 8388608.0f, x));
    bits += 0x3f800000u - 0x3f3504f3u; /* 1 and the square root of 1/2 */
    float n = (float)((int32_t)(bits >> 23) - 127) - dsk__math_float_select(subnormal, 23.0f, 0.0f);
    float f = dsk__math_float_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;

    float q = -0.0763724893f;
    q = q * f + 0.127640843f;
    q = q * f - 0.13160193f;
    q = q * f + 0.142013431f;
    q = q * f - 0.166233197f;
    q = q * f + 0.20001249f;
    q = q * f - 0.250008225f;
    q = q * f + 0.333333313f;
    float z = f * f;
    float y = q * f * z + n * 1.42860677e-6f;
    y = (y - 0.5f * z) + f;
    y = y + n * 0.693145752f;

    y = dsk__math_float_select(x == 0.0f, -dsk__math_infinity(), y);
    y = dsk__math_float_select(x == dsk__math_infinity(), x, y);
    return dsk__math_float_select(x >= 0.0f, y, dsk__math_nan());
}

#endif
