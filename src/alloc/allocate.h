/* alloc/allocate.h - allocation requests.

   Implements ds_mem_alloc and ds_mem_alloc_with. ds_mem_alloc has a fast path, which takes a
   free block of the stream's arena; ds__request_serve handles all other cases. ds__arena_route
   chooses the arena: in a named or pushed pool, in the capture's pool, or in the default pool.

   Invariants: The fast path runs only if no pool is pushed, no capture is open and the arena
   needs no special treatment (`slow`). A thread remembers the arena of the stream on which it
   allocated last; the fast path checks the stream's slot again under the arena's lock. A request
   for 0 bytes gives NULL and DS_OK. A failed request leaves no block behind.
   Locks: The fast path takes the arena's lock only; ds__take_oldest gives that lock up while
   events are queried. ds__request_serve expects no lock; fallback.h lists the locks of its steps.
   On the fast path observers are invoked under the arena's lock, in ds__request_serve without a
   lock.
   Threads: any caller's thread. The remembered arena is thread-local (ds__tls). Requests from a
   shortage callback are refused. */
#ifndef DS__ALLOC_ALLOCATE_H
#define DS__ALLOC_ALLOCATE_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "block.h"
#include "pool.h"
#include "arena.h"
#include "pending.h"
#include "capture_pool.h"
#include "request.h"
#include "align.h"
#include "watched.h"
#include "fallback.h"
#include "direct_alloc.h"

/* Returns whether the pool belongs to the stream's device. */
static int ds__pool_serves(const ds__mem_pool *p, const ds__stream *s) {
    return p->dev->device.type == s->device.type && p->dev->device.index == s->device.index;
}

/* Sets *out to the thread's last pushed pool of the stream's device, or to NULL. Allocations of an
   upstream ignore pushed pools. Returns 0 if a pushed pool was destroyed, and the error is set. */
static int ds__pool_pushed_find(const ds__stream *s, ds__mem_pool **out) {
    *out = NULL;
    for (unsigned i = ds__memory_thread.inside ? 0 : ds__pool_push_count(); i-- > 0;) {
        ds__mem_pool *pushed = ds__mem_pool_of(ds__memory_thread.pool[i]);
        if (!pushed)
            return 0;
        if (ds__pool_serves(pushed, s)) {
            *out = pushed;
            return 1;
        }
    }
    return 1;
}

/* Returns the pool that a request names, for a stream. A capture of the stream keeps the pool. On
   failure returns NULL and sets the error. */
static ds__mem_pool *ds__pool_named(ds__stream *s, ds_pool pool) {
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return NULL;
    if (!ds__pool_serves(p, s)) {
        ds__fail(DS_ERR_DEVICE_MISMATCH, "the pool belongs to %s:%d, the stream to %s:%d",
                 ds__type_name(p->dev->device.type), p->dev->device.index,
                 ds__type_name(s->device.type), s->device.index);
        return NULL;
    }
    if (ds__captures_open() && ds__capture_pool_ref(s, p) < 0)
        return NULL;
    return p;
}

/* Returns the arena for a request: in the named pool, the capture's pool, a pushed pool, or the
   default pool. On failure returns NULL and sets the error. */
static ds__arena *ds__arena_route(ds__stream *s, ds_stream handle, ds_pool pool) {
    ds__mem_pool *p = NULL;
    if (pool.id) {
        p = ds__pool_named(s, pool);
        if (!p)
            return NULL;
    } else {
        if (ds__captures_open() && ds__capture_pool_of(s, &p) < 0)
            return NULL;
        if (!p && !ds__pool_pushed_find(s, &p))
            return NULL;
    }
    return p ? ds__arena_in(p, s, handle) : ds__arena_main(s, handle);
}

/* Finds a block for the request: in its own arena, else by the fallback chain. */
static ds_result ds__request_find(ds__wanted *q, const char *label) {
    ds_result r = DS_OK;
    if (label)
        ds_mem_label_push(label);
    if (ds__pool_policy(q->a->pool)->poll_on_alloc && !ds__captures_open())
        (void)ds__pending_poll(q->a, 0);
    if (!ds__request_try(q))
        r = ds__ask_slow(q);
    if (label)
        ds_mem_label_pop();
    return r;
}

