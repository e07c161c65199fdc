/* cpu/capture.h - captures on CPU streams: begin, end, query, update.

   Implements the capture entries of the driver, and tracks which streams belong to a capture
   (ds__cpu_join_capture, ds__cpu_leave_capture). The rules and their result codes are CUDA's
   (CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture"). docs/capture.md lists
   the choices where that guide is silent.

   Invariants: a stream is in the list `members` of a capture exactly while its `capture` is that
   capture. The `watch` of a stream is 1 while the stream captures. The `watch` of a legacy
   stream is the number of blocking streams of its device that capture. `deps` are the nodes that
   the next captured operation of the stream depends on.
   Locks: all state of captures is under the core's capture lock: a stream's capture and nodes,
   and an event's nodes. The entries take it, the helper functions expect it. A submission reads
   `watch` without the lock, and takes the lock only if `watch` is not 0. The program's allocator
   may run under it.
   Threads: caller's threads. ds__cpu_watched may be called from any thread. */
#ifndef DS__CPU_CAPTURE_H
#define DS__CPU_CAPTURE_H

#include "../base/graph_body.h"
#include "../base/capture_list.h"
#include "types.h"
#include "failure.h"
#include "submit.h"

/* Returns 1 if the stream captures, or must not be used beside a capture. */
static inline int ds__cpu_watched(const ds__cpu_stream *s) {
    return DS__UNLIKELY(atomic_load_explicit(&s->watch, memory_order_relaxed) != 0) ? 1 : 0;
}

static const char *const ds__cpu_implicit =
    "the legacy stream cannot be used while a blocking stream of its device captures";

/* Adds to the number of blocking streams of the device that capture. The lock is held. */
static void ds__cpu_watch_legacy(int device, int more) {
    ds__cpu_device *d = &ds__cpu.device[device];
    d->capturing += more;
    if (d->legacy)
        atomic_store(&d->legacy->watch, d->capturing);
}

/* Adds nodes to a list, each at most once. Returns 0 if there is no memory. The lock is held. */
static int ds__cpu_add_nodes(uint32_t **list, uint32_t *count, const uint32_t *more,
                             uint32_t more_count) {
    uint32_t n = 0;
    uint32_t *joint = ds__host_alloc((*count + more_count + 1) * sizeof *joint);
    if (!joint) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
        return 0;
    }
    for (uint32_t i = 0; i < *count; i++)
        joint[n++] = (*list)[i];
    for (uint32_t i = 0; i < more_count; i++) {
        uint32_t k = 0;
        while (k < n && joint[k] != more[i])
            k++;
        if (k == n)
            joint[n++] = more[i];
    }
    ds__host_free(*list);
    *list = joint;
    *count = n;
    return 1;
}

/* Sets the nodes on which the stream's next operation depends (set), or adds to them. Returns 0 if
   there is no memory. The lock is held. */
static int ds__cpu_depend(ds__cpu_stream *s, const uint32_t *deps, uint32_t count, int set) {
    uint32_t before = s->dep_count;
    if (set)
        s->dep_count = 0;
    if (ds__cpu_add_nodes(&s->deps, &s->dep_count, deps, count))
        return 1;
    s->dep_count = before;
    return 0;
}

/* Makes the stream a member of the capture. The lock is held. */
static void ds__cpu_join_capture(ds__cpu_stream *s, ds__capture *c) {
    s->capture = c;
    s->next_member = c->members;
    c->members = s;
    if (s->flags & DS_STREAM_BLOCKING)
        ds__cpu_watch_legacy(s->device, 1);
    atomic_store(&s->watch, 1);
}

/* Ends the stream's membership, but leaves it in the list of members. The lock is held. */
static void ds__cpu_leave_capture(ds__cpu_stream *s) {
    s->capture = NULL;
    ds__host_free(s->deps);
    s->deps = NULL;
    s->dep_count = 0;
    atomic_store(&s->watch, 0);
    if (s->flags & DS_STREAM_BLOCKING)
        ds__cpu_watch_legacy(s->device, -1);
}

