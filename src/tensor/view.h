/* tensor/view.h - views of tensors.

   Implements the functions that make another tensor of the same memory: ds_tensor_view,
   _narrow, _slice, _select, _permute, _transpose, _as_real and _as_host. No function copies
   elements.

   Invariants: a view of an object takes a use of its storage and has its flags. A view of
   another description has no storage, so the caller keeps the memory. A function changes first,
   shape, strides, count and types of its ds__dims; low, high, item and bytes keep the values of
   the base.
   Locks: holds none; ds__tensor_share and ds__tensor_new take ds__c.lock.
   Threads: threads of the caller. The base must not be freed during the call. */
#ifndef DS__TENSOR_VIEW_H
#define DS__TENSOR_VIEW_H

#include "../core/internal.h"
#include "internal.h"
#include "dims.h"
#include "tensor.h"

/* A dimension from the front; -1 and the sentence: there is none. */
static int ds__tensor_dim(int dim, int ndim) {
    if (dim >= -ndim && dim < ndim)
        return dim < 0 ? dim + ndim : dim;
    ds__fail(DS_ERR_INVALID_VALUE,
             ndim ? "dimension %d is outside of [%d, %d]"
                  : "dimension is %d, but the tensor has no dimensions",
             dim, -ndim, ndim - 1);
    return -1;
}

static ds_result ds__tensor_show(const ds_tensor *base, const ds__dims *d, ds_tensor **out) {
    ds__storage *storage;
    unsigned flags;
    (void)ds__tensor_share(base, &storage, &flags);
    return ds__tensor_new(d, storage, flags, out);
}

/* An index along a dimension becomes part of the address, if elements are left. A stride that
   leads to no index may be anything, also too large to count with. */
static void ds__dims_move(ds__dims *d, int dim, int64_t by) {
    if (d->count && by)
        d->first += by * d->strides[dim] * (int64_t)d->item;
}

static void ds__dims_recount(ds__dims *d) {
    d->count = ds__count_of(d->ndim, d->shape);
}

/* Strides with which the elements in their order have another shape; 0: there are none. Runs of
   dimensions that lie in memory like one are cut anew, from the last one on. */
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
            strides[v] = cut * step;
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
    size_t at = 0;
    int n = snprintf(out, size, "[");
    for (int d = 0; d < ndim && n > 0 && (at += (size_t)n) + 24 < size; d++)
        n = snprintf(out + at, size - at, "%s%lld", d ? ", " : "", (long long)shape[d]);
    if (n > 0 && ndim <= 0)
        at += (size_t)n;
    if (n > 0 && ndim > 0 && at + (size_t)n < size && at + 24 < size)
        at += (size_t)n;
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
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
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
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0)
        return r;
    if ((dim = ds__tensor_dim(dim, d.ndim)) < 0)
        return DS_ERR_INVALID_VALUE;
    r = ds__view_narrow(&d, dim, start, length);
    return r < 0 ? r : ds__tensor_show(tensor, &d, out);
}

DSDEF ds_result(ds_tensor_slice)(const ds_tensor *tensor, int dim, int64_t start, int64_t stop,
                                 int64_t step, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_slice");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0)
        return r;
    if ((dim = ds__tensor_dim(dim, d.ndim)) < 0)
        return DS_ERR_INVALID_VALUE;
    DS__REQUIRE(step >= 1, "step is %lld; it must be at least 1", (long long)step);
    int64_t n = d.shape[dim];
    start = start < -n ? 0 : start < 0 ? start + n : start > n ? n : start;
    stop = stop < -n ? 0 : stop < 0 ? stop + n : stop > n ? n : stop;
    if (stop < start)
        stop = start;
    r = ds__view_narrow(&d, dim, start, stop - start);
    if (r < 0)
        return r;
    d.shape[dim] = (stop - start) / step + ((stop - start) % step != 0);
    /* two indices so far apart are inside, so this fits */
    if (d.shape[dim] > 1)
        d.strides[dim] *= step;
    ds__dims_recount(&d);
    return ds__tensor_show(tensor, &d, out);
}

DSDEF ds_result(ds_tensor_select)(const ds_tensor *tensor, int dim, int64_t index,
                                  ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_select");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0)
        return r;
    if ((dim = ds__tensor_dim(dim, d.ndim)) < 0)
        return DS_ERR_INVALID_VALUE;
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
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0)
        return r;
    DS__REQUIRE(order || !d.ndim, "order is NULL");
    for (int i = 0; i < d.ndim; i++) {
        if ((from[i] = ds__tensor_dim(order[i], d.ndim)) < 0)
            return DS_ERR_INVALID_VALUE;
        DS__REQUIRE(!(seen >> from[i] & 1), "dimension %d is listed twice in the order", from[i]);
        seen |= (uint64_t)1 << from[i];
    }
    return ds__view_permute(tensor, &d, from, out);
}

DSDEF ds_result(ds_tensor_transpose)(const ds_tensor *tensor, int dim0, int dim1, ds_tensor **out) {
    ds__dims d;
    int from[DS_TENSOR_MAX_DIMS];
    DS__TENSOR_BEGIN("ds_tensor_transpose");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0)
        return r;
    if ((dim0 = ds__tensor_dim(dim0, d.ndim)) < 0 || (dim1 = ds__tensor_dim(dim1, d.ndim)) < 0)
        return DS_ERR_INVALID_VALUE;
    for (int i = 0; i < d.ndim; i++)
        from[i] = i == dim0 ? dim1 : i == dim1 ? dim0 : i;
    return ds__view_permute(tensor, &d, from, out);
}

DSDEF ds_result(ds_tensor_as_real)(const ds_tensor *tensor, ds_tensor **out) {
    ds__dims d;
    char name[DS_DTYPE_NAME_SIZE];
    DS__TENSOR_BEGIN("ds_tensor_as_real");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0)
        return r;
    DS__REQUIRE(d.dtype.code == DS_CODE_COMPLEX && d.dtype.bits % 16 == 0,
                "elements of type %s are not complex", ds__dtype_name(d.dtype, name));
    DS__REQUIRE(d.ndim < DS_TENSOR_MAX_DIMS && d.dtype.lanes == 1,
                "%d dimensions and one more exceed the maximum of %d", d.ndim, DS_TENSOR_MAX_DIMS);
    for (int i = 0; i < d.ndim; i++) /* of a size of 1 or an empty tensor nobody follows it */
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
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
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
