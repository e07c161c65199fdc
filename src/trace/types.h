/* trace/types.h - types and state of the trace layer.

   Defines the record (ds__trace_record), the tables that its numbers refer to, the ring that keeps
   the last records, the writers of the formats, and the state (ds__trace).

   Policy:
   1. Records of any origin go into one ring. A file is written from the ring, by the thread of the
      recording of activity; a record that is overwritten before it is written is counted as lost.
   2. Texts, streams and threads have numbers. Tables only grow, so that a file can be continued.
      Streams are known from their creation on, also while no trace runs.
   3. Times are nanoseconds since the start of the trace.

   Invariants: record number n is in the ring while n is from `head - ring_size` to `head - 1`.
   Locks: `lock` guards the ring, the tables and the statistics; observers take it under locks of
   the allocator, so it is held for short steps and no file is written under it. `file_lock` guards
   the outputs and ds__trace_view, and comes before `lock`. `control` is held by calls that start or
   stop a trace.
   Threads: any. */
#ifndef DS__TRACE_TYPES_H
#define DS__TRACE_TYPES_H

#include "../api/trace.h"
#include "../base/bookkeeping.h"
#include "../base/log.h"
#include "../base/state.h"
#include "../core/internal.h"

#include <stdio.h>

/* Kinds of records. Those up to the step have the numbers of ds_activity_kind. */
enum {
    DS__TRACE_KERNEL = 1,
    DS__TRACE_COPY,
    DS__TRACE_FILL,
    DS__TRACE_HOST_FUNC,
    DS__TRACE_EVENT,
    DS__TRACE_WAIT,
    DS__TRACE_VALUES,
    DS__TRACE_GRAPH,
    DS__TRACE_NODE,
    DS__TRACE_STEP,         /* of a collective */
    DS__TRACE_BLOCKED = 16, /* a call that blocks the host */
    DS__TRACE_RANGE = 17,
    DS__TRACE_MARK,
    DS__TRACE_CALL, /* a collective or fill, from call to return */
    DS__TRACE_ALLOC = 24,
    DS__TRACE_FREE,
    DS__TRACE_OOM,
    DS__TRACE_FREED,
    DS__TRACE_RACE = 32
};

/* OPEN: not complete. UNTIMED: without times; begin and end are the earliest possible time */
enum { DS__TRACE_FAILED = 1, DS__TRACE_OF_GRAPH = 2, DS__TRACE_OPEN = 4, DS__TRACE_UNTIMED = 8 };

/* Returns the flags of a record with this result. */
static uint8_t ds__trace_flags(ds_result r) {
    return (uint8_t)(r < 0 ? DS__TRACE_FAILED : 0);
}

enum {
    DS__TRACE_RING = 131072, /* records */
    DS__TRACE_RING_LEAST = 256,
    DS__TRACE_RING_MOST = 1 << 24,
    DS__TRACE_ACTIVITIES = 65536, /* records of activity between two batches */
    DS__TRACE_SLICE = 256,        /* records that are taken or read under the lock at once */
    DS__TRACE_TEXTS = 1 << 20,
    DS__TRACE_TEXT_BYTES = 1 << 25,
    DS__TRACE_CACHE = 256, /* texts that are found by their address */
    DS__TRACE_NESTED = 32, /* pushed ranges of a thread that have records */
    DS__TRACE_OPEN_RANGES = 256,
    DS__TRACE_LONGEST = 10,
    DS__TRACE_BLOCKED_NS = 1000, /* the shortest wait before a free that has a record */
    DS__TRACE_DEPTH = 256,       /* the greatest length of a queue in the counters of a JSON file */
    DS__TRACE_CHUNK = 8192,      /* records that are written at once */
    DS__TRACE_PATH = 480,
    DS__TRACE_PART = 240 << 20 /* text of a part of a JSON file */
};

