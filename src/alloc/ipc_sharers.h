/* alloc/ipc_sharers.h - report of the processes that share memory of a device.

   Writes the processes that share memory of a device, with their bytes (ds__share_list).
   ds__sharer_write writes the line of one process. report_processes.h uses both.

   Invariants: The report lists a process once, with the sum of the bytes that the process has
   imported from this one and exported to this one. At most DS__SHARERS processes are reported.
   Locks: ds__share.mutex and ds__share.lock while the records are read; the user's writer is
   called after they are released.
   Threads: any caller's thread. */
#ifndef DS__ALLOC_IPC_SHARERS_H
#define DS__ALLOC_IPC_SHARERS_H

#include "../base/text_writer.h"
#include "../core/internal.h"
#include "types.h"
#include "ipc_types.h"
#include "ipc_lease.h"

static void ds__sharer_write(ds__text_writer *p, unsigned pid, unsigned long long bytes) {
    if (bytes == ~0ull)
        ds__text_writer_print(p, "process %10u uses an unknown amount of GPU memory\n", pid);
    else
        ds__text_writer_print(p, "process %10u uses %12.3f MB GPU memory\n", pid,
                              (double)bytes / (double)DS__MIB);
}

enum { DS__SHARERS = 256 }; /* the largest number of processes in a report */

/* The processes that share memory of a device, with the bytes. */
typedef struct ds__sharers {
    size_t count;

    struct {
        uint64_t number; /* in the own registry; 0: the process is alive */
        uint64_t bytes;
        unsigned pid;
    } at[DS__SHARERS];
} ds__sharers;

/* Adds bytes to a process. */
static void ds__sharer_add(ds__sharers *l, uint64_t number, unsigned pid, size_t bytes) {
    size_t i = 0;
    while (i < l->count && (l->at[i].number != number || l->at[i].pid != pid))
        i++;
    if (i == DS__SHARERS)
        return;
    if (i == l->count) {
        l->count++;
        l->at[i].number = number;
        l->at[i].pid = pid;
        l->at[i].bytes = 0;
    }
    l->at[i].bytes += bytes;
}

/* Adds the processes with leases of the device's blocks in a list of exports. */
static void ds__sharers_of(ds__sharers *l, ds_device device, const ds__ipc_export *s) {
    for (; s; s = s->next) {
        const ds__arena *a = s->block ? atomic_load(&s->block->seg->arena) : NULL;
        if (!a || a->dev->device.index != device.index || a->dev->device.type != device.type)
            continue;
        for (int k = 0; k < DS__LEASES; k++) {
            uint64_t lease = atomic_load(&ds__registries.own->page->slot[s->slot].lease[k]);
            if (lease)
                ds__sharer_add(l, ds__lease_number(lease), (unsigned)(lease & 0xffffff),
                               s->block->size);
        }
    }
}

/* Writes a line for each process that shares memory of the device. No lock is held. */
static void ds__share_list(ds_device device, ds__text_writer *p) {
    ds__sharers *l = ds__host_alloc(sizeof *l);
    if (!l)
        return;
    ds__mutex_lock(&ds__share.mutex);
    if (ds__registries.own) {
        ds__spinlock_lock(&ds__share.lock); /* meanwhile, no block of these lists is reused */
        for (size_t i = 0; i < DS__SENT_BUCKETS; i++)
            ds__sharers_of(l, device, ds__share.bucket[i]);
        ds__sharers_of(l, device, ds__share.limbo);
        ds__spinlock_unlock(&ds__share.lock);
    }
    for (size_t i = 0; i < l->count; i++) {
        if (!ds__registry_alive(ds__registries.own, l->at[i].number))
            l->at[i].bytes = 0;
        else
            l->at[i].number = 0; /* imports from the process are added to this entry */
    }
    for (const ds__got *g = ds__share.got; g; g = g->next)
        if (!atomic_load(&g->gone) && g->guest->device.index == device.index &&
            g->guest->device.type == device.type)
            ds__sharer_add(l, 0, (unsigned)g->guest->registry->pid, g->size);
    ds__mutex_unlock(&ds__share.mutex);
    for (size_t i = 0; i < l->count; i++)
        if (l->at[i].bytes)
            ds__sharer_write(p, l->at[i].pid, l->at[i].bytes);
    ds__host_free(l);
}

#endif
