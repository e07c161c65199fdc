/* topology/types.h - nodes, links and routes of a topology.

   Defines ds_topology and its parts: nodes (ds__tnode), links (ds__tlink) and routes
   (ds__troute). ds__route_of finds a route; ds__array_add grows an array.

   Policy:
   1. Nodes are devices, switches, sockets and host memory. Links join nodes; a link is one wire
      for each direction, or one wire for both. Only switches and sockets forward data.
   2. A route is the list of wires from a device or the host to another one. A route has the least
      latency and, of several such paths, the highest rate. Plans and the predictor take paths
      and rates from the table of routes. A measured rate is one more wire of the pair's route.
   3. If the rates of copies by the source (push) and by the destination (pull) are known, the
      faster side makes the copies of a pair.

   Invariants: node 0 is the host. The table of routes has devices + 1 rows and columns, and the
   last of both is the host. A topology does not change after ds__routes_build.
   Locks: none.
   Threads: a topology under construction belongs to one thread. Later, any number of threads may
   read it, but none may free it at the same time. */
#ifndef DS__TOPOLOGY_TYPES_H
#define DS__TOPOLOGY_TYPES_H

#include "../api/topology.h"
#include "../base/error.h"
#include "../base/state.h"

enum { DS__NODE_DEVICE, DS__NODE_SWITCH, DS__NODE_SOCKET, DS__NODE_HOST };

#define DS__TOPOLOGY_MAX 1024 /* devices, and other nodes */

typedef struct ds__tnode {
    char name[32];
    int kind;
} ds__tnode;

typedef struct ds__tlink {
    int a;
    int b;
    int kind;
    int half;
    int wire[2];
    double rate[2];
    int64_t latency;
} ds__tlink;

typedef struct ds__troute {
    int64_t latency_ns;
    int direct;  /* 1: the two access each other; 0: copies go through the host */
    size_t hops; /* wires; 0: there is no route */
    const int *wire;
    double rate; /* of the slowest wire */
    int push;    /* 1: the source should make the copy */
    int only;    /* the kind of all links, or -1 */
} ds__troute;

struct ds_topology {
    int devices;
    int nodes;
    int links;
    int wires;
    int engines;
    size_t node_room;
    size_t link_room;
    size_t wire_room;
    size_t peer_room;
    int64_t start_ns;
    int64_t latency_ns;
    double memory;   /* bytes per second */
    ds__tnode *node; /* 0 is the host */
    ds__tlink *link;
    double *wire;      /* bytes per second */
    int *rank;         /* nodes of the devices */
    int *group[3];     /* of each device, by level; see ds__groups_find */
    int *island;       /* of each device: the number of its group of level 1, from 0 on */
    int *seat;         /* of each device: its number in that group */
    ds__troute *route; /* from row to column, devices + 1 of each, the last is the host */
    int *hop;          /* the wires of all routes */

    /* the peer lines, pair by pair */
    struct ds__tpeer {
        int from;
        int to;
        int what;    /* '1' on, '0' off, 'k' kind, 'u' push, 'd' pull, 'b' both, 'l' latency */
        int kind;    /* of the links for which the pair is on */
        double rate; /* of a latency: nanoseconds */
    } * peer;

    int peers;
    uint64_t id;            /* names the topology in the list of plans */
    ds_allocator allocator; /* of all its memory */
    ds_device *device;      /* the ranks' devices on this machine; NULL: rank i is device i */
    ds_cpu_route *way;      /* the routes in the form of the CPU driver */
};

static const struct {
    const char *word;
    double rate;
    int64_t latency;
} ds__link_kinds[] = {

#define DS__LINK_KIND(name, word, rate, latency) { word, rate, latency },
    DS_LINK_KINDS(DS__LINK_KIND)
#undef DS__LINK_KIND
};

/* Adds a zeroed element to an array, which may move. Returns the element; if memory is exhausted,
   reports the error and returns NULL. */
static void *ds__array_add(void *array, size_t count, size_t *room, size_t size) {
    char *at;
    if (count >= UINT32_MAX || !ds__array_reserve(array, size, count, 1, room)) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu elements", count + 1);
        return NULL;
    }
    memcpy(&at, array, sizeof at);
    return at + count * size;
}

/* Returns the route from one rank to another; rank `devices` is the host. */
static ds__troute *ds__route_of(const ds_topology *t, int from, int to) {
    return &t->route[from * (t->devices + 1) + to];
}

/* Called before a topology is freed; NULL before the first plan. */
static void (*_Atomic ds__topology_gone_fn)(const ds_topology *t);

#endif
