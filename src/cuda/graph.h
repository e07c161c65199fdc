/* cuda/graph.h - native graphs: creation, nodes, edges and clones.

   Makes, clones and destroys the native graph of a shadow graph (ds__body), and adds nodes and
   edges to it (the entries graph_*). ds__cuda_rebuild builds the native graph anew from the shadow
   graph, if CUDA cannot change a node in place.

   Invariants: Every node of the shadow graph has its native node in `native`, unless the shadow
   graph has no native graph yet (b->native is NULL). Such a graph gets one when it becomes a child
   node. A failed rebuild leaves the graph as it was. `graph` is NULL if the capture that was to
   make it failed; ds__cuda_usable refuses such a graph.
   Locks: takes none. The core holds the graph's mutex, also during driver calls. While a
   capture makes the graph, the core holds the capture lock too (ds__cuda_usable,
   ds__cuda_graph_add, ds__cuda_graph_edges). ds__cuda_graph_create and ds__cuda_graph_destroy need
   no lock. Adding a kernel node may take ds__cuda.mutex.
   Threads: any. */
#ifndef DS__CUDA_GRAPH_H
#define DS__CUDA_GRAPH_H

#include "call.h"
#include "graph_types.h"
#include "capture_info.h"
#include "graph_read.h"
#include "graph_node.h"

/* Adds `count` dependencies to a native graph, or none if the call fails. */
static ds_result ds__cuda_connect(const ds__cuda_scope *scope, cudaGraph_t graph,
                                  const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                  size_t count) {
    return ds__cuda_check(scope, ds__cudart_connect(graph, from, to, count),
                          "cudaGraphAddDependencies");
}

/* Frees the native part of a graph. */
static void ds__cuda_graph_end(ds__cuda_graph *g, int device) {
    ds__cuda_scope scope;
    if (g->graph) {
        ds__cuda_enter_or_not(&scope, device);
        ds__cuda_drop_graph(&scope, g->graph);
        ds__cuda_scope_end(&scope);
    }
    ds__cuda_own_end(&g->owns);
    ds__host_free(g->setters);
    ds__host_free(g);
}

/* Makes an empty native graph. */
static ds_result ds__cuda_graph_create_empty(int device, ds__cuda_graph **out) {
    ds__cuda_scope scope;
    ds__cuda_graph *g = ds__host_alloc(sizeof *g);
    if (!g)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r == DS_OK) {
        r = DS__RT(scope, cudaGraphCreate, (&g->graph, 0));
        ds__cuda_scope_end(&scope);
    }
    if (r < 0)
        ds__host_free(g);
    else
        *out = g;
    return r;
}

/* Adds the dependencies on later nodes of the shadow graph, which ds__cuda_add cannot name yet. */
static ds_result ds__cuda_connect_later(const ds__cuda_scope *scope, const ds__body *b,
                                        const ds__cuda_graph *g, const cudaGraphNode_t *nodes) {
    ds_result r = DS_OK;
    for (uint32_t i = 0; i < b->count; i++)
        for (uint32_t k = 0; k < b->node[i]->dep_count && r == DS_OK; k++)
            if (b->node[i]->deps[k] > i)
                r = ds__cuda_connect(scope, g->graph, &nodes[b->node[i]->deps[k]],
                                     &(cudaGraphNode_t){ ds__cuda_first_of(g, nodes[i]) }, 1);
    return r;
}

/* Builds a native graph of the shadow graph, with `fresh`, if given, instead of a node. nodes: gets
   the native nodes, and has room for as many more. */
static ds_result ds__cuda_build(const ds__body *b, uint32_t index, const ds__node *fresh,
                                cudaGraphNode_t *nodes, ds__cuda_graph **out) {
    cudaGraphNode_t *after = nodes + b->count;
    ds__cuda_graph *g = NULL;
    ds__cuda_scope scope;
    ds_result r = ds__cuda_graph_create_empty(b->device.index, &g);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < b->count && r == DS_OK; i++) {
        size_t count = 0;
        for (uint32_t k = 0; k < b->node[i]->dep_count; k++)
            if (b->node[i]->deps[k] < i)
                after[count++] = nodes[b->node[i]->deps[k]];
        r = ds__cuda_add(g, fresh && i == index ? fresh : b->node[i], i, after, count, &nodes[i]);
    }
    if (r == DS_OK)
        r = ds__cuda_scope_begin(&scope, b->device.index);
    if (r == DS_OK) {
        r = ds__cuda_connect_later(&scope, b, g, nodes);
        ds__cuda_scope_end(&scope);
    }
    if (r < 0)
        ds__cuda_graph_end(g, b->device.index);
    else
        *out = g;
    return r;
}

