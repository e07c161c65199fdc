/* plan/schedule.h - order of the steps.

   Puts the steps of a draft in order. ds__schedule_sort orders them by key. ds__schedule_arrange
   starts each step as soon as its inputs, wires and engine are free, and orders the steps by start.
   With many ranks a copy between groups may reserve its wires. Lanes are not considered yet.
   ds__schedule_step_after makes a step wait for another one.

   Invariants: ds__schedule_sort changes the numbers of steps, so it updates all links.
   ds__schedule_arrange needs keys that order the steps by urgency, and replaces them by the start
   times. A heap of waiting steps (ds__waits) holds step numbers plus 1, and 0 is the empty heap.
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
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The steps by their keys. */
static int ds__schedule_sort(ds__draft *d) {
    ds__sorted *order = ds__host_alloc((d->steps + 1) * sizeof *order);
    ds__dstep *fresh = ds__host_alloc((d->steps + 1) * sizeof *fresh);
    uint32_t *now = ds__host_alloc((d->steps + 1) * sizeof *now);
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
    ds__host_free(order);
    ds__host_free(fresh);
    ds__host_free(now);
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

/* Steps that wait for wires, engines or memory, and events of those that run. */
typedef struct ds__arrangement {
    ds__draft *d;
    ds__waits w;
    size_t wires;
    size_t all;     /* wires, engines and memories; the heap behind them has steps that can begin */
    ds__dues h;     /* what is over, by time */
    ds__dues freed; /* what is free again, by the first step that waits for it */
} ds__arrangement;

/* Returns 1 if a step copies between groups of many ranks. Its wires would rarely be free all
   at once, so it may reserve them. */
static int ds__step_is_far(const ds__draft *d, const ds__dstep *s) {
    if (d->p <= DS__PLAN_LARGE || d->run || s->source < 0 || s->source >= d->p ||
        s->to.rank >= d->p)
        return 0;
    return d->t->island[s->source] != d->t->island[s->to.rank];
}

/* Makes step i wait if its engine, its memory or one of its wires is not free. Returns 1 if the
   step waits. */
static int ds__step_waits(ds__arrangement *x, uint32_t i, size_t own, int kept) {
    ds__draft *d = x->d;
    ds__waits *w = &x->w;
    const ds__dstep *s = &d->step[i];
    const ds__troute *r = ds__step_route(d, s);
    size_t hops = r ? r->hops : 0;
    if (!kept && w->busy[own] >= (r ? d->t->engines : 1)) {
        ds__wait_for(w, own, i);
        return 1;
    }
    for (size_t k = 0; !kept && k < hops; k++)
        if (w->kept[r->wire[k]]) {
            ds__wait_for(w, (size_t)r->wire[k], i);
            return 1;
        }
    for (size_t k = 0; k < hops; k++) {
        if (!w->busy[r->wire[k]])
            continue;
        int remote = ds__step_is_far(d, s);
        /* no other step may begin on its wires, which would rarely be free all at once */
        if (remote && !kept) {
            for (size_t m = 0; m < hops; m++)
                w->kept[r->wire[m]] = i + 1;
            w->busy[own]++;
        } else if (!remote) {
            ds__wait_for(w, (size_t)r->wire[k], i);
        }
        return 1;
    }
    return 0;
}

/* Begins step i if all it uses is free; else the step waits. Returns 0 if memory is exhausted. */
static int ds__begin_step(ds__arrangement *x, uint32_t i, int64_t now) {
    ds__draft *d = x->d;
    ds__waits *w = &x->w;
    ds__dues *h = &x->h;
    ds__dstep *s = &d->step[i];
    const ds__troute *r = ds__step_route(d, s);
    size_t own = x->wires + (r ? 0 : (size_t)d->p + 1) + (size_t)s->rank;
    int kept = r && r->hops && w->kept[*r->wire] == i + 1;
    if (ds__step_waits(x, i, own, kept))
        return 1;

    for (size_t k = 0; kept && k < r->hops; k++)
        w->kept[r->wire[k]] = 0;
    if (kept)
        w->busy[own]--;
    int64_t held =
        r ? d->t->start_ns + ds__cost_ns((double)s->bytes, r->rate) : ds__memory_ns(d, s);
    int ok = 1;
    w->busy[own]++;
    for (size_t k = 0; ok && r && k < r->hops; k++) {
        w->busy[r->wire[k]] = 1;
        ok = ds__due_put(h, now + ds__cost_ns((double)s->bytes, d->t->wire[r->wire[k]]), 1,
                         (uint32_t)r->wire[k]);
    }
    s->start = now;
    s->done = now + held + (r ? r->latency_ns : 0);
    return ok && ds__due_put(h, s->done, 0, i) && ds__due_put(h, now + held, 1, (uint32_t)own);
}

/* Takes all that is over at this time: notes what is free again, and the steps that can begin.
   Returns 0 if memory is exhausted. */
static int ds__arrange_finish(ds__arrangement *x, int64_t now) {
    ds__draft *d = x->d;
    ds__waits *w = &x->w;
    int ok = 1;
    while (x->h.dues && x->h.due[0].at == now) {
        ds__due e = ds__due_take(&x->h);
        if (e.rank) {
            w->busy[e.id]--;
            if (ok && (w->head[e.id] || w->kept[e.id]))
                ok = ds__due_put(&x->freed, w->kept[e.id] ? 0 : w->head[e.id], 0, e.id);
            continue;
        }
        for (uint32_t k = d->step[e.id].next; k != DS__NONE; k = d->link[k].next)
            if (!--d->step[d->link[k].step].need)
                ds__wait_for(w, x->all, d->link[k].step);
    }
    /* those that wait for nothing any more */
    if (ok && w->head[x->all])
        ok = ds__due_put(&x->freed, w->head[x->all], 0, (uint32_t)x->all);
    return ok;
}

/* Returns 1 if a wire, engine or memory cannot take one more step. */
static int ds__arrange_is_busy(const ds__arrangement *x, uint32_t id) {
    const ds__draft *d = x->d;
    int engine = id >= x->wires && id <= x->wires + (size_t)d->p;
    return id < x->all && x->w.busy[id] >= (engine ? d->t->engines : 1);
}

/* Begins the steps that wait for what is free again, in their order. Returns 0 if memory is
   exhausted. */
static int ds__arrange_begin(ds__arrangement *x, int64_t now) {
    ds__waits *w = &x->w;
    while (x->freed.dues) {
        uint32_t id = ds__due_take(&x->freed).id;
        int ok = 1;
        /* a step that reserved the wire comes before all others */
        if (w->kept[id]) {
            ok = ds__begin_step(x, w->kept[id] - 1, now);
        } else if (w->head[id] && !ds__arrange_is_busy(x, id)) {
            ok = ds__begin_step(x, ds__wait_take(w, id), now) &&
                 (!w->head[id] || ds__due_put(&x->freed, w->head[id], 0, id));
        }
        if (!ok)
            return 0;
    }
    return 1;
}

/* Returns 0 if memory is exhausted. */
static int ds__arrangement_init(ds__arrangement *x, ds__draft *d) {
    ds__waits *w = &x->w;
    memset(x, 0, sizeof *x);
    x->d = d;
    x->wires = (size_t)d->t->wires;
    x->all = x->wires + 2 * ((size_t)d->p + 1);
    w->head = ds__host_alloc((x->all + 1) * sizeof *w->head);
    w->child = ds__host_alloc((d->steps + 1) * sizeof *w->child);
    w->next = ds__host_alloc((d->steps + 1) * sizeof *w->next);
    w->kept = ds__host_alloc((x->all + 1) * sizeof *w->kept);
    w->busy = ds__host_alloc(x->all * sizeof *w->busy);
    return w->head && w->child && w->next && w->kept && w->busy;
}

static void ds__arrangement_deinit(ds__arrangement *x) {
    ds__host_free(x->w.head);
    ds__host_free(x->w.child);
    ds__host_free(x->w.next);
    ds__host_free(x->w.kept);
    ds__host_free(x->w.busy);
    ds__host_free(x->freed.due);
    ds__host_free(x->h.due);
}

/* Starts each step as soon as it can start, in the order of the list, and notes the times. No step
   waits for a wire that is only reserved by steps that wait themselves. Then the steps stand in
   the order of their starts. Returns 0 if memory is exhausted. */
static int ds__schedule_arrange(ds__draft *d) {
    ds__arrangement x;
    size_t links = d->links;
    int ok = ds__arrangement_init(&x, d) && ds__schedule_sort(d) && ds__cost_followers_count(d, 0);
    for (uint32_t i = 0; ok && i < d->steps; i++)
        if (!d->step[i].need)
            ok = ds__begin_step(&x, i, 0);
    /* all that is over at this time, then those that it lets begin, in their order */
    while (ok && x.h.dues) {
        int64_t now = x.h.due[0].at;
        ok = ds__arrange_finish(&x, now) && ds__arrange_begin(&x, now);
    }
    d->links = links;
    for (size_t i = 0; i < d->steps; i++)
        d->step[i].key = (uint64_t)d->step[i].start;
    ds__arrangement_deinit(&x);
    return ok && ds__schedule_sort(d);
}

static void ds__schedule_step_after(ds__draft *d, uint32_t step, uint32_t before) {
    if (before == DS__NONE || step == DS__NONE)
        return;
    ds__dlink *one = DS__ADD(d, link);
    if (!one)
        return;
    *one = (ds__dlink){ before, d->step[step].after };
    d->step[step].after = (uint32_t)d->links - 1;
}

#endif
