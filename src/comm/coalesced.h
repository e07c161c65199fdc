/* comm/coalesced.h - broadcast of many tensors in few buffers.

   Implements ds_comm_broadcast_coalesced. The tensors of one buffer are packed at the source,
   each without gaps, and copied to one buffer on each device. The results are views of these
   buffers.

   Invariants: each tensor travels in one buffer, and a buffer holds tensors of one data type.
   Each tensor starts at a multiple of 16 bytes in the buffer. The last tensor may exceed the
   buffer size. A tensor that is alone in its buffer and has no gaps is not packed.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__COMM_COALESCED_H
#define DS__COMM_COALESCED_H

#include "../core/internal.h"
#include "../tensor/internal.h"
#include "kernel.h"
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "broadcast.h"

/* The tensors that a buffer takes: those of the type of the first one that is left, until their
   sum reaches the size. batch[i]: 0: left. */
static size_t ds__batch_next(const ds__participant *in, size_t count, uint32_t *batch,
                             uint32_t number, size_t buffer_size, size_t *bytes) {
    size_t first = 0;
    size_t n = 0;
    *bytes = 0;
    while (first < count && batch[first])
        first++;
    for (size_t i = first; i < count && (!n || *bytes < buffer_size); i++) {
        if (batch[i] || !(ds_dtype_equal)(in[i].d.dtype, in[first].d.dtype))
            continue;
        batch[i] = number;
        n++;
        *bytes += (in[i].d.bytes + 15) & ~(size_t)15; /* each on a multiple of 16 */
    }
    return n;
}

/* Views of one flat tensor, which goes when they go; each like its original. */
static ds_result ds__batch_views(const ds__participant *in, size_t count, const uint32_t *batch,
                                 uint32_t number, const ds_tensor *flat, ds_tensor **out) {
    size_t at = 0;
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        if (batch[i] != number)
            continue;
        ds__dims d = in[i].d;
        d.given = flat->device;
        d.first = (char *)((uintptr_t)flat->data + at); /* NULL when all are empty */
        ds__dense_like(&in[i].d, d.strides);
        r = ds__tensor_show(flat, &d, &out[i]);
        at += (in[i].d.bytes + 15) & ~(size_t)15;
    }
    return r;
}

/* One buffer to all devices. */
static ds_result ds__batch_send(ds__work *w, const ds_comm_options *o, const ds__participant *in,
                                size_t count, const uint32_t *batch, uint32_t number, size_t n,
                                size_t bytes, const ds_device *devices, size_t device_count,
                                const ds_device *skip, ds_tensor **out) {
    int64_t size = (int64_t)bytes;
    int64_t one[1] = { 1 };
    int64_t dense[DS_TENSOR_MAX_DIMS];
    ds__location src = { 0, 0 };
    uint32_t packed = DS__NO_INDEX;
    uint32_t home = 0;
    size_t at = 0;
    ds__dims like;
    ds_result r = ds__dims_read(ds_uint8(), 1, &size, NULL, "the buffer", -1, &like);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        if (batch[i] != number)
            continue;
        const ds__participant *p = &in[i];
        home = ds__lane_of(w, p);
        if (!p->d.bytes)
            continue;
        ds__dense_like(&p->d, dense);
        if (n == 1 && ds__same_strides(&p->d, dense)) { /* it is its own buffer */
            src = ds__location_of(p);
            size = (int64_t)p->d.bytes;
            break;
        }
        if (!at)
            src = (ds__location){ ds__step_temporary_add(w, home, bytes), 0 };
        uint32_t step =
            ds__copy_add(w, home, (ds__location){ src.region, (ptrdiff_t)at }, dense,
                         ds__location_of(p), p->d.strides, p->d.ndim, p->d.shape, p->d.item);
        if (step != DS__NO_INDEX)
            packed = step;
        at += (p->d.bytes + 15) & ~(size_t)15;
        r = w->r;
    }
    ds__participant *to = ds__parties_alloc(w, device_count);
    ds__participant from = { home, src.region, 0, like };
    if (r == DS_OK)
        r = ds__dims_read(ds_uint8(), 1, &size, NULL, "the buffer", -1, &from.d);
    size_t made = 0;
    if (r == DS_OK && !to)
        r = w->r;
    for (size_t d = 0; d < device_count && r == DS_OK; d++) {
        ds_tensor *flat = NULL;
        if (skip && ds__same_device(devices[d], *skip))
            continue;
        r = ds__result_make(w, o, &like, devices[d], (int64_t)d, (int64_t)d, &to[made], &flat);
        if (r < 0) {
            if (flat)
                ds__results_drop(&flat, 1);
            break;
        }
        if (to[made].lane == DS__NO_INDEX)
            w->region[to[made].region].lane = home;
        r = ds__batch_views(in, count, batch, number, flat, &out[d * count]);
        ds__results_drop(&flat, 1);
        if (r == DS_OK)
            r = w->r;
        made++;
    }
    from.d.device = in[0].d.device;
    if (r < 0 || !size || ds__broadcast_follow(w, o, &from, packed, to, made))
        return r < 0 ? r : w->r;
    for (size_t d = 0; d < made && w->r == DS_OK; d++) {
        uint32_t lane = ds__lane_of(w, &to[d]);
        ds__come_after(w, lane, packed);
        ds__copy_add(w, lane, ds__location_of(&to[d]), one, src, one, 1, &size, 1);
    }
    return w->r;
}

