/* comm/scatter_gather.h - scatter and gather.

   Implements ds_comm_scatter and ds_comm_gather, which create results, and ds_comm_scatter_into
   and ds_comm_gather_into for tensors of the caller. ds__parts_follow writes the steps of a plan
   for both; ds__scatter_run and ds__gather_run write the direct copies.

   Invariants: the pieces fill the dimension exactly, in the order of the list. A plan is
   followed only if all pieces have one size. On the direct path, a scatter copies on the lanes
   of the outputs and a gather on the lanes of the inputs. A created gather result has the
   dimension order of the inputs if they agree, else row-major order. On failure, created results
   are freed and set to NULL.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__COMM_SCATTER_GATHER_H
#define DS__COMM_SCATTER_GATHER_H

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

/* A tensor and its pieces along a dimension: a call of scatter or gather. */
typedef struct ds__parts {
    ds__participant whole;
    ds__participant *part; /* outputs of a scatter, inputs of a gather */
    size_t count;
    int dim;
    ds__work w;
} ds__parts;

static void ds__parts_begin(ds__parts *a, const ds_comm_options *options, int dim, size_t count) {
    ds__work_begin(&a->w, options);
    a->dim = dim;
    a->count = count;
    a->part = ds__participants_alloc(&a->w, count);
}

/* The place of a piece in the whole tensor. *at: where the piece begins; moves on by its size. */
static ds__participant ds__parts_slice(const ds__parts *a, size_t i, int64_t *at) {
    ds__slice slice = { *at, a->part[i].d.shape[a->dim] };
    *at += slice.size;
    return ds__participant_slice(&a->whole, a->dim, slice);
}

/* Returns 1 if the steps of a plan were appended. */
static int ds__parts_follow(ds__parts *a, ds_collective what) {
    ds__work *w = &a->w;
    int64_t strides[DS_TENSOR_MAX_DIMS];
    const ds__division cut = { a->dim, a->count, strides };
    const ds__division piece = { 0, 1, strides };
    if (!w->options->topology)
        return 0;
    for (size_t i = 0; i < a->count; i++)
        if (a->part[i].d.shape[a->dim] != a->part[0].d.shape[a->dim])
            return ds__follow_not(w, "the piece at index %zu has another size than the first", i);
    ds__follow f = { .want = { .what = what, .bytes = a->whole.d.bytes } };
    if (!ds__follow_open(w, &f, a->part, a->count, &a->whole))
        return 0;
    ds__dense_like(&a->part[0].d, strides);
    ds__side *one = what == DS_SCATTER ? &f.in[f.want.root] : &f.out[f.want.root];
    ds__side *all = what == DS_SCATTER ? f.out : f.in;
    ds__side_open(w, one, &a->whole, &cut, what == DS_SCATTER);
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        ds__side_open(w, &all[i], &a->part[i], &piece, what == DS_GATHER);
    ds__follow_run(w, &f);
    return 1;
}

/* ---- scatter --------------------------------------------------------------------------------- */

/* The pieces of a scatter: sizes of the caller or, without them, torch.chunk's rule, under which
   there may be fewer pieces than devices. */
typedef struct ds__chunks {
    const int64_t *sizes;
    size_t count;
    int64_t length; /* of all pieces but the last, if `sizes` is NULL */
} ds__chunks;

static ds_result ds__chunk_sizes_check(const int64_t *sizes, size_t count, int64_t size, int dim) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        DS__REQUIRE(sizes[i] >= 0, "chunk_sizes[%zu] is %lld; it must not be negative", i,
                    (long long)sizes[i]);
        DS__REQUIRE(sizes[i] <= size - sum,
                    "the sum of chunk_sizes exceeds %lld, the size of dimension %d, at index %zu",
                    (long long)size, dim, i);
        sum += sizes[i];
    }
    DS__REQUIRE(sum == size, "the sum of chunk_sizes is %lld, but the size of dimension %d is %lld",
                (long long)sum, dim, (long long)size);
    return DS_OK;
}

