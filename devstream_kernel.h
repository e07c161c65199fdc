/* Generated from src/devstream_kernel.h by `make headers`. Edit the files in src/, not this one. */
/* devstream_kernel.h - kernels that are written once for both drivers.

   A kernel is in a file of its own, NAME.kernels.h, which the program includes:

       #include "devstream_kernel.h"
       #if __has_include("add.ptx.h")
       #include "add.ptx.h"
       #endif
       DS_KERNEL_1D(add, i, n, DS_READ(float, a, n), DS_READ(float, b, n), DS_WRITE(float, c, n)) {
           c[i] = a[i] + b[i];
       }

   The CPU driver runs it as it is. For GPUs, `devstream-kernels add.kernels.h` compiles the same
   file to PTX with clang or nvcc and writes add.ptx.h. The program launches it by DS_LAUNCH(add,
   stream, n, a, b, c).

   One file of the program must #define DEVSTREAM_IMPLEMENTATION and include this header; others
   include it without the define. Put devstream.h beside it.

   Contents: qualifiers; elementwise kernels; block kernels; arithmetic; implementation.

   Rules:
   - A kernel file is written in the common subset of C11 and C++11, and uses only its parameters,
     constants, DS_KERNEL_FN functions and the arithmetic of this header.
   - Integer arithmetic, + - * /, comparisons, and the functions without _fast give the same bits in
     all forms. Contraction is off in kernel files; -ffast-math is refused.
   - Items, blocks, and the threads between two barriers run in any order and at the same time. */
#ifndef DEVSTREAM_KERNEL_DEVICE
#include "devstream.h"
#endif

#ifndef DEVSTREAM_KERNEL_H_INCLUDED
#define DEVSTREAM_KERNEL_H_INCLUDED

#if DS__MICROSOFT
#error "devstream_kernel.h needs gcc or clang"
#endif

#if defined(DEVSTREAM_KERNEL_DEVICE) && defined(__clang__)
/* device code, clang without CUDA's headers */
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __SIZE_TYPE__ size_t;
#define DS__GLOBAL extern "C" __attribute__((global)) void
#define DS__DEVICE_FN static inline __attribute__((device, always_inline))
#define DS__CONSTANT_ONLY __attribute__((constant))
#define DS__SHARED_ONLY static __attribute__((shared))
#define DS__TID ((unsigned)__nvvm_read_ptx_sreg_tid_x())
#define DS__CTAID ((unsigned)__nvvm_read_ptx_sreg_ctaid_x())
#define DS__NTID ((unsigned)__nvvm_read_ptx_sreg_ntid_x())
#define DS__BARRIER() dsk__barrier()
#define DS__TRAP() __builtin_trap()
#define DS__SQRTF(x) __nvvm_sqrt_rn_f(x)
#define DS__SQRT(x) __nvvm_sqrt_rn_d(x)
#define DS__FMAF(a, b, c) __nvvm_fma_rn_f(a, b, c)
#define DS__FMA(a, b, c) __nvvm_fma_rn_d(a, b, c)
#define DS__EX2_APPROX(x) __nvvm_ex2_approx_f(x)
#define DS__LG2_APPROX(x) __nvvm_lg2_approx_f(x)
#define DS__SIN_APPROX(x) __nvvm_sin_approx_f(x)
#define DS__COS_APPROX(x) __nvvm_cos_approx_f(x)
#define DS__RSQRT_APPROX(x) __nvvm_rsqrt_approx_f(x)
#define DS__RCP_APPROX(x) dsk__rcp_approx(x)

static inline __attribute__((device, always_inline)) void dsk__barrier(void) {
    /* not __syncthreads(): clang 14 moves loads of shared variables across it */
    __asm__ volatile("bar.sync 0;" ::: "memory");
}

