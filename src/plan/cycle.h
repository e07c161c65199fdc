/* plan/cycle.h - rounds on a circle.

   Makes a modulo schedule of the pieces (ds__cycle_build), for few ranks. A round has one piece
   of each flow, and all rounds are alike. The steps of one round are put on a circle. Its
   length is the time of the busiest wire, engine or memory, or somewhat more. Rounds follow
   each other at this distance, and no step waits for a wire, engine or memory. Several orders
   of the steps and numbers of pieces are tried, and the best is kept.

   Invariants: the arcs of a wire, engine or memory (ds__orbit) do not overlap on the circle.
   Times of the schedule are targets: ds__settle_plan and ds__cost_predict give the final ones. The
   random numbers have a fixed seed, so the same request gives the same plan. `work` limits the time
   of the search.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_CYCLE_H
#define DS__PLAN_CYCLE_H

#include "../topology/types.h"
#include "types.h"
#include "cost_model.h"
#include "schedule.h"
#include "settle.h"
#include "pieces.h"

/* A part of the circle in which a wire, an engine or a memory is in use. */
typedef struct ds__arc {
    int64_t from;
    int64_t ns;
} ds__arc;

/* A wire, an engine or a memory, with its arcs of a round. */
typedef struct ds__orbit {
    ds__arc *arc;
    size_t arcs;
} ds__orbit;

typedef struct ds__cycle {
    ds__draft *d;
    size_t steps;
    size_t lines;
    size_t wires;
    ds__orbit *orbit; /* of wires, then of engines, then of memories */
    ds__arc *arc;
    int64_t *start; /* of each step */
    int64_t *best;  /* of each step: its start in the best order */
    int64_t *held;  /* of each step: the time for which it holds its engine or memory */
    int64_t *tail; /* of each step: from its begin to the end of the last step that depends on it */
    uint32_t *need;
    uint32_t *ready;
    size_t work;      /* steps that were put on a circle */
    size_t work_most; /* the search ends after so many */
    int64_t enough;   /* the result must take less than this */
    size_t copies;    /* of a round */
    double *rank;     /* the order of the steps */
    double *rank_best;
    uint64_t seed;
    int64_t turn; /* of the best order: time from round to round */
    int64_t end;  /* of the best order: time of one round */
    int64_t grid; /* the longest arc of the busiest wires */
    size_t pieces;
} ds__cycle;

/* Returns a random number. */
static uint32_t ds__cycle_any(ds__cycle *r) {
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->seed >> 33);
}

/* Returns the size of the largest of k pieces of a step, as ds__pieces_emit cuts them. */
static size_t ds__cycle_bytes(const ds__cycle *r, size_t i, size_t k) {
    size_t item = r->d->want->item ? r->d->want->item : 1;
    size_t unit = item < 64 && 64 % item == 0 ? 64 : item;
    size_t bytes = r->d->step[i].bytes;
    size_t units = bytes / unit;
    return k < 2 || !units ? bytes : (units + k - 1) / k * unit + bytes % unit;
}

/* Returns the first time from t on at which so many nanoseconds of the circle are free, or -1. */
static int64_t ds__orbit_find(const ds__orbit *o, int64_t t, int64_t ns, int64_t turn) {
    int64_t first = t;
    for (size_t i = 0, free = 0; free < o->arcs; i = i + 1 < o->arcs ? i + 1 : 0) {
        int64_t since = (t - o->arc[i].from) % turn;
        if (since < 0)
            since += turn;
        free++;
        if (since >= o->arc[i].ns && turn - since >= ns)
            continue;
        t += since < o->arc[i].ns ? o->arc[i].ns - since : turn - since + o->arc[i].ns;
        free = 0;
        if (t - first > turn)
            return -1;
    }
    return t;
}

/* Returns the index of the orbit of a step's memory, or of its rank's first engine. */
static size_t ds__cycle_own(const ds__cycle *r, const ds__dstep *s, const ds__troute *route) {
    size_t engines = (size_t)r->d->t->engines;
    if (route)
        return r->wires + (size_t)s->rank * engines;
    return r->wires + ((size_t)r->d->p + 1) * engines + (size_t)s->rank;
}

/* A step that is put on the circle. */
typedef struct ds__lap {
    const ds_topology *t;
    const ds__troute *route; /* NULL: a sum */
    ds__orbit *own;          /* its rank's engines, or its memory */
    size_t engines;          /* number of entries of `own` */
    size_t whole;            /* engines that are held for all of the circle */
    int64_t rest;            /* time for which one more engine is held */
    size_t engine;           /* index of that engine */
    double bytes;
    int64_t turn;
} ds__lap;

