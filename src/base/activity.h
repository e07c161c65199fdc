/* base/activity.h - records of operations that drivers write.

   Holds the recording of api/activity.h as far as drivers take part: whether one runs
   (ds__activity), the notes of enqueued operations (ds__activity_note_begin), the buffers for
   records (ds__activity_write), and the names of kernels (ds__activity_name). core/activity.h
   starts and stops recordings and hands the records over. The program and the trace layer share
   the notes and the buffers; ds__activity_record is one record for both.

   Policy:
   1. A driver makes a note when it enqueues an operation, keeps the note with the operation, and
      gives it back exactly once: with a record (ds__activity_write), or because the operation was
      not enqueued (ds__activity_cancel). `begun` and `ended` count notes. A recording ends after
      the last one up to `mark`, so a driver that has a note may write its record without a further
      check.
   2. Records go into one of two buffers while the other one is handed over. If it is full, a record
      is dropped and counted.

   Invariants: `on` is 1 only while the buffers exist. With `on` 0 and no pending note no driver
   touches the buffers.
   Locks: `lock` guards the buffers, the list of names, `ended`, `mark` and `left`, for short steps.
   Threads: any. */
#ifndef DS__BASE_ACTIVITY_H
#define DS__BASE_ACTIVITY_H

#include "../api/activity.h"
#include "activity_clock.h"
#include "bookkeeping.h"
#include "driver.h"
#include "thread_block.h"

enum {
    DS__ACTIVITY_IDS = 64,             /* ids that a thread can push */
    DS__ACTIVITY_NAME_BYTES = 1 << 20, /* of all names of kernels */
    /* a kind of records for the trace layer only: a node of a launch. cause_id is the launch, name
       the kernel or the kind, external_id the number of the lane from 1 */
    DS__ACTIVITY_NODE = DS_ACTIVITY_GRAPH + 1,
    DS__ACTIVITY_IN_NS =
        1 /* in `reserved` until a record is handed over: its times are nanoseconds */
};

/* How much a driver should do to get the records of complete operations. */
enum {
    DS__ACTIVITY_CALM,
    DS__ACTIVITY_FLUSH, /* a caller waits for them */
    DS__ACTIVITY_LAST   /* the trace ends: records that do not come now are given up */
};

/* What a driver keeps with an operation until its record is written. */
typedef struct ds__activity_note {
    uint64_t correlation_id; /* 0: none */
    uint64_t external_id;
    uint64_t enqueue_time; /* by ds__activity_clock */
    uint64_t begin_time;   /* the driver's, likewise */
    uint64_t cause;        /* of a wait: ds_activity.cause_id */
    const char *call;
    uint32_t thread;
} ds__activity_note;

/* The operation at which a stream stands. */
typedef struct ds__activity_standing {
    ds_activity record; /* without an end; begin_ns 0: the operation has not begun */
    uint64_t on;        /* handle of the stream that it waits for; 0: none, or not known */
} ds__activity_standing;

typedef struct ds__activity_text {
    struct ds__activity_text *next;
    char text[];
} ds__activity_text;

static struct {
    _Atomic int on;
    _Atomic unsigned kinds; /* bits */
    _Atomic int nodes;      /* 1: nodes of launches have records, too (DS__ACTIVITY_NODE) */
    _Atomic int hurry;      /* DS__ACTIVITY_CALM ..., for drivers whose records come late */
    _Atomic uint64_t begun; /* notes that were made; submitters write this cache line */
    char pad[64];
    _Atomic uint64_t dropped; /* since the last batch; this line is of threads that run */
    _Atomic uint32_t word;    /* the thread that hands over sleeps on it */
    ds__spinlock lock;        /* of the rest */
    int filling;              /* the buffer into which records go */
    size_t count;             /* its records */
    ds_activity *buffer[2];
    _Atomic size_t capacity;
    uint64_t ended;           /* notes that were given back */
    uint64_t mark;            /* the last note that the end of a recording waits for */
    uint64_t left;            /* notes up to `mark` that were not given back */
    ds__activity_text *names; /* until shutdown */
    size_t name_bytes;
} ds__activity;

/* What each thread has. */
static _Thread_local struct {
    uint64_t id[DS__ACTIVITY_IDS];
    unsigned depth;
    uint32_t thread; /* 0: not asked for yet */
    uint64_t last;   /* the note that the thread has made last */
    uint64_t cause;  /* of the wait that the thread enqueues now */
} ds__activity_tls;

