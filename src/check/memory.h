/* check/memory.h - known memory by address.

   Keeps blocks of the allocator and allocations, live and freed, in two maps
   (ds__race_memory_add, ds__race_memory_end). ds__race_memory_find looks an address up, first among
   the blocks. ds__race_sweep drops accesses that all timelines know.

   Policy:
   1. A freed range is remembered until its addresses are given out again, at most DS__RACE_DEAD
      of them.
   2. At the limit of memory, the layer gives up accesses that all timelines know, then freed
      ranges, then the accesses of live ranges, which are not checked any more. Of freed and of live
      ranges, the oldest are given up first.
   3. A block may outlive the stream of its allocation. When the number of the stream's timeline is
      used again, the block has no timeline: the host knows all work of the stream then.

   Invariants: the ranges of a map do not overlap. A range that a graph watches is not freed before
   the graph has forgotten it (`watchers`), though it leaves the map.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_MEMORY_H
#define DS__CHECK_MEMORY_H

#include "line.h"
#include "record.h"

/* Returns the piece that holds the last range that begins at or before the address; *out_at: the
   index behind that range. NULL: the map is empty. */
static ds__race_piece *ds__race_map_seek(const ds__race_map *map, uintptr_t address,
                                         size_t *out_leaf, size_t *out_at) {
    size_t low = 0;
    size_t high = map->count;
    *out_leaf = 0;
    *out_at = 0;
    if (!map->count)
        return NULL;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (map->leaf[middle].first <= address)
            low = middle;
        else
            high = middle;
    }
    ds__race_piece *p = map->leaf[low].piece;
    /* without branches, since they would be predicted wrong half of the time */
    const uintptr_t *base = p->base;
    size_t left = p->count;
    while (left > 1) {
        size_t half = left / 2;
        base = base[half] <= address ? base + half : base;
        left -= half;
    }
    *out_leaf = low;
    *out_at = (size_t)(base - p->base) + (*base <= address);
    return p;
}

/* Returns the range of a map that has the address, or NULL. */
static ds__race_memory *ds__race_map_find(const ds__race_map *map, uintptr_t address) {
    size_t leaf;
    size_t at;
    const ds__race_piece *p = ds__race_map_seek(map, address, &leaf, &at);
    if (!p || !at)
        return NULL;
    ds__race_memory *m = p->at[at - 1];
    return address - m->base < m->size ? m : NULL;
}

/* Returns the first range of a map that overlaps [base, base + size), or NULL. */
static ds__race_memory *ds__race_map_meet(const ds__race_map *map, uintptr_t base, size_t size) {
    size_t leaf;
    size_t at;
    const ds__race_piece *p = ds__race_map_seek(map, base, &leaf, &at);
    if (!p)
        return NULL;
    if (at && base - p->base[at - 1] < p->at[at - 1]->size)
        return p->at[at - 1];
    if (at == p->count) {
        if (leaf + 1 == map->count)
            return NULL;
        p = map->leaf[leaf + 1].piece;
        at = 0;
    }
    return p->base[at] - base < size ? p->at[at] : NULL;
}

/* Moves ranges [from, from + count) of a piece to index `to` of a piece. */
static void ds__race_piece_move(ds__race_piece *into, size_t to, const ds__race_piece *p,
                                size_t from, size_t count) {
    memmove(into->at + to, p->at + from, count * sizeof p->at[0]);
    memmove(into->base + to, p->base + from, count * sizeof p->base[0]);
}

/* Divides a piece, or adds the first one. Returns 0 if there is no memory. */
static int ds__race_map_split(ds__race_map *map, size_t leaf) {
    ds__race_piece *fresh = ds__race_alloc(sizeof *fresh);
    if (!fresh || !ds__race_array_reserve(&map->leaf, sizeof *map->leaf, map->count, &map->room)) {
        ds__race_release(fresh, sizeof *fresh);
        return 0;
    }
    size_t at = map->count ? leaf + 1 : 0;
    memmove(map->leaf + at + (at < map->count), map->leaf + at,
            (map->count - at) * sizeof *map->leaf);
    map->leaf[at] = (ds__race_leaf){ 0, fresh };
    fresh->base[0] = UINTPTR_MAX; /* the first piece is empty: before all of it */
    map->count++;
    if (map->count > 1) {
        ds__race_piece *full = map->leaf[leaf].piece;
        fresh->count = full->count / 2;
        full->count -= fresh->count;
        ds__race_piece_move(fresh, 0, full, full->count, fresh->count);
        map->leaf[at].first = fresh->base[0];
    }
    return 1;
}

