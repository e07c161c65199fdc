/* core/event.h - events: creation, records, waits of streams.

   Creates and destroys events, records events on streams (ds__event_record_on), and makes streams
   wait for events or for other streams (ds__wait_event, ds__wait_stream). An event is bound to the
   device of its first successful record (ds__event_claim, ds__event_settle).

   Invariants: e->device is -1 until a call claims the event for a device. If the call fails and
   no other claim is open, it becomes -1 again. A settled event stays on its device. e->driver is
   set before e->native. A native event lives as long as the event, even if the first record
   failed. A plain wait for an event without a device does nothing.
   Locks: e->bind guards the binding. It is not held over the driver's event_create (e->binding) nor
   over a record. ds__event_record_outside holds ds__g.begin over the record; e->bind comes after
   ds__g.begin and after the lock of a graph or executable.
   Threads: any. Records, waits and destruction of one event may run concurrently, because hazard
   pointers protect the event and the stream. ds__event_destroy runs in ds__retired_reclaim or in
   ds_shutdown. */
#ifndef DS__CORE_EVENT_H
#define DS__CORE_EVENT_H

#include "../base/observe.h"
#include "init.h"
#include "thread.h"
#include "device.h"
#include "stream.h"
#include "stream_sync.h"
#include "submit.h"

static ds__event *ds__event_pin(ds_event handle) {
    ds__event *e = ds__pin(&ds__g.events, handle.id);
    if (DS__UNLIKELY(!e))
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the event was destroyed or never existed"
                                                  : "no event was given (the handle is zero)");
    return e;
}

static inline void ds__event_unpin(ds__event *e) {
    ds__unpin(&ds__g.events, e);
}

static void ds__event_destroy(void *object) {
    ds__event *e = object;
    void *native = atomic_load(&e->native);
    if (native)
        e->driver->event_destroy(native);
    ds__host_free(e->label);
}

/* An interprocess event is released at once, since other processes notice its release. */
static int ds__event_batched(const void *object) {
    const ds__event *e = object;
    return !(e->flags & DS_EVENT_INTERPROCESS) && !e->imported;
}

/* Creates an event that is bound to no device. */
static ds_result ds__event_create(unsigned flags, const char *label, ds_event *out) {
    DS__REQUIRE((flags & ~(unsigned)(DS_EVENT_TIMING | DS_EVENT_BLOCKING_WAIT |
                                     DS_EVENT_INTERPROCESS)) == 0,
                "unknown flags %#x; use DS_EVENT_* flags", flags);
    DS__REQUIRE((flags & (DS_EVENT_TIMING | DS_EVENT_INTERPROCESS)) !=
                    (DS_EVENT_TIMING | DS_EVENT_INTERPROCESS),
                "an interprocess event cannot have timing");
    char *copy = label ? ds__copy_text(label, 255) : NULL;
    ds__event *e = label && !copy ? NULL : ds__table_add(&ds__g.events);
    if (!e) {
        ds__host_free(copy);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    }
    e->flags = flags;
    e->label = copy;
    e->made = ds__tls.site;
    atomic_store(&e->device, -1);
    out->id = ds__handle_of(&e->slot);
    return DS_OK;
}

DSDEF ds_result(ds_event_create)(unsigned flags, const char *label, ds_event *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_event_create");
    DS__REQUIRE(out, "out is NULL");
    return ds__event_create(flags, label, out);
}

static ds_result ds__event_release(uint64_t id) {
    return (ds_event_destroy)((ds_event){ id });
}

DSDEF ds_result(ds_event_destroy)(ds_event event) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_object("ds_event_destroy", &ds__g.events, event.id, ds__event_release);
    DS__ENTER("ds_event_destroy");
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    int killed = ds__table_invalidate(&ds__g.events, e);
    ds__event_unpin(e);
    ds__retired_reclaim();
    return killed ? DS_OK : ds__fail(DS_ERR_INVALID_HANDLE, "the event was destroyed already");
}

