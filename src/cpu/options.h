/* cpu/options.h - options of the CPU driver.

   Checks a ds_cpu_desc (ds__cpu_check), and keeps a copy of it until ds_shutdown
   (ds__cpu_configure). ds__cpu_option reads a number, ds__cpu_spin_read the time to spin, and
   ds__cpu_peers_create the peer access, from the options or else from the environment.

   Invariants: the kept options own all memory that they point to. A kept fabric has no zeros
   where 0 means a default, and its number of devices is also that of the options. A refused
   ds_cpu_desc changes nothing.
   Locks: ds__cpu_configure is called under the core's initialisation mutex. ds__cpu_check runs
   without a lock. The program's allocator may run in ds__cpu_configure.
   Threads: the threads that call ds_init and ds_shutdown, one at a time. ds__cpu_desc is read by
   the thread that starts the driver. */
#ifndef DS__CPU_OPTIONS_H
#define DS__CPU_OPTIONS_H

#include "../api/cpu.h"
#include "../base/error.h"
#include "../base/state.h"
#include "affinity.h"
#include "types.h"

/* Returns the value if it is positive, else the number in the environment, else the default
   (fallback); at most `most`. */
static int ds__cpu_option(int value, const char *name, int fallback, int most) {
    uint64_t n = value > 0 ? (uint64_t)value : ds__env_number(name);
    if (n == 0)
        n = (uint64_t)fallback;
    return n > (uint64_t)most ? most : (int)n;
}

/* The kept options of ds_init, or NULL. */
static const ds_cpu_desc *ds__cpu_kept;

/* Returns the kept options, or zeroed ones. */
static const ds_cpu_desc *ds__cpu_desc(void) {
    static const ds_cpu_desc none;
    return ds__cpu_kept ? ds__cpu_kept : &none;
}

/* Reads DEVSTREAM_CPU_PEERS. *out_all: all devices have access; *out_half: those
   of the lower half of the indices have access to each other, and those of the upper half. */
static ds_result ds__cpu_peers_read(int *out_all, int *out_half) {
    const char *text = getenv("DEVSTREAM_CPU_PEERS");
    *out_all = !text || !*text || strcmp(text, "all") == 0;
    *out_half = !*out_all && strcmp(text, "half") == 0;
    DS__REQUIRE(*out_all || *out_half || strcmp(text, "none") == 0,
                "DEVSTREAM_CPU_PEERS is \"%.20s\"; it must be all, none or half", text);
    return DS_OK;
}

/* Returns the time that threads spin: 0 with DS_CPU_NO_SPIN, else that of DEVSTREAM_CPU_SPIN, else
   `fallback`. On failure, *out is not changed. */
static ds_result ds__cpu_spin_read(const ds_cpu_desc *desc, uint64_t fallback, uint64_t *out) {
    const char *text = getenv("DEVSTREAM_CPU_SPIN");
    uint64_t ns = fallback;
    if (text && *text) {
        size_t digits = strspn(text, "0123456789");
        ns = strtoull(text, NULL, 10);
        DS__REQUIRE(!text[digits] && digits <= 10 && ns <= DS_CPU_MAX_SPIN_NS,
                    "DEVSTREAM_CPU_SPIN is \"%.20s\"; it must be nanoseconds from 0 to %d", text,
                    DS_CPU_MAX_SPIN_NS);
    }
    *out = desc->flags & DS_CPU_NO_SPIN ? 0 : ns;
    return DS_OK;
}

/* Makes the matrix of the peer access, of the options or else of the environment. *out NULL: all
   devices have access, or a fabric defines it. The caller frees the matrix. */
static ds_result ds__cpu_peers_create(const ds_cpu_desc *desc, size_t devices,
                                      unsigned char **out) {
    int all;
    int half;
    ds_result r = ds__cpu_peers_read(&all, &half);
    *out = NULL;
    if (r < 0 || desc->fabric || (all && !desc->peer_access))
        return r;

    unsigned char *peers = ds__host_alloc(devices * devices);
    if (!peers)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the peer access of %zu devices",
                        devices);
    for (size_t i = 0; i < devices * devices; i++) {
        int joined = (i / devices < devices / 2) == (i % devices < devices / 2);
        peers[i] = desc->peer_access ? desc->peer_access[i] : (unsigned char)(half && joined);
    }
    *out = peers;
    return DS_OK;
}

