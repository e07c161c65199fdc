/* core/user_memory.h - memory of the user: allocation, registration, queries.

   Allocates and frees device memory and pinned host memory, registers host memory, and answers
   where a pointer is.

   Invariants: all memory that these functions hand out or register stands in the memory table,
   and size 0 gives NULL. Memory with a DS__HELD_* mark cannot be freed here. ds_pinned_register
   enters the range before it calls the driver, so overlapping registrations are refused.
   Locks: none. ds_device_free, ds_pinned_free and ds_pinned_unregister wait for the device in the
   driver, without a lock.
   Threads: any; of two threads that free the same pointer, one gets an error.
   ds_device_of_scope_enter changes the current device of the calling thread. */
#ifndef DS__CORE_USER_MEMORY_H
#define DS__CORE_USER_MEMORY_H

#include "init.h"
#include "thread.h"
#include "sync_debug.h"
#include "device.h"
#include "device_query.h"
#include "../base/memory_table.h"
#include "../base/touch.h"
#include "memory.h"

#define DS__HUGE_PAGE ((size_t)2 << 20) /* of x86-64, and of aarch64 with pages of 4 KiB */

/* Reports the wait of a free, if sync debug is on. If the pointer cannot be freed, the free itself
   reports that. */
static ds_result ds__sync_watch_free(const void *ptr, int kind) {
    ds__found f;
    if (DS__LIKELY(!ds__sync_watched()))
        return DS_OK;
    if (!ds__range_find(ptr, &f) || f.base != (uintptr_t)ptr || (int)f.kind != kind || f.held)
        return DS_OK;
    if (kind == DS_MEMORY_DEVICE)
        return ds__sync_tell("waits for all work of %s:%d", f.backend ? "cpu" : "cuda", f.device);
    return ds__sync_tell("waits for all work of all devices");
}

static ds_result ds__alloc_device(ds_device device, size_t size, void **out) {
    void *ptr = NULL;
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->memory_alloc(device.index, size, &ptr));
    return r < 0 ? r
                 : ds__memory_made(ptr, size, DS_MEMORY_DEVICE, ds__backend_of(device),
                                   device.index, out);
}

DSDEF ds_result(ds_device_alloc)(ds_device device, size_t size, void **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_device_alloc");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return size ? ds__alloc_device(device, size, out) : DS_OK;
}

DSDEF ds_result(ds_device_alloc_pitch)(ds_device device, size_t width, size_t height, void **out,
                                       size_t *out_pitch) {
    if (out)
        *out = NULL;
    if (out_pitch)
        *out_pitch = 0;
    DS__ENTER("ds_device_alloc_pitch");
    DS__REQUIRE(out && out_pitch, "%s is NULL", out ? "out_pitch" : "out");
    DS__REQUIRE(width <= SIZE_MAX - 511, "a row of %zu bytes is too large", width);
    size_t pitch = (width + 511) & ~(size_t)511;
    DS__REQUIRE(pitch == 0 || height <= SIZE_MAX / pitch, "%zu rows of %zu bytes are too large",
                height, width);
    DS__RESOLVE(device);
    ds_result r = width && height ? ds__alloc_device(device, pitch * height, out) : DS_OK;
    if (r == DS_OK)
        *out_pitch = pitch;
    return r;
}

DSDEF ds_result(ds_device_free)(void *ptr) {
    DS__ENTER("ds_device_free");
    ds_result r = ptr ? ds__sync_watch_free(ptr, DS_MEMORY_DEVICE) : DS_OK;
    return ptr && r == DS_OK
               ? ds__memory_deinit(ptr, DS_MEMORY_DEVICE, "an allocation of ds_device_alloc")
               : r;
}

DSDEF ds_result(ds_pinned_alloc)(size_t size, void **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_pinned_alloc");
    DS__REQUIRE(out, "out is NULL");
    int b = ds__host_backend();
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_format");
    void *ptr = NULL;
    ds_result r = size ? ds__g.driver[b]->host_alloc(size, &ptr) : DS_OK;
    return r < 0 || !size ? r : ds__memory_made(ptr, size, DS_MEMORY_PINNED, b, 0, out);
}

/* Maps pages as the description says, and gives them their memory. *size becomes that of the
   pages. */
static ds_result ds__pages_map(const ds_pinned_desc *desc, size_t *size, void **out) {
    size_t page = desc->flags & DS_PINNED_HUGE_PAGES ? DS__HUGE_PAGE : ds__os_page();
    DS__REQUIRE(*size <= SIZE_MAX / 2, "%zu bytes are too many", *size);
    *size = (*size + page - 1) / page * page;
    /* a write to pages that the system cannot provide would end the process */
    void *ptr = *size <= ds__os_memory() ? ds__os_reserve(*size, page) : NULL;
    if (!ptr || !ds__os_commit(ptr, *size)) {
        if (ptr)
            ds__os_unreserve(ptr, *size);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "the system cannot pin %zu bytes", *size);
    }
    ds_result r = DS_OK;
    int error =
        desc->flags & DS_PINNED_NUMA_NODE ? ds__os_prefer_node(ptr, *size, desc->numa_node) : 0;
    if (error == EINVAL)
        r = ds__fail(DS_ERR_INVALID_VALUE, "NUMA node %d does not exist or has no memory",
                     desc->numa_node);
    else if (error)
        r = ds__fail(DS_ERR_UNSUPPORTED, "the system refuses memory of NUMA node %d: %s",
                     desc->numa_node, strerror(error));
    else if (desc->flags & DS_PINNED_HUGE_PAGES && !ds__os_large_pages(ptr, *size))
        r = ds__fail(DS_ERR_UNSUPPORTED, "the system has no transparent huge pages: %s",
                     strerror(errno));
    if (r < 0) {
        ds__os_unreserve(ptr, *size);
        return r;
    }
    ds__touch_all(ptr, *size, (unsigned)ds__os_processors());
    *out = ptr;
    return DS_OK;
}

