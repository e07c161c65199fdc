/* cuda/graph_node.h - native nodes.

   Translates a node of the shadow graph (ds__node) into CUDA's parameters and adds its native node
   to a graph (ds__cuda_add). ds__cuda_put_kernel adds a kernel node, or sets one in a graph or an
   executable.

   Invariants: The device of a node is current while the node is made or set. The data of a host or
   child node is kept in the graph under the index from the caller; after a failure nothing is kept.
   One kernel node is one launch, so more items than one launch can have are refused. A switched-off
   node becomes an empty node.
   Locks: none of its own. The caller holds the locks that graph.h and graph_exec.h name. A kernel
   that is not loaded, or needs more dynamic shared memory, takes ds__cuda.mutex.
   Threads: any. */
#ifndef DS__CUDA_GRAPH_NODE_H
#define DS__CUDA_GRAPH_NODE_H

#include "types.h"
#include "call.h"
#include "copy_plain.h"
#include "module.h"
#include "launch.h"
#include "graph_types.h"
#include "value.h"

/* Returns the type of the native node. It may be DS__CUDA_NODE_VALUES. */
static int ds__cuda_type(const ds__node *n) {
    unsigned to = n->op.places >> DS__OP_DST & 255u;
    unsigned from = n->op.places >> DS__OP_SRC & 255u;
    switch (n->kind) {
    case DS_NODE_KERNEL:
        return cudaGraphNodeTypeKernel;
    case DS_NODE_COPY:
        return ds__cuda_on_gpu(to) || ds__cuda_on_gpu(from) ? cudaGraphNodeTypeMemcpy
                                                            : cudaGraphNodeTypeHost;
    case DS_NODE_FILL:
        return ds__cuda_on_gpu(to) ? cudaGraphNodeTypeMemset : cudaGraphNodeTypeHost;
    case DS_NODE_HOST:
        return cudaGraphNodeTypeHost;
    case DS_NODE_EVENT_RECORD:
        return cudaGraphNodeTypeEventRecord;
    case DS_NODE_EVENT_WAIT:
        return cudaGraphNodeTypeWaitEvent;
    case DS_NODE_CHILD:
        return cudaGraphNodeTypeGraph;
    case DS_NODE_VALUES:
        return DS__CUDA_NODE_VALUES;
    case DS_NODE_CONDITION:
        return DS__CUDA_NODE_CONDITION;
    default:
        return cudaGraphNodeTypeEmpty;
    }
}

/* Returns the device of a node that was not captured; for copies and fills, a device that has the
   memory. */
static int ds__cuda_node_device(const ds__node *n) {
    int to = ds__place_of(&n->op, DS__OP_DST) - DS__AT_DEVICE;
    int from = ds__place_of(&n->op, DS__OP_SRC) - DS__AT_DEVICE;
    if (n->kind == DS_NODE_COPY && from >= 0)
        return from;
    return (n->kind == DS_NODE_COPY || n->kind == DS_NODE_FILL) && to >= 0 ? to : n->device.index;
}

/* A launch, to which the parameters of a native node point. */
typedef struct ds__cuda_call {
    ds_grid grid;
    uint64_t first;
    uint64_t count;
    void *params[DS_KERNEL_MAX_PARAMS];
} ds__cuda_call;

/* Fills in the launch of a kernel node, and loads the kernel if necessary. */
static ds_result ds__cuda_prepare(const ds__cuda_scope *scope, const ds__node *n,
                                  ds__cuda_call *out) {
    ds__kernel *k = n->op.u.kernel.kernel;
    ds_result r = ds__cuda_loaded(k, scope->device) ? DS_OK : ds__cuda_ready(scope, k);
    if (r < 0)
        return r;
    out->first = 0;
    out->count = n->op.u.kernel.items;
    ds__cuda_params(k, n->op.u.kernel.args, &out->first, &out->count, out->params);
    if (n->op.u.kernel.grid) {
        out->grid = ds__grid_whole(n->op.u.kernel.grid);
    } else {
        uint64_t most;
        r = ds__cuda_split(k, out->count, &most);
        if (r == DS_OK && out->count > most)
            r = ds__fail(DS_ERR_UNSUPPORTED,
                         "kernel %s: %zu items need several launches, but a node is one launch",
                         k->name, n->op.u.kernel.items);
        out->grid = ds__cuda_items_grid(k, scope->device, out->count);
    }
    ds__cuda_function *f = ds__cuda_loaded(k, scope->device);
    if (r == DS_OK && out->grid.shared_bytes > atomic_load(&f->shared))
        r = ds__cuda_allow_shared(scope, k, f, out->grid.shared_bytes);
    return r;
}

