/* cpu/share.h - device memory shared between processes.

   Allocates device memory that other processes can open (ds__cpu_share_alloc), exports and
   imports it as 64 bytes. A block is a memory file; the exported bytes name the process, the
   file and a cookie.

   Invariants: the memory is reserved completely before it is mapped, so touching it cannot fail.
   Each block in the list counts in its device's `used`. An import counts nowhere, and a process
   cannot import its own memory.
   Locks: the mutex of the shared-memory registries guards the list `shares`. ds__cpu_unsafe
   takes the core's capture lock while a capture is open. The two are not held together, and
   system calls run without them.
   Threads: caller's threads. Release and close expect that no work uses the memory. */
#ifndef DS__CPU_SHARE_H
#define DS__CPU_SHARE_H

#include "types.h"
#include "capture_op.h"
#include "memory.h"

/* Memory that other processes can open. All its pages are reserved. */
typedef struct ds__cpu_share {
    struct ds__cpu_share *next;
    void *base;
    size_t size;
    uint64_t cookie;
    int fd;
} ds__cpu_share;

/* Returns the entry of the memory, or NULL. take: removes it from the list. */
static ds__cpu_share *ds__cpu_share_find(const void *base, int take) {
    ds__registries_lock();
    ds__cpu_share **p = &ds__cpu.shares;
    while (*p && (*p)->base != base)
        p = &(*p)->next;
    ds__cpu_share *s = *p;
    if (s && take)
        *p = s->next;
    ds__registries_unlock();
    return s;
}

static ds_result ds__cpu_share_alloc(int device, size_t size, void **out) {
    ds__cpu_share *s = NULL;
    ds_result r =
        ds__cpu_unsafe("memory cannot be allocated in this thread while the capture is open");
    if (r == DS_OK)
        r = ds__cpu_memory_count(device, size);
    if (r < 0)
        return r;
    uint64_t cookie = ds__os_cookie();
    int fd = size <= (size_t)1 << 60 ? ds__os_memfd(size, cookie) : -1;
    void *base = fd >= 0 && ds__os_memfd_reserve(fd, 0, size) ? ds__os_memfd_map(fd, size) : NULL;
    if (base)
        s = ds__host_alloc(sizeof *s);
    if (!s) {
        if (base)
            ds__os_unmap(base, size);
        if (fd >= 0)
            ds__os_close(fd);
        return ds__cpu_short(device, size);
    }
    s->base = base;
    s->size = size;
    s->cookie = cookie;
    s->fd = fd;
    ds__registries_lock();
    s->next = ds__cpu.shares;
    ds__cpu.shares = s;
    ds__registries_unlock();
    *out = base;
    return DS_OK;
}

static void ds__cpu_share_end(int device, void *base, size_t size, int imported) {
    ds__cpu_share *s = imported ? NULL : ds__cpu_share_find(base, 1);
    ds__os_unmap(base, size);
    if (!s)
        return;
    ds__os_close(s->fd);
    ds__host_free(s);
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
}

static ds_result ds__cpu_share_export(int device, void *base, size_t size, unsigned char *handle) {
    const ds__cpu_share *s = ds__cpu_share_find(base, 0);
    ds_result r =
        ds__cpu_unsafe("memory cannot be exported in this thread while the capture is open");
    if (r < 0)
        return r;
    if (!s || s->size != size)
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is not memory of cpu:%d that can be exported",
                        base, device);
    ds__address a = {
        DS__ADDRESS_MEMORY, (int32_t)ds__os_process_id(), s->fd, 0, 0, 0, s->cookie, size
    };
    memset(handle, 0, 64);
    memcpy(handle, &a, sizeof a);
    return DS_OK;
}

static ds_result ds__cpu_share_import(int device, const unsigned char *handle, size_t size,
                                      void **out) {
    ds__address a;
    memcpy(&a, handle, sizeof a);
    ds_result r =
        ds__cpu_unsafe("memory cannot be imported in this thread while the capture is open");
    if (r < 0)
        return r;
    if (a.kind != DS__ADDRESS_MEMORY || a.size != size)
        return ds__fail(DS_ERR_INVALID_VALUE, "the handle does not name memory of a CPU device");
    if (a.pid == (int32_t)ds__os_process_id())
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "the memory was exported by this process; use its pointer");
    int fd = ds__os_memfd_open(a.pid, a.fd, a.cookie, size);
    if (fd < 0)
        return ds__peer_fail(a.pid);
    *out = ds__os_memfd_map(fd, size);
    ds__os_close(fd);
    return *out ? DS_OK
                : ds__fail(DS_ERR_OUT_OF_MEMORY,
                           "the system cannot reserve %zu bytes of address space for cpu:%d", size,
                           device);
}

#endif
