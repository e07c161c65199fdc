/* plan/pieces.h - steps of all pieces.

   Emits all pieces of a draft (ds__pieces_emit), as flows or as a grid. A flow is cut into pieces
   of whole units, which differ by at most one unit. Pieces pass a rank in a ring of slots.

   Invariants: a flow has at least one piece, and no more than it has units. `first` and `each`
   of a flow number its steps: piece q begins with step first + q * each. Trees must not be added
   while steps are emitted.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_PIECES_H
#define DS__PLAN_PIECES_H

#include "../topology/types.h"
#include "types.h"
#include "emit.h"
#include "grid.h"

/* Returns the nodes of a tree of the draft; none if `at` is negative. */
static ds__nodes ds__nodes_of(const ds__draft *d, ptrdiff_t at, int *order) {
    if (at < 0)
        return (ds__nodes){ NULL, order, 0 };
    const int *tree = d->tree + at;
    return (ds__nodes){ tree, order, ds__by_depth(tree, d->p + 1, order) };
}

/* Emits one piece of a flow: up a tree, then down a tree or to the ranks of its parts. */
static void ds__emit_piece(ds__draft *d, const ds__piece *c, const ds__nodes *ups,
                           const ds__nodes *downs, int *order) {
    const ds__flow *f = c->f;
    ds__held held = { { f->owner, DS_PLAN_INPUT, f->in + c->offset }, DS__NONE, 0 };
    int height = 0;
    if (ups->count) {
        height = ds__emit_tree_depth(ups->tree, ups->order[ups->count - 1]);
        held = ds__emit_up(d, c, ups);
    }
    if (f->parts > 1)
        ds__emit_parts(d, c, order, held, height);
    else if (downs->count)
        ds__emit_down(d, c, downs, held, height);
}

/* Emits all pieces of a flow. `up` and `down` have room for the nodes of a tree. */
static void ds__emit_flow(ds__draft *d, ds__flow *f, size_t pieces, int *up, int *down) {
    size_t item = d->want->item ? d->want->item : 1;
    size_t unit = item < 64 && 64 % item == 0 ? 64 : item;
    size_t units = f->bytes / unit;
    size_t k = units < pieces ? units : pieces;
    if (!k)
        k = 1;
    f->first = d->steps;
    f->each = 0;
    if (!f->bytes)
        return;

    ds__nodes ups = ds__nodes_of(d, f->up, up);
    ds__nodes downs = ds__nodes_of(d, f->down, down);
    ds__piece c = {
        .f = f,
        .slots = k < d->slots ? k : d->slots,
        .slot = k == 1 ? f->bytes : units / k * unit + unit + f->bytes % unit,
        .place = d->place,
    };
    if (k > d->pieces)
        d->pieces = k;
    memset(d->place, 0, DS__PLACES * ((size_t)d->p + 1) * sizeof *d->place);

    for (c.q = 0; c.q < k && !d->failed; c.q++) {
        size_t end = f->bytes;
        if (c.q + 1 < k)
            end = (units / k * (c.q + 1) + units % k * (c.q + 1) / k) * unit;
        c.bytes = end - c.offset;
        c.key = (uint64_t)c.q << 48;
        if (c.bytes > d->piece_bytes)
            d->piece_bytes = c.bytes;
        ds__emit_piece(d, &c, &ups, &downs, down);
        c.offset = end;
        if (!c.q)
            f->each = d->steps - f->first;
    }
}

/* Emits all pieces of all flows, or of a grid. Returns 0 if memory or the limit of steps is
   exhausted. */
static int ds__pieces_emit(ds__draft *d, size_t pieces, int wave) {
    size_t n = (size_t)d->p + 1;
    int *up = ds__host_alloc(2 * n * sizeof *up);
    int *down = up ? up + n : NULL;
    ds__draft_clear(d);
    d->wave = wave;
    d->pieces = 1;
    d->piece_bytes = 0;
    memset(d->scratch, 0, n * sizeof *d->scratch);
    if (!up)
        d->failed = 1;

    if (d->run && !d->failed)
        ds__emit_grid(d, pieces);
    for (size_t i = 0; i < d->flows && !d->failed; i++)
        ds__emit_flow(d, &d->flow[i], pieces, up, down);
    ds__host_free(up);
    return !d->failed;
}

#endif
