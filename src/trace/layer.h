/* trace/layer.h - the layer's driver tables.

   Most of a trace comes from the recording of activity and from the observer. The table adds
   names of streams, how long calls block the host, and the end of the drivers.

   Invariants: a call that blocks is in the list of ds__trace.waiting while it blocks.
   Locks: the wrapped entries call the driver without ds__trace.lock.
   Threads: any. The tables are made in ds_init or at the start, under ds__g.mutex. */
#ifndef DS__TRACE_LAYER_H
#define DS__TRACE_LAYER_H

#include "run.h"
#include "seen.h"

/* The handle of a stream is known now. */
static void ds__trace_stream_named(int backend, void *stream, uint64_t handle) {
    ds__trace.next[backend]->stream_named(stream, handle);
    ds__stream *s = ds__pin(&ds__g.streams, handle);
    if (!s)
        return;
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_stream_name(handle, ds__trace_device(s->device), s->id, s->label);
    ds__mutex_unlock(&ds__trace.lock);
    ds__stream_unpin(s);
}

/* A call begins to block. */
static void ds__trace_block_begin(ds__trace_waiting *w) {
    w->fn = ds__tls.fn;
    w->site = ds__tls.site;
    w->begin = ds__now_ns();
    w->reported = 0;
    ds__mutex_lock(&ds__trace.lock);
    w->next = ds__trace.waiting;
    ds__trace.waiting = w;
    ds__mutex_unlock(&ds__trace.lock);
}

/* Ends the wait of a blocking call. cause: the operation that it waited for; 0: none, or several.
   least: a shorter wait is none, as most frees wait for nothing. */
static void ds__trace_block_end(const ds__trace_waiting *w, uint64_t cause, uint64_t least,
                                ds_result result) {
    ds__trace_record r = { .kind = DS__TRACE_BLOCKED,
                           .flags = ds__trace_flags(result),
                           .begin = ds__trace_time(w->begin),
                           .end = ds__trace_now(),
                           .cause = (uint32_t)cause };
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_waiting **p = &ds__trace.waiting;
    while (*p != w)
        p = &(*p)->next;
    *p = w->next;
    ds__mutex_unlock(&ds__trace.lock);
    if (r.end - r.begin >= least)
        ds__trace_note(r, NULL, w->fn, w->site);
}

/* Returns 1 if calls that block have records now. */
static int ds__trace_blocks(void) {
    return atomic_load_explicit(&ds__trace.on, memory_order_relaxed) && !ds__tls.in_callback;
}

/* Calls an entry that may block, between the two. */
#define DS__TRACE_BLOCKING(b, cause, least, entry, arguments) \
    ds__trace_waiting w;                                      \
    if (!ds__trace_blocks())                                  \
        return ds__trace.next[b]->entry arguments;            \
    uint64_t id = cause;                                      \
    ds__trace_block_begin(&w);                                \
    ds_result r = ds__trace.next[b]->entry arguments;         \
    ds__trace_block_end(&w, id, least, r);                    \
    return r

static ds_result ds__trace_stream_synchronize(int b, void *stream, uint64_t timeout_ns) {
    if (!timeout_ns)
        return ds__trace.next[b]->stream_synchronize(stream, timeout_ns);
    DS__TRACE_BLOCKING(b, ds__trace.next[b]->activity_last(stream, 0), 1, stream_synchronize,
                       (stream, timeout_ns));
}

static ds_result ds__trace_event_synchronize(int b, void *event, uint64_t timeout_ns) {
    if (!timeout_ns)
        return ds__trace.next[b]->event_synchronize(event, timeout_ns);
    DS__TRACE_BLOCKING(b, ds__trace.next[b]->activity_last(event, 1), 1, event_synchronize,
                       (event, timeout_ns));
}

static ds_result ds__trace_device_synchronize(int b, int device) {
    DS__TRACE_BLOCKING(b, 0, 1, device_synchronize, (device));
}

