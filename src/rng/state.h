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
#ifndef DS__RNG_STATE_H
#define DS__RNG_STATE_H

#include "../core/internal.h"
#include "generator.h"
#include "generator_api.h"

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

#endif
