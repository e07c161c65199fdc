/* core/stream_default.h - legacy, per-thread and default streams.

   Returns the legacy stream of a device (ds__stream_legacy_get) or the calling thread's own stream
   of the device (ds__per_thread). ds__stream_default_get returns the one that the process uses by
   default.

   Invariants: there is at most one legacy stream for each device, and one per-thread stream for
   each thread and device. Both are created at first use. A legacy stream lives until
   ds_shutdown; a per-thread stream lives until ds__thread_destroy frees its thread's state.
   Locks: ds__stream_legacy_get holds ds__g.mutex, also over the driver's stream_create. Nothing is
   reclaimed under the mutex (ds__tls.upper_locked), because ds__stream_legacy_get may be called
   under locks that reclaiming takes.
   Threads: any. Per-thread streams stand in the state of the calling thread. */
#ifndef DS__CORE_STREAM_DEFAULT_H
#define DS__CORE_STREAM_DEFAULT_H

#include "init.h"
#include "thread.h"
#include "device.h"
#include "stream.h"

static ds_result ds__stream_legacy_get(ds_device device, ds_stream *out) {
    ds_stream *slot = &ds__g.legacy[ds__device_ordinal(device)];
    ds_result r = DS_OK;
    /* created once; callers can keep the handle, so a lock is acceptable here */
    ds__mutex_lock(&ds__g.mutex);
    /* nothing is reclaimed under this mutex, since reclaiming takes locks under which the mutex is
       taken */
    ds__tls.upper_locked++;
    if (!slot->id)
        r = ds__stream_create(device, DS__STREAM_LEGACY, 0, 0, NULL, slot);
    ds__tls.upper_locked--;
    if (r == DS_OK)
        *out = *slot;
    ds__mutex_unlock(&ds__g.mutex);
    return r;
}

static ds_result ds__per_thread(ds_device device, ds_stream *out) {
    ds__thread *t = ds__thread_state();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    ds_stream *slot = &t->own[ds__device_ordinal(device)];
    ds_result r =
        slot->id ? DS_OK : ds__stream_create(device, DS__STREAM_PER_THREAD, 0, 0, NULL, slot);
    if (r == DS_OK)
        *out = *slot;
    return r;
}

static ds_result ds__stream_default_get(ds_device device, ds_stream *out) {
    return ds__g.per_thread_default ? ds__per_thread(device, out)
                                    : ds__stream_legacy_get(device, out);
}

DSDEF ds_result(ds_stream_get_legacy)(ds_device device, ds_stream *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_get_legacy");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__stream_legacy_get(device, out);
}

DSDEF ds_result(ds_stream_get_per_thread)(ds_device device, ds_stream *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_get_per_thread");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__per_thread(device, out);
}

DSDEF ds_result(ds_stream_get_default)(ds_device device, ds_stream *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_get_default");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__stream_default_get(device, out);
}

#endif
