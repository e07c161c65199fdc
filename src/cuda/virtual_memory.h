/* cuda/virtual_memory.h - address space and mapped memory.

   Implements the entries that reserve address space and map memory behind it (space_reserve,
   space_map, space_unmap, space_release) with the driver library's virtual memory management.

   Invariants: A mapping is entered in the table of base/mapping.h before it is made and taken out
   before it is unmapped. One cuMemUnmap ends one whole mapping. The memory handle is released at
   once, so the memory lives as long as its mapping. If space_map fails, nothing stays mapped or
   entered.
   Locks: The table's functions take the core's mapping lock; no driver call runs under it.
   Threads: any. All calls run in relaxed capture mode, so no open capture forbids them. */
#ifndef DS__CUDA_VIRTUAL_MEMORY_H
#define DS__CUDA_VIRTUAL_MEMORY_H

#include "../base/mapping.h"
#include "types.h"
#include "call.h"
#include "memory.h"

/* Gives the unit in which memory of the device is mapped. Inside of a scope. */
static ds_result ds__cuda_space_page(const ds__cuda_scope *scope, size_t *out) {
    ds__cuda_memory m = ds__cuda_memory_of(scope->device);
    ds_result r;
    int has = 0;
    *out = atomic_load_explicit(&ds__cuda.page[scope->device], memory_order_relaxed);
    if (*out)
        return DS_OK;
    DS__DR(*scope, r, cuDeviceGetAttribute,
           (&has, DS__CUDA_HAS_SPACE, ds__cuda.handle[scope->device]));
    if (r < 0)
        return r;
    if (!has)
        return ds__fail(DS_ERR_UNSUPPORTED, "cuda:%d has no virtual memory management",
                        scope->device);
    DS__DR(*scope, r, cuMemGetAllocationGranularity,
           (out, &m, 0 /* CU_MEM_ALLOC_GRANULARITY_MINIMUM */));
    if (r < 0)
        return r;
    atomic_store_explicit(&ds__cuda.page[scope->device], *out, memory_order_relaxed);
    return DS_OK;
}

static ds_result ds__cuda_space_reserve(int device, size_t size, size_t *out_page, void **out) {
    ds__cuda_scope scope;
    unsigned long long at = 0;
    size_t page = 0;
    ds_result r = ds__cuda_scope_begin(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = ds__cuda_space_page(&scope, &page);
    if (r == DS_OK && (!size || size > SIZE_MAX - page))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "%zu bytes of address space are not available", size);
    if (r == DS_OK) {
        DS__DR(scope, r, cuMemAddressReserve, (&at, (size + page - 1) / page * page, page, 0, 0));
        if (r == DS_ERR_OUT_OF_MEMORY)
            ds__fail_append(r, "; %zu bytes of address space were requested", size);
    }
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    *out_page = page;
    *out = (void *)(uintptr_t)at;
    return r;
}

static void ds__cuda_space_release(int device, void *at, size_t size) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    size_t page = atomic_load(&ds__cuda.page[device]);
    int code;
    ds__cuda_enter_or_not(&scope, device);
    int relaxed = ds__cuda_relax(&scope, &mode);
    DS__DR_CODE(scope, code, cuMemAddressFree, ((uintptr_t)at, (size + page - 1) / page * page));
    (void)code;
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
}

/* Creates memory and maps it. The handle is released at once, so that the memory ends with its
   mapping. A failure of a later step undoes the mapping, which PyTorch's allocator did not do
   (pytorch#188008). Inside of a scope. */
static ds_result ds__cuda_map_memory(const ds__cuda_scope *scope, void *at, size_t size) {
    struct cudaMemAccessDesc access[DS__MAX_DEVICES];
    ds__cuda_memory m = ds__cuda_memory_of(scope->device);
    unsigned long long handle = 0;
    unsigned long long address = (uintptr_t)at;
    size_t count = 0;
    int code;
    ds_result r = ds__cuda_readers(scope, scope->device, access, &count);
    if (r < 0)
        return r;
    DS__DR(*scope, r, cuMemCreate, (&handle, size, &m, 0));
    if (r < 0)
        return r;
    DS__DR(*scope, r, cuMemMap, (address, size, 0, handle, 0));
    if (r < 0) {
        DS__DR_CODE(*scope, code, cuMemRelease, (handle));
        return r;
    }
    DS__DR(*scope, r, cuMemRelease, (handle));
    if (r < 0)
        goto fail;
    DS__DR(*scope, r, cuMemSetAccess, (address, size, access, count));
    if (r < 0)
        goto fail;
    return DS_OK;

fail:
    DS__DR_CODE(*scope, code, cuMemUnmap, (address, size));
    (void)code;
    return r;
}

static ds_result ds__cuda_space_map(int device, void *at, size_t size) {
    ds__cuda_scope scope;
    ds__mapping m;
    ds_result r = ds__mapping_add(at, size);
    if (r < 0)
        return r;
    r = ds__cuda_scope_begin(&scope, device);
    if (r == DS_OK) {
        enum cudaStreamCaptureMode mode;
        int relaxed = ds__cuda_relax(&scope, &mode);
        r = ds__cuda_map_memory(&scope, at, size);
        ds__cuda_unrelax(&scope, relaxed, mode);
        if (r == DS_ERR_OUT_OF_MEMORY)
            ds__cuda_short(&scope, size);
        ds__cuda_scope_end(&scope);
    }
    if (r < 0)
        (void)ds__mapping_remove((uintptr_t)at, (uintptr_t)at + size, &m);
    return r;
}

/* Unmaps one mapping after the other, because cuMemUnmap ends exactly one. It also ends a mapping
   if it reports the failure of earlier work. */
static ds_result ds__cuda_space_unmap(int device, void *at, size_t size) {
    ds__cuda_scope scope;
    ds__mapping m;
    enum cudaStreamCaptureMode mode;
    ds_result r = ds__mapping_check(at, size);
    if (r < 0)
        return r;
    ds__cuda_enter_or_not(&scope, device);
    int relaxed = ds__cuda_relax(&scope, &mode);
    int code;
    while (ds__mapping_remove((uintptr_t)at, (uintptr_t)at + size, &m)) {
        DS__DR_CODE(scope, code, cuMemUnmap, (m.at, m.size));
        /* only for the log */
        if (code)
            DS_IGNORE(ds__cuda_fail(&scope, "cuMemUnmap", code));
    }
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_scope_end(&scope);
    return DS_OK;
}

#endif
