/* plan/flow.h - flows and lists of groups.

   Adds flows to a draft (ds__flow_add) and takes a path out of a tree (ds__path). ds__list_tree
   makes trees that sum in the order of the ranks, from group to group. ds__flows_leads uses
   them for sums over many ranks.

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

static void ds__flow_add(ds__draft *d, size_t begin, size_t end, size_t in, size_t out, int owner,
                         int dest, ptrdiff_t up, ptrdiff_t down) {
    if (end <= begin || d->failed)
        return;
    ds__flow *f = DS__ADD(d, flow);
    if (f)
        *f = (ds__flow){ end - begin, in + begin, out + begin, owner, dest, up, down, 1, 0, 0 };
}

/* The way from the root of a tree to a node as a tree of its own, forwards or backwards. */
static ptrdiff_t ds__path(ds__draft *d, ptrdiff_t tree, int to, int backwards) {
    int root = to;
    for (; d->tree[tree + root] >= 0;)
        root = d->tree[tree + root];
    ptrdiff_t at = ds__tree_new(d, backwards ? to : root);
    for (int v = to; !d->failed && v != root; v = d->tree[tree + v]) {
        if (backwards)
            d->tree[at + d->tree[tree + v]] = v;
        else
            d->tree[at + v] = d->tree[tree + v];
    }
    return at;
}

/* Sums in the order of the list over groups of neighbours, each cut into `split`: each adds what
   it has to the sum of those before. The last one's member owns it. */
static ptrdiff_t ds__list_tree(ds__draft *d, const ds__algo *a, int j, int split, int *owner) {
    int group[DS__TOPOLOGY_MAX];
    int before = -1;
    ds__groups(d->t, a->level, group);
    ptrdiff_t at = ds__tree_new(d, -1);
    for (int i = 0; i < d->p && !d->failed;) {
        int n = 1;
        while (a->level && i + n < d->p && group[i + n] == group[i] &&
               (split < 2 ||
                d->t->seat[i + n] * split / d->largest == d->t->seat[i] * split / d->largest))
            n++;
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

/* Many ranks: slices are summed in the order of the list from group to group, each by the leads
   that have the same seat, and go on from the last one. The root of a reduce leads nothing,
   since it gets all results. A group may be cut into several: then there are fewer slices, hence
   fewer copies for as many pieces. Returns 0 if a part of the largest group has no lead. */
static int ds__flows_leads(ds__draft *d, int split) {
    static const ds__algo star = { NULL, DS__WITH_TREES, DS__ROOTED, 1,
                                   1,    1 << 20,        1,          DS__GROUPS_CHAIN };
    const ds_plan_desc *w = d->want;
    const int *island = d->t->island;
    const int *seat = d->t->seat;
    int p = d->p;
    int rooted = w->what == DS_REDUCE;
    int run = d->largest / split;
    int n = run - rooted;
    if (n < 1)
        return 0;
    int each = p / n;
    int spare = rooted ? seat[w->root] % run : n;
    ds__algo level = { NULL, DS__WITH_TREES, DS__IN_LIST, 1, n, 1, 0, 0 };
    if (split > 1 && (d->largest % split || p % d->largest))
        return 0;
    if (w->what == DS_REDUCE_SCATTER && (p % n || each < 2))
        return 0;
    d->ways = n;
    for (int j = 0; j < n; j++) {
        int owner = 0;
        ptrdiff_t up = ds__list_tree(d, &level, j + (j >= spare), split, &owner);
        ptrdiff_t down;
        size_t begin = ds__slice(w, w->bytes, (size_t)j, (size_t)n);
        size_t end = ds__slice(w, w->bytes, (size_t)j + 1, (size_t)n);
        if (d->failed || !ds__in_order(d, up))
            return 0;
        if (w->what == DS_ALL_REDUCE) {
            down = ds__tree_make(d, &star, owner, 0);
        } else if (w->what == DS_REDUCE) {
            int via = owner; /* its twin beside the root */
            down = ds__tree_new(d, owner);
            for (int i = 0; i < p && island[owner] != island[w->root]; i++)
                if (island[i] == island[w->root] && seat[i] == seat[owner])
                    via = i;
            if (!d->failed && via != owner)
                d->tree[down + via] = owner;
            if (!d->failed && via != w->root)
                d->tree[down + w->root] = via;
        } else {
            begin = ds__block(w, (size_t)(j * each), (size_t)p);
            end = ds__block(w, (size_t)((j + 1) * each), (size_t)p);
            down = (ptrdiff_t)d->trees;
            for (int i = j * each; i < (j + 1) * each && !d->failed; i++) {
                ptrdiff_t at = ds__tree_new(d, owner);
                if (!d->failed && owner != i)
                    d->tree[at + i] = owner;
            }
        }
        size_t flows = d->flows;
        ds__flow_add(d, begin, end, 0, 0, owner,
                     w->what == DS_REDUCE       ? w->root
                     : w->what == DS_ALL_REDUCE ? -1
                                                : j * each,
                     up, down);
        if (w->what == DS_REDUCE_SCATTER && d->flows > flows)
            d->flow[flows].parts = each;
    }
    return !d->failed;
}

#endif
