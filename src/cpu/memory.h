/* cpu/memory.h - device memory: allocation, mapping, stream order.

   Allocates device memory within the device's limit (ds__cpu_memory_alloc). Maps pages in
   reserved address space (ds__cpu_space_map), and allocates in stream order
   (ds__cpu_async_alloc, ds__cpu_async_free). Memory is the system's; the driver caches none, but
   remembers what was freed last, to refuse work on it (ds__cpu_pointer_query).

   Invariants: `used` never exceeds `limit`. It counts allocated, mapped, asynchronous and shared
   memory, and `async_used` the asynchronous part. A mapping is registered before its memory is
   committed, and removed before the memory is returned. Asynchronous memory is freed when the
   stream comes to the DS__CPU_OP_FREE, also on a failed stream.
   Locks: ds__cpu_freed.lock, for short steps; the counts are atomic. Mappings take
   `ds__g.mapping_lock`, ds__cpu_unsafe takes the core's capture lock, and ds__cpu_async_free takes
   the locks of a submission.
   Threads: caller's threads, any number at once. ds__cpu_async_over runs on the owner of the
   stream. */
#ifndef DS__CPU_MEMORY_H
#define DS__CPU_MEMORY_H

#include "../base/mapping.h"
#include "types.h"
#include "reach.h"
#include "failure.h"
#include "submit.h"
#include "capture.h"
#include "capture_op.h"

enum {
    DS__CPU_FREED = 64,                  /* freed pieces of memory that are remembered */
    DS__CPU_FREED_BYTES = (64 << 10) + 1 /* pieces below this size are kept while remembered */
};

/* The memory that was freed last, so that work on it is refused. A small piece stays allocated
   meanwhile: the system cannot give its addresses to the program. A large one goes back to the
   system at once, and its addresses are usually unmapped then. */
static struct {
    ds__spinlock lock;
    atomic_uint count; /* of all times */

    struct {
        atomic_uintptr_t base;
        atomic_uintptr_t end;
        void *kept; /* NULL: it went back to the system */
    } at[DS__CPU_FREED];
} ds__cpu_freed;

/* Remembers freed memory; keep: it is freed later, else the caller returns it to the system. */
static void ds__cpu_remember_freed(void *at, size_t size, int keep) {
    ds__spinlock_lock(&ds__cpu_freed.lock);
    unsigned i = atomic_load_explicit(&ds__cpu_freed.count, memory_order_relaxed);
    atomic_store_explicit(&ds__cpu_freed.count, i + 1, memory_order_relaxed);
    i %= DS__CPU_FREED;
    void *over = ds__cpu_freed.at[i].kept;
    atomic_store_explicit(&ds__cpu_freed.at[i].base, (uintptr_t)at, memory_order_relaxed);
    atomic_store_explicit(&ds__cpu_freed.at[i].end, (uintptr_t)at + size, memory_order_relaxed);
    ds__cpu_freed.at[i].kept = keep ? at : NULL;
    ds__spinlock_unlock(&ds__cpu_freed.lock);
    ds__os_aligned_free(over);
}

/* Frees memory of ds__cpu_memory. A sanitizer keeps freed memory itself. */
static void ds__cpu_memory_free(void *at, size_t size) {
#ifdef DS__SANITIZED
    int keep = 0;
#else
    int keep = size < DS__CPU_FREED_BYTES;
#endif
    if (!at)
        return;
    ds__cpu_remember_freed(at, size, keep);
    if (!keep)
        ds__os_aligned_free(at);
}

/* Forgets what was freed, at the stop of the driver. */
static void ds__cpu_freed_end(void) {
    for (unsigned i = 0; i < DS__CPU_FREED; i++)
        ds__os_aligned_free(ds__cpu_freed.at[i].kept);
    memset(&ds__cpu_freed, 0, sizeof ds__cpu_freed);
}

static int ds__cpu_freed_has(unsigned i, uintptr_t address) {
    return address >= atomic_load_explicit(&ds__cpu_freed.at[i].base, memory_order_relaxed) &&
           address < atomic_load_explicit(&ds__cpu_freed.at[i].end, memory_order_relaxed);
}

/* Returns the first remembered piece from i on that has the address, or DS__CPU_FREED. Without the
   lock it may be wrong about pieces that other threads free meanwhile. */
static unsigned ds__cpu_freed_find(unsigned i, uintptr_t address) {
    unsigned count = atomic_load_explicit(&ds__cpu_freed.count, memory_order_relaxed);
    for (; i < count && i < DS__CPU_FREED; i++)
        if (ds__cpu_freed_has(i, address))
            return i;
    return DS__CPU_FREED;
}

