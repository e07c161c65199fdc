/* core/current_stream.h - current stream of a thread: use, push, pop, scopes.

   Sets and returns the current stream of the calling thread for each device (ds__current_get,
   ds__current_set). Pushes and pops streams together with the current device (ds__stream_push,
   ds__stream_pop), with optional waits between the old and the new stream.

   Invariants: a slot of t->current is zero or holds a reference to its stream; zero stands for
   the default stream. Each frame holds references of its own to the streams in it. A push that
   fails leaves the current device and the stack as they were.
   Locks: none of its own; filling an empty slot may take ds__g.mutex (ds__stream_legacy_get). Waits
   are enqueued without a lock.
   Threads: any. Slots and frames belong to the calling thread. */
#ifndef DS__CORE_CURRENT_STREAM_H
#define DS__CORE_CURRENT_STREAM_H

#include "init.h"
#include "thread.h"
#include "device.h"
#include "stream.h"
#include "stream_default.h"

/* Returns the thread's current stream of a device, at first the default stream. The slot keeps its
   reference. */
static ds_result ds__current_get(ds__thread *t, ds_device device, ds_stream *out) {
    ds_stream *slot = &t->current[ds__device_ordinal(device)];
    if (!slot->id) {
        ds_stream s = { 0 };
        ds_result r = ds__stream_default_get(device, &s);
        if (r < 0)
            return r;
        /* a default stream: it outlives the slot */
        ds__ref(ds__slot_at(&ds__g.streams, (uint32_t)s.id - 1));
        *slot = s;
    }
    *out = *slot;
    return DS_OK;
}

static ds_result ds__stream_current(ds_device device, ds_stream *out) {
    ds__thread *t = ds__thread_state();
    return t ? ds__current_get(t, device, out) : DS_ERR_OUT_OF_MEMORY;
}

DSDEF ds_result(ds_stream_get_current)(ds_device device, ds_stream *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_get_current");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__stream_current(device, out);
}

/* With DS_PUSH_STRICT: refuses a stream that is not of the current device. */
static ds_result ds__current_check_strict(ds__thread *t, ds__stream *s, unsigned flags) {
    if (!(flags & DS_PUSH_STRICT) ||
        (s->device.type == t->caller.device.type && s->device.index == t->caller.device.index))
        return DS_OK;
    return ds__fail(DS_ERR_DEVICE_MISMATCH, "the stream is on %s:%d, the current device is %s:%d",
                    ds__type_name(s->device.type), s->device.index,
                    ds__type_name(t->caller.device.type), t->caller.device.index);
}

/* Makes a pinned stream and its device current. The slot takes a reference; *out_previous gets the
   slot's former reference, which the caller drops. */
static ds_result ds__current_set(ds__thread *t, ds__stream *s, unsigned flags,
                                 ds_stream *out_previous) {
    ds_result r = ds__current_check_strict(t, s, flags);
    if (r == DS_OK)
        r = ds__current_get(t, s->device, out_previous);
    if (r < 0)
        return r;
    ds__ref(s);
    t->current[ds__device_ordinal(s->device)].id = ds__handle_of(&s->slot);
    t->caller.device = s->device;
    return DS_OK;
}

DSDEF ds_result(ds_stream_set_current)(ds_stream stream, unsigned flags, ds_stream *out_previous) {
    if (out_previous)
        out_previous->id = 0;
    DS__ENTER("ds_stream_set_current");
    DS__REQUIRE((flags & ~(unsigned)DS_PUSH_STRICT) == 0,
                "unknown flags %#x; use DS_PUSH_STRICT or 0", flags);
    ds__thread *t = ds__thread_entered();
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_stream previous = { 0 };
    ds_result r = ds__current_set(t, s, flags, &previous);
    ds__stream_unpin(s);
    if (r < 0)
        return r;
    if (out_previous)
        *out_previous = previous;
    ds__stream_unref(previous);
    return DS_OK;
}

/* Adds a reference to a stream in a slot of the thread; a zero handle is allowed. */
static ds_stream ds__stream_ref(ds_stream handle) {
    if (handle.id)
        ds__ref(ds__slot_at(&ds__g.streams, (uint32_t)handle.id - 1));
    return handle;
}

/* Makes the stream current for a frame, which keeps the streams that were current before. On
   failure the frame holds no references. */