/* Divides a dimension of a size among at most `count` devices. */
static ds_result ds__chunks_init(ds__chunks *c, const int64_t *sizes, size_t count, int64_t size,
                                 int dim) {
    *c = (ds__chunks){ sizes, count, 0 };
    if (sizes)
        return ds__chunk_sizes_check(sizes, count, size, dim);
    int64_t n = (int64_t)count;
    c->length = size / n + (size % n != 0);
    if (size)
        c->count = (size_t)(size / c->length + (size % c->length != 0));
    return DS_OK;
}

/* Returns the size of piece i; rest: the indices that are left. */
static int64_t ds__chunk_size(const ds__chunks *c, size_t i, int64_t rest) {
    if (c->sizes)
        return c->sizes[i];
    return c->length < rest ? c->length : rest;
}

/* Copies the pieces to the outputs. from[i]: the place of piece i in the whole tensor. */
static ds_result ds__scatter_run(ds__parts *a, const ds__participant *from) {
    ds__work *w = &a->w;
    if (a->count && ds__parts_follow(a, DS_SCATTER))
        return ds__work_run(w);
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        if (!ds__same_place(&from[i], &a->part[i]))
            ds__copy_participant(w, ds__lane_of(w, &a->part[i]), &a->part[i], &from[i]);
    return ds__work_run(w);
}

/* Creates the results. Those of DS_COMM_ALIAS are no pieces of the call. */
static ds_result ds__scatter_results_create(ds__parts *a, const ds_tensor *tensor,
                                            const ds_device *devices, const ds__chunks *chunks,
                                            ds__participant *from, ds_tensor **out) {
    ds__work *w = &a->w;
    int64_t size = a->whole.d.shape[a->dim];
    int64_t at = 0;
    a->count = 0;
    ds_result r = ds__results_lanes(w, devices, chunks->count, &a->whole);
    for (size_t i = 0; i < chunks->count && r == DS_OK; i++) {
        ds__destination to;
        ds__participant *piece = &from[a->count];
        ds__slice slice = { at, ds__chunk_size(chunks, i, size - at) };
        *piece = ds__participant_slice(&a->whole, a->dim, slice);
        at += slice.size;
        r = ds__destination_at(devices, i, &to);
        if (r == DS_OK && ds__result_is_alias(w, to.device, &a->whole))
            r = ds__tensor_show(tensor, &piece->d, &out[i]);
        else if (r == DS_OK)
            r = ds__result_create(w, &piece->d, &to, &a->part[a->count++], &out[i]);
    }
    return r == DS_OK && a->count ? ds__work_settle(w) : r;
}

DSDEF ds_result(ds_comm_scatter)(const ds_tensor *tensor, const ds_device *devices, size_t count,
                                 const int64_t *chunk_sizes, int dim,
                                 const ds_comm_options *options, ds_tensor **out,
                                 size_t *out_count) {
    ds__parts a;
    ds__chunks chunks = { NULL, 0, 0 };
    if (out)
        memset(out, 0, count * sizeof *out);
    if (out_count)
        *out_count = 0;
    DS__COMM_BEGIN_CREATING("ds_comm_scatter", "ds_comm_scatter_into");
    DS__REQUIRE(count, "there are no devices to scatter to");
    DS__REQUIRE(devices && out, "%s is NULL", devices ? "out" : "devices");
    DS__REQUIRE(count <= INT64_MAX, "%zu devices", count);
    ds__parts_begin(&a, options, dim, count);
    ds__participant *from = ds__participants_alloc(&a.w, count);
    ds_result r = a.w.r;
    if (r == DS_OK)
        r = ds__input_open(&a.w, tensor, "the tensor", DS__NO_LIST, &a.whole);
    if (r == DS_OK)
        r = ds__dim_resolve(&a.dim, a.whole.d.ndim);
    if (r == DS_OK)
        r = ds__chunks_init(&chunks, chunk_sizes, count, a.whole.d.shape[a.dim], a.dim);
    if (r == DS_OK)
        r = ds__scatter_results_create(&a, tensor, devices, &chunks, from, out);
    if (r == DS_OK)
        r = ds__scatter_run(&a, from);
    if (r < 0)
        ds__results_destroy(out, count);
    else if (out_count)
        *out_count = chunks.count;
    ds__work_end(&a.w);
    return r;
}

