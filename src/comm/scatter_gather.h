/* comm/scatter_gather.h - scatter and gather.

   Implements ds_comm_scatter and ds_comm_gather, which create results, and ds_comm_scatter_into
   and ds_comm_gather_into for tensors of the caller. ds__parts_follow writes the steps of a plan
   for both; each public function or ds__gather_steps writes the direct copies.

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
#include "types.h"
#include "step.h"
#include "move.h"
#include "join.h"
#include "result.h"
#include "side_stream.h"
#include "follow_plan.h"

/* torch.chunk: how many pieces, and how long they are. */
static size_t ds__chunk_count(int64_t size, size_t count, int64_t *out_length) {
    int64_t n = (int64_t)count;
    *out_length = size / n + (size % n != 0);
    return size ? (size_t)(size / *out_length + (size % *out_length != 0)) : count;
}

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

/* By plan: parts of one size, and one on each rank; `whole` is cut, or becomes all. */
static int ds__parts_follow(ds__work *w, const ds_comm_options *o, ds_collective what,
                            const ds__participant *whole, const ds__participant *part, size_t count,
                            int dim) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    ds__follow f;
    if (!o->topology)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (part[i].d.shape[dim] != part[0].d.shape[dim])
            return ds__follow_not(w, o, "the piece at index %zu has another size than the first",
                                  i);
    if (!ds__follow_open(w, &f, o, what, part, count, whole, whole->d.bytes))
        return 0;
    ds__dense_like(&part[0].d, strides);
    ds__side *one = what == DS_SCATTER ? &f.in[f.want.root] : &f.out[f.want.root];
    ds__side *all = what == DS_SCATTER ? f.out : f.in;
    ds__side_open(w, one, whole, dim, count, strides, what == DS_SCATTER);
    for (size_t i = 0; i < count && w->r == DS_OK; i++)
        ds__side_open(w, &all[i], &part[i], 0, 1, strides, what == DS_GATHER);
    ds__follow_run(w, &f);
    for (size_t i = 0; i < count && w->r == DS_OK && what == DS_SCATTER; i++)
        if (all[i].apart)
            ds__side_move(w, &all[i], 0, 1, strides, 1);
    if (w->r == DS_OK && what == DS_GATHER && one->apart)
        ds__side_move(w, one, dim, count, strides, 1);
    return 1;
}

DSDEF ds_result(ds_comm_scatter)(const ds_tensor *tensor, const ds_device *devices, size_t count,
                                 const int64_t *chunk_sizes, int dim,
                                 const ds_comm_options *options, ds_tensor **out,
                                 size_t *out_count) {
    ds__work w;
    ds__participant from;
    int64_t at = 0;
    int64_t length = 0;
    if (out)
        memset(out, 0, count * sizeof *out);
    if (out_count)
        *out_count = 0;
    DS__COMM_BEGIN("ds_comm_scatter");
    ds__work_begin(&w);
    DS__REQUIRE(count, "there are no devices to scatter to");
    DS__REQUIRE(devices && out, "%s is NULL", devices ? "out" : "devices");
    DS__REQUIRE(count <= INT64_MAX, "%zu devices", count);
    /* results, and the pieces they come from */
    ds__participant *to = ds__parties_alloc(&w, 2 * count);
    ds__participant *part = to ? to + count : NULL;
    if (!to)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__participant_open(&w, options, tensor, "the tensor", -1, -1, 0, &from);
    if (r == DS_OK)
        r = ds__comm_dim(&dim, from.d.ndim);
    if (r == DS_OK && chunk_sizes)
        r = ds__chunk_sizes_check(chunk_sizes, count, from.d.shape[dim], dim);
    size_t pieces = r < 0         ? 0
                    : chunk_sizes ? count
                                  : ds__chunk_count(from.d.shape[dim], count, &length);
    size_t made = 0;
    if (r == DS_OK)
        r = ds__results_lanes(&w, options, devices, pieces, &from);
    for (size_t i = 0; i < pieces && r == DS_OK; i++) {
        ds_device device = { 0, 0 };
        int64_t rest = from.d.shape[dim] - at;
        part[made] = ds__party_part(&from, dim, &at,
                                    chunk_sizes     ? chunk_sizes[i]
                                    : length < rest ? length
                                                    : rest);
        r = ds__comm_device(devices[i], "the device", (int64_t)i, &device);
        if (r == DS_OK && options->flags & DS_COMM_ALIAS && ds__same_device(device, from.d.device))
            r = ds__tensor_show(tensor, &part[made].d, &out[i]);
        else if (r == DS_OK) {
            r = ds__result_make(&w, options, &part[made].d, device, (int64_t)i, (int64_t)i,
                                &to[made], &out[i]);
            made++;
        }
    }
    if (r == DS_OK && made)
        r = ds__work_settle(&w);
    int planned =
        r == DS_OK && made && ds__parts_follow(&w, options, DS_SCATTER, &from, to, made, dim);
    for (size_t i = 0; i < made && r == DS_OK && !planned; i++) {
        ds__copy_add(&w, ds__lane_of(&w, &to[i]), ds__location_of(&to[i]), to[i].d.strides,
                     ds__location_in(&w, &part[i]), from.d.strides, from.d.ndim, to[i].d.shape,
                     to[i].d.item);
        r = w.r;
    }
    if (r == DS_OK)
        r = ds__work_run(&w);
    if (r < 0)
        ds__results_drop(out, count);
    else if (out_count)
        *out_count = pieces;
    ds__work_end(&w);
    return r;
}

