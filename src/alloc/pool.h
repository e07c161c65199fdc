/* alloc/pool.h - devices and pools: creation, look-up, policies.

   Makes the allocator's record of a device at its first use (ds__mem_device), and makes or
   reuses pools (ds__mem_pool_create). ds__mem_setup reads DEVSTREAM_ALLOC_CONF at the first use and
   enters the functions for stream end and shutdown. ds__mem_pool_apply sets a pool's configuration
   and derives the flags of the pool and its arenas. ds__mem_pool_of returns the pool of a handle.
   ds__pool_policy returns the configuration to code without a lock. ds__mem_pool_own and
   ds__mem_pool_disown count the owners of a pool: its handle, pushes, captures and graphs.

   Invariants: Device records, pools and policies stay until ds_shutdown, so a late reader finds
   a valid object. A stored policy never changes; equal policies are stored once, up to
   differences in padding. Limits are not part of it. A pool without owners and memory may
   become a new pool, with a new number. dev->limit follows from `limit` and `memory_fraction` of
   the device's configuration. If DEVSTREAM_ALLOC_CONF is invalid, each call of ds__mem_setup
   reads the variable again and returns the error.
   Locks: ds__memory_state.lock first; under it the device's lock, the arenas' locks and the
   registry's, ds__history_state.lock for a new device, and ds__memory_state.leaving for
   ds__mem_setup. ds__mem_device calls the driver under ds__memory_state.lock, for the properties of
   the device. ds__mem_pool_at and ds__mem_pool_reuse expect ds__memory_state.lock.
   ds__mem_pool_apply expects the device stopped (ds__mem_lock_all), or a pool without arenas.
   Threads: any thread. An existing device is found without a lock. ds__mem_closing(1) runs on
   the thread of ds_shutdown and waits for threads that release the pool of a graph.
   ds__mem_pool_disown also runs on a thread of CUDA's when a graph ends, and takes no lock. */
#ifndef DS__ALLOC_POOL_H
#define DS__ALLOC_POOL_H

#include "../core/internal.h"
#include "internal.h"
#include "types.h"
#include "config.h"
#include "config_text.h"
#include "state.h"
#include "util.h"
#include "history_state.h"
#include "history_ring.h"
#include "counters.h"
#include "bins.h"
#include "locks.h"

/* Copies the flags of a pool to an arena, where every call reads them. The arena is locked, or no
   other thread knows it. */
static void ds__arena_apply(ds__arena *a) {
    const ds__mem_pool *p = a->pool;
    a->watched = p->watched;
    a->full = p->full;
    a->own_pool = p != &p->dev->main;
    a->measured = a->full || a->own_pool;
    a->slow = p->watched || p->direct || p->config.poll_on_alloc;
    /* stays set, because earlier blocks may be counted as oversize */
    if (a->slow || p->oversize)
        a->slow_free = 1;
    a->requests = p->config.garbage_collection_threshold > 0 ? &a->pool->requests : NULL;
}

/* Makes an arena without a stream and links it into the pool's list. Returns NULL without host
   memory. The device is locked, or no other thread knows the pool. */
static ds__arena *ds__arena_create(ds__mem_pool *p) {
    ds__arena *a = ds__kept_alloc(sizeof *a);
    if (!a)
        return NULL;
    ds__mutex_init(&a->grow);
    ds__mutex_init(&a->giving);
    a->pool = p;
    a->dev = p->dev;
    ds__arena_apply(a);
    ds__count_in(a, atomic_load(&p->dev->owner) != (void *)(uintptr_t)&ds__no_owner);
    a->next = p->arenas;
    p->arenas = a;
    return a;
}

/* A copy of a policy that stays until shutdown. */
typedef struct ds__mem_policy {
    struct ds__mem_policy *next;
    uint64_t pad;
    ds_mem_config config;
} ds__mem_policy;

/* Returns the stored copy of a policy, which is the same one for equal policies. Limits are not
   part of it, because they change on their own. Without host memory returns NULL and sets the
   error. */
static const ds_mem_config *ds__policy_intern(const ds_mem_config *config) {
    ds_mem_config c;
    memcpy(&c, config, sizeof c); /* different padding only costs a further copy */
    c.limit = 0;
    c.memory_fraction = 1;
    ds__mutex_lock(&ds__memory_state.registry);
    ds__mem_policy *k = ds__memory_state.policies;
    while (k && memcmp(&k->config, &c, sizeof c) != 0)
        k = k->next;
    if (!k) {
        k = ds__kept_alloc_unlocked(sizeof *k);
        if (k) {
            memcpy(&k->config, &c, sizeof c);
            k->next = ds__memory_state.policies;
            ds__memory_state.policies = k;
        }
    }
    ds__mutex_unlock(&ds__memory_state.registry);
    if (!k)
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a policy");
    return k ? &k->config : NULL;
}

