/* cuda/copy_plain.h - copies by cudart and work on host memory.

   Enqueues a copy by cudart (ds__cuda_move) and translates the places of operands for cudart
   (ds__cuda_where, ds__cuda_kind, ds__cuda_on_gpu). Runs copies and fills between host memory as
   host functions (ds__cuda_submit_host_work). For these, cudart would block the caller or has no
   function.

   Invariants: An operand at an unknown place counts as one on a GPU, and cudart finds its place. A
   copy between two GPUs names its devices (cudaMemcpyPeerAsync) if the stream's device has no
   access to the other one's memory; a captured copy of plain device memory does not.
   The copy of the operation is freed by the destructor of its host function. With DS__OP_BLOCKS,
   ds__cuda_submit_host_work returns after the work is done.
   Locks: none of its own. ds__cuda_submit_host_work uses host_func.h and may wait for the stream,
   so its callers hold no lock of the driver.
   Threads: any; ds__cuda_move runs in a scope of its caller. ds__cuda_host_work runs on CUDA's
   callback thread, or during shutdown on the thread that drains. */
#ifndef DS__CUDA_COPY_PLAIN_H
#define DS__CUDA_COPY_PLAIN_H

#include "../base/mapping.h"
#include "types.h"
#include "call.h"
#include "device.h"
#include "stream_wait.h"
#include "host_func.h"

/* Place of an operand of a copy: the index of a device, or one of these. */
enum { DS__CUDA_HOST = -1, DS__CUDA_ASK = -2 /* cudart finds the place */ };

/* Returns the place of an operand from that in the operation. */
static int ds__cuda_where(unsigned place) {
    if (place >= DS__AT_DEVICE)
        return (int)(place - DS__AT_DEVICE);
    return place == DS__AT_UNKNOWN ? DS__CUDA_ASK : DS__CUDA_HOST;
}

