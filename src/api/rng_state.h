/* api/rng_state.h - seeds and states of generators.

   Declares the functions that set and read seed, offset and state, for a generator, the
   generator of a device, and those of all devices. */
#ifndef DS__API_RNG_STATE_H
#define DS__API_RNG_STATE_H

#include "rng.h"

/* ---- seeds and states ------------------------------------------------------------------------ */

/* A zeroed generator is that of the current device in this section. While a capture that uses a
   generator is open, its seed cannot change (setting the one that it has is allowed), and its
   offset and state cannot be asked for or set: DS_ERR_CAPTURE_UNSUPPORTED, and the capture goes
   on. */

/** Sets the seed, and the offset to 0. */
DSDEF DS_MUST_USE ds_result ds_rng_set_seed(ds_rng rng, uint64_t seed);
/** Takes a random seed, from the operating system, and sets the offset to 0. out_seed may be
    NULL. */
DSDEF DS_MUST_USE ds_result ds_rng_reseed(ds_rng rng, uint64_t *out_seed);
/** The seed as it was set last. */
DSDEF DS_MUST_USE ds_result ds_rng_get_seed(ds_rng rng, uint64_t *out_seed);
/** Words that were given since it was seeded. */
DSDEF DS_MUST_USE ds_result ds_rng_get_offset(ds_rng rng, uint64_t *out_offset);
/** Goes to a place in the sequence. DS_ERR_INVALID_VALUE unless it is a multiple of 4, and less
    than 2^63. */
DSDEF DS_MUST_USE ds_result ds_rng_set_offset(ds_rng rng, uint64_t offset);
/** Writes the DS_RNG_STATE_SIZE bytes of the state to host memory: torch's get_rng_state. */
DSDEF DS_MUST_USE ds_result ds_rng_get_state(ds_rng rng, void *out, size_t size);
/** Takes a state over, also torch's. A state of 8 bytes is a seed with the offset 0; another
    size than 8 or 16 is refused. */
DSDEF DS_MUST_USE ds_result ds_rng_set_state(ds_rng rng, const void *state, size_t size);

/** Seeds the generator of a device: torch.cuda.manual_seed. A type of device of which there is
    none here is ignored, as in torch. */
DSDEF DS_MUST_USE ds_result ds_rng_set_device_seed(ds_device device, uint64_t seed);
/** Seeds the generators of all devices of all drivers. */
DSDEF DS_MUST_USE ds_result ds_rng_set_seed_all(uint64_t seed);
/** Seeds the generator of a device at random: torch.cuda.seed. out_seed may be NULL. A type of
    device of which there is none here is ignored, and *out_seed is 0. */
DSDEF DS_MUST_USE ds_result ds_rng_reseed_device(ds_device device, uint64_t *out_seed);
/** Seeds the generators of all devices with one random seed. out_seed may be NULL. */
DSDEF DS_MUST_USE ds_result ds_rng_reseed_all(uint64_t *out_seed);
/** The seed of a device's generator: torch.cuda.initial_seed. */
DSDEF DS_MUST_USE ds_result ds_rng_get_device_seed(ds_device device, uint64_t *out_seed);
/** The states of the generators of all devices of a type, one behind the other. *out_count: how
    many devices there are; out may be NULL, and has room for `capacity` states, else
    DS_ERR_INVALID_VALUE. A zeroed type is that of the current device. */
DSDEF DS_MUST_USE ds_result ds_rng_get_state_all(ds_device_type type, void *out, size_t capacity,
                                                 size_t *out_count);
/** Gives each device of a type the state at its index; count: how many, at most as many as there
    are devices. All are checked before the first is set. */
DSDEF DS_MUST_USE ds_result ds_rng_set_state_all(ds_device_type type, const void *states,
                                                 size_t count);

#endif
