/* comm.h - what the kernels of the collectives compute: the arithmetic, once for the device (comm.cu) and for the CPU, and the
   CPU forms. tools/kernels.sh copies the marked parts into devstream_comm.h. */
#ifndef COMM_H_INCLUDED
#define COMM_H_INCLUDED
#include "device.h"

#ifdef __CUDA__
#define DS__COMM_FN DEVICE
#define DS__COMM_ROUNDED(x) (void)0
#endif
/* >>shared */

/* What a reduction gives, bit for bit, on every device:
   - ((in[0] op in[1]) op in[2]) op ...: each step rounded as IEEE 754 says, nothing fused. f16 and bf16 are widened to f32 and
     rounded once, at the end, to nearest even. Integers wrap. bool is or (sum, max) and and (product, min).
   - Largest and smallest are NaN if one of the numbers is; +0 is larger than -0.
   - The average is the sum divided by the number of inputs, rounded; that of integers is cut towards zero.
   - Whatever is NaN is written as one and the same: positive, quiet, no payload.
   More inputs than a launch takes are cut into several; then in[0] of a later launch is what the one before gave, which for f16
   and bf16 is kept in f32 (DS__COMM_WIDE_*), and only the last divides. So the result does not depend on how it was cut. */
enum { DS__COMM_SUM, DS__COMM_PRODUCT, DS__COMM_MAX, DS__COMM_MIN };
enum { DS__COMM_U8, DS__COMM_U16, DS__COMM_U32, DS__COMM_U64, DS__COMM_I8, DS__COMM_I16, DS__COMM_I32, DS__COMM_I64,
       DS__COMM_F16, DS__COMM_BF16, DS__COMM_F32, DS__COMM_F64, DS__COMM_C64, DS__COMM_C128 }; /* complex: only the product */
enum { DS__COMM_WIDE_IN = 1, DS__COMM_WIDE_OUT = 2 };
enum { DS__COMM_INPUTS = 8, DS__COMM_DIMS = 8 };

typedef struct ds__comm_inputs { const void *at[DS__COMM_INPUTS]; } ds__comm_inputs;

/* Of a copy, the innermost dimension last; distances in bytes. */
typedef struct ds__comm_dims {
    uint64_t size[DS__COMM_DIMS];
    int64_t dst[DS__COMM_DIMS], src[DS__COMM_DIMS];
} ds__comm_dims;

/* How the device compares numbers of `bits` that lie side by side in a word, and adds integers. */
typedef struct ds__comm_masks {
    uint64_t top;   /* the highest bit of each */
    uint64_t sign;  /* the same of floats, else 0 */
    uint64_t flip;  /* what is turned over so that they compare as without a sign, and the other way round for the smallest */
    uint64_t room;  /* added to a float without its sign it reaches the highest bit if, and only if, that is NaN; else 0 */
    uint64_t quiet; /* NaN; else 0 */
    uint32_t shift; /* bits - 1 */
    uint32_t skew;  /* 16 - bytes of a number */
} ds__comm_masks;

#ifndef DS__COMM_FN
#define DS__COMM_FN static inline __attribute__((always_inline))
/* A product that is not to be fused with the sum it goes into, whatever the compiler was told about contraction. */
#if defined(__x86_64__)
#define DS__COMM_ROUNDED(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define DS__COMM_ROUNDED(x) __asm__("" : "+w"(x))
#else
#define DS__COMM_ROUNDED(x) __asm__("" : "+m"(x))
#endif
#endif

DEVICE float ds__f32_of(uint32_t bits) { union { uint32_t u; float f; } x; x.u = bits; return x.f; }
DEVICE double ds__f64_of(uint64_t bits) { union { uint64_t u; double f; } x; x.u = bits; return x.f; }
DEVICE uint32_t ds__f32_bits(float value) { union { uint32_t u; float f; } x; x.f = value; return x.u; }
DEVICE uint64_t ds__f64_bits(double value) { union { uint64_t u; double f; } x; x.f = value; return x.u; }

/* The arithmetic, for single numbers and for vectors of them. U holds the bits of an F, T is one number of F, TRUTH makes ones of
   a true comparison and zeros of a false one. */
