/* api/rng_fill.h - fills with random numbers.

   Declares one function for each distribution, and ds_rng_fill, which also makes parts of a
   fill.

   Threads: any. Concurrent fills from one generator get different words of its sequence. */
#ifndef DS__API_RNG_FILL_H
#define DS__API_RNG_FILL_H

#include "stream.h"
#include "dtype.h"
#include "rng.h"

/* ---- fills ----------------------------------------------------------------------------------- */

/* Each fill puts a kernel on the stream, which writes count elements at out, memory that the
   stream's device can reach, and takes the words that it needs from the generator, rounded up to
   a multiple of 4; a fill of nothing takes none. The generator must belong to the stream's
   device: DS_ERR_DEVICE_MISMATCH. The types are float16, bfloat16, float32 and float64, and
   where it is said also bool and the integers: DS_ERR_UNSUPPORTED for others. Nothing blocks.
   After a refused call the generator is as it was; only where torch's mapping cuts a fill (above
   2 GiB) and one of the kernels is refused, those before it stay. */

/** Uniform in [from, to): from + u (to - from), rounded to the type, where `to` becomes `from`.
    u has as many bits as the type's fraction (24, 11, 8 and 53); in torch's mapping it is
    torch's, by whose formula rounding may also pass `to`: of [-1, 1e-7) in f32 the largest is
    1.2e-7. from <= to, and the difference must be a finite number of the type. Elements take one
    word, of float64 two. */
DSDEF DS_MUST_USE ds_result ds_rng_uniform(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                           double from, double to, ds_stream stream);
/** Normal, by Box and Muller's formula: up to 6.7 deviations from the mean (f64: 8.6). deviation
    >= 0. Words as ds_rng_uniform. */
DSDEF DS_MUST_USE ds_result ds_rng_normal(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                          double mean, double deviation, ds_stream stream);
/** Exponential, with the mean 1 / rate; never 0 but where the type has none so small. rate > 0.
    Words as ds_rng_uniform. */
DSDEF DS_MUST_USE ds_result ds_rng_exponential(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                               double rate, ds_stream stream);
/** Integers in [low, high), of any integer type that has them all, or bool. An element takes one
    word where high - low is at most 2^16 or a power of two up to 2^32, else two; so none is more
    likely than another by more than a 2^16th. torch's mapping takes remainders, of one word
    below 2^28, else of two. */
DSDEF DS_MUST_USE ds_result ds_rng_integers(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                            int64_t low, int64_t high, ds_stream stream);
/** 1 with the probability p, else 0, of any type but complex ones; torch's mapping has no
    float64, and where p is 1 a 0 once in 2^25, as torch. Elements take one word. */
DSDEF DS_MUST_USE ds_result ds_rng_bernoulli(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                             double p, ds_stream stream);
/** Random bits; of torch's mapping too, every type of 1 to 8 bytes. Of bool true or false.
    Elements take one word, of 8 bytes two. */
DSDEF DS_MUST_USE ds_result ds_rng_bits(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                        ds_stream stream);
/** The integers 0 to count - 1 in random order, as int32 or int64. Up to 256 elements every
    order is as likely as another. Of more it is a keyed permutation (a Feistel network), whose
    2^128 keys cannot give every order. Up to 256 elements take two words each, more take four in
    all. */
DSDEF DS_MUST_USE ds_result ds_rng_permutation(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                               ds_stream stream);

/** What ds_rng_fill does. */
typedef enum ds_rng_kind {
    DS_RNG_UNIFORM = 0,     /**< ds_rng_uniform: from a to b */
    DS_RNG_NORMAL = 1,      /**< ds_rng_normal: mean a, deviation b */
    DS_RNG_EXPONENTIAL = 2, /**< ds_rng_exponential: rate a */
    DS_RNG_INTEGERS = 3,    /**< ds_rng_integers: low to high */
    DS_RNG_BERNOULLI = 4,   /**< ds_rng_bernoulli: p is a */
    DS_RNG_BITS = 5,        /**< ds_rng_bits */
    DS_RNG_PERMUTATION = 6  /**< ds_rng_permutation */
} ds_rng_kind;

/** A part of a fill: elements first .. first+count-1 of one of `total` elements. So several
    devices, whose generators have the same state, each make a part of one result, and all
    generators are in the same state afterwards. Parts need DS_RNG_ELEMENT (permutations: any
    mapping). */
typedef struct ds_rng_fill_desc {
    ds_rng_kind kind;     /**< the distribution */
    ds_dtype dtype;       /**< type of an element */
    void *out;            /**< where element `first` goes */
    size_t count;         /**< elements to write */
    double a;             /**< from; mean; rate; p */
    double b;             /**< to; deviation */
    int64_t low;          /**< of DS_RNG_INTEGERS */
    int64_t high;         /**< the same */
    size_t first;         /**< index of the first element */
    size_t total;         /**< elements of the whole; 0: first + count */
    uint64_t reserved[4]; /**< 0 */
} ds_rng_fill_desc;

/** Fills as the functions above do. */
DSDEF DS_MUST_USE ds_result ds_rng_fill(ds_rng rng, const ds_rng_fill_desc *desc, ds_stream stream);

#endif
