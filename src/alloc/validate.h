/* alloc/validate.h - consistency check of all structures.

   ds__device_validate checks every list, count and limit of a device, or of pinned memory. It
   returns DS_ERR_ILLEGAL_STATE with a sentence about the first violation. It serves ds_mem_validate
   and the automatic checks of a policy with `debug` (ds__pool_check).

   Invariants: The check changes nothing, except that parked blocks are merged. If a thread
   works on a claimed block of the device, incomplete sums are not compared. If dev->moving counts
   a call in progress, or changes, the limits are not compared.
   Locks: stops the device (ds__mem_lock_all), and takes the registry's lock under that. The
   caller must hold none of these locks. The driver is not called.
   Threads: any caller's thread; allocations and frees on the device wait meanwhile. */
#ifndef DS__ALLOC_VALIDATE_H
#define DS__ALLOC_VALIDATE_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "util.h"
#include "counters.h"
#include "address.h"
#include "bins.h"
#include "block.h"
#include "locks.h"
#include "pool.h"
#include "pinned.h"

#define DS__SOUND(condition, ...)                               \
    do {                                                        \
        if (!(condition))                                       \
            return ds__fail(DS_ERR_ILLEGAL_STATE, __VA_ARGS__); \
    } while (0)

/* Sums of one arena, for ds__validate_arena. `listed` members are counted in the arena's lists,
   `seen` members in its segments. */
typedef struct ds__validate_seen {
    int64_t (*sum)[DS__METRICS];
    int64_t (*meter)[DS__METERS];
    size_t listed_free;
    size_t listed_holes;
    size_t listed_pending; /* pending and deferred */
    size_t seen_free;
    size_t seen_holes;
    size_t seen_pending;
    size_t free_bytes;
    size_t held; /* claimed blocks: a thread works on each, so sums are incomplete */
} ds__validate_seen;

/* Checks one bin and the blocks in its list. */
static ds_result ds__validate_bin(const ds__bins *bins, int kind, unsigned i,
                                  ds__validate_seen *n) {
    const ds__mem_block *before = NULL;
    DS__SOUND(!bins->head[i] == !(bins->map[i / 64] >> i % 64 & 1), "bin %u and its bit disagree",
              i);
    for (const ds__mem_block *b = bins->head[i]; b; before = b, b = b->list_next) {
        DS__SOUND(b->list_prev == before, "the list of bin %u is broken at %p", i, (void *)b->ptr);
        DS__SOUND(b->state == DS_BLOCK_FREE && b->bin == i && ds__bin_of(b) == i && b->seg &&
                      b->seg->kind == kind && !b->uses,
                  "%p does not belong into bin %u", (void *)b->ptr, i);
        n->listed_free++;
    }
    return DS_OK;
}

/* Checks the bins of one kind, and their summary. */
static ds_result ds__validate_bins(const ds__bins *bins, int kind, ds__validate_seen *n) {
    for (unsigned i = 0; i < DS__BINS; i++) {
        ds_result r = ds__validate_bin(bins, kind, i, n);
        if (r < 0)
            return r;
    }
    for (unsigned w = 0; w < DS__BINS / 64; w++)
        DS__SOUND(!bins->map[w] == !(bins->summary >> w & 1), "word %u and its bit disagree", w);
    return DS_OK;
}

/* Checks the list of holes of one kind. */
static ds_result ds__validate_holes(const ds__mem_block *first, ds__validate_seen *n) {
    const ds__mem_block *before = NULL;
    for (const ds__mem_block *b = first; b; before = b, b = b->list_next) {
        DS__SOUND(b->state == DS_BLOCK_UNMAPPED && b->list_prev == before,
                  "the list of holes is broken at %p", (void *)b->ptr);
        DS__SOUND(!before || ds__block_is_earlier(before, b), "the hole at %p is out of order",
                  (void *)b->ptr);
        n->listed_holes++;
    }
    return DS_OK;
}

