/* api/activity.h - activity records: when each operation ran.

   Declares the record of an operation (ds_activity), the functions that start and stop a recording,
   and the ids by which a profiler connects records with its own events.

   Threads: any. The callback is invoked on a thread of the library, one call at a time. */
#ifndef DS__API_ACTIVITY_H
#define DS__API_ACTIVITY_H

#include "stream.h"

/* ---- activity -------------------------------------------------------------------------------- */

/* While a recording runs, devstream writes a record for each operation that is enqueued on a stream
   of any device, and hands records over in batches. A profiler, a trace or a test learns from them
   when each operation began and ended, on which stream, and which call enqueued it.

   Times are nanoseconds of the host's monotonic clock (CLOCK_MONOTONIC). On CPU devices, the thread
   that runs the operation reads the clock. On CUDA, the driver records events with timing around
   the operation and compares them with the host's clock twice in a second: a begin is exact to
   some microseconds, and a duration includes the start of the operation on the GPU, up to some
   microseconds. The end of an operation on CUDA is that of the event behind it. Operations of one
   stream never overlap. While a trace takes times from CUPTI (devstream_trace.h), the records of
   kernels, fills and copies have these times, or zeros for both if CUPTI has lost its record.

   Without a recording, calls pay nothing. With one, an operation on a CPU device costs the caller
   50 to 70 ns more, and the thread that runs it some 90 ns; one on CUDA costs the enqueueing of two
   events. Small collectives that would run in the calling thread are enqueued instead. */

/** Kinds of operations. */
typedef enum ds_activity_kind {
    DS_ACTIVITY_NONE = 0,      /**< no operation */
    DS_ACTIVITY_KERNEL = 1,    /**< a kernel launch; `count` is the number of items or threads */
    DS_ACTIVITY_COPY = 2,      /**< a copy, or on CUDA a batch of copies */
    DS_ACTIVITY_FILL = 3,      /**< a fill */
    DS_ACTIVITY_HOST_FUNC = 4, /**< a host function, callback or closure */
    /** a record of an event; on CPU devices only of one with timing, as others are no operation */
    DS_ACTIVITY_RECORD = 5,
    /** a wait for an event or a stream: from when the stream comes to the wait to its end. A wait
        for work that is complete already may have no record. With a name: an operation between the
        ranks of a process group, from when the stream comes to it until its data is in place */
    DS_ACTIVITY_WAIT = 6,
    DS_ACTIVITY_VALUES = 7, /**< writes of words and waits for words; `count` is their number */
    /** a launch of an executable, from its first node to its last one; its nodes have no records */
    DS_ACTIVITY_GRAPH = 8
} ds_activity_kind;

/** The record of an operation. */
typedef struct ds_activity {
    ds_activity_kind kind; /**< kind of the operation */
    /** 0, or the failure of the stream, because of which the operation did not run or failed. A
        failed operation on CUDA has no times */
    ds_result result;
    ds_stream stream;  /**< stream of the operation: the handle of its creation */
    ds_device device;  /**< device of the stream */
    uint64_t begin_ns; /**< time at which the operation began */
    uint64_t end_ns;   /**< time at which it ended */
    /** time at which the call enqueued it; begin_ns is not earlier */
    uint64_t enqueue_ns;
    /** of a copy or fill, or that this rank moves in an operation between ranks; else 0 */
    uint64_t bytes;
    uint64_t count; /**< of a kernel or values, else 0 */
    /** number of the operation, from 1 in the order of enqueueing; unique in the process */
    uint64_t correlation_id;
    /** the id that the calling thread has pushed last (ds_activity_push_id), or 0 */
    uint64_t external_id;
    /** name of the kernel, or of the operation between ranks, as "all_reduce"; valid until
        ds_shutdown. Else NULL */
    const char *name;
    /** the public function that enqueued the operation, as "ds_copy" */
    const char *call;
    const char *file; /**< file of the call, or NULL */
    unsigned line;    /**< line of the call, or 0 */
    /** the system's number of the thread that called */
    uint32_t thread;
    /** of a copy or fill: the device of the destination, host for host memory. Zeroed if not known,
        and for other kinds */
    ds_device dst_device;
    ds_device src_device; /**< of a copy: the device of the source, likewise */
    /** of a wait: the correlation_id of the last operation, except records of events, that was
        enqueued on the awaited stream before the event was recorded or the wait was enqueued. 0:
        not known, as that operation has no record */
    uint64_t cause_id;
    uint64_t reserved[3]; /**< 0 */
} ds_activity;