/* Returns the kind of a copy for cudart; between two devices, cudart finds the places. */
static enum cudaMemcpyKind ds__cuda_kind(int to, int from) {
    if (to == DS__CUDA_ASK || from == DS__CUDA_ASK || (to >= 0 && from >= 0 && to != from))
        return cudaMemcpyDefault;
    if (to >= 0)
        return from >= 0 ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
    return from >= 0 ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

/* Returns 1 for an operand that may be on a GPU, also if its place is unknown. */
static int ds__cuda_on_gpu(unsigned place) {
    return place == DS__AT_UNKNOWN || place >= DS__AT_DEVICE;
}

/* Access of a device to memory of another GPU. */
enum {
    DS__CUDA_NO_ACCESS,     /* a copy must name both devices */
    DS__CUDA_STAGED_ACCESS, /* none, but cudart stages a copy that names no device */
    DS__CUDA_FULL_ACCESS
};

/* Finds the access of the scope's device to memory of another GPU, which may be of any library.
   Enables peer access first. Without access, a copy of kind cudaMemcpyDefault fails for mapped
   memory and for pools ("invalid argument": llama.cpp#4638, DALI#6130): these are the kinds that
   cudaIpcGetMemHandle does not take. With access to a pool, cudaMemcpyPeerAsync may write nothing
   into it (CUDA.jl#3112). */
static ds_result ds__cuda_access_of(const ds__cuda_scope *scope, const void *ptr, int device,
                                    int *out) {
    int which[] = { 16 /* CU_POINTER_ATTRIBUTE_ACCESS_FLAGS */,
                    10 /* CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE */ };
    int flags = 0;
    int plain = 0; /* 1: memory of cudaMalloc */
    void *values[] = { &flags, &plain };
    int reach = 0;
    ds_result r = ds__cuda_device_peer(scope->device, device, &reach);
    if (r == DS_OK)
        DS__DR(*scope, r, cuPointerGetAttributes, (2, which, values, (uintptr_t)ptr));
    if (r < 0)
        return r;
    *out = DS__CUDA_FULL_ACCESS;
    if ((flags & 3) != 3)
        *out = plain ? DS__CUDA_STAGED_ACCESS : DS__CUDA_NO_ACCESS;
    else if (ds__mapping_covers((uintptr_t)ptr, 1) && atomic_load(&ds__cuda.alone[device]))
        *out = DS__CUDA_NO_ACCESS; /* other pages of the memory may be out of reach */
    return DS_OK;
}

/* As ds__cuda_access_of, for the operand of a copy between two GPUs that is not on the scope's
   device. If neither is, the access to both counts. */
static ds_result ds__cuda_copy_access(const ds__cuda_scope *scope, const ds__op *op, int to,
                                      int from, int *out) {
    int other = DS__CUDA_FULL_ACCESS;
    ds_result r = DS_OK;
    *out = DS__CUDA_FULL_ACCESS;
    if (to != scope->device)
        r = ds__cuda_access_of(scope, op->u.copy.dst, to, out);
    if (r == DS_OK && from != scope->device)
        r = ds__cuda_access_of(scope, op->u.copy.src, from, &other);
    if (other < *out)
        *out = other;
    return r;
}

/* Enqueues a copy between two GPUs, whose devices it names: also for memory without access. */
static ds_result ds__cuda_move_named(const ds__cuda_scope *scope, cudaStream_t stream,
                                     const ds__op *op, int to, int from) {
    struct cudaMemcpy3DPeerParms p;
    if (op->u.copy.height == 1)
        return DS__RT(*scope, cudaMemcpyPeerAsync,
                      (op->u.copy.dst, to, op->u.copy.src, from, op->u.copy.width, stream));
    memset(&p, 0, sizeof p);
    p.dstDevice = to;
    p.srcDevice = from;
    p.dstPtr.ptr = op->u.copy.dst;
    p.srcPtr.ptr = (void *)(uintptr_t)op->u.copy.src;
    p.dstPtr.pitch = op->u.copy.dst_pitch;
    p.srcPtr.pitch = op->u.copy.src_pitch;
    p.dstPtr.xsize = p.srcPtr.xsize = p.extent.width = op->u.copy.width;
    p.dstPtr.ysize = p.srcPtr.ysize = p.extent.height = op->u.copy.height;
    p.extent.depth = 1;
    return DS__RT(*scope, cudaMemcpy3DPeerAsync, (&p, stream));
}

/* Enqueues a copy by cudart on a native stream. Inside of a scope of the stream. */
static ds_result ds__cuda_move(const ds__cuda_scope *scope, cudaStream_t stream, const ds__op *op,
                               int to, int from) {
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    if (to >= 0 && from >= 0 && to != from) {
        int access;
        ds_result r = ds__cuda_copy_access(scope, op, to, from, &access);
        if (r < 0)
            return r;
        if (access != DS__CUDA_FULL_ACCESS)
            return ds__cuda_move_named(scope, stream, op, to, from);
    }
    enum cudaMemcpyKind kind = ds__cuda_kind(to, from);
    if (height == 1)
        return DS__RT(*scope, cudaMemcpyAsync,
                      (op->u.copy.dst, op->u.copy.src, width, kind, stream));
    return DS__RT(*scope, cudaMemcpy2DAsync,
                  (op->u.copy.dst, op->u.copy.dst_pitch, op->u.copy.src, op->u.copy.src_pitch,
                   width, height, kind, stream));
}

static void ds__cuda_copy_rows(char *dst, size_t dst_pitch, const char *src, size_t src_pitch,
                               size_t width, size_t height) {
    for (size_t y = 0; y < height; y++)
        memcpy(dst + y * dst_pitch, src + y * src_pitch, width);
}

/* A host function of the library that copies or fills host memory. cudart's copies between host
   memory block the caller, and cudart cannot fill host memory. */
static void ds__cuda_host_work(void *user) {
    const ds__op *op = user;
    if (op->kind == DS__OP_COPY) {
        ds__cuda_copy_rows(op->u.copy.dst, op->u.copy.dst_pitch, op->u.copy.src,
                           op->u.copy.src_pitch, op->u.copy.width, op->u.copy.height);
        return;
    }
    for (size_t y = 0; y < op->u.fill.height; y++) {
        char *row = (char *)op->u.fill.dst + y * op->u.fill.pitch; /* aligned to the value's size */
        uint32_t value = op->u.fill.value;
        if (op->u.fill.value_size == 1)
            memset(row, (int)(value & 255), op->u.fill.width);
        else if (op->u.fill.value_size == 2)
            for (size_t x = 0; x < op->u.fill.width; x++)
                ((uint16_t *)(void *)row)[x] = (uint16_t)value;
        else
            for (size_t x = 0; x < op->u.fill.width; x++)
                ((uint32_t *)(void *)row)[x] = value;
    }
}

/* Enqueues a copy or fill of host memory as a host function. With DS__OP_BLOCKS, waits for the
   stream. */
static ds_result ds__cuda_submit_host_work(const ds__cuda_stream *s, const ds__op *op) {
    ds__op *copy = ds__host_alloc(sizeof *copy);
    if (!copy)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a host function");
    *copy = *op;
    ds__op host = { .kind = DS__OP_HOST, .flags = (uint8_t)(op->flags & DS__OP_BLOCKS) };
    host.u.host.fn = ds__cuda_host_work;
    host.u.host.user = copy;
    host.u.host.dtor_fn = ds__host_free;
    ds_result r = ds__cuda_submit_host(s, &host);
    if (r < 0) {
        ds__host_free(copy);
        return r;
    }
    return op->flags & DS__OP_BLOCKS
               ? ds__cuda_stream_synchronize((void *)(uintptr_t)s, DS__FOREVER)
               : DS_OK;
}

#endif