/* Returns the policy of a pool, for callers without a lock. It stays valid until shutdown. */
static const ds_mem_config *ds__pool_policy(ds__mem_pool *p) {
    return atomic_load_explicit(&p->policy, memory_order_acquire);
}

/* Returns the smallest rest of a large plain block that is worth keeping. */
static size_t ds__config_split_above(const ds_mem_config *c) {
    if (c->single_pool)
        return DS__UNIT;
    return c->segment_growth ? 64 * 1024 : DS__MIB + 1;
}

/* Sets a pool's configuration and the members that follow from it. The device is locked with all
   arenas of the pool, or no other thread knows the pool. Without host memory returns 0 and sets the
   error. */
static int ds__mem_pool_apply(ds__mem_pool *p, const ds_mem_config *config) {
    const ds_mem_config *policy = ds__policy_intern(config);
    if (!policy)
        return 0;
    int sorts = config->best_fit_by_address && !p->config.best_fit_by_address;
    atomic_store_explicit(&p->policy, policy, memory_order_release);
    p->config = *config;
    p->rounds = 0;
    for (int i = 0; i < 16; i++) {
        if (config->roundup_power2_divisions[i])
            p->rounds = 1;
    }
    p->coarse = !config->best_fit_by_address && !config->single_pool;
    p->oversize = config->max_split_size != SIZE_MAX;
    p->watched = config->poison || config->guard_bytes || config->debug > 1;
    /* the same level for a device and its pools */
    p->full = p->dev->main.config.statistics == DS_STATISTICS_FULL;
    p->direct = config->backend != DS_MEM_NATIVE;
    p->split_above[DS__SMALL] = DS__UNIT;
    p->split_above[DS__LARGE] = ds__config_split_above(config);
    for (ds__arena *a = p->arenas; a; a = a->next) {
        ds__arena_apply(a);
        if (sorts)
            ds__bins_sort(a);
    }
    return 1;
}

/* Returns the current configuration of a device. */
static ds_mem_config ds__config_of(ds__mem_dev *dev) {
    ds__mem_dev_lock(dev);
    ds_mem_config c = dev->main.config;
    ds__mem_dev_unlock(dev);
    return c;
}

/* Returns the configuration of devices that are used later. */
static ds_mem_config ds__usual_config(void) {
    ds__mutex_lock(&ds__memory_state.lock);
    ds_mem_config c = ds__memory_state.config;
    ds__mutex_unlock(&ds__memory_state.lock);
    return c;
}

/* Returns the smaller one of a configuration's limits in bytes; 0: none. */
static size_t ds__config_limit(const ds_mem_config *c, size_t total) {
    size_t by_fraction = c->memory_fraction < 1 ? (size_t)(c->memory_fraction * (double)total) : 0;
    size_t limit = c->limit;
    /* a fraction of 0 allows nothing, but a limit of 0 is none */
    if (c->memory_fraction < 1 && by_fraction == 0)
        by_fraction = 1;
    if (by_fraction && (!limit || by_fraction < limit))
        limit = by_fraction;
    return limit;
}

/* Sets the device's limit from its configuration. */
static void ds__mem_limit(ds__mem_dev *dev) {
    atomic_store(&dev->limit, ds__config_limit(&dev->main.config, dev->total));
}

/* Sets whether ds_shutdown frees the pools now. If so, waits for graphs that release their
   pools. */
static void ds__mem_closing(int closing) {
    ds__mutex_lock(&ds__memory_state.leaving);
    ds__memory_state.closing = closing;
    while (closing && ds__memory_state.leavers)
        ds__condition_wait(&ds__memory_state.left, &ds__memory_state.leaving);
    ds__mutex_unlock(&ds__memory_state.leaving);
}

/* Reads the environment and enters the module at the first use. */
static ds_result ds__mem_setup(void) {
    ds__mutex_lock(&ds__memory_state.lock);
    if (!ds__memory_state.tick_base) {
        ds__memory_state.tick_base_ns = ds__now_ns();
        ds__memory_state.tick_base = ds__os_ticks();
    }
    if (!ds__memory_state.configured) {
        const char *text = getenv("DEVSTREAM_ALLOC_CONF");
        ds__memory_state.config = ds_mem_config_default();
        ds__memory_state.conf_result =
            text && *text ? ds__config_read(text, &ds__memory_state.config) : DS_OK;
        if (ds__memory_state.conf_result < 0)
            ds__fail_append(ds__memory_state.conf_result,
                            " (in the environment's DEVSTREAM_ALLOC_CONF)");
        ds__memory_state.configured = ds__memory_state.conf_result == DS_OK;
        ds__mem_closing(0);
        ds__module_add(DS__MODULE_ALLOC, &ds__mem_module);
    }
    ds_result r = ds__memory_state.conf_result;
    ds__mutex_unlock(&ds__memory_state.lock);
    return r;
}

