/* cuda/activity_cupti.h - times of operations from CUPTI's records.

   While `on` is 1, CUPTI writes records of kernels, copies and fills into buffers of this room, and
   hands them back from threads of its own (ds__cupti_completed). Each belongs to an operation that
   is listed (ds__cupti_op_begin). cuda/activity.h reads the times when the operation is complete.

   Policy:
   1. The id of an operation is pushed as an external id around its submission. CUPTI then tells the
      correlation id of each call of CUDA in it, in a record of its own (a link), and a record of
      device work has the correlation id of its call. Links exist for calls with records only, so
      records of calls are enabled, too, and ignored.
   2. Records come late and in any order. Device work without a link waits in a ring of
      DS__CUPTI_ORPHANS records; most of it belongs to operations that other libraries have
      enqueued, and is overwritten.
   3. CUPTI's clock is compared with the host's at each flush. A time is converted on the line
      through the two nearest comparisons; a time behind the last one is extrapolated.
   4. If all buffers are full, CUPTI drops records. An operation without a record has no times.

   Invariants: an operation is listed at most once, and its links only while it is. Buffers that
   CUPTI holds are not freed; they return later, or stay until the process ends.
   Locks: `control` is held by start, stop and flush, and over calls of CUPTI in them. `lock` guards
   operations, links, orphans and buffers, for short steps, in CUPTI's callbacks, too; then
   ds__activity.lock may be taken for a name. CUPTI is not called under `lock`.
   Threads: any. The thread of the recordings flushes and converts times. */
#ifndef DS__CUDA_ACTIVITY_CUPTI_H
#define DS__CUDA_ACTIVITY_CUPTI_H

#include "../base/activity.h"
#include "../base/error.h"
#include "../base/log.h"
#include "cupti.h"

enum {
    DS__CUPTI_BUFFER = 1 << 18, /* bytes */
    DS__CUPTI_BUFFERS = 64,
    DS__CUPTI_BUCKETS = 1024,
    DS__CUPTI_ORPHANS = 8192,
    DS__CUPTI_CLOCKS = 256,         /* comparisons of the clocks that are kept */
    DS__CUPTI_CLOCK_NS = 100000000, /* between two that are kept */
    DS__CUPTI_NAMES = 256,          /* names of kernels that are found by their address */
    DS__CUPTI_NODES = 1 << 20       /* records of one launch */
};

/* Device work, as far as a record tells it. */
typedef struct ds__cupti_work {
    uint32_t correlation;
    uint32_t kind;
    uint64_t start; /* by CUPTI's clock; 0: not known */
    uint64_t end;
    uint64_t bytes;
    const char *name; /* of a kernel */
} ds__cupti_work;

/* A call of CUDA in the submission of an operation. */
typedef struct ds__cupti_link {
    struct ds__cupti_link *next;    /* in its bucket */
    struct ds__cupti_link *sibling; /* of the operation */
    struct ds__cupti_op *op;
    uint32_t correlation;
} ds__cupti_link;

/* An operation whose times come from records. */
typedef struct ds__cupti_op {
    struct ds__cupti_op *next; /* in its bucket */
    ds__cupti_link *links;
    uint64_t id; /* 0: not listed */
    int keeps;   /* 1: keeps each record, as nodes of a launch */
    int lost;    /* 1: a record had no times */
    size_t records;
    uint64_t bytes;
    uint64_t start; /* of the earliest record */
    uint64_t end;   /* of the latest one */
    ds__cupti_work *work;
    size_t room;
} ds__cupti_op;

static struct {
    _Atomic int on;
    ds__mutex control;
    ds__spinlock lock;
    ds__cupti_library l;
    void *subscriber;
    _Atomic size_t dropped; /* records, as CUPTI counts them */
    ds__cupti_op *op[DS__CUPTI_BUCKETS];
    ds__cupti_link *link[DS__CUPTI_BUCKETS];

    struct {
        uint8_t *at;
        int lent;
    } buffer[DS__CUPTI_BUFFERS];

    struct {
        ds__cupti_work work; /* kind 0: none */
        uint32_t next;       /* in its bucket: index and 1 */
    } orphan[DS__CUPTI_ORPHANS];

    uint32_t orphans[DS__CUPTI_BUCKETS]; /* the first of each bucket: index and 1 */
    uint32_t next_orphan;

    struct {
        const char *of;
        const char *name;
    } names[DS__CUPTI_NAMES];

    size_t clocks; /* comparisons of the clocks; ticks: CUPTI's time */
    ds__clock_pair clock[DS__CUPTI_CLOCKS];
} ds__cupti = { .control = DS__MUTEX_INIT };

