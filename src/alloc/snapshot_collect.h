/* alloc/snapshot_collect.h - collecting a snapshot.

   ds__snap_collect copies the segments, blocks, pools and history of all devices, or of one
   pool, into a ds__snap. CUDA's devices come first. ds__snap_free frees it.

   Invariants: Each run of mapped blocks between holes becomes a segment, as in PyTorch's
   snapshots. Segments are sorted by device and address. The times of a device's events are
   nanoseconds and never decrease; their labels, places and pools are replaced by numbers. If
   memory runs out, the whole snapshot is dropped.
   Locks: ds__memory_state.lock first, and released. Then ds__history_state.lock, and under it one
   device after the other is stopped (ds__mem_lock_all); its history_lock comes last. Memory for the
   copy is allocated under these locks, spinning ones included. The event of the snapshot itself is
   noted under ds__history_state.lock, so observers (user code) run under it.
   Threads: any caller's thread, also while streams capture. The copy of a device is consistent
   in itself; devices are copied one after the other. */
#ifndef DS__ALLOC_SNAPSHOT_COLLECT_H
#define DS__ALLOC_SNAPSHOT_COLLECT_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "history_state.h"
#include "history_ring.h"
#include "locks.h"
#include "snapshot_types.h"

/* Copies the blocks of a segment. As in PyTorch's snapshots, each run of blocks between holes
   becomes a segment. All is locked. */
static void ds__snap_segment(ds__snap *s, const ds__segment *seg, const ds__arena *a,
                             uint32_t device, uint32_t pool) {
    ds__ssegment *run = NULL;
    for (const ds__mem_block *b = seg->first; b && !s->broken; b = b->next) {
        if (b->state == DS_BLOCK_UNMAPPED) {
            run = NULL;
            continue;
        }
        if (!run) {
            if (!DS__SNAP_MORE(s, segments, segment_count, segment_room))
                return;
            run = &s->segments[s->segment_count++];
            *run = (ds__ssegment){ .address = (uintptr_t)b->ptr,
                                   .stream = a->stream_id,
                                   .device = device,
                                   .pool = pool,
                                   .kind = seg->kind,
                                   .growing = seg->page != 0,
                                   .first = s->block_count };
        }
        if (!DS__SNAP_MORE(s, blocks, block_count, block_room))
            return;
        ds__sblock *to = &s->blocks[s->block_count++];
        *to = (ds__sblock){ .address = (uintptr_t)b->ptr, .size = b->size, .state = b->state };
        run->size += b->size;
        run->count++;
        if (b->state == DS_BLOCK_FREE) /* its label may have been freed */
            continue;
        to->asked = b->asked;
        to->frame = ds__snap_frame(s, b->file, b->line, b->label);
        run->active += b->size;
        run->requested += b->asked;
        if (b->state == DS_BLOCK_LIVE)
            run->allocated += b->size;
    }
}

/* Copies a pool, and returns its index. */
static uint32_t ds__snap_pool(ds__snap *s, const ds__mem_pool *p, uint32_t device) {
    if (!DS__SNAP_MORE(s, pools, pool_count, pool_room))
        return 0;
    s->pools[s->pool_count] =
        (ds__spool){ p->id, { p->name[0], p->name[1] }, ds__snap_text(s, p->label), device };
    return (uint32_t)s->pool_count++;
}

/* Converts the times of the events from ticks to nanoseconds. The same scale for all events keeps
   their order. */
static void ds__snap_times(ds__sdevice *d) {
    if (!d->count)
        return;
    for (size_t i = 1; i < d->count;
         i++) /* a thread may have waited between its time and its entry */
        if (d->events[i].time_ns < d->events[i - 1].time_ns)
            d->events[i].time_ns = d->events[i - 1].time_ns;
    uint64_t from = d->events[0].time_ns;
    uint64_t from_ns = ds__ticks_ns(from);
    uint64_t to = d->events[d->count - 1].time_ns;
    double scale = to > from ? (double)(ds__ticks_ns(to) - from_ns) / (double)(to - from) : 0;
    for (size_t i = 0; i < d->count; i++)
        d->events[i].time_ns = from_ns + (uint64_t)((double)(d->events[i].time_ns - from) * scale);
}