/* clang 14 has no builtin for it. */
static inline __attribute__((device, always_inline)) float dsk__rcp_approx(float x) {
    float r;
    __asm__("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

#define DS__HAS_APPROX 1

#elif defined(DEVSTREAM_KERNEL_DEVICE)
/* device code, nvcc */
#include <stddef.h>
#include <stdint.h>
#define DS__GLOBAL extern "C" __global__ void
#define DS__DEVICE_FN static __device__ __forceinline__
#define DS__CONSTANT_ONLY __constant__
#define DS__SHARED_ONLY __shared__
#define DS__TID (threadIdx.x)
#define DS__CTAID (blockIdx.x)
#define DS__NTID (blockDim.x)
#define DS__BARRIER() __syncthreads()
#define DS__TRAP() __trap()
#define DS__SQRTF(x) __fsqrt_rn(x)
#define DS__SQRT(x) __dsqrt_rn(x)
#define DS__FMAF(a, b, c) __fmaf_rn(a, b, c)
#define DS__FMA(a, b, c) __fma_rn(a, b, c)
#define DS__EX2_APPROX(x) exp2f(x)
#define DS__LG2_APPROX(x) __log2f(x)
#define DS__SIN_APPROX(x) __sinf(x)
#define DS__COS_APPROX(x) __cosf(x)
#define DS__RSQRT_APPROX(x) rsqrtf(x)
#define DS__RCP_APPROX(x) __frcp_rn(x)
#define DS__HAS_APPROX 1

#else
/* the CPU */
#include <stddef.h>
#include <stdint.h>
#define DS__DEVICE_FN static inline __attribute__((always_inline))
#define DS__CONSTANT_ONLY
/* Unless the program is compiled with -fno-math-errno, gcc sets errno for negative arguments of the
   builtin, and therefore generates no vector code. clang vectorizes the instruction below, which
   its newest versions call by another name. emmintrin.h would show macros of the C library. */
#if defined(__clang__) && __clang_major__ >= 19 && !defined(__NO_MATH_ERRNO__)
#define DS__SQRTF(x) __builtin_elementwise_sqrt(x)
#define DS__SQRT(x) __builtin_elementwise_sqrt(x)
#elif defined(__NO_MATH_ERRNO__) || !defined(__x86_64__)
#define DS__SQRTF(x) __builtin_sqrtf(x)
#define DS__SQRT(x) __builtin_sqrt(x)
#else
typedef float ds__float4 __attribute__((vector_size(16)));
typedef double ds__double2 __attribute__((vector_size(16)));

DS__DEVICE_FN float ds__sqrt_float(float x) {
    ds__float4 v = { x, 0.0f, 0.0f, 0.0f };
    v = __builtin_ia32_sqrtss(v);
    return v[0];
}

DS__DEVICE_FN double ds__sqrt_double(double x) {
    ds__double2 v = { x, 0.0 };
    v = __builtin_ia32_sqrtsd(v);
    return v[0];
}

#define DS__SQRTF(x) ds__sqrt_float(x)
#define DS__SQRT(x) ds__sqrt_double(x)
#endif
#define DS__FMAF(a, b, c) __builtin_fmaf(a, b, c)
#define DS__FMA(a, b, c) __builtin_fma(a, b, c)
#define DS__HAS_APPROX 0
#endif

/* The options of the function that runs a kernel's items or blocks. gcc contracts and vectorizes
   by the options of the function into which the code is inlined; clang applies the pragma at each
   expression. With unroll-and-jam, which -O3 turns on, gcc merges several turns of a loop around a
   thread loop. The merged thread loop can have branches, and gcc then generates no vector code for
   it. */
#if defined(__clang__)
#define DS__KERNEL_EXACT
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) && !defined(DEVSTREAM_KERNEL_DEVICE)
#define DS__KERNEL_EXACT \
    __attribute__((optimize("O3", "fp-contract=off", "no-loop-unroll-and-jam")))
#else
#define DS__KERNEL_EXACT
#endif

/* DS__INDEPENDENT begins a loop with independent iterations, like the items on a GPU. If clang does
   not vectorize the loop, it warns, although the program is correct. clang looks for the pragma at
   the place of the kernel, so the warning is disabled for the rest of the file. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#define DS__INDEPENDENT(...) _Pragma("clang loop vectorize(assume_safety)") for (__VA_ARGS__)
#else
#define DS__INDEPENDENT(...) _Pragma("GCC ivdep") for (__VA_ARGS__)
#endif

/** Unrolls the following loop. Its number of iterations must be a constant of at most 16. */
#if defined(__clang__) || defined(DEVSTREAM_KERNEL_DEVICE)
#define DS_UNROLL _Pragma("unroll")
#else
#define DS_UNROLL _Pragma("GCC unroll 16")
#endif

#ifdef __cplusplus
#define DS__STATIC_ASSERT static_assert
#else
#define DS__STATIC_ASSERT _Static_assert
#endif

/* In each kernel: refuses options that change the bits of its results. */
#ifdef __FAST_MATH__
#define DS__KERNEL_OPTIONS(name)                                                \
    DS__STATIC_ASSERT(0, #name ": kernels have the same bits on both drivers: " \
                               "compile them without -ffast-math");
#else
#define DS__KERNEL_OPTIONS(name)
#endif

/** Qualifies a function that kernels call in both forms: `DS_KERNEL_FN float half(float x)
   {...}`. */
#define DS_KERNEL_FN DS__DEVICE_FN
/** Qualifies a table of constants that kernels read in both forms. */
#define DS_KERNEL_CONST static DS__CONSTANT_ONLY const

/* The exponential, trigonometric and hyperbolic functions of float64: DS__WIDE(exp). clang has none
   for GPUs unless libdevice is linked (kernel_math_wide.h). */
#define DS__HAS_WIDE 1
#if !defined(DEVSTREAM_KERNEL_DEVICE)
#define DS__WIDE(name) __builtin_##name
#elif !defined(__clang__)
#define DS__WIDE(name) name
#elif defined(DEVSTREAM_KERNEL_LIBDEVICE)
#define DS__WIDE(name) __nv_##name
#else
#undef DS__HAS_WIDE
#define DS__HAS_WIDE 0
#endif

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

#if DS__HAS_WIDE

#if defined(__clang__) && DS__HAS_APPROX
extern "C" {
__attribute__((device)) double __nv_exp(double);
__attribute__((device)) double __nv_log(double);
__attribute__((device)) double __nv_sin(double);
__attribute__((device)) double __nv_cos(double);
__attribute__((device)) double __nv_tanh(double);
__attribute__((device)) double __nv_pow(double, double);
}
#endif

/** Returns e^x. The error is at most 1 ulp with glibc, 1 ulp on GPUs. */
DS_KERNEL_FN double ds_exp(double x) {
    return DS__WIDE(exp)(x);
}

/** Returns the natural logarithm of x. The error is at most 1 ulp with glibc, 1 ulp on GPUs. */
DS_KERNEL_FN double ds_log(double x) {
    return DS__WIDE(log)(x);
}

/** Returns the sine of x, in radians. The error is at most 1 ulp with glibc, 2 ulp on GPUs. */
DS_KERNEL_FN double ds_sin(double x) {
    return DS__WIDE(sin)(x);
}

/** Returns the cosine of x, in radians. The error is at most 1 ulp with glibc, 2 ulp on GPUs. */
DS_KERNEL_FN double ds_cos(double x) {
    return DS__WIDE(cos)(x);
}

/** Returns the hyperbolic tangent of x. The error is at most 2 ulp with glibc, 1 ulp on GPUs. */
DS_KERNEL_FN double ds_tanh(double x) {
    return DS__WIDE(tanh)(x);
}

/** Returns x^y. The error is at most 1 ulp with glibc, 2 ulp on GPUs. */
DS_KERNEL_FN double ds_pow(double x, double y) {
    return DS__WIDE(pow)(x, y);
}

#else
/* Declared, so that a use is an error with a sentence. */
#define DS__NO_WIDE(name)                                                                 \
    __attribute__((device, unavailable(name " of float64 needs libdevice, which was not " \
                                            "found: set CUDA_HOME to a CUDA toolkit, or " \
                                            "call " name "f of float32")))
DS__NO_WIDE("ds_exp") double ds_exp(double x);
DS__NO_WIDE("ds_log") double ds_log(double x);
DS__NO_WIDE("ds_sin") double ds_sin(double x);
DS__NO_WIDE("ds_cos") double ds_cos(double x);
DS__NO_WIDE("ds_tanh") double ds_tanh(double x);
DS__NO_WIDE("ds_pow") double ds_pow(double x, double y);
#endif

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

#if DS__HAS_APPROX && !defined(__clang__)
/* device code, nvcc: the pointer's type selects the function */
DS_KERNEL_FN unsigned *dsk__atomic_native(uint32_t *p) {
    return p;
}

DS_KERNEL_FN int *dsk__atomic_native(int32_t *p) {
    return p;
}

DS_KERNEL_FN unsigned long long *dsk__atomic_native(uint64_t *p) {
    return (unsigned long long *)p;
}

#define DS__ATOMIC_ADD(p, value) atomicAdd(dsk__atomic_native(p), value)
#define DS__ATOMIC_AND(p, value) atomicAnd(dsk__atomic_native(p), value)
#define DS__ATOMIC_OR(p, value) atomicOr(dsk__atomic_native(p), value)
#define DS__ATOMIC_XOR(p, value) atomicXor(dsk__atomic_native(p), value)
#define DS__ATOMIC_EXCHANGE(p, value) atomicExch(dsk__atomic_native(p), value)
#define DS__ATOMIC_CAS(p, old, value) ((old) = atomicCAS(dsk__atomic_native(p), old, value))
#define DS__ATOMIC_ADD_BLOCK(p, value) DS__ATOMIC_ADD(p, value)
#define DS__ATOMIC_MIN(type, p, value) atomicMin(dsk__atomic_native(p), value)
#define DS__ATOMIC_MAX(type, p, value) atomicMax(dsk__atomic_native(p), value)
#define DS__ATOMIC_ADD_F32(p, value) atomicAdd(p, value)
#define DS__ATOMIC_ADD_F64(p, value) atomicAdd(p, value)

#else
/* gcc and clang */
#define DS__ATOMIC_ADD(p, value) __atomic_fetch_add(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_AND(p, value) __atomic_fetch_and(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_OR(p, value) __atomic_fetch_or(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_XOR(p, value) __atomic_fetch_xor(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_EXCHANGE(p, value) __atomic_exchange_n(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_CAS(p, old, value) \
    __atomic_compare_exchange_n(p, &(old), value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

#if DS__HAS_APPROX
/* device code, clang */
#define DS__ATOMIC_ADD_BLOCK(p, value) DS__ATOMIC_ADD(p, value)
#define DS__ATOMIC_MIN(type, p, value) __atomic_fetch_min(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_MAX(type, p, value) __atomic_fetch_max(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_ADD_F32(p, value) __nvvm_atom_add_gen_f(p, value)
#define DS__ATOMIC_ADD_F64(p, value) __nvvm_atom_add_gen_d(p, value)

#else
/* the CPU */
#define DS__ATOMIC_ADD_BLOCK(p, value) dsk__atomic_add_block(p, value)
#define DS__ATOMIC_MIN(type, p, value) dsk__atomic_min_##type(p, value)
#define DS__ATOMIC_MAX(type, p, value) dsk__atomic_max_##type(p, value)
#define DS__ATOMIC_ADD_F32(p, value) dsk__atomic_add_float(p, value)
#define DS__ATOMIC_ADD_F64(p, value) dsk__atomic_add_double(p, value)

/* Replaces the value at p by `value` while that is on the given side of it. */
#define DS__ATOMIC_REPLACE(name, type, side)                       \
    DS_KERNEL_FN type name(type *p, type value) {                  \
        type old = __atomic_load_n(p, __ATOMIC_RELAXED);           \
        while (value side old && !DS__ATOMIC_CAS(p, old, value)) { \
        }                                                          \
        return old;                                                \
    }
DS__ATOMIC_REPLACE(dsk__atomic_min_uint32_t, uint32_t, <)
DS__ATOMIC_REPLACE(dsk__atomic_min_int32_t, int32_t, <)
DS__ATOMIC_REPLACE(dsk__atomic_min_uint64_t, uint64_t, <)
DS__ATOMIC_REPLACE(dsk__atomic_max_uint32_t, uint32_t, >)
DS__ATOMIC_REPLACE(dsk__atomic_max_int32_t, int32_t, >)
DS__ATOMIC_REPLACE(dsk__atomic_max_uint64_t, uint64_t, >)
#undef DS__ATOMIC_REPLACE

/* A thread loop's iterations are declared independent, so a compiler may read the numbers of
   several threads before it writes one. It does not reorder or combine atomic accesses, nor does it
   vectorize a loop with assembly. gcc needs three instructions for the accesses, also if the old
   value is not used. */
DS_KERNEL_FN uint32_t dsk__atomic_add_block(uint32_t *p, uint32_t value) {
#ifdef __x86_64__
    uint32_t old = *p;
    __asm__ volatile("addl %1, %0" : "+m"(*p) : "re"(value) : "cc");
#else
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    __atomic_store_n(p, old + value, __ATOMIC_RELAXED);
#endif
    return old;
}

DS_KERNEL_FN float dsk__atomic_add_float(float *p, float value) {
    float old;
    float sum;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        sum = old + value;
    } while (!__atomic_compare_exchange(p, &old, &sum, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

DS_KERNEL_FN double dsk__atomic_add_double(double *p, double value) {
    double old;
    double sum;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        sum = old + value;
    } while (!__atomic_compare_exchange(p, &old, &sum, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
#endif
#endif

/* ---- atomic operations ---------------------------------------------------------------------- */

/** Adds to the number at p, modulo 2^32; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_add_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_ADD(p, value);
}

/** Adds to the number at p, modulo 2^32; returns the previous value. Atomic for the threads of one
    block, for numbers in shared memory: on the CPU, where one thread runs a block, the addition is
    a plain one. In block kernels only. */
DS_KERNEL_FN uint32_t ds_atomic_add_block_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_ADD_BLOCK(p, value);
}

/** Adds to the number at p, modulo 2^32; returns the previous value. */
DS_KERNEL_FN int32_t ds_atomic_add_i32(int32_t *p, int32_t value) {
    return DS__ATOMIC_ADD(p, value);
}

/** Adds to the number at p, modulo 2^64; returns the previous value. */
DS_KERNEL_FN uint64_t ds_atomic_add_u64(uint64_t *p, uint64_t value) {
    return DS__ATOMIC_ADD(p, value);
}

/** Adds to the number at p; returns the previous value. The sum of several additions depends on
    their order, so its bits differ between runs and drivers. */
DS_KERNEL_FN float ds_atomic_add_f32(float *p, float value) {
    return DS__ATOMIC_ADD_F32(p, value);
}

/** Adds to the number at p; returns the previous value. The sum of several additions depends on
    their order, so its bits differ between runs and drivers. */
DS_KERNEL_FN double ds_atomic_add_f64(double *p, double value) {
    return DS__ATOMIC_ADD_F64(p, value);
}

/** Replaces the number at p by the smaller of both; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_min_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_MIN(uint32_t, p, value);
}

/** Replaces the number at p by the smaller of both; returns the previous value. */
DS_KERNEL_FN int32_t ds_atomic_min_i32(int32_t *p, int32_t value) {
    return DS__ATOMIC_MIN(int32_t, p, value);
}

/** Replaces the number at p by the smaller of both; returns the previous value. */
DS_KERNEL_FN uint64_t ds_atomic_min_u64(uint64_t *p, uint64_t value) {
    return DS__ATOMIC_MIN(uint64_t, p, value);
}

/** Replaces the number at p by the larger of both; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_max_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_MAX(uint32_t, p, value);
}

/** Replaces the number at p by the larger of both; returns the previous value. */
DS_KERNEL_FN int32_t ds_atomic_max_i32(int32_t *p, int32_t value) {
    return DS__ATOMIC_MAX(int32_t, p, value);
}

/** Replaces the number at p by the larger of both; returns the previous value. */
DS_KERNEL_FN uint64_t ds_atomic_max_u64(uint64_t *p, uint64_t value) {
    return DS__ATOMIC_MAX(uint64_t, p, value);
}

/** Keeps the bits at p that are set in `value` too; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_and_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_AND(p, value);
}

/** Sets the bits at p that are set in `value`; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_or_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_OR(p, value);
}

/** Inverts the bits at p that are set in `value`; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_xor_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_XOR(p, value);
}

/** Replaces the number at p; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_exchange_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_EXCHANGE(p, value);
}

/** Replaces the number at p if it is `expected`; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_cas_u32(uint32_t *p, uint32_t expected, uint32_t value) {
    DS__ATOMIC_CAS(p, expected, value);
    return expected;
}

/** Replaces the number at p if it is `expected`; returns the previous value. */
DS_KERNEL_FN uint64_t ds_atomic_cas_u64(uint64_t *p, uint64_t expected, uint64_t value) {
    DS__ATOMIC_CAS(p, expected, value);
    return expected;
}

/* ---- extents of a launch --------------------------------------------------------------------- */

/** Numbers of items in x, y and z, or of blocks; with reciprocals of the first two. */
typedef struct ds_kernel_dims {
    size_t n[3];            /**< numbers; 1 for dimensions that a kernel does not have */
    uint32_t multiplier[2]; /**< private: reciprocals of n[0] and n[1], less 2^32 */
    uint32_t shift[2];      /**< private */
} ds_kernel_dims;

#ifdef DEVSTREAM_KERNEL_DEVICE
/* Returns i / n[axis]. The upper half of the product, plus i, is below 2^33. */
DS_KERNEL_FN uint64_t dsk__dims_divide(const ds_kernel_dims *d, int axis, uint64_t i) {
    if (i >> 32)
        return i / d->n[axis];
    uint64_t high = (i * d->multiplier[axis]) >> 32;
    return (high + i) >> d->shift[axis];
}
#else
/* Fills a reciprocal: shift is the least s with 2^s >= n, multiplier 2^32 (2^s - n) / n + 1. */
static inline void dsk__dims_reciprocal(ds_kernel_dims *d, int axis) {
    uint64_t n = d->n[axis];
    uint32_t shift = 0;
    d->multiplier[axis] = 0;
    d->shift[axis] = 0;
    if (n == 0 || n >> 32)
        return;
    while (((uint64_t)1 << shift) < n)
        shift++;
    d->shift[axis] = shift;
    d->multiplier[axis] = (uint32_t)(((((uint64_t)1 << shift) - n) << 32) / n + 1);
}

/** Returns the extents of a launch. */
static inline ds_kernel_dims ds_kernel_dims_of(size_t nx, size_t ny, size_t nz) {
    ds_kernel_dims d;
    d.n[0] = nx;
    d.n[1] = ny;
    d.n[2] = nz;
    dsk__dims_reciprocal(&d, 0);
    dsk__dims_reciprocal(&d, 1);
    return d;
}
#endif

/* ---- parameters ------------------------------------------------------------------------------ */

/* Expand each form of a parameter to kind, type, name, element type, extent in elements. */
#define DS__PARAM_DS_READ(type, name, extent) READ, const type *, name, type, extent
#define DS__PARAM_DS_WRITE(type, name, extent) WRITE, type *, name, type, extent
#define DS__PARAM_DS_READ_WRITE(type, name, extent) READ_WRITE, type *, name, type, extent
#define DS__PARAM_DS_VALUE(type, name) VALUE, type, name, type, 0

/* Calls macro(context, kind, type, name, element, extent) for each parameter, at most 24. */
#define DS__EACH(macro, context, ...) \
    DS__JOIN(DS__EACH_, DS__NUMBER(__VA_ARGS__))(macro, context, __VA_ARGS__)
#define DS__JOIN(a, b) DS__JOIN_(a, b)
#define DS__JOIN_(a, b) a##b
#define DS__APPLY(macro, context, parameter) DS__APPLY_(macro, context, DS__PARAM_##parameter)
#define DS__APPLY_(macro, context, ...) DS__APPLY__(macro, context, __VA_ARGS__)
#define DS__APPLY__(macro, ...) macro(__VA_ARGS__)
#define DS__NUMBER(...)                                                                           \
    DS__NUMBER_(__VA_ARGS__, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, \
                6, 5, 4, 3, 2, 1, 0)
#define DS__NUMBER_(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, \
                    a18, a19, a20, a21, a22, a23, a24, n, ...)                                  \
    n
#define DS__EACH_1(m, c, p) DS__APPLY(m, c, p)
#define DS__EACH_2(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_1(m, c, __VA_ARGS__)
#define DS__EACH_3(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_2(m, c, __VA_ARGS__)
#define DS__EACH_4(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_3(m, c, __VA_ARGS__)
#define DS__EACH_5(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_4(m, c, __VA_ARGS__)
#define DS__EACH_6(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_5(m, c, __VA_ARGS__)
#define DS__EACH_7(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_6(m, c, __VA_ARGS__)
#define DS__EACH_8(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_7(m, c, __VA_ARGS__)
#define DS__EACH_9(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_8(m, c, __VA_ARGS__)
#define DS__EACH_10(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_9(m, c, __VA_ARGS__)
#define DS__EACH_11(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_10(m, c, __VA_ARGS__)
#define DS__EACH_12(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_11(m, c, __VA_ARGS__)
#define DS__EACH_13(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_12(m, c, __VA_ARGS__)
#define DS__EACH_14(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_13(m, c, __VA_ARGS__)
#define DS__EACH_15(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_14(m, c, __VA_ARGS__)
#define DS__EACH_16(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_15(m, c, __VA_ARGS__)
#define DS__EACH_17(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_16(m, c, __VA_ARGS__)
#define DS__EACH_18(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_17(m, c, __VA_ARGS__)
#define DS__EACH_19(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_18(m, c, __VA_ARGS__)
#define DS__EACH_20(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_19(m, c, __VA_ARGS__)
#define DS__EACH_21(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_20(m, c, __VA_ARGS__)
#define DS__EACH_22(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_21(m, c, __VA_ARGS__)
#define DS__EACH_23(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_22(m, c, __VA_ARGS__)
#define DS__EACH_24(m, c, p, ...) DS__APPLY(m, c, p) DS__EACH_23(m, c, __VA_ARGS__)

/* The expansions of a parameter for the kernel macros. */
#define DS__AS_MEMBER(context, kind, type, name, element, extent) type name;
#define DS__AS_PARAMETER(context, kind, type, name, element, extent) , type name DS__UNUSED
#define DS__AS_DEVICE_PARAMETER(context, kind, type, name, element, extent) type name,
#define DS__AS_ARGUMENT(context, kind, type, name, element, extent) , name
#define DS__AS_FIELD(context, kind, type, name, element, extent) , (context)->name
#define DS__AS_STORE(context, kind, type, name, element, extent) (context).name = name;
#define DS__AS_LOCAL(context, kind, type, name, element, extent) \
    type name DS__UNUSED = (context)->name;
#define DS__AS_ROW(context, kind, type, name, element, extent) \
    { DS_PARAM_##kind, offsetof(struct context, name), sizeof(type) },
/* Bytes that a launch moves through the parameter. */
#define DS__AS_BYTES(context, kind, type, name, element, extent) \
    +(uint64_t)(extent) * sizeof(element) * DS__TRAFFIC_##kind
/* Writes the bytes that a launch accesses through the parameter. */
#define DS__AS_EXTENT(context, kind, type, name, element, extent) \
    *(context)++ = dsk__extent_bytes((uint64_t)(extent), sizeof(element));
#define DS__TRAFFIC_READ 1
#define DS__TRAFFIC_WRITE 1
#define DS__TRAFFIC_READ_WRITE 2
#define DS__TRAFFIC_VALUE 0
#define DS__UNUSED __attribute__((unused))

#ifndef DEVSTREAM_KERNEL_DEVICE
#ifdef __cplusplus
extern "C" {
#endif

/* ---- definitions of kernels ------------------------------------------------------------------ */

/** A kernel that the macros DS_KERNEL_1D, DS_BLOCK_KERNEL_1D and their forms define: the static
    variable NAME_def. The first launch creates the kernel, ds_shutdown destroys it. */
typedef struct ds_kernel_def {
    const char *name;         /**< of the kernel, and of its function in the device code */
    const char *source;       /**< the kernel file, for messages */
    unsigned block;           /**< threads per block; 0: 256 */
    unsigned items_per_block; /**< 1: an item of a launch is a block; 0: a thread */
    size_t args_size;         /**< size of the argument struct in bytes */
    const ds_param *params;   /**< parameters of the CUDA form, in order */
    size_t param_count;       /**< number of parameters */
    ds_kernel_fn cpu_fn;      /**< CPU form */
    const char *const *ptx;   /**< PTX text in pieces, ends with NULL; NULL: no CUDA form */
    /** returns the bytes that a launch reads and writes, as in ds_kernel_desc */
    uint64_t (*bytes_fn)(size_t items, const void *args);
    /** writes the bytes that a launch accesses through each parameter, as in ds_kernel_desc */
    void (*extents_fn)(const void *args, size_t *out_bytes);
    uint64_t reserved[3];       /**< 0 */
    ds_kernel kernel;           /**< private: the kernel, once created */
    uint64_t epoch;             /**< private */
    struct ds_kernel_def *next; /**< private */
} ds_kernel_def;

/** Returns the kernel of a definition, for ds_kernel_load and graph nodes. The first call creates
   the kernel. The program must not destroy the kernel; ds_shutdown does. */
DSDEF DS_MUST_USE ds_result ds_kernel_def_get_kernel(ds_kernel_def *def, ds_kernel *out);
/** Launches a defined kernel in stream order. dims: numbers of items, or of blocks for a block
    kernel; if one is 0, nothing runs. args: the struct NAME_args, copied by the call. NAME_launch
    calls this function. DS_ERR_INVALID_VALUE: the product of dims exceeds size_t.
    DS_ERR_UNSUPPORTED: the stream is a GPU's and the kernel has no CUDA form; the message names the
    command that writes one. */
DSDEF DS_MUST_USE ds_result ds_kernel_def_launch(ds_kernel_def *def, ds_stream stream,
                                                 const ds_kernel_dims *dims, const void *args);

/** A block of a block kernel on the CPU driver. Private to the macros. */
typedef struct ds_kernel_block {
    unsigned index[3];   /**< of the block in the grid: x, y, z */
    unsigned grid[3];    /**< blocks of the grid */
    unsigned threads[3]; /**< threads of the block */
    int in_threads;      /**< 1: inside of a thread loop */
    char *scratch;       /**< memory for DS_SHARED and DS_PRIVATE, aligned to 64 bytes */
    size_t used;         /**< bytes of scratch in use */
} ds_kernel_block;

/** Bytes of scratch memory of a block: the shared memory of a GPU's block that needs no opt-in (48
    KiB), and 255 registers of 4 bytes for each of 1,024 threads. */
#define DS_KERNEL_SCRATCH_BYTES (48 * 1024 + 1024 * 1024)

/** Runs blocks first to first+count-1 of a grid on the calling thread. Only the CPU forms of block
    kernels call it. Returns 0, or the status with which the kernel fails. */
DSDEF int ds_kernel_run_blocks(void (*block_fn)(ds_kernel_block *block, const void *args),
                               const ds_kernel_dims *dims, size_t first, size_t count,
                               const void *args);
/** Ends the running block kernel with an error, because a block needs more scratch memory than
    DS_KERNEL_SCRATCH_BYTES. Does not return. */
DSDEF void ds_kernel_block_overflow(void);

/* Returns the first block of a grid, of which the extents of a block kernel use the size. */
static inline ds_kernel_block dsk__block_of(const ds_kernel_dims *dims) {
    ds_kernel_block b = { { 0, 0, 0 }, { 0, 0, 0 }, { 1, 1, 1 }, 0, NULL, 0 };
    for (int axis = 0; axis < 3; axis++)
        b.grid[axis] = (unsigned)dims->n[axis];
    return b;
}

/* Returns the bytes of an extent; SIZE_MAX: they exceed size_t. */
static inline size_t dsk__extent_bytes(uint64_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? SIZE_MAX : bytes;
}

/* Returns p, with the promise to compilers that no other pointer leads to its memory (`malloc`).
   Without the promise they load the kernel's inputs again after each store to this memory. Blocks
   use the same memory one after another, so each block must be a function call of its own. */
__attribute__((noinline, malloc, assume_aligned(64), unused)) static void *dsk__block_own(void *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* Takes count elements of the block's scratch memory. */
static inline void *dsk__block_take(ds_kernel_block *b, size_t size, size_t count) {
    size_t bytes = (size * count + 63) / 64 * 64;
    if (bytes > DS_KERNEL_SCRATCH_BYTES - b->used)
        ds_kernel_block_overflow();
    void *p = dsk__block_own(b->scratch + b->used);
    b->used += bytes;
#ifdef DEVSTREAM_KERNEL_DEBUG
    __builtin_memset(p, 0xff, bytes); /* NaN, so reads of unwritten elements are noticed */
#endif
    return p;
}

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* host */

/* ---- launching defined kernels --------------------------------------------------------------- */

/* Removes the parentheses of a list. */
#define DS__LIST(...) __VA_ARGS__

#ifndef DEVSTREAM_KERNEL_DEVICE

/** Launches a kernel of the macros and passes file and line: DS_LAUNCH(name, stream, counts...,
    parameters...). Returns ds_result. The arguments are those of the function NAME_launch, so the
    compiler checks their number and types. */
#ifdef DEVSTREAM_NO_SITES
#define DS_LAUNCH(name, ...) name##_launch(__VA_ARGS__)
#else
#define DS_LAUNCH(name, ...) name##_launch_at(__FILE__, __LINE__, __VA_ARGS__)
#endif

/* The argument struct and the function that fills it. */
#define DS__KERNEL_ARGS(name, counts, dims, ...)                      \
    DS__KERNEL_OPTIONS(name)                                          \
    struct name##_args {                                              \
        DS__EACH(DS__AS_MEMBER, 0, __VA_ARGS__)                       \
        ds_kernel_dims dsk__dims;                                     \
    };                                                                \
    static inline DS__UNUSED struct name##_args name##_pack(          \
        DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) { \
        struct name##_args dsk__a;                                    \
        DS__EACH(DS__AS_STORE, dsk__a, __VA_ARGS__)                   \
        dsk__a.dsk__dims = ds_kernel_dims_of dims;                    \
        return dsk__a;                                                \
    }

/* Counts the bytes of the extents, in which the numbers of items are variables: NAME__bytes, the
   bytes that a launch moves, and NAME__extents, those that it accesses through each parameter. The
   three parameters behind the list have no extent. */
#define DS__KERNEL_BYTES_1D(name, counts, ...) \
    DS__KERNEL_BYTES(name, counts, (void)0, (dsk__a->dsk__dims.n[0]), __VA_ARGS__)
#define DS__KERNEL_BYTES_2D(name, counts, ...)                                                \
    DS__KERNEL_BYTES(name, counts, (void)0, (dsk__a->dsk__dims.n[0], dsk__a->dsk__dims.n[1]), \
                     __VA_ARGS__)
#define DS__KERNEL_BYTES_3D(name, counts, ...)                                                 \
    DS__KERNEL_BYTES(name, counts, (void)0,                                                    \
                     (dsk__a->dsk__dims.n[0], dsk__a->dsk__dims.n[1], dsk__a->dsk__dims.n[2]), \
                     __VA_ARGS__)
/* first: a declaration or statement before `values` are used. */
#define DS__KERNEL_BYTES(name, counts, first, values, ...)                                       \
    static inline uint64_t name##__moved(                                                        \
        DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) {                            \
        return 0 DS__EACH(DS__AS_BYTES, 0, __VA_ARGS__);                                         \
    }                                                                                            \
    static inline void name##__accessed(                                                         \
        size_t *dsk__out, DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) {          \
        DS__EACH(DS__AS_EXTENT, dsk__out, __VA_ARGS__)                                           \
        dsk__out[0] = dsk__out[1] = dsk__out[2] = 0;                                             \
    }                                                                                            \
    static uint64_t name##__bytes(size_t dsk__items, const void *dsk__args) {                    \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;                \
        first;                                                                                   \
        (void)dsk__items;                                                                        \
        return name##__moved(DS__LIST values DS__EACH(DS__AS_FIELD, dsk__a, __VA_ARGS__));       \
    }                                                                                            \
    static void name##__extents(const void *dsk__args, size_t *dsk__out) {                       \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;                \
        first;                                                                                   \
        name##__accessed(dsk__out, DS__LIST values DS__EACH(DS__AS_FIELD, dsk__a, __VA_ARGS__)); \
    }

/* The parameter table, the definition and the launch function. threads: block of ds_kernel_def;
   per_block: its items_per_block. */
#define DS__KERNEL_DEF(name, counts, numbers, threads, per_block, ...)                         \
    static const ds_param name##__params[] = {                                                 \
        DS__EACH(DS__AS_ROW, name##_args, __VA_ARGS__){                                        \
            DS_PARAM_VALUE, offsetof(struct name##_args, dsk__dims), sizeof(ds_kernel_dims) }, \
        { DS_PARAM_FIRST, 0, 8 },                                                              \
        { DS_PARAM_COUNT, 0, 8 }                                                               \
    };                                                                                         \
    static ds_kernel_def name##_def = { #name,                                                 \
                                        __FILE__,                                              \
                                        threads,                                               \
                                        per_block,                                             \
                                        sizeof(struct name##_args),                            \
                                        name##__params,                                        \
                                        sizeof name##__params / sizeof *name##__params,        \
                                        name##__cpu,                                           \
                                        DS__PTX_OF(name),                                      \
                                        name##__bytes,                                         \
                                        name##__extents,                                       \
                                        { 0, 0, 0 },                                           \
                                        { 0 },                                                 \
                                        0,                                                     \
                                        NULL };                                                \
    static inline DS__UNUSED DS_MUST_USE ds_result name##_launch(                              \
        ds_stream dsk__stream, DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) {   \
        struct name##_args dsk__a =                                                            \
            name##_pack(DS__LIST numbers DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__));           \
        return (ds_kernel_def_launch)(&name##_def, dsk__stream, &dsk__a.dsk__dims, &dsk__a);   \
    }                                                                                          \
    static inline DS__UNUSED DS_MUST_USE ds_result name##_launch_at(                           \
        const char *dsk__file, int dsk__line, ds_stream dsk__stream,                           \
        DS__LIST counts DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__)) {                          \
        ds_site_set(dsk__file, dsk__line);                                                     \
        return name##_launch(dsk__stream,                                                      \
                             DS__LIST numbers DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__));      \
    }

