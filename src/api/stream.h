/* api/stream.h - streams and the current stream.

   Declares creation, wrapping, queries and waits of streams, the default streams, and the
   current stream of a thread.

   Threads: any. Each thread has its own current stream on each device. */
#ifndef DS__API_STREAM_H
#define DS__API_STREAM_H

#include "device.h"

/* ---- streams --------------------------------------------------------------------------------- */

/** A stream. Zeroed: no stream (it is not the default stream). */
typedef struct ds_stream {
    uint64_t id; /**< index and generation; 0: none */
} ds_stream;

enum {
    /** takes no part in the legacy stream's ordering: the default, as in torch */
    DS_STREAM_NON_BLOCKING = 0,
    /** ordered with the device's legacy stream, as cudaStreamDefault */
    DS_STREAM_BLOCKING = 1
};

enum {
    DS_PRIORITY_NORMAL = 0,         /**< the default */
    DS_PRIORITY_HIGH = -1,          /**< torch's and Paddle's "high" */
    DS_PRIORITY_HIGHEST = -1000000, /**< clamped to the device's most urgent */
    DS_PRIORITY_LOWEST = 1000000    /**< clamped to the device's least urgent */
};

/** What ds_stream_create takes; zero means default. */
typedef struct ds_stream_desc {
    /** zeroed: the thread's current device; a negative index: the current one of its type, else
        the type's first */
    ds_device device;
    /** lower is more urgent; outside of the range it is clamped, as CUDA does */
    int priority;
    unsigned flags;       /**< DS_STREAM_BLOCKING or 0 */
    const char *label;    /**< for messages and reports; copied; may be NULL */
    uint64_t reserved[4]; /**< 0 */
} ds_stream_desc;

/** The defaults of torch.cuda.Stream: non-blocking, priority 0. */
DSINLINE ds_stream_desc ds_stream_desc_torch(void) {
    ds_stream_desc d;
    d.device = ds_device_current();
    d.priority = 0;
    d.flags = DS_STREAM_NON_BLOCKING;
    d.label = NULL;
    for (int i = 0; i < 4; i++)
        d.reserved[i] = 0;
    return d;
}

/** The defaults of paddle.device.Stream: non-blocking, normal priority (Paddle's 2). */
DSINLINE ds_stream_desc ds_stream_desc_paddle(void) {
    return ds_stream_desc_torch();
}

/** The defaults of cupy.cuda.Stream and of cudaStreamCreate: blocking with respect to the legacy
    stream. */
DSINLINE ds_stream_desc ds_stream_desc_cupy(void) {
    ds_stream_desc d = ds_stream_desc_torch();
    d.flags = DS_STREAM_BLOCKING;
    return d;
}

/** The defaults of mindspore.hal.Stream: priority 0; MindSpore leaves the rest to its backend,
    here non-blocking. */
DSINLINE ds_stream_desc ds_stream_desc_mindspore(void) {
    return ds_stream_desc_torch();
}

/** Paddle's priority numbers (1 high, 2 normal; -1 and 0 are taken as Paddle's Python does) as
    ours. Anything else is DS_ERR_INVALID_VALUE: Paddle turns it into normal without a word. */
DSDEF DS_MUST_USE ds_result ds_stream_priority_from_paddle(int paddle_priority, int *out_priority);

/** Creates a stream, which is the caller's to destroy. desc NULL: non-blocking, of priority 0,
    on the current device. */
DSDEF DS_MUST_USE ds_result ds_stream_create(const ds_stream_desc *desc, ds_stream *out);
/** Gives one more owner to a stream that was created or wrapped; each needs its own
    ds_stream_destroy. DS_ERR_INVALID_VALUE: a default stream. */
