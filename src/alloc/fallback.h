/* alloc/fallback.h - fallback chain of a request.

   Serves a request for which the arena has no free block (ds__ask_slow). ds__fallback_serve, the
   fallback chain, tries all sources of memory in order. ds__segment_obtain gets memory from the
   driver or the upstream. If all fails, ds__tell_oom informs the callbacks and ds__oom_report
   (oom_report.h) sets the error.

   Policy: The arena is searched again after each step.
   1. Free the pending blocks of the arena if their uses are done (not while a capture is open).
   2. Take a pending block and make the request's stream wait for its uses, if `reuse` permits
      this, or graph_capture_record_stream_reuse during a capture.
   3. Cross-stream reuse of ended streams' blocks in the pool; with DS_REUSE_ALWAYS, of all
      streams'.
   4. Collect exported blocks without users, then garbage (garbage_collection_threshold).
   5. Grow, by pages or by a plain segment.
   6. Cross-stream reuse in pools with use_on_oom.
   7. Give back blocks of max_split_size or more, and grow.
   8. Unless `reuse` is never: cross-stream reuse of all arenas of the pool.
   9. Empty the caches, shrink the driver's pool, and grow (not while a capture is open).
   10. Repeat the cross-stream reuse of steps 3, 6 and 8, now also of pending blocks of more than
       twice the size.
   11. Invoke the shortage callbacks. If memory was freed, repeat once from step 5.

   Invariants: A request that fails has taken no block. Errors of single steps are muted
   (ds__tls.mute); only the last result reaches the caller. A request from inside a pool's
   upstream for the same pool is refused.
   Locks: ds__ask_slow expects no spinlock. ds__segment_obtain holds `grow` of the arena while the
   driver or the program's upstream allocates. Shortage and out-of-memory callbacks run without a
   lock of this call. ds__memory_state.lock is held only to read one entry of the list of callbacks.
   Threads: any caller's thread. Other threads may take memory that a step has found, so growing
   is tried up to 16 times. */
#ifndef DS__ALLOC_FALLBACK_H
#define DS__ALLOC_FALLBACK_H

#include "../core/internal.h"
#include "types.h"
#include "config.h"
#include "state.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "pool.h"
#include "callbacks.h"
#include "stream_use.h"
#include "pending.h"
#include "validate.h"
#include "ipc_collect.h"
#include "upstream.h"
#include "segment_plain.h"
#include "segment_grow.h"
#include "trim.h"
#include "request.h"
#include "reuse.h"
#include "oom_report.h"

/* Gets memory for a request: by pages of a growing segment, or by a plain segment. Sets q->block if
   another thread has made room meanwhile. No lock is held. */
static ds_result ds__segment_obtain(ds__wanted *q) {
    ds__arena *a = q->a;
    ds__mem_dev *dev = a->dev;
    ds_result r = DS_ERR_UNSUPPORTED;
    ds__mutex_lock(&a->grow);
    if (ds__request_try(q)) { /* another thread was faster */
        ds__mutex_unlock(&a->grow);
        return DS_OK;
    }
    if (ds__pool_policy(a->pool)->expandable_segments && dev->has_space && !a->pool->has_upstream &&
        !a->pool->shareable && !a->pool->no_split) {
        r = ds__grow_mapped(a, q->kind, q->size);
        if (r != DS_ERR_UNSUPPORTED)
            dev->has_space = 1;
        else if (!dev->space_missed)
            dev->has_space = 0;
    }
    if (r == DS_ERR_UNSUPPORTED)
        r = ds__grow_plain(a, q->kind, q->size);
    ds__mutex_unlock(&a->grow);
    q->fresh = r == DS_OK;
    return r;
}

/* Invokes the shortage callbacks, which may call devstream, but must not allocate
   (ds__request_serve). Returns whether one has freed memory. No lock is held. */
static int ds__call_shortage(ds__mem_dev *dev, size_t size) {
    int freed = 0;
    for (size_t i = 0;; i++) {
        ds__callback c = ds__callback_get(&ds__memory_state.shortage, i);
        if (!c.fn)
            return freed;
        ds__user_code g = ds__user_code_begin();
        ds__tls.in_callback = g.outer;
        ds__memory_thread.in_shortage = 1;
        freed |= ((ds_mem_shortage_fn)c.fn)(dev->device, size, c.user) != 0;
        ds__memory_thread.in_shortage = 0;
        ds__user_code_end(&g);
    }
}

/* Steps 1 to 4: searches memory that the allocator has. 1: q->block is found. */
static int ds__fallback_cached(ds__wanted *q, const ds_mem_config *c, int no_query) {
    ds__arena *a = q->a;
    ds__mem_pool *p = a->pool;
    if (!no_query && ds__pending_poll(a, 0) && ds__request_try(q))
        return 1;

    int behind = c->reuse != DS_REUSE_NEVER ||
                 (c->graph_capture_record_stream_reuse && ds__capture_of_handle(q->stream));
    ds__pending_wanted pending = {
        .kind = q->kind, .size = q->size, .most = SIZE_MAX, .stream = q->stream
    };
    if (behind && ds__take_pending(a, &pending) && ds__request_try(q))
        return 1;

    /* free memory of ended streams may be used by any stream */
    if (ds__reuse_from_any(q, p, c->reuse != DS_REUSE_ALWAYS))
        return 1;
    if (ds__share_collect() && ds__request_try(q))
        return 1;
    ds__collect_garbage(a->dev, p);
    return 0;
}

/* Grows the arena and searches it again, because another thread may have taken the new memory. Sets
   q->block if a block was found. */