/* The kernel's PTX, if the output file of devstream-kernels was included before. The file defines
   DS_PTX_NAME as a comma and the array's name. Otherwise NULL. */
#define DS__PTX_OF(name) DS__SECOND(DS_PTX_##name, NULL, 0)
#define DS__SECOND(...) DS__SECOND_(__VA_ARGS__)
#define DS__SECOND_(first, second, ...) second

#endif

/* ---- elementwise kernels --------------------------------------------------------------------- */

/** Defines the kernel `name` over items i = 0 .. n-1. The body of one item follows:

        DS_KERNEL_1D(saxpy, i, n, DS_VALUE(float, a), DS_READ(float, x, n),
                     DS_READ_WRITE(float, y, n)) {
            y[i] = a * x[i] + y[i];
        }

    Parameters, 1 to 24: DS_READ(type, name, extent), DS_WRITE and DS_READ_WRITE are pointers to
    memory of the device. The extent is the number of elements that a launch uses, an expression of
    the other parameters and n. DS_VALUE(type, name) is a value. `return` ends the item. Items run
    in any order and at the same time. DS_LAUNCH(saxpy, stream, n, a, x, y) launches the kernel. */
#define DS_KERNEL_1D(name, i, n, ...)                                                            \
    DS__ITEM_KERNEL(name, 1D, (size_t i DS__UNUSED, size_t n DS__UNUSED), (size_t n DS__UNUSED), \
                    (n), (n, 1, 1), __VA_ARGS__)

