/* api/kernel_math.h - arithmetic of kernels that has the same bits on both forms.

   Defines square root, fused multiply-add, minimum, maximum and absolute value, and the bit
   operations that the other math rooms use: kernel_math_exp.h (e^x, ln, tanh), kernel_math_trig.h
   (sine, cosine), kernel_math_pow.h (powers), kernel_math_wide.h (float64), kernel_math_fast.h
   (approximations).

   Accuracy of the float32 functions. Errors are in units in the last place (ulp) of the exact
   result, and are the largest of all 2^32 arguments; for ds_powf of 1.2e9 random pairs and pairs
   at edges. With contraction: compiled for the CPU outside of a kernel with FMA instructions.

                max. error   with contraction
     ds_expf    0.99         1.02
     ds_logf    0.85         0.86
     ds_tanhf   2.67         2.61
     ds_sinf    2.75         2.75
     ds_cosf    2.72         2.74
     ds_powf    0.51         0.51

   The exact results were libm's of double (glibc 2.36).

   Special values are those of C99, Annex F. A result that is NaN has the bits 0x7fc00000.

   Policy:
   1. A float32 function uses + - * / of float, integers, comparisons and copies of bits.
      ds_powf also uses double. IEEE 754 defines each of these results. So all compilers and
      processors give the same bits, unless they contract a product and a sum.
   2. A choice between two floating-point values is made with a mask of integers
      (dsk__math_float_select). With ?:, gcc moves arithmetic into a branch, and does not vectorize
      the loop because that arithmetic may set exception flags.
   3. Polynomials are minimax polynomials of the relative error of the result, computed for these
      rooms. Lawson's algorithm fits all coefficients with 200 bits: least squares whose weights
      are multiplied by the errors until the largest errors are equal. Then the lowest coefficient
      is rounded to float32 and the others are fitted again, until all are rounded.

   Invariants: no function of the C library is called, except by ds_fma (libm, if the processor
   has no FMA instructions) and in kernel_math_wide.h.
   Locks: none.
   Threads: any; all functions depend on their arguments only. */
#ifndef DS__API_KERNEL_MATH_H
#define DS__API_KERNEL_MATH_H

#include "kernel_target.h"

/* bits */

DS_KERNEL_FN uint32_t dsk__math_float_to_bits(float x) {
    union dsk__math_float {
        float f;
        uint32_t u;
    } v;

    v.f = x;
    return v.u;
}

DS_KERNEL_FN float dsk__math_float_from_bits(uint32_t bits) {
    union dsk__math_float {
        float f;
        uint32_t u;
    } v;

    v.u = bits;
    return v.f;
}

DS_KERNEL_FN uint64_t dsk__math_double_to_bits(double x) {
    union dsk__math_double {
        double f;
        uint64_t u;
    } v;

    v.f = x;
    return v.u;
}

DS_KERNEL_FN double dsk__math_double_from_bits(uint64_t bits) {
    union dsk__math_double {
        double f;
        uint64_t u;
    } v;

    v.u = bits;
    return v.f;
}

/* Returns a if the condition is 1, b if it is 0. */
DS_KERNEL_FN uint32_t dsk__math_word_select(int condition, uint32_t a, uint32_t b) {
    uint32_t mask = 0u - (uint32_t)condition;
    return (a & mask) | (b & ~mask);
}

DS_KERNEL_FN float dsk__math_float_select(int condition, float a, float b) {
    return dsk__math_float_from_bits(
        dsk__math_word_select(condition, dsk__math_float_to_bits(a), dsk__math_float_to_bits(b)));
}

DS_KERNEL_FN double dsk__math_double_select(int condition, double a, double b) {
    uint64_t mask = 0u - (uint64_t)condition;
    return dsk__math_double_from_bits((dsk__math_double_to_bits(a) & mask) |
                                      (dsk__math_double_to_bits(b) & ~mask));
}

/* Returns the NaN of all functions. */
DS_KERNEL_FN float dsk__math_nan(void) {
    return dsk__math_float_from_bits(0x7fc00000u);
}

