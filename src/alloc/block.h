/* alloc/block.h - blocks: cut, merge, park, take, find.

   Manages the blocks of an arena. ds__block_take serves a request from the bins and splits the
   block; ds__merge_in makes a block free and merges it with free neighbours. ds__block_park keeps
   freed blocks unmerged for the next requests of their sizes. ds__find_live finds the live block
   of an address and locks its arena.

   Policy of parking: A small block up to DS__QUICK_LIMIT enters a quick list if the block that
   was freed there before had the same size. Of other blocks, the last freed one of a kind is
   parked. All blocks of the quick lists are merged if the best free block is at the edge of the
   mapped memory or if there is none. So parking hardly changes how much memory an arena needs.

   Invariants: The blocks of a segment cover its address space without gaps. Two neighbours are
   never both free and not claimed. Each live block is in the granule table of its segment; a
   crowded granule may have a sub-table (ds__sub_table). A parked block is free and claimed, and
   stays in the granule table. Descriptions stay until shutdown, so a late look-up reads a valid
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

/* Gets new descriptions of blocks. Returns 0 without host memory. */
__attribute__((noinline)) static int ds__mem_blocks_add(ds__arena *a) {
    enum { MANY = 64 };

    ds__mem_block *many = ds__kept_alloc(MANY * sizeof *many);
    if (!many)
        return 0;
    for (int i = 0; i < MANY; i++) {
        many[i].list_next = a->spare_blocks;
        a->spare_blocks = &many[i];
    }
    return 1;
}

/* Returns an unused description of a block, or NULL without host memory. */
static inline ds__mem_block *ds__mem_block_create(ds__arena *a) {
    if (DS__UNLIKELY(!a->spare_blocks) && !ds__mem_blocks_add(a))
        return NULL;
    ds__mem_block *b = a->spare_blocks;
    a->spare_blocks = b->list_next;
    return b;
}

/* Returns a description to the arena's stock. */
static inline void ds__mem_block_destroy(ds__arena *a, ds__mem_block *b) {
    b->seg = NULL;
    b->list_next = a->spare_blocks;
    a->spare_blocks = b;
}

/* Cuts a block, which is in no list, behind `size` bytes. Returns the rest, which has the state
   of the block, or NULL without host memory. */
static inline ds__mem_block *ds__block_cut(ds__arena *a, ds__mem_block *b, size_t size) {
    ds__mem_block *rest = ds__mem_block_create(a);
    if (DS__UNLIKELY(!rest))
        return NULL;
    rest->bin = 0;
    rest->ptr = b->ptr + size;
    rest->size = b->size - size;
    rest->asked = 0;
    rest->seg = b->seg;
    rest->uses = NULL;
    rest->flags = DS__FLAGS(b->state, 0);
    rest->oversize = rest->stale = 0;
    rest->prev = b;
    rest->next = b->next;
    if (b->next)
        b->next->prev = rest;
    b->next = rest;
    b->size = size;
    return rest;
}

/* Merges a block with its next neighbour, which is in no list. */
static inline void ds__block_absorb_next(ds__arena *a, ds__mem_block *b) {
    ds__mem_block *next = b->next;
    b->size += next->size;
    b->next = next->next;
    if (b->next)
        b->next->prev = b;
    ds__mem_block_destroy(a, next);
}

/* Returns whether a segment has other blocks beside this one. */
static inline int ds__is_split(const ds__mem_block *b) {
    return b->prev || b->next;
}

/* Counts a change of the free blocks in plain segments that are partly in use. */
static void ds__count_split(ds__arena *a, int kind, int64_t count, int64_t bytes) {
    ds__counter_meters_add(a, kind, DS__SPLIT, count);
    ds__counter_meters_add(a, kind, DS__SPLIT_BYTES, bytes);
}

/* Returns the sub-table that an entry of a granule table leads to, or NULL. */
static inline ds__sub_table *ds__sub_table_of(const ds__mem_block *entry) {
    return (uintptr_t)entry & 1 ? (ds__sub_table *)((uintptr_t)entry - 1) : NULL;
}

/* Returns the list of the live blocks near an address: of those that start in the same granule of
   the segment, or in the same part of the granule if the granule has a sub-table. */
