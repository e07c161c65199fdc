/* plan/emit.h - steps of a piece.

   Turns one piece of a flow into steps: sums and copies up a tree (ds__emit_up), copies down a
   tree (ds__emit_down, ds__emit_parts). ds__emit_copy makes one copy, or two through the host
   if the devices do not reach each other. ds__emit_block_of and ds__emit_slice_of cut bytes into
   blocks and slices. ds__pieces_emit in plan/pieces.h calls this room for all pieces.

   Invariants: a step waits only for steps that were added before. A step that writes a slot of
   a ring waits for all readers of its former content. The inputs of a sum stand in the order of
   their lowest ranks. A key orders the steps by piece and wave, then depth, then turn of the
   ranks.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_EMIT_H
#define DS__PLAN_EMIT_H

#include "../topology/types.h"
#include "types.h"
#include "schedule.h"

/* Bytes of a part: from begin up to, but without, end. */
typedef struct ds__extent {
    size_t begin;
    size_t end;
} ds__extent;

/* Returns where block i of `of` blocks begins. */
static size_t ds__emit_block_of(const ds_plan_desc *w, size_t i, size_t of) {
    size_t item = w->item ? w->item : 1;
    size_t n = w->bytes / item;
    return (n / of * i + n % of * i / of) * item;
}

/* Returns where slice j of `of` slices begins in a part of so many bytes. */
static size_t ds__emit_slice_of(const ds_plan_desc *w, size_t bytes, size_t j, size_t of) {
    size_t unit = w->item && 256 % w->item ? w->item : 256;
    size_t n = bytes / unit;
    return j == of ? bytes : (n / of * j + n % of * j / of) * unit;
}

static ds__extent ds__slice_span(const ds_plan_desc *w, size_t bytes, size_t j, size_t of) {
    return (ds__extent){ ds__emit_slice_of(w, bytes, j, of),
                         ds__emit_slice_of(w, bytes, j + 1, of) };
}

/* Adds a step with the key, destination, bytes, rank and source of `step`, which reads `count`
   places. Returns its number, or DS__NONE if memory or the limit of steps is exhausted. */
static uint32_t ds__dstep_add(ds__draft *d, ds__dstep step, const ds_plan_location *from,
                              uint32_t count) {
    size_t most = d->p > DS__PLAN_LARGE ? DS__PLAN_LARGE_STEPS : DS__PLAN_STEPS;
    step.from = (uint32_t)d->locations;
    step.from_count = count;
    step.after = DS__NONE;

    for (uint32_t i = 0; i < count; i++) {
        ds_plan_location *location = DS__ADD(d, location);
        if (!location)
            return DS__NONE;
        *location = from[i];
    }

    ds__dstep *s = d->steps < most ? DS__ADD(d, step) : NULL;
    if (!s) {
        d->failed = 1;
        return DS__NONE;
    }
    *s = step;
    return (uint32_t)d->steps - 1;
}

/* Adds a ring of so many slots to the scratch memory of a rank. Returns 0 if memory is
   exhausted. */
static int ds__ring_add(ds__draft *d, int rank, size_t slot, size_t slots) {
    ds__ring *r = DS__ADD(d, ring);
    if (!r)
        return 0;
    *r = (ds__ring){ d->scratch[rank], (slot + 255) & ~(size_t)255, (uint32_t)d->heads };
    d->scratch[rank] += r->slot * slots;
    for (size_t i = 0; i < slots; i++) {
        uint32_t *head = DS__ADD(d, head);
        if (head)
            *head = DS__NONE;
    }
    return 1;
}

/* Returns the slot of piece q in a ring of the rank; the pieces of a flow share the ring. *place
   is the number of the ring plus 1. If *place is 0, the ring is added. */
static ds_plan_location ds__ring_location(ds__draft *d, int *place, int rank, size_t slot,
                                          size_t slots, size_t q) {
    if (!*place) {
        if (!ds__ring_add(d, rank, slot, slots))
            return (ds_plan_location){ 0, 0, 0 };
        *place = (int)d->rings;
    }
    const ds__ring *r = &d->ring[*place - 1];
    return (ds_plan_location){ rank, DS_PLAN_SCRATCH, r->offset + q % slots * r->slot };
}

/* Makes a step that writes a slot wait for all readers of its former content. */
static void ds__ring_write(ds__draft *d, int place, size_t slots, size_t q, uint32_t step) {
    if (!place || d->failed)
        return;
    uint32_t *head = &d->head[d->ring[place - 1].head + q % slots];
    for (uint32_t k = *head; k != DS__NONE; k = d->link[k].next)
        ds__schedule_step_after(d, step, d->link[k].step);
    *head = DS__NONE;
}

