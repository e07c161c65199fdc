/* cpu/types.h - types, constants and global state of the CPU driver.

   Defines the stream (ds__cpu_stream), the event, the device, the worker, the job and the
   failure. Also holds the constants and the state of the whole driver, `ds__cpu`. Every other
   room of cpu/ except options.h includes this room.

   Policy:
   1. A stream is a queue. At most one thread at a time takes operations from it.
   2. The operations of a stream are numbered. `submitted` is the last number enqueued, `done`
      the last number passed.
   3. A stream and a number form a token. It means all work of the stream up to the number. An
      event keeps a token, a wait operation names one, and a host thread sleeps on one.
   4. Stream objects are recycled, but not freed before shutdown, and their numbers continue. A
      token therefore stays valid.
   5. A stream that waits for a token is parked on the stream of the token. One that waits for a
      word of memory is parked in the list `value_waits`. Neither holds a thread.
   6. A stream whose next operation is a host function goes to a thread for host functions, from
      the submitting thread if the stream is idle. Workers never run host functions.
   7. After a worker has emptied a stream, it polls the stream for some microseconds (state
      POLLED). A stream of small operations then costs no wake-up. Before a long operation, the
      worker releases all streams that it polls.
   8. A stream that becomes ready wakes a worker only if no worker of its group is about to look at
      the ready streams (`lookers`).
   9. The monitor thread ticks every millisecond while a worker polls or runs short operations,
      and while host functions are queued. It adds a thread for host functions if all of them are
      stuck. It also takes polled streams from a worker whose operation lasts longer than
      expected. Workers in long operations have no polled streams.

   Invariants: the thread that sets a stream's state to RUNNING owns the stream. Only the owner
   takes operations from the queue and writes `done`. `done` never decreases. A proxy and the
   gate of an executable only count: their state is COUNTS, and they have no operations.
   Locks: the order is a device's legacy lock, a stream's put lock, the device's lock,
   `block_lock`, `raw_lock`. A put lock also comes before `wait_lock`, before the pool's lock
   (`ds__cpu.lock`) and before the lock of a group of workers. The core's capture lock and the
   mutex of the shared-memory registries come before an event's lock, `object_lock` before
   `raw_lock`. Exception: the creation of a legacy stream takes put locks under the device's lock,
   before another thread can use that stream.
   Threads: caller's threads, workers, threads for host functions, one monitor, one watcher for
   interprocess events, and one poller for words of memory. The options at the head of `ds__cpu`
   are set before the first of these threads starts. */
#ifndef DS__CPU_TYPES_H
#define DS__CPU_TYPES_H

#include "../base/driver.h"
#include "../api/cpu.h"
#include "../base/operation.h"
#include "../base/activity.h"
#include "../base/ipc_registry.h"
#include "affinity.h"

enum {
    DS__CPU_FREE,
    DS__CPU_IDLE,
    DS__CPU_READY,
    DS__CPU_RUNNING,
    DS__CPU_POLLED,
    DS__CPU_PARKED,
    DS__CPU_AT_HOST,
    DS__CPU_COUNTS /* without operations: only numbers to wait for */
};

