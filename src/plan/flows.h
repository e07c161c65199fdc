/* plan/flows.h - flows of an algorithm.

   Turns a collective and an algorithm into flows (ds__flows), for trees, meshes, packed trees
   and copies through the host. Grids are only checked here, since they have no flows. ds__load
   gives the time of the busiest wire and the number of copies of one piece.

   Invariants: ds__flows discards the trees and flows of the draft first. It returns 0 if the
   algorithm does not fit or if memory is exhausted, and sets `failed` only in the second case.
   Every tree of sums satisfies ds__in_order. ds__load counts one tree of a flow in each
   direction.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_FLOWS_H
#define DS__PLAN_FLOWS_H

#include "../topology/types.h"
#include "types.h"
#include "emit.h"
#include "grid.h"
#include "tree.h"
#include "mesh.h"
#include "flow.h"
#include "packed_tree.h"

/* 1: these are the flows; 0: this algorithm does not do it here. */
static int ds__flows(ds__draft *d, const ds__algo *a) {
    static const ds__algo star = { "direct", DS__WITH_TREES, DS__ROOTED, 0, 1, 1 << 20, 1, 0 };
    const ds_plan_desc *w = d->want;
    ptrdiff_t tree[DS__MESH]; /* of a mesh */
    size_t bytes = w->bytes;
    size_t p = (size_t)d->p;
    int what = (int)w->what;
    int sums = what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
    int ways = a->ways;
    int cut = 0;
    int each = what == DS_ALL_GATHER || what == DS_REDUCE_SCATTER || what == DS_ALL_TO_ALL ||
               (what == DS_ALL_REDUCE && a->mode == DS__BY_OWNERS);
    ds__mesh mesh;
    d->trees = d->flows = 0;
    d->name = a->name;
    d->ways = ways;
    d->run = a->with == DS__WITH_GRID ? a->arity : 0;
    if (d->run)
        return ds__grid_fits(d, d->run, ways / d->run);
    d->pull = p > DS__PLAN_LARGE && (each || ways > 1);
    if (a->with == DS__WITH_HOST && p < 2)
        return 0;
    if (a->with == DS__WITH_WIRES)
        return p > 1 && p <= DS__MESH ? ds__pack_flows(d, a) : 0;
    if (a->with == DS__WITH_MESH && !(cut = ds__mesh_make(d->t, &mesh, each ? 6 : DS__MESH)))
        return 0;
    if (a->with == DS__WITH_MESH)
        d->ways = ways = cut;
    if (a->mode != DS__ROOTED && !sums)
        return 0;
    if (a->mode == DS__IN_LIST && d->p > DS__PLAN_LARGE && a->level)
        return ds__flows_leads(d, a->arity);
    if (a->mode == DS__IN_LIST) { /* reduce and all_reduce */
        if (what == DS_REDUCE_SCATTER)
            return 0;
        for (int j = 0; j < ways; j++) {
            int owner = 0;
            ptrdiff_t up = ds__list_tree(d, a, j, 1, &owner);
            ptrdiff_t down = -1;
            ds__algo back = { NULL,
                              DS__WITH_TREES,
                              DS__ROOTED,
                              a->level,
                              a->level ? ways : 1,
                              a->level ? 1 << 20 : 1,
                              1,
                              a->shape };
            if (d->failed || !ds__in_order(d, up))
                return 0;
            if (what == DS_ALL_REDUCE && a->level == 0) { /* back the way it came */
                down = ds__tree_new(d, owner);
                for (int v = 0; v < owner && !d->failed; v++)
                    d->tree[down + v] = v + 1;
            } else if (what == DS_ALL_REDUCE) {
                down = ds__tree_make(d, &back, owner, j);
            } else {
                down = ds__tree_new(d, owner);
                if (!d->failed && owner != w->root)
                    d->tree[down + w->root] = owner;
            }
            ds__flow_add(d, ds__slice(w, bytes, (size_t)j, (size_t)ways),
                         ds__slice(w, bytes, (size_t)j + 1, (size_t)ways), 0, 0, owner,
                         what == DS_REDUCE ? w->root : -1, up, down);
        }
        return !d->failed;
    }
    if (a->mode == DS__ONE_SHOT && what != DS_ALL_REDUCE)
        return 0;
    /* a slice for each but the root, which sums nothing */
    if (what == DS_REDUCE && a->mode == DS__BY_OWNERS) {
        size_t k = 0;
        size_t n = p > 1 ? p - 1 : 1;
        for (int i = 0; i < d->p; i++) {
            if (i == w->root && p > 1)
                continue;
            ptrdiff_t up = ds__tree_make(d, &star, i, 0);
            ptrdiff_t down = ds__path(d, ds__tree_make(d, &star, i, 0), w->root, 0);
            ds__flow_add(d, ds__slice(w, bytes, k, n), ds__slice(w, bytes, k + 1, n), 0, 0, i,
                         w->root, up, down);
            k++;
        }
        return !d->failed;
    }
    for (int i = 0; i < d->p && !d->failed; i++) {
        int root = each || a->mode == DS__ONE_SHOT ? i : what == DS_ALL_REDUCE ? 0 : w->root;
        if (root != i)
            continue;
        if (a->with == DS__WITH_MESH && !ds__mesh_trees(d, &mesh, root, cut, tree))
            return 0;
        size_t begin = each ? ds__block(w, (size_t)i, p) : 0;
        size_t size = (each ? ds__block(w, (size_t)i + 1, p) : bytes) - begin;
        for (int j = 0; j < ways && !d->failed; j++) {
            ptrdiff_t t = a->with == DS__WITH_MESH ? tree[j] : ds__tree_make(d, a, root, j);
            size_t from = ds__slice(w, size, (size_t)j, (size_t)ways);
            size_t to = ds__slice(w, size, (size_t)j + 1, (size_t)ways);
            if (d->failed)
                return 0;
            /* from group to group, then to the owner */
            if (sums && each && a->level && a->own && w->order == DS_ORDER_LIST &&
                !ds__in_order(d, t)) {
                int group[DS__TOPOLOGY_MAX];
                int turn = 0;
                int owner = 0;
                ds__groups(d->t, a->level, group);
                for (int k = 0; k < root; k++)
                    turn += group[k] == group[root];
                ptrdiff_t up = ds__list_tree(d, a, turn, 1, &owner);
                ptrdiff_t down =
                    what == DS_ALL_REDUCE ? ds__tree_make(d, a, owner, j) : ds__tree_new(d, owner);
                if (d->failed || !ds__in_order(d, up))
                    return 0;
                if (what == DS_REDUCE_SCATTER && owner != root)
                    d->tree[down + root] = owner;
                ds__flow_add(d, from, to, begin, what == DS_ALL_REDUCE ? begin : 0, owner,
                             what == DS_ALL_REDUCE ? -1 : root, up, down);
                continue;
            }
            if (sums && a->mode == DS__BY_OWNERS && what == DS_ALL_REDUCE &&
                w->order != DS_ORDER_ANY && !ds__in_order(d, t)) {
                /* summed at once, and handed on as the algorithm has it */
                ptrdiff_t up = ds__tree_make(d, &star, root, 0);
                ds__flow_add(d, from, to, begin, begin, root, -1, up, t);
                continue;
            }
            if (sums && !ds__in_order(d, t))
                return 0;
            if (what == DS_BROADCAST)
                ds__flow_add(d, from, to, 0, 0, root, -1, -1, t);
            else if (what == DS_ALL_GATHER)
                ds__flow_add(d, from, to, 0, begin, root, -1, -1, t);
            else if (what == DS_ALL_REDUCE && a->mode == DS__ONE_SHOT)
                ds__flow_add(d, from, to, 0, 0, root, root, t, ds__tree_new(d, root));
            else if (what == DS_ALL_REDUCE)
                ds__flow_add(d, from, to, begin, begin, root, -1, t, t);
            else if (what == DS_REDUCE)
                ds__flow_add(d, from, to, 0, 0, root, root, t, ds__tree_new(d, root));
            else if (what == DS_REDUCE_SCATTER)
                ds__flow_add(d, from, to, begin, 0, root, root, t, ds__tree_new(d, root));
            else { /* a part for each rank: those that are far away first */
                int deepest = 0;
                for (int v = 0; v < d->p; v++) {
                    int depth = ds__depth(d->tree + t, v);
                    if (depth > deepest)
                        deepest = depth;
                }
                for (int depth = deepest, v; depth >= 0; depth--)
                    for (v = 0; v < d->p && !d->failed; v++) {
                        size_t at = ds__block(w, (size_t)v, p);
                        size_t n = ds__block(w, (size_t)v + 1, p) - at;
                        if (ds__depth(d->tree + t, v) != depth)
                            continue;
                        from = ds__slice(w, n, (size_t)j, (size_t)ways);
                        to = ds__slice(w, n, (size_t)j + 1, (size_t)ways);
                        ptrdiff_t path = ds__path(d, t, v, what == DS_GATHER);
                        if (what == DS_SCATTER)
                            ds__flow_add(d, from, to, at, 0, root, v, -1, path);
                        else if (what == DS_GATHER)
                            ds__flow_add(d, from, to, 0, at, v, root, -1, path);
                        else
                            ds__flow_add(d, from, to, at, begin, root, v, -1, path);
                    }
            }
        }
    }
    return !d->failed;
}

