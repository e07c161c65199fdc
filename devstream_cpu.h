/* devstream_cpu.h - the CPU driver of devstream: virtual devices on threads that keep CUDA's rules.

   Do this: nothing. devstream.h takes this file in from beside it; this file alone takes in devstream.h.
   Link: -pthread.

   It exists so that a program without a GPU is still the same program, and so that tests on a laptop find real ordering
   bugs: work is asynchronous, streams run side by side, an operation starts only when what it waits for is done, a
   failure is sticky for its device, and a copy that touches pageable memory blocks, as on a GPU.

   Options: fill a ds_cpu_desc and hand it to ds_init, or set the environment variables in brackets.
   Contents: options and counters; implementation (sections below).
   Licence: MIT or public domain, at your choice; see the end of this file. */

#if !defined(DEVSTREAM_H_INCLUDED)
#include "devstream.h"
#endif
#ifndef DEVSTREAM_CPU_H_INCLUDED
#define DEVSTREAM_CPU_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DS_CPU_INLINE = 1,  /**< every call runs its work before it returns, for debugging [DEVSTREAM_CPU_INLINE=1] */
    DS_CPU_NO_SPIN = 2  /**< threads sleep at once instead of spinning for a few tens of microseconds first */
};

/** Options of the CPU driver; zero means default. */
typedef struct ds_cpu_desc {
    int devices;                      /**< virtual devices, 1 to 64; 0: 1 [DEVSTREAM_CPU_DEVICES] */
    int workers;                      /**< threads that run copies, fills and kernels, 1 to 256; 0: one per processor, at
                                           least 2 [DEVSTREAM_CPU_WORKERS] */
    size_t memory_limit;              /**< bytes of each device; 0: the machine's memory */
    const unsigned char *peer_access; /**< devices x devices, row = device that reaches, 1 = can; NULL: all can */
    unsigned flags;                   /**< DS_CPU_* */
    uint64_t seed;                    /**< not 0: a scheduler that takes ready streams in a random order drawn from this seed,
                                           one operation at a time, to bring out ordering bugs [DEVSTREAM_CPU_SEED] */
} ds_cpu_desc;

/** Counters of the CPU driver since it was initialised, for tests and reports. */
typedef struct ds_cpu_stats {
    uint64_t operations;    /**< operations finished */
    uint64_t staged_copies; /**< copies between devices that cannot reach each other */
    uint64_t inline_operations; /**< operations that the calling thread ran at once on an idle stream */
    uint64_t helped;        /**< times a waiting host thread ran a stream */
    int workers;            /**< worker threads */
    int host_threads;       /**< threads for host functions, so far */
    int streams;            /**< streams alive, destroyed ones that still have work included */
    size_t queue_bytes;     /**< memory that holds pending operations, spare blocks included */
} ds_cpu_stats;

/** Reads the counters; zeros before first use. Any thread, also while work runs. */
DSDEF DS_MUST_USE ds_result ds_cpu_get_stats(ds_cpu_stats *out);

#ifdef __cplusplus
}
#endif
#endif /* DEVSTREAM_CPU_H_INCLUDED */

/* >>cpu-implementation */
#if defined(DEVSTREAM_IMPLEMENTATION) && defined(DS__SEAM_READY) && !defined(DEVSTREAM_CPU_H_IMPLEMENTED)
#define DEVSTREAM_CPU_H_IMPLEMENTED

/* ---- >>cpu policy ------------------------------------------------------------------------------------------------ */

/* A stream is a queue that at most one thread at a time takes from. Its operations are numbered; `submitted` is the last
   number put in, `done` the last one passed. So (stream, number) is a token for "everything up to here": an event keeps
   one, a wait operation names one, a host thread sleeps on one. Stream objects are recycled, never freed before
   shutdown, and go on counting, so that a token stays true for ever.
   A stream that waits for a token is parked on the stream it waits for and costs no thread. A stream whose next
   operation is a host function goes to a thread for host functions; workers never block in the user's code.
   A worker that has emptied a stream keeps polling it for some microseconds (state POLLED), so that a stream of small
   operations costs no wake-up; before an operation that may take long it lets go of what it polls.
   A worker is woken only when no other is about to look at the ready streams (`lookers`).
   The monitor thread ticks each millisecond while anything runs: it adds a thread for host functions when all are stuck
   and takes polled streams from a worker whose operation takes longer than expected. */

enum { DS__CPU_FREE, DS__CPU_IDLE, DS__CPU_READY, DS__CPU_RUNNING, DS__CPU_POLLED, DS__CPU_PARKED, DS__CPU_AT_HOST };
enum {
    DS__CPU_LEVELS = 6,              /* priorities -5 .. 0, which recent GPUs are believed to report */
    DS__CPU_BLOCK_BYTES = 8192,      /* of a block of queued operations; holds the largest operation */
    DS__CPU_SLAB_BLOCKS = 32,
    DS__CPU_POLL_SLOTS = 16,         /* streams a worker polls at most */
    DS__CPU_POLL_NS = 20000,         /* how long a worker polls before it sleeps */
    DS__CPU_WAIT_SPIN_NS = 40000,    /* how long a host thread spins before it sleeps */
    DS__CPU_LONG_NS = 5000,          /* an operation expected to take longer does not keep others waiting */
    DS__CPU_SPLIT_NS = 40000,        /* the rest of a kernel is split when it is expected to take longer */
    DS__CPU_NESTED = 4,              /* streams that a thread runs inside of one another */
    DS__CPU_BATCH = 256,             /* operations after which a worker looks at the other ready streams */
    DS__CPU_TICK_NS = 1000000,
    DS__CPU_STREAM_BATCH = 64,       /* operations that a look at a streaming producer should find */
    DS__CPU_STREAM_PAUSES = 400,     /* longest wait between such looks, some microseconds */
    DS__CPU_MAX_DEVICES = 64
};
#define DS__CPU_SPLIT_BYTES ((size_t)256 << 10)  /* copies and fills from here on are split */
#define DS__CPU_PIECE_BYTES ((size_t)128 << 10)
#define DS__CPU_STREAM_BYTES ((size_t)32 << 20)  /* from here on stores go around the caches; below they lose */
#define DS__CPU_STREAM_PIECE ((size_t)1 << 20)

typedef struct ds__cpu_stream ds__cpu_stream;

/* A piece of queue memory. Operations follow one another; a DS__OP_JUMP says: go on in `next`. */
typedef struct ds__cpu_block {
    struct ds__cpu_block *next;
    uint64_t pad[7];                 /* a small launch fills one cache line */
    char data[DS__CPU_BLOCK_BYTES - 64];
} ds__cpu_block;

/* What failed, once for each failure; kept until shutdown, because anything may still refer to it. */
typedef struct ds__cpu_failure {
    struct ds__cpu_failure *next;
    char text[384];
} ds__cpu_failure;

/* A thread or a stream that waits for a token; stands in the list of the token's stream. */
typedef struct ds__cpu_waiter {
    struct ds__cpu_waiter *next;
    uint64_t upto;
    ds__cpu_stream *parked;          /* a stream, or */
    _Atomic uint32_t *flag;          /* a host thread: set to 1 and woken */
} ds__cpu_waiter;

/* An operation that several threads work on. */
typedef struct ds__cpu_job {
    void (*piece_fn)(struct ds__cpu_job *job, size_t piece);
    size_t pieces;
    _Atomic size_t taken, front, back, finished;
    int users;                       /* threads inside, the owner not counted; under the pool's lock */
    const ds__op *op;
    const void *args;
    size_t first, piece_items;       /* kernel */
    _Atomic int status;
    struct ds__cpu_job *prev_job, *next_job;
} ds__cpu_job;

/* Laid out by who writes: producers (first line), producers while the worker polls (second), the worker while waiting
   hosts poll (third), hardly anyone (fourth), whoever parks or wakes (the rest). */
struct ds__cpu_stream {
    ds__lock put_lock;
    uint32_t tail_at;
    ds__cpu_block *tail;
    uint64_t legacy_seen;            /* blocking stream: the legacy number it waits for already */
    uint64_t seen_by_legacy;         /* the number of this stream that the legacy stream waits for already */
    _Atomic(ds__cpu_block *) spare;  /* a block from the consumer back to the producer */
    char pad0[64 - 40];

    _Atomic uint64_t submitted;
    _Atomic uint32_t state;
    char pad1[64 - 12];

    _Atomic uint64_t done;
    _Atomic uint32_t waiting;        /* 1: the list of waiters is not empty */
    uint32_t head_at;
    ds__cpu_block *head;
    char pad2[64 - 24];

    _Atomic(ds__cpu_failure *) failure;
    _Atomic uint64_t failed_from;    /* numbers from here on failed */
    _Atomic int closing;             /* destroyed: recycle when drained */
    int device, level, kind, had_failure;
    unsigned flags;
    int floating;                    /* unwrapped: nobody's */
    char pad3[64 - 44];

    ds__lock wait_lock;
    ds__cpu_waiter *waiters;
    ds__cpu_waiter as_waiter;        /* for being parked */
    _Atomic uint32_t park_count;     /* odd while park_on and park_upto are written */
    _Atomic(ds__cpu_stream *) park_on;
    _Atomic uint64_t park_upto;
    _Atomic(ds__cpu_job *) job;
    int queued;
    _Atomic(ds__cpu_failure *) past; /* what failed before the last reset, and which numbers */
    _Atomic uint64_t past_from, past_upto;
    ds__cpu_stream *prev, *next;     /* ready list of a level, or list for host functions, or free list */
    ds__cpu_stream *all_prev, *all_next; /* all streams of the device */
};

typedef struct ds__cpu_device {
    ds__lock lock;                   /* of the list */
    ds__cpu_stream *streams;
    ds__cpu_stream *legacy;
    _Atomic int legacy_used;         /* somebody has the legacy stream: blocking streams must look at it */
    ds__lock legacy_lock;            /* orders the legacy stream's submissions against those of blocking streams */
    _Atomic(ds__cpu_failure *) failure;
    size_t limit;
    _Atomic size_t used;
} ds__cpu_device;

typedef struct ds__cpu_stamp {
    _Atomic int refs;
    _Atomic uint64_t ns;
    struct ds__cpu_stamp *next;
} ds__cpu_stamp;

typedef struct ds__cpu_event {
    ds__lock lock;
    unsigned flags;
    ds__cpu_stream *stream;          /* NULL: unrecorded */
    uint64_t upto;
    ds__cpu_stamp *stamp;
    struct ds__cpu_event *next;      /* free list */
} ds__cpu_event;

typedef struct ds__cpu_worker {
    pthread_t thread;
    int polled_count;
    _Atomic(ds__cpu_stream *) polled[DS__CPU_POLL_SLOTS];
    _Atomic uint32_t beat;           /* odd while an operation runs */
    _Atomic(ds__cpu_stream *) running;
    uint32_t last_beat;              /* the monitor's */
    uint32_t streak, misses, delay;  /* streaming: operations found in short order; looks in vain; pauses between looks */
    _Atomic uint64_t operations;
    int is_long;
} ds__cpu_worker;

static struct {
    int devices, workers, processors, no_spin, is_inline, spin_limit;
    uint64_t seed;
    unsigned char *peers;
    ds__cpu_device *device;
    ds__cpu_worker *worker;
    int started, workers_started;
    char pad3[64];                   /* what stands above is only read */
    /* ready streams */
    ds__lock lock;                   /* ready lists, host list, jobs, counts of threads */
    ds__cpu_stream *ready_head[DS__CPU_LEVELS], *ready_tail[DS__CPU_LEVELS];
    ds__cpu_stream *host_head, *host_tail;
    ds__cpu_job *jobs;
    uint64_t random;
    char pad0[64];
    _Atomic uint32_t ready_mask;     /* bit: a level with ready streams; lowest bit most urgent */
    _Atomic int job_count;
    _Atomic int lookers;             /* workers that will look at the ready streams within microseconds */
    _Atomic int parked;              /* workers asleep */
    _Atomic int spinners;
    _Atomic uint32_t wake_word;      /* workers sleep on it */
    _Atomic int quit;
    char pad1[64];
    _Atomic int hurry;               /* host threads that wait: no pause between looks */
    char pad2[64];
    /* host functions */
    _Atomic int host_threads;
    int host_idle;
    uint64_t host_progress;          /* counts host functions taken; for the monitor */
    _Atomic uint32_t host_word;
    pthread_t *host_thread;
    int host_room;
    /* monitor */
    pthread_t monitor;
    int monitor_started;
    _Atomic uint32_t monitor_word;   /* 0: asleep or about to be */
    /* memory */
    ds__lock block_lock;
    ds__cpu_block *free_blocks;
    ds__lock raw_lock;
    void **raw;                      /* all memory taken for the pools below */
    _Atomic size_t queue_bytes;
    ds__lock object_lock;
    ds__cpu_stream *free_streams;
    _Atomic int stream_count;
    ds__cpu_event *free_events;
    ds__cpu_stamp *free_stamps;
    ds__cpu_failure *failures;
    _Atomic uint64_t staged, inlined, helped, other_operations;
} ds__cpu;

static void ds__cpu_push_ready(ds__cpu_stream *s);
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto);

/* ---- >>cpu failures ---------------------------------------------------------------------------------------------- */

static ds__cpu_failure ds__cpu_no_memory = { NULL, "out of memory while recording a failure" };

/* The device's first failure wins. */
static ds__cpu_failure *ds__cpu_fail_device(int device, const char *text) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_failure *f = ds__alloc(sizeof *f), *none = NULL;
    if (f) {
        snprintf(f->text, sizeof f->text, "%s", text);
        ds__lock_take(&ds__cpu.object_lock);
        f->next = ds__cpu.failures;
        ds__cpu.failures = f;
        ds__lock_give(&ds__cpu.object_lock);
    } else {
        f = &ds__cpu_no_memory;
    }
    return atomic_compare_exchange_strong(&d->failure, &none, f) ? f : none;
}

