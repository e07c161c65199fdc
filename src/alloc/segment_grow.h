/* alloc/segment_grow.h - growing segments: pages mapped on demand.

   Lets a segment grow page by page in reserved address space, and returns pages.
   ds__grow_mapped maps pages until there is a free block of the requested size. ds__unmap_block
   unmaps the whole pages of a free block. ds__grow_space reserves the address space of a new
   segment.

   Invariants: A hole is an unmapped block of whole pages. The holes of each kind form a list in
   the order of ds__block_is_earlier; neighbouring holes are merged, and quiet holes are not in the
   list. `mapped` is the sum of the segment's blocks that are not holes, unless a thread works on a
   quiet block.
   Locks: ds__grow_mapped and ds__unmap_block expect the arena's `grow` and no spinning lock.
   They release the arena's lock while they call the driver, and take the registry's lock alone.
   ds__hole_in and ds__hole_out expect the arena's lock. Errors are muted by the caller
   (ds__tls.mute).
   Threads: any caller's thread with `grow` held. Other threads may allocate and free in the
   arena meanwhile; the block in work is quiet. */
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

/* Inserts a hole into the list, in the order of addresses, and merges it with neighbouring holes.
   A free block in front of it moves to the bin DS__EDGE. The arena is locked. */
static void ds__hole_in(ds__arena *a, ds__mem_block *b) {
    int kind = b->seg->kind;
    ds__mem_block *prev = b->prev;
    b->state = DS_BLOCK_UNMAPPED;
    if (prev && prev->state == DS_BLOCK_FREE && !prev->quiet) {
        ds__bin_out(a, prev);
        ds__bin_in(a, prev, a->pool->config.best_fit_by_address);
    }
    if (prev && prev->state == DS_BLOCK_UNMAPPED && !prev->quiet) {
        prev->size += b->size;
        prev->next = b->next;
        if (b->next)
            b->next->prev = prev;
        ds__mem_block_drop(a, b);
        b = prev;
    } else {
        ds__mem_block *before = NULL;
        ds__mem_block *at = a->holes[kind];
        while (at && ds__block_is_earlier(at, b)) {
            before = at;
            at = at->list_next;
        }
        b->list_prev = before;
        b->list_next = at;
        if (at)
            at->list_prev = b;
        if (before)
            before->list_next = b;
        else
            a->holes[kind] = b;
    }
    ds__mem_block *next = b->next;
    if (next && next->state == DS_BLOCK_UNMAPPED && !next->quiet) {
        if (next->list_prev)
            next->list_prev->list_next = next->list_next;
        else
            a->holes[kind] = next->list_next;
        if (next->list_next)
            next->list_next->list_prev = next->list_prev;
        b->size += next->size;
        b->next = next->next;
        if (b->next)
            b->next->prev = b;
        ds__mem_block_drop(a, next);
    }
}

static void ds__hole_out(ds__arena *a, ds__mem_block *b) {
    if (b->list_prev)
        b->list_prev->list_next = b->list_next;
    else
        a->holes[b->seg->kind] = b->list_next;
    if (b->list_next)
        b->list_next->list_prev = b->list_prev;
}

/* Reserves address space for another growing segment. DS_ERR_UNSUPPORTED: the device cannot do
   that, or the system has no such address space left (RLIMIT_AS), which is logged once. */
