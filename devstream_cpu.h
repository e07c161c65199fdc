/* devstream_cpu.h - the CPU driver of devstream: virtual devices on threads that keep CUDA's rules.

   Do this: nothing. devstream.h takes this file in from beside it; this file alone takes in devstream.h.
   Link: -pthread.

   It exists so that a program without a GPU is still the same program, and so that tests on a laptop find real ordering
   bugs: work is asynchronous, streams run side by side, an operation starts only when what it waits for is done, a
   failure is sticky for its device, and a copy that touches pageable memory blocks, as on a GPU.

   With the description of another machine (ds_cpu_fabric) it takes that one's time, on a virtual clock.

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

/** Most virtual devices. */
#define DS_CPU_MAX_DEVICES 160

enum {
    /** every call runs its work before it returns, for debugging [DEVSTREAM_CPU_INLINE=1] */
    DS_CPU_INLINE = 1,
    /** threads sleep at once instead of spinning for a few tens of microseconds first */
    DS_CPU_NO_SPIN = 2,
    /** calls that a capture forbids on a GPU although the CPU driver could do them (ds_alloc,
        ds_free, ...: see ds_capture_mode) are allowed */
    DS_CPU_LAX_CAPTURE = 4
};

/* A fabric describes a machine that is not here: the links between devices and how fast they are.
   With one the driver has a virtual clock, in nanoseconds from 0. Everything is done as without, in
   an order and at times that follow from the description alone, so that schedules can be measured
   exactly and the same on every run, for machines of any kind.

   When work runs. It is held back until a thread of the program waits for something (also
   ds_event_query and ds_stream_query do, until nothing more can be done without the program). Then
   operations run, one at a time, until that is done, and the clock goes on to the moment at which
   it was. What is submitted counts as submitted at the clock of the call, so all that is submitted
   between two waits begins together. When nothing more can run although somebody waits, the clock
   goes on to the end of all that ran. Work is not held back for ever: when for some tenths of a
   second no call has come, or more than a million operations are queued, all of it runs.

   In which order. An operation is ready when the one before it on its stream is done, and what that
   stream waited for, but not before it was submitted. Of all ready operations the one that was
   ready first comes next, of several the one whose stream was created first. It starts when all
   that it needs is free of operations that came earlier, and nothing that comes later can delay it.

   How long it takes.
   - A copy from a to b, either of which may be the host, needs a copy engine of its stream's device
     and every link of the route from a to b. It starts when one of the engines and all the links
     are free. It holds the engine for engine_ns + bytes / the slowest link's bytes_per_s, each link
     for bytes / its own bytes_per_s (so two copies share a fast link ahead of two slow ones), and
     is done latency_ns after it gives the engine back: the latency holds nothing, and a copy on
     another stream overlaps it.
   - Without a direct route between two devices the copy is two, one after the other, from a to the
     host by an engine of a and from there to b by one of b.
   - Copies within a device, fills of its memory, and kernels with ds_kernel_desc.bytes_fn, which
     the library's own have, take the bytes that they read and write / memory_bytes_per_s; one at a
     time on a device, without engine or link. Other kernels take no time.
   - Host functions, records, waits, and what only touches host memory take no time. While a host
     function runs the clock stands, unless it takes longer than some hundredths of a second:
     then it may be waiting for something, others go on, and times depend on it. Bytes / a speed
     is the nearest number of nanoseconds to bytes * 1e9 / bytes_per_s, at least 1. Times of
     events (ds_event_elapsed_ms) are the clock's. One worker runs everything, so kernels that
     wait for each other never end. */

/** The way of a copy from one device, or from the host, to another. */
typedef struct ds_cpu_route {
    int64_t latency_ns; /**< from the end of the transfer until the copy is done */
    /** between devices: 1: the first reaches the second (ds_device_can_access_peer); 0: copies
        go through the host */
    int direct;
    size_t hops;     /**< links on the way */
    const int *link; /**< their indices, each once */
} ds_cpu_route;

enum {
    /** copies, fills, and kernels with bytes_fn take their time but do nothing; device memory is
        address space that costs nothing until it is touched, and without a memory_limit each
        device has 256 GiB of it */
    DS_CPU_DRY = 1
};

/** The links between devices; see above. */
typedef struct ds_cpu_fabric {
    int devices;                    /**< of which it is; ds_cpu_desc.devices is the same or 0 */
    size_t links;                   /**< number of links, each of one direction */
    const double *link_bytes_per_s; /**< of each link, at least 1 */
    /** (devices + 1) x (devices + 1), row: from, column: to; index `devices` is host memory */
    const ds_cpu_route *route;
    int engines; /**< copy engines of each device, up to 64; 0: 3 */
    /** for which a copy holds its engine besides the transfer; 0: 1500 */
    int64_t engine_ns;
    double memory_bytes_per_s; /**< of a device's memory, read and written; 0: 2e12 */
    unsigned flags;            /**< DS_CPU_DRY or 0 */
} ds_cpu_fabric;

/** Options of the CPU driver; zero means default. */
typedef struct ds_cpu_desc {
    /** virtual devices, 1 to DS_CPU_MAX_DEVICES; 0: 1 [DEVSTREAM_CPU_DEVICES] */
    int devices;
    /** threads that run copies, fills and kernels, 1 to 256; 0: one per processor, at least 2
        [DEVSTREAM_CPU_WORKERS] */
    int workers;
    /** bytes of each device; 0: the machine's memory [DEVSTREAM_CPU_MEMORY] */
    size_t memory_limit;
    /** devices x devices, row = device that reaches, 1 = can; NULL: all can */
    const unsigned char *peer_access;
    unsigned flags; /**< DS_CPU_* */
    /** not 0: a scheduler that takes ready streams in a random order drawn from this seed, one
        operation at a time, to bring out ordering bugs [DEVSTREAM_CPU_SEED] */
    uint64_t seed;
    /** NULL: none; else a virtual clock with modelled links: workers and what the environment
        says of devices, inline mode and seed have no effect, and peer_access, DS_CPU_INLINE and
        seed must not be given; copied by ds_init */
    const ds_cpu_fabric *fabric;
} ds_cpu_desc;

/** Counters of the CPU driver since it was initialised, for tests and reports. */
typedef struct ds_cpu_stats {
    uint64_t operations;    /**< operations finished */
    uint64_t staged_copies; /**< copies between devices that cannot reach each other */
    /** operations that the calling thread ran at once on an idle stream */
    uint64_t inline_operations;
    uint64_t helped;    /**< times a waiting host thread ran a stream */
    int workers;        /**< worker threads */
    int host_threads;   /**< threads for host functions, so far */
    int streams;        /**< streams alive, destroyed ones that still have work included */
    size_t queue_bytes; /**< memory that holds pending operations, spare blocks included */
} ds_cpu_stats;

/** Reads the counters; zeros before first use. Any thread, also while work runs. */
DSDEF DS_MUST_USE ds_result ds_cpu_get_stats(ds_cpu_stats *out);

/** The virtual time now, in nanoseconds: all that the program has waited for so far was done by
    then. Runs nothing itself. DS_ERR_UNSUPPORTED without a fabric. */
DSDEF DS_MUST_USE ds_result ds_cpu_clock(int64_t *out_ns);
#ifdef __cplusplus
}
#endif
#endif /* DEVSTREAM_CPU_H_INCLUDED */

/* >>cpu-implementation */
#if defined(DEVSTREAM_IMPLEMENTATION) && defined(DS__SEAM_READY) && !defined(DEVSTREAM_CPU_H_IMPLEMENTED)
#define DEVSTREAM_CPU_H_IMPLEMENTED

/* ---- >>cpu policy ---------------------------------------------------------------------------- */

/* A stream is a queue that at most one thread at a time takes from. Its operations are numbered;
   `submitted` is the last number put in, `done` the last one passed. So (stream, number) is a
   token for "everything up to here": an event keeps one, a wait operation names one, a host
   thread sleeps on one. Stream objects are recycled, never freed before shutdown, and go on
   counting, so that a token stays true for ever. A stream that waits for a token is parked on
   the stream it waits for and costs no thread. A stream whose next operation is a host function
   goes to a thread for host functions; workers never block in the user's code. A worker that has
   emptied a stream keeps polling it for some microseconds (state POLLED), so that a stream of
   small operations costs no wake-up; before an operation that may take long it lets go of what
   it polls. A worker is woken only when no other is about to look at the ready streams
   (`lookers`). The monitor thread ticks each millisecond while anything runs: it adds a thread
   for host functions when all are stuck and takes polled streams from a worker whose operation
   takes longer than expected. */

enum {
    DS__CPU_FREE,
    DS__CPU_IDLE,
    DS__CPU_READY,
    DS__CPU_RUNNING,
    DS__CPU_POLLED,
    DS__CPU_PARKED,
    DS__CPU_AT_HOST,
    DS__CPU_COUNTS /* it has no operations, only numbers to wait for */
};

enum {
    /* priorities -5 .. 0, which recent GPUs are believed to report */
    DS__CPU_LEVELS = 6,
    /* of a block of queued operations; holds the largest operation */
    DS__CPU_BLOCK_BYTES = 8192,
    DS__CPU_SLAB_BLOCKS = 32,
    DS__CPU_POLL_SLOTS = 16,      /* streams a worker polls at most */
    DS__CPU_POLL_NS = 20000,      /* how long a worker polls before it sleeps */
    DS__CPU_WAIT_SPIN_NS = 40000, /* how long a host thread spins before it sleeps */
    /* an operation expected to take longer does not keep others waiting */
    DS__CPU_LONG_NS = 5000,
    /* the rest of a kernel is split among threads that are awake when it is expected to take
       longer */
    DS__CPU_SPLIT_NS = 2000,
    DS__CPU_CALL_NS = 40000, /* and others are woken for it when it takes that long */
    /* of a kernel that is known, about so much is run to see how long it takes now */
    DS__CPU_FIRST_NS = 20000,
    DS__CPU_NESTED = 4, /* streams that a thread runs inside of one another */
    /* operations after which a worker looks at the other ready streams */
    DS__CPU_BATCH = 256,
    DS__CPU_TICK_NS = 1000000,
    /* operations that a look at a streaming producer should find */
    DS__CPU_STREAM_BATCH = 64,
    DS__CPU_STREAM_PAUSES = 400, /* longest wait between such looks, some microseconds */
    DS__CPU_HOST_NS = 30000000,  /* virtual clock: how long it stands for a host function */
    DS__CPU_ASK_NS = 200000,     /* and a query waits this long, so many times */
    DS__CPU_ASKS = 100,
    DS__CPU_STALL_TICKS = 200, /* and without a call for so long, all work runs */
    DS__CPU_HELD = 1 << 20     /* or when so many operations are held back */
};

/* copies and fills from here on are split among threads that are awake */
#define DS__CPU_SPLIT_BYTES ((size_t)64 << 10)
#define DS__CPU_CALL_BYTES ((size_t)2 << 20)    /* and others are woken for them from here on */
#define DS__CPU_PIECE_BYTES ((size_t)128 << 10) /* at most, and a quarter of what is to be done */
/* from here on stores go around the caches; below they lose */
#define DS__CPU_STREAM_BYTES ((size_t)32 << 20)
#define DS__CPU_STREAM_PIECE ((size_t)1 << 20)
#define DS__CPU_DRY_BYTES ((size_t)1 << 20)

typedef struct ds__cpu_stream ds__cpu_stream;
typedef struct ds__cpu_lane ds__cpu_lane;
typedef struct ds__cpu_proxy ds__cpu_proxy;

/* A piece of queue memory. Operations follow one another; a DS__OP_JUMP says: go on in `next`. */
typedef struct ds__cpu_block {
    struct ds__cpu_block *next;
    uint64_t pad[7]; /* a small launch fills one cache line */
    char data[DS__CPU_BLOCK_BYTES - 64];
} ds__cpu_block;

/* What failed, once for each failure; kept until shutdown, because anything may still refer to
   it. */
typedef struct ds__cpu_failure {
    struct ds__cpu_failure *next;
    ds_result code;
    char text[384];
} ds__cpu_failure;

/* Numbers of a stream that stay failed when it runs again. */
typedef struct ds__cpu_past {
    const struct ds__cpu_past *next;
    ds__cpu_failure *failure;
    uint64_t from;
    _Atomic uint64_t upto;
} ds__cpu_past;

/* A thread or a stream that waits for a token; stands in the list of the token's stream. */
typedef struct ds__cpu_waiter {
    struct ds__cpu_waiter *next;
    uint64_t upto;
    ds__cpu_stream *parked; /* a stream, or */
    _Atomic uint32_t *flag; /* a host thread: set to 1 and woken */
} ds__cpu_waiter;

/* An operation that several threads work on. */
typedef struct ds__cpu_job {
    void (*piece_fn)(struct ds__cpu_job *job, size_t piece);
    size_t pieces;
    _Atomic size_t taken;
    _Atomic size_t front;
    _Atomic size_t back;
    _Atomic size_t finished;
    /* threads inside, the owner not counted; under the pool's lock */
    int users;
    const ds__op *op;
    const void *args;
    /* first, piece_items: kernel */
    size_t first;
    size_t piece_items;
    _Atomic int status;
    struct ds__cpu_job *prev_job;
    struct ds__cpu_job *next_job;
} ds__cpu_job;

/* Laid out by who writes: producers (first line), producers while the worker polls (second), the
   worker while waiting hosts poll (third), hardly anyone (fourth), whoever parks or wakes (the
   rest). */
struct ds__cpu_stream {
    ds__lock put_lock;
    uint32_t tail_at;
    ds__cpu_block *tail;
    uint64_t legacy_seen; /* blocking stream: the legacy number it waits for already */
    /* the number of this stream that the legacy stream waits for already */
    uint64_t seen_by_legacy;
    _Atomic(ds__cpu_block *) spare; /* a block from the consumer back to the producer */
    char pad0[64 - 40];

    _Atomic uint64_t submitted;
    _Atomic uint32_t state;
    char pad1[64 - 12];

    _Atomic uint64_t done;
    _Atomic uint32_t waiting; /* 1: the list of waiters is not empty */
    uint32_t head_at;
    ds__cpu_block *head;
    char pad2[64 - 24];

    _Atomic(ds__cpu_failure *) failure;
    _Atomic uint64_t failed_from; /* numbers from here on failed */
    _Atomic int closing;          /* destroyed: recycle when drained */
    int device;
    int kind;
    int had_failure;
    _Atomic int level; /* a lane's is that of each launch's stream */
    unsigned flags;
    int floating; /* unwrapped: nobody's */
    /* it captures; legacy stream: blocking streams of its device that capture */
    _Atomic int watch;
    char pad3[64 - 48];

    ds__lock wait_lock;
    ds__cpu_waiter *waiters;
    ds__cpu_waiter as_waiter;    /* for being parked */
    _Atomic uint32_t park_count; /* odd while park_on and park_upto are written */
    _Atomic(ds__cpu_stream *) park_on;
    _Atomic uint64_t park_upto;
    _Atomic(ds__cpu_job *) job;
    /* queued, queued_level: in the list of ready streams of this level */
    int queued;
    int queued_level;
    _Atomic(ds__cpu_past *) past; /* what failed before resets, the last first */
    ds__cpu_past first_past;
    /* prev, next: ready list of a level, or list for host functions, or free list */
    ds__cpu_stream *prev;
    ds__cpu_stream *next;
    /* all_prev, all_next: all streams of the device */
    ds__cpu_stream *all_prev;
    ds__cpu_stream *all_next;
    /* under the core's capture lock */
    ds__capture *capture;
    /* deps, dep_count: nodes that the next one will depend on */
    uint32_t *deps;
    uint32_t dep_count;
    ds__cpu_stream *next_member;
    /* a lane of an executable */
    /* that it runs, and its number before the first operation of it */
    struct ds__cpu_launch *launch;
    uint64_t lane_base;
    /* where it tells other processes how far it is; under the boards' mutex */
    ds__cpu_lane *shared;
    struct ds__cpu_virtual *virt; /* NULL: no virtual clock, or a proxy */
};

/* A stream's virtual time. */
typedef struct ds__cpu_virtual {
    /* when its next operation is ready, as far as is known; who has the stream writes it */
    int64_t time;
    _Atomic int64_t end; /* when operation `done` was */
    /* the clock at the last submission; under the producer's lock */
    int64_t put;
    uint64_t born; /* how many streams were made before it */
    /* 1: the first of the two legs of its next operation is over */
    int leg;
} ds__cpu_virtual;

typedef struct ds__cpu_device {
    ds__lock lock; /* of the list */
    ds__cpu_stream *streams;
    ds__cpu_stream *legacy;
    /* blocking streams that capture; under the core's capture lock */
    int capturing;
    /* somebody has the legacy stream: blocking streams must look at it */
    _Atomic int legacy_used;
    /* orders the legacy stream's submissions against those of blocking streams */
    ds__lock legacy_lock;
    _Atomic(ds__cpu_failure *) failure;
    size_t limit;
    /* used, async_used: and what of it came from ds__cpu_async_alloc */
    _Atomic size_t used;
    _Atomic size_t async_used;
} ds__cpu_device;

typedef struct ds__cpu_stamp {
    _Atomic int refs;
    _Atomic uint64_t ns;
    struct ds__cpu_stamp *next;
} ds__cpu_stamp;

typedef struct ds__cpu_event {
    ds__lock lock;
    unsigned flags;
    ds__cpu_stream *stream; /* NULL: unrecorded */
    uint64_t upto;
    ds__cpu_stamp *stamp;
    /* recorded in the capture with this number: it stands for these nodes of its graph */
    uint64_t capture;
    uint32_t *deps;
    uint32_t dep_count;
    /* shared between processes: where it stands; `word` is what stream and upto stand for */
    ds__board *board;
    uint64_t word;
    uint32_t mark;
    uint32_t generation;
    int imported;
    struct ds__cpu_event *next; /* free list */
} ds__cpu_event;

typedef struct ds__cpu_worker {
    pthread_t thread;
    int polled_count;
    _Atomic(ds__cpu_stream *) polled[DS__CPU_POLL_SLOTS];
    _Atomic uint32_t beat; /* odd while an operation runs */
    _Atomic(ds__cpu_stream *) running;
    uint32_t last_beat; /* the monitor's */
    /* streak, misses, delay: streaming: operations found in short order; looks in vain; pauses
       between looks */
    uint32_t streak;
    uint32_t misses;
    uint32_t delay;
    _Atomic uint64_t operations;
    int is_long;
} ds__cpu_worker;

static struct {
    int devices;
    int workers;
    int processors;
    int no_spin;
    int is_inline;
    int is_lax;
    int spin_limit;
    uint64_t seed;
    unsigned char *peers;
    const ds_cpu_fabric *fabric; /* the kept one, without zeros */
    ds__cpu_device *device;
    ds__cpu_worker *worker;
    int started;
    int workers_started;
    char pad3[64]; /* what stands above is only read */
    /* ready streams */
    ds__lock lock; /* ready lists, host list, jobs, counts of threads */
    ds__cpu_stream *ready_head[DS__CPU_LEVELS];
    ds__cpu_stream *ready_tail[DS__CPU_LEVELS];
    ds__cpu_stream *host_head;
    ds__cpu_stream *host_tail;
    ds__cpu_job *jobs;
    uint64_t random;
    char pad0[64];
    _Atomic uint32_t ready_mask; /* bit: a level with ready streams; lowest bit most urgent */
    _Atomic int job_count;
    /* workers that will look at the ready streams within microseconds */
    _Atomic int lookers;
    _Atomic int parked; /* workers asleep */
    _Atomic int spinners;
    _Atomic uint32_t wake_word; /* workers sleep on it */
    _Atomic int quit;
    char pad1[64];
    _Atomic int hurry;  /* host threads that wait: no pause between looks */
    _Atomic int asleep; /* those of them that sleep: they join nothing */
    char pad2[64];
    /* host functions */
    _Atomic int host_threads;
    int host_idle;
    uint64_t host_progress; /* counts host functions taken; for the monitor */
    _Atomic uint32_t host_word;
    pthread_t *host_thread;
    int host_room;
    /* monitor */
    pthread_t monitor;
    int monitor_started;
    _Atomic uint32_t monitor_word; /* 0: asleep or about to be */
    /* memory */
    ds__lock block_lock;
    ds__cpu_block *free_blocks;
    ds__lock raw_lock;
    void **raw; /* all memory taken for the pools below */
    _Atomic size_t queue_bytes;
    ds__lock object_lock;
    ds__cpu_stream *free_streams;
    _Atomic int stream_count;
    ds__cpu_event *free_events;
    ds__cpu_stamp *free_stamps;
    ds__cpu_failure *failures;
    /* events that processes share: under the boards' mutex */
    ds__cpu_lane *lanes;
    ds__cpu_proxy *proxies;
    ds__cpu_proxy *watched;
    pthread_t watcher;
    int watcher_started;
    _Atomic uint32_t watch_word; /* the watcher sleeps on it */
    _Atomic int watch_quit;
    struct ds__cpu_share *shares; /* memory that other processes can open */
    /* the virtual clock */
    /* link_free, engine_free, memory_free: until when they are held; the worker's */
    int64_t *link_free;
    int64_t *engine_free;
    int64_t *memory_free;
    int64_t latest; /* the last end of all that ran; the worker's */
    _Atomic int64_t clock;
    _Atomic int wanted;  /* host threads that wait for something that is not done */
    _Atomic int run_all; /* nobody waits, but what is held back runs all the same */
    /* streams at a thread for host functions; and how many the clock does not stand for any more */
    _Atomic int host_busy;
    int host_stuck;
    _Atomic uint32_t rests; /* counts how often nothing more could run */
    /* born, puts, passed: streams made; operations put on streams, and passed by them */
    _Atomic uint64_t born;
    _Atomic uint64_t puts;
    _Atomic uint64_t passed;
    _Atomic uint64_t staged;
    _Atomic uint64_t inlined;
    _Atomic uint64_t helped;
    _Atomic uint64_t other_operations;
} ds__cpu;

/* 1: the order of operations, or what links between devices take, is what the program is run
   for. */
static inline int ds__cpu_explores(void) {
    return ds__cpu.seed || ds__cpu.fabric;
}

static const ds__driver ds__cpu_driver;
static void ds__cpu_push_ready(ds__cpu_stream *s);
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto);
/* ---- >>cpu failures -------------------------------------------------------------------------- */

static ds__cpu_failure ds__cpu_no_memory = { NULL, DS_ERR_FAILED,
                                             "out of memory while recording a failure" };

__attribute__((format(printf, 2, 3))) static ds__cpu_failure *ds__cpu_failure_new(
    ds_result code, const char *format, ...) {
    ds__cpu_failure *f = ds__alloc(sizeof *f);
    if (!f)
        return &ds__cpu_no_memory;
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    f->code = code;
    ds__lock_take(&ds__cpu.object_lock);
    f->next = ds__cpu.failures;
    ds__cpu.failures = f;
    ds__lock_give(&ds__cpu.object_lock);
    return f;
}

/* The device's first failure wins. */
static ds__cpu_failure *ds__cpu_fail_device(int device, const char *text) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_failure *f = ds__cpu_failure_new(DS_ERR_FAILED, "%s", text);
    ds__cpu_failure *none = NULL;
    return atomic_compare_exchange_strong(&d->failure, &none, f) ? f : none;
}

/* The stream's failure, if number `upto` is one that failed. */
static ds__cpu_failure *ds__cpu_failed(const ds__cpu_stream *s, uint64_t upto) {
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_acquire);
    if (f && upto >= atomic_load_explicit(&s->failed_from, memory_order_relaxed))
        return f;
    for (const ds__cpu_past *p = atomic_load_explicit(&s->past, memory_order_acquire); p;
         p = p->next)
        if (upto >= p->from && upto <= atomic_load_explicit(&p->upto, memory_order_relaxed))
            return p->failure;
    return NULL;
}

/* What a stream reports: its own failure, else its device's. */
static ds__cpu_failure *ds__cpu_stream_failure(const ds__cpu_stream *s) {
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_acquire);
    return f ? f : atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
}

static void ds__cpu_fail_stream(ds__cpu_stream *s, ds__cpu_failure *f, uint64_t from) {
    if (atomic_load_explicit(&s->failure, memory_order_relaxed))
        return;
    s->had_failure = 1;
    atomic_store_explicit(&s->failed_from, from, memory_order_relaxed);
    atomic_store_explicit(&s->failure, f, memory_order_release);
}
/* ---- >>cpu queue memory ---------------------------------------------------------------------- */

/* Memory for the pools of streams, events, stamps and blocks: zeroed, aligned to 64, freed at
   shutdown only. */
static void *ds__cpu_raw(size_t size) {
    void **raw = ds__alloc(size + 128);
    if (!raw)
        return NULL;
    ds__lock_take(&ds__cpu.raw_lock);
    raw[0] = ds__cpu.raw;
    ds__cpu.raw = raw;
    ds__lock_give(&ds__cpu.raw_lock);
    return (void *)(((uintptr_t)raw + 64 + 63) & ~(uintptr_t)63);
}

/* One thread at a time. Without memory what lies between two such parts counts as failed too:
   what has failed must not count as done. */
static void ds__cpu_stays_failed(ds__cpu_stream *s, ds__cpu_failure *f, uint64_t from,
                                 uint64_t upto) {
    ds__cpu_past *last = atomic_load(&s->past);
    ds__cpu_past *p = last ? ds__cpu_raw(sizeof *p) : &s->first_past;
    if (!p) {
        atomic_store(&last->upto, upto);
        return;
    }
    p->failure = f;
    p->from = from;
    atomic_store(&p->upto, upto);
    p->next = last;
    atomic_store(&s->past, p);
}

static ds__cpu_block *ds__cpu_block_take(void) {
    ds__lock_take(&ds__cpu.block_lock);
    if (!ds__cpu.free_blocks) {
        ds__cpu_block *slab = ds__cpu_raw(DS__CPU_SLAB_BLOCKS * sizeof *slab);
        for (int i = 0; slab && i < DS__CPU_SLAB_BLOCKS; i++) {
            slab[i].next = ds__cpu.free_blocks;
            ds__cpu.free_blocks = &slab[i];
        }
        if (slab)
            atomic_fetch_add_explicit(&ds__cpu.queue_bytes, DS__CPU_SLAB_BLOCKS * sizeof *slab,
                                      memory_order_relaxed);
    }
    ds__cpu_block *b = ds__cpu.free_blocks;
    if (b)
        ds__cpu.free_blocks = b->next;
    ds__lock_give(&ds__cpu.block_lock);
    return b;
}

static void ds__cpu_block_give(ds__cpu_block *b) {
    if (!b)
        return;
    ds__lock_take(&ds__cpu.block_lock);
    b->next = ds__cpu.free_blocks;
    ds__cpu.free_blocks = b;
    ds__lock_give(&ds__cpu.block_lock);
}

/* Bytes of an operation in the queue, a multiple of 16, and where a kernel's arguments begin in
   it. */
#define DS__CPU_ARGS_AT 48u

static size_t ds__cpu_op_bytes(const ds__op *op) {
    static const size_t size[] = {
        [DS__OP_COPY] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.copy,
        [DS__OP_FILL] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.fill,
        [DS__OP_HOST] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.host,
        [DS__OP_CALLBACK] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.host,
        [DS__OP_RECORD] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.stamp,
        [DS__OP_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_NOTHING] = offsetof(ds__op, u),
        [DS__OP_GRAPH] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.graph,
        [DS__OP_LANE_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_NODE_RECORD] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_NODE_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_SHARED_RECORD] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.shared,
        [DS__OP_FREE] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.memory,
        [DS__OP_CLOCK] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.clock,
    };
    size_t n =
        op->kind == DS__OP_KERNEL ? DS__CPU_ARGS_AT + op->u.kernel.args_size : size[op->kind];
    return (n + 15) & ~(size_t)15;
}

/* Makes room for an operation at the tail; the producer's lock is held. NULL: no memory, nothing
   changed. */
static void *ds__cpu_room(ds__cpu_stream *s, size_t bytes) {
    ds__cpu_block *b = s->tail;
    if (DS__UNLIKELY(!b || s->tail_at + bytes + 16 > sizeof b->data)) {
        ds__cpu_block *fresh = atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel);
        if (!fresh)
            fresh = ds__cpu_block_take();
        if (!fresh)
            return NULL;
        fresh->next = NULL;
        if (b) {
            b->next = fresh;
            ((ds__op *)(void *)(b->data + s->tail_at))->kind = DS__OP_JUMP;
        } else {
            /* the stream is empty and idle: nobody else looks at its head until we publish */
            s->head = fresh;
            s->head_at = 0;
        }
        s->tail = b = fresh;
        s->tail_at = 0;
    }
    void *at = b->data + s->tail_at;
    s->tail_at += (uint32_t)bytes;
    /* some operations ahead */
    ds__own_line((const char *)b + ((s->tail_at + 320) & (DS__CPU_BLOCK_BYTES - 1)));
    return at;
}

