/* alloc/trim.h - returning cached memory to the driver.

   ds__mem_flush waits for pending blocks and returns the free memory of a device or a pool.
   ds__arena_trim returns the free memory of one arena. ds__release_oversize and ds__collect_garbage
   return selected large segments. ds__async_give shrinks the driver's own pool; ds__direct_drain
   waits for frees that are on their way there.

   Invariants: Memory is returned only if the work of its arena's stream is known to be done
   (ds__arena_drain). Two exceptions: a user's upstream gets it in any case, and pinned memory
   has no stream. Pools of graphs keep their memory, and an upstream cannot trim its own pool.
   While a capture is open, ds__mem_flush, ds__release_oversize and ds__collect_garbage return
   nothing.
   Locks: an arena's `giving`, then its `grow`, then its lock; never those of two arenas at
   once. The driver and the user's upstream run with the two mutexes held, and with no spinning
   lock. `grow` is released while the host waits for a stream (ds__drain_aside), `giving` is
   not. ds__is_whole, ds__segment_age and ds__give_whole expect the arena's lock; the other
   functions expect no spinning lock.
   Threads: any caller's thread. Other threads may allocate and free in the arena meanwhile; the
   block in work is claimed. */
#ifndef DS__ALLOC_TRIM_H
#define DS__ALLOC_TRIM_H

#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "bins.h"
#include "block.h"
#include "pool.h"
#include "arena.h"
#include "pending.h"
#include "ipc_collect.h"
#include "stats_sum.h"
#include "upstream.h"
#include "segment_plain.h"
#include "segment_grow.h"
#include "direct_free.h"

/* One call of ds__arena_trim. */
typedef struct ds__trim {
    ds__arena *a;
    size_t most;  /* bytes to give back; a little more is possible */
    size_t least; /* the smallest block to give back */
    size_t done;  /* bytes given back */
    int stays;    /* 1: something cannot be given back now, so the call ends */
} ds__trim;

/* Returns whether a free block has `least` bytes, and a whole page or the whole segment. */
static int ds__trim_suits(const ds__mem_block *b, size_t least) {
    const ds__segment *s = b->seg;
    if (b->size < least)
        return 0;
    if (!s->page)
        return !ds__is_split(b);
    size_t from = ((size_t)(b->ptr - s->base) + s->page - 1) / s->page * s->page;
    return from + s->page <= (size_t)(b->ptr + b->size - s->base);
}

/* Takes the first suitable block out of a bin and makes it claimed, or returns NULL. The arena is
   locked. */
static ds__mem_block *ds__trim_take(const ds__trim *t, int kind, unsigned bin) {
    ds__mem_block *found = t->a->bins[kind].head[bin];
    while (found && !ds__trim_suits(found, t->least))
        found = found->list_next;
    if (found) {
        ds__bin_out(t->a, found);
        found->claimed = 1;
    }
    return found;
}

/* Gives back a claimed block that is in no bin, or a part of it. `giving` and `grow` are held, the
   arena is not locked. */
static void ds__trim_give(ds__trim *t, ds__mem_block *b) {
    ds__arena *a = t->a;
    ds__segment *s = b->seg;
    if (!s->page) {
        size_t size = s->size;
        if (ds__segment_return(a, s) == DS_OK)
            t->done += size;
        else
            t->stays = 1;
        return;
    }

    /* for each block anew, because other threads may use the stream meanwhile */
    if (ds__drain_aside(a)) {
        size_t unmapped = ds__unmap_block(a, b, t->most - t->done);
        t->done += unmapped;
        t->stays = !unmapped; /* the block is in its bin again */
        return;
    }
    ds__arena_lock(a);
    b->claimed = 0;
    (void)ds__merge_in(a, b);
    ds__arena_unlock(a);
    t->stays = 1;
}

/* Gives back the suitable blocks of one bin. `giving` and `grow` are held, the arena is not
   locked. */
static void ds__trim_bin(ds__trim *t, int kind, unsigned bin) {
    ds__arena *a = t->a;
    ds__arena_lock(a);
    ds__unpark_all(a);
    do {
        /* the pool has become a graph's, which may use the free memory */
        if (a->pool->graphs) {
            t->stays = 1;
            break;
        }
        ds__mem_block *found = ds__trim_take(t, kind, bin);
        if (!found)
            break;
        ds__arena_unlock(a);
        ds__trim_give(t, found);
        ds__arena_lock(a);
    } while (t->done < t->most && !t->stays);
    ds__arena_unlock(a);
}

