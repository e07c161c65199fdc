/* cuda/capture_info.h - open captures: look-up, invalidation and errors.

   Finds the capture of a stream (ds__cuda_find_capture) and captures that CUDA has invalidated
   (ds__cuda_find_spoilt). Reports CUDA's codes 900 to 908 (ds__cuda_capture_failed). Before a
   release of memory, ds__cuda_wait_streams waits for the streams outside of captures.

   Invariants: ds__tls.capture_locked counts how often the thread holds the capture lock. CUDA does
   not number an invalid capture, so it is found by the number stored in the stream or by the stream
   where it began. An error names the capture of the stream or event, else the capture that the call
   invalidated, else the one whose rules the call broke.
   Locks: ds__cuda_lock (call.h) takes the capture lock. ds__cuda_capture_of,
   ds__cuda_find_capture and ds__cuda_is_spoilt expect it; ds__cuda_find_spoilt and
   ds__cuda_forbidden take it; ds__cuda_capture_failed takes it unless the thread holds it. Driver
   calls run under it. ds__cuda_wait_streams holds the capture lock and ds__cuda.lock across
   cudaStreamIsCapturing, event creation and event records, never across a wait.
   Threads: any. Per-thread streams of other threads cannot be queried or waited for and are left
   out. */
#ifndef DS__CUDA_CAPTURE_INFO_H
#define DS__CUDA_CAPTURE_INFO_H

#include "types.h"
#include "call.h"
#include "stream_wait.h"
#include "graph_types.h"

typedef struct ds__cuda_look {
    enum cudaStreamCaptureStatus status;
    unsigned long long id;
    cudaGraph_t graph;
    const cudaGraphNode_t *after; /* CUDA's, until the next call on the stream */
    size_t count;
} ds__cuda_look;

static cudaError_t ds__cuda_get_info(cudaStream_t stream, ds__cuda_look *out) {
    memset(out, 0, sizeof *out);
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges;
    return cudaStreamGetCaptureInfo(stream, &out->status, &out->id, &out->graph, &out->after,
                                    &edges, &out->count);
#elif CUDART_VERSION >= 12030
    const cudaGraphEdgeData *edges;
    return cudaStreamGetCaptureInfo_v3(stream, &out->status, &out->id, &out->graph, &out->after,
                                       &edges, &out->count);
#elif CUDART_VERSION >= 12000
    return cudaStreamGetCaptureInfo(stream, &out->status, &out->id, &out->graph, &out->after,
                                    &out->count);
#else
    return cudaStreamGetCaptureInfo_v2(stream, &out->status, &out->id, &out->graph, &out->after,
                                       &out->count);
#endif
}

/* The open capture with CUDA's number; NULL: others began it. The lock is held. */
static ds__capture *ds__cuda_capture_of(unsigned long long id) {
    ds__capture *c = ds__g.captures;
    while (c && (c->driver->type != DS_DEVICE_CUDA || c->native != id))
        c = c->next;
    return c;
}

static int ds__cuda_began_on(const ds__capture *c, const ds__cuda_stream *s) {
    const ds__cuda_origin *o = c->origin;
    return o->handle == s->handle && o->device == s->device &&
           (!o->per_thread || o->thread == s->thread);
}

/* Asks for the capture of the stream and notes it there; inside of a scope of the stream, the
   lock is held. *out NULL: none, or that of others, which *now tells apart. CUDA does not number
   an invalid one. */
static ds_result ds__cuda_find_capture(ds__cuda_scope *scope, ds__cuda_stream *s,
                                       ds__cuda_look *now, ds__capture **out) {
    *out = NULL;
    ds_result r =
        ds__cuda_check(scope, ds__cuda_get_info(s->handle, now), "cudaStreamGetCaptureInfo");
    if (r < 0)
        return r;
    if (now->status == cudaStreamCaptureStatusActive)
        *out = ds__cuda_capture_of(now->id);
    else if (now->status != cudaStreamCaptureStatusNone) {
        for (ds__capture *c = ds__g.captures; c && !*out; c = c->next)
            if (c->driver->type == DS_DEVICE_CUDA &&
                (c->id == atomic_load(&s->capture) || ds__cuda_began_on(c, s)))
                *out = c;
        /* by a call that was not made here */
        if (*out && (*out)->status == DS_CAPTURE_ACTIVE)
            (*out)->status = DS_CAPTURE_INVALIDATED;
    }
    atomic_store(&s->capture, *out ? (*out)->id : 0);
    scope->capture = *out ? (*out)->id : 0;
    return DS_OK;
}

/* Whether CUDA has made it invalid. Nobody can ask for another thread's own stream. */
static int ds__cuda_is_spoilt(const ds__cuda_scope *scope, const ds__capture *c) {
    const ds__cuda_origin *o = c->origin;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    ds__cuda_scope there = { .pushed = 0 };
    if (o->per_thread && o->thread != ds__cuda_this_thread())
        return 0;
    /* its handle means the current device's */
    if (o->per_thread && ds__cuda_enter(&there, o->device) < 0)
        return 0;
    cudaError_t code = cudaStreamIsCapturing(o->handle, &status);
    ds__cuda_ignore(scope, code);
    ds__cuda_leave(&there);
    return code == cudaSuccess && status == cudaStreamCaptureStatusInvalidated;
}