DS_KERNEL_FN float dsk__math_infinity(void) {
    return dsk__math_float_from_bits(0x7f800000u);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/** Returns |x|. */
DS_KERNEL_FN float ds_absf(float x) {
    return dsk__math_float_from_bits(dsk__math_float_to_bits(x) & 0x7fffffffu);
}

/** Returns |x|. */
DS_KERNEL_FN double ds_abs(double x) {
    return dsk__math_double_from_bits(dsk__math_double_to_bits(x) & 0x7fffffffffffffffu);
}

/** Returns the square root of x, correctly rounded; NaN if x < 0. */
DS_KERNEL_FN float ds_sqrtf(float x) {
    return DS__SQRTF(x);
}

/** Returns the square root of x, correctly rounded; NaN if x < 0. */
DS_KERNEL_FN double ds_sqrt(double x) {
    return DS__SQRT(x);
}

/* x86-64 without FMA instructions: the product of two floats is exact as a double. The double sum
   is made odd if it is not exact, so that the second rounding, to float, sees on which side of the
   sum the exact value is (Boldo, Melquiond: Emulation of FMA and correctly rounded sums, 2008). */
DS_KERNEL_FN float dsk__math_fma_by_double(float a, float b, float c) {
    double p = (double)a * (double)b;
    double wide = (double)c;
    double s = p + wide;
    double d = s - p;
    double rest = (p - (s - d)) + (wide - d);

    uint64_t bits = dsk__math_double_to_bits(s);
    uint64_t up = 0u - (uint64_t)((rest > 0.0) == (s > 0.0));
    uint64_t inexact = 0u - (uint64_t)((rest > 0.0) | (rest < 0.0));
    uint64_t even = (bits & 1u) - 1u;
    bits += ((up & 2u) - 1u) & inexact & even;
    return (float)dsk__math_double_from_bits(bits);
}

/** Returns a b + c, rounded once.
    If a program for x86-64 is compiled without FMA instructions (-mfma), a loop takes 1.3 ns per
    item with clang and 2.5 ns with gcc (0.7 ns with -mavx2) on an EPYC of 2.6 GHz, instead of
    0.14 ns. */
DS_KERNEL_FN float ds_fmaf(float a, float b, float c) {
#if defined(__x86_64__) && !defined(__FMA__) && !DS__HAS_APPROX
    return dsk__math_fma_by_double(a, b, c);
#else
    return DS__FMAF(a, b, c);
#endif
}

/** Returns a b + c, rounded once.
    Without FMA instructions (-mfma on x86-64) the function calls fma of libm, so the program must
    be linked with -lm. On an EPYC of 2.6 GHz a call takes 2.7 ns, instead of 0.27 ns per item; on
    processors without these instructions libm computes the result in about 100 ns. */
DS_KERNEL_FN double ds_fma(double a, double b, double c) {
    return DS__FMA(a, b, c);
}

/* Minimum and maximum: a < b ? a : b is b if one of the two is NaN. Equal numbers have equal bits,
   except 0 and -0; both bits ored are -0, anded 0. Builtins and instructions of processors differ
   in these cases. */

/** Returns the smaller of a and b; -0 is smaller than 0. If one of them is NaN, returns the other
    one. */
DS_KERNEL_FN float ds_fminf(float a, float b) {
    float equal =
        dsk__math_float_from_bits(dsk__math_float_to_bits(a) | dsk__math_float_to_bits(b));
    float r = dsk__math_float_select(a < b, a, b);
    r = dsk__math_float_select(a == b, equal, r);
    return dsk__math_float_select(b != b, a, r);
}

/** Returns the larger of a and b; 0 is larger than -0. If one of them is NaN, returns the other
    one. */
DS_KERNEL_FN float ds_fmaxf(float a, float b) {
    float equal =
        dsk__math_float_from_bits(dsk__math_float_to_bits(a) & dsk__math_float_to_bits(b));
    float r = dsk__math_float_select(a > b, a, b);
    r = dsk__math_float_select(a == b, equal, r);
    return dsk__math_float_select(b != b, a, r);
}

/** Returns the smaller of a and b; -0 is smaller than 0. If one of them is NaN, returns the other
    one. */
DS_KERNEL_FN double ds_fmin(double a, double b) {
    double equal =
        dsk__math_double_from_bits(dsk__math_double_to_bits(a) | dsk__math_double_to_bits(b));
    double r = dsk__math_double_select(a < b, a, b);
    r = dsk__math_double_select(a == b, equal, r);
    return dsk__math_double_select(b != b, a, r);
}

/** Returns the larger of a and b; 0 is larger than -0. If one of them is NaN, returns the other
    one. */
DS_KERNEL_FN double ds_fmax(double a, double b) {
    double equal =
        dsk__math_double_from_bits(dsk__math_double_to_bits(a) & dsk__math_double_to_bits(b));
    double r = dsk__math_double_select(a > b, a, b);
    r = dsk__math_double_select(a == b, equal, r);
    return dsk__math_double_select(b != b, a, r);
}

#endif