/* Lists the native nodes of the shadow graph, with room for as many more behind them. NULL: no
   memory, which is reported. The caller frees the list. */
static cudaGraphNode_t *ds__cuda_natives(const ds__body *b) {
    cudaGraphNode_t *list = ds__host_alloc((2u * (size_t)b->count + 1) * sizeof *list);
    for (uint32_t i = 0; list && i < b->count; i++)
        list[i] = ds__cuda_native(b->node[i]);
    if (!list)
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph of %u nodes", (unsigned)b->count);
    return list;
}

/* Builds the native graph anew, with `fresh`, if given, instead of a node. The former native graph,
   if there is one, is destroyed. */
static ds_result ds__cuda_rebuild(ds__body *b, uint32_t index, const ds__node *fresh) {
    ds__cuda_graph *g = NULL;
    cudaGraphNode_t *nodes = ds__cuda_natives(b);
    ds_result r = nodes ? ds__cuda_build(b, index, fresh, nodes, &g) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK) {
        for (uint32_t i = 0; i < b->count; i++)
            b->node[i]->native = nodes[i];
        if (b->native)
            ds__cuda_graph_end(b->native, b->device.index);
        b->native = g;
    }
    ds__host_free(nodes);
    return r;
}

/* Builds the native graph of a child graph, if there is none yet. */
static ds_result ds__cuda_child_native(ds__body *child) {
    return child->native ? DS_OK : ds__cuda_rebuild(child, 0, NULL);
}

static ds_result ds__cuda_graph_create(ds__body *b) {
    ds__cuda_graph *g = NULL;
    ds_result r = ds__cuda_graph_create_empty(b->device.index, &g);
    b->native = g;
    return r;
}

static void ds__cuda_graph_destroy(ds__body *b) {
    ds__cuda_graph_end(b->native, b->device.index);
    b->native = NULL;
}

/* Refuses a graph without a native graph. An open capture into the graph may have become invalid;
   CUDA drops the native graph of an invalid capture. The capture lock is held in that case. */
static ds_result ds__cuda_usable(const ds__body *b) {
    const ds__cuda_graph *g = b->native;
    ds__cuda_scope scope;
    if (DS__LIKELY(!g->capture))
        return g->graph ? DS_OK
                        : ds__fail(DS_ERR_ILLEGAL_STATE, "the capture into the graph failed");
    ds_result r = ds__cuda_scope_begin(&scope, b->device.index);
    if (r < 0)
        return r;
    if (g->capture->status == DS_CAPTURE_ACTIVE && ds__cuda_is_spoilt(&scope, g->capture))
        g->capture->status = DS_CAPTURE_INVALIDATED;
    ds__cuda_scope_end(&scope);
    return g->capture->status == DS_CAPTURE_ACTIVE
               ? DS_OK
               : ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, g->capture, 0, "");
}

/* Appends the nodes that other libraries have captured meanwhile. The last node, which the core has
   just appended, stays the last one, so that the order is that of CUDA. */
static ds_result ds__cuda_read_before_last(ds__body *b) {
    ds__cuda_scope scope;
    ds__node *n = b->node[b->count - 1];
    uint32_t before = b->count - 1;
    ds_result r = ds__cuda_scope_begin(&scope, b->device.index);
    if (r < 0)
        return r;
    b->count = before;
    r = ds__cuda_read_nodes(&scope, b);
    ds__cuda_scope_end(&scope);
    if (r == DS_OK)
        r = ds__body_append(b, n, NULL, 0);
    if (r == DS_OK)
        return r;
    while (b->count > before)
        ds__node_destroy(b->node[--b->count]);
    b->node[b->count++] = n;
    return r;
}

