/* check/record.h - kept accesses of known memory.

   A range of memory has lists of accesses (ds__race_records_list). At first, it has one list. When
   this list has grown, the range is divided into buckets of equal size (ds__race_records_divide):
   accesses within one bucket are in the list of the bucket, others in the first list. So an access
   is compared with those near to it (ds__race_records_of, ds__race_records_span).
   ds__race_records_sweep drops accesses that all timelines know.

   Invariants: ds_check_stats.records is the number of kept accesses of all memory. The first
   list and the lists of the buckets that a range meets have all accesses that overlap the range.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_RECORD_H
#define DS__CHECK_RECORD_H

#include "range.h"
#include "table.h"

/* Accesses in a list that is not divided; a test defines less before it includes the
   implementation. */
#ifndef DS__TEST_RACE_LIST
#define DS__TEST_RACE_LIST 32
#endif

enum {
    DS__RACE_LIST = DS__TEST_RACE_LIST,
    DS__RACE_BUCKETS = 1 << 12, /* buckets of a range at most */
    DS__RACE_BUCKETS_GROWTH = 8 /* a division makes so many of one */
};

/* Returns list i of memory, from 0 to m->buckets. */
static ds__race_list *ds__race_records_list(ds__race_memory *m, size_t i) {
    return i ? &m->bucket[i - 1] : &m->list;
}

/* Returns the number of the list of the bucket that has an address; accesses of a former owner may
   begin before the range, and end after it. */
static size_t ds__race_records_bucket(const ds__race_memory *m, uintptr_t address) {
    size_t i = address > m->base ? (address - m->base) >> m->shift : 0;
    return 1 + (i < m->buckets ? i : m->buckets - 1);
}

/* Writes the lists of buckets that a range meets, *first to *last. They are 1 and 0 if there are no
   buckets. */
static void ds__race_records_span(const ds__race_memory *m, const ds__race_range *r, size_t *first,
                                  size_t *last) {
    *first = 1;
    *last = 0;
    if (DS__LIKELY(!m->buckets))
        return;
    *first = ds__race_records_bucket(m, r->at);
    *last = ds__race_records_bucket(m, ds__race_range_end(r) - 1);
}

/* Returns the list to which an access of a range belongs. */
static ds__race_list *ds__race_records_of(ds__race_memory *m, const ds__race_range *r) {
    size_t first;
    size_t last;
    ds__race_records_span(m, r, &first, &last);
    return first == last ? &m->bucket[first - 1] : &m->list;
}

static void ds__race_list_clear(ds__race_list *list) {
    ds__race.stats.records -= list->count;
    ds__race_release(list->at, list->room * sizeof *list->at);
    *list = (ds__race_list){ NULL, 0, 0 };
}

static void ds__race_list_push(ds__race_list *list, const ds__race_record *record) {
    if (!ds__race_array_reserve(&list->at, sizeof *list->at, list->count, &list->room))
        return;
    list->at[list->count++] = *record;
    ds__race.stats.records++;
}

/* Forgets all accesses of memory. */
static void ds__race_records_clear(ds__race_memory *m) {
    for (size_t i = 0; i <= m->buckets; i++)
        ds__race_list_clear(ds__race_records_list(m, i));
    ds__race_release(m->bucket, m->buckets * sizeof *m->bucket);
    m->bucket = NULL;
    m->buckets = 0;
}

/* Divides memory into buckets, or none, and puts each access into its list. */
static void ds__race_records_divide(ds__race_memory *m, uint32_t buckets) {
    ds__race_memory old = *m;
    unsigned shift = 0;
    while (buckets && (m->size - 1) >> shift >= buckets)
        shift++;
    m->bucket = buckets ? ds__race_alloc(buckets * sizeof *m->bucket) : NULL;
    m->buckets = m->bucket ? buckets : 0;
    m->shift = (uint8_t)shift;
    m->list = (ds__race_list){ NULL, 0, 0 };
    for (size_t i = 0; i <= old.buckets; i++) {
        const ds__race_list *list = ds__race_records_list(&old, i);
        for (size_t k = 0; k < list->count; k++)
            ds__race_list_push(ds__race_records_of(m, &list->at[k].range), &list->at[k]);
    }
    ds__race_records_clear(&old);
}

/* Returns 1 if most accesses of a list are small enough for more buckets. */
static int ds__race_records_are_small(const ds__race_memory *m, const ds__race_list *list,
                                      size_t buckets) {
    size_t narrow = 0;
    for (size_t i = 0; i < list->count; i++) {
        const ds__race_range *r = &list->at[i].range;
        narrow += ds__race_range_end(r) - r->at <= m->size / buckets;
    }
    return narrow > list->count / 2;
}

/* Keeps an access. A list that grows is looked at for a division when its length is a power of
   two. */
static void ds__race_records_add(ds__race_memory *m, const ds__race_record *record) {
    ds__race_list *list = ds__race_records_of(m, &record->range);
    size_t count = list->count;
    if (DS__UNLIKELY(count >= DS__RACE_LIST && !(count & (count - 1)))) {
        size_t buckets = (m->buckets ? m->buckets : 1) * (size_t)DS__RACE_BUCKETS_GROWTH;
        int divisible = (!m->buckets || list != &m->list) && buckets <= DS__RACE_BUCKETS;
        if (divisible && ds__race_records_are_small(m, list, buckets)) {
            ds__race_records_divide(m, (uint32_t)buckets);
            list = ds__race_records_of(m, &record->range);
        }
    }
    ds__race_list_push(list, record);
}

/* Drops the accesses of memory that all timelines know, and buckets that are mostly empty. */
static void ds__race_records_sweep(ds__race_memory *m, const uint64_t *floor) {
    size_t all = 0;
    for (size_t i = 0; i <= m->buckets; i++) {
        ds__race_list *list = ds__race_records_list(m, i);
        size_t kept = 0;
        for (size_t k = 0; k < list->count; k++)
            if (list->at[k].n > floor[list->at[k].line])
                list->at[kept++] = list->at[k];
        ds__race.stats.records -= list->count - kept;
        list->count = kept;
        if (!kept && list->room > 4)
            ds__race_list_clear(list);
        all += kept;
    }
    if (m->buckets && all <= m->buckets / 8)
        ds__race_records_divide(m, 0);
}

#endif