/** Records that are handed over together, in the order in which they were written. Records of one
    stream are in the order of the stream. */
typedef struct ds_activity_batch {
    const ds_activity *records; /**< the records, valid until the callback returns */
    size_t count;               /**< number of records; may be 0 */
    /** operations since the last batch without a record, because the memory of the recording was
        full */
    uint64_t dropped;
    uint64_t reserved[4]; /**< 0 */
} ds_activity_batch;

/** Receives batches on a thread of the library, which must not call devstream, except for functions
    that are callable anywhere. Must not take a lock that is held around ds_activity_flush,
    ds_activity_stop or ds_shutdown. */
typedef void (*ds_activity_fn)(const ds_activity_batch *batch, void *user);

/** Parameters of ds_activity_start; zero means default. */
typedef struct ds_activity_desc {
    ds_activity_fn fn; /**< receives the records; must not be NULL */
    void *user;        /**< passed to fn */
    /** records that are kept until they are handed over, 16 to 2^24; 0: 16384. If they are full,
        operations have no records (ds_activity_batch.dropped). A batch is handed over when half of
        them are used, and ten times in a second. Two buffers of this size are allocated at once; on
        CUDA, at most this many operations can be pending with a record */
    size_t capacity;
    /** kinds to record: a bit 1u << DS_ACTIVITY_* for each; 0: all */
    unsigned kinds;
    uint64_t reserved[6]; /**< 0 */
} ds_activity_desc;

/** Starts a recording of all operations that are enqueued from now on, on all devices. Nodes of
    graphs have no records, and operations that are captured have none. Errors:
    DS_ERR_ILLEGAL_STATE: a recording runs already, or one starts or ends on another thread.
    DS_ERR_UNSUPPORTED: the CPU driver has a fabric (its operations take virtual time).
    DS_ERR_INVALID_VALUE: fn is NULL, a capacity or kinds outside of the range. While the
    trace layer records (devstream_trace.h), both share buffers of the greater capacity; the
    recording has the operations that are enqueued from its start on. */
DSDEF DS_MUST_USE ds_result ds_activity_start(const ds_activity_desc *desc);

/** Hands over the records of all operations that are complete, and returns when the callback has
    returned. Does not wait for operations. After a wait for a stream, its records are thus handed
    over. DS_ERR_ILLEGAL_STATE: no recording runs. */
DSDEF DS_MUST_USE ds_result ds_activity_flush(void);

/** Ends the recording: operations that are enqueued from now on have no records. Waits for the
    recorded operations (blocks), hands over all records, and frees the memory of the recording. The
    callback is not invoked after the call. ds_shutdown ends a recording, too. Does not count as a
    wait for ds_sync_debug_mode. DS_ERR_ILLEGAL_STATE: no recording runs. */
DSDEF DS_MUST_USE ds_result ds_activity_stop(void);

/** Pushes an id: operations that this thread enqueues until the matching pop have it as
    external_id. Also without a recording; costs a few nanoseconds. At most 64 ids can be pushed:
    then DS_ERR_ILLEGAL_STATE. Callable anywhere. */
DSDEF ds_result ds_activity_push_id(uint64_t id);

/** Pops the id that this thread has pushed last; out may be NULL. DS_ERR_ILLEGAL_STATE: no id is
    pushed. Callable anywhere. */
DSDEF ds_result ds_activity_pop_id(uint64_t *out);

/** Returns the name of a kind, as "kernel"; "unknown" for other numbers. Callable anywhere. */
DSDEF const char *ds_activity_kind_get_name(ds_activity_kind kind);

#endif
