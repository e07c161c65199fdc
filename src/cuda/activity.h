/* cuda/activity.h - records of operations by events with timing, and by CUPTI.

   Submits operations with a pair of events (ds__cuda_submit_noted), and writes the record when the
   pair is complete (ds__cuda_activity_collect). With CUPTI, the record also waits for those of
   CUPTI.

   Policy:
   1. Two bases of a device differ by some microseconds. So that operations of a stream do not
      overlap, a begin is moved to the end of the operation before it.
   2. A buffer of CUPTI comes back only when all of its records are complete. So a record is given
      up a while after its operation was complete, if no older operation is pending; and at the end
      of the trace. The operation then has no times: those of another operation would be wrong.
   3. A wait does not end before the operation that it waited for, although the bases of two
      devices, and the clocks of events and of CUPTI, differ by some microseconds. The wait is
      therefore written after that operation: in the round after the one that saw the wait complete,
      since the operation is before it in the list; with CUPTI, when the operation has its records.
   4. The nodes of a launch are between its begin and its end, in lanes: each in the first one that
      is free.

   Invariants: the records of a stream are written in the order of the list of pairs. Nothing of
   this room changes the result of an operation or the last error of the program.
   Locks: ds__cuda_activity.lock, for the list.
   Threads: ds__cuda_activity_collect runs on one thread at a time, the rest on any. */
#ifndef DS__CUDA_ACTIVITY_H
#define DS__CUDA_ACTIVITY_H

#include "activity_pair.h"

/* Asks the events of a pair for its times. Returns the code of a failed call, else 0. */
static int ds__cuda_pair_measure(const ds__cuda_scope *scope, ds__cuda_pair *p) {
    /* no other thread changes a base that has users */
    const ds__cuda_base *base = &ds__cuda_activity.base[scope->device][p->base];
    float before = 0;
    float took = 0;
    cudaError_t code = DS__RT_CODE(*scope, cudaEventElapsedTime, (&before, base->event, p->begin));
    if (code == cudaSuccess)
        code = DS__RT_CODE(*scope, cudaEventElapsedTime, (&took, p->begin, p->end));
    if (code != cudaSuccess)
        return (int)code;
    int64_t since = (int64_t)((double)before * 1e6);
    p->record.begin_ns = (uint64_t)((int64_t)base->ns + since);
    p->record.end_ns = p->record.begin_ns + (took > 0 ? (uint64_t)((double)took * 1e6) : 0);
    return 0;
}

/* Looks whether a pair is complete or has failed. Returns 0 if it is pending. */
static int ds__cuda_pair_poll(ds__cuda_pair *p) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    if (p->complete_ns)
        return 1;
    p->result = ds__cuda_scope_begin(&scope, p->record.device.index);
    if (p->result == DS_OK) {
        int code;
        int relaxed = ds__cuda_relax(&scope, &mode);
        DS__DR_CODE(scope, code, cuEventQuery, (p->end));
        if (code == 0 && !p->recorded)
            code = ds__cuda_pair_measure(&scope, p);
        ds__cuda_unrelax(&scope, relaxed, mode);
        ds__cuda_scope_end(&scope);
        if (code == DS__CUDA_NOT_READY)
            return 0;
        p->result = code ? ds__cuda_map(code) : DS_OK;
    }
    p->complete_ns = ds__now_ns();
    return 1;
}

/* Returns 1 if the records of CUPTI have all that a complete operation did, and -1 if one of them
   has no times. */
static int ds__cuda_pair_told(const ds__cuda_pair *p) {
    ds__spinlock_lock(&ds__cupti.lock);
    const ds__cupti_op *op = &p->op;
    int told = op->records > 0;
    if (p->record.kind == DS_ACTIVITY_COPY)
        told = told && op->bytes >= p->record.bytes;
    if (p->record.kind == DS_ACTIVITY_GRAPH)
        told = op->records >= p->expected;
    if (op->lost)
        told = -1;
    ds__spinlock_unlock(&ds__cupti.lock);
    return told;
}

