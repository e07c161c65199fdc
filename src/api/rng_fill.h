/* api/rng_fill.h - fills with random numbers.

   Declares one function for each distribution, and ds_rng_fill, which also supports parts of a
   fill.

   Threads: any. Concurrent fills from one generator get different words of its sequence. */
#ifndef DS__API_RNG_FILL_H
#define DS__API_RNG_FILL_H

#include "stream.h"
#include "dtype.h"
#include "rng.h"

/* ---- fills ----------------------------------------------------------------------------------- */

/* Each fill enqueues a kernel on the stream. The kernel writes count elements at out, in memory
   accessible to the stream's device. A fill takes the needed words from the generator, rounded up
   to a multiple of 4; a fill of 0 elements takes none. Does not block.

   Types are float16, bfloat16, float32 and float64; some functions also support bool and integers.
   DS_ERR_UNSUPPORTED: another type. DS_ERR_DEVICE_MISMATCH: the generator belongs to another device
   than the stream. After an error, the generator is unchanged. Exception: torch's mapping splits
   fills above 2 GiB, and kernels enqueued before the failed kernel remain. */

/** Fills with uniform numbers in [from, to): from + u (to - from), rounded to the type; a result of
    `to` becomes `from`. u has as many bits as the type's significand (24, 11, 8 and 53). from <=
    to, and the difference must be finite in the type. One word per element, two for float64.
    torch's mapping uses torch's formula, whose rounding may exceed `to`: in float32, [-1, 1e-7)
    yields up to 1.2e-7. */
DSDEF DS_MUST_USE ds_result ds_rng_uniform(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                           double from, double to, ds_stream stream);
/** Fills with normal numbers by the Box-Muller transform: at most 6.7 deviations from the mean
    (float64: 8.6). deviation >= 0. Words as for ds_rng_uniform. */
DSDEF DS_MUST_USE ds_result ds_rng_normal(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                          double mean, double deviation, ds_stream stream);
/** Fills with exponential numbers of mean 1 / rate. Never 0, unless the type cannot represent a
    small enough number. rate > 0. Words as for ds_rng_uniform. */
DSDEF DS_MUST_USE ds_result ds_rng_exponential(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                               double rate, ds_stream stream);
/** Fills with integers in [low, high), in bool or an integer type that can represent the range. One
    word per element if high - low is at most 2^16 or a power of two up to 2^32, else two.
    Probabilities therefore differ by at most a factor of 2^-16. torch's mapping uses remainders of
    one word for ranges below 2^28, else of two. */
DSDEF DS_MUST_USE ds_result ds_rng_integers(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                            int64_t low, int64_t high, ds_stream stream);
/** Fills with 1 with probability p, else 0, in any type except complex types. One word per element.
    torch's mapping does not support float64; for p = 1 it yields a 0 once in 2^25, as torch
    does. */
DSDEF DS_MUST_USE ds_result ds_rng_bernoulli(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                             double p, ds_stream stream);
/** Fills with random bits, in any type of 1 to 8 bytes, also in torch's mapping. bool: true or
    false. One word per element, two for 8 bytes. */
DSDEF DS_MUST_USE ds_result ds_rng_bits(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                        ds_stream stream);
/** Fills with the integers 0 to count - 1 in random order, as int32 or int64. Up to 256 elements,
    all orders have equal probability; each element takes two words. Above that, uses a keyed
    permutation (a Feistel network) with four words in total. Its 2^128 keys cannot generate every
    order. */
DSDEF DS_MUST_USE ds_result ds_rng_permutation(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                               ds_stream stream);

/** Distributions of ds_rng_fill. */
typedef enum ds_rng_kind {
    DS_RNG_UNIFORM = 0,     /**< ds_rng_uniform: from a to b */
    DS_RNG_NORMAL = 1,      /**< ds_rng_normal: mean a, deviation b */
    DS_RNG_EXPONENTIAL = 2, /**< ds_rng_exponential: rate a */
    DS_RNG_INTEGERS = 3,    /**< ds_rng_integers: low to high */
    DS_RNG_BERNOULLI = 4,   /**< ds_rng_bernoulli: p is a */
    DS_RNG_BITS = 5,        /**< ds_rng_bits */
    DS_RNG_PERMUTATION = 6  /**< ds_rng_permutation */
} ds_rng_kind;

/** A part of a fill: elements first .. first+count-1 of a fill of `total` elements. Several devices
    with equal generator states can each write a part of one result. All generators are then in the
    same state. Parts need DS_RNG_ELEMENT, except permutations. */
typedef struct ds_rng_fill_desc {
    ds_rng_kind kind;     /**< the distribution */
    ds_dtype dtype;       /**< type of an element */
    void *out;            /**< address of element `first` */
    size_t count;         /**< number of elements to write */
    double a;             /**< from; mean; rate; or p */
    double b;             /**< to; or deviation */
    int64_t low;          /**< low of DS_RNG_INTEGERS */
    int64_t high;         /**< high of DS_RNG_INTEGERS */
    size_t first;         /**< index of the first element */
    size_t total;         /**< number of elements of the whole fill; 0: first + count */
    uint64_t reserved[4]; /**< 0 */
} ds_rng_fill_desc;

/** Fills as the function of desc->kind does, also in part. */
DSDEF DS_MUST_USE ds_result ds_rng_fill(ds_rng rng, const ds_rng_fill_desc *desc, ds_stream stream);

#endif
