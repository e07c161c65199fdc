/* cuda/capture_query.h - capture queries and dependencies, submit entry.

   Implements the entries that query a capture, read or change a stream's dependencies in it, and
   set the thread's capture mode. Ends captures without a call of the user
   (ds__cuda_capture_abandon, ds__cuda_stop_capture). Also holds the submit entry (ds__cuda_submit).

   Invariants: ds__cuda_submit takes the direct path only if no capture is open and the operation is
   not bound to one (DS__OP_INSIDE). An end in a thread that did not begin the capture is an error
   unless the capture is relaxed, but CUDA ends the capture. Only the per-thread stream of another
   thread keeps its capture in CUDA at shutdown, when devstream's records of it are dropped.
   Locks: All entries except submit and capture_mode take the capture lock and call CUDA under it;
   ds__cuda_active and ds__cuda_give_up expect it. Streams of an abandoned capture end, and
   ds__capture_over runs, after its release. ds__cuda_submit takes locks only as capture_op.h and
   submit.h say.
   Threads: any. capture_mode changes the mode of the calling thread only. ds__cuda_capture_abandon
   runs during shutdown. */
#ifndef DS__CUDA_CAPTURE_QUERY_H
#define DS__CUDA_CAPTURE_QUERY_H

#include "types.h"
#include "call.h"
#include "graph_types.h"
#include "capture_info.h"
#include "graph_read.h"
#include "submit.h"
#include "capture_op.h"
#include "capture.h"
#include "activity.h"

static ds_capture_status ds__cuda_status_of(enum cudaStreamCaptureStatus status) {
    if (status == cudaStreamCaptureStatusNone)
        return DS_CAPTURE_NONE;
    return status == cudaStreamCaptureStatusActive ? DS_CAPTURE_ACTIVE : DS_CAPTURE_INVALIDATED;
}

static ds_result ds__cuda_capture_query(void *stream, ds_capture_info *out) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    ds__cuda_lock();
    r = ds__cuda_find_capture(&scope, s, &now, &c);
    if (r == DS_OK) {
        out->status = ds__cuda_status_of(now.status);
        if (c && out->status == DS_CAPTURE_ACTIVE) {
            out->mode = c->mode;
            out->id = c->id;
            out->graph = c->graph;
            out->begun = c->begun;
            out->dependency_count = now.count;
        }
    }
    ds__cuda_unlock();
    ds__cuda_scope_end(&scope);
    return r;
}

/* Gives the capture of a stream, which must be an active one of devstream. The lock is held. */
static ds_result ds__cuda_active(ds__cuda_scope *scope, ds__cuda_stream *s, ds__cuda_look *now,
                                 ds__capture **out) {
    ds_result r = ds__cuda_find_capture(scope, s, now, out);
    if (r < 0)
        return r;
    if (now->status == cudaStreamCaptureStatusNone)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    if (!*out)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "the capture was begun outside devstream; its graph is unknown");
    return now->status == cudaStreamCaptureStatusActive
               ? DS_OK
               : ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, *out, 0, "");
}

/* Lists at most `room` nodes on which the stream's next operation will depend. *out_count: all of
   them. The lock is held. */
static ds_result ds__cuda_list_after(const ds__cuda_scope *scope, const ds__cuda_look *now,
                                     ds__body *b, ds_graph_node *out, size_t room,
                                     size_t *out_count) {
    size_t count = now->count < room ? now->count : room;
    cudaGraphNode_t *after = ds__host_alloc((count + 1) * sizeof *after);
    if (!after)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu dependencies", count);
    if (count)
        memcpy(after, now->after, count * sizeof *after);
    ds_result r = ds__cuda_read_nodes(scope, b);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t index = ds__cuda_index(b, after[i], b->count);
        if (index == UINT32_MAX)
            r = ds__fail(DS_ERR_DRIVER, "the stream depends on a node that is not in the graph");
        else
            out[i].id = (uint64_t)b->serial << 32 | (index + 1u);
    }
    ds__host_free(after);
    if (r == DS_OK)
        *out_count = now->count;
    return r;
}

static ds_result ds__cuda_capture_dependencies(void *stream, ds_graph_node *out, size_t room,
                                               size_t *out_count) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    ds__cuda_lock();
    r = ds__cuda_active(&scope, s, &now, &c);
    if (r == DS_OK)
        r = ds__cuda_list_after(&scope, &now, c->body, out, room, out_count);
    ds__cuda_unlock();
    ds__cuda_scope_end(&scope);
    return r;
}

/* Sets the nodes on which the stream's next operation will depend (set), or adds to them. The lock
   is held. */
static ds_result ds__cuda_update_after(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       const ds__body *b, const ds_graph_node *nodes, size_t count,
                                       int set) {
    cudaGraphNode_t *after = ds__host_alloc((count + 1) * sizeof *after);
    ds_result r = after ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu nodes", count);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t index = (uint32_t)nodes[i].id - 1;
        if (!nodes[i].id || nodes[i].id >> 32 != b->serial || index >= b->count)
            r = ds__fail(DS_ERR_INVALID_VALUE,
                         "node %zu does not belong to the graph that is being captured", i);
        else
            after[i] = ds__cuda_native(b->node[index]);
    }
    if (r == DS_OK)
        r = ds__cuda_set_after(scope, s, after, count, set);
    ds__host_free(after);
    return r;
}

