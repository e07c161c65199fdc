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

/* Returns DS__RNG_F16 ... of a type, or -1. */
static int ds__rng_float_kind(ds_dtype t) {
    if (t.lanes != 1)
        return -1;
    if (t.code == DS_CODE_BFLOAT)
        return t.bits == 16 ? DS__RNG_BF16 : -1;
    if (t.code != DS_CODE_FLOAT)
        return -1;
    switch (t.bits) {
    case 16:
        return DS__RNG_F16;
    case 32:
        return DS__RNG_F32;
    case 64:
        return DS__RNG_F64;
    default:
        return -1;
    }
}

/* Returns DS__RNG_8 ... of so many bits, or -1. */
static int ds__rng_word_kind(size_t bits) {
    switch (bits) {
    case 8:
        return DS__RNG_8;
    case 16:
        return DS__RNG_16;
    case 32:
        return DS__RNG_32;
    case 64:
        return DS__RNG_64;
    default:
        return -1;
    }
}

/* Returns DS__RNG_8 ... of a type of integers or booleans, or -1. */
static int ds__rng_integer_kind(ds_dtype t) {
    int right = t.lanes == 1 && (t.code == DS_CODE_INT || t.code == DS_CODE_UINT ||
                                 (t.code == DS_CODE_BOOL && t.bits == 8));
    return right ? ds__rng_word_kind(t.bits) : -1;
}

/* Returns the number whose bits ds__rng_narrow returned. */
static float ds__rng_widened(uint32_t bits, uint32_t kind) {
    if (kind == DS__RNG_F32)
        return ds__rng_float(bits);
    if (kind == DS__RNG_BF16)
        return ds__rng_float(bits << 16);
    uint32_t e = bits >> 10 & 31;
    uint32_t m = bits & 1023;
    float x = (float)m * 0x1p-24f;
    if (e == 31)
        x = ds__rng_float(0x7f800000u);
    else if (e)
        x = ds__rng_float((e + 112) << 23 | m << 13);
    return bits & 0x8000u ? -x : x;
}

/* Also correct with -ffast-math, where the compiler assumes that all numbers are finite. */
static int ds__rng_finite(double x) {
    return (ds__rng_bits64(x) >> 52 & 2047) != 2047;
}

/* The names of the fills of real numbers, by DS_RNG_UNIFORM ... */
static const char *const ds__rng_real_names[] = { "uniform numbers", "normal numbers",
                                                  "exponential numbers" };

/* Sets the parameters in f64, in f32 and as they are written. */
static void ds__rng_reals_set(const ds_rng_fill_desc *d, uint32_t kind, ds__rng_args *a) {
    a->kind = kind;
    a->what = (uint32_t)d->kind; /* in the same order */
    a->from = d->a + 0.0;        /* no negative zeros: `to` is recognised by its bits */
    a->to = d->b + 0.0;
    a->from32 = (float)a->from + 0.0f;
    a->to32 = (float)a->to + 0.0f;
    if (kind != DS__RNG_F64) {
        a->from_bits = ds__rng_narrow(a->from32, a->kind);
        a->to_bits = ds__rng_narrow(a->to32, a->kind);
        if (ds__rng_widened(a->to_bits, a->kind) == 0)
            a->to_bits = 0;
    }
}

/* Sets the scale of a uniform fill. The type must hold both bounds and their difference. */
static ds_result ds__rng_uniform_check(const ds_rng_fill_desc *d, int torch, ds__rng_args *a) {
    float low = ds__rng_widened(a->from_bits, a->kind);
    float high = ds__rng_widened(a->to_bits, a->kind);
    a->scale32 = a->to32 - a->from32;
    if (torch && a->kind != DS__RNG_F64) { /* torch rounds bounds and difference to the type */
        a->from32 = low;
        a->to32 = high;
        a->scale32 = ds__rng_widened(ds__rng_narrow(high - low, a->kind), a->kind);
    }

    int fits = ds__rng_finite(a->from) && ds__rng_finite(a->to);
    if (a->kind == DS__RNG_F64)
        fits = fits && ds__rng_finite(a->to - a->from);
    else
        fits = fits && ds__rng_finite(a->scale32) && ds__rng_finite(low) && ds__rng_finite(high);
    DS__REQUIRE(fits && d->a <= d->b, "from %g to %g is not a valid interval of the type", d->a,
                d->b);

    if (torch && !DS__RNG_EXACT)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "torch's %s are not supported in a build with -ffast-math: the bits would "
                        "differ from torch's",
                        ds__rng_real_names[d->kind]);
    return DS_OK;
}

