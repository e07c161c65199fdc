/* alloc/api_pool.h - pools: create, destroy, push, pop.

   Implements the functions of pools, except checkpoints, statistics and ds_capture_set_pool.

   Invariants: A pool object stays until shutdown. A pool object without owners and memory may
   become a new pool with another handle (ds__mem_pool_reuse), so ds_pool_destroy and ds_pool_push
   compare the handle again. A capture's own pool (name[0] is not 0) cannot be destroyed by its
   handle. A pool with a handle always uses the native backend.
   Locks: The functions take ds__memory_state.lock and the device lock; if both, in this order.
   ds_pool_destroy and ds_pool_empty_cache hold no lock when they begin to give memory back
   (trim.h).
   Threads: any caller's thread; pushes belong to the calling thread. */
#ifndef DS__ALLOC_API_POOL_H
#define DS__ALLOC_API_POOL_H

#include "../core/internal.h"
#include "types.h"
#include "config.h"
#include "state.h"
#include "util.h"
#include "pool.h"
#include "validate.h"
#include "upstream.h"
#include "trim.h"

/* Checks the description of a pool, except its device and most of its configuration. */
static ds_result ds__pool_desc_check(const ds_pool_desc *desc) {
    DS__REQUIRE_RESERVED("ds_pool_desc", desc);
    DS__REQUIRE(!desc->alloc_fn == !desc->free_fn,
                "alloc_fn and free_fn must both be set or both be NULL");
    DS__REQUIRE(!desc->upstream || !desc->alloc_fn,
                "a pool has one upstream: set alloc_fn or upstream, not both");
    DS__REQUIRE(!desc->upstream || (desc->upstream->alloc_fn && desc->upstream->free_fn),
                "the upstream has no functions: was it destroyed?");
    DS__REQUIRE(!desc->config || desc->config->backend == DS_MEM_NATIVE,
                "ds_pool_desc.config has the backend %d; a pool needs %d, DS_MEM_NATIVE",
                desc->config->backend, DS_MEM_NATIVE);
    DS__REQUIRE(!desc->shareable || (!desc->alloc_fn && !desc->upstream),
                "a shareable pool cannot have an upstream");
    return DS_OK;
}

DSDEF ds_result(ds_pool_create)(const ds_pool_desc *desc, ds_pool *out) {
    static const ds_pool_desc none;
    if (out)
        out->id = 0;
    DS__ENTER("ds_pool_create");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    ds_result r = ds__pool_desc_check(desc);
    if (r < 0)
        return r;
    ds_device device = desc->device;
    DS__RESOLVE(device);
    r = desc->config ? ds__config_check(desc->config) : DS_OK;
    if (r < 0)
        return r;
    ds__mem_dev *dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();

    ds_mem_config c = desc->config ? *desc->config : ds__config_of(dev);
    c.backend = DS_MEM_NATIVE;
    ds_pool_desc d = *desc;
    /* without a configuration, the limits of the device's own apply anyway */
    size_t by_config = d.config ? ds__config_limit(d.config, dev->total) : 0;
    if (by_config && (!d.limit || by_config < d.limit))
        d.limit = by_config;
    ds__mem_pool *p = ds__mem_pool_create(dev, &c, &d, 0);
    if (!p)
        return DS_ERR_OUT_OF_MEMORY;
    out->id = p->id;
    return DS_OK;
}

DSDEF ds_result(ds_pool_destroy)(ds_pool pool) {
    DS__MEM_ENTER("ds_pool_destroy");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (p->name[0])
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "the pool belongs to a capture or its graph and cannot be destroyed");
    ds__mutex_lock(&ds__memory_state.lock);
    int gone = p->dead || p->id != pool.id; /* the object may be a newer pool's */
    if (!gone)
        p->dead = 1;
    ds__mutex_unlock(&ds__memory_state.lock);
    if (gone)
        return ds__fail(DS_ERR_INVALID_HANDLE, "the pool was destroyed already");
    ds__mem_dev_lock(p->dev);
    p->use_on_oom = 0;
    int last = --p->owners == 0;
    ds__mem_dev_unlock(p->dev);
    if (last)
        (void)ds__mem_flush(p->dev, p, 0);
    return DS_OK;
}

DSDEF ds_result(ds_pool_push)(ds_pool pool) {
    DS__ENTER("ds_pool_push");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (ds__pool_push_count() == DS__POOL_PUSHES)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "%d pools are pushed, the maximum", DS__POOL_PUSHES);
    ds__mem_pool_own(p);
    if (p->id != pool.id) { /* the pool was destroyed, and its object is a newer pool's */
        ds__mem_pool_disown(p);
        return ds__fail(DS_ERR_INVALID_HANDLE, "the pool was destroyed already");
    }
    ds__memory_thread.pool[ds__memory_thread.pools++] = pool;
    return DS_OK;
}

DSDEF ds_result(ds_pool_pop)(void) {
    DS__ENTER("ds_pool_pop");
    if (ds__pool_push_count() == 0)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "no pool was pushed");
    ds_pool pool = ds__memory_thread.pool[--ds__memory_thread.pools];
    ds__mutex_lock(&ds__memory_state.lock);
    ds__mem_pool *p = ds__mem_pool_at(pool); /* destroyed pools too */
    ds__mutex_unlock(&ds__memory_state.lock);
    if (p)
        ds__mem_pool_disown(p);
    return DS_OK;
}

DSDEF ds_result(ds_pool_get_use_count)(ds_pool pool, int *out) {
    if (out)
        *out = 0;
    DS__MEM_ENTER("ds_pool_get_use_count");
    DS__REQUIRE(out, "out is NULL");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__mem_dev_lock(p->dev);
    *out = p->owners;
    ds__mem_dev_unlock(p->dev);
    return DS_OK;
}

DSDEF ds_result(ds_pool_get_id)(ds_pool pool, uint64_t out_id[2]) {
    if (out_id)
        out_id[0] = out_id[1] = 0;
    DS__ENTER("ds_pool_get_id");
    DS__REQUIRE(out_id, "out_id is NULL");
    if (!pool.id)
        return DS_OK;
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    out_id[0] = p->name[0];
    out_id[1] = p->name[1];
    return DS_OK;
}

DSDEF ds_result(ds_pool_empty_cache)(ds_pool pool, size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_pool_empty_cache");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (ds__captures_open())
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "cached memory cannot be freed while a capture is open");
    if (ds__is_inside(p))
        return ds__inside_fail();
    ds_result r = DS__UNLIKELY(ds__sync_watched())
                      ? ds__sync_tell("waits for blocks in use by other streams")
                      : DS_OK;
    if (r == DS_OK)
        r = ds__pool_check(p, 1);
    if (r < 0)
        return r;
    size_t done = ds__mem_flush(p->dev, p, 0);
    if (out_released)
        *out_released = done;
    return DS_OK;
}

#endif
