/* alloc/history_state.h - state of history and observers.

   Holds the settings of the history and the list of observers (ds__history_state).
   ds__history_apply tells a device which events to report. ds__mem_history_join lets a new device
   take part in the history. ds__mem_tell passes an event to all observers.

   Invariants: An event is recorded on a device only if its bit in dev->watch is set. DS__WATCHED
   is set there while observers exist. After ds__history_apply has returned, no event of the old
   setting enters the ring. Inside of an observer, calls of devstream are refused
   (ds__tls.in_callback), except functions callable anywhere. Function name and call site of the
   outer call are restored afterwards.
   Locks: ds__history_state.lock is taken before all locks of the allocator except
   ds__memory_state.lock. It guards the settings, the sizes of all rings and the annotations.
   ds__history_state.watch is taken after all other locks, around the calls of observers.
   dev->history_lock guards one ring; ds__history_state.watch and the history lock are not nested.
   ds__history_apply and ds__history_swap expect ds__history_state.lock. The program's memory and
   log functions may be called under it.
   Threads: any. ds__mem_history_join runs on the thread that uses a device first, under
   ds__memory_state.lock. An observer runs on the thread that reports the event. */
#ifndef DS__ALLOC_HISTORY_STATE_H
#define DS__ALLOC_HISTORY_STATE_H

#include "../base/observe.h"
#include "../base/log.h"
#include "../api/snapshot.h"
#include "types.h"
#include "state.h"

typedef struct ds__config_remark ds__config_remark;

/* The text of an annotation. */
struct ds__config_remark {
    ds__config_remark *next;
    /* the number of events up to the annotation; the ring has overwritten the annotation after as
       many further events as it has entries */
    uint64_t until;
    char text[256];
};

static struct {
    ds__mutex lock; /* guards the members up to `watch`, and the sizes of all rings */
    int on;
    size_t entries;
    unsigned actions; /* bits of the recorded actions */
    /* from the monotonic clock to the time of day; set by the first snapshot, for all snapshots */
    int64_t to_wall_ns;

    struct {
        ds__config_remark *first;
        ds__config_remark *last;
    } remarks[DS_BACKEND_COUNT][DS__MAX_DEVICES];

    ds__mutex watch;
    ds__callback_list observers; /* ds_mem_event_fn, guarded by `watch` */
} ds__history_state = { .lock = DS__MUTEX_INIT, .watch = DS__MUTEX_INIT };

/* Runs a statement for each device that was used: `dev` is its record, ds__b its backend, ds__i its
   index. */
#define DS__EACH_MDEVICE(dev)                                                                   \
    for (int ds__b = 0; ds__b < DS_BACKEND_COUNT; ds__b++)                                      \
        for (int ds__i = 0; ds__i < DS__MAX_DEVICES; ds__i++)                                   \
            for (ds__mem_dev *dev = ds__mem_device_at(ds__b, ds__i), *ds__once = dev; ds__once; \
                 ds__once = NULL)

/* Passes an event to all observers. */
static void ds__mem_tell(ds__mem_dev *dev, const ds__history_event *e) {
    ds_mem_event event = { .action = (ds_mem_action)e->action,
                           .address = e->address,
                           .bytes = e->bytes,
                           .stream = e->stream,
                           .time_ns = e->time_ns,
                           .site = { e->file, (int)e->line },
                           .label = e->label,
                           .pool = { e->pool } };
    ds__mutex_lock(&ds__history_state.watch);
    ds__user_code g = ds__user_code_begin();
    for (size_t i = 0; i < ds__history_state.observers.count; i++) {
        const ds__callback *observer = &ds__history_state.observers.entries[i];
        ((ds_mem_event_fn)observer->fn)(dev->device, &event, observer->user);
    }
    ds__user_code_end(&g);
    ds__mutex_unlock(&ds__history_state.watch);
}

/* Sets the events that the device reports. ds__history_state.lock is held. After the return, no
   event of the old setting enters the ring. */
static void ds__history_apply(ds__mem_dev *dev) {
    ds__mutex_lock(&ds__history_state.watch);
    unsigned watch = (ds__history_state.on && dev->history_room ? ds__history_state.actions : 0) |
                     (ds__history_state.observers.count || ds__observer_is_set() ? DS__WATCHED : 0);
    ds__mutex_unlock(&ds__history_state.watch);
    ds__spinlock_lock(&dev->history_lock);
    atomic_store(&dev->watch, watch);
    ds__spinlock_unlock(&dev->history_lock);
}

/* Replaces the ring of a device, and returns the old one. */
static ds__history_event *ds__history_swap(ds__mem_dev *dev, ds__history_event *ring, size_t room) {
    ds__spinlock_lock(&dev->history_lock);
    ds__history_event *old = dev->history;
    dev->history = ring;
    dev->history_room = room;
    dev->history_at = 0;
    atomic_store_explicit(&dev->history_count, 0, memory_order_relaxed);
    ds__spinlock_unlock(&dev->history_lock);
    return old;
}

/* Lets a new device take part in a history that was started before. */
static void ds__mem_history_join(ds__mem_dev *dev) {
    ds__mutex_lock(&ds__history_state.lock);
    if (ds__history_state.on && !dev->history_room) {
        ds__history_event *ring = ds__host_alloc(ds__history_state.entries * sizeof *ring);
        if (ring)
            ds__history_swap(dev, ring, ds__history_state.entries);
        else
            ds__log_write(DS_LOG_WARNING, DS_ERR_OUT_OF_MEMORY,
                          "no memory for the history of a device: it is not recorded");
    }
    ds__history_apply(dev);
    ds__mutex_unlock(&ds__history_state.lock);
}

#endif
