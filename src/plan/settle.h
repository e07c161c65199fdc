/* plan/settle.h - lanes of the steps.

   Gives each step a lane, and if needed one more step to wait for. With them the virtual clock
   serves the steps in the chosen order where possible. ds__settle does this after ds__arrange
   or after a modulo schedule. ds__lanes_in_turn does it for the estimated candidates of many
   ranks.

   Invariants: the steps stand in the chosen order, and each waits only for earlier ones.
   `ready`, `start` and `done` follow the rule of the virtual clock; ds__predict computes the
   final times. At most one link per step is added. A lane is less than DS__PLAN_LANES, in
   ds__settle with few ranks less than DS__PLAN_FEW_LANES.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_SETTLE_H
#define DS__PLAN_SETTLE_H

#include "../topology/types.h"
#include "types.h"
#include "heap.h"
#include "cost_model.h"
#include "schedule.h"

/* The virtual clock serves whoever is ready first, not whose turn it is, and what it serves
   holds all it needs from then on. So the steps are gone through in the order that is wanted,
   with the times that they get: each takes a lane, and if need be comes after one more step, so
   that it is ready after those before it that use the same. */
static int ds__settle(ds__draft *d) {
    const ds_topology *t = d->t;
    size_t engines = (size_t)t->engines;
    size_t ranks = (size_t)d->p + 1;
    size_t wires = (size_t)t->wires;
    size_t n = wires + 2 * ranks;
    size_t events = 0;
    int64_t *lane = ds__alloc(ranks * DS__PLAN_LANES * sizeof *lane);
    int64_t *engine = ds__alloc((ranks * engines + n) * sizeof *engine);
    int64_t *free_at = engine + ranks * engines;
    uint32_t *last = ds__alloc(n * sizeof *last); /* who used it, plus 1 */
    ds__sorted *event = ds__alloc((d->steps + 1) * sizeof *event);
    int ok = lane && engine && last && event;
    d->lanes = 0;
    for (uint32_t i = 0; ok && !d->failed && i < d->steps; i++) {
        ds__dstep *s = &d->step[i];
        const ds__troute *r = ds__step_route(d, s);
        size_t own = wires + (r ? 0 : ranks) + (size_t)s->rank;
        size_t uses = r ? r->hops + 1 : 1;
        int64_t input = 0;
        int64_t room = 0;
        int64_t earliest = -1;
        int64_t before = -1;
        int64_t *l = &lane[(size_t)s->rank * DS__PLAN_LANES];
        int64_t *e = &engine[(size_t)s->rank * engines];
        for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next)
            if (d->step[d->link[k].step].done > input)
                input = d->step[d->link[k].step].done;
        for (size_t k = 1; k < engines; k++)
            if (engine[(size_t)s->rank * engines + k] < *e)
                e = &engine[(size_t)s->rank * engines + k];
        room = r ? *e : free_at[own];
        for (size_t k = 0; k < uses; k++) {
            size_t what = k + 1 < uses ? (size_t)r->wire[k] : own;
            if (k + 1 < uses && free_at[what] > room)
                room = free_at[what];
            if (!last[what])
                continue;
            const ds__dstep *o = &d->step[last[what] - 1];
            int64_t turn = ds__turn(d, o);
            if (o->ready > earliest || (o->ready == earliest && turn > before)) {
                earliest = o->ready;
                before = turn;
            }
        }
        int64_t start = input > room ? input : room;
        int64_t patience = t->start_ns / 4 + (r ? ds__ns((double)s->bytes, r->rate) / 2 : 0);
        int best = -1;
        int best_own = 0;
        int least = 0;
        int lanes = d->p > DS__PLAN_LARGE ? DS__PLAN_LANES : DS__PLAN_FEW_LANES;
        for (int k = 0; k < lanes; k++) {
            s->lane = k;
            int64_t ready = l[k] > input ? l[k] : input;
            int in_turn =
                ready > earliest || (ready == earliest && (int64_t)ds__turn(d, s) > before);
            if (l[k] < l[least])
                least = k;
            if (ready > start)
                continue;
            if (best < 0 || in_turn > best_own || (in_turn == best_own && l[k] > l[best])) {
                best = k;
                best_own = in_turn;
            }
        }
        s->lane = best >= 0 ? best : least;
        s->ready = l[s->lane] > input ? l[s->lane] : input;
        if (s->ready < earliest || (s->ready == earliest && (int64_t)ds__turn(d, s) < before)) {
            size_t low = 0;
            size_t high = events;
            while (low < high) {
                size_t m = (low + high) / 2;
                if ((int64_t)event[m].key > earliest)
                    high = m;
                else
                    low = m + 1;
            }
            /* a lane whose turn is after theirs, for one that is ready at the same time */
            int later = -1;
            if (low && (int64_t)event[low - 1].key == earliest &&
                (low == events || (int64_t)event[low].key > start))
                for (int k = 0; k < lanes; k++)
                    if (l[k] <= start && (int64_t)k * (int64_t)ranks + s->rank > before &&
                        (later < 0 || l[k] > l[later]))
                        later = k;
            if (later >= 0) {
                s->lane = later;
                low--;
            }
            if (low < events && (int64_t)event[low].key <= start + patience) {
                ds__after(d, i, event[low].id);
                s->ready =
                    (int64_t)event[low].key > l[s->lane] ? (int64_t)event[low].key : l[s->lane];
            }
        }
        if (s->lane >= d->lanes)
            d->lanes = s->lane + 1;
        s->start = s->ready > room ? s->ready : room;
        if (r) {
            for (size_t k = 0; k < r->hops; k++)
                free_at[r->wire[k]] = s->start + ds__ns((double)s->bytes, t->wire[r->wire[k]]);
            *e = s->start + t->start_ns + ds__ns((double)s->bytes, r->rate);
            s->done = *e + r->latency_ns;
        } else
            s->done = free_at[own] = s->start + ds__memory_ns(d, s);
        for (size_t k = 0; k < uses; k++)
            last[k + 1 < uses ? (size_t)r->wire[k] : own] = i + 1;
        l[s->lane] = s->done;
        size_t at = events++;
        for (; at && event[at - 1].key > (uint64_t)s->done; at--)
            event[at] = event[at - 1];
        event[at] = (ds__sorted){ (uint64_t)s->done, i };
    }
    ds__release(lane);
    ds__release(engine);
    ds__release(last);
    ds__release(event);
    return ok && !d->failed;
}