enum {
    /* priorities -5 .. 0, the range that recent GPUs are believed to report */
    DS__CPU_LEVELS = 6,
    /* bytes of a block of queued operations; a block holds the largest operation */
    DS__CPU_BLOCK_BYTES = 8192,
    DS__CPU_SLAB_BLOCKS = 32,
    DS__CPU_POLL_SLOTS = 16, /* the most streams that a worker polls */
    DS__CPU_ASIDE_SLOTS = 8, /* the most streams that a worker sets aside */
    /* default of `spin_ns` */
    DS__CPU_SPIN_NS = 20000,
    /* a thread for host functions that has a processor takes a stream within this time */
    DS__CPU_HOST_TAKE_NS = 1000,
    /* before an operation that is expected to take longer, a worker gives up its streams */
    DS__CPU_LONG_NS = 5000,
    DS__CPU_MAX_WORKERS = 256,
    DS__CPU_GROUPS = 16,       /* the most groups of workers */
    DS__CPU_GROUP_WORKERS = 8, /* the most workers of a group, unless there are too many */
    DS__CPU_ROAM = 64,         /* of so many looks, a worker begins one with another group */
    DS__CPU_NOTICE = 16,   /* operations after which a worker notices urgent streams of others */
    DS__CPU_CLOSURES = 64, /* of so many closures in a row, one is timed */
    /* a kernel is split among awake threads if its rest is expected to take longer */
    DS__CPU_SPLIT_NS = 2000,
    /* shortest piece, if each thread has two: taking one moves two cache lines between cores */
    DS__CPU_PIECE_NS = 2000,
    DS__CPU_CALL_NS = 40000, /* sleeping workers are woken if the rest takes longer than this */
    /* time of the first part of a kernel that has run before; the part is timed */
    DS__CPU_FIRST_NS = 20000,
    DS__CPU_NESTED = 4, /* streams that a thread runs inside of one another */
    /* operations after which a worker looks at the other ready streams */
    DS__CPU_BATCH = 256,
    DS__CPU_TICK_NS = 1000000,
    /* how long a waiting thread sleeps at first before it drives requests of other libraries again
     */
    DS__CPU_DRIVE_NAP_NS = 100000,
    DS__CPU_POLLER_NAP_NS = 20000,   /* its shortest interval; the longest is DS__CPU_TICK_NS */
    DS__CPU_PROGRAM_NS = 1000000000, /* longest interval of looks for threads of the program */
    /* operations that a look at a streaming producer should find */
    DS__CPU_STREAM_BATCH = 256,
    DS__CPU_STREAM_NS = 10000, /* longest pause between such looks */
    /* virtual clock: */
    DS__CPU_HOST_NS = 30000000, /* the clock stands for at most this long during host functions */
    DS__CPU_ASK_NS = 200000,    /* a query waits for this long, up to DS__CPU_ASKS times */
    DS__CPU_ASKS = 100,
    DS__CPU_STALL_TICKS = 200, /* after so many ticks without a submission, all work runs */
    DS__CPU_HELD = 1 << 20     /* all work runs if more operations than this are held back */
};

/* What the usual paths do not do (ds__cpu.modes). */
enum {
    DS__CPU_ORDERED = 1,     /* a seed, a fabric or inline mode: nothing runs at once */
    DS__CPU_VIRTUAL = 2,     /* a fabric: operations take virtual time */
    DS__CPU_NOTED = 4,       /* a recording of activity may have notes */
    DS__CPU_UNREACHABLE = 8, /* device memory is open only while an operation uses it */
    DS__CPU_SLOWLY = DS__CPU_VIRTUAL | DS__CPU_NOTED | DS__CPU_UNREACHABLE
};

/* Kinds of operations of this driver. */
enum {
    /* in executables; u.wait: a place in another lane, or the number of a record or wait */
    DS__CPU_OP_LANE_WAIT = DS__OP_OWN,
    DS__CPU_OP_NODE_RECORD,
    DS__CPU_OP_NODE_WAIT,
    DS__CPU_OP_SHARED_RECORD, /* a record for other processes; u.own.ptr: the lane */
    DS__CPU_OP_CONDITION,     /* in executables; u.own.ptr: the condition */
    DS__CPU_OP_FREE,          /* u.own: memory that the stream frees, and its device */
    DS__CPU_OP_CLOCK,         /* u.own.number: the virtual time of the next submission */
    DS__CPU_OP_NOTE           /* u.note: of the next operation */
};

/* copies and fills of at least this size are split among threads that are awake */
#define DS__CPU_SPLIT_BYTES ((size_t)64 << 10)
/* for copies and fills of at least this size, sleeping workers are woken */
#define DS__CPU_CALL_BYTES ((size_t)2 << 20)
/* the largest piece, but for stores past the caches; smaller operations have four pieces */
#define DS__CPU_PIECE_BYTES ((size_t)128 << 10)
/* the largest copy or fill that the caller runs itself on an idle stream (inline_bytes) */
#define DS__CPU_INLINE_BYTES ((size_t)16384)
/* the smallest and the largest piece of a copy or fill with stores past the caches */
#define DS__CPU_STREAM_LEAST ((size_t)256 << 10)
#define DS__CPU_STREAM_PIECE ((size_t)1 << 20)
/* memory of a dry device from this size on is only reserved */
#define DS__CPU_DRY_BYTES ((size_t)1 << 20)