DSDEF DS_MUST_USE ds_result ds_stream_ref(ds_stream stream);
/** Ends one ownership. With the last one the handle is invalid at once, pending work still runs,
    and the stream is freed after it. Returns at once. The legacy and per-thread streams are not
    yours: DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_stream_destroy(ds_stream stream);
/** DS_OK when all work so far is done, DS_NOT_READY when not, DS_ERR_FAILED after a failure.
    Never blocks. On the legacy stream this counts the work of the device's blocking streams too:
    of those that devstream knows, and of the per-thread streams the caller's only. It need not
    count the pending work of destroyed streams, nor that of other threads' per-thread streams;
    ds_device_synchronize waits for all. */
DSDEF DS_MUST_USE ds_result ds_stream_query(ds_stream stream);
/** Blocks until all work put on the stream before the call is done. The caller may run
    operations that this work depends on (kernels, copies, fills), never a host function. On the
    legacy stream it waits for the work that ds_stream_query counts there, and need not wait for
    that of destroyed streams or of other threads' per-thread streams. */
DSDEF DS_MUST_USE ds_result ds_stream_synchronize(ds_stream stream);
/** As ds_stream_synchronize, for at most timeout_ns nanoseconds; then DS_NOT_READY. Runs nothing
    itself. */
DSDEF DS_MUST_USE ds_result ds_stream_synchronize_for(ds_stream stream, uint64_t timeout_ns);
/** The device's legacy null stream: its work starts after everything put earlier on the device's
    blocking streams, and their later work starts after it. Non-blocking streams take no part.
    (CUDA's stream 0.) */
DSDEF DS_MUST_USE ds_result ds_stream_get_legacy(ds_device device, ds_stream *out);
/** The calling thread's own default stream on the device (CUDA's stream 2): blocking with
    respect to the legacy stream, independent of others. The handle means this thread's stream;
    it goes with the thread, after its work is done. Other threads may use it on CPU devices; on
    CUDA they get DS_ERR_UNSUPPORTED, since CUDA has no name for it. */
DSDEF DS_MUST_USE ds_result ds_stream_get_per_thread(ds_device device, ds_stream *out);
/** The legacy stream, or the per-thread one when that was opted for
    (DS_INIT_PER_THREAD_DEFAULT_STREAM, the macro or the environment variable
    DEVSTREAM_PER_THREAD_DEFAULT_STREAM=1). */
DSDEF DS_MUST_USE ds_result ds_stream_get_default(ds_device device, ds_stream *out);

/** Who ends a wrapped native stream. */
typedef enum ds_ownership {
    DS_BORROW = 0, /**< the caller; it must outlive the wrapper */
    DS_OWN = 1     /**< devstream, with the last ds_stream_destroy */
} ds_ownership;

/** The exchange format for streams of other libraries (Python's __cuda_stream__ protocol has the
    same two numbers). */
typedef struct ds_stream_native {
    int version;      /**< 0 */
    ds_device device; /**< zeroed when wrapping: the thread's current device */
    /** cudaStream_t, or the CPU driver's stream; 0 and 1 legacy, 2 the calling thread's */
    void *handle;
} ds_stream_native;

/** Makes a stream of a native handle. On CUDA that is a cudaStream_t, which must be valid:
    cudart does not check it. release_fn, when given, runs once with user when the wrapper is
    freed (it keeps the foreign owner alive until then), on the thread that freed it; it also
    runs when the call fails. DS_ERR_INVALID_VALUE: unknown version, a handle the driver does not
    know, DS_OWN of a default stream. */
DSDEF DS_MUST_USE ds_result ds_stream_wrap(const ds_stream_native *native, ds_ownership ownership,
                                           void (*release_fn)(void *user), void *user,
                                           ds_stream *out);
/** The native form of a stream; ownership stays. The legacy stream exports handle 0, the calling
    thread's own 2. */
DSDEF DS_MUST_USE ds_result ds_stream_export(ds_stream stream, ds_stream_native *out);
/** As ds_stream_export, and gives the native stream to the caller: the handle becomes invalid
    and nothing is freed until someone wraps it with DS_OWN. Only for a stream with one owner
    that devstream owns: else DS_ERR_ILLEGAL_STATE. */
DSDEF DS_MUST_USE ds_result ds_stream_unwrap(ds_stream stream, ds_stream_native *out);

