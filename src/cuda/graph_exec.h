/* cuda/graph_exec.h - executable graphs: instantiation, update, launch.

   Instantiates graphs, updates and changes executables (ds__cuda_exec), and launches and uploads
   them. A launch that is captured becomes a child node (ds__cuda_work). ds__cuda_remake changes one
   node by an update from a changed clone, if CUDA cannot set the node in the executable. At the
   driver's stop, ds__cuda_end_keeps ends the keeps of executables.

   Invariants: `kept` is the clone of the instantiated graph, or NULL if CUDA cannot copy the graph;
   its nodes name the executable's nodes. `now` is a graph of the executable's present work, unless
   `stale` is set. `owns` holds the objects of the present work. A failed change leaves the
   executable as it was.
   Locks: The core holds the executable's mutex, also during driver calls; for an update
   also the graph's lock, for an instantiation only that. A user's destructor never runs under these
   locks: the core still has a reference to each object that is dropped here (expect_no_lock in the
   tests). ds__cuda_end_keeps takes `host_lock` and runs destructors after its release.
   Threads: any. ds__cuda_end_keeps runs during the stop, waits for CUDA's threads, and takes over
   after 1 s without progress. */
#ifndef DS__CUDA_GRAPH_EXEC_H
#define DS__CUDA_GRAPH_EXEC_H

#include "types.h"
#include "call.h"
#include "host_func.h"
#include "graph_types.h"
#include "graph_node.h"
#include "graph.h"
#include "graph_set.h"
#include "graph_keep.h"

/* Adds copies of the kernel and event nodes of a graph and its child graphs to `held`, which keep
   the kernels and events alive. */
static ds_result ds__cuda_hold(ds__body *held, const ds__body *b) {
    ds_result r = DS_OK;
    for (uint32_t i = 0; i < b->count && r == DS_OK; i++) {
        const ds__node *n = b->node[i];
        if (n->child) {
            r = ds__cuda_hold(held, n->child);
            continue;
        }
        if (n->kind != DS_NODE_KERNEL && n->kind != DS_NODE_EVENT_RECORD &&
            n->kind != DS_NODE_EVENT_WAIT)
            continue;
        ds__node *copy = ds__node_copy(n);
        r = copy ? ds__body_append(held, copy, NULL, 0) : DS_ERR_OUT_OF_MEMORY;
        if (r < 0)
            ds__node_destroy(copy);
    }
    return r;
}

/* Clones a native graph, and replaces its nodes in the list by their clones. `nodes` has room for
   twice as many. After a failure, *out is NULL, and the list is unchanged. */
static ds_result ds__cuda_clone_natives(const ds__cuda_scope *scope, cudaGraph_t from,
                                        cudaGraphNode_t *nodes, uint32_t count, cudaGraph_t *out) {
    ds_result r = ds__cuda_clone(scope, from, nodes, count, out, nodes + count);
    if (r == DS_OK)
        memmove(nodes, nodes + count, count * sizeof *nodes);
    return r;
}

/* Builds a native graph of the shadow graph instead of a clone, which CUDA does not make of
   conditional nodes, for an executable. Its nodes and objects replace those of the executable. */
