/* comm/kernel_vector.gen.h - generated from comm/kernel_vector.tmpl by `make headers`. Edit that file. */
#ifndef DS__COMM_KERNEL_VECTOR_GEN_H
#define DS__COMM_KERNEL_VECTOR_GEN_H

#include "kernel_vector.h"

#if DS__VECTOR_HAS_16
/* Vectors of 16 bytes that may lie anywhere, over any memory. */
typedef uint8_t ds__vu8_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t ds__vu16_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t ds__vu32_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t ds__vu64_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef int16_t ds__vi16_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef float ds__vf32_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef double ds__vf64_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t ds__vi8_16 __attribute__((vector_size(16)));
typedef int32_t ds__vi32_16 __attribute__((vector_size(16)));
typedef int64_t ds__vi64_16 __attribute__((vector_size(16)));
typedef float ds__vf32_whole_16 __attribute__((vector_size(16)));
#endif

#if DS__VECTOR_HAS_32
/* Vectors of 32 bytes that may lie anywhere, over any memory. */
typedef uint8_t ds__vu8_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint16_t ds__vu16_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint32_t ds__vu32_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint64_t ds__vu64_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef int16_t ds__vi16_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef float ds__vf32_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef double ds__vf64_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef int8_t ds__vi8_32 __attribute__((vector_size(32)));
typedef int32_t ds__vi32_32 __attribute__((vector_size(32)));
typedef int64_t ds__vi64_32 __attribute__((vector_size(32)));
typedef float ds__vf32_whole_32 __attribute__((vector_size(32)));
#endif

DS__COMM_F16_MATH(DS__COMM_FN, f32_16, ds__vu32_16, ds__vi32_16, (ds__vf32_16), (ds__vu32_16))

#if DS__VECTOR_HAS_16
/* Sums and products of kinds whose numbers are computed as they lie in memory. */
static DS__VECTOR_16 void ds__comm_run_u8_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vu8_16 *p = (const ds__vu8_16 *)(const void *)(in[0] + at);
        ds__vu8_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu8_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(16, divisor)
        DS__COMM_PUT(16, ds__vu8_16, out + at, a);
        DS__COMM_PUT(16, ds__vu8_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vu8_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vu8_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_u16_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vu16_16 *p = (const ds__vu16_16 *)(const void *)(in[0] + at);
        ds__vu16_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu16_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(16, divisor)
        DS__COMM_PUT(16, ds__vu16_16, out + at, a);
        DS__COMM_PUT(16, ds__vu16_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vu16_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vu16_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_u32_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vu32_16 *p = (const ds__vu32_16 *)(const void *)(in[0] + at);
        ds__vu32_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu32_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(16, divisor)
        DS__COMM_PUT(16, ds__vu32_16, out + at, a);
        DS__COMM_PUT(16, ds__vu32_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vu32_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vu32_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_u64_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vu64_16 *p = (const ds__vu64_16 *)(const void *)(in[0] + at);
        ds__vu64_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu64_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(16, divisor)
        DS__COMM_PUT(16, ds__vu64_16, out + at, a);
        DS__COMM_PUT(16, ds__vu64_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vu64_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vu64_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_f32_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vf32_16 *p = (const ds__vf32_16 *)(const void *)(in[0] + at);
        ds__vf32_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vf32_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_F32(16, divisor)
        DS__COMM_PUT(16, ds__vf32_16, out + at, a);
        DS__COMM_PUT(16, ds__vf32_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vf32_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vf32_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_f64_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vf64_16 *p = (const ds__vf64_16 *)(const void *)(in[0] + at);
        ds__vf64_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vf64_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_F64(16, divisor)
        DS__COMM_PUT(16, ds__vf64_16, out + at, a);
        DS__COMM_PUT(16, ds__vf64_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vf64_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vf64_16, out + at + 3 * 16, d);
    }
}

/* Sums and products of halves, computed as floats. */
static DS__VECTOR_16 void ds__comm_run_f16_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        ds__vf32_16 a, b, c, d, x, y;
        DS__COMM_TAKE_F16(16, in[0] + at, a, b)
        DS__COMM_TAKE_F16(16, in[0] + at + 16, c, d)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_TAKE_F16(16, in[k] + at, x, y)
            if (sum)
                a += x, b += y;
            else
                a *= x, b *= y;
            DS__COMM_TAKE_F16(16, in[k] + at + 16, x, y)
            if (sum)
                c += x, d += y;
            else
                c *= x, d *= y;
        }
        DS__COMM_END_F32(16, divisor)
        DS__COMM_GIVE_F16(16, out + at, a, b)
        DS__COMM_GIVE_F16(16, out + at + 16, c, d)
    }
}

