/* cuda/stream_wait.h - queries of streams and waits of the host.

   Tells whether the work of a stream is done (ds__cuda_stream_query) and waits for it
   (ds__cuda_stream_synchronize). Keeps events for waits between streams (ds__cuda_mark_take). Waits
   with a time limit by polling (ds__cuda_poll), also for events.

   Invariants: The query and the wait of the legacy stream include each blocking stream of its
   device. CUDA's query of its handle counts only its own work. Nothing is enqueued on the legacy
   stream, since that would be a barrier for all blocking streams. Per-thread streams of other
   threads are left out.
   Locks: walks over the streams (ds__cuda_walk_next) take ds__cuda.lock, but hold no lock during
   calls of the driver: a stream object that another thread uses does not end. `joining` of a stream
   is held from the look whether it captures to the record of an event on it.
   Threads: any. Queries and waits run in relaxed capture mode. */
#ifndef DS__CUDA_STREAM_WAIT_H
#define DS__CUDA_STREAM_WAIT_H

#include "../base/drive.h"
#include "types.h"
#include "call.h"

/* Returns the next stream of a device that this thread may query or mark, and keeps its handle
   alive until the call for the one after it. s: the one before, or NULL for the first one.
   blocking: only streams that are ordered with the legacy stream. Per-thread streams of other
   threads are left out. */
static ds__cuda_stream *ds__cuda_walk_next(ds__cuda_stream *s, int device, int blocking) {
    uint64_t thread = ds__cuda_this_thread();
    ds__mutex_lock(&ds__cuda.lock);
    ds__cuda_stream *next = s ? s->next : ds__cuda.streams;
    while (next && (next->device != device || next->hidden || (blocking && !next->blocking) ||
                    (next->kind == DS__STREAM_PER_THREAD && next->thread != thread)))
        next = next->next;
    if (next)
        next->users++;
    if (s && --s->users == 0)
        ds__condition_broadcast(&ds__cuda.unused);
    ds__mutex_unlock(&ds__cuda.lock);
    return next;
}

/* Ends a walk before its last stream. */
static void ds__cuda_walk_end(ds__cuda_stream *s) {
    ds__mutex_lock(&ds__cuda.lock);
    if (s && --s->users == 0)
        ds__condition_broadcast(&ds__cuda.unused);
    ds__mutex_unlock(&ds__cuda.lock);
}

/* Returns CUDA's code of a query of the legacy stream and of the blocking streams of its device.
   Work of the legacy stream comes after that of the blocking streams, but a query of CUDA counts
   its own work only, and an operation on it would be a barrier. The blocking streams are therefore
   queried one by one. */
static int ds__cuda_legacy_code(const ds__cuda_scope *scope, const ds__cuda_stream *legacy) {
    int code;
    DS__DR_CODE(*scope, code, cuStreamQuery, (legacy->handle));
    if (code != 0)
        return code;
    ds__cuda_stream *s = ds__cuda_walk_next(NULL, legacy->device, 1);
    while (s && code == 0) {
        DS__DR_CODE(*scope, code, cuStreamQuery, (s->handle));
        if (code == 0)
            s = ds__cuda_walk_next(s, legacy->device, 1);
    }
    ds__cuda_walk_end(s);
    return code;
}

static ds_result ds__cuda_legacy_query(const ds__cuda_stream *legacy) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    ds_result r = ds__cuda_scope_begin(&scope, legacy->device);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_relax(&scope, &mode);
    int code = ds__cuda_legacy_code(&scope, legacy);
    ds__cuda_unrelax(&scope, relaxed, mode);
    r = ds__cuda_query_result(&scope, code, "cuStreamQuery");
    ds__cuda_scope_end(&scope);
    return r;
}

/* Waits for a stream. In relaxed mode, since a capture in global mode forbids it also for streams
   that do not capture (docs/gpu, R10 and P11). */
static ds_result ds__cuda_synchronize_relaxed(const ds__cuda_scope *scope,
                                              const ds__cuda_stream *s) {
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = DS__RT_CODE(*scope, cudaStreamSynchronize, (s->handle));
    ds__cuda_unrelax(scope, relaxed, mode);
    return ds__cuda_check(scope, code, "cudaStreamSynchronize");
}

/* The same for an event. capture: number of the capture in which it was recorded last, or 0. */
static ds_result ds__cuda_await_event(ds__cuda_scope *scope, cudaEvent_t event, uint64_t capture) {
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = DS__RT_CODE(*scope, cudaEventSynchronize, (event));
    ds__cuda_unrelax(scope, relaxed, mode);
    return ds__cuda_event_check(scope, code, "cudaEventSynchronize", capture);
}

/* Gives the caller an event of the scope's device for one record and a wait. The code is not
   reported; it is that of cudaEventCreateWithFlags. */
static cudaError_t ds__cuda_mark_take(const ds__cuda_scope *scope, ds__cuda_mark **out) {
    ds__spinlock_lock(&ds__cuda.host_lock);
    ds__cuda_mark *m = *out = ds__cuda.marks[scope->device];
    if (m)
        ds__cuda.marks[scope->device] = m->next;
    ds__spinlock_unlock(&ds__cuda.host_lock);
    if (DS__LIKELY(m))
        return cudaSuccess;
    m = ds__host_alloc(sizeof *m);
    if (!m)
        return cudaErrorMemoryAllocation;
    m->device = scope->device;
    cudaError_t code =
        DS__RT_CODE(*scope, cudaEventCreateWithFlags, (&m->event, cudaEventDisableTiming));
    if (code == cudaSuccess)
        *out = m;
    else
        ds__host_free(m);
    return code;
}

