/* topology/here.h - topology of the devices of this machine.

   Implements ds_topology_create_of_devices. The function asks the driver for NVLinks, copy engines,
   memory rate and peer access, and reads PCIe and sockets from sysfs.h. DS_TOPOLOGY_PROBE adds
   measured rates.

   Invariants: all devices belong to one driver, and none is the host. A device may be in the
   list several times; each occurrence is a node of its own, without an NVLink between them.
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

static ds_result ds__here_link(ds_topology *t, int a, int b, int kind, double there, double back) {
    return ds__tlink_add(
        t, (ds__tlink){ a, b, kind, 0, { 0, 0 }, { there, back }, ds__link_kinds[kind].latency });
}

static int ds__here_same(ds_device a, ds_device b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* What each device says of itself: where it is, copy engines, memory; the least of all.
   *out_major: compute capability. */
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

/* Sockets, linked to each other and to the host's memory. Devices of which nobody says where
   they are belong to the first. */
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
        r = ds__tnode_add(t, name, DS__NODE_SOCKET);
        for (int k = 0; k < place[i].socket && r == DS_OK; k++) {
            int kind = k ? DS_LINK_SOCKET : DS_LINK_HOST;
            r = ds__here_link(t, place[i].socket, k, kind, ds__link_kinds[kind].rate,
                              ds__link_kinds[kind].rate);
        }
    }
    return r;
}

/* A device, and the switches above it that are not there yet. */
static ds_result ds__here_device(ds_topology *t, const ds_device *device, const ds__tplace *place,
                                 size_t count, size_t i) {
    const ds__tplace *p = &place[i];
    int at = p->socket;
    int high = -1;
    char name[32];
    double rate;
    ds_result r = DS_OK;
    for (int n = 1; n < p->deep - 1 && r == DS_OK; n++) {
        if (!ds__tplace_parts(place, count, i, n))
            continue;
        snprintf(name, sizeof name, "pci:%s", p->up[n]);
        int is = ds__tnode_find(t, name);
        if (is < 0) {
            is = t->nodes;
            rate = ds__tplace_rate(p, n, high);
            r = ds__tnode_add(t, name, DS__NODE_SWITCH);
            if (r == DS_OK)
                r = ds__here_link(t, is, at, DS_LINK_PCIE, rate, rate);
        }
        at = is;
        high = n;
    }
    if (r < 0)
        return r;
    snprintf(name, sizeof name, "%s:%d", ds__type_name(device[i].type), device[i].index);
    for (int n = 2; ds__tnode_find(t, name) >= 0; n++)
        snprintf(name, sizeof name, "%s:%d#%d", ds__type_name(device[i].type), device[i].index, n);
    rate = ds__tplace_rate(p, p->deep - 1, high);
    r = ds__tnode_add(t, name, DS__NODE_DEVICE);
    return r == DS_OK ? ds__here_link(t, t->nodes - 1, at, DS_LINK_PCIE, rate, rate) : r;
}

/* What was measured of a pair in one direction; 0: nothing. */
static double ds__here_rate(ds_device from, ds_device to, unsigned flags) {
    ds__measured m;
    if (!(flags & DS_TOPOLOGY_PROBE) || !ds__measured_find(from, to, &m))
        return 0;
    return m.push[0] > m.pull[0] ? m.push[0] : m.pull[0];
}

static ds_result ds__here_nvlinks(ds_topology *t, const ds_device *device, size_t count,
                                  unsigned flags, int major) {
    char *joined = ds__host_alloc(count * count);
    size_t pairs = 0;
    size_t are = 0;
    size_t unlike = 0;
    ds_result r =
        joined ? DS_OK
               : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the links of %zu devices", count);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        int again = 0;
        for (size_t k = 0; k < i && r == DS_OK; k++) {
            int is = 0;
            if (ds__here_same(device[i], device[k])) {
                again = 1;
                continue;
            }
            r = ds__driver_of(device[i])->device_link(device[i].index, device[k].index, &is);
            joined[i * count + k] = joined[k * count + i] = is == 1;
            pairs++;
            are += is == 1;
        }
        unlike += !again;
    }
    char path[512];
    /* NVSwitch came with compute capability 7.0 */
    int all = are && are == pairs && major >= 7;
    int hub = t->nodes;
    /* so many may be wired pair by pair */
    if (all && unlike <= 4)
        all = ds__sys_path(path, sizeof path, "", "") && ds__os_any(path, ds__sys_nvswitch);
    if (r == DS_OK && all)
        r = ds__tnode_add(t, "nvswitch", DS__NODE_SWITCH);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        double out = 0;
        double in = 0;
        for (size_t k = 0; k < count && r == DS_OK; k++) {
            if (!joined[i * count + k])
                continue;
            double there = ds__here_rate(device[i], device[k], flags);
            double back = ds__here_rate(device[k], device[i], flags);
            double table = ds__link_kinds[DS_LINK_NVLINK].rate;
            if (there > out)
                out = there;
            if (back > in)
                in = back;
            if (!all && i < k)
                r = ds__here_link(t, t->rank[i], t->rank[k], DS_LINK_NVLINK,
                                  there >= 1 ? there : table, back >= 1 ? back : table);
        }
        double table = ds__link_kinds[DS_LINK_NVSWITCH].rate;
        if (r == DS_OK && all)
            r = ds__here_link(t, t->rank[i], hub, DS_LINK_NVSWITCH, out >= 1 ? out : table,
                              in >= 1 ? in : table);
    }
    ds__host_free(joined);
    return r;
}