/* Gives back free memory of an arena: whole pages and whole segments, about `most` bytes at most,
   from blocks of `least` bytes or more. Returns the bytes. No lock is held. */
static size_t ds__arena_trim(ds__arena *a, size_t most, size_t least) {
    ds__trim t = { .a = a, .most = most, .least = least };
    if (a->pool->graphs || ds__is_inside(a->pool))
        return 0;
    ds__mutex_lock(&a->giving);
    ds__mutex_lock(&a->grow);
    for (int kind = DS__LARGE; kind >= DS__SMALL; kind--)
        for (unsigned i = DS__BINS; i-- > 0 && t.done < most && !t.stays;)
            ds__trim_bin(&t, kind, i);
    ds__mutex_unlock(&a->grow);
    ds__mutex_unlock(&a->giving);
    return t.done;
}

/* Returns whether ds__mem_flush empties the pool: `only`, or the default pool and pools without
   owners. */
static int ds__flush_covers(const ds__mem_dev *dev, const ds__mem_pool *p,
                            const ds__mem_pool *only) {
    if (p->graphs)
        return 0;
    if (only)
        return p == only;
    return p == &dev->main || p->owners <= 0;
}

/* Waits for all pending blocks, then gives free memory back until `keep` bytes are reserved: of the
   default pool and of pools without owners, or of `only`. Does nothing while a capture is open,
   which the waits could invalidate. PyTorch's release_cached_blocks. */
static size_t ds__mem_flush(ds__mem_dev *dev, ds__mem_pool *only, size_t keep) {
    size_t done = 0;
    if (ds__captures_open())
        return 0;
    (void)ds__share_collect();
    if (!only)
        done = ds__direct_again(dev, DS__WAIT_ALL);
    for (ds__mem_pool *p = ds__next_pool(dev, NULL); p; p = ds__next_pool(dev, p)) {
        if (!ds__flush_covers(dev, p, only))
            continue;
        for (ds__arena *a = ds__first_arena(dev, p); a; a = a->next)
            (void)ds__pending_poll(a, 1);
    }

    /* as in PyTorch, the wait of a single pool does not count as a wait for all streams */
    if (!only)
        atomic_fetch_add(&dev->stats.syncs, 1);
    for (ds__mem_pool *p = ds__next_pool(dev, NULL); p; p = ds__next_pool(dev, p)) {
        if (!ds__flush_covers(dev, p, only))
            continue;
        for (ds__arena *a = ds__first_arena(dev, p); a; a = a->next) {
            size_t now = atomic_load(&dev->reserved);
            if (now <= keep)
                return done;
            done += ds__arena_trim(a, now - keep, 0);
        }
    }
    return done;
}

/* Waits for the frees to the driver's own pool that are enqueued. */
static void ds__direct_drain(ds__mem_dev *dev) {
    ds_stream giver = { atomic_load(&dev->giver) };
    for (ds__arena *a = ds__first_arena(dev, &dev->main); a; a = a->next)
        (void)ds__arena_drain(a);
    ds__tls.relaxed++;
    if (giver.id)
        DS_IGNORE(ds__stream_sync(giver, DS__FOREVER));
    ds__tls.relaxed--;
}

/* Waits for enqueued frees to the driver's own pool, then shrinks the pool to `keep` bytes, or
   as far as the driver can. No capture is open. */
static void ds__async_give(ds__mem_dev *dev, size_t keep) {
    ds_mem_stats before;
    if (!atomic_load(&dev->async))
        return;
    ds__direct_drain(dev);
    /* notes the peak of reserved bytes: the driver's pool shrinks only here */
    ds__stats_sum(dev, NULL, &before);
    ds__tls.mute++;
    DS_IGNORE(ds__driver_of(dev->device)->async_trim(dev->device.index, keep));
    ds__tls.mute--;
}

/* Returns whether a segment is plain, of large blocks, and free as a whole. The arena is locked. */
static int ds__is_whole(const ds__segment *s) {
    const ds__mem_block *b = s->first;
    return !s->page && s->kind == DS__LARGE && b && b->state == DS_BLOCK_FREE && !b->next &&
           !b->claimed;
}

/* Gives a whole segment back. Returns the bytes, or 0 if the segment stays. `giving` and `grow` are
   held. The arena is locked, is unlocked meanwhile, and is locked again. */
static size_t ds__give_whole(ds__arena *a, ds__segment *s) {
    size_t size = s->size;
    ds__bin_out(a, s->first);
    s->first->claimed = 1;
    ds__arena_unlock(a);
    ds_result r = ds__segment_return(a, s);
    ds__arena_lock(a);
    return r == DS_OK ? size : 0;
}

