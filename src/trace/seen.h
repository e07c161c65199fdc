/* trace/seen.h - the layer's observer.

   ds__trace_seen makes records of occurrences that never reach a driver: blocks of the allocator,
   collectives and fills, ranges, marks and labels.

   Invariants: the ranges that a thread has pushed since the trace began are in ds__trace_tls, as
   far as there is room. A range that began before the trace has no record.
   Locks: ds__trace.lock is taken; the allocator calls with locks of its own held.
   Threads: any. */
#ifndef DS__TRACE_SEEN_H
#define DS__TRACE_SEEN_H

#include "record.h"

/* A block was given out, freed, or is free again, or there is no memory for one. */
static void ds__trace_seen_block(const ds__seen *seen, int kind) {
    ds__trace_record r = { .kind = (uint8_t)kind,
                           .dst = ds__trace_place_of(seen->device),
                           .row = DS__TRACE_NONE,
                           .begin = ds__trace_now(),
                           .time = (uint64_t)(uintptr_t)seen->ptr,
                           .amount = seen->bytes };
    r.end = r.begin;
    if (seen->stream.id) {
        ds__mutex_lock(&ds__trace.lock);
        if (atomic_load_explicit(&ds__trace.on, memory_order_relaxed))
            r.row = ds__trace_stream_of(seen->stream.id, 0, r.dst ? r.dst - 1u : 0);
        ds__mutex_unlock(&ds__trace.lock);
    }
    ds__trace_note(r, seen->label, seen->fn, seen->site);
}

/* A collective or a fill begins. */
static void ds__trace_seen_begin(void) {
    ds__mutex_lock(&ds__trace.lock);
    (void)ds__trace_thread_of();
    if (ds__trace_tls.depth < 8)
        ds__trace_tls.begin[ds__trace_tls.depth] = ds__trace_now();
    ds__trace_tls.depth++;
    ds__mutex_unlock(&ds__trace.lock);
}

/* A collective or a fill was enqueued or is complete. */
static void ds__trace_seen_end(const ds__seen *seen) {
    ds__trace_record r = { .kind = DS__TRACE_CALL,
                           .flags = ds__trace_flags(seen->result),
                           .end = ds__trace_now() };
    uint32_t epoch = atomic_load_explicit(&ds__trace.epoch, memory_order_relaxed);
    if (ds__trace_tls.epoch != epoch || !ds__trace_tls.depth || --ds__trace_tls.depth >= 8)
        return;
    r.begin = ds__trace_tls.begin[ds__trace_tls.depth];
    for (size_t i = 0; i < seen->operands; i++)
        r.amount += seen->operand[i].bytes;
    ds__trace_note(r, NULL, seen->fn, seen->site);
}

/* The innermost range of the thread in the domain ends. */
static void ds__trace_range_pop(const ds_range_event *e, ds_site site) {
    unsigned n = ds__trace_tls.ranges;
    if (ds__trace_tls.epoch != atomic_load_explicit(&ds__trace.epoch, memory_order_relaxed))
        return;
    while (n > 0 && ds__trace_tls.range[n - 1].domain != e->domain.id)
        n--;
    if (!n)
        return;
    ds__trace_record r = { .kind = DS__TRACE_RANGE,
                           .begin = ds__trace_tls.range[n - 1].begin,
                           .end = ds__trace_time(e->time_ns),
                           .name = ds__trace_tls.range[n - 1].name };
    for (; n < ds__trace_tls.ranges; n++)
        ds__trace_tls.range[n - 1] = ds__trace_tls.range[n];
    ds__trace_tls.ranges--;
    ds__trace_note(r, NULL, "ds_range_push", site);
}

static void ds__trace_range_push(const ds_range_event *e) {
    ds__mutex_lock(&ds__trace.lock);
    (void)ds__trace_thread_of();
    unsigned n = ds__trace_tls.ranges;
    if (n == DS__TRACE_NESTED) { /* forgets the outermost one */
        n--;
        memmove(&ds__trace_tls.range[0], &ds__trace_tls.range[1],
                n * sizeof ds__trace_tls.range[0]);
    }
    ds__trace_tls.range[n].begin = ds__trace_time(e->time_ns);
    ds__trace_tls.range[n].domain = e->domain.id;
    ds__trace_tls.range[n].name = ds__trace_text(e->text);
    ds__trace_tls.ranges = n + 1;
    ds__mutex_unlock(&ds__trace.lock);
}

