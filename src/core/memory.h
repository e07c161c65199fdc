/* core/memory.h - memory: look-up, entry into the table, release.

   Answers what is known of a pointer (ds__memory_table_find, ds__pointer_find), enters new memory
   into the memory table (ds__memory_made), and waits for and releases memory (ds__memory_deinit).
   ds__memory_end_all releases the remaining memory at shutdown.

   Invariants: memory leaves the table before its release waits, so only one of two concurrent
   releases succeeds. If the wait fails, the memory is entered again and nothing was released.
   ds__pointer_find expects an answer of ds__memory_table_find in *out and overwrites it only if the
   CUDA driver is there.
   Locks: none is held over a driver call. ds__space_end holds ds__g.mapping_lock to read the
   list of mappings and drops it around each space_unmap.
   Threads: any. ds__memory_end_all expects that no other thread is inside of devstream. */
#ifndef DS__CORE_MEMORY_H
#define DS__CORE_MEMORY_H

#include "../base/observe.h"
#include "../base/driver.h"
#include "../base/mapping.h"
#include "../base/memory_table.h"

/* Returns the index of the driver of host memory: the first one that is available. */
static int ds__host_backend(void) {
    return ds__g.driver[0] ? 0 : 1;
}

/* Describes memory that devstream did not allocate; only cudart may know it. */
static ds_result ds__pointer_find(const void *ptr, ds_pointer_info *out) {
    if (ds__g.driver[0] && ds__tls.in_callback) /* CUDA refuses calls there */
        return ds__fail(DS_ERR_NOT_PERMITTED,
                        "%p is not memory of devstream; inside of a host function, callback, "
                        "destructor or kernel CUDA cannot be asked for other memory",
                        ptr);
    return ds__g.driver[0] ? ds__g.driver[0]->pointer_query(ptr, out) : DS_OK;
}

/* The `device` of a range of pinned memory: who has allocated it. */
enum {
    DS__PINNED_BY_DRIVER = 0,
    DS__PINNED_PAGES = 1 /* devstream has mapped the pages and registered them */
};

/* Releases memory that was removed from the table. */
static ds_result ds__memory_release(const ds__driver *driver, ds_memory_kind kind, int device,
                                    void *ptr, size_t size) {
    if (kind != DS_MEMORY_PINNED || device != DS__PINNED_PAGES)
        return driver->memory_release(kind, device, ptr, size);
    ds_result r = driver->memory_release(DS_MEMORY_REGISTERED, 0, ptr, size);
    if (r == DS_OK)
        ds__os_unreserve(ptr, size);
    return r;
}

/* Adds new memory to the table. On failure the memory is released. */
static ds_result ds__memory_made(void *ptr, size_t size, int kind, int backend, int device,
                                 void **out) {
    if (ds__range_add(ptr, size, kind, backend, device) == DS_OK) {
        *out = ptr;
        return DS_OK;
    }
    DS_IGNORE(
        ds__memory_release(ds__g.driver[backend], (ds_memory_kind)(kind & 15), device, ptr, size));
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
}

/* Waits for the work that may use memory that was removed from the table. If the wait fails, the
   memory is added to the table again. */
static ds_result ds__memory_await(void *ptr, int kind, const ds__found *f) {
    ds_result r = DS_OK;
    if (f->kind == DS_MEMORY_DEVICE)
        r = ds__g.driver[f->backend]->memory_wait(f->device);
    else
        for (int b = 0; b < DS_BACKEND_COUNT && r == DS_OK; b++)
            if (ds__g.driver[b])
                r = ds__g.driver[b]->memory_wait(-1);
    /* cannot fail: the table has room, since the range was there before */
    if (r < 0)
        DS_IGNORE(ds__range_add(ptr, f->end - f->base, kind, f->backend, f->device));
    ds_device device = { DS_DEVICE_HOST, 0 };
    if (f->kind == DS_MEMORY_DEVICE)
        device = (ds_device){ (int32_t)ds__g.backend[f->backend].type, f->device };
    return ds__observer_notify_wait(r, (ds_stream){ 0 }, (ds_event){ 0 }, device);
}

static ds_result ds__memory_gone(void *ptr, const ds__found *f) {
    return ds__memory_release(ds__g.driver[f->backend], f->kind, f->device, ptr, f->end - f->base);
}

/* Waits for the work that may use the memory, then releases it. The table does not have the pointer
   meanwhile, so of two threads that end the same memory one is refused. If the wait fails, nothing
   is released and the table has the pointer again. */
static ds_result ds__memory_deinit(void *ptr, int kind, const char *what) {
    ds__found f;
    if (!ds__range_remove(ptr, kind, &f)) {
        DS__REQUIRE(!ds__range_find(ptr, &f) || !f.held,
                    "the memory at %p belongs to the allocator; use %s", ptr,
                    f.kind == DS_MEMORY_DEVICE ? "ds_mem_free" : "ds_mem_pinned_free");
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is not the start of %s", ptr, what);
    }
    ds_result r = ds__memory_await(ptr, kind, &f);
    return r == DS_OK ? ds__memory_gone(ptr, &f) : r;
}

/* Releases a reservation and unmaps the mappings in it. */
static void ds__space_end(const ds__driver *driver, int device, void *at, size_t size) {
    ds__spinlock_lock(&ds__g.mapping_lock);
    for (size_t i; (i = ds__mapping_after((uintptr_t)at)) < ds__g.mapping_count &&
                   ds__g.mappings[i].at < (uintptr_t)at + size;) {
        ds__mapping m = ds__g.mappings[i];
        ds__spinlock_unlock(&ds__g.mapping_lock);
        DS_IGNORE(driver->space_unmap(device, (void *)m.at, m.size));
        ds__spinlock_lock(&ds__g.mapping_lock);
    }
    ds__spinlock_unlock(&ds__g.mapping_lock);
    driver->space_release(device, at, size);
}

/* At shutdown: releases the memory that the user did not free. */
static void ds__memory_end_all(void) {
    ds__ranges *r = atomic_load(&ds__g.ranges);
    size_t count = atomic_load(&ds__g.range_count);
    for (size_t i = 0; r && i < count; i++) {
        int k = atomic_load(&r->at[i].kind_device);
        uintptr_t base = atomic_load(&r->at[i].base);
        size_t size = atomic_load(&r->at[i].end) - base;
        const ds__driver *driver = ds__g.driver[k >> 8 & 1];
        if ((k & DS__HELD) == DS__HELD_UPSTREAM)
            continue;
        if ((k & DS__HELD) == DS__HELD_SPACE)
            ds__space_end(driver, k >> 9, (void *)base, size);
        else if ((k & DS__HELD) == DS__HELD_SHARED || (k & DS__HELD) == DS__HELD_IMPORTED)
            driver->share_end(k >> 9, (void *)base, size, (k & DS__HELD) == DS__HELD_IMPORTED);
        else
            DS_IGNORE(
                ds__memory_release(driver, (ds_memory_kind)(k & 15), k >> 9, (void *)base, size));
    }
    ds__host_free(ds__g.mappings);
    ds__g.mappings = NULL;
    ds__g.mapping_count = ds__g.mapping_room = 0;
    while (r) {
        ds__ranges *older = r->older;
        ds__host_free(r);
        r = older;
    }
    atomic_store(&ds__g.mapping_taken, 0);
    atomic_store(&ds__g.ranges, NULL);
    atomic_store(&ds__g.range_count, 0);
    atomic_fetch_add(&ds__g.range_version, 2); /* the ranges that threads have cached are invalid */
}

#endif
