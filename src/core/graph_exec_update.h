/* core/graph_exec_update.h - executables: updates, single nodes, pointers.

   Changes an executable without a new instantiation: takes over a changed graph
   (ds_graph_exec_update), replaces or switches single nodes, and replaces pointers in all nodes
   (ds_graph_exec_replace_pointers).

   Invariants: an update is complete or leaves x->body as it was. Kinds, number and dependencies
   of the nodes do not change. A node that is replaced keeps its native node and its enabled
   flag.
   Locks: the executable's lock; ds_graph_exec_update takes the graph's lock inside of it. A
   child graph is copied under its own lock before. The driver's exec_update, exec_set and
   exec_enable run under these locks. Replaced nodes are freed after the locks, because the
   user's destructors may run. ds__replace_pointers frees them under the lock, since the new
   nodes share their payloads.
   Threads: any; calls with the same executable run one after the other. */
#ifndef DS__CORE_GRAPH_EXEC_UPDATE_H
#define DS__CORE_GRAPH_EXEC_UPDATE_H

#include "init.h"
#include "copy.h"
#include "host_func.h"
#include "graph.h"
#include "graph_add.h"
#include "graph_edit.h"

/* Exchanges the nodes and objects of an executable's body and of the fresh one. The nodes keep
   their native nodes, and stay switched on or off. */
static void ds__exec_take_work(ds__body *body, ds__body *fresh) {
    ds__body before = *body;
    for (uint32_t i = 0; i < fresh->count; i++) {
        fresh->node[i]->native = body->node[i]->native;
        fresh->node[i]->enabled = body->node[i]->enabled;
    }
    body->node = fresh->node;
    body->room = fresh->room;
    body->object = fresh->object;
    body->object_count = fresh->object_count;
    body->object_room = fresh->object_room;
    body->hooked = fresh->hooked;
    fresh->node = before.node;
    fresh->room = before.room;
    fresh->object = before.object;
    fresh->object_count = before.object_count;
    fresh->object_room = before.object_room;
}

/* An update cannot change the priority of a kernel that has one (DS_GRAPH_USE_NODE_PRIORITY). */
static ds_graph_update_reason ds__exec_compare_priorities(const ds__exec *x, const ds__body *then,
                                                          uint32_t *out_node) {
    for (uint32_t i = 0; (x->flags & DS_GRAPH_USE_NODE_PRIORITY) && i < then->count; i++) {
        if (x->body->node[i]->kind != DS_NODE_KERNEL ||
            x->body->node[i]->priority == then->node[i]->priority)
            continue;
        *out_node = i;
        return DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED;
    }
    return DS_GRAPH_UPDATE_SUCCESS;
}

/* The caller frees *out_old without a lock, since the user's destructors may run. */
static ds_result ds__exec_update(ds__exec *x, ds__graph *g, ds_graph_update_info *out,
                                 ds__body **out_old) {
    uint32_t node = UINT32_MAX;
    char text[160] = "the graph";
    if (atomic_load(&g->capturing)) {
        out->reason = DS_GRAPH_UPDATE_ERROR;
        return ds__being_captured(g);
    }
    if (x->body->conditional || g->body->conditional) {
        out->reason = DS_GRAPH_UPDATE_NOT_SUPPORTED;
        return ds__fail(DS_ERR_GRAPH_UPDATE,
                        "an executable with conditional nodes cannot be updated "
                        "from a graph; instantiate the graph again");
    }
    out->reason = ds__body_compare(x->body, g->body, &node);
    if (out->reason == DS_GRAPH_UPDATE_SUCCESS)
        out->reason = ds__exec_compare_priorities(x, g->body, &node);
    ds_result r = DS_OK;
    if (out->reason == DS_GRAPH_UPDATE_SUCCESS) {
        ds__body *fresh = ds__body_copy(g->body, 0);
        r = fresh ? x->driver->exec_update(x->native, g->body, &out->reason, &node)
                  : DS_ERR_OUT_OF_MEMORY;
        if (r == DS_OK) {
            ds__exec_take_work(x->body, fresh);
        } else if (out->reason == DS_GRAPH_UPDATE_SUCCESS) {
            out->reason = DS_GRAPH_UPDATE_ERROR;
        }
        *out_old = fresh;
        if (r < 0 && r != DS_ERR_GRAPH_UPDATE)
            return r;
    }
    if (out->reason == DS_GRAPH_UPDATE_SUCCESS)
        return DS_OK;
    if (node != UINT32_MAX) {
        out->node = ds__node_handle(g->body, node);
        ds__node_print(g->body, node, text, sizeof text);
    }
    return ds__fail(DS_ERR_GRAPH_UPDATE, "the executable cannot be updated from the graph: %s (%s)",
                    ds__update_texts[out->reason], text);
}

