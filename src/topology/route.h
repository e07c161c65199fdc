/* topology/route.h - routes and groups of devices.

   ds__routes_build computes the table of routes, the groups and the islands, as the last step of
   a construction. ds__route_ways_find finds the paths from one node; ds__groups_find assigns the
   devices to groups.

   Invariants: nodes, links and peer lines are complete. If several peer lines set the same value
   of a pair, the last line counts. A route has room for one wire more than there are switches and
   sockets, and for two measured ones. A measured rate below that of the links adds a wire to one
   route. A measured rate of both directions at once adds one wire to two routes. Every device
   reaches every other directly or through the host, or ds__routes_build fails.
   Locks: none.
   Threads: the thread that constructs the topology. */
#ifndef DS__TOPOLOGY_ROUTE_H
#define DS__TOPOLOGY_ROUTE_H

#include "types.h"

/* The best path to a node. */
typedef struct ds__way {
    int64_t latency; /* INT64_MAX: no path was found */
    double rate;
    int link; /* the last link, or -1 */
    int from; /* the node before the last link */
    int done; /* 1: no other path is better */
} ds__way;

/* Returns the node with the best path among those that are not done, or -1. */
static int ds__route_way_next(const ds_topology *t, const ds__way *way) {
    int at = -1;
    for (int i = 0; i < t->nodes; i++) {
        if (way[i].done || way[i].latency == INT64_MAX)
            continue;
        if (at < 0 || way[i].latency < way[at].latency ||
            (way[i].latency == way[at].latency && way[i].rate > way[at].rate))
            at = i;
    }
    return at;
}

/* Extends the path to node `at` by a link of that node, if no path to the link's other end is as
   good. */
static void ds__route_way_extend(const ds_topology *t, int link, int at, ds__way *way) {
    const ds__tlink *k = &t->link[link];
    int back = k->a != at;
    ds__way *to = &way[back ? k->a : k->b];
    int64_t latency = way[at].latency + k->latency;
    double rate = k->rate[back] < way[at].rate ? k->rate[back] : way[at].rate;
    if (to->done || latency > to->latency || (latency == to->latency && rate <= to->rate))
        return;
    *to = (ds__way){ latency, rate, link, at, 0 };
}

/* Finds the best paths from a node to all others (Dijkstra). Devices and the host do not forward
   data. */
static void ds__route_ways_find(const ds_topology *t, int from, ds__way *way) {
    for (int i = 0; i < t->nodes; i++)
        way[i] = (ds__way){ INT64_MAX, 0, -1, -1, 0 };
    way[from].latency = 0;
    way[from].rate = 1e300;
    for (;;) {
        int at = ds__route_way_next(t, way);
        if (at < 0)
            return;
        way[at].done = 1;
        int kind = t->node[at].kind;
        if (at != from && (kind == DS__NODE_DEVICE || kind == DS__NODE_HOST))
            continue;
        for (int l = 0; l < t->links; l++)
            if (t->link[l].a == at || t->link[l].b == at)
                ds__route_way_extend(t, l, at, way);
    }
}

/* Returns the switch or socket that a device is linked to with the highest rate, or the device. */
static int ds__group_switch(const ds_topology *t, int device) {
    int group = device;
    double best = 0;
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        if (k->a != device && k->b != device)
            continue;
        int to = k->a == device ? k->b : k->a;
        if (to == 0 || t->node[to].kind == DS__NODE_DEVICE || k->rate[0] <= best)
            continue;
        best = k->rate[0];
        group = to;
    }
    return group;
}

/* Returns 1 if a link joins two nodes of one side: all links but those to the host, between
   sockets and of networks. */
static int ds__group_joins(const ds__tlink *k) {
    return k->a && k->b && k->kind != DS_LINK_SOCKET && k->kind != DS_LINK_NETWORK;
}

/* Finds the side of the slow links on which each node is: the lowest node of that side. */
static void ds__group_sides(const ds_topology *t, int *part) {
    int again = 1;
    for (int i = 0; i < t->nodes; i++)
        part[i] = i;
    while (again) {
        again = 0;
        for (int l = 0; l < t->links; l++) {
            const ds__tlink *k = &t->link[l];
            if (!ds__group_joins(k) || part[k->a] == part[k->b])
                continue;
            int low = part[k->a] < part[k->b] ? part[k->a] : part[k->b];
            part[k->a] = low;
            part[k->b] = low;
            again = 1;
        }
    }
}

/* Assigns the devices to groups: all in one (level 0), those of one switch (1), or those of one
   side of the slow links (2). */
