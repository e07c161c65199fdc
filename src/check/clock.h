/* check/clock.h - vector clocks.

   A clock holds the number of the last known operation for each timeline. Timelines and events
   share clocks; ds__race_clock_join and ds__race_clock_raise copy a shared clock before they change
   it.

   Invariants: a missing entry is 0.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_CLOCK_H
#define DS__CHECK_CLOCK_H

#include "table.h"

static size_t ds__race_clock_size(uint32_t count) {
    return sizeof(ds__race_clock) + count * sizeof(uint64_t);
}

static ds__race_clock *ds__race_clock_ref(ds__race_clock *c) {
    if (c)
        c->users++;
    return c;
}

static void ds__race_clock_unref(ds__race_clock *c) {
    if (c && --c->users == 0)
        ds__race_release(c, ds__race_clock_size(c->count));
}

static uint64_t ds__race_clock_at(const ds__race_clock *c, uint32_t line) {
    return c && line < c->count ? c->at[line] : 0;
}

/* Makes *c a clock of one user with at least `count` entries. Returns 0 if there is no memory. */
static int ds__race_clock_own(ds__race_clock **c, uint32_t count) {
    ds__race_clock *old = *c;
    if (old && old->users == 1 && old->count >= count)
        return 1;
    if (old && old->count > count)
        count = old->count;
    count = (count + 7) / 8 * 8;
    ds__race_clock *fresh = ds__race_alloc(ds__race_clock_size(count));
    if (!fresh)
        return 0;
    fresh->users = 1;
    fresh->count = count;
    if (old)
        memcpy(fresh->at, old->at, old->count * sizeof *old->at);
    ds__race_clock_unref(old);
    *c = fresh;
    return 1;
}

/* Raises one entry. */
static void ds__race_clock_raise(ds__race_clock **c, uint32_t line, uint64_t n) {
    if (ds__race_clock_at(*c, line) < n && ds__race_clock_own(c, line + 1))
        (*c)->at[line] = n;
}

/* Raises all entries to those of the other clock. */
static void ds__race_clock_join(ds__race_clock **c, ds__race_clock *other) {
    if (!other || other == *c)
        return;
    if (!*c) {
        *c = ds__race_clock_ref(other);
        return;
    }
    uint32_t i = 0;
    while (i < other->count && other->at[i] <= ds__race_clock_at(*c, i))
        i++;
    if (i == other->count || !ds__race_clock_own(c, other->count))
        return;
    uint64_t *at = (*c)->at;
    for (; i < other->count; i++)
        at[i] = at[i] > other->at[i] ? at[i] : other->at[i];
}

#endif