static inline ds__mem_block **ds__live_at(const ds__segment *s, const char *ptr) {
    size_t offset = (size_t)(ptr - s->base);
    ds__mem_block **at = &s->granule[offset >> s->shift];
    ds__sub_table *table = ds__sub_table_of(*at);
    size_t part = offset >> (s->shift - DS__SUB_TABLE_BITS) & ((1 << DS__SUB_TABLE_BITS) - 1);
    return table ? &table->at[part] : at;
}

/* Gives a crowded granule a sub-table. Without host memory, the granule stays as it is. */
__attribute__((noinline)) static void ds__sub_table_add(ds__arena *a, ds__segment *s,
                                                        ds__mem_block **entry) {
    if (!a->spare_sub_tables) {
        enum { MANY = 8 };

        ds__sub_table *many = ds__kept_alloc(MANY * sizeof *many);
        if (!many)
            return;
        for (int i = 0; i < MANY; i++) {
            many[i].next = a->spare_sub_tables;
            a->spare_sub_tables = &many[i];
        }
    }
    ds__sub_table *table = a->spare_sub_tables;
    a->spare_sub_tables = table->next;
    memset(table, 0, sizeof *table);
    table->next = s->sub_tables;
    s->sub_tables = table;
    ds__mem_block *b = *entry;
    *entry = (ds__mem_block *)((uintptr_t)table + 1);
    while (b) {
        ds__mem_block *next = b->list_next;
        ds__mem_block **at = ds__live_at(s, b->ptr);
        b->list_next = *at;
        *at = b;
        b = next;
    }
}

/* Enters a live block in the granule table of its segment. */
static inline void ds__live_in(ds__arena *a, ds__mem_block *b) {
    ds__segment *s = b->seg;
    ds__mem_block **at = ds__live_at(s, b->ptr);
    b->list_next = *at;
    *at = b;
    if (s->shift != DS__DENSE_SHIFT)
        return;
    int many = 0;
    for (const ds__mem_block *one = b; one && many < DS__SUB_TABLE_FROM; one = one->list_next)
        many++;
    if (DS__UNLIKELY(many == DS__SUB_TABLE_FROM) &&
        at == &s->granule[(size_t)(b->ptr - s->base) >> s->shift])
        ds__sub_table_add(a, s, at);
}

/* Removes a block from the granule table of its segment. */
static inline void ds__live_out(ds__mem_block *b) {
    ds__mem_block **at = ds__live_at(b->seg, b->ptr);
    while (*at != b)
        at = &(*at)->list_next;
    *at = b->list_next;
}

/* Returns the clock of the ages of free blocks: the pool's number of requests. */
static inline uint32_t ds__arena_count_request(const ds__arena *a) {
    return a->requests ? atomic_load_explicit(a->requests, memory_order_relaxed) : 0;
}

/* Makes a block, which is in no list, free and merges it with its free neighbours. Returns the
   merged block. */
