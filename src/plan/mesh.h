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

typedef struct ds__mesh {
    int p;
    int cap[DS__MESH][DS__MESH];
    int used[DS__MESH][DS__MESH];
} ds__mesh;

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

static int ds__mesh_cut(const ds__mesh *m, int root, int enough) {
    for (int v = 0; v < m->p; v++)
        if (v != root)
            enough = ds__mesh_flow(m, root, v, enough);
    return enough;
}

/* Links as whole numbers of units, so that there are not more than so many trees; 0: it is no
   mesh. */
static int ds__mesh_init(const ds_topology *t, ds__mesh *m, int most) {
    double least = 1e300;
    memset(m, 0, sizeof *m);
    m->p = t->devices;
    if (m->p > DS__MESH || m->p < 2)
        return 0;
    for (int pass = 0; pass < 8; pass++) {
        int cut = INT32_MAX;
        for (int i = 0; i < m->p; i++)
            for (int k = 0; k < m->p; k++) {
                const ds__troute *r = ds__route_of(t, i, k);
                m->cap[i][k] = 0;
                if (i == k || !r->direct || r->hops != 1)
                    continue;
                if (pass == 0 && r->rate < least)
                    least = r->rate;
                if (pass)
                    m->cap[i][k] =
                        (int)(r->rate / least + 1e-6) > 1000 ? 1000 : (int)(r->rate / least + 1e-6);
            }
        if (pass == 0)
            continue;
        for (int i = 0; i < m->p; i++) {
            int c = ds__mesh_cut(m, i, 1000);
            if (c < cut)
                cut = c;
        }
        if (!cut)
            return 0;
        if (cut <= most)
            return cut;
        least *=
            (double)(cut + most) / (2.0 * most) > 1.1 ? (double)(cut + most) / (2.0 * most) : 1.1;
    }
    return 0;
}

static int ds__mesh_trees(ds__draft *d, ds__mesh *m, int root, int count, ptrdiff_t *out) {
    ds__mesh left = *m;
    for (int j = 0; j < count; j++) {
        int depth[DS__MESH] = { 0 };
        out[j] = ds__tree_add(d, root);
        if (d->failed)
            return 0;
        int *tree = d->tree + out[j];
        for (int n = 1; n < m->p; n++) {
            char tried[DS__MESH][DS__MESH] = { { 0 } };
            for (;;) {
                int bu = -1;
                int bv = -1;
                for (int u = 0; u < m->p; u++)
                    for (int v = 0; v < m->p; v++) {
                        if (tree[u] == DS__APART || tree[v] != DS__APART || left.cap[u][v] < 1 ||
                            tried[u][v])
                            continue;
                        if (bu < 0 || depth[u] < depth[bu] ||
                            (depth[u] == depth[bu] &&
                             m->used[u][v] * m->cap[bu][bv] < m->used[bu][bv] * m->cap[u][v])) {
                            bu = u;
                            bv = v;
                        }
                    }
                if (bu < 0)
                    return 0;
                tried[bu][bv] = 1;
                left.cap[bu][bv]--;
                if (ds__mesh_cut(&left, root, count - j - 1) >= count - j - 1) {
                    tree[bv] = bu;
                    depth[bv] = depth[bu] + 1;
                    m->used[bu][bv]++;
                    break;
                }
                left.cap[bu][bv]++;
            }
        }
    }
    return 1;
}

/* What may be summed in this tree: 1 when the order of the sums is as good as the order of the
   list. */
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
    /* the host sums nothing */
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
        /* A sum on the way is that of the first ranks: so it comes first where it goes, and no
           other does. */
        if (items > 1 && tree[v] >= 0 &&
            (low[v] != 0 || high[v] + 1 != size[v] || d->want->order == DS_ORDER_AT_ONCE))
            return 0;
    }
    return 1;
}

#endif
