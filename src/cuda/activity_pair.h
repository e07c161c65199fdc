/* cuda/activity_pair.h - pairs of events around operations.

   Records an event before and one behind an operation that activity is recorded of
   (ds__cuda_pair_begin, ds__cuda_pair_end), and lists the pair until cuda/activity.h writes the
   record.

   Policy:
   1. cudaEventElapsedTime returns a float: after 16 seconds its unit is a microsecond. Times are
      therefore measured from a base, an event whose host time is known, and a new base is made
      twice in a second. A device has two of them, since pending pairs refer to the former one.
   2. A base is recorded on a stream of its own and waited for. Its host time is the middle of that;
      if it takes long, because the host is busy, the base is recorded again.
   3. Whether a stream captures is asked for each operation: in a capture of another library, a
      record of these events would become a node. A wait may bring its stream into a capture, and
      is asked for afterwards, too.
   4. If a trace has asked for CUPTI, the times of kernels, fills, and copies between GPUs and
      pinned memory come from its records (cuda/activity_cupti.h). Such an operation has the second
      event only, which says when it is complete. Other operations have no record there, or do more
      than the record says. Launches of graphs have both events, and records as nodes.

   Invariants: a pair is in one place: the caller's, the list of pending pairs, or the free list of
   its device. Nothing of this room changes the result of an operation or the last error of the
   program.
   Locks: `lock`, for the lists and the users of bases; no call of cudart is made under it.
   Threads: any. */
#ifndef DS__CUDA_ACTIVITY_PAIR_H
#define DS__CUDA_ACTIVITY_PAIR_H

#include "../base/activity.h"
#include "types.h"
#include "call.h"
#include "activity_cupti.h"
#include "stream.h"
#include "host_func.h"
#include "submit.h"
#include "capture_op.h"
#include "graph_node.h"

enum {
    DS__CUDA_BASE_NS = 500000000, /* time after which a device gets a new base */
    DS__CUDA_BASE_TRIES = 4,
    DS__CUDA_BASE_BEST_NS = 50000, /* a base that was recorded in less time is good enough */
    DS__CUDA_BLOCKED = 64,         /* streams whose records must wait; with more, all others do */
    DS__CUDA_ENDS = 4096,
    DS__CUDA_CAUSES = 1024,           /* ends of operations, for waits */
    DS__CUDA_LANES = 64,              /* of the nodes of a launch */
    DS__CUDA_FLUSH_NS = 20000000,     /* between two flushes of CUPTI if no caller waits */
    DS__CUDA_HURRY_NS = 1000000,      /* the same if a caller waits */
    DS__CUDA_NODES_NS = 100000000,    /* time for records of nodes after the end of a launch */
    DS__CUDA_PATIENCE_NS = 2000000000 /* time for the record of an operation after its end */
};

/* An operation with an event before and one behind it. */
typedef struct ds__cuda_pair {
    struct ds__cuda_pair *next;
    cudaEvent_t begin;
    cudaEvent_t end;
    int base;
    int recorded; /* 1: times come from CUPTI, and `begin` is not recorded */
    ds_result result;
    uint64_t complete_ns; /* when it was seen to be complete, or failed; 0: pending */
    int launches;         /* 1: CUPTI tells the nodes of the launch */
    size_t expected;      /* nodes that have records, at least */
    ds__cupti_op op;
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

    /* the ends of operations by their ids, for waits; for the same thread */
    struct {
        uint64_t id;
        uint64_t end_ns;
    } causes[DS__CUDA_CAUSES];

    uint64_t round_ns;   /* when the collecting thread began to look at the list */
    uint64_t flushed_ns; /* the last flush of CUPTI */
    uint64_t pending_ns; /* enqueue time of the oldest operation that is not complete */
    int told_all;        /* 1: CUPTI has handed over all records of pairs */
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
    ds__cupti_op_end(&p->op);
    ds__spinlock_lock(&ds__cuda_activity.lock);
    ds__cuda_activity.count--;
    ds__cuda_activity.base[device][p->base].users--;
    p->next = ds__cuda_activity.unused[device];
    ds__cuda_activity.unused[device] = p;
    ds__spinlock_unlock(&ds__cuda_activity.lock);
}