static ds_result ds__rng_normal_check(const ds_rng_fill_desc *d, const ds__rng_args *a) {
    DS__REQUIRE(
        ds__rng_finite(d->a) && ds__rng_finite(d->b) && d->b >= 0 &&
            (a->kind == DS__RNG_F64 || (ds__rng_finite(a->from32) && ds__rng_finite(a->to32))),
        "mean is %g and deviation is %g; both must be finite, and deviation >= 0", d->a, d->b);
    return DS_OK;
}

static ds_result ds__rng_exponential_check(const ds_rng_fill_desc *d, const ds__rng_args *a) {
    DS__REQUIRE(ds__rng_finite(d->a) && d->a > 0 &&
                    (a->kind == DS__RNG_F64 || (a->from32 > 0 && ds__rng_finite(a->from32))),
                "rate is %g; it must be finite and above 0", d->a);
    return DS_OK;
}

/* The arguments of a fill with real numbers. *out_which: the kernel. */
static ds_result ds__rng_reals(const ds_rng_fill_desc *d, int torch, ds__rng_args *a,
                               int *out_which) {
    static const int which[3][2] = { { DS__RNG_UNIFORMS, DS__RNG_UNIFORM64 },
                                     { DS__RNG_NORMALS, DS__RNG_NORMAL64 },
                                     { DS__RNG_EXPONENTIALS, DS__RNG_EXPONENTIAL64 } };
    int kind = ds__rng_float_kind(d->dtype);
    if (kind < 0)
        return ds__rng_no_type(d->dtype, ds__rng_real_names[d->kind]);
    ds__rng_reals_set(d, (uint32_t)kind, a);
    *out_which = which[d->kind][kind == DS__RNG_F64];
    if (d->kind == DS_RNG_UNIFORM)
        return ds__rng_uniform_check(d, torch, a);
    if (!DS__RNG_EXACT)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "%s are not supported in a build with -ffast-math: the bits would differ "
                        "between builds",
                        ds__rng_real_names[d->kind]);
    return d->kind == DS_RNG_NORMAL ? ds__rng_normal_check(d, a) : ds__rng_exponential_check(d, a);
}

static ds_result ds__rng_whole_bits(const ds_rng_fill_desc *d, ds__rng_args *a, int *out_which) {
    int kind = ds__rng_word_kind(8 * ds_dtype_get_size(d->dtype));
    if (kind < 0)
        return ds__rng_no_type(d->dtype, "random bits");
    a->kind = (uint32_t)kind;
    if (kind == DS__RNG_64) {
        a->range = 0;
        a->what = DS__RNG_WIDE_INTEGERS;
        *out_which = DS__RNG_TWO_WORDS;
    } else {
        a->range = d->dtype.code == DS_CODE_BOOL ? 2 : (uint64_t)1 << 32;
    }
    return DS_OK;
}

