/* Generated from src/devstream_trace.h by `make headers`. Edit the files in src/, not this one. */
/* devstream_trace.h - a timeline of streams and host threads.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_trace.h"
   in the C file that has the implementation of devstream.h; other headers of devstream may follow
   or precede. Put devstream.h beside it. Then run the program with DEVSTREAM_TRACE=trace.html and
   open the file in a browser.

   The timeline shows whether copies and kernels overlap, where a stream waits, and for which
   operation. It needs no other tool and no network.

   Example (compiles as it stands; the fill of `b` waits for that of `a`):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_trace.h"
       int main(void) {
           ds_stream a, b;
           char text[4096];
           void *p;
           if (ds_init(&(ds_init_desc){ .trace = "trace.html" }) < 0 ||
               ds_stream_create(NULL, &a) < 0 || ds_stream_create(NULL, &b) < 0 ||
               ds_device_alloc(ds_device_current(), 1 << 20, &p) < 0)
               return 1;
           DS_IGNORE(ds_fill(p, 0, 1, 1 << 20, a));
           DS_IGNORE(ds_stream_wait_stream(b, a));
           DS_IGNORE(ds_fill(p, 1, 1, 1 << 20, b));
           DS_IGNORE(ds_stream_synchronize(b));
           DS_IGNORE(ds_trace_summary(text, sizeof text));
           return printf("%s", text) < 0 || ds_shutdown() < 0;
       }

   Defines:
       DEVSTREAM_ZLIB  with the implementation: compresses traces with zlib, which the program then
                       links (-lz)

   Environment, read once at the first call: DEVSTREAM_TRACE, a list of options (api/trace.h, "The
   trace layer").

   Contents: the trace layer; implementation.

   Rules beyond devstream.h's:
   - A trace contains file names of the program's source, labels and names of kernels.
   - Without ds_shutdown, the file ends with the last flush, at most a tenth of a second before the
     end of the process.

   Known gaps: on CUDA, nodes of graphs have no records, and operations of other libraries are not
   seen. */
#include "devstream.h"

#ifndef DEVSTREAM_TRACE_H_INCLUDED
#define DEVSTREAM_TRACE_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the trace layer ------------------------------------------------------------------------- */

/* The layer records each operation on a stream with its begin and end (api/activity.h has the rules
   of times), the operation for which each wait waited, calls that block the host, blocks of the
   allocator, collectives, ranges and marks, and on CPU devices the nodes of graph launches. It
   keeps the last records in memory, and writes all of them to a file while the program runs.

   The layer is on if "trace" is in DEVSTREAM_LAYERS or ds_init_desc.layers, or if DEVSTREAM_TRACE
   or ds_init_desc.trace is set. With options, a trace runs from the start of devstream to
   ds_shutdown. Without them, it begins with ds_trace_start. If the layer is off, the functions
   below return DS_ERR_ILLEGAL_STATE.

   Options, a list with commas in DEVSTREAM_TRACE or ds_init_desc.trace; "1" alone: only the ring.
       FILE          file that is written while the program runs, at the end of the process up to
                     the last flush. The ending selects the format: .html, a page with a timeline
                     that opens without a network; .json, for Perfetto and chrome://tracing;
                     .json.gz, the same compressed (DEVSTREAM_ZLIB); .txt, a summary at the end
       file=FILE     the same
       ring=N        number of records that are kept in memory, 256 to 16777216; 131072 by default
       dump=FILE     file that ds_shutdown, a signal or a time-out writes from the ring
       timeout=MS    if a call waits longer on the host, the layer prints the operation at which
                     each stream stands, once for each call, and writes the dump
       signal=N      signal number that makes a thread of devstream write the dump
       cupti         times of GPUs come from CUPTI's records instead of events (ds_trace_desc) */

/** Parameters of ds_trace_start; zero means default. */
typedef struct ds_trace_desc {
    const char *file;    /**< file that is written while the trace runs; NULL: only the ring */
    const char *dump;    /**< file for dumps; NULL: none */
    size_t ring;         /**< records that are kept, 256 to 2^24; 0: 131072 */
    uint64_t timeout_ns; /**< host waits that last longer are reported; 0: none */
    int signal;          /**< signal that writes the dump, 1 to 64; 0: none */
    /** 1: the times of kernels, fills, and copies between GPUs and pinned memory come from records
        of CUPTI, NVIDIA's library for profilers, and launches of graphs have nodes. 0: from events.
        An operation whose record CUPTI has lost is marked, and has no times */
    int cupti;
    uint64_t reserved[6]; /**< 0 */
} ds_trace_desc;

/** Counters of a trace. */
typedef struct ds_trace_stats {
    uint64_t operations; /**< operations on streams, without nodes of graphs */
    uint64_t records;    /**< records of any kind */
    uint64_t dropped;    /**< records that were lost because the program was faster than the file */
    uint64_t written;    /**< records that are in the file */
    uint64_t bytes;      /**< bytes that were written to the file, in all parts */
    uint64_t kept;       /**< records that are in the ring */
    uint64_t untimed;    /**< operations without times, because CUPTI has lost their records */
    uint64_t reserved[5]; /**< 0 */
} ds_trace_stats;

/** Starts a trace, with an empty ring and zeroed counters. A file of that name is replaced. Errors:
    DS_ERR_ILLEGAL_STATE: the layer is off, or a trace runs. DS_ERR_INVALID_VALUE: a file cannot be
    written, or has an unknown ending, or a value is out of range. DS_ERR_UNSUPPORTED: .json.gz
    without DEVSTREAM_ZLIB, or the CPU driver has a fabric, or CUPTI is wanted and there is no CUDA
    device or no libcupti of CUDA 11.8 or later. DS_ERR_ILLEGAL_STATE, too: another tool uses CUPTI
    in this process, which has one place for a tool. DS_ERR_DRIVER: CUPTI refused. */
DSDEF DS_MUST_USE ds_result ds_trace_start(const ds_trace_desc *desc);

/** Ends the trace: waits for the recorded operations (blocks), and completes the file. The ring can
    be dumped until the next start. Does not count as a wait for ds_sync_debug_mode. */
DSDEF DS_MUST_USE ds_result ds_trace_stop(void);

/** Writes the records of all complete operations to the file of the trace. Does not wait for
    operations. */
DSDEF DS_MUST_USE ds_result ds_trace_flush(void);

/** Writes the ring to another file; its ending selects the format, as for ds_trace_start. Does not
    wait for operations. A stream that stands at an operation gets a record that is marked as not
    complete. */
DSDEF DS_MUST_USE ds_result ds_trace_dump(const char *path);

/** Writes a summary of the ring as text, with a terminating zero: the busy share and the number of
    operations of each stream, how long two streams or a copy and a kernel ran at once, and the ten
    longest waits with their call site and that of the operation that they waited for. A text that
    does not fit is cut at a line, and the result is DS_ERR_LIMIT_EXCEEDED. With text NULL, prints
    it to standard error. */
DSDEF ds_result ds_trace_summary(char *text, size_t size);

/** Writes the operation at which each stream with pending work stands, and the operation for which
    it waits, with their call sites. Cuts as ds_trace_summary does; text NULL: prints to standard
    error. On CUDA, it is the oldest operation without an end. */
DSDEF ds_result ds_trace_standing(char *text, size_t size);

/** Returns the counters of the trace that runs, or that ran last. */
DSDEF ds_result ds_trace_get_stats(ds_trace_stats *out);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES

static inline DS_MUST_USE ds_result ds_at_trace_start(const char *file_, int line_,
        const ds_trace_desc *desc_) {
    return ds_site_set(file_, line_), (ds_trace_start)(desc_);
}
#define ds_trace_start(...) ds_at_trace_start(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_trace_stop(const char *file_, int line_) {
    return ds_site_set(file_, line_), (ds_trace_stop)();
}
#define ds_trace_stop() ds_at_trace_stop(__FILE__, __LINE__)

static inline DS_MUST_USE ds_result ds_at_trace_flush(const char *file_, int line_) {
    return ds_site_set(file_, line_), (ds_trace_flush)();
}
#define ds_trace_flush() ds_at_trace_flush(__FILE__, __LINE__)

static inline DS_MUST_USE ds_result ds_at_trace_dump(const char *file_, int line_,
        const char *path_) {
    return ds_site_set(file_, line_), (ds_trace_dump)(path_);
}
#define ds_trace_dump(...) ds_at_trace_dump(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_trace_summary(const char *file_, int line_,
        char *text_, size_t size_) {
    return ds_site_set(file_, line_), (ds_trace_summary)(text_, size_);
}
#define ds_trace_summary(...) ds_at_trace_summary(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_trace_standing(const char *file_, int line_,
        char *text_, size_t size_) {
    return ds_site_set(file_, line_), (ds_trace_standing)(text_, size_);
}
#define ds_trace_standing(...) ds_at_trace_standing(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_trace_get_stats(const char *file_, int line_,
        ds_trace_stats *out_) {
    return ds_site_set(file_, line_), (ds_trace_get_stats)(out_);
}
#define ds_trace_get_stats(...) ds_at_trace_get_stats(__FILE__, __LINE__, __VA_ARGS__)

#endif

#endif /* DEVSTREAM_TRACE_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_TRACE_H_IMPLEMENTED)
#define DEVSTREAM_TRACE_H_IMPLEMENTED
#ifndef __cplusplus

/* os/deflate.h - compression by zlib.

   With DEVSTREAM_ZLIB, compresses a stream of bytes (ds__deflate_begin, ds__deflate,
   ds__deflate_end), in the format of zlib or gzip. Without it, ds__deflate_begin returns NULL.

   Invariants: after each call of ds__deflate, the output so far can be decompressed without the
   rest (Z_SYNC_FLUSH).
   Locks: none.
   Threads: one at a time for each compressor. */

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef DEVSTREAM_ZLIB

#include <zlib.h>

enum { DS__DEFLATES = 1 };

typedef struct ds__deflate_state {
    z_stream stream;
    char *text;
    size_t room;
} ds__deflate_state;

/* Returns a compressor, or NULL without memory. gzip: 1 for the format of gzip, 0 for zlib's. */
static void *ds__deflate_begin(int gzip) {
    ds__deflate_state *d = calloc(1, sizeof *d);
    if (d &&
        deflateInit2(&d->stream, 1, Z_DEFLATED, gzip ? 15 + 16 : 15, 8, Z_DEFAULT_STRATEGY) == Z_OK)
        return d;
    free(d);
    return NULL;
}

/* Compresses bytes. end: they are the last ones. *out is valid until the next call. Returns the
   size of *out, or SIZE_MAX without memory. */
static size_t ds__deflate(void *packer, const char *text, size_t size, int end, const char **out) {
    ds__deflate_state *d = packer;
    size_t done = 0;
    if (size > UINT_MAX / 4)
        return SIZE_MAX;
    d->stream.next_in = (Bytef *)(uintptr_t)text;
    d->stream.avail_in = (uInt)size;
    for (;;) {
        if (d->room - done < 4096) {
            size_t room = 2 * d->room + size / 4 + 8192;
            char *fresh = realloc(d->text, room);
            if (!fresh)
                return SIZE_MAX;
            d->text = fresh;
            d->room = room;
        }
        d->stream.next_out = (Bytef *)d->text + done;
        d->stream.avail_out = (uInt)(d->room - done);
        int code = deflate(&d->stream, end ? Z_FINISH : Z_SYNC_FLUSH);
        done = d->room - d->stream.avail_out;
        if (code != Z_OK && code != Z_BUF_ERROR && code != Z_STREAM_END)
            return SIZE_MAX;
        if (d->stream.avail_out > 0 && (!end || code == Z_STREAM_END))
            break;
    }
    *out = d->text;
    return done;
}

static void ds__deflate_end(void *packer) {
    ds__deflate_state *d = packer;
    if (!d)
        return;
    deflateEnd(&d->stream);
    free(d->text);
    free(d);
}

#else

enum { DS__DEFLATES = 0 };

static void *ds__deflate_begin(int gzip) {
    (void)gzip;
    return NULL;
}

static size_t ds__deflate(void *packer, const char *text, size_t size, int end, const char **out) {
    (void)packer, (void)text, (void)size, (void)end, (void)out;
    return SIZE_MAX;
}

static void ds__deflate_end(void *packer) {
    (void)packer;
}

#endif

/* os/signal.h - handlers of signals.

   ds__os_signal_set sets the handler of a signal and returns the former one.

   Invariants: in programs with strict C11, some libraries forget a handler when they call it. A
   handler must therefore set itself again.
   Locks: none; ds__os_signal_set may be called in a handler.
   Threads: any. */

#include <errno.h>
#include <signal.h>

typedef void (*ds__os_handler)(int number);

/* Sets the handler; *former is the one before. Returns 0 or the system's error. */
static int ds__os_signal_set(int number, ds__os_handler handler, ds__os_handler *former) {
    ds__os_handler before = signal(number, handler);
    if (before == SIG_ERR)
        return errno;
    *former = before;
    return 0;
}

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
    DS__TRACE_FREED
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
    DS__TRACE_COLLECTIVES = 32, /* public functions with steps */
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

/* A format. begin writes the beginning of a file or part, write records that are now in `slice`,
   end the rest. All are called with file_lock. */
typedef struct ds__trace_format {
    const char *ending;
    int compressed;
    int at_end; /* 1: only `end` writes */
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
    uint32_t *marked; /* JSON: ids of operations with the begin of an arrow, by id */
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
    ds__spinlock lock;
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

    const char *collective[DS__TRACE_COLLECTIVES];
    size_t collectives;
    ds__trace_wait longest[DS__TRACE_LONGEST];
    size_t waits;
    /* where the operations with these ids are in the ring, and 1 */
    uint64_t *place;
    ds__trace_output output;
    size_t part;                       /* most text of a part of a JSON file */
    _Atomic int signalled;             /* 1: a signal asks for a dump */
    struct ds__trace_waiting *waiting; /* calls that block now */
    const ds__driver *next[DS_BACKEND_COUNT];
    ds__driver table[DS_BACKEND_COUNT];
} ds__trace = { .control = DS__MUTEX_INIT, .file_lock = DS__MUTEX_INIT, .part = DS__TRACE_PART };

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
    uint64_t begin;
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

