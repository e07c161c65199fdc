/* os/thread.h - threads, mutexes and thread-specific data.

   Wraps the threads of POSIX: ds__mutex, ds__rwlock and ds__condition for sections that may sleep,
   ds__os_thread for the threads of the library, ds__os_thread_key for data whose function runs
   when a thread ends, and ds__os_at_fork. Short critical sections use ds__spinlock (lock.h).

   Invariants: a mutex is not recursive. One that is static begins as DS__MUTEX_INIT, another with
   ds__mutex_init. Functions that can fail return 0 or the system's error number.
   Locks: each ds__mutex is one; the rooms that own it say its order.
   Threads: any. */
#ifndef DS__OS_THREAD_H
#define DS__OS_THREAD_H

#include "linux.h"
#include "lock.h"

#include <pthread.h>

typedef pthread_mutex_t ds__mutex;
typedef pthread_cond_t ds__condition;
typedef pthread_t ds__os_thread;
typedef pthread_key_t ds__os_thread_key;

#define DS__MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#define DS__CONDITION_INIT PTHREAD_COND_INITIALIZER
#define DS__RWLOCK_INIT \
    { DS__MUTEX_INIT, DS__CONDITION_INIT, 0 }

/* Many readers, or one writer. The locks of POSIX of this kind are not declared by -std=c11. */
typedef struct ds__rwlock {
    ds__mutex mutex;
    ds__condition unread; /* no reader is left */
    int readers;
} ds__rwlock;

DS__SEAM static void ds__mutex_init(ds__mutex *m) {
    pthread_mutex_init(m, NULL);
}

static inline void ds__mutex_lock(ds__mutex *m) {
    pthread_mutex_lock(m);
    DS__COUNT_MUTEX(m, 1);
}

static inline void ds__mutex_unlock(ds__mutex *m) {
    DS__COUNT_MUTEX(m, -1);
    pthread_mutex_unlock(m);
}

/* Returns 1 if the caller has the mutex now, 0 if another thread has it. */
static inline int ds__mutex_trylock(ds__mutex *m) {
    int taken = pthread_mutex_trylock(m) == 0;
    DS__COUNT_MUTEX(m, taken);
    return taken;
}

DS__SEAM static void ds__mutex_destroy(ds__mutex *m) {
    pthread_mutex_destroy(m);
}

/* Releases the mutex, sleeps until a broadcast, and takes the mutex again. It may return without
   a broadcast. */
DS__SEAM static void ds__condition_wait(ds__condition *c, ds__mutex *m) {
    pthread_cond_wait(c, m);
}

DS__SEAM static void ds__condition_broadcast(ds__condition *c) {
    pthread_cond_broadcast(c);
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

/* Starts a thread, which must be joined. */
DS__SEAM static int ds__os_thread_start(ds__os_thread *out, void *(*main_fn)(void *), void *user) {
    return pthread_create(out, NULL, main_fn, user);
}

DS__SEAM static void ds__os_thread_join(ds__os_thread thread) {
    pthread_join(thread, NULL);
}

/* Creates thread-specific data. `ended_fn` is called on an ending thread with the thread's value
   if that is not NULL. */
DS__SEAM static int ds__os_thread_key_create(ds__os_thread_key *out, void (*ended_fn)(void *)) {
    return pthread_key_create(out, ended_fn);
}

DS__SEAM static int ds__os_thread_key_set(ds__os_thread_key key, const void *value) {
    return pthread_setspecific(key, value);
}

DS__SEAM static void ds__os_thread_key_delete(ds__os_thread_key key) {
    pthread_key_delete(key);
}

/* Registers functions that are called around each fork: before it, and after it in the parent
   and in the child. Each may be NULL. */
DS__SEAM static int ds__os_at_fork(void (*before_fn)(void), void (*parent_fn)(void),
                                   void (*child_fn)(void)) {
    return pthread_atfork(before_fn, parent_fn, child_fn);
}

#endif
