/* os/device_code.h - what arithmetic shared with device code needs.

   Defines DS__DEVICE, DS__CONSTANT, DS__ROUNDED, ds__float_sqrt and ds__double_sqrt for rooms that
   are compiled both as C and as device code: the arithmetic of the kernels in comm/ and rng/. For
   device code kernels/device.h defines all of them before it includes such a room.

   Invariants: a room that uses them includes nothing else but this room.
   Locks: none.
   Threads: any. */
#ifndef DS__OS_DEVICE_CODE_H
#define DS__OS_DEVICE_CODE_H

#ifndef DS__DEVICE
#include <stdint.h>
#include <string.h>
#define DS__DEVICE static inline
#define DS__CONSTANT static const

/* Rounds a floating-point number or a vector of them to its type here. A product is not fused
   with the sum that follows, whatever the compiler was told about contraction. */
#if defined(__x86_64__)
#define DS__ROUNDED(x) __asm__("" : "+x"(x))
#else
#define DS__ROUNDED(x) __asm__("" : "+w"(x))
#endif

/* The square root by the processor's instruction: a builtin may call the C library, which sets
   errno. */
static inline float ds__float_sqrt(float x) {
    float r;
#if defined(__x86_64__)
    __asm__("sqrtss %1, %0" : "=x"(r) : "x"(x));
#else
    __asm__("fsqrt %s0, %s1" : "=w"(r) : "w"(x));
#endif
    return r;
}

static inline double ds__double_sqrt(double x) {
    double r;
#if defined(__x86_64__)
    __asm__("sqrtsd %1, %0" : "=x"(r) : "x"(x));
#else
    __asm__("fsqrt %d0, %d1" : "=w"(r) : "w"(x));
#endif
    return r;
}
#endif

#endif
