/* plan/tree.h - trees of copies.

   Describes an algorithm (ds__algo) and makes trees from it: chains, heaps of any arity, stars,
   and trees that go from group to group (ds__tree_build). ds__tree_add adds an empty tree to a
   draft, ds__tree_line_build sorts the ranks by their distance from the root.

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

/* Copies between groups: from group to group; from the root's group to all others; from each rank
   of the root's group to one of each other group. */
enum { DS__GROUPS_CHAIN, DS__GROUPS_STAR, DS__GROUPS_TWINS };

typedef struct ds__algo {
    const char *name;
    int with; /* DS__WITH_* */
    int mode; /* DS__ROOTED...: which ranks sum */
    int level;
    int ways;
    int arity; /* copies that each node makes */
    /* the root copies to its group itself, else through a member that differs from way to way */
    int own;
    int shape; /* DS__GROUPS_*: from group to group */
} ds__algo;

static ptrdiff_t ds__tree_add(ds__draft *d, int root) {
    ptrdiff_t at = (ptrdiff_t)d->trees;
    size_t n = (size_t)d->p + 1;
    while (!d->failed && d->trees + n > d->tree_room) { /* room for all at once */
        size_t full = d->tree_room;
        int *grown = ds__array_add(&d->tree, full, &d->tree_room, sizeof *d->tree);
        if (!grown)
            d->failed = 1;
    }
    for (size_t i = 0; i < n && !d->failed; i++)
        d->tree[d->trees++] = i == (size_t)root ? DS__ALONE : DS__APART;
    return at;
}

static void ds__tree_groups_of(const ds_topology *t, int level, int *group) {
    memcpy(group, t->group[level], (size_t)t->devices * sizeof *group);
}

/* The ranks, those of a switch and of a side together, the root and those near to it first. */
static void ds__tree_line_build(const ds__draft *d, int root, int *line) {
    int island[DS__TOPOLOGY_MAX];
    int side[DS__TOPOLOGY_MAX];
    int n = d->p;
    ds__tree_groups_of(d->t, 1, island);
    ds__tree_groups_of(d->t, 2, side);
    for (int i = 0; i < n; i++) {
        int v = (root + i) % n;
        int at = i;
        for (; at > 0; at--) {
            int u = line[at - 1];
            int a = side[u] == side[root] ? -1 : side[u];
            int b = side[v] == side[root] ? -1 : side[v];
            if (a == b) {
                a = island[u] == island[root] ? -1 : island[u];
                b = island[v] == island[root] ? -1 : island[v];
            }
            if (a <= b)
                break;
            line[at] = u;
        }
        line[at] = v;
    }
}

/* A group of ranks in a tree, nearest to the root first. */
typedef struct ds__tree_group {
    int first; /* of its ranks in the line */
    int size;
    int entry; /* the member that gets the data from another group */
} ds__tree_group;

/* A tree that is made from group to group. */
typedef struct ds__tree_maker {
    const ds__algo *a;
    int *tree;
    int root;
    int j;     /* the number of the tree among those of the root */
    int alone; /* 1: the root copies to its group itself */
    int shift; /* roots of one group take different ways */
    int groups;
    int line[DS__TOPOLOGY_MAX];
    ds__tree_group group[DS__TOPOLOGY_MAX];
} ds__tree_maker;

/* Makes a heap of the members of a group: the parent of its entry is given. `skip`: copies that
   the entry makes to other groups. */
static void ds__tree_heap_add(const ds__tree_maker *m, const int *member, int count, int entry,
                              int parent, int skip) {
    int arity = m->a->arity;
    int top = arity > skip ? arity - skip : 1;
    for (int i = 0; i < count; i++) {
        int from = 0;
        if (i > top)
            from = 1 + (i - 1 - top) / arity;
        int above = i ? member[(entry + from) % count] : parent;
        m->tree[member[(entry + i) % count]] = above;
    }
}

/* Returns the member that gets the data from another group: of n members, another for each way. */
static int ds__tree_entry(const ds__tree_maker *m, int n) {
    int way = m->a->ways >= n ? m->j % n : m->j * n / m->a->ways;
    return (way + m->shift) % n;
}

/* Returns the rank that copies to group g: the entry of the group before, or of the root's. */
static int ds__tree_parent(const ds__tree_maker *m, int g) {
    int via = m->a->shape == DS__GROUPS_CHAIN ? g - 1 : 0;
    const ds__tree_group *o = &m->group[via];
    int lead = via == 0 && !m->alone;
    return m->line[o->first + lead + o->entry];
}

/* Returns how many copies to other groups the entry of group g makes. */
static int ds__tree_skip(const ds__tree_maker *m, int g) {
    if (m->a->shape == DS__GROUPS_CHAIN)
        return g + 1 < m->groups;
    if (g || m->groups == 1)
        return 0;
    return m->a->shape == DS__GROUPS_STAR ? m->groups - 1 : 1;
}

/* Adds the members of group g to the tree. */
static void ds__tree_group_add(ds__tree_maker *m, int g) {
    ds__tree_group *o = &m->group[g];
    int lead = g == 0 && !m->alone;
    int n = o->size - lead;
    int *member = m->line + o->first + lead;
    int parent = m->root;
    o->entry = g == 0 && m->alone ? 0 : ds__tree_entry(m, n);
    if (g && m->a->shape == DS__GROUPS_TWINS) {
        for (int i = 0; i < n; i++)
            m->tree[member[i]] = m->line[i % m->group[0].size];
        return;
    }
    if (g)
        parent = ds__tree_parent(m, g);
    else if (m->alone)
        parent = DS__ALONE;
    ds__tree_heap_add(m, member, n, o->entry, parent, ds__tree_skip(m, g));
}

/* Returns the j-th tree from a root; -1 if memory is exhausted. */
static ptrdiff_t ds__tree_build(ds__draft *d, const ds__algo *a, int root, int j) {
    int group[DS__TOPOLOGY_MAX];
    ds__tree_maker m;
    ptrdiff_t at = ds__tree_add(d, root);
    if (d->failed)
        return -1;
    int *tree = d->tree + at;
    if (a->with == DS__WITH_HOST) {
        for (int i = 0; i < d->p; i++)
            tree[i] = i == root ? DS__ALONE : d->p;
        tree[d->p] = root;
        return at;
    }

    ds__tree_groups_of(d->t, a->level, group);
    ds__tree_line_build(d, root, m.line);
    m.groups = 0;
    for (int i = 0; i < d->p; i++) {
        if (i == 0 || group[m.line[i]] != group[m.line[i - 1]])
            m.group[m.groups++] = (ds__tree_group){ i, 0, 0 };
        m.group[m.groups - 1].size++;
    }
    m.shift = 0;
    for (int i = 0; i < root; i++)
        m.shift += group[i] == group[root];
    m.a = a;
    m.tree = tree;
    m.root = root;
    m.j = j;
    m.alone = a->own || m.group[0].size == 1;
    for (int g = 0; g < m.groups; g++)
        ds__tree_group_add(&m, g);
    return at;
}

#endif
