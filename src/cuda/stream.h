/* cuda/stream.h - stream objects.

   Creates, wraps and ends the driver's stream objects (ds__cuda_stream) and keeps the list of them.
   Implements the entries stream_create, stream_wrap, stream_native, stream_destroy, stream_unwrap,
   stream_hide, stream_forget and stream_identity.

   Invariants: Every stream object except those of the legacy streams is in ds__cuda.streams. At
   most one of them owns a native handle. If the last object of a handle is ended or hidden, the
   captures that began on the handle are over. A destroyed native stream is freed by CUDA when its
   work is done; the device's stream `ended` waits for that work.
   Locks: The list functions take ds__cuda.lock; this room calls no driver under it. Ending or
   hiding a stream may take the capture lock, so the caller must not hold it. Creating a stream is
   allowed under the capture lock.
   Threads: any. The caller ensures exclusive use of a stream object while the object ends. */
#ifndef DS__CUDA_STREAM_H
#define DS__CUDA_STREAM_H

#include "types.h"
#include "call.h"
#include "green.h"
#include "stream_wait.h"

/* Adds the object to the list. ds__cuda.lock is held. */
static void ds__cuda_link_stream(ds__cuda_stream *s) {
    s->previous = NULL;
    s->next = ds__cuda.streams;
    if (s->next)
        s->next->previous = s;
    ds__cuda.streams = s;
}

static void ds__cuda_list_stream(ds__cuda_stream *s) {
    ds__mutex_lock(&ds__cuda.lock);
    ds__cuda_link_stream(s);
    ds__mutex_unlock(&ds__cuda.lock);
}

/* Waits until no walk over the streams uses the stream. ds__cuda.lock is held. */
static void ds__cuda_await_users(const ds__cuda_stream *s) {
    while (s->users)
        ds__condition_wait(&ds__cuda.unused, &ds__cuda.lock);
}

static void ds__cuda_unlist_stream(ds__cuda_stream *s) {
    ds__mutex_lock(&ds__cuda.lock);
    ds__cuda_await_users(s);
    if (s->previous)
        s->previous->next = s->next;
    else if (ds__cuda.streams == s)
        ds__cuda.streams = s->next;
    if (s->next)
        s->next->previous = s->previous;
    ds__mutex_unlock(&ds__cuda.lock);
}

/* Creates a stream on the device that is current; *priority and *share become those in effect. */
static ds_result ds__cuda_make_stream(const ds__cuda_scope *scope, unsigned flags, int *priority,
                                      int *share, cudaStream_t *out) {
    unsigned native = flags & DS_STREAM_BLOCKING ? cudaStreamDefault : cudaStreamNonBlocking;
    ds_result r = *share ? ds__cuda_make_share(scope, share, *priority, out)
                         : DS__RT(*scope, cudaStreamCreateWithPriority, (out, native, *priority));
    if (r < 0)
        return r;
    r = DS__RT(*scope, cudaStreamGetPriority, (*out, priority));
    if (r < 0) {
        (void)DS__RT_CODE(*scope, cudaStreamDestroy, (*out));
        *out = NULL;
    }
    return r;
}

/* Returns a new object for a native stream. NULL: no memory, which is reported. */
static ds__cuda_stream *ds__cuda_new_stream(cudaStream_t handle, int device, int kind) {
    ds__cuda_stream *s = ds__host_alloc(sizeof *s);
    if (!s) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a stream");
        return NULL;
    }
    s->handle = handle;
    s->device = device;
    s->kind = kind;
    s->thread = ds__cuda_this_thread();
    ds__mutex_init(&s->staging);
    ds__mutex_init(&s->joining);
    return s;
}

/* Frees an object that is not in the list. */
static void ds__cuda_free_stream(ds__cuda_stream *s) {
    ds__mutex_destroy(&s->joining);
    ds__mutex_destroy(&s->staging);
    ds__host_free(s);
}

/* Creates a stream, or the object of a stream that CUDA has. *priority becomes the priority in
   effect. */
static ds_result ds__cuda_stream_create(int device, int kind, unsigned flags, int *priority,
                                        int *share, void **out) {
    ds__cuda_scope scope;
    ds__cuda_stream *s = ds__cuda_new_stream(
        kind == DS__STREAM_LEGACY ? cudaStreamLegacy : cudaStreamPerThread, device, kind);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    s->owned = kind == DS__STREAM_NEW;
    s->blocking = (flags & DS_STREAM_BLOCKING) != 0;
    ds_result r = DS_OK;
    if (kind == DS__STREAM_NEW) {
        r = ds__cuda_scope_begin(&scope, device);
        if (r == DS_OK) {
            r = ds__cuda_make_stream(&scope, flags, priority, share, &s->handle);
            ds__cuda_scope_end(&scope);
        }
    } else {
        *priority = 0;
    }
    s->priority = *priority;
    if (r < 0) {
        ds__cuda_free_stream(s);
        return r;
    }
    if (kind != DS__STREAM_LEGACY)
        ds__cuda_list_stream(s);
    *out = s;
    return DS_OK;
}

