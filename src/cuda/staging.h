/* cuda/staging.h - staged copies between a GPU and a CPU device.

   Copies between a GPU and memory of a CPU device (ds__cuda_staged_to_gpu,
   ds__cuda_staged_from_gpu). That memory is host memory, but it may be touched in stream order
   only. The copy runs piece by piece through the halves of a pinned buffer. Host functions on the
   stream copy between a half and that memory; cudart copies between a half and the GPU, on a stream
   of its own (aside.h), so that both run at once. A copy in one piece needs no other stream.

   Invariants: A stream has at most one buffer of DS__CUDA_STAGE bytes; its copies share the buffer,
   because they run one after the other. A half is used again when both copies of its last piece
   are done: both streams wait for each other between the two copies of each piece. The buffer
   counts the stream and its copies as users, and without users it waits in ds__cuda.stages for
   another stream. The record `last` runs behind all pieces and keeps the buffer until cudart has
   read it. A copy on a stream that captures is refused.
   Locks: The stream's staging mutex is held while all pieces of a copy are enqueued. The calls of
   cudart run under it, after a failure also a wait for the stream. `host_lock` is taken under it.
   The caller holds no lock of the driver.
   Threads: any thread submits. The pieces run on CUDA's callback thread, which must not call CUDA,
   so a buffer is kept there and not freed. */
#ifndef DS__CUDA_STAGING_H
#define DS__CUDA_STAGING_H

#include "types.h"
#include "call.h"
#include "aside.h"
#include "host_func.h"
#include "copy_plain.h"

enum { DS__CUDA_PIECE = DS__CUDA_STAGE / 2 }; /* the most bytes of a piece: a half of the buffer */

typedef struct ds__cuda_staged ds__cuda_staged;

typedef struct ds__cuda_piece {
    ds__cuda_host host;
    ds__cuda_staged *whole;
    int half;    /* 0 or 1: the half of the buffer */
    char *other; /* the CPU device's memory */
    size_t pitch;
    size_t width;
    size_t height;
} ds__cuda_piece;

struct ds__cuda_staged {
    _Atomic size_t users; /* pending pieces, and the caller */
    int to_gpu;
    ds__cuda_stage *stage;
    ds__cuda_stream
        *aside; /* runs cudart's copies; NULL: one piece, which the stream itself runs */
    /* runs after all pieces: cudart may still read the buffer when the last one of them has run */
    ds__cuda_piece last;
    ds__cuda_piece piece[];
};

/* Creates a buffer. */
static ds_result ds__cuda_stage_create(const ds__cuda_scope *scope, ds__cuda_stage **out) {
    ds__cuda_stage *stage = ds__host_alloc(sizeof *stage);
    if (!stage)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a staging buffer");
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    ds_result r =
        DS__RT(*scope, cudaHostAlloc, (&stage->memory, DS__CUDA_STAGE, cudaHostAllocPortable));
    ds__cuda_unrelax(scope, relaxed, mode);
    if (r < 0)
        ds__host_free(stage);
    else
        *out = stage;
    return r;
}

/* Gives the stream a buffer, if it has none, and counts the caller as a user. The staging mutex is
   held. */
static ds_result ds__cuda_stage_of(const ds__cuda_scope *scope, ds__cuda_stream *s) {
    if (!s->stage) {
        ds_result r = DS_OK;
        ds__spinlock_lock(&ds__cuda.host_lock);
        ds__cuda_stage *stage = ds__cuda.stages;
        if (stage)
            ds__cuda.stages = stage->next;
        ds__spinlock_unlock(&ds__cuda.host_lock);
        if (!stage)
            r = ds__cuda_stage_create(scope, &stage);
        if (r < 0)
            return r;
        atomic_store(&stage->users, 1);
        s->stage = stage;
    }
    atomic_fetch_add(&s->stage->users, 1);
    return DS_OK;
}

/* Drops a user of a buffer. The last one keeps it for another stream: a host function, which may
   not call cudart, cannot free it. */
static void ds__cuda_stage_unref(ds__cuda_stage *stage) {
    if (atomic_fetch_sub(&stage->users, 1) != 1)
        return;
    ds__spinlock_lock(&ds__cuda.host_lock);
    stage->next = ds__cuda.stages;
    ds__cuda.stages = stage;
    ds__spinlock_unlock(&ds__cuda.host_lock);
}