/* trace/table.h - tables of texts, streams and threads.

   ds__trace_text returns the number of a text, ds__trace_stream_of that of a stream, and
   ds__trace_thread_of that of the calling thread.

   Invariants: text 0 is "". Numbers are not reused within a trace. If there is no memory or no room
   for a text, it is "".
   Locks: ds__trace.lock is held.
   Threads: any. */

static uint64_t ds__trace_hash_text(const char *text, size_t size) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

static uint64_t ds__trace_hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return key ^ key >> 32;
}

/* Makes room in a map for one more index. Returns 0 if there is no memory; hash_fn gives the hash
   of an index. */
static int ds__trace_map_reserve(ds__trace_map *m, size_t used, uint64_t (*hash_fn)(size_t index)) {
    if (2 * (used + 1) <= m->size)
        return 1;
    size_t size = m->size ? 2 * m->size : 64;
    uint32_t *slot = ds__host_alloc(size * sizeof *slot);
    if (!slot)
        return 0;
    for (size_t i = 0; i < used; i++) {
        size_t at = (size_t)hash_fn(i) & (size - 1);
        while (slot[at])
            at = (at + 1) & (size - 1);
        slot[at] = (uint32_t)i + 1;
    }
    ds__host_free(m->slot);
    *m = (ds__trace_map){ slot, size };
    return 1;
}

static uint64_t ds__trace_text_hash(size_t index) {
    return ds__trace_hash_text(ds__trace.text[index], ds__trace.text_size[index]);
}

static uint64_t ds__trace_stream_key(uint64_t handle, uint32_t lane) {
    return ds__trace_hash(handle * 31 + lane);
}

static uint64_t ds__trace_stream_hash(size_t index) {
    return ds__trace_stream_key(ds__trace.stream[index].handle, ds__trace.stream[index].lane);
}

/* Adds a text. Returns 0 if there is no memory. */
static uint32_t ds__trace_text_add(const char *text, size_t size, size_t slot) {
    char *copy = ds__host_alloc(size + 1);
    if (!copy ||
        !ds__array_reserve(&ds__trace.text, sizeof *ds__trace.text, ds__trace.texts, 1,
                           &ds__trace.text_room) ||
        !ds__array_reserve(&ds__trace.text_size, sizeof *ds__trace.text_size, ds__trace.texts, 1,
                           &ds__trace.text_size_room)) {
        ds__host_free(copy);
        return 0;
    }
    memcpy(copy, text, size);
    ds__trace.text[ds__trace.texts] = copy;
    ds__trace.text_size[ds__trace.texts] = (uint32_t)size;
    ds__trace.text_map.slot[slot] = (uint32_t)ds__trace.texts + 1;
    ds__trace.text_bytes += size + 1;
    return (uint32_t)ds__trace.texts++;
}

/* Returns the number of a text of this size. */
static uint32_t ds__trace_text_of(const char *text, size_t size) {
    if (!ds__trace_map_reserve(&ds__trace.text_map, ds__trace.texts, ds__trace_text_hash))
        return 0;
    size_t mask = ds__trace.text_map.size - 1;
    size_t at = (size_t)ds__trace_hash_text(text, size) & mask;
    for (uint32_t found; (found = ds__trace.text_map.slot[at]) != 0; at = (at + 1) & mask)
        if (ds__trace.text_size[found - 1] == size &&
            memcmp(ds__trace.text[found - 1], text, size) == 0)
            return found - 1;
    if (ds__trace.texts >= DS__TRACE_TEXTS || ds__trace.text_bytes + size >= DS__TRACE_TEXT_BYTES)
        return 0;
    return ds__trace_text_add(text, size, at);
}

/* Returns the number of a text; NULL: 0. Most texts are literals, which are found by address. The
   address alone is not enough: the memory of a plugin or of a label may have another text by
   now. */
static uint32_t ds__trace_text(const char *text) {
    if (!text || !*text)
        return 0;
    size_t c = (size_t)ds__trace_hash((uint64_t)(uintptr_t)text) % DS__TRACE_CACHE;
    uint32_t cached = ds__trace.cache[c].text;
    if (ds__trace.cache[c].address == text && strcmp(ds__trace.text[cached], text) == 0)
        return cached;
    size_t size = strlen(text);
    uint32_t number = ds__trace_text_of(text, size < 4096 ? size : 4096);
    ds__trace.cache[c].address = text;
    ds__trace.cache[c].text = number;
    return number;
}

/* Finds a stream, or adds it with the members of `fresh`. Returns DS__TRACE_NONE if there is no
   memory. */
static uint32_t ds__trace_stream_find(const ds__trace_stream *fresh) {
    if (!ds__trace_map_reserve(&ds__trace.stream_map, ds__trace.streams, ds__trace_stream_hash))
        return DS__TRACE_NONE;
    size_t mask = ds__trace.stream_map.size - 1;
    size_t at = (size_t)ds__trace_stream_key(fresh->handle, fresh->lane) & mask;
    for (uint32_t found; (found = ds__trace.stream_map.slot[at]) != 0; at = (at + 1) & mask)
        if (ds__trace.stream[found - 1].handle == fresh->handle &&
            ds__trace.stream[found - 1].lane == fresh->lane)
            return found - 1;
    if (!ds__array_reserve(&ds__trace.stream, sizeof *ds__trace.stream, ds__trace.streams, 1,
                           &ds__trace.stream_room))
        return DS__TRACE_NONE;
    ds__trace.stream[ds__trace.streams] = *fresh;
    ds__trace.stream_map.slot[at] = (uint32_t)ds__trace.streams + 1;
    return (uint32_t)ds__trace.streams++;
}

/* Returns the index of a stream, which has been named, or of a lane of its launches. */
static uint32_t ds__trace_stream_of(uint64_t handle, uint32_t lane, uint32_t device) {
    ds__trace_stream fresh = { .handle = handle, .device = device };
    uint32_t index = ds__trace_stream_find(&fresh);
    if (!lane || index == DS__TRACE_NONE)
        return index;
    const ds__trace_stream *s = &ds__trace.stream[index];
    fresh.lane = lane;
    fresh.number = s->number;
    if (*s->name)
        snprintf(fresh.name, sizeof fresh.name, "%.40s lane %u", s->name, lane);
    else
        snprintf(fresh.name, sizeof fresh.name, "stream %llu lane %u",
                 (unsigned long long)s->number, lane);
    size_t before = ds__trace.streams;
    index = ds__trace_stream_find(&fresh);
    if (ds__trace.streams > before)
        ds__trace.stream[index].label = ds__trace_text(ds__trace.stream[index].name);
    return index;
}

/* Returns the index of the calling thread. */
static uint32_t ds__trace_thread_of(void) {
    uint32_t epoch = atomic_load_explicit(&ds__trace.epoch, memory_order_relaxed);
    if (ds__trace_tls.epoch == epoch)
        return ds__trace_tls.thread;
    ds__trace_tls.epoch = epoch;
    ds__trace_tls.ranges = 0;
    ds__trace_tls.depth = 0;
    ds__trace_tls.thread = DS__TRACE_NONE;
    if (ds__array_reserve(&ds__trace.thread, sizeof *ds__trace.thread, ds__trace.threads, 1,
                          &ds__trace.thread_room)) {
        ds__trace.thread[ds__trace.threads] =
            (ds__trace_thread){ .number = ds__thread_number(), .name = 0 };
        ds__trace_tls.thread = (uint32_t)ds__trace.threads++;
    }
    return ds__trace_tls.thread;
}

/* Frees the tables of a trace. */
static void ds__trace_tables_deinit(void) {
    for (size_t i = 0; i < ds__trace.texts; i++)
        ds__host_free(ds__trace.text[i]);
    ds__host_free(ds__trace.text);
    ds__host_free(ds__trace.text_size);
    ds__host_free(ds__trace.text_map.slot);
    ds__host_free(ds__trace.thread);
    ds__trace.text = NULL;
    ds__trace.text_size = NULL;
    ds__trace.thread = NULL;
    ds__trace.text_map = (ds__trace_map){ NULL, 0 };
    ds__trace.texts = ds__trace.text_room = ds__trace.text_size_room = ds__trace.text_bytes = 0;
    ds__trace.threads = ds__trace.thread_room = 0;
    memset(ds__trace.cache, 0, sizeof ds__trace.cache);
}

/* Frees the streams, too, at the end of the layer. */
static void ds__trace_streams_deinit(void) {
    ds__host_free(ds__trace.stream);
    ds__host_free(ds__trace.stream_map.slot);
    ds__trace.stream = NULL;
    ds__trace.stream_map = (ds__trace_map){ NULL, 0 };
    ds__trace.streams = ds__trace.stream_room = 0;
}

/* Begins the tables of a trace: adds the text 0 and the labels of streams. Returns 0 if there is no
   memory. */
static int ds__trace_tables_init(void) {
    if (!ds__trace_map_reserve(&ds__trace.text_map, 0, ds__trace_text_hash))
        return 0;
    ds__trace_text_of("", 0);
    for (size_t i = 0; i < ds__trace.streams && ds__trace.texts; i++) {
        ds__trace_stream *s = &ds__trace.stream[i];
        s->label = ds__trace_text(s->name);
        s->operations = 0;
        s->busy_ns = s->wait_ns = s->bytes = s->first = s->last = 0;
    }
    return ds__trace.texts > 0;
}

/* Sets number and label of a stream. */
static void ds__trace_stream_name(uint64_t handle, uint32_t device, uint64_t number,
                                  const char *label) {
    uint32_t index = ds__trace_stream_of(handle, 0, device);
    if (index == DS__TRACE_NONE)
        return;
    ds__trace_stream *s = &ds__trace.stream[index];
    s->device = device;
    s->number = number;
    snprintf(s->name, sizeof s->name, "%s", label ? label : "");
    s->label = ds__trace.texts ? ds__trace_text(s->name) : 0;
}

/* trace/record.h - the ring of records, and records of activity.

   ds__trace_add puts a record into the ring. ds__trace_take makes records of a batch of activity,
   and keeps the sums of streams and the longest waits.

   Invariants: `place` maps the id of an operation, modulo the size of the ring, to its record. An
   entry may be of another operation; readers compare ids.
   Locks: ds__trace.lock is held, except by ds__trace_take.
   Threads: any; ds__trace_take runs on the thread of the recordings. */

/* Adds a record. Wakes the thread of the recordings if half of the ring has to be written. */
static void ds__trace_add(const ds__trace_record *r) {
    uint64_t n = ds__trace.head++;
    ds__trace.ring[n & (ds__trace.ring_size - 1)] = *r;
    if (ds__trace.output.file && n - ds__trace.output.at.record == ds__trace.ring_size / 2)
        ds__activity_urge();
}

/* Returns a record of the ring by its number; NULL: it was overwritten. */
static const ds__trace_record *ds__trace_get(uint64_t n) {
    if (n >= ds__trace.head || ds__trace.head - n > ds__trace.ring_size)
        return NULL;
    return &ds__trace.ring[n & (ds__trace.ring_size - 1)];
}

/* Returns the record of an operation, or NULL. */
static const ds__trace_record *ds__trace_find(uint32_t id) {
    uint64_t at = ds__trace.place[id & (ds__trace.ring_size - 1)];
    const ds__trace_record *r = id && at ? ds__trace_get(at - 1) : NULL;
    return r && r->id == id && r->kind < DS__TRACE_NODE ? r : NULL;
}

/* Returns 1 if the function was seen to run a collective. Names of functions are literals. */
static int ds__trace_is_collective(const char *call) {
    for (size_t i = 0; call && i < ds__trace.collectives; i++)
        if (ds__trace.collective[i] == call)
            return 1;
    return 0;
}

/* Keeps a wait if it is one of the longest. */
static void ds__trace_wait_keep(const ds__trace_record *r) {
    size_t n = ds__trace.waits;
    uint64_t took = r->end - r->begin;
    while (n > 0 && ds__trace.longest[n - 1].wait.end - ds__trace.longest[n - 1].wait.begin < took)
        n--;
    if (n == DS__TRACE_LONGEST)
        return;
    if (ds__trace.waits < DS__TRACE_LONGEST)
        ds__trace.waits++;
    for (size_t i = ds__trace.waits - 1; i > n; i--)
        ds__trace.longest[i] = ds__trace.longest[i - 1];
    const ds__trace_record *cause = ds__trace_find(r->cause);
    ds__trace.longest[n] = (ds__trace_wait){ .wait = *r };
    if (cause)
        ds__trace.longest[n].cause = *cause;
}

/* Adds an operation to the sums of its stream. */
static void ds__trace_count(const ds__trace_record *r) {
    if (r->row == DS__TRACE_NONE)
        return;
    ds__trace_stream *s = &ds__trace.stream[r->row];
    uint64_t took = r->end - r->begin;
    if (r->kind == DS__TRACE_WAIT) {
        s->wait_ns += took;
        if (took)
            ds__trace_wait_keep(r);
    } else if (r->kind != DS__TRACE_EVENT) {
        s->busy_ns += took;
    }
    s->bytes += r->kind == DS__TRACE_COPY || r->kind == DS__TRACE_FILL ? r->amount : 0;
    if (!s->operations++)
        s->first = r->begin;
    if (s->last < r->end)
        s->last = r->end;
}

static uint64_t ds__trace_time(uint64_t ns) {
    return ns > ds__trace.zero_ns ? ns - ds__trace.zero_ns : 0;
}

/* Marks an operation without times. It began after the one before on its stream. */
static void ds__trace_untimed(ds__trace_record *r) {
    const ds__trace_stream *s = r->row == DS__TRACE_NONE ? NULL : &ds__trace.stream[r->row];
    if (s && s->operations && r->begin < s->last)
        r->begin = s->last;
    r->end = r->begin;
    r->flags |= DS__TRACE_UNTIMED;
    ds__trace.untimed++;
}

