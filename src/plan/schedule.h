/* plan/schedule.h - order of the steps.

   Puts the steps of a draft in order. ds__sort orders them by key. ds__arrange starts each step
   as soon as its inputs, wires and engine are free, and orders the steps by start. With many
   ranks a copy between groups may reserve its wires. Lanes are not considered yet. ds__after
   makes a step wait for another one.

   Invariants: ds__sort changes the numbers of steps, so it updates all links. ds__arrange needs
   keys that order the steps by urgency, and replaces them by the start times. A heap of waiting
   steps (ds__waits) holds step numbers plus 1, and 0 is the empty heap.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_SCHEDULE_H
#define DS__PLAN_SCHEDULE_H

#include "../topology/types.h"
#include "types.h"
#include "heap.h"
#include "cost_model.h"

typedef struct ds__sorted {
    uint64_t key;
    uint32_t id;
} ds__sorted;

static int ds__sorted_compare(const void *a, const void *b) {
    const ds__sorted *x = a;
    const ds__sorted *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->id < y->id ? -1 : x->id > y->id;
}

/* The steps by their keys. */
static int ds__sort(ds__draft *d) {
    ds__sorted *order = ds__alloc((d->steps + 1) * sizeof *order);
    ds__dstep *fresh = ds__alloc((d->steps + 1) * sizeof *fresh);
    uint32_t *now = ds__alloc((d->steps + 1) * sizeof *now);
    int ok = order && fresh && now;
    for (uint32_t i = 0; ok && i < d->steps; i++)
        order[i] = (ds__sorted){ d->step[i].key, i };
    if (ok)
        qsort(order, d->steps, sizeof *order, ds__sorted_compare);
    for (uint32_t i = 0; ok && i < d->steps; i++) {
        fresh[i] = d->step[order[i].id];
        now[order[i].id] = i;
    }
    for (size_t i = 0; ok && i < d->links; i++)
        d->link[i].step = now[d->link[i].step];
    if (ok && d->steps)
        memcpy(d->step, fresh, d->steps * sizeof *fresh);
    ds__release(order);
    ds__release(fresh);
    ds__release(now);
    return ok;
}

typedef struct ds__waits {
    uint32_t *head; /* of wires, then engines and memory of each rank: heaps of steps, plus 1 */
    uint32_t *child;
    uint32_t *next;
    uint32_t *kept; /* of the same: the step that each is kept for, plus 1 */
    int *busy;
} ds__waits;

static uint32_t ds__wait_meld(ds__waits *w, uint32_t a, uint32_t b) {
    if (!a || !b)
        return a ? a : b;
    if (b < a) {
        uint32_t c = a;
        a = b;
        b = c;
    }
    w->next[b - 1] = w->child[a - 1];
    w->child[a - 1] = b;
    return a;
}

static uint32_t ds__wait_take(ds__waits *w, uint32_t what) {
    uint32_t first = w->head[what];
    uint32_t k = w->child[first - 1];
    uint32_t pairs = 0;
    uint32_t all = 0;
    while (k) { /* by twos, then all */
        uint32_t a = k;
        uint32_t b = w->next[a - 1];
        uint32_t rest = b ? w->next[b - 1] : 0;
        uint32_t both = ds__wait_meld(w, a, b);
        w->next[both - 1] = pairs;
        pairs = both;
        k = rest;
    }
    while (pairs) {
        uint32_t rest = w->next[pairs - 1];
        all = ds__wait_meld(w, all, pairs);
        pairs = rest;
    }
    w->head[what] = all;
    return first - 1;
}

static void ds__wait_for(ds__waits *w, size_t what, uint32_t step) {
    w->child[step] = w->next[step] = 0;
    w->head[what] = ds__wait_meld(w, w->head[what], step + 1);
}

