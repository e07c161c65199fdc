/* plan/emit.h - steps of a piece.

   Turns one piece of a flow into steps: sums and copies up a tree (ds__emit_up), copies down a
   tree (ds__emit_down, ds__emit_parts). ds__emit_copy makes one copy, or two through the host
   if the devices do not reach each other. ds__block and ds__slice cut bytes into blocks and
   slices. ds__emit in plan/grid.h calls this room for all pieces.

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

static size_t ds__block(const ds_plan_desc *w, size_t i, size_t of) {
    size_t item = w->item ? w->item : 1;
    size_t n = w->bytes / item;
    return (n / of * i + n % of * i / of) * item;
}

/* Slice j of so many of a part that begins and ends there. */
static size_t ds__slice(const ds_plan_desc *w, size_t bytes, size_t j, size_t of) {
    size_t unit = w->item && 256 % w->item ? w->item : 256;
    size_t n = bytes / unit;
    return j == of ? bytes : (n / of * j + n % of * j / of) * unit;
}

static uint32_t ds__dstep_add(ds__draft *d, int rank, int source, ds_plan_location to,
                              const ds_plan_location *from, uint32_t count, size_t bytes,
                              uint64_t key) {
    uint32_t first = (uint32_t)d->spots;
    for (uint32_t i = 0; i < count; i++) {
        ds_plan_location *s = DS__ADD(d, spot);
        if (!s)
            return DS__NONE;
        *s = from[i];
    }
    ds__dstep *s = d->steps < (d->p > DS__PLAN_LARGE ? DS__PLAN_LARGE_STEPS : DS__PLAN_STEPS)
                       ? DS__ADD(d, step)
                       : NULL;
    if (!s) {
        d->failed = 1;
        return DS__NONE;
    }
    *s = (ds__dstep){ key, to, bytes, first, count, DS__NONE, 0, 0, rank, source, 0, 0, 0, 0 };
    return (uint32_t)d->steps - 1;
}

/* A part of the scratch memory of a rank, which the pieces of a flow share; *place: its number
   plus 1, or 0. */
static ds_plan_location ds__ring_spot(ds__draft *d, int *place, int rank, size_t slot, size_t slots,
                                      size_t q) {
    if (!*place) {
        ds__ring *r = DS__ADD(d, ring);
        if (!r)
            return (ds_plan_location){ 0, 0, 0 };
        *r = (ds__ring){ d->scratch[rank], (slot + 255) & ~(size_t)255, (uint32_t)d->heads };
        d->scratch[rank] += r->slot * slots;
        for (size_t i = 0; i < slots; i++) {
            uint32_t *head = DS__ADD(d, head);
            if (head)
                *head = DS__NONE;
        }
        *place = (int)d->rings;
    }
    const ds__ring *r = &d->ring[*place - 1];
    return (ds_plan_location){ rank, DS_PLAN_SCRATCH, r->offset + q % slots * r->slot };
}

/* A step writes a slot: after those that read what it held. */
static void ds__ring_write(ds__draft *d, int place, size_t slots, size_t q, uint32_t step) {
    if (!place || d->failed)
        return;
    uint32_t *head = &d->head[d->ring[place - 1].head + q % slots];
    for (uint32_t k = *head; k != DS__NONE; k = d->link[k].next)
        ds__after(d, step, d->link[k].step);
    *head = DS__NONE;
}

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

static uint64_t ds__key(const ds__draft *d, const ds__piece *c, int depth, int from, int to,
                        int by) {
    /* what leaves the group first, since it takes the longest; then around the members */
    if (d->p > DS__PLAN_LARGE && from < d->p && to < d->p) {
        int away = d->t->island[to] - d->t->island[from];
        int round =
            by == to ? d->t->seat[to] - d->t->seat[from] : d->t->seat[from] - d->t->seat[to];
        int p = d->p;
        uint64_t turn = (uint64_t)((away ? 0 : p) + (round < 0 ? round + d->largest : round) +
                                   (away < 0 ? -away : away));
        return (c->key + ((uint64_t)(depth / 2 * d->wave) << 48) + ((uint64_t)depth << 32)) |
               (turn < 4095 ? turn : 4095) << 20;
    }
    /* no two from the same one at the same time */
    return (c->key + ((uint64_t)(depth / 2 * d->wave) << 48) + ((uint64_t)depth << 32)) |
           (uint64_t)(((to - from) % d->p + d->p) % d->p) << 20;
}

