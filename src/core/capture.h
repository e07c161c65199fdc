/* core/capture.h - captures of streams into graphs.

   Begins, ends and queries captures, changes their dependencies, and sets the capture mode of a
   thread. ds__capture_attachment ties an object of the allocator or of a generator to the
   capture of a stream. The driver of the stream applies the rules of capture.

   Invariants: g->capturing counts the captures that add to a graph; while it is not 0, the graph
   cannot be destroyed, cloned or instantiated. ds__capture_over runs once for each capture that
   has begun, at its end or at shutdown. A failed capture destroys the graph that it created, but
   not a graph of the user (c->into).
   Locks: ds__g.begin is held over the driver's capture_begin. Order: a graph's lock,
   ds__g.begin, ds__g.capture_lock, which the drivers take. ds__capture_attachment runs make_fn,
   release_fn and the driver's graph_attach under the graph's lock. ds_capture_function runs the
   user's function without a lock.
   Threads: any. The driver refuses to end a capture on another thread than its own unless it is
   relaxed. release_fn may run on any thread. */
#ifndef DS__CORE_CAPTURE_H
#define DS__CORE_CAPTURE_H

#include "init.h"
#include "thread.h"
#include "stream.h"
#include "stream_sync.h"
#include "graph.h"

/* Begins a capture of the stream into the graph, after the nodes. into: the graph is the user's and
   is locked. */
static ds_result ds__capture_begin_into(ds__stream *s, ds__graph *g, const ds_graph_node *nodes,
                                        size_t count, ds_capture_mode mode, int into) {
    ds_result r = DS_OK;
    uint32_t *deps = ds__host_alloc((count + 1) * sizeof *deps);
    ds__capture *c = ds__host_alloc(sizeof *c);
    if (!deps || !c)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__node_index(g->body, nodes[i], &deps[i]);
    if (r == DS_OK) {
        c->driver = s->driver;
        c->thread = ds__thread_number();
        c->mode = mode;
        c->begun = ds__tls.site;
        c->graph.id = ds__handle_of(&g->slot);
        c->body = g->body;
        c->into = into;
        atomic_fetch_add(&g->capturing, 1); /* first: another thread may add to the graph at once */
        ds__rwlock_write(&ds__g.begin);
        r = s->driver->capture_begin(s->native, c, deps, count);
        ds__rwlock_end_write(&ds__g.begin);
        if (r < 0)
            atomic_fetch_sub(&g->capturing, 1);
    }
    if (r < 0)
        ds__host_free(c);
    ds__host_free(deps);
    return ds__stream_error(s, r);
}

static ds_result ds__capture_begin(ds_stream stream, ds_capture_mode mode) {
    DS__REQUIRE((unsigned)mode <= DS_CAPTURE_RELAXED,
                "mode is %d; use DS_CAPTURE_GLOBAL, _THREAD_LOCAL or _RELAXED", (int)mode);
    ds__retired_reclaim();
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__body *b = ds__body_create(s->driver, s->device);
    ds__graph *g = b ? ds__graph_add(b, NULL) : NULL;
    ds_result r = g ? ds__capture_begin_into(s, g, NULL, 0, mode, 0) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0 && g)
        ds__table_invalidate(&ds__g.graphs, g);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_capture_begin)(ds_stream stream, ds_capture_mode mode) {
    DS__ENTER("ds_capture_begin");
    return ds__capture_begin(stream, mode);
}

