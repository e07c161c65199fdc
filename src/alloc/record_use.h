/* alloc/record_use.h - recording the use of a block by another stream.

   Implements ds_mem_record_use and ds_mem_record_stream, and serves ds_mem_pinned_record_use.
   ds__note_use adds a stream use (ds__stream_use) to a live block. With `now` the use gets its
   event at once, otherwise at the free or at the end of its stream. With `strict` a pointer outside
   of live blocks is an error. ds__mem_operand notes the operand of a collective.

   Invariants: The block's own stream needs no use. A lent block's first use belongs to the
   borrowing stream and stays first. dev->late_uses counts the uses without an event and may be
   too high.
   Locks: Takes the arena's lock to find the block, and once more to add the use. Between the
   two, the event is created and recorded without a lock.
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

/* How a stream relates to a block that the stream uses. */
enum {
    DS__USE_OTHER,  /* another stream of the same driver: the use is noted */
    DS__USE_OWN,    /* the block's own stream: there is nothing to note */
    DS__USE_FOREIGN /* a stream of another driver: an error */
};

/* A stream use while ds__note_use adds the use to a block. */
typedef struct ds__use_note {
    void *ptr;
    ds_stream stream;
    ds__stream *s; /* `stream`, pinned */
    int now;       /* 1: the event is recorded at once */
    int pinned;    /* 1: only pinned memory is meant; 0: only memory of devices */
    int relation;  /* DS__USE_* */
    ds__arena *a;
    ds__mem_block *b;
    char *start;                   /* of the block: it may be freed while the arena is not locked */
    uint64_t capture;              /* that the use belongs to; 0: none */
    const ds__stream_use *earlier; /* of the same stream and capture, or NULL */
    ds_event event;                /* of `earlier` */
    ds__stream_use *fresh;         /* description of a new use, or NULL */
} ds__use_note;

/* Finds the live block of the pointer and locks its arena. If there is none, `b` is NULL and
   nothing is locked. Fails if the check of a watched pool fails; then nothing is locked. */
static ds_result ds__use_block_find(ds__use_note *n) {
    n->b = ds__find_live(n->ptr, 0, &n->a);
    if (n->b && DS__UNLIKELY(n->a->watched)) {
        ds__arena_unlock(n->a);
        ds_result r = ds__pool_check(n->a->pool, 2);
        if (r < 0)
            return r;
        n->b = ds__find_live(n->ptr, 0, &n->a);
    }

    if (n->b && n->pinned != (n->a->dev->device.type == DS_DEVICE_HOST)) {
        ds__arena_unlock(n->a);
        n->b = NULL;
    }
    return DS_OK;
}

/* Returns how the stream relates to the block: DS__USE_*. The arena is locked. */
static int ds__use_relation_get(const ds__use_note *n) {
    const ds__arena *a = n->a;
    const ds__stream *s = n->s;
    int foreign = !n->pinned && s->driver != ds__driver_of(a->dev->device);
    int own;
    if (n->b->lent)
        own = n->b->uses->stream.id == n->stream.id;
    else
        own = a->stream_id == s->id ||
              (!foreign && a->identity && a->dev->device.index == s->device.index &&
               a->identity == s->driver->stream_identity(s->native));

    if (own)
        return DS__USE_OWN;
    return foreign ? DS__USE_FOREIGN : DS__USE_OTHER;
}

/* Lets an earlier use cover the stream's work until the free. Its event is recorded again at the
   free, or when the stream ends. The arena is locked. */
static void ds__use_earlier_extend(const ds__use_note *n, ds__stream_use *u) {
    if (!ds__use_claim(u)) {
        atomic_fetch_add(&n->a->dev->late_uses, 1);
        u->capture = 0;
        u->recorded = DS__RECORDING;
    }
    u->recorded = 0;
}

/* Returns an earlier use by the same stream in the same capture, or NULL. Work before a capture is
   a use of its own, and the first use of a lent block is that of the borrowing stream. The arena is
   locked. */
static ds__stream_use *ds__use_earlier_find(const ds__use_note *n) {
    ds__stream_use *u = n->b->lent ? n->b->uses->next : n->b->uses;
    while (u && (u->stream.id != n->stream.id || u->capture != n->capture))
        u = u->next;
    return u;
}

/* Reads the state of the block, takes a description for a new use from the arena's stock, and
   unlocks the arena. */
