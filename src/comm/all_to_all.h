/* comm/all_to_all.h - collectives with an output on every device.

   Implements ds_comm_all_reduce, ds_comm_all_gather, ds_comm_reduce_scatter, ds_comm_all_to_all
   and ds_comm_barrier. ds__all_open checks the inputs and outputs (ds__all); ds__all_follow
   writes the steps of a plan.

   Invariants: the input and the output at one index are on the same device, never on the host.
   Outputs share no memory with each other, as far as ds__memory_check_disjoint finds it. An output
   may share memory with its own input only in the form that ds__all_overlaps accepts. On the direct
   path of an all-reduce, each lane reduces one slice and then copies the slices of the others. In
   each round, no two copies read the same result.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__COMM_ALL_TO_ALL_H
#define DS__COMM_ALL_TO_ALL_H

#include "../core/internal.h"
#include "../tensor/internal.h"
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "follow_plan.h"
#include "reduction.h"

/* Inputs and outputs, one of each for every device. */
typedef struct ds__all {
    ds__participant *in;
    ds__participant *out;
    ds__addend *addends;
    ds__addend *results;
    size_t count;
    ds__work w;
} ds__all;

static ds_result ds__all_open(ds__all *a, const ds_comm_options *o, const ds_tensor *const *tensors,
                              const ds_tensor *const *outs, size_t count) {
    ds__work_begin(&a->w);
    a->count = count;
    DS__REQUIRE(count && tensors && outs, "%s",
                !count    ? "count is 0 or the list is NULL"
                : tensors ? "outs is NULL"
                          : "tensors is NULL");
    DS__REQUIRE(count < INT32_MAX, "%zu tensors", count);
    a->in = ds__parties_alloc(&a->w, 2 * count);
    a->addends = a->in ? ds__addends_alloc(&a->w, 2 * count) : NULL;
    if (!a->addends)
        return DS_ERR_OUT_OF_MEMORY;
    a->out = a->in + count;
    a->results = a->addends + count;
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        int64_t n = (int64_t)i;
        r = ds__participant_open(&a->w, o, tensors[i], "input tensor", n, n, 0, &a->in[i]);
        if (r == DS_OK)
            r = ds__participant_open(&a->w, o, outs[i], "output tensor", n, n, 1, &a->out[i]);
        if (r == DS_OK)
            r = ds__same_dtype(&a->in[i], "input tensor", n, &a->in[0]);
        if (r == DS_OK)
            r = ds__same_dtype(&a->out[i], "output tensor", n, &a->in[0]);
        if (r == DS_OK)
            r = ds__same_shape(&a->in[i], "input tensor", n, &a->in[0], -1);
        if (r == DS_OK)
            r = ds__same_shape(&a->out[i], "output tensor", n, &a->out[0], -1);
        if (r == DS_OK &&
            (a->in[i].d.device.type == DS_DEVICE_HOST || a->out[i].d.device.type == DS_DEVICE_HOST))
            r = ds__fail(DS_ERR_INVALID_DEVICE,
                         "%s tensor at index %zu is on the host, not on a device",
                         a->in[i].d.device.type == DS_DEVICE_HOST ? "input" : "output", i);
        if (r == DS_OK && !ds__same_device(a->in[i].d.device, a->out[i].d.device))
            r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                         "input tensor at index %zu is on %s:%d, the output tensor on %s:%d", i,
                         ds__type_name(a->in[i].d.device.type), a->in[i].d.device.index,
                         ds__type_name(a->out[i].d.device.type), a->out[i].d.device.index);
    }
    if (r == DS_OK)
        r = ds__all_apart(a->out, "output tensor", count);
    return r == DS_OK ? ds__work_settle(&a->w) : r;
}

static ds_result ds__all_end(ds__all *a, ds_result r) {
    if (r == DS_OK)
        r = ds__work_run(&a->w);
    ds__work_end(&a->w);
    return r;
}

/* Output i shares nothing with inputs, but may have the place of its own (`own`: 0: in whole; 1:
   the i-th part of the input; 2: the input is its i-th part; 3: not at all). */
