/* core/graph_edit.h - graphs: reading and replacing nodes, comparison, attachment.

   Returns edges and descriptions of nodes, replaces a node (ds_graph_set_node), and attaches
   objects of the user to a graph (ds_graph_attach). ds__node_compare and ds__body_compare decide
   whether an executable may take over a changed node or graph, for core/graph_exec_update.h.

   Invariants: a replaced node keeps its kind, dependencies, native node and enabled flag
   (ds__body_replace). The pointers in the description of ds_graph_get_node belong to the node.
   An attached object's destructor runs exactly once; if the attachment fails, ds__refuse_payload
   runs it.
   Locks: the graph's lock. Inside of it, ds__g.capture_lock: always in functions that read, and
   in ds_graph_set_node while a capture adds to the graph. The driver's graph_set and
   graph_attach run under the graph's lock. The old node is freed after the locks, because the
   user's destructor may run.
   Threads: any. */
#ifndef DS__CORE_GRAPH_EDIT_H
#define DS__CORE_GRAPH_EDIT_H

#include "init.h"
#include "host_func.h"
#include "graph.h"
#include "graph_add.h"

DSDEF ds_result(ds_graph_get_edges)(ds_graph graph, ds_graph_node *out_from, ds_graph_node *out_to,
                                    size_t room, size_t *out_count) {
    if (out_count)
        *out_count = 0;
    DS__ENTER("ds_graph_get_edges");
    DS__REQUIRE(out_count && ((out_from && out_to) || !room), "the output pointer is NULL");
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__mutex_lock(&ds__g.capture_lock);
    for (uint32_t i = 0; i < g->body->count; i++)
        for (uint32_t k = 0; k < g->body->node[i]->dep_count; k++, ++*out_count)
            if (*out_count < room) {
                out_from[*out_count] = ds__node_handle(g->body, g->body->node[i]->deps[k]);
                out_to[*out_count] = ds__node_handle(g->body, i);
            }
    ds__mutex_unlock(&ds__g.capture_lock);
    return ds__graph_unlock(g, DS_OK);
}

/* Fills the description of a node; its pointers are those of the node. */
static void ds__node_describe(const ds__node *n, ds_node_desc *out) {
    const ds__op *op = &n->op;
    memset(out, 0, sizeof *out);
    out->kind = n->kind;
    out->label = n->label;
    out->device = n->device;
    out->priority = n->priority;
    switch (n->kind) {
    case DS_NODE_KERNEL:
        out->u.kernel.kernel.id = ds__handle_of(&op->u.kernel.kernel->slot);
        out->u.kernel.items = op->u.kernel.items;
        out->u.kernel.grid = op->u.kernel.grid;
        out->u.kernel.args = op->u.kernel.args;
        out->u.kernel.args_size = op->u.kernel.args_size;
        break;
    case DS_NODE_COPY:
        out->u.copy.dst = op->u.copy.dst;
        out->u.copy.src = op->u.copy.src;
        out->u.copy.width = op->u.copy.width;
        out->u.copy.height = op->u.copy.height;
        out->u.copy.dst_pitch = op->u.copy.dst_pitch;
        out->u.copy.src_pitch = op->u.copy.src_pitch;
        break;
    case DS_NODE_FILL:
        out->u.fill.ptr = op->u.fill.dst;
        out->u.fill.value = op->u.fill.value;
        out->u.fill.value_size = op->u.fill.value_size;
        out->u.fill.width = op->u.fill.width;
        out->u.fill.height = op->u.fill.height;
        out->u.fill.pitch = op->u.fill.pitch;
        break;
    case DS_NODE_HOST:
        out->u.host.fn = op->u.host.fn;
        out->u.host.user = op->u.host.user;
        break;
    case DS_NODE_VALUES:
        out->u.values.ops = op->u.values.list;
        out->u.values.count = op->u.values.count;
        break;
    case DS_NODE_CONDITION:
        out->u.condition.kind = (ds_condition_kind)op->u.condition.kind;
        out->u.condition.word = op->u.condition.word;
        out->u.condition.count = n->child->count;
        break;
    case DS_NODE_EVENT_RECORD:
    case DS_NODE_EVENT_WAIT:
        out->u.event.id = ds__handle_of(&op->u.event.object->slot);
        break;
    case DS_NODE_EMPTY:
    case DS_NODE_CHILD:
    case DS_NODE_NATIVE:
        break;
    }
}

