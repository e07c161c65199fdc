/* trace/json.h - traces for Perfetto and chrome://tracing.

   Writes an array of events in the format of Chrome's traces: a process for each device with a
   thread for each stream, and process 0 for the threads of the host. Waits have a track of
   their own, because they overlap the operation before them in other views. An arrow leads from the
   operation that a wait waited for to the operation behind the wait (phases "s" and "f").

   Policy:
   1. Each event is one line that ends with a comma, after the first one. A viewer accepts an array
      that is cut off.
   2. A file has at most DS__TRACE_PART bytes of text: then another part begins, with its own names.
   3. Perfetto reverses an arrow whose target begins before its source, as most waits do. So the
      target is the next event of the stream, which "f" without "bp" means. "s" must be inside the
      source, so it is a nanosecond before the end. Both are written with the wait, if the source is
      in the same part.

   Invariants: times are microseconds with three decimals, relative to the start of the trace.
   Locks: ds__trace.file_lock is held.
   Threads: any. */
#ifndef DS__TRACE_JSON_H
#define DS__TRACE_JSON_H

#include "output.h"

/* The track of a stream's waits has this number more. */
enum { DS__TRACE_WAITS = 1000000, DS__TRACE_PRINTED = 1 << 18 /* text that is written at once */ };

static void ds__trace_json_next(ds__trace_output *o) {
    ds__trace_put(o, o->first ? "[\n" : ",\n", 2);
    o->first = 0;
}

/* Writes a time as a member. */
static void ds__trace_json_time(ds__trace_output *o, const char *name, uint64_t ns) {
    ds__trace_print(o, ",\"%s\":%llu.%03u", name, (unsigned long long)(ns / 1000),
                    (unsigned)(ns % 1000));
}

/* Writes the name of a process or thread, and its place in the order. tid 0: a process. */
static void ds__trace_json_name(ds__trace_output *o, unsigned pid, unsigned tid, const char *name,
                                unsigned order) {
    const char *what = tid ? "thread" : "process";
    ds__trace_json_next(o);
    ds__trace_print(
        o, "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s_name\",\"args\":{\"name\":", pid, tid,
        what);
    ds__trace_put_string(o, name);
    ds__trace_print(o, "}}");
    ds__trace_json_next(o);
    ds__trace_print(o,
                    "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s_sort_index\",\"args\":{"
                    "\"sort_index\":%u}}",
                    pid, tid, what, order);
}

static unsigned ds__trace_json_tid(uint32_t stream) {
    return stream + 1;
}

/* Writes the names of new devices, streams and threads. */
static void ds__trace_json_tables(ds__trace_output *o) {
    char name[128];
    if (!o->at.devices)
        ds__trace_json_name(o, 0, 0, "host", 0);
    for (int b = 0; b < DS_BACKEND_COUNT && o->at.devices < ds__trace_devices(); b++)
        for (int i = 0; i < ds__g.backend[b].device_count; i++) {
            unsigned pid = (unsigned)++o->at.devices;
            snprintf(name, sizeof name, "%s:%d", ds__type_name((int)ds__g.backend[b].type), i);
            ds__trace_json_name(o, pid, 0, name, pid);
        }
    for (; o->at.streams < ds__trace_view.streams; o->at.streams++) {
        const ds__trace_stream *s = &ds__trace_view.stream[o->at.streams];
        unsigned tid = ds__trace_json_tid((uint32_t)o->at.streams);
        if (*s->name)
            snprintf(name, sizeof name, "%s", s->name);
        else
            snprintf(name, sizeof name, "stream %llu", (unsigned long long)s->number);
        ds__trace_json_name(o, s->device + 1, tid, name, tid);
        size_t n = strlen(name);
        snprintf(name + n, sizeof name - n, " waits");
        if (!s->lane)
            ds__trace_json_name(o, s->device + 1, tid + DS__TRACE_WAITS, name, tid);
    }
    for (; o->at.threads < ds__trace_view.threads; o->at.threads++) {
        const ds__trace_thread *t = &ds__trace_view.thread[o->at.threads];
        if (t->name)
            snprintf(name, sizeof name, "%s", ds__trace_view_text(t->name));
        else
            snprintf(name, sizeof name, "thread %llu", (unsigned long long)t->number);
        ds__trace_json_name(o, 0, (unsigned)o->at.threads + 1, name, (unsigned)o->at.threads + 1);
    }
}

