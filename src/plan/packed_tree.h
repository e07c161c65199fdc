/* plan/packed_tree.h - trees by the load of the wires.

   Makes trees and paths over any topology of at most DS__MESH ranks, one after the other
   (ds__pack_flows). Each takes the cheapest routes; a route costs more if its wires are already
   busy for longer. Then each tree is made again, with the load of all others known. Data may
   pass through ranks and host memory.

   Invariants: k.load is the time for which the trees of all wants use each wire. The trees of
   the wants are adjacent in d->tree, so the best state of all is one copy. The trees of the
   pass with the least load of the busiest wire are used. Sums need DS_ORDER_ANY, and the host
   never sums.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_PACKED_TREE_H
#define DS__PLAN_PACKED_TREE_H

#include "../topology/types.h"
#include "types.h"
#include "emit.h"
#include "tree.h"
#include "mesh.h"
#include "flow.h"

typedef struct ds__pack {
    ds__draft *d;
    double *load; /* seconds of each wire */
    double whole; /* seconds that a load may be */
    int n;
} ds__pack;

/* What a tree is wanted for. */
typedef struct ds__want {
    int root;
    int to; /* a rank, or -1: all */
    int up;
    double bytes;
    ptrdiff_t tree;
} ds__want;

static const ds__troute *ds__pack_route(const ds__pack *k, int u, int v, int up) {
    const ds__troute *r = up ? ds__route_of(k->d->t, v, u) : ds__route_of(k->d->t, u, v);
    return r->hops && (r->direct || u == k->d->p || v == k->d->p) ? r : NULL;
}

static double ds__pack_cost(const ds__pack *k, const ds__troute *r, double bytes) {
    double cost = 1e-4 + (double)r->latency_ns * 1e-9;
    for (size_t h = 0; h < r->hops; h++) {
        double more = bytes / k->d->t->wire[r->wire[h]] / k->whole;
        double x = k->load[r->wire[h]] / k->whole;
        double y = x + more;
        x *= x;
        x *= x;
        y *= y;
        y *= y;
        cost += y * y - x * x + more * 1e-3;
    }
    return cost;
}

static void ds__pack_add(const ds__pack *k, const ds__want *w, double sign) {
    const int *tree = k->d->tree + w->tree;
    for (int v = 0; v < k->n; v++) {
        if (tree[v] < 0)
            continue;
        const ds__troute *r = ds__pack_route(k, tree[v], v, w->up);
        for (size_t h = 0; h < r->hops; h++)
            k->load[r->wire[h]] += sign * w->bytes / k->d->t->wire[r->wire[h]];
    }
}

/* A search for the cheapest path from the nodes of a tree to one more rank. */
typedef struct ds__pack_search {
    double cost[DS__MESH + 1];
    int from[DS__MESH + 1]; /* the node before, or -1 */
    int done[DS__MESH + 1];
} ds__pack_search;

static void ds__pack_search_init(const ds__pack *k, const ds__want *w, ds__pack_search *s) {
    const int *tree = k->d->tree + w->tree;
    memset(s->done, 0, sizeof s->done);
    for (int v = 0; v < k->n; v++) {
        /* the host does not sum */
        s->cost[v] = tree[v] == DS__APART || (v == k->d->p && w->up) ? 1e300 : 0;
        s->from[v] = -1;
        /* nearer to the root is better */
        for (int u = v; s->cost[v] < 1 && tree[u] >= 0; u = tree[u])
            s->cost[v] += 1e-5;
    }
}

/* Returns the cheapest node that was not looked at, or -1. */
static int ds__pack_search_next(const ds__pack *k, const ds__pack_search *s) {
    int at = -1;
    for (int v = 0; v < k->n; v++)
        if (!s->done[v] && s->cost[v] < 1e299 && (at < 0 || s->cost[v] < s->cost[at]))
            at = v;
    return at;
}

/* Updates the costs of the nodes that are reached from node `at`. */
static void ds__pack_search_from(const ds__pack *k, const ds__want *w, ds__pack_search *s, int at) {
    const int *tree = k->d->tree + w->tree;
    for (int v = 0; v < k->n; v++) {
        if (s->done[v] || tree[v] != DS__APART)
            continue;
        const ds__troute *r = ds__pack_route(k, at, v, w->up);
        if (!r)
            continue;
        double c = s->cost[at] + ds__pack_cost(k, r, w->bytes);
        if (c < s->cost[v]) {
            s->cost[v] = c;
            s->from[v] = at;
        }
    }
}

