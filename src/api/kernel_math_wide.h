/* api/kernel_math_wide.h - exponential, trigonometric and hyperbolic functions in float64.

   These are libm's on the CPU. In device code they are nvcc's own, or with clang those of
   libdevice, NVIDIA's library in LLVM's format. The compilation defines DEVSTREAM_KERNEL_LIBDEVICE
   and links the library:
       -Xclang -mlink-builtin-bitcode -Xclang $CUDA_HOME/nvvm/libdevice/libdevice.10.bc
   Without it a use is an error.

   Errors in ulp. CUDA: CUDA C++ Programming Guide 13.0, "Mathematical Functions". glibc: glibc
   manual 2.41, "Known Maximum Errors in Math Functions", x86-64, rounding to nearest.

              CUDA   glibc
     ds_exp   1      1
     ds_log   1      1
     ds_sin   2      1
     ds_cos   2      1
     ds_tanh  1      2
     ds_pow   2      1

   Invariants: the two forms need not have the same bits.
   Locks: none.
   Threads: any. */
#ifndef DS__API_KERNEL_MATH_WIDE_H
#define DS__API_KERNEL_MATH_WIDE_H

#include "kernel_target.h"

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

#endif
