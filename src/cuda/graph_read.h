/* cuda/graph_read.h - native graphs read into shadow graphs.

   Reads nodes (ds__cuda_read_nodes) and dependencies (ds__cuda_read_after) of a CUDA graph into its
   shadow graph (ds__body). Finds the index of a native node (ds__cuda_index).

   Invariants: A node that the shadow graph lacks is appended as a node of kind DS_NODE_NATIVE, in
   CUDA's order and with its dependencies. Known nodes stay as they are. Dependencies on nodes
   outside the shadow graph are left out.
   Locks: takes none. The caller holds the capture lock if a capture makes the graph, else the
   graph's lock in the core. Driver calls run under it.
   Threads: any. */
#ifndef DS__CUDA_GRAPH_READ_H
#define DS__CUDA_GRAPH_READ_H

#include "call.h"
#include "graph_types.h"

/* Returns the native node of a node. */
static cudaGraphNode_t ds__cuda_native(const ds__node *n) {
    return n->native;
}

/* Returns 1 if the graph has nodes of unknown kind. in_children: also if a child graph has some. */
static int ds__cuda_has_unknown(const ds__body *b, int in_children) {
    for (uint32_t i = 0; i < b->count; i++)
        if (b->node[i]->kind == DS_NODE_NATIVE ||
            (in_children && b->node[i]->child && ds__cuda_has_unknown(b->node[i]->child, 1)))
            return 1;
    return 0;
}

/* Returns the index of a native node in the shadow graph, or UINT32_MAX. The search begins before
   `below` and goes down, because most nodes are near it. */
static uint32_t ds__cuda_index(const ds__body *b, cudaGraphNode_t native, uint32_t below) {
    for (uint32_t k = 0, i = below; k < b->count; k++) {
        i = i ? i - 1 : b->count - 1;
        if (b->node[i]->native == (void *)native)
            return i;
    }
    return UINT32_MAX;
}

/* Gives the native nodes on which a node depends. The caller frees *out, also after a failure. The
   nodes are not counted first: edges that other libraries have captured may have data, and then
   CUDA may refuse a query without room for it (pytorch#168305). */
static ds_result ds__cuda_get_after(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                    cudaGraphNode_t **out, size_t *count) {
    size_t room = 8;
    for (;; room *= 8) {
        *count = room;
        *out = ds__host_alloc(room * (sizeof(cudaGraphNode_t) + DS__CUDART_EDGE));
        if (!*out)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu dependencies", room);
        ds_result r = ds__cuda_check(scope, ds__cudart_dependencies(node, *out, *out + room, count),
                                     "cudaGraphNodeGetDependencies");
        if (r < 0 || *count < room)
            return r;
        ds__host_free(*out);
    }
}

/* Reads the dependencies of a node into the shadow graph. */
static ds_result ds__cuda_read_after(const ds__cuda_scope *scope, ds__body *b, uint32_t index) {
    cudaGraphNode_t *after;
    size_t count;
    ds__node *n = b->node[index];
    ds_result r =
        ds__cuda_get_after(scope, ds__cuda_first_of(b->native, ds__cuda_native(n)), &after, &count);
    if (r == DS_OK)
        n->dep_count = 0;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t on = ds__cuda_index(b, after[i], index);
        if (on != UINT32_MAX && !ds__node_depend(n, on))
            r = DS_ERR_OUT_OF_MEMORY;
    }
    ds__host_free(after);
    return r;
}

/* Gives the nodes of a native graph in CUDA's order. The caller frees *out in any case. */
static ds_result ds__cuda_get_nodes(const ds__cuda_scope *scope, cudaGraph_t graph,
                                    cudaGraphNode_t **out, size_t *count) {
    *out = NULL;
    ds_result r = DS__RT(*scope, cudaGraphGetNodes, (graph, NULL, count));
    if (r < 0 || !*count)
        return r;
    *out = ds__host_alloc(*count * sizeof(cudaGraphNode_t));
    if (!*out)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu nodes", *count);
    return DS__RT(*scope, cudaGraphGetNodes, (graph, *out, count));
}

/* Appends a node of unknown kind to the shadow graph. */
static ds_result ds__cuda_append_unknown(ds__body *b, cudaGraphNode_t native) {
    ds__op op;
    memset(&op, 0, sizeof op);
    op.kind = DS__OP_NOTHING;
    ds__node *n = ds__node_create(&op, b->device, 0);
    if (n) {
        n->kind = DS_NODE_NATIVE;
        n->native = native;
    }
    ds_result r = n ? ds__body_append(b, n, NULL, 0) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0)
        ds__node_destroy(n);
    return r;
}

/* Appends the nodes that the shadow graph lacks, in CUDA's order, as nodes of unknown kind with
   their dependencies. */
static ds_result ds__cuda_read_nodes(const ds__cuda_scope *scope, ds__body *b) {
    ds__cuda_graph *g = b->native;
    cudaGraphNode_t *all;
    size_t count = 0;
    ds_result r = DS__RT(*scope, cudaGraphGetNodes, (g->graph, NULL, &count));
    uint32_t known = b->count + g->setter_count;
    if (r < 0 || count <= known)
        return r;
    r = ds__cuda_get_nodes(scope, g->graph, &all, &count);
    size_t missing = count > known ? count - known : 0;
    size_t first = count;
    while (r == DS_OK && missing && first > 0) {
        int is_new = ds__cuda_index(b, all[--first], b->count) == UINT32_MAX &&
                     !ds__cuda_is_setter(g, all[first]);
        missing -= (size_t)is_new;
        if (!is_new)
            all[first] = NULL;
    }
    uint32_t before = b->count;
    for (size_t i = first; i < count && r == DS_OK; i++)
        if (all[i])
            r = ds__cuda_append_unknown(b, all[i]);
    ds__host_free(all);
    for (uint32_t i = before; i < b->count && r == DS_OK; i++)
        r = ds__cuda_read_after(scope, b, i);
    return r;
}

#endif