/* A record as it stands in an HTML trace, 16 words. */
typedef struct ds__trace_record {
    uint8_t kind;
    uint8_t flags;
    uint8_t src; /* index of a device and 1; 0: host, or not known */
    uint8_t dst;
    uint32_t row; /* index of a stream or thread; DS__TRACE_NONE: none */
    uint64_t begin;
    uint64_t end;
    uint64_t time; /* of the call that enqueued it; of a block: its address */
    uint32_t name;
    uint32_t call;
    uint32_t file;
    uint32_t line;
    uint64_t amount;
    uint32_t id;
    uint32_t cause;
} ds__trace_record;

_Static_assert(sizeof(ds__trace_record) == 64, "a record has 16 words");

#define DS__TRACE_NONE UINT32_MAX

typedef struct ds__trace_stream {
    uint64_t handle;
    uint64_t number; /* ds_stream_get_id */
    uint32_t lane;   /* of launches on the stream; 0: the stream itself */
    uint32_t device;
    uint32_t label;
    uint32_t operations;
    char name[64];    /* the label, also between traces */
    uint64_t busy_ns; /* in operations other than waits and records */
    uint64_t wait_ns;
    uint64_t bytes;
    uint64_t first;
    uint64_t last;
} ds__trace_stream;

typedef struct ds__trace_thread {
    uint64_t number;
    uint32_t name;
} ds__trace_thread;

/* A map from keys to indices. */
typedef struct ds__trace_map {
    uint32_t *slot; /* index and 1; 0: free */
    size_t size;
} ds__trace_map;

/* A long wait, with the operation that it waited for as far as it was known. */
typedef struct ds__trace_wait {
    ds__trace_record wait;
    ds__trace_record cause; /* kind 0: not known */
} ds__trace_wait;

/* Where a writer stands in the ring and in the tables. */
typedef struct ds__trace_place {
    uint64_t record;
    size_t texts;
    size_t streams;
    size_t threads;
    size_t devices;
} ds__trace_place;

/* The operations of a stream that were written, from the first one that may have been pending when
   the next one was enqueued. */
typedef struct ds__trace_queue {
    uint64_t end[DS__TRACE_DEPTH];
    size_t first; /* counts that are taken modulo the size */
    size_t next;
} ds__trace_queue;

struct ds__trace_output;

/* JSON: where the arrow of a wait can begin or end. */
typedef struct ds__trace_end {
    uint32_t id;  /* of the operation */
    unsigned pid; /* its track */
    unsigned tid;
    uint64_t time;
} ds__trace_end;

/* A format. begin writes the beginning of a file or part, write records that are now in `slice`,
   end the rest. All are called with file_lock. */
typedef struct ds__trace_format {
    const char *ending;
    int compressed;
    void (*begin)(struct ds__trace_output *o);
    void (*write)(struct ds__trace_output *o, const ds__trace_record *list, size_t count,
                  uint64_t dropped);
    void (*end)(struct ds__trace_output *o, uint64_t now);
} ds__trace_format;

typedef struct ds__trace_output {
    FILE *file; /* NULL: none */
    const ds__trace_format *format;
    ds__trace_place at;
    int failed;
    int part;
    uint64_t bytes;     /* of all parts */
    uint64_t part_size; /* text of this part, without compression */
    void *packer;       /* ds__deflate of a compressed file */
    char *text;         /* what will be written next */
    size_t size;
    size_t room;
    ds__trace_record *list; /* DS__TRACE_CHUNK records that are written next */
    uint64_t lost;          /* records that were overwritten before they were written */
    uint64_t dropped;       /* records that the ring did not get, as far as the file tells it */
    uint64_t alive[256];    /* JSON: bytes that are allocated on each device */
    int first;              /* JSON: 1: no event was written yet in this part */
    struct ds__trace_queue *queue; /* JSON: of the streams */
    size_t queues;
    size_t queue_room;
    ds__trace_end *ends; /* JSON: of the last operations of the part, by the lower bits of the id */
    char path[DS__TRACE_PATH + 32];
} ds__trace_output;

