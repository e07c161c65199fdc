/* alloc/direct_alloc.h - allocation without a cache.

   Allocates blocks for the backends DS_MEM_DRIVER_POOL and DS_MEM_UNCACHED (ds__direct_alloc).
   ds__direct_reserve reserves the bytes under the limits and calls the driver. direct_free.h
   implements the frees.

   Policy: Without a cache every block is a segment, from the driver's own pool or plain memory.
   1. Driver's pool: the block's stream waits for the other uses and gives the block back in
      stream order. Memory of an ended stream is given back on a stream of the allocator, behind
      the end of the ended stream. The host waits only when a limit is near. The limit also
      covers memory of the pool that no block has: enqueued frees and cached memory. An
      allocation that would pass the limit first waits for these frees and shrinks the pool.
   2. Plain memory: the host waits for the block's stream and for the uses of other streams. The
      host waits for the device only if nothing else is known to wait for.
   3. If a block cannot be given back now, because of a capture or a failed driver call, the
      block is deferred. A deferred block stays pending in its arena's list. Allocations, frees,
      flushes and changes of the policy try again. At shutdown a deferred block ends with its
      segment.

   Invariants: A stream that captures gets no memory here: DS_ERR_CAPTURE_UNSUPPORTED. Only the
   default pool of a device has such a backend. Reserved bytes either become a segment, or are
   given back by ds__segment_unreserve. `async_bytes` is the sum of the blocks from the driver's
   pool.
   Locks: ds__direct_alloc expects no lock. The driver and shortage callbacks are called without
   a lock. The new block is entered under the arena's lock, or under all locks of the device if
   the counters need room. Observers may be invoked under these locks.
   Threads: any caller's thread. Near a limit the host may wait. */
#ifndef DS__ALLOC_DIRECT_ALLOC_H
#define DS__ALLOC_DIRECT_ALLOC_H

#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "block.h"
#include "locks.h"
#include "pool.h"
#include "stream_use.h"
#include "validate.h"
#include "segment.h"
#include "direct_free.h"
#include "trim.h"
#include "request.h"
#include "watched.h"
#include "oom_report.h"
#include "free.h"
#include "fallback.h"

/* Returns memory of ds__direct_reserve that became no block. */
static void ds__direct_untake(ds__wanted *q, int async, void *base) {
    DS_IGNORE(async ? ds__async_free(q->s, base) : ds__segment_end(base, DS_MEMORY_DEVICE, 0));
    if (async)
        atomic_fetch_sub(&q->a->dev->async_bytes, q->size);
    ds__segment_unreserve(q->a, q->size);
}

/* Reserves the bytes of a request and takes them from the driver. No lock is held. */
static ds_result ds__direct_reserve(ds__wanted *q, int async, void **out) {
    ds__mem_dev *dev = q->a->dev;
    size_t limit = atomic_load(&dev->limit);
    size_t cached = 0;
    if (async && limit)
        (void)ds__async_has(dev, &cached);
    /* the pool may have a fitting piece and need not grow; only trying shows that */
    int reuse = cached >= q->size;
    ds_result r = reuse ? ds__reserve_with(q->a, q->size, 0) : ds__segment_reserve(q->a, q->size);
    if (r < 0)
        return r;
    r = async ? ds__async_alloc(q->s, q->size, out) : ds__segment_alloc(dev->device, q->size, out);
    if (async && r == DS_OK) {
        atomic_store(&dev->async, 1);
        atomic_fetch_add(&dev->async_bytes, q->size);
        /* the pool has grown beyond the limit */
        if (reuse && atomic_load(&dev->reserved) + ds__async_surplus(dev) > limit) {
            ds__direct_untake(q, async, *out);
            *out = NULL;
            return DS_ERR_LIMIT_EXCEEDED;
        }
    }
    if (r < 0)
        ds__segment_unreserve(q->a, q->size);
    return r;
}

/* Takes the memory of a request from the driver. After a shortage caches of other backends are
   emptied, and then the shortage callbacks are invoked, as in ds__fallback_serve. Errors are
   muted. */
static ds_result ds__direct_ask(ds__wanted *q, int async, void **out) {
    ds__arena *a = q->a;
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    ds__tls.mute++;
    for (int round = 0; round < 2 && q->size < (size_t)1 << 60; round++) {
        r = ds__direct_reserve(q, async, out);
        if (ds__is_shortage(r) && !ds__captures_open()) {
            (void)ds__mem_flush(a->dev, NULL, 0);
            ds__async_give(a->dev, 0);
            DS__COUNT_CALL(a, retries, 1);
            r = ds__direct_reserve(q, async, out);
        }
        if (!ds__is_shortage(r) || round > 0 || !ds__call_shortage(a->dev, q->asked))
            break;
    }
    ds__tls.mute--;
    return r;
}

