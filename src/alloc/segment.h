/* alloc/segment.h - descriptions of segments, and limits.

   Makes and removes the description of a segment (ds__segment_create, ds__segment_destroy), and its
   first and last block (ds__segment_first_create, ds__segment_retire). ds__segment_reserve and
   ds__segment_unreserve keep the reserved bytes within the limits of the device and the pool.
   Growing segments, plain segments and blocks without a cache use these functions. ds__async_has
   and ds__async_surplus return the bytes of the driver's own pool.

   Invariants: ds__memory_state.sorted has every segment in the order of base addresses. Reserved
   bytes may exceed the bytes of the segments only while dev->moving counts a call between
   ds__move_begin and ds__move_end. A dropped description is used again as a description of a
   segment only.
   Locks: ds__segment_create takes the registry's lock. ds__segment_destroy takes the arena's lock,
   releases it, and then takes the registry's. The functions that enter, remove or count a
   segment expect the arena's lock. ds__segment_reserve may ask the driver for the size of its pool,
   so it expects no spinning lock.
   Threads: any. A late look-up may still have a dropped description, so ds__find_live checks
   `arena` under the arena's lock. */
#ifndef DS__ALLOC_SEGMENT_H
#define DS__ALLOC_SEGMENT_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "address.h"
#include "block.h"
#include "pool.h"

/* Returns the bytes that the driver's own pool has of the device; *out_cached: those that it can
   give out again. No spinning lock is held. */
static size_t ds__async_has(ds__mem_dev *dev, size_t *out_cached) {
    size_t reserved = 0;
    size_t used = 0;
    if (atomic_load(&dev->async)) {
        ds__tls.mute++;
        if (ds__driver_of(dev->device)->async_info(dev->device.index, &reserved, &used) < 0)
            reserved = 0;
        ds__tls.mute--;
    }
    if (out_cached)
        *out_cached = reserved > used ? reserved - used : 0;
    return reserved;
}

/* Returns the bytes of the driver's own pool that no block has: cached ones, and those of frees
   that are enqueued. */
static size_t ds__async_surplus(ds__mem_dev *dev) {
    size_t has = ds__async_has(dev, NULL);
    size_t blocks = atomic_load(&dev->async_bytes);
    return has > blocks ? has - blocks : 0;
}

/* Adds `size` and returns 1, unless the sum would exceed the limit. Limit 0: none. */
static int ds__segment_add_within(_Atomic size_t *sum, size_t size, size_t limit) {
    size_t was = atomic_load(sum);
    do {
        if (limit && (was > limit || size > limit - was))
            return 0;
    } while (!atomic_compare_exchange_weak(sum, &was, was + size));
    return 1;
}

/* Until ds__move_end, the reserved bytes may exceed the bytes of the segments. */
static void ds__move_begin(ds__mem_dev *dev) {
    atomic_fetch_add(&dev->moving, ((uint64_t)1 << 32) + 1);
}

static void ds__move_end(ds__mem_dev *dev) {
    atomic_fetch_sub(&dev->moving, 1);
}

/* Reserves bytes that the allocator may take from the driver, until a segment has them
   (ds__count_reserved) or ds__segment_unreserve. The limit of the device also covers `surplus`, the
   memory of the driver's pool that no block has. */
static ds_result ds__reserve_with(ds__arena *a, size_t size, size_t surplus) {
    size_t limit = atomic_load(&a->dev->limit);
    if (limit && surplus >= limit)
        return DS_ERR_LIMIT_EXCEEDED;
    ds__move_begin(a->dev);
    int in_pool = ds__segment_add_within(&a->pool->reserved, size, a->pool->limit);
    if (in_pool && ds__segment_add_within(&a->dev->reserved, size, limit - surplus))
        return DS_OK;
    if (in_pool)
        atomic_fetch_sub(&a->pool->reserved, size);
    ds__move_end(a->dev);
    return DS_ERR_LIMIT_EXCEEDED;
}