/* Fills a record from one of activity. */
static ds__trace_record ds__trace_record_of(const ds_activity *a) {
    ds__trace_record r = { .kind = (uint8_t)a->kind,
                           .flags = ds__trace_flags(a->result),
                           .src = ds__trace_place_of(a->src_device),
                           .dst = ds__trace_place_of(a->dst_device),
                           .begin = ds__trace_time(a->begin_ns ? a->begin_ns : a->enqueue_ns),
                           .end = ds__trace_time(a->end_ns ? a->end_ns : a->enqueue_ns),
                           .time = ds__trace_time(a->enqueue_ns),
                           .name = ds__trace_text(a->name),
                           .call = ds__trace_text(a->call),
                           .file = ds__trace_text(a->file),
                           .line = a->line,
                           .amount = a->bytes ? a->bytes : a->count,
                           .id = (uint32_t)a->correlation_id,
                           .cause = (uint32_t)a->cause_id };
    int is_node = a->kind == (ds_activity_kind)DS__ACTIVITY_NODE;
    r.row = ds__trace_stream_of(a->stream.id, is_node ? (uint32_t)a->external_id : 0,
                                ds__trace_device(a->device));
    if (is_node)
        r.flags |= DS__TRACE_OF_GRAPH;
    if (!a->begin_ns && a->result == DS_OK)
        ds__trace_untimed(&r);
    if ((r.kind <= DS__TRACE_FILL) && ds__trace_is_collective(a->call)) {
        if (!r.name)
            r.name = ds__trace_text(ds__activity_kind_name(a->kind));
        r.kind = DS__TRACE_STEP;
    }
    return r;
}

static void ds__trace_take_one(const ds_activity *a) {
    ds__trace_record r = ds__trace_record_of(a);
    if (r.kind != DS__TRACE_NODE) {
        ds__trace.place[r.id & (ds__trace.ring_size - 1)] = ds__trace.head + 1;
        ds__trace.operations++;
        ds__trace_count(&r);
    }
    ds__trace_add(&r);
}

/* Takes a batch of activity. Observers wait for short times only. */
static void ds__trace_take(const ds_activity_batch *batch) {
    size_t i = 0;
    while (i < batch->count) {
        ds__spinlock_lock(&ds__trace.lock);
        for (size_t n = 0; n < DS__TRACE_SLICE && i < batch->count; n++, i++)
            ds__trace_take_one(&batch->records[i]);
        ds__spinlock_unlock(&ds__trace.lock);
    }
    if (batch->dropped) {
        ds__spinlock_lock(&ds__trace.lock);
        ds__trace.dropped += batch->dropped;
        ds__spinlock_unlock(&ds__trace.lock);
    }
}

/* Takes a record of the calling thread, if a trace runs. The record has no texts yet; `name` is
   NULL or the text of the record. */
static void ds__trace_note(ds__trace_record r, const char *name, const char *fn, ds_site site) {
    ds__spinlock_lock(&ds__trace.lock);
    if (atomic_load_explicit(&ds__trace.on, memory_order_relaxed)) {
        uint32_t thread = ds__trace_thread_of();
        if (r.kind < DS__TRACE_ALLOC)
            r.row = thread;
        else
            r.id = thread;
        if (name)
            r.name = ds__trace_text(name);
        r.call = ds__trace_text(fn);
        r.file = ds__trace_text(site.file);
        r.line = site.file ? (uint32_t)site.line : 0;
        ds__trace_add(&r);
    }
    ds__spinlock_unlock(&ds__trace.lock);
}

/* trace/output.h - outputs: files, and text that is written next.

   Opens and closes files (ds__trace_output_open), collects their text (ds__trace_put,
   ds__trace_print, ds__trace_put_string), and writes it (ds__trace_output_flush), compressed if the
   format says so. Copies the tables for writers (ds__trace_view_update).

   Invariants: if there is no memory or the file takes no more, `failed` is set, and nothing is
   written afterwards.
   Locks: ds__trace.file_lock is held.
   Threads: any. */

#include <stdarg.h>

/* Copies the new entries of a table. Returns their number; less if there is no memory. */
static size_t ds__trace_view_copy(void *to, size_t element, size_t have, size_t *room,
                                  const void *from, size_t count) {
    char *list;
    if (have >= count || !ds__array_reserve(to, element, have, count - have, room))
        return have;
    memcpy(&list, to, sizeof list);
    memcpy(list + have * element, (const char *)from + have * element, (count - have) * element);
    return count;
}

/* Brings the copies of the tables up to date. Names of threads may come late, so they are copied
   each time. */
static void ds__trace_view_update(void) {
    ds__spinlock_lock(&ds__trace.lock);
    ds__trace_view.texts =
        ds__trace_view_copy(&ds__trace_view.text, sizeof *ds__trace_view.text, ds__trace_view.texts,
                            &ds__trace_view.text_room, ds__trace.text, ds__trace.texts);
    ds__trace_view.streams = ds__trace_view_copy(
        &ds__trace_view.stream, sizeof *ds__trace_view.stream, ds__trace_view.streams,
        &ds__trace_view.stream_room, ds__trace.stream, ds__trace.streams);
    ds__trace_view.threads =
        ds__trace_view_copy(&ds__trace_view.thread, sizeof *ds__trace_view.thread, 0,
                            &ds__trace_view.thread_room, ds__trace.thread, ds__trace.threads);
    ds__spinlock_unlock(&ds__trace.lock);
}

static void ds__trace_view_deinit(void) {
    ds__host_free(ds__trace_view.text);
    ds__host_free(ds__trace_view.stream);
    ds__host_free(ds__trace_view.thread);
    memset(&ds__trace_view, 0, sizeof ds__trace_view);
}

/* Returns a text by its number. */
static const char *ds__trace_view_text(uint32_t number) {
    return number < ds__trace_view.texts ? ds__trace_view.text[number] : "";
}

/* Makes room for `more` bytes and a zero. Returns 0 if there is no memory. */
static int ds__trace_room(ds__trace_output *o, size_t more) {
    if (o->size + more < o->room)
        return 1;
    size_t room = 2 * (o->size + more) + 4096;
    char *fresh = o->failed ? NULL : ds__host_alloc(room);
    if (!fresh) {
        o->failed = 1;
        return 0;
    }
    if (o->size)
        memcpy(fresh, o->text, o->size);
    ds__host_free(o->text);
    o->text = fresh;
    o->room = room;
    return 1;
}

static void ds__trace_put(ds__trace_output *o, const char *text, size_t size) {
    if (!ds__trace_room(o, size))
        return;
    memcpy(o->text + o->size, text, size);
    o->size += size;
}

__attribute__((format(printf, 2, 3))) static void ds__trace_print(ds__trace_output *o,
                                                                  const char *format, ...) {
    va_list args;
    char line[512];
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    ds__trace_put(o, line, ds__text_length(n, sizeof line));
}

/* Returns the bytes that a character has by its first byte in UTF-8 (RFC 3629); 0: none. */
static size_t ds__trace_utf8_size(unsigned char first) {
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    if (first < 0xe0)
        return 2;
    return first < 0xf0 ? 3 : 4;
}

/* Returns the bytes of the character at the beginning of a text; 0: it is none in UTF-8. */
static size_t ds__trace_utf8(const unsigned char *t) {
    /* the second byte has a narrower range after these first bytes */
    static const struct {
        unsigned char first, least, most;
    } narrow[] = {
        { 0xe0, 0xa0, 0xbf }, { 0xed, 0x80, 0x9f }, { 0xf0, 0x90, 0xbf }, { 0xf4, 0x80, 0x8f }
    };

    size_t n = ds__trace_utf8_size(*t);
    for (size_t i = 1; i < n; i++)
        if ((t[i] & 0xc0) != 0x80)
            return 0;
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++)
        if (*t == narrow[i].first && (t[1] < narrow[i].least || t[1] > narrow[i].most))
            return 0;
    return n;
}

/* Writes a JSON string with its quotes. No "<" is in it, so that it may stand in a script of a
   page. Bytes that are no UTF-8 become "?". */
static void ds__trace_put_string(ds__trace_output *o, const char *text) {
    const unsigned char *t = (const unsigned char *)text;
    ds__trace_put(o, "\"", 1);
    while (*t) {
        size_t more = ds__trace_utf8(t);
        if (*t == '"' || *t == '\\')
            ds__trace_print(o, "\\%c", *t);
        else if (*t < 32 || *t == '<' || *t == 127)
            ds__trace_print(o, "\\u%04x", *t);
        else if (!more)
            ds__trace_put(o, "?", 1);
        else
            ds__trace_put(o, (const char *)t, more);
        t += more ? more : 1;
    }
    ds__trace_put(o, "\"", 1);
}

/* Writes bytes in base64. */
static void ds__trace_put_base64(ds__trace_output *o, const unsigned char *from, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (!ds__trace_room(o, (size + 2) / 3 * 4))
        return;
    char *to = o->text + o->size;
    for (size_t i = 0; i < size; i += 3) {
        uint32_t bits = (uint32_t)from[i] << 16;
        bits |= i + 1 < size ? (uint32_t)from[i + 1] << 8 : 0;
        bits |= i + 2 < size ? from[i + 2] : 0;
        *to++ = digits[bits >> 18];
        *to++ = digits[bits >> 12 & 63];
        *to++ = i + 1 < size ? digits[bits >> 6 & 63] : '=';
        *to++ = i + 2 < size ? digits[bits & 63] : '=';
    }
    o->size += (size_t)(to - (o->text + o->size));
}

/* Writes bytes to the file. */
static void ds__trace_output_write(ds__trace_output *o, const char *text, size_t size) {
    if (!o->failed && size && fwrite(text, 1, size, o->file) != size)
        o->failed = 1;
    o->bytes += size;
}

/* Writes the collected text, so that it is in the file even if the process is killed. end: a
   compressed file ends with it. */
static void ds__trace_output_flush(ds__trace_output *o, int end) {
    if (o->packer && !o->failed) {
        const char *packed;
        size_t size = ds__deflate(o->packer, o->text, o->size, end, &packed);
        if (size == SIZE_MAX)
            o->failed = 1;
        else
            ds__trace_output_write(o, packed, size);
    } else {
        ds__trace_output_write(o, o->text, o->size);
    }
    o->part_size += o->size;
    o->size = 0;
    if (!o->failed && fflush(o->file) != 0)
        o->failed = 1;
}

/* Opens the file of an output whose format is set. Returns 0 after a failure; errno has it. */
static int ds__trace_output_fopen(ds__trace_output *o, const char *path) {
    o->file = fopen(path, "wb");
    o->part_size = 0;
    o->packer = NULL;
    if (!o->file || !o->format->compressed)
        return o->file != NULL;
    o->packer = ds__deflate_begin(1);
    if (o->packer)
        return 1;
    fclose(o->file);
    o->file = NULL;
    errno = ENOMEM;
    return 0;
}

static void ds__trace_output_fclose(ds__trace_output *o) {
    ds__deflate_end(o->packer);
    o->packer = NULL;
    if (o->file && fclose(o->file) != 0)
        o->failed = 1;
    o->file = NULL;
}

/* Continues in another file, whose name has the number of the part. Returns 0 after a failure. */
static int ds__trace_output_turn(ds__trace_output *o) {
    char path[sizeof o->path + 16];
    size_t stem = strlen(o->path) - strlen(o->format->ending);
    ds__trace_output_fclose(o);
    o->part++;
    snprintf(path, sizeof path, "%.*s-%d%s", (int)stem, o->path, o->part + 1, o->format->ending);
    if (!ds__trace_output_fopen(o, path))
        o->failed = 1;
    return !o->failed;
}

/* Frees an output after its file is closed. */
static void ds__trace_output_deinit(ds__trace_output *o) {
    ds__host_free(o->text);
    ds__host_free(o->marked);
    ds__host_free(o->queue);
    ds__host_free(o->list);
    memset(o, 0, sizeof *o);
}

/* Generated by tools/page.awk from src/trace/page.html. */

static const char *const ds__trace_page[] = {
    "<!doctype html>\n"
    "<html lang=en><meta charset=utf-8><title>Trace - devstream</title>\n"
    "<p>The page of traces follows.</p>\n"
};

/* trace/html.h - traces as a page.

   Writes the text of the page, then chunks: scripts of a type of their own, each one a JSON object
   with new entries of the tables and records in base64, compressed if zlib is compiled in. A page
   that is cut off shows the chunks that are complete.

   Invariants: an entry of a table is in the same chunk as the first record that refers to it, or in
   an earlier one.
   Locks: ds__trace.file_lock is held.
   Threads: any. */

/* Begins a member of the object. */
static void ds__trace_html_member(ds__trace_output *o, int *first, const char *name) {
    ds__trace_print(o, "%s\"%s\":", *first ? "" : ",", name);
    *first = 0;
}

/* Writes the new entries of the tables. */
static void ds__trace_html_tables(ds__trace_output *o, int *first) {
    ds__trace_place *at = &o->at;
    if (at->devices < ds__trace_devices()) {
        ds__trace_html_member(o, first, "devices");
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            for (int i = 0; i < ds__g.backend[b].device_count; i++)
                ds__trace_print(o, "%s\"%s:%d\"", at->devices++ ? "," : "[",
                                ds__type_name((int)ds__g.backend[b].type), i);
        ds__trace_print(o, "]");
    }
    if (!at->texts)
        at->texts = 1; /* the page knows text 0 */
    if (at->texts < ds__trace_view.texts) {
        ds__trace_html_member(o, first, "strings");
        for (const char *sign = "["; at->texts < ds__trace_view.texts; at->texts++, sign = ",") {
            ds__trace_print(o, "%s", sign);
            ds__trace_put_string(o, ds__trace_view.text[at->texts]);
        }
        ds__trace_print(o, "]");
    }
    if (at->streams < ds__trace_view.streams) {
        ds__trace_html_member(o, first, "streams");
        for (const char *sign = "["; at->streams < ds__trace_view.streams;
             at->streams++, sign = ",") {
            const ds__trace_stream *s = &ds__trace_view.stream[at->streams];
            ds__trace_print(o, "%s[%u,%u,%llu]", sign, s->device, s->label,
                            (unsigned long long)s->number);
        }
        ds__trace_print(o, "]");
    }
    if (at->threads < ds__trace_view.threads) {
        ds__trace_html_member(o, first, "threads");
        for (const char *sign = "["; at->threads < ds__trace_view.threads;
             at->threads++, sign = ",") {
            const ds__trace_thread *t = &ds__trace_view.thread[at->threads];
            ds__trace_print(o, "%s[%llu,%u]", sign, (unsigned long long)t->number, t->name);
        }
        ds__trace_print(o, "]");
    }
}