/* What the busiest wire takes for the flows, and how many copies a piece of each is. */
static int64_t ds__load(const ds__draft *d, double *load, size_t *copies) {
    const ds_topology *t = d->t;
    double most = 0;
    memset(load, 0, (size_t)t->wires * sizeof *load);
    *copies = 0;
    for (size_t i = 0; i < d->flows; i++)
        for (int side = 0; side < 2; side++) {
            ptrdiff_t at = side ? d->flow[i].down : d->flow[i].up;
            for (int v = 0; at >= 0 && v <= d->p; v++) {
                int u = d->tree[at + v];
                if (u < 0)
                    continue;
                int from = side ? u : v;
                int to = side ? v : u;
                int staged = from != d->p && to != d->p && !ds__route_of(t, from, to)->direct;
                for (int leg = !staged; leg < 2; leg++) {
                    const ds__troute *r =
                        ds__route_of(t, staged && leg ? d->p : from, staged && !leg ? d->p : to);
                    for (size_t h = 0; h < r->hops; h++)
                        load[r->wire[h]] += (double)d->flow[i].bytes;
                    ++*copies;
                    if (!r->hops)
                        most = 1e18;
                }
            }
        }
    for (int i = 0; i < t->wires; i++)
        if (load[i] / t->wire[i] * 1e9 > most)
            most = load[i] / t->wire[i] * 1e9;
    return (int64_t)most;
}

#endif
