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

/* A flow network of the links (Dinic's algorithm). Devices and the host forward data. */
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

/* Adds an edge and its reverse, which has no capacity. */
static void ds__net_edge(ds__net *n, int a, int b, double cap) {
    for (int i = 0; i < 2; i++) {
        n->to[n->edges] = i ? a : b;
        n->cap[n->edges] = i ? 0 : cap;
        n->next[n->edges] = n->head[i ? b : a];
        n->head[i ? b : a] = n->edges++;
    }
}

/* Pushes at most `most` bytes along one path of rising levels. Returns the bytes that reached the
   sink. */
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

/* Returns the maximum flow. Afterwards the nodes on the source's side of a narrowest cut have a
   level of 0 or more, and all others -1. */
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

/* Data that must move: each rank v outside of `from` needs need[v] bytes from ranks inside. */
typedef struct ds__demand {
    double *need;
    char *from; /* of each rank: 1 if it has the data */
    int back;   /* 1: the bytes move the other way, from the ranks outside to those inside */
} ds__demand;

/* Allocates a network for the topology, with a source and a sink. Returns 0 if memory is
   exhausted. */
static int ds__net_init(ds__net *n, const ds_topology *t) {
    size_t most = 4 * (size_t)t->links + 4 * (size_t)t->devices + 8;
    size_t nodes = (size_t)t->nodes + 2;
    memset(n, 0, sizeof *n);
    n->nodes = t->nodes + 2;
    n->head = ds__host_alloc((nodes * 4 + 2 * most) * sizeof *n->head);
    n->cap = ds__host_alloc(most * sizeof *n->cap);
    if (!n->head || !n->cap)
        return 0;
    n->level = n->head + nodes;
    n->at = n->level + nodes;
    n->next = n->at + 2 * nodes;
    n->to = n->next + most;
    return 1;
}

static void ds__net_deinit(ds__net *n) {
    ds__host_free(n->head);
    ds__host_free(n->cap);
}

/* Makes the edges: links carry as much as in `time` seconds, and each rank's demand flows into the
   sink. */
static void ds__net_fill(ds__net *n, const ds_topology *t, const ds__demand *w, double time) {
    int source = t->nodes;
    int sink = source + 1;
    n->edges = 0;
    for (int i = 0; i < n->nodes; i++)
        n->head[i] = -1;
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        ds__net_edge(n, k->a, k->b, k->rate[w->back] * time);
        ds__net_edge(n, k->b, k->a, k->rate[!w->back] * time);
    }
    for (int i = 0; i < t->devices; i++) {
        if (w->from[i])
            ds__net_edge(n, source, t->rank[i], 1e30);
        else
            ds__net_edge(n, t->rank[i], sink, w->need[i]);
    }
}

/* Returns the seconds that the cut takes which the last ds__net_flow found; 0: no link crosses the
   cut. */
static double ds__net_cut_time(const ds__net *n, const ds_topology *t, const ds__demand *w) {
    double out = 0;  /* bytes that must leave the side of the source */
    double rate = 0; /* bytes that leave it in a second */
    for (int i = 0; i < t->devices; i++)
        out += !w->from[i] && n->level[t->rank[i]] < 0 ? w->need[i] : 0;
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        if (n->level[k->a] >= 0 && n->level[k->b] < 0)
            rate += k->rate[w->back];
        if (n->level[k->b] >= 0 && n->level[k->a] < 0)
            rate += k->rate[!w->back];
    }
    return rate > 0 ? out / rate : 0;
}

/* Returns the least number of seconds in which the links can move a demand: that of the narrowest
   cut (Dinkelbach). Returns 0 if memory is exhausted. */
static double ds__demand_time(const ds_topology *t, const ds__demand *w) {
    ds__net n;
    double total = 0;
    double time = 0;
    int ok = ds__net_init(&n, t);
    for (int i = 0; i < t->devices; i++)
        total += w->from[i] ? 0 : w->need[i];
    for (int round = 0; ok && total > 0 && round < 64; round++) {
        ds__net_fill(&n, t, w, time);
        if (ds__net_flow(&n, t->nodes, t->nodes + 1) > total * (1 - 1e-9) - 1)
            break;
        double longer = ds__net_cut_time(&n, t, w);
        if (longer <= time)
            break;
        time = longer;
    }
    ds__net_deinit(&n);
    return time;
}

/* Returns the shortest latency of a copy, without the time for which it holds an engine. */
static int64_t ds__bound_latency(const ds_topology *t) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < t->devices; i++)
        for (int k = 0; k < t->devices; k++)
            if (i != k && ds__route_of(t, i, k)->hops && ds__route_of(t, i, k)->latency_ns < least)
                least = ds__route_of(t, i, k)->latency_ns;
    return least == INT64_MAX ? 0 : least;
}

/* Returns how many links with this link's rates rank i has more than rank j to the node `other`.
   `end`: the side of the link that is a rank's. */