static ds_result ds__cuda_build_kept(ds__cuda_exec *x, const ds__body *b) {
    ds__cuda_graph *g = NULL;
    ds_result r = ds__cuda_build(b, UINT32_MAX, NULL, x->kept_node, &g);
    if (r < 0)
        return r;
    x->kept = g->graph;
    g->graph = NULL;
    ds__cuda_own_end(&x->owns);
    x->owns = g->owns;
    memset(&g->owns, 0, sizeof g->owns);
    ds__cuda_graph_end(g, b->device.index);
    return ds__cuda_own_attached(&x->owns, b, DS__CUDA_ATTACHED) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Instantiates a native graph. In relaxed mode, since a capture in global mode forbids it
   (docs/gpu). */
static ds_result ds__cuda_instantiate_native(const ds__cuda_scope *scope, cudaGraph_t graph,
                                             unsigned flags, cudaGraphExec_t *out) {
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = DS__RT_CODE(*scope, cudaGraphInstantiateWithFlags, (out, graph, flags));
    ds__cuda_unrelax(scope, relaxed, mode);
    if (code != cudaSuccess)
        *out = NULL;
    return ds__cuda_check(scope, code, "cudaGraphInstantiateWithFlags");
}

/* Instantiates a clone of the native graph, or the graph itself if CUDA cannot clone it. */
static ds_result ds__cuda_instantiate(ds__cuda_exec *x, const ds__body *b, unsigned flags) {
    const ds__cuda_graph *g = b->native;
    ds__cuda_scope scope;
    cudaUserObject_t object;
    ds_result r = ds__cuda_scope_begin(&scope, x->device);
    if (r < 0)
        return r;
    r = b->conditional && !ds__cuda_has_unknown(b, 1)
            ? ds__cuda_build_kept(x, b)
            : ds__cuda_clone_natives(&scope, g->graph, x->kept_node, x->count, &x->kept);
    /* CUDA cannot clone a graph with memory nodes, which only other libraries capture */
    if (r < 0 && r != DS_ERR_OUT_OF_MEMORY && ds__cuda_has_unknown(b, 1))
        r = DS_OK;
    x->now = x->kept;
    cudaGraph_t from = x->kept ? x->kept : g->graph;
    if (r == DS_OK)
        r = ds__cuda_retain(&scope, from, &x->owns, &object);
    if (r == DS_OK) {
        r = ds__cuda_instantiate_native(
            &scope, from, flags & ~(unsigned)(DS_GRAPH_UPLOAD | DS_GRAPH_REPLACE_POINTERS),
            &x->exec);
        ds__cuda_unretain(&scope, from, object);
    }
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_graph_instantiate(ds__body *b, ds__body *copy, unsigned flags,
                                            void **out) {
    (void)copy;
    ds_result r = ds__cuda_usable(b);
    if (r < 0)
        return r;
    ds__cuda_exec *x = ds__host_alloc(sizeof *x);
    if (!x)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    x->device = b->device.index;
    x->count = b->count;
    x->kept_node = x->now_node = ds__cuda_natives(b);
    x->off = ds__host_alloc(b->count + 1u);
    x->on = ds__host_alloc(b->count + 1u);
    for (uint32_t i = 0; i < b->count && x->on; i++)
        x->on[i] = (unsigned char)b->node[i]->device.index;
    if (!x->kept_node || !x->off || !x->on || !ds__cuda_own_all(&x->owns, b))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable of %u nodes",
                     (unsigned)b->count);
    if (r == DS_OK) {
        x->held = ds__body_create(b->driver, b->device);
        r = x->held ? ds__cuda_hold(x->held, b) : DS_ERR_OUT_OF_MEMORY;
    }
    if (r == DS_OK)
        r = ds__cuda_instantiate(x, b, flags);
    if (r < 0) {
        ds__cuda_exec_end(x);
        return r;
    }
    *out = x;
    return DS_OK;
}

/* The reason for which CUDA refuses an update, and the node of the graph. */
typedef struct ds__cuda_mismatch {
    ds_graph_update_reason reason;
    cudaGraphNode_t node;
} ds__cuda_mismatch;

/* Updates an executable by CUDA. */
static ds_result ds__cuda_take_over(const ds__cuda_scope *scope, cudaGraphExec_t exec,
                                    cudaGraph_t graph, ds__cuda_mismatch *out) {
    int reason = 0;
    ds_result r = ds__cuda_check(scope, ds__cudart_update(exec, graph, &reason, &out->node),
                                 "cudaGraphExecUpdate");
    out->reason = (ds_graph_update_reason)reason;
    if (r == DS_OK)
        out->reason = DS_GRAPH_UPDATE_SUCCESS;
    else if (!out->reason || out->reason > DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED)
        out->reason = DS_GRAPH_UPDATE_ERROR;
    return r;
}

/* The work that an executable is to do: a graph, its nodes, and the objects that they need. */
typedef struct ds__cuda_next {
    cudaGraph_t graph;
    cudaGraphNode_t *nodes;
    ds__cuda_owns owns;
    int is_clone; /* 1: the executable takes over the graph and the list of nodes */
} ds__cuda_next;

/* Makes the executable do the work. After that, it has taken over the objects, and the graph and
   nodes of a clone. After a failure, *out is the reason, and the caller still owns all of them. */
static ds_result ds__cuda_become(const ds__cuda_scope *scope, ds__cuda_exec *x, ds__cuda_next *next,
                                 ds__cuda_mismatch *out) {
    cudaUserObject_t object;
    out->reason = DS_GRAPH_UPDATE_ERROR;
    out->node = NULL;
    ds_result r = ds__cuda_retain(scope, next->graph, &next->owns, &object);
    if (r < 0)
        return r;
    r = ds__cuda_take_over(scope, x->exec, next->graph, out);
    ds__cuda_unretain(scope, next->graph, object);
    if (r < 0)
        return r;
    ds__cuda_own_end(&x->owns);
    x->owns = next->owns;
    memset(&next->owns, 0, sizeof next->owns);
    x->stale = !next->is_clone;
    if (next->is_clone) {
        if (x->now != x->kept) {
            ds__cuda_drop_graph(scope, x->now);
            ds__host_free(x->now_node);
        }
        x->now = next->graph;
        x->now_node = next->nodes;
        next->nodes = NULL;
    }
    /* CUDA does not document that an update leaves nodes switched off */
    for (uint32_t i = 0; i < x->count; i++)
        if (x->off[i] == DS__CUDA_OFF_BY_CUDA)
            (void)DS__RT_CODE(*scope, cudaGraphNodeSetEnabled, (x->exec, x->kept_node[i], 0));
    return DS_OK;
}

/* Gives the host nodes of a clone that are switched off an empty task, as those of the executable
   have one. */
static ds_result ds__cuda_switch_off_hosts(const ds__cuda_exec *x, const ds__body *b,
                                           const cudaGraphNode_t *nodes) {
    ds_result r = DS_OK;
    for (uint32_t i = 0; i < b->count && i < x->count && r == DS_OK; i++)
        if (x->off[i] == DS__CUDA_OFF_BY_TASK && ds__cuda_type(b->node[i]) == cudaGraphNodeTypeHost)
            r = ds__cuda_set(b->node[i], x->device, NULL, nodes[i], &ds__cuda_nothing);
    return r;
}

/* Updates the executable to the native graph of `next`, or if CUDA can clone it, to a clone. The
   nodes of `next` become those of the clone. */
static ds_result ds__cuda_update_to(ds__cuda_exec *x, const ds__body *b, ds__cuda_next *next,
                                    ds__cuda_mismatch *out) {
    ds__cuda_scope scope;
    cudaGraph_t clone = NULL;
    ds_result r = ds__cuda_scope_begin(&scope, x->device);
    if (r < 0)
        return r;
    if (x->kept)
        r = ds__cuda_clone_natives(&scope, next->graph, next->nodes, b->count, &clone);
    if (clone) {
        next->graph = clone;
        next->is_clone = 1;
        r = ds__cuda_switch_off_hosts(x, b, next->nodes);
    }
    if (r == DS_OK)
        r = ds__cuda_become(&scope, x, next, out);
    if (r < 0)
        ds__cuda_drop_graph(&scope, clone);
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_exec_update(void *exec, ds__body *b, ds_graph_update_reason *out_reason,
                                      uint32_t *out_node) {
    ds__cuda_exec *x = exec;
    const ds__cuda_graph *g = b->native;
    ds__cuda_mismatch wrong = { DS_GRAPH_UPDATE_ERROR, NULL };
    ds__cuda_next next = { .graph = g->graph, .nodes = ds__cuda_natives(b) };
    *out_node = UINT32_MAX;
    ds_result r = next.nodes ? ds__cuda_usable(b) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK && !ds__cuda_own_all(&next.owns, b))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_update_to(x, b, &next, &wrong);
    *out_reason = wrong.reason;
    for (uint32_t i = 0; i < b->count && r < 0 && wrong.node; i++)
        if (next.nodes[i] == wrong.node)
            *out_node = i;
    ds__host_free(next.nodes);
    ds__cuda_own_end(&next.owns);
    return r;
}

/* Changes one node of the next work, with the objects that it needs. fresh NULL: a host node is
   switched on or off according to x->off. */
static ds_result ds__cuda_change_next(const ds__cuda_scope *scope, const ds__cuda_exec *x,
                                      ds__cuda_next *next, uint32_t index, const ds__node *fresh) {
    cudaGraphNode_t node = next->nodes[index];
    ds_result r = DS_OK;
    if (fresh) {
        ds__cuda_own_remove(&next->owns, index);
        r = ds__cuda_set_in_graph(scope, node, fresh, x->on[index], &next->owns, index);
        if (r == DS_OK && fresh->child && !ds__cuda_own_attached(&next->owns, fresh->child, index))
            r = DS_ERR_OUT_OF_MEMORY;
    }
    if (r < 0 || (fresh && x->off[index] != DS__CUDA_OFF_BY_TASK))
        return r;
    const ds__object *task = ds__cuda_own_find(&next->owns, index);
    struct cudaHostNodeParams host = { ds__cuda_host_node, &ds__cuda_nothing };
    if (task && !x->off[index])
        host.userData = task->user;
    return DS__RT(*scope, cudaGraphHostNodeSetParams, (node, &host));
}

/* Changes one node in a clone of the present work, and updates the executable to the clone. This is
   for changes that CUDA cannot make in an executable, or not with the objects of the node. fresh
   NULL: a host node is switched on or off. */
static ds_result ds__cuda_remake(ds__cuda_exec *x, uint32_t index, const ds__node *fresh) {
    ds__cuda_scope scope;
    ds__cuda_mismatch wrong;
    if (!x->kept || x->stale)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "node %u cannot be set: CUDA cannot clone the graph of the executable",
                        (unsigned)index);
    ds__cuda_next next = { .is_clone = 1 };
    next.nodes = ds__host_alloc((x->count + 1u) * sizeof *next.nodes);
    if (!next.nodes)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %u nodes", (unsigned)x->count);
    ds_result r = ds__cuda_scope_begin(&scope, x->device);
    if (r < 0) {
        ds__host_free(next.nodes);
        return r;
    }
    if (!ds__cuda_own_copy(&next.owns, &x->owns, DS__CUDA_NOWHERE))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_clone(&scope, x->now, x->now_node, x->count, &next.graph, next.nodes);
    if (r == DS_OK)
        r = ds__cuda_change_next(&scope, x, &next, index, fresh);
    if (r == DS_OK)
        r = ds__cuda_become(&scope, x, &next, &wrong);
    if (r < 0)
        ds__cuda_drop_graph(&scope, next.graph);
    ds__host_free(next.nodes);
    ds__cuda_scope_end(&scope);
    ds__cuda_own_end(&next.owns);
    return r;
}