/* Makes the record of a device with `total` bytes of memory. Returns NULL without host memory. */
static ds__mem_dev *ds__mem_dev_create(ds_device device, size_t total,
                                       const ds_mem_config *config) {
    ds__mem_dev *dev = ds__kept_alloc(sizeof *dev);
    if (!dev)
        return NULL;
    ds__mutex_init(&dev->lock);
    dev->device = device;
    dev->total = total;
    dev->has_space = -1;
    dev->main.dev = dev;
    dev->main.owners = 1;
    return ds__mem_pool_apply(&dev->main, config) ? dev : NULL;
}

/* Makes the record of a device and publishes it. On failure returns NULL and sets the error.
   ds__memory_state.lock is held. */
static ds__mem_dev *ds__mem_device_create(ds_device device) {
    ds_device_properties properties;
    if (ds__driver_of(device)->device_properties(device.index, &properties) < 0)
        return NULL;
    ds__mem_dev *dev =
        ds__mem_dev_create(device, properties.total_memory, &ds__memory_state.config);
    if (!dev) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the allocator of a device");
        return NULL;
    }
    ds__mem_limit(dev);
    atomic_store_explicit(ds__module_device(DS__MODULE_ALLOC, ds__backend_of(device), device.index),
                          dev, memory_order_release);
    ds__mem_history_join(dev);
    return dev;
}

/* Returns the record of a device (resolved), which is made at the first use. On failure returns
   NULL and sets the error. */
static ds__mem_dev *ds__mem_device(ds_device device) {
    int backend = ds__backend_of(device);
    ds__mem_dev *dev = ds__mem_device_at(backend, device.index);
    if (DS__LIKELY(dev != NULL))
        return dev;
    if (ds__mem_setup() < 0)
        return NULL;
    ds__mutex_lock(&ds__memory_state.lock);
    dev = ds__mem_device_at(backend, device.index);
    if (!dev)
        dev = ds__mem_device_create(device);
    ds__mutex_unlock(&ds__memory_state.lock);
    return dev;
}

/* Sets *out to the record of a device, or to NULL if the device was not used, and returns DS_OK. */
static ds_result ds__mem_used(ds_device device, ds__mem_dev **out) {
    *out = NULL;
    DS__RESOLVE(device);
    *out = ds__mem_device_at(ds__backend_of(device), device.index);
    return DS_OK;
}

/* Returns the pool of a handle, or NULL. A destroyed pool is found until a new pool reuses its
   object. ds__memory_state.lock is held. */
static ds__mem_pool *ds__mem_pool_at(ds_pool pool) {
    uint32_t index = (uint32_t)pool.id;
    ds__mem_pool *p = index >= 1 && index <= ds__memory_state.pool_count
                          ? ds__memory_state.pools[index - 1]
                          : NULL;
    return p && p->id == pool.id ? p : NULL;
}

/* Returns the pool of a handle. If there is none, returns NULL and sets the error. The object stays
   until shutdown, so it needs no reference. */
static ds__mem_pool *ds__mem_pool_of(ds_pool pool) {
    ds__mutex_lock(&ds__memory_state.lock);
    ds__mem_pool *p = ds__mem_pool_at(pool);
    if (p && p->dead)
        p = NULL;
    ds__mutex_unlock(&ds__memory_state.lock);
    if (!p)
        ds__fail(DS_ERR_INVALID_HANDLE, pool.id ? "the pool was destroyed or never existed"
                                                : "no pool was given (the handle is zero)");
    return p;
}

/* Returns the first arena of a pool. Arenas are only added, in front, so the list behind it may be
   read without a lock. */
static ds__arena *ds__first_arena(ds__mem_dev *dev, ds__mem_pool *p) {
    ds__mem_dev_lock(dev);
    ds__arena *a = p->arenas;
    ds__mem_dev_unlock(dev);
    return a;
}

/* Returns the pool behind `p` in the device's list, or the default pool if `p` is NULL. */
static ds__mem_pool *ds__next_pool(ds__mem_dev *dev, ds__mem_pool *p) {
    ds__mem_dev_lock(dev);
    p = p ? p->next : &dev->main;
    ds__mem_dev_unlock(dev);
    return p;
}

/* Sets the members of a new pool except its configuration and its label. The number of a pool is
   never used again, even after a shutdown. The pool of a capture has the capture's number as name.
   No other thread knows the pool, or the device is stopped. */
