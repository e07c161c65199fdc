/* cpu/place.h - placement of workers and streams on a machine with several nodes of memory.

   Divides the workers into groups (ds__cpu_place_workers), gives a stream its group
   (ds__cpu_place_stream), and binds a worker to the processors of its node (ds__cpu_place_bind).

   Policy:
   1. Workers are spread over the nodes in proportion to the processors that the process may use, by
      its affinity mask or its list of processors. With a list, worker i is on the node of its
      processor.
   2. Workers of a node are divided into groups of at most DS__CPU_GROUP_WORKERS, or more if there
      would be more than DS__CPU_GROUPS groups.
   3. The streams of device d are on node d modulo the number of nodes, by turns on its groups. The
      memory of a device is touched first by its kernels and copies, so the system places the memory
      on the node of its workers.
   4. On several nodes, a worker without a list is bound to all allowed processors of its node. On
      one node it is not bound. Workers without work take streams of any node.

   Invariants: each node in `nodes` has at least one worker, and each group too. With a seed, a
   fabric or inline execution there is one group.
   Locks: none; ds__cpu_place_stream counts atomically.
   Threads: ds__cpu_place_workers runs before the workers start, ds__cpu_place_bind on a worker. */
#ifndef DS__CPU_PLACE_H
#define DS__CPU_PLACE_H

#include "../os/os.h"
#include "types.h"

/* Of the running driver. `mask` has the processors of each node. */
static struct {
    ds__os_affinity mask[DS__OS_NODES];
    _Atomic uint32_t streams[DS__OS_NODES]; /* that were placed on each */
    int binds;                              /* workers are bound to their node */
} ds__cpu_places;

/* Returns the node of a worker: that of its listed processor, or else in proportion. */
static int ds__cpu_place_node(int worker, int workers, int nodes) {
    int whole = 0;
    int before = 0;
    int node = 0;
    if (ds__cpu_bound.count) {
        unsigned listed = ds__cpu_bound.processor[worker % ds__cpu_bound.count];
        while (node < nodes - 1 && !ds__os_affinity_has(&ds__cpu_places.mask[node], listed))
            node++;
        return node;
    }
    for (int i = 0; i < nodes; i++)
        whole += ds__os_affinity_count(&ds__cpu_places.mask[i]);
    /* the processor at the worker's share of all of them */
    int at = (int)((int64_t)worker * whole / workers);
    while (node < nodes - 1) {
        before += ds__os_affinity_count(&ds__cpu_places.mask[node]);
        if (at < before)
            break;
        node++;
    }
    return node;
}

/* Leaves out nodes without workers, so that no stream waits for one. Returns the number of nodes,
   and writes the nodes of the workers, and the number of workers of each node. */
static int ds__cpu_place_nodes(int workers, int *node_of, int *count) {
    ds__os_affinity allowed = ds__cpu_bound.mask;
    if (!ds__cpu_bound.count)
        ds__os_affinity_get(&allowed);
    int nodes = ds__os_nodes("", &allowed, ds__cpu_places.mask);
    int used = 0;
    memset(count, 0, DS__OS_NODES * sizeof *count);
    for (int i = 0; i < workers; i++) {
        node_of[i] = ds__cpu_place_node(i, workers, nodes);
        count[node_of[i]]++;
    }
    for (int n = 0; n < nodes; n++) {
        if (!count[n])
            continue;
        for (int i = 0; i < workers; i++)
            node_of[i] = node_of[i] == n ? used : node_of[i];
        count[used] = count[n];
        ds__cpu_places.mask[used++] = ds__cpu_places.mask[n];
    }
    return used;
}

/* Divides the workers into groups. */
static void ds__cpu_place_workers(const ds_cpu_desc *desc, int workers) {
    int node_of[DS__CPU_MAX_WORKERS];
    int count[DS__OS_NODES];
    int placed[DS__OS_NODES] = { 0 };
    ds__cpu.groups = ds__cpu.nodes = ds__cpu.node_groups = 1;
    ds__cpu_places.binds = 0;
    if (ds__cpu_modes(DS__CPU_ORDERED))
        return;
    int nodes = ds__cpu_place_nodes(workers, node_of, count);
    int groups = DS__CPU_GROUPS / nodes;
    for (int n = 0; n < nodes; n++) { /* the node with the fewest workers must fill its groups */
        int wanted = (count[n] + DS__CPU_GROUP_WORKERS - 1) / DS__CPU_GROUP_WORKERS;
        int most = wanted > count[n] ? count[n] : wanted;
        groups = most < groups ? most : groups;
    }
    ds__cpu_places.binds = nodes > 1 && !desc->affinity; /* "": not bound */
    ds__cpu.nodes = nodes;
    ds__cpu.node_groups = groups;
    ds__cpu.groups = nodes * groups;
    for (int i = 0; i < workers; i++) {
        int n = node_of[i];
        ds__cpu.worker[i].group = n * groups + placed[n]++ % groups;
    }
}

/* Returns the group of a new stream of the device. */
static int ds__cpu_place_stream(int device) {
    if (DS__LIKELY(ds__cpu.groups == 1))
        return 0;
    int node = device % ds__cpu.nodes;
    uint32_t turn =
        atomic_fetch_add_explicit(&ds__cpu_places.streams[node], 1, memory_order_relaxed);
    return node * ds__cpu.node_groups + (int)(turn % (uint32_t)ds__cpu.node_groups);
}

/* Binds the calling thread, which is the worker, to its processor of the list, or else to its
   node. */
static void ds__cpu_place_bind(const ds__cpu_worker *w) {
    if (ds__cpu_bound.count)
        ds__cpu_affinity_bind_worker((size_t)(w - ds__cpu.worker));
    else if (ds__cpu_places.binds)
        (void)ds__os_affinity_set(&ds__cpu_places.mask[w->group / ds__cpu.node_groups]);
}

#endif
