/* plan/settle.h - lanes of the steps.

   Gives each step a lane, and if needed one more step to wait for. With them the virtual clock
   serves the steps in the chosen order where possible. ds__settle_plan does this after
   ds__schedule_arrange or after a modulo schedule.

   Invariants: the steps stand in the chosen order, and each waits only for earlier ones.
   `ready`, `start` and `done` follow the rule of the virtual clock; ds__cost_predict computes the
   final times. At most one link per step is added. A lane is less than DS__PLAN_LANES, with few
   ranks less than DS__PLAN_FEW_LANES.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_SETTLE_H
#define DS__PLAN_SETTLE_H

#include "../topology/types.h"
#include "types.h"
#include "heap.h"
#include "cost_model.h"
#include "schedule.h"

/* Times of all that steps use, in the order in which lanes are given. */
typedef struct ds__settling {
    ds__draft *d;
    size_t engines;
    size_t ranks;
    size_t wires;
    int64_t *lane;    /* of each rank: when its lanes are free */
    int64_t *engine;  /* of each rank: when its engines are free */
    int64_t *free_at; /* of wires, engines (unused) and memories */
    uint32_t *last;   /* of the same: the last step that used it, plus 1 */
    ds__due *ended;   /* steps that have a lane, by the time at which they are done */
    size_t count;
} ds__settling;

/* A step that gets a lane. */
typedef struct ds__placing {
    ds__dstep *s;
    const ds__troute *r;
    uint32_t i;
    size_t own;       /* its engine or memory in `last` and `free_at` */
    int64_t *engine;  /* the first that is free */
    int64_t *lane;    /* lanes of its rank */
    int64_t input;    /* when its inputs are there */
    int64_t room;     /* when all that it uses is free */
    int64_t start;    /* the later of both */
    int64_t earliest; /* it must be ready after a step that is ready then ... */
    int64_t before;   /* ... in this turn */
} ds__placing;

/* Returns 0 if memory is exhausted. */
static int ds__settling_init(ds__settling *x, ds__draft *d) {
    x->d = d;
    x->engines = (size_t)d->t->engines;
    x->ranks = (size_t)d->p + 1;
    x->wires = (size_t)d->t->wires;
    x->count = 0;
    size_t n = x->wires + 2 * x->ranks;
    x->lane = ds__host_alloc(x->ranks * DS__PLAN_LANES * sizeof *x->lane);
    x->engine = ds__host_alloc((x->ranks * x->engines + n) * sizeof *x->engine);
    x->free_at = x->engine ? x->engine + x->ranks * x->engines : NULL;
    x->last = ds__host_alloc(n * sizeof *x->last);
    x->ended = ds__host_alloc((d->steps + 1) * sizeof *x->ended);
    d->lanes = 0;
    return x->lane && x->engine && x->last && x->ended;
}

static void ds__settling_deinit(ds__settling *x) {
    ds__host_free(x->lane);
    ds__host_free(x->engine);
    ds__host_free(x->last);
    ds__host_free(x->ended);
}

/* Returns the k-th wire of a step, or behind the wires its engine or memory. */
static inline size_t ds__placing_use(const ds__placing *o, size_t k) {
    if (o->r && k < o->r->hops)
        return (size_t)o->r->wire[k];
    return o->own;
}

static inline size_t ds__placing_uses(const ds__placing *o) {
    return o->r ? o->r->hops + 1 : 1;
}

static inline int64_t ds__placing_turn(const ds__settling *x, const ds__placing *o, int lane) {
    return (int64_t)lane * (int64_t)x->ranks + o->s->rank;
}

/* Returns 1 if a step that is ready then, in this turn, is served before the steps that use the
   same and should come first. */
static inline int ds__placing_early(const ds__placing *o, int64_t ready, int64_t turn) {
    return ready < o->earliest || (ready == o->earliest && turn < o->before);
}

/* Finds out when step i can start, and after which steps it must be ready. */
static void ds__placing_init(const ds__settling *x, ds__placing *o, uint32_t i) {
    const ds__draft *d = x->d;
    ds__dstep *s = &d->step[i];
    const ds__troute *r = ds__step_route(d, s);
    size_t rank = (size_t)s->rank;
    *o = (ds__placing){ .s = s, .r = r, .i = i, .earliest = -1, .before = -1 };
    o->own = x->wires + (r ? 0 : x->ranks) + rank;
    o->lane = &x->lane[rank * DS__PLAN_LANES];
    o->engine = ds__engine_first(&x->engine[rank * x->engines], x->engines);
    o->room = r ? *o->engine : x->free_at[o->own];
    for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next)
        if (d->step[d->link[k].step].done > o->input)
            o->input = d->step[d->link[k].step].done;

    for (size_t k = 0; k < ds__placing_uses(o); k++) {
        size_t what = ds__placing_use(o, k);
        if (what != o->own && x->free_at[what] > o->room)
            o->room = x->free_at[what];
        if (!x->last[what])
            continue;
        const ds__dstep *other = &d->step[x->last[what] - 1];
        int64_t turn = ds__cost_step_turn(d, other);
        if (other->ready > o->earliest || (other->ready == o->earliest && turn > o->before)) {
            o->earliest = other->ready;
            o->before = turn;
        }
    }
    o->start = o->input > o->room ? o->input : o->room;
}