DSDEF ds_result(ds_graph_get_node)(ds_graph graph, ds_graph_node node, ds_node_desc *out,
                                   ds_site *out_site) {
    if (out)
        memset(out, 0, sizeof *out);
    if (out_site)
        memset(out_site, 0, sizeof *out_site);
    DS__ENTER("ds_graph_get_node");
    DS__REQUIRE(out, "out is NULL");
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    uint32_t i = 0;
    ds__mutex_lock(&ds__g.capture_lock);
    ds_result r = ds__node_index(g->body, node, &i);
    if (r == DS_OK) {
        ds__node_describe(g->body->node[i], out);
        if (out_site) {
            out_site->file = g->body->node[i]->op.file;
            out_site->line = (int)g->body->node[i]->op.line;
        }
    }
    ds__mutex_unlock(&ds__g.capture_lock);
    return ds__graph_unlock(g, r);
}

/* Replaces a node and keeps its dependencies. Returns the former node, which the caller owns. */
static ds__node *ds__body_replace(ds__body *b, uint32_t index, ds__node *fresh) {
    ds__node *old = b->node[index];
    fresh->deps = old->deps;
    fresh->dep_count = old->dep_count;
    fresh->dep_room = old->dep_room;
    fresh->native = old->native;
    fresh->enabled = old->enabled;
    old->deps = NULL;
    b->node[index] = fresh;
    if (fresh->child && fresh->child->hooked)
        b->hooked = 1;
    return old;
}

static ds_graph_update_reason ds__body_compare(const ds__body *now, const ds__body *then,
                                               uint32_t *out_node);

/* Returns 1 if two lists of operations on words differ in what an executable cannot change: the
   number, the sizes, and which ones write (cuGraphExecBatchMemOpNodeSetParams). */
static int ds__values_differ(const ds__op *now, const ds__op *then) {
    size_t i = 0;
    if (now->u.values.count != then->u.values.count)
        return 1;
    while (i < now->u.values.count) {
        const ds_value_op *a = &now->u.values.list[i];
        const ds_value_op *b = &then->u.values.list[i];
        if (a->size != b->size || (a->kind == DS_VALUE_WRITE) != (b->kind == DS_VALUE_WRITE))
            break;
        i++;
    }
    return i < now->u.values.count;
}

/* Returns the reason why a kernel of an executable cannot become the fresh one, or
   DS_GRAPH_UPDATE_SUCCESS. CUDA refuses a change between cooperative and other kernels, and does
   not say whether it allows other clusters (cudaGraphExecUpdate). */
static ds_graph_update_reason ds__kernel_compare(const ds__node *now, const ds__node *then) {
    if (now->device.index != then->device.index)
        return DS_GRAPH_UPDATE_UNSUPPORTED_FUNCTION_CHANGE;
    return ds__grid_same_attributes(now->op.u.kernel.grid, then->op.u.kernel.grid)
               ? DS_GRAPH_UPDATE_SUCCESS
               : DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED;
}

/* Returns the reason why a node of an executable cannot become the fresh one, or
   DS_GRAPH_UPDATE_SUCCESS. */
static ds_graph_update_reason ds__node_compare(const ds__node *now, const ds__node *then) {
    uint32_t node;
    if (now->kind != then->kind)
        return DS_GRAPH_UPDATE_NODE_TYPE_CHANGED;
    switch (now->kind) {
    case DS_NODE_KERNEL:
        return ds__kernel_compare(now, then);
    case DS_NODE_COPY:
        return ds__place_of(&now->op, DS__OP_DST) == ds__place_of(&then->op, DS__OP_DST) &&
                       ds__place_of(&now->op, DS__OP_SRC) == ds__place_of(&then->op, DS__OP_SRC)
                   ? DS_GRAPH_UPDATE_SUCCESS
                   : DS_GRAPH_UPDATE_PARAMETERS_CHANGED;
    case DS_NODE_FILL:
        return ds__place_of(&now->op, DS__OP_DST) == ds__place_of(&then->op, DS__OP_DST)
                   ? DS_GRAPH_UPDATE_SUCCESS
                   : DS_GRAPH_UPDATE_PARAMETERS_CHANGED;
    case DS_NODE_VALUES:
        return ds__values_differ(&now->op, &then->op) ? DS_GRAPH_UPDATE_PARAMETERS_CHANGED
                                                      : DS_GRAPH_UPDATE_SUCCESS;
    case DS_NODE_CONDITION:
        return DS_GRAPH_UPDATE_NOT_SUPPORTED;
    case DS_NODE_CHILD:
        return ds__body_compare(now->child, then->child, &node);
    default:
        return DS_GRAPH_UPDATE_SUCCESS;
    }
}

/* Returns 1 if a node has the dependencies of another one. */
static int ds__node_has_dependencies(const ds__node *a, const ds__node *b) {
    if (a->dep_count != b->dep_count)
        return 0;
    for (uint32_t k = 0; k < b->dep_count; k++)
        if (a->deps[k] != b->deps[k] && !ds__node_depends(a, b->deps[k]))
            return 0;
    return 1;
}