/* Checks that an event can be bound to a device, and gives its native event if there is one from a
   first record that has failed. *out_bound: it is bound already. any: an event that is bound to
   another device is accepted. The event is locked. */
static ds_result ds__event_check(ds__event *e, const ds__driver *driver, ds_device device, int any,
                                 int *out_bound, void **out_native) {
    int64_t bound = atomic_load(&e->device);
    *out_native = atomic_load(&e->native);
    *out_bound = bound == ds__device_key(device) || (any && bound >= 0);
    if (*out_bound)
        return DS_OK;
    if (bound >= 0)
        return ds__fail(
            DS_ERR_DEVICE_MISMATCH,
            "the event belongs to %s:%d, where it was created or first recorded, the stream to "
            "%s:%d",
            ds__type_name((int)(bound >> 32)), (int)(bound & INT_MAX), ds__type_name(device.type),
            device.index);
    if (*out_native && e->driver != driver)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "an earlier record of the event used a device of the other driver");
    return DS_OK;
}

/* Binds an event for a call that settles it on the device if it succeeds. The binding cannot change
   until ds__event_settle. The native event is created without the lock; other threads that need it
   sleep meanwhile, which only happens if two threads record a new event at once. */
static ds_result ds__event_claim(ds__event *e, const ds__driver *driver, ds_device device,
                                 int any) {
    void *native;
    int bound;
    ds__spinlock_lock(&e->bind);
    while (e->binding) {
        ds__spinlock_unlock(&e->bind);
        ds__os_sleep(20000);
        ds__spinlock_lock(&e->bind);
    }
    ds_result r = ds__event_check(e, driver, device, any, &bound, &native);
    e->claims += bound;
    e->binding = r == DS_OK && !bound;
    ds__spinlock_unlock(&e->bind);
    if (r < 0 || bound)
        return r;
    r = driver->event_create(device.index, e->flags, &native);
    ds__spinlock_lock(&e->bind);
    e->binding = 0;
    if (r == DS_OK) {
        e->driver = driver;
        atomic_store(&e->native, native);
        atomic_store(&e->device, ds__device_key(device));
        e->claims++;
    }
    ds__spinlock_unlock(&e->bind);
    return r;
}

/* Ends ds__event_claim. succeeded: the event stays on its device for good. Else it is unbound,
   unless another call has settled or claimed it. */
static void ds__event_settle(ds__event *e, int succeeded) {
    ds__spinlock_lock(&e->bind);
    e->claims--;
    if (succeeded)
        atomic_store(&e->settled, 1);
    else if (!e->claims && !atomic_load(&e->settled))
        atomic_store(&e->device, -1);
    ds__spinlock_unlock(&e->bind);
}

DSDEF ds_result(ds_event_create_on)(ds_device device, unsigned flags, const char *label,
                                    ds_event *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_event_create_on");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    ds_event handle = { 0 };
    ds_result r = ds__event_create(flags, label, &handle);
    if (r < 0)
        return r;
    ds__event *e = ds__event_pin(handle);
    r = e ? ds__event_claim(e, ds__driver_of(device), device, 0) : DS_ERR_INVALID_HANDLE;
    if (r == DS_OK)
        ds__event_settle(e, 1);
    else if (e)
        ds__table_invalidate(&ds__g.events, e);
    if (e)
        ds__event_unpin(e);
    if (r == DS_OK)
        *out = handle;
    return r;
}

/* The first record that succeeds binds the event to its device. */
static inline ds_result ds__event_record_on(ds__event *e, ds__stream *s, int kind) {
    int first = !atomic_load_explicit(&e->settled, memory_order_acquire) ||
                atomic_load_explicit(&e->device, memory_order_relaxed) != ds__device_key(s->device);
    ds_result r = DS__UNLIKELY(first) ? ds__event_claim(e, s->driver, s->device, 0) : DS_OK;
    if (DS__LIKELY(r == DS_OK)) {
        ds__op op = ds__op_init(kind);
        op.u.event.event = atomic_load_explicit(&e->native, memory_order_acquire);
        op.u.event.object = e;
        r = ds__stream_submit(s, &op);
        if (DS__LIKELY(r == DS_OK))
            atomic_store_explicit(&e->recorded_on, ds__handle_of(&s->slot), memory_order_relaxed);
        if (DS__UNLIKELY(first))
            ds__event_settle(e, r == DS_OK);
    }
    return ds__name_object(r, "event", e->label);
}