DSDEF ds_result(ds_pinned_alloc_with)(size_t size, const ds_pinned_desc *desc, void **out) {
    const unsigned known = DS_PINNED_NUMA_NODE | DS_PINNED_HUGE_PAGES;
    if (out)
        *out = NULL;
    DS__ENTER("ds_pinned_alloc_with");
    DS__REQUIRE(out && desc, "%s is NULL", out ? "desc" : "out");
    DS__REQUIRE(!(desc->flags & ~known), "flags 0x%x has unknown bits; known are 0x%x", desc->flags,
                known);
    DS__REQUIRE(!(desc->flags & DS_PINNED_NUMA_NODE) ||
                    (desc->numa_node >= 0 && desc->numa_node < 1024),
                "numa_node is %d; allowed are 0 to 1023", desc->numa_node);
    int b = ds__host_backend();
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_format");
    void *ptr = NULL;
    ds_result r = size ? ds__pages_map(desc, &size, &ptr) : DS_OK;
    if (r < 0 || !size)
        return r;
    r = ds__g.driver[b]->host_register(ptr, size);
    if (r < 0) {
        ds__os_unreserve(ptr, size);
        return r;
    }
    return ds__memory_made(ptr, size, DS_MEMORY_PINNED, b, DS__PINNED_PAGES, out);
}

DSDEF ds_result(ds_pinned_free)(void *ptr) {
    DS__ENTER("ds_pinned_free");
    ds_result r = ptr ? ds__sync_watch_free(ptr, DS_MEMORY_PINNED) : DS_OK;
    return ptr && r == DS_OK
               ? ds__memory_deinit(ptr, DS_MEMORY_PINNED, "an allocation of ds_pinned_alloc")
               : r;
}

DSDEF ds_result(ds_pinned_register)(void *ptr, size_t size) {
    DS__ENTER("ds_pinned_register");
    DS__REQUIRE(ptr && size, "ptr is %p and size is %zu; neither may be 0", ptr, size);
    DS__REQUIRE(size <= UINTPTR_MAX - (uintptr_t)ptr, "%zu bytes exceed the address space", size);
    int b = ds__host_backend();
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_format");
    /* first: it refuses a range that overlaps known memory */
    ds_result r = ds__range_add(ptr, size, DS_MEMORY_REGISTERED, b, 0);
    if (r == DS_ERR_INVALID_VALUE)
        return ds__fail(r, "the range overlaps registered or allocated memory");
    if (r < 0)
        return ds__fail(r, "no memory to register a range");
    ds__found f;
    r = ds__g.driver[b]->host_register(ptr, size);
    if (r < 0)
        (void)ds__range_remove(ptr, DS_MEMORY_REGISTERED, &f);
    return r;
}

DSDEF ds_result(ds_pinned_unregister)(void *ptr) {
    DS__ENTER("ds_pinned_unregister");
    ds_result r = ds__sync_watch_free(ptr, DS_MEMORY_REGISTERED);
    return r < 0 ? r : ds__memory_deinit(ptr, DS_MEMORY_REGISTERED, "a registered range");
}

DSDEF ds_result(ds_pointer_get_info)(const void *ptr, ds_pointer_info *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER_QUERY("ds_pointer_get_info");
    DS__REQUIRE(out, "out is NULL");
    return ds__memory_table_find(ptr, out) ? DS_OK : ds__pointer_find(ptr, out);
}

static ds_result ds__device_of(const void *ptr, ds_device *out) {
    ds_pointer_info info;
    ds_result r = ds__memory_table_find(ptr, &info) ? DS_OK : ds__pointer_find(ptr, &info);
    if (r == DS_OK)
        *out = info.device;
    return r;
}

DSDEF ds_result(ds_pointer_get_device)(const void *ptr, ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER_QUERY("ds_pointer_get_device");
    DS__REQUIRE(out, "out is NULL");
    return ds__device_of(ptr, out);
}

DSDEF ds_scope(ds_device_of_scope_enter)(const void *ptr) {
    ds_scope scope = { 0, 0 };
    ds_device device = { 0, 0 };
    if (ds__api_enter("ds_device_of_scope_enter") < 0 || ds__device_of(ptr, &device) < 0)
        return scope;
    if (device.type == DS_DEVICE_HOST)
        device.type = DS_DEVICE_CURRENT;
    if (ds__device_push(device) == DS_OK)
        scope.pushed = scope.once = 1;
    return scope;
}

#endif