static ds_result ds__grow_space(ds__arena *a, int kind, size_t size) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    ds__mem_dev *dev = a->dev;
    size_t least = 0;
    size_t page = kind == DS__SMALL ? c->small_segment_size : c->large_segment_size;
    size_t reserve = ds__config_reserve_size(c, dev->total, page);
    void *base = NULL;
    /* another one follows when it is full */
    if (kind == DS__SMALL && !c->single_pool)
        reserve /= 16;
    if (reserve < size + 2 * page)
        reserve = size + 2 * page;
    if (reserve < 16 * page)
        reserve = 16 * page;
    ds_result r = ds__space_reserve(dev->device, reserve, &least, &base);
    if (r == DS_ERR_OUT_OF_MEMORY && !atomic_exchange(&dev->space_missed, 1))
        ds__log_warn("%s; plain segments are used instead of growing ones "
                     "(expandable_segments_reserve sets the size)",
                     ds__tls.aside);
    if (r < 0)
        return r == DS_ERR_OUT_OF_MEMORY ? DS_ERR_UNSUPPORTED : r;
    size_t asked = page;
    page = (page + least - 1) / least * least;
    reserve = reserve / page * page; /* whole pages; what is behind them stays unused */
    ds__move_begin(dev);
    ds__segment *s = reserve ? ds__segment_new(a, kind, DS__FROM_SPACE, base, reserve, page) : NULL;
    ds__arena_lock(a);
    ds__mem_block *b = s ? ds__mem_block_new(a) : NULL;
    if (!b) {
        ds__arena_unlock(a);
        if (s)
            ds__segment_drop(s);
        ds__move_end(dev);
        ds__space_release(dev->device, base, reserve);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
    }
    memset(b, 0, sizeof *b);
    b->ptr = base;
    b->size = reserve;
    b->seg = s;
    s->first = b;
    s->native = asked;
    ds__segment_in(a, s);
    ds__hole_in(a, b);
    ds__move_end(dev);
    ds__arena_unlock(a);
    return DS_OK;
}

/* Memory behind pages; all or nothing. */
static ds_result ds__segment_map(ds__arena *a, ds__segment *s, char *at, size_t size) {
    const ds__driver *driver = ds__driver_of(a->dev->device);
    int index = a->dev->device.index;
    ds_result r = ds__segment_reserve(a, size);
    if (r < 0)
        return r;
    size_t done = 0;
    for (; done < size && r == DS_OK; done += s->page) {
        r = driver->space_map(index, at + done, s->page);
        DS__COUNT_CALL(a, driver_allocs, r == DS_OK);
    }
    if (r == DS_OK) {
        ds__mutex_lock(&ds__memory_state.registry);
        if (!ds__address_granules_set(s, at, size, 1))
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
        ds__mutex_unlock(&ds__memory_state.registry);
    } else {
        done -= s->page;
    }
    if (r == DS_OK)
        return r;
    for (size_t i = 0; i < done; i += s->page) {
        DS_IGNORE(driver->space_unmap(index, at + i, s->page));
        DS__COUNT_CALL(a, driver_frees, 1);
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
        /* empty, and of another policy */
        if (!h->seg->mapped && h->seg->native != page)
            continue;
        size_t room = h->size;
        if (h->prev && h->prev->state == DS_BLOCK_FREE && !h->prev->quiet)
            room += h->prev->size;
        if (h->next && h->next->state == DS_BLOCK_FREE && !h->next->quiet)
            room += h->next->size;
        if (room >= size)
            return h;
    }
    return NULL;
}

/* Takes `count` descriptions of blocks, for cuts after a driver call: a cut must not fail when
   pages are mapped or unmapped already. 0: out of memory, none is taken. The arena is locked. */
static int ds__spares_take(ds__arena *a, ds__mem_block **spares, int count) {
    for (int i = 0; i < count; i++) {
        spares[i] = ds__mem_block_new(a);
        if (spares[i])
            continue;
        while (i-- > 0)
            ds__mem_block_drop(a, spares[i]);
        return 0;
    }
    return 1;
}

/* Maps pages of a hole, at most `need` bytes, and makes them a free block. The arena is locked,
   is unlocked for the driver call, and is locked again. */
static ds_result ds__hole_map(ds__arena *a, ds__mem_block *h, size_t size) {
    ds__segment *s = h->seg;
    ds__mem_block *spare = NULL;
    ds__mem_block *prev =
        h->prev && h->prev->state == DS_BLOCK_FREE && !h->prev->quiet ? h->prev : NULL;
    size_t before = prev ? prev->size : 0;
    size_t need = size > before ? size - before : 1;
    need = (need + s->page - 1) / s->page * s->page;
    if (need > h->size)
        need = h->size;
    if (!ds__spares_take(a, &spare, 1))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a block");
    ds__hole_out(a, h);
    h->quiet = 1;
    if (prev) {
        ds__bin_out(a, prev);
        prev->quiet = 1;
    }
    ds__arena_unlock(a);

    ds_result r = ds__segment_map(a, s, h->ptr, need);

    ds__arena_lock(a);
    ds__mem_block_drop(a, spare);
    /* its neighbours may have been freed meanwhile */
    if (prev) {
        prev->quiet = 0;
        (void)ds__merge_in(a, prev);
    }
    if (r == DS_OK && need < h->size)
        ds__hole_in(a, ds__block_cut(a, h, need));
    h->quiet = 0; /* not before the rest has found its place */
    if (r < 0) {
        ds__hole_in(a, h);
        return r;
    }
    s->mapped += need;
    ds__count_reserved(a, s->kind, (int64_t)need);
    ds__mem_note(a->dev, DS_ACTION_SEGMENT_MAP, (uint64_t)(uintptr_t)h->ptr, need, a->stream_id,
                 a->pool->id, ds__tls.site.file, (uint32_t)ds__tls.site.line, NULL);
    (void)ds__merge_in(a, h);
    return DS_OK;
}

