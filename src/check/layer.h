/* check/layer.h - the layer's driver tables.

   ds__race_layer_apply puts a table in front of a driver's: each wrapped entry calls the next table
   and tells the other rooms of it. check/seen.h has the other half of the layer, its observer.

   Policy:
   1. An operation is taken when the driver has accepted it. Host functions, closures and graph
      launches are taken before, because they may run at once.
   2. While a capture is open, a stream is asked whether it captures; captured operations are taken
      at launches.

   Invariants: ds__race.on is 1 from the first table until the last driver has stopped.
   Locks: the wrapped entries call the driver without ds__race.lock.
   Threads: any. The tables are made in ds_init or at the start, under ds__g.mutex. */
#ifndef DS__CHECK_LAYER_H
#define DS__CHECK_LAYER_H

#include "../base/capture_list.h"
#include "operation.h"
#include "options.h"
#include "token.h"

/* Returns 1, with the lock, if the layer checks. */
static int ds__race_enter(void) {
    if (!atomic_load_explicit(&ds__race.on, memory_order_relaxed))
        return 0;
    ds__mutex_lock(&ds__race.lock);
    if (!ds__race.failed && atomic_load(&ds__race.on))
        return 1;
    ds__mutex_unlock(&ds__race.lock);
    return 0;
}

