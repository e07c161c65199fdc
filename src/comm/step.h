/* comm/step.h - participants and the list of steps.

   Builds the list of steps of a collective. ds__work_begin opens a ds__work; ds__work_alloc
   returns memory that lasts until ds__work_end (join.h). ds__participant_open checks a tensor and
   finds its lane and region. ds__step_add appends a step, and ds__come_after makes the next step
   of a lane wait for an earlier step.

   Invariants: all lanes of a list belong to one driver. A lane keeps its stream alive until
   ds__work_end. ds__lane_add uses a hazard pointer (pin) for the first three lanes and a
   reference for the others, because a thread has eight hazard pointers. After out-of-memory,
   w->r holds the first failure, and functions that return an index return DS__NO_INDEX
   (ds__step_temporary_add: 0).
   Locks: expects no lock. ds__side_unref and the look-up of a tensor take ds__c.lock for a few
   instructions. No driver call runs under a lock of this room.
   Threads: caller's threads, each with its own ds__work. */
#ifndef DS__COMM_STEP_H
#define DS__COMM_STEP_H

#include "../base/memory_table.h"
#include "../base/driver.h"
#include "../core/internal.h"
#include "../tensor/internal.h"
#include "types.h"

/* Opens a ds__work. Assigns each member, here and in ds__step_add: a memset of this size takes
   longer than a small step. */
static void ds__work_begin(ds__work *w, const ds_comm_options *options) {
    w->options = options;
    w->lane = w->lane_first;
    w->region = w->region_first;
    w->step = w->step_first;
    w->location = w->location_first;
    w->link = NULL;
    w->strided = NULL;
    w->in = w->in_first;
    w->lane_room = w->step_room = w->location_room = 8;
    w->region_room = 12;
    w->lanes = w->regions = w->steps = w->links = w->link_room = w->locations = w->strideds =
        w->strided_room = w->most = w->temporaries = 0;
    w->forked = 0;
    w->progress = DS__WORK_LISTED;
    w->r = DS_OK;
    w->chunks = NULL;
    w->at = w->first;
    w->left = sizeof w->first;
}

