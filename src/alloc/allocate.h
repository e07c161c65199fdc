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

/* Which arena a request goes to, when it is not simply the stream's: a pool named, pushed, or a
   capture's. */
static ds__arena *ds__arena_route(ds__stream *s, ds_stream handle, ds_pool pool) {
    ds__mem_pool *p = NULL;
    if (!pool.id && ds__captures_open()) {
        if (ds__capture_pool_of(s, &p) < 0)
            return NULL;
    }
    /* what an upstream allocates is not meant */
    for (unsigned i = ds__memory_thread.inside ? 0 : ds__pool_push_count();
         !p && !pool.id && i-- > 0;) {
        ds__mem_pool *pushed = ds__mem_pool_of(ds__memory_thread.pool[i]);
        if (!pushed)
            return NULL;
        if (pushed->dev->device.type == s->device.type &&
            pushed->dev->device.index == s->device.index)
            p = pushed;
    }
    if (pool.id) {
        p = ds__mem_pool_of(pool);
        if (p &&
            (p->dev->device.type != s->device.type || p->dev->device.index != s->device.index)) {
            ds__fail(DS_ERR_DEVICE_MISMATCH, "the pool belongs to %s:%d, the stream to %s:%d",
                     ds__type_name(p->dev->device.type), p->dev->device.index,
                     ds__type_name(s->device.type), s->device.index);
            return NULL;
        }
        if (!p)
            return NULL;
        if (ds__captures_open() && ds__capture_keep(s, p) < 0)
            return NULL;
    }
    return p ? ds__arena_in(p, s, handle) : ds__arena_main(s, handle);
}

/* A request with everything that can be said. */
__attribute__((noinline)) static ds_result ds__request_serve(ds__stream *s,
                                                             const ds_mem_request *request,
                                                             void **out) {
    if (ds__memory_thread.in_shortage)
        return ds__fail(DS_ERR_NOT_PERMITTED, "a shortage callback must not allocate memory");
    ds__arena *a = ds__arena_route(s, request->stream, request->pool);
    ds_result r = DS_OK;
    if (!a)
        return ds__mem_error();
    ds__mem_pool *p = a->pool;
    const ds_mem_config *c = ds__pool_policy(p);
    size_t guard = c->guard_bytes;
    size_t align = request->alignment > DS__UNIT ? request->alignment : 0;
    ds__wanted q = {
        .a = a, .stream = request->stream, .s = s, .asked = request->size, .aligned = align != 0
    };
    if (c->backend != DS_MEM_NATIVE && !p->id)
        return ds__direct_alloc(&q, request, out);
    q.size = request->size <= SIZE_MAX / 4 ? ds__rounded_by(c, request->size + guard) + align
                                           : SIZE_MAX / 2;
    q.kind = ds__kind_of(c, q.size);
    if (align && p->no_split)
        return ds__fail(
            DS_ERR_INVALID_VALUE,
            "an alignment of %zu needs split blocks, but the pool has no_split; use at most 512",
            align);
    if (request->label)
        ds_mem_label_push(request->label);
    if (c->poll_on_alloc && !ds__captures_open())
        (void)ds__pending_poll(a, 0);
    if (!ds__request_try(&q))
        r = ds__ask_slow(&q);
    if (request->label)
        ds_mem_label_pop();
    if (r < 0)
        return r;
    if (align && !ds__align_wanted(&q, align, q.size - align))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a block");
    else if (DS__UNLIKELY(a->watched))
        r = ds__watched_alloc(&q, guard);
    if (r < 0) {
        ds__block_end(atomic_load(&q.block->seg->arena), q.block);
        return r;
    }
    ds__note_block(a, DS_ACTION_ALLOC, q.block);
    *out = q.block->ptr;
    return DS_OK;
}

/* The arena of the stream in the device's default pool, which the thread remembers; NULL: the
   stream has none yet, or is no stream. */
__attribute__((noinline)) static ds__arena *ds__arena_again(ds_stream stream) {
    (void)ds__pool_push_count(); /* forgets what the thread remembers of before ds_shutdown */
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

/* What the short way did not do. */
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

DSDEF ds_result(ds_mem_alloc)(size_t size, ds_stream stream, void **out) {
    ds_result r = ds__api_enter_inline("ds_mem_alloc");
    if (DS__LIKELY(out != NULL))
        *out = NULL;
    if (DS__UNLIKELY(r < 0))
        return r;
    DS__REQUIRE(out, "out is NULL");
    /* Without a pin: slots and arenas stay until ds_shutdown, which changes the epoch; a stream's
       end locks its arena. */
    ds__arena *a = ds__memory_thread.arena;
    if (DS__UNLIKELY(stream.id != ds__memory_thread.stream ||
                     ds__memory_thread.epoch != ds__g.epoch))
        a = ds__arena_again(stream);
    if (DS__UNLIKELY(!a || ds__memory_thread.pools | ds__memory_thread.in_shortage ||
                     ds__captures_open() || size - 1 >= SIZE_MAX / 4))
        return ds__alloc_slow(size, stream, out);
    ds__mem_block *b = NULL;
    ds__lock_take(&a->lock);
    size_t rounded = ds__request_round_for_pool(a->pool, size);
    int kind = ds__kind_of(&a->pool->config, rounded);
    if (DS__LIKELY(!a->slow && ds__slot_is(ds__memory_thread.slot, stream.id) &&
                   ds__has_room(a, kind, (int64_t)rounded, (int64_t)size))) {
        b = ds__take_parked(a, kind, rounded, size);
        if (!b)
            b = ds__block_take(a, kind, rounded, size);
        if (DS__UNLIKELY(!b && a->pending))
            b = ds__take_oldest(a, kind, rounded, size);
        if (DS__LIKELY(b != NULL))
            *out = b->ptr;
        if (DS__UNLIKELY(atomic_load_explicit(&a->dev->watch, memory_order_relaxed)) && b)
            ds__note_block(a, DS_ACTION_ALLOC, b);
    }
    ds__lock_give(&a->lock);
    return DS__LIKELY(b != NULL) ? DS_OK : ds__alloc_slow(size, stream, out);
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