/** Defines a kernel over items (x, y), x = 0 .. nx-1, y = 0 .. ny-1, otherwise as DS_KERNEL_1D
   does. Item (x, y) has the number x + nx y. DS_LAUNCH(name, stream, nx, ny, ...) launches it. */
#define DS_KERNEL_2D(name, x, y, nx, ny, ...)                                                   \
    DS__ITEM_KERNEL(                                                                            \
        name, 2D,                                                                               \
        (size_t x DS__UNUSED, size_t y DS__UNUSED, size_t nx DS__UNUSED, size_t ny DS__UNUSED), \
        (size_t nx DS__UNUSED, size_t ny DS__UNUSED), (nx, ny), (nx, ny, 1), __VA_ARGS__)

/** Defines a kernel over items (x, y, z), otherwise as DS_KERNEL_2D does. */
#define DS_KERNEL_3D(name, x, y, z, nx, ny, nz, ...)                                    \
    DS__ITEM_KERNEL(name, 3D,                                                           \
                    (size_t x DS__UNUSED, size_t y DS__UNUSED, size_t z DS__UNUSED,     \
                     size_t nx DS__UNUSED, size_t ny DS__UNUSED, size_t nz DS__UNUSED), \
                    (size_t nx DS__UNUSED, size_t ny DS__UNUSED, size_t nz DS__UNUSED), \
                    (nx, ny, nz), (nx, ny, nz), __VA_ARGS__)

