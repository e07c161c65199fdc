/* alloc/segment_grow.h - growing segments: pages mapped on demand.

   Lets a segment grow page by page in reserved address space, and returns pages.
   ds__grow_mapped maps pages until there is a free block of the requested size. ds__unmap_block
   unmaps the whole pages of a free block. ds__grow_space reserves the address space of a new
   segment.

   Invariants: A hole is an unmapped block of whole pages. The holes of each kind form a list in
   the order of ds__block_is_earlier; neighbouring holes are merged, and claimed holes are not in
   the list. `mapped` is the sum of the segment's blocks that are not holes, unless a thread works
   on a claimed block.
   Locks: ds__grow_mapped and ds__unmap_block expect the arena's `grow` and no spinning lock.
   They release the arena's lock while they call the driver, and take the registry's lock alone.
   ds__hole_in and ds__hole_out expect the arena's lock. Errors are muted by the caller
   (ds__tls.mute).
   Threads: any caller's thread with `grow` held. Other threads may allocate and free in the
   arena meanwhile; the block in work is claimed. */
#ifndef DS__ALLOC_SEGMENT_GROW_H
#define DS__ALLOC_SEGMENT_GROW_H

#include "../core/internal.h"
#include "types.h"
#include "config.h"
#include "state.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "address.h"
#include "bins.h"
#include "block.h"
#include "pool.h"
#include "segment.h"

/* Takes a hole out of its list. The arena is locked. */
static void ds__hole_out(ds__arena *a, ds__mem_block *b) {
    ds__block_list_out(&a->holes[b->seg->kind], b);
}

/* Returns whether a neighbour, which may be NULL, is a hole in the list. */
static int ds__hole_is_listed(const ds__mem_block *b) {
    return b && b->state == DS_BLOCK_UNMAPPED && !b->claimed;
}

/* Inserts a hole into the list, in the order of addresses, and merges it with neighbouring holes.
   A free block in front of it moves to the bin DS__EDGE. The arena is locked. */
static void ds__hole_in(ds__arena *a, ds__mem_block *b) {
    int kind = b->seg->kind;
    ds__mem_block *prev = b->prev;
    b->state = DS_BLOCK_UNMAPPED;
    if (ds__block_is_binned(prev)) {
        ds__bin_out(a, prev);
        ds__bin_in(a, prev, a->pool->config.best_fit_by_address);
    }
    if (ds__hole_is_listed(prev)) {
        ds__block_absorb_next(a, prev);
        b = prev;
    } else {
        ds__mem_block *before = NULL;
        ds__mem_block *at = a->holes[kind];
        while (at && ds__block_is_earlier(at, b)) {
            before = at;
            at = at->list_next;
        }
        ds__block_list_in(&a->holes[kind], b, before, at);
    }
    if (ds__hole_is_listed(b->next)) {
        ds__hole_out(a, b->next);
        ds__block_absorb_next(a, b);
    }
}

/* Returns the bytes of address space that a new growing segment reserves for a request of `size`
   bytes. Several segments of small blocks share a device, so each reserves less. */
static size_t ds__space_size(const ds__arena *a, int kind, size_t size, size_t page) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    size_t reserve = ds__config_reserve_size(c, a->dev->total, page);
    if (kind == DS__SMALL && !c->single_pool)
        reserve /= 16;
    if (reserve < size + 2 * page)
        reserve = size + 2 * page;
    return reserve < 16 * page ? 16 * page : reserve;
}

/* Reserves address space for another growing segment. DS_ERR_UNSUPPORTED: the device cannot do
   that, or the system has no such address space left (RLIMIT_AS), which is logged once. */
