/* base/activity_clock.h - the clock of records of activity.

   While a recording runs on a system whose own clock is the processor's, times are read from the
   processor (ds__activity_clock), which takes half of the time. ds__activity_clock_pair reads both
   clocks together; ds__activity_ns makes nanoseconds of CLOCK_MONOTONIC of a time between two such
   pairs.

   Invariants: pairs increase, in both members. A time is converted after a pair behind it was made,
   so that two records that are handed over at different times are converted by the same lines. With
   `ticks` 0, times are nanoseconds.
   Locks: `lock` guards the pairs, for short steps.
   Threads: any reads the clock. The starter of a recording and the thread that hands records over
   make pairs. `ticks` changes while no recording runs. */
#ifndef DS__BASE_ACTIVITY_CLOCK_H
#define DS__BASE_ACTIVITY_CLOCK_H

#include "../os/os.h"

enum { DS__CLOCK_PAIRS = 1024, DS__CLOCK_TRIES = 8 };

typedef struct ds__clock_pair {
    uint64_t ticks;
    uint64_t ns;
} ds__clock_pair;

static struct {
    _Atomic int ticks; /* 1: times are ticks of the processor's clock */
    ds__spinlock lock;
    uint64_t count; /* pairs that were made; the last DS__CLOCK_PAIRS of them are kept */
    ds__clock_pair pair[DS__CLOCK_PAIRS];
} ds__activity_clocks;

/* Returns the time at which all operations before have been carried out. */
static inline uint64_t ds__activity_clock(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__activity_clocks.ticks, memory_order_relaxed)))
        return ds__os_ticks_ordered();
    return ds__now_ns();
}

/* The same, or a little earlier. */
static inline uint64_t ds__activity_clock_early(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__activity_clocks.ticks, memory_order_relaxed)))
        return ds__os_ticks();
    return ds__now_ns();
}

/* Reads both clocks. Of several tries, the one counts that was interrupted least. */
static ds__clock_pair ds__activity_clock_read(void) {
    ds__clock_pair best = { 0, 0 };
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < DS__CLOCK_TRIES; i++) {
        uint64_t from = ds__os_ticks_ordered();
        uint64_t ns = ds__now_ns();
        uint64_t took = ds__os_ticks_ordered() - from;
        if (took < shortest) {
            shortest = took;
            best = (ds__clock_pair){ from + took / 2, ns };
        }
    }
    return best;
}

/* Makes a pair of this moment. */
static void ds__activity_clock_pair(void) {
    if (!atomic_load(&ds__activity_clocks.ticks))
        return;
    ds__clock_pair fresh = ds__activity_clock_read();
    ds__spinlock_lock(&ds__activity_clocks.lock);
    uint64_t n = ds__activity_clocks.count;
    const ds__clock_pair *last = &ds__activity_clocks.pair[(n - 1) % DS__CLOCK_PAIRS];
    if (!n || (fresh.ticks > last->ticks && fresh.ns > last->ns)) {
        ds__activity_clocks.pair[n % DS__CLOCK_PAIRS] = fresh;
        ds__activity_clocks.count = n + 1;
    }
    ds__spinlock_unlock(&ds__activity_clocks.lock);
}

/* Selects the clock of a recording, and makes its first pair. */
static void ds__activity_clock_begin(void) {
    ds__activity_clocks.count = 0;
    atomic_store(&ds__activity_clocks.ticks, ds__os_ticks_are_time());
    ds__activity_clock_pair();
}

/* Two pairs in a row. */
typedef struct ds__clock_line {
    ds__clock_pair a;
    ds__clock_pair b;
    double rate;
} ds__clock_line;

/* Returns the line of a time. A time before the kept pairs, or behind the last one, is on the line
   through the nearest two. */
static ds__clock_line ds__activity_clock_line(uint64_t time) {
    ds__clock_line l;
    ds__spinlock_lock(&ds__activity_clocks.lock);
    uint64_t n = ds__activity_clocks.count;
    uint64_t oldest = n > DS__CLOCK_PAIRS ? n - DS__CLOCK_PAIRS : 0;
    uint64_t i = n > 1 ? n - 2 : 0;
    while (i > oldest && ds__activity_clocks.pair[i % DS__CLOCK_PAIRS].ticks > time)
        i--;
    l.a = ds__activity_clocks.pair[i % DS__CLOCK_PAIRS];
    l.b = n > 1 ? ds__activity_clocks.pair[(i + 1) % DS__CLOCK_PAIRS] : l.a;
    ds__spinlock_unlock(&ds__activity_clocks.lock);
    l.rate =
        l.b.ticks > l.a.ticks ? (double)(l.b.ns - l.a.ns) / (double)(l.b.ticks - l.a.ticks) : 0;
    return l;
}

/* Returns the nanoseconds of a time; 0 stays 0. *line: the line of the last time, or zeroed. */
static uint64_t ds__activity_ns(ds__clock_line *line, uint64_t time) {
    if (!time || !atomic_load_explicit(&ds__activity_clocks.ticks, memory_order_relaxed))
        return time;
    if (time < line->a.ticks || time >= line->b.ticks)
        *line = ds__activity_clock_line(time);
    return line->a.ns + (uint64_t)(int64_t)((double)(int64_t)(time - line->a.ticks) * line->rate);
}

#endif