/* Returns 1 if the address is in freed memory that the system cannot have given out again. */
static int ds__cpu_is_freed(uintptr_t address) {
    int found = 0;
    int kept = 0;
    ds__spinlock_lock(&ds__cpu_freed.lock);
    for (unsigned i = 0; (i = ds__cpu_freed_find(i, address)) < DS__CPU_FREED && !kept; i++) {
        found = 1;
        kept = ds__cpu_freed.at[i].kept != NULL;
    }
    ds__spinlock_unlock(&ds__cpu_freed.lock);
    return found && (kept || !ds__os_is_mapped(address));
}

/* Describes memory that is not in the core's table: ordinary host memory, or freed memory of this
   driver, which is refused. The usual case, a pageable operand of a copy, takes no lock. */
static ds_result ds__cpu_pointer_query(const void *ptr, ds_pointer_info *out) {
    uintptr_t address = (uintptr_t)ptr;
    memset(out, 0, sizeof *out);
    out->device.type = DS_DEVICE_HOST;
    if (DS__LIKELY(ds__cpu_freed_find(0, address) == DS__CPU_FREED) || !ds__cpu_is_freed(address))
        return DS_OK;
    return ds__fail(DS_ERR_INVALID_VALUE, "%p is in memory of the CPU driver that was freed", ptr);
}

/* Allocates memory aligned to 512 bytes. NULL: no memory. */
static void *ds__cpu_memory(size_t size) {
    return ds__os_aligned_alloc(512, size);
}

/* Returns 1 if memory of this size is only reserved until it is touched: large memory of a dry
   device (DS_CPU_DRY). */
static int ds__cpu_is_dry(size_t size) {
    return ds__cpu_dry_run() && size >= DS__CPU_DRY_BYTES;
}

/* Rounds the size of such memory up to whole pages. The sum must not overflow. */
static size_t ds__cpu_dry_round(size_t size) {
    size_t page = ds__os_page();
    return (size + page - 1) & ~(page - 1);
}

/* Allocates memory of a device. NULL: no memory. */
static void *ds__cpu_device_memory_alloc(size_t size) {
    if (DS__UNLIKELY(ds__cpu_modes(DS__CPU_UNREACHABLE)))
        return ds__cpu_reach_alloc(size);
    if (DS__LIKELY(!ds__cpu_is_dry(size)))
        return ds__cpu_memory(size);
    if (size > SIZE_MAX - DS__CPU_DRY_BYTES)
        return NULL;
    size = ds__cpu_dry_round(size);
    void *at = ds__os_reserve(size, ds__os_page());
    if (!at || ds__os_commit(at, size))
        return at;
    ds__os_unreserve(at, size);
    return NULL;
}

static void ds__cpu_device_memory_free(void *at, size_t size) {
    if (DS__UNLIKELY(ds__cpu_modes(DS__CPU_UNREACHABLE))) {
        ds__cpu_remember_freed(at, size, 0);
        ds__cpu_reach_free(at, size);
    } else if (DS__LIKELY(!ds__cpu_is_dry(size))) {
        ds__cpu_memory_free(at, size);
    } else {
        ds__cpu_remember_freed(at, size, 0);
        ds__os_unreserve(at, ds__cpu_dry_round(size));
    }
}

/* Counts the bytes as used, unless they exceed the device's limit. */
static ds_result ds__cpu_memory_count(int device, size_t size) {
    ds__cpu_device *d = &ds__cpu.device[device];
    size_t used = atomic_load(&d->used);
    do {
        if (size > d->limit || used > d->limit - size)
            return ds__fail(DS_ERR_OUT_OF_MEMORY,
                            "%zu bytes do not fit on cpu:%d: %zu of %zu bytes are in use", size,
                            device, used, d->limit);
    } while (!atomic_compare_exchange_weak(&d->used, &used, used + size));
    return DS_OK;
}

/* Undoes ds__cpu_memory_count, and reports that the system has no memory. */
static ds_result ds__cpu_short(int device, size_t size) {
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "the system cannot allocate %zu bytes for cpu:%d", size,
                    device);
}

static ds_result ds__cpu_memory_alloc(int device, size_t size, void **out) {
    ds_result r =
        ds__cpu_unsafe("memory cannot be allocated in this thread while the capture is open");
    if (r == DS_OK)
        r = ds__cpu_memory_count(device, size);
    if (r < 0)
        return r;
    *out = ds__cpu_device_memory_alloc(size);
    return *out ? DS_OK : ds__cpu_short(device, size);
}

/* The unit of mapped memory: that of GPUs, and of the system's large pages. */
#define DS__CPU_SPACE_PAGE ((size_t)2 << 20)

static size_t ds__cpu_space_round(size_t size) {
    return (size + DS__CPU_SPACE_PAGE - 1) & ~(DS__CPU_SPACE_PAGE - 1);
}

