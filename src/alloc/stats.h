/* alloc/stats.h - public functions of statistics.

   Implements ds_mem_get_stats, ds_pool_get_stats, the resets, and single values such as
   ds_mem_get_allocated, over the sums of stats_sum.h.

   Invariants: the block counts in one result belong to one moment.
   Locks: the sums and the resets stop the device (ds__mem_lock_all). ds_pool_get_stats holds
   ds__memory_state.lock meanwhile, so that no new pool takes the place of the old one.
   ds__reset_peaks expects the device stopped.
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
    DS__ENTER("ds_mem_get_stats");
    DS__REQUIRE(out, "out is NULL");
    ds_result r = ds__mem_asked(device, &dev);
    if (dev)
        ds__stats_sum(dev, NULL, out);
    return r;
}

DSDEF ds_result(ds_pool_get_stats)(ds_pool pool, ds_mem_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_pool_get_stats");
    DS__REQUIRE(out, "out is NULL");
    ds__mutex_lock(&ds__memory_state.lock); /* while it is held no pool takes another's place */
    ds__mem_pool *p = ds__mem_pool_at(pool);
    if (p)
        ds__stats_sum(p->dev, p, out);
    ds__mutex_unlock(&ds__memory_state.lock);
    /* the sentence */
    if (!p) {
        (void)ds__mem_pool_of(pool);
        return DS_ERR_INVALID_HANDLE;
    }
    return DS_OK;
}

/* Peaks start anew, and so does the search for a thread that allocates alone. All is locked. */
static void ds__reset_peaks(ds__mem_dev *dev) {
    for (ds__mem_pool *p = NULL;;) { /* NULL: the device's own */
        int64_t now[2][DS__METRICS];
        int64_t none[2][2] = { { 0, 0 }, { 0, 0 } };
        ds__domain *d = p ? &p->stats : &dev->stats;
        ds__domain_now(dev, p, now, NULL);
        for (int m = 0; m < DS__METRICS; m++)
            for (int k = 0; k < 3; k++)
                d->tally.peak[k][m] = INT64_MIN;
        ds__domain_peaks(d, now, none);
        d->sharers = 0;
        for (int m = 0; m < DS__METERS; m++) {
            atomic_store(&d->all[m].peak, atomic_load(&d->all[m].now));
            for (int k = 0; k < 2; k++)
                atomic_store(&d->meter[k][m].peak, atomic_load(&d->meter[k][m].now));
        }
        atomic_store(&d->oversize_allocations.peak, atomic_load(&d->oversize_allocations.now));
        atomic_store(&d->oversize_segments.peak, atomic_load(&d->oversize_segments.now));
        if (!p)
            p = dev->main.next;
        else
            p = p->next;
        if (!p)
            break;
    }
    memset(dev->async_peak, 0, sizeof dev->async_peak); /* taken anew with the next statistics */
    ds__at_peak(&dev->stats.tally, dev->room);
}

static void ds__mem_reset_of(ds__mem_dev *dev, int peaks) {
    ds__mem_lock_all(dev);
    ds__counter_fold(dev);
    if (peaks)
        ds__reset_peaks(dev);
    for (ds__mem_pool *p = NULL; !peaks;) {
        ds__domain *d = p ? &p->stats : &dev->stats;
        ds__domain_now(dev, p, d->freed_base, NULL);
        memset(d->frozen, 0, sizeof d->frozen);
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < DS__COUNTED; m++)
                d->tally.kind[k].total[m] = 0;
        for (int m = 0; m < DS__METERS; m++) {
            ds__meter *one[3] = { &d->all[m], &d->meter[0][m], &d->meter[1][m] };
            for (int k = 0; k < 3; k++) {
                atomic_store(&one[k]->total, 0);
                atomic_store(&one[k]->freed, 0);
            }
        }
        ds__meter *over[2] = { &d->oversize_allocations, &d->oversize_segments };
        for (int k = 0; k < 2; k++) {
            atomic_store(&over[k]->total, 0);
            atomic_store(&over[k]->freed, 0);
        }
        atomic_store(&d->retries, 0);
        atomic_store(&d->ooms, 0);
        atomic_store(&d->syncs, 0);
        atomic_store(&d->driver_allocs, 0);
        atomic_store(&d->driver_frees, 0);
        atomic_store(&d->rejections, 0);
        p = p ? p->next : dev->main.next;
        if (!p)
            break;
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
        DS__ENTER(#name);                     \
        return ds__mem_reset(device, peaks);  \
    }
DS__RESET(ds_mem_reset_peak_stats, 1)
DS__RESET(ds_mem_reset_accumulated_stats, 0)
#undef DS__RESET

#define DS__ONE_STAT(name, member)                                              \
    DSDEF size_t(name)(ds_device device) {                                      \
        ds__mem_dev *dev = NULL;                                                \
        ds_mem_stats s;                                                         \
        if (ds__api_enter(#name) < 0 || ds__mem_used(device, &dev) < 0 || !dev) \
            return 0;                                                           \
        ds__stats_sum(dev, NULL, &s);                                           \
        return (size_t)s.member;                                                \
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
    DS__ENTER("ds_mem_get_driver_pool_info");
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
