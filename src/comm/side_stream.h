/* comm/side_stream.h - streams for the additional lanes of plans.

   Reserves one of the library's own streams as an additional lane of a list (ds__side_lane,
   ds__side_ref). There are at most 64 such streams on each device (ds__sides).

   Invariants: a stream that is marked as taken belongs to one list until ds__side_unref. The
   handle at an index of ds__sides does not change before ds_shutdown. An idle stream is
   preferred to a new one, and a new one to a busy one. A stream that captures is never taken. If
   all streams are taken, the additional lane is the given lane itself.
   Locks: ds__side_ref takes ds__c.lock for the table alone. Streams are queried and created
   without that lock.
   Threads: caller's threads, several at the same time. ds__sides_deinit runs in ds_shutdown only
   and takes no lock. */
#ifndef DS__COMM_SIDE_STREAM_H
#define DS__COMM_SIDE_STREAM_H

#include "../core/internal.h"
#include "types.h"
#include "step.h"

/* Returns 1 if the stream has no pending work. While a capture is open, a query could invalidate
   it, so the stream only must not capture. *out_captures: 1 if it does. */
static int ds__side_is_free(ds_stream stream, int *out_captures) {
    ds_capture_info info;
    ds__stream *s = ds__stream_pin(stream);
    int good = 0;
    *out_captures = 0;
    if (!s)
        return 0;
    if (ds__captures_open()) {
        memset(&info, 0, sizeof info);
        *out_captures =
            s->driver->capture_query(s->native, &info) < 0 || info.status != DS_CAPTURE_NONE;
        good = !*out_captures;
    } else {
        good = s->driver->stream_query(s->native) == DS_OK;
    }
    ds__stream_unpin(s);
    return good;
}

/* Returns the table of a device, which is created at first use. NULL: out of memory. */
static ds__sides *ds__sides_get(ds_device device) {
    ds__sides **at = &ds__sides_of[ds__backend_of(device)][device.index];
    ds__spinlock_lock(&ds__c.lock);
    ds__sides *all = *at;
    ds__spinlock_unlock(&ds__c.lock);
    if (all)
        return all;
    ds__sides *fresh = ds__host_alloc(sizeof *fresh);
    if (!fresh) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for streams");
        return NULL;
    }
    ds__spinlock_lock(&ds__c.lock);
    if (!*at) {
        *at = fresh;
        fresh = NULL;
    }
    all = *at;
    ds__spinlock_unlock(&ds__c.lock);
    ds__host_free(fresh); /* another thread was faster */
    return all;
}

/* Marks the first stream from number `first` on that is not taken. Returns its number; -1: none. */
static int ds__side_mark(ds__sides *all, int first) {
    ds__spinlock_lock(&ds__c.lock);
    while (first < all->count && all->taken[first])
        first++;
    if (first == all->count)
        first = -1;
    else
        all->taken[first] = 1;
    ds__spinlock_unlock(&ds__c.lock);
    return first;
}

/* Takes an idle stream. Returns its number; -1: none. *busy: a taken stream with pending work, or
   -1. */
static int ds__side_take_idle(ds_device device, ds__sides *all, int *busy) {
    int captures;
    *busy = -1;
    for (int i = ds__side_mark(all, 0); i >= 0; i = ds__side_mark(all, i + 1)) {
        if (ds__side_is_free(all->at[i], &captures))
            return i;
        if (*busy < 0 && !captures)
            *busy = i;
        else
            ds__side_unref(device, i);
    }
    return -1;
}

/* Takes a new stream. *number stays -1 if the table is full. */
static ds_result ds__side_create(ds_device device, ds__sides *all, int *number) {
    ds_stream fresh = { 0 };
    ds_result r = ds__stream_create(device, DS__STREAM_NEW, 0, 0, "a plan's", &fresh);
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__c.lock);
    if (all->count < DS__SIDES) {
        all->at[all->count] = fresh;
        all->taken[all->count] = 1;
        *number = all->count++;
        fresh.id = 0;
    }
    ds__spinlock_unlock(&ds__c.lock);
    ds__stream_end(fresh);
    return DS_OK;
}

/* Takes a stream of a device: an idle one, else a new one, else a busy one. *out_number -1: all are
   taken. */
static ds_result ds__side_ref(ds_device device, ds_stream *out, int *out_number) {
    int busy;
    ds_result r = DS_OK;
    ds__sides *all = ds__sides_get(device);
    if (!all)
        return DS_ERR_OUT_OF_MEMORY;
    ds__tls.mute++;
    *out_number = ds__side_take_idle(device, all, &busy);
    ds__tls.mute--;
    if (*out_number < 0)
        r = ds__side_create(device, all, out_number);
    if (*out_number < 0)
        *out_number = busy;
    else if (busy >= 0)
        ds__side_unref(device, busy);
    if (*out_number < 0)
        return r;
    *out = all->at[*out_number];
    return DS_OK;
}

/* Appends a lane on the device of lane `like`, and returns its index. If all streams are taken, it
   is `like` itself: two lanes on one stream only take longer. On failure, 0 and w->r. */
static uint32_t ds__side_lane(ds__work *w, uint32_t like) {
    ds_stream stream = { 0 };
    ds_device device = w->lane[like].device;
    uint32_t lane = DS__NO_INDEX;
    int number = -1;
    ds_result r = ds__side_ref(device, &stream, &number);
    if (r == DS_OK && number < 0)
        return like;
    if (r == DS_OK) {
        ds__stream *s = ds__stream_pin(stream);
        if (s)
            lane = ds__lane_add(w, s, stream, number + 1);
        if (lane != DS__NO_INDEX)
            return lane;
        ds__side_unref(device, number);
        r = s ? w->r : DS_ERR_INVALID_HANDLE;
    }
    if (w->r == DS_OK)
        w->r = r;
    return 0;
}

#endif