/* The stream's failure, if number `upto` is one that failed. */
static ds__cpu_failure *ds__cpu_failed(const ds__cpu_stream *s, uint64_t upto) {
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_acquire);
    if (f && upto >= atomic_load_explicit(&s->failed_from, memory_order_relaxed)) return f;
    f = atomic_load_explicit(&s->past, memory_order_acquire);
    return f && upto >= atomic_load_explicit(&s->past_from, memory_order_relaxed) &&
           upto <= atomic_load_explicit(&s->past_upto, memory_order_relaxed) ? f : NULL;
}

/* What a stream reports: its own failure, else its device's. */
static ds__cpu_failure *ds__cpu_stream_failure(const ds__cpu_stream *s) {
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_acquire);
    return f ? f : atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
}

static void ds__cpu_fail_stream(ds__cpu_stream *s, ds__cpu_failure *f, uint64_t from) {
    if (atomic_load_explicit(&s->failure, memory_order_relaxed)) return;
    s->had_failure = 1;
    atomic_store_explicit(&s->failed_from, from, memory_order_relaxed);
    atomic_store_explicit(&s->failure, f, memory_order_release);
}

/* ---- >>cpu queue memory ------------------------------------------------------------------------------------------ */

/* Memory for the pools of streams, events, stamps and blocks: zeroed, aligned to 64, freed at shutdown only. */
static void *ds__cpu_raw(size_t size) {
    void **raw = ds__alloc(size + 128);
    if (!raw) return NULL;
    ds__lock_take(&ds__cpu.raw_lock);
    raw[0] = ds__cpu.raw;
    ds__cpu.raw = raw;
    ds__lock_give(&ds__cpu.raw_lock);
    return (void *)(((uintptr_t)raw + 64 + 63) & ~(uintptr_t)63);
}

static ds__cpu_block *ds__cpu_block_take(void) {
    ds__lock_take(&ds__cpu.block_lock);
    if (!ds__cpu.free_blocks) {
        ds__cpu_block *slab = ds__cpu_raw(DS__CPU_SLAB_BLOCKS * sizeof *slab);
        for (int i = 0; slab && i < DS__CPU_SLAB_BLOCKS; i++) {
            slab[i].next = ds__cpu.free_blocks;
            ds__cpu.free_blocks = &slab[i];
        }
        if (slab) atomic_fetch_add_explicit(&ds__cpu.queue_bytes, DS__CPU_SLAB_BLOCKS * sizeof *slab, memory_order_relaxed);
    }
    ds__cpu_block *b = ds__cpu.free_blocks;
    if (b) ds__cpu.free_blocks = b->next;
    ds__lock_give(&ds__cpu.block_lock);
    return b;
}

static void ds__cpu_block_give(ds__cpu_block *b) {
    if (!b) return;
    ds__lock_take(&ds__cpu.block_lock);
    b->next = ds__cpu.free_blocks;
    ds__cpu.free_blocks = b;
    ds__lock_give(&ds__cpu.block_lock);
}

/* Bytes of an operation in the queue, a multiple of 16, and where a kernel's arguments begin in it. */
#define DS__CPU_ARGS_AT 48u
static size_t ds__cpu_op_bytes(const ds__op *op) {
    static const size_t size[] = {
        [DS__OP_COPY] = offsetof(ds__op, u) + sizeof ((ds__op *)0)->u.copy,
        [DS__OP_FILL] = offsetof(ds__op, u) + sizeof ((ds__op *)0)->u.fill,
        [DS__OP_HOST] = offsetof(ds__op, u) + sizeof ((ds__op *)0)->u.host,
        [DS__OP_CALLBACK] = offsetof(ds__op, u) + sizeof ((ds__op *)0)->u.host,
        [DS__OP_RECORD] = offsetof(ds__op, u) + sizeof ((ds__op *)0)->u.stamp,
        [DS__OP_WAIT] = offsetof(ds__op, u) + sizeof ((ds__op *)0)->u.wait,
        [DS__OP_NOTHING] = offsetof(ds__op, u),
    };
    size_t n = op->kind == DS__OP_KERNEL ? DS__CPU_ARGS_AT + op->u.kernel.args_size : size[op->kind];
    return (n + 15) & ~(size_t)15;
}

/* Makes room for an operation at the tail; the producer's lock is held. NULL: no memory, nothing changed. */
static void *ds__cpu_room(ds__cpu_stream *s, size_t bytes) {
    ds__cpu_block *b = s->tail;
    if (DS__UNLIKELY(!b || s->tail_at + bytes + 16 > sizeof b->data)) {
        ds__cpu_block *fresh = atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel);
        if (!fresh) fresh = ds__cpu_block_take();
        if (!fresh) return NULL;
        fresh->next = NULL;
        if (b) {
            b->next = fresh;
            ((ds__op *)(void *)(b->data + s->tail_at))->kind = DS__OP_JUMP;
        } else {
            s->head = fresh; /* the stream is empty and idle: nobody else looks at its head until we publish */
            s->head_at = 0;
        }
        s->tail = b = fresh;
        s->tail_at = 0;
    }
    void *at = b->data + s->tail_at;
    s->tail_at += (uint32_t)bytes;
    ds__own_line((const char *)b + ((s->tail_at + 320) & (DS__CPU_BLOCK_BYTES - 1))); /* some operations ahead */
    return at;
}

/* Small structs in words, as the caller has just written them: wider loads would wait for the caller's stores. */
static inline void ds__cpu_copy_args(char *to, const char *from, size_t size) {
    if (DS__UNLIKELY(size > 64)) { memcpy(to, from, size); return; }
    for (; size >= 8; size -= 8, to += 8, from += 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        memcpy(to, &word, 8);
    }
    for (; size; size--) *to++ = *from++;
}

/* Queues a copy of the operation; the producer's lock is held. */
static ds_result ds__cpu_put(ds__cpu_stream *s, const ds__op *op) {
    ds__op *q = ds__cpu_room(s, ds__cpu_op_bytes(op));
    if (DS__UNLIKELY(!q)) return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to queue the operation");
    if (op->kind == DS__OP_KERNEL) {
        q->kind = op->kind; q->flags = op->flags; q->line = op->line; q->file = op->file;
        q->u.kernel.kernel = op->u.kernel.kernel;
        q->u.kernel.items = op->u.kernel.items;
        q->u.kernel.args_size = op->u.kernel.args_size;
        ds__cpu_copy_args((char *)q + DS__CPU_ARGS_AT, op->u.kernel.args, op->u.kernel.args_size);
    } else {
        memcpy(q, op, ds__cpu_op_bytes(op) < sizeof *op ? ds__cpu_op_bytes(op) : sizeof *op);
    }
    uint64_t n = atomic_load_explicit(&s->submitted, memory_order_relaxed) + 1;
    /* seq_cst against ds__cpu_go_idle: either it sees this operation or the caller sees IDLE */
    atomic_store(&s->submitted, n);
    return DS_OK;
}

/* ---- >>cpu lock-free: idle, ready, parked, asleep ----------------------------------------------------------------- */

/* The part that tests/model checks: four hand-shakes, each a store, then a load of what the other side stores first.
   publish/idle:  ds__cpu_put stores submitted, then ds__cpu_kick loads state;  ds__cpu_go_idle the reverse.
   pass/wait:     ds__cpu_pass stores done, then loads waiting;  ds__cpu_enlist the reverse.
   ready/asleep:  ds__cpu_push_ready sets ready_mask, then loads lookers;  ds__cpu_sleep the reverse.
   destroy/idle:  ds__cpu_stream_destroy stores closing, then tries state;  ds__cpu_go_idle the reverse. */

static void ds__cpu_wake_worker(void) {
    atomic_fetch_add(&ds__cpu.wake_word, 1);
    ds__futex_wake(&ds__cpu.wake_word, 1);
}

static void ds__cpu_wake_monitor(void) {
    if (atomic_load(&ds__cpu.monitor_word) == 0 &&
        atomic_exchange(&ds__cpu.monitor_word, 1) == 0) ds__futex_wake(&ds__cpu.monitor_word, 1);
}

/* The pool's lock is held; the stream's state is READY. */
static void ds__cpu_link_ready(ds__cpu_stream *s) {
    int level = s->level;
    s->queued = 1;
    s->next = NULL;
    s->prev = ds__cpu.ready_tail[level];
    if (s->prev) s->prev->next = s; else ds__cpu.ready_head[level] = s;
    ds__cpu.ready_tail[level] = s;
    if (!s->prev)
        atomic_store(&ds__cpu.ready_mask, atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed) | 1u << level);
}

static void ds__cpu_unlink_ready(ds__cpu_stream *s) {
    int level = s->level;
    s->queued = 0;
    if (s->prev) s->prev->next = s->next; else ds__cpu.ready_head[level] = s->next;
    if (s->next) s->next->prev = s->prev; else ds__cpu.ready_tail[level] = s->prev;
    if (!ds__cpu.ready_head[level])
        atomic_store(&ds__cpu.ready_mask, atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed) & ~(1u << level));
}

/* The stream's state is READY, set by the caller. Wakes a worker unless one is about to look. */
static void ds__cpu_push_ready(ds__cpu_stream *s) {
    ds__lock_take(&ds__cpu.lock);
    ds__cpu_link_ready(s);
    ds__lock_give(&ds__cpu.lock);
    if (atomic_load(&ds__cpu.lookers) == 0 && atomic_load(&ds__cpu.parked) > 0) ds__cpu_wake_worker();
}

/* Takes the most urgent ready stream, oldest first (seeded: any); its state becomes RUNNING. */
static ds__cpu_stream *ds__cpu_pop_ready(void) {
    if (atomic_load(&ds__cpu.ready_mask) == 0) return NULL;
    ds__cpu_stream *s = NULL;
    ds__lock_take(&ds__cpu.lock);
    uint32_t mask = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    if (mask) {
        s = ds__cpu.ready_head[__builtin_ctz(mask)];
        if (ds__cpu.seed) {
            ds__cpu.random = ds__cpu.random * 6364136223846793005u + 1442695040888963407u;
            for (uint64_t n = ds__cpu.random >> 61; n && s->next; n--) s = s->next;
        }
        ds__cpu_unlink_ready(s);
        atomic_store_explicit(&s->state, DS__CPU_RUNNING, memory_order_relaxed);
    }
    ds__lock_give(&ds__cpu.lock);
    return s;
}

/* Takes this stream from the ready ones, if it is there; its state becomes RUNNING. */
static int ds__cpu_take_ready(ds__cpu_stream *s) {
    ds__lock_take(&ds__cpu.lock);
    int mine = s->queued && atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_READY;
    if (mine) {
        ds__cpu_unlink_ready(s);
        atomic_store_explicit(&s->state, DS__CPU_RUNNING, memory_order_relaxed);
    }
    ds__lock_give(&ds__cpu.lock);
    return mine;
}

/* After a submission: an idle stream becomes ready. Everyone else who has the stream will see the new operation. */
static inline void ds__cpu_kick(ds__cpu_stream *s) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_load(&s->state) == DS__CPU_IDLE && atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_READY))
        ds__cpu_push_ready(s);
}

static void ds__cpu_recycle(ds__cpu_stream *s);

/* The caller owns the stream (RUNNING, or POLLED by a successful exchange) and has emptied it. */
static void ds__cpu_go_idle(ds__cpu_stream *s) {
    for (;;) {
        /* An empty stream gives its memory back, so that ten thousand idle ones cost little. */
        if (ds__trylock(&s->put_lock)) {
            ds__cpu_block *b = NULL;
            if (atomic_load_explicit(&s->submitted, memory_order_acquire) ==
                atomic_load_explicit(&s->done, memory_order_relaxed)) {
                b = s->head;
                s->head = s->tail = NULL;
            }
            ds__lock_give(&s->put_lock);
            if (b) {
                ds__cpu_block_give(b);
                ds__cpu_block_give(atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel));
            }
        }
        atomic_store(&s->state, DS__CPU_IDLE);
        uint32_t idle = DS__CPU_IDLE;
        if (atomic_load(&s->submitted) != atomic_load_explicit(&s->done, memory_order_relaxed)) {
            if (atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_READY)) ds__cpu_push_ready(s);
            return;
        }
        if (!atomic_load(&s->closing)) return;
        if (!atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING)) return;
        if (atomic_load(&s->submitted) == atomic_load_explicit(&s->done, memory_order_relaxed)) {
            ds__cpu_recycle(s);
            return;
        }
    }
}

/* Passes on: everyone who waits for a number that is done. */
__attribute__((noinline)) static void ds__cpu_notify(ds__cpu_stream *s) {
    ds__cpu_waiter *woken = NULL, **end = &woken;
    ds__lock_take(&s->wait_lock);
    uint64_t done = atomic_load_explicit(&s->done, memory_order_acquire);
    for (ds__cpu_waiter **p = &s->waiters; *p; ) {
        ds__cpu_waiter *w = *p;
        if (w->upto > done) { p = &w->next; continue; }
        *p = w->next;
        if (w->flag) {
            /* The sleeper may go on, and its waiter with it, as soon as the flag is set. */
            _Atomic uint32_t *flag = w->flag;
            atomic_store_explicit(flag, 1, memory_order_release);
            ds__futex_wake(flag, 1);
        } else {
            w->next = NULL;
            *end = w;
            end = &w->next;
        }
    }
    if (!s->waiters) atomic_store(&s->waiting, 0);
    ds__lock_give(&s->wait_lock);
    while (woken) {
        ds__cpu_waiter *w = woken;
        woken = w->next;
        atomic_store(&w->parked->state, DS__CPU_READY);
        ds__cpu_push_ready(w->parked);
    }
}

