/* topology/route.h - routes and groups of devices.

   ds__routes_make computes the table of routes, the groups and the islands, as the last step of
   a construction. ds__route_ways_find finds the paths from one node; ds__groups_find assigns the
   devices to groups.

   Invariants: nodes, links and peer lines are complete. If several peer lines set the same value
   of a pair, the last line counts. A route has room for one wire more than there are switches and
   sockets, and for two measured ones. A measured rate below that of the links adds a wire to one
   route. A measured rate of both directions at once adds one wire to two routes. Every device
   reaches every other directly or through the host, or ds__routes_make fails.
   Locks: none.
   Threads: the thread that constructs the topology. */
#ifndef DS__TOPOLOGY_ROUTE_H
#define DS__TOPOLOGY_ROUTE_H

#include "types.h"

typedef struct ds__way {
    int64_t latency;
    double rate;
    int link;
    int from; /* the node before */
    int done;
} ds__way;

/* The ways from a node to all others. */
static void ds__route_ways_find(const ds_topology *t, int from, ds__way *way) {
    for (int i = 0; i < t->nodes; i++)
        way[i] = (ds__way){ INT64_MAX, 0, -1, -1, 0 };
    way[from].latency = 0;
    way[from].rate = 1e300;
    for (;;) {
        int at = -1;
        for (int i = 0; i < t->nodes; i++)
            if (!way[i].done && way[i].latency < INT64_MAX &&
                (at < 0 || way[i].latency < way[at].latency ||
                 (way[i].latency == way[at].latency && way[i].rate > way[at].rate)))
                at = i;
        if (at < 0)
            return;
        way[at].done = 1;
        if (at != from &&
            (t->node[at].kind == DS__NODE_DEVICE || t->node[at].kind == DS__NODE_HOST))
            continue;
        for (int l = 0; l < t->links; l++) {
            const ds__tlink *k = &t->link[l];
            if (k->a != at && k->b != at)
                continue;
            int to = k->a == at ? k->b : k->a;
            int back = k->a != at;
            int64_t latency = way[at].latency + k->latency;
            double rate = k->rate[back] < way[at].rate ? k->rate[back] : way[at].rate;
            if (way[to].done || latency > way[to].latency ||
                (latency == way[to].latency && rate <= way[to].rate))
                continue;
            way[to] = (ds__way){ latency, rate, l, at, 0 };
        }
    }
}

/* Groups of devices: all (level 0), those of one switch (1) or of one side of the slow links
   (2). */
static void ds__groups_find(const ds_topology *t, int level, int *group) {
    int part[DS__TOPOLOGY_MAX];
    int again = 1;
    for (int i = 0; i < t->devices; i++)
        group[i] = 0;
    if (level == 0)
        return;
    for (int i = 0; i < t->nodes; i++)
        part[i] = i;
    while (again && level == 2) {
        again = 0;
        for (int l = 0; l < t->links; l++) {
            const ds__tlink *k = &t->link[l];
            if (!k->a || !k->b || k->kind == DS_LINK_SOCKET || k->kind == DS_LINK_NETWORK ||
                part[k->a] == part[k->b])
                continue;
            part[k->a] = part[k->b] = part[k->a] < part[k->b] ? part[k->a] : part[k->b];
            again = 1;
        }
    }
    for (int i = 0; i < t->devices; i++) {
        double best = 0;
        group[i] = part[t->rank[i]];
        for (int l = 0; l < t->links && level == 1; l++) {
            const ds__tlink *k = &t->link[l];
            int to = k->a == t->rank[i] ? k->b : k->b == t->rank[i] ? k->a : -1;
            if (to <= 0 || t->node[to].kind == DS__NODE_DEVICE || k->rate[0] <= best)
                continue;
            best = k->rate[0];
            group[i] = to;
        }
    }
}