/* Reserves bytes within the limits of the pool and the device. No spinning lock is held. */
static ds_result ds__segment_reserve(ds__arena *a, size_t size) {
    return ds__reserve_with(a, size, atomic_load(&a->dev->limit) ? ds__async_surplus(a->dev) : 0);
}

/* Gives reserved bytes back that no segment has. */
static void ds__segment_unreserve(ds__arena *a, size_t size) {
    atomic_fetch_sub(&a->pool->reserved, size);
    atomic_fetch_sub(&a->dev->reserved, size);
    ds__move_end(a->dev);
}

/* Counts reserved bytes that a segment has now. If `by` is negative, a segment has lost the bytes,
   and ds__segment_unreserve must follow. The arena is locked. */
static void ds__count_reserved(ds__arena *a, int kind, int64_t by) {
    ds__counter_meters_add(a, kind, DS__RESERVED, by);
    if (by > 0)
        ds__move_end(a->dev);
    else
        ds__move_begin(a->dev);
}

/* Enters a segment in the table of all segments, which has room. The registry is locked. */
static void ds__segment_sorted_in(ds__segment *s) {
    size_t i = ds__sorted_after((uintptr_t)s->base);
    memmove(&ds__memory_state.sorted[i + 1], &ds__memory_state.sorted[i],
            (ds__memory_state.sorted_count - i) * sizeof *ds__memory_state.sorted);
    ds__memory_state.sorted[i] = s;
    ds__memory_state.sorted_count++;
}

/* Removes a segment from the table of all segments. The registry is locked. */
static void ds__segment_sorted_out(const ds__segment *s) {
    size_t i = ds__sorted_after((uintptr_t)s->base) - 1;
    /* a newer segment may have the same address already */
    while (ds__memory_state.sorted[i] != s)
        i--;
    memmove(&ds__memory_state.sorted[i], &ds__memory_state.sorted[i + 1],
            (ds__memory_state.sorted_count - i - 1) * sizeof *ds__memory_state.sorted);
    ds__memory_state.sorted_count--;
}

/* Takes an unused description of a segment, or makes one. Returns NULL without host memory. The
   registry is locked. */
static ds__segment *ds__segment_description_create(void) {
    ds__segment *s = ds__memory_state.free_segments;
    if (!s)
        return ds__kept_alloc_unlocked(sizeof *s);
    ds__memory_state.free_segments = s->next;
    return s;
}

static void ds__segment_description_destroy(ds__segment *s) {
    s->next = ds__memory_state.free_segments;
    ds__memory_state.free_segments = s;
}

/* Gives a segment its granule table, and enters plain segments in the table of addresses. Returns 0
   without host memory. The registry is locked. */
static int ds__segment_tables_set(ds__segment *s) {
    size_t granules = (s->size + ((size_t)1 << s->shift) - 1) >> s->shift;
    s->granule = ds__host_alloc(granules * sizeof *s->granule);
    if (!s->granule)
        return 0;
    if (s->page || ds__address_granules_set(s, s->base, s->size, 1))
        return 1;
    ds__address_granules_set(s, s->base, s->size, 0);
    ds__host_free(s->granule);
    s->granule = NULL;
    return 0;
}

/* Makes a description of a segment, which is in no list of the arena and has no blocks. `page`: 0
   for plain segments. Returns NULL without host memory, and the error is set. */
static ds__segment *ds__segment_create(ds__arena *a, int kind, int source, char *base, size_t size,
                                       size_t page) {
    int dense = kind == DS__SMALL || ds__pool_policy(a->pool)->single_pool;
    ds__mutex_lock(&ds__memory_state.registry);
    ds__segment *s = NULL;
    if (ds__array_reserve(&ds__memory_state.sorted, sizeof *ds__memory_state.sorted,
                          ds__memory_state.sorted_count, 1, &ds__memory_state.sorted_room))
        s = ds__segment_description_create();
    if (s) {
        s->base = base;
        s->size = size;
        s->mapped = page ? 0 : size;
        s->page = page;
        s->sub_tables = NULL;
        s->shift = dense ? DS__DENSE_SHIFT : 20;
        s->kind = (uint8_t)kind;
        s->source = (uint8_t)source;
        s->native = 0;
        s->direct = s->leaving = 0;
        s->first = NULL;
        if (ds__segment_tables_set(s)) {
            s->serial = ++ds__memory_state.serial;
            ds__segment_sorted_in(s);
            atomic_store_explicit(&s->arena, a, memory_order_release);
        } else {
            ds__segment_description_destroy(s);
            s = NULL;
        }
    }
    ds__mutex_unlock(&ds__memory_state.registry);
    if (!s)
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
    return s;
}