static ds_result ds__grow_space(ds__arena *a, int kind, size_t size) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    ds__mem_dev *dev = a->dev;
    size_t least = 0;
    size_t asked = kind == DS__SMALL ? c->small_segment_size : c->large_segment_size;
    size_t reserve = ds__space_size(a, kind, size, asked);
    void *base = NULL;
    ds_result r = ds__space_reserve(dev->device, reserve, &least, &base);
    if (r == DS_ERR_OUT_OF_MEMORY && !atomic_exchange(&dev->space_missed, 1))
        ds__log_warn("%s; plain segments are used instead of growing ones "
                     "(expandable_segments_reserve sets the size)",
                     ds__tls.aside);
    if (r < 0)
        return r == DS_ERR_OUT_OF_MEMORY ? DS_ERR_UNSUPPORTED : r;

    size_t page = (asked + least - 1) / least * least;
    reserve = reserve / page * page; /* whole pages; the rest stays unused */
    ds__move_begin(dev);
    ds__segment *s =
        reserve ? ds__segment_create(a, kind, DS__FROM_SPACE, base, reserve, page) : NULL;
    ds__arena_lock(a);
    ds__mem_block *b = s ? ds__segment_first_create(a, s) : NULL;
    if (b) {
        s->native = asked;
        ds__hole_in(a, b);
        ds__move_end(dev);
        ds__arena_unlock(a);
        return DS_OK;
    }

    ds__arena_unlock(a);
    if (s)
        ds__segment_destroy(s);
    ds__move_end(dev);
    ds__space_release(dev->device, base, reserve);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
}

/* Maps memory of pages, all or none, and enters the addresses. No spinning lock is held. */
static ds_result ds__segment_map(ds__arena *a, ds__segment *s, char *at, size_t size) {
    const ds__driver *driver = ds__driver_of(a->dev->device);
    int index = a->dev->device.index;
    ds_result r = ds__segment_reserve(a, size);
    if (r < 0)
        return r;
    int64_t pages = (int64_t)(size / s->page);
    r = driver->space_map(index, at, size, s->page);
    int mapped = r == DS_OK;
    DS__COUNT_CALL(a, driver_allocs, mapped ? pages : 0);
    if (mapped) {
        ds__mutex_lock(&ds__memory_state.registry);
        if (!ds__address_granules_set(s, at, size, 1))
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
        ds__mutex_unlock(&ds__memory_state.registry);
    }
    if (r == DS_OK)
        return r;
    if (mapped) {
        DS_IGNORE(driver->space_unmap(index, at, size));
        DS__COUNT_CALL(a, driver_frees, pages);
    }
    ds__segment_unreserve(a, size);
    return r;
}

/* Returns the lowest hole that makes room for `size` together with the free blocks beside it, or
   NULL. The arena is locked. */
static ds__mem_block *ds__hole_for(ds__arena *a, int kind, size_t size) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    size_t page = kind == DS__SMALL ? c->small_segment_size : c->large_segment_size;
    for (ds__mem_block *h = a->holes[kind]; h; h = h->list_next) {
        /* an empty segment whose pages have the size of an earlier policy */
        if (!h->seg->mapped && h->seg->native != page)
            continue;
        size_t room = h->size;
        if (ds__block_is_binned(h->prev))
            room += h->prev->size;
        if (ds__block_is_binned(h->next))
            room += h->next->size;
        if (room >= size)
            return h;
    }
    return NULL;
}

/* Takes `count` descriptions of blocks, so that cuts after a driver call cannot fail. Returns 0
   without host memory, and none is taken. The arena is locked. */
static int ds__spares_take(ds__arena *a, ds__mem_block **spares, int count) {
    for (int i = 0; i < count; i++) {
        spares[i] = ds__mem_block_create(a);
        if (spares[i])
            continue;
        while (i-- > 0)
            ds__mem_block_destroy(a, spares[i]);
        return 0;
    }
    return 1;
}

/* Maps as many pages of a hole as a block of `size` bytes needs, and makes them a free block. The
   arena is locked, is unlocked for the driver call, and is locked again. */
