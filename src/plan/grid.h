/* plan/grid.h - grids of many ranks.

   Emits the steps of a grid (ds__emit_grid), for many ranks in groups of one size without use
   of the host. The leads of a group stand in rows of `run`, and each lead has a slice of its
   own. Sums are made in three stages. A column is summed first, each lead for the slices of its
   row. Then a row is summed, each lead for its slice. Then the leads at the same place of all
   groups are summed. Data for all ranks takes the opposite way. The wires carry as much as if
   all others sent each lead its slice, with a fifth of the copies. Blocks of ranks are slices
   that are given. The slices of a row are then not adjacent over all groups, but in spans.

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
    ds__held *sum; /* of each rank and span; then the same after the next stage */
    /* of each rank and span: the steps that bring what is passed on, `most` at the most */
    uint32_t *got;
    ds__held *in; /* of a sum, whose inputs are not more than there are ranks */
    int count;    /* of these inputs */
    int rings;    /* of the rank that sums */
    ds_plan_location *location;
    size_t begin; /* of the piece */
    size_t bytes; /* of the piece */
} ds__grid;

/* Returns 1 if the slices are the blocks of the ranks. */
static int ds__grid_blocks(const ds_plan_desc *w) {
    return w->what == DS_ALL_GATHER || w->what == DS_REDUCE_SCATTER;
}

/* Returns 1 if the root leads nothing. */
static int ds__grid_rooted(const ds_plan_desc *w) {
    return w->what == DS_BROADCAST || w->what == DS_REDUCE;
}

/* Returns where a lead's slice begins, or the part of a group in it. */
static size_t ds__grid_at(const ds__grid *g, int span, int lead, int group) {
    const ds_plan_desc *w = g->d->want;
    if (ds__grid_blocks(w))
        return ds__emit_block_of(w, (size_t)(span * g->leads + lead), (size_t)g->d->p);
    return g->begin + ds__emit_slice_of(w, g->bytes, (size_t)(lead * g->groups + group),
                                        (size_t)(g->leads * g->groups));
}

/* Returns the bytes that leads of several groups exchange: in all_reduce the part of a group in
   the slice of the lead, else the slice. */
static ds__extent ds__grid_share(const ds__grid *g, int span, int lead, int group) {
    if (g->d->want->what == DS_ALL_REDUCE)
        return (ds__extent){ ds__grid_at(g, span, lead, group),
                             ds__grid_at(g, span, lead, group + 1) };
    return (ds__extent){ ds__grid_at(g, span, lead, 0), ds__grid_at(g, span, lead + 1, 0) };
}

static int ds__grid_rank(const ds__grid *g, int group, int seat) {
    return g->rank[group * g->size + seat];
}

static ds__held ds__grid_input(int rank, size_t at) {
    return (ds__held){ { rank, DS_PLAN_INPUT, at }, DS__NONE, 0 };
}

/* Returns a place in the rank's output, or in its ring `which` if that is not negative. */
static ds__held ds__grid_room(ds__grid *g, int rank, int which, size_t at, size_t bytes) {
    ds__held to = { { rank, DS_PLAN_OUTPUT, at }, DS__NONE, 0 };
    size_t item = g->d->want->item;
    size_t unit = item > 256 ? item : 256; /* pieces differ by a unit at either end */
    if (which < 0)
        return to;
    to.at = ds__ring_location(g->d, &g->place[rank * g->places + which], rank, bytes + 3 * unit,
                              g->c.slots, g->c.q);
    to.ring = g->place[rank * g->places + which];
    return to;
}

static ds__held ds__grid_copy(ds__grid *g, ds__held from, size_t skip, size_t bytes, ds__held to,
                              int push) {
    ds__copy copy = { from, to, NULL, push, g->depth };
    copy.from.at.offset += skip;
    g->c.bytes = bytes;
    to.step = ds__emit_copy(g->d, &g->c, &copy);
    return to;
}

/* Copies one more input of a sum to the next ring of the rank that sums. */
static void ds__grid_fetch(ds__grid *g, ds__held from, size_t skip, size_t bytes, int rank) {
    ds__held to = ds__grid_room(g, rank, g->rings++, 0, bytes);
    g->in[g->count++] = ds__grid_copy(g, from, skip, bytes, to, 0);
}

/* Sums the inputs that were fetched. */
static ds__held ds__grid_sum(ds__grid *g, size_t bytes, ds__held to) {
    ds__sum sum = { g->in, g->count, 2 * g->depth + 1, g->location };
    g->c.bytes = bytes;
    return ds__emit_sum(g->d, &g->c, &sum, to);
}