/* Tensors that together have the size of `whole` along a dimension. */
static ds_result ds__parts_check(const ds__participant *p, size_t count, const char *what,
                                 const ds__participant *whole, int dim) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        ds_result r = ds__same_dtype(&p[i], what, (int64_t)i, whole);
        if (r == DS_OK)
            r = ds__same_shape(&p[i], what, (int64_t)i, whole, dim);
        if (r < 0)
            return r;
        DS__REQUIRE(!__builtin_add_overflow(sum, p[i].d.shape[dim], &sum),
                    "the sizes in dimension %d are too large", dim);
    }
    DS__REQUIRE(sum == whole->d.shape[dim],
                "the sum of the sizes in dimension %d is %lld; it must be %lld", dim,
                (long long)sum, (long long)whole->d.shape[dim]);
    return DS_OK;
}

DSDEF ds_result(ds_comm_scatter_into)(const ds_tensor *tensor, const ds_tensor *const *outs,
                                      size_t count, int dim, const ds_comm_options *options) {
    ds__work w;
    ds__participant from;
    ds__participant part;
    int64_t at = 0;
    DS__COMM_BEGIN("ds_comm_scatter_into");
    ds__work_begin(&w);
    DS__REQUIRE(count && outs, "there are no output tensors to scatter to");
    ds__participant *to = ds__parties_alloc(&w, count);
    ds_result r = to ? ds__participant_open(&w, options, tensor, "the tensor", -1, -1, 0, &from)
                     : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__comm_dim(&dim, from.d.ndim);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__participant_open(&w, options, outs[i], "output tensor", (int64_t)i, (int64_t)i, 1,
                                 &to[i]);
    if (r == DS_OK)
        r = ds__parts_check(to, count, "output tensor", &from, dim);
    if (r == DS_OK)
        r = ds__all_apart(to, "output tensor", count);
    if (r == DS_OK)
        r = ds__work_settle(&w);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        part = ds__party_part(&from, dim, &at, to[i].d.shape[dim]);
        if (!ds__same_place(&part, &to[i]))
            r = ds__memory_check_disjoint(&to[i], "output tensor", (int64_t)i, &from,
                                          "tensor to send", -1);
    }
    int planned = r == DS_OK && ds__parts_follow(&w, options, DS_SCATTER, &from, to, count, dim);
    at = 0;
    for (size_t i = 0; i < count && r == DS_OK && !planned; i++) {
        part = ds__party_part(&from, dim, &at, to[i].d.shape[dim]);
        if (ds__same_place(&part, &to[i]))
            continue;
        ds__copy_add(&w, ds__lane_of(&w, &to[i]), ds__location_of(&to[i]), to[i].d.strides,
                     ds__location_in(&w, &part), from.d.strides, from.d.ndim, to[i].d.shape,
                     to[i].d.item);
        r = w.r;
    }
    if (r == DS_OK)
        r = ds__work_run(&w);
    ds__work_end(&w);
    return r;
}

