/* alloc/free.h - freeing blocks.

   Implements ds_mem_free: a fast path that parks the block, ds__free_other for blocks with
   recorded uses or observers, and ds__free_slow for all other cases.

   Invariants: A block with uses, with poison to write, or with users in other processes becomes
   pending. All other blocks from a cache become free at once. While ds__free_slow works without
   the lock, its block is pending, claimed and in no list, and already counted as freed. A use
   without a recorded event gets an event at the free. If its stream is in another capture, the
   use gets the event after that capture.
   Locks: ds_mem_free takes the arena's lock, and gives that lock up for events, guards and
   driver calls. Events are recorded under ds__g.begin (ds__hold_captures), never under the
   arena's lock. ds__share_hold takes ds__share.lock under the arena's lock. Observers may be
   invoked under the arena's lock. ds__free_slow and ds__free_other expect that lock and release
   it.
   Threads: any caller's thread, in any order to the streams' work. */
#ifndef DS__ALLOC_FREE_H
#define DS__ALLOC_FREE_H

#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "bins.h"
#include "block.h"
#include "locks.h"
#include "stream_use.h"
#include "pending.h"
#include "ipc_records.h"
#include "ipc_collect.h"
#include "direct_free.h"
#include "watched.h"

/* Makes a live block pending, claimed and in no list, and counts the free. The arena is locked and
   ready. */
static void ds__free_begin(ds__arena *a, ds__mem_block *b) {
    ds__live_out(b);
    b->claimed = 1;
    b->state = DS_BLOCK_PENDING;
    ds__count_pending(a, b->seg->kind, (int64_t)b->size);
    if (b->oversize) {
        b->oversize = 0;
        ds__count_oversize(a, -1);
    }
    ds__note_block(a, DS_ACTION_FREE_REQUESTED, b);
}

/* Records the events of the uses that have none. After a failure of the device, there is nothing to
   wait for; after another error, the events are recorded later. No lock is held. */
static void ds__free_uses_record(ds__mem_block *b) {
    ds__tls.mute++;
    ds_result r = ds__record_uses(b);
    if (r == DS_ERR_FAILED)
        for (ds__stream_use *u = b->uses; u; u = u->next)
            u->recorded = 1;
    ds__tls.mute--;
}

/* Frees a block in all cases that the fast path does not cover. The arena is locked and the block
   is live; unlocks the arena. */
__attribute__((noinline)) static ds_result ds__free_slow(ds__arena *a, ds__mem_block *b) {
    char *ptr = b->ptr;
    int kind = b->seg->kind;
    if (a->dev->device.type == DS_DEVICE_HOST) {
        ds__arena_unlock(a);
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is pinned memory; use ds_mem_pinned_free",
                        (void *)ptr);
    }
    while (!ds__counter_room_ready(a, kind, 0)) {
        ds__make_ready(a, kind, 0);
        ds__arena *again = NULL;
        b = ds__find_live(ptr, 1, &again); /* it may have been freed meanwhile */
        if (!b)
            return ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                            (void *)ptr);
        a = again;
    }

    int exported = b->exported;
    ds__free_begin(a, b);
    ds__arena_unlock(a);
    if (a->watched || b->guarded)
        ds__watched_free(a, b);
    if (b->seg->direct)
        return ds__direct_free(a, b);
    ds__free_uses_record(b);

    ds__arena_lock_ready(a, kind);
    b->claimed = 0;
    int held = b->exported && ds__share_hold(b); /* until ds__mem_return */
    if (!held && (b->uses || b->stale))
        ds__pending_in(a, b);
    else if (!held)
        ds__pending_complete(a, b);
    ds__arena_unlock(a);
    if (exported)
        (void)ds__share_collect();
    return DS_OK;
}

/* Frees a block that other streams used or that is in a plain segment, or while events are
   reported. The arena is locked and ready; unlocks the arena. */
__attribute__((noinline)) static ds_result ds__free_other(ds__arena *a, ds__mem_block *b, int kind,
                                                          unsigned watch) {
    if (DS__UNLIKELY(b->uses != NULL)) {
        for (const ds__stream_use *u = b->uses; u; u = u->next)
            if (u->recorded != 1)
                return ds__free_slow(a, b);
        ds__live_out(b);
        ds__count_pending(a, kind, (int64_t)b->size);
        if (watch)
            ds__note_block(a, DS_ACTION_FREE_REQUESTED, b);
        ds__pending_in(a, b);
        ds__spinlock_unlock(&a->lock);
        return DS_OK;
    }
    if (DS__UNLIKELY(watch))
        ds__note_free(a, b, watch);
    ds__count_free(a, kind, (int64_t)b->size, (int64_t)b->asked);
    if (DS__LIKELY(ds__segment_is_growing(b->seg))) {
        ds__block_park(a, b, kind);
    } else {
        ds__live_out(b);
        (void)ds__merge_in(a, b);
    }
    ds__spinlock_unlock(&a->lock);
    return DS_OK;
}

static ds_result ds__mem_free_late(uint64_t what) {
    return (ds_mem_free)((void *)(uintptr_t)what);
}

DSDEF ds_result(ds_mem_free)(void *ptr) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_memory("ds_mem_free", ptr, DS_MEMORY_DEVICE, ds__mem_free_late);
    ds_result r = ds__api_enter_inline("ds_mem_free");
    if (DS__UNLIKELY(r < 0))
        return r;
    if (DS__UNLIKELY(!ptr))
        return DS_OK;
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(ptr, 1, &a);
    DS__REQUIRE(b, "%p is not the start of a live allocation", ptr);
    int kind = b->seg->kind;
    /* neither exported nor lent */
    if (DS__UNLIKELY(b->flags != DS__FLAGS_LIVE || a->slow_free ||
                     !ds__counter_room_ready(a, kind, 0)))
        return ds__free_slow(a, b);
    unsigned watch = atomic_load_explicit(&a->dev->watch, memory_order_relaxed);
    if (DS__UNLIKELY(b->uses || watch || !ds__segment_is_growing(b->seg)))
        return ds__free_other(a, b, kind, watch);
    ds__count_free(a, kind, (int64_t)b->size, (int64_t)b->asked);
    ds__block_park(a, b, kind);
    ds__spinlock_unlock(&a->lock);
    return DS_OK;
}

#endif
