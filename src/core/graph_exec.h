/* core/graph_exec.h - executables: instantiation, upload, launch.

   Makes executables of graphs (ds_graph_instantiate), uploads them, launches them on streams
   (ds_graph_launch), and destroys them. ds__launch_hooked calls the launch functions of attached
   objects, which the allocator and the generators use, around a launch.

   Invariants: x->body is a copy of the graph with the same node handles and holds the work of
   later launches. At a launch, each object's launch function is called once before it, though
   several child graphs may hold the object. Afterwards it is called with the result; after a
   failure in reverse order, for those that had succeeded.
   Locks: ds_graph_instantiate holds the graph's lock over the driver's graph_instantiate and an
   upload. A launch or upload holds the executable's lock over the driver's submit and the launch
   functions. No destructor of the user runs under these locks.
   Threads: any; launches of one executable run one after the other. */
#ifndef DS__CORE_GRAPH_EXEC_H
#define DS__CORE_GRAPH_EXEC_H

#include "../base/observe.h"
#include "init.h"
#include "thread.h"
#include "stream.h"
#include "submit.h"
#include "graph.h"

static ds_result ds__exec_upload(ds__exec *x, ds_stream stream) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (s->driver->type != x->driver->type) {
        r = ds__fail(DS_ERR_CROSS_DRIVER,
                     "the executable and the stream belong to different drivers");
    } else {
        ds__op op = ds__op_init(DS__OP_UPLOAD);
        op.u.graph.exec = x->native;
        op.u.graph.body = x->body;
        r = ds__stream_submit(s, &op);
    }
    ds__stream_unpin(s);
    return r;
}

static ds_result ds__exec_instantiate(ds__graph *g, const ds_graph_exec_desc *desc,
                                      ds_graph_exec *out) {
    if (atomic_load(&g->capturing))
        return ds__being_captured(g);
    const char *label = desc->label ? desc->label : g->label;
    ds__exec *x = ds__table_add(&ds__g.execs);
    if (!x)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    ds__mutex_init(&x->lock);
    x->driver = g->body->driver;
    x->flags = desc->flags;
    x->made = ds__tls.site;
    ds_result r = DS_OK;
    x->body = ds__body_copy(g->body, 1);
    if (x->body && label)
        x->label = ds__copy_text(label, 255);
    if (!x->body || (label && !x->label))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    if (r == DS_OK)
        r = x->driver->graph_instantiate(g->body, x->body, desc->flags, &x->native);
    if (r == DS_OK && (desc->flags & DS_GRAPH_UPLOAD))
        r = ds__exec_upload(x, desc->upload_stream);
    if (r == DS_OK)
        out->id = ds__handle_of(&x->slot);
    else
        ds__table_invalidate(&ds__g.execs, x);
    return r;
}

DSDEF ds_result(ds_graph_instantiate)(ds_graph graph, const ds_graph_exec_desc *desc,
                                      ds_graph_exec *out) {
    static const ds_graph_exec_desc none;
    if (out)
        out->id = 0;
    DS__ENTER("ds_graph_instantiate");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    DS__REQUIRE_RESERVED("ds_graph_exec_desc", desc);
    if (desc->flags & DS_GRAPH_DEVICE_LAUNCH)
        return ds__fail(DS_ERR_UNSUPPORTED, "graph launches from a device are not supported");
    DS__REQUIRE(
        (desc->flags & ~(unsigned)(DS_GRAPH_AUTO_FREE_ON_LAUNCH | DS_GRAPH_UPLOAD |
                                   DS_GRAPH_USE_NODE_PRIORITY | DS_GRAPH_REPLACE_POINTERS)) == 0,
        "unknown flags %#x; use DS_GRAPH_* flags", desc->flags);
    ds__retired_reclaim();
    ds__graph *g = ds__graph_lock(graph);
    return g ? ds__graph_unlock(g, ds__exec_instantiate(g, desc, out)) : DS_ERR_INVALID_HANDLE;
}

DSDEF ds_result(ds_graph_upload)(ds_graph_exec exec, ds_stream stream) {
    DS__ENTER("ds_graph_upload");
    ds__exec *x = ds__exec_lock(exec);
    return x ? ds__exec_unlock(x, ds__exec_upload(x, stream)) : DS_ERR_INVALID_HANDLE;
}

/* Calls the launch_fn of the objects, each once: an object that several graphs within the body have
   is called in the first of them only. Leaves out the first *skip objects, and stops after *left
   objects or at the first failure. */
static ds_result ds__exec_hooks_run(const ds__body *b, const ds__body *top, ds__stream *s,
                                    ds_result how, size_t *skip, size_t *left);

/* Returns 1 if a body before `stop`, in the order of ds__exec_hooks_run, has the object. *over 1:
   the search has reached `stop`. */
static int ds__hook_seen(const ds__body *b, const ds__body *stop, const ds__object *o, int *over) {
    for (size_t i = 0; b != stop && i < b->object_count; i++)
        if (b->object[i] == o)
            return 1;
    if (b == stop) {
        *over = 1;
        return 0;
    }
    for (uint32_t i = 0; i < b->count && !*over; i++)
        if (b->node[i]->child && ds__hook_seen(b->node[i]->child, stop, o, over))
            return 1;
    return 0;
}