/* ---- clocks ---- */

/* Compares the clocks. Of several tries, the one counts that was interrupted least. */
static void ds__cupti_clock_compare(void) {
    ds__clock_pair best = { 0, 0 };
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < DS__CLOCK_TRIES; i++) {
        uint64_t ticks = 0;
        uint64_t from = ds__now_ns();
        int code = ds__cupti.l.time(&ticks);
        uint64_t took = ds__now_ns() - from;
        if (code == 0 && took < shortest) {
            shortest = took;
            best = (ds__clock_pair){ ticks, from + took / 2 };
        }
    }
    ds__spinlock_lock(&ds__cupti.lock);
    size_t n = ds__cupti.clocks;
    ds__clock_pair *c = ds__cupti.clock;
    ds__clock_pair last = n ? c[(n - 1) % DS__CUPTI_CLOCKS] : (ds__clock_pair){ 0, 0 };
    if (best.ticks > last.ticks && best.ns > last.ns) {
        /* the last one is replaced until it is far enough from the one before */
        if (n > 1 && last.ns - c[(n - 2) % DS__CUPTI_CLOCKS].ns < DS__CUPTI_CLOCK_NS)
            n--;
        c[n % DS__CUPTI_CLOCKS] = best;
        ds__cupti.clocks = n + 1;
    }
    ds__spinlock_unlock(&ds__cupti.lock);
}

/* Returns the host's time of a time of CUPTI. */
static uint64_t ds__cupti_ns(uint64_t time) {
    ds__spinlock_lock(&ds__cupti.lock);
    size_t n = ds__cupti.clocks;
    size_t oldest = n > DS__CUPTI_CLOCKS ? n - DS__CUPTI_CLOCKS : 0;
    size_t i = n > 1 ? n - 2 : 0;
    while (i > oldest && ds__cupti.clock[i % DS__CUPTI_CLOCKS].ticks > time)
        i--;
    ds__clock_pair a = ds__cupti.clock[i % DS__CUPTI_CLOCKS];
    ds__clock_pair b = n > 1 ? ds__cupti.clock[(i + 1) % DS__CUPTI_CLOCKS] : a;
    ds__spinlock_unlock(&ds__cupti.lock);
    double rate = b.ticks > a.ticks ? (double)(b.ns - a.ns) / (double)(b.ticks - a.ticks) : 1;
    return a.ns + (uint64_t)(int64_t)((double)(int64_t)(time - a.ticks) * rate);
}

/* ---- operations, links and orphans; `lock` is held ---- */

static ds__cupti_op *ds__cupti_op_find(uint64_t id) {
    ds__cupti_op *op = ds__cupti.op[id % DS__CUPTI_BUCKETS];
    while (op && op->id != id)
        op = op->next;
    return op;
}

static ds__cupti_link *ds__cupti_link_find(uint32_t correlation) {
    ds__cupti_link *link = ds__cupti.link[correlation % DS__CUPTI_BUCKETS];
    while (link && link->correlation != correlation)
        link = link->next;
    return link;
}

/* Keeps work as a node. Without memory, the launch lacks the node. */
static void ds__cupti_work_keep(ds__cupti_op *op, const ds__cupti_work *w) {
    if (op->records == op->room) {
        size_t room = op->room ? 2 * op->room : 16;
        ds__cupti_work *fresh =
            room <= DS__CUPTI_NODES ? ds__host_alloc(room * sizeof *fresh) : NULL;
        if (!fresh)
            return;
        if (op->records)
            memcpy(fresh, op->work, op->records * sizeof *fresh);
        ds__host_free(op->work);
        op->work = fresh;
        op->room = room;
    }
    op->work[op->records] = *w;
}

/* Adds device work to its operation. */
static void ds__cupti_work_add(ds__cupti_op *op, const ds__cupti_work *w) {
    if (!w->start || w->end < w->start) {
        op->lost = 1;
        return;
    }
    if (op->keeps) {
        ds__cupti_work_keep(op, w);
        if (op->records == op->room)
            return;
    }
    if (!op->records || w->start < op->start)
        op->start = w->start;
    if (!op->records || w->end > op->end)
        op->end = w->end;
    op->bytes += w->bytes;
    op->records++;
}

/* Takes an orphan out of its bucket. */
static void ds__cupti_orphan_remove(uint32_t index) {
    uint32_t bucket = ds__cupti.orphan[index].work.correlation % DS__CUPTI_BUCKETS;
    uint32_t *at = &ds__cupti.orphans[bucket];
    while (*at != index + 1)
        at = &ds__cupti.orphan[*at - 1].next;
    *at = ds__cupti.orphan[index].next;
    ds__cupti.orphan[index].work.kind = 0;
}

