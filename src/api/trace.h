/* api/trace.h - the trace layer: a timeline of streams and host threads.

   Declares the start and the end of a trace (ds_trace_start, ds_trace_stop), dumps and summaries.

   Threads: any. */
#ifndef DS__API_TRACE_H
#define DS__API_TRACE_H

#include "stream.h"
#include "site.h"

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

#endif
