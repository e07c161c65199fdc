/* trace/summary.h - summaries in text.

   Writes the sums of streams, how long operations ran at once, and the longest waits
   (ds__trace_summary_write).

   Policy: the sums of streams and the longest waits are of the whole trace; the overlap is of the
   ring. Nodes of graphs count as their launch. Waits and records of events are not busy time.

   Invariants: each line ends with a line feed and has at most 500 characters. Without memory for a
   part, the output has failed.
   Locks: ds__trace.file_lock is held; ds__trace.lock is taken.
   Threads: any. */
#ifndef DS__TRACE_SUMMARY_H
#define DS__TRACE_SUMMARY_H

#include "json.h"

/* The begin or end of an operation. */
typedef struct ds__trace_turn {
    uint64_t time;
    int8_t change; /* 1: begin, -1: end */
    uint8_t moves; /* 1: a copy or fill */
} ds__trace_turn;

/* How long operations ran at once. */
typedef struct ds__trace_overlap {
    uint64_t span;
    uint64_t busy;  /* at least one operation runs */
    uint64_t two;   /* at least two */
    uint64_t mixed; /* a copy or fill, and another operation */
} ds__trace_overlap;

/* Sorts by time. The order of turns at one time does not matter: no time passes between them. */
static int ds__trace_turn_compare(const void *a, const void *b) {
    const ds__trace_turn *x = a;
    const ds__trace_turn *y = b;
    return (x->time > y->time) - (x->time < y->time);
}

static int ds__trace_is_busy(const ds__trace_record *r) {
    return (r->kind <= DS__TRACE_GRAPH && r->kind != DS__TRACE_EVENT &&
            r->kind != DS__TRACE_WAIT) ||
           r->kind == DS__TRACE_STEP;
}

/* Lists the begins and ends of the ring's operations. Returns NULL if there is no memory. The
   caller frees the list. */
static ds__trace_turn *ds__trace_turns(size_t *out_count) {
    size_t count = 0;
    ds__mutex_lock(&ds__trace.lock);
    uint64_t to = ds__trace.head;
    ds__mutex_unlock(&ds__trace.lock);
    uint64_t from = to > ds__trace.ring_size ? to - ds__trace.ring_size : 0;
    ds__trace_turn *list = ds__host_alloc((size_t)(to - from) * 2 * sizeof *list + 1);
    while (list && from < to) {
        ds__mutex_lock(&ds__trace.lock);
        for (size_t n = 0; n < DS__TRACE_SLICE && from < to; n++, from++) {
            const ds__trace_record *r = ds__trace_get(from);
            if (!r || !ds__trace_is_busy(r) || r->end <= r->begin)
                continue;
            uint8_t moves = r->kind == DS__TRACE_COPY || r->kind == DS__TRACE_FILL;
            list[count++] = (ds__trace_turn){ r->begin, 1, moves };
            list[count++] = (ds__trace_turn){ r->end, -1, moves };
        }
        ds__mutex_unlock(&ds__trace.lock);
    }
    *out_count = count;
    return list;
}

/* Returns how long operations ran at once. Without memory, the output has failed. */
static ds__trace_overlap ds__trace_overlap_get(ds__trace_output *out) {
    ds__trace_overlap o = { 0, 0, 0, 0 };
    size_t count = 0;
    ds__trace_turn *list = ds__trace_turns(&count);
    int running = 0;
    int moving = 0;
    if (!list)
        out->failed = 1;
    if (count) {
        qsort(list, count, sizeof *list, ds__trace_turn_compare);
        o.span = list[count - 1].time - list[0].time;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t took = i ? list[i].time - list[i - 1].time : 0;
        o.busy += running > 0 ? took : 0;
        o.two += running > 1 ? took : 0;
        o.mixed += moving > 0 && running > moving ? took : 0;
        running += list[i].change;
        moving += list[i].moves ? list[i].change : 0;
    }
    ds__host_free(list);
    return o;
}

static double ds__trace_percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* Writes "stream NAME", or with its number if it has no label. */
static void ds__trace_put_stream(ds__trace_output *o, uint32_t row) {
    const ds__trace_stream *s = ds__trace_view_stream(row);
    if (!s)
        ds__trace_print(o, "a stream");
    else if (*s->name)
        ds__trace_print(o, "stream \"%s\"", s->name);
    else
        ds__trace_print(o, "stream %llu", (unsigned long long)s->number);
}

/* Writes the call and the call site of a record. */
static void ds__trace_put_site(ds__trace_output *o, uint32_t call, uint32_t file, uint32_t line) {
    const char *path = ds__trace_view_text(file);
    const char *slash = strrchr(path, '/');
    ds__trace_print(o, "%.80s", call ? ds__trace_view_text(call) : "a call");
    if (file)
        ds__trace_print(o, " at %.100s:%u", slash ? slash + 1 : path, line);
}