DSDEF ds_result(ds_comm_broadcast_coalesced)(const ds_tensor *const *tensors, size_t count,
                                             const ds_device *devices, size_t device_count,
                                             size_t buffer_size, const ds_comm_options *options,
                                             ds_tensor **out) {
    ds__work w;
    size_t results;
    DS__ENTER("ds_comm_broadcast_coalesced");
    ds__work_begin(&w);
    DS__REQUIRE(!__builtin_mul_overflow(count, device_count, &results) &&
                    results < SIZE_MAX / sizeof *out,
                "%zu tensors on %zu devices exceed the address space", count, device_count);
    if (out)
        memset(out, 0, results * sizeof *out);
    DS__COMM_READY();
    DS__REQUIRE(device_count, "there are no devices to broadcast to");
    DS__REQUIRE(devices && (!count || (tensors && out)), "%s is NULL",
                !devices  ? "devices"
                : tensors ? "out"
                          : "tensors");
    if (!buffer_size)
        buffer_size = (size_t)10 << 20;
    ds__participant *in = ds__parties_alloc(&w, count);
    uint32_t *batch = in ? ds__host_alloc((count + 1) * sizeof *batch) : NULL;
    ds_device *where = batch ? ds__host_alloc(device_count * sizeof *where) : NULL;
    ds_result r = !in     ? DS_ERR_OUT_OF_MEMORY
                  : where ? DS_OK
                          : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu tensors", count);
    for (size_t i = 0; i < device_count && r == DS_OK; i++)
        r = ds__comm_device(devices[i], "the device", (int64_t)i, &where[i]);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__participant_open(&w, options, tensors[i], "the tensor", (int64_t)i, -1, 0, &in[i]);
        if (r == DS_OK && !ds__same_device(in[i].d.device, in[0].d.device))
            r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                         "the tensor at index %zu is on %s:%d, the first one on %s:%d", i,
                         ds__type_name(in[i].d.device.type), in[i].d.device.index,
                         ds__type_name(in[0].d.device.type), in[0].d.device.index);
    }
    int alias = count && options->flags & DS_COMM_ALIAS;
    /* streams of all devices, before anything is laid out */
    size_t made = 0; /* devices that get copies */
    for (size_t d = 0; d < device_count && r == DS_OK; d++) {
        uint32_t lane;
        int shows = alias && ds__same_device(where[d], in[0].d.device);
        if (!shows)
            r = ds__lane_find(&w, ds__given_stream(options, (int64_t)d), "result", (int64_t)d,
                              where[d], &lane);
        made += !shows;
        for (size_t i = 0; i < count && shows && r == DS_OK; i++)
            r = ds__tensor_show(tensors[i], &in[i].d, &out[d * count + i]);
    }
    if (r == DS_OK && count && made)
        r = ds__work_settle(&w);
    uint32_t number = 0;
    for (size_t left = made ? count : 0; left && r == DS_OK;) {
        size_t bytes;
        size_t n = ds__batch_next(in, count, batch, ++number, buffer_size, &bytes);
        r = ds__batch_send(&w, options, in, count, batch, number, n, bytes, where, device_count,
                           alias ? &in[0].d.device : NULL, out);
        left -= n;
    }
    if (r == DS_OK && made)
        r = ds__work_run(&w);
    if (r < 0 && out)
        ds__results_drop(out, results);
    ds__work_end(&w);
    ds__host_free(where);
    ds__host_free(batch);
    return r;
}

#endif
