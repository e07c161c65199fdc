/* core/quiesce.h - waits for all work of the process.

   Waits for all devices in use (ds__wait_for_all), for ds_shutdown too, and prepares the process
   for a checkpoint (ds_quiesce).

   Invariants: after ds_quiesce no operation, host function or destructor is pending, and nothing
   in this process is tied to another process, as far as devstream can tell. Handles and memory
   stay valid. A device that is not in use gets no context.
   Locks: none is held over the waits.
   Threads: the caller's; no other thread may be inside of devstream. */
#ifndef DS__CORE_QUIESCE_H
#define DS__CORE_QUIESCE_H

#include "../base/module.h"
#include "../base/capture_list.h"
#include "init.h"
#include "thread.h"

/* Waits for all devices and drains the drivers, the CPU driver first: its streams copy memory of
   GPUs by the CUDA driver. reported: captures were open, and their reports explain why CUDA may
   refuse to wait for a device; the drain waits for its streams. */
static ds_result ds__wait_for_all(int reported) {
    ds_result r = DS_OK;
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        for (int i = 0; ds__g.driver[b] && i < ds__g.backend[b].device_count; i++) {
            if (!ds__g.driver[b]->device_used(i))
                continue;
            ds_result one = ds__g.driver[b]->device_synchronize(i);
            if (one == DS_ERR_CAPTURE_UNSUPPORTED && reported)
                one = DS_OK;
            if (r == DS_OK)
                r = one;
        }
    for (int b = DS_BACKEND_COUNT - 1; b >= 0; b--)
        if (ds__g.driver[b])
            ds__g.driver[b]->drain(); /* also after an error above */
    return r;
}

/* Refuses if a capture of devstream is open. */
static ds_result ds__quiesce_captures(void) {
    ds_result r = DS_OK;
    ds__mutex_lock(&ds__g.capture_lock);
    const ds__capture *c = ds__g.captures;
    if (c)
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED, "capture #%llu, begun at %s:%d, is open; end it",
                     (unsigned long long)c->id, c->begun.file ? c->begun.file : "?", c->begun.line);
    ds__mutex_unlock(&ds__g.capture_lock);
    return r;
}

/* Refuses if this process has events of another one open. */
static ds_result ds__quiesce_events(void) {
    for (uint32_t i = 0; i < ds__g.events.used; i++) {
        ds__slot *slot = ds__slot_at(&ds__g.events, i);
        const ds__event *e = (const void *)slot;
        if (DS__STATE(atomic_load(&slot->word)) == DS__ALIVE && e->imported)
            return ds__fail(DS_ERR_ILLEGAL_STATE,
                            "event \"%s\" of another process, imported at %s:%d, is open in this "
                            "process; destroy it",
                            e->label ? e->label : "", e->made.file ? e->made.file : "?",
                            e->made.line);
    }
    return DS_OK;
}

DSDEF ds_result(ds_quiesce)(void) {
    DS__ENTER("ds_quiesce");
    ds_result r = ds__quiesce_captures();
    if (r == DS_OK)
        r = ds__observer_notify_wait(ds__wait_for_all(0), (ds_stream){ 0 }, (ds_event){ 0 },
                                     (ds_device){ DS_DEVICE_HOST, 0 });
    ds__retired_reclaim();
    if (r == DS_OK)
        r = ds__modules_quiesce();
    return r == DS_OK ? ds__quiesce_events() : r;
}

#endif