/* Writes the records. With zlib, each chunk is a stream of its own. */
static void ds__trace_html_records(ds__trace_output *o, int *first, const ds__trace_record *list,
                                   size_t count) {
    const char *packed = (const char *)list;
    size_t size = count * sizeof *list;
    void *packer = ds__deflate_begin(0);
    if (packer)
        size = ds__deflate(packer, packed, size, 1, &packed);
    if (size == SIZE_MAX) {
        o->failed = 1;
    } else {
        ds__trace_html_member(o, first, packer ? "deflated" : "records");
        ds__trace_put(o, "\"", 1);
        ds__trace_put_base64(o, (const unsigned char *)packed, size);
        ds__trace_put(o, "\"", 1);
    }
    ds__deflate_end(packer);
}

static const char ds__trace_chunk_begin[] = "<script type=application/x-devstream>{";
static const char ds__trace_chunk_end[] = "}</script>\n";

static void ds__trace_html_write(ds__trace_output *o, const ds__trace_record *list, size_t count,
                                 uint64_t dropped) {
    int first = 1;
    ds__trace_put(o, ds__trace_chunk_begin, sizeof ds__trace_chunk_begin - 1);
    ds__trace_html_tables(o, &first);
    if (dropped) {
        ds__trace_html_member(o, &first, "dropped");
        ds__trace_print(o, "%llu", (unsigned long long)dropped);
    }
    if (count)
        ds__trace_html_records(o, &first, list, count);
    ds__trace_put(o, ds__trace_chunk_end, sizeof ds__trace_chunk_end - 1);
    ds__trace_output_flush(o, 0);
}

static void ds__trace_html_begin(ds__trace_output *o) {
    char program[256];
    for (size_t i = 0; i < sizeof ds__trace_page / sizeof ds__trace_page[0]; i++)
        ds__trace_put(o, ds__trace_page[i], strlen(ds__trace_page[i]));
    ds__trace_put(o, ds__trace_chunk_begin, sizeof ds__trace_chunk_begin - 1);
    ds__trace_print(o, "\"version\":1,\"program\":");
    ds__os_program_name(program, sizeof program);
    ds__trace_put_string(o, program);
    ds__trace_print(o, ",\"driver\":\"%s\",\"unix_ns\":\"%llu\"",
                    ds__g.backend[0].available ? "cuda" : "cpu",
                    (unsigned long long)ds__trace.unix_ns);
    ds__trace_put(o, ds__trace_chunk_end, sizeof ds__trace_chunk_end - 1);
    ds__trace_output_flush(o, 0);
}

static void ds__trace_html_end(ds__trace_output *o, uint64_t now) {
    ds__trace_put(o, ds__trace_chunk_begin, sizeof ds__trace_chunk_begin - 1);
    ds__trace_print(o, "\"end\":%llu", (unsigned long long)now);
    ds__trace_put(o, ds__trace_chunk_end, sizeof ds__trace_chunk_end - 1);
    ds__trace_output_flush(o, 1);
}

/* trace/json.h - traces for Perfetto and chrome://tracing.

   Writes an array of events in the format of Chrome's traces: a process for each device with a
   thread for each stream, and process 0 for the threads of the host. Waits stand on a track of
   their own, because they overlap the operation before them in other views. The end of a wait has
   an arrow from the operation that it waited for (flows of version 2, "bind_id").

   Policy:
   1. Each event is one line that ends with a comma, after the first one. A viewer accepts an array
      that is cut off.
   2. A file has at most DS__TRACE_PART bytes of text: then another part begins, with its own names.
   3. An arrow needs marks at both of its ends, but the operation is written before the wait is
      complete. Operations for which a wait was enqueued are therefore noted (ds__activity.awaited),
      and a wait has a mark only if that of the operation was written.

   Invariants: times are microseconds with three decimals, relative to the start of the trace.
   Locks: ds__trace.file_lock is held.
   Threads: any. */

/* The track of a stream's waits has this number more. */
enum { DS__TRACE_WAITS = 1000000, DS__TRACE_PRINTED = 1 << 18 /* text that is written at once */ };

static void ds__trace_json_next(ds__trace_output *o) {
    ds__trace_put(o, o->first ? "[\n" : ",\n", 2);
    o->first = 0;
}

/* Writes a time as a member. */
static void ds__trace_json_time(ds__trace_output *o, const char *name, uint64_t ns) {
    ds__trace_print(o, ",\"%s\":%llu.%03u", name, (unsigned long long)(ns / 1000),
                    (unsigned)(ns % 1000));
}

/* Writes the name of a process or thread, and its place in the order. tid 0: a process. */
static void ds__trace_json_name(ds__trace_output *o, unsigned pid, unsigned tid, const char *name,
                                unsigned order) {
    const char *what = tid ? "thread" : "process";
    ds__trace_json_next(o);
    ds__trace_print(
        o, "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s_name\",\"args\":{\"name\":", pid, tid,
        what);
    ds__trace_put_string(o, name);
    ds__trace_print(o, "}}");
    ds__trace_json_next(o);
    ds__trace_print(o,
                    "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s_sort_index\",\"args\":{"
                    "\"sort_index\":%u}}",
                    pid, tid, what, order);
}

static unsigned ds__trace_json_tid(uint32_t stream) {
    return stream + 1;
}

/* Writes the names of new devices, streams and threads. */
static void ds__trace_json_tables(ds__trace_output *o) {
    char name[128];
    if (!o->at.devices)
        ds__trace_json_name(o, 0, 0, "host", 0);
    for (int b = 0; b < DS_BACKEND_COUNT && o->at.devices < ds__trace_devices(); b++)
        for (int i = 0; i < ds__g.backend[b].device_count; i++) {
            unsigned pid = (unsigned)++o->at.devices;
            snprintf(name, sizeof name, "%s:%d", ds__type_name((int)ds__g.backend[b].type), i);
            ds__trace_json_name(o, pid, 0, name, pid);
        }
    for (; o->at.streams < ds__trace_view.streams; o->at.streams++) {
        const ds__trace_stream *s = &ds__trace_view.stream[o->at.streams];
        unsigned tid = ds__trace_json_tid((uint32_t)o->at.streams);
        if (*s->name)
            snprintf(name, sizeof name, "%s", s->name);
        else
            snprintf(name, sizeof name, "stream %llu", (unsigned long long)s->number);
        ds__trace_json_name(o, s->device + 1, tid, name, tid);
        size_t n = strlen(name);
        snprintf(name + n, sizeof name - n, " waits");
        if (!s->lane)
            ds__trace_json_name(o, s->device + 1, tid + DS__TRACE_WAITS, name, tid);
    }
    for (; o->at.threads < ds__trace_view.threads; o->at.threads++) {
        const ds__trace_thread *t = &ds__trace_view.thread[o->at.threads];
        if (t->name)
            snprintf(name, sizeof name, "%s", ds__trace_view_text(t->name));
        else
            snprintf(name, sizeof name, "thread %llu", (unsigned long long)t->number);
        ds__trace_json_name(o, 0, (unsigned)o->at.threads + 1, name, (unsigned)o->at.threads + 1);
    }
}

static const char *ds__trace_kind_name(int kind) {
    static const char *const names[] = { "?",
                                         "kernel",
                                         "copy",
                                         "fill",
                                         "host function",
                                         "record",
                                         "wait",
                                         "values",
                                         "graph",
                                         "node",
                                         "step",
                                         "?",
                                         "?",
                                         "?",
                                         "?",
                                         "?",
                                         "host waits",
                                         "range",
                                         "mark",
                                         "call",
                                         "?",
                                         "?",
                                         "?",
                                         "?",
                                         "allocation",
                                         "free",
                                         "out of memory",
                                         "free complete" };
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "?";
}

/* Writes the part of an event that all have. */
static void ds__trace_json_head(ds__trace_output *o, const ds__trace_record *r, const char *phase,
                                unsigned pid, unsigned tid) {
    const char *name = ds__trace_view_text(r->name);
    if (!*name)
        name = r->kind == DS__TRACE_BLOCKED || r->kind == DS__TRACE_CALL
                   ? ds__trace_view_text(r->call)
                   : ds__trace_kind_name(r->kind);
    ds__trace_json_next(o);
    ds__trace_print(o, "{\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"cat\":\"%s\",\"name\":", phase, pid,
                    tid, ds__trace_kind_name(r->kind));
    ds__trace_put_string(o, name);
    ds__trace_json_time(o, "ts", r->begin);
    if (*phase == 'X')
        ds__trace_json_time(o, "dur", r->end - r->begin);
}

/* Writes the arguments of an event, and its end. */
static void ds__trace_json_args(ds__trace_output *o, const ds__trace_record *r) {
    uint64_t took = r->end - r->begin;
    int moves = r->kind == DS__TRACE_COPY || r->kind == DS__TRACE_FILL;
    ds__trace_print(o, ",\"args\":{\"call\":");
    ds__trace_put_string(o, ds__trace_view_text(r->call));
    if (r->file) {
        ds__trace_print(o, ",\"file\":");
        ds__trace_put_string(o, ds__trace_view_text(r->file));
        ds__trace_print(o, ",\"line\":%u", r->line);
    }
    if (r->amount)
        ds__trace_print(o, ",\"%s\":%llu",
                        r->kind == DS__TRACE_KERNEL || r->kind == DS__TRACE_VALUES ? "count"
                                                                                   : "bytes",
                        (unsigned long long)r->amount);
    if (moves && took)
        ds__trace_print(o, ",\"GB/s\":%.3f", (double)r->amount / (double)took);
    if (r->kind < DS__TRACE_NODE || r->kind == DS__TRACE_STEP) {
        ds__trace_print(o, ",\"id\":%u", r->id);
        ds__trace_json_time(o, "enqueued", r->time);
    }
    if (r->cause)
        ds__trace_print(o, ",\"%s\":%u", r->kind == DS__TRACE_NODE ? "launch" : "waits for",
                        r->cause);
    if (r->flags & DS__TRACE_FAILED)
        ds__trace_print(o, ",\"failed\":true");
    if (r->flags & DS__TRACE_OPEN)
        ds__trace_print(o, ",\"open\":true");
    if (r->flags & DS__TRACE_UNTIMED)
        ds__trace_print(o, ",\"untimed\":true");
    ds__trace_print(o, "}}");
}

/* Writes the marks of arrows: at most one, of the end or of the begin. */
static void ds__trace_json_arrow(ds__trace_output *o, const ds__trace_record *r) {
    size_t mask = ds__trace.ring_size - 1;
    if (!o->marked || r->kind == DS__TRACE_NODE)
        return;
    if (r->kind == DS__TRACE_WAIT && r->cause && o->marked[r->cause & mask] == r->cause) {
        ds__trace_print(o, ",\"bind_id\":\"0x%x\",\"flow_in\":true", r->cause);
    } else if (ds__activity_is_awaited(r->id)) {
        ds__trace_print(o, ",\"bind_id\":\"0x%x\",\"flow_out\":true", r->id);
        o->marked[r->id & mask] = r->id;
    }
}

/* Writes an operation, with the marks of arrows. */
static void ds__trace_json_operation(ds__trace_output *o, const ds__trace_record *r) {
    unsigned pid = r->row == DS__TRACE_NONE ? 0 : ds__trace_view.stream[r->row].device + 1;
    unsigned tid = ds__trace_json_tid(r->row) + (r->kind == DS__TRACE_WAIT ? DS__TRACE_WAITS : 0);
    ds__trace_json_head(o, r, "X", pid, tid);
    ds__trace_json_arrow(o, r);
    ds__trace_json_args(o, r);
}

/* Writes the counter of pending operations of a stream. */
static void ds__trace_json_pending(ds__trace_output *o, uint32_t row, uint64_t time,
                                   size_t pending) {
    char name[128];
    const ds__trace_stream *s = &ds__trace_view.stream[row];
    if (*s->name)
        snprintf(name, sizeof name, "queue of %s", s->name);
    else
        snprintf(name, sizeof name, "queue of stream %llu", (unsigned long long)s->number);
    ds__trace_json_next(o);
    ds__trace_print(o, "{\"ph\":\"C\",\"pid\":%u,\"name\":", s->device + 1);
    ds__trace_put_string(o, name);
    ds__trace_json_time(o, "ts", time);
    ds__trace_print(o, ",\"args\":{\"pending\":%zu}}", pending);
}

/* Writes the counter for the operations that ended until `time`. */
static void ds__trace_json_queue_end(ds__trace_output *o, uint32_t row, uint64_t time) {
    ds__trace_queue *q = &o->queue[row];
    for (; q->first < q->next && q->end[q->first % DS__TRACE_DEPTH] <= time; q->first++)
        ds__trace_json_pending(o, row, q->end[q->first % DS__TRACE_DEPTH], q->next - q->first - 1);
}

/* Counts an operation in the queue of its stream: the operations of a stream are written in order,
   so those that were pending at its enqueueing are known. */
static void ds__trace_json_queue(ds__trace_output *o, const ds__trace_record *r) {
    size_t count = (size_t)r->row + 1;
    if (r->row == DS__TRACE_NONE || r->kind == DS__TRACE_NODE || r->flags & DS__TRACE_OPEN ||
        (count > o->queues && !ds__array_reserve(&o->queue, sizeof *o->queue, o->queues,
                                                 count - o->queues, &o->queue_room)))
        return;
    for (; o->queues < count; o->queues++)
        o->queue[o->queues].first = o->queue[o->queues].next = 0;
    ds__trace_queue *q = &o->queue[r->row];
    ds__trace_json_queue_end(o, r->row, r->time);
    if (q->next - q->first == DS__TRACE_DEPTH)
        q->first++;
    q->end[q->next++ % DS__TRACE_DEPTH] = r->end;
    ds__trace_json_pending(o, r->row, r->time, q->next - q->first);
}