/* The stream has passed an operation. */
static inline void ds__cpu_pass(ds__cpu_stream *s, uint64_t number) {
    atomic_store(&s->done, number);
    if (DS__UNLIKELY(atomic_load(&s->waiting))) ds__cpu_notify(s);
}

/* The same after an operation known to be short. Without the full barrier a waiter that comes in this moment may be missed;
   the next check finds it, and ds__cpu_run_some makes one with a barrier before anything that may take long. */
static inline void ds__cpu_pass_short(ds__cpu_stream *s, uint64_t number) {
    atomic_store_explicit(&s->done, number, memory_order_release);
    if (DS__UNLIKELY(atomic_load_explicit(&s->waiting, memory_order_relaxed))) ds__cpu_notify(s);
}

/* Puts a waiter into the stream's list; the list's lock is held. 0: the number is done, the waiter is not in the list. */
static int ds__cpu_enlist(ds__cpu_stream *s, ds__cpu_waiter *w) {
    atomic_store(&s->waiting, 1);
    if (atomic_load(&s->done) >= w->upto) {
        if (!s->waiters) atomic_store(&s->waiting, 0);
        return 0;
    }
    w->next = s->waiters;
    s->waiters = w;
    return 1;
}

/* Parks stream s until `on` has passed `upto`. 0: it has already. */
static int ds__cpu_park(ds__cpu_stream *s, ds__cpu_stream *on, uint64_t upto) {
    s->as_waiter.upto = upto;
    s->as_waiter.parked = s;
    s->as_waiter.flag = NULL;
    atomic_fetch_add(&s->park_count, 1);
    atomic_store_explicit(&s->park_on, on, memory_order_relaxed);
    atomic_store_explicit(&s->park_upto, upto, memory_order_relaxed);
    atomic_fetch_add(&s->park_count, 1);
    ds__lock_take(&on->wait_lock);
    int parked = ds__cpu_enlist(on, &s->as_waiter);
    if (parked) atomic_store(&s->state, DS__CPU_PARKED); /* before the lock is given: nobody can make it ready earlier */
    ds__lock_give(&on->wait_lock);
    return parked;
}

/* A worker sleeps until there may be work. It has given up its place among the lookers. */
static void ds__cpu_sleep(void) {
    uint32_t word = atomic_load(&ds__cpu.wake_word);
    atomic_fetch_add(&ds__cpu.parked, 1);
    atomic_fetch_sub(&ds__cpu.lookers, 1);
    if (atomic_load(&ds__cpu.ready_mask) == 0 && atomic_load(&ds__cpu.job_count) == 0 && !atomic_load(&ds__cpu.quit))
        ds__futex_wait(&ds__cpu.wake_word, word, DS__FOREVER);
    atomic_fetch_add(&ds__cpu.lookers, 1);
    atomic_fetch_sub(&ds__cpu.parked, 1);
}

static inline int ds__cpu_has_work(ds__cpu_stream *s) {
    return atomic_load_explicit(&s->submitted, memory_order_relaxed) != atomic_load_explicit(&s->done, memory_order_relaxed);
}

/* Lets go of a polled stream; whoever else took it meanwhile keeps it. */
static void ds__cpu_unpoll(ds__cpu_stream *s) {
    uint32_t polled = DS__CPU_POLLED;
    if (atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING)) ds__cpu_go_idle(s);
}
/* <<cpu lock-free */

static void ds__cpu_unpoll_all(ds__cpu_worker *w) {
    for (int i = 0; i < w->polled_count; i++)
        ds__cpu_unpoll(atomic_load_explicit(&w->polled[i], memory_order_relaxed));
    w->polled_count = 0;
}

/* Sends polled streams with new work to the ready ones, where their priority counts. */
static void ds__cpu_unpoll_fresh(ds__cpu_worker *w) {
    for (int i = 0; i < w->polled_count; ) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[i], memory_order_relaxed);
        if (!ds__cpu_has_work(s)) { i++; continue; }
        atomic_store_explicit(&w->polled[i], atomic_load_explicit(&w->polled[--w->polled_count], memory_order_relaxed),
                              memory_order_relaxed);
        ds__cpu_unpoll(s);
    }
}

/* An operation that may take long begins (1) or ends (0): nothing that others could do waits for this worker. */
static void ds__cpu_long(ds__cpu_worker *w, int begin) {
    if (!w || w->is_long == begin) return;
    w->is_long = begin;
    if (!begin) { atomic_fetch_add(&ds__cpu.lookers, 1); return; }
    ds__cpu_unpoll_all(w);
    if (atomic_fetch_sub(&ds__cpu.lookers, 1) == 1 && atomic_load(&ds__cpu.ready_mask) && atomic_load(&ds__cpu.parked) > 0)
        ds__cpu_wake_worker();
}

/* ---- >>cpu jobs: one operation on several threads --------------------------------------------------------------- */

/* Waiting host threads take pieces from the front and workers from the back, so that each processor meets much the same
   memory every time. `taken` says that one is left; front and back then never meet. leave: a helping worker goes when
   there are ready streams. limit: this many pieces at most. */
static void ds__cpu_job_work(ds__cpu_job *job, int worker, int leave, size_t limit) {
    while (limit-- > 0 && !(leave && atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed)) && atomic_fetch_add_explicit(&job->taken, 1, memory_order_relaxed) < job->pieces) {
        size_t n = atomic_fetch_add_explicit(worker ? &job->back : &job->front, 1, memory_order_relaxed);
        job->piece_fn(job, worker ? job->pieces - 1 - n : n);
        atomic_fetch_add_explicit(&job->finished, 1, memory_order_acq_rel);
    }
}

/* Joins a job: that of one stream which has not passed `upto`, or any. 0: there was none. */
static int ds__cpu_job_join(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    ds__lock_take(&ds__cpu.lock);
    ds__cpu_job *job = s ? atomic_load_explicit(&s->job, memory_order_relaxed) : ds__cpu.jobs;
    if (s && atomic_load_explicit(&s->done, memory_order_relaxed) >= upto) job = NULL; /* a later operation's */
    while (job && atomic_load_explicit(&job->taken, memory_order_relaxed) >= job->pieces) job = s ? NULL : job->next_job;
    if (job) job->users++;
    ds__lock_give(&ds__cpu.lock);
    if (!job) return 0;
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    /* Between the pieces of a copy a worker can look at ready streams; those of a kernel may take long. */
    int moves = job->op->kind != DS__OP_KERNEL;
    if (!moves) ds__cpu_long(w, 1);
    ds__cpu_job_work(job, w != NULL, w != NULL && moves, SIZE_MAX);
    ds__cpu_long(w, 0);
    ds__tls.in_callback = outer;
    ds__lock_take(&ds__cpu.lock);
    job->users--;
    ds__lock_give(&ds__cpu.lock);
    return 1;
}

/* Works on the job until all of it is done; sleeping workers are called when that pays. */
static void ds__cpu_job_run(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_job *job, int call_workers) {
    ds__lock_take(&ds__cpu.lock);
    job->prev_job = NULL;
    job->next_job = ds__cpu.jobs;
    if (job->next_job) job->next_job->prev_job = job;
    ds__cpu.jobs = job;
    atomic_fetch_add(&ds__cpu.job_count, 1);
    atomic_store_explicit(&s->job, job, memory_order_release);
    ds__lock_give(&ds__cpu.lock);
    /* Two pieces on our own, time enough for a host thread that waits, or a worker that is awake, to join. Then sleeping
       workers are called, but no more threads than processors: one too many, and a piece waits for a time slice. */
    ds__cpu_job_work(job, w != NULL, 0, 2);
    int parked = atomic_load(&ds__cpu.parked);
    int wanted = ds__cpu.processors - (ds__cpu.workers - parked) - atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) -
                 (w == NULL && atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) == 0);
    if (call_workers && parked > 0 && wanted > 0) {
        atomic_fetch_add(&ds__cpu.wake_word, 1);
        ds__futex_wake(&ds__cpu.wake_word, wanted < parked ? wanted : parked);
    }
    ds__cpu_job_work(job, w != NULL, 0, SIZE_MAX);
    for (int spins = 0; ; spins++) {
        int over = 0;
        if (atomic_load_explicit(&job->finished, memory_order_acquire) == job->pieces) {
            ds__lock_take(&ds__cpu.lock);
            if (atomic_load_explicit(&s->job, memory_order_relaxed) == job) {
                atomic_store_explicit(&s->job, NULL, memory_order_relaxed);
                if (job->prev_job) job->prev_job->next_job = job->next_job; else ds__cpu.jobs = job->next_job;
                if (job->next_job) job->next_job->prev_job = job->prev_job;
                atomic_fetch_sub(&ds__cpu.job_count, 1);
            }
            over = job->users == 0;
            ds__lock_give(&ds__cpu.lock);
        }
        if (over) return;
        if (spins < 200) ds__pause(); else syscall(SYS_sched_yield);
    }
}

/* ---- >>cpu copies and fills --------------------------------------------------------------------------------------- */

/* Copies with stores that go around the caches, four pages side by side: more than one row of memory is open then, which
   is what the hardware prefetchers and the memory controller like best. */
static void ds__cpu_stream_copy(char *dst, const char *src, size_t n) {
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    size_t lead = (size_t)(-(uintptr_t)dst & 63);
    if (lead > n) lead = n;
    memcpy(dst, src, lead);
    dst += lead; src += lead; n -= lead;
#define DS__LINE(at) \
    __asm__ __volatile__( \
        "movdqu 0(%0), %%xmm0\n\tmovdqu 16(%0), %%xmm1\n\tmovdqu 32(%0), %%xmm2\n\tmovdqu 48(%0), %%xmm3\n\t" \
        "movntdq %%xmm0, 0(%1)\n\tmovntdq %%xmm1, 16(%1)\n\tmovntdq %%xmm2, 32(%1)\n\tmovntdq %%xmm3, 48(%1)" \
        : : "r"(src + (at)), "r"(dst + (at)) : "xmm0", "xmm1", "xmm2", "xmm3", "memory")
    for (; n >= 16384; n -= 16384, dst += 16384, src += 16384)
        for (size_t i = 0; i < 4096; i += 64) {
            __builtin_prefetch(src + i + 256); __builtin_prefetch(src + i + 4096 + 256);
            __builtin_prefetch(src + i + 8192 + 256); __builtin_prefetch(src + i + 12288 + 256);
            DS__LINE(i); DS__LINE(i + 4096); DS__LINE(i + 8192); DS__LINE(i + 12288);
        }
    for (; n >= 64; n -= 64, dst += 64, src += 64) DS__LINE(0);
#undef DS__LINE
    __asm__ __volatile__("sfence" ::: "memory");
#endif
    memcpy(dst, src, n);
}

/* Bytes first .. first+count-1 of the copy, row by row. */
static void ds__cpu_copy_part(const ds__op *op, size_t first, size_t count, int around) {
    size_t width = op->u.copy.width;
    char *dst = op->u.copy.dst;
    const char *src = op->u.copy.src;
    while (count) {
        size_t row = first / width, column = first % width, n = width - column < count ? width - column : count;
        char *to = dst + row * op->u.copy.dst_pitch + column;
        const char *from = src + row * op->u.copy.src_pitch + column;
        if (around && n >= 65536) ds__cpu_stream_copy(to, from, n); else memcpy(to, from, n);
        first += n;
        count -= n;
    }
}

/* The same through a buffer, as when two GPUs cannot reach each other. */
static void ds__cpu_copy_staged(const ds__op *op) {
    char stage[4096];
    size_t width = op->u.copy.width;
    for (size_t row = 0; row < op->u.copy.height; row++)
        for (size_t at = 0; at < width; at += sizeof stage) {
            size_t n = width - at < sizeof stage ? width - at : sizeof stage;
            memcpy(stage, (const char *)op->u.copy.src + row * op->u.copy.src_pitch + at, n);
            memcpy((char *)op->u.copy.dst + row * op->u.copy.dst_pitch + at, stage, n);
        }
    atomic_fetch_add_explicit(&ds__cpu.staged, 1, memory_order_relaxed);
}

/* Sets n bytes to a pattern of eight, whose first byte stands at `to`. Stores through the caches: measured faster than
   those around them at every size that was tried, since nothing is read. */
static void ds__cpu_fill_row(char *to, const char *pattern, size_t n) {
    uint64_t word, block[512];
    memcpy(&word, pattern, 8);
    if (word == (word & 255) * 0x0101010101010101u) { memset(to, (int)(word & 255), n); return; }
    if (n >= sizeof block) {
        for (size_t i = 0; i < sizeof block / sizeof block[0]; i++) block[i] = word;
        for (; n >= sizeof block; n -= sizeof block, to += sizeof block) memcpy(to, block, sizeof block);
    }
    for (; n >= 8; n -= 8, to += 8) memcpy(to, &word, 8);
    memcpy(to, pattern, n);
}

/* Elements first .. first+count-1 of the fill. */
static void ds__cpu_fill_part(const ds__op *op, size_t first, size_t count) {
    size_t width = op->u.fill.width, size = op->u.fill.value_size;
    char pattern[8];
    for (size_t i = 0; i < 8; i += size) memcpy(pattern + i, &op->u.fill.value, size); /* little endian: the low bytes */
    while (count) {
        size_t row = first / width, column = first % width, n = width - column < count ? width - column : count;
        ds__cpu_fill_row((char *)op->u.fill.dst + row * op->u.fill.pitch + column * size, pattern, n * size);
        first += n;
        count -= n;
    }
}

static void ds__cpu_part_piece(ds__cpu_job *job, size_t piece) {
    const ds__op *op = job->op;
    size_t total = op->kind == DS__OP_COPY ? op->u.copy.width * op->u.copy.height : op->u.fill.width * op->u.fill.height;
    size_t first = piece * job->piece_items, n = total - first < job->piece_items ? total - first : job->piece_items;
    if (op->kind == DS__OP_COPY) ds__cpu_copy_part(op, first, n, ds__op_bytes(op) >= DS__CPU_STREAM_BYTES);
    else ds__cpu_fill_part(op, first, n);
}

