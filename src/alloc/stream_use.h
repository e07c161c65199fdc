/* alloc/stream_use.h - uses of blocks by other streams, and their events.

   Manages stream uses (ds__stream_use). ds__stream_use_new takes one with an event from the arena's
   stock, and ds__stream_uses_drop returns a list of them. ds__uses_done tells whether uses are
   done; ds__uses_awaited makes the host wait for them. ds__capture_of returns the capture of a
   stream. ds__use_claim decides which thread records the event of a use. ds__record_uses records
   the events that are missing at a free.

   Invariants: `recorded` is 1 if the event is recorded or not needed any more, and
   DS__RECORDING while one thread records it. An event stays with the device of its first
   record. Only a thread for which ds__use_claim returned 1 records the event of a use. A use
   inside a capture counts as done once no capture is open, because the graph
   orders it. A query that fails for another reason than failed work does not count as done.
   Locks: ds__stream_uses_drop expects the arena's lock. The others may call the driver and expect
   no spinning lock; only ds__note_use calls ds__capture_of under one. ds__record_held and
   ds__record_uses_held expect new captures to be held back (ds__g.begin); ds__record_now and
   ds__record_uses do so themselves.
   Threads: any. ds__uses_awaited and ds__device_wait block the host. */
#ifndef DS__ALLOC_STREAM_USE_H
#define DS__ALLOC_STREAM_USE_H

#include "../core/internal.h"
#include "internal.h"
#include "types.h"
#include "util.h"

static void ds__event_drop(ds_event event) {
    ds__event *e = event.id ? ds__pin(&ds__g.events, event.id) : NULL;
    if (!e)
        return;
    ds__table_kill(&ds__g.events, e);
    ds__event_unpin(e);
}

/* Makes a use ready for its event to be recorded; NULL: a new one. NULL comes back with the
   sentence: there is no memory. */
static ds__stream_use *ds__stream_use_done(ds__stream_use *u, ds_device device) {
    if (!u && !(u = ds__kept_alloc(sizeof *u))) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to record a use");
        return NULL;
    }
    /* an event stays with the device of its first record */
    if (u->event.id && u->device != ds__device_key(device)) {
        ds__event_drop(u->event);
        u->event.id = 0;
    }
    u->next = NULL;
    u->recorded = 0;
    u->lost = 0;
    u->capture = 0;
    u->device = ds__device_key(device);
    /* the description is lost until shutdown */
    if (!u->event.id && ds__event_new(0, NULL, &u->event) < 0)
        u = NULL;
    return u;
}

/* One from the arena's stock. The arena is not locked. */
static ds__stream_use *ds__stream_use_new(ds__arena *a, ds_device device) {
    ds__arena_lock(a);
    ds__stream_use *u = a->spare_uses;
    if (u)
        a->spare_uses = u->next;
    ds__arena_unlock(a);
    return ds__stream_use_done(u, device);
}

/* The events of uses may be recorded again. The arena is locked. */
static void ds__stream_uses_drop(ds__arena *a, ds__stream_use *u) {
    while (u) {
        ds__stream_use *next = u->next;
        u->next = a->spare_uses;
        a->spare_uses = u;
        u = next;
    }
}

static ds_result ds__event_ask(ds_event event) {
    ds__event *e = ds__pin(&ds__g.events, event.id);
    void *native = e ? atomic_load_explicit(&e->native, memory_order_acquire) : NULL;
    ds_result r = native ? e->driver->event_query(native) : DS_OK;
    if (e)
        ds__event_unpin(e);
    return r;
}

#define DS__BROKEN UINT64_MAX

/* The capture that a stream is in; 0: none; DS__BROKEN: one that cannot be added to. */
static uint64_t ds__capture_of(ds__stream *s) {
    ds_capture_info info;
    if (DS__LIKELY(!ds__captures_open()))
        return 0;
    memset(&info, 0, sizeof info);
    if (s->driver->capture_query(s->native, &info) != DS_OK)
        return DS__BROKEN;
    return info.status == DS_CAPTURE_NONE     ? 0
           : info.status == DS_CAPTURE_ACTIVE ? info.id
                                              : DS__BROKEN;
}

static uint64_t ds__capture_of_handle(ds_stream stream) {
    ds__stream *s = ds__captures_open() ? ds__pin(&ds__g.streams, stream.id) : NULL;
    uint64_t capture = s ? ds__capture_of(s) : 0;
    if (s)
        ds__stream_unpin(s);
    return capture;
}