static const char *ds__trace_kind_name(int kind) {
    static const char *const names[] = { "?",
                                         "kernel",
                                         "copy",
                                         "fill",
                                         "host function",
                                         "record",
                                         "wait",
                                         "values",
                                         "graph",
                                         "node",
                                         "step",
                                         "?",
                                         "?",
                                         "?",
                                         "?",
                                         "?",
                                         "host waits",
                                         "range",
                                         "mark",
                                         "call",
                                         "?",
                                         "?",
                                         "?",
                                         "?",
                                         "allocation",
                                         "free",
                                         "out of memory",
                                         "free complete" };
    if (kind == DS__TRACE_RACE)
        return "race";
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "?";
}

/* Writes the part of an event that all have. */
static void ds__trace_json_head(ds__trace_output *o, const ds__trace_record *r, const char *phase,
                                unsigned pid, unsigned tid) {
    const char *name = ds__trace_view_text(r->kind == DS__TRACE_RACE ? r->call : r->name);
    if (!*name)
        name = r->kind == DS__TRACE_BLOCKED || r->kind == DS__TRACE_CALL
                   ? ds__trace_view_text(r->call)
                   : ds__trace_kind_name(r->kind);
    ds__trace_json_next(o);
    ds__trace_print(o, "{\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"cat\":\"%s\",\"name\":", phase, pid,
                    tid, ds__trace_kind_name(r->kind));
    ds__trace_put_string(o, name);
    ds__trace_json_time(o, "ts", r->begin);
    if (*phase == 'X')
        ds__trace_json_time(o, "dur", r->end - r->begin);
}

/* Writes the arguments of an event, and its end. */
static void ds__trace_json_args(ds__trace_output *o, const ds__trace_record *r) {
    uint64_t took = r->end - r->begin;
    int moves = r->kind == DS__TRACE_COPY || r->kind == DS__TRACE_FILL;
    ds__trace_print(o, ",\"args\":{\"call\":");
    ds__trace_put_string(o, ds__trace_view_text(r->call));
    if (r->file) {
        ds__trace_print(o, ",\"file\":");
        ds__trace_put_string(o, ds__trace_view_text(r->file));
        ds__trace_print(o, ",\"line\":%u", r->line);
    }
    if (r->amount)
        ds__trace_print(o, ",\"%s\":%llu",
                        r->kind == DS__TRACE_KERNEL || r->kind == DS__TRACE_VALUES ? "count"
                                                                                   : "bytes",
                        (unsigned long long)r->amount);
    if (moves && took)
        ds__trace_print(o, ",\"GB/s\":%.3f", (double)r->amount / (double)took);
    if (r->kind < DS__TRACE_NODE || r->kind == DS__TRACE_STEP) {
        ds__trace_print(o, ",\"id\":%u", r->id);
        ds__trace_json_time(o, "enqueued", r->time);
    }
    if (r->cause)
        ds__trace_print(o, ",\"%s\":%u", r->kind == DS__TRACE_NODE ? "launch" : "waits for",
                        r->cause);
    if (r->flags & DS__TRACE_FAILED)
        ds__trace_print(o, ",\"failed\":true");
    if (r->flags & DS__TRACE_OPEN)
        ds__trace_print(o, ",\"open\":true");
    if (r->flags & DS__TRACE_UNTIMED)
        ds__trace_print(o, ",\"untimed\":true");
    ds__trace_print(o, "}}");
}

/* Writes one end of the arrow of a wait. */
static void ds__trace_json_mark(ds__trace_output *o, const char *phase, uint32_t id,
                                const ds__trace_end *at) {
    ds__trace_json_next(o);
    ds__trace_print(
        o, "{\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"cat\":\"wait\",\"name\":\"wait\",\"id\":%u",
        phase, at->pid, at->tid, id);
    ds__trace_json_time(o, "ts", at->time);
    ds__trace_print(o, "}");
}