static ds_result ds__all_overlaps(const ds__all *a, int own) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count; i++)
        for (size_t k = 0; k < a->count && r == DS_OK; k++) {
            const ds__participant *out = &a->out[i];
            const ds__participant *in = &a->in[k];
            if (i == k && own < 3) {
                int64_t at = 0;
                int64_t n = own == 1 ? out->d.shape[0] : own == 2 ? in->d.shape[0] : 0;
                at = (int64_t)i * n;
                ds__participant part = own == 1   ? ds__party_part(in, 0, &at, n)
                                       : own == 2 ? ds__party_part(out, 0, &at, n)
                                                  : *out;
                if (ds__same_place(&part, own == 1 ? out : in))
                    continue;
            }
            r = ds__memory_check_disjoint(out, "output tensor", (int64_t)i, in, "input tensor",
                                          (int64_t)k);
        }
    return r;
}

static ds_result ds__all_reducible(const ds__all *a, ds_reduce_op op) {
    ds_result r = ds__reduction_check(a->in[0].d.dtype, op);
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        r = ds__on_multiples(&a->in[i], "input tensor", (int64_t)i);
        if (r == DS_OK)
            r = ds__on_multiples(&a->out[i], "output tensor", (int64_t)i);
    }
    return r;
}

/* `many` is `one` so many times along dimension 0. */
static ds_result ds__all_sizes(const ds__participant *many, const char *what,
                               const ds__participant *one, const char *other, size_t count) {
    int64_t n;
    DS__REQUIRE(one->d.ndim > 0 && many->d.ndim > 0,
                "tensors without dimensions cannot be split or concatenated");
    ds_result r = ds__same_shape(many, what, 0, one, 0);
    if (r < 0)
        return r;
    DS__REQUIRE(
        !__builtin_mul_overflow(one->d.shape[0], (int64_t)count, &n) && many->d.shape[0] == n,
        "%ss have the size %lld in dimension 0; it must be %zu times %lld, the size of the %s",
        what, (long long)many->d.shape[0], count, (long long)one->d.shape[0], other);
    return DS_OK;
}

/* By plan: 1: the steps are there. in_parts, out_parts: how many parts the tensors have. */
static int ds__all_follow(ds__all *a, const ds_comm_options *o, ds_collective what, ds_reduce_op op,
                          size_t in_parts, size_t out_parts) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    int64_t at = 0;
    ds__work *w = &a->w;
    ds__follow f;
    if (!ds__follow_open(w, &f, o, what, a->out, a->count, NULL,
                         out_parts > in_parts ? a->out[0].d.bytes : a->in[0].d.bytes))
        return 0;
    ds__participant part =
        in_parts == 1 ? a->in[0]
                      : ds__party_part(&a->in[0], 0, &at, a->in[0].d.shape[0] / (int64_t)in_parts);
    if (out_parts == 1)
        part = a->out[0];
    ds__dense_like(&part.d, strides);
    f.op = op;
    f.want.order = ds__collective_is_sum(what) ? ds__order_of(a->in[0].d.dtype, op, o->flags)
                                               : DS_ORDER_AT_ONCE;
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
        ds__side_open(w, &f.in[i], &a->in[i], 0, in_parts, strides, 1);
        ds__side_open(w, &f.out[i], &a->out[i], 0, out_parts, strides, 0);
    }
    ds__follow_run(w, &f);
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        if (f.out[i].apart)
            ds__side_move(w, &f.out[i], 0, out_parts, strides, 1);
    return 1;
}

/* Where slice i of so many elements begins: slices are equal, in units of 64 elements. */
static int64_t ds__slice_begin(int64_t elements, size_t i, size_t count) {
    int64_t units = elements / 64 + (elements % 64 != 0);
    int64_t n = (int64_t)count;
    int64_t k = (int64_t)i;
    int64_t at = (units / n * k + units % n * k / n) * 64;
    return i == count || at > elements ? elements : at;
}

