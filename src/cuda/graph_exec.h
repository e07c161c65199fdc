/* cuda/graph_exec.h - executable graphs: instantiation, update, launch.

   Instantiates graphs, updates and changes executables (ds__cuda_exec), and launches and uploads
   them. ds__cuda_remake changes one node by an update from a changed clone, where CUDA cannot set
   the node in the executable. At the driver's stop, ds__cuda_end_keeps ends what executables still
   keep.

   Invariants: `kept` is the clone of the instantiated graph, or NULL if CUDA cannot copy the graph;
   its nodes name the executable's nodes. `now` is a graph of what the executable does, unless
   `stale` is set. `off` is 1 for a node that CUDA switched off, and 2 for a host node with an empty
   task. `owns` holds the objects of what the executable does now. A failed change leaves the
   executable as it was.
   Locks: The core holds the executable's lock, a spinlock, also during driver calls; for an update
   also the graph's lock, for an instantiation only that. Dropping kept objects may run user
   destructors under these locks. ds__cuda_end_keeps takes `host_lock` and runs destructors after
   its release.
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

/* Holds the kernels and events of a graph and of graphs in it. */
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
            ds__node_free(copy);
    }
    return r;
}

static ds_result ds__cuda_instantiate(ds__cuda_exec *x, const ds__body *b, unsigned flags) {
    const ds__cuda_graph *g = b->native;
    ds__cuda_scope scope;
    cudaUserObject_t object;
    ds_result r = ds__cuda_enter(&scope, x->device);
    if (r < 0)
        return r;
    r = ds__cuda_clone(&scope, g->graph, x->kept_node, x->count, &x->kept, x->kept_node + x->count);
    /* memory nodes: CUDA cannot copy them */
    if (r < 0 && r != DS_ERR_OUT_OF_MEMORY && ds__cuda_has_unknown(b, 1))
        r = DS_OK;
    if (x->kept)
        memmove(x->kept_node, x->kept_node + x->count, x->count * sizeof *x->kept_node);
    x->now = x->kept;
    cudaGraph_t from = x->kept ? x->kept : g->graph;
    if (r == DS_OK)
        r = ds__cuda_retain(&scope, from, &x->owns, &object);
    if (r == DS_OK) {
        r = DS__RT(
            scope, cudaGraphInstantiateWithFlags,
            (&x->exec, from, flags & ~(unsigned)(DS_GRAPH_UPLOAD | DS_GRAPH_REPLACE_POINTERS)));
        if (r < 0)
            x->exec = NULL;
        ds__cuda_unretain(&scope, from, object);
    }
    ds__cuda_leave(&scope);
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
    if (r == DS_OK)
        r = (x->held = ds__body_new(b->driver, b->device)) ? ds__cuda_hold(x->held, b)
                                                           : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_instantiate(x, b, flags);
    if (r < 0) {
        ds__cuda_exec_end(x);
        return r;
    }
    *out = x;
    return DS_OK;
}

/* CUDA's own update; *out_node: the graph's node that it does not take. */
static ds_result ds__cuda_take_over(const ds__cuda_scope *scope, cudaGraphExec_t exec,
                                    cudaGraph_t graph, ds_graph_update_reason *out_reason,
                                    cudaGraphNode_t *out_node) {
#if CUDART_VERSION >= 12000
    cudaGraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    ds_result r = DS__RT(*scope, cudaGraphExecUpdate, (exec, graph, &info));
    *out_reason = (ds_graph_update_reason)info.result;
    *out_node = info.errorNode;
#else
    enum cudaGraphExecUpdateResult result = cudaGraphExecUpdateSuccess;
    *out_node = NULL;
    ds_result r = DS__RT(*scope, cudaGraphExecUpdate, (exec, graph, out_node, &result));
    *out_reason = (ds_graph_update_reason)result;
#endif
    if (r == DS_OK)
        *out_reason = DS_GRAPH_UPDATE_SUCCESS;
    else if (!*out_reason || *out_reason > DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED)
        *out_reason = DS_GRAPH_UPDATE_ERROR;
    return r;
}

/* The executable becomes the graph, which it takes over with its list of nodes if that is given,
   and `owns` in any case that succeeds. */