static ds_result ds__cpu_check_route(const ds_cpu_fabric *f, size_t from, size_t to) {
    const ds_cpu_route *route = &f->route[from * ((size_t)f->devices + 1) + to];
    DS__REQUIRE(route->latency_ns >= 0 && route->latency_ns <= 1000000000000000,
                "the route from %zu to %zu has a latency of %lld ns; 0 to 10^15 is allowed", from,
                to, (long long)route->latency_ns);
    DS__REQUIRE(route->hops <= f->links && (route->link || !route->hops),
                "the route from %zu to %zu has %zu of %zu links", from, to, route->hops, f->links);
    for (size_t i = 0; i < route->hops; i++) {
        DS__REQUIRE(route->link[i] >= 0 && (size_t)route->link[i] < f->links,
                    "the route from %zu to %zu has link %d of %zu", from, to, route->link[i],
                    f->links);
        for (size_t k = 0; k < i; k++)
            DS__REQUIRE(route->link[k] != route->link[i],
                        "the route from %zu to %zu has link %d twice", from, to, route->link[i]);
    }
    return DS_OK;
}

static ds_result ds__cpu_check_fabric(const ds_cpu_desc *desc) {
    const ds_cpu_fabric *f = desc->fabric;
    DS__REQUIRE_RESERVED("ds_cpu_fabric", f);
    DS__REQUIRE(f->devices > 0 && f->devices <= DS_CPU_MAX_DEVICES,
                "the fabric has %d devices; 1 to %d are allowed", f->devices, DS_CPU_MAX_DEVICES);
    DS__REQUIRE(!desc->devices || desc->devices == f->devices,
                "ds_cpu_desc.devices is %d, but the fabric has %d devices", desc->devices,
                f->devices);
    DS__REQUIRE(!desc->peer_access,
                "peer_access must be NULL with a fabric, whose routes define the access");
    DS__REQUIRE(!desc->workers, "ds_cpu_desc.workers is %d; it must be 0 with a fabric",
                desc->workers);
    DS__REQUIRE(!(desc->flags & DS_CPU_INLINE) && !desc->seed,
                "DS_CPU_INLINE and a seed are not allowed with a fabric");
    DS__REQUIRE(f->route, "the fabric has no routes: ds_cpu_fabric.route is NULL");
    DS__REQUIRE(f->links <= INT_MAX && (f->link_bytes_per_s || !f->links),
                "the fabric has %zu links, but link_bytes_per_s is NULL", f->links);
    DS__REQUIRE(f->engines >= 0 && f->engines <= 64,
                "the fabric has %d copy engines; 1 to 64 are allowed", f->engines);
    DS__REQUIRE(f->engine_ns >= 0 && f->engine_ns <= 1000000000000000,
                "engine_ns is %lld; 0 to 10^15 is allowed", (long long)f->engine_ns);
    DS__REQUIRE(f->memory_bytes_per_s == 0 ||
                    (f->memory_bytes_per_s >= 1 && f->memory_bytes_per_s <= 1e300),
                "memory_bytes_per_s is %g; 0, or 1 to 1e300 is allowed", f->memory_bytes_per_s);
    DS__REQUIRE((f->flags & ~(unsigned)DS_CPU_DRY) == 0, "unknown fabric flags %#x", f->flags);
    for (size_t i = 0; i < f->links; i++)
        DS__REQUIRE(f->link_bytes_per_s[i] >= 1 && f->link_bytes_per_s[i] <= 1e300,
                    "link %zu has %g bytes per second; 1 to 1e300 is allowed", i,
                    f->link_bytes_per_s[i]);
    for (size_t from = 0; from <= (size_t)f->devices; from++)
        for (size_t to = 0; to <= (size_t)f->devices; to++) {
            ds_result r = ds__cpu_check_route(f, from, to);
            if (r < 0)
                return r;
        }
    return DS_OK;
}