static inline ds_result ds__event_record(ds_event event, ds_stream stream, int kind) {
    ds__event *e = ds__pin_inline(&ds__g.events, event.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!e)) {
        ds__event_pin(event);
        return DS_ERR_INVALID_HANDLE;
    }
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    if (DS__UNLIKELY(!s))
        ds__stream_pin(stream);
    ds_result r = s ? ds__event_record_on(e, s, kind) : DS_ERR_INVALID_HANDLE;
    if (s)
        ds__unpin_inline(&ds__g.streams, s);
    ds__unpin_inline(&ds__g.events, e);
    return r;
}

/* Records the event, or returns DS_NOT_READY if a capture is open. A later wait for the event does
   not invalidate a capture that begins meanwhile. */
DS__SEAM static ds_result ds__event_record_outside(ds_event event, ds_stream stream) {
    ds__rwlock_read(&ds__g.begin);
    ds_result r =
        ds__captures_open() ? DS_NOT_READY : ds__event_record(event, stream, DS__OP_RECORD);
    ds__rwlock_end_read(&ds__g.begin);
    return r;
}

DSDEF ds_result(ds_event_record)(ds_event event, ds_stream stream) {
    ds_result r = ds__api_enter_inline("ds_event_record");
    return DS__UNLIKELY(r < 0) ? r : ds__event_record(event, stream, DS__OP_RECORD);
}

DSDEF ds_result(ds_event_record_external)(ds_event event, ds_stream stream) {
    DS__ENTER("ds_event_record_external");
    return ds__event_record(event, stream, DS__OP_EXTERNAL_RECORD);
}