DSDEF ds_result(ds_graph_exec_update)(ds_graph_exec exec, ds_graph graph,
                                      ds_graph_update_info *out) {
    ds_graph_update_info info;
    if (!out)
        out = &info;
    memset(out, 0, sizeof *out);
    DS__ENTER("ds_graph_exec_update");
    out->reason = DS_GRAPH_UPDATE_ERROR;
    ds__exec *x = ds__exec_lock(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    ds__graph *g = ds__graph_lock(graph);
    ds__body *old = NULL;
    ds_result r = g ? ds__graph_unlock(g, ds__exec_update(x, g, out, &old)) : DS_ERR_INVALID_HANDLE;
    r = ds__exec_unlock(x, r);
    if (old)
        ds__body_destroy(old);
    return r;
}

static ds_result ds__exec_put(ds__exec *x, uint32_t i, ds__node *fresh, ds__node **old) {
    char text[160];
    ds_graph_update_reason reason = ds__node_compare(x->body->node[i], fresh);
    fresh->priority = x->body->node[i]->priority;
    ds_result r = DS_OK;
    if (reason)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%s of the executable does not support the change: %s",
                     ds__node_print(x->body, i, text, sizeof text), ds__update_texts[reason]);
    else
        r = x->driver->exec_set(x->native, i, fresh);
    if (r == DS_OK)
        *old = ds__body_replace(x->body, i, fresh);
    return r;
}

DSDEF ds_result(ds_graph_exec_set_node)(ds_graph_exec exec, ds_graph_node node,
                                        const ds_node_desc *desc) {
    ds__body *child = NULL;
    ds__node *old = NULL; /* ended without a lock, since the user's destructor may run */
    ds_result r = ds__api_enter("ds_graph_exec_set_node");
    if (r == DS_OK)
        r = ds__child_copy(desc, &child);
    ds__exec *x = r == DS_OK ? ds__exec_lock(exec) : NULL;
    if (x) {
        uint32_t i = 0;
        ds__node *fresh = NULL;
        r = ds__node_index(x->body, node, &i);
        if (r == DS_OK)
            r = ds__node_fresh(x->body, x->body->node[i], i, desc, &child, &fresh);
        if (r == DS_OK) {
            r = ds__exec_put(x, i, fresh, &old);
            if (r < 0)
                ds__node_refuse(fresh, &child);
        }
        r = ds__exec_unlock(x, r);
        ds__node_destroy(old);
    } else if (r == DS_OK) {
        r = DS_ERR_INVALID_HANDLE;
    }
    if (child)
        ds__body_destroy(child);
    return ds__desc_refuse_payload(r, desc);
}

