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

   Known gaps: on CUDA, nodes of graphs have records only with the option "cupti". Operations of
   other libraries are not seen. */
#include "devstream.h"

#ifndef DEVSTREAM_TRACE_H_INCLUDED
#define DEVSTREAM_TRACE_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the trace layer ------------------------------------------------------------------------- */

/* The layer keeps the last records in memory, and writes all of them to a file while the program
   runs. It records
   - each operation on a stream with its begin and end (api/activity.h has the rules of times), and
     the operation for which each wait waited
   - calls that block the host, blocks of the allocator, collectives, ranges and marks
   - nodes of graph launches, on CPU devices and with CUPTI.

   The layer is on if "trace" is in DEVSTREAM_LAYERS or ds_init_desc.layers, or if DEVSTREAM_TRACE
   or ds_init_desc.trace is set. With options, a trace runs from the start of devstream to
   ds_shutdown. Without them, it begins with ds_trace_start. If the layer is off, the functions
   below return DS_ERR_ILLEGAL_STATE.

   Options, a list with commas in DEVSTREAM_TRACE or ds_init_desc.trace; "1" alone: only the ring.
       FILE          file that is written while the program runs, at the end of the process up to
                     the last flush. The ending selects the format: .html, a page with a timeline
                     that opens without a network; .json, for Perfetto and chrome://tracing;
                     .json.gz, the same compressed (DEVSTREAM_ZLIB); .txt, a summary at the end.
                     "%p" stands for the number of the process
       file=FILE     the same
       ring=N        number of records that are kept in memory, 256 to 16777216, rounded up to a
                     power of two; 131072 by default
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
    DS_ERR_ILLEGAL_STATE: the layer is off, a trace runs, or CUPTI is wanted and another tool uses
    it in this process, which has one place for a tool. DS_ERR_INVALID_VALUE: a file cannot be
    written, or has an unknown ending, or a value is out of range. DS_ERR_UNSUPPORTED: .json.gz
    without DEVSTREAM_ZLIB, or the CPU driver has a fabric, or CUPTI is wanted and there is no CUDA
    device or no libcupti of CUDA 11.8 or later. DS_ERR_DRIVER: CUPTI refused. If the
    call fails for another reason than a parameter, the records of the trace before are gone. */
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
    if (ds__trace.has_file && n - ds__trace.output.at.record == ds__trace.ring_size / 2)
        ds__activity_urge();
}

/* Returns a record of the ring by its number, below the head; NULL: it was overwritten. */
static const ds__trace_record *ds__trace_get(uint64_t n) {
    if (ds__trace.head - n > ds__trace.ring_size)
        return NULL;
    return &ds__trace.ring[n & (ds__trace.ring_size - 1)];
}

/* Returns the record of an operation, or NULL. Nodes of graphs have no place. */
static const ds__trace_record *ds__trace_find(uint32_t id) {
    uint64_t at = ds__trace.place[id & (ds__trace.ring_size - 1)];
    const ds__trace_record *r = id && at ? ds__trace_get(at - 1) : NULL;
    return r && r->id == id ? r : NULL;
}

/* Returns 1 if an operation is a step of a collective: an operation between ranks, which is a wait
   with a name, or work that a collective has enqueued. */
static int ds__trace_is_step(const ds_activity *a) {
    if (a->kind == DS_ACTIVITY_WAIT)
        return a->name != NULL;
    return (int)a->kind <= DS__TRACE_FILL && a->call && strncmp(a->call, "ds_comm_", 8) == 0;
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
    if (ds__trace_is_step(a)) {
        if (!r.name)
            r.name = ds__trace_text(ds__activity_kind_name(a->kind));
        r.kind = DS__TRACE_STEP;
    }
    return r;
}

static void ds__trace_take_one(const ds_activity *a) {
    ds__trace_record r = ds__trace_record_of(a);
    if (!a->begin_ns && a->result == DS_OK)
        ds__trace_untimed(&r);
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
        ds__mutex_lock(&ds__trace.lock);
        for (size_t n = 0; n < DS__TRACE_SLICE && i < batch->count; n++, i++)
            ds__trace_take_one(&batch->records[i]);
        ds__mutex_unlock(&ds__trace.lock);
    }
    if (batch->dropped) {
        ds__mutex_lock(&ds__trace.lock);
        ds__trace.dropped += batch->dropped;
        ds__mutex_unlock(&ds__trace.lock);
    }
}

/* Takes a record of the calling thread, if a trace runs. The record has no texts yet; `name` is
   NULL or the text of the record. fn: the call, or the hazard of a race. */
