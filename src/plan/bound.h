/* plan/bound.h - bound of a collective's time.

   Computes bound_ns of a plan (ds__bound_compute): the bytes over the narrowest cut of the links,
   and the shortest latency ceil(log2 p) times, for all_reduce twice. The narrowest cut is found by
   maximum flow (Dinic) and Dinkelbach's iteration. ds__search_one skips further algorithms once a
   plan reaches the bound.

   Invariants: the first part is a lower bound of every plan. The second part is an estimate:
   ranks start several copies at once, so small collectives can be faster. Ranks with the same
   links are computed once (ds__bound_alike_find). If memory is exhausted, a cut counts as 0 and no
   error is reported.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_BOUND_H
#define DS__PLAN_BOUND_H

#include "../topology/types.h"
#include "tree.h"

/* Max-flow on the links, by Dinic's algorithm; devices and the host pass on what comes. */
typedef struct ds__net {
    int nodes;
    int edges;
    int *head;
    int *next;
    int *to;
    int *level;
    int *at;
    double *cap;
} ds__net;

static void ds__net_edge(ds__net *n, int a, int b, double cap) {
    for (int i = 0; i < 2; i++) {
        n->to[n->edges] = i ? a : b;
        n->cap[n->edges] = i ? 0 : cap;
        n->next[n->edges] = n->head[i ? b : a];
        n->head[i ? b : a] = n->edges++;
    }
}

static double ds__net_push(ds__net *n, int v, int sink, double most) {
    if (v == sink)
        return most;
    for (int *e = &n->at[v]; *e >= 0; *e = n->next[*e]) {
        int u = n->to[*e];
        int edge = *e;
        if (n->level[u] != n->level[v] + 1 || n->cap[edge] <= 1e-3)
            continue;
        double got = ds__net_push(n, u, sink, n->cap[edge] < most ? n->cap[edge] : most);
        if (got > 0) {
            n->cap[edge] -= got;
            n->cap[edge ^ 1] += got;
            return got;
        }
    }
    return 0;
}

static double ds__net_flow(ds__net *n, int source, int sink) {
    double sum = 0;
    double got;
    int *queue = n->at + n->nodes;
    for (;;) {
        int first = 0;
        int last = 0;
        for (int i = 0; i < n->nodes; i++)
            n->level[i] = -1;
        n->level[source] = 0;
        queue[last++] = source;
        while (first < last)
            for (int v = queue[first++], e = n->head[v]; e >= 0; e = n->next[e])
                if (n->cap[e] > 1e-3 && n->level[n->to[e]] < 0) {
                    n->level[n->to[e]] = n->level[v] + 1;
                    queue[last++] = n->to[e];
                }
        if (n->level[sink] < 0)
            return sum;
        memcpy(n->at, n->head, (size_t)n->nodes * sizeof *n->at);
        while ((got = ds__net_push(n, source, sink, 1e30)) > 0)
            sum += got;
    }
}

/* Seconds until every rank v has got need[v] bytes from those ranks of which from[] is set, at
   the least; back: until they have sent it. Some cut is the narrowest (Dinkelbach). */
static double ds__cut_time(const ds_topology *t, const char *from, const double *need, int back) {
    int source = t->nodes;
    int sink = source + 1;
    int most = 4 * t->links + 4 * t->devices + 8;
    ds__net n = { t->nodes + 2, 0, NULL, NULL, NULL, NULL, NULL, NULL };
    double total = 0;
    double time = 0;
    int *space = ds__host_alloc(((size_t)n.nodes * 4 + 2 * (size_t)most) * sizeof *space);
    n.cap = ds__host_alloc((size_t)most * sizeof *n.cap);
    for (int i = 0; i < t->devices; i++)
        total += from[i] ? 0 : need[i];
    for (int round = 0; space && n.cap && total > 0 && round < 64; round++) {
        n.head = space;
        n.level = n.head + n.nodes;
        n.at = n.level + n.nodes;
        n.next = n.at + 2 * n.nodes;
        n.to = n.next + most;
        n.edges = 0;
        for (int i = 0; i < n.nodes; i++)
            n.head[i] = -1;
        for (int l = 0; l < t->links; l++)
            for (int side = 0; side < 2; side++) {
                const ds__tlink *k = &t->link[l];
                ds__net_edge(&n, side ? k->b : k->a, side ? k->a : k->b,
                             k->rate[side ^ back] * time);
            }
        for (int i = 0; i < t->devices; i++)
            if (from[i])
                ds__net_edge(&n, source, t->rank[i], 1e30);
            else
                ds__net_edge(&n, t->rank[i], sink, need[i]);
        if (ds__net_flow(&n, source, sink) > total * (1 - 1e-9) - 1)
            break;
        double out = 0;  /* bytes that must leave the side of the source */
        double rate = 0; /* bytes that leave it in a second */
        for (int i = 0; i < t->devices; i++)
            out += !from[i] && n.level[t->rank[i]] < 0 ? need[i] : 0;
        for (int l = 0; l < t->links; l++) {
            const ds__tlink *k = &t->link[l];
            if (n.level[k->a] >= 0 && n.level[k->b] < 0)
                rate += k->rate[back];
            if (n.level[k->b] >= 0 && n.level[k->a] < 0)
                rate += k->rate[!back];
        }
        if (rate <= 0 || out / rate <= time)
            break;
        time = out / rate;
    }
    ds__host_free(space);
    ds__host_free(n.cap);
    return time;
}

