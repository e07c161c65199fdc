/* core/graph.h - graphs and executables: look-up, locks, creation, clones.

   Looks up and locks graphs and executables (ds__graph_lock, ds__exec_lock), converts node
   handles to indices (ds__node_index), and creates, clones and destroys graphs. The nodes are in
   base/graph_body.h.

   Invariants: a taken graph or executable has a hazard pointer and is locked until
   ds__graph_unlock or ds__exec_unlock. A body belongs to one graph, executable or child node. A
   node handle is the serial of its body and the index + 1. While g->capturing is not 0, a change of
   the nodes also needs the capture lock (ds__graph_share).
   Locks: an executable's lock, then a graph's lock, then ds__g.capture_lock. Two graph locks are
   never held together. The driver's graph_clone runs under the graph's lock. The user's
   destructors do not: ds__retired_reclaim runs before a lock is taken or after it is given back.
   Threads: any; calls with the same graph run one after the other. ds__graph_destroy and
   ds__exec_destroy run in ds__retired_reclaim or in ds_shutdown. */
#ifndef DS__CORE_GRAPH_H
#define DS__CORE_GRAPH_H

#include "../base/graph_body.h"
#include "init.h"
#include "thread.h"
#include "device.h"
#include "stream_sync.h"

static void ds__graph_destroy(void *object) {
    ds__graph *g = object;
    if (g->body)
        ds__body_destroy(g->body);
    ds__mutex_destroy(&g->lock);
    ds__host_free(g->label);
}

static void ds__exec_destroy(void *object) {
    ds__exec *x = object;
    if (x->native)
        x->driver->exec_destroy(x->native);
    if (x->body)
        ds__body_destroy(x->body);
    ds__mutex_destroy(&x->lock);
    ds__host_free(x->label);
}

/* Pins and locks a graph. NULL: the handle is not valid, and the sentence is set. */
static ds__graph *ds__graph_lock(ds_graph handle) {
    ds__graph *g = ds__pin(&ds__g.graphs, handle.id);
    if (!g) {
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the graph was destroyed or never existed"
                                                  : "no graph was given (the handle is zero)");
        return NULL;
    }
    ds__mutex_lock(&g->lock);
    return g;
}

static ds_result ds__graph_unlock(ds__graph *g, ds_result r) {
    ds__mutex_unlock(&g->lock);
    r = ds__name_object(r, "graph", g->label);
    ds__unpin(&ds__g.graphs, g);
    return r;
}

/* Pins and locks an executable. NULL: the handle is not valid, and the sentence is set. */
static ds__exec *ds__exec_lock(ds_graph_exec handle) {
    ds__exec *x = ds__pin(&ds__g.execs, handle.id);
    if (DS__UNLIKELY(!x)) {
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the executable was destroyed or never existed"
                                                  : "no executable was given (the handle is zero)");
        return NULL;
    }
    ds__mutex_lock(&x->lock);
    return x;
}

static ds_result ds__exec_unlock(ds__exec *x, ds_result r) {
    ds__mutex_unlock(&x->lock);
    if (DS__UNLIKELY(r < 0))
        ds__name_object(r, "executable", x->label);
    ds__unpin(&ds__g.execs, x);
    return r;
}

/* Takes the capture lock if a capture may be adding to the graph. Returns 0 if it did not; the
   result is for ds__graph_unshare. */
static int ds__graph_share(ds__graph *g) {
    int shared = atomic_load(&g->capturing) != 0;
    if (!shared)
        return 0;
    ds__mutex_lock(&ds__g.capture_lock);
    return ++ds__tls.capture_locked;
}

static void ds__graph_unshare(int shared) {
    if (!shared)
        return;
    ds__tls.capture_locked--;
    ds__mutex_unlock(&ds__g.capture_lock);
}

