/* alloc/reuse.h - cross-stream reuse.

   Finds a cached block for a request in the arenas of other streams. ds__reuse_from_arena takes a
   block there and makes the request's stream wait for that stream. ds__reuse_from_any and
   ds__reuse_from_pools search the arenas of a pool, and the pools with use_on_oom.

   Invariants: A lent block is live on a stream other than its arena's, or was so until its
   free. The first of its uses names that stream. A pending block of another stream is taken whole
   and not split, because only the request's stream waited for its uses. No stream waits across
   the border of a capture (ds__can_await).
   Locks: expects no lock. One arena's lock is held at a time, or all of the device's
   (ds__mem_lock_all) if the arena has no room to count the block. ds__reuse_from_arena holds back
   new captures (ds__g.begin) while it records the event and enqueues the wait; no arena's lock is
   held then.
   Threads: any caller's thread. Streams may end at any time, so ds__reuse_from_arena reads the
   owner of an arena again after it took a block. */
#ifndef DS__ALLOC_REUSE_H
#define DS__ALLOC_REUSE_H

#include "../base/drive.h"
#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "counters.h"
#include "block.h"
#include "locks.h"
#include "pool.h"
#include "stream_use.h"
#include "arena.h"
#include "poison.h"
#include "pending.h"
#include "request.h"

/* Returns whether the request's stream can wait for the owner. */
static int ds__can_await(const ds__wanted *q, ds__owner o) {
    /* the stream has ended, and no event marks the end of its work */
    if (o.orphan && !o.end.id)
        return 0;
    if (ds__captures_open()) { /* no stream waits across the border of a capture */
        uint64_t capture = ds__capture_of(q->s);
        if (capture == DS__BROKEN || capture != (o.orphan ? 0 : ds__capture_of_handle(o.stream)))
            return 0;
    }
    return 1;
}

/* Returns whether the owner's work may be awaited: beside process groups, only if it is over
   (base/drive.h). No lock is held. */
static int ds__is_free_of_waits(ds__owner o) {
    if (DS__LIKELY(!atomic_load(&ds__drive.groups)) || ds__captures_open())
        return 1;
    return o.orphan && ds__event_ask(o.end) == DS_OK;
}

/* One attempt to serve a request from another stream's arena. */
typedef struct ds__reuse {
    ds__wanted *q;       /* the request */
    ds__arena *from;     /* the owner's arena */
    ds__owner owner;     /* the stream that `from` belongs to; read again after a block was taken */
    ds__stream_use *use; /* of the block, by the request's stream */
    ds__mem_block *block; /* taken, live */
    int pending; /* 1: the block was pending, and the request's stream waits for its uses */
    int own;     /* 1: the owner is the request's own stream, in another pool: no wait */
} ds__reuse;

/* Returns 1 if the request's stream can wait for the owner, and the arena may have a block. Sets
   `owner`. No lock is held. */
static int ds__reuse_is_possible(ds__reuse *x) {
    ds__arena *from = x->from;
    const ds__wanted *q = x->q;
    x->owner = ds__owner_of(from);
    if (!ds__can_await(q, x->owner))
        return 0;
    /* otherwise, pending blocks of ended streams are examined only in a shortage */
    if (x->owner.orphan && !ds__captures_open())
        (void)ds__pending_poll(from, 0);

    ds__arena_lock(from);
    ds__unpark_all(from);
    int worth = from->free_bytes >= q->size || (from->pending_bytes >= q->size && !q->aligned);
    ds__arena_unlock(from);
    return worth;
}

/* Returns the description of the use to the arena's stock. */
static void ds__reuse_use_destroy(ds__reuse *x) {
    ds__arena_lock(x->from);
    ds__stream_uses_destroy(x->from, x->use);
    ds__arena_unlock(x->from);
}

/* Takes a free block of the owner's arena, or else a pending one. A pending block is taken whole:
   only the request's stream has waited for its uses. 0: nothing was taken. No lock is held. */
static int ds__reuse_reserve(ds__reuse *x) {
    const ds__wanted *q = x->q;
    ds__wanted other = *q;
    other.a = x->from;
    other.fresh = 0;
    /* first, so that host memory cannot be short after a block was taken */
    x->use = ds__stream_use_create(x->from, q->a->dev->device);
    if (!x->use)
        return 0;

    x->pending = !ds__request_try(&other);
    if (x->pending) {
        ds__pending_wanted wanted = { .kind = q->kind,
                                      .size = q->size,
                                      .most = q->wasteful ? SIZE_MAX : 2 * q->size,
                                      .stream = q->stream,
                                      .asked = q->asked,
                                      .out_whole = &other.block };
        if (q->aligned || !ds__take_pending(x->from, &wanted)) {
            ds__reuse_use_destroy(x);
            return 0;
        }
    }
    x->block = other.block;
    return 1;
}

