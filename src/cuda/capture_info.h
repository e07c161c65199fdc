/* cuda/capture_info.h - open captures: look-up, invalidation and errors.

   Finds the capture of a stream (ds__cuda_find_capture) and captures that CUDA has invalidated
   (ds__cuda_is_spoilt). Reports CUDA's codes 900 to 908 (ds__cuda_capture_failed). Before a
   release of memory, ds__cuda_wait_streams waits for the streams outside of captures.

   Invariants: ds__tls.capture_locked counts how often the thread holds the capture lock. CUDA does
   not number an invalid capture, so it is found by the number stored in the stream or by the stream
   where it began. An error names the capture of the stream or event, else the capture that the call
   invalidated, else the one whose rules the call broke.
   Locks: ds__cuda_lock (call.h) takes the capture lock. ds__cuda_capture_of,
   ds__cuda_find_capture and ds__cuda_is_spoilt expect it; ds__cuda_forbidden takes it;
   ds__cuda_capture_failed takes it unless the thread holds it. Driver calls run under it.
   Threads: any. Per-thread streams of other threads cannot be queried or waited for and are left
   out. */
#ifndef DS__CUDA_CAPTURE_INFO_H
#define DS__CUDA_CAPTURE_INFO_H

#include "types.h"
#include "call.h"
#include "stream_wait.h"
#include "graph_types.h"

/* CUDA's description of the capture of a stream. */
typedef struct ds__cuda_look {
    enum cudaStreamCaptureStatus status;
    unsigned long long id;
    cudaGraph_t graph;
    const cudaGraphNode_t *after; /* memory of CUDA, valid until the next call on the stream */
    size_t count;
} ds__cuda_look;

/* Asks CUDA for the capture of a stream. The error is cleared, and not reported. */
static cudaError_t ds__cuda_get_info(const ds__cuda_scope *scope, cudaStream_t stream,
                                     ds__cuda_look *out) {
    memset(out, 0, sizeof *out);
    return ds__cuda_clear(scope, ds__cudart_capture_info(stream, &out->status, &out->id,
                                                         &out->graph, &out->after, &out->count));
}

/* The same, and reports a failure. */
static ds_result ds__cuda_look_at(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                  ds__cuda_look *out) {
    return ds__cuda_check(scope, ds__cuda_get_info(scope, s->handle, out),
                          "cudaStreamGetCaptureInfo");
}

/* Sets the native nodes on which the stream's next operation will depend (set), or adds to them. */
static ds_result ds__cuda_set_after(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                    cudaGraphNode_t *after, size_t count, int set) {
    unsigned flags = set ? cudaStreamSetCaptureDependencies : cudaStreamAddCaptureDependencies;
    return ds__cuda_check(scope, ds__cudart_capture_after(s->handle, after, count, flags),
                          "cudaStreamUpdateCaptureDependencies");
}

/* Returns the open capture with CUDA's number, or NULL if devstream did not begin it. The lock is
   held. */
static ds__capture *ds__cuda_capture_of(unsigned long long id) {
    ds__capture *c = ds__g.captures;
    while (c && (c->driver->type != DS_DEVICE_CUDA || c->native != id))
        c = c->next;
    return c;
}

/* Returns 1 if the capture began on the native stream of the object. */
static int ds__cuda_began_on(const ds__capture *c, const ds__cuda_stream *s) {
    const ds__cuda_origin *o = c->origin;
    return o->handle == s->handle && o->device == s->device &&
           (!o->per_thread || o->thread == s->thread);
}

/* Returns the invalid capture of a stream, which CUDA does not number, or NULL. The lock is
   held. */
static ds__capture *ds__cuda_invalid_capture(ds__cuda_stream *s) {
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        if (c->driver->type != DS_DEVICE_CUDA ||
            (c->id != atomic_load(&s->capture) && !ds__cuda_began_on(c, s)))
            continue;
        /* a call outside devstream has invalidated it */
        if (c->status == DS_CAPTURE_ACTIVE)
            c->status = DS_CAPTURE_INVALIDATED;
        return c;
    }
    return NULL;
}

/* Finds the capture of a stream, and notes its number in the stream and in the scope, which is one
   of the stream. *out is NULL if there is none, or if devstream did not begin it; *now has CUDA's
   description. The lock is held. */
