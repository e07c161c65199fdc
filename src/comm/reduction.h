/* comm/reduction.h - reductions to one tensor.

   Implements ds_comm_reduce, ds_comm_reduce_add, ds_comm_reduce_add_coalesced and
   ds_comm_reduce_into. ds__reduce_steps writes the steps of one reduction; ds__reduce_slice and
   ds__reduction_check also serve all_to_all.h.

   Invariants: inputs have one shape and one data type, lie on devices, and start at a multiple
   of the size of their numbers. On the direct path, all inputs are combined in list order by one
   step. A plan may use another order only where ds__order_of allows it. Operands are first
   copied to temporary memory if their strides differ from the dense strides of the result. The
   same applies to memory outside the reach of the lane's kernels. If the library was compiled
   with fast-math options, reductions of floating-point and complex numbers are refused.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__COMM_REDUCTION_H
#define DS__COMM_REDUCTION_H

#include "../core/internal.h"
#include "../tensor/internal.h"
#include "kernel.h"
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "follow_plan.h"

static ds_result ds__reduction_check(ds_dtype t, ds_reduce_op op) {
    char name[DS_DTYPE_NAME_SIZE];
    int whole = (t.code == DS_CODE_INT || t.code == DS_CODE_UINT) &&
                (t.bits == 8 || t.bits == 16 || t.bits == 32 || t.bits == 64);
    int real = (t.code == DS_CODE_FLOAT && (t.bits == 16 || t.bits == 32 || t.bits == 64)) ||
               (t.code == DS_CODE_BFLOAT && t.bits == 16);
    int complex = t.code == DS_CODE_COMPLEX && (t.bits == 64 || t.bits == 128);
    int truth = t.code == DS_CODE_BOOL && t.bits == 8;
    DS__REQUIRE((unsigned)op <= DS_REDUCE_AVERAGE, "op is %d; use a DS_REDUCE_* operator", (int)op);
    if (t.lanes != 1 || !(whole || real || complex || truth))
        return ds__fail(DS_ERR_UNSUPPORTED, "elements of type %s can be copied, but not reduced",
                        ds__dtype_name(t, name));
    DS__REQUIRE(!complex || (op != DS_REDUCE_MAX && op != DS_REDUCE_MIN),
                "%s is not supported for complex numbers",
                op == DS_REDUCE_MAX ? "largest" : "smallest");
    DS__REQUIRE(!truth || op != DS_REDUCE_AVERAGE, "average is not supported for bool");
    if (!DS__COMM_EXACT && (real || complex))
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "devstream was compiled with -ffast-math or a part of it, so a reduction "
                        "of %s would not be bit-exact; compile without it",
                        ds__dtype_name(t, name));
    return DS_OK;
}

/* The strides in which it is done: those of `like`, if it has no gaps. */
static void ds__addends_of(ds__work *w, const ds__participant *in, size_t count,
                           const int64_t *strides, ds__addend *out) {
    for (size_t i = 0; i < count && w->r == DS_OK; i++) {
        const ds__participant *p = &in[i];
        out[i] = (ds__addend){ ds__location_of(p), DS__NO_INDEX };
        if (ds__same_strides(&p->d, strides) && w->region[p->region].direct)
            continue;
        uint32_t lane = ds__lane_of(w, p);
        out[i].spot = (ds__location){ ds__step_temporary_add(w, lane, p->d.bytes), 0 };
        out[i].after = ds__copy_add(w, lane, out[i].spot, strides, ds__location_of(p), p->d.strides,
                                    p->d.ndim, p->d.shape, p->d.item);
    }
}

/* Elements `from` to `from + size - 1` of all, on a lane, to the same place in `dst`. The step. */
static uint32_t ds__reduce_slice(ds__work *w, uint32_t lane, ds__location dst, const ds__addend *in,
                                 size_t count, ds_reduce_op op, ds_dtype dtype, int64_t from,
                                 int64_t size) {
    size_t item = (ds_dtype_get_size)(dtype);
    ptrdiff_t offset = (ptrdiff_t)(from * (int64_t)item);
    uint32_t first = (uint32_t)w->spots;
    if (w->r < 0 || !size)
        return DS__NO_INDEX;
    for (size_t i = 0; i < count; i++) {
        ds__location at = { in[i].spot.region, in[i].spot.offset + offset };
        ds__come_after(w, lane, in[i].after);
        if (!ds__step_reaches(w, lane, at.region)) {
            ds__location here = { ds__step_temporary_add(w, lane, (size_t)size * item), 0 };
            uint32_t copy = ds__step_add(w, DS__STEP_COPY, lane, here, at);
            if (copy == DS__NO_INDEX)
                return copy;
            w->step[copy].width = w->step[copy].dst_pitch = w->step[copy].src_pitch =
                (size_t)size * item;
            w->step[copy].height = 1;
            at = here;
        }
        ds__location *s = DS__MORE(w, spot);
        if (!s)
            return DS__NO_INDEX;
        *s = at;
    }
    uint32_t step =
        ds__step_add(w, DS__STEP_REDUCE, lane, (ds__location){ dst.region, dst.offset + offset },
                     (ds__location){ 0, 0 });
    if (step == DS__NO_INDEX)
        return step;
    w->step[step].op = (uint8_t)op;
    w->step[step].dtype = dtype;
    w->step[step].first = first;
    w->step[step].count = (uint32_t)count;
    if (count > w->most)
        w->most = count;
    w->step[step].width = (size_t)size;
    return step;
}

