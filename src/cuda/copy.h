/* cuda/copy.h - copies, fills and waits between streams.

   Enqueues copies (ds__cuda_submit_copy) and fills (ds__cuda_submit_fill). Uses a host function
   between host memory, staging.h for a CPU device's memory, and a stream of its own for another
   GPU's memory (ds__cuda_elsewhere). ds__cuda_copy_now copies at once for a stream of the CPU
   driver.

   Invariants: ds__cuda_run_together never runs its function, since a GPU's streams cannot be
   held.
   Locks: none here.
   Threads: any. ds__cuda_copy_now runs on the thread that executes the CPU driver's kernel, and
   blocks it until the copy is done. All such copies of a device share one side stream. */
#ifndef DS__CUDA_COPY_H
#define DS__CUDA_COPY_H

#include "../base/memory_table.h"
#include "types.h"
#include "call.h"
#include "stream.h"
#include "aside.h"
#include "host_func.h"
#include "copy_plain.h"
#include "staging.h"

/* Enqueues an operation on memory of another device on a stream of that device, between two
   waits. */
static ds_result ds__cuda_elsewhere(ds__cuda_stream *s, int device, const ds__op *op,
                                    ds_result (*put)(ds__cuda_stream *s, const ds__op *op)) {
    ds__cuda_stream *aside = NULL;
    int capturing = 0;
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    ds__cuda_scope_end(&scope);
    if (r < 0)
        return r;
    if (capturing) /* the stream would have to live as long as the unknown capture */
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "in a capture begun outside devstream, work on memory of cuda:%d must be "
                        "enqueued on a stream of that device",
                        device);
    r = ds__cuda_aside_take(device, &aside);
    if (r < 0)
        return r;
    r = ds__cuda_wait_stream(aside, s);
    if (r == DS_OK)
        r = put(aside, op);
    if (r == DS_OK)
        r = ds__cuda_wait_stream(s, aside);
    ds__cuda_aside_put(aside);
    return r;
}

/* Enqueues a copy on the stream itself. */
static ds_result ds__cuda_copy_on(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = ds__cuda_move(&scope, s->handle, op, ds__cuda_where(op->places >> DS__OP_DST & 255u),
                      ds__cuda_where(op->places >> DS__OP_SRC & 255u));
    ds__cuda_scope_end(&scope);
    return r;
}

/* Finds the place of an operand, if the operation does not have it: a graph needs all places. */
static ds_result ds__cuda_resolve(ds__op *op, unsigned at, const void *ptr) {
    ds_pointer_info info;
    unsigned place = DS__AT_PINNED;
    if (ds__place_of(op, (int)at) != DS__AT_UNKNOWN)
        return DS_OK;
    ds_result r = ds__cuda_pointer_query(ptr, &info);
    if (info.kind == DS_MEMORY_DEVICE)
        place = DS__AT_DEVICE + (unsigned)info.device.index;
    else if (info.kind == DS_MEMORY_PAGEABLE)
        place = DS__AT_PAGEABLE;
    op->places = (uint16_t)(op->places | place << at);
    return r;
}

/* Finds the places of operands that may be on another GPU. Keeps an unknown place for all other
   memory: cudart finds it. */
static ds_result ds__cuda_find_gpus(ds__op *op) {
    uint16_t before = op->places;
    ds_result r = ds__cuda_resolve(op, DS__OP_DST, op->u.copy.dst);
    if (r == DS_OK)
        r = ds__cuda_resolve(op, DS__OP_SRC, op->u.copy.src);
    if (ds__place_of(op, DS__OP_DST) < DS__AT_DEVICE ||
        ds__place_of(op, DS__OP_SRC) < DS__AT_DEVICE)
        op->places = before;
    return r;
}

static ds_result ds__cuda_submit_copy(ds__cuda_stream *s, const ds__op *given) {
    const ds__op *op = given;
    ds__op found;
    unsigned to = op->places >> DS__OP_DST & 255u;
    unsigned from = op->places >> DS__OP_SRC & 255u;
    if (DS__UNLIKELY(ds__cuda.devices > 1 && (to == DS__AT_UNKNOWN || from == DS__AT_UNKNOWN))) {
        found = *given;
        ds_result r = ds__cuda_find_gpus(&found);
        if (r < 0)
            return r;
        op = &found;
        to = op->places >> DS__OP_DST & 255u;
        from = op->places >> DS__OP_SRC & 255u;
    }
    int here = DS__AT_DEVICE + s->device;
    if (!ds__cuda_on_gpu(to) && !ds__cuda_on_gpu(from))
        return ds__cuda.cudart_copies && to == DS__AT_PINNED && from == DS__AT_PINNED
                   ? ds__cuda_copy_on(s, op)
                   : ds__cuda_submit_host_work(s, op);
    ds_result (*put)(ds__cuda_stream * s, const ds__op *op) = ds__cuda_copy_on;
    if (DS__UNLIKELY(from == DS__AT_OTHER))
        put = ds__cuda_staged_to_gpu;
    if (DS__UNLIKELY(to == DS__AT_OTHER))
        put = ds__cuda_staged_from_gpu;
    if (DS__LIKELY((int)to == here || (int)from == here))
        return put(s, op);
    return ds__cuda_elsewhere(s, (int)(from >= DS__AT_DEVICE ? from : to) - DS__AT_DEVICE, op, put);
}

