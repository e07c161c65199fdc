/* cpu/event.h - events: records, queries, host waits, elapsed times.

   Implements the event entries of the driver. ds__cpu_submit_record records an event,
   ds__cpu_event_token returns the token that it stands for, and ds__cpu_token_state the result
   of a token. ds__cpu_stamp_create allocates the time stamp of a timed record.

   Invariants: an event without a stream and without a capture is unrecorded, and counts as
   complete. An event with `capture` set has no stream: it stands for nodes. A stamp has two
   references, of the event and of the queue, and its `ns` is 0 until the record has run. A timed
   record and an interprocess record are operations; any other record is only a number of the
   stream.
   Locks: an event's lock guards `stream`, `upto`, `stamp`, `capture` and `deps`. `capture` and
   `deps` of an event in use also need the core's capture lock, which comes first. `object_lock`
   guards the pools of events and stamps. The waits hold no lock of the driver.
   Threads: caller's threads, any number at once. ds__cpu_event_destroy expects that no other
   thread uses the event. */
#ifndef DS__CPU_EVENT_H
#define DS__CPU_EVENT_H

#include "types.h"
#include "failure.h"
#include "queue.h"
#include "run.h"
#include "wait.h"
#include "submit.h"
#include "stream_wait.h"

static void ds__cpu_event_destroy(void *event);

/* Takes an event from the pool, unless *out is one already: an event is not tied to a device. */
static ds_result ds__cpu_event_create(int device, unsigned flags, void **out) {
    (void)device;
    if (*out)
        return DS_OK;
    ds__spinlock_lock(&ds__cpu.object_lock);
    if (!ds__cpu.free_events) {
        ds__cpu_event *slab = ds__cpu_raw(64 * sizeof *slab);
        for (int i = 0; slab && i < 64; i++) {
            slab[i].next = ds__cpu.free_events;
            ds__cpu.free_events = &slab[i];
        }
    }
    ds__cpu_event *e = ds__cpu.free_events;
    if (e)
        ds__cpu.free_events = e->next;
    ds__spinlock_unlock(&ds__cpu.object_lock);
    *out = e;
    if (!e)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    e->flags = flags;
    e->stream = NULL;
    e->stamp = NULL;
    ds_result r = flags & DS_EVENT_INTERPROCESS ? ds__cpu_event_share(e) : DS_OK;
    if (r < 0) {
        ds__cpu_event_destroy(e);
        *out = NULL;
    }
    return r;
}

static void ds__cpu_event_destroy(void *event) {
    ds__cpu_event *e = event;
    ds__cpu_event_unshare(e);
    ds__cpu_stamp_unref(e->stamp);
    ds__host_free(e->deps);
    e->stamp = NULL;
    e->deps = NULL;
    e->capture = 0;
    ds__spinlock_lock(&ds__cpu.object_lock);
    e->next = ds__cpu.free_events;
    ds__cpu.free_events = e;
    ds__spinlock_unlock(&ds__cpu.object_lock);
}

/* Takes a stamp from the pool, with a reference for the event and one for the queue. NULL: no
   memory. */
static ds__cpu_stamp *ds__cpu_stamp_create(void) {
    ds__spinlock_lock(&ds__cpu.object_lock);
    if (!ds__cpu.free_stamps) {
        ds__cpu_stamp *slab = ds__cpu_raw(64 * sizeof *slab);
        for (int i = 0; slab && i < 64; i++) {
            slab[i].next = ds__cpu.free_stamps;
            ds__cpu.free_stamps = &slab[i];
        }
    }
    ds__cpu_stamp *stamp = ds__cpu.free_stamps;
    if (stamp)
        ds__cpu.free_stamps = stamp->next;
    ds__spinlock_unlock(&ds__cpu.object_lock);
    if (stamp) {
        atomic_store_explicit(&stamp->refs, 2, memory_order_relaxed);
        atomic_store_explicit(&stamp->ns, 0, memory_order_relaxed);
    }
    return stamp;
}

/* Lets the event stand for the token, with this stamp (NULL: none) instead of its former one.
   cause: the operation behind which it is recorded, for records of activity; 0: not known. */
static void ds__cpu_event_set(ds__cpu_event *e, ds__cpu_token token, ds__cpu_stamp *stamp,
                              uint64_t cause) {
    uint32_t *deps = NULL;
    ds__spinlock_lock(&e->lock);
    int captured = e->capture != 0;
    /* the nodes of an event change only under the capture lock, which comes first */
    if (DS__UNLIKELY(captured)) {
        ds__spinlock_unlock(&e->lock);
        ds__mutex_lock(&ds__g.capture_lock);
        ds__spinlock_lock(&e->lock);
        deps = e->deps;
        e->deps = NULL;
        e->capture = 0;
    }
    ds__cpu_stamp *old = e->stamp;
    e->stream = token.stream;
    e->upto = token.upto;
    e->stamp = stamp;
    e->cause = cause;
    ds__spinlock_unlock(&e->lock);
    if (DS__UNLIKELY(captured))
        ds__mutex_unlock(&ds__g.capture_lock);
    ds__cpu_stamp_unref(old);
    ds__host_free(deps);
}

