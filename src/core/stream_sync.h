/* core/stream_sync.h - streams: queries, host waits, names in errors.

   Queries a stream and waits for it on the host (ds__stream_sync). ds__stream_error adds the
   stream's label to an error. The ds__sync_* functions report a wait on a stream to the sync debug
   mode.

   Invariants: while a call waits, its hazard pointer keeps the stream from being freed. The
   capture query of the sync debug mode leaves the thread's last error as it was (ds__tls.mute).
   Locks: ds__g.label_lock, only to read the label. No lock is held over a wait; ds__stream_sync
   reclaims afterwards, so its caller holds none.
   Threads: any. */
#ifndef DS__CORE_STREAM_SYNC_H
#define DS__CORE_STREAM_SYNC_H

#include "../base/drive.h"
#include "../base/observe.h"
#include "init.h"
#include "thread.h"
#include "sync_debug.h"
#include "device.h"
#include "stream.h"

__attribute__((cold, noinline)) static ds_result ds__stream_error_named(const ds__stream *s,
                                                                        ds_result r) {
    ds__spinlock_lock(&ds__g.label_lock);
    r = ds__name_object(r, "stream", s->label);
    ds__spinlock_unlock(&ds__g.label_lock);
    return r;
}

static inline ds_result ds__stream_error(const ds__stream *s, ds_result r) {
    return DS__LIKELY(r >= 0) ? r : ds__stream_error_named(s, r);
}

/* Reports a wait: "waits for stream "x" of cpu:0". Takes label_lock, since the label can change. */
__attribute__((cold, noinline)) static ds_result ds__sync_tell_stream(const ds__stream *s,
                                                                      const char *what) {
    char label[260] = "";
    ds__spinlock_lock(&ds__g.label_lock);
    if (s->label)
        snprintf(label, sizeof label, " \"%s\"", s->label);
    ds__spinlock_unlock(&ds__g.label_lock);
    return ds__sync_tell("%s%s of %s:%d", what, label, ds__type_name(s->device.type),
                         s->device.index);
}

__attribute__((cold, noinline)) static ds_result ds__sync_watch_stream(ds_stream stream) {
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    /* for an invalid handle, the call itself reports the error */
    ds_result r = s ? ds__sync_tell_stream(s, "waits for the stream") : DS_OK;
    if (s)
        ds__stream_unpin(s);
    return r;
}

/* Returns 1 if the stream captures: the operation becomes a node and does not wait. */
static int ds__sync_is_captured(ds__stream *s) {
    ds_capture_info info;
    if (!atomic_load(&ds__g.capture_count))
        return 0;
    memset(&info, 0, sizeof info);
    ds__tls.mute++;
    ds_result r = s->driver->capture_query(s->native, &info);
    ds__tls.mute--;
    return r < 0 || info.status != DS_CAPTURE_NONE;
}

static inline ds_result ds__stream_sync(ds_stream stream, uint64_t timeout_ns) {
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    ds_device device = s->device;
    ds_result r = s->driver->stream_synchronize(s->native, timeout_ns);
    r = ds__drive_failure(r, device, stream.id);
    if (DS__UNLIKELY(r < 0))
        r = ds__stream_error(s, r);
    ds__unpin_inline(&ds__g.streams, s);
    ds__retired_reclaim();
    return ds__observer_notify_wait(r, stream, (ds_event){ 0 }, device);
}

DSDEF ds_result(ds_stream_query)(ds_stream stream) {
    DS__ENTER("ds_stream_query");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = s->driver->stream_query(s->native);
    r = ds__stream_error(s, ds__drive_failure(r, s->device, stream.id));
    ds__stream_unpin(s);
    return ds__observer_notify_wait(r, stream, (ds_event){ 0 },
                                    (ds_device){ DS_DEVICE_CURRENT, 0 });
}

DSDEF ds_result(ds_stream_synchronize)(ds_stream stream) {
    ds_result r = ds__api_enter_inline("ds_stream_synchronize");
    if (DS__UNLIKELY(ds__sync_watched()) && r == DS_OK)
        r = ds__sync_watch_stream(stream);
    return DS__UNLIKELY(r < 0) ? r : ds__stream_sync(stream, DS__FOREVER);
}

DSDEF ds_result(ds_stream_synchronize_for)(ds_stream stream, uint64_t timeout_ns) {
    DS__ENTER("ds_stream_synchronize_for");
    ds_result r = DS_OK;
    if (DS__UNLIKELY(ds__sync_watched()) && timeout_ns)
        r = ds__sync_watch_stream(stream);
    if (r < 0)
        return r;
    return ds__stream_sync(stream, timeout_ns < DS__FOREVER ? timeout_ns : DS__FOREVER - 1);
}

#endif
