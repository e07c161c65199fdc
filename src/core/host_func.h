/* core/host_func.h - host functions and callbacks.

   Enqueues functions of the user that run on the host in the order of a stream
   (ds_stream_launch_host_func, ds_stream_add_callback). ds__refuse_payload ends the payload of a
   call that was refused, also for graph nodes and wrapped streams.

   Invariants: the destructor of a payload runs exactly once. If the call succeeded, the driver
   or the graph runs it, else ds__refuse_payload before the call returns. While the destructor
   runs, it may call what user code may call (ds__user_code_begin).
   Locks: none. ds__refuse_payload expects no lock from its caller, since it runs user code.
   Threads: any for the calls. The enqueued function runs later, on a thread that the driver
   chooses. */
#ifndef DS__CORE_HOST_FUNC_H
#define DS__CORE_HOST_FUNC_H

#include "../base/observe.h"
#include "init.h"
#include "stream.h"
#include "submit.h"

static ds_result ds__host_op(int kind, ds_stream stream, ds_host_fn fn, ds_callback_fn callback,
                             void *user, ds_host_fn dtor_fn) {
    DS__REQUIRE(fn || callback, "the function is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__op op = ds__op_init(kind);
    op.u.host.fn = fn;
    op.u.host.callback = callback;
    op.u.host.user = user;
    op.u.host.dtor_fn = dtor_fn;
    op.u.host.stream = stream.id;
    ds__handed_over(DS__SEEN_RELEASE, user, stream.id);
    ds_result r = ds__stream_submit(s, &op);
    ds__stream_unpin(s);
    return r;
}

/* Runs the destructor of a payload if the call was refused, so that it runs exactly once. */
static ds_result ds__refuse_payload(ds_result r, void *user, ds_host_fn dtor_fn) {
    if (r >= 0 || !dtor_fn)
        return r;
    ds__kept_error refusal; /* the destructor may make calls that fail */
    ds__error_save(&refusal);
    ds__user_code outer = ds__user_code_begin();
    dtor_fn(user);
    ds__user_code_end(&outer);
    ds__error_restore(&refusal);
    return r;
}

DSDEF ds_result(ds_stream_launch_host_func)(ds_stream stream, ds_host_fn fn, void *user,
                                            ds_host_fn dtor_fn) {
    ds_result r = ds__api_enter("ds_stream_launch_host_func");
    if (r == DS_OK)
        r = ds__host_op(DS__OP_HOST, stream, fn, NULL, user, dtor_fn);
    return ds__refuse_payload(r, user, dtor_fn);
}

DSDEF ds_result(ds_stream_add_callback)(ds_stream stream, ds_callback_fn fn, void *user,
                                        ds_host_fn dtor_fn) {
    ds_result r = ds__api_enter("ds_stream_add_callback");
    if (r == DS_OK)
        r = ds__host_op(DS__OP_CALLBACK, stream, NULL, fn, user, dtor_fn);
    return ds__refuse_payload(r, user, dtor_fn);
}

#endif
