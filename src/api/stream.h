/* api/stream.h - streams and the current stream.

   Declares creation, wrapping, queries and waits of streams, the default streams, and the
   current stream of a thread.

   Threads: any. Each thread has its own current stream on each device. */
#ifndef DS__API_STREAM_H
#define DS__API_STREAM_H

#include "device.h"

/* ---- streams --------------------------------------------------------------------------------- */

/** A stream: a queue of work on a device. A zeroed handle names no stream, not the default
    stream. */
typedef struct ds_stream {
    uint64_t id; /**< index and generation; 0: none */
} ds_stream;

enum {
    /** not ordered with the legacy stream: the default, as in torch */
    DS_STREAM_NON_BLOCKING = 0,
    /** ordered with the device's legacy stream, as cudaStreamDefault is */
    DS_STREAM_BLOCKING = 1
};

enum {
    DS_PRIORITY_NORMAL = 0,         /**< the default */
    DS_PRIORITY_HIGH = -1,          /**< torch's and Paddle's "high" */
    DS_PRIORITY_HIGHEST = -1000000, /**< clamped to the device's most urgent */
    DS_PRIORITY_LOWEST = 1000000    /**< clamped to the device's least urgent */
};

/** Parameters of ds_stream_create; zero means default. */
typedef struct ds_stream_desc {
    /** zeroed: the thread's current device; a negative index: the current device of the type, or
        the type's first device */
    ds_device device;
    /** lower is more urgent; clamped to the device's range, as CUDA does */
    int priority;
    unsigned flags;    /**< DS_STREAM_BLOCKING or 0 */
    const char *label; /**< for messages and reports; copied; may be NULL */
    /** share of the device: the multiprocessors of a GPU, or the threads of a CPU device, that the
        stream's work may use at once; 0: all. Not with DS_STREAM_BLOCKING */
    int multiprocessors;
    uint64_t reserved[3]; /**< 0 */
} ds_stream_desc;

/** Returns the defaults of torch.cuda.Stream: non-blocking, priority 0. */
DSINLINE ds_stream_desc ds_stream_desc_torch(void) {
    ds_stream_desc d;
    d.device = ds_device_current();
    d.priority = 0;
    d.flags = DS_STREAM_NON_BLOCKING;
    d.label = NULL;
    d.multiprocessors = 0;
    for (int i = 0; i < 3; i++)
        d.reserved[i] = 0;
    return d;
}

/** Returns the defaults of paddle.device.Stream: non-blocking, normal priority (Paddle's 2). */
DSINLINE ds_stream_desc ds_stream_desc_paddle(void) {
    return ds_stream_desc_torch();
}

/** Returns the defaults of cudaStreamCreate: blocking with respect to the legacy stream. */
DSINLINE ds_stream_desc ds_stream_desc_cuda(void) {
    ds_stream_desc d = ds_stream_desc_torch();
    d.flags = DS_STREAM_BLOCKING;
    return d;
}

/** Returns the defaults of cupy.cuda.Stream, which are those of cudaStreamCreate. */
DSINLINE ds_stream_desc ds_stream_desc_cupy(void) {
    return ds_stream_desc_cuda();
}

/** Returns the defaults of mindspore.hal.Stream: priority 0. MindSpore leaves the flags to its
    backend; here the stream is non-blocking. */
DSINLINE ds_stream_desc ds_stream_desc_mindspore(void) {
    return ds_stream_desc_torch();
}

/** Converts Paddle's priority numbers (1 high, 2 normal; -1 and 0 as in Paddle's Python API).
    DS_ERR_INVALID_VALUE for other numbers; Paddle silently uses the normal priority for them. */
DSDEF DS_MUST_USE ds_result ds_stream_priority_from_paddle(int paddle_priority, int *out_priority);

/** Creates a stream. The caller must destroy it. desc NULL: non-blocking, priority 0, current
    device.

    With desc.multiprocessors, at most that share of the device runs the stream's kernels, so that
    long work leaves room for other streams. On a GPU the stream belongs to a green context
    (cuGreenCtxCreate, from CUDA 12.5 on), which takes a number rounded up to what the GPU can
    separate; streams with the same number have the same multiprocessors, and other streams may use
    them too. On a CPU device at most that many threads run a kernel, copy or fill of the stream,
    the thread of a waiting host included. DS_ERR_INVALID_VALUE: a negative number, more than the
    device has, or with DS_STREAM_BLOCKING. DS_ERR_UNSUPPORTED: the driver or the GPU has no green
    contexts. */
