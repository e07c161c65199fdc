/* check/operation.h - operations on streams: their accesses and waits.

   ds__race_operation takes an operation that a stream has got: begins a new number of its timeline,
   joins clocks for waits, keeps clocks for records, and checks accesses. ds__race_task_begin notes
   a host function or closure before it is enqueued, since it may run at once; ds__race_task_run and
   ds__race_task_end say that it runs.

   Policy:
   1. A wait takes the last record of the event as of the call.
   2. Work that the library enqueues within a collective or a fill orders streams, but its accesses
      are those that the collective names. Calls of the allocator access nothing.

   Invariants: ds__race_tls.task is in the list of tasks while its function runs.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_OPERATION_H
#define DS__CHECK_OPERATION_H

#include "../base/extent.h"
#include "graph.h"

/* Takes writes of words, and waits for words. */
static void ds__race_values(ds__race_line *l, const ds__op *op, ds__race_now *now) {
    for (size_t i = 0; i < op->u.values.count; i++) {
        const ds_value_op *v = &op->u.values.list[i];
        if (v->kind == DS_VALUE_WRITE) {
            ds__race_range r = ds__race_range_row(v->address, v->size);
            ds__race_access(now, &r, DS__RACE_WRITE | DS__RACE_ATOMIC);
            ds__race_word_write(l, v, now->place);
        } else {
            ds__race_word_wait(l, v, now->place);
        }
        *now = ds__race_line_now(l, now->place);
    }
}

/* Checks the accesses of a kernel launch. */
static void ds__race_kernel(const ds__op *op, const ds__race_now *now) {
    const ds__kernel *k = op->u.kernel.kernel;
    ds__extent_range list[DS_KERNEL_MAX_PARAMS];
    ds__race_memory *m[DS_KERNEL_MAX_PARAMS];
    size_t count = ds__kernel_ranges(k, ds__race_tls.extent, ds__race_tls.extents,
                                     op->u.kernel.items, op->u.kernel.args, list);
    ds__race_tls.extents = 0;
    ds__race.stats.undeclared += ds__race_kernel_is_undeclared(k);
    uint64_t version = ds__race.version;
    /* all memory first, so that the cache misses of the look-ups overlap */
    for (size_t i = 0; i < count; i++) {
        m[i] = ds__race_memory_find((uintptr_t)(list[i].ptr + list[i].offset));
        if (m[i])
            __builtin_prefetch(m[i]->list.at);
    }
    for (size_t i = 0; i < count; i++) {
        ds__race_range r = ds__race_kernel_range(&list[i]);
        if (DS__UNLIKELY(version != ds__race.version)) /* memory was given up */
            m[i] = ds__race_memory_find(r.at);
        ds__race_access_of(m[i], now, &r, ds__race_kernel_how(&list[i]));
    }
}

/* Checks an operand of a copy or fill; at: DS__OP_DST or DS__OP_SRC. */
static void ds__race_operand(const ds__race_now *now, const ds__op *op, int at, unsigned how) {
    ds__race_now n = *now;
    ds__race_range r = ds__race_range_of(op, at);
    int place = ds__place_of(op, at);
    n.pageable = place == DS__AT_PAGEABLE || place == DS__AT_STABLE || place == DS__AT_UNKNOWN;
    ds__race_access(&n, &r, how);
}

/* Checks the accesses of an operation, but for launches of graphs. */
static void ds__race_accesses(ds__race_line *l, const ds__op *op, ds__race_now *now) {
    ds__race_range r;
    switch (op->kind) {
    case DS__OP_KERNEL:
        ds__race_kernel(op, now);
        break;
    case DS__OP_COPY:
        ds__race_operand(now, op, DS__OP_SRC, DS__RACE_READ);
        ds__race_operand(now, op, DS__OP_DST, DS__RACE_WRITE);
        break;
    case DS__OP_FILL:
        ds__race_operand(now, op, DS__OP_DST, DS__RACE_WRITE);
        break;
    case DS__OP_COPY_BATCH:
        for (size_t i = 0; i < op->u.batch.count; i++) {
            if (!op->u.batch.sizes[i])
                continue;
            r = ds__race_range_row(op->u.batch.src[i], op->u.batch.sizes[i]);
            ds__race_access(now, &r, DS__RACE_READ);
            r = ds__race_range_row(op->u.batch.dst[i], op->u.batch.sizes[i]);
            ds__race_access(now, &r, DS__RACE_WRITE);
        }
        break;
    case DS__OP_VALUES:
        ds__race_values(l, op, now);
        break;
    default:
        break;
    }
}

/* Returns 1 if the running call is one of the allocator. */
static int ds__race_is_allocator(void) {
    const char *fn = ds__tls.fn;
    return fn && (strncmp(fn, "ds_mem_", 7) == 0 || strcmp(fn, "ds_tensor_free") == 0);
}

/* Returns 1 if the accesses of the running call are the program's. */
static int ds__race_is_watched(void) {
    return !ds__race_tls.inside && !ds__tls.unwatched && !ds__race_is_allocator();
}

/* Reports a wait for an event that was never recorded. */
static void ds__race_unrecorded(const ds__race_line *l, uint32_t place) {
    ds__race_now now = ds__race_line_now(l, place);
    if (!ds__tls.unwatched)
        ds__race_report(DS_HAZARD_UNRECORDED_WAIT, &now, NULL, 0, NULL, NULL);
}

