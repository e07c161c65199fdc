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
/** Enqueues fn(stream, status, user), which runs exactly once in stream order, also after a failure
    of the stream. While fn runs, CUDA may block the calls of all other threads (FBGEMM#5462), so
    fn must not wait for another thread. Other rules as for ds_stream_launch_host_func, which has no
    such limit. If the call fails, only dtor_fn runs. */
DSDEF DS_MUST_USE ds_result ds_stream_add_callback(ds_stream stream, ds_callback_fn fn, void *user,
                                                   ds_host_fn dtor_fn);

#endif