static int ds__race_map_insert(ds__race_map *map, ds__race_memory *m) {
    size_t leaf;
    size_t at;
    ds__race_piece *p = ds__race_map_seek(map, m->base, &leaf, &at);
    if (!p || p->count == sizeof p->at / sizeof p->at[0]) {
        if (!ds__race_map_split(map, leaf))
            return 0;
        p = ds__race_map_seek(map, m->base, &leaf, &at);
    }
    ds__race.version++;
    ds__race_piece_move(p, at + 1, p, at, p->count - at);
    p->at[at] = m;
    p->base[at] = m->base;
    p->count++;
    map->leaf[leaf].first = p->base[0];
    return 1;
}

static void ds__race_map_remove(ds__race_map *map, const ds__race_memory *m) {
    size_t leaf;
    size_t at;
    ds__race_piece *p = ds__race_map_seek(map, m->base, &leaf, &at);
    if (!p || !at || p->at[at - 1] != m)
        return;
    ds__race.version++;
    ds__race_piece_move(p, at - 1, p, at, p->count - at);
    p->count--;
    map->leaf[leaf].first = p->base[0];
    if (p->count)
        return;
    ds__race_release(p, sizeof *p);
    memmove(map->leaf + leaf, map->leaf + leaf + 1, (map->count - leaf - 1) * sizeof *map->leaf);
    map->count--;
}

static ds__race_map *ds__race_map_of(const ds__race_memory *m) {
    return m->block ? &ds__race.block : &ds__race.alloc;
}

static void ds__race_memory_release(ds__race_memory *m) {
    ds__race_records_clear(m);
    for (size_t i = 0; i < m->uses; i++)
        ds__race_clock_unref(m->use[i].clock);
    ds__race_release(m->use, m->use_room * sizeof *m->use);
    ds__race_release(m->skip, m->skip_room * sizeof *m->skip);
    ds__race_release(m, sizeof *m);
}

/* Takes a freed range out of the list of freed ranges. */
static void ds__race_dead_unlink(ds__race_memory *m) {
    if (m->newer)
        m->newer->older = m->older;
    else
        ds__race.newest = m->older;
    if (m->older)
        m->older->newer = m->newer;
    else
        ds__race.oldest = m->newer;
    m->newer = m->older = NULL;
    ds__race.dead--;
}

/* Forgets a range. */
static void ds__race_memory_drop(ds__race_memory *m) {
    ds__race_map_remove(ds__race_map_of(m), m);
    if (m->dead)
        ds__race_dead_unlink(m);
    else
        ds__race.stats.ranges--;
    m->dead = 1;
    m->unlisted = 1;
    ds__race_records_clear(m);
    if (!m->watchers)
        ds__race_memory_release(m);
}

/* Drops a watcher. */
static void ds__race_memory_unwatch(ds__race_memory *m) {
    if (--m->watchers == 0 && m->unlisted)
        ds__race_memory_release(m);
}

/* Takes a freed range out of its map, with its records; the caller ends it by
   ds__race_memory_unwatch. */
static ds__race_memory *ds__race_memory_detach(ds__race_memory *m) {
    ds__race_map_remove(ds__race_map_of(m), m);
    ds__race_dead_unlink(m);
    m->unlisted = 1;
    m->watchers++;
    return m;
}

/* Takes the timelines whose numbers are free out of a block. All others know what these timelines
   knew, so the block needs their clocks no longer. */
static void ds__race_memory_unline(ds__race_memory *m) {
    if (m->line && m->line != DS__RACE_GONE && ds__race_line_at(m->line)->kind == DS__RACE_FREE)
        m->line = DS__RACE_GONE;
    for (size_t i = 0; i < m->uses; i++) {
        ds__race_use *u = &m->use[i];
        if (u->line == DS__RACE_GONE || ds__race_line_at(u->line)->kind != DS__RACE_FREE)
            continue;
        u->line = DS__RACE_GONE;
        u->open = 0;
    }
}

