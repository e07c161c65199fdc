/* cpu/capture_op.h - stream work and forbidden calls during a capture.

   Decides the effect of an operation on a capturing stream: a node, a dependency or an error
   (ds__cpu_capture_op). Brings further streams into a capture (ds__cpu_fork_event,
   ds__cpu_fork_stream). Refuses calls that an open capture forbids (ds__cpu_unsafe,
   ds__cpu_unsafe_wait).

   Invariants: an operation on a capturing stream never enters a queue. If it cannot become a
   node, the graph and the stream's nodes are unchanged. An event recorded in a capture stands
   for nodes and keeps its own copy of their list. A call that invalidates a capture is named in
   the later errors of that capture.
   Locks: the core's capture lock, then an event's lock. ds__cpu_fork, ds__cpu_capture_op and its
   steps expect the capture lock, the other functions take it. The registries' mutex
   (ds__cpu_event_look) is taken and released before. ds__capture_over runs after the lock is
   released.
   Threads: caller's threads, any number at once. */
#ifndef DS__CPU_CAPTURE_OP_H
#define DS__CPU_CAPTURE_OP_H

#include "types.h"
#include "run.h"
#include "submit.h"
#include "capture.h"

/* Does nothing: the core keeps the mode of a thread. */
static ds_result ds__cpu_capture_mode(ds_capture_mode mode) {
    (void)mode;
    return DS_OK;
}

/* Reports a call that an open capture forbids in this thread. */
static ds_result ds__cpu_unsafe(const char *rule) {
    if (ds__cpu.is_lax)
        return DS_OK;
    return ds__capture_guard(&ds__cpu_driver, rule);
}

/* Reports a wait for a device with a stream that captures; such captures become invalid. The wait
   could not end, because captured work does not run. */
static ds_result ds__cpu_unsafe_wait(int device) {
    ds_result r =
        ds__cpu_unsafe("a device cannot be synchronized in this thread while the capture is open");
    if (DS__LIKELY(ds__captures_open() == 0))
        return r;
    ds__mutex_lock(&ds__g.capture_lock);
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        int member = 0;
        if (c->driver->type != DS_DEVICE_CPU)
            continue;
        for (const ds__cpu_stream *s = c->members; s; s = s->next_member)
            member |= s->device == device;
        if (!member)
            continue;
        if (r == DS_OK)
            r = ds__capture_fail(
                DS_ERR_CAPTURE_UNSUPPORTED, c, c->status == DS_CAPTURE_ACTIVE,
                "a device cannot be synchronized while one of its streams captures");
        else
            ds__capture_spoil(c,
                              "a device cannot be synchronized while one of its streams captures");
    }
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

/* Reports a query or wait of a stream that captures, or of the legacy stream beside one. DS_OK: the
   capture is over by now. */
static ds_result ds__cpu_asked(const ds__cpu_stream *s, const char *rule) {
    ds_result r = DS_OK;
    ds__mutex_lock(&ds__g.capture_lock);
    if (s->kind == DS__STREAM_LEGACY)
        r = ds__cpu_legacy_used(s->device, 1);
    else if (s->capture && s->capture->status == DS_CAPTURE_ACTIVE)
        r = ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, s->capture, 1, rule);
    else if (s->capture)
        r = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

/* Reports the use of an event that was recorded in the capture with this number. spoils: the
   capture becomes invalid. */
static ds_result ds__cpu_captured(uint64_t capture, int spoils, const char *rule) {
    ds_result r;
    ds__mutex_lock(&ds__g.capture_lock);
    ds__capture *c = ds__capture_find(&ds__cpu_driver, capture);
    if (c)
        r = ds__capture_fail(DS_ERR_CAPTURED_EVENT, c, spoils && c->status == DS_CAPTURE_ACTIVE,
                             rule);
    else
        r = ds__fail(DS_ERR_CAPTURED_EVENT,
                     "the event was recorded in capture #%llu, which has ended; record it again",
                     (unsigned long long)capture);
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

/* Adds an operation to the graph as a node, on which the stream's next operation depends. The lock
   is held. */
static ds_result ds__cpu_capture_node(ds__cpu_stream *s, ds__capture *c, const ds__op *op) {
    ds_device device = { DS_DEVICE_CPU, s->device };
    ds__node *n = ds__node_create(op, device, s->level + 1 - DS__CPU_LEVELS);
    ds_result r = n ? ds__body_append(c->body, n, s->deps, s->dep_count) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0) {
        ds__node_discard(n);
        return r;
    }
    uint32_t index = c->body->count - 1;
    if (ds__cpu_depend(s, &index, 1, 1))
        return DS_OK;
    c->body->count--;
    ds__node_discard(n);
    return DS_ERR_OUT_OF_MEMORY;
}

/* Makes a stream of capture c wait for nodes of capture `other`. If these differ, both captures
   become invalid. The lock is held. */
static ds_result ds__cpu_capture_wait(ds__cpu_stream *s, ds__capture *c, ds__capture *other,
                                      const uint32_t *deps, uint32_t count) {
    if (other == c)
        return ds__cpu_depend(s, deps, count, 0) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__capture_fail(DS_ERR_CAPTURE_MERGE, c, 1,
                                   "a wait for another capture would merge the two captures");
    ds__capture_spoil(other,
                      "a wait of another capture for this capture would merge the two captures");
    return r;
}