/* Small structs in words, as the caller has just written them: wider loads would wait for the
   caller's stores. */
static inline void ds__cpu_copy_args(char *to, const char *from, size_t size) {
    if (DS__UNLIKELY(size > 64)) {
        memcpy(to, from, size);
        return;
    }
    for (; size >= 8; size -= 8, to += 8, from += 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        memcpy(to, &word, 8);
    }
    for (; size; size--)
        *to++ = *from++;
}

static ds_result ds__cpu_put_clock(ds__cpu_stream *s);

/* Queues a copy of the operation; the producer's lock is held. */
static ds_result ds__cpu_put(ds__cpu_stream *s, const ds__op *op) {
    if (DS__UNLIKELY(ds__cpu.fabric != NULL) && op->kind != DS__OP_CLOCK) {
        ds_result r = ds__cpu_put_clock(s);
        if (r < 0)
            return r;
    }
    ds__op *q = ds__cpu_room(s, ds__cpu_op_bytes(op));
    if (DS__UNLIKELY(!q))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to queue the operation");
    if (op->kind == DS__OP_KERNEL) {
        q->kind = op->kind;
        q->flags = op->flags;
        q->places = op->places;
        q->line = op->line;
        q->file = op->file;
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
/* ---- >>cpu virtual clock: who comes next ----------------------------------------------------- */

/* The worker runs only while somebody wants something; the monitor sees to it that this is not
   never. */
static void ds__cpu_wake_worker(void);
static void ds__cpu_wake_monitor(void);

static int ds__cpu_held(void) {
    return atomic_load(&ds__cpu.wanted) <= 0 && !atomic_load(&ds__cpu.run_all);
}

static void ds__cpu_virtual_ready(void) {
    if (ds__cpu_held())
        ds__cpu_wake_monitor();
    else
        ds__cpu_wake_worker();
}

/* The ready streams are a pairing heap then: the first stands in ready_head[0], a stream's
   `prev` is the first of those below it, and `next` the next one beside it. The pool's lock is
   held. */
static ds__cpu_stream *ds__cpu_heap_join(ds__cpu_stream *a, ds__cpu_stream *b) {
    if (!a || !b)
        return a ? a : b;
    if (b->virt->time < a->virt->time ||
        (b->virt->time == a->virt->time && b->virt->born < a->virt->born)) {
        ds__cpu_stream *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->prev;
    a->prev = b;
    return a;
}

static void ds__cpu_heap_add(ds__cpu_stream *s) {
    s->queued = 1;
    s->prev = s->next = NULL;
    ds__cpu.ready_head[0] = ds__cpu_heap_join(ds__cpu.ready_head[0], s);
    atomic_store(&ds__cpu.ready_mask, 1);
}

static ds__cpu_stream *ds__cpu_heap_take(void) {
    ds__cpu_stream *first = ds__cpu.ready_head[0];
    ds__cpu_stream *pairs = NULL;
    ds__cpu_stream *rest = NULL;
    /* two by two, and then all of these */
    for (ds__cpu_stream *a = first->prev, *b, *next; a; a = next) {
        b = a->next;
        next = b ? b->next : NULL;
        a->next = NULL;
        if (b)
            b->next = NULL;
        a = ds__cpu_heap_join(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        ds__cpu_stream *next = pairs->next;
        pairs->next = NULL;
        rest = ds__cpu_heap_join(rest, pairs);
        pairs = next;
    }
    first->queued = 0;
    ds__cpu.ready_head[0] = rest;
    if (!rest)
        atomic_store(&ds__cpu.ready_mask, 0);
    return first;
}
/* ---- >>cpu lock-free: idle, ready, parked, asleep -------------------------------------------- */

/* The part that tests/model checks: four hand-shakes, each a store, then a load of what the
   other side stores first. publish/idle: ds__cpu_put stores submitted, then ds__cpu_kick loads
   state; ds__cpu_go_idle the reverse. pass/wait: ds__cpu_pass stores done, then loads waiting;
   ds__cpu_enlist the reverse. ready/asleep: ds__cpu_push_ready sets ready_mask, then loads
   lookers; ds__cpu_sleep the reverse. destroy/idle: ds__cpu_stream_destroy stores closing, then
   tries state; ds__cpu_go_idle the reverse. */

static void ds__cpu_wake_worker(void) {
    atomic_fetch_add(&ds__cpu.wake_word, 1);
    ds__futex_wake(&ds__cpu.wake_word, 1);
}

static void ds__cpu_wake_monitor(void) {
    if (atomic_load(&ds__cpu.monitor_word) == 0 && atomic_exchange(&ds__cpu.monitor_word, 1) == 0)
        ds__futex_wake(&ds__cpu.monitor_word, 1);
}

/* The pool's lock is held; the stream's state is READY. */
static void ds__cpu_link_ready(ds__cpu_stream *s) {
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_heap_add(s);
        return;
    }
    int level = atomic_load_explicit(&s->level, memory_order_relaxed);
    s->queued = 1;
    s->queued_level = level;
    s->next = NULL;
    s->prev = ds__cpu.ready_tail[level];
    if (s->prev)
        s->prev->next = s;
    else
        ds__cpu.ready_head[level] = s;
    ds__cpu.ready_tail[level] = s;
    if (!s->prev)
        atomic_store(&ds__cpu.ready_mask,
                     atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed) | 1u << level);
}

static void ds__cpu_unlink_ready(ds__cpu_stream *s) {
    /* who has emptied a lane may have listed it at the level of the launch before */
    int level = s->queued_level;
    s->queued = 0;
    if (s->prev)
        s->prev->next = s->next;
    else
        ds__cpu.ready_head[level] = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else
        ds__cpu.ready_tail[level] = s->prev;
    if (!ds__cpu.ready_head[level])
        atomic_store(&ds__cpu.ready_mask,
                     atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed) &
                         ~(1u << level));
}

/* The stream's state is READY, set by the caller. Wakes a worker unless one is about to look. */
static void ds__cpu_push_ready(ds__cpu_stream *s) {
    ds__lock_take(&ds__cpu.lock);
    ds__cpu_link_ready(s);
    ds__lock_give(&ds__cpu.lock);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_virtual_ready();
        return;
    }
    if (atomic_load(&ds__cpu.lookers) == 0 && atomic_load(&ds__cpu.parked) > 0)
        ds__cpu_wake_worker();
}

/* Takes the most urgent ready stream, oldest first (seeded: any); its state becomes RUNNING. */
static ds__cpu_stream *ds__cpu_pop_ready(void) {
    if (atomic_load(&ds__cpu.ready_mask) == 0)
        return NULL;
    ds__cpu_stream *s = NULL;
    ds__lock_take(&ds__cpu.lock);
    uint32_t mask = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    if (DS__UNLIKELY(mask && ds__cpu.fabric)) {
        s = ds__cpu_heap_take();
    } else if (mask) {
        s = ds__cpu.ready_head[__builtin_ctz(mask)];
        if (ds__cpu.seed) {
            ds__cpu.random = ds__cpu.random * 6364136223846793005u + 1442695040888963407u;
            for (uint64_t n = ds__cpu.random >> 61; n && s->next; n--)
                s = s->next;
        }
        ds__cpu_unlink_ready(s);
    }
    if (s)
        atomic_store_explicit(&s->state, DS__CPU_RUNNING, memory_order_relaxed);
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

/* After a submission: an idle stream becomes ready. Everyone else who has the stream will see
   the new operation. */
static inline void ds__cpu_kick(ds__cpu_stream *s) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_load(&s->state) == DS__CPU_IDLE &&
        atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_READY))
        ds__cpu_push_ready(s);
}

static void ds__cpu_recycle(ds__cpu_stream *s);
static ds__op *ds__cpu_head(ds__cpu_stream *s);

/* The caller owns the stream (RUNNING, or POLLED by a successful exchange) and has emptied it. */
static void ds__cpu_go_idle(ds__cpu_stream *s) {
    for (;;) {
        /* An empty stream gives its memory back, so that ten thousand idle ones cost little. */
        /* a lane's belongs to a plan */
        if (s->kind != DS__STREAM_LANE && ds__trylock(&s->put_lock)) {
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
            if (atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_READY))
                ds__cpu_push_ready(s);
            return;
        }
        if (!atomic_load(&s->closing))
            return;
        if (!atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING))
            return;
        /* asked again: meanwhile who destroyed it may have recycled it, and it may be another
           stream by now */
        if (atomic_load(&s->closing) &&
            atomic_load(&s->submitted) == atomic_load_explicit(&s->done, memory_order_relaxed)) {
            ds__cpu_recycle(s);
            return;
        }
    }
}

/* All streams of the list become ready at once, so that the most urgent one is taken first. */
static void ds__cpu_push_woken(ds__cpu_waiter *woken) {
    int count = 0;
    ds__lock_take(&ds__cpu.lock);
    while (woken) {
        ds__cpu_stream *s = woken->parked;
        woken = woken->next;
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_link_ready(s);
        count++;
    }
    ds__lock_give(&ds__cpu.lock);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_virtual_ready();
        return;
    }
    int parked = atomic_load(&ds__cpu.lookers) == 0 ? atomic_load(&ds__cpu.parked) : 0;
    if (parked == 0)
        return;
    atomic_fetch_add(&ds__cpu.wake_word, 1);
    ds__futex_wake(&ds__cpu.wake_word, count < parked ? count : parked);
}

/* Passes on: everyone who waits for a number that is done. */
__attribute__((noinline)) static void ds__cpu_notify(ds__cpu_stream *s) {
    ds__cpu_waiter *woken = NULL;
    ds__lock_take(&s->wait_lock);
    uint64_t done = atomic_load_explicit(&s->done, memory_order_acquire);
    for (ds__cpu_waiter **p = &s->waiters; *p;) {
        ds__cpu_waiter *w = *p;
        if (w->upto > done) {
            p = &w->next;
            continue;
        }
        *p = w->next;
        if (w->flag) {
            /* The sleeper may go on, and its waiter with it, as soon as the flag is set. */
            _Atomic uint32_t *flag = w->flag;
            if (DS__UNLIKELY(ds__cpu.fabric != NULL))
                atomic_fetch_sub(&ds__cpu.wanted, 1);
            atomic_store_explicit(flag, 1, memory_order_release);
            ds__futex_wake(flag, 1);
        } else { /* the last one in the list has waited longest */
            w->next = woken;
            woken = w;
        }
    }
    if (!s->waiters)
        atomic_store(&s->waiting, 0);
    ds__lock_give(&s->wait_lock);
    if (woken)
        ds__cpu_push_woken(woken);
}

/* The stream has passed an operation. */
static inline void ds__cpu_pass(ds__cpu_stream *s, uint64_t number) {
    atomic_store(&s->done, number);
    if (DS__UNLIKELY(atomic_load(&s->waiting)))
        ds__cpu_notify(s);
}

/* The same after an operation known to be short. Without the full barrier a waiter that comes in
   this moment may be missed; the next check finds it, and ds__cpu_run_some makes one with a
   barrier before anything that may take long. */
static inline void ds__cpu_pass_short(ds__cpu_stream *s, uint64_t number) {
    atomic_store_explicit(&s->done, number, memory_order_release);
    if (DS__UNLIKELY(atomic_load_explicit(&s->waiting, memory_order_relaxed)))
        ds__cpu_notify(s);
}

/* Puts a waiter into the stream's list; the list's lock is held. 0: the number is done, the
   waiter is not in the list. */
static int ds__cpu_enlist(ds__cpu_stream *s, ds__cpu_waiter *w) {
    atomic_store(&s->waiting, 1);
    if (atomic_load(&s->done) >= w->upto) {
        if (!s->waiters)
            atomic_store(&s->waiting, 0);
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
    /* before the lock is given: nobody can make it ready earlier */
    if (parked)
        atomic_store(&s->state, DS__CPU_PARKED);
    ds__lock_give(&on->wait_lock);
    return parked;
}

/* A worker sleeps until there may be work. It has given up its place among the lookers. */
static void ds__cpu_sleep(void) {
    uint32_t word = atomic_load(&ds__cpu.wake_word);
    atomic_fetch_add(&ds__cpu.parked, 1);
    atomic_fetch_sub(&ds__cpu.lookers, 1);
    if (atomic_load(&ds__cpu.ready_mask) == 0 && atomic_load(&ds__cpu.job_count) == 0 &&
        !atomic_load(&ds__cpu.quit))
        ds__futex_wait(&ds__cpu.wake_word, word, DS__FOREVER);
    atomic_fetch_add(&ds__cpu.lookers, 1);
    atomic_fetch_sub(&ds__cpu.parked, 1);
}

static inline int ds__cpu_has_work(ds__cpu_stream *s) {
    return atomic_load_explicit(&s->submitted, memory_order_relaxed) !=
           atomic_load_explicit(&s->done, memory_order_relaxed);
}

/* The caller owns the stream (RUNNING). When its next operation waits for what is not done it is
   parked, and nobody needs to be woken for it; 1: so it is, and is the caller's no more. */
static int ds__cpu_park_waiting(ds__cpu_stream *s) {
    if (ds__cpu.seed || atomic_load_explicit(&s->submitted, memory_order_acquire) ==
                            atomic_load_explicit(&s->done, memory_order_relaxed))
        return 0;
    const ds__op *op = ds__cpu_head(s);
    return op->kind == DS__OP_WAIT &&
           atomic_load_explicit(&((ds__cpu_stream *)op->u.wait.stream)->done,
                                memory_order_acquire) < op->u.wait.upto &&
           ds__cpu_park(s, op->u.wait.stream, op->u.wait.upto);
}

/* Lets go of a polled stream; whoever else took it meanwhile keeps it. */
static void ds__cpu_unpoll(ds__cpu_stream *s) {
    uint32_t polled = DS__CPU_POLLED;
    if (atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING) &&
        !ds__cpu_park_waiting(s))
        ds__cpu_go_idle(s);
}

/* <<cpu lock-free */

static void ds__cpu_unpoll_all(ds__cpu_worker *w) {
    for (int i = 0; i < w->polled_count; i++)
        ds__cpu_unpoll(atomic_load_explicit(&w->polled[i], memory_order_relaxed));
    w->polled_count = 0;
}

/* Sends polled streams with new work to the ready ones, where their priority counts. */
static void ds__cpu_unpoll_fresh(ds__cpu_worker *w) {
    for (int i = 0; i < w->polled_count;) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[i], memory_order_relaxed);
        if (!ds__cpu_has_work(s)) {
            i++;
            continue;
        }
        atomic_store_explicit(
            &w->polled[i],
            atomic_load_explicit(&w->polled[--w->polled_count], memory_order_relaxed),
            memory_order_relaxed);
        ds__cpu_unpoll(s);
    }
}

/* An operation that may take long begins (1) or ends (0): nothing that others could do waits for
   this worker. */
static void ds__cpu_long(ds__cpu_worker *w, int begin) {
    if (!w || w->is_long == begin)
        return;
    w->is_long = begin;
    if (!begin) {
        atomic_fetch_add(&ds__cpu.lookers, 1);
        return;
    }
    ds__cpu_unpoll_all(w);
    if (atomic_fetch_sub(&ds__cpu.lookers, 1) == 1 && atomic_load(&ds__cpu.ready_mask) &&
        atomic_load(&ds__cpu.parked) > 0)
        ds__cpu_wake_worker();
}
/* ---- >>cpu jobs: one operation on several threads -------------------------------------------- */

/* Waiting host threads take pieces from the front and workers from the back, so that each
   processor meets much the same memory every time. `taken` says that one is left; front and back
   then never meet. leave: a helping worker goes when there are ready streams. limit: this many
   pieces at most. */
static void ds__cpu_job_work(ds__cpu_job *job, int worker, int leave, size_t limit) {
    while (limit-- > 0 &&
           !(leave && atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed)) &&
           atomic_fetch_add_explicit(&job->taken, 1, memory_order_relaxed) < job->pieces) {
        size_t n =
            atomic_fetch_add_explicit(worker ? &job->back : &job->front, 1, memory_order_relaxed);
        job->piece_fn(job, worker ? job->pieces - 1 - n : n);
        atomic_fetch_add_explicit(&job->finished, 1, memory_order_acq_rel);
    }
}

/* Joins a job: that of one stream which has not passed `upto`, or any. 0: there was none. */
static int ds__cpu_job_join(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    ds__lock_take(&ds__cpu.lock);
    ds__cpu_job *job = s ? atomic_load_explicit(&s->job, memory_order_relaxed) : ds__cpu.jobs;
    /* a later operation's */
    if (s && atomic_load_explicit(&s->done, memory_order_relaxed) >= upto)
        job = NULL;
    while (job && atomic_load_explicit(&job->taken, memory_order_relaxed) >= job->pieces)
        job = s ? NULL : job->next_job;
    if (job)
        job->users++;
    ds__lock_give(&ds__cpu.lock);
    if (!job)
        return 0;
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    /* Between the pieces of a copy a worker can look at ready streams; those of a kernel may
       take long. */
    int moves = job->op->kind != DS__OP_KERNEL;
    if (!moves)
        ds__cpu_long(w, 1);
    ds__cpu_job_work(job, w != NULL, w != NULL && moves, SIZE_MAX);
    ds__cpu_long(w, 0);
    ds__tls.in_callback = outer;
    ds__lock_take(&ds__cpu.lock);
    job->users--;
    ds__lock_give(&ds__cpu.lock);
    return 1;
}

/* Works on the job until all of it is done; sleeping workers are called when that pays. */
static void ds__cpu_job_run(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_job *job,
                            int call_workers) {
    ds__lock_take(&ds__cpu.lock);
    job->prev_job = NULL;
    job->next_job = ds__cpu.jobs;
    if (job->next_job)
        job->next_job->prev_job = job;
    ds__cpu.jobs = job;
    atomic_fetch_add(&ds__cpu.job_count, 1);
    atomic_store_explicit(&s->job, job, memory_order_release);
    ds__lock_give(&ds__cpu.lock);
    /* Two pieces on our own, time enough for a host thread that waits, or a worker that is
       awake, to join. Then sleeping workers are called, but no more threads than processors: one
       too many, and a piece waits for a time slice. */
    ds__cpu_job_work(job, w != NULL, 0, 2);
    int parked = atomic_load(&ds__cpu.parked);
    int waiting = atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed);
    int looking = waiting - atomic_load_explicit(&ds__cpu.asleep, memory_order_relaxed);
    int wanted = ds__cpu.processors - (ds__cpu.workers - parked) - (looking > 0 ? looking : 0) -
                 (w == NULL && waiting == 0);
    if (call_workers && parked > 0 && wanted > 0) {
        atomic_fetch_add(&ds__cpu.wake_word, 1);
        ds__futex_wake(&ds__cpu.wake_word, wanted < parked ? wanted : parked);
    }
    ds__cpu_job_work(job, w != NULL, 0, SIZE_MAX);
    for (int spins = 0;; spins++) {
        int over = 0;
        if (atomic_load_explicit(&job->finished, memory_order_acquire) == job->pieces) {
            ds__lock_take(&ds__cpu.lock);
            if (atomic_load_explicit(&s->job, memory_order_relaxed) == job) {
                atomic_store_explicit(&s->job, NULL, memory_order_relaxed);
                if (job->prev_job)
                    job->prev_job->next_job = job->next_job;
                else
                    ds__cpu.jobs = job->next_job;
                if (job->next_job)
                    job->next_job->prev_job = job->prev_job;
                atomic_fetch_sub(&ds__cpu.job_count, 1);
            }
            over = job->users == 0;
            ds__lock_give(&ds__cpu.lock);
        }
        if (over)
            return;
        if (spins < 200)
            ds__pause();
        else
            syscall(SYS_sched_yield);
    }
}
/* ---- >>cpu copies and fills ------------------------------------------------------------------ */

/* Copies with stores that go around the caches; on Intel's processors four pages side by side:
   more than one row of memory is open then, which is what the hardware prefetchers and the
   memory controller like best there. AMD's take 4.5 times as long for that as for one line after
   another. */
static void ds__cpu_stream_copy(char *dst, const char *src, size_t n) {
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    size_t lead = (size_t)(-(uintptr_t)dst & 63);
    if (lead > n)
        lead = n;
    memcpy(dst, src, lead);
    dst += lead;
    src += lead;
    n -= lead;
#define DS__LINE(at)                                                                           \
    __asm__ __volatile__("movdqu 0(%0), %%xmm0\n\tmovdqu 16(%0), %%xmm1\n\tmovdqu 32(%0), "    \
                         "%%xmm2\n\tmovdqu 48(%0), %%xmm3\n\t"                                 \
                         "movntdq %%xmm0, 0(%1)\n\tmovntdq %%xmm1, 16(%1)\n\tmovntdq %%xmm2, " \
                         "32(%1)\n\tmovntdq %%xmm3, 48(%1)"                                    \
                         :                                                                     \
                         : "r"(src + (at)), "r"(dst + (at))                                    \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "memory")
    for (int four = __builtin_cpu_is("intel"); four && n >= 16384;
         n -= 16384, dst += 16384, src += 16384)
        for (size_t i = 0; i < 4096; i += 64) {
            __builtin_prefetch(src + i + 256);
            __builtin_prefetch(src + i + 4096 + 256);
            __builtin_prefetch(src + i + 8192 + 256);
            __builtin_prefetch(src + i + 12288 + 256);
            DS__LINE(i);
            DS__LINE(i + 4096);
            DS__LINE(i + 8192);
            DS__LINE(i + 12288);
        }
    for (; n >= 64; n -= 64, dst += 64, src += 64)
        DS__LINE(0);
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
        size_t row = first / width;
        size_t column = first % width;
        size_t n = width - column < count ? width - column : count;
        char *to = dst + row * op->u.copy.dst_pitch + column;
        const char *from = src + row * op->u.copy.src_pitch + column;
        if (around && n >= 65536)
            ds__cpu_stream_copy(to, from, n);
        else
            memcpy(to, from, n);
        first += n;
        count -= n;
    }
}

/* One source to several destinations, which is read once: a kernel of the library's own, whose
   items are pieces. */
enum { DS__CPU_SPREAD = 8, DS__CPU_SPREAD_ITEM = 16 << 10 };

typedef struct ds__cpu_spread_args {
    char *dst[DS__CPU_SPREAD];
    const char *src;
    size_t count;
    size_t bytes;
} ds__cpu_spread_args;

/* From one place to bytes `at` and on of several, past the caches; line by line, so that each is
   read once and the stores of all go on side by side. Returns the bytes that are done: the rest,
   or all where addresses do not allow it, is the caller's. */
static size_t ds__cpu_stream_spread(char *const *dst, size_t count, size_t at, const char *src,
                                    size_t n) {
    size_t done = 0;
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    for (size_t d = 0; d < count; d++)
        if ((uintptr_t)(dst[d] + at) & 15)
            return 0;
    for (; done + 128 <= n; done += 128) {
        char *const *to = dst;
        __asm__ __volatile__("movdqu 0(%1), %%xmm0\n\tmovdqu 16(%1), %%xmm1\n\tmovdqu 32(%1), "
                             "%%xmm2\n\tmovdqu 48(%1), %%xmm3\n\t"
                             "movdqu 64(%1), %%xmm4\n\tmovdqu 80(%1), %%xmm5\n\tmovdqu 96(%1), "
                             "%%xmm6\n\tmovdqu 112(%1), %%xmm7\n"
                             "1:\n\tmovq (%0), %%rax\n\taddq %3, %%rax\n\t"
                             "movntdq %%xmm0, 0(%%rax)\n\tmovntdq %%xmm1, 16(%%rax)\n\tmovntdq "
                             "%%xmm2, 32(%%rax)\n\tmovntdq %%xmm3, 48(%%rax)\n\t"
                             "movntdq %%xmm4, 64(%%rax)\n\tmovntdq %%xmm5, 80(%%rax)\n\tmovntdq "
                             "%%xmm6, 96(%%rax)\n\tmovntdq %%xmm7, 112(%%rax)\n\t"
                             "addq $8, %0\n\tcmpq %2, %0\n\tjne 1b"
                             : "+r"(to)
                             : "r"(src + done), "r"(dst + count), "r"(at + done)
                             : "rax", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
                               "xmm5", "xmm6", "xmm7");
    }
    __asm__ __volatile__("sfence" ::: "memory");
#else
    (void)dst;
    (void)count;
    (void)at;
    (void)src;
    (void)n;
#endif
    return done;
}

static int ds__cpu_spread_items(size_t first, size_t count, const void *args) {
    const ds__cpu_spread_args *a = args;
    size_t at = first * DS__CPU_SPREAD_ITEM;
    size_t end =
        at + count * DS__CPU_SPREAD_ITEM < a->bytes ? at + count * DS__CPU_SPREAD_ITEM : a->bytes;
    if (a->count * a->bytes >= DS__CPU_STREAM_BYTES)
        at += ds__cpu_stream_spread(a->dst, a->count, at, a->src + at, end - at);
    while (at < end) {
        size_t n = end - at < DS__CPU_SPREAD_ITEM ? end - at : DS__CPU_SPREAD_ITEM;
        for (size_t d = 0; d < a->count; d++)
            memcpy(a->dst[d] + at, a->src + at, n);
        at += n;
    }
    return 0;
}

DS__SEAM static ds__kernel ds__cpu_spread_kernel = { .cpu_fn = ds__cpu_spread_items,
                                                     .args_size = sizeof(ds__cpu_spread_args),
                                                     .grain = 1,
                                                     .name = "copy to several devices",
                                                     .ours = 1 };

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

/* Sets n bytes to a pattern of eight, whose first byte stands at `to`. Stores through the
   caches: measured faster than those around them at every size that was tried, since nothing is
   read. */
static void ds__cpu_fill_row(char *to, const char *pattern, size_t n) {
    uint64_t word;
    uint64_t block[512];
    memcpy(&word, pattern, 8);
    if (word == (word & 255) * 0x0101010101010101u) {
        memset(to, (int)(word & 255), n);
        return;
    }
    if (n >= sizeof block) {
        for (size_t i = 0; i < sizeof block / sizeof block[0]; i++)
            block[i] = word;
        for (; n >= sizeof block; n -= sizeof block, to += sizeof block)
            memcpy(to, block, sizeof block);
    }
    for (; n >= 8; n -= 8, to += 8)
        memcpy(to, &word, 8);
    memcpy(to, pattern, n);
}

/* Elements first .. first+count-1 of the fill. */
static void ds__cpu_fill_part(const ds__op *op, size_t first, size_t count) {
    size_t width = op->u.fill.width;
    size_t size = op->u.fill.value_size;
    char pattern[8];
    /* little endian: the low bytes */
    for (size_t i = 0; i < 8; i += size)
        memcpy(pattern + i, &op->u.fill.value, size);
    while (count) {
        size_t row = first / width;
        size_t column = first % width;
        size_t n = width - column < count ? width - column : count;
        ds__cpu_fill_row((char *)op->u.fill.dst + row * op->u.fill.pitch + column * size, pattern,
                         n * size);
        first += n;
        count -= n;
    }
}

static void ds__cpu_part_piece(ds__cpu_job *job, size_t piece) {
    const ds__op *op = job->op;
    size_t total = op->kind == DS__OP_COPY ? op->u.copy.width * op->u.copy.height
                                           : op->u.fill.width * op->u.fill.height;
    size_t first = piece * job->piece_items;
    size_t n = total - first < job->piece_items ? total - first : job->piece_items;
    if (op->kind == DS__OP_COPY)
        ds__cpu_copy_part(op, first, n, ds__op_bytes(op) >= DS__CPU_STREAM_BYTES);
    else
        ds__cpu_fill_part(op, first, n);
}

/* A copy or fill, on this thread or on several. */
static void ds__cpu_move(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op) {
    size_t bytes = ds__op_bytes(op);
    size_t elements = bytes;
    if (op->kind == DS__OP_FILL)
        elements = op->u.fill.width * op->u.fill.height;
    if (op->kind == DS__OP_COPY && (op->flags & DS__OP_STAGED)) {
        ds__cpu_long(w, 1);
        ds__cpu_copy_staged(op);
    } else if (bytes < DS__CPU_SPLIT_BYTES || ds__cpu.is_inline || ds__cpu.seed) {
        if (bytes > 65536)
            ds__cpu_long(w, 1);
        if (op->kind == DS__OP_COPY)
            ds__cpu_copy_part(op, 0, elements, 0);
        else
            ds__cpu_fill_part(op, 0, elements);
    } else {
        ds__cpu_job job;
        memset(&job, 0, sizeof job);
        size_t piece = bytes >= DS__CPU_STREAM_BYTES      ? DS__CPU_STREAM_PIECE
                       : bytes >= 4 * DS__CPU_PIECE_BYTES ? DS__CPU_PIECE_BYTES
                                                          : (bytes / 4 + 63) & ~(size_t)63;
        job.piece_fn = ds__cpu_part_piece;
        job.op = op;
        job.piece_items = op->kind == DS__OP_FILL ? piece / op->u.fill.value_size : piece;
        job.pieces = (elements + job.piece_items - 1) / job.piece_items;
        ds__cpu_long(w, 1);
        ds__cpu_job_run(w, s, &job, bytes >= DS__CPU_CALL_BYTES);
    }
    ds__cpu_long(w, 0);
}
/* ---- >>cpu kernels --------------------------------------------------------------------------- */

