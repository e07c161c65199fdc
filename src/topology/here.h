/* topology/here.h - topology of the devices of this machine.

   Implements ds_topology_create_of_devices. The function asks the driver for NVLinks, copy engines,
   memory rate and peer access, and reads PCIe and sockets from sysfs.h. DS_TOPOLOGY_PROBE adds
   measured rates.

   Invariants: all devices belong to one driver, and the host is not among them. A device may be in
   the list several times; each occurrence is a node of its own, without an NVLink between them.
   Sockets are added before switches and devices, because ds__here_sockets takes every node but
   the host for a socket. The policy is in sysfs.h.
   Locks: takes none itself and calls the driver without a lock; the table of measurements takes
   ds__c.lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__TOPOLOGY_HERE_H
#define DS__TOPOLOGY_HERE_H

#include "../core/internal.h"
#include "../alloc/internal.h"
#include "../tensor/internal.h"
#include "types.h"
#include "route.h"
#include "build.h"
#include "sysfs.h"
#include "measure.h"

/* Adds a link with a rate for each direction. */
static ds_result ds__here_link(ds_topology *t, int a, int b, int kind, double there, double back) {
    return ds__tlink_add(
        t, (ds__tlink){ a, b, kind, 0, { 0, 0 }, { there, back }, ds__link_kinds[kind].latency });
}

static int ds__here_same(ds_device a, ds_device b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Asks each device for its position, and takes the fewest copy engines, the lowest memory rate and
   the lowest compute capability (*out_major) of all devices. */
static ds_result ds__here_ask(ds_topology *t, const ds_device *device, size_t count,
                              ds__tplace *place, int *out_major) {
    ds_result r = DS_OK;
    int most = 64;
    double memory = 0;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds_device_properties p;
        int engines = 0;
        double rate = 0;
        DS__KEEPING(r, (ds_device_get_properties)(device[i], &p));
        if (r == DS_OK)
            r = ds__driver_of(device[i])->device_speed(device[i].index, &engines, &rate);
        if (r < 0)
            return r;
        ds__tplace_find(p.pci, &place[i]);
        if (i == 0 || p.major < *out_major)
            *out_major = p.major;
        if (engines > 0 && engines < most)
            t->engines = most = engines;
        if (rate >= 1 && (memory <= 0 || rate < memory))
            t->memory = memory = rate;
    }
    return r;
}

/* Adds a node for a socket, linked to the other sockets and to the host's memory. */
static ds_result ds__here_socket(ds_topology *t, const char *name) {
    int at = t->nodes;
    ds_result r = ds__tnode_add(t, name, DS__NODE_SOCKET);
    for (int k = 0; k < at && r == DS_OK; k++) {
        int kind = k ? DS_LINK_SOCKET : DS_LINK_HOST;
        double rate = ds__link_kinds[kind].rate;
        r = ds__here_link(t, at, k, kind, rate, rate);
    }
    return r;
}

/* Adds the sockets of the devices, and replaces the number of each device's socket by the node.
   Devices whose socket is unknown belong to the first one. */
static ds_result ds__here_sockets(ds_topology *t, ds__tplace *place, size_t count) {
    ds_result r = DS_OK;
    int first = -1;
    char name[32];
    for (size_t i = 0; i < count && first < 0; i++)
        first = place[i].socket;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        if (place[i].socket < 0)
            place[i].socket = first;
        snprintf(name, sizeof name, first < 0 ? "socket" : "socket%d", place[i].socket);
        place[i].socket = ds__tnode_find(t, name);
        if (place[i].socket >= 0)
            continue;
        place[i].socket = t->nodes;
        r = ds__here_socket(t, name);
    }
    return r;
}

/* Adds the switches above device i that are not in the topology yet. *out_at is the lowest switch,
   or the socket, and *out_high its entry in the path, or -1. */
static ds_result ds__here_switches(ds_topology *t, const ds__tplace *place, size_t count, size_t i,
                                   int *out_at, int *out_high) {
    const ds__tplace *p = &place[i];
    int at = p->socket;
    int high = -1;
    ds_result r = DS_OK;
    for (int n = 1; n < p->deep - 1 && r == DS_OK; n++) {
        char name[32];
        if (!ds__tplace_parts(place, count, i, n))
            continue;
        snprintf(name, sizeof name, "pci:%s", p->up[n]);
        int is = ds__tnode_find(t, name);
        if (is < 0) {
            double rate = ds__tplace_rate(p, n, high);
            is = t->nodes;
            r = ds__tnode_add(t, name, DS__NODE_SWITCH);
            if (r == DS_OK)
                r = ds__here_link(t, is, at, DS_LINK_PCIE, rate, rate);
        }
        at = is;
        high = n;
    }
    *out_at = at;
    *out_high = high;
    return r;
}