/* Keeps work whose link has not come; the oldest orphan makes room. */
static void ds__cupti_orphan_add(const ds__cupti_work *w) {
    uint32_t index = ds__cupti.next_orphan++ % DS__CUPTI_ORPHANS;
    uint32_t *bucket = &ds__cupti.orphans[w->correlation % DS__CUPTI_BUCKETS];
    if (ds__cupti.orphan[index].work.kind)
        ds__cupti_orphan_remove(index);
    ds__cupti.orphan[index].work = *w;
    ds__cupti.orphan[index].next = *bucket;
    *bucket = index + 1;
}

/* Gives an operation the orphans of a call. */
static void ds__cupti_orphans_take(ds__cupti_op *op, uint32_t correlation) {
    uint32_t at = ds__cupti.orphans[correlation % DS__CUPTI_BUCKETS];
    while (at) {
        uint32_t index = at - 1;
        at = ds__cupti.orphan[index].next;
        if (ds__cupti.orphan[index].work.correlation != correlation)
            continue;
        ds__cupti_work_add(op, &ds__cupti.orphan[index].work);
        ds__cupti_orphan_remove(index);
    }
}

/* Adds the call of an external id to its operation. Without memory, its work stays an orphan. */
static void ds__cupti_link_add(const ds__cupti_external *e) {
    ds__cupti_op *op = ds__cupti_op_find(e->id);
    ds__cupti_link *former = ds__cupti_link_find(e->correlation);
    if (!op || (former && former->op == op))
        return;
    ds__cupti_link *link = ds__host_alloc(sizeof *link);
    if (!link)
        return;
    link->op = op;
    link->correlation = e->correlation;
    link->sibling = op->links;
    op->links = link;
    link->next = ds__cupti.link[e->correlation % DS__CUPTI_BUCKETS];
    ds__cupti.link[e->correlation % DS__CUPTI_BUCKETS] = link;
    ds__cupti_orphans_take(op, e->correlation);
}

/* ---- records ---- */

/* Returns a copy of the name of a kernel that lives until shutdown. */
static const char *ds__cupti_name(const char *of) {
    if (!of)
        return "?";
    size_t at = ((uintptr_t)of >> 4) % DS__CUPTI_NAMES;
    if (ds__cupti.names[at].of == of && strcmp(ds__cupti.names[at].name, of) == 0)
        return ds__cupti.names[at].name;
    ds__cupti.names[at].of = of;
    ds__cupti.names[at].name = ds__activity_text_keep(of);
    return ds__cupti.names[at].name;
}

/* Takes a record. */
static void ds__cupti_take(const void *record) {
    ds__cupti_work w = { .kind = *(const uint32_t *)record };
    if (w.kind == DS__CUPTI_KERNEL) {
        const ds__cupti_kernel *k = record;
        w = (ds__cupti_work){ k->correlation, w.kind, k->start,
                              k->end,         0,      k->node ? ds__cupti_name(k->name) : NULL };
    } else if (w.kind == DS__CUPTI_COPY) {
        const ds__cupti_copy *c = record;
        w = (ds__cupti_work){ c->correlation, w.kind, c->start, c->end, c->bytes, NULL };
    } else if (w.kind == DS__CUPTI_PEER_COPY) {
        const ds__cupti_peer_copy *c = record;
        w = (ds__cupti_work){ c->correlation, w.kind, c->start, c->end, c->bytes, NULL };
    } else if (w.kind == DS__CUPTI_FILL) {
        const ds__cupti_fill *f = record;
        w = (ds__cupti_work){ f->correlation, w.kind, f->start, f->end, f->bytes, NULL };
    } else if (w.kind == DS__CUPTI_EXTERNAL) {
        const ds__cupti_external *e = record;
        if (e->external_kind == DS__CUPTI_CUSTOM1)
            ds__cupti_link_add(e);
        return;
    } else {
        return;
    }
    ds__cupti_link *link = ds__cupti_link_find(w.correlation);
    if (link)
        ds__cupti_work_add(link->op, &w);
    else
        ds__cupti_orphan_add(&w);
}

