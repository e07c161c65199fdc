/* os/posix_thread.h - threads of POSIX systems.

   Wraps mutexes, conditions, threads, thread-specific data and fork handlers for thread.h, which
   describes their use.

   Invariants: functions that can fail return 0 or the system's error number.
   Locks: each ds__mutex is one. Users lock it by the functions of thread.h, which count locks.
   Threads: any. */
#ifndef DS__OS_POSIX_THREAD_H
#define DS__OS_POSIX_THREAD_H

#include "compiler.h"

#include <pthread.h>

typedef pthread_mutex_t ds__mutex;
typedef pthread_cond_t ds__condition;
typedef pthread_t ds__os_thread;
typedef pthread_key_t ds__os_thread_key;

#define DS__MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#define DS__CONDITION_INIT PTHREAD_COND_INITIALIZER

DS__SEAM static void ds__os_mutex_init(ds__mutex *m) {
    pthread_mutex_init(m, NULL);
}

static inline void ds__os_mutex_lock(ds__mutex *m) {
    pthread_mutex_lock(m);
}

static inline void ds__os_mutex_unlock(ds__mutex *m) {
    pthread_mutex_unlock(m);
}

/* Returns 1 if the caller has the mutex now. */
static inline int ds__os_mutex_trylock(ds__mutex *m) {
    return pthread_mutex_trylock(m) == 0;
}

DS__SEAM static void ds__os_mutex_destroy(ds__mutex *m) {
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