#define DS__ITEM_FUNCTION(name, index, ...)    \
    DS_KERNEL_FN DS__UNUSED void name##__item( \
        DS__LIST index DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__))

#ifdef DEVSTREAM_KERNEL_DEVICE
#define DS__ITEM_KERNEL(name, rank, index, counts, numbers, dims, ...)                          \
    DS__ITEM_FUNCTION(name, index, __VA_ARGS__);                                                \
    DS__GLOBAL name(DS__EACH(DS__AS_DEVICE_PARAMETER, 0, __VA_ARGS__) ds_kernel_dims dsk__dims, \
                    uint64_t dsk__first, uint64_t dsk__count) {                                 \
        uint64_t dsk__i = (uint64_t)DS__CTAID * DS__NTID + DS__TID;                             \
        if (dsk__i >= dsk__count)                                                               \
            return;                                                                             \
        dsk__i += dsk__first;                                                                   \
        DS__ITEM_CALL_##rank(name, DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__))                   \
    }                                                                                           \
    DS__ITEM_FUNCTION(name, index, __VA_ARGS__)

#define DS__ITEM_CALL_1D(name, ...) name##__item((size_t)dsk__i, dsk__dims.n[0] __VA_ARGS__);
#define DS__ITEM_CALL_2D(name, ...)                                        \
    uint64_t dsk__y = dsk__dims_divide(&dsk__dims, 0, dsk__i);             \
    name##__item(dsk__i - dsk__y * dsk__dims.n[0], dsk__y, dsk__dims.n[0], \
                 dsk__dims.n[1] __VA_ARGS__);
#define DS__ITEM_CALL_3D(name, ...)                                                              \
    uint64_t dsk__row = dsk__dims_divide(&dsk__dims, 0, dsk__i);                                 \
    uint64_t dsk__z = dsk__dims_divide(&dsk__dims, 1, dsk__row);                                 \
    name##__item(dsk__i - dsk__row * dsk__dims.n[0], dsk__row - dsk__z * dsk__dims.n[1], dsk__z, \
                 dsk__dims.n[0], dsk__dims.n[1], dsk__dims.n[2] __VA_ARGS__);

#else
#define DS__ITEM_KERNEL(name, rank, index, counts, numbers, dims, ...)                  \
    DS__ITEM_FUNCTION(name, index, __VA_ARGS__);                                        \
    DS__KERNEL_ARGS(name, counts, dims, __VA_ARGS__)                                    \
    DS__KERNEL_EXACT static int name##__cpu(size_t dsk__first, size_t dsk__count,       \
                                            const void *dsk__args) {                    \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;       \
        DS__EACH(DS__AS_LOCAL, dsk__a, __VA_ARGS__)                                     \
        DS__ITEM_LOOP_##rank(name, DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__)) return 0; \
    }                                                                                   \
    DS__KERNEL_BYTES_##rank(name, counts, __VA_ARGS__)                                  \
        DS__KERNEL_DEF(name, counts, numbers, 0, 0, __VA_ARGS__)                        \
            DS__ITEM_FUNCTION(name, index, __VA_ARGS__)

