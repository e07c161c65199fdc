/* check/memory.h - known memory by address.

   Keeps blocks of the allocator and allocations, live and freed, in two maps
   (ds__race_memory_add, ds__race_memory_end). ds__race_memory_find looks an address up, first among
   the blocks. ds__race_records_sweep drops accesses that all timelines know.

   Policy:
   1. A freed range is remembered until its addresses are given out again, at most DS__RACE_DEAD
      of them.
   2. At the limit of memory, the ranges with the oldest accesses are given up: first accesses that
      all timelines know, then freed ranges, then whole live ranges, which are not checked any more.

   Invariants: the ranges of a map do not overlap. A range that a graph watches is not freed before
   the graph has forgotten it (`watchers`), though it leaves the map.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_MEMORY_H
#define DS__CHECK_MEMORY_H

#include "line.h"

/* Returns the piece that holds the last range that begins at or before the address; *out_at: the
   index behind that range. NULL: the map is empty. */
static ds__race_piece *ds__race_map_seek(const ds__race_map *map, uintptr_t address,
                                         size_t *out_piece, size_t *out_at) {
    size_t low = 0;
    size_t high = map->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (map->piece[middle]->at[0]->base <= address)
            low = middle;
        else
            high = middle;
    }
    *out_piece = low;
    *out_at = 0;
    if (!map->count)
        return NULL;
    ds__race_piece *p = map->piece[low];
    size_t first = 0;
    size_t last = p->count;
    while (first < last) {
        size_t middle = first + (last - first) / 2;
        if (p->at[middle]->base <= address)
            first = middle + 1;
        else
            last = middle;
    }
    *out_at = first;
    return p;
}

/* Returns the range of a map that has the address, or NULL. */
static ds__race_memory *ds__race_map_find(const ds__race_map *map, uintptr_t address) {
    size_t piece;
    size_t at;
    const ds__race_piece *p = ds__race_map_seek(map, address, &piece, &at);
    if (!p || !at)
        return NULL;
    ds__race_memory *m = p->at[at - 1];
    return address - m->base < m->size ? m : NULL;
}

/* Returns the first range of a map that overlaps [base, base + size), or NULL. */
static ds__race_memory *ds__race_map_meet(const ds__race_map *map, uintptr_t base, size_t size) {
    size_t piece;
    size_t at;
    const ds__race_piece *p = ds__race_map_seek(map, base, &piece, &at);
    if (!p)
        return NULL;
    if (at && base - p->at[at - 1]->base < p->at[at - 1]->size)
        return p->at[at - 1];
    if (at == p->count) {
        if (piece + 1 == map->count)
            return NULL;
        p = map->piece[piece + 1];
        at = 0;
    }
    return p->at[at]->base - base < size ? p->at[at] : NULL;
}

/* Inserts a piece. Returns 0 if there is no memory. */
static int ds__race_map_split(ds__race_map *map, size_t piece) {
    ds__race_piece *fresh = ds__race_alloc(sizeof *fresh);
    if (!fresh || !ds__race_array_reserve(&map->piece, sizeof(void *), map->count, &map->room)) {
        ds__race_release(fresh, sizeof *fresh);
        return 0;
    }
    size_t at = map->count ? piece + 1 : 0;
    memmove(map->piece + at + (at < map->count), map->piece + at,
            (map->count - at) * sizeof(void *));
    map->piece[at] = fresh;
    map->count++;
    if (map->count > 1) {
        ds__race_piece *full = map->piece[piece];
        fresh->count = full->count / 2;
        full->count -= fresh->count;
        memcpy(fresh->at, full->at + full->count, fresh->count * sizeof(void *));
    }
    return 1;
}