typedef struct ds__cpu_stream ds__cpu_stream;
typedef struct ds__cpu_progress ds__cpu_progress;
typedef struct ds__cpu_proxy ds__cpu_proxy;

/* A block of queue memory. Operations follow one another; after a DS__OP_JUMP they continue in
   `next`. */
typedef struct ds__cpu_block {
    struct ds__cpu_block *next;
    uint64_t pad[7]; /* a small launch fills one cache line */
    char data[DS__CPU_BLOCK_BYTES - 64];
} ds__cpu_block;

/* Code and text of one failure; kept until shutdown, because streams and devices refer to it. */
typedef struct ds__cpu_failure {
    struct ds__cpu_failure *next;
    ds_result code;
    char text[384];
} ds__cpu_failure;

/* Numbers of a stream that stay failed after a reset. */
typedef struct ds__cpu_past {
    const struct ds__cpu_past *next;
    ds__cpu_failure *failure;
    uint64_t from;
    _Atomic uint64_t upto;
} ds__cpu_past;

/* A thread or a stream that waits for a token, in the list of the token's stream. */
typedef struct ds__cpu_waiter {
    struct ds__cpu_waiter *next;
    uint64_t upto;
    ds__cpu_stream *parked; /* of a stream: the stream */
    _Atomic uint32_t *flag; /* of a host thread: set to 1, then woken */
} ds__cpu_waiter;

/* An operation that runs on several threads. */
typedef struct ds__cpu_job {
    void (*piece_fn)(struct ds__cpu_job *job, size_t piece);
    size_t pieces;
    _Atomic size_t taken;
    _Atomic size_t front;
    _Atomic size_t back;
    /* threads in the job other than the owner, which sleeps on it; changes under the pool's lock */
    _Atomic uint32_t users;
    int owner_sleeps;       /* under the pool's lock */
    ds__cpu_stream *stream; /* the stream of the operation */
    const ds__op *op;
    const void *args;
    size_t first;       /* kernel: the first item */
    size_t piece_items; /* items of a piece */
    _Atomic int status;
    struct ds__cpu_job *prev_job;
    struct ds__cpu_job *next_job;
} ds__cpu_job;

/* Each cache line is for one group of writers: producers (first line), producers while the worker
   polls (second), threads that take or give up the stream while producers look (third), the worker
   while waiting hosts poll (fourth), rare changes (fifth), threads that park or wake streams (the
   rest). */
struct ds__cpu_stream {
    ds__spinlock put_lock;
    uint32_t tail_at;
    ds__cpu_block *tail;
    /* of a blocking stream: the number of the legacy stream for which it waits already */
    uint64_t legacy_seen;
    /* the number of this stream for which the legacy stream waits already */
    uint64_t seen_by_legacy;
    _Atomic(ds__cpu_block *) spare; /* a block from the consumer back to the producer */
    char pad0[64 - 40];

    _Atomic uint64_t submitted;
    char pad1[64 - 8];

    _Atomic uint32_t state;
    char pad4[64 - 4];

    _Atomic uint64_t done;
    _Atomic uint32_t waiting; /* 1: the list of waiters is not empty */
    uint32_t head_at;
    ds__cpu_block *head;
    char pad2[64 - 24];

    _Atomic(ds__cpu_failure *) failure;
    _Atomic uint64_t failed_from; /* this number and all later ones have failed */
    _Atomic int closing;          /* destroyed; recycled when drained */
    int device;
    int kind;
    int had_failure;
    _Atomic int level; /* a lane takes that of the launching stream */
    unsigned flags;
    int floating; /* unwrapped, without an owner */
    /* 1: it captures; of a legacy stream: number of blocking streams of its device that capture */
    _Atomic int watch;
    int share; /* threads that may run one of its operations at once; 0: all. As for `level` */
    _Atomic int group; /* its workers take the stream first (cpu/ready.h) */
    char pad3[64 - 56];

