/* cuda/virtual_memory.h - address space and mapped memory.

   Implements the entries that reserve address space and map memory behind it (space_reserve,
   space_map, space_unmap, space_release) with the driver library's virtual memory management.

   Invariants: A mapping is entered in the table of base/mapping.h before it is made and taken out
   before it is unmapped. One cuMemUnmap ends one whole mapping, so each page has its own; access is
   set once for a run of pages. The memory handle is released at once, so the memory lives as long
   as its mapping. A device that CUDA has refused access by others keeps its memory alone
   (ds__cuda.alone). If space_map fails, nothing stays mapped or entered.
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
    ds__cuda_memory m = ds__cuda_memory_of(scope->device, 0);
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

/* A run of pages that are mapped together. */
typedef struct ds__cuda_run {
    unsigned long long at;
    size_t size;
    size_t page;
    size_t mapped; /* bytes so far */
    int with_rdma; /* NICs can access the memory */
} ds__cuda_run;

/* Unmaps what is mapped of a run, page by page, because cuMemUnmap ends exactly one mapping. Inside
   of a scope. */
static void ds__cuda_run_unmap(const ds__cuda_scope *scope, ds__cuda_run *run) {
    int code;
    for (; run->mapped; run->mapped -= run->page)
        DS__DR_CODE(*scope, code, cuMemUnmap, (run->at + run->mapped - run->page, run->page));
    (void)code;
}

/* Creates memory for a page of a run, or without access for NICs, if the driver has announced such
   memory but refuses it. Inside of a scope. */
static ds_result ds__cuda_create_memory(const ds__cuda_scope *scope, ds__cuda_run *run,
                                        unsigned long long *out) {
    ds__cuda_memory m = ds__cuda_memory_of(scope->device, run->with_rdma);
    int code;
    DS__DR_CODE(*scope, code, cuMemCreate, (out, run->page, &m, 0));
    if (code && m.rdma && code != cudaErrorMemoryAllocation) {
        m.rdma = 0;
        DS__DR_CODE(*scope, code, cuMemCreate, (out, run->page, &m, 0));
        if (!code)
            run->with_rdma = 0; /* ds__cuda_map_memory keeps this */
    }
    return DS__LIKELY(!code) ? DS_OK : ds__cuda_fail(scope, "cuMemCreate", code);
}

/* Creates memory and maps it behind the pages of a run. The handles are released at once, so that
   the memory ends with its mapping. Inside of a scope. */
static ds_result ds__cuda_run_map(const ds__cuda_scope *scope, ds__cuda_run *run) {
    ds_result r = DS_OK;
    while (run->mapped < run->size && r == DS_OK) {
        unsigned long long handle = 0;
        int code;
        r = ds__cuda_create_memory(scope, run, &handle);
        if (r < 0)
            return r;
        DS__DR(*scope, r, cuMemMap, (run->at + run->mapped, run->page, 0, handle, 0));
        if (r < 0) {
            DS__DR_CODE(*scope, code, cuMemRelease, (handle));
            (void)code;
            return r;
        }
        run->mapped += run->page;
        DS__DR(*scope, r, cuMemRelease, (handle));
    }
    return r;
}

/* Sets access to a run for all devices that can reach it, in one call. If CUDA refuses several
   devices (711: more than 8 over PCIe, realm#155), the device keeps its memory alone. Returns
   CUDA's code; *out: the result. Inside of a scope. */
static int ds__cuda_run_share(const ds__cuda_scope *scope, const ds__cuda_run *run,
                              ds_result *out) {
    struct cudaMemAccessDesc access[DS__MAX_DEVICES];
    size_t count = 0;
    int code;
    *out = ds__cuda_readers(scope, scope->device, access, &count);
    if (*out < 0)
        return 0;
    DS__DR_CODE(*scope, code, cuMemSetAccess, (run->at, run->size, access, count));
    if (code && count > 1 && code != cudaErrorMemoryAllocation && !ds__cuda_is_sticky(code)) {
        struct cudaMemAccessDesc own = access[0];
        int first = code;
        own.location.id = scope->device;
        DS__DR_CODE(*scope, code, cuMemSetAccess, (run->at, run->size, &own, 1));
        if (!code)
            ds__cuda_stay_alone(scope, "cuMemSetAccess", first, count);
    }
    if (code && run->with_rdma && code != cudaErrorMemoryAllocation)
        *out = DS_ERR_FAILED; /* not reported: ds__cuda_map_memory tries again */
    else if (code)
        *out = ds__cuda_fail(scope, "cuMemSetAccess", code);
    return code;
}

/* Maps memory behind a run and sets the access. With WSL2, memory for NICs can be created and
   mapped, but not accessed (pytorch#192330): the run is mapped again without it, and the device is
   not asked again. A failure of a later step undoes the mappings, which PyTorch's allocator did not
   do (pytorch#188008). Inside of a scope. */
static ds_result ds__cuda_map_memory(const ds__cuda_scope *scope, ds__cuda_run *run) {
    int announced = ds__cuda_with_rdma(scope);
    run->with_rdma = announced;
    for (;;) {
        int code = 0;
        ds_result r = ds__cuda_run_map(scope, run);
        if (r == DS_OK)
            code = ds__cuda_run_share(scope, run, &r);
        if (r == DS_OK) {
            if (DS__UNLIKELY(announced && !run->with_rdma))
                atomic_store(&ds__cuda.rdma[scope->device], 1);
            return DS_OK;
        }
        ds__cuda_run_unmap(scope, run);
        if (!code || code == cudaErrorMemoryAllocation || !run->with_rdma)
            return r;
        run->with_rdma = 0;
    }
}

static ds_result ds__cuda_space_map(int device, void *at, size_t size, size_t page) {
    ds__cuda_run run = { (uintptr_t)at, size, page, 0, 0 };
    ds__cuda_scope scope;
    if (!page || !size || size % page)
        return ds__fail(DS_ERR_INVALID_VALUE, "%zu bytes are not whole pages of %zu bytes", size,
                        page);
    ds_result r = ds__mapping_add(at, size, page);
    if (r < 0)
        return r;
    r = ds__cuda_scope_begin(&scope, device);
    if (r == DS_OK) {
        enum cudaStreamCaptureMode mode;
        int relaxed = ds__cuda_relax(&scope, &mode);
        r = ds__cuda_map_memory(&scope, &run);
        ds__cuda_unrelax(&scope, relaxed, mode);
        if (r == DS_ERR_OUT_OF_MEMORY)
            ds__cuda_short(&scope, size);
        ds__cuda_scope_end(&scope);
    }
    if (r < 0)
        ds__mapping_remove_all(at, size);
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
