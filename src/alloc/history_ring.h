/* alloc/history_ring.h - recording one event.

   Records an event of the allocator in the history ring of the device and passes the event to
   the observers (ds__mem_note). ds__note_block and ds__note_free record events of blocks,
   ds__note_segment events of segments.
   ds__ticks reads the processor's clock; ds__ticks_ns converts ticks to the monotonic clock.
   ds__stream_of tells on which stream a block was allocated.

   Invariants: dev->watch is checked again under the ring's lock, so nothing enters the ring
   after ds_mem_history_stop has returned. `history_at` is history_count modulo history_room.
   Times in the ring are ticks and are converted when they are read.
   Locks: Callers may hold arena locks and the device lock. All notes take dev->history_lock.
   ds__mem_note releases that lock and then invokes observers under ds__history_state.watch. So
   user code may run under the caller's locks. ds__note_block expects the arena's lock, or a new
   block of the calling thread. The driver is not called.
   Threads: any thread that works in the allocator. */
#ifndef DS__ALLOC_HISTORY_RING_H
#define DS__ALLOC_HISTORY_RING_H

#include "../base/observe.h"
#include "../api/snapshot.h"
#include "types.h"
#include "state.h"
#include "history_state.h"

/* Returns the time of the monotonic clock at which the processor's clock showed `ticks`. */
static uint64_t ds__ticks_ns(uint64_t ticks) {
    uint64_t now = ds__now_ns();
    uint64_t now_ticks = ds__os_ticks();
    if (now_ticks <= ds__memory_state.tick_base || ticks >= now_ticks)
        return now;
    double scale = (double)(now - ds__memory_state.tick_base_ns) /
                   (double)(now_ticks - ds__memory_state.tick_base);
    return now - (uint64_t)((double)(now_ticks - ticks) * scale);
}

/* Returns the next entry of the ring, which has room, and counts an event. The ring's lock is
   held. */