    ds__spinlock wait_lock;
    ds__cpu_waiter *waiters;
    ds__cpu_waiter as_waiter;    /* used while the stream is parked */
    _Atomic uint32_t park_count; /* odd while park_on and park_upto are written */
    _Atomic(ds__cpu_stream *) park_on;
    _Atomic uint64_t park_upto;
    _Atomic(ds__cpu_job *) job;
    /* 0, or the group + 1 in whose list of `queued_level` the stream is; under the group's lock */
    _Atomic int queued;
    int queued_level;
    _Atomic(ds__cpu_past *) past; /* ranges that failed before resets, the latest first */
    ds__cpu_past first_past;
    ds__cpu_stream *prev;     /* ready list of a level */
    ds__cpu_stream *next;     /* ready list of a level, or list for host functions, or free list */
    uint64_t thread;          /* of a per-thread stream: the number of its thread */
    ds__cpu_stream *all_prev; /* all streams of the device */
    ds__cpu_stream *all_next; /* all streams of the device */
    /* the next four: under the core's capture lock */
    ds__capture *capture;
    uint32_t *deps; /* nodes that the next node will depend on */
    uint32_t dep_count;
    ds__cpu_stream *next_member;
    struct ds__cpu_launch *launch; /* of a lane of an executable: the launch that it runs */
    uint64_t lane_base; /* of such a lane: its number before the first operation of that launch */
    /* the launch of several lanes that the stream has started; changes under the pool's lock */
    _Atomic(struct ds__cpu_launch *) started;
    /* lanes that show its progress to other processes; under the registries' mutex */
    ds__cpu_progress *shared;
    struct ds__cpu_virtual *virt;  /* NULL: no virtual clock, or a proxy */
    const ds_value_op *value_wait; /* while the stream is parked in `value_waits` */
    /* of its creation or wrapping, for records of activity and the check layer; work of a former
       owner may read it while the stream gets another one */
    _Atomic uint64_t handle;
    ds__activity_note note; /* of the next operation; the owner of the stream has it */
    /* the last operation that was enqueued with a note, except records of events */
    _Atomic uint64_t last_id;
};

/* A token: all work of the stream up to the number. */
typedef struct ds__cpu_token {
    ds__cpu_stream *stream;
    uint64_t upto;
} ds__cpu_token;

/* The virtual time of a stream. */
typedef struct ds__cpu_virtual {
    /* when the next operation is ready, as far as known; the owner of the stream writes it */
    int64_t time;
    _Atomic int64_t end; /* when operation `done` ended */
    /* the clock at the last submission; under the put lock */
    int64_t put;
    uint64_t born; /* number of streams that were created before */
    /* 1: the first of the two legs of the next operation is over */
    int leg;
} ds__cpu_virtual;

typedef struct ds__cpu_device {
    ds__spinlock lock;       /* of the list */
    ds__cpu_stream *streams; /* the blocking streams first */
    ds__cpu_stream *last_stream;
    ds__cpu_stream *legacy;
    /* blocking streams that capture; under the core's capture lock */
    int capturing;
    /* 1: the legacy stream exists, and blocking streams must be ordered with it */
    _Atomic int legacy_used;
    /* orders the legacy stream's submissions against those of blocking streams */
    ds__spinlock legacy_lock;
    _Atomic(ds__cpu_failure *) failure;
    size_t limit;
    _Atomic size_t used;
    _Atomic size_t async_used; /* bytes of `used` that came from ds__cpu_async_alloc */
} ds__cpu_device;

typedef struct ds__cpu_stamp {
    _Atomic int refs;
    _Atomic uint64_t ns;
    struct ds__cpu_stamp *next;
} ds__cpu_stamp;