static ds_graph_update_reason ds__body_compare(const ds__body *now, const ds__body *then,
                                               uint32_t *out_node) {
    *out_node = UINT32_MAX;
    if (now->driver->type != then->driver->type)
        return DS_GRAPH_UPDATE_NOT_SUPPORTED;
    if (now->count != then->count)
        return DS_GRAPH_UPDATE_TOPOLOGY_CHANGED;
    for (uint32_t i = 0; i < now->count; i++) {
        const ds__node *a = now->node[i];
        const ds__node *b = then->node[i];
        ds_graph_update_reason reason = ds__node_has_dependencies(a, b)
                                            ? ds__node_compare(a, b)
                                            : DS_GRAPH_UPDATE_TOPOLOGY_CHANGED;
        if (!reason)
            continue;
        *out_node = i;
        return reason;
    }
    return DS_GRAPH_UPDATE_SUCCESS;
}

static const char *const ds__update_texts[] = {
    "success",
    "it failed",
    "the nodes or dependencies differ",
    "a node has another kind",
    "a kernel differs, and the driver cannot replace it",
    "the memory has another kind or device",
    "the driver does not support changes of this node",
    "a kernel has another device",
    "an attribute differs"
};

/* Makes a fresh node to replace the node `now` at `index`, of the same kind. Does not read the list
   of nodes, since a capture may be adding to it. */
static ds_result ds__node_fresh(ds__body *b, const ds__node *now, uint32_t index,
                                const ds_node_desc *desc, ds__body **child, ds__node **out) {
    char text[160];
    *out = NULL;
    DS__REQUIRE(desc, "desc is NULL");
    DS__REQUIRE(desc->kind == now->kind, "the kind of %s cannot change to %d",
                ds__node_text(now, index, text, sizeof text), (int)desc->kind);
    ds_result r = ds__node_of_desc(b, desc, child, out);
    if (r == DS_OK) {
        (*out)->op.file = now->op.file;
        (*out)->op.line = now->op.line;
    }
    if (r == DS_OK && ds__tls.site.file) {
        (*out)->op.file = ds__tls.site.file;
        (*out)->op.line = (uint32_t)ds__tls.site.line;
    }
    return r;
}

DSDEF ds_result(ds_graph_set_node)(ds_graph graph, ds_graph_node node, const ds_node_desc *desc) {
    ds__body *child = NULL;
    ds__node *old = NULL; /* ended without a lock, since the user's destructor may run */
    ds_result r = ds__api_enter("ds_graph_set_node");
    if (r == DS_OK)
        r = ds__child_copy(desc, &child);
    ds__graph *g = r == DS_OK ? ds__graph_lock(graph) : NULL;
    if (g) {
        uint32_t i = 0;
        ds__node *fresh = NULL;
        int shared = ds__graph_share(g);
        r = ds__node_index(g->body, node, &i);
        /* it stays, as long as the graph is locked */
        const ds__node *now = r == DS_OK ? g->body->node[i] : NULL;
        ds__graph_unshare(shared);
        if (r == DS_OK)
            r = ds__node_fresh(g->body, now, i, desc, &child, &fresh);
        shared = ds__graph_share(g);
        if (r == DS_OK)
            r = g->body->driver->graph_set(g->body, i, fresh);
        if (r == DS_OK)
            old = ds__body_replace(g->body, i, fresh);
        ds__graph_unshare(shared);
        if (r < 0)
            ds__node_refuse(fresh, &child);
        r = ds__graph_unlock(g, r);
        ds__node_destroy(old);
    } else if (r == DS_OK) {
        r = DS_ERR_INVALID_HANDLE;
    }
    if (child)
        ds__body_destroy(child);
    return ds__desc_refuse_payload(r, desc);
}

static ds_result ds__graph_attach(ds_graph graph, void *user, ds_host_fn dtor_fn) {
    DS__REQUIRE(dtor_fn, "dtor_fn is NULL");
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__object *o = ds__object_create(user, dtor_fn);
    ds_result r = o ? ds__body_object_add(g->body, o) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK) {
        r = g->body->driver->graph_attach(g->body, o);
        if (r < 0) {
            g->body->object_count--;
            atomic_fetch_sub(&o->owners, 1);
        }
    }
    if (r < 0 && o)
        o->dtor_fn = NULL;
    ds__object_unref(o);
    return ds__graph_unlock(g, r);
}

DSDEF ds_result(ds_graph_attach)(ds_graph graph, void *user, ds_host_fn dtor_fn) {
    ds_result r = ds__api_enter("ds_graph_attach");
    if (r == DS_OK)
        r = ds__graph_attach(graph, user, dtor_fn);
    return ds__refuse_payload(r, user, dtor_fn);
}

#endif
