/* core/stream.h - streams: creation, owners, destruction.

   Creates, retains and destroys streams (ds__stream_create, ds_stream_destroy), and looks up stream
   handles under a hazard pointer (ds__stream_pin). ds__stream_destroy releases the native stream
   once no call and no reference uses the object.

   Invariants: a stream with owners has a valid handle; the destroy call of the last owner makes
   it stale. Default streams cannot be retained or destroyed. A borrowed or unwrapped native
   stream is forgotten, not destroyed. A wrapper of a default stream (s->base) has no native
   stream of its own and holds a reference to the default stream.
   Locks: none. ds__stream_create reclaims and, for a label, invokes the range hook;
   ds_stream_destroy calls the modules (ds__modules_stream_end), which take their own locks. If the
   caller of ds__stream_create holds a lock, ds__tls.upper_locked must be set.
   Threads: any. ds__stream_destroy runs in ds__retired_reclaim or in ds_shutdown, and runs the
   user's release function there. */
#ifndef DS__CORE_STREAM_H
#define DS__CORE_STREAM_H

#include "../base/capture_list.h"
#include "init.h"
#include "thread.h"
#include "range_api.h"
#include "device.h"

__attribute__((noinline)) static ds__stream *ds__stream_pin(ds_stream handle) {
    ds__stream *s = ds__pin(&ds__g.streams, handle.id);
    if (DS__UNLIKELY(!s))
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the stream was destroyed or never existed"
                                                  : "no stream was given (the handle is zero)");
    return s;
}

static inline void ds__stream_unpin(ds__stream *s) {
    ds__unpin(&ds__g.streams, s);
}

/* Frees a stream without references. The native stream lives on if it is borrowed or was given
   away; else it is destroyed. Calls the release function of a wrapper. */
static void ds__stream_destroy(void *object) {
    ds__stream *s = object;
    if (s->base.id) {
        ds__stream_unref(s->base);
    } else if (s->native) {
        if (s->borrowed || atomic_load(&s->unwrapped))
            s->driver->stream_forget(s->native);
        else
            s->driver->stream_destroy(s->native);
    }
    if (s->release_fn) {
        ds__user_code outer = ds__user_code_begin();
        s->release_fn(s->user);
        ds__user_code_end(&outer);
    }
    ds__host_free(s->label);
}

static int ds__stream_batched(const void *object) {
    return !((const ds__stream *)object)->prompt;
}

/* Makes the handle stale. A wrapper's native stream and release function are the program's, which
   expects them back soon. The end of a stream in a capture changes the capture, and the legacy
   stream counts a blocking stream until its end. */
static void ds__stream_invalidate(ds__stream *s) {
    s->prompt = s->release_fn || s->base.id || s->borrowed || ds__captures_open() ||
                (s->flags & DS_STREAM_BLOCKING);
    ds__table_invalidate(&ds__g.streams, s);
}

/* Drops the reference of a current-stream slot; a zero handle is allowed. */
static void ds__stream_unref(ds_stream handle) {
    if (handle.id)
        ds__unref(&ds__g.streams, ds__slot_at(&ds__g.streams, (uint32_t)handle.id - 1));
}

/* Ends a stream of devstream itself, or one whose handle was not returned yet. A zero handle is
   allowed. */
static void ds__stream_end(ds_stream handle) {
    if (handle.id)
        ds__table_invalidate(&ds__g.streams, ds__slot_at(&ds__g.streams, (uint32_t)handle.id - 1));
}

/* Returns a new stream object without a native stream. NULL: no memory, and the sentence is set. */
static ds__stream *ds__stream_add(ds_device device, const char *label) {
    ds__retired_reclaim();
    ds__stream *s = ds__table_add(&ds__g.streams);
    if (!s) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a stream");
        return NULL;
    }
    s->driver = ds__driver_of(device);
    s->device = device;
    s->id = atomic_fetch_add(&ds__g.next_stream_id, 1) + 1;
    s->made = ds__tls.site;
    atomic_store(&s->owners, 1);
    if (label)
        s->label = ds__copy_text(label, 255);
    if (label && !s->label) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a label");
        ds__table_invalidate(&ds__g.streams, s);
        return NULL;
    }
    return s;
}

/* Undoes ds__stream_add before the handle is returned. */
static void ds__stream_discard(ds__stream *s) {
    ds_stream h = { ds__handle_of(&s->slot) };
    ds__stream_end(h);
}