/* CUPTI asks for a buffer. Without one it drops records, and counts them. */
static void ds__cupti_requested(uint8_t **buffer, size_t *size, size_t *records) {
    *buffer = NULL;
    *size = *records = 0;
    ds__spinlock_lock(&ds__cupti.lock);
    for (int i = 0; i < DS__CUPTI_BUFFERS && !*buffer; i++) {
        if (ds__cupti.buffer[i].lent)
            continue;
        if (!ds__cupti.buffer[i].at)
            ds__cupti.buffer[i].at = ds__host_alloc(DS__CUPTI_BUFFER);
        if (!ds__cupti.buffer[i].at)
            break;
        ds__cupti.buffer[i].lent = 1;
        *buffer = ds__cupti.buffer[i].at;
        *size = DS__CUPTI_BUFFER;
    }
    ds__spinlock_unlock(&ds__cupti.lock);
}

/* Adds the records that CUPTI has dropped since the last call. NULL, 0: from its global queue. */
static void ds__cupti_count_dropped(void *context, uint32_t stream) {
    size_t dropped = 0;
    if (ds__cupti.l.dropped(context, stream, &dropped) == 0)
        atomic_fetch_add(&ds__cupti.dropped, dropped);
}

/* CUPTI gives a buffer back. */
static void ds__cupti_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                                size_t valid) {
    void *record = NULL;
    (void)size;
    int on = atomic_load(&ds__cupti.on);
    while (on && valid && ds__cupti.l.next(buffer, valid, &record) == 0) {
        ds__spinlock_lock(&ds__cupti.lock);
        ds__cupti_take(record);
        ds__spinlock_unlock(&ds__cupti.lock);
    }
    if (on)
        ds__cupti_count_dropped(context, stream);
    ds__spinlock_lock(&ds__cupti.lock);
    for (int i = 0; i < DS__CUPTI_BUFFERS; i++)
        if (ds__cupti.buffer[i].at == buffer)
            ds__cupti.buffer[i].lent = 0;
    ds__spinlock_unlock(&ds__cupti.lock);
}

/* ---- for the recording ---- */

/* Returns 1 if times come from CUPTI. */
static inline int ds__cupti_is_on(void) {
    return atomic_load_explicit(&ds__cupti.on, memory_order_relaxed);
}

/* Lists an operation before its submission. keeps: 1: keeps each record. */
static void ds__cupti_op_begin(ds__cupti_op *op, uint64_t id, int keeps) {
    ds__spinlock_lock(&ds__cupti.lock);
    *op = (ds__cupti_op){ .id = id, .keeps = keeps, .next = ds__cupti.op[id % DS__CUPTI_BUCKETS] };
    ds__cupti.op[id % DS__CUPTI_BUCKETS] = op;
    ds__spinlock_unlock(&ds__cupti.lock);
}

/* Takes an operation off the list, unless it is not listed. Records that come later are ignored. */
static void ds__cupti_op_end(ds__cupti_op *op) {
    if (!op->id)
        return;
    ds__spinlock_lock(&ds__cupti.lock);
    ds__cupti_op **at = &ds__cupti.op[op->id % DS__CUPTI_BUCKETS];
    while (*at != op)
        at = &(*at)->next;
    *at = op->next;
    while (op->links) {
        ds__cupti_link *link = op->links;
        ds__cupti_link **place = &ds__cupti.link[link->correlation % DS__CUPTI_BUCKETS];
        while (*place != link)
            place = &(*place)->next;
        *place = link->next;
        op->links = link->sibling;
        ds__host_free(link);
    }
    op->id = 0;
    ds__spinlock_unlock(&ds__cupti.lock);
    ds__host_free(op->work);
    op->work = NULL;
}

/* Returns 1 if an operation is listed. */
static int ds__cupti_is_listed(uint64_t id) {
    ds__spinlock_lock(&ds__cupti.lock);
    int is_listed = ds__cupti_op_find(id) != NULL;
    ds__spinlock_unlock(&ds__cupti.lock);
    return is_listed;
}

/* Names the operation that the calling thread submits now. */
static void ds__cupti_push(uint64_t id) {
    (void)ds__cupti.l.push(DS__CUPTI_CUSTOM1, id);
}

static void ds__cupti_pop(void) {
    uint64_t id;
    (void)ds__cupti.l.pop(DS__CUPTI_CUSTOM1, &id);
}

/* Lets CUPTI hand over the records that it has. forced: also buffers with incomplete records. */
static void ds__cupti_flush(int forced) {
    ds__mutex_lock(&ds__cupti.control);
    if (atomic_load(&ds__cupti.on)) {
        (void)ds__cupti.l.flush(forced ? DS__CUPTI_FORCED : 0);
        ds__cupti_clock_compare();
    }
    ds__mutex_unlock(&ds__cupti.control);
}

