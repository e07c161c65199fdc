/* alloc/capture_pool.h - pools of captures.

   Gives captures their memory. A capture has one pool: a pool of its own, made at the first
   allocation (ds__capture_pool_of), or a pool named before (ds_capture_set_pool). The graph of the
   capture owns the pool. ds__capture_pool_ref keeps a pool that a request names for as long as the
   graph.

   Invariants: `graphs` counts the captures and graphs that use free memory of a pool. While the
   count is not 0, no memory of the pool is given back. Each attachment to a graph is also one
   owner of the pool. A capture has one attachment for its pool (key: the device) and one for
   each pool that requests name (key: the pool). After ds__memory_state.closing is set,
   ds__capture_pool_unref does nothing: ds_shutdown ends pools before graphs.
   Locks: ds__capture_pool_create runs under the graph's lock (core/capture.h) and takes
   ds__memory_state.lock, then all locks of the device. ds__capture_pool_unref takes
   ds__memory_state.leaving only. ds__is_capturing calls the driver.
   Threads: caller's threads. ds__capture_pool_unref runs on any thread, also on a thread of
   CUDA's, and calls neither the driver nor a public function. */
#ifndef DS__ALLOC_CAPTURE_POOL_H
#define DS__ALLOC_CAPTURE_POOL_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "util.h"
#include "pool.h"

/* The pool that a capture shall use; NULL: a new pool of the device. */
typedef struct ds__capture_wish {
    ds__mem_dev *dev;
    ds__mem_pool *pool;
} ds__capture_wish;

/* Makes or takes the pool of a capture, for ds__capture_attachment. */
static ds_result ds__capture_pool_create(uint64_t capture, void *user, void **out) {
    ds__capture_wish *wish = user;
    ds__mem_pool *p = wish->pool;
    if (!p) {
        ds_mem_config c = ds__config_of(wish->dev);
        c.backend = DS_MEM_NATIVE;
        p = ds__mem_pool_create(wish->dev, &c, &(ds_pool_desc){ 0 }, capture);
        if (!p)
            return DS_ERR_OUT_OF_MEMORY;
    } else {
        ds__mem_pool_own(p);
    }
    atomic_fetch_add(&p->graphs, 1);
    *out = p;
    return DS_OK;
}

/* Releases the pool after the last graph of a capture was destroyed. Runs on any thread and must
   not call devstream, so a later flush gives the memory of the pool back. */
static void ds__capture_pool_unref(void *user) {
    ds__mem_pool *p = user;
    ds__mutex_lock(&ds__memory_state.leaving);
    int closing = ds__memory_state.closing; /* 1: ds_shutdown frees the pools */
    ds__memory_state.leavers += !closing;
    ds__mutex_unlock(&ds__memory_state.leaving);
    if (closing)
        return;
    atomic_fetch_sub(&p->graphs, 1);
    ds__mem_pool_disown(p);
    ds__mutex_lock(&ds__memory_state.leaving);
    if (!--ds__memory_state.leavers)
        ds__condition_broadcast(&ds__memory_state.left);
    ds__mutex_unlock(&ds__memory_state.leaving);
}

/* Attaches a pool to the capture of the stream under a key. *out is NULL if the stream does not
   capture. */
static ds_result ds__capture_pool_attach(ds__stream *s, const void *key, ds__capture_wish *wish,
                                         ds__object **out) {
    return ds__capture_attachment(s,
                                  &(ds__attachment){ .key = key,
                                                     .make_fn = ds__capture_pool_create,
                                                     .user = wish,
                                                     .release_fn = ds__capture_pool_unref },
                                  out);
}

/* Keeps a pool that a request names for as long as the graph of the stream's capture. */
static ds_result ds__capture_pool_ref(ds__stream *s, ds__mem_pool *p) {
    ds__capture_wish wish = { p->dev, p };
    ds__object *kept;
    ds_result r = ds__capture_pool_attach(s, p, &wish, &kept);
    ds__object_unref(kept);
    return r;
}

/* Sets *out to the pool of the stream's capture, or to NULL if the stream does not capture. */
static ds_result ds__capture_pool_of(ds__stream *s, ds__mem_pool **out) {
    ds__mem_dev *dev = ds__mem_device(s->device);
    ds__capture_wish wish = { dev, NULL };
    ds__object *kept;
    if (!dev)
        return ds__mem_error();
    ds_result r = ds__capture_pool_attach(s, dev, &wish, &kept);
    *out = kept ? kept->user : NULL;
    ds__object_unref(kept);
    return r;
}

DSDEF ds_result(ds_capture_set_pool)(ds_stream stream, ds_pool pool) {
    DS__ENTER("ds_capture_set_pool");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__capture_wish wish = { p->dev, p };
    ds__object *kept = NULL;
    ds_result r = p->dev != ds__mem_device(s->device)
                      ? ds__fail(DS_ERR_DEVICE_MISMATCH,
                                 "the pool and the stream belong to different devices")
                      : ds__capture_pool_attach(s, p->dev, &wish, &kept);
    if (r == DS_OK && !kept)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    else if (r == DS_OK && kept->user != p)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the capture has already allocated memory");
    ds__object_unref(kept);
    ds__stream_unpin(s);
    return r;
}

#endif
