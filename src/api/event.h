/* api/event.h - events.

   Declares events and the functions that record, query and time them, wait for them, and share them
   between processes.

   Threads: any. The functions with "synchronize" in their names block the calling thread. */
#ifndef DS__API_EVENT_H
#define DS__API_EVENT_H

#include "stream.h"

/* ---- events ---------------------------------------------------------------------------------- */

/** An event: a point in a stream's work. A zeroed handle names no event. */
typedef struct ds_event {
    uint64_t id; /**< index and generation; 0: none */
} ds_event;

enum {
    DS_EVENT_DEFAULT = 0, /**< without timing: the cheapest */
    DS_EVENT_TIMING = 1,  /**< stores the time at which the stream reaches the record */
    /** ds_event_synchronize sleeps at once instead of spinning first */
    DS_EVENT_BLOCKING_WAIT = 2,
    /** can be shared between processes (ds_event_export); excludes DS_EVENT_TIMING. On CPU devices,
        a process can record or export at most 65,536 such events. DS_ERR_LIMIT_EXCEEDED: the first
        record or export of a further event. */
    DS_EVENT_INTERPROCESS = 4,
    DS_EVENT_CUPY = 1 /**< CuPy's default: with timing */
};

/** Creates an event. The first record binds it to a device. label is copied and may be NULL.
    DS_ERR_INVALID_VALUE: DS_EVENT_INTERPROCESS with DS_EVENT_TIMING. */
DSDEF DS_MUST_USE ds_result ds_event_create(unsigned flags, const char *label, ds_event *out);
/** Creates an event that belongs to a device from the start: a record on a stream of another device
    is refused (DS_ERR_DEVICE_MISMATCH), and ds_event_get_device has an answer before the first
    record. A zeroed device is the current one. Other rules as for ds_event_create. */
DSDEF DS_MUST_USE ds_result ds_event_create_on(ds_device device, unsigned flags, const char *label,
                                               ds_event *out);
/** Destroys an event; the handle becomes invalid. Streams still wait for earlier records. Does not
    block. Graphs keep the events of their nodes. Deferred in user code. */
DSDEF DS_MUST_USE ds_result ds_event_destroy(ds_event event);
/** Records the end of the work enqueued on the stream so far. A new record replaces the old one for
    later waits only. The first record binds the event to the stream's device.
    DS_ERR_DEVICE_MISMATCH: a stream of another device. */
DSDEF DS_MUST_USE ds_result ds_event_record(ds_event event, ds_stream stream);
/** Creates an event with the flags and records it on the stream. The caller must destroy it. */
DSDEF DS_MUST_USE ds_result ds_stream_record_event(ds_stream stream, unsigned flags, ds_event *out);
/** Makes later work on the stream wait for the event's record as of this call. Later records do not
    affect this wait. An event that was never recorded is complete. The stream may belong to another
    device of the same driver. Does not block. DS_ERR_CROSS_DRIVER: a stream of another driver. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_event(ds_stream stream, ds_event event);
/** Makes later work on the stream wait for all work enqueued on `other` before the call. Does not
    block. DS_ERR_CROSS_DRIVER: a stream of another driver. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_stream(ds_stream stream, ds_stream other);
/** Records the event as ds_event_record does; on a capturing stream, adds a record node to the
    graph instead. Each launch records the event: a wait enqueued after a launch waits for that
    launch's record. */
DSDEF DS_MUST_USE ds_result ds_event_record_external(ds_event event, ds_stream stream);
/** Waits as ds_stream_wait_event does; on a capturing stream, adds a wait node to the graph
    instead. Each launch waits for the event's record as of the launch. DS_ERR_CROSS_DRIVER: an
    event of another driver. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_event_external(ds_stream stream, ds_event event);
/** Returns DS_OK if the stream has reached the record or the event was never recorded. Returns
    DS_NOT_READY if work is pending, DS_ERR_FAILED after a failure. Does not block. */
DSDEF DS_MUST_USE ds_result ds_event_query(ds_event event);
/** Waits (blocks) until the stream reaches the event's record as of the call. The calling thread
    may run work as in ds_stream_synchronize. */
DSDEF DS_MUST_USE ds_result ds_event_synchronize(ds_event event);
/** Waits as ds_event_synchronize does, for at most timeout_ns nanoseconds. Returns DS_NOT_READY
    after that time. */
DSDEF DS_MUST_USE ds_result ds_event_synchronize_for(ds_event event, uint64_t timeout_ns);
/** Returns the milliseconds between two records; negative if end was reached before start. Checks
    in torch's order: both with timing (DS_ERR_NO_TIMING), both recorded (DS_ERR_NOT_RECORDED), both
    reached (DS_NOT_READY), same device (DS_ERR_DEVICE_MISMATCH). CPU driver: nanosecond clock, read
    when the stream reaches the record. */
DSDEF DS_MUST_USE ds_result ds_event_get_elapsed_ms(ds_event start, ds_event end, double *out_ms);
/** Returns the device of the first record; a zeroed device if the event was never recorded. */
DSDEF DS_MUST_USE ds_result ds_event_get_device(ds_event event, ds_device *out);
/** Returns the flags of the event's creation. */
DSDEF DS_MUST_USE ds_result ds_event_get_flags(ds_event event, unsigned *out);

/** Handle of an event for other processes: bytes that can be sent to them. */
typedef struct ds_ipc_event_handle {
    unsigned char bytes[64]; /**< opaque; read by ds_event_import only */
} ds_ipc_event_handle;

/** Writes the handle by which other processes import the event. Repeated calls write the same
    bytes. An event that was never recorded is bound to the thread's current device. The event must
    live as long as other processes use it. DS_ERR_INVALID_VALUE: the event was created without
    DS_EVENT_INTERPROCESS or was imported. */
DSDEF DS_MUST_USE ds_result ds_event_export(ds_event event, ds_ipc_event_handle *out);
/** Imports an event of another process, on a device of the same type. The event supports records,
    waits, queries and synchronization, and must be destroyed in this process. Every process sees
    the latest record of all processes; a wait takes the record as of its call.

    CPU devices: if a process ends before its stream reaches its record, waits for that record end
    with DS_ERR_PEER_DIED. A waiting stream then has failed until ds_device_reset or its
    destruction; other streams continue. CUDA does not document this case.

    CUDA devices: if a record replaces one that is still pending on another stream, waits in other
    processes may take until both are reached (H200, driver 580).

    Errors: DS_ERR_PEER_DIED (the exporting process has ended), DS_ERR_INVALID_HANDLE (the event was
    destroyed), DS_ERR_ILLEGAL_STATE (the event was exported by this process). */
DSDEF DS_MUST_USE ds_result ds_event_import(ds_device device, const ds_ipc_event_handle *handle,
                                            ds_event *out);

#endif
