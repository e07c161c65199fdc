/* plan/flows.h - flows of an algorithm.

   Turns a collective and an algorithm into flows (ds__flows_build), for trees, meshes, packed trees
   and copies through the host. Grids are only checked here, since they have no flows.
   ds__flows_load gives the time of the busiest wire and the number of copies of one piece.

   Invariants: ds__flows_build discards the trees and flows of the draft first. It returns 0 if the
   algorithm does not fit or if memory is exhausted, and sets `failed` only in the second case.
   Every tree of sums satisfies ds__in_order. ds__flows_load counts one tree of a flow in each
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

/* What the flows of a collective and an algorithm are made of. */
typedef struct ds__flow_maker {
    ds__draft *d;
    const ds__algo *a;
    int what; /* the collective */
    int ways;
    int sums; /* 1: the collective sums */
    int each; /* 1: every rank is the root of a part */
    int cut;  /* trees of a root of a mesh */
    ds__mesh mesh;
} ds__flow_maker;

static const ds__algo ds__flow_star = { "direct", DS__WITH_TREES, DS__ROOTED, 0, 1, 1 << 20, 1, 0 };

/* Returns the tree from the owner of a sum in the order of the list to its destinations. */
static ptrdiff_t ds__flow_list_down(const ds__flow_maker *m, int owner, int j) {
    ds__draft *d = m->d;
    const ds__algo *a = m->a;
    if (m->what != DS_ALL_REDUCE)
        return ds__tree_of_two(d, owner, d->want->root);
    if (a->level == 0) { /* back the way it came */
        ptrdiff_t down = ds__tree_add(d, owner);
        for (int v = 0; v < owner && !d->failed; v++)
            d->tree[down + v] = v + 1;
        return down;
    }
    ds__algo back = {
        .with = DS__WITH_TREES,
        .mode = DS__ROOTED,
        .level = a->level,
        .ways = m->ways,
        .arity = 1 << 20,
        .own = 1,
        .shape = a->shape,
    };
    return ds__tree_build(d, &back, owner, j);
}

/* Adds sums in the order of the list, for reduce and all_reduce. */
static int ds__flow_list_add(const ds__flow_maker *m) {
    ds__draft *d = m->d;
    const ds_plan_desc *w = d->want;
    if (m->what == DS_REDUCE_SCATTER)
        return 0;
    for (int j = 0; j < m->ways; j++) {
        ds__flow flow = { .dest = m->what == DS_REDUCE ? w->root : -1 };
        flow.up = ds__list_tree(d, m->a, j, 1, &flow.owner);
        if (d->failed || !ds__in_order(d, flow.up))
            return 0;
        flow.down = ds__flow_list_down(m, flow.owner, j);
        ds__flow_add(d, ds__slice_span(w, w->bytes, (size_t)j, (size_t)m->ways), flow);
    }
    return !d->failed;
}

/* Adds a reduce in which each rank but the root, which sums nothing, owns a slice. */
static int ds__flow_owners_add(ds__draft *d) {
    const ds_plan_desc *w = d->want;
    size_t p = (size_t)d->p;
    size_t n = p > 1 ? p - 1 : 1;
    size_t k = 0;
    for (int i = 0; i < d->p; i++) {
        if (i == w->root && p > 1)
            continue;
        ds__flow flow = { .owner = i, .dest = w->root };
        flow.up = ds__tree_build(d, &ds__flow_star, i, 0);
        flow.down = ds__flow_path_find(d, ds__tree_build(d, &ds__flow_star, i, 0), w->root, 0);
        ds__flow_add(d, ds__slice_span(w, w->bytes, k, n), flow);
        k++;
    }
    return !d->failed;
}

/* Adds a sum from group to group, which then goes to its root. Returns 0 if the order of the
   sums forbids its tree. */
static int ds__flow_groups_add(const ds__flow_maker *m, int root, int j, ds__extent part,
                               size_t begin) {
    ds__draft *d = m->d;
    int all = m->what == DS_ALL_REDUCE;
    int group[DS__TOPOLOGY_MAX];
    int turn = 0;
    ds__tree_groups_of(d->t, m->a->level, group);
    for (int k = 0; k < root; k++)
        turn += group[k] == group[root];

    ds__flow flow = { .in = begin, .out = all ? begin : 0, .dest = all ? -1 : root };
    flow.up = ds__list_tree(d, m->a, turn, 1, &flow.owner);
    flow.down = all ? ds__tree_build(d, m->a, flow.owner, j) : ds__tree_add(d, flow.owner);
    if (d->failed || !ds__in_order(d, flow.up))
        return 0;
    if (m->what == DS_REDUCE_SCATTER && flow.owner != root)
        d->tree[flow.down + root] = flow.owner;
    ds__flow_add(d, part, flow);
    return 1;
}