static DS__VECTOR_16 void ds__comm_run_bf16_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        ds__vf32_16 a, b, c, d, x, y;
        DS__COMM_TAKE_BF16(16, in[0] + at, a, b)
        DS__COMM_TAKE_BF16(16, in[0] + at + 16, c, d)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_TAKE_BF16(16, in[k] + at, x, y)
            if (sum)
                a += x, b += y;
            else
                a *= x, b *= y;
            DS__COMM_TAKE_BF16(16, in[k] + at + 16, x, y)
            if (sum)
                c += x, d += y;
            else
                c *= x, d *= y;
        }
        DS__COMM_END_F32(16, divisor)
        DS__COMM_GIVE_BF16(16, out + at, a, b)
        DS__COMM_GIVE_BF16(16, out + at + 16, c, d)
    }
}

/* Maximum and minimum of integers and of halves, which are compared as keys (ds__comm_order). */
static DS__VECTOR_16 void ds__comm_run_largest_i8_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu8_16 U;
    typedef ds__vi8_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint8_t)o.fold, flip = zero + (uint8_t)o.flip;
    U quiet = zero + (uint8_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint8_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(16, U, S, out + at, a)
        DS__COMM_UNKEY(16, U, S, out + at + 16, b)
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_i16_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu16_16 U;
    typedef ds__vi16_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint16_t)o.fold, flip = zero + (uint16_t)o.flip;
    U quiet = zero + (uint16_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint16_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(16, U, S, out + at, a)
        DS__COMM_UNKEY(16, U, S, out + at + 16, b)
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_f16_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu16_16 U;
    typedef ds__vi16_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint16_t)o.fold, flip = zero + (uint16_t)o.flip;
    U quiet = zero + (uint16_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint16_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY_HALF(U, S, in[0] + at, a)
        DS__COMM_KEY_HALF(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY_HALF(U, S, in[k] + at, x)
            DS__COMM_KEY_HALF(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY_HALF(16, U, S, out + at, a)
        DS__COMM_UNKEY_HALF(16, U, S, out + at + 16, b)
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_i32_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu32_16 U;
    typedef ds__vi32_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint32_t)o.fold, flip = zero + (uint32_t)o.flip;
    U quiet = zero + (uint32_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint32_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(16, U, S, out + at, a)
        DS__COMM_UNKEY(16, U, S, out + at + 16, b)
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_i64_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu64_16 U;
    typedef ds__vi64_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint64_t)o.fold, flip = zero + (uint64_t)o.flip;
    U quiet = zero + (uint64_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint64_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(16, U, S, out + at, a)
        DS__COMM_UNKEY(16, U, S, out + at + 16, b)
    }
}

/* Maximum and minimum of floats. */
static DS__VECTOR_16 void ds__comm_run_largest_f32_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vf32_16 V;
    typedef ds__vu32_16 U;
    const uint32_t inputs = r->inputs;
    const uint32_t top = ~((uint32_t)~(uint32_t)0 >> 1);
    U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        U first = *(const U *)(const void *)(in[0] + at) ^ flip;
        U second = *(const U *)(const void *)(in[0] + at + 16) ^ flip;
        V a = (V)first, b = (V)second;
        U nan = (U)(a != a), not = (U)(b != b);
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)
            DS__COMM_LARGER_REAL(V, U, in[k] + at + 16, b, second, not)
        }
        first = ((U)a & (first | (U)(a != 0))) ^ flip;
        second = ((U)b & (second | (U)(b != 0))) ^ flip;
        if (DS__VECTOR_ANY_16(nan | not)) {
            first = (first & ~nan) | (nan & 0x7fc00000u);
            second = (second & ~not) | (not & 0x7fc00000u);
        }
        DS__COMM_PUT(16, U, out + at, first);
        DS__COMM_PUT(16, U, out + at + 16, second);
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_f64_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vf64_16 V;
    typedef ds__vu64_16 U;
    const uint32_t inputs = r->inputs;
    const uint64_t top = ~((uint64_t)~(uint64_t)0 >> 1);
    U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        U first = *(const U *)(const void *)(in[0] + at) ^ flip;
        U second = *(const U *)(const void *)(in[0] + at + 16) ^ flip;
        V a = (V)first, b = (V)second;
        U nan = (U)(a != a), not = (U)(b != b);
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)
            DS__COMM_LARGER_REAL(V, U, in[k] + at + 16, b, second, not)
        }
        first = ((U)a & (first | (U)(a != 0))) ^ flip;
        second = ((U)b & (second | (U)(b != 0))) ^ flip;
        if (DS__VECTOR_ANY_16(nan | not)) {
            first = (first & ~nan) | (nan & 0x7ff8000000000000u);
            second = (second & ~not) | (not & 0x7ff8000000000000u);
        }
        DS__COMM_PUT(16, U, out + at, first);
        DS__COMM_PUT(16, U, out + at + 16, second);
    }
}

