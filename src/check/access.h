/* check/access.h - checking an access, and keeping it.

   ds__race_access compares an access with those that are kept for its memory, reports conflicts
   that no wait orders, and keeps the access. ds__race_free_check checks the free of a block.

   Policy:
   1. Two accesses conflict if they have a byte in common, one of them writes, and not both are
      atomic.
   2. An access replaces an earlier one that is ordered before it, that it covers, and whose later
      conflicts are its own, too: whatever conflicts with the earlier access conflicts with it. A
      possible access replaces possible ones only, so an exact report never becomes a possible one.
   3. A block may be used by work that comes after its allocation, and freed if each use is on the
      stream of the allocation, ordered before the free, or on a stream of ds_mem_record_use.

   Invariants: ds_check_stats.records is the number of kept accesses of all memory.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_ACCESS_H
#define DS__CHECK_ACCESS_H

#include "memory.h"
#include "range.h"

/* Returns 1 if two accesses of common bytes conflict. */
static int ds__race_how_conflicts(unsigned a, unsigned b) {
    return (a | b) & DS__RACE_WRITE && !(a & b & DS__RACE_ATOMIC);
}

/* Returns 1 if whatever conflicts with an earlier access conflicts with a later one, too. */
static int ds__race_how_replaces(unsigned later, unsigned earlier) {
    if (!(later & DS__RACE_WRITE) && earlier & DS__RACE_WRITE)
        return 0;
    if (later & DS__RACE_ATOMIC && !(earlier & DS__RACE_ATOMIC))
        return 0;
    unsigned possible = DS__RACE_INEXACT | DS__RACE_MAYBE;
    return !(later & possible) || earlier & possible;
}

/* Returns 1 if the program ignores the bytes that two ranges have in common. */
static int ds__race_skips(const ds__race_memory *m, const ds__race_range *a,
                          const ds__race_range *b) {
    uintptr_t at = a->at > b->at ? a->at : b->at;
    uintptr_t a_end = ds__race_range_end(a);
    uintptr_t b_end = ds__race_range_end(b);
    uintptr_t end = a_end < b_end ? a_end : b_end;
    for (size_t i = 0; i < m->skips; i++)
        if (m->skip[i].at <= at && end <= ds__race_range_end(&m->skip[i]))
            return 1;
    return 0;
}

static ds_hazard ds__race_hazard(unsigned now, unsigned before) {
    if (before & DS__RACE_ALLOC)
        return DS_HAZARD_USE_BEFORE_ALLOC;
    if (before & DS__RACE_FORMER)
        return DS_HAZARD_REUSE;
    if (!(now & DS__RACE_WRITE))
        return DS_HAZARD_READ_AFTER_WRITE;
    return before & DS__RACE_WRITE ? DS_HAZARD_WRITE_AFTER_WRITE : DS_HAZARD_WRITE_AFTER_READ;
}

/* Compares an access with the kept ones, and removes those that it replaces. */
static void ds__race_compare(ds__race_memory *m, const ds__race_now *now, const ds__race_range *r,
                             unsigned how) {
    size_t kept = 0;
    for (size_t i = 0; i < m->count; i++) {
        ds__race_record o = m->record[i];
        int known = ds__race_knows(now, o.line, o.n);
        if (known && ds__race_how_replaces(how, o.how) && ds__race_range_covers(r, &o.range))
            continue;
        m->record[kept++] = o;
        if (known || !ds__race_how_conflicts(how, o.how) || !ds__race_range_overlaps(r, &o.range))
            continue;
        if (DS__UNLIKELY(m->skips != 0) && ds__race_skips(m, r, &o.range))
            continue;
        if (now->late && ds__race_edges_lead(now->line, now->n, o.line, o.n))
            continue;
        ds__race_report(ds__race_hazard(how, o.how), now, r, how, m, &o);
    }
    ds__race.stats.records -= m->count - kept;
    m->count = kept;
}

/* Keeps an access. */
static void ds__race_keep(ds__race_memory *m, const ds__race_now *now, const ds__race_range *r,
                          unsigned how) {
    if (!ds__race_array_reserve(&m->record, sizeof *m->record, m->count, &m->room))
        return;
    m->record[m->count++] = (ds__race_record){ .range = *r,
                                               .n = now->n,
                                               .line = now->line,
                                               .place = now->place,
                                               .thread = now->thread,
                                               .how = (uint8_t)how,
                                               .vague = (uint8_t)now->vague };
    ds__race.stats.records++;
    int many = ++ds__race.fresh > DS__RACE_SWEEP + 2 * ds__race.stats.ranges;
    if (ds__race.bytes > ds__race.most && (many || ds__race.fresh > DS__RACE_SWEEP / 16))
        ds__race_make_room();
    else if (many)
        ds__race_sweep();
}

/* Checks and keeps an access within one range of known memory. */
static void ds__race_access_in(ds__race_memory *m, const ds__race_now *now, const ds__race_range *r,
                               unsigned how) {
    if (m->dead && !m->block && now->pageable)
        return;
    if (m->dead && m->skips && ds__race_skips(m, r, r))
        return;
    if (m->dead && !(m->of_graph && now->of_graph)) {
        ds__race_report(DS_HAZARD_USE_AFTER_FREE, now, r, how & ~(unsigned)DS__RACE_INEXACT, m,
                        NULL);
        return;
    }
    if (m->ignored)
        return;
    ds__race_compare(m, now, r, how);
    ds__race_keep(m, now, r, how);
}

