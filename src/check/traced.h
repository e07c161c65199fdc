/* check/traced.h - operations of a recording, for the races that a trace shows.

   While a recording of activity runs, ds__race_traced_set keeps the ids of the last operations in
   it, and ds__race_traced_find returns them. ds__race_traced_notify notifies the observers of a
   race between two operations.

   Invariants: a place of the table has the operation that was written there last; readers compare
   the operation.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_TRACED_H
#define DS__CHECK_TRACED_H

#include "../base/activity.h"
#include "table.h"

/* Returns the place of an operation. */
static ds__race_traced *ds__race_traced_at(uint32_t line, uint64_t n) {
    return &ds__race.traced[ds__race_hash(n * DS__RACE_LINES + line) % DS__RACE_TRACED];
}

/* Keeps the id of an operation; 0: it has none. */
static void ds__race_traced_set(uint32_t line, uint64_t n, uint64_t id) {
    if (DS__LIKELY(!id))
        return;
    if (!ds__race.traced)
        ds__race.traced = ds__race_alloc(DS__RACE_TRACED * sizeof *ds__race.traced);
    if (ds__race.traced)
        *ds__race_traced_at(line, n) = (ds__race_traced){ n, id, line };
}

/* Returns the id of an operation, or 0. */
static uint64_t ds__race_traced_find(uint32_t line, uint64_t n) {
    const ds__race_traced *at = ds__race.traced ? ds__race_traced_at(line, n) : NULL;
    return at && at->line == line && at->n == n ? at->id : 0;
}

/* Notifies the observers of a reported race. before: NULL: there is no earlier operation. */
static void ds__race_traced_notify(const ds_hazard_report *r, const char *hazard,
                                   const ds__race_now *now, const ds__race_record *before) {
    const ds__race_line *l = now->line ? ds__race.line[now->line] : NULL;
    uint64_t stream = l && !l->is_host ? l->handle : 0;
    ds__observer_notify(&(ds__seen){
        .kind = DS__SEEN_RACE,
        .label = r->text,
        .hazard = hazard,
        .stream = { stream },
        .operation = stream ? ds__race_tls.traced : 0,
        .before = before ? ds__race_traced_find(before->line, before->n) : 0,
    });
}

static void ds__race_traced_deinit(void) {
    ds__race_release(ds__race.traced,
                     ds__race.traced ? DS__RACE_TRACED * sizeof *ds__race.traced : 0);
    ds__race.traced = NULL;
}

#endif