static ds_result ds__cuda_find_capture(ds__cuda_scope *scope, ds__cuda_stream *s,
                                       ds__cuda_look *now, ds__capture **out) {
    *out = NULL;
    ds_result r = ds__cuda_look_at(scope, s, now);
    if (r < 0)
        return r;
    if (now->status == cudaStreamCaptureStatusActive)
        *out = ds__cuda_capture_of(now->id);
    else if (now->status != cudaStreamCaptureStatusNone)
        *out = ds__cuda_invalid_capture(s);
    atomic_store(&s->capture, *out ? (*out)->id : 0);
    scope->capture = *out ? (*out)->id : 0;
    return DS_OK;
}

/* Returns 1 if CUDA has made the capture invalid, or has ended it in a call that failed. A capture
   on the per-thread stream of another thread cannot be queried, and counts as valid. The lock is
   held. */
static int ds__cuda_is_spoilt(const ds__cuda_scope *scope, const ds__capture *c) {
    const ds__cuda_origin *o = c->origin;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    ds__cuda_scope there = { .pushed = 0 };
    if (o->per_thread && o->thread != ds__cuda_this_thread())
        return 0;
    /* the handle of a per-thread stream means that of the current device */
    if (o->per_thread && ds__cuda_scope_begin(&there, o->device) < 0)
        return 0;
    cudaError_t code = DS__RT_CODE(*scope, cudaStreamIsCapturing, (o->handle, &status));
    ds__cuda_scope_end(&there);
    return code == cudaSuccess && status != cudaStreamCaptureStatusActive;
}

/* Returns the rule that a call broke, by its code of 900 to 908. */
static const char *ds__cuda_rule(const char *call, int code) {
    switch (code) {
    case cudaErrorStreamCaptureUnsupported:
        if (strstr(call, "StreamQuery"))
            return "a stream that captures cannot be queried";
        if (strstr(call, "StreamSynchronize"))
            return "a stream that captures cannot be synchronized";
        if (strstr(call, "AddCallback"))
            return "ds_stream_add_callback cannot be captured; use ds_stream_launch_host_func";
        if (strstr(call, "DeviceSynchronize"))
            return "a device cannot be synchronized while the capture is open";
        return "the call is not allowed in this thread while the capture is open";
    case cudaErrorStreamCaptureInvalidated:
        return "the capture is invalid";
    case cudaErrorStreamCaptureMerge:
        return "a wait for another capture would merge the two captures";
    case cudaErrorStreamCaptureUnmatched:
        return "the capture was begun on another stream; end the capture there";
    case cudaErrorStreamCaptureUnjoined:
        return "a stream that was forked into the capture was not joined";
    case cudaErrorStreamCaptureIsolation:
        return "the event was recorded outside of the capture";
    case cudaErrorStreamCaptureImplicit:
        return "the legacy stream cannot be used while a blocking stream of its device captures";
    case cudaErrorCapturedEvent:
    case cudaErrorInvalidValue:
        return "an event recorded in a capture cannot be queried or synchronized";
    default:
        return "only the thread that began the capture may end it, unless its mode is relaxed";
    }
}

/* Open captures that an error of CUDA may be about. */
typedef struct ds__cuda_suspects {
    ds__capture *named;   /* the capture of the stream or event */
    ds__capture *spoilt;  /* the first one that the call has invalidated */
    ds__capture *forbids; /* the first one that forbids unsafe calls in this thread */
    ds__capture *only;    /* the only open one; NULL: none, or several */
    int named_is_spoilt;  /* 1: the call has invalidated `named` */
} ds__cuda_suspects;

/* Finds the captures that an error may be about, and notes those that the call has invalidated. The
   lock is held. */
static ds__cuda_suspects ds__cuda_find_suspects(const ds__cuda_scope *scope, const char *rule) {
    ds__cuda_suspects found = { NULL, NULL, NULL, NULL, 0 };
    int count = 0;
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        if (c->driver->type != DS_DEVICE_CUDA)
            continue;
        int spoilt = c->status == DS_CAPTURE_ACTIVE && ds__cuda_is_spoilt(scope, c);
        if (spoilt)
            ds__capture_spoil(c, rule);
        if (spoilt && !found.spoilt)
            found.spoilt = c;
        if (c->id == scope->capture) {
            found.named = c;
            found.named_is_spoilt = spoilt;
        }
        if (!found.forbids && ds__capture_forbids(c))
            found.forbids = c;
        found.only = count++ ? NULL : c;
    }
    return found;
}

/* Returns the capture that an error names, or NULL if that capture is not open any more, or was
   begun outside devstream. */
