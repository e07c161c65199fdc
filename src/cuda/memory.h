/* cuda/memory.h - device memory and access rights.

   Implements the entry memory_alloc. Helps the other memory rooms: ds__cuda_quiet relaxes the
   capture mode for the allocator, ds__cuda_short completes out-of-memory errors, ds__cuda_readers
   lists the devices with access to a device's memory, ds__cuda_stay_alone notes that CUDA refuses
   them, and ds__cuda_with_rdma tells whether NICs get access.

   Invariants: ds__cuda_readers lists the device itself and every device that can reach it, but only
   the device once it is `alone`; it makes no context and enables nothing. The answers of CUDA about
   pairs of devices are kept in ds__cuda.adjacent and never change.
   Locks: none.
   Threads: any. ds__cuda.adjacent is atomic; two threads may ask CUDA about the same pair at once.
   Allocations for the allocator (ds__tls.relaxed) run in relaxed capture mode; other allocations do
   not, as with cudaMalloc. */
#ifndef DS__CUDA_MEMORY_H
#define DS__CUDA_MEMORY_H

#include "types.h"
#include "call.h"

/* Relaxes the capture mode for a call of the allocator, which may run beside an open capture. Like
   ds__cuda_relax. */
static int ds__cuda_quiet(const ds__cuda_scope *scope, enum cudaStreamCaptureMode *mode) {
    return ds__tls.relaxed ? ds__cuda_relax(scope, mode) : 0;
}

/* Adds the free memory of the device to an error. Inside of a scope. */
__attribute__((cold, noinline)) static void ds__cuda_short(const ds__cuda_scope *scope,
                                                           size_t size) {
    size_t avail = 0;
    size_t total = 0;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = DS__RT_CODE(*scope, cudaMemGetInfo, (&avail, &total));
    ds__cuda_unrelax(scope, relaxed, mode);
    if (code == cudaSuccess)
        ds__fail_append(DS_ERR_OUT_OF_MEMORY, "; %zu bytes were requested, %zu of %zu are free",
                        size, avail, total);
}

static ds_result ds__cuda_memory_alloc(int device, size_t size, void **out) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    r = DS__RT(scope, cudaMalloc, (out, size));
    ds__cuda_unrelax(&scope, relaxed, mode);
    if (r == DS_ERR_OUT_OF_MEMORY)
        ds__cuda_short(&scope, size);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Lists the devices that get access to mapped memory or a pool of a device: the device, and those
   that can reach it. Neither the query nor the access makes a context. `out` has room for all
   devices. Inside of a scope. */
static ds_result ds__cuda_readers(const ds__cuda_scope *scope, int device,
                                  struct cudaMemAccessDesc *out, size_t *out_count) {
    size_t n = 0;
    int alone = atomic_load(&ds__cuda.alone[device]);
    for (int i = 0; i < ds__cuda.devices; i++) {
        if (alone && i != device)
            continue;
        unsigned char known =
            i == device ? 2
                        : atomic_load_explicit(&ds__cuda.adjacent[i][device], memory_order_relaxed);
        if (!known) {
            int can = 0;
            ds_result r = DS__RT(*scope, cudaDeviceCanAccessPeer, (&can, i, device));
            if (r < 0)
                return r;
            known = can ? 2 : 1;
            atomic_store_explicit(&ds__cuda.adjacent[i][device], known, memory_order_relaxed);
        }
        if (known != 2)
            continue;
        memset(&out[n], 0, sizeof out[n]);
        out[n].location.type = cudaMemLocationTypeDevice;
        out[n].location.id = i;
        out[n++].flags = cudaMemAccessFlagsProtReadWrite;
    }
    *out_count = n;
    return DS_OK;
}

/* Notes that CUDA refuses other devices access to memory of the scope's device, which keeps it
   alone from now on: copies then name their devices, and kernels of other devices do not use it. */
__attribute__((cold, noinline)) static void ds__cuda_stay_alone(const ds__cuda_scope *scope,
                                                                const char *call, int code,
                                                                size_t count) {
    if (atomic_exchange(&ds__cuda.alone[scope->device], 1))
        return;
    ds__log_warn("%s on cuda:%d returned %d (%s) for %zu devices; other devices have no access to "
                 "its mapped memory and its pool, and copies are staged",
                 call, scope->device, code, DS__CUDART(cudaGetErrorName)((cudaError_t)code), count);
}

/* Returns 1 if memory is mapped so that NICs can access it (GPUDirect RDMA), which the device must
   support. The answer is kept. Inside of a scope. */
static int ds__cuda_with_rdma(const ds__cuda_scope *scope) {
    unsigned char known = atomic_load_explicit(&ds__cuda.rdma[scope->device], memory_order_relaxed);
    if (!known) {
        int has = 0;
        int code;
        DS__DR_CODE(*scope, code, cuDeviceGetAttribute,
                    (&has, DS__CUDA_HAS_RDMA, ds__cuda.handle[scope->device]));
        known = !code && has ? 2 : 1; /* drivers before CUDA 11.3 do not know the attribute */
        atomic_store_explicit(&ds__cuda.rdma[scope->device], known, memory_order_relaxed);
    }
    return known == 2;
}

/* Describes memory of a device for the driver library. */
static ds__cuda_memory ds__cuda_memory_of(int device, int with_rdma) {
    ds__cuda_memory m;
    memset(&m, 0, sizeof m);
    m.type = 1;     /* CU_MEM_ALLOCATION_TYPE_PINNED */
    m.location = 1; /* CU_MEM_LOCATION_TYPE_DEVICE */
    m.device = device;
    m.rdma = (unsigned char)with_rdma;
    return m;
}

#endif
