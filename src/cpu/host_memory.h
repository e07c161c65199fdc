/* cpu/host_memory.h - pinned memory, release of memory, and draining.

   Allocates and registers host memory (ds__cpu_host_alloc, ds__cpu_host_register).
   ds__cpu_memory_wait waits until no work uses memory, and ds__cpu_memory_release then frees
   device or pinned memory. ds__cpu_drain waits for all work of the driver.

   Invariants: ds__cpu_memory_release always succeeds, and no work uses the memory any more when
   it is called. Registered memory is not freed. ds__cpu_drain needs no memory and cannot fail.
   Locks: ds__cpu_unsafe takes the core's capture lock while a capture is open. ds__cpu_drain
   takes a device's lock to find an unfinished stream. The waits hold no lock of the driver.
   Threads: caller's threads. ds__cpu_drain runs during ds_shutdown and in ds__cpu_deinit. */
#ifndef DS__CPU_HOST_MEMORY_H
#define DS__CPU_HOST_MEMORY_H

#include "../base/touch.h"
#include "types.h"
#include "wait.h"
#include "stream_wait.h"
#include "capture_op.h"
#include "memory.h"

static ds_result ds__cpu_host_alloc(size_t size, void **out) {
    ds_result r = ds__cpu_unsafe(
        "pinned memory cannot be allocated in this thread while the capture is open");
    if (r < 0)
        return r;
    /* whole pages, which exist when the call returns, as with CUDA; those of a dry device do not */
    int touches = size >= DS__TOUCH_PAGE && !ds__cpu_is_dry(size);
    if (size > SIZE_MAX - DS__TOUCH_PAGE || (touches && size > ds__cpu.memory))
        *out = NULL;
    else if (size < DS__TOUCH_PAGE)
        *out = ds__cpu_memory(size);
    else
        *out = ds__os_aligned_alloc(DS__TOUCH_PAGE, size);
    if (!*out)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "the system cannot pin %zu bytes", size);
    if (touches)
        ds__touch_all(*out, size, (unsigned)ds__cpu.workers);
    return DS_OK;
}

static ds_result ds__cpu_host_register(void *ptr, size_t size) {
    (void)ptr;
    (void)size;
    return ds__cpu_unsafe("memory cannot be registered in this thread while the capture is open");
}

/* Waits for the work of a device, or of all devices if `device` is negative. */
static ds_result ds__cpu_memory_wait(int device) {
    ds_result r = ds__cpu_unsafe(
        "memory cannot be freed or unregistered in this thread while the capture is open");
    for (int i = device < 0 ? 0 : device;
         i < (device < 0 ? ds__cpu.devices : device + 1) && r == DS_OK; i++)
        r = ds__cpu_wait_device(i, 0, DS__FOREVER);
    return r;
}

static ds_result ds__cpu_memory_release(ds_memory_kind kind, int device, void *ptr, size_t size) {
    if (kind == DS_MEMORY_DEVICE)
        atomic_fetch_sub(&ds__cpu.device[device].used, size);
    if (kind == DS_MEMORY_DEVICE)
        ds__cpu_device_memory_free(ptr, size);
    else if (kind != DS_MEMORY_REGISTERED)
        ds__cpu_memory_free(ptr, size);
    return DS_OK;
}

/* Waits for the unfinished streams of all devices, one after the other. */
static void ds__cpu_drain(void) {
    for (int i = 0; i < ds__cpu.devices; i++) {
        ds__cpu_token t;
        do {
            t.stream = NULL;
            t.upto = 0;
            ds__spinlock_lock(&ds__cpu.device[i].lock);
            for (ds__cpu_stream *s = ds__cpu.device[i].streams; s && !t.stream; s = s->all_next)
                if (atomic_load(&s->done) < atomic_load(&s->submitted)) {
                    t.stream = s;
                    t.upto = atomic_load(&s->submitted);
                }
            ds__spinlock_unlock(&ds__cpu.device[i].lock);
            if (t.stream)
                ds__cpu_wait(t.stream, t.upto, DS__FOREVER, 0);
        } while (t.stream);
    }
}

#endif
