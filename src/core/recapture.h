/* core/recapture.h - captures that replace the work of a graph.

   Ends a capture and gives its nodes to an existing graph of the same shape
   (ds_capture_end_recapture). The drivers take no part: the graphs exchange their bodies.

   Invariants: the graph keeps the serial of its body, so that handles of its nodes stay valid. It
   gets all of the captured work or none.
   Locks: the lock of the captured graph, then that of the graph; never both. The former body is
   destroyed without a lock, since the user's destructors may run.
   Threads: any. */
#ifndef DS__CORE_RECAPTURE_H
#define DS__CORE_RECAPTURE_H

#include "init.h"
#include "graph.h"
#include "graph_edit.h"
#include "capture.h"

/* Takes the body of a graph that no one needs any more, and destroys the graph. */
static ds_result ds__graph_take_body(ds_graph graph, ds__body **out) {
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__body *empty = ds__body_create(g->body->driver, g->body->device);
    ds_result r = empty ? empty->driver->graph_create(empty) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK) {
        *out = g->body;
        g->body = empty;
    } else if (empty) {
        ds__body_destroy(empty);
    }
    ds__table_invalidate(&ds__g.graphs, g);
    return ds__graph_unlock(g, r);
}

/* Returns the reason why the nodes of a graph cannot be replaced one by one: their number, kinds or
   dependencies differ. */
static ds_graph_update_reason ds__shape_compare(const ds__body *now, const ds__body *then,
                                                uint32_t *out_node) {
    *out_node = UINT32_MAX;
    if (now->driver != then->driver)
        return DS_GRAPH_UPDATE_NOT_SUPPORTED;
    if (now->count != then->count)
        return DS_GRAPH_UPDATE_TOPOLOGY_CHANGED;
    for (uint32_t i = 0; i < now->count; i++) {
        *out_node = i;
        if (!ds__node_has_dependencies(now->node[i], then->node[i]))
            return DS_GRAPH_UPDATE_TOPOLOGY_CHANGED;
        if (now->node[i]->kind != then->node[i]->kind)
            return DS_GRAPH_UPDATE_NODE_TYPE_CHANGED;
    }
    return DS_GRAPH_UPDATE_SUCCESS;
}

/* Exchanges the bodies, if the captured one has the shape of the graph. The graph's lock is
   held. */
static ds_result ds__graph_recapture(ds__graph *g, ds__body **captured) {
    uint32_t node;
    char text[160] = "the graph";
    if (atomic_load(&g->capturing))
        return ds__being_captured(g);
    ds_graph_update_reason reason = ds__shape_compare(g->body, *captured, &node);
    if (reason) {
        if (node != UINT32_MAX)
            ds__node_print(*captured, node, text, sizeof text);
        return ds__fail(DS_ERR_GRAPH_UPDATE, "the captured work does not fit the graph: %s (%s)",
                        ds__update_texts[reason], text);
    }
    ds__body *old = g->body;
    (*captured)->serial = old->serial;
    (*captured)->origin = old->origin;
    g->body = *captured;
    *captured = old;
    return DS_OK;
}

DSDEF ds_result(ds_capture_end_recapture)(ds_stream stream, ds_graph graph) {
    ds__body *body = NULL;
    ds_graph fresh = { 0 };
    int into = 0;
    DS__ENTER("ds_capture_end_recapture");
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE; /* the capture goes on */
    DS_IGNORE(ds__graph_unlock(g, DS_OK));
    ds_result r = ds__capture_end(stream, &fresh, &into);
    if (r == DS_OK && into)
        r = ds__fail(DS_ERR_INVALID_VALUE, "the capture has added its nodes to an existing graph "
                                           "(ds_capture_begin_to_graph)");
    if (r < 0 || fresh.id == graph.id)
        return r;
    r = ds__graph_take_body(fresh, &body);
    if (r == DS_OK) {
        g = ds__graph_lock(graph);
        r = g ? ds__graph_unlock(g, ds__graph_recapture(g, &body)) : DS_ERR_INVALID_HANDLE;
    }
    if (body)
        ds__body_destroy(body);
    ds__retired_reclaim();
    return r;
}

#endif