/** A number that no other stream of this process ever had. */
DSDEF DS_MUST_USE ds_result ds_stream_get_id(ds_stream stream, uint64_t *out);
/** The stream's device. */
DSDEF DS_MUST_USE ds_result ds_stream_get_device(ds_stream stream, ds_device *out);
/** DS_STREAM_BLOCKING or DS_STREAM_NON_BLOCKING. The legacy and per-thread streams count as
    blocking. */
DSDEF DS_MUST_USE ds_result ds_stream_get_flags(ds_stream stream, unsigned *out);
/** The priority in effect and the one asked for; either pointer may be NULL. */
DSDEF DS_MUST_USE ds_result ds_stream_get_priority(ds_stream stream, int *out_effective,
                                                   int *out_requested);
/** The stream's label, copied into out (at most size bytes, always terminated). */
DSDEF DS_MUST_USE ds_result ds_stream_get_label(ds_stream stream, char *out, size_t size);
/** Gives the stream another label, for messages, reports and timelines, of which 255 characters
    are copied; NULL: none. On a GPU, NVIDIA's tools get it too. */
DSDEF DS_MUST_USE ds_result ds_stream_set_label(ds_stream stream, const char *label);
/** 1 when both handles name the same queue of the same device (a wrapper equals what it wraps),
    else 0; an invalid handle equals nothing. */
DSDEF int ds_stream_equal(ds_stream a, ds_stream b);

/* ---- the current stream ---------------------------------------------------------------------- */

enum {
    /** refuse a stream whose device is not the current one (CuPy's rule): DS_ERR_DEVICE_MISMATCH */
    DS_PUSH_STRICT = 1,
    /** on entry the pushed stream waits for the stream that was current on its device */
    DS_PUSH_WAIT_PREV = 2,
    /** on exit the stream restored on that device waits for the pushed one */
    DS_POP_WAIT_BACK = 4
};

/** The thread's current stream on a device; a new thread begins with ds_stream_get_default. If it
    was destroyed meanwhile, the handle comes back all the same and every use of it says
    DS_ERR_INVALID_HANDLE. */
DSDEF DS_MUST_USE ds_result ds_stream_get_current(ds_device device, ds_stream *out);
/** Makes a stream current on its device and that device current for the thread (torch). flags:
    DS_PUSH_STRICT or 0. *out_previous (may be NULL) is the stream that was current on that
    device. */
DSDEF DS_MUST_USE ds_result ds_stream_set_current(ds_stream stream, unsigned flags,
                                                  ds_stream *out_previous);
/** As ds_stream_set_current, and remembers the current device and that device's current stream;
    ds_stream_pop restores exactly that state, whatever was used in between. A zeroed stream
    pushes a frame that changes nothing. A push that fails leaves no frame. flags: DS_PUSH_*,
    DS_POP_WAIT_BACK. */
DSDEF DS_MUST_USE ds_result ds_stream_push(ds_stream stream, unsigned flags);
/** Undoes the thread's latest ds_stream_push. DS_ERR_ILLEGAL_STATE without one, or when a device
    was pushed after it. */
DSDEF DS_MUST_USE ds_result ds_stream_pop(void);

/** State of DS_STREAM_SCOPE and DS_DEVICE_SCOPE. */
typedef struct ds_scope {
    int pushed; /**< 1: to be popped */
    int once;   /**< 1: the block is still to run */
} ds_scope;

/** Enters a scope; used by DS_STREAM_SCOPE. */
DSDEF ds_scope ds_stream_scope_enter(ds_stream stream, unsigned flags);
/** Leaves it; used by DS_STREAM_SCOPE. */
DSDEF void ds_stream_scope_leave(ds_scope *scope);
/** Enters a scope; used by DS_DEVICE_SCOPE. */
DSDEF ds_scope ds_device_scope_enter(ds_device device);
/** Leaves it; used by DS_DEVICE_SCOPE. */
DSDEF void ds_device_scope_leave(ds_scope *scope);

#endif