/* One copy from a rank to another; through the host where they do not reach each other. push:
   the source makes it, since the destination gets many. */
static uint32_t ds__emit_copy(ds__draft *d, const ds__piece *c, const ds__held *from,
                              ds_plan_location to, int ring, int *stage, int push, int depth) {
    ds__held h = *from;
    uint32_t step = DS__NONE;
    int host = d->p;
    int staged =
        h.at.rank != host && to.rank != host && !ds__route_of(d->t, h.at.rank, to.rank)->direct;
    for (int leg = !staged; leg < 2; leg++) {
        ds_plan_location dst = leg ? to : ds__ring_spot(d, stage, host, c->slot, c->slots, c->q);
        const ds__troute *r = ds__route_of(d->t, h.at.rank, dst.rank);
        int a = h.at.rank;
        int b = dst.rank;
        int by = a == host ? b : b == host || r->push || push ? a : b;
        int into = leg ? ring : *stage;
        step = ds__dstep_add(d, by, a, dst, &h.at, 1, c->bytes,
                             ds__key(d, c, 2 * depth + leg, a, b, by));
        if (step == DS__NONE)
            return step;
        ds__after(d, step, h.step);
        ds__ring_read(d, h.ring, c->slots, c->q, step);
        ds__ring_write(d, into, c->slots, c->q, step);
        h = (ds__held){ dst, step, into };
    }
    return step;
}

static int ds__depth(const int *tree, int v) {
    int n = 0;
    for (; tree[v] >= 0; v = tree[v])
        n++;
    return n;
}

/* Nodes of a tree from the root down; gives how many. */
static int ds__by_depth(const int *tree, int n, int *order) {
    int count = 0;
    int depth[DS__TOPOLOGY_MAX + 1];
    for (int v = 0; v < n; v++) {
        if (tree[v] == DS__APART)
            continue;
        depth[v] = ds__depth(tree, v);
        int at = count++;
        for (; at > 0 && depth[order[at - 1]] > depth[v]; at--)
            order[at] = order[at - 1];
        order[at] = v;
    }
    return count;
}

/* Up: each node sums its own input and what its children sent, in the order of the ranks; the
   host only passes on. */
static ds__held ds__emit_up(ds__draft *d, const ds__piece *c, const int *tree, const int *order,
                            int count) {
    int n = d->p + 1;
    int height = ds__depth(tree, order[count - 1]);
    ds__held *sent = ds__alloc((size_t)n * sizeof *sent);
    ds__held *in = ds__alloc((size_t)n * sizeof *in);
    ds__held result = { { 0, 0, 0 }, DS__NONE, 0 };
    ds_plan_location *spot = ds__alloc((size_t)n * sizeof *spot);
    /* the lowest rank in each node's part of the tree */
    int *low = ds__alloc(2 * (size_t)n * sizeof *low);
    int *lowest = low ? low + n : NULL;
    if (!sent || !in || !spot || !low)
        d->failed = 1;
    for (int i = count - 1; i >= 0 && !d->failed; i--) {
        int v = order[i];
        int k = 0;
        int depth = height - ds__depth(tree, v);
        if (v < d->p) {
            in[k] = (ds__held){ { v, DS_PLAN_INPUT, c->f->in + c->offset }, DS__NONE, 0 };
            low[k++] = v;
        }
        for (int j = i + 1; j < count; j++) {
            if (tree[order[j]] != v)
                continue;
            int l = lowest[order[j]];
            int at = k++;
            for (; at > 0 && low[at - 1] > l; at--) {
                low[at] = low[at - 1];
                in[at] = in[at - 1];
            }
            low[at] = l;
            in[at] = sent[order[j]];
        }
        result = in[0];
        lowest[v] = low[0];
        if (k > 1) {
            int wanted = tree[v] < 0 && c->f->parts < 2 && (c->f->dest < 0 || c->f->dest == v);
            int ring = 0;
            result.at =
                wanted ? (ds_plan_location){ v, DS_PLAN_OUTPUT, c->f->out + c->offset }
                       : ds__ring_spot(d, &c->place[DS__PLACES * v], v, c->slot, c->slots, c->q);
            if (!wanted)
                ring = c->place[DS__PLACES * v];
            for (int j = 0; j < k; j++)
                spot[j] = in[j].at;
            result.step = ds__dstep_add(d, v, -1, result.at, spot, (uint32_t)k, c->bytes,
                                        ds__key(d, c, 2 * depth, v, v, v));
            for (int j = 0; j < k && !d->failed; j++) {
                ds__after(d, result.step, in[j].step);
                ds__ring_read(d, in[j].ring, c->slots, c->q, result.step);
            }
            ds__ring_write(d, ring, c->slots, c->q, result.step);
            result.ring = ring;
        }
        if (tree[v] < 0 || d->failed)
            break;
        ds_plan_location to =
            ds__ring_spot(d, &c->place[DS__PLACES * v + 1], tree[v], c->slot, c->slots, c->q);
        int ring = c->place[DS__PLACES * v + 1];
        sent[v].step =
            ds__emit_copy(d, c, &result, to, ring, &c->place[DS__PLACES * v + 2], !d->pull, depth);
        sent[v].at = to;
        sent[v].ring = ring;
    }
    ds__release(sent);
    ds__release(in);
    ds__release(spot);
    ds__release(low);
    return result;
}

