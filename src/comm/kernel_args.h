/* comm/kernel_args.h - kernel arguments and f16 conversions.

   Defines the argument structs of the kernels (ds__comm_reduce_args, ds__comm_divide_args,
   ds__comm_pack_args) and computes the masks of a kind of numbers (ds__comm_masks_of).
   DS__COMM_F16_MATH generates the conversions between f16 and f32 for single words and for
   vectors.

   Invariants: the members of a struct match its parameter list in kernel.h and the parameters in
   kernels/comm.cu. ds__comm_size follows the order of the kinds in kernel_arith.h. An item of
   the CPU form is DS__COMM_ITEM bytes of the result. The conversions give the same bits even if
   the processor flushes subnormal numbers to zero.
   Locks: none.
   Threads: any; the functions have no state. */
#ifndef DS__COMM_KERNEL_ARGS_H
#define DS__COMM_KERNEL_ARGS_H

#include "../os/os.h"
#include "kernel_arith.h"

/* Conversions of f16 in the low half of a word to f32 and back; a GPU has instructions for them. U
   and S are unsigned and signed words, or vectors of words. Subnormal numbers of f16 are shifted by
   an addition or subtraction of floats that are not subnormal. The result is therefore the same if
   the processor flushes subnormal numbers to zero. */
#define DS__COMM_F16_MATH(FN, SET, U, S, FLOAT, BITS)                                       \
    FN void ds__comm_widen_f16_##SET(U *x) {                                                \
        U sign = (*x & 0x8000u) << 16, m = (*x & 0x7fffu) << 13;                            \
        U special = (U)((S)(0x0f7fffffu - m) >> 31), low = (U)((S)(m - 0x00800000u) >> 31); \
        m += 0x38000000u + (special & 0x38000000u) + (low & 0x00800000u);                   \
        *x = sign | BITS(FLOAT(m) - FLOAT(low & 0x38800000u));                              \
    }                                                                                       \
    FN void ds__comm_narrow_f16_##SET(U *x) {                                               \
        U sign = *x >> 16 & 0x8000u, m = *x & 0x7fffffffu, tiny;                            \
        U nan = (U)((S)(0x7f800000u - m) >> 31), big = (U)((S)(0x47800000u - m) >> 31),     \
          low = (U)((S)(m - 0x38800000u) >> 31);                                            \
        m = (m & ~big) | (big & 0x47800000u);                                               \
        tiny = BITS(FLOAT(m) + FLOAT((m & 0u) + 0x3f000000u)) - 0x3f000000u;                \
        m = (m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13;                              \
        *x = (nan & 0x7e00u) | (~nan & (sign | (low & tiny) | (~low & m)));                 \
    }
DS__COMM_F16_MATH(DS__COMM_FN, f32, uint32_t, int32_t, ds__f32_of, ds__f32_bits)

/* Arguments of both forms. An item of the CPU form is DS__COMM_ITEM bytes of the result. */
enum { DS__COMM_ITEM = 16 << 10 };

typedef struct ds__comm_reduce_args {
    /* may be one of the inputs; with DS__COMM_WIDE_OUT only the first */
    void *out;
    ds__comm_inputs in;
    uint64_t bytes; /* of the result; f16 and bf16: as if the result were not wide */
    ds__comm_masks masks;
    uint32_t inputs; /* 1 to DS__COMM_INPUTS */
    uint32_t op;
    uint32_t divisor; /* 0 or 1: no division; integers: always 0 */
    uint32_t kind;
    uint32_t wide; /* DS__COMM_WIDE_*; f16 and bf16 only */
} ds__comm_reduce_args;

typedef struct ds__comm_divide_args {
    void *out;
    uint64_t bytes;
    uint32_t kind;
    uint32_t divisor;
} ds__comm_divide_args;

typedef struct ds__comm_pack_args {
    char *dst;
    const char *src;
    ds__comm_dims dims;
    uint64_t elements;
    uint32_t ndim;   /* 1 to DS__COMM_DIMS */
    uint32_t size;   /* bytes of an element: 1, 2, 4, 8 or 16 */
    uint32_t narrow; /* 1: ds__comm_pack_narrow has filled in dims.narrow */
} ds__comm_pack_args;

/* by kind */
static const unsigned char ds__comm_size[] = { 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16 };

/* Returns the masks with which the device code computes numbers of a kind. */
static ds__comm_masks ds__comm_masks_of(uint32_t kind, uint32_t op) {
    static const unsigned char mantissas[] = { 10, 7, 23, 52 }; /* from DS__COMM_F16 on */
    uint32_t size = ds__comm_size[kind];
    ds__comm_masks m = { 0, 0, 0, 0, 0, 8 * size - 1, 16 - size };
    uint64_t each;
    /* complex numbers are not compared */
    if (size > 8 || kind == DS__COMM_C64)
        return m;
    each = UINT64_MAX / (UINT64_MAX >> (64 - 8 * size));
    m.top = each << (8 * size - 1);
    if (kind >= DS__COMM_F16) {
        uint32_t mantissa = mantissas[kind - DS__COMM_F16];
        m.sign = m.top;
        m.room = each * (((uint64_t)1 << mantissa) - 1);
        m.quiet = m.top - each - each * (((uint64_t)1 << (mantissa - 1)) - 1);
    }
    m.flip = kind >= DS__COMM_I8 && kind <= DS__COMM_I64 ? m.top : 0;
    if (op == DS__COMM_MIN)
        m.flip = ~m.flip;
    return m;
}

#endif
