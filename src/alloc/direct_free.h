/* alloc/direct_free.h - free without a cache.

   Gives blocks of the backends without a cache back to the driver (ds__direct_free) and tries
   deferred blocks again (ds__direct_again). ds__direct_try does the work for one block.
   direct_alloc.h states the policy.

   Invariants: A block here is pending. A block is in its arena's list of deferred blocks, or in
   no list and claimed while a thread tries the block. dev->deferred counts deferred blocks. A
   segment is marked as leaving before the driver gets the memory, because the driver may give
   the address out at once. ds__direct_again does nothing while a capture is open.
   Locks: No function expects a lock; each takes the arena's lock for short steps.
   ds__direct_record and ds__direct_put hold ds__g.begin, so that no capture begins while they
   enqueue work. The host does not wait under the mutex. ds__direct_over invokes observers under
   the arena's lock, and may first take all locks of the device for the counters.
   Threads: any caller's thread. A free of plain memory blocks the host until the work on the
   block is done; a free to the driver's pool does not. */
#ifndef DS__ALLOC_DIRECT_FREE_H
#define DS__ALLOC_DIRECT_FREE_H

#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "address.h"
#include "block.h"
#include "locks.h"
#include "pool.h"
#include "stream_use.h"
#include "arena.h"
#include "poison.h"
#include "pending.h"
#include "segment.h"

/* Records the events of the uses that have none, while new captures are held back. Returns 0 if a
   capture prevents that. */
static int ds__direct_record(ds__mem_block *b) {
    int done = 1;
    if (!b->uses)
        return 1;
    ds__hold_captures();
    DS_IGNORE(ds__record_uses_held(b));
    for (ds__stream_use *u = b->uses; u; u = u->next)
        if (u->recorded != 1 && !ds__record_held(u))
            done = 0;
    ds__let_captures();
    return done;
}

/* Gives a block of the driver's pool back in the order of a stream, while new captures are held
   back. The stream waits for the uses first, if they are not done (`done`). */
static ds_result ds__direct_enqueue(ds__stream *s, ds__mem_block *b, int done) {
    ds_stream handle = { ds__handle_of(&s->slot) };
    ds_result r = DS_NOT_READY;
    ds__hold_captures();
    if (!ds__capture_of(s))
        r = done ? DS_OK : ds__wait_uses(b, handle);
    if (r == DS_OK && b->stale && !ds__captures_open())
        DS_IGNORE(ds__own_fill(handle, b->ptr, DS__POISON, b->size));
    if (r == DS_OK)
        r = ds__async_free(s, b->ptr);
    ds__let_captures();
    return r;
}

/* Gives a block of the driver's pool back in the order of a stream, behind the uses of the block.
   If the stream cannot wait for the uses, they must be done: with `wait` the host waits for
   them. */
static ds_result ds__direct_put(ds__stream *s, ds__mem_block *b, int wait) {
    ds_result r = ds__direct_enqueue(s, b, 0);
    if (r != DS_OK && !ds__captures_open() &&
        (wait ? ds__uses_awaited(b->uses) : ds__uses_done(b->uses)))
        r = ds__direct_enqueue(s, b, 1);
    return r;
}

/* Makes the allocator's own stream wait for the end of the arena's stream. If no event marks the
   end, the host waits for it. */
static ds_result ds__direct_end_await(ds__arena *a, ds_stream giver, ds_event end) {
    if (end.id)
        return ds__wait_event(giver, end, DS__OP_WAIT);
    return ds__arena_drain(a) ? DS_OK : DS_NOT_READY;
}

/* Gives a block of the driver's pool back in the order of its stream, or behind the end of the
   stream if the stream has ended. Returns 1 on success. */
static int ds__direct_release(ds__arena *a, ds__mem_block *b, int wait) {
    ds__stream *s = ds__pin(&ds__g.streams, ds__owner_of(a).stream.id);
    if (s) {
        ds_result r = ds__direct_put(s, b, wait);
        ds__stream_unpin(s);
        if (r == DS_OK || !wait)
            return r == DS_OK;
    }

    ds__owner o = ds__owner_of(a);
    ds_event end = { o.orphan ? o.end.id : 0 };
    /* no event marks the end of the stream, or the stream is another thread's */
    if (!end.id && !wait)
        return 0;
    s = ds__direct_giver(a->dev);
    if (!s)
        return 0;
    ds_result r = ds__direct_end_await(a, (ds_stream){ ds__handle_of(&s->slot) }, end);
    if (r == DS_OK || r == DS_ERR_FAILED)
        r = ds__direct_put(s, b, wait);
    ds__stream_unpin(s);
    return r == DS_OK;
}

/* Adds a use of a plain block by its own stream, so that the block waits for this stream's work
   too. Returns 0 without host memory. */
static int ds__direct_own_add(ds__arena *a, ds__mem_block *b, ds_stream stream) {
    for (const ds__stream_use *u = b->uses; u; u = u->next)
        if (u->stream.id == stream.id)
            return 1;
    ds__stream_use *u = ds__stream_use_create(a, a->dev->device);
    if (!u)
        return 0;
    ds__arena_lock(a);
    u->stream = stream;
    u->next = b->uses;
    b->uses = u;
    atomic_fetch_add(&a->dev->late_uses, 1);
    ds__arena_unlock(a);
    return 1;
}

/* Covers the work of a plain block's own stream: by a use, or if the stream has ended, by the end
   of the stream. Returns 0 if that end is not reached or not known. */