/* Drops a user of a copy. The last one frees the copy, which may have no buffer yet. */
static void ds__cuda_staged_unref(ds__cuda_staged *w) {
    if (atomic_fetch_sub(&w->users, 1) != 1)
        return;
    if (w->stage)
        ds__cuda_stage_unref(w->stage);
    ds__host_free(w);
}

static char *ds__cuda_piece_buffer(const ds__cuda_piece *p) {
    return (char *)p->whole->stage->memory + p->half * DS__CUDA_PIECE;
}

/* Copies a piece between the buffer and the memory of the CPU device; the record `last` copies
   nothing. */
static void ds__cuda_piece_run(void *user) {
    const ds__cuda_piece *p = user;
    if (p == &p->whole->last)
        return;
    char *stage = ds__cuda_piece_buffer(p);
    if (p->whole->to_gpu)
        ds__cuda_copy_rows(stage, p->width, p->other, p->pitch, p->width, p->height);
    else
        ds__cuda_copy_rows(p->other, p->pitch, stage, p->width, p->width, p->height);
}

static void ds__cuda_piece_end(void *user) {
    ds__cuda_staged_unref(((ds__cuda_piece *)user)->whole);
}

static ds_result ds__cuda_post_piece(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                     ds__cuda_piece *p) {
    p->host = (ds__cuda_host){
        .embedded = 1, .fn = ds__cuda_piece_run, .dtor_fn = ds__cuda_piece_end, .user = p
    };
    atomic_fetch_add(&p->whole->users, 1);
    ds_result r = ds__cuda_post(scope, s, &p->host);
    if (r < 0 && !p->host.captured)
        ds__cuda_staged_unref(p->whole);
    return r;
}

/* Makes the stream and the stream of cudart's copies wait for each other's work so far. */
static ds_result ds__cuda_staged_meet(const ds__cuda_staged *w, ds__cuda_stream *s) {
    if (!w->aside)
        return DS_OK;
    ds_result r = ds__cuda_wait_stream(s, w->aside);
    return r == DS_OK ? ds__cuda_wait_stream(w->aside, s) : r;
}

/* Enqueues one piece: cudart's copy and the host function, in the order of the direction. Between
   them the streams meet, so that the second copy comes after the first one, and so that the next
   piece, in the other half, comes after the piece before this one. */
static ds_result ds__cuda_submit_piece(const ds__cuda_scope *scope, ds__cuda_stream *s,
                                       ds__cuda_piece *p, char *gpu, size_t gpu_pitch) {
    const ds__cuda_staged *w = p->whole;
    char *stage = ds__cuda_piece_buffer(p);
    cudaStream_t copies = w->aside ? w->aside->handle : s->handle;
    ds__op op;
    memset(&op, 0, sizeof op);
    op.u.copy.dst = w->to_gpu ? gpu : stage;
    op.u.copy.src = w->to_gpu ? stage : gpu;
    op.u.copy.dst_pitch = w->to_gpu ? gpu_pitch : p->width;
    op.u.copy.src_pitch = w->to_gpu ? p->width : gpu_pitch;
    op.u.copy.width = p->width;
    op.u.copy.height = p->height;
    int to = w->to_gpu ? DS__CUDA_ASK : DS__CUDA_HOST;
    int from = w->to_gpu ? DS__CUDA_HOST : DS__CUDA_ASK;
    ds_result r =
        w->to_gpu ? ds__cuda_post_piece(scope, s, p) : ds__cuda_move(scope, copies, &op, to, from);
    if (r == DS_OK)
        r = ds__cuda_staged_meet(w, s);
    if (r < 0)
        return r;
    return w->to_gpu ? ds__cuda_move(scope, copies, &op, to, from)
                     : ds__cuda_post_piece(scope, s, p);
}

/* Enqueues all pieces and the record `last`. wide, rows: bytes and rows of a piece. After a
   failure, waits until the work that was enqueued does not use the buffer any more. */
