/* core/copy_sync.h - synchronous copies and fills.

   Enqueues a copy or fill on the default stream of the thread's current device and waits for it
   (ds_copy_sync, ds_fill_sync), with the order of cudaMemcpy: after the earlier work of that stream
   and, if an operand is on another device, of that device's default stream.

   Invariants: arguments are checked, and the wait is reported to the sync debug mode, before the
   host waits or work is enqueued. A default stream that captures gets no node.
   Locks: none. The host waits without a lock.
   Threads: any. */
#ifndef DS__CORE_COPY_SYNC_H
#define DS__CORE_COPY_SYNC_H

#include "copy.h"
#include "memory.h"
#include "stream_default.h"
#include "stream_sync.h"
#include "sync_debug.h"

/* Returns the default stream of the thread's current device, pinned. NULL: *out has the error. */
static ds__stream *ds__copy_sync_pin(ds_stream *stream, ds_result *out) {
    *out = ds__stream_default_get(ds__thread_device(), stream);
    ds__stream *s = *out == DS_OK ? ds__stream_pin(*stream) : NULL;
    if (!s && *out == DS_OK)
        *out = DS_ERR_INVALID_HANDLE;
    return s;
}

/* Waits for the default stream of the device that has the memory, unless that is `current`. */
static ds_result ds__copy_sync_await(ds_device current, const void *ptr) {
    ds_pointer_info info;
    ds_stream stream;
    ds_result r = ds__memory_table_find(ptr, &info) ? DS_OK : ds__pointer_find(ptr, &info);
    if (r < 0 || info.kind != DS_MEMORY_DEVICE ||
        (info.device.type == current.type && info.device.index == current.index))
        return r;
    r = ds__stream_default_get(info.device, &stream);
    return r == DS_OK ? ds__stream_sync(stream, DS__FOREVER) : r;
}

/* Does what precedes the submission: reports the wait, lets the driver refuse a stream that
   captures, and waits for the other devices. src NULL: there is one operand. */
static ds_result ds__copy_sync_begin(ds__stream *s, const void *dst, const void *src) {
    ds_result r = DS_OK;
    if (ds__sync_is_captured(s))
        r = ds__stream_error(s, s->driver->stream_synchronize(s->native, DS__FOREVER));
    else if (ds__sync_watched())
        r = ds__sync_tell_stream(s, "waits for the stream");
    if (r == DS_OK)
        r = ds__copy_sync_await(s->device, dst);
    return r == DS_OK && src ? ds__copy_sync_await(s->device, src) : r;
}

DSDEF ds_result(ds_copy_sync)(void *dst, const void *src, size_t size) {
    DS__ENTER("ds_copy_sync");
    if (!size)
        return DS_OK;
    ds_result r;
    ds_stream stream;
    ds__stream *s = ds__copy_sync_pin(&stream, &r);
    if (!s)
        return r;
    ds__op op = ds__op_init(DS__OP_COPY);
    r = ds__copy_op(s->driver, &op, &DS__COPY_ROW(dst, src, size));
    if (r == DS_OK)
        r = ds__copy_sync_begin(s, dst, src);
    if (r == DS_OK)
        r = ds__copy_submit(s, &op);
    ds__stream_unpin(s);
    return r == DS_OK ? ds__stream_sync(stream, DS__FOREVER) : r;
}

DSDEF ds_result(ds_fill_sync)(void *ptr, uint32_t value, size_t value_size, size_t count) {
    DS__ENTER("ds_fill_sync");
    ds_result r;
    ds_stream stream;
    ds__stream *s = ds__copy_sync_pin(&stream, &r);
    if (!s)
        return r;
    ds__fill_request fill = ds__fill_row(ptr, value, value_size, count);
    ds__op op = ds__op_init(DS__OP_FILL);
    r = ds__fill_op(s->driver, &op, &fill);
    if (r == DS_OK && count)
        r = ds__copy_sync_begin(s, ptr, NULL);
    if (r == DS_OK && count)
        r = ds__stream_submit(s, &op);
    ds__stream_unpin(s);
    return r == DS_OK && count ? ds__stream_sync(stream, DS__FOREVER) : r;
}

#endif
