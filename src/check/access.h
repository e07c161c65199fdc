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

   Invariants: those of check/record.h.
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

/* Returns 1 if a kept access, which the current one does not know, is no race with it. */
static int ds__race_is_accepted(const ds__race_memory *m, const ds__race_now *now,
                                const ds__race_record *fresh, const ds__race_record *o) {
    return !ds__race_how_conflicts(fresh->how, o->how) ||
           !ds__race_range_overlaps(&fresh->range, &o->range) ||
           (DS__UNLIKELY(m->skips != 0) && ds__race_skips(m, &fresh->range, &o->range)) ||
           (now->late && ds__race_edges_lead(now->line, now->n, o->line, o->n));
}

/* Compares an access with those of a list, and removes those that it replaces. own: the access
   belongs to this list, and takes the first place that gets free. Returns 1 if it has done so. */
static int ds__race_compare(const ds__race_memory *m, ds__race_list *list, int own,
                            const ds__race_now *now, const ds__race_record *fresh) {
    size_t kept = 0;
    size_t count = list->count;
    int placed = 0;
    for (size_t i = 0; i < count; i++) {
        const ds__race_record *o = &list->at[i];
        int known = ds__race_knows(now, o->line, o->n);
        if (known && ds__race_how_replaces(fresh->how, o->how) &&
            ds__race_range_covers(&fresh->range, &o->range)) {
            if (own && !placed)
                list->at[kept++] = *fresh;
            placed = own;
            continue;
        }
        if (!known && !ds__race_is_accepted(m, now, fresh, o))
            ds__race_report(ds__race_hazard(fresh->how, o->how), now, &fresh->range, fresh->how, m,
                            o);
        if (kept != i)
            list->at[kept] = *o;
        kept++;
    }
    ds__race.stats.records -= count - kept;
    list->count = kept;
    return placed;
}

/* Keeps one access more. */
static void ds__race_keep(ds__race_memory *m, const ds__race_record *record) {
    ds__race_records_add(m, record);
    int many = ++ds__race.fresh > DS__RACE_SWEEP + 2 * ds__race.stats.ranges;
    if (ds__race.bytes > ds__race.most && (many || ds__race.fresh > DS__RACE_SWEEP / 16))
        ds__race_make_room();
    else if (many)
        ds__race_sweep();
}

/* Returns the record of an access. */
static ds__race_record ds__race_record_of(const ds__race_now *now, const ds__race_range *r,
                                          unsigned how) {
    return (ds__race_record){ .range = *r,
                              .n = now->n,
                              .line = now->line,
                              .place = now->place,
                              .thread = now->thread,
                              .how = (uint8_t)how,
                              .vague = (uint8_t)now->vague };
}

/* Reports an access of freed memory, unless it is known to be correct. */
static void ds__race_access_dead(const ds__race_memory *m, const ds__race_now *now,
                                 const ds__race_range *r, unsigned how) {
    if ((!m->block && now->pageable) || (m->of_graph && now->of_graph) ||
        (m->skips && ds__race_skips(m, r, r)))
        return;
    ds__race_report(DS_HAZARD_USE_AFTER_FREE, now, r, how & ~(unsigned)DS__RACE_INEXACT, m, NULL);
}

/* Checks and keeps an access within one range of known memory. */
static void ds__race_access_in(ds__race_memory *m, const ds__race_now *now, const ds__race_range *r,
                               unsigned how) {
    if (DS__UNLIKELY(m->dead && !(m->of_graph && now->of_graph))) {
        ds__race_access_dead(m, now, r, how);
        return;
    }
    if (m->ignored)
        return;
    ds__race_record fresh = ds__race_record_of(now, r, how);
    const ds__race_list *own = ds__race_records_of(m, r);
    int placed = ds__race_compare(m, &m->list, own == &m->list, now, &fresh);
    size_t first;
    size_t last;
    ds__race_records_span(m, r, &first, &last);
    for (size_t i = first; i <= last; i++) {
        ds__race_list *list = ds__race_records_list(m, i);
        placed |= ds__race_compare(m, list, own == list, now, &fresh);
    }
    if (!placed)
        ds__race_keep(m, &fresh);
}

