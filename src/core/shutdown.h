/* core/shutdown.h - shutdown.

   Waits for all work, reports the objects that were not destroyed, and frees everything
   (ds_shutdown). After it, the next call starts devstream again.

   Invariants: the order is fixed: captures, synchronisation and drain of the devices,
   generators, allocator, thread states, executables, graphs, streams, events, kernels, memory,
   drivers. What is freed later is still there for the earlier steps. A failed device does not
   stop the shutdown; its error is returned at the end. NVML, range domains and the configuration
   end even if devstream was not in use.
   Locks: ds__g.mutex is held from the end of the waits on, also over driver calls that block, the
   user's destructors and the log function. ds__callers.lock guards the removal of each thread
   state.
   Threads: one thread, while no other is inside of devstream. It may be a thread without a
   state. Inside of user code that devstream runs, and in a forked child, the call is refused
   before the mutex is taken. */
#ifndef DS__CORE_SHUTDOWN_H
#define DS__CORE_SHUTDOWN_H

#include "../base/ipc_registry.h"
#include "../base/module.h"
#include "init.h"
#include "thread.h"
#include "range_api.h"
#include "activity.h"
#include "memory.h"
#include "kernel.h"
#include "capture.h"
#include "quiesce.h"

static void ds__capture_give_up(ds__capture *c) {
    ds__log_warn("capture #%llu, begun at %s:%d, was not ended", (unsigned long long)c->id,
                 c->begun.file ? c->begun.file : "?", c->begun.line);
    c->driver->capture_abandon(c);
    ds__capture_over(c, 1);
}

/* Reports and ends the captures that are open. Returns 1 if there were any. */
static int ds__shutdown_captures(void) {
    int open = ds__g.captures != NULL;
    while (ds__g.captures)
        ds__capture_give_up(ds__g.captures);
    return open;
}

/* Sets the capture mode of the thread in all drivers, so that a capture that CUDA keeps open does
   not forbid this thread to free memory. Returns the former mode. */
static ds_capture_mode ds__shutdown_mode(ds_capture_mode mode) {
    ds_capture_mode before = ds__tls.mode;
    for (int b = 0; b < DS_BACKEND_COUNT; b++) {
        if (ds__g.driver[b] && ds__g.driver[b]->capture_mode(mode) == DS_OK && ds__tls.mode != mode)
            before = ds__tls.mode; /* as CUDA had it */
        ds__tls.mode = mode;
    }
    return before;
}

/* Returns the label of an object, or NULL; *made: where it was created, *ours: devstream created it
   for itself. */
static const char *ds__end_label(const ds__table *t, ds__slot *slot, ds_site *made, int *ours) {
    void *object = slot;
    if (t == &ds__g.streams) {
        const ds__stream *s = object;
        *made = s->made;
        *ours = s->kind != DS__STREAM_NEW;
        return s->label;
    }
    *ours = 0;
    if (t == &ds__g.events) {
        *made = ((ds__event *)object)->made;
        return ((ds__event *)object)->label;
    }
    if (t == &ds__g.graphs) {
        *made = ((ds__graph *)object)->made;
        return ((ds__graph *)object)->label;
    }
    if (t == &ds__g.execs) {
        *made = ((ds__exec *)object)->made;
        return ((ds__exec *)object)->label;
    }
    *made = ((ds__kernel *)object)->made;
    return ((ds__kernel *)object)->name;
}

/* Frees the objects of a table and reports those that the user did not destroy. */
static void ds__end_table(ds__table *t) {
    for (uint32_t i = 0; i < t->used; i++) {
        ds__slot *slot = ds__slot_at(t, i);
        if (DS__STATE(atomic_load(&slot->word)) == DS__FREE)
            continue;
        ds_site made;
        int ours;
        const char *label = ds__end_label(t, slot, &made, &ours);
        ours |= DS__STATE(atomic_load(&slot->word)) != DS__ALIVE;
        if (!ours)
            ds__log_warn("%s \"%s\", created at %s:%d, was not destroyed", t->what,
                         label ? label : "", made.file ? made.file : "?", made.line);
        t->free_fn(slot);
    }
    ds__table_destroy(t);
}

/* Gives the calling thread a state if it has none of this epoch. The steps of the shutdown need one
   for pins. */
