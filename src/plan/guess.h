/* plan/guess.h - estimates for many ranks.

   Estimates the time of an algorithm for several numbers of pieces, without ordering its steps
   (ds__guess_add). ds__search_large sorts these estimates and predicts the best ones with
   ds__search_this. Only topologies of more than DS__PLAN_LARGE ranks use this room.

   Invariants: an estimate only selects candidates; predicted times decide. Each algorithm adds
   at most three estimates. If the list of estimates is full, further ones are dropped. Levels
   from DS__GUESS_LEVELS on count as the last level.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_GUESS_H
#define DS__PLAN_GUESS_H

#include "../topology/types.h"
#include "types.h"
#include "cost_model.h"
#include "schedule.h"
#include "settle.h"
#include "emit.h"
#include "pieces.h"
#include "tree.h"
#include "flows.h"
#include "search.h"

#define DS__GUESS_LEVELS 16

typedef struct ds__guess {
    ds__algo algo;
    size_t pieces;
    size_t copies;
    int64_t ns;
} ds__guess;

typedef struct ds__guesses {
    ds__guess guess[96];
    int count;
} ds__guesses;

/* Loads of one piece of each flow. */
typedef struct ds__loads {
    double *wire; /* ns of each wire, by level */
    double *sum;  /* ns of each rank's sums, by level */
    double *hold; /* ns of each rank's engines */
    char *inner;  /* of each node: 1 if it has children in the tree that is added */
    size_t *made; /* copies of each rank's engines */
    size_t copies;
    int64_t latency[DS__GUESS_LEVELS];
} ds__loads;

/* Returns 0 if memory is exhausted. */
static int ds__loads_init(ds__loads *o, const ds__draft *d) {
    size_t p = (size_t)d->p;
    size_t wires = (size_t)d->t->wires;
    memset(o, 0, sizeof *o);
    o->wire = ds__host_alloc(((wires + p) * DS__GUESS_LEVELS + p) * sizeof *o->wire);
    o->inner = ds__host_alloc(p + 1);
    o->made = ds__host_alloc(p * sizeof *o->made);
    if (!o->wire || !o->inner || !o->made)
        return 0;
    o->sum = o->wire + wires * DS__GUESS_LEVELS;
    o->hold = o->sum + p * DS__GUESS_LEVELS;
    return 1;
}

static void ds__loads_deinit(ds__loads *o) {
    ds__host_free(o->wire);
    ds__host_free(o->inner);
    ds__host_free(o->made);
}

/* Returns the level that a level counts as. */
static inline int ds__loads_level(int level) {
    return level < DS__GUESS_LEVELS ? level : DS__GUESS_LEVELS - 1;
}

/* A copy of a piece. */
typedef struct ds__edge {
    int level;
    int from;
    int to;
    int push; /* 1: the source makes it */
    double bytes;
} ds__edge;

/* Adds one copy to the loads, or two through the host. */
static void ds__loads_edge(const ds__draft *d, ds__loads *o, const ds__edge *e) {
    const ds_topology *t = d->t;
    int64_t *latency = &o->latency[e->level];
    double bytes = e->bytes;
    int staged = ds__copy_staged(d, e->from, e->to);
    for (int leg = !staged; leg < 2; leg++) {
        int a = staged && leg ? d->p : e->from;
        int b = staged && !leg ? d->p : e->to;
        const ds__troute *r = ds__route_of(t, a, b);
        int by = ds__copy_maker(d, a, b, e->push);
        if (!r->hops)
            *o->wire = 1e30;
        for (size_t h = 0; h < r->hops; h++)
            o->wire[e->level * t->wires + r->wire[h]] += bytes / t->wire[r->wire[h]] * 1e9;
        o->hold[by] += bytes / (r->rate > 0 ? r->rate : 1) * 1e9;
        o->made[by]++;
        o->copies++;
        if (r->latency_ns + t->start_ns > *latency)
            *latency = r->latency_ns + t->start_ns;
    }
}

/* Adds the steps of a grid. */
static void ds__loads_grid(const ds__draft *d, ds__loads *o) {
    for (size_t i = 0; i < d->steps; i++) {
        const ds__dstep *s = &d->step[i];
        int level = ds__loads_level((int)(s->key >> 33 & 0x7fff));
        if (s->source < 0) {
            o->sum[level * d->p + s->rank] += (double)ds__memory_ns(d, s);
            continue;
        }
        ds__edge e = {
            .level = level,
            .from = s->source,
            .to = s->to.rank,
            .push = s->rank == s->source,
            .bytes = (double)s->bytes,
        };
        ds__loads_edge(d, o, &e);
    }
}

/* A tree of a flow. */
typedef struct ds__loads_side {
    const int *tree;
    int down;
    int height; /* of the tree up */
    double bytes;
} ds__loads_side;

