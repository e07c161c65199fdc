/* comm/kernel_vector.h - vector code of reductions on the CPU.

   Generates the functions that combine the numbers of several inputs, separately for sums and
   products and for maximum and minimum. Kinds with the same arithmetic share a function. The
   vectors have 16 bytes and, on x86-64, also 32 bytes. kernel_cpu.h calls the functions through
   the tables ds__comm_runs_16 and ds__comm_runs_32.

   Invariants: a function takes a multiple of DS__COMM_BLOCK bytes. Every input is read before
   its place in the result is written, so the result may be one of the inputs. If `around` is
   set, the result starts at a multiple of the vector size, and the caller executes the store
   fence. Functions with 32-byte vectors run only if ds__comm_has_32 returns 1. Complex products
   are not in the tables.
   Locks: none.
   Threads: any; the functions have no state. */
#ifndef DS__COMM_KERNEL_VECTOR_H
#define DS__COMM_KERNEL_VECTOR_H

#include "kernel_args.h"

/* Vectors of W bytes that may lie anywhere, over any memory. */
#define DS__COMM_TYPES(W)                                                                 \
    typedef uint8_t ds__vu8_##W __attribute__((vector_size(W), aligned(1), may_alias));   \
    typedef uint16_t ds__vu16_##W __attribute__((vector_size(W), aligned(1), may_alias)); \
    typedef uint32_t ds__vu32_##W __attribute__((vector_size(W), aligned(1), may_alias)); \
    typedef uint64_t ds__vu64_##W __attribute__((vector_size(W), aligned(1), may_alias)); \
    typedef int8_t ds__vi8_##W __attribute__((vector_size(W)));                           \
    typedef int16_t ds__vi16_##W __attribute__((vector_size(W), aligned(1), may_alias));  \
    typedef int32_t ds__vi32_##W __attribute__((vector_size(W)));                         \
    typedef int64_t ds__vi64_##W __attribute__((vector_size(W)));                         \
    typedef float ds__vf32_##W __attribute__((vector_size(W), aligned(1), may_alias));    \
    typedef double ds__vf64_##W __attribute__((vector_size(W), aligned(1), may_alias));   \
    typedef float ds__vf32_whole_##W __attribute__((vector_size(W)));

