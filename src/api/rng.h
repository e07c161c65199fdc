/* api/rng.h - generators of random numbers.

   Declares generators and their mappings, and the functions that create, clone, destroy and
   describe them.

   Threads: any. Several threads may use one generator concurrently. */
#ifndef DS__API_RNG_H
#define DS__API_RNG_H

#include "device.h"

/* ---- generators ------------------------------------------------------------------------------ */

/** A generator. Zeroed: the one of the device that it is used on. */
typedef struct ds_rng {
    uint64_t id; /**< index and generation; 0: the device's own */
} ds_rng;

/** Which numbers of the sequence an element gets; see the top of this file. */
typedef enum ds_rng_mapping {
    DS_RNG_ELEMENT = 0, /**< by its index: the same everywhere */
    DS_RNG_TORCH = 1    /**< as torch.cuda deals them out to the threads of a GPU */
} ds_rng_mapping;

/** The seed of generators that were not seeded (torch's). Those of devices begin with a random
    one. */
#define DS_RNG_DEFAULT_SEED UINT64_C(67280421310721)

/** Bytes of a state: the seed, then the offset, in the machine's order (torch's). */
#define DS_RNG_STATE_SIZE 16

/** What ds_rng_create takes. */
typedef struct ds_rng_desc {
    ds_device device; /**< zeroed: the thread's current one */
    /** 0: DS_RNG_DEFAULT_SEED; for the seed 0 call ds_rng_set_seed */
    uint64_t seed;
    ds_rng_mapping mapping; /**< see there */
    /** DS_RNG_TORCH: of the GPU whose numbers are wanted; 0: the device's own, on a CPU device
        132 (H100, H200) */
    int multiprocessors;
    /** DS_RNG_TORCH: how many threads one can have at a time, a multiple of 256; 0: the device's
        own, on a CPU device 2048. In all less than 2^32 */
    int threads_per_multiprocessor;
    const char *label;    /**< for messages; copied; may be NULL */
    uint64_t reserved[4]; /**< 0 */
} ds_rng_desc;

/** What ds_rng_get_info gives. */
typedef struct ds_rng_info {
    ds_device device;               /**< where it is used */
    uint64_t seed;                  /**< its seed */
    uint64_t offset;                /**< words that it has given, a multiple of 4 */
    ds_rng_mapping mapping;         /**< which numbers an element gets */
    int multiprocessors;            /**< of DS_RNG_TORCH */
    int threads_per_multiprocessor; /**< of DS_RNG_TORCH */
    uint64_t reserved[4];           /**< 0 */
} ds_rng_info;

/** Makes a generator for the streams of a device; its offset is 0. NULL: of the current device,
    all defaults. Any thread, also during a capture. */
DSDEF DS_MUST_USE ds_result ds_rng_create(const ds_rng_desc *desc, ds_rng *out);
/** Makes one in the same state (torch's clone_state). DS_ERR_CAPTURE_UNSUPPORTED while a capture
    that uses the generator is open. */
DSDEF DS_MUST_USE ds_result ds_rng_clone(ds_rng rng, ds_rng *out);
/** The handle becomes invalid. Pending fills still run, and graphs with fills of it go on taking
    numbers from it. A device's own cannot be destroyed: DS_ERR_INVALID_HANDLE, and
    DS_ERR_INVALID_VALUE of a zeroed one. */
DSDEF DS_MUST_USE ds_result ds_rng_destroy(ds_rng rng);
/** The generator of a device, which is made and seeded at random at first use. It needs no
    destroying. */
DSDEF DS_MUST_USE ds_result ds_rng_get_default(ds_device device, ds_rng *out);
/** Where it is and how far it has come. Fills that are captured do not move the offset; launches
    do. */
DSDEF DS_MUST_USE ds_result ds_rng_get_info(ds_rng rng, ds_rng_info *out);
/** Changes the mapping of later fills; as in ds_rng_desc. */
DSDEF DS_MUST_USE ds_result ds_rng_set_mapping(ds_rng rng, ds_rng_mapping mapping,
                                               int multiprocessors, int threads_per_multiprocessor);

#endif
