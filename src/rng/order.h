/* rng/order.h - checks of a fill's arguments.

   Checks the description of a fill and translates it into arguments of a kernel (ds__rng_args):
   ds__rng_reals for floats, ds__rng_whole for integers, bits and Bernoulli numbers,
   ds__rng_order for permutations. ds__rng_taken returns the number of words that a fill takes.

   Invariants: the bounds have no negative zeros, because `to` is recognised by its bits.
   ds__rng_taken returns a multiple of 4. Fills whose bits depend on exact floats are refused
   where DS__RNG_EXACT is 0.
   Locks: none; the caller holds the generator's lock.
   Threads: any. */
#ifndef DS__RNG_ORDER_H
#define DS__RNG_ORDER_H

#include "../api/rng_fill.h"
#include "../core/internal.h"
#include "kernel_arith.h"
#include "kernel_cpu.h"
#include "kernel.h"
#include "fill_types.h"

static ds_result ds__rng_no_type(ds_dtype dtype, const char *what) {
    char name[DS_DTYPE_NAME_SIZE];
    return ds__fail(DS_ERR_UNSUPPORTED, "%s of type %s are not supported", what,
                    ds__dtype_name(dtype, name));
}

static int ds__rng_float_kind(ds_dtype t) {
    if (t.lanes != 1)
        return -1;
    if (t.code == DS_CODE_BFLOAT)
        return t.bits == 16 ? DS__RNG_BF16 : -1;
    return t.code != DS_CODE_FLOAT ? -1
           : t.bits == 16          ? DS__RNG_F16
           : t.bits == 32          ? DS__RNG_F32
           : t.bits == 64          ? DS__RNG_F64
                                   : -1;
}

static int ds__rng_integer_kind(ds_dtype t) {
    int right = t.lanes == 1 && (t.code == DS_CODE_INT || t.code == DS_CODE_UINT ||
                                 (t.code == DS_CODE_BOOL && t.bits == 8));
    return !right         ? -1
           : t.bits == 8  ? DS__RNG_8
           : t.bits == 16 ? DS__RNG_16
           : t.bits == 32 ? DS__RNG_32
           : t.bits == 64 ? DS__RNG_64
                          : -1;
}

static float ds__rng_widened(uint32_t bits, uint32_t kind) { /* of what ds__rng_narrow gave */
    if (kind == DS__RNG_F32)
        return ds__rng_float(bits);
    if (kind == DS__RNG_BF16)
        return ds__rng_float(bits << 16);
    uint32_t e = bits >> 10 & 31;
    uint32_t m = bits & 1023;
    float x = e == 31 ? ds__rng_float(0x7f800000u)
              : e     ? ds__rng_float((e + 112) << 23 | m << 13)
                      : (float)m * 0x1p-24f;
    return bits & 0x8000u ? -x : x;
}

/* also where the compiler was told that all numbers are */
static int ds__rng_finite(double x) {
    return (ds__rng_bits64(x) >> 52 & 2047) != 2047;
}