/* Enters the only block of a segment as live, and counts both. The arena is locked and has room to
   count the block. */
static void ds__direct_publish(ds__wanted *q, const ds_mem_request *request, const ds_mem_config *c,
                               ds__mem_block *b) {
    ds__arena *a = q->a;
    ds__segment *seg = b->seg;
    seg->direct = 1;
    ds__count_reserved(a, q->kind, (int64_t)q->size);
    ds__count_segment(a, seg, 1);
    DS__COUNT_CALL(a, driver_allocs, 1);
    if (q->size >= c->max_split_size) {
        b->oversize = 1;
        ds__count_oversize(a, 1);
    }

    ds__block_mark_live(b, q->asked);
    if (request->label)
        b->label = request->label;
    ds__live_in(a, b);
    ds__count_alloc(a, q->kind, (int64_t)b->size, (int64_t)b->asked);
    ds__note_segment(a, DS_ACTION_SEGMENT_ALLOC, b->ptr, q->size);
    ds__note_block(a, DS_ACTION_ALLOC, b);
}

/* Makes a segment with one live block of the memory at `base`; q->block becomes the block. Returns
   0 without host memory, and the arena is as before. No lock is held. */
static int ds__direct_add(ds__wanted *q, const ds_mem_request *request, const ds_mem_config *c,
                          void *base) {
    ds__arena *a = q->a;
    int source = c->backend == DS_MEM_DRIVER_POOL ? DS__FROM_ASYNC : DS__FROM_DRIVER;
    ds__segment *seg = ds__segment_create(a, q->kind, source, base, q->size, 0);
    if (!seg)
        return 0;

    ds__arena_lock(a);
    int all = ds__count_begin(a, q->kind, (int64_t)q->size, (int64_t)q->asked);
    ds__mem_block *b = ds__segment_first_create(a, seg);
    if (b)
        ds__direct_publish(q, request, c, b);
    ds__count_end(a, all);
    q->block = b;
    if (!b)
        ds__segment_destroy(seg);
    return b != NULL;
}

/* Reports that the driver gave no memory, and returns `r`. After a shortage, the callbacks are
   invoked and the report is written. Another error becomes the thread's last error, since it was
   muted before. */
static ds_result ds__direct_refuse(ds__wanted *q, const ds_mem_config *c, ds_result r) {
    ds__arena *a = q->a;
    if (!ds__is_shortage(r)) {
        if (!ds__tls.mute)
            memcpy(ds__tls.error, ds__tls.aside, sizeof ds__tls.error);
        return r;
    }
    DS__COUNT_CALL(a, ooms, 1);
    if (r == DS_ERR_LIMIT_EXCEEDED && c->throw_on_cudamalloc_oom)
        DS__COUNT_CALL(a, rejections, 1);
    ds__tell_oom(a, q->size);
    ds__oom_report(q, q->size, r);
    return r;
}

/* Serves a request without a cache: the block is a segment of its own. No lock is held. */
static ds_result ds__direct_alloc(ds__wanted *q, const ds_mem_request *request, void **out) {
    ds__arena *a = q->a;
    ds__mem_pool *p = a->pool;
    const ds_mem_config *c = ds__pool_policy(p);
    int async = c->backend == DS_MEM_DRIVER_POOL;
    void *base = NULL;
    q->size = ds__request_block_size(c, request->size, 0);
    q->kind = ds__kind_of(c, q->size);
    DS__REQUIRE(request->alignment <= DS__UNIT, "an alignment of %zu needs the native backend",
                request->alignment);
    if (ds__captures_open() && ds__is_capturing(q->s))
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "only the native backend has memory for captures");
    ds_result r = ds__pool_check(p, 1);
    if (r < 0)
        return r;

    (void)ds__direct_again(a->dev, DS__WAIT_NONE);
    r = ds__direct_ask(q, async, &base);
    if (r < 0)
        return ds__direct_refuse(q, c, r);

    if (!ds__direct_add(q, request, c, base)) {
        ds__direct_untake(q, async, base);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", q->asked);
    }
    if (a->watched)
        r = ds__watched_alloc(q, c->guard_bytes);
    if (r < 0) {
        ds__arena_lock(a);
        DS_IGNORE(ds__free_slow(a, q->block));
        return r;
    }
    *out = base;
    return DS_OK;
}

#endif
