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

#include "types.h"
#include "call.h"
#include "device.h"
#include "capture_info.h"
#include "memory.h"

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
    else
        ds__cuda_enter_any_or_not(&scope);
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    ds_result r = ds__cuda_free(&scope, kind, ptr);
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return r == DS_ERR_FAILED ? DS_OK : r;
}

/* The memory behind a pointer, as the driver library describes it. */
typedef struct ds__cuda_pointee {
    unsigned type; /* CUmemorytype; 0: no memory of CUDA */
    unsigned managed;
    int device;
} ds__cuda_pointee;

/* Opens a scope in which the thread has some context, and makes none. *out_none 1: no device has a
   context, so CUDA has no memory in this process; there is no scope then. */
static ds_result ds__cuda_enter_active(ds__cuda_scope *scope, int *out_none) {
    void *now = NULL;
    ds__cuda_anywhere(scope, -1);
    *out_none = 0;
    int code = ds__cuda.cuCtxGetCurrent(&now);
    if (code)
        return ds__cuda_fail(scope, "cuCtxGetCurrent", code);
    if (now)
        return DS_OK;
    int device = ds__cuda_active_device();
    *out_none = device < 0;
    return device < 0 ? DS_OK : ds__cuda_scope_begin(scope, device);
}

/* Asks the driver library for the memory of a pointer, because cudaPointerGetAttributes would
   create a context on the current device. Any context will do. Inside of a scope. */
static ds_result ds__cuda_pointer_ask(const ds__cuda_scope *scope, const void *ptr,
                                      ds__cuda_pointee *out) {
    int which[] = { 2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */,
                    8 /* CU_POINTER_ATTRIBUTE_IS_MANAGED */,
                    9 /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */ };
    void *values[] = { &out->type, &out->managed, &out->device };
    ds_result r;
    memset(out, 0, sizeof *out);
    DS__DR(*scope, r, cuPointerGetAttributes, (3, which, values, (uintptr_t)ptr));
    return r;
}

/* Gives the range of an allocation, if CUDA tells it. Inside of a scope. */
static void ds__cuda_pointer_range(const ds__cuda_scope *scope, const void *ptr,
                                   ds_pointer_info *out) {
    unsigned long long base = 0;
    size_t size = 0;
    int code;
    DS__DR_CODE(*scope, code, cuMemGetAddressRange, (&base, &size, (uintptr_t)ptr));
    if (code)
        return;
    out->base = (void *)(uintptr_t)base;
    out->size = size;
}

/* Describes memory that is not in the core's table. */
static ds_result ds__cuda_pointer_query(const void *ptr, ds_pointer_info *out) {
    ds__cuda_pointee to;
    ds__cuda_scope scope;
    int none;
    memset(out, 0, sizeof *out);
    out->device.type = DS_DEVICE_HOST;
    ds_result r = ds__cuda_enter_active(&scope, &none);
    if (r < 0 || none)
        return r;
    r = ds__cuda_pointer_ask(&scope, ptr, &to);
    if (r == DS_OK && to.type) {
        /* managed memory counts as memory of its device, as in cudaPointerGetAttributes */
        int on_host = to.type == 1 /* CU_MEMORYTYPE_HOST */ && !to.managed;
        int known = to.device >= 0 && to.device < ds__cuda.devices;
        out->kind = on_host || !known ? DS_MEMORY_PINNED : DS_MEMORY_DEVICE;
        if (out->kind == DS_MEMORY_DEVICE) {
            out->device = ds_cuda(to.device);
            ds__cuda_pointer_range(&scope, ptr, out);
        }
    }
    ds__cuda_scope_end(&scope);
    return r;
}

#endif
