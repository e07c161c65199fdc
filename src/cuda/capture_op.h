/* cuda/capture_op.h - stream work while a capture is open.

   Enqueues work while a capture is open (ds__cuda_submit_watched). In a capture of devstream,
   ds__cuda_put_captured enqueues the operation, and ds__cuda_note enters its node into the shadow
   graph. In a capture that devstream did not begin, ds__cuda_host_in_capture attaches the data of a
   host function to CUDA's graph.

   Invariants: A refusal by devstream (ds__cuda_refuse) leaves the capture valid. A failure in
   ds__cuda_note keeps the operation and the error text; the node stays of an unknown kind. Objects
   kept under DS__CUDA_NEW get a node, or DS__CUDA_NOWHERE, before the capture lock is released.
   Streams made for work on another device live until the capture ends. A capture refuses pageable
   memory unless the user has declared it stable.
   Locks: ds__cuda_submit_watched loads kernels first, then takes the capture lock and holds it
   across the driver calls of captured work. Other work is enqueued after its release. The functions
   that change a capture or its graph expect the lock. ds__cuda_refuse takes it unless the thread
   holds it; ds__cuda_host_in_capture takes it. ds__cuda.mutex, ds__cuda.lock, `host_lock` and a
   stream's lock may be taken under it.
   Threads: any. The legacy stream cannot capture and takes the ordinary path. */
#ifndef DS__CUDA_CAPTURE_OP_H
#define DS__CUDA_CAPTURE_OP_H

#include "types.h"
#include "call.h"
#include "stream.h"
#include "host_func.h"
#include "copy_plain.h"
#include "copy.h"
#include "module.h"
#include "launch.h"
#include "graph_types.h"
#include "capture_info.h"
#include "graph_read.h"
#include "graph_keep.h"
#include "graph_exec.h"
#include "submit.h"

static const char *const ds__cuda_pageable =
    "each launch would access pageable memory; use ds_pinned_alloc, ds_pinned_register, or "
    "DS_COPY_HOST_STABLE for stable memory";

/* Refuses an operation by a rule of devstream. The capture stays valid. */
static ds_result ds__cuda_refuse(const ds__cuda_scope *scope, const char *rule) {
    int locked = ds__tls.capture_locked;
    if (!locked)
        ds__cuda_lock();
    ds__capture *c = ds__g.captures;
    while (c && (c->driver->type != DS_DEVICE_CUDA || c->id != scope->capture))
        c = c->next;
    ds_result r = c ? ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0, rule)
                    : ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                               "%s; the capture, begun outside devstream, continues", rule);
    if (!locked)
        ds__cuda_unlock();
    return r;
}

static ds_result ds__cuda_refuse_pageable(const ds__cuda_scope *scope) {
    return ds__cuda_refuse(scope, ds__cuda_pageable);
}

/* Captures the host function of a task into a graph of another library, which keeps the user object
   with the task. */
static ds_result ds__cuda_launch_task(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                      ds__cuda_task *task, cudaGraph_t graph,
                                      cudaUserObject_t object) {
    ds_result r = DS__RT(*scope, cudaLaunchHostFunc, (s->handle, ds__cuda_host_node, task));
    if (r < 0) {
        if (task->payload)
            task->payload->dtor_fn = NULL; /* before the release, which may drop the payload */
        ds__cuda_keep_unref(scope, object);
        return r;
    }
    r = DS__RT(*scope, cudaGraphRetainUserObject, (graph, object, 1, cudaGraphUserObjectMove));
    /* the node exists and will run the task, which stays, without work, until the driver stops */
    if (r < 0)
        atomic_store(&task->fn, NULL);
    return r;
}

/* Captures a host function in a capture that devstream did not begin, or that another thread has
   begun during the call. The graph keeps the data of the function. Returns DS__CHANGED, and does
   nothing, if the stream does not capture any more. After a failure, the caller runs the
   destructor. Takes the lock, so that no other thread ends a capture of devstream between the
   launch and the retain. */