/* Checks the lists of pending and of deferred blocks. */
static ds_result ds__validate_pending(const ds__arena *a, ds__validate_seen *n) {
    size_t pending = 0;
    size_t deferred = 0;
    for (const ds__mem_block *b = a->pending; b; b = b->list_next) {
        /* a thread that handles a claimed block changes its uses and its poison without the lock */
        DS__SOUND(b->state == DS_BLOCK_PENDING && (b->claimed || b->uses || b->stale),
                  "%p does not belong to the pending blocks", (void *)b->ptr);
        pending += b->size;
        n->listed_pending++;
    }
    for (const ds__mem_block *b = a->deferred; b; b = b->list_next, deferred++)
        DS__SOUND(b->state == DS_BLOCK_PENDING && !b->claimed && b->seg && b->seg->direct &&
                      (b->list_next || b == a->deferred_last),
                  "%p does not belong to the deferred blocks", (void *)b->ptr);
    DS__SOUND(deferred == a->deferred_count && !a->deferred == !a->deferred_last,
              "%zu blocks are deferred, %zu were counted", deferred, a->deferred_count);
    DS__SOUND(pending == a->pending_bytes, "%zu bytes are pending, %zu were counted", pending,
              a->pending_bytes);
    n->listed_pending += deferred;
    return DS_OK;
}

/* Checks a free block behind `before`, and counts it. */
static ds_result ds__validate_free(const ds__mem_block *b, const ds__mem_block *before,
                                   ds__validate_seen *n) {
    const ds__segment *s = b->seg;
    DS__SOUND(!before || before->state != DS_BLOCK_FREE || before->claimed,
              "two free blocks at %p are not merged", (void *)b->ptr);
    n->free_bytes += b->size;
    n->seen_free++;
    if (!s->page && ds__is_split(b)) {
        n->meter[s->kind][DS__SPLIT]++;
        n->meter[s->kind][DS__SPLIT_BYTES] += (int64_t)b->size;
    }
    return DS_OK;
}

/* Checks a live or pending block, and counts it. */
static ds_result ds__validate_active(const ds__mem_block *b, ds__validate_seen *n) {
    const ds__segment *s = b->seg;
    int live = b->state == DS_BLOCK_LIVE;
    const ds__mem_block *found = live ? ds__block_find(s, b->ptr, 1) : b;
    DS__SOUND(found == b, "the block at %p is not found by its address", (void *)b->ptr);
    DS__SOUND(!live || ds__segment_of(b->ptr) == s, "the block at %p leads to another segment",
              (void *)b->ptr);
    DS__SOUND(b->asked <= b->size, "the block at %p is smaller than what was asked for",
              (void *)b->ptr);
    int64_t *sum = n->sum[s->kind];
    sum[DS__ALLOCATION] += live;
    sum[DS__ALLOCATED_BYTES] += live ? (int64_t)b->size : 0;
    sum[DS__ACTIVE]++;
    sum[DS__ACTIVE_BYTES] += (int64_t)b->size;
    sum[DS__REQUESTED_BYTES] += (int64_t)b->asked;
    n->seen_pending += !live && !b->exported;
    return DS_OK;
}

/* Checks a block that is not claimed, behind `before`, and counts it. */
static ds_result ds__validate_block(const ds__mem_block *b, const ds__mem_block *before,
                                    ds__validate_seen *n) {
    const ds__segment *s = b->seg;
    DS__SOUND(b->state == DS_BLOCK_LIVE || !b->guarded,
              "the block at %p is freed and still guarded", (void *)b->ptr);
    DS__SOUND(!b->stale || b->state != DS_BLOCK_FREE,
              "the block at %p can be reused before it was poisoned", (void *)b->ptr);
    if (b->state == DS_BLOCK_FREE)
        return ds__validate_free(b, before, n);
    if (b->state != DS_BLOCK_UNMAPPED)
        return ds__validate_active(b, n);

    DS__SOUND(s->page && (size_t)(b->ptr - s->base) % s->page == 0 && b->size % s->page == 0,
              "the hole at %p is not in whole pages", (void *)b->ptr);
    n->seen_holes++;
    return DS_OK;
}

