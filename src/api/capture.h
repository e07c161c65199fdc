/* api/capture.h - capture of stream work into graphs.

   Declares modes and states of a capture, and the functions that begin, end, query and change
   one. Both drivers follow the same rules, which docs/capture.md lists.

   Threads: any. A capture must be ended by the thread that began it, unless its mode is relaxed.
   Each thread has a mode of its own, set by ds_capture_exchange_mode. */
#ifndef DS__API_CAPTURE_H
#define DS__API_CAPTURE_H

#include "graph.h"

/* ---- capture --------------------------------------------------------------------------------- */

/* While a stream captures, what is put on it becomes nodes of a graph and does not run. Waiting
   for an event that was recorded in the capture brings a stream into it (fork), on any device of
   the driver; before the end all such streams must be joined, by waits on the stream where it
   began. A call that does not fit invalidates the capture: from then on everything on its
   streams is DS_ERR_CAPTURE_INVALIDATED until ds_capture_end, whose sentence names the first
   such call. docs/capture.md has the table. */

/** Which calls of other kinds an open capture forbids; the numbers are CUDA's. Such calls are
    those that may wait for the device or touch the legacy stream: ds_device_alloc, ds_device_free,
    ds_pinned_alloc, ds_pinned_free, ds_pinned_register, ds_pinned_unregister,
    ds_device_synchronize. (ds_device_synchronize and ds_device_reset of a device with a stream that
    captures are refused in every mode.) */
typedef enum ds_capture_mode {
    DS_CAPTURE_GLOBAL = 0,       /**< in every thread whose own mode is global, as it is at first */
    DS_CAPTURE_THREAD_LOCAL = 1, /**< in the thread that began the capture */
    DS_CAPTURE_RELAXED = 2       /**< nowhere; and any thread may end the capture */
} ds_capture_mode;

/** Whether a stream captures. */
typedef enum ds_capture_status {
    DS_CAPTURE_NONE = 0,   /**< it does not */
    DS_CAPTURE_ACTIVE = 1, /**< it does */
    /** it did, until a call that did not fit; the capture must be ended */
    DS_CAPTURE_INVALIDATED = 2
} ds_capture_status;

/** What ds_capture_get_info tells. */
typedef struct ds_capture_info {
    ds_capture_status status; /**< the rest is 0 unless it is DS_CAPTURE_ACTIVE */
    ds_capture_mode mode;     /**< as it was begun */
    uint64_t id;              /**< a number that no other capture of this process ever had */
    ds_graph graph;           /**< the graph that is being made; nodes may be added to it by hand */
    size_t dependency_count;  /**< nodes after which the stream's next one will start */
    ds_site begun;            /**< where the capture began */
    uint64_t reserved[4];     /**< 0 */
} ds_capture_info;

/** Begins a capture. The legacy stream cannot capture: DS_ERR_CAPTURE_UNSUPPORTED. A stream that
    captures already: DS_ERR_ILLEGAL_STATE, and that capture goes on. On CUDA it may block for 0.1 s
    while another thread waits for a device in ds_device_free, ds_pinned_free or
    ds_pinned_unregister, since that wait would invalidate the capture. */
DSDEF DS_MUST_USE ds_result ds_capture_begin(ds_stream stream, ds_capture_mode mode);
/** As ds_capture_begin, into a graph that is there; the first node will start after
    `dependencies`. ds_capture_end gives the same graph; if the capture fails, the nodes that it
    added stay. On CUDA it needs 12.3. DS_ERR_CROSS_DRIVER: a graph of the other driver. */
DSDEF DS_MUST_USE ds_result ds_capture_begin_to_graph(ds_stream stream, ds_graph graph,
                                                      const ds_graph_node *dependencies,
                                                      size_t count, ds_capture_mode mode);
/** Ends the capture that began on this stream and gives its graph, which is the caller's. Errors
    that leave the capture open: DS_ERR_ILLEGAL_STATE (the stream does not capture),
    DS_ERR_CAPTURE_UNMATCHED (it was forked into the capture, which is invalid now),
    DS_ERR_CAPTURE_WRONG_THREAD (unless relaxed). Errors that end it without a graph:
    DS_ERR_CAPTURE_INVALIDATED, DS_ERR_CAPTURE_UNJOINED. */
DSDEF DS_MUST_USE ds_result ds_capture_end(ds_stream stream, ds_graph *out);
/** Whether the stream captures; never changes anything. On the legacy stream while a blocking
    stream of the device captures: DS_ERR_CAPTURE_IMPLICIT. */
DSDEF DS_MUST_USE ds_result ds_capture_get_status(ds_stream stream, ds_capture_status *out);
/** The same with all that is known of the capture. */
DSDEF DS_MUST_USE ds_result ds_capture_get_info(ds_stream stream, ds_capture_info *out);
/** Writes the nodes after which the stream's next one will start, at most room of them;
    *out_count is how many there are. DS_ERR_ILLEGAL_STATE when the stream does not capture. */
DSDEF DS_MUST_USE ds_result ds_capture_get_dependencies(ds_stream stream, ds_graph_node *out,
                                                        size_t room, size_t *out_count);

enum {
    DS_CAPTURE_ADD_DEPENDENCIES = 0, /**< besides those there are */
    /** instead of them; nodes that go this way need not be joined */
    DS_CAPTURE_SET_DEPENDENCIES = 1
};

/** Changes after which nodes of the capture's graph the stream's next one will start.
    DS_ERR_ILLEGAL_STATE when the stream does not capture. */
DSDEF DS_MUST_USE ds_result ds_capture_update_dependencies(ds_stream stream,
                                                           const ds_graph_node *nodes, size_t count,
                                                           unsigned how);
/** Exchanges the calling thread's mode, DS_CAPTURE_GLOBAL at first: a thread that is
    thread-local cares for its own captures only, a relaxed one for none. Exchange again to
    restore it. */
DSDEF DS_MUST_USE ds_result ds_capture_exchange_mode(ds_capture_mode *mode);
/** Puts work on the stream; returns a negative result to give up. */
typedef ds_result (*ds_capture_fn)(ds_stream stream, void *user);
/** Captures what fn(stream, user) puts on the stream, thread-local: calls that would spoil the
    capture are refused in this thread and other threads are left alone. If fn fails the capture
    is ended and its result returned; the stream is as before in any case. ds_error_get_last is then
    the sentence of the call that failed inside of fn, or names the result of fn. */
DSDEF DS_MUST_USE ds_result ds_capture_function(ds_stream stream, ds_capture_fn fn, void *user,
                                                ds_graph *out);

#endif