static ds_result ds__exec_hooks_run(const ds__body *b, const ds__body *top, ds__stream *s,
                                    ds_result how, size_t *skip, size_t *left) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < b->object_count && r >= 0 && *left; i++) {
        ds__object *o = b->object[i];
        int over = 0;
        if (!o->launch_fn || ds__hook_seen(top, b, o, &over))
            continue;
        if (*skip) {
            --*skip;
            continue;
        }
        r = o->launch_fn(o->user, s, how);
        if (r >= 0)
            --*left;
    }
    for (uint32_t i = 0; i < b->count && r >= 0 && *left; i++)
        if (b->node[i]->child && b->node[i]->child->hooked)
            r = ds__exec_hooks_run(b->node[i]->child, top, s, how, skip, left);
    return r;
}

/* Returns the object with a launch_fn that has the next higher address, or NULL. Objects of child
   graphs count too. */
static ds__object *ds__hook_above(const ds__body *b, const ds__object *below) {
    ds__object *found = NULL;
    for (size_t i = 0; i < b->object_count; i++) {
        ds__object *o = b->object[i];
        if (o->launch_fn && (uintptr_t)o > (uintptr_t)below &&
            (!found || (uintptr_t)o < (uintptr_t)found))
            found = o;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        const ds__body *child = b->node[i]->child;
        ds__object *o = child && child->hooked ? ds__hook_above(child, below) : NULL;
        if (o && (!found || (uintptr_t)o < (uintptr_t)found))
            found = o;
    }
    return found;
}

static void ds__hooks_lock(const ds__body *b, int take) {
    ds__object *o = NULL;
    while ((o = ds__hook_above(b, o)) != NULL)
        o->launch_lock_fn(o->user, take);
}

/* Launches an executable with objects that have a launch_fn. If the launch fails, they undo their
   changes. */
static ds_result ds__launch_hooked(ds__stream *s, const ds__op *op) {
    const ds__body *b = op->u.graph.body;
    size_t skip = 0;
    size_t left = SIZE_MAX;
    size_t done;
    ds__op outside = *op; /* the hooks prepare a launch, not a node */
    outside.flags |= DS__OP_OUTSIDE;
    ds__hooks_lock(b, 1);
    ds_result r = ds__exec_hooks_run(b, b, s, DS_NOT_READY, &skip, &left);
    done = SIZE_MAX - left;
    if (r >= 0)
        r = ds__stream_submit(s, &outside);
    if (r == DS__CHANGED)
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "a capture began on the stream while the graph was launched");
    if (r >= 0 && done)
        DS_IGNORE(ds__exec_hooks_run(b, b, s, r, &skip, &done));
    while (r < 0 && done) { /* in reverse order, since each call undoes its own changes */
        skip = --done;
        left = 1;
        DS_IGNORE(ds__exec_hooks_run(b, b, s, r, &skip, &left));
    }
    ds__hooks_lock(b, 0);
    return r;
}

DSDEF ds_result(ds_graph_launch)(ds_graph_exec exec, ds_stream stream) {
    ds_result r = ds__api_enter_inline("ds_graph_launch");
    if (DS__UNLIKELY(r < 0))
        return r;
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    ds__exec *x = ds__exec_lock(exec);
    if (DS__UNLIKELY(!x)) {
        r = DS_ERR_INVALID_HANDLE;
    } else if (DS__UNLIKELY(s->driver->type != x->driver->type)) {
        r = ds__exec_unlock(x,
                            ds__fail(DS_ERR_CROSS_DRIVER,
                                     "the executable and the stream belong to different drivers"));
    } else {
        ds__op op = ds__op_init(DS__OP_GRAPH);
        op.u.graph.exec = x->native;
        op.u.graph.body = x->body;
        r = ds__exec_unlock(x, DS__LIKELY(!x->body->hooked) ? ds__stream_submit(s, &op)
                                                            : ds__launch_hooked(s, &op));
    }
    if (ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_LAUNCH,
                                         .exec = exec,
                                         .stream = stream,
                                         .device = s->device,
                                         .result = r });
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

static ds_result ds__exec_release(uint64_t id) {
    return (ds_graph_exec_destroy)((ds_graph_exec){ id });
}

DSDEF ds_result(ds_graph_exec_destroy)(ds_graph_exec exec) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_object("ds_graph_exec_destroy", &ds__g.execs, exec.id,
                                   ds__exec_release);
    DS__ENTER("ds_graph_exec_destroy");
    ds__exec *x = ds__exec_lock(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    int killed = ds__table_invalidate(&ds__g.execs, x);
    ds_result r = ds__exec_unlock(
        x,
        killed ? DS_OK : ds__fail(DS_ERR_INVALID_HANDLE, "the executable was destroyed already"));
    ds__retired_reclaim();
    return r;
}

#endif
