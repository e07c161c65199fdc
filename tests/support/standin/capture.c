/* Capture: streams whose work becomes nodes of a graph, and what may not be done meanwhile.

   A capture begins in one stream, its origin; others join it by waiting for an event that was
   recorded in it. An invalid operation invalidates it; it stays open, of no use to anybody,
   until it is ended in its origin. Where CUDA's documentation leaves open whether an error
   invalidates, it does. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

struct capture {
    unsigned long long id, thread; /* the thread that began it */
    enum cudaStreamCaptureMode mode;
    stream *origin, *members; /* NULL: it is over */
    graph *graph;
    int own_graph; /* made for it */
    int invalid;
    /* taken out of a stream's dependencies: they need not be joined */
    nodes excused;
    nodes lost;    /* ends of streams that were destroyed: they must be joined */
    unsigned refs; /* while it is open, and of events */
    capture *next;
};

static capture *open_captures;
static unsigned long long next_id = 1, next_thread = 1;
atomic_int si_captures;

static void unref(capture *c) {
    if (--c->refs)
        return;
    si_nodes_free(&c->excused);
    si_nodes_free(&c->lost);
    free(c);
}

static int is_open(const capture *c) {
    return c->members != NULL;
}

static void invalidate(capture *c) {
    c->invalid = 1;
}

static void join(capture *c, stream *s, const nodes *deps) {
    s->capture = c;
    s->next_member = c->members;
    c->members = s;
    si_nodes_set(&s->deps, deps);
}

static void leave(stream *s) {
    stream **at = &s->capture->members;
    while (*at != s)
        at = &(*at)->next_member;
    *at = s->next_member;
    s->capture = NULL;
    s->deps.count = 0;
}

/* All its streams leave it.  What becomes of the graph is the caller's business. */
static void close_capture(capture *c) {
    capture **at = &open_captures;
    while (c->members)
        leave(c->members);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    si_graph_capturing(c->graph, 0);
    c->origin = NULL;
    atomic_fetch_sub(&si_captures, 1);
}

static void drop_graph(capture *c) {
    if (c->own_graph)
        si_free_graph(c->graph);
    else
        si_graph_spoil(c->graph);
}

/* A stream of the capture on the device; blocking: one that takes turns with the legacy stream. */
static int has_member(const capture *c, int index, int blocking) {
    for (const stream *s = c->members; s; s = s->next_member)
        if (s->device == index && (s->blocking || !blocking))
            return 1;
    return 0;
}

static int is_legacy(const stream *s) {
    return s == &si_devices[s->device].legacy;
}

/* "the legacy stream is in an unusable state until the blocking stream capture is terminated" */
static int legacy_use(const stream *s, int look) {
    int code = 0;
    for (capture *c = open_captures; c; c = c->next)
        if (has_member(c, s->device, 1)) {
            if (!look)
                invalidate(c);
            code = cudaErrorStreamCaptureImplicit;
        }
    return code;
}

/* ---- what streams, events and unsafe calls do ---- */

int si_capture_enqueue(stream *s) {
    if (is_legacy(s))
        return legacy_use(s, 0);
    return s->capture && s->capture->invalid ? cudaErrorStreamCaptureInvalidated : 0;
}

int si_capture_refuse(stream *s) {
    int code = si_capture_enqueue(s);
    if (code || !s->capture)
        return code;
    invalidate(s->capture);
    return cudaErrorStreamCaptureUnsupported;
}

/* Unlike work, a query or wait has the same code in an invalid capture (H200, driver 580). */
int si_capture_ask(stream *s) {
    if (is_legacy(s))
        return legacy_use(s, 0);
    if (!s->capture)
        return 0;
    invalidate(s->capture);
    return cudaErrorStreamCaptureUnsupported;
}

/* Whether the calling thread's mode and the capture's forbid an unsafe call. */
static int forbids(const capture *c) {
    if (si_me.mode == cudaStreamCaptureModeRelaxed)
        return 0;
    if (si_me.number && c->thread == si_me.number)
        return c->mode != cudaStreamCaptureModeRelaxed;
    return si_me.mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal;
}