/* Adds the flow of rank v in a scatter, gather or all_to_all: a path of the tree of the root. */
static void ds__flow_path_add(const ds__flow_maker *m, int root, int j, ptrdiff_t tree, int v) {
    ds__draft *d = m->d;
    const ds_plan_desc *w = d->want;
    size_t p = (size_t)d->p;
    size_t at = ds__emit_block_of(w, (size_t)v, p);
    size_t n = ds__emit_block_of(w, (size_t)v + 1, p) - at;
    ds__extent part = ds__slice_span(w, n, (size_t)j, (size_t)m->ways);
    ds__flow flow = { .in = at, .owner = root, .dest = v, .up = -1 };
    flow.down = ds__flow_path_find(d, tree, v, m->what == DS_GATHER);
    if (m->what == DS_GATHER) {
        flow.in = 0;
        flow.out = at;
        flow.owner = v;
        flow.dest = root;
    } else if (m->what == DS_ALL_TO_ALL) {
        flow.out = ds__emit_block_of(w, (size_t)root, p);
    }
    ds__flow_add(d, part, flow);
}

/* Adds the flows of a scatter, gather or all_to_all: a path for each rank. */
static void ds__flow_paths_add(const ds__flow_maker *m, int root, int j, ptrdiff_t tree) {
    for (int v = 0; v < m->d->p && !m->d->failed; v++)
        ds__flow_path_add(m, root, j, tree, v);
}

/* Returns the flow of a tree: up, down or both ways. `begin` is where the root's block begins. */
static ds__flow ds__flow_of_tree(const ds__flow_maker *m, int root, ptrdiff_t tree, size_t begin) {
    ds__draft *d = m->d;
    ds__flow flow = { .owner = root, .dest = -1, .up = -1, .down = tree };
    int at_root = m->what == DS_REDUCE || m->what == DS_REDUCE_SCATTER ||
                  (m->what == DS_ALL_REDUCE && m->a->mode == DS__ONE_SHOT);
    if (at_root) {
        flow.in = m->what == DS_REDUCE_SCATTER ? begin : 0;
        flow.dest = root;
        flow.up = tree;
        flow.down = ds__tree_add(d, root);
    } else if (m->what == DS_ALL_REDUCE) {
        flow.in = begin;
        flow.out = begin;
        flow.up = tree;
    } else if (m->what == DS_ALL_GATHER) {
        flow.out = begin;
    }
    return flow;
}

/* Adds the flows of the j-th tree of a root. Returns 0 if the order of the sums forbids the
   tree. */
static int ds__flow_tree_add(const ds__flow_maker *m, int root, int j, ptrdiff_t tree,
                             ds__extent block) {
    ds__draft *d = m->d;
    const ds__algo *a = m->a;
    ds_plan_order order = d->want->order;
    size_t begin = block.begin;
    ds__extent part = ds__slice_span(d->want, block.end - begin, (size_t)j, (size_t)m->ways);
    int forbidden = m->sums && !ds__in_order(d, tree);

    if (forbidden && m->each && a->level && a->own && order == DS_ORDER_LIST)
        return ds__flow_groups_add(m, root, j, part, begin);
    if (forbidden && m->what == DS_ALL_REDUCE && a->mode == DS__BY_OWNERS &&
        order != DS_ORDER_ANY) {
        /* summed at once, and handed on as the algorithm has it */
        ds__flow flow = {
            .in = begin,
            .out = begin,
            .owner = root,
            .dest = -1,
            .down = tree,
        };
        flow.up = ds__tree_build(d, &ds__flow_star, root, 0);
        ds__flow_add(d, part, flow);
        return 1;
    }
    if (forbidden)
        return 0;

    if (m->what == DS_SCATTER || m->what == DS_GATHER || m->what == DS_ALL_TO_ALL)
        ds__flow_paths_add(m, root, j, tree);
    else
        ds__flow_add(d, part, ds__flow_of_tree(m, root, tree, begin));
    return 1;
}

/* Adds the flows of all trees of a root. Returns 0 if the algorithm does not fit. */
static int ds__flow_root_add(ds__flow_maker *m, int root) {
    ds__draft *d = m->d;
    const ds_plan_desc *w = d->want;
    size_t p = (size_t)d->p;
    ptrdiff_t tree[DS__MESH]; /* of a mesh */
    int meshed = m->a->with == DS__WITH_MESH;
    ds__extent block = { 0, w->bytes };
    if (meshed && !ds__mesh_trees(d, &m->mesh, root, m->cut, tree))
        return 0;
    if (m->each) {
        block.begin = ds__emit_block_of(w, (size_t)root, p);
        block.end = ds__emit_block_of(w, (size_t)root + 1, p);
    }
    for (int j = 0; j < m->ways && !d->failed; j++) {
        ptrdiff_t t = meshed ? tree[j] : ds__tree_build(d, m->a, root, j);
        if (d->failed || !ds__flow_tree_add(m, root, j, t, block))
            return 0;
    }
    return 1;
}

/* Adds the flows of trees from one root, or from every rank. Returns 0 if the algorithm does not
   fit. */
