/* cuda/host_memory.h - pinned memory, release of memory, pointer queries.

   Implements the entries host_alloc, host_register, memory_wait, memory_release and pointer_query.
   memory_release also ends the device memory of memory.h and registrations of host memory.

   Invariants: Pinned memory is usable from all devices. memory_release releases the memory even if
   cudart reports the failure of earlier work. If an open capture lets the thread free, memory_wait
   does not wait for whole devices, which would invalidate the captures of their streams.
   ds__cuda.releases counts the threads that have found no capture and wait for whole devices.
   Locks: memory_wait takes the capture lock (ds__cuda_forbidden) and ds__cuda.mutex or
   ds__cuda.lock in turn; it waits under none of them. The other entries take none.
   Threads: any. Calls for the allocator (ds__tls.relaxed) run in relaxed capture mode, so open
   captures do not matter. memory_wait blocks the caller. */
#ifndef DS__CUDA_HOST_MEMORY_H
#define DS__CUDA_HOST_MEMORY_H

#include "../base/pin.h"
#include "types.h"
#include "call.h"
#include "device.h"
#include "capture_info.h"
#include "memory.h"

/* Opens a scope for pinned memory on the thread's current device. If that is not a GPU, takes a
   device that is in use, because a context on another one would take memory. */
static ds_result ds__cuda_enter_any(ds__cuda_scope *scope) {
    ds_device current = ds__thread_device();
    int device = 0;
    if (current.type == DS_DEVICE_CUDA)
        device = current.index;
    else
        while (device + 1 < ds__cuda.devices && !atomic_load(&ds__cuda.used[device]))
            device++;
    return ds__cuda_scope_begin(scope, device);
}

static ds_result ds__cuda_host_alloc(size_t size, void **out) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter_any(&scope);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    r = DS__RT(scope, cudaHostAlloc, (out, size, cudaHostAllocPortable));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return r;
}

static ds_result ds__cuda_host_register(void *ptr, size_t size) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter_any(&scope);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    r = DS__RT(scope, cudaHostRegister, (ptr, size, cudaHostRegisterPortable));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Waits for all work of these devices. A device that failed has no pending work. */
static ds_result ds__cuda_wait_devices(int first, int end) {
    for (int i = first; i < end; i++) {
        ds_result r = atomic_load(&ds__cuda.used[i]) ? ds__cuda_device_synchronize(i) : DS_OK;
        if (r < 0 && r != DS_ERR_FAILED)
            return r;
    }
    return DS_OK;
}

/* Waits before a release of memory. cudaFree only "may" wait (cuda_runtime_api.h; it does not
   always on CUDA 12 and 13, kokkos#9307), and the other functions are not documented to wait. A
   wait for a device would invalidate captures of its streams. If these captures allow the thread
   to free, only the other streams are waited for. Because of ds__cuda_await_releases, no capture
   begins between the look at capture_count and the wait. */
static ds_result ds__cuda_memory_wait(int device) {
    int first = device < 0 ? 0 : device;
    int end = device < 0 ? ds__cuda.devices : device + 1;
    atomic_fetch_add(&ds__cuda.releases, 1);
    if (DS__LIKELY(!atomic_load(&ds__g.capture_count))) {
        ds_result r = ds__cuda_wait_devices(first, end);
        atomic_fetch_sub(&ds__cuda.releases, 1);
        return r;
    }
    atomic_fetch_sub(&ds__cuda.releases, 1);
    if (ds__cuda_forbidden())
        return ds__cuda_wait_devices(first, end);
    return ds__cuda_wait_streams(first, end);
}

/* Frees memory in the way of its kind. Inside of a scope. */
static ds_result ds__cuda_free(const ds__cuda_scope *scope, ds_memory_kind kind, void *ptr) {
    if (kind == DS_MEMORY_DEVICE)
        return DS__RT(*scope, cudaFree, (ptr));
    if (kind == DS_MEMORY_PINNED)
        return DS__RT(*scope, cudaFreeHost, (ptr));
    return DS__RT(*scope, cudaHostUnregister, (ptr));
}

/* Releases memory. cudart may report the failure of earlier work, but releases the memory then
   too. */
static ds_result ds__cuda_memory_release(ds_memory_kind kind, int device, void *ptr, size_t size) {
    ds__cuda_scope scope;
    (void)size;
    if (kind == DS_MEMORY_DEVICE)
        ds__cuda_enter_or_not(&scope, device);
    else if (ds__cuda_enter_any(&scope) < 0 && ds__cuda_enter_any(&scope) < 0)
        ds__cuda_anywhere(&scope, -1);
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    ds_result r = ds__cuda_free(&scope, kind, ptr);
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return r == DS_ERR_FAILED ? DS_OK : r;
}

/* Describes memory that is not in the core's table. */
static ds_result ds__cuda_pointer_query(const void *ptr, ds_pointer_info *out) {
    struct cudaPointerAttributes a;
    ds__cuda_scope scope;
    memset(out, 0, sizeof *out);
    out->device.type = DS_DEVICE_HOST;
    memset(&a, 0, sizeof a);
    ds_result r = ds__cuda_enter_any(&scope);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaPointerGetAttributes, (&a, ptr));
    ds__cuda_scope_end(&scope);
    if (r < 0 || a.type == cudaMemoryTypeUnregistered)
        return r;
    if (a.type == cudaMemoryTypeHost) {
        out->kind = DS_MEMORY_PINNED;
        return DS_OK;
    }
    unsigned long long base = 0;
    size_t size = 0;
    int code;
    out->kind = DS_MEMORY_DEVICE;
    out->device = ds_cuda(a.device);
    r = ds__cuda_scope_begin(&scope, a.device);
    if (r < 0)
        return r;
    DS__DR_CODE(scope, code, cuMemGetAddressRange, (&base, &size, (uintptr_t)ptr));
    ds__cuda_scope_end(&scope);
    if (code == 0) {
        out->base = (void *)(uintptr_t)base;
        out->size = size;
    }
    return DS_OK;
}

#endif