static int unsafe(int index) {
    int code = 0;
    for (capture *c = open_captures; c; c = c->next)
        if (forbids(c) || (index >= 0 && has_member(c, index, 0))) {
            invalidate(c);
            code = cudaErrorStreamCaptureUnsupported;
        }
    return code;
}

int si_capture_unsafe(void) {
    return unsafe(-1);
}

int si_capture_synchronize(int index) {
    return unsafe(index);
}

graph *si_capture_graph(const stream *s) {
    return s->capture->graph;
}

void si_capture_node(stream *s, node *n) {
    s->deps.count = 0;
    si_nodes_add(&s->deps, n);
}

void si_capture_forget(event *e) {
    if (e->capture)
        unref(e->capture);
    e->capture = NULL;
    si_nodes_free(&e->deps);
}

void si_capture_record(event *e, stream *s) {
    s->capture->refs++;
    if (e->record)
        si_unref(e->record);
    e->record = NULL;
    si_capture_forget(e);
    e->capture = s->capture;
    si_nodes_set(&e->deps, &s->deps);
}

/* H200, driver 580 (docs/gpu, P7 and P13): an event of a capture that is over has a code of its
   own. */
int si_capture_look(event *e) {
    if (!e->capture)
        return 0;
    if (!is_open(e->capture))
        return cudaErrorInvalidValue;
    invalidate(e->capture);
    return cudaErrorCapturedEvent;
}

int si_capture_elapsed(const event *e) {
    if (!e->capture)
        return 0;
    return is_open(e->capture) ? cudaErrorCapturedEvent : cudaErrorInvalidValue;
}

/* A stream that does not capture joins the event's capture. */
static int fork_into(stream *s, event *e) {
    capture *c = e->capture;
    if (is_legacy(s)) {
        invalidate(c);
        return cudaErrorStreamCaptureImplicit;
    }
    if (c->invalid)
        return cudaErrorInvalidValue; /* P25 */
    join(c, s, &e->deps);
    return 0;
}

int si_capture_wait(stream *s, event *e, int *done) {
    capture *mine = s->capture, *other = e->capture;
    *done = mine || other;
    if (!mine && !other)
        return 0;
    if (!mine)
        return is_open(other) ? fork_into(s, e) : cudaErrorInvalidValue; /* P7 */
    if (!other && !e->record && !si_ipc_is_recorded(e))
        return 0;
    if (mine == other) {
        for (size_t i = 0; i < e->deps.count; i++)
            si_nodes_add(&s->deps, e->deps.at[i]);
        return 0;
    }
    invalidate(mine);
    if (!other)
        return cudaErrorStreamCaptureIsolation;
    if (!is_open(other))
        return cudaErrorInvalidValue;
    invalidate(other);
    return cudaErrorStreamCaptureMerge;
}

/* Without its origin nobody could end it. NVIDIA's sample graphMemoryNodes destroys a stream that
   was joined, checks all its calls, and launches the graph. A stream that was not joined leaves the
   capture active; its end says "unjoined" (P14). */
void si_capture_lose(stream *s) {
    capture *c = s->capture;
    if (!c)
        return;
    if (s != c->origin) {
        for (size_t i = 0; i < s->deps.count; i++)
            si_nodes_add(&c->lost, s->deps.at[i]);
        leave(s);
        return;
    }
    invalidate(c);
    close_capture(c);
    drop_graph(c);
    unref(c);
}

int si_capture_status(stream *s, enum cudaStreamCaptureStatus *status) {
    if (is_legacy(s)) {
        int code = legacy_use(s, 1);
        if (code)
            return code;
    }
    *status = !s->capture           ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return 0;
}

size_t si_capture_count(void) {
    size_t n = 0;
    for (capture *c = open_captures; c; c = c->next)
        n++;
    return n;
}

/* ---- the runtime's functions ---- */

static int is_mode(enum cudaStreamCaptureMode mode) {
    return (unsigned)mode <= (unsigned)cudaStreamCaptureModeRelaxed;
}

