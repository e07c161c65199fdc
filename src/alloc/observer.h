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
#include "pool.h"
#include "history.h"

DSDEF ds_result(ds_mem_add_event_callback)(ds_mem_event_fn fn, void *user) {
    DS__ENTER("ds_mem_add_event_callback");
    DS__REQUIRE(fn, "fn is NULL");
    ds_result r = ds__mem_setup(); /* then ds_shutdown removes the observer */
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__history_state.lock);
    ds__mutex_lock(&ds__history_state.watch);
    int room =
        ds__array_reserve(&ds__history_state.watchers, sizeof *ds__history_state.watchers,
                          ds__history_state.watcher_count, 1, &ds__history_state.watcher_room);
    if (room)
        ds__history_state.watchers[ds__history_state.watcher_count++] =
            (ds__mem_observer){ fn, user };
    ds__mutex_unlock(&ds__history_state.watch);
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
    ds__mutex_unlock(&ds__history_state.lock);
    return room ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an observer");
}

DSDEF ds_result(ds_mem_remove_event_callback)(ds_mem_event_fn fn, void *user) {
    DS__ENTER("ds_mem_remove_event_callback");
    DS__REQUIRE(fn, "fn is NULL");
    ds__mutex_lock(&ds__history_state.lock);
    ds__mutex_lock(&ds__history_state.watch);
    size_t i = 0;
    size_t n = ds__history_state.watcher_count;
    while (i < n &&
           (ds__history_state.watchers[i].fn != fn || ds__history_state.watchers[i].user != user))
        i++;
    if (i < n)
        memmove(&ds__history_state.watchers[i], &ds__history_state.watchers[i + 1],
                (--ds__history_state.watcher_count - i) * sizeof *ds__history_state.watchers);
    ds__mutex_unlock(&ds__history_state.watch);
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
    ds__mutex_unlock(&ds__history_state.lock);
    return i < n ? DS_OK
                 : ds__fail(DS_ERR_INVALID_VALUE,
                            "this function was not added with this user pointer");
}

/* Resets history and observers at ds_shutdown. */
static void ds__snapshot_shutdown(void) {
    DS__EACH_MDEVICE(dev) {
        ds__host_free(ds__history_swap(dev, NULL, 0));
        ds__remarks_free(ds__b, ds__i, UINT64_MAX, 0);
    }
    ds__host_free(ds__history_state.watchers);
    ds__history_state.watchers = NULL;
    ds__history_state.watcher_count = ds__history_state.watcher_room = ds__history_state.entries =
        0;
    ds__history_state.on = 0;
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
}

#endif