DSDEF DS_MUST_USE ds_result ds_stream_create(const ds_stream_desc *desc, ds_stream *out);
/** Returns the multiprocessors of a GPU, or threads of a CPU device, that the stream's work may use
    at once: the share in effect, or all of the device. Of a wrapped stream: all of the device,
    though it may have a share. */
DSDEF DS_MUST_USE ds_result ds_stream_get_multiprocessors(ds_stream stream, int *out);
/** Adds an owner to a stream created or wrapped by the caller. Each owner must call
    ds_stream_destroy. DS_ERR_INVALID_VALUE: a default stream. */
DSDEF DS_MUST_USE ds_result ds_stream_ref(ds_stream stream);
/** Removes an owner. If no owner remains, the handle becomes invalid at once. Pending work still
    runs; then the stream is freed. Does not block. Deferred in user code. DS_ERR_INVALID_VALUE: a
    legacy or per-thread stream. */
DSDEF DS_MUST_USE ds_result ds_stream_destroy(ds_stream stream);
/** Returns DS_OK if all work enqueued so far is complete, DS_NOT_READY if work is pending,
    DS_ERR_FAILED after a failure. Does not block. On the legacy stream, the query includes the
    device's blocking streams and the calling thread's per-thread stream. Destroyed streams, other
    threads' per-thread streams and streams unknown to devstream may be left out.
    ds_device_synchronize waits for all of them. */
DSDEF DS_MUST_USE ds_result ds_stream_query(ds_stream stream);
/** Waits (blocks) until all work enqueued on the stream before the call is complete. On CPU
    devices, the calling thread may run kernels, copies and fills of the awaited work, but no host
    function. On the legacy stream, waits for the same streams as ds_stream_query. */
DSDEF DS_MUST_USE ds_result ds_stream_synchronize(ds_stream stream);
/** Waits as ds_stream_synchronize does, for at most timeout_ns nanoseconds. Returns DS_NOT_READY
    after that time. The calling thread runs no work itself. */
DSDEF DS_MUST_USE ds_result ds_stream_synchronize_for(ds_stream stream, uint64_t timeout_ns);
/** Returns the device's legacy null stream (CUDA's stream 0). Its work starts after all work
    enqueued earlier on the device's blocking streams. Later work of blocking streams starts after
    the legacy stream's work. Non-blocking streams are not ordered with it. */
DSDEF DS_MUST_USE ds_result ds_stream_get_legacy(ds_device device, ds_stream *out);
/** Returns the calling thread's default stream on the device (CUDA's stream 2). The stream is
    blocking with respect to the legacy stream and independent of other streams. The handle names
    this thread's stream and is freed after the thread has ended and the work is complete. Other
    threads may use the handle on CPU devices. DS_ERR_UNSUPPORTED if another thread uses it on CUDA,
    since CUDA cannot name another thread's stream. */
DSDEF DS_MUST_USE ds_result ds_stream_get_per_thread(ds_device device, ds_stream *out);
/** Returns the legacy stream. Returns the per-thread stream instead if
    DS_INIT_PER_THREAD_DEFAULT_STREAM, the macro, or the environment variable
    DEVSTREAM_PER_THREAD_DEFAULT_STREAM=1 selects it. */
DSDEF DS_MUST_USE ds_result ds_stream_get_default(ds_device device, ds_stream *out);

/** Ownership of a wrapped native stream. */
typedef enum ds_ownership {
    DS_BORROW = 0, /**< owned by the caller; must outlive the wrapper */
    DS_OWN = 1     /**< owned by devstream; destroyed by the last ds_stream_destroy */
} ds_ownership;

/** Exchange format for streams of other libraries. Python's __cuda_stream__ protocol has the same
    two numbers. */
typedef struct ds_stream_native {
    int version;      /**< 0 */
    ds_device device; /**< if zeroed when wrapping: the thread's current device */
    /** cudaStream_t or the CPU driver's stream; 0 and 1: legacy, 2: the calling thread's */
    void *handle;
} ds_stream_native;

/** Wraps a native stream handle. On CUDA the handle is a cudaStream_t and must be valid: cudart
    does not check it. If release_fn is set, it is invoked once with user, on the thread that frees
    the wrapper. Use it to keep the native stream's owner alive. If the call fails, release_fn is
    invoked too. DS_ERR_INVALID_VALUE: unknown version, a handle unknown to the CPU driver, or
    DS_OWN for a default stream. */
DSDEF DS_MUST_USE ds_result ds_stream_wrap(const ds_stream_native *native, ds_ownership ownership,
                                           void (*release_fn)(void *user), void *user,
                                           ds_stream *out);
/** Returns the native form of a stream without changing its ownership. The legacy stream has the
    handle 0, the calling thread's per-thread stream has 2. */
