/* cuda/pool.h - stream-ordered allocation from CUDA's default pool.

   Implements the driver's own allocator (async_alloc, async_free, async_trim, async_info) over the
   default memory pool of each device. ds__cuda_pool sets the pool up at its first use,
   ds__cuda_pool_deinit restores it.

   Invariants: ds__cuda.pool holds a pool only after its set-up: reuse is allowed, other devices
   have access unless CUDA refuses it, and freed memory is kept. The former attributes are stored
   and set again at the end. A stream that captures is refused both allocation and free, and the
   capture stays valid. The calls run in relaxed capture mode, because a capture forbids them on
   other streams too (docs/gpu, P11).
   Locks: ds__cuda_pool takes ds__cuda.mutex across the driver calls of the set-up.
   ds__cuda_not_captured takes the capture lock, after the mutex is released, and calls CUDA under
   it. Allocation and free themselves run without a lock.
   Threads: any. ds__cuda_pool_deinit runs while the driver stops. */
#ifndef DS__CUDA_POOL_H
#define DS__CUDA_POOL_H

#include "types.h"
#include "call.h"
#include "host_func.h"
#include "capture_info.h"
#include "capture_op.h"
#include "memory.h"

static const enum cudaMemPoolAttr ds__cuda_reuse[] = { cudaMemPoolReuseFollowEventDependencies,
                                                       cudaMemPoolReuseAllowOpportunistic,
                                                       cudaMemPoolReuseAllowInternalDependencies };

/* Gives all other devices access to the device's pool, since peer access does not apply to pools.
   If one of them cannot reach the device, none gets access: a copy from that one would name its
   devices, and such a copy may write nothing into a pool with access (CUDA.jl#3112). If CUDA
   refuses several devices (711: more than 8 over PCIe, realm#155), the device keeps its pool alone.
   Inside of a scope. */
static ds_result ds__cuda_pool_share(const ds__cuda_scope *scope, cudaMemPool_t pool) {
    struct cudaMemAccessDesc access[DS__MAX_DEVICES];
    size_t count = 0;
    ds_result r = ds__cuda_readers(scope, scope->device, access, &count);
    if (r < 0 || count < 2 || count < (size_t)ds__cuda.devices)
        return r;
    cudaError_t code = DS__RT_CODE(*scope, cudaMemPoolSetAccess, (pool, access, count));
    if (code == cudaSuccess)
        return DS_OK;
    if (code == cudaErrorMemoryAllocation || ds__cuda_is_sticky((int)code))
        return ds__cuda_fail(scope, "cudaMemPoolSetAccess", (int)code);
    ds__cuda_stay_alone(scope, "cudaMemPoolSetAccess", (int)code, count);
    return DS_OK;
}

/* Sets the attributes of a pool, and stores the former ones. Inside of a scope. */
static ds_result ds__cuda_pool_set(const ds__cuda_scope *scope, cudaMemPool_t pool) {
    unsigned long long keep = UINT64_MAX;
    unsigned long long before = 0;
    int reuse[3] = { 0 };
    int on = 1;
    int set = 0;
    ds_result r =
        DS__RT(*scope, cudaMemPoolGetAttribute, (pool, cudaMemPoolAttrReleaseThreshold, &before));
    for (int i = 0; i < 3 && r == DS_OK; i++)
        r = DS__RT(*scope, cudaMemPoolGetAttribute, (pool, ds__cuda_reuse[i], &reuse[i]));
    for (; set < 3 && r == DS_OK; set++)
        r = DS__RT(*scope, cudaMemPoolSetAttribute, (pool, ds__cuda_reuse[set], &on));
    if (r == DS_OK)
        r = DS__RT(*scope, cudaMemPoolSetAttribute, (pool, cudaMemPoolAttrReleaseThreshold, &keep));
    if (r < 0) {
        for (int i = 0; i < set; i++)
            (void)DS__RT_CODE(*scope, cudaMemPoolSetAttribute,
                              (pool, ds__cuda_reuse[i], &reuse[i]));
        return r;
    }
    ds__cuda.threshold[scope->device] = before;
    memcpy(ds__cuda.reuse[scope->device], reuse, sizeof reuse);
    return DS_OK;
}

/* Sets up the device's default pool as PyTorch does: the pool keeps freed memory, which any stream
   may use again. The mutex is held, so that this happens once. Inside of a scope. */
static ds_result ds__cuda_pool_init(const ds__cuda_scope *scope, cudaMemPool_t *out) {
    int has = 0;
    ds_result r = DS__RT(*scope, cudaDeviceGetAttribute,
                         (&has, cudaDevAttrMemoryPoolsSupported, scope->device));
    if (r == DS_OK && !has)
        r = ds__fail(DS_ERR_UNSUPPORTED, "cuda:%d has no memory pools", scope->device);
    if (r == DS_OK)
        r = DS__RT(*scope, cudaDeviceGetDefaultMemPool, (out, scope->device));
    if (r == DS_OK)
        r = ds__cuda_pool_share(scope, *out);
    return r == DS_OK ? ds__cuda_pool_set(scope, *out) : r;
}