/* Returns 1 if no more records of CUPTI are expected for a complete pair. */
static int ds__cuda_pair_is_late(const ds__cuda_pair *p) {
    uint64_t since = ds__now_ns() - p->complete_ns;
    if (!ds__cupti_is_on() || ds__cuda_activity.told_all)
        return 1;
    if (!p->recorded)
        return since >= DS__CUDA_NODES_NS;
    return since >= DS__CUDA_PATIENCE_NS &&
           ds__cuda_activity.pending_ns > p->complete_ns + DS__CUDA_NODES_NS;
}

/* Returns 1 if the record of a complete pair can be written. */
static int ds__cuda_pair_is_settled(const ds__cuda_pair *p) {
    if (p->result < 0)
        return 1;
    if (p->recorded || p->launches)
        return ds__cuda_pair_told(p) || ds__cuda_pair_is_late(p);
    if (p->record.kind != DS_ACTIVITY_WAIT || !p->record.cause_id)
        return 1;
    if (p->complete_ns >= ds__cuda_activity.round_ns)
        return 0; /* the pair of the cause may have been pending when this round looked at it */
    return !ds__cupti_is_on() || !ds__cupti_is_listed(p->record.cause_id);
}

/* Moves the times of a record behind those of the records before. */
static void ds__cuda_record_place(ds_activity *a) {
    size_t place = (size_t)(a->stream.id * 0x9e3779b97f4a7c15u >> 48) % DS__CUDA_ENDS;
    size_t cause = a->cause_id % DS__CUDA_CAUSES;
    if (a->begin_ns < a->enqueue_ns)
        a->begin_ns = a->enqueue_ns;
    if (ds__cuda_activity.ends[place].stream == a->stream.id &&
        a->begin_ns < ds__cuda_activity.ends[place].end_ns)
        a->begin_ns = ds__cuda_activity.ends[place].end_ns;
    if (a->end_ns < a->begin_ns)
        a->end_ns = a->begin_ns;
    if (a->cause_id && ds__cuda_activity.causes[cause].id == a->cause_id &&
        a->end_ns < ds__cuda_activity.causes[cause].end_ns)
        a->end_ns = ds__cuda_activity.causes[cause].end_ns;
    ds__cuda_activity.ends[place].stream = a->stream.id;
    ds__cuda_activity.ends[place].end_ns = a->end_ns;
    cause = a->correlation_id % DS__CUDA_CAUSES;
    ds__cuda_activity.causes[cause].id = a->correlation_id;
    ds__cuda_activity.causes[cause].end_ns = a->end_ns;
}