/* Makes the request's stream wait for the owner's work. Captures are held back: one that begins
   on the owner's stream would capture the request's stream through the event. Fails if the owner
   has changed and cannot be waited for, or if the driver fails. No arena's lock is held. */
static ds_result ds__reuse_order_after_owner(ds__reuse *x) {
    const ds__wanted *q = x->q;
    const ds__arena *from = x->from;
    ds_result r = DS_OK;
    x->owner = ds__owner_of(x->from);
    ds__owner o = x->owner;
    x->own = !o.orphan && o.stream.id == q->stream.id;

    ds__hold_captures();
    /* the arena has become another stream's or an orphan, or its pool a graph's */
    if ((from->pool != q->a->pool && from->pool->graphs) || !ds__can_await(q, o)) {
        r = DS_ERR_ILLEGAL_STATE;
    } else if (!ds__is_free_of_waits(o)) {
        r = DS_ERR_ILLEGAL_STATE;
    } else if (o.orphan) {
        r = ds__wait_event(q->stream, o.end, DS__OP_WAIT);
    } else if (!x->own) {
        r = ds__event_record(x->use->event, o.stream, DS__OP_RECORD);
        if (r == DS_OK)
            r = ds__wait_event(q->stream, x->use->event, DS__OP_WAIT);
    }
    ds__let_captures();
    return r;
}

/* Makes the block pending again, behind the request's stream, which has waited for its uses. */
static void ds__reuse_pending_restore(ds__reuse *x) {
    ds__arena *from = x->from;
    ds__stream_use *u = x->use;
    int kind = x->q->kind;
    DS_IGNORE(ds__event_record(u->event, x->q->stream, DS__OP_RECORD));
    u->stream = x->q->stream;
    u->recorded = 1;

    ds__arena_lock_ready(from, kind);
    ds__live_out(x->block);
    x->block->uses = u;
    ds__count_pending(from, kind, (int64_t)x->block->size);
    ds__pending_in(from, x->block);
    ds__arena_unlock(from);
}

/* Gives the block back to the owner's arena after ds__reuse_order_after_owner has failed. */
static void ds__reuse_roll_back(ds__reuse *x) {
    if (x->pending) {
        ds__reuse_pending_restore(x);
        return;
    }
    ds__reuse_use_destroy(x);
    ds__block_end(x->from, x->block);
}

/* Marks the block as lent to the request's stream, and hands it to the request. */
static void ds__reuse_publish(ds__reuse *x) {
    ds__arena *from = x->from;
    ds__wanted *q = x->q;
    ds__stream_use *u = x->use;
    u->stream = q->stream;
    u->stream_id = q->s->id;

    ds__arena_lock(from);
    if (x->own) {
        ds__stream_uses_destroy(from, u);
    } else {
        x->block->lent = 1;
        u->next = x->block->uses;
        x->block->uses = u;
        atomic_fetch_add(&from->dev->late_uses, 1);
    }
    ds__arena_unlock(from);

    q->block = x->block;
    /* the stream is ordered behind all earlier work on the block now */
    if (DS__UNLIKELY(q->block->stale))
        ds__poison_on(q->block, q->stream);
}

/* Serves the request from another stream's arena: takes a block there and makes the request's
   stream wait for the owner's work. 0: the arena has no block for it. No lock is held. */
static int ds__reuse_from_arena(ds__wanted *q, ds__arena *from) {
    ds__reuse x = { .q = q, .from = from };
    if (from == q->a)
        return 0;
    if (!ds__reuse_is_possible(&x) || !ds__reuse_reserve(&x))
        return 0;
    if (ds__reuse_order_after_owner(&x) < 0) {
        ds__reuse_roll_back(&x);
        return 0;
    }
    ds__reuse_publish(&x);
    return 1;
}

/* Searches all arenas of a pool, or only those of ended streams. */
static int ds__reuse_from_any(ds__wanted *q, ds__mem_pool *p, int orphans) {
    for (ds__arena *a = ds__first_arena(q->a->dev, p); a; a = a->next)
        if ((!orphans || ds__owner_of(a).orphan) && ds__reuse_from_arena(q, a))
            return 1;
    return 0;
}

/* Searches the pools with use_on_oom, for requests in the default pool. A pool may become a graph's
   meanwhile; ds__reuse_order_after_owner checks that. */
static int ds__reuse_from_pools(ds__wanted *q) {
    ds__mem_dev *dev = q->a->dev;
    if (q->a->pool != &dev->main)
        return 0;
    for (ds__mem_pool *p = ds__next_pool(dev, NULL); p; p = ds__next_pool(dev, p))
        if (p->use_on_oom && !p->dead && !p->graphs && ds__reuse_from_any(q, p, 0))
            return 1;
    return 0;
}

#endif