/* Adds device i and the switches above it. */
static ds_result ds__here_device(ds_topology *t, const ds_device *device, const ds__tplace *place,
                                 size_t count, size_t i) {
    const ds__tplace *p = &place[i];
    char name[32];
    int at;
    int high;
    ds_result r = ds__here_switches(t, place, count, i, &at, &high);
    if (r < 0)
        return r;
    snprintf(name, sizeof name, "%s:%d", ds__type_name(device[i].type), device[i].index);
    for (int n = 2; ds__tnode_find(t, name) >= 0; n++)
        snprintf(name, sizeof name, "%s:%d#%d", ds__type_name(device[i].type), device[i].index, n);
    double rate = ds__tplace_rate(p, p->deep - 1, high);
    r = ds__tnode_add(t, name, DS__NODE_DEVICE);
    return r == DS_OK ? ds__here_link(t, t->nodes - 1, at, DS_LINK_PCIE, rate, rate) : r;
}

/* Devices and the NVLinks between them. */
typedef struct ds__nvlinks {
    const ds_device *device;
    size_t count;
    unsigned flags; /* DS_TOPOLOGY_PROBE or 0 */
    char *joined;   /* of each pair: 1 if NVLinks join the two */
    size_t pairs;   /* pairs of different devices */
    size_t joins;   /* pairs that are joined */
    size_t unlike;  /* devices, each counted once */
} ds__nvlinks;

/* Returns the measured rate from one device to another, or `table` if nothing was measured. */
static double ds__here_rate(const ds__nvlinks *n, size_t from, size_t to, double table) {
    ds__measured m;
    if (!(n->flags & DS_TOPOLOGY_PROBE) || !ds__measured_find(n->device[from], n->device[to], &m))
        return table;
    double rate = m.push[0] > m.pull[0] ? m.push[0] : m.pull[0];
    return rate >= 1 ? rate : table;
}

/* Asks the driver which pairs are joined by NVLinks. */
static ds_result ds__nvlinks_find(ds__nvlinks *n) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < n->count && r == DS_OK; i++) {
        const ds_device *d = &n->device[i];
        int again = 0;
        for (size_t k = 0; k < i && r == DS_OK; k++) {
            int is = 0;
            if (ds__here_same(*d, n->device[k])) {
                again = 1;
                continue;
            }
            r = ds__driver_of(*d)->device_link(d->index, n->device[k].index, &is);
            n->joined[i * n->count + k] = n->joined[k * n->count + i] = is == 1;
            n->pairs++;
            n->joins += is == 1;
        }
        n->unlike += !again;
    }
    return r;
}

/* Returns 1 if the NVLinks lead to an NVSwitch. NVSwitches came with compute capability 7.0. Up to
   four devices may be wired pair by pair, so an NVSwitch must be a PCI device then. */
static int ds__nvlinks_switched(const ds__nvlinks *n, int major) {
    char path[512];
    if (!n->joins || n->joins < n->pairs || major < 7)
        return 0;
    if (n->unlike > 4)
        return 1;
    return ds__sys_path(path, sizeof path, "", "") && ds__os_any(path, ds__sys_nvswitch);
}

/* Links each joined pair. */
static ds_result ds__nvlinks_pairs(const ds__nvlinks *n, ds_topology *t) {
    double table = ds__link_kinds[DS_LINK_NVLINK].rate;
    ds_result r = DS_OK;
    for (size_t i = 0; i < n->count; i++)
        for (size_t k = i + 1; k < n->count && r == DS_OK; k++)
            if (n->joined[i * n->count + k])
                r = ds__here_link(t, t->rank[i], t->rank[k], DS_LINK_NVLINK,
                                  ds__here_rate(n, i, k, table), ds__here_rate(n, k, i, table));
    return r;
}

/* Links each device to a switch, with the highest rates that were measured of its pairs. */
static ds_result ds__nvlinks_hub(const ds__nvlinks *n, ds_topology *t) {
    double table = ds__link_kinds[DS_LINK_NVSWITCH].rate;
    int hub = t->nodes;
    ds_result r = ds__tnode_add(t, "nvswitch", DS__NODE_SWITCH);
    for (size_t i = 0; i < n->count && r == DS_OK; i++) {
        double out = 0;
        double in = 0;
        for (size_t k = 0; k < n->count; k++) {
            if (!n->joined[i * n->count + k])
                continue;
            double there = ds__here_rate(n, i, k, 0);
            double back = ds__here_rate(n, k, i, 0);
            out = there > out ? there : out;
            in = back > in ? back : in;
        }
        r = ds__here_link(t, t->rank[i], hub, DS_LINK_NVSWITCH, out > 0 ? out : table,
                          in > 0 ? in : table);
    }
    return r;
}

/* Adds the NVLinks, pair by pair or through an NVSwitch. `major` is the lowest compute capability
   of the devices. */