#define DS__COMM_MATH(FN, SET, U, F, T, FLOAT, BITS, TRUTH, NOT_A_NUMBER) \
    FN void ds__comm_step_##SET(uint32_t op, U *a, const U *x) { \
        F f = FLOAT(*a), g = FLOAT(*x); \
        if (op == DS__COMM_SUM) { \
            *a = BITS(f + g); \
        } else if (op == DS__COMM_PRODUCT) { \
            *a = BITS(f * g); \
        } else { /* what is equal differs at most in the sign of a zero */ \
            U same = TRUTH(g == f), take = op == DS__COMM_MAX ? TRUTH(g > f) : TRUTH(g < f); \
            take |= TRUTH(g != g); \
            *a = (*x & take) | (~take & (op == DS__COMM_MAX ? *a & (*x | ~same) : *a | (*x & same))); \
        } \
    } \
    FN void ds__comm_end_##SET(uint32_t divisor, U *a) { \
        F f = FLOAT(*a); \
        if (divisor > 1) f = f / (T)divisor; \
        U nan = TRUTH(f != f); \
        *a = (BITS(f) & ~nan) | (nan & (NOT_A_NUMBER)); \
    }

/* bf16 in the low half of a word, to f32 and back. S is U with a sign. */
#define DS__COMM_BF16_MATH(FN, SET, U, S) \
    FN void ds__comm_widen_bf16_##SET(U *x) { *x = *x << 16; } \
    FN void ds__comm_narrow_bf16_##SET(U *x) { \
        U nan = (U)((S)(0x7f800000u - (*x & 0x7fffffffu)) >> 31); \
        *x = (nan & 0x7fc0u) | (~nan & ((*x + 0x7fffu + (*x >> 16 & 1u)) >> 16)); \
    }

#define DS__COMM_TRUTH_32(c) (0u - (uint32_t)(c))
#define DS__COMM_TRUTH_64(c) ((uint64_t)0 - (uint64_t)(c))
DS__COMM_MATH(DS__COMM_FN, f32, uint32_t, float, float, ds__f32_of, ds__f32_bits, DS__COMM_TRUTH_32, 0x7fc00000u)
DS__COMM_MATH(DS__COMM_FN, f64, uint64_t, double, double, ds__f64_of, ds__f64_bits, DS__COMM_TRUTH_64, 0x7ff8000000000000u)
DS__COMM_BF16_MATH(DS__COMM_FN, f32, uint32_t, int32_t)

/* Of an average of integers; v is zero above the number's bits, and what is returned means nothing there. */
DS__COMM_FN uint64_t ds__comm_quotient(uint64_t v, uint32_t kind, uint32_t divisor) {
    uint32_t bits = 8u << (kind & 3);
    uint64_t sign = kind >= DS__COMM_I8 ? 0 - (v >> (bits - 1)) : 0;
    v = ((v ^ sign) - sign) << (64 - bits) >> (64 - bits);
    return ((v / divisor) ^ sign) - sign;
}

/* a *= x, as the definition has it: of infinities it may make NaN. */
#define DS__COMM_MULTIPLY(NAME, T) \
    DS__COMM_FN void NAME(T *a, const T *x) { \
        T rr = a[0] * x[0], ii = a[1] * x[1], ri = a[0] * x[1], ir = a[1] * x[0]; \
        DS__COMM_ROUNDED(rr); DS__COMM_ROUNDED(ii); DS__COMM_ROUNDED(ri); DS__COMM_ROUNDED(ir); \
        a[0] = rr - ii; \
        a[1] = ri + ir; \
    }
DS__COMM_MULTIPLY(ds__comm_multiply_c64, float)
DS__COMM_MULTIPLY(ds__comm_multiply_c128, double)
/* <<shared */

#ifndef __CUDA__
#include <string.h>
/* >>shared */

/* f16 in the low half of a word, to f32 and back, which on a GPU are instructions. What is subnormal in f16 is brought in place by
   an addition or subtraction of floats in which nothing is subnormal, so that no flushing of those to zero can be seen. */
#define DS__COMM_F16_MATH(FN, SET, U, S, FLOAT, BITS) \
    FN void ds__comm_widen_f16_##SET(U *x) { \
        U sign = (*x & 0x8000u) << 16, m = (*x & 0x7fffu) << 13; \
        U special = (U)((S)(0x0f7fffffu - m) >> 31), small = (U)((S)(m - 0x00800000u) >> 31); \
        m += 0x38000000u + (special & 0x38000000u) + (small & 0x00800000u); \
        *x = sign | BITS(FLOAT(m) - FLOAT(small & 0x38800000u)); \
    } \
    FN void ds__comm_narrow_f16_##SET(U *x) { \
        U sign = *x >> 16 & 0x8000u, m = *x & 0x7fffffffu, tiny; \
        U nan = (U)((S)(0x7f800000u - m) >> 31), big = (U)((S)(0x47800000u - m) >> 31), small = (U)((S)(m - 0x38800000u) >> 31); \
        m = (m & ~big) | (big & 0x47800000u); \
        tiny = BITS(FLOAT(m) + FLOAT((m & 0u) + 0x3f000000u)) - 0x3f000000u; \
        m = (m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13; \
        *x = (nan & 0x7e00u) | (~nan & (sign | (small & tiny) | (~small & m))); \
    }