static int ds__cuda_work_compare(const void *a, const void *b) {
    const ds__cupti_work *x = a;
    const ds__cupti_work *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static const char *ds__cuda_work_name(const ds__cupti_work *w) {
    if (w->kind == DS__CUPTI_KERNEL)
        return w->name ? w->name : "?";
    return ds__activity_kind_name(w->kind == DS__CUPTI_FILL ? DS_ACTIVITY_FILL : DS_ACTIVITY_COPY);
}

/* Writes the nodes of a launch, in the order of their begins. */
static void ds__cuda_nodes_write(const ds_activity *launch, const ds__cupti_work *list,
                                 size_t count) {
    uint64_t ends[DS__CUDA_LANES] = { 0 };
    for (size_t i = 0; i < count; i++) {
        const ds__cupti_work *w = &list[i];
        ds_activity a = *launch;
        size_t lane = 0;
        a.begin_ns = ds__cupti_ns(w->start);
        a.end_ns = ds__cupti_ns(w->end);
        if (a.begin_ns < launch->begin_ns)
            a.begin_ns = launch->begin_ns;
        while (lane + 1 < DS__CUDA_LANES && ends[lane] > a.begin_ns)
            lane++;
        if (a.begin_ns < ends[lane])
            a.begin_ns = ends[lane];
        if (a.end_ns > launch->end_ns)
            a.end_ns = launch->end_ns;
        if (a.end_ns < a.begin_ns)
            a.end_ns = a.begin_ns;
        ends[lane] = a.end_ns;
        a.kind = (ds_activity_kind)DS__ACTIVITY_NODE;
        a.name = ds__cuda_work_name(w);
        a.bytes = w->bytes;
        a.cause_id = launch->correlation_id;
        a.external_id = lane + 1;
        ds__activity_write(&a, NULL);
    }
}

/* Sets the times of the record of a settled pair, and writes the nodes of a launch. */
static void ds__cuda_pair_times(ds__cuda_pair *p) {
    ds_activity *a = &p->record;
    ds__cupti_op *op = &p->op;
    ds__spinlock_lock(&ds__cupti.lock);
    size_t records = op->id ? op->records : 0;
    uint64_t start = op->start;
    uint64_t end = op->end;
    ds__cupti_work *work = op->id ? op->work : NULL;
    op->work = work ? NULL : op->work; /* no record is added any more */
    op->room = work ? 0 : op->room;
    op->keeps = 0;
    ds__spinlock_unlock(&ds__cupti.lock);
    if (p->recorded) {
        a->begin_ns = ds__cupti_ns(start);
        a->end_ns = ds__cupti_ns(end);
    } else if (records) {
        uint64_t first = ds__cupti_ns(start);
        uint64_t last = ds__cupti_ns(end);
        a->begin_ns = first < a->begin_ns ? first : a->begin_ns;
        a->end_ns = last > a->end_ns ? last : a->end_ns;
    }
    ds__cuda_record_place(a);
    if (work) {
        qsort(work, records, sizeof *work, ds__cuda_work_compare);
        ds__cuda_nodes_write(a, work, records);
    }
    ds__host_free(work);
}

/* Writes the record of a settled pair. */
static void ds__cuda_pair_finish(ds__cuda_pair *p) {
    int device = p->record.device.index;
    ds_activity place = p->record;
    p->record.result = p->result;
    if (p->result == DS_OK && p->recorded && ds__cuda_pair_told(p) <= 0)
        ds__cuda_record_place(&place); /* without times, but the next ones are behind it */
    else if (p->result == DS_OK)
        ds__cuda_pair_times(p);
    ds__activity_note note = p->note;
    ds_activity record = p->record;
    ds__cuda_pair_put(device, p);
    ds__activity_write(&record, &note);
}

/* Streams whose pairs must wait, while a list of pairs is looked at. */
typedef struct ds__cuda_blocks {
    size_t count;
    uint64_t stream[DS__CUDA_BLOCKED];
    int runs[DS__CUDA_BLOCKED]; /* 1: an operation is pending; 0: all lack only records */
} ds__cuda_blocks;

/* Writes the record of a pair, unless it must wait. Returns 0 if it is kept. */
static int ds__cuda_pair_look(ds__cuda_blocks *blocks, ds__cuda_pair *p) {
    size_t i = 0;
    while (i < blocks->count && blocks->stream[i] != p->record.stream.id)
        i++;
    int is_first = i == blocks->count && i < DS__CUDA_BLOCKED;
    int asks = is_first || (i < blocks->count && !blocks->runs[i]);
    int complete = asks && ds__cuda_pair_poll(p);
    if (!complete && p->record.enqueue_ns < ds__cuda_activity.pending_ns)
        ds__cuda_activity.pending_ns = p->record.enqueue_ns;
    if (is_first && complete && ds__cuda_pair_is_settled(p)) {
        ds__cuda_pair_finish(p);
        return 1;
    }
    if (is_first) {
        blocks->stream[i] = p->record.stream.id;
        blocks->count++;
    }
    if (i < blocks->count)
        blocks->runs[i] = !complete;
    return 0;
}

/* Writes the records of complete pairs. A pair behind a pending one of its stream waits for it.
   Returns the pending pairs in their order, and the last of them. */
static ds__cuda_pair *ds__cuda_pairs_finish(ds__cuda_pair *list, ds__cuda_pair **out_last) {
    ds__cuda_blocks blocks = { .count = 0 };
    ds__cuda_pair *kept = NULL;
    *out_last = NULL;
    ds__cuda_activity.pending_ns = UINT64_MAX;
    ds__cuda_activity.round_ns = ds__now_ns();
    while (list) {
        ds__cuda_pair *p = list;
        list = p->next;
        if (ds__cuda_pair_look(&blocks, p))
            continue;
        p->next = NULL;
        if (kept)
            (*out_last)->next = p;
        else
            kept = p;
        *out_last = p;
    }
    return kept;
}

/* Flushes CUPTI if pairs are pending and the last flush is old enough, and writes the pairs that
   have their records then. */
static ds__cuda_pair *ds__cuda_pairs_flush(ds__cuda_pair *list, ds__cuda_pair **out_last) {
    int hurry = atomic_load(&ds__activity.hurry);
    uint64_t now = ds__now_ns();
    uint64_t wait = hurry ? DS__CUDA_HURRY_NS : DS__CUDA_FLUSH_NS;
    if (!list || !ds__cupti_is_on() ||
        (hurry != DS__ACTIVITY_FLUSH && now - ds__cuda_activity.flushed_ns < wait))
        return list;
    int last = hurry == DS__ACTIVITY_LAST && ds__cuda_activity.pending_ns == UINT64_MAX;
    ds__cupti_flush(last);
    ds__cuda_activity.flushed_ns = ds__now_ns();
    ds__cuda_activity.told_all = last;
    list = ds__cuda_pairs_finish(list, out_last);
    ds__cuda_activity.told_all = 0;
    return list;
}

/* Gives the devices with pairs a new base if theirs are old. */
static void ds__cuda_bases_renew(void) {
    ds__cuda_scope scope;
    for (int i = 0; i < ds__cuda.devices; i++) {
        /* only this thread and submitters change bases, and submitters make the first one */
        ds__spinlock_lock(&ds__cuda_activity.lock);
        int used = ds__cuda_activity.base[i][ds__cuda_activity.newest[i]].event != NULL;
        ds__spinlock_unlock(&ds__cuda_activity.lock);
        if (!used || !ds__cuda_base_is_old(i, DS__CUDA_BASE_NS) ||
            ds__cuda_scope_begin(&scope, i) < 0)
            continue;
        ds__cuda_base_make(&scope);
        ds__cuda_scope_end(&scope);
    }
}

static int ds__cuda_activity_collect(void) {
    ds__cuda_pair *last;
    ds__tls.mute++;
    ds__spinlock_lock(&ds__cuda_activity.lock);
    ds__cuda_pair *list = ds__cuda_activity.first;
    ds__cuda_activity.first = NULL;
    ds__spinlock_unlock(&ds__cuda_activity.lock);
    ds__cuda_pair *kept = ds__cuda_pairs_finish(list, &last);
    kept = ds__cuda_pairs_flush(kept, &last);
    ds__spinlock_lock(&ds__cuda_activity.lock);
    if (kept) {
        last->next = ds__cuda_activity.first;
        if (!ds__cuda_activity.first)
            ds__cuda_activity.last = last;
        ds__cuda_activity.first = kept;
    }
    int pending = ds__cuda_activity.first != NULL;
    ds__spinlock_unlock(&ds__cuda_activity.lock);
    ds__cuda_bases_renew();
    ds__tls.mute--;
    return pending;
}

static uint64_t ds__cuda_activity_last(const void *object, int is_event) {
    return is_event ? atomic_load(&((const ds__cuda_event *)object)->cause)
                    : atomic_load(&((const ds__cuda_stream *)object)->last_id);
}

/* The oldest pending pair of each stream. While ds__cuda_activity_collect looks at the pairs, there
   are none in the list. */
static size_t ds__cuda_activity_standing(ds__activity_standing *out, size_t room) {
    size_t count = 0;
    ds__spinlock_lock(&ds__cuda_activity.lock);
    for (const ds__cuda_pair *p = ds__cuda_activity.first; p && count < room; p = p->next) {
        size_t i = 0;
        while (i < count && out[i].record.stream.id != p->record.stream.id)
            i++;
        if (i < count || p->complete_ns)
            continue;
        out[count] = (ds__activity_standing){ .record = p->record };
        out[count++].record.begin_ns = 0;
    }
    ds__spinlock_unlock(&ds__cuda_activity.lock);
    return count;
}

/* Returns the operation for which a wait waits; 0: not known, or another operation. */
static uint64_t ds__cuda_wait_cause(const ds__op *op) {
    if (op->kind == DS__OP_WAIT || op->kind == DS__OP_EXTERNAL_WAIT)
        return ds__cuda_activity_last(op->u.event.event, 1);
    return op->kind == DS__OP_WAIT_STREAM ? ds__cuda_activity_last(op->u.wait.stream, 0) : 0;
}

/* Lets the events that an operation records stand for the operation before it, or for the launch of
   the graph that records them. id: of the operation; 0: it has no record. */
static void ds__cuda_causes_set(ds__cuda_stream *s, const ds__op *op, uint64_t id) {
    if (op->kind == DS__OP_RECORD || op->kind == DS__OP_EXTERNAL_RECORD) {
        ds__cuda_event *e = op->u.event.event;
        atomic_store(&e->cause, atomic_load(&s->last_id));
        return;
    }
    if (id)
        atomic_store(&s->last_id, id);
    for (uint32_t i = 0; id && op->kind == DS__OP_GRAPH && i < op->u.graph.body->count; i++) {
        const ds__node *n = op->u.graph.body->node[i];
        if (n->kind == DS_NODE_EVENT_RECORD)
            atomic_store(&((ds__cuda_event *)n->op.u.event.event)->cause, id);
    }
}

static void ds__cuda_activity_set(int on) {
    (void)on;
}

static ds_result ds__cuda_activity_source(int records) {
    if (records)
        return ds__cupti_start();
    ds__cupti_stop();
    return DS_OK;
}

/* Submits an operation, with a record while a recording runs. */
__attribute__((noinline)) static ds_result ds__cuda_submit_noted(ds__cuda_stream *s,
                                                                 const ds__op *op) {
    int usual = ds__captures_open() == 0 && !(op->flags & DS__OP_INSIDE);
    ds__cuda_pair *p = NULL;
    if (atomic_load_explicit(&ds__activity.on, memory_order_relaxed)) {
        ds__tls.mute++;
        ds__activity_tls.cause = ds__cuda_wait_cause(op);
        p = ds__cuda_pair_begin(s, op);
        ds__activity_tls.cause = 0;
        ds__tls.mute--;
    }
    uint64_t id = p ? p->note.correlation_id : 0;
    int named = p && (p->recorded || p->launches);
    if (named)
        ds__cupti_push(id);
    ds_result r = usual ? ds__cuda_put(s, op) : ds__cuda_submit_watched(s, op);
    if (named)
        ds__cupti_pop();
    if (p) {
        ds__tls.mute++;
        ds__cuda_pair_end(s, op, p, r);
        ds__tls.mute--;
    }
    if (r == DS_OK)
        ds__cuda_causes_set(s, op, id);
    return r;
}

/* Frees what the device has for recordings, at the stop of the driver. Inside of a scope. */
static void ds__cuda_activity_end(const ds__cuda_scope *scope, int device) {
    while (ds__cuda_activity.unused[device]) {
        ds__cuda_pair *p = ds__cuda_activity.unused[device];
        ds__cuda_activity.unused[device] = p->next;
        if (p->begin)
            (void)DS__RT_CODE(*scope, cudaEventDestroy, (p->begin));
        if (p->end)
            (void)DS__RT_CODE(*scope, cudaEventDestroy, (p->end));
        ds__host_free(p);
    }
    for (int i = 0; i < 2; i++) {
        if (ds__cuda_activity.base[device][i].event)
            (void)DS__RT_CODE(*scope, cudaEventDestroy, (ds__cuda_activity.base[device][i].event));
        ds__cuda_activity.base[device][i] = (ds__cuda_base){ 0 };
    }
    if (atomic_load(&ds__cuda_activity.clock[device]))
        (void)DS__RT_CODE(*scope, cudaStreamDestroy,
                          (atomic_load(&ds__cuda_activity.clock[device])));
    atomic_store(&ds__cuda_activity.clock[device], NULL);
    ds__cuda_activity.newest[device] = 0;
}

#endif