static ds_result ds__fallback_grow(ds__wanted *q) {
    ds_result r = ds__segment_obtain(q);
    if (r == DS_OK && !q->block)
        (void)ds__request_try(q);
    return r;
}

/* Steps 6 to 10: searches other pools and streams, and returns cached memory to the driver in
   order to grow. Returns the last result of growing, `r` if nothing grew. Sets q->block if a
   block was found. */
static ds_result ds__fallback_release(ds__wanted *q, const ds_mem_config *c, int no_query,
                                      ds_result r) {
    ds__arena *a = q->a;
    ds__mem_pool *p = a->pool;
    ds__mem_dev *dev = a->dev;
    if (ds__reuse_from_pools(q))
        return DS_OK;
    if (ds__release_oversize(a, q->size)) {
        r = ds__fallback_grow(q);
        if (q->block)
            return DS_OK;
    }
    if (c->reuse != DS_REUSE_NEVER && ds__reuse_from_any(q, p, 0))
        return DS_OK;

    if (!no_query) {
        (void)ds__mem_flush(dev, NULL, 0);
        if (p != &dev->main)
            (void)ds__mem_flush(dev, p, 0);
        ds__async_give(dev, 0);
        if (ds__request_try(q))
            return DS_OK;
        DS__COUNT_CALL(a, retries, 1);
        r = ds__fallback_grow(q);
        if (q->block)
            return DS_OK;
    }

    q->wasteful = 1;
    (void)(ds__reuse_from_any(q, p, c->reuse == DS_REUSE_NEVER) || ds__reuse_from_pools(q));
    q->wasteful = 0;
    return r;
}

/* The fallback chain: tries all sources of memory in order. The arena is searched again after
   every step. */
static ds_result ds__fallback_serve(ds__wanted *q) {
    ds__arena *a = q->a;
    const ds_mem_config *c = ds__pool_policy(a->pool);
    int no_query = ds__captures_open() != 0; /* 1: events must not be queried */
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    if (ds__is_inside(a->pool))
        return ds__inside_fail();
    if (ds__fallback_cached(q, c, no_query))
        return DS_OK;

    for (int round = 0; round < 2; round++) {
        for (int again = 0; again < 16; again++) { /* another thread may take the new memory */
            r = ds__fallback_grow(q);
            if (q->block)
                return DS_OK;
            if (r < 0)
                break;
        }
        if (r < 0 && !ds__is_shortage(r))
            return r;
        r = ds__fallback_release(q, c, no_query, r);
        if (q->block)
            return DS_OK;

        if (round > 0 || !ds__call_shortage(a->dev, q->asked))
            break;
        if (!no_query && c->poll_on_alloc)
            (void)ds__pending_poll(a, 0);
        if (ds__request_try(q))
            return DS_OK;
    }
    return r == DS_OK ? DS_ERR_OUT_OF_MEMORY : r;
}

/* Records an out-of-memory event and invokes the callbacks. `needed`: the bytes that the driver was
   asked for. No lock is held. */
static void ds__tell_oom(ds__arena *a, size_t needed) {
    ds__mem_dev *dev = a->dev;
    size_t avail = 0;
    size_t total = 0;
    size_t limit = atomic_load(&dev->limit);
    DS_IGNORE(ds__driver_of(dev->device)->device_memory(dev->device.index, &avail, &total));
    size_t reserved = atomic_load(&dev->reserved);
    if (limit && avail > limit - (reserved < limit ? reserved : limit))
        avail = limit - (reserved < limit ? reserved : limit);
    ds__mem_note(dev, &(ds__history_event){ .address = avail,
                                            .bytes = needed,
                                            .stream = a->stream_id,
                                            .pool = a->pool->id,
                                            .file = ds__tls.site.file,
                                            .label = ds__mem_label(),
                                            .line = (uint32_t)ds__tls.site.line,
                                            .action = DS_ACTION_OOM });
    for (size_t i = 0;; i++) {
        ds__callback c = ds__callback_get(&ds__memory_state.oom, i);
        if (!c.fn)
            return;
        ds__user_code g = ds__user_code_begin();
        ((ds_mem_oom_fn)c.fn)(dev->device, needed, limit ? limit : total, avail, c.user);
        ds__user_code_end(&g);
    }
}

/* Serves a request for which the arena has no free block. If that fails, counts and reports the
   failure. No lock is held. */
static ds_result ds__ask_slow(ds__wanted *q) {
    ds__arena *a = q->a;
    const ds_mem_config *c = ds__pool_policy(a->pool);
    int huge = q->size >= (size_t)1 << 60;
    ds_result r = ds__pool_check(a->pool, 1);
    ds__memory_thread.upstream_empty = 0;
    if (r < 0)
        return r;
    if (huge) {
        r = DS_ERR_OUT_OF_MEMORY;
    } else {
        ds__tls.mute++; /* errors of single steps do not reach the caller */
        r = ds__fallback_serve(q);
        ds__tls.mute--;
        if (r == DS_OK)
            return r;
        if (!ds__is_shortage(r) && !ds__tls.mute)
            memcpy(ds__tls.error, ds__tls.aside, sizeof ds__tls.error);
    }
    if (!ds__is_shortage(r))
        return r;

    DS__COUNT_CALL(a, ooms, 1);
    if (r == DS_ERR_LIMIT_EXCEEDED && ds__pool_policy(&a->dev->main)->throw_on_cudamalloc_oom)
        DS__COUNT_CALL(a, rejections, 1);
    ds__tell_oom(a, ds__config_segment_size(c, q->kind, huge ? q->asked : q->size));
    ds__oom_report(q, huge ? q->size : ds__config_segment_size(c, q->kind, q->size), r);
    return r;
}

#endif