/* Returns memory until ds__work_end, not initialised. NULL: out of memory, also in w->r. */
static void *ds__work_alloc(ds__work *w, size_t count, size_t size) {
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

/* Doubles the room of an array of the list; 0: out of memory. `array` is the address of the array's
   pointer. */
__attribute__((noinline)) static int ds__more_room(ds__work *w, void *array, size_t count,
                                                   size_t *room, size_t size) {
    void *at;
    size_t n = *room ? 2 * *room : 8;
    void *fresh = ds__work_alloc(w, n < UINT32_MAX ? n : SIZE_MAX, size);
    if (!fresh)
        return 0;
    memcpy(&at, array, sizeof at);
    if (count)
        memcpy(fresh, at, count * size);
    memcpy(array, &fresh, sizeof fresh);
    *room = n;
    return 1;
}

/* Appends an element to an array of the list, not initialised; NULL: out of memory. */
#define DS__MORE(w, what)                                                                       \
    (DS__LIKELY((w)->what##s < (w)->what##_room) ||                                             \
             ds__more_room((w), &(w)->what, (w)->what##s, &(w)->what##_room, sizeof *(w)->what) \
         ? &(w)->what[(w)->what##s++]                                                           \
         : NULL)

/* Returns a stream of ds__side_ref to the table. */
static void ds__side_unref(ds_device device, int number) {
    ds__spinlock_lock(&ds__c.lock);
    ds__sides_of[ds__backend_of(device)][device.index]->taken[number] = 0;
    ds__spinlock_unlock(&ds__c.lock);
}

static int ds__same_device(ds_device a, ds_device b) {
    return a.type == b.type && a.index == b.index;
}

/* Returns a name as text, without a leading "the". */
static const char *ds__name_text_bare(ds__name name) {
    if (strncmp(name.words, "the ", 4) == 0)
        name.words += 4;
    return ds__name_text(name);
}

/* Returns the lane with this stream; DS__NO_INDEX: there is none, or it is on another device than
   the tensor (ds__lane_check reports that). */
static uint32_t ds__lane_index(const ds__work *w, ds_stream stream, ds_device device) {
    for (uint32_t i = 0; i < w->lanes; i++)
        if (w->lane[i].stream.id == stream.id &&
            (device.type == DS_DEVICE_HOST || ds__same_device(w->lane[i].device, device)))
            return i;
    return DS__NO_INDEX;
}

/* Checks that a stream is on the device of its tensor, and its driver that of the other lanes. */
static inline ds_result ds__lane_check(const ds__work *w, const ds__stream *s, ds__name name,
                                       ds_device device) {
    if (device.type != DS_DEVICE_HOST && !ds__same_device(s->device, device))
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "the stream of the %s is on %s:%d, not on %s:%d",
                        ds__name_text_bare(name), ds__type_name(s->device.type), s->device.index,
                        ds__type_name(device.type), device.index);
    if (w->lanes && w->lane[0].device.type != s->device.type)
        return ds__fail(DS_ERR_CROSS_DRIVER, "the %s is on %s:%d, but others are on %s:%d",
                        ds__name_text_bare(name), ds__type_name(s->device.type), s->device.index,
                        ds__type_name(w->lane[0].device.type), w->lane[0].device.index);
    return DS_OK;
}

/* Appends a lane and returns its index; DS__NO_INDEX: out of memory. Takes over the pin of the
   stream. side: the number of a stream of ds__side_ref plus 1, or 0. */
static inline uint32_t ds__lane_add(ds__work *w, ds__stream *s, ds_stream stream, int side) {
    ds__clane *lane = DS__MORE(w, lane);
    int pinned = lane && !side && w->lanes <= DS__PINS / 2 - 1;
    if (lane)
        *lane = (ds__clane){ s, stream, s->device, DS__NO_INDEX, pinned, 0, side };
    if (lane && !pinned)
        ds__ref(s);
    if (!pinned)
        ds__stream_unpin(s);
    return lane ? (uint32_t)w->lanes - 1 : DS__NO_INDEX;
}

/* Finds or appends the lane of a tensor on a device: the given stream, else the current stream of
   the device. *out is DS__NO_INDEX for a tensor on the host without a stream. */
static ds_result ds__lane_find(ds__work *w, ds_stream given, ds__name name, ds_device device,
                               uint32_t *out) {
    *out = DS__NO_INDEX;
    if (!given.id && device.type == DS_DEVICE_HOST)
        return DS_OK;
    ds_result r = given.id ? DS_OK : ds__stream_current(device, &given);
    if (r < 0)
        return r;
    *out = ds__lane_index(w, given, device);
    if (*out != DS__NO_INDEX)
        return DS_OK;
    ds__stream *s = ds__stream_pin(given);
    if (!s)
        return ds__fail_append(DS_ERR_INVALID_HANDLE, " (the stream of the %s)",
                               ds__name_text_bare(name));
    r = ds__lane_check(w, s, name, device);
    if (r < 0) {
        ds__stream_unpin(s);
        return r;
    }
    *out = ds__lane_add(w, s, given, 0);
    return *out == DS__NO_INDEX ? w->r : DS_OK;
}

/* Returns the stream that the options have for a tensor of a list, or (DS__NO_LIST) for the single
   tensor; a zero handle if they have none. */
static ds_stream ds__given_stream(const ds_comm_options *o, size_t index) {
    if (index == DS__NO_LIST)
        return o->stream;
    return index < o->stream_count ? o->streams[index] : (ds_stream){ 0 };
}

/* Checks that a description agrees with the allocation that contains its memory, if devstream knows
   one. *direct: 1 if kernels can use the memory. */
static ds_result ds__participant_memory(const ds__dims *d, ds__name name, int *direct) {
    ds_pointer_info info;
    *direct = d->device.type != DS_DEVICE_HOST;
    if (!d->count || !ds__memory_table_find(d->first, &info))
        return DS_OK;
    ptrdiff_t at = (ptrdiff_t)((uintptr_t)d->first - (uintptr_t)info.base);
    DS__REQUIRE(at >= -d->low && d->high <= (ptrdiff_t)info.size - at,
                "%s: %td bytes at offset %td exceed the allocation of %zu bytes",
                ds__name_text(name), d->high - d->low, at + d->low, info.size);
    if (info.kind == DS_MEMORY_DEVICE && d->device.type != DS_DEVICE_HOST &&
        !ds__same_device(info.device, d->device))
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "the device of %s is %s:%d, but its memory is on %s:%d",
                        ds__name_text(name), ds__type_name(d->device.type), d->device.index,
                        ds__type_name(info.device.type), info.device.index);
    if (info.kind == DS_MEMORY_DEVICE && d->device.type == DS_DEVICE_HOST &&
        info.device.type != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "the device of %s is the host, but its memory is on %s:%d",
                        ds__name_text(name), ds__type_name(info.device.type), info.device.index);
    *direct = 1; /* known memory of the host is pinned */
    return DS_OK;
}

/* Returns the layout of a tensor, or NULL. */
__attribute__((cold, noinline)) static const ds__layout *ds__layout_of(ds__work *w,
                                                                       const ds__dims *d) {
    size_t dims = sizeof(int64_t[2]) * (size_t)d->ndim;
    ds__layout *l = d->count ? ds__work_alloc(w, 1, sizeof *l + dims) : NULL;
    if (!l)
        return NULL;
    l->item = d->item;
    l->ndim = d->ndim;
    memcpy(l->dims, d->shape, dims / 2);
    memcpy(l->dims + d->ndim, d->strides, dims / 2);
    return l;
}

/* Reads and checks a tensor, and finds its lane and region. stream: as in ds__given_stream. */
static ds_result ds__participant_open(ds__work *w, const ds_tensor *t, ds__name name, size_t stream,
                                      int written, ds__participant *p) {
    uint32_t lane;
    int direct;
    unsigned flags = 0;
    ds_result r = ds__tensor_read(t, name, &p->d);
    if (r < 0)
        return r;
    if (written)
        (void)ds__tensor_share(t, NULL, &flags);
    DS__REQUIRE(!(flags & DS_TENSOR_READ_ONLY), "%s is read-only", ds__name_text(name));
    for (int i = 0; i < p->d.ndim && written; i++)
        DS__REQUIRE(p->d.strides[i] || p->d.shape[i] < 2 || !p->d.count,
                    "%s has %lld elements at one address: dimension %d has the stride 0",
                    ds__name_text(name), (long long)p->d.shape[i], i);
    r = ds__participant_memory(&p->d, name, &direct);
    if (r == DS_OK)
        r = ds__lane_find(w, ds__given_stream(w->options, stream), name, p->d.device, &lane);
    if (r < 0)
        return r;
    ds__region *g = DS__MORE(w, region);
    if (!g)
        return w->r;
    *g = (ds__region){ p->d.first, p->d.bytes, NULL, lane, direct, 0, p->d.device };
    if (ds__observer_is_set())
        g->layout = ds__layout_of(w, &p->d);
    p->at = (ds__location){ (uint32_t)w->regions - 1, 0 };
    return DS_OK;
}

/* Opens a tensor that is read. index: its place in its list and in options->streams, or
   DS__NO_LIST. */
static ds_result ds__input_open(ds__work *w, const ds_tensor *t, const char *words, size_t index,
                                ds__participant *p) {
    return ds__participant_open(w, t, ds__name_of(words, index), index, 0, p);
}

/* As ds__input_open, for a tensor that is written. */
static ds_result ds__output_open(ds__work *w, const ds_tensor *t, const char *words, size_t index,
                                 ds__participant *p) {
    return ds__participant_open(w, t, ds__name_of(words, index), index, 1, p);
}

/* Assigns the first lane to host memory without a stream. Called when all participants are open. */
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

/* Appends a temporary region on the device of a lane, and returns its location. */
static ds__location ds__temporary_add(ds__work *w, uint32_t lane, size_t bytes) {
    ds__region *g = DS__MORE(w, region);
    if (!g)
        return (ds__location){ 0, 0 };
    *g = (ds__region){ NULL, bytes, NULL, lane, 1, 1, w->lane[lane].device };
    w->temporaries++;
    return (ds__location){ (uint32_t)w->regions - 1, 0 };
}

/* Appends a step and returns its index; DS__NO_INDEX: out of memory. */
static uint32_t ds__step_add(ds__work *w, int kind, uint32_t lane, ds__location dst,
                             ds__location src) {
    ds__cstep *s = DS__MORE(w, step);
    if (!s)
        return DS__NO_INDEX;
    s->kind = (uint8_t)kind;
    s->reduction = (ds__reduction){ 0 };
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

/* Appends a copy of consecutive bytes. Returns the step; DS__NO_INDEX: out of memory, or no
   bytes. */
static uint32_t ds__step_copy_add(ds__work *w, uint32_t lane, ds__location dst, ds__location src,
                                  size_t bytes) {
    uint32_t i = w->r < 0 || !bytes ? DS__NO_INDEX : ds__step_add(w, DS__STEP_COPY, lane, dst, src);
    if (i == DS__NO_INDEX)
        return i;
    w->step[i].width = w->step[i].dst_pitch = w->step[i].src_pitch = bytes;
    w->step[i].height = 1;
    return i;
}

/* Appends a reduction of the inputs at w->location[first] and all later locations. Returns the
   step; DS__NO_INDEX: out of memory. */
static uint32_t ds__step_reduce_add(ds__work *w, uint32_t lane, ds__location dst, uint32_t first,
                                    ds__reduction reduction, size_t elements) {
    uint32_t i = ds__step_add(w, DS__STEP_REDUCE, lane, dst, (ds__location){ 0, 0 });
    if (i == DS__NO_INDEX)
        return i;
    w->step[i].reduction = reduction;
    w->step[i].first = first;
    w->step[i].count = (uint32_t)w->locations - first;
    w->step[i].width = elements;
    if (w->step[i].count > w->most)
        w->most = w->step[i].count;
    return i;
}

/* Makes the next step of the lane, and therefore all later ones, wait for a step. */
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

/* Returns 1 if kernels of a lane can use the region. On a virtual clock, kernels occupy no links,
   so memory of other devices must be copied. */
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