static ds_result ds__cuda_graph_add(ds__body *b, uint32_t index) {
    ds__cuda_graph *g = b->native;
    ds__node *n = b->node[index];
    cudaGraphNode_t node = NULL;
    cudaGraphNode_t *after = ds__host_alloc((n->dep_count + 1u) * sizeof(cudaGraphNode_t));
    if (!after)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %u dependencies",
                        (unsigned)n->dep_count);
    for (uint32_t i = 0; i < n->dep_count; i++)
        after[i] = ds__cuda_native(b->node[n->deps[i]]);
    ds_result r = ds__cuda_usable(b);
    if (r == DS_OK && g->capture)
        r = ds__cuda_read_before_last(b);
    n->device.index = ds__cuda_node_device(n);
    /* not `index`: the nodes that were read have moved the node */
    if (r == DS_OK)
        r = ds__cuda_add(g, n, b->count - 1, after, n->dep_count, &node);
    n->native = node;
    ds__host_free(after);
    return r;
}

/* Adds edges by one call of CUDA, so that a failure adds none. */
static ds_result ds__cuda_graph_edges(ds__body *b, const ds_graph_node *from,
                                      const ds_graph_node *to, size_t count) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_usable(b);
    if (r < 0)
        return r;
    cudaGraphNode_t *ends = ds__host_alloc(2 * count * sizeof *ends);
    if (!ends)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu edges", count);
    for (size_t i = 0; i < count; i++) {
        ends[i] = ds__cuda_native(b->node[(uint32_t)from[i].id - 1]);
        ends[count + i] =
            ds__cuda_first_of(b->native, ds__cuda_native(b->node[(uint32_t)to[i].id - 1]));
    }
    r = ds__cuda_scope_begin(&scope, b->device.index);
    if (r == DS_OK) {
        r = ds__cuda_connect(&scope, ((ds__cuda_graph *)b->native)->graph, ends, ends + count,
                             count);
        ds__cuda_scope_end(&scope);
    }
    ds__host_free(ends);
    return r;
}

/* Clones a native graph, and finds the clones of its nodes. After a failure, *out is NULL. */
static ds_result ds__cuda_clone(const ds__cuda_scope *scope, cudaGraph_t from,
                                const cudaGraphNode_t *nodes, uint32_t count, cudaGraph_t *out,
                                cudaGraphNode_t *out_nodes) {
    *out = NULL;
    ds_result r = DS__RT(*scope, cudaGraphClone, (out, from));
    if (r == DS_ERR_INVALID_VALUE)
        ds__fail_append(r,
                        "; CUDA refuses graphs with memory nodes, and those into which a capture "
                        "has failed");
    for (uint32_t i = 0; i < count && r == DS_OK; i++)
        r = DS__RT(*scope, cudaGraphNodeFindInClone, (&out_nodes[i], nodes[i], *out));
    if (r < 0) {
        ds__cuda_drop_graph(scope, *out);
        *out = NULL;
    }
    return r;
}

static ds_result ds__cuda_graph_clone(ds__body *from, ds__body *to) {
    const ds__cuda_graph *old = from->native;
    ds__cuda_scope scope;
    /* the native graph of a child graph is built when it is needed */
    if (!old)
        return DS_OK;
    /* CUDA clones no conditional nodes (docs/gpu) */
    if (from->conditional && !ds__cuda_has_unknown(from, 1))
        return ds__cuda_rebuild(to, 0, NULL);
    ds__cuda_graph *g = ds__host_alloc(sizeof *g);
    cudaGraphNode_t *nodes = ds__cuda_natives(from);
    ds_result r = g && nodes ? ds__cuda_usable(from)
                             : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph of %u nodes",
                                        (unsigned)from->count);
    if (r == DS_OK && !ds__cuda_own_copy(&g->owns, &old->owns, DS__CUDA_NOWHERE))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_scope_begin(&scope, from->device.index);
    if (r == DS_OK) {
        r = ds__cuda_clone(&scope, old->graph, nodes, from->count, &g->graph, nodes + from->count);
        ds__cuda_scope_end(&scope);
    }
    for (uint32_t i = 0; i < from->count && r == DS_OK; i++)
        to->node[i]->native = nodes[from->count + i];
    if (r == DS_OK)
        to->native = g;
    else if (g) {
        ds__cuda_own_end(&g->owns);
        ds__host_free(g);
    }
    ds__host_free(nodes);
    return r;
}

/* Does nothing: the shadow graph keeps the object, from which instantiation takes it. */
static ds_result ds__cuda_graph_attach(ds__body *b, ds__object *o) {
    (void)b;
    (void)o;
    return DS_OK;
}

#endif
