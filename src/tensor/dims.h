/* tensor/dims.h - reading and checking tensor descriptions.

   Reads a description into a ds__dims and reports the first error in it (ds__tensor_read,
   ds__dims_read). Tests for row-major and dense strides and computes them (ds__is_row_major,
   ds__is_dense, ds__row_major, ds__dense_like). Tensor functions and collectives use this room.

   Invariants: after a successful ds__tensor_read, the bytes of all elements lie inside the
   address space, from `low` to `high` behind `first`. Strides of an empty tensor and of
   dimensions of size 1 are not checked, so they must not be followed. The text that ds__name_text
   returns stays valid until its next call on the same thread.
   Locks: none.
   Threads: any. */
#ifndef DS__TENSOR_DIMS_H
#define DS__TENSOR_DIMS_H

#include "../core/internal.h"
#include "internal.h"

static const char *ds__name_text(ds__name name) {
    static _Thread_local char text[100];
    if (name.index == DS__NO_LIST)
        snprintf(text, sizeof text, "%s", name.words);
    else
        snprintf(text, sizeof text, "%s at index %zu", name.words, name.index);
    return text;
}

/* A size of 0 counts as 1. A stride that overflows is 0, because the strides of an empty tensor
   are not followed. */
static void ds__row_major(int ndim, const int64_t *shape, int64_t *strides) {
    int64_t step = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        strides[d] = step;
        if (__builtin_mul_overflow(step, shape[d] > 1 ? shape[d] : 1, &step))
            step = 0;
    }
}

static int64_t ds__count_of(int ndim, const int64_t *shape) {
    int64_t count = 1;
    int64_t empty = 0;
    int64_t wide = 0;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return -1;
        empty |= shape[d] == 0;
        wide |= __builtin_mul_overflow(count, shape[d], &count);
    }
    if (empty)
        return 0;
    return wide ? -2 : count;
}

/* Copies the strides and computes the bounds of all elements, `low` and `high`. */
static ds_result ds__dims_read_strides(ds__dims *d, const int64_t *strides, ds__name name) {
    int64_t low = 0;
    int64_t high = 0;
    int64_t by;
    int64_t wide = 0;
    for (int i = 0; i < d->ndim; i++)
        d->strides[i] = strides[i];
    for (int i = 0; d->count && i < d->ndim; i++) {
        wide |= __builtin_mul_overflow(d->shape[i] - 1, d->strides[i], &by);
        wide |= by < 0 ? __builtin_add_overflow(low, by, &low)
                       : __builtin_add_overflow(high, by, &high);
    }
    wide |= __builtin_mul_overflow(low, (int64_t)d->item, &low) ||
            __builtin_add_overflow(high, d->count > 0, &high) ||
            __builtin_mul_overflow(high, (int64_t)d->item, &high);
    DS__REQUIRE(!wide, "the strides of %s lead beyond the address space", ds__name_text(name));
    d->low = (ptrdiff_t)low;
    d->high = (ptrdiff_t)high;
    return DS_OK;
}

static ds_result ds__dims_read(ds_dtype dtype, int ndim, const int64_t *shape,
                               const int64_t *strides, ds__name name, ds__dims *out) {
    out->dtype = dtype;
    out->ndim = ndim;
    out->item = (ds_dtype_get_size)(dtype);
    out->first = NULL;
    out->device = out->given = (ds_device){ 0, 0 };
    DS__REQUIRE(ndim >= 0 && ndim <= DS_TENSOR_MAX_DIMS,
                "%s has %d dimensions; 0 to %d are allowed", ds__name_text(name), ndim,
                DS_TENSOR_MAX_DIMS);
    DS__REQUIRE(!ndim || shape, "the shape of %s is NULL", ds__name_text(name));
    DS__REQUIRE(dtype.bits && dtype.lanes, "%s has a data type of %d bits in %d lanes",
                ds__name_text(name), dtype.bits, dtype.lanes);
    if (!out->item)
        return ds__fail(DS_ERR_UNSUPPORTED, "%s has elements of %d bits, which are not whole bytes",
                        ds__name_text(name), dtype.bits * dtype.lanes);
    for (int d = 0; d < ndim; d++)
        out->shape[d] = shape[d];
    out->count = ds__count_of(ndim, shape);
    for (int d = 0; out->count == -1 && d < ndim; d++)
        DS__REQUIRE(shape[d] >= 0, "%s has the size %lld in dimension %d", ds__name_text(name),
                    (long long)shape[d], d);
    int64_t bytes = 0;
    DS__REQUIRE(out->count >= 0 && !__builtin_mul_overflow(out->count, (int64_t)out->item, &bytes),
                "%s is larger than the address space", ds__name_text(name));
    out->bytes = (size_t)bytes;
    if (!strides) {
        ds__row_major(ndim, shape, out->strides);
        out->low = 0;
        out->high = (ptrdiff_t)out->bytes;
        return DS_OK;
    }
    return ds__dims_read_strides(out, strides, name);
}