static int ds__flow_roots_add(ds__flow_maker *m) {
    ds__draft *d = m->d;
    int all = m->each || m->a->mode == DS__ONE_SHOT;
    int only = m->what == DS_ALL_REDUCE ? 0 : d->want->root;
    for (int i = 0; i < d->p && !d->failed; i++)
        if ((all || i == only) && !ds__flow_root_add(m, i))
            return 0;
    return !d->failed;
}

/* Counts the trees of a mesh, which are the ways. Returns 0 if the links are no mesh. */
static int ds__flow_mesh_init(ds__flow_maker *m) {
    ds__draft *d = m->d;
    m->cut = ds__mesh_init(d->t, &m->mesh, m->each ? 6 : DS__MESH);
    if (!m->cut)
        return 0;
    d->ways = m->cut;
    m->ways = m->cut;
    return 1;
}

/* Adds the flows of an algorithm whose flows are trees. Returns 0 if it does not fit. */
static int ds__flow_trees_add(ds__flow_maker *m) {
    ds__draft *d = m->d;
    const ds__algo *a = m->a;
    if (a->with == DS__WITH_MESH && !ds__flow_mesh_init(m))
        return 0;
    if (a->mode != DS__ROOTED && !m->sums)
        return 0;
    if (a->mode == DS__IN_LIST && d->p > DS__PLAN_LARGE && a->level)
        return ds__flows_leads(d, a->arity);
    if (a->mode == DS__IN_LIST)
        return ds__flow_list_add(m);
    if (a->mode == DS__ONE_SHOT && m->what != DS_ALL_REDUCE)
        return 0;
    if (m->what == DS_REDUCE && a->mode == DS__BY_OWNERS)
        return ds__flow_owners_add(d);
    return ds__flow_roots_add(m);
}

/* Makes the flows of the draft. Returns 1 for flows, 0 if this algorithm does not fit here. */
static int ds__flows_build(ds__draft *d, const ds__algo *a) {
    int what = (int)d->want->what;
    ds__flow_maker m = { .d = d, .a = a, .what = what, .ways = a->ways };
    m.sums = what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
    m.each = what == DS_ALL_GATHER || what == DS_REDUCE_SCATTER || what == DS_ALL_TO_ALL ||
             (what == DS_ALL_REDUCE && a->mode == DS__BY_OWNERS);
    d->trees = d->flows = 0;
    d->name = a->name;
    d->ways = a->ways;
    d->run = a->with == DS__WITH_GRID ? a->arity : 0;
    if (d->run)
        return ds__grid_fits(d, d->run, a->ways / d->run);

    d->pull = d->p > DS__PLAN_LARGE && (m.each || a->ways > 1);
    if (a->with == DS__WITH_HOST && d->p < 2)
        return 0;
    if (a->with == DS__WITH_WIRES)
        return d->p > 1 && d->p <= DS__MESH ? ds__pack_flows(d, a) : 0;
    return ds__flow_trees_add(&m);
}

/* Loads of the wires by the flows of a draft. */
typedef struct ds__wire_loads {
    double *load; /* bytes of each wire */
    size_t copies;
    int cut_off; /* 1: some copy has no route */
} ds__wire_loads;

/* Adds one copy to the loads, or two through the host. */
static void ds__load_copy(const ds__draft *d, ds__wire_loads *o, int from, int to, double bytes) {
    int staged = ds__copy_staged(d, from, to);
    for (int leg = !staged; leg < 2; leg++) {
        int a = staged && leg ? d->p : from;
        int b = staged && !leg ? d->p : to;
        const ds__troute *r = ds__route_of(d->t, a, b);
        for (size_t h = 0; h < r->hops; h++)
            o->load[r->wire[h]] += bytes;
        o->copies++;
        if (!r->hops)
            o->cut_off = 1;
    }
}

/* Returns the time of the busiest wire for all flows, and the number of copies of a piece of
   each. `load` has room for all wires. */
static int64_t ds__flows_load(const ds__draft *d, double *load, size_t *copies) {
    const ds_topology *t = d->t;
    ds__wire_loads loads = { load, 0, 0 };
    memset(load, 0, (size_t)t->wires * sizeof *load);
    for (size_t i = 0; i < d->flows; i++)
        for (int side = 0; side < 2; side++) {
            ptrdiff_t at = side ? d->flow[i].down : d->flow[i].up;
            for (int v = 0; at >= 0 && v <= d->p; v++) {
                int u = d->tree[at + v];
                if (u >= 0)
                    ds__load_copy(d, &loads, side ? u : v, side ? v : u, (double)d->flow[i].bytes);
            }
        }

    double most = loads.cut_off ? 1e18 : 0;
    for (int i = 0; i < t->wires; i++)
        if (load[i] / t->wire[i] * 1e9 > most)
            most = load[i] / t->wire[i] * 1e9;
    *copies = loads.copies;
    return (int64_t)most;
}

#endif