DS__COMM_F16_MATH(DS__COMM_FN, f32, uint32_t, int32_t, ds__f32_of, ds__f32_bits)

/* The arguments of both forms. An item of the CPU's is DS__COMM_ITEM bytes of the result. */
enum { DS__COMM_ITEM = 16 << 10 };

typedef struct ds__comm_reduce_args {
    void *out;             /* may be one of the inputs, but with DS__COMM_WIDE_OUT none after the first */
    ds__comm_inputs in;
    uint64_t bytes;        /* of the result; in halves, even if it is wide */
    ds__comm_masks masks;
    uint32_t inputs;       /* 1 to DS__COMM_INPUTS */
    uint32_t op;
    uint32_t divisor;      /* 0 and 1: none; of integers always */
    uint32_t kind;
    uint32_t wide;         /* DS__COMM_WIDE_*, of halves only */
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
    uint32_t ndim;         /* 1 to DS__COMM_DIMS */
    uint32_t size;         /* bytes of an element: 1, 2, 4, 8 or 16 */
} ds__comm_pack_args;

static const unsigned char ds__comm_size[] = { 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16 }; /* by kind */

static ds__comm_masks ds__comm_masks_of(uint32_t kind, uint32_t op) {
    uint32_t size = ds__comm_size[kind], mantissa = kind == DS__COMM_F16 ? 10 : kind == DS__COMM_BF16 ? 7 : kind == DS__COMM_F32 ? 23 : 52;
    ds__comm_masks m = { 0, 0, 0, 0, 0, 8 * size - 1, 16 - size };
    uint64_t each;
    if (size > 8 || kind == DS__COMM_C64) return m; /* complex numbers are not compared */
    each = UINT64_MAX / (UINT64_MAX >> (64 - 8 * size));
    m.top = each << (8 * size - 1);
    if (kind >= DS__COMM_F16) {
        m.sign = m.top;
        m.room = each * (((uint64_t)1 << mantissa) - 1);
        m.quiet = m.top - each - each * (((uint64_t)1 << (mantissa - 1)) - 1);
    }
    m.flip = kind >= DS__COMM_I8 && kind <= DS__COMM_I64 ? m.top : 0;
    if (op == DS__COMM_MIN) m.flip = ~m.flip;
    return m;
}

#define DS__COMM_TYPES(W) \
    typedef uint8_t ds__vu8_##W __attribute__((vector_size(W))); \
    typedef uint16_t ds__vu16_##W __attribute__((vector_size(W))); \
    typedef uint32_t ds__vu32_##W __attribute__((vector_size(W))); \
    typedef uint64_t ds__vu64_##W __attribute__((vector_size(W))); \
    typedef int8_t ds__vi8_##W __attribute__((vector_size(W))); \
    typedef int16_t ds__vi16_##W __attribute__((vector_size(W))); \
    typedef int32_t ds__vi32_##W __attribute__((vector_size(W))); \
    typedef int64_t ds__vi64_##W __attribute__((vector_size(W))); \
    typedef float ds__vf32_##W __attribute__((vector_size(W))); \
    typedef double ds__vf64_##W __attribute__((vector_size(W))); \
    typedef struct ds__halves_##W { ds__vu32_##W x, y; } ds__halves_##W;

/* Stores that go around the caches, for results that do not fit there. */
#if defined(__x86_64__) && !defined(DS__SANITIZED)
#define DS__COMM_CAN_STREAM 1
#ifdef __clang__
#define DS__COMM_STREAM_16(to, v) __builtin_nontemporal_store((ds__vf32_16)(v), (ds__vf32_16 *)(void *)(to))
#define DS__COMM_STREAM_32(to, v) __builtin_nontemporal_store((ds__vf32_32)(v), (ds__vf32_32 *)(void *)(to))
#else
#define DS__COMM_STREAM_16(to, v) __builtin_ia32_movntps((float *)(void *)(to), (ds__vf32_16)(v))
#define DS__COMM_STREAM_32(to, v) __builtin_ia32_movntps256((float *)(void *)(to), (ds__vf32_32)(v))
#endif
#else
#define DS__COMM_CAN_STREAM 0
#define DS__COMM_STREAM_16(to, v) memcpy((to), &(v), 16)
#define DS__COMM_STREAM_32(to, v) memcpy((to), &(v), 32)
#endif
enum { DS__COMM_STREAM_BYTES = 32 << 20 };

