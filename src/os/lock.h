/* os/lock.h - spin lock.

   Provides ds__spinlock, a lock for critical sections of a few dozen instructions. A waiter spins
   64 times and then yields the processor before each further attempt.

   Invariants: a zeroed lock is free and needs no other initialisation. The lock is not
   recursive, and waiters get it in no particular order.
   Locks: each ds__spinlock is one. Its holder must not sleep, wait for a driver or run user code.
   Threads: any. Writes of one holder are visible to the next holder. */
#ifndef DS__OS_LOCK_H
#define DS__OS_LOCK_H

#include "system.h"
#include "processor.h"

/* A lock for a few dozen instructions. A waiter yields, because on few processors the holder may
   be off the processor. */
typedef struct ds__spinlock {
    _Atomic uint32_t taken;
} ds__spinlock;

/* For a build of the tests: counts the locks that the thread holds. Kind 0: spin locks, under which
   nothing of cudart is called. 1: mutexes of objects. 2: mutexes of the library, under which no
   thread waits for work. A user's functions run under none. */
#ifdef DS__COUNT_LOCKS
static _Thread_local int ds__locks[3];
extern int ds__locks_held(int kind);
extern char __data_start[], _end[]; /* static storage of the program */

extern int ds__locks_held(int kind) {
    return ds__locks[kind];
}

static inline int ds__mutex_kind(const void *mutex) {
    return (const char *)mutex >= __data_start && (const char *)mutex < _end ? 2 : 1;
}

#define DS__COUNT_LOCK(kind, change) (ds__locks[kind] += (change))
#define DS__COUNT_MUTEX(mutex, change) DS__COUNT_LOCK(ds__mutex_kind(mutex), change)
#else
#define DS__COUNT_LOCK(kind, change) ((void)0)
#define DS__COUNT_MUTEX(mutex, change) ((void)0)
#endif

static inline int ds__spinlock_try(ds__spinlock *lock) {
    int taken = atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0;
    DS__COUNT_LOCK(0, taken);
    return taken;
}

/* Waits for the lock: spins first, then yields. */
static void ds__spinlock_slow(ds__spinlock *lock) {
    for (int spins = 0;; spins++) {
        if (atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 && ds__spinlock_try(lock))
            return;
        if (spins < 64)
            ds__processor_pause();
        else
            ds__os_yield();
    }
}

static inline void ds__spinlock_lock(ds__spinlock *lock) {
    if (DS__UNLIKELY(!ds__spinlock_try(lock)))
        ds__spinlock_slow(lock);
}

static inline void ds__spinlock_unlock(ds__spinlock *lock) {
    DS__COUNT_LOCK(0, -1);
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

#endif