DSDEF ds_result(ds_graph_exec_set_node_enabled)(ds_graph_exec exec, ds_graph_node node,
                                                int enabled) {
    DS__ENTER("ds_graph_exec_set_node_enabled");
    ds__exec *x = ds__exec_lock(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    uint32_t i = 0;
    char text[160];
    ds_result r = ds__node_index(x->body, node, &i);
    ds_node_kind kind = r == DS_OK ? x->body->node[i]->kind : DS_NODE_EMPTY;
    if (r == DS_OK && kind != DS_NODE_KERNEL && kind != DS_NODE_COPY && kind != DS_NODE_FILL)
        r = ds__fail(DS_ERR_INVALID_VALUE,
                     "%s cannot be enabled or disabled; only kernels, copies and fills can",
                     ds__node_print(x->body, i, text, sizeof text));
    if (r == DS_OK)
        r = x->driver->exec_enable(x->native, i, enabled != 0);
    if (r == DS_OK)
        x->body->node[i]->enabled = enabled != 0;
    return ds__exec_unlock(x, r);
}

DSDEF ds_result(ds_graph_exec_get_node_enabled)(ds_graph_exec exec, ds_graph_node node, int *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_graph_exec_get_node_enabled");
    DS__REQUIRE(out, "out is NULL");
    ds__exec *x = ds__exec_lock(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    uint32_t i = 0;
    ds_result r = ds__node_index(x->body, node, &i);
    if (r == DS_OK)
        *out = x->body->node[i]->enabled;
    return ds__exec_unlock(x, r);
}

/* Replaces a pointer at a place that may be unaligned; returns the number of replaced pointers.
   dry: only counts. */
static size_t ds__replace_one(void *place, void *const *old_pointers, void *const *new_pointers,
                              size_t count, int dry) {
    void *now;
    memcpy(&now, place, sizeof now);
    for (size_t i = 0; i < count; i++) {
        if (now != old_pointers[i])
            continue;
        if (!dry)
            memcpy(place, &new_pointers[i], sizeof now);
        return 1;
    }
    return 0;
}

static size_t ds__replace_node(ds__node *n, void *const *old_pointers, void *const *new_pointers,
                               size_t count, int dry) {
    size_t places = 0;
    if (n->kind == DS_NODE_KERNEL) {
        const ds__kernel *k = n->op.u.kernel.kernel;
        for (size_t i = 0; i < k->param_count; i++)
            if (k->params[i].kind >= DS_PARAM_READ && k->params[i].kind <= DS_PARAM_READ_WRITE)
                places +=
                    ds__replace_one((char *)(uintptr_t)n->op.u.kernel.args + k->params[i].offset,
                                    old_pointers, new_pointers, count, dry);
    } else if (n->kind == DS_NODE_COPY) {
        places += ds__replace_one(&n->op.u.copy.dst, old_pointers, new_pointers, count, dry);
        places += ds__replace_one(&n->op.u.copy.src, old_pointers, new_pointers, count, dry);
    } else if (n->kind == DS_NODE_FILL) {
        places += ds__replace_one(&n->op.u.fill.dst, old_pointers, new_pointers, count, dry);
    } else if (n->kind == DS_NODE_VALUES) {
        ds_value_op *list = (ds_value_op *)(uintptr_t)n->op.u.values.list;
        for (size_t i = 0; i < n->op.u.values.count; i++)
            places += ds__replace_one(&list[i].address, old_pointers, new_pointers, count, dry);
    } else if (n->kind == DS_NODE_CHILD || n->kind == DS_NODE_CONDITION) {
        if (n->kind == DS_NODE_CONDITION)
            places +=
                ds__replace_one(&n->op.u.condition.word, old_pointers, new_pointers, count, dry);
        for (uint32_t i = 0; i < n->child->count; i++)
            places += ds__replace_node(n->child->node[i], old_pointers, new_pointers, count, dry);
    }
    return places;
}

/* Checks a changed copy or fill again, as if the node was set to it, with the nodes of its child
   graph. Stores the new flags and places in the node. */
static ds_result ds__replaced_check(ds__body *b, ds__node *n) {
    ds__op op = n->op;
    ds_result r = DS_OK;
    if (n->kind == DS_NODE_COPY)
        r = ds__copy_op(b->driver, &op,
                        &(ds__copy_request){ .dst = op.u.copy.dst,
                                             .src = op.u.copy.src,
                                             .dst_pitch = op.u.copy.dst_pitch,
                                             .src_pitch = op.u.copy.src_pitch,
                                             .width = op.u.copy.width,
                                             .height = op.u.copy.height,
                                             .flags = DS_COPY_HOST_STABLE });
    if (n->kind == DS_NODE_FILL)
        r = ds__fill_op(b->driver, &op,
                        &(ds__fill_request){ .ptr = op.u.fill.dst,
                                             .pitch = op.u.fill.pitch,
                                             .value_size = op.u.fill.value_size,
                                             .width = op.u.fill.width,
                                             .height = op.u.fill.height,
                                             .value = op.u.fill.value,
                                             .flags = DS_COPY_HOST_STABLE });
    if (n->kind == DS_NODE_VALUES)
        r = ds__values_check(b->driver, n->device, op.u.values.list, op.u.values.count);
    for (uint32_t i = 0; n->child && i < n->child->count && r == DS_OK; i++)
        r = ds__replaced_check(b, n->child->node[i]);
    n->op.flags = op.flags;
    n->op.places = op.places;
    return r;
}

/* A list of pointers to replace in an executable. fresh: for each node the changed copy, or
   NULL. */
typedef struct ds__replacement {
    void *const *old_pointers;
    void *const *new_pointers;
    size_t count;
    size_t places; /* so many pointers were replaced */
    ds__node **fresh;
} ds__replacement;

/* Makes the changed copy of a node and checks it; of a node without such pointers, nothing. */
static ds_result ds__replacement_create(ds__replacement *w, ds__body *b, uint32_t i) {
    char text[160];
    if (!ds__replace_node(b->node[i], w->old_pointers, w->new_pointers, w->count, 1))
        return DS_OK;
    if (b->node[i]->kind == DS_NODE_CONDITION)
        return ds__fail(DS_ERR_UNSUPPORTED, "a conditional node cannot be set (%s)",
                        ds__node_print(b, i, text, sizeof text));
    ds__node *n = ds__node_copy(b->node[i]);
    w->fresh[i] = n;
    if (!n)
        return DS_ERR_OUT_OF_MEMORY;
    w->places += ds__replace_node(n, w->old_pointers, w->new_pointers, w->count, 0);
    ds_result r = ds__replaced_check(b, n);
    ds_graph_update_reason reason =
        r == DS_OK ? ds__node_compare(b->node[i], n) : DS_GRAPH_UPDATE_SUCCESS;
    if (reason)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%s", ds__update_texts[reason]);
    if (r < 0)
        ds__fail_append(r, " (%s)", ds__node_print(b, i, text, sizeof text));
    return r;
}

/* Gives the changed nodes to the driver. If it refuses one, the earlier ones are set back. */
static ds_result ds__replacement_set(ds__exec *x, ds__node **fresh) {
    ds__body *b = x->body;
    ds_result r = DS_OK;
    uint32_t set = 0;
    for (; set < b->count && r == DS_OK; set++)
        if (fresh[set])
            r = x->driver->exec_set(x->native, set, fresh[set]);
    for (uint32_t i = 0; r < 0 && i + 1 < set; i++)
        if (fresh[i])
            DS_IGNORE(x->driver->exec_set(x->native, i, b->node[i]));
    return r;
}

/* Replaces pointers in all nodes or in none. */
static ds_result ds__replace_pointers(ds__exec *x, void *const *old_pointers,
                                      void *const *new_pointers, size_t count,
                                      size_t *out_replaced) {
    ds__body *b = x->body;
    ds__replacement w = { old_pointers, new_pointers, count, 0, NULL };
    ds_result r = DS_OK;
    if (!(x->flags & DS_GRAPH_REPLACE_POINTERS))
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "the executable was made without DS_GRAPH_REPLACE_POINTERS");
    ds__node **fresh = ds__host_alloc((b->count + 1) * sizeof *fresh);
    if (!fresh)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to replace pointers");
    w.fresh = fresh;

    for (uint32_t i = 0; i < b->count && r == DS_OK; i++)
        r = ds__replacement_create(&w, b, i);
    if (r == DS_OK)
        r = ds__replacement_set(x, fresh);

    /* the executable keeps one node of each pair, the other one is freed */
    for (uint32_t i = 0; i < b->count; i++) {
        if (!fresh[i])
            continue;
        ds__node_destroy(r == DS_OK ? ds__body_replace(b, i, fresh[i]) : fresh[i]);
    }
    ds__host_free(fresh);
    if (r == DS_OK)
        *out_replaced = w.places;
    return r;
}

DSDEF ds_result(ds_graph_exec_replace_pointers)(ds_graph_exec exec, void *const *old_pointers,
                                                void *const *new_pointers, size_t count,
                                                size_t *out_replaced) {
    size_t places = 0;
    if (out_replaced)
        *out_replaced = 0;
    DS__ENTER("ds_graph_exec_replace_pointers");
    DS__REQUIRE((old_pointers && new_pointers) || !count, "%s is NULL",
                old_pointers ? "new_pointers" : "old_pointers");
    for (size_t i = 0; i < count; i++)
        DS__REQUIRE(old_pointers[i] && new_pointers[i], "pointer pair %zu contains NULL", i);
    ds__exec *x = ds__exec_lock(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    ds_result r =
        ds__exec_unlock(x, ds__replace_pointers(x, old_pointers, new_pointers, count, &places));
    if (out_replaced)
        *out_replaced = places;
    return r;
}

#endif