/* Returns how many of the 2^32 words give a uniform number below p in torch's mapping. */
static uint64_t ds__rng_words_below(float p) {
    uint64_t low = 0;
    uint64_t high = (uint64_t)1 << 32;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (ds__rng_above_0((uint32_t)middle) < p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Sets the size of the elements and the bits of a 1; real: DS__RNG_F16 ... */
static void ds__rng_real_one(int real, ds__rng_args *a) {
    if (real == DS__RNG_F64) {
        a->kind = DS__RNG_64;
        a->low = UINT64_C(0x3ff0000000000000);
        return;
    }
    a->kind = real == DS__RNG_F32 ? DS__RNG_32 : DS__RNG_16;
    a->low = ds__rng_narrow(1, (uint32_t)real);
}

static ds_result ds__rng_whole_bernoulli(const ds_rng_fill_desc *d, int torch, ds__rng_args *a,
                                         int *out_which) {
    int kind = ds__rng_integer_kind(d->dtype);
    int real = ds__rng_float_kind(d->dtype);
    if (kind < 0 && real < 0)
        return ds__rng_no_type(d->dtype, "zeros and ones");
    if (torch && real == DS__RNG_F64)
        return ds__rng_no_type(d->dtype, "zeros and ones in torch's mapping");
    DS__REQUIRE(ds__rng_finite(d->a) && d->a >= 0 && d->a <= 1,
                "the probability is %g; it must be from 0 to 1", d->a);
    if (kind >= 0) {
        a->kind = (uint32_t)kind;
        a->low = 1;
    } else {
        ds__rng_real_one(real, a);
    }
    a->range = torch ? ds__rng_words_below((float)d->a) : (uint64_t)(d->a * 0x1p32);
    a->what = DS__RNG_BERNOULLI;
    *out_which = DS__RNG_ONE_OR_ZERO;
    return DS_OK;
}

/* Refuses an interval that is empty or that the type does not hold. */
static ds_result ds__rng_interval_check(const ds_rng_fill_desc *d) {
    int bits = d->dtype.code == DS_CODE_BOOL ? 1 : d->dtype.bits;
    int positive = d->dtype.code == DS_CODE_UINT || bits == 1;
    int64_t least = positive ? 0 : INT64_MIN >> (64 - bits);
    int64_t most = INT64_MAX;
    if (bits < 64)
        most = (int64_t)(((uint64_t)1 << (positive ? bits : bits - 1)) - 1);
    DS__REQUIRE(d->low < d->high, "the range [%lld, %lld) is empty", (long long)d->low,
                (long long)d->high);
    DS__REQUIRE(d->low >= least && d->high - 1 <= most, "the type cannot represent [%lld, %lld)",
                (long long)d->low, (long long)d->high);
    return DS_OK;
}

/* Returns 1 if an integer of the range takes one word, 0 if it takes two. */
static int ds__rng_is_narrow(uint64_t range, int torch) {
    if (torch)
        return range < (uint64_t)1 << 28;
    return range <= 1 << 16 || (range <= (uint64_t)1 << 32 && (range & (range - 1)) == 0);
}

static ds_result ds__rng_whole_integers(const ds_rng_fill_desc *d, int torch, ds__rng_args *a,
                                        int *out_which) {
    int kind = ds__rng_integer_kind(d->dtype);
    if (kind < 0)
        return ds__rng_no_type(d->dtype, "random integers");
    ds_result r = ds__rng_interval_check(d);
    if (r < 0)
        return r;
    a->kind = (uint32_t)kind;
    a->low = (uint64_t)d->low;
    a->range = (uint64_t)d->high - (uint64_t)d->low;
    if (!ds__rng_is_narrow(a->range, torch)) {
        a->what = DS__RNG_WIDE_INTEGERS;
        *out_which = DS__RNG_TWO_WORDS;
    }
    return DS_OK;
}

/* The arguments of a fill with integers, bits, or zeros and ones. *out_which: the kernel. */
static ds_result ds__rng_whole(const ds_rng_fill_desc *d, int torch, ds__rng_args *a,
                               int *out_which) {
    *out_which = DS__RNG_ONE_WORD;
    a->what = DS__RNG_INTEGERS;
    if (d->kind == DS_RNG_BITS)
        return ds__rng_whole_bits(d, a, out_which);
    if (d->kind == DS_RNG_BERNOULLI)
        return ds__rng_whole_bernoulli(d, torch, a, out_which);
    return ds__rng_whole_integers(d, torch, a, out_which);
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

/* Returns the number of words that a fill takes. */
static uint64_t ds__rng_taken(const ds__rng_args *a, uint64_t total) {
    uint64_t each = (uint64_t)1 << ds__rng_shift(a);
    if (a->what == DS__RNG_PERMUTATION)
        return a->low ? 4 : (total + 1) / 2 * 4;
    if (a->stride > 1)
        return ((total - 1) / (each * a->stride) + 1) * 4;
    return (total + each - 1) / each * 4;
}

#endif
