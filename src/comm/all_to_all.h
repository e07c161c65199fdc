/* comm/all_to_all.h - collectives with an output on every device.

   Implements ds_comm_all_reduce, ds_comm_all_gather, ds_comm_reduce_scatter, ds_comm_all_to_all
   and ds_comm_barrier. ds__all_open checks the inputs and outputs (ds__all); ds__all_follow
   writes the steps of a plan.

   Invariants: the input and the output at one index are on the same device, never on the host.
   Outputs share no memory with each other, as far as ds__memory_check_disjoint finds it. An output
   may share memory with its own input only as DS__IN_PLACE_* allows. On the direct path of an
   all-reduce on processors, one kernel writes all outputs. Elsewhere each lane reduces one slice
   and then copies the slices of the others. In each round, no two copies read the same result.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__COMM_ALL_TO_ALL_H
#define DS__COMM_ALL_TO_ALL_H

#include "../core/internal.h"
#include "../tensor/internal.h"
#include "internal.h"
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "follow_plan.h"
#include "reduction.h"

/* A call with an input and an output on each of `count` devices. */
typedef struct ds__all {
    ds__participant *in;
    ds__participant *out;
    size_t count;
    ds__work w;
} ds__all;

static ds_result ds__all_check_devices(const ds__participant *in, const ds__participant *out,
                                       size_t i) {
    int host = in->d.device.type == DS_DEVICE_HOST;
    if (host || out->d.device.type == DS_DEVICE_HOST)
        return ds__fail(DS_ERR_INVALID_DEVICE,
                        "%s tensor at index %zu is on the host, not on a device",
                        host ? "input" : "output", i);
    if (!ds__same_device(in->d.device, out->d.device))
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "input tensor at index %zu is on %s:%d, the output tensor on %s:%d", i,
                        ds__type_name(in->d.device.type), in->d.device.index,
                        ds__type_name(out->d.device.type), out->d.device.index);
    return DS_OK;
}

/* Opens input and output i, and compares them with the first ones. */
static ds_result ds__all_open_rank(ds__all *a, const ds_tensor *tensor, const ds_tensor *out,
                                   size_t i) {
    ds__name in_name = ds__name_of("input tensor", i);
    ds__name out_name = ds__name_of("output tensor", i);
    ds_result r = ds__input_open(&a->w, tensor, in_name.words, i, &a->in[i]);
    if (r == DS_OK)
        r = ds__output_open(&a->w, out, out_name.words, i, &a->out[i]);
    if (r == DS_OK)
        r = ds__same_dtype(&a->in[i], in_name, &a->in[0]);
    if (r == DS_OK)
        r = ds__same_dtype(&a->out[i], out_name, &a->in[0]);
    if (r == DS_OK)
        r = ds__same_shape(&a->in[i], in_name, &a->in[0], -1);
    if (r == DS_OK)
        r = ds__same_shape(&a->out[i], out_name, &a->out[0], -1);
    return r == DS_OK ? ds__all_check_devices(&a->in[i], &a->out[i], i) : r;
}

static ds_result ds__all_open(ds__all *a, const ds_comm_options *options,
                              const ds_tensor *const *tensors, const ds_tensor *const *outs,
                              size_t count) {
    ds__work_begin(&a->w, options);
    a->count = count;
    DS__REQUIRE(count, "count is 0 or the list is NULL");
    DS__REQUIRE(tensors && outs, "%s is NULL", tensors ? "outs" : "tensors");
    DS__REQUIRE(count < INT32_MAX, "%zu tensors", count);
    a->in = ds__participants_alloc(&a->w, 2 * count);
    if (!a->in)
        return a->w.r;
    a->out = a->in + count;
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__all_open_rank(a, tensors[i], outs[i], i);
    if (r == DS_OK)
        r = ds__outputs_check_disjoint(a->out, count);
    return r == DS_OK ? ds__work_settle(&a->w) : r;
}

/* Runs the list if r is DS_OK, and closes the call. */
static ds_result ds__all_end(ds__all *a, ds_result r) {
    if (r == DS_OK)
        r = ds__work_run(&a->w);
    ds__work_end(&a->w);
    return r;
}

