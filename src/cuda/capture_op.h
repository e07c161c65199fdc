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
   holds it; ds__cuda_host_in_capture needs none. ds__cuda.mutex, ds__cuda.lock, `host_lock` and a
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

/* A refusal of our own, which leaves the capture as it is. */
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

/* A host function in a capture of others, whose graph keeps what the function needs. */
static ds_result ds__cuda_host_in_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                          ds_host_fn fn, void *user, ds_host_fn dtor_fn) {
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_look now;
    ds__node n;
    cudaUserObject_t object = NULL;
    memset(&n, 0, sizeof n);
    n.kind = DS_NODE_HOST;
    n.op.u.host.fn = fn;
    n.op.u.host.user = user;
    ds_result r =
        ds__cuda_check(scope, ds__cuda_get_info(s->handle, &now), "cudaStreamGetCaptureInfo");
    if (r == DS_OK && dtor_fn && !(n.payload = ds__object_new(user, dtor_fn)))
        r = DS_ERR_OUT_OF_MEMORY;
    ds__object *task = r == DS_OK ? ds__cuda_task_new(&n) : NULL;
    if (r == DS_OK && (!task || !ds__cuda_own_keep(&owns, DS__CUDA_NOWHERE, task)))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_keep_make(scope, &owns, &object);
    if (r == DS_OK) {
        r = DS__RT(*scope, cudaLaunchHostFunc, (s->handle, ds__cuda_host_node, task->user));
        if (r < 0) {
            /* the caller ends it */
            if (n.payload)
                n.payload->dtor_fn = NULL;
            ds__cuda_keep_drop(scope, object);
        } else if ((r = DS__RT(*scope, cudaGraphRetainUserObject,
                               (now.graph, object, 1, cudaGraphUserObjectMove))) < 0) {
            /* the node is there and will run it: it stays until the driver stops */
            atomic_store(&((ds__cuda_task *)task->user)->fn, NULL);
        }
    }
    if (r < 0 && n.payload)
        n.payload->dtor_fn = NULL;
    ds__object_drop(n.payload);
    ds__object_drop(task);
    ds__cuda_own_end(&owns);
    return r;
}

/* Enters the stream's last node. Where the picture lacks one node and the operation has made
   one, it is that: without asking for all nodes, which would take a time that grows with the
   square of their number. */
static uint32_t ds__cuda_enter_last(const ds__cuda_scope *scope, ds__body *b, cudaGraphNode_t last,
                                    int made_one) {
    size_t count = 0;
    ds_result r = made_one ? DS__RT(*scope, cudaGraphGetNodes,
                                    (((ds__cuda_graph *)b->native)->graph, NULL, &count))
                           : DS_OK;
    if (r == DS_OK && count == b->count + (size_t)1) {
        r = ds__cuda_append_unknown(b, last);
        if (r == DS_OK)
            r = ds__cuda_read_after(scope, b, b->count - 1);
    } else if (r == DS_OK) {
        r = ds__cuda_read_nodes(scope, b);
    }
    return r == DS_OK ? ds__cuda_index(b, last, b->count) : UINT32_MAX;
}

/* Which node the operation has become: the stream's last, which is entered with what is known of
   it (made NULL: made of op). What fails here leaves a node that is not known. UINT32_MAX: it is
   not found. The lock is held. */
static uint32_t ds__cuda_note(ds__cuda_scope *scope, const ds__cuda_stream *s, ds__capture *c,
                              const ds__op *op, ds__node *made) {
    ds__body *b = c->body;
    ds__cuda_look now;
    uint32_t known = b->count;
    uint32_t index = UINT32_MAX;
    char before[sizeof ds__tls.error];
    memcpy(before, ds__tls.error, sizeof before);
    cudaError_t code = ds__cuda_get_info(s->handle, &now);
    ds__cuda_ignore(scope, code);
    if (code == cudaSuccess && now.status == cudaStreamCaptureStatusActive && now.count == 1) {
        index = ds__cuda_enter_last(scope, b, now.after[0], op && op->kind != DS__OP_GRAPH);
    }
    if (index != UINT32_MAX && index >= known && b->node[index]->kind == DS_NODE_NATIVE) {
        ds__node *old = b->node[index];
        ds__node *n = made ? made : op ? ds__node_make(op, ds_cuda(s->device), s->priority) : NULL;
        if (n) {
            n->native = old->native;
            n->deps = old->deps;
            n->dep_count = old->dep_count;
            n->dep_room = old->dep_room;
            old->deps = NULL;
            b->node[index] = n;
            ds__node_free(old);
            made = NULL;
        }
    }
    ds__node_free(made);
    memcpy(ds__tls.error, before, sizeof before);
    return index;
}