/* Adds the copy between a node and its parent, and its part of the sum of the parent. */
static void ds__loads_node(const ds__draft *d, ds__loads *o, const ds__loads_side *side, int v,
                           int depth) {
    int u = side->tree[v];
    int below = side->height - depth;
    ds__edge e = {
        .level = ds__loads_level(below),
        .from = v,
        .to = u,
        .push = !d->pull,
        .bytes = side->bytes,
    };
    if (side->down) {
        e.level = ds__loads_level(side->height + depth - 1);
        e.from = u;
        e.to = v;
        e.push = ds__emit_gives(d);
    } else if (!o->inner[v]) {
        e.level = 0; /* an input is there from the beginning */
    }
    ds__loads_edge(d, o, &e);
    if (!side->down && u < d->p)
        o->sum[ds__loads_level(below) * d->p + u] += side->bytes / d->t->memory * 1e9;
}

/* Adds all copies of a tree. */
static void ds__loads_tree(const ds__draft *d, ds__loads *o, const ds__loads_side *side) {
    const int *tree = side->tree;
    int64_t *last = &o->latency[DS__GUESS_LEVELS - 1];
    int deepest = 0;
    memset(o->inner, 0, (size_t)d->p + 1);
    for (int v = 0; v <= d->p; v++)
        if (tree[v] >= 0)
            o->inner[tree[v]] = 1;

    for (int v = 0; v <= d->p; v++) {
        if (tree[v] < 0)
            continue;
        int depth = ds__emit_tree_depth(tree, v);
        if (depth > deepest)
            deepest = depth;
        ds__loads_node(d, o, side, v, depth);
    }
    if (deepest >= DS__GUESS_LEVELS)
        *last += (deepest - DS__GUESS_LEVELS) * *last / deepest;
}

/* Adds the trees of a flow, up and then down. */
static void ds__loads_flow(const ds__draft *d, ds__loads *o, const ds__flow *f) {
    ds__loads_side up = { NULL, 0, 0, (double)f->bytes };
    if (f->up >= 0) {
        up.tree = d->tree + f->up;
        for (int v = 0; v <= d->p; v++) {
            int depth = up.tree[v] < 0 ? 0 : ds__emit_tree_depth(up.tree, v);
            if (depth > up.height)
                up.height = depth;
        }
        ds__loads_tree(d, o, &up);
    }
    for (int part = 0; f->down >= 0 && part < f->parts; part++) {
        ds__loads_side down = { NULL, 1, up.height, (double)f->bytes / f->parts };
        down.tree = d->tree + f->down + part * (ptrdiff_t)(d->p + 1);
        ds__loads_tree(d, o, &down);
    }
}

/* Returns the most that one of `count` columns of a row of the loads has. */
static double ds__loads_most(const double *row, int count) {
    double most = 0;
    for (int i = 0; i < count; i++)
        if (row[i] > most)
            most = row[i];
    return most;
}

/* Returns the sum of column i over all levels. */
static double ds__loads_all(const double *rows, int count, int i) {
    double all = 0;
    for (int l = 0; l < DS__GUESS_LEVELS; l++)
        all += rows[l * count + i];
    return all;
}

/* Returns the nanoseconds that the flows are guessed to take in so many pieces. They are the time
   of the busiest wire, of the busiest rank's engines or its memory, of the first piece from step
   to step, and the latency of each. INT64_MAX: some copy has no route. */
static int64_t ds__guess_of(const ds__draft *d, const ds__loads *o, size_t pieces) {
    const ds_topology *t = d->t;
    double wires = 0;
    for (int i = 0; i < t->wires; i++) {
        double all = ds__loads_all(o->wire, t->wires, i);
        if (all > wires)
            wires = all;
    }

    double busy = wires;
    for (int i = 0; i < d->p; i++) {
        double all = ds__loads_all(o->sum, d->p, i);
        double engines =
            ((double)(o->made[i] * pieces) * (double)t->start_ns + o->hold[i]) / t->engines;
        if (engines > busy)
            busy = engines;
        if (all > busy)
            busy = all;
    }
    if (busy >= 1e17)
        return INT64_MAX;

    double first = 0;
    double sums = 0;
    int64_t latency = 0;
    for (int l = 0; l < DS__GUESS_LEVELS; l++) {
        first += ds__loads_most(o->wire + l * t->wires, t->wires);
        sums += ds__loads_most(o->sum + l * d->p, d->p);
        latency += o->latency[l];
    }
    double more = first > wires ? first - wires : 0;
    return (int64_t)(busy + (more + sums) / (double)pieces) + latency;
}

#define DS__GUESS_TRIES 16

static const size_t ds__guess_tries[DS__GUESS_TRIES] = { 1,  2,  3,  4,  6,  8,  10, 12,
                                                         16, 20, 24, 32, 48, 64, 96, 128 };

/* Returns 1 if a number of pieces makes too many steps, or pieces that are too small. */
static int ds__guess_too_many(const ds__draft *d, size_t copies, size_t k) {
    const ds_plan_desc *w = d->want;
    size_t most = DS__PLAN_LARGE_COPIES;
    if (w->what == DS_REDUCE || w->what == DS_ALL_REDUCE || w->what == DS_REDUCE_SCATTER)
        most = DS__PLAN_LARGE_COPIES / 6 * (d->largest < d->p ? 5 : 4);
    if (copies * k > most || (d->run && d->steps * k > DS__PLAN_LARGE_STEPS))
        return 1;
    return k > 1 && !w->pieces && w->bytes / ((size_t)d->ways * k) < 4096;
}