/* Writes the change of a block, and the counter of its device. */
static void ds__trace_json_block(ds__trace_output *o, const ds__trace_record *r) {
    unsigned pid = r->dst;
    unsigned tid = r->row == DS__TRACE_NONE ? 0 : ds__trace_json_tid(r->row);
    size_t device = r->dst % (sizeof o->alive / sizeof o->alive[0]);
    if (r->kind == DS__TRACE_OOM) {
        ds__trace_json_head(o, r, "i", pid, tid);
        ds__trace_print(o, ",\"s\":\"p\"");
        ds__trace_json_args(o, r);
        return;
    }
    if (r->kind == DS__TRACE_FREED)
        return;
    if (r->kind == DS__TRACE_ALLOC)
        o->alive[device] += r->amount;
    else
        o->alive[device] -= r->amount < o->alive[device] ? r->amount : o->alive[device];
    ds__trace_json_next(o);
    ds__trace_print(o, "{\"ph\":\"C\",\"pid\":%u,\"name\":\"allocated\"", pid);
    ds__trace_json_time(o, "ts", r->begin);
    ds__trace_print(o, ",\"args\":{\"bytes\":%llu}}", (unsigned long long)o->alive[device]);
}

static void ds__trace_json_event(ds__trace_output *o, const ds__trace_record *r) {
    if (r->kind < DS__TRACE_BLOCKED) {
        ds__trace_json_operation(o, r);
        ds__trace_json_queue(o, r);
    } else if (r->kind >= DS__TRACE_ALLOC) {
        ds__trace_json_block(o, r);
    } else {
        int is_mark = r->kind == DS__TRACE_MARK;
        ds__trace_json_head(o, r, is_mark ? "i" : "X", 0, r->row + 1);
        if (is_mark)
            ds__trace_print(o, ",\"s\":\"t\"");
        ds__trace_json_args(o, r);
    }
}

/* Begins a file or a further part. */
static void ds__trace_json_begin(ds__trace_output *o) {
    o->first = 1;
    o->at.streams = o->at.threads = o->at.devices = 0;
    if (!o->marked)
        o->marked = ds__host_alloc(ds__trace.ring_size * sizeof *o->marked);
    if (o->marked)
        memset(o->marked, 0, ds__trace.ring_size * sizeof *o->marked);
}

/* Ends the array. now: the end of the trace, 0: of a part. */
static void ds__trace_json_end(ds__trace_output *o, uint64_t now) {
    for (uint32_t i = 0; now && i < o->queues; i++)
        ds__trace_json_queue_end(o, i, UINT64_MAX);
    ds__trace_put(o, o->first ? "[]\n" : "\n]\n", 3);
    ds__trace_output_flush(o, 1);
}

/* The array is longer than a viewer may load: the next part begins. */
static void ds__trace_json_turn(ds__trace_output *o) {
    ds__trace_json_end(o, 0);
    if (ds__trace_output_turn(o))
        ds__trace_json_begin(o);
}

static void ds__trace_json_write(ds__trace_output *o, const ds__trace_record *list, size_t count,
                                 uint64_t dropped) {
    (void)dropped; /* ds_trace_get_stats has it */
    ds__trace_json_tables(o);
    for (size_t i = 0; i < count; i++) {
        ds__trace_json_event(o, &list[i]);
        if (o->part_size + o->size > ds__trace.part) {
            ds__trace_json_turn(o);
            ds__trace_json_tables(o);
        } else if (o->size > DS__TRACE_PRINTED) {
            ds__trace_output_flush(o, 0);
        }
    }
    ds__trace_output_flush(o, 0);
}

/* trace/summary.h - summaries in text.

   Writes the sums of streams, how long operations ran at once, and the longest waits
   (ds__trace_summary_write), and the operations at which streams stand (ds__trace_standing_write).

   Policy: the sums of streams and the longest waits are of the whole trace; the overlap is of the
   ring. Nodes of graphs count as their launch. Waits and records of events are not busy time.

   Invariants: each line ends with a line feed and has at most 500 characters.
   Locks: ds__trace.file_lock is held; ds__trace.lock is taken.
   Threads: any. */

/* The begin or end of an operation. */
typedef struct ds__trace_turn {
    uint64_t time;
    int8_t change; /* 1: begin, -1: end */
    uint8_t moves; /* 1: a copy or fill */
} ds__trace_turn;

/* How long operations ran at once. */
typedef struct ds__trace_overlap {
    uint64_t span;
    uint64_t busy;  /* at least one operation runs */
    uint64_t two;   /* at least two */
    uint64_t mixed; /* a copy or fill, and another operation */
} ds__trace_overlap;

/* Sorts by time; ends come before begins. */
static int ds__trace_turn_compare(const void *a, const void *b) {
    const ds__trace_turn *x = a;
    const ds__trace_turn *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return x->change - y->change;
}

static int ds__trace_is_busy(const ds__trace_record *r) {
    return (r->kind <= DS__TRACE_GRAPH && r->kind != DS__TRACE_EVENT &&
            r->kind != DS__TRACE_WAIT) ||
           r->kind == DS__TRACE_STEP;
}

/* Lists the begins and ends of the ring's operations. Returns NULL if there is no memory. The
   caller frees the list. */
static ds__trace_turn *ds__trace_turns(size_t *out_count) {
    size_t count = 0;
    ds__spinlock_lock(&ds__trace.lock);
    uint64_t to = ds__trace.head;
    ds__spinlock_unlock(&ds__trace.lock);
    uint64_t from = to > ds__trace.ring_size ? to - ds__trace.ring_size : 0;
    ds__trace_turn *list = ds__host_alloc((size_t)(to - from) * 2 * sizeof *list + 1);
    while (list && from < to) {
        ds__spinlock_lock(&ds__trace.lock);
        for (size_t n = 0; n < DS__TRACE_SLICE && from < to; n++, from++) {
            const ds__trace_record *r = ds__trace_get(from);
            if (!r || !ds__trace_is_busy(r) || r->end <= r->begin)
                continue;
            uint8_t moves = r->kind == DS__TRACE_COPY || r->kind == DS__TRACE_FILL;
            list[count++] = (ds__trace_turn){ r->begin, 1, moves };
            list[count++] = (ds__trace_turn){ r->end, -1, moves };
        }
        ds__spinlock_unlock(&ds__trace.lock);
    }
    *out_count = count;
    return list;
}

static ds__trace_overlap ds__trace_overlap_get(void) {
    ds__trace_overlap o = { 0, 0, 0, 0 };
    size_t count = 0;
    ds__trace_turn *list = ds__trace_turns(&count);
    int running = 0;
    int moving = 0;
    if (list && count) {
        qsort(list, count, sizeof *list, ds__trace_turn_compare);
        o.span = list[count - 1].time - list[0].time;
    }
    for (size_t i = 0; list && i < count; i++) {
        uint64_t took = i ? list[i].time - list[i - 1].time : 0;
        o.busy += running > 0 ? took : 0;
        o.two += running > 1 ? took : 0;
        o.mixed += moving > 0 && running > moving ? took : 0;
        running += list[i].change;
        moving += list[i].moves ? list[i].change : 0;
    }
    ds__host_free(list);
    return o;
}

static double ds__trace_percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* Writes "stream NAME", or with its number if it has no label. */
static void ds__trace_put_stream(ds__trace_output *o, uint32_t row) {
    if (row >= ds__trace_view.streams) {
        ds__trace_print(o, "a stream");
        return;
    }
    const ds__trace_stream *s = &ds__trace_view.stream[row];
    if (*s->name)
        ds__trace_print(o, "stream \"%s\"", s->name);
    else
        ds__trace_print(o, "stream %llu", (unsigned long long)s->number);
}

/* Writes the call and the call site of a record. */
static void ds__trace_put_site(ds__trace_output *o, uint32_t call, uint32_t file, uint32_t line) {
    const char *path = ds__trace_view_text(file);
    const char *slash = strrchr(path, '/');
    ds__trace_print(o, "%.80s", call ? ds__trace_view_text(call) : "a call");
    if (file)
        ds__trace_print(o, " at %.100s:%u", slash ? slash + 1 : path, line);
}

/* Writes the kind of an operation, and its name. */
static void ds__trace_put_kind(ds__trace_output *o, const ds__trace_record *r) {
    const char *name = ds__trace_view_text(r->name);
    ds__trace_print(o, "%s%s%.100s", ds__trace_kind_name(r->kind), *name ? " " : "", name);
}

static void ds__trace_put_wait(ds__trace_output *o, const ds__trace_wait *w) {
    const ds__trace_record *r = &w->wait;
    ds__trace_print(o, "  %10.3f ms  ", (double)(r->end - r->begin) / 1e6);
    ds__trace_put_stream(o, r->row);
    ds__trace_print(o, ", ");
    ds__trace_put_site(o, r->call, r->file, r->line);
    ds__trace_print(o, ", waits for ");
    if (w->cause.kind) {
        ds__trace_put_kind(o, &w->cause);
        ds__trace_print(o, " of ");
        ds__trace_put_stream(o, w->cause.row);
        ds__trace_print(o, ", ");
        ds__trace_put_site(o, w->cause.call, w->cause.file, w->cause.line);
    } else {
        ds__trace_print(o, "an operation that has no record");
    }
    ds__trace_print(o, "\n");
}

/* Sorts indices of streams: the busiest first. */
static int ds__trace_stream_compare(const void *a, const void *b) {
    const ds__trace_stream *x = &ds__trace_view.stream[*(const uint32_t *)a];
    const ds__trace_stream *y = &ds__trace_view.stream[*(const uint32_t *)b];
    if (x->busy_ns != y->busy_ns)
        return x->busy_ns > y->busy_ns ? -1 : 1;
    return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : 1;
}

/* Writes the sums of the streams that had operations. */
static void ds__trace_put_streams(ds__trace_output *o, uint64_t span) {
    size_t count = 0;
    char name[64];
    uint32_t *list = ds__host_alloc((ds__trace_view.streams + 1) * sizeof *list);
    for (uint32_t i = 0; list && i < ds__trace_view.streams; i++)
        if (ds__trace_view.stream[i].operations)
            list[count++] = i;
    if (list)
        qsort(list, count, sizeof *list, ds__trace_stream_compare);
    ds__trace_print(o, "%-30s %-8s %12s %8s %8s %14s\n", "stream", "device", "operations", "busy",
                    "waiting", "bytes");
    for (size_t i = 0; i < count; i++) {
        const ds__trace_stream *s = &ds__trace_view.stream[list[i]];
        int is_cuda = (int)s->device < ds__g.backend[0].device_count;
        if (*s->name)
            snprintf(name, sizeof name, "%.30s", s->name);
        else
            snprintf(name, sizeof name, "%llu", (unsigned long long)s->number);
        ds__trace_print(o, "%-30s %s:%-*d %12u %6.1f %% %6.1f %% %14llu\n", name,
                        is_cuda ? "cuda" : "cpu", is_cuda ? 3 : 4,
                        (int)s->device - (is_cuda ? 0 : ds__g.backend[0].device_count),
                        s->operations, ds__trace_percent(s->busy_ns, span),
                        ds__trace_percent(s->wait_ns, span), (unsigned long long)s->bytes);
    }
    ds__host_free(list);
}

/* Writes the summary. */
static void ds__trace_summary_write(ds__trace_output *o) {
    ds__trace_wait longest[DS__TRACE_LONGEST];
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    ds__trace_overlap overlap = ds__trace_overlap_get();
    ds__trace_view.streams = 0; /* the sums have changed */
    ds__trace_view_update();
    ds__spinlock_lock(&ds__trace.lock);
    size_t waits = ds__trace.waits;
    uint64_t operations = ds__trace.operations;
    uint64_t dropped = ds__trace.dropped;
    memcpy(longest, ds__trace.longest, waits * sizeof *longest);
    ds__spinlock_unlock(&ds__trace.lock);
    for (size_t i = 0; i < ds__trace_view.streams; i++) {
        const ds__trace_stream *s = &ds__trace_view.stream[i];
        if (s->operations && s->first < first)
            first = s->first;
        if (s->operations && s->last > last)
            last = s->last;
    }
    uint64_t span = last > first ? last - first : 0;
    ds__trace_print(o, "%llu operations in %.3f ms, %llu records lost\n",
                    (unsigned long long)operations, (double)span / 1e6,
                    (unsigned long long)dropped);
    ds__trace_print(o,
                    "busy %.1f %% of the time; two operations at once %.1f %%; a copy and another "
                    "operation at once %.1f %%\n\n",
                    ds__trace_percent(overlap.busy, overlap.span),
                    ds__trace_percent(overlap.two, overlap.span),
                    ds__trace_percent(overlap.mixed, overlap.span));
    ds__trace_put_streams(o, span);
    if (waits)
        ds__trace_print(o, "\nlongest waits\n");
    for (size_t i = 0; i < waits; i++)
        ds__trace_put_wait(o, &longest[i]);
}

/* trace/standing.h - where streams stand.

   Asks the drivers for the operation at which each stream with pending work stands
   (ds__trace_standing_list), writes the list as text, and reports calls that block too long.

   Invariants: the list is of one moment for each stream, not for all streams at once.
   Locks: ds__trace.file_lock is held; ds__trace.lock is taken.
   Threads: any. */

enum { DS__TRACE_STANDING = 256 }; /* streams in a list */

/* Lists the operations. Returns their number. */
static size_t ds__trace_standing_list(ds__activity_standing *list) {
    size_t count = 0;
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__trace.next[b])
            count += ds__trace.next[b]->activity_standing(list + count, DS__TRACE_STANDING - count);
    return count;
}

/* Makes a record of an operation that is not complete. */
static ds__trace_record ds__trace_standing_record(const ds__activity_standing *s) {
    ds__spinlock_lock(&ds__trace.lock);
    ds__trace_record r = ds__trace_record_of(&s->record);
    ds__spinlock_unlock(&ds__trace.lock);
    r.end = ds__trace_now();
    if (!s->record.begin_ns)
        r.begin = r.end;
    r.flags |= DS__TRACE_OPEN;
    return r;
}