/* Creates a stream as the description says, except for its device. */
static ds_result ds__stream_create_by(ds_device device, int kind, const ds_stream_desc *desc,
                                      ds_stream *out) {
    ds__stream *s = ds__stream_add(device, desc->label);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    s->kind = (uint8_t)kind;
    s->flags = kind == DS__STREAM_NEW ? desc->flags : DS_STREAM_BLOCKING;
    s->priority = s->requested = desc->priority;
    s->share = desc->multiprocessors;
    ds_result r =
        s->driver->stream_create(device.index, kind, s->flags, &s->priority, &s->share, &s->native);
    if (r < 0) {
        ds__stream_discard(s);
        return r;
    }
    out->id = ds__handle_of(&s->slot);
    s->driver->stream_named(s->native, out->id);
    if (desc->label)
        ds__tell_stream_label(s, desc->label);
    return DS_OK;
}

static ds_result ds__stream_create(ds_device device, int kind, unsigned flags, int priority,
                                   const char *label, ds_stream *out) {
    ds_stream_desc desc = { .priority = priority, .flags = flags, .label = label };
    return ds__stream_create_by(device, kind, &desc, out);
}

DSDEF ds_result(ds_stream_priority_from_paddle)(int paddle_priority, int *out_priority) {
    if (out_priority)
        *out_priority = 0;
    DS__ENTER("ds_stream_priority_from_paddle");
    DS__REQUIRE(out_priority, "out_priority is NULL");
    DS__REQUIRE(paddle_priority >= -1 && paddle_priority <= 2,
                "%d is not a Paddle priority; use 1 (high) or 2 (normal)", paddle_priority);
    *out_priority =
        paddle_priority == 1 || paddle_priority == -1 ? DS_PRIORITY_HIGH : DS_PRIORITY_NORMAL;
    return DS_OK;
}

DSDEF ds_result(ds_stream_create)(const ds_stream_desc *desc, ds_stream *out) {
    static const ds_stream_desc none;
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_create");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    DS__REQUIRE_RESERVED("ds_stream_desc", desc);
    DS__REQUIRE((desc->flags & ~(unsigned)DS_STREAM_BLOCKING) == 0,
                "unknown flags %#x; use DS_STREAM_BLOCKING or 0", desc->flags);
    ds_device device = desc->device;
    ds_device now = ds__thread_device();
    if (device.index < 0)
        device.index = device.type == now.type ? now.index : 0;
    DS__RESOLVE(device);
    DS__REQUIRE(desc->multiprocessors >= 0, "multiprocessors is %d; it must be 0 or more",
                desc->multiprocessors);
    DS__REQUIRE(!desc->multiprocessors || !(desc->flags & DS_STREAM_BLOCKING),
                "a stream with a share of the device (multiprocessors is %d) cannot be blocking",
                desc->multiprocessors);
    return ds__stream_create_by(device, DS__STREAM_NEW, desc, out);
}

DSDEF ds_result(ds_stream_ref)(ds_stream stream) {
    DS__ENTER("ds_stream_ref");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    int n = atomic_load(&s->owners);
    if (s->kind != DS__STREAM_NEW) {
        ds__stream_unpin(s);
        return ds__fail(DS_ERR_INVALID_VALUE, "a default stream cannot be retained");
    }
    while (n > 0 && !atomic_compare_exchange_weak(&s->owners, &n, n + 1)) {
    }
    if (n <= 0)
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the stream is being destroyed");
    ds__stream_unpin(s);
    return r;
}

static ds_result ds__stream_release(uint64_t id) {
    return (ds_stream_destroy)((ds_stream){ id });
}

DSDEF ds_result(ds_stream_destroy)(ds_stream stream) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_object("ds_stream_destroy", &ds__g.streams, stream.id,
                                   ds__stream_release);
    DS__ENTER("ds_stream_destroy");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (s->kind != DS__STREAM_NEW) {
        r = ds__fail(DS_ERR_INVALID_VALUE,
                     "the %s stream of %s:%d is a default stream and cannot be destroyed",
                     s->kind == DS__STREAM_LEGACY ? "legacy" : "per-thread",
                     ds__type_name(s->device.type), s->device.index);
    } else {
        int n = atomic_load(&s->owners);
        while (n > 0 && !atomic_compare_exchange_weak(&s->owners, &n, n - 1)) {
        }
        if (n <= 0)
            r = ds__fail(DS_ERR_INVALID_HANDLE, "the stream was destroyed already");
        else if (n == 1) {
            ds__modules_stream_end(s);
            if (s->borrowed && !s->base.id)
                s->driver->stream_hide(s->native);
            ds__stream_invalidate(s);
        }
    }
    ds__stream_unpin(s);
    ds__retired_reclaim();
    return r;
}

#endif
