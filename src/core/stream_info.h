/* core/stream_info.h - streams: getters, labels, equality.

   Returns the device, flags, priority and label of a stream, replaces its label, and compares
   two streams (ds_stream_equal).

   Invariants: streams are equal if the driver names the same queue for both, so a wrapper equals
   the stream that it wraps.
   Locks: ds__g.label_lock guards s->label; a reader holds it until the text is copied. No driver
   call or user code runs under it.
   Threads: any; the label may be replaced while other threads read it. ds_stream_set_label
   invokes the range hook on the calling thread, without a lock. */
#ifndef DS__CORE_STREAM_INFO_H
#define DS__CORE_STREAM_INFO_H

#include "init.h"
#include "range_api.h"
#include "stream.h"
#include "stream_sync.h"
#include "stream_wrap.h"

DSDEF ds_result(ds_stream_get_device)(ds_stream stream, ds_device *out) {
    ds_result r;
    if (out)
        memset(out, 0, sizeof *out);
    ds__stream *s = ds__stream_pin_to_read("ds_stream_get_device", stream, out != NULL, &r);
    if (!s)
        return r;
    *out = s->device;
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_get_flags)(ds_stream stream, unsigned *out) {
    ds_result r;
    if (out)
        *out = 0;
    ds__stream *s = ds__stream_pin_to_read("ds_stream_get_flags", stream, out != NULL, &r);
    if (!s)
        return r;
    *out = s->flags;
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_get_priority)(ds_stream stream, int *out_effective, int *out_requested) {
    ds_result r;
    if (out_effective)
        *out_effective = 0;
    if (out_requested)
        *out_requested = 0;
    ds__stream *s = ds__stream_pin_to_read("ds_stream_get_priority", stream, 1, &r);
    if (!s)
        return r;
    if (out_effective)
        *out_effective = s->priority;
    if (out_requested)
        *out_requested = s->requested;
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_get_multiprocessors)(ds_stream stream, int *out) {
    ds_result r;
    if (out)
        *out = 0;
    ds__stream *s =
        ds__stream_pin_to_read("ds_stream_get_multiprocessors", stream, out != NULL, &r);
    if (!s)
        return r;
    *out = s->share;
    if (!s->share) {
        ds_device_properties all;
        memset(&all, 0, sizeof all);
        r = s->driver->device_properties(s->device.index, &all);
        *out = all.multiprocessors;
    }
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_get_label)(ds_stream stream, char *out, size_t size) {
    ds_result r;
    if (out && size)
        out[0] = 0;
    ds__stream *s = ds__stream_pin_to_read("ds_stream_get_label", stream, out && size, &r);
    if (!s)
        return r;
    ds__spinlock_lock(&ds__g.label_lock);
    snprintf(out, size, "%s", s->label ? s->label : "");
    ds__spinlock_unlock(&ds__g.label_lock);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_set_label)(ds_stream stream, const char *label) {
    DS__ENTER("ds_stream_set_label");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    char *copy = label ? ds__copy_text(label, 255) : NULL;
    if (label && !copy) {
        ds__stream_unpin(s);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a label");
    }
    ds__spinlock_lock(&ds__g.label_lock);
    char *former = s->label;
    s->label = copy;
    ds__spinlock_unlock(&ds__g.label_lock);
    ds__host_free(former);
    ds__tell_stream_label(s, label);
    ds__stream_unpin(s);
    return DS_OK;
}

DSDEF int(ds_stream_equal)(ds_stream a, ds_stream b) {
    if (ds__api_enter("ds_stream_equal") < 0)
        return 0;
    ds__stream *x = ds__pin(&ds__g.streams, a.id);
    ds__stream *y = ds__pin(&ds__g.streams, b.id);
    int equal = x && y && x->driver == y->driver && x->device.index == y->device.index &&
                x->driver->stream_identity(x->native) == y->driver->stream_identity(y->native);
    if (x)
        ds__stream_unpin(x);
    if (y)
        ds__stream_unpin(y);
    return equal;
}

#endif
