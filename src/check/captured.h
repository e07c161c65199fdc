/* check/captured.h - captured operations between ranks.

   Keeps the accesses of each operation of a process group that was captured
   (ds__race_captured_keep) until no graph has it any more (ds__race_captured_forget). In a graph,
   the operation is a host function that begins it, and a wait for a word. check/graph.h takes the
   accesses for those of the host function, and the wait as one that the graph ends.

   Invariants: ds__race.captured has an entry for the argument of the host function and one for the
   word, with the same value.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_CAPTURED_H
#define DS__CHECK_CAPTURED_H

#include "../base/observe.h"
#include "range.h"
#include "table.h"

static void ds__race_captured_release(ds__race_captured *c) {
    ds__race_release(c, sizeof *c + c->room * sizeof c->access[0]);
}

static void ds__race_captured_keep(const ds__seen *seen) {
    size_t room = seen->operands;
    ds__race_captured *c = ds__race_alloc(sizeof *c + room * sizeof c->access[0]);
    if (!c)
        return;
    c->room = room;
    snprintf(c->fn, sizeof c->fn, "%s", seen->fn ? seen->fn : "a collective");
    for (size_t i = 0; i < seen->operands; i++) {
        const ds__seen_operand *o = &seen->operand[i];
        unsigned how = o->writes ? DS__RACE_WRITE : DS__RACE_READ;
        if (o->bytes)
            c->access[c->count++] =
                (ds__race_captured_access){ ds__race_range_row(o->ptr, o->bytes), how };
    }
    if (ds__race_table_set(&ds__race.captured, ds__race_key(seen->ptr), c) &&
        ds__race_table_set(&ds__race.captured, ds__race_key(seen->word), c))
        return;
    ds__race_table_remove_value(&ds__race.captured, c);
    ds__race_captured_release(c);
}

static void ds__race_captured_forget(const ds__seen *seen) {
    ds__race_captured *c = ds__race_table_find(&ds__race.captured, ds__race_key(seen->ptr));
    if (!c)
        return;
    ds__race_table_remove_value(&ds__race.captured, c);
    ds__race_captured_release(c);
}

/* Returns the operation by the argument of its host function, or by the word of its wait; NULL:
   there is none. */
static const ds__race_captured *ds__race_captured_find(const void *ptr) {
    return ds__race_table_find(&ds__race.captured, ds__race_key(ptr));
}

static void ds__race_captured_deinit(void) {
    ds__race_table *t = &ds__race.captured;
    for (size_t i = 0; i < t->size;) {
        ds__race_captured *c = t->entry[i].value;
        if (!c) {
            i++;
            continue;
        }
        ds__race_table_remove_value(t, c); /* may move entries to this place */
        ds__race_captured_release(c);
        i = 0;
    }
    ds__race_table_deinit(t);
}

#endif