static void ds__groups_find(const ds_topology *t, int level, int *group) {
    int part[DS__TOPOLOGY_MAX];
    if (level == 2)
        ds__group_sides(t, part);
    for (int i = 0; i < t->devices; i++) {
        group[i] = 0;
        if (level == 1)
            group[i] = ds__group_switch(t, t->rank[i]);
        else if (level == 2)
            group[i] = part[t->rank[i]];
    }
}

/* Adds a wire at the end of a route. Returns 0 if memory is exhausted. */
static int ds__route_wire(ds_topology *t, ds__troute *r, double rate) {
    double *w = ds__array_add(&t->wire, (size_t)t->wires, &t->wire_room, sizeof *w);
    if (!w)
        return 0;
    *w = rate;
    if (rate < r->rate)
        r->rate = rate;
    t->hop[r->wire - t->hop + (ptrdiff_t)r->hops++] = t->wires++;
    return 1;
}

/* Values that peer lines give for one pair. */
typedef struct ds__pair_rates {
    double push;
    double pull;
    int both; /* the last line with a rate of both directions at once, plus 1 */
} ds__pair_rates;

/* Reads the peer lines. Returns an array with an element for each route, or NULL if memory is
   exhausted. */
static ds__pair_rates *ds__pair_rates_read(ds_topology *t) {
    size_t p = (size_t)t->devices + 1;
    ds__pair_rates *rates = ds__host_alloc(p * p * sizeof *rates);
    for (int i = 0; rates && i < t->peers; i++) {
        const struct ds__tpeer *e = &t->peer[i];
        ds__troute *r = ds__route_of(t, e->from, e->to);
        ds__pair_rates *pair = &rates[r - t->route];
        if (e->what == 'k')
            r->direct = r->only == e->kind;
        else if (e->what == '0' || e->what == '1')
            r->direct = e->what == '1';
        else if (e->what == 'u')
            pair->push = e->rate;
        else if (e->what == 'd')
            pair->pull = e->rate;
        else if (e->what == 'l' && r->hops)
            r->latency_ns = (int64_t)e->rate;
        else if (e->what == 'b')
            pair->both = i + 1;
    }
    return rates;
}

/* Adds a wire for the measured rate of copies if the links are faster. The side that copies faster
   makes the copies. Returns 0 if memory is exhausted. */
static int ds__route_measured(ds_topology *t, ds__troute *r, double push, double pull) {
    if (!r->hops) {
        r->direct = 0;
        return 1;
    }
    if (push <= 0 || push > r->rate)
        push = r->rate;
    if (pull <= 0 || pull > r->rate)
        pull = r->rate;
    r->push = push > pull;
    double rate = r->push ? push : pull;
    return rate >= r->rate || ds__route_wire(t, r, rate);
}

/* Adds one wire to the routes of both directions for the measured rate of copies in both at once,
   if the two routes are faster. Returns 0 if memory is exhausted. */
static int ds__route_both(ds_topology *t, ds__troute *there, ds__troute *back, double rate) {
    if (!there->hops || !back->hops || rate >= there->rate + back->rate)
        return 1;
    double alone = there->rate > back->rate ? there->rate : back->rate;
    if (!ds__route_wire(t, there, rate > alone ? rate : alone))
        return 0;
    t->hop[back->wire - t->hop + (ptrdiff_t)back->hops++] = t->wires - 1;
    return 1;
}