DSDEF ds_result(ds_comm_all_reduce)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, ds_reduce_op op, const ds_comm_options *options) {
    ds__all a;
    int64_t strides[DS_TENSOR_MAX_DIMS];
    DS__COMM_BEGIN("ds_comm_all_reduce");
    ds_result r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__same_shape(&a.out[0], "output tensor", 0, &a.in[0], -1);
    if (r == DS_OK)
        r = ds__all_reducible(&a, op);
    if (r == DS_OK)
        r = ds__all_overlaps(&a, 0);
    if (r < 0 || ds__all_follow(&a, options, DS_ALL_REDUCE, op, 1, 1))
        return ds__all_end(&a, r);
    ds__work *w = &a.w;
    ds_dtype dtype = a.in[0].d.dtype;
    size_t item = a.in[0].d.item;
    int64_t elements = a.in[0].d.count;
    ds__dense_like(&a.out[0].d, strides);
    ds__addends_of(w, a.in, count, strides, a.addends);
    for (size_t i = 0; i < count && w->r == DS_OK; i++) /* where the results arise */
        a.results[i].spot =
            ds__same_strides(&a.out[i].d, strides)
                ? ds__location_of(&a.out[i])
                : (ds__location){
                      ds__step_temporary_add(w, ds__lane_of(w, &a.out[i]), a.out[i].d.bytes), 0
                  };
    for (size_t i = 0; i < count && w->r == DS_OK; i++) { /* each lane does a slice of all */
        int64_t begin = ds__slice_begin(elements, i, count);
        int64_t size = ds__slice_begin(elements, i + 1, count) - begin;
        a.results[i].after = ds__reduce_slice(w, ds__lane_of(w, &a.out[i]), a.results[i].spot,
                                              a.addends, count, op, dtype, begin, size);
    }
    /* and fetches the others; no two from the same one at the same time */
    for (size_t turn = 1; turn < count; turn++)
        for (size_t i = 0; i < count && w->r == DS_OK; i++) {
            size_t k = (i + turn) % count;
            int64_t begin = ds__slice_begin(elements, k, count);
            int64_t size = ds__slice_begin(elements, k + 1, count) - begin;
            uint32_t lane = ds__lane_of(w, &a.out[i]);
            ds__location dst = { a.results[i].spot.region,
                                 a.results[i].spot.offset + (ptrdiff_t)(begin * (int64_t)item) };
            ds__location src = { a.results[k].spot.region,
                                 a.results[k].spot.offset + (ptrdiff_t)(begin * (int64_t)item) };
            ds__come_after(w, lane, a.results[k].after);
            ds__copy_add(w, lane, dst, (int64_t[]){ 1 }, src, (int64_t[]){ 1 }, 1, &size, item);
        }
    for (size_t i = 0; i < count && w->r == DS_OK; i++)
        if (!ds__same_strides(&a.out[i].d, strides))
            ds__copy_add(w, ds__lane_of(w, &a.out[i]), ds__location_of(&a.out[i]),
                         a.out[i].d.strides, a.results[i].spot, strides, a.out[i].d.ndim,
                         a.out[i].d.shape, item);
    return ds__all_end(&a, r);
}

DSDEF ds_result(ds_comm_all_gather)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, const ds_comm_options *options) {
    ds__all a;
    DS__COMM_BEGIN("ds_comm_all_gather");
    ds_result r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__all_sizes(&a.out[0], "output tensor", &a.in[0], "input tensor", count);
    if (r == DS_OK)
        r = ds__all_overlaps(&a, 2);
    if (r < 0 || ds__all_follow(&a, options, DS_ALL_GATHER, DS_REDUCE_SUM, 1, count))
        return ds__all_end(&a, r);
    for (size_t turn = 0; turn < count && r == DS_OK; turn++)
        for (size_t i = 0; i < count && a.w.r == DS_OK; i++) {
            size_t k = (i + turn) % count;
            int64_t at = (int64_t)k * a.in[0].d.shape[0];
            ds__participant part = ds__party_part(&a.out[i], 0, &at, a.in[0].d.shape[0]);
            if (ds__same_place(&part, &a.in[k]))
                continue;
            ds__copy_add(&a.w, ds__lane_of(&a.w, &a.out[i]), ds__location_in(&a.w, &part),
                         part.d.strides, ds__location_of(&a.in[k]), a.in[k].d.strides, part.d.ndim,
                         part.d.shape, part.d.item);
        }
    return ds__all_end(&a, r);
}

