/* api/capture.h - capture of stream work into graphs.

   Declares modes and states of a capture, and the functions that begin, end, query and change a
   capture. Both drivers follow the same rules, listed in docs/capture.md.

   Threads: any. The thread that began a capture must end it, unless its mode is relaxed. Each
   thread has its own mode, set by ds_capture_exchange_mode. */
#ifndef DS__API_CAPTURE_H
#define DS__API_CAPTURE_H

#include "graph.h"

/* ---- capture --------------------------------------------------------------------------------- */

/* While a stream captures, work enqueued on the stream becomes nodes of a graph and does not run. A
   stream that waits for an event recorded in the capture joins the capture (fork). The stream may
   belong to any device of the driver. Before the end of the capture, waits on the origin stream
   must join all forked streams.

   A call that is not allowed invalidates the capture. Later calls on its streams return
   DS_ERR_CAPTURE_INVALIDATED until ds_capture_end; its error names the first such call.
   docs/capture.md has the table of allowed calls. */

/** Scope in which an open capture forbids unsafe calls. The values and rules are CUDA's
    (cudaStreamCaptureMode). Unsafe calls may wait for the device or use the legacy stream:
    ds_device_alloc, ds_device_free, ds_pinned_alloc, ds_pinned_free, ds_pinned_register,
    ds_pinned_unregister, ds_device_synchronize. If a stream of the device captures,
    ds_device_synchronize and ds_device_reset fail in every mode. */
typedef enum ds_capture_mode {
    /** in every thread with global mode (initial mode of a thread) */
    DS_CAPTURE_GLOBAL = 0,
    DS_CAPTURE_THREAD_LOCAL = 1, /**< in the thread that began the capture */
    DS_CAPTURE_RELAXED = 2       /**< in no thread; any thread may end the capture */
} ds_capture_mode;

/** Capture state of a stream. */
typedef enum ds_capture_status {
    DS_CAPTURE_NONE = 0,   /**< the stream does not capture */
    DS_CAPTURE_ACTIVE = 1, /**< the stream captures */
    /** a call has invalidated the capture; it must be ended */
    DS_CAPTURE_INVALIDATED = 2
} ds_capture_status;

/** Result of ds_capture_get_info. */
typedef struct ds_capture_info {
    ds_capture_status status; /**< other members are 0 unless DS_CAPTURE_ACTIVE */
    ds_capture_mode mode;     /**< mode of ds_capture_begin */
    uint64_t id;              /**< number of the capture, unique in the process and never reused */
    ds_graph graph;           /**< the graph under construction; nodes may be added to it */
    size_t dependency_count;  /**< number of dependencies of the stream's next node */
    ds_site begun;            /**< call site of ds_capture_begin */
    uint64_t reserved[4];     /**< 0 */
} ds_capture_info;

/** Begins a capture on the stream. On CUDA, may block for up to 0.1 s while another thread waits
    for a device in ds_device_free, ds_pinned_free or ds_pinned_unregister; such a wait would
    invalidate the capture. Errors: DS_ERR_CAPTURE_UNSUPPORTED (legacy stream), DS_ERR_ILLEGAL_STATE
    (the stream already captures; its capture continues). */
DSDEF DS_MUST_USE ds_result ds_capture_begin(ds_stream stream, ds_capture_mode mode);
/** Begins a capture into an existing graph; the first node depends on `dependencies`.
    ds_capture_end returns the same graph. If the capture fails, its nodes remain in the graph;
    a GPU may refuse to instantiate or clone that graph (DS_ERR_INVALID_VALUE). CUDA: 12.3 or newer.
    DS_ERR_CROSS_DRIVER: a graph of another driver. */
DSDEF DS_MUST_USE ds_result ds_capture_begin_to_graph(ds_stream stream, ds_graph graph,
                                                      const ds_graph_node *dependencies,
                                                      size_t count, ds_capture_mode mode);
/** Ends the capture begun on the stream and returns its graph. The caller must destroy the graph.
    Errors that leave the capture open: DS_ERR_ILLEGAL_STATE (the stream does not capture),
    DS_ERR_CAPTURE_UNMATCHED (the stream was forked into the capture; the capture is now invalid).
    Errors that end the capture without a graph: DS_ERR_CAPTURE_INVALIDATED,
    DS_ERR_CAPTURE_UNJOINED, DS_ERR_CAPTURE_WRONG_THREAD (unless relaxed). */
DSDEF DS_MUST_USE ds_result ds_capture_end(ds_stream stream, ds_graph *out);
/** Ends the capture begun on the stream by ds_capture_begin, and replaces the work of `graph` by
    the captured work: a recapture, as cudaStreamBeginRecaptureToGraph of CUDA 13.3, but with any
    CUDA. The captured nodes must have the number, the kinds and the dependencies of the graph's
    nodes, in the same order; their parameters may differ. Handles of the graph's nodes stay valid.
    Executables keep their work until ds_graph_exec_update. Errors are those of ds_capture_end, and
    DS_ERR_GRAPH_UPDATE: the work does not fit. In each case the capture is over if ds_capture_end
    would have ended it, and the graph is unchanged. */
DSDEF DS_MUST_USE ds_result ds_capture_end_recapture(ds_stream stream, ds_graph graph);
/** Returns the capture state of the stream without changing it. DS_ERR_CAPTURE_IMPLICIT: the legacy
    stream, while a blocking stream of the device captures. */
DSDEF DS_MUST_USE ds_result ds_capture_get_status(ds_stream stream, ds_capture_status *out);
/** Returns the capture state of the stream and the properties of the capture. Errors as for
    ds_capture_get_status. */
DSDEF DS_MUST_USE ds_result ds_capture_get_info(ds_stream stream, ds_capture_info *out);
/** Writes the dependencies of the stream's next node, at most `room` nodes. *out_count is their
    total number. DS_ERR_ILLEGAL_STATE: the stream does not capture. */
DSDEF DS_MUST_USE ds_result ds_capture_get_dependencies(ds_stream stream, ds_graph_node *out,
                                                        size_t room, size_t *out_count);

enum {
    DS_CAPTURE_ADD_DEPENDENCIES = 0, /**< adds to the present dependencies */
    /** replaces the present dependencies; removed nodes need not be joined */
    DS_CAPTURE_SET_DEPENDENCIES = 1
};

/** Adds or replaces the dependencies of the stream's next node. DS_ERR_ILLEGAL_STATE: the stream
    does not capture. */
DSDEF DS_MUST_USE ds_result ds_capture_update_dependencies(ds_stream stream,
                                                           const ds_graph_node *nodes, size_t count,
                                                           unsigned how);
/** Exchanges the calling thread's mode, initially DS_CAPTURE_GLOBAL. A thread-local thread obeys
    its own captures only, a relaxed thread no captures. Exchange again to restore the mode
    (cudaThreadExchangeStreamCaptureMode). */
DSDEF DS_MUST_USE ds_result ds_capture_exchange_mode(ds_capture_mode *mode);
/** Enqueues work on the stream. A negative result ends the capture. */
typedef ds_result (*ds_capture_fn)(ds_stream stream, void *user);
/** Captures the work that fn(stream, user) enqueues on the stream. Uses the thread-local mode:
    other threads are not restricted. If fn fails, ends the capture and returns the result of fn.
    The stream never captures after the call. ds_error_get_last has the error of the call that
    failed inside fn, or names the result of fn. */
DSDEF DS_MUST_USE ds_result ds_capture_function(ds_stream stream, ds_capture_fn fn, void *user,
                                                ds_graph *out);

#endif