/* Records a step that brings a part of a span to the output of a rank. */
static void ds__grid_got(ds__grid *g, int rank, int span, uint32_t step) {
    int at = rank * g->spans + span;
    g->got[at * g->most + g->have[at]++] = step;
}

/* Copies from output to output, after the first so many steps that brought the data there. */
static uint32_t ds__grid_pass(ds__grid *g, int from, int to, int span, ds__extent part, int after) {
    size_t begin = part.begin;
    ds__held here = { { from, DS_PLAN_OUTPUT, begin }, DS__NONE, 0 };
    uint32_t step =
        ds__grid_copy(g, here, 0, part.end - begin, ds__grid_room(g, to, -1, begin, 0), 0).step;
    for (int i = 0; i < after && !g->d->failed; i++)
        ds__schedule_step_after(g->d, step, g->got[(from * g->spans + span) * g->most + i]);
    return step;
}

/* Sums the slices of a lead's row over its column. */
static void ds__grid_sum_column(ds__grid *g, int group, int l, int e) {
    int n = g->leads;
    int run = g->run;
    int row = l / run * run;
    int r = ds__grid_rank(g, group, l);
    size_t at = ds__grid_at(g, e, row, 0);
    size_t bytes = ds__grid_at(g, e, row + run, 0) - at;

    g->in[0] = ds__grid_input(r, at);
    g->count = 1;
    for (int k = 1; k < n / run; k++) {
        int other = ds__grid_rank(g, group, (l + k * run) % n);
        ds__grid_fetch(g, ds__grid_input(other, at), 0, bytes, r);
    }
    ds__held to = ds__grid_room(g, r, g->rings++, 0, bytes);
    g->sum[r * g->spans + e] = ds__grid_sum(g, bytes, to);
}

/* Sums a lead's slice over its row and those that lead nothing. The sum is kept apart from the
   sum of the column, which others still need. */
static void ds__grid_sum_row(ds__grid *g, int group, int l, int e) {
    int n = g->leads;
    int run = g->run;
    int row = l / run * run;
    int r = ds__grid_rank(g, group, l);
    int what = (int)g->d->want->what;
    size_t at = ds__grid_at(g, e, l, 0);
    size_t bytes = ds__grid_at(g, e, l + 1, 0) - at;
    size_t skip = at - ds__grid_at(g, e, row, 0);

    g->in[0] = g->sum[r * g->spans + e];
    g->in[0].at.offset += skip;
    g->count = 1;
    for (int k = 1; k < run; k++) {
        int other = ds__grid_rank(g, group, row + (l + k) % run);
        ds__grid_fetch(g, g->sum[other * g->spans + e], skip, bytes, r);
    }
    for (int k = n; k < g->size; k++)
        ds__grid_fetch(g, ds__grid_input(ds__grid_rank(g, group, k), at), 0, bytes, r);

    int over = g->groups == 1 && what != DS_REDUCE;
    ds__held to =
        ds__grid_room(g, r, over ? -1 : g->rings++, what == DS_REDUCE_SCATTER ? 0 : at, bytes);
    to = ds__grid_sum(g, bytes, to);
    g->sum[(g->d->p + r) * g->spans + e] = to;
    if (over && what == DS_ALL_REDUCE)
        ds__grid_got(g, r, e, to.step);
}

/* Sums a lead's slice over the leads at the same place of all groups. */
static void ds__grid_sum_groups(ds__grid *g, int group, int l) {
    ds__draft *d = g->d;
    int what = (int)d->want->what;
    int r = ds__grid_rank(g, group, l);
    int e = what == DS_REDUCE_SCATTER ? group : 0;
    ds__extent part = ds__grid_share(g, e, l, group);
    size_t bytes = part.end - part.begin;
    size_t skip = part.begin - ds__grid_at(g, e, l, 0);
    if (what == DS_REDUCE && group != d->t->island[d->want->root])
        return;

    g->in[0] = g->sum[r * g->spans + e];
    g->in[0].at.offset += skip;
    g->count = 1;
    for (int k = 1; k < g->groups; k++) {
        int other = ds__grid_rank(g, (group + k) % g->groups, l);
        ds__grid_fetch(g, g->sum[other * g->spans + e], skip, bytes, r);
    }

    int ring = what == DS_REDUCE ? g->rings : -1;
    size_t at = what == DS_ALL_REDUCE ? part.begin : 0;
    ds__held to = ds__grid_sum(g, bytes, ds__grid_room(g, r, ring, at, bytes));
    if (what == DS_ALL_REDUCE)
        ds__grid_got(g, r, e, to.step);
    else
        g->sum[(d->p + r) * g->spans + e] = to;
}

