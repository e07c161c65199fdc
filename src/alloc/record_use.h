/* alloc/record_use.h - recording the use of a block by another stream.

   Implements ds_mem_record_use and ds_mem_record_stream, and serves ds_pinned_record_use.
   ds__note_use adds a stream use (ds__muse) to a live block. With `now` the use gets its event
   at once, otherwise at the free or at the end of its stream. With `strict` a pointer outside
   of live blocks is an error. ds__mem_operand notes the operand of a collective.

   Invariants: The block's own stream needs no use. A lent block's first use belongs to the
   borrowing stream and stays first. dev->late_uses counts the uses without an event and may be
   too high.
   Locks: Takes the arena's lock to find the block, and once more to add the use. Between the
   two, the event is created and recorded without a lock. If a capture is open, the driver is
   asked for the stream's capture under the arena's lock (ds__capture_of).
   Threads: any caller's thread. If another thread frees the block meanwhile, the call reports
   DS_ERR_INVALID_VALUE, unless a new block already starts at the same address. */
#ifndef DS__ALLOC_RECORD_USE_H
#define DS__ALLOC_RECORD_USE_H

#include "../base/observe.h"
#include "../core/internal.h"
#include "internal.h"
#include "types.h"
#include "util.h"
#include "block.h"
#include "stream_use.h"
#include "arena.h"
#include "validate.h"

/* Notes a use of the block; `now`: with an event at once. Its event is recorded without the
   lock, so the block is looked at again afterwards. */
static ds_result ds__note_use(void *ptr, ds_stream stream, int now, int strict, int pinned) {
    ds__arena *a = NULL;
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__expect_end(s);
    ds__mblock *b = ds__find_live(ptr, 0, &a);
    ds_result r = DS_OK;
    if (b && DS__UNLIKELY(a->watched)) {
        ds__arena_unlock(a);
        if ((r = ds__check(a->pool, 2)) < 0) {
            ds__stream_unpin(s);
            return r;
        }
        b = ds__find_live(ptr, 0, &a);
    }
    if (b && pinned != (a->dev->device.type == DS_DEVICE_HOST)) {
        ds__arena_unlock(a);
        b = NULL;
    }
    if (!b) {
        ds__stream_unpin(s);
        return strict ? ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside a live allocation%s", ptr,
                                 pinned ? " of pinned memory" : "")
                      : DS_OK;
    }
    int foreign = !pinned && s->driver != ds__driver_of(a->dev->device);
    int own = b->lent ? b->uses->stream.id == stream.id
                      : a->stream_id == s->id ||
                            (!foreign && a->identity && a->dev->device.index == s->device.index &&
                             a->identity == s->driver->stream_identity(s->native));
    uint64_t capture = pinned ? 0 : ds__capture_of(s);
    /* the graph's uses are its owner's care; work from before the capture is noted */
    if (capture && !a->pool->graphs) {
        now = 0;
        capture = 0;
    }
    /* the first of a lent one is the borrower's own */
    ds__muse *u = b->lent ? b->uses->next : b->uses;
    ds__muse *fresh = NULL;
    /* work of before a capture counts for itself */
    while (u && (u->stream.id != stream.id || u->capture != capture))
        u = u->next;
    if (!own && !foreign && !u && (fresh = a->spare_uses) != NULL)
        a->spare_uses = fresh->next;
    if (u && !own && !now && !ds__use_claim(u)) { /* the work until the free counts from now on */
        atomic_fetch_add(&a->dev->late_uses, 1);
        u->capture = 0;
        u->recorded = DS__RECORDING;
    }
    if (u && !own && !now)
        u->recorded = 0;
    /* its event is recorded later than this */
    if (u && u->recorded != 1)
        now = 0;
    char *start = b->ptr;
    ds_event event = { u ? u->event.id : 0 };
    ds__arena_unlock(a);
    if (!own && foreign)
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the memory and the stream belong to different drivers");
    if (!own && !foreign && ds__observed())
        ds__observe(&(ds__seen){ .kind = DS__SEEN_USE, .ptr = ptr, .stream = stream });
    if (own || foreign || (u && !now)) {
        ds__stream_unpin(s);
        return r;
    }
    /* The event of an earlier use by the same stream may be recorded again: the later point is
       behind it. */
    if (!u && !(fresh = ds__muse_ready(fresh, s->device))) {
        ds__stream_unpin(s);
        return ds__mem_error();
    }
    if (now)
        r = ds__event_record(u ? event : fresh->event, stream, DS__OP_RECORD);
    ds__arena_lock(a);
    int still = b->state == DS_BLOCK_LIVE && b->ptr == start && b->seg;
    if (fresh && r == DS_OK && still) {
        fresh->capture = capture;
        ds__muse **at = b->lent && b->uses ? &b->uses->next : &b->uses;
        fresh->stream = stream;
        fresh->recorded = (uint8_t)now;
        fresh->next = *at;
        *at = fresh;
        /* counts some twice: it only says whether to look */
        if (!now)
            atomic_fetch_add(&a->dev->late_uses, 1);
    } else if (fresh) {
        ds__muses_drop(a, fresh);
    }
    ds__arena_unlock(a);
    if (r == DS_OK && !still)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time", ptr);
    ds__stream_unpin(s);
    return r;
}

/* Notes that a stream, which the caller has pinned, uses memory. Memory that is not the
   allocator's, or is the stream's own, needs no note; what a graph uses is its owner's care. */
DS__SEAM static ds_result ds__mem_operand(void *ptr, ds__stream *s, ds_stream stream) {
    ds__arena *a = NULL;
    const ds__mblock *b = ds__find_live(ptr, 0, &a);
    if (!b)
        return DS_OK;
    int own = !b->lent && a->stream_id == s->id;
    ds__arena_unlock(a);
    if (own || (ds__captures_open() && ds__capture_of(s)))
        return DS_OK;
    return ds__note_use(ptr, stream, 0, 0, 0);
}

DSDEF ds_result(ds_mem_record_use)(void *ptr, ds_stream stream) {
    DS__ENTER("ds_mem_record_use");
    return ptr ? ds__note_use(ptr, stream, 1, 1, 0) : DS_OK;
}

DSDEF ds_result(ds_mem_record_stream)(void *ptr, ds_stream stream) {
    DS__ENTER("ds_mem_record_stream");
    return ptr ? ds__note_use(ptr, stream, 0, 0, 0) : DS_OK;
}

#endif
