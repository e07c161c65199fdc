/* plan/grid.h - grids of many ranks.

   Emits the steps of a grid (ds__emit_grid), for many ranks in groups of one size without use
   of the host. The leads of a group stand in rows of `run`, and each lead has a slice of its
   own. Sums are made in three stages. A column is summed first, each lead for the slices of its
   row. Then a row is summed, each lead for its slice. Then the leads at the same place of all
   groups are summed. Data for all ranks takes the opposite way. The wires carry as much as if
   all others sent each lead its slice, with a fifth of the copies. Blocks of ranks are slices
   that are given. The slices of a row are then not adjacent over all groups, but in spans.
   ds__emit emits all pieces of a draft, as flows or as a grid.

   Invariants: all groups have d->largest ranks. In broadcast and reduce the root leads nothing.
   Sums need DS_ORDER_ANY. A slice is never empty. A rank has at most `most` recorded steps per
   span and at most `places` rings.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_GRID_H
#define DS__PLAN_GRID_H

#include "../topology/types.h"
#include "types.h"
#include "schedule.h"
#include "emit.h"

typedef struct ds__grid {
    ds__draft *d;
    ds__piece c;
    int groups;
    int size;
    int leads;
    int run;
    int spans;
    int places;
    int most;
    int depth;
    int *rank;     /* of each group the leads, then the others */
    int *place;    /* rings of each rank */
    int *have;     /* of each rank and span: how many steps `got` has */
    ds__held *sum; /* of each rank and span */
    /* of each rank and span: the steps that bring what is passed on, `most` at the most */
    uint32_t *got;
    ds__held *in; /* of a sum, whose inputs are not more than there are ranks */
    ds_plan_location *spot;
    size_t begin; /* of the piece */
    size_t bytes; /* of the piece */
} ds__grid;

/* Where a lead's slice begins, and in it the part of a group. */
static size_t ds__grid_at(const ds__grid *g, int span, int lead, int group) {
    const ds_plan_desc *w = g->d->want;
    if (w->what == DS_ALL_GATHER || w->what == DS_REDUCE_SCATTER)
        return ds__block(w, (size_t)(span * g->leads + lead), (size_t)g->d->p);
    return g->begin + ds__slice(w, g->bytes, (size_t)(lead * g->groups + group),
                                (size_t)(g->leads * g->groups));
}

static int ds__grid_rank(const ds__grid *g, int group, int seat) {
    return g->rank[group * g->size + seat];
}

static ds__held ds__grid_input(int rank, size_t at) {
    return (ds__held){ { rank, DS_PLAN_INPUT, at }, DS__NONE, 0 };
}

/* To an output, or (which >= 0) to that ring of the rank. */
static ds__held ds__grid_room(ds__grid *g, int rank, int which, size_t at, size_t bytes) {
    ds__held to = { { rank, DS_PLAN_OUTPUT, at }, DS__NONE, 0 };
    size_t item = g->d->want->item;
    size_t unit = item > 256 ? item : 256; /* pieces differ by a unit at either end */
    if (which < 0)
        return to;
    to.at = ds__ring_spot(g->d, &g->place[rank * g->places + which], rank, bytes + 3 * unit,
                          g->c.slots, g->c.q);
    to.ring = g->place[rank * g->places + which];
    return to;
}

static ds__held ds__grid_copy(ds__grid *g, ds__held from, size_t skip, size_t bytes, ds__held to,
                              int push) {
    from.at.offset += skip;
    g->c.bytes = bytes;
    to.step = ds__emit_copy(g->d, &g->c, &from, to.at, to.ring, NULL, push, g->depth);
    return to;
}

static ds__held ds__grid_sum(ds__grid *g, const ds__held *in, int count, size_t bytes,
                             ds__held to) {
    ds__draft *d = g->d;
    for (int i = 0; i < count; i++)
        g->spot[i] = in[i].at;
    to.step =
        ds__dstep_add(d, to.at.rank, -1, to.at, g->spot, (uint32_t)count, bytes,
                      ds__key(d, &g->c, 2 * g->depth + 1, to.at.rank, to.at.rank, to.at.rank));
    for (int i = 0; i < count && !d->failed; i++) {
        ds__after(d, to.step, in[i].step);
        ds__ring_read(d, in[i].ring, g->c.slots, g->c.q, to.step);
    }
    ds__ring_write(d, to.ring, g->c.slots, g->c.q, to.step);
    return to;
}