/* Part i of a tensor of `count` equal parts along dimension 0. */
static ds__participant ds__all_part(const ds__all *a, const ds__participant *p, size_t i) {
    int64_t size = p->d.shape[0] / (int64_t)a->count;
    return ds__participant_slice(p, 0, (ds__slice){ (int64_t)i * size, size });
}

/* Where output i may lie in input i: NCCL's rules of in-place operations. */
enum {
    DS__IN_PLACE_SAME,   /* all-reduce: it is the input */
    DS__IN_PLACE_INPUT,  /* reduce-scatter: it is part i of the input */
    DS__IN_PLACE_OUTPUT, /* all-gather: its part i is the input */
    DS__IN_PLACE_NEVER   /* all-to-all */
};

static int ds__all_is_in_place(const ds__all *a, size_t i, int rule) {
    const ds__participant *out = &a->out[i];
    const ds__participant *in = &a->in[i];
    ds__participant part;
    switch (rule) {
    case DS__IN_PLACE_SAME:
        return ds__same_place(out, in);
    case DS__IN_PLACE_INPUT:
        part = ds__all_part(a, in, i);
        return ds__same_place(&part, out);
    case DS__IN_PLACE_OUTPUT:
        part = ds__all_part(a, out, i);
        return ds__same_place(&part, in);
    default:
        return 0;
    }
}

/* Checks that the outputs share no memory with inputs, unless the rule (DS__IN_PLACE_*) allows
   it. */
static ds_result ds__all_check_disjoint(const ds__all *a, int rule) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count; i++)
        for (size_t k = 0; k < a->count && r == DS_OK; k++)
            if (i != k || !ds__all_is_in_place(a, i, rule))
                r = ds__memory_check_disjoint(&a->out[i], ds__name_of("output tensor", i),
                                              &a->in[k], ds__name_of("input tensor", k));
    return r;
}

static ds_result ds__all_check_reducible(const ds__all *a, ds_reduce_op op) {
    ds_result r = ds__reduction_check((ds__reduction){ op, a->in[0].d.dtype });
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        r = ds__on_multiples(&a->in[i], ds__name_of("input tensor", i));
        if (r == DS_OK)
            r = ds__on_multiples(&a->out[i], ds__name_of("output tensor", i));
    }
    return r;
}

/* Checks that the tensors `many` have `count` times the size of the tensors `one` in dimension
   0. */
static ds_result ds__all_check_sizes(const ds__participant *many, const char *words,
                                     const ds__participant *one, const char *other, size_t count) {
    int64_t n;
    DS__REQUIRE(one->d.ndim > 0 && many->d.ndim > 0,
                "tensors without dimensions cannot be split or concatenated");
    ds_result r = ds__same_shape(many, ds__name_of(words, 0), one, 0);
    if (r < 0)
        return r;
    DS__REQUIRE(
        !__builtin_mul_overflow(one->d.shape[0], (int64_t)count, &n) && many->d.shape[0] == n,
        "%ss have the size %lld in dimension 0; it must be %zu times %lld, the size of the %s",
        words, (long long)many->d.shape[0], count, (long long)one->d.shape[0], other);
    return DS_OK;
}

/* Returns 1 if the steps of a plan were appended. in_parts, out_parts: 1 or `count`, the blocks of
   the plan of which inputs and outputs consist. */
