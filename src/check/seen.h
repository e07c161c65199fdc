/* check/seen.h - the layer's observer.

   ds__race_seen receives occurrences that never reach a driver: blocks of the allocator, waits of
   the host, collectives and fills, captured operations between ranks, hand-over between threads.

   Policy:
   1. The operands of a collective are accesses of its streams, which wait for each other first. Its
      own copies and kernels are not accesses.
   2. A wait within a collective or a fill is the library's, and orders no host code.

   Invariants: ds__race_tls.inside is the depth of collectives and fills on the calling thread.
   Locks: ds__race.lock is held while a notice is taken.
   Threads: any. */
#ifndef DS__CHECK_SEEN_H
#define DS__CHECK_SEEN_H

#include "layer.h"

/* The host has waited for the last record of an event. */
static void ds__race_seen_event(ds_event event) {
    const ds__race_event *m = NULL;
    ds__event *e = ds__pin(&ds__g.events, event.id);
    if (e) {
        m = ds__race_table_find(&ds__race.events, ds__race_key(atomic_load(&e->native)));
        ds__unpin(&ds__g.events, e);
    }
    if (m && m->line)
        ds__race_host_join(m->clock, &(ds__race_edge){ .from = m->line,
                                                       .from_n = m->n,
                                                       .from_place = m->place,
                                                       .to_place = ds__race_place_of_call() });
}

/* The host has waited for a stream, an event, or a device. The work of a device that has failed is
   over, too. A program must not rely on the waits of the allocator, which depend on its
   configuration. */
static void ds__race_seen_wait(const ds__seen *seen) {
    int over = seen->result == DS_OK || seen->result == DS_ERR_FAILED;
    if (!over || ds__race_tls.inside || ds__race_is_allocator())
        return;
    if (seen->stream.id) {
        const ds__race_line *l = ds__race_line_of_handle(seen->stream);
        if (l)
            ds__race_host_wait(l);
        return;
    }
    if (seen->event.id) {
        ds__race_seen_event(seen->event);
        return;
    }
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        const ds__race_line *l = ds__race.line[i];
        if (l->kind != DS__RACE_STREAM && l->kind != DS__RACE_ENDED)
            continue;
        int is_host = seen->device.type == DS_DEVICE_HOST; /* all devices */
        if (is_host || (ds__g.backend[l->backend].type == (ds_device_type)seen->device.type &&
                        l->device == seen->device.index))
            ds__race_host_wait(l);
    }
}

/* A stream waits for an event that has no driver's event yet. */
static void ds__race_seen_unrecorded(const ds__seen *seen) {
    const ds__race_line *l = ds__race_line_of_handle(seen->stream);
    if (l && !ds__race_line_captures(l))
        ds__race_unrecorded(l, ds__race_place_of_call());
}

/* A block of the allocator was given out. */
static void ds__race_seen_alloc(const ds__seen *seen) {
    /* the padding is the block's, too: no earlier block of these addresses is left there */
    ds__race_memory *m = ds__race_memory_add(seen->ptr, seen->room, 1, seen->label);
    const ds__race_line *l = ds__race_line_of_handle(seen->stream);
    if (!m)
        return;
    m->asked = seen->bytes;
    if (!l)
        return;
    m->of_graph = (uint8_t)ds__race_line_captures(l);
    if (!m->of_graph)
        ds__race_alloc_note(m, l);
}

/* Another stream uses a block. */
static void ds__race_seen_use(const ds__seen *seen) {
    ds__race_memory *m = ds__race_map_find(&ds__race.block, (uintptr_t)seen->ptr);
    const ds__race_line *l = ds__race_line_of_handle(seen->stream);
    if (m && l && ds__race_line_captures(l))
        m->of_graph = 1; /* the graph keeps the block */
    if (!m || m->dead || !l)
        return;
    ds__race_use_note(m, l, !seen->bytes);
}

/* The program frees a block. */
static void ds__race_seen_free(const ds__seen *seen) {
    ds__race_memory *m = ds__race_map_find(&ds__race.block, (uintptr_t)seen->ptr);
    if (!m || m->dead)
        return;
    if (!m->of_graph && !ds__race_tls.inside)
        ds__race_free_check(m, ds__race_host());
    ds__race_memory_end(m);
}

/* Returns the timeline of an operand whose accesses are checked, or NULL. */
static ds__race_line *ds__race_operand_line(const ds__seen_operand *o) {
    ds__race_line *l = ds__race_line_of_handle(o->stream);
    return l && o->bytes && !ds__race_line_captures(l) ? l : NULL;
}

/* Returns a key of the streams of a collective, whatever their order; 0: one stream. */
static uint64_t ds__race_group_key(const ds__seen *seen) {
    uint64_t key = 0;
    uint64_t first = 0;
    int several = 0;
    for (size_t i = 0; i < seen->operands; i++) {
        uint64_t id = seen->operand[i].stream.id;
        size_t k = 0;
        while (k < i && seen->operand[k].stream.id != id)
            k++;
        if (k == i) {
            key += ds__race_hash(id);
            several |= first != 0;
            first = id;
        }
    }
    return several ? key | 1 : 0;
}

/* Compares the order of collectives on different threads: with the option "threads", two threads
   that call different collectives on one group of streams must hand over. */