/* Ends a capture: no stream belongs to it any more. The lock is held. */
static void ds__cpu_end_capture(ds__capture *c) {
    for (ds__cpu_stream *s = c->members; s;) {
        ds__cpu_stream *next = s->next_member;
        ds__cpu_leave_capture(s);
        s = next;
    }
    c->members = NULL;
    ds__host_free(c->lost);
    c->lost = NULL;
    c->lost_count = 0;
    ds__capture_unlist(c);
}

static void ds__cpu_capture_abandon(ds__capture *c) {
    ds__mutex_lock(&ds__g.capture_lock);
    ds__cpu_end_capture(c);
    ds__mutex_unlock(&ds__g.capture_lock);
}

static ds_result ds__cpu_capture_begin(void *stream, ds__capture *c, const uint32_t *deps,
                                       size_t count) {
    ds__cpu_stream *s = stream;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (f)
        return ds__cpu_report(f);
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "the legacy stream cannot capture; use another stream");
    ds_result r = DS_OK;
    ds__mutex_lock(&ds__g.capture_lock);
    if (s->capture) {
        r = ds__capture_fail(DS_ERR_ILLEGAL_STATE, s->capture, 0, "the stream already captures");
    } else if (!ds__cpu_depend(s, deps, (uint32_t)count, 1)) {
        r = DS_ERR_OUT_OF_MEMORY;
    } else {
        c->origin = s;
        ds__capture_list(c);
        ds__cpu_join_capture(s, c);
    }
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

/* Returns the first node of the list that has no mark, or UINT32_MAX. */
static uint32_t ds__cpu_unmarked(const unsigned char *mark, const uint32_t *nodes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (!mark[nodes[i]])
            return nodes[i];
    return UINT32_MAX;
}

/* Returns a node on which the origin does not depend: the last one of a stream that was not joined,
   or that was destroyed before. UINT32_MAX: all streams were joined, or *out_r is an error. */
static uint32_t ds__cpu_unjoined(const ds__capture *c, ds_result *out_r) {
    const ds__cpu_stream *origin = c->origin;
    unsigned char *mark = ds__host_alloc(c->body->count + 1u);
    if (!mark || !ds__body_ancestors(c->body, origin->deps, origin->dep_count, mark)) {
        ds__host_free(mark);
        *out_r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to end a capture");
        return UINT32_MAX;
    }
    uint32_t found = ds__cpu_unmarked(mark, c->lost, c->lost_count);
    for (const ds__cpu_stream *s = c->members; s && found == UINT32_MAX; s = s->next_member)
        found = ds__cpu_unmarked(mark, s->deps, s->dep_count);
    ds__host_free(mark);
    return found;
}

/* Ends the capture of the stream, if the stream and the thread may end it. *out is the capture
   then, even if the result is an error. The lock is held. */
static ds_result ds__cpu_end_checked(ds__cpu_stream *s, ds__capture *c, ds__capture **out) {
    ds_result r = DS_OK;
    if (c->origin != s)
        return ds__capture_fail(DS_ERR_CAPTURE_UNMATCHED, c, c->status == DS_CAPTURE_ACTIVE,
                                "the capture was begun on another stream; end the capture there");
    if (c->mode != DS_CAPTURE_RELAXED && c->thread != ds__thread_number()) {
        r = ds__capture_fail(
            DS_ERR_CAPTURE_WRONG_THREAD, c, 1,
            "only the thread that began the capture may end it, unless its mode is relaxed");
    } else if (c->status == DS_CAPTURE_INVALIDATED) {
        r = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, c, 0, "");
    } else {
        uint32_t node = ds__cpu_unjoined(c, &r);
        if (node != UINT32_MAX) {
            char text[160];
            char rule[320];
            const ds__op *op = &c->body->node[node]->op;
            snprintf(rule, sizeof rule,
                     "a stream forked into the capture was not joined: the end of the capture does "
                     "not wait for %s, captured at %s:%u",
                     ds__node_print(c->body, node, text, sizeof text), ds__short_path(op->file),
                     (unsigned)op->line);
            r = ds__capture_fail(DS_ERR_CAPTURE_UNJOINED, c, 1, rule);
        }
    }
    ds__cpu_end_capture(c);
    *out = c;
    return r;
}

