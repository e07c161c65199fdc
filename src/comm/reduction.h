/* comm/reduction.h - reductions to one tensor.

   Implements ds_comm_reduce, ds_comm_reduce_add, ds_comm_reduce_add_coalesced and
   ds_comm_reduce_into. ds__reduce_steps writes the steps of one reduction; ds__reduce_slice,
   ds__reduce_direct and ds__reduction_check also serve all_to_all.h.

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
#include "internal.h"
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "follow_plan.h"

/* Checks that the operator is valid and supported for the data type. */
static ds_result ds__reduction_check(ds__reduction reduction) {
    char name[DS_DTYPE_NAME_SIZE];
    uint32_t sum = DS__COMM_SUM;
    uint64_t per_element;
    ds_reduce_op op = reduction.op;
    int kind = ds__comm_kind(reduction.dtype, &sum, 0, &per_element);
    int complex = reduction.dtype.code == DS_CODE_COMPLEX;
    DS__REQUIRE((unsigned)op <= DS_REDUCE_AVERAGE, "op is %d; use a DS_REDUCE_* operator", (int)op);
    if (kind < 0 || (complex && kind == DS__COMM_F16))
        return ds__fail(DS_ERR_UNSUPPORTED, "elements of type %s can be copied, but not reduced",
                        ds__dtype_name(reduction.dtype, name));
    DS__REQUIRE(!complex || (op != DS_REDUCE_MAX && op != DS_REDUCE_MIN),
                "%s is not supported for complex numbers",
                op == DS_REDUCE_MAX ? "largest" : "smallest");
    DS__REQUIRE(reduction.dtype.code != DS_CODE_BOOL || op != DS_REDUCE_AVERAGE,
                "average is not supported for bool");
    if (!DS__COMM_EXACT && kind >= DS__COMM_F16)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "devstream was compiled with -ffast-math or a part of it, so a reduction "
                        "of %s would not be bit-exact; compile without it",
                        ds__dtype_name(reduction.dtype, name));
    return DS_OK;
}

/* Locates participants with these strides in memory that kernels can use. Others are packed. */
static void ds__sources_of(ds__work *w, const ds__participant *in, size_t count,
                           const int64_t *strides, ds__source *out) {
    for (size_t i = 0; i < count && w->r == DS_OK; i++) {
        if (ds__same_strides(&in[i].d, strides) && w->region[in[i].at.region].direct)
            out[i] = (ds__source){ in[i].at, DS__NO_INDEX };
        else
            out[i] = ds__participant_pack(w, &in[i], strides);
    }
}

/* Returns uninitialised sources until ds__work_end; NULL: out of memory, also in w->r. */
static ds__source *ds__sources_alloc(ds__work *w, size_t count) {
    return ds__work_alloc(w, count, sizeof(ds__source));
}

/* Reduces a slice of all inputs to the same slice of `dst`, on the lane of `dst`. Inputs outside
   the reach of the lane's kernels are copied first. Returns the step; DS__NO_INDEX: out of memory,
   or the slice is empty. */
static uint32_t ds__reduce_slice(ds__work *w, ds__location dst, const ds__source *in, size_t count,
                                 ds__reduction reduction, ds__slice slice) {
    uint32_t lane = w->region[dst.region].lane;
    size_t item = (ds_dtype_get_size)(reduction.dtype);
    size_t bytes = (size_t)slice.size * item;
    ptrdiff_t offset = (ptrdiff_t)(slice.begin * (int64_t)item);
    uint32_t first = (uint32_t)w->locations;
    if (w->r < 0 || !slice.size)
        return DS__NO_INDEX;
    for (size_t i = 0; i < count; i++) {
        ds__location at = { in[i].at.region, in[i].at.offset + offset };
        ds__come_after(w, lane, in[i].ready);
        if (!ds__step_reaches(w, lane, at.region)) {
            ds__location here = ds__temporary_add(w, lane, bytes);
            ds__step_copy_add(w, lane, here, at, bytes);
            at = here;
        }
        ds__location *location = DS__MORE(w, location);
        if (!location)
            return DS__NO_INDEX;
        *location = at;
    }
    dst.offset += offset;
    return ds__step_reduce_add(w, lane, dst, first, reduction, (size_t)slice.size);
}

/* Reduces all inputs to `to` in one step, on its lane. sources: memory for `count` sources. */
static void ds__reduce_direct(ds__work *w, const ds__participant *in, size_t count,
                              const ds__participant *to, ds_reduce_op op, ds__source *sources) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    uint32_t lane = ds__lane_of(w, to);
    ds__dense_like(&to->d, strides);
    int fits = ds__same_strides(&to->d, strides) && w->region[to->at.region].direct;
    ds__sources_of(w, in, count, strides, sources);
    ds__location dst = fits ? to->at : ds__temporary_add(w, lane, to->d.bytes);
    ds__reduce_slice(w, dst, sources, count, (ds__reduction){ op, to->d.dtype },
                     (ds__slice){ 0, to->d.count });
    if (!fits)
        ds__copy_add(w, lane, ds__operand_of(to), (ds__operand){ dst, strides }, &to->d);
}