static ds_result ds__cpu_space_reserve(int device, size_t size, size_t *out_page, void **out) {
    *out_page = DS__CPU_SPACE_PAGE;
    *out = size && size <= SIZE_MAX - DS__CPU_SPACE_PAGE
               ? ds__os_reserve(ds__cpu_space_round(size), DS__CPU_SPACE_PAGE)
               : NULL;
    return *out ? DS_OK
                : ds__fail(DS_ERR_OUT_OF_MEMORY,
                           "the system cannot reserve %zu bytes of address space for cpu:%d", size,
                           device);
}

static void ds__cpu_space_release(int device, void *at, size_t size) {
    (void)device;
    if (DS__UNLIKELY(ds__cpu_modes(DS__CPU_UNREACHABLE)))
        ds__cpu_reach_unmap(at, ds__cpu_space_round(size));
    ds__os_unreserve(at, ds__cpu_space_round(size));
}

/* Maps memory at reserved addresses. Returns 0 if there is none; a part may be mapped then. */
static int ds__cpu_space_commit(void *at, size_t size, size_t page) {
    return DS__UNLIKELY(ds__cpu_modes(DS__CPU_UNREACHABLE)) ? ds__cpu_reach_map(at, size, page)
                                                            : ds__os_commit(at, size);
}

/* Returns mapped memory to the system. */
static void ds__cpu_space_decommit(void *at, size_t size) {
    if (DS__UNLIKELY(ds__cpu_modes(DS__CPU_UNREACHABLE)))
        ds__cpu_reach_unmap(at, size);
    ds__os_decommit(at, size);
}

static ds_result ds__cpu_space_map(int device, void *at, size_t size, size_t page) {
    if (!size || size % DS__CPU_SPACE_PAGE || (uintptr_t)at % DS__CPU_SPACE_PAGE || !page ||
        size % page)
        return ds__fail(DS_ERR_INVALID_VALUE, "%zu bytes at %p are not whole pages of %zu bytes",
                        size, at, DS__CPU_SPACE_PAGE);
    ds_result r = ds__cpu_memory_count(device, size);
    if (r < 0)
        return r;
    r = ds__mapping_add(at, size, page);
    if (r < 0) {
        atomic_fetch_sub(&ds__cpu.device[device].used, size);
        return r;
    }
    if (ds__cpu_space_commit(at, size, page))
        return DS_OK;
    ds__cpu_space_decommit(at, size); /* a part may be committed */
    ds__mapping_remove_all(at, size);
    return ds__cpu_short(device, size);
}

static ds_result ds__cpu_space_unmap(int device, void *at, size_t size) {
    ds_result r = ds__mapping_check(at, size);
    if (r < 0)
        return r;
    ds__mapping_remove_all(at, size);
    ds__cpu_space_decommit(at, size);
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
    return DS_OK;
}

/* Allocates memory for use in stream order. The memory comes from the system at once; the driver
   keeps no freed memory. */
static ds_result ds__cpu_async_alloc(int device, void *stream, size_t size, void **out) {
    ds__cpu_stream *s = stream;
    ds__op op = { .kind = DS__CPU_OP_FREE };
    ds_result r;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (f)
        return ds__cpu_report(f);
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, &op, &r))
        return r;
    r = ds__cpu_memory_count(device, size);
    if (r < 0)
        return r;
    *out = ds__cpu_device_memory_alloc(size);
    if (!*out)
        return ds__cpu_short(device, size);
    atomic_fetch_add(&ds__cpu.device[device].async_used, size);
    return DS_OK;
}

/* Enqueues the free of memory. */
static ds_result ds__cpu_async_free(int device, void *stream, void *ptr, size_t size) {
    ds__cpu_stream *s = stream;
    ds__op op = { .kind = DS__CPU_OP_FREE };
    ds_result r;
    op.u.own.ptr = ptr;
    op.u.own.size = size;
    op.u.own.number = device;
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, &op, &r))
        return r;
    return ds__cpu_enqueue(s, &op, NULL);
}

/* Frees the memory of a DS__CPU_OP_FREE. */
static void ds__cpu_async_over(const ds__op *op) {
    ds__cpu_device *d = &ds__cpu.device[op->u.own.number];
    atomic_fetch_sub(&d->async_used, op->u.own.size);
    atomic_fetch_sub(&d->used, op->u.own.size);
    ds__cpu_device_memory_free(op->u.own.ptr, op->u.own.size);
}

static ds_result ds__cpu_async_trim(int device, size_t keep) {
    (void)device;
    (void)keep;
    return DS_OK;
}

static ds_result ds__cpu_async_info(int device, size_t *out_reserved, size_t *out_used) {
    *out_reserved = *out_used = atomic_load(&ds__cpu.device[device].async_used);
    return DS_OK;
}

#endif
