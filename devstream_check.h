/* Generated from src/devstream_check.h by `make headers`. Edit the files in src/, not this one. */
/* devstream_check.h - a detector of races between streams, and of errors of lifetime.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_check.h"
   in the C file that has the implementation of devstream.h; other headers of devstream may follow
   or precede. Put devstream.h beside it. Then run the program with DEVSTREAM_CHECK=1.

   The most frequent bug of programs with streams is a missing wait: memory is read, written, freed
   or reused on one stream while another stream still uses it. The layer decides from the order that
   the program states, so it finds such a bug in one run, without a GPU, whatever the timing.

   Example (compiles as it stands; the wait of `b` for `a` is missing):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_check.h"
       int main(void) {
           ds_stream a, b;
           void *p;
           if (ds_init(&(ds_init_desc){ .check = "1" }) < 0 || ds_stream_create(NULL, &a) < 0 ||
               ds_stream_create(NULL, &b) < 0 || ds_device_alloc(ds_device_current(), 4096, &p) < 0)
               return 1;
           DS_IGNORE(ds_fill(p, 0, 1, 4096, a));
           DS_IGNORE(ds_fill(p, 1, 1, 4096, b));
           ds_check_stats stats;
           DS_IGNORE(ds_check_get_stats(&stats));
           return stats.reports != 1 || ds_shutdown() < 0;
       }

   Environment, read once at the first call: DEVSTREAM_CHECK, a list of options (api/race.h, "The
   check layer").

   Contents: the check layer; implementation.

   Rules beyond devstream.h's:
   - Kernels state by their parameters which pointers they read and write, and by extents how far
     (ds_extent). Kernels of devstream_kernel.h have extents. Without an extent, an access covers
     the whole block, and a conflict is only a possible one.
   - Pointers inside of structs and in device memory are not accesses.
   - Host code declares its accesses to pinned memory by ds_host_read and ds_host_write.

   Known gaps: accesses to memory that devstream does not know are not checked
   (ds_check_declare_memory). Kernels are not looked into. */
#include "devstream.h"

#ifndef DEVSTREAM_CHECK_H_INCLUDED
#define DEVSTREAM_CHECK_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the check layer ------------------------------------------------------------------------- */

/* The layer sees every operation with the memory that it reads and writes, and every wait. It
   decides from the order that the program states whether two accesses may run at the same time. The
   result does not depend on timing, nor on the driver.

   The layer is on if "check" is in DEVSTREAM_LAYERS or ds_init_desc.layers, or if DEVSTREAM_CHECK
   or ds_init_desc.check is set. Otherwise all functions below do nothing and return DS_OK, except
   where their comment differs.

   Options, a list with commas in DEVSTREAM_CHECK or ds_init_desc.check; "1" alone: the defaults.
       threads       only declared hand-over orders threads (ds_check_release); by default, calls of
                     different threads are ordered as they happened
       possible      prints reports with an inexact access, too
       abort         calls abort() after the first exact report
       exit=N        ds_shutdown ends the process with exit code N if there was an exact report
       json          prints reports as JSON, one line for each
       quiet         prints nothing; reports go to the function of ds_check_set_report_fn
       output=FILE   prints to the file, not to standard error
       suppress=FILE patterns of reports that are not reported, one in a line; * and ? are
                     wildcards, # begins a comment. A pattern is compared with ds_hazard_report.key
       memory=N      maximum of the layer's memory in MiB, at least 4; 256 by default */

/** Kinds of reports. */
typedef enum ds_hazard {
    DS_HAZARD_NONE = 0,
    DS_HAZARD_READ_AFTER_WRITE = 1,  /**< a read is not ordered after a write */
    DS_HAZARD_WRITE_AFTER_READ = 2,  /**< a write is not ordered after a read */
    DS_HAZARD_WRITE_AFTER_WRITE = 3, /**< two writes are not ordered */
    /** a use is not ordered after the allocation of the block */
    DS_HAZARD_USE_BEFORE_ALLOC = 4,
    /** a block is freed while work of another stream may use it (ds_mem_record_use is missing) */
    DS_HAZARD_FREE_IN_USE = 5,
    DS_HAZARD_USE_AFTER_FREE = 6, /**< memory is used that was freed */
    /** declared memory is used at the addresses of memory that was forgotten, and whose uses are
        not ordered before (ds_check_declare_memory) */
    DS_HAZARD_REUSE = 7,
    /** a graph uses memory that was freed, or allocated anew, since it was made */
    DS_HAZARD_GRAPH_MEMORY = 8,
    /** a stream waits for an event that was never recorded. Always a possible report, as the first
        turn of a loop may do so on purpose */
    DS_HAZARD_UNRECORDED_WAIT = 9,
    /** two threads call collectives on the same streams, and no hand-over states their order. Only
        with the option "threads" */
    DS_HAZARD_COLLECTIVE_ORDER = 10
} ds_hazard;

/** One of the two operations of a report. Texts are never NULL; "" means unknown. */
typedef struct ds_hazard_access {
    const char *operation; /**< "ds_copy", or "kernel add" */
    const char *file;      /**< file of the call */
    int line;              /**< line of the call; 0: unknown */
    unsigned thread;       /**< the thread that called: a number from 1 in order of first calls */
    const char *stream;    /**< label of the stream, or "stream 7"; "host" for host code */
    /** number of the operation on its stream, from 1; waits and records count */
    uint64_t sequence;
    const void *ptr; /**< first byte that is accessed; NULL: no access */
    size_t width;    /**< bytes of a row */
    size_t pitch;    /**< bytes between two rows */
    size_t rows;     /**< number of rows */
    int inexact;     /**< 1: the kernel declares no extent, and the access covers the block */
} ds_hazard_access;

/** A report. All pointers are valid until the function of ds_check_set_report_fn returns. */
typedef struct ds_hazard_report {
    ds_hazard hazard; /**< kind of the report */
    int possible;     /**< 1: there may be no hazard, because one of the accesses is inexact, or the
                       order of a wait for a value is not known */
    uint64_t number;  /**< of the report, from 1 */
    ds_hazard_access now;    /**< the operation that was enqueued last */
    ds_hazard_access before; /**< the operation that it conflicts with */
    const char *label;       /**< label of the memory, or "" */
    const void *base;        /**< first byte of the memory */
    size_t bytes;            /**< its size */
    const char *file;        /**< file of the allocation, or "" */
    int line;                /**< line of the allocation; 0: unknown */
    const char *order;       /**< the nearest synchronization of both operations, in words */
    /** operations by which this synchronization was too early; 0: there is none */
    uint64_t missed;
    const char *fix;      /**< a change that would order the operations */
    const char *key;      /**< one line of key=value without numbers that change between runs */
    const char *text;     /**< the whole report as text, several lines */
    uint64_t reserved[6]; /**< 0 */
} ds_hazard_report;

/** Receives each report, on the thread of the call that completes the hazard. Locks of devstream
    are held, so the function must not call devstream except for functions that are callable
    anywhere. */
typedef void (*ds_hazard_fn)(const ds_hazard_report *report, void *user);

/** Statistics of the layer since the start. */
typedef struct ds_check_stats {
    uint64_t reports;    /**< exact reports, one for each pair of sites */
    uint64_t repeated;   /**< further hazards of pairs that were reported */
    uint64_t possible;   /**< pairs of sites with an inexact access */
    uint64_t suppressed; /**< hazards that a pattern suppresses */
    uint64_t operations; /**< operations on streams */
    uint64_t accesses;   /**< checked accesses */
    uint64_t inexact;    /**< accesses of kernels without an extent */
    uint64_t unchecked;  /**< accesses to memory that devstream does not know */
    uint64_t ranges;     /**< blocks and allocations that are known now */
    uint64_t records;    /**< accesses that are kept now */
    uint64_t bytes;      /**< memory of the layer now */
    uint64_t timelines;  /**< streams and threads that have clocks now */
    uint64_t evicted;    /**< ranges that are not checked any more, for lack of memory */
    uint64_t
        undeclared; /**< launches of kernels without a list of parameters: no access is known */
    uint64_t reserved[6]; /**< 0 */
} ds_check_stats;

/** Sets the function that receives reports, also before devstream starts; NULL: none. ds_shutdown
    forgets it. */
DSDEF void ds_check_set_report_fn(ds_hazard_fn fn, void *user);

/** Returns the statistics; zeros if the layer is off. */
DSDEF ds_result ds_check_get_stats(ds_check_stats *out);

/** Returns the name of a hazard, as "read-after-write". Callable anywhere. */
DSDEF const char *ds_hazard_get_name(ds_hazard hazard);

/** Declares that the calling thread reads pinned memory now. Inside of a host function, the access
    belongs to its stream. Programs use the macro ds_host_read. Callable anywhere. */
DSDEF ds_result ds_check_host_read(const void *ptr, size_t bytes);
/** Declares a write in the same way; the macro is ds_host_write. Callable anywhere. */
DSDEF ds_result ds_check_host_write(const void *ptr, size_t bytes);

#if defined(NDEBUG) || defined(DEVSTREAM_NO_CHECK)
#define ds_host_read(ptr, bytes) ((void)0)
#define ds_host_write(ptr, bytes) ((void)0)
#else
/** Declares a read by host code; vanishes if NDEBUG or DEVSTREAM_NO_CHECK is defined. */
#define ds_host_read(ptr, bytes) ((void)ds_check_host_read(ptr, bytes))
/** Declares a write by host code; vanishes if NDEBUG or DEVSTREAM_NO_CHECK is defined. */
#define ds_host_write(ptr, bytes) ((void)ds_check_host_write(ptr, bytes))
#endif

/** Declares a hand-over between threads: everything that the calling thread did or waited for so
    far is ordered before everything that follows the next ds_check_acquire with this token.
    Callable anywhere. */
DSDEF ds_result ds_check_release(const void *token);
/** Declares that the calling thread has received all releases of the token. Callable anywhere. */
DSDEF ds_result ds_check_acquire(const void *token);

/** Declares a synchronization that devstream does not see: all work that is now on the stream
    `from` is ordered before all work that will be enqueued on `to`. A zeroed handle stands for the
    calling thread. */
DSDEF ds_result ds_check_declare_order(ds_stream from, ds_stream to);

/** Declares memory of another library, so that its accesses are checked. The label is copied; NULL:
    none. DS_ERR_INVALID_VALUE: the range is empty or overlaps memory that is known. */
DSDEF ds_result ds_check_declare_memory(const void *ptr, size_t bytes, const char *label);
/** Declares that memory of ds_check_declare_memory is gone. */
DSDEF ds_result ds_check_forget_memory(const void *ptr);

/** Lets the layer ignore accesses to a range from now on, until its memory is freed. */
DSDEF ds_result ds_check_ignore(const void *ptr, size_t bytes);

/** Sets the extents of the next kernel launch of the calling thread, in place of those of the
    kernel: one for each parameter of the kernel, in order; further parameters keep theirs. */
DSDEF ds_result ds_check_set_extents(const ds_extent *extents, size_t count);

/** A moment: an operation on a stream, or an access of a thread. */
typedef struct ds_check_point {
    uint32_t line;     /**< number of the timeline; 0: none */
    uint32_t reserved; /**< 0 */
    uint64_t sequence; /**< number of the operation on the timeline */
} ds_check_point;

/** Returns the last operation that was enqueued on the stream, or, for a zeroed handle, this moment
    of the calling thread. DS_ERR_ILLEGAL_STATE: the layer is off. */
DSDEF ds_result ds_check_get_point(ds_stream stream, ds_check_point *out);

/** Explains the order of two points. Writes the chain of waits that orders `a` before `b` into the
    buffer, one step in a line, or the sentence that there is no such chain; prints it to standard
    error if text is NULL. A text that is longer than size - 1 bytes is cut between two characters.
    Returns DS_OK: `a` is ordered before `b`. DS_NOT_READY: it is not.
    DS_ERR_ILLEGAL_STATE: the layer is off. Only the last 65,536 waits are kept, so an old chain may
    be known only as "ordered". */
DSDEF ds_result ds_check_why(ds_check_point a, ds_check_point b, char *text, size_t size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES

static inline ds_result ds_at_check_get_stats(const char *file_, int line_,
        ds_check_stats *out_) {
    return ds_site_set(file_, line_), (ds_check_get_stats)(out_);
}
#define ds_check_get_stats(...) ds_at_check_get_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_host_read(const char *file_, int line_,
        const void *ptr_, size_t bytes_) {
    return ds_site_set(file_, line_), (ds_check_host_read)(ptr_, bytes_);
}
#define ds_check_host_read(...) ds_at_check_host_read(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_host_write(const char *file_, int line_,
        const void *ptr_, size_t bytes_) {
    return ds_site_set(file_, line_), (ds_check_host_write)(ptr_, bytes_);
}
#define ds_check_host_write(...) ds_at_check_host_write(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_release(const char *file_, int line_,
        const void *token_) {
    return ds_site_set(file_, line_), (ds_check_release)(token_);
}
#define ds_check_release(...) ds_at_check_release(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_acquire(const char *file_, int line_,
        const void *token_) {
    return ds_site_set(file_, line_), (ds_check_acquire)(token_);
}
#define ds_check_acquire(...) ds_at_check_acquire(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_declare_order(const char *file_, int line_,
        ds_stream from_, ds_stream to_) {
    return ds_site_set(file_, line_), (ds_check_declare_order)(from_, to_);
}
#define ds_check_declare_order(...) ds_at_check_declare_order(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_declare_memory(const char *file_, int line_,
        const void *ptr_, size_t bytes_, const char *label_) {
    return ds_site_set(file_, line_), (ds_check_declare_memory)(ptr_, bytes_, label_);
}
#define ds_check_declare_memory(...) ds_at_check_declare_memory(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_forget_memory(const char *file_, int line_,
        const void *ptr_) {
    return ds_site_set(file_, line_), (ds_check_forget_memory)(ptr_);
}
#define ds_check_forget_memory(...) ds_at_check_forget_memory(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_ignore(const char *file_, int line_,
        const void *ptr_, size_t bytes_) {
    return ds_site_set(file_, line_), (ds_check_ignore)(ptr_, bytes_);
}
#define ds_check_ignore(...) ds_at_check_ignore(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_set_extents(const char *file_, int line_,
        const ds_extent *extents_, size_t count_) {
    return ds_site_set(file_, line_), (ds_check_set_extents)(extents_, count_);
}
#define ds_check_set_extents(...) ds_at_check_set_extents(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_get_point(const char *file_, int line_,
        ds_stream stream_, ds_check_point *out_) {
    return ds_site_set(file_, line_), (ds_check_get_point)(stream_, out_);
}
#define ds_check_get_point(...) ds_at_check_get_point(__FILE__, __LINE__, __VA_ARGS__)

static inline ds_result ds_at_check_why(const char *file_, int line_,
        ds_check_point a_, ds_check_point b_, char *text_, size_t size_) {
    return ds_site_set(file_, line_), (ds_check_why)(a_, b_, text_, size_);
}
#define ds_check_why(...) ds_at_check_why(__FILE__, __LINE__, __VA_ARGS__)

#endif

#endif /* DEVSTREAM_CHECK_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_CHECK_H_IMPLEMENTED)
#define DEVSTREAM_CHECK_H_IMPLEMENTED
#ifndef __cplusplus

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

/* check/table.h - memory of the layer, and a hash table.

   ds__race_alloc and ds__race_release count the bytes of the layer; ds__race_array_reserve lets an
   array grow. ds__race_table_find, ds__race_table_set and ds__race_table_remove are a hash table
   with open addressing.

   Invariants: without memory, ds__race.failed is set, and nothing is checked any more. A table is
   at most half full.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Ends the checks for lack of memory. */
static void ds__race_fail(void) {
    if (ds__race.failed)
        return;
    ds__race.failed = 1;
    ds__race_notice_failure();
}

/* Returns zeroed memory. NULL: there is none, and the layer ends. */
static void *ds__race_alloc(size_t size) {
    void *ptr = ds__host_alloc(size);
    if (ptr) {
        ds__race.bytes += size;
        return ptr;
    }
    ds__race_fail();
    return NULL;
}

static void ds__race_release(void *ptr, size_t size) {
    if (ptr)
        ds__race.bytes -= size;
    ds__host_free(ptr);
}

/* Makes room for one more element. Returns 0 if there is no memory. */
static int ds__race_array_reserve(void *array, size_t element, size_t count, size_t *room) {
    size_t before = *room;
    if (count < before)
        return 1;
    if (!ds__array_reserve(array, element, count, 1, room)) {
        ds__race_fail();
        return 0;
    }
    ds__race.bytes += (*room - before) * element;
    return 1;
}

static size_t ds__race_hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return (size_t)(key ^ key >> 32);
}

/* Returns the slot of the key, or the free slot in which it belongs. */
static ds__race_entry *ds__race_table_slot(const ds__race_table *t, uint64_t key) {
    size_t i = ds__race_hash(key) & (t->size - 1);
    while (t->entry[i].key && t->entry[i].key != key)
        i = (i + 1) & (t->size - 1);
    return &t->entry[i];
}

/* Returns the value of a key, or NULL. */
static void *ds__race_table_find(const ds__race_table *t, uint64_t key) {
    return t->size ? ds__race_table_slot(t, key)->value : NULL;
}

/* Sets the value of a key. Returns 0 if there is no memory. */
static int ds__race_table_set(ds__race_table *t, uint64_t key, void *value) {
    if (2 * (t->used + 1) > t->size) {
        ds__race_table old = *t;
        size_t size = old.size ? 2 * old.size : 64;
        ds__race_entry *entry = ds__race_alloc(size * sizeof *entry);
        if (!entry)
            return 0;
        t->entry = entry;
        t->size = size;
        for (size_t i = 0; i < old.size; i++)
            if (old.entry[i].key)
                *ds__race_table_slot(t, old.entry[i].key) = old.entry[i];
        ds__race_release(old.entry, old.size * sizeof *old.entry);
    }
    ds__race_entry *e = ds__race_table_slot(t, key);
    t->used += !e->key;
    e->key = key;
    e->value = value;
    return 1;
}

/* Removes a key, and moves the entries that follow it to where they are found. */
static void ds__race_table_remove(ds__race_table *t, uint64_t key) {
    if (!t->size)
        return;
    ds__race_entry *e = ds__race_table_slot(t, key);
    if (!e->key)
        return;
    t->used--;
    e->key = 0;
    e->value = NULL;
    size_t i = (size_t)(e - t->entry);
    for (i = (i + 1) & (t->size - 1); t->entry[i].key; i = (i + 1) & (t->size - 1)) {
        ds__race_entry moved = t->entry[i];
        t->entry[i] = (ds__race_entry){ 0, NULL };
        *ds__race_table_slot(t, moved.key) = moved;
    }
}

/* Removes all keys of a value. */
static void ds__race_table_remove_value(ds__race_table *t, const void *value) {
    for (size_t i = 0; i < t->size;)
        if (t->entry[i].key && t->entry[i].value == value)
            ds__race_table_remove(t, t->entry[i].key);
        else
            i++;
}

static void ds__race_table_deinit(ds__race_table *t) {
    ds__race_release(t->entry, t->size * sizeof *t->entry);
    *t = (ds__race_table){ NULL, 0, 0 };
}

static uint64_t ds__race_key(const void *ptr) {
    return (uint64_t)(uintptr_t)ptr;
}

/* check/clock.h - vector clocks.

   A clock holds the number of the last known operation for each timeline. Timelines and events
   share clocks; ds__race_clock_join and ds__race_clock_raise copy a shared clock before they change
   it.

   Invariants: a missing entry is 0.
   Locks: ds__race.lock is held.
   Threads: any. */

static size_t ds__race_clock_size(uint32_t count) {
    return sizeof(ds__race_clock) + count * sizeof(uint64_t);
}

static ds__race_clock *ds__race_clock_ref(ds__race_clock *c) {
    if (c)
        c->users++;
    return c;
}

static void ds__race_clock_unref(ds__race_clock *c) {
    if (c && --c->users == 0)
        ds__race_release(c, ds__race_clock_size(c->count));
}

static uint64_t ds__race_clock_at(const ds__race_clock *c, uint32_t line) {
    return c && line < c->count ? c->at[line] : 0;
}

/* Makes *c a clock of one user with at least `count` entries. Returns 0 if there is no memory. */
static int ds__race_clock_own(ds__race_clock **c, uint32_t count) {
    ds__race_clock *old = *c;
    if (old && old->users == 1 && old->count >= count)
        return 1;
    if (old && old->count > count)
        count = old->count;
    count = (count + 7) / 8 * 8;
    ds__race_clock *fresh = ds__race_alloc(ds__race_clock_size(count));
    if (!fresh)
        return 0;
    fresh->users = 1;
    fresh->count = count;
    if (old)
        memcpy(fresh->at, old->at, old->count * sizeof *old->at);
    ds__race_clock_unref(old);
    *c = fresh;
    return 1;
}

/* Raises one entry. */
static void ds__race_clock_raise(ds__race_clock **c, uint32_t line, uint64_t n) {
    if (ds__race_clock_at(*c, line) < n && ds__race_clock_own(c, line + 1))
        (*c)->at[line] = n;
}

/* Raises all entries to those of the other clock. */
static void ds__race_clock_join(ds__race_clock **c, ds__race_clock *other) {
    if (!other || other == *c)
        return;
    if (!*c) {
        *c = ds__race_clock_ref(other);
        return;
    }
    uint32_t i = 0;
    while (i < other->count && other->at[i] <= ds__race_clock_at(*c, i))
        i++;
    if (i == other->count || !ds__race_clock_own(c, other->count))
        return;
    uint64_t *at = (*c)->at;
    for (; i < other->count; i++)
        at[i] = at[i] > other->at[i] ? at[i] : other->at[i];
}

/* check/edge.h - the last waits, to explain an order.

   Keeps the last DS__RACE_EDGES waits between timelines in a ring (ds__race_edge_add).
   ds__race_edge_last finds the wait by which one timeline knows an operation of another one;
   ds__race_edges_reach finds the chains of waits that lead to an operation, and
   ds__race_edges_lead asks whether one begins at a given operation.

   Invariants: the waits are in the order in which they were made, so a chain ends with the newest.
   Locks: ds__race.lock is held.
   Threads: any. */

static void ds__race_edge_add(const ds__race_edge *e) {
    if (!ds__race.edge) {
        ds__race.edge = ds__race_alloc(DS__RACE_EDGES * sizeof *ds__race.edge);
        if (!ds__race.edge)
            return;
    }
    ds__race.edge[ds__race.edges++ % DS__RACE_EDGES] = *e;
}

/* Returns the number of waits that are kept. */
static uint64_t ds__race_edges_kept(void) {
    return ds__race.edges < DS__RACE_EDGES ? ds__race.edges : DS__RACE_EDGES;
}

/* Returns the newest wait for operation n of a timeline, or NULL. n 0: a wait of `to` before the
   timeline had an operation. */
static const ds__race_edge *ds__race_edge_last(uint32_t from, uint64_t n, uint32_t to) {
    uint64_t kept = ds__race_edges_kept();
    for (uint64_t i = 1; i <= kept; i++) {
        const ds__race_edge *e = &ds__race.edge[(ds__race.edges - i) % DS__RACE_EDGES];
        if (e->from == from && e->from_n == n && (n || e->to == to))
            return e;
    }
    return NULL;
}

/* Result of the search for a timeline: the last operation from which the goal is reached, and the
   wait after it. */
typedef struct ds__race_reach {
    uint64_t n; /* 0: none */
    const ds__race_edge *next;
} ds__race_reach;

/* Finds for each timeline the last operation that is ordered before operation n of `to`. Returns an
   array by timeline, which the caller releases, or NULL. */
static ds__race_reach *ds__race_edges_reach(uint32_t to, uint64_t n) {
    ds__race_reach *reach = ds__race_alloc(ds__race.lines * sizeof *reach);
    if (!reach)
        return NULL;
    uint64_t kept = ds__race_edges_kept();
    reach[to].n = n;
    for (uint64_t i = 1; i <= kept; i++) {
        const ds__race_edge *e = &ds__race.edge[(ds__race.edges - i) % DS__RACE_EDGES];
        if (reach[e->to].n >= e->to_n && reach[e->from].n < e->from_n)
            reach[e->from] = (ds__race_reach){ e->from_n, e };
    }
    return reach;
}

static void ds__race_reach_release(ds__race_reach *reach) {
    ds__race_release(reach, reach ? ds__race.lines * sizeof *reach : 0);
}

/* Returns 1 if a chain of waits orders operation n of `from` before operation m of `to`. */
static int ds__race_edges_lead(uint32_t from, uint64_t n, uint32_t to, uint64_t m) {
    if (from == to)
        return n <= m;
    ds__race_reach *reach = ds__race_edges_reach(to, m);
    int lead = reach && reach[from].n >= n;
    ds__race_reach_release(reach);
    return lead;
}

static void ds__race_edges_deinit(void) {
    ds__race_release(ds__race.edge, ds__race.edge ? DS__RACE_EDGES * sizeof *ds__race.edge : 0);
    ds__race.edge = NULL;
    ds__race.edges = 0;
}

/* check/place.h - call sites of operations.

   ds__race_place_of returns a number for the running public call and its site, ds__race_place_named
   one for a given name. Equal places have one number, so a record of an access is small.

   Invariants: place 0 is unknown. Places live until ds_shutdown; a program has as many as it has
   call sites.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Returns a key of a place. */
static uint64_t ds__race_place_key(const char *operation, const char *file, int line) {
    uint64_t key = (uint64_t)(uintptr_t)file * 31 + (unsigned)line;
    for (const char *c = operation; *c; c++)
        key = key * 131 + (unsigned char)*c;
    return key | 1;
}

