/* comm/step.h - participants and the list of steps.

   Builds the list of steps of a collective. ds__work_begin opens a ds__work; ds__work_take
   returns memory that lasts until ds__work_end (join.h). ds__participant_open checks a tensor and
   finds its lane and region. ds__step_add appends a step, and ds__come_after makes the next step
   of a lane wait for an earlier step.

   Invariants: all lanes of a list belong to one driver. A lane keeps its stream alive until
   ds__work_end. ds__lane_find uses a hazard pointer (pin) for the first three lanes and a
   reference for the others, because a thread has eight hazard pointers. After out-of-memory,
   w->r holds the first failure, and functions that return an index return DS__NO_INDEX
   (ds__step_temporary_add: 0).
   Locks: expects no lock. ds__side_give and the look-up of a tensor take ds__c.lock for a few
   instructions. No driver call runs under a lock of this room.
   Threads: caller's threads, each with its own ds__work. */
#ifndef DS__COMM_STEP_H
#define DS__COMM_STEP_H

#include "../base/memory_table.h"
#include "../base/driver.h"
#include "../core/internal.h"
#include "../tensor/internal.h"
#include "types.h"

/* Member by member, here and in ds__step_add: what compilers make of a memset of this size takes
   longer than a small step. */
static void ds__work_begin(ds__work *w) {
    w->lane = w->lane_first;
    w->region = w->region_first;
    w->step = w->step_first;
    w->spot = w->spot_first;
    w->link = NULL;
    w->strided = NULL;
    w->in = w->in_first;
    w->lane_room = w->step_room = w->spot_room = 8;
    w->region_room = 12;
    w->lanes = w->regions = w->steps = w->links = w->link_room = w->spots = w->strideds =
        w->strided_room = w->most = w->temporaries = 0;
    w->forked = 0;
    w->r = DS_OK;
    w->chunks = NULL;
    w->at = w->first;
    w->left = sizeof w->first;
}

/* Memory until ds__work_end, not initialised; NULL: there is none, and w->r says so. */
static void *ds__work_take(ds__work *w, size_t count, size_t size) {
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes < PTRDIFF_MAX / 2) {
        bytes = (bytes + 15) & ~(size_t)15;
        if (DS__UNLIKELY(bytes > w->left)) {
            size_t room = bytes > 2 * sizeof w->first ? bytes : 2 * sizeof w->first;
            void **chunk = ds__host_alloc(16 + room);
            w->left = 0;
            if (chunk) {
                *chunk = w->chunks;
                w->chunks = chunk;
                w->at = (char *)chunk + 16;
                w->left = room;
            }
        }
        if (DS__LIKELY(bytes <= w->left)) {
            void *at = w->at;
            w->at += bytes;
            w->left -= bytes;
            return at;
        }
    }
    if (w->r == DS_OK)
        w->r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the steps");
    return NULL;
}

/* Room for more elements of an array; 0: no memory. */
__attribute__((noinline)) static int ds__more_room(ds__work *w, void *array, size_t count,
                                                   size_t *room, size_t size) {
    void *at;
    size_t n = *room ? 2 * *room : 8;
    void *fresh = ds__work_take(w, n < UINT32_MAX ? n : SIZE_MAX, size);
    if (!fresh)
        return 0;
    memcpy(&at, array, sizeof at);
    if (count)
        memcpy(fresh, at, count * size);
    memcpy(array, &fresh, sizeof fresh);
    *room = n;
    return 1;
}