/* Enqueues the record of an event that processes share; *out_upto is its number. */
static ds_result ds__cpu_put_shared_record(ds__cpu_stream *s, const ds__op *op,
                                           uint64_t *out_upto) {
    ds__cpu_progress *progress = NULL;
    ds__op record = *op;
    ds_result r = ds__cpu_progress_for(s, op->u.event.event, &progress);
    if (r < 0)
        return r;
    record.kind = DS__CPU_OP_SHARED_RECORD;
    record.u.own.ptr = progress;
    r = ds__cpu_enqueue(s, &record, out_upto);
    if (r < 0)
        ds__cpu_progress_unused(progress);
    return r;
}

/* Records an event. A timed or interprocess record is an operation of its own; any other record is
   the number of the stream's last operation. */
static ds_result ds__cpu_submit_record(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_event *e = op->u.event.event;
    ds__cpu_stamp *stamp = NULL;
    uint64_t upto;
    ds_result r;
    uint64_t cause = atomic_load_explicit(&s->last_id, memory_order_acquire); /* before the mark */
    if (e->flags & DS_EVENT_TIMING) {
        stamp = ds__cpu_stamp_create();
        if (!stamp)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a time stamp");
        ds__op record = *op;
        record.kind = DS__OP_RECORD;
        record.u.own.ptr = stamp;
        r = ds__cpu_enqueue(s, &record, &upto);
        if (r < 0)
            ds__cpu_stamp_unref(stamp);
    } else if (DS__UNLIKELY(e->registry != NULL)) {
        r = ds__cpu_put_shared_record(s, op, &upto);
    } else {
        r = ds__cpu_mark(s, &upto);
    }
    if (r < 0) {
        ds__cpu_stamp_unref(stamp);
        return r;
    }
    ds__cpu_event_set(e, (ds__cpu_token){ s, upto }, stamp, cause);
    if (DS__UNLIKELY(e->registry != NULL))
        ds__cpu_event_publish(e, s, upto);
    return DS_OK;
}

/* Returns the token that the event stands for. An event of a capture has none; the query or wait
   invalidates that capture. */
static ds_result ds__cpu_event_token(ds__cpu_event *e, ds__cpu_token *out) {
    ds__spinlock_lock(&e->lock);
    uint64_t capture = e->capture;
    out->stream = e->stream;
    out->upto = e->upto;
    ds__spinlock_unlock(&e->lock);
    return DS__LIKELY(!capture)
               ? DS_OK
               : ds__cpu_captured(
                     capture, 1,
                     "an event recorded in a capture cannot be queried or synchronized");
}

/* Returns DS_NOT_READY if the token is not done, else the failure of its number or DS_OK. A token
   without a stream is done. */
static ds_result ds__cpu_token_state(ds__cpu_token t) {
    if (!t.stream)
        return DS_OK;
    if (atomic_load_explicit(&t.stream->done, memory_order_acquire) < t.upto)
        return DS_NOT_READY;
    ds__cpu_failure *f = ds__cpu_failed(t.stream, t.upto);
    return f ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_event_query(void *event) {
    ds__cpu_token t = { NULL, 0 };
    ds_result r = ds__cpu_event_look(event, 0);
    if (DS__LIKELY(r == DS_OK))
        r = ds__cpu_event_token(event, &t);
    /* the allocator also queries events, within a submission; such a query must not advance the
       clock */
    if (DS__UNLIKELY(ds__cpu.fabric != NULL) && r == DS_OK && t.stream && ds__tls.fn &&
        !strcmp(ds__tls.fn, "ds_event_query"))
        (void)ds__cpu_wait_virtual(t.stream, t.upto, 0);
    return r < 0 ? r : ds__cpu_token_state(t);
}

static ds_result ds__cpu_event_synchronize(void *event, uint64_t timeout_ns) {
    ds__cpu_token t = { NULL, 0 };
    ds_result r = ds__cpu_event_look(event, 1);
    if (DS__LIKELY(r == DS_OK))
        r = ds__cpu_event_token(event, &t);
    if (r == DS_OK && t.stream)
        r = ds__cpu_event_watch(event, t.stream, t.upto);
    if (r < 0)
        return r;
    if (t.stream && !ds__cpu_wait(t.stream, t.upto, timeout_ns,
                                  (((ds__cpu_event *)event)->flags & DS_EVENT_BLOCKING_WAIT) != 0))
        return DS_NOT_READY;
    return ds__cpu_token_state(t);
}

static ds_result ds__cpu_event_elapsed(void *start, void *end, double *out_ms) {
    ds__cpu_event *e[2] = { start, end };
    uint64_t ns[2];
    for (int i = 0; i < 2; i++) {
        ds__spinlock_lock(&e[i]->lock);
        ds__cpu_token t = { e[i]->stream, e[i]->upto };
        uint64_t capture = e[i]->capture;
        ns[i] = e[i]->stamp ? atomic_load_explicit(&e[i]->stamp->ns, memory_order_acquire) : 0;
        ds__spinlock_unlock(&e[i]->lock);
        if (capture)
            return ds__cpu_captured(capture, 0,
                                    "an event that was recorded in a capture has no time");
        ds_result r = ds__cpu_token_state(t);
        if (r != DS_OK)
            return r;
        /* also if the graph that records the event was not launched yet */
        if (!t.stream)
            return ds__fail(DS_ERR_NOT_RECORDED, "both events must be recorded first");
        /* the event was recorded again in this moment */
        if (ns[i] == 0)
            return DS_NOT_READY;
    }
    *out_ms = (double)(int64_t)(ns[1] - ns[0]) / 1e6;
    return DS_OK;
}

#endif