/* Writes one line for each stream that stands. */
static void ds__trace_standing_write(ds__trace_output *o) {
    ds__activity_standing *list = ds__host_alloc(DS__TRACE_STANDING * sizeof *list);
    size_t count = list ? ds__trace_standing_list(list) : 0;
    if (!count)
        ds__trace_print(o, "no stream has pending operations with a record\n");
    for (size_t i = 0; i < count; i++) {
        ds__trace_record r = ds__trace_standing_record(&list[i]);
        ds__trace_view_update();
        ds__trace_put_stream(o, r.row);
        ds__trace_print(o, " stands at %s of ", ds__activity_kind_name(list[i].record.kind));
        ds__trace_put_site(o, r.call, r.file, r.line);
        if (r.name)
            ds__trace_print(o, " (%.100s)", ds__trace_view_text(r.name));
        if (list[i].record.begin_ns)
            ds__trace_print(o, ", since %.3f ms", (double)(r.end - r.begin) / 1e6);
        if (list[i].on) {
            ds__spinlock_lock(&ds__trace.lock);
            uint32_t row = ds__trace_stream_of(list[i].on, 0, 0);
            ds__spinlock_unlock(&ds__trace.lock);
            ds__trace_view_update();
            ds__trace_print(o, ", and waits for ");
            ds__trace_put_stream(o, row);
        }
        ds__trace_print(o, "\n");
    }
    ds__host_free(list);
}

/* trace/file.h - files of a trace: the one that is written while it runs, and dumps.

   ds__trace_pump writes the records that were added since the last call. ds__trace_dump_write
   writes the ring to a file of its own.

   Policy: a file that cannot be written any more is reported once, and the trace goes on without
   it.

   Invariants: a record is in the file once, or counted as lost.
   Locks: ds__trace.file_lock is held; ds__trace.lock is taken for short steps.
   Threads: any. */

static void ds__trace_txt_begin(ds__trace_output *o) {
    (void)o;
}

static void ds__trace_txt_end(ds__trace_output *o, uint64_t now) {
    (void)now;
    ds__trace_summary_write(o);
    ds__trace_print(o, "\n");
    ds__trace_standing_write(o);
    ds__trace_output_flush(o, 1);
}

static const ds__trace_format ds__trace_formats[] = {
    { ".html", 0, 0, ds__trace_html_begin, ds__trace_html_write, ds__trace_html_end },
    { ".json", 0, 0, ds__trace_json_begin, ds__trace_json_write, ds__trace_json_end },
    { ".json.gz", 1, 0, ds__trace_json_begin, ds__trace_json_write, ds__trace_json_end },
    { ".txt", 0, 1, ds__trace_txt_begin, NULL, ds__trace_txt_end },
};

/* Finds the format by the ending of a path. Sets the error if there is none. */
static ds_result ds__trace_format_find(const char *path, const ds__trace_format **out) {
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof ds__trace_formats / sizeof ds__trace_formats[0]; i++) {
        const char *ending = ds__trace_formats[i].ending;
        size_t m = strlen(ending);
        if (n <= m || strcmp(path + n - m, ending) != 0)
            continue;
        *out = &ds__trace_formats[i];
        if (ds__trace_formats[i].compressed && !DS__DEFLATES)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "trace: the file \"%.200s\" needs zlib: compile with DEVSTREAM_ZLIB",
                            path);
        DS__REQUIRE(n < DS__TRACE_PATH,
                    "trace: the name of the file has %zu characters; at most "
                    "%d are allowed",
                    n, DS__TRACE_PATH - 1);
        return DS_OK;
    }
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "trace: the file \"%.200s\" must end with .html, .json, .json.gz or .txt",
                    path);
}

static ds_result ds__trace_output_open(ds__trace_output *o, const char *path) {
    const ds__trace_format *format;
    ds_result r = ds__trace_format_find(path, &format);
    if (r < 0)
        return r;
    memset(o, 0, sizeof *o);
    o->format = format;
    snprintf(o->path, sizeof o->path, "%s", path);
    o->list = ds__host_alloc(DS__TRACE_CHUNK * sizeof *o->list);
    if (!o->list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to write a trace");
    if (ds__trace_output_fopen(o, path)) {
        ds__trace_view_update();
        format->begin(o);
        return DS_OK;
    }
    r = ds__fail(DS_ERR_INVALID_VALUE, "trace: the file \"%.200s\": %s", path, strerror(errno));
    ds__trace_output_deinit(o);
    return r;
}

/* Copies records from the ring, from `at` on and before `upto`. Returns their number. */
static size_t ds__trace_ring_read(ds__trace_output *o, uint64_t upto) {
    size_t count = 0;
    while (count < DS__TRACE_CHUNK && o->at.record < upto) {
        ds__spinlock_lock(&ds__trace.lock);
        uint64_t oldest =
            ds__trace.head > ds__trace.ring_size ? ds__trace.head - ds__trace.ring_size : 0;
        if (o->at.record < oldest) {
            o->lost += oldest - o->at.record;
            o->at.record = oldest;
        }
        for (size_t n = 0; n < DS__TRACE_SLICE && count < DS__TRACE_CHUNK && o->at.record < upto;
             n++)
            o->list[count++] = ds__trace.ring[o->at.record++ & (ds__trace.ring_size - 1)];
        ds__spinlock_unlock(&ds__trace.lock);
    }
    return count;
}

/* Writes the records that were added until now. */
static void ds__trace_pump(ds__trace_output *o) {
    ds__spinlock_lock(&ds__trace.lock);
    uint64_t upto = ds__trace.head;
    uint64_t dropped = ds__trace.dropped;
    ds__spinlock_unlock(&ds__trace.lock);
    while (o->file && o->format->write && !o->failed && o->at.record < upto) {
        uint64_t lost = o->lost;
        size_t count = ds__trace_ring_read(o, upto);
        ds__trace_view_update();
        o->format->write(o, o->list, count, o->lost - lost + dropped - o->dropped);
        o->dropped = dropped;
    }
    if (!o->failed || !o->file)
        return;
    ds__log_warn("trace: the file %.200s takes no more: the disk is full, or there is no memory",
                 o->path);
    ds__trace_output_fclose(o);
}

/* Completes the file. */
static void ds__trace_output_close(ds__trace_output *o, uint64_t now) {
    if (!o->file)
        return;
    o->format->end(o, now);
    ds__trace_output_fclose(o);
    if (o->failed)
        ds__log_warn("trace: the file %.200s could not be completed", o->path);
}

/* Writes the operations at which streams stand, behind the records of a dump. */
static void ds__trace_dump_standing(ds__trace_output *o) {
    ds__activity_standing *list = ds__host_alloc(DS__TRACE_STANDING * sizeof *list);
    size_t count = list && o->format->write ? ds__trace_standing_list(list) : 0;
    for (size_t i = 0; i < count; i++)
        o->list[i] = ds__trace_standing_record(&list[i]);
    ds__trace_view_update();
    if (count)
        o->format->write(o, o->list, count, 0);
    ds__host_free(list);
}

/* Writes the ring to a file. */
static ds_result ds__trace_dump_write(const char *path) {
    ds__trace_output *o = ds__host_alloc(sizeof *o);
    if (!o)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to write a trace");
    ds__mutex_lock(&ds__trace.file_lock);
    ds_result r = ds__trace_output_open(o, path);
    if (r == DS_OK) {
        ds__spinlock_lock(&ds__trace.lock);
        o->dropped = ds__trace.dropped;
        if (ds__trace.head > ds__trace.ring_size)
            o->at.record = ds__trace.head - ds__trace.ring_size;
        ds__spinlock_unlock(&ds__trace.lock);
        ds__trace_pump(o);
        if (o->file)
            ds__trace_dump_standing(o);
        ds__trace_output_close(o, atomic_load(&ds__trace.on) ? ds__trace_now() : ds__trace.end_ns);
        if (o->failed)
            r = ds__fail(DS_ERR_SYSTEM, "trace: the file \"%.200s\" could not be written", path);
        ds__trace_output_deinit(o);
    }
    ds__mutex_unlock(&ds__trace.file_lock);
    ds__host_free(o);
    return r;
}

/* trace/options.h - options of the layer.

   ds__trace_configure reads the list of ds_init_desc.trace or DEVSTREAM_TRACE into ds__trace.start.
   ds__trace_desc_check checks parameters, of a list and of ds_trace_start.

   Invariants: the texts of ds__trace.start point to static memory.
   Locks: ds__g.mutex is held.
   Threads: the one that starts devstream. */

/* Checks the parameters of a trace. */
static ds_result ds__trace_desc_check(const ds_trace_desc *d) {
    const ds__trace_format *format;
    const char *paths[2] = { d->file, d->dump };
    for (int i = 0; i < 2; i++) {
        ds_result r = paths[i] ? ds__trace_format_find(paths[i], &format) : DS_OK;
        if (r < 0)
            return r;
    }
    DS__REQUIRE(!d->file || !d->dump || strcmp(d->file, d->dump) != 0,
                "trace: the file and the dump are both \"%.200s\"; use two files", d->file);
    DS__REQUIRE(!d->ring || (d->ring >= DS__TRACE_RING_LEAST && d->ring <= DS__TRACE_RING_MOST),
                "trace: a ring of %zu records; %d to %d are allowed", d->ring, DS__TRACE_RING_LEAST,
                DS__TRACE_RING_MOST);
    DS__REQUIRE(d->signal >= 0 && d->signal <= 64,
                "trace: signal %d; 1 to 64 are allowed, or 0 for none", d->signal);
    DS__REQUIRE(d->cupti == 0 || d->cupti == 1, "trace: cupti is %d; 0 or 1 is allowed", d->cupti);
    DS__REQUIRE(!d->signal || d->dump, "trace: signal %d needs a file for the dump", d->signal);
    return DS_OK;
}

/* Reads a number from 1 to `most`. Returns 0 if the text is none. */
static unsigned long long ds__trace_number(const char *text, unsigned long long most) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && n <= most ? n : 0;
}

/* Takes one option. */
static ds_result ds__trace_option(const char *o) {
    static char file[DS__TRACE_PATH];
    static char dump[DS__TRACE_PATH];
    ds_trace_desc *d = &ds__trace.start;
    const char *value = strchr(o, '=');
    const char *path = value ? value + 1 : o;
    DS__REQUIRE(strlen(path) < sizeof file,
                "trace: \"%.40s...\" has %zu characters; at most %zu are "
                "allowed",
                o, strlen(path), sizeof file - 1);
    if (strcmp(o, "cupti") == 0) {
        d->cupti = 1;
    } else if (!value || strncmp(o, "file=", 5) == 0) {
        DS__REQUIRE(!d->file, "trace: two files, \"%.100s\" and \"%.100s\"; use one", d->file,
                    path);
        memcpy(file, path, strlen(path) + 1);
        d->file = file;
    } else if (strncmp(o, "dump=", 5) == 0) {
        memcpy(dump, path, strlen(path) + 1);
        d->dump = dump;
    } else if (strncmp(o, "ring=", 5) == 0) {
        d->ring = (size_t)ds__trace_number(value + 1, DS__TRACE_RING_MOST);
        DS__REQUIRE(d->ring, "trace: \"%.40s\"; use ring=%d to ring=%d", o, DS__TRACE_RING_LEAST,
                    DS__TRACE_RING_MOST);
    } else if (strncmp(o, "timeout=", 8) == 0) {
        d->timeout_ns = ds__trace_number(value + 1, 1000000000) * 1000000;
        DS__REQUIRE(d->timeout_ns, "trace: \"%.40s\"; use timeout=1 to timeout=1000000000", o);
    } else if (strncmp(o, "signal=", 7) == 0) {
        d->signal = (int)ds__trace_number(value + 1, 64);
        DS__REQUIRE(d->signal, "trace: \"%.40s\"; use signal=1 to signal=64", o);
    } else {
        return ds__fail(
            DS_ERR_INVALID_VALUE,
            "trace: unknown option \"%.40s\"; use a file, file=FILE, ring=N, dump=FILE, "
            "timeout=MS, signal=N or cupti",
            o);
    }
    return DS_OK;
}

/* Reads a list of options; "1" stands for the defaults, and without options no trace begins with
   devstream. NULL: forgets them. On failure they are forgotten, too. */
static ds_result ds__trace_configure(const char *list) {
    char option[DS__LAYER_OPTIONS];
    ds_result r = DS_OK;
    memset(&ds__trace.start, 0, sizeof ds__trace.start);
    ds__trace.starts = 0;
    while (list && *list && r == DS_OK) {
        size_t n = strcspn(list, ",");
        memcpy(option, list, n);
        option[n] = 0;
        list += n + (list[n] == ',');
        ds__trace.starts |= n > 0;
        if (n && strcmp(option, "1") != 0)
            r = ds__trace_option(option);
    }
    if (r == DS_OK)
        r = ds__trace_desc_check(&ds__trace.start);
    if (r < 0) {
        memset(&ds__trace.start, 0, sizeof ds__trace.start);
        ds__trace.starts = 0;
    }
    return r;
}

/* trace/run.h - start and end of a trace.

   ds__trace_begin starts the recording of activity and opens the file. Ten times in a second the
   thread of the recordings (ds__trace_tick) writes new records, writes the dump that a signal has
   asked for, and reports calls that block longer than the time-out. ds__trace_finish ends the
   trace.

   Invariants: while `on` is 1, the ring exists. The ring and the tables stay after the end, until
   the next begin or the end of the layer.
   Locks: `control` is held by ds__trace_begin and ds__trace_finish.
   Threads: any start and end. ds__trace_tick runs on the thread of the recordings. */

static struct {
    int number; /* 0: none */
    ds__os_handler former;
} ds__trace_signal;

/* The handler of the signal: only asks the thread of the recordings. */
static void ds__trace_signalled(int number) {
    int error = errno;
    ds__os_handler former;
    (void)ds__os_signal_set(number, ds__trace_signalled, &former);
    atomic_store(&ds__trace.signalled, 1);
    ds__activity_urge();
    errno = error;
}

