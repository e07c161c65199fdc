/* comm/side_stream.h - streams for the additional lanes of plans.

   Reserves one of the library's own streams as an additional lane of a list (ds__side_lane,
   ds__side_take). There are at most 64 such streams on each device (ds__sides). Also defines the
   state of a collective that follows a plan: ds__follow, and ds__side for the input or output of
   one rank.

   Invariants: a stream that is marked as taken belongs to one list until ds__side_give. The
   handle at an index of ds__sides does not change before ds_shutdown. An idle stream is
   preferred to a new one, and a new one to a busy one. A stream that captures is never taken. If
   all streams are taken, the additional lane is the given lane itself.
   Locks: ds__side_take takes ds__c.lock for the table alone. Streams are queried and created
   without that lock.
   Threads: caller's threads, several at the same time. ds__sides_end runs in ds_shutdown only
   and takes no lock. */
#ifndef DS__COMM_SIDE_STREAM_H
#define DS__COMM_SIDE_STREAM_H

#include "../api/plan.h"
#include "../core/internal.h"
#include "../tensor/types.h"
#include "types.h"
#include "step.h"

/* A collective that has a topology: what the plan is to be, and where the data of each rank
   lies. */
typedef struct ds__side {
    ds__location spot;
    const ds__participant *p; /* NULL: the rank has none */
    uint32_t ready;           /* what reads it comes after this step */
    int apart;                /* 1: in temporary memory */
} ds__side;

typedef struct ds__follow {
    ds_plan_desc want;
    const ds_comm_options *o;
    size_t p;
    uint32_t *lane; /* of each rank the one that everybody knows */
    ds__side *in;
    ds__side *out;
    ds_reduce_op op;
    ds_dtype dtype;
} ds__follow;

/* 1: nobody would wait for another's work there. While captures are open a stream with work is
   asked nothing, and what captures is left alone. */
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

/* *out_number -1: all are in use. */
static ds_result ds__side_take(ds_device device, ds_stream *out, int *out_number) {
    ds__sides **at = &ds__sides_of[ds__backend_of(device)][device.index];
    ds__sides *fresh = NULL;
    ds_stream made = { 0 };
    ds_result r = DS_OK;
    int spare = -1;
    int captures;
    ds__lock_take(&ds__c.lock);
    ds__sides *all = *at;
    ds__lock_give(&ds__c.lock);
    if (!all && !(fresh = ds__host_alloc(sizeof *fresh)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for streams");
    if (!all) {
        ds__lock_take(&ds__c.lock);
        if (!*at) {
            *at = fresh;
            fresh = NULL;
        }
        all = *at;
        ds__lock_give(&ds__c.lock);
        ds__host_free(fresh);
    }
    *out_number = -1;
    ds__tls.mute++;
    for (int i = 0; *out_number < 0; i++) {
        ds__lock_take(&ds__c.lock);
        while (i < all->count && all->taken[i])
            i++;
        int there = i < all->count;
        if (there)
            all->taken[i] = 1;
        ds__lock_give(&ds__c.lock);
        if (!there)
            break;
        if (ds__side_is_free(all->at[i], &captures))
            *out_number = i;
        else if (spare < 0 && !captures)
            spare = i; /* busy, and better than none */
        else
            ds__side_give(device, i);
    }
    ds__tls.mute--;
    if (*out_number < 0)
        r = ds__stream_new(device, DS__STREAM_NEW, 0, 0, "a plan's", &made);
    ds__lock_take(&ds__c.lock);
    if (*out_number < 0 && r == DS_OK && all->count < DS__SIDES) {
        all->at[all->count] = made;
        all->taken[all->count] = 1;
        *out_number = all->count++;
        made.id = 0;
    }
    ds__lock_give(&ds__c.lock);
    ds__stream_end(made);
    if (*out_number < 0)
        *out_number = spare;
    else if (spare >= 0)
        ds__side_give(device, spare);
    if (*out_number >= 0)
        *out = all->at[*out_number];
    return *out_number < 0 ? r : DS_OK;
}

/* One more lane on the device of another; when all streams are in use, that one: two lanes in
   one stream only take longer. */
static uint32_t ds__side_lane(ds__work *w, uint32_t like) {
    ds_stream stream = { 0 };
    ds_device device = w->lane[like].device;
    int number = -1;
    ds_result r = ds__side_take(device, &stream, &number);
    if (r == DS_OK && number < 0)
        return like;
    ds__stream *s = r == DS_OK ? ds__stream_pin(stream) : NULL;
    ds__clane *lane = s ? DS__MORE(w, lane) : NULL;
    if (lane) {
        *lane = (ds__clane){ s, stream, device, DS__NO_INDEX, 0, 0, number + 1 };
        ds__ref(s);
    } else {
        if (r == DS_OK) {
            ds__side_give(device, number);
            r = s ? w->r : DS_ERR_INVALID_HANDLE;
        }
        if (w->r == DS_OK)
            w->r = r;
    }
    if (s)
        ds__stream_unpin(s);
    return lane ? (uint32_t)w->lanes - 1 : 0;
}

#endif
