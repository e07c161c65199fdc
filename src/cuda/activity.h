/* cuda/activity.h - records of operations by events with timing.

   Records an event before and one behind an operation that activity is recorded of
   (ds__cuda_pair_begin, ds__cuda_pair_end), and writes the record when the second one is complete
   (ds__cuda_activity_collect).

   Policy:
   1. cudaEventElapsedTime returns a float: after 16 seconds its unit is a microsecond. Times are
      therefore measured from a base, an event whose host time is known, and a new base is made
      twice in a second. A device has two of them, since pending pairs refer to the former one.
   2. A base is recorded on a stream of its own and waited for. Its host time is the middle of that;
      if it takes long, because the host is busy, the base is recorded again.
   3. Two bases differ by some microseconds. So that operations of a stream do not overlap, a begin
      is moved to the end of the operation before it.
   4. Whether a stream captures is asked for each operation: in a capture of another library, a
      record of these events would become a node. A wait may bring its stream into a capture, and
      is asked for afterwards, too.

   Invariants: a pair is in one place: the caller's, the list of pending pairs, or the free list of
   its device. The records of a stream are written in the order of the list. Nothing of this room
   changes the result of an operation or the last error of the program.
   Locks: `lock`, for the lists and the users of bases; no call of cudart is made under it.
   Threads: ds__cuda_activity_collect runs on one thread at a time, the rest on any. */
#ifndef DS__CUDA_ACTIVITY_H
#define DS__CUDA_ACTIVITY_H

#include "../base/activity.h"
#include "types.h"
#include "call.h"
#include "stream.h"
#include "host_func.h"
#include "submit.h"
#include "capture_op.h"

enum {
    DS__CUDA_BASE_NS = 500000000, /* time after which a device gets a new base */
    DS__CUDA_BASE_TRIES = 4,
    DS__CUDA_BASE_BEST_NS = 50000, /* a base that was recorded in less time is good enough */
    DS__CUDA_BLOCKED = 64,         /* streams whose records must wait; with more, all others do */
    DS__CUDA_ENDS = 4096
};

/* An operation with an event before and one behind it. */
typedef struct ds__cuda_pair {
    struct ds__cuda_pair *next;
    cudaEvent_t begin;
    cudaEvent_t end;
    int base;
    ds__activity_note note;
    ds_activity record;
} ds__cuda_pair;

typedef struct ds__cuda_base {
    cudaEvent_t event; /* NULL: none */
    uint64_t ns;       /* the host's time of the event */
    size_t users;      /* pairs that refer to it */
} ds__cuda_base;

static struct {
    ds__spinlock lock;
    ds__cuda_pair *unused[DS__MAX_DEVICES];
    ds__cuda_pair *first; /* pending pairs, in the order of enqueueing */
    ds__cuda_pair *last;
    size_t count; /* pairs that are not in a free list */
    ds__cuda_base base[DS__MAX_DEVICES][2];
    int newest[DS__MAX_DEVICES];
    _Atomic(cudaStream_t) clock[DS__MAX_DEVICES]; /* bases are recorded on it */

    /* the last end of streams, for the thread that collects; one place for several streams */
    struct {
        uint64_t stream;
        uint64_t end_ns;
    } ends[DS__CUDA_ENDS];
} ds__cuda_activity;

/* Returns 1 if the device needs a new base, and has room for one. */
static int ds__cuda_base_is_old(int device, uint64_t age_ns) {
    uint64_t now = ds__now_ns();
    ds__spinlock_lock(&ds__cuda_activity.lock);
    int newest = ds__cuda_activity.newest[device];
    const ds__cuda_base *base = ds__cuda_activity.base[device];
    int is_old = !base[newest].event || (now - base[newest].ns > age_ns && !base[!newest].users);
    ds__spinlock_unlock(&ds__cuda_activity.lock);
    return is_old;
}

/* Records an event and finds the host's time of it. Returns 0 after a failure. */
static int ds__cuda_base_measure(const ds__cuda_scope *scope, cudaStream_t stream,
                                 cudaEvent_t event, uint64_t *out_ns) {
    for (int i = 0; i < DS__CUDA_BASE_TRIES; i++) {
        uint64_t from = ds__now_ns();
        if (DS__RT_CODE(*scope, cudaEventRecord, (event, stream)) != cudaSuccess ||
            DS__RT_CODE(*scope, cudaEventSynchronize, (event)) != cudaSuccess)
            return 0;
        uint64_t took = ds__now_ns() - from;
        *out_ns = from + took / 2;
        if (took < DS__CUDA_BASE_BEST_NS)
            break;
    }
    return 1;
}

