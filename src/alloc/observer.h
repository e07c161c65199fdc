/* alloc/observer.h - observers of allocator events.

   Implements ds_mem_add_event_callback and ds_mem_remove_event_callback; history_state.h has the
   list and calls the observers. ds__snapshot_shutdown resets history and observers.

   Invariants: When ds_mem_remove_event_callback returns DS_OK, no thread is inside the observer.
   Locks: order: ds__history_state.lock, then ds__history_state.watch. Observers run under
   ds__history_state.watch, and under the locks of the thread that reports the event, often an
   arena's lock. ds__history_state.watch is taken last, after all locks of the allocator.
   Threads: an observer runs on the thread that reports the event, one call at a time in the
   process. */
#ifndef DS__ALLOC_OBSERVER_H
#define DS__ALLOC_OBSERVER_H

#include "../core/internal.h"
#include "history_state.h"
#include "callbacks.h"
#include "history.h"

/* Sets the reported events of all devices, after the list of observers has changed. */
static void ds__observers_apply(void) {
    ds__mutex_lock(&ds__history_state.lock);
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
    ds__mutex_unlock(&ds__history_state.lock);
}

DSDEF ds_result(ds_mem_add_event_callback)(ds_mem_event_fn fn, void *user) {
    DS__ENTER("ds_mem_add_event_callback");
    ds_result r = ds__callback_add(&ds__history_state.observers, &ds__history_state.watch,
                                   (ds__callback){ (void (*)(void))fn, user });
    ds__observers_apply();
    return r;
}

DSDEF ds_result(ds_mem_remove_event_callback)(ds_mem_event_fn fn, void *user) {
    DS__ENTER("ds_mem_remove_event_callback");
    DS__REQUIRE(fn, "fn is NULL");
    ds_result r = ds__callback_remove(&ds__history_state.observers, &ds__history_state.watch,
                                      (ds__callback){ (void (*)(void))fn, user });
    ds__observers_apply();
    return r;
}

/* Resets history and observers at ds_shutdown. */
static void ds__snapshot_shutdown(void) {
    DS__EACH_MDEVICE(dev) {
        ds__host_free(ds__history_swap(dev, NULL, 0));
        ds__remarks_free(ds__b, ds__i, UINT64_MAX, 0);
    }
    ds__callback_clear(&ds__history_state.observers);
    ds__history_state.entries = 0;
    ds__history_state.on = 0;
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
}

#endif
