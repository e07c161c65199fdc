/* comm/coalesced.h - broadcast of many tensors in few buffers.

   Implements ds_comm_broadcast_coalesced. The tensors are assigned to buckets, as in PyTorch. The
   tensors of a bucket are packed at the source, each without gaps, into one buffer, and copied to
   one buffer on each device. The results are views of these buffers.

   Invariants: each tensor travels in one bucket, and a bucket has tensors of one data type.
   Each tensor starts at a multiple of 16 bytes in the buffer. The last tensor may exceed the
   buffer size. A tensor that is alone in its bucket and has no gaps is not packed.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__COMM_COALESCED_H
#define DS__COMM_COALESCED_H

#include "../core/internal.h"
#include "../tensor/internal.h"
#include "kernel.h"
#include "internal.h"
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "broadcast.h"

/* One call. Result i on device d is out[d * count + i]. */
typedef struct ds__coalesced {
    const ds_tensor *const *tensors;
    ds__participant *in;
    size_t count;
    uint32_t *bucket;    /* of each tensor: the number of its bucket, from 1; 0: not assigned yet */
    ds__destination *to; /* the devices that get copies; to[k].index is d */
    size_t destinations;
    ds_tensor **out;
    ds__work w;
} ds__coalesced;

typedef struct ds__bucket {
    uint32_t number;
    size_t tensors;
    size_t bytes; /* of the buffer */
} ds__bucket;

/* Returns the bytes of a tensor in a buffer, a multiple of 16. */
static size_t ds__bucket_share(const ds__participant *p) {
    return (p->d.bytes + 15) & ~(size_t)15;
}

/* Assigns tensors to the next bucket: those with the data type of the first unassigned tensor,
   until their sum reaches the buffer size. */
static void ds__bucket_fill(ds__coalesced *a, ds__bucket *b, size_t buffer_size) {
    size_t first = 0;
    b->number++;
    b->tensors = b->bytes = 0;
    while (first < a->count && a->bucket[first])
        first++;
    for (size_t i = first; i < a->count && (!b->tensors || b->bytes < buffer_size); i++) {
        if (a->bucket[i] || !(ds_dtype_equal)(a->in[i].d.dtype, a->in[first].d.dtype))
            continue;
        a->bucket[i] = b->number;
        b->tensors++;
        b->bytes += ds__bucket_share(&a->in[i]);
    }
}

/* Packs the tensors of a bucket at the source. Returns the buffer, which may be the only tensor
   itself. *bytes: the bytes to copy from it. */
static ds__source ds__bucket_pack(ds__coalesced *a, const ds__bucket *b, size_t *bytes) {
    ds__work *w = &a->w;
    int64_t dense[DS_TENSOR_MAX_DIMS];
    ds__source buffer = { { 0, 0 }, DS__NO_INDEX };
    ptrdiff_t at = 0;
    *bytes = b->bytes;
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
        const ds__participant *p = &a->in[i];
        if (a->bucket[i] != b->number || !p->d.bytes)
            continue;
        ds__dense_like(&p->d, dense);
        if (b->tensors == 1 && ds__same_strides(&p->d, dense)) {
            *bytes = p->d.bytes;
            return (ds__source){ p->at, DS__NO_INDEX };
        }
        uint32_t lane = ds__lane_of(w, p);
        if (!at)
            buffer.at = ds__temporary_add(w, lane, b->bytes);
        ds__operand packed = { { buffer.at.region, at }, dense };
        uint32_t step = ds__copy_add(w, lane, packed, ds__operand_of(p), &p->d);
        if (step != DS__NO_INDEX)
            buffer.ready = step;
        at += (ptrdiff_t)ds__bucket_share(p);
    }
    return buffer;
}

/* Creates the results of a bucket as views of a buffer on their device. Each has the dimension
   order of its tensor. The buffer is freed with the last view. */
static ds_result ds__bucket_show(const ds__coalesced *a, const ds__bucket *b, const ds_tensor *flat,
                                 ds_tensor **out) {
    size_t at = 0;
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        if (a->bucket[i] != b->number)
            continue;
        ds__dims d = a->in[i].d;
        d.given = flat->device;
        d.first = (char *)((uintptr_t)flat->data + at); /* NULL if all tensors are empty */
        ds__dense_like(&a->in[i].d, d.strides);
        r = ds__tensor_show(flat, &d, &out[i]);
        at += ds__bucket_share(&a->in[i]);
    }
    return r;
}

/* Creates the buffers of a bucket on all destinations, with the results. Host memory without a
   stream goes to the lane of the tensors. */
static ds_result ds__bucket_create(ds__coalesced *a, const ds__bucket *b, ds__participant *to) {
    ds__work *w = &a->w;
    int64_t size = (int64_t)b->bytes;
    ds__dims like;
    ds_result r =
        ds__dims_read(ds_uint8(), 1, &size, NULL, ds__name_of("the buffer", DS__NO_LIST), &like);
    for (size_t k = 0; k < a->destinations && r == DS_OK; k++) {
        ds_tensor *flat = NULL;
        r = ds__result_create(w, &like, &a->to[k], &to[k], &flat);
        if (r == DS_OK && ds__lane_of(w, &to[k]) == DS__NO_INDEX)
            w->region[to[k].at.region].lane = ds__lane_of(w, &a->in[0]);
        if (r == DS_OK)
            r = ds__bucket_show(a, b, flat, &a->out[a->to[k].index * a->count]);
        ds__results_destroy(&flat, 1);
    }
    return r;
}