/* Returns the first of the ended steps that is done after that time. */
static size_t ds__settling_after(const ds__settling *x, int64_t than) {
    size_t low = 0;
    size_t high = x->count;
    while (low < high) {
        size_t m = (low + high) / 2;
        if (x->ended[m].at > than)
            high = m;
        else
            low = m + 1;
    }
    return low;
}

/* Runs a step that has its lane and the time at which it is ready. */
static void ds__placing_run(ds__settling *x, const ds__placing *o) {
    ds__draft *d = x->d;
    const ds_topology *t = d->t;
    const ds__troute *r = o->r;
    ds__dstep *s = o->s;
    if (s->lane >= d->lanes)
        d->lanes = s->lane + 1;
    s->start = s->ready > o->start ? s->ready : o->start;
    if (r) {
        for (size_t k = 0; k < r->hops; k++)
            x->free_at[r->wire[k]] = s->start + ds__cost_ns((double)s->bytes, t->wire[r->wire[k]]);
        *o->engine = s->start + t->start_ns + ds__cost_ns((double)s->bytes, r->rate);
        s->done = *o->engine + r->latency_ns;
    } else {
        s->done = s->start + ds__memory_ns(d, s);
        x->free_at[o->own] = s->done;
    }
    for (size_t k = 0; k < ds__placing_uses(o); k++)
        x->last[ds__placing_use(o, k)] = o->i + 1;
    o->lane[s->lane] = s->done;

    size_t at = x->count++;
    for (; at && x->ended[at - 1].at > s->done; at--)
        x->ended[at] = x->ended[at - 1];
    x->ended[at] = (ds__due){ s->done, 0, o->i };
}

/* Gives the step the lane that delays it least, and among those one in which it is ready after
   the steps that come first. */
static void ds__settle_lane(const ds__settling *x, const ds__placing *o, int lanes) {
    const int64_t *l = o->lane;
    ds__dstep *s = o->s;
    int best = -1;
    int best_own = 0;
    int least = 0;
    for (int k = 0; k < lanes; k++) {
        int64_t ready = l[k] > o->input ? l[k] : o->input;
        int64_t turn = ds__placing_turn(x, o, k);
        int in_turn = ready > o->earliest || (ready == o->earliest && turn > o->before);
        if (l[k] < l[least])
            least = k;
        if (ready > o->start)
            continue;
        if (best < 0 || in_turn > best_own || (in_turn == best_own && l[k] > l[best])) {
            best = k;
            best_own = in_turn;
        }
    }
    s->lane = best >= 0 ? best : least;
    s->ready = l[s->lane] > o->input ? l[s->lane] : o->input;
}

/* Returns a lane whose turn is after those that come first, for a step that is ready at the same
   time; -1: there is none. */
static int ds__settle_later(const ds__settling *x, const ds__placing *o, int lanes) {
    const int64_t *l = o->lane;
    int later = -1;
    for (int k = 0; k < lanes; k++)
        if (l[k] <= o->start && ds__placing_turn(x, o, k) > o->before &&
            (later < 0 || l[k] > l[later]))
            later = k;
    return later;
}

/* Makes a step that is ready too early wait for one more step. With few ranks only if the step is
   delayed little; with many ranks always, since a step out of turn delays thousands of others. */
static void ds__settle_wait(const ds__settling *x, const ds__placing *o, int lanes) {
    ds__dstep *s = o->s;
    const ds__troute *r = o->r;
    const ds__due *ended = x->ended;
    int large = x->d->p > DS__PLAN_LARGE;
    int64_t patience = x->d->t->start_ns / 4 + (r ? ds__cost_ns((double)s->bytes, r->rate) / 2 : 0);
    int in_turn = large && ds__placing_turn(x, o, s->lane) > o->before;
    size_t low = ds__settling_after(x, o->earliest - in_turn);
    int later = -1;
    if (!in_turn && low && ended[low - 1].at == o->earliest &&
        (low == x->count || ended[low].at > o->start))
        later = ds__settle_later(x, o, lanes);
    if (later >= 0) {
        s->lane = later;
        low--;
    }
    if (low < x->count && (large || ended[low].at <= o->start + patience)) {
        ds__schedule_step_after(x->d, o->i, ended[low].id);
        s->ready = ended[low].at > o->lane[s->lane] ? ended[low].at : o->lane[s->lane];
    }
}

/* Gives each step a lane, in the chosen order. The virtual clock serves the step that is ready
   first, and a served step holds its wires, engine or memory from then on. If needed, a step waits
   for one more step: it is then ready after the earlier steps of the same wires, engine or memory.
   Returns 0 if memory is exhausted. */
static int ds__settle_plan(ds__draft *d) {
    int lanes = d->p > DS__PLAN_LARGE ? DS__PLAN_LANES : DS__PLAN_FEW_LANES;
    ds__settling x;
    int ok = ds__settling_init(&x, d);
    for (uint32_t i = 0; ok && !d->failed && i < d->steps; i++) {
        ds__placing o;
        ds__placing_init(&x, &o, i);
        ds__settle_lane(&x, &o, lanes);
        if (ds__placing_early(&o, o.s->ready, ds__placing_turn(&x, &o, o.s->lane)))
            ds__settle_wait(&x, &o, lanes);
        ds__placing_run(&x, &o);
    }
    ds__settling_deinit(&x);
    return ok && !d->failed;
}

#endif
