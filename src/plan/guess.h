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

typedef struct ds__loads {
    double *wire; /* ns of each wire, by level */
    double *hold; /* ns of each rank's engines */
    double *sum;  /* ns of each rank's sums, by level */
    size_t *made; /* copies of each rank's engines */
    int64_t latency[DS__GUESS_LEVELS];
} ds__loads;

static void ds__loads_edge(const ds__draft *d, const ds__loads *o, int64_t *latency, int level,
                           int from, int to, double bytes, int push, size_t *copies) {
    const ds_topology *t = d->t;
    int staged = from != d->p && to != d->p && !ds__route_of(t, from, to)->direct;
    for (int leg = !staged; leg < 2; leg++) {
        int a = staged && leg ? d->p : from;
        int b = staged && !leg ? d->p : to;
        const ds__troute *r = ds__route_of(t, a, b);
        int by = a == d->p ? b : b == d->p || r->push || push ? a : b;
        if (!r->hops)
            *o->wire = 1e30;
        for (size_t h = 0; h < r->hops; h++)
            o->wire[level * t->wires + r->wire[h]] += bytes / t->wire[r->wire[h]] * 1e9;
        o->hold[by] += bytes / (r->rate > 0 ? r->rate : 1) * 1e9;
        o->made[by]++;
        ++*copies;
        if (r->latency_ns + t->start_ns > *latency)
            *latency = r->latency_ns + t->start_ns;
    }
}

/* Nanoseconds that a flow is guessed to take in so many pieces: what the busiest wire, the
   busiest rank's engines or its memory take, what the first piece takes from step to step, and
   the latency of each. */
static int64_t ds__guess_of(const ds__draft *d, const ds__loads *o, size_t pieces) {
    const ds_topology *t = d->t;
    double busy = 0;
    double first = 0;
    double sums = 0;
    double wires = 0;
    int64_t latency = 0;
    for (int i = 0; i < t->wires; i++) {
        double all = 0;
        for (int l = 0; l < DS__GUESS_LEVELS; l++)
            all += o->wire[l * t->wires + i];
        if (all > wires)
            wires = all;
    }
    busy = wires;
    for (int i = 0; i < d->p; i++) {
        double all = 0;
        double engines =
            ((double)(o->made[i] * pieces) * (double)t->start_ns + o->hold[i]) / t->engines;
        for (int l = 0; l < DS__GUESS_LEVELS; l++)
            all += o->sum[l * d->p + i];
        if (engines > busy)
            busy = engines;
        if (all > busy)
            busy = all;
    }
    for (int l = 0; l < DS__GUESS_LEVELS; l++) {
        double wire = 0;
        double sum = 0;
        for (int i = 0; i < t->wires; i++)
            if (o->wire[l * t->wires + i] > wire)
                wire = o->wire[l * t->wires + i];
        for (int i = 0; i < d->p; i++)
            if (o->sum[l * d->p + i] > sum)
                sum = o->sum[l * d->p + i];
        first += wire;
        sums += sum;
        latency += o->latency[l];
    }
    return busy < 1e17
               ? (int64_t)(busy + ((first > wires ? first - wires : 0) + sums) / (double)pieces) +
                     latency
               : INT64_MAX;
}

/* Adds the two numbers of pieces that are guessed to be the fastest. Of a scatter or a gather, it
   may add a third: the fewest pieces that are guessed to be nearly as fast. */