/* Returns the kind of record that an operation has; DS_ACTIVITY_NONE: none. */
static ds_activity_kind ds__activity_kind_of(const ds__op *op) {
    switch (op->kind) {
    case DS__OP_KERNEL:
        return DS_ACTIVITY_KERNEL;
    case DS__OP_COPY:
    case DS__OP_COPY_BATCH:
        return DS_ACTIVITY_COPY;
    case DS__OP_FILL:
        return DS_ACTIVITY_FILL;
    case DS__OP_HOST:
    case DS__OP_CALLBACK:
    case DS__OP_CLOSURE:
        return DS_ACTIVITY_HOST_FUNC;
    case DS__OP_RECORD:
    case DS__OP_EXTERNAL_RECORD:
        return DS_ACTIVITY_RECORD;
    case DS__OP_WAIT:
    case DS__OP_WAIT_STREAM:
    case DS__OP_EXTERNAL_WAIT:
    case DS__OP_REMOTE:
        return DS_ACTIVITY_WAIT;
    case DS__OP_VALUES:
        return DS_ACTIVITY_VALUES;
    case DS__OP_GRAPH:
        return DS_ACTIVITY_GRAPH;
    default:
        return DS_ACTIVITY_NONE;
    }
}

/* Wakes the thread that hands records over. */
DS__SEAM static void ds__activity_wake(void) {
    atomic_fetch_add(&ds__activity.word, 1);
    ds__futex_wake(&ds__activity.word, 1);
}

/* Counts a note as given back. `lock` is held. */
static inline void ds__activity_return(uint64_t number) {
    ds__activity.ended++;
    if (number <= ds__activity.mark)
        ds__activity.left--;
}

/* Makes a note of an operation that is about to be enqueued. Returns 0, without a note, if no
   recording runs or the kind is not recorded. */
DS__SEAM static int ds__activity_note_begin(const ds__op *op, ds__activity_note *out) {
    unsigned kinds = atomic_load_explicit(&ds__activity.kinds, memory_order_relaxed);
    ds_activity_kind kind = ds__activity_kind_of(op);
    out->correlation_id = 0;
    ds__activity_tls.last = 0;
    if (kind == DS_ACTIVITY_NONE || !(kinds >> kind & 1))
        return 0;
    /* seq_cst: either the end of the recording sees the note, or this thread sees the end */
    uint64_t number = atomic_fetch_add(&ds__activity.begun, 1) + 1;
    if (!atomic_load(&ds__activity.on)) {
        ds__spinlock_lock(&ds__activity.lock);
        ds__activity_return(number);
        ds__spinlock_unlock(&ds__activity.lock);
        return 0;
    }
    if (!ds__activity_tls.thread)
        ds__activity_tls.thread = ds__os_thread_id();
    unsigned depth = ds__activity_tls.depth;
    ds__activity_tls.last = number;
    out->correlation_id = number;
    out->cause = kind == DS_ACTIVITY_WAIT ? ds__activity_tls.cause : 0;
    out->external_id = depth ? ds__activity_tls.id[depth - 1] : 0;
    out->call = ds__tls.fn;
    out->thread = ds__activity_tls.thread;
    out->begin_time = 0;
    out->enqueue_time = ds__activity_clock_early();
    return 1;
}

/* Gives a note back without a record. */
DS__SEAM static void ds__activity_cancel(ds__activity_note *note) {
    ds__spinlock_lock(&ds__activity.lock);
    ds__activity_return(note->correlation_id);
    ds__spinlock_unlock(&ds__activity.lock);
    note->correlation_id = 0;
}

/* Gives a note back, and counts its operation as one without a record. */
DS__SEAM static void ds__activity_drop(ds__activity_note *note) {
    atomic_fetch_add_explicit(&ds__activity.dropped, 1, memory_order_relaxed);
    ds__activity_cancel(note);
}

/* Adds a copy of a name, which then lives until shutdown. Returns 0 if there are too many bytes of
   names. `lock` is held. */
static int ds__activity_text_add(ds__activity_text *text) {
    size_t size = strlen(text->text) + 1;
    if (ds__activity.name_bytes + size > DS__ACTIVITY_NAME_BYTES)
        return 0;
    ds__activity.name_bytes += size;
    text->next = ds__activity.names;
    ds__activity.names = text;
    return 1;
}

/* Returns a copy of the kernel's name that lives until shutdown: the kernel may be gone when the
   record is handed over. */
DS__SEAM static const char *ds__activity_name(ds__kernel *k) {
    const char *name = atomic_load_explicit(&k->recorded_name, memory_order_acquire);
    if (DS__LIKELY(name != NULL))
        return name;
    if (k->ours) /* a literal; the kernel outlives ds_shutdown, which frees the copies */
        return k->name;
    size_t size = strlen(k->name) + 1;
    ds__activity_text *text = ds__host_alloc(sizeof *text + size);
    if (!text)
        return "?";
    memcpy(text->text, k->name, size);
    ds__spinlock_lock(&ds__activity.lock);
    name = atomic_load_explicit(&k->recorded_name, memory_order_relaxed);
    if (!name && ds__activity_text_add(text)) {
        name = text->text;
        text = NULL;
        atomic_store_explicit(&k->recorded_name, name, memory_order_release);
    }
    ds__spinlock_unlock(&ds__activity.lock);
    ds__host_free(text);
    return name ? name : "?";
}