static void ds__race_access(const ds__race_now *now, const ds__race_range *range, unsigned how);

/* Checks an access that is inexact or not within one range of known memory. */
static void ds__race_access_parts(ds__race_memory *m, const ds__race_now *now,
                                  const ds__race_range *range, unsigned how) {
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

/* Checks and keeps an access that begins in m. NULL: its memory is not known. An inexact access
   covers all of m. Rows may lie in several ranges. */
static void ds__race_access_of(ds__race_memory *m, const ds__race_now *now,
                               const ds__race_range *range, unsigned how) {
    ds__race.stats.accesses++;
    if (!m)
        ds__race.stats.unchecked++;
    else if (how & DS__RACE_INEXACT || ds__race_range_end(range) > m->base + m->size)
        ds__race_access_parts(m, now, range, how);
    else
        ds__race_access_in(m, now, range, how);
    if (how & DS__RACE_INEXACT)
        ds__race.stats.inexact++;
}

/* The same, for an access of any memory. */
static void ds__race_access(const ds__race_now *now, const ds__race_range *range, unsigned how) {
    ds__race_access_of(ds__race_memory_find(range->at), now, range, how);
}

/* Notes the allocation of a block on a stream: its uses must come after the operations that the
   stream had then. */
static void ds__race_alloc_note(ds__race_memory *m, const ds__race_line *l) {
    ds__race_now now = ds__race_line_now(l, m->made);
    ds__race_range r = { m->base, m->size, m->size, 1 };
    m->line = l->index;
    if (!now.n)
        return;
    ds__race_record record = ds__race_record_of(&now, &r, DS__RACE_WRITE | DS__RACE_ALLOC);
    ds__race_keep(m, &record);
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

/* Compares the free of a block with an access. own: the stream in whose order it is freed. */
static void ds__race_free_compare(const ds__race_memory *m, const ds__race_record *o,
                                  const ds__race_line *by, const ds__race_line *own,
                                  const ds__race_now *now) {
    if ((by->is_host && o->line == m->line) || o->how & DS__RACE_ALLOC ||
        ds__race_use_covers(m, o) || ds__race_line_known(by, o->line) >= o->n ||
        (own && ds__race_line_next_known(own, o->line) >= o->n))
        return;
    ds__race_range r = ds__race_range_row((void *)m->base, ds__race_memory_bytes(m));
    unsigned how = DS__RACE_WRITE;
    if (o->how & DS__RACE_INEXACT)
        how |= DS__RACE_INEXACT;
    ds__race_report(DS_HAZARD_FREE_IN_USE, now, &r, how, m, o);
}

/* Checks the free of a block. by: the timeline that frees it, a thread or a stream. */
static void ds__race_free_check(ds__race_memory *m, const ds__race_line *by) {
    const ds__race_line *own =
        m->line && m->line != DS__RACE_GONE ? ds__race_line_at(m->line) : NULL;
    if (!by || m->ignored)
        return;
    if (!by->is_host) /* freed in the order of this stream */
        own = by;
    ds__race_now now = ds__race_line_now(by, ds__race_place_of_call());
    for (size_t i = 0; i <= m->buckets; i++) {
        const ds__race_list *list = ds__race_records_list(m, i);
        for (size_t k = 0; k < list->count; k++)
            ds__race_free_compare(m, &list->at[k], by, own, &now);
    }
}

/* Moves the accesses of freed memory to memory that is declared at its addresses: work of the new
   owner must come after them. */
static void ds__race_former_take(ds__race_memory *m, ds__race_memory *former) {
    for (size_t i = 0; i <= former->buckets; i++) {
        const ds__race_list *list = ds__race_records_list(former, i);
        for (size_t k = 0; k < list->count; k++) {
            ds__race_record record = list->at[k];
            record.how |= DS__RACE_WRITE | DS__RACE_FORMER;
            ds__race_records_add(m, &record);
        }
    }
}

#endif
