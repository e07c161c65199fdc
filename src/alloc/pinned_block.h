/* alloc/pinned_block.h - blocks of pinned memory: requests, uses, pending blocks.

   Rounds a request for pinned memory (ds__pinned_want), takes a free block for it
   (ds__pinned_take), and runs the fallback chain (ds__pinned_fallback_serve) if none fits.
   ds__pinned_poll frees the pending blocks whose uses are done; ds__pinned_flush also returns
   cached segments to the driver. ds__pinned_short reports a shortage.

   Invariants: A pending block is claimed while a thread queries its uses. The graphs of a capture
   and every use that names the ds__hold own it; the last owner frees it. While a capture is
   open, the fallback chain queries no event and returns no segment.
   Locks: ds__host_lock takes the arena's lock, then ds__host.count; ds__pinned_settle and
   ds__pinned_uses_end expect both. ds__pinned_poll, ds__pinned_take, ds__pinned_flush and
   ds__pinned_fallback_serve expect no lock. ds__pinned_grow holds the arena's `grow` while the
   driver allocates. Events are queried and segments returned with no spinning lock held.
   Threads: caller's threads, any number at once. ds__hold_release runs on the thread that ends
   the last graph, possibly CUDA's callback thread. It takes no lock and makes no driver call. */
#ifndef DS__ALLOC_PINNED_BLOCK_H
#define DS__ALLOC_PINNED_BLOCK_H

#include "types.h"
#include "history_ring.h"
#include "util.h"
#include "counters.h"
#include "bins.h"
#include "block.h"
#include "locks.h"
#include "stream_use.h"
#include "pending.h"
#include "pinned.h"
#include "validate.h"
#include "segment_plain.h"
#include "trim.h"
#include "oom_owners.h"

/* Removes an owner. The last one frees the object. */
static void ds__hold_unref(ds__hold *h) {
    if (h && atomic_fetch_sub(&h->owners, 1) == 1)
        ds__host_free(h);
}

/* Makes the object of a capture, for ds__capture_attachment. */
static ds_result ds__hold_create(uint64_t capture, void *user, void **out) {
    ds__hold *h = ds__host_alloc(sizeof *h);
    (void)capture;
    (void)user;
    if (!h)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to record a use");
    atomic_store(&h->owners, 1);
    *out = h;
    return DS_OK;
}

/* Called when the last graph of a capture was destroyed, on any thread. Must not call devstream. */
static void ds__hold_release(void *user) {
    ds__hold *h = user;
    atomic_store(&h->gone, 1);
    ds__hold_unref(h);
}

/* Locks the arena and the counts of pinned memory. */
static void ds__host_lock(ds__arena *a) {
    ds__arena_lock(a);
    ds__spinlock_lock(&ds__host.count);
}

static void ds__host_unlock(ds__arena *a) {
    ds__spinlock_unlock(&ds__host.count);
    ds__arena_unlock(a);
}

/* Makes a block, which is in no list and counted as freed, a free block. If the whole segment is
   free and too large for the cache, returns the segment with its block claimed; the caller must
   give it back. Otherwise returns NULL. The arena and the counts are locked. */
static ds__segment *ds__pinned_settle(ds__arena *a, ds__mem_block *b) {
    size_t size = b->size;
    if (ds__observer_is_set())
        ds__observe_block(a, DS_ACTION_FREE_COMPLETED, b);
    b = ds__merge_in(a, b);
    if (DS__LIKELY(size <= atomic_load_explicit(&ds__host.max_cached, memory_order_relaxed)) ||
        ds__is_split(b) || ds__captures_open())
        return NULL;
    ds__bin_out(a, b);
    b->claimed = 1;
    return b->seg;
}

/* Returns whether the uses of a block are done: the graphs of a capture are destroyed, or the event
   is complete. Uses of failed streams are done; other errors do not tell whether the work is
   done. */
static int ds__pinned_done(const ds__stream_use *u) {
    for (; u; u = u->next) {
        if (u->hold) {
            if (!atomic_load(&u->hold->gone))
                return 0;
            continue;
        }
        ds_result r = ds__event_ask(u->event);
        if (r != DS_OK && r != DS_ERR_FAILED)
            return 0;
    }
    return 1;
}

/* Ends the uses of a block. The arena is locked. */
static void ds__pinned_uses_end(ds__arena *a, ds__mem_block *b) {
    for (ds__stream_use *u = b->uses; u; u = u->next) {
        ds__hold_unref(u->hold);
        u->hold = NULL;
    }
    ds__block_uses_destroy(a, b);
}

/* Pending blocks that ds__pinned_poll examines together. */
typedef struct ds__pinned_batch {
    ds__mem_block *list[DS__POLLS];
    uint8_t done[DS__POLLS]; /* 1: the uses of the block are done */
    size_t count;
} ds__pinned_batch;

