/* alloc/pending.h - pending blocks: freed, still used by streams.

   Manages freed blocks until the streams that used them are done. ds__pending_complete ends a
   pending block whose uses are done, ds__block_end a live block without uses, and ds__mem_return a
   block that comes back from other processes. ds__pending_poll frees blocks with completed uses.
   ds__take_oldest serves a request from the block that has been pending longest. ds__take_pending
   takes a fitting block and makes a stream wait for its uses.

   Invariants: The list runs from the oldest block to the newest, and `pending_bytes` is its sum.
   A block is claimed while a thread examines it without the lock; other threads leave claimed
   blocks alone. A block with poison to write (`stale`) passes ds__poison_late or ds__poison_on
   before the block becomes free. ds__take_pending takes only blocks with all uses recorded in the
   stream's own capture, or, without a capture, outside of captures.
   Locks: ds__pending_in, ds__pending_out, ds__pending_complete, ds__block_over and ds__uses_within
   expect the arena's lock. ds__take_oldest expects that lock, gives it up meanwhile and returns
   with it held. The other functions expect no lock. Events are queried, recorded and waited for
   without the arena's lock; observers may be invoked under that lock.
   Threads: any caller's thread. With `wait`, ds__pending_poll blocks the host. */
#ifndef DS__ALLOC_PENDING_H
#define DS__ALLOC_PENDING_H

#include "../base/drive.h"
#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "bins.h"
#include "block.h"
#include "locks.h"
#include "stream_use.h"
#include "poison.h"

/* Takes a block out of the list of pending ones. The arena is locked. */
static void ds__pending_out(ds__arena *a, ds__mem_block *b) {
    ds__block_list_out(&a->pending, b);
    if (!b->list_next)
        a->pending_last = b->list_prev;
    a->pending_bytes -= b->size;
}

/* Makes a block, which is in no list, the last of the pending ones. The arena is locked. */
static void ds__pending_in(ds__arena *a, ds__mem_block *b) {
    b->state = DS_BLOCK_PENDING;
    ds__block_list_in(&a->pending, b, a->pending_last, NULL);
    a->pending_last = b;
    a->pending_bytes += b->size;
}

/* Returns the descriptions of a block's uses to the stock. The arena is locked. */
static void ds__block_uses_destroy(ds__arena *a, ds__mem_block *b) {
    ds__stream_uses_destroy(a, b->uses);
    b->uses = NULL;
    b->lent = 0;
}

/* Counts that the uses of a block in no list are done: the free is complete. The arena is locked
   and ready. */
static void ds__pending_done(ds__arena *a, ds__mem_block *b) {
    ds__count_done(a, b->seg->kind, (int64_t)b->size, (int64_t)b->asked);
    ds__note_block(a, DS_ACTION_FREE_COMPLETED, b);
    ds__block_uses_destroy(a, b);
}

/* Makes a block, whose free is complete now, a free block. The arena is locked and ready. */
static void ds__pending_complete(ds__arena *a, ds__mem_block *b) {
    ds__pending_done(a, b);
    (void)ds__merge_in(a, b);
}

/* Frees a live block that no stream uses any more. The arena is locked and ready. */
static void ds__block_over(ds__arena *a, ds__mem_block *b) {
    ds__live_out(b);
    ds__block_uses_destroy(a, b);
    b->guarded = 0;
    b->stale = 0;
    if (b->oversize) {
        b->oversize = 0;
        ds__count_oversize(a, -1);
    }
    ds__count_free(a, b->seg->kind, (int64_t)b->size, (int64_t)b->asked);
    (void)ds__merge_in(a, b);
}

/* Frees a live block that no stream uses any more. No lock is held. */
static void ds__block_end(ds__arena *a, ds__mem_block *b) {
    ds__arena_lock_ready(a, b->seg->kind);
    ds__block_over(a, b);
    ds__arena_unlock(a);
}

