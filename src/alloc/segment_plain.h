/* alloc/segment_plain.h - plain segments: allocated and returned whole.

   ds__grow_plain takes a new plain segment from the pool's source (ds__source_alloc) for a
   request. With segment_growth it may be larger than the request needs; after a shortage,
   smaller sizes are tried. ds__segment_return gives a segment back whose only block is free.

   Invariants: A new segment enters its arena as one free block. Bytes are reserved before the
   source is called, and unreserved after the memory is gone. A segment on its way back is
   marked `leaving`, because its addresses may belong to another segment at once.
   Locks: ds__grow_plain expects the arena's `grow`. ds__segment_return expects `giving` and
   `grow`; for pinned memory it needs neither. No spinning lock may be held. The source, which
   may be the user's upstream, is called with these mutexes held. ds__drain_aside releases
   `grow` while it waits for the arena's stream.
   Threads: caller's threads. Other threads may allocate and free in the arena meanwhile. */
#ifndef DS__ALLOC_SEGMENT_PLAIN_H
#define DS__ALLOC_SEGMENT_PLAIN_H

#include "types.h"
#include "config.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "address.h"
#include "bins.h"
#include "block.h"
#include "pool.h"
#include "arena.h"
#include "segment.h"
#include "upstream.h"

/* Returns the size of a new plain segment that needs `least` bytes. With segment_growth, segments
   grow with the reserved memory: fewer and larger segments fragment less. */
static size_t ds__plain_size(const ds__arena *a, int kind, size_t least) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    ds__domain *d = a->pool == &a->dev->main ? &a->dev->stats : &a->pool->stats;
    if (!c->segment_growth || a->pool->no_split)
        return least;
    size_t unit = 2 * DS__MIB;
    size_t size = (size_t)atomic_load(&d->all[DS__RESERVED].now) / c->segment_growth / unit * unit;
    if (kind == DS__SMALL && size > 8 * DS__MIB)
        size = 8 * DS__MIB;
    return size > least ? size : least;
}

/* Takes `size` bytes from the pool's source, within the limits. On success the bytes are
   reserved. */
static ds_result ds__plain_take(ds__arena *a, size_t size, int *out_source, void **out_base) {
    ds_result r = ds__segment_reserve(a, size);
    if (r < 0)
        return r;
    DS__COUNT_CALL(a, driver_allocs, 1);
    r = ds__source_alloc(a, size, out_source, out_base);
    if (r < 0) {
        ds__segment_unreserve(a, size);
        DS__COUNT_CALL(a, driver_allocs, -1);
    }
    /* a limit of an upstream is not one of the allocator */
    return r == DS_ERR_LIMIT_EXCEEDED ? DS_ERR_OUT_OF_MEMORY : r;
}

/* Makes a segment with one free block of memory from the source. Without host memory, the memory
   goes back. No spinning lock is held. */
static ds_result ds__plain_publish(ds__arena *a, int kind, int source, void *base, size_t size) {
    ds__segment *s = ds__segment_create(a, kind, source, base, size, 0);
    ds__arena_lock(a);
    ds__mem_block *b = s ? ds__segment_first_create(a, s) : NULL;
    if (b) {
        b->asked = ds__arena_count_request(a);
        ds__count_reserved(a, kind, (int64_t)size);
        ds__count_segment(a, s, 1);
        ds__note_segment(a, DS_ACTION_SEGMENT_ALLOC, base, size);
        b->state = DS_BLOCK_FREE;
        ds__bin_in(a, b, a->pool->config.best_fit_by_address);
    }
    ds__arena_unlock(a);
    if (b)
        return DS_OK;

    if (s)
        ds__segment_destroy(s);
    ds__segment whole = { .base = base, .size = size, .source = (uint8_t)source };
    DS_IGNORE(ds__source_free(a, &whole));
    ds__segment_unreserve(a, size);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
}

/* Takes a new plain segment for a request. After a shortage halves the size, down to the bytes
   that the request needs. `grow` of the arena is held, and no spinning lock. */
static ds_result ds__grow_plain(ds__arena *a, int kind, size_t size) {
    size_t unit = 2 * DS__MIB;
    size_t least = ds__config_segment_size(ds__pool_policy(a->pool), kind, size);
    for (size_t want = ds__plain_size(a, kind, least);;) {
        void *base = NULL;
        int source = 0;
        ds_result r = ds__plain_take(a, want, &source, &base);
        if (r == DS_OK)
            return ds__plain_publish(a, kind, source, base, want);
        if (want == least || !ds__is_shortage(r))
            return r;
        want = want / 2 / unit * unit;
        if (want < least)
            want = least;
    }
}

/* Waits for the work of the arena's stream, with `grow` released so that the arena can grow
   meanwhile. Returns 0 if the work is not known to be done. */
static int ds__drain_aside(ds__arena *a) {
    ds__mutex_unlock(&a->grow);
    int drained = ds__arena_drain(a);
    ds__mutex_lock(&a->grow);
    return drained;
}

/* Returns whether the memory of a segment may go back to its source: an upstream always takes it,
   and pinned memory has no stream. Otherwise waits for the arena's stream. */
static int ds__segment_is_done(ds__arena *a, const ds__segment *s) {
    if (s->source == DS__FROM_PINNED || s->source == DS__FROM_REGISTERED)
        return 1;
    return ds__drain_aside(a) || s->source == DS__FROM_UPSTREAM;
}

/* Gives a plain segment back. Its only block is free, claimed, and in no list. `giving` and `grow`
   are held, except for pinned memory, and no spinning lock. If the segment cannot be given back,
   its block returns to its bin. */
static ds_result ds__segment_return(ds__arena *a, ds__segment *s) {
    size_t size = s->size;
    ds__segment copy = *s;
    ds_result r = DS_ERR_ILLEGAL_STATE;
    if (ds__segment_is_done(a, s)) {
        ds__segment_leaves(s, 1);
        r = ds__source_free(a, &copy);
        if (r < 0)
            ds__segment_leaves(s, 0);
    }

    ds__arena_lock(a);
    if (r < 0) {
        s->first->claimed = 0;
        ds__bin_in(a, s->first, a->pool->config.best_fit_by_address);
        ds__arena_unlock(a);
        return r;
    }
    ds__segment_retire(a, s);
    ds__arena_unlock(a);
    ds__segment_destroy(s);
    ds__segment_unreserve(a, size);
    return DS_OK;
}

#endif