/* Returns the number of a place. The file is not copied: it lives as long as the program. */
static uint32_t ds__race_place_named(const char *operation, const char *file, int line) {
    if (!ds__race_array_reserve(&ds__race.place, sizeof *ds__race.place, ds__race.places,
                                &ds__race.place_room))
        return 0;
    if (!ds__race.places) /* the unknown place */
        ds__race.place[ds__race.places++] = (ds__race_place){ "", NULL, 0 };

    /* of two places with one key, the later one takes the next key */
    uint64_t key = ds__race_place_key(operation, file, line);
    uint32_t i;
    while ((i = (uint32_t)(uintptr_t)ds__race_table_find(&ds__race.place_keys, key)) != 0) {
        const ds__race_place *p = &ds__race.place[i];
        if (p->line == line && p->file == file && strcmp(p->operation, operation) == 0)
            return i;
        key += 2;
    }

    char *copy = ds__copy_text(operation, 255);
    void *number = (void *)(uintptr_t)ds__race.places;
    if (!copy || !ds__race_table_set(&ds__race.place_keys, key, number)) {
        ds__host_free(copy);
        ds__race_fail();
        return 0;
    }
    ds__race.place[ds__race.places] = (ds__race_place){ copy, file, line };
    return (uint32_t)ds__race.places++;
}

/* Finds the number of a place by its name. kernel: the name of a kernel; NULL: the running public
   call. */
__attribute__((noinline)) static uint32_t ds__race_place_look_up(const char *kernel,
                                                                 const char *file, int line) {
    char name[101];
    char text[128];
    if (!kernel)
        return ds__race_place_named(ds__tls.fn ? ds__tls.fn : "devstream", file, line);
    ds__utf8_copy(name, sizeof name, kernel);
    snprintf(text, sizeof text, "kernel %s", name);
    return ds__race_place_named(text, file, line);
}

/* Returns the number of a place. A name that was found last for a source, which is a kernel's
   handle or a public function, and a call site is found again without a comparison of texts. */
static uint32_t ds__race_place_find(uint64_t source, const char *kernel, const char *file,
                                    uint32_t line) {
    uint64_t key = source * 31 + (uint64_t)(uintptr_t)file * 7 + line;
    ds__race_found *f = &ds__race.found[ds__race_hash(key) % DS__RACE_FOUND];
    if (DS__LIKELY(f->source == source && f->file == file && f->line == line && f->place))
        return f->place;
    uint32_t place = ds__race_place_look_up(kernel, file, (int)line);
    *f = (ds__race_found){ source, file, line, place };
    return place;
}

/* Returns the number of the running public call. */
static uint32_t ds__race_place_of_call(void) {
    return ds__race_place_find((uint64_t)(uintptr_t)ds__tls.fn, NULL, ds__tls.site.file,
                               (uint32_t)ds__tls.site.line);
}

/* Returns the number of a stream's operation. */
static uint32_t ds__race_place_of(const ds__op *op) {
    const ds__kernel *k = op->kind == DS__OP_KERNEL ? op->u.kernel.kernel : NULL;
    uint64_t source = k ? ds__handle_of(&k->slot) : (uint64_t)(uintptr_t)ds__tls.fn;
    return ds__race_place_find(source, k ? k->name : NULL, op->file, op->line);
}

static const ds__race_place *ds__race_place_get(uint32_t place) {
    static const ds__race_place unknown = { "", NULL, 0 };
    return place && place < ds__race.places ? &ds__race.place[place] : &unknown;
}

static void ds__race_places_deinit(void) {
    for (size_t i = 1; i < ds__race.places; i++)
        ds__host_free((void *)(uintptr_t)ds__race.place[i].operation);
    ds__race_release(ds__race.place, ds__race.place_room * sizeof *ds__race.place);
    ds__race_table_deinit(&ds__race.place_keys);
    ds__race.place = NULL;
    ds__race.places = ds__race.place_room = 0;
    memset(ds__race.found, 0, sizeof ds__race.found);
}

/* check/line.h - timelines of streams and threads, and the order between them.

   Creates timelines (ds__race_line_create), finds that of a stream or of the calling thread
   (ds__race_line_of, ds__race_host), begins an operation on a stream (ds__race_line_enqueue), and
   records waits (ds__race_line_wait, ds__race_host_wait). ds__race_floors finds for each timeline
   the number that all others know.

   Policy:
   1. An operation on a stream comes after everything that the calling thread knows.
   2. An operation of the legacy stream comes after all operations of the blocking streams of its
      device, and an operation of a blocking stream after those of the legacy stream.
   3. The number of an ended timeline is used again when all others know its last operation.

   Invariants: the number of operations of a timeline never falls, also when its index is reused.
   The entry of a clock for its own timeline is not used.
   Locks: ds__race.lock is held.
   Threads: any. */

static ds__race_line *ds__race_line_at(uint32_t index) {
    return ds__race.line[index];
}

/* Returns the last operation of another timeline that is known to the next one of this timeline. */
static uint64_t ds__race_line_known(const ds__race_line *l, uint32_t other) {
    return other == l->index ? l->n : ds__race_clock_at(l->clock, other);
}

/* Returns 1 if operation n of a timeline is ordered before the current operation. */
static int ds__race_knows(const ds__race_now *now, uint32_t line, uint64_t n) {
    return n <= (line == now->line ? now->n : ds__race_clock_at(now->clock, line));
}

/* Lowers the numbers of an array to those that a timeline knows. also: a clock that it takes over
   before its next operation; NULL: none. */
static void ds__race_floor_lower(uint64_t *floor, const ds__race_clock *clock, uint32_t own,
                                 uint64_t n, const ds__race_line *also) {
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        uint64_t known = i == own ? n : ds__race_clock_at(clock, i);
        uint64_t more = also ? ds__race_line_known(also, i) : 0;
        known = known > more ? known : more;
        floor[i] = floor[i] < known ? floor[i] : known;
    }
}

/* Returns for each timeline the number that all timelines know of it: records up to it cannot
   conflict with later operations. With the option "threads", a thread that begins later knows
   nothing, so all numbers are 0. NULL: there is no memory. The caller releases the array. */
static uint64_t *ds__race_floors(void) {
    uint64_t *floor = ds__race_alloc(ds__race.lines * sizeof *floor);
    if (!floor || ds__race.threads)
        return floor;
    const ds__race_line *host = ds__race.host ? ds__race_line_at(ds__race.host) : NULL;
    memset(floor, 0xff, ds__race.lines * sizeof *floor);
    for (const ds__race_task *t = ds__race.task; t; t = t->next)
        ds__race_floor_lower(floor, t->clock, t->line, t->n, NULL);
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        const ds__race_line *l = ds__race.line[i];
        if (l->kind == DS__RACE_STREAM || l->kind == DS__RACE_HOST)
            ds__race_floor_lower(floor, l->clock, i, l->n,
                                 l->kind == DS__RACE_STREAM ? host : NULL);
    }
    return floor;
}

/* Returns a new timeline, or NULL. The numbers of operations go on where those of an earlier
   timeline of this index ended, so old clocks stay right. */
static ds__race_line *ds__race_line_create(int kind) {
    uint32_t i = 1;
    while (i < ds__race.lines && ds__race.line[i]->kind != DS__RACE_FREE)
        i++;
    if (i >= ds__race.lines) {
        if (i >= DS__RACE_LINES || !ds__race_array_reserve(&ds__race.line, sizeof(void *),
                                                           ds__race.lines, &ds__race.line_room))
            return NULL;
        ds__race.line[i] = ds__race_alloc(sizeof(ds__race_line));
        if (!ds__race.line[i])
            return NULL;
        ds__race.lines = i + 1;
    }
    ds__race_line *l = ds__race.line[i];
    uint64_t n = l->n;
    *l = (ds__race_line){
        .kind = (uint8_t)kind, .is_host = kind == DS__RACE_HOST, .index = i, .n = n
    };
    ds__race.stats.timelines++;
    return l;
}

/* Returns the number of the calling thread. */
static uint32_t ds__race_thread(void) {
    if (!ds__race_tls.number)
        ds__race_tls.number = atomic_fetch_add(&ds__race_threads, 1) + 1;
    return ds__race_tls.number;
}

/* Returns the timeline of the calling thread, or NULL. */
static ds__race_line *ds__race_host(void) {
    uint32_t *index = ds__race.threads ? &ds__race_tls.line : &ds__race.host;
    if (ds__race.threads && ds__race_tls.epoch != ds__race.epoch) {
        ds__race_tls.epoch = ds__race.epoch;
        ds__race_tls.line = 0;
    }
    if (*index)
        return ds__race_line_at(*index);
    ds__race_line *l = ds__race_line_create(DS__RACE_HOST);
    if (l) {
        l->number = ds__race_thread();
        *index = l->index;
    }
    return l;
}

/* Returns the timeline of a driver's stream, or NULL. */
static ds__race_line *ds__race_line_of(const void *native) {
    return ds__race_table_find(&ds__race.natives, ds__race_key(native));
}

/* Returns the timeline of a handle that a driver has, or NULL. */
static ds__race_line *ds__race_line_named(ds_stream stream) {
    return stream.id ? ds__race_table_find(&ds__race.handles, stream.id) : NULL;
}

/* Returns the timeline of a handle of the program, or NULL. Drivers do not get the handle of a
   wrapper of a default stream, but it has the driver's stream. Threads of drivers have no pins. */
static ds__race_line *ds__race_line_of_handle(ds_stream stream) {
    ds__race_line *l = ds__race_line_named(stream);
    if (l || !stream.id || !ds__tls.thread)
        return l;
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    if (!s)
        return NULL;
    l = ds__race_line_of(s->native);
    ds__stream_unpin(s);
    return l;
}

/* Orders operation n of a timeline, with everything that it knew, before operation to_n of another
   one, which is the current or the next one. clock: of that moment. Places: see ds__race_edge. */
static void ds__race_line_join(ds__race_line *to, uint64_t to_n, ds__race_clock *clock,
                               const ds__race_edge *from) {
    if (from->from == to->index ||
        (from->from_n && ds__race_line_known(to, from->from) >= from->from_n))
        return;
    ds__race_clock_join(&to->clock, clock);
    ds__race_clock_raise(&to->clock, from->from, from->from_n);
    ds__race_edge e = *from; /* also of a wait for nothing, to explain it */
    e.to = to->index;
    e.to_n = to_n;
    ds__race_edge_add(&e);
}

/* The same for everything that the other timeline has done so far. */
static void ds__race_line_wait(ds__race_line *to, uint64_t to_n, const ds__race_line *from,
                               uint32_t place) {
    ds__race_line_join(
        to, to_n, from->clock,
        &(ds__race_edge){ .from = from->index, .from_n = from->n, .to_place = place });
}

/* Orders operation to_n of a timeline after all blocking streams of the legacy stream's device. */
static void ds__race_line_wait_blocking(ds__race_line *to, uint64_t to_n,
                                        const ds__race_line *legacy, uint32_t place) {
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        const ds__race_line *b = ds__race.line[i];
        if (b->blocking && b->backend == legacy->backend && b->device == legacy->device)
            ds__race_line_wait(to, to_n, b, place);
    }
}

/* Orders the current operation of a timeline after everything that comes before the next operation
   of a stream, as an event that is recorded there would. */
static void ds__race_line_wait_next(ds__race_line *to, const ds__race_line *other, uint32_t place) {
    uint32_t legacy = other->blocking ? ds__race.legacy[other->backend][other->device] : 0;
    if (other->legacy)
        ds__race_line_wait_blocking(to, to->n, other, place);
    if (legacy)
        ds__race_line_wait(to, to->n, ds__race_line_at(legacy), place);
    ds__race_line_wait(to, to->n, other, place);
}

/* Returns the last operation of a timeline that comes before the next operation of a stream. */
static uint64_t ds__race_line_next_known(const ds__race_line *l, uint32_t line) {
    uint32_t legacy = l->blocking ? ds__race.legacy[l->backend][l->device] : 0;
    uint64_t known = ds__race_line_known(l, line);
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        const ds__race_line *b = ds__race.line[i];
        int counts =
            i == legacy || i == ds__race.host ||
            (l->legacy && b->blocking && b->backend == l->backend && b->device == l->device);
        uint64_t n = counts ? ds__race_line_known(b, line) : 0;
        known = n > known ? n : known;
    }
    return known;
}

/* Orders the next operation with the legacy stream of the device. */
static void ds__race_line_take_legacy(ds__race_line *l, uint32_t place) {
    uint32_t legacy = ds__race.legacy[l->backend][l->device];
    if (l->legacy)
        ds__race_line_wait_blocking(l, l->n + 1, l, place);
    else if (legacy)
        ds__race_line_wait(l, l->n + 1, ds__race_line_at(legacy), place);
}

/* Begins an operation on a stream, after everything that the calling thread knows. */
static void ds__race_line_enqueue(ds__race_line *l, uint32_t place) {
    ds__race_line *host = ds__race_host();
    if (host && (l->host != host->index || l->host_n != host->n)) {
        ds__race_line_wait(l, l->n + 1, host, place);
        l->host = host->index;
        l->host_n = host->n;
    }
    if (l->legacy || l->blocking)
        ds__race_line_take_legacy(l, place);
    l->n++;
    ds__race.stats.operations++;
}

/* The calling thread has waited for operation n of a timeline. clock: of that moment. */
static void ds__race_host_join(ds__race_clock *clock, const ds__race_edge *from) {
    ds__race_line *host = ds__race_host();
    if (!host || ds__race_line_known(host, from->from) >= from->from_n)
        return;
    host->n++;
    ds__race_line_join(host, host->n, clock, from);
}

/* The calling thread has waited for everything that a timeline has done so far. */
static void ds__race_host_wait(const ds__race_line *from) {
    ds__race_line *host = ds__race_host();
    if (host && from->legacy) {
        host->n++;
        ds__race_line_wait_blocking(host, host->n, from, ds__race_place_of_call());
    }
    ds__race_host_join(from->clock, &(ds__race_edge){ .from = from->index,
                                                      .from_n = from->n,
                                                      .to_place = ds__race_place_of_call() });
}

/* Returns the current operation of a stream, for its accesses. */
static ds__race_now ds__race_line_now(const ds__race_line *l, uint32_t place) {
    return (ds__race_now){ .clock = l->clock,
                           .n = l->n,
                           .line = l->index,
                           .place = place,
                           .thread = ds__race_thread(),
                           .vague = l->vague && l->n >= l->vague };
}

static void ds__race_lines_deinit(void) {
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        ds__race_clock_unref(ds__race.line[i]->clock);
        ds__race_release(ds__race.line[i], sizeof(ds__race_line));
    }
    ds__race_release(ds__race.line, ds__race.line_room * sizeof(void *));
    ds__race.line = NULL;
    ds__race.lines = 0;
    ds__race.ended = 0;
    ds__race.reuse_at = 0;
    ds__race.line_room = 0;
    ds__race.host = 0;
    memset(ds__race.legacy, 0, sizeof ds__race.legacy);
}

/* check/moment.h - moments of timelines that are kept, such as records of events.

   ds__race_moment_keep keeps the clock of a timeline under a key, ds__race_moment_join orders
   another timeline after it.

   Invariants: a moment has a reference of its clock.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Keeps the clock of a timeline under a key of a table; returns the entry, or NULL. */
static ds__race_event *ds__race_moment_keep(ds__race_table *t, uint64_t key, const ds__race_line *l,
                                            uint32_t place) {
    ds__race_event *e = ds__race_table_find(t, key);
    if (!e) {
        e = ds__race_alloc(sizeof *e);
        if (!e || !ds__race_table_set(t, key, e)) {
            ds__race_release(e, sizeof *e);
            return NULL;
        }
    }
    ds__race_clock *clock = ds__race_clock_ref(l->clock);
    ds__race_clock_unref(e->clock);
    *e = (ds__race_event){ .clock = clock, .n = l->n, .line = l->index, .place = place };
    return e;
}

/* Forgets the clock of an event that was recorded in a capture: the record is part of the graph. */
static void ds__race_moment_capture(ds__race_table *t, uint64_t key) {
    static const ds__race_line none;
    ds__race_moment_keep(t, key, &none, 0);
}

/* Orders the current operation of a timeline after the kept moment. */
static void ds__race_moment_join(ds__race_line *l, const ds__race_event *e, uint32_t place) {
    ds__race_line_join(
        l, l->n, e->clock,
        &(ds__race_edge){
            .from = e->line, .from_n = e->n, .from_place = e->place, .to_place = place });
}

/* Forgets the moment of a key. */
static void ds__race_moment_forget(ds__race_table *t, uint64_t key) {
    ds__race_event *e = ds__race_table_find(t, key);
    if (!e)
        return;
    ds__race_table_remove(t, key);
    ds__race_clock_unref(e->clock);
    ds__race_release(e, sizeof *e);
}

static void ds__race_moments_deinit(ds__race_table *t) {
    for (size_t i = 0; i < t->size; i++)
        if (t->entry[i].key) {
            ds__race_event *e = t->entry[i].value;
            ds__race_clock_unref(e->clock);
            ds__race_release(e, sizeof *e);
        }
    ds__race_table_deinit(t);
}

/* check/word.h - words of memory that streams write and wait for.

   Keeps the last writes of each word (ds__race_word_write), and orders a wait for a word
   (ds__race_word_wait).

   Policy:
   1. A wait for a word of memory is ordered after the first write of a stream that meets the
      condition and is not over already. If there is none, host code or later work writes the word:
      from there on, conflicts of the stream are possible ones only.

   Invariants: the writes of a word are in the order of the calls.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Returns 1 if a word with the value meets the condition of a wait. */
static int ds__race_value_meets(const ds_value_op *v, uint64_t word) {
    uint64_t mask = v->size == 4 ? UINT32_MAX : UINT64_MAX;
    switch (v->kind) {
    case DS_VALUE_WAIT_GEQ:
        return v->size == 4 ? (int32_t)(uint32_t)(word - v->value) >= 0
                            : (int64_t)(word - v->value) >= 0;
    case DS_VALUE_WAIT_EQ:
        return word == v->value;
    case DS_VALUE_WAIT_AND:
        return (word & v->value) != 0;
    default: /* DS_VALUE_WAIT_NOR */
        return (~(word | v->value) & mask) != 0;
    }
}

/* Keeps a write of a word. */
static void ds__race_word_write(const ds__race_line *l, const ds_value_op *v, uint32_t place) {
    uint64_t key = ds__race_key(v->address);
    ds__race_word *w = ds__race_table_find(&ds__race.words, key);
    if (!w) {
        w = ds__race_alloc(sizeof *w);
        if (!w || !ds__race_table_set(&ds__race.words, key, w)) {
            ds__race_release(w, sizeof *w);
            return;
        }
    }
    size_t most = sizeof w->write / sizeof w->write[0];
    if (w->count == most) {
        ds__race_clock_unref(w->write[0].at.clock);
        memmove(w->write, w->write + 1, --w->count * sizeof w->write[0]);
    }
    ds__race_event at = {
        .clock = ds__race_clock_ref(l->clock), .n = l->n, .line = l->index, .place = place
    };
    w->write[w->count++] = (ds__race_write){ at, v->value };
}

/* Orders the current operation of a timeline after the write that ends its wait: the first one that
   meets the condition behind the last write that the timeline knows. If there is none, the order is
   not known from here on. */
static void ds__race_word_wait(ds__race_line *l, const ds_value_op *v, uint32_t place) {
    const ds__race_word *w = ds__race_table_find(&ds__race.words, ds__race_key(v->address));
    size_t i = w ? w->count : 0;
    while (i && ds__race_line_known(l, w->write[i - 1].at.line) < w->write[i - 1].at.n)
        i--;
    if (i && ds__race_value_meets(v, w->write[i - 1].value))
        return;
    for (; w && i < w->count; i++) {
        const ds__race_write *x = &w->write[i];
        if (!ds__race_value_meets(v, x->value))
            continue;
        ds__race_moment_join(l, &x->at, place);
        return;
    }
    if (!l->vague)
        l->vague = l->n;
}

static void ds__race_words_deinit(void) {
    for (size_t i = 0; i < ds__race.words.size; i++) {
        ds__race_word *w = ds__race.words.entry[i].value;
        for (size_t k = 0; w && k < w->count; k++)
            ds__race_clock_unref(w->write[k].at.clock);
        ds__race_release(w, sizeof *w);
    }
    ds__race_table_deinit(&ds__race.words);
}

/* check/range.h - strided ranges.

   ds__race_range_overlaps tells whether two ranges have a byte in common, ds__race_range_covers
   whether one has all bytes of the other one.

   Invariants: a range has at least one row of at least one byte; with several rows, the pitch is at
   least the width.
   Locks: none.
   Threads: any. */

static ds__race_range ds__race_range_row(const void *ptr, size_t bytes) {
    return (ds__race_range){ (uintptr_t)ptr, bytes, bytes, 1 };
}

/* Returns rows as a range; rows without gaps are one row. */
static ds__race_range ds__race_range_rows(const void *ptr, size_t width, size_t pitch,
                                          size_t rows) {
    if (rows <= 1 || pitch == width)
        return ds__race_range_row(ptr, width * (rows ? rows : 1));
    return (ds__race_range){ (uintptr_t)ptr, width, pitch, rows };
}

/* Returns the rows of an operand of a copy or fill; at: DS__OP_DST or DS__OP_SRC. */
static ds__race_range ds__race_range_of(const ds__op *op, int at) {
    if (op->kind == DS__OP_FILL)
        return ds__race_range_rows(op->u.fill.dst, op->u.fill.width * op->u.fill.value_size,
                                   op->u.fill.pitch, op->u.fill.height);
    if (at == DS__OP_DST)
        return ds__race_range_rows(op->u.copy.dst, op->u.copy.width, op->u.copy.dst_pitch,
                                   op->u.copy.height);
    return ds__race_range_rows(op->u.copy.src, op->u.copy.width, op->u.copy.src_pitch,
                               op->u.copy.height);
}

/* Returns the address behind the last byte. */
static uintptr_t ds__race_range_end(const ds__race_range *r) {
    return r->at + (r->rows - 1) * r->pitch + r->width;
}

/* Returns 1 if a row of the range has a byte of [at, end). */
static int ds__race_range_meets(const ds__race_range *r, uintptr_t at, uintptr_t end) {
    if (at >= ds__race_range_end(r) || end <= r->at)
        return 0;
    if (r->rows == 1)
        return 1;
    /* the first row that ends behind `at` */
    size_t row = at < r->at + r->width ? 0 : (at - r->at - r->width) / r->pitch + 1;
    return row < r->rows && r->at + row * r->pitch < end;
}

static int ds__race_range_overlaps(const ds__race_range *a, const ds__race_range *b) {
    uintptr_t a_end = ds__race_range_end(a);
    uintptr_t b_end = ds__race_range_end(b);
    if (a->at >= b_end || b->at >= a_end)
        return 0;
    if (a->rows == 1)
        return ds__race_range_meets(b, a->at, a_end);
    if (b->rows == 1)
        return ds__race_range_meets(a, b->at, b_end);
    if (a->pitch == b->pitch) {
        /* the distance of the first rows, within a pitch: a row of b begins `shift` bytes behind a
           row of a; rows that could meet exist because the whole ranges do */
        const ds__race_range *low = a->at <= b->at ? a : b;
        const ds__race_range *high = a->at <= b->at ? b : a;
        size_t distance = high->at - low->at;
        size_t shift = distance % low->pitch;
        size_t rows = distance / low->pitch;
        if (shift < low->width && rows < low->rows)
            return 1;
        return shift + high->width > low->pitch && rows + 1 < low->rows;
    }
    const ds__race_range *few = a->rows <= b->rows ? a : b;
    const ds__race_range *many = few == a ? b : a;
    for (size_t i = 0; i < few->rows; i++) {
        uintptr_t at = few->at + i * few->pitch;
        if (ds__race_range_meets(many, at, at + few->width))
            return 1;
    }
    return 0;
}

/* Returns 1 if each byte of b is known to be in a. */
static int ds__race_range_covers(const ds__race_range *a, const ds__race_range *b) {
    if (a->rows == 1)
        return a->at <= b->at && ds__race_range_end(b) <= ds__race_range_end(a);
    if (b->rows == 1) {
        /* within one row */
        if (b->at < a->at)
            return 0;
        size_t distance = b->at - a->at;
        return distance / a->pitch < a->rows && distance % a->pitch + b->width <= a->width;
    }
    return a->at == b->at && a->pitch == b->pitch && a->width >= b->width && a->rows >= b->rows;
}

/* check/record.h - kept accesses of known memory.

   A range of memory has lists of accesses (ds__race_records_list). At first, it has one list. When
   this list has grown, the range is divided into buckets of equal size (ds__race_records_divide):
   accesses within one bucket are in the list of the bucket, others in the first list. So an access
   is compared with those near to it (ds__race_records_of, ds__race_records_span).
   ds__race_records_sweep drops accesses that all timelines know.

   Invariants: ds_check_stats.records is the number of kept accesses of all memory. The first
   list and the lists of the buckets that a range meets have all accesses that overlap the range.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Accesses in a list that is not divided; a test defines less before it includes the
   implementation. */
#ifndef DS__TEST_RACE_LIST
#define DS__TEST_RACE_LIST 32
#endif

enum {
    DS__RACE_LIST = DS__TEST_RACE_LIST,
    DS__RACE_BUCKETS = 1 << 12, /* buckets of a range at most */
    DS__RACE_BUCKETS_GROWTH = 8 /* a division makes so many of one */
};