/* What was kept for a node that had no index, or does not come. */
static void ds__cuda_own_settle(ds__cuda_owns *list, uint32_t index, ds_result r) {
    if (r < 0)
        ds__cuda_own_drop(list, DS__CUDA_NEW);
    for (uint32_t i = list->count; i-- > 0 && list->at[i].node == DS__CUDA_NEW;)
        list->at[i].node = index == UINT32_MAX ? DS__CUDA_NOWHERE : index;
}

/* A host function, or a copy or fill of host memory. */
static ds_result ds__cuda_capture_host(ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       ds__capture *c, const ds__op *op) {
    ds__cuda_graph *g = c->body->native;
    uint32_t index = UINT32_MAX;
    ds__node *n = ds__node_make(op, ds_cuda(s->device), s->priority);
    if (!n)
        return DS_ERR_OUT_OF_MEMORY;
    ds__object *task = ds__cuda_task_new(n);
    ds_result r =
        task && ds__cuda_own_keep(&g->owns, DS__CUDA_NEW, task) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = DS__RT(*scope, cudaLaunchHostFunc, (s->handle, ds__cuda_host_node, task->user));
    if (r == DS_OK)
        index = ds__cuda_note(scope, s, c, op, n);
    else
        ds__node_discard(n);
    ds__object_drop(task);
    ds__cuda_own_settle(&g->owns, index, r);
    return r;
}

/* In a graph the place of every operand is known. */
static ds_result ds__cuda_resolve(ds__op *op, unsigned at, const void *ptr) {
    ds_pointer_info info;
    if (ds__place_of(op, (int)at) != DS__AT_UNKNOWN)
        return DS_OK;
    ds_result r = ds__cuda_pointer_query(ptr, &info);
    unsigned place = info.kind == DS_MEMORY_DEVICE     ? DS__AT_DEVICE + (unsigned)info.device.index
                     : info.kind == DS_MEMORY_PAGEABLE ? DS__AT_PAGEABLE
                                                       : DS__AT_PINNED;
    op->places = (uint16_t)(op->places | place << at);
    return r;
}

static ds_result ds__cuda_set_after(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                    cudaGraphNode_t *after, size_t count, int set) {
    unsigned flags = set ? cudaStreamSetCaptureDependencies : cudaStreamAddCaptureDependencies;
#if CUDART_VERSION >= 13000
    return DS__RT(*scope, cudaStreamUpdateCaptureDependencies,
                  (s->handle, after, NULL, count, flags));
#else
    return DS__RT(*scope, cudaStreamUpdateCaptureDependencies, (s->handle, after, count, flags));
#endif
}

static ds_result ds__cuda_capture_elsewhere(ds__cuda_scope *scope, ds__cuda_stream *s,
                                            ds__capture *c, int device, const ds__op *op,
                                            ds_result (*put)(ds__cuda_stream *s,
                                                             const ds__op *op)) {
    ds__cuda_origin *o = c->origin;
    void *native = NULL;
    int priority = 0;
    ds_result r =
        ds__cuda_stream_create(device, DS__STREAM_NEW, DS_STREAM_NON_BLOCKING, &priority, &native);
    if (r < 0)
        return r;
    ds__cuda_stream *t = native;
    t->sibling = o->streams; /* it must live until the capture ends */
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
    /* it comes after all that the stream's next one would depend on */
    cudaGraphNode_t last = ds__cuda_native(c->body->node[index]);
    return ds__cuda_set_after(scope, s, &last, 1, 1);
}

/* A copy between devices in the form that a node of it can be set in: CUDA does not update one
   form by another. */