/* Refuses a change of an executable whose nodes no clone names. */
static ds_result ds__cuda_unnamed(uint32_t index) {
    return ds__fail(DS_ERR_UNSUPPORTED,
                    "node %u cannot be changed: CUDA cannot clone the graph that names its nodes",
                    (unsigned)index);
}

static ds_result ds__cuda_exec_set(void *exec, uint32_t index, const ds__node *fresh) {
    ds__cuda_exec *x = exec;
    const ds__op *op = &fresh->op;
    int type = ds__cuda_type(fresh);
    if (fresh->kind == DS_NODE_EMPTY || fresh->kind == DS_NODE_NATIVE)
        return DS_OK;
    /* CUDA sets host nodes without their objects, and no copies or fills of several rows */
    int remake = type == cudaGraphNodeTypeHost || type == cudaGraphNodeTypeGraph;
    remake |= (fresh->kind == DS_NODE_COPY && op->u.copy.height > 1) ||
              (fresh->kind == DS_NODE_FILL && op->u.fill.height > 1);
    if (remake)
        return ds__cuda_remake(x, index, fresh);
    if (!x->kept)
        return ds__cuda_unnamed(index);
    ds_result r = ds__cuda_set(fresh, x->on[index], x->exec, x->kept_node[index], NULL);
    if (r < 0)
        return r;
    char before[sizeof ds__tls.error];
    memcpy(before, ds__tls.error, sizeof before);
    if (ds__cuda_set(fresh, x->on[index], NULL, x->now_node[index], NULL) < 0) {
        x->stale = 1;
        memcpy(ds__tls.error, before, sizeof before);
    }
    return DS_OK;
}