/* Returns list i of memory, from 0 to m->buckets. */
static ds__race_list *ds__race_records_list(ds__race_memory *m, size_t i) {
    return i ? &m->bucket[i - 1] : &m->list;
}

/* Returns the number of the list of the bucket that has an address; accesses of a former owner may
   begin before the range, and end after it. */
static size_t ds__race_records_bucket(const ds__race_memory *m, uintptr_t address) {
    size_t i = address > m->base ? (address - m->base) >> m->shift : 0;
    return 1 + (i < m->buckets ? i : m->buckets - 1);
}

/* Writes the lists of buckets that a range meets, *first to *last. They are 1 and 0 if there are no
   buckets. */
static void ds__race_records_span(const ds__race_memory *m, const ds__race_range *r, size_t *first,
                                  size_t *last) {
    *first = 1;
    *last = 0;
    if (DS__LIKELY(!m->buckets))
        return;
    *first = ds__race_records_bucket(m, r->at);
    *last = ds__race_records_bucket(m, ds__race_range_end(r) - 1);
}

/* Returns the list to which an access of a range belongs. */
static ds__race_list *ds__race_records_of(ds__race_memory *m, const ds__race_range *r) {
    size_t first;
    size_t last;
    ds__race_records_span(m, r, &first, &last);
    return first == last ? &m->bucket[first - 1] : &m->list;
}

static void ds__race_list_clear(ds__race_list *list) {
    ds__race.stats.records -= list->count;
    ds__race_release(list->at, list->room * sizeof *list->at);
    *list = (ds__race_list){ NULL, 0, 0 };
}

static void ds__race_list_push(ds__race_list *list, const ds__race_record *record) {
    if (!ds__race_array_reserve(&list->at, sizeof *list->at, list->count, &list->room))
        return;
    list->at[list->count++] = *record;
    ds__race.stats.records++;
}

/* Forgets all accesses of memory. */
static void ds__race_records_clear(ds__race_memory *m) {
    for (size_t i = 0; i <= m->buckets; i++)
        ds__race_list_clear(ds__race_records_list(m, i));
    ds__race_release(m->bucket, m->buckets * sizeof *m->bucket);
    m->bucket = NULL;
    m->buckets = 0;
}

/* Divides memory into buckets, or none, and puts each access into its list. */
static void ds__race_records_divide(ds__race_memory *m, uint32_t buckets) {
    ds__race_memory old = *m;
    unsigned shift = 0;
    while (buckets && (m->size - 1) >> shift >= buckets)
        shift++;
    m->bucket = buckets ? ds__race_alloc(buckets * sizeof *m->bucket) : NULL;
    m->buckets = m->bucket ? buckets : 0;
    m->shift = (uint8_t)shift;
    m->list = (ds__race_list){ NULL, 0, 0 };
    for (size_t i = 0; i <= old.buckets; i++) {
        const ds__race_list *list = ds__race_records_list(&old, i);
        for (size_t k = 0; k < list->count; k++)
            ds__race_list_push(ds__race_records_of(m, &list->at[k].range), &list->at[k]);
    }
    ds__race_records_clear(&old);
}

/* Returns 1 if most accesses of a list are small enough for more buckets. */
static int ds__race_records_are_small(const ds__race_memory *m, const ds__race_list *list,
                                      size_t buckets) {
    size_t narrow = 0;
    for (size_t i = 0; i < list->count; i++) {
        const ds__race_range *r = &list->at[i].range;
        narrow += ds__race_range_end(r) - r->at <= m->size / buckets;
    }
    return narrow > list->count / 2;
}

/* Keeps an access. A list that grows is looked at for a division when its length is a power of
   two. */
static void ds__race_records_add(ds__race_memory *m, const ds__race_record *record) {
    ds__race_list *list = ds__race_records_of(m, &record->range);
    size_t count = list->count;
    if (DS__UNLIKELY(count >= DS__RACE_LIST && !(count & (count - 1)))) {
        size_t buckets = (m->buckets ? m->buckets : 1) * (size_t)DS__RACE_BUCKETS_GROWTH;
        int divisible = (!m->buckets || list != &m->list) && buckets <= DS__RACE_BUCKETS;
        if (divisible && ds__race_records_are_small(m, list, buckets)) {
            ds__race_records_divide(m, (uint32_t)buckets);
            list = ds__race_records_of(m, &record->range);
        }
    }
    ds__race_list_push(list, record);
}

/* Drops the accesses of memory that all timelines know, and buckets that are mostly empty. */
static void ds__race_records_sweep(ds__race_memory *m, const uint64_t *floor) {
    size_t all = 0;
    for (size_t i = 0; i <= m->buckets; i++) {
        ds__race_list *list = ds__race_records_list(m, i);
        size_t kept = 0;
        for (size_t k = 0; k < list->count; k++)
            if (list->at[k].n > floor[list->at[k].line])
                list->at[kept++] = list->at[k];
        ds__race.stats.records -= list->count - kept;
        list->count = kept;
        if (!kept && list->room > 4)
            ds__race_list_clear(list);
        all += kept;
    }
    if (m->buckets && all <= m->buckets / 8)
        ds__race_records_divide(m, 0);
}

/* check/memory.h - known memory by address.

   Keeps blocks of the allocator and allocations, live and freed, in two maps
   (ds__race_memory_add, ds__race_memory_end). ds__race_memory_find looks an address up, first among
   the blocks. ds__race_sweep drops accesses that all timelines know.

   Policy:
   1. A freed range is remembered until its addresses are given out again, at most DS__RACE_DEAD
      of them.
   2. At the limit of memory, the layer gives up accesses that all timelines know, then freed
      ranges, then the accesses of live ranges, which are not checked any more. Of freed and of live
      ranges, the oldest are given up first.
   3. A block may outlive the stream of its allocation. When the number of the stream's timeline is
      used again, the block has no timeline: the host knows all work of the stream then.

   Invariants: the ranges of a map do not overlap. A range that a graph watches is not freed before
   the graph has forgotten it (`watchers`), though it leaves the map.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Returns the piece that holds the last range that begins at or before the address; *out_at: the
   index behind that range. NULL: the map is empty. */
static ds__race_piece *ds__race_map_seek(const ds__race_map *map, uintptr_t address,
                                         size_t *out_leaf, size_t *out_at) {
    size_t low = 0;
    size_t high = map->count;
    *out_leaf = 0;
    *out_at = 0;
    if (!map->count)
        return NULL;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (map->leaf[middle].first <= address)
            low = middle;
        else
            high = middle;
    }
    ds__race_piece *p = map->leaf[low].piece;
    /* without branches, since they would be predicted wrong half of the time */
    const uintptr_t *base = p->base;
    size_t left = p->count;
    while (left > 1) {
        size_t half = left / 2;
        base = base[half] <= address ? base + half : base;
        left -= half;
    }
    *out_leaf = low;
    *out_at = (size_t)(base - p->base) + (*base <= address);
    return p;
}

/* Returns the range of a map that has the address, or NULL. */
static ds__race_memory *ds__race_map_find(const ds__race_map *map, uintptr_t address) {
    size_t leaf;
    size_t at;
    const ds__race_piece *p = ds__race_map_seek(map, address, &leaf, &at);
    if (!p || !at)
        return NULL;
    ds__race_memory *m = p->at[at - 1];
    return address - m->base < m->size ? m : NULL;
}

/* Returns the first range of a map that overlaps [base, base + size), or NULL. */
static ds__race_memory *ds__race_map_meet(const ds__race_map *map, uintptr_t base, size_t size) {
    size_t leaf;
    size_t at;
    const ds__race_piece *p = ds__race_map_seek(map, base, &leaf, &at);
    if (!p)
        return NULL;
    if (at && base - p->base[at - 1] < p->at[at - 1]->size)
        return p->at[at - 1];
    if (at == p->count) {
        if (leaf + 1 == map->count)
            return NULL;
        p = map->leaf[leaf + 1].piece;
        at = 0;
    }
    return p->base[at] - base < size ? p->at[at] : NULL;
}

/* Moves ranges [from, from + count) of a piece to index `to` of a piece. */
static void ds__race_piece_move(ds__race_piece *into, size_t to, const ds__race_piece *p,
                                size_t from, size_t count) {
    memmove(into->at + to, p->at + from, count * sizeof p->at[0]);
    memmove(into->base + to, p->base + from, count * sizeof p->base[0]);
}

/* Divides a piece, or adds the first one. Returns 0 if there is no memory. */
static int ds__race_map_split(ds__race_map *map, size_t leaf) {
    ds__race_piece *fresh = ds__race_alloc(sizeof *fresh);
    if (!fresh || !ds__race_array_reserve(&map->leaf, sizeof *map->leaf, map->count, &map->room)) {
        ds__race_release(fresh, sizeof *fresh);
        return 0;
    }
    size_t at = map->count ? leaf + 1 : 0;
    memmove(map->leaf + at + (at < map->count), map->leaf + at,
            (map->count - at) * sizeof *map->leaf);
    map->leaf[at] = (ds__race_leaf){ 0, fresh };
    fresh->base[0] = UINTPTR_MAX; /* the first piece is empty: before all of it */
    map->count++;
    if (map->count > 1) {
        ds__race_piece *full = map->leaf[leaf].piece;
        fresh->count = full->count / 2;
        full->count -= fresh->count;
        ds__race_piece_move(fresh, 0, full, full->count, fresh->count);
        map->leaf[at].first = fresh->base[0];
    }
    return 1;
}

static int ds__race_map_insert(ds__race_map *map, ds__race_memory *m) {
    size_t leaf;
    size_t at;
    ds__race_piece *p = ds__race_map_seek(map, m->base, &leaf, &at);
    if (!p || p->count == sizeof p->at / sizeof p->at[0]) {
        if (!ds__race_map_split(map, leaf))
            return 0;
        p = ds__race_map_seek(map, m->base, &leaf, &at);
    }
    ds__race.version++;
    ds__race_piece_move(p, at + 1, p, at, p->count - at);
    p->at[at] = m;
    p->base[at] = m->base;
    p->count++;
    map->leaf[leaf].first = p->base[0];
    return 1;
}

static void ds__race_map_remove(ds__race_map *map, const ds__race_memory *m) {
    size_t leaf;
    size_t at;
    ds__race_piece *p = ds__race_map_seek(map, m->base, &leaf, &at);
    if (!p || !at || p->at[at - 1] != m)
        return;
    ds__race.version++;
    ds__race_piece_move(p, at - 1, p, at, p->count - at);
    p->count--;
    map->leaf[leaf].first = p->base[0];
    if (p->count)
        return;
    ds__race_release(p, sizeof *p);
    memmove(map->leaf + leaf, map->leaf + leaf + 1, (map->count - leaf - 1) * sizeof *map->leaf);
    map->count--;
}

static ds__race_map *ds__race_map_of(const ds__race_memory *m) {
    return m->block ? &ds__race.block : &ds__race.alloc;
}

static void ds__race_memory_release(ds__race_memory *m) {
    ds__race_records_clear(m);
    for (size_t i = 0; i < m->uses; i++)
        ds__race_clock_unref(m->use[i].clock);
    ds__race_release(m->use, m->use_room * sizeof *m->use);
    ds__race_release(m->skip, m->skip_room * sizeof *m->skip);
    ds__race_release(m, sizeof *m);
}

/* Takes a freed range out of the list of freed ranges. */
static void ds__race_dead_unlink(ds__race_memory *m) {
    if (m->newer)
        m->newer->older = m->older;
    else
        ds__race.newest = m->older;
    if (m->older)
        m->older->newer = m->newer;
    else
        ds__race.oldest = m->newer;
    m->newer = m->older = NULL;
    ds__race.dead--;
}

/* Forgets a range. */
static void ds__race_memory_drop(ds__race_memory *m) {
    ds__race_map_remove(ds__race_map_of(m), m);
    if (m->dead)
        ds__race_dead_unlink(m);
    else
        ds__race.stats.ranges--;
    m->dead = 1;
    m->unlisted = 1;
    ds__race_records_clear(m);
    if (!m->watchers)
        ds__race_memory_release(m);
}

/* Drops a watcher. */
static void ds__race_memory_unwatch(ds__race_memory *m) {
    if (--m->watchers == 0 && m->unlisted)
        ds__race_memory_release(m);
}

/* Takes a freed range out of its map, with its records; the caller ends it by
   ds__race_memory_unwatch. */
static ds__race_memory *ds__race_memory_detach(ds__race_memory *m) {
    ds__race_map_remove(ds__race_map_of(m), m);
    ds__race_dead_unlink(m);
    m->unlisted = 1;
    m->watchers++;
    return m;
}

/* Takes the timelines whose numbers are free out of a block. All others know what these timelines
   knew, so the block needs their clocks no longer. */
static void ds__race_memory_unline(ds__race_memory *m) {
    if (m->line && m->line != DS__RACE_GONE && ds__race_line_at(m->line)->kind == DS__RACE_FREE)
        m->line = DS__RACE_GONE;
    for (size_t i = 0; i < m->uses; i++) {
        ds__race_use *u = &m->use[i];
        if (u->line == DS__RACE_GONE || ds__race_line_at(u->line)->kind != DS__RACE_FREE)
            continue;
        u->line = DS__RACE_GONE;
        u->open = 0;
    }
}

/* Frees the numbers of ended timelines that all others know. Their records are gone. */
static void ds__race_lines_reuse(const uint64_t *floor) {
    uint32_t ended = ds__race.ended;
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        ds__race_line *l = ds__race.line[i];
        if (l->kind != DS__RACE_ENDED || floor[i] < l->n)
            continue;
        ds__race_clock_unref(l->clock);
        l->clock = NULL;
        l->kind = DS__RACE_FREE;
        ds__race.ended--;
    }
    ds__race.reuse_at = 2 * ds__race.ended + DS__RACE_ENDED_LINES;
    for (size_t i = 0; i < ds__race.block.count && ds__race.ended != ended; i++)
        for (size_t j = 0; j < ds__race.block.leaf[i].piece->count; j++)
            ds__race_memory_unline(ds__race.block.leaf[i].piece->at[j]);
}

/* Drops the records that all timelines know, then the timelines that ended before. */
static void ds__race_sweep(void) {
    uint64_t *floor = ds__race_floors();
    ds__race.fresh = 0;
    if (!floor)
        return;
    const ds__race_map *maps[] = { &ds__race.block, &ds__race.alloc };
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < maps[k]->count; i++)
            for (size_t j = 0; j < maps[k]->leaf[i].piece->count; j++)
                ds__race_records_sweep(maps[k]->leaf[i].piece->at[j], floor);
    ds__race_lines_reuse(floor);
    ds__race_release(floor, ds__race.lines * sizeof *floor);
}

/* Returns the live ranges that have accesses. Returns NULL if there is no memory. */
static ds__race_memory **ds__race_ranges_list(size_t *out_count) {
    const ds__race_map *maps[] = { &ds__race.block, &ds__race.alloc };
    ds__race_memory **list = ds__race_alloc((ds__race.stats.ranges + 1) * sizeof(void *));
    *out_count = 0;
    for (int k = 0; k < 2 && list; k++)
        for (size_t i = 0; i < maps[k]->count; i++)
            for (size_t j = 0; j < maps[k]->leaf[i].piece->count; j++) {
                ds__race_memory *m = maps[k]->leaf[i].piece->at[j];
                if (!m->dead && (m->list.room || m->buckets))
                    list[(*out_count)++] = m;
            }
    return list;
}

static int ds__race_memory_compare(const void *a, const void *b) {
    const ds__race_memory *const *x = a;
    const ds__race_memory *const *y = b;
    return ((*x)->serial > (*y)->serial) - ((*x)->serial < (*y)->serial);
}

/* Gives up the accesses of a live range. For the first one, a notice is printed. */
static void ds__race_memory_give_up(ds__race_memory *m) {
    char text[160];
    if (!ds__race.stats.evicted++) {
        snprintf(
            text, sizeof text,
            "the limit of memory=%zu is reached; %s%s%s%p and other ranges are not checked any "
            "more",
            ds__race.most >> 20, *m->label ? "\"" : "", m->label, *m->label ? "\" " : "",
            (void *)m->base);
        ds__race_notice(text);
    }
    m->ignored = 1;
    ds__race_records_clear(m);
}

/* Gives up ranges at the limit of memory. */
static void ds__race_make_room(void) {
    size_t most = ds__race.most - ds__race.most / 8;
    ds__race_sweep();
    while (ds__race.bytes > most && ds__race.oldest)
        ds__race_memory_drop(ds__race.oldest);
    if (ds__race.bytes <= most)
        return;
    size_t room = (ds__race.stats.ranges + 1) * sizeof(void *);
    size_t count;
    ds__race_memory **list = ds__race_ranges_list(&count);
    if (!list)
        return;
    qsort(list, count, sizeof *list, ds__race_memory_compare);
    for (size_t i = 0; i < count && ds__race.bytes - room > most; i++)
        ds__race_memory_give_up(list[i]);
    ds__race_release(list, room);
}

/* Adds a range to its map. Returns NULL if there is no memory for it. */
static ds__race_memory *ds__race_memory_insert(const ds__race_memory *as) {
    ds__race_memory *m = ds__race_alloc(sizeof *m);
    if (!m)
        return NULL;
    *m = *as;
    m->serial = ++ds__race.serial;
    if (!ds__race_map_insert(ds__race_map_of(m), m)) {
        ds__race_release(m, sizeof *m);
        return NULL;
    }
    return m;
}

/* Puts a freed range at the end of the list of freed ranges. */
static void ds__race_dead_link(ds__race_memory *m) {
    m->older = ds__race.newest;
    if (ds__race.newest)
        ds__race.newest->newer = m;
    else
        ds__race.oldest = m;
    ds__race.newest = m;
    if (++ds__race.dead > DS__RACE_DEAD)
        ds__race_memory_drop(ds__race.oldest);
}

/* Adds a part of a freed block, unless it is empty. */
static void ds__race_part_insert(const ds__race_memory *of, uintptr_t base, uintptr_t end) {
    if (base >= end)
        return;
    ds__race_memory part = { .base = base,
                             .size = end - base,
                             .line = of->line,
                             .made = of->made,
                             .freed = of->freed,
                             .dead = 1,
                             .of_graph = of->of_graph,
                             .block = 1 };
    memcpy(part.label, of->label, sizeof part.label);
    ds__race_memory *m = ds__race_memory_insert(&part);
    if (m)
        ds__race_dead_link(m);
}

/* Forgets the memory of [base, base + size) in a map. A freed block that is only partly there stays
   in parts. */
static void ds__race_map_clear(ds__race_map *map, uintptr_t base, size_t size) {
    ds__race_memory *m;
    while ((m = ds__race_map_meet(map, base, size)) != NULL) {
        ds__race_memory former = *m;
        ds__race_memory_drop(m);
        if (!former.dead || !former.block)
            continue;
        ds__race_part_insert(&former, former.base, base);
        ds__race_part_insert(&former, base + size, former.base + former.size);
    }
}

/* Adds memory that is given out now, and forgets freed memory of these addresses. Returns NULL if
   there is no memory for it. */
static ds__race_memory *ds__race_memory_add(const void *ptr, size_t size, int block,
                                            const char *label) {
    ds__race_memory as = { .base = (uintptr_t)ptr,
                           .size = size + (size == 0),
                           .block = (uint8_t)block,
                           .made = ds__race_place_of_call() };
    ds__utf8_copy(as.label, sizeof as.label, label ? label : "");
    ds__race_map_clear(block ? &ds__race.block : &ds__race.alloc, as.base, as.size);
    if (!block) { /* blocks of an earlier segment */
        ds__race_memory *m;
        while ((m = ds__race_map_meet(&ds__race.block, as.base, as.size)) != NULL)
            ds__race_memory_drop(m);
    }
    ds__race_memory *m = ds__race_memory_insert(&as);
    ds__race.stats.ranges += m != NULL;
    return m;
}

/* Marks a range as freed, and keeps its records for its next use. */
static void ds__race_memory_retire(ds__race_memory *m) {
    ds__race.version++;
    m->dead = 1;
    m->freed = ds__race_place_of_call();
    ds__race.stats.ranges--;
    ds__race_dead_link(m);
}

/* Makes a range live again whose free has failed. */
static void ds__race_memory_revive(ds__race_memory *m) {
    ds__race.version++;
    ds__race_dead_unlink(m);
    m->dead = 0;
    m->freed = 0;
    ds__race.stats.ranges++;
}

/* Marks a range as freed. Its records are dropped. */
static void ds__race_memory_end(ds__race_memory *m) {
    ds__race_records_clear(m);
    ds__race_memory_retire(m);
}

/* Returns the bytes of a range without the padding of a block. */
static size_t ds__race_memory_bytes(const ds__race_memory *m) {
    return m->asked ? m->asked : m->size;
}

/* Looks an address up in both maps. */
__attribute__((noinline)) static ds__race_memory *ds__race_memory_look_up(uintptr_t address) {
    ds__race_memory *m = ds__race_map_find(&ds__race.block, address);
    if (m && !m->dead)
        return m;
    ds__race_memory *a = ds__race_map_find(&ds__race.alloc, address);
    if (!m || (a && a->dead && a->serial > m->serial))
        return a;
    return m;
}

/* Returns the known memory at an address: a block, else an allocation. NULL: none. */
static ds__race_memory *ds__race_memory_find(uintptr_t address) {
    ds__race_hit *h = &ds__race.hit[ds__race_hash(address) % DS__RACE_HITS & ~(size_t)1];
    for (int i = 0; i < 2; i++)
        if (DS__LIKELY(h[i].address == address && h[i].version == ds__race.version))
            return h[i].memory;
    ds__race_memory *m = ds__race_memory_look_up(address);
    h[1] = h[0];
    h[0] = (ds__race_hit){ address, ds__race.version, m };
    return m;
}

static void ds__race_map_deinit(ds__race_map *map) {
    while (map->count) {
        const ds__race_piece *p = map->leaf[map->count - 1].piece;
        ds__race_memory_drop(p->at[p->count - 1]);
    }
    ds__race_release(map->leaf, map->room * sizeof *map->leaf);
    *map = (ds__race_map){ NULL, 0, 0 };
}

/* check/access.h - checking an access, and keeping it.

   ds__race_access compares an access with those that are kept for its memory, reports conflicts
   that no wait orders, and keeps the access. ds__race_free_check checks the free of a block.

   Policy:
   1. Two accesses conflict if they have a byte in common, one of them writes, and not both are
      atomic.
   2. An access replaces an earlier one that is ordered before it, that it covers, and whose later
      conflicts are its own, too: whatever conflicts with the earlier access conflicts with it. A
      possible access replaces possible ones only, so an exact report never becomes a possible one.
   3. A block may be used by work that comes after its allocation, and freed if each use is on the
      stream of the allocation, ordered before the free, or on a stream of ds_mem_record_use.

   Invariants: those of check/record.h.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Returns 1 if two accesses of common bytes conflict. */
static int ds__race_how_conflicts(unsigned a, unsigned b) {
    return (a | b) & DS__RACE_WRITE && !(a & b & DS__RACE_ATOMIC);
}

/* Returns 1 if whatever conflicts with an earlier access conflicts with a later one, too. */
static int ds__race_how_replaces(unsigned later, unsigned earlier) {
    if (!(later & DS__RACE_WRITE) && earlier & DS__RACE_WRITE)
        return 0;
    if (later & DS__RACE_ATOMIC && !(earlier & DS__RACE_ATOMIC))
        return 0;
    unsigned possible = DS__RACE_INEXACT | DS__RACE_MAYBE;
    return !(later & possible) || earlier & possible;
}

/* Returns 1 if the program ignores the bytes that two ranges have in common. */
static int ds__race_skips(const ds__race_memory *m, const ds__race_range *a,
                          const ds__race_range *b) {
    uintptr_t at = a->at > b->at ? a->at : b->at;
    uintptr_t a_end = ds__race_range_end(a);
    uintptr_t b_end = ds__race_range_end(b);
    uintptr_t end = a_end < b_end ? a_end : b_end;
    for (size_t i = 0; i < m->skips; i++)
        if (m->skip[i].at <= at && end <= ds__race_range_end(&m->skip[i]))
            return 1;
    return 0;
}

static ds_hazard ds__race_hazard(unsigned now, unsigned before) {
    if (before & DS__RACE_ALLOC)
        return DS_HAZARD_USE_BEFORE_ALLOC;
    if (before & DS__RACE_FORMER)
        return DS_HAZARD_REUSE;
    if (!(now & DS__RACE_WRITE))
        return DS_HAZARD_READ_AFTER_WRITE;
    return before & DS__RACE_WRITE ? DS_HAZARD_WRITE_AFTER_WRITE : DS_HAZARD_WRITE_AFTER_READ;
}

/* Returns 1 if a kept access, which the current one does not know, is no race with it. */
static int ds__race_is_accepted(const ds__race_memory *m, const ds__race_now *now,
                                const ds__race_record *fresh, const ds__race_record *o) {
    return !ds__race_how_conflicts(fresh->how, o->how) ||
           !ds__race_range_overlaps(&fresh->range, &o->range) ||
           (DS__UNLIKELY(m->skips != 0) && ds__race_skips(m, &fresh->range, &o->range)) ||
           (now->late && ds__race_edges_lead(now->line, now->n, o->line, o->n));
}

/* Compares an access with those of a list, and removes those that it replaces. own: the access
   belongs to this list, and takes the first place that gets free. Returns 1 if it has done so. */