/* Returns the copy of a name that no kernel of the library has, or NULL. `lock` is held. */
static ds__activity_text *ds__activity_text_find(const char *name) {
    ds__activity_text *text = ds__activity.names;
    while (text && strcmp(text->text, name) != 0)
        text = text->next;
    return text;
}

/* Returns a copy of a name that no kernel of the library has, likewise. */
DS__SEAM static const char *ds__activity_text_keep(const char *name) {
    ds__spinlock_lock(&ds__activity.lock);
    const ds__activity_text *found = ds__activity_text_find(name);
    ds__spinlock_unlock(&ds__activity.lock);
    if (found)
        return found->text;
    size_t size = strlen(name) + 1;
    ds__activity_text *fresh = ds__host_alloc(sizeof *fresh + size);
    if (!fresh)
        return "?";
    memcpy(fresh->text, name, size);
    ds__spinlock_lock(&ds__activity.lock);
    found = ds__activity_text_find(name); /* another thread may have added it */
    if (!found && ds__activity_text_add(fresh)) {
        found = fresh;
        fresh = NULL;
    }
    ds__spinlock_unlock(&ds__activity.lock);
    ds__host_free(fresh);
    return found ? found->text : "?";
}

/* Returns the device of an operand by its place; zeroed if it is not known. */
static ds_device ds__activity_device_of(const ds__op *op, int operand, ds_device_type type) {
    int place = ds__place_of(op, operand);
    ds_device device = { 0 };
    if (place >= DS__AT_DEVICE) {
        device.type = (int32_t)type;
        device.index = place - DS__AT_DEVICE;
    } else if (place != DS__AT_UNKNOWN && place != DS__AT_OTHER) {
        device.type = DS_DEVICE_HOST;
    }
    return device;
}

static const char *ds__activity_kind_name(ds_activity_kind kind) {
    static const char *const names[] = { "none",   "kernel", "copy",   "fill", "host function",
                                         "record", "wait",   "values", "graph" };
    return (unsigned)kind <= DS_ACTIVITY_GRAPH ? names[kind] : "unknown";
}

/* Fills a record from an operation and its note. The driver adds stream, device, the end, result
   and the number of bytes of a batch. Times are those of the clock until the record is handed over.
   */
DS__SEAM static ds_activity ds__activity_record(const ds__op *op, const ds__activity_note *note,
                                                ds_device_type type) {
    ds_activity a = { .kind = ds__activity_kind_of(op),
                      .begin_ns = note->begin_time,
                      .enqueue_ns = note->enqueue_time,
                      .correlation_id = note->correlation_id,
                      .external_id = note->external_id,
                      .cause_id = note->cause,
                      .call = note->call,
                      .file = op->file,
                      .line = op->file ? op->line : 0,
                      .thread = note->thread };
    if (op->kind == DS__OP_KERNEL) {
        a.name = ds__activity_name(op->u.kernel.kernel);
        a.count = op->u.kernel.items;
    } else if (op->kind == DS__OP_VALUES) {
        a.count = op->u.values.count;
    } else if (op->kind == DS__OP_REMOTE) {
        a.name = op->u.remote.name;
        a.bytes = op->u.remote.bytes;
    } else if (op->kind == DS__OP_COPY || op->kind == DS__OP_FILL) {
        a.bytes = ds__op_bytes(op);
        a.dst_device = ds__activity_device_of(op, DS__OP_DST, type);
        if (op->kind == DS__OP_COPY)
            a.src_device = ds__activity_device_of(op, DS__OP_SRC, type);
    }
    return a;
}

/* Takes the place of the next record, with the lock. NULL: there is none. */
static inline ds_activity *ds__activity_place(void) {
    ds__spinlock_lock(&ds__activity.lock);
    size_t n = ds__activity.count;
    if (DS__UNLIKELY(n == atomic_load_explicit(&ds__activity.capacity, memory_order_relaxed)))
        return NULL;
    ds__activity.count = n + 1;
    return &ds__activity.buffer[ds__activity.filling][n];
}

/* Releases the lock when the record is written. number: the note that is given back, or 0. */
static inline void ds__activity_placed(const ds_activity *place, uint64_t number) {
    size_t n = ds__activity.count;
    int is_half = n == atomic_load_explicit(&ds__activity.capacity, memory_order_relaxed) / 2;
    if (number)
        ds__activity_return(number);
    ds__spinlock_unlock(&ds__activity.lock);
    if (DS__UNLIKELY(!place))
        atomic_fetch_add_explicit(&ds__activity.dropped, 1, memory_order_relaxed);
    else if (DS__UNLIKELY(is_half))
        ds__activity_wake();
}

/* Writes a record. note: is given back, or NULL for the record of a node, whose launch has a note
   that is not given back yet. */
DS__SEAM static void ds__activity_write(const ds_activity *record, ds__activity_note *note) {
    ds_activity *place = ds__activity_place();
    if (place)
        *place = *record;
    ds__activity_placed(place, note ? note->correlation_id : 0);
    if (note)
        note->correlation_id = 0;
}

#endif