/* Applies the peer lines to the routes. */
static ds_result ds__routes_peers(ds_topology *t) {
    ds__pair_rates *rates = ds__pair_rates_read(t);
    int routes = (t->devices + 1) * (t->devices + 1);
    int ok = 1;
    if (!rates)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the routes of %d devices", t->devices);
    for (int i = 0; i < routes && ok; i++)
        ok = ds__route_measured(t, &t->route[i], rates[i].push, rates[i].pull);
    for (int i = 0; i < t->peers && ok; i++) {
        const struct ds__tpeer *e = &t->peer[i];
        ds__troute *there = ds__route_of(t, e->from, e->to);
        if (e->what == 'b' && rates[there - t->route].both == i + 1 && e->from <= e->to)
            ok = ds__route_both(t, there, ds__route_of(t, e->to, e->from), e->rate);
    }
    ds__host_free(rates);
    return ok ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Returns the most wires that a route has room for. Only switches and sockets forward data, and the
   host only ends a route. */
static int ds__route_most(const ds_topology *t) {
    int most = 1 + 2; /* and a wire for each of two measured rates */
    for (int i = 0; i < t->nodes; i++)
        most += t->node[i].kind == DS__NODE_SWITCH || t->node[i].kind == DS__NODE_SOCKET;
    return most;
}

/* Makes the routes in the form that the virtual clock of the CPU driver takes. */
static ds_result ds__ways_build(ds_topology *t) {
    size_t n = (size_t)t->devices + 1;
    t->way = ds__host_alloc(n * n * sizeof *t->way);
    if (!t->way)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the routes of %d devices", t->devices);
    for (size_t i = 0; i < n * n; i++)
        if (i / n != i % n)
            t->way[i] = (ds_cpu_route){ t->route[i].latency_ns, t->route[i].direct,
                                        t->route[i].hops, t->route[i].wire };
    return DS_OK;
}

/* Assigns the devices to the groups of all levels. Returns 0 if memory is exhausted. */
static int ds__groups_build(ds_topology *t) {
    for (int level = 0; level < 3; level++) {
        t->group[level] = ds__host_alloc(((size_t)t->devices + 1) * sizeof **t->group);
        if (!t->group[level])
            return 0;
        ds__groups_find(t, level, t->group[level]);
    }
    return 1;
}

/* Numbers the switches' groups and the members of each. Returns 0 if memory is exhausted. */
static int ds__islands_build(ds_topology *t) {
    size_t n = (size_t)t->devices + 1;
    int islands = 0;
    t->island = ds__host_alloc(2 * n * sizeof *t->island);
    if (!t->island)
        return 0;
    t->seat = t->island + n;
    for (int i = 0; i < t->devices; i++) {
        int last = i - 1;
        while (last >= 0 && t->group[1][last] != t->group[1][i])
            last--;
        t->island[i] = last < 0 ? islands++ : t->island[last];
        t->seat[i] = last < 0 ? 0 : t->seat[last] + 1;
    }
    return 1;
}

/* Lists the wires of a path between two nodes in `hop`. Returns the route. */
static ds__troute ds__route_build(const ds_topology *t, const ds__way *way, int from, int to,
                                  int *hop) {
    ds__troute r = { t->latency_ns, 1, 0, hop, way[to].rate, 0, -1 };
    if (from == to || way[to].link < 0)
        return r;
    r.latency_ns += way[to].latency;
    r.only = t->link[way[to].link].kind;
    for (int n = to; n != from; n = way[n].from)
        r.hops++;
    for (size_t h = r.hops; h-- > 0; to = way[to].from) {
        const ds__tlink *l = &t->link[way[to].link];
        hop[h] = l->wire[l->a != way[to].from];
        if (l->kind != r.only)
            r.only = -1;
    }
    return r;
}

/* Makes all routes from one row of the table to the columns. `most` is the room of a route. */
static void ds__routes_from(ds_topology *t, int row, int most, ds__way *way) {
    int p = t->devices;
    int from = row < p ? t->rank[row] : 0;
    ds__route_ways_find(t, from, way);
    for (int k = 0; k <= p; k++) {
        ds__troute *r = ds__route_of(t, row, k);
        *r = ds__route_build(t, way, from, k < p ? t->rank[k] : 0,
                             t->hop + (r - t->route) * (ptrdiff_t)most);
    }
}

/* Returns DS_OK if every device reaches every other one, directly or through the host. */
static ds_result ds__routes_check(const ds_topology *t) {
    int host = t->devices;
    for (int i = 0; i < t->devices; i++)
        for (int k = 0; k < t->devices; k++) {
            if (i == k || ds__route_of(t, i, k)->direct)
                continue;
            DS__REQUIRE(ds__route_of(t, i, host)->hops && ds__route_of(t, host, k)->hops,
                        "there is no route from %s to %s, neither directly nor through host memory",
                        t->node[t->rank[i]].name, t->node[t->rank[k]].name);
        }
    return DS_OK;
}

/* Makes the table of routes and the groups of a topology whose nodes, links and peer lines are
   complete. */
static ds_result ds__routes_build(ds_topology *t) {
    size_t p = (size_t)t->devices + 1;
    int most = ds__route_most(t);
    ds__way *way = ds__host_alloc((size_t)t->nodes * sizeof *way);
    t->route = ds__host_alloc(p * p * sizeof *t->route);
    t->hop = ds__host_alloc(p * p * (size_t)most * sizeof *t->hop);
    if (!way || !t->route || !t->hop || !ds__groups_build(t) || !ds__islands_build(t)) {
        ds__host_free(way);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the routes of %d devices", t->devices);
    }
    for (int i = 0; i <= t->devices; i++)
        ds__routes_from(t, i, most, way);
    ds__host_free(way);
    if (ds__routes_peers(t) < 0)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__routes_check(t);
    return r == DS_OK ? ds__ways_build(t) : r;
}

#endif