/* One more element of an array that grows; NULL: no memory. */
#define DS__MORE(w, what)                                                                       \
    (DS__LIKELY((w)->what##s < (w)->what##_room) ||                                             \
             ds__more_room((w), &(w)->what, (w)->what##s, &(w)->what##_room, sizeof *(w)->what) \
         ? &(w)->what[(w)->what##s++]                                                           \
         : NULL)

/* Gives a side stream of a device back. */
static void ds__side_give(ds_device device, int number) {
    ds__lock_take(&ds__c.lock);
    ds__sides_of[ds__backend_of(device)][device.index]->taken[number] = 0;
    ds__lock_give(&ds__c.lock);
}

static const char *ds__name_without_prefix(const char *what) {
    return strncmp(what, "the ", 4) == 0 ? what + 4 : what;
}

/* The lane of a party: the stream that the options give, which must be on its device, else the
   device's current one. */
static ds_result ds__lane_find(ds__work *w, ds_stream given, const char *what, int64_t index,
                               ds_device device, uint32_t *out) {
    *out = DS__NO_INDEX;
    if (!given.id && device.type == DS_DEVICE_HOST)
        return DS_OK;
    ds_result r = DS_OK;
    if (!given.id) {
        r = ds__stream_current(device, &given);
        if (r < 0)
            return r;
    }
    for (uint32_t i = 0; i < w->lanes; i++)
        if (w->lane[i].stream.id == given.id &&
            (device.type == DS_DEVICE_HOST ||
             memcmp(&w->lane[i].device, &device, sizeof device) == 0)) {
            *out = i;
            return DS_OK;
        }
    ds__stream *s = ds__stream_pin(given);
    if (!s)
        return ds__fail_append(DS_ERR_INVALID_HANDLE, " (the stream of the %s)",
                               ds__dims_nth(ds__name_without_prefix(what), index));
    if (device.type != DS_DEVICE_HOST &&
        (s->device.type != device.type || s->device.index != device.index))
        r = ds__fail(DS_ERR_DEVICE_MISMATCH, "the stream of the %s is on %s:%d, not on %s:%d",
                     ds__dims_nth(ds__name_without_prefix(what), index),
                     ds__type_name(s->device.type), s->device.index, ds__type_name(device.type),
                     device.index);
    else if (w->lanes && w->lane[0].device.type != s->device.type)
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the %s is on %s:%d, but others are on %s:%d",
                     ds__dims_nth(ds__name_without_prefix(what), index),
                     ds__type_name(s->device.type), s->device.index,
                     ds__type_name(w->lane[0].device.type), w->lane[0].device.index);
    ds__clane *lane = r == DS_OK ? DS__MORE(w, lane) : NULL;
    int pinned = lane && w->lanes <= DS__PINS / 2 - 1;
    if (lane)
        *lane = (ds__clane){ s, given, s->device, DS__NO_INDEX, pinned, 0, 0 };
    if (lane && !pinned)
        ds__ref(s);
    if (!pinned)
        ds__stream_unpin(s);
    if (!lane)
        return r < 0 ? r : w->r;
    *out = (uint32_t)w->lanes - 1;
    return DS_OK;
}

static ds_stream ds__given_stream(const ds_comm_options *o, int64_t index) {
    return index < 0                         ? o->stream
           : (size_t)index < o->stream_count ? o->streams[index]
                                             : (ds_stream){ 0 };
}

/* What devstream knows of the memory must agree with the description. */
static ds_result ds__participant_memory(const ds__dims *d, const char *what, int64_t index,
                                        int *direct) {
    ds_pointer_info info;
    *direct = d->device.type != DS_DEVICE_HOST;
    if (!d->count || !ds__memory_table_find(d->first, &info))
        return DS_OK;
    ptrdiff_t at = (ptrdiff_t)((uintptr_t)d->first - (uintptr_t)info.base);
    DS__REQUIRE(at >= -d->low && d->high <= (ptrdiff_t)info.size - at,
                "%s: %td bytes at offset %td exceed the allocation of %zu bytes",
                ds__dims_nth(what, index), d->high - d->low, at + d->low, info.size);
    if (info.kind == DS_MEMORY_DEVICE && d->device.type != DS_DEVICE_HOST &&
        (info.device.type != d->device.type || info.device.index != d->device.index))
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "the device of %s is %s:%d, but its memory is on %s:%d",
                        ds__dims_nth(what, index), ds__type_name(d->device.type), d->device.index,
                        ds__type_name(info.device.type), info.device.index);
    if (info.kind == DS_MEMORY_DEVICE && d->device.type == DS_DEVICE_HOST &&
        info.device.type != DS_DEVICE_CPU)
        return ds__fail(
            DS_ERR_DEVICE_MISMATCH, "the device of %s is the host, but its memory is on %s:%d",
            ds__dims_nth(what, index), ds__type_name(info.device.type), info.device.index);
    *direct = 1; /* known memory of the host is pinned */
    return DS_OK;
}

/* A party of what p->d says. */
static ds_result ds__participant_enter(ds__work *w, const ds_comm_options *o, const char *what,
                                       int64_t index, int64_t stream_index, ds__participant *p) {
    int direct;
    ds_result r = ds__participant_memory(&p->d, what, index, &direct);
    if (r == DS_OK)
        r = ds__lane_find(w, ds__given_stream(o, stream_index), what, index, p->d.device, &p->lane);
    if (r < 0)
        return r;
    ds__region *g = DS__MORE(w, region);
    if (!g)
        return w->r;
    *g = (ds__region){ p->d.first, p->d.bytes, p->lane, direct, 0, p->d.device };
    p->region = (uint32_t)w->regions - 1;
    return DS_OK;
}

static ds_result ds__participant_open(ds__work *w, const ds_comm_options *o, const ds_tensor *t,
                                      const char *what, int64_t index, int64_t stream_index,
                                      int written, ds__participant *p) {
    ds_result r = ds__tensor_read(t, what, index, &p->d);
    if (r < 0)
        return r;
    (void)ds__tensor_share(t, NULL, &p->flags);
    DS__REQUIRE(!written || !(p->flags & DS_TENSOR_READ_ONLY), "%s is read-only",
                ds__dims_nth(what, index));
    for (int i = 0; i < p->d.ndim && written; i++)
        DS__REQUIRE(p->d.strides[i] || p->d.shape[i] < 2 || !p->d.count,
                    "%s has %lld elements at one address: dimension %d has the stride 0",
                    ds__dims_nth(what, index), (long long)p->d.shape[i], i);
    return ds__participant_enter(w, o, what, index, stream_index, p);
}

/* All parties are known: memory of the host that nobody gave a stream goes with the first lane. */
static ds_result ds__work_settle(ds__work *w) {
    if (w->r < 0)
        return w->r;
    if (!w->lanes)
        return ds__fail(DS_ERR_INVALID_DEVICE,
                        "none of the tensors is on a device, and no stream was given");
    for (size_t i = 0; i < w->regions; i++)
        if (w->region[i].lane == DS__NO_INDEX)
            w->region[i].lane = 0;
    return DS_OK;
}

static uint32_t ds__step_temporary_add(ds__work *w, uint32_t lane, size_t bytes) {
    ds__region *g = DS__MORE(w, region);
    if (!g)
        return 0;
    *g = (ds__region){ NULL, bytes, lane, 1, 1, w->lane[lane].device };
    w->temporaries++;
    return (uint32_t)w->regions - 1;
}

/* A step at the end of the list; DS__NO_INDEX: no memory. */
static uint32_t ds__step_add(ds__work *w, int kind, uint32_t lane, ds__location dst,
                             ds__location src) {
    ds__cstep *s = DS__MORE(w, step);
    if (!s)
        return DS__NO_INDEX;
    s->kind = (uint8_t)kind;
    s->op = 0;
    s->dtype = (ds_dtype){ 0, 0, 0 };
    s->watched = 0;
    s->done.id = 0;
    s->width = s->height = s->dst_pitch = s->src_pitch = 0;
    s->strided = s->first = s->count = 0;
    s->lane = lane;
    s->after = w->lane[lane].pending;
    w->lane[lane].pending = DS__NO_INDEX;
    w->lane[lane].busy = 1;
    s->dst = dst;
    s->src = src;
    return (uint32_t)w->steps - 1;
}

/* The next step that the lane is given, and so all later ones, comes after the step. */
static void ds__come_after(ds__work *w, uint32_t lane, uint32_t step) {
    if (step == DS__NO_INDEX || w->r < 0 || w->step[step].lane == lane)
        return;
    ds__link *n = DS__MORE(w, link);
    if (!n)
        return;
    *n = (ds__link){ step, w->lane[lane].pending };
    w->lane[lane].pending = (uint32_t)w->links - 1;
    w->step[step].watched = 1;
}

/* Kernels of a lane can use the region. On a virtual clock they take no links, so what is
   elsewhere is copied. */
static int ds__step_reaches(ds__work *w, uint32_t lane, uint32_t region) {
    const ds__region *g = &w->region[region];
    const ds__clane *l = &w->lane[lane];
    int reach = 0;
    if (l->s->driver->fabric())
        return g->device.type == l->device.type && g->device.index == l->device.index;
    if (g->device.type == DS_DEVICE_HOST)
        return g->direct;
    if (g->device.index == l->device.index)
        return 1;
    ds_result r = l->s->driver->device_peer(l->device.index, g->device.index, &reach);
    if (r < 0 && w->r == DS_OK)
        w->r = r;
    return r == DS_OK && reach;
}

#endif