/* Returns 1 if the steps of a plan were appended. */
static int ds__reduce_follow(ds__work *w, const ds__participant *in, size_t count,
                             const ds__participant *to, ds_reduce_op op) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    const ds__division whole = { 0, 1, strides };
    if (!w->options->topology)
        return 0;
    ds__follow f = { .want = { .what = DS_REDUCE, .bytes = to->d.bytes }, .reduction.op = op };
    if (!ds__follow_open(w, &f, in, count, to))
        return 0;
    ds__dense_like(&to->d, strides);
    for (size_t i = 0; i < count && w->r == DS_OK; i++)
        ds__side_open(w, &f.in[i], &in[i], &whole, 1);
    ds__side_open(w, &f.out[f.want.root], to, &whole, 0);
    ds__follow_run(w, &f);
    return 1;
}

/* Appends the steps of a reduction. sources: as in ds__reduce_direct. */
static void ds__reduce_steps(ds__work *w, const ds__participant *in, size_t count,
                             const ds__participant *to, ds_reduce_op op, ds__source *sources) {
    if (count == 1) {
        if (!ds__same_place(in, to))
            ds__copy_participant(w, ds__lane_of(w, to), to, in);
        return;
    }
    if (!ds__reduce_follow(w, in, count, to, op))
        ds__reduce_direct(w, in, count, to, op, sources);
}

/* Checks that the elements are aligned to their size, else a GPU would fail. A complex element is
   two numbers. */
static ds_result ds__on_multiples(const ds__participant *p, ds__name name) {
    size_t number = p->d.dtype.code == DS_CODE_COMPLEX ? p->d.item / 2 : p->d.item;
    DS__REQUIRE(!p->d.count || (uintptr_t)p->d.first % number == 0,
                "%s begins at %p; a reduction needs a multiple of %zu, the element size",
                ds__name_text(name), (void *)p->d.first, number);
    return DS_OK;
}

/* Opens inputs of one shape and type: tensors[0], tensors[stride] and so on. */
static ds_result ds__reduce_open(ds__work *w, const ds_tensor *const *tensors, size_t count,
                                 size_t stride, ds_reduce_op op, ds__participant *in) {
    DS__REQUIRE(count && tensors, "there are no tensors to reduce");
    DS__REQUIRE(count > 1 || !w->options->plan,
                "the plan does not fit: a single tensor is only copied");
    ds_result r = w->r;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__input_open(w, tensors[i * stride], "input tensor", i, &in[i]);
        if (r == DS_OK && in[i].d.device.type == DS_DEVICE_HOST)
            r = ds__fail(DS_ERR_INVALID_DEVICE,
                         "input tensor at index %zu is on the host, not on a device", i);
        if (r == DS_OK)
            r = ds__same_form(&in[i], ds__name_of("input tensor", i), &in[0], -1);
    }
    if (r == DS_OK)
        r = ds__reduction_check((ds__reduction){ op, in[0].d.dtype });
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__on_multiples(&in[i], ds__name_of("input tensor", i));
    return r;
}

/* Lists of tensors: tensor[i * count + k] is tensor k of list i. */
typedef struct ds__tensor_lists {
    const ds_tensor *const *tensor;
    size_t lists;
    size_t count;
} ds__tensor_lists;

/* Opens the inputs of all sums, side by side for each sum, and checks that each sum has one on the
   destination. */
static ds_result ds__reduce_open_lists(ds__work *w, const ds__tensor_lists *t, ds_reduce_op op,
                                       ds_device destination, ds__participant *in) {
    for (size_t k = 0; k < t->count; k++, in += t->lists) {
        int there = 0;
        const ds_tensor *const *first = t->tensor ? t->tensor + k : NULL;
        ds_result r = ds__reduce_open(w, first, t->lists, t->count, op, in);
        if (r < 0)
            return r;
        for (size_t i = 0; i < t->lists; i++)
            there |= ds__same_device(in[i].d.device, destination);
        if (!there)
            return ds__fail(DS_ERR_DEVICE_MISMATCH,
                            "none of the input tensors is on the destination, %s:%d",
                            ds__type_name(destination.type), destination.index);
    }
    return DS_OK;
}

/* Creates the results, and reduces to them. */
static ds_result ds__reduce_results_create(ds__work *w, const ds__tensor_lists *t, ds_reduce_op op,
                                           ds_device destination, const ds__participant *in,
                                           ds_tensor **out) {
    ds__participant *to = ds__participants_alloc(w, t->count);
    ds__source *sources = ds__sources_alloc(w, t->lists);
    ds_result r = w->r;
    for (size_t k = 0; k < t->count && r == DS_OK; k++) {
        ds__destination at = { destination, k, DS__NO_LIST };
        r = ds__result_create(w, &in[k * t->lists].d, &at, &to[k], &out[k]);
    }
    if (r == DS_OK && t->count)
        r = ds__work_settle(w);
    for (size_t k = 0; k < t->count && r == DS_OK; k++)
        ds__reduce_steps(w, &in[k * t->lists], t->lists, &to[k], op, sources);
    return r == DS_OK ? ds__work_run(w) : r;
}