/* Adds a step to the readers of a slot. */
static void ds__ring_read(ds__draft *d, int place, size_t slots, size_t q, uint32_t step) {
    if (!place || d->failed)
        return;
    ds__dlink *one = DS__ADD(d, link);
    if (!one)
        return;
    uint32_t *head = &d->head[d->ring[place - 1].head + q % slots];
    *one = (ds__dlink){ step, *head };
    *head = (uint32_t)d->links - 1;
}

/* Where a rank's part of a piece is: its place, the step that puts it there, the ring it is in. */
typedef struct ds__held {
    ds_plan_location at;
    uint32_t step;
    int ring;
} ds__held;

typedef struct ds__piece {
    const ds__flow *f;
    size_t q;
    size_t slots;
    size_t slot;
    size_t offset;
    size_t bytes;
    uint64_t key;
    int *place;
} ds__piece;

/* Returns the turn of a copy among the steps of its depth. `by` is the rank that makes it. */
static uint64_t ds__key_turn(const ds__draft *d, int from, int to, int by) {
    int p = d->p;
    /* no two from the same one at the same time */
    if (p <= DS__PLAN_LARGE || from >= p || to >= p)
        return (uint64_t)(((to - from) % p + p) % p);

    /* copies that leave the group first, since they take the longest; then around the members */
    int away = d->t->island[to] - d->t->island[from];
    int round = by == to ? d->t->seat[to] - d->t->seat[from] : d->t->seat[from] - d->t->seat[to];
    if (round < 0)
        round += d->largest;
    int turn = round + (away < 0 ? -away : away);
    if (!away)
        turn += p;
    return turn < 4095 ? (uint64_t)turn : 4095;
}

static uint64_t ds__emit_step_key(const ds__draft *d, const ds__piece *c, int depth, int from,
                                  int to, int by) {
    return (c->key + ((uint64_t)(depth / 2 * d->wave) << 48) + ((uint64_t)depth << 32)) |
           ds__key_turn(d, from, to, by) << 20;
}

/* Returns 1 if a copy goes through the host, since the two ranks do not reach each other. */
static inline int ds__copy_staged(const ds__draft *d, int from, int to) {
    return from != d->p && to != d->p && !ds__route_of(d->t, from, to)->direct;
}

/* Returns the rank whose engine makes a copy: a device, and the source if it pushes. */
static inline int ds__copy_maker(const ds__draft *d, int from, int to, int push) {
    if (from == d->p)
        return to;
    return to == d->p || ds__route_of(d->t, from, to)->push || push ? from : to;
}

/* A copy of a piece from a rank to another. */
typedef struct ds__copy {
    ds__held from;
    ds__held to; /* without a step */
    int *stage;  /* of the host: the ring of copies through it, plus 1 */
    int push;    /* 1: the source makes the copy, since the destination gets many */
    int depth;
} ds__copy;

/* Adds one copy, or two through the host if the ranks do not reach each other. Returns the last
   step, or DS__NONE. */
static uint32_t ds__emit_copy(ds__draft *d, const ds__piece *c, const ds__copy *copy) {
    ds__held h = copy->from;
    ds_plan_location to = copy->to.at;
    uint32_t step = DS__NONE;
    int host = d->p;

    for (int leg = !ds__copy_staged(d, h.at.rank, to.rank); leg < 2; leg++) {
        ds_plan_location dst =
            leg ? to : ds__ring_location(d, copy->stage, host, c->slot, c->slots, c->q);
        int a = h.at.rank;
        int b = dst.rank;
        int by = ds__copy_maker(d, a, b, copy->push);
        int into = leg ? copy->to.ring : *copy->stage;

        ds__dstep one = {
            .key = ds__emit_step_key(d, c, 2 * copy->depth + leg, a, b, by),
            .to = dst,
            .bytes = c->bytes,
            .rank = by,
            .source = a,
        };
        step = ds__dstep_add(d, one, &h.at, 1);
        if (step == DS__NONE)
            return step;

        ds__schedule_step_after(d, step, h.step);
        ds__ring_read(d, h.ring, c->slots, c->q, step);
        ds__ring_write(d, into, c->slots, c->q, step);
        h = (ds__held){ dst, step, into };
    }
    return step;
}

/* A sum of parts that lie in the memory of one rank; of one part, a copy. */
typedef struct ds__sum {
    const ds__held *in;
    int count;
    int depth;                  /* twice that of a copy, since a copy may have two legs */
    ds_plan_location *location; /* room for `count` places */
} ds__sum;

/* Adds a sum of the inputs, in their order, to the rank and ring of `to`. Returns `to` with the
   step. */