/* Checks a segment: its blocks fill its address space, and their sums are as counted. */
static ds_result ds__validate_segment(const ds__arena *a, const ds__segment *s,
                                      ds__validate_seen *n) {
    const char *at = s->base;
    size_t mapped = 0;
    const ds__mem_block *before = NULL;
    DS__SOUND(atomic_load(&((ds__segment *)(uintptr_t)s)->arena) == a,
              "the segment at %p belongs to another stream", (void *)s->base);
    n->meter[s->kind][DS__SEGMENT] += !s->page;
    for (const ds__mem_block *b = s->first; b; before = b, b = b->next) {
        DS__SOUND(b->ptr == at && b->prev == before && b->seg == s && b->size > 0 &&
                      b->size % DS__UNIT == 0,
                  "the segment at %p is broken at %p", (void *)s->base, (void *)at);
        at += b->size;
        if (b->state != DS_BLOCK_UNMAPPED)
            mapped += b->size;
        if (b->claimed) {
            n->held++;
            continue;
        }
        ds_result r = ds__validate_block(b, before, n);
        if (r < 0)
            return r;
    }
    DS__SOUND(at == s->base + s->size, "the blocks of the segment at %p end at %p", (void *)s->base,
              (void *)at);
    DS__SOUND(n->held || mapped == s->mapped,
              "the segment at %p has %zu bytes of memory, %zu were counted", (void *)s->base,
              mapped, s->mapped);
    n->meter[s->kind][DS__RESERVED] += (int64_t)s->mapped;
    return DS_OK;
}

/* Checks an arena and adds its blocks to `sum` and `meter`. Returns DS_NOT_READY if a thread works
   on one of the blocks: the sums are incomplete then. Everything is locked. */
static ds_result ds__validate_arena(ds__arena *a, int64_t sum[2][DS__METRICS],
                                    int64_t meter[2][DS__METERS]) {
    ds__validate_seen n = { .sum = sum, .meter = meter };
    ds_result r = DS_OK;
    for (int kind = 0; kind < 2 && r == DS_OK; kind++) {
        r = ds__validate_bins(&a->bins[kind], kind, &n);
        if (r == DS_OK)
            r = ds__validate_holes(a->holes[kind], &n);
    }
    if (r == DS_OK)
        r = ds__validate_pending(a, &n);
    for (const ds__segment *s = a->segments; s && r == DS_OK; s = s->next)
        r = ds__validate_segment(a, s, &n);
    if (r < 0)
        return r;

    DS__SOUND(n.seen_free == n.listed_free && n.free_bytes == a->free_bytes,
              "%zu free blocks, %zu in bins; %zu bytes, %zu counted", n.seen_free, n.listed_free,
              n.free_bytes, a->free_bytes);
    DS__SOUND(n.held || (n.seen_holes == n.listed_holes && n.seen_pending == n.listed_pending),
              "%zu holes, %zu in the list; %zu pending blocks, %zu in the lists", n.seen_holes,
              n.listed_holes, n.seen_pending, n.listed_pending);
    return n.held ? DS_NOT_READY : DS_OK;
}

/* Compares the statistics of a device, or of a pool (`only`), with the sums of blocks and
   segments. */
static ds_result ds__validate_sums(ds__mem_dev *dev, ds__mem_pool *only,
                                   int64_t sum[2][DS__METRICS], int64_t meter[2][DS__METERS]) {
    static const char *const names[] = { "allocation", "allocated_bytes", "requested_bytes",
                                         "active", "active_bytes" };
    static const char *const more[] = { "segment", "reserved_bytes", "inactive_split",
                                        "inactive_split_bytes" };
    const char *where = only ? " of a pool" : "";
    ds__domain *d = only ? &only->stats : &dev->stats;
    int64_t now[2][DS__METRICS];
    ds__domain_now(dev, only, now, NULL);
    for (int k = 0; k < 2; k++) {
        for (int m = 0; m < DS__METRICS; m++)
            DS__SOUND(sum[k][m] == now[k][m], "%s of the %s blocks%s are %lld, %lld were counted",
                      names[m], k ? "large" : "small", where, (long long)sum[k][m],
                      (long long)now[k][m]);
        for (int m = 0; m < DS__METERS; m++) {
            long long counted = (long long)atomic_load(&d->meter[k][m].now);
            DS__SOUND(meter[k][m] == counted, "%s of the %s blocks%s are %lld, %lld were counted",
                      more[m], k ? "large" : "small", where, (long long)meter[k][m], counted);
        }
    }
    for (int m = 0; m < DS__METERS; m++) {
        long long all = (long long)atomic_load(&d->all[m].now);
        long long both = (long long)(meter[0][m] + meter[1][m]);
        DS__SOUND(all == both, "%s of both kinds%s are %lld, %lld were counted", more[m], where,
                  both, all);
    }
    return DS_OK;
}

/* Sums of the segments of a device or a pool. */
typedef struct ds__mem_count {
    size_t segments;
    size_t bytes;
    size_t async;
    int64_t over_blocks;
    int64_t over_segments;
} ds__mem_count;

