/* alloc/leaks.h - report of leaks at shutdown.

   Reports the blocks of a device that were not freed, grouped by owner, as warnings
   (ds__tell_leaks). ds__mem_deinit calls ds__tell_leaks for each device and for pinned memory.

   Invariants: Blocks in the own pool of a capture belong to a graph and are not leaks. At most
   100 owners are reported, those with the most bytes first.
   Locks: takes none; ds_shutdown holds ds__g.mutex. The program's log and memory functions may
   be called.
   Threads: the thread of ds_shutdown, after all work is done. */
#ifndef DS__ALLOC_LEAKS_H
#define DS__ALLOC_LEAKS_H

#include "../core/internal.h"
#include "types.h"
#include "oom_owners.h"
#include "oom_walk.h"

/* Reports the blocks that were not freed, by owner, at shutdown. Blocks of graphs are not leaks. */
static void ds__tell_leaks(ds__mem_dev *dev) {
    ds__oom_owners owners;
    ds__oom_owner o;
    ds__oom_owner *which;
    char name[80];
    if (ds__logger.level < DS_LOG_WARNING)
        return;
    ds__oom_owners_begin(&owners, ds__oom_count(dev));
    for (const ds__mem_pool *p = &dev->main; p; p = p->next)
        for (const ds__arena *a = p->name[0] ? NULL : p->arenas; a; a = a->next)
            for (const ds__segment *g = a->segments; g; g = g->next)
                for (const ds__mem_block *b = g->first; b; b = b->next)
                    if (b->state == DS_BLOCK_LIVE)
                        ds__oom_owners_add(&owners, b);
    /* not more than 100 owners */
    for (int i = 0; i < 100 && (which = ds__oom_owners_next(&owners, &o)); i++) {
        ds__oom_owner_name(&owners, which, &o, name);
        ds__log_warn("%zu block%s of %s on %s:%d, %s, %s not freed", o.count,
                     o.count == 1 ? "" : "s", name, ds__type_name(dev->device.type),
                     dev->device.index, DS__SIZE(o.bytes), o.count == 1 ? "was" : "were");
    }
    ds__host_free(owners.slot);
}

#endif