static int ds__race_compare(const ds__race_memory *m, ds__race_list *list, int own,
                            const ds__race_now *now, const ds__race_record *fresh) {
    size_t kept = 0;
    size_t count = list->count;
    int placed = 0;
    for (size_t i = 0; i < count; i++) {
        const ds__race_record *o = &list->at[i];
        int known = ds__race_knows(now, o->line, o->n);
        if (known && ds__race_how_replaces(fresh->how, o->how) &&
            ds__race_range_covers(&fresh->range, &o->range)) {
            if (own && !placed)
                list->at[kept++] = *fresh;
            placed = own;
            continue;
        }
        if (!known && !ds__race_is_accepted(m, now, fresh, o))
            ds__race_report(ds__race_hazard(fresh->how, o->how), now, &fresh->range, fresh->how, m,
                            o);
        if (kept != i)
            list->at[kept] = *o;
        kept++;
    }
    ds__race.stats.records -= count - kept;
    list->count = kept;
    return placed;
}

/* Keeps one access more. */
static void ds__race_keep(ds__race_memory *m, const ds__race_record *record) {
    ds__race_records_add(m, record);
    int many = ++ds__race.fresh > DS__RACE_SWEEP + 2 * ds__race.stats.ranges;
    if (ds__race.bytes > ds__race.most && (many || ds__race.fresh > DS__RACE_SWEEP / 16))
        ds__race_make_room();
    else if (many)
        ds__race_sweep();
}

/* Returns the record of an access. */
static ds__race_record ds__race_record_of(const ds__race_now *now, const ds__race_range *r,
                                          unsigned how) {
    return (ds__race_record){ .range = *r,
                              .n = now->n,
                              .line = now->line,
                              .place = now->place,
                              .thread = now->thread,
                              .how = (uint8_t)how,
                              .vague = (uint8_t)now->vague };
}

/* Reports an access of freed memory, unless it is known to be correct. */
static void ds__race_access_dead(const ds__race_memory *m, const ds__race_now *now,
                                 const ds__race_range *r, unsigned how) {
    if ((!m->block && now->pageable) || (m->of_graph && now->of_graph) ||
        (m->skips && ds__race_skips(m, r, r)))
        return;
    ds__race_report(DS_HAZARD_USE_AFTER_FREE, now, r, how & ~(unsigned)DS__RACE_INEXACT, m, NULL);
}

/* Checks and keeps an access within one range of known memory. */
static void ds__race_access_in(ds__race_memory *m, const ds__race_now *now, const ds__race_range *r,
                               unsigned how) {
    if (DS__UNLIKELY(m->dead && !(m->of_graph && now->of_graph))) {
        ds__race_access_dead(m, now, r, how);
        return;
    }
    if (m->ignored)
        return;
    ds__race_record fresh = ds__race_record_of(now, r, how);
    const ds__race_list *own = ds__race_records_of(m, r);
    int placed = ds__race_compare(m, &m->list, own == &m->list, now, &fresh);
    size_t first;
    size_t last;
    ds__race_records_span(m, r, &first, &last);
    for (size_t i = first; i <= last; i++) {
        ds__race_list *list = ds__race_records_list(m, i);
        placed |= ds__race_compare(m, list, own == list, now, &fresh);
    }
    if (!placed)
        ds__race_keep(m, &fresh);
}

static void ds__race_access(const ds__race_now *now, const ds__race_range *range, unsigned how);

/* Checks an access that is inexact or not within one range of known memory. */
static void ds__race_access_parts(ds__race_memory *m, const ds__race_now *now,
                                  const ds__race_range *range, unsigned how) {
    if (range->rows > 1 && !(how & DS__RACE_INEXACT)) { /* rows in several ranges */
        for (size_t i = 0; i < range->rows; i++) {
            ds__race_range row = { range->at + i * range->pitch, range->width, range->width, 1 };
            ds__race_access(now, &row, how);
        }
        return;
    }
    ds__race_range r = *range;
    if (how & DS__RACE_INEXACT)
        r = ds__race_range_row((void *)m->base, ds__race_memory_bytes(m));
    while (m && r.rows == 1 && r.width > m->base + m->size - r.at) {
        ds__race_range first = r;
        first.width = m->base + m->size - r.at;
        ds__race_access_in(m, now, &first, how);
        r.at += first.width;
        r.width -= first.width;
        m = ds__race_memory_find(r.at);
    }
    if (m)
        ds__race_access_in(m, now, &r, how);
}

/* Checks and keeps an access that begins in m. NULL: its memory is not known. An inexact access
   covers all of m. Rows may lie in several ranges. */
static void ds__race_access_of(ds__race_memory *m, const ds__race_now *now,
                               const ds__race_range *range, unsigned how) {
    ds__race.stats.accesses++;
    if (!m)
        ds__race.stats.unchecked++;
    else if (how & DS__RACE_INEXACT || ds__race_range_end(range) > m->base + m->size)
        ds__race_access_parts(m, now, range, how);
    else
        ds__race_access_in(m, now, range, how);
    if (how & DS__RACE_INEXACT)
        ds__race.stats.inexact++;
}

/* The same, for an access of any memory. */
static void ds__race_access(const ds__race_now *now, const ds__race_range *range, unsigned how) {
    ds__race_access_of(ds__race_memory_find(range->at), now, range, how);
}

/* Notes the allocation of a block on a stream: its uses must come after the operations that the
   stream had then. */
static void ds__race_alloc_note(ds__race_memory *m, const ds__race_line *l) {
    ds__race_now now = ds__race_line_now(l, m->made);
    ds__race_range r = { m->base, m->size, m->size, 1 };
    m->line = l->index;
    if (!now.n)
        return;
    ds__race_record record = ds__race_record_of(&now, &r, DS__RACE_WRITE | DS__RACE_ALLOC);
    ds__race_keep(m, &record);
}

/* Returns the recorded use of a block by a timeline, or NULL. */
static ds__race_use *ds__race_use_find(const ds__race_memory *m, uint32_t line) {
    for (size_t i = 0; i < m->uses; i++)
        if (m->use[i].line == line)
            return &m->use[i];
    return NULL;
}

/* Returns 1 if a recorded use comes after an access. */
static int ds__race_use_covers(const ds__race_memory *m, const ds__race_record *o) {
    for (size_t i = 0; i < m->uses; i++) {
        const ds__race_use *u = &m->use[i];
        if (ds__race_clock_at(u->clock, o->line) >= o->n ||
            (u->open && ds__race_line_next_known(ds__race_line_at(u->line), o->line) >= o->n))
            return 1;
    }
    return 0;
}

/* Notes that a stream uses a block: everything that comes before its next operation.
   until_free: before its next operation at the free. */
static void ds__race_use_note(ds__race_memory *m, const ds__race_line *l, int until_free) {
    ds__race_use *u = ds__race_use_find(m, l->index);
    if (!u && !ds__race_array_reserve(&m->use, sizeof *m->use, m->uses, &m->use_room))
        return;
    if (!u) {
        u = &m->use[m->uses++];
        *u = (ds__race_use){ .line = l->index };
    }
    u->open |= (uint32_t)until_free;
    for (uint32_t i = 1; i < ds__race.lines; i++)
        ds__race_clock_raise(&u->clock, i, ds__race_line_next_known(l, i));
}

/* Compares the free of a block with an access. own: the stream in whose order it is freed. */
static void ds__race_free_compare(const ds__race_memory *m, const ds__race_record *o,
                                  const ds__race_line *by, const ds__race_line *own,
                                  const ds__race_now *now) {
    if ((by->is_host && o->line == m->line) || o->how & DS__RACE_ALLOC ||
        ds__race_use_covers(m, o) || ds__race_line_known(by, o->line) >= o->n ||
        (own && ds__race_line_next_known(own, o->line) >= o->n))
        return;
    ds__race_range r = ds__race_range_row((void *)m->base, ds__race_memory_bytes(m));
    unsigned how = DS__RACE_WRITE;
    if (o->how & DS__RACE_INEXACT)
        how |= DS__RACE_INEXACT;
    ds__race_report(DS_HAZARD_FREE_IN_USE, now, &r, how, m, o);
}

/* Checks the free of a block. by: the timeline that frees it, a thread or a stream. */
static void ds__race_free_check(ds__race_memory *m, const ds__race_line *by) {
    const ds__race_line *own =
        m->line && m->line != DS__RACE_GONE ? ds__race_line_at(m->line) : NULL;
    if (!by || m->ignored)
        return;
    if (!by->is_host) /* freed in the order of this stream */
        own = by;
    ds__race_now now = ds__race_line_now(by, ds__race_place_of_call());
    for (size_t i = 0; i <= m->buckets; i++) {
        const ds__race_list *list = ds__race_records_list(m, i);
        for (size_t k = 0; k < list->count; k++)
            ds__race_free_compare(m, &list->at[k], by, own, &now);
    }
}

/* Moves the accesses of freed memory to memory that is declared at its addresses: work of the new
   owner must come after them. */
static void ds__race_former_take(ds__race_memory *m, ds__race_memory *former) {
    for (size_t i = 0; i <= former->buckets; i++) {
        const ds__race_list *list = ds__race_records_list(former, i);
        for (size_t k = 0; k < list->count; k++) {
            ds__race_record record = list->at[k];
            record.how |= DS__RACE_WRITE | DS__RACE_FORMER;
            ds__race_records_add(m, &record);
        }
    }
}

/* check/captured.h - captured operations between ranks.

   Keeps the accesses of each operation of a process group that was captured
   (ds__race_captured_keep) until no graph has it any more (ds__race_captured_forget). In a graph,
   the operation is a host function that begins it, and a wait for a word. check/graph.h takes the
   accesses for those of the host function, and the wait as one that the graph ends.

   Invariants: ds__race.captured has an entry for the argument of the host function and one for the
   word, with the same value.
   Locks: ds__race.lock is held.
   Threads: any. */

static void ds__race_captured_release(ds__race_captured *c) {
    ds__race_release(c, sizeof *c + c->room * sizeof c->access[0]);
}

static void ds__race_captured_keep(const ds__seen *seen) {
    size_t room = seen->operands;
    ds__race_captured *c = ds__race_alloc(sizeof *c + room * sizeof c->access[0]);
    if (!c)
        return;
    c->room = room;
    snprintf(c->fn, sizeof c->fn, "%s", seen->fn ? seen->fn : "a collective");
    for (size_t i = 0; i < seen->operands; i++) {
        const ds__seen_operand *o = &seen->operand[i];
        unsigned how = o->writes ? DS__RACE_WRITE : DS__RACE_READ;
        if (o->bytes)
            c->access[c->count++] =
                (ds__race_captured_access){ ds__race_range_row(o->ptr, o->bytes), how };
    }
    if (ds__race_table_set(&ds__race.captured, ds__race_key(seen->ptr), c) &&
        ds__race_table_set(&ds__race.captured, ds__race_key(seen->word), c))
        return;
    ds__race_table_remove_value(&ds__race.captured, c);
    ds__race_captured_release(c);
}

static void ds__race_captured_forget(const ds__seen *seen) {
    ds__race_captured *c = ds__race_table_find(&ds__race.captured, ds__race_key(seen->ptr));
    if (!c)
        return;
    ds__race_table_remove_value(&ds__race.captured, c);
    ds__race_captured_release(c);
}

/* Returns the operation by the argument of its host function, or by the word of its wait; NULL:
   there is none. */
static const ds__race_captured *ds__race_captured_find(const void *ptr) {
    return ds__race_table_find(&ds__race.captured, ds__race_key(ptr));
}

static void ds__race_captured_deinit(void) {
    ds__race_table *t = &ds__race.captured;
    for (size_t i = 0; i < t->size;) {
        ds__race_captured *c = t->entry[i].value;
        if (!c) {
            i++;
            continue;
        }
        ds__race_table_remove_value(t, c); /* may move entries to this place */
        ds__race_captured_release(c);
        i = 0;
    }
    ds__race_table_deinit(t);
}

/* check/explain.h - texts that explain a hazard: streams, call sites, the order, a correction.

   ds__race_side describes an access for a report. ds__race_explain and ds__race_explain_lifetime
   write how far the order goes, and a call that would correct it.

   Policy: texts of the program are copied as valid UTF-8 and cut between two characters.

   Invariants: the texts of ds__race_texts have room for the longest names.
   Locks: ds__race.lock is held.
   Threads: any. */

enum { DS__RACE_SITE = 96 };

/* Texts of a report while it is written. The parts have room for the longest names. */
typedef struct ds__race_texts {
    char now_stream[80];
    char before_stream[80];
    char order[600];
    char fix[600];
    char key[600];
    size_t size; /* of ds__race.text */
    int lost;    /* there was no memory for ds__race.text */
} ds__race_texts;

/* Writes the name of a timeline: the label of a stream, "legacy stream", or "stream 7". */
static const char *ds__race_line_name(uint32_t index, char *out, size_t size) {
    const ds__race_line *l = index && index < ds__race.lines ? ds__race.line[index] : NULL;
    if (!l)
        snprintf(out, size, "graph");
    else if (*l->name)
        snprintf(out, size, "%s", l->name);
    else if (l->is_host && ds__race.threads)
        snprintf(out, size, "host thread %llu", (unsigned long long)l->number);
    else if (l->is_host)
        snprintf(out, size, "host");
    else if (l->legacy)
        snprintf(out, size, "legacy stream");
    else
        snprintf(out, size, "%sstream %llu", l->per_thread ? "per-thread " : "",
                 (unsigned long long)l->number);
    return out;
}

static const char *ds__race_base_name(const char *file) {
    const char *slash = strrchr(file ? file : "", '/');
    if (slash)
        return slash + 1;
    return file ? file : "";
}

/* Copies the first bytes of a text as whole characters. */
static const char *ds__race_cut(char *out, size_t size, const char *text) {
    ds__utf8_copy(out, size, text);
    return out;
}

/* Writes a call site, "app.c:12", with at most 80 bytes of the file's name. */
static const char *ds__race_site(char out[DS__RACE_SITE], const char *file, int line) {
    char name[81];
    snprintf(out, DS__RACE_SITE, "%s:%d", ds__race_cut(name, sizeof name, ds__race_base_name(file)),
             line);
    return out;
}

static const char *ds__race_place_site(char out[DS__RACE_SITE], uint32_t place) {
    const ds__race_place *p = ds__race_place_get(place);
    return ds__race_site(out, p->file, p->line);
}

/* Fills one side of a report with an operation. */
static void ds__race_side(ds_hazard_access *a, uint32_t place, uint32_t thread, uint64_t n,
                          const char *stream) {
    const ds__race_place *p = ds__race_place_get(place);
    *a = (ds_hazard_access){ .operation = p->operation,
                             .file = p->file ? p->file : "",
                             .line = p->line,
                             .thread = thread,
                             .stream = stream,
                             .sequence = n };
}

/* Adds its access. */
static void ds__race_side_range(ds_hazard_access *a, const ds__race_range *r, unsigned how) {
    a->inexact = how & DS__RACE_INEXACT ? 1 : 0;
    if (!r)
        return;
    a->ptr = (const void *)r->at;
    a->width = r->width;
    a->pitch = r->pitch;
    a->rows = r->rows;
}

/* Says which wait came nearest to ordering the two operations. known: the last operation of the
   earlier one's timeline that is ordered before the later one; e: the wait for it, or NULL. */
static void ds__race_explain_order(const ds_hazard_report *r, ds__race_texts *t, uint64_t known,
                                   const ds__race_edge *e) {
    const ds__race_place *record = ds__race_place_get(e ? e->from_place : 0);
    const ds__race_place *wait = ds__race_place_get(e ? e->to_place : 0);
    char site[DS__RACE_SITE];
    size_t size = sizeof t->order;
    if (!known && !e) {
        snprintf(t->order, size, "nothing orders %s after %s", t->now_stream, t->before_stream);
        return;
    }
    int n = snprintf(t->order, size, "last ordered after operation %llu of %s, %llu too early",
                     (unsigned long long)known, t->before_stream, (unsigned long long)r->missed);
    if (record->file)
        n += snprintf(t->order + n, size - (size_t)n, "; recorded at %s",
                      ds__race_site(site, record->file, record->line));
    if (wait->file)
        snprintf(t->order + n, size - (size_t)n, "; waited at %s",
                 ds__race_site(site, wait->file, wait->line));
}

/* Says how to order the two operations, at least one of which is host code. */
static void ds__race_fix_host(ds__race_texts *t, const ds__race_now *now,
                              const ds__race_record *before) {
    char site[DS__RACE_SITE];
    int waits = ds__race_line_at(now->line)->is_host && !ds__race_line_at(before->line)->is_host;
    snprintf(t->fix, sizeof t->fix,
             waits ? "ds_stream_synchronize(%s), or ds_event_synchronize for an event recorded "
                     "after operation %llu, before %s"
                   : "ds_check_release by %s after operation %llu and ds_check_acquire before %s",
             t->before_stream, (unsigned long long)before->n,
             ds__race_place_site(site, now->place));
}

/* Says how to order the operations of two streams. */
static void ds__race_fix_streams(ds__race_texts *t, const ds__race_now *now,
                                 const ds__race_record *before, int was_recorded) {
    const char *to = t->now_stream;
    const char *from = t->before_stream;
    char at[DS__RACE_SITE];
    char after[DS__RACE_SITE];
    ds__race_place_site(at, now->place);
    if (was_recorded)
        snprintf(t->fix, sizeof t->fix,
                 "record the event after operation %llu (%s), or ds_stream_wait_stream(%s, %s) "
                 "before %s",
                 (unsigned long long)before->n, ds__race_place_site(after, before->place), to, from,
                 at);
    else
        snprintf(t->fix, sizeof t->fix,
                 "ds_stream_wait_stream(%s, %s), or an event recorded after operation %llu, before "
                 "%s",
                 to, from, (unsigned long long)before->n, at);
}

/* Explains a missing dependency of two nodes of a graph. */
static void ds__race_explain_nodes(ds__race_texts *t, const ds__race_now *now,
                                   const ds__race_record *before) {
    snprintf(t->order, sizeof t->order, "no dependency orders node %llu and node %llu",
             (unsigned long long)before->n, (unsigned long long)now->n);
    snprintf(t->fix, sizeof t->fix,
             "add a dependency from node %llu to node %llu, or let the captured streams wait",
             (unsigned long long)before->n, (unsigned long long)now->n);
}

/* Says which wait came nearest to ordering the two operations, and how to order them. */
static void ds__race_explain(ds_hazard_report *r, ds__race_texts *t, const ds__race_now *now,
                             const ds__race_record *before) {
    if (!now->line) {
        ds__race_explain_nodes(t, now, before);
        return;
    }
    uint64_t known = ds__race_clock_at(now->clock, before->line);
    const ds__race_edge *e = ds__race_edge_last(before->line, known, now->line);
    r->missed = known || e ? before->n - known : 0;
    ds__race_explain_order(r, t, known, e);
    if (ds__race_line_at(before->line)->is_host || ds__race_line_at(now->line)->is_host)
        ds__race_fix_host(t, now, before);
    else
        ds__race_fix_streams(t, now, before, known && e && ds__race_place_get(e->from_place)->file);
}

/* Returns 1 if no stream frees a block: pinned memory, or the block's stream has ended. */
static int ds__race_is_of_host(const ds__race_memory *m) {
    return m && (!m->line || m->line == DS__RACE_GONE);
}

/* Says how far the stream of a block, whose order a free by the host has, comes after an operation;
   unless the host has waited for more of it. */
static void ds__race_explain_free(const ds_hazard_report *r, ds__race_texts *t,
                                  const ds__race_memory *m, const ds__race_now *now,
                                  const ds__race_record *before) {
    if (!m || ds__race_is_of_host(m) || !before || !ds__race_line_at(now->line)->is_host)
        return;
    char own[80];
    ds__race_line_name(m->line, own, sizeof own);
    uint64_t known = ds__race_line_next_known(ds__race_line_at(m->line), before->line);
    if (r->missed && before->n - r->missed >= known)
        return;
    if (known)
        snprintf(t->order, sizeof t->order,
                 "the free is in the order of %s, which comes after operation %llu of %s only", own,
                 (unsigned long long)known, t->before_stream);
    else
        snprintf(t->order, sizeof t->order,
                 "the free is in the order of %s, and nothing orders %s after %s", own, own,
                 t->before_stream);
}

/* The same for errors of lifetime. */
static void ds__race_explain_lifetime(ds_hazard_report *r, ds__race_texts *t,
                                      const ds__race_memory *m, const ds__race_now *now,
                                      const ds__race_record *before) {
    const ds__race_place *freed = ds__race_place_get(m ? m->freed : 0);
    char own[80];
    char at[DS__RACE_SITE];
    char site[DS__RACE_SITE];
    ds__race_line_name(m ? m->line : 0, own, sizeof own);
    ds__race_place_site(at, now->place);
    switch (r->hazard) {
    case DS_HAZARD_USE_BEFORE_ALLOC:
        snprintf(t->fix, sizeof t->fix,
                 "ds_stream_wait_stream(%s, %s) after the allocation at %s, or allocate on %s",
                 t->now_stream, own, ds__race_place_site(site, m ? m->made : 0), t->now_stream);
        break;
    case DS_HAZARD_FREE_IN_USE:
        ds__race_explain_free(r, t, m, now, before);
        snprintf(t->fix, sizeof t->fix, "%s for %s before the free at %s, or let %s wait for %s",
                 m && !m->line ? "ds_mem_pinned_record_use" : "ds_mem_record_use", t->before_stream,
                 at, ds__race_is_of_host(m) ? "the host" : own, t->before_stream);
        break;
    case DS_HAZARD_REUSE:
        snprintf(t->fix, sizeof t->fix,
                 "let %s wait for %s, the former owner of the memory, before %s", t->now_stream,
                 t->before_stream, at);
        break;
    case DS_HAZARD_COLLECTIVE_ORDER:
        snprintf(t->order, sizeof t->order, "two threads use the same streams in no stated order");
        snprintf(t->fix, sizeof t->fix,
                 "call the collectives of these streams on one thread, or hand over by "
                 "ds_check_release after %s and ds_check_acquire before %s",
                 ds__race_place_site(site, before ? before->place : 0), at);
        break;
    case DS_HAZARD_USE_AFTER_FREE:
        snprintf(t->order, sizeof t->order, "freed by %s at %s", freed->operation,
                 ds__race_site(site, freed->file, freed->line));
        snprintf(t->fix, sizeof t->fix, "free the memory after %s", at);
        break;
    case DS_HAZARD_GRAPH_MEMORY:
        snprintf(t->order, sizeof t->order, "freed by %s at %s", freed->operation,
                 ds__race_site(site, freed->file, freed->line));
        snprintf(t->fix, sizeof t->fix,
                 "keep the memory until the last launch, or capture the graph again");
        break;
    default: /* DS_HAZARD_UNRECORDED_WAIT */
        snprintf(t->order, sizeof t->order,
                 "the event was never recorded, so the wait orders nothing");
        snprintf(t->fix, sizeof t->fix, "record the event before %s", at);
        break;
    }
}

/* check/traced.h - operations of a recording, for the races that a trace shows.

   While a recording of activity runs, ds__race_traced_set keeps the ids of the last operations in
   it, and ds__race_traced_find returns them. ds__race_traced_notify notifies the observers of a
   race between two operations.

   Invariants: a place of the table has the operation that was written there last; readers compare
   the operation.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Returns the place of an operation. */
static ds__race_traced *ds__race_traced_at(uint32_t line, uint64_t n) {
    return &ds__race.traced[ds__race_hash(n * DS__RACE_LINES + line) % DS__RACE_TRACED];
}

/* Keeps the id of an operation; 0: it has none. */
static void ds__race_traced_set(uint32_t line, uint64_t n, uint64_t id) {
    if (DS__LIKELY(!id))
        return;
    if (!ds__race.traced)
        ds__race.traced = ds__race_alloc(DS__RACE_TRACED * sizeof *ds__race.traced);
    if (ds__race.traced)
        *ds__race_traced_at(line, n) = (ds__race_traced){ n, id, line };
}

/* Returns the id of an operation, or 0. */
static uint64_t ds__race_traced_find(uint32_t line, uint64_t n) {
    const ds__race_traced *at = ds__race.traced ? ds__race_traced_at(line, n) : NULL;
    return at && at->line == line && at->n == n ? at->id : 0;
}

/* Notifies the observers of a reported race. before: NULL: there is no earlier operation. */
static void ds__race_traced_notify(const ds_hazard_report *r, const char *hazard,
                                   const ds__race_now *now, const ds__race_record *before) {
    const ds__race_line *l = now->line ? ds__race.line[now->line] : NULL;
    uint64_t stream = l && !l->is_host ? l->handle : 0;
    ds__observer_notify(&(ds__seen){
        .kind = DS__SEEN_RACE,
        .label = r->text,
        .hazard = hazard,
        .stream = { stream },
        .operation = stream ? ds__race_tls.traced : 0,
        .before = before ? ds__race_traced_find(before->line, before->n) : 0,
    });
}

static void ds__race_traced_deinit(void) {
    ds__race_release(ds__race.traced,
                     ds__race.traced ? DS__RACE_TRACED * sizeof *ds__race.traced : 0);
    ds__race.traced = NULL;
}