/* Gives the scope's device a new base. After a failure the device has the former one, or none. */
static void ds__cuda_base_make(const ds__cuda_scope *scope) {
    int device = scope->device;
    cudaStream_t stream;
    cudaEvent_t event = NULL;
    uint64_t ns;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    int made =
        ds__cuda_kept_stream(scope, &ds__cuda_activity.clock[device], &stream) == cudaSuccess &&
        DS__RT_CODE(*scope, cudaEventCreateWithFlags, (&event, 0)) == cudaSuccess;
    if (made && ds__cuda_base_measure(scope, stream, event, &ns)) {
        ds__spinlock_lock(&ds__cuda_activity.lock);
        ds__cuda_base *base = ds__cuda_activity.base[device];
        int at = ds__cuda_activity.newest[device];
        at = base[at].event ? !at : at;
        if (!base[at].users) { /* else another thread was first */
            cudaEvent_t former = base[at].event;
            base[at] = (ds__cuda_base){ .event = event, .ns = ns };
            ds__cuda_activity.newest[device] = at;
            event = former;
        }
        ds__spinlock_unlock(&ds__cuda_activity.lock);
    }
    if (event)
        (void)DS__RT_CODE(*scope, cudaEventDestroy, (event));
    ds__cuda_unrelax(scope, relaxed, mode);
}

/* Takes a pair without events in it, and a reference to the newest base. NULL: there is no base, no
   memory, or too many pairs are pending. */
static ds__cuda_pair *ds__cuda_pair_take(int device) {
    ds__cuda_pair *p = NULL;
    ds__spinlock_lock(&ds__cuda_activity.lock);
    int base = ds__cuda_activity.newest[device];
    int room = ds__cuda_activity.count < ds__activity.capacity &&
               ds__cuda_activity.base[device][base].event != NULL;
    if (room) {
        p = ds__cuda_activity.unused[device];
        ds__cuda_activity.count++;
        ds__cuda_activity.base[device][base].users++;
    }
    if (p)
        ds__cuda_activity.unused[device] = p->next;
    ds__spinlock_unlock(&ds__cuda_activity.lock);
    if (room && !p)
        p = ds__host_alloc(sizeof *p);
    if (p) {
        p->base = base;
        return p;
    }
    if (room) {
        ds__spinlock_lock(&ds__cuda_activity.lock);
        ds__cuda_activity.count--;
        ds__cuda_activity.base[device][base].users--;
        ds__spinlock_unlock(&ds__cuda_activity.lock);
    }
    return NULL;
}

/* Returns a pair to the free list of its device. */
static void ds__cuda_pair_put(int device, ds__cuda_pair *p) {
    ds__spinlock_lock(&ds__cuda_activity.lock);
    ds__cuda_activity.count--;
    ds__cuda_activity.base[device][p->base].users--;
    p->next = ds__cuda_activity.unused[device];
    ds__cuda_activity.unused[device] = p;
    ds__spinlock_unlock(&ds__cuda_activity.lock);
}

/* Creates the events of a pair, unless it has them, and records the first one. Returns 0 after a
   failure. */
static int ds__cuda_pair_record(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                ds__cuda_pair *p) {
    if (!p->begin && DS__RT_CODE(*scope, cudaEventCreateWithFlags, (&p->begin, 0)) != cudaSuccess)
        return 0;
    if (!p->end && DS__RT_CODE(*scope, cudaEventCreateWithFlags, (&p->end, 0)) != cudaSuccess)
        return 0;
    return DS__RT_CODE(*scope, cudaEventRecord, (p->begin, s->handle)) == cudaSuccess;
}

static size_t ds__cuda_batch_bytes(const ds__op *op) {
    size_t bytes = 0;
    for (size_t i = 0; i < op->u.batch.count; i++)
        bytes += op->u.batch.sizes[i];
    return bytes;
}

/* Makes a note of the operation and records the first event. NULL: the operation has no record. */
static ds__cuda_pair *ds__cuda_pair_begin(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds__activity_note note;
    ds__cuda_pair *p = NULL;
    int capturing = 1;
    uint64_t enqueue_ns = ds__now_ns();
    if (op->flags & DS__OP_INSIDE || !ds__activity_note_begin(op, &note))
        return NULL;
    if (ds__cuda_on(&scope, s) < 0) { /* the operation will be refused */
        ds__activity_cancel(&note);
        return NULL;
    }
    if (ds__cuda_is_capturing(&scope, s, &capturing) == DS_OK && !capturing) {
        if (ds__cuda_base_is_old(s->device, 2ull * DS__CUDA_BASE_NS))
            ds__cuda_base_make(&scope);
        p = ds__cuda_pair_take(s->device);
    }
    if (p && !ds__cuda_pair_record(&scope, s, p)) {
        ds__cuda_pair_put(s->device, p);
        p = NULL;
    }
    ds__cuda_scope_end(&scope);
    if (!p) {
        if (capturing)
            ds__activity_cancel(&note);
        else
            ds__activity_drop(&note);
        return NULL;
    }
    p->note = note;
    p->record = ds__activity_record(op, &note, DS_DEVICE_CUDA);
    p->record.enqueue_ns = enqueue_ns;
    p->record.reserved[0] = DS__ACTIVITY_IN_NS;
    p->record.stream.id = s->handle_id;
    p->record.device = ds_cuda(s->device);
    if (op->kind == DS__OP_COPY_BATCH)
        p->record.bytes = ds__cuda_batch_bytes(op);
    return p;
}

