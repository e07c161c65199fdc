/* alloc/upstream.h - sources of the memory of plain segments.

   ds__source_alloc takes memory for a plain segment from its pool's source: the driver, the
   user's upstream, shareable memory or pinned memory. ds__source_free returns it there.
   An upstream is user code and may call devstream and CUDA, also while a stream captures.

   Invariants: While an upstream runs, its pool is in the thread's list ds__memory_thread.inside,
   and neither grows nor returns memory from there (ds__is_inside). Memory from an upstream is
   aligned to DS__UNIT and entered in the table of known memory. If ds_device_alloc or the driver's
   allocator has entered it already, it stays theirs. Other memory known there is refused.
   Locks: no spinning lock may be held. ds__source_alloc is called with the arena's `grow` held,
   ds__source_free often with `giving` and `grow`. The driver and user code run with these
   mutexes held.
   Threads: caller's threads. An upstream runs on the thread whose allocation or trim needs it,
   and on that of ds_shutdown. */
#ifndef DS__ALLOC_UPSTREAM_H
#define DS__ALLOC_UPSTREAM_H

#include "../base/memory_table.h"
#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "util.h"
#include "pinned_source.h"
#include "ipc_records.h"
#include "resource.h"

typedef struct ds__inside {
    const ds__mem_pool *pool; /* whose segments this thread is changing meanwhile */
    const struct ds__inside *outer;
} ds__inside;

static int ds__is_inside(const ds__mem_pool *p) {
    const ds__inside *i = ds__memory_thread.inside;
    while (i && i->pool != p)
        i = i->outer;
    return i != NULL;
}

static ds_result ds__inside_fail(void) {
    return ds__fail(DS_ERR_NOT_PERMITTED, "the upstream of a pool cannot use the pool itself");
}

static void ds__upstream_free(ds__arena *a, void *ptr, size_t size) {
    ds__inside inside = { a->pool, ds__memory_thread.inside };
    ds__memory_thread.inside = &inside;
    if (a->pool->upstream.free_fn) { /* its work is done: no stream must be named */
        if (ds__up_free(&a->pool->upstream, ptr, size, (ds_stream){ 0 }) < 0)
            ds__log_warn("%zu bytes at %p could not be freed: %s", size, ptr, ds__tls.error);
    } else {
        ds__outside o = ds__resource_leave();
        a->pool->free_fn(ptr, (ptrdiff_t)size, a->dev->device.index, ds__native_of(a));
        ds__resource_return(o);
    }
    ds__memory_thread.inside = inside.outer;
}

static ds_result ds__upstream_alloc(ds__arena *a, size_t size, void **out) {
    int backend = ds__backend_of(a->dev->device);
    int index = a->dev->device.index;
    ds__found f;
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    *out = NULL;
    ds__inside inside = { a->pool, ds__memory_thread.inside };
    ds__memory_thread.inside = &inside;
    if (a->pool->upstream.alloc_fn) {
        r = ds__up_alloc(&a->pool->upstream, size, 0, ds__arena_stream(a), out);
    } else {
        ds__outside o = ds__resource_leave();
        *out = a->pool->alloc_fn((ptrdiff_t)size, index, ds__native_of(a));
        ds__resource_return(o);
    }
    ds__memory_thread.inside = inside.outer;
    ds__memory_thread.upstream_empty = !*out;
    if (!*out)
        return r;
    int known;
    int aligned = (uintptr_t)*out % DS__UNIT == 0;
    r = aligned ? ds__range_add(*out, size, DS_MEMORY_DEVICE | DS__HELD_UPSTREAM, backend, index)
                : DS_ERR_INVALID_VALUE;
    if (r == DS_OK)
        return r;
    known = aligned && r == DS_ERR_INVALID_VALUE && ds__range_find(*out, &f);
    if (known && (!f.held || f.held == DS__HELD_ASYNC) && f.kind == DS_MEMORY_DEVICE &&
        f.backend == backend && f.device == index && f.end - (uintptr_t)*out >= size)
        return DS_OK; /* of ds_device_alloc, or the driver's allocator: it stays theirs */
    ds__upstream_free(a, *out, size);
    return !aligned ? ds__fail(r, "the pool's upstream returned %p, which is not aligned to %zu",
                               *out, DS__UNIT)
           : known
               ? ds__fail(r, "the pool's upstream returned %p, which overlaps other memory", *out)
               : ds__fail(r, "no memory to keep track of a segment");
}

/* Memory for a plain segment from where the pool takes it. */
static ds_result ds__source_alloc(ds__arena *a, size_t size, int *out_source, void **out) {
    ds__mem_pool *p = a->pool;
    *out = NULL;
    if (a->dev->device.type == DS_DEVICE_HOST)
        return ds__pinned_source_alloc(size, out_source, out);
    if (p->alloc_fn) {
        *out_source = DS__FROM_UPSTREAM;
        return ds__upstream_alloc(a, size, out);
    }
    *out_source = p->shareable ? DS__FROM_SHARE : DS__FROM_DRIVER;
    return p->shareable ? ds__share_segment_alloc(a->dev->device, size, out)
                        : ds__segment_alloc(a->dev->device, size, out);
}

static ds_result ds__source_free(ds__arena *a, const ds__segment *s) {
    ds__found f;
    switch (s->source) {
    case DS__FROM_UPSTREAM:
        (void)ds__range_remove(s->base, DS_MEMORY_DEVICE | DS__HELD_UPSTREAM, &f);
        ds__upstream_free(a, s->base, s->size);
        return DS_OK;
    case DS__FROM_SHARE:
        return ds__share_segment_free(a->dev->device, s->base, s->size);
    case DS__FROM_PINNED:
    case DS__FROM_REGISTERED:
        return ds__pinned_source_free(s);
    default:
        return ds__segment_free(a->dev->device, s->base, s->size, 1);
    }
}

#endif