/* Copies the slices of the leads of the root's group to the root. */
static void ds__grid_reduce_root(ds__grid *g) {
    ds__draft *d = g->d;
    int root = d->want->root;
    for (int l = 0; l < g->leads && !d->failed; l++) {
        int r = ds__grid_rank(g, d->t->island[root], l);
        size_t at = ds__grid_at(g, 0, l, 0);
        size_t bytes = ds__grid_at(g, 0, l + 1, 0) - at;
        ds__held from = g->sum[g->groups > 1 ? d->p + r : r];
        ds__grid_copy(g, from, 0, bytes, ds__grid_room(g, root, -1, at, 0), 1);
    }
}

/* Sums of a piece: columns, rows, groups, then the root. */
static void ds__grid_up(ds__grid *g) {
    ds__draft *d = g->d;
    int n = g->leads;
    size_t sums = (size_t)(d->p * g->spans);
    int first = 0;
    for (int stage = 0; stage < 2; stage++, g->depth++) {
        for (int i = 0; i < g->groups * n; i++) {
            g->rings = first; /* each rank has rings of its own */
            for (int e = 0; e < g->spans && !d->failed; e++) {
                if (stage)
                    ds__grid_sum_row(g, i / n, i % n, e);
                else
                    ds__grid_sum_column(g, i / n, i % n, e);
            }
        }
        first = g->rings;
    }
    memcpy(g->sum, g->sum + sums, sums * sizeof *g->sum);

    for (int i = 0; g->groups > 1 && i < g->groups * n && !d->failed; i++) {
        g->rings = first;
        ds__grid_sum_groups(g, i / n, i % n);
    }
    g->depth++;
    if (d->want->what == DS_REDUCE)
        ds__grid_reduce_root(g);
    g->depth++;
}

/* Copies slices of the root's input to the leads of its group. */
static void ds__grid_broadcast_root(ds__grid *g) {
    ds__draft *d = g->d;
    int root = d->want->root;
    for (int l = 0; l < g->leads && !d->failed; l++) {
        int r = ds__grid_rank(g, d->t->island[root], l);
        size_t at = ds__grid_at(g, 0, l, 0);
        size_t bytes = ds__grid_at(g, 0, l + 1, 0) - at;
        ds__held to = ds__grid_room(g, r, -1, at, 0);
        to = ds__grid_copy(g, ds__grid_input(root, at), 0, bytes, to, 0);
        ds__grid_got(g, r, 0, to.step);
    }
}

/* Copies each rank's input to its own block of its output. */
static void ds__grid_own_blocks(ds__grid *g) {
    ds__draft *d = g->d;
    for (int r = 0; r < d->p && !d->failed; r++) {
        ds_plan_location from = { r, DS_PLAN_INPUT, 0 };
        size_t begin = ds__emit_block_of(d->want, (size_t)r, (size_t)d->p);
        size_t end = ds__emit_block_of(d->want, (size_t)r + 1, (size_t)d->p);
        ds__dstep one = {
            .key = ds__emit_step_key(d, &g->c, 2 * g->depth, r, r, r),
            .to = { r, DS_PLAN_OUTPUT, begin },
            .bytes = end - begin,
            .rank = r,
            .source = -1,
        };
        ds__grid_got(g, r, d->t->island[r], ds__dstep_add(d, one, &from, 1));
    }
}

/* Passes slices to a lead from the leads at the same place of the other groups. */
static void ds__grid_pass_groups(ds__grid *g, int group, int l) {
    ds__draft *d = g->d;
    int r = ds__grid_rank(g, group, l);
    int home = d->t->island[d->want->root];
    for (int k = 1; k < g->groups && !d->failed; k++) {
        int from = (group + k) % g->groups;
        int e = g->spans > 1 ? from : 0;
        ds__extent part = ds__grid_share(g, e, l, from);
        if (d->want->what == DS_BROADCAST && (from != home || group == home))
            continue;
        ds__grid_got(g, r, e, ds__grid_pass(g, ds__grid_rank(g, from, l), r, e, part, 1));
    }
}

/* Returns how many steps bring a lead's slice to the lead. */
static int ds__grid_slice_steps(const ds__grid *g) {
    return g->d->want->what == DS_ALL_REDUCE ? g->groups : 1;
}

