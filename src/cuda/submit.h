/* cuda/submit.h - dispatch of stream work.

   Enqueues an operation on a stream by its kind (ds__cuda_put), whether the stream captures or not.
   Holds the records of events and the waits for them (ds__cuda_record, ds__cuda_wait,
   ds__cuda_external).

   Invariants: ds__cuda_put does not update the shadow graph of a capture; capture_op.h does. An
   external record or wait uses CUDA's external flag only if the stream captures, because CUDA
   accepts the flag only there. A record outside devstream's captures sets the event's `capture` to
   0.
   Locks: none of its own; launches, host functions and waits between streams take theirs.
   ds__cuda_put is called with and without the capture lock. For copies and fills the caller holds
   no lock, because DS__OP_BLOCKS waits for the stream. For launches and uploads of graphs the core
   holds the executable's lock, or the graph's lock during its instantiation.
   Threads: any. */
#ifndef DS__CUDA_SUBMIT_H
#define DS__CUDA_SUBMIT_H

#include "types.h"
#include "call.h"
#include "host_func.h"
#include "copy.h"
#include "launch.h"
#include "timeline.h"
#include "value.h"
#include "graph_exec.h"

static ds_result ds__cuda_record(const ds__cuda_stream *s, ds__cuda_event *e) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = DS__RT(scope, cudaEventRecord, (e->event, s->handle));
    if (DS__UNLIKELY(r == DS_OK && atomic_load_explicit(&e->capture, memory_order_relaxed)))
        atomic_store(&e->capture, 0);
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_wait(const ds__cuda_stream *s, const ds__cuda_event *e) {
    return ds__cuda_wait_mark(s, e->event, atomic_load_explicit(&e->capture, memory_order_relaxed));
}

/* Enqueues an external record or wait. Outside of captures it is a normal one, because CUDA accepts
   the flag only in a capture. */
static ds_result ds__cuda_external(const ds__cuda_stream *s, ds__cuda_event *e, int record) {
    ds__cuda_scope scope;
    int capturing = 0;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    if (r == DS_OK && capturing)
        r = record
                ? DS__RT(scope, cudaEventRecordWithFlags,
                         (e->event, s->handle, cudaEventRecordExternal))
                : DS__RT(scope, cudaStreamWaitEvent, (s->handle, e->event, cudaEventWaitExternal));
    ds__cuda_scope_end(&scope);
    if (r < 0 || capturing)
        return r;
    return record ? ds__cuda_record(s, e) : ds__cuda_wait(s, e);
}

/* Enqueues an operation on a stream, whether the stream captures or not. */
static inline ds_result ds__cuda_put(ds__cuda_stream *s, const ds__op *op) {
    switch (op->kind) {
    case DS__OP_KERNEL:
        return ds__cuda_launch(s, op);
    case DS__OP_COPY:
        return ds__cuda_submit_copy(s, op);
    case DS__OP_FILL:
        return ds__cuda_submit_fill(s, op);
    case DS__OP_VALUES:
        return ds__cuda_values(s, op);
    case DS__OP_COPY_BATCH:
        return ds__cuda_submit_copy_batch(s, op);
    case DS__OP_RECORD:
        return ds__cuda_record(s, op->u.event.event);
    case DS__OP_WAIT:
        return ds__cuda_wait(s, op->u.event.event);
    case DS__OP_WAIT_STREAM:
        return ds__cuda_wait_stream(s, op->u.wait.stream);
    case DS__OP_HOST:
    case DS__OP_CALLBACK:
        return ds__cuda_submit_host(s, op);
    case DS__OP_CLOSURE: /* becomes a host function */
        return DS__CHANGED;
    case DS__OP_GRAPH:
        return ds__cuda_launch_graph(s, op);
    case DS__OP_UPLOAD:
        return ds__cuda_upload(s, op->u.graph.exec);
    case DS__OP_EXTERNAL_RECORD:
    case DS__OP_EXTERNAL_WAIT:
        return ds__cuda_external(s, op->u.event.event, op->kind == DS__OP_EXTERNAL_RECORD);
    default: /* DS__OP_REMOTE */
        return ds__cuda_submit_remote(s, op);
    }
}

#endif