/* A copy or fill, on this thread or on several. */
static void ds__cpu_move(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op) {
    size_t bytes = ds__op_bytes(op), elements = bytes;
    if (op->kind == DS__OP_FILL) elements = op->u.fill.width * op->u.fill.height;
    if (op->kind == DS__OP_COPY && (op->flags & DS__OP_STAGED)) {
        ds__cpu_long(w, 1);
        ds__cpu_copy_staged(op);
    } else if (bytes < DS__CPU_SPLIT_BYTES || ds__cpu.is_inline || ds__cpu.seed) {
        if (bytes > 65536) ds__cpu_long(w, 1);
        if (op->kind == DS__OP_COPY) ds__cpu_copy_part(op, 0, elements, 0); else ds__cpu_fill_part(op, 0, elements);
    } else {
        ds__cpu_job job;
        memset(&job, 0, sizeof job);
        size_t piece = bytes >= DS__CPU_STREAM_BYTES ? DS__CPU_STREAM_PIECE : DS__CPU_PIECE_BYTES;
        job.piece_fn = ds__cpu_part_piece;
        job.op = op;
        job.piece_items = op->kind == DS__OP_FILL ? piece / op->u.fill.value_size : piece;
        job.pieces = (elements + job.piece_items - 1) / job.piece_items;
        ds__cpu_long(w, 1);
        ds__cpu_job_run(w, s, &job, bytes >= 8 * DS__CPU_SPLIT_BYTES);
    }
    ds__cpu_long(w, 0);
}

/* ---- >>cpu kernels ------------------------------------------------------------------------------------------------ */

static void ds__cpu_kernel_piece(ds__cpu_job *job, size_t piece) {
    const ds__op *op = job->op;
    size_t first = job->first + piece * job->piece_items, left = op->u.kernel.items - first;
    int status = op->u.kernel.kernel->cpu_fn(first, left < job->piece_items ? left : job->piece_items, job->args);
    if (status) atomic_store_explicit(&job->status, status, memory_order_relaxed);
}

/* Runs the launch: its first items alone, to see how long the rest will take; the rest is split when it is long. */
static int ds__cpu_kernel_items(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op, const void *args, uint64_t *out_item_ns) {
    ds__kernel *k = op->u.kernel.kernel;
    size_t n = op->u.kernel.items, grain = k->grain ? k->grain : 1, first = n / 64 > grain ? n / 64 : grain;
    uint64_t start = ds__now_ns();
    if (first >= n) first = n;
    int status = k->cpu_fn(0, first, args);
    uint64_t each = (ds__now_ns() - start) / first;
    *out_item_ns = each;
    if (status || first == n) return status;
    if (each * (n - first) < DS__CPU_SPLIT_NS || ds__cpu.is_inline || ds__cpu.seed) return k->cpu_fn(first, n - first, args);
    ds__cpu_job job;
    memset(&job, 0, sizeof job);
    size_t pieces = 8 * (size_t)(ds__cpu.workers + 1), items = (n - first + pieces - 1) / pieces;
    job.piece_fn = ds__cpu_kernel_piece;
    job.op = op;
    job.args = args;
    job.first = first;
    job.piece_items = items > grain ? items : grain;
    job.pieces = (n - first + job.piece_items - 1) / job.piece_items;
    ds__cpu_job_run(w, s, &job, 1);
    return atomic_load_explicit(&job.status, memory_order_relaxed);
}

/* Returns the kernel's status. How long an item takes is measured at the first launches and then now and then. */
static int ds__cpu_kernel(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op) {
    ds__kernel *k = op->u.kernel.kernel;
    const void *args = (const char *)op + DS__CPU_ARGS_AT;
    uint32_t runs = atomic_load_explicit(&k->runs, memory_order_relaxed), known = 0;
    if (DS__LIKELY(runs >= 4)) known = atomic_load_explicit(&k->item_ns, memory_order_relaxed);
    int is_long = runs < 4 || (uint64_t)known * op->u.kernel.items > DS__CPU_LONG_NS;
    if (is_long) ds__cpu_long(w, 1);
    uint64_t each = 0;
    int status;
    if (op->u.kernel.items == 1 || k->grain == SIZE_MAX) {
        uint64_t start = ds__now_ns();
        status = k->cpu_fn(0, op->u.kernel.items, args);
        each = (ds__now_ns() - start) / op->u.kernel.items;
    } else {
        status = ds__cpu_kernel_items(w, s, op, args, &each);
    }
    atomic_store_explicit(&k->item_ns, each > UINT32_MAX ? UINT32_MAX : (uint32_t)each, memory_order_relaxed);
    if (runs < 4) atomic_store_explicit(&k->runs, runs + 1, memory_order_relaxed);
    ds__cpu_long(w, 0);
    return status;
}

static void ds__cpu_kernel_failed(ds__cpu_stream *s, const ds__op *op, int status, uint64_t number) {
    char text[384], site[200] = "";
    if (op->file) snprintf(site, sizeof site, ", launched at %.160s:%u,", op->file, (unsigned)op->line);
    if (op->u.kernel.kernel->ours) snprintf(text, sizeof text, "%.60s failed on cpu:%d: %.250s", op->u.kernel.kernel->name, s->device, ds__tls.error);
    else snprintf(text, sizeof text, "kernel %.60s%s failed on cpu:%d with status %d", op->u.kernel.kernel->name, site, s->device, status);
    ds__cpu_fail_stream(s, ds__cpu_fail_device(s->device, text), number);
}

/* ---- >>cpu host functions ------------------------------------------------------------------------------------------ */

static void *ds__cpu_host_main(void *unused);

/* One more thread for host functions; the pool's lock is held. A refusal is tried again at the monitor's next tick. */
static void ds__cpu_host_spawn(void) {
    if (ds__cpu.host_threads == ds__cpu.host_room) {
        int room = ds__cpu.host_room ? 2 * ds__cpu.host_room : 16;
        pthread_t *more = ds__alloc((size_t)room * sizeof *more);
        if (!more) return;
        if (ds__cpu.host_thread) memcpy(more, ds__cpu.host_thread, (size_t)ds__cpu.host_threads * sizeof *more);
        ds__release(ds__cpu.host_thread);
        ds__cpu.host_thread = more;
        ds__cpu.host_room = room;
    }
    if (pthread_create(&ds__cpu.host_thread[ds__cpu.host_threads], NULL, ds__cpu_host_main, NULL) == 0) ds__cpu.host_threads++;
}

/* Before a host function is accepted there is a thread that will run it. */
static ds_result ds__cpu_host_ready(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__cpu.host_threads, memory_order_relaxed) > 0)) return DS_OK;
    ds__lock_take(&ds__cpu.lock);
    if (atomic_load(&ds__cpu.host_threads) == 0) ds__cpu_host_spawn();
    ds__lock_give(&ds__cpu.lock);
    return atomic_load(&ds__cpu.host_threads) > 0
               ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no thread for host functions could be started");
}

/* The stream's next operation is the user's code: hands the stream over. */
static void ds__cpu_to_host(ds__cpu_stream *s) {
    ds__lock_take(&ds__cpu.lock);
    atomic_store(&s->state, DS__CPU_AT_HOST);
    s->next = NULL;
    if (ds__cpu.host_tail) ds__cpu.host_tail->next = s; else ds__cpu.host_head = s;
    ds__cpu.host_tail = s;
    int idle = ds__cpu.host_idle;
    ds__lock_give(&ds__cpu.lock);
    if (idle) {
        atomic_fetch_add(&ds__cpu.host_word, 1);
        ds__futex_wake(&ds__cpu.host_word, 1);
    } else {
        ds__cpu_wake_monitor();
    }
}

/* Runs the user's code of the operation; number is the operation's. */
static void ds__cpu_host_op(ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    ds__cpu_failure *f = ds__cpu_failed(s, number);
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    if (op->kind == DS__OP_CALLBACK) {
        ds_stream stream = { op->u.host.stream };
        if (f) snprintf(ds__tls.error, sizeof ds__tls.error, "%s", f->text);
        op->u.host.callback(stream, f ? DS_ERR_FAILED : DS_OK, op->u.host.user);
    } else if (!f) {
        op->u.host.fn(op->u.host.user);
    }
    if (op->u.host.dtor_fn) op->u.host.dtor_fn(op->u.host.user);
    ds__tls.in_callback = outer;
}

/* ---- >>cpu running a stream ----------------------------------------------------------------------------------------- */

static void ds__cpu_stamp_give(ds__cpu_stamp *stamp) {
    if (!stamp || atomic_fetch_sub_explicit(&stamp->refs, 1, memory_order_acq_rel) != 1) return;
    ds__lock_take(&ds__cpu.object_lock);
    stamp->next = ds__cpu.free_stamps;
    ds__cpu.free_stamps = stamp;
    ds__lock_give(&ds__cpu.object_lock);
}

/* The next operation in the queue; steps over the end of a block. */
static ds__op *ds__cpu_head(ds__cpu_stream *s) {
    ds__op *op = (ds__op *)(void *)(s->head->data + s->head_at);
    if (DS__UNLIKELY(op->kind == DS__OP_JUMP)) {
        ds__cpu_block *old = s->head, *none = NULL;
        s->head = old->next;
        s->head_at = 0;
        if (!atomic_compare_exchange_strong_explicit(&s->spare, &none, old, memory_order_acq_rel, memory_order_relaxed))
            ds__cpu_block_give(old);
        op = (ds__op *)(void *)s->head->data;
    }
    return op;
}

/* What became of the stream that ds__cpu_run worked on. */
enum { DS__CPU_EMPTY, DS__CPU_GONE, DS__CPU_MORE };

/* Who runs a stream: a worker or a waiting thread (not the user's host functions), a thread for host functions (only
   those), or the submitter itself in inline mode. */
enum { DS__CPU_WORK, DS__CPU_HOST, DS__CPU_ALL };

/* The stream `on`, for which stream s has to wait, is free to be run: the thread that has s runs it up to there, which
   saves parking one stream and waking it for the other. Not past more urgent ready streams. 0: it could not. */
static int ds__cpu_run_first(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_stream *on, uint64_t upto) {
    uint32_t state = atomic_load(&on->state);
    uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    int mine = 0;
    if (ds__tls.nested >= DS__CPU_NESTED || ds__cpu.seed || (ready & ((1u << s->level) - 1))) return 0;
    if (state == DS__CPU_POLLED) mine = atomic_compare_exchange_strong(&on->state, &state, DS__CPU_RUNNING);
    else if (state == DS__CPU_READY) mine = ds__cpu_take_ready(on);
    if (!mine) return 0;
    ds__tls.nested++;
    ds__cpu_run(w, on, upto);
    ds__tls.nested--;
    return atomic_load_explicit(&on->done, memory_order_acquire) >= upto;
}

/* Runs one operation. DS__CPU_GONE: the stream now belongs to somebody else and the operation is not done. */
static int ds__cpu_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number, int who) {
    if (DS__UNLIKELY(!atomic_load_explicit(&s->failure, memory_order_relaxed))) {
        ds__cpu_failure *f = atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
        if (DS__UNLIKELY(f != NULL)) ds__cpu_fail_stream(s, f, number);
    }
    int failed = atomic_load_explicit(&s->failure, memory_order_relaxed) != NULL;
    switch (op->kind) {
    case DS__OP_KERNEL:
        if (!failed) {
            int status = ds__cpu_kernel(w, s, op);
            if (DS__UNLIKELY(status != 0)) ds__cpu_kernel_failed(s, op, status, number);
        }
        break;
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (!failed) ds__cpu_move(w, s, op);
        break;
    case DS__OP_HOST:
    case DS__OP_CALLBACK:
        if (who == DS__CPU_WORK) { ds__cpu_to_host(s); return DS__CPU_GONE; }
        ds__cpu_host_op(s, op, number);
        break;
    case DS__OP_RECORD: {
        ds__cpu_stamp *stamp = op->u.stamp.stamp;
        if (!failed) atomic_store_explicit(&stamp->ns, ds__now_ns(), memory_order_release);
        ds__cpu_stamp_give(stamp);
        break;
    }
    case DS__OP_WAIT: {
        ds__cpu_stream *on = op->u.wait.stream;
        uint64_t upto = op->u.wait.upto;
        if (atomic_load_explicit(&on->done, memory_order_acquire) < upto &&
            !(who == DS__CPU_WORK && ds__cpu_run_first(w, s, on, upto)) && ds__cpu_park(s, on, upto)) return DS__CPU_GONE;
        ds__cpu_failure *f = ds__cpu_failed(on, upto);
        if (f && !failed) ds__cpu_fail_stream(s, f, number);
        break;
    }
    default:
        break;
    }
    return DS__CPU_EMPTY;
}

/* A launch of one item of a kernel that has been short so far, and nothing has failed; now and then not, to measure it. */
static inline int ds__cpu_is_short(const ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    if (op->kind != DS__OP_KERNEL || op->u.kernel.items != 1 || (number & 255u) == 0) return 0;
    ds__kernel *k = op->u.kernel.kernel;
    return atomic_load_explicit(&k->runs, memory_order_relaxed) >= 4 &&
           atomic_load_explicit(&k->item_ns, memory_order_relaxed) <= DS__CPU_LONG_NS &&
           !atomic_load_explicit(&s->failure, memory_order_relaxed) &&
           !atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_relaxed);
}

/* Runs the stream, which the caller owns (RUNNING), up to operation `upto` at most and not beyond what was submitted when
   it began. DS__CPU_EMPTY: all that is done and the caller still owns it. DS__CPU_MORE: likewise, but operations are left.
   w: NULL when the caller is not a worker. */