/* Reports that a capture adds to the graph, and returns the code. */
static ds_result ds__being_captured(const ds__graph *g) {
    ds_result r = DS_ERR_ILLEGAL_STATE;
    ds__mutex_lock(&ds__g.capture_lock);
    ds__capture *c = ds__g.captures;
    while (c && c->body != g->body)
        c = c->next;
    if (c)
        ds__capture_fail(r, c, 0, "a capture adds nodes to the graph; end the capture first");
    else
        ds__fail(r, "a capture into the graph is beginning or ending; try again");
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

static ds_graph_node ds__node_handle(const ds__body *b, uint32_t index) {
    ds_graph_node n = { (uint64_t)b->serial << 32 | (index + 1u) };
    return n;
}

/* Returns the index of a node of this body. */
static ds_result ds__node_index(const ds__body *b, ds_graph_node node, uint32_t *out) {
    uint32_t index = (uint32_t)node.id - 1;
    DS__REQUIRE(node.id, "no node was given (the handle is zero)");
    DS__REQUIRE(node.id >> 32 == b->serial, "the node belongs to another graph");
    DS__REQUIRE(index < b->count, "the graph has no such node");
    *out = index;
    return DS_OK;
}

/* Creates a graph object of a body. The object owns the body; on failure the body is freed. */
static ds__graph *ds__graph_add(ds__body *body, const char *label) {
    ds__graph *g = ds__table_add(&ds__g.graphs);
    if (!g) {
        ds__body_destroy(body);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
        return NULL;
    }
    ds__mutex_init(&g->lock);
    g->body = body;
    g->made = ds__tls.site;
    if (label)
        g->label = ds__copy_text(label, 255);
    if (label && !g->label) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a label");
        ds__table_invalidate(&ds__g.graphs, g);
        return NULL;
    }
    return g;
}

DSDEF ds_result(ds_graph_create)(const ds_graph_desc *desc, ds_graph *out) {
    static const ds_graph_desc none;
    if (out)
        out->id = 0;
    DS__ENTER("ds_graph_create");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    DS__REQUIRE_RESERVED("ds_graph_desc", desc);
    ds_device device = desc->device;
    DS__RESOLVE(device);
    ds__retired_reclaim();
    ds__body *b = ds__body_create(ds__driver_of(device), device);
    if (!b)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = b->driver->graph_create(b);
    if (r < 0) {
        ds__body_destroy(b);
        return r;
    }
    ds__graph *g = ds__graph_add(b, desc->label);
    if (!g)
        return DS_ERR_OUT_OF_MEMORY;
    out->id = ds__handle_of(&g->slot);
    return DS_OK;
}

static ds_result ds__graph_release(uint64_t id) {
    return (ds_graph_destroy)((ds_graph){ id });
}

DSDEF ds_result(ds_graph_destroy)(ds_graph graph) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_object("ds_graph_destroy", &ds__g.graphs, graph.id, ds__graph_release);
    DS__ENTER("ds_graph_destroy");
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (atomic_load(&g->capturing))
        r = ds__being_captured(g);
    else if (!ds__table_invalidate(&ds__g.graphs, g))
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the graph was destroyed already");
    r = ds__graph_unlock(g, r);
    ds__retired_reclaim();
    return r;
}

/* Copies the body together with the driver's part of it. */
static ds_result ds__body_clone(ds__body *from, ds__body **out) {
    ds__body *to = ds__body_copy(from, 0);
    ds_result r = to ? from->driver->graph_clone(from, to) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0 && to)
        ds__body_destroy(to);
    *out = r < 0 ? NULL : to;
    return r;
}

DSDEF ds_result(ds_graph_clone)(ds_graph graph, ds_graph *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_graph_clone");
    DS__REQUIRE(out, "out is NULL");
    ds__retired_reclaim(); /* never under a lock: the user's destructors may run */
    ds__graph *g = ds__graph_lock(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (atomic_load(&g->capturing))
        r = ds__being_captured(g);
    ds__body *b = NULL;
    if (r == DS_OK)
        r = ds__body_clone(g->body, &b);
    ds__graph *clone = b ? ds__graph_add(b, g->label) : NULL;
    if (clone)
        out->id = ds__handle_of(&clone->slot);
    else if (r == DS_OK)
        r = DS_ERR_OUT_OF_MEMORY;
    return ds__graph_unlock(g, r);
}

DSDEF ds_result(ds_graph_find_in_clone)(ds_graph clone, ds_graph_node node, ds_graph_node *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_graph_find_in_clone");
    DS__REQUIRE(out, "out is NULL");
    ds__graph *g = ds__graph_lock(clone);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    uint32_t index = (uint32_t)node.id - 1;
    ds_result r = DS_OK;
    if (!node.id || node.id >> 32 != g->body->origin || index >= g->body->count)
        r = ds__fail(DS_ERR_INVALID_VALUE, "the graph is not a clone of the node's graph");
    else
        *out = ds__node_handle(g->body, index);
    return ds__graph_unlock(g, r);
}

#endif