/* 1: a mask is not empty. */
#if defined(__x86_64__)
#define DS__COMM_ANY_16(mask) (__builtin_ia32_movmskps((ds__vf32_16)(mask)) != 0)
#define DS__COMM_ANY_32(mask) (__builtin_ia32_movmskps256((ds__vf32_32)(mask)) != 0)
#else
#define DS__COMM_ANY_16(mask) ((((ds__vu64_16)(mask))[0] | ((ds__vu64_16)(mask))[1]) != 0)
#endif

/* All inputs side by side, so that they stream, and the results stay in registers. Every input is read before its place in `out`
   is written. take makes of memory what the arithmetic works on, of type A; step puts two of them together; give turns them back.
   ORDER: only for the largest and smallest. bytes is a multiple of DS__COMM_BLOCK. */
enum { DS__COMM_BLOCK = 128 };
#define DS__COMM_LOOP(RUN, FN, KIND, W, A, BYTES, ORDER) \
    FN void ds__comm_loop_##KIND##_##W(uint32_t op, char *out, const char *const *in, uint32_t inputs, uint32_t divisor, size_t bytes, \
                                       int around) { \
        for (size_t at = 0; at < bytes; at += 2 * (BYTES)) { \
            A a, b, x, y; \
            ds__comm_take_##KIND##_##W(&a, in[0] + at); \
            ds__comm_take_##KIND##_##W(&b, in[0] + at + (BYTES)); \
            for (uint32_t k = 1; k < inputs; k++) { \
                ds__comm_take_##KIND##_##W(&x, in[k] + at); \
                ds__comm_take_##KIND##_##W(&y, in[k] + at + (BYTES)); \
                ds__comm_step_##KIND##_##W(op, &a, &x); \
                ds__comm_step_##KIND##_##W(op, &b, &y); \
            } \
            ds__comm_give_##KIND##_##W(out + at, &a, divisor, around); \
            ds__comm_give_##KIND##_##W(out + at + (BYTES), &b, divisor, around); \
        } \
    } \
    RUN void ds__comm_run_##KIND##_##W(uint32_t op, char *out, const char *const *in, uint32_t inputs, uint32_t divisor, size_t bytes, \
                                       int around) { \
        if (op == DS__COMM_MAX) ds__comm_loop_##KIND##_##W(DS__COMM_MAX, out, in, inputs, divisor, bytes, around); \
        else if (op == DS__COMM_MIN) ds__comm_loop_##KIND##_##W(DS__COMM_MIN, out, in, inputs, divisor, bytes, around); \
        else if (!(ORDER) && op == DS__COMM_SUM) ds__comm_loop_##KIND##_##W(DS__COMM_SUM, out, in, inputs, divisor, bytes, around); \
        else if (!(ORDER)) ds__comm_loop_##KIND##_##W(DS__COMM_PRODUCT, out, in, inputs, divisor, bytes, around); \
    }

#define DS__COMM_PUT(W, to, v, around) \
    do { \
        if (around) DS__COMM_STREAM_##W(to, v); \
        else memcpy((to), &(v), (W)); \
    } while (0)

/* Of floats of type F whose bits are in x and y; most of the time there is nothing left to do. */
#define DS__COMM_END(KIND, W, F, divisor, x, y) \
    do { \
        if ((divisor) > 1 || DS__COMM_ANY_##W(((F)(x) != (F)(x)) | ((F)(y) != (F)(y)))) { \
            ds__comm_end_##KIND##_##W(divisor, &(x)); \
            ds__comm_end_##KIND##_##W(divisor, &(y)); \
        } \
    } while (0)

/* Two vectors as they are. */
#define DS__COMM_PAIR(FN, KIND, W, V) \
    typedef struct ds__pair_##KIND##_##W { V x, y; } ds__pair_##KIND##_##W; \
    FN void ds__comm_take_##KIND##_##W(ds__pair_##KIND##_##W *a, const char *p) { \
        memcpy(&a->x, p, (W)); \
        memcpy(&a->y, p + (W), (W)); \
    }