/* Prints where the streams stand, because of a call that blocks. */
static void ds__trace_report(const char *fn, ds_site site, uint64_t took) {
    ds__trace_output o;
    memset(&o, 0, sizeof o);
    ds__mutex_lock(&ds__trace.file_lock);
    if (site.file)
        ds__trace_print(&o, "devstream: trace: %.80s at %.200s:%d has waited for %.3f ms\n", fn,
                        site.file, site.line, (double)took / 1e6);
    else
        ds__trace_print(&o, "devstream: trace: %.80s has waited for %.3f ms\n", fn,
                        (double)took / 1e6);
    ds__trace_standing_write(&o);
    fwrite(o.text, 1, o.size, stderr);
    ds__trace_output_deinit(&o);
    ds__mutex_unlock(&ds__trace.file_lock);
}

/* Reports each call that blocks longer than the time-out, once. Returns 1 if there was one. */
static int ds__trace_waiting_check(void) {
    int reported = 0;
    uint64_t limit = ds__trace.desc.timeout_ns;
    for (int found = limit != 0; found;) {
        ds__trace_waiting one = { .fn = NULL };
        uint64_t now = ds__trace_now();
        found = 0;
        ds__spinlock_lock(&ds__trace.lock);
        for (ds__trace_waiting *w = ds__trace.waiting; w && !found; w = w->next)
            if (!w->reported && now - w->begin >= limit) {
                w->reported = found = 1;
                one = *w;
            }
        ds__spinlock_unlock(&ds__trace.lock);
        if (found)
            ds__trace_report(one.fn ? one.fn : "a call", one.site, now - one.begin);
        reported |= found;
    }
    return reported;
}

/* The callback of the recording. */
static void ds__trace_tick(const ds_activity_batch *batch, void *unused) {
    (void)unused;
    ds__trace_take(batch);
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace_pump(&ds__trace.output);
    ds__mutex_unlock(&ds__trace.file_lock);
    int dumps = atomic_exchange(&ds__trace.signalled, 0);
    dumps |= ds__trace_waiting_check();
    if (dumps && ds__trace.desc.dump && ds__trace_dump_write(ds__trace.desc.dump) < 0)
        ds__log_warn("%s", ds__tls.error);
}

/* Frees what a trace has, except for the streams. */
static void ds__trace_release(void) {
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace_output_fclose(&ds__trace.output);
    ds__trace_output_deinit(&ds__trace.output);
    ds__trace_view_deinit();
    ds__spinlock_lock(&ds__trace.lock);
    ds__trace_record *ring = ds__trace.ring;
    uint64_t *place = ds__trace.place;
    ds__trace.ring = NULL;
    ds__trace.place = NULL;
    ds__trace.head = ds__trace.ring_size = 0;
    ds__trace_tables_deinit();
    ds__spinlock_unlock(&ds__trace.lock);
    ds__mutex_unlock(&ds__trace.file_lock);
    ds__host_free(ring);
    ds__host_free(place);
}

/* Allocates the ring, with a power of two of records, and sets everything to the beginning. */
static ds_result ds__trace_prepare(const ds_trace_desc *desc) {
    size_t wanted = desc->ring ? desc->ring : DS__TRACE_RING;
    size_t size = DS__TRACE_RING_LEAST;
    while (size < wanted)
        size *= 2;
    ds__trace_record *ring = ds__host_alloc(size * sizeof *ring);
    uint64_t *place = ds__host_alloc(size * sizeof *place);
    ds__spinlock_lock(&ds__trace.lock);
    int ready = ring && place && ds__trace_tables_init();
    ds__trace.ring = ring;
    ds__trace.place = place;
    ds__trace.ring_size = size;
    ds__trace.dropped = ds__trace.operations = ds__trace.untimed = 0;
    ds__trace.waits = ds__trace.collectives = 0;
    ds__trace.end_ns = 0;
    memset(ds__trace.open, 0, sizeof ds__trace.open);
    ds__trace.zero_ns = ds__now_ns();
    ds__trace.unix_ns = (uint64_t)ds__os_wall_ns();
    atomic_fetch_add(&ds__trace.epoch, 1);
    ds__spinlock_unlock(&ds__trace.lock);
    return ready ? DS_OK
                 : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a ring of %zu records", size);
}

/* Keeps the parameters with copies of their texts. */
static void ds__trace_desc_keep(const ds_trace_desc *desc) {
    ds__trace.desc = *desc;
    if (desc->dump)
        snprintf(ds__trace.dump, sizeof ds__trace.dump, "%s", desc->dump);
    ds__trace.desc.dump = desc->dump ? ds__trace.dump : NULL;
    ds__trace.desc.file = NULL; /* the output has it */
}

static ds_result ds__trace_signal_set(int number) {
    ds__trace_signal.number = 0;
    int error =
        number ? ds__os_signal_set(number, ds__trace_signalled, &ds__trace_signal.former) : 0;
    if (error)
        return ds__fail(DS_ERR_INVALID_VALUE, "trace: no handler for signal %d: %s", number,
                        strerror(error));
    ds__trace_signal.number = number;
    return DS_OK;
}

static void ds__trace_signal_end(void) {
    ds__os_handler own;
    if (ds__trace_signal.number)
        (void)ds__os_signal_set(ds__trace_signal.number, ds__trace_signal.former, &own);
    ds__trace_signal.number = 0;
}

/* Starts a trace with parameters that were checked. `control` is held. */
static ds_result ds__trace_begin(const ds_trace_desc *desc) {
    ds_activity_desc activity = { .fn = ds__trace_tick, .capacity = DS__TRACE_ACTIVITIES };
    ds__trace_release(); /* of the trace before */
    ds_result r = ds__trace_prepare(desc);
    ds__trace_desc_keep(desc);
    if (r == DS_OK && desc->file) {
        ds__mutex_lock(&ds__trace.file_lock);
        r = ds__trace_output_open(&ds__trace.output, desc->file);
        ds__mutex_unlock(&ds__trace.file_lock);
    }
    if (r == DS_OK)
        r = ds__trace_signal_set(desc->signal);
    if (r == DS_OK)
        r = ds__activity_client_start(DS__ACTIVITY_TRACE, &activity, desc->cupti);
    if (r < 0) {
        ds__trace_signal_end();
        ds__trace_release();
        return r;
    }
    atomic_store(&ds__trace.on, 1);
    return DS_OK;
}

/* Completes the file of a trace whose recording has ended. */
static void ds__trace_complete(void) {
    ds__mutex_lock(&ds__trace.file_lock);
    ds__spinlock_lock(&ds__trace.lock);
    atomic_store(&ds__trace.on, 0);
    ds__trace.end_ns = ds__trace_now();
    ds__spinlock_unlock(&ds__trace.lock);
    ds__trace_signal_end();
    ds__trace_pump(&ds__trace.output);
    ds__trace_output_close(&ds__trace.output, ds__trace.end_ns);
    ds__mutex_unlock(&ds__trace.file_lock);
}

/* Ends the trace. `control` is held. */
static ds_result ds__trace_finish(void) {
    ds_result r = ds__activity_client_stop(DS__ACTIVITY_TRACE);
    if (r == DS_OK)
        ds__trace_complete();
    return r;
}

/* trace/seen.h - the layer's observer.

   ds__trace_seen makes records of occurrences that never reach a driver: blocks of the allocator,
   collectives and fills, ranges, marks and labels.

   Invariants: the ranges that a thread has pushed since the trace began are in ds__trace_tls, as
   far as there is room. A range that began before the trace has no record.
   Locks: ds__trace.lock is taken; the allocator calls with locks of its own held.
   Threads: any. */

/* A block was given out, freed, or is free again, or there is no memory for one. */
static void ds__trace_seen_block(const ds__seen *seen, int kind) {
    ds__trace_record r = { .kind = (uint8_t)kind,
                           .dst = ds__trace_place_of(seen->device),
                           .row = DS__TRACE_NONE,
                           .begin = ds__trace_now(),
                           .time = (uint64_t)(uintptr_t)seen->ptr,
                           .amount = seen->bytes };
    r.end = r.begin;
    if (seen->stream.id) {
        ds__spinlock_lock(&ds__trace.lock);
        if (atomic_load_explicit(&ds__trace.on, memory_order_relaxed))
            r.row = ds__trace_stream_of(seen->stream.id, 0, r.dst ? r.dst - 1u : 0);
        ds__spinlock_unlock(&ds__trace.lock);
    }
    ds__trace_note(r, seen->label, seen->fn, seen->site);
}

/* A collective or a fill begins. */
static void ds__trace_seen_begin(const ds__seen *seen) {
    ds__spinlock_lock(&ds__trace.lock);
    (void)ds__trace_thread_of();
    if (ds__trace_tls.depth < 8)
        ds__trace_tls.begin[ds__trace_tls.depth] = ds__trace_now();
    ds__trace_tls.depth++;
    if (strncmp(seen->fn ? seen->fn : "", "ds_rng_", 7) != 0 &&
        ds__trace.collectives < DS__TRACE_COLLECTIVES && !ds__trace_is_collective(seen->fn))
        ds__trace.collective[ds__trace.collectives++] = seen->fn;
    ds__spinlock_unlock(&ds__trace.lock);
}

/* It is enqueued, or done. */
static void ds__trace_seen_end(const ds__seen *seen) {
    ds__trace_record r = { .kind = DS__TRACE_CALL,
                           .flags = ds__trace_flags(seen->result),
                           .end = ds__trace_now() };
    uint32_t epoch = atomic_load_explicit(&ds__trace.epoch, memory_order_relaxed);
    if (ds__trace_tls.epoch != epoch || !ds__trace_tls.depth || --ds__trace_tls.depth >= 8)
        return;
    r.begin = ds__trace_tls.begin[ds__trace_tls.depth];
    for (size_t i = 0; i < seen->operands; i++)
        r.amount += seen->operand[i].bytes;
    ds__trace_note(r, NULL, seen->fn, seen->site);
}

/* The innermost range of the thread in the domain ends. */
static void ds__trace_range_pop(const ds_range_event *e, ds_site site) {
    unsigned n = ds__trace_tls.ranges;
    if (ds__trace_tls.epoch != atomic_load_explicit(&ds__trace.epoch, memory_order_relaxed))
        return;
    while (n > 0 && ds__trace_tls.range[n - 1].domain != e->domain.id)
        n--;
    if (!n)
        return;
    ds__trace_record r = { .kind = DS__TRACE_RANGE,
                           .begin = ds__trace_tls.range[n - 1].begin,
                           .end = ds__trace_time(e->time_ns),
                           .name = ds__trace_tls.range[n - 1].name };
    for (; n < ds__trace_tls.ranges; n++)
        ds__trace_tls.range[n - 1] = ds__trace_tls.range[n];
    ds__trace_tls.ranges--;
    ds__trace_note(r, NULL, "ds_range_push", site);
}

static void ds__trace_range_push(const ds_range_event *e) {
    ds__spinlock_lock(&ds__trace.lock);
    (void)ds__trace_thread_of();
    unsigned n = ds__trace_tls.ranges;
    if (n == DS__TRACE_NESTED) { /* forgets the outermost one */
        n--;
        memmove(&ds__trace_tls.range[0], &ds__trace_tls.range[1],
                n * sizeof ds__trace_tls.range[0]);
    }
    ds__trace_tls.range[n].begin = ds__trace_time(e->time_ns);
    ds__trace_tls.range[n].domain = e->domain.id;
    ds__trace_tls.range[n].name = ds__trace_text(e->text);
    ds__trace_tls.ranges = n + 1;
    ds__spinlock_unlock(&ds__trace.lock);
}

/* A range of ds_range_start begins or ends. */
static void ds__trace_range_open(const ds_range_event *e, ds_site site) {
    ds__trace_record r = { .kind = DS__TRACE_RANGE, .end = ds__trace_time(e->time_ns) };
    uint64_t wanted = e->kind == DS_RANGE_START ? 0 : e->id;
    size_t i = 0;
    ds__spinlock_lock(&ds__trace.lock);
    while (i < DS__TRACE_OPEN_RANGES && ds__trace.open[i].id != wanted)
        i++;
    int found = i < DS__TRACE_OPEN_RANGES;
    if (found && e->kind == DS_RANGE_START) {
        ds__trace.open[i].id = e->id;
        ds__trace.open[i].begin = r.end;
        ds__trace.open[i].name = ds__trace_text(e->text);
    } else if (found) {
        r.begin = ds__trace.open[i].begin;
        r.name = ds__trace.open[i].name;
        ds__trace.open[i].id = 0;
    }
    ds__spinlock_unlock(&ds__trace.lock);
    if (found && e->kind == DS_RANGE_END)
        ds__trace_note(r, NULL, "ds_range_start", site);
}

/* A stream or the calling thread gets a label; also while no trace runs. */
static void ds__trace_seen_label(const ds_range_event *e, int on) {
    ds__spinlock_lock(&ds__trace.lock);
    for (size_t i = 0; e->kind == DS_RANGE_STREAM_LABEL && i < ds__trace.streams; i++) {
        ds__trace_stream *s = &ds__trace.stream[i];
        if (s->number != e->id || s->lane)
            continue;
        snprintf(s->name, sizeof s->name, "%s", e->text ? e->text : "");
        s->label = on ? ds__trace_text(s->name) : 0;
    }
    if (e->kind == DS_RANGE_THREAD_LABEL && on) {
        uint32_t thread = ds__trace_thread_of();
        if (thread != DS__TRACE_NONE)
            ds__trace.thread[thread].name = ds__trace_text(e->text);
    }
    ds__spinlock_unlock(&ds__trace.lock);
}

static void ds__trace_seen_range(const ds_range_event *e, int on) {
    ds_site site = { e->file, e->line };
    if (e->kind >= DS_RANGE_STREAM_LABEL) {
        ds__trace_seen_label(e, on);
    } else if (!on) {
        return;
    } else if (e->kind == DS_RANGE_PUSH) {
        ds__trace_range_push(e);
    } else if (e->kind == DS_RANGE_POP) {
        ds__trace_range_pop(e, site);
    } else if (e->kind == DS_RANGE_MARK) {
        ds__trace_record r = { .kind = DS__TRACE_MARK, .begin = ds__trace_time(e->time_ns) };
        r.end = r.begin;
        ds__trace_note(r, e->text, "ds_range_mark", site);
    } else {
        ds__trace_range_open(e, site);
    }
}