static void ds__mem_pool_begin(ds__mem_pool *p, uint32_t slot, const ds_pool_desc *desc,
                               uint64_t capture) {
    uint64_t number = ++ds__memory_state.next_pool;
    p->id = number << 32 | slot;
    p->name[0] = capture;
    p->name[1] = capture ? 0 : number;
    p->alloc_fn = desc->alloc_fn;
    p->free_fn = desc->free_fn;
    p->upstream = desc->upstream ? *desc->upstream : (ds_resource){ 0 };
    p->has_upstream = desc->alloc_fn || desc->upstream;
    p->use_on_oom = desc->use_on_oom != 0;
    p->no_split = desc->no_split != 0;
    p->shareable = desc->shareable != 0;
    p->limit = desc->limit;
    p->owners = 1;
    p->dead = 0;
}

/* Returns whether a segment of the arena has memory. The arena is locked. */
static int ds__arena_has_memory(const ds__arena *a) {
    for (const ds__segment *s = a->segments; s; s = s->next)
        if (s->mapped)
            return 1;
    return 0;
}

/* Makes a new pool of one without owners and memory, or returns NULL. So programs that capture
   again and again need no further host memory. ds__memory_state.lock is held. */
static ds__mem_pool *ds__mem_pool_reuse(ds__mem_dev *dev, const ds_mem_config *config,
                                        const ds_pool_desc *desc, char *label, uint64_t capture) {
    ds__mem_pool *found = NULL;
    ds__mem_lock_all(dev);
    for (ds__mem_pool *p = dev->main.next; p && !found; p = p->next) {
        int empty = p->owners == 0;
        for (const ds__arena *a = p->arenas; a && empty; a = a->next)
            empty = !ds__arena_has_memory(a);
        if (empty)
            found = p;
    }
    if (found && !ds__policy_intern(config))
        found = NULL;
    if (found) {
        ds__counter_fold(dev); /* the device keeps the counts of the pool */
        memset(&found->stats, 0, sizeof found->stats);
        ds__host_free(found->label);
        found->label = label;
        ds__mem_pool_begin(found, (uint32_t)found->id, desc, capture);
        (void)ds__mem_pool_apply(found, config);
    }
    ds__mem_unlock_all(dev);
    return found;
}

/* Makes a pool in a new object and enters it in the list of pools and of the device. Returns NULL
   without host memory. ds__memory_state.lock is held. */
static ds__mem_pool *ds__mem_pool_add(ds__mem_dev *dev, const ds_mem_config *config,
                                      const ds_pool_desc *desc, char *label, uint64_t capture) {
    ds__mem_pool *p = ds__kept_alloc(sizeof *p);
    if (!p || !ds__array_reserve(&ds__memory_state.pools, sizeof *ds__memory_state.pools,
                                 ds__memory_state.pool_count, 1, &ds__memory_state.pool_room))
        return NULL;
    p->dev = dev;
    ds__mem_dev_lock(dev);
    int applied = ds__mem_pool_apply(p, config);
    if (applied) {
        p->label = label;
        ds__memory_state.pools[ds__memory_state.pool_count++] = p;
        ds__mem_pool_begin(p, ds__memory_state.pool_count, desc, capture);
        p->next = dev->main.next;
        dev->main.next = p;
    }
    ds__mem_dev_unlock(dev);
    return applied ? p : NULL;
}

/* Makes a pool with one owner, for the capture of this number, if the number is not 0. Of `desc`
   the device and the configuration are not used. Without host memory returns NULL and sets the
   error. */
static ds__mem_pool *ds__mem_pool_create(ds__mem_dev *dev, const ds_mem_config *config,
                                         const ds_pool_desc *desc, uint64_t capture) {
    char *label = desc->label ? ds__copy_text(desc->label, 255) : NULL;
    ds__mem_pool *p = NULL;
    if (label || !desc->label) {
        ds__mutex_lock(&ds__memory_state.lock);
        p = ds__mem_pool_reuse(dev, config, desc, label, capture);
        if (!p)
            p = ds__mem_pool_add(dev, config, desc, label, capture);
        ds__mutex_unlock(&ds__memory_state.lock);
    }
    if (!p) {
        ds__host_free(label);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a pool");
    }
    return p;
}

/* Adds an owner to a pool. */
static void ds__mem_pool_own(ds__mem_pool *p) {
    ds__mem_dev_lock(p->dev);
    p->owners++;
    ds__mem_dev_unlock(p->dev);
}

/* Removes an owner. A flush empties pools without owners. Takes no lock, because CUDA ends graphs
   on a thread of its own. */
static void ds__mem_pool_disown(ds__mem_pool *p) {
    atomic_fetch_sub(&p->owners, 1);
}

#endif