/* All of `in` to `to`, on its lane. */
static void ds__reduce_steps(ds__work *w, const ds_comm_options *o, const ds__participant *in,
                             size_t count, const ds__participant *to, ds_reduce_op op,
                             ds__addend *addends) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    uint32_t lane = ds__lane_of(w, to);
    ds__follow f;
    if (count == 1) {
        if (!ds__same_place(in, to))
            ds__copy_participant(w, lane, to, in);
        return;
    }
    ds__dense_like(&to->d, strides);
    if (ds__follow_open(w, &f, o, DS_REDUCE, in, count, to, to->d.bytes)) {
        f.op = op;
        f.want.order = ds__order_of(to->d.dtype, op, o->flags);
        for (size_t i = 0; i < count && w->r == DS_OK; i++)
            ds__side_open(w, &f.in[i], &in[i], 0, 1, strides, 1);
        ds__side_open(w, &f.out[f.want.root], to, 0, 1, strides, 0);
        ds__follow_run(w, &f);
        if (w->r == DS_OK && f.out[f.want.root].apart)
            ds__side_move(w, &f.out[f.want.root], 0, 1, strides, 1);
        return;
    }
    int fits = ds__same_strides(&to->d, strides) && w->region[to->region].direct;
    ds__addends_of(w, in, count, strides, addends);
    ds__location dst = fits ? ds__location_of(to)
                            : (ds__location){ ds__step_temporary_add(w, lane, to->d.bytes), 0 };
    ds__reduce_slice(w, lane, dst, addends, count, op, to->d.dtype, 0, to->d.count);
    if (!fits)
        ds__copy_add(w, lane, ds__location_of(to), to->d.strides, dst, strides, to->d.ndim,
                     to->d.shape, to->d.item);
}

/* A GPU faults on a number that is not on a multiple of its size. A complex element is two
   numbers. */
static ds_result ds__on_multiples(const ds__participant *p, const char *what, int64_t index) {
    size_t number = p->d.dtype.code == DS_CODE_COMPLEX ? p->d.item / 2 : p->d.item;
    DS__REQUIRE(!p->d.count || (uintptr_t)p->d.first % number == 0,
                "%s begins at %p; a reduction needs a multiple of %zu, the element size",
                ds__dims_nth(what, index), (void *)p->d.first, number);
    return DS_OK;
}

/* Tensors of one shape and type. stride: from one to the next in the array. */
static ds_result ds__reduce_open(ds__work *w, const ds_comm_options *o,
                                 const ds_tensor *const *tensors, size_t count, size_t stride,
                                 ds_reduce_op op, ds__participant *in) {
    DS__REQUIRE(count && tensors, "there are no tensors to reduce");
    DS__REQUIRE(count > 1 || !o->plan, "the plan does not fit: a single tensor is only copied");
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__participant_open(w, o, tensors[i * stride], "input tensor", (int64_t)i, (int64_t)i,
                                 0, &in[i]);
        if (r == DS_OK && in[i].d.device.type == DS_DEVICE_HOST)
            r = ds__fail(DS_ERR_INVALID_DEVICE,
                         "input tensor at index %zu is on the host, not on a device", i);
        if (r == DS_OK)
            r = ds__same_dtype(&in[i], "input tensor", (int64_t)i, &in[0]);
        if (r == DS_OK)
            r = ds__same_shape(&in[i], "input tensor", (int64_t)i, &in[0], -1);
    }
    if (r == DS_OK)
        r = ds__reduction_check(in[0].d.dtype, op);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__on_multiples(&in[i], "input tensor", (int64_t)i);
    return r;
}