/* Notes which captures this call has spoiled. */
static void ds__cuda_find_spoilt(const ds__cuda_scope *scope, const char *rule) {
    ds__cuda_lock();
    for (ds__capture *c = ds__g.captures; c; c = c->next)
        if (c->driver->type == DS_DEVICE_CUDA && c->status == DS_CAPTURE_ACTIVE &&
            ds__cuda_is_spoilt(scope, c))
            ds__capture_spoil(c, rule);
    ds__cuda_unlock();
}

/* What a code of capture means for the call. */
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
        return "an event recorded in a capture cannot be queried or synchronized";
    default:
        return "only the thread that began the capture may end it, unless its mode is relaxed";
    }
}

/* The sentence of codes 900 to 908. The capture is that of the stream or event, else the one
   that this call has spoiled, else the one whose rules it broke. */
__attribute__((cold, noinline)) static ds_result ds__cuda_capture_failed(
    const ds__cuda_scope *scope, const char *call, int code) {
    ds__capture *named = NULL;
    ds__capture *spoilt = NULL;
    ds__capture *forbids = NULL;
    ds__capture *only = NULL;
    int locked = ds__tls.capture_locked;
    int spoils = 0;
    int count = 0;
    char rule[sizeof named->rule];
    const char *why = ds__cuda_rule(call, code);
    ds_result r = ds__cuda_map(code);
    snprintf(rule, sizeof rule, "%s (%s returned %d)", why, call, code);
    if (!locked)
        ds__cuda_lock();
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        if (c->driver->type != DS_DEVICE_CUDA)
            continue;
        int now = c->status == DS_CAPTURE_ACTIVE && ds__cuda_is_spoilt(scope, c);
        if (now)
            ds__capture_spoil(c, rule);
        if (now && !spoilt)
            spoilt = c;
        if (c->id == scope->capture) {
            named = c;
            spoils = now;
        }
        if (!forbids && ds__capture_forbids(c))
            forbids = c;
        only = count++ ? NULL : c;
    }
    ds__capture *c = named                                                  ? named
                     : spoilt                                               ? spoilt
                     : code == cudaErrorStreamCaptureUnsupported && forbids ? forbids
                                                                            : only;
    if (c && code == cudaErrorCapturedEvent && scope->capture && c != named && c != spoilt)
        c = NULL;
    if (c == spoilt && c)
        spoils = 1;
    /* and over */
    if (code == cudaErrorStreamCaptureUnjoined)
        spoils = 1;
    if (c)
        r = ds__capture_fail(r, c, spoils, rule);
    else if (code == cudaErrorCapturedEvent && scope->capture)
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

/* The core's guard with CUDA's answer: whether a capture forbids the thread what is not safe. */
static int ds__cuda_forbidden(void) {
    int forbids = 0;
    ds__cuda_lock();
    for (const ds__capture *c = ds__g.captures; c; c = c->next)
        forbids |= c->driver->type == DS_DEVICE_CUDA && ds__capture_forbids(c);
    ds__cuda_unlock();
    return forbids;
}

/* Waits for what is on the streams that do not capture, and for what was on destroyed streams;
   other threads' own streams cannot be named. Inside of a scope of the device. */
static ds_result ds__cuda_wait_streams_of(const ds__cuda_scope *scope) {
    size_t count = 0;
    cudaError_t failed = cudaSuccess;
    const char *call = "";
    cudaEvent_t *events = ds__cuda_lock_for_events();
    if (!events)
        return DS_ERR_OUT_OF_MEMORY;
    const ds__cuda_stream legacy = { .handle = cudaStreamLegacy,
                                     .device = scope->device,
                                     .kind = DS__STREAM_LEGACY };
    const ds__cuda_stream *s = &legacy;
    for (; s && failed == cudaSuccess; s = s == &legacy ? ds__cuda.streams : s->next) {
        enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
        if (s->hidden || s->device != scope->device ||
            (s->kind == DS__STREAM_PER_THREAD && s->thread != ds__cuda_this_thread()))
            continue;
        cudaError_t code = cudaStreamIsCapturing(s->handle, &status);
        ds__cuda_ignore(scope, code);
        if (code != cudaSuccess || status != cudaStreamCaptureStatusNone)
            continue;
        failed = ds__cuda_mark(&events[count], s->handle, &call);
        count += events[count] != NULL;
    }
    cudaStream_t ended = atomic_load(&ds__cuda.ended[scope->device]);
    if (ended && failed == cudaSuccess) {
        failed = ds__cuda_mark(&events[count], ended, &call);
        count += events[count] != NULL;
    }
    ds__cuda_unlock_for_events();
    ds_result r = ds__cuda_check(scope, failed, call);
    for (size_t i = 0; i < count; i++) {
        if (r == DS_OK)
            r = DS__RT(*scope, cudaEventSynchronize, (events[i]));
        ds__cuda_ignore(scope, cudaEventDestroy(events[i]));
    }
    ds__host_free(events);
    return r;
}

static ds_result ds__cuda_wait_streams(void) {
    ds_result r = DS_OK;
    for (int i = 0; i < ds__cuda.devices && r == DS_OK; i++) {
        ds__cuda_scope scope;
        if (!atomic_load(&ds__cuda.used[i]))
            continue;
        if ((r = ds__cuda_enter(&scope, i)) < 0)
            return r;
        r = ds__cuda_wait_streams_of(&scope);
        ds__cuda_leave(&scope);
        if (r == DS_ERR_FAILED)
            r = DS_OK;
    }
    return r;
}

#endif
