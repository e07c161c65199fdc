/* tensor/tensor.h - tensor objects.

   Implements allocation, wrapping, freeing and queries of tensors (ds_tensor_alloc,
   ds_tensor_wrap, ds_tensor_free, ...). For the other tensor rooms this room creates objects
   (ds__tensor_create) and adds users to their storages (ds__tensor_share).

   Invariants: an object is in the table from ds__tensor_create until ds_tensor_free or
   ds_shutdown. Its `data` is the address of the first element, or NULL if the tensor is empty;
   byte_offset is 0. Shape and strides lie behind the object. ds__tensor_create takes over one use
   of the storage, and drops that use on failure.
   Locks: takes ds__c.lock for the table; ds__tensor_place expects that lock. Memory is allocated
   and freed and release functions are invoked without the lock.
   Threads: threads of the caller; different objects may be used at once. ds_tensor_get_count,
   ds_tensor_get_size and the ds_tensor_is_ functions may be called anywhere, also in host
   functions. */
#ifndef DS__TENSOR_TENSOR_H
#define DS__TENSOR_TENSOR_H

#include "../core/internal.h"
#include "../alloc/internal.h"
#include "internal.h"
#include "dims.h"
#include "storage.h"

/* The inline functions of api/tensor.h as functions (core/inline.h). */
DS__SYMBOL(ds_tensor ds_tensor_of(void *data, ds_device device, ds_dtype dtype, int ndim,
                                  int64_t *shape))
DS__SYMBOL(void *ds_tensor_address(const ds_tensor *tensor))

/* Returns the link that points to the object, or the last link of its bucket. Expects
   ds__c.lock. */
static ds__tensor **ds__tensor_place(const void *t) {
    uintptr_t n = (uintptr_t)t >> 5;
    ds__tensor **at = &ds__c.bucket[(n ^ n >> 10) % DS__TENSOR_BUCKETS];
    while (*at && *at != t)
        at = &(*at)->next;
    return at;
}

static int ds__tensor_share(const ds_tensor *t, ds__storage **out, unsigned *out_flags) {
    ds__spinlock_lock(&ds__c.lock);
    const ds__tensor *o = *ds__tensor_place(t);
    if (out)
        *out = o ? o->storage : NULL;
    if (out && *out)
        atomic_fetch_add(&(*out)->users, 1);
    *out_flags = o ? o->flags : 0;
    ds__spinlock_unlock(&ds__c.lock);
    return o != NULL;
}

/* Creates an object with the description `d`. Takes over one use of the storage, also on
   failure. */
static ds_result ds__tensor_create(const ds__dims *d, ds__storage *storage, unsigned flags,
                                   ds_tensor **out) {
    size_t n = (size_t)d->ndim;
    ds__tensor *o = ds__host_alloc(sizeof *o + 2 * n * sizeof(int64_t));
    if (!o) {
        DS_IGNORE(ds__storage_unref(storage));
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a tensor");
    }
    o->t = (ds_tensor){
        d->count ? d->first : NULL, d->given, d->ndim, d->dtype, o->dims, o->dims + n, 0
    };
    if (n)
        memcpy(o->dims, d->shape, n * sizeof(int64_t));
    if (n)
        memcpy(o->dims + n, d->strides, n * sizeof(int64_t));
    o->storage = storage;
    o->flags = flags;
    o->made = ds__tls.site;
    ds__spinlock_lock(&ds__c.lock);
    ds__tensor **at = ds__tensor_place(o);
    o->next = NULL;
    *at = o;
    ds__spinlock_unlock(&ds__c.lock);
    *out = &o->t;
    return DS_OK;
}

/* Allocates memory for `d` on the stream, or pinned memory if the stream is zero, and creates the
   object. Sets the address and the device of `d`. */
static ds_result ds__tensor_alloc(ds__dims *d, ds_stream stream, ds_tensor **out) {
    int kind = stream.id ? DS__OF_ALLOCATOR : DS__OF_PINNED;
    ds__storage *storage = NULL;
    void *ptr = NULL;
    ds_result r = DS_OK;
    d->device = d->given = (ds_device){ DS_DEVICE_HOST, 0 };
    if (stream.id) {
        ds__stream *s = ds__stream_pin(stream);
        if (!s)
            return DS_ERR_INVALID_HANDLE;
        d->device = d->given = s->device;
        ds__stream_unpin(s);
    } else if (ds__g.driver[0]) {
        d->given.type = DS_TENSOR_CUDA_HOST; /* cudart knows the memory as pinned */
    }
    if (d->bytes && stream.id)
        DS__KEEPING(r, (ds_mem_alloc)(d->bytes, stream, &ptr));
    if (d->bytes && !stream.id)
        DS__KEEPING(r, (ds_mem_pinned_alloc)(d->bytes, &ptr));
    if (r < 0)
        return r;
    if (ptr) {
        storage = ds__storage_create(kind, ptr, NULL);
        if (!storage) {
            DS_IGNORE(ds__storage_free_memory(kind, ptr));
            return DS_ERR_OUT_OF_MEMORY;
        }
    }
    d->first = ptr;
    return ds__tensor_create(d, storage, 0, out);
}

#define DS__TENSOR_BEGIN(name)                \
    if (out)                                  \
        *out = NULL;                          \
    DS__ENTER(name);                          \
    DS__REQUIRE(out, "out is NULL");          \
    do {                                      \
        ds_result ds__r = ds__tensor_setup(); \
        if (DS__UNLIKELY(ds__r < 0))          \
            return ds__r;                     \
    } while (0)

DSDEF ds_result(ds_tensor_check)(const ds_tensor *tensor) {
    ds__dims d;
    DS__ENTER("ds_tensor_check");
    return ds__tensor_read(tensor, ds__name_of("the tensor", DS__NO_LIST), &d);
}