static ds_result ds__cuda_exec_enable(void *exec, uint32_t index, int enabled) {
    ds__cuda_exec *x = exec;
    int type = cudaGraphNodeTypeEmpty;
    ds__cuda_scope scope;
    unsigned char before = x->off[index];
    if (enabled == !before)
        return DS_OK;
    if (!x->kept)
        return ds__cuda_unnamed(index);
    ds_result r = ds__cuda_scope_begin(&scope, x->device);
    if (r < 0)
        return r;
    DS__DR(scope, r, cuGraphNodeGetType, (x->kept_node[index], &type));
    if (r == DS_OK && type != cudaGraphNodeTypeHost)
        r = DS__RT(scope, cudaGraphNodeSetEnabled,
                   (x->exec, x->kept_node[index], (unsigned)enabled));
    ds__cuda_scope_end(&scope);
    if (r < 0)
        return r;
    if (enabled)
        x->off[index] = DS__CUDA_ON;
    else
        x->off[index] = type == cudaGraphNodeTypeHost ? DS__CUDA_OFF_BY_TASK : DS__CUDA_OFF_BY_CUDA;
    if (type == cudaGraphNodeTypeHost)
        r = ds__cuda_remake(x, index, NULL);
    if (r < 0)
        x->off[index] = before;
    return r;
}