static int ds__cpu_run_some(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto, int who) {
    uint64_t number = atomic_load_explicit(&s->done, memory_order_relaxed), count = 0;
    uint32_t urgent = (1u << s->level) - 1;
    int result = DS__CPU_EMPTY;
    uint64_t end = atomic_load_explicit(&s->submitted, memory_order_acquire);
    int unfenced = 0; /* the last operation was passed without a barrier */
    while (number < end) {
        if (DS__UNLIKELY(number >= upto)) { result = DS__CPU_MORE; break; }
        ds__op *op = ds__cpu_head(s);
        if (DS__UNLIKELY(who == DS__CPU_HOST && op->kind != DS__OP_HOST && op->kind != DS__OP_CALLBACK)) {
            result = DS__CPU_MORE;
            break;
        }
        if (DS__LIKELY(ds__cpu_is_short(s, op, number))) {
            int status = op->u.kernel.kernel->cpu_fn(0, 1, (const char *)op + DS__CPU_ARGS_AT);
            if (DS__UNLIKELY(status != 0)) ds__cpu_kernel_failed(s, op, status, number + 1);
            s->head_at += (uint32_t)ds__cpu_op_bytes(op);
            ds__cpu_pass_short(s, ++number);
            unfenced = 1;
        } else {
            if (unfenced) ds__cpu_pass(s, number);
            unfenced = 0;
            uint32_t bytes = (uint32_t)ds__cpu_op_bytes(op);
            result = ds__cpu_step(w, s, op, number + 1, who);
            if (DS__UNLIKELY(result == DS__CPU_GONE)) break;
            s->head_at += bytes;
            ds__cpu_pass(s, ++number);
        }
        count++;
        /* more urgent streams at once, others after a batch; what this worker polls itself is looked at every batch */
        uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
        int batch = (count & (DS__CPU_BATCH - 1)) == 0;
        if (DS__UNLIKELY(w && number < end && ((ready && ((ready & urgent) || batch || ds__cpu.seed)) ||
                                               (batch && w->polled_count > 0)))) {
            result = DS__CPU_MORE;
            break;
        }
    }
    if (unfenced) ds__cpu_pass(s, number);
    if (w) atomic_store_explicit(&w->operations, atomic_load_explicit(&w->operations, memory_order_relaxed) + count,
                                 memory_order_relaxed);
    else atomic_fetch_add_explicit(&ds__cpu.other_operations, count, memory_order_relaxed);
    return result;
}

/* Runs an owned stream and settles what becomes of it. Returns 1 when it did something. */
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    uint32_t beat = w && ds__tls.nested == 0 ? atomic_load_explicit(&w->beat, memory_order_relaxed) + 1 : 0;
    if (beat) {
        atomic_store_explicit(&w->running, s, memory_order_relaxed);
        atomic_store_explicit(&w->beat, beat, memory_order_relaxed);
    }
    int result = ds__cpu_run_some(w, s, upto, DS__CPU_WORK);
    if (beat) atomic_store_explicit(&w->beat, beat + 1, memory_order_relaxed);
    if (result == DS__CPU_MORE) {
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_push_ready(s);
    } else if (result == DS__CPU_EMPTY) {
        if (w && w->polled_count < DS__CPU_POLL_SLOTS && !ds__cpu.no_spin && !ds__cpu.seed &&
            !atomic_load_explicit(&s->closing, memory_order_relaxed)) {
            atomic_store_explicit(&w->polled[w->polled_count++], s, memory_order_relaxed);
            atomic_store(&s->state, DS__CPU_POLLED);
        } else {
            ds__cpu_go_idle(s);
        }
    }
    return 1;
}

/* ---- >>cpu threads --------------------------------------------------------------------------------------------------- */

/* Looks once at what the worker polls; 1: there was work. */
static int ds__cpu_poll(ds__cpu_worker *w) {
    int found = 0;
    for (int i = 0; i < w->polled_count; ) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[i], memory_order_relaxed);
        uint64_t fresh = atomic_load_explicit(&s->submitted, memory_order_relaxed) -
                         atomic_load_explicit(&s->done, memory_order_relaxed);
        if (atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_POLLED && !fresh) { i++; continue; }
        atomic_store_explicit(&w->polled[i], atomic_load_explicit(&w->polled[--w->polled_count], memory_order_relaxed),
                              memory_order_relaxed);
        uint32_t polled = DS__CPU_POLLED;
        if (!atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING)) continue;
        found = 1;
        ds__cpu_run(w, s, UINT64_MAX);
    }
    return found;
}

/* A producer that streams and a worker that is right behind it would fight for the cache lines of the queue. A few dozen
   operations in short order while nobody waits: somebody streams. Then the worker's looks get further apart until one
   finds a few dozen operations; a look after a pause that finds next to nothing says that it was not so. */
static void ds__cpu_adapt(ds__cpu_worker *w, uint64_t found) {
    if (found == 0) {
        if (++w->misses >= 32) w->streak = w->delay = 0;
        return;
    }
    w->misses = 0;
    if (atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) > 0) { w->streak = w->delay = 0; return; }
    if (w->delay == 0) {
        if ((w->streak += (uint32_t)found) >= 24) w->delay = DS__CPU_STREAM_PAUSES / 8;
    } else if (found < 4) {
        w->streak = w->delay = 0;
    } else if (found < DS__CPU_STREAM_BATCH) {
        w->delay = w->delay < DS__CPU_STREAM_PAUSES / 2 ? 2 * w->delay : DS__CPU_STREAM_PAUSES;
    } else if (found > 4 * DS__CPU_STREAM_BATCH) {
        w->delay /= 2;
    }
}

static void *ds__cpu_worker_main(void *arg) {
    ds__cpu_worker *w = arg;
    ds__os_block_signals();
    ds__tls.in_callback = 1; /* what runs here is the user's code, which must not call back */
    uint64_t last = ds__now_ns();
    int spinning = 0, looks = 0;
    while (!atomic_load_explicit(&ds__cpu.quit, memory_order_acquire)) {
        int found = 0;
        uint64_t before = atomic_load_explicit(&w->operations, memory_order_relaxed);
        for (uint32_t i = 0; i < w->delay && atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) == 0; i++) ds__pause();
        ds__cpu_stream *s = ds__cpu_pop_ready();
        if (s) {
            ds__cpu_unpoll_fresh(w);
            if (ds__cpu.seed) for (uint64_t n = before * 0x9e3779b97f4a7c15u >> 62; n; n--) syscall(SYS_sched_yield);
            ds__cpu_run(w, s, UINT64_MAX);
            found = 1;
        } else if (w->polled_count) {
            found = ds__cpu_poll(w);
        }
        ds__cpu_adapt(w, atomic_load_explicit(&w->operations, memory_order_relaxed) - before);
        if (!found && atomic_load_explicit(&ds__cpu.job_count, memory_order_relaxed) > 0) {
            found = ds__cpu_job_join(w, NULL, 0);
        }
        if (found) { looks = 0; continue; }
        if (looks++ == 0) last = ds__now_ns();
        if (!spinning && !ds__cpu.no_spin && atomic_fetch_add(&ds__cpu.spinners, 1) < ds__cpu.spin_limit) spinning = 1;
        else if (!spinning && !ds__cpu.no_spin) atomic_fetch_sub(&ds__cpu.spinners, 1);
        if (spinning && ((looks & 15) || ds__now_ns() - last < DS__CPU_POLL_NS)) { ds__pause(); continue; }
        if (spinning) { atomic_fetch_sub(&ds__cpu.spinners, 1); spinning = 0; }
        ds__cpu_unpoll_all(w);
        if (atomic_load(&ds__cpu.ready_mask)) continue;
        ds__cpu_sleep();
        ds__cpu_wake_monitor();
        looks = 0;
    }
    ds__cpu_unpoll_all(w);
    return NULL;
}

static void *ds__cpu_host_main(void *unused) {
    ds__os_block_signals();
    ds__tls.in_callback = 1;
    ds__lock_take(&ds__cpu.lock);
    for (;;) {
        ds__cpu_stream *s = ds__cpu.host_head;
        if (!s) {
            uint32_t word = atomic_load(&ds__cpu.host_word); /* before quit is looked at: stop sets it, then changes this */
            if (atomic_load(&ds__cpu.quit)) break;
            ds__cpu.host_idle++;
            ds__lock_give(&ds__cpu.lock);
            ds__futex_wait(&ds__cpu.host_word, word, DS__FOREVER);
            ds__lock_take(&ds__cpu.lock);
            ds__cpu.host_idle--;
            continue;
        }
        ds__cpu.host_head = s->next;
        if (!s->next) ds__cpu.host_tail = NULL;
        ds__cpu.host_progress++;
        ds__lock_give(&ds__cpu.lock);
        atomic_store(&s->state, DS__CPU_RUNNING);
        uint64_t done = 0;
        int result;
        do { /* as long as host functions follow one another */
            done = atomic_load_explicit(&s->done, memory_order_relaxed);
            result = ds__cpu_run_some(NULL, s, UINT64_MAX, DS__CPU_HOST);
        } while (result == DS__CPU_EMPTY && atomic_load_explicit(&s->done, memory_order_relaxed) != done);
        if (result == DS__CPU_MORE) {
            atomic_store(&s->state, DS__CPU_READY);
            ds__cpu_push_ready(s);
        } else {
            ds__cpu_go_idle(s);
        }
        ds__lock_take(&ds__cpu.lock);
    }
    ds__lock_give(&ds__cpu.lock);
    (void)unused;
    return NULL;
}

/* One tick: returns 1 while there is something to watch. */
static int ds__cpu_watch(uint64_t *host_progress) {
    int busy = 0;
    ds__lock_take(&ds__cpu.lock);
    if (ds__cpu.host_head) {
        busy = 1;
        if (ds__cpu.host_idle == 0 && *host_progress == ds__cpu.host_progress) ds__cpu_host_spawn();
        *host_progress = ds__cpu.host_progress;
    }
    ds__lock_give(&ds__cpu.lock);
    if (atomic_load(&ds__cpu.parked) < ds__cpu.workers) busy = 1;
    for (int i = 0; i < ds__cpu.workers; i++) {
        ds__cpu_worker *w = &ds__cpu.worker[i];
        uint32_t beat = atomic_load_explicit(&w->beat, memory_order_relaxed);
        if ((beat & 1) && beat == w->last_beat) {
            /* in one operation, or one long run, for a whole tick: what it polls, what is ready, and who was missed when the
               last short operation was passed, must not wait */
            for (int k = 0; k < DS__CPU_POLL_SLOTS; k++) {
                ds__cpu_stream *s = atomic_load_explicit(&w->polled[k], memory_order_relaxed);
                if (s && ds__cpu_has_work(s)) ds__cpu_unpoll(s);
            }
            ds__cpu_stream *running = atomic_load_explicit(&w->running, memory_order_relaxed);
            if (running && atomic_load(&running->waiting)) ds__cpu_notify(running);
            if (atomic_load(&ds__cpu.ready_mask) && atomic_load(&ds__cpu.parked) > 0) ds__cpu_wake_worker();
        }
        w->last_beat = beat;
    }
    return busy;
}

static void *ds__cpu_monitor_main(void *unused) {
    uint64_t host_progress = 0;
    ds__os_block_signals();
    while (!atomic_load(&ds__cpu.quit)) {
        if (ds__cpu_watch(&host_progress)) {
            struct timespec t = { 0, DS__CPU_TICK_NS };
            syscall(SYS_nanosleep, &t, NULL);
            continue;
        }
        atomic_store(&ds__cpu.monitor_word, 0);
        if (ds__cpu_watch(&host_progress)) { atomic_store(&ds__cpu.monitor_word, 1); continue; }
        if (!atomic_load(&ds__cpu.quit)) ds__futex_wait(&ds__cpu.monitor_word, 0, DS__FOREVER);
    }
    (void)unused;
    return NULL;
}

/* ---- >>cpu waiting ---------------------------------------------------------------------------------------------------- */

/* A waiting thread runs what the awaited operation depends on, and nothing else: the stream itself up to that operation,
   or the stream on which it is parked, and so on. Returns 1 when it did something. */
static int ds__cpu_help(ds__cpu_stream *s, uint64_t upto) {
    for (int depth = 0; depth < 64; depth++) {
        switch (atomic_load_explicit(&s->state, memory_order_acquire)) {
        case DS__CPU_READY: {
            if (!ds__cpu_take_ready(s)) return 0;
            int outer = ds__tls.in_callback;
            ds__tls.in_callback = 1;
            ds__cpu_run(NULL, s, upto);
            ds__tls.in_callback = outer;
            atomic_fetch_add_explicit(&ds__cpu.helped, 1, memory_order_relaxed);
            return 1;
        }
        case DS__CPU_POLLED: { /* the worker that polls it has not come for it in all this time */
            uint32_t polled = DS__CPU_POLLED;
            if (ds__cpu_has_work(s) && atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING)) {
                atomic_store(&s->state, DS__CPU_READY);
                ds__cpu_push_ready(s);
                continue; /* and take it from there */
            }
            return 0;
        }
        case DS__CPU_RUNNING:
            return atomic_load_explicit(&s->job, memory_order_relaxed) != NULL && ds__cpu_job_join(NULL, s, upto);
        case DS__CPU_PARKED: {
            uint32_t count = atomic_load(&s->park_count);
            ds__cpu_stream *on = atomic_load(&s->park_on);
            uint64_t number = atomic_load(&s->park_upto);
            /* unchanged since: while s has not passed `upto`, what it is parked on is what it depends on */
            if ((count & 1) || atomic_load(&s->done) >= upto || atomic_load(&s->park_count) != count) return 0;
            s = on;
            upto = number;
            break;
        }
        default:
            return 0;
        }
    }
    return 0;
}