/* check/report.h - reports: text, JSON, keys, sinks.

   ds__race_report describes a hazard between two accesses and passes it to the sinks: the function
   of the program, and standard error or a file. ds__race_summary prints the numbers at the end.

   Policy:
   1. A pair of call sites is reported once for each hazard, and once more if it is exact after a
      possible one; further hazards are counted.
   2. A data race with an inexact access is possible only: it is counted, and printed with the
      option "possible". Errors of lifetime are exact in any case. A wait for an event that was
      never recorded is possible, too: the first turn of a loop often has one on purpose.
   3. A report whose key matches a pattern of the suppression file is only counted.
   4. Texts of the program are copied as valid UTF-8 and cut between two characters. A line of JSON
      is never cut, because ds__race.text grows with the report.

   Invariants: ds__race.text has the last report, or the last answer of ds_check_why.
   Locks: ds__race.lock is held, also over the function of the program.
   Threads: any. */

static const char *const ds__hazard_names[] = { "none",
                                                "read-after-write",
                                                "write-after-read",
                                                "write-after-write",
                                                "use-before-alloc",
                                                "free-in-use",
                                                "use-after-free",
                                                "reuse-race",
                                                "graph-memory",
                                                "wait-on-unrecorded",
                                                "collective-order" };

DSDEF const char *(ds_hazard_get_name)(ds_hazard hazard) {
    return (unsigned)hazard <= DS_HAZARD_COLLECTIVE_ORDER ? ds__hazard_names[hazard] : "unknown";
}