/* Adds or sets a kernel node whose function is linked into the program. */
static ds_result ds__cuda_put_linked(const ds__cuda_scope *scope, const ds__kernel *k,
                                     ds__cuda_call *c, const ds__cuda_target *to,
                                     cudaGraphNode_t *node) {
    struct cudaKernelNodeParams p;
    memset(&p, 0, sizeof p);
    p.func = (void *)(uintptr_t)k->cuda.native_fn;
    p.gridDim = (struct dim3){ c->grid.grid[0], c->grid.grid[1], c->grid.grid[2] };
    p.blockDim = (struct dim3){ c->grid.block[0], c->grid.block[1], c->grid.block[2] };
    p.sharedMemBytes = c->grid.shared_bytes;
    p.kernelParams = c->params;
    if (to->graph)
        return DS__RT(*scope, cudaGraphAddKernelNode, (node, to->graph, to->after, to->count, &p));
    if (to->exec)
        return DS__RT(*scope, cudaGraphExecKernelNodeSetParams, (to->exec, *node, &p));
    return DS__RT(*scope, cudaGraphKernelNodeSetParams, (*node, &p));
}

/* Adds or sets a kernel node whose function was loaded from an image. */
static ds_result ds__cuda_put_loaded(const ds__cuda_scope *scope, ds__kernel *k, ds__cuda_call *c,
                                     const ds__cuda_target *to, cudaGraphNode_t *node) {
    ds__cuda_kernel_params p = { .function =
                                     atomic_load(&ds__cuda_loaded(k, scope->device)->function),
                                 .grid_x = c->grid.grid[0],
                                 .grid_y = c->grid.grid[1],
                                 .grid_z = c->grid.grid[2],
                                 .block_x = c->grid.block[0],
                                 .block_y = c->grid.block[1],
                                 .block_z = c->grid.block[2],
                                 .shared_bytes = c->grid.shared_bytes,
                                 .params = c->params };
    ds_result r;
    if (to->graph)
        DS__DR(*scope, r, cuGraphAddKernelNode, (node, to->graph, to->after, to->count, &p));
    else if (to->exec)
        DS__DR(*scope, r, cuGraphExecKernelNodeSetParams, (to->exec, *node, &p));
    else
        DS__DR(*scope, r, cuGraphKernelNodeSetParams, (*node, &p));
    return r;
}

/* Adds a kernel node, which *node becomes, or sets *node. The device of the node is current. */
static ds_result ds__cuda_put_kernel(const ds__cuda_scope *scope, const ds__node *n,
                                     const ds__cuda_target *to, cudaGraphNode_t *node) {
    ds__kernel *k = n->op.u.kernel.kernel;
    ds__cuda_call c;
    ds_result r = ds__cuda_prepare(scope, n, &c);
    if (r < 0)
        return r;
    r = k->cuda.native_fn ? ds__cuda_put_linked(scope, k, &c, to, node)
                          : ds__cuda_put_loaded(scope, k, &c, to, node);
    return r < 0 ? ds__fail_append(r, " (kernel %s)", k->name) : r;
}

/* Fills in the parameters of a copy node. Such a node cannot name devices, so a copy between two
   GPUs is refused if it would have to. Inside of a scope of the node's device. */