static ds_result ds__hole_map(ds__arena *a, ds__mem_block *h, size_t size) {
    ds__segment *s = h->seg;
    ds__mem_block *spare = NULL;
    ds__mem_block *prev = ds__block_is_binned(h->prev) ? h->prev : NULL;
    size_t before = prev ? prev->size : 0;
    size_t need = size > before ? size - before : 1;
    need = (need + s->page - 1) / s->page * s->page;
    if (need > h->size)
        need = h->size;
    if (!ds__spares_take(a, &spare, 1))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a block");
    ds__hole_out(a, h);
    h->claimed = 1;
    if (prev) {
        ds__bin_out(a, prev);
        prev->claimed = 1;
    }
    ds__arena_unlock(a);

    ds_result r = ds__segment_map(a, s, h->ptr, need);

    ds__arena_lock(a);
    ds__mem_block_destroy(a, spare);
    /* its neighbours may have been freed meanwhile */
    if (prev) {
        prev->claimed = 0;
        (void)ds__merge_in(a, prev);
    }
    if (r == DS_OK && need < h->size)
        ds__hole_in(a, ds__block_cut(a, h, need));
    h->claimed = 0; /* not earlier, or the rest would be merged with it */
    if (r < 0) {
        ds__hole_in(a, h);
        return r;
    }
    s->mapped += need;
    ds__count_reserved(a, s->kind, (int64_t)need);
    ds__note_segment(a, DS_ACTION_SEGMENT_MAP, h->ptr, need);
    (void)ds__merge_in(a, h);
    return DS_OK;
}

/* Lets a growing segment grow until it has a free block of `size` bytes. `grow` is held, and no
   spinning lock. */
static ds_result ds__grow_mapped(ds__arena *a, int kind, size_t size) {
    for (int grown = 0;; grown = 1) {
        ds__arena_lock(a);
        ds__mem_block *h = ds__hole_for(a, kind, size);
        ds_result r = h ? ds__hole_map(a, h, size) : DS_ERR_OUT_OF_MEMORY;
        ds__arena_unlock(a);
        if (h || grown)
            return r;
        r = ds__grow_space(a, kind, size);
        if (r < 0)
            return r;
    }
}

/* Unmaps the whole pages of a free block that is claimed and in no bin, at most `most` bytes
   rounded up. All work on the block is done. Returns the bytes; 0: the block is in its bin again.
   `grow` is held, and no spinning lock. */
static size_t ds__unmap_block(ds__arena *a, ds__mem_block *b, size_t most) {
    ds__segment *s = b->seg;
    ds__mem_block *spares[2];
    size_t from = ((size_t)(b->ptr - s->base) + s->page - 1) / s->page * s->page;
    size_t to = (size_t)(b->ptr + b->size - s->base) / s->page * s->page;
    size_t done = 0;
    ds_result r = DS_OK;
    /* the end of the block, so that the mapped memory has low addresses */
    if (to - from > s->page && most <= to - from - s->page)
        from = to - (most + s->page - 1) / s->page * s->page;
    ds__arena_lock(a);
    int spare = ds__spares_take(a, spares, 2);
    ds__arena_unlock(a);
    if (spare && from < to)
        r = ds__driver_of(a->dev->device)
                ->space_unmap(a->dev->device.index, s->base + from, to - from);
    if (spare && from < to && r == DS_OK)
        done = to - from;
    DS__COUNT_CALL(a, driver_frees, (int64_t)(done / s->page));

    ds__arena_lock(a);
    for (int i = 0; spare && i < 2; i++)
        ds__mem_block_destroy(a, spares[i]);
    if (!done) {
        b->claimed = 0;
        (void)ds__merge_in(a, b);
        ds__arena_unlock(a);
        return 0;
    }
    size_t front = (size_t)(s->base + from - b->ptr);
    ds__mem_block *hole = front ? ds__block_cut(a, b, front) : b;
    ds__mem_block *rest = hole->size > done ? ds__block_cut(a, hole, done) : NULL;
    hole->claimed = 0;
    ds__hole_in(a, hole);
    if (rest)
        (void)ds__merge_in(a, rest);
    if (front) { /* after the hole, on which its bin depends */
        b->claimed = 0;
        (void)ds__merge_in(a, b);
    }
    s->mapped -= done;
    ds__count_reserved(a, s->kind, -(int64_t)done);
    ds__note_segment(a, DS_ACTION_SEGMENT_UNMAP, s->base + from, done);
    ds__arena_unlock(a);
    ds__mutex_lock(&ds__memory_state.registry);
    ds__address_granules_set(s, s->base + from, done, 0);
    ds__mutex_unlock(&ds__memory_state.registry);
    ds__segment_unreserve(a, done);
    return done;
}

#endif
