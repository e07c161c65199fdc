/* alloc/block.h - blocks: cut, merge, park, take, find.

   Manages the blocks of an arena. ds__block_take serves a request from the bins and splits the
   block; ds__merge_in makes a block free and merges it with free neighbours. ds__block_park keeps
   the block that was freed last for the next request of its size. ds__find_live finds the live
   block of an address and locks its arena.

   Invariants: The blocks of a segment cover its address space without gaps. Two neighbours are
   never both free and not quiet. Each live block is in the granule table of its segment; a
   crowded granule may have a sub-table (ds__sub_table). A parked block is free and quiet, and stays
   in the granule table. Descriptions stay until shutdown, so a late look-up reads a valid
   object.
   Locks: Functions that change a block expect the arena's lock. ds__find_live takes that lock
   and keeps it if a block was found. New descriptions take the registry lock and may call the
   program's memory functions under both locks. No driver call is made.
   Threads: any thread that holds the arena's lock; ds__find_live: any thread. */
#ifndef DS__ALLOC_BLOCK_H
#define DS__ALLOC_BLOCK_H

#include "types.h"
#include "state.h"
#include "util.h"
#include "counters.h"
#include "address.h"
#include "bins.h"

/* A description of a block; NULL: no memory. */
static ds__mem_block *ds__mem_block_new(ds__arena *a) {
    ds__mem_block *b = a->spare_blocks;
    if (DS__UNLIKELY(!b)) {
        enum { MANY = 64 };

        ds__mem_block *many = ds__kept_alloc(MANY * sizeof *many);
        if (!many)
            return NULL;
        for (int i = 0; i < MANY; i++) {
            many[i].list_next = a->spare_blocks;
            a->spare_blocks = &many[i];
        }
        b = a->spare_blocks;
    }
    a->spare_blocks = b->list_next;
    return b;
}

static inline void ds__mem_block_drop(ds__arena *a, ds__mem_block *b) {
    b->seg = NULL;
    b->list_next = a->spare_blocks;
    a->spare_blocks = b;
}

/* Cuts a block, which is in no list, behind `size` bytes; the rest, as free as the block was,
   comes back. The spare description is there. */
static inline ds__mem_block *ds__block_cut(ds__arena *a, ds__mem_block *b, size_t size) {
    ds__mem_block *rest = ds__mem_block_new(a);
    if (DS__UNLIKELY(!rest))
        return NULL;
    rest->bin = 0;
    rest->ptr = b->ptr + size;
    rest->size = b->size - size;
    rest->asked = 0;
    rest->seg = b->seg;
    rest->state = b->state;
    rest->uses = NULL;
    rest->exported = rest->lent = rest->quiet = rest->oversize = rest->stale = 0;
    rest->prev = b;
    rest->next = b->next;
    if (b->next)
        b->next->prev = rest;
    b->next = rest;
    b->size = size;
    return rest;
}

static inline int ds__is_split(const ds__mem_block *b) {
    return b->prev || b->next;
}

/* Counts a change of free memory in plain segments that are in use. */
static void ds__count_split(ds__arena *a, int kind, int64_t count, int64_t bytes) {
    ds__counter_meters_add(a, kind, DS__SPLIT, count);
    ds__counter_meters_add(a, kind, DS__SPLIT_BYTES, bytes);
}

static inline ds__sub_table *ds__row_of(const ds__mem_block *entry) {
    return (uintptr_t)entry & 1 ? (ds__sub_table *)((uintptr_t)entry - 1) : NULL;
}

static inline ds__mem_block **ds__live_at(const ds__segment *s, const char *ptr) {
    size_t offset = (size_t)(ptr - s->base);
    ds__mem_block **at = &s->granule[offset >> s->shift];
    ds__sub_table *row = ds__row_of(*at);
    return row ? &row->at[offset >> (s->shift - DS__ROW_BITS) & ((1 << DS__ROW_BITS) - 1)] : at;
}

/* A granule has become crowded. */
__attribute__((noinline)) static void ds__row_in(ds__arena *a, ds__segment *s,
                                                 ds__mem_block **entry) {
    if (!a->spare_rows) {
        enum { MANY = 8 };

        ds__sub_table *many = ds__kept_alloc(MANY * sizeof *many);
        /* it stays crowded */
        if (!many)
            return;
        for (int i = 0; i < MANY; i++) {
            many[i].next = a->spare_rows;
            a->spare_rows = &many[i];
        }
    }
    ds__sub_table *row = a->spare_rows;
    a->spare_rows = row->next;
    memset(row, 0, sizeof *row);
    row->next = s->rows;
    s->rows = row;
    ds__mem_block *b = *entry;
    *entry = (ds__mem_block *)((uintptr_t)row + 1);
    while (b) {
        ds__mem_block *next = b->list_next;
        ds__mem_block **at = ds__live_at(s, b->ptr);
        b->list_next = *at;
        *at = b;
        b = next;
    }
}