typedef struct ds__cpu_event {
    ds__spinlock lock;
    unsigned flags;
    ds__cpu_stream *stream; /* NULL: unrecorded */
    uint64_t upto;
    ds__cpu_stamp *stamp;
    uint64_t cause;   /* last_id of the stream at the record */
    uint64_t capture; /* not 0: recorded in the capture with this number */
    uint32_t *deps;   /* recorded in a capture: the nodes of its graph that the event stands for */
    uint32_t dep_count;
    ds__registry *registry; /* of an event that processes share: the registry with its record */
    uint64_t word;          /* the record from which `stream` and `upto` were taken */
    uint32_t mark;          /* the event's slot in the registry */
    uint32_t generation;    /* of the slot */
    int imported;
    struct ds__cpu_event *next; /* free list */
} ds__cpu_event;

/* The ready streams of a group of workers (cpu/ready.h). */
typedef struct ds__cpu_group {
    ds__spinlock lock; /* of the lists */
    ds__cpu_stream *head[DS__CPU_LEVELS];
    ds__cpu_stream *tail[DS__CPU_LEVELS];
    char pad0[64];
    _Atomic uint32_t mask; /* bit: a level with ready streams; lowest bit most urgent */
    _Atomic int lookers;   /* workers that will look at ready streams within microseconds */
    char pad1[64];
} ds__cpu_group;

typedef struct ds__cpu_worker {
    ds__os_thread thread;
    int group;
    int roams;      /* 1: the next look begins with another group, because a stream gave way */
    uint32_t looks; /* for a ready stream */
    uint32_t turns; /* looks that began with another group */
    int polled_count;
    _Atomic(ds__cpu_stream *) polled[DS__CPU_POLL_SLOTS];
    _Atomic uint32_t beat; /* odd while an operation runs */
    _Atomic(ds__cpu_stream *) running;
    uint32_t last_beat; /* `beat` at the monitor's last tick */
    uint32_t streak;    /* streaming: operations found in short order */
    uint32_t misses;    /* streaming: looks without work since then */
    uint32_t delay;     /* streaming: pauses between looks */
    _Atomic uint64_t operations;
    int is_long;
    /* streams that the worker owns between two parts of their work (ds__cpu_set_aside) */
    _Atomic(ds__cpu_stream *) aside[DS__CPU_ASIDE_SLOTS];
    uint32_t aside_next; /* the slot that is given up next */
    int has_aside;
    uint32_t closures; /* run so far */
    int long_closures; /* 1: the last one that was timed was long */
} ds__cpu_worker;