static ds_result ds__frame_use_stream(ds__thread *t, ds__frame *f, ds_stream stream,
                                      ds_stream entry) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_stream before;
    ds_result r = ds__current_check_strict(t, s, f->flags);
    if (r == DS_OK && (f->flags & DS_PUSH_WAIT_PREV)) {
        r = ds__current_get(t, s->device, &before);
        if (r == DS_OK)
            r = ds__wait_stream(stream, before);
    }
    f->entry = ds__stream_ref(entry); /* before the slot gives its reference away */
    if (r == DS_OK)
        r = ds__current_set(t, s, f->flags, &f->previous);
    if (r == DS_OK) {
        ds__ref(s); /* the frame's */
        f->pushed = stream;
        f->stream_device = s->device;
    }
    ds__stream_unpin(s);
    if (r < 0)
        ds__stream_unref(f->entry);
    return r;
}

/* Pushes a stream; of a zero handle, only the current device and stream are kept. */
static ds_result ds__stream_push(ds_stream stream, unsigned flags) {
    DS__REQUIRE((flags & ~(unsigned)(DS_PUSH_STRICT | DS_PUSH_WAIT_PREV | DS_POP_WAIT_BACK)) == 0,
                "unknown flags %#x; use DS_PUSH_* and DS_POP_WAIT_BACK", flags);
    ds__thread *t = ds__thread_entered();
    ds__frame *f = ds__frame_add(t);
    if (!f)
        return DS_ERR_OUT_OF_MEMORY;
    f->kind = stream.id ? DS__FRAME_STREAM : DS__FRAME_NOTHING;
    f->flags = flags;
    f->device = t->caller.device;
    ds_stream entry = t->current[ds__device_ordinal(t->caller.device)];
    if (stream.id) {
        ds_result r = ds__frame_use_stream(t, f, stream, entry);
        if (r < 0)
            return r;
    } else {
        f->entry = ds__stream_ref(entry);
    }
    t->frames++;
    return DS_OK;
}

/* Puts a stream back into a slot, which takes the caller's reference. */
static void ds__current_restore(ds__thread *t, ds_device device, ds_stream stream) {
    ds_stream *slot = &t->current[ds__device_ordinal(device)];
    ds__stream_unref(*slot);
    *slot = stream;
}

/* Restores the device and the streams of the last push. With DS_POP_WAIT_BACK the restored stream
   waits for the pushed one. The frame is gone also on failure. */
static ds_result ds__stream_pop(void) {
    ds__thread *t = ds__thread_entered();
    if (t->frames == 0 || t->frame[t->frames - 1].kind == DS__FRAME_DEVICE)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        t->frames ? "the latest push was ds_device_push; call ds_device_pop first"
                                  : "no push is open on this thread");
    ds__frame f = t->frame[--t->frames];
    ds_result r = DS_OK;
    t->caller.device = f.device;
    if (f.kind == DS__FRAME_STREAM)
        ds__current_restore(t, f.stream_device, f.previous);
    ds__current_restore(t, f.device, f.entry);
    if (f.kind == DS__FRAME_STREAM && (f.flags & DS_POP_WAIT_BACK)) {
        ds_stream back = { 0 };
        r = ds__current_get(t, f.stream_device,
                            &back); /* the slot may have been empty at the push */
        if (r == DS_OK)
            r = ds__wait_stream(back, f.pushed);
    }
    ds__stream_unref(f.pushed);
    return r;
}

DSDEF ds_result(ds_stream_push)(ds_stream stream, unsigned flags) {
    DS__ENTER("ds_stream_push");
    return ds__stream_push(stream, flags);
}

DSDEF ds_result(ds_stream_pop)(void) {
    DS__ENTER("ds_stream_pop");
    return ds__stream_pop();
}

DSDEF ds_scope(ds_stream_scope_enter)(ds_stream stream, unsigned flags) {
    ds_scope scope = { 0, 0 };
    if (ds__api_enter("ds_stream_scope_enter") == DS_OK && ds__stream_push(stream, flags) == DS_OK)
        scope.pushed = scope.once = 1;
    return scope;
}

DSDEF void(ds_stream_scope_leave)(ds_scope *scope) {
    if (scope->pushed && ds__api_enter("ds_stream_scope_leave") == DS_OK)
        DS_IGNORE(ds__stream_pop());
    scope->pushed = 0;
}

#endif