static inline ds__history_event *ds__ring_next(ds__mem_dev *dev) {
    ds__history_event *e = &dev->history[dev->history_at];
    /* history_count % history_room, without a division */
    if (++dev->history_at == dev->history_room)
        dev->history_at = 0;
    atomic_store_explicit(&dev->history_count,
                          atomic_load_explicit(&dev->history_count, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    return e;
}

/* Returns whether the ring records all of these actions. The ring's lock is held: no event enters
   the ring after ds_mem_history_stop has returned. */
static inline int ds__ring_takes(const ds__mem_dev *dev, unsigned actions) {
    unsigned watch = atomic_load_explicit(&dev->watch, memory_order_relaxed);
    return (watch & actions) == actions && DS__LIKELY(dev->history_room != 0);
}

/* Records an event of the device in the ring and passes it to the observers. Sets the time of the
   event. Locks of arenas may be held. */
static void ds__mem_note(ds__mem_dev *dev, const ds__history_event *event) {
    unsigned watch = atomic_load_explicit(&dev->watch, memory_order_relaxed);
    if (DS__LIKELY(!(watch & (1u << event->action | DS__WATCHED))))
        return;
    ds__history_event e = *event;
    e.time_ns = ds__os_ticks();
    ds__spinlock_lock(&dev->history_lock);
    if (ds__ring_takes(dev, 1u << e.action))
        *ds__ring_next(dev) = e;
    ds__spinlock_unlock(&dev->history_lock);
    if (DS__LIKELY(!(watch & DS__WATCHED)))
        return;
    e.time_ns = ds__ticks_ns(e.time_ns);
    ds__mem_tell(dev, &e);
}

/* Returns the number of the stream on which a block was allocated. */
static uint64_t ds__stream_of(const ds__arena *a, const ds__mem_block *b) {
    return DS__UNLIKELY(b->lent && b->uses) ? b->uses->stream_id : a->stream_id;
}

/* Returns the handle of the stream on which a block was allocated, or zero if it has ended. */
static ds_stream ds__stream_handle_of(const ds__arena *a, const ds__mem_block *b) {
    if (DS__UNLIKELY(b->lent && b->uses))
        return b->uses->stream;
    return a->orphan ? (ds_stream){ 0 } : a->stream;
}

/* Returns the kind of occurrence that the observers of the core get for an action on a block. */
static int ds__seen_kind(ds_mem_action action) {
    if (action == DS_ACTION_ALLOC)
        return DS__SEEN_ALLOC;
    return action == DS_ACTION_FREE_REQUESTED ? DS__SEEN_FREE : DS__SEEN_FREE_DONE;
}

/* Passes an action on a block to the observers of the core. The arena is locked, or no other thread
   knows the block. */
__attribute__((cold, noinline)) static void ds__observe_block(const ds__arena *a,
                                                              ds_mem_action action,
                                                              const ds__mem_block *b) {
    ds__observer_notify(&(ds__seen){ .kind = ds__seen_kind(action),
                                     .ptr = b->ptr,
                                     .bytes = b->asked,
                                     .room = b->size,
                                     .device = a->dev->device,
                                     .stream = ds__stream_handle_of(a, b),
                                     .label = b->label });
}

/* Writes an event of a block. Each member is written on its own: a copy of a whole entry would load
   more bytes at once than were stored just before, and wait for these stores. */
static inline void ds__block_event_write(ds__history_event *e, const ds__arena *a,
                                         ds_mem_action action, const ds__mem_block *b,
                                         uint64_t time) {
    e->address = (uint64_t)(uintptr_t)b->ptr;
    e->bytes = b->asked;
    e->stream = ds__stream_of(a, b);
    e->time_ns = time;
    e->pool = a->pool->id;
    e->file = b->file;
    e->label = b->label;
    e->line = b->line;
    e->action = (uint32_t)action;
}

/* Records an action on a block and passes it to all observers. */
static void ds__note_block(ds__arena *a, ds_mem_action action, const ds__mem_block *b) {
    ds__mem_dev *dev = a->dev;
    unsigned watch = atomic_load_explicit(&dev->watch, memory_order_relaxed);
    if (DS__UNLIKELY(watch & DS__WATCHED)) {
        ds__history_event e;
        ds__block_event_write(&e, a, action, b, 0);
        ds__mem_note(dev, &e);
    } else if (watch & 1u << action) {
        uint64_t time = ds__os_ticks();
        ds__spinlock_lock(&dev->history_lock);
        if (ds__ring_takes(dev, 1u << action))
            ds__block_event_write(ds__ring_next(dev), a, action, b, time);
        ds__spinlock_unlock(&dev->history_lock);
    }
    if (ds__observer_is_set())
        ds__observe_block(a, action, b);
}

/* Records that a segment, or a part of it, came from the driver or went back. */
static void ds__note_segment(const ds__arena *a, ds_mem_action action, const char *base,
                             size_t size) {
    ds__mem_note(a->dev, &(ds__history_event){ .address = (uint64_t)(uintptr_t)base,
                                               .bytes = size,
                                               .stream = a->stream_id,
                                               .pool = a->pool->id,
                                               .file = ds__tls.site.file,
                                               .line = (uint32_t)ds__tls.site.line,
                                               .action = (uint32_t)action });
}

/* Records both events of a free that is complete at once. */
static void ds__note_free(ds__arena *a, const ds__mem_block *b, unsigned watch) {
    const unsigned both = 1u << DS_ACTION_FREE_REQUESTED | 1u << DS_ACTION_FREE_COMPLETED;
    if (DS__UNLIKELY((watch & both) != both || (watch & DS__WATCHED))) {
        ds__note_block(a, DS_ACTION_FREE_REQUESTED, b);
        ds__note_block(a, DS_ACTION_FREE_COMPLETED, b);
        return;
    }
    ds__mem_dev *dev = a->dev;
    uint64_t time = ds__os_ticks();
    ds__spinlock_lock(&dev->history_lock);
    if (ds__ring_takes(dev, both)) {
        ds__block_event_write(ds__ring_next(dev), a, DS_ACTION_FREE_REQUESTED, b, time);
        ds__block_event_write(ds__ring_next(dev), a, DS_ACTION_FREE_COMPLETED, b, time);
    }
    ds__spinlock_unlock(&dev->history_lock);
}

#endif