static ds_result ds__cpu_capture_wait_event(ds__cpu_stream *s, ds__capture *c, ds__cpu_event *e) {
    ds__spinlock_lock(&e->lock);
    uint64_t id = e->capture;
    int recorded = e->stream != NULL;
    ds__spinlock_unlock(&e->lock); /* the nodes of an event change only under the capture lock */
    if (!id)
        return recorded ? ds__capture_fail(DS_ERR_CAPTURE_ISOLATION, c, 1,
                                           "the event was recorded outside of the capture; "
                                           "ds_stream_wait_event_external makes it a node")
                        : DS_OK;
    ds__capture *other = ds__capture_find(&ds__cpu_driver, id);
    if (!other)
        return ds__capture_fail(DS_ERR_CAPTURED_EVENT, c, 1,
                                "the event was recorded in another capture, which has ended");
    return ds__cpu_capture_wait(s, c, other, e->deps, e->dep_count);
}

static ds_result ds__cpu_capture_wait_stream(ds__cpu_stream *s, ds__capture *c,
                                             ds__cpu_stream *other) {
    if (other == s)
        return DS_OK;
    if (other->kind == DS__STREAM_LEGACY && ds__cpu_watched(other))
        return ds__cpu_legacy_used(other->device, 1);
    if (!other->capture)
        return ds__capture_fail(DS_ERR_CAPTURE_ISOLATION, c, 1,
                                "the other stream does not capture, and captured work cannot wait "
                                "for work outside of the capture");
    return ds__cpu_capture_wait(s, c, other->capture, other->deps, other->dep_count);
}

/* Lets the event stand for the stream's nodes; adds no node. The lock is held. */
static ds_result ds__cpu_capture_record(const ds__cpu_stream *s, const ds__capture *c,
                                        ds__cpu_event *e) {
    uint32_t *deps = ds__host_alloc((s->dep_count + 1u) * sizeof *deps);
    if (!deps)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
    if (s->dep_count)
        memcpy(deps, s->deps, s->dep_count * sizeof *deps);
    ds__spinlock_lock(&e->lock);
    ds__cpu_stamp *stamp = e->stamp;
    uint32_t *old = e->deps;
    e->capture = c->id;
    e->deps = deps;
    e->dep_count = s->dep_count;
    e->stream = NULL;
    e->stamp = NULL;
    ds__spinlock_unlock(&e->lock);
    ds__cpu_stamp_unref(stamp);
    ds__host_free(old);
    return DS_OK;
}

static const char *const ds__cpu_unpinned =
    "each launch would access pageable memory; use ds_pinned_alloc, ds_pinned_register, or "
    "DS_COPY_HOST_STABLE for stable memory";

static ds_result ds__cpu_capture_kernel(ds__cpu_stream *s, ds__capture *c, const ds__op *op) {
    if (!op->u.kernel.kernel->cpu_fn)
        return ds__cpu_kernel_load(0, op->u.kernel.kernel);
    if (op->u.kernel.kernel->ours)
        return ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
                                "a copy between devices of different drivers cannot be captured");
    ds_result r = ds__cpu_together_ready(s->device, s->share, op);
    return r < 0 ? r : ds__cpu_capture_node(s, c, op);
}

/* Captures a copy or fill. Pageable memory may not exist any more when the graph runs. */
static ds_result ds__cpu_capture_move(ds__cpu_stream *s, ds__capture *c, const ds__op *op) {
    if (ds__place_of(op, DS__OP_DST) == DS__AT_PAGEABLE ||
        (op->kind == DS__OP_COPY && ds__place_of(op, DS__OP_SRC) == DS__AT_PAGEABLE))
        return ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0, ds__cpu_unpinned);
    return ds__cpu_capture_node(s, c, op);
}

/* Executes an operation on a stream that captures: it becomes a node, changes the nodes that the
   stream's next operation will depend on, or is refused. The lock is held. */
static ds_result ds__cpu_capture_op(ds__cpu_stream *s, ds__capture *c, const ds__op *op) {
    switch (op->kind) {
    case DS__OP_KERNEL:
        return ds__cpu_capture_kernel(s, c, op);
    case DS__OP_COPY:
    case DS__OP_FILL:
        return ds__cpu_capture_move(s, c, op);
    case DS__OP_GRAPH:
        if (op->u.graph.body->conditional)
            return ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
                                    "a graph with conditional nodes cannot be a child graph");
        return ds__cpu_capture_node(s, c, op);
    case DS__OP_HOST:
    case DS__OP_VALUES:
    case DS__OP_EXTERNAL_RECORD:
    case DS__OP_EXTERNAL_WAIT:
        return ds__cpu_capture_node(s, c, op);
    case DS__OP_RECORD:
        return ds__cpu_capture_record(s, c, op->u.event.event);
    case DS__OP_WAIT:
        return ds__cpu_capture_wait_event(s, c, op->u.event.event);
    case DS__OP_WAIT_STREAM:
        return ds__cpu_capture_wait_stream(s, c, op->u.wait.stream);
    case DS__CPU_OP_FREE:
        return ds__capture_fail(
            DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
            "the driver's pool cannot allocate or free on a stream that captures");
    case DS__OP_CALLBACK:
        return ds__capture_fail(
            DS_ERR_CAPTURE_UNSUPPORTED, c, 1,
            "ds_stream_add_callback cannot be captured; use ds_stream_launch_host_func");
    default:
        return ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
                                "an executable cannot be uploaded on a stream that captures");
    }
}

