/* check/types.h - state of the check layer.

   Defines timelines with their clocks (ds__race_line), accesses (ds__race_range, ds__race_record),
   known memory (ds__race_memory), and the state of the layer (ds__race).

   A timeline is a stream or a thread of the host; by default, all threads together are one
   timeline. `n` numbers the operations of a timeline from 1. The clock of a timeline holds, for
   each other timeline, the number of the last operation that is ordered before its next operation.
   So an operation of number m on timeline x is ordered before the next operation of timeline y if
   and only if the clock of y has at least m for x (ds__race_knows).

   Invariants: a clock with several users does not change. A timeline that knows operation m of
   another one knows everything that operation m knew, because a whole clock is taken over, and
   every change of a clock is followed by a new operation number.
   Locks: ds__race.lock guards all state. The layer calls no driver under it and takes no other
   lock; the program's functions for reports and for the log run under it.
   Threads: any. */
#ifndef DS__CHECK_TYPES_H
#define DS__CHECK_TYPES_H

#include "../api/race.h"
#include "../base/driver.h"
#include "../base/error.h"
#include "../base/graph_body.h"
#include "../base/observe.h"
#include "../base/pin.h"
#include "../base/state.h"
#include "../base/utf8.h"
#include "../core/internal.h"

enum {
    DS__RACE_LINES = 65535,      /* timelines at most */
    DS__RACE_GONE = 65535,       /* in place of a timeline whose number is in use again */
    DS__RACE_ENDED_LINES = 32,   /* ended timelines before their numbers are looked at */
    DS__RACE_DEAD = 16384,       /* freed ranges that are remembered */
    DS__RACE_EDGES = 1 << 16,    /* waits that are remembered */
    DS__RACE_SWEEP = 4096,       /* new records between two sweeps */
    DS__RACE_MEMORY = 256 << 20, /* bytes of the layer, by default */
    DS__RACE_MEMORY_LEAST = 4,   /* MiB: the ring of waits takes 2 MiB */
    DS__RACE_POSITIONS = 256,    /* rows of an operand of a collective, beside its innermost ones */
    DS__RACE_TRACED = 16384,     /* operations whose ids in a recording are kept */
    DS__RACE_FOUND = 256,        /* places that are found again at once */
    DS__RACE_HITS = 4096         /* the same for memory */
};

/* How a range is accessed: bits. */
enum {
    DS__RACE_READ = 1,
    DS__RACE_WRITE = 2,
    DS__RACE_ATOMIC = 4,
    DS__RACE_INEXACT = 8, /* the whole block, for lack of an extent */
    DS__RACE_ALLOC = 16,  /* the allocation of the block, which counts as a write */
    DS__RACE_FORMER = 32, /* by the former owner of the memory */
    DS__RACE_MAYBE = 64   /* may not happen, or not to all bytes of the range */
};

typedef struct ds__race_clock {
    uint32_t users;
    uint32_t count;
    uint64_t at[]; /* by timeline */
} ds__race_clock;

enum { DS__RACE_FREE, DS__RACE_STREAM, DS__RACE_HOST, DS__RACE_ENDED };

/* A host function that has not run yet. */
typedef struct ds__race_task {
    struct ds__race_task *next;
    const void *user;
    const void *exec; /* of a node: the driver's executable; else NULL */
    uint64_t n;
    ds__race_clock *clock;
    uint32_t line;
    uint32_t place;
    int running;
} ds__race_task;

typedef struct ds__race_line {
    ds__race_clock *clock; /* of other timelines; NULL: zeros */
    uint64_t n;            /* operations so far */
    uint64_t host_n;       /* stream: operations of `host` that it knows */
    uint64_t vague;        /* from this operation on, the order is not known; 0: always known */
    uint64_t queue;        /* key of the driver's queue, for all wrappers of it */
    uint64_t handle;       /* of the stream; of a wrapped one, the first */
    uint64_t number;       /* of the thread, or of the stream (ds_stream_get_id) */
    uint32_t index;
    uint32_t host; /* stream: the host timeline that has enqueued last */
    uint32_t wrappers;
    int device;
    int backend;
    uint8_t kind;     /* DS__RACE_STREAM ... */
    uint8_t blocking; /* ordered with the legacy stream */
    uint8_t legacy;
    uint8_t per_thread;
    uint8_t is_host;
    uint8_t captures; /* when the stream was asked last */
    char name[64];    /* label of the stream, or "" */
} ds__race_line;

/* Rows of memory; one row: pitch is not used. */
typedef struct ds__race_range {
    uintptr_t at;
    size_t width;
    size_t pitch;
    size_t rows;
} ds__race_range;