static void ds__trace_seen(const ds__seen *seen) {
    int on = atomic_load_explicit(&ds__trace.on, memory_order_acquire);
    if (seen->kind == DS__SEEN_RANGE)
        ds__trace_seen_range(seen->range, on);
    if (!on)
        return;
    switch (seen->kind) {
    case DS__SEEN_ALLOC:
        ds__trace_seen_block(seen, DS__TRACE_ALLOC);
        break;
    case DS__SEEN_FREE:
        ds__trace_seen_block(seen, DS__TRACE_FREE);
        break;
    case DS__SEEN_FREE_DONE:
        ds__trace_seen_block(seen, DS__TRACE_FREED);
        break;
    case DS__SEEN_OOM:
        ds__trace_seen_block(seen, DS__TRACE_OOM);
        break;
    case DS__SEEN_BEGIN:
        ds__trace_seen_begin(seen);
        break;
    case DS__SEEN_END:
        ds__trace_seen_end(seen);
        break;
    default:
        break;
    }
}

/* trace/layer.h - the layer's driver tables.

   Most of a trace comes from the recording of activity and from the observer. The table notes what
   both do not tell: names of streams, how long calls block the host, and the end of the drivers.

   Invariants: a call that blocks is in the list of ds__trace.waiting while it blocks.
   Locks: the wrapped entries call the driver without ds__trace.lock.
   Threads: any. The tables are made in ds_init or at the start, under ds__g.mutex. */

/* The handle of a stream is known now. */
static void ds__trace_stream_named(int backend, void *stream, uint64_t handle) {
    ds__trace.next[backend]->stream_named(stream, handle);
    ds__stream *s = ds__pin(&ds__g.streams, handle);
    if (!s)
        return;
    ds__spinlock_lock(&ds__trace.lock);
    ds__trace_stream_name(handle, ds__trace_device(s->device), s->id, s->label);
    ds__spinlock_unlock(&ds__trace.lock);
    ds__stream_unpin(s);
}

/* A call begins to block. */
static void ds__trace_block_begin(ds__trace_waiting *w) {
    w->fn = ds__tls.fn;
    w->site = ds__tls.site;
    w->begin = ds__trace_now();
    w->reported = 0;
    ds__spinlock_lock(&ds__trace.lock);
    w->next = ds__trace.waiting;
    ds__trace.waiting = w;
    ds__spinlock_unlock(&ds__trace.lock);
}

/* It returns. cause: the operation that it waited for; 0: none, or several. least: a shorter wait
   is none, as most frees wait for nothing. */
static void ds__trace_block_end(const ds__trace_waiting *w, uint64_t cause, uint64_t least,
                                ds_result result) {
    ds__trace_record r = { .kind = DS__TRACE_BLOCKED,
                           .flags = ds__trace_flags(result),
                           .begin = w->begin,
                           .end = ds__trace_now(),
                           .cause = (uint32_t)cause };
    ds__spinlock_lock(&ds__trace.lock);
    ds__trace_waiting **p = &ds__trace.waiting;
    while (*p != w)
        p = &(*p)->next;
    *p = w->next;
    ds__spinlock_unlock(&ds__trace.lock);
    if (r.end - r.begin >= least)
        ds__trace_note(r, NULL, w->fn, w->site);
}

/* Returns 1 if calls that block have records now. */
static int ds__trace_blocks(void) {
    return atomic_load_explicit(&ds__trace.on, memory_order_relaxed) && !ds__tls.in_callback;
}

/* Calls an entry that may block, between the two. */
#define DS__TRACE_BLOCKING(b, cause, least, entry, arguments) \
    ds__trace_waiting w;                                      \
    if (!ds__trace_blocks())                                  \
        return ds__trace.next[b]->entry arguments;            \
    uint64_t id = cause;                                      \
    ds__trace_block_begin(&w);                                \
    ds_result r = ds__trace.next[b]->entry arguments;         \
    ds__trace_block_end(&w, id, least, r);                    \
    return r

static ds_result ds__trace_stream_synchronize(int b, void *stream, uint64_t timeout_ns) {
    if (!timeout_ns)
        return ds__trace.next[b]->stream_synchronize(stream, timeout_ns);
    DS__TRACE_BLOCKING(b, ds__trace.next[b]->activity_last(stream, 0), 1, stream_synchronize,
                       (stream, timeout_ns));
}

static ds_result ds__trace_event_synchronize(int b, void *event, uint64_t timeout_ns) {
    if (!timeout_ns)
        return ds__trace.next[b]->event_synchronize(event, timeout_ns);
    DS__TRACE_BLOCKING(b, ds__trace.next[b]->activity_last(event, 1), 1, event_synchronize,
                       (event, timeout_ns));
}

static ds_result ds__trace_device_synchronize(int b, int device) {
    DS__TRACE_BLOCKING(b, 0, 1, device_synchronize, (device));
}

static ds_result ds__trace_memory_wait(int b, int device) {
    DS__TRACE_BLOCKING(b, 0, DS__TRACE_BLOCKED_NS, memory_wait, (device));
}

static ds_result ds__trace_submit(int b, void *stream, const ds__op *op) {
    if (DS__LIKELY(!(op->flags & DS__OP_BLOCKS) ||
                   (op->kind != DS__OP_COPY && op->kind != DS__OP_FILL)))
        return ds__trace.next[b]->submit(stream, op);
    DS__TRACE_BLOCKING(b, 0, 1, submit, (stream, op));
}

/* Completes the trace when the recording has ended with ds_shutdown. */
static void ds__trace_shutdown(void) {
    if (!atomic_load(&ds__trace.on))
        return;
    ds__trace_complete();
    if (ds__trace.desc.dump && ds__trace_dump_write(ds__trace.desc.dump) < 0)
        ds__log_warn("%s", ds__tls.error);
}

/* A driver stops. The last one ends the layer: the trace before it, since the check layer below may
   end the process. */
static void ds__trace_stop(int b) {
    const ds__driver *next = ds__trace.next[b];
    int last = --ds__trace.layer == 0;
    if (last)
        ds__trace_shutdown();
    ds__trace.next[b] = NULL;
    next->stop();
    if (!last)
        return;
    ds__trace_release();
    ds__spinlock_lock(&ds__trace.lock);
    ds__trace_streams_deinit();
    ds__spinlock_unlock(&ds__trace.lock);
    memset(&ds__trace.start, 0, sizeof ds__trace.start);
    ds__trace.starts = 0;
}

/* X(backend, entry, result, parameters, arguments): the entries that the layer replaces. */
#define DS__TRACE_ENTRIES(X, b)                                                                    \
    X(b, stream_named, void, (void *stream, uint64_t handle), (b, stream, handle))                 \
    X(b, stream_synchronize, return, (void *stream, uint64_t timeout_ns), (b, stream, timeout_ns)) \
    X(b, event_synchronize, return, (void *event, uint64_t timeout_ns), (b, event, timeout_ns))    \
    X(b, device_synchronize, return, (int device), (b, device))                                    \
    X(b, memory_wait, return, (int device), (b, device))                                           \
    X(b, submit, return, (void *stream, const ds__op *op), (b, stream, op))                        \
    X(b, stop, void, (void), (b))

#define DS__TRACE_RESULT_void void
#define DS__TRACE_RESULT_return ds_result
#define DS__TRACE_CALL_void (void)0;
#define DS__TRACE_CALL_return return
#define DS__TRACE_FUNCTION(b, entry, result, parameters, arguments)       \
    static DS__TRACE_RESULT_##result ds__trace_##b##_##entry parameters { \
        DS__TRACE_CALL_##result ds__trace_##entry arguments;              \
    }
DS__TRACE_ENTRIES(DS__TRACE_FUNCTION, 0)
DS__TRACE_ENTRIES(DS__TRACE_FUNCTION, 1)

static const ds__driver *ds__trace_layer_apply(const ds__driver *next, int backend) {
    ds__driver *t = &ds__trace.table[backend];
    ds__trace.next[backend] = next;
    *t = *next;
#define DS__TRACE_SET(b, entry, result, parameters, arguments) \
    t->entry = backend ? ds__trace_1_##entry : ds__trace_0_##entry;
    DS__TRACE_ENTRIES(DS__TRACE_SET, 0)
#undef DS__TRACE_SET
    ds__trace.layer++;
    return t;
}

/* Starts the trace of the options, if there are any. */
static ds_result ds__trace_layer_start(void) {
    return ds__trace.starts ? ds__trace_begin(&ds__trace.start) : DS_OK;
}

static ds__layer ds__trace_layer = { .name = "trace",
                                     .apply = ds__trace_layer_apply,
                                     .observer = ds__trace_seen,
                                     .configure = ds__trace_configure,
                                     .start = ds__trace_layer_start };

/* trace/api.h - the public functions of the layer.

   Invariants: a call that is refused changes nothing.
   Locks: `control` while a trace starts or ends.
   Threads: any. */

static ds_result ds__trace_is_off(void) {
    return ds__fail(DS_ERR_ILLEGAL_STATE, "the trace layer is off; set DEVSTREAM_TRACE, or "
                                          "ds_init_desc.trace, or name \"trace\" in "
                                          "DEVSTREAM_LAYERS");
}

static ds_result ds__trace_is_idle(void) {
    return ds__fail(DS_ERR_ILLEGAL_STATE, "no trace runs");
}

DSDEF ds_result(ds_trace_start)(const ds_trace_desc *desc) {
    static const ds_trace_desc none;
    DS__ENTER("ds_trace_start");
    if (!ds__trace.layer)
        return ds__trace_is_off();
    if (!desc)
        desc = &none;
    DS__REQUIRE_RESERVED("ds_trace_desc", desc);
    ds_result r = ds__trace_desc_check(desc);
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__trace.control);
    r = atomic_load(&ds__trace.on)
            ? ds__fail(DS_ERR_ILLEGAL_STATE, "a trace runs already; end it first")
            : ds__trace_begin(desc);
    ds__mutex_unlock(&ds__trace.control);
    return r;
}

DSDEF ds_result(ds_trace_stop)(void) {
    DS__ENTER("ds_trace_stop");
    if (!ds__trace.layer)
        return ds__trace_is_off();
    ds__mutex_lock(&ds__trace.control);
    ds_result r = atomic_load(&ds__trace.on) ? ds__trace_finish() : ds__trace_is_idle();
    ds__mutex_unlock(&ds__trace.control);
    return r;
}

DSDEF ds_result(ds_trace_flush)(void) {
    DS__ENTER("ds_trace_flush");
    if (!ds__trace.layer)
        return ds__trace_is_off();
    return atomic_load(&ds__trace.on) ? ds__activity_client_flush(DS__ACTIVITY_TRACE)
                                      : ds__trace_is_idle();
}

/* Takes the records of complete operations, before the ring is read. */
static ds_result ds__trace_ready(void) {
    if (!ds__trace.layer)
        return ds__trace_is_off();
    if (atomic_load(&ds__trace.on))
        return ds__activity_client_flush(DS__ACTIVITY_TRACE);
    return ds__trace.ring ? DS_OK
                          : ds__fail(DS_ERR_ILLEGAL_STATE, "no trace was started; use "
                                                           "ds_trace_start");
}

DSDEF ds_result(ds_trace_dump)(const char *path) {
    DS__ENTER("ds_trace_dump");
    DS__REQUIRE(path, "path is NULL");
    ds_result r = ds__trace_ready();
    return r < 0 ? r : ds__trace_dump_write(path);
}

/* Hands text out: to the buffer, cut at a line, or to standard error. */
static ds_result ds__trace_hand_out(ds__trace_output *o, char *text, size_t size) {
    size_t n = o->size;
    if (!text) {
        fwrite(o->text, 1, n, stderr);
    } else {
        while (n && n >= size)
            for (n--; n && o->text[n - 1] != '\n';)
                n--;
        memcpy(text, o->text ? o->text : "", n);
        text[n] = 0;
    }
    int cut = n < o->size;
    size_t whole = o->size;
    int failed = o->failed;
    ds__trace_output_deinit(o);
    if (failed)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the text");
    return cut ? ds__fail(DS_ERR_LIMIT_EXCEEDED,
                          "the text has %zu bytes; the buffer has %zu, with the terminating zero",
                          whole, size)
               : DS_OK;
}

static ds_result ds__trace_text_check(const char *text, size_t size) {
    DS__REQUIRE(!text || size, "size is 0; at least 1 byte is needed");
    return ds__trace_ready();
}

DSDEF ds_result(ds_trace_summary)(char *text, size_t size) {
    ds__trace_output o;
    if (text && size)
        *text = 0;
    DS__ENTER("ds_trace_summary");
    ds_result r = ds__trace_text_check(text, size);
    if (r < 0)
        return r;
    memset(&o, 0, sizeof o);
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace_summary_write(&o);
    ds__mutex_unlock(&ds__trace.file_lock);
    return ds__trace_hand_out(&o, text, size);
}

DSDEF ds_result(ds_trace_standing)(char *text, size_t size) {
    ds__trace_output o;
    if (text && size)
        *text = 0;
    DS__ENTER("ds_trace_standing");
    ds_result r = ds__trace_text_check(text, size);
    if (r < 0)
        return r;
    memset(&o, 0, sizeof o);
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace_standing_write(&o);
    ds__mutex_unlock(&ds__trace.file_lock);
    return ds__trace_hand_out(&o, text, size);
}

DSDEF ds_result(ds_trace_get_stats)(ds_trace_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_trace_get_stats");
    DS__REQUIRE(out, "out is NULL");
    if (!ds__trace.layer)
        return ds__trace_is_off();
    ds__mutex_lock(&ds__trace.file_lock);
    ds__spinlock_lock(&ds__trace.lock);
    const ds__trace_output *o = &ds__trace.output;
    out->operations = ds__trace.operations;
    out->untimed = ds__trace.untimed;
    out->records = ds__trace.head;
    out->kept = ds__trace.head < ds__trace.ring_size ? ds__trace.head : ds__trace.ring_size;
    out->dropped = ds__trace.dropped + o->lost;
    out->written = o->at.record - o->lost;
    out->bytes = o->bytes;
    ds__spinlock_unlock(&ds__trace.lock);
    ds__mutex_unlock(&ds__trace.file_lock);
    return DS_OK;
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