/* Returns 1 if the allocator records an event because the stream ends. The record stands for the
   work so far and is no operation, since the host would never know that operation, and the number
   of the timeline could not be used again. */
static int ds__race_is_last_record(const ds__op *op) {
    return op->kind == DS__OP_RECORD && ds__tls.fn && strcmp(ds__tls.fn, "ds_stream_destroy") == 0;
}

/* Takes an operation that a stream has got, and that is not captured. */
static void ds__race_operation(ds__race_line *l, const ds__op *op) {
    uint32_t place = ds__race_place_of(op);
    const ds__race_event *e = NULL;
    const ds__race_line *other;
    if (op->kind == DS__OP_WAIT || op->kind == DS__OP_EXTERNAL_WAIT) {
        e = ds__race_table_find(&ds__race.events, ds__race_key(op->u.event.event));
        if (!e && !op->u.event.object->imported) { /* the wait is no operation */
            ds__race_unrecorded(l, place);
            return;
        }
    }
    ds__race_line_enqueue(l, place);
    switch (op->kind) {
    case DS__OP_RECORD:
    case DS__OP_EXTERNAL_RECORD:
        ds__race_moment_keep(&ds__race.events, ds__race_key(op->u.event.event), l, place);
        return;
    case DS__OP_WAIT:
    case DS__OP_EXTERNAL_WAIT:
        if (e && e->line)
            ds__race_moment_join(l, e, place);
        return;
    case DS__OP_WAIT_STREAM:
        other = ds__race_line_of(op->u.wait.stream);
        if (other)
            ds__race_line_wait_next(l, other, place);
        return;
    default:
        break;
    }
    ds__race_now now = ds__race_line_now(l, place);
    if (op->kind == DS__OP_GRAPH)
        ds__race_graph_launch(l, op, &now);
    else if (ds__race_is_watched())
        ds__race_accesses(l, op, &now);
    if (op->kind == DS__OP_KERNEL)
        ds__race_tls.extents = 0;
}

/* The same for an operation that the driver has accepted. Fills of guards and poison are no
   operations of the program. */
static void ds__race_accepted(ds__race_line *l, const ds__op *op) {
    if (ds__race_is_last_record(op))
        ds__race_moment_keep(&ds__race.events, ds__race_key(op->u.event.event), l,
                             ds__race_place_of(op));
    else if (op->kind != DS__OP_FILL || ds__race_is_watched())
        ds__race_operation(l, op);
}

/* ---- host functions -------------------------------------------------------------------------- */

/* Notes a host function, callback or closure as the stream's next operation. */
static void ds__race_task_begin(ds__race_line *l, const ds__op *op, const void *user) {
    uint32_t place = ds__race_place_of(op);
    ds__race_line_enqueue(l, place);
    ds__race_task_add(l, user, place, NULL);
}

/* Removes a task from the list. */
static void ds__race_task_remove(ds__race_task *t) {
    ds__race_task **at = &ds__race.task;
    while (*at && *at != t)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = t->next;
    if (ds__race.task_end == &t->next)
        ds__race.task_end = at;
    ds__race_clock_unref(t->clock);
    ds__race_release(t, sizeof *t);
}

/* The calling thread runs the first host function with this argument. stream: zero in a graph. */
static void ds__race_task_run(const void *user, ds_stream stream) {
    const ds__race_line *l = ds__race_line_named(stream);
    for (ds__race_task *t = ds__race.task; t; t = t->next)
        if (t->user == user && !t->running && (l ? l->index == t->line : t->exec != NULL)) {
            t->running = 1;
            ds__race_tls.task = t;
            return;
        }
}

/* The host function that the calling thread runs has ended. */
static void ds__race_task_end(void) {
    if (ds__race_tls.task)
        ds__race_task_remove(ds__race_tls.task);
    ds__race_tls.task = NULL;
}

/* Removes the last task of a stream, because the driver has refused it. */
static void ds__race_task_cancel(const ds__race_line *l, const void *user) {
    ds__race_task *last = NULL;
    for (ds__race_task *t = ds__race.task; t; t = t->next)
        if (t->line == l->index && t->user == user && !t->running)
            last = t;
    if (last)
        ds__race_task_remove(last);
}

/* Removes the tasks of the calling thread's last launch, because the driver has refused it. */
static void ds__race_launch_cancel(const ds__race_line *l, const void *exec) {
    for (ds__race_task *t = ds__race.task; t;) {
        ds__race_task *next = t->next;
        if (t->exec == exec && t->line == l->index && t->n == ds__race_tls.launch && !t->running)
            ds__race_task_remove(t);
        t = next;
    }
}

/* Returns the accesses' operation of host code: the host function that runs, or the thread. */
static int ds__race_host_now(ds__race_now *out) {
    const ds__race_task *t = ds__race_tls.task;
    uint32_t place = ds__race_place_of_call();
    if (t) {
        *out = (ds__race_now){ .clock = t->clock,
                               .n = t->n,
                               .line = t->line,
                               .place = place,
                               .thread = ds__race_thread(),
                               .late = 1,
                               .pageable = 1 };
        return 1;
    }
    ds__race_line *host = ds__race_host();
    if (!host)
        return 0;
    host->n++;
    *out = ds__race_line_now(host, place);
    out->pageable = 1;
    return 1;
}

#endif