static inline ds__mem_block *ds__merge_in(ds__arena *a, ds__mem_block *b) {
    ds__mem_block *prev = b->prev;
    ds__mem_block *next = b->next;
    int64_t count = 0;
    int64_t bytes = 0;
    int plain = !ds__segment_is_growing(b->seg);
    if (ds__block_is_binned(prev)) {
        count--;
        bytes -= (int64_t)prev->size;
        ds__bin_out(a, prev);
        ds__block_absorb_next(a, prev);
        b = prev;
    }
    if (ds__block_is_binned(next)) {
        count--;
        bytes -= (int64_t)next->size;
        ds__bin_out(a, next);
        ds__block_absorb_next(a, b);
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

/* Merges a block that was parked with its free neighbours. Free bytes do not include parked
   blocks. */
static void ds__block_unpark(ds__arena *a, ds__mem_block *b) {
    b->claimed = 0;
    ds__live_out(b);
    (void)ds__merge_in(a, b);
}

/* Returns where a block of this size is parked: in a quick list, or else where the last freed block
   of the kind is. */
static inline ds__parked *ds__parked_at(ds__arena *a, int kind, size_t size) {
    if (kind != DS__SMALL || size > DS__QUICK_LIMIT)
        return &a->parked[DS__QUICK_LISTS + kind];
    uint32_t hash = (uint32_t)(size / DS__UNIT) * UINT32_C(0x9e3779b1);
    return &a->parked[hash >> (32 - DS__QUICK_BITS)];
}

/* Unparks all blocks of a list. */
static void ds__parked_flush(ds__arena *a, ds__parked *list) {
    ds__mem_block *b = list->first;
    list->first = NULL;
    list->count = 0;
    while (b) {
        ds__mem_block *next = b->list_prev;
        ds__block_unpark(a, b);
        b = next;
    }
}

/* Unparks the blocks of all quick lists. */
static void ds__quick_flush(ds__arena *a) {
    for (uint64_t left = a->quick_used; left; left &= left - 1)
        ds__parked_flush(a, &a->parked[__builtin_ctzll(left)]);
    a->quick_used = 0;
}

static void ds__unpark_all(ds__arena *a) {
    ds__quick_flush(a);
    for (int kind = 0; kind < 2; kind++)
        ds__parked_flush(a, &a->parked[DS__QUICK_LISTS + kind]);
}

/* Merges a freed block that does not enter its quick list: the list is full, or was of another
   size until now. So sizes that do not return soon are merged at once. */
__attribute__((noinline)) static void ds__quick_refuse(ds__arena *a, ds__parked *list,
                                                       ds__mem_block *b) {
    if (list->size != b->size) {
        ds__parked_flush(a, list);
        list->size = (uint32_t)b->size;
    }
    ds__block_unpark(a, b);
}

/* Parks a freed block for the next request of its size. */
static inline void ds__block_park(ds__arena *a, ds__mem_block *b, int kind) {
    ds__parked *list = ds__parked_at(a, kind, b->size);
    ds__mem_block *before = list->first;
    b->flags = DS__FLAGS_PARKED;
    if (list >= &a->parked[DS__QUICK_LISTS]) {
        b->list_prev = NULL;
        list->first = b;
        if (DS__UNLIKELY(before != NULL))
            ds__block_unpark(a, before);
        return;
    }
    if (DS__UNLIKELY(list->size != b->size || list->count == DS__QUICK_DEPTH)) {
        ds__quick_refuse(a, list, b);
        return;
    }
    b->list_prev = before;
    list->first = b;
    list->count++;
    if (!before)
        a->quick_used |= (uint64_t)1 << (list - a->parked);
}

/* Makes a block live for a request of `asked` bytes, with the label and call site of the
   thread. */
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

/* Takes a parked block of the request's size, or returns NULL. The block stays in the granule
   table. */
__attribute__((always_inline)) static inline ds__mem_block *ds__take_parked(ds__arena *a, int kind,
                                                                            size_t size,
                                                                            size_t asked) {
    ds__parked *list = ds__parked_at(a, kind, size);
    ds__mem_block *b = list->first;
    if (!b || b->size != size)
        return NULL;
    list->first = b->list_prev;
    list->count--;
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

/* Returns whether a block of `size` bytes may be cut off a free block: the rest must be worth
   keeping, and blocks of max_split_size or more stay whole in plain segments. */
static inline int ds__block_may_split(const ds__mem_pool *p, const ds__mem_block *b, size_t size) {
    int kind = b->seg->kind;
    int growing = ds__segment_is_growing(b->seg);
    if (b->size - size < (growing ? DS__UNIT : p->split_above[kind]))
        return 0;
    return growing || kind == DS__SMALL || size < p->config.max_split_size;
}

/* Provides a spare description for ds__block_cut. Returns 0 without host memory. */
static inline int ds__block_spare_ensure(ds__arena *a) {
    return DS__LIKELY(a->spare_blocks != NULL) || ds__mem_blocks_add(a);
}

/* Counts that a block of a plain segment was taken. `whole`: its size before a rest was cut off.
   `was_split`: 1 if the block had neighbours then. */
static inline void ds__block_plain_count(ds__arena *a, const ds__mem_block *b, size_t whole,
                                         int was_split) {
    int kind = b->seg->kind;
    int64_t rest = (int64_t)(whole - b->size);
    ds__count_split(a, kind, (rest > 0) - was_split, rest - (was_split ? (int64_t)whole : 0));
    if (a->requests && kind == DS__LARGE)
        atomic_fetch_add_explicit(a->requests, 1, memory_order_relaxed);
}

/* Merges the blocks of all quick lists and returns the free block that fits best, or NULL. */
__attribute__((noinline)) static ds__mem_block *ds__quick_best_fit(ds__arena *a, int kind,
                                                                   size_t size) {
    ds__quick_flush(a);
    return ds__bin_best_fit(a, kind, size);
}

/* Returns the free block that fits a request best, or NULL. Parked blocks are merged first: the
   last freed one always, those of the quick lists before the request uses more of a segment. */
static inline ds__mem_block *ds__block_best_fit(ds__arena *a, int kind, size_t size) {
    ds__parked *last = &a->parked[DS__QUICK_LISTS + kind];
    if (last->first)
        ds__parked_flush(a, last);
    ds__mem_block *b = ds__bin_best_fit(a, kind, size);
    if (DS__LIKELY(b && b->bin != DS__EDGE) || kind != DS__SMALL || !a->quick_used)
        return b;
    return ds__quick_best_fit(a, kind, size);
}

/* Takes a free block from the bins for a request and gives the rest back. Returns NULL if no block
   fits, or without host memory for a description. The arena has room to count the block. */
__attribute__((noinline)) static ds__mem_block *ds__block_take_best(ds__arena *a, int kind,
                                                                    size_t size, size_t asked) {
    ds__mem_block *b = ds__block_best_fit(a, kind, size);
    if (DS__UNLIKELY(!b))
        return NULL;

    const ds__mem_pool *p = a->pool;
    int split = DS__LIKELY(!p->no_split) && ds__block_may_split(p, b, size);
    if (DS__UNLIKELY(split && !ds__block_spare_ensure(a))) /* before anything has changed */
        return NULL;
    size_t whole = b->size;
    int was_split = ds__is_split(b);
    ds__bin_out(a, b);
    if (split)
        ds__bin_in(a, ds__block_cut(a, b, size), p->config.best_fit_by_address);
    if (DS__UNLIKELY(!ds__segment_is_growing(b->seg)))
        ds__block_plain_count(a, b, whole, was_split);

    ds__live_in(a, b);
    ds__block_mark_live_counted(a, b, asked);
    if (DS__UNLIKELY(b->size >= p->config.max_split_size)) {
        b->oversize = 1;
        ds__count_oversize(a, 1);
    }
    return b;
}

/* Takes a parked block of the request's size, or else the best fitting one. */
static ds__mem_block *ds__block_take(ds__arena *a, int kind, size_t size, size_t asked) {
    ds__mem_block *b = ds__take_parked(a, kind, size, asked);
    return b ? b : ds__block_take_best(a, kind, size, asked);
}

/* Returns the block with the last start up to `ptr` in a list of live blocks, or NULL. */
static inline ds__mem_block *ds__live_last(ds__mem_block *b, const char *ptr) {
    ds__mem_block *best = NULL;
    for (; b; b = b->list_next)
        if (b->ptr <= ptr && (!best || b->ptr > best->ptr))
            best = b;
    return best;
}

/* Returns the live block that an address is inside of, or NULL. The address lies in the segment,
   and the arena is locked. Searches the lists backwards for the last start of a block. */
static ds__mem_block *ds__block_around(const ds__segment *s, const char *ptr) {
    const char *place = ptr;
    for (;;) {
        ds__mem_block *best = ds__live_last(*ds__live_at(s, place), ptr);
        if (best)
            return ptr < best->ptr + best->size && best->state == DS_BLOCK_LIVE ? best : NULL;

        size_t offset = (size_t)(place - s->base);
        int is_fine = ds__sub_table_of(s->granule[offset >> s->shift]) != NULL;
        unsigned shift = is_fine ? s->shift - DS__SUB_TABLE_BITS : s->shift;
        size_t start = offset >> shift << shift; /* of the addresses of the list */
        if (start == 0)
            return NULL;
        place = s->base + start - 1;
    }
}

/* Returns the live block that starts at an address (exact) or contains it, or NULL. The arena is
   locked. */
static inline ds__mem_block *ds__block_find(const ds__segment *s, const char *ptr, int exact) {
    if ((uintptr_t)ptr - (uintptr_t)s->base >= s->size)
        return NULL;
    for (ds__mem_block *b = *ds__live_at(s, ptr); b; b = b->list_next)
        if (b->ptr == ptr && b->state == DS_BLOCK_LIVE)
            return b;
    return exact ? NULL : ds__block_around(s, ptr);
}

/* Returns the live block of an address and its arena, which is locked then. If there is none,
   returns NULL and nothing is locked. */
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
