/* cuda/stream_wait.h - queries of streams and waits of the host.

   Tells whether the work of a stream is done (ds__cuda_stream_query) and waits for it
   (ds__cuda_stream_synchronize). Keeps events for waits between streams (ds__cuda_mark_take). Waits
   with a time limit by polling (ds__cuda_poll), also for events.

   Invariants: The query and the wait of the legacy stream include each blocking stream of its
   device. CUDA's query of its handle counts only its own work. Nothing is enqueued on the legacy
   stream, since that would be a barrier for all blocking streams. Per-thread streams of other
   threads are left out.
   Locks: ds__cuda_legacy_query takes ds__cuda.lock, but not during its queries: a stream object
   that another thread queries does not end. ds__cuda_mark_busy holds ds__cuda.lock and the capture
   lock across cuStreamQuery, cudaEventCreateWithFlags and cudaEventRecord. Waits and error reports
   come after their release.
   Threads: any. Queries and waits run in relaxed capture mode. */
#ifndef DS__CUDA_STREAM_WAIT_H
#define DS__CUDA_STREAM_WAIT_H

#include "types.h"
#include "call.h"

/* Returns 1 if a query or wait of the legacy stream covers the stream. Work of the legacy stream
   comes after that of the blocking streams, but a query of CUDA counts its own work only, and an
   operation on it would be a barrier. The blocking streams are therefore queried one by one, except
   for per-thread streams of other threads. */
static int ds__cuda_with_legacy(const ds__cuda_stream *s, const ds__cuda_stream *legacy) {
    return s->blocking && s->device == legacy->device &&
           (s->kind != DS__STREAM_PER_THREAD || s->thread == ds__cuda_this_thread());
}

static ds_result ds__cuda_legacy_query(const ds__cuda_stream *legacy) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    int code;
    ds_result r = ds__cuda_scope_begin(&scope, legacy->device);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_relax(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (legacy->handle));
    ds__mutex_lock(&ds__cuda.lock);
    for (ds__cuda_stream *s = ds__cuda.streams; s && code == 0; s = s->next) {
        if (!ds__cuda_with_legacy(s, legacy))
            continue;
        s->queries++; /* it stays in the list */
        ds__mutex_unlock(&ds__cuda.lock);
        DS__DR_CODE(scope, code, cuStreamQuery, (s->handle));
        ds__mutex_lock(&ds__cuda.lock);
        if (--s->queries == 0)
            ds__condition_broadcast(&ds__cuda.queried);
    }
    ds__mutex_unlock(&ds__cuda.lock);
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

/* Creates an event for waits between streams. The code is not reported. */
static cudaError_t ds__cuda_make_mark(const ds__cuda_scope *scope, cudaEvent_t *out) {
    cudaError_t code = DS__RT_CODE(*scope, cudaEventCreateWithFlags, (out, cudaEventDisableTiming));
    if (DS__UNLIKELY(code != cudaSuccess))
        *out = NULL;
    return code;
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
    cudaError_t code = ds__cuda_make_mark(scope, &m->event);
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

/* Records a new event. A failure is not reported here: the report of an error about a capture takes
   the capture lock, and the caller holds a lock that comes after it. The caller reports *call and
   the code after it has released its locks. */
static cudaError_t ds__cuda_record_new(const ds__cuda_scope *scope, cudaEvent_t *event,
                                       cudaStream_t stream, const char **call) {
    *call = "cudaEventCreateWithFlags";
    cudaError_t code = ds__cuda_make_mark(scope, event);
    if (DS__UNLIKELY(code != cudaSuccess))
        return code;
    *call = "cudaEventRecord";
    return DS__RT_CODE(*scope, cudaEventRecord, (*event, stream));
}

static void ds__cuda_unlock_for_events(void) {
    ds__mutex_unlock(&ds__cuda.lock);
    ds__cuda_unlock();
}

/* Takes the capture lock and ds__cuda.lock, so that no stream begins to capture before its event is
   recorded. Returns room for an event for each stream of the list, for the legacy stream and for
   `ended`. NULL: no memory, and the locks are not held. Memory is allocated without locks, and once
   more if the list has grown meanwhile. */
static cudaEvent_t *ds__cuda_lock_for_events(void) {
    cudaEvent_t *events = NULL;
    size_t room = 0;
    for (;;) {
        size_t count = 2; /* the legacy stream and `ended` */
        ds__cuda_lock();
        ds__mutex_lock(&ds__cuda.lock);
        for (const ds__cuda_stream *s = ds__cuda.streams; s; s = s->next)
            count++;
        if (count <= room)
            return events;
        ds__cuda_unlock_for_events();
        ds__host_free(events);
        room = count;
        events = ds__host_alloc(room * sizeof(cudaEvent_t));
        if (!events) {
            ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to wait for %zu streams", room);
            return NULL;
        }
    }
}

/* Waits for the events unless `r` is an error, destroys them in any case, and frees the list.
   Returns `r`, or the error of a wait. */
static ds_result ds__cuda_await_marks(ds__cuda_scope *scope, ds_result r, cudaEvent_t *events,
                                      size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (r == DS_OK)
            r = ds__cuda_await_event(scope, events[i], 0);
        (void)DS__RT_CODE(*scope, cudaEventDestroy, (events[i]));
    }
    ds__host_free(events);
    return r;
}

/* Records an event on each blocking stream that has work. Inside of a scope of the device. The
   caller passes the events to ds__cuda_await_marks, also after a failure. */
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
        failed = ds__cuda_record_new(scope, &events[*out_count], s->handle, &call);
        *out_count += events[*out_count] != NULL;
    }
    ds__cuda_unlock_for_events();
    return ds__cuda_check(scope, failed, call);
}

static ds_result ds__cuda_legacy_synchronize(const ds__cuda_stream *legacy) {
    ds__cuda_scope scope;
    cudaEvent_t *events = NULL;
    size_t count = 0;
    ds_result r = ds__cuda_scope_begin(&scope, legacy->device);
    if (r < 0)
        return r;
    /* first the legacy stream: beside a capture of a blocking stream its query is refused, while a
       query of that stream would also invalidate the capture */
    int code;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (legacy->handle));
    r = code == 0 || code == DS__CUDA_NOT_READY
            ? ds__cuda_mark_busy(&scope, legacy, &events, &count)
            : ds__cuda_fail(&scope, "cuStreamQuery", code);
    ds__cuda_unrelax(&scope, relaxed, mode);
    if (r == DS_OK)
        r = ds__cuda_synchronize_relaxed(&scope, legacy);
    r = ds__cuda_await_marks(&scope, r, events, count);
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
