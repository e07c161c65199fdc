/* core/event_sync.h - events: queries, host waits, timing, sharing.

   Queries events, waits for events on the host, measures the time between two events
   (ds__event_elapsed), and exports and imports interprocess events.

   Invariants: an event without a native event is complete. An imported event is settled on its
   device and cannot be exported again.
   Locks: none of its own; ds_event_export claims the event under e->bind. No lock is held over a
   host wait.
   Threads: any. While a call waits, its hazard pointer keeps the event from being freed. */
#ifndef DS__CORE_EVENT_SYNC_H
#define DS__CORE_EVENT_SYNC_H

#include "../base/drive.h"
#include "../base/observe.h"
#include "init.h"
#include "thread.h"
#include "sync_debug.h"
#include "device.h"
#include "stream_sync.h"
#include "event.h"

static ds_result ds__event_sync(ds_event event, uint64_t timeout_ns) {
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    void *native = atomic_load_explicit(&e->native, memory_order_acquire);
    ds_result r = native ? e->driver->event_synchronize(native, timeout_ns) : DS_OK;
    if (native)
        r = ds__drive_failure(r, ds__device_of_key(atomic_load(&e->device)), 0);
    ds__event_unpin(e);
    ds__retired_reclaim();
    return ds__observer_notify_wait(r, (ds_stream){ 0 }, event,
                                    (ds_device){ DS_DEVICE_CURRENT, 0 });
}

DSDEF ds_result(ds_event_query)(ds_event event) {
    DS__ENTER("ds_event_query");
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    void *native = atomic_load_explicit(&e->native, memory_order_acquire);
    ds_result r = native ? e->driver->event_query(native) : DS_OK;
    ds__event_unpin(e);
    return ds__observer_notify_wait(r, (ds_stream){ 0 }, event,
                                    (ds_device){ DS_DEVICE_CURRENT, 0 });
}

__attribute__((cold, noinline)) static ds_result ds__sync_watch_event(ds_event event) {
    ds__event *e = ds__pin(&ds__g.events, event.id);
    if (!e)
        return DS_OK;
    ds_result r = e->label ? ds__sync_tell("waits for the event \"%s\"", e->label)
                           : ds__sync_tell("waits for an event");
    ds__event_unpin(e);
    return r;
}

DSDEF ds_result(ds_event_synchronize)(ds_event event) {
    DS__ENTER("ds_event_synchronize");
    ds_result r = DS__UNLIKELY(ds__sync_watched()) ? ds__sync_watch_event(event) : DS_OK;
    return r < 0 ? r : ds__event_sync(event, DS__FOREVER);
}

DSDEF ds_result(ds_event_synchronize_for)(ds_event event, uint64_t timeout_ns) {
    DS__ENTER("ds_event_synchronize_for");
    ds_result r = DS_OK;
    if (DS__UNLIKELY(ds__sync_watched()) && timeout_ns)
        r = ds__sync_watch_event(event);
    if (r < 0)
        return r;
    return ds__event_sync(event, timeout_ns < DS__FOREVER ? timeout_ns : DS__FOREVER - 1);
}

/* Checks in torch's order and returns the time between two pinned events. */
static ds_result ds__event_elapsed(ds__event *a, ds__event *b, double *out_ms) {
    if (!(a->flags & DS_EVENT_TIMING) || !(b->flags & DS_EVENT_TIMING))
        return ds__fail(DS_ERR_NO_TIMING, "both events must be created with DS_EVENT_TIMING");
    int64_t da = atomic_load(&a->device);
    int64_t db = atomic_load(&b->device);
    void *na = atomic_load_explicit(&a->native, memory_order_acquire);
    void *nb = atomic_load_explicit(&b->native, memory_order_acquire);
    if (da < 0 || db < 0 || !na || !nb)
        return ds__fail(DS_ERR_NOT_RECORDED, "both events must be recorded first");
    /* the time from an event to itself: unlike a query it does not invalidate a capture in which
       the event was recorded */
    ds_result r = a->driver->event_elapsed(na, na, out_ms);
    if (r == DS_OK)
        r = b->driver->event_elapsed(nb, nb, out_ms);
    *out_ms = 0;
    if (r != DS_OK)
        return r;
    if (da != db)
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "the events were recorded on different devices");
    return a->driver->event_elapsed(na, nb, out_ms);
}