static ds__capture *ds__cuda_choose_suspect(const ds__cuda_scope *scope,
                                            const ds__cuda_suspects *found, ds_result r) {
    if (found->named)
        return found->named;
    if (found->spoilt)
        return found->spoilt;
    /* the capture of the event has ended */
    if (r == DS_ERR_CAPTURED_EVENT && scope->capture)
        return NULL;
    if (r == DS_ERR_CAPTURE_UNSUPPORTED && found->forbids)
        return found->forbids;
    return found->only;
}

/* Reports a code of 900 to 908, with the capture that the error is about. Also reports the code of
   an invalid value for an event of a capture that is invalid or has ended
   (ds__cuda_event_check). */
__attribute__((cold, noinline)) static ds_result ds__cuda_capture_failed(
    const ds__cuda_scope *scope, const char *call, int code) {
    int locked = ds__tls.capture_locked;
    char rule[sizeof ds__g.captures->rule];
    ds_result r = code == cudaErrorInvalidValue ? DS_ERR_CAPTURED_EVENT : ds__cuda_map(code);
    snprintf(rule, sizeof rule, "%s (%s returned %d)", ds__cuda_rule(call, code), call, code);
    if (!locked)
        ds__cuda_lock();
    ds__cuda_suspects found = ds__cuda_find_suspects(scope, rule);
    ds__capture *c = ds__cuda_choose_suspect(scope, &found, r);
    int spoils = found.named_is_spoilt || (c && c == found.spoilt);
    /* CUDA's codes for a stream or event of a capture that was invalid before the call */
    if (found.named && !spoils && found.named->status == DS_CAPTURE_INVALIDATED &&
        (code == cudaErrorStreamCaptureUnsupported || code == cudaErrorInvalidValue))
        r = DS_ERR_CAPTURE_INVALIDATED;
    if (c)
        r = ds__capture_fail(r, c, spoils, rule);
    else if (r == DS_ERR_CAPTURED_EVENT && scope->capture)
        r = ds__fail(r,
                     "the event was recorded in capture #%llu, which has ended; record it again "
                     "(%s returned %d)",
                     (unsigned long long)scope->capture, call, code);
    else
        r = ds__fail(r, "%s; the capture was begun outside devstream or has ended", rule);
    if (!locked)
        ds__cuda_unlock();
    return r;
}

/* Returns 1 if an open capture forbids unsafe calls in this thread. */
static int ds__cuda_forbidden(void) {
    int forbids = 0;
    ds__cuda_lock();
    for (const ds__capture *c = ds__g.captures; c; c = c->next)
        forbids |= c->driver->type == DS_DEVICE_CUDA && ds__capture_forbids(c);
    ds__cuda_unlock();
    return forbids;
}

/* Records an event on the legacy stream, unless a capture of a blocking stream forbids that. */
static ds_result ds__cuda_mark_legacy(const ds__cuda_scope *scope, ds__cuda_mark **list) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    cudaError_t code = DS__RT_CODE(*scope, cudaStreamIsCapturing, (cudaStreamLegacy, &status));
    if (code != cudaSuccess || status != cudaStreamCaptureStatusNone)
        return DS_OK;
    return ds__cuda_mark_stream(scope, cudaStreamLegacy, list);
}

/* Waits for the work of the device's streams that do not capture, and of destroyed streams. Inside
   of a scope of the device. */
static ds_result ds__cuda_wait_streams_of(ds__cuda_scope *scope) {
    ds__cuda_mark *marks = NULL;
    cudaStream_t ended = atomic_load(&ds__cuda.ended[scope->device]);
    ds_result r = ds__cuda_mark_legacy(scope, &marks);
    if (r == DS_OK)
        r = ds__cuda_mark_streams(scope, 0, &marks);
    if (r == DS_OK && ended)
        r = ds__cuda_mark_stream(scope, ended, &marks);
    return ds__cuda_await_marks(scope, r, marks);
}

/* Waits for the work of these devices, as far as they are in use, except for captures. A failed
   device has no pending work. */
static ds_result ds__cuda_wait_streams(int first, int end) {
    ds_result r = DS_OK;
    for (int i = first; i < end && r == DS_OK; i++) {
        ds__cuda_scope scope;
        if (!atomic_load(&ds__cuda.used[i]))
            continue;
        r = ds__cuda_scope_begin(&scope, i);
        if (r < 0)
            return r;
        r = ds__cuda_wait_streams_of(&scope);
        ds__cuda_scope_end(&scope);
        if (r == DS_ERR_FAILED)
            r = DS_OK;
    }
    return r;
}

#endif
