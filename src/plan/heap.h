/* plan/heap.h - heap of events.

   Provides a binary heap of events, ordered by time, then rank, then id. The scheduler and the
   predictor use it (ds__due_put, ds__due_take).

   Invariants: `due[0]` is the earliest event. ds__due_take must not be called for an empty
   heap. The owner frees `due`. If ds__due_put returns 0, the heap is unchanged and the error is
   reported.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_HEAP_H
#define DS__PLAN_HEAP_H

#include "../topology/types.h"

typedef struct ds__due {
    int64_t at;
    uint32_t rank;
    uint32_t id;
} ds__due; /* by time, then rank, then id */

typedef struct ds__dues {
    ds__due *due;
    size_t dues;
    size_t due_room;
} ds__dues;

static inline int ds__due_before(const ds__due *a, const ds__due *b) {
    if (a->at != b->at)
        return a->at < b->at;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    return a->id < b->id;
}

static int ds__due_put(ds__dues *h, int64_t at, uint32_t rank, uint32_t id) {
    if (!ds__array_add(&h->due, h->dues, &h->due_room, sizeof *h->due))
        return 0;
    size_t i = h->dues++;
    ds__due one = { at, rank, id };
    for (; i && ds__due_before(&one, &h->due[(i - 1) / 2]); i = (i - 1) / 2)
        h->due[i] = h->due[(i - 1) / 2];
    h->due[i] = one;
    return 1;
}

static ds__due ds__due_take(ds__dues *h) {
    ds__due first = h->due[0];
    ds__due last = h->due[--h->dues];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= h->dues)
            break;
        if (k + 1 < h->dues && ds__due_before(&h->due[k + 1], &h->due[k]))
            k++;
        if (!ds__due_before(&h->due[k], &last))
            break;
        h->due[i] = h->due[k];
        i = k;
    }
    h->due[i] = last;
    return first;
}

#endif