DSDEF ds_result(ds_capture_begin_to_graph)(ds_stream stream, ds_graph graph,
                                           const ds_graph_node *dependencies, size_t count,
                                           ds_capture_mode mode) {
    DS__ENTER("ds_capture_begin_to_graph");
    DS__REQUIRE((unsigned)mode <= DS_CAPTURE_RELAXED,
                "mode is %d; use DS_CAPTURE_GLOBAL, _THREAD_LOCAL or _RELAXED", (int)mode);
    DS__REQUIRE(dependencies || !count, "dependencies is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__graph *g = ds__graph_lock(graph);
    ds_result r = g ? DS_OK : DS_ERR_INVALID_HANDLE;
    if (g) {
        if (g->body->driver->type != s->driver->type)
            r = ds__fail(DS_ERR_CROSS_DRIVER,
                         "the graph and the stream belong to different drivers");
        else if (atomic_load(&g->capturing))
            r = ds__being_captured(g);
        else if (!ds__slot_is(&g->slot, graph.id))
            r = ds__fail(DS_ERR_INVALID_HANDLE,
                         "the graph was destroyed"); /* while this call waited for its lock */
        else
            r = ds__capture_begin_into(s, g, dependencies, count, mode, 1);
        r = ds__graph_unlock(g, r);
    }
    ds__stream_unpin(s);
    return r;
}

/* *out_into (may be NULL): 1 if the graph was the user's before the capture. */
static ds_result ds__capture_end(ds_stream stream, ds_graph *out, int *out_into) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__capture *c = NULL;
    ds_result r = ds__stream_error(s, s->driver->capture_end(s->native, &c));
    if (c) {
        if (r == DS_OK)
            *out = c->graph;
        if (out_into)
            *out_into = c->into;
        ds__capture_over(c, r < 0);
    }
    ds__stream_unpin(s);
    ds__retired_reclaim();
    return r;
}

DSDEF ds_result(ds_capture_end)(ds_stream stream, ds_graph *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_capture_end");
    DS__REQUIRE(out, "out is NULL");
    return ds__capture_end(stream, out, NULL);
}

static ds_result ds__capture_info(ds_stream stream, ds_capture_info *out) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__stream_error(s, s->driver->capture_query(s->native, out));
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_capture_get_status)(ds_stream stream, ds_capture_status *out) {
    ds_capture_info info;
    if (out)
        *out = DS_CAPTURE_NONE;
    DS__ENTER("ds_capture_get_status");
    DS__REQUIRE(out, "out is NULL");
    memset(&info, 0, sizeof info);
    ds_result r = ds__capture_info(stream, &info);
    if (r == DS_OK)
        *out = info.status;
    return r;
}

DSDEF ds_result(ds_capture_get_info)(ds_stream stream, ds_capture_info *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_capture_get_info");
    DS__REQUIRE(out, "out is NULL");
    return ds__capture_info(stream, out);
}

DSDEF ds_result(ds_capture_get_dependencies)(ds_stream stream, ds_graph_node *out, size_t room,
                                             size_t *out_count) {
    if (out_count)
        *out_count = 0;
    DS__ENTER("ds_capture_get_dependencies");
    DS__REQUIRE(out_count && (out || !room), "%s is NULL", out_count ? "out" : "out_count");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r =
        ds__stream_error(s, s->driver->capture_dependencies(s->native, out, room, out_count));
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_capture_update_dependencies)(ds_stream stream, const ds_graph_node *nodes,
                                                size_t count, unsigned how) {
    DS__ENTER("ds_capture_update_dependencies");
    DS__REQUIRE(nodes || !count, "nodes is NULL");
    DS__REQUIRE(how <= DS_CAPTURE_SET_DEPENDENCIES,
                "how is %u; use DS_CAPTURE_ADD_DEPENDENCIES or _SET_DEPENDENCIES", how);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__stream_error(
        s, s->driver->capture_update(s->native, nodes, count, how == DS_CAPTURE_SET_DEPENDENCIES));
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_capture_exchange_mode)(ds_capture_mode *mode) {
    DS__ENTER("ds_capture_exchange_mode");
    DS__REQUIRE(mode, "mode is NULL");
    DS__REQUIRE((unsigned)*mode <= DS_CAPTURE_RELAXED,
                "mode is %d; use DS_CAPTURE_GLOBAL, _THREAD_LOCAL or _RELAXED", (int)*mode);
    ds_result r = DS_OK;
    /* CUDA last: only its driver keeps a mode, and no later failure may leave the mode changed */
    for (int b = DS_BACKEND_COUNT - 1; b >= 0 && r == DS_OK; b--)
        if (ds__g.driver[b])
            r = ds__g.driver[b]->capture_mode(*mode);
    if (r < 0)
        return r;
    ds_capture_mode before = ds__tls.mode;
    ds__tls.mode = *mode;
    *mode = before;
    return DS_OK;
}