DSDEF DS_MUST_USE ds_result ds_stream_export(ds_stream stream, ds_stream_native *out);
/** Returns the native form of a stream and transfers ownership to the caller. The devstream handle
    becomes invalid. The native stream is not freed until ds_stream_wrap takes it with DS_OWN.
    DS_ERR_ILLEGAL_STATE: the stream has several owners, or devstream does not own the native
    stream. */
DSDEF DS_MUST_USE ds_result ds_stream_unwrap(ds_stream stream, ds_stream_native *out);

/** Returns the stream's number, unique in the process and never reused. */
DSDEF DS_MUST_USE ds_result ds_stream_get_id(ds_stream stream, uint64_t *out);
/** Returns the stream's device. */
DSDEF DS_MUST_USE ds_result ds_stream_get_device(ds_stream stream, ds_device *out);
/** Returns DS_STREAM_BLOCKING or DS_STREAM_NON_BLOCKING. Legacy and per-thread streams are
    blocking. */
DSDEF DS_MUST_USE ds_result ds_stream_get_flags(ds_stream stream, unsigned *out);
/** Returns the effective and the requested priority; either pointer may be NULL. */
DSDEF DS_MUST_USE ds_result ds_stream_get_priority(ds_stream stream, int *out_effective,
                                                   int *out_requested);
/** Copies the stream's label into out (at most size bytes, always terminated). */
DSDEF DS_MUST_USE ds_result ds_stream_get_label(ds_stream stream, char *out, size_t size);
/** Sets the stream's label for messages, reports and timelines. At most 255 characters are copied;
    NULL removes the label. NVIDIA's tools also show the label of a GPU stream. */
DSDEF DS_MUST_USE ds_result ds_stream_set_label(ds_stream stream, const char *label);
/** Returns 1 if both handles name the same queue of the same device, else 0. A wrapper equals the
    stream it wraps. An invalid handle equals no handle. */
DSDEF int ds_stream_equal(ds_stream a, ds_stream b);

/* ---- the current stream ---------------------------------------------------------------------- */

enum {
    /** refuses a stream of a device other than the current one (CuPy's rule):
        DS_ERR_DEVICE_MISMATCH */
    DS_PUSH_STRICT = 1,
    /** at the push, the pushed stream waits for the device's current stream */
    DS_PUSH_WAIT_PREV = 2,
    /** at the pop, the restored stream of the device waits for the pushed stream */
    DS_POP_WAIT_BACK = 4
};

/** Returns the thread's current stream on a device, initially ds_stream_get_default. If the stream
    was destroyed, the handle is still returned; its use returns DS_ERR_INVALID_HANDLE. */
DSDEF DS_MUST_USE ds_result ds_stream_get_current(ds_device device, ds_stream *out);
/** Sets the thread's current stream on the stream's device, and that device as current (torch).
    flags: DS_PUSH_STRICT or 0. *out_previous (may be NULL): the stream that was current on the
    device. */
DSDEF DS_MUST_USE ds_result ds_stream_set_current(ds_stream stream, unsigned flags,
                                                  ds_stream *out_previous);
/** Saves the thread's current device and that device's current stream, then acts as
    ds_stream_set_current. ds_stream_pop restores the saved state, regardless of calls in between. A
    zeroed stream pushes an entry without changing the state. A failed push leaves no entry. flags:
    DS_PUSH_*, DS_POP_WAIT_BACK. */
DSDEF DS_MUST_USE ds_result ds_stream_push(ds_stream stream, unsigned flags);
/** Undoes the thread's latest ds_stream_push. DS_ERR_ILLEGAL_STATE if no push is open, or if a
    device was pushed after the stream. */
DSDEF DS_MUST_USE ds_result ds_stream_pop(void);

/** State of DS_STREAM_SCOPE and DS_DEVICE_SCOPE. */
typedef struct ds_scope {
    int pushed; /**< 1: the scope must be popped */
    int once;   /**< 1: the block has not run yet */
} ds_scope;

/** Enters a stream scope; used by DS_STREAM_SCOPE. */
DSDEF ds_scope ds_stream_scope_enter(ds_stream stream, unsigned flags);
/** Leaves a stream scope; used by DS_STREAM_SCOPE. */
DSDEF void ds_stream_scope_leave(ds_scope *scope);
/** Enters a device scope; used by DS_DEVICE_SCOPE. */
DSDEF ds_scope ds_device_scope_enter(ds_device device);
/** Leaves a device scope; used by DS_DEVICE_SCOPE. */
DSDEF void ds_device_scope_leave(ds_scope *scope);

#endif