static ds__held ds__emit_sum(ds__draft *d, const ds__piece *c, const ds__sum *sum, ds__held to) {
    int rank = to.at.rank;
    for (int i = 0; i < sum->count; i++)
        sum->location[i] = sum->in[i].at;
    ds__dstep one = {
        .key = ds__emit_step_key(d, c, sum->depth, rank, rank, rank),
        .to = to.at,
        .bytes = c->bytes,
        .rank = rank,
        .source = -1,
    };
    to.step = ds__dstep_add(d, one, sum->location, (uint32_t)sum->count);
    for (int i = 0; i < sum->count && !d->failed; i++) {
        ds__schedule_step_after(d, to.step, sum->in[i].step);
        ds__ring_read(d, sum->in[i].ring, c->slots, c->q, to.step);
    }
    ds__ring_write(d, to.ring, c->slots, c->q, to.step);
    return to;
}

static int ds__emit_tree_depth(const int *tree, int v) {
    int n = 0;
    for (; tree[v] >= 0; v = tree[v])
        n++;
    return n;
}

/* Lists the nodes of a tree from the root down. Returns their number. */
static int ds__by_depth(const int *tree, int n, int *order) {
    int count = 0;
    int depth[DS__TOPOLOGY_MAX + 1];
    for (int v = 0; v < n; v++) {
        if (tree[v] == DS__APART)
            continue;
        depth[v] = ds__emit_tree_depth(tree, v);
        int at = count++;
        for (; at > 0 && depth[order[at - 1]] > depth[v]; at--)
            order[at] = order[at - 1];
        order[at] = v;
    }
    return count;
}

/* A tree, and its nodes from the root down. */
typedef struct ds__nodes {
    const int *tree;
    const int *order;
    int count;
} ds__nodes;

/* Returns the place of a node's output of the piece, or a slot of its ring `which` if the piece
   is not part of its output. */
static ds__held ds__held_place(ds__draft *d, const ds__piece *c, int v, int output, int which) {
    ds__held to = { { v, DS_PLAN_OUTPUT, c->f->out + c->offset }, DS__NONE, 0 };
    int *place = &c->place[DS__PLACES * v + which];
    if (output)
        return to;
    to.at = ds__ring_location(d, place, v, c->slot, c->slots, c->q);
    to.ring = *place;
    return to;
}

/* Parts of a piece on their way up a tree. */
typedef struct ds__rise {
    ds__held *sent;             /* by each node to its parent */
    ds__held *in;               /* inputs of a sum */
    ds_plan_location *location; /* places of these inputs */
    int *low;                   /* lowest ranks of these inputs */
    int *lowest;                /* of each node: the lowest rank in its part of the tree */
} ds__rise;

static int ds__rise_init(ds__rise *r, size_t n) {
    r->sent = ds__host_alloc(n * sizeof *r->sent);
    r->in = ds__host_alloc(n * sizeof *r->in);
    r->location = ds__host_alloc(n * sizeof *r->location);
    r->low = ds__host_alloc(2 * n * sizeof *r->low);
    r->lowest = r->low ? r->low + n : NULL;
    return r->sent && r->in && r->location && r->low;
}

static void ds__rise_deinit(ds__rise *r) {
    ds__host_free(r->sent);
    ds__host_free(r->in);
    ds__host_free(r->location);
    ds__host_free(r->low);
}

/* Collects the inputs of the i-th node: its own and those that its children sent, in the order
   of their lowest ranks. The host has no input. Returns their number. */
static int ds__rise_inputs(const ds__draft *d, const ds__piece *c, const ds__nodes *nodes, int i,
                           ds__rise *r) {
    const int *order = nodes->order;
    int v = order[i];
    int k = 0;
    if (v < d->p) {
        r->in[k] = (ds__held){ { v, DS_PLAN_INPUT, c->f->in + c->offset }, DS__NONE, 0 };
        r->low[k++] = v;
    }
    for (int j = i + 1; j < nodes->count; j++) {
        if (nodes->tree[order[j]] != v)
            continue;
        int l = r->lowest[order[j]];
        int at = k++;
        for (; at > 0 && r->low[at - 1] > l; at--) {
            r->low[at] = r->low[at - 1];
            r->in[at] = r->in[at - 1];
        }
        r->low[at] = l;
        r->in[at] = r->sent[order[j]];
    }
    return k;
}

/* Up: each node sums its own input and the parts of its children, in the order of the ranks; the
   host only passes on. Returns the root's part. */
