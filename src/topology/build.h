/* topology/build.h - construction and release of topologies.

   ds__topology_create creates a topology with the host as its only node. ds__tnode_add,
   ds__tlink_add and ds__tpeer_add extend it for parse.h and here.h. Also implements
   ds_topology_destroy and ds_topology_get_size.

   Invariants: names are unique and have at most 31 characters. There are at most
   DS__TOPOLOGY_MAX nodes. Rank i is the i-th added device, and the id is unique in the process.
   All devices must be added before the first peer line, because such a line names the host by
   the number of devices. After a failure the topology may be incomplete and must be freed. A
   topology outlives ds_shutdown; its memory returns to the allocator that it was made with.
   Locks: ds_topology_destroy calls ds__topology_gone_fn, which takes ds__c.lock.
   Threads: a topology under construction belongs to one thread. ds_topology_destroy and
   ds_topology_get_size do not call DS__ENTER and do not start the library. */
#ifndef DS__TOPOLOGY_BUILD_H
#define DS__TOPOLOGY_BUILD_H

#include "types.h"

/* Returns the node of a name, or -1. */
static int ds__tnode_find(const ds_topology *t, const char *name) {
    for (int i = 0; i < t->nodes; i++)
        if (strcmp(t->node[i].name, name) == 0)
            return i;
    return -1;
}

/* Adds a node. A device becomes the next rank. */
static ds_result ds__tnode_add(ds_topology *t, const char *name, int kind) {
    DS__REQUIRE(strlen(name) < sizeof t->node->name,
                "the name \"%.40s\" is longer than %zu characters", name, sizeof t->node->name - 1);
    DS__REQUIRE(ds__tnode_find(t, name) < 0, "the name \"%s\" is already used", name);
    DS__REQUIRE(t->nodes < DS__TOPOLOGY_MAX, "the topology has more than %d nodes",
                DS__TOPOLOGY_MAX);
    ds__tnode *n = ds__array_add(&t->node, (size_t)t->nodes, &t->node_room, sizeof *n);
    if (!n)
        return DS_ERR_OUT_OF_MEMORY;
    strcpy(n->name, name);
    n->kind = kind;
    if (kind == DS__NODE_DEVICE)
        t->rank[t->devices++] = t->nodes;
    t->nodes++;
    return DS_OK;
}

/* Adds a link and its wires: one for each direction, or one for both. */
static ds_result ds__tlink_add(ds_topology *t, ds__tlink link) {
    DS__REQUIRE(link.a != link.b, "%s cannot be linked to itself", t->node[link.a].name);
    ds__tlink *l = ds__array_add(&t->link, (size_t)t->links, &t->link_room, sizeof *l);
    if (!l)
        return DS_ERR_OUT_OF_MEMORY;
    *l = link;
    t->links++;
    for (int i = 0; i < 2; i++) {
        l->wire[i] = l->wire[0];
        if (i && l->half)
            continue;
        double *w = ds__array_add(&t->wire, (size_t)t->wires, &t->wire_room, sizeof *w);
        if (!w)
            return DS_ERR_OUT_OF_MEMORY;
        *w = l->rate[i];
        l->wire[i] = t->wires++;
    }
    return DS_OK;
}

static ds_result ds__tpeer_add(ds_topology *t, struct ds__tpeer peer) {
    struct ds__tpeer *one = ds__array_add(&t->peer, (size_t)t->peers, &t->peer_room, sizeof *one);
    if (!one)
        return DS_ERR_OUT_OF_MEMORY;
    *one = peer;
    t->peers++;
    return DS_OK;
}

/* Returns a topology with the host only, or NULL if memory is exhausted. */
static ds_topology *ds__topology_create(void) {
    static _Atomic uint64_t ids;
    ds_topology *t = ds__host_alloc(sizeof *t);
    if (t)
        t->rank = ds__host_alloc(DS__TOPOLOGY_MAX * sizeof *t->rank);
    if (!t || !t->rank) {
        ds__host_free(t);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a topology");
        return NULL;
    }
    t->allocator = ds__allocator;
    t->engines = 3;
    t->start_ns = 1500;
    t->latency_ns = 6000;
    t->memory = 2e12;
    t->id = atomic_fetch_add(&ids, 1) + 1;
    if (ds__tnode_add(t, "host", DS__NODE_HOST) == DS_OK)
        return t;
    ds__host_free(t->rank);
    ds__host_free(t);
    return NULL;
}

DSDEF void(ds_topology_destroy)(ds_topology *t) {
    if (!t)
        return;
    ds_allocator allocator = t->allocator; /* `t` is freed too */
    const ds_allocator *from = &allocator;
    void (*gone_fn)(const ds_topology *) = atomic_load(&ds__topology_gone_fn);
    if (gone_fn)
        gone_fn(t);
    ds__release_to(from, t->node);
    ds__release_to(from, t->link);
    ds__release_to(from, t->wire);
    ds__release_to(from, t->rank);
    for (int level = 0; level < 3; level++)
        ds__release_to(from, t->group[level]);
    ds__release_to(from, t->island);
    ds__release_to(from, t->route);
    ds__release_to(from, t->hop);
    ds__release_to(from, t->way);
    ds__release_to(from, t->peer);
    ds__release_to(from, t->device);
    ds__release_to(from, t);
}

DSDEF int(ds_topology_get_size)(const ds_topology *t) {
    return t ? t->devices : 0;
}

#endif