/* An access that a later one may conflict with. */
typedef struct ds__race_record {
    ds__race_range range;
    uint64_t n;
    uint32_t line;
    uint32_t place;
    uint32_t thread;
    uint8_t how; /* DS__RACE_READ ... */
    uint8_t vague;
} ds__race_record;

/* A use of a block by a stream that the program has recorded. */
typedef struct ds__race_use {
    uint32_t line;
    uint32_t open; /* 1: until the free */
    /* by timeline, the last operation before the use ends; NULL: none */
    ds__race_clock *clock;
} ds__race_use;

/* Accesses of memory. */
typedef struct ds__race_list {
    ds__race_record *at;
    size_t count;
    size_t room;
} ds__race_list;

/* Known memory: a block of the allocator, or an allocation of a driver or of the program. Each
   access reads the first 64 bytes. */
typedef struct ds__race_memory {
    uintptr_t base;
    size_t size;
    ds__race_list list; /* accesses; with buckets: those that are not within one bucket */
    uint8_t dead;       /* freed */
    uint8_t ignored;    /* for lack of memory */
    uint8_t of_graph;   /* allocated in a capture: graphs own it */
    uint8_t declared;   /* by ds_check_declare_memory */
    uint8_t block;      /* of the allocator */
    uint8_t unlisted;   /* not in a map any more; watchers keep it */
    uint8_t shift;      /* a bucket has 1 << shift bytes */
    uint32_t buckets;   /* 0, or a power of two */
    uint32_t skips;     /* of ds_check_ignore */
    ds__race_list *bucket;
    ds__race_range *skip;
    size_t skip_room;
    size_t asked;    /* bytes that the program has requested; 0: size */
    uint64_t serial; /* unique */
    ds__race_use *use;
    size_t uses;
    size_t use_room;
    struct ds__race_memory *older; /* list of freed ranges */
    struct ds__race_memory *newer;
    uint32_t line;     /* timeline of the allocation, or DS__RACE_GONE */
    uint32_t made;     /* place of the allocation */
    uint32_t freed;    /* place of the free */
    uint32_t watchers; /* graphs that look at it */
    char label[48];
} ds__race_memory;

/* Memory by address, in pieces that are sorted. A search reads only addresses. */
typedef struct ds__race_piece {
    size_t count;
    uintptr_t base[128]; /* of at[i] */
    ds__race_memory *at[128];
} ds__race_piece;

typedef struct ds__race_leaf {
    uintptr_t first; /* base[0] of the piece */
    ds__race_piece *piece;
} ds__race_leaf;

typedef struct ds__race_map {
    ds__race_leaf *leaf;
    size_t count;
    size_t room;
} ds__race_map;

/* Values by key; a key is never 0. */
typedef struct ds__race_entry {
    uint64_t key;
    void *value;
} ds__race_entry;

typedef struct ds__race_table {
    ds__race_entry *entry;
    size_t size; /* a power of two, or 0 */
    size_t used;
} ds__race_table;

/* A call site with the name of the operation. */
typedef struct ds__race_place {
    const char *operation; /* "ds_copy", or "kernel add", the layer's own copy */
    const char *file;
    int line;
} ds__race_place;

/* A place that was found last. source: the handle of a kernel, or the name of a function. */
typedef struct ds__race_found {
    uint64_t source;
    const char *file;
    uint32_t line;
    uint32_t place;
} ds__race_found;

/* Memory that was found last; version: of the maps. */
typedef struct ds__race_hit {
    uintptr_t address;
    uint64_t version;
    ds__race_memory *memory;
} ds__race_hit;

/* A wait: operation to_n of one timeline is ordered after operation from_n of another one. */
typedef struct ds__race_edge {
    uint32_t from;
    uint32_t to;
    uint64_t from_n;
    uint64_t to_n;
    uint32_t from_place; /* of the record of an event; 0: none */
    uint32_t to_place;
} ds__race_edge;

/* A moment of a timeline: the last record of an event, a release, or a write of a word. */
typedef struct ds__race_event {
    ds__race_clock *clock;
    uint64_t n;
    uint32_t line;
    uint32_t place;
} ds__race_event;

/* A token of a hand-over between threads. */
typedef struct ds__race_token {
    ds__race_event *release; /* the last one of each timeline */
    size_t count;
    size_t room;
} ds__race_token;

/* A write of a word. */
typedef struct ds__race_write {
    ds__race_event at;
    uint64_t value;
} ds__race_write;

/* The last writes of a word, in the order of the calls. */
typedef struct ds__race_word {
    size_t count;
    ds__race_write write[16];
} ds__race_word;

/* Extents of ds_check_set_extents for a captured launch. */
typedef struct ds__race_extents {
    size_t count;
    ds_extent extent[];
} ds__race_extents;

/* An access of a captured operation. */
typedef struct ds__race_captured_access {
    ds__race_range range;
    unsigned how;
} ds__race_captured_access;

