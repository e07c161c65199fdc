/* comm/kernel_vector.h - steps of the vector code of reductions on the CPU.

   Has the steps that the functions of kernel_vector.gen.h consist of: loads, conversions, stores,
   comparisons. kernel_vector.tmpl has these functions, which combine the numbers of several
   inputs: sums and products, and maximum and minimum. Kinds with the same arithmetic share a
   function. The vectors have 16 bytes and, on x86-64, also 32 bytes. kernel_cpu.h calls the
   functions through the tables ds__comm_runs_16 and ds__comm_runs_32.

   Invariants: a function takes a multiple of DS__COMM_BLOCK bytes. Every input is read before
   its place in the result is written, so the result may be one of the inputs. If `around` is
   set, the result starts at a multiple of the vector size, and the caller executes the store
   fence. Functions with 32-byte vectors run only if ds__os_vector returns at least 32. Complex
   products are not in the tables.
   Locks: none.
   Threads: any; the functions have no state. */
#ifndef DS__COMM_KERNEL_VECTOR_H
#define DS__COMM_KERNEL_VECTOR_H

#include "../os/os.h"
#include "kernel_args.h"

enum { DS__COMM_BLOCK = 128 }; /* bytes; the functions process multiples of a block */

typedef void (*ds__comm_run_fn)(const ds__comm_reduce_args *r, char *out, const char *const *in,
                                size_t bytes, int around);

#define DS__COMM_PUT(W, V, to, v)        \
    do {                                 \
        if (around)                      \
            DS__VECTOR_STREAM(W, to, v); \
        else                             \
            *(V *)(void *)(to) = (v);    \
    } while (0)

/* The end of a sum or product of floats of type T, whose bits are a U: divides an average, and
   replaces every NaN by the same NaN. Most vectors have no NaN. */
#define DS__COMM_ONE_NAN(V, U, x, value) \
    x = (V)(((U)(x) & ~(U)((x) != (x))) | ((U)((x) != (x)) & (value)));
#define DS__COMM_END(W, V, U, T, value, divisor)                          \
    if (divisor > 1) {                                                    \
        T n = (T)divisor;                                                 \
        a /= n, b /= n, c /= n, d /= n;                                   \
    }                                                                     \
    if (DS__VECTOR_ANY_##W((a != a) | (b != b) | (c != c) | (d != d))) {  \
        DS__COMM_ONE_NAN(V, U, a, value)                                  \
        DS__COMM_ONE_NAN(V, U, b, value)                                  \
        DS__COMM_ONE_NAN(V, U, c, value) DS__COMM_ONE_NAN(V, U, d, value) \
    }

#define DS__COMM_END_F32(W, divisor) \
    DS__COMM_END(W, ds__vf32_##W, ds__vu32_##W, float, 0x7fc00000u, divisor)
#define DS__COMM_END_F64(W, divisor) \
    DS__COMM_END(W, ds__vf64_##W, ds__vu64_##W, double, 0x7ff8000000000000u, divisor)
#define DS__COMM_END_INTEGER(W, divisor) (void)(divisor);

/* f16 and bf16: TAKE loads W bytes as two vectors of floats, GIVE stores two vectors. The two
   numbers of a word are separated and combined in place, so no number leaves its lane. Rounding a
   NaN cannot carry into its sign. */
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

/* f16 by instructions, with the same results as the arithmetic. */
#define DS__COMM_TAKE_NATIVE(W, from, x, y)                                        \
    x = (ds__vf32_32)DS__VECTOR_WIDEN(*(const ds__vi16_16 *)(const void *)(from)); \
    y = (ds__vf32_32)DS__VECTOR_WIDEN(*(const ds__vi16_16 *)(const void *)((from) + 16));
#define DS__COMM_GIVE_NATIVE(W, to, x, y)                                    \
    {                                                                        \
        ds__vi16_16 low = DS__VECTOR_NARROW(x), high = DS__VECTOR_NARROW(y); \
        DS__COMM_PUT(16, ds__vi16_16, to, low);                              \
        DS__COMM_PUT(16, ds__vi16_16, (to) + 16, high);                      \
    }

/* Maximum and minimum of integers, f16 and bf16: the numbers become signed keys, and the largest
   key is the result. The key of NaN is larger than all others. S is a signed type, U an unsigned
   one. */
typedef struct ds__comm_order {
    uint64_t fold;     /* bits to invert in a negative f16 or bf16 */
    uint64_t flip;     /* bits to invert in every number afterwards */
    uint64_t infinity; /* f16, bf16: a larger number without its sign is NaN */
    uint64_t quiet;    /* f16, bf16: the NaN that is written */
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
/* Maximum of floats of type V, whose bits are a U; for the minimum all signs are inverted. +0 and
   -0 compare as equal: if the maximum is a zero, it is -0 only if all zeros are negative. `all` has
   the bits that are set in all numbers; for zeros that is the sign. */
#define DS__COMM_LARGER_REAL(V, U, from, a, all, nan)           \
    {                                                           \
        U bits = *(const U *)(const void *)(from) ^ flip, more; \
        V x = (V)bits;                                          \
        more = (U)(x > a);                                      \
        all &= bits;                                            \
        nan |= (U)(x != x);                                     \
        a = (V)((bits & more) | ((U)a & ~more));                \
    }

#endif