static void ds__trace_note(ds__trace_record r, const char *name, const char *fn, ds_site site) {
    ds__mutex_lock(&ds__trace.lock);
    if (atomic_load_explicit(&ds__trace.on, memory_order_relaxed)) {
        uint32_t thread = ds__trace_thread_of();
        if (r.kind < DS__TRACE_ALLOC)
            r.row = thread;
        else if (r.kind < DS__TRACE_RACE)
            r.id = thread;
        if (name)
            r.name = ds__trace_text(name);
        r.call = ds__trace_text(fn);
        r.file = ds__trace_text(site.file);
        r.line = site.file ? (uint32_t)site.line : 0;
        ds__trace_add(&r);
    }
    ds__mutex_unlock(&ds__trace.lock);
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

/* Brings the copies of the tables up to date. Streams and threads may get another name, so they are
   copied each time. Returns 0 if there is no memory for all entries. */
static int ds__trace_view_update(void) {
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_view.texts =
        ds__trace_view_copy(&ds__trace_view.text, sizeof *ds__trace_view.text, ds__trace_view.texts,
                            &ds__trace_view.text_room, ds__trace.text, ds__trace.texts);
    ds__trace_view.streams =
        ds__trace_view_copy(&ds__trace_view.stream, sizeof *ds__trace_view.stream, 0,
                            &ds__trace_view.stream_room, ds__trace.stream, ds__trace.streams);
    ds__trace_view.threads =
        ds__trace_view_copy(&ds__trace_view.thread, sizeof *ds__trace_view.thread, 0,
                            &ds__trace_view.thread_room, ds__trace.thread, ds__trace.threads);
    int complete = ds__trace_view.texts == ds__trace.texts &&
                   ds__trace_view.streams == ds__trace.streams &&
                   ds__trace_view.threads == ds__trace.threads;
    ds__mutex_unlock(&ds__trace.lock);
    return complete;
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

/* Returns the stream of a row, or NULL if it has none or there was no memory for the copy. */
static const ds__trace_stream *ds__trace_view_stream(uint32_t row) {
    return row < ds__trace_view.streams ? &ds__trace_view.stream[row] : NULL;
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

__attribute__((format(DS__PRINTF, 2, 3))) static void ds__trace_print(ds__trace_output *o,
                                                                      const char *format, ...) {
    va_list args;
    char line[512];
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    ds__trace_put(o, line, ds__text_length(n, sizeof line));
}

/* Writes a JSON string with its quotes. No "<" is in it, so that it may stand in a script of a
   page. Bytes that are no UTF-8 become "?". */
static void ds__trace_put_string(ds__trace_output *o, const char *text) {
    const unsigned char *t = (const unsigned char *)text;
    ds__trace_put(o, "\"", 1);
    while (*t) {
        size_t more = ds__utf8_length((const char *)t);
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

/* Writes bytes to the file, so that they are in it even if the process is killed. */
static void ds__trace_output_write(ds__trace_output *o, const char *text, size_t size) {
    if (o->failed || !size)
        return;
    if (fwrite(text, 1, size, o->file) == size && fflush(o->file) == 0)
        o->bytes += size;
    else
        o->failed = 1;
}

/* Writes the collected text. end: a compressed file ends with it. */
static void ds__trace_output_flush(ds__trace_output *o, int end) {
    if (o->packer && !o->failed) {
        const char *packed = o->text;
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
    if (!ds__trace_output_fopen(o, path)) {
        ds__log_warn("trace: the file %.200s: %s", path, strerror(errno));
        o->failed = 1;
    }
    return !o->failed;
}

/* Frees an output after its file is closed. */
static void ds__trace_output_deinit(ds__trace_output *o) {
    ds__host_free(o->text);
    ds__host_free(o->ends);
    ds__host_free(o->queue);
    ds__host_free(o->list);
    memset(o, 0, sizeof *o);
}

/* Generated by tools/page.awk from src/trace/page.html. */

static const char *const ds__trace_page[] = {
    "<!doctype html>\n"
    "<html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>\n"
    "<title>Trace - devstream</title>\n"
    "<style>\n"
    ":root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1c2230;--soft:#5c6575;--line:#d9dde4;--bad:#c62828;--good:#1b6e42;--arrow:#7d5200;--wait:#f2ce74;--late:#f0ab9a;--start:#c5d0e2;--none:#fff}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#14171d;--card:#1c2028;--text:#e6e9ef;--soft:#98a1b3;--line:#343b48;--bad:#ff6b6b;--good:#63c490;--arrow:#f0c75e;--wait:#75591a;--late:#743a2c;--start:#3a4860;--none:#1c2028}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:16px 20px;max-width:1800px;background:var(--back);color:var(--text);font:14px/1.45 system-ui,sans-serif}\n"
    "h1{font-size:20px;margin:0}h2{font-size:16px;margin:0 0 2px}\n"
    "header,#tiles,#legend{display:flex;flex-wrap:wrap;gap:8px 14px}\n"
    "header{justify-content:space-between;align-items:center}\n"
    "header>div{display:flex;flex-wrap:wrap;gap:6px;align-items:center}\n"
    "p{margin:2px 0 8px;color:var(--soft);max-width:120ch}\n"
    "section,#tiles>div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px}\n"
    "section,#tiles,#notes{margin-top:12px}#tiles>div{flex:1 1 106px;padding:8px 14px}\n"
    "#tiles b{display:block;font-size:18px}#tiles span{color:var(--soft);font-size:12px}\n"
    "#notes p{border-left:4px solid var(--bad);padding:4px 10px;background:var(--card);color:var(--text)}\n"
    "input,button,.button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:4px 9px}\n"
    "button,.button{cursor:pointer}input[type=search]{width:250px}\n"
    ":focus-visible{outline:2px solid var(--text);outline-offset:1px}\n"
    ".button:focus-within{outline:2px solid var(--text)}.button input{position:absolute;opacity:0;width:1px}\n"
    "#legend{gap:3px 14px;margin:4px 0 8px;font-size:12px}\n"
    "#legend span{white-space:nowrap}\n"
    "i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:5px;vertical-align:-2px}\n"
    "canvas{display:block}\n"
    "#box{position:relative;overflow:hidden auto;max-height:64vh;border:1px solid var(--line);border-radius:6px}\n"
    "#map{position:sticky;top:0;touch-action:pan-y;cursor:default}\n"
    "#pick{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:1px 14px;margin:8px 0 0;align-content:start}#pick.used{min-height:200px}\n"
    "#pick dt{color:var(--soft)}#pick dd{margin:0;overflow-wrap:anywhere}\n"
    "#pick .name{grid-column:1/-1;font-weight:600;color:var(--text)}\n"
    ".link{border:0;padding:0;background:none;color:inherit;text-align:left;text-decoration:underline}\n"
    ".scroll{overflow-x:auto}\n"
    "table{border-collapse:collapse;width:100%}\n"
    "th,td{text-align:right;padding:3px 8px;border-bottom:1px solid var(--line);white-space:nowrap}\n"
    "th{color:var(--soft);font-weight:600}th button{all:unset;cursor:pointer}th button:focus-visible{outline:2px solid var(--text)}\n"
    "th:first-child,td:first-child,.left{text-align:left;overflow-wrap:anywhere;white-space:normal}\n"
    "tbody tr{cursor:pointer}tbody tr:hover,tr.on{background:var(--back)}\n"
    "small{color:var(--soft);margin-left:6px}.bad,small.worse{color:var(--bad)}small.better{color:var(--good)}\n"
    "#tip{position:fixed;z-index:9;pointer-events:none;background:var(--card);border:1px solid var(--soft);border-radius:4px;padding:6px 10px;font-size:12px;white-space:pre-line;max-width:480px;display:none;overflow-wrap:anywhere}\n"
    "dialog{background:var(--card);color:var(--text);border:1px solid var(--soft);border-radius:8px;max-width:620px}\n"
    "kbd{border:1px solid var(--line);border-radius:4px;padding:0 5px;background:var(--back)}\n"
    "dialog td:first-child{white-space:nowrap}\n"
    "#races td:first-child{white-space:pre-line}\n"
    "</style></head>\n"
    "<body>\n"
    "<header><h1>Trace <span id=program></span></h1><span id=when></span>\n"
    "<div><input id=find type=search placeholder='Find a name, label or file' aria-label='Find a name, label or file'><span id=found role=status></span>\n"
    "<label class=button id=open>Compare with ...<input type=file id=other accept=.html,.htm aria-label='Open a second trace for comparison'></label><button id=apart hidden>End comparison</button>\n",
    "<button id=help aria-label='Help: keys and mouse'>?</button></div></header>\n"
    "<div id=notes role=status></div>\n"
    "<div id=all hidden>\n"
    "<div id=tiles></div>\n"
    "<section><header><h2>Timeline</h2><div><label><input type=checkbox id=arrows checked> arrows of waits</label>\n"
    "<button id=out aria-label='Zoom out'>&minus;</button><button id=in aria-label='Zoom in'>+</button><button id=fit>Fit</button></div></header>\n"
    "<div id=legend></div>\n"
    "<div id=box><canvas id=map tabindex=0 role=application aria-label='Timeline: streams, host threads and memory over time. Keys: W and S zoom, A and D move, N and P select an operation, question mark for help.'></canvas><div id=space></div></div>\n"
    "<dl id=pick role=status aria-label='Selected operation'></dl></section>\n"
    "<section id=races hidden><h2 class=bad>Races</h2><p>Pairs of operations that the check layer reported. Click one to see it in the timeline.</p><div class=scroll><table></table></div></section>\n"
    "<section id=ooms hidden><h2 class=bad>Out of memory</h2><div class=scroll><table></table></div></section>\n"
    "<section id=streams><h2>Streams</h2><p>Busy: share of the trace's time in which an operation of the stream ran. Overlap: share of this busy time in which another stream of the same device was busy, too. Rate: bytes of copies, fills and steps of collectives, per time that these took. Click a line to zoom to the stream and list its gaps.</p><div class=scroll><table></table></div></section>\n"
    "<section id=names><h2>Operations</h2><p>By kind and name. Rate: bytes per time, for kernels elements per time. Click a heading to sort, a line to select the longest one.</p><div class=scroll><table></table></div></section>\n"
    "<section id=gaps><h2>Longest gaps</h2><p id=whose></p><div class=scroll><table></table></div></section>\n"
    "<section id=waits><h2>Longest waits</h2><p>Streams and host threads that stood, and the operations that they waited for.</p><div class=scroll><table></table></div></section>\n"
    "</div>\n"
    "<div id=tip></div>\n"
    "<dialog id=keys aria-label='Keys and mouse'><h2>Keys and mouse</h2><table></table><button>Close</button></dialog>\n"
    "<script>\n"
    "'use strict';\n"
    "const {min, max, floor, ceil, round, abs, log10, hypot} = Math;\n"
    "const $ = id => document.getElementById(id);\n"
    "const el = (tag, text = '', more) => Object.assign(document.createElement(tag), {textContent: text}, more);\n"
    "const css = name => getComputedStyle(document.body).getPropertyValue(name).trim();\n"
    "const many = n => n.toLocaleString('en'), plural = (n, what) => many(n) + ' ' + what + (n === 1 ? '' : 's');\n"
    "const part = x => isFinite(x) ? (100 * x).toFixed(x && x < 0.1 ? 1 : 0) + ' %' : '-';\n"
    "const scaled = (v, by, units, space = ' ') => {\n"
    "let u = 0;\n"
    "for (v = abs(v); v >= by * 0.99995 && u < units.length - 1; u++) v /= by;\n"
    "return (v >= 99.95 || v === floor(v) ? v.toFixed(0) : v.toPrecision(3)) + space + units[u];\n"
    "};\n"
    "const size = n => (n < 0 ? '-' : '') + scaled(n, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);\n"
    "const rate = (n, what) => isFinite(n) && n ? scaled(n, 1000, ['', 'k', 'M', 'G', 'T', 'P']) + what + '/s' : '-';\n"
    "const span = ns => (ns < 0 ? '-' : '') + (abs(ns) < 999950 ? scaled(ns, 1000, ['ns', 'us']) : scaled(ns / 1e6, 1000, ['ms', 's']));\n"
    "\n"
    "/* Kinds of records, and the colour classes of each kind of track. Gaps have the classes below. */\n"
    "const KINDS = {1: 'kernel', 2: 'copy', 3: 'fill', 4: 'host function', 5: 'event record', 6: 'wait', 7: 'values', 8: 'graph launch', 9: 'graph node', 10: 'collective step',\n"
    "16: 'host wait', 17: 'range', 18: 'mark', 19: 'call', 24: 'allocation', 25: 'free', 26: 'out of memory', 27: 'free completed', 32: 'race'};\n"
    "const WORK = [['kernel, graph node', '#3f68bf'], ['copy', '#2c7d52'], ['fill', '#66762a'], ['host function', '#7a54b8'], ['event record, values', '#66707f'], ['graph launch', '#1f7a8c'], ['collective step', '#b04a80']];\n"
    "const HOST = [['host wait', '#94561a'], ['range', '#5d6b85'], ['call of a collective or fill', '#b04a80'], ['mark', '#66707f']];\n"
    "const CLASS = {1: 0, 9: 0, 2: 1, 3: 2, 4: 3, 5: 4, 7: 4, 8: 5, 10: 6, 16: 0, 17: 1, 19: 2, 18: 3};\n"
    "const CLASSES = Uint8Array.from({length: 256}, (x, k) => CLASS[k] || 0);\n",
    "/* The time in which no operation of a stream runs is divided into pieces. Event records and waits are no operations.\n"
    "WAIT: a wait record of the stream covers the time; the cause is the operation that it waited for.\n"
    "LATE: otherwise, the next operation had not been enqueued yet, and the stream had done its earlier ones.\n"
    "START: otherwise, the next operation was enqueued, but it had not begun (launch overhead, or a busy device).\n"
    "NONE: before the first operation of the stream was enqueued, and after its last one. */\n"
    "const WAIT = 0, LATE = 1, START = 2, NONE = 3;\n"
    "const GAPS = [['waiting', '--wait', 'A wait of the stream covers this time; the arrow comes from the operation that it waited for.'],\n"
    "['host late', '--late', 'No wait, and the host had not enqueued the next operation yet, though the stream had finished its earlier ones.'],\n"
    "['starting', '--start', 'No wait, and the next operation was enqueued but had not begun: launch overhead, or a busy device.'],\n"
    "['no work', '--none', 'Before the first operation of the stream was enqueued, and after its last one.']];\n"
    "\n"
    "/* ---- reading: chunks of JSON with records of 16 words ---- */\n"
    "\n"
    "const OPENING = '<script type=application/x-devstream>', CLOSING = '<' + '/script>', LARGE = 2e6;\n"
    "async function bytesOf(chunk) {\n"
    "const text = chunk.deflated || chunk.records;\n"
    "const raw = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), c => c.charCodeAt(0));\n"
    "if (!chunk.deflated) return raw;\n"
    "const stream = new DecompressionStream('deflate'), writer = stream.writable.getWriter();\n"
    "for (const step of [writer.write(raw), writer.close()]) step.catch(() => {}); /* reading reports the error */\n"
    "return new Uint8Array(await new Response(stream.readable).arrayBuffer());\n"
    "}\n"
    "\n"
    "/* Decodes the records of a large trace on other threads, and here where the browser has none. */\n"
    "function decoder() {\n"
    "const asked = new Map(), workers = [];\n"
    "let size = 0;\n"
    "const here = () => { workers.length = 0; for (const [id, {chunk, resolve}] of asked) { asked.delete(id); resolve(bytesOf(chunk)); } };\n"
    "const answer = e => { const {resolve, reject} = asked.get(e.data[0]); asked.delete(e.data[0]); if (e.data[1]) resolve(e.data[1]); else reject(); };\n"
    "const launch = () => {\n"
    "try {\n"
    "const url = URL.createObjectURL(new Blob([bytesOf, ';onmessage=e=>bytesOf(e.data[1]).then(x=>postMessage([e.data[0],x],[x.buffer]),()=>postMessage([e.data[0]]))']));\n"
    "for (let i = 0; i < min(4, navigator.hardwareConcurrency || 2); i++) workers.push(Object.assign(new Worker(url), {onmessage: answer, onerror: here}));\n"
    "} catch { workers.length = 0; }\n"
    "};\n"
    "let n = 0;\n"
    "const decode = ({records, deflated}) => {\n"
    "const chunk = {records, deflated}, length = (records || deflated).length;\n"
    "if (size < LARGE && (size += length) >= LARGE) launch();\n"
    "if (!workers.length) return bytesOf(chunk);\n"
    "return new Promise((resolve, reject) => {\n"
    "asked.set(++n, {chunk, resolve, reject});\n"
    "workers[n % workers.length].postMessage([n, chunk]);\n"
    "});\n"
    "};\n"
    "return {decode, end: () => workers.forEach(w => w.terminate())};\n"
    "}\n"
    "\n"
    "/* Strings and tables are appended chunk by chunk, so nothing after a damaged chunk can be understood. */\n"
    "async function read(texts, label) {\n"
    "const T = {label, strings: [''], devices: [], streams: [], threads: [], program: '', driver: '', unix: 0, dropped: 0, end: -1, cut: 0, shift: 0};\n"
    "const waiting = [], {decode, end} = decoder();\n"
    "for await (const text of texts) {\n"
    "let c;\n"
    "try { c = JSON.parse(T.cut ? '' : text); } catch { T.cut++; continue; }\n"
    "for (const name of ['strings', 'devices', 'streams', 'threads']) for (const x of c[name] || []) T[name].push(x);\n"
    "for (const name of ['program', 'driver']) T[name] = c[name] || T[name];\n"
    "if (c.unix_ns) T.unix = Number(c.unix_ns);\n"
    "T.dropped += c.dropped || 0;\n"
    "if (c.end >= 0) T.end = c.end;\n"
    "const bytes = c.records || c.deflated ? decode(c) : Promise.resolve(new Uint8Array(0));\n"
    "bytes.catch(() => {}); /* below */\n"
    "waiting.push(bytes);\n"
    "}\n"
    "const parts = [];\n"
    "let n = 0;\n"
    "for (const {value} of await Promise.allSettled(waiting)) {\n"
    "if (!value) { T.cut += waiting.length - parts.length; T.end = -1; break; }\n"
    "parts.push(value);\n",
    "n += value.length >> 6;\n"
    "}\n"
    "end();\n"
    "const all = new Uint8Array(n * 64);\n"
    "n = 0;\n"
    "for (const p of parts) { all.set(p.subarray(0, p.length & ~63), n); n += p.length & ~63; }\n"
    "T.w = new Uint32Array(all.buffer);\n"
    "T.n = n / 64;\n"
    "return T;\n"
    "}\n"
    "/* The chunks of this page, also while the browser still reads the file: the last one may not be whole yet. */\n"
    "async function* chunksHere() {\n"
    "for (let whole = false; !whole;) {\n"
    "whole = document.readyState !== 'loading';\n"
    "const list = [...document.querySelectorAll('script[type=\"application/x-devstream\"]')];\n"
    "for (const s of whole ? list : list.slice(0, -1)) { yield s.textContent; s.remove(); }\n"
    "if (!whole) await new Promise(resolve => setTimeout(resolve, 10));\n"
    "}\n"
    "}\n"
    "function chunksOf(text) {\n"
    "const list = [];\n"
    "for (let at = 0, to; (at = text.indexOf('\\n' + OPENING, at)) >= 0; at = to) {\n"
    "to = text.indexOf(CLOSING, at);\n"
    "if (to < 0) to = text.length;\n"
    "list.push(text.slice(at + 1 + OPENING.length, to));\n"
    "}\n"
    "return list;\n"
    "}\n"
    "\n"
    "/* ---- records ---- */\n"
    "\n"
    "const word = (T, i, k) => T.w[16 * i + k], wide = (T, i, k) => T.w[16 * i + k] + T.w[16 * i + k + 1] * 4294967296;\n"
    "const kindOf = (T, i) => T.k[i], flags = (T, i) => T.w[16 * i] >> 8 & 255;\n"
    "const text = (T, i, k) => T.strings[word(T, i, k)] || '';\n"
    "const kindName = k => KINDS[k] || 'operation of kind ' + k;\n"
    "const nameOf = (T, i) => text(T, i, 8) || text(T, i, 9) || kindName(kindOf(T, i));\n"
    "const site = (T, i) => text(T, i, 10) ? text(T, i, 10) + ':' + word(T, i, 11) : '';\n"
    "const where = (T, i) => i < 0 ? '' : [text(T, i, 9), site(T, i)].filter(x => x).join(' at ');\n"
    "const amount = (T, i) => wide(T, i, 12);\n"
    "const isBytes = kind => kind === 2 || kind === 3 || kind === 10 || kind === 19;\n"
    "const device = (T, d) => T.devices[d] || 'device ' + d;\n"
    "const streamName = (T, s) => { const x = T.streams[s] || [0, 0, s]; return 'stream ' + x[2] + (T.strings[x[1]] ? ' ' + T.strings[x[1]] : ''); };\n"
    "const rowOf = (T, i) => (T.k[i] < 16 ? T.byStream : T.byThread).get(T.r[i]);\n"
    "/* The operation with a correlation id, or -1. The ids of a trace are nearly consecutive. */\n"
    "const byId = (T, id) => {\n"
    "if (!id) return -1;\n"
    "const i = T.table ? T.table[id - T.least] : T.map.get(id);\n"
    "return i ? i - 1 : -1;\n"
    "};\n"
    "\n"
    "/* The nodes of a graph are enqueued by its launch. */\n"
    "function enqueued(T, i) {\n"
    "const launch = T.k[i] === 9 ? byId(T, word(T, i, 15)) : -1;\n"
    "return T.q[launch < 0 ? i : launch];\n"
    "}\n"
    "\n"
    "function times(T) {\n"
    "const w = T.w, n = T.n;\n"
    "T.b = new Float64Array(n);\n"
    "T.e = new Float64Array(n);\n"
    "T.q = new Float64Array(n);\n"
    "T.k = new Uint8Array(n);\n"
    "T.r = new Uint32Array(n);\n"
    "let from = Infinity, to = max(0, T.end), least = 4294967295, most = 0;\n"
    "for (let i = 0, o = 0; i < n; i++, o += 16) {\n"
    "const b = w[o + 2] + w[o + 3] * 4294967296, e = w[o + 4] + w[o + 5] * 4294967296, id = w[o + 14], k = w[o] & 255;\n"
    "T.b[i] = b;\n"
    "T.e[i] = e;\n"
    "T.q[i] = w[o + 6] + w[o + 7] * 4294967296;\n"
    "T.k[i] = k;\n"
    "T.r[i] = w[o + 1];\n"
    "if (b < from) from = b;\n"
    "if (e > to) to = e;\n"
    "if (b > to) to = b;\n"
    "if (k < 16 && id) { if (id < least) least = id; if (id > most) most = id; }\n"
    "}\n"
    "T.from = min(from, to);\n"
    "T.to = max(to, T.from + 1);\n"
    "T.least = least;\n"
    "T.table = most - least < 4 * n + 1000 ? new Int32Array(max(0, most - least) + 1) : null;\n"
    "T.map = T.table ? null : new Map();\n"
    "for (let i = 0, o = 0; i < n; i++, o += 16) {\n"
    "const unfinished = w[o] & 1024, id = w[o + 14];\n"
    "if (unfinished || T.e[i] < T.b[i]) T.e[i] = unfinished ? T.to : T.b[i];\n"
    "if (T.k[i] < 16 && id) if (T.table) T.table[id - least] = i + 1; else T.map.set(id, i + 1);\n"
    "}\n"
    "}\n"
    "\n"
    "/* ---- tracks: intervals in order of their begin that do not overlap, drawn in one line ---- */\n"
    "\n"
    "const EACH = 16;\n"
    "function track(T, list, n, C) {\n"
    "const k = {n, C, b: new Float64Array(n), e: new Float64Array(n), c: new Uint8Array(n), id: list.slice(0, n)};\n"
    "for (let j = 0; j < n; j++) {\n"
    "const i = list[j];\n"
    "k.b[j] = T.b[i];\n"
    "k.e[j] = T.e[i];\n"
    "k.c[j] = CLASSES[T.k[i]];\n"
    "}\n"
    "return summed(k);\n"
    "}\n"
    "/* The time of each class before every 16th interval, for the share of a class in any stretch. */\n"
    "function summed(k) {\n"
    "const now = new Float64Array(k.C);\n"
    "k.sums = new Float64Array((floor(k.n / EACH) + 1) * k.C);\n"
    "for (let j = 0; j < k.n; j++) {\n",
    "if (j % EACH === 0) k.sums.set(now, j / EACH * k.C);\n"
    "now[k.c[j]] += k.e[j] - k.b[j];\n"
    "}\n"
    "if (k.n % EACH === 0) k.sums.set(now, k.n / EACH * k.C);\n"
    "return k;\n"
    "}\n"
    "/* The number of elements of the ascending array a[0..n) that are less than t. */\n"
    "function before(a, n, t) {\n"
    "let low = 0, high = n;\n"
    "while (low < high) {\n"
    "const mid = (low + high) >> 1;\n"
    "if (a[mid] < t) low = mid + 1; else high = mid;\n"
    "}\n"
    "return low;\n"
    "}\n"
    "/* The time of each class before t. Only the last interval that began can go on after t. */\n"
    "function until(k, t, out) {\n"
    "const j = before(k.b, k.n, t), s = floor(j / EACH);\n"
    "for (let c = 0; c < k.C; c++) out[c] = k.sums[s * k.C + c];\n"
    "for (let i = s * EACH; i < j; i++) out[k.c[i]] += k.e[i] - k.b[i];\n"
    "if (j && k.e[j - 1] > t) out[k.c[j - 1]] -= k.e[j - 1] - t;\n"
    "}\n"
    "\n"
    "function ordered(T, list) {\n"
    "let sorted = true;\n"
    "for (let j = 1; sorted && j < list.length; j++) sorted = T.b[list[j - 1]] <= T.b[list[j]];\n"
    "return sorted ? list : Int32Array.from(Array.from(list).sort((x, y) => T.b[x] - T.b[y] || T.e[y] - T.e[x] || x - y));\n"
    "}\n"
    "\n"
    "/* Intervals that overlap, such as nested ranges and the nodes of a graph, go into further lines. */\n"
    "function lanes(T, list, C) {\n"
    "const ends = [], found = [];\n"
    "for (let j = 0; j < list.length; j++) {\n"
    "const i = list[j];\n"
    "let l = 0;\n"
    "while (l < ends.length && ends[l] > T.b[i]) l++;\n"
    "if (l === ends.length && l === 6) l = 5;\n"
    "if (l === ends.length) { ends.push(0); found.push({n: 0, list: new Int32Array(list.length)}); }\n"
    "ends[l] = max(ends[l], T.e[i]);\n"
    "found[l].list[found[l].n++] = i;\n"
    "}\n"
    "return found.map(f => track(T, f.list, f.n, C));\n"
    "}\n"
    "\n"
    "/* Divides the idle time of a stream into pieces by cause, and finds its gaps, its busy time and its longest gaps. */\n"
    "function cut(T, row, work, waits) {\n"
    "const P = {n: 0, C: 4, b: new Float64Array(2 * work.length + 2 * waits.length + 4)};\n"
    "P.e = new Float64Array(P.b.length);\n"
    "P.c = new Uint8Array(P.b.length);\n"
    "P.id = new Int32Array(P.b.length);\n"
    "const busy = new Float64Array(2 * work.length), sums = new Float64Array(4);\n"
    "let next = 0, m = 0, end = T.from, last = -1, least = 0;\n"
    "const piece = (b, e, c, id) => {\n"
    "if (e <= b) return;\n"
    "P.b[P.n] = b;\n"
    "P.e[P.n] = e;\n"
    "P.c[P.n] = c;\n"
    "P.id[P.n++] = id;\n"
    "sums[c] += e - b;\n"
    "};\n"
    "const rest = (b, e, i) => {\n"
    "const q = i < 0 ? T.to : min(e, max(b, enqueued(T, i)));\n"
    "piece(b, q, i < 0 || last < 0 ? NONE : LATE, i);\n"
    "piece(q, e, START, i);\n"
    "};\n"
    "const gap = (b, e, i) => {\n"
    "let t = b;\n"
    "sums.fill(0);\n"
    "for (; next < waits.length && T.b[waits[next]] < e; next++) {\n"
    "const x = waits[next], z = min(e, T.e[x]);\n"
    "if (z <= t) continue;\n"
    "rest(t, T.b[x], i);\n"
    "piece(max(t, T.b[x]), z, WAIT, x);\n"
    "t = z;\n"
    "if (T.e[x] > e) break;\n"
    "}\n"
    "rest(t, e, i);\n"
    "if (last < 0 || i < 0 || e - b <= least) return;\n"
    "row.gaps.push({T, row, b, e, last, next: i, c: sums.indexOf(max(...sums)), share: max(...sums) / (e - b)});\n"
    "if (row.gaps.length > 100) { row.gaps.sort((x, y) => y.e - y.b - x.e + x.b).length = 20; least = row.gaps[19].e - row.gaps[19].b; }\n"
    "};\n"
    "row.gaps = [];\n"
    "for (let j = 0; j < work.length; j++) {\n"
    "const i = work[j];\n"
    "if (T.b[i] > end || last < 0) {\n"
    "if (last >= 0) busy[m++] = end;\n"
    "gap(end, T.b[i], i);\n"
    "busy[m++] = T.b[i];\n"
    "}\n"
    "if (T.e[i] > end || last < 0) { end = T.e[i]; last = i; }\n"
    "}\n"
    "if (m) busy[m++] = end;\n"
    "gap(end, T.to, -1);\n"
    "row.gaps.sort((x, y) => y.e - y.b - x.e + x.b).splice(20);\n"
    "row.pieces = summed(P);\n"
    "row.busy = busy.subarray(0, m);\n"
    "}\n"
    "\n"
    "/* The records of each stream and thread, in order of their begin, and those of other kinds. */\n"
    "function sort(T) {\n"
    "const lists = [new Map(), new Map()], counts = [[], []], memory = [], races = [];\n"
    "for (let i = 0; i < T.n; i++) {\n"
    "const k = T.k[i], r = T.r[i];\n"
    "if (k < 24) counts[k >> 4][r] = (counts[k >> 4][r] || 0) + 1;\n"
    "else if (k < 28) memory.push(i);\n"
    "else if (k === 32) races.push(i);\n"
    "}\n"
    "for (const x of [0, 1]) for (const r in counts[x]) lists[x].set(+r, new Int32Array(counts[x][r]));\n"
    "const lines = lists.map(l => { const a = []; for (const [r, list] of l) { a[r] = list; counts[0][r] = 0; counts[1][r] = 0; } return a; });\n"
    "for (let i = 0; i < T.n; i++) if (T.k[i] < 24) { const x = T.k[i] >> 4, r = T.r[i]; lines[x][r][counts[x][r]++] = i; }\n",
    "for (const l of lists) for (const [r, list] of l) l.set(r, ordered(T, list));\n"
    "return {streams: lists[0], threads: lists[1], memory, races};\n"
    "}\n"
    "/* The rows of a trace: headings, streams by device, host threads, memory by device. */\n"
    "function build(T) {\n"
    "const {streams, threads, memory: blocks, races} = sort(T), devices = new Map();\n"
    "T.rows = [];\n"
    "T.byStream = new Map();\n"
    "T.byThread = new Map();\n"
    "for (const r of streams.keys()) {\n"
    "const d = (T.streams[r] || [0])[0];\n"
    "devices.set(d, [...devices.get(d) || [], r]);\n"
    "}\n"
    "for (const [d, list] of [...devices].sort((x, y) => x[0] - y[0])) {\n"
    "T.rows.push({T, heading: device(T, d)});\n"
    "for (const r of list) T.rows.push(streamRow(T, r, d, streams.get(r)));\n"
    "}\n"
    "if (threads.size) T.rows.push({T, heading: 'host threads'});\n"
    "for (const [r, list] of threads) T.rows.push(threadRow(T, r, list));\n"
    "T.streamRows = T.rows.filter(r => r.busy);\n"
    "memory(T, blocks);\n"
    "T.races = races.map(i => ({T, i, early: byId(T, word(T, i, 15)), late: byId(T, word(T, i, 14))}));\n"
    "T.ooms = blocks.filter(i => kindOf(T, i) === 26);\n"
    "overlap(T);\n"
    "return T;\n"
    "}\n"
    "function streamRow(T, s, d, list) {\n"
    "const row = {T, name: streamName(T, s), device: device(T, d), stream: s};\n"
    "const drawn = new Int32Array(list.length), work = new Int32Array(list.length), waits = new Int32Array(list.length);\n"
    "let n = 0, m = 0, x = 0;\n"
    "for (let j = 0; j < list.length; j++) {\n"
    "const i = list[j], k = T.k[i];\n"
    "if (k === 6) waits[x++] = i;\n"
    "else {\n"
    "drawn[n++] = i;\n"
    "if (k !== 5) work[m++] = i;\n"
    "}\n"
    "}\n"
    "row.lanes = lanes(T, drawn.subarray(0, n), WORK.length);\n"
    "row.waits = track(T, waits, x, 1);\n"
    "cut(T, row, work.subarray(0, m), waits.subarray(0, x));\n"
    "if (!row.lanes.length) row.lanes.push(track(T, waits, 0, WORK.length));\n"
    "T.byStream.set(s, row);\n"
    "return row;\n"
    "}\n"
    "function threadRow(T, t, list) {\n"
    "const x = T.threads[t] || [t, 0];\n"
    "const row = {T, name: 'thread ' + x[0] + (T.strings[x[1]] ? ' ' + T.strings[x[1]] : ''), thread: t, lanes: lanes(T, list, HOST.length)};\n"
    "const blocked = list.filter(i => kindOf(T, i) === 16 && word(T, i, 15));\n"
    "row.waits = track(T, blocked, blocked.length, 1);\n"
    "T.byThread.set(t, row);\n"
    "return row;\n"
    "}\n"
    "\n"
    "/* The time in which each one is the only busy one, of lists of times that alternate between begin and end. A heap has the next time of each list on top. */\n"
    "function soleTime(lists) {\n"
    "const n = lists.length, at = new Int32Array(n), alone = new Float64Array(n), time = Float64Array.from(lists, l => l.length ? l[0] : Infinity);\n"
    "const heap = Int32Array.from([...lists.keys()].sort((x, y) => time[x] < time[y] ? -1 : 1));\n"
    "let active = 0, sum = 0, last = 0;\n"
    "while (time[heap[0]] < Infinity) {\n"
    "const k = heap[0], t = time[k];\n"
    "if (active === 1) alone[sum] += t - last;\n"
    "last = t;\n"
    "if (at[k] % 2) { active--; sum -= k; } else { active++; sum += k; }\n"
    "const next = ++at[k] < lists[k].length ? lists[k][at[k]] : Infinity;\n"
    "time[k] = next;\n"
    "let i = 0;\n"
    "for (let c = 1; c < n; c = 2 * i + 1) {\n"
    "if (c + 1 < n && time[heap[c + 1]] < time[heap[c]]) c++;\n"
    "if (time[heap[c]] >= next) break;\n"
    "heap[i] = heap[c];\n"
    "i = c;\n"
    "}\n"
    "heap[i] = k;\n"
    "}\n"
    "return alone;\n"
    "}\n"
    "/* The busy time of each stream, and the part in which another stream of its device is busy, too. */\n"
    "function overlap(T) {\n"
    "const devices = new Map();\n"
    "for (const r of T.streamRows) devices.set(r.device, [...devices.get(r.device) || [], r]);\n"
    "for (const rows of devices.values()) {\n"
    "const alone = soleTime(rows.map(r => r.busy));\n"
    "rows.forEach((r, k) => {\n"
    "r.busyTime = 0;\n"
    "for (let j = 0; j < r.busy.length; j += 2) r.busyTime += r.busy[j + 1] - r.busy[j];\n"
    "r.overlap = r.busyTime - alone[k];\n"
    "});\n"
    "}\n"
    "}\n"
    "\n"
    "/* Allocated rises with an allocation and falls with its free. Pending: freed, and the free completes later. */\n"
    "function memory(T, list) {\n"
    "const devices = new Map(), sorted = Array.from(ordered(T, Int32Array.from(list)));\n"
    "for (const i of sorted) {\n"
    "const d = word(T, i, 1) < 4294967295 ? (T.streams[word(T, i, 1)] || [0])[0] : (word(T, i, 0) >>> 24) - 1;\n"
    "if (!devices.has(d)) devices.set(d, []);\n"
    "devices.get(d).push(i);\n"
    "}\n"
    "if (devices.size) T.rows.push({T, heading: 'memory'});\n"
    "for (const [d, events] of [...devices].sort((x, y) => x[0] - y[0])) {\n",
    "const n = events.length, later = new Map(), deferred = new Uint8Array(n);\n"
    "const r = {T, name: d < 0 ? 'host or unknown' : device(T, d), memory: 1, n, t: new Float64Array(n), live: new Float64Array(n), pending: new Float64Array(n), events, ooms: []};\n"
    "for (let j = n - 1; j >= 0; j--) {\n"
    "const k = kindOf(T, events[j]), a = T.q[events[j]];\n"
    "if (k === 27) later.set(a, 1);\n"
    "else if (k === 25) { deferred[j] = later.has(a); later.delete(a); }\n"
    "}\n"
    "let live = 0, pending = 0, least = 0;\n"
    "events.forEach((i, j) => {\n"
    "const k = kindOf(T, i), by = amount(T, i);\n"
    "if (k === 24) live += by;\n"
    "if (k === 25) live -= by;\n"
    "if (k === 25 && deferred[j]) pending += by;\n"
    "if (k === 27) pending = max(0, pending - by);\n"
    "if (k === 26) r.ooms.push(i);\n"
    "least = min(least, live);\n"
    "r.t[j] = T.b[i];\n"
    "r.live[j] = live;\n"
    "r.pending[j] = pending;\n"
    "});\n"
    "r.before = -least; /* freed in the trace, allocated before it */\n"
    "for (let j = 0; j < n; j++) { r.live[j] -= least; r.pending[j] += r.live[j]; }\n"
    "r.peak = 1;\n"
    "for (let j = 0; j < n; j++) r.peak = max(r.peak, r.pending[j]);\n"
    "T.rows.push(r);\n"
    "}\n"
    "}\n"
    "\n"
    "/* Counts, times and amounts by kind and name. */\n"
    "function statistics(T) {\n"
    "const found = new Map(), w = T.w, names = T.strings.length;\n"
    "let lastKey = -1, s;\n"
    "T.sums = new Map(T.streamRows.map(r => [r.stream, {count: 0, bytes: 0, time: 0}]));\n"
    "for (let i = 0, o = 0; i < T.n; i++, o += 16) {\n"
    "const k = T.k[i];\n"
    "if (k >= 20 || k === 0 || k === 18) continue;\n"
    "const key = k * names + (w[o + 8] || w[o + 9]), d = T.e[i] - T.b[i], a = w[o + 12] + w[o + 13] * 4294967296;\n"
    "if (key !== lastKey) {\n"
    "s = found.get(key);\n"
    "if (!s) found.set(key, s = {kind: k, name: nameOf(T, i), count: 0, total: 0, most: -1, longest: i, amount: 0});\n"
    "lastKey = key;\n"
    "}\n"
    "s.count++;\n"
    "s.total += d;\n"
    "s.amount += a;\n"
    "if (d > s.most) { s.most = d; s.longest = i; }\n"
    "if (k > 10) continue;\n"
    "const of = T.sums.get(T.r[i]);\n"
    "if (k !== 5 && k !== 6) of.count++;\n"
    "if (k === 2 || k === 3 || k === 10) { of.bytes += a; of.time += d; }\n"
    "}\n"
    "T.stats = [...found.values()];\n"
    "}\n"
    "function longest(T, most) {\n"
    "let list = [];\n"
    "for (const r of T.rows) for (let j = 0; r.waits && j < r.waits.n; j++) {\n"
    "list.push(r.waits.id[j]);\n"
    "if (list.length > 4 * most) list = list.sort((x, y) => T.e[y] - T.b[y] - T.e[x] + T.b[x]).slice(0, most);\n"
    "}\n"
    "T.longWaits = list.sort((x, y) => T.e[y] - T.b[y] - T.e[x] + T.b[x]).slice(0, most);\n"
    "}\n"
    "function prepare(T) {\n"
    "times(T);\n"
    "build(T);\n"
    "statistics(T);\n"
    "longest(T, 500);\n"
    "return T;\n"
    "}\n"
    "\n"
    "/* ---- the view ---- */\n"
    "\n"
    "const NAMES = 190, AXIS = 26, LANE = 17, ROOM = 5, EXACT = 700;\n"
    "let A, B = null, rows = [], view = {from: 0, to: 1}, whole = {from: 0, to: 1}, picked = null, hovered = null, wanted = '', gapsOf = null, frame = 0, g, width, height, colours, shownArrows = [];\n"
    "const traces = () => B ? [A, B] : [A], letter = T => 'AB'[traces().indexOf(T)], mark = T => B ? letter(T) + ': ' : '';\n"
    "const X = t => NAMES + (t - view.from) / (view.to - view.from) * (width - NAMES);\n"
    "const timeAt = x => view.from + (x - NAMES) / (width - NAMES) * (view.to - view.from);\n"
    "\n"
    "function layout() {\n"
    "rows = [];\n"
    "let y = AXIS;\n"
    "for (const T of traces()) {\n"
    "if (B) rows.push({T, title: mark(T) + (T.label || T.program || 'trace') + (T.shift ? ', moved by ' + span(T.shift) + ': the first operations of both begin together' : '')});\n"
    "for (const r of T.rows) rows.push(r);\n"
    "}\n"
    "for (const r of rows) {\n"
    "r.y = y;\n"
    "r.h = r.memory ? 62 : 20;\n"
    "if (r.lanes) r.h = r.lanes.length * LANE + ROOM;\n"
    "y += r.h;\n"
    "}\n"
    "whole = {from: min(...traces().map(T => T.from + T.shift)), to: max(...traces().map(T => T.to + T.shift))};\n"
    "height = min(y + 4, max(240, floor(innerHeight * 0.64)));\n"
    "$('space').style.height = max(0, y + 4 - height) + 'px';\n"
    "$('box').style.height = height + 2 + 'px';\n"
    "}\n"
    "function later() { if (!frame) frame = requestAnimationFrame(draw); }\n"
    "function look(from, to) {\n"
    "const least = 20, most = (whole.to - whole.from) * 1.1;\n"
    "let w = min(most, max(least, to - from)), mid = (from + to) / 2;\n"
    "mid = min(whole.to + w * 0.45, max(whole.from - w * 0.45, mid));\n"
    "view = {from: mid - w / 2, to: mid + w / 2};\n"
    "later();\n"
    "}\n"
    "const fit = () => look(whole.from - (whole.to - whole.from) * 0.01, whole.to + (whole.to - whole.from) * 0.01);\n",
    "const zoom = (by, x = (width + NAMES) / 2) => { const t = timeAt(x); look(t - (t - view.from) * by, t + (view.to - t) * by); };\n"
    "const pan = by => { const d = (view.to - view.from) * by; look(view.from + d, view.to + d); };\n"
    "\n"
    "function pen() {\n"
    "const r = devicePixelRatio || 1, c = $('map');\n"
    "width = $('box').clientWidth;\n"
    "c.style.width = width + 'px';\n"
    "c.style.height = height + 'px';\n"
    "if (c.width !== round(width * r)) c.width = round(width * r);\n"
    "if (c.height !== round(height * r)) c.height = round(height * r);\n"
    "g = c.getContext('2d');\n"
    "g.setTransform(r, 0, 0, r, 0, 0);\n"
    "g.clearRect(0, 0, width, height);\n"
    "g.font = '11px system-ui,sans-serif';\n"
    "g.textBaseline = 'middle';\n"
    "g.textAlign = 'left';\n"
    "colours = {};\n"
    "for (const c of ['text', 'soft', 'line', 'bad', 'arrow', 'card', 'back', 'wait']) colours[c] = css('--' + c);\n"
    "colours.gaps = GAPS.map(x => css(x[1]));\n"
    "}\n"
    "const pixel = (hex, alpha) => (alpha << 24 | parseInt(hex.slice(5, 7), 16) << 16 | parseInt(hex.slice(3, 5), 16) << 8 | parseInt(hex.slice(1, 3), 16)) >>> 0;\n"
    "const clipped = (s, w) => {\n"
    "const n = floor(w / 6.3);\n"
    "if (s.length <= n) return s;\n"
    "return n > 2 ? s.slice(0, n - 1) + '\\u2026' : '';\n"
    "};\n"
    "\n"
    "/* Many intervals: each column of pixels shows the shares of the classes in its time, from the bottom up, then those of the gaps. */\n"
    "function columns(row, k, pieces, y) {\n"
    "const r = devicePixelRatio || 1, w = round((width - NAMES) * r), h = round((LANE - 2) * r), image = g.createImageData(w, h), px = new Uint32Array(image.data.buffer);\n"
    "const alpha = wanted ? 70 : 255, set = (row.thread >= 0 ? HOST : WORK).map(x => pixel(x[1], alpha)), idle = colours.gaps.map((x, c) => c === NONE ? 0 : pixel(x, alpha));\n"
    "let was = new Float64Array(k.C), now = new Float64Array(k.C), gapWas = new Float64Array(4), gapNow = new Float64Array(4);\n"
    "const step = (view.to - view.from) / w, from = view.from - row.T.shift;\n"
    "const bar = (x, top, share, colour) => {\n"
    "const to = max(0, top - (share > 0 ? max(1, round(share / step * h)) : 0));\n"
    "for (let at = to * w + x, end = top * w; at < end; at += w) px[at] = colour;\n"
    "return to;\n"
    "};\n"
    "until(k, from, was);\n"
    "if (pieces) until(pieces, from, gapWas);\n"
    "for (let x = 0; x < w; x++) {\n"
    "let top = h;\n"
    "until(k, from + step * (x + 1), now);\n"
    "for (let c = 0; c < k.C; c++) top = bar(x, top, now[c] - was[c], set[c]);\n"
    "[was, now] = [now, was];\n"
    "if (!pieces) continue;\n"
    "until(pieces, from + step * (x + 1), gapNow);\n"
    "for (let c = 0; c < 4; c++) top = bar(x, top, gapNow[c] - gapWas[c], idle[c]);\n"
    "[gapWas, gapNow] = [gapNow, gapWas];\n"
    "}\n"
    "g.putImageData(image, round(NAMES * r), round(y * r));\n"
    "}\n"
    "/* Few intervals: a box for each that is not in the same pixel as the one before. */\n"
    "function boxes(k, [from, to], {shift, y}, colour, label) {\n"
    "let filled = -1, filledBy = -1;\n"
    "for (let j = from; j < to; j++) {\n"
    "const x = max(NAMES, X(k.b[j] + shift)), z = min(width, max(X(k.e[j] + shift), x + 1));\n"
    "if (z <= filled + 0.3 && filledBy === k.c[j]) continue;\n"
    "g.fillStyle = colour[k.c[j]];\n"
    "g.fillRect(x, y, z - x > 4 ? z - x - 0.5 : z - x, LANE - 2);\n"
    "filled = z;\n"
    "filledBy = k.c[j];\n"
    "if (!label || z - x < 26) continue;\n"
    "g.fillStyle = '#fff';\n"
    "g.fillText(clipped(label(k.id[j]), z - x - 4), x + 3, y + LANE / 2);\n"
    "}\n"
    "}\n"
    "function matches(row, list, y, colour) {\n"
    "const T = row.T, shift = T.shift;\n"
    "let j = before(list.starts, list.n, view.from - shift), drawn = 0;\n"
    "if (j) j--;\n"
    "while (j < list.n && list.starts[j] + shift < view.to && drawn++ < 4000) {\n"
    "const i = list.id[j], x = max(NAMES, X(T.b[i] + shift)), z = min(width, max(X(T.e[i] + shift), x + 1.5));\n"
    "if (z > NAMES) {\n"
    "g.fillStyle = kindOf(T, i) === 6 ? colours.wait : colour[CLASSES[kindOf(T, i)]];\n"
    "g.fillRect(x, y, z - x, LANE - 2);\n"
    "if (z - x > 26) { g.fillStyle = kindOf(T, i) === 6 ? colours.text : '#fff'; g.fillText(clipped(nameOf(T, i), z - x - 4), x + 3, y + LANE / 2); }\n"
    "}\n"
    "const next = timeAt(z) - shift;\n"
    "j = list.starts[j + 1] < next ? max(j + 1, before(list.starts, list.n, next)) : j + 1;\n"
    "}\n"
    "}\n"
    "function drawTracks(row, top) {\n"
    "const shift = row.T.shift, from = view.from - shift, to = view.to - shift, colour = (row.thread >= 0 ? HOST : WORK).map(x => x[1]);\n"
    "row.lanes.forEach((k, l) => {\n",
    "const y = top + 3 + l * LANE, pieces = l ? null : row.pieces;\n"
    "const lo = max(0, before(k.b, k.n, from) - 1), hi = before(k.b, k.n, to);\n"
    "const gapLo = pieces ? max(0, before(pieces.b, pieces.n, from) - 1) : 0, gapHi = pieces ? before(pieces.b, pieces.n, to) : 0;\n"
    "const first = lo < hi && k.e[lo] < from ? lo + 1 : lo, firstGap = gapLo < gapHi && pieces.e[gapLo] < from ? gapLo + 1 : gapLo;\n"
    "if (hi - first > EXACT || gapHi - firstGap > EXACT) columns(row, k, pieces, y);\n"
    "else {\n"
    "g.globalAlpha = wanted ? 0.28 : 1;\n"
    "if (pieces) boxes(pieces, [firstGap, gapHi], {shift, y}, colours.gaps);\n"
    "boxes(k, [first, hi], {shift, y}, colour, wanted ? null : i => nameOf(row.T, i));\n"
    "g.globalAlpha = 1;\n"
    "}\n"
    "if (wanted) matches(row, row.found[l], y, colour);\n"
    "});\n"
    "if (wanted && row.busy) matches(row, row.found[row.lanes.length], top + 3, colour);\n"
    "}\n"
    "function drawMemory(row, top) {\n"
    "const base = top + row.h - 6, tall = row.h - 14, w = floor(width - NAMES), shift = row.T.shift, step = (view.to - view.from) / w, end = ceil(X(row.T.to + shift) - NAMES);\n"
    "const line = (values, colour, filled) => {\n"
    "let j = before(row.t, row.n, view.from - shift);\n"
    "g.fillStyle = colour;\n"
    "for (let x = 0; x < min(w, end); x++) {\n"
    "const to = before(row.t, row.n, view.from - shift + step * (x + 1));\n"
    "let v = j ? values[j - 1] : row.before;\n"
    "for (let stride = max(1, floor((to - j) / 500)); j < to; j += stride) v = max(v, values[j]);\n"
    "j = to;\n"
    "const h = v / row.peak * tall;\n"
    "if (v) g.fillRect(NAMES + x, base - h, 1, filled ? h : min(h, 1.5));\n"
    "}\n"
    "};\n"
    "g.globalAlpha = 0.3;\n"
    "line(row.pending, colours.arrow, true);\n"
    "g.globalAlpha = 0.75;\n"
    "line(row.live, WORK[0][1], true);\n"
    "g.globalAlpha = 1;\n"
    "line(row.live, colours.text, false);\n"
    "g.fillStyle = colours.bad;\n"
    "for (const i of row.ooms) {\n"
    "const x = X(row.T.b[i] + shift);\n"
    "if (x < NAMES || x > width) continue;\n"
    "g.fillRect(x - 0.75, top + 8, 1.5, base - top - 8);\n"
    "g.beginPath(); g.moveTo(x - 5, top + 2); g.lineTo(x + 5, top + 2); g.lineTo(x, top + 10); g.fill();\n"
    "}\n"
    "}\n"
    "\n"
    "const UNITS = [[1e9, 1e9, 's'], [1e6, 1e6, 'ms'], [1e3, 1e3, 'us'], [0, 1, 'ns']];\n"
    "function ticks() {\n"
    "const wide = (view.to - view.from) / max(2, floor((width - NAMES) / 110)), ten = 10 ** floor(log10(wide)), step = [1, 2, 5, 10].find(m => m * ten >= wide) * ten;\n"
    "const far = max(abs(view.from), abs(view.to)), [, unit, name] = UNITS.find(u => far >= u[0]);\n"
    "const digits = min(9, max(0, -floor(log10(step / unit) + 1e-9)));\n"
    "g.fillStyle = colours.card;\n"
    "g.fillRect(0, 0, width, AXIS);\n"
    "g.textAlign = 'center';\n"
    "for (let t = ceil(view.from / step) * step; t <= view.to; t += step) {\n"
    "const x = X(t);\n"
    "if (x < NAMES) continue;\n"
    "g.globalAlpha = 0.7;\n"
    "g.fillStyle = colours.line;\n"
    "g.fillRect(x, AXIS - 5, 0.7, height);\n"
    "g.globalAlpha = 1;\n"
    "g.fillStyle = colours.soft;\n"
    "if (x > NAMES + 24 && x < width - 34) g.fillText((t / unit).toFixed(digits) + ' ' + name, x, 11);\n"
    "}\n"
    "g.textAlign = 'left';\n"
    "g.fillText(span(view.to - view.from) + ' shown', 8, 11);\n"
    "g.fillStyle = colours.line;\n"
    "g.fillRect(0, AXIS - 1, width, 1);\n"
    "}\n"
    "function label(row, y) {\n"
    "if (row.title || row.heading) {\n"
    "g.fillStyle = row.title ? colours.line : colours.back;\n"
    "g.fillRect(0, y, width, row.h);\n"
    "g.fillStyle = colours.text;\n"
    "g.font = (row.title ? 'bold 12px' : '600 11px') + ' system-ui,sans-serif';\n"
    "g.fillText(row.title || row.heading, 8, y + row.h / 2 + 1);\n"
    "g.font = '11px system-ui,sans-serif';\n"
    "return;\n"
    "}\n"
    "g.fillStyle = colours.card;\n"
    "g.fillRect(0, y, NAMES, row.h);\n"
    "g.fillStyle = gapsOf === row ? colours.text : colours.soft;\n"
    "g.fillText(clipped(row.name, NAMES - 20), 16, y + 3 + LANE / 2);\n"
    "if (row.memory) g.fillText('peak ' + size(row.peak), 16, y + 30);\n"
    "g.fillStyle = colours.line;\n"
    "g.fillRect(0, y + row.h - 1, width, 0.5);\n"
    "}\n"
    "\n"
    "const middle = (T, i) => { const p = find(T, i); return p ? p.row.y + 2 + (p.lane + 0.5) * LANE - $('box').scrollTop : NaN; };\n"
    "function arrow(x, y, z, v, colour, strong) {\n"
    "const bend = abs(z - x) < 30 ? 24 : (z - x) / 3, head = strong ? 7 : 5;\n"
    "g.strokeStyle = g.fillStyle = colour;\n"
    "g.lineWidth = strong ? 2 : 1.1;\n"
    "g.beginPath();\n"
    "g.moveTo(x, y);\n"
    "g.bezierCurveTo(x + bend, y, z - bend, v, z - head, v);\n"
    "g.stroke();\n",
    "g.beginPath(); g.moveTo(z, v); g.lineTo(z - head, v - head / 2); g.lineTo(z - head, v + head / 2); g.fill();\n"
    "}\n"
    "/* All waits of a row if it shows a few, else the longest ones of the trace. */\n"
    "function drawArrows() {\n"
    "let drawn = 0;\n"
    "for (const T of traces()) {\n"
    "const list = [];\n"
    "let all = true;\n"
    "for (const r of T.rows) {\n"
    "if (!r.waits) continue;\n"
    "const lo = max(0, before(r.waits.b, r.waits.n, view.from - T.shift) - 1), hi = before(r.waits.b, r.waits.n, view.to - T.shift);\n"
    "if (hi - lo > 200) { all = false; continue; }\n"
    "for (let j = lo; j < hi; j++) list.push(r.waits.id[j]);\n"
    "}\n"
    "if (!all) for (const i of T.longWaits.slice(0, 150)) list.push(i);\n"
    "for (const i of list) {\n"
    "const from = byId(T, word(T, i, 15)), mine = picked && picked.T === T && (picked.i === i || picked.i === from);\n"
    "if (from < 0 || (!$('arrows').checked && !mine)) continue;\n"
    "const x = X(T.e[from] + T.shift), z = X(T.e[i] + T.shift);\n"
    "if (z < NAMES || x > width || (!mine && X(T.e[i]) - X(T.b[i]) < 2 && list.length > 60)) continue;\n"
    "g.globalAlpha = (mine ? 1 : 0.75) * (wanted && !mine ? 0.4 : 1);\n"
    "arrow(x, middle(T, from), z, middle(T, i), colours.arrow, mine);\n"
    "drawn++;\n"
    "}\n"
    "g.globalAlpha = 1;\n"
    "drawRaces(T);\n"
    "}\n"
    "$('map').dataset.arrows = drawn;\n"
    "}\n"
    "function drawRaces(T) {\n"
    "for (const race of T.races.slice(0, 500)) {\n"
    "if (race.early < 0 || race.late < 0) continue;\n"
    "const x = X(T.e[race.early] + T.shift), z = X(T.b[race.late] + T.shift), y = middle(T, race.early), v = middle(T, race.late);\n"
    "if (max(x, z) < NAMES || min(x, z) > width) continue;\n"
    "arrow(x, y, z, v, colours.bad, true);\n"
    "const at = {race, x: (x + z) / 2, y: (y + v) / 2};\n"
    "shownArrows.push(at);\n"
    "g.beginPath(); g.arc(at.x, at.y, 8, 0, 7); g.fill();\n"
    "g.fillStyle = colours.card;\n"
    "g.font = 'bold 12px system-ui,sans-serif';\n"
    "g.textAlign = 'center';\n"
    "g.fillText('!', at.x, at.y + 0.5);\n"
    "g.textAlign = 'left';\n"
    "g.font = '11px system-ui,sans-serif';\n"
    "}\n"
    "}\n"
    "function outline(p, colour, thick) {\n"
    "const r = p && p.row;\n"
    "if (!r || r.y === undefined || !rows.includes(r)) return;\n"
    "const x = max(NAMES, X(p.b + r.T.shift)), z = min(width - 1, X(p.e + r.T.shift));\n"
    "if (z < NAMES || x > width) return;\n"
    "g.strokeStyle = colour;\n"
    "g.lineWidth = thick;\n"
    "g.strokeRect(x - thick / 2, r.y - $('box').scrollTop + 3 + p.lane * LANE - thick / 2, max(2, z - x) + thick, LANE - 2 + thick);\n"
    "}\n"
    "function draw() {\n"
    "frame = 0;\n"
    "pen();\n"
    "const top = $('box').scrollTop;\n"
    "shownArrows = [];\n"
    "const seen = rows.filter(r => r.y + r.h - top > AXIS && r.y - top < height);\n"
    "for (const r of seen) {\n"
    "if (r.lanes) drawTracks(r, r.y - top);\n"
    "if (r.memory) drawMemory(r, r.y - top);\n"
    "}\n"
    "ticks();\n"
    "g.save();\n"
    "g.beginPath();\n"
    "g.rect(0, AXIS, width, height);\n"
    "g.clip();\n"
    "for (const r of seen) label(r, r.y - top);\n"
    "g.beginPath();\n"
    "g.rect(NAMES, AXIS, width - NAMES, height - AXIS);\n"
    "g.clip();\n"
    "drawArrows();\n"
    "outline(hovered, colours.soft, 1);\n"
    "outline(picked, colours.text, 2);\n"
    "g.restore();\n"
    "$('map').dataset.view = view.from + ' ' + view.to;\n"
    "}\n"
    "\n"
    "/* ---- what is under the pointer, and the selected operation ---- */\n"
    "\n"
    "/* The interval of a record as it is drawn; a wait is drawn in the first line of its stream. */\n"
    "function find(T, i) {\n"
    "const row = rowOf(T, i), p = {T, row, i, b: T.b[i], e: T.e[i], lane: 0};\n"
    "if (!row) return null;\n"
    "row.lanes.forEach((k, l) => { for (let j = before(k.b, k.n, p.b); j < k.n && k.b[j] === p.b; j++) if (k.id[j] === i) p.lane = l; });\n"
    "return p;\n"
    "}\n"
    "function at(x, y) {\n"
    "const near = shownArrows.find(a => hypot(a.x - x, a.y - y) < 10);\n"
    "if (near) return {race: near.race, T: near.race.T};\n"
    "const r = rows.find(q => y + $('box').scrollTop >= q.y && y + $('box').scrollTop < q.y + q.h);\n"
    "if (!r || y < AXIS || x > width) return null;\n"
    "if (x < NAMES || !r.lanes) return {row: r, T: r.T, x};\n"
    "const l = floor((y + $('box').scrollTop - r.y - 3) / LANE), k = r.lanes[l], t = timeAt(x) - r.T.shift, close = 3 * (view.to - view.from) / (width - NAMES);\n"
    "if (!k) return null;\n"
    "const j = before(k.b, k.n, t), left = j ? max(0, t - k.e[j - 1]) : Infinity, right = j < k.n ? k.b[j] - t : Infinity, m = left <= right ? j - 1 : j;\n",
    "if (min(left, right) <= (wanted || min(left, right) === 0 ? close : close / 2)) return {T: r.T, row: r, i: k.id[m], b: k.b[m], e: k.e[m], lane: l};\n"
    "return l ? null : pieceAt(r, t);\n"
    "}\n"
    "function pieceAt(r, t) {\n"
    "const P = r.pieces, j = P ? before(P.b, P.n, t) - 1 : -1;\n"
    "if (j < 0 || P.e[j] < t) return null;\n"
    "const p = {T: r.T, row: r, lane: 0, b: P.b[j], e: P.e[j], gap: P.c[j], id: P.id[j]};\n"
    "if (p.gap === WAIT) p.i = P.id[j];\n"
    "return p;\n"
    "}\n"
    "/* The operations at both sides of a time, without event records. */\n"
    "function sides(r, t) {\n"
    "const k = r.lanes[0], event = j => kindOf(r.T, k.id[j]) === 5;\n"
    "let j = before(k.b, k.n, t) - 1, m = j + 1;\n"
    "while (j >= 0 && event(j)) j--;\n"
    "while (m < k.n && event(m)) m++;\n"
    "return [j < 0 ? -1 : k.id[j], m < k.n ? k.id[m] : -1];\n"
    "}\n"
    "\n"
    "const full = (T, i) => kindName(kindOf(T, i)) + (text(T, i, 8) ? ' ' + text(T, i, 8) : '') + (rowOf(T, i) ? ' on ' + rowOf(T, i).name : '');\n"
    "const go = (T, i) => i < 0 ? null : () => pick(find(T, i), true);\n"
    "function route(T, i) {\n"
    "const w = word(T, i, 0), from = w >> 16 & 255, to = w >>> 24;\n"
    "return (from ? device(T, from - 1) : 'host') + ' to ' + (to ? device(T, to - 1) : 'host');\n"
    "}\n"
    "/* Lines of [term, text, function that its link calls]. */\n"
    "function aboutOperation(T, i, all) {\n"
    "const k = kindOf(T, i), d = T.e[i] - T.b[i], a = amount(T, i), f = flags(T, i), lines = [];\n"
    "if (f & 8) lines.push(['State', 'without times: CUPTI has lost its record']);\n"
    "else lines.push([k === 6 || k === 16 ? 'Stood' : 'Ran', span(d) + ', from ' + span(T.b[i]) + ' to ' + span(T.e[i])]);\n"
    "if (where(T, i)) lines.push(['Call', where(T, i)]);\n"
    "if (k < 16 && enqueued(T, i)) {\n"
    "const q = T.b[i] - enqueued(T, i);\n"
    "lines.push(['Enqueued', q < 0 ? span(-q) + ' after its begin (by different clocks)' : span(q) + ' before its begin']);\n"
    "}\n"
    "if (a && isBytes(k)) lines.push(['Bytes', size(a) + (d ? ', ' + rate(a / d * 1e9, 'B') : '') + (k === 2 ? ', ' + route(T, i) : '')]);\n"
    "else if (a) lines.push(['Elements', many(a) + (d ? ', ' + rate(a / d * 1e9, '') : '')]);\n"
    "if (f & 1) lines.push(['Result', 'failed']);\n"
    "if (f & 4) lines.push(['State', 'not complete when the trace ended']);\n"
    "const cause = word(T, i, 15), from = byId(T, cause);\n"
    "if (cause && k !== 32) lines.push([k === 9 ? 'Launch' : 'Waited for', from < 0 ? 'an operation that is not in the trace' : full(T, from) + ', ' + where(T, from), go(T, from)]);\n"
    "if (!all) return lines;\n"
    "for (const [term, s, link] of idleBefore(T, i)) lines.push([term, s, link]);\n"
    "const id = k < 16 ? word(T, i, 14) : 0;\n"
    "let n = 0;\n"
    "if (id) for (const r of T.rows) for (let j = 0; r.waits && j < r.waits.n && n < 6; j++) {\n"
    "const x = r.waits.id[j];\n"
    "if (word(T, x, 15) === id) { lines.push(['Waiting for it', full(T, x) + ', ' + span(T.e[x] - T.b[x]) + ', ' + where(T, x), go(T, x)]); n++; }\n"
    "}\n"
    "for (const x of T.races) if (x.early === i || x.late === i) lines.push(['Race', text(T, x.i, 8), go(T, x.early === i ? x.late : x.early)]);\n"
    "return lines;\n"
    "}\n"
    "function idleBefore(T, i) {\n"
    "const r = rowOf(T, i), P = r && r.pieces, lines = [];\n"
    "if (!P || kindOf(T, i) === 5 || kindOf(T, i) === 6) return lines;\n"
    "let end = T.b[i];\n"
    "for (let j = before(P.b, P.n, end) - 1; j >= 0 && P.e[j] === end; j--) {\n"
    "const from = P.c[j] === WAIT ? byId(T, word(T, P.id[j], 15)) : -1;\n"
    "lines.unshift(['Idle before', span(P.e[j] - P.b[j]) + ' ' + GAPS[P.c[j]][0] + (from < 0 ? '' : ' for ' + full(T, from) + ', ' + where(T, from)), go(T, from)]);\n"
    "end = P.b[j];\n"
    "}\n"
    "return lines.slice(-6);\n"
    "}\n"
    "function aboutGap(p) {\n"
    "const {T, row} = p, [last, next] = sides(row, p.b), lines = [['Idle', span(p.e - p.b) + ', from ' + span(p.b) + ' to ' + span(p.e)], ['Cause', GAPS[p.gap][2]]];\n"
    "const from = p.gap === WAIT ? byId(T, word(T, p.i, 15)) : -1;\n"
    "if (p.gap === WAIT) lines.push(['Waited for', from < 0 ? 'an operation that is not in the trace' : full(T, from) + ', ' + where(T, from), go(T, from)], ['Wait', where(T, p.i) || nameOf(T, p.i)]);\n"
    "if (last >= 0) lines.push(['Before', full(T, last) + ', ' + where(T, last), go(T, last)]);\n",
    "if (next >= 0) lines.push(['After', full(T, next) + ', ' + where(T, next) + ', enqueued ' + span(max(0, T.b[next] - enqueued(T, next))) + ' before its begin', go(T, next)]);\n"
    "let best = -1, most = 0;\n"
    "if (p.gap === LATE) for (const r of T.rows) if (r.thread >= 0) for (const k of r.lanes) {\n"
    "for (let j = max(0, before(k.b, k.n, p.b) - 1); j < k.n && k.b[j] < p.e; j++) {\n"
    "const d = min(p.e, k.e[j]) - max(p.b, k.b[j]);\n"
    "if (k.c[j] === 0 && d > most) { most = d; best = k.id[j]; }\n"
    "}\n"
    "}\n"
    "if (best >= 0) lines.push(['Host', 'stood for ' + span(most) + ' in ' + full(T, best) + ', ' + where(T, best), go(T, best)]);\n"
    "return lines;\n"
    "}\n"
    "function about(p, all) {\n"
    "if (p.race) return ['Race', [['Report', text(p.T, p.race.i, 8)], ['Earlier', full(p.T, p.race.early) + ', ' + where(p.T, p.race.early), go(p.T, p.race.early)], ['Later', full(p.T, p.race.late) + ', ' + where(p.T, p.race.late), go(p.T, p.race.late)]]];\n"
    "const of = mark(p.T) + (p.row.device ? p.row.device + ', ' : '') + p.row.name;\n"
    "if (p.gap >= 0) return ['Gap: ' + GAPS[p.gap][0] + ' (' + of + ')', aboutGap(p)];\n"
    "if (p.i >= 0) return [kindName(kindOf(p.T, p.i)) + ': ' + nameOf(p.T, p.i) + ' (' + of + ')', aboutOperation(p.T, p.i, all)];\n"
    "return null;\n"
    "}\n"
    "function details() {\n"
    "const box = $('pick'), a = picked && about(picked, true);\n"
    "box.textContent = '';\n"
    "if (!a) { box.append(el('dt', 'Click an operation, a gap or a race to read about it. Press ? for keys.', {className: 'name'})); return; }\n"
    "box.className = 'used';\n"
    "box.append(el('dt', a[0], {className: 'name'}));\n"
    "for (const [term, s, link] of a[1]) {\n"
    "const dd = el('dd', link ? '' : s);\n"
    "if (link) dd.append(el('button', s, {className: 'link', onclick: link}));\n"
    "box.append(el('dt', term), dd);\n"
    "}\n"
    "}\n"
    "function pick(p, reveal) {\n"
    "picked = p;\n"
    "if (p && p.row && reveal) show(p);\n"
    "details();\n"
    "later();\n"
    "}\n"
    "function show(p) {\n"
    "const b = p.b + p.T.shift, e = p.e + p.T.shift, w = view.to - view.from, box = $('box');\n"
    "if (e - b > w || e - b < w / 3000) look(b - (e - b) * 4 - 10, e + (e - b) * 4 + 10);\n"
    "else if (b < view.from || e > view.to) look((b + e) / 2 - w / 2, (b + e) / 2 + w / 2);\n"
    "if (p.row.y - box.scrollTop < AXIS || p.row.y + p.row.h - box.scrollTop > height) box.scrollTop = p.row.y - height / 2;\n"
    "}\n"
    "function showBoth(race) {\n"
    "if (race.early < 0 || race.late < 0) return;\n"
    "const T = race.T, b = min(T.b[race.early], T.b[race.late]) + T.shift, e = max(T.e[race.early], T.e[race.late]) + T.shift;\n"
    "look(b - (e - b) * 0.5, e + (e - b) * 0.5);\n"
    "pick({race, T});\n"
    "$('box').scrollTop = max(0, min(rowOf(T, race.early).y, rowOf(T, race.late).y) - AXIS - 30);\n"
    "}\n"
    "\n"
    "function tip(e, s) {\n"
    "const t = $('tip');\n"
    "t.style.display = s ? 'block' : 'none';\n"
    "if (!s) return;\n"
    "t.textContent = s;\n"
    "t.style.left = max(4, min(e.clientX + 14, innerWidth - t.offsetWidth - 8)) + 'px';\n"
    "t.style.top = (e.clientY + 16 + t.offsetHeight > innerHeight ? max(4, e.clientY - t.offsetHeight - 10) : e.clientY + 16) + 'px';\n"
    "}\n"
    "function hover(e) {\n"
    "const box = $('map').getBoundingClientRect(), x = e.clientX - box.left, p = at(x, e.clientY - box.top), a = p && about(p, false);\n"
    "const was = hovered;\n"
    "hovered = a && p.row ? p : null;\n"
    "if ((was && was.b) !== (hovered && hovered.b) || (was && was.row) !== (hovered && hovered.row)) later();\n"
    "if (a) return tip(e, a[0] + '\\n' + a[1].map(l => l[0] + ': ' + l[1]).join('\\n'));\n"
    "if (!p || !p.row || !p.row.memory || x < NAMES) return tip(e, p && p.x < NAMES && p.row.name);\n"
    "const r = p.row, t = timeAt(x) - r.T.shift, j = before(r.t, r.n, t), live = j ? r.live[j - 1] : r.before;\n"
    "const oom = r.ooms.find(i => abs(X(r.T.b[i] + r.T.shift) - x) < 5);\n"
    "tip(e, r.name + ' at ' + span(t) + '\\n' + size(live) + ' allocated' + (j && r.pending[j - 1] > live ? ', ' + size(r.pending[j - 1] - live) + ' pending' : '') +\n"
    "(oom >= 0 ? '\\nOut of memory: ' + size(amount(r.T, oom)) + ', ' + where(r.T, oom) : ''));\n"
    "}\n"
    "\n"
    "/* ---- search ---- */\n"
    "\n"
    "/* Waits of streams are drawn in the first line, where they cover a gap. */\n"
    "const tracks = r => r.busy ? [...r.lanes, r.waits] : r.lanes;\n"
    "function search(s) {\n"
    "wanted = s.trim().toLowerCase();\n"
    "let count = 0;\n"
    "for (const T of traces()) {\n",
    "const hit = Uint8Array.from(T.strings, x => wanted && x.toLowerCase().includes(wanted) ? 1 : 0), w = T.w;\n"
    "for (const r of T.rows) if (r.lanes) {\n"
    "const named = wanted && r.name.toLowerCase().includes(wanted);\n"
    "r.found = tracks(r).map(k => {\n"
    "const id = new Int32Array(wanted ? k.n : 0), starts = new Float64Array(id.length);\n"
    "let n = 0;\n"
    "for (let j = 0; j < id.length; j++) {\n"
    "const o = 16 * k.id[j];\n"
    "if (named || hit[w[o + 8]] || hit[w[o + 9]] || hit[w[o + 10]]) { id[n] = k.id[j]; starts[n++] = k.b[j]; }\n"
    "}\n"
    "count += n;\n"
    "return {n, id, starts};\n"
    "});\n"
    "}\n"
    "}\n"
    "$('found').textContent = wanted ? plural(count, 'match').replace('matchs', 'matches') : '';\n"
    "later();\n"
    "}\n"
    "/* The next (1) or previous (-1) match, without a search that of the selected row. */\n"
    "function step(by) {\n"
    "const p = picked && picked.row && picked.row.lanes ? picked : null;\n"
    "let best = null;\n"
    "for (const r of rows) if (r.lanes && (wanted || !p || r === p.row)) tracks(r).forEach((k, l) => {\n"
    "const starts = wanted ? r.found[l].starts : k.b, n = wanted ? r.found[l].n : k.n, id = wanted ? r.found[l].id : k.id;\n"
    "const t = p ? p.b + p.T.shift - r.T.shift : view.from - r.T.shift;\n"
    "let j = before(starts, n, t);\n"
    "if (by < 0) j--;\n"
    "else while (j < n && starts[j] === t && p && !(p.gap >= 0) && (r === p.row ? id[j] <= p.i : rows.indexOf(r) < rows.indexOf(p.row))) j++;\n"
    "if (j < 0 || j >= n) return;\n"
    "const at = (starts[j] + r.T.shift) * by;\n"
    "if (!best || at < best.at) best = {at, T: r.T, i: id[j]};\n"
    "});\n"
    "if (best) pick(find(best.T, best.i), true);\n"
    "}\n"
    "\n"
    "/* ---- tables ---- */\n"
    "\n"
    "const sorting = {};\n"
    "/* heads: [title, value, text, compared with B: 1 if more is worse, -1 if more is better, 2 if neither]; the first column is text. */\n"
    "function table(id, heads, list, click, limit = 100) {\n"
    "const box = $(id).querySelector('table'), by = sorting[id] === undefined ? heads.findIndex(h => h[4]) : sorting[id], f = by < 0 ? null : heads[by][1];\n"
    "const again = () => table(id, heads, list, click, limit), row = el('tr'), body = el('tbody'), head = el('thead');\n"
    "heads.forEach((h, i) => {\n"
    "const th = el('th', '', {className: h[2] ? '' : 'left'});\n"
    "if (i === by) th.ariaSort = i ? 'descending' : 'ascending';\n"
    "th.append(el('button', h[0] + (i === by ? ' \\u25be' : ''), {onclick: () => { sorting[id] = i; again(); }}));\n"
    "row.append(th);\n"
    "});\n"
    "head.append(row);\n"
    "const order = (x, y) => {\n"
    "const a = f(x), b = f(y);\n"
    "if (typeof a === 'number') return (isFinite(b) ? b : -1) - (isFinite(a) ? a : -1);\n"
    "return a < b ? -1 : 1;\n"
    "};\n"
    "const sorted = f ? [...list].sort(order) : list;\n"
    "for (const x of sorted.slice(0, limit)) {\n"
    "const tr = el('tr', '', {tabIndex: 0, onclick: () => click(x), onkeydown: e => { if (e.key === 'Enter') click(x); }});\n"
    "for (const h of heads) tr.append(cell(h, x));\n"
    "body.append(tr);\n"
    "}\n"
    "box.replaceChildren(head, body);\n"
    "if (list.length > limit) body.append(el('tr', '', {innerHTML: '<td colspan=' + heads.length + '>and ' + many(list.length - limit) + ' more'}));\n"
    "}\n"
    "function cell([, value, format, worse], x) {\n"
    "const td = el('td', '', {className: format ? '' : 'left'}), v = x.none ? NaN : value(x);\n"
    "td.append(format ? (x.none ? '-' : format(v, x)) : value(x));\n"
    "if (!B || !worse || x.other === undefined) return td;\n"
    "const o = x.other ? value(x.other) : NaN, d = o - v, sign = d < 0 ? '\\u2212' : '+';\n"
    "let s = '';\n"
    "if (x.none) s = 'only in B: ' + format(o, x);\n"
    "else if (!x.other) s = 'only in A';\n"
    "else if (d === 0) s = v ? '\\u00b1 0' : '';\n"
    "else if (isFinite(d)) s = sign + format(abs(d), x) + (v && format !== part ? ' (' + sign + part(abs(d / v)) + ')' : '');\n"
    "const judged = worse !== 2 && abs(d) > abs(v) * 0.02;\n"
    "td.append(el('small', s, {className: judged ? (d * worse > 0 && 'worse') || 'better' : ''}));\n"
    "return td;\n"
    "}\n"
    "/* Pairs the lines of A with those of B that have the same key. */\n"
    "function paired(list, others, key) {\n"
    "if (!B) return list;\n"
    "const left = new Map(others.map(x => [key(x), x])), all = list.map(x => { const o = left.get(key(x)); left.delete(key(x)); return {...x, other: o || null}; });\n"
    "return all.concat([...left.values()].map(x => ({...x, other: x, none: true})));\n"
    "}\n"
    "function streamLines(T) {\n"
    "const idle = new Float64Array(4);\n",
    "return T.streamRows.map(row => {\n"
    "until(row.pieces, Infinity, idle);\n"
    "const s = T.sums.get(row.stream), long = row.gaps[0];\n"
    "return {T, row, key: row.device + row.name, name: row.name + ', ' + row.device, count: s.count, busy: row.busyTime / (T.to - T.from), overlap: row.overlap / row.busyTime,\n"
    "rate: s.bytes / s.time * 1e9, wait: idle[WAIT], late: idle[LATE], start: idle[START], gap: long ? long.e - long.b : 0};\n"
    "});\n"
    "}\n"
    "function tables() {\n"
    "table('streams', [['Stream', x => x.name], ['Operations', x => x.count, many, 2], ['Busy', x => x.busy, part, 2], ['Overlap', x => x.overlap, part, -1], ['Rate', x => x.rate, x => rate(x, 'B'), -1],\n"
    "['Waiting', x => x.wait, span, 1], ['Host late', x => x.late, span, 1], ['Starting', x => x.start, span, 1], ['Longest gap', x => x.gap, span, 1]],\n"
    "paired(streamLines(A), B ? streamLines(B) : [], x => x.key), x => showRow(x.row));\n"
    "table('names', [['Name', x => x.name], ['Kind', x => kindName(x.kind)], ['Count', x => x.count, many, 2], ['Total', x => x.total, span, 1, 1], ['Mean', x => x.total / x.count, span, 1], ['Longest', x => x.most, span, 1],\n"
    "['Rate', x => x.amount / x.total * 1e9, (v, x) => rate(v, isBytes(x.kind) ? 'B' : ''), -1]],\n"
    "paired(A.stats.map(s => ({...s, T: A})), B ? B.stats.map(s => ({...s, T: B})) : [], x => x.kind + ' ' + x.name), x => pick(find(x.T, x.longest), true));\n"
    "gapTable();\n"
    "}\n"
    "function showRow(row) {\n"
    "gapsOf = gapsOf === row ? null : row;\n"
    "const k = row.lanes[0];\n"
    "if (gapsOf && k.n) {\n"
    "const b = k.b[0] + row.T.shift, e = max(...row.lanes.map(l => l.e[l.n - 1])) + row.T.shift;\n"
    "look(b - (e - b) * 0.01, e + (e - b) * 0.01);\n"
    "$('box').scrollTop = row.y - height / 2;\n"
    "}\n"
    "gapTable();\n"
    "later();\n"
    "}\n"
    "function gapTable() {\n"
    "const list = gapsOf ? gapsOf.gaps : traces().flatMap(T => T.streamRows.flatMap(r => r.gaps)).sort((x, y) => y.e - y.b - x.e + x.b).slice(0, 20);\n"
    "$('whose').textContent = 'Times between two operations of a stream in which none of its operations ran: ' + (gapsOf ? 'the longest ones of ' + gapsOf.name + ' (click the stream again for all).' : 'the longest ones of all streams.');\n"
    "table('gaps', [['Stream', x => mark(x.T) + x.row.name + ', ' + x.row.device], ['Length', x => x.e - x.b, span, 0, 1],\n"
    "['Cause', x => GAPS[x.c][0] + (x.share < 0.995 ? ' (' + part(x.share) + ')' : '')], ['Operation before', x => nameOf(x.T, x.last) + ', ' + where(x.T, x.last)], ['Operation after', x => nameOf(x.T, x.next) + ', ' + where(x.T, x.next)]],\n"
    "list, x => {\n"
    "const b = x.b + x.T.shift, e = x.e + x.T.shift, P = x.row.pieces;\n"
    "let j = before(P.b, P.n, x.b);\n"
    "while (j < P.n && P.c[j] !== x.c && P.e[j] < x.e) j++;\n"
    "look(b - (e - b) * 0.4, e + (e - b) * 0.4);\n"
    "pick(pieceAt(x.row, (P.b[j] + P.e[j]) / 2), true);\n"
    "});\n"
    "}\n"
    "function listTables() {\n"
    "const waits = traces().flatMap(T => T.longWaits.slice(0, 30).map(i => ({T, i, d: T.e[i] - T.b[i], from: byId(T, word(T, i, 15))}))).filter(x => x.d > 0).sort((x, y) => y.d - x.d).slice(0, 30);\n"
    "table('waits', [['Stood', x => mark(x.T) + (rowOf(x.T, x.i) || {name: '?'}).name], ['Time', x => x.d, span, 0, 1], ['Call', x => where(x.T, x.i)], ['Waited for', x => x.from < 0 ? '-' : full(x.T, x.from)], ['Enqueued by', x => where(x.T, x.from)]],\n"
    "waits, x => pick(find(x.T, x.i), true));\n"
    "const races = traces().flatMap(T => T.races), ooms = traces().flatMap(T => T.ooms.map(i => ({T, i})));\n"
    "$('races').hidden = !races.length;\n"
    "table('races', [['Report', x => mark(x.T) + (text(x.T, x.i, 8) || 'race')], ['Earlier operation', x => x.early < 0 ? 'not in the trace' : full(x.T, x.early) + ', ' + where(x.T, x.early)], ['Later operation', x => x.late < 0 ? 'not in the trace' : full(x.T, x.late) + ', ' + where(x.T, x.late)]],\n"
    "races, showBoth);\n"
    "$('ooms').hidden = !ooms.length;\n"
    "table('ooms', [['Call', x => mark(x.T) + where(x.T, x.i)], ['Requested', x => amount(x.T, x.i), size], ['Time', x => x.T.b[x.i], span]],\n"
    "ooms, x => look(x.T.b[x.i] + x.T.shift - (view.to - view.from) / 2, x.T.b[x.i] + x.T.shift + (view.to - view.from) / 2));\n"
    "}\n"
    "\n"
    "/* ---- the rest of the page ---- */\n"
    "\n"
    "function sum(T) {\n"
    "const lines = streamLines(T), total = name => lines.reduce((s, x) => s + x[name], 0);\n",
    "return {time: T.to - T.from, count: total('count'), busy: total('busy') / lines.length, overlap: T.streamRows.reduce((s, r) => s + r.overlap, 0) / T.streamRows.reduce((s, r) => s + r.busyTime, 0),\n"
    "wait: total('wait'), late: total('late'), start: total('start'), races: T.races.length};\n"
    "}\n"
    "function tiles() {\n"
    "const a = sum(A), b = B && sum(B), box = $('tiles');\n"
    "box.textContent = '';\n"
    "for (const [name, format, title] of [['time', span, 'traced time'], ['count', many, 'operations'], ['busy', part, 'busy, stream mean'], ['overlap', part, 'of it with overlap'],\n"
    "['wait', span, 'waiting, all streams'], ['late', span, 'host late, all streams'], ['start', span, 'starting, all streams'], ['races', many, 'races']]) {\n"
    "const t = el('div');\n"
    "t.append(el('b', format(a[name]) + (b ? ' / ' + format(b[name]) : ''), {className: name === 'races' && a.races ? 'bad' : ''}), el('span', title + (b ? ', A / B' : '')));\n"
    "box.append(t);\n"
    "}\n"
    "}\n"
    "function notes() {\n"
    "const box = $('notes'), say = s => box.append(el('p', s));\n"
    "box.textContent = '';\n"
    "for (const T of traces()) {\n"
    "const who = B ? 'Trace ' + mark(T) : '';\n"
    "if (T.dropped) say(who + plural(T.dropped, 'record') + ' were dropped: the program ended operations faster than the trace was written, or the ring was too small. Times without an operation may be wrong.');\n"
    "if (T.cut) say(who + plural(T.cut, 'chunk') + ' at the end could not be read, because the file was cut while it was written. The trace is shown up to there.');\n"
    "if (T.end < 0 && T.n) say(who + 'The trace ended irregularly: the program was killed, or it has not called ds_trace_stop yet. Operations after the last flush are missing.');\n"
    "}\n"
    "}\n"
    "function legend() {\n"
    "const box = $('legend'), add = (colour, s, title) => {\n"
    "const x = el('span', '', {title: title || ''}), i = el('i');\n"
    "i.style.background = colour;\n"
    "if (colour === 'var(--none)') i.style.border = '1px solid var(--line)';\n"
    "x.append(i, s);\n"
    "box.append(x);\n"
    "};\n"
    "const classes = new Set(), host = new Set();\n"
    "for (const T of traces()) for (const s of T.stats) if (s.kind < 16) classes.add(s.kind === 6 ? -1 : CLASS[s.kind]); else host.add(CLASS[s.kind]);\n"
    "box.textContent = '';\n"
    "WORK.forEach((x, c) => { if (classes.has(c)) add(x[1], x[0]); });\n"
    "HOST.forEach((x, c) => { if (host.has(c)) add(x[1], x[0]); });\n"
    "const idle = el('span', 'Idle stream:');\n"
    "box.append(idle);\n"
    "GAPS.forEach(x => add('var(' + x[1] + ')', x[0], x[2]));\n"
    "if (!traces().some(T => T.rows.some(r => r.memory))) return;\n"
    "box.append(el('span', 'Memory:'));\n"
    "add(WORK[0][1], 'allocated');\n"
    "add('color-mix(in srgb,var(--arrow) 30%,var(--card))', 'pending: freed, still in use by a stream');\n"
    "}\n"
    "function explain() {\n"
    "const rows = [['Wheel', 'zoom at the pointer; with Shift: move; over the names: scroll'], ['Drag', 'move; with Shift: zoom to the stretch'], ['Click', 'select an operation, a gap or a race; on the name of a stream: list its gaps; double: zoom to it'], ['W S or + \\u2212', 'zoom in and out'], ['A D or \\u2190 \\u2192', 'move in time'],\n"
    "['\\u2191 \\u2193', 'scroll the rows'], ['F', 'fit the whole trace'], ['M', 'zoom to the selected operation'], ['N P', 'next and previous operation of the row, or match of the search'], ['C', 'go to the operation that was waited for'], ['/', 'search; Enter: next match'], ['Esc', 'end search and selection'], ['?', 'this help']];\n"
    "const box = $('keys').querySelector('table');\n"
    "for (const [key, s] of rows) {\n"
    "const tr = el('tr'), td = el('td', '', {className: 'left'});\n"
    "td.append(el('kbd', key));\n"
    "tr.append(td, el('td', s, {className: 'left'}));\n"
    "box.append(tr);\n"
    "}\n"
    "box.append(el('tr', '', {innerHTML: '<td class=left colspan=2><b>Why a stream is idle</b>'}));\n"
    "for (const x of GAPS) { const tr = el('tr'); tr.append(el('td', x[0]), el('td', x[2], {className: 'left'})); box.append(tr); }\n"
    "}\n"
    "function cause() {\n"
    "const p = picked, i = p && p.i >= 0 ? byId(p.T, word(p.T, p.i, 15)) : -1;\n"
    "if (i >= 0) return pick(find(p.T, i), true);\n"
    "const line = p && p.row && (about(p, true) || [0, []])[1].find(l => l[2] && (l[0] === 'Idle before' || l[0] === 'Waited for'));\n"
    "if (line) line[2]();\n"
    "}\n"
    "\n"
    "const KEYS = {\n",
    "w: () => zoom(0.7), s: () => zoom(1 / 0.7), '+': () => zoom(0.7), '=': () => zoom(0.7), '-': () => zoom(1 / 0.7), a: () => pan(-0.2), d: () => pan(0.2), ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1),\n"
    "ArrowUp: () => { $('box').scrollTop -= 60; }, ArrowDown: () => { $('box').scrollTop += 60; }, f: fit, n: () => step(1), p: () => step(-1), c: cause, '/': () => { $('find').focus(); $('find').select(); },\n"
    "'?': () => $('keys').showModal(), m: () => { const p = picked, d = p && p.row ? p.e - p.b + 2 : 0; if (d) look(p.b + p.T.shift - 2 * d, p.e + p.T.shift + 2 * d); },\n"
    "Escape: () => { $('find').value = ''; search(''); pick(null); }\n"
    "};\n"
    "function keys(e) {\n"
    "if (e.ctrlKey || e.metaKey || e.altKey || !A.n || $('keys').open) return;\n"
    "if (e.target === $('find')) {\n"
    "if (e.key === 'Enter') step(e.shiftKey ? -1 : 1);\n"
    "if (e.key === 'Escape') { KEYS.Escape(); $('map').focus(); }\n"
    "return;\n"
    "}\n"
    "const f = KEYS[e.key.length === 1 ? e.key.toLowerCase() : e.key];\n"
    "if (!f || (e.key.startsWith('Arrow') && e.target !== $('map') && e.target !== document.body)) return;\n"
    "f();\n"
    "e.preventDefault();\n"
    "}\n"
    "function mouse() {\n"
    "const map = $('map'), box = $('box'), down = new Map();\n"
    "let moved = 0, start = null;\n"
    "const place = e => { const r = map.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };\n"
    "map.onwheel = e => {\n"
    "const [x] = place(e);\n"
    "if (x < NAMES && !e.ctrlKey) return;\n"
    "e.preventDefault();\n"
    "if (e.shiftKey || abs(e.deltaX) > abs(e.deltaY)) pan((e.deltaX || e.deltaY) / 1000);\n"
    "else zoom(1.0015 ** max(-400, min(400, e.deltaY * (e.deltaMode ? 30 : 1))), max(NAMES, x));\n"
    "};\n"
    "map.onpointerdown = e => {\n"
    "down.set(e.pointerId, place(e));\n"
    "start = {at: place(e), stretch: e.shiftKey};\n"
    "moved = 0;\n"
    "map.setPointerCapture(e.pointerId);\n"
    "};\n"
    "map.onpointermove = e => {\n"
    "const was = down.get(e.pointerId), now = place(e);\n"
    "if (!was) return hover(e);\n"
    "const other = [...down].find(([id]) => id !== e.pointerId);\n"
    "if (other) { const o = other[1][0], by = abs(was[0] - o) / max(10, abs(now[0] - o)); zoom(by, o); }\n"
    "else if (!start.stretch) { pan((was[0] - now[0]) / (width - NAMES)); if (e.pointerType === 'mouse') box.scrollTop += was[1] - now[1]; }\n"
    "else { later(); tip(e, span(abs(timeAt(now[0]) - timeAt(start.at[0])))); }\n"
    "moved += abs(now[0] - was[0]) + abs(now[1] - was[1]);\n"
    "down.set(e.pointerId, now);\n"
    "if (moved > 4 && !start.stretch) tip(e);\n"
    "};\n"
    "map.onpointerup = map.onpointercancel = e => {\n"
    "const now = place(e);\n"
    "if (down.delete(e.pointerId) && moved <= 4 && e.type === 'pointerup') {\n"
    "const p = at(...now);\n"
    "if (p && p.race) pick(p);\n"
    "else if (p && p.x < NAMES && p.row.busy) showRow(p.row);\n"
    "else pick(p && (p.i >= 0 || p.gap >= 0) ? p : null);\n"
    "} else if (start && start.stretch && abs(now[0] - start.at[0]) > 4) look(min(timeAt(now[0]), timeAt(start.at[0])), max(timeAt(now[0]), timeAt(start.at[0])));\n"
    "};\n"
    "map.onpointerleave = e => { hovered = null; tip(e); later(); };\n"
    "map.ondblclick = () => KEYS.m();\n"
    "box.onscroll = later;\n"
    "}\n"
    "\n"
    "async function compare(file) {\n"
    "try {\n"
    "const T = await read(chunksOf(await file.text()), file.name);\n"
    "if (!T.n) throw new Error('it has no records of a devstream trace');\n"
    "B = prepare(T);\n"
    "const first = x => min(...x.streamRows.filter(r => r.lanes[0].n).map(r => r.lanes[0].b[0]));\n"
    "B.shift = isFinite(first(A)) && isFinite(first(B)) ? first(A) - first(B) : A.from - B.from;\n"
    "} catch (e) {\n"
    "$('notes').append(el('p', 'Cannot open ' + file.name + ' for comparison: ' + e.message + '.'));\n"
    "return;\n"
    "}\n"
    "changed();\n"
    "}\n"
    "function changed() {\n"
    "picked = hovered = gapsOf = null;\n"
    "$('apart').hidden = !B;\n"
    "layout();\n"
    "search($('find').value);\n"
    "fit();\n"
    "notes();\n"
    "legend();\n"
    "tiles();\n"
    "tables();\n"
    "listTables();\n"
    "details();\n"
    "}\n"
    "function listen() {\n"
    "onkeydown = keys;\n"
    "onresize = () => { layout(); later(); };\n"
    "matchMedia('(prefers-color-scheme: dark)').onchange = later;\n"
    "$('find').oninput = e => search(e.target.value);\n"
    "$('arrows').onchange = later;\n"
    "$('in').onclick = () => zoom(0.5);\n"
    "$('out').onclick = () => zoom(2);\n"
    "$('fit').onclick = fit;\n"
    "$('help').onclick = () => $('keys').showModal();\n"
    "$('keys').querySelector('button').onclick = () => $('keys').close();\n",
    "$('other').onchange = e => { if (e.target.files[0]) compare(e.target.files[0]); e.target.value = ''; };\n"
    "$('apart').onclick = () => { B = null; changed(); };\n"
    "ondragover = e => e.preventDefault();\n"
    "ondrop = e => { e.preventDefault(); if (e.dataTransfer.files[0] && A.n) compare(e.dataTransfer.files[0]); };\n"
    "mouse();\n"
    "}\n"
    "async function start() {\n"
    "A = await read(chunksHere(), '');\n"
    "$('program').textContent = A.program ? 'of ' + A.program : '';\n"
    "$('when').textContent = (A.driver ? A.driver + ' driver' : '') + (A.unix ? ', ' + new Date(A.unix / 1e6).toLocaleString() : '');\n"
    "explain();\n"
    "if (A.n) {\n"
    "prepare(A);\n"
    "$('all').hidden = false;\n"
    "listen();\n"
    "changed();\n"
    "cancelAnimationFrame(frame);\n"
    "draw();\n"
    "} else {\n"
    "notes();\n"
    "$('open').hidden = $('find').hidden = true;\n"
    "$('help').onclick = () => $('keys').showModal();\n"
    "$('keys').querySelector('button').onclick = () => $('keys').close();\n"
    "$('notes').append(el('p', 'This trace is empty: no operation ended between its start and its end, or the program was killed before the first flush.'));\n"
    "}\n"
    "requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.ready = round(performance.now()); }));\n"
    "}\n"
    "start();\n"
    "</script>\n"
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
   thread for each stream, and process 0 for the threads of the host. Waits have a track of
   their own, because they overlap the operation before them in other views. An arrow leads from the
   operation that a wait waited for to the operation behind the wait (phases "s" and "f").

   Policy:
   1. Each event is one line that ends with a comma, after the first one. A viewer accepts an array
      that is cut off.
   2. A file has at most DS__TRACE_PART bytes of text: then another part begins, with its own names.
   3. Perfetto reverses an arrow whose target begins before its source, as most waits do. So the
      target is the next event of the stream, which "f" without "bp" means. "s" must be inside the
      source, so it is a nanosecond before the end. Both are written with the wait, if the source is
      in the same part.

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
    if (kind == DS__TRACE_RACE)
        return "race";
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "?";
}

/* Writes the part of an event that all have. */
static void ds__trace_json_head(ds__trace_output *o, const ds__trace_record *r, const char *phase,
                                unsigned pid, unsigned tid) {
    const char *name = ds__trace_view_text(r->kind == DS__TRACE_RACE ? r->call : r->name);
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

/* Writes one end of the arrow of a wait. */
static void ds__trace_json_mark(ds__trace_output *o, const char *phase, uint32_t id,
                                const ds__trace_end *at) {
    ds__trace_json_next(o);
    ds__trace_print(
        o, "{\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"cat\":\"wait\",\"name\":\"wait\",\"id\":%u",
        phase, at->pid, at->tid, id);
    ds__trace_json_time(o, "ts", at->time);
    ds__trace_print(o, "}");
}

/* Writes the arrow of a wait on this track, if it has one. */
static void ds__trace_json_arrow(ds__trace_output *o, const ds__trace_record *r, unsigned pid) {
    const ds__trace_end *from = &o->ends[r->cause & (ds__trace.ring_size - 1)];
    if (!r->cause || from->id != r->cause)
        return;
    ds__trace_json_mark(o, "s", r->id, from);
    ds__trace_json_mark(o, "f", r->id,
                        &(ds__trace_end){ .pid = pid,
                                          .tid = ds__trace_json_tid(r->row),
                                          .time = r->end > from->time ? r->end : from->time });
}

/* Writes an operation. */
static void ds__trace_json_operation(ds__trace_output *o, const ds__trace_record *r) {
    int waits = r->kind == DS__TRACE_WAIT;
    const ds__trace_stream *stream = ds__trace_view_stream(r->row);
    unsigned pid = stream ? stream->device + 1 : 0;
    unsigned tid = ds__trace_json_tid(r->row) + (waits ? DS__TRACE_WAITS : 0);
    ds__trace_json_head(o, r, "X", pid, tid);
    ds__trace_json_args(o, r);
    if (!o->ends || r->kind == DS__TRACE_NODE)
        return;
    if (waits)
        ds__trace_json_arrow(o, r, pid);
    o->ends[r->id & (ds__trace.ring_size - 1)] =
        (ds__trace_end){ r->id, pid, tid, r->end > r->begin ? r->end - 1 : r->begin };
}

/* Writes the counter of pending operations of a stream. */
static void ds__trace_json_pending(ds__trace_output *o, uint32_t row, uint64_t time,
                                   size_t pending) {
    char name[128];
    const ds__trace_stream *s = ds__trace_view_stream(row);
    if (!s)
        return;
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

/* Writes a race as an instant of the stream of the later operation. */
static void ds__trace_json_race(ds__trace_output *o, const ds__trace_record *r) {
    const ds__trace_stream *stream = ds__trace_view_stream(r->row);
    ds__trace_json_head(o, r, "i", stream ? stream->device + 1 : 0,
                        stream ? ds__trace_json_tid(r->row) : 0);
    ds__trace_print(o, ",\"s\":\"%s\",\"args\":{\"later\":%u,\"earlier\":%u,\"report\":",
                    stream ? "t" : "g", r->id, r->cause);
    ds__trace_put_string(o, ds__trace_view_text(r->name));
    ds__trace_print(o, "}}");
}

static void ds__trace_json_event(ds__trace_output *o, const ds__trace_record *r) {
    if (r->kind < DS__TRACE_BLOCKED) {
        ds__trace_json_operation(o, r);
        ds__trace_json_queue(o, r);
    } else if (r->kind == DS__TRACE_RACE) {
        ds__trace_json_race(o, r);
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
    if (!o->ends)
        o->ends = ds__host_alloc(ds__trace.ring_size * sizeof *o->ends);
    if (o->ends)
        memset(o->ends, 0, ds__trace.ring_size * sizeof *o->ends);
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
   (ds__trace_summary_write).

   Policy: the sums of streams and the longest waits are of the whole trace; the overlap is of the
   ring. Nodes of graphs count as their launch. Waits and records of events are not busy time.

   Invariants: each line ends with a line feed and has at most 500 characters. Without memory for a
   part, the output has failed.
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

/* Sorts by time. The order of turns at one time does not matter: no time passes between them. */
static int ds__trace_turn_compare(const void *a, const void *b) {
    const ds__trace_turn *x = a;
    const ds__trace_turn *y = b;
    return (x->time > y->time) - (x->time < y->time);
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
    ds__mutex_lock(&ds__trace.lock);
    uint64_t to = ds__trace.head;
    ds__mutex_unlock(&ds__trace.lock);
    uint64_t from = to > ds__trace.ring_size ? to - ds__trace.ring_size : 0;
    ds__trace_turn *list = ds__host_alloc((size_t)(to - from) * 2 * sizeof *list + 1);
    while (list && from < to) {
        ds__mutex_lock(&ds__trace.lock);
        for (size_t n = 0; n < DS__TRACE_SLICE && from < to; n++, from++) {
            const ds__trace_record *r = ds__trace_get(from);
            if (!r || !ds__trace_is_busy(r) || r->end <= r->begin)
                continue;
            uint8_t moves = r->kind == DS__TRACE_COPY || r->kind == DS__TRACE_FILL;
            list[count++] = (ds__trace_turn){ r->begin, 1, moves };
            list[count++] = (ds__trace_turn){ r->end, -1, moves };
        }
        ds__mutex_unlock(&ds__trace.lock);
    }
    *out_count = count;
    return list;
}

/* Returns how long operations ran at once. Without memory, the output has failed. */
static ds__trace_overlap ds__trace_overlap_get(ds__trace_output *out) {
    ds__trace_overlap o = { 0, 0, 0, 0 };
    size_t count = 0;
    ds__trace_turn *list = ds__trace_turns(&count);
    int running = 0;
    int moving = 0;
    if (!list)
        out->failed = 1;
    if (count) {
        qsort(list, count, sizeof *list, ds__trace_turn_compare);
        o.span = list[count - 1].time - list[0].time;
    }
    for (size_t i = 0; i < count; i++) {
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
    const ds__trace_stream *s = ds__trace_view_stream(row);
    if (!s)
        ds__trace_print(o, "a stream");
    else if (*s->name)
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
    if (!list) {
        o->failed = 1;
        return;
    }
    for (uint32_t i = 0; i < ds__trace_view.streams; i++)
        if (ds__trace_view.stream[i].operations)
            list[count++] = i;
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
    ds__trace_overlap overlap = ds__trace_overlap_get(o);
    if (!ds__trace_view_update())
        o->failed = 1;
    ds__mutex_lock(&ds__trace.lock);
    size_t waits = ds__trace.waits;
    uint64_t operations = ds__trace.operations;
    uint64_t dropped = ds__trace.dropped;
    memcpy(longest, ds__trace.longest, waits * sizeof *longest);
    ds__mutex_unlock(&ds__trace.lock);
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
   (ds__trace_standing_list), and writes the list as text.

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
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_record r = ds__trace_record_of(&s->record);
    ds__mutex_unlock(&ds__trace.lock);
    r.end = ds__trace_now();
    if (!s->record.begin_ns)
        r.begin = r.end;
    r.flags |= DS__TRACE_OPEN;
    return r;
}

/* Writes one line for each stream that stands. Without memory, the output has failed. */
static void ds__trace_standing_write(ds__trace_output *o) {
    ds__activity_standing *list = ds__host_alloc(DS__TRACE_STANDING * sizeof *list);
    if (!list) {
        o->failed = 1;
        return;
    }
    size_t count = ds__trace_standing_list(list);
    if (!count)
        ds__trace_print(o, "no stream has pending operations with a record\n");
    for (size_t i = 0; i < count; i++) {
        ds__trace_record r = ds__trace_standing_record(&list[i]);
        if (!ds__trace_view_update())
            o->failed = 1;
        ds__trace_put_stream(o, r.row);
        ds__trace_print(o, " stands at %s of ", ds__activity_kind_name(list[i].record.kind));
        ds__trace_put_site(o, r.call, r.file, r.line);
        if (r.name)
            ds__trace_print(o, " (%.100s)", ds__trace_view_text(r.name));
        if (list[i].record.begin_ns)
            ds__trace_print(o, ", since %.3f ms", (double)(r.end - r.begin) / 1e6);
        if (list[i].on) {
            ds__mutex_lock(&ds__trace.lock);
            uint32_t row = ds__trace_stream_of(list[i].on, 0, 0);
            ds__mutex_unlock(&ds__trace.lock);
            if (!ds__trace_view_update())
                o->failed = 1;
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
    { ".html", 0, ds__trace_html_begin, ds__trace_html_write, ds__trace_html_end },
    { ".json", 0, ds__trace_json_begin, ds__trace_json_write, ds__trace_json_end },
    { ".json.gz", 1, ds__trace_json_begin, ds__trace_json_write, ds__trace_json_end },
    { ".txt", 0, ds__trace_txt_begin, NULL, ds__trace_txt_end },
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

/* Copies the name of a file, with the number of the process in place of each "%p". Returns 0 if it
   has not enough room. */
static int ds__trace_path(char *to, size_t room, const char *name) {
    size_t n = 0;
    while (*name && n < room) {
        if (strncmp(name, "%p", 2) == 0) {
            n += (size_t)snprintf(to + n, room - n, "%u", ds__os_process_id());
            name += 2;
        } else {
            to[n++] = *name++;
        }
    }
    if (n >= room)
        return 0;
    to[n] = 0;
    return 1;
}

static ds_result ds__trace_output_open(ds__trace_output *o, const char *path) {
    const ds__trace_format *format;
    ds_result r = ds__trace_format_find(path, &format);
    if (r < 0)
        return r;
    memset(o, 0, sizeof *o);
    o->format = format;
    DS__REQUIRE(ds__trace_path(o->path, sizeof o->path, path),
                "trace: the file \"%.200s\" has too long a name with the process in it", path);
    o->list = ds__host_alloc(DS__TRACE_CHUNK * sizeof *o->list);
    if (!o->list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to write a trace");
    if (ds__trace_output_fopen(o, o->path)) {
        (void)ds__trace_view_update();
        format->begin(o);
        return DS_OK;
    }
    r = ds__fail(errno == ENOMEM ? DS_ERR_OUT_OF_MEMORY : DS_ERR_INVALID_VALUE,
                 "trace: the file \"%.200s\": %s", o->path, strerror(errno));
    ds__trace_output_deinit(o);
    return r;
}

/* Copies records from the ring, from `at` on and before `upto`. Returns their number. */
static size_t ds__trace_ring_read(ds__trace_output *o, uint64_t upto) {
    size_t count = 0;
    while (count < DS__TRACE_CHUNK && o->at.record < upto) {
        ds__mutex_lock(&ds__trace.lock);
        uint64_t oldest =
            ds__trace.head > ds__trace.ring_size ? ds__trace.head - ds__trace.ring_size : 0;
        if (o->at.record < oldest) {
            o->lost += oldest - o->at.record;
            o->at.record = oldest;
        }
        for (size_t n = 0; n < DS__TRACE_SLICE && count < DS__TRACE_CHUNK && o->at.record < upto;
             n++)
            o->list[count++] = ds__trace.ring[o->at.record++ & (ds__trace.ring_size - 1)];
        ds__mutex_unlock(&ds__trace.lock);
    }
    return count;
}

/* Writes the records that were added until now. */
static void ds__trace_pump(ds__trace_output *o) {
    ds__mutex_lock(&ds__trace.lock);
    uint64_t upto = ds__trace.head;
    uint64_t dropped = ds__trace.dropped;
    ds__mutex_unlock(&ds__trace.lock);
    while (o->file && o->format->write && !o->failed && o->at.record < upto) {
        uint64_t lost = o->lost;
        size_t count = ds__trace_ring_read(o, upto);
        (void)ds__trace_view_update();
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
    (void)ds__trace_view_update();
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
        ds__mutex_lock(&ds__trace.lock);
        o->dropped = ds__trace.dropped;
        if (ds__trace.head > ds__trace.ring_size)
            o->at.record = ds__trace.head - ds__trace.ring_size;
        ds__mutex_unlock(&ds__trace.lock);
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
        DS__REQUIRE(!d->dump, "trace: two dumps, \"%.100s\" and \"%.100s\"; use one", d->dump,
                    path);
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
        uint64_t now = ds__now_ns();
        found = 0;
        ds__mutex_lock(&ds__trace.lock);
        for (ds__trace_waiting *w = ds__trace.waiting; w && !found; w = w->next)
            if (!w->reported && now - w->begin >= limit) {
                w->reported = found = 1;
                one = *w;
            }
        ds__mutex_unlock(&ds__trace.lock);
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
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_record *ring = ds__trace.ring;
    uint64_t *place = ds__trace.place;
    ds__trace.ring = NULL;
    ds__trace.place = NULL;
    ds__trace.head = ds__trace.ring_size = 0;
    ds__trace_tables_deinit();
    ds__mutex_unlock(&ds__trace.lock);
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
    ds__mutex_lock(&ds__trace.lock);
    int ready = ring && place && ds__trace_tables_init();
    ds__trace.ring = ring;
    ds__trace.place = place;
    ds__trace.ring_size = size;
    ds__trace.has_file = desc->file != NULL;
    ds__trace.dropped = ds__trace.operations = ds__trace.untimed = 0;
    ds__trace.waits = 0;
    ds__trace.end_ns = 0;
    memset(ds__trace.open, 0, sizeof ds__trace.open);
    ds__trace.zero_ns = ds__now_ns();
    ds__trace.unix_ns = (uint64_t)ds__os_wall_ns();
    atomic_fetch_add(&ds__trace.epoch, 1);
    ds__mutex_unlock(&ds__trace.lock);
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
    ds__mutex_lock(&ds__trace.lock);
    atomic_store(&ds__trace.on, 0);
    ds__trace.end_ns = ds__trace_now();
    ds__mutex_unlock(&ds__trace.lock);
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
        ds__mutex_lock(&ds__trace.lock);
        if (atomic_load_explicit(&ds__trace.on, memory_order_relaxed))
            r.row = ds__trace_stream_of(seen->stream.id, 0, r.dst ? r.dst - 1u : 0);
        ds__mutex_unlock(&ds__trace.lock);
    }
    ds__trace_note(r, seen->label, seen->fn, seen->site);
}

/* A collective or a fill begins. */
static void ds__trace_seen_begin(void) {
    ds__mutex_lock(&ds__trace.lock);
    (void)ds__trace_thread_of();
    if (ds__trace_tls.depth < 8)
        ds__trace_tls.begin[ds__trace_tls.depth] = ds__trace_now();
    ds__trace_tls.depth++;
    ds__mutex_unlock(&ds__trace.lock);
}

/* A collective or a fill was enqueued or is complete. */
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
    ds__mutex_lock(&ds__trace.lock);
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
    ds__mutex_unlock(&ds__trace.lock);
}

/* A range of ds_range_start begins or ends. */
static void ds__trace_range_open(const ds_range_event *e, ds_site site) {
    ds__trace_record r = { .kind = DS__TRACE_RANGE, .end = ds__trace_time(e->time_ns) };
    uint64_t wanted = e->kind == DS_RANGE_START ? 0 : e->id;
    size_t i = 0;
    ds__mutex_lock(&ds__trace.lock);
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
    ds__mutex_unlock(&ds__trace.lock);
    if (found && e->kind == DS_RANGE_END)
        ds__trace_note(r, NULL, "ds_range_start", site);
}

/* The check layer has reported a race. */
static void ds__trace_seen_race(const ds__seen *seen) {
    ds__trace_record r = { .kind = DS__TRACE_RACE,
                           .row = DS__TRACE_NONE,
                           .begin = ds__trace_now(),
                           .id = (uint32_t)seen->operation,
                           .cause = (uint32_t)seen->before };
    r.end = r.begin;
    if (seen->stream.id) {
        ds__mutex_lock(&ds__trace.lock);
        if (atomic_load_explicit(&ds__trace.on, memory_order_relaxed))
            r.row = ds__trace_stream_of(seen->stream.id, 0, 0);
        ds__mutex_unlock(&ds__trace.lock);
    }
    ds__trace_note(r, seen->label, seen->hazard, seen->site);
}

/* A stream or the calling thread gets a label; also while no trace runs. */
static void ds__trace_seen_label(const ds_range_event *e, int on) {
    ds__mutex_lock(&ds__trace.lock);
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
    ds__mutex_unlock(&ds__trace.lock);
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
    case DS__SEEN_RACE:
        ds__trace_seen_race(seen);
        break;
    case DS__SEEN_BEGIN:
        ds__trace_seen_begin();
        break;
    case DS__SEEN_END:
        ds__trace_seen_end(seen);
        break;
    default:
        break;
    }
}

/* trace/layer.h - the layer's driver tables.

   Most of a trace comes from the recording of activity and from the observer. The table adds
   names of streams, how long calls block the host, and the end of the drivers.

   Invariants: a call that blocks is in the list of ds__trace.waiting while it blocks.
   Locks: the wrapped entries call the driver without ds__trace.lock.
   Threads: any. The tables are made in ds_init or at the start, under ds__g.mutex. */

/* The handle of a stream is known now. */
static void ds__trace_stream_named(int backend, void *stream, uint64_t handle) {
    ds__trace.next[backend]->stream_named(stream, handle);
    ds__stream *s = ds__pin(&ds__g.streams, handle);
    if (!s)
        return;
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_stream_name(handle, ds__trace_device(s->device), s->id, s->label);
    ds__mutex_unlock(&ds__trace.lock);
    ds__stream_unpin(s);
}

/* A call begins to block. */
static void ds__trace_block_begin(ds__trace_waiting *w) {
    w->fn = ds__tls.fn;
    w->site = ds__tls.site;
    w->begin = ds__now_ns();
    w->reported = 0;
    ds__mutex_lock(&ds__trace.lock);
    w->next = ds__trace.waiting;
    ds__trace.waiting = w;
    ds__mutex_unlock(&ds__trace.lock);
}

/* Ends the wait of a blocking call. cause: the operation that it waited for; 0: none, or several.
   least: a shorter wait is none, as most frees wait for nothing. */
static void ds__trace_block_end(const ds__trace_waiting *w, uint64_t cause, uint64_t least,
                                ds_result result) {
    ds__trace_record r = { .kind = DS__TRACE_BLOCKED,
                           .flags = ds__trace_flags(result),
                           .begin = ds__trace_time(w->begin),
                           .end = ds__trace_now(),
                           .cause = (uint32_t)cause };
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_waiting **p = &ds__trace.waiting;
    while (*p != w)
        p = &(*p)->next;
    *p = w->next;
    ds__mutex_unlock(&ds__trace.lock);
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
    ds__mutex_lock(&ds__trace.lock);
    ds__trace_streams_deinit();
    ds__mutex_unlock(&ds__trace.lock);
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

   Invariants: parameters are checked before anything changes. A start that fails later has
   discarded the trace before.
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
    ds__mutex_lock(&ds__trace.lock);
    const ds__trace_output *o = &ds__trace.output;
    out->operations = ds__trace.operations;
    out->untimed = ds__trace.untimed;
    out->records = ds__trace.head;
    out->kept = ds__trace.head < ds__trace.ring_size ? ds__trace.head : ds__trace.ring_size;
    out->dropped = ds__trace.dropped + o->lost;
    out->written = o->at.record - o->lost;
    out->bytes = o->bytes;
    ds__mutex_unlock(&ds__trace.lock);
    ds__mutex_unlock(&ds__trace.file_lock);
    return DS_OK;
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