DSDEF ds_result(ds_capture_function)(ds_stream stream, ds_capture_fn fn, void *user,
                                     ds_graph *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_capture_function");
    DS__REQUIRE(out && fn, "%s is NULL", out ? "fn" : "out");
    ds_site site = ds__tls.site;
    ds_result r = ds__capture_begin(stream, DS_CAPTURE_THREAD_LOCAL);
    if (r < 0)
        return r;
    uint32_t epoch = ds__g.epoch;
    ds__tls.code = DS_OK;
    r = fn(stream, user);
    ds__kept_error reason;
    ds_graph graph = { 0 };
    ds__tls.fn = "ds_capture_function";
    ds__tls.site = site;
    if (ds__g.epoch != epoch)
        return ds__fail(DS_ERR_INVALID_HANDLE,
                        "the captured function called ds_shutdown, which ended the capture");
    /* otherwise the sentence of the call that failed in the function stays */
    if (r < 0 && ds__tls.code != r)
        r = ds__fail(r, "the captured function returned %s (%d)", (ds_result_get_name)(r), (int)r);
    ds__error_save(&reason);
    ds_result end = ds__capture_end(stream, &graph, NULL);
    if (r >= 0) {
        *out = graph;
        return end;
    }
    ds__error_restore(&reason);
    if (end == DS_OK) {
        ds__graph *g = ds__graph_lock(graph);
        if (g) {
            ds__table_invalidate(&ds__g.graphs, g);
            DS_IGNORE(ds__graph_unlock(g, DS_OK));
        }
        ds__retired_reclaim();
    }
    return r;
}

/* Locks the graph of the capture of the stream; *out NULL: the stream does not capture. Tries again
   if another thread has ended the capture and destroyed its graph. */
static ds_result ds__capture_take_graph(ds__stream *s, ds_capture_info *info, ds__graph **out) {
    *out = NULL;
    for (int i = 0; i < 100 && !*out; i++) {
        if (DS__LIKELY(ds__captures_open() == 0))
            return DS_OK;
        memset(info, 0, sizeof *info);
        ds_result r = s->driver->capture_query(s->native, info);
        if (r < 0 || info->status != DS_CAPTURE_ACTIVE || !info->graph.id)
            return r;
        *out = ds__graph_lock(info->graph);
    }
    return *out ? DS_OK : DS_ERR_INVALID_HANDLE;
}

/* Attaches a new object to the graph and to the driver's graph, or to none. The graph's lock is
   held. *out may be set on failure, too; the caller drops it. */
static ds_result ds__attachment_add(ds__body *b, const ds__attachment *a, uint64_t capture,
                                    ds__object **out) {
    void *made = NULL;
    ds_result r = a->make_fn(capture, a->user, &made);
    if (r != DS_OK)
        return r;
    ds__object *o = ds__object_create(made, a->release_fn);
    if (!o) {
        a->release_fn(made);
        return DS_ERR_OUT_OF_MEMORY;
    }
    *out = o;
    o->launch_fn = a->launch_fn;
    o->launch_lock_fn = a->launch_lock_fn;
    o->key = a->key;
    o->capture = capture;
    r = ds__body_object_add(b, o);
    if (r < 0)
        return r;
    r = b->driver->graph_attach(b, o);
    if (r < 0) {
        b->object_count--;
        atomic_fetch_sub(&o->owners, 1);
    }
    return r;
}

/* Memory that a capturing stream uses must stay as long as the graph may run. The allocator and the
   generators attach an object to the capture that holds it. */
__attribute__((unused)) static ds_result ds__capture_attachment(ds__stream *s,
                                                                const ds__attachment *a,
                                                                ds__object **out) {
    ds_capture_info info;
    ds__graph *g;
    ds__object *o = NULL;
    *out = NULL;
    ds_result r = ds__capture_take_graph(s, &info, &g);
    if (!g)
        return r;

    for (size_t i = 0; i < g->body->object_count && !o; i++)
        if (g->body->object[i]->key == a->key && g->body->object[i]->capture == info.id)
            o = ds__object_ref(g->body->object[i]);
    if (!o)
        r = ds__attachment_add(g->body, a, info.id, &o);
    r = ds__graph_unlock(g, r);

    if (r == DS_OK)
        *out = o;
    else
        ds__object_unref(o);
    return r;
}

#endif