/* `lists` tensors each, `count` times. */
static ds_result ds__reduce_many(const ds_tensor *const *tensors, size_t lists, size_t count,
                                 ds_reduce_op op, ds_device destination, const ds_comm_options *o,
                                 ds_tensor **out) {
    ds__work w;
    ds__work_begin(&w);
    ds_result r = ds__comm_device(destination, "the destination", -1, &destination);
    if (r < 0)
        return r;
    DS__REQUIRE(lists < SIZE_MAX / (count + 1), "%zu lists of %zu tensors", lists, count);
    /* parties of one sum side by side */
    ds__participant *in = ds__parties_alloc(&w, (lists + 1) * count);
    ds__participant *to = in ? in + lists * count : NULL;
    ds__addend *addends = ds__addends_alloc(&w, lists);
    r = w.r;
    int alone = lists == 1 && o->flags & DS_COMM_ALIAS;
    for (size_t k = 0; k < count && r == DS_OK; k++) {
        ds__participant *p = in + k * lists;
        int there = 0;
        r = ds__reduce_open(&w, o, tensors + k, lists, count, op, p);
        for (size_t i = 0; i < lists && r == DS_OK; i++)
            there |= ds__same_device(p[i].d.device, destination);
        if (r < 0)
            break;
        if (!there) {
            r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                         "none of the input tensors is on the destination, %s:%d",
                         ds__type_name(destination.type), destination.index);
            break;
        }
    }
    for (size_t k = 0; k < count && r == DS_OK; k++) {
        const ds__participant *p = in + k * lists;
        r = alone ? ds__tensor_show(tensors[k], &p->d, &out[k])
                  : ds__result_make(&w, o, &p->d, destination, (int64_t)k, -1, &to[k], &out[k]);
    }
    if (r == DS_OK && count && !alone)
        r = ds__work_settle(&w);
    if (r == DS_OK && !alone) {
        for (size_t k = 0; k < count; k++)
            ds__reduce_steps(&w, o, in + k * lists, lists, &to[k], op, addends);
        r = ds__work_run(&w);
    }
    if (r < 0)
        ds__results_drop(out, count);
    ds__work_end(&w);
    return r;
}

DSDEF ds_result(ds_comm_reduce)(const ds_tensor *const *tensors, size_t count, ds_reduce_op op,
                                ds_device destination, const ds_comm_options *options,
                                ds_tensor **out) {
    if (out)
        *out = NULL;
    DS__COMM_BEGIN("ds_comm_reduce");
    DS__REQUIRE(out, "out is NULL");
    return ds__reduce_many(tensors, count, 1, op, destination, options, out);
}

DSDEF ds_result(ds_comm_reduce_add)(const ds_tensor *const *tensors, size_t count,
                                    ds_device destination, const ds_comm_options *options,
                                    ds_tensor **out) {
    if (out)
        *out = NULL;
    DS__COMM_BEGIN("ds_comm_reduce_add");
    DS__REQUIRE(out, "out is NULL");
    return ds__reduce_many(tensors, count, 1, DS_REDUCE_SUM, destination, options, out);
}

DSDEF ds_result(ds_comm_reduce_add_coalesced)(const ds_tensor *const *tensors, size_t lists,
                                              size_t count, ds_device destination,
                                              size_t buffer_size, const ds_comm_options *options,
                                              ds_tensor **out) {
    (void)buffer_size;
    if (out)
        memset(out, 0, count * sizeof *out);
    DS__COMM_BEGIN("ds_comm_reduce_add_coalesced");
    DS__REQUIRE(!count || (tensors && out), "%s is NULL", tensors ? "out" : "tensors");
    return ds__reduce_many(tensors, lists, count, DS_REDUCE_SUM, destination, options, out);
}

DSDEF ds_result(ds_comm_reduce_into)(const ds_tensor *const *tensors, size_t count, ds_reduce_op op,
                                     const ds_tensor *out, const ds_comm_options *options) {
    ds__work w;
    ds__participant to;
    DS__COMM_BEGIN("ds_comm_reduce_into");
    ds__work_begin(&w);
    ds__participant *in = ds__parties_alloc(&w, count);
    ds__addend *addends = in ? ds__addends_alloc(&w, count) : NULL;
    ds_result r =
        addends ? ds__reduce_open(&w, options, tensors, count, 1, op, in) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__participant_open(&w, options, out, "the output tensor", -1, -1, 1, &to);
    if (r == DS_OK)
        r = ds__same_dtype(&to, "the output tensor", -1, &in[0]);
    if (r == DS_OK)
        r = ds__same_shape(&to, "the output tensor", -1, &in[0], -1);
    if (r == DS_OK)
        r = ds__on_multiples(&to, "the output tensor", -1);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        if (!ds__same_place(&to, &in[i]))
            r = ds__memory_check_disjoint(&to, "the output tensor", -1, &in[i], "input tensor",
                                          (int64_t)i);
    if (r == DS_OK)
        r = ds__work_settle(&w);
    if (r == DS_OK) {
        ds__reduce_steps(&w, options, in, count, &to, op, addends);
        r = ds__work_run(&w);
    }
    ds__work_end(&w);
    return r;
}

#endif