/* Queries the uses of the blocks. Each block with open uses lowers *patience; at 0, no further
   block is queried. No lock is held. */
static void ds__pinned_batch_query(ds__pinned_batch *x, size_t *patience) {
    for (size_t i = 0; i < x->count; i++) {
        x->done[i] = *patience > 0 && ds__pinned_done(x->list[i]->uses);
        if (!x->done[i] && *patience > 0)
            --*patience;
    }
}

/* Frees the blocks whose uses are done, and makes the others the last pending ones. Returns the
   number of freed blocks. No lock is held. */
static size_t ds__pinned_batch_end(ds__arena *a, const ds__pinned_batch *x) {
    ds__segment *over[DS__POLLS];
    size_t over_count = 0;
    size_t freed = 0;
    ds__host_lock(a);
    for (size_t i = 0; i < x->count; i++) {
        ds__mem_block *b = x->list[i];
        b->claimed = 0;
        ds__pending_out(a, b);
        if (!x->done[i]) {
            ds__pending_in(a, b);
            continue;
        }
        ds__pinned_uses_end(a, b);
        ds__count_done(a, b->seg->kind, (int64_t)b->size, (int64_t)b->asked);
        over[over_count] = ds__pinned_settle(a, b);
        over_count += over[over_count] != NULL;
        freed++;
    }
    ds__host_unlock(a);
    while (over_count)
        DS_IGNORE(ds__segment_return(a, over[--over_count]));
    return freed;
}

/* Frees pending blocks whose uses are done, the oldest first, until `patience` blocks had open
   uses; these are examined last the next time. Returns the number of freed blocks. No lock is
   held. */
static size_t ds__pinned_poll(ds__arena *a, size_t patience) {
    ds__pinned_batch x;
    size_t freed = 0;
    size_t left = 0;
    ds__arena_lock(a);
    for (const ds__mem_block *b = a->pending; b; b = b->list_next)
        left++;
    ds__arena_unlock(a);
    while (left > 0 && patience > 0) {
        x.count = ds__pending_batch_take(a, x.list, left < DS__POLLS ? left : DS__POLLS);
        if (x.count == 0)
            break;
        ds__pinned_batch_query(&x, &patience);
        freed += ds__pinned_batch_end(a, &x);
        left -= x.count;
    }
    return freed;
}

/* A request for pinned memory. */
typedef struct ds__pinned_wish {
    ds__arena *a;
    int kind;
    int exact;      /* 1: only a block of exactly this size may be taken */
    size_t size;    /* of the block */
    size_t segment; /* of a new segment */
    size_t asked;
    void *ptr; /* the block that was found, or NULL */
} ds__pinned_wish;

/* Returns the request of `asked` bytes, below 2^60, under the current configuration. */
static ds__pinned_wish ds__pinned_want(size_t asked) {
    size_t segment = atomic_load_explicit(&ds__host.segment_size, memory_order_relaxed);
    size_t share = segment ? segment : DS__MIB;
    ds__pinned_wish q = { NULL, DS__LARGE, 0, asked < DS__UNIT ? DS__UNIT : asked, 0, asked, NULL };
    if (asked <= atomic_load_explicit(&ds__host.round_threshold, memory_order_relaxed)) {
        if (q.size & (q.size - 1))
            q.size = (size_t)2 << (63 - __builtin_clzll(q.size));
        q.exact = !segment;
    } else {
        size_t unit = asked < DS__HOST_PAGE ? DS__UNIT : DS__HOST_PAGE;
        q.size = (q.size + unit - 1) & ~(unit - 1);
    }
    if (q.size <= share / 4)
        q.kind = DS__SMALL;
    q.segment = q.exact || q.kind == DS__LARGE ? q.size : share;
    q.a = ds__host.arena[q.size >= DS__HOST_PAGE];
    return q;
}

/* Takes a free block for the request. Returns 0 if there is none. No lock is held. */
static int ds__pinned_take(ds__pinned_wish *q) {
    ds__arena *a = q->a;
    ds__mem_block *b = NULL;
    ds__host_lock(a);
    if (q->exact) {
        for (b = a->bins[q->kind].head[ds__bin_of_size(q->size)]; b && b->size != q->size;)
            b = b->list_next;
        /* to the front of its bin, where ds__block_take finds it */
        if (b) {
            ds__bin_out(a, b);
            ds__bin_in(a, b, 0);
        }
    }
    if (!q->exact || b)
        b = ds__block_take(a, q->kind, q->size, q->asked);
    if (b)
        q->ptr = b->ptr;
    if (ds__observer_is_set() && b)
        ds__observe_block(a, DS_ACTION_ALLOC, b);
    ds__host_unlock(a);
    return b != NULL;
}