static void ds__cpu_kernel_piece(ds__cpu_job *job, size_t piece) {
    const ds__op *op = job->op;
    size_t first = job->first + piece * job->piece_items;
    size_t left = op->u.kernel.items - first;
    int status = op->u.kernel.kernel->cpu_fn(
        first, left < job->piece_items ? left : job->piece_items, job->args);
    if (status)
        atomic_store_explicit(&job->status, status, memory_order_relaxed);
}

/* Runs the launch: its first items alone, to see how long the rest will take; the rest is split
   when it is long. */
static int ds__cpu_kernel_items(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                                const void *args, uint64_t *out_item_ns) {
    ds__kernel *k = op->u.kernel.kernel;
    size_t n = op->u.kernel.items;
    size_t grain = k->grain ? k->grain : 1;
    size_t first = n / 64;
    size_t known = atomic_load_explicit(&k->item_ns, memory_order_relaxed);
    /* the others are to join soon */
    if (known && first > DS__CPU_FIRST_NS / known)
        first = DS__CPU_FIRST_NS / known;
    if (first < grain)
        first = grain;
    uint64_t start = ds__now_ns();
    if (first >= n)
        first = n;
    int status = k->cpu_fn(0, first, args);
    uint64_t each = (ds__now_ns() - start) / first;
    *out_item_ns = each;
    if (status || first == n)
        return status;
    if (each * (n - first) < DS__CPU_SPLIT_NS || ds__cpu.is_inline || ds__cpu.seed)
        return k->cpu_fn(first, n - first, args);
    ds__cpu_job job;
    memset(&job, 0, sizeof job);
    size_t pieces = 8 * (size_t)(ds__cpu.workers + 1);
    size_t items = (n - first + pieces - 1) / pieces;
    job.piece_fn = ds__cpu_kernel_piece;
    job.op = op;
    job.args = args;
    job.first = first;
    job.piece_items = items > grain ? items : grain;
    job.pieces = (n - first + job.piece_items - 1) / job.piece_items;
    ds__cpu_job_run(w, s, &job, each * (n - first) >= DS__CPU_CALL_NS);
    return atomic_load_explicit(&job.status, memory_order_relaxed);
}

/* Returns the kernel's status. How long an item takes is measured at the first launches and then
   now and then. */
static int ds__cpu_kernel(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op) {
    ds__kernel *k = op->u.kernel.kernel;
    const void *args = (const char *)op + DS__CPU_ARGS_AT;
    uint32_t runs = atomic_load_explicit(&k->runs, memory_order_relaxed);
    uint32_t known = 0;
    if (DS__LIKELY(runs >= 4))
        known = atomic_load_explicit(&k->item_ns, memory_order_relaxed);
    int is_long = runs < 4 || (uint64_t)known * op->u.kernel.items > DS__CPU_LONG_NS;
    if (is_long)
        ds__cpu_long(w, 1);
    uint64_t each = 0;
    int status;
    if (op->u.kernel.items == 1 || k->grain == SIZE_MAX) {
        uint64_t start = ds__now_ns();
        status = k->cpu_fn(0, op->u.kernel.items, args);
        each = (ds__now_ns() - start) / op->u.kernel.items;
    } else {
        status = ds__cpu_kernel_items(w, s, op, args, &each);
    }
    atomic_store_explicit(&k->item_ns, each > UINT32_MAX ? UINT32_MAX : (uint32_t)each,
                          memory_order_relaxed);
    if (runs < 4)
        atomic_store_explicit(&k->runs, runs + 1, memory_order_relaxed);
    ds__cpu_long(w, 0);
    return status;
}

static void ds__cpu_kernel_failed(ds__cpu_stream *s, const ds__op *op, int status,
                                  uint64_t number) {
    char text[384];
    char site[200] = "";
    if (op->file)
        snprintf(site, sizeof site, ", launched at %.160s:%u,", op->file, (unsigned)op->line);
    if (op->u.kernel.kernel->ours)
        snprintf(text, sizeof text, "%.60s failed on cpu:%d: %.250s", op->u.kernel.kernel->name,
                 s->device, ds__tls.error);
    else
        snprintf(text, sizeof text, "kernel %.60s%s failed on cpu:%d with status %d",
                 op->u.kernel.kernel->name, site, s->device, status);
    ds__cpu_fail_stream(s, ds__cpu_fail_device(s->device, text), number);
}
/* ---- >>cpu host functions -------------------------------------------------------------------- */

static void *ds__cpu_host_main(void *unused);

/* One more thread for host functions; the pool's lock is held. A refusal is tried again at the
   monitor's next tick. */
static void ds__cpu_host_spawn(void) {
    if (ds__cpu.host_threads == ds__cpu.host_room) {
        int room = ds__cpu.host_room ? 2 * ds__cpu.host_room : 16;
        pthread_t *more = ds__alloc((size_t)room * sizeof *more);
        if (!more)
            return;
        if (ds__cpu.host_thread)
            memcpy(more, ds__cpu.host_thread, (size_t)ds__cpu.host_threads * sizeof *more);
        ds__release(ds__cpu.host_thread);
        ds__cpu.host_thread = more;
        ds__cpu.host_room = room;
    }
    if (pthread_create(&ds__cpu.host_thread[ds__cpu.host_threads], NULL, ds__cpu_host_main, NULL) ==
        0)
        ds__cpu.host_threads++;
}

/* Before a host function is accepted there is a thread that will run it. */
static ds_result ds__cpu_host_ready(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__cpu.host_threads, memory_order_relaxed) > 0))
        return DS_OK;
    ds__lock_take(&ds__cpu.lock);
    if (atomic_load(&ds__cpu.host_threads) == 0)
        ds__cpu_host_spawn();
    ds__lock_give(&ds__cpu.lock);
    return atomic_load(&ds__cpu.host_threads) > 0
               ? DS_OK
               : ds__fail(DS_ERR_OUT_OF_MEMORY, "no thread for host functions could be started");
}

/* The stream's next operation is the user's code: hands the stream over. */
static void ds__cpu_to_host(ds__cpu_stream *s) {
    atomic_fetch_add(&ds__cpu.host_busy, 1);
    ds__lock_take(&ds__cpu.lock);
    atomic_store(&s->state, DS__CPU_AT_HOST);
    s->next = NULL;
    if (ds__cpu.host_tail)
        ds__cpu.host_tail->next = s;
    else
        ds__cpu.host_head = s;
    ds__cpu.host_tail = s;
    int idle = ds__cpu.host_idle;
    int alone = ds__cpu.host_head == s;
    ds__lock_give(&ds__cpu.lock);
    if (idle) {
        atomic_fetch_add(&ds__cpu.host_word, 1);
        ds__futex_wake(&ds__cpu.host_word, 1);
    }
    /* who counts as idle may be on its way for another one */
    if (!idle || !alone)
        ds__cpu_wake_monitor();
}

/* Runs the user's code of the operation; number is the operation's. */
static void ds__cpu_host_op(ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    ds__cpu_failure *f = ds__cpu_failed(s, number);
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    if (op->kind == DS__OP_CALLBACK) {
        ds_stream stream = { op->u.host.stream };
        if (f)
            snprintf(ds__tls.error, sizeof ds__tls.error, "%s", f->text);
        op->u.host.callback(stream, f ? f->code : DS_OK, op->u.host.user);
    } else if (!f) {
        op->u.host.fn(op->u.host.user);
    }
    if (op->u.host.dtor_fn)
        op->u.host.dtor_fn(op->u.host.user);
    ds__tls.in_callback = outer;
}
/* ---- >>cpu virtual clock --------------------------------------------------------------------- */

/* Policy. With a fabric there is one worker, which after each operation takes the ready stream
   whose time is the lowest. A stream's time is when its next operation is ready, or earlier as
   long as waits, or notes of the clock (DS__OP_CLOCK), stand before that: those take no time and
   hold nothing, so it does no harm that they are passed too early. Of what is done, only the
   last operation of a stream can have its end after the clock; all before that began the next
   one, and the worker takes nothing that begins later than what it was asked for. So a token's
   time is needed only while it is the last. */

/* The clock goes on to this time, if it is not there yet. */
static void ds__cpu_clock_up(int64_t time) {
    int64_t now = atomic_load(&ds__cpu.clock);
    while (now < time && !atomic_compare_exchange_weak(&ds__cpu.clock, &now, time)) {
    }
}

/* When the number was passed; 0 when that is long ago: what came after it began at a time that
   the clock has passed, or who asks. */
static int64_t ds__cpu_time_of(const ds__cpu_stream *s, uint64_t upto) {
    return s->virt && atomic_load(&s->done) == upto ? atomic_load(&s->virt->end) : 0;
}

/* The stream comes after what `on` has passed. */
static void ds__cpu_after(ds__cpu_stream *s, const ds__cpu_stream *on, uint64_t upto) {
    if (DS__LIKELY(!s->virt))
        return;
    int64_t time = ds__cpu_time_of(on, upto);
    if (s->virt->time < time)
        s->virt->time = time;
}

/* A time stamp, which is never 0. */
static uint64_t ds__cpu_now(const ds__cpu_stream *s) {
    return DS__LIKELY(!s->virt) ? ds__now_ns() : (uint64_t)s->virt->time + 1;
}

static void ds__cpu_virtual_pass(ds__cpu_stream *s) {
    atomic_store(&s->virt->end, s->virt->time);
    if (s->kind != DS__STREAM_LANE)
        atomic_fetch_add_explicit(&ds__cpu.passed, 1, memory_order_relaxed);
}

/* An operation of the stream is put in; if the clock went on since the last one, the stream
   learns of it. */
static ds_result ds__cpu_put_clock(ds__cpu_stream *s) {
    int64_t now = atomic_load(&ds__cpu.clock);
    uint64_t puts = atomic_fetch_add_explicit(&ds__cpu.puts, 1, memory_order_relaxed);
    if ((puts & 4095) == 0 &&
        puts - atomic_load_explicit(&ds__cpu.passed, memory_order_relaxed) > DS__CPU_HELD) {
        atomic_store(&ds__cpu.run_all, 1);
        ds__cpu_wake_worker();
    }
    if (s->virt->put == now)
        return DS_OK;
    ds__op op = { .kind = DS__OP_CLOCK };
    op.u.clock.ns = now;
    ds_result r = ds__cpu_put(s, &op);
    if (r < 0)
        return r;
    s->virt->put = now;
    atomic_fetch_add_explicit(&ds__cpu.puts, 1, memory_order_relaxed);
    return r;
}

/* Nanoseconds for so many bytes: the nearest, but for any at least one, and at most eleven days. */
static int64_t ds__cpu_spend(size_t bytes, double bytes_per_s) {
    double ns = (double)bytes * 1e9 / bytes_per_s;
    return ns < 1 ? bytes > 0 : ns < 1e15 ? (int64_t)(ns + 0.5) : 1000000000000000;
}

/* Bytes on the way from one place to another, by an engine of the device: when they are there. */
static int64_t ds__cpu_transfer(int device, int from, int to, size_t bytes, int64_t ready) {
    const ds_cpu_fabric *f = ds__cpu.fabric;
    const ds_cpu_route *route = &f->route[from * (f->devices + 1) + to];
    int64_t *engine = &ds__cpu.engine_free[device * f->engines];
    int64_t longest = 0;
    for (int e = 1; e < f->engines; e++)
        if (ds__cpu.engine_free[device * f->engines + e] < *engine)
            engine = &ds__cpu.engine_free[device * f->engines + e];
    int64_t start = ready < *engine ? *engine : ready;
    for (size_t i = 0; i < route->hops; i++)
        if (start < ds__cpu.link_free[route->link[i]])
            start = ds__cpu.link_free[route->link[i]];
    for (size_t i = 0; i < route->hops; i++) {
        int64_t ns = ds__cpu_spend(bytes, f->link_bytes_per_s[route->link[i]]);
        ds__cpu.link_free[route->link[i]] = start + ns;
        if (longest < ns)
            longest = ns;
    }
    *engine = start + f->engine_ns + longest;
    return *engine + route->latency_ns;
}

/* So many bytes of the device's memory, read and written. */
static int64_t ds__cpu_memory_time(int device, size_t bytes, int64_t ready) {
    int64_t *at = &ds__cpu.memory_free[device];
    if (*at < ready)
        *at = ready;
    return *at += ds__cpu_spend(bytes, ds__cpu.fabric->memory_bytes_per_s);
}

/* Where an operand is, as the routes count. */
static int ds__cpu_end_of(const ds__op *op, int operand) {
    int place = ds__place_of(op, operand);
    return place >= DS__AT_DEVICE ? place - DS__AT_DEVICE : ds__cpu.fabric->devices;
}

/* The stream's time goes on to the end of the operation. 1: only to the end of its first leg; it
   comes again. */
static int ds__cpu_take_time(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_virtual *v = s->virt;
    int host = ds__cpu.fabric->devices;
    int again = 0;
    if (op->kind == DS__OP_CLOCK) {
        if (v->time < op->u.clock.ns)
            v->time = op->u.clock.ns;
    } else if (op->kind == DS__OP_KERNEL && op->u.kernel.kernel->bytes_fn) {
        uint64_t bytes =
            op->u.kernel.kernel->bytes_fn(op->u.kernel.items, (const char *)op + DS__CPU_ARGS_AT);
        v->time = ds__cpu_memory_time(s->device, (size_t)bytes, v->time);
    } else if (op->kind == DS__OP_FILL && ds__cpu_end_of(op, DS__OP_DST) != host) {
        v->time = ds__cpu_memory_time(ds__cpu_end_of(op, DS__OP_DST), ds__op_bytes(op), v->time);
    } else if (op->kind == DS__OP_COPY) {
        int from = ds__cpu_end_of(op, DS__OP_SRC);
        int to = ds__cpu_end_of(op, DS__OP_DST);
        int staged = from != to && from != host && to != host &&
                     !ds__cpu.fabric->route[from * (host + 1) + to].direct;
        if (from == to && from != host) {
            v->time = ds__cpu_memory_time(from, 2 * ds__op_bytes(op), v->time);
        } else if (from != to) {
            again = staged && !v->leg;
            v->time = ds__cpu_transfer(!staged ? s->device
                                       : again ? from
                                               : to,
                                       staged && v->leg ? host : from, again ? host : to,
                                       ds__op_bytes(op), v->time);
            v->leg = again;
        }
    }
    if (ds__cpu.latest < v->time)
        ds__cpu.latest = v->time;
    return again;
}
/* ---- >>cpu running a stream ------------------------------------------------------------------ */

static void ds__cpu_stamp_give(ds__cpu_stamp *stamp) {
    if (!stamp || atomic_fetch_sub_explicit(&stamp->refs, 1, memory_order_acq_rel) != 1)
        return;
    ds__lock_take(&ds__cpu.object_lock);
    stamp->next = ds__cpu.free_stamps;
    ds__cpu.free_stamps = stamp;
    ds__lock_give(&ds__cpu.object_lock);
}

/* The next operation in the queue; steps over the end of a block. */
static ds__op *ds__cpu_head(ds__cpu_stream *s) {
    /* a lane's piece is longer than a block */
    ds__op *op = (ds__op *)(void *)((char *)s->head + offsetof(ds__cpu_block, data) + s->head_at);
    if (DS__UNLIKELY(op->kind == DS__OP_JUMP)) {
        ds__cpu_block *old = s->head;
        ds__cpu_block *none = NULL;
        s->head = old->next;
        s->head_at = 0;
        if (!atomic_compare_exchange_strong_explicit(&s->spare, &none, old, memory_order_acq_rel,
                                                     memory_order_relaxed))
            ds__cpu_block_give(old);
        op = (ds__op *)(void *)s->head->data;
    }
    return op;
}

/* What became of the stream that ds__cpu_run worked on. */
enum { DS__CPU_EMPTY, DS__CPU_GONE, DS__CPU_MORE };

/* Who runs a stream: a worker or a waiting thread (not the user's host functions), a thread for
   host functions (only those), or the submitter itself in inline mode. */
enum { DS__CPU_WORK, DS__CPU_HOST, DS__CPU_ALL };

/* The stream `on`, for which stream s has to wait, is free to be run: the thread that has s runs
   it up to there, which saves parking one stream and waking it for the other. Not past more
   urgent ready streams. 0: it could not. */
static int ds__cpu_run_first(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_stream *on,
                             uint64_t upto) {
    uint32_t state = atomic_load(&on->state);
    uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    int mine = 0;
    if (ds__tls.nested >= DS__CPU_NESTED || ds__cpu.seed ||
        (ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1)))
        return 0;
    if (state == DS__CPU_POLLED)
        mine = atomic_compare_exchange_strong(&on->state, &state, DS__CPU_RUNNING);
    else if (state == DS__CPU_READY)
        mine = ds__cpu_take_ready(on);
    if (!mine)
        return 0;
    ds__tls.nested++;
    ds__cpu_run(w, on, upto);
    ds__tls.nested--;
    return atomic_load_explicit(&on->done, memory_order_acquire) >= upto;
}

/* The stream waits until `on` has passed `upto`. */
static int ds__cpu_wait_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_stream *on,
                             uint64_t upto, uint64_t number, int who) {
    if (atomic_load_explicit(&on->done, memory_order_acquire) < upto &&
        !(who == DS__CPU_WORK && ds__cpu_run_first(w, s, on, upto)) && ds__cpu_park(s, on, upto))
        return DS__CPU_GONE;
    ds__cpu_failure *f = ds__cpu_failed(on, upto);
    if (f)
        ds__cpu_fail_stream(s, f, number);
    ds__cpu_after(s, on, upto);
    return DS__CPU_EMPTY;
}

static void ds__cpu_lane_pass(ds__cpu_lane *l, uint64_t number, int failed);
static int ds__cpu_launch_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                               uint64_t number, int who);
static int ds__cpu_lane_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                             uint64_t number, int failed, int who);
static void ds__cpu_async_over(const ds__op *op);

/* Runs one operation. DS__CPU_GONE: the stream now belongs to somebody else and the operation is
   not done. */
static int ds__cpu_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                        int who) {
    if (DS__UNLIKELY(!atomic_load_explicit(&s->failure, memory_order_relaxed))) {
        ds__cpu_failure *f =
            atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
        if (DS__UNLIKELY(f != NULL))
            ds__cpu_fail_stream(s, f, number);
    }
    int failed = atomic_load_explicit(&s->failure, memory_order_relaxed) != NULL;
    int dry = 0;
    if (DS__UNLIKELY(ds__cpu.fabric != NULL) && !failed && who == DS__CPU_WORK) {
        if (ds__cpu_take_time(s, op))
            return DS__CPU_MORE;
        dry = (ds__cpu.fabric->flags & DS_CPU_DRY) != 0;
    }
    switch (op->kind) {
    case DS__OP_KERNEL:
        if (!failed && !(dry && op->u.kernel.kernel->bytes_fn)) {
            int status = ds__cpu_kernel(w, s, op);
            if (DS__UNLIKELY(status != 0))
                ds__cpu_kernel_failed(s, op, status, number);
        }
        break;
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (!failed && !dry)
            ds__cpu_move(w, s, op);
        break;
    case DS__OP_HOST:
    case DS__OP_CALLBACK:
        if (who == DS__CPU_WORK) {
            ds__cpu_to_host(s);
            return DS__CPU_GONE;
        }
        ds__cpu_host_op(s, op, number);
        break;
    case DS__OP_RECORD: {
        ds__cpu_stamp *stamp = op->u.stamp.stamp;
        if (!failed)
            atomic_store_explicit(&stamp->ns, ds__cpu_now(s), memory_order_release);
        ds__cpu_stamp_give(stamp);
        break;
    }
    case DS__OP_WAIT:
        return ds__cpu_wait_step(w, s, op->u.wait.stream, op->u.wait.upto, number, who);
    case DS__OP_SHARED_RECORD:
        ds__cpu_lane_pass(op->u.shared.lane, number, failed);
        break;
    case DS__OP_GRAPH:
        return ds__cpu_launch_step(w, s, op, number, who);
    case DS__OP_LANE_WAIT:
    case DS__OP_NODE_RECORD:
    case DS__OP_NODE_WAIT:
        return ds__cpu_lane_step(w, s, op, number, failed, who);
    /* also on a stream that failed: what used it was skipped */
    case DS__OP_FREE:
        ds__cpu_async_over(op);
        break;
    default:
        break;
    }
    return DS__CPU_EMPTY;
}

/* A launch of one item of a kernel that has been short so far, and nothing has failed; now and
   then not, to measure it. */
static inline int ds__cpu_is_short(const ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    if (op->kind != DS__OP_KERNEL || op->u.kernel.items != 1 || (number & 255u) == 0 ||
        ds__cpu.fabric)
        return 0;
    ds__kernel *k = op->u.kernel.kernel;
    return atomic_load_explicit(&k->runs, memory_order_relaxed) >= 4 &&
           atomic_load_explicit(&k->item_ns, memory_order_relaxed) <= DS__CPU_LONG_NS &&
           !atomic_load_explicit(&s->failure, memory_order_relaxed) &&
           !atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_relaxed);
}

/* Runs the stream, which the caller owns (RUNNING), up to operation `upto` at most and not
   beyond what was submitted when it began. DS__CPU_EMPTY: all that is done and the caller still
   owns it. DS__CPU_MORE: likewise, but operations are left. w: NULL when the caller is not a
   worker. */
static int ds__cpu_run_some(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto, int who) {
    uint64_t number = atomic_load_explicit(&s->done, memory_order_relaxed);
    uint64_t count = 0;
    int result = DS__CPU_EMPTY;
    uint64_t end = atomic_load_explicit(&s->submitted, memory_order_acquire);
    int unfenced = 0; /* the last operation was passed without a barrier */
    while (number < end) {
        if (DS__UNLIKELY(number >= upto)) {
            result = DS__CPU_MORE;
            break;
        }
        ds__op *op = ds__cpu_head(s);
        if (DS__UNLIKELY(who == DS__CPU_HOST && op->kind != DS__OP_HOST &&
                         op->kind != DS__OP_CALLBACK)) {
            result = DS__CPU_MORE;
            break;
        }
        if (DS__LIKELY(ds__cpu_is_short(s, op, number))) {
            int status = op->u.kernel.kernel->cpu_fn(0, 1, (const char *)op + DS__CPU_ARGS_AT);
            if (DS__UNLIKELY(status != 0))
                ds__cpu_kernel_failed(s, op, status, number + 1);
            s->head_at += (uint32_t)ds__cpu_op_bytes(op);
            ds__cpu_pass_short(s, ++number);
            unfenced = 1;
        } else {
            if (unfenced)
                ds__cpu_pass(s, number);
            unfenced = 0;
            uint32_t bytes = (uint32_t)ds__cpu_op_bytes(op);
            result = ds__cpu_step(w, s, op, number + 1, who);
            if (DS__UNLIKELY(result != DS__CPU_EMPTY))
                break;
            s->head_at += bytes;
            if (DS__UNLIKELY(s->virt != NULL))
                ds__cpu_virtual_pass(s);
            ds__cpu_pass(s, ++number);
        }
        count++;
        /* more urgent streams at once, others after a batch; what this worker polls itself is
           looked at every batch */
        uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
        int batch = (count & (DS__CPU_BATCH - 1)) == 0;
        if (DS__UNLIKELY(
                w && number < end &&
                (ds__cpu.fabric ||
                 (ready &&
                  ((ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1)) ||
                   batch || ds__cpu.seed)) ||
                 (batch && w->polled_count > 0)))) {
            result = DS__CPU_MORE;
            break;
        }
    }
    if (unfenced)
        ds__cpu_pass(s, number);
    if (w)
        atomic_store_explicit(&w->operations,
                              atomic_load_explicit(&w->operations, memory_order_relaxed) + count,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&ds__cpu.other_operations, count, memory_order_relaxed);
    return result;
}

/* Runs an owned stream and settles what becomes of it. Returns 1 when it did something. */
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    uint32_t beat =
        w && ds__tls.nested == 0 ? atomic_load_explicit(&w->beat, memory_order_relaxed) + 1 : 0;
    if (beat) {
        atomic_store_explicit(&w->running, s, memory_order_relaxed);
        atomic_store_explicit(&w->beat, beat, memory_order_relaxed);
    }
    int result = ds__cpu_run_some(w, s, upto, DS__CPU_WORK);
    if (beat)
        atomic_store_explicit(&w->beat, beat + 1, memory_order_relaxed);
    if (result == DS__CPU_MORE) {
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_push_ready(s);
    } else if (result == DS__CPU_EMPTY) {
        if (w && w->polled_count < DS__CPU_POLL_SLOTS && !ds__cpu.no_spin && !ds__cpu.seed &&
            s->kind != DS__STREAM_LANE &&
            !atomic_load_explicit(&s->closing, memory_order_relaxed)) {
            atomic_store_explicit(&w->polled[w->polled_count++], s, memory_order_relaxed);
            atomic_store(&s->state, DS__CPU_POLLED);
        } else {
            ds__cpu_go_idle(s);
        }
    }
    return 1;
}
/* ---- >>cpu threads --------------------------------------------------------------------------- */

/* Looks once at what the worker polls; 1: there was work. */
static int ds__cpu_poll(ds__cpu_worker *w) {
    int found = 0;
    for (int i = 0; i < w->polled_count;) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[i], memory_order_relaxed);
        uint64_t fresh = atomic_load_explicit(&s->submitted, memory_order_relaxed) -
                         atomic_load_explicit(&s->done, memory_order_relaxed);
        if (atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_POLLED && !fresh) {
            i++;
            continue;
        }
        atomic_store_explicit(
            &w->polled[i],
            atomic_load_explicit(&w->polled[--w->polled_count], memory_order_relaxed),
            memory_order_relaxed);
        uint32_t polled = DS__CPU_POLLED;
        if (!atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING))
            continue;
        found = 1;
        ds__cpu_run(w, s, UINT64_MAX);
    }
    return found;
}

/* A producer that streams and a worker that is right behind it would fight for the cache lines
   of the queue. A few dozen operations in short order while nobody waits: somebody streams. Then
   the worker's looks get further apart until one finds a few dozen operations; a look after a
   pause that finds next to nothing says that it was not so. */
static void ds__cpu_adapt(ds__cpu_worker *w, uint64_t found) {
    if (found == 0) {
        if (++w->misses >= 32)
            w->streak = w->delay = 0;
        return;
    }
    w->misses = 0;
    if (atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) > 0) {
        w->streak = w->delay = 0;
        return;
    }
    if (w->delay == 0) {
        if ((w->streak += (uint32_t)found) >= 24)
            w->delay = DS__CPU_STREAM_PAUSES / 8;
    } else if (found < 4) {
        w->streak = w->delay = 0;
    } else if (found < DS__CPU_STREAM_BATCH) {
        w->delay = w->delay < DS__CPU_STREAM_PAUSES / 2 ? 2 * w->delay : DS__CPU_STREAM_PAUSES;
    } else if (found > 4 * DS__CPU_STREAM_BATCH) {
        w->delay /= 2;
    }
}

/* The clock stands while host functions run; not for those that have taken long already. */
static void ds__cpu_await_hosts(void) {
    uint64_t start = ds__now_ns();
    for (;;) {
        uint32_t word = atomic_load(&ds__cpu.wake_word);
        int busy = atomic_load(&ds__cpu.host_busy);
        if (ds__cpu.host_stuck > busy)
            ds__cpu.host_stuck = busy;
        if (busy == ds__cpu.host_stuck || atomic_load(&ds__cpu.quit))
            return;
        uint64_t gone = ds__now_ns() - start;
        if (gone >= DS__CPU_HOST_NS) {
            ds__cpu.host_stuck = busy;
            return;
        }
        ds__futex_wait(&ds__cpu.wake_word, word, DS__CPU_HOST_NS - gone);
    }
}