static int ds__all_follow(ds__all *a, ds_collective what, ds_reduce_op op, size_t in_parts,
                          size_t out_parts) {
    ds__work *w = &a->w;
    int64_t strides[DS_TENSOR_MAX_DIMS];
    const ds__division in = { 0, in_parts, strides };
    const ds__division out = { 0, out_parts, strides };
    if (!w->options->topology)
        return 0;
    ds__follow f = { .want = { .what = what }, .reduction.op = op };
    f.want.bytes = out_parts > in_parts ? a->out[0].d.bytes : a->in[0].d.bytes;
    if (!ds__follow_open(w, &f, a->out, a->count, NULL))
        return 0;
    if (out_parts == 1) {
        ds__dense_like(&a->out[0].d, strides);
    } else if (in_parts == 1) {
        ds__dense_like(&a->in[0].d, strides);
    } else {
        ds__participant part = ds__all_part(a, &a->in[0], 0);
        ds__dense_like(&part.d, strides);
    }
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
        ds__side_open(w, &f.in[i], &a->in[i], &in, 1);
        ds__side_open(w, &f.out[i], &a->out[i], &out, 0);
    }
    ds__follow_run(w, &f);
    return 1;
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* Returns slice i of `count` equal slices, in units of 64 elements. */
static ds__slice ds__slice_at(int64_t elements, size_t i, size_t count) {
    int64_t units = elements / 64 + (elements % 64 != 0);
    int64_t n = (int64_t)count;
    int64_t bound[2];
    for (int64_t k = 0; k < 2; k++) {
        int64_t at = (int64_t)i + k;
        bound[k] = (units / n * at + units % n * at / n) * 64;
        if (at == n || bound[k] > elements)
            bound[k] = elements;
    }
    return (ds__slice){ bound[0], bound[1] - bound[0] };
}

/* Finds where the results arise: in the outputs, or in temporary memory if an output has gaps. */
static void ds__all_reduce_open_results(ds__all *a, const int64_t *strides, ds__source *results) {
    ds__work *w = &a->w;
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        results[i].at = ds__same_strides(&a->out[i].d, strides)
                            ? a->out[i].at
                            : ds__temporary_add(w, ds__lane_of(w, &a->out[i]), a->out[i].d.bytes);
}

/* Copies the slices of the other lanes. In each turn, no two lanes read from the same one. */
static void ds__all_reduce_fetch(ds__all *a, const ds__source *results) {
    ds__work *w = &a->w;
    size_t item = a->in[0].d.item;
    for (size_t turn = 1; turn < a->count; turn++)
        for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
            size_t k = (i + turn) % a->count;
            uint32_t lane = ds__lane_of(w, &a->out[i]);
            ds__slice slice = ds__slice_at(a->in[0].d.count, k, a->count);
            ds__location dst = results[i].at;
            ds__location src = results[k].at;
            dst.offset += (ptrdiff_t)(slice.begin * (int64_t)item);
            src.offset += (ptrdiff_t)(slice.begin * (int64_t)item);
            ds__come_after(w, lane, results[k].ready);
            ds__step_copy_add(w, lane, dst, src, (size_t)slice.size * item);
        }
}

/* Returns 1 if one kernel can reduce all inputs to all outputs: it runs on the processor and can
   use all memory as it is. Observers are told of the steps of each lane instead. */
static int ds__all_reduce_is_one(ds__all *a, const ds__source *sources, const ds__source *results,
                                 ds_reduce_op op) {
    ds__work *w = &a->w;
    uint32_t lane = ds__lane_of(w, &a->out[0]);
    int real = a->in[0].d.dtype.code == DS_CODE_FLOAT || a->in[0].d.dtype.code == DS_CODE_BFLOAT;
    if (a->count < 2 || a->count > DS__COMM_INPUTS || !a->in[0].d.count ||
        !w->lane[0].s->driver->spreads() || ds__captures_open() || ds__observer_is_set() ||
        (op == DS_REDUCE_AVERAGE && !real))
        return 0;
    for (size_t i = 0; i < a->count; i++)
        if (sources[i].ready != DS__NO_INDEX || results[i].at.region != a->out[i].at.region ||
            !ds__step_reaches(w, lane, sources[i].at.region) ||
            !ds__step_reaches(w, lane, results[i].at.region))
            return 0;
    return 1;
}

