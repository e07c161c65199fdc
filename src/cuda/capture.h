/* cuda/capture.h - begin and end of captures.

   Begins a capture on a stream (ds__cuda_capture_begin) and ends it (ds__cuda_capture_end). At the
   end, the nodes and dependencies in CUDA's graph are read into the shadow graph (ds__body).

   Invariants: `origin` of a capture is set exactly while the capture is in the core's list. A
   capture is listed before any thread can enqueue work into it without notice: capture_count is
   raised before CUDA begins it. If CUDA drops a capture at its end, `graph` is NULL, unless the
   capture went into an existing graph. Streams that were made for a capture end after it.
   Locks: ds__cuda_capture_begin and ds__cuda_capture_end take the capture lock and hold it across
   the driver calls that begin, end and read the capture. A begin also takes `joining` of its
   stream. ds__cuda_capture_over expects it.
   ds__cuda_end_siblings must run without it, because ending a stream may take it. The core holds
   ds__g.begin during a begin, and also the graph's lock if the graph existed before.
   Threads: any. CUDA requires the thread that began a capture to end it, except in relaxed mode. A
   begin sleeps up to 0.1 s while another thread waits for a device to release memory. */
#ifndef DS__CUDA_CAPTURE_H
#define DS__CUDA_CAPTURE_H

#include "types.h"
#include "call.h"
#include "stream.h"
#include "graph_types.h"
#include "capture_info.h"
#include "graph_read.h"

/* Reports that CUDA has refused to begin a capture, with a cleared code. The lock is held. */
static ds_result ds__cuda_begin_refused(ds__cuda_scope *scope, ds__cuda_stream *s, cudaError_t code,
                                        const char *call) {
    if (s->kind == DS__STREAM_LEGACY && code != cudaErrorMemoryAllocation)
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "the legacy stream cannot capture; use another stream (%s returned %d)",
                        call, (int)code);
    if (code == cudaErrorCallRequiresNewerDriver)
        return ds__fail(DS_ERR_UNSUPPORTED, "%s needs a newer driver (it returned %d)", call,
                        (int)code);
    if (code != cudaErrorIllegalState)
        return ds__cuda_check(scope, code, call);
    ds__cuda_look now;
    ds__capture *open = NULL;
    ds_result r = ds__cuda_find_capture(scope, s, &now, &open);
    if (r == DS_OK)
        r = open ? ds__capture_fail(DS_ERR_ILLEGAL_STATE, open, 0, "the stream already captures")
                 : ds__fail(DS_ERR_ILLEGAL_STATE, "the stream already captures; its capture, begun "
                                                  "outside devstream, continues");
    return r;
}

/* Begins a capture in CUDA. after: the nodes on which the first node depends, for a capture into an
   existing graph. The lock is held. */
static ds_result ds__cuda_begin(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                const cudaGraphNode_t *after, size_t count) {
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)c->mode;
    const char *call = "cudaStreamBeginCapture";
    cudaError_t code;
    if (!c->into) {
        code = DS__RT_CODE(*scope, cudaStreamBeginCapture, (s->handle, mode));
    } else {
        const ds__cuda_graph *g = c->body->native;
        if (ds__cudart_version() < 12030)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "capture into an existing graph needs cudart 12.3; this one is %d.%d",
                            ds__cudart_version() / 1000, ds__cudart_version() % 1000 / 10);
        call = "cudaStreamBeginCaptureToGraph";
        code =
            ds__cuda_clear(scope, ds__cudart_capture_into(s->handle, g->graph, after, count, mode));
    }
    return DS__LIKELY(code == cudaSuccess) ? DS_OK : ds__cuda_begin_refused(scope, s, code, call);
}

/* Waits until other threads that release memory have begun to wait for devices: a wait that begins
   after a capture would invalidate it. Without pending work, these threads take microseconds. With
   pending work their wait may take long, but 0.1 s is ample time for it to begin. */
static void ds__cuda_await_releases(void) {
    for (uint64_t begin = ds__now_ns();
         atomic_load(&ds__cuda.releases) && ds__now_ns() - begin < 100000000u;) {
        ds__os_sleep(50000);
    }
}

/* Enters a capture that has begun: `now` is CUDA's description. The lock is held. */
static void ds__cuda_enlist(ds__cuda_stream *s, ds__capture *c, ds__cuda_origin *o,
                            const ds__cuda_look *now) {
    ds__cuda_graph *g = c->body->native;
    *o = (ds__cuda_origin){ .handle = s->handle,
                            .device = s->device,
                            .per_thread = s->kind == DS__STREAM_PER_THREAD,
                            .thread = s->thread };
    c->origin = o;
    c->native = now->id;
    g->graph = now->graph;
    g->capture = c;
    ds__capture_list(c);
    atomic_store(&s->capture, c->id);
}

/* Begins a capture and enters it, or does neither. While the lock is held, no other thread can end
   the capture, or enqueue work into it without notice. */