/* The worker under a virtual clock. */
static void ds__cpu_virtual_main(ds__cpu_worker *w) {
    for (;;) {
        /* before quit is looked at: stop sets it, then changes this */
        uint32_t word = atomic_load(&ds__cpu.wake_word);
        if (atomic_load(&ds__cpu.quit))
            return;
        if (!ds__cpu_held()) {
            ds__cpu_await_hosts();
            ds__cpu_stream *s = ds__cpu_held() ? NULL : ds__cpu_pop_ready();
            if (s) {
                ds__cpu_run(w, s, UINT64_MAX);
                continue;
            }
            if (!ds__cpu_held()) { /* nothing more can run */
                ds__cpu_clock_up(ds__cpu.latest);
                atomic_store(&ds__cpu.run_all, 0);
                atomic_fetch_add(&ds__cpu.rests, 1);
            }
        }
        atomic_fetch_add(&ds__cpu.parked, 1);
        ds__futex_wait(&ds__cpu.wake_word, word, DS__FOREVER);
        atomic_fetch_sub(&ds__cpu.parked, 1);
    }
}

static void *ds__cpu_worker_main(void *arg) {
    ds__cpu_worker *w = arg;
    ds__os_block_signals();
    ds__tls.in_callback = 1; /* what runs here is the user's code, which must not call back */
    if (ds__cpu.fabric) {
        ds__cpu_virtual_main(w);
        return NULL;
    }
    uint64_t last = ds__now_ns();
    int spinning = 0;
    int looks = 0;
    while (!atomic_load_explicit(&ds__cpu.quit, memory_order_acquire)) {
        int found = 0;
        uint64_t before = atomic_load_explicit(&w->operations, memory_order_relaxed);
        for (uint32_t i = 0;
             i < w->delay && atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) == 0; i++)
            ds__pause();
        ds__cpu_stream *s = ds__cpu_pop_ready();
        if (s) {
            ds__cpu_unpoll_fresh(w);
            if (ds__cpu.seed)
                for (uint64_t n = before * 0x9e3779b97f4a7c15u >> 62; n; n--)
                    syscall(SYS_sched_yield);
            ds__cpu_run(w, s, UINT64_MAX);
            found = 1;
        } else if (w->polled_count) {
            found = ds__cpu_poll(w);
        }
        ds__cpu_adapt(w, atomic_load_explicit(&w->operations, memory_order_relaxed) - before);
        if (!found && atomic_load_explicit(&ds__cpu.job_count, memory_order_relaxed) > 0) {
            found = ds__cpu_job_join(w, NULL, 0);
        }
        if (found) {
            looks = 0;
            continue;
        }
        if (looks++ == 0)
            last = ds__now_ns();
        if (!spinning && !ds__cpu.no_spin &&
            atomic_fetch_add(&ds__cpu.spinners, 1) < ds__cpu.spin_limit)
            spinning = 1;
        else if (!spinning && !ds__cpu.no_spin)
            atomic_fetch_sub(&ds__cpu.spinners, 1);
        if (spinning && ((looks & 15) || ds__now_ns() - last < DS__CPU_POLL_NS)) {
            ds__pause();
            continue;
        }
        if (spinning) {
            atomic_fetch_sub(&ds__cpu.spinners, 1);
            spinning = 0;
        }
        ds__cpu_unpoll_all(w);
        if (atomic_load(&ds__cpu.ready_mask))
            continue;
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
            /* before quit is looked at: stop sets it, then changes this */
            uint32_t word = atomic_load(&ds__cpu.host_word);
            if (atomic_load(&ds__cpu.quit))
                break;
            ds__cpu.host_idle++;
            ds__lock_give(&ds__cpu.lock);
            ds__futex_wait(&ds__cpu.host_word, word, DS__FOREVER);
            ds__lock_take(&ds__cpu.lock);
            ds__cpu.host_idle--;
            continue;
        }
        ds__cpu.host_head = s->next;
        if (!s->next)
            ds__cpu.host_tail = NULL;
        ds__cpu.host_progress++;
        ds__lock_give(&ds__cpu.lock);
        atomic_store(&s->state, DS__CPU_RUNNING);
        uint64_t done = 0;
        int result;
        do { /* as long as host functions follow one another */
            done = atomic_load_explicit(&s->done, memory_order_relaxed);
            result = ds__cpu_run_some(NULL, s, UINT64_MAX, DS__CPU_HOST);
        } while (result == DS__CPU_EMPTY &&
                 atomic_load_explicit(&s->done, memory_order_relaxed) != done);
        if (result == DS__CPU_MORE) {
            atomic_store(&s->state, DS__CPU_READY);
            ds__cpu_push_ready(s);
        } else {
            ds__cpu_go_idle(s);
        }
        atomic_fetch_sub(&ds__cpu.host_busy, 1);
        if (ds__cpu.fabric)
            ds__cpu_wake_worker();
        ds__lock_take(&ds__cpu.lock);
    }
    ds__lock_give(&ds__cpu.lock);
    (void)unused;
    return NULL;
}

/* Work that is held back for long runs all the same. Ticks and not time are counted: where this
   thread is starved, so are those that call. 1 while there is any. */
static int ds__cpu_watch_held(void) {
    static int ticks;
    static uint64_t seen;
    if (!atomic_load(&ds__cpu.ready_mask))
        return 0;
    uint64_t puts = atomic_load(&ds__cpu.puts);
    if (!ds__cpu_held() || puts != seen)
        ticks = 0;
    seen = puts;
    if (++ticks < DS__CPU_STALL_TICKS)
        return 1;
    ticks = 0;
    atomic_store(&ds__cpu.run_all, 1);
    ds__cpu_wake_worker();
    return 1;
}

/* One tick: returns 1 while there is something to watch. */
static int ds__cpu_watch(uint64_t *host_progress) {
    int busy = ds__cpu.fabric && ds__cpu_watch_held();
    ds__lock_take(&ds__cpu.lock);
    if (ds__cpu.host_head) {
        busy = 1;
        if (ds__cpu.host_idle == 0 && *host_progress == ds__cpu.host_progress)
            ds__cpu_host_spawn();
        *host_progress = ds__cpu.host_progress;
    }
    ds__lock_give(&ds__cpu.lock);
    if (atomic_load(&ds__cpu.parked) < ds__cpu.workers)
        busy = 1;
    for (int i = 0; i < ds__cpu.workers; i++) {
        ds__cpu_worker *w = &ds__cpu.worker[i];
        uint32_t beat = atomic_load_explicit(&w->beat, memory_order_relaxed);
        if ((beat & 1) && beat == w->last_beat) {
            /* in one operation, or one long run, for a whole tick: what it polls, what is ready,
               and who was missed when the last short operation was passed, must not wait */
            for (int k = 0; k < DS__CPU_POLL_SLOTS; k++) {
                ds__cpu_stream *s = atomic_load_explicit(&w->polled[k], memory_order_relaxed);
                if (s && ds__cpu_has_work(s))
                    ds__cpu_unpoll(s);
            }
            ds__cpu_stream *running = atomic_load_explicit(&w->running, memory_order_relaxed);
            if (running && atomic_load(&running->waiting))
                ds__cpu_notify(running);
            if (atomic_load(&ds__cpu.ready_mask) && atomic_load(&ds__cpu.parked) > 0)
                ds__cpu_wake_worker();
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
        if (ds__cpu_watch(&host_progress)) {
            atomic_store(&ds__cpu.monitor_word, 1);
            continue;
        }
        if (!atomic_load(&ds__cpu.quit))
            ds__futex_wait(&ds__cpu.monitor_word, 0, DS__FOREVER);
    }
    (void)unused;
    return NULL;
}
/* ---- >>cpu waiting --------------------------------------------------------------------------- */

/* A waiting thread runs what the awaited operation depends on, and nothing else: the stream
   itself up to that operation, or the stream on which it is parked, and so on. Returns 1 when it
   did something. */
static int ds__cpu_help(ds__cpu_stream *s, uint64_t upto) {
    for (int depth = 0; depth < 64; depth++) {
        switch (atomic_load_explicit(&s->state, memory_order_acquire)) {
        case DS__CPU_READY: {
            if (!ds__cpu_take_ready(s))
                return 0;
            int outer = ds__tls.in_callback;
            ds__tls.in_callback = 1;
            ds__cpu_run(NULL, s, upto);
            ds__tls.in_callback = outer;
            atomic_fetch_add_explicit(&ds__cpu.helped, 1, memory_order_relaxed);
            return 1;
        }
        case DS__CPU_POLLED: { /* the worker that polls it has not come for it in all this time */
            uint32_t polled = DS__CPU_POLLED;
            if (ds__cpu_has_work(s) &&
                atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING)) {
                atomic_store(&s->state, DS__CPU_READY);
                ds__cpu_push_ready(s);
                continue; /* and take it from there */
            }
            return 0;
        }
        case DS__CPU_RUNNING:
            return atomic_load_explicit(&s->job, memory_order_relaxed) != NULL &&
                   ds__cpu_job_join(NULL, s, upto);
        case DS__CPU_PARKED: {
            uint32_t count = atomic_load(&s->park_count);
            ds__cpu_stream *on = atomic_load(&s->park_on);
            uint64_t number = atomic_load(&s->park_upto);
            /* unchanged since: while s has not passed `upto`, what it is parked on is what it
               depends on */
            if ((count & 1) || atomic_load(&s->done) >= upto ||
                atomic_load(&s->park_count) != count)
                return 0;
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

/* Waits until the stream has passed `upto`; 0: the time was over first. With a time limit it
   runs nothing. */
static int ds__cpu_wait_slow(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns,
                             int sleep_at_once) {
    int help = timeout_ns == DS__FOREVER && !ds__cpu.seed && !sleep_at_once;
    uint64_t start = ds__now_ns();
    uint64_t spun = start;
    uint64_t deadline = timeout_ns > DS__FOREVER - 1 - start ? DS__FOREVER : start + timeout_ns;
    for (uint32_t spins = 0; !sleep_at_once && !ds__cpu.no_spin; spins++) {
        if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
            return 1;
        /* now and then only: looking at the stream's state takes its cache line from the worker */
        if (help && spins % 32 == 0 && ds__cpu_help(s, upto)) {
            spun = ds__now_ns();
            continue;
        }
        ds__pause();
        if (spins % 16 != 15)
            continue;
        uint64_t now = ds__now_ns();
        if (now >= deadline)
            return 0;
        if (now - spun > DS__CPU_WAIT_SPIN_NS)
            break;
    }
    _Atomic uint32_t flag = 0;
    ds__cpu_waiter me = { NULL, upto, NULL, &flag };
    ds__lock_take(&s->wait_lock);
    int listed = ds__cpu_enlist(s, &me);
    if (ds__cpu.fabric)
        atomic_fetch_add(&ds__cpu.wanted, listed);
    ds__lock_give(&s->wait_lock);
    if (ds__cpu.fabric && listed)
        ds__cpu_wake_worker();
    while (listed && atomic_load_explicit(&flag, memory_order_acquire) == 0) {
        if (help && ds__cpu_help(s, upto))
            continue;
        uint64_t left = DS__FOREVER;
        if (deadline != DS__FOREVER) {
            uint64_t now = ds__now_ns();
            if (now >= deadline) {
                ds__lock_take(&s->wait_lock);
                for (ds__cpu_waiter **p = &s->waiters; *p; p = &(*p)->next)
                    if (*p == &me) {
                        *p = me.next;
                        listed = 0;
                        break;
                    }
                if (ds__cpu.fabric && !listed)
                    atomic_fetch_sub(&ds__cpu.wanted, 1);
                ds__lock_give(&s->wait_lock);
                return !listed ? 0 : 1; /* not in the list any more: it was passed in this moment */
            }
            left = deadline - now;
        }
        atomic_fetch_add_explicit(&ds__cpu.asleep, 1, memory_order_relaxed);
        ds__futex_wait(&flag, 0, left);
        atomic_fetch_sub_explicit(&ds__cpu.asleep, 1, memory_order_relaxed);
    }
    return 1;
}

/* Under a virtual clock; a wait for no time lets run what can, but not for ever. */
static int ds__cpu_wait_virtual(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns) {
    int over = atomic_load(&s->done) >= upto;
    uint32_t rests = atomic_load(&ds__cpu.rests);
    if (!over && timeout_ns)
        over = ds__cpu_wait_slow(s, upto, timeout_ns, 1);
    for (int i = 0;
         i < DS__CPU_ASKS && !over && !timeout_ns && rests == atomic_load(&ds__cpu.rests); i++)
        over = ds__cpu_wait_slow(s, upto, DS__CPU_ASK_NS, 1);
    if (over)
        ds__cpu_clock_up(ds__cpu_time_of(s, upto));
    return over;
}

static int ds__cpu_wait(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns, int sleep_at_once) {
    if (DS__UNLIKELY(ds__cpu.fabric != NULL))
        return ds__cpu_wait_virtual(s, upto, timeout_ns);
    if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
        return 1;
    if (timeout_ns == 0)
        return 0;
    if (!sleep_at_once && !ds__cpu.no_spin) {
        /* Most waits are over in a microsecond. Looking at the stream's state, for help, takes
           its cache line from the worker: so once, for a stream that nobody has yet, and then
           leave the worker alone. */
        if (timeout_ns == DS__FOREVER && !ds__cpu.seed &&
            atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_READY)
            ds__cpu_help(s, upto);
        int help = timeout_ns == DS__FOREVER && !ds__cpu.seed;
        for (int spins = 0; spins < 64; spins++) {
            if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
                return 1;
            if (help && spins % 4 == 0 &&
                atomic_load_explicit(&ds__cpu.job_count, memory_order_relaxed) > 0)
                ds__cpu_help(s, upto);
            ds__pause();
        }
    }
    atomic_fetch_add_explicit(&ds__cpu.hurry, 1, memory_order_relaxed);
    int over = ds__cpu_wait_slow(s, upto, timeout_ns, sleep_at_once);
    atomic_fetch_sub_explicit(&ds__cpu.hurry, 1, memory_order_relaxed);
    return over;
}
/* ---- >>cpu submission ------------------------------------------------------------------------ */

static ds_result ds__cpu_report(const ds__cpu_failure *f) {
    return ds__fail(f->code, "%s", f->text);
}

/* The legacy stream waits for all that was put on the device's blocking streams. Legacy and put
   locks are held. */
static ds_result ds__cpu_legacy_gather(ds__cpu_stream *legacy) {
    ds__cpu_device *d = &ds__cpu.device[legacy->device];
    ds_result r = DS_OK;
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *b = d->streams; b && r == DS_OK; b = b->all_next) {
        if (b == legacy || !(b->flags & DS_STREAM_BLOCKING))
            continue;
        uint64_t tail = atomic_load(&b->submitted);
        if (tail == b->seen_by_legacy || (atomic_load(&b->done) >= tail && !ds__cpu.fabric))
            continue;
        ds__op wait = { .kind = DS__OP_WAIT };
        wait.u.wait.stream = b;
        wait.u.wait.upto = tail;
        r = ds__cpu_put(legacy, &wait);
        if (r == DS_OK)
            b->seen_by_legacy = tail;
    }
    ds__lock_give(&d->lock);
    return r;
}

/* A blocking stream waits for what was put on the legacy stream. Legacy and put locks are held. */
static ds_result ds__cpu_legacy_follow(ds__cpu_stream *s) {
    ds__cpu_stream *legacy = ds__cpu.device[s->device].legacy;
    uint64_t tail = atomic_load(&legacy->submitted);
    if (tail == s->legacy_seen || (atomic_load(&legacy->done) >= tail && !ds__cpu.fabric))
        return DS_OK;
    ds__op wait = { .kind = DS__OP_WAIT };
    wait.u.wait.stream = legacy;
    wait.u.wait.upto = tail;
    ds_result r = ds__cpu_put(s, &wait);
    if (r == DS_OK)
        s->legacy_seen = tail;
    return r;
}

/* Takes the locks for a submission; where the legacy rules apply, the device's legacy lock
   first. Returns whether. */
static int ds__cpu_put_begin(ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    ds__lock_take(&s->put_lock);
    if (DS__LIKELY(!(s->flags & DS_STREAM_BLOCKING)) || !atomic_load(&d->legacy_used))
        return 0;
    ds__lock_give(&s->put_lock);
    ds__lock_take(&d->legacy_lock);
    ds__lock_take(&s->put_lock);
    return 1;
}

static void ds__cpu_put_end(ds__cpu_stream *s, int with_legacy) {
    ds__lock_give(&s->put_lock);
    if (with_legacy)
        ds__lock_give(&ds__cpu.device[s->device].legacy_lock);
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
        if (result != DS__CPU_GONE)
            ds__cpu_go_idle(s);
    }
    ds__cpu_wait(s, number, DS__FOREVER, 1);
}

/* Puts an operation on a stream; *out_number (may be NULL) is its number. number_only: nothing
   is put, the number is that of the last operation, after the legacy rules have been applied. */
static ds_result ds__cpu_enqueue(ds__cpu_stream *s, const ds__op *op, uint64_t *out_number) {
    ds_result r = DS_OK;
    int legacy = ds__cpu_put_begin(s);
    if (DS__UNLIKELY(atomic_load_explicit(&s->closing, memory_order_relaxed)))
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the native stream was destroyed");
    if (r == DS_OK && DS__UNLIKELY(legacy))
        r = ds__cpu_legacy_order(s);
    if (r == DS_OK && op)
        r = ds__cpu_put(s, op);
    uint64_t number = atomic_load_explicit(&s->submitted, memory_order_relaxed);
    ds__cpu_put_end(s, legacy);
    if (out_number)
        *out_number = number;
    uint32_t idle = DS__CPU_IDLE;
    if (DS__UNLIKELY(ds__cpu.is_inline))
        ds__cpu_run_inline(s, number);
    else if (!op || op->kind != DS__OP_WAIT)
        ds__cpu_kick(s);
    else if (atomic_load(&s->state) == DS__CPU_IDLE &&
             atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING) &&
             !ds__cpu_park_waiting(s))
        ds__cpu_go_idle(s);
    return r;
}

/* The inline rule (DS__INLINE_BYTES): on an idle stream the caller runs a small copy or fill
   itself. 0: it did not. */
static int ds__cpu_at_once(ds__cpu_stream *s, const ds__op *op) {
    if (ds__cpu.seed || ds__cpu.is_inline || ds__op_bytes(op) > DS__INLINE_BYTES ||
        (op->flags & DS__OP_STAGED))
        return 0;
    if ((s->flags & DS_STREAM_BLOCKING) && atomic_load(&ds__cpu.device[s->device].legacy_used))
        return 0;
    if (!ds__trylock(&s->put_lock))
        return 0;
    uint64_t number = atomic_load_explicit(&s->submitted, memory_order_relaxed);
    uint32_t state = atomic_load_explicit(&s->state, memory_order_acquire);
    int mine = number == atomic_load_explicit(&s->done, memory_order_acquire) &&
               !((s->flags & DS_STREAM_BLOCKING) &&
                 atomic_load(&ds__cpu.device[s->device].legacy_used)) && /* under the lock */
               !atomic_load_explicit(&s->closing, memory_order_relaxed) &&
               (state == DS__CPU_IDLE || state == DS__CPU_POLLED) &&
               atomic_compare_exchange_strong(&s->state, &state, DS__CPU_RUNNING);
    /* what the stream has passed may have failed since the caller looked */
    int failed = mine && ds__cpu_stream_failure(s) != NULL;
    if (mine && !failed) {
        if (op->kind == DS__OP_COPY)
            ds__cpu_copy_part(op, 0, ds__op_bytes(op), 0);
        else
            ds__cpu_fill_part(op, 0, op->u.fill.width * op->u.fill.height);
        atomic_store(&s->submitted, number + 1);
        ds__cpu_pass(s, number + 1);
    }
    ds__lock_give(&s->put_lock);
    if (!mine)
        return 0;
    ds__cpu_go_idle(s);
    if (failed)
        return 0;
    atomic_fetch_add_explicit(&ds__cpu.inlined, 1, memory_order_relaxed);
    return 1;
}

/* The number of the stream's last operation, as of now and after the legacy rules. If that one
   failed before a reset, an operation that does nothing gives a new number. */
static ds_result ds__cpu_mark(ds__cpu_stream *s, uint64_t *out_upto) {
    ds_result r = DS_OK;
    if (s->flags & DS_STREAM_BLOCKING)
        r = ds__cpu_enqueue(s, NULL, out_upto);
    else
        *out_upto = atomic_load_explicit(&s->submitted, memory_order_acquire);
    if (DS__LIKELY(r < 0 || !atomic_load_explicit(&s->past, memory_order_acquire) ||
                   !ds__cpu_failed(s, *out_upto)))
        return r;
    ds__op nothing = { .kind = DS__OP_NOTHING };
    return ds__cpu_enqueue(s, &nothing, out_upto);
}

/* A copy or fill; the caller waits for it, and for nothing behind it, when it touches pageable
   memory. */
static ds_result ds__cpu_submit_move(ds__cpu_stream *s, const ds__op *op) {
    uint64_t number;
    ds_result r = ds__cpu_enqueue(s, op, &number);
    if (r < 0 || !(op->flags & DS__OP_BLOCKS))
        return r;
    ds__cpu_wait(s, number, DS__FOREVER, 0);
    ds__cpu_failure *f = ds__cpu_failed(s, number);
    return f ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_kernel_load(int device, ds__kernel *kernel) {
    (void)device;
    return kernel->cpu_fn ? DS_OK
                          : ds__fail(DS_ERR_UNSUPPORTED, "kernel %s has no CPU form", kernel->name);
}

static void ds__cpu_kernel_destroy(ds__kernel *kernel) {
    (void)kernel;
}

static ds_result ds__cpu_submit_record(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_wait(ds__cpu_stream *s, const ds__op *op, ds__cpu_stream *on,
                                     uint64_t upto);
static ds_result ds__cpu_submit_wait_event(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_wait_stream(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_launch(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_upload(const ds__op *op);
static inline int ds__cpu_watched(const ds__cpu_stream *s);
static int ds__cpu_submit_captured(ds__cpu_stream *s, const ds__op *op, ds_result *out);

/* The inline rule for several streams: while their put locks are held nothing can become
   pending. 0: it cannot be held now, or something is. */
static int ds__cpu_hold(ds__cpu_stream *s) {
    if (ds__cpu_watched(s) || !ds__trylock(&s->put_lock))
        return 0;
    int idle =
        atomic_load_explicit(&s->submitted, memory_order_relaxed) ==
            atomic_load_explicit(&s->done, memory_order_acquire) &&
        !((s->flags & DS_STREAM_BLOCKING) && atomic_load(&ds__cpu.device[s->device].legacy_used)) &&
        !atomic_load_explicit(&s->closing, memory_order_relaxed) && !ds__cpu_watched(s) &&
        !ds__cpu_stream_failure(s);
    if (!idle)
        ds__lock_give(&s->put_lock);
    return idle;
}

static ds_result ds__cpu_run_together(void *const *streams, size_t count,
                                      void (*run_fn)(void *user), void *user, int *out_ran) {
    size_t held = 0;
    *out_ran = 0;
    if (ds__cpu.seed || ds__cpu.is_inline)
        return DS_OK;
    while (held < count && ds__cpu_hold(streams[held]))
        held++;
    if (held == count) {
        run_fn(user);
        *out_ran = 1;
        atomic_fetch_add_explicit(&ds__cpu.inlined, 1, memory_order_relaxed);
    }
    while (held)
        ds__lock_give(&((ds__cpu_stream *)streams[--held])->put_lock);
    return DS_OK;
}

static ds_result ds__cpu_submit(void *stream, const ds__op *op) {
    ds__cpu_stream *s = stream;
    ds_result captured;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (DS__UNLIKELY(f != NULL))
        return ds__cpu_report(f);
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, op, &captured))
        return captured;
    switch (op->kind) {
    case DS__OP_KERNEL:
        /* it would have been captured */
        if (DS__UNLIKELY(op->flags & DS__OP_INSIDE))
            return DS__CHANGED;
        if (DS__UNLIKELY(!op->u.kernel.kernel->cpu_fn))
            return ds__cpu_kernel_load(0, op->u.kernel.kernel);
        return ds__cpu_enqueue(s, op, NULL);
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (ds__cpu_at_once(s, op))
            return DS_OK;
        return ds__cpu_submit_move(s, op);
    case DS__OP_RECORD:
    case DS__OP_EXTERNAL_RECORD:
        return ds__cpu_submit_record(s, op);
    case DS__OP_WAIT:
    case DS__OP_EXTERNAL_WAIT:
        return ds__cpu_submit_wait_event(s, op);
    case DS__OP_WAIT_STREAM:
        return ds__cpu_submit_wait_stream(s, op);
    case DS__OP_GRAPH:
        return ds__cpu_submit_launch(s, op);
    case DS__OP_UPLOAD:
        return ds__cpu_submit_upload(op);
    default: {
        ds_result r = ds__cpu_host_ready();
        return r < 0 ? r : ds__cpu_enqueue(s, op, NULL);
    }
    }
}

static ds_result ds__cpu_submit_wait(ds__cpu_stream *s, const ds__op *op, ds__cpu_stream *on,
                                     uint64_t upto) {
    /* Nothing to wait for. On the legacy stream a wait is an action all the same: blocking
       streams are ordered by it. */
    if ((on == s ||
         (atomic_load_explicit(&on->done, memory_order_acquire) >= upto && !ds__cpu.fabric)) &&
        !ds__cpu_failed(on, upto) && s->kind != DS__STREAM_LEGACY)
        return DS_OK;
    ds__op wait = *op;
    wait.kind = DS__OP_WAIT;
    wait.u.wait.stream = on;
    wait.u.wait.upto = upto;
    return ds__cpu_enqueue(s, &wait, NULL);
}

static ds_result ds__cpu_event_foreign(ds__cpu_event *e, int wait);

/* Brings what the event stands for up to date, if processes share it; wait: somebody will wait
   for it. */
static inline ds_result ds__cpu_event_look(ds__cpu_event *e, int wait) {
    return DS__LIKELY(!e->board) ? DS_OK : ds__cpu_event_foreign(e, wait);
}

/* Another thread may have brought the event up to date since, for no wait: what will be waited
   for is watched, whatever that is now. */
static ds_result ds__cpu_event_watch(const ds__cpu_event *e, ds__cpu_stream *on, uint64_t upto);
static int ds__cpu_fork_event(ds__cpu_stream *s, ds__cpu_event *e, ds_result *out);
static int ds__cpu_fork_stream(ds__cpu_stream *s, ds__cpu_stream *other, ds_result *out);

static ds_result ds__cpu_submit_wait_event(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_event *e = op->u.event.event;
    for (;;) {
        ds_result r = ds__cpu_event_look(e, 1);
        if (DS__UNLIKELY(r < 0))
            return r;
        ds__lock_take(&e->lock);
        ds__cpu_stream *on = e->stream;
        uint64_t upto = e->upto;
        uint64_t capture = e->capture;
        ds__lock_give(&e->lock);
        if (DS__LIKELY(!capture))
            return on ? ((r = ds__cpu_event_watch(e, on, upto)) < 0
                             ? r
                             : ds__cpu_submit_wait(s, op, on, upto))
                      : DS_OK;
        if (ds__cpu_fork_event(s, e, &r))
            return r;
    }
}

static ds_result ds__cpu_submit_wait_stream(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_stream *other = op->u.wait.stream;
    uint64_t upto;
    ds_result r;
    if (other == s)
        return DS_OK;
    if (ds__cpu_watched(other) && ds__cpu_fork_stream(s, other, &r))
        return r;
    r = ds__cpu_mark(other, &upto);
    return r < 0 ? r : ds__cpu_submit_wait(s, op, other, upto);
}
/* ---- >>cpu streams --------------------------------------------------------------------------- */

static int ds__cpu_clamp(int priority) {
    return priority > 0 ? 0 : priority < 1 - DS__CPU_LEVELS ? 1 - DS__CPU_LEVELS : priority;
}

static ds__cpu_stream *ds__cpu_stream_make(int device, int kind, unsigned flags, int priority) {
    ds__lock_take(&ds__cpu.object_lock);
    if (!ds__cpu.free_streams) {
        ds__cpu_stream *slab = ds__cpu_raw(16 * sizeof *slab);
        for (int i = 0; slab && i < 16; i++) {
            slab[i].next = ds__cpu.free_streams;
            ds__cpu.free_streams = &slab[i];
        }
    }
    ds__cpu_stream *s = ds__cpu.free_streams;
    if (s && ds__cpu.fabric && !s->virt)
        s->virt = ds__cpu_raw(sizeof *s->virt);
    if (s && ds__cpu.fabric && !s->virt)
        s = NULL;
    if (s)
        ds__cpu.free_streams = s->next;
    ds__lock_give(&ds__cpu.object_lock);
    if (!s)
        return NULL;
    ds__cpu_device *d = &ds__cpu.device[device];
    s->device = device;
    s->kind = kind;
    s->flags =
        kind == DS__STREAM_LEGACY || kind == DS__STREAM_PER_THREAD ? DS_STREAM_BLOCKING : flags;
    s->level = priority + DS__CPU_LEVELS - 1;
    s->floating = 0;
    s->legacy_seen = s->seen_by_legacy = 0;
    if (ds__cpu.fabric) {
        s->virt->time = s->virt->put = 0;
        s->virt->leg = 0;
        s->virt->born = atomic_fetch_add(&ds__cpu.born, 1);
    }
    atomic_store(&s->closing, 0);
    atomic_store(&s->watch, 0);
    atomic_store(&s->state, DS__CPU_IDLE);
    if (kind != DS__STREAM_LANE)
        atomic_fetch_add(&ds__cpu.stream_count, 1);
    if (kind == DS__STREAM_LEGACY) { /* it may be needed for the first time while others capture */
        ds__lock_take(&ds__g.capture_lock);
        d->legacy = s;
        atomic_store(&s->watch, d->capturing);
        ds__lock_give(&ds__g.capture_lock);
    }
    ds__lock_take(&d->lock);
    s->all_prev = NULL;
    s->all_next = d->streams;
    if (d->streams)
        d->streams->all_prev = s;
    d->streams = s;
    if (kind == DS__STREAM_LEGACY) {
        atomic_store(&d->legacy_used, 1);
        /* A submission that began before it saw this ends first; later ones see it. */
        for (ds__cpu_stream *b = d->streams; b; b = b->all_next) {
            ds__lock_take(&b->put_lock);
            ds__lock_give(&b->put_lock);
        }
    }
    ds__lock_give(&d->lock);
    return s;
}

static ds_result ds__cpu_stream_create(int device, int kind, unsigned flags, int *priority,
                                       void **out) {
    *priority = ds__cpu_clamp(*priority);
    *out = ds__cpu_stream_make(device, kind, flags, *priority);
    return *out ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a stream");
}

/* The caller owns the stream; it is drained and nobody can put work on it. A stream that ever
   failed is not used again, since events may still ask whether their number failed. */
static void ds__cpu_recycle(ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    /* who destroys it has said so and not looked at its state yet: it must not find the next
       one's */
    ds__lock_take(&s->put_lock);
    ds__cpu_block *b = s->head; /* a lane has none */
    s->head = s->tail = NULL;
    ds__lock_give(&s->put_lock);
    ds__cpu_block_give(b);
    ds__cpu_block_give(atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel));
    ds__lock_take(&d->lock);
    if (s->all_prev)
        s->all_prev->all_next = s->all_next;
    else
        d->streams = s->all_next;
    if (s->all_next)
        s->all_next->all_prev = s->all_prev;
    ds__lock_give(&d->lock);
    atomic_store(&s->state, DS__CPU_FREE);
    if (s->kind != DS__STREAM_LANE)
        atomic_fetch_sub(&ds__cpu.stream_count, 1);
    if (s->had_failure)
        return;
    ds__lock_take(&ds__cpu.object_lock);
    s->next = ds__cpu.free_streams;
    ds__cpu.free_streams = s;
    ds__lock_give(&ds__cpu.object_lock);
}

static void ds__cpu_destroy_captured(ds__cpu_stream *s);

static void ds__cpu_stream_destroy(void *stream) {
    ds__cpu_stream *s = stream;
    if (ds__cpu_watched(s) && s->kind != DS__STREAM_LEGACY)
        ds__cpu_destroy_captured(s);
    uint32_t idle = DS__CPU_IDLE;
    ds__lock_take(&s->put_lock); /* after this no operation gets in any more */
    atomic_store(&s->closing, 1);
    int mine = atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING);
    ds__lock_give(&s->put_lock);
    if (mine)
        ds__cpu_go_idle(s);
}

static void ds__cpu_stream_unwrap(void *stream) {
    ds__cpu_stream *s = stream;
    ds__lock_take(&ds__cpu.device[s->device].lock);
    s->floating = 1;
    ds__lock_give(&ds__cpu.device[s->device].lock);
}

static ds_result ds__cpu_stream_wrap(int device, void *native, int own, unsigned *out_flags,
                                     int *out_priority, void **out) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds_result r = DS_ERR_INVALID_VALUE;
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
        if (s != native || s->kind == DS__STREAM_LANE || atomic_load(&s->closing))
            continue;
        if (own && !s->floating) {
            r = DS_ERR_ILLEGAL_STATE;
            break;
        }
        if (own)
            s->floating = 0;
        *out_flags = s->flags;
        *out_priority = s->level + 1 - DS__CPU_LEVELS;
        *out = s;
        r = DS_OK;
    }
    ds__lock_give(&d->lock);
    if (r == DS_ERR_ILLEGAL_STATE)
        return ds__fail(DS_ERR_INVALID_VALUE, "the native stream has an owner already");
    return r == DS_OK ? r : ds__fail(r, "%p is not a stream of cpu:%d", native, device);
}