static struct {
    int devices;
    int workers;
    size_t memory; /* bytes that this process may use, from ds__os_memory, which reads files */
    int processors;
    int is_inline;
    uint64_t clock_ns;      /* time between two reads of the clock in a row */
    uint32_t stream_pauses; /* instructions "pause" in DS__CPU_STREAM_NS */
    int is_lax;
    int spin_limit;
    uint64_t seed;
    unsigned char *peers;
    /* DS__CPU_ORDERED ...; only DS__CPU_NOTED changes after the start */
    _Atomic unsigned modes;
    const ds_cpu_fabric *fabric; /* the kept copy, with defaults in the place of zeros */
    ds__cpu_device *device;
    ds__cpu_worker *worker;
    /* time that a worker or a thread for host functions polls before it sleeps; a waiting thread
       and the poller spin twice as long. 0: no thread spins. ds_cpu_set_spin changes it */
    _Atomic uint64_t spin_ns;
    int started;
    int workers_started;
    int groups;      /* of workers */
    int nodes;       /* of memory, with workers */
    int node_groups; /* groups of a node: those from node_groups * node on */
    char pad3[64];   /* the fields above are only read after the start, but for `spin_ns` */
    ds__cpu_group ready[DS__CPU_GROUPS];
    ds__spinlock lock; /* host list, jobs, counts of threads */
    ds__cpu_stream *host_head;
    ds__cpu_stream *host_tail;
    ds__cpu_job *jobs;
    uint64_t random; /* with a seed; under the lock of the only group */
    char pad0[64];
    _Atomic int job_count;
    _Atomic int parked; /* workers asleep */
    _Atomic int spinners;
    _Atomic uint32_t wake_word; /* workers sleep on it */
    _Atomic int quit;
    char pad1[64];
    _Atomic int hurry;  /* host threads that wait; if there is one, workers make no pauses */
    _Atomic int asleep; /* waiting host threads that sleep, and so join no job */
    _Atomic int waking; /* waiting host threads whose flag is set, but that do not run yet */
    char pad2[64];
    /* host functions */
    _Atomic int host_queued;   /* streams in the list */
    _Atomic int host_spinning; /* idle threads that look at `host_queued` */
    _Atomic int host_at;       /* the processor on which such a thread began to spin or to sleep */
    _Atomic int caller_at;     /* that of the latest thread that woke such a thread or awaits it */
    char pad4[64];
    _Atomic int host_threads;
    int host_idle;
    uint64_t host_progress; /* counts host functions taken; for the monitor */
    _Atomic uint32_t host_word;
    ds__os_thread *host_thread;
    int host_room;
    /* monitor */
    ds__os_thread monitor;
    int monitor_started;
    _Atomic uint32_t monitor_word; /* 0: asleep or about to be */
    /* memory */
    ds__spinlock block_lock;
    ds__cpu_block *free_blocks;
    ds__spinlock raw_lock;
    void **raw; /* all memory of the pools below */
    _Atomic size_t queue_bytes;
    ds__spinlock object_lock;
    ds__cpu_stream *free_streams;
    _Atomic int stream_count;
    ds__cpu_event *free_events;
    ds__cpu_stamp *free_stamps;
    ds__cpu_stream *free_timelines;
    ds__cpu_failure *failures;
    /* for events that processes share; under the registries' mutex */
    ds__cpu_progress *progress;
    ds__cpu_proxy *proxies;
    ds__cpu_proxy *watched;
    ds__os_thread watcher;
    int watcher_started;
    _Atomic uint32_t watch_word; /* the watcher sleeps on it */
    _Atomic int watch_quit;
    struct ds__cpu_share *shares; /* memory that other processes can open */
    /* streams that wait for words of memory, and the thread that looks at these words */
    ds__spinlock value_lock;
    ds__cpu_waiter *value_waits;
    _Atomic int value_count;
    /* 1: the one worker under a virtual clock must look at the words of waiting streams */
    _Atomic int value_look;
    _Atomic int poller_started;
    ds__os_thread poller;
    _Atomic uint32_t poller_word; /* the poller sleeps on it; raised for each parked stream */
    _Atomic int poller_sleeps;    /* 1: the poller may sleep for long */
    _Atomic int poller_quit;
    /* the virtual clock; only the worker uses the first four */
    int64_t *link_free;   /* until when each link is held */
    int64_t *engine_free; /* until when each engine is held */
    int64_t *memory_free; /* until when each device's memory is held */
    int64_t latest;       /* the latest end of an operation */
    _Atomic int64_t clock;
    _Atomic int wanted;      /* host threads that wait for work that is not done */
    _Atomic int run_all;     /* 1: work runs although no host thread waits */
    _Atomic int host_busy;   /* streams at a thread for host functions */
    int host_stuck;          /* streams among these for which the clock does not stand any more */
    _Atomic uint32_t rests;  /* counts how often nothing more could run */
    _Atomic uint64_t born;   /* streams created */
    _Atomic uint64_t puts;   /* operations enqueued */
    _Atomic uint64_t passed; /* operations passed by streams */
    _Atomic uint64_t staged;
    _Atomic uint64_t inlined;
    _Atomic uint64_t helped;
    _Atomic uint64_t other_operations;
} ds__cpu;

static inline uint64_t ds__cpu_handle(const ds__cpu_stream *s) {
    return atomic_load_explicit(&s->handle, memory_order_relaxed);
}

/* Returns the time that a worker polls before it sleeps; 0: no thread spins. */
static inline uint64_t ds__cpu_spin(void) {
    return atomic_load_explicit(&ds__cpu.spin_ns, memory_order_relaxed);
}

static inline unsigned ds__cpu_modes(unsigned modes) {
    return atomic_load_explicit(&ds__cpu.modes, memory_order_relaxed) & modes;
}

/* Returns 1 if the program explores orders of operations (a seed), or the times of links between
   devices (a fabric). */