static ds_result ds__cuda_host_in_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                          const ds__op *op) {
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_look now;
    ds__node n;
    ds__object *task = NULL;
    cudaUserObject_t object = NULL;
    memset(&n, 0, sizeof n);
    n.kind = DS_NODE_HOST;
    n.op.u.host.fn = op->u.host.fn;
    n.op.u.host.user = op->u.host.user;
    ds__cuda_lock();
    ds_result r = ds__cuda_look_at(scope, s, &now);
    if (r == DS_OK && now.status == cudaStreamCaptureStatusNone)
        r = DS__CHANGED;
    if (r == DS_OK && op->u.host.dtor_fn) {
        n.payload = ds__object_create(op->u.host.user, op->u.host.dtor_fn);
        if (!n.payload)
            r = DS_ERR_OUT_OF_MEMORY;
    }
    if (r == DS_OK) {
        task = ds__cuda_task_create(&n);
        if (!task || !ds__cuda_own_add(&owns, DS__CUDA_NOWHERE, task))
            r = DS_ERR_OUT_OF_MEMORY;
    }
    if (r == DS_OK)
        r = ds__cuda_keep_create(scope, &owns, &object);
    if (r == DS_OK)
        r = ds__cuda_launch_task(scope, s, task->user, now.graph, object);
    ds__cuda_unlock();
    if (r < 0 && n.payload)
        n.payload->dtor_fn = NULL;
    ds__object_unref(n.payload);
    ds__object_unref(task);
    ds__cuda_own_end(&owns);
    return r;
}

/* Enters the stream's last node into the shadow graph, and returns its index, or UINT32_MAX.
   made_one: the operation has made exactly one node. If the shadow graph lacks one node, it is this
   one, and CUDA is not asked for all nodes: the time of a capture would grow with the square of
   their number. */
static uint32_t ds__cuda_enter_last(const ds__cuda_scope *scope, ds__body *b, cudaGraphNode_t last,
                                    int made_one) {
    const ds__cuda_graph *g = b->native;
    size_t count = 0;
    ds_result r = made_one ? DS__RT(*scope, cudaGraphGetNodes, (g->graph, NULL, &count)) : DS_OK;
    if (r == DS_OK && count == b->count + g->setter_count + (size_t)1) {
        r = ds__cuda_append_unknown(b, last);
        if (r == DS_OK)
            r = ds__cuda_read_after(scope, b, b->count - 1);
    } else if (r == DS_OK) {
        r = ds__cuda_read_nodes(scope, b);
    }
    return r == DS_OK ? ds__cuda_index(b, last, b->count) : UINT32_MAX;
}

/* Gives a node of unknown kind the work of node n, which takes its place. */
static void ds__cuda_replace_unknown(ds__body *b, uint32_t index, ds__node *n) {
    ds__node *old = b->node[index];
    n->native = old->native;
    n->deps = old->deps;
    n->dep_count = old->dep_count;
    n->dep_room = old->dep_room;
    old->deps = NULL;
    b->node[index] = n;
    ds__node_destroy(old);
}

/* Enters the node of an operation, the stream's last one, into the shadow graph. Its work is that
   of `made`, which the function takes over, else of `op`. Without both, or after a failure, the
   node stays of unknown kind. Keeps the error text. Returns the index, or UINT32_MAX if the node is
   not found. The lock is held. */
static uint32_t ds__cuda_note(const ds__cuda_scope *scope, const ds__cuda_stream *s, ds__capture *c,
                              const ds__op *op, ds__node *made) {
    ds__body *b = c->body;
    ds__cuda_look now;
    uint32_t known = b->count;
    uint32_t index = UINT32_MAX;
    char before[sizeof ds__tls.error];
    memcpy(before, ds__tls.error, sizeof before);
    cudaError_t code = ds__cuda_get_info(scope, s->handle, &now);
    if (code == cudaSuccess && now.status == cudaStreamCaptureStatusActive && now.count == 1)
        index = ds__cuda_enter_last(scope, b, now.after[0], op && op->kind != DS__OP_GRAPH);
    if (index != UINT32_MAX && index >= known && b->node[index]->kind == DS_NODE_NATIVE) {
        if (!made && op)
            made = ds__node_create(op, ds_cuda(s->device), s->priority);
        if (made)
            ds__cuda_replace_unknown(b, index, made);
        made = NULL;
    }
    ds__node_destroy(made);
    memcpy(ds__tls.error, before, sizeof before);
    return index;
}

/* Gives the objects under DS__CUDA_NEW the index of their node, or DS__CUDA_NOWHERE. If `r` is an
   error, there is no node, and they are dropped. */
