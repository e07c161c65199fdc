/* math.kernels.h - the arithmetic of kernels: a kernel per function of tests/unit/kernel_math.h.
   For tests/conformance/test_kernel_math.c and tests/compile/kernel_math.c. */
#ifndef MATH_KERNELS_H
#define MATH_KERNELS_H
#include "devstream_kernel.h"
#if __has_include("math.ptx.h")
#include "math.ptx.h"
#endif
#include "../../unit/kernel_math.h"

/* math_expf, math_plain and others: out[i] = expression of x, y and z. */
#define MATH_KERNEL(name, type, expression)                                  \
    DS_KERNEL_1D(name, i, n, DS_READ(type, in_x, n), DS_READ(type, in_y, n), \
                 DS_READ(type, in_z, n), DS_WRITE(type, out, n)) {           \
        type x = in_x[i];                                                    \
        type y = in_y[i];                                                    \
        type z = in_z[i];                                                    \
        (void)y;                                                             \
        (void)z;                                                             \
        out[i] = expression;                                                 \
    }
#define X(name, expression) MATH_KERNEL(math_##name, float, expression)
MATH_FLOATS(X)
MATH_FAST(X)
#undef X
#define X(name, expression) MATH_KERNEL(math_##name, double, expression)
MATH_DOUBLES(X)
#undef X
#define X(name, expression) MATH_KERNEL(math_##name, uint64_t, expression)
MATH_INTEGERS(X)
#undef X
#endif
