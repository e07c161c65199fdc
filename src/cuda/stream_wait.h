/* cuda/stream_wait.h - queries of streams and waits of the host.

   Tells whether the work of a stream is done (ds__cuda_stream_query) and waits for it
   (ds__cuda_stream_synchronize). Records an event for later waits (ds__cuda_mark). Waits with a
   time limit by polling (ds__cuda_poll), also for events.

   Invariants: The query and the wait of the legacy stream include each blocking stream of its
   device. CUDA's query of its handle counts only its own work. Nothing is enqueued on the legacy
   stream, since that would be a barrier for all blocking streams. Per-thread streams of other
   threads are left out.
   Locks: ds__cuda_legacy_query and ds__cuda_mark_busy hold ds__cuda.lock across cuStreamQuery,
   cudaEventCreateWithFlags and cudaEventRecord, ds__cuda_mark_busy inside of the capture lock.
   Waits and error reports come after their release.
   Threads: any. If a capture is open, queries run in relaxed capture mode. */
#ifndef DS__CUDA_STREAM_WAIT_H
#define DS__CUDA_STREAM_WAIT_H

#include "types.h"
#include "call.h"

/* The legacy stream's work comes after that of the blocking streams, but asking CUDA for it
   counts its own work only, and to put something on it would be a barrier for all of them. So
   they are asked one by one, those of other threads excepted. */
static int ds__cuda_with_legacy(const ds__cuda_stream *s, const ds__cuda_stream *legacy) {
    return s->blocking && s->device == legacy->device &&
           (s->kind != DS__STREAM_PER_THREAD || s->thread == ds__cuda_this_thread());
}

static ds_result ds__cuda_legacy_query(const ds__cuda_stream *legacy) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int code;
    ds_result r = ds__cuda_enter(&scope, legacy->device);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_query_begin(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (legacy->handle));
    ds__lock_take(&ds__cuda.lock);
    for (const ds__cuda_stream *s = ds__cuda.streams; s && code == 0; s = s->next)
        if (ds__cuda_with_legacy(s, legacy))
            DS__DR_CODE(scope, code, cuStreamQuery, (s->handle));
    ds__lock_give(&ds__cuda.lock);
    ds__cuda_query_end(&scope, relaxed, mode);
    r = code == 0                    ? DS_OK
        : code == DS__CUDA_NOT_READY ? DS_NOT_READY
                                     : ds__cuda_fail(&scope, "cuStreamQuery", code);
    ds__cuda_leave(&scope);
    return r;
}

/* Makes an event and records it. The sentence of a failure is the caller's to make, once it
   holds no lock of a stream or of their list any more: one about captures takes the capture
   lock, under which others take those. *call: what failed. */
static cudaError_t ds__cuda_mark(cudaEvent_t *event, cudaStream_t stream, const char **call) {
    cudaError_t code =
        *event ? cudaSuccess : cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    *call = "cudaEventCreateWithFlags";
    if (DS__UNLIKELY(code != cudaSuccess)) {
        *event = NULL;
        return code;
    }
    *call = "cudaEventRecord";
    return cudaEventRecord(*event, stream);
}

static void ds__cuda_unlock_for_events(void) {
    ds__lock_give(&ds__cuda.lock);
    ds__cuda_unlock();
}

/* Returns room for an event for each stream of the list and for the legacy stream, and takes the
   capture lock, so that no stream begins to capture before its event is recorded, and
   ds__cuda.lock. NULL: no memory, and the locks are not held. Memory is allocated without locks; if
   the list has grown meanwhile, once more. */
static cudaEvent_t *ds__cuda_lock_for_events(void) {
    cudaEvent_t *events = NULL;
    size_t room = 0;
    for (;;) {
        size_t count = 2; /* the legacy stream and `ended` */
        ds__cuda_lock();
        ds__lock_take(&ds__cuda.lock);
        for (const ds__cuda_stream *s = ds__cuda.streams; s; s = s->next)
            count++;
        if (count <= room)
            return events;
        ds__cuda_unlock_for_events();
        ds__host_free(events);
        room = count;
        if (!(events = ds__host_alloc(room * sizeof(cudaEvent_t)))) {
            ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to wait for %zu streams", room);
            return NULL;
        }
    }
}

/* Puts an event on each blocking stream that has work; inside of a scope with the device
   current. The events are the caller's to destroy, their list (or NULL) to release. */
static ds_result ds__cuda_mark_busy(const ds__cuda_scope *scope, const ds__cuda_stream *legacy,
                                    cudaEvent_t **out_events, size_t *out_count) {
    cudaError_t failed = cudaSuccess;
    const char *call = "";
    cudaEvent_t *events = *out_events = ds__cuda_lock_for_events();
    if (!events)
        return DS_ERR_OUT_OF_MEMORY;
    for (const ds__cuda_stream *s = ds__cuda.streams; s && failed == cudaSuccess; s = s->next) {
        int code;
        if (!ds__cuda_with_legacy(s, legacy))
            continue;
        DS__DR_CODE(*scope, code, cuStreamQuery, (s->handle));
        if (code != DS__CUDA_NOT_READY)
            continue;
        failed = ds__cuda_mark(&events[*out_count], s->handle, &call);
        *out_count += events[*out_count] != NULL;
    }
    ds__cuda_unlock_for_events();
    return ds__cuda_check(scope, failed, call);
}

static ds_result ds__cuda_legacy_synchronize(const ds__cuda_stream *legacy) {
    ds__cuda_scope scope;
    cudaEvent_t *events = NULL;
    size_t count = 0;
    ds_result r = ds__cuda_enter(&scope, legacy->device);
    if (r < 0)
        return r;
    /* first: while a blocking stream captures this one is refused, and to ask that one would
       spoil the capture as well */
    int code;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int relaxed = ds__cuda_query_begin(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (legacy->handle));
    r = code == 0 || code == DS__CUDA_NOT_READY
            ? ds__cuda_mark_busy(&scope, legacy, &events, &count)
            : ds__cuda_fail(&scope, "cuStreamQuery", code);
    ds__cuda_query_end(&scope, relaxed, mode);
    if (r == DS_OK)
        r = DS__RT(scope, cudaStreamSynchronize, (legacy->handle));
    for (size_t i = 0; i < count; i++) {
        if (r == DS_OK)
            r = DS__RT(scope, cudaEventSynchronize, (events[i]));
        ds__cuda_ignore(&scope, cudaEventDestroy(events[i]));
    }
    ds__cuda_leave(&scope);
    ds__host_free(events);
    return r;
}

static ds_result ds__cuda_stream_query(void *stream) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int code;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_legacy_query(s);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_query_begin(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (s->handle));
    ds__cuda_query_end(&scope, relaxed, mode);
    r = DS__LIKELY(code == 0)        ? DS_OK
        : code == DS__CUDA_NOT_READY ? DS_NOT_READY
                                     : ds__cuda_fail(&scope, "cuStreamQuery", code);
    ds__cuda_leave(&scope);
    return r;
}

/* CUDA has no wait with a limit: asks again and again, in short order at first. */
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
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_legacy_synchronize(s);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaStreamSynchronize, (s->handle));
    ds__cuda_leave(&scope);
    return r;
}

#endif
