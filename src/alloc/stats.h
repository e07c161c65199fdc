/* alloc/stats.h - public functions of statistics.

   Implements ds_mem_get_stats, ds_pool_get_stats, the resets, and single values such as
   ds_mem_get_allocated, over the sums of stats_sum.h.

   Invariants: The block counts in one result belong to one moment.
   Locks: The sums and the resets stop the device (ds__mem_lock_all). ds_pool_get_stats holds
   ds__memory_state.lock meanwhile, so that no new pool reuses the object.
   Threads: any caller's thread; allocations and frees on the device wait meanwhile. */
#ifndef DS__ALLOC_STATS_H
#define DS__ALLOC_STATS_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "counters.h"
#include "locks.h"
#include "pool.h"
#include "pinned.h"
#include "stats_sum.h"

DSDEF ds_result(ds_mem_get_stats)(ds_device device, ds_mem_stats *out) {
    ds__mem_dev *dev = NULL;
    if (out)
        memset(out, 0, sizeof *out);
    DS__MEM_ENTER("ds_mem_get_stats");
    DS__REQUIRE(out, "out is NULL");
    ds_result r = ds__mem_asked(device, &dev);
    if (dev)
        ds__stats_sum(dev, NULL, out);
    return r;
}

DSDEF ds_result(ds_pool_get_stats)(ds_pool pool, ds_mem_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__MEM_ENTER("ds_pool_get_stats");
    DS__REQUIRE(out, "out is NULL");
    ds__mutex_lock(&ds__memory_state.lock); /* so that no new pool reuses the object meanwhile */
    ds__mem_pool *p = ds__mem_pool_at(pool);
    if (p)
        ds__stats_sum(p->dev, p, out);
    ds__mutex_unlock(&ds__memory_state.lock);
    if (!p) {
        (void)ds__mem_pool_of(pool); /* sets the error */
        return DS_ERR_INVALID_HANDLE;
    }
    return DS_OK;
}

/* Returns the meters of a domain, one after the other: of both kinds, small, large, and those of
   oversize blocks and segments. NULL: there is none with this number. */
static ds__meter *ds__domain_meter(ds__domain *d, int number) {
    if (number < DS__METERS)
        return &d->all[number];
    if (number < 3 * DS__METERS)
        return &d->meter[number / DS__METERS - 1][number % DS__METERS];
    if (number == 3 * DS__METERS)
        return &d->oversize_allocations;
    return number == 3 * DS__METERS + 1 ? &d->oversize_segments : NULL;
}

/* Resets the peaks of a domain, the device's or a pool's (`only`), to its counts. All is locked. */
static void ds__domain_peaks_reset(ds__mem_dev *dev, ds__mem_pool *only) {
    int64_t now[2][DS__METRICS];
    int64_t none[2][2] = { { 0, 0 }, { 0, 0 } };
    ds__domain *d = only ? &only->stats : &dev->stats;
    ds__domain_now(dev, only, now, NULL);
    for (int m = 0; m < DS__METRICS; m++)
        for (int k = 0; k < 3; k++)
            d->tally.peak[k][m] = INT64_MIN;
    ds__domain_peaks(d, now, none);
    d->sharers = 0;
    for (int i = 0; ds__domain_meter(d, i); i++)
        atomic_store(&ds__domain_meter(d, i)->peak, atomic_load(&ds__domain_meter(d, i)->now));
}

/* Resets the totals of a domain, the device's or a pool's (`only`). All is locked. */
static void ds__domain_totals_reset(ds__mem_dev *dev, ds__mem_pool *only) {
    ds__domain *d = only ? &only->stats : &dev->stats;
    ds__domain_now(dev, only, d->freed_base, NULL);
    memset(d->frozen, 0, sizeof d->frozen);
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < DS__COUNTED; m++)
            d->tally.kind[k].total[m] = 0;
    for (int i = 0; ds__domain_meter(d, i); i++) {
        atomic_store(&ds__domain_meter(d, i)->total, 0);
        atomic_store(&ds__domain_meter(d, i)->freed, 0);
    }
    atomic_store(&d->retries, 0);
    atomic_store(&d->ooms, 0);
    atomic_store(&d->syncs, 0);
    atomic_store(&d->driver_allocs, 0);
    atomic_store(&d->driver_frees, 0);
    atomic_store(&d->rejections, 0);
}

/* Resets the peaks or the totals of a device and its pools. The search for a thread that allocates
   alone begins anew. */
static void ds__mem_reset_of(ds__mem_dev *dev, int peaks) {
    void (*reset)(ds__mem_dev *, ds__mem_pool *) =
        peaks ? ds__domain_peaks_reset : ds__domain_totals_reset;
    ds__mem_lock_all(dev);
    ds__counter_fold(dev);
    reset(dev, NULL);
    for (ds__mem_pool *p = dev->main.next; p; p = p->next)
        reset(dev, p);
    if (peaks) {
        memset(dev->async_peak, 0, sizeof dev->async_peak); /* set by the next ds__stats_sum */
        ds__at_peak(&dev->stats.tally, dev->room);
    }
    ds__mem_unlock_all(dev);
}

static ds_result ds__mem_reset(ds_device device, int peaks) {
    ds__mem_dev *dev;
    ds_result r = ds__mem_used(device, &dev);
    if (dev)
        ds__mem_reset_of(dev, peaks);
    return r;
}

#define DS__RESET(name, peaks)                \
    DSDEF ds_result(name)(ds_device device) { \
        DS__MEM_ENTER(#name);                 \
        return ds__mem_reset(device, peaks);  \
    }
DS__RESET(ds_mem_reset_peak_stats, 1)
DS__RESET(ds_mem_reset_accumulated_stats, 0)
#undef DS__RESET

#define DS__ONE_STAT(name, member)                  \
    DSDEF size_t(name)(ds_device device) {          \
        ds__mem_dev *dev = NULL;                    \
        ds_mem_stats s;                             \
        if (ds__api_enter(#name) < 0)               \
            return 0;                               \
        ds__postponed_run(DS__POSTPONED_MEMORY);    \
        if (ds__mem_used(device, &dev) < 0 || !dev) \
            return 0;                               \
        ds__stats_sum(dev, NULL, &s);               \
        return (size_t)s.member;                    \
    }
DS__ONE_STAT(ds_mem_get_allocated, allocated_bytes[0].current)
DS__ONE_STAT(ds_mem_get_max_allocated, allocated_bytes[0].peak)
DS__ONE_STAT(ds_mem_get_reserved, reserved_bytes[0].current)
DS__ONE_STAT(ds_mem_get_max_reserved, reserved_bytes[0].peak)
#undef DS__ONE_STAT

DSDEF ds_result(ds_mem_get_driver_pool_info)(ds_device device, size_t *out_reserved,
                                             size_t *out_used) {
    size_t reserved = 0;
    size_t used = 0;
    if (out_reserved)
        *out_reserved = 0;
    if (out_used)
        *out_used = 0;
    DS__MEM_ENTER("ds_mem_get_driver_pool_info");
    DS__RESOLVE(device);
    ds_result r = ds__driver_of(device)->async_info(device.index, &reserved, &used);
    if (r < 0)
        return r;
    if (out_reserved)
        *out_reserved = reserved;
    if (out_used)
        *out_used = used;
    return DS_OK;
}

#endif