/* Returns the nanoseconds for which the step uses the wire of a hop. */
static int64_t ds__lap_wire_ns(const ds__lap *l, size_t hop) {
    return ds__cost_ns(l->bytes, l->t->wire[l->route->wire[hop]]);
}

/* Returns a time from `begin` on at which the last wire is free, after looking at each wire once.
   Returns -1 if a wire is never free. */
static int64_t ds__lap_wires_find(const ds__cycle *r, const ds__lap *l, int64_t begin) {
    for (size_t h = 0; l->route && h < l->route->hops && begin >= 0; h++)
        begin = ds__orbit_find(&r->orbit[l->route->wire[h]], begin, ds__lap_wire_ns(l, h), l->turn);
    return begin;
}

/* Chooses the engine that is free first. Returns the time from `begin` on at which it is free, or
   -1. */
static int64_t ds__lap_engine_find(ds__lap *l, int64_t begin) {
    int64_t first = -1;
    for (size_t n = 0; n < l->engines; n++) {
        int64_t one = l->rest ? ds__orbit_find(&l->own[n], begin, l->rest, l->turn) : begin;
        if (one >= 0 && (first < 0 || one < first)) {
            first = one;
            l->engine = n;
        }
    }
    return first;
}

/* Adds the step's arcs. Returns 0 if fewer engines than it needs are idle for all of the circle. */
static int ds__lap_occupy(ds__cycle *r, const ds__lap *l, int64_t begin) {
    size_t whole = l->whole;
    int64_t from = begin % l->turn;
    for (size_t n = 0; n < l->engines && whole; n++) {
        ds__orbit *o = &l->own[n];
        if (o->arcs || (n == l->engine && l->rest))
            continue;
        o->arc[o->arcs++] = (ds__arc){ 0, l->turn };
        whole--;
    }
    for (size_t h = 0; l->route && h < l->route->hops; h++) {
        ds__orbit *o = &r->orbit[l->route->wire[h]];
        o->arc[o->arcs++] = (ds__arc){ from, ds__lap_wire_ns(l, h) };
    }
    if (l->rest) {
        ds__orbit *o = &l->own[l->engine];
        o->arc[o->arcs++] = (ds__arc){ from, l->rest };
    }
    return !whole;
}

/* Puts a step of k pieces on the circle, at the first multiple of `grid` from its start on at which
   its wires and an engine or the memory are free. Returns 0 if there is none in two rounds. */
static int ds__cycle_put(ds__cycle *r, uint32_t i, size_t k, int64_t turn, int64_t grid) {
    const ds__dstep *s = &r->d->step[i];
    int64_t begin = r->start[i];
    int64_t before;
    int64_t limit = begin + 2 * turn;
    ds__lap l = {
        .t = r->d->t,
        .route = ds__step_route(r->d, s),
        .engines = 1,
        .whole = (size_t)(r->held[i] / turn),
        .rest = r->held[i] % turn,
        .bytes = (double)ds__cycle_bytes(r, i, k),
        .turn = turn,
    };
    l.own = &r->orbit[ds__cycle_own(r, s, l.route)];
    if (l.route)
        l.engines = (size_t)l.t->engines;
    do {
        begin = (begin + grid - 1) / grid * grid;
        before = begin;
        begin = ds__lap_wires_find(r, &l, begin);
        if (begin >= 0)
            begin = ds__lap_engine_find(&l, begin);
        if (begin < 0 || begin > limit)
            return 0;
    } while (begin != before);
    r->start[i] = begin;
    return ds__lap_occupy(r, &l, begin);
}

/* Puts one round on the circle in the order of `rank`. Returns its end, or -1. */
static int64_t ds__cycle_try(ds__cycle *r, size_t k, int64_t turn, int64_t grid) {
    ds__draft *d = r->d;
    size_t n = 0;
    size_t done = 0;
    int64_t end = 0;
    for (size_t i = 0; i < r->lines; i++)
        r->orbit[i].arcs = 0;
    for (uint32_t i = 0; i < r->steps; i++) {
        r->start[i] = 0;
        if (!(r->need[i] = d->step[i].need))
            r->ready[n++] = i;
    }
    for (; n; done++) {
        size_t at = 0;
        for (size_t i = 1; i < n; i++)
            if (r->rank[r->ready[i]] < r->rank[r->ready[at]])
                at = i;
        uint32_t i = r->ready[at];
        r->ready[at] = r->ready[--n];
        r->work += 1 + n / 16;
        if (!ds__cycle_put(r, i, k, turn, grid))
            return -1;
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        int64_t over = r->start[i] + r->held[i] + (route ? route->latency_ns : 0);
        if (over > end)
            end = over;
        for (uint32_t l = d->step[i].next; l != DS__NONE; l = d->link[l].next) {
            uint32_t f = d->link[l].step;
            if (over > r->start[f])
                r->start[f] = over;
            if (!--r->need[f])
                r->ready[n++] = f;
        }
    }
    return done == r->steps ? end : -1;
}