static ds_result ds__validate_count(const ds__mem_count *n, ds__mem_dev *dev, ds__mem_pool *only) {
    ds__domain *d = only ? &only->stats : &dev->stats;
    int64_t blocks = atomic_load(&d->oversize_allocations.now);
    int64_t segments = atomic_load(&d->oversize_segments.now);
    DS__SOUND(n->over_blocks == blocks && n->over_segments == segments,
              "%lld blocks and %lld segments%s are oversize, %lld and %lld were counted",
              (long long)n->over_blocks, (long long)n->over_segments, only ? " of a pool" : "",
              (long long)blocks, (long long)segments);
    return DS_OK;
}

/* Returns whether the table by address has the segment in its place. Other segments may have the
   same address. The registry is locked. */
static int ds__is_sorted(const ds__segment *s) {
    size_t i = ds__sorted_after((uintptr_t)s->base);
    while (i > 0 && ds__memory_state.sorted[i - 1] != s &&
           ds__memory_state.sorted[i - 1]->base == s->base)
        i--;
    return i > 0 && ds__memory_state.sorted[i - 1] == s;
}

/* Returns whether the segment reaches into the next one of the table, while both are in use. */
static int ds__segment_overlaps(const ds__segment *s, const ds__segment *next, const ds__arena *a) {
    if (next->base < s->base)
        return 1;
    return next->base < s->base + s->size && a && !s->leaving && !next->leaving &&
           atomic_load(&((ds__segment *)(uintptr_t)next)->arena);
}

/* Checks that the segments in the table are in order and do not overlap. *out_listed: the number of
   the device's segments. Everything is locked, the registry too. */
static ds_result ds__validate_order(const ds__mem_dev *dev, size_t *out_listed) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < ds__memory_state.sorted_count; i++) {
        ds__segment *s = ds__memory_state.sorted[i];
        const ds__segment *next =
            i + 1 < ds__memory_state.sorted_count ? ds__memory_state.sorted[i + 1] : NULL;
        const ds__arena *a = atomic_load(&s->arena);
        if (next && r == DS_OK && ds__segment_overlaps(s, next, a))
            r = ds__fail(
                DS_ERR_ILLEGAL_STATE,
                "in the table by address the segment at %p reaches into the next one at %p",
                (void *)s->base, (void *)next->base);
        *out_listed += a && a->dev == dev;
    }
    return r;
}

/* Checks the table of all segments by address: the segments are in order, no two overlap, and those
   of the device are in their place. *out_listed: the number of the device's segments. Everything is
   locked. */