static int check_begin(const stream *s, enum cudaStreamCaptureMode mode) {
    int code = sticky(s->device);
    if (code)
        return code;
    if (!is_mode(mode))
        return cudaErrorInvalidValue;
    if (is_legacy(s))
        return cudaErrorStreamCaptureUnsupported;
    return s->capture ? cudaErrorIllegalState : 0;
}

static void begin(stream *s, enum cudaStreamCaptureMode mode, graph *g, const nodes *deps) {
    capture *c = si_allocate(sizeof *c);
    if (!si_me.number)
        si_me.number = next_thread++;
    c->id = next_id++, c->thread = si_me.number, c->mode = mode, c->origin = s, c->refs = 1;
    c->own_graph = !g;
    c->graph = g ? g : si_new_graph();
    si_graph_capturing(c->graph, 1);
    c->next = open_captures;
    open_captures = c;
    join(c, s, deps);
    atomic_fetch_add(&si_captures, 1);
}

cudaError_t si_stream_begin_capture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    const nodes none = { NULL, 0, 0 };
    ENTER(cudaStreamBeginCapture);
    si_bind();
    lock();
    stream *s = si_stream_of("cudaStreamBeginCapture", handle);
    int code = check_begin(s, mode);
    if (!code)
        begin(s, mode, NULL, &none);
    unlock();
    return result(code);
}

cudaError_t si_stream_begin_capture_to_graph(cudaStream_t handle, cudaGraph_t graph_handle,
                                             const cudaGraphNode_t *dependencies,
                                             const void *edge_data, size_t count,
                                             enum cudaStreamCaptureMode mode) {
    static const char call[] = "cudaStreamBeginCaptureToGraph";
    nodes deps = { NULL, 0, 0 };
    ENTER(cudaStreamBeginCaptureToGraph);
    si_bind();
    lock();
    stream *s = si_stream_of(call, handle);
    graph *g = si_graph_of(call, graph_handle);
    int code = check_begin(s, mode);
    if (!code && !si_plain_edges(edge_data, count))
        code = cudaErrorInvalidValue;
    if (!code)
        code = si_nodes_of(call, g, dependencies, count, &deps);
    if (!code)
        begin(s, mode, g, &deps);
    si_nodes_free(&deps);
    unlock();
    return result(code);
}

/* Every member's work has come to be before the end of the origin's. */
static int all_joined(const capture *c) {
    for (const stream *s = c->members; s; s = s->next_member)
        if (s != c->origin && !si_nodes_reach(&c->origin->deps, &c->excused, &s->deps))
            return 0;
    return si_nodes_reach(&c->origin->deps, &c->excused, &c->lost);
}

static int end(stream *s, cudaGraph_t *out) {
    int failed = sticky(s->device);
    capture *c = s->capture;
    if (!c)
        return cudaErrorIllegalState;
    if (c->origin != s) {
        invalidate(c);
        return cudaErrorStreamCaptureUnmatched;
    }
    int wrong = c->mode != cudaStreamCaptureModeRelaxed && c->thread != si_me.number;
    int code = failed          ? failed
               : wrong         ? (int)cudaErrorStreamCaptureWrongThread /* and it is over: P9 */
               : c->invalid    ? (int)cudaErrorStreamCaptureInvalidated
               : all_joined(c) ? 0
                               : (int)cudaErrorStreamCaptureUnjoined;
    si_nodes_sink(&s->deps);
    close_capture(c);
    if (code)
        drop_graph(c);
    else if (c->own_graph)
        si_give_graph(c->graph, out);
    else
        *out = si_graph_handle(c->graph);
    unref(c);
    return code;
}

cudaError_t si_stream_end_capture(cudaStream_t handle, cudaGraph_t *out) {
    ENTER(cudaStreamEndCapture);
    si_bind();
    if (!out)
        return result(cudaErrorInvalidValue);
    *out = NULL;
    lock();
    int code = end(si_stream_of("cudaStreamEndCapture", handle), out);
    unlock();
    return result(code);
}

static atomic_int end_meanwhile;