/* Passes slices of a row to a lead of the row. */
static void ds__grid_pass_row(ds__grid *g, int group, int l, int e) {
    int r = ds__grid_rank(g, group, l);
    int row = l / g->run * g->run;
    for (int k = 1; k < g->run && !g->d->failed; k++) {
        int from = row + (l + k) % g->run;
        int other = ds__grid_rank(g, group, from);
        ds__extent part = { ds__grid_at(g, e, from, 0), ds__grid_at(g, e, from + 1, 0) };
        ds__grid_got(g, r, e, ds__grid_pass(g, other, r, e, part, ds__grid_slice_steps(g)));
    }
}

/* Passes rows to a rank: to a lead from the leads of its column, to another rank from one lead of
   each row. */
static void ds__grid_pass_column(ds__grid *g, int group, int l, int e) {
    int run = g->run;
    int n = g->leads;
    int r = ds__grid_rank(g, group, l);
    int after = ds__grid_slice_steps(g) + run - 1;
    for (int k = l < n; k < n / run && !g->d->failed; k++) {
        int from = l < n ? (l + k * run) % n : k * run + l % run;
        int first = from / run * run;
        int other = ds__grid_rank(g, group, from);
        ds__extent part = { ds__grid_at(g, e, first, 0), ds__grid_at(g, e, first + run, 0) };
        (void)ds__grid_pass(g, other, r, e, part, after);
    }
}

/* Passes spans to a rank from its group: slices of its row in stage 1, other rows in stage 2. */
static void ds__grid_pass_spans(ds__grid *g, int stage, int group, int l) {
    const ds_plan_desc *w = g->d->want;
    if (w->what == DS_BROADCAST && ds__grid_rank(g, group, l) == w->root)
        return;
    for (int e = 0; e < g->spans; e++) {
        if (stage == 2)
            ds__grid_pass_column(g, group, l, e);
        else if (l < g->leads)
            ds__grid_pass_row(g, group, l, e);
    }
}

/* Data for all ranks of a piece: to the leads, over the groups, rows and columns. */
static void ds__grid_down(ds__grid *g) {
    int what = (int)g->d->want->what;
    if (what == DS_BROADCAST)
        ds__grid_broadcast_root(g);
    if (what == DS_ALL_GATHER)
        ds__grid_own_blocks(g);
    g->depth += what == DS_BROADCAST;

    for (int stage = 0; stage < 3; stage++, g->depth++)
        for (int i = 0; i < g->groups * g->size; i++) {
            int group = i / g->size;
            int l = i % g->size;
            if (stage)
                ds__grid_pass_spans(g, stage, group, l);
            else if (l < g->leads)
                ds__grid_pass_groups(g, group, l);
        }
}

/* Returns 1 if a grid can do the collective in the requested order of sums. */
static int ds__grid_fits_what(const ds_plan_desc *w) {
    if (w->what == DS_BROADCAST || w->what == DS_ALL_GATHER)
        return 1;
    if (w->what == DS_SCATTER || w->what == DS_GATHER || w->what == DS_ALL_TO_ALL)
        return 0;
    return w->order == DS_ORDER_ANY;
}

/* Returns 1 if no slice is empty and the steps of a piece are not too many. */
static int ds__grid_fits_bytes(const ds__draft *d, int run, int rows) {
    const ds_plan_desc *w = d->want;
    size_t p = (size_t)d->p;
    size_t steps = p * (size_t)(rows + run + d->largest - run * rows + 4);
    size_t unit = w->item > 256 ? w->item : 256;
    if (ds__grid_blocks(w)) {
        unit = w->item ? w->item : 1;
        steps *= (size_t)(d->p / d->largest);
    } else if (w->what == DS_ALL_REDUCE) {
        steps *= 2;
    }
    return w->bytes / unit >= p && steps <= DS__PLAN_LARGE_STEPS;
}

/* Returns 1 if rank i has a route to all others without the host. */
static int ds__grid_fits_routes(const ds__draft *d, int i) {
    for (int k = 0; k < d->p; k++) {
        const ds__troute *r = ds__route_of(d->t, i, k);
        if (i != k && (!r->direct || !r->hops))
            return 0;
    }
    return 1;
}