/* Checks that the pieces fit the tensor, and together have its size. */
static ds_result ds__parts_check(const ds__parts *a, const char *words) {
    int64_t sum = 0;
    for (size_t i = 0; i < a->count; i++) {
        ds_result r = ds__same_form(&a->part[i], ds__name_of(words, i), &a->whole, a->dim);
        if (r < 0)
            return r;
        DS__REQUIRE(!__builtin_add_overflow(sum, a->part[i].d.shape[a->dim], &sum),
                    "the sizes in dimension %d are too large", a->dim);
    }
    DS__REQUIRE(sum == a->whole.d.shape[a->dim],
                "the sum of the sizes in dimension %d is %lld; it must be %lld", a->dim,
                (long long)sum, (long long)a->whole.d.shape[a->dim]);
    return DS_OK;
}

/* Opens the outputs, and checks them against the tensor and each other. */
static ds_result ds__scatter_open_outputs(ds__parts *a, const ds_tensor *const *outs,
                                          ds__participant *from) {
    int64_t at = 0;
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count && r == DS_OK; i++)
        r = ds__output_open(&a->w, outs[i], "output tensor", i, &a->part[i]);
    if (r == DS_OK)
        r = ds__parts_check(a, "output tensor");
    if (r == DS_OK)
        r = ds__outputs_check_disjoint(a->part, a->count);
    if (r == DS_OK)
        r = ds__work_settle(&a->w);
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        from[i] = ds__parts_slice(a, i, &at);
        if (!ds__same_place(&from[i], &a->part[i]))
            r = ds__memory_check_disjoint(&a->part[i], ds__name_of("output tensor", i), &a->whole,
                                          ds__name_of("tensor to send", DS__NO_LIST));
    }
    return r;
}

DSDEF ds_result(ds_comm_scatter_into)(const ds_tensor *tensor, const ds_tensor *const *outs,
                                      size_t count, int dim, const ds_comm_options *options) {
    ds__parts a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_scatter_into");
    if (ds__comm_leave(&(ds__comm_call){ .verb = DS__VERB_SCATTER,
                                         .in = &tensor,
                                         .out = outs,
                                         .in_count = 1,
                                         .out_count = count,
                                         .dim = dim,
                                         .options = options },
                       &r))
        return r;
    DS__REQUIRE(count && outs, "there are no output tensors to scatter to");
    ds__parts_begin(&a, options, dim, count);
    ds__participant *from = ds__participants_alloc(&a.w, count);
    r = a.w.r;
    if (r == DS_OK)
        r = ds__input_open(&a.w, tensor, "the tensor", DS__NO_LIST, &a.whole);
    if (r == DS_OK)
        r = ds__dim_resolve(&a.dim, a.whole.d.ndim);
    if (r == DS_OK)
        r = ds__scatter_open_outputs(&a, outs, from);
    if (r == DS_OK)
        r = ds__scatter_run(&a, from);
    ds__work_end(&a.w);
    return r;
}

/* ---- gather ---------------------------------------------------------------------------------- */

/* Adds up the sizes of the inputs. The order of the dimensions is that of the inputs if they agree,
   else row-major. */
static ds_result ds__gather_add_inputs(const ds__parts *a, ds__dims *whole) {
    int order[DS_TENSOR_MAX_DIMS];
    int other[DS_TENSOR_MAX_DIMS];
    const ds__participant *first = &a->part[0];
    int64_t *size = &whole->shape[a->dim];
    int n = ds__by_stride(&first->d, order);
    int agree = 1;
    for (size_t i = 1; i < a->count; i++) {
        const ds__participant *p = &a->part[i];
        ds_result r = ds__same_form(p, ds__name_of("input tensor", i), first, a->dim);
        if (r < 0)
            return r;
        DS__REQUIRE(!__builtin_add_overflow(*size, p->d.shape[a->dim], size),
                    "the sizes in dimension %d are too large", a->dim);
        int m = ds__by_stride(&p->d, other);
        agree &= m == n && memcmp(order, other, (size_t)n * sizeof *order) == 0;
    }
    if (!agree)
        ds__row_major(whole->ndim, whole->shape, whole->strides);
    return DS_OK;
}