static int ds__direct_own(ds__arena *a, ds__mem_block *b, int wait) {
    ds__owner o = ds__owner_of(a);
    ds__stream *s = ds__pin(&ds__g.streams, o.stream.id);
    int alive = s && !o.orphan;
    if (s)
        ds__stream_unpin(s);
    if (alive)
        return ds__direct_own_add(a, b, o.stream) || (wait == DS__WAIT_ALL && ds__arena_drain(a));

    o = ds__owner_of(a);
    ds_event end = { o.orphan ? o.end.id : 0 };
    if (wait == DS__WAIT_ALL)
        return ds__arena_drain(a);
    ds_result r = end.id && !ds__captures_open() ? ds__event_ask(end) : DS_NOT_READY;
    return r == DS_OK || r == DS_ERR_FAILED;
}

/* Tries to give a block that is in no list back to the driver. Returns 1 on success. No lock is
   held. */
static int ds__direct_try(ds__arena *a, ds__mem_block *b, int wait) {
    int plain = b->seg->source != DS__FROM_ASYNC;
    int done;
    if (plain && !ds__direct_own(a, b, wait))
        return 0;
    if (!ds__direct_record(b) && (wait != DS__WAIT_ALL || !ds__uses_awaited(b->uses)))
        return 0;
    /* an open capture could refuse the query */
    if (plain && (wait == DS__WAIT_NONE || ds__captures_open()))
        return 0;
    ds__tls.relaxed += plain;
    done = !plain || (wait == DS__WAIT_ALL ? ds__uses_awaited(b->uses) : ds__uses_done(b->uses));
    ds__tls.relaxed -= plain;
    if (!done)
        return 0;
    ds__segment_leaves(b->seg, 1);
    done = plain ? ds__segment_end(b->seg->base, DS_MEMORY_DEVICE, 1) == DS_OK
                 : ds__direct_release(a, b, wait == DS__WAIT_ALL);
    if (!done)
        ds__segment_leaves(b->seg, 0);
    return done;
}

/* Ends a block whose memory the driver has again, with its segment. No lock is held. */
static void ds__direct_over(ds__arena *a, ds__mem_block *b) {
    ds__segment *s = b->seg;
    size_t size = s->size;
    ds__arena_lock_ready(a, s->kind);
    ds__pending_done(a, b);
    b->claimed = b->stale = 0;
    ds__segment_retire(a, s);
    ds__arena_unlock(a);
    int async = s->source == DS__FROM_ASYNC;
    ds__segment_destroy(s);
    /* both without a step between, in which the limit would count the bytes twice */
    if (async)
        atomic_fetch_sub(&a->dev->async_bytes, size);
    ds__segment_unreserve(a, size);
}

/* Appends a block to the arena's deferred blocks. */
static void ds__direct_defer(ds__arena *a, ds__mem_block *b) {
    ds__arena_lock(a);
    b->claimed = 0;
    b->list_next = NULL;
    if (a->deferred_last)
        a->deferred_last->list_next = b;
    else
        a->deferred = b;
    a->deferred_last = b;
    a->deferred_count++;
    ds__arena_unlock(a);
    atomic_fetch_add(&a->dev->deferred, 1);
}

/* Takes the first of the arena's deferred blocks and makes it claimed, or returns NULL. */
static ds__mem_block *ds__direct_next(ds__arena *a) {
    ds__arena_lock(a);
    ds__mem_block *b = a->deferred;
    if (b) {
        a->deferred = b->list_next;
        if (!a->deferred)
            a->deferred_last = NULL;
        a->deferred_count--;
        b->claimed = 1;
    }
    ds__arena_unlock(a);
    if (b)
        atomic_fetch_sub(&a->dev->deferred, 1);
    return b;
}

#define DS__DEFERRED 16 /* deferred blocks of an arena that one call tries again */

/* Tries deferred blocks again, the longest untried ones first: some of each arena, or all
   (DS__WAIT_ALL). Returns the bytes that went back. No lock is held. */
static size_t ds__direct_again(ds__mem_dev *dev, int wait) {
    size_t done = 0;
    /* another thread may join a stream to an open capture at any time */
    if (DS__LIKELY(!atomic_load(&dev->deferred)) || ds__captures_open())
        return 0;
    ds__tls.mute++;
    for (ds__arena *a = ds__first_arena(dev, &dev->main); a; a = a->next) {
        ds__arena_lock(a);
        size_t left = wait == DS__WAIT_ALL || a->deferred_count < DS__DEFERRED ? a->deferred_count
                                                                               : DS__DEFERRED;
        ds__arena_unlock(a);
        for (; left > 0; left--) {
            ds__mem_block *b = ds__direct_next(a);
            if (!b)
                break;
            /* the driver's pool may keep the memory */
            size_t size = b->seg->source == DS__FROM_ASYNC ? 0 : b->size;
            if (ds__direct_try(a, b, wait)) {
                ds__direct_over(a, b);
                done += size;
            } else {
                ds__direct_defer(a, b);
            }
        }
    }
    ds__tls.mute--;
    return done;
}

/* Frees a block of a backend without a cache, now or later. The block is pending, claimed, and in
   no list. No lock is held. */
static ds_result ds__direct_free(ds__arena *a, ds__mem_block *b) {
    (void)ds__direct_again(a->dev, DS__WAIT_DEVICE);
    ds__tls.mute++;
    if (ds__direct_try(a, b, b->seg->source == DS__FROM_ASYNC ? DS__WAIT_NONE : DS__WAIT_ALL))
        ds__direct_over(a, b);
    else
        ds__direct_defer(a, b);
    ds__tls.mute--;
    return DS_OK;
}

#endif