/* Integers; the division of an average comes afterwards. U is V without a sign. */
#define DS__COMM_INTEGER(RUN, FN, KIND, W, V, U, ORDER) \
    DS__COMM_PAIR(FN, KIND, W, V) \
    FN void ds__comm_one_##KIND##_##W(uint32_t op, V *a, const V *x) { \
        if (op == DS__COMM_SUM) { \
            *a = (V)((U)*a + (U)*x); \
        } else if (op == DS__COMM_PRODUCT) { \
            *a = (V)((U)*a * (U)*x); \
        } else { \
            V more = (V)(*x > *a); \
            *a = op == DS__COMM_MAX ? (*x & more) | (*a & ~more) : (*a & more) | (*x & ~more); \
        } \
    } \
    FN void ds__comm_step_##KIND##_##W(uint32_t op, ds__pair_##KIND##_##W *a, const ds__pair_##KIND##_##W *x) { \
        ds__comm_one_##KIND##_##W(op, &a->x, &x->x); \
        ds__comm_one_##KIND##_##W(op, &a->y, &x->y); \
    } \
    FN void ds__comm_give_##KIND##_##W(char *to, const ds__pair_##KIND##_##W *a, uint32_t divisor, int around) { \
        (void)divisor; \
        DS__COMM_PUT(W, to, a->x, around); \
        DS__COMM_PUT(W, to + (W), a->y, around); \
    } \
    DS__COMM_LOOP(RUN, FN, KIND, W, ds__pair_##KIND##_##W, 2 * (W), ORDER)

#define DS__COMM_REAL(RUN, FN, KIND, W, V, F) \
    DS__COMM_PAIR(FN, KIND##s, W, V) \
    FN void ds__comm_step_##KIND##s_##W(uint32_t op, ds__pair_##KIND##s_##W *a, const ds__pair_##KIND##s_##W *x) { \
        ds__comm_step_##KIND##_##W(op, &a->x, &x->x); \
        ds__comm_step_##KIND##_##W(op, &a->y, &x->y); \
    } \
    FN void ds__comm_give_##KIND##s_##W(char *to, ds__pair_##KIND##s_##W *a, uint32_t divisor, int around) { \
        DS__COMM_END(KIND, W, F, divisor, a->x, a->y); \
        DS__COMM_PUT(W, to, a->x, around); \
        DS__COMM_PUT(W, to + (W), a->y, around); \
    } \
    DS__COMM_LOOP(RUN, FN, KIND##s, W, ds__pair_##KIND##s_##W, 2 * (W), 0)

/* The two halves of a word are taken apart and put together by shifts, so no number leaves its lane. */
#define DS__COMM_HALF(RUN, FN, KIND, W) \
    FN void ds__comm_take_##KIND##_##W(ds__halves_##W *a, const char *p) { \
        ds__vu32_##W v; \
        memcpy(&v, p, (W)); \
        a->x = v & 0xffffu; \
        a->y = v >> 16; \
        ds__comm_widen_##KIND##_f32_##W(&a->x); \
        ds__comm_widen_##KIND##_f32_##W(&a->y); \
    } \
    FN void ds__comm_step_##KIND##_##W(uint32_t op, ds__halves_##W *a, const ds__halves_##W *x) { \
        ds__comm_step_f32_##W(op, &a->x, &x->x); \
        ds__comm_step_f32_##W(op, &a->y, &x->y); \
    } \
    FN void ds__comm_give_##KIND##_##W(char *to, ds__halves_##W *a, uint32_t divisor, int around) { \
        ds__vu32_##W v; \
        if (divisor > 1) { ds__comm_end_f32_##W(divisor, &a->x); ds__comm_end_f32_##W(divisor, &a->y); } /* NaN narrow sees to */ \
        ds__comm_narrow_##KIND##_f32_##W(&a->x); \
        ds__comm_narrow_##KIND##_f32_##W(&a->y); \
        v = a->x | a->y << 16; \
        DS__COMM_PUT(W, to, v, around); \
    } \
    DS__COMM_LOOP(RUN, FN, KIND, W, ds__halves_##W, W, 0)

/* f16 by instructions, which give what the arithmetic gives. */
#define DS__COMM_HALF_NATIVE(RUN, FN) \
    FN void ds__comm_take_f16_32(ds__halves_32 *a, const char *p) { \
        ds__vi16_16 low, high; \
        memcpy(&low, p, 16); \
        memcpy(&high, p + 16, 16); \
        a->x = (ds__vu32_32)__builtin_ia32_vcvtph2ps256(low); \
        a->y = (ds__vu32_32)__builtin_ia32_vcvtph2ps256(high); \
    } \
    FN void ds__comm_step_f16_32(uint32_t op, ds__halves_32 *a, const ds__halves_32 *x) { \
        ds__comm_step_f32_32(op, &a->x, &x->x); \
        ds__comm_step_f32_32(op, &a->y, &x->y); \
    } \
    FN void ds__comm_give_f16_32(char *to, ds__halves_32 *a, uint32_t divisor, int around) { \
        ds__vi16_16 low, high; \
        DS__COMM_END(f32, 32, ds__vf32_32, divisor, a->x, a->y); \
        low = __builtin_ia32_vcvtps2ph256((ds__vf32_32)a->x, 0); \
        high = __builtin_ia32_vcvtps2ph256((ds__vf32_32)a->y, 0); \
        DS__COMM_PUT(16, to, low, around); \
        DS__COMM_PUT(16, to + 16, high, around); \
    } \
    DS__COMM_LOOP(RUN, FN, f16, 32, ds__halves_32, 32, 0)

#define DS__COMM_FLOAT_16(x) ((ds__vf32_16)(x))
#define DS__COMM_FLOAT_32(x) ((ds__vf32_32)(x))
#define DS__COMM_DOUBLE_16(x) ((ds__vf64_16)(x))
#define DS__COMM_DOUBLE_32(x) ((ds__vf64_32)(x))
#define DS__COMM_BITS_16(x) ((ds__vu32_16)(x))
#define DS__COMM_BITS_32(x) ((ds__vu32_32)(x))
#define DS__COMM_LONG_16(x) ((ds__vu64_16)(x))
#define DS__COMM_LONG_32(x) ((ds__vu64_32)(x))

/* All of it for vectors of W bytes; F16: that of f16. */
#define DS__COMM_SET(RUN, FN, W, F16) \
    DS__COMM_MATH(FN, f32_##W, ds__vu32_##W, ds__vf32_##W, float, DS__COMM_FLOAT_##W, DS__COMM_BITS_##W, DS__COMM_BITS_##W, 0x7fc00000u) \
    DS__COMM_MATH(FN, f64_##W, ds__vu64_##W, ds__vf64_##W, double, DS__COMM_DOUBLE_##W, DS__COMM_LONG_##W, DS__COMM_LONG_##W, \
                  0x7ff8000000000000u) \
    DS__COMM_BF16_MATH(FN, f32_##W, ds__vu32_##W, ds__vi32_##W) \
    DS__COMM_INTEGER(RUN, FN, u8, W, ds__vu8_##W, ds__vu8_##W, 0) \
    DS__COMM_INTEGER(RUN, FN, u16, W, ds__vu16_##W, ds__vu16_##W, 0) \
    DS__COMM_INTEGER(RUN, FN, u32, W, ds__vu32_##W, ds__vu32_##W, 0) \
    DS__COMM_INTEGER(RUN, FN, u64, W, ds__vu64_##W, ds__vu64_##W, 0) \
    DS__COMM_INTEGER(RUN, FN, i8, W, ds__vi8_##W, ds__vu8_##W, 1) \
    DS__COMM_INTEGER(RUN, FN, i16, W, ds__vi16_##W, ds__vu16_##W, 1) \
    DS__COMM_INTEGER(RUN, FN, i32, W, ds__vi32_##W, ds__vu32_##W, 1) \
    DS__COMM_INTEGER(RUN, FN, i64, W, ds__vi64_##W, ds__vu64_##W, 1) \
    DS__COMM_REAL(RUN, FN, f32, W, ds__vu32_##W, ds__vf32_##W) \
    DS__COMM_REAL(RUN, FN, f64, W, ds__vu64_##W, ds__vf64_##W) \
    F16 \
    DS__COMM_HALF(RUN, FN, bf16, W) \
    RUN void ds__comm_reduce_##W(const ds__comm_reduce_args *r, char *out, const char *const *in, size_t bytes, int around) { \
        uint32_t op = r->op, inputs = r->inputs, divisor = r->divisor; \
        switch (op <= DS__COMM_PRODUCT && r->kind <= DS__COMM_I64 ? r->kind & 3 : r->kind) { /* to those the sign is nothing */ \
        case DS__COMM_U8: ds__comm_run_u8_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_U16: ds__comm_run_u16_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_U32: ds__comm_run_u32_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_U64: ds__comm_run_u64_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_I8: ds__comm_run_i8_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_I16: ds__comm_run_i16_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_I32: ds__comm_run_i32_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_I64: ds__comm_run_i64_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_F16: ds__comm_run_f16_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_BF16: ds__comm_run_bf16_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_F32: ds__comm_run_f32s_##W(op, out, in, inputs, divisor, bytes, around); break; \
        default: ds__comm_run_f64s_##W(op, out, in, inputs, divisor, bytes, around); break; \
        } \
    }

DS__COMM_TYPES(16)
#define DS__COMM_RUN_16 static __attribute__((noinline))
#define DS__COMM_FN_16 static inline __attribute__((always_inline))
#define DS__COMM_HALF_16 \
    DS__COMM_F16_MATH(DS__COMM_FN_16, f32_16, ds__vu32_16, ds__vi32_16, DS__COMM_FLOAT_16, DS__COMM_BITS_16) \
    DS__COMM_HALF(DS__COMM_RUN_16, DS__COMM_FN_16, f16, 16)
DS__COMM_SET(DS__COMM_RUN_16, DS__COMM_FN_16, 16, DS__COMM_HALF_16)

/* Every processor with AVX2 and FMA has the conversions of f16; gcc and clang have no common name to ask for those. */
#if defined(__x86_64__)
DS__COMM_TYPES(32)
#define DS__COMM_RUN_32 static __attribute__((noinline, target("avx2,f16c")))
#define DS__COMM_FN_32 static inline __attribute__((always_inline, target("avx2,f16c")))
DS__COMM_SET(DS__COMM_RUN_32, DS__COMM_FN_32, 32, DS__COMM_HALF_NATIVE(DS__COMM_RUN_32, DS__COMM_FN_32))
static int ds__comm_has_32(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
static int ds__comm_has_32(void) { return 0; }
#endif

/* Halves of which the first input or the result is in f32: numbers first to end - 1, one by one. */
static void ds__comm_reduce_wide(const ds__comm_reduce_args *r, uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; i++) {
        uint32_t a = 0, x;
        uint16_t half;
        for (uint32_t k = 0; k < r->inputs; k++) {
            if (k == 0 && (r->wide & DS__COMM_WIDE_IN)) {
                memcpy(&a, (const char *)r->in.at[0] + 4 * i, 4);
                continue;
            }
            memcpy(&half, (const char *)r->in.at[k] + 2 * i, 2);
            x = half;
            if (r->kind == DS__COMM_F16) ds__comm_widen_f16_f32(&x); else ds__comm_widen_bf16_f32(&x);
            if (k == 0) a = x; else ds__comm_step_f32(r->op, &a, &x);
        }
        ds__comm_end_f32(r->divisor, &a);
        if (r->wide & DS__COMM_WIDE_OUT) { memcpy((char *)r->out + 4 * i, &a, 4); continue; }
        if (r->kind == DS__COMM_F16) ds__comm_narrow_f16_f32(&a); else ds__comm_narrow_bf16_f32(&a);
        half = (uint16_t)a;
        memcpy((char *)r->out + 2 * i, &half, 2);
    }
}

/* Products of complex numbers. */
#define DS__COMM_PRODUCTS(NAME, T, U, MULTIPLY, END) \
    static void NAME(const ds__comm_reduce_args *r, uint64_t first, uint64_t end) { \
        for (uint64_t i = first; i < end; i++) { \
            T a[2], x[2]; \
            U bits[2]; \
            memcpy(a, (const char *)r->in.at[0] + sizeof a * i, sizeof a); \
            for (uint32_t k = 1; k < r->inputs; k++) { \
                memcpy(x, (const char *)r->in.at[k] + sizeof x * i, sizeof x); \
                MULTIPLY(a, x); \
            } \
            memcpy(bits, a, sizeof a); \
            END(0, &bits[0]); \
            END(0, &bits[1]); \
            memcpy((char *)r->out + sizeof bits * i, bits, sizeof bits); \
        } \
    }
DS__COMM_PRODUCTS(ds__comm_products_c64, float, uint32_t, ds__comm_multiply_c64, ds__comm_end_f32)
DS__COMM_PRODUCTS(ds__comm_products_c128, double, uint64_t, ds__comm_multiply_c128, ds__comm_end_f64)

static void ds__comm_reduce_blocks(const ds__comm_reduce_args *r, char *out, const char *const *in, size_t bytes, int around, int vector) {
#if defined(__x86_64__)
    if (vector == 32) ds__comm_reduce_32(r, out, in, bytes, around);
    else
#endif
    ds__comm_reduce_16(r, out, in, bytes, around);
    (void)vector;
#if DS__COMM_CAN_STREAM
    if (around) __asm__ __volatile__("sfence" ::: "memory");
#endif
}

/* Bytes first to end - 1 of the result. vector: bytes of the vectors to use, 16 or, where they exist, 32. */
static void ds__comm_reduce_part(const ds__comm_reduce_args *r, uint64_t first, uint64_t end, int vector) {
    const char *in[DS__COMM_INPUTS];
    char *out = (char *)r->out + first;
    int around = DS__COMM_CAN_STREAM && r->bytes >= DS__COMM_STREAM_BYTES && ((uintptr_t)out & 31) == 0;
    if (first >= end) return;
    if (r->wide) { ds__comm_reduce_wide(r, first / 2, end / 2); return; }
    if (r->kind == DS__COMM_C64) { ds__comm_products_c64(r, first / 8, end / 8); return; }
    if (r->kind == DS__COMM_C128) { ds__comm_products_c128(r, first / 16, end / 16); return; }
    for (uint32_t k = 0; k < r->inputs; k++) {
        in[k] = (const char *)r->in.at[k] + first;
        if (in[k] == out) around = 0; /* its lines are in the cache anyway */
    }
    size_t rest = (size_t)(end - first) % DS__COMM_BLOCK, whole = (size_t)(end - first) - rest;
    ds__comm_reduce_blocks(r, out, in, whole, around, vector);
    if (rest) {
        char block[DS__COMM_INPUTS][DS__COMM_BLOCK];
        for (uint32_t k = 0; k < r->inputs; k++) {
            memset(block[k], 0, sizeof block[k]);
            memcpy(block[k], in[k] + whole, rest);
            in[k] = block[k];
        }
        ds__comm_reduce_blocks(r, block[0], in, DS__COMM_BLOCK, 0, vector);
        memcpy(out + whole, block[0], rest);
    }
}

static int ds__comm_reduce_items(size_t first, size_t count, const void *args) {
    const ds__comm_reduce_args *r = args;
    uint64_t end = (uint64_t)(first + count) * DS__COMM_ITEM;
    ds__comm_reduce_part(r, (uint64_t)first * DS__COMM_ITEM, end < r->bytes ? end : r->bytes, ds__comm_has_32() ? 32 : 16);
    return 0;
}

/* An average of integers is their sum, divided by this one. */
static int ds__comm_divide_items(size_t first, size_t count, const void *args) {
    const ds__comm_divide_args *d = args;
    uint64_t end = (uint64_t)(first + count) * DS__COMM_ITEM, size = ds__comm_size[d->kind];
    if (end > d->bytes) end = d->bytes;
    for (uint64_t at = (uint64_t)first * DS__COMM_ITEM; at < end; at += size) {
        uint64_t v = 0;
        memcpy(&v, (char *)d->out + at, size); /* little endian */
        v = ds__comm_quotient(v, d->kind, d->divisor);
        memcpy((char *)d->out + at, &v, size);
    }
    return 0;
}

#define DS__COMM_COPY_ROW(BYTES) \
    for (; n > 0; n--, dst += dst_step, src += src_step) memcpy(dst, src, (BYTES))
static void ds__comm_copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step, uint32_t size, uint64_t n) {
    if (dst_step == (int64_t)size && src_step == (int64_t)size) memcpy(dst, src, (size_t)(n * size));
    else if (size == 1) DS__COMM_COPY_ROW(1);
    else if (size == 2) DS__COMM_COPY_ROW(2);
    else if (size == 4) DS__COMM_COPY_ROW(4);
    else if (size == 8) DS__COMM_COPY_ROW(8);
    else DS__COMM_COPY_ROW(16);
}

/* Row by row; the position is computed once and then counted on. */
static int ds__comm_pack_items(size_t first, size_t count, const void *args) {
    const ds__comm_pack_args *p = args;
    const ds__comm_dims *d = &p->dims;
    uint64_t block = DS__COMM_ITEM / p->size, i = first * block, end = (first + count) * block, rest = i, index[DS__COMM_DIMS];
    int64_t to = 0, from = 0;
    uint32_t last = p->ndim - 1;
    if (end > p->elements) end = p->elements;
    if (i >= end) return 0;
    for (uint32_t k = p->ndim; k-- > 0; rest /= d->size[k]) {
        index[k] = rest % d->size[k];
        to += (int64_t)index[k] * d->dst[k];
        from += (int64_t)index[k] * d->src[k];
    }
    while (i < end) {
        uint64_t n = d->size[last] - index[last] < end - i ? d->size[last] - index[last] : end - i;
        ds__comm_copy_row(p->dst + to, d->dst[last], p->src + from, d->src[last], p->size, n);
        i += n;
        to -= (int64_t)index[last] * d->dst[last];
        from -= (int64_t)index[last] * d->src[last];
        index[last] = 0;
        for (uint32_t k = last; k-- > 0; index[k] = 0) {
            to += d->dst[k];
            from += d->src[k];
            if (++index[k] < d->size[k]) break;
            to -= (int64_t)d->size[k] * d->dst[k];
            from -= (int64_t)d->size[k] * d->src[k];
        }
    }
    return 0;
}
/* <<shared */
#else
/* The same as the CPU's, by the instructions; only NaN must be made the one. */
DEVICE void ds__comm_widen_f16_f32(uint32_t *x) {
    union { uint16_t u; __fp16 f; } half;
    half.u = (uint16_t)*x;
    *x = ds__f32_bits(half.f);
}
DEVICE void ds__comm_narrow_f16_f32(uint32_t *x) {
    union { uint16_t u; __fp16 f; } half;
    float f = ds__f32_of(*x);
    half.f = f;
    *x = f != f ? 0x7e00 : half.u;
}
#endif
#endif