/* Returns the next rank to add to the tree, or -1 if no other rank can be reached. */
static int ds__pack_search_run(const ds__pack *k, const ds__want *w, ds__pack_search *s) {
    const int *tree = k->d->tree + w->tree;
    int host = k->d->p;
    ds__pack_search_init(k, w, s);
    for (;;) {
        int at = ds__pack_search_next(k, s);
        if (at < 0)
            return -1;
        s->done[at] = 1;
        int fresh = tree[at] == DS__APART && at != host;
        if (fresh && (w->to < 0 || w->to == at))
            return at;
        /* sums are not passed on by ranks outside the tree */
        if (w->up && w->to < 0 && fresh)
            continue;
        ds__pack_search_from(k, w, s, at);
    }
}

/* Makes the tree of a want, node by node, the nearest first. Returns 0 if a rank cannot be
   reached. */
static int ds__pack_tree(const ds__pack *k, const ds__want *w) {
    int *tree = k->d->tree + w->tree;
    for (int v = 0; v < k->n; v++)
        tree[v] = v == w->root ? DS__ALONE : DS__APART;
    for (;;) {
        ds__pack_search s;
        int at = ds__pack_search_run(k, w, &s);
        if (at < 0)
            break;
        for (int v = at; s.from[v] >= 0 && tree[v] == DS__APART; v = s.from[v]) {
            const ds__troute *r = ds__pack_route(k, s.from[v], v, w->up);
            for (size_t h = 0; h < r->hops; h++)
                k->load[r->wire[h]] += w->bytes / k->d->t->wire[r->wire[h]];
            tree[v] = s.from[v];
        }
        if (w->to >= 0)
            break;
    }
    for (int v = 0; v < k->d->p; v++)
        if (tree[v] == DS__APART && (w->to < 0 || w->to == v))
            return 0;
    return 1;
}

/* The wants of a collective: for each way and root, one or one for each rank; for all_reduce
   one up and one down. */
typedef struct ds__wants {
    ds__want *want;
    size_t count;
    int ways;
    int what;   /* the collective */
    int rooted; /* 1: there is one root */
    int each;   /* 1: each rank has a part of its own */
    int sides;
} ds__wants;

/* Returns the bytes of one want. */
static double ds__wants_bytes(const ds__wants *o, const ds__draft *d) {
    double ways = (double)(size_t)o->ways;
    int p = d->p;
    if (o->what == DS_ALL_TO_ALL)
        return (double)d->want->bytes / ways / p;
    return (double)d->want->bytes / ways / (double)(o->rooted ? 1 : p) /
           (double)(o->each && o->rooted ? p : 1);
}

/* Adds the wants of a root. */
static void ds__wants_add(ds__wants *o, ds__draft *d, int root) {
    int sums = o->what == DS_REDUCE || o->what == DS_ALL_REDUCE || o->what == DS_REDUCE_SCATTER;
    int first = o->each ? 0 : -1;
    int end = o->each ? d->p : 0;
    for (int to = first; to < end; to++)
        for (int side = 0; side < o->sides; side++) {
            int up = o->what == DS_GATHER || (sums && !side);
            ptrdiff_t tree = ds__tree_add(d, root);
            o->want[o->count++] = (ds__want){ root, to, up, ds__wants_bytes(o, d), tree };
        }
}

/* Lists the wants, each with an empty tree. Returns 0 if memory is exhausted. */
static int ds__wants_init(ds__wants *o, ds__draft *d, const ds__algo *a) {
    int what = (int)d->want->what;
    size_t p = (size_t)d->p;
    o->count = 0;
    o->ways = a->ways;
    o->what = what;
    o->rooted = what <= DS_REDUCE;
    o->each = what == DS_SCATTER || what == DS_GATHER || what == DS_ALL_TO_ALL;
    o->sides = what == DS_ALL_REDUCE ? 2 : 1;
    size_t room = (o->rooted ? 1 : p) * (o->each ? p : 1) * (size_t)o->sides * (size_t)o->ways;
    o->want = ds__host_alloc(room * sizeof *o->want);
    if (!o->want)
        return 0;
    for (int j = 0; j < o->ways && !d->failed; j++)
        for (int i = 0; i < (o->rooted ? 1 : d->p); i++)
            ds__wants_add(o, d, o->rooted ? d->want->root : i);
    return !d->failed;
}

/* Makes each tree of the wants again. Returns 0 if a rank cannot be reached. */
static int ds__wants_pack(const ds__wants *o, const ds__pack *k, int again) {
    for (size_t i = 0; i < o->count; i++) {
        const ds__want *want = &o->want[i];
        if (again)
            ds__pack_add(k, want, -1);
        if (want->to != want->root && !ds__pack_tree(k, want))
            return 0;
    }
    return 1;
}

/* Makes the trees in several passes and keeps those of the pass with the least load of the
   busiest wire. Returns 0 if a rank cannot be reached. */