static ds_result ds__cuda_begin_listed(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                       const cudaGraphNode_t *after, size_t count,
                                       ds__cuda_origin *o) {
    ds__cuda_look now;
    atomic_fetch_add(&ds__g.capture_count, 1); /* submissions take the lock from now on */
    if (DS__UNLIKELY(atomic_load(&ds__cuda.releases)))
        ds__cuda_await_releases();
    ds__mutex_lock(&s->joining);
    ds__cuda_lock();
    ds_result r = ds__cuda_begin(scope, s, c, after, count);
    int begun = r == DS_OK;
    if (begun)
        r = ds__cuda_look_at(scope, s, &now);
    if (r == DS_OK)
        ds__cuda_enlist(s, c, o, &now);
    atomic_fetch_sub(&ds__g.capture_count, 1);
    ds__cuda_unlock();
    ds__mutex_unlock(&s->joining);
    if (r < 0 && begun) {
        cudaGraph_t graph = NULL;
        (void)DS__RT_CODE(*scope, cudaStreamEndCapture, (s->handle, &graph));
        if (!c->into)
            ds__cuda_drop_graph(scope, graph);
    }
    return r;
}

static ds_result ds__cuda_capture_begin(void *stream, ds__capture *c, const uint32_t *deps,
                                        size_t count) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    if (!c->into)
        c->body->native = ds__host_alloc(sizeof(ds__cuda_graph));
    ds__cuda_origin *o = ds__host_alloc(sizeof *o);
    cudaGraphNode_t *after = ds__host_alloc((count + 1) * sizeof *after);
    ds_result r = c->body->native && o && after
                      ? ds__cuda_on(&scope, s)
                      : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
    if (r < 0)
        goto fail;
    for (size_t i = 0; i < count; i++)
        after[i] = ds__cuda_native(c->body->node[deps[i]]);
    r = ds__cuda_begin_listed(&scope, s, c, after, count, o);
    ds__cuda_scope_end(&scope);
    if (r < 0)
        goto fail;
    ds__host_free(after);
    return DS_OK;

fail:
    if (!c->into) {
        ds__host_free(c->body->native);
        c->body->native = NULL;
    }
    ds__host_free(o);
    ds__host_free(after);
    return r;
}

/* Ends the streams that were made for a capture that is over. */
static void ds__cuda_end_siblings(ds__cuda_stream *s) {
    while (s) {
        ds__cuda_stream *next = s->sibling;
        ds__cuda_stream_destroy(s);
        s = next;
    }
}

/* Drops the records of a capture that is over. Returns the streams that were made for the capture,
   which the caller ends after it has released the lock. The lock is held. */
static ds__cuda_stream *ds__cuda_capture_over(ds__capture *c) {
    ds__cuda_origin *o = c->origin;
    ds__cuda_stream *streams = o->streams;
    ((ds__cuda_graph *)c->body->native)->capture = NULL;
    c->origin = NULL;
    ds__capture_unlist(c);
    ds__host_free(o);
    return streams;
}

/* Reads the captured nodes and all dependencies into the shadow graph. */
static ds_result ds__cuda_read_graph(const ds__cuda_scope *scope, ds__body *b) {
    ds_result r = ds__cuda_read_nodes(scope, b);
    for (uint32_t i = 0; i < b->count && r == DS_OK; i++)
        r = ds__cuda_read_after(scope, b, i);
    return r;
}

/* Ends a capture of devstream. *out is the capture if it is over, which an error may be too: CUDA
   then has dropped it, and a graph that existed before keeps its captured nodes. The lock is
   held. */
static ds_result ds__cuda_end_known(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                    ds__capture **out) {
    ds__cuda_graph *g = c->body->native;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    cudaGraph_t graph = NULL;
    scope->capture = c->id;
    ds_result r = DS__RT(*scope, cudaStreamEndCapture, (s->handle, &graph));
    if (r == DS_OK) {
        *out = c;
        g->graph = graph;
        return ds__cuda_read_graph(scope, c->body);
    }
    if (!ds__cuda_began_on(c, s))
        return r;
    cudaError_t code = DS__RT_CODE(*scope, cudaStreamIsCapturing, (s->handle, &status));
    if (code != cudaSuccess || status != cudaStreamCaptureStatusNone)
        return r;
    *out = c;
    if (!c->into) {
        g->graph = NULL; /* CUDA has destroyed it */
    } else {
        char before[sizeof ds__tls.error];
        memcpy(before, ds__tls.error, sizeof before);
        DS_IGNORE(ds__cuda_read_graph(scope, c->body));
        memcpy(ds__tls.error, before, sizeof before);
    }
    return r;
}

static ds_result ds__cuda_capture_end(void *stream, ds__capture **out) {
    ds__cuda_stream *s = stream;
    ds__cuda_stream *streams = NULL;
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    ds__cuda_lock();
    r = ds__cuda_find_capture(&scope, s, &now, &c);
    if (r == DS_OK && now.status == cudaStreamCaptureStatusNone)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    else if (r == DS_OK && !c)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the capture was begun outside devstream; end it there");
    else if (r == DS_OK)
        r = ds__cuda_end_known(&scope, s, c, out);
    if (*out) {
        streams = ds__cuda_capture_over(c);
        atomic_store(&s->capture, 0);
    }
    ds__cuda_unlock();
    ds__cuda_scope_end(&scope);
    ds__cuda_end_siblings(streams);
    return r;
}

#endif
