/* alloc/shutdown.h - the allocator's part of ds_shutdown.

   ds__mem_shutdown frees all memory of the allocator and resets its state, so that a later call
   starts it anew. ds__mem_deinit reports the blocks of a device that were not freed, then frees
   its segments, events and mutexes. It serves the devices and, by ds__pinned_shutdown, pinned
   memory. ds__mem_module has the functions that the core calls.

   Invariants: The order is: exports, pinned memory, observers and history, devices, resources,
   and last the objects of ds__kept_alloc. Resources end after the pools, because a resource may be
   the upstream of a pool. The serial numbers of pools, segments and resources continue, so that
   old handles stay invalid.
   Locks: ds_shutdown holds ds__g.mutex. ds__mem_closing waits under ds__memory_state.leaving for
   graphs that release their pools. No lock of the allocator is held while drivers and the upstreams
   of pools (user code) free segments.
   Threads: the thread of ds_shutdown, after all work has ended. CUDA's callback thread may run
   ds__capture_pool_unref at the same time; ds__memory_state.closing keeps it away from pools. */
#ifndef DS__ALLOC_SHUTDOWN_H
#define DS__ALLOC_SHUTDOWN_H

#include "../core/internal.h"
#include "types.h"
#include "state.h"
#include "util.h"
#include "pool.h"
#include "callbacks.h"
#include "stream_use.h"
#include "arena.h"
#include "pinned.h"
#include "ipc_collect.h"
#include "upstream.h"
#include "observer.h"
#include "pinned_block.h"
#include "resource_api.h"
#include "leaks.h"

/* Frees the memory of a segment, its granule table, and the events of its blocks. */
static void ds__segment_shutdown(ds__arena *a, ds__segment *s) {
    if (s->page)
        ds__space_release(a->dev->device, s->base, s->size);
    else if (s->source != DS__FROM_ASYNC) /* the driver's own pool ends with the driver */
        DS_IGNORE(ds__source_free(a, s));
    for (ds__mem_block *b = s->first; b; b = b->next)
        for (ds__stream_use *u = b->uses; u; u = u->next)
            ds__use_event_destroy(u->event);
    ds__host_free(s->granule);
}

/* Frees the segments, events and mutexes of an arena. */
static void ds__arena_shutdown(ds__arena *a) {
    for (ds__segment *s = a->segments; s; s = s->next)
        ds__segment_shutdown(a, s);
    for (ds__stream_use *u = a->spare_uses; u; u = u->next)
        ds__use_event_destroy(u->event);
    ds__use_event_destroy(a->end);
    ds__mutex_destroy(&a->grow);
    ds__mutex_destroy(&a->giving);
}

/* Reports the blocks of a device that were not freed, then frees all memory of the device. */
static void ds__mem_deinit(ds__mem_dev *dev) {
    ds_stream giver = { atomic_load(&dev->giver) };
    ds__tell_leaks(dev);
    ds__stream_end(giver);
    for (ds__mem_pool *p = &dev->main; p; p = p->next) {
        for (ds__arena *a = p->arenas; a; a = a->next)
            ds__arena_shutdown(a);
        ds__host_free(p->label);
    }
    ds__mutex_destroy(&dev->lock);
}

/* Frees pinned memory and resets its state. */
static void ds__pinned_shutdown(void) {
    ds__mem_dev *dev = ds__pinned_used();
    for (ds__arena *a = dev ? dev->main.arenas : NULL; a; a = a->next)
        for (ds__segment *s = a->segments; s; s = s->next)
            for (ds__mem_block *b = s->first; b; b = b->next)
                for (ds__stream_use *u = b->uses; u; u = u->next) {
                    ds__hold_unref(u->hold);
                    u->hold = NULL;
                }
    if (dev)
        ds__mem_deinit(dev);
    atomic_store(&ds__host.dev, NULL);
    atomic_store(&ds__host.limit, 0);
    ds__host.configured = 0;
    memset(&ds__host.made, 0, sizeof ds__host.made);
    memset(&ds__host.ended, 0, sizeof ds__host.ended);
}

/* Frees all memory of the allocator. Called by ds_shutdown after all work. */
static void ds__mem_shutdown(void) {
    ds__mem_closing(1);
    ds__share_shutdown();
    ds__pinned_shutdown();
    ds__snapshot_shutdown();
    for (int backend = 0; backend < DS_BACKEND_COUNT; backend++)
        for (int i = 0; i < DS__MAX_DEVICES; i++) {
            ds__mem_dev *dev = ds__mem_device_at(backend, i);
            if (!dev)
                continue;
            ds__mem_deinit(dev);
            atomic_store(ds__module_device(DS__MODULE_ALLOC, backend, i), NULL);
        }
    ds__resource_shutdown();
    ds__host_free(ds__memory_state.pools);
    ds__host_free(ds__memory_state.sorted);
    ds__callback_clear(&ds__memory_state.shortage);
    ds__callback_clear(&ds__memory_state.oom);
    for (size_t i = 0; i < sizeof ds__memory_state.root / sizeof ds__memory_state.root[0]; i++)
        atomic_store(&ds__memory_state.root[i], NULL);
    for (size_t i = 0; i < DS__MAX_DEVICES; i++)
        atomic_store(&ds__memory_state.legacy[i], 0);
    while (ds__memory_state.kept) {
        ds__kept *next = ds__memory_state.kept->next;
        ds__host_free(ds__memory_state.kept);
        ds__memory_state.kept = next;
    }
    ds__memory_state.pools = NULL;
    ds__memory_state.sorted = NULL;
    ds__memory_state.free_segments = NULL;
    ds__memory_state.policies = NULL;
    ds__memory_state.pool_count = 0;
    ds__memory_state.pool_room = 0;
    ds__memory_state.sorted_count = ds__memory_state.sorted_room = 0;
    ds__memory_state.configured = 0;
}

/* Gives back what other processes have closed, and refuses if one of them still has memory of this
   process open, or this process has memory of one. */
static ds_result ds__mem_quiesce(void) {
    size_t segments = 0;
    size_t blocks = 0;
    (void)ds__share_collect_now(DS__COLLECT_ALL);
    ds__mutex_lock(&ds__share.mutex);
    for (const ds__export_hold *h = ds__share.hoards; h; h = h->next)
        segments += h->generation && ds__export_slot_leased(h->slot, 1);
    for (const ds__got *g = ds__share.got; g; g = g->next)
        blocks += g->open != 0;
    ds__mutex_unlock(&ds__share.mutex);
    if (segments)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "other processes have %zu segments of this process open; let them close "
                        "their imports",
                        segments);
    if (blocks)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "%zu blocks of other processes are open in this process; close them",
                        blocks);
    return DS_OK;
}

static const ds__module ds__mem_module = { .stream_end = ds__mem_stream_gone,
                                           .thread_end = ds__host_free, /* of the report */
                                           .shutdown = ds__mem_shutdown,
                                           .quiesce = ds__mem_quiesce };

#endif