/* Computes the step's `held`, and adds its load to that of its orbits, which are in r->start.
   Returns the largest load among them. */
static int64_t ds__cycle_load(ds__cycle *r, uint32_t i, size_t k) {
    const ds_topology *t = r->d->t;
    const ds__dstep *s = &r->d->step[i];
    const ds__troute *route = ds__step_route(r->d, s);
    double bytes = (double)ds__cycle_bytes(r, i, k);
    int64_t *own = &r->start[ds__cycle_own(r, s, route)];
    r->held[i] = route ? t->start_ns + ds__cost_ns(bytes, route->rate)
                       : ds__cost_ns(bytes * (s->from_count + 1), t->memory);
    *own += r->held[i];
    int64_t most = *own / (route ? t->engines : 1);
    for (size_t h = 0; route && h < route->hops; h++) {
        int64_t *wire = &r->start[route->wire[h]];
        *wire += ds__cost_ns(bytes, t->wire[route->wire[h]]);
        if (*wire > most)
            most = *wire;
    }
    return most;
}

/* Finds the longest arc of the busiest wires, whose load is about `most`. */
static void ds__cycle_grid_find(ds__cycle *r, size_t k, int64_t most) {
    const ds_topology *t = r->d->t;
    r->grid = 1;
    for (uint32_t i = 0; i < r->steps; i++) {
        const ds__troute *route = ds__step_route(r->d, &r->d->step[i]);
        for (size_t h = 0; route && h < route->hops; h++) {
            int64_t ns = ds__cost_ns((double)ds__cycle_bytes(r, i, k), t->wire[route->wire[h]]);
            if (r->start[route->wire[h]] >= most - most / 16 && ns > r->grid)
                r->grid = ns;
        }
    }
}

/* Returns the time of the busiest wire, engine or memory in a round of k pieces. */
static int64_t ds__cycle_least(ds__cycle *r, size_t k) {
    int64_t most = 1;
    for (size_t i = 0; i < r->lines; i++) {
        r->orbit[i].arcs = 0;
        r->start[i] = 0;
    }
    for (uint32_t i = 0; i < r->steps; i++) {
        int64_t load = ds__cycle_load(r, i, k);
        if (load > most)
            most = load;
    }
    ds__cycle_grid_find(r, k, most);
    return most;
}

/* The order is the best so far. */
static void ds__cycle_keep(ds__cycle *r, size_t k, int64_t turn, int64_t end) {
    r->pieces = k;
    r->turn = turn;
    r->end = end;
    memcpy(r->best, r->start, r->steps * sizeof *r->best);
    memcpy(r->rank_best, r->rank, r->steps * sizeof *r->rank);
}

/* Returns the time of all rounds in the best order. */
static int64_t ds__cycle_time(const ds__cycle *r) {
    return r->pieces ? r->end + (int64_t)(r->pieces - 1) * r->turn : INT64_MAX;
}

/* Tries the order of `rank` with k pieces on longer and longer circles, and keeps the fastest
   result. Steps start at multiples of `grid`. */
static void ds__cycle_order_on(ds__cycle *r, size_t k, int64_t least, int64_t path, int64_t grid) {
    for (int more = 0; more <= 32; more = more ? 2 * more : 1) {
        int64_t turn = (least + least * more / 64 + grid - 1) / grid * grid;
        if (path + (int64_t)(k - 1) * turn >= ds__cycle_time(r))
            return;
        int64_t end = ds__cycle_try(r, k, turn, grid);
        if (end < 0)
            continue;
        if (end + (int64_t)(k - 1) * turn < ds__cycle_time(r))
            ds__cycle_keep(r, k, turn, end);
        return;
    }
}

/* Tries the order of `rank` with k pieces: at multiples of the longest arc, since the busiest wires
   are full only if their arcs are adjacent, and at any time. `least` and `path`: the results of
   ds__cycle_least and ds__cycle_path. */
static void ds__cycle_order(ds__cycle *r, size_t k, int64_t least, int64_t path) {
    ds__cycle_order_on(r, k, least, path, r->grid);
    if (r->grid > 1)
        ds__cycle_order_on(r, k, least, path, 1);
}