/* Sums lists of tensors to new results on the destination. With DS_COMM_ALIAS, results of a single
   list show its tensors. */
static ds_result ds__reduce_lists(const ds__tensor_lists *t, ds_reduce_op op, ds_device destination,
                                  const ds_comm_options *o, ds_tensor **out) {
    ds__work w;
    ds_result r =
        ds__comm_device(destination, ds__name_of("the destination", DS__NO_LIST), &destination);
    if (r < 0)
        return r;
    DS__REQUIRE(t->lists < SIZE_MAX / (t->count + 1), "%zu lists of %zu tensors", t->lists,
                t->count);
    ds__work_begin(&w, o);
    ds__participant *in = ds__participants_alloc(&w, t->lists * t->count);
    r = w.r;
    if (r == DS_OK)
        r = ds__reduce_open_lists(&w, t, op, destination, in);
    if (r == DS_OK && !(t->lists == 1 && o->flags & DS_COMM_ALIAS))
        r = ds__reduce_results_create(&w, t, op, destination, in, out);
    else
        for (size_t k = 0; k < t->count && r == DS_OK; k++)
            r = ds__tensor_show(t->tensor[k], &in[k].d, &out[k]);
    if (r < 0)
        ds__results_destroy(out, t->count);
    ds__work_end(&w);
    return r;
}

DSDEF ds_result(ds_comm_reduce)(const ds_tensor *const *tensors, size_t count, ds_reduce_op op,
                                ds_device destination, const ds_comm_options *options,
                                ds_tensor **out) {
    if (out)
        *out = NULL;
    DS__COMM_BEGIN_CREATING("ds_comm_reduce", "ds_comm_reduce_into");
    DS__REQUIRE(out, "out is NULL");
    return ds__reduce_lists(&(ds__tensor_lists){ tensors, count, 1 }, op, destination, options,
                            out);
}

DSDEF ds_result(ds_comm_reduce_add)(const ds_tensor *const *tensors, size_t count,
                                    ds_device destination, const ds_comm_options *options,
                                    ds_tensor **out) {
    if (out)
        *out = NULL;
    DS__COMM_BEGIN_CREATING("ds_comm_reduce_add", "ds_comm_reduce_into");
    DS__REQUIRE(out, "out is NULL");
    return ds__reduce_lists(&(ds__tensor_lists){ tensors, count, 1 }, DS_REDUCE_SUM, destination,
                            options, out);
}

DSDEF ds_result(ds_comm_reduce_add_coalesced)(const ds_tensor *const *tensors, size_t lists,
                                              size_t count, ds_device destination,
                                              size_t buffer_size, const ds_comm_options *options,
                                              ds_tensor **out) {
    (void)buffer_size;
    if (out)
        memset(out, 0, count * sizeof *out);
    DS__COMM_BEGIN_CREATING("ds_comm_reduce_add_coalesced", "ds_comm_reduce_into");
    DS__REQUIRE(!count || (tensors && out), "%s is NULL", tensors ? "out" : "tensors");
    return ds__reduce_lists(&(ds__tensor_lists){ tensors, lists, count }, DS_REDUCE_SUM,
                            destination, options, out);
}

/* Opens the output, and checks it against the inputs. */
static ds_result ds__reduce_open_output(ds__work *w, const ds_tensor *out,
                                        const ds__participant *in, size_t count,
                                        ds__participant *to) {
    ds__name name = ds__name_of("the output tensor", DS__NO_LIST);
    ds_result r = ds__output_open(w, out, name.words, name.index, to);
    if (r == DS_OK)
        r = ds__same_form(to, name, &in[0], -1);
    if (r == DS_OK)
        r = ds__on_multiples(to, name);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        if (!ds__same_place(to, &in[i]))
            r = ds__memory_check_disjoint(to, name, &in[i], ds__name_of("input tensor", i));
    return r == DS_OK ? ds__work_settle(w) : r;
}

DSDEF ds_result(ds_comm_reduce_into)(const ds_tensor *const *tensors, size_t count, ds_reduce_op op,
                                     const ds_tensor *out, const ds_comm_options *options) {
    ds__work w;
    ds__participant to;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_reduce_into");
    if (ds__comm_leave(&(ds__comm_call){ .verb = DS__VERB_REDUCE,
                                         .in = tensors,
                                         .out = &out,
                                         .in_count = count,
                                         .out_count = 1,
                                         .op = op,
                                         .options = options },
                       &r))
        return r;
    ds__work_begin(&w, options);
    ds__participant *in = ds__participants_alloc(&w, count);
    ds__source *sources = ds__sources_alloc(&w, count);
    r = w.r;
    if (r == DS_OK)
        r = ds__reduce_open(&w, tensors, count, 1, op, in);
    if (r == DS_OK)
        r = ds__reduce_open_output(&w, out, in, count, &to);
    if (r == DS_OK) {
        ds__reduce_steps(&w, in, count, &to, op, sources);
        r = ds__work_run(&w);
    }
    ds__work_end(&w);
    return r;
}

#endif