/* A range of ds_range_start begins or ends. */
static void ds__trace_range_open(const ds_range_event *e, ds_site site) {
    ds__trace_record r = { .kind = DS__TRACE_RANGE, .end = ds__trace_time(e->time_ns) };
    uint64_t wanted = e->kind == DS_RANGE_START ? 0 : e->id;
    size_t i = 0;
    ds__mutex_lock(&ds__trace.lock);
    while (i < DS__TRACE_OPEN_RANGES && ds__trace.open[i].id != wanted)
        i++;
    int found = i < DS__TRACE_OPEN_RANGES;
    if (found && e->kind == DS_RANGE_START) {
        ds__trace.open[i].id = e->id;
        ds__trace.open[i].begin = r.end;
        ds__trace.open[i].name = ds__trace_text(e->text);
    } else if (found) {
        r.begin = ds__trace.open[i].begin;
        r.name = ds__trace.open[i].name;
        ds__trace.open[i].id = 0;
    }
    ds__mutex_unlock(&ds__trace.lock);
    if (found && e->kind == DS_RANGE_END)
        ds__trace_note(r, NULL, "ds_range_start", site);
}

/* The check layer has reported a race. */
static void ds__trace_seen_race(const ds__seen *seen) {
    ds__trace_record r = { .kind = DS__TRACE_RACE,
                           .row = DS__TRACE_NONE,
                           .begin = ds__trace_now(),
                           .id = (uint32_t)seen->operation,
                           .cause = (uint32_t)seen->before };
    r.end = r.begin;
    if (seen->stream.id) {
        ds__mutex_lock(&ds__trace.lock);
        if (atomic_load_explicit(&ds__trace.on, memory_order_relaxed))
            r.row = ds__trace_stream_of(seen->stream.id, 0, 0);
        ds__mutex_unlock(&ds__trace.lock);
    }
    ds__trace_note(r, seen->label, seen->hazard, seen->site);
}

/* A stream or the calling thread gets a label; also while no trace runs. */
static void ds__trace_seen_label(const ds_range_event *e, int on) {
    ds__mutex_lock(&ds__trace.lock);
    for (size_t i = 0; e->kind == DS_RANGE_STREAM_LABEL && i < ds__trace.streams; i++) {
        ds__trace_stream *s = &ds__trace.stream[i];
        if (s->number != e->id || s->lane)
            continue;
        snprintf(s->name, sizeof s->name, "%s", e->text ? e->text : "");
        s->label = on ? ds__trace_text(s->name) : 0;
    }
    if (e->kind == DS_RANGE_THREAD_LABEL && on) {
        uint32_t thread = ds__trace_thread_of();
        if (thread != DS__TRACE_NONE)
            ds__trace.thread[thread].name = ds__trace_text(e->text);
    }
    ds__mutex_unlock(&ds__trace.lock);
}

static void ds__trace_seen_range(const ds_range_event *e, int on) {
    ds_site site = { e->file, e->line };
    if (e->kind >= DS_RANGE_STREAM_LABEL) {
        ds__trace_seen_label(e, on);
    } else if (!on) {
        return;
    } else if (e->kind == DS_RANGE_PUSH) {
        ds__trace_range_push(e);
    } else if (e->kind == DS_RANGE_POP) {
        ds__trace_range_pop(e, site);
    } else if (e->kind == DS_RANGE_MARK) {
        ds__trace_record r = { .kind = DS__TRACE_MARK, .begin = ds__trace_time(e->time_ns) };
        r.end = r.begin;
        ds__trace_note(r, e->text, "ds_range_mark", site);
    } else {
        ds__trace_range_open(e, site);
    }
}

static void ds__trace_seen(const ds__seen *seen) {
    int on = atomic_load_explicit(&ds__trace.on, memory_order_acquire);
    if (seen->kind == DS__SEEN_RANGE)
        ds__trace_seen_range(seen->range, on);
    if (!on)
        return;
    switch (seen->kind) {
    case DS__SEEN_ALLOC:
        ds__trace_seen_block(seen, DS__TRACE_ALLOC);
        break;
    case DS__SEEN_FREE:
        ds__trace_seen_block(seen, DS__TRACE_FREE);
        break;
    case DS__SEEN_FREE_DONE:
        ds__trace_seen_block(seen, DS__TRACE_FREED);
        break;
    case DS__SEEN_OOM:
        ds__trace_seen_block(seen, DS__TRACE_OOM);
        break;
    case DS__SEEN_RACE:
        ds__trace_seen_race(seen);
        break;
    case DS__SEEN_BEGIN:
        ds__trace_seen_begin();
        break;
    case DS__SEEN_END:
        ds__trace_seen_end(seen);
        break;
    default:
        break;
    }
}

#endif