static ds_result ds__cpu_stream_native(void *stream, void **out) {
    *out = stream;
    return DS_OK;
}

static const void *ds__cpu_stream_identity(void *stream) {
    return stream;
}

static void ds__cpu_stream_hide(void *stream) {
    (void)stream;
}

static void ds__cpu_stream_forget(void *stream) {
    (void)stream;
}

static ds_result ds__cpu_copy_now(const ds__op *op) {
    (void)op;
    return ds__fail(DS_ERR_UNSUPPORTED, "only a GPU's memory needs this");
}
/* A token for the last operation of a stream. */
typedef struct ds__cpu_token {
    ds__cpu_stream *stream;
    uint64_t upto;
} ds__cpu_token;

/* Tokens for the unfinished work of the device's streams (blocking ones only, or all). NULL with
   *out_count 0: none; with *out_count SIZE_MAX: no memory. */
static ds__cpu_token *ds__cpu_tokens(int device, int blocking_only, size_t *out_count) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_token *list = NULL;
    size_t room = 0;
    size_t count = 0;
    for (;;) {
        count = 0;
        ds__lock_take(&d->lock);
        for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
            uint64_t tail = atomic_load(&s->submitted);
            if ((blocking_only && !(s->flags & DS_STREAM_BLOCKING)) ||
                (atomic_load(&s->done) >= tail && !ds__cpu.fabric))
                continue;
            if (count < room) {
                list[count].stream = s;
                list[count].upto = tail;
            }
            count++;
        }
        ds__lock_give(&d->lock);
        if (count <= room)
            break;
        ds__release(list);
        room = count + 16;
        list = ds__alloc(room * sizeof *list);
        if (!list) {
            count = SIZE_MAX;
            break;
        }
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
        if (!ds__cpu_wait(list[i].stream, list[i].upto, left, 0))
            return 0;
    }
    return 1;
}

static ds_result ds__cpu_wait_device(int device, int blocking_only, uint64_t timeout_ns) {
    size_t count;
    ds__cpu_token *list = ds__cpu_tokens(device, blocking_only, &count);
    if (count == SIZE_MAX)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to list the device's streams");
    int over = ds__cpu_wait_all(list, count, timeout_ns);
    ds__release(list);
    return over ? DS_OK : DS_NOT_READY;
}

static ds_result ds__cpu_settled(const ds__cpu_stream *s) {
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    return DS__UNLIKELY(f != NULL) ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_asked(const ds__cpu_stream *s, const char *rule);

static ds_result ds__cpu_stream_query(void *stream) {
    ds__cpu_stream *s = stream;
    if (ds__cpu_watched(s)) {
        ds_result r =
            ds__cpu_asked(s, "a stream that captures cannot be asked whether its work is done");
        if (r < 0)
            return r;
    }
    if (s->kind == DS__STREAM_LEGACY) {
        ds_result r = ds__cpu_wait_device(s->device, 1, 0);
        return r == DS_OK ? ds__cpu_settled(s) : r;
    }
    uint64_t tail = atomic_load_explicit(&s->submitted, memory_order_acquire);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL))
        (void)ds__cpu_wait_virtual(s, tail, 0);
    return atomic_load_explicit(&s->done, memory_order_acquire) >= tail ? ds__cpu_settled(s)
                                                                        : DS_NOT_READY;
}

static ds_result ds__cpu_stream_synchronize(void *stream, uint64_t timeout_ns) {
    ds__cpu_stream *s = stream;
    ds_result r = ds__cpu_watched(s)
                      ? ds__cpu_asked(s, "a stream that captures cannot be waited for by the host")
                      : DS_OK;
    if (r < 0)
        return r;
    if (s->kind == DS__STREAM_LEGACY)
        r = ds__cpu_wait_device(s->device, 1, timeout_ns);
    else
        r = ds__cpu_wait(s, atomic_load_explicit(&s->submitted, memory_order_acquire), timeout_ns,
                         0)
                ? DS_OK
                : DS_NOT_READY;
    return r == DS_OK ? ds__cpu_settled(s) : r;
}
/* ---- >>cpu events ---------------------------------------------------------------------------- */

static ds_result ds__cpu_event_share(ds__cpu_event *e);
static void ds__cpu_event_unshare(ds__cpu_event *e);
static void ds__cpu_event_destroy(void *event);

static ds_result ds__cpu_event_create(int device, unsigned flags, void **out) {
    (void)device;
    /* an event is not tied to a device */
    if (*out)
        return DS_OK;
    ds__lock_take(&ds__cpu.object_lock);
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
    ds__lock_give(&ds__cpu.object_lock);
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
    ds__cpu_stamp_give(e->stamp);
    ds__release(e->deps);
    e->stamp = NULL;
    e->deps = NULL;
    e->capture = 0;
    ds__lock_take(&ds__cpu.object_lock);
    e->next = ds__cpu.free_events;
    ds__cpu.free_events = e;
    ds__lock_give(&ds__cpu.object_lock);
}

static ds__cpu_stamp *ds__cpu_stamp_take(void) {
    ds__lock_take(&ds__cpu.object_lock);
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
    ds__lock_give(&ds__cpu.object_lock);
    if (stamp) {
        /* the event's and the queue's */
        atomic_store_explicit(&stamp->refs, 2, memory_order_relaxed);
        atomic_store_explicit(&stamp->ns, 0, memory_order_relaxed);
    }
    return stamp;
}

/* The event stands for this number of the stream from now on. */
static void ds__cpu_event_set(ds__cpu_event *e, ds__cpu_stream *s, uint64_t upto,
                              ds__cpu_stamp *stamp) {
    uint32_t *deps = NULL;
    ds__lock_take(&e->lock);
    int captured = e->capture != 0;
    /* what it stood for in a capture changes under that lock only, which comes first */
    if (DS__UNLIKELY(captured)) {
        ds__lock_give(&e->lock);
        ds__lock_take(&ds__g.capture_lock);
        ds__lock_take(&e->lock);
        deps = e->deps;
        e->deps = NULL;
        e->capture = 0;
    }
    ds__cpu_stamp *old = e->stamp;
    e->stream = s;
    e->upto = upto;
    e->stamp = stamp;
    ds__lock_give(&e->lock);
    if (DS__UNLIKELY(captured))
        ds__lock_give(&ds__g.capture_lock);
    ds__cpu_stamp_give(old);
    ds__release(deps);
}

static ds_result ds__cpu_lane_for(ds__cpu_stream *s, const ds__cpu_event *e, ds__cpu_lane **out);
static void ds__cpu_lane_unused(const ds__cpu_lane *l);
static void ds__cpu_event_publish(ds__cpu_event *e, ds__cpu_stream *s, uint64_t upto);

/* A record without timing is the number of the stream's last operation; with timing, or when
   other processes are to know of it, it is an operation of its own. */
static ds_result ds__cpu_submit_record(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_event *e = op->u.event.event;
    ds__cpu_stamp *stamp = NULL;
    uint64_t upto;
    ds_result r;
    if (e->flags & DS_EVENT_TIMING) {
        stamp = ds__cpu_stamp_take();
        if (!stamp)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a time stamp");
        ds__op record = *op;
        record.kind = DS__OP_RECORD;
        record.u.stamp.stamp = stamp;
        r = ds__cpu_enqueue(s, &record, &upto);
        if (r < 0)
            ds__cpu_stamp_give(stamp);
    } else if (DS__UNLIKELY(e->board != NULL)) {
        ds__cpu_lane *lane = NULL;
        ds__op record = *op;
        r = ds__cpu_lane_for(s, e, &lane);
        record.kind = DS__OP_SHARED_RECORD;
        record.u.shared.lane = lane;
        if (r == DS_OK && (r = ds__cpu_enqueue(s, &record, &upto)) < 0)
            ds__cpu_lane_unused(lane);
    } else {
        r = ds__cpu_mark(s, &upto);
    }
    if (r < 0) {
        ds__cpu_stamp_give(stamp);
        return r;
    }
    ds__cpu_event_set(e, s, upto, stamp);
    if (DS__UNLIKELY(e->board != NULL))
        ds__cpu_event_publish(e, s, upto);
    return DS_OK;
}

static ds_result ds__cpu_captured(uint64_t capture, int spoils, const char *rule);

/* What the event stands for; an event of a capture stands for nothing that could be asked. */
static ds_result ds__cpu_event_token(ds__cpu_event *e, ds__cpu_token *out) {
    ds__lock_take(&e->lock);
    uint64_t capture = e->capture;
    out->stream = e->stream;
    out->upto = e->upto;
    ds__lock_give(&e->lock);
    return DS__LIKELY(!capture) ? DS_OK
                                : ds__cpu_captured(capture, 1,
                                                   "an event that was recorded in a capture cannot "
                                                   "be asked or waited for by the host");
}

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
    /* the allocator asks too, in the middle of a submission, and that moves no clock */
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
        ds__lock_take(&e[i]->lock);
        ds__cpu_token t = { e[i]->stream, e[i]->upto };
        uint64_t capture = e[i]->capture;
        ns[i] = e[i]->stamp ? atomic_load_explicit(&e[i]->stamp->ns, memory_order_acquire) : 0;
        ds__lock_give(&e[i]->lock);
        if (capture)
            return ds__cpu_captured(capture, 0,
                                    "an event that was recorded in a capture has no time");
        ds_result r = ds__cpu_token_state(t);
        if (r != DS_OK)
            return r;
        /* a graph that records it was not launched yet */
        if (!t.stream)
            return ds__fail(DS_ERR_NOT_RECORDED, "both events must be recorded first");
        /* recorded again in this moment */
        if (ns[i] == 0)
            return DS_NOT_READY;
    }
    *out_ms = (double)(int64_t)(ns[1] - ns[0]) / 1e6;
    return DS_OK;
}
/* ---- >>cpu events that processes share ------------------------------------------------------- */

/* Policy. The latest record of such an event stands on its owner's board: a lane and a number
   there, for "everything up to here" of a stream of some process. A record is an operation of
   its own, which says on the lane how far its stream has come. A foreign lane has a stream
   object here, its proxy, which only counts: so what waits for a foreign record is parked like
   everything else, and a token of a proxy is true for ever as well. The watcher, a thread that
   the first such wait starts, looks at the lanes that somebody waits for and sleeps on their
   boards' bells; a lane whose process is gone has failed from where it stood. The boards' mutex
   guards all of it, the proxies' `done` included. */

/* A stream's lane on a board. */
struct ds__cpu_lane {
    /* next, all: of the stream; of all */
    struct ds__cpu_lane *next;
    struct ds__cpu_lane *all;
    ds__board *board; /* while there is one with this serial */
    uint64_t serial;
    ds__cpu_stream *stream;
    ds__lane *at;
    uint32_t index;
    int failing; /* the last number on it has failed */
};

struct ds__cpu_proxy {
    ds__cpu_stream stream;
    struct ds__cpu_proxy *all;
    struct ds__cpu_proxy *next_watched;
    ds__board *board;
    /* serial, base, wanted: base: added to the lane's numbers; wanted: the highest that somebody
       waits for */
    uint64_t serial;
    uint64_t base;
    uint64_t wanted;
    uint32_t lane;
    int is_watched;
};

#define DS__CPU_PROXY 4 /* kind of its stream */

/* The number whose lowest 40 bits these are, near another. */
static uint64_t ds__cpu_whole(uint64_t low, uint64_t near) {
    return near + (uint64_t)((int64_t)((low - near) << 24) >> 24);
}

/* The lane of a stream on a board; NULL: there is none yet. The mutex is held. */
static ds__cpu_lane *ds__cpu_lane_of(const ds__cpu_stream *s, const ds__board *b) {
    ds__cpu_lane *l = s->shared;
    while (l && l->serial != b->serial)
        l = l->next;
    return l;
}

/* The mutex is held. */
static ds_result ds__cpu_lane_make(ds__cpu_stream *s, ds__board *b, ds__cpu_lane **out) {
    uint32_t index = 0;
    ds_result r = ds__board_lane(b, &index);
    if (r < 0)
        return r;
    ds__cpu_lane *l = s->shared;
    /* one of a board that is closed can be used again */
    while (l && ds__board_of(l->serial))
        l = l->next;
    if (!l) {
        if (!(l = ds__cpu_raw(sizeof *l)))
            return ds__board_short();
        l->stream = s;
        l->next = s->shared;
        l->all = ds__cpu.lanes;
        s->shared = ds__cpu.lanes = l;
    }
    l->board = b;
    l->serial = b->serial;
    l->index = index;
    l->at = &b->sheet->lane[index];
    l->failing = 0;
    atomic_store(&l->at->done, atomic_load(&s->done));
    *out = l;
    return DS_OK;
}

/* The lane for a record of the event on the stream; counts the operation that will be put there. */
static ds_result ds__cpu_lane_for(ds__cpu_stream *s, const ds__cpu_event *e, ds__cpu_lane **out) {
    ds_result r = DS_OK;
    ds__boards_lock();
    if (!(*out = ds__cpu_lane_of(s, e->board)))
        r = ds__cpu_lane_make(s, e->board, out);
    if (r == DS_OK)
        atomic_fetch_add(&e->board->pending, 1);
    ds__boards_unlock();
    return r;
}

static void ds__cpu_lane_unused(const ds__cpu_lane *l) {
    if (l)
        atomic_fetch_sub(&l->board->pending, 1);
}

/* The stream has come to a record. */
static void ds__cpu_lane_pass(ds__cpu_lane *l, uint64_t number, int failed) {
    ds__sheet *sheet = l->board->sheet;
    if (failed) {
        if (!l->failing)
            atomic_store(&l->at->failed_from, number);
        atomic_store(&l->at->failed_upto, number);
    }
    l->failing = failed;
    atomic_store(&l->at->done, number);
    if (atomic_load(&sheet->waiters)) {
        atomic_fetch_add(&sheet->bell, 1);
        ds__futex_wake_shared(&sheet->bell);
    }
    atomic_fetch_sub(&l->board->pending, 1); /* after this the board may go */
}

/* Takes over what the lane says; upto: the number that somebody is interested in. The mutex is
   held. */
static void ds__cpu_mirror(ds__cpu_proxy *p, uint64_t upto) {
    ds__lane *at = &p->board->sheet->lane[p->lane];
    if (atomic_load(&p->stream.failure))
        return;
    uint64_t who = atomic_load(&at->who);
    uint64_t done = p->base + atomic_load(&at->done);
    /* what it did before it ended counts */
    if (done < upto && !ds__board_alive(p->board, who >> 24))
        done = p->base + atomic_load(&at->done);
    else
        who = 0;
    uint64_t failed_upto = p->base + atomic_load(&at->failed_upto);
    if (failed_upto != p->base) {
        uint64_t failed_from = p->base + atomic_load(&at->failed_from);
        ds__cpu_past *past = atomic_load(&p->stream.past);
        /* it goes on failing there */
        if (past && past->from == failed_from)
            atomic_store(&past->upto, failed_upto);
        else
            ds__cpu_stays_failed(
                &p->stream,
                past ? past->failure
                     : ds__cpu_failure_new(
                           DS_ERR_FAILED,
                           "an operation before the event's record failed in process %d",
                           (int)(atomic_load(&at->who) & 0xffffff)),
                failed_from, failed_upto);
        p->stream.had_failure = 1;
    }
    if (who && done < upto) {
        ds__cpu_fail_stream(
            &p->stream,
            ds__cpu_failure_new(
                DS_ERR_PEER_DIED,
                "process %d, which recorded the event, has died before it came to that",
                (int)(who & 0xffffff)),
            done + 1);
        done = UINT64_MAX;
    }
    if (done > atomic_load(&p->stream.done))
        ds__cpu_pass(&p->stream, done);
}

/* The proxy of a lane. The mutex is held. */
static ds_result ds__cpu_proxy_of(ds__board *b, uint32_t lane, ds__cpu_proxy **out) {
    ds__cpu_proxy *p = ds__cpu.proxies;
    ds__cpu_proxy *spare = NULL;
    for (; p && (p->serial != b->serial || p->lane != lane); p = p->all)
        if (!p->is_watched && !p->stream.had_failure && !ds__board_of(p->serial))
            spare = p;
    if ((*out = p) != NULL)
        return DS_OK;
    p = spare;
    if (!p && (p = ds__cpu_raw(sizeof *p)) != NULL) {
        p->all = ds__cpu.proxies;
        ds__cpu.proxies = p;
        p->stream.kind = DS__CPU_PROXY;
        atomic_store(&p->stream.state, DS__CPU_COUNTS);
    }
    if (!p)
        return ds__board_short();
    p->board = b;
    p->serial = b->serial;
    p->lane = lane;
    p->base = atomic_load(&p->stream.done); /* numbers go on, so that old tokens stay true */
    p->wanted = 0;
    *out = p;
    return DS_OK;
}
/* ---- >>cpu watcher ---- */

/* Looks at all that is watched and lists what to sleep on; the mutex is held. */
static unsigned ds__cpu_watch_lanes(ds__sleep *list, unsigned room) {
    unsigned count = 0;
    uint32_t bell = 0;
    const ds__board *last = NULL;
    for (ds__cpu_proxy **next = &ds__cpu.watched; *next;) {
        ds__cpu_proxy *p = *next;
        /* before the lane is looked at */
        if (p->board != last)
            bell = atomic_load(&p->board->sheet->bell);
        ds__cpu_mirror(p, p->wanted);
        if (atomic_load(&p->stream.done) >= p->wanted) {
            *next = p->next_watched;
            p->is_watched = 0;
            atomic_fetch_sub(&p->board->sheet->waiters, 1);
            ds__board_close(p->board);
            continue;
        }
        if (p->board != last && count < room)
            list[count++] =
                (ds__sleep){ bell, (uintptr_t)&p->board->sheet->bell, 2 /* of 32 bits */, 0 };
        last = p->board;
        next = &p->next_watched;
    }
    return count;
}

static void *ds__cpu_watcher_main(void *unused) {
    ds__sleep list[33];
    uint64_t nap = 0;
    uint32_t seen = 0;
    (void)unused;
    ds__os_block_signals();
    ds__boards_lock();
    for (;;) {
        uint32_t word = atomic_load(&ds__cpu.watch_word);
        if (atomic_load(&ds__cpu.watch_quit))
            break;
        unsigned count = ds__cpu_watch_lanes(list + 1, 32);
        ds__boards_unlock();
        /* nothing tells of a death */
        nap = word != seen || !nap ? 1000000 : nap < 16000000 ? nap + nap / 4 : nap;
        seen = word;
        list[0] = (ds__sleep){ word, (uintptr_t)&ds__cpu.watch_word, 2 | 128 /* private */, 0 };
        if (count)
            ds__futex_wait_any(list, count + 1, nap);
        else
            ds__futex_wait(&ds__cpu.watch_word, word, DS__FOREVER);
        ds__boards_lock();
    }
    ds__boards_unlock();
    return NULL;
}

static void ds__cpu_wake_watcher(void) {
    atomic_fetch_add(&ds__cpu.watch_word, 1);
    ds__futex_wake(&ds__cpu.watch_word, 1);
}

/* The watcher sees to it that the proxy comes to this number. The mutex is held. */
static ds_result ds__cpu_watch_for(ds__cpu_proxy *p, uint64_t upto) {
    if (atomic_load(&p->stream.done) >= upto)
        return DS_OK;
    if (!ds__cpu.watcher_started) {
        int error = pthread_create(&ds__cpu.watcher, NULL, ds__cpu_watcher_main, NULL);
        if (error)
            return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error));
        ds__cpu.watcher_started = 1;
    }
    if (p->wanted < upto)
        p->wanted = upto;
    if (!p->is_watched) {
        p->is_watched = 1;
        p->board->users++;
        atomic_fetch_add(&p->board->sheet->waiters, 1);
        ds__cpu_proxy **at = &ds__cpu.watched; /* beside others of the board */
        while (*at && (*at)->board != p->board)
            at = &(*at)->next_watched;
        p->next_watched = *at;
        *at = p;
    }
    ds__cpu_wake_watcher();
    return DS_OK;
}

static ds_result ds__cpu_event_watch(const ds__cpu_event *e, ds__cpu_stream *on, uint64_t upto) {
    if (DS__LIKELY(!e->board) || on->kind != DS__CPU_PROXY)
        return DS_OK;
    ds__boards_lock();
    ds_result r = ds__cpu_watch_for((ds__cpu_proxy *)(void *)on, upto);
    ds__boards_unlock();
    return r;
}

static void ds__cpu_watcher_end(void) {
    if (!ds__cpu.watcher_started)
        return;
    ds__boards_lock();
    atomic_store(&ds__cpu.watch_quit, 1);
    ds__boards_unlock();
    ds__cpu_wake_watcher();
    pthread_join(ds__cpu.watcher, NULL);
    ds__cpu.watcher_started = 0;
}

/* What the event's word says, as a token of this process. The mutex is held. */
static ds_result ds__cpu_word_token(ds__board *b, uint64_t word, ds__cpu_token *out) {
    uint32_t lane = (uint32_t)(word >> 40) - 1;
    out->stream = NULL;
    out->upto = 0;
    if (word == 0)
        return DS_OK;
    if (lane >= atomic_load(&b->sheet->lanes))
        return ds__fail(DS_ERR_INVALID_HANDLE, "what process %d shares is damaged", b->pid);
    /* recorded here, through another handle */
    if (atomic_load(&b->sheet->lane[lane].who) >> 24 == b->me) {
        ds__cpu_lane *l = ds__cpu.lanes;
        while (l && (l->serial != b->serial || l->index != lane))
            l = l->all;
        if (!l)
            return DS_OK;
        out->stream = l->stream;
        out->upto = ds__cpu_whole(word, atomic_load(&l->stream->submitted));
        return DS_OK;
    }
    ds__cpu_proxy *p;
    ds_result r = ds__cpu_proxy_of(b, lane, &p);
    if (r < 0)
        return r;
    out->stream = &p->stream;
    out->upto = p->base + ds__cpu_whole(word, atomic_load(&b->sheet->lane[lane].done));
    return DS_OK;
}

static ds_result ds__cpu_event_foreign(ds__cpu_event *e, int wait) {
    ds_result r = DS_OK;
    ds__cpu_token t;
    ds__mark *m = &e->board->sheet->mark[e->mark];
    ds__boards_lock();
    uint64_t word = atomic_load(&m->word);
    if (atomic_load(&m->generation) != e->generation) {
        r = ds__fail(DS_ERR_INVALID_HANDLE, "process %d has destroyed the event", e->board->pid);
    } else {
        ds__lock_take(&e->lock);
        uint64_t before = e->word;
        t.stream = e->stream;
        t.upto = e->upto;
        ds__lock_give(&e->lock);
        if (before != word && (r = ds__cpu_word_token(e->board, word, &t)) == DS_OK) {
            ds__lock_take(&e->lock);
            if (e->word == before && !e->capture) {
                e->word = word;
                e->stream = t.stream;
                e->upto = t.upto;
            }
            t.stream = e->stream;
            t.upto = e->upto;
            ds__lock_give(&e->lock);
        }
        if (r == DS_OK && t.stream && t.stream->kind == DS__CPU_PROXY &&
            atomic_load(&t.stream->done) < t.upto) {
            ds__cpu_mirror((ds__cpu_proxy *)(void *)t.stream, t.upto);
            if (wait)
                r = ds__cpu_watch_for((ds__cpu_proxy *)(void *)t.stream, t.upto);
        }
    }
    ds__boards_unlock();
    return r;
}

/* The stream has been given a record of the event, which is this operation of it. */
static void ds__cpu_event_publish(ds__cpu_event *e, ds__cpu_stream *s, uint64_t upto) {
    ds__boards_lock();
    uint64_t word =
        (uint64_t)(ds__cpu_lane_of(s, e->board)->index + 1) << 40 | (upto & 0xffffffffff);
    ds__lock_take(&e->lock);
    e->word = word;
    e->stream = s;
    e->upto = upto;
    ds__lock_give(&e->lock);
    ds__mark *m = &e->board->sheet->mark[e->mark];
    if (atomic_load(&m->generation) == e->generation)
        atomic_store(&m->word, word);
    ds__boards_unlock();
}

static ds_result ds__cpu_unsafe(const char *rule);

