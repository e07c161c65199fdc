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
#ifndef DS__RNG_GENERATOR_API_H
#define DS__RNG_GENERATOR_API_H

#include "../base/graph_body.h"
#include "../core/internal.h"
#include "generator.h"

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

#endif