static ds_result ds__cpu_capture_end(void *stream, ds__capture **out) {
    ds__cpu_stream *s = stream;
    ds__mutex_lock(&ds__g.capture_lock);
    ds_result r = s->capture ? ds__cpu_end_checked(s, s->capture, out)
                             : ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

/* Reports the use of a legacy stream beside open captures of blocking streams of its device.
   spoils: these captures become invalid. The lock is held. */
static ds_result ds__cpu_legacy_used(int device, int spoils) {
    ds_result r = DS_OK;
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        int member = 0;
        if (c->driver->type != DS_DEVICE_CPU)
            continue;
        for (const ds__cpu_stream *s = c->members; s; s = s->next_member)
            member |= s->device == device && (s->flags & DS_STREAM_BLOCKING) != 0;
        if (!member)
            continue;
        if (r == DS_OK)
            r = ds__capture_fail(DS_ERR_CAPTURE_IMPLICIT, c,
                                 spoils && c->status == DS_CAPTURE_ACTIVE, ds__cpu_implicit);
        else if (spoils)
            ds__capture_spoil(c, ds__cpu_implicit);
    }
    return r;
}

static ds_result ds__cpu_capture_query(void *stream, ds_capture_info *out) {
    const ds__cpu_stream *s = stream;
    ds_result r = DS_OK;
    if (!ds__cpu_watched(s))
        return DS_OK;
    ds__mutex_lock(&ds__g.capture_lock);
    const ds__capture *c = s->capture;
    if (s->kind == DS__STREAM_LEGACY) {
        r = ds__cpu_legacy_used(s->device, 0);
    } else if (c) {
        out->status = c->status;
        if (c->status == DS_CAPTURE_ACTIVE) {
            out->mode = c->mode;
            out->id = c->id;
            out->graph = c->graph;
            out->begun = c->begun;
            out->dependency_count = s->dep_count;
        }
    }
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

/* Gives the capture of a stream, and reports an error unless that is active. The lock is held. */
static ds_result ds__cpu_active(const ds__cpu_stream *s, ds__capture **out) {
    *out = s->capture;
    if (!s->capture)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    return s->capture->status == DS_CAPTURE_ACTIVE
               ? DS_OK
               : ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
}

static ds_result ds__cpu_capture_dependencies(void *stream, ds_graph_node *out, size_t room,
                                              size_t *out_count) {
    const ds__cpu_stream *s = stream;
    ds__capture *c;
    ds__mutex_lock(&ds__g.capture_lock);
    ds_result r = ds__cpu_active(s, &c);
    if (r == DS_OK) {
        *out_count = s->dep_count;
        for (uint32_t i = 0; i < s->dep_count && i < room; i++)
            out[i].id = (uint64_t)c->body->serial << 32 | (s->deps[i] + 1u);
    }
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

static ds_result ds__cpu_capture_update(void *stream, const ds_graph_node *nodes, size_t count,
                                        int set) {
    ds__cpu_stream *s = stream;
    ds__capture *c;
    uint32_t *list = ds__host_alloc((count + 1) * sizeof *list);
    if (!list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu nodes", count);
    ds__mutex_lock(&ds__g.capture_lock);
    ds_result r = ds__cpu_active(s, &c);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        list[i] = (uint32_t)nodes[i].id - 1;
        if (!nodes[i].id || nodes[i].id >> 32 != c->body->serial || list[i] >= c->body->count)
            r = ds__fail(DS_ERR_INVALID_VALUE,
                         "node %zu does not belong to the graph that is being captured", i);
    }
    if (r == DS_OK && !ds__cpu_depend(s, list, (uint32_t)count, set))
        r = DS_ERR_OUT_OF_MEMORY;
    ds__mutex_unlock(&ds__g.capture_lock);
    ds__host_free(list);
    return r;
}

#endif
