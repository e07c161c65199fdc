/* alloc/reuse.h - cross-stream reuse.

   Finds a cached block for a request in the arenas of other streams. ds__borrow takes a block
   there and makes the request's stream wait for that stream. ds__borrow_any and ds__borrow_pools
   search the arenas of a pool, and the pools with use_on_oom.

   Invariants: A lent block is live on a stream other than its arena's, or was so until its
   free. The first of its uses names that stream. A pending block of another stream is taken whole
   and not split, because only the request's stream waited for its uses. No stream waits across
   the border of a capture (ds__can_await).
   Locks: expects no lock. One arena's lock is held at a time, or all of the device's
   (ds__mem_lock_all) if the arena has no room to count the block. ds__borrow holds back new
   captures (ds__g.begin) while it records the event and enqueues the wait; no arena's lock is
   held then.
   Threads: any caller's thread. Streams may end at any time, so ds__borrow reads the owner of
   an arena again after it took a block. */
#ifndef DS__ALLOC_REUSE_H
#define DS__ALLOC_REUSE_H

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

/* Whether the request's stream can wait for the owner. */
static int ds__can_await(const ds__wanted *q, ds__owner o) {
    /* nobody knows when its stream was done */
    if (o.orphan && !o.end.id)
        return 0;
    if (ds__captures_open()) { /* across the bounds of a capture nobody waits */
        uint64_t capture = ds__capture_of(q->s);
        if (capture == DS__BROKEN || capture != (o.orphan ? 0 : ds__capture_of_handle(o.stream)))
            return 0;
    }
    return 1;
}

/* Looks in another stream's arena of the pool: the request's stream waits for what is on that
   one. */
static int ds__borrow(ds__wanted *q, ds__arena *from) {
    if (from == q->a)
        return 0;
    ds__owner o = ds__owner_of(from);
    if (!ds__can_await(q, o))
        return 0;
    ds__wanted other = *q;
    other.a = from;
    other.fresh = 0;
    /* nobody else asks there, unless memory is short */
    if (o.orphan && !ds__captures_open())
        (void)ds__poll(from, 0);
    ds__arena_lock(from);
    ds__unpark_all(from);
    int worth = from->free_bytes >= q->size || (from->pending_bytes >= q->size && !q->aligned);
    ds__arena_unlock(from);
    /* first: nothing fails for lack of it afterwards */
    ds__muse *u = worth ? ds__muse_new(from, q->a->dev->device) : NULL;
    if (!u)
        return 0;
    int pending = !ds__try(&other);
    /* A pending block is taken whole, as it is: only the request's stream has waited for those
       who used it. */
    size_t most = q->wasteful ? SIZE_MAX : 2 * q->size;
    ds_result r = !pending ? DS_OK
                  : !q->aligned && ds__take_pending(from, q->kind, q->size, most, q->stream,
                                                    q->asked, &other.block)
                      ? DS_OK
                      : DS_ERR_OUT_OF_MEMORY;
    int found = r == DS_OK;
    if (found)
        o = ds__owner_of(from);
    /* else one may begin on the other stream, and the request's would come into it by the event */
    if (found)
        ds__hold_captures();
    /* another pool's, but the same stream's: nobody waits */
    int own = !o.orphan && o.stream.id == q->stream.id;
    /* it has become another's, nobody's, or a graph's */
    if (found && ((from->pool != q->a->pool && from->pool->graphs) || !ds__can_await(q, o))) {
        r = DS_ERR_ILLEGAL_STATE;
    } else if (found && o.orphan) {
        r = ds__wait_event(q->stream, o.end, DS__OP_WAIT);
    } else if (found && !own) {
        r = ds__event_record(u->event, o.stream, DS__OP_RECORD);
        if (r == DS_OK)
            r = ds__wait_event(q->stream, u->event, DS__OP_WAIT);
    }
    if (found)
        ds__let_captures();
    if (found && r < 0 && pending) { /* it stays pending, for the request's stream */
        DS_IGNORE(ds__event_record(u->event, q->stream, DS__OP_RECORD));
        u->stream = q->stream;
        u->recorded = 1;
        ds__arena_lock(from);
        while (!ds__ready(from, q->kind, 0)) {
            ds__make_ready(from, q->kind, 0);
            ds__arena_lock(from);
        }
        ds__live_out(other.block);
        other.block->uses = u;
        ds__count_pending(from, q->kind, (int64_t)other.block->size);
        ds__pending_in(from, other.block);
        ds__arena_unlock(from);
        return 0;
    }
    if (r < 0) {
        ds__arena_lock(from);
        ds__muses_drop(from, u);
        ds__arena_unlock(from);
        if (found)
            ds__block_end(from, other.block);
        return 0;
    }
    u->stream = q->stream;
    u->stream_id = q->s->id;
    ds__arena_lock(from);
    if (own) {
        ds__muses_drop(from, u);
    } else {
        other.block->lent = 1;
        u->next = other.block->uses;
        other.block->uses = u;
        atomic_fetch_add(&from->dev->late_uses, 1);
    }
    ds__arena_unlock(from);
    q->block = other.block;
    /* which is behind everything now */
    if (DS__UNLIKELY(q->block->stale))
        ds__poison_on(q->block, q->stream);
    return 1;
}

/* Looks in all arenas of a pool, or only in those of ended streams. */
static int ds__borrow_any(ds__wanted *q, ds__mpool *p, int orphans) {
    for (ds__arena *a = ds__first_arena(q->a->dev, p); a; a = a->next)
        if ((!orphans || ds__owner_of(a).orphan) && ds__borrow(q, a))
            return 1;
    return 0;
}

/* Looks in the pools that help out. One that becomes a graph's in the middle is left alone
   later. */
static int ds__borrow_pools(ds__wanted *q) {
    ds__mdevice *dev = q->a->dev;
    if (q->a->pool != &dev->main)
        return 0;
    for (ds__mpool *p = ds__next_pool(dev, NULL); p; p = ds__next_pool(dev, p))
        if (p->use_on_oom && !p->dead && !p->graphs && ds__borrow_any(q, p, 0))
            return 1;
    return 0;
}

#endif
