/* cuda/graph_set.h - changes of nodes in graphs and executables.

   Changes a node of a graph (ds__cuda_graph_set), of a child graph (ds__cuda_set_child) or of an
   executable (ds__cuda_set). If CUDA cannot change a node in place, ds__cuda_graph_set builds the
   native graph anew. A new node instead would be the last one of its graph, and updates of
   executables depend on the order.

   Invariants: A graph with nodes of unknown kind, or in the making by a capture, cannot be built
   anew; such a change is refused. If ds__cuda_graph_set fails, the graph's kept objects are
   unchanged. A child graph is changed only if it has the same nodes and dependencies in the same
   order.
   Locks: takes none. The core holds the lock of the graph or executable, and the capture lock while
   a capture makes the graph. Driver calls run under them; setting a kernel node may take
   ds__cuda.mutex.
   Threads: any. */
#ifndef DS__CUDA_GRAPH_SET_H
#define DS__CUDA_GRAPH_SET_H

#include "types.h"
#include "call.h"
#include "graph_types.h"
#include "graph_read.h"
#include "graph_node.h"
#include "graph.h"

/* Sets a native node of a graph, or with `exec` the node of an executable that it names. device:
   the one on which the node was made. task: the data of a host node. */
static ds_result ds__cuda_set(const ds__node *n, int device, cudaGraphExec_t exec,
                              cudaGraphNode_t node, void *task) {
    ds__cuda_scope scope;
    const ds__cuda_target to = { .exec = exec };
    struct cudaHostNodeParams host = { ds__cuda_host_node, task };
    const ds__cuda_event *event = n->op.u.event.event; /* of the nodes that have one */
    struct cudaMemcpy3DParms copy;
    struct cudaMemsetParams fill;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    switch (ds__cuda_type(n)) {
    case cudaGraphNodeTypeKernel:
        r = ds__cuda_put_kernel(&scope, n, &to, &node);
        break;
    case cudaGraphNodeTypeMemcpy:
        r = ds__cuda_copy_params(&scope, &n->op, &copy);
        if (r == DS_OK)
            r = exec ? DS__RT(scope, cudaGraphExecMemcpyNodeSetParams, (exec, node, &copy))
                     : DS__RT(scope, cudaGraphMemcpyNodeSetParams, (node, &copy));
        break;
    case cudaGraphNodeTypeMemset:
        fill = ds__cuda_fill_params(&n->op);
        r = exec ? DS__RT(scope, cudaGraphExecMemsetNodeSetParams, (exec, node, &fill))
                 : DS__RT(scope, cudaGraphMemsetNodeSetParams, (node, &fill));
        break;
    case cudaGraphNodeTypeHost:
        r = DS__RT(scope, cudaGraphHostNodeSetParams, (node, &host));
        break;
    case cudaGraphNodeTypeEventRecord:
        r = exec ? DS__RT(scope, cudaGraphExecEventRecordNodeSetEvent, (exec, node, event->event))
                 : DS__RT(scope, cudaGraphEventRecordNodeSetEvent, (node, event->event));
        break;
    case cudaGraphNodeTypeWaitEvent:
        r = exec ? DS__RT(scope, cudaGraphExecEventWaitNodeSetEvent, (exec, node, event->event))
                 : DS__RT(scope, cudaGraphEventWaitNodeSetEvent, (node, event->event));
        break;
    case DS__CUDA_NODE_VALUES:
        r = ds__cuda_put_values(&scope, &n->op, &to, &node);
        break;
    default:
        break;
    }
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_set_child(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                    const ds__body *child, ds__cuda_owns *owns, uint32_t tag);

/* Sets the native node of a graph to the work of a node. The objects of the node are added to
   `owns` for `tag`. Inside of any scope. */
static ds_result ds__cuda_set_in_graph(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                       const ds__node *n, int device, ds__cuda_owns *owns,
                                       uint32_t tag) {
    int type = cudaGraphNodeTypeEmpty;
    if (n->kind == DS_NODE_NATIVE)
        return DS_OK;
    ds_result r;
    DS__DR(*scope, r, cuGraphNodeGetType, (node, &type));
    if (r == DS_OK && type != ds__cuda_type(n))
        r = ds__fail(DS_ERR_UNSUPPORTED, "CUDA cannot change a node of type %d to type %d", type,
                     ds__cuda_type(n));
    if (r < 0)
        return r;
    if (n->kind == DS_NODE_CHILD)
        return ds__cuda_set_child(scope, node, n->child, owns, tag);
    if (type != cudaGraphNodeTypeHost)
        return ds__cuda_set(n, device, NULL, node, NULL);
    ds__object *task = ds__cuda_task_create(n);
    if (!task || !ds__cuda_own_room(owns)) {
        ds__object_unref(task);
        return DS_ERR_OUT_OF_MEMORY;
    }
    owns->at[owns->count++] = (ds__cuda_own){ tag, task };
    return ds__cuda_set(n, device, NULL, node, task->user);
}

/* Refuses a native node whose dependencies are not those of the shadow graph. nodes: the native
   ones in the order of the shadow graph. */
static ds_result ds__cuda_fits(const ds__cuda_scope *scope, const cudaGraphNode_t *nodes,
                               const ds__body *b, uint32_t index) {
    const ds__node *n = b->node[index];
    cudaGraphNode_t *after;
    size_t count;
    size_t found = 0;
    ds_result r = ds__cuda_get_after(scope, nodes[index], &after, &count);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        for (uint32_t k = 0; k < n->dep_count; k++)
            found += after[i] == nodes[n->deps[k]];
    ds__host_free(after);
    if (r == DS_OK && (count != n->dep_count || found != count))
        r = ds__fail(DS_ERR_UNSUPPORTED,
                     "node %u of the new child graph has other dependencies than the present child",
                     (unsigned)index);
    return r;
}

/* Sets the nodes of the graph in a child node. CUDA lists them in the order in which they were
   added, which is that of the shadow graph; the dependencies are compared to make sure. */
static ds_result ds__cuda_set_child(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                    const ds__body *child, ds__cuda_owns *owns, uint32_t tag) {
    cudaGraph_t inner = NULL;
    cudaGraphNode_t *nodes = NULL;
    size_t count = 0;
    ds_result r = DS__RT(*scope, cudaGraphChildGraphNodeGetGraph, (node, &inner));
    if (r == DS_OK)
        r = ds__cuda_get_nodes(scope, inner, &nodes, &count);
    if (r == DS_OK && count != child->count)
        r = ds__fail(DS_ERR_UNSUPPORTED, "the new child graph has %u nodes, the present child %zu",
                     (unsigned)child->count, count);
    for (uint32_t i = 0; i < count && r == DS_OK; i++) {
        const ds__node *n = child->node[i];
        r = ds__cuda_fits(scope, nodes, child, i);
        if (r == DS_OK) /* only nodes of an executable itself can be disabled */
            r = ds__cuda_set_in_graph(scope, nodes[i], n, n->device.index, owns, tag);
    }
    ds__host_free(nodes);
    return r;
}

/* Returns 1 if the native graph can be built anew from the shadow graph. */
static int ds__cuda_can_rebuild(const ds__body *b) {
    return !((const ds__cuda_graph *)b->native)->capture && !ds__cuda_has_unknown(b, 0);
}

/* Returns 1 if CUDA cannot set the native node of `old` to the work of `fresh`. CUDA ties copies
   and fills to the context in which they were made, and does not document how a node loses an
   attribute. If the graph cannot be built anew, CUDA decides about such a change. */
static int ds__cuda_needs_rebuild(const ds__body *b, const ds__node *old, const ds__node *fresh) {
    int type = ds__cuda_type(fresh);
    if (type != ds__cuda_type(old) || fresh->kind == DS_NODE_CHILD ||
        fresh->kind == DS_NODE_CONDITION)
        return 1;
    if (fresh->kind == DS_NODE_KERNEL)
        return fresh->device.index != old->device.index ||
               !ds__grid_same_attributes(fresh->op.u.kernel.grid, old->op.u.kernel.grid) ||
               !fresh->op.u.kernel.kernel->cuda.native_fn !=
                   !old->op.u.kernel.kernel->cuda.native_fn;
    if (fresh->kind == DS_NODE_VALUES)
        return fresh->device.index != old->device.index;
    return (type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeMemset) &&
           ds__cuda_node_device(fresh) != ds__cuda_node_device(old) && ds__cuda_can_rebuild(b);
}

/* Sets the native node of a node to the work of `fresh`, with its priority. */
static ds_result ds__cuda_set_in_place(ds__body *b, uint32_t index, const ds__node *fresh) {
    ds__cuda_graph *g = b->native;
    const ds__node *old = b->node[index];
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_scope scope;
    ds_result r = ds__cuda_scope_begin(&scope, b->device.index);
    if (r < 0)
        return r;
    cudaGraphNode_t node = ds__cuda_native(old);
    int priority = fresh->kind == DS_NODE_KERNEL && fresh->priority != old->priority;
    if (priority)
        r = ds__cuda_set_priority(&scope, node, fresh->priority);
    if (r == DS_OK && !ds__cuda_own_room(&g->owns))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_set_in_graph(&scope, node, fresh, fresh->device.index, &owns, index);
    if (r < 0 && priority)
        DS_IGNORE(ds__cuda_set_priority(&scope, node, old->priority));
    if (r == DS_OK && owns.count) {
        ds__cuda_own_remove(&g->owns, index);
        g->owns.at[g->owns.count++] = owns.at[0];
        owns.count = 0;
    }
    ds__cuda_own_end(&owns);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Changes a node, in place if CUDA can, else by a new native graph. */
static ds_result ds__cuda_graph_set(ds__body *b, uint32_t index, ds__node *fresh) {
    const ds__cuda_graph *g = b->native;
    const ds__node *old = b->node[index];
    ds_result r = ds__cuda_usable(b);
    if (r < 0)
        return r;
    if (!ds__cuda_needs_rebuild(b, old, fresh)) {
        fresh->device.index = old->device.index; /* that of its stream, if it was captured */
        return ds__cuda_set_in_place(b, index, fresh);
    }
    if (!ds__cuda_can_rebuild(b))
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "CUDA does not support this change, and the graph cannot be rebuilt: %s",
                        g->capture ? "a capture adds nodes to it"
                                   : "it has nodes captured from other libraries");
    fresh->device.index = ds__cuda_node_device(fresh);
    return ds__cuda_rebuild(b, index, fresh);
}

#endif
