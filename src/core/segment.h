/* core/segment.h - memory of the allocator from the drivers.

   Gets memory from a driver for the allocator and gives it back. The kinds are reserved address
   space (ds__space_reserve), device and pinned segments (ds__segment_alloc), memory of the
   driver's own allocator (ds__async_alloc), and segments shared between processes.

   Policy: memory of the allocator stands in the memory table like the user's memory, so that
   copies know it. Only the allocator can give it back. Devices are resolved ones. Open captures
   forbid neither allocation nor release, because a capture may need memory. Only ds__async_alloc
   and ds__async_free are refused on a stream that captures.

   Invariants: all memory handed out here stands in the memory table with a DS__HELD_* mark; if
   it cannot be entered, it is given back. A release that fails in its wait leaves the memory as
   it was. After the wait, ds__segment_end reports success even if the driver reports an error;
   the error is logged.
   Locks: none but those inside of the memory table and of ds__space_end; none is held over a
   driver call.
   Threads: any; of two threads that give the same memory back, only one reaches the driver. */
#ifndef DS__CORE_SEGMENT_H
#define DS__CORE_SEGMENT_H

#include "../base/observe.h"
#include "thread.h"
#include "../base/memory_table.h"
#include "memory.h"

/* Reserves address space for the entries space_map and space_unmap of the device's driver.
   *out_page: the unit of mappings. */
DS__SEAM static ds_result ds__space_reserve(ds_device device, size_t size, size_t *out_page,
                                            void **out) {
    const ds__driver *driver = ds__driver_of(device);
    ds_result r = driver->space_reserve(device.index, size, out_page, out);
    if (r < 0) {
        *out = NULL;
        return r;
    }
    size = (size + *out_page - 1) / *out_page * *out_page;
    if (ds__range_add(*out, size, DS_MEMORY_DEVICE | DS__HELD_SPACE, ds__backend_of(device),
                      device.index) == DS_OK)
        return DS_OK;
    driver->space_release(device.index, *out, size);
    *out = NULL;
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes of address space",
                    size);
}

/* Releases a reservation and unmaps the mappings that are left; no work uses them any more. */
DS__SEAM static void ds__space_release(ds_device device, void *at, size_t size) {
    ds__found f;
    (void)size; /* the size as it was reserved, or rounded up */
    if (ds__range_remove(at, DS_MEMORY_DEVICE | DS__HELD_SPACE, &f))
        ds__space_end(ds__driver_of(device), device.index, at, f.end - f.base);
}

/* Allocates device memory like ds_device_alloc. */
DS__SEAM static ds_result ds__segment_alloc(ds_device device, size_t size, void **out) {
    *out = NULL;
    ds__tls.relaxed++;
    ds_result r = ds__driver_of(device)->memory_alloc(device.index, size, out);
    if (r == DS_OK)
        r = ds__memory_made(*out, size, DS_MEMORY_DEVICE | DS__HELD_SEGMENT, ds__backend_of(device),
                            device.index, out);
    ds__tls.relaxed--;
    if (r < 0)
        *out = NULL;
    return r;
}

/* Allocates pinned host memory like ds_pinned_alloc. */
DS__SEAM static ds_result ds__pinned_segment_alloc(size_t size, void **out) {
    int b = ds__host_backend();
    *out = NULL;
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_format");
    ds__tls.relaxed++;
    ds_result r = ds__g.driver[b]->host_alloc(size, out);
    if (r == DS_OK)
        r = ds__memory_made(*out, size, DS_MEMORY_PINNED | DS__HELD_SEGMENT, b, 0, out);
    ds__tls.relaxed--;
    if (r < 0)
        *out = NULL;
    return r;
}

/* Frees a segment of this kind, DS_MEMORY_*. Waits like ds_device_free and ds_pinned_free, unless
   the caller knows that no work uses the memory (idle). If the wait fails, the memory is not freed.
   After the wait the memory is freed and must not be used, even if the driver reports an error. */