static inline void ds__live_in(ds__arena *a, ds__mem_block *b) {
    ds__segment *s = b->seg;
    ds__mem_block **at = ds__live_at(s, b->ptr);
    b->list_next = *at;
    *at = b;
    if (s->shift != DS__DENSE_SHIFT)
        return;
    int many = 0;
    for (const ds__mem_block *one = b; one && many < DS__ROW_FROM; one = one->list_next)
        many++;
    if (DS__UNLIKELY(many == DS__ROW_FROM) &&
        at == &s->granule[(size_t)(b->ptr - s->base) >> s->shift])
        ds__row_in(a, s, at);
}

static inline void ds__live_out(ds__mem_block *b) {
    ds__mem_block **at = ds__live_at(b->seg, b->ptr);
    while (*at != b)
        at = &(*at)->list_next;
    *at = b->list_next;
}

static inline uint32_t ds__arena_count_request(const ds__arena *a) {
    return a->requests ? atomic_load_explicit(a->requests, memory_order_relaxed) : 0;
}

/* Makes a block that is in no list free, and one with its free neighbours. */
static inline ds__mem_block *ds__merge_in(ds__arena *a, ds__mem_block *b) {
    ds__mem_block *prev = b->prev;
    ds__mem_block *next = b->next;
    int64_t count = 0;
    int64_t bytes = 0;
    int plain = !ds__segment_is_growing(b->seg);
    if (prev && prev->state == DS_BLOCK_FREE && !prev->quiet) {
        count--;
        bytes -= (int64_t)prev->size;
        ds__bin_out(a, prev);
        prev->size += b->size;
        prev->next = next;
        if (next)
            next->prev = prev;
        ds__mem_block_drop(a, b);
        b = prev;
    }
    if (next && next->state == DS_BLOCK_FREE && !next->quiet) {
        count--;
        bytes -= (int64_t)next->size;
        ds__bin_out(a, next);
        b->size += next->size;
        b->next = next->next;
        if (b->next)
            b->next->prev = b;
        ds__mem_block_drop(a, next);
    }
    b->state = DS_BLOCK_FREE;
    if (DS__UNLIKELY(plain)) {
        if (ds__is_split(b)) {
            count++;
            bytes += (int64_t)b->size;
        }
        if (count || bytes)
            ds__count_split(a, b->seg->kind, count, bytes);
        b->asked = ds__arena_count_request(a); /* its age, for garbage collection */
    }
    ds__bin_in(a, b, a->pool->config.best_fit_by_address);
    return b;
}

/* The parked block, which is not among the free bytes, becomes one with its free neighbours. */
static void ds__block_unpark(ds__arena *a, ds__mem_block *b) {
    b->quiet = 0;
    ds__live_out(b);
    (void)ds__merge_in(a, b);
}

static inline void ds__block_park(ds__arena *a, ds__mem_block *b, int kind) {
    ds__mem_block *before = a->parked[kind];
    a->parked[kind] = b;
    b->flags = DS__FLAGS_PARKED;
    if (DS__UNLIKELY(before != NULL))
        ds__block_unpark(a, before);
}

static void ds__unpark_all(ds__arena *a) {
    for (int kind = 0; kind < 2; kind++) {
        ds__mem_block *b = a->parked[kind];
        a->parked[kind] = NULL;
        if (b)
            ds__block_unpark(a, b);
    }
}

/* A block is a request's from now on. */
__attribute__((always_inline)) static inline void ds__block_mark_live(ds__mem_block *b,
                                                                      size_t asked) {
    b->state = DS_BLOCK_LIVE;
    b->asked = asked;
    b->label = DS__UNLIKELY(ds__memory_thread.labels) ? ds__mem_label() : NULL;
    b->file = ds__tls.site.file;
    b->line = (uint32_t)ds__tls.site.line;
}

static inline void ds__block_mark_live_counted(ds__arena *a, ds__mem_block *b, size_t asked) {
    ds__block_mark_live(b, asked);
    ds__count_alloc(a, b->seg->kind, (int64_t)b->size, (int64_t)asked);
}

/* The parked block, if it is as large as the request: where it was, it stays. */
__attribute__((always_inline)) static inline ds__mem_block *ds__take_parked(ds__arena *a, int kind,
                                                                            size_t size,
                                                                            size_t asked) {
    ds__mem_block *b = a->parked[kind];
    if (DS__UNLIKELY(!b || b->size != size))
        return NULL;
    a->parked[kind] = NULL;
    b->flags = DS__FLAGS_LIVE;
    ds__block_mark_live(b, asked);
    ds__count_alloc(a, kind, (int64_t)size, (int64_t)asked);
    return b;
}