DSDEF ds_result(ds_event_get_elapsed_ms)(ds_event start, ds_event end, double *out_ms) {
    if (out_ms)
        *out_ms = 0;
    DS__ENTER("ds_event_get_elapsed_ms");
    DS__REQUIRE(out_ms, "out_ms is NULL");
    ds__event *a = ds__event_pin(start);
    if (!a)
        return DS_ERR_INVALID_HANDLE;
    ds__event *b = ds__event_pin(end);
    ds_result r = b ? ds__event_elapsed(a, b, out_ms) : DS_ERR_INVALID_HANDLE;
    if (b)
        ds__event_unpin(b);
    ds__event_unpin(a);
    return r;
}

DSDEF ds_result(ds_event_get_device)(ds_event event, ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_event_get_device");
    DS__REQUIRE(out, "out is NULL");
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    int64_t device = atomic_load(&e->device);
    if (device >= 0) {
        out->type = (int32_t)(device >> 32);
        out->index = (int32_t)(device & INT_MAX);
    }
    ds__event_unpin(e);
    return DS_OK;
}

DSDEF ds_result(ds_event_get_flags)(ds_event event, unsigned *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_event_get_flags");
    DS__REQUIRE(out, "out is NULL");
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    *out = e->flags;
    ds__event_unpin(e);
    return DS_OK;
}

/* Binds the event to the device if it is not bound yet, and exports it. If the export fails, a
   binding of this call is undone. */
static ds_result ds__event_export_claimed(ds__event *e, ds_device device,
                                          ds_ipc_event_handle *out) {
    if (!(e->flags & DS_EVENT_INTERPROCESS))
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the event was created without DS_EVENT_INTERPROCESS");
    if (e->imported)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the event was imported; only its creating process can export it");
    ds_result r = ds__event_claim(e, ds__driver_of(device), device, 1);
    if (r == DS_OK) {
        r = e->driver->event_export(atomic_load(&e->native), out->bytes);
        ds__event_settle(e, r == DS_OK);
    }
    return r;
}

DSDEF ds_result(ds_event_export)(ds_event event, ds_ipc_event_handle *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_event_export");
    DS__REQUIRE(out, "out is NULL");
    ds_device device = ds_device_current();
    DS__RESOLVE(device);
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__event_export_claimed(e, device, out);
    r = ds__name_object(r, "event", e->label);
    ds__event_unpin(e);
    return r;
}

/* The device is resolved. */
static ds_result ds__event_open(ds_device device, const unsigned char *handle, ds_event *out) {
    void *native = NULL;
    ds_event made = { 0 };
    ds_result r = ds__driver_of(device)->event_import(device.index, handle, &native);
    if (r < 0)
        return r;
    r = ds__event_create(DS_EVENT_INTERPROCESS, NULL, &made);
    ds__event *e = r == DS_OK ? ds__event_pin(made) : NULL;
    if (!e) {
        ds__driver_of(device)->event_destroy(native);
        return r < 0 ? r : DS_ERR_INVALID_HANDLE;
    }
    e->driver = ds__driver_of(device);
    e->imported = 1;
    atomic_store(&e->settled, 1);
    atomic_store(&e->native, native);
    atomic_store(&e->device, ds__device_key(device));
    ds__event_unpin(e);
    *out = made;
    return DS_OK;
}

DSDEF ds_result(ds_event_import)(ds_device device, const ds_ipc_event_handle *handle,
                                 ds_event *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_event_import");
    DS__REQUIRE(out && handle, "%s is NULL", out ? "handle" : "out");
    DS__RESOLVE(device);
    return ds__event_open(device, handle->bytes, out);
}

#endif