/* Returns 1 if there is such a grid: groups of one size, all joined without the host. */
static int ds__grid_fits(ds__draft *d, int run, int rows) {
    const ds_plan_desc *w = d->want;
    int p = d->p;
    int n = run * rows;
    int blocks = ds__grid_blocks(w);
    if (run < 2 || rows < 2 || p % d->largest || n > d->largest - ds__grid_rooted(w) ||
        (blocks && n != d->largest))
        return 0;
    if (!ds__grid_fits_what(w) || !ds__grid_fits_bytes(d, run, rows))
        return 0;

    int full = 0; /* ranks of full groups */
    for (int i = 0; i < p; i++) {
        if (d->t->seat[i] == d->largest - 1)
            full += d->largest;
        if (blocks && d->t->island[i] != i / d->largest)
            return 0;
        if (!ds__grid_fits_routes(d, i))
            return 0;
    }
    return full == p;
}

/* Allocates the arrays of a grid and lists its leads. Returns 0 if memory is exhausted. */
static int ds__grid_init(ds__grid *g, ds__draft *d) {
    const ds_plan_desc *w = d->want;
    size_t n = (size_t)d->p;
    memset(g, 0, sizeof *g);
    g->d = d;
    g->groups = d->p / d->largest;
    g->size = d->largest;
    g->leads = d->ways;
    g->run = d->run;
    g->spans = ds__grid_blocks(w) ? g->groups : 1;
    g->most = g->groups + g->run;
    g->places = (g->leads / g->run + g->run + g->size - g->leads + 2) * g->spans + g->groups + 1;
    size_t spans = (size_t)g->spans;

    g->rank = ds__host_alloc(n * sizeof *g->rank);
    g->place = ds__host_alloc(n * (size_t)g->places * sizeof *g->place);
    g->have = ds__host_alloc(n * spans * sizeof *g->have);
    g->sum = ds__host_alloc(2 * n * spans * sizeof *g->sum);
    g->got = ds__host_alloc(n * spans * (size_t)g->most * sizeof *g->got);
    g->in = ds__host_alloc(n * sizeof *g->in);
    g->location = ds__host_alloc(n * sizeof *g->location);
    if (!g->rank || !g->place || !g->have || !g->sum || !g->got || !g->in || !g->location)
        return 0;

    int turn = ds__grid_rooted(w) ? d->t->seat[w->root] + 1 : 0;
    for (int i = 0; i < d->p; i++) {
        int seat = (d->t->seat[i] - turn + g->size) % g->size;
        g->rank[d->t->island[i] * g->size + seat] = i;
    }
    return 1;
}

static void ds__grid_deinit(ds__grid *g) {
    ds__host_free(g->rank);
    ds__host_free(g->place);
    ds__host_free(g->have);
    ds__host_free(g->sum);
    ds__host_free(g->got);
    ds__host_free(g->in);
    ds__host_free(g->location);
}

/* Emits piece q. */
static void ds__grid_emit_piece(ds__grid *g, size_t q, size_t pieces) {
    ds__draft *d = g->d;
    const ds_plan_desc *w = d->want;
    int what = (int)w->what;
    g->c.q = q;
    g->c.key = (uint64_t)q << 48;
    g->begin = ds__emit_slice_of(w, w->bytes, q, pieces);
    g->bytes = ds__emit_slice_of(w, w->bytes, q + 1, pieces) - g->begin;
    g->depth = 0;
    memset(g->have, 0, (size_t)d->p * (size_t)g->spans * sizeof *g->have);
    if (what != DS_BROADCAST && what != DS_ALL_GATHER)
        ds__grid_up(g);
    if (what != DS_REDUCE && what != DS_REDUCE_SCATTER)
        ds__grid_down(g);
    if (g->bytes > d->piece_bytes)
        d->piece_bytes = g->bytes;
}

/* Emits all pieces of a grid. Returns 0 if memory or the limit of steps is exhausted. */
static int ds__emit_grid(ds__draft *d, size_t pieces) {
    const ds_plan_desc *w = d->want;
    size_t unit = w->item > 256 ? w->item : 256;
    ds__grid g;
    if (!ds__grid_init(&g, d))
        d->failed = 1;

    /* no slice is empty */
    while (pieces > 1 && (ds__grid_blocks(w) || w->bytes / pieces / unit <= (size_t)d->p))
        pieces--;
    /* more, and leads would begin what they cannot pass on yet */
    g.c.slots = pieces < 3 ? pieces : 3;
    for (size_t q = 0; q < pieces && !d->failed; q++)
        ds__grid_emit_piece(&g, q, pieces);
    d->pieces = pieces;
    ds__grid_deinit(&g);
    return !d->failed;
}

#endif
