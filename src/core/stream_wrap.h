/* core/stream_wrap.h - wrapped native streams: wrap, export, unwrap.

   Wraps a native stream handle (ds_stream_wrap), returns the native handle of a stream
   (ds_stream_export), and gives a native stream back (ds_stream_unwrap).

   Invariants: the native handles 0 and 1 name the legacy stream, 2 names the calling thread's
   own stream. A wrapper of one of them uses its native stream and holds a reference to it
   (s->base). s->borrowed is 1 until the driver has taken a native stream over. Only a stream
   with one owner and a native stream of its own can be unwrapped. The user's release function
   runs once: when the wrapper is freed, or at once if the wrap fails.
   Locks: none of its own; the wrap of a legacy stream takes ds__g.mutex. ds_stream_unwrap reclaims.
   Threads: any. The native handle 2 means another stream on each thread. */
#ifndef DS__CORE_STREAM_WRAP_H
#define DS__CORE_STREAM_WRAP_H

#include "init.h"
#include "thread.h"
#include "device.h"
#include "stream.h"
#include "stream_sync.h"
#include "stream_default.h"

/* Fills a stream object that wraps a native handle. The handles 0 and 1 name the legacy stream, 2
   the per-thread stream of the calling thread. */
static ds_result ds__stream_wrap(const ds_stream_native *native, ds_ownership ownership,
                                 ds__stream *s) {
    uintptr_t n = (uintptr_t)native->handle;
    s->borrowed = 1; /* until the driver has accepted the handle */
    if (n <= 2) {
        ds_stream base = { 0 };
        DS__REQUIRE(ownership == DS_BORROW, "a default stream cannot be owned");
        ds_result r =
            n == 2 ? ds__per_thread(s->device, &base) : ds__stream_legacy_get(s->device, &base);
        if (r < 0)
            return r;
        ds__stream *b = ds__stream_pin(base);
        if (!b)
            return DS_ERR_INVALID_HANDLE;
        s->native = b->native;
        ds__ref(b);
        s->base = base;
        s->flags = b->flags;
        s->of_legacy = n < 2;
        ds__stream_unpin(b);
        return DS_OK;
    }
    ds_result r = s->driver->stream_wrap(s->device.index, native->handle, ownership == DS_OWN,
                                         &s->flags, &s->priority, &s->native);
    if (r < 0)
        return r;
    s->driver->stream_named(s->native, ds__handle_of(&s->slot));
    s->requested = s->priority;
    s->borrowed = ownership != DS_OWN;
    return DS_OK;
}

static ds_result ds__wrap_create(const ds_stream_native *native, ds_ownership ownership,
                                 ds_stream *out, void (*release_fn)(void *), void *user) {
    DS__REQUIRE(native && out, "%s is NULL", native ? "out" : "native");
    DS__REQUIRE(native->version == 0, "ds_stream_native.version is %d; 0 is supported",
                native->version);
    DS__REQUIRE(ownership == DS_BORROW || ownership == DS_OWN,
                "ownership is %d; use DS_BORROW or DS_OWN", (int)ownership);
    ds_device device = native->device;
    DS__RESOLVE(device);
    ds__stream *s = ds__stream_add(device, NULL);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__stream_wrap(native, ownership, s);
    if (r < 0) {
        ds__stream_discard(s);
        return r;
    }
    s->release_fn = release_fn;
    s->user = user;
    out->id = ds__handle_of(&s->slot);
    return DS_OK;
}

DSDEF ds_result(ds_stream_wrap)(const ds_stream_native *native, ds_ownership ownership,
                                void (*release_fn)(void *user), void *user, ds_stream *out) {
    if (out)
        out->id = 0;
    ds_result r = ds__api_enter("ds_stream_wrap");
    if (r == DS_OK)
        r = ds__wrap_create(native, ownership, out, release_fn, user);
    return ds__refuse_payload(r, user, release_fn);
}

static ds_result ds__stream_export(ds__stream *s, ds_stream_native *out) {
    ds__thread *t = ds__thread_entered();
    out->device = s->device;
    /* handle 0 */
    if (s->kind == DS__STREAM_LEGACY || s->of_legacy)
        return DS_OK;
    ds_stream own = t->own[ds__device_ordinal(s->device)];
    if (own.id &&
        ((ds__stream *)(void *)ds__slot_at(&ds__g.streams, (uint32_t)own.id - 1))->native ==
            s->native) {
        out->handle = (void *)(uintptr_t)2;
        return DS_OK;
    }
    ds_result r = s->driver->stream_native(s->native, &out->handle);
    if (r < 0)
        memset(out, 0, sizeof *out);
    return r;
}

DSDEF ds_result(ds_stream_export)(ds_stream stream, ds_stream_native *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_stream_export");
    DS__REQUIRE(out, "out is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__stream_export(s, out);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_unwrap)(ds_stream stream, ds_stream_native *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_stream_unwrap");
    DS__REQUIRE(out, "out is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    int one = 1;
    if (s->kind != DS__STREAM_NEW || s->borrowed)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "devstream does not own the native stream");
    else if (!atomic_compare_exchange_strong(&s->owners, &one, 0))
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "the stream has %d owners; ds_stream_unwrap needs exactly 1", one);
    if (r == DS_OK) {
        r = ds__stream_export(s, out);
        if (r < 0)
            atomic_store(&s->owners, 1);
    }
    if (r == DS_OK) {
        atomic_store(&s->unwrapped, 1);
        s->driver->stream_unwrap(s->native);
        ds__stream_invalidate(s);
    }
    ds__stream_unpin(s);
    ds__retired_reclaim(); /* the release function of a wrapper runs now */
    return r;
}

/* Enters a getter and pins its stream. Returns NULL if the call is refused; *r has the result.
   has_room: the caller gave memory for the answer. Inlined: a getter takes few nanoseconds. */
__attribute__((always_inline)) static inline ds__stream *ds__stream_pin_to_read(const char *fn,
                                                                                ds_stream stream,
                                                                                int has_room,
                                                                                ds_result *r) {
    *r = ds__api_enter(fn);
    if (*r < 0)
        return NULL;
    ds__stream *s = ds__stream_pin(stream);
    if (!s) {
        *r = DS_ERR_INVALID_HANDLE;
        return NULL;
    }
    if (!has_room) {
        *r = ds__stream_error(s, ds__fail(DS_ERR_INVALID_VALUE, "the output pointer is NULL"));
        ds__stream_unpin(s);
        return NULL;
    }
    return s;
}

DSDEF ds_result(ds_stream_get_id)(ds_stream stream, uint64_t *out) {
    ds_result r;
    if (out)
        *out = 0;
    ds__stream *s = ds__stream_pin_to_read("ds_stream_get_id", stream, out != NULL, &r);
    if (!s)
        return r;
    *out = s->id;
    ds__stream_unpin(s);
    return r;
}

#endif
