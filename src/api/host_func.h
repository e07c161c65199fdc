/* api/host_func.h - host functions and callbacks on streams.

   Declares the functions that enqueue a call of user code on a stream.

   Threads: the functions run on threads of the library and may only call functions marked "Callable
   anywhere". If the enqueuing call fails, dtor_fn runs on the caller's thread. */
#ifndef DS__API_HOST_FUNC_H
#define DS__API_HOST_FUNC_H

#include "stream.h"

/* ---- host functions -------------------------------------------------------------------------- */

/** Host function; runs on a thread of devstream. */
typedef void (*ds_host_fn)(void *user);
/** Callback; receives the stream, DS_OK or the stream's failure, and the user pointer. */
typedef void (*ds_callback_fn)(ds_stream stream, ds_result status, void *user);

/** Enqueues fn(user), which runs once in stream order. Later work on the stream waits for fn; other
    streams do not. CUDA may run the host functions of a device one after another, so a blocking
    function may delay other streams. After a failure of the stream, fn is skipped. If dtor_fn is
    set, dtor_fn(user) runs exactly once: after fn and before the stream continues; if fn is
    skipped, ds_shutdown runs it at the latest. If the call fails, dtor_fn runs on the caller's
    thread before the call returns. */
DSDEF DS_MUST_USE ds_result ds_stream_launch_host_func(ds_stream stream, ds_host_fn fn, void *user,
                                                       ds_host_fn dtor_fn);
/** Closure; receives the payload. Returns 0, or a status of the program for a failure. */
typedef int (*ds_closure_fn)(void *payload);
/** Largest payload of a closure that is copied, in bytes. */
#define DS_CLOSURE_PAYLOAD_MAX 256

/** Enqueues fn(payload), which runs once in stream order on a thread that runs kernels. On a CPU
    device the call costs what the launch of a kernel costs, some tens of nanoseconds, and no other
    thread is woken for the function; a host function costs some microseconds. In return, fn holds a
    worker: it must not wait for work of a stream, and should not block. On a GPU, and on a stream
    that captures, the closure is a host function. A status other than 0 makes the device fail, as
    that of a kernel does; a host function cannot, so there the status is logged as an error.

    size 0: fn gets `payload` itself. Otherwise the first `size` bytes at `payload` are copied, and
    fn gets the address of the copy, which is aligned to 16 bytes and valid until dtor_fn returns.
    After a failure of the stream, fn is skipped. If dtor_fn is set, dtor_fn(payload) runs exactly
    once: after fn and before the stream continues, also if fn was skipped; in a graph, when the
    graph and its executables are gone. If the call fails, dtor_fn runs on the caller's thread
    before the call returns, with `payload` as it was given. Does not block.
    DS_ERR_INVALID_VALUE: fn is NULL, size is above DS_CLOSURE_PAYLOAD_MAX, or payload is NULL
    though size is not 0. */
DSDEF DS_MUST_USE ds_result ds_stream_launch_closure(ds_stream stream, ds_closure_fn fn,
                                                     void *payload, size_t size,
                                                     ds_host_fn dtor_fn);
/** Enqueues fn(stream, status, user), which runs exactly once in stream order, also after a failure
    of the stream. While fn runs, CUDA may block the calls of all other threads (FBGEMM#5462), so
    fn must not wait for another thread. Other rules as for ds_stream_launch_host_func, which has no
    such limit. If the call fails, only dtor_fn runs. */
DSDEF DS_MUST_USE ds_result ds_stream_add_callback(ds_stream stream, ds_callback_fn fn, void *user,
                                                   ds_host_fn dtor_fn);

#endif
