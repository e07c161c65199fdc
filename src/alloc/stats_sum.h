/* alloc/stats_sum.h - sums of statistics.

   Adds up the counts of a device or a pool (ds__stats_sum) for the public functions of statistics,
   for pinned memory, and before the driver's own pool shrinks.

   Invariants: The block counts in one result belong to one moment. Peaks of reserved bytes
   include the driver's own pool as it was at each call (`async_peak`).
   Locks: ds__stats_sum stops the device (ds__mem_lock_all) and asks the driver before that.
   Threads: any caller's thread; allocations and frees on the device wait meanwhile. */
#ifndef DS__ALLOC_STATS_SUM_H
#define DS__ALLOC_STATS_SUM_H

#include "types.h"
#include "counters.h"
#include "locks.h"
#include "segment.h"

static ds_mem_stat ds__stat_of_meter(const ds__meter *m) {
    return (ds_mem_stat){ atomic_load(&m->now), atomic_load(&m->peak), atomic_load(&m->total),
                          atomic_load(&m->freed) };
}

/* Sums up the statistics of a device, or of a pool (`only`). No lock is held. */
static void ds__stats_sum(ds__mem_dev *dev, ds__mem_pool *only, ds_mem_stats *out) {
    int64_t now[2][DS__METRICS];
    int64_t total[2][DS__METRICS];
    int64_t kept = only ? 0 : (int64_t)ds__async_has(dev, NULL);
    ds__domain *d = only ? &only->stats : &dev->stats;
    memset(out, 0, sizeof *out);
    ds__mem_lock_all(dev);
    ds__domain_now(dev, only, now, total);
    ds_mem_stat *stat[DS__METRICS] = { out->allocation, out->allocated_bytes, out->requested_bytes,
                                       out->active, out->active_bytes };
    for (int m = 0; m < DS__METRICS; m++) {
        for (int k = 0; k < 2; k++) {
            ds_mem_stat *s = &stat[m][1 + k];
            s->current = now[k][m];
            s->peak = ds__tally_peak(&d->tally, 1 + k, m);
            s->allocated = total[k][m];
            s->freed =
                dev->main.full ? total[k][m] - now[k][m] + d->freed_base[k][m] : d->frozen[k][m];
            stat[m][0].current += s->current;
            stat[m][0].allocated += s->allocated;
            stat[m][0].freed += s->freed;
        }
        stat[m][0].peak = ds__tally_peak(&d->tally, 0, m);
    }
    ds_mem_stat *meter[DS__METERS] = { out->segment, out->reserved_bytes, out->inactive_split,
                                       out->inactive_split_bytes };
    for (int m = 0; m < DS__METERS; m++) {
        meter[m][0] = ds__stat_of_meter(&d->all[m]);
        for (int k = 0; k < 2; k++)
            meter[m][1 + k] = ds__stat_of_meter(&d->meter[k][m]);
    }
    kept -= (int64_t)atomic_load(&dev->async_bytes);
    /* the driver's own pool has no kinds; its cached memory counts as large */
    for (int k = 0; k < 2 && !only && atomic_load(&dev->async); k++) {
        ds_mem_stat *s = &out->reserved_bytes[k ? DS_STAT_LARGE : DS_STAT_ALL];
        if (kept > 0)
            s->current += kept;
        ds__counter_peak_raise(&dev->async_peak[k], s->current);
        ds__counter_peak_raise(&s->peak, dev->async_peak[k]);
    }
    out->oversize_allocations = ds__stat_of_meter(&d->oversize_allocations);
    out->oversize_segments = ds__stat_of_meter(&d->oversize_segments);
    out->num_alloc_retries = atomic_load(&d->retries);
    out->num_ooms = atomic_load(&d->ooms);
    out->num_sync_all_streams = atomic_load(&d->syncs);
    out->num_device_alloc = atomic_load(&d->driver_allocs);
    out->num_device_free = atomic_load(&d->driver_frees);
    out->num_oom_rejections = atomic_load(&d->rejections);
    size_t split = only ? only->config.max_split_size : dev->main.config.max_split_size;
    out->max_split_size = split == SIZE_MAX ? -1 : (int64_t)split;
    out->peak_bound = 2 * d->sharers * DS__ROOM_BYTES;
    out->peak_bound_count = 2 * d->sharers * DS__ROOM_COUNT;
    ds__mem_unlock_all(dev);
}

#endif
