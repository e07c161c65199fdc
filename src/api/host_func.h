/* api/host_func.h - host functions and callbacks on streams.

   Declares the functions that enqueue a call of user code on a stream.

   Threads: the functions run on threads of the library and may call only functions that are
   marked "Callable anywhere". If the enqueuing call fails, dtor_fn runs on the caller's
   thread. */
#ifndef DS__API_HOST_FUNC_H
#define DS__API_HOST_FUNC_H

#include "stream.h"

/* ---- host functions -------------------------------------------------------------------------- */

/** Runs on a thread of devstream's. */
typedef void (*ds_host_fn)(void *user);
/** Gets the stream, DS_OK or the failure of the stream, and the user's pointer. */
typedef void (*ds_callback_fn)(ds_stream stream, ds_result status, void *user);

/** Runs fn(user) once when the stream reaches it; later work on the stream waits for it, other
    streams do not (but CUDA may run the host functions of a device one after another, so that
    one that blocks holds up those of others). Skipped after a failure. dtor_fn(user), when
    given, runs exactly once in every case: after fn and before the stream goes on, when fn is
    skipped, and also when this call fails (then before it returns, on the caller's thread). */
DSDEF DS_MUST_USE ds_result ds_stream_launch_host_func(ds_stream stream, ds_host_fn fn, void *user,
                                                       ds_host_fn dtor_fn);
/** Runs fn(stream, status, user) exactly once when the stream reaches it, after a failure too;
    else as ds_stream_launch_host_func. When the call itself fails, fn does not run, dtor_fn does.
    */
DSDEF DS_MUST_USE ds_result ds_stream_add_callback(ds_stream stream, ds_callback_fn fn, void *user,
                                                   ds_host_fn dtor_fn);

#endif