/* Returns the time of the longest chain of dependent steps of a round, and sets `tail`. */
static int64_t ds__cycle_path(ds__cycle *r) {
    const ds__draft *d = r->d;
    int64_t most = 0;
    for (size_t i = r->steps; i-- > 0;) { /* steps come after those that they wait for */
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        int64_t rest = 0;
        for (uint32_t l = d->step[i].next; l != DS__NONE; l = d->link[l].next)
            if (r->tail[d->link[l].step] > rest)
                rest = r->tail[d->link[l].step];
        r->tail[i] = rest + r->held[i] + (route ? route->latency_ns : 0);
        if (r->tail[i] > most)
            most = r->tail[i];
    }
    return most;
}

/* Gives each orbit room for the arcs of all steps that use it. Returns 0 if memory is exhausted. */
static int ds__cycle_arcs_init(ds__cycle *r) {
    const ds__draft *d = r->d;
    size_t arcs = 0;
    for (uint32_t i = 0; i < d->steps; i++) {
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        size_t own = ds__cycle_own(r, &d->step[i], route);
        size_t engines = route ? (size_t)d->t->engines : 1;
        for (size_t h = 0; route && h < route->hops; h++)
            r->orbit[route->wire[h]].arcs++;
        for (size_t e = 0; e < engines; e++)
            r->orbit[own + e].arcs++;
    }
    for (size_t i = 0; i < r->lines; i++)
        arcs += r->orbit[i].arcs;
    r->arc = ds__host_alloc((arcs + 1) * sizeof *r->arc);
    if (!r->arc)
        return 0;
    arcs = 0;
    for (size_t i = 0; i < r->lines; i++) {
        r->orbit[i].arc = r->arc + arcs;
        arcs += r->orbit[i].arcs;
    }
    return 1;
}

/* Prepares a search for the steps of the draft, which are one round. The memory of `r` is zero.
   Returns 0 if memory is exhausted. */
static int ds__cycle_init(ds__cycle *r, ds__draft *d) {
    size_t ranks = (size_t)d->p + 1;
    r->d = d;
    r->seed = 1;
    r->steps = d->steps;
    r->wires = (size_t)d->t->wires;
    r->lines = r->wires + ranks * (size_t)d->t->engines + ranks;
    size_t n = r->steps > r->lines ? r->steps : r->lines;
    r->orbit = ds__host_alloc(r->lines * sizeof *r->orbit);
    r->start = ds__host_alloc(4 * n * sizeof *r->start);
    r->rank = ds__host_alloc(2 * n * sizeof *r->rank);
    r->need = ds__host_alloc(2 * n * sizeof *r->need);
    if (!r->orbit || !r->start || !r->rank || !r->need)
        return 0;
    r->best = r->start + n;
    r->held = r->best + n;
    r->tail = r->held + n;
    r->rank_best = r->rank + n;
    r->ready = r->need + n;
    return ds__cycle_arcs_init(r);
}

static void ds__cycle_deinit(ds__cycle *r) {
    ds__host_free(r->orbit);
    ds__host_free(r->start);
    ds__host_free(r->rank);
    ds__host_free(r->need);
    ds__host_free(r->arc);
}

enum { DS__CYCLE_BY_KEY, DS__CYCLE_BY_TAIL, DS__CYCLE_AS_MADE, DS__CYCLE_ORDERS };

/* Sets `rank` to one of the orders that are tried first. */
static void ds__cycle_rank_set(ds__cycle *r, int order) {
    for (uint32_t i = 0; i < r->steps; i++) {
        if (order == DS__CYCLE_BY_KEY)
            r->rank[i] = (double)r->d->step[i].key;
        else if (order == DS__CYCLE_BY_TAIL)
            r->rank[i] = -(double)r->tail[i];
        else
            r->rank[i] = (double)i;
    }
}

/* Tries an order with all numbers of pieces; if there is a best number, only with those near
   it. */
static void ds__cycle_try_counts(ds__cycle *r, int order) {
    static const size_t counts[] = { 2,  3,  4,  5,  6,  8,   10,  12,  14,  16,  20,  24,  28,  32,
                                     40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024 };
    const ds__draft *d = r->d;
    for (size_t n = 0; n < sizeof counts / sizeof counts[0] && r->work < r->work_most; n++) {
        size_t k = counts[n];
        if (r->copies * k > DS__PLAN_STEPS / 2 || d->want->bytes / ((size_t)d->ways * k) < 1024)
            break;
        if (order && (k < r->pieces / 2 || k > r->pieces * 2))
            continue;
        int64_t least = ds__cycle_least(r, k);
        int64_t path = ds__cycle_path(r);
        int64_t fastest = path + (int64_t)(k - 1) * least;
        if (fastest >= ds__cycle_time(r) || fastest >= r->enough)
            continue;
        ds__cycle_rank_set(r, order);
        ds__cycle_order(r, k, least, path);
    }
}

