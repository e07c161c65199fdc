/* comm/kernel_arith.h - arithmetic of reductions on both drivers.

   Defines the operations, the kinds of numbers and the arithmetic of the reduction kernels. The
   CPU form and the device code (kernels/comm.cu) include this room.

   Policy: the result of a reduction has the same bits on every device.
   1. The value is ((in[0] op in[1]) op in[2]) op ... Each step is rounded as IEEE 754 says, and
      nothing is fused. Integers wrap. f16 and bf16 are widened to f32 and rounded once, at the
      end, to nearest even. For bool, sum and maximum are `or`; product and minimum are `and`.
   2. Maximum and minimum are NaN if one of the numbers is NaN; +0 is larger than -0.
   3. The average is the sum divided by the number of inputs, rounded. The average of integers is
      truncated towards zero.
   4. Every NaN is written as the same value: positive, quiet, without payload.
   5. If there are more inputs than one launch takes, there are several launches. Then in[0] of a
      later launch is the result of the launch before. That result is kept in f32 for f16 and
      bf16 (DS__COMM_WIDE_*), and only the last launch divides. The result therefore does not
      depend on the division into launches.

   Invariants: enums and structs here are part of the interface to the device code. A change
   needs `make kernels`.
   Locks: none.
   Threads: any; the functions have no state. */
#ifndef DS__COMM_KERNEL_ARITH_H
#define DS__COMM_KERNEL_ARITH_H

#include "../os/device_code.h"

enum { DS__COMM_SUM, DS__COMM_PRODUCT, DS__COMM_MAX, DS__COMM_MIN };

enum {
    DS__COMM_U8,
    DS__COMM_U16,
    DS__COMM_U32,
    DS__COMM_U64,
    DS__COMM_I8,
    DS__COMM_I16,
    DS__COMM_I32,
    DS__COMM_I64,
    DS__COMM_F16,
    DS__COMM_BF16,
    DS__COMM_F32,
    DS__COMM_F64,
    DS__COMM_C64, /* complex: only the product */
    DS__COMM_C128 /* complex: only the product */
};

enum { DS__COMM_WIDE_IN = 1, DS__COMM_WIDE_OUT = 2 };

enum { DS__COMM_INPUTS = 8, DS__COMM_DIMS = 8 };

typedef struct ds__comm_inputs {
    const void *at[DS__COMM_INPUTS];
} ds__comm_inputs;

/* A dimension with the factor and the shift that take the place of a division by its size. For
   n < 2^31, n / size is (n + (n magic >> 32)) >> shift (Granlund, Montgomery: Division by invariant
   integers using multiplication, 1994). */
typedef struct ds__comm_narrow_dim {
    uint32_t magic, shift, size;
    int32_t dst, src;
} ds__comm_narrow_dim;

/* Dimensions of a strided copy, the innermost last; strides in bytes. */
typedef struct ds__comm_dims {
    uint64_t size[DS__COMM_DIMS];
    int64_t dst[DS__COMM_DIMS], src[DS__COMM_DIMS];
    /* the same, if ds__comm_pack_args.narrow is 1; the outermost, without factor and shift, then
       the others from the innermost on */
    ds__comm_narrow_dim narrow[DS__COMM_DIMS];
} ds__comm_dims;

/* Masks with which the device code compares numbers that are packed into a word, and adds integers.
   Each is repeated for all numbers of the word. */
typedef struct ds__comm_masks {
    uint64_t top;  /* the highest bit of each */
    uint64_t sign; /* floats: the highest bit; else 0 */
    /* bits to invert so that numbers compare like unsigned ones; for the minimum all others, too */
    uint64_t flip;
    /* floats: added to a number without its sign, the sum reaches the highest bit if and only if
       the number is NaN; else 0 */
    uint64_t room;
    uint64_t quiet; /* floats: the NaN that is written; else 0 */
    uint32_t shift; /* bits - 1 */
    uint32_t skew;  /* 16 - bytes of a number */
} ds__comm_masks;

#ifndef DS__COMM_FN
#define DS__COMM_FN static inline __attribute__((always_inline))
#endif

DS__DEVICE float ds__f32_of(uint32_t bits) {
    union {
        uint32_t u;
        float f;
    } x;

    x.u = bits;
    return x.f;
}

DS__DEVICE double ds__f64_of(uint64_t bits) {
    union {
        uint64_t u;
        double f;
    } x;

    x.u = bits;
    return x.f;
}

DS__DEVICE uint32_t ds__f32_bits(float value) {
    union {
        uint32_t u;
        float f;
    } x;

    x.f = value;
    return x.u;
}

DS__DEVICE uint64_t ds__f64_bits(double value) {
    union {
        uint64_t u;
        double f;
    } x;

    x.f = value;
    return x.u;
}

/* The end of a reduction: divides an average, and replaces every NaN by the same NaN. */
DS__COMM_FN void ds__comm_end_f32(uint32_t divisor, uint32_t *a) {
    float f = ds__f32_of(*a);
    if (divisor > 1)
        f = f / (float)divisor;
    uint32_t nan = 0u - (uint32_t)(f != f);
    *a = (ds__f32_bits(f) & ~nan) | (nan & 0x7fc00000u);
}

DS__COMM_FN void ds__comm_end_f64(uint32_t divisor, uint64_t *a) {
    double f = ds__f64_of(*a);
    if (divisor > 1)
        f = f / (double)divisor;
    uint64_t nan = (uint64_t)0 - (uint64_t)(f != f);
    *a = (ds__f64_bits(f) & ~nan) | (nan & 0x7ff8000000000000u);
}

/* Convert bf16 in the low half of a word to f32 and back. */
DS__COMM_FN void ds__comm_widen_bf16_f32(uint32_t *x) {
    *x = *x << 16;
}

DS__COMM_FN void ds__comm_narrow_bf16_f32(uint32_t *x) {
    uint32_t nan = (uint32_t)((int32_t)(0x7f800000u - (*x & 0x7fffffffu)) >> 31);
    *x = (nan & 0x7fc0u) | (~nan & ((*x + 0x7fffu + (*x >> 16 & 1u)) >> 16));
}

/* a *= x by the definition of the product, without C's special rules for infinities. */
#define DS__COMM_MULTIPLY(NAME, T)                                                \
    DS__COMM_FN void NAME(T *a, const T *x) {                                     \
        T rr = a[0] * x[0], ii = a[1] * x[1], ri = a[0] * x[1], ir = a[1] * x[0]; \
        DS__ROUNDED(rr);                                                          \
        DS__ROUNDED(ii);                                                          \
        DS__ROUNDED(ri);                                                          \
        DS__ROUNDED(ir);                                                          \
        a[0] = rr - ii;                                                           \
        a[1] = ri + ir;                                                           \
    }
DS__COMM_MULTIPLY(ds__comm_multiply_c64, float)
DS__COMM_MULTIPLY(ds__comm_multiply_c128, double)

#endif