/* Copies the events of a device, from the oldest one in the ring on. The device is locked. */
static void ds__snap_history(ds__snap *s, ds__sdevice *d, ds__mem_dev *dev) {
    /* a few more events may come, because some need no lock of the device */
    uint64_t n = atomic_load_explicit(&dev->history_count, memory_order_relaxed) + 64;
    size_t have = n < dev->history_room ? (size_t)n : dev->history_room;
    if (!have || s->broken)
        return;
    d->events = ds__host_alloc(have * sizeof *d->events);
    if (!d->events) {
        s->broken = 1;
        return;
    }
    ds__spinlock_lock(&dev->history_lock);
    n = atomic_load_explicit(&dev->history_count, memory_order_relaxed);
    d->seen = n;
    d->count = n < have ? (size_t)n : have;
    for (size_t i = 0; i < d->count; i++)
        d->events[i] = dev->history[(n - d->count + i) % dev->history_room];
    ds__spinlock_unlock(&dev->history_lock);
    ds__snap_times(d);
}

/* Returns the index of a device's pool, from a guess on, or `pool_count`. */
static uint32_t ds__snap_pool_find(const ds__snap *s, uint32_t device, uint64_t id,
                                   uint32_t guess) {
    if (guess < s->pool_count && s->pools[guess].device == device && s->pools[guess].id == id)
        return guess;
    uint32_t pool = 0;
    while (pool < s->pool_count && (s->pools[pool].device != device || s->pools[pool].id != id))
        pool++;
    return pool;
}

/* Replaces texts, frames and pools of the events by their numbers. If `only` is not 0, keeps the
   events of that pool, and the annotations. ds__history_state.lock is held, so annotations stay. */
static void ds__snap_events(ds__snap *s, ds__sdevice *d, uint32_t number, uint64_t only) {
    size_t kept = 0;
    uint32_t pool = 0;
    for (size_t i = 0; i < d->count && !s->broken; i++) {
        ds__history_event e = d->events[i];
        pool = ds__snap_pool_find(s, number, e.pool, pool);
        if (only && e.pool != only && e.action != DS_ACTION_ANNOTATION)
            continue;
        if (e.action == DS_ACTION_ANNOTATION)
            e.line = ds__snap_text(s, e.label);
        else
            e.line = ds__snap_frame(s, e.file, e.line, e.label);
        if (pool == s->pool_count) { /* the pool does not exist any more */
            if (!DS__SNAP_MORE(s, pools, pool_count, pool_room))
                break;
            s->pools[s->pool_count++] =
                (ds__spool){ .id = e.pool, .name = { 0, e.pool >> 32 }, .device = number };
        }
        e.pool = pool;
        d->events[kept++] = e;
    }
    d->count = kept;
}

/* Copies a device with its pools, blocks and events; `only`: the pool to copy, 0 for all.
   ds__history_state.lock is held. */
