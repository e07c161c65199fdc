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

#include "api/kernel_target.h"
#include "api/kernel_math.h"
#include "api/kernel_math_exp.h"
#include "api/kernel_math_trig.h"
#include "api/kernel_math_pow.h"
#include "api/kernel_math_wide.h"
#include "api/kernel_math_fast.h"
#include "api/kernel_atomic.h"
#include "api/kernel_dims.h"
#include "api/kernel_params.h"

#ifndef DEVSTREAM_KERNEL_DEVICE
#ifdef __cplusplus
extern "C" {
#endif

#include "api/kernel_def.h"

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* host */

#include "api/kernel_common.h"
#include "api/kernel_items.h"
#include "api/kernel_block.h"
#include "api/kernel_math.h"
#include "api/kernel_math_exp.h"
#include "api/kernel_math_trig.h"
#include "api/kernel_math_pow.h"
#include "api/kernel_math_fast.h"
#include "api/kernel_math_wide.h"
#include "api/kernel_atomic.h"

#ifndef DEVSTREAM_KERNEL_DEVICE
#ifndef DEVSTREAM_NO_SITES
#include "api/devstream_kernel_sites.gen.h"
#endif
#endif

#endif /* DEVSTREAM_KERNEL_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_KERNEL_H_IMPLEMENTED)
#define DEVSTREAM_KERNEL_H_IMPLEMENTED
#ifndef __cplusplus

#include "kernel/scratch.h"
#include "kernel/definition.h"

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