static ds_result ds__cpu_event_export(void *event, unsigned char *out) {
    const ds__cpu_event *e = event;
    ds_result r =
        ds__cpu_unsafe("an event cannot be exported in this thread while the capture is open");
    if (r < 0)
        return r;
    ds__address a = { DS__ADDRESS_EVENT, e->board->pid,
                      e->board->fd,      e->mark,
                      e->generation,     0,
                      e->board->cookie,  0 };
    memset(out, 0, 64);
    memcpy(out, &a, sizeof a);
    return DS_OK;
}

static ds_result ds__cpu_event_import(int device, const unsigned char *handle, void **out) {
    ds__address a;
    ds__board *b = NULL;
    memcpy(&a, handle, sizeof a);
    ds_result r =
        ds__cpu_unsafe("an event cannot be imported in this thread while the capture is open");
    if (r < 0)
        return r;
    if (a.kind != DS__ADDRESS_EVENT || a.index >= DS__MARKS)
        return ds__fail(DS_ERR_INVALID_VALUE, "these bytes are no event of a CPU device");
    r = ds__cpu_event_create(device, 0, out);
    if (r < 0)
        return r;
    ds__boards_lock();
    r = ds__board_open(a.pid, a.fd, a.cookie, &b);
    if (r == DS_OK && atomic_load(&b->sheet->mark[a.index].generation) != a.generation) {
        ds__board_close(b);
        b = NULL;
        r = ds__fail(DS_ERR_INVALID_HANDLE, "process %d has destroyed the event", a.pid);
    }
    ds__boards_unlock();
    ds__cpu_event *e = *out;
    if (r < 0) {
        ds__cpu_event_destroy(e);
        *out = NULL;
        return r;
    }
    e->flags = DS_EVENT_INTERPROCESS;
    e->board = b;
    e->mark = a.index;
    e->generation = a.generation;
    e->imported = 1;
    return DS_OK;
}

/* Gives an event of this process its mark. */
static ds_result ds__cpu_event_share(ds__cpu_event *e) {
    ds__board *b;
    ds__boards_lock();
    ds_result r = ds__board_own(&b);
    if (r == DS_OK)
        r = ds__board_mark(b, &e->mark);
    if (r == DS_OK) {
        e->board = b;
        e->generation = atomic_load(&b->sheet->mark[e->mark].generation);
    }
    ds__boards_unlock();
    return r;
}

static void ds__cpu_event_unshare(ds__cpu_event *e) {
    if (!e->board)
        return;
    ds__boards_lock();
    if (e->imported)
        ds__board_close(e->board);
    else
        ds__board_unmark(e->board, e->mark);
    ds__boards_unlock();
    e->board = NULL;
    e->imported = 0;
    e->word = 0;
}
/* ---- >>cpu capture --------------------------------------------------------------------------- */

/* Policy. All state of captures stands under the core's capture lock: a stream's capture, the
   nodes that its next one depends on, an event's nodes. Outside of captures nobody takes it:
   `watch` of a stream says that it captures, `watch` of the legacy stream how many blocking
   streams of its device do. The rules and their codes are CUDA's (CUDA C++ Programming Guide,
   "Creating a Graph Using Stream Capture"; where that is silent docs/capture.md says what was
   chosen). */

static inline int ds__cpu_watched(const ds__cpu_stream *s) {
    return DS__UNLIKELY(atomic_load_explicit(&s->watch, memory_order_relaxed) != 0) ? 1 : 0;
}

static const char *const ds__cpu_implicit =
    "the legacy stream cannot be used while a blocking stream of its device captures";

/* How many blocking streams capture; the lock is held. */
static void ds__cpu_watch_legacy(int device, int more) {
    ds__cpu_device *d = &ds__cpu.device[device];
    d->capturing += more;
    if (d->legacy)
        atomic_store(&d->legacy->watch, d->capturing);
}

/* The stream's nodes become these, or these too. 0: no memory. */
static int ds__cpu_depend(ds__cpu_stream *s, const uint32_t *deps, uint32_t count, int set) {
    uint32_t before = set ? 0 : s->dep_count;
    uint32_t *list = ds__alloc((before + count + 1) * sizeof *list);
    uint32_t n = 0;
    if (!list) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
        return 0;
    }
    for (uint32_t i = 0; i < before; i++)
        list[n++] = s->deps[i];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = 0;
        while (k < n && list[k] != deps[i])
            k++;
        if (k == n)
            list[n++] = deps[i];
    }
    ds__release(s->deps);
    s->deps = list;
    s->dep_count = n;
    return 1;
}

static void ds__cpu_join_capture(ds__cpu_stream *s, ds__capture *c) {
    s->capture = c;
    s->next_member = c->members;
    c->members = s;
    if (s->flags & DS_STREAM_BLOCKING)
        ds__cpu_watch_legacy(s->device, 1);
    atomic_store(&s->watch, 1);
}

static void ds__cpu_leave_capture(ds__cpu_stream *s) {
    s->capture = NULL;
    ds__release(s->deps);
    s->deps = NULL;
    s->dep_count = 0;
    atomic_store(&s->watch, 0);
    if (s->flags & DS_STREAM_BLOCKING)
        ds__cpu_watch_legacy(s->device, -1);
}

/* The capture is over: all its streams are as before. */
static void ds__cpu_end_capture(ds__capture *c) {
    for (ds__cpu_stream *s = c->members; s;) {
        ds__cpu_stream *next = s->next_member;
        ds__cpu_leave_capture(s);
        s = next;
    }
    c->members = NULL;
    ds__capture_unlist(c);
}

static void ds__cpu_capture_abandon(ds__capture *c) {
    ds__lock_take(&ds__g.capture_lock);
    ds__cpu_end_capture(c);
    ds__lock_give(&ds__g.capture_lock);
}

static ds_result ds__cpu_capture_begin(void *stream, ds__capture *c, const uint32_t *deps,
                                       size_t count) {
    ds__cpu_stream *s = stream;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (f)
        return ds__cpu_report(f);
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "the legacy stream cannot capture; use another stream");
    ds_result r = DS_OK;
    ds__lock_take(&ds__g.capture_lock);
    if (s->capture) {
        r = ds__capture_fail(DS_ERR_ILLEGAL_STATE, s->capture, 0, "the stream captures already");
    } else if (!ds__cpu_depend(s, deps, (uint32_t)count, 1)) {
        r = DS_ERR_OUT_OF_MEMORY;
    } else {
        c->origin = s;
        ds__capture_list(c);
        ds__cpu_join_capture(s, c);
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* What the origin does not come to: a node at the end of a stream that was not joined.
   UINT32_MAX: all are; *out_r may be an error. */
static uint32_t ds__cpu_unjoined(const ds__capture *c, ds_result *out_r) {
    const ds__cpu_stream *origin = c->origin;
    uint32_t found = UINT32_MAX;
    unsigned char *mark = ds__alloc(c->body->count + 1u);
    if (!mark || !ds__body_ancestors(c->body, origin->deps, origin->dep_count, mark))
        *out_r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to end a capture");
    else
        for (const ds__cpu_stream *s = c->members; s && found == UINT32_MAX; s = s->next_member)
            for (uint32_t i = 0; i < s->dep_count && found == UINT32_MAX; i++)
                if (!mark[s->deps[i]])
                    found = s->deps[i];
    ds__release(mark);
    return found;
}

static ds_result ds__cpu_end_checked(ds__cpu_stream *s, ds__capture *c, ds__capture **out) {
    ds_result r = DS_OK;
    if (c->origin != s)
        return ds__capture_fail(
            DS_ERR_CAPTURE_UNMATCHED, c, c->status == DS_CAPTURE_ACTIVE,
            "a capture ends on the stream where it began, not on one that was forked into it");
    if (c->mode != DS_CAPTURE_RELAXED && c->thread != ds__thread_number())
        return ds__capture_fail(
            DS_ERR_CAPTURE_WRONG_THREAD, c, 0,
            "only the thread that began the capture may end it, unless it is relaxed");
    if (c->status == DS_CAPTURE_INVALIDATED) {
        r = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, c, 0, "");
    } else {
        uint32_t node = ds__cpu_unjoined(c, &r);
        if (node != UINT32_MAX) {
            char text[160];
            char rule[320];
            const ds__op *op = &c->body->node[node]->op;
            snprintf(rule, sizeof rule,
                     "a stream that was forked into the capture was not joined: nothing that the "
                     "end waits for comes after %s, captured at %s:%u",
                     ds__node_print(c->body, node, text, sizeof text), ds__short_path(op->file),
                     (unsigned)op->line);
            r = ds__capture_fail(DS_ERR_CAPTURE_UNJOINED, c, 1, rule);
        }
    }
    ds__cpu_end_capture(c);
    *out = c;
    return r;
}

static ds_result ds__cpu_capture_end(void *stream, ds__capture **out) {
    ds__cpu_stream *s = stream;
    ds__lock_take(&ds__g.capture_lock);
    ds_result r = s->capture ? ds__cpu_end_checked(s, s->capture, out)
                             : ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* Every open capture with a blocking stream on the device is spoiled (spoils), or only named.
   The lock is held. */
static ds_result ds__cpu_legacy_used(int device, int spoils) {
    ds_result r = DS_OK;
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        int member = 0;
        if (c->driver->type != DS_DEVICE_CPU)
            continue;
        for (const ds__cpu_stream *s = c->members; s; s = s->next_member)
            member |= s->device == device && (s->flags & DS_STREAM_BLOCKING) != 0;
        if (!member)
            continue;
        if (r == DS_OK)
            r = ds__capture_fail(DS_ERR_CAPTURE_IMPLICIT, c,
                                 spoils && c->status == DS_CAPTURE_ACTIVE, ds__cpu_implicit);
        else if (spoils)
            ds__capture_spoil(c, ds__cpu_implicit);
    }
    return r;
}

static ds_result ds__cpu_capture_query(void *stream, ds_capture_info *out) {
    const ds__cpu_stream *s = stream;
    ds_result r = DS_OK;
    if (!ds__cpu_watched(s))
        return DS_OK;
    ds__lock_take(&ds__g.capture_lock);
    const ds__capture *c = s->capture;
    if (s->kind == DS__STREAM_LEGACY) {
        r = ds__cpu_legacy_used(s->device, 0);
    } else if (c) {
        out->status = c->status;
        if (c->status == DS_CAPTURE_ACTIVE) {
            out->mode = c->mode;
            out->id = c->id;
            out->graph = c->graph;
            out->begun = c->begun;
            out->dependency_count = s->dep_count;
        }
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* The capture of a stream that must be active. The lock is held. */
static ds_result ds__cpu_active(const ds__cpu_stream *s, ds__capture **out) {
    *out = s->capture;
    if (!s->capture)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    return s->capture->status == DS_CAPTURE_ACTIVE
               ? DS_OK
               : ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
}

static ds_result ds__cpu_capture_dependencies(void *stream, ds_graph_node *out, size_t room,
                                              size_t *out_count) {
    const ds__cpu_stream *s = stream;
    ds__capture *c;
    ds__lock_take(&ds__g.capture_lock);
    ds_result r = ds__cpu_active(s, &c);
    if (r == DS_OK) {
        *out_count = s->dep_count;
        for (uint32_t i = 0; i < s->dep_count && i < room; i++)
            out[i].id = (uint64_t)c->body->serial << 32 | (s->deps[i] + 1u);
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

static ds_result ds__cpu_capture_update(void *stream, const ds_graph_node *nodes, size_t count,
                                        int set) {
    ds__cpu_stream *s = stream;
    ds__capture *c;
    uint32_t *list = ds__alloc((count + 1) * sizeof *list);
    if (!list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu nodes", count);
    ds__lock_take(&ds__g.capture_lock);
    ds_result r = ds__cpu_active(s, &c);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        list[i] = (uint32_t)nodes[i].id - 1;
        if (!nodes[i].id || nodes[i].id >> 32 != c->body->serial || list[i] >= c->body->count)
            r = ds__fail(DS_ERR_INVALID_VALUE,
                         "node %zu does not belong to the graph that is being captured", i);
    }
    if (r == DS_OK && !ds__cpu_depend(s, list, (uint32_t)count, set))
        r = DS_ERR_OUT_OF_MEMORY;
    ds__lock_give(&ds__g.capture_lock);
    ds__release(list);
    return r;
}
/* the core keeps it */
static ds_result ds__cpu_capture_mode(ds_capture_mode mode) {
    (void)mode;
    return DS_OK;
}

/* Calls that a capture forbids in other streams and threads. */
static ds_result ds__cpu_unsafe(const char *rule) {
    if (ds__cpu.is_lax)
        return DS_OK;
    return ds__capture_guard(&ds__cpu_driver, rule);
}

/* Waiting for a device on which something captures cannot end: nothing of it runs. */
static ds_result ds__cpu_unsafe_wait(int device) {
    ds_result r = ds__cpu_unsafe(
        "waiting for a device is not allowed in this thread while the capture is open");
    if (DS__LIKELY(ds__captures_open() == 0))
        return r;
    ds__lock_take(&ds__g.capture_lock);
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        int member = 0;
        if (c->driver->type != DS_DEVICE_CPU)
            continue;
        for (const ds__cpu_stream *s = c->members; s; s = s->next_member)
            member |= s->device == device;
        if (!member)
            continue;
        if (r == DS_OK)
            r = ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, c->status == DS_CAPTURE_ACTIVE,
                                 "a device cannot be waited for while a stream of it captures");
        else
            ds__capture_spoil(c, "a device cannot be waited for while a stream of it captures");
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* Asking or waiting for a stream that captures, or for the legacy stream beside one. DS_OK: it
   is over by now. */
static ds_result ds__cpu_asked(const ds__cpu_stream *s, const char *rule) {
    ds_result r = DS_OK;
    ds__lock_take(&ds__g.capture_lock);
    if (s->kind == DS__STREAM_LEGACY)
        r = ds__cpu_legacy_used(s->device, 1);
    else if (s->capture && s->capture->status == DS_CAPTURE_ACTIVE)
        r = ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, s->capture, 1, rule);
    else if (s->capture)
        r = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* An event that was recorded in a capture; e's number is `capture`. */
static ds_result ds__cpu_captured(uint64_t capture, int spoils, const char *rule) {
    ds_result r;
    ds__lock_take(&ds__g.capture_lock);
    ds__capture *c = ds__capture_find(&ds__cpu_driver, capture);
    if (c)
        r = ds__capture_fail(DS_ERR_CAPTURED_EVENT, c, spoils && c->status == DS_CAPTURE_ACTIVE,
                             rule);
    else
        r = ds__fail(DS_ERR_CAPTURED_EVENT,
                     "the event was recorded in capture #%llu, which is over, and nothing ran "
                     "there; record it again",
                     (unsigned long long)capture);
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* Puts an operation into the graph; it becomes the one that the stream's next one depends on.
   The lock is held. */
static ds_result ds__cpu_capture_node(ds__cpu_stream *s, ds__capture *c, const ds__op *op) {
    ds_device device = { DS_DEVICE_CPU, s->device };
    ds__node *n = ds__node_make(op, device, s->level + 1 - DS__CPU_LEVELS);
    ds_result r = n ? ds__body_append(c->body, n, s->deps, s->dep_count) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0) {
        ds__node_discard(n);
        return r;
    }
    uint32_t index = c->body->count - 1;
    if (ds__cpu_depend(s, &index, 1, 1))
        return DS_OK;
    c->body->count--;
    ds__node_discard(n);
    return DS_ERR_OUT_OF_MEMORY;
}

/* A stream of the capture waits for nodes of `capture`; the lock is held. */
static ds_result ds__cpu_capture_wait(ds__cpu_stream *s, ds__capture *c, ds__capture *other,
                                      const uint32_t *deps, uint32_t count) {
    if (other == c)
        return ds__cpu_depend(s, deps, count, 0) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    ds_result r =
        ds__capture_fail(DS_ERR_CAPTURE_MERGE, c, 1,
                         "a stream cannot wait for another capture, that would merge the two");
    ds__capture_spoil(
        other, "a stream of another capture cannot wait for this one, that would merge the two");
    return r;
}

static ds_result ds__cpu_capture_wait_event(ds__cpu_stream *s, ds__capture *c, ds__cpu_event *e) {
    ds__lock_take(&e->lock);
    uint64_t id = e->capture;
    int recorded = e->stream != NULL;
    ds__lock_give(&e->lock); /* an event's nodes change under the capture lock only */
    if (!id)
        return recorded ? ds__capture_fail(DS_ERR_CAPTURE_ISOLATION, c, 1,
                                           "the event was recorded outside of the capture; "
                                           "ds_stream_wait_event_external makes it a node")
                        : DS_OK;
    ds__capture *other = ds__capture_find(&ds__cpu_driver, id);
    if (!other)
        return ds__capture_fail(DS_ERR_CAPTURED_EVENT, c, 1,
                                "the event was recorded in another capture, which is over");
    return ds__cpu_capture_wait(s, c, other, e->deps, e->dep_count);
}

static ds_result ds__cpu_capture_wait_stream(ds__cpu_stream *s, ds__capture *c,
                                             ds__cpu_stream *other) {
    if (other == s)
        return DS_OK;
    if (other->kind == DS__STREAM_LEGACY && ds__cpu_watched(other))
        return ds__cpu_legacy_used(other->device, 1);
    if (!other->capture)
        return ds__capture_fail(DS_ERR_CAPTURE_ISOLATION, c, 1,
                                "the other stream does not capture, and captured work cannot wait "
                                "for work outside of the capture");
    return ds__cpu_capture_wait(s, c, other->capture, other->deps, other->dep_count);
}

/* The event stands for the stream's nodes; no node is made. */
static ds_result ds__cpu_capture_record(const ds__cpu_stream *s, const ds__capture *c,
                                        ds__cpu_event *e) {
    uint32_t *deps = ds__alloc((s->dep_count + 1u) * sizeof *deps);
    if (!deps)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
    if (s->dep_count)
        memcpy(deps, s->deps, s->dep_count * sizeof *deps);
    ds__lock_take(&e->lock);
    ds__cpu_stamp *stamp = e->stamp;
    uint32_t *old = e->deps;
    e->capture = c->id;
    e->deps = deps;
    e->dep_count = s->dep_count;
    e->stream = NULL;
    e->stamp = NULL;
    ds__lock_give(&e->lock);
    ds__cpu_stamp_give(stamp);
    ds__release(old);
    return DS_OK;
}

static const char *const ds__cpu_unpinned =
    "pageable memory would be touched at each launch; use ds_host_alloc, ds_host_register, or "
    "DS_COPY_HOST_STABLE if it stays where it is";

/* The table of what an operation does on a stream that captures. The lock is held. */
static ds_result ds__cpu_capture_op(ds__cpu_stream *s, ds__capture *c, const ds__op *op) {
    switch (op->kind) {
    case DS__OP_KERNEL:
        if (!op->u.kernel.kernel->cpu_fn)
            return ds__cpu_kernel_load(0, op->u.kernel.kernel);
        if (op->u.kernel.kernel->ours)
            return ds__capture_fail(
                DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
                "a copy between devices of different drivers cannot be captured");
        return ds__cpu_capture_node(s, c, op);
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (ds__place_of(op, DS__OP_DST) == DS__AT_PAGEABLE ||
            (op->kind == DS__OP_COPY && ds__place_of(op, DS__OP_SRC) == DS__AT_PAGEABLE))
            return ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0, ds__cpu_unpinned);
        return ds__cpu_capture_node(s, c, op);
    case DS__OP_HOST:
    case DS__OP_GRAPH:
    case DS__OP_EXTERNAL_RECORD:
    case DS__OP_EXTERNAL_WAIT:
        return ds__cpu_capture_node(s, c, op);
    case DS__OP_RECORD:
        return ds__cpu_capture_record(s, c, op->u.event.event);
    case DS__OP_WAIT:
        return ds__cpu_capture_wait_event(s, c, op->u.event.event);
    case DS__OP_WAIT_STREAM:
        return ds__cpu_capture_wait_stream(s, c, op->u.wait.stream);
    case DS__OP_FREE:
        return ds__capture_fail(
            DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
            "memory of the driver's own allocator cannot come or go on a stream that captures");
    case DS__OP_CALLBACK:
        return ds__capture_fail(
            DS_ERR_CAPTURE_UNSUPPORTED, c, 1,
            "a callback with a status cannot be captured; ds_launch_host_func can");
    default:
        return ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
                                "an executable cannot be uploaded on a stream that captures");
    }
}

/* 1: the stream captures, or may not be used beside one that does; *out is the result. 0: it
   does not any more. */
static int ds__cpu_submit_captured(ds__cpu_stream *s, const ds__op *op, ds_result *out) {
    int handled = 1;
    if (op->kind == DS__OP_WAIT && (*out = ds__cpu_event_look(op->u.event.event, 0)) < 0)
        return 1;
    ds__lock_take(&ds__g.capture_lock);
    if (s->kind == DS__STREAM_LEGACY)
        handled = (*out = ds__cpu_legacy_used(s->device, 1)) < 0;
    else if (!s->capture)
        handled = 0;
    else if (s->capture->status != DS_CAPTURE_ACTIVE)
        *out = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
    else if (ds__op_changed(op, s->capture->id))
        *out = DS__CHANGED;
    else
        *out = ds__cpu_capture_op(s, s->capture, op);
    ds__lock_give(&ds__g.capture_lock);
    return handled;
}

/* A stream that does not capture waits for captured work, and so comes into the capture. The
   lock is held. */
static ds_result ds__cpu_fork(ds__cpu_stream *s, ds__capture *c, const uint32_t *deps,
                              uint32_t count) {
    if (c->status != DS_CAPTURE_ACTIVE)
        return ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, c, 0, "");
    if (s->kind == DS__STREAM_LEGACY)
        return ds__capture_fail(DS_ERR_CAPTURE_IMPLICIT, c, 1,
                                "the legacy stream cannot wait for captured work");
    if (s->capture)
        return ds__cpu_capture_wait(s, s->capture, c, deps, count);
    if (!ds__cpu_depend(s, deps, count, 1))
        return DS_ERR_OUT_OF_MEMORY;
    ds__cpu_join_capture(s, c);
    return DS_OK;
}

/* e was recorded in a capture when it was looked at. 0: it was recorded anew meanwhile. */
static int ds__cpu_fork_event(ds__cpu_stream *s, ds__cpu_event *e, ds_result *out) {
    ds__lock_take(&ds__g.capture_lock);
    ds__lock_take(&e->lock);
    uint64_t id = e->capture;
    ds__lock_give(&e->lock);
    ds__capture *c = id ? ds__capture_find(&ds__cpu_driver, id) : NULL;
    if (c)
        *out = ds__cpu_fork(s, c, e->deps, e->dep_count);
    ds__lock_give(&ds__g.capture_lock);
    if (id && !c)
        *out = ds__cpu_captured(id, 0, "");
    return id != 0;
}

static int ds__cpu_fork_stream(ds__cpu_stream *s, ds__cpu_stream *other, ds_result *out) {
    ds__lock_take(&ds__g.capture_lock);
    ds__capture *c = other->capture;
    int handled = 1;
    if (other->kind == DS__STREAM_LEGACY)
        handled = (*out = ds__cpu_legacy_used(other->device, 1)) < 0;
    else if (c)
        *out = ds__cpu_fork(s, c, other->deps, other->dep_count);
    else
        handled = 0;
    ds__lock_give(&ds__g.capture_lock);
    return handled;
}

/* A stream that captures is destroyed: the capture is over if it began there, else it is
   spoiled. */
static void ds__cpu_destroy_captured(ds__cpu_stream *s) {
    ds__capture *over = NULL;
    ds__lock_take(&ds__g.capture_lock);
    ds__capture *c = s->capture;
    if (c && c->origin == s) {
        ds__cpu_end_capture(c);
        over = c;
    } else if (c) {
        ds__capture_spoil(c, "a stream that was forked into the capture was destroyed");
        ds__cpu_stream *before = c->members;
        if (before == s)
            c->members = s->next_member;
        else {
            while (before->next_member != s)
                before = before->next_member;
            before->next_member = s->next_member;
        }
        ds__cpu_leave_capture(s);
    }
    ds__lock_give(&ds__g.capture_lock);
    if (over)
        ds__capture_over(over, 1);
}
/* ---- >>cpu graphs ---------------------------------------------------------------------------- */

/* Policy. An executable is a set of lanes, chains of nodes of which each depends on the one
   before. A lane is a stream of its own whose queue is not filled by a producer but stands ready
   in memory, the plan; dependencies between lanes are waits for a number of another lane, as
   between any streams. So workers, priorities, host functions, failures, and waiting threads
   that help treat a graph as they treat streams. A launch is one operation of the user's stream:
   it waits for its turn at the executable (the gate counts launches that are over), starts the
   lanes, runs the first one itself, and waits for all. A change of the executable makes a new
   plan; launches on their way keep theirs. A graph of one chain so costs what its operations
   cost, less the queue. */

typedef struct ds__cpu_plan {
    _Atomic int users;
    uint32_t lanes;
    size_t objects;
    ds__object **object;    /* what host functions get */
    ds__cpu_block *block[]; /* each lane's operations, in one piece */
} ds__cpu_plan;

/* A node of the graph, of its children too, and where it runs. */
typedef struct ds__cpu_flat {
    const ds__node *node;
    uint32_t *deps;
    uint32_t dep_count;
    uint32_t dep_room;
    uint32_t lane;
    uint32_t number;
    uint32_t level;
    /* left, next: while they are sorted */
    uint32_t left;
    uint32_t next;
} ds__cpu_flat;

/* A step of a lane: a wait for another lane (flat UINT32_MAX) or a node. */
typedef struct ds__cpu_entry {
    uint32_t lane;
    uint32_t flat;
    uint32_t on;
    uint32_t upto;
} ds__cpu_entry;

typedef struct ds__cpu_exec {
    _Atomic int users;    /* the owner, and launches on their way */
    const ds__body *body; /* the core's; not looked at once the owner is gone */
    unsigned flags;
    /* dirty, hosts: the plan is not that of the body any more; there are host functions */
    int dirty;
    int hosts;
    uint32_t flats;
    uint32_t flat_room;
    uint32_t lanes;
    uint32_t entries;
    uint32_t entry_room;
    ds__cpu_flat *flat;
    ds__cpu_entry *entry;
    ds__cpu_stream **lane;
    ds__cpu_stream *gate;
    /* base, gate_base: numbers before the first launch */
    uint64_t *base;
    uint64_t gate_base;
    uint32_t *operations; /* of each lane, in one launch */
    /* records, waits: event nodes */
    uint32_t records;
    uint32_t waits;
    uint64_t launches;
    ds__cpu_plan *plan;
} ds__cpu_exec;

/* One launch. */
typedef struct ds__cpu_launch {
    ds__cpu_exec *exec;
    ds__cpu_plan *plan;
    uint64_t ticket;
    uint32_t next; /* lanes before it are done */
    int started;
    ds__cpu_stamp **stamp; /* of record nodes with timing */
    /* of record nodes whose events processes share; NULL: there are none */
    ds__cpu_lane **shared;
    ds__cpu_token *token; /* what wait nodes wait for */
} ds__cpu_launch;

static uint64_t ds__cpu_lane_end(const ds__cpu_exec *x, uint32_t lane, uint64_t ticket) {
    return x->base[lane] + (ticket + 1) * x->operations[lane];
}

static int ds__cpu_flat_depend(ds__cpu_exec *x, uint32_t flat, uint32_t on) {
    ds__cpu_flat *f = &x->flat[flat];
    if (!ds__room(&f->deps, sizeof *f->deps, f->dep_count, &f->dep_room))
        return 0;
    f->deps[f->dep_count++] = on;
    return 1;
}

/* Adds the nodes of a body, whose roots come after flat node `after` (UINT32_MAX: none). A
   child's own node comes after all of the child's. */
static int ds__cpu_flatten(ds__cpu_exec *x, const ds__body *b, uint32_t after) {
    uint32_t first = x->flats;
    for (uint32_t i = 0; i < b->count; i++) {
        if (!ds__room(&x->flat, sizeof *x->flat, x->flats, &x->flat_room))
            return 0;
        memset(&x->flat[x->flats], 0, sizeof *x->flat);
        x->flat[x->flats++].node = b->node[i];
    }
    for (uint32_t i = 0; i < b->count; i++) {
        const ds__node *n = b->node[i];
        uint32_t own = first + i;
        uint32_t begin = own;
        /* another node before the child's, which its roots come after */
        if (n->child && n->child->count) {
            begin = x->flats;
            if (!ds__room(&x->flat, sizeof *x->flat, x->flats, &x->flat_room))
                return 0;
            memset(&x->flat[x->flats++], 0, sizeof *x->flat);
        }
        for (uint32_t k = 0; k < n->dep_count; k++)
            if (!ds__cpu_flat_depend(x, begin, first + n->deps[k]))
                return 0;
        if (!n->dep_count && after != UINT32_MAX && !ds__cpu_flat_depend(x, begin, after))
            return 0;
        if (begin == own)
            continue;
        uint32_t inside = x->flats;
        if (!ds__cpu_flatten(x, n->child, begin))
            return 0;
        for (uint32_t k = 0; k < n->child->count; k++)
            if (!ds__cpu_flat_depend(x, own, inside + k))
                return 0;
    }
    return 1;
}

/* Sorts the flat nodes so that each comes after those it depends on; *out_order is the caller's. */
static int ds__cpu_sort(ds__cpu_exec *x, uint32_t **out_order) {
    uint32_t *start = ds__alloc((x->flats + 2u) * sizeof *start);
    uint32_t edges = 0;
    uint32_t *order = ds__alloc((x->flats + 1u) * sizeof *order);
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->flats; i++)
        edges += x->flat[i].dep_count;
    uint32_t *successor = ds__alloc((edges + 1u) * sizeof *successor);
    *out_order = order;
    if (start && order && successor) {
        for (uint32_t i = 0; i < x->flats; i++) {
            x->flat[i].left = x->flat[i].dep_count;
            for (uint32_t k = 0; k < x->flat[i].dep_count; k++)
                start[x->flat[i].deps[k] + 2]++;
        }
        for (uint32_t i = 2; i < x->flats + 2; i++)
            start[i] += start[i - 1];
        for (uint32_t i = 0; i < x->flats; i++)
            for (uint32_t k = 0; k < x->flat[i].dep_count; k++)
                successor[start[x->flat[i].deps[k] + 1]++] = i;
        for (uint32_t i = 0; i < x->flats; i++)
            if (x->flat[i].left == 0)
                order[n++] = i;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = start[order[i]]; k < start[order[i] + 1]; k++)
                if (--x->flat[successor[k]].left == 0)
                    order[n++] = successor[k];
    }
    ds__release(start);
    ds__release(successor);
    return n == x->flats && start && order && successor;
}