#define DS__ITEM_LOOP_1D(name, ...)                                          \
    const size_t dsk__end = dsk__first + dsk__count;                         \
    const size_t dsk__n = dsk__a->dsk__dims.n[0];                            \
    DS__INDEPENDENT(size_t dsk__i = dsk__first; dsk__i < dsk__end; dsk__i++) \
    name##__item(dsk__i, dsk__n __VA_ARGS__);
#define DS__ITEM_LOOP_2D(name, ...)                                                  \
    const ds_kernel_dims dsk__d = dsk__a->dsk__dims;                                 \
    for (dsk__kernel_row dsk__r = dsk__row_begin(&dsk__d, dsk__first, dsk__count);   \
         dsk__r.begin < dsk__r.end; dsk__row_next(&dsk__d, &dsk__r))                 \
        DS__INDEPENDENT(size_t dsk__x = dsk__r.begin; dsk__x < dsk__r.end; dsk__x++) \
    name##__item(dsk__x, dsk__r.y, dsk__d.n[0], dsk__d.n[1] __VA_ARGS__);
#define DS__ITEM_LOOP_3D(name, ...)                                                  \
    const ds_kernel_dims dsk__d = dsk__a->dsk__dims;                                 \
    for (dsk__kernel_row dsk__r = dsk__row_begin(&dsk__d, dsk__first, dsk__count);   \
         dsk__r.begin < dsk__r.end; dsk__row_next(&dsk__d, &dsk__r))                 \
        DS__INDEPENDENT(size_t dsk__x = dsk__r.begin; dsk__x < dsk__r.end; dsk__x++) \
    name##__item(dsk__x, dsk__r.y, dsk__r.z, dsk__d.n[0], dsk__d.n[1], dsk__d.n[2] __VA_ARGS__);

/* The items of a row that belong to a piece of a launch. */
typedef struct dsk__kernel_row {
    size_t begin; /* items of the row: begin to end - 1 */
    size_t end;
    size_t y;
    size_t z;
    size_t left; /* items of the piece after this row */
} dsk__kernel_row;

static inline void dsk__row_cut(const ds_kernel_dims *d, dsk__kernel_row *r) {
    size_t room = d->n[0] - r->begin;
    size_t take = r->left < room ? r->left : room;
    r->end = r->begin + take;
    r->left -= take;
}

static inline dsk__kernel_row dsk__row_begin(const ds_kernel_dims *d, size_t first, size_t count) {
    dsk__kernel_row r;
    size_t row = first / d->n[0];
    r.begin = first - row * d->n[0];
    r.z = row / d->n[1];
    r.y = row - r.z * d->n[1];
    r.left = count;
    dsk__row_cut(d, &r);
    return r;
}

static inline void dsk__row_next(const ds_kernel_dims *d, dsk__kernel_row *r) {
    r->begin = 0;
    if (++r->y == d->n[1]) {
        r->y = 0;
        r->z++;
    }
    dsk__row_cut(d, r);
}
#endif

/* ---- block kernels --------------------------------------------------------------------------- */

/** Defines the block kernel `name` with `threads` threads per block (1 to 1,024, a constant). The
    body of a block follows:

        DS_BLOCK_KERNEL_1D(block_sums, 256, DS_VALUE(uint32_t, n), DS_READ(float, x, n),
                           DS_WRITE(float, sums, DS_GRID_X)) {
            DS_SHARED(float, part, 256);
            DS_THREADS {
                uint32_t i = DS_BLOCK_X * 256 + DS_THREAD_X;
                part[DS_THREAD_X] = i < n ? x[i] : 0;
            }
            for (unsigned half = 128; half > 0; half /= 2)
                DS_THREADS if (DS_THREAD_X < half) part[DS_THREAD_X] += part[DS_THREAD_X + half];
            DS_THREADS if (DS_THREAD_X == 0) sums[DS_BLOCK_X] = part[0];
        }

    Between two thread loops is a barrier: writes of one loop to shared or global memory are
    visible to the next loop of the block. Code outside of thread loops must do the same for every
    thread of the block, and must not write memory. A thread loop must not be left by break, goto
    or return; `continue` ends the thread's iteration. Extents may use DS_GRID_X, DS_GRID_Y and
    DS_GRID_Z. DS_LAUNCH(block_sums, stream, blocks, n, x, sums) launches the kernel; parameters as
    in DS_KERNEL_1D. */
#define DS_BLOCK_KERNEL_1D(name, threads_x, ...)                                          \
    DS__BLOCK_KERNEL(name, threads_x, 1, 1, (size_t dsk__gx), (dsk__gx), (dsk__gx, 1, 1), \
                     __VA_ARGS__)

/** Defines a block kernel with blocks of threads_x by threads_y threads on a two-dimensional grid,
    otherwise as DS_BLOCK_KERNEL_1D does. DS_LAUNCH(name, stream, blocks_x, blocks_y, ...) launches
    the kernel. */
#define DS_BLOCK_KERNEL_2D(name, threads_x, threads_y, ...)                           \
    DS__BLOCK_KERNEL(name, threads_x, threads_y, 1, (size_t dsk__gx, size_t dsk__gy), \
                     (dsk__gx, dsk__gy), (dsk__gx, dsk__gy, 1), __VA_ARGS__)

/** Defines a block kernel of three dimensions, otherwise as DS_BLOCK_KERNEL_2D does; threads_z is
   at most 64. */
#define DS_BLOCK_KERNEL_3D(name, threads_x, threads_y, threads_z, ...) \
    DS__BLOCK_KERNEL(name, threads_x, threads_y, threads_z,            \
                     (size_t dsk__gx, size_t dsk__gy, size_t dsk__gz), \
                     (dsk__gx, dsk__gy, dsk__gz), (dsk__gx, dsk__gy, dsk__gz), __VA_ARGS__)

#define DS__BLOCK_FUNCTION(name, ...)           \
    DS_KERNEL_FN DS__UNUSED void name##__block( \
        DS__BLOCK *dsk__b DS__UNUSED DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__))

