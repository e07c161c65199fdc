/* alloc/stream_use.h - uses of blocks by other streams, and their events.

   Manages stream uses (ds__stream_use). ds__stream_use_create takes one with an event from the
   arena's stock, and ds__stream_uses_destroy returns a list of them. ds__uses_done tells whether
   uses are done; ds__uses_awaited makes the host wait for them. ds__capture_of returns the capture
   of a stream. ds__use_claim decides which thread records the event of a use. ds__record_uses
   records the events that are missing at a free.

   Invariants: `recorded` is 1 if the event is recorded or not needed any more, and
   DS__RECORDING while one thread records it. An event stays with the device of its first
   record. Only a thread for which ds__use_claim returned 1 records the event of a use. A use
   inside a capture counts as done once no capture is open, because the graph
   orders it. A query that fails for another reason than failed work does not count as done.
   Locks: ds__stream_uses_destroy expects the arena's lock. The others may call the driver and
   expect no spinning lock. ds__record_held and ds__record_uses_held expect new captures to be held
   back (ds__g.begin); ds__record_now and ds__record_uses do so themselves.
   Threads: any. ds__uses_awaited and ds__device_wait block the host. */
#ifndef DS__ALLOC_STREAM_USE_H
#define DS__ALLOC_STREAM_USE_H

#include "../core/internal.h"
#include "internal.h"
#include "types.h"
#include "util.h"

/* Destroys an event of the allocator; a zero handle is allowed. */
static void ds__use_event_destroy(ds_event event) {
    ds__event *e = event.id ? ds__pin(&ds__g.events, event.id) : NULL;
    if (!e)
        return;
    ds__table_invalidate(&ds__g.events, e);
    ds__event_unpin(e);
}

/* Prepares a use, or makes one if `u` is NULL, with an event that can be recorded on the device.
   Without host memory returns NULL and sets the error. */
static ds__stream_use *ds__stream_use_done(ds__stream_use *u, ds_device device) {
    if (!u)
        u = ds__kept_alloc(sizeof *u);
    if (!u) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to record a use");
        return NULL;
    }
    /* an event stays with the device of its first record */
    if (u->event.id && u->device != ds__device_key(device)) {
        ds__use_event_destroy(u->event);
        u->event.id = 0;
    }
    u->next = NULL;
    u->recorded = 0;
    u->lost = 0;
    u->capture = 0;
    u->device = ds__device_key(device);
    /* the description is lost until shutdown */
    if (!u->event.id && ds__event_create(0, NULL, &u->event) < 0)
        u = NULL;
    return u;
}

/* Returns a use from the arena's stock, or a new one. Without host memory returns NULL and sets the
   error. The arena is not locked. */
static ds__stream_use *ds__stream_use_create(ds__arena *a, ds_device device) {
    ds__arena_lock(a);
    ds__stream_use *u = a->spare_uses;
    if (u)
        a->spare_uses = u->next;
    ds__arena_unlock(a);
    return ds__stream_use_done(u, device);
}

/* Returns a list of uses to the arena's stock. Their events stay and are recorded again. The arena
   is locked. */
static void ds__stream_uses_destroy(ds__arena *a, ds__stream_use *u) {
    while (u) {
        ds__stream_use *next = u->next;
        u->next = a->spare_uses;
        a->spare_uses = u;
        u = next;
    }
}

/* Queries an event. Returns DS_OK for an event that was destroyed or never recorded. */
static ds_result ds__event_ask(ds_event event) {
    ds__event *e = ds__pin(&ds__g.events, event.id);
    void *native = e ? atomic_load_explicit(&e->native, memory_order_acquire) : NULL;
    ds_result r = native ? e->driver->event_query(native) : DS_OK;
    if (e)
        ds__event_unpin(e);
    return r;
}

#define DS__BROKEN UINT64_MAX /* an invalidated capture, or one that cannot be queried */

/* Returns the capture of a stream, 0 if there is none, or DS__BROKEN. */
static uint64_t ds__capture_of(ds__stream *s) {
    ds_capture_info info;
    if (DS__LIKELY(!ds__captures_open()))
        return 0;
    memset(&info, 0, sizeof info);
    if (s->driver->capture_query(s->native, &info) != DS_OK)
        return DS__BROKEN;
    if (info.status == DS_CAPTURE_NONE)
        return 0;
    return info.status == DS_CAPTURE_ACTIVE ? info.id : DS__BROKEN;
}

/* Returns the capture of a stream by its handle, as ds__capture_of. */
static uint64_t ds__capture_of_handle(ds_stream stream) {
    ds__stream *s = ds__captures_open() ? ds__pin(&ds__g.streams, stream.id) : NULL;
    uint64_t capture = s ? ds__capture_of(s) : 0;
    if (s)
        ds__stream_unpin(s);
    return capture;
}

/* Returns whether the stream captures. */
static int ds__is_capturing(ds__stream *s) {
    ds_capture_info info;
    memset(&info, 0, sizeof info);
    return s->driver->capture_query(s->native, &info) == DS_OK && info.status != DS_CAPTURE_NONE;
}

/* Returns 1 to the one thread that must record the use's event and then set `recorded`. Returns 0
   if the event is recorded; waits while another thread records it. */
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

/* Records the event of a use after a capture. Returns 0 if a capture is open, or on an error. New
   captures are held back. */
static int ds__record_held(ds__stream_use *u) {
    if (ds__captures_open())
        return 0;
    if (!ds__use_claim(u))
        return 1;
    ds__tls.mute++;
    ds_result r = ds__event_record(u->event, u->stream, DS__OP_RECORD);
    ds__tls.mute--;
    u->recorded = r == DS_OK || r == DS_ERR_FAILED; /* a failed stream needs no event */
    /* the stream has ended, and its end did not record the event */
    if (r == DS_ERR_INVALID_HANDLE)
        u->lost = 1;
    return u->recorded;
}

/* As ds__record_held; holds back new captures itself. */
static int ds__record_now(ds__stream_use *u) {
    if (ds__captures_open())
        return 0;
    ds__hold_captures();
    int recorded = ds__record_held(u);
    ds__let_captures();
    return recorded;
}

/* Records the events of all uses that have none, at the current end of their streams. Uses in
   another capture than the block's get their events later. New captures are held back, and the
   block is in no list. */
static ds_result ds__record_uses_held(ds__mem_block *b) {
    for (ds__stream_use *u = b->uses; u; u = u->next) {
        if (!ds__use_claim(u))
            continue;
        uint64_t capture = ds__capture_of_handle(u->stream);
        /* the use is work before the capture; its event is recorded after the capture */
        if (capture && capture != u->capture) {
            u->recorded = 0;
            continue;
        }
        u->capture = capture;
        ds_result r = ds__event_record(u->event, u->stream, DS__OP_RECORD);
        /* the stream has ended, and its end did not record the event */
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

/* As ds__record_uses_held; holds back new captures itself, if an event is missing. */
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

/* Returns whether the uses of a block are done. Uses of failed streams or devices are done, and
   uses in captures that are over, because the graph orders them. No lock is held. */
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
        /* other errors do not tell whether the work is done */
        if (r != DS_OK && r != DS_ERR_FAILED)
            return 0;
    }
    return 1;
}

/* Waits for all work of a device; `key`: ds__device_key. The host blocks. */
static ds_result ds__device_wait(int64_t key) {
    ds_device d = { (int32_t)(key >> 32), (int32_t)(key & INT32_MAX) };
    return ds__driver_of(d)->device_synchronize(d.index);
}

/* Waits for the uses of a block. The host blocks. Returns 0 if a capture or an error prevents that.
   No lock is held. */
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