static void ds__use_prepare(ds__use_note *n) {
    ds__arena *a = n->a;
    n->relation = ds__use_relation_get(n);
    /* the graph orders its own uses; only work before the capture is noted */
    if (n->capture && !a->pool->graphs) {
        n->now = 0;
        n->capture = 0;
    }

    ds__stream_use *u = ds__use_earlier_find(n);
    if (!u && n->relation == DS__USE_OTHER) {
        n->fresh = a->spare_uses;
        if (n->fresh)
            a->spare_uses = n->fresh->next;
    }
    if (u && n->relation != DS__USE_OWN && !n->now)
        ds__use_earlier_extend(n, u);
    /* its event is recorded later than this */
    if (u && u->recorded != 1)
        n->now = 0;

    n->earlier = u;
    n->start = n->b->ptr;
    n->event = (ds_event){ u ? u->event.id : 0 };
    ds__arena_unlock(a);
}

/* Adds the new use to the block, unless `r`, the result of recording its event, is an error, or
   another thread has freed the block. Returns `r`, or DS_ERR_INVALID_VALUE if the block was
   freed. No lock is held. */
static ds_result ds__use_publish(const ds__use_note *n, ds_result r) {
    ds__arena *a = n->a;
    ds__mem_block *b = n->b;
    ds__stream_use *fresh = n->fresh;
    ds__arena_lock(a);
    int still = b->state == DS_BLOCK_LIVE && b->ptr == n->start && b->seg;
    if (fresh && r == DS_OK && still) {
        fresh->capture = n->capture;
        ds__stream_use **at = b->lent && b->uses ? &b->uses->next : &b->uses;
        fresh->stream = n->stream;
        fresh->recorded = (uint8_t)n->now;
        fresh->next = *at;
        *at = fresh;
        /* counts some uses twice: the sum only says whether to look */
        if (!n->now)
            atomic_fetch_add(&a->dev->late_uses, 1);
    } else if (fresh) {
        ds__stream_uses_destroy(a, fresh);
    }
    ds__arena_unlock(a);

    if (r == DS_OK && !still)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                     n->ptr);
    return r;
}

/* Adds the use to the block that ds__use_block_find has found and locked; unlocks. The event is
   recorded without the lock, so ds__use_publish looks at the block again. */
static ds_result ds__use_add(ds__use_note *n) {
    ds__use_prepare(n);
    if (n->relation == DS__USE_FOREIGN)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the memory and the stream belong to different drivers");
    if (n->relation == DS__USE_OTHER && ds__observer_is_set())
        ds__observer_notify(&(ds__seen){
            .kind = DS__SEEN_USE, .ptr = n->ptr, .stream = n->stream, .bytes = n->now != 0 });
    if (n->relation == DS__USE_OWN || (n->earlier && !n->now))
        return DS_OK;

    if (!n->earlier) {
        n->fresh = ds__stream_use_done(n->fresh, n->s->device);
        if (!n->fresh)
            return ds__mem_error();
    }

    /* The event of an earlier use by the same stream may be recorded again: the later point is
       behind it. */
    ds_result r = DS_OK;
    if (n->now)
        r = ds__event_record(n->earlier ? n->event : n->fresh->event, n->stream, DS__OP_RECORD);
    return ds__use_publish(n, r);
}

/* Notes a use of the block at `ptr` by a stream. With `now` the use gets its event at once. With
   `strict` a pointer outside of live blocks is an error. With `pinned` only pinned memory is
   meant, else only memory of devices. No lock is held. */
static ds_result ds__note_use(void *ptr, ds_stream stream, int now, int strict, int pinned) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__expect_end(s);

    ds__use_note n = { .ptr = ptr, .stream = stream, .s = s, .now = now, .pinned = pinned };
    n.capture = pinned ? 0 : ds__capture_of(s);
    ds_result r = ds__use_block_find(&n);
    if (r == DS_OK && n.b)
        r = ds__use_add(&n);
    else if (r == DS_OK && strict)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside a live allocation%s", ptr,
                     pinned ? " of pinned memory" : "");

    ds__stream_unpin(s);
    return r;
}

/* Notes that a stream, which the caller has pinned, uses memory. Memory of other sources, and
   memory of the stream itself, needs no note. In a capture, the program must keep the memory. */
DS__SEAM static ds_result ds__mem_operand(void *ptr, ds__stream *s, ds_stream stream) {
    ds__arena *a = NULL;
    const ds__mem_block *b = ds__find_live(ptr, 0, &a);
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
