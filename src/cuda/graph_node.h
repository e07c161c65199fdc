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

/* Which type of CUDA's the node is. */
static enum cudaGraphNodeType ds__cuda_type(const ds__node *n) {
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
    default:
        return cudaGraphNodeTypeEmpty;
    }
}

/* The device of a node that is made by hand: of copies and fills one that has the memory. It is
   current while the node is made or set. */
static int ds__cuda_node_device(const ds__node *n) {
    int to = ds__place_of(&n->op, DS__OP_DST) - DS__AT_DEVICE;
    int from = ds__place_of(&n->op, DS__OP_SRC) - DS__AT_DEVICE;
    if (n->kind == DS_NODE_COPY && from >= 0)
        return from;
    return (n->kind == DS_NODE_COPY || n->kind == DS_NODE_FILL) && to >= 0 ? to : n->device.index;
}

/* A launch as the parameters of a node point to it. */
typedef struct ds__cuda_call {
    ds_grid grid;
    uint64_t first;
    uint64_t count;
    void *params[DS_KERNEL_MAX_PARAMS];
} ds__cuda_call;

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
        r = ds__cuda_split(k, out->count,
                           k->cuda.items_per_block ? k->cuda.items_per_block
                           : k->cuda.block         ? k->cuda.block
                                                   : 256,
                           &most);
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

/* Adds a kernel node (graph), or sets one of a graph (neither) or of an executable (exec). */
static ds_result ds__cuda_put_kernel(const ds__cuda_scope *scope, const ds__node *n,
                                     cudaGraph_t graph, cudaGraphExec_t exec,
                                     const cudaGraphNode_t *after, size_t count,
                                     cudaGraphNode_t *node) {
    const ds__kernel *k = n->op.u.kernel.kernel;
    ds__cuda_call c;
    int code = 0;
    ds_result r = ds__cuda_prepare(scope, n, &c);
    if (r < 0)
        return r;
    if (k->cuda.native_fn) {
        struct cudaKernelNodeParams p;
        memset(&p, 0, sizeof p);
        p.func = (void *)(uintptr_t)k->cuda.native_fn;
        p.gridDim = (struct dim3){ c.grid.grid[0], c.grid.grid[1], c.grid.grid[2] };
        p.blockDim = (struct dim3){ c.grid.block[0], c.grid.block[1], c.grid.block[2] };
        p.sharedMemBytes = c.grid.shared_bytes;
        p.kernelParams = c.params;
        r = graph  ? DS__RT(*scope, cudaGraphAddKernelNode, (node, graph, after, count, &p))
            : exec ? DS__RT(*scope, cudaGraphExecKernelNodeSetParams, (exec, *node, &p))
                   : DS__RT(*scope, cudaGraphKernelNodeSetParams, (*node, &p));
    } else {
        ds__cuda_kernel_params p = {
            atomic_load(&ds__cuda_loaded(n->op.u.kernel.kernel, scope->device)->function),
            c.grid.grid[0],
            c.grid.grid[1],
            c.grid.grid[2],
            c.grid.block[0],
            c.grid.block[1],
            c.grid.block[2],
            c.grid.shared_bytes,
            c.params,
            NULL,
            NULL,
            NULL
        };
        if (graph)
            DS__DR_CODE(*scope, code, cuGraphAddKernelNode, (node, graph, after, count, &p));
        else if (exec)
            DS__DR_CODE(*scope, code, cuGraphExecKernelNodeSetParams, (exec, *node, &p));
        else
            DS__DR_CODE(*scope, code, cuGraphKernelNodeSetParams, (*node, &p));
        if (code)
            r = ds__cuda_fail(scope,
                              graph  ? "cuGraphAddKernelNode"
                              : exec ? "cuGraphExecKernelNodeSetParams"
                                     : "cuGraphKernelNodeSetParams",
                              code);
    }
    return r < 0 ? ds__fail_append(r, " (kernel %s)", k->name) : r;
}

