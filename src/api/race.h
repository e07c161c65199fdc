/* api/race.h - the check layer: races between streams, and errors of lifetime.

   Declares the reports of the layer (ds_hazard_report), its statistics, and the functions by which
   a program declares accesses and orders that devstream does not see.

   Threads: any. */
#ifndef DS__API_RACE_H
#define DS__API_RACE_H

#include "stream.h"
#include "kernel.h"
#include "site.h"

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

#endif
