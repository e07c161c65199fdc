/* cuda/share.h - device memory shared between processes.

   Implements the entries share_alloc, share_export, share_import and share_end with cudaMalloc and
   CUDA's handles for other processes. The handle is a cudaIpcMemHandle_t in 64 bytes.

   Invariants: An import of a handle of the same process fails with DS_ERR_ILLEGAL_STATE
   (ds__cuda_import_result). Imported memory has at least the bytes that the exporter names. No work
   uses the memory when it is closed or freed.
   Locks: none.
   Threads: any. Calls for the allocator (ds__tls.relaxed) run in relaxed capture mode. */
#ifndef DS__CUDA_SHARE_H
#define DS__CUDA_SHARE_H

#include "call.h"
#include "event.h"
#include "memory.h"

static ds_result ds__cuda_share_alloc(int device, size_t size, void **out) {
    return ds__cuda_memory_alloc(device, size, out);
}

static ds_result ds__cuda_share_export(int device, void *base, size_t size, unsigned char *out) {
    cudaIpcMemHandle_t handle;
    ds__cuda_scope scope;
    (void)size;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    r = DS__RT(scope, cudaIpcGetMemHandle, (&handle, base));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    if (r == DS_OK)
        memcpy(out, &handle, sizeof handle);
    return r;
}

/* Checks that opened memory has as many bytes as the other process says. CUDA may tell a larger
   range, because it opens the whole allocation. Inside of a scope. */
static ds_result ds__cuda_share_check(const ds__cuda_scope *scope, const void *ptr, size_t size) {
    unsigned long long base = 0;
    unsigned long long at = (uintptr_t)ptr;
    size_t whole = 0;
    ds_result r;
    DS__DR(*scope, r, cuMemGetAddressRange, (&base, &whole, at));
    if (r < 0)
        return r;
    DS__REQUIRE(at >= base && at - base <= whole && size <= whole - (at - base),
                "the imported memory has %llu bytes, but the exporter's registry names %zu",
                base + whole - at, size);
    return DS_OK;
}

static ds_result ds__cuda_share_import(int device, const unsigned char *bytes, size_t size,
                                       void **out) {
    cudaIpcMemHandle_t handle;
    ds__cuda_scope scope;
    memcpy(&handle, bytes, sizeof handle);
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    cudaError_t code =
        DS__RT_CODE(scope, cudaIpcOpenMemHandle, (out, handle, cudaIpcMemLazyEnablePeerAccess));
    r = ds__cuda_import_result(&scope, code, "cudaIpcOpenMemHandle");
    if (r == DS_OK) {
        r = ds__cuda_share_check(&scope, *out, size);
        if (r < 0)
            (void)DS__RT_CODE(scope, cudaIpcCloseMemHandle, (*out));
    }
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return r;
}

static void ds__cuda_share_end(int device, void *base, size_t size, int imported) {
    ds__cuda_scope scope;
    (void)size;
    ds__cuda_enter_or_not(&scope, device);
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    if (imported)
        (void)DS__RT_CODE(scope, cudaIpcCloseMemHandle, (base));
    else
        (void)DS__RT_CODE(scope, cudaFree, (base));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
}

#endif
