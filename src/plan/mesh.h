/* plan/mesh.h - trees on a mesh of direct links.

   Makes as many trees from a root as possible on devices that are joined by links of their own
   (ds__mesh_init, ds__mesh_trees). The number of trees is that of the links through the
   narrowest cut (Edmonds). The construction follows Lovasz's proof: an edge is taken if the
   remaining edges still reach every node often enough. Edges that trees of other roots have
   used less come first. ds__in_order tells whether a tree may be used for sums.

   Invariants: a mesh has 2 to DS__MESH ranks. Link rates are whole units, chosen such that
   there are at most as many trees as requested. All trees of a root together use a link at most
   as often as it has units.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_MESH_H
#define DS__PLAN_MESH_H

#include "../topology/types.h"
#include "types.h"
#include "emit.h"
#include "tree.h"

#define DS__MESH 16

/* The direct links between devices. */
typedef struct ds__mesh {
    int p;
    int cap[DS__MESH][DS__MESH];  /* rate in units */
    int used[DS__MESH][DS__MESH]; /* number of trees, of all roots */
} ds__mesh;

/* Returns the maximum flow between two ranks, or `enough` if the flow is larger. */
static int ds__mesh_flow(const ds__mesh *m, int from, int to, int enough) {
    int cap[DS__MESH][DS__MESH];
    int back[DS__MESH];
    int queue[DS__MESH];
    int flow = 0;
    memcpy(cap, m->cap, sizeof cap);
    for (; flow < enough; flow++) {
        int head = 0;
        int tail = 0;
        for (int i = 0; i < m->p; i++)
            back[i] = -1;
        back[from] = from;
        queue[tail++] = from;
        while (head < tail && back[to] < 0) {
            int u = queue[head++];
            for (int v = 0; v < m->p; v++)
                if (back[v] < 0 && cap[u][v] > 0) {
                    back[v] = u;
                    queue[tail++] = v;
                }
        }
        if (back[to] < 0)
            break;
        for (int v = to; v != from; v = back[v]) {
            cap[back[v]][v]--;
            cap[v][back[v]]++;
        }
    }
    return flow;
}

/* Returns the narrowest cut between the root and another rank, or `enough` if the cut is wider. */
static int ds__mesh_cut(const ds__mesh *m, int root, int enough) {
    for (int v = 0; v < m->p; v++)
        if (v != root)
            enough = ds__mesh_flow(m, root, v, enough);
    return enough;
}

/* Returns the rate of a direct link from i to k in bytes per second, or 0. */
static double ds__mesh_link_rate(const ds_topology *t, int i, int k) {
    const ds__troute *r = ds__route_of(t, i, k);
    return i != k && r->direct && r->hops == 1 ? r->rate : 0;
}

/* Sets the links' rates in units of so many bytes per second. Returns the narrowest cut of all
   roots. */
static int ds__mesh_unit_set(ds__mesh *m, const ds_topology *t, double unit) {
    int cut = INT32_MAX;
    for (int i = 0; i < m->p; i++)
        for (int k = 0; k < m->p; k++) {
            double units = ds__mesh_link_rate(t, i, k) / unit + 1e-6;
            m->cap[i][k] = units > 1000 ? 1000 : (int)units; /* `units` may exceed an int */
        }
    for (int i = 0; i < m->p; i++) {
        int c = ds__mesh_cut(m, i, 1000);
        if (c < cut)
            cut = c;
    }
    return cut;
}

/* Makes the mesh of a topology, in units that allow at most so many trees of a root. Returns the
   number of trees; 0: the links are no mesh. */
static int ds__mesh_init(const ds_topology *t, ds__mesh *m, int most) {
    double unit = 1e300;
    memset(m, 0, sizeof *m);
    m->p = t->devices;
    if (m->p > DS__MESH || m->p < 2)
        return 0;
    for (int i = 0; i < m->p; i++)
        for (int k = 0; k < m->p; k++) {
            double rate = ds__mesh_link_rate(t, i, k);
            if (rate > 0 && rate < unit)
                unit = rate;
        }
    for (int tries = 0; tries < 7; tries++) {
        int cut = ds__mesh_unit_set(m, t, unit);
        if (cut <= most)
            return cut;
        double coarser = (double)(cut + most) / (2.0 * most);
        unit *= coarser > 1.1 ? coarser : 1.1;
    }
    return 0;
}