/* Finds the two numbers of pieces that are guessed to be the fastest. ns_of gets the guesses of
   all numbers that were tried. */
static void ds__guess_two(const ds__draft *d, const ds__loads *o, ds__guess *out, int64_t *ns_of) {
    const ds_plan_desc *w = d->want;
    for (size_t i = 0; i < DS__GUESS_TRIES; i++) {
        size_t k = w->pieces ? w->pieces : ds__guess_tries[i];
        int64_t ns = ds__guess_of(d, o, k);
        /* copies of different sizes wait for each other */
        if (d->run && k > 2)
            ns += ns / (w->what == DS_BROADCAST ? 8 : 12);
        if (ds__guess_too_many(d, o->copies, k))
            return;
        ns_of[i] = ns;
        if (ns < out[0].ns) {
            out[1] = out[0];
            out[0].ns = ns;
            out[0].pieces = k;
        } else if (ns < out[1].ns) {
            out[1].ns = ns;
            out[1].pieces = k;
        }
        if (w->pieces || (d->run && ds__grid_blocks(w)))
            return;
    }
}

/* Finds the fewest pieces that are guessed to be nearly as fast as the fastest. */
static void ds__guess_third(const ds__draft *d, ds__guess *out, const int64_t *ns_of) {
    if (d->want->pieces)
        return;
    for (size_t i = 0; i < DS__GUESS_TRIES && ds__guess_tries[i] < out[0].pieces; i++) {
        size_t k = ds__guess_tries[i];
        if (ns_of[i] > out[0].ns + out[0].ns / 16 || k == out[1].pieces)
            continue;
        out[2].pieces = k;
        out[2].ns = ns_of[i];
        return;
    }
}

/* Adds the guesses for the loads of an algorithm to the list. */
static void ds__guess_choose(const ds__draft *d, const ds__loads *o, ds__algo a, ds__guesses *all) {
    int what = (int)d->want->what;
    int64_t ns_of[DS__GUESS_TRIES] = { 0 };
    ds__guess out[3];
    for (int i = 0; i < 3; i++)
        out[i] = (ds__guess){ a, 0, o->copies, INT64_MAX };
    ds__guess_two(d, o, out, ns_of);
    if (what == DS_SCATTER || what == DS_GATHER)
        ds__guess_third(d, out, ns_of);
    for (int i = 0; i < 3; i++)
        if (out[i].pieces && all->count < (int)(sizeof all->guess / sizeof all->guess[0]))
            all->guess[all->count++] = out[i];
}

/* Adds the two numbers of pieces that are guessed to be the fastest. For a scatter or a gather, it
   may add a third: the fewest pieces that are guessed to be nearly as fast. Returns 0 if memory or
   the limit of steps is exhausted. */
static int ds__guess_add(ds__search *s, ds__guesses *all, ds__algo a) {
    ds__draft *d = &s->now;
    ds__loads o;
    if (!ds__flows_build(d, &a))
        return !d->failed;
    if (!ds__loads_init(&o, d)) {
        d->failed = 1;
        goto fail;
    }
    if (d->run && !ds__pieces_emit(d, 1, 0))
        goto fail;
    if (d->run)
        ds__loads_grid(d, &o);
    for (size_t i = 0; i < d->flows; i++)
        ds__loads_flow(d, &o, &d->flow[i]);
    ds__guess_choose(d, &o, a, all);
    ds__loads_deinit(&o);
    return 1;
fail:
    ds__loads_deinit(&o);
    return 0;
}

/* The fastest first; then those with fewer pieces, then with fewer copies. */
static int ds__guess_compare(const void *a, const void *b) {
    const ds__guess *x = a;
    const ds__guess *y = b;
    if (x->ns != y->ns)
        return x->ns < y->ns ? -1 : 1;
    if (x->pieces != y->pieces)
        return x->pieces < y->pieces ? -1 : 1;
    return (x->copies > y->copies) - (x->copies < y->copies);
}

/* Predicts one algorithm in so many pieces to the end. Returns 0 if memory or the limit of steps
   is exhausted. */
static int ds__search_this(ds__search *s, const ds__guess *g) {
    ds__draft *d = &s->now;
    int id = ds__algo_at(g->algo.name);
    if (!ds__flows_build(d, &g->algo) || !ds__pieces_emit(d, g->pieces, g->pieces > 1) ||
        !ds__schedule_arrange(d) || !ds__settle_plan(d) || !ds__cost_predict(d))
        return 0;
    s->work += g->copies * g->pieces;
    ds__search_best(s, id);
    if (!s->best.name || d->end < s->best.end)
        ds__search_keep(s);
    return 1;
}

#endif