/* The present work of an executable as a graph, for a launch that is captured: CUDA refuses
   cudaGraphLaunch on a stream that captures (docs/gpu/2026-11-26-nvidia-h200.md, P27). */
typedef struct ds__cuda_work {
    cudaGraph_t graph;
    ds__cuda_graph *built; /* NULL: the graph is `now` of the executable */
} ds__cuda_work;

/* Returns 1 if `now` is all of the present work: it lacks no change, and CUDA has switched no node
   off. */
static int ds__cuda_now_is_whole(const ds__cuda_exec *x) {
    return x->now && !x->stale && (!x->count || !memchr(x->off, DS__CUDA_OFF_BY_CUDA, x->count));
}

/* Finds or builds the graph of the work. Adds the objects of the work to `keep`, under
   DS__CUDA_NEW. The caller ends the work, also after a failure. */
static ds_result ds__cuda_work_begin(const ds__op *op, ds__cuda_owns *keep, ds__cuda_work *w) {
    const ds__cuda_exec *x = op->u.graph.exec;
    const ds__cuda_owns *owns = &x->owns;
    *w = (ds__cuda_work){ x->now, NULL };
    if (!ds__cuda_now_is_whole(x)) {
        cudaGraphNode_t *nodes = ds__cuda_natives(op->u.graph.body);
        ds_result r = nodes ? ds__cuda_build(op->u.graph.body, 0, NULL, nodes, &w->built)
                            : DS_ERR_OUT_OF_MEMORY;
        ds__host_free(nodes);
        if (r < 0)
            return r;
        w->graph = w->built->graph;
        owns = &w->built->owns;
    }
    return ds__cuda_own_copy(keep, owns, DS__CUDA_NEW) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Adds the work to the graph into which the stream captures, as a child node, which is a copy. The
   stream's next operation depends on it. *into is that graph if the node exists, also after a
   failure, else NULL. */
static ds_result ds__cuda_work_insert(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                      const ds__cuda_work *w, cudaGraph_t *into) {
    ds__cuda_look now;
    cudaGraphNode_t node = NULL;
    *into = NULL;
    ds_result r = ds__cuda_look_at(scope, s, &now);
    if (r == DS_OK && now.status == cudaStreamCaptureStatusInvalidated)
        r = ds__cuda_check(scope, cudaErrorStreamCaptureInvalidated, "cudaStreamGetCaptureInfo");
    if (r == DS_OK)
        r = DS__RT(*scope, cudaGraphAddChildGraphNode,
                   (&node, now.graph, now.after, now.count, w->graph));
    if (r < 0)
        return r;
    *into = now.graph;
    return ds__cuda_set_after(scope, s, &node, 1, 1);
}

static void ds__cuda_work_end(const ds__cuda_stream *s, const ds__cuda_work *w) {
    if (w->built)
        ds__cuda_graph_end(w->built, s->device);
}

/* Captures a launch in a capture that devstream did not begin. The graph keeps the objects. */
static ds_result ds__cuda_launch_in_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                            const ds__op *op) {
    ds__cuda_owns owns = { NULL, 0, 0 };
    cudaUserObject_t object = NULL;
    cudaGraph_t into = NULL;
    ds__cuda_work work;
    if (op->u.graph.body->conditional)
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "a graph with conditional nodes cannot be a child graph; the capture "
                        "continues");
    ds_result r = ds__cuda_work_begin(op, &owns, &work);
    if (r == DS_OK)
        r = ds__cuda_keep_create(scope, &owns, &object);
    if (r == DS_OK)
        r = ds__cuda_work_insert(scope, s, &work, &into);
    if (!into) {
        ds__cuda_keep_unref(scope, object);
    } else if (object) {
        ds_result kept =
            DS__RT(*scope, cudaGraphRetainUserObject, (into, object, 1, cudaGraphUserObjectMove));
        if (r == DS_OK)
            r = kept;
    }
    ds__cuda_own_end(&owns);
    ds__cuda_work_end(s, &work);
    return r;
}

