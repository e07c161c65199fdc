/* plan/flow.h - flows and lists of groups.

   Adds flows to a draft (ds__flow_add) and takes a path out of a tree (ds__flow_path_find).
   ds__list_tree makes trees that sum in the order of the ranks, from group to group.
   ds__flows_leads uses them for sums over many ranks.

   Invariants: an empty flow is not added. Trees are named by their index in d->tree. In
   ds__flows_leads each group, or part of a group, has at least one lead.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_FLOW_H
#define DS__PLAN_FLOW_H

#include "../topology/types.h"
#include "types.h"
#include "emit.h"
#include "tree.h"
#include "mesh.h"

/* Adds a flow of a part of the bytes. `in` and `out` of the flow are where the bytes lie of which
   `part` is a part. An empty part is left out. */
static void ds__flow_add(ds__draft *d, ds__extent part, ds__flow flow) {
    if (part.end <= part.begin || d->failed)
        return;
    ds__flow *f = DS__ADD(d, flow);
    if (!f)
        return;
    flow.bytes = part.end - part.begin;
    flow.in += part.begin;
    flow.out += part.begin;
    flow.parts = 1;
    *f = flow;
}

/* Returns the path from the root of a tree to a node as a tree of its own, forwards or
   backwards. */
static ptrdiff_t ds__flow_path_find(ds__draft *d, ptrdiff_t tree, int to, int backwards) {
    int root = to;
    if (d->failed)
        return -1;
    while (d->tree[tree + root] >= 0)
        root = d->tree[tree + root];
    ptrdiff_t at = ds__tree_add(d, backwards ? to : root);
    for (int v = to; !d->failed && v != root; v = d->tree[tree + v]) {
        if (backwards)
            d->tree[at + d->tree[tree + v]] = v;
        else
            d->tree[at + v] = d->tree[tree + v];
    }
    return at;
}

/* Returns a tree of the owner and one more rank that it copies to, if that is another. */
static ptrdiff_t ds__tree_of_two(ds__draft *d, int owner, int to) {
    ptrdiff_t at = ds__tree_add(d, owner);
    if (!d->failed && owner != to)
        d->tree[at + to] = owner;
    return at;
}

/* Returns how many neighbours of rank i, with itself, are in its part of its group. A group is
   cut into `split` parts. */
static int ds__list_run(const ds__draft *d, const int *group, int i, int split) {
    const int *seat = d->t->seat;
    int n = 1;
    while (i + n < d->p && group[i + n] == group[i]) {
        int part = seat[i] * split / d->largest;
        if (split >= 2 && seat[i + n] * split / d->largest != part)
            break;
        n++;
    }
    return n;
}

/* Sums in the order of the list over groups of neighbours, each cut into `split`. Each group adds
   its own sum to the sum of the groups before. A member of the last one is the owner. */
static ptrdiff_t ds__list_tree(ds__draft *d, const ds__algo *a, int j, int split, int *owner) {
    int group[DS__TOPOLOGY_MAX];
    int before = -1;
    ds__tree_groups_of(d->t, a->level, group);
    ptrdiff_t at = ds__tree_add(d, -1);
    for (int i = 0; i < d->p && !d->failed;) {
        int n = a->level ? ds__list_run(d, group, i, split) : 1;
        int lead = i + j % n;
        for (int k = i; k < i + n; k++)
            d->tree[at + k] = lead;
        d->tree[at + lead] = DS__ALONE;
        if (before >= 0)
            d->tree[at + before] = lead;
        before = *owner = lead;
        i += n;
    }
    return at;
}

/* Leads that sum slices for many ranks. */
typedef struct ds__leads {
    int count; /* of each part of a group, hence of slices */
    int each;  /* blocks of a slice in reduce_scatter */
    int spare; /* the lead that is skipped, since it is the root of a reduce */
    int split; /* parts of a group */
} ds__leads;

/* Chooses the leads. Returns 0 if a part of the largest group has none, or if the ranks cannot be
   divided among them. */