static void ds__race_group_begin(const ds__seen *seen, uint32_t place) {
    uint64_t key = ds__race_group_key(seen);
    ds__race_line *host = ds__race_host();
    if (!key || !host)
        return;
    ds__race_group *g = ds__race_table_find(&ds__race.groups, key);
    if (!g) {
        g = ds__race_alloc(sizeof *g);
        if (!g || !ds__race_table_set(&ds__race.groups, key, g)) {
            ds__race_release(g, sizeof *g);
            return;
        }
    }
    uint32_t thread = ds__race_thread();
    if (g->thread && g->thread != thread && g->place != place &&
        ds__race_line_known(host, g->line) < g->n) {
        ds__race_now now = ds__race_line_now(host, place);
        ds__race_record before = {
            .n = g->n, .line = g->line, .place = g->place, .thread = g->thread
        };
        ds__race_report(DS_HAZARD_COLLECTIVE_ORDER, &now, NULL, 0, NULL, &before);
    }
    host->n++;
    *g = (ds__race_group){ host->n, host->index, place, thread };
}

/* Checks the accesses of an operand: rows of the innermost dimension for each position of the outer
   ones. If there are too many positions, the whole span is accessed, as a possible access. */
static void ds__race_operand_access(const ds__seen_operand *o, const ds__race_now *now,
                                    unsigned how) {
    int outer = o->ndim > 1 ? o->ndim - 1 : 0;
    size_t rows = o->ndim ? (size_t)o->shape[outer] : 1;
    size_t pitch = o->ndim ? (size_t)o->strides[outer] : o->width;
    size_t width = o->width;
    if (pitch <= width) {
        width += (rows - 1) * pitch;
        rows = 1;
    }
    size_t positions = 1;
    size_t span = (rows - 1) * pitch + width;
    for (int i = 0; i < outer; i++) {
        span += (size_t)((o->shape[i] - 1) * o->strides[i]);
        positions = positions > DS__RACE_POSITIONS ? positions : positions * (size_t)o->shape[i];
    }
    if (positions > DS__RACE_POSITIONS) {
        ds__race_range r = ds__race_range_row(o->ptr, span);
        ds__race_access(now, &r, how | DS__RACE_MAYBE);
        return;
    }
    for (size_t n = 0; n < positions; n++) {
        const char *at = o->ptr;
        size_t rest = n;
        for (int i = outer; i-- > 0; rest /= (size_t)o->shape[i])
            at += (int64_t)(rest % (size_t)o->shape[i]) * o->strides[i];
        ds__race_range r = ds__race_range_rows(at, width, pitch, rows);
        ds__race_access(now, &r, how);
    }
}

/* A collective or a fill begins. Its operands are accesses of their streams, which wait for each
   other first (comm/join.h). */
static void ds__race_seen_begin(const ds__seen *seen) {
    uint32_t place = ds__race_place_of_call();
    int outer = ds__race_tls.inside > 1;
    if (!outer && ds__race.threads)
        ds__race_group_begin(seen, place);
    for (size_t i = 0; i < seen->operands && !outer; i++) {
        ds__race_line *l = ds__race_operand_line(&seen->operand[i]);
        if (l)
            ds__race_line_enqueue(l, place);
    }
    for (size_t i = 0; i < seen->operands && !outer; i++) {
        const ds__seen_operand *o = &seen->operand[i];
        ds__race_line *l = ds__race_operand_line(o);
        for (size_t k = 0; l && k < seen->operands; k++) {
            const ds__race_line *other = ds__race_operand_line(&seen->operand[k]);
            if (other)
                ds__race_line_wait(l, l->n, other, place);
        }
        if (!l)
            continue;
        ds__race_now now = ds__race_line_now(l, place);
        now.pageable = o->device.type == DS_DEVICE_HOST;
        ds__race_operand_access(
            o, &now, (o->reads ? DS__RACE_READ : 0u) | (o->writes ? DS__RACE_WRITE : 0u));
    }
}

/* A stream has got another label. */
static void ds__race_seen_range(const ds_range_event *e) {
    for (uint32_t i = 1; e->kind == DS_RANGE_STREAM_LABEL && i < ds__race.lines; i++) {
        ds__race_line *l = ds__race.line[i];
        if (l->kind == DS__RACE_STREAM && l->number == e->id)
            ds__utf8_copy(l->name, sizeof l->name, e->text ? e->text : "");
    }
}

static void ds__race_seen(const ds__seen *seen) {
    /* also without memory: the thread may outlive the layer */
    if (seen->kind == DS__SEEN_BEGIN)
        ds__race_tls.inside++;
    else if (seen->kind == DS__SEEN_END)
        ds__race_tls.inside--;
    if (seen->kind == DS__SEEN_RACE || !ds__race_enter())
        return; /* a race is notified with the layer's lock */
    switch (seen->kind) {
    case DS__SEEN_ALLOC:
        ds__race_seen_alloc(seen);
        break;
    case DS__SEEN_FREE:
        ds__race_seen_free(seen);
        break;
    case DS__SEEN_USE:
        ds__race_seen_use(seen);
        break;
    case DS__SEEN_WAIT:
        ds__race_seen_wait(seen);
        break;
    case DS__SEEN_UNRECORDED:
        ds__race_seen_unrecorded(seen);
        break;
    case DS__SEEN_BEGIN:
        ds__race_seen_begin(seen);
        break;
    case DS__SEEN_CAPTURE:
        ds__race_captured_keep(seen);
        break;
    case DS__SEEN_CAPTURE_END:
        ds__race_captured_forget(seen);
        break;
    case DS__SEEN_RANGE:
        ds__race_seen_range(seen->range);
        break;
    case DS__SEEN_ACQUIRE:
        ds__race_task_run(seen->ptr, seen->stream);
        break;
    case DS__SEEN_RELEASE:
        ds__race_task_end();
        break;
    default:
        break;
    }
    ds__race_leave();
}

static ds__layer ds__check_layer = { .name = "check",
                                     .apply = ds__race_layer_apply,
                                     .observer = ds__race_seen,
                                     .configure = ds__race_configure };

#endif
