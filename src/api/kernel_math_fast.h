/* api/kernel_math_fast.h - approximations in float32.

   On GPUs these are one to four instructions with errors that depend on the GPU (PTX ISA, ex2,
   lg2, sin, cos, rsqrt and rcp with .approx). On the CPU they are the accurate functions, or
   cheaper ones. Neither accuracy nor special values nor equal bits are promised.

   Invariants: none of these functions is called by another room.
   Locks: none.
   Threads: any. */
#ifndef DS__API_KERNEL_MATH_FAST_H
#define DS__API_KERNEL_MATH_FAST_H

#include "kernel_math.h"
#include "kernel_math_exp.h"
#include "kernel_math_trig.h"

#if DS__HAS_APPROX
/* 1.44269502 is log2 e, 0.693147182 is ln 2 */
#define DS__FAST_EXP(x) DS__EX2_APPROX((x)*1.44269502f)
#define DS__FAST_LOG(x) (DS__LG2_APPROX(x) * 0.693147182f)
#define DS__FAST_TANH(x) (1.0f - 2.0f * DS__RCP_APPROX(1.0f + DS__EX2_APPROX((x)*2.88539004f)))
#define DS__FAST_POW(x, y) DS__EX2_APPROX((y)*DS__LG2_APPROX(x))
#define DS__FAST_SIN(x) DS__SIN_APPROX(x)
#define DS__FAST_COS(x) DS__COS_APPROX(x)
#define DS__FAST_RSQRT(x) DS__RSQRT_APPROX(x)
#define DS__FAST_RCP(x) DS__RCP_APPROX(x)
#else
#define DS__FAST_EXP(x) ds_expf(x)
#define DS__FAST_LOG(x) ds_logf(x)
#define DS__FAST_TANH(x) ds_tanhf(x)
#define DS__FAST_POW(x, y) ds_expf((y)*ds_logf(x))
#define DS__FAST_SIN(x) dsk__math_near_sine(x)
#define DS__FAST_COS(x) dsk__math_near_cosine(x)
#define DS__FAST_RSQRT(x) (1.0f / DS__SQRTF(x))
#define DS__FAST_RCP(x) (1.0f / (x))

/* As ds_sinf and ds_cosf for |x| <= DS__MATH_NEAR. */
DS_KERNEL_FN float dsk__math_near_sine(float x) {
    return dsk__math_angle_sine(dsk__math_near_reduce(ds_absf(x)), dsk__math_float_to_bits(x));
}

DS_KERNEL_FN float dsk__math_near_cosine(float x) {
    dsk__math_angle w = dsk__math_near_reduce(ds_absf(x));
    w.n += 1u;
    return dsk__math_angle_sine(w, 0u);
}
#endif

/** Returns about e^x. */
DS_KERNEL_FN float ds_expf_fast(float x) {
    return DS__FAST_EXP(x);
}

/** Returns about the natural logarithm of x. */
DS_KERNEL_FN float ds_logf_fast(float x) {
    return DS__FAST_LOG(x);
}

/** Returns about the hyperbolic tangent of x; its absolute error is small, not its relative
    error. */
DS_KERNEL_FN float ds_tanhf_fast(float x) {
    return DS__FAST_TANH(x);
}

/** Returns about x^y, for x >= 0. */
DS_KERNEL_FN float ds_powf_fast(float x, float y) {
    return DS__FAST_POW(x, y);
}

/** Returns about the sine of x, in radians. On the CPU the function equals ds_sinf for |x| <= 3216
    and is vectorized; for larger arguments the result has no meaning. */
DS_KERNEL_FN float ds_sinf_fast(float x) {
    return DS__FAST_SIN(x);
}

/** Returns about the cosine of x, in radians. On the CPU the function equals ds_cosf for
    |x| <= 3216 and is vectorized; for larger arguments the result has no meaning. */
DS_KERNEL_FN float ds_cosf_fast(float x) {
    return DS__FAST_COS(x);
}

/** Returns about 1 / sqrt(x). */
DS_KERNEL_FN float ds_rsqrtf_fast(float x) {
    return DS__FAST_RSQRT(x);
}

/** Returns about 1 / x. */
DS_KERNEL_FN float ds_rcpf_fast(float x) {
    return DS__FAST_RCP(x);
}

#endif