static void ds__cuda_own_settle(ds__cuda_owns *list, uint32_t index, ds_result r) {
    if (r < 0)
        ds__cuda_own_remove(list, DS__CUDA_NEW);
    for (uint32_t i = list->count; i-- > 0 && list->at[i].node == DS__CUDA_NEW;)
        list->at[i].node = index == UINT32_MAX ? DS__CUDA_NOWHERE : index;
}

/* Captures a host function, or a copy or fill of host memory. The lock is held. */
static ds_result ds__cuda_capture_host(ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       ds__capture *c, const ds__op *op) {
    ds__cuda_graph *g = c->body->native;
    uint32_t index = UINT32_MAX;
    ds__node *n = ds__node_create(op, ds_cuda(s->device), s->priority);
    if (!n)
        return DS_ERR_OUT_OF_MEMORY;
    ds__object *task = ds__cuda_task_create(n);
    ds_result r =
        task && ds__cuda_own_add(&g->owns, DS__CUDA_NEW, task) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = DS__RT(*scope, cudaLaunchHostFunc, (s->handle, ds__cuda_host_node, task->user));
    if (r == DS_OK)
        index = ds__cuda_note(scope, s, c, op, n);
    else
        ds__node_discard(n);
    ds__object_unref(task);
    ds__cuda_own_settle(&g->owns, index, r);
    return r;
}

/* Finds the places of all operands of a copy or fill. */
static ds_result ds__cuda_resolve_all(ds__op *op) {
    if (op->kind == DS__OP_FILL)
        return ds__cuda_resolve(op, DS__OP_DST, op->u.fill.dst);
    ds_result r = ds__cuda_resolve(op, DS__OP_DST, op->u.copy.dst);
    return r < 0 ? r : ds__cuda_resolve(op, DS__OP_SRC, op->u.copy.src);
}

/* Captures an operation on memory of another device, on a stream of that device that joins the
   capture. The lock is held. */
static ds_result ds__cuda_capture_elsewhere(ds__cuda_scope *scope, ds__cuda_stream *s,
                                            ds__capture *c, int device, const ds__op *op,
                                            ds_result (*put)(ds__cuda_stream *s,
                                                             const ds__op *op)) {
    ds__cuda_origin *o = c->origin;
    void *native = NULL;
    int priority = 0;
    int share = 0;
    ds_result r = ds__cuda_stream_create(device, DS__STREAM_NEW, DS_STREAM_NON_BLOCKING, &priority,
                                         &share, &native);
    if (r < 0)
        return r;
    ds__cuda_stream *t = native;
    t->sibling = o->streams; /* the stream must live until the capture ends */
    o->streams = t;
    atomic_store(&t->capture, c->id);
    r = ds__cuda_wait_stream(t, s);
    if (r == DS_OK)
        r = put(t, op);
    if (r < 0)
        return r;
    uint32_t index = ds__cuda_note(scope, t, c, op, NULL);
    if (index == UINT32_MAX)
        return ds__cuda_wait_stream(s, t);
    /* the node depends on all nodes on which the next operation would have depended */
    cudaGraphNode_t last = ds__cuda_native(c->body->node[index]);
    return ds__cuda_set_after(scope, s, &last, 1, 1);
}

/* Enqueues a copy between devices in the form of a node that is set later (ds__cuda_copy_params),
   because CUDA does not update one form by another. Memory without access needs the form that
   names the devices; such a node cannot be set. */