static ds_result ds__validate_sorted(ds__mem_dev *dev, size_t *out_listed) {
    *out_listed = 0;
    ds__mutex_lock(&ds__memory_state.registry);
    ds_result r = ds__validate_order(dev, out_listed);
    for (ds__mem_pool *p = &dev->main; p && r == DS_OK; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            for (const ds__segment *s = a->segments; s && r == DS_OK; s = s->next)
                if (!ds__is_sorted(s))
                    r = ds__fail(DS_ERR_ILLEGAL_STATE,
                                 "the segment at %p is not in its place in the table by address",
                                 (void *)s->base);
    ds__mutex_unlock(&ds__memory_state.registry);
    return r;
}

/* Counts the segments of a pool and their blocks. Everything is locked. */
static ds__mem_count ds__validate_pool_count(const ds__mem_pool *p) {
    ds__mem_count n = { 0, 0, 0, 0, 0 };
    for (const ds__arena *a = p->arenas; a; a = a->next)
        for (const ds__segment *s = a->segments; s; s = s->next) {
            n.segments++;
            n.bytes += s->mapped;
            n.async += s->source == DS__FROM_ASYNC ? s->size : 0;
            n.over_segments += !s->page && s->oversize;
            for (const ds__mem_block *b = s->first; b; b = b->next)
                n.over_blocks += b->oversize;
        }
    return n;
}

/* Checks the reserved bytes, the oversize blocks and the table by address. Everything is locked.
   But a thread that calls the driver for memory holds no lock; while there is one, the reserved
   bytes are not compared. */
static ds_result ds__validate_reserved(ds__mem_dev *dev) {
    uint64_t moving = atomic_load(&dev->moving);
    ds__mem_count all = { 0, 0, 0, 0, 0 };
    size_t listed;
    size_t wrong = 0;
    size_t held = 0;
    size_t has = 0;
    ds_result r = ds__validate_sorted(dev, &listed);
    for (ds__mem_pool *p = &dev->main; p && r == DS_OK; p = p->next) {
        ds__mem_count n = ds__validate_pool_count(p);
        size_t reserved = atomic_load(&p->reserved);
        if (reserved != n.bytes && !wrong++) {
            held = reserved;
            has = n.bytes;
        }
        all =
            (ds__mem_count){ all.segments + n.segments, all.bytes + n.bytes, all.async + n.async,
                             all.over_blocks + n.over_blocks, all.over_segments + n.over_segments };
        if (p != &dev->main)
            r = ds__validate_count(&n, dev, p);
    }
    size_t reserved = atomic_load(&dev->reserved);
    size_t async = atomic_load(&dev->async_bytes);
    if (r == DS_OK)
        r = ds__validate_count(&all, dev, NULL);
    if (r < 0)
        return r;
    if ((uint32_t)moving || atomic_load(&dev->moving) != moving)
        return DS_OK;

    DS__SOUND(async == all.async,
              "blocks of the driver's own pool have %zu bytes, %zu were counted", all.async, async);
    DS__SOUND(!wrong, "the limit counter of a pool is %zu bytes, its segments have %zu", held, has);
    DS__SOUND(reserved == all.bytes, "the limit counter is %zu bytes, the segments have %zu",
              reserved, all.bytes);
    DS__SOUND(listed == all.segments,
              "the table by address has %zu segments of the device, which has %zu", listed,
              all.segments);
    return DS_OK;
}

/* Checks the arenas of a pool, adds their sums to those of the device, and compares them with the
   pool's statistics. *busy becomes 1 if the sums are incomplete. Everything is locked. */
static ds_result ds__validate_pool(ds__mem_pool *p, int64_t sum[2][DS__METRICS],
                                   int64_t meter[2][DS__METERS], int *busy) {
    int64_t of_pool[2][DS__METRICS];
    int64_t metered[2][DS__METERS];
    ds__mem_dev *dev = p->dev;
    ds_result r = DS_OK;
    int working = 0; /* another thread works on a block: the sums are incomplete */
    memset(of_pool, 0, sizeof of_pool);
    memset(metered, 0, sizeof metered);
    for (ds__arena *a = p->arenas; a && r == DS_OK; a = a->next) {
        r = ds__validate_arena(a, of_pool, metered);
        if (r == DS_NOT_READY) {
            working = 1;
            r = DS_OK;
        }
    }
    for (int k = 0; k < 2; k++) {
        for (int m = 0; m < DS__METRICS; m++)
            sum[k][m] += of_pool[k][m];
        for (int m = 0; m < DS__METERS; m++)
            meter[k][m] += metered[k][m];
    }
    if (r == DS_OK && !working && p != &dev->main)
        r = ds__validate_sums(dev, p, of_pool, metered);
    *busy |= working;
    return r;
}

/* Checks a device: every arena, and that the statistics are the sums. No lock is held. */
static ds_result ds__device_validate(ds__mem_dev *dev) {
    int64_t sum[2][DS__METRICS];
    int64_t meter[2][DS__METERS];
    int busy = 0;
    ds_result r = DS_OK;
    memset(sum, 0, sizeof sum);
    memset(meter, 0, sizeof meter);
    ds__mem_lock_all(dev);
    for (ds__mem_pool *p = &dev->main; p && r == DS_OK; p = p->next)
        r = ds__validate_pool(p, sum, meter, &busy);
    if (r == DS_OK && !busy)
        r = ds__validate_sums(dev, NULL, sum, meter);
    if (r == DS_OK)
        r = ds__validate_reserved(dev);
    ds__mem_unlock_all(dev);
    return r;
}

/* Checks the pool's device if `debug` of the pool's policy is at least `level`. */
static ds_result ds__pool_check(ds__mem_pool *p, int level) {
    return DS__UNLIKELY(ds__pool_policy(p)->debug >= level) ? ds__device_validate(p->dev) : DS_OK;
}

DSDEF ds_result(ds_mem_validate)(ds_device device) {
    ds__mem_dev *dev = NULL;
    DS__MEM_ENTER("ds_mem_validate");
    ds_result r = ds__mem_asked(device, &dev);
    return dev ? ds__device_validate(dev) : r;
}

#endif
