/* alloc/pinned_source.h - memory of pinned segments.

   Allocates and frees the memory of pinned segments for upstream.h (ds__pinned_source_alloc,
   ds__pinned_source_free). The memory is the driver's pinned memory. With
   pinned_use_cuda_host_register it is ordinary memory, whose pages are touched and then
   registered. Both functions record their duration for ds_mem_pinned_get_stats.

   Invariants: Every segment stands in the table of known memory as held by the allocator
   (DS__HELD_SEGMENT). ds__pinned_source_free always returns DS_OK: no work uses the memory, and
   it counts as gone even if the driver reports an error.
   Locks: ds__host.clock_lock around the times only. The driver is called, and may block, so no
   spinning lock may be held. The caller of ds__pinned_source_alloc holds the arena's `grow`.
   Threads: caller's threads. */
#ifndef DS__ALLOC_PINNED_SOURCE_H
#define DS__ALLOC_PINNED_SOURCE_H

#include "../base/touch.h"
#include "../base/memory_table.h"
#include "../core/internal.h"
#include "types.h"
#include "pinned.h"

/* Adds the time of a driver call that began at `since`. */
static void ds__clock_add(ds__clock *c, uint64_t since) {
    int64_t ns = (int64_t)(ds__now_ns() - since);
    ds__spinlock_lock(&ds__host.clock_lock);
    if (!c->min || ns < c->min)
        c->min = ns ? ns : 1;
    if (ns > c->max)
        c->max = ns;
    c->total += ns;
    c->count++;
    ds__spinlock_unlock(&ds__host.clock_lock);
}

/* Allocates ordinary memory, touches its pages, and registers it with the driver. */
static ds_result ds__registered_alloc(size_t size, void **out) {
    int b = ds__host_backend();
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_format");
    size_t whole = (size + DS__HOST_PAGE - 1) & ~(DS__HOST_PAGE - 1);
    ds__found f;
    char *ptr = ds__os_aligned_alloc(DS__HOST_PAGE, whole);
    if (!ptr)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "the system cannot allocate %zu bytes", size);
    ds__touch_all(ptr, whole, atomic_load(&ds__host.threads));
    ds_result r = ds__range_add(ptr, size, DS_MEMORY_REGISTERED | DS__HELD_SEGMENT, b, 0);
    if (r < 0)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
    else {
        ds__tls.relaxed++;
        r = ds__g.driver[b]->host_register(ptr, size);
        ds__tls.relaxed--;
        if (r < 0)
            (void)ds__range_remove(ptr, DS_MEMORY_REGISTERED | DS__HELD_SEGMENT, &f);
    }
    if (r < 0)
        ds__os_aligned_free(ptr);
    else
        *out = ptr;
    return r;
}

/* Allocates the memory of a pinned segment; *out_source: DS__FROM_*. No spinning lock is held. */
static ds_result ds__pinned_source_alloc(size_t size, int *out_source, void **out) {
    int registers = atomic_load(&ds__host.registers);
    uint64_t since = ds__now_ns();
    *out = NULL;
    *out_source = registers ? DS__FROM_REGISTERED : DS__FROM_PINNED;
    ds_result r = registers ? ds__registered_alloc(size, out) : ds__pinned_segment_alloc(size, out);
    if (r == DS_OK)
        ds__clock_add(&ds__host.made, since);
    return r;
}

/* Frees the memory of a pinned segment. No work uses the memory, so the host does not wait, and an
   error of the driver is ignored. */
static ds_result ds__pinned_source_free(const ds__segment *s) {
    uint64_t since = ds__now_ns();
    ds__tls.mute++;
    if (s->source == DS__FROM_REGISTERED) {
        DS_IGNORE(ds__segment_end(s->base, DS_MEMORY_REGISTERED, 1));
        ds__os_aligned_free(s->base);
    } else {
        DS_IGNORE(ds__segment_end(s->base, DS_MEMORY_PINNED, 1));
    }
    ds__tls.mute--;
    ds__clock_add(&ds__host.ended, since);
    return DS_OK;
}

#endif