/* By operation (sums and products, maximum and minimum) and kind. */
static const ds__comm_run_fn ds__comm_runs_16[][DS__COMM_F64 + 1] = {
    {
        ds__comm_run_u8_16,
        ds__comm_run_u16_16,
        ds__comm_run_u32_16,
        ds__comm_run_u64_16,
        ds__comm_run_u8_16,
        ds__comm_run_u16_16,
        ds__comm_run_u32_16,
        ds__comm_run_u64_16,
        ds__comm_run_f16_16,
        ds__comm_run_bf16_16,
        ds__comm_run_f32_16,
        ds__comm_run_f64_16,
    },
    {
        ds__comm_run_largest_i8_16,
        ds__comm_run_largest_i16_16,
        ds__comm_run_largest_i32_16,
        ds__comm_run_largest_i64_16,
        ds__comm_run_largest_i8_16,
        ds__comm_run_largest_i16_16,
        ds__comm_run_largest_i32_16,
        ds__comm_run_largest_i64_16,
        ds__comm_run_largest_f16_16,
        ds__comm_run_largest_f16_16,
        ds__comm_run_largest_f32_16,
        ds__comm_run_largest_f64_16,
    }
};
#endif
#if DS__VECTOR_HAS_32
/* Sums and products of kinds whose numbers are computed as they lie in memory. */
static DS__VECTOR_32 void ds__comm_run_u8_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vu8_32 *p = (const ds__vu8_32 *)(const void *)(in[0] + at);
        ds__vu8_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu8_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(32, divisor)
        DS__COMM_PUT(32, ds__vu8_32, out + at, a);
        DS__COMM_PUT(32, ds__vu8_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vu8_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vu8_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_u16_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vu16_32 *p = (const ds__vu16_32 *)(const void *)(in[0] + at);
        ds__vu16_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu16_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(32, divisor)
        DS__COMM_PUT(32, ds__vu16_32, out + at, a);
        DS__COMM_PUT(32, ds__vu16_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vu16_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vu16_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_u32_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vu32_32 *p = (const ds__vu32_32 *)(const void *)(in[0] + at);
        ds__vu32_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu32_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(32, divisor)
        DS__COMM_PUT(32, ds__vu32_32, out + at, a);
        DS__COMM_PUT(32, ds__vu32_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vu32_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vu32_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_u64_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vu64_32 *p = (const ds__vu64_32 *)(const void *)(in[0] + at);
        ds__vu64_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu64_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(32, divisor)
        DS__COMM_PUT(32, ds__vu64_32, out + at, a);
        DS__COMM_PUT(32, ds__vu64_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vu64_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vu64_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_f32_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vf32_32 *p = (const ds__vf32_32 *)(const void *)(in[0] + at);
        ds__vf32_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vf32_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_F32(32, divisor)
        DS__COMM_PUT(32, ds__vf32_32, out + at, a);
        DS__COMM_PUT(32, ds__vf32_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vf32_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vf32_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_f64_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vf64_32 *p = (const ds__vf64_32 *)(const void *)(in[0] + at);
        ds__vf64_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vf64_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_F64(32, divisor)
        DS__COMM_PUT(32, ds__vf64_32, out + at, a);
        DS__COMM_PUT(32, ds__vf64_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vf64_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vf64_32, out + at + 3 * 32, d);
    }
}

/* Sums and products of halves, computed as floats. */
static DS__VECTOR_32 void ds__comm_run_f16_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        ds__vf32_32 a, b, c, d, x, y;
        DS__COMM_TAKE_NATIVE(32, in[0] + at, a, b)
        DS__COMM_TAKE_NATIVE(32, in[0] + at + 32, c, d)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_TAKE_NATIVE(32, in[k] + at, x, y)
            if (sum)
                a += x, b += y;
            else
                a *= x, b *= y;
            DS__COMM_TAKE_NATIVE(32, in[k] + at + 32, x, y)
            if (sum)
                c += x, d += y;
            else
                c *= x, d *= y;
        }
        DS__COMM_END_F32(32, divisor)
        DS__COMM_GIVE_NATIVE(32, out + at, a, b)
        DS__COMM_GIVE_NATIVE(32, out + at + 32, c, d)
    }
}

