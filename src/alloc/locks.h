/* alloc/locks.h - locks of an arena and of a whole device.

   Takes and releases the lock of one arena (ds__arena_lock), or of a device with all its arenas
   (ds__mem_lock_all). With all locks held, no thread allocates or frees on the device.

   Invariants: After ds__mem_lock_all no block of the device is parked. The lists of pools and
   arenas change only under the device lock, so ds__mem_unlock_all releases the locks that were
   taken. While a thread holds the device lock (ds__tls.upper_locked), ds__reclaim does nothing
   on that thread.
   Locks: order in the allocator: `giving` of an arena, `grow` of the arena, the device lock,
   arena locks, the registry lock. Arena locks are spinlocks, held for short steps; a thread
   holds several of them only by ds__mem_lock_all. Drivers must be called without a spinlock;
   arena.h and record_use.h have exceptions.
   Threads: any. */
#ifndef DS__ALLOC_LOCKS_H
#define DS__ALLOC_LOCKS_H

#include "types.h"
#include "util.h"

static void ds__arena_lock(ds__arena *a) {
    ds__lock_take(&a->lock);
}

static void ds__arena_unlock(ds__arena *a) {
    ds__lock_give(&a->lock);
}

/* Stops the device: nobody allocates or frees on it until it is unlocked. */
static void ds__mem_lock_all(ds__mdevice *dev) {
    ds__mdevice_lock(dev);
    for (ds__mpool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next) {
            ds__arena_lock(a);
            ds__unpark_all(a);
        }
}

static void ds__mem_unlock_all(ds__mdevice *dev) {
    for (ds__mpool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            ds__arena_unlock(a);
    ds__mdevice_unlock(dev);
}

#endif