DSDEF ds_result(ds_comm_reduce_scatter)(const ds_tensor *const *tensors,
                                        const ds_tensor *const *outs, size_t count, ds_reduce_op op,
                                        const ds_comm_options *options) {
    ds__all a;
    DS__COMM_BEGIN("ds_comm_reduce_scatter");
    ds_result r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__all_sizes(&a.in[0], "input tensor", &a.out[0], "output tensor", count);
    if (r == DS_OK)
        r = ds__all_reducible(&a, op);
    if (r == DS_OK)
        r = ds__all_overlaps(&a, 1);
    if (r < 0 || ds__all_follow(&a, options, DS_REDUCE_SCATTER, op, count, 1))
        return ds__all_end(&a, r);
    ds__participant *part = r == DS_OK ? ds__parties_alloc(&a.w, count) : NULL;
    if (r == DS_OK && !part)
        r = DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && r == DS_OK && a.w.r == DS_OK; i++) {
        for (size_t k = 0; k < count; k++) {
            int64_t at = (int64_t)i * a.out[0].d.shape[0];
            part[k] = ds__party_part(&a.in[k], 0, &at, a.out[0].d.shape[0]);
        }
        /* As ds__reduce_steps, but the parts begin inside of their regions. */
        int64_t strides[DS_TENSOR_MAX_DIMS];
        const ds__participant *to = &a.out[i];
        uint32_t lane = ds__lane_of(&a.w, to);
        ds__dense_like(&to->d, strides);
        int fits = ds__same_strides(&to->d, strides);
        for (size_t k = 0; k < count && a.w.r == DS_OK; k++) {
            a.addends[k] = (ds__addend){ ds__location_in(&a.w, &part[k]), DS__NO_INDEX };
            if (ds__same_strides(&part[k].d, strides))
                continue;
            uint32_t there = ds__lane_of(&a.w, &part[k]);
            ds__location packed = { ds__step_temporary_add(&a.w, there, part[k].d.bytes), 0 };
            a.addends[k].after =
                ds__copy_add(&a.w, there, packed, strides, a.addends[k].spot, part[k].d.strides,
                             to->d.ndim, to->d.shape, to->d.item);
            a.addends[k].spot = packed;
        }
        ds__location dst =
            fits ? ds__location_of(to)
                 : (ds__location){ ds__step_temporary_add(&a.w, lane, to->d.bytes), 0 };
        ds__reduce_slice(&a.w, lane, dst, a.addends, count, op, to->d.dtype, 0, to->d.count);
        if (!fits)
            ds__copy_add(&a.w, lane, ds__location_of(to), to->d.strides, dst, strides, to->d.ndim,
                         to->d.shape, to->d.item);
    }
    return ds__all_end(&a, r);
}

DSDEF ds_result(ds_comm_all_to_all)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, const ds_comm_options *options) {
    ds__all a;
    DS__COMM_BEGIN("ds_comm_all_to_all");
    ds_result r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__same_shape(&a.out[0], "output tensor", 0, &a.in[0], -1);
    if (r == DS_OK && (!a.in[0].d.ndim || a.in[0].d.shape[0] % (int64_t)count))
        r = !a.in[0].d.ndim
                ? ds__fail(DS_ERR_INVALID_VALUE, "tensors without dimensions cannot be split")
                : ds__fail(DS_ERR_INVALID_VALUE,
                           "the size in dimension 0, %lld, cannot be split into %zu equal parts",
                           (long long)a.in[0].d.shape[0], count);
    if (r == DS_OK)
        r = ds__all_overlaps(&a, 3);
    if (r < 0 || ds__all_follow(&a, options, DS_ALL_TO_ALL, DS_REDUCE_SUM, count, count))
        return ds__all_end(&a, r);
    int64_t n = r == DS_OK ? a.in[0].d.shape[0] / (int64_t)count : 0;
    for (size_t turn = 0; turn < count && r == DS_OK; turn++)
        for (size_t i = 0; i < count && a.w.r == DS_OK; i++) {
            size_t k = (i + turn) % count;
            int64_t to_at = (int64_t)k * n;
            int64_t from_at = (int64_t)i * n;
            ds__participant to = ds__party_part(&a.out[i], 0, &to_at, n);
            ds__participant from = ds__party_part(&a.in[k], 0, &from_at, n);
            ds__copy_add(&a.w, ds__lane_of(&a.w, &a.out[i]), ds__location_in(&a.w, &to),
                         to.d.strides, ds__location_in(&a.w, &from), from.d.strides, to.d.ndim,
                         to.d.shape, to.d.item);
        }
    return ds__all_end(&a, r);
}

DSDEF ds_result(ds_comm_barrier)(const ds_stream *streams, size_t count) {
    ds__work w;
    const ds_comm_options *options = NULL;
    DS__COMM_BEGIN("ds_comm_barrier");
    ds__work_begin(&w);
    DS__REQUIRE(streams || !count, "streams is NULL");
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t lane;
        if (!streams[i].id)
            r = ds__fail(DS_ERR_INVALID_HANDLE,
                         "no stream was given at index %zu (the handle is zero)", i);
        else
            r = ds__lane_find(&w, streams[i], "entry", (int64_t)i, (ds_device){ DS_DEVICE_HOST, 0 },
                              &lane);
    }
    if (r == DS_OK && ds__captures_open())
        r = ds__fork_capture(&w);
    if (r == DS_OK)
        r = ds__join_streams(&w, 1);
    w.forked &= r < 0;
    ds__work_end(&w);
    return r;
}

#endif