static ds_result ds__here_nvlinks(ds_topology *t, const ds_device *device, size_t count,
                                  unsigned flags, int major) {
    ds__nvlinks n = { .device = device, .count = count, .flags = flags };
    n.joined = ds__host_alloc(count * count);
    if (!n.joined)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the links of %zu devices", count);
    ds_result r = ds__nvlinks_find(&n);
    if (r == DS_OK)
        r = ds__nvlinks_switched(&n, major) ? ds__nvlinks_hub(&n, t) : ds__nvlinks_pairs(&n, t);
    ds__host_free(n.joined);
    return r;
}

/* Adds the measured values from one rank to another; `way` is 1 if the measurement has the ranks in
   the opposite order. */
static ds_result ds__here_values(ds_topology *t, int from, int to, const ds__measured *m, int way) {
    double least = (double)m->least_ns[way] - (double)t->start_ns;
    const struct ds__tpeer values[] = {
        { from, to, 'u', -1, m->push[way] },
        { from, to, 'd', -1, m->pull[way] },
        { from, to, 'l', -1, least > 0 ? least : 0 },
        { from, to, 'b', -1, m->both },
    };
    ds_result r = DS_OK;
    for (int i = 0; i < (m->both >= 1 ? 4 : 3) && r == DS_OK; i++)
        r = ds__tpeer_add(t, values[i]);
    return r;
}

/* Adds the peer lines of ranks i and k: peer access, and the measured values. One of two devices
   that accesses the other suffices for copies in both directions. */
static ds_result ds__here_pair(ds_topology *t, const ds_device *device, int i, int k,
                               unsigned flags) {
    ds__measured m;
    int there = 1;
    int back = 1;
    ds_result r = DS_OK;
    if (!ds__here_same(device[i], device[k])) {
        DS__KEEPING(r, (ds_device_can_access_peer)(device[i], device[k], &there));
        if (r == DS_OK)
            DS__KEEPING(r, (ds_device_can_access_peer)(device[k], device[i], &back));
    }
    if (r < 0)
        return r;

    int known = flags & DS_TOPOLOGY_PROBE && ds__measured_find(device[i], device[k], &m);
    for (int way = 0; way < 2 && r == DS_OK; way++) {
        int from = way ? k : i;
        int to = way ? i : k;
        if (!there && !back)
            r = ds__tpeer_add(t, (struct ds__tpeer){ from, to, '0', -1, 0 });
        if (r == DS_OK && known)
            r = ds__here_values(t, from, to, &m, way);
    }
    return r;
}

/* Adds nodes, links and peer lines of the devices to an empty topology, and makes its routes. */
static ds_result ds__topology_here(ds_topology *t, const ds_device *device, size_t count,
                                   unsigned flags) {
    int major = 0;
    ds__tplace *place = ds__host_alloc(count * sizeof *place);
    ds_result r =
        place ? ds__here_ask(t, device, count, place, &major)
              : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a topology of %zu devices", count);
    if (r == DS_OK)
        r = ds__here_sockets(t, place, count);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__here_device(t, device, place, count, i);
    ds__host_free(place);
    if (r == DS_OK)
        r = ds__here_nvlinks(t, device, count, flags, major);
    for (int i = 0; i < (int)count && r == DS_OK; i++)
        for (int k = i + 1; k < (int)count && r == DS_OK; k++)
            r = ds__here_pair(t, device, i, k, flags);
    return r == DS_OK ? ds__routes_build(t) : r;
}

/* Resolves the devices of a list, which does not allow the host. Returns an error if they belong to
   two drivers. */
static ds_result ds__here_resolve(const ds_device *devices, size_t count, ds_device *out) {
    ds_result r = ds__tensor_setup();
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__device_resolve(devices[i], &out[i]);
        if (r == DS_OK && out[i].type != out[0].type)
            r = ds__fail(DS_ERR_CROSS_DRIVER, "the devices belong to two drivers");
        if (r < 0)
            r = ds__fail_append(r, " (device %zu of the list)", i);
    }
    return r;
}

DSDEF ds_result(ds_topology_create_of_devices)(const ds_device *devices, size_t count,
                                               unsigned flags, ds_topology **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_topology_create_of_devices");
    DS__REQUIRE(devices && out, "%s is NULL", devices ? "out" : "devices");
    DS__REQUIRE(count && count < DS__TOPOLOGY_MAX - 2,
                "%zu devices are requested; 1 to %d are allowed", count, DS__TOPOLOGY_MAX - 3);
    DS__REQUIRE(!(flags & ~(unsigned)DS_TOPOLOGY_PROBE),
                "unknown flags %#x; use DS_TOPOLOGY_PROBE or 0", flags);
    ds_topology *t = ds__topology_create();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    t->device = ds__host_alloc(count * sizeof *t->device);
    ds_result r = t->device ? ds__here_resolve(devices, count, t->device)
                            : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu devices", count);
    if (r == DS_OK && flags & DS_TOPOLOGY_PROBE)
        r = ds__measure_probe(t->device, count);
    if (r == DS_OK)
        r = ds__topology_here(t, t->device, count, flags);
    if (r == DS_OK)
        *out = t;
    else
        (ds_topology_destroy)(t);
    return r;
}

#endif
