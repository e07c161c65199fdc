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

/* An upstream that the thread is inside of. */
typedef struct ds__inside {
    const ds__mem_pool *pool; /* the pool whose upstream runs */
    const struct ds__inside *outer;
} ds__inside;

/* Returns whether the thread is inside of the pool's upstream. */
static int ds__is_inside(const ds__mem_pool *p) {
    const ds__inside *i = ds__memory_thread.inside;
    while (i && i->pool != p)
        i = i->outer;
    return i != NULL;
}

static ds_result ds__inside_fail(void) {
    return ds__fail(DS_ERR_NOT_PERMITTED, "the upstream of a pool cannot use the pool itself");
}

/* Returns memory to the pool's upstream. All work on the memory is done. No spinning lock is
   held. */
static void ds__upstream_free(ds__arena *a, void *ptr, size_t size) {
    ds__inside inside = { a->pool, ds__memory_thread.inside };
    ds__memory_thread.inside = &inside;
    if (a->pool->upstream.free_fn) { /* without a stream, because the work is done */
        if (ds__up_free(&a->pool->upstream, ptr, size, (ds_stream){ 0 }) < 0)
            ds__log_warn("%zu bytes at %p could not be freed: %s", size, ptr, ds__tls.error);
    } else {
        ds__outside o = ds__outside_begin();
        a->pool->free_fn(ptr, (ptrdiff_t)size, a->dev->device.index, ds__native_of(a));
        ds__outside_end(o);
    }
    ds__memory_thread.inside = inside.outer;
}

/* Calls the pool's upstream. *out is NULL if the upstream gave no memory; then the result tells
   why. */
static ds_result ds__upstream_call(ds__arena *a, size_t size, void **out) {
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    *out = NULL;
    ds__inside inside = { a->pool, ds__memory_thread.inside };
    ds__memory_thread.inside = &inside;
    if (a->pool->upstream.alloc_fn) {
        r = ds__up_alloc(&a->pool->upstream, size, 0, ds__arena_stream(a), out);
    } else {
        ds__outside o = ds__outside_begin();
        *out = a->pool->alloc_fn((ptrdiff_t)size, a->dev->device.index, ds__native_of(a));
        ds__outside_end(o);
    }
    ds__memory_thread.inside = inside.outer;
    ds__memory_thread.upstream_empty = !*out;
    return r;
}

/* Returns whether known memory is device memory of ds_device_alloc or of the driver's allocator,
   with at least `size` bytes. Its entry in the table stays as it is. */
static int ds__upstream_may_use(const ds__arena *a, const ds__found *f, const void *ptr,
                                size_t size) {
    return (!f->held || f->held == DS__HELD_ASYNC) && f->kind == DS_MEMORY_DEVICE &&
           f->backend == ds__backend_of(a->dev->device) && f->device == a->dev->device.index &&
           f->end - (uintptr_t)ptr >= size;
}

/* Takes memory from the pool's upstream and enters it in the table of known memory. Refuses memory
   that is not aligned or overlaps other memory. No spinning lock is held. */
static ds_result ds__upstream_alloc(ds__arena *a, size_t size, void **out) {
    int backend = ds__backend_of(a->dev->device);
    ds__found f;
    ds_result r = ds__upstream_call(a, size, out);
    if (!*out)
        return r;
    if ((uintptr_t)*out % DS__UNIT != 0) {
        ds__upstream_free(a, *out, size);
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the pool's upstream returned %p, which is not aligned to %zu", *out,
                        DS__UNIT);
    }

    r = ds__range_add(*out, size, DS_MEMORY_DEVICE | DS__HELD_UPSTREAM, backend,
                      a->dev->device.index);
    if (r == DS_OK)
        return r;
    int known = r == DS_ERR_INVALID_VALUE && ds__range_find(*out, &f);
    if (known && ds__upstream_may_use(a, &f, *out, size))
        return DS_OK;
    ds__upstream_free(a, *out, size);
    if (known)
        return ds__fail(r, "the pool's upstream returned %p, which overlaps other memory", *out);
    return ds__fail(r, "no memory to keep track of a segment");
}

/* Takes memory for a plain segment from the pool's source; *out_source: DS__FROM_*. No spinning
   lock is held. */
static ds_result ds__source_alloc(ds__arena *a, size_t size, int *out_source, void **out) {
    ds__mem_pool *p = a->pool;
    *out = NULL;
    if (a->dev->device.type == DS_DEVICE_HOST)
        return ds__pinned_source_alloc(size, out_source, out);
    if (p->has_upstream) {
        *out_source = DS__FROM_UPSTREAM;
        return ds__upstream_alloc(a, size, out);
    }
    *out_source = p->shareable ? DS__FROM_SHARE : DS__FROM_DRIVER;
    return p->shareable ? ds__share_segment_alloc(a->dev->device, size, out)
                        : ds__segment_alloc(a->dev->device, size, out);
}

/* Returns the memory of a plain segment to its source. No spinning lock is held. */
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
        return ds__segment_end(s->base, DS_MEMORY_DEVICE, 1);
    }
}

#endif
