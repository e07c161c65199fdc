/* cuda/aside.h - streams of the driver for parts of an operation.

   Takes a stream of a device for one operation (ds__cuda_aside_take) and keeps it for later ones
   (ds__cuda_aside_put, ds__cuda_end_asides). ds__cuda_wait_stream makes a stream wait for another
   one.

   Invariants: A stream that was taken has the work of one operation only, because a shared one
   would order unrelated streams; it is taken again when that work is done. At most
   DS__CUDA_ASIDE of them are kept for each device.
   Locks: `host_lock`, for the list only. ds__cuda_wait_stream may run under the capture lock.
   Threads: any. */
#ifndef DS__CUDA_ASIDE_H
#define DS__CUDA_ASIDE_H

#include "types.h"
#include "call.h"
#include "stream.h"
#include "stream_wait.h"

/* Makes the stream wait for a native event. capture: number of the capture in which the event was
   recorded last, for the error. */
static ds_result ds__cuda_wait_mark(const ds__cuda_stream *s, cudaEvent_t event, uint64_t capture) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    cudaError_t code = DS__RT_CODE(scope, cudaStreamWaitEvent, (s->handle, event, 0));
    r = ds__cuda_event_check(&scope, code, "cudaStreamWaitEvent", capture);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Returns 1 if a wait of `s` for the other stream does nothing, because both are one native stream.
   A record and a wait on the legacy stream are a barrier for blocking streams. */
static int ds__cuda_is_same_queue(ds__cuda_stream *s, ds__cuda_stream *other) {
    return s->kind != DS__STREAM_LEGACY &&
           (s == other || (s->device == other->device &&
                           ds__cuda_stream_identity(s) == ds__cuda_stream_identity(other)));
}

/* Records an event on the other stream, for one wait. *out_mark is for ds__cuda_mark_put, also
   after a failure, unless it is NULL. */
static ds_result ds__cuda_mark_other(ds__cuda_stream *other, ds__cuda_mark **out_mark,
                                     ds__cuda_event *out) {
    ds__cuda_scope scope;
    *out_mark = NULL;
    ds_result r = ds__cuda_on(&scope, other);
    if (r < 0)
        return r;
    atomic_init(&out->capture, scope.capture);
    r = ds__cuda_mark_stream(&scope, other->handle, out_mark);
    if (r == DS_OK)
        atomic_init(&out->event, (*out_mark)->event);
    out->device = other->device;
    ds__cuda_scope_end(&scope);
    return r;
}

/* Makes s wait for the work of the other stream so far. */
static ds_result ds__cuda_wait_stream(ds__cuda_stream *s, ds__cuda_stream *other) {
    ds__cuda_mark *mark;
    ds__cuda_event e;
    if (ds__cuda_is_same_queue(s, other))
        return DS_OK;
    ds_result r = ds__cuda_mine(s);
    if (r < 0)
        return r;
    r = ds__cuda_mark_other(other, &mark, &e);
    if (r == DS_OK)
        r = ds__cuda_wait_mark(s, mark->event, atomic_load(&e.capture));
    if (mark)
        ds__cuda_mark_put(mark);
    return r;
}

/* Returns 1 if the stream has no pending work. */
static int ds__cuda_is_idle(const ds__cuda_stream *s) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    int code;
    if (ds__cuda_on(&scope, s) < 0)
        return 0;
    int relaxed = ds__cuda_relax(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (s->handle));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return code == 0;
}

/* Keeps a stream for later operations, or ends it if enough are kept: CUDA frees it when its work
   is done. */
static void ds__cuda_aside_put(ds__cuda_stream *s) {
    ds__cuda_aside *kept = &ds__cuda.aside[s->device];
    ds__spinlock_lock(&ds__cuda.host_lock);
    int full = kept->count == DS__CUDA_ASIDE;
    if (!full)
        kept->stream[(kept->first + kept->count++) % DS__CUDA_ASIDE] = s;
    ds__spinlock_unlock(&ds__cuda.host_lock);
    if (full)
        ds__cuda_stream_destroy(s);
}

/* Returns the stream that was kept first, which the caller owns then. NULL: none is kept. */
static ds__cuda_stream *ds__cuda_aside_oldest(int device) {
    ds__cuda_aside *kept = &ds__cuda.aside[device];
    ds__cuda_stream *s = NULL;
    ds__spinlock_lock(&ds__cuda.host_lock);
    if (kept->count) {
        s = kept->stream[kept->first];
        kept->first = (kept->first + 1) % DS__CUDA_ASIDE;
        kept->count--;
    }
    ds__spinlock_unlock(&ds__cuda.host_lock);
    return s;
}

/* Takes a stream of the device for one operation: a kept one without pending work, because another
   one would order unrelated streams, or a new one. */
static ds_result ds__cuda_aside_take(int device, ds__cuda_stream **out) {
    void *native = NULL;
    int priority = 0;
    int share = 0;
    *out = ds__cuda_aside_oldest(device);
    if (*out && ds__cuda_is_idle(*out))
        return DS_OK;
    if (*out)
        ds__cuda_aside_put(*out);
    ds_result r = ds__cuda_stream_create(device, DS__STREAM_NEW, DS_STREAM_NON_BLOCKING, &priority,
                                         &share, &native);
    *out = native;
    return r;
}

/* Ends the kept streams of the device. */
static void ds__cuda_end_asides(int device) {
    for (ds__cuda_stream *s; (s = ds__cuda_aside_oldest(device)) != NULL;)
        ds__cuda_stream_destroy(s);
}

#endif