/* Appends one step that reduces all inputs to all outputs. */
static void ds__all_reduce_at_once(ds__all *a, const ds__source *sources, const ds__source *results,
                                   ds__reduction reduction) {
    ds__work *w = &a->w;
    uint32_t first = (uint32_t)w->locations;
    for (size_t i = 0; i < 2 * a->count; i++) {
        ds__location *location = DS__MORE(w, location);
        if (!location)
            return;
        *location = i < a->count ? sources[i].at : results[i - a->count].at;
    }
    uint32_t i = ds__step_reduce_add(w, ds__lane_of(w, &a->out[0]), results[0].at, first, reduction,
                                     (size_t)a->in[0].d.count);
    if (i != DS__NO_INDEX)
        w->step[i].kind = DS__STEP_REDUCE_ALL;
}

/* Appends the steps of the direct path. */
static ds_result ds__all_reduce_steps(ds__all *a, ds_reduce_op op) {
    ds__work *w = &a->w;
    int64_t strides[DS_TENSOR_MAX_DIMS];
    ds__reduction reduction = { op, a->in[0].d.dtype };
    ds__source *sources = ds__sources_alloc(w, 2 * a->count);
    if (!sources)
        return w->r;
    ds__source *results = sources + a->count;
    ds__dense_like(&a->out[0].d, strides);
    ds__sources_of(w, a->in, a->count, strides, sources);
    ds__all_reduce_open_results(a, strides, results);
    if (w->r == DS_OK && ds__all_reduce_is_one(a, sources, results, op)) {
        ds__all_reduce_at_once(a, sources, results, reduction);
        return w->r;
    }
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        results[i].ready = ds__reduce_slice(w, results[i].at, sources, a->count, reduction,
                                            ds__slice_at(a->in[0].d.count, i, a->count));
    ds__all_reduce_fetch(a, results);
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        if (!ds__same_strides(&a->out[i].d, strides))
            ds__copy_add(w, ds__lane_of(w, &a->out[i]), ds__operand_of(&a->out[i]),
                         (ds__operand){ results[i].at, strides }, &a->out[i].d);
    return w->r;
}

/* The call of a collective that has as many outputs as inputs. */
#define DS__ALL_CALL(verb_, op_)                                                            \
    (ds__comm_call) {                                                                       \
        .verb = (verb_), .in = tensors, .out = outs, .in_count = count, .out_count = count, \
        .op = (op_), .options = options                                                     \
    }

DSDEF ds_result(ds_comm_all_reduce)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, ds_reduce_op op, const ds_comm_options *options) {
    ds__all a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_all_reduce");
    if (ds__comm_leave(&DS__ALL_CALL(DS__VERB_ALL_REDUCE, op), &r))
        return r;
    r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__same_shape(&a.out[0], ds__name_of("output tensor", 0), &a.in[0], -1);
    if (r == DS_OK)
        r = ds__all_check_reducible(&a, op);
    if (r == DS_OK)
        r = ds__all_check_disjoint(&a, DS__IN_PLACE_SAME);
    if (r == DS_OK && !ds__all_follow(&a, DS_ALL_REDUCE, op, 1, 1))
        r = ds__all_reduce_steps(&a, op);
    return ds__all_end(&a, r);
}

/* ---- all-gather, reduce-scatter, all-to-all -------------------------------------------------- */

/* Copies input k to part k of all outputs. */
static void ds__all_gather_steps(ds__all *a) {
    ds__work *w = &a->w;
    for (size_t turn = 0; turn < a->count; turn++)
        for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
            size_t k = (i + turn) % a->count;
            ds__participant part = ds__all_part(a, &a->out[i], k);
            if (!ds__same_place(&part, &a->in[k]))
                ds__copy_participant(w, ds__lane_of(w, &part), &part, &a->in[k]);
        }
}

DSDEF ds_result(ds_comm_all_gather)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, const ds_comm_options *options) {
    ds__all a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_all_gather");
    if (ds__comm_leave(&DS__ALL_CALL(DS__VERB_ALL_GATHER, DS_REDUCE_SUM), &r))
        return r;
    r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__all_check_sizes(&a.out[0], "output tensor", &a.in[0], "input tensor", count);
    if (r == DS_OK)
        r = ds__all_check_disjoint(&a, DS__IN_PLACE_OUTPUT);
    if (r == DS_OK && !ds__all_follow(&a, DS_ALL_GATHER, DS_REDUCE_SUM, 1, count))
        ds__all_gather_steps(&a);
    return ds__all_end(&a, r);
}