static ds_result ds__cuda_copy_params(const ds__cuda_scope *scope, const ds__op *op,
                                      struct cudaMemcpy3DParms *out) {
    int to = ds__cuda_where(op->places >> DS__OP_DST & 255u);
    int from = ds__cuda_where(op->places >> DS__OP_SRC & 255u);
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    int access = DS__CUDA_FULL_ACCESS;
    ds_result r = DS_OK;
    if (to >= 0 && from >= 0 && to != from)
        r = ds__cuda_copy_access(scope, op, to, from, &access);
    if (r < 0)
        return r;
    if (access == DS__CUDA_NO_ACCESS)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "a copy from cuda:%d to cuda:%d cannot be a node: cuda:%d has no access to "
                        "the other GPU's memory; capture the copy, or use memory of "
                        "ds_device_alloc or two copies through pinned memory",
                        from, to, scope->device);
    memset(out, 0, sizeof *out);
    out->dstPtr.ptr = op->u.copy.dst;
    out->srcPtr.ptr = (void *)(uintptr_t)op->u.copy.src;
    out->dstPtr.pitch = height > 1 ? op->u.copy.dst_pitch : width;
    out->srcPtr.pitch = height > 1 ? op->u.copy.src_pitch : width;
    out->dstPtr.xsize = out->srcPtr.xsize = out->extent.width = width;
    out->dstPtr.ysize = out->srcPtr.ysize = out->extent.height = height;
    out->extent.depth = 1;
    out->kind = ds__cuda_kind(to, from);
    return DS_OK;
}

static struct cudaMemsetParams ds__cuda_fill_params(const ds__op *op) {
    static const unsigned mask[] = { 0, 0xff, 0xffff, 0, 0xffffffffu };
    struct cudaMemsetParams p;
    memset(&p, 0, sizeof p);
    p.dst = op->u.fill.dst;
    p.pitch = op->u.fill.height > 1 ? op->u.fill.pitch : 0;
    p.elementSize = (unsigned)op->u.fill.value_size;
    p.width = op->u.fill.width;
    p.height = op->u.fill.height;
    p.value = op->u.fill.value & mask[op->u.fill.value_size];
    return p;
}

static ds_result ds__cuda_set_priority(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                       int value) {
    cudaLaunchAttributeValue priority;
    memset(&priority, 0, sizeof priority);
    priority.priority = value;
    return DS__RT(*scope, cudaGraphKernelNodeSetAttribute,
                  (node, cudaLaunchAttributePriority, &priority));
}

/* Adds a kernel node with its attributes and its priority. */
static ds_result ds__cuda_add_kernel(const ds__cuda_scope *scope, const ds__cuda_graph *g,
                                     const ds__node *n, const ds__cuda_target *to,
                                     cudaGraphNode_t *out) {
    const ds__kernel *k = n->op.u.kernel.kernel;
    ds__cuda_attributes a = { .count = 0 };
    ds_result r = DS_OK;
    if (n->op.u.kernel.grid) {
        ds_grid grid = ds__grid_whole(n->op.u.kernel.grid);
        r = ds__cuda_attributes_of(scope, &grid, &a);
    }
    if (r < 0)
        return ds__fail_append(r, " (kernel %s)", k->name);
    r = ds__cuda_put_kernel(scope, n, to, out);
    if (r < 0 || (!n->priority && !a.count))
        return r;
    r = ds__cuda_set_attributes(scope, *out, &a);
    if (r == DS_OK && n->priority) {
        r = ds__cuda_set_priority(scope, *out, n->priority);
        /* while a capture makes the graph, its nodes cannot be destroyed; a priority is only a
           hint */
        r = g->capture ? DS_OK : r;
    }
    if (r < 0 && !g->capture)
        (void)DS__RT_CODE(*scope, cudaGraphDestroyNode, (*out));
    return r < 0 ? ds__fail_append(r, " (kernel %s)", k->name) : r;
}

/* Adds a host node, or a copy or fill of host memory. Its task is kept for the index. */
static ds_result ds__cuda_add_host(const ds__cuda_scope *scope, ds__cuda_graph *g,
                                   const ds__node *n, uint32_t index, const ds__cuda_target *to,
                                   cudaGraphNode_t *out) {
    struct cudaHostNodeParams host = { ds__cuda_host_node, NULL };
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    ds__object *task = ds__cuda_task_create(n);
    if (!task || !ds__cuda_own_room(&g->owns))
        goto fail;
    host.userData = task->user;
    r = DS__RT(*scope, cudaGraphAddHostNode, (out, to->graph, to->after, to->count, &host));
    if (r < 0)
        goto fail;
    g->owns.at[g->owns.count++] = (ds__cuda_own){ index, task };
    return DS_OK;

fail:
    ds__object_unref(task);
    return r;
}