static void ds__shutdown_adopt_thread(ds__tls_block *tls) {
    static ds__thread own;
    if (!tls->thread || tls->epoch != ds__g.epoch) {
        memset(&own, 0, sizeof own);
        own.caller.device = ds__default_device();
        tls->thread = &own;
        tls->epoch = ds__g.epoch;
    }
}

/* Frees the states of all threads. */
static void ds__shutdown_threads(void) {
    for (;;) {
        ds__spinlock_lock(&ds__callers.lock);
        ds__caller *t = ds__callers.list;
        if (t)
            ds__callers.list = t->next;
        ds__spinlock_unlock(&ds__callers.lock);
        if (!t)
            break;
        ds__thread_destroy((ds__thread *)(void *)t);
    }
}

/* Reports and frees all objects, each table before the tables that its objects refer to. */
static void ds__shutdown_tables(void) {
    ds__end_table(&ds__g.execs);
    ds__end_table(&ds__g.graphs);
    ds__postponed_deinit(); /* what destructors of graphs have released */
    ds__end_table(&ds__g.streams);
    ds__end_table(&ds__g.events);
    ds__kernel_collect_all();
    ds__end_table(&ds__g.kernels);
}

/* Stops the drivers and frees the state that ds__start_all made. */
static void ds__shutdown_drivers(void) {
    for (int b = 0; b < DS_BACKEND_COUNT; b++) {
        if (ds__g.driver[b])
            ds__g.driver[b]->stop();
        ds__g.driver[b] = NULL;
    }
    ds__registries_deinit();
    ds__host_free(ds__g.legacy);
    ds__host_free(ds__g.label);
    ds__g.legacy = NULL;
    ds__g.label = NULL;
    ds__os_thread_key_delete(ds__g.key);
}

/* Waits for all work, and makes what host functions have postponed until then: afterwards no user
   code runs but destructors. Returns the first error of a wait for a device. */
static ds_result ds__shutdown_wait(ds__tls_block *tls, int *out_reported,
                                   ds_capture_mode *out_mode) {
    ds__shutdown_adopt_thread(tls);
    *out_reported = ds__shutdown_captures();
    *out_mode = *out_reported ? ds__shutdown_mode(DS_CAPTURE_RELAXED) : tls->mode;
    ds_result r = ds__wait_for_all(*out_reported);
    ds__activity_shutdown();
    while (ds__postponed_any()) /* destructors of objects may release more */
        for (int i = 0; i < DS__POSTPONED_LISTS; i++)
            ds__postponed_run(i);
    return r;
}

/* Ends everything that the first call started, after ds__shutdown_wait. ds__g.mutex is held. */
static void ds__shutdown_all(ds__tls_block *tls, int reported, ds_capture_mode mode) {
    ds__modules_shutdown();
    ds__shutdown_threads();
    ds__modules_forget();
    ds__layers_observe(0);
    atomic_store(&ds__callers.count, 0);
    ds__tls_forget(tls);

    ds__shutdown_tables();
    ds__activity_names_free();
    ds__memory_end_all();
    if (reported)
        ds__shutdown_mode(mode);
    ds__shutdown_drivers();

    ds__postponed_deinit();
    atomic_store(&ds__dead, 0);
    ds__g.epoch++;
    atomic_store(&ds__g.state, DS__COLD);
}

DSDEF ds_result(ds_shutdown)(void) {
    ds__tls_block *tls = &ds__tls;
    tls->fn = "ds_shutdown";
    tls->site = ds__site_take(tls);
    if (tls->in_callback || atomic_load(&ds__g.state) == DS__FORKED)
        return ds__api_enter_slow(tls);
    ds_result r = DS_OK;
    int ready = atomic_load(&ds__g.state) == DS__READY;
    int reported = 0;
    ds_capture_mode mode = tls->mode;
    if (ready) /* without the mutex, which releases may take */
        r = ds__shutdown_wait(tls, &reported, &mode);
    ds__mutex_lock(&ds__g.mutex);
    DS__COUNT_LOCK(2, -1); /* the user's functions run under it, and may make no calls */
    if (ready)
        ds__shutdown_all(tls, reported, mode);
    ds__ranges_deinit();
    ds__drop_desc();
    DS__COUNT_LOCK(2, 1);
    ds__mutex_unlock(&ds__g.mutex);
    return r;
}

#endif
