/* os/thread.h - threads, mutexes and thread-specific data.

   Has ds__mutex, ds__rwlock and ds__condition for sections that may sleep. The room of the system
   defines the types, ds__os_thread for the threads of the library, ds__os_thread_key for data whose
   function runs when a thread ends, and ds__os_at_fork. Short critical sections use ds__spinlock
   (lock.h).

   Invariants: a mutex is not recursive. One that is static begins as DS__MUTEX_INIT, another with
   ds__mutex_init. Functions that can fail return 0 or the system's error number.
   Locks: each ds__mutex is one; the rooms that own it say its order.
   Threads: any. */
#ifndef DS__OS_THREAD_H
#define DS__OS_THREAD_H

#include "lock.h"
#include "system.h"

#define DS__RWLOCK_INIT \
    { DS__MUTEX_INIT, DS__CONDITION_INIT, 0 }

/* Many readers, or one writer. The locks of POSIX of this kind are not declared by -std=c11. */
typedef struct ds__rwlock {
    ds__mutex mutex;
    ds__condition unread; /* no reader is left */
    int readers;
} ds__rwlock;

DS__SEAM static void ds__mutex_init(ds__mutex *m) {
    ds__os_mutex_init(m);
}

static inline void ds__mutex_lock(ds__mutex *m) {
    ds__os_mutex_lock(m);
    DS__COUNT_MUTEX(m, 1);
}

static inline void ds__mutex_unlock(ds__mutex *m) {
    DS__COUNT_MUTEX(m, -1);
    ds__os_mutex_unlock(m);
}

/* Returns 1 if the caller has the mutex now, 0 if another thread has it. */
static inline int ds__mutex_trylock(ds__mutex *m) {
    int taken = ds__os_mutex_trylock(m);
    DS__COUNT_MUTEX(m, taken);
    return taken;
}

DS__SEAM static void ds__mutex_destroy(ds__mutex *m) {
    ds__os_mutex_destroy(m);
}

/* Takes the lock beside other readers. A reader does not wait for a writer that waits. */
DS__SEAM static void ds__rwlock_read(ds__rwlock *l) {
    ds__mutex_lock(&l->mutex);
    l->readers++;
    ds__mutex_unlock(&l->mutex);
}

DS__SEAM static void ds__rwlock_end_read(ds__rwlock *l) {
    ds__mutex_lock(&l->mutex);
    if (--l->readers == 0)
        ds__condition_broadcast(&l->unread);
    ds__mutex_unlock(&l->mutex);
}

DS__SEAM static void ds__rwlock_write(ds__rwlock *l) {
    ds__mutex_lock(&l->mutex);
    while (l->readers)
        ds__condition_wait(&l->unread, &l->mutex);
}

DS__SEAM static void ds__rwlock_end_write(ds__rwlock *l) {
    ds__mutex_unlock(&l->mutex);
}

#endif
