/* cuda/graph_condition.h - native conditional nodes.

   Adds the native nodes of a conditional node (ds__cuda_add_condition): a kernel that copies the
   word into the condition, the setter, and the conditional node itself, which depends on the
   setter. The bodies are filled from their shadow graphs; the body of a while ends with a further
   setter.

   Invariants: the native node of the shadow node is the conditional one. Its setter is entered in
   `setters` of the native graph, because the node's dependencies are those of the setter; setters
   in bodies are not. CUDA owns the graphs of the bodies. A body keeps no objects, because it has no
   host functions (ds__body_is_conditionable).
   Locks: those of graph_node.h.
   Threads: any. */
#ifndef DS__CUDA_GRAPH_CONDITION_H
#define DS__CUDA_GRAPH_CONDITION_H

#include "types.h"
#include "call.h"
#include "condition.h"
#include "graph_types.h"
#include "graph_node.h"
#include "graph.h"

/* A conditional node that is being made. */
typedef struct ds__cuda_conditional {
    const ds__node *node;
    unsigned long long handle;
    void *setter;
} ds__cuda_conditional;

/* Adds a setter to a graph. */
static ds_result ds__cuda_add_setter(const ds__cuda_scope *scope, ds__cuda_conditional *c,
                                     const ds__cuda_target *to, cudaGraphNode_t *out) {
    unsigned long long word = (uintptr_t)c->node->op.u.condition.word;
    void *params[] = { &c->handle, &word };
    ds__cuda_kernel_params p = { .function = c->setter,
                                 .grid_x = 1,
                                 .grid_y = 1,
                                 .grid_z = 1,
                                 .block_x = 1,
                                 .block_y = 1,
                                 .block_z = 1,
                                 .params = params };
    ds_result r;
    DS__DR(*scope, r, cuGraphAddKernelNode, (out, to->graph, to->after, to->count, &p));
    return r;
}

/* Gives the native nodes of a body on which no other depends. `nodes` has room for twice as many
   nodes; the list is written behind the nodes. Returns their number. */
static size_t ds__cuda_list_sinks(const ds__body *b, cudaGraphNode_t *nodes) {
    size_t count = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        int used = 0;
        for (uint32_t k = 0; k < b->count && !used; k++)
            used = ds__node_depends(b->node[k], i);
        if (!used)
            nodes[b->count + count++] = nodes[i];
    }
    return count;
}

/* Adds the nodes of a body with their dependencies to the graph of the body. `nodes` gets the
   native nodes, and has room for as many more. */
static ds_result ds__cuda_fill_nodes(const ds__cuda_scope *scope, ds__cuda_graph *inner,
                                     const ds__body *b, cudaGraphNode_t *nodes) {
    ds_result r = DS_OK;
    for (uint32_t i = 0; i < b->count && r == DS_OK; i++) {
        ds__node *n = b->node[i];
        size_t count = 0;
        for (uint32_t k = 0; k < n->dep_count; k++)
            if (n->deps[k] < i)
                nodes[b->count + count++] = nodes[n->deps[k]];
        const ds__cuda_target to = { .graph = inner->graph,
                                     .after = nodes + b->count,
                                     .count = count };
        if (n->kind == DS_NODE_CHILD)
            r = ds__cuda_child_native(n->child);
        if (r == DS_OK)
            r = ds__cuda_add_native(scope, inner, n, i, &to, &nodes[i]);
    }
    return r == DS_OK ? ds__cuda_connect_later(scope, b, inner, nodes) : r;
}

/* Fills the graph of a body. capture: see ds__cuda_graph. */
static ds_result ds__cuda_fill_body(const ds__cuda_scope *scope, ds__capture *capture,
                                    ds__cuda_conditional *c, const ds__body *b, cudaGraph_t graph) {
    ds__cuda_graph inner = { .graph = graph, .capture = capture };
    cudaGraphNode_t *nodes = ds__host_alloc((2u * (size_t)b->count + 1) * sizeof *nodes);
    if (!nodes)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a body of %u nodes",
                        (unsigned)b->count);
    ds_result r = ds__cuda_fill_nodes(scope, &inner, b, nodes);
    if (r == DS_OK && c->node->op.u.condition.kind == DS_CONDITION_WHILE) {
        cudaGraphNode_t last;
        const ds__cuda_target to = { .graph = graph,
                                     .after = nodes + b->count,
                                     .count = ds__cuda_list_sinks(b, nodes) };
        r = ds__cuda_add_setter(scope, c, &to, &last);
    }
    ds__cuda_own_end(&inner.owns);
    ds__host_free(inner.setters);
    ds__host_free(nodes);
    return r;
}

/* Adds the conditional node behind its setter, and fills its bodies. */
static ds_result ds__cuda_add_conditional(const ds__cuda_scope *scope, const ds__cuda_graph *g,
                                          ds__cuda_conditional *c, const ds__cuda_target *to,
                                          cudaGraphNode_t *out) {
    const ds__body *bodies = c->node->child;
    ds__cuda_node_params p;
    memset(&p, 0, sizeof p);
    p.type = DS__CUDA_NODE_CONDITION;
    p.handle = c->handle;
    p.kind = c->node->op.u.condition.kind;
    p.size = bodies->count;
    ds_result r;
    DS__DR(*scope, r, cuCtxGetCurrent, (&p.context));
    if (r < 0)
        return r;
    r = ds__cuda_check(
        scope, (cudaError_t)ds__cuda.condition_node(out, to->graph, to->after, to->count, &p),
        "cuGraphAddNode");
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < bodies->count && r == DS_OK; i++)
        r = ds__cuda_fill_body(scope, g->capture, c, bodies->node[i]->child, p.bodies[i]);
    if (r < 0 && !g->capture)
        (void)DS__RT_CODE(*scope, cudaGraphDestroyNode, (*out));
    return r;
}

/* Adds the native nodes of a conditional node, of which *out is the last one. While a capture makes
   the graph, its nodes cannot be destroyed; a failure then leaves the setter in the graph. */
static ds_result ds__cuda_add_condition(const ds__cuda_scope *scope, ds__cuda_graph *g,
                                        const ds__node *n, const ds__cuda_target *to,
                                        cudaGraphNode_t *out) {
    ds__cuda_conditional c = { .node = n };
    cudaGraphNode_t setter = NULL;
    void *context = NULL;
    ds_result r = ds__cuda_condition_setter(scope, &c.setter);
    if (r == DS_OK &&
        !ds__graph_array_reserve(&g->setters, sizeof *g->setters, g->setter_count, &g->setter_room))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        DS__DR(*scope, r, cuCtxGetCurrent, (&context));
    if (r == DS_OK)
        r = ds__cuda_check(
            scope, (cudaError_t)ds__cuda.condition_handle(&c.handle, to->graph, context, 0, 0),
            "cuGraphConditionalHandleCreate");
    if (r == DS_OK)
        r = ds__cuda_add_setter(scope, &c, to, &setter);
    if (r < 0)
        return r;
    const ds__cuda_target behind = { .graph = to->graph, .after = &setter, .count = 1 };
    r = ds__cuda_add_conditional(scope, g, &c, &behind, out);
    if (r == DS_OK || g->capture)
        g->setters[g->setter_count++] = (ds__cuda_setter){ r == DS_OK ? *out : NULL, setter };
    else
        (void)DS__RT_CODE(*scope, cudaGraphDestroyNode, (setter));
    return r;
}

#endif