static ds_result ds__cuda_copy_between(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_move(&scope, s->handle, op, DS__CUDA_ASK, DS__CUDA_ASK);
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_capture_memory(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                         ds__op *op) {
    int copy = op->kind == DS__OP_COPY;
    ds_result r = ds__cuda_resolve(op, DS__OP_DST, copy ? op->u.copy.dst : op->u.fill.dst);
    if (r == DS_OK && copy)
        r = ds__cuda_resolve(op, DS__OP_SRC, op->u.copy.src);
    if (r < 0)
        return r;
    unsigned to = (unsigned)ds__place_of(op, DS__OP_DST);
    unsigned from = copy ? (unsigned)ds__place_of(op, DS__OP_SRC) : DS__AT_PINNED;
    if (to == DS__AT_PAGEABLE || from == DS__AT_PAGEABLE)
        return ds__cuda_refuse_pageable(scope);
    if (to == DS__AT_OTHER || from == DS__AT_OTHER)
        return ds__cuda_refuse(
            scope, "a copy between a GPU and a device of the CPU driver cannot be captured");
    op->flags = (uint8_t)(op->flags & ~(unsigned)DS__OP_BLOCKS);
    if (!ds__cuda_on_gpu(to) && !ds__cuda_on_gpu(from))
        return ds__cuda_capture_host(scope, s, c, op);
    unsigned here = DS__AT_DEVICE + (unsigned)s->device;
    ds_result (*put)(ds__cuda_stream * s, const ds__op *op) =
        copy ? ds__cuda_copy_on : ds__cuda_fill;
    if (copy && to >= DS__AT_DEVICE && from >= DS__AT_DEVICE && to != from)
        put = ds__cuda_copy_between;
    if (to != here && from != here)
        return ds__cuda_capture_elsewhere(
            scope, s, c, (int)((from >= DS__AT_DEVICE ? from : to) - DS__AT_DEVICE), op, put);
    r = put(s, op);
    if (r == DS_OK)
        (void)ds__cuda_note(scope, s, c, op, NULL);
    return r;
}

/* Puts the work on a stream of a capture that was begun here. The lock is held. */
static ds_result ds__cuda_put_captured(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                       const ds__op *given) {
    ds__cuda_graph *g = c->body->native;
    ds__op op = *given;
    ds_result r = DS_OK;
    uint64_t most;
    switch (op.kind) {
    case DS__OP_COPY:
    case DS__OP_FILL:
        return ds__cuda_capture_memory(scope, s, c, &op);
    case DS__OP_HOST:
        return ds__cuda_capture_host(scope, s, c, &op);
    case DS__OP_UPLOAD:
        return ds__cuda_refuse(scope, "an upload cannot be captured");
    case DS__OP_GRAPH:
        if (!ds__cuda_own_copy(&g->owns, &((ds__cuda_exec *)op.u.graph.exec)->owns, DS__CUDA_NEW))
            r = DS_ERR_OUT_OF_MEMORY;
        if (r == DS_OK)
            r = ds__cuda_launch_graph(s, op.u.graph.exec);
        ds__cuda_own_settle(&g->owns,
                            r == DS_OK ? ds__cuda_note(scope, s, c, &op, NULL) : UINT32_MAX, r);
        return r;
    default:
        break;
    }
    r = ds__cuda_put(s, &op);
    if (r < 0)
        return r;
    if (op.kind == DS__OP_RECORD)
        atomic_store(&((ds__cuda_event *)op.u.event.event)->capture, c->id);
    if (op.kind == DS__OP_KERNEL) {
        const ds__kernel *k = op.u.kernel.kernel;
        r = ds__cuda_split(k, op.u.kernel.items,
                           k->cuda.items_per_block ? k->cuda.items_per_block
                           : k->cuda.block         ? k->cuda.block
                                                   : 256,
                           &most);
        int one = r == DS_OK && (op.u.kernel.grid || op.u.kernel.items <= most);
        /* the parts of a launch that took several are not known */
        (void)ds__cuda_note(scope, s, c, one ? &op : NULL, NULL);
    }
    if (op.kind == DS__OP_EXTERNAL_RECORD || op.kind == DS__OP_EXTERNAL_WAIT)
        (void)ds__cuda_note(scope, s, c, &op, NULL);
    return DS_OK;
}

/* While a capture is open that was begun here, or was when the caller asked. */
__attribute__((noinline)) static ds_result ds__cuda_submit_watched(ds__cuda_stream *s,
                                                                   const ds__op *op) {
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c = NULL;
    /* it cannot capture, and cannot be asked beside a capture */
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_put(s, op);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    if (op->kind == DS__OP_KERNEL && !ds__cuda_loaded(op->u.kernel.kernel, s->device))
        r = ds__cuda_ready(&scope, op->u.kernel.kernel);
    int done = 0;
    ds__cuda_lock();
    if (r == DS_OK)
        r = ds__cuda_find_capture(&scope, s, &now, &c);
    int active = r == DS_OK && c && now.status == cudaStreamCaptureStatusActive;
    if (r == DS_OK && DS__UNLIKELY(ds__op_changed(op, active ? c->id : 0)) &&
        (active || now.status == cudaStreamCaptureStatusNone))
        r = DS__CHANGED;
    else if (active) {
        r = ds__cuda_put_captured(&scope, s, c, op);
        done = 1;
    }
    ds__cuda_unlock();
    if (r == DS_OK && !done)
        r = ds__cuda_put(s, op);
    /* it may have come into a capture */
    if (r == DS_OK && !done && (op->kind == DS__OP_WAIT || op->kind == DS__OP_WAIT_STREAM)) {
        cudaError_t code = ds__cuda_get_info(s->handle, &now);
        ds__cuda_ignore(&scope, code);
        ds__cuda_lock();
        c = code == cudaSuccess && now.status == cudaStreamCaptureStatusActive
                ? ds__cuda_capture_of(now.id)
                : NULL;
        if (c)
            atomic_store(&s->capture, c->id);
        ds__cuda_unlock();
    }
    ds__cuda_leave(&scope);
    return r;
}

#endif