/* Submits an operation on a stream with `watch` set. Returns 1 if the stream captures, or must not
   be used beside a capture; *out is the result then. Returns 0 if that is over by now. */
static int ds__cpu_submit_captured(ds__cpu_stream *s, const ds__op *op, ds_result *out) {
    int handled = 1;
    *out = DS_OK;
    if (op->kind == DS__OP_WAIT)
        *out = ds__cpu_event_look(op->u.event.event, 0);
    if (*out < 0)
        return 1;
    ds__mutex_lock(&ds__g.capture_lock);
    if (s->kind == DS__STREAM_LEGACY) {
        *out = ds__cpu_legacy_used(s->device, 1);
        handled = *out < 0;
    } else if (!s->capture)
        handled = 0;
    else if (s->capture->status != DS_CAPTURE_ACTIVE)
        *out = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
    else if (ds__op_changed(op, s->capture->id))
        *out = DS__CHANGED;
    else
        *out = ds__cpu_capture_op(s, s->capture, op);
    ds__mutex_unlock(&ds__g.capture_lock);
    return handled;
}

/* Makes a stream wait for nodes of a capture. A stream that does not capture becomes a member of
   the capture. The lock is held. */
static ds_result ds__cpu_fork(ds__cpu_stream *s, ds__capture *c, const uint32_t *deps,
                              uint32_t count) {
    if (c->status != DS_CAPTURE_ACTIVE)
        return ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, c, 0, "");
    if (s->kind == DS__STREAM_LEGACY)
        return ds__capture_fail(DS_ERR_CAPTURE_IMPLICIT, c, 1,
                                "the legacy stream cannot wait for captured work");
    if (s->capture)
        return ds__cpu_capture_wait(s, s->capture, c, deps, count);
    if (!ds__cpu_depend(s, deps, count, 1))
        return DS_ERR_OUT_OF_MEMORY;
    ds__cpu_join_capture(s, c);
    return DS_OK;
}

/* Makes a stream wait for an event that had been recorded in a capture. Returns 0 if the event has
   been recorded outside of captures meanwhile; *out is the result otherwise. */
static int ds__cpu_fork_event(ds__cpu_stream *s, ds__cpu_event *e, ds_result *out) {
    ds__mutex_lock(&ds__g.capture_lock);
    ds__spinlock_lock(&e->lock);
    uint64_t id = e->capture;
    ds__spinlock_unlock(&e->lock);
    ds__capture *c = id ? ds__capture_find(&ds__cpu_driver, id) : NULL;
    if (c)
        *out = ds__cpu_fork(s, c, e->deps, e->dep_count);
    ds__mutex_unlock(&ds__g.capture_lock);
    if (id && !c)
        *out = ds__cpu_captured(id, 0, "");
    return id != 0;
}

/* Makes a stream wait for another one with `watch` set. Returns 0 if that one does not capture any
   more; *out is the result otherwise. */
static int ds__cpu_fork_stream(ds__cpu_stream *s, ds__cpu_stream *other, ds_result *out) {
    ds__mutex_lock(&ds__g.capture_lock);
    ds__capture *c = other->capture;
    int handled = 1;
    if (other->kind == DS__STREAM_LEGACY) {
        *out = ds__cpu_legacy_used(other->device, 1);
        handled = *out < 0;
    } else if (c)
        *out = ds__cpu_fork(s, c, other->deps, other->dep_count);
    else
        handled = 0;
    ds__mutex_unlock(&ds__g.capture_lock);
    return handled;
}

/* Takes a destroyed stream out of its capture. The capture is over if it began there. Otherwise its
   end expects that the stream's work was joined. */
static void ds__cpu_destroy_captured(ds__cpu_stream *s) {
    ds__capture *over = NULL;
    ds__mutex_lock(&ds__g.capture_lock);
    ds__capture *c = s->capture;
    if (c && c->origin == s) {
        ds__cpu_end_capture(c);
        over = c;
    } else if (c) {
        if (!ds__cpu_add_nodes(&c->lost, &c->lost_count, s->deps, s->dep_count))
            ds__capture_spoil(c, "no memory to note the end of a stream that was destroyed");
        ds__cpu_stream *before = c->members;
        if (before == s)
            c->members = s->next_member;
        else {
            while (before->next_member != s)
                before = before->next_member;
            before->next_member = s->next_member;
        }
        ds__cpu_leave_capture(s);
    }
    ds__mutex_unlock(&ds__g.capture_lock);
    if (over)
        ds__capture_over(over, 1);
}

#endif
