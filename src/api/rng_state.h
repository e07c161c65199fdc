/* api/rng_state.h - seeds and states of generators.

   Declares the functions that set and read seed, offset and state: for a generator, a device's own
   generator, and those of all devices. */
#ifndef DS__API_RNG_STATE_H
#define DS__API_RNG_STATE_H

#include "rng.h"

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

#endif