static DS__VECTOR_32 void ds__comm_run_bf16_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        ds__vf32_32 a, b, c, d, x, y;
        DS__COMM_TAKE_BF16(32, in[0] + at, a, b)
        DS__COMM_TAKE_BF16(32, in[0] + at + 32, c, d)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_TAKE_BF16(32, in[k] + at, x, y)
            if (sum)
                a += x, b += y;
            else
                a *= x, b *= y;
            DS__COMM_TAKE_BF16(32, in[k] + at + 32, x, y)
            if (sum)
                c += x, d += y;
            else
                c *= x, d *= y;
        }
        DS__COMM_END_F32(32, divisor)
        DS__COMM_GIVE_BF16(32, out + at, a, b)
        DS__COMM_GIVE_BF16(32, out + at + 32, c, d)
    }
}

/* Maximum and minimum of integers and of halves, which are compared as keys (ds__comm_order). */
static DS__VECTOR_32 void ds__comm_run_largest_i8_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu8_32 U;
    typedef ds__vi8_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint8_t)o.fold, flip = zero + (uint8_t)o.flip;
    U quiet = zero + (uint8_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint8_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(32, U, S, out + at, a)
        DS__COMM_UNKEY(32, U, S, out + at + 32, b)
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_i16_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu16_32 U;
    typedef ds__vi16_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint16_t)o.fold, flip = zero + (uint16_t)o.flip;
    U quiet = zero + (uint16_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint16_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(32, U, S, out + at, a)
        DS__COMM_UNKEY(32, U, S, out + at + 32, b)
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_f16_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu16_32 U;
    typedef ds__vi16_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint16_t)o.fold, flip = zero + (uint16_t)o.flip;
    U quiet = zero + (uint16_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint16_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY_HALF(U, S, in[0] + at, a)
        DS__COMM_KEY_HALF(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY_HALF(U, S, in[k] + at, x)
            DS__COMM_KEY_HALF(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY_HALF(32, U, S, out + at, a)
        DS__COMM_UNKEY_HALF(32, U, S, out + at + 32, b)
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_i32_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu32_32 U;
    typedef ds__vi32_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint32_t)o.fold, flip = zero + (uint32_t)o.flip;
    U quiet = zero + (uint32_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint32_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(32, U, S, out + at, a)
        DS__COMM_UNKEY(32, U, S, out + at + 32, b)
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_i64_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu64_32 U;
    typedef ds__vi64_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint64_t)o.fold, flip = zero + (uint64_t)o.flip;
    U quiet = zero + (uint64_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint64_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(32, U, S, out + at, a)
        DS__COMM_UNKEY(32, U, S, out + at + 32, b)
    }
}

/* Maximum and minimum of floats. */
static DS__VECTOR_32 void ds__comm_run_largest_f32_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vf32_32 V;
    typedef ds__vu32_32 U;
    const uint32_t inputs = r->inputs;
    const uint32_t top = ~((uint32_t)~(uint32_t)0 >> 1);
    U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        U first = *(const U *)(const void *)(in[0] + at) ^ flip;
        U second = *(const U *)(const void *)(in[0] + at + 32) ^ flip;
        V a = (V)first, b = (V)second;
        U nan = (U)(a != a), not = (U)(b != b);
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)
            DS__COMM_LARGER_REAL(V, U, in[k] + at + 32, b, second, not)
        }
        first = ((U)a & (first | (U)(a != 0))) ^ flip;
        second = ((U)b & (second | (U)(b != 0))) ^ flip;
        if (DS__VECTOR_ANY_32(nan | not)) {
            first = (first & ~nan) | (nan & 0x7fc00000u);
            second = (second & ~not) | (not & 0x7fc00000u);
        }
        DS__COMM_PUT(32, U, out + at, first);
        DS__COMM_PUT(32, U, out + at + 32, second);
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_f64_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vf64_32 V;
    typedef ds__vu64_32 U;
    const uint32_t inputs = r->inputs;
    const uint64_t top = ~((uint64_t)~(uint64_t)0 >> 1);
    U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        U first = *(const U *)(const void *)(in[0] + at) ^ flip;
        U second = *(const U *)(const void *)(in[0] + at + 32) ^ flip;
        V a = (V)first, b = (V)second;
        U nan = (U)(a != a), not = (U)(b != b);
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)
            DS__COMM_LARGER_REAL(V, U, in[k] + at + 32, b, second, not)
        }
        first = ((U)a & (first | (U)(a != 0))) ^ flip;
        second = ((U)b & (second | (U)(b != 0))) ^ flip;
        if (DS__VECTOR_ANY_32(nan | not)) {
            first = (first & ~nan) | (nan & 0x7ff8000000000000u);
            second = (second & ~not) | (not & 0x7ff8000000000000u);
        }
        DS__COMM_PUT(32, U, out + at, first);
        DS__COMM_PUT(32, U, out + at + 32, second);
    }
}

/* By operation (sums and products, maximum and minimum) and kind. */
static const ds__comm_run_fn ds__comm_runs_32[][DS__COMM_F64 + 1] = {
    {
        ds__comm_run_u8_32,
        ds__comm_run_u16_32,
        ds__comm_run_u32_32,
        ds__comm_run_u64_32,
        ds__comm_run_u8_32,
        ds__comm_run_u16_32,
        ds__comm_run_u32_32,
        ds__comm_run_u64_32,
        ds__comm_run_f16_32,
        ds__comm_run_bf16_32,
        ds__comm_run_f32_32,
        ds__comm_run_f64_32,
    },
    {
        ds__comm_run_largest_i8_32,
        ds__comm_run_largest_i16_32,
        ds__comm_run_largest_i32_32,
        ds__comm_run_largest_i64_32,
        ds__comm_run_largest_i8_32,
        ds__comm_run_largest_i16_32,
        ds__comm_run_largest_i32_32,
        ds__comm_run_largest_i64_32,
        ds__comm_run_largest_f16_32,
        ds__comm_run_largest_f16_32,
        ds__comm_run_largest_f32_32,
        ds__comm_run_largest_f64_32,
    }
};
#endif

#endif