static void ds__grid_got(ds__grid *g, int rank, int span, uint32_t step) {
    int at = rank * g->spans + span;
    g->got[at * g->most + g->have[at]++] = step;
}

/* From output to output, after the first so many steps that brought it there. */
static uint32_t ds__grid_pass(ds__grid *g, int from, int to, int span, size_t begin, size_t end,
                              int after) {
    ds__held here = { { from, DS_PLAN_OUTPUT, begin }, DS__NONE, 0 };
    uint32_t step =
        ds__grid_copy(g, here, 0, end - begin, ds__grid_room(g, to, -1, begin, 0), 0).step;
    for (int i = 0; i < after && !g->d->failed; i++)
        ds__after(g->d, step, g->got[(from * g->spans + span) * g->most + i]);
    return step;
}

static void ds__grid_up(ds__grid *g) {
    ds__draft *d = g->d;
    int what = (int)d->want->what;
    int n = g->leads;
    int run = g->run;
    int rows = n / run;
    int root = d->want->root;
    int rings = 0;
    ds__held *in = g->in;
    for (int stage = 0; stage < 2; stage++, g->depth++) {
        int first = rings;
        for (int i = 0; i < g->groups * n; i++) {
            int group = i / n;
            int l = i % n;
            int r = ds__grid_rank(g, group, l);
            int count = 1;
            rings = first;
            for (int e = 0; e < g->spans && !d->failed; e++, count = 1) {
                int row = l / run * run;
                size_t at = ds__grid_at(g, e, stage ? l : row, 0);
                size_t bytes = ds__grid_at(g, e, stage ? l + 1 : row + run, 0) - at;
                size_t skip = at - ds__grid_at(g, e, row, 0);
                in[0] = stage ? g->sum[r * g->spans + e] : ds__grid_input(r, at);
                if (stage)
                    in[0].at.offset += skip;
                for (int k = 1; k < (stage ? run : rows); k++) {
                    int other =
                        ds__grid_rank(g, group, stage ? row + (l + k) % run : (l + k * run) % n);
                    ds__held from =
                        stage ? g->sum[other * g->spans + e] : ds__grid_input(other, at);
                    in[count++] = ds__grid_copy(g, from, stage ? skip : 0, bytes,
                                                ds__grid_room(g, r, rings++, 0, bytes), 0);
                }
                for (int k = n; stage && k < g->size; k++)
                    in[count++] =
                        ds__grid_copy(g, ds__grid_input(ds__grid_rank(g, group, k), at), 0, bytes,
                                      ds__grid_room(g, r, rings++, 0, bytes), 0);
                int over = stage && g->groups == 1 && what != DS_REDUCE;
                ds__held to = ds__grid_room(g, r, over ? -1 : rings++,
                                            what == DS_REDUCE_SCATTER ? 0 : at, bytes);
                ds__held *sum = &g->sum[r * g->spans + e];
                to = ds__grid_sum(g, in, count, bytes, to);
                sum[stage * d->p * g->spans] = to; /* others still need the former */
                if (over && what == DS_ALL_REDUCE)
                    ds__grid_got(g, r, e, to.step);
            }
        }
    }
    memcpy(g->sum, g->sum + d->p * g->spans, (size_t)(d->p * g->spans) * sizeof *g->sum);
    for (int i = 0; g->groups > 1 && i < g->groups * n && !d->failed; i++) {
        int group = i / n;
        int l = i % n;
        int r = ds__grid_rank(g, group, l);
        int e = what == DS_REDUCE_SCATTER ? group : 0;
        int count = 1;
        int ring = rings;
        int part = what == DS_ALL_REDUCE;
        size_t at = ds__grid_at(g, e, l, part ? group : 0);
        size_t end = part ? ds__grid_at(g, e, l, group + 1) : ds__grid_at(g, e, l + 1, 0);
        size_t bytes = end - at;
        size_t skip = at - ds__grid_at(g, e, l, 0);
        if (what == DS_REDUCE && group != d->t->island[root])
            continue;
        in[0] = g->sum[r * g->spans + e];
        in[0].at.offset += skip;
        for (int k = 1; k < g->groups; k++)
            in[count++] = ds__grid_copy(
                g, g->sum[ds__grid_rank(g, (group + k) % g->groups, l) * g->spans + e], skip, bytes,
                ds__grid_room(g, r, ring++, 0, bytes), 0);
        ds__held to =
            ds__grid_sum(g, in, count, bytes,
                         ds__grid_room(g, r, what == DS_REDUCE ? ring : -1, part ? at : 0, bytes));
        if (part)
            ds__grid_got(g, r, e, to.step);
        else
            g->sum[(d->p + r) * g->spans + e] = to;
    }
    g->depth++;
    for (int l = 0; what == DS_REDUCE && l < n && !d->failed; l++) {
        int r = ds__grid_rank(g, d->t->island[root], l);
        size_t at = ds__grid_at(g, 0, l, 0);
        ds__grid_copy(g, g->sum[g->groups > 1 ? d->p + r : r], 0, ds__grid_at(g, 0, l + 1, 0) - at,
                      ds__grid_room(g, root, -1, at, 0), 1);
    }
    g->depth++;
}