static void ds__snap_device(ds__snap *s, ds__mem_dev *dev, uint32_t number, unsigned flags,
                            uint64_t only) {
    ds__sdevice *d = &s->devices[number];
    d->total = dev->total;
    d->limit = atomic_load(&dev->limit);
    d->room = dev->history_room;
    ds__mem_lock_all(dev);
    for (ds__mem_pool *p = &dev->main; p && !s->broken; p = p->next) {
        uint32_t pool = ds__snap_pool(s, p, number);
        if (only && p->id != only)
            continue;
        size_t begin = s->segment_count;
        for (ds__arena *a = p->arenas; a; a = a->next)
            for (ds__segment *seg = a->segments; seg && !s->broken; seg = seg->next)
                ds__snap_segment(s, seg, a, number, pool);
        for (size_t i = begin; i < s->segment_count; i++)
            d->active += s->segments[i].active;
    }
    if (!(flags & DS_SNAPSHOT_NO_HISTORY))
        ds__snap_history(s, d, dev);
    s->config = dev->main.config;
    ds__mem_unlock_all(dev);
    ds__snap_forget(s);
    ds__snap_events(s, d, number, only);
    ds__snap_forget(s);
    /* shows in the next snapshot */
    ds__mem_note(dev, &(ds__history_event){ .bytes = d->active,
                                            .file = ds__tls.site.file,
                                            .line = (uint32_t)ds__tls.site.line,
                                            .action = DS_ACTION_SNAPSHOT });
}

static int ds__snap_order(const void *a, const void *b) {
    const ds__ssegment *x = a;
    const ds__ssegment *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->address < y->address ? -1 : x->address > y->address;
}

static void ds__snap_free(ds__snap *s) {
    if (!s)
        return;
    for (uint32_t i = 0; i < s->device_count && s->devices; i++)
        ds__host_free(s->devices[i].events);
    ds__host_free(s->devices);
    ds__host_free(s->segments);
    ds__host_free(s->blocks);
    ds__host_free(s->pools);
    ds__snap_set_deinit(&s->texts);
    ds__snap_set_deinit(&s->frames);
    ds__host_free(s);
}

/* Returns the difference between the time of day and the monotonic clock, the same one for all
   snapshots. ds__history_state.lock is held. */
static int64_t ds__to_wall(void) {
    if (!ds__history_state.to_wall_ns)
        ds__history_state.to_wall_ns = ds__os_wall_ns() - (int64_t)ds__now_ns();
    return ds__history_state.to_wall_ns;
}

/* Copies the settings and all devices, CUDA's first; `only`: the pool to copy, or NULL. */
static void ds__snap_fill(ds__snap *s, unsigned flags, const ds__mem_pool *only, int gpus) {
    ds__mutex_lock(&ds__memory_state.lock);
    s->config = ds__memory_state.config;
    ds__mutex_unlock(&ds__memory_state.lock);
    ds__mutex_lock(&ds__history_state.lock);
    s->time_ns = ds__now_ns();
    s->to_wall_ns = ds__to_wall();
    s->entries = ds__history_state.entries;
    s->nobody = ds__snap_text(s, "(no label)");
    /* the first device last: the settings are those of the device that was copied last */
    for (int i = (int)s->device_count; i-- > 0 && !s->broken;) {
        ds_device device = i < gpus ? ds_cuda(i) : ds_cpu(i - gpus);
        ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(device), device.index);
        s->devices[i].device = device;
        if (dev && (!only || only->dev == dev))
            ds__snap_device(s, dev, (uint32_t)i, flags, only ? only->id : 0);
    }
    ds__mutex_unlock(&ds__history_state.lock);
    if (s->segment_count)
        qsort(s->segments, s->segment_count, sizeof *s->segments, ds__snap_order);
}

/* Collects a snapshot of all devices, or of one pool. Without host memory returns NULL and sets the
   error. */
static ds__snap *ds__snap_collect(unsigned flags, const ds__mem_pool *only) {
    int gpus = ds__type_count(DS_DEVICE_CUDA);
    int all = gpus + ds__type_count(DS_DEVICE_CPU);
    ds__snap *s = ds__host_alloc(sizeof *s);
    if (s) {
        s->device_count = (uint32_t)all;
        s->devices = ds__host_alloc((size_t)(all ? all : 1) * sizeof *s->devices);
    }
    if (s && s->devices) {
        ds__snap_fill(s, flags, only, gpus);
        if (!s->broken)
            return s;
    }
    ds__snap_free(s);
    ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a snapshot");
    return NULL;
}

#endif