/* Frees the numbers of ended timelines that all others know. Their records are gone. */
static void ds__race_lines_reuse(const uint64_t *floor) {
    uint32_t ended = ds__race.ended;
    for (uint32_t i = 1; i < ds__race.lines; i++) {
        ds__race_line *l = ds__race.line[i];
        if (l->kind != DS__RACE_ENDED || floor[i] < l->n)
            continue;
        ds__race_clock_unref(l->clock);
        l->clock = NULL;
        l->kind = DS__RACE_FREE;
        ds__race.ended--;
    }
    ds__race.reuse_at = 2 * ds__race.ended + DS__RACE_ENDED_LINES;
    for (size_t i = 0; i < ds__race.block.count && ds__race.ended != ended; i++)
        for (size_t j = 0; j < ds__race.block.leaf[i].piece->count; j++)
            ds__race_memory_unline(ds__race.block.leaf[i].piece->at[j]);
}

/* Drops the records that all timelines know, then the timelines that ended before. */
static void ds__race_sweep(void) {
    uint64_t *floor = ds__race_floors();
    ds__race.fresh = 0;
    if (!floor)
        return;
    const ds__race_map *maps[] = { &ds__race.block, &ds__race.alloc };
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < maps[k]->count; i++)
            for (size_t j = 0; j < maps[k]->leaf[i].piece->count; j++)
                ds__race_records_sweep(maps[k]->leaf[i].piece->at[j], floor);
    ds__race_lines_reuse(floor);
    ds__race_release(floor, ds__race.lines * sizeof *floor);
}

/* Returns the live ranges that have accesses. Returns NULL if there is no memory. */
static ds__race_memory **ds__race_ranges_list(size_t *out_count) {
    const ds__race_map *maps[] = { &ds__race.block, &ds__race.alloc };
    ds__race_memory **list = ds__race_alloc((ds__race.stats.ranges + 1) * sizeof(void *));
    *out_count = 0;
    for (int k = 0; k < 2 && list; k++)
        for (size_t i = 0; i < maps[k]->count; i++)
            for (size_t j = 0; j < maps[k]->leaf[i].piece->count; j++) {
                ds__race_memory *m = maps[k]->leaf[i].piece->at[j];
                if (!m->dead && (m->list.room || m->buckets))
                    list[(*out_count)++] = m;
            }
    return list;
}

static int ds__race_memory_compare(const void *a, const void *b) {
    const ds__race_memory *const *x = a;
    const ds__race_memory *const *y = b;
    return ((*x)->serial > (*y)->serial) - ((*x)->serial < (*y)->serial);
}

/* Gives up the accesses of a live range. For the first one, a notice is printed. */
static void ds__race_memory_give_up(ds__race_memory *m) {
    char text[160];
    if (!ds__race.stats.evicted++) {
        snprintf(
            text, sizeof text,
            "the limit of memory=%zu is reached; %s%s%s%p and other ranges are not checked any "
            "more",
            ds__race.most >> 20, *m->label ? "\"" : "", m->label, *m->label ? "\" " : "",
            (void *)m->base);
        ds__race_notice(text);
    }
    m->ignored = 1;
    ds__race_records_clear(m);
}

/* Gives up ranges at the limit of memory. */
static void ds__race_make_room(void) {
    size_t most = ds__race.most - ds__race.most / 8;
    ds__race_sweep();
    while (ds__race.bytes > most && ds__race.oldest)
        ds__race_memory_drop(ds__race.oldest);
    if (ds__race.bytes <= most)
        return;
    size_t room = (ds__race.stats.ranges + 1) * sizeof(void *);
    size_t count;
    ds__race_memory **list = ds__race_ranges_list(&count);
    if (!list)
        return;
    qsort(list, count, sizeof *list, ds__race_memory_compare);
    for (size_t i = 0; i < count && ds__race.bytes - room > most; i++)
        ds__race_memory_give_up(list[i]);
    ds__race_release(list, room);
}

/* Adds a range to its map. Returns NULL if there is no memory for it. */
static ds__race_memory *ds__race_memory_insert(const ds__race_memory *as) {
    ds__race_memory *m = ds__race_alloc(sizeof *m);
    if (!m)
        return NULL;
    *m = *as;
    m->serial = ++ds__race.serial;
    if (!ds__race_map_insert(ds__race_map_of(m), m)) {
        ds__race_release(m, sizeof *m);
        return NULL;
    }
    return m;
}

/* Puts a freed range at the end of the list of freed ranges. */
static void ds__race_dead_link(ds__race_memory *m) {
    m->older = ds__race.newest;
    if (ds__race.newest)
        ds__race.newest->newer = m;
    else
        ds__race.oldest = m;
    ds__race.newest = m;
    if (++ds__race.dead > DS__RACE_DEAD)
        ds__race_memory_drop(ds__race.oldest);
}

