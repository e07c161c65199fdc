/* alloc/oom_walk.h - numbers for out-of-memory reports.

   Collects the numbers for the report of a failed request in ds__oom_facts (ds__oom_collect).
   The numbers cover the device, the limits, all blocks by state, the biggest owners, and free
   blocks that the request could not use. ds__oom_count returns the number of live blocks; the leak
   report uses it too.

   Invariants: `mine`, `kept`, `theirs` and `elsewhere` are sizes of the largest free block of
   the request's pool, each for one reason. `back` is computed by the rules of ds__arena_trim.
   Names of owners are copied while everything is locked, because a label lives as long as its
   block.
   Locks: ds__oom_collect expects none and takes all locks of the device twice: to read the
   number of live blocks, and to walk over all blocks. In between, without a lock, the table of
   owners is allocated. The driver is asked for free memory before any lock is taken.
   Threads: the thread of the failed request. */
#ifndef DS__ALLOC_OOM_WALK_H
#define DS__ALLOC_OOM_WALK_H

#include "../core/internal.h"
#include "types.h"
#include "counters.h"
#include "bins.h"
#include "block.h"
#include "locks.h"
#include "oom_owners.h"

#define DS__TOP 10

/* The numbers about a request that found no memory. */
typedef struct ds__oom_facts {
    ds__mem_dev *dev;
    ds__mem_pool *pool;
    size_t wanted;          /* bytes of the request */
    size_t size;            /* bytes of the block, with rounding, alignment and guard */
    size_t segment;         /* bytes that the driver was asked for */
    const ds__arena *arena; /* of the request */
    int kind;
    int aligned;
    int capturing; /* 1: a capture is open */
    size_t total;  /* of the device */
    size_t free;   /* of the device; 0 if the device does not tell */
    size_t
        outside;  /* used on the device, but not by the allocator; 0 if the device does not tell */
    int known;    /* 1: the device tells its free memory */
    size_t limit; /* 0: none */
    size_t pool_limit; /* 0: none */
    /* of all pools: */
    size_t reserved;
    size_t live;
    size_t pending;
    size_t cached;
    size_t live_count;
    size_t pending_count;
    size_t cached_count;
    size_t largest;
    /* of the request's pool: */
    size_t pool_reserved;
    size_t pool_cached;
    size_t pool_pending;
    /* the largest free block of the request's pool: */
    size_t mine;         /* in the request's arena */
    size_t kept;         /* not usable because of max_split_size */
    size_t theirs;       /* in another stream's arena */
    size_t elsewhere;    /* of the other kind */
    ds__arena *owner;    /* the arena of `theirs` */
    int apart;           /* 1: the request's stream cannot wait for the stream of `owner` */
    size_t back;         /* bytes that emptying the cache would give back without an open capture */
    size_t pool_back;    /* those of the request's pool */
    size_t awaited;      /* bytes that emptying the cache would wait for first */
    size_t pool_awaited; /* those of the request's pool */
    size_t private_reserved;
    size_t private_cached;
    ds__oom_owners owners;

    struct {
        char name[80];
        size_t bytes;
        size_t count;
    } top[DS__TOP];

    size_t tops;
    char hint[256];
} ds__oom_facts;

/* Counts a block by its state. `asked`: it is in the request's pool; `private_one`: it is not in
   the default pool. */
static void ds__oom_block(ds__oom_facts *s, const ds__mem_block *b, int asked, int private_one) {
    switch (b->state) {
    case DS_BLOCK_LIVE:
        s->live += b->size;
        s->live_count++;
        ds__oom_owners_add(&s->owners, b);
        break;
    case DS_BLOCK_PENDING:
        s->pending += b->size;
        s->pending_count++;
        if (asked)
            s->pool_pending += b->size;
        break;
    case DS_BLOCK_FREE:
        s->cached += b->size;
        s->cached_count++;
        if (b->size > s->largest)
            s->largest = b->size;
        if (asked)
            s->pool_cached += b->size;
        if (private_one)
            s->private_cached += b->size;
        break;
    default:
        break;
    }
}

/* Returns the member for a free block of the request's pool, by the reason why the request did not
   get the block. */
static size_t *ds__oom_place_of(ds__oom_facts *s, const ds__arena *a, const ds__mem_block *b) {
    if (b->seg->kind != s->kind)
        return &s->elsewhere;
    if (s->pool->oversize && !ds__segment_is_growing(b->seg) && b->size >= s->size &&
        ds__too_large(s->pool, b->size, s->size))
        return &s->kept;
    return a == s->arena ? &s->mine : &s->theirs;
}

