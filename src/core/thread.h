/* core/thread.h - state of a calling thread, hazard pointers, reclaiming.

   Holds the current streams and the pushed frames of each thread that calls devstream, behind its
   current device and hazard pointers (ds__thread_state). ds__retired_reclaim frees the states of
   ended threads and the destroyed objects that no call uses any more. ds__device_ordinal and
   ds__driver_of map a device to its index over all drivers and to its driver table.

   Invariants: ds__tls.thread is valid only while ds__tls.epoch equals ds__g.epoch. A state is in
   ds__callers.list from its creation until ds__retired_reclaim or ds_shutdown frees it. While its
   thread lives, only that thread uses a state, except for the hazard pointers, `ended` and `next`.
   ds__dead counts ended threads and retired objects, ds__g.deferred_kernels the destroyed kernels
   that pending work may use. If the first is below DS__RECLAIM_BATCH and the second is 0,
   ds__retired_reclaim returns at once.
   Locks: ds__callers.lock guards the list of threads. No other lock is taken, and no driver call or
   user code runs under it. ds__retired_reclaim expects no lock from its caller, because it calls
   drivers and the user's destructors. A caller that holds one sets ds__tls.upper_locked;
   ds__retired_reclaim then returns at once.
   Threads: any calling thread. ds__thread_ends runs on an ending thread (ds__os_thread_key) and
   calls no driver. */
#ifndef DS__CORE_THREAD_H
#define DS__CORE_THREAD_H

#include "../base/module.h"
#include "init.h"
#include "postpone.h"

enum { DS__FRAME_DEVICE, DS__FRAME_STREAM, DS__FRAME_NOTHING };

typedef struct ds__frame {
    int kind;
    unsigned flags;
    ds_device device;        /* current at entry */
    ds_device stream_device; /* of the pushed stream */
    ds_stream entry;         /* current at entry on `device`, with a reference; zero: none yet */
    ds_stream previous; /* current at entry on `stream_device`, with a reference; zero: none yet */
    ds_stream pushed;   /* the pushed stream, with a reference of the frame */
} ds__frame;

/* A thread's current device and streams, indexed by the device's ordinal over all drivers. The
   slots of `current` hold references. The state belongs to its thread until the thread ends; then a
   later call of any thread reclaims it. */
struct ds__thread {
    ds__caller caller;  /* first: lists and ds__tls have its address */
    ds_stream *current; /* current stream of each device; zeroed: none yet */
    ds_stream *own;     /* per-thread stream of each device; zeroed: none yet */
    ds__frame *frame;
    size_t frames;
    size_t frame_room;
};

static int ds__device_ordinal(ds_device d) {
    return d.type == DS_DEVICE_CUDA ? d.index : ds__g.backend[0].device_count + d.index;
}

/* Marks the state of an ended thread; a later call of another thread frees it. Calls no driver,
   except for a wake-up. If another destructor of the program still calls devstream on this thread,
   the thread gets a new state. */
static void ds__thread_ends(void *thread) {
    ds__tls_forget(&ds__tls);
    ds__spinlock_lock(&ds__callers.lock);
    /* unless a shutdown has freed the state */
    ds__caller *t = ds__callers.list;
    while (t && t != thread)
        t = t->next;
    if (t) {
        atomic_store(&t->ended, 1);
        ds__count_dead(DS__RECLAIM_BATCH);
    }
    void (*gone_fn)(void) = t && atomic_fetch_sub(&ds__callers.count, 1) == 1
                                ? atomic_load(&ds__callers.gone_fn)
                                : NULL;
    ds__spinlock_unlock(&ds__callers.lock);
    if (gone_fn)
        gone_fn();
}

