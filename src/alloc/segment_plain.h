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

/* A new plain segment for a request; `grow` of the arena is held, no spinning lock. */
static ds_result ds__grow_plain(ds__arena *a, int kind, size_t size) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    size_t want = ds__config_segment_size(c, kind, size);
    size_t least = want;
    if (c->segment_growth && !a->pool->no_split) { /* fewer and larger ones fragment less */
        size_t more =
            (size_t)atomic_load(a->pool == &a->dev->main ? &a->dev->stats.all[DS__RESERVED].now
                                                         : &a->pool->stats.all[DS__RESERVED].now) /
            c->segment_growth / (2 * DS__MIB) * (2 * DS__MIB);
        if (kind == DS__SMALL && more > 8 * DS__MIB)
            more = 8 * DS__MIB;
        if (more > want)
            want = more;
    }
    for (;;) {
        void *base = NULL;
        int source = 0;
        ds_result r = ds__segment_reserve(a, want);
        if (r == DS_OK) {
            DS__COUNT_CALL(a, driver_allocs, 1);
            r = ds__source_alloc(a, want, &source, &base);
            /* an upstream's own: none of ours is in the way */
            if (r == DS_ERR_LIMIT_EXCEEDED)
                r = DS_ERR_OUT_OF_MEMORY;
            if (r < 0) {
                ds__segment_unreserve(a, want);
                DS__COUNT_CALL(a, driver_allocs, -1);
            }
        }
        if (r < 0) {
            if (want == least || !ds__is_shortage(r))
                return r;
            want = want / 2 / (2 * DS__MIB) * (2 * DS__MIB);
            if (want < least)
                want = least;
            continue;
        }
        ds__segment *s = ds__segment_new(a, kind, source, base, want, 0);
        ds__arena_lock(a);
        ds__mem_block *b = s ? ds__mem_block_new(a) : NULL;
        if (!b) {
            ds__arena_unlock(a);
            ds__segment whole = { .base = base, .size = want, .source = (uint8_t)source };
            if (s)
                ds__segment_drop(s);
            DS_IGNORE(ds__source_free(a, &whole));
            ds__segment_unreserve(a, want);
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
        }
        memset(b, 0, sizeof *b);
        b->ptr = base;
        b->size = want;
        b->asked = ds__arena_count_request(a);
        b->seg = s;
        s->first = b;
        ds__segment_in(a, s);
        ds__count_reserved(a, kind, (int64_t)want);
        ds__count_segment(a, s, 1);
        ds__mem_note(a->dev, DS_ACTION_SEGMENT_ALLOC, (uint64_t)(uintptr_t)base, want, a->stream_id,
                     a->pool->id, ds__tls.site.file, (uint32_t)ds__tls.site.line, NULL);
        b->state = DS_BLOCK_FREE;
        ds__bin_in(a, b, a->pool->config.best_fit_by_address);
        ds__arena_unlock(a);
        return DS_OK;
    }
}

/* Waits for the arena's stream while others may let it grow. The block that is to go is quiet
   and in no list. */
static int ds__drain_aside(ds__arena *a) {
    ds__mutex_unlock(&a->grow);
    int drained = ds__arena_drain(a);
    ds__mutex_lock(&a->grow);
    return drained;
}

/* Gives a plain segment back whose only block, free and quiet, is in no list. `giving` and
   `grow` are held, no spinning lock; for pinned memory nothing is. */
static ds_result ds__segment_return(ds__arena *a, ds__segment *s) {
    size_t size = s->size;
    int kind = s->kind;
    ds__segment copy = *s;
    int pinned = s->source == DS__FROM_PINNED || s->source == DS__FROM_REGISTERED;
    /* An upstream is not asked whether it can wait; pinned memory has no stream. */
    ds_result r = pinned || ds__drain_aside(a) || s->source == DS__FROM_UPSTREAM
                      ? DS_OK
                      : DS_ERR_ILLEGAL_STATE;
    if (r == DS_OK) {
        ds__segment_leaves(s, 1);
        if ((r = ds__source_free(a, &copy)) < 0)
            ds__segment_leaves(s, 0);
    }
    ds__arena_lock(a);
    if (r < 0) { /* it is still there */
        s->first->quiet = 0;
        ds__bin_in(a, s->first, a->pool->config.best_fit_by_address);
        ds__arena_unlock(a);
        return r;
    }
    ds__segment_out(a, s);
    ds__mem_block_drop(a, s->first);
    s->first = NULL;
    ds__count_reserved(a, kind, -(int64_t)size);
    ds__count_segment(a, s, -1);
    DS__COUNT_CALL(a, driver_frees, 1);
    ds__mem_note(a->dev, DS_ACTION_SEGMENT_FREE, (uint64_t)(uintptr_t)copy.base, size, a->stream_id,
                 a->pool->id, ds__tls.site.file, (uint32_t)ds__tls.site.line, NULL);
    ds__arena_unlock(a);
    ds__segment_drop(s);
    ds__segment_unreserve(a, size);
    return DS_OK;
}

#endif
