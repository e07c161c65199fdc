/* alloc/locks.h - locks. */
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
