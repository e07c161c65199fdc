/* trace/record.h - the ring of records, and records of activity.

   ds__trace_add puts a record into the ring. ds__trace_take makes records of a batch of activity,
   and keeps the sums of streams and the longest waits.

   Invariants: `place` maps the id of an operation, modulo the size of the ring, to its record. An
   entry may be of another operation; readers compare ids.
   Locks: ds__trace.lock is held, except by ds__trace_take.
   Threads: any; ds__trace_take runs on the thread of the recordings. */
#ifndef DS__TRACE_RECORD_H
#define DS__TRACE_RECORD_H

#include "table.h"

/* Adds a record. Wakes the thread of the recordings if half of the ring has to be written. */
static void ds__trace_add(const ds__trace_record *r) {
    uint64_t n = ds__trace.head++;
    ds__trace.ring[n & (ds__trace.ring_size - 1)] = *r;
    if (ds__trace.has_file && n - ds__trace.output.at.record == ds__trace.ring_size / 2)
        ds__activity_urge();
}

/* Returns a record of the ring by its number, below the head; NULL: it was overwritten. */
static const ds__trace_record *ds__trace_get(uint64_t n) {
    if (ds__trace.head - n > ds__trace.ring_size)
        return NULL;
    return &ds__trace.ring[n & (ds__trace.ring_size - 1)];
}

/* Returns the record of an operation, or NULL. Nodes of graphs have no place. */
static const ds__trace_record *ds__trace_find(uint32_t id) {
    uint64_t at = ds__trace.place[id & (ds__trace.ring_size - 1)];
    const ds__trace_record *r = id && at ? ds__trace_get(at - 1) : NULL;
    return r && r->id == id ? r : NULL;
}

/* Returns 1 if an operation is a step of a collective: an operation between ranks, which is a wait
   with a name, or work that a collective has enqueued. */
static int ds__trace_is_step(const ds_activity *a) {
    if (a->kind == DS_ACTIVITY_WAIT)
        return a->name != NULL;
    return (int)a->kind <= DS__TRACE_FILL && a->call && strncmp(a->call, "ds_comm_", 8) == 0;
}

/* Keeps a wait if it is one of the longest. */
static void ds__trace_wait_keep(const ds__trace_record *r) {
    size_t n = ds__trace.waits;
    uint64_t took = r->end - r->begin;
    while (n > 0 && ds__trace.longest[n - 1].wait.end - ds__trace.longest[n - 1].wait.begin < took)
        n--;
    if (n == DS__TRACE_LONGEST)
        return;
    if (ds__trace.waits < DS__TRACE_LONGEST)
        ds__trace.waits++;
    for (size_t i = ds__trace.waits - 1; i > n; i--)
        ds__trace.longest[i] = ds__trace.longest[i - 1];
    const ds__trace_record *cause = ds__trace_find(r->cause);
    ds__trace.longest[n] = (ds__trace_wait){ .wait = *r };
    if (cause)
        ds__trace.longest[n].cause = *cause;
}

/* Adds an operation to the sums of its stream. */
static void ds__trace_count(const ds__trace_record *r) {
    if (r->row == DS__TRACE_NONE)
        return;
    ds__trace_stream *s = &ds__trace.stream[r->row];
    uint64_t took = r->end - r->begin;
    if (r->kind == DS__TRACE_WAIT) {
        s->wait_ns += took;
        if (took)
            ds__trace_wait_keep(r);
    } else if (r->kind != DS__TRACE_EVENT) {
        s->busy_ns += took;
    }
    s->bytes += r->kind == DS__TRACE_COPY || r->kind == DS__TRACE_FILL ? r->amount : 0;
    if (!s->operations++)
        s->first = r->begin;
    if (s->last < r->end)
        s->last = r->end;
}

static uint64_t ds__trace_time(uint64_t ns) {
    return ns > ds__trace.zero_ns ? ns - ds__trace.zero_ns : 0;
}