static void ds__race_leave(void) {
    ds__mutex_unlock(&ds__race.lock);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Returns the key of a queue, which all objects of it on one device have in common. */
static uint64_t ds__race_queue_key(int backend, int device, const void *identity) {
    return ds__race_key(identity) ^ (uint64_t)(backend * DS__MAX_DEVICES + device + 1) << 48;
}

/* A driver has made a stream. */
static void ds__race_stream_add(int backend, int device, int kind, unsigned flags, void *native) {
    const void *identity = ds__race.next[backend]->stream_identity(native);
    if (!ds__race_enter())
        return;
    uint64_t queue = ds__race_queue_key(backend, device, identity);
    ds__race_line *l = ds__race_table_find(&ds__race.natives, queue);
    if (!l && ds__race.ended >= DS__RACE_ENDED_LINES && ds__race.ended >= ds__race.reuse_at)
        ds__race_sweep();
    if (!l)
        l = ds__race_line_create(DS__RACE_STREAM);
    if (l) {
        l->wrappers++;
        l->queue = queue;
        l->backend = backend;
        l->device = device;
        l->blocking = kind == DS__STREAM_PER_THREAD || flags & DS_STREAM_BLOCKING;
        l->legacy = kind == DS__STREAM_LEGACY;
        l->per_thread = kind == DS__STREAM_PER_THREAD;
        if (l->legacy) {
            l->blocking = 0;
            ds__race.legacy[backend][device] = l->index;
        }
        ds__race_table_set(&ds__race.natives, queue, l);
        ds__race_table_set(&ds__race.natives, ds__race_key(native), l);
    }
    ds__race_leave();
}

/* A driver is about to end a stream, or to forget a wrapped one. Wrappers may share the object. */
static void ds__race_stream_end(void *native) {
    if (!ds__race_enter())
        return;
    ds__race_line *l = ds__race_line_of(native);
    if (l && --l->wrappers == 0) {
        ds__race_table_remove_value(&ds__race.natives, l);
        ds__race_table_remove_value(&ds__race.handles, l);
        if (ds__race.legacy[l->backend][l->device] == l->index)
            ds__race.legacy[l->backend][l->device] = 0;
        l->kind = DS__RACE_ENDED;
        ds__race.ended++;
        ds__race.stats.timelines--;
    }
    ds__race_leave();
}

/* The handle of a stream is known now. */
static void ds__race_stream_name(void *native, uint64_t handle) {
    ds__stream *s = ds__pin(&ds__g.streams, handle);
    if (!s)
        return;
    if (ds__race_enter()) {
        ds__race_line *l = ds__race_line_of(native);
        if (l) {
            if (!l->handle) {
                l->handle = handle;
                l->number = s->id;
                ds__utf8_copy(l->name, sizeof l->name, s->label ? s->label : "");
            }
            ds__race_table_set(&ds__race.handles, handle, l);
        }
        ds__race_leave();
    }
    ds__stream_unpin(s);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Returns 1 if a stream captures. */
static int ds__race_captures(int backend, void *stream) {
    ds_capture_info info;
    if (!ds__captures_open())
        return 0;
    memset(&info, 0, sizeof info);
    ds__kept_error before;
    ds__error_save(&before);
    ds__tls.mute++;
    ds_result r = ds__race.next[backend]->capture_query(stream, &info);
    ds__tls.mute--;
    ds__error_restore(&before);
    return r < 0 || info.status != DS_CAPTURE_NONE;
}

/* Returns 1 if a copy is done when the call returns, because it writes pageable memory (CUDA
   Runtime API, "API synchronization behavior"). */
static int ds__race_copy_blocks(int backend, const ds__op *op) {
    ds_pointer_info info;
    if (op->kind != DS__OP_COPY)
        return 0;
    int place = ds__place_of(op, DS__OP_DST);
    if (place != DS__AT_UNKNOWN)
        return op->flags & DS__OP_BLOCKS && place == DS__AT_PAGEABLE;
    memset(&info, 0, sizeof info);
    return ds__race.next[backend]->pointer_query(op->u.copy.dst, &info) == DS_OK &&
           info.kind == DS_MEMORY_PAGEABLE;
}

/* Returns the argument by which a host function or closure is found when it runs. */
static const void *ds__race_task_user(const ds__op *op) {
    return op->kind == DS__OP_CLOSURE ? op->u.closure.payload : op->u.host.user;
}

static int ds__race_is_task(const ds__op *op) {
    return op->kind == DS__OP_HOST || op->kind == DS__OP_CALLBACK || op->kind == DS__OP_CLOSURE;
}

/* Takes an operation before the driver gets it, if it may run at once. Returns 1 if so. */
static int ds__race_submit_begin(void *stream, const ds__op *op) {
    if ((op->kind != DS__OP_GRAPH && !ds__race_is_task(op)) || !ds__race_enter())
        return 0;
    ds__race_line *l = ds__race_line_of(stream);
    if (l && op->kind == DS__OP_GRAPH)
        ds__race_operation(l, op);
    else if (l)
        ds__race_task_begin(l, op, ds__race_task_user(op));
    ds__race_leave();
    return l != NULL;
}

/* The capture of a stream begins or ends. Other streams that it had are asked at their next
   operation. */
static void ds__race_capture_note(void *stream, int captures) {
    if (!ds__race_enter())
        return;
    ds__race_line *l = ds__race_line_of(stream);
    if (l)
        l->captures = (uint8_t)captures;
    ds__race_leave();
}

/* Asks a stream again after a wait, which may have taken it into a capture. */
static void ds__race_capture_ask(int backend, void *stream, const ds__op *op) {
    if (ds__captures_open() && (op->kind == DS__OP_WAIT || op->kind == DS__OP_WAIT_STREAM))
        ds__race_capture_note(stream, ds__race_captures(backend, stream));
}

/* Takes an operation that the driver has accepted. id: in a recording of activity, or 0. */
static void ds__race_submit_end(int backend, void *stream, const ds__op *op, int captures,
                                uint64_t id) {
    int blocks = !captures && ds__race_copy_blocks(backend, op);
    if (!ds__race_enter())
        return;
    ds__race_line *l = ds__race_line_of(stream);
    if (l)
        l->captures = (uint8_t)captures;
    if (l && !captures) {
        ds__race_tls.traced = id;
        ds__race_accepted(l, op);
        ds__race_tls.traced = 0;
        ds__race_traced_set(l->index, l->n, id);
    }
    if (l && captures && op->kind == DS__OP_KERNEL)
        ds__race_extents_keep(op);
    if (l && captures && op->kind == DS__OP_RECORD)
        ds__race_moment_capture(&ds__race.events, ds__race_key(op->u.event.event));
    if (l && blocks)
        ds__race_host_wait(l);
    ds__race_leave();
    if (l && !captures)
        ds__race_capture_ask(backend, stream, op);
}

/* Takes the host functions back of an operation that the driver has refused. */
static void ds__race_submit_cancel(void *stream, const ds__op *op) {
    if (!ds__race_enter())
        return;
    ds__race_line *l = ds__race_line_of(stream);
    if (l && ds__race_is_task(op))
        ds__race_task_cancel(l, ds__race_task_user(op));
    else if (l)
        ds__race_launch_cancel(l, op->u.graph.exec);
    ds__race_leave();
}

/* Keeps the id of a host function or a launch, which was taken before. */
static void ds__race_submit_traced(void *stream, uint64_t id) {
    if (!ds__race_enter())
        return;
    const ds__race_line *l = ds__race_line_of(stream);
    if (l)
        ds__race_traced_set(l->index, l->n, id);
    ds__race_leave();
}

static ds_result ds__race_submit(int backend, void *stream, const ds__op *op) {
    const ds__driver *next = ds__race.next[backend];
    if (!atomic_load_explicit(&ds__race.on, memory_order_relaxed))
        return next->submit(stream, op);
    int captures = ds__race_captures(backend, stream);
    int taken = !captures && ds__race_submit_begin(stream, op);
    ds_result r = next->submit(stream, op);
    uint64_t id = atomic_load_explicit(&ds__activity.on, memory_order_relaxed)
                      ? next->activity_last(stream, 0)
                      : 0;
    if (taken && r != DS_OK)
        ds__race_submit_cancel(stream, op);
    else if (taken && id)
        ds__race_submit_traced(stream, id);
    else if (!taken && r == DS_OK)
        ds__race_submit_end(backend, stream, op, captures, id);
    if (op->kind == DS__OP_KERNEL)
        ds__race_tls.extents = 0;
    return r;
}

/* Returns 1 if a stream captures, as far as the layer knows. */
static int ds__race_line_captures(const ds__race_line *l) {
    return l->captures && ds__captures_open();
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A driver has given out memory. */
static void ds__race_memory_given(const void *ptr, size_t size) {
    if (!ds__race_enter())
        return;
    ds__race_memory_add(ptr, size, 0, NULL);
    ds__race_leave();
}

/* A driver takes all allocations of a range back. */
static void ds__race_memory_taken(const void *ptr, size_t size) {
    if (!ds__race_enter())
        return;
    const char *at = ptr;
    const char *end = at + size;
    ds__race_memory *m;
    while (at < end &&
           (m = ds__race_map_meet(&ds__race.alloc, (uintptr_t)at, (size_t)(end - at))) != NULL) {
        at = (const char *)(m->base + m->size);
        if (!m->dead)
            ds__race_memory_end(m);
    }
    while ((m = ds__race_map_meet(&ds__race.block, (uintptr_t)ptr, size)) != NULL)
        ds__race_memory_drop(m);
    ds__race_leave();
}

/* A driver's own allocator has given out memory in the order of a stream. */
static void ds__race_async_given(const void *stream, const void *ptr, size_t size) {
    if (!ds__race_enter())
        return;
    ds__race_memory *m = ds__race_memory_add(ptr, size, 1, NULL);
    const ds__race_line *l = ds__race_line_of(stream);
    if (m && l)
        ds__race_alloc_note(m, l);
    ds__race_leave();
}

/* It is about to take memory back when a stream arrives there. The range counts as freed from here
   on, since another thread may receive the address before the driver's call has returned. Returns
   the serial number of the range, or 0. */
static uint64_t ds__race_async_taken(const void *stream, const void *ptr) {
    uint64_t serial = 0;
    if (!ds__race_enter())
        return 0;
    ds__race_memory *m = ds__race_map_find(&ds__race.block, (uintptr_t)ptr);
    ds__race_line *l = ds__race_line_of(stream);
    if (m && !m->dead) {
        if (l) {
            ds__race_line_enqueue(l, ds__race_place_of_call());
            ds__race_free_check(m, l);
        }
        ds__race_memory_retire(m);
        serial = m->serial;
    }
    ds__race_leave();
    return serial;
}

/* The driver has taken the range back, or has refused to: then it is live again. */
static void ds__race_async_end(const void *ptr, uint64_t serial, ds_result r) {
    if (!serial || !ds__race_enter())
        return;
    ds__race_memory *m = ds__race_map_find(&ds__race.block, (uintptr_t)ptr);
    if (m && m->serial == serial && r == DS_OK)
        ds__race_records_clear(m);
    else if (m && m->serial == serial)
        ds__race_memory_revive(m);
    ds__race_leave();
}

static ds_result ds__race_async_free(int backend, int device, void *stream, void *ptr,
                                     size_t size) {
    uint64_t serial = ds__race_async_taken(stream, ptr);
    ds_result r = ds__race.next[backend]->async_free(device, stream, ptr, size);
    ds__race_async_end(ptr, serial, r);
    return r;
}

/* ---- captures, graphs, events ---------------------------------------------------------------- */

static void ds__race_exec_made(const void *exec, const ds__body *body) {
    if (!ds__race_enter())
        return;
    ds__race_graph_instantiate(exec, body);
    ds__race_leave();
}

static void ds__race_exec_changed(const void *exec) {
    if (!ds__race_enter())
        return;
    ds__race_graph_changed(exec);
    ds__race_leave();
}

static void ds__race_exec_gone(const void *exec) {
    if (!ds__race_enter())
        return;
    ds__race_graph_forget(exec);
    ds__race_leave();
}

static void ds__race_event_gone(const void *event) {
    if (!ds__race_enter())
        return;
    ds__race_moment_forget(&ds__race.events, ds__race_key(event));
    ds__race_leave();
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Frees everything. */
static void ds__race_deinit(void) {
    for (size_t i = 0; i < ds__race.execs.size; i++)
        if (ds__race.execs.entry[i].key) {
            ds__race_graph *g = ds__race.execs.entry[i].value;
            ds__race_graph_clear(g);
            ds__race_release(g, sizeof *g);
        }
    ds__race_table_deinit(&ds__race.execs);
    while (ds__race.task)
        ds__race_task_remove(ds__race.task);
    ds__race_moments_deinit(&ds__race.events);
    ds__race_tokens_deinit();
    ds__race_words_deinit();
    ds__race_extents_deinit();
    ds__race_captured_deinit();
    ds__race_table_deinit(&ds__race.natives);
    ds__race_table_deinit(&ds__race.handles);
    ds__race_table_deinit(&ds__race.pairs);
    for (size_t i = 0; i < ds__race.groups.size; i++)
        ds__race_release(ds__race.groups.entry[i].value, sizeof(ds__race_group));
    ds__race_table_deinit(&ds__race.groups);
    ds__race_map_deinit(&ds__race.block);
    ds__race_map_deinit(&ds__race.alloc);
    ds__race_lines_deinit();
    ds__race_edges_deinit();
    ds__race_traced_deinit();
    ds__race_places_deinit();
    ds__race_patterns_deinit();
    ds__race_release(ds__race.text, ds__race.text_room);
    ds__race.text = NULL;
    ds__race.text_room = 0;
    ds__race.report_fn = NULL;
    ds__race.fresh = 0;
    ds__race.epoch++;
}

/* A driver has stopped: the last one prints the summary, and ends the process if the option "exit"
   is set and there was an exact report. */
static void ds__race_stop(void) {
    if (--ds__race.stops > 0)
        return;
    ds__mutex_lock(&ds__race.lock);
    atomic_store(&ds__race.on, 0);
    ds__race_summary();
    int code = ds__race.stats.reports ? ds__race.exit_code : 0;
    ds__race_deinit();
    ds__race_options_init();
    ds__mutex_unlock(&ds__race.lock);
    if (code) {
        fflush(NULL);
        _Exit(code);
    }
}

/* ---- the driver table ------------------------------------------------------------------------ */

/* X(backend, entry, parameters, arguments, call): calls the next table, then, if it succeeds, the
   function of the layer. */
/* X(backend, entry, parameters, arguments, call): the same the other way round. */
/* clang-format off */
#define DS__RACE_AFTER(X, b) \
    X(b, stream_create, \
      (int device, int kind, unsigned flags, int *priority, int *share, void **out), \
      (device, kind, flags, priority, share, out), \
      ds__race_stream_add(b, device, kind, flags, *out)) \
    X(b, stream_wrap, \
      (int device, void *native, int own, unsigned *out_flags, int *out_priority, void **out), \
      (device, native, own, out_flags, out_priority, out), \
      ds__race_stream_add(b, device, DS__STREAM_NEW, *out_flags, *out)) \
    X(b, memory_alloc, (int device, size_t size, void **out), (device, size, out), \
      ds__race_memory_given(*out, size)) \
    X(b, async_alloc, (int device, void *stream, size_t size, void **out), \
      (device, stream, size, out), ds__race_async_given(stream, *out, size)) \
    X(b, share_alloc, (int device, size_t size, void **out), (device, size, out), \
      ds__race_memory_given(*out, size)) \
    X(b, share_import, (int device, const unsigned char *handle, size_t size, void **out), \
      (device, handle, size, out), ds__race_memory_given(*out, size)) \
    X(b, host_alloc, (size_t size, void **out), (size, out), ds__race_memory_given(*out, size)) \
    X(b, host_register, (void *ptr, size_t size), (ptr, size), ds__race_memory_given(ptr, size)) \
    X(b, space_map, (int device, void *at, size_t size, size_t page), (device, at, size, page), \
      ds__race_memory_given(at, size)) \
    X(b, capture_begin, (void *stream, ds__capture *capture, const uint32_t *deps, size_t count), \
      (stream, capture, deps, count), ds__race_capture_note(stream, 1)) \
    X(b, graph_instantiate, (ds__body *graph, ds__body *copy, unsigned flags, void **out), \
      (graph, copy, flags, out), ds__race_exec_made(*out, copy)) \
    X(b, exec_update, \
      (void *exec, ds__body *graph, ds_graph_update_reason *out_reason, uint32_t *out_node), \
      (exec, graph, out_reason, out_node), ds__race_exec_changed(exec)) \
    X(b, exec_set, (void *exec, uint32_t index, const ds__node *fresh), (exec, index, fresh), \
      ds__race_exec_changed(exec)) \
    X(b, exec_enable, (void *exec, uint32_t index, int enabled), (exec, index, enabled), \
      ds__race_exec_changed(exec))

#define DS__RACE_BEFORE(X, b) \
    X(b, capture_end, (void *stream, ds__capture **out), (stream, out), \
      ds__race_capture_note(stream, 0)) \
    X(b, space_unmap, (int device, void *at, size_t size), (device, at, size), \
      ds__race_memory_taken(at, size)) \
    X(b, memory_release, (ds_memory_kind kind, int device, void *ptr, size_t size), \
      (kind, device, ptr, size), ds__race_memory_taken(ptr, size))

/* The same for entries without a result. */
#define DS__RACE_ENDS(X, b) \
    X(b, stream_named, (void *stream, uint64_t handle), (stream, handle), \
      ds__race_stream_name(stream, handle)) \
    X(b, stream_destroy, (void *stream), (stream), ds__race_stream_end(stream)) \
    X(b, stream_forget, (void *stream), (stream), ds__race_stream_end(stream)) \
    X(b, event_destroy, (void *event), (event), ds__race_event_gone(event)) \
    X(b, exec_destroy, (void *exec), (exec), ds__race_exec_gone(exec)) \
    X(b, share_end, (int device, void *base, size_t size, int imported), \
      (device, base, size, imported), ds__race_memory_taken(base, size))

/* clang-format on */

#define DS__RACE_AFTER_FUNCTION(b, entry, parameters, arguments, call) \
    static ds_result ds__race_##b##_##entry parameters {               \
        ds_result r = ds__race.next[b]->entry arguments;               \
        if (r == DS_OK)                                                \
            call;                                                      \
        return r;                                                      \
    }
#define DS__RACE_BEFORE_FUNCTION(b, entry, parameters, arguments, call) \
    static ds_result ds__race_##b##_##entry parameters {                \
        call;                                                           \
        return ds__race.next[b]->entry arguments;                       \
    }
#define DS__RACE_END_FUNCTION(b, entry, parameters, arguments, call) \
    static void ds__race_##b##_##entry parameters {                  \
        call;                                                        \
        ds__race.next[b]->entry arguments;                           \
    }
DS__RACE_AFTER(DS__RACE_AFTER_FUNCTION, 0)
DS__RACE_AFTER(DS__RACE_AFTER_FUNCTION, 1)
DS__RACE_BEFORE(DS__RACE_BEFORE_FUNCTION, 0)
DS__RACE_BEFORE(DS__RACE_BEFORE_FUNCTION, 1)
DS__RACE_ENDS(DS__RACE_END_FUNCTION, 0)
DS__RACE_ENDS(DS__RACE_END_FUNCTION, 1)

static ds_result ds__race_0_submit(void *stream, const ds__op *op) {
    return ds__race_submit(0, stream, op);
}

static ds_result ds__race_1_submit(void *stream, const ds__op *op) {
    return ds__race_submit(1, stream, op);
}

static ds_result ds__race_0_async_free(int device, void *stream, void *ptr, size_t size) {
    return ds__race_async_free(0, device, stream, ptr, size);
}

static ds_result ds__race_1_async_free(int device, void *stream, void *ptr, size_t size) {
    return ds__race_async_free(1, device, stream, ptr, size);
}

static void ds__race_0_stop(void) {
    ds__race.next[0]->stop();
    ds__race_stop();
}

static void ds__race_1_stop(void) {
    ds__race.next[1]->stop();
    ds__race_stop();
}

/* Every operation passes `submit`. */
static ds_result ds__race_run_together(void *const *streams, size_t count,
                                       void (*run_fn)(void *user), void *user, int *out_ran) {
    (void)streams, (void)count, (void)run_fn, (void)user;
    *out_ran = 0;
    return DS_OK;
}

static const ds__driver *ds__race_layer_apply(const ds__driver *next, int backend) {
    ds__driver *t = &ds__race.table[backend];
    ds__race.next[backend] = next;
    *t = *next;
#define DS__RACE_SET(b, entry, parameters, arguments, call) \
    t->entry = backend ? ds__race_1_##entry : ds__race_0_##entry;
    DS__RACE_AFTER(DS__RACE_SET, 0)
    DS__RACE_BEFORE(DS__RACE_SET, 0)
    DS__RACE_ENDS(DS__RACE_SET, 0)
#undef DS__RACE_SET
    t->submit = backend ? ds__race_1_submit : ds__race_0_submit;
    t->async_free = backend ? ds__race_1_async_free : ds__race_0_async_free;
    t->stop = backend ? ds__race_1_stop : ds__race_0_stop;
    t->run_together = ds__race_run_together;
    t->inline_bytes = 0;
    ds__race.stops++;
    memset(&ds__race.stats, 0, sizeof ds__race.stats);
    ds__race.failed = 0;
    atomic_store(&ds__race.on, 1);
    return t;
}

#endif