static int ds__begin_step(ds__draft *d, ds__waits *w, ds__dues *h, uint32_t i, int64_t now) {
    ds__dstep *s = &d->step[i];
    const ds__troute *r = ds__step_route(d, s);
    size_t wires = (size_t)d->t->wires;
    size_t own = wires + (r ? 0 : (size_t)d->p + 1) + (size_t)s->rank;
    int kept = r && r->hops && w->kept[*r->wire] == i + 1;
    int far = d->p > DS__PLAN_LARGE && !d->run && r && s->source < d->p && s->to.rank < d->p &&
              d->t->island[s->source] != d->t->island[s->to.rank];
    if (!kept && w->busy[own] >= (r ? d->t->engines : 1)) {
        ds__wait_for(w, own, i);
        return 1;
    }
    for (size_t k = 0; !kept && r && k < r->hops; k++)
        if (w->kept[r->wire[k]]) {
            ds__wait_for(w, (size_t)r->wire[k], i);
            return 1;
        }
    for (size_t k = 0; r && k < r->hops; k++) {
        if (!w->busy[r->wire[k]])
            continue;
        /* its wires would hardly ever be free all at once: nobody else begins on them */
        if (far && !kept) {
            for (size_t m = 0; m < r->hops; m++)
                w->kept[r->wire[m]] = i + 1;
            w->busy[own]++;
        } else if (!far) {
            ds__wait_for(w, (size_t)r->wire[k], i);
        }
        return 1;
    }
    for (size_t k = 0; kept && k < r->hops; k++)
        w->kept[r->wire[k]] = 0;
    if (kept)
        w->busy[own]--;
    int64_t held = r ? d->t->start_ns + ds__ns((double)s->bytes, r->rate) : ds__memory_ns(d, s);
    int ok = 1;
    w->busy[own]++;
    for (size_t k = 0; ok && r && k < r->hops; k++) {
        w->busy[r->wire[k]] = 1;
        ok = ds__due_put(h, now + ds__ns((double)s->bytes, d->t->wire[r->wire[k]]), 1,
                         (uint32_t)r->wire[k]);
    }
    s->start = now;
    s->done = now + held + (r ? r->latency_ns : 0);
    return ok && ds__due_put(h, s->done, 0, i) && ds__due_put(h, now + held, 1, (uint32_t)own);
}

/* Starts whatever can start, in the order of the list, and says when: nobody waits for what
   others only have put by. Then the steps stand in the order of their starts. */
static int ds__arrange(ds__draft *d) {
    size_t wires = (size_t)d->t->wires;
    size_t n = wires + 2 * ((size_t)d->p + 1);
    size_t links = d->links;
    ds__waits w = { ds__alloc((n + 1) * sizeof *w.head),
                    ds__alloc((d->steps + 1) * sizeof *w.child),
                    ds__alloc((d->steps + 1) * sizeof *w.next), ds__alloc((n + 1) * sizeof *w.kept),
                    ds__alloc(n * sizeof *w.busy) };
    ds__dues h = { NULL, 0, 0 };
    ds__dues freed = { NULL, 0, 0 }; /* what is free again, by the first step that waits for it */
    int ok = w.head && w.child && w.next && w.kept && w.busy && ds__sort(d) && ds__followers(d, 0);
    for (uint32_t i = 0; ok && i < d->steps; i++)
        if (!d->step[i].need)
            ok = ds__begin_step(d, &w, &h, i, 0);
    /* all that is over at this time, then those that it lets begin, in their order */
    while (ok && h.dues) {
        int64_t now = h.due[0].at;
        while (h.dues && h.due[0].at == now) {
            ds__due e = ds__due_take(&h);
            if (e.rank) {
                w.busy[e.id]--;
                ok = ok && (!(w.head[e.id] || w.kept[e.id]) ||
                            ds__due_put(&freed, w.kept[e.id] ? 0 : w.head[e.id], 0, e.id));
                continue;
            }
            for (uint32_t k = d->step[e.id].next; k != DS__NONE; k = d->link[k].next)
                if (!--d->step[d->link[k].step].need)
                    ds__wait_for(&w, n, d->link[k].step);
        }
        /* those that wait for nothing any more */
        if (w.head[n])
            ok = ok && ds__due_put(&freed, w.head[n], 0, (uint32_t)n);
        while (ok && freed.dues) {
            uint32_t id = ds__due_take(&freed).id;
            /* whatever else waits */
            if (w.kept[id]) {
                ok = ds__begin_step(d, &w, &h, w.kept[id] - 1, now);
                continue;
            }
            if (!w.head[id] ||
                (id < n &&
                 w.busy[id] >= (id >= wires && id <= wires + (size_t)d->p ? d->t->engines : 1)))
                continue;
            ok = ds__begin_step(d, &w, &h, ds__wait_take(&w, id), now) &&
                 (!w.head[id] || ds__due_put(&freed, w.head[id], 0, id));
        }
    }
    d->links = links;
    for (size_t i = 0; i < d->steps; i++)
        d->step[i].key = (uint64_t)d->step[i].start;
    ds__release(w.head);
    ds__release(w.child);
    ds__release(w.next);
    ds__release(w.kept);
    ds__release(w.busy);
    ds__release(freed.due);
    ds__release(h.due);
    return ok && ds__sort(d);
}

static void ds__after(ds__draft *d, uint32_t step, uint32_t before) {
    if (before == DS__NONE || step == DS__NONE)
        return;
    ds__dlink *one = DS__ADD(d, link);
    if (!one)
        return;
    *one = (ds__dlink){ before, d->step[step].after };
    d->step[step].after = (uint32_t)d->links - 1;
}

#endif