/* Lets a growing segment grow until it has a free block of `size`. `grow` is held, no spinning
   lock. */
static ds_result ds__grow_mapped(ds__arena *a, int kind, size_t size) {
    for (int again = 0; again < 2; again++) {
        ds__arena_lock(a);
        ds__mem_block *h = ds__hole_for(a, kind, size);
        ds_result r = h ? ds__hole_map(a, h, size) : DS_ERR_OUT_OF_MEMORY;
        ds__arena_unlock(a);
        if (h)
            return r;
        r = again ? DS_ERR_OUT_OF_MEMORY : ds__grow_space(a, kind, size);
        if (r < 0)
            return r;
    }
    return DS_ERR_OUT_OF_MEMORY;
}

/* Unmaps the whole pages of a free block that is quiet and in no bin; the stream has passed all
   uses of it. Returns the bytes; 0: the block is as before. `grow` is held. */
static size_t ds__unmap_block(ds__arena *a, ds__mem_block *b, size_t most) {
    ds__segment *s = b->seg;
    ds__mem_block *spares[2];
    size_t from = ((size_t)(b->ptr - s->base) + s->page - 1) / s->page * s->page;
    size_t to = (size_t)(b->ptr + b->size - s->base) / s->page * s->page;
    size_t done = 0;
    ds_result r = DS_OK;
    /* the end: what stays is low */
    if (to - from > s->page && most <= to - from - s->page)
        from = to - (most + s->page - 1) / s->page * s->page;
    ds__arena_lock(a);
    int spare = ds__spares_take(a, spares, 2);
    ds__arena_unlock(a);
    for (; spare && from + done < to && r == DS_OK; done += s->page)
        r = ds__driver_of(a->dev->device)
                ->space_unmap(a->dev->device.index, s->base + from + done, s->page);
    if (r < 0)
        done -= s->page;
    DS__COUNT_CALL(a, driver_frees, (int64_t)(done / s->page));

    ds__arena_lock(a);
    for (int i = 0; spare && i < 2; i++)
        ds__mem_block_drop(a, spares[i]);
    if (!done) {
        b->quiet = 0;
        (void)ds__merge_in(a, b);
        ds__arena_unlock(a);
        return 0;
    }
    size_t front = (size_t)(s->base + from - b->ptr);
    ds__mem_block *hole = front ? ds__block_cut(a, b, front) : b;
    ds__mem_block *rest = hole->size > done ? ds__block_cut(a, hole, done) : NULL;
    hole->quiet = 0;
    ds__hole_in(a, hole);
    if (rest)
        (void)ds__merge_in(a, rest);
    if (front) { /* after the hole, which decides on the bin */
        b->quiet = 0;
        (void)ds__merge_in(a, b);
    }
    s->mapped -= done;
    ds__count_reserved(a, s->kind, -(int64_t)done);
    ds__mem_note(a->dev, DS_ACTION_SEGMENT_UNMAP, (uint64_t)(uintptr_t)(s->base + from), done,
                 a->stream_id, a->pool->id, ds__tls.site.file, (uint32_t)ds__tls.site.line, NULL);
    ds__arena_unlock(a);
    ds__mutex_lock(&ds__memory_state.registry);
    ds__address_granules_set(s, s->base + from, done, 0);
    ds__mutex_unlock(&ds__memory_state.registry);
    ds__segment_unreserve(a, done);
    return done;
}

#endif