/* Takes back a freed block that other processes do not use any more. No lock is held. */
__attribute__((unused)) static void ds__mem_return(ds__mem_block *b) {
    ds__arena *a = atomic_load(&b->seg->arena);
    ds__arena_lock_ready(a, b->seg->kind);
    b->exported = 0;
    if (!b->uses && !b->stale)
        ds__pending_complete(a, b);
    else
        ds__pending_in(a, b);
    ds__arena_unlock(a);
}

#define DS__POLLS 64 /* pending blocks that are examined at a time */

/* Marks up to `most` pending blocks as claimed, the oldest first, and returns their number. The
   arena is not locked. */
static size_t ds__pending_batch_take(ds__arena *a, ds__mem_block **list, size_t most) {
    size_t n = 0;
    ds__arena_lock(a);
    for (ds__mem_block *b = a->pending; b && n < most; b = b->list_next)
        if (!b->claimed) {
            b->claimed = 1;
            list[n++] = b;
        }
    ds__arena_unlock(a);
    return n;
}

/* Ends `count` claimed blocks whose uses are done. The arena is not locked. */
static void ds__pending_batch_end(ds__arena *a, ds__mem_block *list[DS__POLLS], size_t count) {
    ds__arena_lock(a);
    for (size_t i = 0; i < count; i++) {
        ds__mem_block *b = list[i];
        if (!ds__counter_room_ready(a, b->seg->kind, 0)) {
            ds__arena_unlock(a);
            ds__arena_lock_ready(a, b->seg->kind);
        }
        ds__pending_out(a, b);
        b->claimed = 0;
        ds__pending_complete(a, b);
    }
    ds__arena_unlock(a);
}

/* Frees the pending blocks whose uses are done, the oldest first, and returns their number. With
   `wait`, the host waits for the uses of all. The arena is not locked. */
static size_t ds__pending_poll(ds__arena *a, int wait) {
    size_t done = 0;
    ds__mem_block *list[DS__POLLS];
    for (;;) {
        size_t ready = 0;
        size_t n = ds__pending_batch_take(a, list, DS__POLLS);
        for (size_t i = 0; i < n; i++) {
            ds__mem_block *b = list[i];
            if ((wait ? ds__uses_awaited(b->uses) : ds__uses_done(b->uses)) &&
                (DS__LIKELY(!b->stale) || ds__poison_late(a, b, wait))) {
                list[ready++] = b;
                continue;
            }
            ds__arena_lock(a);
            b->claimed = 0;
            ds__arena_unlock(a);
        }
        if (ready == 0)
            return done;

        ds__pending_batch_end(a, list, ready);
        done += ready;
        if (ready < n || (!wait && ready < DS__POLLS))
            return done;
    }
}

/* Makes the stream wait for the uses of a block that is in no list. The arena is not locked. */
static ds_result ds__wait_uses(ds__mem_block *b, ds_stream stream) {
    for (ds__stream_use *u = b->uses; u; u = u->next) {
        if (u->stream.id == stream.id || u->recorded != 1 || u->capture)
            continue;
        ds_result r = ds__wait_event(stream, u->event, DS__OP_WAIT);
        if (r < 0)
            return r;
    }
    return DS_OK;
}

/* Returns whether a stream in a capture (0: in none) may wait for the uses: all must be recorded in
   that capture. The arena is locked. */
static int ds__uses_within(const ds__stream_use *u, uint64_t capture) {
    for (; u; u = u->next)
        if (u->recorded != 1 || u->capture != capture)
            return 0;
    return 1;
}

/* Takes the block that has been pending for longest, if it fits and its uses are done. Programs
   that use the same memory on another stream again and again find their block here. There is a
   pending block. The arena is locked, is unlocked meanwhile, and is locked again. */
__attribute__((noinline)) static ds__mem_block *ds__take_oldest(ds__arena *a, int kind, size_t size,
                                                                size_t asked) {
    ds__mem_block *b = a->pending;
    if (b->claimed || b->seg->kind != kind || b->size < size)
        return NULL;
    b->claimed = 1;
    ds__arena_unlock(a);
    int done = ds__uses_done(b->uses) && !b->stale;
    ds__arena_lock(a);
    b->claimed = 0;
    if (!done || !ds__has_room(a, kind, (int64_t)size, (int64_t)asked))
        return NULL;
    ds__pending_out(a, b);
    ds__pending_complete(a, b);
    return ds__block_take(a, kind, size, asked);
}