/* Writes the line of key=value, which is the same in each run. */
static void ds__race_write_key(const ds_hazard_report *r, ds__race_texts *t) {
    char a[61];
    char b[61];
    char label[41];
    char at[61];
    char bt[61];
    snprintf(t->key, sizeof t->key, "hazard=%s%s a=%s b=%s memory=%s at=%s:%d bt=%s:%d missed=%llu",
             ds__hazard_names[r->hazard], r->possible ? " possible=1" : "",
             ds__race_cut(a, sizeof a, r->now.operation),
             ds__race_cut(b, sizeof b, r->before.operation),
             ds__race_cut(label, sizeof label, r->label),
             ds__race_cut(at, sizeof at, ds__race_base_name(r->now.file)), r->now.line,
             ds__race_cut(bt, sizeof bt, ds__race_base_name(r->before.file)), r->before.line,
             (unsigned long long)r->missed);
    for (char *c = t->key; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
}

/* Returns 1 if a text matches a pattern with * and ?. */
static int ds__race_matches(const char *pattern, const char *text) {
    const char *star = NULL;
    const char *retry = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = pattern++;
            retry = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++retry;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

static int ds__race_suppressed(const char *key) {
    for (size_t i = 0; i < ds__race.patterns; i++)
        if (ds__race_matches(ds__race.pattern[i], key))
            return 1;
    return 0;
}

/* Makes room for n further bytes and a 0 in ds__race.text. Returns 0 if there is no memory: the
   text is lost then. */
static int ds__race_text_reserve(ds__race_texts *t, size_t n) {
    size_t before = ds__race.text_room;
    if (!t->lost && ds__array_reserve(&ds__race.text, 1, t->size, n + 1, &ds__race.text_room)) {
        ds__race.bytes += ds__race.text_room - before;
        return 1;
    }
    t->lost = 1;
    ds__race_fail();
    return 0;
}

/* Returns the text that was printed; "" if it is lost. */
static const char *ds__race_text(const ds__race_texts *t) {
    return t->lost || !t->size ? "" : ds__race.text;
}

__attribute__((format(DS__PRINTF, 2, 3))) static void ds__race_print(ds__race_texts *t,
                                                                     const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !ds__race_text_reserve(t, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(ds__race.text + t->size, (size_t)n + 1, format, args);
    va_end(args);
    t->size += (size_t)n;
}

/* Writes one side as text: 'now ds_copy at pipeline.c:132, operation 20 of h2d, thread 1'. */
static void ds__race_print_side(ds__race_texts *t, const char *side, const ds_hazard_access *a,
                                const void *base) {
    ds__race_print(t, "  %-8s %s at %s:%d", side, a->operation,
                   a->line ? ds__race_base_name(a->file) : "an unknown call", a->line);
    if (*a->stream && strcmp(a->stream, "graph") == 0)
        ds__race_print(t, ", node %llu", (unsigned long long)a->sequence);
    else if (*a->stream && a->sequence)
        ds__race_print(t, ", operation %llu of %s", (unsigned long long)a->sequence, a->stream);
    if (a->thread)
        ds__race_print(t, ", thread %u", a->thread);
    ds__race_print(t, "\n");
    if (!a->ptr)
        return;
    size_t at = (size_t)((uintptr_t)a->ptr - (uintptr_t)base);
    if (a->rows > 1)
        ds__race_print(t, "           bytes +%zu, %zu rows of %zu, %zu apart%s\n", at, a->rows,
                       a->width, a->pitch, a->inexact ? " (no extent: the whole block)" : "");
    else
        ds__race_print(t, "           bytes +[%zu, %zu)%s\n", at, at + a->width,
                       a->inexact ? " (no extent: the whole block)" : "");
}

static void ds__race_print_text(const ds_hazard_report *r, ds__race_texts *t) {
    ds__race_print(t, "devstream check #%llu: %s%s\n", (unsigned long long)r->number,
                   r->possible ? "possible " : "", ds__hazard_names[r->hazard]);
    if (r->base) {
        ds__race_print(t, "  memory   %s%s%s%p, %zu bytes", *r->label ? "\"" : "", r->label,
                       *r->label ? "\" " : "", r->base, r->bytes);
        if (r->line)
            ds__race_print(t, ", allocated at %s:%d", ds__race_base_name(r->file), r->line);
        ds__race_print(t, "\n");
    }
    ds__race_print_side(t, "now", &r->now, r->base);
    if (*r->before.operation || r->before.line)
        ds__race_print_side(t, "before", &r->before, r->base);
    if (*r->order)
        ds__race_print(t, "  order    %s\n", r->order);
    ds__race_print(t, "  fix      %s\n  key      %s\n", r->fix, r->key);
}

/* Prints text inside of a JSON string. Bytes that are not UTF-8 become question marks. */
static void ds__race_print_quoted(ds__race_texts *t, const char *text) {
    while (*text) {
        size_t n = ds__utf8_length(text);
        if ((unsigned char)*text < 32)
            ds__race_print(t, "\\u%04x", (unsigned char)*text);
        else if (*text == '"' || *text == '\\')
            ds__race_print(t, "\\%c", *text);
        else if (n)
            ds__race_print(t, "%.*s", (int)n, text);
        else
            ds__race_print(t, "?");
        text += n ? n : 1;
    }
}

static void ds__race_print_json_text(ds__race_texts *t, const char *name, const char *text) {
    ds__race_print(t, ",\"%s\":\"", name);
    ds__race_print_quoted(t, text);
    ds__race_print(t, "\"");
}

static void ds__race_print_json_side(ds__race_texts *t, const char *name, const ds_hazard_access *a,
                                     const void *base) {
    ds__race_print(t, ",\"%s\":{\"sequence\":%llu,\"thread\":%u,\"line\":%d", name,
                   (unsigned long long)a->sequence, a->thread, a->line);
    ds__race_print_json_text(t, "operation", a->operation);
    ds__race_print_json_text(t, "file", a->file);
    ds__race_print_json_text(t, "stream", a->stream);
    if (a->ptr)
        ds__race_print(t, ",\"offset\":%zu,\"width\":%zu,\"pitch\":%zu,\"rows\":%zu,\"inexact\":%d",
                       (size_t)((uintptr_t)a->ptr - (uintptr_t)base), a->width, a->pitch, a->rows,
                       a->inexact);
    ds__race_print(t, "}");
}

static void ds__race_print_json(const ds_hazard_report *r, ds__race_texts *t) {
    ds__race_print(t, "{\"report\":%llu,\"hazard\":\"%s\",\"possible\":%d,\"missed\":%llu",
                   (unsigned long long)r->number, ds__hazard_names[r->hazard], r->possible,
                   (unsigned long long)r->missed);
    ds__race_print_json_side(t, "now", &r->now, r->base);
    if (*r->before.operation || r->before.line)
        ds__race_print_json_side(t, "before", &r->before, r->base);
    if (r->base) {
        ds__race_print(t, ",\"bytes\":%zu,\"allocated_line\":%d", r->bytes, r->line);
        ds__race_print_json_text(t, "memory", r->label);
        ds__race_print_json_text(t, "allocated_file", r->file);
    }
    ds__race_print_json_text(t, "order", r->order);
    ds__race_print_json_text(t, "fix", r->fix);
    ds__race_print_json_text(t, "key", r->key);
    ds__race_print(t, "}\n");
}

/* Prints a text to the file of reports, or to standard error. */
static void ds__race_put(const char *text) {
    FILE *out = ds__race.output ? ds__race.output : stderr;
    fputs(text, out);
    fflush(out);
}

/* Prints a notice where reports are printed; with the option "quiet", to the log. */
static void ds__race_notice(const char *text) {
    ds__race_texts t = { .size = 0 };
    if (ds__race.quiet) {
        ds__log_warn("check: %s", text);
        return;
    }
    ds__race_print(&t, ds__race.json ? "{\"notice\":\"" : "devstream check: ");
    if (ds__race.json)
        ds__race_print_quoted(&t, text);
    else
        ds__race_print(&t, "%s", text);
    ds__race_print(&t, ds__race.json ? "\"}\n" : "\n");
    ds__race_put(ds__race_text(&t));
}

/* Prints a notice that there is no host memory; needs none itself. */
static void ds__race_notice_failure(void) {
    if (ds__race.quiet)
        ds__log_warn("check: no host memory; nothing is checked any more");
    else if (ds__race.json)
        ds__race_put("{\"notice\":\"no host memory; nothing is checked any more\"}\n");
    else
        ds__race_put("devstream check: no host memory; nothing is checked any more\n");
}

/* Passes a report to the sinks. */
static void ds__race_emit(ds_hazard_report *r, ds__race_texts *t, const ds__race_now *now,
                          const ds__race_record *before) {
    t->size = 0;
    if (ds__race.json)
        ds__race_print_json(r, t);
    else
        ds__race_print_text(r, t);
    r->text = ds__race_text(t);
    if (!ds__race.quiet && (!r->possible || ds__race.possible))
        ds__race_put(r->text);
    if (ds__race.report_fn) {
        ds__user_code user = ds__user_code_begin();
        ds__race.report_fn(r, ds__race.report_user);
        ds__user_code_end(&user);
    }
    if (!r->possible || ds__race.possible)
        ds__race_traced_notify(r, ds__hazard_names[r->hazard], now, before);
    if (ds__race.aborts && !r->possible)
        abort();
}

/* Returns 1 if a pair of sites is new, and counts it. */
static int ds__race_pair_is_new(const ds_hazard_report *r, uint32_t now, uint32_t before) {
    uint64_t key = (uint64_t)now << 34 ^ (uint64_t)before << 5 ^ (uint64_t)r->hazard << 1 ^
                   (uint64_t)(r->possible != 0);
    if (ds__race_table_find(&ds__race.pairs, key + 1))
        return 0;
    ds__race_table_set(&ds__race.pairs, key + 1, &ds__race);
    return 1;
}

/* Returns 1 if a hazard is not certain. */
static int ds__race_is_possible(ds_hazard hazard, const ds__race_now *now, unsigned how,
                                const ds__race_record *before) {
    if (hazard == DS_HAZARD_UNRECORDED_WAIT)
        return 1;
    if (hazard > DS_HAZARD_WRITE_AFTER_WRITE || !before)
        return 0;
    return (how | before->how) & (DS__RACE_INEXACT | DS__RACE_MAYBE) || now->vague || before->vague;
}

/* Describes the memory of a report. */
static void ds__race_describe_memory(ds_hazard_report *r, const ds__race_memory *m) {
    const ds__race_place *made = ds__race_place_get(m->made);
    r->label = m->label;
    r->base = (const void *)m->base;
    r->bytes = ds__race_memory_bytes(m);
    r->file = made->file ? made->file : "";
    r->line = made->line;
}

/* Describes the earlier operation; without one, the free of the memory. */
static void ds__race_describe_before(ds_hazard_report *r, ds__race_texts *t, uint32_t freed,
                                     const ds__race_record *before) {
    if (!before) {
        ds__race_side(&r->before, freed, 0, 0, "");
        return;
    }
    ds__race_line_name(before->line, t->before_stream, sizeof t->before_stream);
    ds__race_side(&r->before, before->place, before->thread, before->n, t->before_stream);
    ds__race_side_range(&r->before, &before->range, before->how);
}

static void ds__race_report(ds_hazard hazard, const ds__race_now *now, const ds__race_range *range,
                            unsigned how, const ds__race_memory *m, const ds__race_record *before) {
    if (ds__race.failed) /* a wait may be missing */
        return;
    ds_hazard_report r = { .hazard = hazard, .label = "", .file = "", .order = "", .fix = "" };
    ds__race_texts t = { .size = 0 };
    uint32_t freed = m ? m->freed : 0;
    r.possible = ds__race_is_possible(hazard, now, how, before);
    if (!ds__race_pair_is_new(&r, now->place, before ? before->place : freed)) {
        ds__race.stats.repeated++;
        return;
    }
    ds__race_line_name(now->line, t.now_stream, sizeof t.now_stream);
    ds__race_side(&r.now, now->place, now->thread, now->n, t.now_stream);
    ds__race_side_range(&r.now, range, how);
    ds__race_describe_before(&r, &t, freed, before);
    if (m)
        ds__race_describe_memory(&r, m);
    if (before && hazard != DS_HAZARD_GRAPH_MEMORY)
        ds__race_explain(&r, &t, now, before);
    if (hazard > DS_HAZARD_WRITE_AFTER_WRITE)
        ds__race_explain_lifetime(&r, &t, m, now, before);
    r.order = t.order;
    r.fix = t.fix;
    ds__race_write_key(&r, &t);
    r.key = t.key;
    if (ds__race_suppressed(t.key)) {
        ds__race.stats.suppressed++;
        return;
    }
    r.number = r.possible ? ++ds__race.stats.possible : ++ds__race.stats.reports;
    ds__race_emit(&r, &t, now, before);
}

/* Prints the numbers at the end, if there was a report. */
static void ds__race_summary(void) {
    const ds_check_stats *s = &ds__race.stats;
    if (ds__race.quiet || (!s->reports && !s->possible && !s->suppressed && !s->evicted))
        return;
    FILE *out = ds__race.output ? ds__race.output : stderr;
    fprintf(
        out,
        ds__race.json
            ? "{\"reports\":%llu,\"repeated\":%llu,\"possible\":%llu,\"suppressed\":%llu,"
              "\"operations\":%llu,\"unchecked\":%llu,\"undeclared\":%llu,\"evicted\":%llu}\n"
            : "devstream check: %llu reports (%llu repeated), %llu possible, %llu suppressed; "
              "%llu operations; %llu accesses to unknown memory; %llu launches without a list of "
              "parameters; %llu ranges given up\n",
        (unsigned long long)s->reports, (unsigned long long)s->repeated,
        (unsigned long long)s->possible, (unsigned long long)s->suppressed,
        (unsigned long long)s->operations, (unsigned long long)s->unchecked,
        (unsigned long long)s->undeclared, (unsigned long long)s->evicted);
    fflush(out);
}

/* check/graph.h - executables: accesses of nodes, order within a graph, memory that is gone.

   ds__race_graph_launch checks the accesses of a launch. The first launch after a change, and
   the instantiation, collect the accesses of all nodes (ds__race_graph_build), check nodes that no
   dependency orders, and remember the memory that the nodes use. Each launch compares the memory
   with what is known now.

   Policy:
   1. A launch is one operation of its stream with the accesses of all nodes. It comes after the
      earlier launches of the executable (CUDA Runtime API, cudaGraphLaunch).
   2. Nodes of a conditional body may not run, so their accesses are possible ones.
   3. Memory that was allocated in a capture belongs to graphs: its free in the capture is not an
      error of a launch.
   4. A node that waits for a word comes after the nodes of the graph that write a value for which
      it waits. If there is none, the launch waits for the word. Other work that waits for a word of
      the graph comes after the launch. The graph writes the words of check/captured.h itself.

   Invariants: a ds__race_graph watches each of its ranges of memory until it is destroyed.
   Locks: ds__race.lock is held.
   Threads: any. */

enum {
    DS__RACE_NODES = 8192,   /* of a graph whose order is checked */
    DS__RACE_PAIRS = 1 << 22 /* of accesses that are compared */
};

/* An access of a node. */
typedef struct ds__race_item {
    ds__race_range range;
    ds__race_memory *memory;
    const char *operation; /* the layer's own copy: "kernel add of a graph" */
    const char *file;      /* of the node's call */
    int line;
    uint32_t node;
    uint32_t phase;
    uint32_t place;
    unsigned how;
    const char *launch_file; /* of the launch to which `place` belongs */
    int launch_line;
} ds__race_item;

/* A node that records an event or waits for one. */
typedef struct ds__race_mark {
    const void *event;
    uint32_t node;
    int waits;
} ds__race_mark;

/* A write of a word by a node, or a wait for one. */
typedef struct ds__race_value {
    ds_value_op op;
    uint32_t node;
    int inner; /* a wait that a write of the graph ends */
} ds__race_value;

typedef struct ds__race_graph {
    ds__race_item *item;
    size_t count;
    size_t room;
    const void **user; /* arguments of host functions, one for each node */
    size_t users;
    size_t user_room;
    ds__race_memory **memory; /* each once */
    size_t memories;
    size_t memory_room;
    ds__race_mark *mark; /* in the order of the nodes */
    size_t marks;
    size_t mark_room;
    ds__race_value *value;
    size_t values;
    size_t value_room;
    uint64_t *before; /* for each node, a bit for each node that is ordered before it */
    uint32_t nodes;
    uint32_t nodes_room;
    uint32_t undeclared; /* kernels without a list of parameters */
    int stale;           /* the executable has changed */
    ds__race_event last; /* the last launch */
} ds__race_graph;

/* Adds a host function that has not run. */
static void ds__race_task_add(const ds__race_line *l, const void *user, uint32_t place,
                              const void *exec) {
    ds__race_task *t = ds__race_alloc(sizeof *t);
    if (!t)
        return;
    t->user = user;
    t->line = l->index;
    t->n = l->n;
    t->clock = ds__race_clock_ref(l->clock);
    t->place = place;
    t->exec = exec;
    if (!ds__race.task)
        ds__race.task_end = &ds__race.task;
    *ds__race.task_end = t;
    ds__race.task_end = &t->next;
}

/* Returns 1 if a kernel has arguments, but no list of parameters: no access is known. */
static unsigned ds__race_kernel_is_undeclared(const ds__kernel *k) {
    return !k->param_count && k->args_size;
}

static unsigned ds__race_kernel_how(const ds__extent_range *a) {
    unsigned how = a->exact ? 0 : DS__RACE_INEXACT;
    if (a->kind != DS_PARAM_WRITE)
        how |= DS__RACE_READ;
    if (a->kind != DS_PARAM_READ)
        how |= DS__RACE_WRITE;
    return a->atomic ? how | DS__RACE_ATOMIC : how;
}

static ds__race_range ds__race_kernel_range(const ds__extent_range *a) {
    if (!a->exact)
        return ds__race_range_row(a->ptr, 1);
    return ds__race_range_rows(a->ptr + a->offset, a->width, a->pitch, a->rows);
}

/* Returns a key of a captured launch: kernel, call site and arguments. */
static uint64_t ds__race_launch_key(const ds__op *op) {
    uint64_t key = ds__race_key(op->u.kernel.kernel) ^ ds__race_key(op->file) * 31 ^ op->line;
    const unsigned char *args = op->u.kernel.args;
    for (size_t i = 0; i < op->u.kernel.args_size; i++)
        key = (key ^ args[i]) * 1099511628211u;
    return key | 1;
}

/* Keeps the extents that the program has set for a launch that is captured. */
static void ds__race_extents_keep(const ds__op *op) {
    size_t count = ds__race_tls.extents;
    uint64_t key = ds__race_launch_key(op);
    if (!count || ds__race_table_find(&ds__race.extents, key))
        return;
    ds__race_extents *e = ds__race_alloc(sizeof *e + count * sizeof e->extent[0]);
    if (!e)
        return;
    e->count = count;
    memcpy(e->extent, ds__race_tls.extent, count * sizeof e->extent[0]);
    if (!ds__race_table_set(&ds__race.extents, key, e))
        ds__race_release(e, sizeof *e + count * sizeof e->extent[0]);
}

static void ds__race_extents_deinit(void) {
    for (size_t i = 0; i < ds__race.extents.size; i++) {
        ds__race_extents *e = ds__race.extents.entry[i].value;
        if (e)
            ds__race_release(e, sizeof *e + e->count * sizeof e->extent[0]);
    }
    ds__race_table_deinit(&ds__race.extents);
}

/* Bytes of the matrix of a graph's order. */
static size_t ds__race_graph_matrix(uint32_t nodes) {
    return (size_t)nodes * ((nodes + 63) / 64) * sizeof(uint64_t);
}

/* Frees the contents of a graph. */
static void ds__race_graph_clear(ds__race_graph *g) {
    for (size_t i = 0; i < g->memories; i++)
        ds__race_memory_unwatch(g->memory[i]);
    ds__race_release(g->item, g->room * sizeof *g->item);
    ds__race_release(g->user, g->user_room * sizeof *g->user);
    ds__race_release(g->memory, g->memory_room * sizeof *g->memory);
    ds__race_release(g->mark, g->mark_room * sizeof *g->mark);
    ds__race_release(g->value, g->value_room * sizeof *g->value);
    ds__race_release(g->before, ds__race_graph_matrix(g->nodes_room));
    ds__race_clock_unref(g->last.clock);
    memset(g, 0, sizeof *g);
}

/* The graph that is collected. */
typedef struct ds__race_builder {
    ds__race_graph *graph;
    uint32_t *deps; /* pairs: node, the node before it */
    size_t count;
    size_t room;
    int conditional; /* within a body that may not run */
} ds__race_builder;

/* Adds a pointer to a list of the graph, unless it is there. */
static void ds__race_list_add(const void *list_ptr, size_t *count, size_t *room, const void *ptr) {
    const void **list;
    memcpy(&list, list_ptr, sizeof list);
    for (size_t i = 0; i < *count; i++)
        if (list[i] == ptr)
            return;
    if (!ds__race_array_reserve((void *)(uintptr_t)list_ptr, sizeof ptr, *count, room))
        return;
    memcpy(&list, list_ptr, sizeof list);
    list[(*count)++] = ptr;
}

/* Watches the memory of a node's access. */
static void ds__race_graph_watch(ds__race_graph *g, ds__race_memory *m) {
    size_t before = g->memories;
    ds__race_list_add(&g->memory, &g->memories, &g->memory_room, m);
    m->watchers += (uint32_t)(g->memories - before);
}

/* Adds an access of a node. */
static void ds__race_graph_access(ds__race_builder *b, uint32_t node, const ds__node *n,
                                  ds__race_range r, unsigned how) {
    ds__race_graph *g = b->graph;
    const ds__race_captured *captured =
        n->kind == DS_NODE_HOST ? ds__race_captured_find(n->op.u.host.user) : NULL;
    char name[81];
    char text[160];
    ds__race_memory *m = ds__race_memory_find(r.at);
    if (!m) {
        ds__race.stats.unchecked++;
        return;
    }
    if (b->conditional)
        how |= DS__RACE_MAYBE;
    if (how & DS__RACE_INEXACT)
        r = ds__race_range_row((void *)m->base, ds__race_memory_bytes(m));
    if (!ds__race_array_reserve(&g->item, sizeof *g->item, g->count, &g->room))
        return;
    if (n->kind == DS_NODE_KERNEL)
        snprintf(text, sizeof text, "kernel %s of a graph",
                 ds__race_cut(name, sizeof name, n->op.u.kernel.kernel->name));
    else
        snprintf(text, sizeof text, "%s of a graph",
                 captured ? captured->fn : ds__node_names[n->kind]);
    uint32_t place = ds__race_place_named(text, n->op.file, (int)n->op.line);
    const ds__race_place *p = ds__race_place_get(place);
    g->item[g->count++] = (ds__race_item){ .range = r,
                                           .memory = m,
                                           .operation = p->operation,
                                           .file = p->file,
                                           .line = p->line,
                                           .node = node,
                                           .place = place,
                                           .how = how };
    ds__race_graph_watch(g, m);
}

/* Adds a write of a word, or a wait for one. */
static void ds__race_graph_value(ds__race_builder *b, uint32_t node, const ds__node *n,
                                 const ds_value_op *op) {
    ds__race_graph *g = b->graph;
    if (op->kind == DS_VALUE_WRITE)
        ds__race_graph_access(b, node, n, ds__race_range_row(op->address, op->size),
                              DS__RACE_WRITE | DS__RACE_ATOMIC);
    if (ds__race_array_reserve(&g->value, sizeof *g->value, g->values, &g->value_room))
        g->value[g->values++] = (ds__race_value){ .op = *op, .node = node };
}

/* Adds a host function, and the accesses of the operation that it begins. */
static void ds__race_graph_host(ds__race_builder *b, uint32_t node, const ds__node *n) {
    ds__race_graph *g = b->graph;
    const void *user = n->op.u.host.user;
    const ds__race_captured *c = ds__race_captured_find(user);
    for (size_t i = 0; c && i < c->count; i++)
        ds__race_graph_access(b, node, n, c->access[i].range, c->access[i].how);
    if (ds__race_array_reserve(&g->user, sizeof *g->user, g->users, &g->user_room))
        g->user[g->users++] = user;
}

/* Adds the accesses and waits of a node. */
static void ds__race_graph_node(ds__race_builder *b, uint32_t index, const ds__node *n) {
    ds__race_graph *g = b->graph;
    const ds__op *op = &n->op;
    ds__extent_range list[DS_KERNEL_MAX_PARAMS];
    size_t count = 0;
    if (n->kind == DS_NODE_KERNEL) {
        const ds__race_extents *e = ds__race_table_find(&ds__race.extents, ds__race_launch_key(op));
        g->undeclared += ds__race_kernel_is_undeclared(op->u.kernel.kernel);
        count = ds__kernel_ranges(op->u.kernel.kernel, e ? e->extent : NULL, e ? e->count : 0,
                                  op->u.kernel.items, op->u.kernel.args, list);
    }
    for (size_t i = 0; i < count; i++)
        ds__race_graph_access(b, index, n, ds__race_kernel_range(&list[i]),
                              ds__race_kernel_how(&list[i]));
    if (n->kind == DS_NODE_COPY)
        ds__race_graph_access(b, index, n, ds__race_range_of(op, DS__OP_SRC), DS__RACE_READ);
    if (n->kind == DS_NODE_COPY || n->kind == DS_NODE_FILL)
        ds__race_graph_access(b, index, n, ds__race_range_of(op, DS__OP_DST), DS__RACE_WRITE);
    for (size_t i = 0; n->kind == DS_NODE_VALUES && i < op->u.values.count; i++)
        ds__race_graph_value(b, index, n, &op->u.values.list[i]);
    if (n->kind == DS_NODE_HOST)
        ds__race_graph_host(b, index, n);
    int marks = n->kind == DS_NODE_EVENT_RECORD || n->kind == DS_NODE_EVENT_WAIT;
    if (marks && ds__race_array_reserve(&g->mark, sizeof *g->mark, g->marks, &g->mark_room))
        g->mark[g->marks++] =
            (ds__race_mark){ op->u.event.event, index, n->kind == DS_NODE_EVENT_WAIT };
}

/* Adds that a node comes after another one. */
static void ds__race_graph_dep(ds__race_builder *b, uint32_t node, uint32_t before) {
    if (!ds__race_array_reserve(&b->deps, 2 * sizeof *b->deps, b->count, &b->room))
        return;
    b->deps[2 * b->count] = node;
    b->deps[2 * b->count + 1] = before;
    b->count++;
}

/* Orders nodes that wait for words after the nodes that write them. */
static void ds__race_graph_words(ds__race_builder *b) {
    ds__race_graph *g = b->graph;
    for (size_t i = 0; i < g->values; i++) {
        ds__race_value *wait = &g->value[i];
        if (ds__race_captured_find(wait->op.address))
            wait->inner = 1;
        for (size_t k = 0; wait->op.kind != DS_VALUE_WRITE && k < g->values; k++) {
            const ds__race_value *write = &g->value[k];
            if (write->op.kind != DS_VALUE_WRITE || write->op.address != wait->op.address ||
                !ds__race_value_meets(&wait->op, write->op.value))
                continue;
            ds__race_graph_dep(b, wait->node, write->node);
            wait->inner = 1;
        }
    }
}

/* Adds the nodes of a body and of its child graphs. parent: the node that has the body as its child
   graph; UINT32_MAX: none. */
static void ds__race_graph_body(ds__race_builder *b, const ds__body *body, uint32_t parent) {
    uint32_t first = b->graph->nodes;
    b->graph->nodes += body->count;
    for (uint32_t i = 0; i < body->count; i++) {
        const ds__node *n = body->node[i];
        if (!n)
            continue;
        if (parent != UINT32_MAX)
            ds__race_graph_dep(b, first + i, parent);
        for (uint32_t k = 0; k < n->dep_count; k++)
            ds__race_graph_dep(b, first + i, first + n->deps[k]);
        if (n->enabled)
            ds__race_graph_node(b, first + i, n);
        if (!n->child)
            continue;
        /* nodes that depend on node i depend on the child's nodes, too */
        uint32_t inner = b->graph->nodes;
        int outer = b->conditional;
        b->conditional |= n->kind == DS_NODE_CONDITION;
        ds__race_graph_body(b, n->child, first + i);
        b->conditional = outer;
        for (uint32_t d = 0; d < body->count; d++)
            if (body->node[d] && ds__node_depends(body->node[d], i))
                for (uint32_t c = inner; c < b->graph->nodes; c++)
                    ds__race_graph_dep(b, first + d, c);
    }
}

static int ds__race_graph_is_before(const ds__race_graph *g, uint32_t a, uint32_t b) {
    size_t words = (g->nodes + 63) / 64;
    return g->before[b * words + a / 64] >> a % 64 & 1;
}

/* Computes which nodes are ordered before which ones. The dependencies need not be in order. */
static void ds__race_graph_close(ds__race_builder *b) {
    ds__race_graph *g = b->graph;
    size_t words = (g->nodes + 63) / 64;
    if (g->nodes > DS__RACE_NODES)
        ds__log_warn("check: a graph has %u nodes; the order within graphs of more than %d is not "
                     "checked",
                     (unsigned)g->nodes, DS__RACE_NODES);
    if (g->nodes > DS__RACE_NODES || !g->nodes)
        return;
    g->before = ds__race_alloc(ds__race_graph_matrix(g->nodes));
    if (!g->before)
        return;
    g->nodes_room = g->nodes;
    for (int changed = 1; changed;) {
        changed = 0;
        for (size_t i = 0; i < b->count; i++) {
            uint64_t *to = g->before + b->deps[2 * i] * words;
            uint32_t from = b->deps[2 * i + 1];
            for (size_t w = 0; w < words; w++) {
                uint64_t more = g->before[from * words + w];
                if (w == from / 64)
                    more |= (uint64_t)1 << from % 64;
                changed |= (more & ~to[w]) != 0;
                to[w] |= more;
            }
        }
    }
}

/* Divides the accesses of a launch by the nodes that record events or wait for them: phase p lies
   before mark p. An access before a record comes into its phase or an earlier one, another access
   into a later phase, but for what a wait delays. So an event stands for the work before its
   record only. If records are not ordered, an event may stand for more. */
static void ds__race_graph_phases(ds__race_graph *g) {
    for (size_t i = 0; i < g->count && g->before; i++) {
        ds__race_item *item = &g->item[i];
        uint32_t last = (uint32_t)g->marks;
        for (uint32_t k = (uint32_t)g->marks; k-- > 0;)
            if (!g->mark[k].waits && ds__race_graph_is_before(g, item->node, g->mark[k].node))
                last = k;
        for (uint32_t k = 0; k < last; k++)
            if (g->mark[k].waits ? ds__race_graph_is_before(g, g->mark[k].node, item->node)
                                 : !ds__race_graph_is_before(g, item->node, g->mark[k].node))
                item->phase = k + 1;
    }
}

static int ds__race_item_compare(const void *a, const void *b) {
    const ds__race_item *x = a;
    const ds__race_item *y = b;
    if (x->range.at != y->range.at)
        return x->range.at < y->range.at ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

/* Reports two nodes that conflict and that no dependency orders. */
static void ds__race_graph_conflict(const ds__race_item *a, const ds__race_item *b) {
    if (a->node > b->node) {
        const ds__race_item *later = a;
        a = b;
        b = later;
    }
    ds__race_now now = { .n = b->node, .place = b->place, .thread = ds__race_thread() };
    ds__race_record before = { .range = a->range,
                               .n = a->node,
                               .place = a->place,
                               .thread = now.thread,
                               .how = (uint8_t)a->how };
    ds__race_report(ds__race_hazard(b->how, a->how), &now, &b->range, b->how, b->memory, &before);
}

/* Checks the nodes of a graph against each other. */
static void ds__race_graph_check(const ds__race_graph *g) {
    size_t pairs = 0;
    if (!g->before || !g->count)
        return;
    for (size_t i = 0; i < g->count; i++) {
        const ds__race_item *a = &g->item[i];
        uintptr_t end = ds__race_range_end(&a->range);
        for (size_t k = i + 1; k < g->count && g->item[k].range.at < end; k++) {
            const ds__race_item *b = &g->item[k];
            if (++pairs > DS__RACE_PAIRS)
                return;
            if (a->node != b->node && ds__race_how_conflicts(a->how, b->how) &&
                !ds__race_graph_is_before(g, a->node, b->node) &&
                !ds__race_graph_is_before(g, b->node, a->node) &&
                ds__race_range_overlaps(&a->range, &b->range))
                ds__race_graph_conflict(a, b);
        }
    }
}

/* Collects the accesses of an executable, and checks them. */
static void ds__race_graph_build(ds__race_graph *g, const ds__body *body) {
    ds__race_event last = g->last;
    g->last.clock = NULL;
    ds__race_graph_clear(g);
    g->last = last;
    ds__race_builder b = { .graph = g };
    ds__race_graph_body(&b, body, UINT32_MAX);
    ds__race_graph_words(&b);
    ds__race_graph_close(&b);
    ds__race_graph_phases(g);
    ds__race_release(b.deps, b.room * 2 * sizeof *b.deps);
    if (g->count)
        qsort(g->item, g->count, sizeof *g->item, ds__race_item_compare);
    ds__race_graph_check(g);
}

/* Returns the graph of an executable, as it is now; NULL: there is no memory. */
static ds__race_graph *ds__race_graph_of(const void *exec, const ds__body *body) {
    ds__race_graph *g = ds__race_table_find(&ds__race.execs, ds__race_key(exec));
    if (g && !g->stale)
        return g;
    if (!g) {
        g = ds__race_alloc(sizeof *g);
        if (!g || !ds__race_table_set(&ds__race.execs, ds__race_key(exec), g)) {
            ds__race_release(g, sizeof *g);
            return NULL;
        }
    }
    ds__race_graph_build(g, body);
    return g;
}

/* Reports memory of the graph that was freed since. now: the launch, or the instantiation, which
   has no timeline. */
static void ds__race_graph_liveness(const ds__race_graph *g, const ds__race_now *now) {
    for (size_t i = 0; i < g->memories; i++) {
        const ds__race_memory *m = g->memory[i];
        if (DS__LIKELY(!m->dead || m->of_graph))
            continue;
        for (size_t k = 0; k < g->count; k++)
            if (g->item[k].memory == m) {
                const ds__race_item *item = &g->item[k];
                ds__race_record node = { .range = item->range,
                                         .n = item->node,
                                         .place = item->place,
                                         .thread = now->thread,
                                         .how = (uint8_t)item->how };
                ds__race_report(DS_HAZARD_GRAPH_MEMORY, now, &item->range, item->how, m, &node);
                break;
            }
    }
}

/* An executable was made of a graph. */
static void ds__race_graph_instantiate(const void *exec, const ds__body *body) {
    const ds__race_graph *g = ds__race_graph_of(exec, body);
    if (!g)
        return;
    ds__race_now now = { .place = ds__race_place_of_call(), .thread = ds__race_thread() };
    ds__race_graph_liveness(g, &now);
}

/* Returns the place of an access in a launch. */
static uint32_t ds__race_item_place(ds__race_item *item, const ds__op *op) {
    if (!item->launch_file || item->launch_file != op->file || item->launch_line != (int)op->line) {
        char site[DS__RACE_SITE];
        char text[300];
        snprintf(text, sizeof text, "%s (captured at %s)", item->operation,
                 ds__race_site(site, item->file, item->line));
        item->place = ds__race_place_named(text, op->file, (int)op->line);
        item->launch_file = op->file;
        item->launch_line = (int)op->line;
    }
    return item->place;
}

/* Checks the accesses of a launch before a mark. */
static void ds__race_graph_phase(ds__race_graph *g, const ds__race_line *l, const ds__op *op,
                                 uint32_t phase) {
    ds__race_now at = ds__race_line_now(l, 0);
    at.of_graph = 1;
    for (size_t i = 0; i < g->count; i++) {
        ds__race_item *item = &g->item[i];
        if (item->phase != phase || item->memory->unlisted ||
            (item->memory->dead && !item->memory->of_graph))
            continue;
        at.place = ds__race_item_place(item, op);
        ds__race.stats.accesses++;
        ds__race_access_in(item->memory, &at, &item->range, item->how);
    }
}

/* Checks a launch, the current operation of the stream. */
static void ds__race_graph_launch(ds__race_line *l, const ds__op *op, ds__race_now *now) {
    ds__race_graph *g = ds__race_graph_of(op->u.graph.exec, op->u.graph.body);
    if (!g)
        return;
    ds__race.stats.undeclared += g->undeclared;
    if (g->last.line)
        ds__race_moment_join(l, &g->last, now->place);
    ds__race_tls.launch = l->n;
    for (size_t i = 0; i < g->values; i++)
        if (g->value[i].op.kind != DS_VALUE_WRITE && !g->value[i].inner)
            ds__race_word_wait(l, &g->value[i].op, now->place);
    for (size_t i = 0; i < g->users; i++)
        ds__race_task_add(l, g->user[i], now->place, op->u.graph.exec);
    ds__race_now at = ds__race_line_now(l, now->place);
    ds__race_graph_liveness(g, &at);
    for (uint32_t phase = 0; phase <= g->marks; phase++) {
        ds__race_graph_phase(g, l, op, phase);
        if (phase == g->marks)
            break;
        const ds__race_mark *m = &g->mark[phase];
        const ds__race_event *e = ds__race_table_find(&ds__race.events, ds__race_key(m->event));
        if (!m->waits)
            ds__race_moment_keep(&ds__race.events, ds__race_key(m->event), l, now->place);
        l->n++;
        if (m->waits && e && e->line)
            ds__race_moment_join(l, e, now->place);
    }
    for (size_t i = 0; i < g->values; i++)
        if (g->value[i].op.kind == DS_VALUE_WRITE)
            ds__race_word_write(l, &g->value[i].op, now->place);
    ds__race_event *last = &g->last;
    ds__race_clock *before = last->clock;
    *last = (ds__race_event){
        .clock = ds__race_clock_ref(l->clock), .n = l->n, .line = l->index, .place = now->place
    };
    ds__race_clock_unref(before);
}

/* An executable has changed. */
static void ds__race_graph_changed(const void *exec) {
    ds__race_graph *g = ds__race_table_find(&ds__race.execs, ds__race_key(exec));
    if (g)
        g->stale = 1;
}

static void ds__race_graph_forget(const void *exec) {
    ds__race_graph *g = ds__race_table_find(&ds__race.execs, ds__race_key(exec));
    if (!g)
        return;
    ds__race_table_remove(&ds__race.execs, ds__race_key(exec));
    ds__race_graph_clear(g);
    ds__race_release(g, sizeof *g);
}

/* check/operation.h - operations on streams: their accesses and waits.

   ds__race_operation takes an operation that a stream has got: begins a new number of its timeline,
   joins clocks for waits, keeps clocks for records, and checks accesses. ds__race_task_begin notes
   a host function or closure before it is enqueued, since it may run at once; ds__race_task_run and
   ds__race_task_end say that it runs.

   Policy:
   1. A wait takes the last record of the event as of the call.
   2. Work that the library enqueues within a collective or a fill orders streams, but its accesses
      are those that the collective names. Calls of the allocator access nothing.

   Invariants: ds__race_tls.task is in the list of tasks while its function runs.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Takes writes of words, and waits for words. */
static void ds__race_values(ds__race_line *l, const ds__op *op, ds__race_now *now) {
    for (size_t i = 0; i < op->u.values.count; i++) {
        const ds_value_op *v = &op->u.values.list[i];
        if (v->kind == DS_VALUE_WRITE) {
            ds__race_range r = ds__race_range_row(v->address, v->size);
            ds__race_access(now, &r, DS__RACE_WRITE | DS__RACE_ATOMIC);
            ds__race_word_write(l, v, now->place);
        } else {
            ds__race_word_wait(l, v, now->place);
        }
        *now = ds__race_line_now(l, now->place);
    }
}

/* Checks the accesses of a kernel launch. */
static void ds__race_kernel(const ds__op *op, const ds__race_now *now) {
    const ds__kernel *k = op->u.kernel.kernel;
    ds__extent_range list[DS_KERNEL_MAX_PARAMS];
    ds__race_memory *m[DS_KERNEL_MAX_PARAMS];
    size_t count = ds__kernel_ranges(k, ds__race_tls.extent, ds__race_tls.extents,
                                     op->u.kernel.items, op->u.kernel.args, list);
    ds__race_tls.extents = 0;
    ds__race.stats.undeclared += ds__race_kernel_is_undeclared(k);
    uint64_t version = ds__race.version;
    /* all memory first, so that the cache misses of the look-ups overlap */
    for (size_t i = 0; i < count; i++) {
        m[i] = ds__race_memory_find((uintptr_t)(list[i].ptr + list[i].offset));
        if (m[i])
            __builtin_prefetch(m[i]->list.at);
    }
    for (size_t i = 0; i < count; i++) {
        ds__race_range r = ds__race_kernel_range(&list[i]);
        if (DS__UNLIKELY(version != ds__race.version)) /* memory was given up */
            m[i] = ds__race_memory_find(r.at);
        ds__race_access_of(m[i], now, &r, ds__race_kernel_how(&list[i]));
    }
}

/* Checks an operand of a copy or fill; at: DS__OP_DST or DS__OP_SRC. */
static void ds__race_operand(const ds__race_now *now, const ds__op *op, int at, unsigned how) {
    ds__race_now n = *now;
    ds__race_range r = ds__race_range_of(op, at);
    int place = ds__place_of(op, at);
    n.pageable = place == DS__AT_PAGEABLE || place == DS__AT_STABLE || place == DS__AT_UNKNOWN;
    ds__race_access(&n, &r, how);
}

/* Checks the accesses of an operation, but for launches of graphs. */
static void ds__race_accesses(ds__race_line *l, const ds__op *op, ds__race_now *now) {
    ds__race_range r;
    switch (op->kind) {
    case DS__OP_KERNEL:
        ds__race_kernel(op, now);
        break;
    case DS__OP_COPY:
        ds__race_operand(now, op, DS__OP_SRC, DS__RACE_READ);
        ds__race_operand(now, op, DS__OP_DST, DS__RACE_WRITE);
        break;
    case DS__OP_FILL:
        ds__race_operand(now, op, DS__OP_DST, DS__RACE_WRITE);
        break;
    case DS__OP_COPY_BATCH:
        for (size_t i = 0; i < op->u.batch.count; i++) {
            if (!op->u.batch.sizes[i])
                continue;
            r = ds__race_range_row(op->u.batch.src[i], op->u.batch.sizes[i]);
            ds__race_access(now, &r, DS__RACE_READ);
            r = ds__race_range_row(op->u.batch.dst[i], op->u.batch.sizes[i]);
            ds__race_access(now, &r, DS__RACE_WRITE);
        }
        break;
    case DS__OP_VALUES:
        ds__race_values(l, op, now);
        break;
    default:
        break;
    }
}

/* Returns 1 if the running call is one of the allocator. */
static int ds__race_is_allocator(void) {
    const char *fn = ds__tls.fn;
    return fn && (strncmp(fn, "ds_mem_", 7) == 0 || strcmp(fn, "ds_tensor_free") == 0);
}

/* Returns 1 if the accesses of the running call are the program's. */
static int ds__race_is_watched(void) {
    return !ds__race_tls.inside && !ds__tls.unwatched && !ds__race_is_allocator();
}

/* Reports a wait for an event that was never recorded. */
static void ds__race_unrecorded(const ds__race_line *l, uint32_t place) {
    ds__race_now now = ds__race_line_now(l, place);
    if (!ds__tls.unwatched)
        ds__race_report(DS_HAZARD_UNRECORDED_WAIT, &now, NULL, 0, NULL, NULL);
}

/* Returns 1 if the allocator records an event because the stream ends. The record stands for the
   work so far and is no operation, since the host would never know that operation, and the number
   of the timeline could not be used again. */
static int ds__race_is_last_record(const ds__op *op) {
    return op->kind == DS__OP_RECORD && ds__tls.fn && strcmp(ds__tls.fn, "ds_stream_destroy") == 0;
}

/* Takes an operation that a stream has got, and that is not captured. */
static void ds__race_operation(ds__race_line *l, const ds__op *op) {
    uint32_t place = ds__race_place_of(op);
    const ds__race_event *e = NULL;
    const ds__race_line *other;
    if (op->kind == DS__OP_WAIT || op->kind == DS__OP_EXTERNAL_WAIT) {
        e = ds__race_table_find(&ds__race.events, ds__race_key(op->u.event.event));
        if (!e && !op->u.event.object->imported) { /* the wait is no operation */
            ds__race_unrecorded(l, place);
            return;
        }
    }
    ds__race_line_enqueue(l, place);
    switch (op->kind) {
    case DS__OP_RECORD:
    case DS__OP_EXTERNAL_RECORD:
        ds__race_moment_keep(&ds__race.events, ds__race_key(op->u.event.event), l, place);
        return;
    case DS__OP_WAIT:
    case DS__OP_EXTERNAL_WAIT:
        if (e && e->line)
            ds__race_moment_join(l, e, place);
        return;
    case DS__OP_WAIT_STREAM:
        other = ds__race_line_of(op->u.wait.stream);
        if (other)
            ds__race_line_wait_next(l, other, place);
        return;
    default:
        break;
    }
    ds__race_now now = ds__race_line_now(l, place);
    if (op->kind == DS__OP_GRAPH)
        ds__race_graph_launch(l, op, &now);
    else if (ds__race_is_watched())
        ds__race_accesses(l, op, &now);
    if (op->kind == DS__OP_KERNEL)
        ds__race_tls.extents = 0;
}

/* The same for an operation that the driver has accepted. Fills of guards and poison are no
   operations of the program. */
static void ds__race_accepted(ds__race_line *l, const ds__op *op) {
    if (ds__race_is_last_record(op))
        ds__race_moment_keep(&ds__race.events, ds__race_key(op->u.event.event), l,
                             ds__race_place_of(op));
    else if (op->kind != DS__OP_FILL || ds__race_is_watched())
        ds__race_operation(l, op);
}

/* ---- host functions -------------------------------------------------------------------------- */

/* Notes a host function, callback or closure as the stream's next operation. */
static void ds__race_task_begin(ds__race_line *l, const ds__op *op, const void *user) {
    uint32_t place = ds__race_place_of(op);
    ds__race_line_enqueue(l, place);
    ds__race_task_add(l, user, place, NULL);
}

/* Removes a task from the list. */
static void ds__race_task_remove(ds__race_task *t) {
    ds__race_task **at = &ds__race.task;
    while (*at && *at != t)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = t->next;
    if (ds__race.task_end == &t->next)
        ds__race.task_end = at;
    ds__race_clock_unref(t->clock);
    ds__race_release(t, sizeof *t);
}

/* The calling thread runs the first host function with this argument. stream: zero in a graph. */
static void ds__race_task_run(const void *user, ds_stream stream) {
    const ds__race_line *l = ds__race_line_named(stream);
    for (ds__race_task *t = ds__race.task; t; t = t->next)
        if (t->user == user && !t->running && (l ? l->index == t->line : t->exec != NULL)) {
            t->running = 1;
            ds__race_tls.task = t;
            return;
        }
}

/* The host function that the calling thread runs has ended. */
static void ds__race_task_end(void) {
    if (ds__race_tls.task)
        ds__race_task_remove(ds__race_tls.task);
    ds__race_tls.task = NULL;
}

/* Removes the last task of a stream, because the driver has refused it. */
static void ds__race_task_cancel(const ds__race_line *l, const void *user) {
    ds__race_task *last = NULL;
    for (ds__race_task *t = ds__race.task; t; t = t->next)
        if (t->line == l->index && t->user == user && !t->running)
            last = t;
    if (last)
        ds__race_task_remove(last);
}

/* Removes the tasks of the calling thread's last launch, because the driver has refused it. */
static void ds__race_launch_cancel(const ds__race_line *l, const void *exec) {
    for (ds__race_task *t = ds__race.task; t;) {
        ds__race_task *next = t->next;
        if (t->exec == exec && t->line == l->index && t->n == ds__race_tls.launch && !t->running)
            ds__race_task_remove(t);
        t = next;
    }
}

/* Returns the accesses' operation of host code: the host function that runs, or the thread. */
static int ds__race_host_now(ds__race_now *out) {
    const ds__race_task *t = ds__race_tls.task;
    uint32_t place = ds__race_place_of_call();
    if (t) {
        *out = (ds__race_now){ .clock = t->clock,
                               .n = t->n,
                               .line = t->line,
                               .place = place,
                               .thread = ds__race_thread(),
                               .late = 1,
                               .pageable = 1 };
        return 1;
    }
    ds__race_line *host = ds__race_host();
    if (!host)
        return 0;
    host->n++;
    *out = ds__race_line_now(host, place);
    out->pageable = 1;
    return 1;
}

/* check/options.h - options of the layer.

   ds__race_configure reads the list of ds_init_desc.check or DEVSTREAM_CHECK.

   Invariants: outside of a start, the options are those of the running layer, or the defaults.
   Locks: ds__g.mutex is held.
   Threads: the one that starts devstream. */

static void ds__race_patterns_deinit(void) {
    for (size_t i = 0; i < ds__race.patterns; i++)
        ds__host_free(ds__race.pattern[i]);
    ds__race_release(ds__race.pattern, ds__race.pattern_room * sizeof *ds__race.pattern);
    ds__race.pattern = NULL;
    ds__race.patterns = ds__race.pattern_room = 0;
}

/* Adds the patterns of a file, one in a line. */
static ds_result ds__race_patterns_read(const char *path) {
    char line[512];
    FILE *file = fopen(path, "r");
    if (!file)
        return ds__fail(DS_ERR_INVALID_VALUE, "check: the file of suppressions %.200s: %s", path,
                        strerror(errno));
    ds_result r = DS_OK;
    while (r == DS_OK && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        if (!*line || *line == '#')
            continue;
        char *copy = ds__copy_text(line, sizeof line);
        if (!copy || !ds__race_array_reserve(&ds__race.pattern, sizeof copy, ds__race.patterns,
                                             &ds__race.pattern_room)) {
            ds__host_free(copy);
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the suppressions");
            continue;
        }
        ds__race.pattern[ds__race.patterns++] = copy;
    }
    fclose(file);
    return r;
}

/* Reads a number from 1 to `most`. Returns 0 if the text is none. */
static unsigned long ds__race_number(const char *text, unsigned long most) {
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && n <= most ? n : 0;
}

/* Takes one option. */
static ds_result ds__race_option(const char *o) {
    static const struct {
        const char *name;
        int *flag;
    } flags[] = { { "threads", &ds__race.threads },
                  { "possible", &ds__race.possible },
                  { "abort", &ds__race.aborts },
                  { "json", &ds__race.json },
                  { "quiet", &ds__race.quiet } };

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (strcmp(o, flags[i].name) == 0) {
            *flags[i].flag = 1;
            return DS_OK;
        }
    if (strncmp(o, "suppress=", 9) == 0)
        return ds__race_patterns_read(o + 9);
    if (strncmp(o, "output=", 7) == 0) {
        ds__race.output = fopen(o + 7, "w");
        return ds__race.output ? DS_OK
                               : ds__fail(DS_ERR_INVALID_VALUE, "check: the file %.200s: %s", o + 7,
                                          strerror(errno));
    }
    if (strncmp(o, "exit=", 5) == 0) {
        ds__race.exit_code = (int)ds__race_number(o + 5, 125);
        DS__REQUIRE(ds__race.exit_code, "check: \"%.40s\"; use exit=1 to exit=125", o);
        return DS_OK;
    }
    if (strncmp(o, "memory=", 7) == 0) {
        unsigned long mib = ds__race_number(o + 7, 1 << 20);
        DS__REQUIRE(mib >= DS__RACE_MEMORY_LEAST,
                    "check: \"%.40s\"; use memory=%d to memory=1048576", o, DS__RACE_MEMORY_LEAST);
        ds__race.most = (size_t)mib << 20;
        return DS_OK;
    }
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "check: unknown option \"%.40s\"; use threads, possible, abort, exit=N, json, "
                    "quiet, output=FILE, suppress=FILE or memory=N",
                    o);
}

/* Sets the defaults. */
static void ds__race_options_init(void) {
    ds__race.threads = ds__race.possible = ds__race.aborts = 0;
    ds__race.json = ds__race.quiet = ds__race.exit_code = 0;
    ds__race.most = DS__RACE_MEMORY;
    ds__race_patterns_deinit();
    if (ds__race.output)
        fclose(ds__race.output);
    ds__race.output = NULL;
}

/* Reads a list of options; "1" or "" stands for the defaults. NULL: forgets them. On failure they
   are forgotten, too, since the program's allocator may be another one at the next start. */
static ds_result ds__race_configure(const char *list) {
    char option[DS__LAYER_OPTIONS];
    ds__race_options_init();
    while (list && *list) {
        size_t n = strcspn(list, ",");
        memcpy(option, list, n);
        option[n] = 0;
        list += n + (list[n] == ',');
        if (!n || strcmp(option, "1") == 0)
            continue;
        ds_result r = ds__race_option(option);
        if (r < 0) {
            ds__race_options_init();
            return r;
        }
    }
    return DS_OK;
}

/* check/token.h - hand-over between threads.

   ds__race_token_release keeps the clock of the calling thread, or of the host function that it
   runs, under a token; ds__race_token_acquire orders the calling thread after all releases of the
   token.

   Invariants: a token has one release for each timeline, the last one.
   Locks: ds__race.lock is held.
   Threads: any. */

/* Hand-over between threads: a token keeps the last release of each timeline. */
static void ds__race_token_release(const void *token) {
    ds__race_line *host = ds__race_host();
    const ds__race_task *t = ds__race_tls.task;
    uint64_t key = ds__race_key(token);
    if (!host || !token)
        return;
    ds__race_token *k = ds__race_table_find(&ds__race.tokens, key);
    if (!k) {
        k = ds__race_alloc(sizeof *k);
        if (!k || !ds__race_table_set(&ds__race.tokens, key, k)) {
            ds__race_release(k, sizeof *k);
            return;
        }
    }
    host->n += !t;
    ds__race_event now = { .clock = t ? t->clock : host->clock,
                           .n = t ? t->n : host->n,
                           .line = t ? t->line : host->index,
                           .place = ds__race_place_of_call() };
    size_t i = 0;
    while (i < k->count && k->release[i].line != now.line)
        i++;
    if (i == k->count &&
        !ds__race_array_reserve(&k->release, sizeof *k->release, k->count, &k->room))
        return;
    k->count += i == k->count;
    ds__race_clock_ref(now.clock);
    ds__race_clock_unref(k->release[i].clock);
    k->release[i] = now;
}

static void ds__race_token_acquire(const void *token) {
    ds__race_line *host = ds__race_host();
    const ds__race_token *k =
        token ? ds__race_table_find(&ds__race.tokens, ds__race_key(token)) : NULL;
    if (!host || !k)
        return;
    host->n++;
    for (size_t i = 0; i < k->count; i++)
        ds__race_moment_join(host, &k->release[i], ds__race_place_of_call());
}

static void ds__race_tokens_deinit(void) {
    for (size_t i = 0; i < ds__race.tokens.size; i++) {
        ds__race_token *k = ds__race.tokens.entry[i].value;
        for (size_t r = 0; k && r < k->count; r++)
            ds__race_clock_unref(k->release[r].clock);
        if (k)
            ds__race_release(k->release, k->room * sizeof *k->release);
        ds__race_release(k, sizeof *k);
    }
    ds__race_table_deinit(&ds__race.tokens);
}

/* check/layer.h - the layer's driver tables.

   ds__race_layer_apply puts a table in front of a driver's: each wrapped entry calls the next table
   and tells the other rooms of it. check/seen.h has the other half of the layer, its observer.

   Policy:
   1. An operation is taken when the driver has accepted it. Host functions, closures and graph
      launches are taken before, because they may run at once.
   2. While a capture is open, a stream is asked whether it captures; captured operations are taken
      at launches.

   Invariants: ds__race.on is 1 from the first table until the last driver has stopped.
   Locks: the wrapped entries call the driver without ds__race.lock.
   Threads: any. The tables are made in ds_init or at the start, under ds__g.mutex. */

/* Returns 1, with the lock, if the layer checks. */
static int ds__race_enter(void) {
    if (!atomic_load_explicit(&ds__race.on, memory_order_relaxed))
        return 0;
    ds__mutex_lock(&ds__race.lock);
    if (!ds__race.failed && atomic_load(&ds__race.on))
        return 1;
    ds__mutex_unlock(&ds__race.lock);
    return 0;
}

static void ds__race_leave(void) {
    ds__mutex_unlock(&ds__race.lock);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Returns the key of a queue, which all objects of it on one device have in common. */
static uint64_t ds__race_queue_key(int backend, int device, const void *identity) {
    return ds__race_key(identity) ^ (uint64_t)(backend * DS__MAX_DEVICES + device + 1) << 48;
}

/* A driver has made a stream. */
static void ds__race_stream_add(int backend, int device, int kind, unsigned flags, void *native) {
    const void *identity = ds__race.next[backend]->stream_identity(native);
    if (!ds__race_enter())
        return;
    uint64_t queue = ds__race_queue_key(backend, device, identity);
    ds__race_line *l = ds__race_table_find(&ds__race.natives, queue);
    if (!l && ds__race.ended >= DS__RACE_ENDED_LINES && ds__race.ended >= ds__race.reuse_at)
        ds__race_sweep();
    if (!l)
        l = ds__race_line_create(DS__RACE_STREAM);
    if (l) {
        l->wrappers++;
        l->queue = queue;
        l->backend = backend;
        l->device = device;
        l->blocking = kind == DS__STREAM_PER_THREAD || flags & DS_STREAM_BLOCKING;
        l->legacy = kind == DS__STREAM_LEGACY;
        l->per_thread = kind == DS__STREAM_PER_THREAD;
        if (l->legacy) {
            l->blocking = 0;
            ds__race.legacy[backend][device] = l->index;
        }
        ds__race_table_set(&ds__race.natives, queue, l);
        ds__race_table_set(&ds__race.natives, ds__race_key(native), l);
    }
    ds__race_leave();
}

/* A driver is about to end a stream, or to forget a wrapped one. Wrappers may share the object. */
static void ds__race_stream_end(void *native) {
    if (!ds__race_enter())
        return;
    ds__race_line *l = ds__race_line_of(native);
    if (l && --l->wrappers == 0) {
        ds__race_table_remove_value(&ds__race.natives, l);
        ds__race_table_remove_value(&ds__race.handles, l);
        if (ds__race.legacy[l->backend][l->device] == l->index)
            ds__race.legacy[l->backend][l->device] = 0;
        l->kind = DS__RACE_ENDED;
        ds__race.ended++;
        ds__race.stats.timelines--;
    }
    ds__race_leave();
}

/* The handle of a stream is known now. */
static void ds__race_stream_name(void *native, uint64_t handle) {
    ds__stream *s = ds__pin(&ds__g.streams, handle);
    if (!s)
        return;
    if (ds__race_enter()) {
        ds__race_line *l = ds__race_line_of(native);
        if (l) {
            if (!l->handle) {
                l->handle = handle;
                l->number = s->id;
                ds__utf8_copy(l->name, sizeof l->name, s->label ? s->label : "");
            }
            ds__race_table_set(&ds__race.handles, handle, l);
        }
        ds__race_leave();
    }
    ds__stream_unpin(s);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Returns 1 if a stream captures. */
static int ds__race_captures(int backend, void *stream) {
    ds_capture_info info;
    if (!ds__captures_open())
        return 0;
    memset(&info, 0, sizeof info);
    ds__kept_error before;
    ds__error_save(&before);
    ds__tls.mute++;
    ds_result r = ds__race.next[backend]->capture_query(stream, &info);
    ds__tls.mute--;
    ds__error_restore(&before);
    return r < 0 || info.status != DS_CAPTURE_NONE;
}

/* Returns 1 if a copy is done when the call returns, because it writes pageable memory (CUDA
   Runtime API, "API synchronization behavior"). */
static int ds__race_copy_blocks(int backend, const ds__op *op) {
    ds_pointer_info info;
    if (op->kind != DS__OP_COPY)
        return 0;
    int place = ds__place_of(op, DS__OP_DST);
    if (place != DS__AT_UNKNOWN)
        return op->flags & DS__OP_BLOCKS && place == DS__AT_PAGEABLE;
    memset(&info, 0, sizeof info);
    return ds__race.next[backend]->pointer_query(op->u.copy.dst, &info) == DS_OK &&
           info.kind == DS_MEMORY_PAGEABLE;
}

/* Returns the argument by which a host function or closure is found when it runs. */
static const void *ds__race_task_user(const ds__op *op) {
    return op->kind == DS__OP_CLOSURE ? op->u.closure.payload : op->u.host.user;
}

static int ds__race_is_task(const ds__op *op) {
    return op->kind == DS__OP_HOST || op->kind == DS__OP_CALLBACK || op->kind == DS__OP_CLOSURE;
}

/* Takes an operation before the driver gets it, if it may run at once. Returns 1 if so. */
static int ds__race_submit_begin(void *stream, const ds__op *op) {
    if ((op->kind != DS__OP_GRAPH && !ds__race_is_task(op)) || !ds__race_enter())
        return 0;
    ds__race_line *l = ds__race_line_of(stream);
    if (l && op->kind == DS__OP_GRAPH)
        ds__race_operation(l, op);
    else if (l)
        ds__race_task_begin(l, op, ds__race_task_user(op));
    ds__race_leave();
    return l != NULL;
}

/* The capture of a stream begins or ends. Other streams that it had are asked at their next
   operation. */
static void ds__race_capture_note(void *stream, int captures) {
    if (!ds__race_enter())
        return;
    ds__race_line *l = ds__race_line_of(stream);
    if (l)
        l->captures = (uint8_t)captures;
    ds__race_leave();
}

/* Asks a stream again after a wait, which may have taken it into a capture. */
static void ds__race_capture_ask(int backend, void *stream, const ds__op *op) {
    if (ds__captures_open() && (op->kind == DS__OP_WAIT || op->kind == DS__OP_WAIT_STREAM))
        ds__race_capture_note(stream, ds__race_captures(backend, stream));
}

/* Takes an operation that the driver has accepted. id: in a recording of activity, or 0. */
static void ds__race_submit_end(int backend, void *stream, const ds__op *op, int captures,
                                uint64_t id) {
    int blocks = !captures && ds__race_copy_blocks(backend, op);
    if (!ds__race_enter())
        return;
    ds__race_line *l = ds__race_line_of(stream);
    if (l)
        l->captures = (uint8_t)captures;
    if (l && !captures) {
        ds__race_tls.traced = id;
        ds__race_accepted(l, op);
        ds__race_tls.traced = 0;
        ds__race_traced_set(l->index, l->n, id);
    }
    if (l && captures && op->kind == DS__OP_KERNEL)
        ds__race_extents_keep(op);
    if (l && captures && op->kind == DS__OP_RECORD)
        ds__race_moment_capture(&ds__race.events, ds__race_key(op->u.event.event));
    if (l && blocks)
        ds__race_host_wait(l);
    ds__race_leave();
    if (l && !captures)
        ds__race_capture_ask(backend, stream, op);
}

/* Takes the host functions back of an operation that the driver has refused. */
static void ds__race_submit_cancel(void *stream, const ds__op *op) {
    if (!ds__race_enter())
        return;
    ds__race_line *l = ds__race_line_of(stream);
    if (l && ds__race_is_task(op))
        ds__race_task_cancel(l, ds__race_task_user(op));
    else if (l)
        ds__race_launch_cancel(l, op->u.graph.exec);
    ds__race_leave();
}

/* Keeps the id of a host function or a launch, which was taken before. */
static void ds__race_submit_traced(void *stream, uint64_t id) {
    if (!ds__race_enter())
        return;
    const ds__race_line *l = ds__race_line_of(stream);
    if (l)
        ds__race_traced_set(l->index, l->n, id);
    ds__race_leave();
}

static ds_result ds__race_submit(int backend, void *stream, const ds__op *op) {
    const ds__driver *next = ds__race.next[backend];
    if (!atomic_load_explicit(&ds__race.on, memory_order_relaxed))
        return next->submit(stream, op);
    int captures = ds__race_captures(backend, stream);
    int taken = !captures && ds__race_submit_begin(stream, op);
    ds_result r = next->submit(stream, op);
    uint64_t id = atomic_load_explicit(&ds__activity.on, memory_order_relaxed)
                      ? next->activity_last(stream, 0)
                      : 0;
    if (taken && r != DS_OK)
        ds__race_submit_cancel(stream, op);
    else if (taken && id)
        ds__race_submit_traced(stream, id);
    else if (!taken && r == DS_OK)
        ds__race_submit_end(backend, stream, op, captures, id);
    if (op->kind == DS__OP_KERNEL)
        ds__race_tls.extents = 0;
    return r;
}

/* Returns 1 if a stream captures, as far as the layer knows. */
static int ds__race_line_captures(const ds__race_line *l) {
    return l->captures && ds__captures_open();
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A driver has given out memory. */
static void ds__race_memory_given(const void *ptr, size_t size) {
    if (!ds__race_enter())
        return;
    ds__race_memory_add(ptr, size, 0, NULL);
    ds__race_leave();
}

/* A driver takes all allocations of a range back. */
static void ds__race_memory_taken(const void *ptr, size_t size) {
    if (!ds__race_enter())
        return;
    const char *at = ptr;
    const char *end = at + size;
    ds__race_memory *m;
    while (at < end &&
           (m = ds__race_map_meet(&ds__race.alloc, (uintptr_t)at, (size_t)(end - at))) != NULL) {
        at = (const char *)(m->base + m->size);
        if (!m->dead)
            ds__race_memory_end(m);
    }
    while ((m = ds__race_map_meet(&ds__race.block, (uintptr_t)ptr, size)) != NULL)
        ds__race_memory_drop(m);
    ds__race_leave();
}

/* A driver's own allocator has given out memory in the order of a stream. */
static void ds__race_async_given(const void *stream, const void *ptr, size_t size) {
    if (!ds__race_enter())
        return;
    ds__race_memory *m = ds__race_memory_add(ptr, size, 1, NULL);
    const ds__race_line *l = ds__race_line_of(stream);
    if (m && l)
        ds__race_alloc_note(m, l);
    ds__race_leave();
}

/* It is about to take memory back when a stream arrives there. The range counts as freed from here
   on, since another thread may receive the address before the driver's call has returned. Returns
   the serial number of the range, or 0. */
static uint64_t ds__race_async_taken(const void *stream, const void *ptr) {
    uint64_t serial = 0;
    if (!ds__race_enter())
        return 0;
    ds__race_memory *m = ds__race_map_find(&ds__race.block, (uintptr_t)ptr);
    ds__race_line *l = ds__race_line_of(stream);
    if (m && !m->dead) {
        if (l) {
            ds__race_line_enqueue(l, ds__race_place_of_call());
            ds__race_free_check(m, l);
        }
        ds__race_memory_retire(m);
        serial = m->serial;
    }
    ds__race_leave();
    return serial;
}

/* The driver has taken the range back, or has refused to: then it is live again. */
static void ds__race_async_end(const void *ptr, uint64_t serial, ds_result r) {
    if (!serial || !ds__race_enter())
        return;
    ds__race_memory *m = ds__race_map_find(&ds__race.block, (uintptr_t)ptr);
    if (m && m->serial == serial && r == DS_OK)
        ds__race_records_clear(m);
    else if (m && m->serial == serial)
        ds__race_memory_revive(m);
    ds__race_leave();
}

static ds_result ds__race_async_free(int backend, int device, void *stream, void *ptr,
                                     size_t size) {
    uint64_t serial = ds__race_async_taken(stream, ptr);
    ds_result r = ds__race.next[backend]->async_free(device, stream, ptr, size);
    ds__race_async_end(ptr, serial, r);
    return r;
}

/* ---- captures, graphs, events ---------------------------------------------------------------- */

static void ds__race_exec_made(const void *exec, const ds__body *body) {
    if (!ds__race_enter())
        return;
    ds__race_graph_instantiate(exec, body);
    ds__race_leave();
}

static void ds__race_exec_changed(const void *exec) {
    if (!ds__race_enter())
        return;
    ds__race_graph_changed(exec);
    ds__race_leave();
}

static void ds__race_exec_gone(const void *exec) {
    if (!ds__race_enter())
        return;
    ds__race_graph_forget(exec);
    ds__race_leave();
}

static void ds__race_event_gone(const void *event) {
    if (!ds__race_enter())
        return;
    ds__race_moment_forget(&ds__race.events, ds__race_key(event));
    ds__race_leave();
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Frees everything. */
static void ds__race_deinit(void) {
    for (size_t i = 0; i < ds__race.execs.size; i++)
        if (ds__race.execs.entry[i].key) {
            ds__race_graph *g = ds__race.execs.entry[i].value;
            ds__race_graph_clear(g);
            ds__race_release(g, sizeof *g);
        }
    ds__race_table_deinit(&ds__race.execs);
    while (ds__race.task)
        ds__race_task_remove(ds__race.task);
    ds__race_moments_deinit(&ds__race.events);
    ds__race_tokens_deinit();
    ds__race_words_deinit();
    ds__race_extents_deinit();
    ds__race_captured_deinit();
    ds__race_table_deinit(&ds__race.natives);
    ds__race_table_deinit(&ds__race.handles);
    ds__race_table_deinit(&ds__race.pairs);
    for (size_t i = 0; i < ds__race.groups.size; i++)
        ds__race_release(ds__race.groups.entry[i].value, sizeof(ds__race_group));
    ds__race_table_deinit(&ds__race.groups);
    ds__race_map_deinit(&ds__race.block);
    ds__race_map_deinit(&ds__race.alloc);
    ds__race_lines_deinit();
    ds__race_edges_deinit();
    ds__race_traced_deinit();
    ds__race_places_deinit();
    ds__race_patterns_deinit();
    ds__race_release(ds__race.text, ds__race.text_room);
    ds__race.text = NULL;
    ds__race.text_room = 0;
    ds__race.report_fn = NULL;
    ds__race.fresh = 0;
    ds__race.epoch++;
}

/* A driver has stopped: the last one prints the summary, and ends the process if the option "exit"
   is set and there was an exact report. */
static void ds__race_stop(void) {
    if (--ds__race.stops > 0)
        return;
    ds__mutex_lock(&ds__race.lock);
    atomic_store(&ds__race.on, 0);
    ds__race_summary();
    int code = ds__race.stats.reports ? ds__race.exit_code : 0;
    ds__race_deinit();
    ds__race_options_init();
    ds__mutex_unlock(&ds__race.lock);
    if (code) {
        fflush(NULL);
        _Exit(code);
    }
}

/* ---- the driver table ------------------------------------------------------------------------ */

/* X(backend, entry, parameters, arguments, call): calls the next table, then, if it succeeds, the
   function of the layer. */
/* X(backend, entry, parameters, arguments, call): the same the other way round. */
/* clang-format off */
#define DS__RACE_AFTER(X, b) \
    X(b, stream_create, \
      (int device, int kind, unsigned flags, int *priority, int *share, void **out), \
      (device, kind, flags, priority, share, out), \
      ds__race_stream_add(b, device, kind, flags, *out)) \
    X(b, stream_wrap, \
      (int device, void *native, int own, unsigned *out_flags, int *out_priority, void **out), \
      (device, native, own, out_flags, out_priority, out), \
      ds__race_stream_add(b, device, DS__STREAM_NEW, *out_flags, *out)) \
    X(b, memory_alloc, (int device, size_t size, void **out), (device, size, out), \
      ds__race_memory_given(*out, size)) \
    X(b, async_alloc, (int device, void *stream, size_t size, void **out), \
      (device, stream, size, out), ds__race_async_given(stream, *out, size)) \
    X(b, share_alloc, (int device, size_t size, void **out), (device, size, out), \
      ds__race_memory_given(*out, size)) \
    X(b, share_import, (int device, const unsigned char *handle, size_t size, void **out), \
      (device, handle, size, out), ds__race_memory_given(*out, size)) \
    X(b, host_alloc, (size_t size, void **out), (size, out), ds__race_memory_given(*out, size)) \
    X(b, host_register, (void *ptr, size_t size), (ptr, size), ds__race_memory_given(ptr, size)) \
    X(b, space_map, (int device, void *at, size_t size, size_t page), (device, at, size, page), \
      ds__race_memory_given(at, size)) \
    X(b, capture_begin, (void *stream, ds__capture *capture, const uint32_t *deps, size_t count), \
      (stream, capture, deps, count), ds__race_capture_note(stream, 1)) \
    X(b, graph_instantiate, (ds__body *graph, ds__body *copy, unsigned flags, void **out), \
      (graph, copy, flags, out), ds__race_exec_made(*out, copy)) \
    X(b, exec_update, \
      (void *exec, ds__body *graph, ds_graph_update_reason *out_reason, uint32_t *out_node), \
      (exec, graph, out_reason, out_node), ds__race_exec_changed(exec)) \
    X(b, exec_set, (void *exec, uint32_t index, const ds__node *fresh), (exec, index, fresh), \
      ds__race_exec_changed(exec)) \
    X(b, exec_enable, (void *exec, uint32_t index, int enabled), (exec, index, enabled), \
      ds__race_exec_changed(exec))

#define DS__RACE_BEFORE(X, b) \
    X(b, capture_end, (void *stream, ds__capture **out), (stream, out), \
      ds__race_capture_note(stream, 0)) \
    X(b, space_unmap, (int device, void *at, size_t size), (device, at, size), \
      ds__race_memory_taken(at, size)) \
    X(b, memory_release, (ds_memory_kind kind, int device, void *ptr, size_t size), \
      (kind, device, ptr, size), ds__race_memory_taken(ptr, size))

/* The same for entries without a result. */
#define DS__RACE_ENDS(X, b) \
    X(b, stream_named, (void *stream, uint64_t handle), (stream, handle), \
      ds__race_stream_name(stream, handle)) \
    X(b, stream_destroy, (void *stream), (stream), ds__race_stream_end(stream)) \
    X(b, stream_forget, (void *stream), (stream), ds__race_stream_end(stream)) \
    X(b, event_destroy, (void *event), (event), ds__race_event_gone(event)) \
    X(b, exec_destroy, (void *exec), (exec), ds__race_exec_gone(exec)) \
    X(b, share_end, (int device, void *base, size_t size, int imported), \
      (device, base, size, imported), ds__race_memory_taken(base, size))

/* clang-format on */

#define DS__RACE_AFTER_FUNCTION(b, entry, parameters, arguments, call) \
    static ds_result ds__race_##b##_##entry parameters {               \
        ds_result r = ds__race.next[b]->entry arguments;               \
        if (r == DS_OK)                                                \
            call;                                                      \
        return r;                                                      \
    }
#define DS__RACE_BEFORE_FUNCTION(b, entry, parameters, arguments, call) \
    static ds_result ds__race_##b##_##entry parameters {                \
        call;                                                           \
        return ds__race.next[b]->entry arguments;                       \
    }
#define DS__RACE_END_FUNCTION(b, entry, parameters, arguments, call) \
    static void ds__race_##b##_##entry parameters {                  \
        call;                                                        \
        ds__race.next[b]->entry arguments;                           \
    }
DS__RACE_AFTER(DS__RACE_AFTER_FUNCTION, 0)
DS__RACE_AFTER(DS__RACE_AFTER_FUNCTION, 1)
DS__RACE_BEFORE(DS__RACE_BEFORE_FUNCTION, 0)
DS__RACE_BEFORE(DS__RACE_BEFORE_FUNCTION, 1)
DS__RACE_ENDS(DS__RACE_END_FUNCTION, 0)
DS__RACE_ENDS(DS__RACE_END_FUNCTION, 1)

static ds_result ds__race_0_submit(void *stream, const ds__op *op) {
    return ds__race_submit(0, stream, op);
}

static ds_result ds__race_1_submit(void *stream, const ds__op *op) {
    return ds__race_submit(1, stream, op);
}

static ds_result ds__race_0_async_free(int device, void *stream, void *ptr, size_t size) {
    return ds__race_async_free(0, device, stream, ptr, size);
}

static ds_result ds__race_1_async_free(int device, void *stream, void *ptr, size_t size) {
    return ds__race_async_free(1, device, stream, ptr, size);
}

static void ds__race_0_stop(void) {
    ds__race.next[0]->stop();
    ds__race_stop();
}

static void ds__race_1_stop(void) {
    ds__race.next[1]->stop();
    ds__race_stop();
}

/* Every operation passes `submit`. */
static ds_result ds__race_run_together(void *const *streams, size_t count,
                                       void (*run_fn)(void *user), void *user, int *out_ran) {
    (void)streams, (void)count, (void)run_fn, (void)user;
    *out_ran = 0;
    return DS_OK;
}

static const ds__driver *ds__race_layer_apply(const ds__driver *next, int backend) {
    ds__driver *t = &ds__race.table[backend];
    ds__race.next[backend] = next;
    *t = *next;
#define DS__RACE_SET(b, entry, parameters, arguments, call) \
    t->entry = backend ? ds__race_1_##entry : ds__race_0_##entry;
    DS__RACE_AFTER(DS__RACE_SET, 0)
    DS__RACE_BEFORE(DS__RACE_SET, 0)
    DS__RACE_ENDS(DS__RACE_SET, 0)
#undef DS__RACE_SET
    t->submit = backend ? ds__race_1_submit : ds__race_0_submit;
    t->async_free = backend ? ds__race_1_async_free : ds__race_0_async_free;
    t->stop = backend ? ds__race_1_stop : ds__race_0_stop;
    t->run_together = ds__race_run_together;
    t->inline_bytes = 0;
    ds__race.stops++;
    memset(&ds__race.stats, 0, sizeof ds__race.stats);
    ds__race.failed = 0;
    atomic_store(&ds__race.on, 1);
    return t;
}

/* check/seen.h - the layer's observer.

   ds__race_seen receives occurrences that never reach a driver: blocks of the allocator, waits of
   the host, collectives and fills, captured operations between ranks, hand-over between threads.

   Policy:
   1. The operands of a collective are accesses of its streams, which wait for each other first. Its
      own copies and kernels are not accesses.
   2. A wait within a collective or a fill is the library's, and orders no host code.

   Invariants: ds__race_tls.inside is the depth of collectives and fills on the calling thread.
   Locks: ds__race.lock is held while a notice is taken.
   Threads: any. */

/* The host has waited for the last record of an event. */
static void ds__race_seen_event(ds_event event) {
    const ds__race_event *m = NULL;
    ds__event *e = ds__pin(&ds__g.events, event.id);
    if (e) {
        m = ds__race_table_find(&ds__race.events, ds__race_key(atomic_load(&e->native)));
        ds__unpin(&ds__g.events, e);
    }
    if (m && m->line)
        ds__race_host_join(m->clock, &(ds__race_edge){ .from = m->line,
                                                       .from_n = m->n,
                                                       .from_place = m->place,
                                                       .to_place = ds__race_place_of_call() });
}

/* The host has waited for a stream, an event, or a device. The work of a device that has failed is
   over, too. A program must not rely on the waits of the allocator, which depend on its
   configuration. */
static void ds__race_seen_wait(const ds__seen *seen) {
    int over = seen->result == DS_OK || seen->result == DS_ERR_FAILED;
    if (!over || ds__race_tls.inside || ds__race_is_allocator())
        return;
    if (seen->stream.id) {
        const ds__race_line *l = ds__race_line_of_handle(seen->stream);
        if (l)
            ds__race_host_wait(l);
        return;
    }
    if (seen->event.id) {
        ds__race_seen_event(seen->event);
        return;
    }
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        const ds__race_line *l = ds__race.line[i];
        if (l->kind != DS__RACE_STREAM && l->kind != DS__RACE_ENDED)
            continue;
        int is_host = seen->device.type == DS_DEVICE_HOST; /* all devices */
        if (is_host || (ds__g.backend[l->backend].type == (ds_device_type)seen->device.type &&
                        l->device == seen->device.index))
            ds__race_host_wait(l);
    }
}

/* A stream waits for an event that has no driver's event yet. */
static void ds__race_seen_unrecorded(const ds__seen *seen) {
    const ds__race_line *l = ds__race_line_of_handle(seen->stream);
    if (l && !ds__race_line_captures(l))
        ds__race_unrecorded(l, ds__race_place_of_call());
}

/* A block of the allocator was given out. */
static void ds__race_seen_alloc(const ds__seen *seen) {
    /* the padding is the block's, too: no earlier block of these addresses is left there */
    ds__race_memory *m = ds__race_memory_add(seen->ptr, seen->room, 1, seen->label);
    const ds__race_line *l = ds__race_line_of_handle(seen->stream);
    if (!m)
        return;
    m->asked = seen->bytes;
    if (!l)
        return;
    m->of_graph = (uint8_t)ds__race_line_captures(l);
    if (!m->of_graph)
        ds__race_alloc_note(m, l);
}

/* Another stream uses a block. */
static void ds__race_seen_use(const ds__seen *seen) {
    ds__race_memory *m = ds__race_map_find(&ds__race.block, (uintptr_t)seen->ptr);
    const ds__race_line *l = ds__race_line_of_handle(seen->stream);
    if (m && l && ds__race_line_captures(l))
        m->of_graph = 1; /* the graph keeps the block */
    if (!m || m->dead || !l)
        return;
    ds__race_use_note(m, l, !seen->bytes);
}

/* The program frees a block. */
static void ds__race_seen_free(const ds__seen *seen) {
    ds__race_memory *m = ds__race_map_find(&ds__race.block, (uintptr_t)seen->ptr);
    if (!m || m->dead)
        return;
    if (!m->of_graph && !ds__race_tls.inside)
        ds__race_free_check(m, ds__race_host());
    ds__race_memory_end(m);
}

/* Returns the timeline of an operand whose accesses are checked, or NULL. */
static ds__race_line *ds__race_operand_line(const ds__seen_operand *o) {
    ds__race_line *l = ds__race_line_of_handle(o->stream);
    return l && o->bytes && !ds__race_line_captures(l) ? l : NULL;
}

/* Returns a key of the streams of a collective, whatever their order; 0: one stream. */
static uint64_t ds__race_group_key(const ds__seen *seen) {
    uint64_t key = 0;
    uint64_t first = 0;
    int several = 0;
    for (size_t i = 0; i < seen->operands; i++) {
        uint64_t id = seen->operand[i].stream.id;
        size_t k = 0;
        while (k < i && seen->operand[k].stream.id != id)
            k++;
        if (k == i) {
            key += ds__race_hash(id);
            several |= first != 0;
            first = id;
        }
    }
    return several ? key | 1 : 0;
}

/* Compares the order of collectives on different threads: with the option "threads", two threads
   that call different collectives on one group of streams must hand over. */
static void ds__race_group_begin(const ds__seen *seen, uint32_t place) {
    uint64_t key = ds__race_group_key(seen);
    ds__race_line *host = ds__race_host();
    if (!key || !host)
        return;
    ds__race_group *g = ds__race_table_find(&ds__race.groups, key);
    if (!g) {
        g = ds__race_alloc(sizeof *g);
        if (!g || !ds__race_table_set(&ds__race.groups, key, g)) {
            ds__race_release(g, sizeof *g);
            return;
        }
    }
    uint32_t thread = ds__race_thread();
    if (g->thread && g->thread != thread && g->place != place &&
        ds__race_line_known(host, g->line) < g->n) {
        ds__race_now now = ds__race_line_now(host, place);
        ds__race_record before = {
            .n = g->n, .line = g->line, .place = g->place, .thread = g->thread
        };
        ds__race_report(DS_HAZARD_COLLECTIVE_ORDER, &now, NULL, 0, NULL, &before);
    }
    host->n++;
    *g = (ds__race_group){ host->n, host->index, place, thread };
}

/* Checks the accesses of an operand: rows of the innermost dimension for each position of the outer
   ones. If there are too many positions, the whole span is accessed, as a possible access. */
static void ds__race_operand_access(const ds__seen_operand *o, const ds__race_now *now,
                                    unsigned how) {
    int outer = o->ndim > 1 ? o->ndim - 1 : 0;
    size_t rows = o->ndim ? (size_t)o->shape[outer] : 1;
    size_t pitch = o->ndim ? (size_t)o->strides[outer] : o->width;
    size_t width = o->width;
    if (pitch <= width) {
        width += (rows - 1) * pitch;
        rows = 1;
    }
    size_t positions = 1;
    size_t span = (rows - 1) * pitch + width;
    for (int i = 0; i < outer; i++) {
        span += (size_t)((o->shape[i] - 1) * o->strides[i]);
        positions = positions > DS__RACE_POSITIONS ? positions : positions * (size_t)o->shape[i];
    }
    if (positions > DS__RACE_POSITIONS) {
        ds__race_range r = ds__race_range_row(o->ptr, span);
        ds__race_access(now, &r, how | DS__RACE_MAYBE);
        return;
    }
    for (size_t n = 0; n < positions; n++) {
        const char *at = o->ptr;
        size_t rest = n;
        for (int i = outer; i-- > 0; rest /= (size_t)o->shape[i])
            at += (int64_t)(rest % (size_t)o->shape[i]) * o->strides[i];
        ds__race_range r = ds__race_range_rows(at, width, pitch, rows);
        ds__race_access(now, &r, how);
    }
}

/* A collective or a fill begins. Its operands are accesses of their streams, which wait for each
   other first (comm/join.h). */
static void ds__race_seen_begin(const ds__seen *seen) {
    uint32_t place = ds__race_place_of_call();
    int outer = ds__race_tls.inside > 1;
    if (!outer && ds__race.threads)
        ds__race_group_begin(seen, place);
    for (size_t i = 0; i < seen->operands && !outer; i++) {
        ds__race_line *l = ds__race_operand_line(&seen->operand[i]);
        if (l)
            ds__race_line_enqueue(l, place);
    }
    for (size_t i = 0; i < seen->operands && !outer; i++) {
        const ds__seen_operand *o = &seen->operand[i];
        ds__race_line *l = ds__race_operand_line(o);
        for (size_t k = 0; l && k < seen->operands; k++) {
            const ds__race_line *other = ds__race_operand_line(&seen->operand[k]);
            if (other)
                ds__race_line_wait(l, l->n, other, place);
        }
        if (!l)
            continue;
        ds__race_now now = ds__race_line_now(l, place);
        now.pageable = o->device.type == DS_DEVICE_HOST;
        ds__race_operand_access(
            o, &now, (o->reads ? DS__RACE_READ : 0u) | (o->writes ? DS__RACE_WRITE : 0u));
    }
}

/* A stream has got another label. */
static void ds__race_seen_range(const ds_range_event *e) {
    for (uint32_t i = 1; e->kind == DS_RANGE_STREAM_LABEL && i < ds__race.lines; i++) {
        ds__race_line *l = ds__race.line[i];
        if (l->kind == DS__RACE_STREAM && l->number == e->id)
            ds__utf8_copy(l->name, sizeof l->name, e->text ? e->text : "");
    }
}

static void ds__race_seen(const ds__seen *seen) {
    /* also without memory: the thread may outlive the layer */
    if (seen->kind == DS__SEEN_BEGIN)
        ds__race_tls.inside++;
    else if (seen->kind == DS__SEEN_END)
        ds__race_tls.inside--;
    if (seen->kind == DS__SEEN_RACE || !ds__race_enter())
        return; /* a race is notified with the layer's lock */
    switch (seen->kind) {
    case DS__SEEN_ALLOC:
        ds__race_seen_alloc(seen);
        break;
    case DS__SEEN_FREE:
        ds__race_seen_free(seen);
        break;
    case DS__SEEN_USE:
        ds__race_seen_use(seen);
        break;
    case DS__SEEN_WAIT:
        ds__race_seen_wait(seen);
        break;
    case DS__SEEN_UNRECORDED:
        ds__race_seen_unrecorded(seen);
        break;
    case DS__SEEN_BEGIN:
        ds__race_seen_begin(seen);
        break;
    case DS__SEEN_CAPTURE:
        ds__race_captured_keep(seen);
        break;
    case DS__SEEN_CAPTURE_END:
        ds__race_captured_forget(seen);
        break;
    case DS__SEEN_RANGE:
        ds__race_seen_range(seen->range);
        break;
    case DS__SEEN_ACQUIRE:
        ds__race_task_run(seen->ptr, seen->stream);
        break;
    case DS__SEEN_RELEASE:
        ds__race_task_end();
        break;
    default:
        break;
    }
    ds__race_leave();
}

static ds__layer ds__check_layer = { .name = "check",
                                     .apply = ds__race_layer_apply,
                                     .observer = ds__race_seen,
                                     .configure = ds__race_configure };

/* check/api.h - the public functions of the layer.

   Invariants: a call that is permitted anywhere leaves the thread's site and last error as they
   were.
   Locks: ds__race.lock, for short steps.
   Threads: any. */

DSDEF void(ds_check_set_report_fn)(ds_hazard_fn fn, void *user) {
    ds__mutex_lock(&ds__race.lock);
    ds__race.report_fn = fn;
    ds__race.report_user = user;
    ds__mutex_unlock(&ds__race.lock);
}

DSDEF ds_result(ds_check_get_stats)(ds_check_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_check_get_stats");
    DS__REQUIRE(out, "out is NULL");
    /* also after the end of the checks for lack of memory */
    ds__mutex_lock(&ds__race.lock);
    if (atomic_load(&ds__race.on)) {
        *out = ds__race.stats;
        out->bytes = ds__race.bytes;
    }
    ds__mutex_unlock(&ds__race.lock);
    return DS_OK;
}

/* Takes the site of a call that is permitted anywhere. */
static void ds__race_call(const char *fn, const char **out_fn, ds_site *out_site) {
    *out_fn = ds__tls.fn;
    *out_site = ds__tls.site;
    ds__tls.fn = fn;
    ds__tls.site = ds__site_take(&ds__tls);
}

/* Checks an access of host code. */
static ds_result ds__race_host_access(const char *fn, const void *ptr, size_t bytes, unsigned how) {
    const char *outer;
    ds_site site;
    ds__race_call(fn, &outer, &site);
    ds__race_now now;
    if (ptr && bytes && ds__race_enter()) {
        ds__race_range r = ds__race_range_row(ptr, bytes);
        if (ds__race_host_now(&now))
            ds__race_access(&now, &r, how);
        ds__race_leave();
    }
    ds__tls.fn = outer;
    ds__tls.site = site;
    return DS_OK;
}

DSDEF ds_result(ds_check_host_read)(const void *ptr, size_t bytes) {
    return ds__race_host_access("ds_host_read", ptr, bytes, DS__RACE_READ);
}

DSDEF ds_result(ds_check_host_write)(const void *ptr, size_t bytes) {
    return ds__race_host_access("ds_host_write", ptr, bytes, DS__RACE_WRITE);
}

static ds_result ds__race_hand_over(const char *fn, const void *token,
                                    void (*step)(const void *token)) {
    const char *outer;
    ds_site site;
    ds__race_call(fn, &outer, &site);
    if (ds__race_enter()) {
        step(token);
        ds__race_leave();
    }
    ds__tls.fn = outer;
    ds__tls.site = site;
    return DS_OK;
}

DSDEF ds_result(ds_check_release)(const void *token) {
    return ds__race_hand_over("ds_check_release", token, ds__race_token_release);
}

DSDEF ds_result(ds_check_acquire)(const void *token) {
    return ds__race_hand_over("ds_check_acquire", token, ds__race_token_acquire);
}

/* Returns 1 if a handle is zero, which stands for the calling thread, or that of a stream.
   Otherwise the sentence is set. name: of the parameter. */
static int ds__race_stream_is_valid(ds_stream stream, const char *name) {
    ds__stream *s = stream.id ? ds__pin(&ds__g.streams, stream.id) : NULL;
    if (s)
        ds__stream_unpin(s);
    if (stream.id && !s)
        DS_IGNORE(
            ds__fail(DS_ERR_INVALID_HANDLE, "%s: the stream was destroyed or never existed", name));
    return !stream.id || s;
}

/* Returns the timeline of a stream, or of the calling thread for a zeroed handle. */
static ds__race_line *ds__race_line_of_point(ds_stream stream) {
    return stream.id ? ds__race_line_of_handle(stream) : ds__race_host();
}

DSDEF ds_result(ds_check_declare_order)(ds_stream from, ds_stream to) {
    DS__ENTER("ds_check_declare_order");
    if (!atomic_load(&ds__race.on))
        return DS_OK;
    if (!ds__race_stream_is_valid(from, "from") || !ds__race_stream_is_valid(to, "to"))
        return DS_ERR_INVALID_HANDLE;
    if (!ds__race_enter())
        return DS_OK;
    ds__race_line *a = ds__race_line_of_point(from);
    ds__race_line *b = ds__race_line_of_point(to);
    if (a && b) {
        b->n++;
        ds__race_line_wait(b, b->n, a, ds__race_place_of_call());
    }
    ds__race_leave();
    if (!a || !b)
        return ds__fail(DS_ERR_INVALID_HANDLE, "%s is not a stream that the layer knows",
                        a ? "to" : "from");
    return DS_OK;
}

DSDEF ds_result(ds_check_declare_memory)(const void *ptr, size_t bytes, const char *label) {
    DS__ENTER("ds_check_declare_memory");
    DS__REQUIRE(ptr && bytes, "the range is empty");
    DS__REQUIRE(bytes <= UINTPTR_MAX - (uintptr_t)ptr,
                "%zu bytes at %p end behind the address space; at most %zu are allowed", bytes, ptr,
                (size_t)(UINTPTR_MAX - (uintptr_t)ptr));
    if (!ds__race_enter())
        return DS_OK;
    ds__race_memory *m = ds__race_map_meet(&ds__race.alloc, (uintptr_t)ptr, bytes);
    int is_known = m && !m->dead;
    if (!is_known) {
        ds__race_memory *former = m && m->declared ? ds__race_memory_detach(m) : NULL;
        ds__race_memory *made = ds__race_memory_add(ptr, bytes, 0, label);
        if (made)
            made->declared = 1;
        if (made && former)
            ds__race_former_take(made, former);
        if (former)
            ds__race_memory_unwatch(former);
    }
    ds__race_leave();
    DS__REQUIRE(!is_known, "%zu bytes at %p overlap memory that is known", bytes, ptr);
    return DS_OK;
}

DSDEF ds_result(ds_check_forget_memory)(const void *ptr) {
    DS__ENTER("ds_check_forget_memory");
    if (!ds__race_enter())
        return DS_OK;
    ds__race_memory *m = ds__race_map_find(&ds__race.alloc, (uintptr_t)ptr);
    int is_declared = m && !m->dead && m->declared && m->base == (uintptr_t)ptr;
    if (is_declared)
        ds__race_memory_retire(m);
    ds__race_leave();
    DS__REQUIRE(is_declared, "%p is not the start of memory of ds_check_declare_memory", ptr);
    return DS_OK;
}

DSDEF ds_result(ds_check_ignore)(const void *ptr, size_t bytes) {
    DS__ENTER("ds_check_ignore");
    DS__REQUIRE(ptr && bytes, "the range is empty");
    if (!ds__race_enter())
        return DS_OK;
    uintptr_t at = (uintptr_t)ptr;
    ds__race_memory *m;
    while (bytes && (m = ds__race_memory_find(at)) != NULL) {
        size_t left = m->base + m->size - at;
        size_t size = bytes < left ? bytes : left;
        if (ds__race_array_reserve(&m->skip, sizeof *m->skip, m->skips, &m->skip_room))
            m->skip[m->skips++] = (ds__race_range){ at, size, size, 1 };
        at += size;
        bytes -= size;
    }
    ds__race_leave();
    return DS_OK;
}

DSDEF ds_result(ds_check_set_extents)(const ds_extent *extents, size_t count) {
    DS__ENTER("ds_check_set_extents");
    DS__REQUIRE(extents || !count, "extents is NULL");
    DS__REQUIRE(count <= DS_KERNEL_MAX_PARAMS, "%zu extents; at most %d are allowed", count,
                DS_KERNEL_MAX_PARAMS);
    for (size_t i = 0; i < count; i++) {
        ds_result r = ds__extent_check_form(&extents[i], i);
        if (r < 0)
            return r;
    }
    if (count)
        memcpy(ds__race_tls.extent, extents, count * sizeof *extents);
    ds__race_tls.extents = count;
    return DS_OK;
}

static ds_result ds__race_is_off(void) {
    return ds__fail(DS_ERR_ILLEGAL_STATE,
                    "the check layer is off; set DEVSTREAM_CHECK=1 or ds_init_desc.check");
}

DSDEF ds_result(ds_check_get_point)(ds_stream stream, ds_check_point *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_check_get_point");
    DS__REQUIRE(out, "out is NULL");
    if (!atomic_load(&ds__race.on))
        return ds__race_is_off();
    if (!ds__race_stream_is_valid(stream, "stream"))
        return DS_ERR_INVALID_HANDLE;
    if (!ds__race_enter())
        return ds__race_is_off();
    ds__race_line *l = ds__race_line_of_point(stream);
    if (l && !stream.id)
        l->n++;
    if (l)
        *out = (ds_check_point){ .line = l->index, .sequence = l->n };
    ds__race_leave();
    return l ? DS_OK : ds__fail(DS_ERR_INVALID_HANDLE, "the stream was destroyed or never existed");
}

/* Writes the chain of waits that orders two points, from the first one on. */
static void ds__race_why_print(ds__race_texts *t, const ds__race_reach *reach, ds_check_point a,
                               ds_check_point b) {
    char from[80];
    char to[80];
    uint32_t line = a.line;
    uint64_t n = a.sequence;
    for (int steps = 0; line != b.line && steps < 32; steps++) {
        const ds__race_edge *e = reach[line].next;
        if (!e)
            break;
        const ds__race_place *record = ds__race_place_get(e->from_place);
        const ds__race_place *wait = ds__race_place_get(e->to_place);
        ds__race_line_name(e->from, from, sizeof from);
        ds__race_line_name(e->to, to, sizeof to);
        ds__race_print(t, "operation %llu of %s comes before operation %llu of %s: ",
                       (unsigned long long)(n > e->from_n ? n : e->from_n), from,
                       (unsigned long long)e->to_n, to);
        if (record->file)
            ds__race_print(t, "recorded at %s:%d, ", ds__race_base_name(record->file),
                           record->line);
        ds__race_print(t, "%s at %s:%d\n", wait->operation, ds__race_base_name(wait->file),
                       wait->line);
        line = e->to;
        n = e->to_n;
    }
    if (line == b.line)
        ds__race_print(t, "operation %llu of %s comes before operation %llu: one timeline\n",
                       (unsigned long long)n, ds__race_line_name(line, from, sizeof from),
                       (unsigned long long)b.sequence);
}

/* Writes the answer of ds_check_why. Returns 1 if `a` is ordered before `b`. */
static int ds__race_why(ds__race_texts *t, ds_check_point a, ds_check_point b) {
    char from[80];
    char to[80];
    ds__race_reach *reach = ds__race_edges_reach(b.line, b.sequence);
    int ordered = reach && reach[a.line].n >= a.sequence;
    ds__race_line_name(a.line, from, sizeof from);
    ds__race_line_name(b.line, to, sizeof to);
    if (ordered) {
        ds__race_why_print(t, reach, a, b);
    } else {
        ds__race_print(t, "no wait orders operation %llu of %s before operation %llu of %s",
                       (unsigned long long)a.sequence, from, (unsigned long long)b.sequence, to);
        if (reach && reach[a.line].n)
            ds__race_print(t, "; ordered up to operation %llu",
                           (unsigned long long)reach[a.line].n);
        ds__race_print(t, "\n");
    }
    ds__race_reach_release(reach);
    return ordered;
}

DSDEF ds_result(ds_check_why)(ds_check_point a, ds_check_point b, char *text, size_t size) {
    if (text && size)
        *text = 0;
    DS__ENTER("ds_check_why");
    if (!ds__race_enter())
        return ds__race_is_off();
    int known = a.line && b.line && a.line < ds__race.lines && b.line < ds__race.lines;
    ds__race_texts t = { .size = 0 };
    int ordered = known && ds__race_why(&t, a, b);
    if (known && text && size)
        ds__utf8_copy(text, size, ds__race_text(&t));
    else if (known && !text)
        fputs(ds__race_text(&t), stderr);
    ds__race_leave();
    DS__REQUIRE(known, "%s is no point of ds_check_get_point", a.line ? "b" : "a");
    return ordered ? DS_OK : DS_NOT_READY;
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