/* Enqueues a batch of copies by one call. CUDA refuses a batch on the legacy stream, and in
   captures before 13.5. Without support in cudart or the driver library, its code is one of two. */
static ds_result ds__cuda_submit_copy_batch(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    int capturing = 0;
    if (s->kind == DS__STREAM_LEGACY || atomic_load(&ds__cuda.no_batches))
        return DS__ONE_BY_ONE;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    if (r == DS_OK && capturing)
        r = DS__ONE_BY_ONE;
    if (r == DS_OK) {
        cudaError_t code = ds__cudart_copy_batch(op->u.batch.dst, op->u.batch.src,
                                                 op->u.batch.sizes, op->u.batch.count, s->handle);
        ds__cuda_clear(&scope, code);
        if (code == cudaErrorNotSupported || code == cudaErrorCallRequiresNewerDriver) {
            atomic_store(&ds__cuda.no_batches, 1);
            r = DS__ONE_BY_ONE;
        } else {
            r = ds__cuda_check(&scope, code, "cudaMemcpyBatchAsync");
        }
    }
    ds__cuda_scope_end(&scope);
    return r;
}

/* Enqueues a fill of memory of the stream's device. */
static ds_result ds__cuda_fill(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    void *dst = op->u.fill.dst;
    size_t pitch = op->u.fill.pitch;
    size_t width = op->u.fill.width;
    size_t height = op->u.fill.height;
    unsigned long long address = (uintptr_t)dst;
    unsigned value = op->u.fill.value;
    if (op->u.fill.value_size == 1) {
        r = height == 1
                ? DS__RT(scope, cudaMemsetAsync, (dst, (int)(value & 255), width, s->handle))
                : DS__RT(scope, cudaMemset2DAsync,
                         (dst, pitch, (int)(value & 255), width, height, s->handle));
    } else if (op->u.fill.value_size == 2) {
        if (height == 1)
            DS__DR(scope, r, cuMemsetD16Async, (address, (unsigned short)value, width, s->handle));
        else
            DS__DR(scope, r, cuMemsetD2D16Async,
                   (address, pitch, (unsigned short)value, width, height, s->handle));
    } else {
        if (height == 1)
            DS__DR(scope, r, cuMemsetD32Async, (address, value, width, s->handle));
        else
            DS__DR(scope, r, cuMemsetD2D32Async, (address, pitch, value, width, height, s->handle));
    }
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_submit_fill(ds__cuda_stream *s, const ds__op *op) {
    unsigned place = op->places >> DS__OP_DST & 255u;
    if (place < DS__AT_DEVICE)
        return ds__cuda_submit_host_work(s, op);
    int device = (int)(place - DS__AT_DEVICE);
    return DS__LIKELY(device == s->device) ? ds__cuda_fill(s, op)
                                           : ds__cuda_elsewhere(s, device, op, ds__cuda_fill);
}

/* Returns the place of memory as in ds__cuda_where. */
static int ds__cuda_device_of(const void *ptr) {
    ds_pointer_info info;
    if (!ds__memory_table_find(ptr, &info) && ds__cuda_pointer_query(ptr, &info) < 0)
        return DS__CUDA_ASK;
    return info.kind == DS_MEMORY_DEVICE && info.device.type == DS_DEVICE_CUDA ? info.device.index
                                                                               : DS__CUDA_HOST;
}

/* Runs nothing: the streams of a GPU cannot be held. */
static ds_result ds__cuda_run_together(void *const *streams, size_t count,
                                       void (*run_fn)(void *user), void *user, int *out_ran) {
    (void)streams;
    (void)count;
    (void)run_fn;
    (void)user;
    *out_ran = 0;
    return DS_OK;
}

/* Copies for a stream of the CPU driver, on the thread that runs the stream. Returns when the copy
   is done. */
static ds_result ds__cuda_copy_now(const ds__op *op) {
    int to = ds__cuda_device_of(op->u.copy.dst);
    int from = ds__cuda_device_of(op->u.copy.src);
    int device = to >= 0 ? to : from;
    ds__cuda_scope scope;
    if (device < 0)
        device = 0;
    cudaStream_t side;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    r = ds__cuda_check(&scope, ds__cuda_kept_stream(&scope, &ds__cuda.side[device], &side),
                       "cudaStreamCreateWithPriority");
    if (r == DS_OK)
        r = ds__cuda_move(&scope, side, op, to, from);
    if (r == DS_OK)
        r = DS__RT(scope, cudaStreamSynchronize, (side));
    ds__cuda_scope_end(&scope);
    return r;
}

#endif