void standin_end_meanwhile(void) {
    atomic_store(&end_meanwhile, 1);
}

cudaError_t si_stream_is_capturing(cudaStream_t handle, enum cudaStreamCaptureStatus *out) {
    cudaGraph_t ended;
    ENTER(cudaStreamIsCapturing);
    si_bind();
    if (!out)
        return result(cudaErrorInvalidValue);
    lock();
    stream *s = si_stream_of("cudaStreamIsCapturing", handle);
    int code = sticky(s->device);
    if (!code)
        code = si_capture_status(s, out);
    unlock();
    if (!code && *out == cudaStreamCaptureStatusActive && atomic_exchange(&end_meanwhile, 0) &&
        cudaStreamEndCapture(handle, &ended) == cudaSuccess)
        (void)cudaGraphDestroy(ended);
    return result(code);
}

/* The two arrays stay as they are until the next call that has to do with the stream. */
static void show(stream *s, const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges) {
    size_t n = s->deps.count, size = n * (sizeof *s->shown + sizeof **edges);
    free(s->shown);
    s->shown = si_allocate(size);
    for (size_t i = 0; i < n; i++)
        s->shown[i] = si_node_handle(s->deps.at[i]);
    *dependencies = s->shown;
    if (edges)
        *edges = (const cudaGraphEdgeData *)(s->shown + n);
}

cudaError_t si_stream_get_capture_info(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                       unsigned long long *id, cudaGraph_t *graph_out,
                                       const cudaGraphNode_t **dependencies,
                                       const cudaGraphEdgeData **edges, size_t *count) {
    ENTER(cudaStreamGetCaptureInfo);
    si_bind();
    if (!status || (edges && !dependencies))
        return result(cudaErrorInvalidValue);
    lock();
    stream *s = si_stream_of("cudaStreamGetCaptureInfo", handle);
    int code = sticky(s->device);
    if (!code)
        code = si_capture_status(s, status);
    if (!code && *status == cudaStreamCaptureStatusActive) {
        if (id)
            *id = s->capture->id;
        if (graph_out)
            *graph_out = si_graph_handle(s->capture->graph);
        if (dependencies)
            show(s, dependencies, edges);
        if (count)
            *count = s->deps.count;
    }
    unlock();
    return result(code);
}

cudaError_t si_stream_update_capture_dependencies(cudaStream_t handle,
                                                  cudaGraphNode_t *dependencies,
                                                  const void *edge_data, size_t count,
                                                  unsigned flags) {
    static const char call[] = "cudaStreamUpdateCaptureDependencies";
    nodes deps = { NULL, 0, 0 };
    ENTER(cudaStreamUpdateCaptureDependencies);
    si_bind();
    if (flags > cudaStreamSetCaptureDependencies)
        return result(cudaErrorInvalidValue);
    lock();
    stream *s = si_stream_of(call, handle);
    capture *c = s->capture;
    int code = sticky(s->device);
    if (!code)
        code = si_capture_enqueue(s);
    if (!code && !c)
        code = cudaErrorIllegalState;
    if (!code && !si_plain_edges(edge_data, count))
        code = cudaErrorInvalidValue;
    if (!code)
        code = si_nodes_of(call, c->graph, dependencies, count, &deps);
    if (!code && flags == cudaStreamSetCaptureDependencies) {
        si_nodes_sink(&s->deps);
        for (size_t i = 0; i < s->deps.count; i++)
            si_nodes_add(&c->excused, s->deps.at[i]);
        s->deps.count = 0;
    }
    for (size_t i = 0; !code && i < deps.count; i++)
        si_nodes_add(&s->deps, deps.at[i]);
    si_nodes_free(&deps);
    unlock();
    return result(code);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    ENTER(cudaThreadExchangeStreamCaptureMode);
    if (!mode || !is_mode(*mode))
        return result(cudaErrorInvalidValue);
    si_bind(); /* as every call of the runtime that is no query of devices */
    enum cudaStreamCaptureMode before = si_me.mode;
    si_me.mode = *mode;
    *mode = before;
    return cudaSuccess;
}