DS__SEAM static ds_result ds__segment_end(void *ptr, int kind, int idle) {
    ds__found f;
    DS__REQUIRE(ds__range_remove(ptr, kind | DS__HELD_SEGMENT, &f),
                "%p is not the start of a segment", ptr);
    ds__tls.relaxed++;
    ds_result r = idle ? DS_OK : ds__memory_await(ptr, kind | DS__HELD_SEGMENT, &f);
    ds__tls.mute++;
    if (r == DS_OK && ds__memory_gone(ptr, &f) < 0)
        ds__log_warn("freeing %zu bytes at %p: %s", f.end - f.base, ptr, ds__tls.aside);
    ds__tls.mute--;
    ds__tls.relaxed--;
    return r;
}

/* Allocates memory of the driver's own allocator in the order of the stream. */
DS__SEAM static ds_result ds__async_alloc(ds__stream *s, size_t size, void **out) {
    void *ptr = NULL;
    *out = NULL;
    ds_result r = s->driver->async_alloc(s->device.index, s->native, size, &ptr);
    if (r < 0)
        return r;
    if (ds__range_add(ptr, size, DS_MEMORY_DEVICE | DS__HELD_ASYNC, ds__backend_of(s->device),
                      s->device.index) == DS_OK) {
        *out = ptr;
        return DS_OK;
    }
    if (s->driver->async_free(s->device.index, s->native, ptr, size) < 0)
        DS_IGNORE(s->driver->memory_release(DS_MEMORY_DEVICE, s->device.index, ptr, size));
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
}

/* Frees the memory in the order of the stream. On failure, nothing is freed. */
DS__SEAM static ds_result ds__async_free(ds__stream *s, void *ptr) {
    ds__found f;
    DS__REQUIRE(ds__range_remove(ptr, DS_MEMORY_DEVICE | DS__HELD_ASYNC, &f),
                "%p is not the start of memory of the driver's allocator", ptr);
    ds_result r = f.backend == ds__backend_of(s->device)
                      ? s->driver->async_free(f.device, s->native, ptr, f.end - f.base)
                      : ds__fail(DS_ERR_CROSS_DRIVER,
                                 "the memory and the stream belong to different drivers");
    /* there is room */
    if (r < 0)
        DS_IGNORE(ds__range_add(ptr, f.end - f.base, DS_MEMORY_DEVICE | DS__HELD_ASYNC, f.backend,
                                f.device));
    return r;
}

/* Allocates memory that other processes can open. With a handle, the 64 bytes of share_export,
   opens memory of another process. */
DS__SEAM static ds_result ds__shared_segment_create(ds_device device, const unsigned char *handle,
                                                    size_t size, void **out) {
    const ds__driver *driver = ds__driver_of(device);
    int kind = DS_MEMORY_DEVICE | (handle ? DS__HELD_IMPORTED : DS__HELD_SHARED);
    *out = NULL;
    ds__tls.relaxed++;
    ds_result r = handle ? driver->share_import(device.index, handle, size, out)
                         : driver->share_alloc(device.index, size, out);
    if (r == DS_OK &&
        ds__range_add(*out, size, kind, ds__backend_of(device), device.index) != DS_OK) {
        driver->share_end(device.index, *out, size, handle != NULL);
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
    }
    ds__tls.relaxed--;
    if (r < 0)
        *out = NULL;
    return r;
}

/* Frees memory that other processes can open, or closes memory of another process (imported 1). No
   work uses it. */
DS__SEAM static void ds__shared_segment_destroy(ds_device device, void *ptr, int imported) {
    ds__found f;
    if (!ds__range_remove(ptr, DS_MEMORY_DEVICE | (imported ? DS__HELD_IMPORTED : DS__HELD_SHARED),
                          &f))
        return;
    ds__tls.relaxed++;
    ds__driver_of(device)->share_end(device.index, ptr, f.end - f.base, imported);
    ds__tls.relaxed--;
}

#endif