/* Real numbers: the parameters, which the type must hold. */
static ds_result ds__rng_reals(const ds_rng_fill_desc *d, int torch, ds__rng_args *a,
                               int *out_which) {
    static const char *const names[] = { "uniform numbers", "normal numbers",
                                         "exponential numbers" };
    static const int which[3][2] = { { DS__RNG_UNIFORMS, DS__RNG_UNIFORM64 },
                                     { DS__RNG_NORMALS, DS__RNG_NORMAL64 },
                                     { DS__RNG_EXPONENTIALS, DS__RNG_EXPONENTIAL64 } };
    int kind = ds__rng_float_kind(d->dtype);
    if (kind < 0)
        return ds__rng_no_type(d->dtype, names[d->kind]);
    a->kind = (uint32_t)kind;
    a->what = (uint32_t)d->kind; /* in the same order */
    a->from = d->a + 0.0;        /* no negative zeros: `to` is told by its bits */
    a->to = d->b + 0.0;
    a->from32 = (float)a->from + 0.0f;
    a->to32 = (float)a->to + 0.0f;
    if (kind != DS__RNG_F64) {
        a->from_bits = ds__rng_narrow(a->from32, a->kind);
        a->to_bits = ds__rng_narrow(a->to32, a->kind);
        if (ds__rng_widened(a->to_bits, a->kind) == 0)
            a->to_bits = 0;
    }
    *out_which = which[d->kind][kind == DS__RNG_F64];
    if (d->kind == DS_RNG_UNIFORM) {
        float low = ds__rng_widened(a->from_bits, a->kind);
        float high = ds__rng_widened(a->to_bits, a->kind);
        a->scale32 = a->to32 - a->from32;
        if (torch && kind != DS__RNG_F64) { /* bounds and their difference are of the type there */
            a->from32 = low;
            a->to32 = high;
            a->scale32 = ds__rng_widened(ds__rng_narrow(high - low, a->kind), a->kind);
        }
        int fits = ds__rng_finite(a->from) && ds__rng_finite(a->to) &&
                   (kind == DS__RNG_F64 ? ds__rng_finite(a->to - a->from)
                                        : ds__rng_finite(a->scale32) && ds__rng_finite(low) &&
                                              ds__rng_finite(high));
        DS__REQUIRE(fits && d->a <= d->b, "from %g to %g is not a valid interval of the type", d->a,
                    d->b);
        if (torch && !DS__RNG_EXACT)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "torch's %s are not supported in a build with -ffast-math: the bits "
                            "would differ from torch's",
                            names[d->kind]);
        return DS_OK;
    }
    if (!DS__RNG_EXACT)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "%s are not supported in a build with -ffast-math: the bits would differ "
                        "between builds",
                        names[d->kind]);
    if (d->kind == DS_RNG_NORMAL)
        DS__REQUIRE(
            ds__rng_finite(d->a) && ds__rng_finite(d->b) && d->b >= 0 &&
                (kind == DS__RNG_F64 || (ds__rng_finite(a->from32) && ds__rng_finite(a->to32))),
            "mean is %g and deviation is %g; both must be finite, and deviation >= 0", d->a, d->b);
    else
        DS__REQUIRE(ds__rng_finite(d->a) && d->a > 0 &&
                        (kind == DS__RNG_F64 || (a->from32 > 0 && ds__rng_finite(a->from32))),
                    "rate is %g; it must be finite and above 0", d->a);
    return DS_OK;
}