/* What goes down is pushed to a root that gets it from all. */
static int ds__gives(const ds__draft *d) {
    return d->want->what == DS_GATHER || (d->want->what == DS_REDUCE && d->p > DS__PLAN_LARGE);
}

/* Down: from the owner to everyone in the tree; outputs are passed on from where they are. */
static void ds__emit_down(ds__draft *d, const ds__piece *c, const int *tree, const int *order,
                          int count, ds__held first, int depth0) {
    ds__held *held = ds__alloc(((size_t)d->p + 1) * sizeof *held);
    if (!held) {
        d->failed = 1;
        return;
    }
    int owner = order[0];
    int copied = d->want->what == DS_BROADCAST || first.at.buffer == DS_PLAN_OUTPUT;
    held[owner] = first;
    if (!copied && (c->f->dest < 0 || c->f->dest == owner)) {
        ds_plan_location to = { owner, DS_PLAN_OUTPUT, c->f->out + c->offset };
        uint32_t step = ds__dstep_add(d, owner, -1, to, &first.at, 1, c->bytes,
                                      ds__key(d, c, 2 * (depth0 + 1), owner, owner, owner));
        ds__after(d, step, first.step);
        ds__ring_read(d, first.ring, c->slots, c->q, step);
    }
    for (int i = 1; i < count && !d->failed; i++) {
        int v = order[i];
        int wanted = v < d->p && (c->f->dest < 0 || c->f->dest == v);
        ds_plan_location to =
            wanted ? (ds_plan_location){ v, DS_PLAN_OUTPUT, c->f->out + c->offset }
                   : ds__ring_spot(d, &c->place[DS__PLACES * v + 3], v, c->slot, c->slots, c->q);
        int ring = wanted ? 0 : c->place[DS__PLACES * v + 3];
        held[v].step = ds__emit_copy(d, c, &held[tree[v]], to, ring, &c->place[DS__PLACES * v + 4],
                                     ds__gives(d), depth0 + ds__depth(tree, v));
        held[v].at = to;
        held[v].ring = ring;
    }
    ds__release(held);
}

/* A piece of the blocks of several ranks: to each what is its. */
static void ds__emit_parts(ds__draft *d, const ds__piece *c, int *order, ds__held held,
                           int depth0) {
    for (int i = 0; i < c->f->parts && !d->failed; i++) {
        const int *tree = d->tree + c->f->down + (ptrdiff_t)i * (d->p + 1);
        size_t own = ds__block(d->want, (size_t)(c->f->dest + i), (size_t)d->p);
        size_t end = ds__block(d->want, (size_t)(c->f->dest + i + 1), (size_t)d->p);
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
        ds__emit_down(d, &part, tree, order, ds__by_depth(tree, d->p + 1, order), h, depth0);
    }
}

#endif