static struct cudaMemcpy3DParms ds__cuda_copy_params(const ds__op *op) {
    int to = ds__cuda_where(op->places >> DS__OP_DST & 255u);
    int from = ds__cuda_where(op->places >> DS__OP_SRC & 255u);
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    struct cudaMemcpy3DParms p;
    memset(&p, 0, sizeof p);
    p.dstPtr.ptr = op->u.copy.dst;
    p.srcPtr.ptr = (void *)(uintptr_t)op->u.copy.src;
    p.dstPtr.pitch = height > 1 ? op->u.copy.dst_pitch : width;
    p.srcPtr.pitch = height > 1 ? op->u.copy.src_pitch : width;
    p.dstPtr.xsize = p.srcPtr.xsize = p.extent.width = width;
    p.dstPtr.ysize = p.srcPtr.ysize = p.extent.height = height;
    p.extent.depth = 1;
    p.kind = ds__cuda_kind(to, from);
    return p;
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

/* Adds a native node of the picture's node; what it needs is kept under its index. No scope is
   needed. */
static ds_result ds__cuda_add(ds__cuda_graph *g, const ds__node *n, uint32_t index,
                              const cudaGraphNode_t *after, size_t count, cudaGraphNode_t *out) {
    cudaGraph_t graph = g->graph;
    ds__cuda_scope scope;
    ds__object *task = NULL;
    if (n->kind == DS_NODE_NATIVE)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "a node captured from other libraries can only be cloned with its graph");
    if (n->kind == DS_NODE_COPY && (ds__place_of(&n->op, DS__OP_DST) == DS__AT_OTHER ||
                                    ds__place_of(&n->op, DS__OP_SRC) == DS__AT_OTHER))
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "a graph cannot copy between devices of different drivers");
    ds_result r = n->child && n->enabled ? ds__cuda_child_native(n->child) : DS_OK;
    if (r == DS_OK)
        r = ds__cuda_enter(&scope, n->device.index);
    if (r < 0)
        return r;
    struct cudaHostNodeParams host = { ds__cuda_host_node, NULL };
    struct cudaMemcpy3DParms copy;
    struct cudaMemsetParams fill;
    /* off: of an executable whose launch was captured */
    switch (n->enabled ? ds__cuda_type(n) : cudaGraphNodeTypeEmpty) {
    case cudaGraphNodeTypeKernel:
        r = ds__cuda_put_kernel(&scope, n, graph, NULL, after, count, out);
        if (r == DS_OK && n->priority &&
            (r = ds__cuda_set_priority(&scope, *out, n->priority)) < 0) {
            /* no node of a graph that is being captured may go, and a priority is only a hint */
            if (g->capture)
                r = DS_OK;
            else
                ds__cuda_ignore(&scope, cudaGraphDestroyNode(*out));
        }
        break;
    case cudaGraphNodeTypeMemcpy:
        copy = ds__cuda_copy_params(&n->op);
        r = DS__RT(scope, cudaGraphAddMemcpyNode, (out, graph, after, count, &copy));
        break;
    case cudaGraphNodeTypeMemset:
        fill = ds__cuda_fill_params(&n->op);
        r = DS__RT(scope, cudaGraphAddMemsetNode, (out, graph, after, count, &fill));
        break;
    case cudaGraphNodeTypeHost:
        task = ds__cuda_task_new(n);
        if (!task || !ds__cuda_own_room(&g->owns)) {
            r = DS_ERR_OUT_OF_MEMORY;
            break;
        }
        host.userData = task->user;
        r = DS__RT(scope, cudaGraphAddHostNode, (out, graph, after, count, &host));
        if (r == DS_OK) {
            g->owns.at[g->owns.count++] = (ds__cuda_own){ index, task };
            task = NULL;
        }
        break;
    case cudaGraphNodeTypeEventRecord:
        r = DS__RT(scope, cudaGraphAddEventRecordNode,
                   (out, graph, after, count, ((ds__cuda_event *)n->op.u.event.event)->event));
        break;
    case cudaGraphNodeTypeWaitEvent:
        r = DS__RT(scope, cudaGraphAddEventWaitNode,
                   (out, graph, after, count, ((ds__cuda_event *)n->op.u.event.event)->event));
        break;
    case cudaGraphNodeTypeGraph: {
        const ds__cuda_graph *child = n->child->native;
        if (!ds__cuda_own_copy(&g->owns, &child->owns, index))
            r = DS_ERR_OUT_OF_MEMORY;
        else
            r = DS__RT(scope, cudaGraphAddChildGraphNode, (out, graph, after, count, child->graph));
        if (r < 0)
            ds__cuda_own_drop(&g->owns, index);
        break;
    }
    default:
        r = DS__RT(scope, cudaGraphAddEmptyNode, (out, graph, after, count));
        break;
    }
    ds__object_drop(task);
    ds__cuda_leave(&scope);
    return r;
}

#endif