/* Frees the state of an ended thread and drops its references to streams. */
static void ds__thread_destroy(ds__thread *t) {
    for (int i = 0; i < ds__device_ordinal_count(); i++) {
        ds__stream_unref(t->current[i]);
        ds__stream_end(t->own[i]);
    }
    for (size_t i = 0; i < t->frames; i++) {
        ds__stream_unref(t->frame[i].entry);
        ds__stream_unref(t->frame[i].previous);
        ds__stream_unref(t->frame[i].pushed);
    }
    ds__host_free(t->current);
    ds__host_free(t->own);
    ds__host_free(t->frame);
    ds__modules_thread_end(t->caller.module);
    ds__host_free(t);
}

/* Frees the states of ended threads, and the streams that only they used. */
static void ds__reclaim_threads(void) {
    ds__caller *ended = NULL;
    ds__spinlock_lock(&ds__callers.lock);
    for (ds__caller **p = &ds__callers.list; *p;) {
        ds__caller *t = *p;
        if (!atomic_load(&t->ended)) {
            p = &t->next;
            continue;
        }
        *p = t->next;
        t->next = ended;
        ended = t;
        ds__count_dead(-DS__RECLAIM_BATCH);
    }
    ds__spinlock_unlock(&ds__callers.lock);
    while (ended) {
        ds__thread *t = (ds__thread *)(void *)ended;
        ended = t->caller.next;
        for (int i = 0; i < ds__device_ordinal_count(); i++)
            if (t->own[i].id)
                ds__modules_stream_end(
                    (void *)ds__slot_at(&ds__g.streams, (uint32_t)t->own[i].id - 1));
        ds__thread_destroy(t);
    }
}

/* Frees the states of ended threads and the objects that were destroyed. Called where objects are
   created and destroyed and after waits, not on hot paths. */
static void ds__retired_reclaim(void) {
    int dead = atomic_load_explicit(&ds__dead, memory_order_acquire);
    int deferred = atomic_load_explicit(&ds__g.deferred_kernels, memory_order_relaxed);
    if (DS__LIKELY(dead < DS__RECLAIM_BATCH && deferred == 0) || ds__tls.upper_locked)
        return;
    /* a thread without a state has no pins; ds__api_enter drops a state of before ds_shutdown */
    if (!ds__tls.thread)
        return;
    for (int i = 0; i < DS__POSTPONED_LISTS; i++)
        ds__postponed_run(i);
    if (dead >= DS__RECLAIM_BATCH) {
        ds__reclaim_threads();
        ds__table_reclaim(&ds__g.execs);
        ds__table_reclaim(
            &ds__g.graphs); /* objects that refer to kernels and events before these */
        ds__table_reclaim(&ds__g.events);
        ds__table_reclaim(&ds__g.kernels);
        ds__table_reclaim(&ds__g.streams);
    }
    ds__kernel_collect();
}

/* Returns the calling thread's state. NULL: no memory, and the sentence is set. */
static ds__thread *ds__thread_state(void) {
    ds__tls_block *tls = &ds__tls;
    if (DS__LIKELY(tls->thread && tls->epoch == ds__g.epoch))
        return tls->thread;
    ds__retired_reclaim();
    size_t n = (size_t)ds__device_ordinal_count() + 1;
    ds__thread *t = ds__host_alloc(sizeof *t);
    if (t) {
        t->current = ds__host_alloc(n * sizeof *t->current);
        t->own = ds__host_alloc(n * sizeof *t->own);
    }
    if (!t || !t->current || !t->own || ds__os_thread_key_set(ds__g.key, t) != 0) {
        if (t) {
            ds__host_free(t->current);
            ds__host_free(t->own);
            ds__host_free(t);
        }
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the thread's state");
        return NULL;
    }
    t->caller.device = ds__default_device();
    ds__spinlock_lock(&ds__callers.lock);
    t->caller.next = ds__callers.list;
    ds__callers.list = &t->caller;
    atomic_fetch_add(&ds__callers.count, 1);
    ds__spinlock_unlock(&ds__callers.lock);
    tls->thread = t;
    tls->epoch = ds__g.epoch;
    return t;
}

/* The same after DS__ENTER, which has made the state. */
static inline ds__thread *ds__thread_entered(void) {
    return ds__tls.thread;
}

#endif