/* Changes the best order at random until it is as fast as possible or the work is used up. */
static void ds__cycle_improve(ds__cycle *r) {
    int64_t least = ds__cycle_least(r, r->pieces);
    int64_t path = ds__cycle_path(r);
    int64_t fastest = path + (int64_t)(r->pieces - 1) * least;
    while (r->work < r->work_most && ds__cycle_time(r) > fastest) {
        memcpy(r->rank, r->rank_best, r->steps * sizeof *r->rank);
        for (int i = 0; i < 3; i++) {
            double x = r->rank[ds__cycle_any(r) % r->steps];
            r->rank[ds__cycle_any(r) % r->steps] = x;
        }
        ds__cycle_order(r, r->pieces, least, path);
    }
}

/* Returns the longest time in the best order from the end of a copy or sum to the end of a step
   that depends on it. */
static int64_t ds__cycle_life(const ds__cycle *r) {
    const ds__draft *d = r->d;
    int64_t longest = 0;
    for (uint32_t i = 0; i < r->steps; i++) {
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        int64_t done = r->best[i] + r->held[i] + (route ? route->latency_ns : 0);
        for (uint32_t k = d->step[i].after; k != DS__NONE; k = d->link[k].next)
            if (done - r->best[d->link[k].step] > longest)
                longest = done - r->best[d->link[k].step];
    }
    return longest;
}

/* Makes all pieces, with rings that are as long as the best order needs. Returns 0 if they are too
   long, or if memory or steps are exhausted. */
static int ds__cycle_emit(const ds__cycle *r) {
    ds__draft *d = r->d;
    size_t slots = d->slots;
    d->slots = (size_t)(ds__cycle_life(r) / r->turn) + 3;
    int ok = d->slots <= 64 && ds__pieces_emit(d, r->pieces, 0);
    d->slots = slots;
    return ok;
}

/* Gives the steps of all pieces their times of the schedule. */
static void ds__cycle_times_set(const ds__cycle *r) {
    ds__draft *d = r->d;
    size_t first = 0; /* of the flow, in a round */
    for (size_t f = 0; f < d->flows; f++) {
        const ds__flow *w = &d->flow[f];
        size_t end = f + 1 < d->flows ? d->flow[f + 1].first : d->steps;
        for (size_t i = w->first; i < end; i++) {
            ds__dstep *s = &d->step[i];
            const ds__troute *route = ds__step_route(d, s);
            s->start = r->best[first + (i - w->first) % w->each] +
                       (int64_t)((i - w->first) / w->each) * r->turn;
            int64_t ns = route ? d->t->start_ns + ds__cost_ns((double)s->bytes, route->rate) +
                                     route->latency_ns
                               : ds__memory_ns(d, s);
            s->done = s->start + ns;
            s->key = (uint64_t)s->start;
        }
        first += w->each;
    }
}

/* Finds the best of some orders and numbers of pieces for the flows of the draft, and predicts it.
   `copies`: those of a piece; `work`: the steps that may be put on circles. Returns 0 if no result
   takes less than `enough`. */
static int ds__cycle_build(ds__draft *d, int64_t enough, size_t copies, size_t work) {
    ds__cycle r = { .copies = copies, .work_most = work, .enough = enough };
    int ok = 0;
    if (!ds__pieces_emit(d, 1, 0))
        return 0;
    size_t links = d->links;
    if (d->steps && ds__cost_followers_count(d, 0) && ds__cycle_init(&r, d)) {
        for (int order = 0; order < DS__CYCLE_ORDERS; order++)
            ds__cycle_try_counts(&r, order);
        if (r.pieces && ds__cycle_time(&r) < enough + enough / 8)
            ds__cycle_improve(&r);
        ok = r.pieces && ds__cycle_time(&r) < enough;
    }
    d->links = links;
    ok = ok && ds__cycle_emit(&r);
    if (ok)
        ds__cycle_times_set(&r);
    ok = ok && ds__schedule_sort(d) && ds__settle_plan(d) && ds__cost_predict(d);
    ds__cycle_deinit(&r);
    return ok;
}

#endif