/* Waits until the stream has passed `upto`; 0: the time was over first. With a time limit it runs nothing. */
static int ds__cpu_wait_slow(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns, int sleep_at_once) {
    int help = timeout_ns == DS__FOREVER && !ds__cpu.seed && !sleep_at_once;
    uint64_t start = ds__now_ns(), spun = start;
    uint64_t deadline = timeout_ns > DS__FOREVER - 1 - start ? DS__FOREVER : start + timeout_ns;
    for (uint32_t spins = 0; !sleep_at_once && !ds__cpu.no_spin; spins++) {
        if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto) return 1;
        /* now and then only: looking at the stream's state takes its cache line from the worker */
        if (help && spins % 32 == 0 && ds__cpu_help(s, upto)) { spun = ds__now_ns(); continue; }
        ds__pause();
        if (spins % 16 != 15) continue;
        uint64_t now = ds__now_ns();
        if (now >= deadline) return 0;
        if (now - spun > DS__CPU_WAIT_SPIN_NS) break;
    }
    _Atomic uint32_t flag = 0;
    ds__cpu_waiter me = { NULL, upto, NULL, &flag };
    ds__lock_take(&s->wait_lock);
    int listed = ds__cpu_enlist(s, &me);
    ds__lock_give(&s->wait_lock);
    while (listed && atomic_load_explicit(&flag, memory_order_acquire) == 0) {
        if (help && ds__cpu_help(s, upto)) continue;
        uint64_t left = DS__FOREVER;
        if (deadline != DS__FOREVER) {
            uint64_t now = ds__now_ns();
            if (now >= deadline) {
                ds__lock_take(&s->wait_lock);
                for (ds__cpu_waiter **p = &s->waiters; *p; p = &(*p)->next)
                    if (*p == &me) { *p = me.next; listed = 0; break; }
                ds__lock_give(&s->wait_lock);
                return !listed ? 0 : 1; /* not in the list any more: it was passed in this moment */
            }
            left = deadline - now;
        }
        ds__futex_wait(&flag, 0, left);
    }
    return 1;
}

static int ds__cpu_wait(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns, int sleep_at_once) {
    if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto) return 1;
    if (timeout_ns == 0) return 0;
    if (!sleep_at_once && !ds__cpu.no_spin) {
        /* Most waits are over in a microsecond. Looking at the stream's state, for help, takes its cache line from the worker:
           so once, for a stream that nobody has yet, and then leave the worker alone. */
        if (timeout_ns == DS__FOREVER && !ds__cpu.seed && atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_READY)
            ds__cpu_help(s, upto);
        for (int spins = 0; spins < 64; spins++) {
            if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto) return 1;
            ds__pause();
        }
    }
    atomic_fetch_add_explicit(&ds__cpu.hurry, 1, memory_order_relaxed);
    int over = ds__cpu_wait_slow(s, upto, timeout_ns, sleep_at_once);
    atomic_fetch_sub_explicit(&ds__cpu.hurry, 1, memory_order_relaxed);
    return over;
}

/* ---- >>cpu submission -------------------------------------------------------------------------------------------------- */

static ds_result ds__cpu_report(const ds__cpu_failure *f) { return ds__fail(DS_ERR_FAILED, "%s", f->text); }

/* The legacy stream waits for all that was put on the device's blocking streams. Legacy and put locks are held. */
static ds_result ds__cpu_legacy_gather(ds__cpu_stream *legacy) {
    ds__cpu_device *d = &ds__cpu.device[legacy->device];
    ds_result r = DS_OK;
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *b = d->streams; b && r == DS_OK; b = b->all_next) {
        if (b == legacy || !(b->flags & DS_STREAM_BLOCKING)) continue;
        uint64_t tail = atomic_load(&b->submitted);
        if (tail == b->seen_by_legacy || atomic_load(&b->done) >= tail) continue;
        ds__op wait = { .kind = DS__OP_WAIT };
        wait.u.wait.stream = b;
        wait.u.wait.upto = tail;
        r = ds__cpu_put(legacy, &wait);
        if (r == DS_OK) b->seen_by_legacy = tail;
    }
    ds__lock_give(&d->lock);
    return r;
}

/* A blocking stream waits for what was put on the legacy stream. Legacy and put locks are held. */
static ds_result ds__cpu_legacy_follow(ds__cpu_stream *s) {
    ds__cpu_stream *legacy = ds__cpu.device[s->device].legacy;
    uint64_t tail = atomic_load(&legacy->submitted);
    if (tail == s->legacy_seen || atomic_load(&legacy->done) >= tail) return DS_OK;
    ds__op wait = { .kind = DS__OP_WAIT };
    wait.u.wait.stream = legacy;
    wait.u.wait.upto = tail;
    ds_result r = ds__cpu_put(s, &wait);
    if (r == DS_OK) s->legacy_seen = tail;
    return r;
}

/* Takes the locks for a submission; where the legacy rules apply, the device's legacy lock first. Returns whether. */
static int ds__cpu_put_begin(ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    ds__lock_take(&s->put_lock);
    if (DS__LIKELY(!(s->flags & DS_STREAM_BLOCKING)) || !atomic_load(&d->legacy_used)) return 0;
    ds__lock_give(&s->put_lock);
    ds__lock_take(&d->legacy_lock);
    ds__lock_take(&s->put_lock);
    return 1;
}

static void ds__cpu_put_end(ds__cpu_stream *s, int with_legacy) {
    ds__lock_give(&s->put_lock);
    if (with_legacy) ds__lock_give(&ds__cpu.device[s->device].legacy_lock);
}

static ds_result ds__cpu_legacy_order(ds__cpu_stream *s) {
    return s->kind == DS__STREAM_LEGACY ? ds__cpu_legacy_gather(s) : ds__cpu_legacy_follow(s);
}

/* Inline mode: the submitter runs what it has put in, or waits for the thread that does. */
static void ds__cpu_run_inline(ds__cpu_stream *s, uint64_t number) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING)) {
        int outer = ds__tls.in_callback;
        ds__tls.in_callback = 1;
        int result = ds__cpu_run_some(NULL, s, UINT64_MAX, DS__CPU_ALL);
        ds__tls.in_callback = outer;
        if (result != DS__CPU_GONE) ds__cpu_go_idle(s);
    }
    ds__cpu_wait(s, number, DS__FOREVER, 1);
}

/* Puts an operation on a stream; *out_number (may be NULL) is its number. number_only: nothing is put, the number is
   that of the last operation, after the legacy rules have been applied. */
static ds_result ds__cpu_enqueue(ds__cpu_stream *s, const ds__op *op, uint64_t *out_number) {
    ds_result r = DS_OK;
    int legacy = ds__cpu_put_begin(s);
    if (DS__UNLIKELY(atomic_load_explicit(&s->closing, memory_order_relaxed)))
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the native stream was destroyed");
    if (r == DS_OK && DS__UNLIKELY(legacy)) r = ds__cpu_legacy_order(s);
    if (r == DS_OK && op) r = ds__cpu_put(s, op);
    uint64_t number = atomic_load_explicit(&s->submitted, memory_order_relaxed);
    ds__cpu_put_end(s, legacy);
    if (out_number) *out_number = number;
    if (DS__UNLIKELY(ds__cpu.is_inline)) ds__cpu_run_inline(s, number); else ds__cpu_kick(s);
    return r;
}

/* The inline rule (DS__INLINE_BYTES): on an idle stream the caller runs a small copy or fill itself. 0: it did not. */
static int ds__cpu_at_once(ds__cpu_stream *s, const ds__op *op) {
    if (ds__cpu.seed || ds__cpu.is_inline || ds__op_bytes(op) > DS__INLINE_BYTES || (op->flags & DS__OP_STAGED)) return 0;
    if ((s->flags & DS_STREAM_BLOCKING) && atomic_load(&ds__cpu.device[s->device].legacy_used)) return 0;
    if (!ds__trylock(&s->put_lock)) return 0;
    uint64_t number = atomic_load_explicit(&s->submitted, memory_order_relaxed);
    uint32_t state = atomic_load_explicit(&s->state, memory_order_acquire);
    int mine = number == atomic_load_explicit(&s->done, memory_order_acquire) &&
               !((s->flags & DS_STREAM_BLOCKING) && atomic_load(&ds__cpu.device[s->device].legacy_used)) && /* under the lock */
               !atomic_load_explicit(&s->closing, memory_order_relaxed) &&
               (state == DS__CPU_IDLE || state == DS__CPU_POLLED) &&
               atomic_compare_exchange_strong(&s->state, &state, DS__CPU_RUNNING);
    /* what the stream has passed may have failed since the caller looked */
    int failed = mine && ds__cpu_stream_failure(s) != NULL;
    if (mine && !failed) {
        if (op->kind == DS__OP_COPY) ds__cpu_copy_part(op, 0, ds__op_bytes(op), 0);
        else ds__cpu_fill_part(op, 0, op->u.fill.width * op->u.fill.height);
        atomic_store(&s->submitted, number + 1);
        ds__cpu_pass(s, number + 1);
    }
    ds__lock_give(&s->put_lock);
    if (!mine) return 0;
    ds__cpu_go_idle(s);
    if (failed) return 0;
    atomic_fetch_add_explicit(&ds__cpu.inlined, 1, memory_order_relaxed);
    return 1;
}

/* The number of the stream's last operation, as of now and after the legacy rules. If that one failed before a reset, an
   operation that does nothing gives a new number. */
static ds_result ds__cpu_mark(ds__cpu_stream *s, uint64_t *out_upto) {
    ds_result r = DS_OK;
    if (s->flags & DS_STREAM_BLOCKING) r = ds__cpu_enqueue(s, NULL, out_upto);
    else *out_upto = atomic_load_explicit(&s->submitted, memory_order_acquire);
    if (DS__LIKELY(r < 0 || !atomic_load_explicit(&s->past, memory_order_acquire) || !ds__cpu_failed(s, *out_upto))) return r;
    ds__op nothing = { .kind = DS__OP_NOTHING };
    return ds__cpu_enqueue(s, &nothing, out_upto);
}

/* A copy or fill; the caller waits for it, and for nothing behind it, when it touches pageable memory. */
static ds_result ds__cpu_submit_move(ds__cpu_stream *s, const ds__op *op) {
    uint64_t number;
    ds_result r = ds__cpu_enqueue(s, op, &number);
    if (r < 0 || !(op->flags & DS__OP_BLOCKS)) return r;
    ds__cpu_wait(s, number, DS__FOREVER, 0);
    ds__cpu_failure *f = ds__cpu_failed(s, number);
    return f ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_kernel_load(int device, ds__kernel *kernel) {
    (void)device;
    return kernel->cpu_fn ? DS_OK : ds__fail(DS_ERR_UNSUPPORTED, "kernel %s has no CPU form", kernel->name);
}
static void ds__cpu_kernel_destroy(ds__kernel *kernel) { (void)kernel; }

static ds_result ds__cpu_submit_record(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_wait(ds__cpu_stream *s, const ds__op *op, ds__cpu_stream *on, uint64_t upto);

static ds_result ds__cpu_submit(void *stream, const ds__op *op) {
    ds__cpu_stream *s = stream;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (DS__UNLIKELY(f != NULL)) return ds__cpu_report(f);
    switch (op->kind) {
    case DS__OP_KERNEL:
        if (DS__UNLIKELY(!op->u.kernel.kernel->cpu_fn)) return ds__cpu_kernel_load(0, op->u.kernel.kernel);
        return ds__cpu_enqueue(s, op, NULL);
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (ds__cpu_at_once(s, op)) return DS_OK;
        return ds__cpu_submit_move(s, op);
    case DS__OP_RECORD:
        return ds__cpu_submit_record(s, op);
    case DS__OP_WAIT: {
        ds__cpu_event *e = op->u.event.event;
        ds__lock_take(&e->lock);
        ds__cpu_stream *on = e->stream;
        uint64_t upto = e->upto;
        ds__lock_give(&e->lock);
        return on ? ds__cpu_submit_wait(s, op, on, upto) : DS_OK;
    }
    case DS__OP_WAIT_STREAM: {
        uint64_t upto;
        if (op->u.wait.stream == s) return DS_OK;
        ds_result r = ds__cpu_mark(op->u.wait.stream, &upto);
        return r < 0 ? r : ds__cpu_submit_wait(s, op, op->u.wait.stream, upto);
    }
    default: {
        ds_result r = ds__cpu_host_ready();
        return r < 0 ? r : ds__cpu_enqueue(s, op, NULL);
    }
    }
}

static ds_result ds__cpu_submit_wait(ds__cpu_stream *s, const ds__op *op, ds__cpu_stream *on, uint64_t upto) {
    /* Nothing to wait for. On the legacy stream a wait is an action all the same: blocking streams are ordered by it. */
    if ((on == s || atomic_load_explicit(&on->done, memory_order_acquire) >= upto) && !ds__cpu_failed(on, upto) &&
        s->kind != DS__STREAM_LEGACY) return DS_OK;
    ds__op wait = *op;
    wait.kind = DS__OP_WAIT;
    wait.u.wait.stream = on;
    wait.u.wait.upto = upto;
    return ds__cpu_enqueue(s, &wait, NULL);
}

/* ---- >>cpu streams ------------------------------------------------------------------------------------------------------ */

static int ds__cpu_clamp(int priority) {
    return priority > 0 ? 0 : priority < 1 - DS__CPU_LEVELS ? 1 - DS__CPU_LEVELS : priority;
}

static ds__cpu_stream *ds__cpu_stream_make(int device, int kind, unsigned flags, int priority) {
    ds__lock_take(&ds__cpu.object_lock);
    if (!ds__cpu.free_streams) {
        ds__cpu_stream *slab = ds__cpu_raw(16 * sizeof *slab);
        for (int i = 0; slab && i < 16; i++) { slab[i].next = ds__cpu.free_streams; ds__cpu.free_streams = &slab[i]; }
    }
    ds__cpu_stream *s = ds__cpu.free_streams;
    if (s) ds__cpu.free_streams = s->next;
    ds__lock_give(&ds__cpu.object_lock);
    if (!s) return NULL;
    ds__cpu_device *d = &ds__cpu.device[device];
    s->device = device;
    s->kind = kind;
    s->flags = kind == DS__STREAM_NEW ? flags : DS_STREAM_BLOCKING;
    s->level = priority + DS__CPU_LEVELS - 1;
    s->floating = 0;
    s->legacy_seen = s->seen_by_legacy = 0;
    atomic_store(&s->closing, 0);
    atomic_store(&s->state, DS__CPU_IDLE);
    atomic_fetch_add(&ds__cpu.stream_count, 1);
    ds__lock_take(&d->lock);
    s->all_prev = NULL;
    s->all_next = d->streams;
    if (d->streams) d->streams->all_prev = s;
    d->streams = s;
    if (kind == DS__STREAM_LEGACY) {
        d->legacy = s;
        atomic_store(&d->legacy_used, 1);
        /* A submission that began before it saw this ends first; later ones see it. */
        for (ds__cpu_stream *b = d->streams; b; b = b->all_next) { ds__lock_take(&b->put_lock); ds__lock_give(&b->put_lock); }
    }
    ds__lock_give(&d->lock);
    return s;
}

static ds_result ds__cpu_stream_create(int device, int kind, unsigned flags, int *priority, void **out) {
    *priority = ds__cpu_clamp(*priority);
    *out = ds__cpu_stream_make(device, kind, flags, *priority);
    return *out ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a stream");
}

/* The caller owns the stream; it is drained and nobody can put work on it. A stream that ever failed is not used again,
   since events may still ask whether their number failed. */
static void ds__cpu_recycle(ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    ds__lock_take(&d->lock);
    if (s->all_prev) s->all_prev->all_next = s->all_next; else d->streams = s->all_next;
    if (s->all_next) s->all_next->all_prev = s->all_prev;
    ds__lock_give(&d->lock);
    atomic_store(&s->state, DS__CPU_FREE);
    atomic_fetch_sub(&ds__cpu.stream_count, 1);
    if (s->had_failure) return;
    ds__lock_take(&ds__cpu.object_lock);
    s->next = ds__cpu.free_streams;
    ds__cpu.free_streams = s;
    ds__lock_give(&ds__cpu.object_lock);
}

static void ds__cpu_stream_destroy(void *stream) {
    ds__cpu_stream *s = stream;
    ds__lock_take(&s->put_lock); /* after this no operation gets in any more */
    atomic_store(&s->closing, 1);
    ds__lock_give(&s->put_lock);
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING)) ds__cpu_go_idle(s);
}

