/* base/drive.h - requests that waiting host threads drive.

   Lets a module above the core work while a host thread waits: process groups test the requests of
   their engine (ds__drive_until). Also lets it report failures that a driver cannot report, because
   its streams cannot be made to fail (ds__drive_failure).

   Invariants: `open` is the number of requests that have begun and are not over. `failed` is not 0
   while failures are known that drivers do not report. The functions are set before either is
   raised, and stay until ds_shutdown.
   Locks: none. The functions of the module take its own locks, and never wait for work.
   Threads: any. */
#ifndef DS__BASE_DRIVE_H
#define DS__BASE_DRIVE_H

#include "object.h"
#include "thread_block.h"

static struct {
    _Atomic int open;
    _Atomic int failed;
    /* groups of several ranks. A stream may wait for another rank, which may wait for another
       stream of this one: the library must not add waits between streams that the program has not
       asked for */
    _Atomic int groups;
    /* tests the requests that have begun until query_fn(object) is not DS_NOT_READY, or the driver
       asks the thread to go on (ds__tls.awaited is NULL); gives up after a short time in which no
       request made progress */
    void (*wait_fn)(ds_result (*query_fn)(void *object), void *object);
    /* returns the failure of the work of a stream, or of any stream of the device (stream 0), with
       its sentence */
    ds_result (*failure_fn)(ds_device device, uint64_t stream);
    void (*forget_fn)(ds_device device); /* the device was reset */
    /* NULL, or notes failures of operations that ended in their streams by themselves */
    _Atomic(void (*)(void)) look_fn;
} ds__drive;

/* Drives requests until query_fn(object) is not DS_NOT_READY, none is open, or none makes progress.
   Drivers call it in waits without a time limit. awaited: the driver's stream or event. */
static inline void ds__drive_until(ds_result (*query_fn)(void *object), void *object,
                                   const void *awaited) {
    if (DS__LIKELY(!atomic_load_explicit(&ds__drive.open, memory_order_relaxed)))
        return;
    ds__tls.mute++; /* the wait that follows reports a failure */
    ds__tls.awaited = awaited;
    ds__drive.wait_fn(query_fn, object);
    ds__tls.awaited = NULL;
    ds__tls.mute--;
}

/* Looks for failures of operations that are over. */
__attribute__((noinline)) static void ds__drive_look(void) {
    void (*look_fn)(void) = atomic_load(&ds__drive.look_fn);
    if (look_fn)
        look_fn();
}

/* Returns the result of a wait, or the failure that the driver does not report. */
static inline ds_result ds__drive_failure(ds_result r, ds_device device, uint64_t stream) {
    if (DS__UNLIKELY(atomic_load_explicit(&ds__drive.open, memory_order_relaxed)) && r == DS_OK)
        ds__drive_look();
    if (DS__LIKELY(!atomic_load_explicit(&ds__drive.failed, memory_order_relaxed)) || r < 0)
        return r;
    ds_result failure = ds__drive.failure_fn(device, stream);
    return failure < 0 ? failure : r;
}

#endif
