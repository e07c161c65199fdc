/* tensor/view.h - views of tensors.

   Implements the functions that create another tensor of the same memory: ds_tensor_view,
   _narrow, _slice, _select, _permute, _transpose, _as_real and _as_host. No function copies
   elements.

   Invariants: a view of an object is a user of its storage and has its flags. A view of another
   description has no storage, so the caller must keep the memory. A function changes first,
   shape, strides, count and types of its ds__dims; low, high, item and bytes keep the values of
   the base.
   Locks: holds none; ds__tensor_share and ds__tensor_create take ds__c.lock.
   Threads: threads of the caller. The base must not be freed during the call. */
#ifndef DS__TENSOR_VIEW_H
#define DS__TENSOR_VIEW_H

#include "../core/internal.h"
#include "internal.h"
#include "dims.h"
#include "tensor.h"

static ds_result ds__dim_resolve(int *dim, int ndim) {
    DS__REQUIRE(*dim >= -ndim && *dim < ndim,
                ndim ? "dimension %d is outside of [%d, %d]"
                     : "dimension is %d, but the tensor has no dimensions",
                *dim, -ndim, ndim - 1);
    *dim += *dim < 0 ? ndim : 0;
    return DS_OK;
}

/* Reads a tensor, and resolves a dimension of it. */
static ds_result ds__view_read(const ds_tensor *tensor, int *dim, ds__dims *d) {
    ds_result r = ds__tensor_read(tensor, ds__name_of("the tensor", DS__NO_LIST), d);
    return r < 0 ? r : ds__dim_resolve(dim, d->ndim);
}

static ds_result ds__tensor_show(const ds_tensor *base, const ds__dims *d, ds_tensor **out) {
    ds__storage *storage;
    unsigned flags;
    (void)ds__tensor_share(base, &storage, &flags);
    return ds__tensor_create(d, storage, flags, out);
}

/* A stride that leads to no element may have any value, so the product could overflow. */
static void ds__dims_move(ds__dims *d, int dim, int64_t by) {
    if (d->count && by)
        d->first += by * d->strides[dim] * (int64_t)d->item;
}

static void ds__dims_recount(ds__dims *d) {
    d->count = ds__count_of(d->ndim, d->shape);
}

/* Computes strides that show the elements of `d`, in their order, in another shape. Adjacent
   dimensions that lie in memory like a single one are divided again, from the last one on. Returns
   0 if no strides do that. */
static int ds__view_reshape(const ds__dims *d, int ndim, const int64_t *shape, int64_t *strides) {
    int v = ndim - 1;
    if (!d->count) {
        ds__row_major(ndim, shape, strides);
        return 1;
    }
    int64_t step = d->ndim ? d->strides[d->ndim - 1] : 1;
    int64_t run = 1;
    for (int i = d->ndim - 1; i >= 0; i--) {
        int64_t next;
        run *= d->shape[i];
        if (i > 0 && (d->shape[i - 1] == 1 ||
                      (!__builtin_mul_overflow(run, step, &next) && d->strides[i - 1] == next)))
            continue;
        int64_t cut = 1;
        for (; v >= 0 && (cut < run || shape[v] == 1); v--) {
            /* may overflow if the shape does not fit, or at a size of 1, where any value will do */
            (void)__builtin_mul_overflow(cut, step, &strides[v]);
            cut *= shape[v];
        }
        if (cut != run)
            return 0;
        if (i > 0)
            step = d->strides[i - 1];
        run = 1;
    }
    for (; v >= 0 && shape[v] == 1; v--)
        strides[v] = 1;
    return v < 0;
}