/* Opens the inputs, and computes the description of the result. */
static ds_result ds__gather_open(ds__parts *a, const ds_tensor *const *tensors, ds__dims *whole) {
    ds__dims fresh;
    DS__REQUIRE(a->count && tensors, "there are no tensors to gather");
    ds_result r = a->w.r;
    for (size_t i = 0; i < a->count && r == DS_OK; i++)
        r = ds__input_open(&a->w, tensors[i], "input tensor", i, &a->part[i]);
    if (r == DS_OK)
        r = ds__dim_resolve(&a->dim, a->part[0].d.ndim);
    if (r < 0)
        return r;
    *whole = a->part[0].d;
    r = ds__gather_add_inputs(a, whole);
    if (r < 0)
        return r;
    r = ds__dims_read(whole->dtype, whole->ndim, whole->shape, NULL,
                      ds__name_of("the result", DS__NO_LIST), &fresh);
    whole->count = fresh.count;
    whole->bytes = fresh.bytes;
    return r;
}

/* Checks that the inputs share no memory with the result, and copies them to their places there,
   each on its own lane. */
static ds_result ds__gather_run(ds__parts *a) {
    ds__work *w = &a->w;
    int64_t at = 0;
    ds_result r = ds__work_settle(w);
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        ds__participant place = ds__parts_slice(a, i, &at);
        if (!ds__same_place(&place, &a->part[i]))
            r = ds__memory_check_disjoint(&a->whole, ds__name_of("the result", DS__NO_LIST),
                                          &a->part[i], ds__name_of("input tensor", i));
    }
    if (r < 0 || ds__parts_follow(a, DS_GATHER))
        return r < 0 ? r : ds__work_run(w);
    at = 0;
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
        ds__participant place = ds__parts_slice(a, i, &at);
        if (!ds__same_place(&place, &a->part[i]))
            ds__copy_participant(w, ds__lane_of(w, &a->part[i]), &place, &a->part[i]);
    }
    return ds__work_run(w);
}

DSDEF ds_result(ds_comm_gather)(const ds_tensor *const *tensors, size_t count, int dim,
                                ds_device destination, const ds_comm_options *options,
                                ds_tensor **out) {
    ds__parts a;
    ds__dims whole;
    ds__destination to = { { 0, 0 }, DS__NO_LIST, DS__NO_LIST };
    if (out)
        *out = NULL;
    DS__COMM_BEGIN_CREATING("ds_comm_gather", "ds_comm_gather_into");
    DS__REQUIRE(out, "out is NULL");
    ds__parts_begin(&a, options, dim, count);
    ds_result r = a.w.r;
    if (r == DS_OK)
        r = ds__comm_device(destination, ds__name_of("the destination", DS__NO_LIST), &to.device);
    if (r == DS_OK)
        r = ds__gather_open(&a, tensors, &whole);
    if (r == DS_OK)
        r = ds__result_create(&a.w, &whole, &to, &a.whole, out);
    if (r == DS_OK)
        r = ds__gather_run(&a);
    if (r < 0)
        ds__results_destroy(out, 1);
    ds__work_end(&a.w);
    return r;
}

DSDEF ds_result(ds_comm_gather_into)(const ds_tensor *const *tensors, size_t count, int dim,
                                     const ds_tensor *out, const ds_comm_options *options) {
    ds__parts a;
    ds__participant like;
    ds__name name = ds__name_of("the output tensor", DS__NO_LIST);
    ds_result r;
    DS__COMM_BEGIN("ds_comm_gather_into");
    if (ds__comm_leave(&(ds__comm_call){ .verb = DS__VERB_GATHER,
                                         .in = tensors,
                                         .out = &out,
                                         .in_count = count,
                                         .out_count = 1,
                                         .dim = dim,
                                         .options = options },
                       &r))
        return r;
    ds__parts_begin(&a, options, dim, count);
    r = ds__gather_open(&a, tensors, &like.d);
    if (r == DS_OK)
        r = ds__output_open(&a.w, out, name.words, name.index, &a.whole);
    if (r == DS_OK)
        r = ds__same_dtype(&a.whole, name, &a.part[0]);
    if (r == DS_OK)
        r = ds__same_shape(&a.whole, name, &like, -1);
    if (r == DS_OK)
        r = ds__gather_run(&a);
    ds__work_end(&a.w);
    return r;
}

#endif
