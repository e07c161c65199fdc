/* cuda/host_func.h - host functions and callbacks.

   Enqueues host functions and callbacks (ds__cuda_submit_host, ds__cuda_post) and runs each once
   (ds__cuda_run_host). A host function uses cudaLaunchHostFunc. A callback gets a status and uses
   cudaStreamAddCallback, which CUDA invokes after a failure as well. If the stream captures, a
   host function becomes a node by capture_op.h.

   While a callback of cudaStreamAddCallback runs, CUDA holds a lock, and calls of other threads may
   wait for it (FBGEMM#5462, numba-cuda#317, AMReX#4044). So nothing but callbacks uses it.

   Invariants: A record is in ds__cuda.hosts until it begins to run. The thread that changes its
   state from pending to taken runs it. host_count includes a record until its function and its
   destructor have returned. After a failure a callback gets DS_ERR_FAILED. A host function does not
   run then, and its destructor runs in ds__cuda_drain.
   Locks: `host_lock` guards the list; no driver call and no user code runs under it. ds__cuda_post
   may be called under the capture lock or a stream's staging mutex.
   Threads: any thread enqueues. The functions run on CUDA's callback thread, or during shutdown,
   after the failure of a device, on the thread that drains. Calls into devstream are refused there
   (ds__tls.in_callback). */
#ifndef DS__CUDA_HOST_FUNC_H
#define DS__CUDA_HOST_FUNC_H

#include "../base/observe.h"
#include "types.h"
#include "call.h"

static void ds__cuda_unlist_host(ds__cuda_host *h) {
    ds__spinlock_lock(&ds__cuda.host_lock);
    if (h->previous)
        h->previous->next = h->next;
    else
        ds__cuda.hosts = h->next;
    if (h->next)
        h->next->previous = h->previous;
    ds__spinlock_unlock(&ds__cuda.host_lock);
}

/* Invokes the function unless it failed, a callback in any case, and the destructor. The caller
   drops the record, unless it is embedded. */
static void ds__cuda_run_host(ds__cuda_host *h, int failed) {
    int outer = ds__tls.in_callback;
    ds_stream stream = { h->stream };
    void *user = h->user; /* the destructor may free an embedded record */
    ds__cuda_unlist_host(h);
    ds__tls.in_callback = 1;
    ds__handed_over(DS__SEEN_ACQUIRE, h->user, h->stream);
    if (h->callback)
        h->callback(stream, failed ? DS_ERR_FAILED : DS_OK, h->user);
    else if (!failed && h->fn)
        h->fn(h->user);
    if (h->dtor_fn)
        h->dtor_fn(h->user);
    ds__handed_over(DS__SEEN_RELEASE, user, stream.id);
    ds__tls.in_callback = outer;
}

/* Drops a user of a record, which is not embedded. */
static void ds__cuda_host_unref(ds__cuda_host *h) {
    if (atomic_fetch_sub(&h->users, 1) == 1)
        ds__host_free(h);
}

/* Runs a record on a thread of CUDA, unless ds__cuda_drain has taken it. */
static void ds__cuda_host_taken(ds__cuda_host *h, int failed) {
    int pending = DS__CUDA_PENDING;
    int embedded = h->embedded;
    atomic_fetch_add(&ds__cuda.inside, 1);
    if (atomic_compare_exchange_strong(&h->state, &pending, DS__CUDA_TAKEN)) {
        ds__cuda_run_host(h, failed);
        if (!embedded)
            ds__cuda_host_unref(h);
        atomic_fetch_sub(&ds__cuda.host_count, 1);
    }
    atomic_fetch_sub(&ds__cuda.inside, 1);
}

static void CUDART_CB ds__cuda_host_main(void *user) {
    ds__cuda_host_taken(user, 0);
}

static void CUDART_CB ds__cuda_callback_main(cudaStream_t stream, cudaError_t status, void *user) {
    (void)stream;
    ds__cuda_host_taken(user, status != cudaSuccess);
}

/* Finds out whether a capture of any library has the stream. Inside of a scope of the stream. For
   the legacy stream beside a capture *out is 0: the work itself will be refused. */