/* Writes the arrow of a wait on this track, if it has one. */
static void ds__trace_json_arrow(ds__trace_output *o, const ds__trace_record *r, unsigned pid) {
    const ds__trace_end *from = &o->ends[r->cause & (ds__trace.ring_size - 1)];
    if (!r->cause || from->id != r->cause)
        return;
    ds__trace_json_mark(o, "s", r->id, from);
    ds__trace_json_mark(o, "f", r->id,
                        &(ds__trace_end){ .pid = pid,
                                          .tid = ds__trace_json_tid(r->row),
                                          .time = r->end > from->time ? r->end : from->time });
}

/* Writes an operation. */
static void ds__trace_json_operation(ds__trace_output *o, const ds__trace_record *r) {
    int waits = r->kind == DS__TRACE_WAIT;
    const ds__trace_stream *stream = ds__trace_view_stream(r->row);
    unsigned pid = stream ? stream->device + 1 : 0;
    unsigned tid = ds__trace_json_tid(r->row) + (waits ? DS__TRACE_WAITS : 0);
    ds__trace_json_head(o, r, "X", pid, tid);
    ds__trace_json_args(o, r);
    if (!o->ends || r->kind == DS__TRACE_NODE)
        return;
    if (waits)
        ds__trace_json_arrow(o, r, pid);
    o->ends[r->id & (ds__trace.ring_size - 1)] =
        (ds__trace_end){ r->id, pid, tid, r->end > r->begin ? r->end - 1 : r->begin };
}

/* Writes the counter of pending operations of a stream. */
static void ds__trace_json_pending(ds__trace_output *o, uint32_t row, uint64_t time,
                                   size_t pending) {
    char name[128];
    const ds__trace_stream *s = ds__trace_view_stream(row);
    if (!s)
        return;
    if (*s->name)
        snprintf(name, sizeof name, "queue of %s", s->name);
    else
        snprintf(name, sizeof name, "queue of stream %llu", (unsigned long long)s->number);
    ds__trace_json_next(o);
    ds__trace_print(o, "{\"ph\":\"C\",\"pid\":%u,\"name\":", s->device + 1);
    ds__trace_put_string(o, name);
    ds__trace_json_time(o, "ts", time);
    ds__trace_print(o, ",\"args\":{\"pending\":%zu}}", pending);
}

/* Writes the counter for the operations that ended until `time`. */
static void ds__trace_json_queue_end(ds__trace_output *o, uint32_t row, uint64_t time) {
    ds__trace_queue *q = &o->queue[row];
    for (; q->first < q->next && q->end[q->first % DS__TRACE_DEPTH] <= time; q->first++)
        ds__trace_json_pending(o, row, q->end[q->first % DS__TRACE_DEPTH], q->next - q->first - 1);
}

/* Counts an operation in the queue of its stream: the operations of a stream are written in order,
   so those that were pending at its enqueueing are known. */
static void ds__trace_json_queue(ds__trace_output *o, const ds__trace_record *r) {
    size_t count = (size_t)r->row + 1;
    if (r->row == DS__TRACE_NONE || r->kind == DS__TRACE_NODE || r->flags & DS__TRACE_OPEN ||
        (count > o->queues && !ds__array_reserve(&o->queue, sizeof *o->queue, o->queues,
                                                 count - o->queues, &o->queue_room)))
        return;
    for (; o->queues < count; o->queues++)
        o->queue[o->queues].first = o->queue[o->queues].next = 0;
    ds__trace_queue *q = &o->queue[r->row];
    ds__trace_json_queue_end(o, r->row, r->time);
    if (q->next - q->first == DS__TRACE_DEPTH)
        q->first++;
    q->end[q->next++ % DS__TRACE_DEPTH] = r->end;
    ds__trace_json_pending(o, r->row, r->time, q->next - q->first);
}