/* Reduces part i of all inputs to output i. */
static ds_result ds__reduce_scatter_steps(ds__all *a, ds_reduce_op op) {
    ds__work *w = &a->w;
    ds__participant *part = ds__participants_alloc(w, a->count);
    ds__source *sources = ds__sources_alloc(w, a->count);
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
        for (size_t k = 0; k < a->count; k++)
            part[k] = ds__all_part(a, &a->in[k], i);
        ds__reduce_direct(w, part, a->count, &a->out[i], op, sources);
    }
    return w->r;
}

DSDEF ds_result(ds_comm_reduce_scatter)(const ds_tensor *const *tensors,
                                        const ds_tensor *const *outs, size_t count, ds_reduce_op op,
                                        const ds_comm_options *options) {
    ds__all a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_reduce_scatter");
    if (ds__comm_leave(&DS__ALL_CALL(DS__VERB_REDUCE_SCATTER, op), &r))
        return r;
    r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__all_check_sizes(&a.in[0], "input tensor", &a.out[0], "output tensor", count);
    if (r == DS_OK)
        r = ds__all_check_reducible(&a, op);
    if (r == DS_OK)
        r = ds__all_check_disjoint(&a, DS__IN_PLACE_INPUT);
    if (r == DS_OK && !ds__all_follow(&a, DS_REDUCE_SCATTER, op, count, 1))
        r = ds__reduce_scatter_steps(&a, op);
    return ds__all_end(&a, r);
}

static ds_result ds__all_to_all_check(const ds__all *a) {
    const ds__participant *in = &a->in[0];
    ds_result r = ds__same_shape(&a->out[0], ds__name_of("output tensor", 0), in, -1);
    if (r < 0)
        return r;
    DS__REQUIRE(in->d.ndim, "tensors without dimensions cannot be split");
    DS__REQUIRE(in->d.shape[0] % (int64_t)a->count == 0,
                "the size in dimension 0, %lld, cannot be split into %zu equal parts",
                (long long)in->d.shape[0], a->count);
    return ds__all_check_disjoint(a, DS__IN_PLACE_NEVER);
}

/* Copies part i of input k to part k of output i. */
static void ds__all_to_all_steps(ds__all *a) {
    ds__work *w = &a->w;
    for (size_t turn = 0; turn < a->count; turn++)
        for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
            size_t k = (i + turn) % a->count;
            ds__participant to = ds__all_part(a, &a->out[i], k);
            ds__participant from = ds__all_part(a, &a->in[k], i);
            ds__copy_participant(w, ds__lane_of(w, &to), &to, &from);
        }
}

DSDEF ds_result(ds_comm_all_to_all)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, const ds_comm_options *options) {
    ds__all a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_all_to_all");
    if (ds__comm_leave(&DS__ALL_CALL(DS__VERB_ALL_TO_ALL, DS_REDUCE_SUM), &r))
        return r;
    r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__all_to_all_check(&a);
    if (r == DS_OK && !ds__all_follow(&a, DS_ALL_TO_ALL, DS_REDUCE_SUM, count, count))
        ds__all_to_all_steps(&a);
    return ds__all_end(&a, r);
}

/* ---- barrier --------------------------------------------------------------------------------- */

DSDEF ds_result(ds_comm_barrier)(const ds_stream *streams, size_t count) {
    ds__work w;
    const ds_comm_options *options = NULL;
    DS__COMM_BEGIN("ds_comm_barrier");
    ds__work_begin(&w, options);
    DS__REQUIRE(streams || !count, "streams is NULL");
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t lane;
        if (!streams[i].id)
            r = ds__fail(DS_ERR_INVALID_HANDLE,
                         "no stream was given at index %zu (the handle is zero)", i);
        else
            r = ds__lane_find(&w, streams[i], ds__name_of("entry", i),
                              (ds_device){ DS_DEVICE_HOST, 0 }, &lane);
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