static void ds__cpu_stream_unwrap(void *stream) {
    ds__cpu_stream *s = stream;
    ds__lock_take(&ds__cpu.device[s->device].lock);
    s->floating = 1;
    ds__lock_give(&ds__cpu.device[s->device].lock);
}

static ds_result ds__cpu_stream_wrap(int device, void *native, int own, unsigned *out_flags, int *out_priority, void **out) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds_result r = DS_ERR_INVALID_VALUE;
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
        if (s != native || atomic_load(&s->closing)) continue;
        if (own && !s->floating) { r = DS_ERR_ILLEGAL_STATE; break; }
        if (own) s->floating = 0;
        *out_flags = s->flags;
        *out_priority = s->level + 1 - DS__CPU_LEVELS;
        *out = s;
        r = DS_OK;
    }
    ds__lock_give(&d->lock);
    if (r == DS_ERR_ILLEGAL_STATE) return ds__fail(DS_ERR_INVALID_VALUE, "the native stream has an owner already");
    return r == DS_OK ? r : ds__fail(r, "%p is not a stream of cpu:%d", native, device);
}

static ds_result ds__cpu_stream_native(void *stream, void **out) { *out = stream; return DS_OK; }
static const void *ds__cpu_stream_identity(void *stream) { return stream; }
static void ds__cpu_stream_hide(void *stream) { (void)stream; }
static void ds__cpu_stream_forget(void *stream) { (void)stream; }
static ds_result ds__cpu_copy_now(const ds__op *op) { (void)op; return ds__fail(DS_ERR_UNSUPPORTED, "only a GPU's memory needs this"); }

/* A token for the last operation of a stream. */
typedef struct ds__cpu_token { ds__cpu_stream *stream; uint64_t upto; } ds__cpu_token;

/* Tokens for the unfinished work of the device's streams (blocking ones only, or all). NULL with *out_count 0: none;
   with *out_count SIZE_MAX: no memory. */
static ds__cpu_token *ds__cpu_tokens(int device, int blocking_only, size_t *out_count) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_token *list = NULL;
    size_t room = 0, count = 0;
    for (;;) {
        count = 0;
        ds__lock_take(&d->lock);
        for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
            uint64_t tail = atomic_load(&s->submitted);
            if ((blocking_only && !(s->flags & DS_STREAM_BLOCKING)) || atomic_load(&s->done) >= tail) continue;
            if (count < room) { list[count].stream = s; list[count].upto = tail; }
            count++;
        }
        ds__lock_give(&d->lock);
        if (count <= room) break;
        ds__release(list);
        room = count + 16;
        list = ds__alloc(room * sizeof *list);
        if (!list) { count = SIZE_MAX; break; }
    }
    *out_count = count;
    return list;
}

/* Waits for the tokens, for the rest of the time; 0: the time was over first. */
static int ds__cpu_wait_all(const ds__cpu_token *list, size_t count, uint64_t timeout_ns) {
    uint64_t start = ds__now_ns();
    for (size_t i = 0; i < count; i++) {
        uint64_t left = timeout_ns;
        if (timeout_ns != DS__FOREVER) {
            uint64_t gone = ds__now_ns() - start;
            left = gone < timeout_ns ? timeout_ns - gone : 0;
        }
        if (!ds__cpu_wait(list[i].stream, list[i].upto, left, 0)) return 0;
    }
    return 1;
}

static ds_result ds__cpu_wait_device(int device, int blocking_only, uint64_t timeout_ns) {
    size_t count;
    ds__cpu_token *list = ds__cpu_tokens(device, blocking_only, &count);
    if (count == SIZE_MAX) return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to list the device's streams");
    int over = ds__cpu_wait_all(list, count, timeout_ns);
    ds__release(list);
    return over ? DS_OK : DS_NOT_READY;
}

static ds_result ds__cpu_settled(const ds__cpu_stream *s) {
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    return DS__UNLIKELY(f != NULL) ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_stream_query(void *stream) {
    ds__cpu_stream *s = stream;
    if (s->kind == DS__STREAM_LEGACY) {
        ds_result r = ds__cpu_wait_device(s->device, 1, 0);
        return r == DS_OK ? ds__cpu_settled(s) : r;
    }
    uint64_t tail = atomic_load_explicit(&s->submitted, memory_order_acquire);
    return atomic_load_explicit(&s->done, memory_order_acquire) >= tail ? ds__cpu_settled(s) : DS_NOT_READY;
}

static ds_result ds__cpu_stream_synchronize(void *stream, uint64_t timeout_ns) {
    ds__cpu_stream *s = stream;
    ds_result r;
    if (s->kind == DS__STREAM_LEGACY)
        r = ds__cpu_wait_device(s->device, 1, timeout_ns);
    else
        r = ds__cpu_wait(s, atomic_load_explicit(&s->submitted, memory_order_acquire), timeout_ns, 0) ? DS_OK : DS_NOT_READY;
    return r == DS_OK ? ds__cpu_settled(s) : r;
}

/* ---- >>cpu events -------------------------------------------------------------------------------------------------------- */

static ds_result ds__cpu_event_create(int device, unsigned flags, void **out) {
    (void)device;
    if (*out) return DS_OK; /* an event is not tied to a device */
    ds__lock_take(&ds__cpu.object_lock);
    if (!ds__cpu.free_events) {
        ds__cpu_event *slab = ds__cpu_raw(64 * sizeof *slab);
        for (int i = 0; slab && i < 64; i++) { slab[i].next = ds__cpu.free_events; ds__cpu.free_events = &slab[i]; }
    }
    ds__cpu_event *e = ds__cpu.free_events;
    if (e) ds__cpu.free_events = e->next;
    ds__lock_give(&ds__cpu.object_lock);
    *out = e;
    if (!e) return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    e->flags = flags;
    e->stream = NULL;
    e->stamp = NULL;
    return DS_OK;
}

static void ds__cpu_event_destroy(void *event) {
    ds__cpu_event *e = event;
    ds__cpu_stamp_give(e->stamp);
    e->stamp = NULL;
    ds__lock_take(&ds__cpu.object_lock);
    e->next = ds__cpu.free_events;
    ds__cpu.free_events = e;
    ds__lock_give(&ds__cpu.object_lock);
}

static ds__cpu_stamp *ds__cpu_stamp_take(void) {
    ds__lock_take(&ds__cpu.object_lock);
    if (!ds__cpu.free_stamps) {
        ds__cpu_stamp *slab = ds__cpu_raw(64 * sizeof *slab);
        for (int i = 0; slab && i < 64; i++) { slab[i].next = ds__cpu.free_stamps; ds__cpu.free_stamps = &slab[i]; }
    }
    ds__cpu_stamp *stamp = ds__cpu.free_stamps;
    if (stamp) ds__cpu.free_stamps = stamp->next;
    ds__lock_give(&ds__cpu.object_lock);
    if (stamp) {
        atomic_store_explicit(&stamp->refs, 2, memory_order_relaxed); /* the event's and the queue's */
        atomic_store_explicit(&stamp->ns, 0, memory_order_relaxed);
    }
    return stamp;
}

/* A record without timing is the number of the stream's last operation; with timing it is an operation of its own. */
static ds_result ds__cpu_submit_record(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_event *e = op->u.event.event;
    ds__cpu_stamp *stamp = NULL;
    uint64_t upto;
    ds_result r;
    if (e->flags & DS_EVENT_TIMING) {
        stamp = ds__cpu_stamp_take();
        if (!stamp) return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a time stamp");
        ds__op record = *op;
        record.u.stamp.stamp = stamp;
        r = ds__cpu_enqueue(s, &record, &upto);
        if (r < 0) ds__cpu_stamp_give(stamp);
    } else {
        r = ds__cpu_mark(s, &upto);
    }
    if (r < 0) { ds__cpu_stamp_give(stamp); return r; }
    ds__lock_take(&e->lock);
    ds__cpu_stamp *old = e->stamp;
    e->stream = s;
    e->upto = upto;
    e->stamp = stamp;
    ds__lock_give(&e->lock);
    ds__cpu_stamp_give(old);
    return DS_OK;
}

static ds__cpu_token ds__cpu_event_token(ds__cpu_event *e) {
    ds__lock_take(&e->lock);
    ds__cpu_token t = { e->stream, e->upto };
    ds__lock_give(&e->lock);
    return t;
}

static ds_result ds__cpu_token_state(ds__cpu_token t) {
    if (!t.stream) return DS_OK;
    if (atomic_load_explicit(&t.stream->done, memory_order_acquire) < t.upto) return DS_NOT_READY;
    ds__cpu_failure *f = ds__cpu_failed(t.stream, t.upto);
    return f ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_event_query(void *event) { return ds__cpu_token_state(ds__cpu_event_token(event)); }

static ds_result ds__cpu_event_synchronize(void *event, uint64_t timeout_ns) {
    ds__cpu_token t = ds__cpu_event_token(event);
    if (t.stream && !ds__cpu_wait(t.stream, t.upto, timeout_ns, (((ds__cpu_event *)event)->flags & DS_EVENT_BLOCKING_WAIT) != 0))
        return DS_NOT_READY;
    return ds__cpu_token_state(t);
}

static ds_result ds__cpu_event_elapsed(void *start, void *end, double *out_ms) {
    ds__cpu_event *e[2] = { start, end };
    uint64_t ns[2];
    for (int i = 0; i < 2; i++) {
        ds__lock_take(&e[i]->lock);
        ds__cpu_token t = { e[i]->stream, e[i]->upto };
        ns[i] = e[i]->stamp ? atomic_load_explicit(&e[i]->stamp->ns, memory_order_acquire) : 0;
        ds__lock_give(&e[i]->lock);
        ds_result r = ds__cpu_token_state(t);
        if (r != DS_OK) return r;
        if (ns[i] == 0) return DS_NOT_READY; /* recorded again in this moment */
    }
    *out_ms = (double)(int64_t)(ns[1] - ns[0]) / 1e6;
    return DS_OK;
}

/* ---- >>cpu memory --------------------------------------------------------------------------------------------------------- */

/* The core keeps the table of all memory; what it does not know is ordinary host memory. */
static ds_result ds__cpu_pointer_query(const void *ptr, ds_pointer_info *out) {
    (void)ptr;
    memset(out, 0, sizeof *out);
    out->device.type = DS_DEVICE_HOST;
    return DS_OK;
}

/* Aligned to 512. */
static void *ds__cpu_memory(size_t size) {
    return size > SIZE_MAX - 1024 ? NULL : aligned_alloc(512, (size + 511) & ~(size_t)511);
}

static ds_result ds__cpu_memory_alloc(int device, size_t size, void **out) {
    ds__cpu_device *d = &ds__cpu.device[device];
    size_t used = atomic_load(&d->used);
    do {
        if (size > d->limit || used > d->limit - size)
            return ds__fail(DS_ERR_LIMIT_EXCEEDED, "%zu bytes do not fit on cpu:%d: %zu of %zu bytes are in use", size, device,
                            used, d->limit);
    } while (!atomic_compare_exchange_weak(&d->used, &used, used + size));
    *out = ds__cpu_memory(size);
    if (*out) return DS_OK;
    atomic_fetch_sub(&d->used, size);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "the system has no %zu bytes for cpu:%d", size, device);
}

static ds_result ds__cpu_host_alloc(size_t size, void **out) {
    *out = ds__cpu_memory(size);
    return *out ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "the system has no %zu bytes of pinned memory", size);
}