#define DS__BLOCK_LIMITS(name, x, y, z)                                                         \
    DS__STATIC_ASSERT((x) >= 1 && (y) >= 1 && (z) >= 1 && (x) * (y) * (z) <= 1024 && (z) <= 64, \
                      #name ": a block has 1 to 1,024 threads, at most 64 in z");

#define DS_BLOCK_X (dsk__b->index[0]) /**< index of the block */
#define DS_BLOCK_Y (dsk__b->index[1]) /**< the same in y */
#define DS_BLOCK_Z (dsk__b->index[2]) /**< the same in z */
#define DS_GRID_X (dsk__b->grid[0])   /**< number of blocks */
#define DS_GRID_Y (dsk__b->grid[1])   /**< the same in y */
#define DS_GRID_Z (dsk__b->grid[2])   /**< the same in z */

#ifdef DEVSTREAM_KERNEL_DEVICE
#define DS__BLOCK const dsk__device_block

typedef struct dsk__device_block {
    unsigned index[3];
    unsigned grid[3];
    unsigned thread[3];
} dsk__device_block;

#define DS__BLOCK_KERNEL(name, x, y, z, counts, numbers, dims, ...)                             \
    DS__BLOCK_LIMITS(name, x, y, z)                                                             \
    DS__BLOCK_FUNCTION(name, __VA_ARGS__);                                                      \
    DS__GLOBAL name(DS__EACH(DS__AS_DEVICE_PARAMETER, 0, __VA_ARGS__) ds_kernel_dims dsk__dims, \
                    uint64_t dsk__first, uint64_t dsk__count) {                                 \
        (void)dsk__count;                                                                       \
        const unsigned dsk__t = DS__TID;                                                        \
        const dsk__device_block dsk__block =                                                    \
            dsk__block_at(&dsk__dims, dsk__first + DS__CTAID, dsk__t % (x), dsk__t / (x) % (y), \
                          dsk__t / ((x) * (y)));                                                \
        name##__block(&dsk__block DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__));                   \
    }                                                                                           \
    DS__BLOCK_FUNCTION(name, __VA_ARGS__)

DS_KERNEL_FN dsk__device_block dsk__block_at(const ds_kernel_dims *d, uint64_t i, unsigned x,
                                             unsigned y, unsigned z) {
    uint64_t row = d->n[1] * d->n[2] == 1 ? 0 : dsk__dims_divide(d, 0, i);
    uint64_t plane = d->n[2] == 1 ? 0 : dsk__dims_divide(d, 1, row);
    dsk__device_block b = { { (unsigned)(i - row * d->n[0]), (unsigned)(row - plane * d->n[1]),
                              (unsigned)plane },
                            { (unsigned)d->n[0], (unsigned)d->n[1], (unsigned)d->n[2] },
                            { x, y, z } };
    return b;
}

/** Index of the thread in its block; inside of thread loops only. */
#define DS_THREAD_X (dsk__b->thread[0])
#define DS_THREAD_Y (dsk__b->thread[1])
#define DS_THREAD_Z (dsk__b->thread[2])
#define DS_THREAD_RANK DS__TID
/* `break` ends the inner loop only, so every thread reaches the barrier. */
#define DS_THREADS                                                                       \
    for (int dsk__pass = DS__UNIFORM(__LINE__); dsk__pass; dsk__pass = 0, DS__BARRIER()) \
        for (int dsk__once = 1; dsk__once; dsk__once = 0)
#define DS_PRIVATE(type, name) type name[1]
#define DS_OWN(name) ((name)[0])
#define DS_SHARED(type, name, ...) \
    DS__SHARED_ONLY type name DS__JOIN(DS__EXTENTS_, DS__NUMBER(__VA_ARGS__))(__VA_ARGS__)
#define DS__EXTENTS_1(a) [a]
#define DS__EXTENTS_2(a, b) [a][b]
#define DS__EXTENTS_3(a, b, c) [a][b][c]

#ifdef DEVSTREAM_KERNEL_DEBUG
/* Fails the device if the threads of a block are at different thread loops. They meet in different
   instructions then, which this barrier allows from sm_70 on and bar.sync does not. */
DS_KERNEL_FN int dsk__uniform(int line) {
    DS__SHARED_ONLY int at;
    if (DS__TID == 0)
        at = line;
    __asm__ volatile("barrier.sync 0;" ::: "memory");
    if (at != line)
        DS__TRAP();
    DS__BARRIER();
    return 1;
}

#define DS__UNIFORM(line) dsk__uniform(line)
#else
#define DS__UNIFORM(line) 1
#endif

#else
#define DS__BLOCK ds_kernel_block
#define DS__BLOCK_KERNEL(name, x, y, z, counts, numbers, dims, ...)                               \
    DS__BLOCK_LIMITS(name, x, y, z)                                                               \
    DS__BLOCK_FUNCTION(name, __VA_ARGS__);                                                        \
    DS__KERNEL_ARGS(name, counts, dims, __VA_ARGS__)                                              \
    DS__KERNEL_EXACT __attribute__((noinline)) static void name##__run(                           \
        ds_kernel_block *dsk__outer, const void *dsk__args) {                                     \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;                 \
        /* a copy that no other function sees, so that the extents are constants */               \
        ds_kernel_block dsk__block = *dsk__outer;                                                 \
        dsk__block.threads[0] = (x);                                                              \
        dsk__block.threads[1] = (y);                                                              \
        dsk__block.threads[2] = (z);                                                              \
        name##__block(&dsk__block DS__EACH(DS__AS_FIELD, dsk__a, __VA_ARGS__));                   \
        dsk__outer->in_threads = dsk__block.in_threads;                                           \
    }                                                                                             \
    static int name##__cpu(size_t dsk__first, size_t dsk__count, const void *dsk__args) {         \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;                 \
        return ds_kernel_run_blocks(name##__run, &dsk__a->dsk__dims, dsk__first, dsk__count,      \
                                    dsk__args);                                                   \
    }                                                                                             \
    DS__KERNEL_BYTES(name, (ds_kernel_block * dsk__b DS__UNUSED),                                 \
                     ds_kernel_block dsk__grid = dsk__block_of(&dsk__a->dsk__dims), (&dsk__grid), \
                     __VA_ARGS__)                                                                 \
    DS__KERNEL_DEF(name, counts, numbers, (x) * (y) * (z), 1, __VA_ARGS__)                        \
    DS__BLOCK_FUNCTION(name, __VA_ARGS__)

/** Index of the thread in its block. Inside of thread loops only; elsewhere the name is not
    declared, and the compiler's error names DS_THREADS. */
#define DS_THREAD_X (dsk__x_only_in_DS_THREADS)
#ifdef DEVSTREAM_KERNEL_CHECK
#define DS_THREAD_Y (dsk__x_only_in_DS_THREADS)
#define DS_THREAD_Z (dsk__x_only_in_DS_THREADS)
#define DS_THREAD_RANK (dsk__x_only_in_DS_THREADS)
#else
/** The same in y. */
#define DS_THREAD_Y (dsk__y_only_in_DS_THREADS)
/** The same in z. */
#define DS_THREAD_Z (dsk__z_only_in_DS_THREADS)
/** Number of the thread in its block, x fastest. */
#define DS_THREAD_RANK                                                              \
    ((dsk__z_only_in_DS_THREADS * dsk__b->threads[1] + dsk__y_only_in_DS_THREADS) * \
         dsk__b->threads[0] +                                                       \
     dsk__x_only_in_DS_THREADS)
#endif
/* A loop over the block's threads along an axis. */
#define DS__AXIS(index, axis)      \
    unsigned index = 0;            \
    index < dsk__b->threads[axis]; \
    index++
/** Runs the following statement once per thread of the block, then waits for all threads. */
#ifdef DEVSTREAM_KERNEL_CHECK
/* For clang -fopenmp-simd -fsyntax-only, which refuses break, goto and return in such a loop. */
#define DS_THREADS _Pragma("omp simd") for (DS__AXIS(dsk__x_only_in_DS_THREADS, 0))
#else
#define DS_THREADS                                                           \
    for (dsk__b->in_threads = 1; dsk__b->in_threads; dsk__b->in_threads = 0) \
        for (DS__AXIS(dsk__z_only_in_DS_THREADS, 2))                         \
            for (DS__AXIS(dsk__y_only_in_DS_THREADS, 1))                     \
                DS__INDEPENDENT(DS__AXIS(dsk__x_only_in_DS_THREADS, 0))      \
    for (int dsk__once = 1; dsk__once; dsk__once = 0)
#endif
/** Declares a value of each thread that lives across barriers: a register on a GPU, an array on the
    CPU. Not initialised. */
#define DS_PRIVATE(type, name)            \
    type *name = (type *)dsk__block_take( \
        dsk__b, sizeof(type), dsk__b->threads[0] * dsk__b->threads[1] * dsk__b->threads[2])
/** The running thread's value of a DS_PRIVATE. */
#define DS_OWN(name) ((name)[DS_THREAD_RANK])
/** Declares an array of 1 to 3 dimensions in the shared memory of the block. All arrays of a block
   have at most 48 KiB together. Not initialised. */
#define DS_SHARED(type, name, ...) \
    DS__JOIN(DS__SHARED_, DS__NUMBER(__VA_ARGS__))(type, name, __VA_ARGS__)
#define DS__SHARED_1(type, name, a)  \
    DS__SHARED_LIMIT(type, name, a); \
    type *name = (type *)dsk__block_take(dsk__b, sizeof(type), (a))
#define DS__SHARED_2(type, name, a, b)       \
    DS__SHARED_LIMIT(type, name, (a) * (b)); \
    type(*name)[b] = (type(*)[b])dsk__block_take(dsk__b, sizeof(type), (size_t)(a) * (b))
#define DS__SHARED_3(type, name, a, b, c)          \
    DS__SHARED_LIMIT(type, name, (a) * (b) * (c)); \
    type(*name)[b][c] =                            \
        (type(*)[b][c])dsk__block_take(dsk__b, sizeof(type), (size_t)(a) * (b) * (c))
#define DS__SHARED_LIMIT(type, name, count)                \
    DS__STATIC_ASSERT(sizeof(type) * (count) <= 48 * 1024, \
                      #name ": a block has at most 48 KiB of shared memory")
#endif

#ifndef DEVSTREAM_KERNEL_DEVICE
#ifndef DEVSTREAM_NO_SITES

static inline DS_MUST_USE ds_result ds_at_kernel_def_get_kernel(const char *file_, int line_,
        ds_kernel_def *def_, ds_kernel *out_) {
    return ds_site_set(file_, line_), (ds_kernel_def_get_kernel)(def_, out_);
}
#define ds_kernel_def_get_kernel(...) ds_at_kernel_def_get_kernel(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_kernel_def_launch(const char *file_, int line_,
        ds_kernel_def *def_, ds_stream stream_, const ds_kernel_dims *dims_, const void *args_) {
    return ds_site_set(file_, line_), (ds_kernel_def_launch)(def_, stream_, dims_, args_);
}
#define ds_kernel_def_launch(...) ds_at_kernel_def_launch(__FILE__, __LINE__, __VA_ARGS__)

#endif
#endif

#endif /* DEVSTREAM_KERNEL_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_KERNEL_H_IMPLEMENTED)
#define DEVSTREAM_KERNEL_H_IMPLEMENTED
#ifndef __cplusplus