/* Returns the whole segment to give back next, or NULL: the smallest one that is enough, else the
   largest one. Only segments of `split` bytes or more count. The arena is locked. */
static ds__segment *ds__oversize_best(const ds__arena *a, size_t split, size_t enough) {
    ds__segment *best = NULL;
    for (ds__segment *s = a->segments; s; s = s->next) {
        if (!ds__is_whole(s) || s->size < split)
            continue;
        int better;
        if (!best)
            better = 1;
        else if (best->size >= enough)
            better = s->size >= enough && s->size < best->size;
        else
            better = s->size > best->size;
        if (better)
            best = s;
    }
    return best;
}

/* Gives back segments of max_split_size or more: the smallest one that is enough for the request,
   else the largest ones until they are enough. Returns the bytes. No lock is held. PyTorch's
   release_available_cached_blocks. */
static size_t ds__release_oversize(ds__arena *a, size_t size) {
    size_t split = ds__pool_policy(a->pool)->max_split_size;
    size_t enough = size > split ? size : split;
    size_t done = 0;
    size_t given = 1;
    if (split == SIZE_MAX || ds__captures_open() || a->pool->graphs || ds__is_inside(a->pool))
        return 0;
    ds__mutex_lock(&a->giving);
    ds__mutex_lock(&a->grow);
    ds__arena_lock(a);
    /* the pool may have become a graph's, which may use the free memory */
    for (; done < enough && given > 0 && !a->pool->graphs; done += given) {
        ds__segment *best = ds__oversize_best(a, split, enough);
        given = best ? ds__give_whole(a, best) : 0;
    }
    ds__arena_unlock(a);
    ds__mutex_unlock(&a->grow);
    ds__mutex_unlock(&a->giving);
    /* growing segments too, if the plain ones are not enough */
    return done < enough ? ds__arena_trim(a, enough - done, split) : done;
}

/* Returns the number of requests in the pool since the segment became free. */
static uint32_t ds__segment_age(const ds__arena *a, const ds__segment *s) {
    return ds__arena_count_request(a) - (uint32_t)s->first->asked;
}

/* Gives back the whole segments of an arena that are at least as old as the average, `ages` /
   `count`. Returns the bytes. No lock is held. */
static size_t ds__collect_older(ds__arena *a, uint64_t ages, uint64_t count) {
    size_t done = 0;
    size_t given = 1;
    /* another thread gives memory back, and may wait for the device */
    if (!ds__mutex_trylock(&a->giving))
        return 0;
    ds__mutex_lock(&a->grow);
    ds__arena_lock(a);
    /* the pool may have become a graph's, which may use the free memory */
    for (ds__segment *s = a->segments; s && given > 0 && !a->pool->graphs;) {
        if (!ds__is_whole(s) || ds__segment_age(a, s) * count < ages) {
            s = s->next;
            continue;
        }
        given = ds__give_whole(a, s);
        done += given;
        s = a->segments; /* the list may have changed */
    }
    ds__arena_unlock(a);
    ds__mutex_unlock(&a->grow);
    ds__mutex_unlock(&a->giving);
    return done;
}

/* Collects garbage as PyTorch does: gives back the unsplit large segments of all arenas of the pool
   that are at least as old as the average, in rounds, until the reserved bytes are below the
   threshold. Takes the locks of one arena at a time. */
static void ds__collect_garbage(ds__mem_dev *dev, ds__mem_pool *p) {
    size_t limit = atomic_load(&dev->limit);
    size_t freed = 1;
    double threshold = ds__pool_policy(p)->garbage_collection_threshold;
    if (threshold <= 0 || !limit || ds__captures_open() || p->graphs)
        return;
    size_t bytes = (size_t)(threshold * (double)limit);
    size_t reserved = atomic_load(&dev->reserved);
    size_t target = reserved > bytes ? reserved - bytes : 0;
    for (size_t done = 0; done < target && freed > 0; done += freed) {
        uint64_t ages = 0;
        uint64_t count = 0;
        for (ds__arena *a = ds__first_arena(dev, p); a; a = a->next) {
            ds__arena_lock(a);
            for (const ds__segment *s = a->segments; s; s = s->next)
                if (ds__is_whole(s)) {
                    ages += ds__segment_age(a, s);
                    count++;
                }
            ds__arena_unlock(a);
        }
        freed = 0;
        for (ds__arena *a = ds__first_arena(dev, p); a && count; a = a->next)
            freed += ds__collect_older(a, ages, count);
    }
}

#endif
