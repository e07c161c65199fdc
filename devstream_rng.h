/* Generated from src/devstream_rng.h by `make headers`. Edit the files in src/, not this one. */
/* devstream_rng.h - random numbers on devices: generators, and fills on a stream.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_rng.h"
   in exactly one C file, and #include "devstream_rng.h" in all other files that use it. Put
   devstream.h beside it, and link as described in devstream.h.

   A generator is a seed and an offset. A fill takes the next numbers of the seed's sequence, on a
   stream, and advances the offset. Every device has its own generator, which a zeroed ds_rng names;
   a program may create more.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_rng.h"
       #include <stdio.h>
       int main(void) {
           float y[4];
           void *x;
           ds_stream s;
           ds_rng rng = { 0 };
           if (ds_stream_get_current(ds_device_current(), &s) < 0 ||
               ds_device_alloc(ds_device_current(), sizeof y, &x) < 0 ||
               ds_rng_set_device_seed(ds_device_current(), 42) < 0 ||
               ds_rng_uniform(rng, ds_float32(), x, 4, 0, 1, s) < 0 ||
               ds_copy(y, x, sizeof y, s) < 0 || ds_stream_synchronize(s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           printf("%g %g %g %g\n", y[0], y[1], y[2], y[3]);
           return ds_shutdown() < 0;
       }

   Contents: generators; seeds and states; fills; implementation.

   Numbers are words of Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy
   as 1, 2, 3; SC11). The generator's mapping decides which words an element gets:
   - DS_RNG_ELEMENT: the words depend on the seed, the offset and the element's index only. The bits
     are the same on every device and driver, and for every way to cut a fill into parts. Two
     successive fills equal one fill of both lengths if the words of the first end with a block of
     four.
   - DS_RNG_TORCH: the numbers of torch.cuda for the same seed and GPU. They depend on the number of
     multiprocessors. This number can be set, so any device can reproduce any GPU. Uniform numbers
     (float32 in [0, 1)) and integers are torch's bit for bit. Normal and exponential numbers differ
     by about 1e-6 of a deviation, since torch uses the GPU's fast sine, cosine and logarithm.
     docs/random.md lists the comparisons with a GPU.

   Rules beyond devstream.h's:
   - Several threads may use a generator concurrently: each fill gets its own numbers, in the
     order of the calls.
   - Fills may be captured. Each launch of the graph takes new numbers, from the generator's offset
     at the launch. The graph keeps the generator's data alive. Seeds set between launches take
     effect.
   - No function of the C library's mathematics is used, and results are not contracted: gcc, clang
     and a GPU give the same bits. Under -ffast-math, normal and exponential fills, and uniform
     fills with torch's mapping, are refused.

   Known gaps: the generators are not cryptographically secure. torch's randperm, multinomial and
   dropout consume numbers in other ways, so ds_rng_permutation is the same in both mappings. A
   graph with fills cannot be launched while its stream captures: add it as a child graph. A
   graph added twice as a child generates the same numbers twice in a launch. All fills of a
   graph must belong to the device of the launching stream. A capture of a wrapped stream
   begun outside devstream generates the same numbers at each replay. */
#include "devstream.h"

#ifndef DEVSTREAM_RNG_H_INCLUDED
#define DEVSTREAM_RNG_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- generators ------------------------------------------------------------------------------ */

/** A generator. A zeroed handle names the own generator of the device on which it is used. */
typedef struct ds_rng {
    uint64_t id; /**< index and generation; 0: the device's own */
} ds_rng;

/** Mapping of the sequence's words to elements; see the top of this file. */
typedef enum ds_rng_mapping {
    DS_RNG_ELEMENT = 0, /**< by element index: the same on every device */
    DS_RNG_TORCH = 1    /**< as torch.cuda assigns words to the threads of a GPU */
} ds_rng_mapping;

/** Seed of created generators by default (torch's). The generators of devices start with a random
    seed. */
#define DS_RNG_DEFAULT_SEED UINT64_C(67280421310721)

/** Size of a state in bytes: the seed, then the offset, in native byte order (torch's format). */
#define DS_RNG_STATE_SIZE 16

/** Parameters of ds_rng_create; zero means default. */
typedef struct ds_rng_desc {
    ds_device device; /**< zeroed: the thread's current device */
    /** 0: DS_RNG_DEFAULT_SEED; for the seed 0, call ds_rng_set_seed */
    uint64_t seed;
    ds_rng_mapping mapping; /**< mapping of words to elements */
    /** DS_RNG_TORCH: multiprocessors of the GPU to reproduce; 0: the device's own, on a CPU device
        132 (H100, H200) */
    int multiprocessors;
    /** DS_RNG_TORCH: maximum of resident threads per multiprocessor, a multiple of 256; 0: the
        device's own, on a CPU device 2048. The total must be less than 2^32 */
    int threads_per_multiprocessor;
    const char *label;    /**< for messages; copied; may be NULL */
    uint64_t reserved[4]; /**< 0 */
} ds_rng_desc;

/** Result of ds_rng_get_info. */
typedef struct ds_rng_info {
    ds_device device;               /**< device of the generator */
    uint64_t seed;                  /**< seed */
    uint64_t offset;                /**< words consumed, a multiple of 4 */
    ds_rng_mapping mapping;         /**< mapping of words to elements */
    int multiprocessors;            /**< of DS_RNG_TORCH */
    int threads_per_multiprocessor; /**< of DS_RNG_TORCH */
    uint64_t reserved[4];           /**< 0 */
} ds_rng_info;

/** Creates a generator for the streams of a device, with offset 0. desc NULL: current device,
    defaults. May be called during a capture. The caller must destroy it. */
DSDEF DS_MUST_USE ds_result ds_rng_create(const ds_rng_desc *desc, ds_rng *out);
/** Creates a generator in the same state, as torch's clone_state does. DS_ERR_CAPTURE_UNSUPPORTED
    while a capture that uses the generator is open. */
DSDEF DS_MUST_USE ds_result ds_rng_clone(ds_rng rng, ds_rng *out);
/** Destroys a generator; the handle becomes invalid. Pending fills still run, and graphs with its
    fills continue to use its sequence. A device's own generator cannot be destroyed:
    DS_ERR_INVALID_HANDLE, or DS_ERR_INVALID_VALUE for a zeroed handle. */
DSDEF DS_MUST_USE ds_result ds_rng_destroy(ds_rng rng);
/** Returns a device's own generator. The first use creates it with a random seed. It must not be
    destroyed. */
DSDEF DS_MUST_USE ds_result ds_rng_get_default(ds_device device, ds_rng *out);
/** Returns the properties and the offset of a generator. A captured fill does not advance the
    offset; each launch of its graph does. */
DSDEF DS_MUST_USE ds_result ds_rng_get_info(ds_rng rng, ds_rng_info *out);
/** Sets the mapping of later fills, with the parameters of ds_rng_desc. */
DSDEF DS_MUST_USE ds_result ds_rng_set_mapping(ds_rng rng, ds_rng_mapping mapping,
                                               int multiprocessors, int threads_per_multiprocessor);

/* ---- seeds and states ------------------------------------------------------------------------ */

/* In this section, a zeroed generator names the current device's own generator. While a capture
   that uses a generator is open, its seed cannot change, except to the same value. Its offset and
   state can be neither read nor set: DS_ERR_CAPTURE_UNSUPPORTED, and the capture continues. */

/** Sets the seed, and the offset to 0. */
DSDEF DS_MUST_USE ds_result ds_rng_set_seed(ds_rng rng, uint64_t seed);
/** Sets a random seed from the operating system, and the offset to 0. out_seed may be NULL. */
DSDEF DS_MUST_USE ds_result ds_rng_reseed(ds_rng rng, uint64_t *out_seed);
/** Returns the last seed set. */
DSDEF DS_MUST_USE ds_result ds_rng_get_seed(ds_rng rng, uint64_t *out_seed);
/** Returns the words consumed since the generator was seeded. */
DSDEF DS_MUST_USE ds_result ds_rng_get_offset(ds_rng rng, uint64_t *out_offset);
/** Sets the offset in the sequence. DS_ERR_INVALID_VALUE: not a multiple of 4, or not less than
    2^63. */
DSDEF DS_MUST_USE ds_result ds_rng_set_offset(ds_rng rng, uint64_t offset);
/** Writes the DS_RNG_STATE_SIZE bytes of the state to host memory, as torch's get_rng_state
    does. */
DSDEF DS_MUST_USE ds_result ds_rng_get_state(ds_rng rng, void *out, size_t size);
/** Sets the state, also from torch's get_rng_state. A state of 8 bytes is a seed with the offset 0.
    DS_ERR_INVALID_VALUE: a size other than 8 or 16. */
DSDEF DS_MUST_USE ds_result ds_rng_set_state(ds_rng rng, const void *state, size_t size);

/** Seeds a device's own generator, as torch.cuda.manual_seed does. If no device of the type exists,
    the call is ignored, as in torch. */
DSDEF DS_MUST_USE ds_result ds_rng_set_device_seed(ds_device device, uint64_t seed);
/** Seeds the generators of all devices of all drivers. */
DSDEF DS_MUST_USE ds_result ds_rng_set_seed_all(uint64_t seed);
/** Seeds a device's own generator at random, as torch.cuda.seed does. out_seed may be NULL. If no
    device of the type exists, the call is ignored and *out_seed is 0. */
DSDEF DS_MUST_USE ds_result ds_rng_reseed_device(ds_device device, uint64_t *out_seed);
/** Seeds the generators of all devices with one random seed. out_seed may be NULL. */
DSDEF DS_MUST_USE ds_result ds_rng_reseed_all(uint64_t *out_seed);
/** Returns the seed of a device's own generator, as torch.cuda.initial_seed does. */
DSDEF DS_MUST_USE ds_result ds_rng_get_device_seed(ds_device device, uint64_t *out_seed);
/** Writes the states of the generators of all devices of a type one after another.
    DS_DEVICE_CURRENT: the current device's type. *out_count is the number of devices. out may be
    NULL. DS_ERR_INVALID_VALUE: `capacity` (in states) is too small. */
DSDEF DS_MUST_USE ds_result ds_rng_get_state_all(ds_device_type type, void *out, size_t capacity,
                                                 size_t *out_count);
/** Sets the state of each device of a type from the state at its index. count: number of states, at
    most the number of devices. All states are checked before the first is set. */
DSDEF DS_MUST_USE ds_result ds_rng_set_state_all(ds_device_type type, const void *states,
                                                 size_t count);

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

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES

static inline DS_MUST_USE ds_result ds_at_rng_create(const char *file_, int line_,
        const ds_rng_desc *desc_, ds_rng *out_) {
    return ds_site_set(file_, line_), (ds_rng_create)(desc_, out_);
}
#define ds_rng_create(...) ds_at_rng_create(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_clone(const char *file_, int line_,
        ds_rng rng_, ds_rng *out_) {
    return ds_site_set(file_, line_), (ds_rng_clone)(rng_, out_);
}
#define ds_rng_clone(...) ds_at_rng_clone(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_destroy(const char *file_, int line_,
        ds_rng rng_) {
    return ds_site_set(file_, line_), (ds_rng_destroy)(rng_);
}
#define ds_rng_destroy(...) ds_at_rng_destroy(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_get_default(const char *file_, int line_,
        ds_device device_, ds_rng *out_) {
    return ds_site_set(file_, line_), (ds_rng_get_default)(device_, out_);
}
#define ds_rng_get_default(...) ds_at_rng_get_default(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_get_info(const char *file_, int line_,
        ds_rng rng_, ds_rng_info *out_) {
    return ds_site_set(file_, line_), (ds_rng_get_info)(rng_, out_);
}
#define ds_rng_get_info(...) ds_at_rng_get_info(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_set_mapping(const char *file_, int line_,
        ds_rng rng_, ds_rng_mapping mapping_, int multiprocessors_, int threads_per_multiprocessor_) {
    return ds_site_set(file_, line_), (ds_rng_set_mapping)(rng_, mapping_, multiprocessors_, threads_per_multiprocessor_);
}
#define ds_rng_set_mapping(...) ds_at_rng_set_mapping(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_set_seed(const char *file_, int line_,
        ds_rng rng_, uint64_t seed_) {
    return ds_site_set(file_, line_), (ds_rng_set_seed)(rng_, seed_);
}
#define ds_rng_set_seed(...) ds_at_rng_set_seed(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_reseed(const char *file_, int line_,
        ds_rng rng_, uint64_t *out_seed_) {
    return ds_site_set(file_, line_), (ds_rng_reseed)(rng_, out_seed_);
}
#define ds_rng_reseed(...) ds_at_rng_reseed(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_get_seed(const char *file_, int line_,
        ds_rng rng_, uint64_t *out_seed_) {
    return ds_site_set(file_, line_), (ds_rng_get_seed)(rng_, out_seed_);
}
#define ds_rng_get_seed(...) ds_at_rng_get_seed(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_get_offset(const char *file_, int line_,
        ds_rng rng_, uint64_t *out_offset_) {
    return ds_site_set(file_, line_), (ds_rng_get_offset)(rng_, out_offset_);
}
#define ds_rng_get_offset(...) ds_at_rng_get_offset(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_set_offset(const char *file_, int line_,
        ds_rng rng_, uint64_t offset_) {
    return ds_site_set(file_, line_), (ds_rng_set_offset)(rng_, offset_);
}
#define ds_rng_set_offset(...) ds_at_rng_set_offset(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_get_state(const char *file_, int line_,
        ds_rng rng_, void *out_, size_t size_) {
    return ds_site_set(file_, line_), (ds_rng_get_state)(rng_, out_, size_);
}
#define ds_rng_get_state(...) ds_at_rng_get_state(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_set_state(const char *file_, int line_,
        ds_rng rng_, const void *state_, size_t size_) {
    return ds_site_set(file_, line_), (ds_rng_set_state)(rng_, state_, size_);
}
#define ds_rng_set_state(...) ds_at_rng_set_state(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_set_device_seed(const char *file_, int line_,
        ds_device device_, uint64_t seed_) {
    return ds_site_set(file_, line_), (ds_rng_set_device_seed)(device_, seed_);
}
#define ds_rng_set_device_seed(...) ds_at_rng_set_device_seed(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_set_seed_all(const char *file_, int line_,
        uint64_t seed_) {
    return ds_site_set(file_, line_), (ds_rng_set_seed_all)(seed_);
}
#define ds_rng_set_seed_all(...) ds_at_rng_set_seed_all(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_reseed_device(const char *file_, int line_,
        ds_device device_, uint64_t *out_seed_) {
    return ds_site_set(file_, line_), (ds_rng_reseed_device)(device_, out_seed_);
}
#define ds_rng_reseed_device(...) ds_at_rng_reseed_device(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_reseed_all(const char *file_, int line_,
        uint64_t *out_seed_) {
    return ds_site_set(file_, line_), (ds_rng_reseed_all)(out_seed_);
}
#define ds_rng_reseed_all(...) ds_at_rng_reseed_all(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_get_device_seed(const char *file_, int line_,
        ds_device device_, uint64_t *out_seed_) {
    return ds_site_set(file_, line_), (ds_rng_get_device_seed)(device_, out_seed_);
}
#define ds_rng_get_device_seed(...) ds_at_rng_get_device_seed(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_get_state_all(const char *file_, int line_,
        ds_device_type type_, void *out_, size_t capacity_, size_t *out_count_) {
    return ds_site_set(file_, line_), (ds_rng_get_state_all)(type_, out_, capacity_, out_count_);
}
#define ds_rng_get_state_all(...) ds_at_rng_get_state_all(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_set_state_all(const char *file_, int line_,
        ds_device_type type_, const void *states_, size_t count_) {
    return ds_site_set(file_, line_), (ds_rng_set_state_all)(type_, states_, count_);
}
#define ds_rng_set_state_all(...) ds_at_rng_set_state_all(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_uniform(const char *file_, int line_,
        ds_rng rng_, ds_dtype dtype_, void *out_, size_t count_, double from_, double to_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_rng_uniform)(rng_, dtype_, out_, count_, from_, to_, stream_);
}
#define ds_rng_uniform(...) ds_at_rng_uniform(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_normal(const char *file_, int line_,
        ds_rng rng_, ds_dtype dtype_, void *out_, size_t count_, double mean_, double deviation_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_rng_normal)(rng_, dtype_, out_, count_, mean_, deviation_, stream_);
}
#define ds_rng_normal(...) ds_at_rng_normal(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_exponential(const char *file_, int line_,
        ds_rng rng_, ds_dtype dtype_, void *out_, size_t count_, double rate_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_rng_exponential)(rng_, dtype_, out_, count_, rate_, stream_);
}
#define ds_rng_exponential(...) ds_at_rng_exponential(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_integers(const char *file_, int line_,
        ds_rng rng_, ds_dtype dtype_, void *out_, size_t count_, int64_t low_, int64_t high_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_rng_integers)(rng_, dtype_, out_, count_, low_, high_, stream_);
}
#define ds_rng_integers(...) ds_at_rng_integers(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_bernoulli(const char *file_, int line_,
        ds_rng rng_, ds_dtype dtype_, void *out_, size_t count_, double p_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_rng_bernoulli)(rng_, dtype_, out_, count_, p_, stream_);
}
#define ds_rng_bernoulli(...) ds_at_rng_bernoulli(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_bits(const char *file_, int line_,
        ds_rng rng_, ds_dtype dtype_, void *out_, size_t count_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_rng_bits)(rng_, dtype_, out_, count_, stream_);
}
#define ds_rng_bits(...) ds_at_rng_bits(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_permutation(const char *file_, int line_,
        ds_rng rng_, ds_dtype dtype_, void *out_, size_t count_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_rng_permutation)(rng_, dtype_, out_, count_, stream_);
}
#define ds_rng_permutation(...) ds_at_rng_permutation(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_rng_fill(const char *file_, int line_,
        ds_rng rng_, const ds_rng_fill_desc *desc_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_rng_fill)(rng_, desc_, stream_);
}
#define ds_rng_fill(...) ds_at_rng_fill(__FILE__, __LINE__, __VA_ARGS__)

#endif

#endif /* DEVSTREAM_RNG_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_RNG_H_IMPLEMENTED)
#define DEVSTREAM_RNG_H_IMPLEMENTED
#ifndef __cplusplus

/* rng/kernel_arith.h - arithmetic of random numbers, C and device code.

   Computes random numbers from counter and seed: Philox blocks, uniform, normal and exponential
   numbers, integers, and places in a permutation. The CPU forms (rng/kernel_cpu.h) and the GPU
   kernels (kernels/rng.cu) compile the same text. ds__rng_args describes one fill.

   Policy:
   1. Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3;
      SC11) makes a block of four words of a counter of 128 bits and a key of 64 bits, the seed.
      The mapping says which counters and words an element gets.
   2. In torch's mapping there are `stride` threads t, each with the counters (k, t), k = 0, 1,
      ... Word or pair of words i of a thread's counter k is element t + (U k + i) stride. U is
      the number of elements of a block: 4, or 2 for 64-bit numbers. Two normal numbers share two
      words, or four.
   3. The mapping by element is the same with one thread. Elements are in consecutive blocks, so
      an element's number depends only on the seed, the offset and its index. The functions
      ds__rng_*_of make U numbers of a block's words; the kernels write them to their places.

   Invariants: C and device code give the same bits. A product is rounded before it is added
   (DS__ROUNDED), and no function of the C library is called. kernels/rng.cu replaces the
   macros and the functions between `#ifndef DS__RNG_ROLLED` and its #endif.
   Locks: none.
   Threads: any; all functions depend on their arguments only. */

typedef struct ds__rng_words {
    uint32_t w[4];
} ds__rng_words;

typedef struct ds__rng_floats {
    float v[4];
} ds__rng_floats;

typedef struct ds__rng_doubles {
    double v[2];
} ds__rng_doubles;

/* what is written */
enum {
    DS__RNG_8,
    DS__RNG_16,
    DS__RNG_32,
    DS__RNG_64,
    DS__RNG_F16,
    DS__RNG_BF16,
    DS__RNG_F32,
    DS__RNG_F64
};

/* The arguments of a fill of `rows` times `stride` blocks. Block (k, t) has the counter (start + k,
   t) and the elements t + (U k + i) stride - before for i < U, if they are less than count. By
   element: stride is 1. */
typedef struct ds__rng_args {
    void *out;
    /* In a graph: seed and offset, in words, at the time of the launch; the offset is added to
       `start`. Else NULL. */
    const uint64_t *state;
    uint64_t seed;
    uint64_t start;
    uint64_t before;
    uint64_t count;
    uint64_t rows;
    uint32_t stride;
    uint32_t kind;      /* DS__RNG_8 ... */
    uint32_t from_bits; /* from and to as they are written */
    uint32_t to_bits;
    float from32; /* from, to; mean, deviation; rate */
    float to32;
    double from; /* the same */
    double to;
    /* Integers: the smallest one and their number, 0 for 2^64. Bernoulli: the bits of a 1, and how
       many of the 2^32 words give it. Permutations: the bits of n - 1, or 0 if n is small, and
       n. */
    uint64_t low;
    uint64_t range;
    uint32_t what; /* DS__RNG_UNIFORM ... */
    float scale32; /* uniform: to - from, in torch's mapping rounded to the type */
} ds__rng_args;

enum {
    DS__RNG_UNIFORM,
    DS__RNG_NORMAL,
    DS__RNG_EXPONENTIAL,
    DS__RNG_INTEGERS,
    DS__RNG_WIDE_INTEGERS,
    DS__RNG_BERNOULLI,
    DS__RNG_PERMUTATION
};

#ifndef DS__RNG_ROLLED
#define DS__RNG_ROLLED

/* a b + c, rounded once. The product is exact in f64; the sum is made odd where it is not, so
   that rounding it again changes nothing (Boldo, Melquiond: Emulation of FMA and correctly
   rounded sums, 2008). */
static inline float ds__rng_fma32(float a, float b, float c) {
    union {
        double f;
        uint64_t u;
    } s;

    double p = (double)a * b;
    DS__ROUNDED(p);
    s.f = p + c;
    DS__ROUNDED(s.f);
    double d = s.f - p;
    DS__ROUNDED(d);
    double rest = (p - (s.f - d)) + (c - d);
    if (rest != 0 && !(s.u & 1))
        s.u += (uint64_t)((rest > 0) == (s.f > 0) ? 1 : -1);
    return (float)s.f;
}

/* To f16, to nearest even; not of NaN. What is smaller than the smallest normal number of f16 is
   added to one whose last place is that of f16's. */