static void ds__grid_down(ds__grid *g) {
    ds__draft *d = g->d;
    int what = (int)d->want->what;
    int n = g->leads;
    int run = g->run;
    int rows = n / run;
    int root = d->want->root;
    int home = d->t->island[root];
    for (int l = 0; l < n && what == DS_BROADCAST && !d->failed; l++) {
        int r = ds__grid_rank(g, home, l);
        size_t at = ds__grid_at(g, 0, l, 0);
        ds__grid_got(g, r, 0,
                     ds__grid_copy(g, ds__grid_input(root, at), 0, ds__grid_at(g, 0, l + 1, 0) - at,
                                   ds__grid_room(g, r, -1, at, 0), 0)
                         .step);
    }
    for (int r = 0; r < d->p && what == DS_ALL_GATHER && !d->failed; r++) {
        ds_plan_location from = { r, DS_PLAN_INPUT, 0 };
        ds_plan_location to = { r, DS_PLAN_OUTPUT, ds__block(d->want, (size_t)r, (size_t)d->p) };
        size_t end = ds__block(d->want, (size_t)r + 1, (size_t)d->p);
        ds__grid_got(g, r, d->t->island[r],
                     ds__dstep_add(d, r, -1, to, &from, 1, end - to.offset,
                                   ds__key(d, &g->c, 2 * g->depth, r, r, r)));
    }
    g->depth += what == DS_BROADCAST;
    for (int stage = 0; stage < 3; stage++, g->depth++) {
        int own = what == DS_ALL_REDUCE ? g->groups : 1; /* steps of a lead's slice */
        for (int i = 0; i < g->groups * g->size; i++) {
            int group = i / g->size;
            int l = i % g->size;
            int r = ds__grid_rank(g, group, l);
            int row = l / run * run;
            for (int k = 1; stage == 0 && l < n && k < g->groups && !d->failed; k++) {
                int from = (group + k) % g->groups;
                int other = ds__grid_rank(g, from, l);
                int e = g->spans > 1 ? from : 0;
                int part = what == DS_ALL_REDUCE;
                size_t at = ds__grid_at(g, e, l, part ? from : 0);
                size_t end = part ? ds__grid_at(g, e, l, from + 1) : ds__grid_at(g, e, l + 1, 0);
                if (what == DS_BROADCAST && (from != home || group == home))
                    continue;
                ds__grid_got(g, r, e, ds__grid_pass(g, other, r, e, at, end, 1));
            }
            for (int e = 0; stage && e < g->spans; e++)
                for (int k = l < n; k < (l >= n       ? (stage - 1) * rows
                                         : stage == 1 ? run
                                                      : rows) &&
                                    !d->failed;
                     k++) {
                    /* who leads nothing gets the rows from one of each */
                    int from = l >= n       ? k * run + l % run
                               : stage == 1 ? row + (l + k) % run
                                            : (l + k * run) % n;
                    int first = from / run * run;
                    int other = ds__grid_rank(g, group, from);
                    if (r == root && what == DS_BROADCAST)
                        continue;
                    size_t at = ds__grid_at(g, e, stage == 1 ? from : first, 0);
                    size_t end = ds__grid_at(g, e, stage == 1 ? from + 1 : first + run, 0);
                    uint32_t step =
                        ds__grid_pass(g, other, r, e, at, end, stage == 1 ? own : own + run - 1);
                    if (stage == 1)
                        ds__grid_got(g, r, e, step);
                }
        }
    }
}