static const int ds__cupti_kinds[] = { DS__CUPTI_EXTERNAL, DS__CUPTI_RUNTIME, DS__CUPTI_DRIVER,
                                       DS__CUPTI_KERNEL,   DS__CUPTI_COPY,    DS__CUPTI_PEER_COPY,
                                       DS__CUPTI_FILL };

/* Stops the collection of the first kinds, and ends the subscription. */
static void ds__cupti_disable(size_t count) {
    while (count > 0)
        (void)ds__cupti.l.disable(ds__cupti_kinds[--count]);
    (void)ds__cupti.l.unsubscribe(ds__cupti.subscriber);
    ds__cupti.subscriber = NULL;
}

/* Not called, since no callbacks are enabled. */
static void ds__cupti_callback(void *user, int domain, uint32_t id, const void *data) {
    (void)user;
    (void)domain;
    (void)id;
    (void)data;
}

static ds_result ds__cupti_refuse(ds_result r, const char *function, int code) {
    const char *text = NULL;
    (void)ds__cupti.l.text(code, &text);
    return ds__fail(r, "trace: CUPTI (%.150s): %s returned %d (%.100s)%s", ds__cupti.l.name,
                    function, code, text ? text : "?",
                    code == DS__CUPTI_ONE_SUBSCRIBER
                        ? "; another tool uses CUPTI in this process, so leave out \"cupti\""
                        : "");
}

/* Subscribes to CUPTI and starts the collection. `control` is held. */
static ds_result ds__cupti_enable(void) {
    size_t n = 0;
    const size_t count = sizeof ds__cupti_kinds / sizeof ds__cupti_kinds[0];
    int code = ds__cupti.l.subscribe(&ds__cupti.subscriber, ds__cupti_callback, NULL);
    if (code == DS__CUPTI_ONE_SUBSCRIBER)
        return ds__cupti_refuse(DS_ERR_ILLEGAL_STATE, "cuptiSubscribe", code);
    if (code)
        return ds__cupti_refuse(DS_ERR_DRIVER, "cuptiSubscribe", code);
    code = ds__cupti.l.callbacks(ds__cupti_requested, ds__cupti_completed);
    const char *function = code ? "cuptiActivityRegisterCallbacks" : "cuptiActivityEnable";
    while (!code && n < count) {
        code = ds__cupti.l.enable(ds__cupti_kinds[n]);
        n += code == 0;
    }
    if (!code)
        return DS_OK;
    ds__cupti_disable(n);
    return ds__cupti_refuse(DS_ERR_DRIVER, function, code);
}

/* Lets times come from CUPTI. */
static ds_result ds__cupti_start(void) {
    ds__mutex_lock(&ds__cupti.control);
    ds_result r = ds__cupti_load(&ds__cupti.l);
    if (r == DS_OK)
        r = ds__cupti_enable();
    if (r == DS_OK) {
        ds__spinlock_lock(&ds__cupti.lock);
        ds__cupti.clocks = 0;
        ds__spinlock_unlock(&ds__cupti.lock);
        atomic_store(&ds__cupti.dropped, 0);
        ds__cupti_clock_compare();
        atomic_store(&ds__cupti.on, 1);
    }
    ds__mutex_unlock(&ds__cupti.control);
    return r;
}

/* Stops the collection, unless it is off. Operations that are listed keep the records that they
   have. */
static void ds__cupti_stop(void) {
    ds__mutex_lock(&ds__cupti.control);
    if (atomic_exchange(&ds__cupti.on, 0)) {
        (void)ds__cupti.l.flush(DS__CUPTI_FORCED);
        ds__cupti_count_dropped(NULL, 0); /* since the last buffer was completed */
        ds__cupti_disable(sizeof ds__cupti_kinds / sizeof ds__cupti_kinds[0]);
        ds__spinlock_lock(&ds__cupti.lock);
        memset(ds__cupti.orphan, 0, sizeof ds__cupti.orphan);
        memset(ds__cupti.orphans, 0, sizeof ds__cupti.orphans);
        memset(ds__cupti.names, 0, sizeof ds__cupti.names);
        for (int i = 0; i < DS__CUPTI_BUFFERS; i++)
            if (!ds__cupti.buffer[i].lent) {
                ds__host_free(ds__cupti.buffer[i].at);
                ds__cupti.buffer[i].at = NULL;
            }
        ds__spinlock_unlock(&ds__cupti.lock);
        size_t dropped = atomic_exchange(&ds__cupti.dropped, 0);
        if (dropped)
            ds__log_warn("trace: CUPTI has dropped %zu records; operations without one have no "
                         "times",
                         dropped);
    }
    ds__mutex_unlock(&ds__cupti.control);
}

#endif