DSDEF ds_result(ds_stream_record_event)(ds_stream stream, unsigned flags, ds_event *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_record_event");
    DS__REQUIRE(out, "out is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_event handle = { 0 };
    ds_result r = ds__event_create(flags, NULL, &handle);
    if (r == DS_OK) {
        ds__event *e = ds__event_pin(handle);
        r = e ? ds__event_record_on(e, s, DS__OP_RECORD) : DS_ERR_INVALID_HANDLE;
        if (r < 0 && e)
            ds__table_invalidate(&ds__g.events, e);
        if (e)
            ds__event_unpin(e);
        if (r == DS_OK)
            *out = handle;
    }
    ds__stream_unpin(s);
    return r;
}

/* 'stream 7 "copies" of cpu:0'; the number is that of ds_stream_get_id. */
static const char *ds__stream_text(const ds__stream *s, char *out, size_t size) {
    ds__spinlock_lock(&ds__g.label_lock);
    snprintf(out, size, "stream %llu%s%.100s%s of %s:%d", (unsigned long long)s->id,
             s->label ? " \"" : "", s->label ? s->label : "", s->label ? "\"" : "",
             ds__type_name(s->device.type), s->device.index);
    ds__spinlock_unlock(&ds__g.label_lock);
    return out;
}

/* Adds names to the sentence of a refused wait of stream s, for stream o or, if that is NULL, for
   event e. If a capture is the reason, both streams are named. */
__attribute__((cold, noinline)) static ds_result ds__wait_error(const ds__stream *s,
                                                                const ds__stream *o,
                                                                const ds__event *e, ds_result r) {
    char waits[200];
    char other[200] = "a stream that was destroyed";
    if (r != DS_ERR_CAPTURE_ISOLATION && r != DS_ERR_CAPTURE_MERGE)
        return ds__stream_error(s, r);
    ds__stream_text(s, waits, sizeof waits);
    if (o)
        return ds__fail_append(r, " (wait of %s for %s)", waits,
                               ds__stream_text(o, other, sizeof other));
    uint64_t handle = atomic_load_explicit(&e->recorded_on, memory_order_relaxed);
    ds__stream *recorder = handle ? ds__pin(&ds__g.streams, handle) : NULL;
    if (recorder) {
        ds__stream_text(recorder, other, sizeof other);
        ds__stream_unpin(recorder);
    }
    return ds__fail_append(r, " (wait of %s for an event%s%s%s%s%s)", waits, e->label ? " \"" : "",
                           e->label ? e->label : "", e->label ? "\"" : "",
                           handle ? " recorded on " : "", handle ? other : "");
}

/* Tells observers of a wait for an event that was never recorded, if it has succeeded. */
static void ds__wait_unrecorded(ds_result r, ds_stream stream, ds_event event) {
    if (r == DS_OK && ds__observer_is_set())
        ds__observer_notify(
            &(ds__seen){ .kind = DS__SEEN_UNRECORDED, .stream = stream, .event = event });
}

static inline ds_result ds__wait_event(ds_stream stream, ds_event event, int kind) {
    ds_result r = DS_OK;
    ds__event *e = ds__pin_inline(&ds__g.events, event.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!e)) {
        ds__event_pin(event);
        return DS_ERR_INVALID_HANDLE;
    }
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        r = DS_ERR_INVALID_HANDLE;
    }
    /* its first record may come after the capture */
    int claimed = s && kind == DS__OP_EXTERNAL_WAIT &&
                  !atomic_load_explicit(&e->settled, memory_order_relaxed);
    if (DS__UNLIKELY(claimed)) {
        r = ds__event_claim(e, s->driver, s->device, 1);
        claimed = r == DS_OK;
    }
    int64_t device = atomic_load(&e->device);
    void *native = atomic_load_explicit(&e->native, memory_order_acquire);
    if (s && r == DS_OK && native && device >= 0) {
        ds__op op = ds__op_init(kind);
        op.u.event.event = native;
        op.u.event.object = e;
        if ((int)(device >> 32) != s->device.type) {
            r = ds__fail(DS_ERR_CROSS_DRIVER,
                         "the event and the stream belong to different drivers");
        } else {
            r = s->driver->submit(s->native, &op);
            if (DS__UNLIKELY(r < 0))
                r = ds__wait_error(s, NULL, e, r);
        }
    }
    if (DS__UNLIKELY(!native || device < 0))
        ds__wait_unrecorded(r, stream, event);
    if (DS__UNLIKELY(claimed))
        ds__event_settle(e, r == DS_OK);
    if (s)
        ds__unpin_inline(&ds__g.streams, s);
    ds__unpin_inline(&ds__g.events, e);
    return r;
}

DSDEF ds_result(ds_stream_wait_event)(ds_stream stream, ds_event event) {
    ds_result r = ds__api_enter_inline("ds_stream_wait_event");
    return DS__UNLIKELY(r < 0) ? r : ds__wait_event(stream, event, DS__OP_WAIT);
}

DSDEF ds_result(ds_stream_wait_event_external)(ds_stream stream, ds_event event) {
    DS__ENTER("ds_stream_wait_event_external");
    return ds__wait_event(stream, event, DS__OP_EXTERNAL_WAIT);
}

static ds_result ds__wait_stream(ds_stream stream, ds_stream other) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__stream *o = ds__stream_pin(other);
    ds_result r = DS_ERR_INVALID_HANDLE;
    if (o && o->device.type != s->device.type) {
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the streams belong to different drivers");
    } else if (o) {
        ds__op op = ds__op_init(DS__OP_WAIT_STREAM);
        op.u.wait.stream = o->native;
        op.u.wait.upto = 0;
        r = s->driver->submit(s->native, &op);
        if (DS__UNLIKELY(r < 0))
            r = ds__wait_error(s, o, NULL, r);
    }
    if (o)
        ds__stream_unpin(o);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_wait_stream)(ds_stream stream, ds_stream other) {
    DS__ENTER("ds_stream_wait_stream");
    return ds__wait_stream(stream, other);
}

#endif