DSDEF int64_t(ds_tensor_get_count)(const ds_tensor *tensor) {
    if (!tensor || tensor->ndim < 0 || (tensor->ndim && !tensor->shape))
        return -1;
    int64_t n = ds__count_of(tensor->ndim, tensor->shape);
    return n < 0 ? -1 : n;
}

DSDEF size_t(ds_tensor_get_size)(const ds_tensor *tensor) {
    int64_t n = (ds_tensor_get_count)(tensor);
    size_t size = 0;
    return n < 0 || __builtin_mul_overflow((size_t)n, (ds_dtype_get_size)(tensor->dtype), &size)
               ? 0
               : size;
}

/* Applies a predicate to shape and strides. Returns 0 for an invalid description, without an error
   message, because the callers may be called anywhere. */
static int ds__tensor_is(const ds_tensor *t, int (*is)(const ds__dims *)) {
    ds__dims d;
    d.count = (ds_tensor_get_count)(t);
    if (d.count < 0 || t->ndim > DS_TENSOR_MAX_DIMS)
        return 0;
    d.ndim = t->ndim;
    if (d.ndim)
        memcpy(d.shape, t->shape, (size_t)d.ndim * sizeof(int64_t));
    if (!t->strides)
        return 1;
    if (d.ndim)
        memcpy(d.strides, t->strides, (size_t)d.ndim * sizeof(int64_t));
    return is(&d);
}

DSDEF int(ds_tensor_is_contiguous)(const ds_tensor *tensor) {
    return ds__tensor_is(tensor, ds__is_row_major);
}

DSDEF int(ds_tensor_is_dense)(const ds_tensor *tensor) {
    return ds__tensor_is(tensor, ds__is_dense);
}

DSDEF ds_result(ds_tensor_alloc)(ds_dtype dtype, int ndim, const int64_t *shape, ds_stream stream,
                                 ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_alloc");
    ds_result r =
        ds__dims_read(dtype, ndim, shape, NULL, ds__name_of("the tensor", DS__NO_LIST), &d);
    if (r == DS_OK && !stream.id)
        r = ds__fail(DS_ERR_INVALID_HANDLE, "no stream was given (the handle is zero)");
    return r < 0 ? r : ds__tensor_alloc(&d, stream, out);
}

DSDEF ds_result(ds_tensor_alloc_pinned)(ds_dtype dtype, int ndim, const int64_t *shape,
                                        ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_alloc_pinned");
    ds_result r =
        ds__dims_read(dtype, ndim, shape, NULL, ds__name_of("the tensor", DS__NO_LIST), &d);
    return r < 0 ? r : ds__tensor_alloc(&d, (ds_stream){ 0 }, out);
}

static ds_result ds__tensor_like(const ds__dims *like, ds_stream stream, ds_tensor **out) {
    ds__dims d = *like;
    ds__dense_like(like, d.strides);
    return ds__tensor_alloc(&d, stream, out);
}

DSDEF ds_result(ds_tensor_alloc_like)(const ds_tensor *like, ds_stream stream, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_alloc_like");
    ds_result r = ds__tensor_read(like, ds__name_of("the tensor", DS__NO_LIST), &d);
    return r < 0 ? r : ds__tensor_like(&d, stream, out);
}

/* Checks the arguments of ds_tensor_wrap and reads the description. */
static ds_result ds__wrap_read(const ds_tensor *tensor, unsigned flags, ds_tensor **out,
                               ds__dims *d) {
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(!(flags & ~(unsigned)DS_TENSOR_READ_ONLY),
                "unknown flags %#x; use DS_TENSOR_READ_ONLY or 0", flags);
    ds_result r = ds__tensor_setup();
    return r < 0 ? r : ds__tensor_read(tensor, ds__name_of("the tensor", DS__NO_LIST), d);
}

DSDEF ds_result(ds_tensor_wrap)(const ds_tensor *tensor, unsigned flags,
                                void (*release_fn)(void *user), void *user, ds_tensor **out) {
    ds__dims d;
    if (out)
        *out = NULL;
    ds_result r = ds__api_enter("ds_tensor_wrap");
    if (r < 0)
        return ds__refuse_payload(r, user, release_fn);
    r = ds__wrap_read(tensor, flags, out, &d);
    ds__storage *storage = r == DS_OK ? ds__storage_create(DS__OF_OTHERS, user, release_fn) : NULL;
    if (storage)
        return ds__tensor_create(&d, storage, flags, out);
    if (release_fn) {
        ds__kept_error refusal; /* calls inside the release function may fail */
        ds__error_save(&refusal);
        ds__outside o = ds__outside_begin();
        release_fn(user);
        ds__outside_end(o);
        ds__error_restore(&refusal);
    }
    return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
}

DSDEF ds_result(ds_tensor_free)(ds_tensor *tensor) {
    DS__ENTER("ds_tensor_free");
    if (!tensor)
        return DS_OK;
    ds__spinlock_lock(&ds__c.lock);
    ds__tensor **at = ds__tensor_place(tensor);
    ds__tensor *o = *at;
    if (o)
        *at = o->next;
    ds__spinlock_unlock(&ds__c.lock);
    DS__REQUIRE(o, "%p is not a tensor of devstream, or was already freed", (void *)tensor);
    ds_result r = ds__storage_unref(o->storage);
    ds__host_free(o);
    return r;
}

DSDEF ds_result(ds_tensor_get_flags)(const ds_tensor *tensor, unsigned *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_tensor_get_flags");
    DS__REQUIRE(tensor && out, "%s is NULL", tensor ? "out" : "the tensor");
    (void)ds__tensor_share(tensor, NULL, out);
    return DS_OK;
}

#endif
