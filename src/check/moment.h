/* check/moment.h - moments of timelines that are kept, such as records of events.

   ds__race_moment_keep keeps the clock of a timeline under a key, ds__race_moment_join orders
   another timeline after it.

   Invariants: a moment has a reference of its clock.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_MOMENT_H
#define DS__CHECK_MOMENT_H

#include "line.h"

/* Keeps the clock of a timeline under a key of a table; returns the entry, or NULL. */
static ds__race_event *ds__race_moment_keep(ds__race_table *t, uint64_t key, const ds__race_line *l,
                                            uint32_t place) {
    ds__race_event *e = ds__race_table_find(t, key);
    if (!e) {
        e = ds__race_alloc(sizeof *e);
        if (!e || !ds__race_table_set(t, key, e)) {
            ds__race_release(e, sizeof *e);
            return NULL;
        }
    }
    ds__race_clock *clock = ds__race_clock_ref(l->clock);
    ds__race_clock_unref(e->clock);
    *e = (ds__race_event){ .clock = clock, .n = l->n, .line = l->index, .place = place };
    return e;
}

/* Forgets the clock of an event that was recorded in a capture: the record is part of the graph. */
static void ds__race_moment_capture(ds__race_table *t, uint64_t key) {
    static const ds__race_line none;
    ds__race_moment_keep(t, key, &none, 0);
}

/* Orders the current operation of a timeline after the kept moment. */
static void ds__race_moment_join(ds__race_line *l, const ds__race_event *e, uint32_t place) {
    ds__race_line_join(
        l, l->n, e->clock,
        &(ds__race_edge){
            .from = e->line, .from_n = e->n, .from_place = e->place, .to_place = place });
}

/* Forgets the moment of a key. */
static void ds__race_moment_forget(ds__race_table *t, uint64_t key) {
    ds__race_event *e = ds__race_table_find(t, key);
    if (!e)
        return;
    ds__race_table_remove(t, key);
    ds__race_clock_unref(e->clock);
    ds__race_release(e, sizeof *e);
}

static void ds__race_moments_deinit(ds__race_table *t) {
    for (size_t i = 0; i < t->size; i++)
        if (t->entry[i].key) {
            ds__race_event *e = t->entry[i].value;
            ds__race_clock_unref(e->clock);
            ds__race_release(e, sizeof *e);
        }
    ds__race_table_deinit(t);
}

#endif