/* Integers, and zeros and ones. */
static ds_result ds__rng_whole(const ds_rng_fill_desc *d, int torch, ds__rng_args *a,
                               int *out_which) {
    int kind = ds__rng_integer_kind(d->dtype);
    int unit = d->dtype.code == DS_CODE_UINT;
    *out_which = DS__RNG_ONE_WORD;
    a->what = DS__RNG_INTEGERS;
    if (d->kind == DS_RNG_BITS) {
        size_t size = ds_dtype_size(d->dtype);
        if (size != 1 && size != 2 && size != 4 && size != 8)
            return ds__rng_no_type(d->dtype, "random bits");
        a->kind = size == 1   ? DS__RNG_8
                  : size == 2 ? DS__RNG_16
                  : size == 4 ? DS__RNG_32
                              : DS__RNG_64;
        a->range = size == 8 ? 0 : d->dtype.code == DS_CODE_BOOL ? 2 : (uint64_t)1 << 32;
        if (size == 8) {
            a->what = DS__RNG_WIDE_INTEGERS;
            *out_which = DS__RNG_TWO_WORDS;
        }
        return DS_OK;
    }
    if (d->kind == DS_RNG_BERNOULLI) {
        int real = ds__rng_float_kind(d->dtype);
        if (kind < 0 && real < 0)
            return ds__rng_no_type(d->dtype, "zeros and ones");
        if (torch && real == DS__RNG_F64)
            return ds__rng_no_type(d->dtype, "zeros and ones in torch's mapping");
        DS__REQUIRE(ds__rng_finite(d->a) && d->a >= 0 && d->a <= 1,
                    "the probability is %g; it must be from 0 to 1", d->a);
        a->kind = (uint32_t)(kind >= 0             ? kind
                             : real == DS__RNG_F64 ? DS__RNG_64
                             : real == DS__RNG_F32 ? DS__RNG_32
                                                   : DS__RNG_16);
        a->low = kind >= 0             ? 1
                 : real == DS__RNG_F64 ? UINT64_C(0x3ff0000000000000)
                                       : ds__rng_narrow(1, (uint32_t)real);
        if (torch) { /* how many words give a uniform number below p */
            uint64_t low = 0;
            uint64_t high = (uint64_t)1 << 32;
            while (low < high) {
                uint64_t middle = (low + high) / 2;
                if (ds__rng_above_0((uint32_t)middle) < (float)d->a)
                    low = middle + 1;
                else
                    high = middle;
            }
            a->range = low;
        } else {
            a->range = (uint64_t)(d->a * 0x1p32);
        }
        a->what = DS__RNG_BERNOULLI;
        *out_which = DS__RNG_ONE_OR_ZERO;
        return DS_OK;
    }
    if (kind < 0)
        return ds__rng_no_type(d->dtype, "random integers");
    DS__REQUIRE(d->low < d->high, "the range [%lld, %lld) is empty", (long long)d->low,
                (long long)d->high);
    int bits = d->dtype.code == DS_CODE_BOOL ? 1 : d->dtype.bits;
    int64_t least = unit || bits == 1 ? 0 : INT64_MIN >> (64 - bits);
    int64_t most = bits == 64
                       ? INT64_MAX
                       : (int64_t)(((uint64_t)1 << (unit || bits == 1 ? bits : bits - 1)) - 1);
    DS__REQUIRE(d->low >= least && d->high - 1 <= most, "the type cannot represent [%lld, %lld)",
                (long long)d->low, (long long)d->high);
    a->kind = (uint32_t)kind;
    a->low = (uint64_t)d->low;
    a->range = (uint64_t)d->high - (uint64_t)d->low;
    int one = torch ? a->range < (uint64_t)1 << 28
                    : a->range <= 1 << 16 ||
                          (a->range <= (uint64_t)1 << 32 && (a->range & (a->range - 1)) == 0);
    if (!one) {
        a->what = DS__RNG_WIDE_INTEGERS;
        *out_which = DS__RNG_TWO_WORDS;
    }
    return DS_OK;
}

static ds_result ds__rng_order(const ds_rng_fill_desc *d, size_t total, ds__rng_args *a,
                               int *out_which) {
    int kind = ds__rng_integer_kind(d->dtype);
    if (kind < DS__RNG_32 || d->dtype.code != DS_CODE_INT)
        return ds__rng_no_type(d->dtype, "permutations");
    DS__REQUIRE((uint64_t)total <= (uint64_t)1 << (kind == DS__RNG_32 ? 31 : 62),
                "a permutation of %zu elements exceeds the type", total);
    a->kind = (uint32_t)kind;
    a->what = DS__RNG_PERMUTATION;
    a->range = total;
    for (a->low = 0; total > DS__RNG_FEW && (uint64_t)(total - 1) >> a->low; a->low++) {
    }
    *out_which = DS__RNG_ORDER;
    return DS_OK;
}

/* Words that a fill takes. */
static uint64_t ds__rng_taken(const ds__rng_args *a, uint64_t total) {
    uint64_t each = (uint64_t)1 << ds__rng_shift(a);
    if (a->what == DS__RNG_PERMUTATION)
        return a->low ? 4 : (total + 1) / 2 * 4;
    if (a->stride > 1)
        return ((total - 1) / (each * a->stride) + 1) * 4;
    return (total + each - 1) / each * 4;
}

#endif