static int ds__guess_add(ds__search *s, ds__guesses *all, ds__algo a) {
    static const size_t tries[] = { 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128 };
    ds__draft *d = &s->now;
    int what = (int)d->want->what;
    size_t p = (size_t)d->p;
    size_t copies = 0;
    size_t wires = (size_t)d->t->wires;
    size_t most = DS__PLAN_LARGE_COPIES;
    if (what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER)
        most = DS__PLAN_LARGE_COPIES / 6 * (d->largest < d->p ? 5 : 4);
    if (!ds__flows(d, &a))
        return !d->failed;
    double *room = ds__alloc(((wires + p) * DS__GUESS_LEVELS + p) * sizeof *room);
    char *inner = ds__alloc(p + 1);
    ds__loads o = { room, NULL, NULL, ds__alloc(p * sizeof *o.made), { 0 } };
    if (!room || !inner || !o.made) {
        ds__release(room);
        ds__release(inner);
        ds__release(o.made);
        d->failed = 1;
        return 0;
    }
    o.sum = room + wires * DS__GUESS_LEVELS;
    o.hold = o.sum + p * DS__GUESS_LEVELS;
    if (d->run && !ds__emit(d, 1, 0)) {
        ds__release(room);
        ds__release(inner);
        ds__release(o.made);
        return 0;
    }
    for (size_t i = 0; d->run && i < d->steps; i++) {
        const ds__dstep *e = &d->step[i];
        int level = (int)(e->key >> 33 & 0x7fff) < DS__GUESS_LEVELS ? (int)(e->key >> 33 & 0x7fff)
                                                                    : DS__GUESS_LEVELS - 1;
        if (e->source < 0)
            o.sum[(size_t)level * p + (size_t)e->rank] += (double)ds__memory_ns(d, e);
        else
            ds__loads_edge(d, &o, &o.latency[level], level, e->source, e->to.rank, (double)e->bytes,
                           e->rank == e->source, &copies);
    }
    for (size_t i = 0; i < d->flows; i++) {
        const ds__flow *f = &d->flow[i];
        int height = 0;
        for (int side = 0; side < 2; side++)
            for (int part = 0; part < (side ? f->parts : 1); part++) {
                ptrdiff_t at = side ? f->down + part * (ptrdiff_t)(p + 1) : f->up;
                if ((side ? f->down : f->up) < 0)
                    continue;
                const int *tree = d->tree + at;
                double bytes = (double)f->bytes / (side ? f->parts : 1);
                int deepest = 0;
                memset(inner, 0, p + 1);
                for (int v = 0; v <= d->p; v++)
                    if (tree[v] >= 0)
                        inner[tree[v]] = 1;
                for (int v = 0; !side && v <= d->p; v++) {
                    int depth = tree[v] < 0 ? 0 : ds__depth(tree, v);
                    if (depth > height)
                        height = depth;
                }
                for (int v = 0; v <= d->p; v++) {
                    int u = tree[v];
                    int depth = u < 0 ? 0 : ds__depth(tree, v);
                    int level = side ? height + depth - 1 : height - depth;
                    if (depth > deepest)
                        deepest = depth;
                    if (u < 0)
                        continue;
                    level = level < DS__GUESS_LEVELS ? level : DS__GUESS_LEVELS - 1;
                    /* an input is there from the beginning */
                    if (!side && !inner[v])
                        level = 0;
                    ds__loads_edge(d, &o, &o.latency[level], level, side ? u : v, side ? v : u,
                                   bytes, side ? ds__gives(d) : !d->pull, &copies);
                    if (!side && u < d->p)
                        o.sum[(size_t)(height - depth < DS__GUESS_LEVELS ? height - depth
                                                                         : DS__GUESS_LEVELS - 1) *
                                  p +
                              (size_t)u] += bytes / d->t->memory * 1e9;
                }
                if (deepest >= DS__GUESS_LEVELS)
                    o.latency[DS__GUESS_LEVELS - 1] += (deepest - DS__GUESS_LEVELS) *
                                                       o.latency[DS__GUESS_LEVELS - 1] /
                                                       (deepest ? deepest : 1);
            }
    }
    ds__guess out[3] = { { a, 0, copies, INT64_MAX },
                         { a, 0, copies, INT64_MAX },
                         { a, 0, copies, INT64_MAX } };
    int64_t ns_of[sizeof tries / sizeof tries[0]] = { 0 };
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        size_t k = d->want->pieces ? d->want->pieces : tries[i];
        int64_t ns = ds__guess_of(d, &o, k);
        /* copies of different sizes wait for each other */
        if (d->run && k > 2)
            ns += ns / (what == DS_BROADCAST ? 8 : 12);
        if (copies * k > most || (d->run && d->steps * k > DS__PLAN_LARGE_STEPS) ||
            (k > 1 && !d->want->pieces && d->want->bytes / ((size_t)d->ways * k) < 4096))
            break;
        ns_of[i] = ns;
        if (ns < out[0].ns) {
            out[1] = out[0];
            out[0].ns = ns;
            out[0].pieces = k;
        } else if (ns < out[1].ns) {
            out[1].ns = ns;
            out[1].pieces = k;
        }
        if (d->want->pieces || (d->run && (what == DS_ALL_GATHER || what == DS_REDUCE_SCATTER)))
            break;
    }
    for (size_t i = 0; (what == DS_SCATTER || what == DS_GATHER) && !out[2].pieces &&
                       i < sizeof tries / sizeof tries[0] && tries[i] < out[0].pieces;
         i++) {
        if (d->want->pieces || ns_of[i] > out[0].ns + out[0].ns / 16 || tries[i] == out[1].pieces)
            continue;
        out[2].pieces = tries[i]; /* and the fewest that are guessed to be nearly as fast */
        out[2].ns = ns_of[i];
    }
    for (int i = 0; i < 3; i++)
        if (out[i].pieces && all->count < (int)(sizeof all->guess / sizeof all->guess[0]))
            all->guess[all->count++] = out[i];
    ds__release(room);
    ds__release(inner);
    ds__release(o.made);
    return 1;
}

static int ds__guess_compare(const void *a, const void *b) {
    const ds__guess *x = a;
    const ds__guess *y = b;
    return x->ns != y->ns           ? (x->ns < y->ns ? -1 : 1)
           : x->pieces != y->pieces ? (x->pieces < y->pieces ? -1 : 1)
           : x->copies < y->copies  ? -1
                                    : x->copies > y->copies;
}

/* One way in so many pieces, looked at to the end. */
static int ds__search_this(ds__search *s, const ds__guess *g) {
    ds__draft *d = &s->now;
    int id = ds__algo_at(g->algo.name);
    if (!ds__flows(d, &g->algo) || !ds__emit(d, g->pieces, g->pieces > 1) || !ds__arrange(d) ||
        !ds__lanes_in_turn(d) || !ds__predict(d))
        return 0;
    s->work += g->copies * g->pieces;
    if (!s->out->best[id].ns || d->end < s->out->best[id].ns) {
        s->out->best[id].ns = d->end;
        s->out->best[id].pieces = d->pieces;
        s->out->best[id].ways = d->ways;
    }
    if (!s->best.name || d->end < s->best.end)
        ds__search_keep(s);
    return 1;
}

#endif
