/* os/windows_thread.h - threads of Windows.

   Wraps mutexes, conditions, threads and thread-specific data for thread.h, which describes their
   use. A mutex is a slim lock (SRWLOCK), and thread-specific data a slot of fiber-local storage,
   whose callback runs when a thread ends.

   Invariants: functions that can fail return 0 or an error number of C. The library has one key at
   a time. The callback of a slot also runs when the slot is freed, for the values of all threads;
   it does nothing then.
   Locks: each ds__mutex is one. Users lock it by the functions of thread.h, which count locks.
   Threads: any. */
#ifndef DS__OS_WINDOWS_THREAD_H
#define DS__OS_WINDOWS_THREAD_H

#include "compiler.h"
#include "windows_api.h"

/* SRWLOCK */
typedef struct ds__mutex {
    void *word;
} ds__mutex;

/* CONDITION_VARIABLE */
typedef struct ds__condition {
    void *word;
} ds__condition;

typedef void *ds__os_thread;
typedef unsigned long ds__os_thread_key;

#define DS__MUTEX_INIT \
    { NULL }
#define DS__CONDITION_INIT \
    { NULL }

static inline struct _RTL_SRWLOCK *ds__win_lock(ds__mutex *m) {
    return (struct _RTL_SRWLOCK *)(void *)m;
}

DS__SEAM static void ds__os_mutex_init(ds__mutex *m) {
    m->word = NULL;
}

static inline void ds__os_mutex_lock(ds__mutex *m) {
    AcquireSRWLockExclusive(ds__win_lock(m));
}

static inline void ds__os_mutex_unlock(ds__mutex *m) {
    ReleaseSRWLockExclusive(ds__win_lock(m));
}

static inline int ds__os_mutex_trylock(ds__mutex *m) {
    return TryAcquireSRWLockExclusive(ds__win_lock(m)) != 0;
}

DS__SEAM static void ds__os_mutex_destroy(ds__mutex *m) {
    (void)m;
}

DS__SEAM static void ds__condition_wait(ds__condition *c, ds__mutex *m) {
    SleepConditionVariableSRW((struct _RTL_CONDITION_VARIABLE *)(void *)c, ds__win_lock(m),
                              (unsigned long)DS__WIN_INFINITE, 0);
}

DS__SEAM static void ds__condition_broadcast(ds__condition *c) {
    WakeAllConditionVariable((struct _RTL_CONDITION_VARIABLE *)(void *)c);
}

typedef struct ds__win_start {
    void *(*main_fn)(void *);
    void *user;
} ds__win_start;

static unsigned long ds__win_thread_main(void *start) {
    ds__win_start s = *(ds__win_start *)start;
    free(start);
    s.main_fn(s.user);
    return 0;
}

DS__SEAM static int ds__os_thread_start(ds__os_thread *out, void *(*main_fn)(void *), void *user) {
    ds__win_start *start = malloc(sizeof *start);
    if (!start)
        return ENOMEM;
    *start = (ds__win_start){ main_fn, user };
    *out = CreateThread(NULL, 0, ds__win_thread_main, start, 0, NULL);
    if (*out)
        return 0;
    free(start);
    return EAGAIN;
}

DS__SEAM static void ds__os_thread_join(ds__os_thread thread) {
    WaitForSingleObject(thread, (unsigned long)DS__WIN_INFINITE);
    CloseHandle(thread);
}

/* The function of the key; NULL: there is no key. */
static void (*_Atomic ds__win_ended)(void *);

static void ds__win_thread_ended(void *value) {
    void (*ended_fn)(void *) = atomic_load(&ds__win_ended);
    if (value && ended_fn)
        ended_fn(value);
}

DS__SEAM static int ds__os_thread_key_create(ds__os_thread_key *out, void (*ended_fn)(void *)) {
    *out = FlsAlloc(ds__win_thread_ended);
    if (*out == (unsigned long)DS__WIN_INFINITE)
        return EAGAIN;
    atomic_store(&ds__win_ended, ended_fn);
    return 0;
}

DS__SEAM static int ds__os_thread_key_set(ds__os_thread_key key, const void *value) {
    void *stored;
    memcpy(&stored, &value, sizeof stored);
    return FlsSetValue(key, stored) ? 0 : ENOMEM;
}

DS__SEAM static void ds__os_thread_key_delete(ds__os_thread_key key) {
    atomic_store(&ds__win_ended, NULL);
    FlsFree(key);
}

/* Windows forks no process. */
DS__SEAM static int ds__os_at_fork(void (*before_fn)(void), void (*parent_fn)(void),
                                   void (*child_fn)(void)) {
    (void)before_fn;
    (void)parent_fn;
    (void)child_fn;
    return 0;
}

#endif