static int ds__wants_improve(const ds__wants *o, const ds__pack *k) {
    ds__draft *d = k->d;
    double least = 1e300;
    size_t nodes = o->count * (size_t)k->n;
    int passes = o->count > 16 ? 8 : 32;
    int *best = ds__host_alloc((nodes + 1) * sizeof *best);
    int *tree = o->count ? d->tree + o->want[0].tree : d->tree;
    int ok = 1;
    if (o->count > 100)
        passes = 4;
    if (!best) {
        d->failed = 1;
        return 0;
    }

    for (int pass = 0; ok && pass < passes; pass++) {
        double most = 0;
        ok = ds__wants_pack(o, k, pass > 0);
        for (int i = 0; i < d->t->wires; i++)
            if (k->load[i] > most)
                most = k->load[i];
        if (most < least * 0.999) {
            least = most;
            memcpy(best, tree, nodes * sizeof *best);
        }
    }
    if (ok && nodes)
        memcpy(tree, best, nodes * sizeof *best);
    ds__host_free(best);
    return ok;
}

/* Returns the bytes of the whole that a want is a part of. */
static ds__extent ds__want_block(const ds__wants *o, const ds_plan_desc *w, const ds__want *n,
                                 size_t p) {
    size_t block = (size_t)(o->each && o->rooted ? n->to : n->root);
    if (o->what == DS_BROADCAST || o->what == DS_REDUCE)
        return (ds__extent){ 0, w->bytes };
    if (o->what == DS_ALL_TO_ALL)
        block = (size_t)n->to;
    return (ds__extent){ ds__emit_block_of(w, block, p), ds__emit_block_of(w, block + 1, p) };
}

/* Returns the flow of a want whose block begins at `begin`. */
static ds__flow ds__want_flow(const ds__wants *o, ds__draft *d, const ds__want *n, size_t begin) {
    ds__flow f = { .owner = n->root, .dest = -1, .up = -1, .down = n->tree };
    switch (o->what) {
    case DS_ALL_GATHER:
        f.out = begin;
        break;
    case DS_ALL_REDUCE:
        f.in = begin;
        f.out = begin;
        f.up = n->tree;
        f.down = n[1].tree;
        break;
    case DS_REDUCE:
    case DS_REDUCE_SCATTER:
        f.in = begin; /* 0 in reduce */
        f.dest = n->root;
        f.up = n->tree;
        f.down = ds__tree_add(d, n->root);
        break;
    case DS_SCATTER:
        f.in = begin;
        f.dest = n->to;
        break;
    case DS_ALL_TO_ALL:
        f.in = begin;
        f.out = ds__emit_block_of(d->want, (size_t)n->root, (size_t)d->p);
        f.dest = n->to;
        break;
    case DS_GATHER:
        f.out = begin;
        f.owner = n->to;
        f.dest = n->root;
        f.down = ds__flow_path_find(d, n->tree, n->to, 1);
        break;
    default: /* broadcast */
        break;
    }
    return f;
}

static void ds__wants_flows(const ds__wants *o, ds__draft *d) {
    const ds_plan_desc *w = d->want;
    size_t ways = (size_t)o->ways;
    for (size_t i = 0; !d->failed && i < o->count; i += (size_t)o->sides) {
        const ds__want *n = &o->want[i];
        size_t j = i / (o->count / ways);
        ds__extent block = ds__want_block(o, w, n, (size_t)d->p);
        ds__extent part = ds__slice_span(w, block.end - block.begin, j, ways);
        ds__flow_add(d, part, ds__want_flow(o, d, n, block.begin));
    }
}

/* Makes the flows of packed trees. Returns 0 if the algorithm does not fit. */
static int ds__pack_flows(ds__draft *d, const ds__algo *a) {
    const ds_plan_desc *w = d->want;
    int sums = w->what == DS_REDUCE || w->what == DS_ALL_REDUCE || w->what == DS_REDUCE_SCATTER;
    int ok = 0;
    if (sums && w->order != DS_ORDER_ANY)
        return 0;

    ds__wants wants;
    ds__pack k = { d, NULL, 0, d->p + 1 };
    k.load = ds__host_alloc(((size_t)d->t->wires + 1) * sizeof *k.load);
    k.whole = w->bytes ? (double)d->bound * 1e-9 + 1e-9 : 1;
    if (ds__wants_init(&wants, d, a) && k.load)
        ok = ds__wants_improve(&wants, &k);
    else
        d->failed = 1;
    if (ok)
        ds__wants_flows(&wants, d);
    ds__host_free(wants.want);
    ds__host_free(k.load);
    d->ways = a->ways;
    return ok && !d->failed;
}

#endif