static struct {
    _Atomic int on;      /* 1: records are taken */
    int layer;           /* drivers with the table of the layer */
    ds_trace_desc desc;  /* of the trace; texts are in `file` and `dump` */
    ds_trace_desc start; /* options: of the trace that begins with devstream */
    int starts;          /* 1: there are such options */
    char file[DS__TRACE_PATH];
    char dump[DS__TRACE_PATH];
    ds__mutex control;
    ds__mutex file_lock;
    ds__mutex lock;
    uint64_t zero_ns;       /* the host's clock at time 0 */
    uint64_t unix_ns;       /* the same as Unix time */
    uint64_t end_ns;        /* of the trace that ran last */
    _Atomic uint32_t epoch; /* counts traces, for what threads keep */
    ds__trace_record *ring;
    size_t ring_size;
    uint64_t head;
    uint64_t dropped; /* lost before the ring */
    uint64_t operations;
    uint64_t untimed; /* of them */
    char **text;
    uint32_t *text_size;
    size_t texts;
    size_t text_room;
    size_t text_size_room;
    size_t text_bytes;
    ds__trace_map text_map;

    struct {
        const char *address;
        uint32_t text;
    } cache[DS__TRACE_CACHE];

    ds__trace_stream *stream;
    size_t streams;
    size_t stream_room;
    ds__trace_map stream_map;
    ds__trace_thread *thread;
    size_t threads;
    size_t thread_room;

    struct {
        uint64_t id;
        uint64_t begin;
        uint32_t name;
    } open[DS__TRACE_OPEN_RANGES];

    ds__trace_wait longest[DS__TRACE_LONGEST];
    size_t waits;
    /* where the operations with these ids are in the ring, and 1 */
    uint64_t *place;
    ds__trace_output output;
    int has_file;                      /* 1: the trace began with a file, which may have ended */
    size_t part;                       /* most text of a part of a JSON file */
    _Atomic int signalled;             /* 1: a signal asks for a dump */
    struct ds__trace_waiting *waiting; /* calls that block now */
    const ds__driver *next[DS_BACKEND_COUNT];
    ds__driver table[DS_BACKEND_COUNT];
} ds__trace = { .control = DS__MUTEX_INIT,
                .file_lock = DS__MUTEX_INIT,
                .lock = DS__MUTEX_INIT,
                .part = DS__TRACE_PART };

/* Copies of the tables, for writers. Texts are not freed before the next trace. */
static struct {
    char **text;
    size_t texts;
    size_t text_room;
    ds__trace_stream *stream;
    size_t streams;
    size_t stream_room;
    ds__trace_thread *thread;
    size_t threads;
    size_t thread_room;
} ds__trace_view;

/* State of a thread, for one trace. */
static _Thread_local struct {
    uint32_t epoch;
    uint32_t thread; /* index */
    unsigned depth;  /* collectives and fills that run */
    uint64_t begin[8];
    unsigned ranges; /* pushed */

    struct {
        uint64_t begin;
        uint64_t domain;
        uint32_t name;
    } range[DS__TRACE_NESTED];
} ds__trace_tls;

/* A call that blocks now; on the stack of its thread. */
typedef struct ds__trace_waiting {
    struct ds__trace_waiting *next;
    const char *fn;
    ds_site site;
    uint64_t begin; /* of the host's clock */
    int reported;
} ds__trace_waiting;

/* Returns the index of a device in the trace. */
static uint32_t ds__trace_device(ds_device device) {
    int b = ds__backend_of(device);
    return (uint32_t)(b ? ds__g.backend[0].device_count + device.index : device.index);
}

static size_t ds__trace_devices(void) {
    return (size_t)(ds__g.backend[0].device_count + ds__g.backend[1].device_count);
}

/* Returns the index of a device and 1, or 0 for the host and what is not known. */
static uint8_t ds__trace_place_of(ds_device device) {
    if (device.type != DS_DEVICE_CPU && device.type != DS_DEVICE_CUDA)
        return 0;
    uint32_t index = ds__trace_device(device);
    return index < 255 ? (uint8_t)(index + 1) : 0;
}

static uint64_t ds__trace_now(void) {
    return ds__now_ns() - ds__trace.zero_ns;
}

#endif