static int ds__race_map_insert(ds__race_map *map, ds__race_memory *m) {
    size_t piece;
    size_t at;
    ds__race_piece *p = ds__race_map_seek(map, m->base, &piece, &at);
    if (!p || p->count == sizeof p->at / sizeof p->at[0]) {
        if (!ds__race_map_split(map, piece))
            return 0;
        p = ds__race_map_seek(map, m->base, &piece, &at);
        if (!p->count)
            at = 0;
    }
    ds__race.version++;
    memmove(p->at + at + 1, p->at + at, (p->count - at) * sizeof(void *));
    p->at[at] = m;
    p->count++;
    return 1;
}

static void ds__race_map_remove(ds__race_map *map, const ds__race_memory *m) {
    size_t piece;
    size_t at;
    ds__race_piece *p = ds__race_map_seek(map, m->base, &piece, &at);
    if (!p || !at || p->at[at - 1] != m)
        return;
    ds__race.version++;
    memmove(p->at + at - 1, p->at + at, (p->count - at) * sizeof(void *));
    p->count--;
    if (p->count)
        return;
    ds__race_release(p, sizeof *p);
    memmove(map->piece + piece, map->piece + piece + 1, (map->count - piece - 1) * sizeof(void *));
    map->count--;
}

static ds__race_map *ds__race_map_of(const ds__race_memory *m) {
    return m->block ? &ds__race.block : &ds__race.alloc;
}

static void ds__race_records_clear(ds__race_memory *m) {
    ds__race.stats.records -= m->count;
    ds__race_release(m->record, m->room * sizeof *m->record);
    m->record = NULL;
    m->count = m->room = 0;
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

/* Drops the records of a range that all timelines know. */
static void ds__race_records_sweep(ds__race_memory *m, const uint64_t *floor) {
    size_t kept = 0;
    for (size_t i = 0; i < m->count; i++)
        if (m->record[i].n > floor[m->record[i].line])
            m->record[kept++] = m->record[i];
    ds__race.stats.records -= m->count - kept;
    m->count = kept;
    if (!kept && m->room > 4)
        ds__race_records_clear(m);
}

/* Frees the numbers of ended timelines that all others know. Their records are gone. */
static void ds__race_lines_reuse(const uint64_t *floor) {
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
            for (size_t j = 0; j < maps[k]->piece[i]->count; j++)
                ds__race_records_sweep(maps[k]->piece[i]->at[j], floor);
    ds__race_lines_reuse(floor);
    ds__race_release(floor, ds__race.lines * sizeof *floor);
}

/* Gives up ranges at the limit of memory. */
static void ds__race_make_room(void) {
    ds__race_sweep();
    while (ds__race.bytes > ds__race.most - ds__race.most / 8 && ds__race.oldest)
        ds__race_memory_drop(ds__race.oldest);
    const ds__race_map *maps[] = { &ds__race.block, &ds__race.alloc };
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < maps[k]->count; i++)
            for (size_t j = 0; j < maps[k]->piece[i]->count; j++) {
                ds__race_memory *m = maps[k]->piece[i]->at[j];
                if (ds__race.bytes <= ds__race.most - ds__race.most / 8 || m->ignored)
                    continue;
                if (!ds__race.stats.evicted++)
                    ds__log_warn("check: the limit of memory is reached; %s%s%p is not checked "
                                 "any more",
                                 m->label, *m->label ? " " : "", (void *)m->base);
                m->ignored = 1;
                ds__race_records_clear(m);
            }
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
    snprintf(as.label, sizeof as.label, "%s", label ? label : "");
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
    ds__race_hit *h = &ds__race.hit[ds__race_hash(address) % DS__RACE_HITS];
    if (DS__LIKELY(h->address == address && h->version == ds__race.version))
        return h->memory;
    ds__race_memory *m = ds__race_memory_look_up(address);
    *h = (ds__race_hit){ address, ds__race.version, m };
    return m;
}

static void ds__race_map_deinit(ds__race_map *map) {
    while (map->count) {
        ds__race_piece *p = map->piece[map->count - 1];
        ds__race_memory_drop(p->at[p->count - 1]);
    }
    ds__race_release(map->piece, map->room * sizeof(void *));
    *map = (ds__race_map){ NULL, 0, 0 };
}

#endif