static ds_result ds__cuda_copy_between(ds__cuda_stream *s, const ds__op *op) {
    int to = ds__cuda_where(op->places >> DS__OP_DST & 255u);
    int from = ds__cuda_where(op->places >> DS__OP_SRC & 255u);
    int access;
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_copy_access(&scope, op, to, from, &access);
    if (r == DS_OK && access == DS__CUDA_NO_ACCESS)
        r = ds__cuda_move_named(&scope, s->handle, op, to, from);
    else if (r == DS_OK)
        r = ds__cuda_move(&scope, s->handle, op, DS__CUDA_ASK, DS__CUDA_ASK);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Captures a copy or fill of memory of a GPU. The lock is held. */
static ds_result ds__cuda_capture_move(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                       const ds__op *op, unsigned to, unsigned from) {
    unsigned here = DS__AT_DEVICE + (unsigned)s->device;
    ds_result (*put)(ds__cuda_stream * s, const ds__op *op) =
        op->kind == DS__OP_COPY ? ds__cuda_copy_on : ds__cuda_fill;
    if (to >= DS__AT_DEVICE && from >= DS__AT_DEVICE && to != from)
        put = ds__cuda_copy_between;
    if (to != here && from != here)
        return ds__cuda_capture_elsewhere(
            scope, s, c, (int)((from >= DS__AT_DEVICE ? from : to) - DS__AT_DEVICE), op, put);
    ds_result r = put(s, op);
    if (r == DS_OK)
        (void)ds__cuda_note(scope, s, c, op, NULL);
    return r;
}

/* Captures a copy or fill, unless its memory cannot be used in a graph. The lock is held. */
static ds_result ds__cuda_capture_memory(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                         ds__op *op) {
    ds_result r = ds__cuda_resolve_all(op);
    if (r < 0)
        return r;
    unsigned to = (unsigned)ds__place_of(op, DS__OP_DST);
    unsigned from =
        op->kind == DS__OP_COPY ? (unsigned)ds__place_of(op, DS__OP_SRC) : DS__AT_PINNED;
    if (to == DS__AT_PAGEABLE || from == DS__AT_PAGEABLE)
        return ds__cuda_refuse_pageable(scope);
    if (to == DS__AT_OTHER || from == DS__AT_OTHER)
        return ds__cuda_refuse(
            scope, "a copy between a GPU and a device of the CPU driver cannot be captured");
    op->flags = (uint8_t)(op->flags & ~(unsigned)DS__OP_BLOCKS);
    if (!ds__cuda_on_gpu(to) && !ds__cuda_on_gpu(from))
        return ds__cuda_capture_host(scope, s, c, op);
    return ds__cuda_capture_move(scope, s, c, op, to, from);
}

/* Captures the launch of an executable, whose objects the graph keeps. The lock is held. */
static ds_result ds__cuda_capture_launch(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                         ds__capture *c, const ds__op *op) {
    ds__cuda_graph *g = c->body->native;
    ds__cuda_work work;
    if (op->u.graph.body->conditional)
        return ds__cuda_refuse(scope, "a graph with conditional nodes cannot be a child graph");
    uint32_t index = UINT32_MAX;
    cudaGraph_t into = NULL;
    ds_result r = ds__cuda_work_begin(op, &g->owns, &work);
    if (r == DS_OK)
        r = ds__cuda_work_insert(scope, s, &work, &into);
    if (r == DS_OK)
        index = ds__cuda_note(scope, s, c, op, NULL);
    ds__cuda_own_settle(&g->owns, index, into ? DS_OK : r);
    ds__cuda_work_end(s, &work);
    return r;
}

/* Returns 1 if the launch of a kernel is one launch of CUDA, and so one node. */
static int ds__cuda_is_one_launch(const ds__op *op) {
    uint64_t most;
    if (op->u.kernel.grid)
        return 1;
    return ds__cuda_split(op->u.kernel.kernel, op->u.kernel.items, &most) == DS_OK &&
           op->u.kernel.items <= most;
}

/* Enqueues an operation on a stream that a capture of devstream has, and enters its node. The lock
   is held. */
static ds_result ds__cuda_put_captured(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                       const ds__op *given) {
    ds__op op = *given;
    switch (op.kind) {
    case DS__OP_COPY:
    case DS__OP_FILL:
        return ds__cuda_capture_memory(scope, s, c, &op);
    case DS__OP_HOST:
        return ds__cuda_capture_host(scope, s, c, &op);
    case DS__OP_COPY_BATCH:
        return DS__ONE_BY_ONE;
    case DS__OP_UPLOAD:
        return ds__cuda_refuse(scope, "an upload cannot be captured");
    case DS__OP_GRAPH:
        return ds__cuda_capture_launch(scope, s, c, &op);
    default:
        break;
    }
    ds_result r = ds__cuda_put(s, &op);
    if (r < 0)
        return r;
    if (op.kind == DS__OP_RECORD)
        atomic_store(&((ds__cuda_event *)op.u.event.event)->capture, c->id);
    /* the nodes of a launch that was split stay of unknown kind */
    if (op.kind == DS__OP_KERNEL)
        (void)ds__cuda_note(scope, s, c, ds__cuda_is_one_launch(&op) ? &op : NULL, NULL);
    if (op.kind == DS__OP_EXTERNAL_RECORD || op.kind == DS__OP_EXTERNAL_WAIT ||
        op.kind == DS__OP_VALUES)
        (void)ds__cuda_note(scope, s, c, &op, NULL);
    return DS_OK;
}

/* Enqueues an operation if a capture of devstream has the stream. Returns 1 if it was handled; *out
   is the result then. Returns 0 if the stream does not capture in a capture of devstream. Takes the
   lock. */
static int ds__cuda_try_captured(ds__cuda_scope *scope, ds__cuda_stream *s, const ds__op *op,
                                 ds_result *out) {
    ds__cuda_look now;
    ds__capture *c = NULL;
    int handled = 1;
    int library = 0;
    ds__cuda_lock();
    *out = ds__cuda_find_capture(scope, s, &now, &c);
    if (*out == DS_OK) {
        int active = c && now.status == cudaStreamCaptureStatusActive;
        int none = now.status == cudaStreamCaptureStatusNone;
        if (DS__UNLIKELY(ds__op_changed(op, active ? c->id : 0)) && (active || none))
            *out = DS__CHANGED;
        else if (active && op->kind == DS__OP_REMOTE)
            library = 1; /* it may wait for other processes, so the lock is not held */
        else if (active)
            *out = ds__cuda_put_captured(scope, s, c, op);
        else
            handled = 0;
    }
    ds__cuda_unlock();
    if (library)
        *out = ds__cuda_put(s, op);
    return handled;
}

/* Notes the capture of a stream that a wait may have brought into a capture. Takes the capture
   lock. */
static void ds__cuda_note_joined(const ds__cuda_scope *scope, ds__cuda_stream *s) {
    ds__cuda_look now;
    cudaError_t code = ds__cuda_get_info(scope, s->handle, &now);
    if (code != cudaSuccess || now.status != cudaStreamCaptureStatusActive)
        return;
    ds__cuda_lock();
    const ds__capture *c = ds__cuda_capture_of(now.id);
    if (c)
        atomic_store(&s->capture, c->id);
    ds__cuda_unlock();
}

/* Enqueues a wait that may bring the stream into a capture. */
static ds_result ds__cuda_put_wait(const ds__cuda_scope *scope, ds__cuda_stream *s,
                                   const ds__op *op) {
    ds__mutex_lock(&s->joining);
    ds_result r = ds__cuda_put(s, op);
    ds__mutex_unlock(&s->joining);
    if (r == DS_OK)
        ds__cuda_note_joined(scope, s);
    return r;
}

/* Submits an operation on a stream that may capture. */
static ds_result ds__cuda_submit_near_capture(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    if (op->kind == DS__OP_KERNEL && !ds__cuda_loaded(op->u.kernel.kernel, s->device))
        r = ds__cuda_ready(&scope, op->u.kernel.kernel);
    if (r == DS_OK && !ds__cuda_try_captured(&scope, s, op, &r)) {
        r = op->kind == DS__OP_WAIT ? ds__cuda_put_wait(&scope, s, op) : ds__cuda_put(s, op);
    }
    ds__cuda_scope_end(&scope);
    return r;
}

/* Makes a stream that may capture wait for another one. The event is recorded before the capture
   lock is taken: a record may wait for room in the other stream's queue. */
static ds_result ds__cuda_wait_near_capture(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_stream *other = op->u.wait.stream;
    ds__cuda_mark *mark;
    ds__cuda_event e;
    ds__op wait = *op;
    if (ds__cuda_is_same_queue(s, other))
        return DS_OK;
    ds_result r = ds__cuda_mark_other(other, &mark, &e);
    wait.kind = DS__OP_WAIT;
    wait.u.event.event = &e;
    if (r == DS_OK)
        r = ds__cuda_submit_near_capture(s, &wait);
    if (mark)
        ds__cuda_mark_put(mark);
    return r;
}

/* Submits an operation while a capture of devstream is open, or if the operation is bound to a
   capture. The legacy stream cannot capture, and cannot be queried beside a capture. */
__attribute__((noinline)) static ds_result ds__cuda_submit_watched(ds__cuda_stream *s,
                                                                   const ds__op *op) {
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_put(s, op);
    return op->kind == DS__OP_WAIT_STREAM ? ds__cuda_wait_near_capture(s, op)
                                          : ds__cuda_submit_near_capture(s, op);
}

#endif
