/* alloc/history.h - history of allocator events.

   Starts and stops the history (ds_mem_history_start, ds_mem_history_stop) and adds annotations
   (ds_mem_annotate). The state is in history_state.h.

   Policy:
   1. The history is a ring per device. The allocator writes it (history_ring.h), this room
      creates and clears it, and snapshot_collect.h reads it.
   2. A snapshot is collected first, device by device with the device stopped, into host memory.
      Then the snapshot is written without a lock.
   3. A single walk over the collected data makes the pickle and the JSON, so both say the same.
      The page reads a shorter form.
   4. Texts are kept once, as valid UTF-8. Frames (a file, a line and a label) are kept once too.

   Invariants: The text of an annotation stays until the ring has overwritten its event.
   Locks: ds__history_state.lock while settings, rings and annotations change; history_state.h has
   the order. The program's memory functions may be called under it.
   Threads: any caller's thread. */
#ifndef DS__ALLOC_HISTORY_H
#define DS__ALLOC_HISTORY_H

#include "../base/utf8.h"
#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "history_state.h"
#include "history_ring.h"
#include "pool.h"

#define DS__HISTORY_ENTRIES ((size_t)65536)
#define DS__ACTIONS 10u

/* Frees the annotations of a device that a ring of `room` entries has lost after `count` events. */
static void ds__remarks_free(int backend, int index, uint64_t count, size_t room) {
    ds__config_remark **first = &ds__history_state.remarks[backend][index].first;
    while (*first && count - (*first)->until >= room) {
        ds__config_remark *old = *first;
        *first = old->next;
        ds__host_free(old);
    }
}

DSDEF ds_result(ds_mem_history_start)(const ds_mem_history_desc *desc) {
    static const ds_mem_history_desc usual;
    ds__history_event *ring[DS_BACKEND_COUNT][DS__MAX_DEVICES];
    ds_result r = DS_OK;
    DS__MEM_ENTER("ds_mem_history_start");
    if (!desc)
        desc = &usual;
    DS__REQUIRE_RESERVED("ds_mem_history_desc", desc);
    size_t entries = desc->entries ? desc->entries : DS__HISTORY_ENTRIES;
    DS__REQUIRE(!(desc->skip >> DS__ACTIONS), "skip is %#x: there is no action %#x", desc->skip,
                desc->skip >> DS__ACTIONS << DS__ACTIONS);
    DS__REQUIRE(entries <= SIZE_MAX / 2 / sizeof(ds__history_event),
                "no memory for %zu history entries", entries);
    r = ds__mem_setup(); /* then ds_shutdown stops the history */
    if (r < 0)
        return r;
    memset(ring, 0, sizeof ring);
    ds__mutex_lock(&ds__history_state.lock);
    DS__EACH_MDEVICE(dev)
    if (r == DS_OK) {
        ring[ds__b][ds__i] = ds__host_alloc(entries * sizeof(ds__history_event));
        if (!ring[ds__b][ds__i])
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a history of %zu entries", entries);
    }
    if (r == DS_OK) {
        ds__history_state.on = 1;
        ds__history_state.entries = entries;
        ds__history_state.actions = ((1u << DS__ACTIONS) - 1) & ~desc->skip;
        DS__EACH_MDEVICE(dev) {
            ring[ds__b][ds__i] =
                ds__history_swap(dev, ring[ds__b][ds__i], ring[ds__b][ds__i] ? entries : 0);
            ds__remarks_free(ds__b, ds__i, UINT64_MAX, 0);
            ds__history_apply(dev);
        }
    }
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        for (int i = 0; i < DS__MAX_DEVICES; i++)
            ds__host_free(ring[b][i]);
    ds__mutex_unlock(&ds__history_state.lock);
    return r;
}

DSDEF ds_result(ds_mem_history_stop)(void) {
    DS__MEM_ENTER("ds_mem_history_stop");
    ds__mutex_lock(&ds__history_state.lock);
    ds__history_state.on = 0;
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
    ds__mutex_unlock(&ds__history_state.lock);
    return DS_OK;
}

DSDEF ds_result(ds_mem_annotate)(ds_device device, const char *text) {
    DS__ENTER("ds_mem_annotate");
    DS__REQUIRE(text, "text is NULL");
    DS__RESOLVE(device);
    ds__mem_dev *dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();
    if (!(atomic_load(&dev->watch) & (1u << DS_ACTION_ANNOTATION | DS__WATCHED)))
        return DS_OK;
    ds__config_remark *m = ds__host_alloc(sizeof *m);
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an annotation");
    int b = ds__backend_of(device);
    int i = device.index;
    ds__utf8_copy(m->text, sizeof m->text, text);
    ds__mutex_lock(&ds__history_state.lock);
    ds__mem_note(dev, &(ds__history_event){ .file = ds__tls.site.file,
                                            .label = m->text,
                                            .line = (uint32_t)ds__tls.site.line,
                                            .action = DS_ACTION_ANNOTATION });
    m->until = atomic_load_explicit(&dev->history_count, memory_order_relaxed);
    ds__remarks_free(b, i, m->until, dev->history_room);
    if (ds__history_state.remarks[b][i].first)
        ds__history_state.remarks[b][i].last->next = m;
    else
        ds__history_state.remarks[b][i].first = m;
    ds__history_state.remarks[b][i].last = m;
    ds__mutex_unlock(&ds__history_state.lock);
    return DS_OK;
}

#endif