static ds_result ds__cuda_is_capturing(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       int *out) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t code = DS__RT_CODE(*scope, cudaStreamIsCapturing, (s->handle, &status));
    *out = code == cudaSuccess && status != cudaStreamCaptureStatusNone;
    if (DS__UNLIKELY(code == cudaErrorStreamCaptureImplicit))
        return DS_OK;
    return ds__cuda_check(scope, code, "cudaStreamIsCapturing");
}

/* Refuses a host function if another thread has begun to capture the stream meanwhile: the function
   is then a node, and a graph could run it more than once. The record stays for good and runs
   nothing. Inside of a scope of the stream. */
static ds_result ds__cuda_not_a_node(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                     ds__cuda_host *h) {
    int pending = DS__CUDA_PENDING;
    int capturing = 0;
    ds_result r = ds__cuda_is_capturing(scope, s, &capturing);
    if (r < 0 || !capturing || !atomic_compare_exchange_strong(&h->state, &pending, DS__CUDA_TAKEN))
        return DS_OK;
    h->captured = 1;
    ds__cuda_unlist_host(h);
    ds__spinlock_lock(&ds__cuda.host_lock);
    h->next = ds__cuda.captured;
    ds__cuda.captured = h;
    ds__spinlock_unlock(&ds__cuda.host_lock);
    atomic_fetch_sub(&ds__cuda.host_count, 1);
    return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                    "another thread began to capture the stream during the call");
}

/* Enqueues a record whose fields are set. It must not be freed during the call. If the call fails,
   the caller frees the record, unless it is captured. Inside of a scope of the stream. */
static ds_result ds__cuda_post(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                               ds__cuda_host *h) {
    h->device = s->device;
    atomic_fetch_add(&ds__cuda.host_count, 1);
    ds__spinlock_lock(&ds__cuda.host_lock);
    h->previous = NULL;
    h->next = ds__cuda.hosts;
    if (h->next)
        h->next->previous = h;
    ds__cuda.hosts = h;
    ds__spinlock_unlock(&ds__cuda.host_lock);
    ds_result r =
        h->callback
            ? DS__RT(*scope, cudaStreamAddCallback, (s->handle, ds__cuda_callback_main, h, 0))
            : DS__RT(*scope, cudaLaunchHostFunc, (s->handle, ds__cuda_host_main, h));
    if (r < 0) {
        ds__cuda_unlist_host(h);
        atomic_fetch_sub(&ds__cuda.host_count, 1);
        return r;
    }
    return h->callback ? DS_OK : ds__cuda_not_a_node(scope, s, h);
}

/* Enqueues the host function or callback of an operation. DS__OP_BLOCKS: it is work of the library
   on pageable memory, which no graph may have. A captured function runs more than once, so CUDA
   captures it in another form (ds__cuda_host_in_capture). */
static ds_result ds__cuda_submit_host(const ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    int capturing = 0;
    ds__cuda_host *h = ds__host_alloc(sizeof *h);
    if (!h)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a host function");
    h->fn = op->u.host.fn;
    h->callback = op->u.host.callback;
    h->user = op->u.host.user;
    h->dtor_fn = op->u.host.dtor_fn;
    h->stream = op->u.host.stream;
    atomic_store(&h->users, 2);
    ds_result r = ds__cuda_on(&scope, s);
    if (r == DS_OK) {
        if (!h->callback)
            r = ds__cuda_is_capturing(&scope, s, &capturing);
        if (r == DS_OK && capturing)
            r = op->flags & DS__OP_BLOCKS ? ds__cuda_refuse_pageable(&scope)
                                          : ds__cuda_host_in_capture(&scope, s, op);
        if (r == DS__CHANGED) { /* another thread has ended the capture meanwhile */
            capturing = 0;
            r = DS_OK;
        }
        if (r == DS_OK && !capturing)
            r = ds__cuda_post(&scope, s, h);
        ds__cuda_scope_end(&scope);
    }
    if (h->captured)
        return r;
    if (r < 0 || capturing)
        ds__host_free(h);
    else
        ds__cuda_host_unref(h);
    return r;
}

#endif
