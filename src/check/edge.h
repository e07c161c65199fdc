/* check/edge.h - the last waits, to explain an order.

   Keeps the last DS__RACE_EDGES waits between timelines in a ring (ds__race_edge_add).
   ds__race_edge_last finds the wait by which one timeline knows an operation of another one;
   ds__race_edges_reach finds the chains of waits that lead to an operation, and
   ds__race_edges_lead asks whether one begins at a given operation.

   Invariants: the waits are in the order in which they were made, so a chain ends with the newest.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_EDGE_H
#define DS__CHECK_EDGE_H

#include "table.h"

static void ds__race_edge_add(const ds__race_edge *e) {
    if (!ds__race.edge) {
        ds__race.edge = ds__race_alloc(DS__RACE_EDGES * sizeof *ds__race.edge);
        if (!ds__race.edge)
            return;
    }
    ds__race.edge[ds__race.edges++ % DS__RACE_EDGES] = *e;
}

/* Returns the number of waits that are kept. */
static uint64_t ds__race_edges_kept(void) {
    return ds__race.edges < DS__RACE_EDGES ? ds__race.edges : DS__RACE_EDGES;
}

/* Returns the newest wait for operation n of a timeline, or NULL. n 0: a wait of `to` before the
   timeline had an operation. */
static const ds__race_edge *ds__race_edge_last(uint32_t from, uint64_t n, uint32_t to) {
    uint64_t kept = ds__race_edges_kept();
    for (uint64_t i = 1; i <= kept; i++) {
        const ds__race_edge *e = &ds__race.edge[(ds__race.edges - i) % DS__RACE_EDGES];
        if (e->from == from && e->from_n == n && (n || e->to == to))
            return e;
    }
    return NULL;
}

/* Result of the search for a timeline: the last operation from which the goal is reached, and the
   wait after it. */
typedef struct ds__race_reach {
    uint64_t n; /* 0: none */
    const ds__race_edge *next;
} ds__race_reach;

/* Finds for each timeline the last operation that is ordered before operation n of `to`. Returns an
   array by timeline, which the caller releases, or NULL. */
static ds__race_reach *ds__race_edges_reach(uint32_t to, uint64_t n) {
    ds__race_reach *reach = ds__race_alloc(ds__race.lines * sizeof *reach);
    if (!reach)
        return NULL;
    uint64_t kept = ds__race_edges_kept();
    reach[to].n = n;
    for (uint64_t i = 1; i <= kept; i++) {
        const ds__race_edge *e = &ds__race.edge[(ds__race.edges - i) % DS__RACE_EDGES];
        if (reach[e->to].n >= e->to_n && reach[e->from].n < e->from_n)
            reach[e->from] = (ds__race_reach){ e->from_n, e };
    }
    return reach;
}

static void ds__race_reach_release(ds__race_reach *reach) {
    ds__race_release(reach, reach ? ds__race.lines * sizeof *reach : 0);
}

/* Returns 1 if a chain of waits orders operation n of `from` before operation m of `to`. */
static int ds__race_edges_lead(uint32_t from, uint64_t n, uint32_t to, uint64_t m) {
    if (from == to)
        return n <= m;
    ds__race_reach *reach = ds__race_edges_reach(to, m);
    int lead = reach && reach[from].n >= n;
    ds__race_reach_release(reach);
    return lead;
}

static void ds__race_edges_deinit(void) {
    ds__race_release(ds__race.edge, ds__race.edge ? DS__RACE_EDGES * sizeof *ds__race.edge : 0);
    ds__race.edge = NULL;
    ds__race.edges = 0;
}

#endif