static ds_result ds__gather_open(ds__work *w, const ds_comm_options *o,
                                 const ds_tensor *const *tensors, size_t count, int *dim,
                                 ds__participant *from, ds__dims *whole) {
    DS__REQUIRE(count && tensors, "there are no tensors to gather");
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__participant_open(w, o, tensors[i], "input tensor", (int64_t)i, (int64_t)i, 0,
                                 &from[i]);
    if (r == DS_OK)
        r = ds__comm_dim(dim, from[0].d.ndim);
    if (r < 0)
        return r;
    *whole = from[0].d;
    int order[DS_TENSOR_MAX_DIMS];
    int other[DS_TENSOR_MAX_DIMS];
    int alike = 1;
    int n = ds__by_stride(&from[0].d, order);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__same_dtype(&from[i], "input tensor", (int64_t)i, &from[0]);
        if (r == DS_OK)
            r = ds__same_shape(&from[i], "input tensor", (int64_t)i, &from[0], *dim);
        if (r < 0 || !i)
            continue;
        if (__builtin_add_overflow(whole->shape[*dim], from[i].d.shape[*dim], &whole->shape[*dim]))
            r = ds__fail(DS_ERR_INVALID_VALUE, "the sizes in dimension %d are too large", *dim);
        int m = ds__by_stride(&from[i].d, other);
        alike &= m == n && memcmp(order, other, (size_t)n * sizeof *order) == 0;
    }
    if (r < 0)
        return r;
    if (!alike)
        ds__row_major(whole->ndim, whole->shape, whole->strides);
    ds__dims fresh;
    r = ds__dims_read(whole->dtype, whole->ndim, whole->shape, NULL, "the result", -1, &fresh);
    whole->count = fresh.count;
    whole->bytes = fresh.bytes;
    return r;
}

/* The inputs go to their parts of the result, each on its own lane. */
static ds_result ds__gather_steps(ds__work *w, const ds_comm_options *o,
                                  const ds__participant *from, size_t count, int dim,
                                  const ds__participant *to) {
    int64_t at = 0;
    ds_result r = ds__work_settle(w);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds__participant part = ds__party_part(to, dim, &at, from[i].d.shape[dim]);
        if (!ds__same_place(&part, &from[i]))
            r = ds__memory_check_disjoint(to, "the result", -1, &from[i], "input tensor",
                                          (int64_t)i);
    }
    int planned = r == DS_OK && ds__parts_follow(w, o, DS_GATHER, to, from, count, dim);
    at = 0;
    for (size_t i = 0; i < count && r == DS_OK && !planned; i++) {
        ds__participant part = ds__party_part(to, dim, &at, from[i].d.shape[dim]);
        if (ds__same_place(&part, &from[i]))
            continue;
        ds__copy_add(w, ds__lane_of(w, &from[i]), ds__location_in(w, &part), to->d.strides,
                     ds__location_of(&from[i]), from[i].d.strides, to->d.ndim, from[i].d.shape,
                     to->d.item);
        r = w->r;
    }
    return r < 0 ? r : ds__work_run(w);
}

DSDEF ds_result(ds_comm_gather)(const ds_tensor *const *tensors, size_t count, int dim,
                                ds_device destination, const ds_comm_options *options,
                                ds_tensor **out) {
    ds__work w;
    ds__participant to;
    ds__dims whole;
    if (out)
        *out = NULL;
    DS__COMM_BEGIN("ds_comm_gather");
    ds__work_begin(&w);
    DS__REQUIRE(out, "out is NULL");
    ds__participant *from = ds__parties_alloc(&w, count);
    if (!from)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__comm_device(destination, "the destination", -1, &destination);
    if (r == DS_OK)
        r = ds__gather_open(&w, options, tensors, count, &dim, from, &whole);
    if (r == DS_OK)
        r = ds__result_make(&w, options, &whole, destination, -1, -1, &to, out);
    if (r == DS_OK)
        r = ds__gather_steps(&w, options, from, count, dim, &to);
    if (r < 0)
        ds__results_drop(out, 1);
    ds__work_end(&w);
    return r;
}

DSDEF ds_result(ds_comm_gather_into)(const ds_tensor *const *tensors, size_t count, int dim,
                                     const ds_tensor *out, const ds_comm_options *options) {
    ds__work w;
    ds__participant to;
    ds__participant like;
    DS__COMM_BEGIN("ds_comm_gather_into");
    ds__work_begin(&w);
    ds__participant *from = ds__parties_alloc(&w, count);
    if (!from)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__gather_open(&w, options, tensors, count, &dim, from, &like.d);
    if (r == DS_OK)
        r = ds__participant_open(&w, options, out, "the output tensor", -1, -1, 1, &to);
    if (r == DS_OK)
        r = ds__same_dtype(&to, "the output tensor", -1, &from[0]);
    if (r == DS_OK)
        r = ds__same_shape(&to, "the output tensor", -1, &like, -1);
    if (r == DS_OK)
        r = ds__gather_steps(&w, options, from, count, dim, &to);
    ds__work_end(&w);
    return r;
}

#endif