/* Adds a part of a freed block, unless it is empty. */
static void ds__race_part_insert(const ds__race_memory *of, uintptr_t base, uintptr_t end) {
    if (base >= end)
        return;
    ds__race_memory part = { .base = base,
                             .size = end - base,
                             .line = of->line,
                             .made = of->made,
                             .freed = of->freed,
                             .dead = 1,
                             .of_graph = of->of_graph,
                             .block = 1 };
    memcpy(part.label, of->label, sizeof part.label);
    ds__race_memory *m = ds__race_memory_insert(&part);
    if (m)
        ds__race_dead_link(m);
}

/* Forgets the memory of [base, base + size) in a map. A freed block that is only partly there stays
   in parts. */
static void ds__race_map_clear(ds__race_map *map, uintptr_t base, size_t size) {
    ds__race_memory *m;
    while ((m = ds__race_map_meet(map, base, size)) != NULL) {
        ds__race_memory former = *m;
        ds__race_memory_drop(m);
        if (!former.dead || !former.block)
            continue;
        ds__race_part_insert(&former, former.base, base);
        ds__race_part_insert(&former, base + size, former.base + former.size);
    }
}

/* Adds memory that is given out now, and forgets freed memory of these addresses. Returns NULL if
   there is no memory for it. */
static ds__race_memory *ds__race_memory_add(const void *ptr, size_t size, int block,
                                            const char *label) {
    ds__race_memory as = { .base = (uintptr_t)ptr,
                           .size = size + (size == 0),
                           .block = (uint8_t)block,
                           .made = ds__race_place_of_call() };
    ds__utf8_copy(as.label, sizeof as.label, label ? label : "");
    ds__race_map_clear(block ? &ds__race.block : &ds__race.alloc, as.base, as.size);
    if (!block) { /* blocks of an earlier segment */
        ds__race_memory *m;
        while ((m = ds__race_map_meet(&ds__race.block, as.base, as.size)) != NULL)
            ds__race_memory_drop(m);
    }
    ds__race_memory *m = ds__race_memory_insert(&as);
    ds__race.stats.ranges += m != NULL;
    return m;
}

/* Marks a range as freed, and keeps its records for its next use. */
static void ds__race_memory_retire(ds__race_memory *m) {
    ds__race.version++;
    m->dead = 1;
    m->freed = ds__race_place_of_call();
    ds__race.stats.ranges--;
    ds__race_dead_link(m);
}

/* Makes a range live again whose free has failed. */
static void ds__race_memory_revive(ds__race_memory *m) {
    ds__race.version++;
    ds__race_dead_unlink(m);
    m->dead = 0;
    m->freed = 0;
    ds__race.stats.ranges++;
}

/* Marks a range as freed. Its records are dropped. */
static void ds__race_memory_end(ds__race_memory *m) {
    ds__race_records_clear(m);
    ds__race_memory_retire(m);
}

/* Returns the bytes of a range without the padding of a block. */
static size_t ds__race_memory_bytes(const ds__race_memory *m) {
    return m->asked ? m->asked : m->size;
}

/* Looks an address up in both maps. */
__attribute__((noinline)) static ds__race_memory *ds__race_memory_look_up(uintptr_t address) {
    ds__race_memory *m = ds__race_map_find(&ds__race.block, address);
    if (m && !m->dead)
        return m;
    ds__race_memory *a = ds__race_map_find(&ds__race.alloc, address);
    if (!m || (a && a->dead && a->serial > m->serial))
        return a;
    return m;
}

/* Returns the known memory at an address: a block, else an allocation. NULL: none. */
static ds__race_memory *ds__race_memory_find(uintptr_t address) {
    ds__race_hit *h = &ds__race.hit[ds__race_hash(address) % DS__RACE_HITS & ~(size_t)1];
    for (int i = 0; i < 2; i++)
        if (DS__LIKELY(h[i].address == address && h[i].version == ds__race.version))
            return h[i].memory;
    ds__race_memory *m = ds__race_memory_look_up(address);
    h[1] = h[0];
    h[0] = (ds__race_hit){ address, ds__race.version, m };
    return m;
}

static void ds__race_map_deinit(ds__race_map *map) {
    while (map->count) {
        const ds__race_piece *p = map->leaf[map->count - 1].piece;
        ds__race_memory_drop(p->at[p->count - 1]);
    }
    ds__race_release(map->leaf, map->room * sizeof *map->leaf);
    *map = (ds__race_map){ NULL, 0, 0 };
}

#endif