/* Takes a new segment, smaller after a shortage, unless another thread has made room meanwhile. */
static ds_result ds__pinned_grow(ds__pinned_wish *q) {
    ds_result r = DS_OK;
    ds__mutex_lock(&q->a->grow);
    if (!ds__pinned_take(q)) {
        r = ds__grow_plain(q->a, q->kind, q->segment);
        if (ds__is_shortage(r) && q->segment > q->size)
            r = ds__grow_plain(q->a, q->kind, q->size);
    }
    ds__mutex_unlock(&q->a->grow);
    return r;
}

/* Frees the pending blocks whose uses are done, and gives cached segments back. Returns the
   bytes. */
static size_t ds__pinned_flush(void) {
    size_t done = 0;
    for (int i = 0; i < 2; i++)
        (void)ds__pinned_poll(ds__host.arena[i], SIZE_MAX);
    for (int i = 0; i < 2; i++)
        done += ds__arena_trim(ds__host.arena[i], SIZE_MAX, 0);
    return done;
}

/* Serves a request for which no free block fits: queries pending blocks, grows, and empties the
   cache to grow again. */
static ds_result ds__pinned_fallback_serve(ds__pinned_wish *q) {
    int open = ds__captures_open() != 0; /* 1: no event is queried, and no segment given back */
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    if (!open && ds__pinned_poll(q->a, DS__POLLS) && ds__pinned_take(q))
        return DS_OK;
    for (int round = 0; round < 2; round++) {
        for (int again = 0; again < 16; again++) { /* other threads may take the new memory */
            r = ds__pinned_grow(q);
            if (q->ptr || (r == DS_OK && ds__pinned_take(q)))
                return DS_OK;
            if (r < 0)
                break;
        }
        if (round || open || (r < 0 && !ds__is_shortage(r)))
            break;
        (void)ds__pinned_flush(); /* ds__pinned_grow takes a block that is free now */
    }
    return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
}

/* Bytes of pinned memory by the state of their blocks. */
typedef struct ds__pinned_sums {
    size_t live;
    size_t pending;
    size_t cached;
    size_t largest; /* the largest free block */
} ds__pinned_sums;

/* Sums up the blocks of pinned memory. No lock is held. */
static ds__pinned_sums ds__pinned_sum(ds__mem_dev *dev) {
    ds__pinned_sums s = { 0 };
    ds__mem_lock_all(dev);
    for (const ds__arena *a = dev->main.arenas; a; a = a->next)
        for (const ds__segment *g = a->segments; g; g = g->next)
            for (const ds__mem_block *b = g->first; b; b = b->next) {
                if (b->state == DS_BLOCK_LIVE)
                    s.live += b->size;
                else if (b->state == DS_BLOCK_PENDING)
                    s.pending += b->size;
                else
                    s.cached += b->size;
                if (b->state == DS_BLOCK_FREE && b->size > s.largest)
                    s.largest = b->size;
            }
    ds__mem_unlock_all(dev);
    return s;
}

/* Returns the advice for a request that found no memory. */
static const char *ds__pinned_hint(const ds__pinned_wish *q, const ds__pinned_sums *s,
                                   ds_result why) {
    if (q->asked >= (size_t)1 << 60)
        return "the size looks like a negative number or an overflow";
    if (ds__captures_open() && s->cached + s->pending >= q->size)
        return "cached memory is not freed while a capture is open";
    if (s->pending >= q->size)
        return "freed blocks are in use by streams; synchronize the streams";
    if (why == DS_ERR_LIMIT_EXCEEDED)
        return "ds_mem_pinned_set_limit raises the limit";
    return "the system has no more memory that can be pinned";
}

/* Reports that a request found no memory, and returns `why`. */
static ds_result ds__pinned_short(const ds__pinned_wish *q, ds_result why) {
    ds__mem_dev *dev = ds__pinned_used();
    size_t limit = atomic_load(&dev->limit);
    ds__pinned_sums s = ds__pinned_sum(dev);
    DS__COUNT_CALL(q->a, ooms, 1);
    return ds__fail(why,
                    "%s of pinned memory were requested; allocated %s, pending %s, cached %s, "
                    "largest free %s, limit %s; hint: %s",
                    DS__SIZE(q->asked), DS__SIZE(s.live), DS__SIZE(s.pending), DS__SIZE(s.cached),
                    DS__SIZE(s.largest), limit ? DS__SIZE(limit) : "none",
                    ds__pinned_hint(q, &s, why));
}

/* Checks the structures of pinned memory if the policy's `debug` has this level. */
static ds_result ds__pinned_check(ds__mem_dev *dev, int level) {
    return DS__UNLIKELY(atomic_load_explicit(&ds__host.debug, memory_order_relaxed) >= level)
               ? ds__device_validate(dev)
               : DS_OK;
}

#endif