static ds_result ds__cuda_capture_update(void *stream, const ds_graph_node *nodes, size_t count,
                                         int set) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    ds__cuda_lock();
    r = ds__cuda_active(&scope, s, &now, &c);
    if (r == DS_OK)
        r = ds__cuda_update_after(&scope, s, c->body, nodes, count, set);
    ds__cuda_unlock();
    ds__cuda_scope_end(&scope);
    return r;
}

/* Exchanges the capture mode of the thread in CUDA. cudart's call creates the context of the
   current device, so it runs on a device that has one. If no device has one, no capture is open,
   and the next scope of the thread makes the exchange. */
static ds_result ds__cuda_capture_mode(ds_capture_mode mode) {
    enum cudaStreamCaptureMode native = (enum cudaStreamCaptureMode)mode;
    ds__cuda_scope scope;
    int device = ds__cuda_active_device();
    if (device < 0) {
        ds__cuda_mode_owed = (int)mode + 1;
        return DS_OK;
    }
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaThreadExchangeStreamCaptureMode, (&native));
    /* other code may have exchanged the mode without devstream: the core restores this one */
    if (r == DS_OK)
        ds__tls.mode = (ds_capture_mode)native;
    ds__cuda_scope_end(&scope);
    return r;
}

/* Ends a capture in CUDA and destroys its graph. CUDA ends the capture also if it refuses this
   thread (docs/gpu, P9). Returns 1 if CUDA does not capture any more. Inside of a scope of the
   capture's device; the lock is held. */
static int ds__cuda_try_end(const ds__cuda_scope *scope, const ds__capture *c) {
    const ds__cuda_origin *o = c->origin;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t code = cudaErrorUnknown;
    cudaGraph_t graph = NULL;
    if (o->per_thread && o->thread != ds__cuda_this_thread())
        return 0;
    for (int tries = 0; tries < 2 && code == cudaErrorUnknown; tries++)
        code = DS__RT_CODE(*scope, cudaStreamEndCapture, (o->handle, &graph));
    if (!c->into)
        ds__cuda_drop_graph(scope, graph);
    if (code == cudaSuccess)
        return 1;
    code = DS__RT_CODE(*scope, cudaStreamIsCapturing, (o->handle, &status));
    return code != cudaSuccess || status == cudaStreamCaptureStatusNone;
}

/* Drops the records of a capture, as ds__cuda_capture_over. ended: CUDA does not capture into its
   graph any more. Otherwise the graph is left to CUDA, because its destruction is undefined. The
   lock is held. */
static ds__cuda_stream *ds__cuda_give_up(ds__capture *c, int ended) {
    if (!c->into || !ended)
        ((ds__cuda_graph *)c->body->native)->graph = NULL;
    return ds__cuda_capture_over(c);
}

/* Ends a capture at shutdown. */
static void ds__cuda_capture_abandon(ds__capture *c) {
    ds__cuda_scope scope;
    const ds__cuda_origin *o = c->origin;
    ds__cuda_enter_or_not(&scope, o->device);
    ds__cuda_lock();
    int ended = ds__cuda_try_end(&scope, c);
    ds__cuda_stream *streams = ds__cuda_give_up(c, ended);
    ds__cuda_unlock();
    ds__cuda_scope_end(&scope);
    if (!ended)
        ds__log_warn(
            "capture #%llu remains open in CUDA: it captures the per-thread stream of another "
            "thread",
            (unsigned long long)c->id);
    ds__cuda_end_siblings(streams);
}

/* Ends the captures that began on a native stream, which is about to end. destroyed: the caller
   destroys the stream next, which ends the captures in CUDA. */
static void ds__cuda_stop_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                  int destroyed) {
    for (;;) {
        ds__cuda_stream *streams = NULL;
        ds__cuda_lock();
        ds__capture *c = ds__g.captures;
        while (c && (c->driver->type != DS_DEVICE_CUDA || !ds__cuda_began_on(c, s)))
            c = c->next;
        if (c)
            streams = ds__cuda_give_up(c, ds__cuda_try_end(scope, c) || destroyed);
        ds__cuda_unlock();
        if (!c)
            return;
        ds__capture_over(c, 1);
        ds__cuda_end_siblings(streams);
    }
}

static ds_result ds__cuda_submit(void *stream, const ds__op *op) {
    int slowly = ds__captures_open() | atomic_load_explicit(&ds__activity.on, memory_order_relaxed);
    return DS__LIKELY(!slowly && !(op->flags & DS__OP_INSIDE)) ? ds__cuda_put(stream, op)
                                                               : ds__cuda_submit_noted(stream, op);
}

#endif