static const char *ds__shape_text(int ndim, const int64_t *shape, char *out, size_t size) {
    enum { LONGEST = 24 }; /* characters of a size with its comma, and the end */

    size_t at = (size_t)snprintf(out, size, "[");
    for (int d = 0; d < ndim && at + LONGEST < size; d++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", d ? ", " : "", (long long)shape[d]);
    snprintf(out + at, size - at, "]");
    return out;
}

DSDEF ds_result(ds_tensor_view)(const ds_tensor *tensor, int ndim, const int64_t *shape,
                                ds_tensor **out) {
    ds__dims d;
    ds__dims v;
    char one[DS__SHAPE_TEXT];
    char other[DS__SHAPE_TEXT];
    int open = -1;
    DS__TENSOR_BEGIN("ds_tensor_view");
    ds_result r = ds__tensor_read(tensor, ds__name_of("the tensor", DS__NO_LIST), &d);
    if (r < 0)
        return r;
    DS__REQUIRE(ndim >= 0 && ndim <= DS_TENSOR_MAX_DIMS && (!ndim || shape),
                "the shape has %d dimensions at %p; it must not be NULL", ndim,
                (const void *)shape);
    v = d;
    v.ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        DS__REQUIRE(shape[i] >= -1, "the size %lld in dimension %d", (long long)shape[i], i);
        DS__REQUIRE(shape[i] >= 0 || open < 0, "only one size may be -1: dimensions %d and %d",
                    open, i);
        v.shape[i] = shape[i];
        if (shape[i] < 0) {
            open = i;
            v.shape[i] = 1;
        }
    }
    int64_t known = ds__count_of(ndim, v.shape);
    if (open >= 0 && known > 0)
        v.shape[open] = d.count / known;
    DS__REQUIRE(open < 0 || known != 0,
                "the size in dimension %d cannot be -1: the tensor has no elements", open);
    DS__REQUIRE(ds__count_of(ndim, v.shape) == d.count, "%lld elements do not fit the shape %s",
                (long long)d.count, ds__shape_text(ndim, shape, one, sizeof one));
    DS__REQUIRE(ds__view_reshape(&d, ndim, v.shape, v.strides),
                "the strides %s of the shape %s need a copy for this view",
                ds__shape_text(d.ndim, d.strides, one, sizeof one),
                ds__shape_text(d.ndim, d.shape, other, sizeof other));
    return ds__tensor_show(tensor, &v, out);
}

/* Limits a dimension to `length` indices from `start` on. */
static ds_result ds__view_narrow(ds__dims *d, int dim, int64_t start, int64_t length) {
    DS__REQUIRE(start >= 0 && length >= 0 && start <= d->shape[dim] &&
                    length <= d->shape[dim] - start,
                "start %lld and length %lld are outside dimension %d of size %lld",
                (long long)start, (long long)length, dim, (long long)d->shape[dim]);
    d->shape[dim] = length;
    ds__dims_recount(d);
    ds__dims_move(d, dim, start);
    return DS_OK;
}

DSDEF ds_result(ds_tensor_narrow)(const ds_tensor *tensor, int dim, int64_t start, int64_t length,
                                  ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_narrow");
    ds_result r = ds__view_read(tensor, &dim, &d);
    if (r == DS_OK)
        r = ds__view_narrow(&d, dim, start, length);
    return r < 0 ? r : ds__tensor_show(tensor, &d, out);
}

/* Resolves a bound of a slice as Python does: a negative one counts from the end, and the result is
   limited to 0..n. */
static int64_t ds__view_bound(int64_t at, int64_t n) {
    if (at < -n)
        return 0;
    if (at < 0)
        return at + n;
    return at > n ? n : at;
}

DSDEF ds_result(ds_tensor_slice)(const ds_tensor *tensor, int dim, int64_t start, int64_t stop,
                                 int64_t step, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_slice");
    ds_result r = ds__view_read(tensor, &dim, &d);
    if (r < 0)
        return r;
    DS__REQUIRE(step >= 1, "step is %lld; it must be at least 1", (long long)step);
    start = ds__view_bound(start, d.shape[dim]);
    stop = ds__view_bound(stop, d.shape[dim]);
    if (stop < start)
        stop = start;
    r = ds__view_narrow(&d, dim, start, stop - start);
    if (r < 0)
        return r;
    d.shape[dim] = (stop - start) / step + ((stop - start) % step != 0);
    /* A stride overflows only if it leads to no element: another size is 0. */
    if (d.shape[dim] > 1 && __builtin_mul_overflow(d.strides[dim], step, &d.strides[dim]))
        d.strides[dim] = 0;
    ds__dims_recount(&d);
    return ds__tensor_show(tensor, &d, out);
}

DSDEF ds_result(ds_tensor_select)(const ds_tensor *tensor, int dim, int64_t index,
                                  ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_select");
    ds_result r = ds__view_read(tensor, &dim, &d);
    if (r < 0)
        return r;
    int64_t n = d.shape[dim];
    DS__REQUIRE(index >= -n && index < n, "index %lld is outside dimension %d of size %lld",
                (long long)index, dim, (long long)n);
    ds__dims_move(&d, dim, index < 0 ? index + n : index);
    d.ndim--;
    for (int i = dim; i < d.ndim; i++) {
        d.shape[i] = d.shape[i + 1];
        d.strides[i] = d.strides[i + 1];
    }
    ds__dims_recount(&d);
    return ds__tensor_show(tensor, &d, out);
}