/* Serves a request with all its options. No lock is held. */
__attribute__((noinline)) static ds_result ds__request_serve(ds__stream *s,
                                                             const ds_mem_request *request,
                                                             void **out) {
    if (ds__memory_thread.in_shortage)
        return ds__fail(DS_ERR_NOT_PERMITTED, "a shortage callback must not allocate memory");
    ds__postponed_run(DS__POSTPONED_MEMORY);
    ds__arena *a = ds__arena_route(s, request->stream, request->pool);
    if (!a)
        return ds__mem_error();
    const ds_mem_config *c = ds__pool_policy(a->pool);
    size_t align = request->alignment > DS__UNIT ? request->alignment : 0;
    ds__wanted q = {
        .a = a, .stream = request->stream, .s = s, .asked = request->size, .aligned = align != 0
    };
    if (c->backend != DS_MEM_NATIVE && !a->pool->id)
        return ds__direct_alloc(&q, request, out);

    q.size = ds__request_block_size(c, request->size, align);
    q.kind = ds__kind_of(c, q.size);
    if (align && a->pool->no_split)
        return ds__fail(
            DS_ERR_INVALID_VALUE,
            "an alignment of %zu needs split blocks, but the pool has no_split; use at most 512",
            align);
    ds_result r = ds__request_find(&q, request->label);
    if (r < 0)
        return r;
    if (align && !ds__align_wanted(&q, align, q.size - align))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a block");
    else if (DS__UNLIKELY(a->watched))
        r = ds__watched_alloc(&q, c->guard_bytes);
    if (r < 0) {
        ds__block_end(atomic_load(&q.block->seg->arena), q.block);
        return r;
    }
    ds__note_block(a, DS_ACTION_ALLOC, q.block);
    *out = q.block->ptr;
    return DS_OK;
}

/* Returns the arena of a stream in the device's default pool, and stores it in the thread's state.
   Returns NULL if the stream has none yet, or if the handle is stale. */
__attribute__((noinline)) static ds__arena *ds__arena_again(ds_stream stream) {
    (void)ds__pool_push_count(); /* resets the thread's state after a shutdown */
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    if (!s)
        return NULL;
    ds__arena *a = atomic_load_explicit(&s->module[DS__MODULE_ALLOC], memory_order_acquire);
    if (a) {
        ds__memory_thread.arena = a;
        ds__memory_thread.slot = &s->slot;
        ds__memory_thread.stream = stream.id;
    }
    ds__unpin_inline(&ds__g.streams, s);
    return a;
}

/* Serves a request that the fast path did not serve. */
__attribute__((noinline)) static ds_result ds__alloc_slow(size_t size, ds_stream stream,
                                                          void **out) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (size) {
        ds_mem_request request = { .size = size, .stream = stream };
        r = ds__request_serve(s, &request, out);
    }
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

/* Takes a free block of the arena for a request, if the arena needs no special treatment and still
   belongs to the thread's last stream. Otherwise, or if no block fits, returns NULL. */
__attribute__((always_inline)) static inline ds__mem_block *ds__alloc_fast(ds__arena *a,
                                                                           size_t size,
                                                                           ds_stream stream) {
    ds__mem_block *b = NULL;
    ds__spinlock_lock(&a->lock);
    size_t rounded = ds__request_round_for_pool(a->pool, size);
    int kind = ds__kind_of(&a->pool->config, rounded);
    if (DS__LIKELY(!a->slow && ds__slot_is(ds__memory_thread.slot, stream.id) &&
                   ds__has_room(a, kind, (int64_t)rounded, (int64_t)size))) {
        b = ds__take_parked(a, kind, rounded, size);
        if (!b)
            b = ds__block_take_best(a, kind, rounded, size);
        if (DS__UNLIKELY(!b && a->pending))
            b = ds__take_oldest(a, kind, rounded, size);
        if (DS__UNLIKELY(atomic_load_explicit(&a->dev->watch, memory_order_relaxed)) && b)
            ds__note_block(a, DS_ACTION_ALLOC, b);
    }
    ds__spinlock_unlock(&a->lock);
    return b;
}

DSDEF ds_result(ds_mem_alloc)(size_t size, ds_stream stream, void **out) {
    ds_result r = ds__api_enter_inline("ds_mem_alloc");
    if (DS__LIKELY(out != NULL))
        *out = NULL;
    if (DS__UNLIKELY(r < 0))
        return r;
    DS__REQUIRE(out, "out is NULL");
    /* The stream is not pinned: slots and arenas stay until ds_shutdown, which changes the epoch,
       and the end of a stream locks its arena. */
    ds__arena *a = ds__memory_thread.arena;
    if (DS__UNLIKELY(stream.id != ds__memory_thread.stream ||
                     ds__memory_thread.epoch != ds__g.epoch))
        a = ds__arena_again(stream);
    if (DS__UNLIKELY(!a || ds__memory_thread.pools | ds__memory_thread.in_shortage ||
                     ds__captures_open() || size - 1 >= SIZE_MAX / 4))
        return ds__alloc_slow(size, stream, out);
    const ds__mem_block *b = ds__alloc_fast(a, size, stream);
    if (DS__UNLIKELY(!b))
        return ds__alloc_slow(size, stream, out);
    *out = b->ptr;
    return DS_OK;
}

DSDEF ds_result(ds_mem_alloc_with)(const ds_mem_request *request, void **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_mem_alloc_with");
    DS__REQUIRE(request && out, "%s is NULL", request ? "out" : "request");
    DS__REQUIRE_RESERVED("ds_mem_request", request);
    DS__REQUIRE((request->alignment & (request->alignment - 1)) == 0 &&
                    request->alignment <= 2 * DS__MIB,
                "an alignment of %zu is not a power of two up to 2 MiB", request->alignment);
    ds__stream *s = ds__stream_pin(request->stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = request->size ? ds__request_serve(s, request, out) : DS_OK;
    ds__stream_unpin(s);
    return r;
}

#endif