/* A captured operation between ranks. */
typedef struct ds__race_captured {
    char fn[64]; /* the collective */
    size_t count;
    size_t room;
    ds__race_captured_access access[];
} ds__race_captured;

/* The last collective on a group of streams. */
typedef struct ds__race_group {
    uint64_t n; /* of the host timeline */
    uint32_t line;
    uint32_t place;
    uint32_t thread;
} ds__race_group;

/* The id of an operation in a recording of activity. */
typedef struct ds__race_traced {
    uint64_t n;
    uint64_t id;
    uint32_t line;
} ds__race_traced;

/* The operation whose accesses are checked. */
typedef struct ds__race_now {
    const ds__race_clock *clock;
    uint64_t n;
    uint32_t line;
    uint32_t place;
    uint32_t thread;
    int vague;
    int late;     /* a host function: later operations may be known already */
    int of_graph; /* may use memory that graphs own */
    int pageable; /* freed allocations do not count: malloc may have their addresses now */
} ds__race_now;

static struct {
    ds__mutex lock;
    _Atomic int on;
    const ds__driver *next[DS_BACKEND_COUNT];
    ds__driver table[DS_BACKEND_COUNT];

    /* options */
    int threads;
    int possible;
    int aborts;
    int exit_code;
    int json;
    int quiet;
    FILE *output; /* NULL: standard error */
    size_t most;
    char **pattern; /* suppressed keys */
    size_t patterns;
    size_t pattern_room;
    ds_hazard_fn report_fn;
    void *report_user;

    ds__race_line **line; /* by index; index 0 is not used */
    uint32_t lines;
    size_t line_room;
    ds__race_table natives; /* stream of a driver -> timeline */
    ds__race_table handles; /* handle of a stream -> timeline */
    ds__race_table events;  /* event of a driver -> ds__race_event */
    ds__race_table execs;   /* executable of a driver -> ds__race_graph */
    ds__race_table tokens;  /* token of a hand-over -> ds__race_token */
    ds__race_table words;   /* address of a written word -> ds__race_word */
    ds__race_table extents; /* captured launch -> ds__race_extents */
    /* argument of a host function, and the word of the wait for it -> ds__race_captured */
    ds__race_table captured;
    ds__race_table groups; /* streams of collectives -> ds__race_group */
    ds__race_table pairs;  /* pairs of sites that were reported */
    ds__race_task *task;   /* host functions that have not ended */
    ds__race_task **task_end;
    uint32_t ended;    /* timelines whose numbers cannot be used again yet */
    uint32_t reuse_at; /* value of `ended` at which they are looked at again */
    uint32_t host;     /* the timeline of all threads, without the option "threads" */
    uint32_t legacy[DS_BACKEND_COUNT][DS__MAX_DEVICES];

    ds__race_map block;
    ds__race_map alloc;
    ds__race_memory *oldest; /* freed */
    ds__race_memory *newest;
    size_t dead;
    uint64_t serial;
    uint64_t fresh; /* records since the last sweep */

    ds__race_place *place;
    size_t places;
    size_t place_room;
    ds__race_table place_keys; /* key of a place -> index */

    ds__race_traced *traced; /* DS__RACE_TRACED; NULL: no recording has run */
    ds__race_found found[DS__RACE_FOUND];
    ds__race_hit hit[DS__RACE_HITS];
    uint64_t version; /* of both maps, from 1 */

    ds__race_edge *edge; /* ring */
    uint64_t edges;

    ds_check_stats stats;
    size_t bytes;
    uint64_t epoch;
    int stops;  /* drivers that have not stopped */
    int failed; /* no memory: nothing is checked any more */
    char *text; /* the last report */
    size_t text_room;
} ds__race = { .lock = DS__MUTEX_INIT };

/* State of each thread. */
static _Thread_local struct {
    uint64_t epoch;
    uint32_t line;       /* its timeline, with the option "threads" */
    uint32_t number;     /* of the thread */
    int inside;          /* within a collective or a fill of the library */
    ds__race_task *task; /* the host function that it runs */
    uint64_t launch;     /* operation of its last launch of a graph */
    uint64_t traced;     /* id of the operation that is checked in a recording, or 0 */
    ds_extent extent[DS_KERNEL_MAX_PARAMS];
    size_t extents; /* of ds_check_set_extents */
} ds__race_tls;

static _Atomic uint32_t ds__race_threads; /* numbers of threads */

/* check/report.h */
static void ds__race_notice(const char *text);
static void ds__race_notice_failure(void);
static void ds__race_report(ds_hazard hazard, const ds__race_now *now, const ds__race_range *range,
                            unsigned how, const ds__race_memory *m, const ds__race_record *before);

#endif