/* Whether there is such a grid: groups of one size, all joined without the host. The root leads
   nothing. */
static int ds__grid_fits(ds__draft *d, int run, int rows) {
    const ds_plan_desc *w = d->want;
    int what = (int)w->what;
    int p = d->p;
    int n = run * rows;
    int blocks = what == DS_ALL_GATHER || what == DS_REDUCE_SCATTER;
    if (run < 2 || rows < 2 || p % d->largest ||
        n > d->largest - (what == DS_BROADCAST || what == DS_REDUCE) || (blocks && n != d->largest))
        return 0;
    if (what == DS_SCATTER || what == DS_GATHER || what == DS_ALL_TO_ALL ||
        (w->order != DS_ORDER_ANY && what != DS_BROADCAST && what != DS_ALL_GATHER))
        return 0;
    if (w->bytes / (blocks ? w->item ? w->item : 1 : w->item > 256 ? w->item : 256) < (size_t)p)
        return 0;
    if ((size_t)p * (size_t)(rows + run + d->largest - n + 4) *
            (blocks                  ? (size_t)(p / d->largest)
             : what == DS_ALL_REDUCE ? 2
                                     : 1) >
        DS__PLAN_LARGE_STEPS)
        return 0;
    for (int i = 0; i < p; i++) {
        /* as many groups as are full */
        if (d->t->seat[i] == d->largest - 1)
            n -= d->largest;
        if (blocks && d->t->island[i] != i / d->largest)
            return 0;
        for (int k = 0; k < p; k++)
            if (i != k && (!ds__route_of(d->t, i, k)->direct || !ds__route_of(d->t, i, k)->hops))
                return 0;
    }
    return n + p == run * rows;
}

static int ds__emit_grid(ds__draft *d, size_t pieces) {
    const ds_plan_desc *w = d->want;
    int what = (int)w->what;
    int blocks = what == DS_ALL_GATHER || what == DS_REDUCE_SCATTER;
    int p = d->p;
    int N = d->largest;
    ds__grid g = { d,
                   { NULL, 0, 0, 0, 0, 0, 0, NULL },
                   p / N,
                   N,
                   d->ways,
                   d->run,
                   blocks ? p / N : 1,
                   0,
                   0,
                   0,
                   NULL,
                   NULL,
                   NULL,
                   NULL,
                   NULL,
                   NULL,
                   NULL,
                   0,
                   0 };
    size_t n = (size_t)p;
    size_t spans = (size_t)g.spans;
    size_t unit = w->item > 256 ? w->item : 256;
    /* no slice is empty */
    while (pieces > 1 && (blocks || w->bytes / pieces / unit <= n))
        pieces--;
    g.most = g.groups + g.run;
    g.places = (g.leads / g.run + g.run + N - g.leads + 2) * g.spans + g.groups + 1;
    g.rank = ds__alloc(n * sizeof *g.rank);
    g.place = ds__alloc(n * (size_t)g.places * sizeof *g.place);
    g.have = ds__alloc(n * spans * sizeof *g.have);
    g.sum = ds__alloc(2 * n * spans * sizeof *g.sum);
    g.got = ds__alloc(n * spans * (size_t)g.most * sizeof *g.got);
    g.in = ds__alloc(n * sizeof *g.in);
    g.spot = ds__alloc(n * sizeof *g.spot);
    if (!g.rank || !g.place || !g.have || !g.sum || !g.got || !g.in || !g.spot)
        d->failed = 1;
    int turn = what == DS_BROADCAST || what == DS_REDUCE ? d->t->seat[w->root] + 1 : 0;
    for (int i = 0; i < p && !d->failed; i++)
        g.rank[d->t->island[i] * N + (d->t->seat[i] - turn + N) % N] = i;
    /* more, and leads would begin what they cannot pass on yet */
    g.c.slots = pieces < 3 ? pieces : 3;
    for (size_t q = 0; q < pieces && !d->failed; q++) {
        g.c.q = q;
        g.c.key = (uint64_t)q << 48;
        g.begin = ds__slice(w, w->bytes, q, pieces);
        g.bytes = ds__slice(w, w->bytes, q + 1, pieces) - g.begin;
        g.depth = 0;
        memset(g.have, 0, n * spans * sizeof *g.have);
        if (what != DS_BROADCAST && what != DS_ALL_GATHER)
            ds__grid_up(&g);
        if (what != DS_REDUCE && what != DS_REDUCE_SCATTER)
            ds__grid_down(&g);
        if (g.bytes > d->piece_bytes)
            d->piece_bytes = g.bytes;
    }
    d->pieces = pieces;
    ds__release(g.rank);
    ds__release(g.place);
    ds__release(g.have);
    ds__release(g.sum);
    ds__release(g.got);
    ds__release(g.in);
    ds__release(g.spot);
    return !d->failed;
}