static ds_result ds__trace_memory_wait(int b, int device) {
    DS__TRACE_BLOCKING(b, 0, DS__TRACE_BLOCKED_NS, memory_wait, (device));
}

static ds_result ds__trace_submit(int b, void *stream, const ds__op *op) {
    if (DS__LIKELY(!(op->flags & DS__OP_BLOCKS) ||
                   (op->kind != DS__OP_COPY && op->kind != DS__OP_FILL)))
        return ds__trace.next[b]->submit(stream, op);
    DS__TRACE_BLOCKING(b, 0, 1, submit, (stream, op));
}

/* Completes the trace when the recording has ended with ds_shutdown. */
static void ds__trace_shutdown(void) {
    if (!atomic_load(&ds__trace.on))
        return;
    ds__trace_complete();
    if (ds__trace.desc.dump && ds__trace_dump_write(ds__trace.desc.dump) < 0)
        ds__log_warn("%s", ds__tls.error);
}

/* A driver stops. The last one ends the layer: the trace before it, since the check layer below may
   end the process. */
static void ds__trace_stop(int b) {
    const ds__driver *next = ds__trace.next[b];
    int last = --ds__trace.layer == 0;
    if (last)
        ds__trace_shutdown();
    ds__trace.next[b] = NULL;
    next->stop();
    if (!last)
        return;
    ds__trace_release();
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_streams_deinit();
    ds__mutex_unlock(&ds__trace.lock);
    memset(&ds__trace.start, 0, sizeof ds__trace.start);
    ds__trace.starts = 0;
}

/* X(backend, entry, result, parameters, arguments): the entries that the layer replaces. */
#define DS__TRACE_ENTRIES(X, b)                                                                    \
    X(b, stream_named, void, (void *stream, uint64_t handle), (b, stream, handle))                 \
    X(b, stream_synchronize, return, (void *stream, uint64_t timeout_ns), (b, stream, timeout_ns)) \
    X(b, event_synchronize, return, (void *event, uint64_t timeout_ns), (b, event, timeout_ns))    \
    X(b, device_synchronize, return, (int device), (b, device))                                    \
    X(b, memory_wait, return, (int device), (b, device))                                           \
    X(b, submit, return, (void *stream, const ds__op *op), (b, stream, op))                        \
    X(b, stop, void, (void), (b))

#define DS__TRACE_RESULT_void void
#define DS__TRACE_RESULT_return ds_result
#define DS__TRACE_CALL_void (void)0;
#define DS__TRACE_CALL_return return
#define DS__TRACE_FUNCTION(b, entry, result, parameters, arguments)       \
    static DS__TRACE_RESULT_##result ds__trace_##b##_##entry parameters { \
        DS__TRACE_CALL_##result ds__trace_##entry arguments;              \
    }
DS__TRACE_ENTRIES(DS__TRACE_FUNCTION, 0)
DS__TRACE_ENTRIES(DS__TRACE_FUNCTION, 1)

static const ds__driver *ds__trace_layer_apply(const ds__driver *next, int backend) {
    ds__driver *t = &ds__trace.table[backend];
    ds__trace.next[backend] = next;
    *t = *next;
#define DS__TRACE_SET(b, entry, result, parameters, arguments) \
    t->entry = backend ? ds__trace_1_##entry : ds__trace_0_##entry;
    DS__TRACE_ENTRIES(DS__TRACE_SET, 0)
#undef DS__TRACE_SET
    ds__trace.layer++;
    return t;
}

/* Starts the trace of the options, if there are any. */
static ds_result ds__trace_layer_start(void) {
    return ds__trace.starts ? ds__trace_begin(&ds__trace.start) : DS_OK;
}

static ds__layer ds__trace_layer = { .name = "trace",
                                     .apply = ds__trace_layer_apply,
                                     .observer = ds__trace_seen,
                                     .configure = ds__trace_configure,
                                     .start = ds__trace_layer_start };

#endif