static int ds__is_capturing(ds__stream *s) {
    ds_capture_info info;
    memset(&info, 0, sizeof info);
    return s->driver->capture_query(s->native, &info) == DS_OK && info.status != DS_CAPTURE_NONE;
}

/* Whoever gets 1 records the use's event and says then how that went; 0: it is recorded. */
static int ds__use_claim(ds__stream_use *u) {
    for (;;) {
        uint8_t was = 0;
        if (atomic_compare_exchange_strong(&u->recorded, &was, DS__RECORDING))
            return 1;
        if (was == 1)
            return 0;
        ds__processor_pause();
    }
}

/* Gives a use the event that it was to get when a capture is over. 0: one is open still.
   Captures are held. */
static int ds__record_held(ds__stream_use *u) {
    if (ds__captures_open())
        return 0;
    if (!ds__use_claim(u))
        return 1;
    ds__tls.mute++;
    ds_result r = ds__event_record(u->event, u->stream, DS__OP_RECORD);
    ds__tls.mute--;
    u->recorded = r == DS_OK || r == DS_ERR_FAILED; /* one that has failed needs none */
    /* it has ended, or was given away, and did not see the use: nobody knows when it is done */
    u->lost |= r == DS_ERR_INVALID_HANDLE;
    return u->recorded;
}

static int ds__record_now(ds__stream_use *u) {
    if (ds__captures_open())
        return 0;
    ds__hold_captures();
    int recorded = ds__record_held(u);
    ds__let_captures();
    return recorded;
}

/* Gives every use without an event one, at the end of its stream; a stream that has ended needs
   none. Uses of streams that capture what the block belongs to are ordered by the graph.
   Captures are held; the block is in no list. */
static ds_result ds__record_uses_held(ds__mem_block *b) {
    for (ds__stream_use *u = b->uses; u; u = u->next) {
        if (!ds__use_claim(u))
            continue;
        uint64_t capture = ds__capture_of_handle(u->stream);
        /* what counts is the work from before: when the capture is over */
        if (capture && capture != u->capture) {
            u->recorded = 0;
            continue;
        }
        u->capture = capture;
        ds_result r = ds__event_record(u->event, u->stream, DS__OP_RECORD);
        /* a stream that has ended and saw the use has recorded it */
        if (r == DS_ERR_INVALID_HANDLE) {
            u->lost = 1;
            u->recorded = 0;
            continue;
        }
        u->recorded = r >= 0;
        if (r < 0)
            return r;
    }
    return DS_OK;
}

static ds_result ds__record_uses(ds__mem_block *b) {
    const ds__stream_use *u = b->uses;
    while (u && u->recorded == 1)
        u = u->next;
    if (!u)
        return DS_OK;
    ds__hold_captures();
    ds_result r = ds__record_uses_held(b);
    ds__let_captures();
    return r;
}

/* Whether the uses of a block are done; a use whose stream or device has failed is. What was
   used in a capture is used in the order of its graph. No lock is held. */
static int ds__uses_done(ds__stream_use *u) {
    for (; u; u = u->next) {
        if (DS__UNLIKELY(u->recorded != 1) && !ds__record_now(u))
            return 0;
        if (DS__UNLIKELY(u->capture)) {
            if (ds__captures_open())
                return 0;
            continue;
        }
        ds_result r = ds__event_ask(u->event);
        /* an answer that says nothing of the work is no "done" */
        if (r != DS_OK && r != DS_ERR_FAILED)
            return 0;
    }
    return 1;
}

static ds_result ds__device_wait(int64_t key) {
    ds_device d = { (int32_t)(key >> 32), (int32_t)(key & INT32_MAX) };
    return ds__driver_of(d)->device_synchronize(d.index);
}

static int ds__uses_awaited(ds__stream_use *u) {
    for (; u; u = u->next) {
        if (u->recorded != 1 && !ds__record_now(u)) {
            if (!u->lost || ds__captures_open() || ds__device_wait(u->device) < 0)
                return 0;
            u->recorded = 1;
            continue;
        }
        if (u->capture) {
            if (ds__captures_open())
                return 0;
            continue;
        }
        ds_result r = ds__event_sync(u->event, DS__FOREVER);
        if (r != DS_OK && r != DS_ERR_FAILED && r != DS_ERR_CAPTURED_EVENT)
            return 0;
    }
    return 1;
}

#endif