/* Keeps an event for another wait. A wait takes the record that precedes it, so the event may be
   recorded again at once. */
static void ds__cuda_mark_put(ds__cuda_mark *m) {
    ds__spinlock_lock(&ds__cuda.host_lock);
    m->next = ds__cuda.marks[m->device];
    ds__cuda.marks[m->device] = m;
    ds__spinlock_unlock(&ds__cuda.host_lock);
}

/* Destroys the kept events of the scope's device. */
static void ds__cuda_end_marks(const ds__cuda_scope *scope, int device) {
    ds__cuda_mark *m = ds__cuda.marks[device];
    ds__cuda.marks[device] = NULL;
    while (m) {
        ds__cuda_mark *next = m->next;
        (void)DS__RT_CODE(*scope, cudaEventDestroy, (m->event));
        ds__host_free(m);
        m = next;
    }
}

/* Records an event on the stream and adds it to the list. */
static ds_result ds__cuda_mark_stream(const ds__cuda_scope *scope, cudaStream_t stream,
                                      ds__cuda_mark **list) {
    ds__cuda_mark *mark;
    cudaError_t code = ds__cuda_mark_take(scope, &mark);
    if (DS__UNLIKELY(code != cudaSuccess))
        return ds__cuda_check(scope, code, "cudaEventCreateWithFlags");
    mark->next = *list;
    *list = mark;
    return DS__RT(*scope, cudaEventRecord, (mark->event, stream));
}

/* Records an event on the stream if it has work and does not capture. */
static ds_result ds__cuda_mark_work(const ds__cuda_scope *scope, ds__cuda_stream *s,
                                    ds__cuda_mark **list) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    enum cudaStreamCaptureMode mode;
    int busy = 0;
    ds_result r = DS_OK;
    ds__mutex_lock(&s->joining);
    cudaError_t code = DS__RT_CODE(*scope, cudaStreamIsCapturing, (s->handle, &status));
    if (code == cudaSuccess && status == cudaStreamCaptureStatusNone) {
        int relaxed = ds__cuda_relax(scope, &mode);
        DS__DR_CODE(*scope, busy, cuStreamQuery, (s->handle));
        ds__cuda_unrelax(scope, relaxed, mode);
    }
    if (busy == DS__CUDA_NOT_READY)
        r = ds__cuda_mark_stream(scope, s->handle, list);
    ds__mutex_unlock(&s->joining);
    return r;
}

/* The same for all streams of a device that this thread may mark, or only the blocking ones. Inside
   of a scope of the device. The caller passes the list to ds__cuda_await_marks, also after a
   failure. */
static ds_result ds__cuda_mark_streams(const ds__cuda_scope *scope, int blocking,
                                       ds__cuda_mark **list) {
    ds_result r = DS_OK;
    ds__cuda_stream *s = ds__cuda_walk_next(NULL, scope->device, blocking);
    while (s && r == DS_OK) {
        r = ds__cuda_mark_work(scope, s, list);
        if (r == DS_OK)
            s = ds__cuda_walk_next(s, scope->device, blocking);
    }
    ds__cuda_walk_end(s);
    return r;
}

/* Waits for the events, unless `r` is an error, and keeps them for other waits. Returns `r`, or the
   error of a wait. */
static ds_result ds__cuda_await_marks(ds__cuda_scope *scope, ds_result r, ds__cuda_mark *list) {
    while (list) {
        ds__cuda_mark *next = list->next;
        if (r == DS_OK)
            r = ds__cuda_await_event(scope, list->event, 0);
        ds__cuda_mark_put(list);
        list = next;
    }
    return r;
}

static ds_result ds__cuda_legacy_synchronize(const ds__cuda_stream *legacy) {
    ds__cuda_scope scope;
    ds__cuda_mark *marks = NULL;
    ds_result r = ds__cuda_scope_begin(&scope, legacy->device);
    if (r < 0)
        return r;
    r = ds__cuda_mark_streams(&scope, 1, &marks);
    if (r == DS_OK)
        r = ds__cuda_synchronize_relaxed(&scope, legacy);
    r = ds__cuda_await_marks(&scope, r, marks);
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_stream_query(void *stream) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    int code;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_legacy_query(s);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_relax(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (s->handle));
    ds__cuda_unrelax(&scope, relaxed, mode);
    r = ds__cuda_query_result(&scope, code, "cuStreamQuery");
    ds__cuda_scope_end(&scope);
    return r;
}

/* Queries until the work is done or the time is over, because CUDA has no wait with a limit. The
   intervals grow from a pause to 0.1 ms. */
static ds_result ds__cuda_poll(ds_result (*query)(void *object), void *object,
                               uint64_t timeout_ns) {
    uint64_t begin = ds__now_ns();
    uint64_t passed = 0;
    uint64_t nap = 5000;
    for (;;) {
        ds_result r = query(object);
        if (r != DS_NOT_READY || passed >= timeout_ns)
            return r;
        if (passed < 20000) {
            ds__processor_pause();
        } else {
            uint64_t left = timeout_ns - passed;
            uint64_t ns = nap < left ? nap : left;
            ds__os_sleep(ns);
            if (nap < 100000)
                nap *= 2;
        }
        passed = ds__now_ns() - begin;
    }
}

static ds_result ds__cuda_stream_synchronize(void *stream, uint64_t timeout_ns) {
    const ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    if (timeout_ns != DS__FOREVER)
        return ds__cuda_poll(ds__cuda_stream_query, stream, timeout_ns);
    ds__drive_until(ds__cuda_stream_query, stream, stream);
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_legacy_synchronize(s);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_synchronize_relaxed(&scope, s);
    ds__cuda_scope_end(&scope);
    return r;
}

#endif