/* A tree on a mesh that is being made. */
typedef struct ds__mesh_growth {
    ds__mesh *mesh;
    ds__mesh left; /* links that no tree of the root uses */
    int *tree;
    int depth[DS__MESH];
    char tried[DS__MESH][DS__MESH]; /* 1: without this link, later trees lack links */
} ds__mesh_growth;

/* Returns 1 if the link from u to v is better for the tree than another one: nearer to the root, or
   used by fewer trees in relation to its rate. */
static int ds__mesh_link_is_better(const ds__mesh_growth *g, int u, int v, int other_u,
                                   int other_v) {
    const ds__mesh *m = g->mesh;
    if (g->depth[u] != g->depth[other_u])
        return g->depth[u] < g->depth[other_u];
    return m->used[u][v] * m->cap[other_u][other_v] < m->used[other_u][other_v] * m->cap[u][v];
}

/* Finds the best link from the tree to a rank outside that was not tried. Returns 0 if there is
   none. */
static int ds__mesh_link_find(const ds__mesh_growth *g, int *from, int *to) {
    int found = 0;
    for (int u = 0; u < g->mesh->p; u++)
        for (int v = 0; v < g->mesh->p; v++) {
            if (g->tree[u] == DS__APART || g->tree[v] != DS__APART || g->left.cap[u][v] < 1 ||
                g->tried[u][v])
                continue;
            if (found && !ds__mesh_link_is_better(g, u, v, *from, *to))
                continue;
            *from = u;
            *to = v;
            found = 1;
        }
    return found;
}

/* Adds one rank to the tree of a root, so that `more` trees remain possible. Returns 0 if no link
   allows that. */
static int ds__mesh_tree_grow(ds__mesh_growth *g, int root, int more) {
    int u = 0;
    int v = 0;
    memset(g->tried, 0, sizeof g->tried);
    while (ds__mesh_link_find(g, &u, &v)) {
        g->tried[u][v] = 1;
        g->left.cap[u][v]--;
        if (ds__mesh_cut(&g->left, root, more) >= more) {
            g->tree[v] = u;
            g->depth[v] = g->depth[u] + 1;
            g->mesh->used[u][v]++;
            return 1;
        }
        g->left.cap[u][v]++;
    }
    return 0;
}

/* Makes `count` trees from a root that together use no link more often than it has units. Returns 0
   if it cannot, or if memory is exhausted. */
static int ds__mesh_trees(ds__draft *d, ds__mesh *m, int root, int count, ptrdiff_t *out) {
    ds__mesh_growth g = { .mesh = m, .left = *m };
    for (int j = 0; j < count; j++) {
        out[j] = ds__tree_add(d, root);
        if (d->failed)
            return 0;
        g.tree = d->tree + out[j];
        for (int n = 1; n < m->p; n++)
            if (!ds__mesh_tree_grow(&g, root, count - j - 1))
                return 0;
    }
    return 1;
}

/* Returns 1 if the requested order permits the sums of a tree. */
static int ds__in_order(const ds__draft *d, ptrdiff_t at) {
    const int *tree = d->tree + at;
    int n = d->p + 1;
    int order[DS__TOPOLOGY_MAX + 1];
    int low[DS__TOPOLOGY_MAX + 1];
    int high[DS__TOPOLOGY_MAX + 1];
    int size[DS__TOPOLOGY_MAX + 1];
    int count = ds__by_depth(tree, n, order);
    int children = 0;
    for (int v = 0; v < n; v++)
        children += tree[v] == d->p;
    /* the host cannot sum */
    if (children > 1)
        return 0;
    if (d->want->order == DS_ORDER_ANY)
        return 1;
    for (int i = count - 1; i >= 0; i--) {
        int v = order[i];
        int own = v < d->p;
        int items = own;
        low[v] = high[v] = v;
        size[v] = own;
        if (!own) {
            low[v] = n;
            high[v] = -1;
        }
        for (int j = i + 1; j < count; j++) {
            int u = order[j];
            if (tree[u] != v)
                continue;
            items++;
            if (low[u] < low[v])
                low[v] = low[u];
            if (high[u] > high[v])
                high[v] = high[u];
            size[v] += size[u];
        }
        /* A sum below the root must be that of the first ranks. It is then the first operand of
           its parent, and the only sum among the operands. */
        if (items > 1 && tree[v] >= 0 &&
            (low[v] != 0 || high[v] + 1 != size[v] || d->want->order == DS_ORDER_AT_ONCE))
            return 0;
    }
    return 1;
}

#endif
