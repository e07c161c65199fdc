/* alloc/ipc_records.h - sharing between processes: records of segments, exports and imports.

   Looks up and ends the records of memory that processes share. ds__share_segment_alloc and
   ds__share_segment_free are the memory source of shareable pools; each segment has a record
   (ds__export_hold). ds__share_hold keeps a freed block back while other processes have leases of
   it. ds__got_collect ends imports after their streams have passed them.

   Invariants: A live exported block has one record (ds__ipc_export), in the bucket of its address.
   A free moves the record to `limbo`, without the block if the block has no leases. A segment given
   back stays while other processes have it open. An imported segment (ds__guest) stays open as long
   as it has a record of a block (ds__got).
   Locks: ds__share_segment_alloc and ds__share_segment_free take ds__share.mutex; their callers
   usually hold `grow` of an arena. ds__share_hold expects the arena's lock and takes
   ds__share.lock. ds__ipc_export_find expects ds__share.lock. The other functions expect
   ds__share.mutex and take the registries' mutex inside. Imported segments are closed under
   ds__share.mutex; own segments are freed without it (ds__export_holds_end).
   Threads: any caller's thread. */
#ifndef DS__ALLOC_IPC_RECORDS_H
#define DS__ALLOC_IPC_RECORDS_H

#include "../base/observe.h"
#include "../core/internal.h"
#include "../base/memory_table.h"
#include "types.h"
#include "stream_use.h"
#include "ipc_types.h"
#include "ipc_lease.h"

static ds__ipc_export **ds__ipc_export_bucket(const char *ptr) {
    return &ds__share.bucket[(uintptr_t)ptr / DS__UNIT % DS__SENT_BUCKETS];
}

/* Returns the record of a live exported block, or NULL. With `take`, removes the record from its
   bucket. ds__share.lock is held. */
static ds__ipc_export *ds__ipc_export_find(const char *ptr, int take) {
    ds__ipc_export **p = ds__ipc_export_bucket(ptr);
    while (*p && (*p)->ptr != ptr)
        p = &(*p)->next;
    ds__ipc_export *s = *p;
    if (s && take)
        *p = s->next;
    return s;
}

/* Moves the record of a freed block to `limbo`. Returns 1 if other processes still have leases of
   the block. The arena is locked. */
static int ds__share_hold(ds__mem_block *b) {
    ds__spinlock_lock(&ds__share.lock);
    ds__ipc_export *s = ds__ipc_export_find(b->ptr, 1);
    int leased = 0;
    if (s) {
        ds__export_slot_close(s->slot);
        leased = ds__export_slot_leased(s->slot, 0);
        s->next = ds__share.limbo;
        ds__share.limbo = s;
        if (leased) {
            atomic_fetch_add(&ds__share.in_limbo, 1);
        } else {
            b->exported = 0;
            s->block = NULL;
        }
    }
    ds__spinlock_unlock(&ds__share.lock);
    return leased;
}

/* Gives the event and the export slot of a block without leases back. ds__share.mutex is held. */
static void ds__ipc_export_clear(ds__ipc_export *s) {
    if (s->event.id) {
        ds__use_event_destroy(s->event);
        ds__share.events--;
    }
    ds__registries_lock();
    ds__export_slot_end(ds__registries.own, s->slot);
    ds__registries_unlock();
}

/* Ends a record of a block without leases. ds__share.mutex is held. */
static void ds__ipc_export_end(ds__ipc_export *s) {
    ds__ipc_export_clear(s);
    ds__host_free(s);
}

/* Ends records of segments and frees the memory. If other processes have a segment open, it remains
   until the process ends. No mutex is held: a driver may wait for work when it frees memory. */
static void ds__export_holds_end(ds__export_hold *list) {
    ds__found f;
    while (list) {
        ds__export_hold *h = list;
        list = h->next;
        if (h->stays)
            (void)ds__range_remove(h->base, DS_MEMORY_DEVICE | DS__HELD_SHARED, &f);
        else
            ds__shared_segment_destroy(h->device, h->base, 0);
        if (h->generation && !h->stays) {
            ds__registries_lock();
            ds__export_slot_end(ds__registries.own, h->slot);
            ds__registries_unlock();
        }
        ds__host_free(h);
    }
}

