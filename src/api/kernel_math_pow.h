/* api/kernel_math_pow.h - powers in float32.

   Policy:
   1. |x|^y = 2^w, w = y log2 |x|, in double. w must be right to 2^-26, and |w| is at most 150, so
      the logarithm needs more bits than a float has.
   2. log2 |x| = n + s q(s^2) for |x| = 2^n m, sqrt(1/2) <= m < sqrt(2), s = (m - 1) / (m + 1). q
      has degree 4; its error is 2^-37.8 of the logarithm.
   3. 2^w = 2^n p(w - n) with n = w rounded to an integer. p has degree 7 and an error of 2^-34.3.

   Invariants: as in kernel_math.h. GPUs for graphics do 1/64 as many operations of double as of
   float.
   Locks: none.
   Threads: any. */
#ifndef DS__API_KERNEL_MATH_POW_H
#define DS__API_KERNEL_MATH_POW_H

#include "kernel_math.h"

/* Of 0, an infinity or NaN the result has no meaning, but is finite. */
DS_KERNEL_FN double dsk__math_pow_log2(float a) {
    uint64_t bits = dsk__math_double_to_bits((double)a);
    bits += 0x3ff0000000000000u - 0x3fe6a09e667f3bcdu; /* 1 and the square root of 1/2 */
    double n = (double)((int32_t)(uint32_t)(bits >> 52) - 1023);
    double m = dsk__math_double_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu);

    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double low = 2.8853900817900788 + z * 0.9617966733379516;
    double high = 0.57708358630489542 + z * 0.41167261900712404;
    double q = low + z * z * (high + z * z * 0.34073220961685891);
    return n + s * q;
}

/* Of |w| > 1022 the result has no meaning. */
DS_KERNEL_FN float dsk__math_pow_exp2(double w) {
    double t = w + 6755399441055744.0; /* 1.5 2^52: the sum has the unit 1 */
    double f = w - (t - 6755399441055744.0);
    double f2 = f * f;
    double p0 = 1.0 + f * 0.69314718070502546;
    double p2 = 0.24022651067509454 + f * 0.055504103647202672;
    double p4 = 0.0096180379769126856 + f * 0.0013333935688645785;
    double p6 = 0.00015466810350792741 + f * 1.5196111856884689e-5;
    double p = (p0 + f2 * p2) + f2 * f2 * (p4 + f2 * p6);
    return (float)(p * dsk__math_double_from_bits((dsk__math_double_to_bits(t) + 1023u) << 52));
}

/** Returns x^y. The result is 1 if x is 1 or y is 0, also for a NaN; NaN if x is negative and
    finite and y is finite and not an integer. The error is at most 0.51 ulp, of 1.2e9 random
    pairs. */
DS_KERNEL_FN float ds_powf(float x, float y) {
    float a = ds_absf(x);
    float b = ds_absf(y);
    double w = (double)y * dsk__math_pow_log2(a);
    float r = dsk__math_pow_exp2(w);

    /* Overflow and underflow, decided in float: gcc makes no SSE2 code of masks of 64 bits. */
    float infinity = dsk__math_infinity();
    float power = (float)w;
    r = dsk__math_float_select(power > 200.0f, infinity, r);
    r = dsk__math_float_select(power < -200.0f, 0.0f, r);

    /* 0 and infinities */
    float edge = dsk__math_float_select((y > 0.0f) == (a > 1.0f), infinity, 0.0f);
    r = dsk__math_float_select((a == 0.0f) | (a == infinity) | (b == infinity), edge, r);

    /* negative x: floats from 2^24 on are even integers */
    int32_t i = (int32_t)dsk__math_float_select(b < 16777216.0f, b, 16777216.0f);
    int whole = ((float)i == b) | (b >= 16777216.0f);
    uint32_t sign = (uint32_t)(whole & i) << 31 & dsk__math_float_to_bits(x);
    r = dsk__math_float_from_bits(dsk__math_float_to_bits(r) | sign);
    int bad = (x < 0.0f) & (a < infinity) & !whole;

    bad = bad | (x != x) | (y != y);
    int one = (x == 1.0f) | (y == 0.0f) | ((x == -1.0f) & (b == infinity));
    r = dsk__math_float_select(bad, dsk__math_nan(), r);
    return dsk__math_float_select(one, 1.0f, r);
}

#endif