/* Launches an executable on a stream that no capture of devstream has. */
static ds_result ds__cuda_launch_graph(const ds__cuda_stream *s, const ds__op *op) {
    const ds__cuda_exec *x = op->u.graph.exec;
    ds__cuda_scope scope;
    int capturing = 0;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    if (r == DS_OK && DS__UNLIKELY(capturing))
        r = ds__cuda_launch_in_capture(&scope, s, op);
    else if (r == DS_OK)
        r = DS__RT(scope, cudaGraphLaunch, (x->exec, s->handle));
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_upload(const ds__cuda_stream *s, const ds__cuda_exec *x) {
    ds__cuda_scope scope;
    int capturing = 0;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    if (r == DS_OK && capturing)
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "an upload cannot be captured; the capture continues");
    if (r == DS_OK)
        r = DS__RT(scope, cudaGraphUpload, (x->exec, s->handle));
    ds__cuda_scope_end(&scope);
    return r;
}

/* Drops the objects of a keep whose executable may still run. Its tasks stay allocated, and run
   nothing any more. */
static void ds__cuda_keep_empty(ds__cuda_keep *k) {
    for (uint32_t i = 0; i < k->count; i++) {
        ds__object *o = k->object[i];
        ds__cuda_task *h = o->dtor_fn == ds__cuda_task_end ? o->user : NULL;
        if (!h) {
            ds__object_unref(o);
            continue;
        }
        ds__object *payload = h->payload;
        atomic_store(&h->fn, NULL);
        h->payload = NULL;
        ds__object_unref(payload);
    }
}

/* Waits until CUDA has ended all keeps, on a thread of its own that a busy machine may start late.
   After the failure of a device CUDA may never end them, and a graph that another library captured
   may outlive the driver. After a second without progress, the keeps that are left are therefore
   ended here. */
static void ds__cuda_end_keeps(void) {
    int stalled = 0;
    for (uint64_t begin = ds__now_ns(), last = 0;;) {
        uint64_t count = 0;
        ds__spinlock_lock(&ds__cuda.host_lock);
        ds__cuda_keep *k = ds__cuda.keeps;
        ds__cuda_keep *take = NULL;
        for (const ds__cuda_keep *i = k; i; i = i->next)
            count++;
        stalled |= count == last && ds__now_ns() - begin > 1000000000u;
        for (ds__cuda_keep *i = k; i && stalled && !take; i = i->next) {
            int pending = DS__CUDA_PENDING;
            if (atomic_compare_exchange_strong(&i->state, &pending, DS__CUDA_TAKEN))
                take = i;
        }
        ds__spinlock_unlock(&ds__cuda.host_lock);
        if (!k)
            return;
        if (take) {
            ds__cuda_keep_empty(take);
            ds__spinlock_lock(&ds__cuda.host_lock);
            ds__cuda_keep_unlist(take);
            ds__spinlock_unlock(&ds__cuda.host_lock);
            take->next = ds__cuda.left; /* only this thread uses the driver now */
            ds__cuda.left = take;
        } else {
            if (count != last)
                begin = ds__now_ns();
            last = count;
            ds__os_sleep(50000);
        }
    }
}

#endif