/* All pieces of all flows. */
static int ds__emit(ds__draft *d, size_t pieces, int wave) {
    d->wave = wave;
    size_t n = (size_t)d->p + 1;
    size_t item = d->want->item ? d->want->item : 1;
    int *up = ds__alloc(2 * n * sizeof *up);
    int *down = up ? up + n : NULL;
    ds__draft_clear(d);
    d->pieces = 1;
    d->piece_bytes = 0;
    memset(d->scratch, 0, n * sizeof *d->scratch);
    if (!up)
        d->failed = 1;
    if (d->run && !d->failed)
        ds__emit_grid(d, pieces);
    for (size_t i = 0; i < d->flows && !d->failed; i++) {
        ds__flow *f = &d->flow[i];
        size_t unit = item < 64 && 64 % item == 0 ? 64 : item;
        size_t units = f->bytes / unit;
        size_t k = units < pieces ? units ? units : 1 : pieces;
        int ups = f->up < 0 ? 0 : ds__by_depth(d->tree + f->up, d->p + 1, up);
        int downs = f->down < 0 ? 0 : ds__by_depth(d->tree + f->down, d->p + 1, down);
        int depth0 = ups ? ds__depth(d->tree + f->up, up[ups - 1]) : 0;
        ds__piece c = { f,
                        0,
                        k < d->slots ? k : d->slots,
                        units / k * unit + unit + f->bytes % unit,
                        0,
                        0,
                        0,
                        d->place };
        if (k == 1)
            c.slot = f->bytes;
        f->first = d->steps;
        f->each = 0;
        if (!f->bytes)
            continue;
        if (k > d->pieces)
            d->pieces = k;
        memset(d->place, 0, DS__PLACES * n * sizeof *d->place);
        for (c.q = 0; c.q < k && !d->failed; c.q++) {
            size_t end = c.q + 1 == k ? f->bytes
                                      : (units / k * (c.q + 1) + units % k * (c.q + 1) / k) * unit;
            c.bytes = end - c.offset;
            c.key = (uint64_t)c.q << 48;
            if (c.bytes > d->piece_bytes)
                d->piece_bytes = c.bytes;
            ds__held held = { { f->owner, DS_PLAN_INPUT, f->in + c.offset }, DS__NONE, 0 };
            if (ups)
                held = ds__emit_up(d, &c, d->tree + f->up, up, ups);
            if (f->parts > 1)
                ds__emit_parts(d, &c, down, held, depth0);
            else if (downs)
                ds__emit_down(d, &c, d->tree + f->down, down, downs, held, depth0);
            c.offset = end;
            if (!c.q)
                f->each = d->steps - f->first;
        }
    }
    ds__release(up);
    return !d->failed;
}

#endif