static ds_result ds__cuda_become(const ds__cuda_scope *scope, ds__cuda_exec *x, cudaGraph_t graph,
                                 cudaGraphNode_t *nodes, ds__cuda_owns *owns,
                                 ds_graph_update_reason *out_reason, cudaGraphNode_t *out_node) {
    cudaUserObject_t object;
    *out_reason = DS_GRAPH_UPDATE_ERROR;
    *out_node = NULL;
    ds_result r = ds__cuda_retain(scope, graph, owns, &object);
    if (r < 0)
        return r;
    r = ds__cuda_take_over(scope, x->exec, graph, out_reason, out_node);
    ds__cuda_unretain(scope, graph, object);
    if (r < 0)
        return r;
    ds__cuda_own_end(&x->owns);
    x->owns = *owns;
    memset(owns, 0, sizeof *owns);
    x->stale = nodes == NULL;
    if (nodes) {
        if (x->now != x->kept) {
            ds__cuda_ignore(scope, cudaGraphDestroy(x->now));
            ds__host_free(x->now_node);
        }
        x->now = graph;
        x->now_node = nodes;
    }
    /* whether an update leaves them off is not documented */
    for (uint32_t i = 0; i < x->count; i++)
        if (x->off[i] == 1)
            ds__cuda_ignore(scope, cudaGraphNodeSetEnabled(x->exec, x->kept_node[i], 0));
    return DS_OK;
}

static ds_result ds__cuda_exec_update(void *exec, ds__body *b, ds_graph_update_reason *out_reason,
                                      uint32_t *out_node) {
    ds__cuda_exec *x = exec;
    const ds__cuda_graph *g = b->native;
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_scope scope;
    cudaGraph_t clone = NULL;
    cudaGraphNode_t wrong = NULL;
    cudaGraphNode_t *nodes = ds__cuda_natives(b);
    *out_reason = DS_GRAPH_UPDATE_ERROR;
    *out_node = UINT32_MAX;
    ds_result r = nodes ? ds__cuda_usable(b) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK && !ds__cuda_own_all(&owns, b))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_enter(&scope, x->device);
    if (r < 0) {
        ds__cuda_own_end(&owns);
        ds__host_free(nodes);
        return r;
    }
    if (x->kept)
        r = ds__cuda_clone(&scope, g->graph, nodes, b->count, &clone, nodes + b->count);
    if (clone)
        memmove(nodes, nodes + b->count, b->count * sizeof *nodes);
    /* CUDA does not know of these that they are off */
    for (uint32_t i = 0; i < b->count && i < x->count && r == DS_OK && clone; i++)
        if (x->off[i] == 2 && ds__cuda_type(b->node[i]) == cudaGraphNodeTypeHost)
            r = ds__cuda_set(b->node[i], x->device, NULL, nodes[i], &ds__cuda_nothing);
    if (r == DS_OK)
        r = ds__cuda_become(&scope, x, clone ? clone : g->graph, clone ? nodes : NULL, &owns,
                            out_reason, &wrong);
    for (uint32_t i = 0; i < b->count && r < 0 && wrong; i++)
        if (nodes[i] == wrong)
            *out_node = i;
    if (r < 0 && clone)
        ds__cuda_ignore(&scope, cudaGraphDestroy(clone));
    if (r < 0 || !clone)
        ds__host_free(nodes);
    ds__cuda_leave(&scope);
    ds__cuda_own_end(&owns);
    return r;
}

/* Changes one node in a copy of what the executable does, and has it become that: for what CUDA
   cannot set in an executable, or not with what the node needs. fresh NULL: the node of the
   library's own host work is switched on or off. */