static ds__held ds__emit_up(ds__draft *d, const ds__piece *c, const ds__nodes *nodes) {
    const int *tree = nodes->tree;
    const int *order = nodes->order;
    int height = ds__emit_tree_depth(tree, order[nodes->count - 1]);
    ds__held result = { { 0, 0, 0 }, DS__NONE, 0 };
    ds__rise r;
    if (!ds__rise_init(&r, (size_t)d->p + 1))
        d->failed = 1;

    for (int i = nodes->count - 1; i >= 0 && !d->failed; i--) {
        int v = order[i];
        int depth = height - ds__emit_tree_depth(tree, v);
        int k = ds__rise_inputs(d, c, nodes, i, &r);
        result = r.in[0];
        r.lowest[v] = r.low[0];
        if (k > 1) {
            int wanted = tree[v] < 0 && c->f->parts < 2 && (c->f->dest < 0 || c->f->dest == v);
            ds__sum sum = { r.in, k, 2 * depth, r.location };
            result = ds__emit_sum(d, c, &sum, ds__held_place(d, c, v, wanted, 0));
        }
        if (tree[v] < 0 || d->failed)
            break;

        int *place = &c->place[DS__PLACES * v];
        ds__held to = { { 0, 0, 0 }, DS__NONE, 0 };
        to.at = ds__ring_location(d, &place[1], tree[v], c->slot, c->slots, c->q);
        to.ring = place[1];
        ds__copy copy = { result, to, &place[2], !d->pull, depth };
        r.sent[v] = to;
        r.sent[v].step = ds__emit_copy(d, c, &copy);
    }
    ds__rise_deinit(&r);
    return result;
}

/* Returns 1 if copies down a tree are pushed, since the root gets them from all. */
static int ds__emit_gives(const ds__draft *d) {
    return d->want->what == DS_GATHER || (d->want->what == DS_REDUCE && d->p > DS__PLAN_LARGE);
}

/* Copies the owner's part to its output, if the output should have it and does not have it yet. */
static void ds__emit_own(ds__draft *d, const ds__piece *c, ds__held first, int owner, int depth0) {
    int copied = d->want->what == DS_BROADCAST || first.at.buffer == DS_PLAN_OUTPUT;
    if (copied || (c->f->dest >= 0 && c->f->dest != owner))
        return;
    ds__dstep one = {
        .key = ds__emit_step_key(d, c, 2 * (depth0 + 1), owner, owner, owner),
        .to = { owner, DS_PLAN_OUTPUT, c->f->out + c->offset },
        .bytes = c->bytes,
        .rank = owner,
        .source = -1,
    };
    uint32_t step = ds__dstep_add(d, one, &first.at, 1);
    ds__schedule_step_after(d, step, first.step);
    ds__ring_read(d, first.ring, c->slots, c->q, step);
}

/* Down: from the owner to all nodes of the tree. A node passes on its output, if it has one. */
static void ds__emit_down(ds__draft *d, const ds__piece *c, const ds__nodes *nodes, ds__held first,
                          int depth0) {
    const int *tree = nodes->tree;
    ds__held *held = ds__host_alloc(((size_t)d->p + 1) * sizeof *held);
    if (!held) {
        d->failed = 1;
        return;
    }
    held[nodes->order[0]] = first;
    ds__emit_own(d, c, first, nodes->order[0], depth0);

    for (int i = 1; i < nodes->count && !d->failed; i++) {
        int v = nodes->order[i];
        int wanted = v < d->p && (c->f->dest < 0 || c->f->dest == v);
        ds__held to = ds__held_place(d, c, v, wanted, 3);
        ds__copy copy = {
            .from = held[tree[v]],
            .to = to,
            .stage = &c->place[DS__PLACES * v + 4],
            .push = ds__emit_gives(d),
            .depth = depth0 + ds__emit_tree_depth(tree, v),
        };
        held[v] = to;
        held[v].step = ds__emit_copy(d, c, &copy);
    }
    ds__host_free(held);
}

/* A piece of the blocks of several ranks: copies to each rank its part. */
static void ds__emit_parts(ds__draft *d, const ds__piece *c, int *order, ds__held held,
                           int depth0) {
    for (int i = 0; i < c->f->parts && !d->failed; i++) {
        const int *tree = d->tree + c->f->down + (ptrdiff_t)i * (d->p + 1);
        size_t own = ds__emit_block_of(d->want, (size_t)(c->f->dest + i), (size_t)d->p);
        size_t end = ds__emit_block_of(d->want, (size_t)(c->f->dest + i + 1), (size_t)d->p);
        size_t begin = c->f->in + c->offset;
        size_t from = begin > own ? begin : own;
        size_t to = begin + c->bytes < end ? begin + c->bytes : end;
        ds__flow f = *c->f;
        ds__piece part = *c;
        ds__held h = held;
        if (from >= to)
            continue;

        f.out = 0;
        f.dest += i;
        part.f = &f;
        part.offset = from - own;
        part.bytes = to - from;
        h.at.offset += from - begin;
        ds__nodes nodes = { tree, order, ds__by_depth(tree, d->p + 1, order) };
        ds__emit_down(d, &part, &nodes, h, depth0);
    }
}

#endif