/* The block that ds__take_pending searches. */
typedef struct ds__pending_wanted {
    int kind;
    size_t size; /* the smallest size of the block */
    size_t most; /* the largest size of the block */
    /* the stream that waits for the uses: the arena's own, or with `out_whole` the request's */
    ds_stream stream;
    size_t asked;              /* with `out_whole`: the bytes of the request */
    ds__mem_block **out_whole; /* not NULL: the block becomes live, whole, and goes here */
} ds__pending_wanted;

/* Returns whether a pending block has a suitable size, and no thread works on it and no other
   process uses it. The arena is locked. */
static inline int ds__pending_suits(const ds__arena *a, const ds__mem_block *b,
                                    const ds__pending_wanted *q) {
    if (b->seg->kind != q->kind || b->size < q->size || b->size > q->most)
        return 0;
    if (b->claimed || b->exported)
        return 0;
    return !(a->pool->oversize && !ds__segment_is_growing(b->seg) &&
             ds__too_large(a->pool, b->size, q->size));
}

/* Returns the smallest suitable pending block whose uses the stream may wait for, claimed, or NULL.
   The arena is not locked. */
static ds__mem_block *ds__pending_best_take(ds__arena *a, const ds__pending_wanted *q) {
    ds__mem_block *best = NULL;
    uint64_t capture = ds__capture_of_handle(q->stream);
    ds__arena_lock(a);
    for (ds__mem_block *b = a->pending; b; b = b->list_next) {
        if ((!best || b->size < best->size) && ds__pending_suits(a, b, q) &&
            ds__uses_within(b->uses, capture))
            best = b;
    }
    if (best)
        best->claimed = 1;
    ds__arena_unlock(a);
    return best;
}

/* Makes the whole pending block live for another stream's request. The block is not split, because
   only the request's stream has waited for its uses. The arena is locked. */
static void ds__pending_whole_give(ds__arena *a, ds__mem_block *b, const ds__pending_wanted *q) {
    ds__pending_done(a, b);
    ds__live_in(a, b);
    ds__block_mark_live_counted(a, b, q->asked);
    *q->out_whole = b;
}

/* Takes the smallest suitable pending block and makes the stream wait for its uses. Then the block
   becomes free, or live with `out_whole`. Returns 1 if a block was taken. The arena is not
   locked. */
static int ds__take_pending(ds__arena *a, const ds__pending_wanted *q) {
    ds__mem_block *best = ds__pending_best_take(a, q);
    if (!best)
        return 0;

    ds_result r = DS_OK;
    /* see base/drive.h; in a capture, all uses are in the same capture */
    if (DS__UNLIKELY(atomic_load(&ds__drive.groups)) && !ds__captures_open() &&
        !ds__uses_done(best->uses))
        r = DS_NOT_READY;
    for (ds__stream_use *u = best->uses; u && r == DS_OK; u = u->next)
        if (u->stream.id != q->stream.id)
            r = ds__wait_event(q->stream, u->event, DS__OP_WAIT);
    if (r == DS_OK && !q->out_whole && best->stale)
        ds__poison_on(best, q->stream);

    int all = 0;
    ds__arena_lock(a);
    if (r == DS_OK)
        all = ds__count_begin(a, q->kind, q->out_whole ? (int64_t)best->size : 0,
                              q->out_whole ? (int64_t)q->asked : 0);
    best->claimed = 0; /* not earlier: ds__count_begin may unlock the arena */
    if (r == DS_OK) {
        ds__pending_out(a, best);
        if (q->out_whole)
            ds__pending_whole_give(a, best, q);
        else
            ds__pending_complete(a, best);
    }
    ds__count_end(a, all);
    return r == DS_OK;
}

#endif