static int ds__cpu_step_add(ds__cpu_exec *x, uint32_t lane, uint32_t flat, uint32_t on,
                            uint32_t upto) {
    if (!ds__room(&x->entry, sizeof *x->entry, x->entries, &x->entry_room))
        return 0;
    x->entry[x->entries++] = (ds__cpu_entry){ lane, flat, on, upto };
    x->operations[lane]++;
    return 1;
}

static int ds__cpu_flat_device(const ds__cpu_exec *x, const ds__cpu_flat *f) {
    return f->node ? f->node->device.index : x->body->device.index;
}

/* A node goes on the lane that ends with one it depends on, if that one is of the same device
   and priority; else it begins a lane. `tail`: the last node of each lane. `seen`: the highest
   number awaited of each lane, and for which node. */
static int ds__cpu_place(ds__cpu_exec *x, uint32_t flat, uint32_t *tail, uint64_t *seen) {
    ds__cpu_flat *f = &x->flat[flat];
    uint32_t lane = x->lanes;
    for (uint32_t k = 0; k < f->dep_count && lane == x->lanes; k++) {
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        if (tail[d->lane] == f->deps[k] && d->level == f->level &&
            ds__cpu_flat_device(x, d) == ds__cpu_flat_device(x, f))
            lane = d->lane;
    }
    if (lane == x->lanes)
        x->operations[x->lanes++] = 0;
    for (uint32_t k = 0; k < f->dep_count; k++) { /* the latest of each lane */
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        uint64_t mark = (uint64_t)(flat + 1) << 32 | d->number;
        if (d->lane != lane && (seen[d->lane] >> 32 != flat + 1u || seen[d->lane] < mark))
            seen[d->lane] = mark;
    }
    for (uint32_t k = 0; k < f->dep_count; k++) {
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        if (d->lane == lane || seen[d->lane] != ((uint64_t)(flat + 1) << 32 | d->number))
            continue;
        if (!ds__cpu_step_add(x, lane, UINT32_MAX, d->lane, d->number))
            return 0;
    }
    if (!ds__cpu_step_add(x, lane, flat, 0, 0))
        return 0;
    f->lane = lane;
    f->number = x->operations[lane];
    tail[lane] = flat;
    return 1;
}

static int ds__cpu_lay_out(ds__cpu_exec *x) {
    uint32_t *order = NULL;
    uint32_t *tail = NULL;
    uint64_t *seen = NULL;
    int done = ds__cpu_flatten(x, x->body, UINT32_MAX) && ds__cpu_sort(x, &order);
    if (done) {
        tail = ds__alloc((x->flats + 1u) * sizeof *tail);
        seen = ds__alloc((x->flats + 1u) * sizeof *seen);
        x->operations = ds__alloc((x->flats + 1u) * sizeof *x->operations);
        done = tail && seen && x->operations;
    }
    for (uint32_t i = 0; i < x->flats && done; i++) {
        ds__cpu_flat *f = &x->flat[order[i]];
        const ds__node *n = f->node;
        f->level = (uint32_t)((x->flags & DS_GRAPH_USE_NODE_PRIORITY) && n
                                  ? ds__cpu_clamp(n->priority) + DS__CPU_LEVELS - 1
                                  : DS__CPU_LEVELS - 1);
        if (n && n->kind == DS_NODE_HOST)
            x->hosts = 1;
        x->records += n && n->kind == DS_NODE_EVENT_RECORD;
        x->waits += n && n->kind == DS_NODE_EVENT_WAIT;
        done = ds__cpu_place(x, order[i], tail, seen);
    }
    for (uint32_t i = 0; i < x->flats; i++) {
        ds__release(x->flat[i].deps);
        x->flat[i].deps = NULL;
    }
    ds__release(order);
    ds__release(tail);
    ds__release(seen);
    return done;
}

static int ds__cpu_make_lanes(ds__cpu_exec *x) {
    x->lane = ds__alloc((x->lanes + 1u) * sizeof *x->lane);
    x->base = ds__alloc((x->lanes + 1u) * sizeof *x->base);
    if (!x->lane || !x->base)
        return 0;
    for (uint32_t i = 0; i < x->flats; i++) {
        const ds__cpu_flat *f = &x->flat[i];
        if (x->lane[f->lane])
            continue;
        if (!(x->lane[f->lane] = ds__cpu_stream_make(ds__cpu_flat_device(x, f), DS__STREAM_LANE, 0,
                                                     (int)f->level + 1 - DS__CPU_LEVELS)))
            return 0;
        x->base[f->lane] = atomic_load(&x->lane[f->lane]->submitted);
    }
    if (!(x->gate = ds__cpu_stream_make(x->body->device.index, DS__STREAM_LANE, 0, 0)))
        return 0;
    /* who emptied the stream that it was before may still have a last look at it */
    uint32_t idle = DS__CPU_IDLE;
    while (!atomic_compare_exchange_strong(&x->gate->state, &idle, DS__CPU_COUNTS)) {
        idle = DS__CPU_IDLE;
        ds__pause();
    }
    x->gate_base = atomic_load(&x->gate->submitted);
    return 1;
}
static void ds__cpu_plan_drop(ds__cpu_plan *p) {
    if (!p || atomic_fetch_sub(&p->users, 1) != 1)
        return;
    for (size_t i = 0; i < p->objects; i++)
        ds__object_drop(p->object[i]);
    for (uint32_t i = 0; i < p->lanes; i++)
        ds__release(p->block[i]);
    ds__release(p->object);
    ds__release(p);
}

/* The operation of a node as a lane has it, without a kernel's arguments. */
static void ds__cpu_lane_op(const ds__cpu_flat *f, uint32_t *records, uint32_t *waits,
                            ds__op *out) {
    const ds__node *n = f->node;
    memset(out, 0, sizeof *out);
    out->kind = DS__OP_NOTHING;
    if (!n)
        return;
    int enabled = n->enabled;
    switch (n->kind) {
    case DS_NODE_KERNEL:
    case DS_NODE_COPY:
    case DS_NODE_FILL:
    case DS_NODE_HOST:
        if (enabled)
            *out = n->op;
        break;
    case DS_NODE_EVENT_RECORD:
        out->kind = DS__OP_NODE_RECORD;
        out->u.wait.upto = (*records)++;
        break;
    case DS_NODE_EVENT_WAIT:
        out->kind = DS__OP_NODE_WAIT;
        out->u.wait.upto = (*waits)++;
        break;
    default:
        break;
    }
}

/* Looks the nodes up again, in the order of ds__cpu_flatten. */
static void ds__cpu_regather(ds__cpu_exec *x, const ds__body *b, uint32_t *at) {
    for (uint32_t i = 0; i < b->count; i++)
        x->flat[(*at)++].node = b->node[i];
    for (uint32_t i = 0; i < b->count; i++) {
        if (!b->node[i]->child || !b->node[i]->child->count)
            continue;
        ++*at; /* the one before the child's */
        ds__cpu_regather(x, b->node[i]->child, at);
    }
}

static size_t ds__cpu_objects_of(const ds__body *b, ds__object **out) {
    size_t n = 0;
    for (size_t i = 0; i < b->object_count; i++, n++)
        if (out)
            out[n] = ds__object_keep(b->object[i]);
    for (uint32_t i = 0; i < b->count; i++) {
        if (b->node[i]->payload && out)
            out[n] = ds__object_keep(b->node[i]->payload);
        n += b->node[i]->payload != NULL;
        if (b->node[i]->child)
            n += ds__cpu_objects_of(b->node[i]->child, out ? out + n : NULL);
    }
    return n;
}

/* Writes the operations of all lanes (write), or only adds up their bytes. */
static void ds__cpu_plan_fill(ds__cpu_exec *x, ds__cpu_plan *p, size_t *at, int write) {
    uint32_t records = 0;
    uint32_t waits = 0;
    for (uint32_t i = 0; i < x->entries; i++) {
        const ds__cpu_entry *e = &x->entry[i];
        ds__op op;
        if (e->flat == UINT32_MAX) {
            memset(&op, 0, sizeof op);
            op.kind = DS__OP_LANE_WAIT;
            op.u.wait.stream = x->lane[e->on];
            op.u.wait.upto = e->upto;
        } else {
            ds__cpu_lane_op(&x->flat[e->flat], &records, &waits, &op);
        }
        size_t bytes = ds__cpu_op_bytes(&op);
        if (write) {
            char *to = (char *)p->block[e->lane] + offsetof(ds__cpu_block, data) + at[e->lane];
            memcpy(to, &op,
                   op.kind == DS__OP_KERNEL ? DS__CPU_ARGS_AT
                   : bytes < sizeof op      ? bytes
                                            : sizeof op);
            if (op.kind == DS__OP_KERNEL && op.u.kernel.args_size)
                memcpy(to + DS__CPU_ARGS_AT, op.u.kernel.args, op.u.kernel.args_size);
        }
        at[e->lane] += bytes;
    }
}

static ds_result ds__cpu_plan_make(ds__cpu_exec *x) {
    uint32_t flats = 0;
    ds__cpu_plan *p = ds__alloc(sizeof *p + x->lanes * sizeof p->block[0]);
    size_t *at = ds__alloc((x->lanes + 1u) * sizeof *at);
    int done = p && at;
    if (p)
        atomic_store(&p->users, 1);
    ds__cpu_regather(x, x->body, &flats);
    if (done) {
        p->lanes = x->lanes;
        ds__cpu_plan_fill(x, p, at, 0);
        for (uint32_t i = 0; i < x->lanes && done; i++) {
            if (at[i] > UINT32_MAX - 64)
                done = 0;
            else
                p->block[i] =
                    ds__alloc(offsetof(ds__cpu_block, data) + at[i] +
                              sizeof(ds__op)); /* reading an operation whole stays inside */
            done = done && p->block[i];
            at[i] = 0;
        }
        size_t objects = ds__cpu_objects_of(x->body, NULL);
        if (done && objects)
            done = (p->object = ds__alloc(objects * sizeof *p->object)) != NULL;
        if (done)
            p->objects = ds__cpu_objects_of(x->body, p->object);
        if (done)
            ds__cpu_plan_fill(x, p, at, 1);
    }
    ds__release(at);
    if (!done) {
        ds__cpu_plan_drop(p);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable of %u nodes",
                        (unsigned)x->flats);
    }
    ds__cpu_plan_drop(x->plan);
    x->plan = p;
    x->dirty = 0;
    return DS_OK;
}

static void ds__cpu_exec_drop(ds__cpu_exec *x) {
    if (atomic_fetch_sub(&x->users, 1) != 1)
        return;
    for (uint32_t i = 0; x->lane && i < x->lanes; i++)
        if (x->lane[i]) {
            x->lane[i]->head = NULL;
            ds__cpu_stream_destroy(x->lane[i]);
        }
    if (x->gate) {
        atomic_store(&x->gate->state, DS__CPU_IDLE);
        ds__cpu_stream_destroy(x->gate);
    }
    ds__cpu_plan_drop(x->plan);
    for (uint32_t i = 0; i < x->flats; i++)
        ds__release(x->flat[i].deps);
    ds__release(x->flat);
    ds__release(x->entry);
    ds__release(x->lane);
    ds__release(x->base);
    ds__release(x->operations);
    ds__release(x);
}

static void ds__cpu_exec_destroy(void *exec) {
    ds__cpu_exec_drop(exec);
}

static ds_result ds__cpu_graph_instantiate(ds__body *graph, ds__body *copy, unsigned flags,
                                           void **out) {
    (void)graph;
    ds__cpu_exec *x = ds__alloc(sizeof *x);
    if (!x)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    atomic_store(&x->users, 1);
    x->body = copy;
    x->flags = flags;
    ds_result r = DS_OK;
    if (!ds__cpu_lay_out(x) || !ds__cpu_make_lanes(x))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable of %u nodes",
                     (unsigned)copy->count);
    if (r == DS_OK)
        r = ds__cpu_plan_make(x);
    if (r < 0) {
        ds__cpu_exec_drop(x);
        return r;
    }
    *out = x;
    return DS_OK;
}

/* The core has the graphs themselves. */
static ds_result ds__cpu_graph_create(ds__body *body) {
    (void)body;
    return DS_OK;
}

static ds_result ds__cpu_graph_clone(ds__body *from, ds__body *to) {
    (void)from;
    (void)to;
    return DS_OK;
}

static ds_result ds__cpu_graph_add(ds__body *body, uint32_t index) {
    (void)body;
    (void)index;
    return DS_OK;
}

static ds_result ds__cpu_graph_edges(ds__body *body, const ds_graph_node *from,
                                     const ds_graph_node *to, size_t count) {
    (void)body;
    (void)from;
    (void)to;
    (void)count;
    return DS_OK;
}

static ds_result ds__cpu_graph_set(ds__body *body, uint32_t index, ds__node *fresh) {
    (void)body;
    (void)index;
    (void)fresh;
    return DS_OK;
}

static ds_result ds__cpu_graph_attach(ds__body *body, ds__object *object) {
    (void)body;
    (void)object;
    return DS_OK;
}

static void ds__cpu_graph_destroy(ds__body *body) {
    (void)body;
}

/* The core changes the body when these have returned; the next launch makes a plan of it. The
   old one goes at once, with what it keeps, unless a launch needs it. */
static ds_result ds__cpu_exec_changed(ds__cpu_exec *x) {
    ds__cpu_plan_drop(x->plan);
    x->plan = NULL;
    x->dirty = 1;
    return DS_OK;
}

static ds_result ds__cpu_exec_update(void *exec, ds__body *graph,
                                     ds_graph_update_reason *out_reason, uint32_t *out_node) {
    (void)graph;
    (void)out_reason;
    (void)out_node;
    return ds__cpu_exec_changed(exec);
}

static ds_result ds__cpu_exec_set(void *exec, uint32_t index, const ds__node *fresh) {
    (void)index;
    (void)fresh;
    return ds__cpu_exec_changed(exec);
}

static ds_result ds__cpu_exec_enable(void *exec, uint32_t index, int enabled) {
    (void)index;
    (void)enabled;
    return ds__cpu_exec_changed(exec);
}
/* ---- >>cpu graphs: launching ---- */

static void ds__cpu_launch_drop(ds__cpu_launch *run) {
    ds__cpu_exec *x = run->exec;
    for (uint32_t i = 0; run->stamp && i < x->records; i++)
        ds__cpu_stamp_give(run->stamp[i]);
    ds__cpu_plan_drop(run->plan);
    ds__release(run->stamp);
    ds__release(run->shared);
    ds__release(run->token);
    ds__release(run);
    ds__cpu_exec_drop(x);
}

/* Notes what wait nodes wait for, and makes the stamps of timed records. */
static ds_result ds__cpu_launch_events(ds__cpu_launch *run) {
    const ds__cpu_exec *x = run->exec;
    uint32_t record = 0;
    uint32_t wait = 0;
    if (x->records && !(run->stamp = ds__alloc(x->records * sizeof *run->stamp)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    if (x->waits && !(run->token = ds__alloc(x->waits * sizeof *run->token)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    /* in the order of ds__cpu_plan_fill, which numbers them */
    for (uint32_t i = 0; i < x->entries; i++) {
        const ds__node *n = x->entry[i].flat == UINT32_MAX ? NULL : x->flat[x->entry[i].flat].node;
        if (!n || (n->kind != DS_NODE_EVENT_RECORD && n->kind != DS_NODE_EVENT_WAIT))
            continue;
        ds__cpu_event *e = n->op.u.event.event;
        ds_result r = n->kind == DS_NODE_EVENT_WAIT ? ds__cpu_event_look(e, 1) : DS_OK;
        if (r < 0)
            return r;
        ds__lock_take(&e->lock);
        uint64_t capture = e->capture;
        ds__cpu_token t = { e->stream, e->upto };
        ds__lock_give(&e->lock);
        if (n->kind == DS_NODE_EVENT_RECORD) {
            if ((e->flags & DS_EVENT_TIMING) && !(run->stamp[record] = ds__cpu_stamp_take()))
                return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a time stamp");
            if (e->board && !run->shared &&
                !(run->shared = ds__alloc(x->records * sizeof *run->shared)))
                return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
            if (e->board && (r = ds__cpu_lane_for(x->lane[x->flat[x->entry[i].flat].lane], e,
                                                  &run->shared[record])) < 0)
                return r;
            record++;
        } else {
            if (capture)
                return ds__cpu_captured(
                    capture, 0, "the executable waits for an event that was recorded in a capture");
            if (t.stream && (r = ds__cpu_event_watch(e, t.stream, t.upto)) < 0)
                return r;
            run->token[wait++] = t;
        }
    }
    return DS_OK;
}

/* The events of record nodes stand for this launch from now on. */
static void ds__cpu_launch_record(const ds__cpu_exec *x, uint64_t ticket,
                                  ds__cpu_stamp *const *stamps) {
    uint32_t record = 0;
    for (uint32_t i = 0; i < x->entries && x->records; i++) {
        const ds__cpu_flat *f = x->entry[i].flat == UINT32_MAX ? NULL : &x->flat[x->entry[i].flat];
        if (!f || !f->node || f->node->kind != DS_NODE_EVENT_RECORD)
            continue;
        uint64_t upto = x->base[f->lane] + ticket * x->operations[f->lane] + f->number;
        ds__cpu_event *e = f->node->op.u.event.event;
        ds__cpu_event_set(e, x->lane[f->lane], upto, stamps[record++]);
        if (e->board)
            ds__cpu_event_publish(e, x->lane[f->lane], upto);
    }
}

static ds_result ds__cpu_submit_launch(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_exec *x = op->u.graph.exec;
    ds_result r = x->hosts ? ds__cpu_host_ready() : DS_OK;
    if (r == DS_OK && x->dirty)
        r = ds__cpu_plan_make(x);
    if (r < 0)
        return r;
    ds__cpu_launch *run = ds__alloc(sizeof *run);
    if (!run)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    run->exec = x;
    run->plan = x->plan;
    run->ticket = x->launches;
    atomic_fetch_add_explicit(&x->users, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->plan->users, 1, memory_order_relaxed);
    ds__cpu_stamp **stamps = NULL;
    if (x->records || x->waits) {
        r = ds__cpu_launch_events(run);
        if (r == DS_OK && x->records &&
            !(stamps = ds__copy_bytes(run->stamp, x->records * sizeof *stamps)))
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    }
    ds__op launch = *op;
    launch.u.graph.exec = run;
    if (r == DS_OK)
        r = ds__cpu_enqueue(s, &launch, NULL);
    if (r < 0) { /* the events' halves of the stamps too */
        for (uint32_t i = 0; run->stamp && i < x->records; i++)
            ds__cpu_stamp_give(run->stamp[i]);
        for (uint32_t i = 0; run->shared && i < x->records; i++)
            ds__cpu_lane_unused(run->shared[i]);
        ds__release(stamps);
        ds__cpu_launch_drop(run);
        return r;
    }
    if (x->records)
        ds__cpu_launch_record(x, x->launches, stamps);
    ds__release(stamps);
    x->launches++;
    return DS_OK;
}

static ds_result ds__cpu_submit_upload(const ds__op *op) {
    ds__cpu_exec *x = op->u.graph.exec;
    return x->dirty ? ds__cpu_plan_make(x) : DS_OK;
}

/* Starts a lane: in this moment nobody runs it, or somebody who has emptied it and will see its
   new operations. */
static void ds__cpu_lane_start(ds__cpu_stream *lane, int hold_first) {
    uint32_t idle = DS__CPU_IDLE;
    ds__op *op = (ds__op *)(void *)(lane->head->data);
    /* it would only be parked */
    if (hold_first && op->kind == DS__OP_LANE_WAIT &&
        atomic_compare_exchange_strong(&lane->state, &idle, DS__CPU_RUNNING)) {
        ds__cpu_stream *on = op->u.wait.stream;
        if (ds__cpu_park(lane, on, on->lane_base + op->u.wait.upto))
            return;
        atomic_store(&lane->state, DS__CPU_READY);
        ds__cpu_push_ready(lane);
        return;
    }
    ds__cpu_kick(lane);
}

/* What failed so far stays failed, later operations run again. The stream has nothing to do. */
static void ds__cpu_forgive(ds__cpu_stream *s) {
    ds__cpu_stays_failed(s, atomic_load(&s->failure), atomic_load(&s->failed_from),
                         atomic_load(&s->done));
    atomic_store(&s->failure, NULL);
}

static void ds__cpu_launch_start(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_launch *run) {
    ds__cpu_exec *x = run->exec;
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_relaxed);
    for (uint32_t i = 0; i < x->lanes; i++) {
        ds__cpu_stream *lane = x->lane[i];
        lane->lane_base = x->base[i] + run->ticket * x->operations[i];
        lane->launch = run;
        lane->head = run->plan->block[i];
        lane->head_at = 0;
        if (s->virt)
            lane->virt->time = s->virt->time;
        if (!(x->flags & DS_GRAPH_USE_NODE_PRIORITY))
            atomic_store_explicit(&lane->level,
                                  atomic_load_explicit(&s->level, memory_order_relaxed),
                                  memory_order_relaxed);
        if (f)
            ds__cpu_fail_stream(lane, f, lane->lane_base + 1);
        /* a failure that an earlier launch's stream brought along is not this one's */
        else if (atomic_load(&lane->failure) && !atomic_load(&ds__cpu.device[lane->device].failure))
            ds__cpu_forgive(lane);
    }
    uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    int nest = ds__tls.nested < DS__CPU_NESTED && !ds__cpu.seed &&
               !(ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1));
    for (uint32_t i = 0; i < x->lanes; i++) {
        atomic_store(&x->lane[i]->submitted, ds__cpu_lane_end(x, i, run->ticket));
        if (i > 0 || !nest)
            ds__cpu_lane_start(x->lane[i], 1);
    }
    uint32_t idle = DS__CPU_IDLE;
    if (x->lanes == 0 || !nest)
        return;
    /* who emptied it goes on with it */
    if (!atomic_compare_exchange_strong(&x->lane[0]->state, &idle, DS__CPU_RUNNING))
        return;
    ds__tls.nested++;
    ds__cpu_run(w, x->lane[0], UINT64_MAX);
    ds__tls.nested--;
}

/* The stream has come to a launch. DS__CPU_GONE: it is parked and will come again. */
static int ds__cpu_launch_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                               uint64_t number, int who) {
    ds__cpu_launch *run = op->u.graph.exec;
    ds__cpu_exec *x = run->exec;
    uint64_t turn = x->gate_base + run->ticket;
    if (!run->started) {
        if (atomic_load_explicit(&x->gate->done, memory_order_acquire) < turn &&
            ds__cpu_park(s, x->gate, turn))
            return DS__CPU_GONE;
        run->started = 1;
        ds__cpu_after(s, x->gate, turn);
        ds__cpu_launch_start(w, s, run);
    }
    for (; run->next < x->lanes; run->next++) {
        ds__cpu_stream *lane = x->lane[run->next];
        uint64_t end = ds__cpu_lane_end(x, run->next, run->ticket);
        if (atomic_load_explicit(&lane->done, memory_order_acquire) < end &&
            !(who == DS__CPU_WORK && ds__cpu_run_first(w, s, lane, end)) &&
            ds__cpu_park(s, lane, end))
            return DS__CPU_GONE;
        ds__cpu_after(s, lane, end);
    }
    for (uint32_t i = 0; i < x->lanes; i++) {
        ds__cpu_failure *f = ds__cpu_failed(x->lane[i], ds__cpu_lane_end(x, i, run->ticket));
        if (f)
            ds__cpu_fail_stream(s, f, number);
    }
    atomic_store(&x->gate->submitted, turn + 1);
    if (s->virt)
        atomic_store(&x->gate->virt->end, s->virt->time);
    ds__cpu_pass(x->gate, turn + 1);
    ds__cpu_launch_drop(run);
    return DS__CPU_EMPTY;
}

/* Operations that only lanes have. */
static int ds__cpu_lane_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                             uint64_t number, int failed, int who) {
    ds__cpu_launch *run = s->launch;
    ds__cpu_token t = { op->u.wait.stream, 0 };
    if (op->kind == DS__OP_NODE_RECORD) {
        ds__cpu_stamp *stamp = run->stamp[op->u.wait.upto];
        if (stamp && !failed)
            atomic_store_explicit(&stamp->ns, ds__cpu_now(s), memory_order_release);
        if (run->shared && run->shared[op->u.wait.upto])
            ds__cpu_lane_pass(run->shared[op->u.wait.upto], number, failed);
        return DS__CPU_EMPTY; /* the launch gives it back */
    }
    if (op->kind == DS__OP_NODE_WAIT)
        t = run->token[op->u.wait.upto];
    else
        t.upto = t.stream->lane_base + op->u.wait.upto;
    return t.stream ? ds__cpu_wait_step(w, s, t.stream, t.upto, number, who) : DS__CPU_EMPTY;
}
/* ---- >>cpu memory ---------------------------------------------------------------------------- */

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

/* A device's; large pieces of a dry one are no more than addresses until they are touched. */
static int ds__cpu_is_dry(size_t size) {
    return ds__cpu.fabric && ds__cpu.fabric->flags & DS_CPU_DRY && size >= DS__CPU_DRY_BYTES;
}

static void *ds__cpu_device_memory_take(size_t size) {
    if (DS__LIKELY(!ds__cpu_is_dry(size)))
        return ds__cpu_memory(size);
    if (size > SIZE_MAX - DS__CPU_DRY_BYTES)
        return NULL;
    size = (size + 4095) & ~(size_t)4095;
    void *at = ds__os_reserve(size, 4096);
    if (!at || !mprotect(at, size, PROT_READ | PROT_WRITE))
        return at;
    ds__os_unreserve(at, size);
    return NULL;
}

static void ds__cpu_device_memory_give(void *at, size_t size) {
    if (DS__LIKELY(!ds__cpu_is_dry(size)))
        free(at);
    else
        ds__os_unreserve(at, (size + 4095) & ~(size_t)4095);
}

/* Takes the bytes from the device's limit. */
static ds_result ds__cpu_take(int device, size_t size) {
    ds__cpu_device *d = &ds__cpu.device[device];
    size_t used = atomic_load(&d->used);
    do {
        if (size > d->limit || used > d->limit - size)
            return ds__fail(DS_ERR_OUT_OF_MEMORY,
                            "%zu bytes do not fit on cpu:%d: %zu of %zu bytes are in use", size,
                            device, used, d->limit);
    } while (!atomic_compare_exchange_weak(&d->used, &used, used + size));
    return DS_OK;
}

static ds_result ds__cpu_short(int device, size_t size) {
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "the system has no %zu bytes for cpu:%d", size, device);
}

static ds_result ds__cpu_memory_alloc(int device, size_t size, void **out) {
    ds_result r =
        ds__cpu_unsafe("memory cannot be allocated in this thread while the capture is open");
    if (r == DS_OK)
        r = ds__cpu_take(device, size);
    if (r < 0)
        return r;
    *out = ds__cpu_device_memory_take(size);
    return *out ? DS_OK : ds__cpu_short(device, size);
}