/* Takes the segments that were given back and that no other process has open out of the list;
   during ds_shutdown, all that were given back. The caller ends them after it has released
   ds__share.mutex, which is held here. */
static ds__export_hold *ds__export_holds_take(void) {
    ds__export_hold *taken = NULL;
    for (ds__export_hold **p = &ds__share.hoards; *p;) {
        ds__export_hold *h = *p;
        int leased = h->over && h->generation && ds__export_slot_leased(h->slot, 1);
        /* memory of a CPU device can be freed: other processes keep their mapping */
        h->stays = leased && ds__share.ending && h->device.type == DS_DEVICE_CUDA;
        if (h->stays)
            ds__log_warn("%zu bytes at %p remain allocated until the process ends: other processes "
                         "have them open",
                         h->size, (void *)h->base);
        if (!h->over || (leased && !ds__share.ending)) {
            p = &h->next;
            continue;
        }
        *p = h->next;
        h->next = taken;
        taken = h;
    }
    return taken;
}

/* Allocates the memory of a shareable segment. */
static ds_result ds__share_segment_alloc(ds_device device, size_t size, void **out) {
    ds__export_hold *h = ds__host_alloc(sizeof *h);
    if (!h)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a segment");
    ds_result r = ds__shared_segment_create(device, NULL, size, out);
    if (r < 0) {
        ds__host_free(h);
        return r;
    }
    h->device = device;
    h->base = *out;
    h->size = size;
    ds__mutex_lock(&ds__share.mutex);
    ds__share.ending = 0;
    h->next = ds__share.hoards;
    ds__share.hoards = h;
    ds__mutex_unlock(&ds__share.mutex);
    return DS_OK;
}

/* Gives a shareable segment back after the work of the device. The memory stays while other
   processes have it open. */
static ds_result ds__share_segment_free(ds_device device, void *ptr, size_t size) {
    (void)size;
    ds__tls.relaxed++;
    ds_result r = ds__observer_notify_wait(ds__driver_of(device)->memory_wait(device.index),
                                           (ds_stream){ 0 }, (ds_event){ 0 }, device);
    ds__tls.relaxed--;
    ds__mutex_lock(&ds__share.mutex);
    if (r < 0 && !ds__share.ending) { /* ds_shutdown has waited for all work */
        ds__mutex_unlock(&ds__share.mutex);
        return r;
    }
    for (ds__export_hold *h = ds__share.hoards; h; h = h->next)
        if (h->base == ptr) {
            h->over = 1;
            if (h->generation)
                ds__export_slot_close(h->slot);
        }
    ds__export_hold *ended = ds__export_holds_take();
    ds__mutex_unlock(&ds__share.mutex);
    ds__export_holds_end(ended);
    return DS_OK;
}

/* Returns the open import that contains an address, or NULL. ds__share.mutex is held. */
static ds__got *ds__got_of(const void *ptr) {
    ds__got *g = ds__share.got;
    while (g && !(g->open && (uintptr_t)ptr - (uintptr_t)g->ptr < g->size))
        g = g->next;
    return g;
}

/* Closes a segment without imports. ds__share.mutex is held. */
static void ds__guest_end(ds__guest *q) {
    ds__guest **p = &ds__share.guests;
    while (*p != q)
        p = &(*p)->next;
    *p = q->next;
    ds__shared_segment_destroy(q->device, q->base, 1);
    ds__lease_unref(q->registry, q->slot, q->lease);
    ds__registries_lock();
    ds__registry_close(q->registry);
    ds__registries_unlock();
    ds__host_free(q);
}

/* Ends imports whose callbacks have run, or with `all` every import, at ds_shutdown.
   ds__share.mutex is held. */
static void ds__got_collect(int all) {
    for (ds__got **p = &ds__share.got; *p;) {
        ds__got *g = *p;
        if (!atomic_load(&g->gone) && !all) {
            p = &g->next;
            continue;
        }
        if (!atomic_load(&g->gone))
            ds__lease_unref(g->guest->registry, g->slot, g->lease);
        *p = g->next;
        if (--g->guest->blocks == 0)
            ds__guest_end(g->guest);
        ds__host_free(g);
    }
}

#endif