/* Gives the device's pool, which the first call sets up. Inside of a scope. */
static ds_result ds__cuda_pool(const ds__cuda_scope *scope, cudaMemPool_t *out) {
    ds_result r = DS_OK;
    *out = atomic_load_explicit(&ds__cuda.pool[scope->device], memory_order_acquire);
    if (DS__LIKELY(*out))
        return DS_OK;
    ds__mutex_lock(&ds__cuda.mutex);
    *out = atomic_load(&ds__cuda.pool[scope->device]);
    if (!*out) {
        r = ds__cuda_pool_init(scope, out);
        if (r == DS_OK)
            atomic_store_explicit(&ds__cuda.pool[scope->device], *out, memory_order_release);
    }
    ds__mutex_unlock(&ds__cuda.mutex);
    return r;
}

/* Refuses an allocation or free on a stream that captures, where it would become a node. Inside of
   a scope of the stream. */
static ds_result ds__cuda_not_captured(ds__cuda_scope *scope, ds__cuda_stream *s) {
    ds__cuda_look now;
    ds__capture *c;
    int capturing = 0;
    ds_result r = ds__cuda_is_capturing(scope, s, &capturing);
    if (r < 0 || !capturing)
        return r;
    ds__cuda_lock();
    r = ds__cuda_find_capture(scope, s, &now, &c);
    if (r == DS_OK)
        r = ds__cuda_refuse(scope,
                            "the driver's pool cannot allocate or free on a stream that captures");
    ds__cuda_unlock();
    return r;
}

static ds_result ds__cuda_async_alloc(int device, void *stream, size_t size, void **out) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    cudaMemPool_t pool;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    (void)device;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = ds__cuda_pool(&scope, &pool);
    if (r == DS_OK)
        r = ds__cuda_not_captured(&scope, s);
    if (r == DS_OK)
        r = DS__RT(scope, cudaMallocAsync, (out, size, s->handle));
    ds__cuda_unrelax(&scope, relaxed, mode);
    if (r == DS_ERR_OUT_OF_MEMORY)
        ds__cuda_short(&scope, size);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Frees memory in stream order. On a failed device, CUDA frees it and reports the failure. */
static ds_result ds__cuda_async_free(int device, void *stream, void *ptr, size_t size) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    (void)device;
    (void)size;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = ds__cuda_not_captured(&scope, s);
    if (r == DS_OK)
        r = DS__RT(scope, cudaFreeAsync, (ptr, s->handle));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return r == DS_ERR_FAILED ? DS_OK : r;
}

static ds_result ds__cuda_async_trim(int device, size_t keep) {
    ds__cuda_scope scope;
    cudaMemPool_t pool;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = ds__cuda_pool(&scope, &pool);
    if (r == DS_OK)
        r = DS__RT(scope, cudaMemPoolTrimTo, (pool, keep));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_async_info(int device, size_t *out_reserved, size_t *out_used) {
    ds__cuda_scope scope;
    cudaMemPool_t pool;
    unsigned long long reserved = 0;
    unsigned long long used = 0;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = ds__cuda_pool(&scope, &pool);
    if (r == DS_OK)
        r = DS__RT(scope, cudaMemPoolGetAttribute,
                   (pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    if (r == DS_OK)
        r = DS__RT(scope, cudaMemPoolGetAttribute, (pool, cudaMemPoolAttrUsedMemCurrent, &used));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    *out_reserved = (size_t)reserved;
    *out_used = (size_t)used;
    return r;
}

/* Restores the attributes of the device's pool, and frees the memory that it keeps. The access of
   other devices stays, because the program may rely on it too. Inside of a scope. */
static void ds__cuda_pool_deinit(const ds__cuda_scope *scope, int device) {
    enum cudaStreamCaptureMode mode;
    cudaMemPool_t pool = atomic_exchange(&ds__cuda.pool[device], NULL);
    if (!pool)
        return;
    int relaxed = ds__cuda_relax(scope, &mode);
    (void)DS__RT_CODE(*scope, cudaMemPoolSetAttribute,
                      (pool, cudaMemPoolAttrReleaseThreshold, &ds__cuda.threshold[device]));
    for (int i = 0; i < 3; i++)
        (void)DS__RT_CODE(*scope, cudaMemPoolSetAttribute,
                          (pool, ds__cuda_reuse[i], &ds__cuda.reuse[device][i]));
    (void)DS__RT_CODE(*scope, cudaMemPoolTrimTo, (pool, 0));
    ds__cuda_unrelax(scope, relaxed, mode);
}

#endif