/* Records the second event, and lists the pair. result: that of the operation. */
static void ds__cuda_pair_end(ds__cuda_stream *s, const ds__op *op, ds__cuda_pair *p,
                              ds_result result) {
    ds__cuda_scope scope;
    int capturing = result != DS_OK; /* not enqueued, or an operation of a capture */
    int recorded = 0;
    if (!capturing && ds__cuda_on(&scope, s) == DS_OK) {
        if (ds__activity_kind_of(op) == DS_ACTIVITY_WAIT &&
            ds__cuda_is_capturing(&scope, s, &capturing) < 0)
            capturing = 1;
        if (!capturing)
            recorded = DS__RT_CODE(scope, cudaEventRecord, (p->end, s->handle)) == cudaSuccess;
        ds__cuda_scope_end(&scope);
    }
    if (!recorded) {
        ds__activity_note note = p->note;
        ds__cuda_pair_put(s->device, p);
        if (capturing)
            ds__activity_cancel(&note);
        else
            ds__activity_drop(&note);
        return;
    }
    p->next = NULL;
    ds__spinlock_lock(&ds__cuda_activity.lock);
    if (ds__cuda_activity.first)
        ds__cuda_activity.last->next = p;
    else
        ds__cuda_activity.first = p;
    ds__cuda_activity.last = p;
    ds__spinlock_unlock(&ds__cuda_activity.lock);
}

/* Sets the times of a complete pair. Returns the code of a failed call, else 0. */
static int ds__cuda_pair_times(const ds__cuda_scope *scope, ds__cuda_pair *p) {
    /* no other thread changes a base that has users */
    const ds__cuda_base *base = &ds__cuda_activity.base[scope->device][p->base];
    float before = 0;
    float took = 0;
    cudaError_t code = DS__RT_CODE(*scope, cudaEventElapsedTime, (&before, base->event, p->begin));
    if (code == cudaSuccess)
        code = DS__RT_CODE(*scope, cudaEventElapsedTime, (&took, p->begin, p->end));
    if (code != cudaSuccess)
        return (int)code;

    ds_activity *a = &p->record;
    int64_t since = (int64_t)((double)before * 1e6);
    uint64_t begin = (uint64_t)((int64_t)base->ns + since);
    uint64_t end = begin + (took > 0 ? (uint64_t)((double)took * 1e6) : 0);
    size_t place = (size_t)(a->stream.id * 0x9e3779b97f4a7c15u >> 48) % DS__CUDA_ENDS;
    if (begin < a->enqueue_ns)
        begin = a->enqueue_ns;
    if (ds__cuda_activity.ends[place].stream == a->stream.id &&
        begin < ds__cuda_activity.ends[place].end_ns)
        begin = ds__cuda_activity.ends[place].end_ns;
    a->begin_ns = begin;
    a->end_ns = end < begin ? begin : end;
    ds__cuda_activity.ends[place].stream = a->stream.id;
    ds__cuda_activity.ends[place].end_ns = a->end_ns;
    return 0;
}

/* Writes the record of a pair, if it is complete or has failed. Returns 0 if it is pending. */
static int ds__cuda_pair_finish(ds__cuda_pair *p) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    int device = p->record.device.index;
    int code = cudaErrorUnknown;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r == DS_OK) {
        int relaxed = ds__cuda_relax(&scope, &mode);
        DS__DR_CODE(scope, code, cuEventQuery, (p->end));
        if (code == 0)
            code = ds__cuda_pair_times(&scope, p);
        ds__cuda_unrelax(&scope, relaxed, mode);
        ds__cuda_scope_end(&scope);
        if (code == DS__CUDA_NOT_READY)
            return 0;
        r = code ? ds__cuda_map(code) : DS_OK;
    }
    p->record.result = r;
    ds__activity_note note = p->note;
    ds_activity record = p->record;
    ds__cuda_pair_put(device, p);
    ds__activity_write(&record, &note);
    return 1;
}

/* Writes the records of complete pairs. A pair behind a pending one of its stream waits for it.
   Returns the pending pairs in their order, and the last of them. */
static ds__cuda_pair *ds__cuda_pairs_finish(ds__cuda_pair *list, ds__cuda_pair **out_last) {
    uint64_t blocked[DS__CUDA_BLOCKED];
    size_t count = 0;
    ds__cuda_pair *kept = NULL;
    *out_last = NULL;
    while (list) {
        ds__cuda_pair *p = list;
        list = p->next;
        int waits = count == DS__CUDA_BLOCKED;
        for (size_t i = 0; i < count && !waits; i++)
            waits = blocked[i] == p->record.stream.id;
        if (!waits && ds__cuda_pair_finish(p))
            continue;
        if (!waits)
            blocked[count++] = p->record.stream.id;
        p->next = NULL;
        if (kept)
            (*out_last)->next = p;
        else
            kept = p;
        *out_last = p;
    }
    return kept;
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
        if (i < count)
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
    ds_result r = usual ? ds__cuda_put(s, op) : ds__cuda_submit_watched(s, op);
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
