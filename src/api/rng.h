/* api/rng.h - generators of random numbers.

   Declares generators and their mappings, and the functions that create, clone, destroy and
   describe them.

   Threads: any. Several threads may use one generator concurrently. */
#ifndef DS__API_RNG_H
#define DS__API_RNG_H

#include "device.h"

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

#endif