/* Both at once for many ranks, where one step that begins out of its turn delays thousands: when
   each step begins and ends is computed anew in the order of the list, so that what is said
   above holds of the times that come out. */
static int ds__lanes_in_turn(ds__draft *d) {
    const ds_topology *t = d->t;
    size_t engines = (size_t)t->engines;
    size_t n = (size_t)d->p + 1;
    size_t wires = (size_t)t->wires;
    size_t ended = 0;
    int64_t *free_at = ds__alloc((n * (engines + 1 + DS__PLAN_LANES) + wires) * sizeof *free_at);
    int64_t *memory = free_at + n * engines;
    int64_t *wire = memory + n;
    int64_t *lane = wire + wires;
    uint32_t *last = ds__alloc((wires + 2 * n) * sizeof *last); /* who used it, plus 1 */
    int *used = ds__alloc(n * sizeof *used);
    int ok = free_at && last && used;
    /* those that were looked at, by when they are over */
    ds__due *end = ds__alloc((d->steps + 1) * sizeof *end);
    d->lanes = 0;
    for (uint32_t i = 0; ok && end && !d->failed && i < d->steps; i++) {
        ds__dstep *s = &d->step[i];
        const ds__troute *r = ds__step_route(d, s);
        size_t uses = r ? r->hops : 0;
        int64_t *own = r ? &free_at[(size_t)s->rank * engines] : &memory[s->rank];
        int64_t *l = &lane[s->rank * DS__PLAN_LANES];
        int64_t before = -1;
        int64_t earliest = -1;
        int64_t start;
        int best = -1;
        for (size_t k = 1; r && k < engines; k++)
            if (free_at[(size_t)s->rank * engines + k] < *own)
                own = &free_at[(size_t)s->rank * engines + k];
        s->ready = 0;
        for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next)
            if (d->step[d->link[k].step].done > s->ready)
                s->ready = d->step[d->link[k].step].done;
        start = s->ready > *own ? s->ready : *own;
        for (size_t w = 0; w < uses; w++)
            if (wire[r->wire[w]] > start)
                start = wire[r->wire[w]];
        for (size_t w = 0; w <= uses; w++) {
            uint32_t *u =
                &last[w < uses ? (size_t)r->wire[w] : wires + (r ? 0 : n) + (size_t)s->rank];
            const ds__dstep *o = &d->step[*u ? *u - 1 : 0];
            int64_t other = ds__turn(d, o);
            if (*u && (o->ready > earliest || (o->ready == earliest && other > before))) {
                earliest = o->ready;
                before = other;
            }
            *u = i + 1;
        }
        /* one whose turn it is by then, if there is one; else any */
        for (int pass = 0; best < 0 && pass < 2; pass++)
            for (int k = 0; k < DS__PLAN_LANES; k++) {
                int64_t ready = l[k] > s->ready ? l[k] : s->ready;
                if (l[k] > start || (k >= used[s->rank] && best >= 0 && l[best]) ||
                    (pass == 0 && (ready < earliest ||
                                   (ready == earliest && k * (d->p + 1) + s->rank < before))))
                    continue;
                if (best < 0 || l[k] > l[best])
                    best = k;
            }
        for (int k = 0; best < 0 && k < DS__PLAN_LANES; k++)
            if (k == 0 || l[k] < l[s->lane])
                s->lane = k;
        if (best >= 0)
            s->lane = best;
        if (s->lane >= used[s->rank])
            used[s->rank] = s->lane + 1;
        if (used[s->rank] > d->lanes)
            d->lanes = used[s->rank];
        if (l[s->lane] > s->ready)
            s->ready = l[s->lane];
        if (s->ready < earliest || (s->ready == earliest && (int64_t)ds__turn(d, s) < before)) {
            size_t low = 0;
            size_t high = ended;
            int64_t than = earliest - ((int64_t)ds__turn(d, s) > before);
            while (low < high) {
                size_t m = (low + high) / 2;
                if (end[m].at > than)
                    high = m;
                else
                    low = m + 1;
            }
            if (low < ended) {
                ds__after(d, i, end[low].id);
                s->ready = end[low].at;
            }
        }
        s->start = s->ready > start ? s->ready : start;
        for (size_t w = 0; w < uses; w++)
            wire[r->wire[w]] = s->start + ds__ns((double)s->bytes, t->wire[r->wire[w]]);
        *own =
            s->start + (r ? t->start_ns + ds__ns((double)s->bytes, r->rate) : ds__memory_ns(d, s));
        l[s->lane] = s->done = *own + (r ? r->latency_ns : 0);
        size_t at = ended++;
        for (; at && end[at - 1].at > s->done; at--)
            end[at] = end[at - 1];
        end[at] = (ds__due){ s->done, 0, i };
    }
    ok = ok && end;
    ds__release(free_at);
    ds__release(last);
    ds__release(used);
    ds__release(end);
    return ok && !d->failed;
}

#endif
