/* alloc/locks.h - stopping a device; room for counts.

   Takes and releases the locks of a device with all its arenas (ds__mem_lock_all). With all
   locks held, no thread allocates or frees on the device. ds__make_ready and ds__count_begin
   let an arena count a block (counters.h), and stop the device if the room for counts is used
   up.

   Invariants: After ds__mem_lock_all no block of the device is parked. The lists of pools and
   arenas change only under the device lock, so ds__mem_unlock_all releases the locks that were
   taken. While a thread holds the device lock (ds__tls.upper_locked), ds__retired_reclaim does
   nothing on that thread.
   Locks: order in the allocator: `giving` of an arena, `grow` of the arena, the device lock, arena
   locks, the registry lock. Arena locks are spinlocks, held for short steps; a thread holds several
   of them only by ds__mem_lock_all. Drivers must be called without a spinlock; arena.h and
   record_use.h have exceptions. ds__make_ready expects the arena's lock and releases it;
   ds__arena_lock_ready returns with that lock held. ds__count_begin expects that lock and may
   return 1 with all locks of the device held; ds__count_end releases the locks.
   Threads: any. */
#ifndef DS__ALLOC_LOCKS_H
#define DS__ALLOC_LOCKS_H

#include "types.h"
#include "util.h"
#include "counters.h"
#include "block.h"

/* Stops the device: no thread allocates or frees on it until ds__mem_unlock_all. */
static void ds__mem_lock_all(ds__mem_dev *dev) {
    ds__mem_dev_lock(dev);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next) {
            ds__arena_lock(a);
            ds__unpark_all(a);
        }
}

static void ds__mem_unlock_all(ds__mem_dev *dev) {
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            ds__arena_unlock(a);
    ds__mem_dev_unlock(dev);
}

/* Gives the arena room to count a change of `size` bytes. The arena is locked, and is unlocked
   afterwards, so the caller must check again. */
__attribute__((noinline)) static void ds__make_ready(ds__arena *a, int kind, int64_t size) {
    int exact = a->exact;
    ds__arena_unlock(a);
    if (exact && ds__counter_room_claim(a->dev))
        return;
    ds__mem_lock_all(a->dev);
    /* another thread may have done so */
    if (!ds__counter_room_ready(a, kind, size))
        ds__share_room(a->dev);
    ds__mem_unlock_all(a->dev);
}

/* Locks the arena and gives it room to count changes that need none of the headroom. */
static void ds__arena_lock_ready(ds__arena *a, int kind) {
    ds__arena_lock(a);
    while (!ds__counter_room_ready(a, kind, 0)) {
        ds__make_ready(a, kind, 0);
        ds__arena_lock(a);
    }
}

/* Lets the arena, which is locked, count a block. If there is no room, locks all until
   ds__count_end and returns 1: new peaks then include the block and nothing else. The arena may be
   unlocked meanwhile. */
__attribute__((noinline)) static int ds__count_begin(ds__arena *a, int kind, int64_t size,
                                                     int64_t asked) {
    while (!ds__has_room(a, kind, size, asked)) {
        int exact = a->exact;
        ds__arena_unlock(a);
        if (!exact || !ds__counter_room_claim(a->dev)) {
            ds__mem_lock_all(a->dev);
            return 1;
        }
        ds__arena_lock(a);
    }
    return 0;
}

/* Ends ds__count_begin, which has returned `all`, and releases its locks. */
static void ds__count_end(ds__arena *a, int all) {
    if (!all) {
        ds__arena_unlock(a);
        return;
    }
    ds__share_room(a->dev);
    ds__mem_unlock_all(a->dev);
}

#endif