/* Creates a view whose dimension i is dimension order[i] of `d`. */
static ds_result ds__view_permute(const ds_tensor *tensor, const ds__dims *d, const int *order,
                                  ds_tensor **out) {
    ds__dims v = *d;
    for (int i = 0; i < d->ndim; i++) {
        v.shape[i] = d->shape[order[i]];
        v.strides[i] = d->strides[order[i]];
    }
    return ds__tensor_show(tensor, &v, out);
}

DSDEF ds_result(ds_tensor_permute)(const ds_tensor *tensor, const int *order, ds_tensor **out) {
    ds__dims d;
    int from[DS_TENSOR_MAX_DIMS];
    uint64_t seen = 0;
    DS__TENSOR_BEGIN("ds_tensor_permute");
    ds_result r = ds__tensor_read(tensor, ds__name_of("the tensor", DS__NO_LIST), &d);
    if (r < 0)
        return r;
    DS__REQUIRE(order || !d.ndim, "order is NULL");
    for (int i = 0; i < d.ndim; i++) {
        from[i] = order[i];
        r = ds__dim_resolve(&from[i], d.ndim);
        if (r < 0)
            return r;
        DS__REQUIRE(!(seen >> from[i] & 1), "dimension %d is listed twice in the order", from[i]);
        seen |= (uint64_t)1 << from[i];
    }
    return ds__view_permute(tensor, &d, from, out);
}

DSDEF ds_result(ds_tensor_transpose)(const ds_tensor *tensor, int dim0, int dim1, ds_tensor **out) {
    ds__dims d;
    int from[DS_TENSOR_MAX_DIMS];
    DS__TENSOR_BEGIN("ds_tensor_transpose");
    ds_result r = ds__view_read(tensor, &dim0, &d);
    if (r == DS_OK)
        r = ds__dim_resolve(&dim1, d.ndim);
    if (r < 0)
        return r;
    for (int i = 0; i < d.ndim; i++)
        from[i] = i;
    from[dim0] = dim1;
    from[dim1] = dim0;
    return ds__view_permute(tensor, &d, from, out);
}

DSDEF ds_result(ds_tensor_as_real)(const ds_tensor *tensor, ds_tensor **out) {
    ds__dims d;
    char name[DS_DTYPE_NAME_SIZE];
    DS__TENSOR_BEGIN("ds_tensor_as_real");
    ds_result r = ds__tensor_read(tensor, ds__name_of("the tensor", DS__NO_LIST), &d);
    if (r < 0)
        return r;
    DS__REQUIRE(d.dtype.code == DS_CODE_COMPLEX && d.dtype.bits % 16 == 0,
                "elements of type %s are not complex", ds__dtype_name(d.dtype, name));
    DS__REQUIRE(d.ndim < DS_TENSOR_MAX_DIMS && d.dtype.lanes == 1,
                "%d dimensions and one more exceed the maximum of %d", d.ndim, DS_TENSOR_MAX_DIMS);
    /* A stride overflows only if it leads to no element: the size is 1 or the tensor is empty. */
    for (int i = 0; i < d.ndim; i++)
        if (__builtin_mul_overflow(d.strides[i], 2, &d.strides[i]))
            d.strides[i] = 0;
    d.shape[d.ndim] = 2;
    d.strides[d.ndim++] = 1;
    d.dtype = (ds_dtype){ DS_CODE_FLOAT, (uint8_t)(d.dtype.bits / 2), 1 };
    ds__dims_recount(&d);
    return ds__tensor_show(tensor, &d, out);
}

DSDEF ds_result(ds_tensor_as_host)(const ds_tensor *tensor, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_as_host");
    ds_result r = ds__tensor_read(tensor, ds__name_of("the tensor", DS__NO_LIST), &d);
    if (r < 0)
        return r;
    if (d.device.type == DS_DEVICE_CUDA && d.given.type != DS_TENSOR_CUDA_MANAGED)
        return ds__fail(DS_ERR_INVALID_DEVICE,
                        "the tensor is on cuda:%d, and the host cannot access its memory",
                        d.device.index);
    d.given = (ds_device){ DS_DEVICE_HOST, 0 };
    return ds__tensor_show(tensor, &d, out);
}

#endif