/* One more wire at the end of a route; 0: no memory. */
static int ds__route_wire(ds_topology *t, ds__troute *r, double rate) {
    double *w = ds__array_grow(&t->wire, (size_t)t->wires, &t->wire_room, sizeof *w);
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

/* Reads the peer lines once: an array with an element for each route. NULL: no memory. */
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

/* Applies the peer lines to the routes. */
static ds_result ds__routes_peers(ds_topology *t) {
    ds__pair_rates *rates = ds__pair_rates_read(t);
    int routes = (t->devices + 1) * (t->devices + 1);
    int ok = rates != NULL;
    if (!rates)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the routes of %d devices", t->devices);
    for (int i = 0; i < routes && ok; i++) {
        ds__troute *r = &t->route[i];
        double push = rates[i].push;
        double pull = rates[i].pull;
        if (!r->hops) {
            r->direct = 0;
            continue;
        }
        if (push <= 0 || push > r->rate)
            push = r->rate;
        if (pull <= 0 || pull > r->rate)
            pull = r->rate;
        r->push = push > pull;
        double rate = r->push ? push : pull;
        if (rate < r->rate)
            ok = ds__route_wire(t, r, rate);
    }
    /* measured in both directions at once: one wire of two routes */
    for (int i = 0; i < t->peers && ok; i++) {
        const struct ds__tpeer *e = &t->peer[i];
        ds__troute *there = ds__route_of(t, e->from, e->to);
        ds__troute *back = ds__route_of(t, e->to, e->from);
        if (e->what != 'b' || rates[there - t->route].both != i + 1 || e->from > e->to ||
            !there->hops || !back->hops || e->rate >= there->rate + back->rate)
            continue;
        double alone = there->rate > back->rate ? there->rate : back->rate;
        ok = ds__route_wire(t, there, e->rate > alone ? e->rate : alone);
        if (ok)
            t->hop[back->wire - t->hop + (ptrdiff_t)back->hops++] = t->wires - 1;
    }
    ds__host_free(rates);
    return ok ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* The most wires of a route: only switches and sockets forward, and the host ends a way. */
static int ds__route_most(const ds_topology *t) {
    int most = 1 + 2; /* and a wire for each of two measures */
    for (int i = 0; i < t->nodes; i++)
        most += t->node[i].kind == DS__NODE_SWITCH || t->node[i].kind == DS__NODE_SOCKET;
    return most;
}

/* The routes as the virtual clock of the CPU driver takes them. */
static ds_result ds__ways_make(ds_topology *t) {
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

/* The table of routes, when nodes, links and peers are known. */
static ds_result ds__routes_make(ds_topology *t) {
    int p = t->devices + 1;
    int most = ds__route_most(t);
    ds__way *way = ds__host_alloc((size_t)t->nodes * sizeof *way);
    for (int level = 0; level < 3; level++) {
        t->group[level] = ds__host_alloc((size_t)p * sizeof **t->group);
        if (t->group[level])
            ds__groups_find(t, level, t->group[level]);
    }
    t->island = ds__host_alloc(2 * (size_t)p * sizeof *t->island);
    if (t->island && t->group[1]) {
        int islands = 0;
        t->seat = t->island + p;
        for (int i = 0; i < t->devices; i++) {
            int last = i - 1;
            while (last >= 0 && t->group[1][last] != t->group[1][i])
                last--;
            t->island[i] = last < 0 ? islands++ : t->island[last];
            t->seat[i] = last < 0 ? 0 : t->seat[last] + 1;
        }
    }
    t->route = ds__host_alloc((size_t)(p * p) * sizeof *t->route);
    t->hop = ds__host_alloc((size_t)(p * p) * (size_t)most * sizeof *t->hop);
    if (!way || !t->route || !t->hop || !t->group[0] || !t->group[1] || !t->group[2] ||
        !t->island) {
        ds__host_free(way);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the routes of %d devices", t->devices);
    }
    int *hop = t->hop;
    for (int i = 0; i < p; i++) {
        int from = i < t->devices ? t->rank[i] : 0;
        ds__route_ways_find(t, from, way);
        for (int k = 0; k < p; k++, hop += most) {
            ds__troute *r = ds__route_of(t, i, k);
            int at = k < t->devices ? t->rank[k] : 0;
            *r = (ds__troute){ t->latency_ns, 1, 0, hop, way[at].rate, 0, -1 };
            if (i == k || way[at].link < 0)
                continue;
            r->latency_ns += way[at].latency;
            r->only = t->link[way[at].link].kind;
            for (int n = at; n != from; n = way[n].from)
                r->hops++;
            for (size_t h = r->hops; h-- > 0; at = way[at].from) {
                const ds__tlink *l = &t->link[way[at].link];
                hop[h] = l->wire[l->a != way[at].from];
                if (l->kind != r->only)
                    r->only = -1;
            }
        }
    }
    ds__host_free(way);
    if (ds__routes_peers(t) < 0)
        return DS_ERR_OUT_OF_MEMORY;
    /* who is not reached directly must be reached through the host */
    for (int i = 0; i < t->devices; i++)
        for (int k = 0; k < t->devices; k++)
            if (i != k && !ds__route_of(t, i, k)->direct &&
                !(ds__route_of(t, i, t->devices)->hops && ds__route_of(t, t->devices, k)->hops))
                return ds__fail(
                    DS_ERR_INVALID_VALUE,
                    "there is no route from %s to %s, neither directly nor through host memory",
                    t->node[t->rank[i]].name, t->node[t->rank[k]].name);
    return ds__ways_make(t);
}

#endif