static ds_result ds__cpu_check(const ds_init_desc *init) {
    const ds_cpu_desc *desc = init->cpu;
    if (!desc)
        return DS_OK;
    DS__REQUIRE_RESERVED("ds_cpu_desc", desc);
    DS__REQUIRE(desc->devices >= 0 && desc->devices <= DS_CPU_MAX_DEVICES,
                "%d CPU devices are requested; 1 to %d are allowed", desc->devices,
                DS_CPU_MAX_DEVICES);
    DS__REQUIRE(desc->workers >= 0 && desc->workers <= DS__CPU_MAX_WORKERS,
                "%d workers are requested; 1 to %d are allowed", desc->workers,
                DS__CPU_MAX_WORKERS);
    DS__REQUIRE((desc->flags & ~(unsigned)(DS_CPU_INLINE | DS_CPU_NO_SPIN | DS_CPU_LAX_CAPTURE |
                                           DS_CPU_UNREACHABLE)) == 0,
                "unknown CPU flags %#x", desc->flags);
    DS__REQUIRE(!desc->peer_access || desc->devices > 0, "peer_access needs the number of devices");
    ds_result r = ds__cpu_affinity_check(desc);
    if (r < 0)
        return r;
    return desc->fabric ? ds__cpu_check_fabric(desc) : DS_OK;
}

/* Copies a fabric into one piece of memory, and replaces zeros by defaults. NULL: no memory. */
static ds_cpu_fabric *ds__cpu_copy_fabric(const ds_cpu_fabric *f) {
    size_t routes = ((size_t)f->devices + 1) * ((size_t)f->devices + 1);
    size_t hops = 0;
    for (size_t i = 0; i < routes; i++)
        hops += f->route[i].hops;
    char *at = ds__host_alloc(sizeof *f + f->links * sizeof(double) +
                              routes * sizeof(ds_cpu_route) + hops * sizeof(int));
    if (!at)
        return NULL;
    ds_cpu_fabric *copy = (ds_cpu_fabric *)(void *)at;
    ds_cpu_route *route = (ds_cpu_route *)(void *)(at + sizeof *f);
    double *rate = (double *)(void *)(route + routes);
    int *link = (int *)(void *)(rate + f->links);
    *copy = *f;
    copy->route = route;
    copy->link_bytes_per_s = rate;
    if (!copy->engines)
        copy->engines = 3;
    if (!copy->engine_ns)
        copy->engine_ns = 1500;
    if (copy->memory_bytes_per_s == 0)
        copy->memory_bytes_per_s = 2e12;
    if (f->links)
        memcpy(rate, f->link_bytes_per_s, f->links * sizeof *rate);
    for (size_t i = 0; i < routes; i++) {
        route[i] = f->route[i];
        route[i].link = link;
        if (route[i].hops)
            memcpy(link, f->route[i].link, route[i].hops * sizeof *link);
        link += route[i].hops;
    }
    return copy;
}

/* Keeps a copy of the options and of all memory that they point to. NULL: only frees the old
   copies. */
static ds_result ds__cpu_configure(const ds_init_desc *init) {
    const ds_cpu_desc *desc = init ? init->cpu : NULL;
    static ds_cpu_desc kept;
    static ds_cpu_fabric *fabric;
    static char *affinity;
    static unsigned char peers[DS_CPU_MAX_DEVICES * DS_CPU_MAX_DEVICES];
    ds__host_free(fabric);
    ds__host_free(affinity);
    fabric = NULL;
    affinity = NULL;
    ds__cpu_kept = NULL;
    if (!desc)
        return DS_OK;
    kept = *desc;
    ds__cpu_kept = &kept;
    if (desc->peer_access) {
        memcpy(peers, desc->peer_access, (size_t)desc->devices * (size_t)desc->devices);
        kept.peer_access = peers;
    }
    if (desc->affinity) {
        kept.affinity = affinity = ds__copy_text(desc->affinity, SIZE_MAX - 1);
        if (!affinity)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the list of processors");
    }
    if (!desc->fabric)
        return DS_OK;
    kept.devices = desc->fabric->devices;
    kept.fabric = fabric = ds__cpu_copy_fabric(desc->fabric);
    return fabric ? DS_OK
                  : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a fabric of %d devices",
                             desc->fabric->devices);
}

#endif