/* kernel/scratch.h - blocks of block kernels on the CPU.

   Runs the blocks of a piece of a launch (ds_kernel_run_blocks) with scratch memory for their
   shared and private variables, which the generated code takes from the front.

   Policy: scratch memory is not on the stack of the worker, since a block may need a megabyte. A
   piece takes the chunk that was used last, which is most likely in the cache, and returns it.
   There are as many chunks as pieces have run at the same time, until ds_shutdown.

   Invariants: a chunk belongs to one running piece, or is in the list.
   Locks: `lock` guards the list, for some instructions.
   Threads: workers and waiting host threads. */

#include <setjmp.h>

typedef struct ds__scratch {
    struct ds__scratch *next;
    char *memory; /* DS_KERNEL_SCRATCH_BYTES, aligned to 64 bytes, behind this struct */
} ds__scratch;

static struct {
    ds__spinlock lock;
    ds__scratch *list; /* the one used last in front */
} ds__scratch_state;

/* Where ds_kernel_block_overflow returns to: the running piece of the thread. */
static _Thread_local jmp_buf *ds__scratch_overflow;

/* Returns a chunk. NULL: no memory. */
static ds__scratch *ds__scratch_take(void) {
    ds__spinlock_lock(&ds__scratch_state.lock);
    ds__scratch *chunk = ds__scratch_state.list;
    if (chunk)
        ds__scratch_state.list = chunk->next;
    ds__spinlock_unlock(&ds__scratch_state.lock);
    if (chunk)
        return chunk;
    chunk = ds__host_alloc(sizeof *chunk + DS_KERNEL_SCRATCH_BYTES + 64);
    if (chunk)
        chunk->memory = (char *)(((uintptr_t)(chunk + 1) + 63) & ~(uintptr_t)63);
    return chunk;
}

static void ds__scratch_put(ds__scratch *chunk) {
    ds__spinlock_lock(&ds__scratch_state.lock);
    chunk->next = ds__scratch_state.list;
    ds__scratch_state.list = chunk;
    ds__spinlock_unlock(&ds__scratch_state.lock);
}

/* At shutdown, when no kernel runs. */
static void ds__scratch_free_all(void) {
    while (ds__scratch_state.list) {
        ds__scratch *chunk = ds__scratch_state.list;
        ds__scratch_state.list = chunk->next;
        ds__host_free(chunk);
    }
}

/* Runs the blocks in the order of their numbers. Returns the status of the kernel. */
static int ds__blocks_run(void (*block_fn)(ds_kernel_block *block, const void *args),
                          ds_kernel_block *b, size_t count, const void *args) {
    for (size_t i = 0; i < count; i++) {
        b->used = 0;
        b->in_threads = 0;
        block_fn(b, args);
        if (b->in_threads)
            return DS__KERNEL_LOOP_LEFT;
        if (++b->index[0] == b->grid[0]) {
            b->index[0] = 0;
            if (++b->index[1] == b->grid[1]) {
                b->index[1] = 0;
                b->index[2]++;
            }
        }
    }
    return 0;
}

/* The same; ds_kernel_block_overflow returns to here. */
static int ds__blocks_guard(void (*block_fn)(ds_kernel_block *block, const void *args),
                            ds_kernel_block *b, size_t count, const void *args) {
    jmp_buf overflow;
    jmp_buf *outer = ds__scratch_overflow;
    ds__scratch_overflow = &overflow;
    int status =
        setjmp(overflow) ? DS__KERNEL_SCRATCH_SPENT : ds__blocks_run(block_fn, b, count, args);
    ds__scratch_overflow = outer;
    return status;
}

DSDEF int(ds_kernel_run_blocks)(void (*block_fn)(ds_kernel_block *block, const void *args),
                                const ds_kernel_dims *dims, size_t first, size_t count,
                                const void *args) {
    ds__scratch *chunk = ds__scratch_take();
    if (!chunk)
        return DS__KERNEL_NO_SCRATCH;
    ds_kernel_block b = { .scratch = chunk->memory };
    size_t row = first / dims->n[0];
    b.index[0] = (unsigned)(first - row * dims->n[0]);
    b.index[1] = (unsigned)(row % dims->n[1]);
    b.index[2] = (unsigned)(row / dims->n[1]);
    for (int axis = 0; axis < 3; axis++)
        b.grid[axis] = (unsigned)dims->n[axis];
    int status = ds__blocks_guard(block_fn, &b, count, args);
    ds__scratch_put(chunk);
    return status;
}

DSDEF void(ds_kernel_block_overflow)(void) {
    longjmp(*ds__scratch_overflow, 1);
}

/* kernel/definition.h - kernels that a program defines with macros.

   Creates the kernel of a definition at its first use (ds_kernel_def_get_kernel) and launches it
   (ds_kernel_def_launch).

   Invariants: a definition is in the list exactly while `epoch` is that of the library's present
   start; then `kernel` is valid. The epoch is stored last, so a launch that reads it needs no lock.
   Locks: `making` guards the list and the creation; the driver is not called under it.
   Threads: any. The list is emptied in ds_shutdown, while no other thread is inside of
   devstream. */

static struct {
    ds__mutex making;
    ds_kernel_def *list;
} ds__kernel_defs = { DS__MUTEX_INIT, NULL };

/* Destroys the kernels of all definitions. */
static void ds__kernel_defs_shutdown(void) {
    for (ds_kernel_def *def = ds__kernel_defs.list; def; def = def->next) {
        ds__kernel *k = ds__pin(&ds__g.kernels, def->kernel.id);
        if (k) {
            ds__table_invalidate(&ds__g.kernels, k);
            ds__unpin(&ds__g.kernels, k);
        }
    }
    ds__kernel_defs.list = NULL;
    ds__scratch_free_all();
}

static ds_result ds__kernel_def_create(ds_kernel_def *def, ds_kernel *out) {
    ds_kernel_desc desc = { .name = def->name,
                            .cpu_fn = def->cpu_fn,
                            .args_size = def->args_size,
                            .params = def->params,
                            .param_count = def->param_count,
                            .bytes_fn = def->bytes_fn,
                            .extents_fn = def->extents_fn,
                            .cuda = { .image_pieces = def->ptx,
                                      .entry = def->ptx ? def->name : NULL,
                                      .block = def->block,
                                      .items_per_block = def->items_per_block } };
    return ds__kernel_create(&desc, out);
}

/* The slow part of ds__kernel_def_get: creates the kernel, unless another thread did. */
static ds_result ds__kernel_def_get_slow(ds_kernel_def *def, ds_kernel *out) {
    static const ds__module module = { .shutdown = ds__kernel_defs_shutdown };
    ds_result r = DS_OK;
    uint32_t epoch = atomic_load(&ds__g.epoch);
    ds__mutex_lock(&ds__kernel_defs.making);
    if (def->epoch != epoch) {
        r = ds__kernel_def_create(def, &def->kernel);
        if (r == DS_OK) {
            ds__module_add(DS__MODULE_KERNEL, &module);
            def->next = ds__kernel_defs.list;
            ds__kernel_defs.list = def;
            __atomic_store_n(&def->epoch, epoch, __ATOMIC_RELEASE);
        }
    }
    out->id = r == DS_OK ? def->kernel.id : 0;
    ds__mutex_unlock(&ds__kernel_defs.making);
    return r;
}

/* Returns the kernel of a definition. */
static inline ds_result ds__kernel_def_get(ds_kernel_def *def, ds_kernel *out) {
    if (DS__UNLIKELY(__atomic_load_n(&def->epoch, __ATOMIC_ACQUIRE) != atomic_load(&ds__g.epoch)))
        return ds__kernel_def_get_slow(def, out);
    *out = def->kernel;
    return DS_OK;
}

DSDEF ds_result(ds_kernel_def_get_kernel)(ds_kernel_def *def, ds_kernel *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_kernel_def_get_kernel");
    DS__REQUIRE(def && out, "%s is NULL", def ? "out" : "def");
    return ds__kernel_def_get(def, out);
}

DSDEF ds_result(ds_kernel_def_launch)(ds_kernel_def *def, ds_stream stream,
                                      const ds_kernel_dims *dims, const void *args) {
    ds_result r = ds__api_enter_inline("ds_kernel_def_launch");
    if (DS__UNLIKELY(r < 0))
        return r;
    DS__REQUIRE(def, "def is NULL");
    DS__REQUIRE(dims && args, "%s is NULL", dims ? "args" : "dims");
    size_t items;
    int overflow = __builtin_mul_overflow(dims->n[0], dims->n[1], &items);
    overflow |= __builtin_mul_overflow(items, dims->n[2], &items);
    DS__REQUIRE(!overflow, "kernel %s: %zu x %zu x %zu items exceed size_t", def->name, dims->n[0],
                dims->n[1], dims->n[2]);
    ds_kernel kernel;
    r = ds__kernel_def_get(def, &kernel);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = ds__kernel_launch(kernel, items, NULL, args, def->args_size, stream);
    if (DS__UNLIKELY(r == DS_ERR_UNSUPPORTED) && !def->ptx)
        return ds__fail_append(r, "; run `devstream-kernels %s` and compile again", def->source);
    return r;
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