/* Translates DLPack's device into a device of a driver or DS_DEVICE_HOST. */
static ds_result ds__tensor_device(ds_device given, ds__name name, ds_device *out) {
    if (given.type == DS_DEVICE_HOST || given.type == DS_TENSOR_CUDA_HOST) {
        *out = (ds_device){ DS_DEVICE_HOST, 0 };
        return DS_OK;
    }
    if (given.type == DS_TENSOR_CUDA_MANAGED)
        given.type = DS_DEVICE_CUDA;
    if (given.type != DS_DEVICE_CURRENT && given.type != DS_DEVICE_CUDA &&
        given.type != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "%s is on a device of DLPack's type %d, which is not supported",
                        ds__name_text(name), given.type);
    ds_result r = ds__device_resolve(given, out);
    return r < 0 ? ds__fail_append(r, " (%s)", ds__name_text(name)) : r;
}

static ds_result ds__tensor_read(const ds_tensor *t, ds__name name, ds__dims *out) {
    DS__REQUIRE(t, "%s is NULL", ds__name_text(name));
    ds_result r = ds__dims_read(t->dtype, t->ndim, t->shape, t->strides, name, out);
    if (r == DS_OK)
        r = ds__tensor_device(t->device, name, &out->device);
    if (r < 0)
        return r;
    out->given = t->device.type == DS_DEVICE_CURRENT ? out->device : t->device;
    out->first = (char *)((uintptr_t)t->data + t->byte_offset);
    DS__REQUIRE(t->data || !out->count, "%s has %lld elements and its data is NULL",
                ds__name_text(name), (long long)out->count);
    DS__REQUIRE(!out->count || (t->byte_offset <= UINTPTR_MAX - (uintptr_t)t->data &&
                                (uintptr_t)out->first >= (uintptr_t)0 - (uintptr_t)out->low &&
                                (size_t)out->high <= UINTPTR_MAX - (uintptr_t)out->first),
                "%s reaches beyond the address space", ds__name_text(name));
    return DS_OK;
}

/* Returns the distance of a stride. Strides of an empty tensor may have any value, also
   INT64_MIN. */
static uint64_t ds__stride_distance(int64_t stride) {
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* Sorts the dimensions of more than one element by their strides, the widest first. Returns how
   many they are. */
static int ds__by_stride(const ds__dims *d, int *order) {
    int n = 0;
    for (int i = 0; i < d->ndim; i++) {
        if (d->shape[i] == 1)
            continue;
        int at = n++;
        uint64_t distance = ds__stride_distance(d->strides[i]);
        for (; at > 0 && ds__stride_distance(d->strides[order[at - 1]]) < distance; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return n;
}

static int ds__is_dense(const ds__dims *d) {
    int order[DS_TENSOR_MAX_DIMS];
    int n = ds__by_stride(d, order);
    int64_t step = 1;
    while (d->count && n-- > 0) {
        if (d->strides[order[n]] != step)
            return 0;
        step *= d->shape[order[n]];
    }
    return 1;
}

static int ds__is_row_major(const ds__dims *d) {
    int64_t step = 1;
    for (int i = d->ndim - 1; d->count && i >= 0; i--) {
        if (d->shape[i] == 1)
            continue;
        if (d->strides[i] != step)
            return 0;
        step *= d->shape[i];
    }
    return 1;
}

static void ds__dense_like(const ds__dims *d, int64_t *strides) {
    int order[DS_TENSOR_MAX_DIMS];
    int n = ds__by_stride(d, order);
    int dense = 1;
    int64_t step = 1;
    if (!d->count) {
        ds__row_major(d->ndim, d->shape, strides);
        return;
    }
    while (n-- > 0) {
        dense &= d->strides[order[n]] == step;
        strides[order[n]] = step;
        step *= d->shape[order[n]];
    }
    /* A dimension of size 1 keeps its stride, or gets that of a row-major tensor. */
    for (int i = d->ndim - 1; i >= 0; i--) {
        if (d->shape[i] != 1)
            continue;
        if (dense)
            strides[i] = d->strides[i];
        else
            strides[i] = i + 1 < d->ndim ? strides[i + 1] * d->shape[i + 1] : 1;
    }
}

#endif