static int ds__bound_link_surplus(const ds_topology *t, const ds__tlink *like, int end, int i,
                                  int j) {
    int other = end ? like->a : like->b;
    int surplus = 0;
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *o = &t->link[l];
        for (int side = 0; side < 2; side++) {
            int at = side ? o->b : o->a;
            if ((side ? o->a : o->b) != other || o->rate[side] != like->rate[end] ||
                o->rate[!side] != like->rate[!end])
                continue;
            surplus += (at == t->rank[i]) - (at == t->rank[j]);
        }
    }
    return surplus;
}

/* Returns 1 if ranks i and j have the same links to the same nodes. */
static int ds__bound_is_alike(const ds_topology *t, int i, int j) {
    int links = 0; /* of i, less those of j */
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        int first = k->a == t->rank[i];
        links -= k->a == t->rank[j] || k->b == t->rank[j];
        if (!first && k->b != t->rank[i])
            continue;
        links++;
        if (ds__bound_link_surplus(t, k, !first, i, j))
            return 0;
    }
    return links == 0;
}

/* Finds for each rank the first one with the same links: a time that holds for one holds for
   both. */
static void ds__bound_alike_find(const ds_topology *t, int *as) {
    for (int i = 0; i < t->devices; i++)
        for (as[i] = 0; as[i] < i; as[i]++)
            if (as[as[i]] == as[i] && ds__bound_is_alike(t, i, as[i]))
                break;
}

/* A bound that is being computed. */
typedef struct ds__bound {
    const ds_topology *t;
    const ds_plan_desc *w;
    ds__demand move;
    int as[DS__TOPOLOGY_MAX]; /* see ds__bound_alike_find */
} ds__bound;

static inline double ds__bound_longer(double a, double b) {
    return b > a ? b : a;
}

/* Returns the seconds in which all bytes can move between rank `from` and the farthest other rank.
   Of several ranks with the same links only one is computed. */
static double ds__bound_whole_time(ds__bound *b, int from) {
    double most = 0;
    for (int k = 0; k < b->t->devices; k++) {
        int first = 0;
        while (first < k && (first == from || b->as[first] != b->as[k]))
            first++;
        if (k == from || first < k)
            continue;
        memset(b->move.need, 0, (size_t)b->t->devices * sizeof *b->move.need);
        b->move.need[k] = (double)b->w->bytes;
        most = ds__bound_longer(most, ds__demand_time(b->t, &b->move));
    }
    return most;
}

/* Returns the seconds in which rank i can exchange its data with all others; `second`: in the
   second half of an all_reduce. */
static double ds__bound_rank_time(ds__bound *b, int i, int second) {
    int what = (int)b->w->what;
    int p = b->t->devices;
    memset(b->move.from, 0, (size_t)p);
    b->move.from[i] = 1;
    /* Into each rank: all_gather. Out of each rank: reduce_scatter, all_to_all. */
    if (what <= DS_REDUCE)
        b->move.back = what == DS_REDUCE || what == DS_GATHER;
    else
        b->move.back = what == DS_ALL_GATHER || second;
    if (what == DS_BROADCAST || what == DS_REDUCE)
        return ds__bound_whole_time(b, i);
    for (int k = 0; k < p; k++)
        b->move.need[k] = (double)b->w->bytes / p;
    return ds__demand_time(b->t, &b->move);
}

/* Returns the seconds in which each group can send its blocks of an all_to_all to all others. */
static double ds__bound_groups_time(ds__bound *b, int level) {
    double most = 0;
    int p = b->t->devices;
    int group[DS__TOPOLOGY_MAX];
    ds__tree_groups_of(b->t, level, group);
    b->move.back = 0;
    for (int g = 0; g < p; g++) {
        int n = 0;
        int first = 0;
        while (group[first] != group[g])
            first++;
        if (first < g)
            continue;
        for (int i = 0; i < p; i++) {
            b->move.from[i] = group[i] == group[g];
            n += b->move.from[i];
        }
        for (int i = 0; i < p; i++)
            b->move.need[i] = (double)b->w->bytes / p * n;
        most = ds__bound_longer(most, ds__demand_time(b->t, &b->move));
    }
    return most;
}

/* Returns the bound of a collective in nanoseconds. `need` and `from` have room for an entry of
   each rank. */
static int64_t ds__bound_compute(const ds_topology *t, const ds_plan_desc *w, double *need,
                                 char *from) {
    ds__bound b = { .t = t, .w = w, .move = { need, from, 0 } };
    double worst = 0;
    int rounds = 0;
    int halves = w->what == DS_ALL_REDUCE ? 2 : 1;
    ds__bound_alike_find(t, b.as);
    while (1 << rounds < t->devices)
        rounds++;
    for (int half = 0; half < halves; half++) {
        double most = 0;
        for (int i = 0; i < t->devices; i++)
            if (w->what <= DS_REDUCE ? i == w->root : b.as[i] == i)
                most = ds__bound_longer(most, ds__bound_rank_time(&b, i, half));
        for (int level = 1; level <= 2 && w->what == DS_ALL_TO_ALL; level++)
            most = ds__bound_longer(most, ds__bound_groups_time(&b, level));
        worst += most;
    }
    return (int64_t)(worst * 1e9) + rounds * ds__bound_latency(t) * halves;
}

#endif
