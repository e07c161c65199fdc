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

/* The tree of what is wanted, node by node, the nearest first. */
static int ds__pack_tree(const ds__pack *k, const ds__want *w) {
    int *tree = k->d->tree + w->tree;
    int host = k->d->p;
    for (int v = 0; v < k->n; v++)
        tree[v] = v == w->root ? DS__ALONE : DS__APART;
    for (;;) {
        double cost[DS__MESH + 1];
        int from[DS__MESH + 1];
        int done[DS__MESH + 1] = { 0 };
        int at;
        for (int v = 0; v < k->n; v++) {
            /* the host does not sum */
            cost[v] = tree[v] == DS__APART || (v == host && w->up) ? 1e300 : 0;
            from[v] = -1;
            /* nearer to the root is better */
            for (int u = v; cost[v] < 1 && tree[u] >= 0; u = tree[u])
                cost[v] += 1e-5;
        }
        for (;;) {
            at = -1;
            for (int v = 0; v < k->n; v++)
                if (!done[v] && cost[v] < 1e299 && (at < 0 || cost[v] < cost[at]))
                    at = v;
            if (at < 0)
                break;
            done[at] = 1;
            if (tree[at] == DS__APART && at != host && (w->to < 0 || w->to == at))
                break;
            if (w->up && w->to < 0 && tree[at] == DS__APART && at != host)
                continue;
            for (int v = 0; v < k->n; v++) {
                const ds__troute *r =
                    done[v] || tree[v] != DS__APART ? NULL : ds__pack_route(k, at, v, w->up);
                if (!r)
                    continue;
                double c = cost[at] + ds__pack_cost(k, r, w->bytes);
                if (c < cost[v]) {
                    cost[v] = c;
                    from[v] = at;
                }
            }
        }
        /* nobody else can be reached */
        if (at < 0)
            break;
        for (int v = at; from[v] >= 0 && tree[v] == DS__APART; v = from[v]) {
            const ds__troute *r = ds__pack_route(k, from[v], v, w->up);
            for (size_t h = 0; h < r->hops; h++)
                k->load[r->wire[h]] += w->bytes / k->d->t->wire[r->wire[h]];
            tree[v] = from[v];
        }
        if (w->to >= 0)
            break;
    }
    for (int v = 0; v < host; v++)
        if (tree[v] == DS__APART && (w->to < 0 || w->to == v))
            return 0;
    return 1;
}

static int ds__pack_flows(ds__draft *d, const ds__algo *a) {
    const ds_plan_desc *w = d->want;
    int what = (int)w->what;
    int p = d->p;
    int sums = what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
    int ok = 1;
    int rooted = what <= DS_REDUCE;
    int each = what == DS_SCATTER || what == DS_GATHER || what == DS_ALL_TO_ALL;
    int sides = what == DS_ALL_REDUCE ? 2 : 1;
    size_t ways = (size_t)a->ways;
    size_t wants = 0;
    size_t room = (size_t)(rooted ? 1 : p) * (size_t)(each ? p : 1) * (size_t)sides * ways;
    ds__want *want = ds__alloc(room * sizeof *want);
    ds__pack k = { d, ds__alloc(((size_t)d->t->wires + 1) * sizeof *k.load), 0, p + 1 };
    if (sums && w->order != DS_ORDER_ANY)
        ok = 0;
    if (!want || !k.load)
        d->failed = 1;
    for (size_t j = 0; ok && !d->failed && j < ways; j++)
        for (int i = 0; i < p; i++) {
            int root = rooted ? w->root : i;
            if (rooted && i)
                break;
            for (int to = each ? 0 : -1; to < (each ? p : 0); to++)
                for (int side = 0; side < sides; side++) {
                    double bytes = (double)w->bytes / (double)ways / (double)(rooted ? 1 : p) /
                                   (double)(each && rooted ? p : 1);
                    if (what == DS_ALL_TO_ALL)
                        bytes = (double)w->bytes / (double)ways / p;
                    want[wants++] = (ds__want){ root, to, what == DS_GATHER || (sums && !side),
                                                bytes, ds__tree_new(d, root) };
                }
        }
    k.whole = d->want->bytes ? (double)d->bound * 1e-9 + 1e-9 : 1;
    double least = 1e300;
    size_t first = wants ? (size_t)want[0].tree : 0;
    size_t nodes = wants * (size_t)k.n;
    int *best = ds__alloc((nodes + 1) * sizeof *best);
    int passes = wants > 100 ? 4 : wants > 16 ? 8 : 32;
    if (!best)
        d->failed = 1;
    for (int pass = 0; ok && !d->failed && pass < passes; pass++) {
        for (size_t i = 0; i < wants && ok; i++) {
            if (pass)
                ds__pack_add(&k, &want[i], -1);
            ok = want[i].to == want[i].root || ds__pack_tree(&k, &want[i]);
        }
        double most = 0;
        for (int i = 0; i < d->t->wires; i++)
            if (k.load[i] > most)
                most = k.load[i];
        if (most < least * 0.999) {
            least = most;
            memcpy(best, d->tree + first, nodes * sizeof *best);
        }
    }
    if (best && ok && !d->failed)
        memcpy(d->tree + first, best, nodes * sizeof *best);
    ds__release(best);
    for (size_t i = 0; ok && !d->failed && i < wants; i += (size_t)sides) {
        const ds__want *n = &want[i];
        size_t j = i / (wants / ways);
        size_t block = (size_t)(each && rooted ? n->to : n->root);
        size_t begin = 0;
        size_t size = w->bytes;
        if (what == DS_ALL_TO_ALL)
            block = (size_t)n->to;
        if (what != DS_BROADCAST && what != DS_REDUCE) {
            begin = ds__block(w, block, (size_t)p);
            size = ds__block(w, block + 1, (size_t)p) - begin;
        }
        size_t from = ds__slice(w, size, j, ways);
        size_t to = ds__slice(w, size, j + 1, ways);
        ptrdiff_t t = n->tree;
        if (what == DS_BROADCAST)
            ds__flow_add(d, from, to, 0, 0, n->root, -1, -1, t);
        else if (what == DS_ALL_GATHER)
            ds__flow_add(d, from, to, 0, begin, n->root, -1, -1, t);
        else if (what == DS_ALL_REDUCE)
            ds__flow_add(d, from, to, begin, begin, n->root, -1, t, n[1].tree);
        else if (what == DS_REDUCE)
            ds__flow_add(d, from, to, 0, 0, n->root, n->root, t, ds__tree_new(d, n->root));
        else if (what == DS_REDUCE_SCATTER)
            ds__flow_add(d, from, to, begin, 0, n->root, n->root, t, ds__tree_new(d, n->root));
        else if (what == DS_SCATTER)
            ds__flow_add(d, from, to, begin, 0, n->root, n->to, -1, t);
        else if (what == DS_ALL_TO_ALL)
            ds__flow_add(d, from, to, begin, ds__block(w, (size_t)n->root, (size_t)p), n->root,
                         n->to, -1, t);
        else {
            ptrdiff_t back = ds__path(d, t, n->to, 1);
            ds__flow_add(d, from, to, 0, begin, n->to, n->root, -1, back);
        }
    }
    ds__release(want);
    ds__release(k.load);
    d->ways = a->ways;
    return ok && !d->failed;
}

#endif
