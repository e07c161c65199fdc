/* base/module.h - modules above the core, and what they are told.

   Lists the modules (ds__module) and calls their hooks: the end of a stream, of a thread's state,
   shutdown and ds_quiesce. A module enters itself at its first use (ds__module_add). Each has a
   pointer of its own in every thread (ds__caller) and device (ds__module_device); the first
   DS__STREAM_MODULES have one in every stream (ds__stream).

   Invariants: the number of a module is a constant. Shutdown runs from the last number to the
   first, so a module ends before those that it uses.
   Locks: none here. The hook of a stream's end takes locks of the allocator; callers hold none.
   Threads: any. Shutdown runs in ds_shutdown, while no other thread is inside of devstream. */
#ifndef DS__BASE_MODULE_H
#define DS__BASE_MODULE_H

#include "object.h"
#include "operation.h"

typedef struct ds__module {
    /* called before a stream ends; the caller has pinned the stream or owns it, and has not set
       `upper_locked` */
    void (*stream_end)(ds__stream *s);
    void (*thread_end)(void *own); /* frees the state that the module keeps for an ended thread */
    void (*shutdown)(void); /* called when all work is done, before anything of the core is freed */
    ds_result (*quiesce)(void); /* called when all work is done; refuses ties to other processes */
} ds__module;

static const ds__module *_Atomic ds__modules[DS__MODULES];

/* The state that each module keeps for a device; NULL after ds_shutdown. */
static _Atomic(void *) ds__module_devices[DS__MODULES][DS_BACKEND_COUNT][DS__MAX_DEVICES];

DS__SEAM static _Atomic(void *) *ds__module_device(int module, int backend, int index) {
    return &ds__module_devices[module][backend][index];
}

/* Adds a module to the list, unless it is there. */
DS__SEAM static void ds__module_add(int number, const ds__module *module) {
    if (DS__UNLIKELY(!atomic_load_explicit(&ds__modules[number], memory_order_relaxed)))
        atomic_store(&ds__modules[number], module);
}

static void ds__modules_stream_end(ds__stream *s) {
    for (int i = DS__MODULES - 1; i >= 0; i--) {
        const ds__module *m = atomic_load(&ds__modules[i]);
        if (m && m->stream_end)
            m->stream_end(s);
    }
}

static void ds__modules_thread_end(void *const *own) {
    for (int i = DS__MODULES - 1; i >= 0; i--) {
        const ds__module *m = atomic_load(&ds__modules[i]);
        if (m && m->thread_end && own[i])
            m->thread_end(own[i]);
    }
}

/* Calls all of them, and returns the first error. */
static ds_result ds__modules_quiesce(void) {
    ds_result r = DS_OK;
    for (int i = DS__MODULES - 1; i >= 0; i--) {
        const ds__module *m = atomic_load(&ds__modules[i]);
        if (m && m->quiesce && r == DS_OK)
            r = m->quiesce();
    }
    return r;
}

static void ds__modules_shutdown(void) {
    for (int i = DS__MODULES - 1; i >= 0; i--) {
        const ds__module *m = atomic_load(&ds__modules[i]);
        if (m && m->shutdown)
            m->shutdown();
    }
}

/* Empties the list, after the states of all threads have been freed. */
static void ds__modules_forget(void) {
    for (int i = 0; i < DS__MODULES; i++) {
        atomic_store(&ds__modules[i], NULL);
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            for (int k = 0; k < DS__MAX_DEVICES; k++)
                atomic_store_explicit(&ds__module_devices[i][b][k], NULL, memory_order_relaxed);
    }
}

#endif