static inline int ds__cpu_explores(void) {
    return ds__cpu.seed || ds__cpu.fabric;
}

/* Returns 1 if operations have no effect (DS_CPU_DRY). */
static inline int ds__cpu_dry_run(void) {
    return ds__cpu.fabric && (ds__cpu.fabric->flags & DS_CPU_DRY);
}

static const ds__driver ds__cpu_driver;
static void ds__cpu_push_ready(ds__cpu_stream *s);
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto);

/* Functions that rooms call although a later room defines them. */

/* cpu/activity.h */
static ds_result ds__cpu_put_noted(ds__cpu_stream *s, const ds__op *op);
static int ds__cpu_run_note(ds__cpu_stream *s, const ds__op *note, uint64_t number, uint64_t *time);
static void ds__cpu_noted_begin(ds__cpu_stream *s, const ds__op *op);
static void ds__cpu_noted_end(ds__cpu_stream *s, const ds__op *op, uint64_t number);
static int ds__cpu_at_once_noted(ds__cpu_stream *s, const ds__op *op);
static void ds__cpu_note_write(const ds__cpu_stream *s, const ds__op *op, ds__activity_note *note,
                               const ds__cpu_failure *f);

/* cpu/capture.h */
static inline int ds__cpu_watched(const ds__cpu_stream *s);

/* cpu/capture_op.h */
static ds_result ds__cpu_captured(uint64_t capture, int spoils, const char *rule);
static void ds__cpu_destroy_captured(ds__cpu_stream *s);
static ds_result ds__cpu_asked(const ds__cpu_stream *s, const char *rule);
static int ds__cpu_submit_captured(ds__cpu_stream *s, const ds__op *op, ds_result *out);
static int ds__cpu_fork_event(ds__cpu_stream *s, ds__cpu_event *e, ds_result *out);
static int ds__cpu_fork_stream(ds__cpu_stream *s, ds__cpu_stream *other, ds_result *out);
static ds_result ds__cpu_unsafe(const char *rule);

/* cpu/clock.h */
static ds_result ds__cpu_put_clock(ds__cpu_stream *s);

/* cpu/event.h */
static ds_result ds__cpu_submit_record(ds__cpu_stream *s, const ds__op *op);

/* cpu/graph_launch.h */
static uint64_t ds__cpu_launch_id(const ds__cpu_stream *s, uint64_t *out_stream);
static int ds__cpu_launch_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                               int who);
static int ds__cpu_condition_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                                  uint64_t number, int who);
static int ds__cpu_lane_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                             uint64_t number, int failed, int who);
static int ds__cpu_launch_help(ds__cpu_stream *s, uint64_t upto);
static ds_result ds__cpu_submit_launch(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_upload(const ds__op *op);

/* cpu/memory.h */
static void ds__cpu_async_over(const ds__op *op);

/* cpu/run.h */
static ds__op *ds__cpu_head(ds__cpu_stream *s);

/* cpu/scheduler.h */
static void ds__cpu_wake_worker(void);
static void ds__cpu_wake_monitor(void);

/* cpu/shared_event.h */
static ds_result ds__cpu_progress_for(ds__cpu_stream *s, const ds__cpu_event *e,
                                      ds__cpu_progress **out);
static void ds__cpu_progress_unused(const ds__cpu_progress *l);
static void ds__cpu_progress_pass(ds__cpu_progress *l, uint64_t number, int failed);

/* cpu/stream.h */
static void ds__cpu_recycle(ds__cpu_stream *s);

/* cpu/watcher.h */
static ds_result ds__cpu_event_share(ds__cpu_event *e);
static void ds__cpu_event_unshare(ds__cpu_event *e);
static void ds__cpu_event_publish(ds__cpu_event *e, ds__cpu_stream *s, uint64_t upto);
static ds_result ds__cpu_event_foreign(ds__cpu_event *e, int wait);
static ds_result ds__cpu_event_watch(const ds__cpu_event *e, ds__cpu_stream *on, uint64_t upto);

/* cpu/worker.h */
static void *ds__cpu_host_main(void *unused);

#endif
