/* plan/tree.h - trees of copies.

   Describes an algorithm (ds__algo) and makes trees from it: chains, heaps of any arity, stars,
   and trees that go from group to group (ds__tree_make). ds__tree_new adds an empty tree to a
   draft, ds__line sorts the ranks by their distance from the root.

   Invariants: a tree has an entry for each rank and a last one for the host. An entry is the
   parent, DS__ALONE for the root, or DS__APART for a node outside the tree. A tree is named by
   its index in d->tree, because a new tree may move the array.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_TREE_H
#define DS__PLAN_TREE_H

#include "../topology/types.h"
#include "types.h"

/* How trees are made. A group is all ranks (level 0), those of one switch (1) or of one side of
   the slow links (2). */
enum { DS__WITH_TREES, DS__WITH_MESH, DS__WITH_HOST, DS__WITH_WIRES, DS__WITH_GRID };

enum { DS__ROOTED, DS__BY_OWNERS, DS__IN_LIST, DS__ONE_SHOT };

enum {
    DS__GROUPS_CHAIN,
    DS__GROUPS_SPREAD,
    DS__GROUPS_STAR,
    /* each rank of the root's group copies to one of each other group */
    DS__GROUPS_TWINS
};

typedef struct ds__algo {
    const char *name;
    int with; /* DS__WITH_* */
    int mode; /* DS__ROOTED...: who sums */
    int level;
    int ways;
    int arity; /* copies that each node makes */
    /* the root copies to its group itself, else through a member that differs from way to way */
    int own;
    int shape; /* DS__GROUPS_*: from group to group */
} ds__algo;

static ptrdiff_t ds__tree_new(ds__draft *d, int root) {
    ptrdiff_t at = (ptrdiff_t)d->trees;
    size_t n = (size_t)d->p + 1;
    while (!d->failed && d->trees + n > d->tree_room) { /* room for all at once */
        size_t full = d->tree_room;
        int *grown = ds__grown(&d->tree, full, &d->tree_room, sizeof *d->tree);
        if (!grown)
            d->failed = 1;
    }
    for (size_t i = 0; i < n && !d->failed; i++)
        d->tree[d->trees++] = i == (size_t)root ? DS__ALONE : DS__APART;
    return at;
}

static void ds__groups(const ds_topology *t, int level, int *group) {
    memcpy(group, t->group[level], (size_t)t->devices * sizeof *group);
}

/* The ranks, those of a switch and of a side together, the root and those near to it first. */
static void ds__line(const ds__draft *d, int root, int *line) {
    int near[DS__TOPOLOGY_MAX];
    int side[DS__TOPOLOGY_MAX];
    int n = d->p;
    ds__groups(d->t, 1, near);
    ds__groups(d->t, 2, side);
    for (int i = 0; i < n; i++) {
        int v = (root + i) % n;
        int at = i;
        for (; at > 0; at--) {
            int u = line[at - 1];
            int a = side[u] == side[root] ? -1 : side[u];
            int b = side[v] == side[root] ? -1 : side[v];
            if (a == b) {
                a = near[u] == near[root] ? -1 : near[u];
                b = near[v] == near[root] ? -1 : near[v];
            }
            if (a <= b)
                break;
            line[at] = u;
        }
        line[at] = v;
    }
}

/* Members in the shape of a heap: the first one's parent is given. `skip`: copies that the first
   one makes elsewhere. */
static void ds__heap(int *tree, const int *member, int count, int first, int parent, int arity,
                     int skip) {
    int top = arity > skip ? arity - skip : 1;
    for (int i = 0; i < count; i++) {
        int from = i == 0 ? -1 : i <= top ? 0 : 1 + (i - 1 - top) / arity;
        tree[member[(first + i) % count]] = from < 0 ? parent : member[(first + from) % count];
    }
}

/* The j-th tree of so many from a root. */
static ptrdiff_t ds__tree_make(ds__draft *d, const ds__algo *a, int root, int j) {
    int line[DS__TOPOLOGY_MAX];
    int group[DS__TOPOLOGY_MAX];
    int first[DS__TOPOLOGY_MAX];
    int size[DS__TOPOLOGY_MAX];
    int entry[DS__TOPOLOGY_MAX];
    int groups = 0;
    ptrdiff_t at = ds__tree_new(d, root);
    if (d->failed)
        return -1;
    int *tree = d->tree + at;
    if (a->with == DS__WITH_HOST) {
        for (int i = 0; i < d->p; i++)
            tree[i] = i == root ? DS__ALONE : d->p;
        tree[d->p] = root;
        return at;
    }
    ds__groups(d->t, a->level, group);
    ds__line(d, root, line);
    for (int i = 0; i < d->p; i++) {
        if (i == 0 || group[line[i]] != group[line[i - 1]]) {
            first[groups] = i;
            size[groups++] = 0;
        }
        size[groups - 1]++;
    }
    int shift = 0; /* roots of one group take different ways */
    for (int i = 0; i < root; i++)
        shift += group[i] == group[root];
    int alone = a->own || size[0] == 1;
    for (int g = 0; g < groups; g++) {
        int lead = g == 0 && !alone;
        int n = size[g] - lead;
        entry[g] = g == 0 && alone ? 0 : ((a->ways >= n ? j % n : j * n / a->ways) + shift) % n;
        int *member = line + first[g] + lead;
        int parent = root;
        int skip = 0;
        if (g && a->shape == DS__GROUPS_TWINS) {
            for (int i = 0; i < n; i++)
                tree[member[i]] = line[i % size[0]];
            continue;
        }
        if (g == 0) {
            if (groups > 1)
                skip = a->shape == DS__GROUPS_STAR ? groups - 1 : 1;
            if (alone)
                parent = DS__ALONE;
        } else {
            int via = a->shape == DS__GROUPS_CHAIN  ? g - 1
                      : a->shape == DS__GROUPS_STAR ? 0
                                                    : 1 + (j + shift) % (groups - 1);
            if (via == g)
                via = 0;
            int n0 = size[via] - (via == 0 && !alone);
            int e = entry[via];
            if (via > g)
                e = ((a->ways >= n0 ? j % n0 : j * n0 / a->ways) + shift) % n0;
            parent = line[first[via] + (via == 0 && !alone) + e];
            skip = a->shape == DS__GROUPS_CHAIN                ? g + 1 < groups
                   : a->shape == DS__GROUPS_SPREAD && via == 0 ? groups - 2
                                                               : 0;
        }
        ds__heap(tree, member, n, entry[g], parent, a->arity, skip);
    }
    return at;
}

#endif