static ds_result ds__cuda_submit_pieces(const ds__cuda_scope *scope, ds__cuda_stream *s,
                                        ds__cuda_staged *w, const ds__op *op, size_t wide,
                                        size_t rows) {
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    size_t across = (width + wide - 1) / wide;
    size_t down = (height + rows - 1) / rows;
    char *gpu = w->to_gpu ? op->u.copy.dst : (char *)(uintptr_t)op->u.copy.src;
    char *other = w->to_gpu ? (char *)(uintptr_t)op->u.copy.src : op->u.copy.dst;
    size_t gpu_pitch = w->to_gpu ? op->u.copy.dst_pitch : op->u.copy.src_pitch;
    size_t pitch = w->to_gpu ? op->u.copy.src_pitch : op->u.copy.dst_pitch;
    ds_result r = w->aside ? ds__cuda_wait_stream(w->aside, s) : DS_OK;
    for (size_t i = 0; i < across * down && r == DS_OK; i++) {
        size_t x = i % across * wide;
        size_t y = i / across * rows;
        ds__cuda_piece *p = &w->piece[i];
        *p = (ds__cuda_piece){
            .whole = w, .half = (int)(i % 2), .other = other + y * pitch + x, .pitch = pitch
        };
        p->width = width - x < wide ? width - x : wide;
        p->height = height - y < rows ? height - y : rows;
        r = ds__cuda_submit_piece(scope, s, p, gpu + y * gpu_pitch + x, gpu_pitch);
    }
    w->last.whole = w;
    if (r == DS_OK)
        r = ds__cuda_staged_meet(w, s);
    if (r == DS_OK)
        r = ds__cuda_post_piece(scope, s, &w->last);
    if (r < 0 && w->aside)
        (void)DS__RT_CODE(*scope, cudaStreamSynchronize, (w->aside->handle));
    if (r < 0)
        (void)DS__RT_CODE(*scope, cudaStreamSynchronize, (s->handle));
    return r;
}

/* Enqueues a copy through the stream's buffer, unless the stream captures. Inside of a scope of the
   stream. */
static ds_result ds__cuda_stage_copy(const ds__cuda_scope *scope, ds__cuda_stream *s,
                                     ds__cuda_staged *w, const ds__op *op, size_t wide,
                                     size_t rows) {
    int capturing = 0;
    ds_result r = ds__cuda_is_capturing(scope, s, &capturing);
    if (r < 0)
        return r;
    if (capturing)
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "a copy between a GPU and a device of the CPU driver cannot be captured; "
                        "the capture continues");
    ds__mutex_lock(&s->staging);
    r = ds__cuda_stage_of(scope, s);
    if (r == DS_OK) {
        w->stage = s->stage;
        r = ds__cuda_submit_pieces(scope, s, w, op, wide, rows);
    }
    ds__mutex_unlock(&s->staging);
    return r;
}

static ds_result ds__cuda_submit_staged(ds__cuda_stream *s, const ds__op *op, int to_gpu) {
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    size_t wide = width < DS__CUDA_PIECE ? width : DS__CUDA_PIECE; /* of a piece */
    size_t rows = DS__CUDA_PIECE / wide;                           /* of a piece */
    size_t across = (width + wide - 1) / wide;
    size_t down = (height + rows - 1) / rows;
    ds__cuda_scope scope;
    /* the core has checked that all bytes fit a size_t, and a piece is the half of its bytes or
       larger: the size of the record does not overflow */
    ds__cuda_staged *w = ds__host_alloc(sizeof *w + across * down * sizeof w->piece[0]);
    if (!w)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a copy in %zu pieces", across * down);
    atomic_store(&w->users, 1);
    w->to_gpu = to_gpu;
    ds_result r = across * down > 1 ? ds__cuda_aside_take(s->device, &w->aside) : DS_OK;
    ds__cuda_stream *aside = w->aside;
    if (r == DS_OK)
        r = ds__cuda_on(&scope, s);
    if (r == DS_OK) {
        r = ds__cuda_stage_copy(&scope, s, w, op, wide, rows);
        ds__cuda_scope_end(&scope);
    }
    if (aside)
        ds__cuda_aside_put(aside);
    ds__cuda_staged_unref(w);
    return r;
}

static ds_result ds__cuda_staged_to_gpu(ds__cuda_stream *s, const ds__op *op) {
    return ds__cuda_submit_staged(s, op, 1);
}

static ds_result ds__cuda_staged_from_gpu(ds__cuda_stream *s, const ds__op *op) {
    return ds__cuda_submit_staged(s, op, 0);
}

#endif