/* Who reaches whom, and what was measured: lines of the pair. */
static ds_result ds__here_pair(ds_topology *t, const ds_device *device, int i, int k,
                               unsigned flags) {
    ds__measured m;
    int there = 1;
    int back = 1;
    int apart = !ds__here_same(device[i], device[k]);
    ds_result r = DS_OK;
    if (apart)
        DS__KEEPING(r, (ds_device_can_access_peer)(device[i], device[k], &there));
    if (r == DS_OK && apart)
        DS__KEEPING(r, (ds_device_can_access_peer)(device[k], device[i], &back));
    int known =
        r == DS_OK && flags & DS_TOPOLOGY_PROBE && ds__measured_find(device[i], device[k], &m);
    for (int way = 0; way < 2 && r == DS_OK; way++) {
        int from = way ? k : i;
        int to = way ? i : k;
        /* one of the two suffices for a copy */
        if (!there && !back)
            r = ds__tpeer_add(t, (struct ds__tpeer){ from, to, '0', -1, 0 });
        if (!known)
            continue;
        double least = (double)m.least_ns[way] - (double)t->start_ns;
        if (r == DS_OK)
            r = ds__tpeer_add(t, (struct ds__tpeer){ from, to, 'u', -1, m.push[way] });
        if (r == DS_OK)
            r = ds__tpeer_add(t, (struct ds__tpeer){ from, to, 'd', -1, m.pull[way] });
        if (r == DS_OK)
            r = ds__tpeer_add(t, (struct ds__tpeer){ from, to, 'l', -1, least > 0 ? least : 0 });
        if (r == DS_OK && m.both >= 1)
            r = ds__tpeer_add(t, (struct ds__tpeer){ from, to, 'b', -1, m.both });
    }
    return r;
}

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
    return r == DS_OK ? ds__routes_make(t) : r;
}

DSDEF ds_result(ds_topology_create_of_devices)(const ds_device *devices, size_t count,
                                               unsigned flags, ds_topology **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_topology_create_of_devices");
    DS__REQUIRE(devices && out, "%s is NULL", devices ? "out" : "devices");
    DS__REQUIRE(count && count < DS__TOPOLOGY_MAX - 2,
                "%zu devices are requested; 1 to %d are allowed", count, DS__TOPOLOGY_MAX - 3);
    DS__REQUIRE(!(flags & ~(unsigned)DS_TOPOLOGY_PROBE), "unknown flags %#x", flags);
    ds_topology *t = ds__topology_new();
    ds_device *device = t ? t->device = ds__host_alloc(count * sizeof *device) : NULL;
    ds_result r = !t       ? DS_ERR_OUT_OF_MEMORY
                  : device ? ds__tensor_setup()
                           : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu devices", count);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__device_resolve(devices[i], &device[i]);
        if (r == DS_OK && device[i].type == DS_DEVICE_HOST)
            r = ds__fail(DS_ERR_INVALID_DEVICE, "the host cannot be a rank");
        if (r == DS_OK && device[i].type != device[0].type)
            r = ds__fail(DS_ERR_CROSS_DRIVER, "the devices belong to two drivers");
        if (r < 0)
            r = ds__fail_append(r, " (device %zu of the list)", i);
    }
    if (r == DS_OK && flags & DS_TOPOLOGY_PROBE)
        r = ds__measure_probe(device, count);
    if (r == DS_OK)
        r = ds__topology_here(t, device, count, flags);
    if (r == DS_OK)
        *out = t;
    else
        (ds_topology_destroy)(t);
    return r;
}

#endif