/* Returns 1 if another stream object has the handle. */
static int ds__cuda_is_shared(const ds__cuda_stream *s) {
    int found = 0;
    ds__mutex_lock(&ds__cuda.lock);
    for (const ds__cuda_stream *o = ds__cuda.streams; o; o = o->next)
        found |= o != s && !o->hidden && o->handle == s->handle && o->device == s->device;
    ds__mutex_unlock(&ds__cuda.lock);
    return found;
}

/* Returns 1 if no thread can end a capture on the stream after its object has ended. A borrowed
   handle may end at any time. The object of a per-thread stream ends after its thread, and no other
   thread could end the capture. */
static int ds__cuda_ends_captures(const ds__cuda_stream *s) {
    return s->kind == DS__STREAM_PER_THREAD ||
           (s->kind == DS__STREAM_NEW && !s->hidden && !ds__cuda_is_shared(s));
}

/* Makes an unwrapped object of the native stream, which a call of another thread still uses, its
   owner. Returns 0 if there is no such object. */
static int ds__cuda_leave_stream(const ds__cuda_stream *s) {
    ds__cuda_stream *o;
    ds__mutex_lock(&ds__cuda.lock);
    for (o = ds__cuda.streams; o; o = o->next)
        if (o->given && o->handle == s->handle && o->device == s->device)
            break;
    if (o) {
        o->owned = 1;
        o->given = 0;
    }
    ds__mutex_unlock(&ds__cuda.lock);
    return o != NULL;
}

/* Gives a stream of the scope's device that the driver keeps until shutdown; the first call creates
   it. The code is not reported; it is that of cudaStreamCreateWithPriority. */
static cudaError_t ds__cuda_kept_stream(const ds__cuda_scope *scope, _Atomic(cudaStream_t) *kept,
                                        cudaStream_t *out) {
    cudaStream_t known = NULL;
    *out = atomic_load(kept);
    if (*out)
        return cudaSuccess;
    cudaError_t code =
        DS__RT_CODE(*scope, cudaStreamCreateWithPriority, (out, cudaStreamNonBlocking, 0));
    if (code != cudaSuccess || atomic_compare_exchange_strong(kept, &known, *out))
        return code;
    (void)DS__RT_CODE(*scope, cudaStreamDestroy, (*out)); /* another thread was first */
    *out = known;
    return cudaSuccess;
}

/* Makes the device's stream `ended` wait for the pending work of a native stream that is destroyed
   next. Beside an open capture, CUDA refuses a wait for the device, and no other object names that
   work (ds__cuda_wait_streams_of). A stream that captures cannot be queried, and is left out. */
static void ds__cuda_note_ended(const ds__cuda_scope *scope, ds__cuda_stream *s) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    enum cudaStreamCaptureMode mode;
    int busy;
    cudaError_t code = DS__RT_CODE(*scope, cudaStreamIsCapturing, (s->handle, &status));
    if (code != cudaSuccess || status != cudaStreamCaptureStatusNone)
        return;
    int relaxed = ds__cuda_relax(scope, &mode);
    DS__DR_CODE(*scope, busy, cuStreamQuery, (s->handle));
    ds__cuda_unrelax(scope, relaxed, mode);
    if (busy != DS__CUDA_NOT_READY)
        return;
    cudaStream_t ended;
    ds__cuda_mark *mark;
    if (ds__cuda_kept_stream(scope, &ds__cuda.ended[scope->device], &ended) != cudaSuccess)
        return;
    if (ds__cuda_mark_take(scope, &mark) != cudaSuccess)
        return;
    code = DS__RT_CODE(*scope, cudaEventRecord, (mark->event, s->handle));
    if (code == cudaSuccess)
        (void)DS__RT_CODE(*scope, cudaStreamWaitEvent, (ended, mark->event, 0));
    ds__cuda_mark_put(mark);
}

/* Ends an object. owned: destroys the native stream too, which CUDA frees when its work is done. */
static void ds__cuda_end_stream(ds__cuda_stream *s, int owned) {
    ds__cuda_scope scope;
    ds__cuda_unlist_stream(s); /* first, so that no thread finds the handle any more */
    if (owned && ds__cuda_leave_stream(s))
        owned = 0;
    ds__cuda_enter_or_not(&scope, s->device);
    if (DS__UNLIKELY(ds__captures_open()) && (owned || ds__cuda_ends_captures(s)))
        ds__cuda_stop_capture(&scope, s, owned);
    if (owned)
        ds__cuda_note_ended(&scope, s);
    if (owned)
        (void)DS__RT_CODE(scope, cudaStreamDestroy, (s->handle));
    ds__cuda_scope_end(&scope);
    if (s->stage)
        ds__cuda_stage_unref(s->stage);
    ds__cuda_free_stream(s);
}