/* Ends a segment that is in no list of its arena: no address leads to it any more. Its description
   is used again for other segments. Takes the arena's lock and the registry's. */
static void ds__segment_destroy(ds__segment *s) {
    ds__arena *a = atomic_load(&s->arena);
    ds__mem_block **granule = s->granule;
    ds__arena_lock(a);
    /* a late look-up reads the table with this lock held */
    for (ds__sub_table *table = s->sub_tables; table; table = s->sub_tables) {
        s->sub_tables = table->next;
        table->next = a->spare_sub_tables;
        a->spare_sub_tables = table;
    }
    atomic_store_explicit(&s->arena, NULL, memory_order_release);
    s->granule = NULL;
    ds__arena_unlock(a);

    ds__mutex_lock(&ds__memory_state.registry);
    ds__segment_sorted_out(s);
    if (!s->page)
        ds__address_granules_set(s, s->base, s->size, 0);
    ds__segment_description_destroy(s);
    ds__mutex_unlock(&ds__memory_state.registry);
    ds__host_free(granule);
}

/* Links a segment into the arena's list. The arena is locked. */
static void ds__segment_in(ds__arena *a, ds__segment *s) {
    s->prev = NULL;
    s->next = a->segments;
    if (s->next)
        s->next->prev = s;
    a->segments = s;
}

/* Unlinks a segment from the arena's list. The arena is locked. */
static void ds__segment_out(ds__arena *a, ds__segment *s) {
    if (s->prev)
        s->prev->next = s->next;
    else
        a->segments = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

/* Counts a new segment (1) or the end of one (-1). The arena is locked. */
static void ds__count_segment(ds__arena *a, ds__segment *s, int sign) {
    ds__counter_meters_add(a, s->kind, DS__SEGMENT, sign);
    if (sign > 0)
        s->oversize = s->size >= ds__pool_policy(a->pool)->max_split_size;
    if (!s->oversize)
        return;
    ds__meter_add(&a->dev->stats.oversize_segments, sign);
    if (a->pool != &a->dev->main)
        ds__meter_add(&a->pool->stats.oversize_segments, sign);
}

/* Makes a block of the whole address space of a new segment, and links the segment into the arena's
   list. Returns NULL without host memory, and nothing has changed. The arena is locked. */
static ds__mem_block *ds__segment_first_create(ds__arena *a, ds__segment *s) {
    ds__mem_block *b = ds__mem_block_create(a);
    if (!b)
        return NULL;
    memset(b, 0, sizeof *b);
    b->ptr = s->base;
    b->size = s->size;
    b->seg = s;
    s->first = b;
    ds__segment_in(a, s);
    return b;
}

/* Takes a segment whose memory is the driver's again, and its only block, out of the arena.
   ds__segment_destroy and ds__segment_unreserve must follow without the lock. The arena is
   locked. */
static void ds__segment_retire(ds__arena *a, ds__segment *s) {
    ds__segment_out(a, s);
    ds__mem_block_destroy(a, s->first);
    s->first = NULL;
    ds__count_reserved(a, s->kind, -(int64_t)s->size);
    ds__count_segment(a, s, -1);
    DS__COUNT_CALL(a, driver_frees, 1);
    ds__note_segment(a, DS_ACTION_SEGMENT_FREE, s->base, s->size);
}

#endif