/* Creates the events of a pair, unless it has them, and records the first one if times come from
   it. Returns 0 after a failure. */
static int ds__cuda_pair_record(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                ds__cuda_pair *p) {
    if (!p->begin && DS__RT_CODE(*scope, cudaEventCreateWithFlags, (&p->begin, 0)) != cudaSuccess)
        return 0;
    if (!p->end && DS__RT_CODE(*scope, cudaEventCreateWithFlags, (&p->end, 0)) != cudaSuccess)
        return 0;
    return p->recorded ||
           DS__RT_CODE(*scope, cudaEventRecord, (p->begin, s->handle)) == cudaSuccess;
}

static size_t ds__cuda_batch_bytes(const ds__op *op) {
    size_t bytes = 0;
    for (size_t i = 0; i < op->u.batch.count; i++)
        bytes += op->u.batch.sizes[i];
    return bytes;
}

/* Returns 1 if a copy is one copy of cudart, without host functions: between GPUs, or a GPU and
   pinned memory. */
static int ds__cuda_is_direct(const ds__op *op) {
    int to = ds__place_of(op, DS__OP_DST);
    int from = ds__place_of(op, DS__OP_SRC);
    int least = to < from ? to : from;
    int most = to < from ? from : to;
    return most >= DS__AT_DEVICE && (least == DS__AT_PINNED || least >= DS__AT_DEVICE);
}

/* Decides whether the times of an operation come from CUPTI, and those of its nodes. With CUPTI,
   all operations are listed, for waits. */
static void ds__cuda_pair_source(const ds__op *op, ds__cuda_pair *p,
                                 const ds__activity_note *note) {
    int on = ds__cupti_is_on();
    int used = on && atomic_load(&ds__activity.nodes); /* 0 from the end of the trace on */
    int fills = op->kind == DS__OP_FILL && ds__place_of(op, DS__OP_DST) >= DS__AT_DEVICE;
    int copies = op->kind == DS__OP_COPY && ds__cuda_is_direct(op);
    p->result = DS_OK;
    p->complete_ns = 0;
    p->expected = 0;
    p->recorded = used && (op->kind == DS__OP_KERNEL || fills || copies);
    p->launches = used && op->kind == DS__OP_GRAPH;
    if (on)
        ds__cupti_op_begin(&p->op, note->correlation_id, p->launches);
    for (uint32_t i = 0; p->launches && i < op->u.graph.body->count; i++) {
        const ds__node *n = op->u.graph.body->node[i];
        int type = ds__cuda_type(n);
        p->expected +=
            n->enabled && (type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemcpy ||
                           type == cudaGraphNodeTypeMemset);
    }
}

/* Makes a note of the operation and records the first event. NULL: the operation has no record. */
static ds__cuda_pair *ds__cuda_pair_begin(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds__activity_note note;
    ds__cuda_pair *p = NULL;
    int capturing = 1;
    if (op->flags & DS__OP_INSIDE || !ds__activity_note_begin(op, &note))
        return NULL;
    uint64_t enqueue_ns = ds__now_ns();
    if (ds__cuda_on(&scope, s) < 0) { /* the operation will be refused */
        ds__activity_cancel(&note);
        return NULL;
    }
    if (ds__cuda_is_capturing(&scope, s, &capturing) == DS_OK && !capturing) {
        if (ds__cuda_base_is_old(s->device, 2ull * DS__CUDA_BASE_NS))
            ds__cuda_base_make(&scope);
        p = ds__cuda_pair_take(s->device);
    }
    if (p)
        ds__cuda_pair_source(op, p, &note);
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

#endif