/* Adds a child graph, which CUDA copies. The objects of the child are kept for the index. */
static ds_result ds__cuda_add_child(const ds__cuda_scope *scope, ds__cuda_graph *g,
                                    const ds__cuda_graph *child, uint32_t index,
                                    const ds__cuda_target *to, cudaGraphNode_t *out) {
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    if (ds__cuda_own_copy(&g->owns, &child->owns, index))
        r = DS__RT(*scope, cudaGraphAddChildGraphNode,
                   (out, to->graph, to->after, to->count, child->graph));
    if (r < 0)
        ds__cuda_own_remove(&g->owns, index);
    return r;
}

/* Adds the native node of a node by its type. A node that is switched off, of an executable whose
   launch was captured, becomes an empty one. Inside of a scope of the node's device. */
static ds_result ds__cuda_add_native(const ds__cuda_scope *scope, ds__cuda_graph *g,
                                     const ds__node *n, uint32_t index, const ds__cuda_target *to,
                                     cudaGraphNode_t *out) {
    const ds__cuda_event *event = n->op.u.event.event; /* of the nodes that have one */
    struct cudaMemcpy3DParms copy;
    struct cudaMemsetParams fill;
    ds_result r;
    switch (n->enabled ? ds__cuda_type(n) : cudaGraphNodeTypeEmpty) {
    case cudaGraphNodeTypeKernel:
        r = ds__cuda_add_kernel(scope, g, n, to, out);
        break;
    case cudaGraphNodeTypeMemcpy:
        r = ds__cuda_copy_params(scope, &n->op, &copy);
        if (r == DS_OK)
            r = DS__RT(*scope, cudaGraphAddMemcpyNode,
                       (out, to->graph, to->after, to->count, &copy));
        break;
    case cudaGraphNodeTypeMemset:
        fill = ds__cuda_fill_params(&n->op);
        r = DS__RT(*scope, cudaGraphAddMemsetNode, (out, to->graph, to->after, to->count, &fill));
        break;
    case cudaGraphNodeTypeHost:
        r = ds__cuda_add_host(scope, g, n, index, to, out);
        break;
    case cudaGraphNodeTypeEventRecord:
        r = DS__RT(*scope, cudaGraphAddEventRecordNode,
                   (out, to->graph, to->after, to->count, event->event));
        break;
    case cudaGraphNodeTypeWaitEvent:
        r = DS__RT(*scope, cudaGraphAddEventWaitNode,
                   (out, to->graph, to->after, to->count, event->event));
        break;
    case DS__CUDA_NODE_VALUES:
        r = ds__cuda_put_values(scope, &n->op, to, out);
        break;
    case DS__CUDA_NODE_CONDITION:
        r = ds__cuda_add_condition(scope, g, n, to, out);
        break;
    case cudaGraphNodeTypeGraph:
        r = ds__cuda_add_child(scope, g, n->child->native, index, to, out);
        break;
    default:
        r = DS__RT(*scope, cudaGraphAddEmptyNode, (out, to->graph, to->after, to->count));
        break;
    }
    return r;
}

/* Adds the native node of a node, which depends on the native nodes `after`. The data of the node
   is kept for its index. Opens a scope of the node's device. */
static ds_result ds__cuda_add(ds__cuda_graph *g, const ds__node *n, uint32_t index,
                              const cudaGraphNode_t *after, size_t count, cudaGraphNode_t *out) {
    const ds__cuda_target to = { .graph = g->graph, .after = after, .count = count };
    ds__cuda_scope scope;
    if (n->kind == DS_NODE_NATIVE)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "a node captured from other libraries can only be cloned with its graph");
    if (n->kind == DS_NODE_COPY && (ds__place_of(&n->op, DS__OP_DST) == DS__AT_OTHER ||
                                    ds__place_of(&n->op, DS__OP_SRC) == DS__AT_OTHER))
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "a graph cannot copy between devices of different drivers");
    ds_result r = n->kind == DS_NODE_CHILD && n->enabled ? ds__cuda_child_native(n->child) : DS_OK;
    if (r == DS_OK)
        r = ds__cuda_scope_begin(&scope, n->device.index);
    if (r < 0)
        return r;
    r = ds__cuda_add_native(&scope, g, n, index, &to, out);
    ds__cuda_scope_end(&scope);
    return r;
}

#endif