/* of a dependent step: the shortest latency. What it holds an engine for besides is not counted */
static int64_t ds__bound_latency(const ds_topology *t) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < t->devices; i++)
        for (int k = 0; k < t->devices; k++)
            if (i != k && ds__route_of(t, i, k)->hops && ds__route_of(t, i, k)->latency_ns < least)
                least = ds__route_of(t, i, k)->latency_ns;
    return least == INT64_MAX ? 0 : least;
}

/* For each rank the first one that has the same links to the same nodes: what holds for one
   holds for both. */
static void ds__bound_alike_find(const ds_topology *t, int *as) {
    for (int i = 0; i < t->devices; i++)
        for (as[i] = 0; as[i] < i; as[i]++) {
            int same = as[as[i]] == as[i];
            int ours = 0;
            int theirs = 0;
            for (int l = 0; same && l < t->links; l++) {
                const ds__tlink *k = &t->link[l];
                int end = k->a == t->rank[i] ? 0 : k->b == t->rank[i] ? 1 : -1;
                int matches = 0;
                theirs += k->a == t->rank[as[i]] || k->b == t->rank[as[i]];
                if (end < 0)
                    continue;
                ours++;
                /* as many such links as it has, in both directions */
                for (int m = 0; m < t->links; m++) {
                    const ds__tlink *o = &t->link[m];
                    int other = end ? k->a : k->b;
                    for (int side = 0; side < 2; side++) {
                        if ((side ? o->a : o->b) != other || o->rate[side] != k->rate[end] ||
                            o->rate[!side] != k->rate[!end])
                            continue;
                        int at = side ? o->b : o->a;
                        matches += (at == t->rank[i]) - (at == t->rank[as[i]]);
                    }
                }
                same = matches == 0;
            }
            if (same && ours == theirs)
                break;
        }
}

static int64_t ds__bound_compute(const ds_topology *t, const ds_plan_desc *w, double *need,
                                 char *from) {
    double worst = 0;
    double S = (double)w->bytes;
    int p = t->devices;
    int rounds = 0;
    int sums = w->what == DS_REDUCE || w->what == DS_GATHER;
    int as[DS__TOPOLOGY_MAX];
    ds__bound_alike_find(t, as);
    while (1 << rounds < p)
        rounds++;
    for (int both = 0; both < (w->what == DS_ALL_REDUCE ? 2 : 1); both++) {
        double most = 0;
        for (int i = 0; i < p; i++) {
            int rooted = w->what <= DS_REDUCE;
            if (rooted ? i != w->root : as[i] != i)
                continue;
            /* into each rank (all_gather), or out of each (reduce_scatter, all_to_all) */
            int back = rooted ? sums : w->what == DS_ALL_GATHER || both;
            memset(from, 0, (size_t)p);
            from[i] = 1;
            int whole = w->what == DS_BROADCAST || w->what == DS_REDUCE;
            for (int k = 0; k < p; k++) {
                need[k] = whole ? 0 : S / p;
                int first = 0; /* of those like it, besides the root */
                while (first < k && (first == i || as[first] != as[k]))
                    first++;
                if (!whole || k == i || first < k)
                    continue;
                memset(need, 0, (size_t)p * sizeof *need);
                need[k] = S;
                double one = ds__cut_time(t, from, need, back);
                if (one > most)
                    most = one;
            }
            double time = whole ? 0 : ds__cut_time(t, from, need, back);
            if (time > most)
                most = time;
        }
        /* and from each group to the others */
        for (int level = 1; level <= 2 && w->what == DS_ALL_TO_ALL; level++) {
            int group[DS__TOPOLOGY_MAX];
            ds__tree_groups_of(t, level, group);
            for (int g = 0; g < p; g++) {
                int n = 0;
                int first = 0;
                while (group[first] != group[g])
                    first++;
                if (first < g)
                    continue;
                for (int i = 0; i < p; i++)
                    n += from[i] = group[i] == group[g];
                for (int i = 0; i < p; i++)
                    need[i] = S / p * n;
                double time = ds__cut_time(t, from, need, 0);
                if (time > most)
                    most = time;
            }
        }
        worst += most;
    }
    return (int64_t)(worst * 1e9) +
           rounds * ds__bound_latency(t) * (w->what == DS_ALL_REDUCE ? 2 : 1);
}

#endif