/* Notes the size of a block of the request's pool if it is the largest free one for its reason. */
static void ds__oom_place(ds__oom_facts *s, ds__arena *a, const ds__mem_block *b) {
    if (b->state != DS_BLOCK_FREE || b->claimed)
        return;
    size_t *at = ds__oom_place_of(s, a, b);
    if (b->size <= *at)
        return;
    *at = b->size;
    if (at == &s->theirs)
        s->owner = a;
}

/* Returns the bytes of a segment that emptying the cache would give back, by the rules of
   ds__arena_trim. Adds pending bytes to *awaited. */
static size_t ds__oom_back(const ds__segment *g, size_t *awaited) {
    size_t bytes = 0;
    for (const ds__mem_block *b = g->first; b; b = b->next) {
        if (b->state == DS_BLOCK_PENDING)
            *awaited += b->size;
        if (b->state != DS_BLOCK_FREE)
            continue;
        size_t from = (size_t)(b->ptr - g->base);
        size_t to = from + b->size;
        if (ds__segment_is_growing(g)) {
            from = (from + g->page - 1) / g->page * g->page;
            to = to / g->page * g->page;
        }
        if (to > from && (ds__segment_is_growing(g) || !ds__is_split(b)))
            bytes += to - from;
    }
    return bytes;
}

/* Returns the number of live blocks. All is locked. */
static size_t ds__oom_count(ds__mem_dev *dev) {
    int64_t now[2][DS__METRICS];
    ds__domain_now(dev, NULL, now, NULL);
    return (size_t)(now[0][DS__ALLOCATION] + now[1][DS__ALLOCATION]);
}

/* Collects the numbers of all blocks and segments. All is locked. */
static void ds__oom_walk(ds__oom_facts *s) {
    for (const ds__mem_pool *p = &s->dev->main; p; p = p->next) {
        int asked = p == s->pool;
        int private_one = p != &s->dev->main;
        int emptied = !p->graphs && (asked || !private_one || p->owners == 0);
        for (ds__arena *a = p->arenas; a; a = a->next) {
            for (const ds__segment *g = a->segments; g; g = g->next) {
                size_t awaited = 0;
                size_t back = emptied ? ds__oom_back(g, &awaited) : 0;
                s->back += back;
                s->awaited += awaited;
                if (asked) {
                    s->pool_back += back;
                    s->pool_awaited += awaited;
                }
                s->reserved += g->mapped;
                if (asked)
                    s->pool_reserved += g->mapped;
                if (private_one)
                    s->private_reserved += g->mapped;
                for (const ds__mem_block *b = g->first; b; b = b->next) {
                    ds__oom_block(s, b, asked, private_one);
                    if (asked)
                        ds__oom_place(s, a, b);
                }
            }
        }
    }
}

/* Stores the biggest owners with copies of their names, because a block and its label may go once
   the locks are released. All is locked. */
static void ds__oom_rank(ds__oom_facts *s) {
    ds__oom_owner o;
    for (s->tops = 0; s->tops < DS__TOP; s->tops++) {
        const ds__oom_owner *which = ds__oom_owners_next(&s->owners, &o);
        if (!which)
            return;
        ds__oom_owner_name(&s->owners, which, &o, s->top[s->tops].name);
        s->top[s->tops].bytes = o.bytes;
        s->top[s->tops].count = o.count;
    }
}

/* Collects the numbers. No lock is held. */
static void ds__oom_collect(ds__oom_facts *s) {
    ds__tls.mute++; /* an error here is not the one to report */
    s->known =
        ds__driver_of(s->dev->device)->device_memory(s->dev->device.index, &s->free, &s->total) ==
        DS_OK;
    ds__tls.mute--;
    if (!s->known) {
        s->free = 0;
        s->total = s->dev->total;
    }
    s->limit = atomic_load_explicit(&s->dev->limit, memory_order_relaxed);
    s->pool_limit = s->pool->limit;
    ds__mem_lock_all(s->dev);
    size_t live = ds__oom_count(s->dev);
    ds__mem_unlock_all(s->dev);
    /* without locks, because the program's memory functions are called */
    ds__oom_owners_begin(&s->owners, live);
    ds__mem_lock_all(s->dev);
    ds__oom_walk(s);
    ds__oom_rank(s);
    ds__mem_unlock_all(s->dev);
    ds__host_free(s->owners.slot);
    if (s->known && s->total > s->free && s->total - s->free > s->reserved)
        s->outside = s->total - s->free - s->reserved;
}

#endif
