/* alloc/segment.h - descriptions of segments, and limits.

   Makes and removes the description of a segment (ds__segment_new, ds__segment_drop).
   ds__segment_reserve and ds__segment_unreserve keep the reserved bytes within the limits of the
   device and the pool. Growing segments, plain segments and blocks without a cache use these
   functions. ds__async_has and ds__async_surplus return what the driver's own pool has.

   Invariants: ds__memory_state.sorted has every segment in the order of base addresses. Reserved
   bytes may exceed the bytes of the segments only while dev->moving counts a call between
   ds__move_begin and ds__move_end. A dropped description is used again as a description of a
   segment only.
   Locks: ds__segment_new takes the registry's lock. ds__segment_drop takes the arena's lock,
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
#include "counters.h"
#include "address.h"
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

/* Adds unless the sum would pass the limit, 0: none. */
static int ds__segment_add_within(_Atomic size_t *sum, size_t size, size_t limit) {
    size_t was = atomic_load(sum);
    do {
        if (limit && (was > limit || size > limit - was))
            return 0;
    } while (!atomic_compare_exchange_weak(sum, &was, was + size));
    return 1;
}

/* From here until ds__move_end what is reserved may be more than what segments have. */
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

static ds_result ds__segment_reserve(ds__arena *a, size_t size) {
    return ds__reserve_with(a, size, atomic_load(&a->dev->limit) ? ds__async_surplus(a->dev) : 0);
}

static void ds__segment_unreserve(ds__arena *a, size_t size) {
    atomic_fetch_sub(&a->pool->reserved, size);
    atomic_fetch_sub(&a->dev->reserved, size);
    ds__move_end(a->dev);
}

/* A segment has the bytes; less than 0: it has them no more, and ds__segment_unreserve follows. The
   arena is locked. */
static void ds__count_reserved(ds__arena *a, int kind, int64_t by) {
    ds__counter_meters_add(a, kind, DS__RESERVED, by);
    if (by > 0)
        ds__move_end(a->dev);
    else
        ds__move_begin(a->dev);
}

/* A description of a segment, in no list. */
static ds__segment *ds__segment_new(ds__arena *a, int kind, int source, char *base, size_t size,
                                    size_t page) {
    ds__mutex_lock(&ds__memory_state.registry);
    ds__segment *s = ds__memory_state.free_segments;
    int room = ds__memory_state.sorted_count < ds__memory_state.sorted_room;
    if (!room) {
        size_t more = ds__memory_state.sorted_room ? 2 * ds__memory_state.sorted_room : 64;
        ds__segment **sorted = ds__host_alloc(more * sizeof *sorted);
        if (sorted) {
            if (ds__memory_state.sorted_count)
                memcpy(sorted, ds__memory_state.sorted,
                       ds__memory_state.sorted_count * sizeof *sorted);
            ds__host_free(ds__memory_state.sorted);
            ds__memory_state.sorted = sorted;
            ds__memory_state.sorted_room = more;
            room = 1;
        }
    }
    if (s)
        ds__memory_state.free_segments = s->next;
    else
        s = ds__kept_alloc_unlocked(sizeof *s);
    unsigned shift =
        kind == DS__SMALL || ds__pool_policy(a->pool)->single_pool ? DS__DENSE_SHIFT : 20;
    size_t granules = (size + ((size_t)1 << shift) - 1) >> shift;
    ds__mem_block **table = s && room ? ds__host_alloc(granules * sizeof *table) : NULL;
    int entered = table && (page || ds__address_granules_set(s, base, size, 1));
    if (!entered) {
        if (table && !page)
            ds__address_granules_set(s, base, size, 0);
        ds__host_free(table);
        if (s) {
            s->next = ds__memory_state.free_segments;
            ds__memory_state.free_segments = s;
        }
        ds__mutex_unlock(&ds__memory_state.registry);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
        return NULL;
    }
    s->base = base;
    s->size = size;
    s->mapped = page ? 0 : size;
    s->page = page;
    s->granule = table;
    s->rows = NULL;
    s->shift = shift;
    s->kind = (uint8_t)kind;
    s->source = (uint8_t)source;
    s->serial = ++ds__memory_state.serial;
    s->native = 0;
    s->direct = s->leaving = 0;
    s->first = NULL;
    size_t i = ds__sorted_after((uintptr_t)base);
    memmove(&ds__memory_state.sorted[i + 1], &ds__memory_state.sorted[i],
            (ds__memory_state.sorted_count - i) * sizeof *ds__memory_state.sorted);
    ds__memory_state.sorted[i] = s;
    ds__memory_state.sorted_count++;
    atomic_store_explicit(&s->arena, a, memory_order_release);
    ds__mutex_unlock(&ds__memory_state.registry);
    return s;
}

/* Nothing leads to the segment any more. It is in no list of its arena. */
static void ds__segment_drop(ds__segment *s) {
    ds__arena *a = atomic_load(&s->arena);
    ds__mem_block **table = s->granule;
    ds__arena_lock(a);
    /* a late look-up is in the table with this lock */
    for (ds__sub_table *row = s->rows; row; row = s->rows) {
        s->rows = row->next;
        row->next = a->spare_rows;
        a->spare_rows = row;
    }
    atomic_store_explicit(&s->arena, NULL, memory_order_release);
    s->granule = NULL;
    ds__arena_unlock(a);
    ds__mutex_lock(&ds__memory_state.registry);
    size_t i = ds__sorted_after((uintptr_t)s->base) - 1;
    /* its memory may be a newer segment's already */
    while (ds__memory_state.sorted[i] != s)
        i--;
    memmove(&ds__memory_state.sorted[i], &ds__memory_state.sorted[i + 1],
            (ds__memory_state.sorted_count - i - 1) * sizeof *ds__memory_state.sorted);
    ds__memory_state.sorted_count--;
    if (!s->page)
        ds__address_granules_set(s, s->base, s->size, 0);
    s->next = ds__memory_state.free_segments;
    ds__memory_state.free_segments = s;
    ds__mutex_unlock(&ds__memory_state.registry);
    ds__host_free(table);
}

static void ds__segment_in(ds__arena *a, ds__segment *s) { /* locked */
    s->prev = NULL;
    s->next = a->segments;
    if (s->next)
        s->next->prev = s;
    a->segments = s;
}

static void ds__segment_out(ds__arena *a, ds__segment *s) { /* locked */
    if (s->prev)
        s->prev->next = s->next;
    else
        a->segments = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

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

#endif