/* Marks an operation without times. It began after the one before on its stream. */
static void ds__trace_untimed(ds__trace_record *r) {
    const ds__trace_stream *s = r->row == DS__TRACE_NONE ? NULL : &ds__trace.stream[r->row];
    if (s && s->operations && r->begin < s->last)
        r->begin = s->last;
    r->end = r->begin;
    r->flags |= DS__TRACE_UNTIMED;
    ds__trace.untimed++;
}

/* Fills a record from one of activity. */
static ds__trace_record ds__trace_record_of(const ds_activity *a) {
    ds__trace_record r = { .kind = (uint8_t)a->kind,
                           .flags = ds__trace_flags(a->result),
                           .src = ds__trace_place_of(a->src_device),
                           .dst = ds__trace_place_of(a->dst_device),
                           .begin = ds__trace_time(a->begin_ns ? a->begin_ns : a->enqueue_ns),
                           .end = ds__trace_time(a->end_ns ? a->end_ns : a->enqueue_ns),
                           .time = ds__trace_time(a->enqueue_ns),
                           .name = ds__trace_text(a->name),
                           .call = ds__trace_text(a->call),
                           .file = ds__trace_text(a->file),
                           .line = a->line,
                           .amount = a->bytes ? a->bytes : a->count,
                           .id = (uint32_t)a->correlation_id,
                           .cause = (uint32_t)a->cause_id };
    int is_node = a->kind == (ds_activity_kind)DS__ACTIVITY_NODE;
    r.row = ds__trace_stream_of(a->stream.id, is_node ? (uint32_t)a->external_id : 0,
                                ds__trace_device(a->device));
    if (is_node)
        r.flags |= DS__TRACE_OF_GRAPH;
    if (ds__trace_is_step(a)) {
        if (!r.name)
            r.name = ds__trace_text(ds__activity_kind_name(a->kind));
        r.kind = DS__TRACE_STEP;
    }
    return r;
}

static void ds__trace_take_one(const ds_activity *a) {
    ds__trace_record r = ds__trace_record_of(a);
    if (!a->begin_ns && a->result == DS_OK)
        ds__trace_untimed(&r);
    if (r.kind != DS__TRACE_NODE) {
        ds__trace.place[r.id & (ds__trace.ring_size - 1)] = ds__trace.head + 1;
        ds__trace.operations++;
        ds__trace_count(&r);
    }
    ds__trace_add(&r);
}

/* Takes a batch of activity. Observers wait for short times only. */
static void ds__trace_take(const ds_activity_batch *batch) {
    size_t i = 0;
    while (i < batch->count) {
        ds__mutex_lock(&ds__trace.lock);
        for (size_t n = 0; n < DS__TRACE_SLICE && i < batch->count; n++, i++)
            ds__trace_take_one(&batch->records[i]);
        ds__mutex_unlock(&ds__trace.lock);
    }
    if (batch->dropped) {
        ds__mutex_lock(&ds__trace.lock);
        ds__trace.dropped += batch->dropped;
        ds__mutex_unlock(&ds__trace.lock);
    }
}

/* Takes a record of the calling thread, if a trace runs. The record has no texts yet; `name` is
   NULL or the text of the record. fn: the call, or the hazard of a race. */
static void ds__trace_note(ds__trace_record r, const char *name, const char *fn, ds_site site) {
    ds__mutex_lock(&ds__trace.lock);
    if (atomic_load_explicit(&ds__trace.on, memory_order_relaxed)) {
        uint32_t thread = ds__trace_thread_of();
        if (r.kind < DS__TRACE_ALLOC)
            r.row = thread;
        else if (r.kind < DS__TRACE_RACE)
            r.id = thread;
        if (name)
            r.name = ds__trace_text(name);
        r.call = ds__trace_text(fn);
        r.file = ds__trace_text(site.file);
        r.line = site.file ? (uint32_t)site.line : 0;
        ds__trace_add(&r);
    }
    ds__mutex_unlock(&ds__trace.lock);
}

#endif