/* Virtual memory is the system's. Its unit here is that of GPUs, and of the system's large
   pages. */
#define DS__CPU_SPACE_PAGE ((size_t)2 << 20)

static size_t ds__cpu_space_round(size_t size) {
    return (size + DS__CPU_SPACE_PAGE - 1) & ~(DS__CPU_SPACE_PAGE - 1);
}

static ds_result ds__cpu_space_reserve(int device, size_t size, size_t *out_page, void **out) {
    *out_page = DS__CPU_SPACE_PAGE;
    *out = size && size <= SIZE_MAX - DS__CPU_SPACE_PAGE
               ? ds__os_reserve(ds__cpu_space_round(size), DS__CPU_SPACE_PAGE)
               : NULL;
    return *out ? DS_OK
                : ds__fail(DS_ERR_OUT_OF_MEMORY,
                           "the system has no %zu bytes of address space for cpu:%d", size, device);
}

static void ds__cpu_space_release(int device, void *at, size_t size) {
    (void)device;
    ds__os_unreserve(at, ds__cpu_space_round(size));
}

static ds_result ds__cpu_space_map(int device, void *at, size_t size) {
    ds__mapping m;
    if (!size || size % DS__CPU_SPACE_PAGE || (uintptr_t)at % DS__CPU_SPACE_PAGE)
        return ds__fail(DS_ERR_INVALID_VALUE, "%zu bytes at %p are not whole pages of %zu bytes",
                        size, at, DS__CPU_SPACE_PAGE);
    ds_result r = ds__mapping_add(at, size);
    if (r < 0)
        return r;
    r = ds__cpu_take(device, size);
    if (r == DS_OK && !ds__os_commit(at, size)) {
        ds__os_decommit(at, size); /* it may have come half way */
        r = ds__cpu_short(device, size);
    }
    if (r < 0)
        (void)ds__mapping_take((uintptr_t)at, (uintptr_t)at + size, &m);
    return r;
}

static ds_result ds__cpu_space_unmap(int device, void *at, size_t size) {
    ds__mapping m;
    ds_result r = ds__mapping_check(at, size);
    if (r < 0)
        return r;
    while (ds__mapping_take((uintptr_t)at, (uintptr_t)at + size, &m)) {
    }
    ds__os_decommit(at, size);
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
    return DS_OK;
}

/* The driver's own allocator is the system's: it keeps nothing. */
static ds_result ds__cpu_async_alloc(int device, void *stream, size_t size, void **out) {
    ds__cpu_stream *s = stream;
    ds__op op = { .kind = DS__OP_FREE };
    ds_result r;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (f)
        return ds__cpu_report(f);
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, &op, &r))
        return r;
    if ((r = ds__cpu_take(device, size)) < 0)
        return r;
    if (!(*out = ds__cpu_device_memory_take(size)))
        return ds__cpu_short(device, size);
    atomic_fetch_add(&ds__cpu.device[device].async_used, size);
    return DS_OK;
}

static ds_result ds__cpu_async_free(int device, void *stream, void *ptr, size_t size) {
    ds__cpu_stream *s = stream;
    ds__op op = { .kind = DS__OP_FREE };
    ds_result r;
    op.u.memory.ptr = ptr;
    op.u.memory.size = size;
    op.u.memory.device = device;
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, &op, &r))
        return r;
    return ds__cpu_enqueue(s, &op, NULL);
}

static void ds__cpu_async_over(const ds__op *op) {
    ds__cpu_device *d = &ds__cpu.device[op->u.memory.device];
    atomic_fetch_sub(&d->async_used, op->u.memory.size);
    atomic_fetch_sub(&d->used, op->u.memory.size);
    ds__cpu_device_memory_give(op->u.memory.ptr, op->u.memory.size);
}

static ds_result ds__cpu_async_trim(int device, size_t keep) {
    (void)device;
    (void)keep;
    return DS_OK;
}

static ds_result ds__cpu_async_info(int device, size_t *out_reserved, size_t *out_used) {
    *out_reserved = *out_used = atomic_load(&ds__cpu.device[device].async_used);
    return DS_OK;
}
/* Memory that other processes can open; it is all there before anybody touches it. */
typedef struct ds__cpu_share {
    struct ds__cpu_share *next;
    void *base;
    size_t size;
    uint64_t cookie;
    int fd;
} ds__cpu_share;

/* Takes the entry out, if it is there; take 0: leaves it. */
static ds__cpu_share *ds__cpu_share_find(const void *base, int take) {
    ds__boards_lock();
    ds__cpu_share **p = &ds__cpu.shares;
    while (*p && (*p)->base != base)
        p = &(*p)->next;
    ds__cpu_share *s = *p;
    if (s && take)
        *p = s->next;
    ds__boards_unlock();
    return s;
}

static ds_result ds__cpu_share_alloc(int device, size_t size, void **out) {
    ds__cpu_share *s = NULL;
    ds_result r =
        ds__cpu_unsafe("memory cannot be allocated in this thread while the capture is open");
    if (r == DS_OK)
        r = ds__cpu_take(device, size);
    if (r < 0)
        return r;
    uint64_t cookie = ds__os_cookie();
    int fd = size <= (size_t)1 << 60 ? ds__os_memfd(size, cookie) : -1;
    void *base = fd >= 0 && ds__os_memfd_reserve(fd, 0, size) ? ds__os_memfd_map(fd, size) : NULL;
    if (base)
        s = ds__alloc(sizeof *s);
    if (!s) {
        if (base)
            ds__os_unmap(base, size);
        if (fd >= 0)
            close(fd);
        return ds__cpu_short(device, size);
    }
    s->base = base;
    s->size = size;
    s->cookie = cookie;
    s->fd = fd;
    ds__boards_lock();
    s->next = ds__cpu.shares;
    ds__cpu.shares = s;
    ds__boards_unlock();
    *out = base;
    return DS_OK;
}

static void ds__cpu_share_release(int device, void *base, size_t size) {
    ds__cpu_share *s = ds__cpu_share_find(base, 1);
    if (!s)
        return;
    ds__os_unmap(base, size);
    close(s->fd);
    ds__release(s);
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
}

static ds_result ds__cpu_share_export(int device, void *base, size_t size, unsigned char *handle) {
    const ds__cpu_share *s = ds__cpu_share_find(base, 0);
    ds_result r =
        ds__cpu_unsafe("memory cannot be exported in this thread while the capture is open");
    if (r < 0)
        return r;
    if (!s || s->size != size)
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is not memory of cpu:%d that can be exported",
                        base, device);
    ds__address a = { DS__ADDRESS_MEMORY, (int32_t)getpid(), s->fd, 0, 0, 0, s->cookie, size };
    memset(handle, 0, 64);
    memcpy(handle, &a, sizeof a);
    return DS_OK;
}

static ds_result ds__cpu_share_import(int device, const unsigned char *handle, size_t size,
                                      void **out) {
    ds__address a;
    memcpy(&a, handle, sizeof a);
    ds_result r =
        ds__cpu_unsafe("memory cannot be imported in this thread while the capture is open");
    if (r < 0)
        return r;
    if (a.kind != DS__ADDRESS_MEMORY || a.size != size)
        return ds__fail(DS_ERR_INVALID_VALUE, "these bytes are no memory of a CPU device");
    if (a.pid == (int32_t)getpid())
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the memory is this process's own");
    int fd = ds__os_memfd_open(a.pid, a.fd, a.cookie, size);
    if (fd < 0)
        return ds__peer_fail(a.pid);
    *out = ds__os_memfd_map(fd, size);
    close(fd);
    return *out ? DS_OK
                : ds__fail(DS_ERR_OUT_OF_MEMORY,
                           "the system has no address space for %zu bytes on cpu:%d", size, device);
}

static void ds__cpu_share_close(int device, void *base, size_t size) {
    (void)device;
    ds__os_unmap(base, size);
}
static ds_result ds__cpu_host_alloc(size_t size, void **out) {
    ds_result r = ds__cpu_unsafe(
        "pinned memory cannot be allocated in this thread while the capture is open");
    if (r < 0)
        return r;
    /* whole pages, as CUDA */
    *out = size < 4096 || size > SIZE_MAX - 4096
               ? ds__cpu_memory(size)
               : aligned_alloc(4096, (size + 4095) & ~(size_t)4095);
    return *out ? DS_OK
                : ds__fail(DS_ERR_OUT_OF_MEMORY, "the system has no %zu bytes of pinned memory",
                           size);
}

static ds_result ds__cpu_host_register(void *ptr, size_t size) {
    (void)ptr;
    (void)size;
    return ds__cpu_unsafe("memory cannot be registered in this thread while the capture is open");
}

static ds_result ds__cpu_memory_wait(int device) {
    ds_result r = ds__cpu_unsafe(
        "memory cannot be freed or unregistered in this thread while the capture is open");
    for (int i = device < 0 ? 0 : device;
         i < (device < 0 ? ds__cpu.devices : device + 1) && r == DS_OK; i++)
        r = ds__cpu_wait_device(i, 0, DS__FOREVER);
    return r;
}

static ds_result ds__cpu_memory_release(ds_memory_kind kind, int device, void *ptr, size_t size) {
    if (kind == DS_MEMORY_DEVICE)
        atomic_fetch_sub(&ds__cpu.device[device].used, size);
    if (kind == DS_MEMORY_DEVICE)
        ds__cpu_device_memory_give(ptr, size);
    else if (kind != DS_MEMORY_REGISTERED)
        free(ptr);
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
                if (atomic_load(&s->done) < atomic_load(&s->submitted)) {
                    t.stream = s;
                    t.upto = atomic_load(&s->submitted);
                }
            ds__lock_give(&ds__cpu.device[i].lock);
            if (t.stream)
                ds__cpu_wait(t.stream, t.upto, DS__FOREVER, 0);
        } while (t.stream);
    }
}
/* ---- >>cpu devices --------------------------------------------------------------------------- */

static ds_result ds__cpu_device_properties(int device, ds_device_properties *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "devstream CPU device %d", device);
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out->name, sizeof out->name, "%.120s", colon + 2);
        break;
    }
    if (f)
        fclose(f);
    out->total_memory = ds__cpu.device[device].limit;
    out->multiprocessors = ds__cpu.workers;
    out->unified_addressing = 1;
    /* "devstream-cpu" and the index: the same in every process of the machine, as the device is
       the machine */
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
    ds_result r = ds__cpu_unsafe_wait(device);
    if (r == DS_OK)
        r = ds__cpu_wait_device(device, 0, DS__FOREVER);
    ds__cpu_failure *f = atomic_load(&ds__cpu.device[device].failure);
    return r == DS_OK && f ? ds__cpu_report(f) : r;
}

static int ds__cpu_device_used(int device) {
    (void)device;
    return 1;
}

static ds_result ds__cpu_device_reset(int device) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds_result r = ds__cpu_unsafe_wait(device);
    if (r == DS_OK)
        r = ds__cpu_wait_device(device, 0, DS__FOREVER);
    if (r < 0)
        return r;
    atomic_store(&d->failure, NULL);
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
        ds__cpu_failure *f = atomic_load(&s->failure);
        if (f)
            ds__cpu_forgive(s);
    }
    ds__lock_give(&d->lock);
    return DS_OK;
}

static ds_result ds__cpu_device_peer(int device, int peer, int *out) {
    if (ds__cpu.fabric)
        *out =
            device == peer || ds__cpu.fabric->route[device * (ds__cpu.devices + 1) + peer].direct;
    else
        *out =
            device == peer || !ds__cpu.peers || ds__cpu.peers[device * ds__cpu.devices + peer] != 0;
    return DS_OK;
}

static ds_result ds__cpu_device_link(int device, int peer, int *out) {
    (void)device;
    (void)peer;
    *out = 0;
    return DS_OK;
}

static ds_result ds__cpu_device_speed(int device, int *out_engines, double *out_memory) {
    (void)device;
    *out_engines = ds__cpu.fabric ? ds__cpu.fabric->engines : 0;
    *out_memory = ds__cpu.fabric ? ds__cpu.fabric->memory_bytes_per_s : 0;
    return DS_OK;
}

static ds_result ds__cpu_priority_range(int device, int *out_least, int *out_greatest) {
    (void)device;
    *out_least = 0;
    *out_greatest = 1 - DS__CPU_LEVELS;
    return DS_OK;
}
/* ---- >>cpu start and stop -------------------------------------------------------------------- */

static int ds__cpu_option(int value, const char *name, int fallback, int most) {
    uint64_t n = value > 0 ? (uint64_t)value : ds__env_number(name);
    if (n == 0)
        n = (uint64_t)fallback;
    return n > (uint64_t)most ? most : (int)n;
}

static const ds_cpu_desc *ds__cpu_desc(void) {
    static const ds_cpu_desc none = { 0, 0, 0, NULL, 0, 0, NULL };
    return ds__g.desc.cpu ? ds__g.desc.cpu : &none;
}

static ds_result ds__cpu_check_route(const ds_cpu_fabric *f, size_t from, size_t to) {
    const ds_cpu_route *route = &f->route[from * ((size_t)f->devices + 1) + to];
    DS__REQUIRE(route->latency_ns >= 0 && route->latency_ns <= 1000000000000000,
                "the route from %zu to %zu has a latency of %lld ns", from, to,
                (long long)route->latency_ns);
    DS__REQUIRE(route->hops <= f->links && (route->link || !route->hops),
                "the route from %zu to %zu has %zu of %zu links", from, to, route->hops, f->links);
    for (size_t i = 0; i < route->hops; i++) {
        DS__REQUIRE(route->link[i] >= 0 && (size_t)route->link[i] < f->links,
                    "the route from %zu to %zu has link %d of %zu", from, to, route->link[i],
                    f->links);
        for (size_t k = 0; k < i; k++)
            DS__REQUIRE(route->link[k] != route->link[i],
                        "the route from %zu to %zu has link %d twice", from, to, route->link[i]);
    }
    return DS_OK;
}

static ds_result ds__cpu_check_fabric(const ds_cpu_desc *desc) {
    const ds_cpu_fabric *f = desc->fabric;
    DS__REQUIRE(f->devices > 0 && f->devices <= DS_CPU_MAX_DEVICES,
                "a fabric of %d devices, which are not 1 to %d", f->devices, DS_CPU_MAX_DEVICES);
    DS__REQUIRE(!desc->devices || desc->devices == f->devices, "%d CPU devices, but a fabric of %d",
                desc->devices, f->devices);
    DS__REQUIRE(!desc->peer_access,
                "a fabric's routes say which devices reach each other; peer_access must be NULL");
    DS__REQUIRE(!(desc->flags & DS_CPU_INLINE) && !desc->seed,
                "a fabric decides when work runs: neither DS_CPU_INLINE nor a seed goes with it");
    DS__REQUIRE(f->route, "the fabric has no routes");
    DS__REQUIRE(f->links <= INT_MAX && (f->link_bytes_per_s || !f->links),
                "the fabric has %zu links, but nothing says how fast they are", f->links);
    DS__REQUIRE(f->engines >= 0 && f->engines <= 64, "%d copy engines are not 1 to 64", f->engines);
    DS__REQUIRE(f->engine_ns >= 0 && f->engine_ns <= 1000000000000000,
                "a copy cannot hold its engine for %lld ns", (long long)f->engine_ns);
    DS__REQUIRE(f->memory_bytes_per_s == 0 ||
                    (f->memory_bytes_per_s >= 1 && f->memory_bytes_per_s <= 1e300),
                "memory of %g bytes per second", f->memory_bytes_per_s);
    DS__REQUIRE((f->flags & ~(unsigned)DS_CPU_DRY) == 0, "unknown fabric flags %#x", f->flags);
    for (size_t i = 0; i < f->links; i++)
        DS__REQUIRE(f->link_bytes_per_s[i] >= 1 && f->link_bytes_per_s[i] <= 1e300,
                    "link %zu has %g bytes per second", i, f->link_bytes_per_s[i]);
    for (size_t from = 0; from <= (size_t)f->devices; from++)
        for (size_t to = 0; to <= (size_t)f->devices; to++) {
            ds_result r = ds__cpu_check_route(f, from, to);
            if (r < 0)
                return r;
        }
    return DS_OK;
}

static ds_result ds__cpu_check_desc(const ds_cpu_desc *desc) {
    DS__REQUIRE(desc->devices >= 0 && desc->devices <= DS_CPU_MAX_DEVICES,
                "%d CPU devices are not 1 to %d", desc->devices, DS_CPU_MAX_DEVICES);
    DS__REQUIRE(desc->workers >= 0 && desc->workers <= 256, "%d workers are not 1 to 256",
                desc->workers);
    DS__REQUIRE((desc->flags & ~(unsigned)(DS_CPU_INLINE | DS_CPU_NO_SPIN | DS_CPU_LAX_CAPTURE)) ==
                    0,
                "unknown CPU flags %#x", desc->flags);
    DS__REQUIRE(!desc->peer_access || desc->devices > 0, "peer_access needs the number of devices");
    return desc->fabric ? ds__cpu_check_fabric(desc) : DS_OK;
}

/* A copy of a fabric in one piece of memory, with the defaults in the place of zeros; NULL: no
   memory. */
static ds_cpu_fabric *ds__cpu_copy_fabric(const ds_cpu_fabric *f) {
    size_t routes = ((size_t)f->devices + 1) * ((size_t)f->devices + 1);
    size_t hops = 0;
    for (size_t i = 0; i < routes; i++)
        hops += f->route[i].hops;
    char *at = ds__alloc(sizeof *f + f->links * sizeof(double) + routes * sizeof(ds_cpu_route) +
                         hops * sizeof(int));
    if (!at)
        return NULL;
    ds_cpu_fabric *copy = (ds_cpu_fabric *)(void *)at;
    ds_cpu_route *route = (ds_cpu_route *)(void *)(at + sizeof *f);
    double *rate = (double *)(void *)(route + routes);
    int *link = (int *)(void *)(rate + f->links);
    *copy = *f;
    copy->route = route;
    copy->link_bytes_per_s = rate;
    if (!copy->engines)
        copy->engines = 3;
    if (!copy->engine_ns)
        copy->engine_ns = 1500;
    if (copy->memory_bytes_per_s == 0)
        copy->memory_bytes_per_s = 2e12;
    if (f->links)
        memcpy(rate, f->link_bytes_per_s, f->links * sizeof *rate);
    for (size_t i = 0; i < routes; i++) {
        route[i] = f->route[i];
        route[i].link = link;
        if (route[i].hops)
            memcpy(link, f->route[i].link, route[i].hops * sizeof *link);
        link += route[i].hops;
    }
    return copy;
}

/* The options are kept until ds_shutdown, with copies of all that they point to; NULL: only the
   old copies are freed. */
static ds_result ds__cpu_keep_desc(const ds_cpu_desc *desc) {
    static ds_cpu_desc kept;
    static ds_cpu_fabric *fabric;
    static unsigned char peers[DS_CPU_MAX_DEVICES * DS_CPU_MAX_DEVICES];
    ds__release(fabric);
    fabric = NULL;
    if (!desc)
        return DS_OK;
    kept = *desc;
    ds__g.desc.cpu = &kept;
    if (desc->peer_access) {
        memcpy(peers, desc->peer_access, (size_t)desc->devices * (size_t)desc->devices);
        kept.peer_access = peers;
    }
    if (!desc->fabric)
        return DS_OK;
    kept.devices = desc->fabric->devices;
    kept.fabric = fabric = ds__cpu_copy_fabric(desc->fabric);
    return fabric ? DS_OK
                  : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a fabric of %d devices",
                             desc->fabric->devices);
}
static void ds__cpu_probe(ds_backend_info *out) {
    out->name = "cpu";
    out->type = DS_DEVICE_CPU;
    out->available = 1;
    out->device_count =
        ds__cpu_option(ds__cpu_desc()->devices, "DEVSTREAM_CPU_DEVICES", 1, DS_CPU_MAX_DEVICES);
    snprintf(out->reason, sizeof out->reason,
             "taken: %d virtual device%s on this machine's %d processor%s", out->device_count,
             out->device_count == 1 ? "" : "s", ds__os_processors(),
             ds__os_processors() == 1 ? "" : "s");
}

static void ds__cpu_stop(void);

static ds_result ds__cpu_start(void) {
    const ds_cpu_desc *desc = ds__cpu_desc();
    int processors = ds__os_processors();
    memset(&ds__cpu, 0, sizeof ds__cpu);
    ds__cpu.devices = ds__cpu_option(desc->devices, "DEVSTREAM_CPU_DEVICES", 1, DS_CPU_MAX_DEVICES);
    ds__cpu.processors = processors;
    int workers = ds__cpu_option(desc->workers, "DEVSTREAM_CPU_WORKERS",
                                 processors > 2 ? processors : 2, 256);
    ds__cpu.spin_limit = processors > 1 ? processors - 1 : 1;
    ds__cpu.no_spin = (desc->flags & DS_CPU_NO_SPIN) != 0;
    ds__cpu.is_lax = (desc->flags & DS_CPU_LAX_CAPTURE) != 0;
    ds__cpu.is_inline = (desc->flags & DS_CPU_INLINE) || ds__env_number("DEVSTREAM_CPU_INLINE");
    ds__cpu.seed = desc->seed ? desc->seed : ds__env_number("DEVSTREAM_CPU_SEED");
    /* as under the seeded scheduler nothing is run at once, or split, or by who waits */
    if (desc->fabric) {
        ds__cpu.fabric = desc->fabric;
        ds__cpu.seed = 1;
        workers = 1;
        ds__cpu.is_inline = 0;
    }
    ds__cpu.random = ds__cpu.seed * 2862933555777941757u + 3037000493u;
    size_t n = (size_t)ds__cpu.devices;
    size_t links = desc->fabric ? desc->fabric->links : 0;
    size_t engines = desc->fabric ? n * (size_t)desc->fabric->engines : 0;
    ds__cpu.device = ds__alloc(n * sizeof *ds__cpu.device);
    ds__cpu.worker = ds__alloc((size_t)workers * sizeof *ds__cpu.worker);
    if (desc->peer_access)
        ds__cpu.peers = ds__alloc(n * n);
    if (desc->fabric &&
        (ds__cpu.link_free = ds__alloc((links + engines + n) * sizeof(int64_t))) != NULL) {
        ds__cpu.engine_free = ds__cpu.link_free + links;
        ds__cpu.memory_free = ds__cpu.engine_free + engines;
    }
    ds__cpu.started = 1;
    if (!ds__cpu.device || !ds__cpu.worker || (desc->peer_access && !ds__cpu.peers) ||
        (desc->fabric && !ds__cpu.link_free)) {
        ds__cpu_stop();
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the CPU driver");
    }
    if (desc->peer_access)
        memcpy(ds__cpu.peers, desc->peer_access, n * n);
    size_t memory = desc->memory_limit         ? desc->memory_limit
                    : ds__cpu_is_dry(SIZE_MAX) ? (size_t)1 << 38
                                               : (size_t)ds__env_number("DEVSTREAM_CPU_MEMORY");
    for (size_t i = 0; i < n; i++)
        ds__cpu.device[i].limit = memory ? memory : ds__os_memory();
    /* What the threads read is set before the first runs. All workers count as awake, so that no
       submission takes one that is starting for a missing one. */
    ds__cpu.workers = workers;
    atomic_store(&ds__cpu.lookers, workers);
    atomic_store(&ds__cpu.monitor_word, 1);
    int error = 0;
    for (int i = 0; i < workers && !error; i++) {
        error = pthread_create(&ds__cpu.worker[i].thread, NULL, ds__cpu_worker_main,
                               &ds__cpu.worker[i]);
        if (!error)
            ds__cpu.workers_started++;
    }
    if (!error)
        error = pthread_create(&ds__cpu.monitor, NULL, ds__cpu_monitor_main, NULL);
    ds__cpu.monitor_started = error == 0;
    if (error) {
        ds__cpu_stop();
        return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error));
    }
    return DS_OK;
}

/* Drains everything, ends the threads, frees. */
static void ds__cpu_stop(void) {
    if (ds__cpu.workers_started && ds__cpu.device)
        ds__cpu_drain();
    ds__cpu_watcher_end();
    if (ds__cpu.started && ds__cpu.worker && ds__cpu.device) {
        atomic_store(&ds__cpu.quit, 1);
        atomic_fetch_add(&ds__cpu.wake_word, 1);
        ds__futex_wake(&ds__cpu.wake_word, INT_MAX);
        atomic_fetch_add(&ds__cpu.host_word, 1);
        ds__futex_wake(&ds__cpu.host_word, INT_MAX);
        atomic_store(&ds__cpu.monitor_word, 1);
        ds__futex_wake(&ds__cpu.monitor_word, INT_MAX);
        if (ds__cpu.monitor_started)
            pthread_join(ds__cpu.monitor, NULL);
        for (int i = 0; i < ds__cpu.workers_started; i++)
            pthread_join(ds__cpu.worker[i].thread, NULL);
        for (int i = 0; i < ds__cpu.host_threads; i++)
            pthread_join(ds__cpu.host_thread[i], NULL);
    }
    while (ds__cpu.raw) {
        void **raw = ds__cpu.raw;
        ds__cpu.raw = raw[0];
        ds__release(raw);
    }
    while (ds__cpu.failures) {
        ds__cpu_failure *f = ds__cpu.failures;
        ds__cpu.failures = f->next;
        ds__release(f);
    }
    ds__release(ds__cpu.host_thread);
    ds__release(ds__cpu.peers);
    ds__release(ds__cpu.link_free);
    ds__release(ds__cpu.worker);
    ds__release(ds__cpu.device);
    memset(&ds__cpu, 0, sizeof ds__cpu);
}

/* A mark is the list of tokens of everything pending, ended by one without a stream. */
static int ds__cpu_passed(void **mark) {
    ds__cpu_token *list = *mark;
    if (!list) {
        size_t count = 0;
        size_t room = 0;
        for (int i = 0; i < ds__cpu.devices; i++) {
            size_t n;
            ds__cpu_token *one = ds__cpu_tokens(i, 0, &n);
            if (n == SIZE_MAX) {
                ds__release(list);
                return 0;
            }
            if (count + n + 1 > room) {
                ds__cpu_token *more = ds__alloc((room = count + n + 1) * sizeof *more);
                if (!more) {
                    ds__release(one);
                    ds__release(list);
                    return 0;
                }
                if (count)
                    memcpy(more, list, count * sizeof *more);
                ds__release(list);
                list = more;
            }
            if (n)
                memcpy(list + count, one, n * sizeof *list);
            list[count += n].stream = NULL;
            ds__release(one);
        }
        *mark = list;
    }
    for (; list->stream; list++)
        if (atomic_load_explicit(&list->stream->done, memory_order_acquire) < list->upto)
            return 0;
    ds__release(*mark);
    *mark = NULL;
    return 1;
}

static const ds__driver ds__cpu_driver = { "cpu",
                                           DS_DEVICE_CPU,
                                           ds__cpu_probe,
                                           ds__cpu_start,
                                           ds__cpu_device_used,
                                           ds__cpu_drain,
                                           ds__cpu_stop,
                                           ds__cpu_stream_destroy,
                                           ds__cpu_stream_unwrap,
                                           ds__cpu_stream_hide,
                                           ds__cpu_stream_forget,
                                           ds__cpu_stream_identity,
                                           ds__cpu_event_destroy,
                                           ds__cpu_kernel_destroy,
                                           ds__cpu_capture_abandon,
                                           ds__cpu_graph_destroy,
                                           ds__cpu_exec_destroy,
                                           ds__cpu_passed,
                                           ds__cpu_memory_release,
                                           ds__cpu_space_release,
                                           ds__cpu_share_release,
                                           ds__cpu_share_close,
#define DS__MEMBER(entry, parameters, arguments) ds__cpu_##entry,
                                           DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

DSDEF ds_result(ds_cpu_get_stats)(ds_cpu_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    if (atomic_load(&ds__g.state) == DS__COLD && !ds__tls.in_callback && out)
        return DS_OK;
    ds_result r = ds__enter("ds_cpu_get_stats");
    if (r < 0)
        return r;
    if (!out)
        return ds__fail(DS_ERR_INVALID_VALUE, "out is NULL");
    out->operations = atomic_load(&ds__cpu.other_operations);
    for (int i = 0; i < ds__cpu.workers; i++)
        out->operations += atomic_load(&ds__cpu.worker[i].operations);
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

DSDEF ds_result(ds_cpu_clock)(int64_t *out_ns) {
    if (out_ns)
        *out_ns = 0;
    ds_result r = ds__enter("ds_cpu_clock");
    if (r < 0)
        return r;
    if (!out_ns)
        return ds__fail(DS_ERR_INVALID_VALUE, "out_ns is NULL");
    if (!ds__cpu.fabric)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the CPU driver has no virtual clock; give ds_init a fabric");
    *out_ns = atomic_load(&ds__cpu.clock);
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