/* Checks and keeps an access. An inexact one covers the memory in which its first byte is. Rows
   may lie in several ranges. */
static void ds__race_access(const ds__race_now *now, const ds__race_range *range, unsigned how) {
    ds__race.stats.accesses++;
    ds__race.stats.inexact += how & DS__RACE_INEXACT ? 1 : 0;
    ds__race_memory *m = ds__race_memory_find(range->at);
    if (!m) {
        ds__race.stats.unchecked++;
        return;
    }
    int fits = ds__race_range_end(range) <= m->base + m->size;
    if (DS__LIKELY(fits && !(how & DS__RACE_INEXACT))) {
        ds__race_access_in(m, now, range, how);
        return;
    }
    if (range->rows > 1 && !(how & DS__RACE_INEXACT)) { /* rows in several ranges */
        for (size_t i = 0; i < range->rows; i++) {
            ds__race_range row = { range->at + i * range->pitch, range->width, range->width, 1 };
            ds__race_access(now, &row, how);
        }
        return;
    }
    ds__race_range r = *range;
    if (how & DS__RACE_INEXACT)
        r = ds__race_range_row((void *)m->base, ds__race_memory_bytes(m));
    while (m && r.rows == 1 && r.width > m->base + m->size - r.at) {
        ds__race_range first = r;
        first.width = m->base + m->size - r.at;
        ds__race_access_in(m, now, &first, how);
        r.at += first.width;
        r.width -= first.width;
        m = ds__race_memory_find(r.at);
    }
    if (m)
        ds__race_access_in(m, now, &r, how);
}

/* Notes the allocation of a block on a stream: its uses must come after the operations that the
   stream had then. */
static void ds__race_alloc_note(ds__race_memory *m, const ds__race_line *l) {
    ds__race_now now = ds__race_line_now(l, m->made);
    ds__race_range r = { m->base, m->size, m->size, 1 };
    m->line = l->index;
    if (now.n)
        ds__race_keep(m, &now, &r, DS__RACE_WRITE | DS__RACE_ALLOC);
}

/* Returns the recorded use of a block by a timeline, or NULL. */
static ds__race_use *ds__race_use_find(const ds__race_memory *m, uint32_t line) {
    for (size_t i = 0; i < m->uses; i++)
        if (m->use[i].line == line)
            return &m->use[i];
    return NULL;
}

/* Returns 1 if a recorded use comes after an access. */
static int ds__race_use_covers(const ds__race_memory *m, const ds__race_record *o) {
    for (size_t i = 0; i < m->uses; i++) {
        const ds__race_use *u = &m->use[i];
        if (ds__race_clock_at(u->clock, o->line) >= o->n ||
            (u->open && ds__race_line_next_known(ds__race_line_at(u->line), o->line) >= o->n))
            return 1;
    }
    return 0;
}

/* Notes that a stream uses a block: everything that comes before its next operation.
   until_free: before its next operation at the free. */
static void ds__race_use_note(ds__race_memory *m, const ds__race_line *l, int until_free) {
    ds__race_use *u = ds__race_use_find(m, l->index);
    if (!u && !ds__race_array_reserve(&m->use, sizeof *m->use, m->uses, &m->use_room))
        return;
    if (!u) {
        u = &m->use[m->uses++];
        *u = (ds__race_use){ .line = l->index };
    }
    u->open |= (uint32_t)until_free;
    for (uint32_t i = 1; i < ds__race.lines; i++)
        ds__race_clock_raise(&u->clock, i, ds__race_line_next_known(l, i));
}

/* Checks the free of a block. by: the timeline that frees it, a thread or a stream. */
static void ds__race_free_check(ds__race_memory *m, const ds__race_line *by) {
    const ds__race_line *own = m->line ? ds__race_line_at(m->line) : NULL;
    if (!by || m->ignored)
        return;
    if (!by->is_host) /* freed in the order of this stream */
        own = by;
    ds__race_now now = ds__race_line_now(by, ds__race_place_of_call());
    for (size_t i = 0; i < m->count; i++) {
        ds__race_record o = m->record[i];
        if ((by->is_host && o.line == m->line) || o.how & DS__RACE_ALLOC ||
            ds__race_use_covers(m, &o) || ds__race_line_known(by, o.line) >= o.n ||
            (own && ds__race_line_next_known(own, o.line) >= o.n))
            continue;
        ds__race_range r = ds__race_range_row((void *)m->base, ds__race_memory_bytes(m));
        ds__race_report(DS_HAZARD_FREE_IN_USE, &now, &r,
                        DS__RACE_WRITE | (o.how & DS__RACE_INEXACT), m, &o);
    }
}

/* Moves the accesses of freed memory to memory that is declared at its addresses: work of the new
   owner must come after them. */
static void ds__race_former_take(ds__race_memory *m, const ds__race_memory *former) {
    for (size_t i = 0; i < former->count; i++) {
        if (!ds__race_array_reserve(&m->record, sizeof *m->record, m->count, &m->room))
            return;
        m->record[m->count] = former->record[i];
        m->record[m->count++].how |= DS__RACE_WRITE | DS__RACE_FORMER;
        ds__race.stats.records++;
    }
}

#endif