/* Appends the steps of a bucket: packs the tensors, and copies the buffer to all destinations. */
static ds_result ds__bucket_send(ds__coalesced *a, const ds__bucket *b) {
    ds__work *w = &a->w;
    size_t bytes;
    ds__participant from = { .at = { 0, 0 } };
    ds__source buffer = ds__bucket_pack(a, b, &bytes);
    ds__participant *to = ds__participants_alloc(w, a->destinations);
    if (!to)
        return w->r;
    ds_result r = ds__bucket_create(a, b, to);
    if (r < 0 || !bytes)
        return r < 0 ? r : w->r;
    int64_t size = (int64_t)bytes;
    r = ds__dims_read(ds_uint8(), 1, &size, NULL, ds__name_of("the buffer", DS__NO_LIST), &from.d);
    from.at = buffer.at;
    from.d.device = a->in[0].d.device;
    if (r < 0 || ds__broadcast_follow(w, &from, buffer.ready, to, a->destinations))
        return r < 0 ? r : w->r;
    for (size_t k = 0; k < a->destinations && w->r == DS_OK; k++) {
        uint32_t lane = ds__lane_of(w, &to[k]);
        ds__come_after(w, lane, buffer.ready);
        ds__step_copy_add(w, lane, to[k].at, buffer.at, bytes);
    }
    return w->r;
}

/* Opens the tensors, which must be on one device. */
static ds_result ds__coalesced_open_inputs(ds__coalesced *a) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        ds__participant *p = &a->in[i];
        r = ds__participant_open(&a->w, a->tensors[i], ds__name_of("the tensor", i), DS__NO_LIST, 0,
                                 p);
        if (r == DS_OK && !ds__same_device(p->d.device, a->in[0].d.device))
            r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                         "the tensor at index %zu is on %s:%d, the first one on %s:%d", i,
                         ds__type_name(p->d.device.type), p->d.device.index,
                         ds__type_name(a->in[0].d.device.type), a->in[0].d.device.index);
    }
    return r;
}

/* Shows the tensors themselves on device d. */
static ds_result ds__coalesced_show(ds__coalesced *a, size_t d) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count && r == DS_OK; i++)
        r = ds__tensor_show(a->tensors[i], &a->in[i].d, &a->out[d * a->count + i]);
    return r;
}

/* Finds the lanes of the devices that get copies, before any memory is allocated. Devices of
   DS_COMM_ALIAS show the tensors, do not participate, and are removed from the destinations. */
static ds_result ds__coalesced_open_outputs(ds__coalesced *a) {
    ds__work *w = &a->w;
    size_t kept = 0;
    ds_result r = DS_OK;
    for (size_t d = 0; d < a->destinations && r == DS_OK; d++) {
        const ds__destination to = a->to[d];
        uint32_t lane;
        if (a->count && ds__result_is_alias(w, to.device, &a->in[0])) {
            r = ds__coalesced_show(a, d);
        } else {
            r = ds__destination_lane(w, &to, &lane);
            a->to[kept++] = to;
        }
    }
    a->destinations = kept;
    return r == DS_OK && a->count && kept ? ds__work_settle(w) : r;
}

/* Runs the call, whose inputs are open, bucket by bucket. */
static ds_result ds__coalesced_run(ds__coalesced *a, size_t buffer_size) {
    ds__bucket b = { 0, 0, 0 };
    ds_result r = DS_OK;
    for (size_t left = a->count; left && r == DS_OK; left -= b.tensors) {
        ds__bucket_fill(a, &b, buffer_size);
        r = ds__bucket_send(a, &b);
    }
    return r == DS_OK ? ds__work_run(&a->w) : r;
}

DSDEF ds_result(ds_comm_broadcast_coalesced)(const ds_tensor *const *tensors, size_t count,
                                             const ds_device *devices, size_t device_count,
                                             size_t buffer_size, const ds_comm_options *options,
                                             ds_tensor **out) {
    enum { USUAL_SIZE = 10 << 20 };

    ds__coalesced a;
    size_t results;
    DS__ENTER("ds_comm_broadcast_coalesced");
    DS__REQUIRE(!__builtin_mul_overflow(count, device_count, &results) &&
                    results < SIZE_MAX / sizeof *out,
                "%zu tensors on %zu devices exceed the address space", count, device_count);
    if (out)
        memset(out, 0, results * sizeof *out);
    DS__COMM_READY_CREATING("ds_comm_broadcast_into");
    DS__REQUIRE(device_count, "there are no devices to broadcast to");
    DS__REQUIRE(devices, "devices is NULL");
    DS__REQUIRE(!count || (tensors && out), "%s is NULL", tensors ? "out" : "tensors");
    ds__work_begin(&a.w, options);
    a.tensors = tensors;
    a.count = count;
    a.destinations = device_count;
    a.out = out;
    a.in = ds__participants_alloc(&a.w, count);
    a.bucket = ds__work_alloc(&a.w, count, sizeof *a.bucket);
    a.to = ds__work_alloc(&a.w, device_count, sizeof *a.to);
    ds_result r = a.w.r;
    if (r == DS_OK)
        memset(a.bucket, 0, count * sizeof *a.bucket);
    for (size_t d = 0; d < device_count && r == DS_OK; d++)
        r = ds__destination_at(devices, d, &a.to[d]);
    if (r == DS_OK)
        r = ds__coalesced_open_inputs(&a);
    if (r == DS_OK)
        r = ds__coalesced_open_outputs(&a);
    if (r == DS_OK && a.destinations)
        r = ds__coalesced_run(&a, buffer_size ? buffer_size : USUAL_SIZE);
    if (r < 0 && out)
        ds__results_destroy(out, results);
    ds__work_end(&a.w);
    return r;
}

#endif