static inline uint32_t ds__rng_to_f16(float x) {
    union {
        float f;
        uint32_t u;
    } v, half;

    v.f = x;
    uint32_t sign = v.u >> 16 & 0x8000u;
    uint32_t m = v.u & 0x7fffffffu;
    half.f = (x < 0 ? -x : x) + 0.5f;
    if (m >= 0x477ff000u)
        return sign | 0x7c00u;
    if (m < 0x38800000u)
        return sign | (half.u & 0xffffu);
    return sign | ((m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13);
}
#endif

DS__DEVICE float ds__rng_mul(float a, float b) {
    float p = a * b;
    DS__ROUNDED(p);
    return p;
}

DS__DEVICE double ds__rng_mul64(double a, double b) {
    double p = a * b;
    DS__ROUNDED(p);
    return p;
}

DS__DEVICE uint32_t ds__rng_bits(float x) {
    union {
        float f;
        uint32_t u;
    } v;

    v.f = x;
    return v.u;
}

DS__DEVICE float ds__rng_float(uint32_t x) {
    union {
        float f;
        uint32_t u;
    } v;

    v.u = x;
    return v.f;
}

DS__DEVICE uint64_t ds__rng_bits64(double x) {
    union {
        double f;
        uint64_t u;
    } v;

    v.f = x;
    return v.u;
}

DS__DEVICE double ds__rng_double(uint64_t x) {
    union {
        double f;
        uint64_t u;
    } v;

    v.u = x;
    return v.f;
}

/* Returns the block of a counter: Philox4x32-10. */
DS__DEVICE ds__rng_words ds__rng_philox(uint64_t seed, uint64_t counter, uint64_t thread) {
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    ds__rng_words x;
    x.w[0] = (uint32_t)counter;
    x.w[1] = (uint32_t)(counter >> 32);
    x.w[2] = (uint32_t)thread;
    x.w[3] = (uint32_t)(thread >> 32);
    DS__RNG_ROLLED for (int i = 0; i < 10; i++) {
        uint64_t p = (uint64_t)0xD2511F53u * x.w[0];
        uint64_t q = (uint64_t)0xCD9E8D57u * x.w[2];
        x.w[0] = (uint32_t)(q >> 32) ^ x.w[1] ^ k0;
        x.w[1] = (uint32_t)q;
        x.w[2] = (uint32_t)(p >> 32) ^ x.w[3] ^ k1;
        x.w[3] = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}

/* To nearest even; not of NaN. */
DS__DEVICE uint32_t ds__rng_to_bf16(float x) {
    uint32_t u = ds__rng_bits(x);
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

/* Rounds to the type; returns its bits. */
DS__DEVICE uint32_t ds__rng_narrow(float x, uint32_t kind) {
    if (kind == DS__RNG_F32)
        return ds__rng_bits(x);
    return kind == DS__RNG_F16 ? ds__rng_to_f16(x) : ds__rng_to_bf16(x);
}

/* ---- numbers in [from, to), from in (0, 1] turned over in torch's mapping ---- */

/* In (0, 1], as torch and cuRAND have it. */
DS__DEVICE float ds__rng_above_0(uint32_t w) {
    return (float)w * 0x1p-32f + 0x1p-33f;
}

DS__DEVICE double ds__rng_above_0_64(uint32_t low, uint32_t high) {
    return (double)(low ^ (uint64_t)high << 21) * 0x1p-53 + 0x1p-54;
}

/* Returns a number of [0, 1) that is exact: it has as many bits of the word as the fraction of the
   type. */
DS__DEVICE float ds__rng_below_1(uint32_t w, uint32_t kind) {
    if (kind == DS__RNG_F32)
        return (float)(w >> 8) * 0x1p-24f;
    return kind == DS__RNG_F16 ? (float)(w >> 21) * 0x1p-11f : (float)(w >> 24) * 0x1p-8f;
}

/* An interval [from, to) of numbers of a type, with `to - from` as its scale. to_bits is never
   -0. */
typedef struct ds__rng_interval {
    float from;
    float scale;
    uint32_t from_bits;
    uint32_t to_bits;
    uint32_t kind;
} ds__rng_interval;

/* Returns the bits of a uniform number. A number that is rounded to `to` becomes `from`. If `to` is
   0, so does -0, which is outside of the interval then. */
DS__DEVICE uint32_t ds__rng_uniform_of(uint32_t w, ds__rng_interval x, uint32_t torch) {
    float u;
    if (torch)
        u = ds__rng_fma32(ds__rng_above_0(w), x.scale, x.from);
    else
        u = x.from + ds__rng_mul(ds__rng_below_1(w, x.kind), x.scale);
    uint32_t bits = ds__rng_narrow(u, x.kind);
    uint32_t minus_0 = x.kind == DS__RNG_F32 ? 0x80000000u : 0x8000u;
    return (bits == minus_0 ? 0 : bits) == x.to_bits ? x.from_bits : bits;
}

DS__DEVICE double ds__rng_uniform64_of(uint32_t low, uint32_t high, double from, double to,
                                       uint32_t torch) {
    double u = torch ? ds__rng_above_0_64(low, high)
                     : (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
    u = from + ds__rng_mul64(u, to - from);
    return u >= to ? from : u;
}

/* ---- logarithm, sine and cosine ---- */

/* ln x for normal x in (0, 1]: x = m 2^e, sqrt(1/2) <= m < sqrt(2), and for m the polynomial of
   Cephes' logf. */
DS__DEVICE float ds__rng_log(float x) {
    uint32_t u = ds__rng_bits(x) + (0x3f800000u - 0x3f3504f3u);
    uint32_t s = (u & 0x7fffffu) + 0x3f3504f3u;
    float e = (float)((int32_t)(u >> 23) - 127);
    float f = ds__rng_float(s) - 1.0f;
    float z = ds__rng_mul(f, f);
    float y = 7.0376836292e-2f;
    y = ds__rng_mul(y, f) - 1.1514610310e-1f;
    y = ds__rng_mul(y, f) + 1.1676998740e-1f;
    y = ds__rng_mul(y, f) - 1.2420140846e-1f;
    y = ds__rng_mul(y, f) + 1.4249322787e-1f;
    y = ds__rng_mul(y, f) - 1.6668057665e-1f;
    y = ds__rng_mul(y, f) + 2.0000714765e-1f;
    y = ds__rng_mul(y, f) - 2.4999993993e-1f;
    y = ds__rng_mul(y, f) + 3.3333331174e-1f;
    y = ds__rng_mul(ds__rng_mul(y, f), z) - ds__rng_mul(e, 2.12194440e-4f);
    y = y - 0.5f * z;
    return (f + y) + ds__rng_mul(e, 0.693359375f);
}

/* The same in f64, with the polynomial of fdlibm's e_log.c. */
DS__DEVICE double ds__rng_log64(double x) {
    uint64_t u = ds__rng_bits64(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    uint64_t s = (u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu;
    double e = (double)((int64_t)(u >> 52) - 1023);
    double f = ds__rng_double(s) - 1.0;
    double t = f / (2.0 + f);
    double z = ds__rng_mul64(t, t);
    double r = 1.479819860511658591e-01;
    double h = 0.5 * ds__rng_mul64(f, f);
    r = ds__rng_mul64(r, z) + 1.531383769920937332e-01;
    r = ds__rng_mul64(r, z) + 1.818357216161805012e-01;
    r = ds__rng_mul64(r, z) + 2.222219843214978396e-01;
    r = ds__rng_mul64(r, z) + 2.857142874366239149e-01;
    r = ds__rng_mul64(r, z) + 3.999999999940941908e-01;
    r = ds__rng_mul64(r, z) + 6.666666666666735130e-01;
    r = ds__rng_mul64(r, z);
    r = ds__rng_mul64(t, h + r) + ds__rng_mul64(e, 1.90821492927058770002e-10);
    return ds__rng_mul64(e, 6.93147180369123816490e-01) - ((h - r) - f);
}

/* Sine and cosine of (w + 1/2) / 2^32 turns. The polynomials of Cephes' sinf and cosf take the
   distance from the nearest quarter turn, at most an eighth. */
DS__DEVICE void ds__rng_turn(uint32_t w, float *sine, float *cosine) {
    uint32_t at = w + 0x20000000u;
    uint32_t quarter = at >> 30;
    float r =
        ds__rng_mul((float)((int32_t)(at & 0x3fffffffu) - 0x20000000) + 0.5f, 1.46291807927e-9f);
    float z = ds__rng_mul(r, r);
    float s = -1.9515295891e-4f;
    float c = 2.443315711809948e-5f;
    s = ds__rng_mul(s, z) + 8.3321608736e-3f;
    s = ds__rng_mul(s, z) - 1.6666654611e-1f;
    s = ds__rng_mul(ds__rng_mul(s, z), r) + r;
    c = ds__rng_mul(c, z) - 1.388731625493765e-3f;
    c = ds__rng_mul(c, z) + 4.166664568298827e-2f;
    c = ds__rng_mul(ds__rng_mul(c, z), z) - 0.5f * z + 1.0f;
    float swap = quarter & 1 ? s : c;
    s = quarter & 1 ? c : s;
    *sine = quarter & 2 ? -s : s;
    *cosine = (quarter + 1) & 2 ? -swap : swap;
}

/* The same of w + 1/2 of 2^53 parts, with the polynomials of fdlibm's k_sin.c and k_cos.c. */
DS__DEVICE void ds__rng_turn64(uint64_t w, double *sine, double *cosine) {
    uint64_t at = w + ((uint64_t)1 << 50);
    uint32_t quarter = (uint32_t)(at >> 51) & 3;
    double r = ds__rng_mul64(
        (double)((int64_t)(at & (((uint64_t)1 << 51) - 1)) - ((int64_t)1 << 50)) + 0.5,
        6.9757369960172635e-16);
    double z = ds__rng_mul64(r, r);
    double s = 1.58969099521155010221e-10;
    double c = -1.13596475577881948265e-11;
    s = ds__rng_mul64(s, z) - 2.50507602534068634195e-08;
    s = ds__rng_mul64(s, z) + 2.75573137070700676789e-06;
    s = ds__rng_mul64(s, z) - 1.98412698298579493134e-04;
    s = ds__rng_mul64(s, z) + 8.33333333332248946124e-03;
    s = ds__rng_mul64(s, z) - 1.66666666666666324348e-01;
    s = ds__rng_mul64(ds__rng_mul64(s, z), r) + r;
    c = ds__rng_mul64(c, z) + 2.08757232129817482790e-09;
    c = ds__rng_mul64(c, z) - 2.75573143513906633035e-07;
    c = ds__rng_mul64(c, z) + 2.48015872894767294178e-05;
    c = ds__rng_mul64(c, z) - 1.38888888888741095749e-03;
    c = ds__rng_mul64(c, z) + 4.16666666666666019037e-02;
    c = ds__rng_mul64(ds__rng_mul64(c, z), z);
    c = 1.0 - (0.5 * z - c);
    double swap = quarter & 1 ? s : c;
    s = quarter & 1 ? c : s;
    *sine = quarter & 2 ? -s : s;
    *cosine = (quarter + 1) & 2 ? -swap : swap;
}

/* Two normal numbers of two uniform ones (Box, Muller 1958). */
DS__DEVICE void ds__rng_normals(uint32_t a, uint32_t b, float mean, float deviation, float *out) {
    float s = ds__float_sqrt(-2.0f * ds__rng_log(ds__rng_above_0(a)));
    float sine;
    float cosine;
    ds__rng_turn(b, &sine, &cosine);
    out[0] = ds__rng_mul(ds__rng_mul(s, sine), deviation) + mean;
    out[1] = ds__rng_mul(ds__rng_mul(s, cosine), deviation) + mean;
}

DS__DEVICE ds__rng_doubles ds__rng_normals64(ds__rng_words x, double mean, double deviation) {
    ds__rng_doubles d;
    double s = ds__double_sqrt(-2.0 * ds__rng_log64(ds__rng_above_0_64(x.w[0], x.w[1])));
    double sine;
    double cosine;
    ds__rng_turn64(x.w[2] ^ (uint64_t)x.w[3] << 21, &sine, &cosine);
    d.v[0] = ds__rng_mul64(ds__rng_mul64(s, sine), deviation) + mean;
    d.v[1] = ds__rng_mul64(ds__rng_mul64(s, cosine), deviation) + mean;
    return d;
}

/* Returns -ln u / rate. If u is next to 1, half an epsilon replaces -ln u, so 0 does not occur. */
DS__DEVICE float ds__rng_exponential_of(uint32_t w, float rate) {
    float u = ds__rng_above_0(w);
    return (u >= 1.0f - 0x1p-24f ? 0x1p-24f : -ds__rng_log(u)) / rate;
}

DS__DEVICE double ds__rng_exponential64_of(uint32_t low, uint32_t high, double rate) {
    double u = ds__rng_above_0_64(low, high);
    return (u >= 1.0 - 0x1p-53 ? 0x1p-53 : -ds__rng_log64(u)) / rate;
}

/* ---- integers ---- */

/* Returns the high 64 bits of a product. */
DS__DEVICE uint64_t ds__rng_high(uint64_t a, uint64_t b) {
    uint64_t al = (uint32_t)a;
    uint64_t ah = a >> 32;
    uint64_t bl = (uint32_t)b;
    uint64_t bh = b >> 32;
    uint64_t middle = ah * bl + (al * bl >> 32);
    uint64_t other = al * bh + (uint32_t)middle;
    return ah * bh + (middle >> 32) + (other >> 32);
}

/* Integers below `range`; 0 is 2^64. By element: the word scaled from 2^32, or 2^64, to the
   range. */
DS__DEVICE uint64_t ds__rng_below(uint32_t w, uint64_t range, uint32_t torch) {
    return torch && range >> 32 == 0 ? w % (uint32_t)range : (uint32_t)((w * range) >> 32);
}

DS__DEVICE uint64_t ds__rng_below64(uint32_t high, uint32_t low, uint64_t range, uint32_t torch) {
    uint64_t z = (uint64_t)high << 32 | low;
    if (range == 0)
        return z;
    return torch ? z % range : ds__rng_high(z, range);
}

/* ---- permutations ---- */

/* A permutation of few elements: the rank of the key of element i among all keys, of two words
   each. */
enum { DS__RNG_FEW = 256 };

DS__DEVICE uint64_t ds__rng_key(uint64_t seed, uint64_t start, uint64_t i) {
    ds__rng_words x = ds__rng_philox(seed, start + i / 2, 0);
    return i & 1 ? (uint64_t)x.w[2] << 32 | x.w[3] : (uint64_t)x.w[0] << 32 | x.w[1];
}

/* The round function of ds__rng_shuffled. */
DS__DEVICE uint32_t ds__rng_round(uint32_t x, uint32_t key) {
    x = (x ^ key) * 0xD2511F53u;
    x = (x ^ x >> 15) * 0xCD9E8D57u;
    return x ^ x >> 16;
}

/* Returns the place of element i in a permutation of many. A Feistel network with 24 rounds over
   the bits of n - 1 is repeated until it returns a number below n, so each place is computed alone
   (Mitchell, Stokes, Frank, Holmes: Bandwidth-optimal random shuffling for GPUs, 2021; with another
   round function). keys: the words of one block. */
DS__DEVICE uint64_t ds__rng_shuffled(ds__rng_words keys, uint64_t i, uint64_t n, uint32_t bits) {
    uint32_t low = bits / 2;
    /* the network alone makes even permutations only */
    if (i < 2)
        i ^= (keys.w[0] ^ keys.w[1] ^ keys.w[2] ^ keys.w[3]) & 1;
    do {
        uint32_t a = (uint32_t)(i >> low);
        uint32_t b = (uint32_t)i & ((1u << low) - 1);
        uint32_t key = 0;
        DS__RNG_ROLLED for (int round = 0; round < 6; round++, key += 0x9E3779B9u) {
            a ^= ds__rng_round(b, keys.w[0] + key) >> (32 - (bits - low));
            b ^= ds__rng_round(a, keys.w[1] + key) >> (32 - low);
            a ^= ds__rng_round(b, keys.w[2] + key) >> (32 - (bits - low));
            b ^= ds__rng_round(a, keys.w[3] + key) >> (32 - low);
        }
        i = (uint64_t)a << low | b;
    } while (i >= n);
    return i;
}

/* rng/kernel_vector.h - steps of the vector code of fills on the CPU.

   Has the steps that the functions of kernel_vector.gen.h consist of: products of words, shuffles,
   a round of Philox, uniform numbers, stores. kernel_vector.tmpl has these functions, which write
   the words of many blocks: with vectors of 16 bytes, and on x86-64 of 32 and 64 bytes.
   kernel_cpu.h calls them through ds__rng_run.

   Invariants: all sizes of vectors write the same bits. Functions with vectors of 32 and 64 bytes
   run only if ds__os_vector returns that size or a larger one.
   Locks: none.
   Threads: any; the functions have no state. */

/* A run of blocks: so many counters from (counter, thread) on. */
typedef struct ds__rng_blocks {
    uint64_t seed;
    uint64_t counter;
    uint64_t thread;
    size_t blocks;
    int across; /* 1: the thread goes on from block to block, not the counter */
} ds__rng_blocks;

#ifdef __clang__
#define DS__RNG_EVEN_16(a, b) __builtin_shufflevector(a, b, 0, 2)
#define DS__RNG_ODD_16(a, b) __builtin_shufflevector(a, b, 1, 3)
#define DS__RNG_EVEN_32(a, b) __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define DS__RNG_ODD_32(a, b) __builtin_shufflevector(a, b, 1, 5, 3, 7)
#define DS__RNG_EVEN_64(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define DS__RNG_ODD_64(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#else
#define DS__RNG_EVEN_16(a, b) __builtin_shuffle(a, b, (ds__rng_v64_16){ 0, 2 })
#define DS__RNG_ODD_16(a, b) __builtin_shuffle(a, b, (ds__rng_v64_16){ 1, 3 })
#define DS__RNG_EVEN_32(a, b) __builtin_shuffle(a, b, (ds__rng_v64_32){ 0, 4, 2, 6 })
#define DS__RNG_ODD_32(a, b) __builtin_shuffle(a, b, (ds__rng_v64_32){ 1, 5, 3, 7 })
#define DS__RNG_EVEN_64(a, b) __builtin_shuffle(a, b, (ds__rng_v64_64){ 0, 8, 2, 10, 4, 12, 6, 14 })
#define DS__RNG_ODD_64(a, b) __builtin_shuffle(a, b, (ds__rng_v64_64){ 1, 9, 3, 11, 5, 13, 7, 15 })
#endif

/* The upper halves of lanes, in both halves: processors shuffle where they do not multiply, but
   shift where they do. */
#ifdef __clang__
#define DS__RNG_HIGH_16(x) __builtin_shufflevector(x, x, 1, 1, 3, 3)
#define DS__RNG_HIGH_32(x) __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7)
#define DS__RNG_HIGH_64(x) \
    __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15)
#else
#define DS__RNG_HIGH_16(x) __builtin_shuffle(x, (ds__rng_v32_16){ 1, 1, 3, 3 })
#define DS__RNG_HIGH_32(x) __builtin_shuffle(x, (ds__rng_v32_32){ 1, 1, 3, 3, 5, 5, 7, 7 })
#define DS__RNG_HIGH_64(x) \
    __builtin_shuffle(x, (ds__rng_v32_64){ 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15 })
#endif
#define DS__RNG_HIGH(W, x) (ds__rng_v64_##W) DS__RNG_HIGH_##W((ds__rng_v32_##W)(x))

/* The two halves of lanes, exchanged. */
#ifdef __clang__
#define DS__RNG_SWAP_16(x) __builtin_shufflevector(x, x, 1, 0, 3, 2)
#define DS__RNG_SWAP_32(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#define DS__RNG_SWAP_64(x) \
    __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#else
#define DS__RNG_SWAP_16(x) __builtin_shuffle(x, (ds__rng_v32_16){ 1, 0, 3, 2 })
#define DS__RNG_SWAP_32(x) __builtin_shuffle(x, (ds__rng_v32_32){ 1, 0, 3, 2, 5, 4, 7, 6 })
#define DS__RNG_SWAP_64(x) \
    __builtin_shuffle(x, (ds__rng_v32_64){ 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14 })
#endif
#define DS__RNG_SWAP(W, x) (ds__rng_v64_##W) DS__RNG_SWAP_##W((ds__rng_v32_##W)(x))

#define DS__RNG_PUT(W, to, v)                                        \
    do {                                                             \
        if (around)                                                  \
            DS__VECTOR_STREAM(W, to, v);                             \
        else                                                         \
            *(ds__rng_any_##W *)(void *)(to) = (ds__rng_any_##W)(v); \
    } while (0)

/* A round of the vector of blocks that G names. */
#define DS__RNG_ROUND(W, i, G)                                \
    p##G = DS__VECTOR_TIMES(W, x0##G, 0xD2511F53u);           \
    q##G = DS__VECTOR_TIMES(W, x2##G, 0xCD9E8D57u);           \
    x0##G = DS__RNG_HIGH(W, q##G) ^ x1##G ^ key[2 * (i)];     \
    x2##G = DS__RNG_HIGH(W, p##G) ^ x3##G ^ key[2 * (i) + 1]; \
    x1##G = q##G;                                             \
    x3##G = p##G
/* The last round, which also puts words 0 and 1 into x0, and words 2 and 3 into x2. */
#define DS__RNG_LAST_ROUND(W, i, G)                                         \
    p##G = DS__VECTOR_TIMES(W, x0##G, 0xD2511F53u);                         \
    q##G = DS__VECTOR_TIMES(W, x2##G, 0xCD9E8D57u);                         \
    x0##G = DS__RNG_SWAP(W, q##G) ^ ((x1##G & 0xffffffffu) ^ key[2 * (i)]); \
    x2##G = DS__RNG_SWAP(W, p##G) ^ ((x3##G & 0xffffffffu) ^ key[2 * (i) + 1])
/* After a round of four vectors of blocks. */
#define DS__RNG_IN_STEP(W) DS__VECTOR_IN_STEP(W, x0a, x0b, x0c, x0d, x2a, x2b, x2c, x2d)

#define DS__RNG_TO_FLOATS(W, v)                                                                    \
    {                                                                                              \
        ds__rng_vf_##W u =                                                                         \
            __builtin_convertvector((ds__rng_vi_##W)((ds__rng_v32_##W)(v) >> 8), ds__rng_vf_##W) * \
            0x1p-24f;                                                                              \
        if (!plain) {                                                                              \
            u *= scale;                                                                            \
            DS__ROUNDED(u);                                                                        \
            u += from;                                                                             \
            ds__rng_vi_##W end = u == to_;                                                         \
            u = (ds__rng_vf_##W)(((ds__rng_vi_##W)u & ~end) |                                      \
                                 ((ds__rng_vi_##W)(u * 0 + from) & end));                          \
        }                                                                                          \
        v = (ds__rng_v64_##W)u;                                                                    \
    }

/* rng/kernel_vector.gen.h - generated from rng/kernel_vector.tmpl by `make headers`. Edit that file. */

#if DS__VECTOR_HAS_16
/* Vectors of 16 bytes. A lane of 64 bits has a block; its words are in the lower halves, so that
   one instruction multiplies. Neighbours in a pair of lanes are LANES / 2 blocks apart: then a
   block's words are put together by instructions that do not leave the pair. */
typedef uint64_t ds__rng_v64_16 __attribute__((vector_size(16)));
typedef uint32_t ds__rng_v32_16 __attribute__((vector_size(16)));
typedef int32_t ds__rng_vi_16 __attribute__((vector_size(16)));
typedef float ds__rng_vf_16 __attribute__((vector_size(16)));
/* the same, anywhere in memory */
typedef float ds__rng_any_16 __attribute__((vector_size(16), aligned(4), may_alias));

static DS__VECTOR_16 void ds__rng_keys_16(uint64_t seed, ds__rng_v64_16 *key) {
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_16){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_16){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
}

/* Writes the words of a run of blocks, a multiple of DS__RNG_LANES. */
static DS__VECTOR_16 void ds__rng_run_16(const ds__rng_blocks *b, void *out) {
    enum { LANES = 16 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const int across = b->across;
    char *to = (char *)out;
    ds__rng_v64_16 index;
    ds__rng_v64_16 key[20];
    ds__rng_keys_16(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 16) {
        ds__rng_v64_16 x0a = index * 0 + counter;
        ds__rng_v64_16 x2a = index * 0 + thread;
        ds__rng_v64_16 pa;
        ds__rng_v64_16 qa;
        if (across)
            x2a += index + at;
        else
            x0a += index + at;
        ds__rng_v64_16 x1a = x0a >> 32;
        ds__rng_v64_16 x3a = x2a >> 32;
        DS__RNG_ROUND(16, 0, a);
        DS__RNG_ROUND(16, 1, a);
        DS__RNG_ROUND(16, 2, a);
        DS__RNG_ROUND(16, 3, a);
        DS__RNG_ROUND(16, 4, a);
        DS__RNG_ROUND(16, 5, a);
        DS__RNG_ROUND(16, 6, a);
        DS__RNG_ROUND(16, 7, a);
        DS__RNG_ROUND(16, 8, a);
        DS__RNG_LAST_ROUND(16, 9, a);
        *(ds__rng_any_16 *)(void *)to = (ds__rng_any_16)DS__RNG_EVEN_16(x0a, x2a);
        *(ds__rng_any_16 *)(void *)(to + 16) = (ds__rng_any_16)DS__RNG_ODD_16(x0a, x2a);
    }
}

/* Writes the numbers of a run of blocks, a multiple of DS__RNG_FLOAT_LANES, whose counters have the
   same upper half. Four vectors of blocks are computed side by side, because each instruction of
   one vector waits for the one before it. around: the stores go around the caches. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_16 void ds__rng_floats_16(const ds__rng_args *a, const ds__rng_blocks *b,
                                             char *to, int around) {
    enum { LANES = 16 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_16 to_ = (ds__rng_vf_16){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_16 index;
    ds__rng_v64_16 key[20];
    ds__rng_keys_16(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    /* the same in all blocks, so the compiler takes a part of the first rounds out of the loop */
    const ds__rng_v64_16 x1 = index * 0 + (counter >> 32);
    const ds__rng_v64_16 x2 = index * 0 + b->thread;
    const ds__rng_v64_16 x3 = x2 >> 32;
    for (size_t at = 0; at < blocks; at += 4 * LANES, to += 8 * 16) {
        ds__rng_v64_16 x0a = index + (counter + at + 0);
        ds__rng_v64_16 x1a = x1;
        ds__rng_v64_16 x2a = x2;
        ds__rng_v64_16 x3a = x3;
        ds__rng_v64_16 pa;
        ds__rng_v64_16 qa;
        ds__rng_v64_16 x0b = index + (counter + at + LANES);
        ds__rng_v64_16 x1b = x1;
        ds__rng_v64_16 x2b = x2;
        ds__rng_v64_16 x3b = x3;
        ds__rng_v64_16 pb;
        ds__rng_v64_16 qb;
        ds__rng_v64_16 x0c = index + (counter + at + 2*LANES);
        ds__rng_v64_16 x1c = x1;
        ds__rng_v64_16 x2c = x2;
        ds__rng_v64_16 x3c = x3;
        ds__rng_v64_16 pc;
        ds__rng_v64_16 qc;
        ds__rng_v64_16 x0d = index + (counter + at + 3*LANES);
        ds__rng_v64_16 x1d = x1;
        ds__rng_v64_16 x2d = x2;
        ds__rng_v64_16 x3d = x3;
        ds__rng_v64_16 pd;
        ds__rng_v64_16 qd;
        DS__RNG_ROUND(16, 0, a);
        DS__RNG_ROUND(16, 0, b);
        DS__RNG_ROUND(16, 0, c);
        DS__RNG_ROUND(16, 0, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 1, a);
        DS__RNG_ROUND(16, 1, b);
        DS__RNG_ROUND(16, 1, c);
        DS__RNG_ROUND(16, 1, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 2, a);
        DS__RNG_ROUND(16, 2, b);
        DS__RNG_ROUND(16, 2, c);
        DS__RNG_ROUND(16, 2, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 3, a);
        DS__RNG_ROUND(16, 3, b);
        DS__RNG_ROUND(16, 3, c);
        DS__RNG_ROUND(16, 3, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 4, a);
        DS__RNG_ROUND(16, 4, b);
        DS__RNG_ROUND(16, 4, c);
        DS__RNG_ROUND(16, 4, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 5, a);
        DS__RNG_ROUND(16, 5, b);
        DS__RNG_ROUND(16, 5, c);
        DS__RNG_ROUND(16, 5, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 6, a);
        DS__RNG_ROUND(16, 6, b);
        DS__RNG_ROUND(16, 6, c);
        DS__RNG_ROUND(16, 6, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 7, a);
        DS__RNG_ROUND(16, 7, b);
        DS__RNG_ROUND(16, 7, c);
        DS__RNG_ROUND(16, 7, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_ROUND(16, 8, a);
        DS__RNG_ROUND(16, 8, b);
        DS__RNG_ROUND(16, 8, c);
        DS__RNG_ROUND(16, 8, d);
        DS__RNG_IN_STEP(16);
        DS__RNG_LAST_ROUND(16, 9, a);
        pa = DS__RNG_EVEN_16(x0a, x2a);
        qa = DS__RNG_ODD_16(x0a, x2a);
        DS__RNG_TO_FLOATS(16, pa)
        DS__RNG_TO_FLOATS(16, qa)
        DS__RNG_PUT(16, to + 0 * 16, (ds__rng_vf_16)pa);
        DS__RNG_PUT(16, to + 1 * 16, (ds__rng_vf_16)qa);
        DS__RNG_LAST_ROUND(16, 9, b);
        pb = DS__RNG_EVEN_16(x0b, x2b);
        qb = DS__RNG_ODD_16(x0b, x2b);
        DS__RNG_TO_FLOATS(16, pb)
        DS__RNG_TO_FLOATS(16, qb)
        DS__RNG_PUT(16, to + 2 * 16, (ds__rng_vf_16)pb);
        DS__RNG_PUT(16, to + 3 * 16, (ds__rng_vf_16)qb);
        DS__RNG_LAST_ROUND(16, 9, c);
        pc = DS__RNG_EVEN_16(x0c, x2c);
        qc = DS__RNG_ODD_16(x0c, x2c);
        DS__RNG_TO_FLOATS(16, pc)
        DS__RNG_TO_FLOATS(16, qc)
        DS__RNG_PUT(16, to + 4 * 16, (ds__rng_vf_16)pc);
        DS__RNG_PUT(16, to + 5 * 16, (ds__rng_vf_16)qc);
        DS__RNG_LAST_ROUND(16, 9, d);
        pd = DS__RNG_EVEN_16(x0d, x2d);
        qd = DS__RNG_ODD_16(x0d, x2d);
        DS__RNG_TO_FLOATS(16, pd)
        DS__RNG_TO_FLOATS(16, qd)
        DS__RNG_PUT(16, to + 6 * 16, (ds__rng_vf_16)pd);
        DS__RNG_PUT(16, to + 7 * 16, (ds__rng_vf_16)qd);
    }
}
#endif
#if DS__VECTOR_HAS_32
/* Vectors of 32 bytes. A lane of 64 bits has a block; its words are in the lower halves, so that
   one instruction multiplies. Neighbours in a pair of lanes are LANES / 2 blocks apart: then a
   block's words are put together by instructions that do not leave the pair. */
typedef uint64_t ds__rng_v64_32 __attribute__((vector_size(32)));
typedef uint32_t ds__rng_v32_32 __attribute__((vector_size(32)));
typedef int32_t ds__rng_vi_32 __attribute__((vector_size(32)));
typedef float ds__rng_vf_32 __attribute__((vector_size(32)));
/* the same, anywhere in memory */
typedef float ds__rng_any_32 __attribute__((vector_size(32), aligned(4), may_alias));

static DS__VECTOR_32 void ds__rng_keys_32(uint64_t seed, ds__rng_v64_32 *key) {
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_32){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_32){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
}

/* Writes the words of a run of blocks, a multiple of DS__RNG_LANES. */
static DS__VECTOR_32 void ds__rng_run_32(const ds__rng_blocks *b, void *out) {
    enum { LANES = 32 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const int across = b->across;
    char *to = (char *)out;
    ds__rng_v64_32 index;
    ds__rng_v64_32 key[20];
    ds__rng_keys_32(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 32) {
        ds__rng_v64_32 x0a = index * 0 + counter;
        ds__rng_v64_32 x2a = index * 0 + thread;
        ds__rng_v64_32 pa;
        ds__rng_v64_32 qa;
        if (across)
            x2a += index + at;
        else
            x0a += index + at;
        ds__rng_v64_32 x1a = x0a >> 32;
        ds__rng_v64_32 x3a = x2a >> 32;
        DS__RNG_ROUND(32, 0, a);
        DS__RNG_ROUND(32, 1, a);
        DS__RNG_ROUND(32, 2, a);
        DS__RNG_ROUND(32, 3, a);
        DS__RNG_ROUND(32, 4, a);
        DS__RNG_ROUND(32, 5, a);
        DS__RNG_ROUND(32, 6, a);
        DS__RNG_ROUND(32, 7, a);
        DS__RNG_ROUND(32, 8, a);
        DS__RNG_LAST_ROUND(32, 9, a);
        *(ds__rng_any_32 *)(void *)to = (ds__rng_any_32)DS__RNG_EVEN_32(x0a, x2a);
        *(ds__rng_any_32 *)(void *)(to + 32) = (ds__rng_any_32)DS__RNG_ODD_32(x0a, x2a);
    }
}

/* Writes the numbers of a run of blocks, a multiple of DS__RNG_FLOAT_LANES, whose counters have the
   same upper half. Four vectors of blocks are computed side by side, because each instruction of
   one vector waits for the one before it. around: the stores go around the caches. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_32 void ds__rng_floats_32(const ds__rng_args *a, const ds__rng_blocks *b,
                                             char *to, int around) {
    enum { LANES = 32 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_32 to_ = (ds__rng_vf_32){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_32 index;
    ds__rng_v64_32 key[20];
    ds__rng_keys_32(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    /* the same in all blocks, so the compiler takes a part of the first rounds out of the loop */
    const ds__rng_v64_32 x1 = index * 0 + (counter >> 32);
    const ds__rng_v64_32 x2 = index * 0 + b->thread;
    const ds__rng_v64_32 x3 = x2 >> 32;
    for (size_t at = 0; at < blocks; at += 4 * LANES, to += 8 * 32) {
        ds__rng_v64_32 x0a = index + (counter + at + 0);
        ds__rng_v64_32 x1a = x1;
        ds__rng_v64_32 x2a = x2;
        ds__rng_v64_32 x3a = x3;
        ds__rng_v64_32 pa;
        ds__rng_v64_32 qa;
        ds__rng_v64_32 x0b = index + (counter + at + LANES);
        ds__rng_v64_32 x1b = x1;
        ds__rng_v64_32 x2b = x2;
        ds__rng_v64_32 x3b = x3;
        ds__rng_v64_32 pb;
        ds__rng_v64_32 qb;
        ds__rng_v64_32 x0c = index + (counter + at + 2*LANES);
        ds__rng_v64_32 x1c = x1;
        ds__rng_v64_32 x2c = x2;
        ds__rng_v64_32 x3c = x3;
        ds__rng_v64_32 pc;
        ds__rng_v64_32 qc;
        ds__rng_v64_32 x0d = index + (counter + at + 3*LANES);
        ds__rng_v64_32 x1d = x1;
        ds__rng_v64_32 x2d = x2;
        ds__rng_v64_32 x3d = x3;
        ds__rng_v64_32 pd;
        ds__rng_v64_32 qd;
        DS__RNG_ROUND(32, 0, a);
        DS__RNG_ROUND(32, 0, b);
        DS__RNG_ROUND(32, 0, c);
        DS__RNG_ROUND(32, 0, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 1, a);
        DS__RNG_ROUND(32, 1, b);
        DS__RNG_ROUND(32, 1, c);
        DS__RNG_ROUND(32, 1, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 2, a);
        DS__RNG_ROUND(32, 2, b);
        DS__RNG_ROUND(32, 2, c);
        DS__RNG_ROUND(32, 2, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 3, a);
        DS__RNG_ROUND(32, 3, b);
        DS__RNG_ROUND(32, 3, c);
        DS__RNG_ROUND(32, 3, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 4, a);
        DS__RNG_ROUND(32, 4, b);
        DS__RNG_ROUND(32, 4, c);
        DS__RNG_ROUND(32, 4, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 5, a);
        DS__RNG_ROUND(32, 5, b);
        DS__RNG_ROUND(32, 5, c);
        DS__RNG_ROUND(32, 5, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 6, a);
        DS__RNG_ROUND(32, 6, b);
        DS__RNG_ROUND(32, 6, c);
        DS__RNG_ROUND(32, 6, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 7, a);
        DS__RNG_ROUND(32, 7, b);
        DS__RNG_ROUND(32, 7, c);
        DS__RNG_ROUND(32, 7, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_ROUND(32, 8, a);
        DS__RNG_ROUND(32, 8, b);
        DS__RNG_ROUND(32, 8, c);
        DS__RNG_ROUND(32, 8, d);
        DS__RNG_IN_STEP(32);
        DS__RNG_LAST_ROUND(32, 9, a);
        pa = DS__RNG_EVEN_32(x0a, x2a);
        qa = DS__RNG_ODD_32(x0a, x2a);
        DS__RNG_TO_FLOATS(32, pa)
        DS__RNG_TO_FLOATS(32, qa)
        DS__RNG_PUT(32, to + 0 * 32, (ds__rng_vf_32)pa);
        DS__RNG_PUT(32, to + 1 * 32, (ds__rng_vf_32)qa);
        DS__RNG_LAST_ROUND(32, 9, b);
        pb = DS__RNG_EVEN_32(x0b, x2b);
        qb = DS__RNG_ODD_32(x0b, x2b);
        DS__RNG_TO_FLOATS(32, pb)
        DS__RNG_TO_FLOATS(32, qb)
        DS__RNG_PUT(32, to + 2 * 32, (ds__rng_vf_32)pb);
        DS__RNG_PUT(32, to + 3 * 32, (ds__rng_vf_32)qb);
        DS__RNG_LAST_ROUND(32, 9, c);
        pc = DS__RNG_EVEN_32(x0c, x2c);
        qc = DS__RNG_ODD_32(x0c, x2c);
        DS__RNG_TO_FLOATS(32, pc)
        DS__RNG_TO_FLOATS(32, qc)
        DS__RNG_PUT(32, to + 4 * 32, (ds__rng_vf_32)pc);
        DS__RNG_PUT(32, to + 5 * 32, (ds__rng_vf_32)qc);
        DS__RNG_LAST_ROUND(32, 9, d);
        pd = DS__RNG_EVEN_32(x0d, x2d);
        qd = DS__RNG_ODD_32(x0d, x2d);
        DS__RNG_TO_FLOATS(32, pd)
        DS__RNG_TO_FLOATS(32, qd)
        DS__RNG_PUT(32, to + 6 * 32, (ds__rng_vf_32)pd);
        DS__RNG_PUT(32, to + 7 * 32, (ds__rng_vf_32)qd);
    }
}
#endif
#if DS__VECTOR_HAS_64
/* Vectors of 64 bytes. A lane of 64 bits has a block; its words are in the lower halves, so that
   one instruction multiplies. Neighbours in a pair of lanes are LANES / 2 blocks apart: then a
   block's words are put together by instructions that do not leave the pair. */
typedef uint64_t ds__rng_v64_64 __attribute__((vector_size(64)));
typedef uint32_t ds__rng_v32_64 __attribute__((vector_size(64)));
typedef int32_t ds__rng_vi_64 __attribute__((vector_size(64)));
typedef float ds__rng_vf_64 __attribute__((vector_size(64)));
/* the same, anywhere in memory */
typedef float ds__rng_any_64 __attribute__((vector_size(64), aligned(4), may_alias));

static DS__VECTOR_64 void ds__rng_keys_64(uint64_t seed, ds__rng_v64_64 *key) {
    for (uint32_t i = 0; i < 10; i++) {
        key[2 * i] = (ds__rng_v64_64){ 0 } + ((uint32_t)seed + i * 0x9E3779B9u);
        key[2 * i + 1] = (ds__rng_v64_64){ 0 } + ((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
}

/* Writes the words of a run of blocks, a multiple of DS__RNG_LANES. */
static DS__VECTOR_64 void ds__rng_run_64(const ds__rng_blocks *b, void *out) {
    enum { LANES = 64 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const uint64_t thread = b->thread;
    const int across = b->across;
    char *to = (char *)out;
    ds__rng_v64_64 index;
    ds__rng_v64_64 key[20];
    ds__rng_keys_64(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    for (size_t at = 0; at < blocks; at += LANES, to += 2 * 64) {
        ds__rng_v64_64 x0a = index * 0 + counter;
        ds__rng_v64_64 x2a = index * 0 + thread;
        ds__rng_v64_64 pa;
        ds__rng_v64_64 qa;
        if (across)
            x2a += index + at;
        else
            x0a += index + at;
        ds__rng_v64_64 x1a = x0a >> 32;
        ds__rng_v64_64 x3a = x2a >> 32;
        DS__RNG_ROUND(64, 0, a);
        DS__RNG_ROUND(64, 1, a);
        DS__RNG_ROUND(64, 2, a);
        DS__RNG_ROUND(64, 3, a);
        DS__RNG_ROUND(64, 4, a);
        DS__RNG_ROUND(64, 5, a);
        DS__RNG_ROUND(64, 6, a);
        DS__RNG_ROUND(64, 7, a);
        DS__RNG_ROUND(64, 8, a);
        DS__RNG_LAST_ROUND(64, 9, a);
        *(ds__rng_any_64 *)(void *)to = (ds__rng_any_64)DS__RNG_EVEN_64(x0a, x2a);
        *(ds__rng_any_64 *)(void *)(to + 64) = (ds__rng_any_64)DS__RNG_ODD_64(x0a, x2a);
    }
}

/* Writes the numbers of a run of blocks, a multiple of DS__RNG_FLOAT_LANES, whose counters have the
   same upper half. Four vectors of blocks are computed side by side, because each instruction of
   one vector waits for the one before it. around: the stores go around the caches. `plain`: the
   numbers are those of 0 to 1. */
static DS__VECTOR_64 void ds__rng_floats_64(const ds__rng_args *a, const ds__rng_blocks *b,
                                             char *to, int around) {
    enum { LANES = 64 / 8 };
    const size_t blocks = b->blocks;
    const uint64_t counter = b->counter;
    const float from = a->from32;
    const float scale = a->to32 - a->from32;
    const ds__rng_vf_64 to_ = (ds__rng_vf_64){ 0 } + a->to32;
    const int plain = from == 0 && a->to32 == 1;
    ds__rng_v64_64 index;
    ds__rng_v64_64 key[20];
    ds__rng_keys_64(b->seed, key);
    for (int i = 0; i < LANES; i++)
        index[i] = (uint64_t)(i / 2 + i % 2 * (LANES / 2));
    /* the same in all blocks, so the compiler takes a part of the first rounds out of the loop */
    const ds__rng_v64_64 x1 = index * 0 + (counter >> 32);
    const ds__rng_v64_64 x2 = index * 0 + b->thread;
    const ds__rng_v64_64 x3 = x2 >> 32;
    for (size_t at = 0; at < blocks; at += 4 * LANES, to += 8 * 64) {
        ds__rng_v64_64 x0a = index + (counter + at + 0);
        ds__rng_v64_64 x1a = x1;
        ds__rng_v64_64 x2a = x2;
        ds__rng_v64_64 x3a = x3;
        ds__rng_v64_64 pa;
        ds__rng_v64_64 qa;
        ds__rng_v64_64 x0b = index + (counter + at + LANES);
        ds__rng_v64_64 x1b = x1;
        ds__rng_v64_64 x2b = x2;
        ds__rng_v64_64 x3b = x3;
        ds__rng_v64_64 pb;
        ds__rng_v64_64 qb;
        ds__rng_v64_64 x0c = index + (counter + at + 2*LANES);
        ds__rng_v64_64 x1c = x1;
        ds__rng_v64_64 x2c = x2;
        ds__rng_v64_64 x3c = x3;
        ds__rng_v64_64 pc;
        ds__rng_v64_64 qc;
        ds__rng_v64_64 x0d = index + (counter + at + 3*LANES);
        ds__rng_v64_64 x1d = x1;
        ds__rng_v64_64 x2d = x2;
        ds__rng_v64_64 x3d = x3;
        ds__rng_v64_64 pd;
        ds__rng_v64_64 qd;
        DS__RNG_ROUND(64, 0, a);
        DS__RNG_ROUND(64, 0, b);
        DS__RNG_ROUND(64, 0, c);
        DS__RNG_ROUND(64, 0, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 1, a);
        DS__RNG_ROUND(64, 1, b);
        DS__RNG_ROUND(64, 1, c);
        DS__RNG_ROUND(64, 1, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 2, a);
        DS__RNG_ROUND(64, 2, b);
        DS__RNG_ROUND(64, 2, c);
        DS__RNG_ROUND(64, 2, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 3, a);
        DS__RNG_ROUND(64, 3, b);
        DS__RNG_ROUND(64, 3, c);
        DS__RNG_ROUND(64, 3, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 4, a);
        DS__RNG_ROUND(64, 4, b);
        DS__RNG_ROUND(64, 4, c);
        DS__RNG_ROUND(64, 4, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 5, a);
        DS__RNG_ROUND(64, 5, b);
        DS__RNG_ROUND(64, 5, c);
        DS__RNG_ROUND(64, 5, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 6, a);
        DS__RNG_ROUND(64, 6, b);
        DS__RNG_ROUND(64, 6, c);
        DS__RNG_ROUND(64, 6, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 7, a);
        DS__RNG_ROUND(64, 7, b);
        DS__RNG_ROUND(64, 7, c);
        DS__RNG_ROUND(64, 7, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_ROUND(64, 8, a);
        DS__RNG_ROUND(64, 8, b);
        DS__RNG_ROUND(64, 8, c);
        DS__RNG_ROUND(64, 8, d);
        DS__RNG_IN_STEP(64);
        DS__RNG_LAST_ROUND(64, 9, a);
        pa = DS__RNG_EVEN_64(x0a, x2a);
        qa = DS__RNG_ODD_64(x0a, x2a);
        DS__RNG_TO_FLOATS(64, pa)
        DS__RNG_TO_FLOATS(64, qa)
        DS__RNG_PUT(64, to + 0 * 64, (ds__rng_vf_64)pa);
        DS__RNG_PUT(64, to + 1 * 64, (ds__rng_vf_64)qa);
        DS__RNG_LAST_ROUND(64, 9, b);
        pb = DS__RNG_EVEN_64(x0b, x2b);
        qb = DS__RNG_ODD_64(x0b, x2b);
        DS__RNG_TO_FLOATS(64, pb)
        DS__RNG_TO_FLOATS(64, qb)
        DS__RNG_PUT(64, to + 2 * 64, (ds__rng_vf_64)pb);
        DS__RNG_PUT(64, to + 3 * 64, (ds__rng_vf_64)qb);
        DS__RNG_LAST_ROUND(64, 9, c);
        pc = DS__RNG_EVEN_64(x0c, x2c);
        qc = DS__RNG_ODD_64(x0c, x2c);
        DS__RNG_TO_FLOATS(64, pc)
        DS__RNG_TO_FLOATS(64, qc)
        DS__RNG_PUT(64, to + 4 * 64, (ds__rng_vf_64)pc);
        DS__RNG_PUT(64, to + 5 * 64, (ds__rng_vf_64)qc);
        DS__RNG_LAST_ROUND(64, 9, d);
        pd = DS__RNG_EVEN_64(x0d, x2d);
        qd = DS__RNG_ODD_64(x0d, x2d);
        DS__RNG_TO_FLOATS(64, pd)
        DS__RNG_TO_FLOATS(64, qd)
        DS__RNG_PUT(64, to + 6 * 64, (ds__rng_vf_64)pd);
        DS__RNG_PUT(64, to + 7 * 64, (ds__rng_vf_64)qd);
    }
}
#endif

/* rng/kernel_cpu.h - CPU forms of the generators' kernels.

   Fills memory with random numbers on the CPU driver: ds__rng_items for all distributions and
   ds__rng_permutation_items for permutations. ds__rng_run makes blocks of words with vectors of
   16, 32 or 64 bytes, as the processor allows. ds__rng_size and ds__rng_shift give the size of
   an element and how many elements a block has.

   Invariants: the numbers do not depend on the width of the vectors or on the division into
   items. An item is DS__RNG_ITEM elements. ds__rng_run makes blocks in multiples of
   DS__RNG_LANES, so its output buffer has room for them. Stores around the caches are followed
   by a fence.
   Locks: none.
   Threads: every thread that runs operations of the CPU driver, several for one fill at a
   time. */

/* ds__rng_run makes blocks in multiples of DS__RNG_LANES, ds__rng_run_floats in multiples of
   DS__RNG_FLOAT_LANES. */
enum { DS__RNG_LANES = 8, DS__RNG_FLOAT_LANES = 32 };

/* Writes the words of a run of blocks with vectors of so many bytes. */
static void ds__rng_run(const ds__rng_blocks *b, void *out, int vector) {
#if DS__VECTOR_HAS_64
    if (vector == 64)
        ds__rng_run_64(b, out);
    else if (vector == 32)
        ds__rng_run_32(b, out);
    else
#endif
        ds__rng_run_16(b, out);
    (void)vector;
}

/* Writes the uniform numbers in f32 of a run of blocks, whose counters have the same upper half.
   around: the stores go around the caches. */
static void ds__rng_run_floats(const ds__rng_args *a, const ds__rng_blocks *b, char *out,
                               int around, int vector) {
#if DS__VECTOR_HAS_64
    if (vector == 64)
        ds__rng_floats_64(a, b, out, around);
    else if (vector == 32)
        ds__rng_floats_32(a, b, out, around);
    else
#endif
        ds__rng_floats_16(a, b, out, around);
    if (around)
        DS__VECTOR_FENCE();
    (void)vector;
}

/* Returns the binary logarithm of the number of elements that a block has. */
static int ds__rng_shift(const ds__rng_args *a) {
    if (a->what == DS__RNG_WIDE_INTEGERS)
        return 1;
    return a->what <= DS__RNG_EXPONENTIAL && a->kind == DS__RNG_F64 ? 1 : 2;
}

static size_t ds__rng_size(uint32_t kind) {
    static const unsigned char size[] = { 1, 2, 4, 8, 2, 2, 4, 8 };
    return size[kind];
}

static void ds__rng_values_uniform(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    const uint32_t torch = a->stride > 1;
    if (a->kind == DS__RNG_F64) {
        for (int i = 0; i < 2; i++)
            v[i] = ds__rng_bits64(
                ds__rng_uniform64_of(x.w[2 * i], x.w[2 * i + 1], a->from, a->to, torch));
        return;
    }
    const ds__rng_interval interval = { a->from32, a->scale32, a->from_bits, a->to_bits, a->kind };
    for (int i = 0; i < 4; i++)
        v[i] = ds__rng_uniform_of(x.w[i], interval, torch);
}

static void ds__rng_values_normal(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    float f[4];
    if (a->kind == DS__RNG_F64) {
        ds__rng_doubles d = ds__rng_normals64(x, a->from, a->to);
        v[0] = ds__rng_bits64(d.v[0]);
        v[1] = ds__rng_bits64(d.v[1]);
        return;
    }
    ds__rng_normals(x.w[0], x.w[1], a->from32, a->to32, f);
    ds__rng_normals(x.w[2], x.w[3], a->from32, a->to32, f + 2);
    for (int i = 0; i < 4; i++)
        v[i] = ds__rng_narrow(f[i], a->kind);
}

static void ds__rng_values_exponential(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    if (a->kind == DS__RNG_F64) {
        for (int i = 0; i < 2; i++)
            v[i] = ds__rng_bits64(ds__rng_exponential64_of(x.w[2 * i], x.w[2 * i + 1], a->from));
        return;
    }
    for (int i = 0; i < 4; i++)
        v[i] = ds__rng_narrow(ds__rng_exponential_of(x.w[i], a->from32), a->kind);
}

/* Makes the elements of a block, as bits: 4, or 2 if ds__rng_shift is 1. */
static void ds__rng_values(const ds__rng_args *a, ds__rng_words x, uint64_t *v) {
    const uint32_t torch = a->stride > 1;
    switch (a->what) {
    case DS__RNG_UNIFORM:
        ds__rng_values_uniform(a, x, v);
        break;
    case DS__RNG_NORMAL:
        ds__rng_values_normal(a, x, v);
        break;
    case DS__RNG_EXPONENTIAL:
        ds__rng_values_exponential(a, x, v);
        break;
    case DS__RNG_INTEGERS:
        for (int i = 0; i < 4; i++)
            v[i] = a->low + ds__rng_below(x.w[i], a->range, torch);
        break;
    case DS__RNG_WIDE_INTEGERS:
        for (int i = 0; i < 2; i++)
            v[i] = a->low + ds__rng_below64(x.w[2 * i], x.w[2 * i + 1], a->range, torch);
        break;
    default:
        for (int i = 0; i < 4; i++)
            v[i] = x.w[i] < a->range ? a->low : 0;
        break;
    }
}

/* Stores the low `size` bytes; returns the address behind them. */
static char *ds__rng_store(char *to, uint64_t bits, size_t size) {
    uint8_t b = (uint8_t)bits;
    uint16_t h = (uint16_t)bits;
    uint32_t w = (uint32_t)bits;
    switch (size) {
    case 1:
        memcpy(to, &b, 1);
        break;
    case 2:
        memcpy(to, &h, 2);
        break;
    case 4:
        memcpy(to, &w, 4);
        break;
    default:
        memcpy(to, &bits, 8);
        break;
    }
    return to + size;
}

/* Elements of an item, and blocks of a batch. */
enum { DS__RNG_ITEM = 1024, DS__RNG_BATCH = 128 };

/* Elements of a fill that one call writes, and where they begin in memory. seed and start: also of
   a graph. */
typedef struct ds__rng_range {
    uint64_t seed;
    uint64_t start;
    uint64_t each; /* elements of a block */
    uint64_t at;
    uint64_t end;
    char *to;
    int vector; /* bytes of a vector */
} ds__rng_range;

/* Returns so many blocks, rounded up to what ds__rng_run writes. */
static size_t ds__rng_lanes(uint64_t blocks) {
    return (size_t)(blocks + DS__RNG_LANES - 1) / DS__RNG_LANES * DS__RNG_LANES;
}

/* Uniform numbers in f32 by element: writes most whole blocks at once. */
static void ds__rng_part_floats(const ds__rng_args *a, ds__rng_range *p) {
    size_t blocks = (size_t)((p->end - p->at) / 4 / DS__RNG_FLOAT_LANES * DS__RNG_FLOAT_LANES);
    int around = ds__stream_pays(0, (size_t)a->count * 4) && (uintptr_t)p->to % 64 == 0;
    ds__rng_blocks run = { .seed = p->seed, .counter = p->start + p->at / 4, .blocks = blocks };
    /* one item at most has such counters in a fill of usual size */
    if (run.counter >> 32 != (run.counter + blocks) >> 32)
        return;
    ds__rng_run_floats(a, &run, p->to, around, p->vector);
    p->at += blocks * 4;
    p->to += blocks * 16;
}

/* In torch's mapping: writes at most DS__RNG_BATCH elements, one of the block of each thread. */
static void ds__rng_part_across(const ds__rng_args *a, ds__rng_range *p) {
    ds__rng_words x[DS__RNG_BATCH];
    uint64_t v[4];
    uint64_t row = p->at / a->stride + a->before;
    uint64_t thread = p->at % a->stride;
    uint64_t n = a->stride - thread < p->end - p->at ? a->stride - thread : p->end - p->at;
    if (n > DS__RNG_BATCH)
        n = DS__RNG_BATCH;
    ds__rng_blocks run = { .seed = p->seed,
                           .counter = p->start + row / p->each,
                           .thread = thread,
                           .blocks = ds__rng_lanes(n),
                           .across = 1 };
    const size_t size = ds__rng_size(a->kind);
    const uint64_t skip = row % p->each;
    char *to = p->to;
    ds__rng_run(&run, x, p->vector);
    for (uint64_t i = 0; i < n; i++) {
        ds__rng_values(a, x[i], v);
        to = ds__rng_store(to, v[skip], size);
    }
    p->at += n;
    p->to = to;
}

/* In the mapping by element: writes the elements of at most DS__RNG_BATCH blocks. */
static void ds__rng_part_along(const ds__rng_args *a, ds__rng_range *p) {
    ds__rng_words x[DS__RNG_BATCH];
    uint64_t v[4];
    const uint64_t each = p->each;
    const uint64_t skip = (p->at + a->before) % each;
    uint64_t n = DS__RNG_BATCH * each - skip;
    if (n > p->end - p->at)
        n = p->end - p->at;
    ds__rng_blocks run = { .seed = p->seed,
                           .counter = p->start + (p->at + a->before) / each,
                           .blocks = ds__rng_lanes((skip + n + each - 1) / each) };
    const size_t size = ds__rng_size(a->kind);
    char *to = p->to;
    ds__rng_run(&run, x, p->vector);
    for (uint64_t i = 0, b = 0; i < skip + n; b++) {
        ds__rng_values(a, x[b], v);
        for (uint64_t k = 0; k < each && i < skip + n; k++, i++)
            if (i >= skip)
                to = ds__rng_store(to, v[k], size);
    }
    p->at += n;
    p->to = to;
}

/* Writes the elements from `at` to `end`. */
static void ds__rng_part(const ds__rng_args *a, uint64_t at, uint64_t end, int vector) {
    ds__rng_range p = { .seed = a->state ? a->state[0] : a->seed,
                        .start = a->start + (a->state ? a->state[1] / 4 : 0),
                        .each = (uint64_t)1 << ds__rng_shift(a),
                        .at = at,
                        .end = end,
                        .to = (char *)a->out + at * ds__rng_size(a->kind),
                        .vector = vector };
    if (a->what == DS__RNG_UNIFORM && a->kind == DS__RNG_F32 && a->stride == 1 && a->before == 0)
        ds__rng_part_floats(a, &p);
    while (p.at < p.end) {
        if (a->stride > 1)
            ds__rng_part_across(a, &p);
        else
            ds__rng_part_along(a, &p);
    }
}

static int ds__rng_items(size_t first, size_t count, const void *args) {
    const ds__rng_args *a = (const ds__rng_args *)args;
    uint64_t at = (uint64_t)first * DS__RNG_ITEM;
    uint64_t end = ((uint64_t)first + count) * DS__RNG_ITEM;
    ds__rng_part(a, at, end < a->count ? end : a->count, ds__os_vector());
    return 0;
}

/* Returns the rank of key i among n keys; of equal keys the first one is less. */
static uint64_t ds__rng_rank(const uint64_t *keys, uint64_t n, uint64_t i) {
    uint64_t rank = 0;
    for (uint64_t j = 0; j < n; j++)
        rank += (uint64_t)((keys[j] < keys[i]) | ((keys[j] == keys[i]) & (j < i)));
    return rank;
}

static int ds__rng_permutation_items(size_t first, size_t count, const void *args) {
    const ds__rng_args *a = (const ds__rng_args *)args;
    const uint64_t seed = a->state ? a->state[0] : a->seed;
    const uint64_t start = a->start + (a->state ? a->state[1] / 4 : 0);
    const uint64_t n = a->range;
    const size_t size = ds__rng_size(a->kind);
    uint64_t at = (uint64_t)first * DS__RNG_ITEM;
    uint64_t end = ((uint64_t)first + count) * DS__RNG_ITEM;
    uint64_t keys[DS__RNG_FEW];
    char *to = (char *)a->out + at * size;
    ds__rng_words x = ds__rng_philox(seed, start, 0);
    if (end > a->count)
        end = a->count;
    if (!a->low)
        for (uint64_t i = 0; i < n; i++)
            keys[i] = ds__rng_key(seed, start, i);
    for (; at < end; at++) {
        uint64_t i = a->before + at;
        uint64_t place =
            a->low ? ds__rng_shuffled(x, i, n, (uint32_t)a->low) : ds__rng_rank(keys, n, i);
        to = ds__rng_store(to, place, size);
    }
    return 0;
}

/* >>device-code kernels/rng.cu: written by make kernels */
static const char *const ds__ptx_rng_uniform32[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_uniform32( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .f32 p8, .param .f32 p9 ) { .reg .pred %p<21>;\n"
    ".reg .b32 %r<81>; .reg .f32 %f<20>; .reg .b64 %d<73>; ld.param.u32 %r39,[p7]; ld.param.u64 %d34,[p5];\n"
    "ld.param.u64 %d33,[p4]; ld.param.u64 %d30,[p0]; ld.param.u64 %d37,[p1]; cvta.to.global.u64 %d1,%d37;\n"
    "setp.gt.u32 %p1,%r39,1; setp.lt.u64 %p2,%d34,4; mov.u64 %d36,0; or.pred %p3,%p2,%p1; mov.u64 %d63,%d36; @%p3 bra L2;\n"
    "shl.b64 %d38,%d33,2; sub.s64 %d39,%d30,%d38; and.b64 %d40,%d39,15; setp.eq.s64 %p4,%d40,0; add.s64 %d41,%d34,-3;\n"
    "selp.b64 %d63,%d41,0,%p4;\n"
    "L2: ld.param.u64 %d35,[p6]; ld.param.u64 %d64,[p3]; ld.param.u64 %d65,[p2]; cvta.to.global.u64 %d43,%d36;\n"
    "setp.eq.s64 %p5,%d1,%d43; @%p5 bra L4; ld.global.u64 %d65,[%d1]; ld.global.u64 %d44,[%d1+8]; shr.u64 %d45,%d44,2;\n"
    "add.s64 %d64,%d45,%d64;\n"
    "L4: mov.u32 %r40,%ctaid.x; mov.u32 %r41,%ntid.x; mov.u32 %r42,%tid.x; mad.lo.s32 %r1,%r40,%r41,%r42;\n"
    "div.u32 %r46,%r1,%r39; cvt.u64.u32 %d67,%r46; setp.ge.u64 %p6,%d67,%d35; @%p6 bra L16; ld.param.f32 %f3,[p9];\n"
    "ld.param.f32 %f2,[p8]; cvta.to.global.u64 %d2,%d30; mov.u32 %r43,%nctaid.x; mul.lo.s32 %r44,%r43,%r41;\n"
    "mul.lo.s32 %r47,%r46,%r39; sub.s32 %r70,%r1,%r47; div.u32 %r3,%r44,%r39; mul.lo.s32 %r49,%r3,%r39;\n"
    "sub.s32 %r4,%r44,%r49; mul.wide.u32 %d46,%r44,4; cvt.u64.u32 %d47,%r4; mul.lo.s64 %d48,%d47,-3;\n"
    "add.s64 %d10,%d48,%d46; mul.wide.u32 %d49,%r1,4; sub.s64 %d50,%d49,%d33; cvt.u64.u32 %d51,%r70;\n"
    "mul.lo.s64 %d52,%d51,-3; add.s64 %d66,%d50,%d52; cvt.u32.u64 %r5,%d65; shr.u64 %d53,%d65,32; cvt.u32.u64 %r6,%d53;\n"
    "mov.b32 %r7,%f2; mov.b32 %r8,%f3; sub.rn.f32 %f1,%f3,%f2; cvt.u64.u32 %d12,%r3; mul.wide.u32 %d13,%r39,3; bra.uni L6;\n"
    "L15: setp.lt.u64 %p20,%d67,%d35; @%p20 bra L6; bra.uni L16;\n"
    "L6: add.s64 %d54,%d67,%d64; cvt.u32.u64 %r76,%d54; shr.u64 %d68,%d54,32; mov.u32 %r72,0; mov.u32 %r71,10;\n"
    "mov.u32 %r73,%r70; mov.u32 %r74,%r6; mov.u32 %r75,%r5;\n"
    "L7: mul.wide.u32 %d55,%r76,-766435501; mul.wide.u32 %d18,%r73,-845247145; mul.hi.u32 %r52,%r73,-845247145;\n"
    "cvt.u64.u32 %d56,%r52; xor.b64 %d57,%d68,%d56; cvt.u32.u64 %r53,%d57; xor.b32 %r17,%r75,%r53;\n"
    "mul.hi.u32 %r54,%r76,-766435501; xor.b32 %r55,%r74,%r72; xor.b32 %r73,%r55,%r54; cvt.u32.u64 %r72,%d55;\n"
    "add.s32 %r75,%r75,-1640531527; add.s32 %r74,%r74,-1150833019; add.s32 %r71,%r71,-1; setp.ne.s32 %p7,%r71,0;\n"
    "mov.u64 %d68,%d18; mov.u32 %r76,%r17; @%p7 bra L7; cvt.u32.u64 %r56,%d18; shr.u32 %r57,%r17,8;\n"
    "cvt.rn.f32.u32 %f4,%r57; mul.rn.f32 %f5,%f4,0f33800000; mul.rn.f32 %f6,%f1,%f5; add.rn.f32 %f7,%f6,%f2;\n"
    "mov.b32 %r58,%f7; setp.eq.s32 %p8,%r58,-2147483648; selp.b32 %r59,0,%r58,%p8; setp.eq.s32 %p9,%r59,%r8;\n"
    "selp.b32 %r77,%r7,%r58,%p9; shr.u32 %r60,%r56,8; cvt.rn.f32.u32 %f8,%r60; mul.rn.f32 %f9,%f8,0f33800000;\n"
    "mul.rn.f32 %f10,%f1,%f9; add.rn.f32 %f11,%f10,%f2; mov.b32 %r61,%f11; setp.eq.s32 %p10,%r61,-2147483648;\n"
    "selp.b32 %r62,0,%r61,%p10; setp.eq.s32 %p11,%r62,%r8; selp.b32 %r78,%r7,%r61,%p11; shr.u32 %r63,%r73,8;\n"
    "cvt.rn.f32.u32 %f12,%r63; mul.rn.f32 %f13,%f12,0f33800000; mul.rn.f32 %f14,%f1,%f13; add.rn.f32 %f15,%f14,%f2;\n"
    "mov.b32 %r64,%f15; setp.eq.s32 %p12,%r64,-2147483648; selp.b32 %r65,0,%r64,%p12; setp.eq.s32 %p13,%r65,%r8;\n"
    "selp.b32 %r79,%r7,%r64,%p13; shr.u32 %r66,%r72,8; cvt.rn.f32.u32 %f16,%r66; mul.rn.f32 %f17,%f16,0f33800000;\n"
    "mul.rn.f32 %f18,%f1,%f17; add.rn.f32 %f19,%f18,%f2; mov.b32 %r67,%f19; setp.eq.s32 %p14,%r67,-2147483648;\n"
    "selp.b32 %r68,0,%r67,%p14; setp.eq.s32 %p15,%r68,%r8; selp.b32 %r26,%r7,%r67,%p15; setp.lt.u64 %p16,%d66,%d63;\n"
    "@%p16 bra L17; bra.uni L9;\n"
    "L17: shl.b64 %d61,%d66,2; add.s64 %d62,%d2,%d61; st.global.v4.u32 [%d62],{%r77,%r78,%r79,%r26};\n"
    "L13: add.s64 %d67,%d67,%d12; add.s32 %r70,%r70,%r4; add.s64 %d66,%d10,%d66; setp.lt.u32 %p19,%r70,%r39; @%p19 bra L15;\n"
    "sub.s32 %r70,%r70,%r39; add.s64 %d67,%d67,1; add.s64 %d66,%d66,%d13; bra.uni L15;\n"
    "L9: shl.b64 %d59,%d66,2; add.s64 %d69,%d2,%d59; mov.u64 %d70,0; bra.uni L10;\n", /* 3999 characters */
    "L12: add.s64 %d70,%d70,1; cvt.u32.u64 %r69,%d70; add.s64 %d69,%d69,4; setp.ne.s32 %p18,%r69,4; mov.u32 %r77,%r78;\n"
    "mov.u32 %r78,%r79; mov.u32 %r79,%r26; @%p18 bra L10; bra.uni L13;\n"
    "L10: add.s64 %d60,%d66,%d70; setp.ge.u64 %p17,%d60,%d34; @%p17 bra L12; st.global.u32 [%d69],%r77; bra.uni L12;\n"
    "L16: ret; }\n", /* 304 characters */
    0 };
static const char *const ds__ptx_rng_uniform[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_uniform( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .f32 p8, .param .f32 p9, .param .u32 p10, .param .u32 p11,\n"
    ".param .u32 p12 ) { .reg .pred %p<29>; .reg .b16 %h<2>; .reg .b16 %rs<3>; .reg .b32 %r<103>; .reg .f32 %f<28>;\n"
    ".reg .b64 %d<94>; ld.param.u32 %r46,[p12]; ld.param.u32 %r43,[p7]; ld.param.u64 %d46,[p5]; ld.param.u64 %d45,[p4];\n"
    "ld.param.u64 %d42,[p0]; ld.param.u64 %d49,[p1]; cvta.to.global.u64 %d1,%d49; setp.eq.s32 %p1,%r46,6;\n"
    "setp.gt.u32 %p2,%r43,1; setp.lt.u64 %p3,%d46,4; mov.u64 %d48,0; or.pred %p4,%p3,%p2; mov.u64 %d80,%d48; @%p4 bra L2;\n"
    "selp.b32 %r1,4,2,%p1; shl.b32 %r47,%r1,2; add.s32 %r48,%r47,-1; selp.b32 %r49,15,%r48,%p1; cvt.u64.u32 %d50,%r49;\n"
    "cvt.u64.u32 %d51,%r1; mul.lo.s64 %d52,%d51,%d45; sub.s64 %d53,%d42,%d52; and.b64 %d54,%d53,%d50;\n"
    "setp.eq.s64 %p6,%d54,0; add.s64 %d55,%d46,-3; selp.b64 %d80,%d55,0,%p6;\n"
    "L2: ld.param.u64 %d47,[p6]; ld.param.u64 %d81,[p3]; ld.param.u64 %d82,[p2]; cvta.to.global.u64 %d57,%d48;\n"
    "setp.eq.s64 %p7,%d1,%d57; @%p7 bra L4; ld.global.u64 %d82,[%d1]; ld.global.u64 %d58,[%d1+8]; shr.u64 %d59,%d58,2;\n"
    "add.s64 %d81,%d59,%d81;\n"
    "L4: mov.u32 %r50,%ctaid.x; mov.u32 %r51,%ntid.x; mov.u32 %r52,%tid.x; mad.lo.s32 %r2,%r50,%r51,%r52;\n"
    "div.u32 %r56,%r2,%r43; cvt.u64.u32 %d84,%r56; setp.ge.u64 %p8,%d84,%d47; @%p8 bra L37; ld.param.u32 %r45,[p11];\n"
    "ld.param.u32 %r44,[p10]; ld.param.f32 %f9,[p9]; ld.param.f32 %f8,[p8]; cvta.to.global.u64 %d2,%d42;\n"
    "mov.u32 %r53,%nctaid.x; mul.lo.s32 %r54,%r53,%r51; mul.lo.s32 %r57,%r56,%r43; sub.s32 %r84,%r2,%r57;\n"
    "div.u32 %r4,%r54,%r43; mul.lo.s32 %r59,%r4,%r43; sub.s32 %r5,%r54,%r59; mul.wide.u32 %d60,%r54,4;\n"
    "cvt.u64.u32 %d61,%r5; mul.lo.s64 %d62,%d61,-3; add.s64 %d10,%d62,%d60; mul.wide.u32 %d63,%r2,4;\n"
    "sub.s64 %d64,%d63,%d45; cvt.u64.u32 %d65,%r84; mul.lo.s64 %d66,%d65,-3; add.s64 %d83,%d64,%d66; cvt.u32.u64 %r6,%d82;\n"
    "shr.u64 %d67,%d82,32; cvt.u32.u64 %r7,%d67; cvt.u64.u32 %d12,%r43; cvt.u64.u32 %d13,%r4; mul.wide.u32 %d14,%r43,3;\n"
    "mul.wide.u32 %d15,%r43,2; mul.wide.u32 %d16,%r43,4; setp.lt.u32 %p23,%r43,2; mov.f32 %f13,0f33800000;\n"
    "setp.ne.s32 %p13,%r46,4; mov.f32 %f14,0f3A000000; setp.eq.s32 %p14,%r46,4; bra.uni L6;\n"
    "L36: setp.lt.u64 %p28,%d84,%d47; @%p28 bra L6; bra.uni L37;\n"
    "L6: add.s64 %d68,%d84,%d81; cvt.u32.u64 %r90,%d68; shr.u64 %d85,%d68,32; mov.u32 %r86,0; mov.u32 %r85,10;\n"
    "mov.u32 %r87,%r84; mov.u32 %r88,%r7; mov.u32 %r89,%r6;\n"
    "L7: mul.wide.u32 %d69,%r90,-766435501; mul.wide.u32 %d21,%r87,-845247145; mul.hi.u32 %r62,%r87,-845247145;\n"
    "cvt.u64.u32 %d70,%r62; xor.b64 %d71,%d85,%d70; cvt.u32.u64 %r63,%d71; xor.b32 %r94,%r89,%r63;\n"
    "mul.hi.u32 %r64,%r90,-766435501; xor.b32 %r65,%r88,%r86; xor.b32 %r87,%r65,%r64; cvt.u32.u64 %r86,%d69;\n"
    "add.s32 %r89,%r89,-1640531527; add.s32 %r88,%r88,-1150833019; add.s32 %r85,%r85,-1; setp.ne.s32 %p9,%r85,0;\n"
    "mov.u64 %d85,%d21; mov.u32 %r90,%r94; @%p9 bra L7; cvt.u32.u64 %r93,%d21; @%p1 bra L12; bra.uni L9;\n"
    "L12: shl.b64 %d79,%d83,2; add.s64 %d86,%d2,%d79; mov.u32 %r91,4; mov.u64 %d87,%d83; bra.uni L13;\n"
    "L16: shr.u32 %r79,%r94,8; cvt.rn.f32.u32 %f22,%r79; mul.rn.f32 %f23,%f22,0f33800000; mul.rn.f32 %f24,%f23,%f9;\n"
    "add.rn.f32 %f25,%f24,%f8;\n"
    "L17: mov.b32 %r80,%f25; setp.eq.s32 %p24,%r80,-2147483648; selp.b32 %r81,0,%r80,%p24; setp.eq.s32 %p25,%r81,%r45;\n"
    "selp.b32 %r82,%r44,%r80,%p25; st.global.u32 [%d86],%r82;\n"
    "L18: add.s64 %d87,%d87,%d12; add.s32 %r91,%r91,-1; add.s64 %d86,%d86,%d16; setp.eq.s32 %p26,%r91,0; mov.u32 %r87,%r86;\n"
    "mov.u32 %r94,%r25; @%p26 bra L34;\n"
    "L13: mov.u32 %r25,%r93; mov.u32 %r93,%r87; setp.ge.u64 %p22,%d87,%d46; @%p22 bra L18; @%p23 bra L16;\n"
    "cvt.rn.f32.u32 %f19,%r94; mul.rn.f32 %f20,%f19,0f2F800000; add.rn.f32 %f21,%f20,0f2F000000;\n"
    "fma.rn.f32 %f25,%f21,%f9,%f8; bra.uni L17;\n"
    "L9: mov.u64 %d91,0; mov.u32 %r96,4; bra.uni L10;\n"
    "L38: cvt.rn.f16.f32 %h1,%f27; mov.b16 %rs2,%h1; cvt.u32.u16 %r101,%rs2;\n"
    "L32: setp.eq.s32 %p16,%r101,32768; selp.b32 %r75,0,%r101,%p16; setp.eq.s32 %p17,%r75,%r45;\n", /* 4012 characters */
    "selp.b32 %r76,%r44,%r101,%p17; cvt.u64.u32 %d73,%r76; shl.b64 %d74,%d73,48; shr.u64 %d75,%d91,16;\n"
    "or.b64 %d91,%d74,%d75; add.s32 %r96,%r96,-1; setp.eq.s32 %p18,%r96,0; mov.u32 %r87,%r86; @%p18 bra L19;\n"
    "L10: mov.u32 %r33,%r94; mov.u32 %r94,%r93; mov.u32 %r93,%r87; @%p23 bra L24; bra.uni L11;\n"
    "L24: mov.u32 %r100,8; mov.f32 %f26,%f13; @%p1 bra L28; @%p13 bra L27; mov.u32 %r100,21; mov.f32 %f26,%f14;\n"
    "bra.uni L28;\n"
    "L11: cvt.rn.f32.u32 %f10,%r33; mul.rn.f32 %f11,%f10,0f2F800000; add.rn.f32 %f12,%f11,0f2F000000;\n"
    "fma.rn.f32 %f27,%f12,%f9,%f8; bra.uni L29;\n"
    "L27: mov.f32 %f26,0f3B800000; mov.u32 %r100,24;\n"
    "L28: shr.u32 %r70,%r33,%r100; cvt.rn.f32.u32 %f16,%r70; mul.rn.f32 %f17,%f26,%f16; mul.rn.f32 %f18,%f17,%f9;\n"
    "add.rn.f32 %f27,%f18,%f8;\n"
    "L29: @%p14 bra L38; setp.ne.s32 %p15,%r46,6; mov.b32 %r101,%f27; @%p15 bra L31; bra.uni L32;\n"
    "L31: bfe.u32 %r72,%r101,16,1; add.s32 %r73,%r101,%r72; add.s32 %r74,%r73,32767; shr.u32 %r101,%r74,16; bra.uni L32;\n"
    "L19: setp.lt.u64 %p19,%d83,%d80; @%p19 bra L33; bra.uni L20;\n"
    "L33: shl.b64 %d77,%d83,1; add.s64 %d78,%d2,%d77; st.global.u64 [%d78],%d91;\n"
    "L34: add.s64 %d84,%d84,%d13; add.s32 %r84,%r84,%r5; add.s64 %d83,%d10,%d83; setp.lt.u32 %p27,%r84,%r43; @%p27 bra L36;\n"
    "sub.s32 %r84,%r84,%r43; add.s64 %d84,%d84,1; add.s64 %d83,%d83,%d14; bra.uni L36;\n"
    "L20: shl.b64 %d76,%d83,1; add.s64 %d88,%d2,%d76; mov.u32 %r95,4; mov.u64 %d90,%d83; bra.uni L21;\n"
    "L23: add.s64 %d90,%d90,%d12; shr.u64 %d91,%d91,16; add.s32 %r95,%r95,-1; add.s64 %d88,%d88,%d15;\n"
    "setp.eq.s32 %p21,%r95,0; @%p21 bra L34;\n"
    "L21: setp.ge.u64 %p20,%d90,%d46; @%p20 bra L23; cvt.u16.u64 %rs1,%d91; st.global.u16 [%d88],%rs1; bra.uni L23;\n"
    "L37: ret; }\n", /* 1639 characters */
    0 };
static const char *const ds__ptx_rng_uniform64[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_uniform64( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .f64 p8, .param .f64 p9 ) { .reg .pred %p<18>;\n"
    ".reg .b32 %r<48>; .reg .b64 %d<82>; .reg .f64 %fd<26>; ld.param.u32 %r22,[p7]; ld.param.u64 %d29,[p5];\n"
    "ld.param.u64 %d28,[p4]; ld.param.u64 %d25,[p0]; ld.param.u64 %d32,[p1]; cvta.to.global.u64 %d1,%d32;\n"
    "setp.gt.u32 %p1,%r22,1; setp.lt.u64 %p2,%d29,2; mov.u64 %d31,0; or.pred %p3,%p2,%p1; mov.u64 %d76,%d31; @%p3 bra L2;\n"
    "shl.b64 %d33,%d28,3; sub.s64 %d34,%d25,%d33; and.b64 %d35,%d34,15; setp.eq.s64 %p4,%d35,0; add.s64 %d36,%d29,-1;\n"
    "selp.b64 %d76,%d36,0,%p4;\n"
    "L2: ld.param.u64 %d30,[p6]; ld.param.u64 %d77,[p3]; ld.param.u64 %d78,[p2]; cvta.to.global.u64 %d38,%d31;\n"
    "setp.eq.s64 %p5,%d1,%d38; @%p5 bra L4; ld.global.u64 %d78,[%d1]; ld.global.u64 %d39,[%d1+8]; shr.u64 %d40,%d39,2;\n"
    "add.s64 %d77,%d40,%d77;\n"
    "L4: mov.u32 %r23,%ctaid.x; mov.u32 %r24,%ntid.x; mov.u32 %r25,%tid.x; mad.lo.s32 %r1,%r23,%r24,%r25;\n"
    "div.u32 %r29,%r1,%r22; cvt.u64.u32 %d14,%r29; setp.ge.u64 %p6,%d14,%d30; @%p6 bra L15; ld.param.f64 %fd13,[p9];\n"
    "ld.param.f64 %fd12,[p8]; cvta.to.global.u64 %d2,%d25; mov.u32 %r26,%nctaid.x; mul.lo.s32 %r27,%r26,%r24;\n"
    "mul.lo.s32 %r30,%r29,%r22; sub.s32 %r7,%r1,%r30; div.u32 %r3,%r27,%r22; mul.lo.s32 %r32,%r3,%r22;\n"
    "sub.s32 %r4,%r27,%r32; mul.wide.u32 %d41,%r27,2; cvt.u64.u32 %d42,%r4; sub.s64 %d10,%d41,%d42;\n"
    "mul.wide.u32 %d43,%r1,2; cvt.u64.u32 %d44,%r7; add.s64 %d45,%d44,%d28; sub.s64 %d15,%d43,%d45; cvt.u32.u64 %r5,%d78;\n"
    "shr.u64 %d46,%d78,32; cvt.u32.u64 %r6,%d46; sub.rn.f64 %fd1,%fd13,%fd12; cvt.u64.u32 %d12,%r22; cvt.u64.u32 %d13,%r3;\n"
    "setp.lt.u32 %p8,%r22,2; bra.uni L6;\n"
    "L21: shl.b64 %d70,%d15,3; add.s64 %d71,%d2,%d70; st.global.v2.f64 [%d71],{%fd6,%fd11};\n"
    "L14: add.s64 %d72,%d14,%d13; add.s32 %r39,%r7,%r4; add.s64 %d73,%d10,%d15; setp.ge.u32 %p15,%r39,%r22;\n"
    "setp.lt.u32 %p16,%r39,%r22; selp.b32 %r40,0,%r22,%p16; sub.s32 %r7,%r39,%r40; cvt.u64.u32 %d74,%r40;\n"
    "add.s64 %d15,%d73,%d74; selp.u64 %d75,1,0,%p15; add.s64 %d14,%d72,%d75; setp.lt.u64 %p17,%d14,%d30; @%p17 bra L6;\n"
    "bra.uni L15;\n"
    "L6: add.s64 %d47,%d14,%d77; cvt.u32.u64 %r47,%d47; shr.u64 %d81,%d47,32; mov.u32 %r43,0; mov.u32 %r42,10;\n"
    "mov.u32 %r44,%r7; mov.u32 %r45,%r6; mov.u32 %r46,%r5;\n"
    "L7: mov.u32 %r14,%r47; mov.u32 %r11,%r44; mul.wide.u32 %d48,%r14,-766435501; mul.wide.u32 %d20,%r11,-845247145;\n"
    "mul.hi.u32 %r35,%r11,-845247145; cvt.u64.u32 %d49,%r35; xor.b64 %d50,%d81,%d49; cvt.u32.u64 %r36,%d50;\n"
    "xor.b32 %r47,%r46,%r36; mul.hi.u32 %r37,%r14,-766435501; xor.b32 %r38,%r45,%r43; xor.b32 %r44,%r38,%r37;\n"
    "cvt.u32.u64 %r43,%d48; add.s32 %r46,%r46,-1640531527; add.s32 %r45,%r45,-1150833019; add.s32 %r42,%r42,-1;\n"
    "setp.ne.s32 %p7,%r42,0; mov.u64 %d81,%d20; @%p7 bra L7; cvt.u64.u32 %d19,%r11; @%p8 bra L16; bra.uni L9;\n"
    "L16: mul.lo.s64 %d55,%d19,-3630308844812369920; cvt.u64.u32 %d56,%r47; or.b64 %d57,%d55,%d56; shr.u64 %d58,%d57,11;\n"
    "cvt.rn.f64.u64 %fd16,%d58; mul.rn.f64 %fd24,%fd16,0d3CA0000000000000; bra.uni L17;\n"
    "L9: cvt.u64.u32 %d51,%r47; mul.lo.s64 %d52,%d19,7234587514109952; and.b64 %d53,%d52,9007199252643840;\n"
    "xor.b64 %d54,%d53,%d51; cvt.rn.f64.u64 %fd14,%d54; mul.rn.f64 %fd15,%fd14,0d3CA0000000000000;\n"
    "add.rn.f64 %fd24,%fd15,0d3C90000000000000;\n"
    "L17: cvt.u64.u32 %d18,%r14; mul.rn.f64 %fd17,%fd1,%fd24; add.rn.f64 %fd18,%fd17,%fd12; setp.ge.f64 %p10,%fd18,%fd13;\n"
    "@%p8 bra L19; bra.uni L18;\n"
    "L19: mul.lo.s64 %d63,%d18,-3291815411288375296; cvt.u64.u32 %d64,%r44; or.b64 %d65,%d63,%d64; shr.u64 %d66,%d65,11;\n"
    "cvt.rn.f64.u64 %fd21,%d66; mul.rn.f64 %fd25,%fd21,0d3CA0000000000000; bra.uni L20;\n"
    "L18: cvt.u64.u32 %d59,%r44; mul.lo.s64 %d60,%d18,7399867510947840; and.b64 %d61,%d60,9007199252643840;\n"
    "xor.b64 %d62,%d61,%d59; cvt.rn.f64.u64 %fd19,%d62; mul.rn.f64 %fd20,%fd19,0d3CA0000000000000;\n"
    "add.rn.f64 %fd25,%fd20,0d3C90000000000000;\n"
    "L20: selp.f64 %fd6,%fd12,%fd18,%p10; mul.rn.f64 %fd22,%fd1,%fd25; add.rn.f64 %fd23,%fd22,%fd12;\n"
    "setp.ge.f64 %p11,%fd23,%fd13; selp.f64 %fd11,%fd12,%fd23,%p11; setp.lt.u64 %p12,%d15,%d76; @%p12 bra L21;\n", /* 4080 characters */
    "setp.ge.u64 %p13,%d15,%d29; shl.b64 %d67,%d15,3; add.s64 %d21,%d2,%d67; @%p13 bra L12; st.global.f64 [%d21],%fd6;\n"
    "L12: add.s64 %d68,%d15,%d12; setp.ge.u64 %p14,%d68,%d29; @%p14 bra L14; shl.b64 %d69,%d12,3; add.s64 %d22,%d21,%d69;\n"
    "st.global.f64 [%d22],%fd11; bra.uni L14;\n"
    "L15: ret; }\n", /* 284 characters */
    0 };
static const char *const ds__ptx_rng_normal[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_normal( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .f32 p8, .param .f32 p9, .param .u32 p10 ) { .reg .pred %p<27>;\n"
    ".reg .b16 %h<5>; .reg .b16 %rs<6>; .reg .b32 %r<141>; .reg .f32 %f<140>; .reg .b64 %d<94>; ld.param.u32 %r55,[p10];\n"
    "ld.param.u32 %r54,[p7]; ld.param.u64 %d45,[p5]; ld.param.u64 %d44,[p4]; ld.param.u64 %d41,[p0];\n"
    "ld.param.u64 %d48,[p1]; cvta.to.global.u64 %d1,%d48; setp.gt.u32 %p2,%r54,1; setp.lt.u64 %p3,%d45,4; mov.u64 %d47,0;\n"
    "or.pred %p4,%p3,%p2; mov.u64 %d81,%d47; @%p4 bra L2; setp.eq.s32 %p1,%r55,6; selp.b32 %r1,4,2,%p1; shl.b32 %r56,%r1,2;\n"
    "add.s32 %r57,%r56,-1; selp.b32 %r58,15,%r57,%p1; cvt.u64.u32 %d49,%r58; cvt.u64.u32 %d50,%r1;\n"
    "mul.lo.s64 %d51,%d50,%d44; sub.s64 %d52,%d41,%d51; and.b64 %d53,%d52,%d49; setp.eq.s64 %p6,%d53,0;\n"
    "add.s64 %d54,%d45,-3; selp.b64 %d81,%d54,0,%p6;\n"
    "L2: ld.param.u64 %d46,[p6]; ld.param.u64 %d82,[p3]; ld.param.u64 %d83,[p2]; cvta.to.global.u64 %d56,%d47;\n"
    "setp.eq.s64 %p7,%d1,%d56; @%p7 bra L4; ld.global.u64 %d83,[%d1]; ld.global.u64 %d57,[%d1+8]; shr.u64 %d58,%d57,2;\n"
    "add.s64 %d82,%d58,%d82;\n"
    "L4: mov.u32 %r59,%ctaid.x; mov.u32 %r60,%ntid.x; mov.u32 %r61,%tid.x; mad.lo.s32 %r2,%r59,%r60,%r61;\n"
    "div.u32 %r65,%r2,%r54; cvt.u64.u32 %d85,%r65; setp.ge.u64 %p8,%d85,%d46; @%p8 bra L25; ld.param.f32 %f10,[p9];\n"
    "ld.param.f32 %f9,[p8]; cvta.to.global.u64 %d2,%d41; mov.u32 %r62,%nctaid.x; mul.lo.s32 %r63,%r62,%r60;\n"
    "mul.lo.s32 %r66,%r65,%r54; sub.s32 %r124,%r2,%r66; div.u32 %r4,%r63,%r54; mul.lo.s32 %r68,%r4,%r54;\n"
    "sub.s32 %r5,%r63,%r68; mul.wide.u32 %d59,%r63,4; cvt.u64.u32 %d60,%r5; mul.lo.s64 %d61,%d60,-3;\n"
    "add.s64 %d10,%d61,%d59; mul.wide.u32 %d62,%r2,4; sub.s64 %d63,%d62,%d44; cvt.u64.u32 %d64,%r124;\n"
    "mul.lo.s64 %d65,%d64,-3; add.s64 %d84,%d63,%d65; cvt.u32.u64 %r6,%d83; shr.u64 %d66,%d83,32; cvt.u32.u64 %r7,%d66;\n"
    "cvt.u64.u32 %d12,%r54; cvt.u64.u32 %d13,%r4; mul.wide.u32 %d14,%r54,3; mul.wide.u32 %d15,%r54,4;\n"
    "mul.wide.u32 %d16,%r54,2; mov.f32 %f50,0f3C08839E; setp.eq.s32 %p16,%r55,4; setp.ne.s32 %p17,%r55,6; bra.uni L6;\n"
    "L24: setp.lt.u64 %p25,%d85,%d46; @%p25 bra L6; bra.uni L25;\n"
    "L6: add.s64 %d67,%d85,%d82; cvt.u32.u64 %r130,%d67; shr.u64 %d86,%d67,32; mov.u32 %r126,0; mov.u32 %r125,10;\n"
    "mov.u32 %r127,%r124; mov.u32 %r128,%r7; mov.u32 %r129,%r6;\n"
    "L7: mul.wide.u32 %d68,%r130,-766435501; mul.wide.u32 %d21,%r127,-845247145; mul.hi.u32 %r71,%r127,-845247145;\n"
    "cvt.u64.u32 %d69,%r71; xor.b64 %d70,%d86,%d69; cvt.u32.u64 %r72,%d70; xor.b32 %r16,%r129,%r72;\n"
    "mul.hi.u32 %r73,%r130,-766435501; xor.b32 %r74,%r128,%r126; xor.b32 %r127,%r74,%r73; cvt.u32.u64 %r126,%d68;\n"
    "add.s32 %r129,%r129,-1640531527; add.s32 %r128,%r128,-1150833019; add.s32 %r125,%r125,-1; setp.ne.s32 %p9,%r125,0;\n"
    "mov.u64 %d86,%d21; mov.u32 %r130,%r16; @%p9 bra L7; cvt.u32.u64 %r75,%d21; cvt.rn.f32.u32 %f11,%r16;\n"
    "mul.rn.f32 %f12,%f11,0f2F800000; add.rn.f32 %f13,%f12,0f2F000000; mov.b32 %r76,%f13; add.s32 %r77,%r76,4913933;\n"
    "and.b32 %r78,%r77,8388607; add.s32 %r79,%r78,1060439283; shr.u32 %r80,%r77,23; add.s32 %r81,%r80,-127;\n"
    "cvt.rn.f32.s32 %f14,%r81; mov.b32 %f15,%r79; add.rn.f32 %f16,%f15,0fBF800000; mul.rn.f32 %f17,%f16,%f16;\n"
    "mul.rn.f32 %f18,%f16,0f3D9021BB; add.rn.f32 %f19,%f18,0fBDEBD1B8; mul.rn.f32 %f20,%f16,%f19;\n"
    "add.rn.f32 %f21,%f20,0f3DEF251A; mul.rn.f32 %f22,%f16,%f21; add.rn.f32 %f23,%f22,0fBDFE5D4F;\n"
    "mul.rn.f32 %f24,%f16,%f23; add.rn.f32 %f25,%f24,0f3E11E9BF; mul.rn.f32 %f26,%f16,%f25;\n"
    "add.rn.f32 %f27,%f26,0fBE2AAE50; mul.rn.f32 %f28,%f16,%f27; add.rn.f32 %f29,%f28,0f3E4CCEAC;\n"
    "mul.rn.f32 %f30,%f16,%f29; add.rn.f32 %f31,%f30,0fBE7FFFFC; mul.rn.f32 %f32,%f16,%f31;\n"
    "add.rn.f32 %f33,%f32,0f3EAAAAAA; mul.rn.f32 %f34,%f16,%f33; mul.rn.f32 %f35,%f17,%f34;\n"
    "mul.rn.f32 %f36,%f14,0f395E8083; sub.rn.f32 %f37,%f35,%f36; mul.rn.f32 %f38,%f17,0f3F000000;\n"
    "sub.rn.f32 %f39,%f37,%f38; add.rn.f32 %f40,%f16,%f39; mul.rn.f32 %f41,%f14,0f3F318000; add.rn.f32 %f42,%f41,%f40;\n"
    "mul.rn.f32 %f43,%f42,0fC0000000; sqrt.rn.f32 %f44,%f43; add.s32 %r82,%r75,536870912; shr.u32 %r83,%r82,30;\n", /* 4073 characters */
    "and.b32 %r84,%r82,1073741823; add.s32 %r85,%r84,-536870912; cvt.rn.f32.s32 %f45,%r85; add.rn.f32 %f46,%f45,0f3F000000;\n"
    "mul.rn.f32 %f47,%f46,0f30C90FDB; mul.rn.f32 %f48,%f47,%f47; mul.rn.f32 %f49,%f48,0f394CA1F9;\n"
    "sub.rn.f32 %f51,%f50,%f49; mul.rn.f32 %f52,%f48,%f51; add.rn.f32 %f53,%f52,0fBE2AAAA3; mul.rn.f32 %f54,%f48,%f53;\n"
    "mul.rn.f32 %f55,%f47,%f54; add.rn.f32 %f56,%f47,%f55; mul.rn.f32 %f57,%f48,0f37CCF5CE;\n"
    "add.rn.f32 %f58,%f57,0fBAB6061A; mul.rn.f32 %f59,%f48,%f58; add.rn.f32 %f60,%f59,0f3D2AAAA5;\n"
    "mul.rn.f32 %f61,%f48,%f60; mul.rn.f32 %f62,%f48,%f61; mul.rn.f32 %f63,%f48,0f3F000000; sub.rn.f32 %f64,%f62,%f63;\n"
    "add.rn.f32 %f65,%f64,0f3F800000; and.b32 %r86,%r82,1073741824; setp.eq.s32 %p10,%r86,0; selp.f32 %f66,%f65,%f56,%p10;\n"
    "selp.f32 %f67,%f56,%f65,%p10; neg.f32 %f68,%f67; setp.lt.s32 %p11,%r82,0; selp.f32 %f69,%f68,%f67,%p11;\n"
    "add.s32 %r87,%r83,1; and.b32 %r88,%r87,2; setp.eq.s32 %p12,%r88,0; neg.f32 %f70,%f66; selp.f32 %f71,%f66,%f70,%p12;\n"
    "mul.rn.f32 %f72,%f69,%f44; mul.rn.f32 %f73,%f72,%f10; add.rn.f32 %f1,%f73,%f9; mul.rn.f32 %f74,%f71,%f44;\n"
    "mul.rn.f32 %f75,%f74,%f10; add.rn.f32 %f2,%f75,%f9; cvt.rn.f32.u32 %f76,%r127; mul.rn.f32 %f77,%f76,0f2F800000;\n"
    "add.rn.f32 %f78,%f77,0f2F000000; mov.b32 %r89,%f78; add.s32 %r90,%r89,4913933; and.b32 %r91,%r90,8388607;\n"
    "add.s32 %r92,%r91,1060439283; shr.u32 %r93,%r90,23; add.s32 %r94,%r93,-127; cvt.rn.f32.s32 %f79,%r94;\n"
    "mov.b32 %f80,%r92; add.rn.f32 %f81,%f80,0fBF800000; mul.rn.f32 %f82,%f81,%f81; mul.rn.f32 %f83,%f81,0f3D9021BB;\n"
    "add.rn.f32 %f84,%f83,0fBDEBD1B8; mul.rn.f32 %f85,%f81,%f84; add.rn.f32 %f86,%f85,0f3DEF251A;\n"
    "mul.rn.f32 %f87,%f81,%f86; add.rn.f32 %f88,%f87,0fBDFE5D4F; mul.rn.f32 %f89,%f81,%f88;\n"
    "add.rn.f32 %f90,%f89,0f3E11E9BF; mul.rn.f32 %f91,%f81,%f90; add.rn.f32 %f92,%f91,0fBE2AAE50;\n"
    "mul.rn.f32 %f93,%f81,%f92; add.rn.f32 %f94,%f93,0f3E4CCEAC; mul.rn.f32 %f95,%f81,%f94;\n"
    "add.rn.f32 %f96,%f95,0fBE7FFFFC; mul.rn.f32 %f97,%f81,%f96; add.rn.f32 %f98,%f97,0f3EAAAAAA;\n"
    "mul.rn.f32 %f99,%f81,%f98; mul.rn.f32 %f100,%f82,%f99; mul.rn.f32 %f101,%f79,0f395E8083; sub.rn.f32 %f102,%f100,%f101;\n"
    "mul.rn.f32 %f103,%f82,0f3F000000; sub.rn.f32 %f104,%f102,%f103; add.rn.f32 %f105,%f81,%f104;\n"
    "mul.rn.f32 %f106,%f79,0f3F318000; add.rn.f32 %f107,%f106,%f105; mul.rn.f32 %f108,%f107,0fC0000000;\n"
    "sqrt.rn.f32 %f109,%f108; add.s32 %r95,%r126,536870912; shr.u32 %r96,%r95,30; and.b32 %r97,%r95,1073741823;\n"
    "add.s32 %r98,%r97,-536870912; cvt.rn.f32.s32 %f110,%r98; add.rn.f32 %f111,%f110,0f3F000000;\n"
    "mul.rn.f32 %f112,%f111,0f30C90FDB; mul.rn.f32 %f113,%f112,%f112; mul.rn.f32 %f114,%f113,0f394CA1F9;\n"
    "sub.rn.f32 %f115,%f50,%f114; mul.rn.f32 %f116,%f113,%f115; add.rn.f32 %f117,%f116,0fBE2AAAA3;\n"
    "mul.rn.f32 %f118,%f113,%f117; mul.rn.f32 %f119,%f112,%f118; add.rn.f32 %f120,%f112,%f119;\n"
    "mul.rn.f32 %f121,%f113,0f37CCF5CE; add.rn.f32 %f122,%f121,0fBAB6061A; mul.rn.f32 %f123,%f113,%f122;\n"
    "add.rn.f32 %f124,%f123,0f3D2AAAA5; mul.rn.f32 %f125,%f113,%f124; mul.rn.f32 %f126,%f113,%f125;\n"
    "mul.rn.f32 %f127,%f113,0f3F000000; sub.rn.f32 %f128,%f126,%f127; add.rn.f32 %f129,%f128,0f3F800000;\n"
    "and.b32 %r99,%r95,1073741824; setp.eq.s32 %p13,%r99,0; selp.f32 %f130,%f129,%f120,%p13;\n"
    "selp.f32 %f131,%f120,%f129,%p13; neg.f32 %f132,%f131; setp.lt.s32 %p14,%r95,0; selp.f32 %f133,%f132,%f131,%p14;\n"
    "add.s32 %r100,%r96,1; and.b32 %r101,%r100,2; setp.eq.s32 %p15,%r101,0; neg.f32 %f134,%f130;\n"
    "selp.f32 %f135,%f130,%f134,%p15; mul.rn.f32 %f136,%f133,%f109; mul.rn.f32 %f137,%f136,%f10; add.rn.f32 %f3,%f137,%f9;\n"
    "mul.rn.f32 %f138,%f135,%f109; mul.rn.f32 %f139,%f138,%f10; add.rn.f32 %f4,%f139,%f9; setp.lt.u64 %p26,%d84,%d81;\n"
    "@%p16 bra L16; @%p17 bra L15; @%p26 bra L26; bra.uni L11;\n"
    "L26: shl.b64 %d72,%d84,2; add.s64 %d73,%d2,%d72; st.global.v4.f32 [%d73],{%f1,%f2,%f3,%f4}; bra.uni L22;\n"
    "L16: cvt.rn.f16.f32 %h1,%f1; mov.b16 %rs2,%h1; cvt.u32.u16 %r138,%rs2; cvt.rn.f16.f32 %h2,%f2; mov.b16 %rs3,%h2;\n"
    "cvt.u32.u16 %r137,%rs3; cvt.rn.f16.f32 %h3,%f3; mov.b16 %rs4,%h3; cvt.u32.u16 %r136,%rs4; cvt.rn.f16.f32 %h4,%f4;\n"
    "mov.b16 %rs5,%h4; cvt.u32.u16 %r135,%rs5; bra.uni L17;\n", /* 4006 characters */
    "L15: mov.b32 %r103,%f1; bfe.u32 %r104,%r103,16,1; add.s32 %r105,%r103,%r104; add.s32 %r106,%r105,32767;\n"
    "shr.u32 %r138,%r106,16; mov.b32 %r107,%f2; bfe.u32 %r108,%r107,16,1; add.s32 %r109,%r107,%r108;\n"
    "add.s32 %r110,%r109,32767; shr.u32 %r137,%r110,16; mov.b32 %r111,%f3; bfe.u32 %r112,%r111,16,1;\n"
    "add.s32 %r113,%r111,%r112; add.s32 %r114,%r113,32767; shr.u32 %r136,%r114,16; mov.b32 %r115,%f4;\n"
    "bfe.u32 %r116,%r115,16,1; add.s32 %r117,%r115,%r116; add.s32 %r118,%r117,32767; shr.u32 %r135,%r118,16;\n"
    "L17: shl.b32 %r119,%r137,16; or.b32 %r120,%r119,%r138; cvt.u64.u32 %d74,%r120; shl.b32 %r121,%r135,16;\n"
    "or.b32 %r122,%r121,%r136; cvt.u64.u32 %d75,%r122; shl.b64 %d76,%d75,32; or.b64 %d90,%d76,%d74; shl.b64 %d80,%d84,1;\n"
    "@%p26 bra L27; bra.uni L18;\n"
    "L27: add.s64 %d79,%d2,%d80; st.global.u64 [%d79],%d90;\n"
    "L22: add.s64 %d85,%d85,%d13; add.s32 %r124,%r124,%r5; add.s64 %d84,%d10,%d84; setp.lt.u32 %p24,%r124,%r54;\n"
    "@%p24 bra L24; sub.s32 %r124,%r124,%r54; add.s64 %d85,%d85,1; add.s64 %d84,%d84,%d14; bra.uni L24;\n"
    "L18: add.s64 %d89,%d2,%d80; mov.u32 %r139,4; mov.u64 %d91,%d84; bra.uni L19;\n"
    "L21: add.s64 %d91,%d91,%d12; shr.u64 %d90,%d90,16; add.s32 %r139,%r139,-1; add.s64 %d89,%d89,%d16;\n"
    "setp.ne.s32 %p23,%r139,0; @%p23 bra L19; bra.uni L22;\n"
    "L19: setp.ge.u64 %p22,%d91,%d45; @%p22 bra L21; cvt.u16.u64 %rs1,%d90; st.global.u16 [%d89],%rs1; bra.uni L21;\n"
    "L11: mov.b32 %r132,%f1; mov.b32 %r133,%f2; mov.b32 %r134,%f3; mov.b32 %r25,%f4; shl.b64 %d71,%d84,2;\n"
    "add.s64 %d87,%d2,%d71; mov.u32 %r131,4; mov.u64 %d88,%d84; bra.uni L12;\n"
    "L14: add.s64 %d88,%d88,%d12; add.s32 %r131,%r131,-1; add.s64 %d87,%d87,%d15; setp.eq.s32 %p20,%r131,0;\n"
    "mov.u32 %r132,%r133; mov.u32 %r133,%r134; mov.u32 %r134,%r25; @%p20 bra L22;\n"
    "L12: setp.ge.u64 %p19,%d88,%d45; @%p19 bra L14; st.global.u32 [%d87],%r132; bra.uni L14;\n"
    "L25: ret; }\n", /* 1800 characters */
    0 };
static const char *const ds__ptx_rng_normal64[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_normal64( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .f64 p8, .param .f64 p9 ) { .reg .pred %p<17>;\n"
    ".reg .b32 %r<52>; .reg .b64 %d<85>; .reg .f64 %fd<81>; ld.param.u32 %r22,[p7]; ld.param.u64 %d29,[p5];\n"
    "ld.param.u64 %d28,[p4]; ld.param.u64 %d25,[p0]; ld.param.u64 %d32,[p1]; cvta.to.global.u64 %d1,%d32;\n"
    "setp.gt.u32 %p1,%r22,1; setp.lt.u64 %p2,%d29,2; mov.u64 %d31,0; or.pred %p3,%p2,%p1; mov.u64 %d79,%d31; @%p3 bra L2;\n"
    "shl.b64 %d33,%d28,3; sub.s64 %d34,%d25,%d33; and.b64 %d35,%d34,15; setp.eq.s64 %p4,%d35,0; add.s64 %d36,%d29,-1;\n"
    "selp.b64 %d79,%d36,0,%p4;\n"
    "L2: ld.param.u64 %d30,[p6]; ld.param.u64 %d80,[p3]; ld.param.u64 %d81,[p2]; cvta.to.global.u64 %d38,%d31;\n"
    "setp.eq.s64 %p5,%d1,%d38; @%p5 bra L4; ld.global.u64 %d81,[%d1]; ld.global.u64 %d39,[%d1+8]; shr.u64 %d40,%d39,2;\n"
    "add.s64 %d80,%d40,%d80;\n"
    "L4: mov.u32 %r23,%ctaid.x; mov.u32 %r24,%ntid.x; mov.u32 %r25,%tid.x; mad.lo.s32 %r1,%r23,%r24,%r25;\n"
    "div.u32 %r29,%r1,%r22; cvt.u64.u32 %d83,%r29; setp.ge.u64 %p6,%d83,%d30; @%p6 bra L15; ld.param.f64 %fd4,[p9];\n"
    "ld.param.f64 %fd3,[p8]; cvta.to.global.u64 %d2,%d25; mov.u32 %r26,%nctaid.x; mul.lo.s32 %r27,%r26,%r24;\n"
    "mul.lo.s32 %r30,%r29,%r22; sub.s32 %r45,%r1,%r30; div.u32 %r3,%r27,%r22; mul.lo.s32 %r32,%r3,%r22;\n"
    "sub.s32 %r4,%r27,%r32; mul.wide.u32 %d41,%r27,2; cvt.u64.u32 %d42,%r4; sub.s64 %d10,%d41,%d42;\n"
    "mul.wide.u32 %d43,%r1,2; cvt.u64.u32 %d44,%r45; add.s64 %d45,%d44,%d28; sub.s64 %d82,%d43,%d45; cvt.u32.u64 %r5,%d81;\n"
    "shr.u64 %d46,%d81,32; cvt.u32.u64 %r6,%d46; cvt.u64.u32 %d12,%r22; cvt.u64.u32 %d13,%r3; bra.uni L6;\n"
    "L9: shl.b64 %d73,%d82,3; add.s64 %d74,%d2,%d73; st.global.v2.f64 [%d74],{%fd1,%fd2};\n"
    "L14: add.s64 %d75,%d83,%d13; add.s32 %r43,%r45,%r4; add.s64 %d76,%d10,%d82; setp.lt.u32 %p14,%r43,%r22;\n"
    "setp.ge.u32 %p15,%r43,%r22; selp.u64 %d77,1,0,%p15; add.s64 %d83,%d75,%d77; selp.b32 %r44,0,%r22,%p14;\n"
    "cvt.u64.u32 %d78,%r44; add.s64 %d82,%d76,%d78; sub.s32 %r45,%r43,%r44; setp.lt.u64 %p16,%d83,%d30; @%p16 bra L6;\n"
    "bra.uni L15;\n"
    "L6: add.s64 %d47,%d83,%d80; cvt.u32.u64 %r51,%d47; shr.u64 %d84,%d47,32; mov.u32 %r47,0; mov.u32 %r46,10;\n"
    "mov.u32 %r48,%r45; mov.u32 %r49,%r6; mov.u32 %r50,%r5;\n"
    "L7: mov.u32 %r14,%r51; mov.u32 %r11,%r48; mul.wide.u32 %d48,%r14,-766435501; mul.wide.u32 %d20,%r11,-845247145;\n"
    "mul.hi.u32 %r35,%r11,-845247145; cvt.u64.u32 %d49,%r35; xor.b64 %d50,%d84,%d49; cvt.u32.u64 %r36,%d50;\n"
    "xor.b32 %r51,%r50,%r36; mul.hi.u32 %r37,%r14,-766435501; xor.b32 %r38,%r49,%r47; xor.b32 %r48,%r38,%r37;\n"
    "cvt.u32.u64 %r47,%d48; add.s32 %r50,%r50,-1640531527; add.s32 %r49,%r49,-1150833019; add.s32 %r46,%r46,-1;\n"
    "setp.ne.s32 %p7,%r46,0; mov.u64 %d84,%d20; @%p7 bra L7; cvt.u64.u32 %d18,%r14; cvt.u64.u32 %d19,%r11;\n"
    "cvt.u64.u32 %d51,%r51; mul.lo.s64 %d52,%d19,7234587514109952; and.b64 %d53,%d52,9007199252643840;\n"
    "xor.b64 %d54,%d53,%d51; cvt.rn.f64.u64 %fd5,%d54; mul.rn.f64 %fd6,%fd5,0d3CA0000000000000;\n"
    "add.rn.f64 %fd7,%fd6,0d3C90000000000000; mov.b64 %d55,%fd7; add.s64 %d56,%d55,2638147582215219;\n"
    "and.b64 %d57,%d56,4503599627370495; add.s64 %d58,%d57,4604544271217802189; shr.u64 %d59,%d56,52;\n"
    "add.s64 %d60,%d59,-1023; cvt.rn.f64.s64 %fd8,%d60; mov.b64 %fd9,%d58; add.rn.f64 %fd10,%fd9,0dBFF0000000000000;\n"
    "add.rn.f64 %fd11,%fd10,0d4000000000000000; div.rn.f64 %fd12,%fd10,%fd11; mul.rn.f64 %fd13,%fd12,%fd12;\n"
    "mul.rn.f64 %fd14,%fd10,%fd10; mul.rn.f64 %fd15,%fd14,0d3FE0000000000000; mul.rn.f64 %fd16,%fd13,0d3FC2F112DF3E5244;\n"
    "add.rn.f64 %fd17,%fd16,0d3FC39A09D078C69F; mul.rn.f64 %fd18,%fd13,%fd17; add.rn.f64 %fd19,%fd18,0d3FC7466496CB03DE;\n"
    "mul.rn.f64 %fd20,%fd13,%fd19; add.rn.f64 %fd21,%fd20,0d3FCC71C51D8E78AF; mul.rn.f64 %fd22,%fd13,%fd21;\n"
    "add.rn.f64 %fd23,%fd22,0d3FD2492494229359; mul.rn.f64 %fd24,%fd13,%fd23; add.rn.f64 %fd25,%fd24,0d3FD999999997FA04;\n"
    "mul.rn.f64 %fd26,%fd13,%fd25; add.rn.f64 %fd27,%fd26,0d3FE5555555555593; mul.rn.f64 %fd28,%fd13,%fd27;\n"
    "add.rn.f64 %fd29,%fd15,%fd28; mul.rn.f64 %fd30,%fd12,%fd29; mul.rn.f64 %fd31,%fd8,0d3DEA39EF35793C76;\n", /* 4054 characters */
    "add.rn.f64 %fd32,%fd31,%fd30; mul.rn.f64 %fd33,%fd8,0d3FE62E42FEE00000; sub.rn.f64 %fd34,%fd15,%fd32;\n"
    "sub.rn.f64 %fd35,%fd34,%fd10; sub.rn.f64 %fd36,%fd33,%fd35; mul.rn.f64 %fd37,%fd36,0dC000000000000000;\n"
    "sqrt.rn.f64 %fd38,%fd37; cvt.u64.u32 %d61,%r48; mul.lo.s64 %d62,%d18,7399867510947840;\n"
    "and.b64 %d63,%d62,9007199252643840; xor.b64 %d64,%d63,%d61; add.s64 %d65,%d64,1125899906842624; shr.u64 %d66,%d65,51;\n"
    "cvt.u32.u64 %r39,%d66; and.b64 %d67,%d65,2251799813685247; add.s64 %d68,%d67,-1125899906842624;\n"
    "cvt.rn.f64.s64 %fd39,%d68; add.rn.f64 %fd40,%fd39,0d3FE0000000000000; mul.rn.f64 %fd41,%fd40,0d3CC921FB54442D18;\n"
    "mul.rn.f64 %fd42,%fd41,%fd41; mul.rn.f64 %fd43,%fd42,0d3DE5D93A5ACFD57C; add.rn.f64 %fd44,%fd43,0dBE5AE5E68A2B9CEB;\n"
    "mul.rn.f64 %fd45,%fd42,%fd44; add.rn.f64 %fd46,%fd45,0d3EC71DE357B1FE7D; mul.rn.f64 %fd47,%fd42,%fd46;\n"
    "add.rn.f64 %fd48,%fd47,0dBF2A01A019C161D5; mul.rn.f64 %fd49,%fd42,%fd48; add.rn.f64 %fd50,%fd49,0d3F8111111110F8A6;\n"
    "mul.rn.f64 %fd51,%fd42,%fd50; add.rn.f64 %fd52,%fd51,0dBFC5555555555549; mul.rn.f64 %fd53,%fd42,%fd52;\n"
    "mul.rn.f64 %fd54,%fd41,%fd53; add.rn.f64 %fd55,%fd41,%fd54; mul.rn.f64 %fd56,%fd42,0dBDA8FAE9BE8838D4;\n"
    "add.rn.f64 %fd57,%fd56,0d3E21EE9EBDB4B1C4; mul.rn.f64 %fd58,%fd42,%fd57; add.rn.f64 %fd59,%fd58,0dBE927E4F809C52AD;\n"
    "mul.rn.f64 %fd60,%fd42,%fd59; add.rn.f64 %fd61,%fd60,0d3EFA01A019CB1590; mul.rn.f64 %fd62,%fd42,%fd61;\n"
    "add.rn.f64 %fd63,%fd62,0dBF56C16C16C15177; mul.rn.f64 %fd64,%fd42,%fd63; add.rn.f64 %fd65,%fd64,0d3FA555555555554C;\n"
    "mul.rn.f64 %fd66,%fd42,%fd65; mul.rn.f64 %fd67,%fd42,%fd66; mul.rn.f64 %fd68,%fd42,0d3FE0000000000000;\n"
    "sub.rn.f64 %fd69,%fd67,%fd68; add.rn.f64 %fd70,%fd69,0d3FF0000000000000; and.b64 %d69,%d66,1; setp.eq.b64 %p8,%d69,1;\n"
    "selp.f64 %fd71,%fd55,%fd70,%p8; selp.f64 %fd72,%fd70,%fd55,%p8; and.b32 %r40,%r39,2; setp.eq.s32 %p9,%r40,0;\n"
    "neg.f64 %fd73,%fd72; selp.f64 %fd74,%fd72,%fd73,%p9; add.s32 %r41,%r39,1; and.b32 %r42,%r41,2;\n"
    "setp.eq.s32 %p10,%r42,0; neg.f64 %fd75,%fd71; selp.f64 %fd76,%fd71,%fd75,%p10; mul.rn.f64 %fd77,%fd74,%fd38;\n"
    "mul.rn.f64 %fd78,%fd77,%fd4; add.rn.f64 %fd1,%fd78,%fd3; mul.rn.f64 %fd79,%fd76,%fd38; mul.rn.f64 %fd80,%fd79,%fd4;\n"
    "add.rn.f64 %fd2,%fd80,%fd3; setp.ge.u64 %p11,%d82,%d79; @%p11 bra L10; bra.uni L9;\n"
    "L10: setp.ge.u64 %p12,%d82,%d29; shl.b64 %d70,%d82,3; add.s64 %d21,%d2,%d70; @%p12 bra L12; st.global.f64 [%d21],%fd1;\n"
    "L12: add.s64 %d71,%d82,%d12; setp.ge.u64 %p13,%d71,%d29; @%p13 bra L14; shl.b64 %d72,%d12,3; add.s64 %d22,%d21,%d72;\n"
    "st.global.f64 [%d22],%fd2; bra.uni L14;\n"
    "L15: ret; }\n", /* 2516 characters */
    0 };
static const char *const ds__ptx_rng_exponential[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_exponential( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .f32 p8, .param .u32 p9 ) { .reg .pred %p<25>; .reg .b16 %h<5>;\n"
    ".reg .b16 %rs<6>; .reg .b32 %r<139>; .reg .f32 %f<154>; .reg .b64 %d<94>; ld.param.u32 %r56,[p9];\n"
    "ld.param.u32 %r55,[p7]; ld.param.u64 %d45,[p5]; ld.param.u64 %d44,[p4]; ld.param.u64 %d41,[p0];\n"
    "ld.param.u64 %d48,[p1]; cvta.to.global.u64 %d1,%d48; setp.gt.u32 %p2,%r55,1; setp.lt.u64 %p3,%d45,4; mov.u64 %d47,0;\n"
    "or.pred %p4,%p3,%p2; mov.u64 %d81,%d47; @%p4 bra L2; setp.eq.s32 %p1,%r56,6; selp.b32 %r1,4,2,%p1; shl.b32 %r57,%r1,2;\n"
    "add.s32 %r58,%r57,-1; selp.b32 %r59,15,%r58,%p1; cvt.u64.u32 %d49,%r59; cvt.u64.u32 %d50,%r1;\n"
    "mul.lo.s64 %d51,%d50,%d44; sub.s64 %d52,%d41,%d51; and.b64 %d53,%d52,%d49; setp.eq.s64 %p6,%d53,0;\n"
    "add.s64 %d54,%d45,-3; selp.b64 %d81,%d54,0,%p6;\n"
    "L2: ld.param.u64 %d46,[p6]; ld.param.u64 %d82,[p3]; ld.param.u64 %d83,[p2]; cvta.to.global.u64 %d56,%d47;\n"
    "setp.eq.s64 %p7,%d1,%d56; @%p7 bra L4; ld.global.u64 %d83,[%d1]; ld.global.u64 %d57,[%d1+8]; shr.u64 %d58,%d57,2;\n"
    "add.s64 %d82,%d58,%d82;\n"
    "L4: mov.u32 %r60,%ctaid.x; mov.u32 %r61,%ntid.x; mov.u32 %r62,%tid.x; mad.lo.s32 %r2,%r60,%r61,%r62;\n"
    "div.u32 %r66,%r2,%r55; cvt.u64.u32 %d85,%r66; setp.ge.u64 %p8,%d85,%d46; @%p8 bra L33; ld.param.f32 %f21,[p8];\n"
    "cvta.to.global.u64 %d2,%d41; mov.u32 %r63,%nctaid.x; mul.lo.s32 %r64,%r63,%r61; mul.lo.s32 %r67,%r66,%r55;\n"
    "sub.s32 %r122,%r2,%r67; div.u32 %r4,%r64,%r55; mul.lo.s32 %r69,%r4,%r55; sub.s32 %r5,%r64,%r69;\n"
    "mul.wide.u32 %d59,%r64,4; cvt.u64.u32 %d60,%r5; mul.lo.s64 %d61,%d60,-3; add.s64 %d10,%d61,%d59;\n"
    "mul.wide.u32 %d62,%r2,4; sub.s64 %d63,%d62,%d44; cvt.u64.u32 %d64,%r122; mul.lo.s64 %d65,%d64,-3;\n"
    "add.s64 %d84,%d63,%d65; cvt.u32.u64 %r6,%d83; shr.u64 %d66,%d83,32; cvt.u32.u64 %r7,%d66; cvt.u64.u32 %d12,%r55;\n"
    "cvt.u64.u32 %d13,%r4; mul.wide.u32 %d14,%r55,3; mul.wide.u32 %d15,%r55,4; mul.wide.u32 %d16,%r55,2;\n"
    "mov.f32 %f22,0f33800000; setp.eq.s32 %p14,%r56,4; setp.ne.s32 %p15,%r56,6; bra.uni L6;\n"
    "L32: setp.lt.u64 %p23,%d85,%d46; @%p23 bra L6; bra.uni L33;\n"
    "L6: add.s64 %d67,%d85,%d82; cvt.u32.u64 %r128,%d67; shr.u64 %d86,%d67,32; mov.u32 %r124,0; mov.u32 %r123,10;\n"
    "mov.u32 %r125,%r122; mov.u32 %r126,%r7; mov.u32 %r127,%r6;\n"
    "L7: mul.wide.u32 %d68,%r128,-766435501; mul.wide.u32 %d21,%r125,-845247145; mul.hi.u32 %r72,%r125,-845247145;\n"
    "cvt.u64.u32 %d69,%r72; xor.b64 %d70,%d86,%d69; cvt.u32.u64 %r73,%d70; xor.b32 %r16,%r127,%r73;\n"
    "mul.hi.u32 %r74,%r128,-766435501; xor.b32 %r75,%r126,%r124; xor.b32 %r125,%r75,%r74; cvt.u32.u64 %r124,%d68;\n"
    "add.s32 %r127,%r127,-1640531527; add.s32 %r126,%r126,-1150833019; add.s32 %r123,%r123,-1; setp.ne.s32 %p9,%r123,0;\n"
    "mov.u64 %d86,%d21; mov.u32 %r128,%r16; @%p9 bra L7; cvt.rn.f32.u32 %f23,%r16; mul.rn.f32 %f24,%f23,0f2F800000;\n"
    "add.rn.f32 %f1,%f24,0f2F000000; setp.ge.f32 %p10,%f1,0f3F7FFFFF; mov.f32 %f150,%f22; @%p10 bra L10; mov.b32 %r76,%f1;\n"
    "add.s32 %r77,%r76,4913933; and.b32 %r78,%r77,8388607; add.s32 %r79,%r78,1060439283; shr.u32 %r80,%r77,23;\n"
    "add.s32 %r81,%r80,-127; cvt.rn.f32.s32 %f25,%r81; mov.b32 %f26,%r79; add.rn.f32 %f27,%f26,0fBF800000;\n"
    "mul.rn.f32 %f28,%f27,%f27; mul.rn.f32 %f29,%f27,0f3D9021BB; add.rn.f32 %f30,%f29,0fBDEBD1B8;\n"
    "mul.rn.f32 %f31,%f27,%f30; add.rn.f32 %f32,%f31,0f3DEF251A; mul.rn.f32 %f33,%f27,%f32;\n"
    "add.rn.f32 %f34,%f33,0fBDFE5D4F; mul.rn.f32 %f35,%f27,%f34; add.rn.f32 %f36,%f35,0f3E11E9BF;\n"
    "mul.rn.f32 %f37,%f27,%f36; add.rn.f32 %f38,%f37,0fBE2AAE50; mul.rn.f32 %f39,%f27,%f38;\n"
    "add.rn.f32 %f40,%f39,0f3E4CCEAC; mul.rn.f32 %f41,%f27,%f40; add.rn.f32 %f42,%f41,0fBE7FFFFC;\n"
    "mul.rn.f32 %f43,%f27,%f42; add.rn.f32 %f44,%f43,0f3EAAAAAA; mul.rn.f32 %f45,%f27,%f44; mul.rn.f32 %f46,%f28,%f45;\n"
    "mul.rn.f32 %f47,%f25,0fB95E8083; add.rn.f32 %f48,%f46,%f47; mul.rn.f32 %f49,%f28,0fBF000000;\n"
    "add.rn.f32 %f50,%f48,%f49; add.rn.f32 %f51,%f27,%f50; mul.rn.f32 %f52,%f25,0f3F318000; add.rn.f32 %f53,%f52,%f51;\n"
    "neg.f32 %f150,%f53;\n", /* 3993 characters */
    "L10: cvt.u32.u64 %r22,%d21; cvt.rn.f32.u32 %f55,%r22; mul.rn.f32 %f56,%f55,0f2F800000; add.rn.f32 %f5,%f56,0f2F000000;\n"
    "setp.ge.f32 %p11,%f5,0f3F7FFFFF; mov.f32 %f151,%f22; @%p11 bra L12; mov.b32 %r82,%f5; add.s32 %r83,%r82,4913933;\n"
    "and.b32 %r84,%r83,8388607; add.s32 %r85,%r84,1060439283; shr.u32 %r86,%r83,23; add.s32 %r87,%r86,-127;\n"
    "cvt.rn.f32.s32 %f57,%r87; mov.b32 %f58,%r85; add.rn.f32 %f59,%f58,0fBF800000; mul.rn.f32 %f60,%f59,%f59;\n"
    "mul.rn.f32 %f61,%f59,0f3D9021BB; add.rn.f32 %f62,%f61,0fBDEBD1B8; mul.rn.f32 %f63,%f59,%f62;\n"
    "add.rn.f32 %f64,%f63,0f3DEF251A; mul.rn.f32 %f65,%f59,%f64; add.rn.f32 %f66,%f65,0fBDFE5D4F;\n"
    "mul.rn.f32 %f67,%f59,%f66; add.rn.f32 %f68,%f67,0f3E11E9BF; mul.rn.f32 %f69,%f59,%f68;\n"
    "add.rn.f32 %f70,%f69,0fBE2AAE50; mul.rn.f32 %f71,%f59,%f70; add.rn.f32 %f72,%f71,0f3E4CCEAC;\n"
    "mul.rn.f32 %f73,%f59,%f72; add.rn.f32 %f74,%f73,0fBE7FFFFC; mul.rn.f32 %f75,%f59,%f74;\n"
    "add.rn.f32 %f76,%f75,0f3EAAAAAA; mul.rn.f32 %f77,%f59,%f76; mul.rn.f32 %f78,%f60,%f77;\n"
    "mul.rn.f32 %f79,%f57,0fB95E8083; add.rn.f32 %f80,%f78,%f79; mul.rn.f32 %f81,%f60,0fBF000000;\n"
    "add.rn.f32 %f82,%f80,%f81; add.rn.f32 %f83,%f59,%f82; mul.rn.f32 %f84,%f57,0f3F318000; add.rn.f32 %f85,%f84,%f83;\n"
    "neg.f32 %f151,%f85;\n"
    "L12: cvt.rn.f32.u32 %f87,%r125; mul.rn.f32 %f88,%f87,0f2F800000; add.rn.f32 %f9,%f88,0f2F000000;\n"
    "setp.ge.f32 %p12,%f9,0f3F7FFFFF; mov.f32 %f152,%f22; @%p12 bra L14; mov.b32 %r88,%f9; add.s32 %r89,%r88,4913933;\n"
    "and.b32 %r90,%r89,8388607; add.s32 %r91,%r90,1060439283; shr.u32 %r92,%r89,23; add.s32 %r93,%r92,-127;\n"
    "cvt.rn.f32.s32 %f89,%r93; mov.b32 %f90,%r91; add.rn.f32 %f91,%f90,0fBF800000; mul.rn.f32 %f92,%f91,%f91;\n"
    "mul.rn.f32 %f93,%f91,0f3D9021BB; add.rn.f32 %f94,%f93,0fBDEBD1B8; mul.rn.f32 %f95,%f91,%f94;\n"
    "add.rn.f32 %f96,%f95,0f3DEF251A; mul.rn.f32 %f97,%f91,%f96; add.rn.f32 %f98,%f97,0fBDFE5D4F;\n"
    "mul.rn.f32 %f99,%f91,%f98; add.rn.f32 %f100,%f99,0f3E11E9BF; mul.rn.f32 %f101,%f91,%f100;\n"
    "add.rn.f32 %f102,%f101,0fBE2AAE50; mul.rn.f32 %f103,%f91,%f102; add.rn.f32 %f104,%f103,0f3E4CCEAC;\n"
    "mul.rn.f32 %f105,%f91,%f104; add.rn.f32 %f106,%f105,0fBE7FFFFC; mul.rn.f32 %f107,%f91,%f106;\n"
    "add.rn.f32 %f108,%f107,0f3EAAAAAA; mul.rn.f32 %f109,%f91,%f108; mul.rn.f32 %f110,%f92,%f109;\n"
    "mul.rn.f32 %f111,%f89,0fB95E8083; add.rn.f32 %f112,%f110,%f111; mul.rn.f32 %f113,%f92,0fBF000000;\n"
    "add.rn.f32 %f114,%f112,%f113; add.rn.f32 %f115,%f91,%f114; mul.rn.f32 %f116,%f89,0f3F318000;\n"
    "add.rn.f32 %f117,%f116,%f115; neg.f32 %f152,%f117;\n"
    "L14: cvt.rn.f32.u32 %f119,%r124; mul.rn.f32 %f120,%f119,0f2F800000; add.rn.f32 %f13,%f120,0f2F000000;\n"
    "setp.ge.f32 %p13,%f13,0f3F7FFFFF; mov.f32 %f153,%f22; @%p13 bra L16; mov.b32 %r94,%f13; add.s32 %r95,%r94,4913933;\n"
    "and.b32 %r96,%r95,8388607; add.s32 %r97,%r96,1060439283; shr.u32 %r98,%r95,23; add.s32 %r99,%r98,-127;\n"
    "cvt.rn.f32.s32 %f121,%r99; mov.b32 %f122,%r97; add.rn.f32 %f123,%f122,0fBF800000; mul.rn.f32 %f124,%f123,%f123;\n"
    "mul.rn.f32 %f125,%f123,0f3D9021BB; add.rn.f32 %f126,%f125,0fBDEBD1B8; mul.rn.f32 %f127,%f123,%f126;\n"
    "add.rn.f32 %f128,%f127,0f3DEF251A; mul.rn.f32 %f129,%f123,%f128; add.rn.f32 %f130,%f129,0fBDFE5D4F;\n"
    "mul.rn.f32 %f131,%f123,%f130; add.rn.f32 %f132,%f131,0f3E11E9BF; mul.rn.f32 %f133,%f123,%f132;\n"
    "add.rn.f32 %f134,%f133,0fBE2AAE50; mul.rn.f32 %f135,%f123,%f134; add.rn.f32 %f136,%f135,0f3E4CCEAC;\n"
    "mul.rn.f32 %f137,%f123,%f136; add.rn.f32 %f138,%f137,0fBE7FFFFC; mul.rn.f32 %f139,%f123,%f138;\n"
    "add.rn.f32 %f140,%f139,0f3EAAAAAA; mul.rn.f32 %f141,%f123,%f140; mul.rn.f32 %f142,%f124,%f141;\n"
    "mul.rn.f32 %f143,%f121,0fB95E8083; add.rn.f32 %f144,%f142,%f143; mul.rn.f32 %f145,%f124,0fBF000000;\n"
    "add.rn.f32 %f146,%f144,%f145; add.rn.f32 %f147,%f123,%f146; mul.rn.f32 %f148,%f121,0f3F318000;\n"
    "add.rn.f32 %f149,%f148,%f147; neg.f32 %f153,%f149;\n"
    "L16: div.rn.f32 %f4,%f150,%f21; div.rn.f32 %f8,%f151,%f21; div.rn.f32 %f12,%f152,%f21; div.rn.f32 %f16,%f153,%f21;\n"
    "setp.lt.u64 %p24,%d84,%d81; @%p14 bra L24; @%p15 bra L23; @%p24 bra L34; bra.uni L19;\n"
    "L34: shl.b64 %d72,%d84,2; add.s64 %d73,%d2,%d72; st.global.v4.f32 [%d73],{%f4,%f8,%f12,%f16}; bra.uni L30;\n", /* 3999 characters */
    "L24: cvt.rn.f16.f32 %h1,%f4; mov.b16 %rs2,%h1; cvt.u32.u16 %r136,%rs2; cvt.rn.f16.f32 %h2,%f8; mov.b16 %rs3,%h2;\n"
    "cvt.u32.u16 %r135,%rs3; cvt.rn.f16.f32 %h3,%f12; mov.b16 %rs4,%h3; cvt.u32.u16 %r134,%rs4; cvt.rn.f16.f32 %h4,%f16;\n"
    "mov.b16 %rs5,%h4; cvt.u32.u16 %r133,%rs5; bra.uni L25;\n"
    "L23: mov.b32 %r101,%f4; bfe.u32 %r102,%r101,16,1; add.s32 %r103,%r101,%r102; add.s32 %r104,%r103,32767;\n"
    "shr.u32 %r136,%r104,16; mov.b32 %r105,%f8; bfe.u32 %r106,%r105,16,1; add.s32 %r107,%r105,%r106;\n"
    "add.s32 %r108,%r107,32767; shr.u32 %r135,%r108,16; mov.b32 %r109,%f12; bfe.u32 %r110,%r109,16,1;\n"
    "add.s32 %r111,%r109,%r110; add.s32 %r112,%r111,32767; shr.u32 %r134,%r112,16; mov.b32 %r113,%f16;\n"
    "bfe.u32 %r114,%r113,16,1; add.s32 %r115,%r113,%r114; add.s32 %r116,%r115,32767; shr.u32 %r133,%r116,16;\n"
    "L25: shl.b32 %r117,%r135,16; or.b32 %r118,%r117,%r136; cvt.u64.u32 %d74,%r118; shl.b32 %r119,%r133,16;\n"
    "or.b32 %r120,%r119,%r134; cvt.u64.u32 %d75,%r120; shl.b64 %d76,%d75,32; or.b64 %d90,%d76,%d74; shl.b64 %d80,%d84,1;\n"
    "@%p24 bra L35; bra.uni L26;\n"
    "L35: add.s64 %d79,%d2,%d80; st.global.u64 [%d79],%d90;\n"
    "L30: add.s64 %d85,%d85,%d13; add.s32 %r122,%r122,%r5; add.s64 %d84,%d10,%d84; setp.lt.u32 %p22,%r122,%r55;\n"
    "@%p22 bra L32; sub.s32 %r122,%r122,%r55; add.s64 %d85,%d85,1; add.s64 %d84,%d84,%d14; bra.uni L32;\n"
    "L26: add.s64 %d89,%d2,%d80; mov.u32 %r137,4; mov.u64 %d91,%d84; bra.uni L27;\n"
    "L29: add.s64 %d91,%d91,%d12; shr.u64 %d90,%d90,16; add.s32 %r137,%r137,-1; add.s64 %d89,%d89,%d16;\n"
    "setp.ne.s32 %p21,%r137,0; @%p21 bra L27; bra.uni L30;\n"
    "L27: setp.ge.u64 %p20,%d91,%d45; @%p20 bra L29; cvt.u16.u64 %rs1,%d90; st.global.u16 [%d89],%rs1; bra.uni L29;\n"
    "L19: mov.b32 %r130,%f4; mov.b32 %r131,%f8; mov.b32 %r132,%f12; mov.b32 %r26,%f16; shl.b64 %d71,%d84,2;\n"
    "add.s64 %d87,%d2,%d71; mov.u32 %r129,4; mov.u64 %d88,%d84; bra.uni L20;\n"
    "L22: add.s64 %d88,%d88,%d12; add.s32 %r129,%r129,-1; add.s64 %d87,%d87,%d15; setp.eq.s32 %p18,%r129,0;\n"
    "mov.u32 %r130,%r131; mov.u32 %r131,%r132; mov.u32 %r132,%r26; @%p18 bra L30;\n"
    "L20: setp.ge.u64 %p17,%d88,%d45; @%p17 bra L22; st.global.u32 [%d87],%r130; bra.uni L22;\n"
    "L33: ret; }\n", /* 2088 characters */
    0 };
static const char *const ds__ptx_rng_exponential64[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_exponential64( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .f64 p8 ) { .reg .pred %p<19>; .reg .b32 %r<50>;\n"
    ".reg .b64 %d<86>; .reg .f64 %fd<39>; ld.param.u32 %r23,[p7]; ld.param.u64 %d36,[p5]; ld.param.u64 %d35,[p4];\n"
    "ld.param.u64 %d32,[p0]; ld.param.u64 %d39,[p1]; cvta.to.global.u64 %d1,%d39; setp.gt.u32 %p2,%r23,1;\n"
    "setp.lt.u64 %p3,%d36,2; mov.u64 %d38,0; or.pred %p4,%p3,%p2; mov.u64 %d78,%d38; @%p4 bra L2; shl.b64 %d40,%d35,3;\n"
    "sub.s64 %d41,%d32,%d40; and.b64 %d42,%d41,15; setp.eq.s64 %p5,%d42,0; add.s64 %d43,%d36,-1; selp.b64 %d78,%d43,0,%p5;\n"
    "L2: ld.param.u64 %d37,[p6]; ld.param.u64 %d79,[p3]; ld.param.u64 %d80,[p2]; cvta.to.global.u64 %d45,%d38;\n"
    "setp.eq.s64 %p6,%d1,%d45; @%p6 bra L4; ld.global.u64 %d80,[%d1]; ld.global.u64 %d46,[%d1+8]; shr.u64 %d47,%d46,2;\n"
    "add.s64 %d79,%d47,%d79;\n"
    "L4: mov.u32 %r24,%ctaid.x; mov.u32 %r25,%ntid.x; mov.u32 %r26,%tid.x; mad.lo.s32 %r1,%r24,%r25,%r26;\n"
    "div.u32 %r30,%r1,%r23; cvt.u64.u32 %d14,%r30; setp.ge.u64 %p7,%d14,%d37; @%p7 bra L19; ld.param.f64 %fd5,[p8];\n"
    "cvta.to.global.u64 %d2,%d32; mov.u32 %r27,%nctaid.x; mul.lo.s32 %r28,%r27,%r25; mul.lo.s32 %r31,%r30,%r23;\n"
    "sub.s32 %r7,%r1,%r31; div.u32 %r3,%r28,%r23; mul.lo.s32 %r33,%r3,%r23; sub.s32 %r4,%r28,%r33;\n"
    "mul.wide.u32 %d48,%r28,2; cvt.u64.u32 %d49,%r4; sub.s64 %d10,%d48,%d49; mul.wide.u32 %d50,%r1,2; cvt.u64.u32 %d51,%r7;\n"
    "add.s64 %d52,%d51,%d35; sub.s64 %d15,%d50,%d52; cvt.u32.u64 %r5,%d80; shr.u64 %d53,%d80,32; cvt.u32.u64 %r6,%d53;\n"
    "cvt.u64.u32 %d12,%r23; cvt.u64.u32 %d13,%r3; mov.pred %p9,-1; mov.f64 %fd6,0d3CA0000000000000; mov.pred %p11,0;\n"
    "bra.uni L6;\n"
    "L13: shl.b64 %d72,%d15,3; add.s64 %d73,%d2,%d72; st.global.v2.u64 [%d73],{%d25,%d84};\n"
    "L18: add.s64 %d74,%d14,%d13; add.s32 %r40,%r7,%r4; add.s64 %d75,%d10,%d15; setp.ge.u32 %p15,%r40,%r23;\n"
    "setp.lt.u32 %p16,%r40,%r23; selp.b32 %r41,0,%r23,%p16; sub.s32 %r7,%r40,%r41; cvt.u64.u32 %d76,%r41;\n"
    "add.s64 %d15,%d75,%d76; selp.u64 %d77,1,0,%p15; add.s64 %d14,%d74,%d77; setp.lt.u64 %p17,%d14,%d37; @%p17 bra L6;\n"
    "bra.uni L19;\n"
    "L6: add.s64 %d54,%d14,%d79; cvt.u32.u64 %r48,%d54; shr.u64 %d83,%d54,32; mov.u32 %r44,0; mov.u32 %r43,10;\n"
    "mov.u32 %r45,%r7; mov.u32 %r46,%r6; mov.u32 %r47,%r5;\n"
    "L7: mul.wide.u32 %d18,%r48,-766435501; mul.wide.u32 %d85,%r45,-845247145; mul.hi.u32 %r36,%r45,-845247145;\n"
    "cvt.u64.u32 %d55,%r36; xor.b64 %d56,%d83,%d55; cvt.u32.u64 %r37,%d56; xor.b32 %r49,%r47,%r37;\n"
    "mul.hi.u32 %r38,%r48,-766435501; xor.b32 %r39,%r46,%r44; xor.b32 %r45,%r39,%r38; cvt.u32.u64 %r44,%d18;\n"
    "add.s32 %r47,%r47,-1640531527; add.s32 %r46,%r46,-1150833019; add.s32 %r43,%r43,-1; setp.ne.s32 %p8,%r43,0;\n"
    "mov.u64 %d83,%d85; mov.u32 %r48,%r49; @%p8 bra L7; mov.u64 %d84,0; mov.pred %p18,%p9; bra.uni L9;\n"
    "L11: div.rn.f64 %fd4,%fd38,%fd5; mov.b64 %d84,%fd4; mov.pred %p18,%p11; mov.u64 %d85,%d18; mov.u32 %r49,%r45;\n"
    "@%p1 bra L9; bra.uni L12;\n"
    "L9: mov.u64 %d25,%d84; mov.pred %p1,%p18; cvt.u64.u32 %d59,%r49; shl.b64 %d60,%d85,21;\n"
    "and.b64 %d61,%d60,9007199252643840; xor.b64 %d62,%d61,%d59; cvt.rn.f64.u64 %fd7,%d62;\n"
    "mul.rn.f64 %fd8,%fd7,0d3CA0000000000000; add.rn.f64 %fd1,%fd8,0d3C90000000000000;\n"
    "setp.ge.f64 %p10,%fd1,0d3FEFFFFFFFFFFFFF; mov.f64 %fd38,%fd6; @%p10 bra L11; mov.b64 %d63,%fd1;\n"
    "add.s64 %d64,%d63,2638147582215219; and.b64 %d65,%d64,4503599627370495; add.s64 %d66,%d65,4604544271217802189;\n"
    "shr.u64 %d67,%d64,52; add.s64 %d68,%d67,-1023; cvt.rn.f64.s64 %fd9,%d68; mov.b64 %fd10,%d66;\n"
    "add.rn.f64 %fd11,%fd10,0dBFF0000000000000; add.rn.f64 %fd12,%fd11,0d4000000000000000; div.rn.f64 %fd13,%fd11,%fd12;\n"
    "mul.rn.f64 %fd14,%fd13,%fd13; mul.rn.f64 %fd15,%fd11,%fd11; mul.rn.f64 %fd16,%fd15,0d3FE0000000000000;\n"
    "mul.rn.f64 %fd17,%fd14,0d3FC2F112DF3E5244; add.rn.f64 %fd18,%fd17,0d3FC39A09D078C69F; mul.rn.f64 %fd19,%fd14,%fd18;\n"
    "add.rn.f64 %fd20,%fd19,0d3FC7466496CB03DE; mul.rn.f64 %fd21,%fd14,%fd20; add.rn.f64 %fd22,%fd21,0d3FCC71C51D8E78AF;\n"
    "mul.rn.f64 %fd23,%fd14,%fd22; add.rn.f64 %fd24,%fd23,0d3FD2492494229359; mul.rn.f64 %fd25,%fd14,%fd24;\n", /* 4056 characters */
    "add.rn.f64 %fd26,%fd25,0d3FD999999997FA04; mul.rn.f64 %fd27,%fd14,%fd26; add.rn.f64 %fd28,%fd27,0d3FE5555555555593;\n"
    "mul.rn.f64 %fd29,%fd14,%fd28; add.rn.f64 %fd30,%fd16,%fd29; mul.rn.f64 %fd31,%fd13,%fd30;\n"
    "mul.rn.f64 %fd32,%fd9,0d3DEA39EF35793C76; add.rn.f64 %fd33,%fd32,%fd31; mul.rn.f64 %fd34,%fd9,0d3FE62E42FEE00000;\n"
    "sub.rn.f64 %fd35,%fd16,%fd33; sub.rn.f64 %fd36,%fd35,%fd11; sub.rn.f64 %fd37,%fd34,%fd36; neg.f64 %fd38,%fd37;\n"
    "bra.uni L11;\n"
    "L12: setp.ge.u64 %p12,%d15,%d78; @%p12 bra L14; bra.uni L13;\n"
    "L14: setp.ge.u64 %p13,%d15,%d36; shl.b64 %d69,%d15,3; add.s64 %d20,%d2,%d69; @%p13 bra L16; st.global.u64 [%d20],%d25;\n"
    "L16: add.s64 %d70,%d15,%d12; setp.ge.u64 %p14,%d70,%d36; @%p14 bra L18; shl.b64 %d71,%d12,3; add.s64 %d21,%d20,%d71;\n"
    "st.global.f64 [%d21],%fd4; bra.uni L18;\n"
    "L19: ret; }\n", /* 793 characters */
    0 };
static const char *const ds__ptx_rng_integers[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_integers( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .u64 p8, .param .u64 p9, .param .u32 p10 ) { .reg .pred %p<29>;\n"
    ".reg .b32 %r<87>; .reg .b64 %d<136>; ld.param.u32 %r42,[p10]; ld.param.u32 %r41,[p7]; ld.param.u64 %d56,[p5];\n"
    "ld.param.u64 %d55,[p4]; ld.param.u64 %d52,[p0]; ld.param.u64 %d61,[p1]; cvta.to.global.u64 %d1,%d61;\n"
    "setp.gt.u32 %p3,%r41,1; setp.lt.u64 %p4,%d56,4; mov.u64 %d60,0; or.pred %p5,%p4,%p3; mov.u64 %d122,%d60; @%p5 bra L2;\n"
    "mov.u32 %r43,1; shl.b32 %r1,%r43,%r42; shl.b32 %r2,%r1,2; setp.gt.u32 %p6,%r2,15; add.s32 %r44,%r2,-1;\n"
    "selp.b32 %r45,15,%r44,%p6; cvt.u64.u32 %d62,%r45; cvt.u64.u32 %d63,%r1; mul.lo.s64 %d64,%d63,%d55;\n"
    "sub.s64 %d65,%d52,%d64; and.b64 %d66,%d65,%d62; setp.eq.s64 %p7,%d66,0; add.s64 %d67,%d56,-3;\n"
    "selp.b64 %d122,%d67,0,%p7;\n"
    "L2: ld.param.u64 %d57,[p6]; ld.param.u64 %d123,[p3]; ld.param.u64 %d124,[p2]; cvta.to.global.u64 %d69,%d60;\n"
    "setp.eq.s64 %p8,%d1,%d69; @%p8 bra L4; ld.global.u64 %d124,[%d1]; ld.global.u64 %d70,[%d1+8]; shr.u64 %d71,%d70,2;\n"
    "add.s64 %d123,%d71,%d123;\n"
    "L4: mov.u32 %r46,%ctaid.x; mov.u32 %r47,%ntid.x; mov.u32 %r48,%tid.x; mad.lo.s32 %r3,%r46,%r47,%r48;\n"
    "div.u32 %r52,%r3,%r41; cvt.u64.u32 %d125,%r52; setp.ge.u64 %p9,%d125,%d57; @%p9 bra L33; ld.param.u64 %d59,[p9];\n"
    "ld.param.u64 %d58,[p8]; cvta.to.global.u64 %d2,%d52; mov.u32 %r49,%nctaid.x; mul.lo.s32 %r50,%r49,%r47;\n"
    "mul.lo.s32 %r53,%r52,%r41; sub.s32 %r73,%r3,%r53; div.u32 %r5,%r50,%r41; mul.lo.s32 %r55,%r5,%r41;\n"
    "sub.s32 %r6,%r50,%r55; mul.wide.u32 %d72,%r50,4; cvt.u64.u32 %d73,%r6; mul.lo.s64 %d74,%d73,-3;\n"
    "add.s64 %d10,%d74,%d72; mul.wide.u32 %d75,%r3,4; sub.s64 %d76,%d75,%d55; cvt.u64.u32 %d77,%r73;\n"
    "mul.lo.s64 %d78,%d77,-3; add.s64 %d126,%d76,%d78; cvt.u32.u64 %r7,%d124; shr.u64 %d79,%d124,32; cvt.u32.u64 %r8,%d79;\n"
    "setp.lt.u64 %p11,%d59,4294967296; and.pred %p1,%p3,%p11; cvt.u64.u32 %d12,%r41; cvt.u32.u64 %r9,%d59;\n"
    "cvt.u64.u32 %d13,%r42; cvt.u64.u32 %d14,%r5; mul.wide.u32 %d15,%r41,3; mul.wide.u32 %d16,%r41,2;\n"
    "mul.wide.u32 %d17,%r41,4; mul.wide.u32 %d18,%r41,8; setp.eq.s32 %p13,%r42,3; setp.eq.s32 %p24,%r42,0;\n"
    "setp.eq.s32 %p25,%r42,2; bra.uni L6;\n"
    "L32: setp.lt.u64 %p27,%d125,%d57; @%p27 bra L6; bra.uni L33;\n"
    "L6: add.s64 %d80,%d125,%d123; cvt.u32.u64 %r79,%d80; shr.u64 %d127,%d80,32; mov.u32 %r20,0; mov.u32 %r74,10;\n"
    "mov.u32 %r76,%r73; mov.u32 %r77,%r8; mov.u32 %r78,%r7;\n"
    "L7: mul.wide.u32 %d23,%r79,-766435501; mul.wide.u32 %d129,%r76,-845247145; mul.hi.u32 %r58,%r76,-845247145;\n"
    "cvt.u64.u32 %d81,%r58; xor.b64 %d82,%d127,%d81; cvt.u32.u64 %r59,%d82; xor.b32 %r82,%r78,%r59;\n"
    "mul.hi.u32 %r60,%r79,-766435501; xor.b32 %r61,%r77,%r20; xor.b32 %r76,%r61,%r60; cvt.u32.u64 %r20,%d23;\n"
    "add.s32 %r78,%r78,-1640531527; add.s32 %r77,%r77,-1150833019; add.s32 %r74,%r74,-1; setp.ne.s32 %p12,%r74,0;\n"
    "mov.u64 %d127,%d129; mov.u32 %r79,%r82; @%p12 bra L7; setp.ge.u64 %p14,%d126,%d122; or.pred %p15,%p13,%p14;\n"
    "@%p15 bra L14; cvt.u64.u32 %d100,%r82; mul.lo.s64 %d101,%d100,%d59; shr.u64 %d102,%d101,32; add.s64 %d25,%d102,%d58;\n"
    "cvt.u32.u64 %r24,%d25; and.b64 %d103,%d129,4294967295; mul.lo.s64 %d104,%d103,%d59; shr.u64 %d105,%d104,32;\n"
    "add.s64 %d26,%d105,%d58; cvt.u32.u64 %r25,%d26; cvt.u64.u32 %d106,%r76; mul.lo.s64 %d107,%d106,%d59;\n"
    "shr.u64 %d108,%d107,32; add.s64 %d27,%d108,%d58; cvt.u32.u64 %r26,%d27; and.b64 %d109,%d23,4294967295;\n"
    "mul.lo.s64 %d110,%d109,%d59; shr.u64 %d111,%d110,32; add.s64 %d28,%d111,%d58; cvt.u32.u64 %r27,%d28;\n"
    "cvt.u32.u64 %r63,%d13; shl.b64 %d112,%d126,%r63; add.s64 %d29,%d2,%d112; @%p24 bra L12; @%p25 bra L11; bra.uni L13;\n"
    "L11: st.global.v4.u32 [%d29],{%r24,%r25,%r26,%r27}; bra.uni L30;\n"
    "L14: @%p14 bra L17; shl.b64 %d91,%d126,3; add.s64 %d128,%d2,%d91; mov.pred %p28,-1;\n"
    "L16: mov.pred %p2,%p28; cvt.u64.u32 %d92,%r82; mul.lo.s64 %d93,%d92,%d59; shr.u64 %d94,%d93,32;\n"
    "add.s64 %d95,%d94,%d58; and.b64 %d96,%d129,4294967295; mul.lo.s64 %d97,%d96,%d59; shr.u64 %d98,%d97,32;\n"
    "add.s64 %d99,%d98,%d58; st.global.v2.u64 [%d128],{%d95,%d99}; add.s64 %d128,%d128,16; mov.pred %p28,0;\n", /* 4090 characters */
    "mov.u32 %r82,%r76; mov.u64 %d129,%d23; @%p2 bra L16; bra.uni L30;\n"
    "L17: cvt.u32.u64 %r83,%d129; shl.b64 %d132,%d126,1; shl.b64 %d131,%d126,2; shl.b64 %d130,%d126,3; mov.u32 %r81,4;\n"
    "mov.u64 %d133,%d126; bra.uni L18;\n"
    "L26: add.s64 %d88,%d2,%d132; st.global.u16 [%d88],%d41;\n"
    "L29: add.s64 %d133,%d133,%d12; add.s32 %r81,%r81,-1; add.s64 %d132,%d132,%d16; add.s64 %d131,%d131,%d17;\n"
    "add.s64 %d130,%d130,%d18; setp.ne.s32 %p21,%r81,0; mov.u32 %r82,%r83; mov.u32 %r83,%r76; mov.u32 %r76,%r20;\n"
    "@%p21 bra L18; bra.uni L30;\n"
    "L18: @!%p1 bra L20; bra.uni L19;\n"
    "L19: rem.u32 %r85,%r82,%r9; bra.uni L21;\n"
    "L20: cvt.u64.u32 %d83,%r82; mul.lo.s64 %d84,%d83,%d59; shr.u64 %d85,%d84,32; cvt.u32.u64 %r85,%d85;\n"
    "L21: setp.ge.u64 %p17,%d133,%d56; @%p17 bra L29; cvt.u64.u32 %d86,%r85; add.s64 %d41,%d86,%d58; @%p25 bra L27;\n"
    "setp.eq.s32 %p19,%r42,1; @%p19 bra L26; setp.ne.s32 %p20,%r42,0; @%p20 bra L28; add.s64 %d89,%d2,%d133;\n"
    "st.global.u8 [%d89],%d41; bra.uni L29;\n"
    "L27: add.s64 %d87,%d2,%d131; st.global.u32 [%d87],%d41; bra.uni L29;\n"
    "L28: add.s64 %d90,%d2,%d130; st.global.u64 [%d90],%d41; bra.uni L29;\n"
    "L12: and.b32 %r64,%r24,255; shl.b32 %r65,%r25,8; and.b32 %r66,%r65,65280; shl.b32 %r67,%r26,16;\n"
    "and.b32 %r68,%r67,16711680; shl.b32 %r69,%r27,24; or.b32 %r70,%r69,%r64; or.b32 %r71,%r70,%r66; or.b32 %r72,%r71,%r68;\n"
    "st.global.u32 [%d29],%r72; bra.uni L30;\n"
    "L13: and.b64 %d113,%d25,65535; and.b64 %d114,%d27,65535; shl.b64 %d115,%d26,16; and.b64 %d116,%d115,4294901760;\n"
    "or.b64 %d117,%d116,%d113; shl.b64 %d118,%d28,48; shl.b64 %d119,%d114,32; or.b64 %d120,%d118,%d119;\n"
    "or.b64 %d121,%d120,%d117; st.global.u64 [%d29],%d121;\n"
    "L30: add.s64 %d125,%d125,%d14; add.s32 %r73,%r73,%r6; add.s64 %d126,%d10,%d126; setp.lt.u32 %p26,%r73,%r41;\n"
    "@%p26 bra L32; sub.s32 %r73,%r73,%r41; add.s64 %d125,%d125,1; add.s64 %d126,%d126,%d15; bra.uni L32;\n"
    "L33: ret; }\n", /* 1818 characters */
    0 };
static const char *const ds__ptx_rng_wide_integers[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_wide_integers( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .u64 p8, .param .u64 p9, .param .u32 p10 ) { .reg .pred %p<26>;\n"
    ".reg .b32 %r<54>; .reg .b64 %d<150>; ld.param.u32 %r24,[p10]; ld.param.u32 %r23,[p7]; ld.param.u64 %d63,[p5];\n"
    "ld.param.u64 %d62,[p4]; ld.param.u64 %d59,[p0]; ld.param.u64 %d68,[p1]; cvta.to.global.u64 %d1,%d68;\n"
    "setp.ne.s32 %p2,%r24,3; mov.u64 %d67,0; mov.u64 %d136,%d67; @%p2 bra L3; setp.gt.u32 %p3,%r23,1;\n"
    "setp.lt.u64 %p4,%d63,2; or.pred %p5,%p4,%p3; mov.u64 %d136,%d67; @%p5 bra L3; shl.b64 %d70,%d62,3;\n"
    "sub.s64 %d71,%d59,%d70; and.b64 %d72,%d71,15; setp.eq.s64 %p6,%d72,0; add.s64 %d73,%d63,-1; selp.b64 %d136,%d73,0,%p6;\n"
    "L3: ld.param.u64 %d64,[p6]; ld.param.u64 %d137,[p3]; ld.param.u64 %d138,[p2]; cvta.to.global.u64 %d75,%d67;\n"
    "setp.eq.s64 %p7,%d1,%d75; @%p7 bra L5; ld.global.u64 %d138,[%d1]; ld.global.u64 %d76,[%d1+8]; shr.u64 %d77,%d76,2;\n"
    "add.s64 %d137,%d77,%d137;\n"
    "L5: mov.u32 %r25,%ctaid.x; mov.u32 %r26,%ntid.x; mov.u32 %r27,%tid.x; mad.lo.s32 %r1,%r25,%r26,%r27;\n"
    "div.u32 %r31,%r1,%r23; cvt.u64.u32 %d139,%r31; setp.ge.u64 %p8,%d139,%d64; @%p8 bra L32; ld.param.u64 %d66,[p9];\n"
    "ld.param.u64 %d65,[p8]; cvta.to.global.u64 %d2,%d59; mov.u32 %r28,%nctaid.x; mul.lo.s32 %r29,%r28,%r26;\n"
    "mul.lo.s32 %r32,%r31,%r23; sub.s32 %r46,%r1,%r32; div.u32 %r3,%r29,%r23; mul.lo.s32 %r34,%r3,%r23;\n"
    "sub.s32 %r4,%r29,%r34; mul.wide.u32 %d78,%r29,2; cvt.u64.u32 %d79,%r4; sub.s64 %d10,%d78,%d79;\n"
    "mul.wide.u32 %d80,%r1,2; cvt.u64.u32 %d81,%r46; add.s64 %d82,%d81,%d62; sub.s64 %d140,%d80,%d82;\n"
    "cvt.u32.u64 %r5,%d138; shr.u64 %d83,%d138,32; cvt.u32.u64 %r6,%d83; cvt.u64.u32 %d12,%r23;\n"
    "and.b64 %d13,%d66,4294967295; shr.u64 %d14,%d66,32; cvt.u64.u32 %d15,%r3; mul.wide.u32 %d16,%r23,2;\n"
    "mul.wide.u32 %d17,%r23,4; mul.wide.u32 %d18,%r23,8; setp.eq.s64 %p20,%d66,0; mov.pred %p11,-1;\n"
    "setp.eq.s32 %p16,%r24,2; setp.eq.s32 %p17,%r24,1; bra.uni L7;\n"
    "L19: add.s64 %d129,%d143,%d65; shl.b64 %d130,%d140,3; add.s64 %d131,%d2,%d130; st.global.v2.u64 [%d131],{%d33,%d129};\n"
    "L31: add.s64 %d132,%d139,%d15; add.s32 %r44,%r46,%r4; add.s64 %d133,%d10,%d140; setp.ge.u32 %p22,%r44,%r23;\n"
    "setp.lt.u32 %p23,%r44,%r23; selp.b32 %r45,0,%r23,%p23; sub.s32 %r46,%r44,%r45; cvt.u64.u32 %d134,%r45;\n"
    "add.s64 %d140,%d133,%d134; selp.u64 %d135,1,0,%p22; add.s64 %d139,%d132,%d135; setp.lt.u64 %p24,%d139,%d64;\n"
    "@%p24 bra L7; bra.uni L32;\n"
    "L7: add.s64 %d84,%d139,%d137; cvt.u32.u64 %r52,%d84; shr.u64 %d141,%d84,32; mov.u32 %r48,0; mov.u32 %r47,10;\n"
    "mov.u32 %r49,%r46; mov.u32 %r50,%r6; mov.u32 %r51,%r5;\n"
    "L8: mul.wide.u32 %d23,%r52,-766435501; mul.wide.u32 %d148,%r49,-845247145; mul.hi.u32 %r37,%r49,-845247145;\n"
    "cvt.u64.u32 %d85,%r37; xor.b64 %d86,%d141,%d85; cvt.u32.u64 %r38,%d86; xor.b32 %r53,%r51,%r38;\n"
    "mul.hi.u32 %r39,%r52,-766435501; xor.b32 %r40,%r50,%r48; xor.b32 %r49,%r40,%r39; cvt.u32.u64 %r48,%d23;\n"
    "add.s32 %r51,%r51,-1640531527; add.s32 %r50,%r50,-1150833019; add.s32 %r47,%r47,-1; setp.ne.s32 %p9,%r47,0;\n"
    "mov.u64 %d141,%d148; mov.u32 %r52,%r53; @%p9 bra L8; setp.lt.u64 %p10,%d140,%d136; @%p10 bra L15; bra.uni L10;\n"
    "L15: cvt.u64.u32 %d28,%r53; shl.b64 %d105,%d28,32; and.b64 %d29,%d148,4294967295; or.b64 %d142,%d105,%d29;\n"
    "@%p20 bra L17; mul.lo.s64 %d106,%d13,%d28; mul.lo.s64 %d107,%d13,%d29; shr.u64 %d108,%d107,32;\n"
    "add.s64 %d109,%d108,%d106; mul.lo.s64 %d110,%d14,%d29; and.b64 %d111,%d109,4294967295; add.s64 %d112,%d111,%d110;\n"
    "mul.lo.s64 %d113,%d14,%d28; shr.u64 %d114,%d109,32; add.s64 %d115,%d114,%d113; shr.u64 %d116,%d112,32;\n"
    "add.s64 %d142,%d115,%d116;\n"
    "L17: add.s64 %d33,%d142,%d65; cvt.u64.u32 %d35,%r49; shl.b64 %d117,%d35,32; and.b64 %d36,%d23,4294967295;\n"
    "or.b64 %d143,%d117,%d36; @%p20 bra L19; mul.lo.s64 %d118,%d13,%d35; mul.lo.s64 %d119,%d13,%d36;\n"
    "shr.u64 %d120,%d119,32; add.s64 %d121,%d120,%d118; mul.lo.s64 %d122,%d14,%d36; and.b64 %d123,%d121,4294967295;\n"
    "add.s64 %d124,%d123,%d122; mul.lo.s64 %d125,%d14,%d35; shr.u64 %d126,%d121,32; add.s64 %d127,%d126,%d125;\n", /* 4033 characters */
    "shr.u64 %d128,%d124,32; add.s64 %d143,%d127,%d128; bra.uni L19;\n"
    "L10: shl.b64 %d146,%d140,1; shl.b64 %d145,%d140,2; shl.b64 %d144,%d140,3; mov.pred %p25,%p11; mov.u64 %d147,%d140;\n"
    "bra.uni L11;\n"
    "L27: add.s64 %d102,%d2,%d146; st.global.u16 [%d102],%d52;\n"
    "L30: add.s64 %d147,%d147,%d12; add.s64 %d146,%d146,%d16; add.s64 %d145,%d145,%d17; add.s64 %d144,%d144,%d18;\n"
    "mov.pred %p25,0; mov.u32 %r53,%r49; mov.u64 %d148,%d23; @%p1 bra L11; bra.uni L31;\n"
    "L11: mov.pred %p1,%p25; cvt.u64.u32 %d45,%r53; shl.b64 %d87,%d45,32; and.b64 %d46,%d148,4294967295;\n"
    "or.b64 %d149,%d87,%d46; @%p20 bra L22; setp.lt.u32 %p13,%r23,2; @%p13 bra L21; bra.uni L13;\n"
    "L21: mul.lo.s64 %d90,%d13,%d45; mul.lo.s64 %d91,%d13,%d46; shr.u64 %d92,%d91,32; add.s64 %d93,%d92,%d90;\n"
    "mul.lo.s64 %d94,%d14,%d46; and.b64 %d95,%d93,4294967295; add.s64 %d96,%d95,%d94; mul.lo.s64 %d97,%d14,%d45;\n"
    "shr.u64 %d98,%d93,32; add.s64 %d99,%d98,%d97; shr.u64 %d100,%d96,32; add.s64 %d149,%d99,%d100; bra.uni L22;\n"
    "L13: or.b64 %d88,%d149,%d66; and.b64 %d89,%d88,-4294967296; setp.ne.s64 %p14,%d89,0; @%p14 bra L20; bra.uni L14;\n"
    "L20: rem.u64 %d149,%d149,%d66; bra.uni L22;\n"
    "L14: cvt.u32.u64 %r41,%d66; cvt.u32.u64 %r42,%d149; rem.u32 %r43,%r42,%r41; cvt.u64.u32 %d149,%r43;\n"
    "L22: setp.ge.u64 %p15,%d147,%d63; @%p15 bra L30; add.s64 %d52,%d149,%d65; @%p16 bra L28; @%p17 bra L27;\n"
    "setp.ne.s32 %p18,%r24,0; @%p18 bra L29; add.s64 %d103,%d2,%d147; st.global.u8 [%d103],%d52; bra.uni L30;\n"
    "L28: add.s64 %d101,%d2,%d145; st.global.u32 [%d101],%d52; bra.uni L30;\n"
    "L29: add.s64 %d104,%d2,%d144; st.global.u64 [%d104],%d52; bra.uni L30;\n"
    "L32: ret; }\n", /* 1575 characters */
    0 };
static const char *const ds__ptx_rng_bernoulli[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_bernoulli( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .u64 p8, .param .u64 p9, .param .u32 p10 ) { .reg .pred %p<26>;\n"
    ".reg .b32 %r<87>; .reg .b64 %d<101>; ld.param.u32 %r38,[p10]; ld.param.u32 %r37,[p7]; ld.param.u64 %d48,[p5];\n"
    "ld.param.u64 %d47,[p4]; ld.param.u64 %d44,[p0]; ld.param.u64 %d53,[p1]; cvta.to.global.u64 %d1,%d53;\n"
    "setp.gt.u32 %p1,%r37,1; setp.lt.u64 %p2,%d48,4; mov.u64 %d52,0; or.pred %p3,%p2,%p1; mov.u64 %d89,%d52; @%p3 bra L2;\n"
    "mov.u32 %r39,1; shl.b32 %r1,%r39,%r38; shl.b32 %r2,%r1,2; setp.gt.u32 %p4,%r2,15; add.s32 %r40,%r2,-1;\n"
    "selp.b32 %r41,15,%r40,%p4; cvt.u64.u32 %d54,%r41; cvt.u64.u32 %d55,%r1; mul.lo.s64 %d56,%d55,%d47;\n"
    "sub.s64 %d57,%d44,%d56; and.b64 %d58,%d57,%d54; setp.eq.s64 %p5,%d58,0; add.s64 %d59,%d48,-3;\n"
    "selp.b64 %d89,%d59,0,%p5;\n"
    "L2: ld.param.u64 %d49,[p6]; ld.param.u64 %d90,[p3]; ld.param.u64 %d91,[p2]; cvta.to.global.u64 %d61,%d52;\n"
    "setp.eq.s64 %p6,%d1,%d61; @%p6 bra L4; ld.global.u64 %d91,[%d1]; ld.global.u64 %d62,[%d1+8]; shr.u64 %d63,%d62,2;\n"
    "add.s64 %d90,%d63,%d90;\n"
    "L4: mov.u32 %r42,%ctaid.x; mov.u32 %r43,%ntid.x; mov.u32 %r44,%tid.x; mad.lo.s32 %r3,%r42,%r43,%r44;\n"
    "div.u32 %r48,%r3,%r37; cvt.u64.u32 %d92,%r48; setp.ge.u64 %p7,%d92,%d49; @%p7 bra L27; ld.param.u64 %d51,[p9];\n"
    "ld.param.u64 %d50,[p8]; cvta.to.global.u64 %d2,%d44; mov.u32 %r45,%nctaid.x; mul.lo.s32 %r46,%r45,%r43;\n"
    "mul.lo.s32 %r49,%r48,%r37; sub.s32 %r75,%r3,%r49; div.u32 %r5,%r46,%r37; mul.lo.s32 %r51,%r5,%r37;\n"
    "sub.s32 %r6,%r46,%r51; mul.wide.u32 %d64,%r46,4; cvt.u64.u32 %d65,%r6; mul.lo.s64 %d66,%d65,-3;\n"
    "add.s64 %d10,%d66,%d64; mul.wide.u32 %d67,%r3,4; sub.s64 %d68,%d67,%d47; cvt.u64.u32 %d69,%r75;\n"
    "mul.lo.s64 %d70,%d69,-3; add.s64 %d93,%d68,%d70; cvt.u32.u64 %r7,%d91; shr.u64 %d71,%d91,32; cvt.u32.u64 %r8,%d71;\n"
    "cvt.u64.u32 %d12,%r37; cvt.u32.u64 %r9,%d50; cvt.u64.u32 %d13,%r38; cvt.u64.u32 %d14,%r5; mul.wide.u32 %d15,%r37,3;\n"
    "mul.wide.u32 %d16,%r37,2; mul.wide.u32 %d17,%r37,4; mul.wide.u32 %d18,%r37,8; setp.eq.s32 %p9,%r38,3;\n"
    "setp.eq.s32 %p22,%r38,0; setp.eq.s32 %p23,%r38,2; setp.eq.s32 %p15,%r38,1; bra.uni L6;\n"
    "L26: setp.lt.u64 %p25,%d92,%d49; @%p25 bra L6; bra.uni L27;\n"
    "L6: add.s64 %d72,%d92,%d90; cvt.u32.u64 %r81,%d72; shr.u64 %d94,%d72,32; mov.u32 %r77,0; mov.u32 %r76,10;\n"
    "mov.u32 %r78,%r75; mov.u32 %r79,%r8; mov.u32 %r80,%r7;\n"
    "L7: mul.wide.u32 %d23,%r81,-766435501; mul.wide.u32 %d24,%r78,-845247145; mul.hi.u32 %r54,%r78,-845247145;\n"
    "cvt.u64.u32 %d73,%r54; xor.b64 %d74,%d94,%d73; cvt.u32.u64 %r55,%d74; xor.b32 %r83,%r80,%r55;\n"
    "mul.hi.u32 %r56,%r81,-766435501; xor.b32 %r57,%r79,%r77; xor.b32 %r78,%r57,%r56; cvt.u32.u64 %r77,%d23;\n"
    "add.s32 %r80,%r80,-1640531527; add.s32 %r79,%r79,-1150833019; add.s32 %r76,%r76,-1; setp.ne.s32 %p8,%r76,0;\n"
    "mov.u64 %d94,%d24; mov.u32 %r81,%r83; @%p8 bra L7; setp.ge.u64 %p10,%d93,%d89; or.pred %p11,%p9,%p10; @%p11 bra L14;\n"
    "cvt.u64.u32 %d80,%r83; setp.lt.u64 %p18,%d80,%d51; selp.b32 %r24,%r9,0,%p18; and.b64 %d81,%d24,4294967295;\n"
    "setp.lt.u64 %p19,%d81,%d51; selp.b32 %r25,%r9,0,%p19; cvt.u64.u32 %d82,%r78; setp.lt.u64 %p20,%d82,%d51;\n"
    "selp.b32 %r26,%r9,0,%p20; and.b64 %d83,%d23,4294967295; setp.lt.u64 %p21,%d83,%d51; selp.b32 %r27,%r9,0,%p21;\n"
    "cvt.u32.u64 %r59,%d13; shl.b64 %d84,%d93,%r59; add.s64 %d25,%d2,%d84; @%p22 bra L12; @%p23 bra L11; bra.uni L13;\n"
    "L11: st.global.v4.u32 [%d25],{%r24,%r25,%r26,%r27}; bra.uni L24;\n"
    "L14: cvt.u32.u64 %r84,%d24; shl.b64 %d97,%d93,1; shl.b64 %d96,%d93,2; shl.b64 %d95,%d93,3; mov.u32 %r82,4;\n"
    "mov.u64 %d98,%d93; bra.uni L15;\n"
    "L20: add.s64 %d77,%d2,%d97; st.global.u16 [%d77],%d33;\n"
    "L23: add.s64 %d98,%d98,%d12; add.s32 %r82,%r82,-1; add.s64 %d97,%d97,%d16; add.s64 %d96,%d96,%d17;\n"
    "add.s64 %d95,%d95,%d18; setp.ne.s32 %p17,%r82,0; mov.u32 %r83,%r84; mov.u32 %r84,%r78; mov.u32 %r78,%r77;\n"
    "@%p17 bra L15; bra.uni L24;\n"
    "L15: setp.ge.u64 %p13,%d98,%d48; @%p13 bra L23; cvt.u64.u32 %d75,%r83; setp.lt.u64 %p12,%d75,%d51;\n"
    "selp.b64 %d33,%d50,0,%p12; @%p23 bra L21; @%p15 bra L20; setp.ne.s32 %p16,%r38,0; @%p16 bra L22;\n", /* 4073 characters */
    "add.s64 %d78,%d2,%d98; st.global.u8 [%d78],%d33; bra.uni L23;\n"
    "L21: add.s64 %d76,%d2,%d96; st.global.u32 [%d76],%d33; bra.uni L23;\n"
    "L22: add.s64 %d79,%d2,%d95; st.global.u64 [%d79],%d33; bra.uni L23;\n"
    "L12: and.b32 %r60,%r24,255; shl.b32 %r61,%r25,8; and.b32 %r62,%r61,65280; shl.b32 %r63,%r26,16;\n"
    "and.b32 %r64,%r63,16711680; shl.b32 %r65,%r27,24; or.b32 %r66,%r65,%r60; or.b32 %r67,%r66,%r62; or.b32 %r68,%r67,%r64;\n"
    "st.global.u32 [%d25],%r68; bra.uni L24;\n"
    "L13: and.b32 %r69,%r24,65535; and.b32 %r70,%r26,65535; shl.b32 %r71,%r25,16; or.b32 %r72,%r71,%r69;\n"
    "cvt.u64.u32 %d85,%r72; shl.b32 %r73,%r27,16; or.b32 %r74,%r73,%r70; cvt.u64.u32 %d86,%r74; shl.b64 %d87,%d86,32;\n"
    "or.b64 %d88,%d87,%d85; st.global.u64 [%d25],%d88;\n"
    "L24: add.s64 %d92,%d92,%d14; add.s32 %r75,%r75,%r6; add.s64 %d93,%d10,%d93; setp.lt.u32 %p24,%r75,%r37; @%p24 bra L26;\n"
    "sub.s32 %r75,%r75,%r37; add.s64 %d92,%d92,1; add.s64 %d93,%d93,%d15; bra.uni L26;\n"
    "L27: ret; }\n", /* 929 characters */
    0 };
static const char ds__ptx_rng_state[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_state( .param .u64 p0, .param .u64 p1, .param .u64 p2 ) { .reg .pred %p<2>; .reg .b32 %r<6>;\n"
    ".reg .b64 %d<5>; mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mul.lo.s32 %r3,%r1,%r2; mov.u32 %r4,%tid.x;\n"
    "neg.s32 %r5,%r4; setp.ne.s32 %p1,%r3,%r5; @%p1 bra L2; ld.param.u64 %d3,[p2]; ld.param.u64 %d2,[p1];\n"
    "ld.param.u64 %d4,[p0]; cvta.to.global.u64 %d1,%d4; st.global.u64 [%d1],%d2; st.global.u64 [%d1+8],%d3;\n"
    "L2: ret; }\n"; /* 480 characters */
static const char *const ds__ptx_rng_permutation[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__rng_permutation( .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4,\n"
    ".param .u64 p5, .param .u64 p6, .param .u32 p7, .param .u64 p8, .param .u64 p9, .param .u32 p10 ) { .reg .pred %p<26>;\n"
    ".reg .b32 %r<180>; .reg .b64 %d<98>; ld.param.u32 %r69,[p7]; ld.param.u64 %d37,[p6]; ld.param.u64 %d88,[p3];\n"
    "ld.param.u64 %d89,[p2]; ld.param.u64 %d41,[p1]; cvta.to.global.u64 %d1,%d41; mov.u64 %d42,0;\n"
    "cvta.to.global.u64 %d43,%d42; setp.eq.s64 %p1,%d1,%d43; @%p1 bra L2; ld.global.u64 %d89,[%d1];\n"
    "ld.global.u64 %d44,[%d1+8]; shr.u64 %d45,%d44,2; add.s64 %d88,%d45,%d88;\n"
    "L2: mov.u32 %r71,%ctaid.x; mov.u32 %r72,%ntid.x; mov.u32 %r73,%tid.x; mad.lo.s32 %r74,%r71,%r72,%r73;\n"
    "div.u32 %r77,%r74,%r69; cvt.u64.u32 %d90,%r77; setp.ge.u64 %p2,%d90,%d37; @%p2 bra L27; ld.param.u64 %d40,[p0];\n"
    "ld.param.u32 %r70,[p10]; ld.param.u64 %d39,[p9]; ld.param.u64 %d38,[p8]; ld.param.u64 %d36,[p5];\n"
    "ld.param.u64 %d35,[p4]; cvta.to.global.u64 %d2,%d40; mov.u32 %r75,%nctaid.x; mul.lo.s32 %r76,%r75,%r72;\n"
    "div.u32 %r2,%r76,%r69; mul.lo.s32 %r79,%r2,%r69; sub.s32 %r3,%r76,%r79; cvt.u32.u64 %r80,%d90;\n"
    "mul.lo.s32 %r81,%r80,%r69; sub.s32 %r154,%r74,%r81; cvt.u32.u64 %r5,%d89; shr.u64 %d46,%d89,32; cvt.u32.u64 %r6,%d46;\n"
    "cvt.u32.u64 %r7,%d88; shr.u64 %d8,%d88,32; cvt.u32.u64 %r82,%d38; shr.u32 %r83,%r82,1; cvt.u64.u32 %d9,%r83;\n"
    "mov.u32 %r84,-1; shl.b32 %r85,%r84,%r83; not.b32 %r8,%r85; sub.s32 %r86,%r83,%r82; add.s32 %r9,%r86,32;\n"
    "mov.u32 %r87,32; sub.s32 %r10,%r87,%r83; cvt.u64.u32 %d10,%r2; setp.eq.s64 %p3,%d38,0; setp.eq.s64 %p9,%d39,0;\n"
    "setp.eq.s32 %p20,%r70,2; setp.eq.s32 %p21,%r70,1; bra.uni L4;\n"
    "L23: shl.b64 %d81,%d90,1; add.s64 %d82,%d2,%d81; st.global.u16 [%d82],%d97;\n"
    "L26: add.s64 %d86,%d90,%d10; add.s32 %r150,%r154,%r3; setp.lt.u32 %p23,%r150,%r69; setp.ge.u32 %p24,%r150,%r69;\n"
    "selp.u64 %d87,1,0,%p24; add.s64 %d90,%d86,%d87; selp.b32 %r151,0,%r69,%p23; sub.s32 %r154,%r150,%r151;\n"
    "setp.lt.u64 %p25,%d90,%d37; @%p25 bra L4; bra.uni L27;\n"
    "L4: add.s64 %d12,%d90,%d35; @%p3 bra L11; mov.u32 %r156,0; mov.u32 %r155,10; mov.u32 %r157,%r156; mov.u32 %r158,%r6;\n"
    "mov.u32 %r159,%r5; mov.u64 %d91,%d8; mov.u32 %r160,%r7;\n"
    "L6: mov.u32 %r17,%r160; mul.wide.u32 %d47,%r17,-766435501; mul.wide.u32 %d14,%r157,-845247145;\n"
    "mul.hi.u32 %r90,%r157,-845247145; cvt.u64.u32 %d48,%r90; xor.b64 %d49,%d91,%d48; cvt.u32.u64 %r91,%d49;\n"
    "xor.b32 %r160,%r159,%r91; mul.hi.u32 %r92,%r17,-766435501; xor.b32 %r93,%r158,%r156; xor.b32 %r157,%r93,%r92;\n"
    "cvt.u32.u64 %r156,%d47; add.s32 %r159,%r159,-1640531527; add.s32 %r158,%r158,-1150833019; add.s32 %r155,%r155,-1;\n"
    "setp.ne.s32 %p4,%r155,0; mov.u64 %d91,%d14; @%p4 bra L6; cvt.u32.u64 %r24,%d14; setp.lt.u64 %p5,%d12,2;\n"
    "xor.b32 %r94,%r160,%r24; xor.b32 %r95,%r94,%r156; xor.b32 %r96,%r95,%r157; and.b32 %r97,%r96,1; cvt.u64.u32 %d50,%r97;\n"
    "selp.b64 %d51,%d50,0,%p5; xor.b64 %d97,%d51,%d12; mul.lo.s32 %r25,%r17,-766435501;\n"
    "L8: cvt.u32.u64 %r99,%d9; shr.u64 %d52,%d97,%r99; cvt.u32.u64 %r167,%d52; cvt.u32.u64 %r100,%d97;\n"
    "and.b32 %r166,%r100,%r8; mov.u32 %r165,6; mov.u32 %r161,%r160; mov.u32 %r162,%r24; mov.u32 %r163,%r157;\n"
    "mov.u32 %r164,%r25;\n"
    "L9: xor.b32 %r101,%r161,%r166; mul.lo.s32 %r102,%r101,-766435501; shr.u32 %r103,%r102,15; xor.b32 %r104,%r103,%r102;\n"
    "mul.lo.s32 %r105,%r104,-845247145; shr.u32 %r106,%r105,16; xor.b32 %r107,%r106,%r105; shr.u32 %r108,%r107,%r9;\n"
    "xor.b32 %r109,%r108,%r167; xor.b32 %r110,%r109,%r162; mul.lo.s32 %r111,%r110,-766435501; shr.u32 %r112,%r111,15;\n"
    "xor.b32 %r113,%r112,%r111; mul.lo.s32 %r114,%r113,-845247145; shr.u32 %r115,%r114,16; xor.b32 %r116,%r115,%r114;\n"
    "shr.u32 %r117,%r116,%r10; xor.b32 %r118,%r117,%r166; xor.b32 %r119,%r118,%r163; mul.lo.s32 %r120,%r119,-766435501;\n"
    "shr.u32 %r121,%r120,15; xor.b32 %r122,%r121,%r120; mul.lo.s32 %r123,%r122,-845247145; shr.u32 %r124,%r123,16;\n"
    "xor.b32 %r125,%r124,%r123; shr.u32 %r126,%r125,%r9; xor.b32 %r167,%r126,%r109; xor.b32 %r127,%r167,%r164;\n"
    "mul.lo.s32 %r128,%r127,-766435501; shr.u32 %r129,%r128,15; xor.b32 %r130,%r129,%r128;\n", /* 4005 characters */
    "mul.lo.s32 %r131,%r130,-845247145; shr.u32 %r132,%r131,16; xor.b32 %r133,%r132,%r131; shr.u32 %r134,%r133,%r10;\n"
    "xor.b32 %r166,%r134,%r118; add.s32 %r165,%r165,-1; add.s32 %r164,%r164,-1640531527; add.s32 %r163,%r163,-1640531527;\n"
    "add.s32 %r162,%r162,-1640531527; add.s32 %r161,%r161,-1640531527; setp.eq.s32 %p6,%r165,0; @%p6 bra L10; bra.uni L9;\n"
    "L10: cvt.u64.u32 %d53,%r167; shl.b64 %d54,%d53,%r99; cvt.u64.u32 %d55,%r166; or.b64 %d97,%d54,%d55;\n"
    "setp.lt.u64 %p7,%d97,%d39; @%p7 bra L18; bra.uni L8;\n"
    "L11: shr.u64 %d56,%d12,1; add.s64 %d57,%d56,%d88; cvt.u32.u64 %r173,%d57; shr.u64 %d93,%d57,32; mov.u32 %r169,0;\n"
    "mov.u32 %r168,10; mov.u32 %r170,%r169; mov.u32 %r171,%r6; mov.u32 %r172,%r5;\n"
    "L12: mul.wide.u32 %d20,%r173,-766435501; mul.wide.u32 %d21,%r170,-845247145; mul.hi.u32 %r138,%r170,-845247145;\n"
    "cvt.u64.u32 %d58,%r138; xor.b64 %d59,%d93,%d58; cvt.u32.u64 %r139,%d59; xor.b32 %r49,%r172,%r139;\n"
    "mul.hi.u32 %r140,%r173,-766435501; xor.b32 %r141,%r171,%r169; xor.b32 %r170,%r141,%r140; cvt.u32.u64 %r169,%d20;\n"
    "add.s32 %r172,%r172,-1640531527; add.s32 %r171,%r171,-1150833019; add.s32 %r168,%r168,-1; setp.ne.s32 %p8,%r168,0;\n"
    "mov.u64 %d93,%d21; mov.u32 %r173,%r49; @%p8 bra L12; mov.u64 %d97,%d42; @%p9 bra L18; and.b64 %d61,%d12,1;\n"
    "setp.eq.b64 %p10,%d61,1; selp.b32 %r142,%r170,%r49,%p10; selp.b64 %d62,%d20,%d21,%p10; cvt.u64.u32 %d63,%r142;\n"
    "shl.b64 %d64,%d63,32; and.b64 %d65,%d62,4294967295; or.b64 %d22,%d64,%d65; mov.u64 %d94,0; mov.u64 %d97,%d94;\n"
    "L15: shr.u64 %d67,%d94,1; add.s64 %d68,%d67,%d88; cvt.u32.u64 %r179,%d68; shr.u64 %d96,%d68,32; mov.u32 %r175,0;\n"
    "mov.u32 %r174,10; mov.u32 %r176,%r175; mov.u32 %r177,%r6; mov.u32 %r178,%r5;\n"
    "L16: mul.wide.u32 %d27,%r179,-766435501; mul.wide.u32 %d28,%r176,-845247145; mul.hi.u32 %r145,%r176,-845247145;\n"
    "cvt.u64.u32 %d69,%r145; xor.b64 %d70,%d96,%d69; cvt.u32.u64 %r146,%d70; xor.b32 %r62,%r178,%r146;\n"
    "mul.hi.u32 %r147,%r179,-766435501; xor.b32 %r148,%r177,%r175; xor.b32 %r176,%r148,%r147; cvt.u32.u64 %r175,%d27;\n"
    "add.s32 %r178,%r178,-1640531527; add.s32 %r177,%r177,-1150833019; add.s32 %r174,%r174,-1; setp.ne.s32 %p11,%r174,0;\n"
    "mov.u64 %d96,%d28; mov.u32 %r179,%r62; @%p11 bra L16; and.b64 %d71,%d94,1; setp.eq.b64 %p12,%d71,1;\n"
    "selp.b32 %r149,%r176,%r62,%p12; selp.b64 %d72,%d27,%d28,%p12; cvt.u64.u32 %d73,%r149; shl.b64 %d74,%d73,32;\n"
    "and.b64 %d75,%d72,4294967295; or.b64 %d76,%d74,%d75; setp.lt.u64 %p13,%d76,%d22; setp.eq.s64 %p14,%d76,%d22;\n"
    "setp.gt.u64 %p15,%d12,%d94; and.pred %p16,%p15,%p14; or.pred %p17,%p13,%p16; selp.u64 %d77,1,0,%p17;\n"
    "add.s64 %d97,%d97,%d77; add.s64 %d78,%d94,1; and.b64 %d94,%d78,4294967295; setp.lt.u64 %p18,%d94,%d39; @%p18 bra L15;\n"
    "L18: setp.ge.u64 %p19,%d90,%d36; @%p19 bra L26; @%p20 bra L24; @%p21 bra L23; setp.ne.s32 %p22,%r70,0; @%p22 bra L25;\n"
    "add.s64 %d83,%d2,%d90; st.global.u8 [%d83],%d97; bra.uni L26;\n"
    "L24: shl.b64 %d79,%d90,2; add.s64 %d80,%d2,%d79; st.global.u32 [%d80],%d97; bra.uni L26;\n"
    "L25: shl.b64 %d84,%d90,3; add.s64 %d85,%d2,%d84; st.global.u64 [%d85],%d97; bra.uni L26;\n"
    "L27: ret; }\n", /* 2990 characters */
    0 };
/* <<device-code kernels/rng.cu */

/* rng/kernel.h - table of the generators' kernels.

   Lists the kernels for fills and for the state of a graph's fills (ds__rng_forms): name, entry
   point, CPU form, parameters, and PTX. ds__rng_kernel (rng/fill_types.h) creates a kernel from
   an entry at its first use. DS__RNG_STATE and the following numbers are the indices.

   Invariants: a parameter list has the parameters of the CUDA form, in its order. An entry has
   its PTX either in one text or in pieces.
   Locks: none.
   Threads: the table is constant. ds__rng_state_items runs on the threads of the CPU driver's
   operations. */

enum {
    DS__RNG_STATE,
    DS__RNG_UNIFORM32,
    DS__RNG_UNIFORMS,
    DS__RNG_UNIFORM64,
    DS__RNG_NORMALS,
    DS__RNG_NORMAL64,
    DS__RNG_EXPONENTIALS,
    DS__RNG_EXPONENTIAL64,
    DS__RNG_ONE_WORD,
    DS__RNG_TWO_WORDS,
    DS__RNG_ONE_OR_ZERO,
    DS__RNG_ORDER,
    DS__RNG_KERNELS
};

#define DS__RNG_PARAM(kind, member) \
    { DS_PARAM_##kind, offsetof(ds__rng_args, member), sizeof(((ds__rng_args *)0)->member) }
#define DS__RNG_OPERANDS                                                                        \
    DS__RNG_PARAM(WRITE, out), DS__RNG_PARAM(READ, state), DS__RNG_PARAM(VALUE, seed),          \
        DS__RNG_PARAM(VALUE, start), DS__RNG_PARAM(VALUE, before), DS__RNG_PARAM(VALUE, count), \
        DS__RNG_PARAM(VALUE, rows), DS__RNG_PARAM(VALUE, stride)
static const ds_param ds__rng_state_params[] = { DS__RNG_PARAM(WRITE, out),
                                                 DS__RNG_PARAM(VALUE, seed),
                                                 DS__RNG_PARAM(VALUE, start) };
static const ds_param ds__rng_uniform32_params[] = { DS__RNG_OPERANDS, DS__RNG_PARAM(VALUE, from32),
                                                     DS__RNG_PARAM(VALUE, to32) };
static const ds_param ds__rng_uniform_params[] = { DS__RNG_OPERANDS,
                                                   DS__RNG_PARAM(VALUE, from32),
                                                   DS__RNG_PARAM(VALUE, scale32),
                                                   DS__RNG_PARAM(VALUE, from_bits),
                                                   DS__RNG_PARAM(VALUE, to_bits),
                                                   DS__RNG_PARAM(VALUE, kind) };
static const ds_param ds__rng_normal_params[] = { DS__RNG_OPERANDS, DS__RNG_PARAM(VALUE, from32),
                                                  DS__RNG_PARAM(VALUE, to32),
                                                  DS__RNG_PARAM(VALUE, kind) };
static const ds_param ds__rng_exponential_params[] = { DS__RNG_OPERANDS,
                                                       DS__RNG_PARAM(VALUE, from32),
                                                       DS__RNG_PARAM(VALUE, kind) };
static const ds_param ds__rng_exponential64_params[] = { DS__RNG_OPERANDS,
                                                         DS__RNG_PARAM(VALUE, from) };
static const ds_param ds__rng_f64_params[] = { DS__RNG_OPERANDS, DS__RNG_PARAM(VALUE, from),
                                               DS__RNG_PARAM(VALUE, to) };
static const ds_param ds__rng_integer_params[] = { DS__RNG_OPERANDS, DS__RNG_PARAM(VALUE, low),
                                                   DS__RNG_PARAM(VALUE, range),
                                                   DS__RNG_PARAM(VALUE, kind) };

static int ds__rng_state_items(size_t first, size_t count, const void *args) {
    const ds__rng_args *a = args;
    uint64_t *state = a->out;
    (void)first, (void)count;
    state[0] = a->seed;
    state[1] = a->start;
    return 0;
}

static uint64_t ds__rng_bytes(size_t items, const void *args) {
    const ds__rng_args *a = args;
    (void)items;
    return a->count * ds__rng_size(a->kind);
}

/* Writes the bytes that a launch accesses through `out` and, in a graph, through `state`. */
static void ds__rng_extents(const void *args, size_t *out_bytes) {
    const ds__rng_args *a = args;
    out_bytes[0] = (size_t)(a->count * ds__rng_size(a->kind));
    out_bytes[1] = 2 * sizeof *a->state;
}

/* The device code of each kernel: one text, or several pieces of one. */
static const struct {
    const char *name;
    const char *entry;
    ds_kernel_fn cpu_fn;
    const ds_param *params;
    size_t count;
    const char *text;
    const char *const *pieces;
} ds__rng_forms[DS__RNG_KERNELS] = {

#define DS__RNG_FORM(name, entry, fn, list, text, pieces)                   \
    {                                                                       \
        name, "ds__rng_" entry, ds__rng_##fn, ds__rng_##list##_params,      \
            sizeof ds__rng_##list##_params / sizeof(ds_param), text, pieces \
    }
    [DS__RNG_STATE] =
        DS__RNG_FORM("state of a generator", "state", state_items, state, ds__ptx_rng_state, NULL),
    [DS__RNG_UNIFORM32] =
        DS__RNG_FORM("uniform numbers", "uniform32", items, uniform32, NULL, ds__ptx_rng_uniform32),
    [DS__RNG_UNIFORMS] =
        DS__RNG_FORM("uniform numbers", "uniform", items, uniform, NULL, ds__ptx_rng_uniform),
    [DS__RNG_UNIFORM64] =
        DS__RNG_FORM("uniform numbers", "uniform64", items, f64, NULL, ds__ptx_rng_uniform64),
    [DS__RNG_NORMALS] =
        DS__RNG_FORM("normal numbers", "normal", items, normal, NULL, ds__ptx_rng_normal),
    [DS__RNG_NORMAL64] =
        DS__RNG_FORM("normal numbers", "normal64", items, f64, NULL, ds__ptx_rng_normal64),
    [DS__RNG_EXPONENTIALS] = DS__RNG_FORM("exponential numbers", "exponential", items, exponential,
                                          NULL, ds__ptx_rng_exponential),
    [DS__RNG_EXPONENTIAL64] = DS__RNG_FORM("exponential numbers", "exponential64", items,
                                           exponential64, NULL, ds__ptx_rng_exponential64),
    [DS__RNG_ONE_WORD] =
        DS__RNG_FORM("random integers", "integers", items, integer, NULL, ds__ptx_rng_integers),
    [DS__RNG_TWO_WORDS] = DS__RNG_FORM("random integers", "wide_integers", items, integer, NULL,
                                       ds__ptx_rng_wide_integers),
    [DS__RNG_ONE_OR_ZERO] =
        DS__RNG_FORM("Bernoulli numbers", "bernoulli", items, integer, NULL, ds__ptx_rng_bernoulli),
    [DS__RNG_ORDER] = DS__RNG_FORM("random permutation", "permutation", permutation_items, integer,
                                   NULL, ds__ptx_rng_permutation),
#undef DS__RNG_FORM
};

/* rng/generator.h - generators: objects, reference counts, creation.

   Defines a generator (ds__generator), the part of a generator that a graph uses
   (ds__rng_graph), and the global state of the generators (ds__rng). ds__generator_create creates a
   generator, ds__generator_of returns the one of a device, and ds__generator_unref gives a
   reference back. ds__rng_shutdown frees what rng/ has.

   Policy:
   1. A generator's lock is held while a fill takes its words and is enqueued. So fills have the
      order of their words, and a refused fill takes no words.
   2. A capture uses a generator through an object of its graph (ds__rng_graph). The object has
      16 bytes of device memory, read by the fills, and the number of words that they take. At a
      launch, a kernel in front of the graph writes seed and offset there. The kernel's stream
      waits first for earlier launches, which may still read them.
   3. This memory is reused when the graph is gone, and freed at ds_shutdown.

   Invariants: `users` counts the handle, running calls and graphs; the last one frees the
   generator. A device's own generator has id 0 and stays until ds_shutdown. `changes` rises with
   every change of seed or offset, except that a failed launch undoes its own.
   Locks: the order is `launching` of objects by address, a generator's `lock`, then ds__rng.lock
   or ds__rng.making. The generator's lock guards seed, offset and mapping. ds__rng.lock guards
   `users` and the lists; no driver call is made under it.
   Threads: any thread. ds__generator_unref also runs on threads of the library, when a graph ends
   there. ds__rng_shutdown is called by ds_shutdown when all work is done; graphs end after it and
   release their objects then. */

typedef struct ds__generator {
    ds__mutex lock;
    int users;   /* the handle, calls and graphs; guarded by ds__rng.lock */
    uint64_t id; /* 0: destroyed, or the generator of a device */
    ds_device device;
    uint64_t seed;
    uint64_t offset;
    uint64_t changes; /* the number of changes of seed and offset */
    ds_rng_mapping mapping;
    int multiprocessors;
    int threads;
    char *label;
    ds_site made;
} ds__generator;

typedef struct ds__rng_graph {
    struct ds__rng_graph *next; /* in the list of idle objects */
    struct ds__rng_graph *all;  /* in the list of all */
    ds__generator *generator;
    ds_device device;
    uint64_t *state;     /* device memory */
    ds__mutex launching; /* held over a launch of a graph with these fills */
    ds_event read;       /* recorded after the last launch */
    int launched;
    ds_stream lost;   /* stream of the last launch, if its record failed */
    uint64_t capture; /* the capture of its fills */
    uint64_t taken;   /* words of a launch */
    uint64_t change;  /* the generator's `changes` after the last launch */
} ds__rng_graph;

static struct {
    ds__spinlock lock; /* of what follows */
    int ready;
    size_t room;
    uint32_t used;
    ds__generator **slot; /* by index; a handle is valid if the generator's id equals it */
    uint32_t generation;
    ds__generator *own[DS_BACKEND_COUNT][DS__MAX_DEVICES];
    ds__rng_graph *idle;
    ds__rng_graph *all;
    ds__mutex making; /* kernels */
    _Atomic uint64_t kernel[DS__RNG_KERNELS];
} ds__rng = { .making = DS__MUTEX_INIT };

static void ds__generator_destroy(ds__generator *g) {
    if (!g)
        return;
    ds__mutex_destroy(&g->lock);
    ds__host_free(g->label);
    ds__host_free(g);
}

/* Drops a reference; the last one frees the generator. Takes ds__rng.lock. */
static void ds__generator_unref(ds__generator *g) {
    ds__spinlock_lock(&ds__rng.lock);
    int last = --g->users == 0;
    ds__spinlock_unlock(&ds__rng.lock);
    if (last)
        ds__generator_destroy(g);
}

/* Returns the threads of a multiprocessor, by the table of compute capabilities in NVIDIA's
   programming guide. version: 10 * major + minor. */
static int ds__rng_threads_of(int version) {
    switch (version) {
    case 75:
        return 1024;
    case 86:
    case 87:
    case 89:
        return 1536;
    default:
        return version >= 110 ? 1536 : 2048;
    }
}

/* Asks the driver for the numbers of the GPU's multiprocessors and threads that are 0. */
static ds_result ds__rng_shape_ask(ds_device device, int *multiprocessors, int *threads) {
    ds_device_properties p;
    memset(&p, 0, sizeof p);
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->device_properties(device.index, &p));
    if (r < 0)
        return r;
    if (!*multiprocessors)
        *multiprocessors = p.multiprocessors;
    if (!*threads)
        *threads = ds__rng_threads_of(10 * p.major + p.minor);
    return DS_OK;
}

/* Checks the shape of a GPU that torch's mapping follows. A number that is 0 becomes that of the
   device; on the CPU driver that of an H100 and an H200, 132 and 2048. */
static ds_result ds__rng_shape(ds_device device, int *multiprocessors, int *threads) {
    DS__REQUIRE(*multiprocessors >= 0 && *threads >= 0 && *threads % 256 == 0 &&
                    *multiprocessors <= 1 << 20 && *threads <= 1 << 20,
                "%d multiprocessors of %d threads: threads must be a multiple of 256",
                *multiprocessors, *threads);
    if (device.type == DS_DEVICE_CUDA && (!*multiprocessors || !*threads)) {
        ds_result r = ds__rng_shape_ask(device, multiprocessors, threads);
        if (r < 0)
            return r;
    }
    if (!*multiprocessors)
        *multiprocessors = 132;
    if (!*threads)
        *threads = 2048;
    DS__REQUIRE((uint64_t)*multiprocessors * (uint64_t)*threads <= UINT32_MAX,
                "%d multiprocessors of %d threads: the total must be below 2^32", *multiprocessors,
                *threads);
    return DS_OK;
}

/* Creates a generator with one user. d->device is resolved, and d->seed is taken as it is, also
   0. */
static ds_result ds__generator_create(const ds_rng_desc *d, ds__generator **out) {
    int multiprocessors = d->multiprocessors;
    int threads = d->threads_per_multiprocessor;
    *out = NULL;
    DS__REQUIRE(d->mapping == DS_RNG_ELEMENT || d->mapping == DS_RNG_TORCH,
                "mapping is %d; use DS_RNG_ELEMENT or DS_RNG_TORCH", (int)d->mapping);
    ds_result r = ds__rng_shape(d->device, &multiprocessors, &threads);
    if (r < 0)
        return r;

    ds__generator *g = ds__host_alloc(sizeof *g);
    if (g && d->label)
        g->label = ds__copy_text(d->label, 255);
    if (!g || (d->label && !g->label)) {
        ds__host_free(g);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a generator");
    }
    ds__mutex_init(&g->lock);
    g->users = 1;
    g->device = d->device;
    g->mapping = d->mapping;
    g->multiprocessors = multiprocessors;
    g->threads = threads;
    g->seed = d->seed;
    g->made = ds__tls.site;
    *out = g;
    return DS_OK;
}

/* Frees the device memory and the event of every graph's object. A graph that still has one
   releases the object itself, and finds that the memory is gone. */
static void ds__rng_shutdown_graphs(void) {
    ds__spinlock_lock(&ds__rng.lock);
    while (ds__rng.all) {
        ds__rng_graph *u = ds__rng.all;
        uint64_t *state = u->state;
        ds_event read = u->read;
        ds__rng.all = u->all;
        u->state = NULL;
        ds__spinlock_unlock(&ds__rng.lock);
        ds__event *e = ds__pin(&ds__g.events, read.id);
        if (e) {
            ds__table_invalidate(&ds__g.events, e);
            ds__unpin(&ds__g.events, e);
        }
        DS_IGNORE(ds__segment_end(state, DS_MEMORY_DEVICE, 1));
        ds__spinlock_lock(&ds__rng.lock);
    }
    ds__rng_graph *idle = ds__rng.idle;
    ds__rng.idle = NULL;
    ds__spinlock_unlock(&ds__rng.lock);

    for (ds__rng_graph *u = idle, *next; u; u = next) {
        next = u->next;
        ds__mutex_destroy(&u->launching);
        ds__host_free(u);
    }
}

/* Drops the devices' own generators, and reports and drops those that the user did not destroy. */
static void ds__rng_shutdown_generators(void) {
    for (uint32_t i = 0; i < ds__rng.used; i++) {
        ds__generator *g = ds__rng.slot[i];
        if (!g)
            continue;
        ds__log_warn("generator \"%s\", created at %s:%d, was not destroyed",
                     g->label ? g->label : "", g->made.file ? g->made.file : "?", g->made.line);
        g->id = 0;
        ds__generator_unref(g);
    }
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        for (int i = 0; i < DS__MAX_DEVICES; i++) {
            if (ds__rng.own[b][i])
                ds__generator_unref(ds__rng.own[b][i]);
            ds__rng.own[b][i] = NULL;
        }
}

static void ds__rng_shutdown_kernels(void) {
    for (int i = 0; i < DS__RNG_KERNELS; i++) {
        uint64_t id = atomic_exchange(&ds__rng.kernel[i], 0);
        ds__kernel *k = id ? ds__pin(&ds__g.kernels, id) : NULL;
        if (k) {
            ds__table_invalidate(&ds__g.kernels, k);
            ds__unpin(&ds__g.kernels, k);
        }
    }
}

/* Frees what rng/ has. ds_shutdown calls it when all work is done; graphs end after it, and release
   their objects then. */
static void ds__rng_shutdown(void) {
    ds__rng_shutdown_graphs();
    ds__rng_shutdown_generators();
    ds__rng_shutdown_kernels();
    ds__host_free(ds__rng.slot);
    ds__rng.slot = NULL;
    ds__rng.room = ds__rng.used = 0;
    ds__rng.ready = 0;
}

static const ds__module ds__rng_module = { .shutdown = ds__rng_shutdown };

static void ds__rng_setup(void) { /* the lock is held */
    if (ds__rng.ready)
        return;
    ds__module_add(DS__MODULE_RNG, &ds__rng_module);
    ds__rng.ready = 1;
}

/* Returns the generator of a device, which the first call creates. The caller drops the
   reference. */
static ds_result ds__generator_of(ds_device device, ds__generator **out) {
    DS__RESOLVE(device);
    ds__generator **at = &ds__rng.own[ds__backend_of(device)][device.index];
    ds__generator *fresh = NULL;
    ds__spinlock_lock(&ds__rng.lock);
    *out = *at;
    if (*out)
        (*out)->users++;
    ds__spinlock_unlock(&ds__rng.lock);
    if (*out)
        return DS_OK;
    ds_rng_desc desc = { .device = device, .mapping = DS_RNG_ELEMENT, .seed = ds__os_cookie() };
    ds_result r = ds__generator_create(&desc, &fresh);
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__rng.lock);
    ds__rng_setup();
    if (!*at) {
        *at = fresh;
        fresh = NULL;
    }
    *out = *at;
    (*out)->users++;
    ds__spinlock_unlock(&ds__rng.lock);
    ds__generator_destroy(fresh);
    return DS_OK;
}

/* rng/generator_api.h - public functions for generators.

   Implements ds_rng_create, ds_rng_clone, ds_rng_destroy, ds_rng_get_default, ds_rng_get_info and
   ds_rng_set_mapping. ds__generator_ref returns the generator of a handle, for all rooms of
   rng/. ds__generator_free_of_capture reports an error while an open capture uses the generator.

   Invariants: a handle is a generation and an index in ds__rng.slot. A device's generator is
   named by DS__RNG_OWN, the backend and the device's index. Every generator from
   ds__generator_ref is given back with ds__generator_unref.
   Locks: a generator's lock comes first, then ds__g.capture_lock, then ds__rng.lock.
   ds__generator_free_of_capture expects the first and takes the others, unless no capture is
   open. The user's log function may run under ds__g.capture_lock, the user's allocator under
   ds__rng.lock.
   Threads: any thread, concurrently. */

/* Flag of a device's own generator in its handle; the lower bits are the device's type and
   index. */
enum { DS__RNG_OWN = 1 << 30 };

/* Returns the handle of a device's own generator. */
static ds_rng ds__generator_handle(const ds__generator *g) {
    ds_rng h = { (uint64_t)DS__RNG_OWN | (uint64_t)ds__backend_of(g->device) << 16 |
                 (uint64_t)g->device.index };
    return h;
}

/* Returns the generator of a handle; a zeroed handle is that of the device. The caller ends with
   ds__generator_unref. */
static ds_result ds__generator_ref(ds_rng rng, ds_device device, ds__generator **out) {
    uint32_t index = (uint32_t)rng.id;
    *out = NULL;
    if (!rng.id)
        return ds__generator_of(device, out);
    if (rng.id >> 32 == 0 && index & DS__RNG_OWN) {
        ds_device own = { index >> 16 & 1 ? DS_DEVICE_CPU : DS_DEVICE_CUDA,
                          (int32_t)(index & 0xffff) };
        return ds__generator_of(own, out);
    }
    ds__spinlock_lock(&ds__rng.lock);
    if (index < ds__rng.used && ds__rng.slot[index] && ds__rng.slot[index]->id == rng.id) {
        *out = ds__rng.slot[index];
        (*out)->users++;
    }
    ds__spinlock_unlock(&ds__rng.lock);
    return *out ? DS_OK
                : ds__fail(DS_ERR_INVALID_HANDLE, "the generator was destroyed or never existed");
}

/* Adds a new generator to the list and returns its handle. */
static ds_result ds__generator_list(ds__generator *g, ds_rng *out) {
    ds__spinlock_lock(&ds__rng.lock);
    ds__rng_setup();
    uint32_t index = 0;
    while (index < ds__rng.used && ds__rng.slot[index])
        index++;
    int fits = index < DS__RNG_OWN &&
               ds__array_reserve(&ds__rng.slot, sizeof *ds__rng.slot, index, 1, &ds__rng.room);
    if (fits) {
        if (index == ds__rng.used)
            ds__rng.used++;
        ds__rng.slot[index] = g;
        if (!++ds__rng.generation)
            ds__rng.generation = 1;
        g->id = (uint64_t)ds__rng.generation << 32 | index;
        out->id = g->id;
    }
    ds__spinlock_unlock(&ds__rng.lock);
    if (fits)
        return DS_OK;
    ds__generator_destroy(g);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a generator");
}

/* Refuses to read or change the state of a generator whose fills are being captured. The generator
   is locked. */
static ds_result ds__generator_free_of_capture(const ds__generator *g, const char *what) {
    ds_result r = DS_OK;
    if (DS__LIKELY(ds__captures_open() == 0))
        return DS_OK;
    ds__mutex_lock(&ds__g.capture_lock);
    ds__spinlock_lock(&ds__rng.lock);
    ds__capture *c = NULL;
    for (ds__rng_graph *u = ds__rng.all; u && !c; u = u->all)
        if (u->generator == g)
            c = ds__capture_find(ds__driver_of(g->device), u->capture);
    ds__spinlock_unlock(&ds__rng.lock);
    if (c)
        r = ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0, what);
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

DSDEF ds_result(ds_rng_create)(const ds_rng_desc *desc, ds_rng *out) {
    static const ds_rng_desc none;
    ds__generator *g;
    if (out)
        out->id = 0;
    DS__ENTER("ds_rng_create");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    DS__REQUIRE_RESERVED("ds_rng_desc", desc);
    ds_rng_desc d = *desc;
    DS__RESOLVE(d.device);
    if (!d.seed)
        d.seed = DS_RNG_DEFAULT_SEED;
    ds_result r = ds__generator_create(&d, &g);
    return r < 0 ? r : ds__generator_list(g, out);
}

DSDEF ds_result(ds_rng_clone)(ds_rng rng, ds_rng *out) {
    ds__generator *g;
    ds__generator *copy = NULL;
    if (out)
        out->id = 0;
    DS__ENTER("ds_rng_clone");
    DS__REQUIRE(out, "out is NULL");
    ds_result r = ds__generator_ref(rng, ds_device_current(), &g);
    if (r < 0)
        return r;
    ds__mutex_lock(&g->lock);
    r = ds__generator_free_of_capture(g,
                                      "a generator cannot be copied while its fills are captured");
    if (r == DS_OK)
        r = ds__generator_create(&(ds_rng_desc){ .device = g->device,
                                                 .mapping = g->mapping,
                                                 .multiprocessors = g->multiprocessors,
                                                 .threads_per_multiprocessor = g->threads,
                                                 .seed = g->seed,
                                                 .label = g->label },
                                 &copy);
    if (r == DS_OK)
        copy->offset = g->offset;
    ds__mutex_unlock(&g->lock);
    ds__generator_unref(g);
    return r < 0 ? r : ds__generator_list(copy, out);
}

DSDEF ds_result(ds_rng_destroy)(ds_rng rng) {
    ds__generator *g;
    DS__ENTER("ds_rng_destroy");
    DS__REQUIRE(rng.id, "no generator was given (the handle is zero)");
    ds_result r = ds__generator_ref(rng, ds_device_current(), &g);
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__rng.lock);
    int listed = g->id != 0;
    if (listed) {
        ds__rng.slot[(uint32_t)g->id] = NULL;
        g->id = 0;
        g->users--;
    }
    ds__spinlock_unlock(&ds__rng.lock);
    ds__generator_unref(g);
    return listed
               ? DS_OK
               : ds__fail(DS_ERR_INVALID_HANDLE, "the generator of a device cannot be destroyed");
}

DSDEF ds_result(ds_rng_get_default)(ds_device device, ds_rng *out) {
    ds__generator *g;
    if (out)
        out->id = 0;
    DS__ENTER("ds_rng_get_default");
    DS__REQUIRE(out, "out is NULL");
    ds_result r = ds__generator_of(device, &g);
    if (r < 0)
        return r;
    *out = ds__generator_handle(g);
    ds__generator_unref(g);
    return DS_OK;
}

DSDEF ds_result(ds_rng_get_info)(ds_rng rng, ds_rng_info *out) {
    ds__generator *g;
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_rng_get_info");
    DS__REQUIRE(out, "out is NULL");
    ds_result r = ds__generator_ref(rng, ds_device_current(), &g);
    if (r < 0)
        return r;
    ds__mutex_lock(&g->lock);
    *out = (ds_rng_info){ .device = g->device,
                          .seed = g->seed,
                          .offset = g->offset,
                          .mapping = g->mapping,
                          .multiprocessors = g->multiprocessors,
                          .threads_per_multiprocessor = g->threads };
    ds__mutex_unlock(&g->lock);
    ds__generator_unref(g);
    return DS_OK;
}

DSDEF ds_result(ds_rng_set_mapping)(ds_rng rng, ds_rng_mapping mapping, int multiprocessors,
                                    int threads_per_multiprocessor) {
    ds__generator *g;
    DS__ENTER("ds_rng_set_mapping");
    DS__REQUIRE(mapping == DS_RNG_ELEMENT || mapping == DS_RNG_TORCH,
                "mapping is %d; use DS_RNG_ELEMENT or DS_RNG_TORCH", (int)mapping);
    ds_result r = ds__generator_ref(rng, ds_device_current(), &g);
    if (r < 0)
        return r;
    r = ds__rng_shape(g->device, &multiprocessors, &threads_per_multiprocessor);
    if (r == DS_OK) {
        ds__mutex_lock(&g->lock);
        g->mapping = mapping;
        g->multiprocessors = multiprocessors;
        g->threads = threads_per_multiprocessor;
        ds__mutex_unlock(&g->lock);
    }
    ds__generator_unref(g);
    return r;
}

/* rng/state.h - seeds, offsets and states of generators.

   Implements the public functions that read or set a generator's seed, offset and state. They
   are for one generator, the generator of a device, or those of all devices.
   ds__generator_set_or_check does the setting.

   Invariants: an offset is a multiple of 4 below 2^63. While an open capture uses a generator,
   its offset and state are neither read nor set; a seed may be set to its present value only.
   ds__generator_set_or_check and ds__generator_seed give the caller's reference back.
   Locks: one generator's lock at a time, then those of ds__generator_free_of_capture. No driver
   call is made under them.
   Threads: any thread. Functions for all devices check every generator before they set the first
   one. A capture that begins in between can still make a later one fail. */

/* Sets the state of a generator, unless a capture forbids it; the present seed can be set at any
   time. Drops the caller's reference. check: changes nothing. */
static ds_result ds__generator_set_or_check(ds__generator *g, int seed_only, uint64_t seed,
                                            uint64_t offset, int check) {
    ds__mutex_lock(&g->lock);
    int same = seed_only && g->seed == seed;
    ds_result r = ds__generator_free_of_capture(
        g, "a generator's state cannot change while its fills are captured");
    if (r == DS_OK && !check) {
        g->seed = seed;
        g->offset = offset;
        g->changes++;
    } else if (same) {
        r = DS_OK;
    }
    ds__mutex_unlock(&g->lock);
    ds__generator_unref(g);
    return r;
}

static ds_result ds__generator_set(ds__generator *g, int seed_only, uint64_t seed,
                                   uint64_t offset) {
    return ds__generator_set_or_check(g, seed_only, seed, offset, 0);
}

DSDEF ds_result(ds_rng_set_seed)(ds_rng rng, uint64_t seed) {
    ds__generator *g;
    DS__ENTER("ds_rng_set_seed");
    ds_result r = ds__generator_ref(rng, ds_device_current(), &g);
    return r < 0 ? r : ds__generator_set(g, 1, seed, 0);
}

DSDEF ds_result(ds_rng_reseed)(ds_rng rng, uint64_t *out_seed) {
    ds__generator *g;
    uint64_t seed = ds__os_cookie();
    if (out_seed)
        *out_seed = 0;
    DS__ENTER("ds_rng_reseed");
    ds_result r = ds__generator_ref(rng, ds_device_current(), &g);
    if (r == DS_OK)
        r = ds__generator_set(g, 0, seed, 0);
    if (r == DS_OK && out_seed)
        *out_seed = seed;
    return r;
}

/* Returns the seed and drops the caller's reference. */
static ds_result ds__generator_seed(ds__generator *g, uint64_t *out) {
    ds__mutex_lock(&g->lock);
    *out = g->seed;
    ds__mutex_unlock(&g->lock);
    ds__generator_unref(g);
    return DS_OK;
}

DSDEF ds_result(ds_rng_get_seed)(ds_rng rng, uint64_t *out_seed) {
    ds__generator *g;
    if (out_seed)
        *out_seed = 0;
    DS__ENTER("ds_rng_get_seed");
    DS__REQUIRE(out_seed, "out_seed is NULL");
    ds_result r = ds__generator_ref(rng, ds_device_current(), &g);
    return r < 0 ? r : ds__generator_seed(g, out_seed);
}

/* Returns seed and offset, unless a capture forbids it. */
static ds_result ds__generator_state(ds_rng rng, ds_device device, uint64_t state[2]) {
    ds__generator *g;
    ds_result r = ds__generator_ref(rng, device, &g);
    if (r < 0)
        return r;
    ds__mutex_lock(&g->lock);
    r = ds__generator_free_of_capture(
        g, "a generator's offset cannot be read while its fills are captured");
    if (r == DS_OK) {
        state[0] = g->seed;
        state[1] = g->offset;
    }
    ds__mutex_unlock(&g->lock);
    ds__generator_unref(g);
    return r;
}

DSDEF ds_result(ds_rng_get_offset)(ds_rng rng, uint64_t *out_offset) {
    uint64_t state[2] = { 0, 0 };
    if (out_offset)
        *out_offset = 0;
    DS__ENTER("ds_rng_get_offset");
    DS__REQUIRE(out_offset, "out_offset is NULL");
    ds_result r = ds__generator_state(rng, ds_device_current(), state);
    *out_offset = state[1];
    return r;
}

static ds_result ds__offset_check(uint64_t offset) {
    DS__REQUIRE(offset % 4 == 0 && offset >> 63 == 0,
                "the offset %llu is not a multiple of 4 below 2^63", (unsigned long long)offset);
    return DS_OK;
}

DSDEF ds_result(ds_rng_set_offset)(ds_rng rng, uint64_t offset) {
    ds__generator *g;
    DS__ENTER("ds_rng_set_offset");
    ds_result r = ds__offset_check(offset);
    if (r == DS_OK)
        r = ds__generator_ref(rng, ds_device_current(), &g);
    if (r < 0)
        return r;
    ds__mutex_lock(&g->lock);
    r = ds__generator_free_of_capture(
        g, "a generator's offset cannot change while its fills are captured");
    if (r == DS_OK) {
        g->offset = offset;
        g->changes++;
    }
    ds__mutex_unlock(&g->lock);
    ds__generator_unref(g);
    return r;
}

DSDEF ds_result(ds_rng_get_state)(ds_rng rng, void *out, size_t size) {
    uint64_t state[2];
    DS__ENTER("ds_rng_get_state");
    DS__REQUIRE(out && size >= DS_RNG_STATE_SIZE, "a state has %d bytes; size is %zu",
                DS_RNG_STATE_SIZE, out ? size : 0);
    ds_result r = ds__generator_state(rng, ds_device_current(), state);
    if (r == DS_OK)
        memcpy(out, state, DS_RNG_STATE_SIZE);
    return r;
}

/* Reads seed and offset from 16 bytes, or the seed alone from 8. */
static ds_result ds__state_read(const void *bytes, size_t size, uint64_t state[2]) {
    DS__REQUIRE(bytes, "state is NULL");
    DS__REQUIRE(size == 8 || size == DS_RNG_STATE_SIZE,
                "the state has %zu bytes; 8 or %d are allowed", size, DS_RNG_STATE_SIZE);
    state[1] = 0;
    memcpy(state, bytes, size);
    return ds__offset_check(state[1]);
}

DSDEF ds_result(ds_rng_set_state)(ds_rng rng, const void *bytes, size_t size) {
    ds__generator *g;
    uint64_t state[2];
    DS__ENTER("ds_rng_set_state");
    ds_result r = ds__state_read(bytes, size, state);
    if (r == DS_OK)
        r = ds__generator_ref(rng, ds_device_current(), &g);
    return r < 0 ? r : ds__generator_set(g, 0, state[0], state[1]);
}

DSDEF ds_result(ds_rng_set_device_seed)(ds_device device, uint64_t seed) {
    ds__generator *g;
    DS__ENTER("ds_rng_set_device_seed");
    if ((device.type == DS_DEVICE_CUDA || device.type == DS_DEVICE_CPU) &&
        ds__type_count(device.type) == 0)
        return DS_OK;
    ds_result r = ds__generator_of(device, &g);
    return r < 0 ? r : ds__generator_set(g, 1, seed, 0);
}

/* Sets the seed of all devices' generators, or of none. */
static ds_result ds__seed_all(uint64_t seed) {
    ds_result r = DS_OK;
    for (int check = 1; check >= 0; check--) /* all or none */
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            for (int i = 0; i < ds__g.backend[b].device_count && r == DS_OK; i++) {
                ds__generator *g;
                ds_device device = { (int32_t)ds__g.backend[b].type, i };
                r = ds__generator_of(device, &g);
                if (r == DS_OK)
                    r = ds__generator_set_or_check(g, 1, seed, 0, check);
            }
    return r;
}

DSDEF ds_result(ds_rng_set_seed_all)(uint64_t seed) {
    DS__ENTER("ds_rng_set_seed_all");
    return ds__seed_all(seed);
}

DSDEF ds_result(ds_rng_reseed_device)(ds_device device, uint64_t *out_seed) {
    ds__generator *g;
    uint64_t seed = ds__os_cookie();
    if (out_seed)
        *out_seed = 0;
    DS__ENTER("ds_rng_reseed_device");
    if ((device.type == DS_DEVICE_CUDA || device.type == DS_DEVICE_CPU) &&
        ds__type_count(device.type) == 0)
        return DS_OK;
    ds_result r = ds__generator_of(device, &g);
    if (r == DS_OK)
        r = ds__generator_set(g, 0, seed, 0);
    if (r == DS_OK && out_seed)
        *out_seed = seed;
    return r;
}

DSDEF ds_result(ds_rng_reseed_all)(uint64_t *out_seed) {
    uint64_t seed = ds__os_cookie();
    if (out_seed)
        *out_seed = 0;
    DS__ENTER("ds_rng_reseed_all");
    ds_result r = ds__seed_all(seed);
    if (r == DS_OK && out_seed)
        *out_seed = seed;
    return r;
}

DSDEF ds_result(ds_rng_get_device_seed)(ds_device device, uint64_t *out_seed) {
    ds__generator *g;
    if (out_seed)
        *out_seed = 0;
    DS__ENTER("ds_rng_get_device_seed");
    DS__REQUIRE(out_seed, "out_seed is NULL");
    ds_result r = ds__generator_of(device, &g);
    return r < 0 ? r : ds__generator_seed(g, out_seed);
}

/* Returns the number of devices of a type. A zeroed type becomes that of the current device. */
static ds_result ds__devices_of(ds_device_type *type, size_t *out) {
    ds_device current = { 0, 0 };
    int count;
    if (*type == DS_DEVICE_CURRENT) {
        DS__RESOLVE(current);
        *type = (ds_device_type)current.type;
    }
    DS__REQUIRE(*type == DS_DEVICE_CUDA || *type == DS_DEVICE_CPU,
                "devices of type %d have no generators", (int)*type);
    count = ds__type_count((int)*type);
    *out = (size_t)count;
    return DS_OK;
}

DSDEF ds_result(ds_rng_get_state_all)(ds_device_type type, void *out, size_t capacity,
                                      size_t *out_count) {
    static const ds_rng own;
    size_t count = 0;
    if (out_count)
        *out_count = 0;
    DS__ENTER("ds_rng_get_state_all");
    DS__REQUIRE(out_count, "out_count is NULL");
    ds_result r = ds__devices_of(&type, &count);
    if (r < 0)
        return r;
    DS__REQUIRE(!out || capacity >= count, "capacity is %zu states for %zu devices", capacity,
                count);
    for (size_t i = 0; out && i < count && r == DS_OK; i++) {
        uint64_t state[2];
        ds_device device = { (int32_t)type, (int32_t)i };
        r = ds__generator_state(own, device, state);
        if (r == DS_OK)
            memcpy((char *)out + i * DS_RNG_STATE_SIZE, state, DS_RNG_STATE_SIZE);
    }
    if (r == DS_OK)
        *out_count = count;
    return r;
}

DSDEF ds_result(ds_rng_set_state_all)(ds_device_type type, const void *states, size_t count) {
    size_t devices = 0;
    uint64_t state[2];
    uint64_t before[2];
    static const ds_rng own;
    DS__ENTER("ds_rng_set_state_all");
    ds_result r = ds__devices_of(&type, &devices);
    if (r < 0)
        return r;
    DS__REQUIRE(count <= devices, "count is %zu states for %zu devices", count, devices);
    DS__REQUIRE(states || !count, "states is NULL");
    for (int set = 0; set < 2; set++)
        for (size_t i = 0; i < count && r == DS_OK; i++) {
            ds_device device = { (int32_t)type, (int32_t)i };
            ds__generator *g;
            r = ds__state_read((const char *)states + i * DS_RNG_STATE_SIZE, DS_RNG_STATE_SIZE,
                               state);
            if (r == DS_OK)
                r = ds__generator_state(own, device, before);
            if (r < 0 || !set)
                continue;
            r = ds__generator_of(device, &g);
            if (r == DS_OK)
                r = ds__generator_set(g, 0, state[0], state[1]);
        }
    return r;
}

/* rng/fill_types.h - creation and submission of the generators' kernels.

   Creates a generator kernel at its first use (ds__rng_kernel) and puts a fill on a stream
   (ds__rng_submit). DS__RNG_EXACT is 0 in a build with -ffast-math, where logarithms and sums
   would not have the promised bits.

   Invariants: a kernel is created once and stays until ds_shutdown. A fill is submitted either
   for one capture or for no capture; if the stream's capture is another one, nothing is enqueued
   and ds__rng_submit returns DS__CHANGED.
   Locks: ds__rng_kernel takes ds__rng.making, only until the kernel exists; a generator's lock
   is taken before it. The user's allocator runs under it. ds__rng_submit takes none; it calls
   the driver under the locks of the caller.
   Threads: threads that call the public functions. */

/* With these options, logarithms and sums of floats would not have the promised bits. */
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    defined(__NO_SIGNED_ZEROS__) || __FINITE_MATH_ONLY__ + 0
enum { DS__RNG_EXACT = 0 };
#else
enum { DS__RNG_EXACT = 1 };
#endif

/* Creates a kernel. The lock `making` is held. */
static ds_result ds__rng_kernel_create(int which, ds_kernel *out) {
    ds_kernel_desc desc = { .name = ds__rng_forms[which].name,
                            .cpu_fn = ds__rng_forms[which].cpu_fn,
                            .bytes_fn = ds__rng_bytes,
                            .args_size = sizeof(ds__rng_args),
                            .params = ds__rng_forms[which].params,
                            .param_count = ds__rng_forms[which].count,
                            .extents_fn = which == DS__RNG_STATE ? NULL : ds__rng_extents,
                            .grain = 16,
                            .cuda = { .image = ds__rng_forms[which].text,
                                      .image_pieces = ds__rng_forms[which].pieces,
                                      .entry = ds__rng_forms[which].entry,
                                      .block = 256,
                                      .items_per_block = 256,
                                      .blocks_per_multiprocessor = 8 } };
    return ds__kernel_create(&desc, out);
}

/* Returns a kernel, which the first call creates. */
static ds_result ds__rng_kernel(int which, ds_kernel *out) {
    ds_result r = DS_OK;
    out->id = atomic_load_explicit(&ds__rng.kernel[which], memory_order_acquire);
    if (DS__LIKELY(out->id))
        return DS_OK;
    ds__mutex_lock(&ds__rng.making);
    out->id = atomic_load(&ds__rng.kernel[which]);
    if (!out->id) {
        r = ds__rng_kernel_create(which, out);
        if (r == DS_OK)
            atomic_store_explicit(&ds__rng.kernel[which], out->id, memory_order_release);
    }
    ds__mutex_unlock(&ds__rng.making);
    return r;
}

/* Enqueues a kernel for the capture `inside`, or for none if that is 0. Returns DS__CHANGED if the
   stream's capture is another one, and enqueues nothing. */
static ds_result ds__rng_submit(ds__stream *s, ds_kernel kernel, size_t items,
                                const ds__rng_args *a, uint64_t inside) {
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    if (!k)
        return ds__fail(DS_ERR_INVALID_HANDLE, "the kernel of a fill was destroyed");
    ds__op op = ds__op_init(DS__OP_KERNEL | (inside ? DS__OP_INSIDE : DS__OP_OUTSIDE) << 8);
    op.u.kernel.kernel = k;
    op.u.kernel.items = items;
    op.u.kernel.args_size = sizeof *a;
    op.u.kernel.args = a;
    op.u.kernel.grid = NULL;
    op.u.kernel.capture = inside;
    ds_result r = ds__stream_submit(s, &op);
    ds__unpin(&ds__g.kernels, k);
    return r;
}

/* rng/graph.h - fills in graphs.

   Lets graphs draw numbers from a generator. ds__rng_graph_attach creates the object for the fills
   of one capture, or reuses an idle one of the device. ds__rng_launch is invoked before and
   after each launch of the graph: it writes seed and offset into the object's device memory and
   moves the generator. ds__rng_graph_release makes the object idle.

   Invariants: after a launch the event `read` is recorded, and the next launch waits for it
   before it writes the state. If the record fails, `lost` names the stream and the next launch
   repeats the record or waits for the device. A failed launch takes its words back, unless
   another fill has drawn since.
   Locks: the caller holds the executable's lock, and `launching` of the launch's objects over the
   submit. ds__rng_launch holds the generator's lock over its own driver calls; ds__rng_find may
   wait for the device there. ds__rng_graph_attach is called with the locks of generator and graph,
   and may allocate device memory under them. ds__rng.lock comes last.
   Threads: threads that launch or capture. ds__rng_graph_release runs on any thread, also of the
   library, and must not call devstream. */

/* Checks that so many words are left of the sequence. Both numbers are below 2^63: a fill takes at
   most 2^61 words, and this function has checked the sum of the fills of a graph. */
static ds_result ds__rng_room(uint64_t offset, uint64_t taken) {
    DS__REQUIRE((offset + taken) >> 63 == 0,
                "offset %llu and %llu more words exceed 2^63; seed the generator",
                (unsigned long long)offset, (unsigned long long)taken);
    return DS_OK;
}

/* Returns 1 if the last launch failed. A failed launch does not read any more, and a wait for its
   event would fail even after the device is reset. */
static int ds__rng_read_failed(ds_event read) {
    ds__event *e = ds__pin(&ds__g.events, read.id);
    void *native = e ? atomic_load_explicit(&e->native, memory_order_acquire) : NULL;
    int failed = native && e->driver->event_query(native) == DS_ERR_FAILED;
    if (e)
        ds__event_unpin(e);
    return failed;
}

/* Records the end of a launch on a pinned stream, whose handle may be stale. If the record fails,
   u->lost names the stream. */
static ds_result ds__rng_record(ds__rng_graph *u, ds__stream *s) {
    ds__event *e = ds__event_pin(u->read);
    ds_result r =
        e ? ds__event_record_on(e, s, DS__OP_RECORD | DS__OP_OUTSIDE << 8) : DS_ERR_INVALID_HANDLE;
    if (e)
        ds__event_unpin(e);
    u->lost.id = r == DS_OK ? 0 : ds__handle_of(&s->slot);
    if (r == DS_OK)
        u->launched = 1;
    return r;
}

/* Repeats a record that failed, so that a stream can wait for the launch. If its stream is gone,
   the host waits for the device. */
static ds_result ds__rng_find(ds__rng_graph *u, const ds__stream *s) {
    ds__stream *lost = ds__pin(&ds__g.streams, u->lost.id);
    ds_result r;
    if (lost) {
        r = ds__rng_record(u, lost);
        ds__stream_unpin(lost);
        if (r == DS__CHANGED)
            r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                         "the launch must wait for an earlier launch, whose stream captures");
        return r;
    }
    if (ds__captures_open())
        return ds__fail(
            DS_ERR_CAPTURE_UNSUPPORTED,
            "the host must wait for an earlier launch of the graph, but a capture is open");
    r = ds__device_error(u->device, s->driver->device_synchronize(u->device.index));
    if (r == DS_OK) {
        u->lost.id = 0;
        u->launched = 0;
    }
    return r;
}

static ds_result ds__rng_captures(void) {
    return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED, "a graph with random fills cannot be launched on a "
                                                "stream that captures; add it as a child graph");
}

/* Refuses a stream that captures, or that is of another device than the fills. */
static ds_result ds__rng_launch_check(const ds__rng_graph *u, ds__stream *s) {
    ds_capture_info info;
    memset(&info, 0, sizeof info);
    if (ds__captures_open()) {
        ds_result r = s->driver->capture_query(s->native, &info);
        if (r < 0)
            return r;
    }
    if (info.status != DS_CAPTURE_NONE)
        return ds__rng_captures();
    if (s->device.index != u->device.index) /* ds_graph_launch has compared the drivers */
        return ds__fail(
            DS_ERR_DEVICE_MISMATCH,
            "the graph has random fills of %s:%d and cannot be launched on a stream of %s:%d",
            ds__type_name(u->device.type), u->device.index, ds__type_name(s->device.type),
            s->device.index);
    return DS_OK;
}

/* Enqueues the kernel that writes seed and offset for the fills, after a wait for the last launch,
   which may still read them. The generator's lock is held. */
static ds_result ds__rng_launch_write(ds__rng_graph *u, ds__stream *s) {
    const ds__generator *g = u->generator;
    ds_stream stream = { ds__handle_of(&s->slot) };
    ds__rng_args a = { .out = u->state };
    ds_kernel kernel;
    a.seed = g->seed;
    a.start = g->offset;
    ds_result r = ds__rng_kernel(DS__RNG_STATE, &kernel);
    if (r == DS_OK)
        r = ds__rng_room(g->offset, u->taken);
    if (r == DS_OK && u->lost.id)
        r = ds__rng_find(u, s);
    if (r == DS_OK && u->launched && ds__rng_read_failed(u->read))
        u->launched = 0;
    if (r == DS_OK && u->launched)
        r = ds__wait_event(stream, u->read, DS__OP_WAIT | DS__OP_OUTSIDE << 8);
    if (r == DS_OK)
        r = ds__rng_submit(s, kernel, 1, &a, 0);
    return r == DS__CHANGED ? ds__rng_captures() : r;
}

/* The kernel that writes the state, the launch and the record of `read` come one after the other,
   though several executables may have the fills of one capture. */
static void ds__rng_launch_lock(void *user, int take) {
    ds__rng_graph *u = user;
    if (take)
        ds__mutex_lock(&u->launching);
    else
        ds__mutex_unlock(&u->launching);
}

/* Before a launch: takes the words of the fills. */
static ds_result ds__rng_launch_begin(ds__rng_graph *u, ds__stream *s) {
    ds__generator *g = u->generator;
    ds_result r = ds__rng_launch_check(u, s);
    if (r < 0)
        return r;
    ds__mutex_lock(&g->lock);
    r = ds__rng_launch_write(u, s);
    if (r == DS_OK) {
        g->offset += u->taken;
        u->change = ++g->changes;
    }
    ds__mutex_unlock(&g->lock);
    return r;
}

/* Gives the words of a failed launch back, unless another fill has taken words since. */
static void ds__rng_launch_undo(ds__rng_graph *u) {
    ds__generator *g = u->generator;
    ds__mutex_lock(&g->lock);
    if (g->changes == u->change) {
        g->offset -= u->taken;
        /* as before: another object of the same launch may have taken words before this one */
        g->changes = u->change - 1;
    }
    ds__mutex_unlock(&g->lock);
}

/* After a launch, with its result. The sentence of a failed launch stays. */
static void ds__rng_launch_end(ds__rng_graph *u, ds__stream *s, ds_result how) {
    if (how < 0)
        ds__rng_launch_undo(u);
    char before[sizeof ds__tls.error]; /* why the launch failed */
    memcpy(before, ds__tls.error, sizeof before);
    DS_IGNORE(ds__rng_record(u, s)); /* the state is written, though the graph may not run */
    memcpy(ds__tls.error, before, sizeof before);
}

/* Called before a launch of a graph with fills (how is DS_NOT_READY), and after it with its
   result. */
static ds_result ds__rng_launch(void *user, ds__stream *s, ds_result how) {
    if (how == DS_NOT_READY)
        return ds__rng_launch_begin(user, s);
    ds__rng_launch_end(user, s, how);
    return DS_OK;
}

/* Makes the object idle when the last graph with it is gone. Must not call devstream. */
static void ds__rng_graph_release(void *user) {
    ds__rng_graph *u = user;
    ds__spinlock_lock(&ds__rng.lock);
    ds__generator *g = u->generator;
    int over = !u->state; /* the library has ended */
    u->generator = NULL;
    if (!over) {
        u->next = ds__rng.idle;
        ds__rng.idle = u;
    }
    ds__spinlock_unlock(&ds__rng.lock);
    ds__generator_unref(g);
    if (over) {
        ds__mutex_destroy(&u->launching);
        ds__host_free(u);
    }
}

/* Takes an idle object of the device; NULL: there is none. */
static ds__rng_graph *ds__rng_graph_take_idle(ds_device device) {
    ds__rng_graph **at = &ds__rng.idle;
    ds__spinlock_lock(&ds__rng.lock);
    ds__rng_setup();
    while (*at && !((*at)->device.type == device.type && (*at)->device.index == device.index))
        at = &(*at)->next;
    ds__rng_graph *u = *at;
    if (u)
        *at = u->next;
    ds__spinlock_unlock(&ds__rng.lock);
    return u;
}

/* Loads the kernel that writes the state. A launch must not do that: the driver may wait for work
   when it loads a kernel, and a launch holds locks. */
static ds_result ds__rng_load(ds_device device) {
    ds_kernel kernel;
    ds_result r = ds__rng_kernel(DS__RNG_STATE, &kernel);
    ds__kernel *k = r == DS_OK ? ds__pin(&ds__g.kernels, kernel.id) : NULL;
    if (!k)
        return r;
    r = ds__driver_of(device)->kernel_load(device.index, k);
    ds__unpin(&ds__g.kernels, k);
    return r;
}

/* Creates an object with its device memory and event. */
static ds_result ds__rng_graph_create(ds_device device, ds__rng_graph **out) {
    void *state = NULL;
    ds__rng_graph *u = ds__host_alloc(sizeof *u);
    if (!u)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the fills of a graph");
    ds_result r = ds__rng_load(device);
    if (r == DS_OK)
        r = ds__segment_alloc(device, 2 * sizeof(uint64_t), &state);
    if (r == DS_OK)
        r = ds__event_create(0, "generator of a graph", &u->read);
    if (r < 0) {
        if (state)
            DS_IGNORE(ds__segment_end(state, DS_MEMORY_DEVICE, 1));
        ds__host_free(u);
        return r;
    }
    u->state = state;
    u->device = device;
    ds__mutex_init(&u->launching);
    ds__spinlock_lock(&ds__rng.lock);
    u->all = ds__rng.all;
    ds__rng.all = u;
    ds__spinlock_unlock(&ds__rng.lock);
    *out = u;
    return DS_OK;
}

/* Makes the object of a capture for the fills of a generator. */
static ds_result ds__rng_graph_attach(uint64_t capture, void *user, void **out) {
    ds__generator *g = user;
    *out = NULL;
    ds__rng_graph *u = ds__rng_graph_take_idle(g->device);
    if (!u) {
        ds_result r = ds__rng_graph_create(g->device, &u);
        if (r < 0)
            return r;
    }
    ds__spinlock_lock(&ds__rng.lock);
    u->taken = 0;
    u->capture = capture;
    u->generator = g;
    g->users++;
    ds__spinlock_unlock(&ds__rng.lock);
    *out = u;
    return DS_OK;
}

/* rng/order.h - checks of a fill's arguments.

   Checks the description of a fill and translates it into arguments of a kernel (ds__rng_args):
   ds__rng_reals for floats, ds__rng_whole for integers, bits and Bernoulli numbers,
   ds__rng_order for permutations. ds__rng_taken returns the number of words that a fill takes.

   Invariants: the bounds have no negative zeros, because `to` is recognised by its bits.
   ds__rng_taken returns a multiple of 4. Fills whose bits depend on exact floats are refused
   where DS__RNG_EXACT is 0.
   Locks: none; the caller holds the generator's lock.
   Threads: any. */

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

/* rng/fill.h - public fill functions, and shutdown of the generators.

   Implements ds_rng_fill and the functions for single distributions. ds__rng_fill checks a
   request (ds__rng_request) and enqueues it, ds__rng_put enqueues its kernel and takes its words,
   and ds__rng_cut divides large fills as torch does.

   Invariants: a fill takes its words from the generator or, on a capturing stream, from the
   graph's object. A refused fill takes none. If a divided fill fails after its first part, the
   words of the enqueued parts stay taken. `changes` rises if the generator's offset has changed.
   Locks: the generator's lock is held from the checks to the submit. Under it come the graph's
   lock (ds__capture_attachment), ds__rng.making and the driver's submit.
   Threads: any thread. */

/* The kernel of a fill and the source of its words: the generator, or the graph that its stream
   captures. The generator is locked. */
typedef struct ds__rng_way {
    ds__generator *generator;
    ds__stream *stream;
    ds__rng_graph *graph;
    ds_kernel kernel;
    uint64_t *offset;
} ds__rng_way;

/* Returns the number of threads t of a fill with `total` elements; 1 in the mapping by element. */
static uint32_t ds__rng_stride(const ds__generator *g, const ds__rng_args *a, uint64_t total) {
    if (g->mapping != DS_RNG_TORCH || a->what == DS__RNG_PERMUTATION)
        return 1;
    uint64_t blocks = (total + 255) / 256;
    uint64_t most = (uint64_t)g->multiprocessors * (uint64_t)(g->threads / 256);
    return (uint32_t)(256 * (blocks < most ? blocks : most));
}

/* Enqueues a fill of `count` elements from `first` on, and takes the words of `total` elements. If
   count is 0, only takes them. */
static ds_result ds__rng_put(const ds__rng_way *w, ds__rng_args *a, uint64_t first, uint64_t count,
                             uint64_t total) {
    const ds__generator *g = w->generator;
    uint64_t each = (uint64_t)1 << ds__rng_shift(a);
    uint64_t skip = 0;
    a->count = count;
    a->stride = ds__rng_stride(g, a, total);
    uint64_t taken = ds__rng_taken(a, total);
    ds_result r = ds__rng_room(*w->offset, taken);
    if (r == DS_OK && count) {
        if (a->what == DS__RNG_PERMUTATION) {
            a->before = first;
            a->rows = count;
        } else {
            skip = a->stride > 1 ? 0 : first / each;
            a->before = a->stride > 1 ? 0 : first % each;
            a->rows = (a->before + count - 1) / (each * a->stride) + 1;
        }
        a->state = w->graph ? w->graph->state : NULL;
        a->seed = w->graph ? 0 : g->seed;
        a->start = *w->offset / 4 + skip;
        uint64_t items = g->device.type == DS_DEVICE_CUDA
                             ? a->rows * a->stride
                             : (count + DS__RNG_ITEM - 1) / DS__RNG_ITEM;
        r = ds__rng_submit(w->stream, w->kernel, (size_t)items, a,
                           w->graph ? w->graph->capture : 0);
    }
    if (r == DS_OK)
        *w->offset += taken;
    return r;
}

/* The most bytes that torch indexes with 32 bits; a test makes it smaller. */
#ifndef DS__RNG_INDEXED
#define DS__RNG_INDEXED INT32_MAX
#endif
/* Divides a fill into halves, like torch, until all parts can be indexed with 32 bits. */
static ds_result ds__rng_halves(const ds__rng_way *w, const ds__rng_args *all, uint64_t first,
                                uint64_t count) {
    size_t size = ds__rng_size(all->kind);
    if ((count - 1) * size >= DS__RNG_INDEXED) {
        ds_result r = ds__rng_halves(w, all, first, count / 2);
        return r != DS_OK ? r : ds__rng_halves(w, all, first + count / 2, count - count / 2);
    }
    ds__rng_args part = *all;
    part.out = (char *)all->out + first * size;
    return ds__rng_put(w, &part, 0, count, count);
}

/* Enqueues a fill of at least one element, divided as torch does. The whole fill takes words as if
   it were not divided, and then each part takes its own. */
static ds_result ds__rng_cut(const ds__rng_way *w, ds__rng_args *a, uint64_t count) {
    if (w->generator->mapping != DS_RNG_TORCH || a->what == DS__RNG_PERMUTATION ||
        (count - 1) * ds__rng_size(a->kind) < DS__RNG_INDEXED)
        return ds__rng_put(w, a, 0, count, count);
    uint64_t before = *w->offset;
    ds_result r = ds__rng_put(w, a, 0, 0, count);
    if (r < 0)
        return r;
    uint64_t begun = *w->offset;
    r = ds__rng_halves(w, a, 0, count);
    /* no part was enqueued; otherwise the words stay taken, since parts use them */
    if (*w->offset == begun)
        *w->offset = before;
    return r;
}

/* Reports a fill to the observers; kind: DS__SEEN_BEGIN or DS__SEEN_END. */
__attribute__((cold, noinline)) static void ds__rng_observe(int kind, const ds__rng_args *a,
                                                            size_t bytes, ds__stream *s,
                                                            ds_result r) {
    ds__seen_operand out = {
        .ptr = a->out, .bytes = bytes, .width = bytes, .device = s->device, .writes = 1
    };
    out.stream.id = ds__handle_of(&s->slot);
    ds__observer_notify(&(ds__seen){ .kind = kind, .operand = &out, .operands = 1, .result = r });
}

/* A fill that is being checked and enqueued. */
typedef struct ds__rng_request {
    const ds_rng_fill_desc *desc;
    ds__generator *generator; /* locked */
    ds__stream *stream;
    size_t total; /* elements of the whole fill; desc may describe a part of it */
    size_t bytes; /* of the memory that is written */
    int part;     /* 1: the fill is a part of a larger one */
    int which;    /* the kernel: DS__RNG_UNIFORMS ... */
    ds__rng_args args;
    ds__object *kept; /* the object of the graph that the stream captures; NULL: none */
} ds__rng_request;

/* Returns the number of elements of the whole fill. Refuses an unknown fill, and a part that is not
   inside of the whole. */
static ds_result ds__rng_request_total(const ds_rng_fill_desc *d, size_t *out) {
    size_t end;
    DS__REQUIRE((unsigned)d->kind <= DS_RNG_PERMUTATION, "kind is %d; use a DS_RNG_* distribution",
                (int)d->kind);
    DS__REQUIRE(!__builtin_add_overflow(d->first, d->count, &end) && (!d->total || end <= d->total),
                "elements %zu to %zu exceed the total of %zu", d->first, d->first + d->count,
                d->total);
    *out = d->total ? d->total : end;
    DS__REQUIRE((uint64_t)*out <= (uint64_t)1 << 60,
                "the fill has %zu elements; at most 2^60 are allowed", *out);
    return DS_OK;
}

/* Checks generator, stream and distribution, and translates them into kernel and arguments. */
static ds_result ds__rng_request_translate(ds__rng_request *q) {
    const ds_rng_fill_desc *d = q->desc;
    const ds__generator *g = q->generator;
    const ds__stream *s = q->stream;
    int torch = g->mapping == DS_RNG_TORCH;
    ds_result r;
    if (g->device.type != s->device.type || g->device.index != s->device.index)
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "the generator belongs to %s:%d, but the stream belongs to %s:%d",
                        ds__type_name(g->device.type), g->device.index,
                        ds__type_name(s->device.type), s->device.index);
    if (torch && q->part && d->kind != DS_RNG_PERMUTATION)
        return ds__fail(DS_ERR_INVALID_VALUE, "torch's mapping does not support parts of a fill");

    if (d->kind <= DS_RNG_EXPONENTIAL)
        r = ds__rng_reals(d, torch, &q->args, &q->which);
    else if (d->kind == DS_RNG_PERMUTATION)
        r = ds__rng_order(d, q->total, &q->args, &q->which);
    else
        r = ds__rng_whole(d, torch, &q->args, &q->which);
    if (r == DS_OK && q->which == DS__RNG_UNIFORMS && q->args.kind == DS__RNG_F32 && !torch)
        q->which = DS__RNG_UNIFORM32;
    return r;
}

/* Checks the memory that is written: its alignment, and that it is on the stream's device. */
static ds_result ds__rng_request_check_out(ds__rng_request *q) {
    const ds_rng_fill_desc *d = q->desc;
    const ds__stream *s = q->stream;
    ds_pointer_info p;
    int known;
    size_t size = ds__rng_size(q->args.kind);
    q->args.out = d->out;
    q->args.stride = 1;
    q->bytes = d->count * size; /* ds__rng_request_total allows 2^60 elements, of 8 bytes at most */
    if (!d->count)
        return DS_OK;
    if ((uintptr_t)d->out % size)
        return ds__fail(DS_ERR_INVALID_VALUE, "out is %p; it must be a multiple of %zu", d->out,
                        size);
    ds_result r = ds__copy_operand_find(d->out, q->bytes, "out", &p, &known);
    if (r == DS_OK && known && p.kind == DS_MEMORY_DEVICE &&
        (p.device.type != s->device.type || p.device.index != s->device.index))
        r = ds__fail(DS_ERR_DEVICE_MISMATCH, "out is on %s:%d, but the stream is on %s:%d",
                     ds__type_name(p.device.type), p.device.index, ds__type_name(s->device.type),
                     s->device.index);
    return r;
}

/* Enqueues the fill, for the capture of the stream if there is one. Tries again if a capture begins
   or ends meanwhile (DS__CHANGED). */
static ds_result ds__rng_request_put(ds__rng_request *q, ds__rng_way *w) {
    const ds_rng_fill_desc *d = q->desc;
    ds__generator *g = q->generator;
    ds__attachment a = { .key = g,
                         .make_fn = ds__rng_graph_attach,
                         .user = g,
                         .release_fn = ds__rng_graph_release,
                         .launch_fn = ds__rng_launch,
                         .launch_lock_fn = ds__rng_launch_lock };
    ds_result r = DS__CHANGED;
    for (int i = 0; i < 100 && r == DS__CHANGED; i++) {
        ds__object_unref(q->kept);
        r = ds__capture_attachment(q->stream, &a, &q->kept);
        if (r != DS_OK)
            break;
        w->graph = q->kept ? q->kept->user : NULL;
        w->offset = w->graph ? &w->graph->taken : &g->offset;
        r = q->part ? ds__rng_put(w, &q->args, d->first, d->count, q->total)
                    : ds__rng_cut(w, &q->args, d->count);
    }
    if (r == DS__CHANGED)
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "captures began and ended on the stream during the call; try again");
    return r;
}

/* Enqueues a fill whose arguments are translated, and tells observers of it. */
static ds_result ds__rng_request_submit(ds__rng_request *q) {
    ds__generator *g = q->generator;
    ds__rng_way w = { .generator = g, .stream = q->stream };
    uint64_t before = g->offset;
    ds_result r = ds__rng_request_check_out(q);
    if (r == DS_OK)
        r = ds__rng_kernel(q->which, &w.kernel);
    if (r < 0)
        return r;
    if (ds__observer_is_set())
        ds__rng_observe(DS__SEEN_BEGIN, &q->args, q->bytes, q->stream, r);
    r = ds__rng_request_put(q, &w);
    if (ds__observer_is_set())
        ds__rng_observe(DS__SEEN_END, &q->args, q->bytes, q->stream, r);
    if (g->offset != before)
        g->changes++;
    return r;
}

/* Checks and enqueues a fill. The generator is locked meanwhile. */
static ds_result ds__rng_fill(ds_rng rng, const ds_rng_fill_desc *d, ds__stream *s) {
    ds__rng_request q;
    memset(&q, 0, sizeof q);
    q.desc = d;
    q.stream = s;
    ds_result r = ds__rng_request_total(d, &q.total);
    if (r < 0)
        return r;
    q.part = d->first || q.total != d->count;
    r = ds__generator_ref(rng, s->device, &q.generator);
    if (r < 0)
        return r;

    ds__mutex_lock(&q.generator->lock);
    r = ds__rng_request_translate(&q);
    if (r == DS_OK && q.total)
        r = ds__rng_request_submit(&q);
    ds__mutex_unlock(&q.generator->lock);

    ds__object_unref(q.kept);
    ds__generator_unref(q.generator);
    return r;
}

static ds_result ds__rng_fill_on(ds_rng rng, const ds_rng_fill_desc *d, ds_stream stream) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__rng_fill(rng, d, s);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_rng_fill)(ds_rng rng, const ds_rng_fill_desc *desc, ds_stream stream) {
    DS__ENTER("ds_rng_fill");
    DS__REQUIRE(desc, "desc is NULL");
    DS__REQUIRE_RESERVED("ds_rng_fill_desc", desc);
    return ds__rng_fill_on(rng, desc, stream);
}

DSDEF ds_result(ds_rng_uniform)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double from,
                                double to, ds_stream stream) {
    DS__ENTER("ds_rng_uniform");
    ds_rng_fill_desc d = {
        .kind = DS_RNG_UNIFORM, .dtype = dtype, .out = out, .count = count, .a = from, .b = to
    };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_normal)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double mean,
                               double deviation, ds_stream stream) {
    DS__ENTER("ds_rng_normal");
    ds_rng_fill_desc d = {
        .kind = DS_RNG_NORMAL, .dtype = dtype, .out = out, .count = count, .a = mean, .b = deviation
    };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_exponential)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                    double rate, ds_stream stream) {
    DS__ENTER("ds_rng_exponential");
    ds_rng_fill_desc d = {
        .kind = DS_RNG_EXPONENTIAL, .dtype = dtype, .out = out, .count = count, .a = rate
    };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_integers)(ds_rng rng, ds_dtype dtype, void *out, size_t count, int64_t low,
                                 int64_t high, ds_stream stream) {
    DS__ENTER("ds_rng_integers");
    ds_rng_fill_desc d = { .kind = DS_RNG_INTEGERS,
                           .dtype = dtype,
                           .out = out,
                           .count = count,
                           .low = low,
                           .high = high };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_bernoulli)(ds_rng rng, ds_dtype dtype, void *out, size_t count, double p,
                                  ds_stream stream) {
    DS__ENTER("ds_rng_bernoulli");
    ds_rng_fill_desc d = {
        .kind = DS_RNG_BERNOULLI, .dtype = dtype, .out = out, .count = count, .a = p
    };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_bits)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                             ds_stream stream) {
    DS__ENTER("ds_rng_bits");
    ds_rng_fill_desc d = { .kind = DS_RNG_BITS, .dtype = dtype, .out = out, .count = count };
    return ds__rng_fill_on(rng, &d, stream);
}

DSDEF ds_result(ds_rng_permutation)(ds_rng rng, ds_dtype dtype, void *out, size_t count,
                                    ds_stream stream) {
    DS__ENTER("ds_rng_permutation");
    ds_rng_fill_desc d = { .kind = DS_RNG_PERMUTATION, .dtype = dtype, .out = out, .count = count };
    return ds__rng_fill_on(rng, &d, stream);
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