static ds_result ds__cpu_host_register(void *ptr, size_t size) { (void)ptr; (void)size; return DS_OK; }

static ds_result ds__cpu_memory_wait(int device) {
    ds_result r = DS_OK;
    for (int i = device < 0 ? 0 : device; i < (device < 0 ? ds__cpu.devices : device + 1) && r == DS_OK; i++)
        r = ds__cpu_wait_device(i, 0, DS__FOREVER);
    return r;
}

static ds_result ds__cpu_memory_release(ds_memory_kind kind, int device, void *ptr, size_t size) {
    if (kind == DS_MEMORY_DEVICE) atomic_fetch_sub(&ds__cpu.device[device].used, size);
    if (kind != DS_MEMORY_REGISTERED) free(ptr);
    return DS_OK;
}

/* Waits for one unfinished stream after the other; needs no memory. */
static void ds__cpu_drain(void) {
    for (int i = 0; i < ds__cpu.devices; i++) {
        ds__cpu_token t;
        do {
            t.stream = NULL;
            t.upto = 0;
            ds__lock_take(&ds__cpu.device[i].lock);
            for (ds__cpu_stream *s = ds__cpu.device[i].streams; s && !t.stream; s = s->all_next)
                if (atomic_load(&s->done) < atomic_load(&s->submitted)) { t.stream = s; t.upto = atomic_load(&s->submitted); }
            ds__lock_give(&ds__cpu.device[i].lock);
            if (t.stream) ds__cpu_wait(t.stream, t.upto, DS__FOREVER, 0);
        } while (t.stream);
    }
}

/* ---- >>cpu devices --------------------------------------------------------------------------------------------------------- */

static ds_result ds__cpu_device_properties(int device, ds_device_properties *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "devstream CPU device %d", device);
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out->name, sizeof out->name, "%.120s", colon + 2);
        break;
    }
    if (f) fclose(f);
    out->total_memory = ds__cpu.device[device].limit;
    out->multiprocessors = ds__cpu.workers;
    out->unified_addressing = 1;
    /* "devstream-cpu" and the index: the same in every process of the machine, as the device is the machine */
    memcpy(out->uuid, "devstream-cpu", 13);
    out->uuid[15] = (unsigned char)device;
    return DS_OK;
}

static ds_result ds__cpu_device_memory(int device, size_t *out_free, size_t *out_total) {
    ds__cpu_device *d = &ds__cpu.device[device];
    size_t used = atomic_load(&d->used);
    *out_total = d->limit;
    *out_free = d->limit - used;
    return DS_OK;
}

static ds_result ds__cpu_device_synchronize(int device) {
    ds_result r = ds__cpu_wait_device(device, 0, DS__FOREVER);
    ds__cpu_failure *f = atomic_load(&ds__cpu.device[device].failure);
    return r == DS_OK && f ? ds__cpu_report(f) : r;
}

static int ds__cpu_device_used(int device) { (void)device; return 1; }

static ds_result ds__cpu_device_reset(int device) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds_result r = ds__cpu_wait_device(device, 0, DS__FOREVER);
    if (r < 0) return r;
    atomic_store(&d->failure, NULL);
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
        ds__cpu_failure *f = atomic_load(&s->failure);
        if (!f) continue;
        atomic_store(&s->past_from, atomic_load(&s->failed_from));
        atomic_store(&s->past_upto, atomic_load(&s->done));
        atomic_store(&s->past, f);
        atomic_store(&s->failure, NULL);
    }
    ds__lock_give(&d->lock);
    return DS_OK;
}

static ds_result ds__cpu_device_peer(int device, int peer, int *out) {
    *out = device == peer || !ds__cpu.peers || ds__cpu.peers[device * ds__cpu.devices + peer] != 0;
    return DS_OK;
}

static ds_result ds__cpu_priority_range(int device, int *out_least, int *out_greatest) {
    (void)device;
    *out_least = 0;
    *out_greatest = 1 - DS__CPU_LEVELS;
    return DS_OK;
}

/* ---- >>cpu start and stop ----------------------------------------------------------------------------------------------------- */

static int ds__cpu_option(int value, const char *name, int fallback, int most) {
    uint64_t n = value > 0 ? (uint64_t)value : ds__env_number(name);
    if (n == 0) n = (uint64_t)fallback;
    return n > (uint64_t)most ? most : (int)n;
}

static const ds_cpu_desc *ds__cpu_desc(void) {
    static const ds_cpu_desc none = { 0, 0, 0, NULL, 0, 0 };
    return ds__g.desc.cpu ? ds__g.desc.cpu : &none;
}

static void ds__cpu_probe(ds_backend_info *out) {
    out->name = "cpu";
    out->type = DS_DEVICE_CPU;
    out->available = 1;
    out->device_count = ds__cpu_option(ds__cpu_desc()->devices, "DEVSTREAM_CPU_DEVICES", 1, DS__CPU_MAX_DEVICES);
    snprintf(out->reason, sizeof out->reason, "taken: %d virtual device%s on this machine's %d processor%s", out->device_count,
             out->device_count == 1 ? "" : "s", ds__os_processors(), ds__os_processors() == 1 ? "" : "s");
}

static void ds__cpu_stop(void);

static ds_result ds__cpu_start(void) {
    const ds_cpu_desc *desc = ds__cpu_desc();
    int processors = ds__os_processors();
    memset(&ds__cpu, 0, sizeof ds__cpu);
    ds__cpu.devices = ds__cpu_option(desc->devices, "DEVSTREAM_CPU_DEVICES", 1, DS__CPU_MAX_DEVICES);
    ds__cpu.processors = processors;
    int workers = ds__cpu_option(desc->workers, "DEVSTREAM_CPU_WORKERS", processors > 2 ? processors : 2, 256);
    ds__cpu.spin_limit = processors > 1 ? processors - 1 : 1;
    ds__cpu.no_spin = (desc->flags & DS_CPU_NO_SPIN) != 0;
    ds__cpu.is_inline = (desc->flags & DS_CPU_INLINE) || ds__env_number("DEVSTREAM_CPU_INLINE");
    ds__cpu.seed = desc->seed ? desc->seed : ds__env_number("DEVSTREAM_CPU_SEED");
    ds__cpu.random = ds__cpu.seed * 2862933555777941757u + 3037000493u;
    size_t n = (size_t)ds__cpu.devices;
    ds__cpu.device = ds__alloc(n * sizeof *ds__cpu.device);
    ds__cpu.worker = ds__alloc((size_t)workers * sizeof *ds__cpu.worker);
    if (desc->peer_access) ds__cpu.peers = ds__alloc(n * n);
    ds__cpu.started = 1;
    if (!ds__cpu.device || !ds__cpu.worker || (desc->peer_access && !ds__cpu.peers)) {
        ds__cpu_stop();
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the CPU driver");
    }
    if (desc->peer_access) memcpy(ds__cpu.peers, desc->peer_access, n * n);
    for (size_t i = 0; i < n; i++) ds__cpu.device[i].limit = desc->memory_limit ? desc->memory_limit : ds__os_memory();
    /* What the threads read is set before the first runs. All workers count as awake, so that no submission takes one that
       is starting for a missing one. */
    ds__cpu.workers = workers;
    atomic_store(&ds__cpu.lookers, workers);
    atomic_store(&ds__cpu.monitor_word, 1);
    int error = 0;
    for (int i = 0; i < workers && !error; i++) {
        error = pthread_create(&ds__cpu.worker[i].thread, NULL, ds__cpu_worker_main, &ds__cpu.worker[i]);
        if (!error) ds__cpu.workers_started++;
    }
    if (!error) error = pthread_create(&ds__cpu.monitor, NULL, ds__cpu_monitor_main, NULL);
    ds__cpu.monitor_started = error == 0;
    if (error) { ds__cpu_stop(); return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error)); }
    return DS_OK;
}

/* Drains everything, ends the threads, frees. */
static void ds__cpu_stop(void) {
    if (ds__cpu.workers_started && ds__cpu.device) ds__cpu_drain();
    if (ds__cpu.started && ds__cpu.worker && ds__cpu.device) {
        atomic_store(&ds__cpu.quit, 1);
        atomic_fetch_add(&ds__cpu.wake_word, 1);
        ds__futex_wake(&ds__cpu.wake_word, INT_MAX);
        atomic_fetch_add(&ds__cpu.host_word, 1);
        ds__futex_wake(&ds__cpu.host_word, INT_MAX);
        atomic_store(&ds__cpu.monitor_word, 1);
        ds__futex_wake(&ds__cpu.monitor_word, INT_MAX);
        if (ds__cpu.monitor_started) pthread_join(ds__cpu.monitor, NULL);
        for (int i = 0; i < ds__cpu.workers_started; i++) pthread_join(ds__cpu.worker[i].thread, NULL);
        for (int i = 0; i < ds__cpu.host_threads; i++) pthread_join(ds__cpu.host_thread[i], NULL);
    }
    while (ds__cpu.raw) { void **raw = ds__cpu.raw; ds__cpu.raw = raw[0]; ds__release(raw); }
    while (ds__cpu.failures) { ds__cpu_failure *f = ds__cpu.failures; ds__cpu.failures = f->next; ds__release(f); }
    ds__release(ds__cpu.host_thread);
    ds__release(ds__cpu.peers);
    ds__release(ds__cpu.worker);
    ds__release(ds__cpu.device);
    memset(&ds__cpu, 0, sizeof ds__cpu);
}

/* A mark is the list of tokens of everything pending, ended by one without a stream. */
static int ds__cpu_passed(void **mark) {
    ds__cpu_token *list = *mark;
    if (!list) {
        size_t count = 0, room = 0;
        for (int i = 0; i < ds__cpu.devices; i++) {
            size_t n;
            ds__cpu_token *one = ds__cpu_tokens(i, 0, &n);
            if (n == SIZE_MAX) { ds__release(list); return 0; }
            if (count + n + 1 > room) {
                ds__cpu_token *more = ds__alloc((room = count + n + 1) * sizeof *more);
                if (!more) { ds__release(one); ds__release(list); return 0; }
                if (count) memcpy(more, list, count * sizeof *more);
                ds__release(list);
                list = more;
            }
            if (n) memcpy(list + count, one, n * sizeof *list);
            list[count += n].stream = NULL;
            ds__release(one);
        }
        *mark = list;
    }
    for (; list->stream; list++)
        if (atomic_load_explicit(&list->stream->done, memory_order_acquire) < list->upto) return 0;
    ds__release(*mark);
    *mark = NULL;
    return 1;
}

static const ds__driver ds__cpu_driver = {
    "cpu", DS_DEVICE_CPU, ds__cpu_probe, ds__cpu_start, ds__cpu_device_used, ds__cpu_drain, ds__cpu_stop, ds__cpu_stream_destroy,
    ds__cpu_stream_unwrap, ds__cpu_stream_hide, ds__cpu_stream_forget, ds__cpu_stream_identity, ds__cpu_event_destroy, ds__cpu_kernel_destroy, ds__cpu_passed,
    ds__cpu_memory_release,
#define DS__MEMBER(entry, parameters, arguments) ds__cpu_##entry,
    DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

DSDEF ds_result (ds_cpu_get_stats)(ds_cpu_stats *out) {
    if (out) memset(out, 0, sizeof *out);
    if (atomic_load(&ds__g.state) == DS__COLD && !ds__tls.in_callback && out) return DS_OK;
    ds_result r = ds__enter("ds_cpu_get_stats");
    if (r < 0) return r;
    if (!out) return ds__fail(DS_ERR_INVALID_VALUE, "out is NULL");
    out->operations = atomic_load(&ds__cpu.other_operations);
    for (int i = 0; i < ds__cpu.workers; i++) out->operations += atomic_load(&ds__cpu.worker[i].operations);
    out->staged_copies = atomic_load(&ds__cpu.staged);
    out->inline_operations = atomic_load(&ds__cpu.inlined);
    out->helped = atomic_load(&ds__cpu.helped);
    out->workers = ds__cpu.workers;
    ds__lock_take(&ds__cpu.lock);
    out->host_threads = ds__cpu.host_threads;
    ds__lock_give(&ds__cpu.lock);
    out->streams = atomic_load(&ds__cpu.stream_count);
    out->queue_bytes = atomic_load(&ds__cpu.queue_bytes);
    return DS_OK;
}

#endif /* DEVSTREAM_CPU_H_IMPLEMENTED */

/* ------------------------------------------------------------------------------------------------------------------
This software is available under two licences; choose whichever you prefer.

ALTERNATIVE A - MIT License. Copyright (c) 2026 the devstream authors
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software
is furnished to do so, subject to the following conditions: The above copyright notice and this permission notice shall be
included in all copies or substantial portions of the Software.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES
OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE
LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR
IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

ALTERNATIVE B - Public Domain (www.unlicense.org)
This is free and unencumbered software released into the public domain. Anyone is free to copy, modify, publish, use, compile,
sell, or distribute this software, either in source code form or as a compiled binary, for any purpose, commercial or
non-commercial, and by any means. In jurisdictions that recognize copyright laws, the author or authors of this software dedicate
any and all copyright interest in the software to the public domain. We make this dedication for the benefit of the public at
large and to the detriment of our heirs and successors. We intend this dedication to be an overt act of relinquishment in
perpetuity of all present and future rights to this software under copyright law.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES
OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS BE LIABLE FOR ANY CLAIM,
DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
------------------------------------------------------------------------------------------------------------------ */
