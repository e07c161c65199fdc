/* api/kernel_target.h - qualifiers and operations of kernel source, for both forms.

   A kernel file is compiled twice: as C or C++ for the CPU driver, and as device code for GPUs by
   devstream-kernels, which defines DEVSTREAM_KERNEL_DEVICE. This room defines the differing parts:
   function qualifiers, shared memory, barriers, thread indices, and operations with their own
   instructions on CPU and GPU.

   Invariants: device code includes this header and the kernel file only. clang compiles without
   CUDA's headers (-nocudainc -nocudalib); nvcc includes its own. No operation of this room is
   contracted: clang gets the pragma below, gcc the attribute DS__KERNEL_EXACT on each loop, the
   device compilers -ffp-contract=off or --fmad=false.
   Locks: none.
   Threads: any. */
#ifndef DS__API_KERNEL_TARGET_H
#define DS__API_KERNEL_TARGET_H

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

#endif