/* Ends an unwrapped object, with its native stream if the new owner has ended meanwhile. */
static void ds__cuda_stream_forget(void *stream) {
    const ds__cuda_stream *s = stream;
    ds__cuda_end_stream(stream, s->owned);
}

static void ds__cuda_stream_destroy(void *stream) {
    const ds__cuda_stream *s = stream;
    ds__cuda_end_stream(stream, s->kind == DS__STREAM_NEW);
}

/* Takes the handle away from the object. given: the caller becomes its owner. */
static void ds__cuda_hide(ds__cuda_stream *s, int given) {
    ds__mutex_lock(&ds__cuda.lock);
    s->owned = 0;
    s->hidden = 1; /* no walk over the streams takes it */
    s->given = given;
    ds__cuda_await_users(s);
    ds__mutex_unlock(&ds__cuda.lock);
}

static void ds__cuda_stream_unwrap(void *stream) {
    ds__cuda_hide(stream, 1);
}

/* Takes a borrowed handle away from the object, which may stay as the current stream of a thread.
   Captures that began on the handle end now, not with the object. */
static void ds__cuda_stream_hide(void *stream) {
    ds__cuda_scope scope;
    ds__cuda_stream *s = stream;
    ds__cuda_hide(s, 0);
    if (DS__LIKELY(!ds__captures_open()) || ds__cuda_is_shared(s))
        return;
    ds__cuda_enter_or_not(&scope, s->device);
    ds__cuda_stop_capture(&scope, s, 0);
    ds__cuda_scope_end(&scope);
}

/* Adds a wrapper to the list, unless it is the second owner of its handle. */
static ds_result ds__cuda_list_wrapper(ds__cuda_stream *s) {
    int taken = 0;
    ds__mutex_lock(&ds__cuda.lock);
    for (ds__cuda_stream *o = ds__cuda.streams; o && s->owned; o = o->next)
        taken |= o->owned && o->handle == s->handle && o->device == s->device;
    if (!taken)
        ds__cuda_link_stream(s);
    ds__mutex_unlock(&ds__cuda.lock);
    return taken ? ds__fail(DS_ERR_INVALID_VALUE, "the native stream already has an owner") : DS_OK;
}

/* Refuses a native stream of another device, if the driver can tell the device of a stream. */
static ds_result ds__cuda_check_device(const ds__cuda_scope *scope, const ds__cuda_stream *s) {
    int on = s->device;
    cudaError_t code = ds__cuda_clear(scope, ds__cudart_stream_device(s->handle, &on));
    if (code == cudaErrorCallRequiresNewerDriver)
        return DS_OK;
    if (code == cudaSuccess && on != s->device)
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is a stream of cuda:%d, not of cuda:%d",
                        (void *)s->handle, on, s->device);
    return ds__cuda_check(scope, code, "cudaStreamGetDevice");
}

/* Makes an object for a native stream of the program. own: the object is its owner. */
static ds_result ds__cuda_stream_wrap(int device, void *native, int own, unsigned *out_flags,
                                      int *out_priority, void **out) {
    ds__cuda_scope scope;
    unsigned flags = 0;
    ds__cuda_stream *s = ds__cuda_new_stream(native, device, DS__STREAM_NEW);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r == DS_OK) {
        r = DS__RT(scope, cudaStreamGetFlags, (s->handle, &flags));
        if (r == DS_OK)
            r = DS__RT(scope, cudaStreamGetPriority, (s->handle, out_priority));
        if (r == DS_OK)
            r = ds__cuda_check_device(&scope, s);
        ds__cuda_scope_end(&scope);
    }
    *out_flags = flags & cudaStreamNonBlocking ? DS_STREAM_NON_BLOCKING : DS_STREAM_BLOCKING;
    s->owned = own;
    s->priority = *out_priority;
    s->blocking = *out_flags == DS_STREAM_BLOCKING;
    if (r == DS_OK)
        r = ds__cuda_list_wrapper(s);
    if (r < 0) {
        ds__cuda_free_stream(s);
        return r;
    }
    *out = s;
    return DS_OK;
}

static ds_result ds__cuda_stream_native(void *stream, void **out) {
    const ds__cuda_stream *s = stream;
    ds_result r = ds__cuda_mine(s);
    if (r == DS_OK)
        *out = s->handle;
    return r;
}

static void ds__cuda_stream_named(void *stream, uint64_t handle) {
    ((ds__cuda_stream *)stream)->handle_id = handle;
}

/* Returns an address that all objects of a native stream share. */
static const void *ds__cuda_stream_identity(void *stream) {
    const ds__cuda_stream *s = stream;
    return s->kind == DS__STREAM_PER_THREAD ? (const void *)s : (const void *)s->handle;
}

#endif