/* Writes the kind of an operation, and its name. */
static void ds__trace_put_kind(ds__trace_output *o, const ds__trace_record *r) {
    const char *name = ds__trace_view_text(r->name);
    ds__trace_print(o, "%s%s%.100s", ds__trace_kind_name(r->kind), *name ? " " : "", name);
}

static void ds__trace_put_wait(ds__trace_output *o, const ds__trace_wait *w) {
    const ds__trace_record *r = &w->wait;
    ds__trace_print(o, "  %10.3f ms  ", (double)(r->end - r->begin) / 1e6);
    ds__trace_put_stream(o, r->row);
    ds__trace_print(o, ", ");
    ds__trace_put_site(o, r->call, r->file, r->line);
    ds__trace_print(o, ", waits for ");
    if (w->cause.kind) {
        ds__trace_put_kind(o, &w->cause);
        ds__trace_print(o, " of ");
        ds__trace_put_stream(o, w->cause.row);
        ds__trace_print(o, ", ");
        ds__trace_put_site(o, w->cause.call, w->cause.file, w->cause.line);
    } else {
        ds__trace_print(o, "an operation that has no record");
    }
    ds__trace_print(o, "\n");
}

/* Sorts indices of streams: the busiest first. */
static int ds__trace_stream_compare(const void *a, const void *b) {
    const ds__trace_stream *x = &ds__trace_view.stream[*(const uint32_t *)a];
    const ds__trace_stream *y = &ds__trace_view.stream[*(const uint32_t *)b];
    if (x->busy_ns != y->busy_ns)
        return x->busy_ns > y->busy_ns ? -1 : 1;
    return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : 1;
}

/* Writes the sums of the streams that had operations. */
static void ds__trace_put_streams(ds__trace_output *o, uint64_t span) {
    size_t count = 0;
    char name[64];
    uint32_t *list = ds__host_alloc((ds__trace_view.streams + 1) * sizeof *list);
    if (!list) {
        o->failed = 1;
        return;
    }
    for (uint32_t i = 0; i < ds__trace_view.streams; i++)
        if (ds__trace_view.stream[i].operations)
            list[count++] = i;
    qsort(list, count, sizeof *list, ds__trace_stream_compare);
    ds__trace_print(o, "%-30s %-8s %12s %8s %8s %14s\n", "stream", "device", "operations", "busy",
                    "waiting", "bytes");
    for (size_t i = 0; i < count; i++) {
        const ds__trace_stream *s = &ds__trace_view.stream[list[i]];
        int is_cuda = (int)s->device < ds__g.backend[0].device_count;
        if (*s->name)
            snprintf(name, sizeof name, "%.30s", s->name);
        else
            snprintf(name, sizeof name, "%llu", (unsigned long long)s->number);
        ds__trace_print(o, "%-30s %s:%-*d %12u %6.1f %% %6.1f %% %14llu\n", name,
                        is_cuda ? "cuda" : "cpu", is_cuda ? 3 : 4,
                        (int)s->device - (is_cuda ? 0 : ds__g.backend[0].device_count),
                        s->operations, ds__trace_percent(s->busy_ns, span),
                        ds__trace_percent(s->wait_ns, span), (unsigned long long)s->bytes);
    }
    ds__host_free(list);
}

/* Writes the summary. */
static void ds__trace_summary_write(ds__trace_output *o) {
    ds__trace_wait longest[DS__TRACE_LONGEST];
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    ds__trace_overlap overlap = ds__trace_overlap_get(o);
    if (!ds__trace_view_update())
        o->failed = 1;
    ds__mutex_lock(&ds__trace.lock);
    size_t waits = ds__trace.waits;
    uint64_t operations = ds__trace.operations;
    uint64_t dropped = ds__trace.dropped;
    memcpy(longest, ds__trace.longest, waits * sizeof *longest);
    ds__mutex_unlock(&ds__trace.lock);
    for (size_t i = 0; i < ds__trace_view.streams; i++) {
        const ds__trace_stream *s = &ds__trace_view.stream[i];
        if (s->operations && s->first < first)
            first = s->first;
        if (s->operations && s->last > last)
            last = s->last;
    }
    uint64_t span = last > first ? last - first : 0;
    ds__trace_print(o, "%llu operations in %.3f ms, %llu records lost\n",
                    (unsigned long long)operations, (double)span / 1e6,
                    (unsigned long long)dropped);
    ds__trace_print(o,
                    "busy %.1f %% of the time; two operations at once %.1f %%; a copy and another "
                    "operation at once %.1f %%\n\n",
                    ds__trace_percent(overlap.busy, overlap.span),
                    ds__trace_percent(overlap.two, overlap.span),
                    ds__trace_percent(overlap.mixed, overlap.span));
    ds__trace_put_streams(o, span);
    if (waits)
        ds__trace_print(o, "\nlongest waits\n");
    for (size_t i = 0; i < waits; i++)
        ds__trace_put_wait(o, &longest[i]);
}

#endif
