/* cuda/event.h - events.

   Creates, destroys, queries, waits for and measures the driver's events (ds__cuda_event), and
   exchanges them with other processes (export, import). The core creates an event for its first
   record. If that record failed and the next one is on another device, ds__cuda_event_create makes
   a new event and chains the former one (`older`).

   Invariants: The native event and the device of an object never change. An older event lives until
   ds__cuda_event_destroy, because a reader may still hold it. `capture` is the number of the
   capture in which the event was last recorded, or 0.
   Locks: none.
   Threads: any; all entries except destroy may run concurrently on one event. Queries, waits,
   elapsed times and exchanges run in relaxed capture mode. A wait with a time limit polls
   (ds__cuda_poll). */
#ifndef DS__CUDA_EVENT_H
#define DS__CUDA_EVENT_H

#include "../base/drive.h"
#include "types.h"
#include "call.h"
#include "stream_wait.h"

static ds_result ds__cuda_make_event(const ds__cuda_scope *scope, unsigned flags,
                                     cudaEvent_t *out) {
    return DS__RT(
        *scope, cudaEventCreateWithFlags,
        (out, (flags & DS_EVENT_TIMING ? 0u : (unsigned)cudaEventDisableTiming) |
                  (flags & DS_EVENT_BLOCKING_WAIT ? (unsigned)cudaEventBlockingSync : 0u) |
                  (flags & DS_EVENT_INTERPROCESS ? (unsigned)cudaEventInterprocess : 0u)));
}

/* Creates an event on the device. If *out holds an event of another device, whose first record
   failed, the new one replaces it and keeps it as `older`. */
static ds_result ds__cuda_event_create(int device, unsigned flags, void **out) {
    ds__cuda_event *before = *out;
    ds__cuda_scope scope;
    cudaEvent_t event = NULL;
    if (before && before->device == device)
        return DS_OK;
    ds__cuda_event *e = ds__host_alloc(sizeof *e);
    if (!e)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r == DS_OK) {
        r = ds__cuda_make_event(&scope, flags, &event);
        ds__cuda_scope_end(&scope);
    }
    if (r < 0) {
        ds__host_free(e);
        return r;
    }
    e->event = event;
    e->device = device;
    e->older = before;
    *out = e;
    return DS_OK;
}

static void ds__cuda_event_destroy(void *event) {
    ds__cuda_scope scope;
    for (ds__cuda_event *e = event; e;) {
        ds__cuda_event *older = e->older;
        ds__cuda_enter_or_not(&scope, e->device);
        (void)DS__RT_CODE(scope, cudaEventDestroy, (e->event));
        ds__cuda_scope_end(&scope);
        ds__host_free(e);
        e = older;
    }
}

static ds_result ds__cuda_event_query(void *event) {
    const ds__cuda_event *e = event;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    int code;
    ds_result r = ds__cuda_scope_begin(&scope, e->device);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_relax(&scope, &mode);
    DS__DR_CODE(scope, code, cuEventQuery, (e->event));
    ds__cuda_unrelax(&scope, relaxed, mode);
    r = code == DS__CUDA_NOT_READY
            ? DS_NOT_READY
            : ds__cuda_event_check(&scope, (cudaError_t)code, "cuEventQuery",
                                   atomic_load_explicit(&e->capture, memory_order_relaxed));
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_event_synchronize(void *event, uint64_t timeout_ns) {
    const ds__cuda_event *e = event;
    ds__cuda_scope scope;
    if (timeout_ns != DS__FOREVER)
        return ds__cuda_poll(ds__cuda_event_query, event, timeout_ns);
    ds__drive_until(ds__cuda_event_query, event, event);
    ds_result r = ds__cuda_scope_begin(&scope, e->device);
    if (r < 0)
        return r;
    r = ds__cuda_await_event(&scope, e->event,
                             atomic_load_explicit(&e->capture, memory_order_relaxed));
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_event_elapsed(void *start, void *end, double *out_ms) {
    const ds__cuda_event *a = start;
    const ds__cuda_event *b = end;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    float ms = 0;
    ds_result r = ds__cuda_scope_begin(&scope, a->device);
    if (r < 0)
        return r;
    uint64_t capture = atomic_load_explicit(&a->capture, memory_order_relaxed);
    if (!capture)
        capture = atomic_load_explicit(&b->capture, memory_order_relaxed);
    int relaxed = ds__cuda_relax(&scope, &mode);
    cudaError_t code = DS__RT_CODE(scope, cudaEventElapsedTime, (&ms, a->event, b->event));
    ds__cuda_unrelax(&scope, relaxed, mode);
    /* "not ready": an event was recorded again in this moment */
    r = code == cudaErrorNotReady
            ? DS_NOT_READY
            : ds__cuda_event_check(&scope, code, "cudaEventElapsedTime", capture);
    ds__cuda_scope_end(&scope);
    if (r == DS_OK)
        *out_ms = (double)ms;
    return r;
}

/* Returns the result of an import with that code, which was cleared. CUDA has a code of its own for
   a handle that the same process has exported, and 205 for bytes that name nothing. */
static ds_result ds__cuda_import_result(const ds__cuda_scope *scope, cudaError_t code,
                                        const char *call) {
    if (code == cudaErrorMapBufferObjectFailed)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "%s returned %d (%s): the handle names nothing, or nothing that still "
                        "exists",
                        call, (int)code, DS__CUDART(cudaGetErrorName)(code));
    if (code != cudaErrorDeviceUninitialized)
        return ds__cuda_check(scope, code, call);
    return ds__fail(DS_ERR_ILLEGAL_STATE,
                    "%s returned %d (%s): the handle was probably exported by this process; use "
                    "the exported event",
                    call, (int)code, DS__CUDART(cudaGetErrorName)(code));
}

static ds_result ds__cuda_event_export(void *event, unsigned char *out) {
    const ds__cuda_event *e = event;
    cudaIpcEventHandle_t handle;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    ds_result r = ds__cuda_scope_begin(&scope, e->device);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = DS__RT(scope, cudaIpcGetEventHandle, (&handle, e->event));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    if (r == DS_OK)
        memcpy(out, &handle, sizeof handle);
    return r;
}

static ds_result ds__cuda_event_import(int device, const unsigned char *bytes, void **out) {
    cudaIpcEventHandle_t handle;
    cudaEvent_t event = NULL;
    ds__cuda_scope scope;
    memcpy(&handle, bytes, sizeof handle);
    ds__cuda_event *e = ds__host_alloc(sizeof *e);
    if (!e)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r == DS_OK) {
        enum cudaStreamCaptureMode mode;
        int relaxed = ds__cuda_relax(&scope, &mode);
        cudaError_t code = DS__RT_CODE(scope, cudaIpcOpenEventHandle, (&event, handle));
        ds__cuda_unrelax(&scope, relaxed, mode);
        r = ds__cuda_import_result(&scope, code, "cudaIpcOpenEventHandle");
        ds__cuda_scope_end(&scope);
    }
    if (r < 0) {
        ds__host_free(e);
        return r;
    }
    e->event = event;
    e->device = device;
    *out = e;
    return DS_OK;
}

#endif