static ds_result ds__cuda_remake(ds__cuda_exec *x, uint32_t index, const ds__node *fresh) {
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_scope scope;
    ds_graph_update_reason reason;
    cudaGraph_t graph = NULL;
    cudaGraphNode_t wrong;
    cudaGraphNode_t *nodes;
    if (!x->kept || x->stale)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "node %u cannot be set: CUDA cannot clone the graph of the executable",
                        (unsigned)index);
    if (!(nodes = ds__host_alloc((x->count + 1u) * sizeof *nodes)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %u nodes", (unsigned)x->count);
    ds_result r = ds__cuda_enter(&scope, x->device);
    if (r < 0) {
        ds__host_free(nodes);
        return r;
    }
    if (!ds__cuda_own_copy(&owns, &x->owns, DS__CUDA_NOWHERE))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_clone(&scope, x->now, x->now_node, x->count, &graph, nodes);
    if (r == DS_OK && fresh) {
        ds__cuda_own_drop(&owns, index);
        r = ds__cuda_set_in_graph(&scope, nodes[index], fresh, x->on[index], &owns, index);
        if (r == DS_OK && fresh->child && !ds__cuda_own_attached(&owns, fresh->child, index))
            r = DS_ERR_OUT_OF_MEMORY;
    }
    if (r == DS_OK && (!fresh || x->off[index] == 2)) {
        ds__object *task = ds__cuda_own_find(&owns, index);
        struct cudaHostNodeParams host = { ds__cuda_host_node, x->off[index] || !task
                                                                   ? &ds__cuda_nothing
                                                                   : task->user };
        r = DS__RT(scope, cudaGraphHostNodeSetParams, (nodes[index], &host));
    }
    if (r == DS_OK)
        r = ds__cuda_become(&scope, x, graph, nodes, &owns, &reason, &wrong);
    if (r < 0 && graph)
        ds__cuda_ignore(&scope, cudaGraphDestroy(graph));
    if (r < 0)
        ds__host_free(nodes);
    ds__cuda_leave(&scope);
    ds__cuda_own_end(&owns);
    return r;
}

static ds_result ds__cuda_unnamed(uint32_t index) {
    return ds__fail(DS_ERR_UNSUPPORTED,
                    "node %u cannot be changed: CUDA cannot clone the graph that names its nodes",
                    (unsigned)index);
}

static ds_result ds__cuda_exec_set(void *exec, uint32_t index, const ds__node *fresh) {
    ds__cuda_exec *x = exec;
    const ds__op *op = &fresh->op;
    enum cudaGraphNodeType type = ds__cuda_type(fresh);
    if (fresh->kind == DS_NODE_EMPTY || fresh->kind == DS_NODE_NATIVE)
        return DS_OK;
    /* and rows, which CUDA sets only so */
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
    enum cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    ds__cuda_scope scope;
    unsigned char before = x->off[index];
    if (enabled == !before)
        return DS_OK;
    if (!x->kept)
        return ds__cuda_unnamed(index);
    ds_result r = ds__cuda_enter(&scope, x->device);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaGraphNodeGetType, (x->kept_node[index], &type));
    if (r == DS_OK && type != cudaGraphNodeTypeHost)
        r = DS__RT(scope, cudaGraphNodeSetEnabled,
                   (x->exec, x->kept_node[index], (unsigned)enabled));
    ds__cuda_leave(&scope);
    x->off[index] = r < 0 ? before : enabled ? 0 : type == cudaGraphNodeTypeHost ? 2 : 1;
    /* CUDA switches no host nodes */
    if (r == DS_OK && type == cudaGraphNodeTypeHost)
        r = ds__cuda_remake(x, index, NULL);
    if (r < 0)
        x->off[index] = before;
    return r;
}

static ds_result ds__cuda_launch_graph(const ds__cuda_stream *s, const ds__cuda_exec *x) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = DS__RT(scope, cudaGraphLaunch, (x->exec, s->handle));
    ds__cuda_leave(&scope);
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
    ds__cuda_leave(&scope);
    return r;
}

/* Ends what an executable kept that may still run: its blocks stay, its host functions run
   nothing any more. */
static void ds__cuda_keep_empty(ds__cuda_keep *k) {
    for (uint32_t i = 0; i < k->count; i++) {
        ds__object *o = k->object[i];
        ds__cuda_task *h = o->dtor_fn == ds__cuda_task_end ? o->user : NULL;
        if (!h) {
            ds__object_drop(o);
            continue;
        }
        ds__object *payload = h->payload;
        atomic_store(&h->fn, NULL);
        h->payload = NULL;
        ds__object_drop(payload);
    }
}

/* CUDA ends what executables kept on a thread of its own, which a busy machine may start late.
   Waits for that until a second has passed without an end. After the failure of a device CUDA may
   never end them, and a graph that another library captured may outlive the driver: what is left
   then is ended here. */
static void ds__cuda_end_keeps(void) {
    int quiet = 0;
    for (uint64_t begin = ds__now_ns(), last = 0;;) {
        uint64_t count = 0;
        ds__lock_take(&ds__cuda.host_lock);
        ds__cuda_keep *k = ds__cuda.keeps;
        ds__cuda_keep *take = NULL;
        for (const ds__cuda_keep *i = k; i; i = i->next)
            count++;
        quiet |= count == last && ds__now_ns() - begin > 1000000000u;
        for (ds__cuda_keep *i = k; i && quiet && !take; i = i->next) {
            int pending = DS__CUDA_PENDING;
            if (atomic_compare_exchange_strong(&i->state, &pending, DS__CUDA_TAKEN))
                take = i;
        }
        ds__lock_give(&ds__cuda.host_lock);
        if (!k)
            return;
        if (take) {
            ds__cuda_keep_empty(take);
            ds__cuda_unlist_keep(take);
            take->next = ds__cuda.left; /* the driver has stopped for all but this thread */
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