/* Writes the change of a block, and the counter of its device. */
static void ds__trace_json_block(ds__trace_output *o, const ds__trace_record *r) {
    unsigned pid = r->dst;
    unsigned tid = r->row == DS__TRACE_NONE ? 0 : ds__trace_json_tid(r->row);
    size_t device = r->dst % (sizeof o->alive / sizeof o->alive[0]);
    if (r->kind == DS__TRACE_OOM) {
        ds__trace_json_head(o, r, "i", pid, tid);
        ds__trace_print(o, ",\"s\":\"p\"");
        ds__trace_json_args(o, r);
        return;
    }
    if (r->kind == DS__TRACE_FREED)
        return;
    if (r->kind == DS__TRACE_ALLOC)
        o->alive[device] += r->amount;
    else
        o->alive[device] -= r->amount < o->alive[device] ? r->amount : o->alive[device];
    ds__trace_json_next(o);
    ds__trace_print(o, "{\"ph\":\"C\",\"pid\":%u,\"name\":\"allocated\"", pid);
    ds__trace_json_time(o, "ts", r->begin);
    ds__trace_print(o, ",\"args\":{\"bytes\":%llu}}", (unsigned long long)o->alive[device]);
}

/* Writes a race as an instant of the stream of the later operation. */
static void ds__trace_json_race(ds__trace_output *o, const ds__trace_record *r) {
    const ds__trace_stream *stream = ds__trace_view_stream(r->row);
    ds__trace_json_head(o, r, "i", stream ? stream->device + 1 : 0,
                        stream ? ds__trace_json_tid(r->row) : 0);
    ds__trace_print(o, ",\"s\":\"%s\",\"args\":{\"later\":%u,\"earlier\":%u,\"report\":",
                    stream ? "t" : "g", r->id, r->cause);
    ds__trace_put_string(o, ds__trace_view_text(r->name));
    ds__trace_print(o, "}}");
}

static void ds__trace_json_event(ds__trace_output *o, const ds__trace_record *r) {
    if (r->kind < DS__TRACE_BLOCKED) {
        ds__trace_json_operation(o, r);
        ds__trace_json_queue(o, r);
    } else if (r->kind == DS__TRACE_RACE) {
        ds__trace_json_race(o, r);
    } else if (r->kind >= DS__TRACE_ALLOC) {
        ds__trace_json_block(o, r);
    } else {
        int is_mark = r->kind == DS__TRACE_MARK;
        ds__trace_json_head(o, r, is_mark ? "i" : "X", 0, r->row + 1);
        if (is_mark)
            ds__trace_print(o, ",\"s\":\"t\"");
        ds__trace_json_args(o, r);
    }
}

/* Begins a file or a further part. */
static void ds__trace_json_begin(ds__trace_output *o) {
    o->first = 1;
    o->at.streams = o->at.threads = o->at.devices = 0;
    if (!o->ends)
        o->ends = ds__host_alloc(ds__trace.ring_size * sizeof *o->ends);
    if (o->ends)
        memset(o->ends, 0, ds__trace.ring_size * sizeof *o->ends);
}

/* Ends the array. now: the end of the trace, 0: of a part. */
static void ds__trace_json_end(ds__trace_output *o, uint64_t now) {
    for (uint32_t i = 0; now && i < o->queues; i++)
        ds__trace_json_queue_end(o, i, UINT64_MAX);
    ds__trace_put(o, o->first ? "[]\n" : "\n]\n", 3);
    ds__trace_output_flush(o, 1);
}

/* The array is longer than a viewer may load: the next part begins. */
static void ds__trace_json_turn(ds__trace_output *o) {
    ds__trace_json_end(o, 0);
    if (ds__trace_output_turn(o))
        ds__trace_json_begin(o);
}

static void ds__trace_json_write(ds__trace_output *o, const ds__trace_record *list, size_t count,
                                 uint64_t dropped) {
    (void)dropped; /* ds_trace_get_stats has it */
    ds__trace_json_tables(o);
    for (size_t i = 0; i < count; i++) {
        ds__trace_json_event(o, &list[i]);
        if (o->part_size + o->size > ds__trace.part) {
            ds__trace_json_turn(o);
            ds__trace_json_tables(o);
        } else if (o->size > DS__TRACE_PRINTED) {
            ds__trace_output_flush(o, 0);
        }
    }
    ds__trace_output_flush(o, 0);
}

#endif