/* Stores that go around the caches, for results that do not fit there. */
#if defined(__x86_64__) && !defined(DS__SANITIZED)
#define DS__COMM_CAN_STREAM 1
#ifdef __clang__
#define DS__COMM_STREAM(W, to, v) \
    __builtin_nontemporal_store((ds__vf32_whole_##W)(v), (ds__vf32_whole_##W *)(void *)(to))
#else
#define DS__COMM_MOVNT_16 __builtin_ia32_movntps
#define DS__COMM_MOVNT_32 __builtin_ia32_movntps256
#define DS__COMM_STREAM(W, to, v) DS__COMM_MOVNT_##W((float *)(void *)(to), (ds__vf32_whole_##W)(v))
#endif
#else
#define DS__COMM_CAN_STREAM 0
#define DS__COMM_STREAM(W, to, v) (void)(*(ds__vf32_##W *)(void *)(to) = (ds__vf32_##W)(v))
#endif
enum { DS__COMM_STREAM_BYTES = 32 << 20 };

/* 1: a mask is not empty. */
#if defined(__x86_64__)
#define DS__COMM_ANY_16(mask) (__builtin_ia32_movmskps((ds__vf32_whole_16)(mask)) != 0)
#define DS__COMM_ANY_32(mask) (__builtin_ia32_movmskps256((ds__vf32_whole_32)(mask)) != 0)
#else
#define DS__COMM_ANY_16(mask) ((((ds__vu64_16)(mask))[0] | ((ds__vu64_16)(mask))[1]) != 0)
#endif

/* A function for each kind of number, and not one for each operation too: compilers take their
   time with vectors. All inputs are read side by side, so that they stream, and what is computed
   stays in registers. Every input is read before its place in the result is written. bytes is a
   multiple of DS__COMM_BLOCK; around: `out` lies on a multiple of W. */
enum { DS__COMM_BLOCK = 128 };

#define DS__COMM_RUN(KIND, W)                                                \
    void ds__comm_run_##KIND##_##W(const ds__comm_reduce_args *r, char *out, \
                                   const char *const *in, size_t bytes, int around)
typedef void (*ds__comm_run_fn)(const ds__comm_reduce_args *r, char *out, const char *const *in,
                                size_t bytes, int around);

#define DS__COMM_PUT(W, V, to, v)      \
    do {                               \
        if (around)                    \
            DS__COMM_STREAM(W, to, v); \
        else                           \
            *(V *)(void *)(to) = (v);  \
    } while (0)

/* Sums and products of what is computed as it lies in memory. END sees to averages and NaN,
   which integers do not have. */
#define DS__COMM_WHOLES(STATIC, KIND, W, V, END)                                              \
    STATIC DS__COMM_RUN(KIND, W) {                                                            \
        const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM; \
        for (size_t at = 0; at < bytes; at += 4 * (W)) {                                      \
            const V *p = (const V *)(const void *)(in[0] + at);                               \
            V a = p[0], b = p[1], c = p[2], d = p[3];                                         \
            for (uint32_t k = 1; k < inputs; k++) {                                           \
                p = (const V *)(const void *)(in[k] + at);                                    \
                if (sum)                                                                      \
                    a += p[0], b += p[1], c += p[2], d += p[3];                               \
                else                                                                          \
                    a *= p[0], b *= p[1], c *= p[2], d *= p[3];                               \
            }                                                                                 \
            END(W, divisor)                                                                   \
            DS__COMM_PUT(W, V, out + at, a);                                                  \
            DS__COMM_PUT(W, V, out + at + (W), b);                                            \
            DS__COMM_PUT(W, V, out + at + 2 * (W), c);                                        \
            DS__COMM_PUT(W, V, out + at + 3 * (W), d);                                        \
        }                                                                                     \
    }

/* Of floats of type T, whose bits are a U: most of the time there is nothing to do. */
#define DS__COMM_ONE_NAN(V, U, x, value) \
    x = (V)(((U)(x) & ~(U)((x) != (x))) | ((U)((x) != (x)) & (value)));
#define DS__COMM_END(W, V, U, T, value, divisor)                          \
    if (divisor > 1) {                                                    \
        T n = (T)divisor;                                                 \
        a /= n, b /= n, c /= n, d /= n;                                   \
    }                                                                     \
    if (DS__COMM_ANY_##W((a != a) | (b != b) | (c != c) | (d != d))) {    \
        DS__COMM_ONE_NAN(V, U, a, value)                                  \
        DS__COMM_ONE_NAN(V, U, b, value)                                  \
        DS__COMM_ONE_NAN(V, U, c, value) DS__COMM_ONE_NAN(V, U, d, value) \
    }

#define DS__COMM_END_F32(W, divisor) \
    DS__COMM_END(W, ds__vf32_##W, ds__vu32_##W, float, 0x7fc00000u, divisor)
#define DS__COMM_END_F64(W, divisor) \
    DS__COMM_END(W, ds__vf64_##W, ds__vu64_##W, double, 0x7ff8000000000000u, divisor)
#define DS__COMM_END_INTEGER(W, divisor) (void)(divisor);

/* Sums and products of halves. TAKE makes two vectors of floats of W bytes, GIVE turns two back. */
#define DS__COMM_HALVES_OF(STATIC, KIND, W, TAKE, GIVE)                                       \
    STATIC DS__COMM_RUN(KIND, W) {                                                            \
        const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM; \
        for (size_t at = 0; at < bytes; at += 2 * (W)) {                                      \
            ds__vf32_##W a, b, c, d, x, y;                                                    \
            TAKE(W, in[0] + at, a, b)                                                         \
            TAKE(W, in[0] + at + (W), c, d)                                                   \
            for (uint32_t k = 1; k < inputs; k++) {                                           \
                TAKE(W, in[k] + at, x, y)                                                     \
                if (sum)                                                                      \
                    a += x, b += y;                                                           \
                else                                                                          \
                    a *= x, b *= y;                                                           \
                TAKE(W, in[k] + at + (W), x, y)                                               \
                if (sum)                                                                      \
                    c += x, d += y;                                                           \
                else                                                                          \
                    c *= x, d *= y;                                                           \
            }                                                                                 \
            DS__COMM_END_F32(W, divisor)                                                      \
            GIVE(W, out + at, a, b)                                                           \
            GIVE(W, out + at + (W), c, d)                                                     \
        }                                                                                     \
    }

/* The two halves of a word are taken apart and put together where they are: no number leaves its
   lane. What is NaN has no bits that rounding could carry into the sign. */
#define DS__COMM_TAKE_BF16(W, from, x, y)                                \
    {                                                                    \
        ds__vu32_##W word = *(const ds__vu32_##W *)(const void *)(from); \
        x = (ds__vf32_##W)(word << 16);                                  \
        y = (ds__vf32_##W)(word & 0xffff0000u);                          \
    }
#define DS__COMM_GIVE_BF16(W, to, x, y)                                 \
    {                                                                   \
        ds__vu32_##W low = (ds__vu32_##W)(x), high = (ds__vu32_##W)(y); \
        low += 0x7fffu + (low >> 16 & 1u);                              \
        high += 0x7fffu + (high >> 16 & 1u);                            \
        low = low >> 16 | (high & 0xffff0000u);                         \
        DS__COMM_PUT(W, ds__vu32_##W, to, low);                         \
    }

#define DS__COMM_TAKE_F16(W, from, x, y)                                                  \
    {                                                                                     \
        ds__vu32_##W low = *(const ds__vu32_##W *)(const void *)(from), high = low >> 16; \
        low &= 0xffffu;                                                                   \
        ds__comm_widen_f16_f32_##W(&low);                                                 \
        ds__comm_widen_f16_f32_##W(&high);                                                \
        x = (ds__vf32_##W)low;                                                            \
        y = (ds__vf32_##W)high;                                                           \
    }
#define DS__COMM_GIVE_F16(W, to, x, y)                                  \
    {                                                                   \
        ds__vu32_##W low = (ds__vu32_##W)(x), high = (ds__vu32_##W)(y); \
        ds__comm_narrow_f16_f32_##W(&low);                              \
        ds__comm_narrow_f16_f32_##W(&high);                             \
        low |= high << 16;                                              \
        DS__COMM_PUT(W, ds__vu32_##W, to, low);                         \
    }

/* f16 by instructions, which give what the arithmetic gives. */
#define DS__COMM_TAKE_NATIVE(W, from, x, y)                                                   \
    x = (ds__vf32_32)__builtin_ia32_vcvtph2ps256(*(const ds__vi16_16 *)(const void *)(from)); \
    y = (ds__vf32_32)__builtin_ia32_vcvtph2ps256(*(const ds__vi16_16 *)(const void *)((from) + 16));
#define DS__COMM_GIVE_NATIVE(W, to, x, y)                     \
    {                                                         \
        ds__vi16_16 low = __builtin_ia32_vcvtps2ph256(x, 0),  \
                    high = __builtin_ia32_vcvtps2ph256(y, 0); \
        DS__COMM_PUT(16, ds__vi16_16, to, low);               \
        DS__COMM_PUT(16, ds__vi16_16, (to) + 16, high);       \
    }

/* The largest and smallest of integers, and of halves too, which are compared as they are: they
   become keys that compare with a sign, of which the largest is taken. The key of NaN is larger
   than any other. S has a sign, U has none. */
typedef struct ds__comm_order {
    uint64_t fold;     /* what is turned over of a half whose sign is set */
    uint64_t flip;     /* and then of every number */
    uint64_t infinity; /* of halves: what is larger without its sign is NaN */
    uint64_t quiet;    /* the one that is written */
} ds__comm_order;

static ds__comm_order ds__comm_order_of(uint32_t kind, uint32_t op) {
    uint32_t bits = 8u * ds__comm_size[kind];
    uint64_t all = ~(uint64_t)0 >> (64 - bits), top = all - (all >> 1);
    ds__comm_order o = { 0, kind <= DS__COMM_U64 ? top : 0, 0, 0 };
    if (kind == DS__COMM_F16)
        o.fold = 0x7fff, o.infinity = 0x7c00, o.quiet = 0x7e00;
    if (kind == DS__COMM_BF16)
        o.fold = 0x7fff, o.infinity = 0x7f80, o.quiet = 0x7fc0;
    if (op == DS__COMM_MIN)
        o.flip ^= all;
    return o;
}

#define DS__COMM_KEY(U, S, from, key) key = (S)(*(const U *)(const void *)(from) ^ flip);
#define DS__COMM_UNKEY(W, U, S, to, key) \
    {                                    \
        U v = (U)(key) ^ flip;           \
        DS__COMM_PUT(W, U, to, v);       \
    }
#define DS__COMM_KEY_HALF(U, S, from, key)                                          \
    {                                                                               \
        U v = *(const U *)(const void *)(from), nan = (U)((S)(v & abs) > infinity); \
        v ^= ((U)((S)v < 0) & fold) ^ flip;                                         \
        key = (S)((v & ~nan) | (nan & abs));                                        \
    }
#define DS__COMM_UNKEY_HALF(W, U, S, to, key)               \
    {                                                       \
        U v = (U)(key) ^ flip, nan = (U)((key) > infinity); \
        v ^= (U)((S)v < 0) & fold;                          \
        v = (v & ~nan) | (nan & quiet);                     \
        DS__COMM_PUT(W, U, to, v);                          \
    }
#define DS__COMM_LARGER(U, S, a, x)                \
    {                                              \
        U more = (U)((x) > (a));                   \
        a = (S)(((U)(x)&more) | ((U)(a) & ~more)); \
    }
#define DS__COMM_LARGEST(STATIC, KIND, W, U, S, T, KEY, UNKEY)            \
    STATIC DS__COMM_RUN(KIND, W) {                                        \
        const uint32_t inputs = r->inputs;                                \
        ds__comm_order o = ds__comm_order_of(r->kind, r->op);             \
        U zero = { 0 }, fold = zero + (T)o.fold, flip = zero + (T)o.flip, \
          quiet = zero + (T)o.quiet, abs = ~zero >> 1;                    \
        S infinity = (S)(zero + (T)o.infinity);                           \
        (void)fold, (void)quiet, (void)abs, (void)infinity;               \
        for (size_t at = 0; at < bytes; at += 2 * (W)) {                  \
            S a, b, x, y;                                                 \
            KEY(U, S, in[0] + at, a)                                      \
            KEY(U, S, in[0] + at + (W), b)                                \
            for (uint32_t k = 1; k < inputs; k++) {                       \
                KEY(U, S, in[k] + at, x)                                  \
                KEY(U, S, in[k] + at + (W), y)                            \
                DS__COMM_LARGER(U, S, a, x)                               \
                DS__COMM_LARGER(U, S, b, y)                               \
            }                                                             \
            UNKEY(W, U, S, out + at, a)                                   \
            UNKEY(W, U, S, out + at + (W), b)                             \
        }                                                                 \
    }

/* Of floats of type V, whose bits are a U; the smallest is the largest with all signs turned.
   Zeros are equal to a comparison: where the largest is one nothing is larger, and it is -0 if
   all signs are set. `all` is what is set in all numbers, so there nothing but the sign. */
#define DS__COMM_LARGER_REAL(V, U, from, a, all, nan)           \
    {                                                           \
        U bits = *(const U *)(const void *)(from) ^ flip, more; \
        V x = (V)bits;                                          \
        more = (U)(x > a);                                      \
        all &= bits;                                            \
        nan |= (U)(x != x);                                     \
        a = (V)((bits & more) | ((U)a & ~more));                \
    }
#define DS__COMM_LARGEST_REAL(STATIC, KIND, W, V, U, T, quiet)                \
    STATIC DS__COMM_RUN(KIND, W) {                                            \
        const uint32_t inputs = r->inputs;                                    \
        const T top = ~((T) ~(T)0 >> 1);                                      \
        U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);      \
        for (size_t at = 0; at < bytes; at += 2 * (W)) {                      \
            U first = *(const U *)(const void *)(in[0] + at) ^ flip,          \
              second = *(const U *)(const void *)(in[0] + at + (W)) ^ flip;   \
            V a = (V)first, b = (V)second;                                    \
            U nan = (U)(a != a), not = (U)(b != b);                           \
            for (uint32_t k = 1; k < inputs; k++) {                           \
                DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)         \
                DS__COMM_LARGER_REAL(V, U, in[k] + at + (W), b, second, not ) \
            }                                                                 \
            first = ((U)a & (first | (U)(a != 0))) ^ flip;                    \
            second = ((U)b & (second | (U)(b != 0))) ^ flip;                  \
            if (DS__COMM_ANY_##W(nan | not )) {                               \
                first = (first & ~nan) | (nan & (quiet));                     \
                second = (second & ~not ) | (not &(quiet));                   \
            }                                                                 \
            DS__COMM_PUT(W, U, out + at, first);                              \
            DS__COMM_PUT(W, U, out + at + (W), second);                       \
        }                                                                     \
    }

/* All of it for vectors of W bytes; F16: that of f16. */
#define DS__COMM_SET(STATIC, W, F16)                                                               \
    DS__COMM_WHOLES(STATIC, u8, W, ds__vu8_##W, DS__COMM_END_INTEGER)                              \
    DS__COMM_WHOLES(STATIC, u16, W, ds__vu16_##W, DS__COMM_END_INTEGER)                            \
    DS__COMM_WHOLES(STATIC, u32, W, ds__vu32_##W, DS__COMM_END_INTEGER)                            \
    DS__COMM_WHOLES(STATIC, u64, W, ds__vu64_##W, DS__COMM_END_INTEGER)                            \
    DS__COMM_WHOLES(STATIC, f32, W, ds__vf32_##W, DS__COMM_END_F32)                                \
    DS__COMM_WHOLES(STATIC, f64, W, ds__vf64_##W, DS__COMM_END_F64)                                \
    F16 DS__COMM_HALVES_OF(STATIC, bf16, W, DS__COMM_TAKE_BF16, DS__COMM_GIVE_BF16)                \
        DS__COMM_LARGEST(STATIC, largest_i8, W, ds__vu8_##W, ds__vi8_##W, uint8_t, DS__COMM_KEY,   \
                         DS__COMM_UNKEY) DS__COMM_LARGEST(STATIC, largest_i16, W, ds__vu16_##W,    \
                                                          ds__vi16_##W, uint16_t, DS__COMM_KEY,    \
                                                          DS__COMM_UNKEY)                          \
            DS__COMM_LARGEST(STATIC, largest_f16, W, ds__vu16_##W, ds__vi16_##W, uint16_t,         \
                             DS__COMM_KEY_HALF, DS__COMM_UNKEY_HALF)                               \
                DS__COMM_LARGEST(                                                                  \
                    STATIC, largest_i32, W, ds__vu32_##W, ds__vi32_##W, uint32_t, DS__COMM_KEY,    \
                    DS__COMM_UNKEY) DS__COMM_LARGEST_REAL(STATIC, largest_f32, W, ds__vf32_##W,    \
                                                          ds__vu32_##W, uint32_t, 0x7fc00000u)     \
                    DS__COMM_LARGEST(STATIC, largest_i64, W, ds__vu64_##W, ds__vi64_##W, uint64_t, \
                                     DS__COMM_KEY, DS__COMM_UNKEY)                                 \
                        DS__COMM_LARGEST_REAL(STATIC, largest_f64, W, ds__vf64_##W, ds__vu64_##W,  \
                                              uint64_t,                                            \
                                              0x7ff8000000000000u) static const ds__comm_run_fn    \
                            ds__comm_runs_##W[][DS__COMM_F64 + 1] = {                              \
                                { /* by kind */                                                    \
                                  ds__comm_run_u8_##W, ds__comm_run_u16_##W, ds__comm_run_u32_##W, \
                                  ds__comm_run_u64_##W, ds__comm_run_u8_##W, ds__comm_run_u16_##W, \
                                  ds__comm_run_u32_##W, ds__comm_run_u64_##W,                      \
                                  ds__comm_run_f16_##W, ds__comm_run_bf16_##W,                     \
                                  ds__comm_run_f32_##W, ds__comm_run_f64_##W },                    \
                                { ds__comm_run_largest_i8_##W, ds__comm_run_largest_i16_##W,       \
                                  ds__comm_run_largest_i32_##W, ds__comm_run_largest_i64_##W,      \
                                  ds__comm_run_largest_i8_##W, ds__comm_run_largest_i16_##W,       \
                                  ds__comm_run_largest_i32_##W, ds__comm_run_largest_i64_##W,      \
                                  ds__comm_run_largest_f16_##W, ds__comm_run_largest_f16_##W,      \
                                  ds__comm_run_largest_f32_##W, ds__comm_run_largest_f64_##W }     \
                            };

DS__COMM_TYPES(16)
DS__COMM_F16_MATH(DS__COMM_FN, f32_16, ds__vu32_16, ds__vi32_16, (ds__vf32_16), (ds__vu32_16))
DS__COMM_SET(static, 16, DS__COMM_HALVES_OF(static, f16, 16, DS__COMM_TAKE_F16, DS__COMM_GIVE_F16))

/* Every processor with AVX2 and FMA has the conversions of f16; gcc and clang have no common
   name to ask for those. */
#if defined(__x86_64__)
DS__COMM_TYPES(32)
#define DS__COMM_STATIC_32 static __attribute__((target("avx2,f16c")))
DS__COMM_SET(DS__COMM_STATIC_32, 32,
             DS__COMM_HALVES_OF(DS__COMM_STATIC_32, f16, 32, DS__COMM_TAKE_NATIVE,
                                DS__COMM_GIVE_NATIVE))

static int ds__comm_has_32(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
static int ds__comm_has_32(void) {
    return 0;
}
#endif

#endif