static void ds__count_oversize(ds__arena *a, int64_t by) {
    ds__meter_add(&a->dev->stats.oversize_allocations, by);
    if (a->pool != &a->dev->main)
        ds__meter_add(&a->pool->stats.oversize_allocations, by);
}

/* Takes a free block that fits for a request and gives the rest back. NULL: nothing fits, or
   there is no memory for a description. */
__attribute__((noinline)) static ds__mem_block *ds__block_take(ds__arena *a, int kind, size_t size,
                                                               size_t asked) {
    ds__mem_block *b = ds__take_parked(a, kind, size, asked);
    if (b)
        return b;
    if ((b = a->parked[kind]) != NULL) {
        a->parked[kind] = NULL;
        ds__block_unpark(a, b);
    }
    if (DS__UNLIKELY(!(b = ds__bin_best_fit(a, kind, size))))
        return NULL;
    const ds__mem_pool *p = a->pool;
    size_t above = ds__segment_is_growing(b->seg) ? DS__UNIT : p->split_above[b->seg->kind];
    int was_split = ds__is_split(b);
    int split = b->size - size >= above && DS__LIKELY(!p->no_split) &&
                (size < p->config.max_split_size || b->seg->kind == DS__SMALL ||
                 ds__segment_is_growing(b->seg));
    if (DS__UNLIKELY(split && !a->spare_blocks)) { /* before anything has changed */
        ds__mem_block *spare = ds__mem_block_new(a);
        if (!spare)
            return NULL;
        ds__mem_block_drop(a, spare);
    }
    size_t whole = b->size;
    ds__bin_out(a, b);
    if (split) {
        ds__mem_block *rest = ds__block_cut(a, b, size);
        ds__bin_in(a, rest, p->config.best_fit_by_address);
    }
    if (DS__UNLIKELY(!ds__segment_is_growing(b->seg))) {
        if (split)
            ds__count_split(a, kind, was_split ? 0 : 1,
                            was_split ? -(int64_t)size : (int64_t)(whole - size));
        else if (was_split)
            ds__count_split(a, kind, -1, -(int64_t)whole);
        if (a->requests && kind == DS__LARGE)
            atomic_fetch_add_explicit(a->requests, 1, memory_order_relaxed);
    }
    ds__live_in(a, b);
    ds__block_mark_live_counted(a, b, asked);
    if (DS__UNLIKELY(b->size >= p->config.max_split_size)) {
        b->oversize = 1;
        ds__count_oversize(a, 1);
    }
    return b;
}

/* The live block that an address is the start of (exact), or lies in. The arena is locked. */
static inline ds__mem_block *ds__block_find(const ds__segment *s, const char *ptr, int exact) {
    size_t offset = (size_t)(ptr - s->base);
    if (ptr < s->base || offset >= s->size)
        return NULL;
    size_t fine = (offset >> (s->shift - DS__ROW_BITS)) & ((1 << DS__ROW_BITS) - 1);
    for (size_t i = offset >> s->shift;;) {
        ds__sub_table *row = ds__row_of(s->granule[i]);
        ds__mem_block *best = NULL;
        for (ds__mem_block *b = row ? row->at[fine] : s->granule[i]; b; b = b->list_next) {
            if (b->ptr == ptr && b->state == DS_BLOCK_LIVE)
                return b;
            if (b->ptr < ptr && (!best || b->ptr > best->ptr))
                best = b;
        }
        if (exact)
            return NULL;
        if (best)
            return ptr < best->ptr + best->size && best->state == DS_BLOCK_LIVE ? best : NULL;
        if (row && fine > 0) {
            fine--;
            continue;
        }
        if (i-- == 0)
            return NULL;
        fine = (1 << DS__ROW_BITS) - 1;
    }
}

/* The live block of an address and its arena, locked; NULL: there is none, nothing is locked. */
__attribute__((always_inline)) static inline ds__mem_block *ds__find_live(const void *ptr,
                                                                          int exact,
                                                                          ds__arena **out_arena) {
    ds__segment *s = ds__segment_of(ptr);
    ds__arena *a = s ? atomic_load_explicit(&s->arena, memory_order_acquire) : NULL;
    if (!a)
        return NULL;
    ds__arena_lock(a);
    ds__mem_block *b = atomic_load_explicit(&s->arena, memory_order_acquire) == a
                           ? ds__block_find(s, ptr, exact)
                           : NULL;
    if (!b)
        ds__arena_unlock(a);
    *out_arena = a;
    return b;
}

#endif
