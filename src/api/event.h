/* api/event.h - events.

   Declares events and the functions that record, query and time them, wait for them, and share
   them between processes.

   Threads: any. The functions with "synchronize" in their names block the calling thread. */
#ifndef DS__API_EVENT_H
#define DS__API_EVENT_H

#include "stream.h"

/* ---- events ---------------------------------------------------------------------------------- */

/** An event: a point in a stream's work. Zeroed: none. */
typedef struct ds_event {
    uint64_t id; /**< index and generation; 0: none */
} ds_event;

enum {
    DS_EVENT_DEFAULT = 0, /**< no timing: the cheapest */
    DS_EVENT_TIMING = 1,  /**< keeps the time at which the record is reached */
    /** ds_event_synchronize sleeps at once instead of spinning first */
    DS_EVENT_BLOCKING_WAIT = 2,
    /** may be shared between processes (ds_event_export); not with DS_EVENT_TIMING. On CPU
        devices a process can have 65,536 that were recorded or exported: of one more the first
        record or export is DS_ERR_LIMIT_EXCEEDED */
    DS_EVENT_INTERPROCESS = 4,
    DS_EVENT_CUPY = 1 /**< CuPy's default: timing on */
};

/** Creates an event; it belongs to no device until it is recorded. label may be NULL; it is
    copied. DS_ERR_INVALID_VALUE: an interprocess event with timing. */
DSDEF DS_MUST_USE ds_result ds_event_create(unsigned flags, const char *label, ds_event *out);
/** The handle becomes invalid; streams that wait for the event still do. Returns at once. Graphs
    keep the events of their nodes. */
DSDEF DS_MUST_USE ds_result ds_event_destroy(ds_event event);
/** Marks the present end of the stream's work. A later record replaces it for later waits only.
    The first record binds the event to the stream's device; recording on another one is
    DS_ERR_DEVICE_MISMATCH. */
DSDEF DS_MUST_USE ds_result ds_event_record(ds_event event, ds_stream stream);
/** Creates an event with these flags and records it on the stream; it is the caller's to
    destroy. */
DSDEF DS_MUST_USE ds_result ds_stream_record_event(ds_stream stream, unsigned flags, ds_event *out);
/** Later work on the stream starts after the event's record as of this call, whatever is
    recorded afterwards. The stream may be on another device of the same driver; one of another
    driver is DS_ERR_CROSS_DRIVER. An unrecorded event is complete. Returns at once. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_event(ds_stream stream, ds_event event);
/** Later work on the stream starts after all work put on `other` before this call. Needs no
    event; returns at once. A stream of another driver is DS_ERR_CROSS_DRIVER. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_stream(ds_stream stream, ds_stream other);
/** As ds_event_record, but on a capturing stream it becomes a node of the graph, and each launch
    records the event (as of the launch: who waits for it after that call waits for this launch's
    record). */
DSDEF DS_MUST_USE ds_result ds_event_record_external(ds_event event, ds_stream stream);
/** As ds_stream_wait_event, but on a capturing stream it becomes a node of the graph: each
    launch waits for the event's record as of the launch. DS_ERR_CROSS_DRIVER: an event of
    another driver, here too. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_event_external(ds_stream stream, ds_event event);
/** DS_OK when the record is reached (or there is none), DS_NOT_READY, or DS_ERR_FAILED. Never
    blocks. */
DSDEF DS_MUST_USE ds_result ds_event_query(ds_event event);
/** Blocks until the record as of the call is reached; see ds_stream_synchronize. */
DSDEF DS_MUST_USE ds_result ds_event_synchronize(ds_event event);
/** As ds_event_synchronize, for at most timeout_ns nanoseconds; then DS_NOT_READY. */
DSDEF DS_MUST_USE ds_result ds_event_synchronize_for(ds_event event, uint64_t timeout_ns);
/** Milliseconds from one record to another, negative when they are the other way round. Checked
    in torch's order: both with timing (DS_ERR_NO_TIMING), both recorded (DS_ERR_NOT_RECORDED),
    both reached (DS_NOT_READY), same device (DS_ERR_DEVICE_MISMATCH). CPU driver: nanosecond
    clock, read when the stream reaches the record. */
DSDEF DS_MUST_USE ds_result ds_event_get_elapsed_ms(ds_event start, ds_event end, double *out_ms);
/** The device of the first record; a zeroed device before it. */
DSDEF DS_MUST_USE ds_result ds_event_get_device(ds_event event, ds_device *out);
/** The flags it was created with. */
DSDEF DS_MUST_USE ds_result ds_event_get_flags(ds_event event, unsigned *out);

/** An event for other processes: bytes to send to them. */
typedef struct ds_ipc_event_handle {
    unsigned char bytes[64]; /**< of meaning to ds_event_import only */
} ds_ipc_event_handle;

/** Writes the handle with which other processes import the event; as often as wanted, always the
    same bytes. An event that was never recorded belongs to the thread's current device from now
    on. It must live as long as others use it. DS_ERR_INVALID_VALUE: it was created without
    DS_EVENT_INTERPROCESS, or it was imported itself. */
DSDEF DS_MUST_USE ds_result ds_event_export(ds_event event, ds_ipc_event_handle *out);
/** Makes an event of another process's handle, on a device of the same kind; it can be recorded,
    waited for, asked and synchronized with like the process's own, and is destroyed here like
    one. Every process sees the latest record of any. What a wait means is fixed at its call, in
    all processes. If the process that made a record ends before its stream came to it (and only
    then), waits for that record are over with DS_ERR_PEER_DIED: a stream that waits has failed
    with it, like after a failure of its own work, until ds_device_reset or its end; other
    streams go on. That is so on CPU devices; what CUDA does then is not documented.
    DS_ERR_PEER_DIED: the exporting process has ended. DS_ERR_INVALID_HANDLE: it has destroyed
    the event. DS_ERR_ILLEGAL_STATE: it is this process. */
DSDEF DS_MUST_USE ds_result ds_event_import(ds_device device, const ds_ipc_event_handle *handle,
                                            ds_event *out);

#endif