static int ds__leads_init(ds__leads *o, const ds__draft *d, int split) {
    const ds_plan_desc *w = d->want;
    int p = d->p;
    int rooted = w->what == DS_REDUCE;
    int run = d->largest / split;
    int n = run - rooted;
    if (n < 1)
        return 0;
    int each = p / n;
    int spare = rooted ? d->t->seat[w->root] % run : n;
    if (split > 1 && (d->largest % split || p % d->largest))
        return 0;
    if (w->what == DS_REDUCE_SCATTER && (p % n || each < 2))
        return 0;
    *o = (ds__leads){ n, each, spare, split };
    return 1;
}

/* Returns the tree from the owner of a slice to the root, through the member of the root's group
   that has the owner's seat. */
static ptrdiff_t ds__leads_to_root(ds__draft *d, int owner) {
    const int *island = d->t->island;
    const int *seat = d->t->seat;
    int root = d->want->root;
    int via = owner;
    ptrdiff_t down = ds__tree_add(d, owner);
    for (int i = 0; i < d->p && island[owner] != island[root]; i++)
        if (island[i] == island[root] && seat[i] == seat[owner])
            via = i;
    if (!d->failed && via != owner)
        d->tree[down + via] = owner;
    if (!d->failed && via != root)
        d->tree[down + root] = via;
    return down;
}

/* Returns the first of the adjacent trees from the owner to each rank of a slice. */
static ptrdiff_t ds__leads_to_blocks(ds__draft *d, const ds__leads *o, int j, int owner) {
    ptrdiff_t down = (ptrdiff_t)d->trees;
    for (int i = j * o->each; i < (j + 1) * o->each && !d->failed; i++)
        (void)ds__tree_of_two(d, owner, i);
    return down;
}

/* Adds the flow of the j-th slice. Returns 0 if the order of the sums forbids its tree. */
static int ds__leads_add(ds__draft *d, const ds__leads *o, int j) {
    static const ds__algo star = { NULL, DS__WITH_TREES, DS__ROOTED, 1,
                                   1,    1 << 20,        1,          DS__GROUPS_CHAIN };
    const ds_plan_desc *w = d->want;
    ds__algo level = { NULL, DS__WITH_TREES, DS__IN_LIST, 1, o->count, 1, 0, 0 };
    ds__flow flow = { .owner = 0 };
    flow.up = ds__list_tree(d, &level, j + (j >= o->spare), o->split, &flow.owner);
    ds__extent part = ds__slice_span(w, w->bytes, (size_t)j, (size_t)o->count);
    if (d->failed || !ds__in_order(d, flow.up))
        return 0;

    if (w->what == DS_ALL_REDUCE) {
        flow.dest = -1;
        flow.down = ds__tree_build(d, &star, flow.owner, 0);
    } else if (w->what == DS_REDUCE) {
        flow.dest = w->root;
        flow.down = ds__leads_to_root(d, flow.owner);
    } else {
        part.begin = ds__emit_block_of(w, (size_t)(j * o->each), (size_t)d->p);
        part.end = ds__emit_block_of(w, (size_t)((j + 1) * o->each), (size_t)d->p);
        flow.dest = j * o->each;
        flow.down = ds__leads_to_blocks(d, o, j, flow.owner);
    }

    size_t flows = d->flows;
    ds__flow_add(d, part, flow);
    if (w->what == DS_REDUCE_SCATTER && d->flows > flows)
        d->flow[flows].parts = o->each;
    return 1;
}

/* Many ranks: slices are summed in the order of the list from group to group, each by the leads
   that have the same seat, and go on from the last one. The root of a reduce leads nothing,
   since it gets all results. A group may be cut into several: then there are fewer slices, hence
   fewer copies for as many pieces. Returns 0 if a part of the largest group has no lead. */
static int ds__flows_leads(ds__draft *d, int split) {
    ds__leads leads;
    if (!ds__leads_init(&leads, d, split))
        return 0;
    d->ways = leads.count;
    for (int j = 0; j < leads.count; j++)
        if (!ds__leads_add(d, &leads, j))
            return 0;
    return !d->failed;
}

#endif
