/* core/closure.h - closures on workers.

   Enqueues a function with a payload of its own (ds_stream_launch_closure). The CPU driver runs it
   on a worker, as it runs kernels (DS__OP_CLOSURE). CUDA has no workers, and a capture needs a node
   that may run more than once: there the closure becomes a host function with a copy of the payload
   (ds__boxed).

   Invariants: the destructor runs exactly once. If the call succeeded, the driver or the graph runs
   it, else the call does before it returns. The payload is aligned to 16 bytes while the function
   and the destructor use it.
   Locks: none. No lock is held while the destructor runs.
   Threads: any for the call. The function runs later, on a thread that the driver chooses. */
#ifndef DS__CORE_CLOSURE_H
#define DS__CORE_CLOSURE_H

#include "init.h"
#include "host_func.h"
#include "stream.h"
#include "submit.h"

/* A closure as the argument of a host function. */
typedef struct ds__boxed {
    ds_closure_fn fn;
    ds_host_fn dtor_fn;
    void *user; /* the payload, if its bytes are not copied */
    size_t size;
    ds_allocator allocator; /* of this record, which a graph may keep longer than ds_shutdown */
    _Alignas(16) char payload[];
} ds__boxed;

static void *ds__boxed_payload(ds__boxed *b) {
    return b->size ? b->payload : b->user;
}

static void ds__boxed_run(void *boxed) {
    ds__boxed *b = boxed;
    char text[120];
    int status = b->fn(ds__boxed_payload(b));
    if (!status)
        return;
    snprintf(text, sizeof text, "a closure returned %d; as a host function it cannot fail a device",
             status);
    ds__log_write(DS_LOG_ERROR, DS_ERR_FAILED, text);
}

static void ds__boxed_deinit(void *boxed) {
    ds__boxed *b = boxed;
    ds_allocator allocator = b->allocator;
    if (b->dtor_fn)
        b->dtor_fn(ds__boxed_payload(b));
    ds__release_to(&allocator, b);
}

/* Enqueues a closure as a host function. */
static ds_result ds__closure_box(ds_stream stream, const ds__op *closure) {
    ds__boxed *b = ds__host_alloc(sizeof *b + closure->u.closure.size);
    if (!b)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a closure");
    b->fn = closure->u.closure.fn;
    b->dtor_fn = closure->u.closure.dtor_fn;
    b->user = closure->u.closure.payload;
    b->size = closure->u.closure.size;
    b->allocator = ds__allocator;
    if (b->size)
        memcpy(b->payload, closure->u.closure.payload, b->size);
    ds_result r = ds__host_op(DS__OP_HOST, stream, ds__boxed_run, NULL, b, ds__boxed_deinit);
    if (r < 0)
        ds__host_free(b); /* the caller runs the destructor */
    return r;
}

static ds_result ds__closure_launch(ds_stream stream, ds_closure_fn fn, void *payload, size_t size,
                                    ds_host_fn dtor_fn) {
    DS__REQUIRE(fn, "the function is NULL");
    DS__REQUIRE(size <= DS_CLOSURE_PAYLOAD_MAX, "a payload of %zu bytes; at most %d are allowed",
                size, DS_CLOSURE_PAYLOAD_MAX);
    DS__REQUIRE(payload || !size, "payload is NULL, but size is %zu", size);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__op op = ds__op_init(DS__OP_CLOSURE | DS__OP_OUTSIDE << 8);
    op.u.closure.fn = fn;
    op.u.closure.dtor_fn = dtor_fn;
    op.u.closure.payload = payload;
    op.u.closure.size = size;
    ds__handed_over(DS__SEEN_RELEASE, payload, stream.id);
    ds_result r = ds__stream_submit(s, &op);
    ds__stream_unpin(s);
    return DS__UNLIKELY(r == DS__CHANGED) ? ds__closure_box(stream, &op) : r;
}

DSDEF ds_result(ds_stream_launch_closure)(ds_stream stream, ds_closure_fn fn, void *payload,
                                          size_t size, ds_host_fn dtor_fn) {
    ds_result r = ds__api_enter_inline("ds_stream_launch_closure");
    if (DS__LIKELY(r == DS_OK))
        r = ds__closure_launch(stream, fn, payload, size, dtor_fn);
    return ds__refuse_payload(r, payload, dtor_fn);
}

#endif
