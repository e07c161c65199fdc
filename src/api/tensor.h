/* api/tensor.h - tensors.

   Declares a tensor (ds_tensor) with DLPack's layout, its checks and sizes, and views of tensors.
   Also declares tensor objects that own or share memory. */
#ifndef DS__API_TENSOR_H
#define DS__API_TENSOR_H

#include "stream.h"
#include "dtype.h"

/* ---- tensors --------------------------------------------------------------------------------- */

/** Maximum number of dimensions of a tensor (torch's limit). */
#define DS_TENSOR_MAX_DIMS 64

/** Device types of tensors in addition to ds_device_type; the values are DLPack's. */
enum {
    /** pinned host memory, handled as host memory. The host waits for its copies unless devstream
        has pinned it */
    DS_TENSOR_CUDA_HOST = 3,
    /** managed memory, handled as memory of the GPU with that index */
    DS_TENSOR_CUDA_MANAGED = 13
};

/** A tensor with the layout of DLPack's DLTensor: pointers to the two types are interchangeable.
    Every function accepts tensors filled in by other code. */
typedef struct ds_tensor {
    void *data; /**< memory */
    /** device of the memory; host memory: DS_DEVICE_HOST or DS_TENSOR_CUDA_HOST */
    ds_device device;
    int32_t ndim;         /**< number of dimensions; 0: one element */
    ds_dtype dtype;       /**< type of an element */
    int64_t *shape;       /**< ndim sizes */
    int64_t *strides;     /**< ndim distances in elements; NULL: row-major without gaps */
    uint64_t byte_offset; /**< offset of the first element from `data`, in bytes */
} ds_tensor;

/** Returns a row-major tensor over memory of the caller. The shape is not copied. */
DSINLINE ds_tensor ds_tensor_of(void *data, ds_device device, ds_dtype dtype, int ndim,
                                int64_t *shape) {
    ds_tensor t;
    t.data = data;
    t.device = device;
    t.ndim = ndim;
    t.dtype = dtype;
    t.shape = shape;
    t.strides = NULL;
    t.byte_offset = 0;
    return t;
}

/** Returns the address of the first element. */
DSINLINE void *ds_tensor_address(const ds_tensor *tensor) {
    return (void *)((uintptr_t)tensor->data + (uintptr_t)tensor->byte_offset);
}

/** Returns DS_OK if devstream supports the tensor. Otherwise ds_error_get_last() names the invalid
    member. DS_ERR_UNSUPPORTED: the elements are not whole bytes. */
DSDEF DS_MUST_USE ds_result ds_tensor_check(const ds_tensor *tensor);
/** Returns the number of elements; -1 if a size is negative, the product overflows, or the tensor
    is NULL. Callable anywhere. */
DSDEF int64_t ds_tensor_get_count(const ds_tensor *tensor);
/** Returns the size of all elements in bytes; 0 also if the size overflows or is not in whole
    bytes. Callable anywhere. */
DSDEF size_t ds_tensor_get_size(const ds_tensor *tensor);
/** Returns 1 if the elements are row-major without gaps, else 0. Dimensions of size 1 and empty
    tensors do not matter. Callable anywhere. */
DSDEF int ds_tensor_is_contiguous(const ds_tensor *tensor);
/** Returns 1 if the elements fill their memory without gaps or overlap in some order of the
    dimensions, else 0. Callable anywhere. */
DSDEF int ds_tensor_is_dense(const ds_tensor *tensor);

/* Tensors created by devstream are objects. devstream owns the description, with shape and strides,
   until ds_tensor_free. The memory lives until the last object that shares it is freed. Members are
   read-only for the caller. Different threads may use different objects concurrently. */

/** Allocates a tensor on the stream's device by ds_mem_alloc: row-major, uninitialised, for work
    enqueued on the stream after the call. The caller must free it. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc(ds_dtype dtype, int ndim, const int64_t *shape,
                                            ds_stream stream, ds_tensor **out);
/** Allocates a tensor in pinned host memory for all devices: row-major, uninitialised. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc_pinned(ds_dtype dtype, int ndim, const int64_t *shape,
                                                   ds_tensor **out);
/** Allocates a tensor of the same type, shape and order of dimensions in memory, as
    torch.empty_like does. Thus channels_last is preserved. A zeroed stream: in pinned host
    memory. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc_like(const ds_tensor *like, ds_stream stream,
                                                 ds_tensor **out);

enum { DS_TENSOR_READ_ONLY = 1 /**< devstream does not write to it; views inherit the flag */ };

/** Creates an object from a description, which is copied, over memory of the caller. If release_fn
    is set, release_fn(user) runs once after the last object that shares the memory is freed. It
    runs on the thread of that free and must not block. If the call fails, release_fn runs too.
    flags: DS_TENSOR_READ_ONLY or 0. */
DSDEF DS_MUST_USE ds_result ds_tensor_wrap(const ds_tensor *tensor, unsigned flags,
                                           void (*release_fn)(void *user), void *user,
                                           ds_tensor **out);
/** Frees an object. The memory is freed with the last object that shares it, in the order of its
    allocation's stream (ds_mem_free). NULL is allowed. DS_ERR_INVALID_VALUE: not an object of
    devstream. */
DSDEF DS_MUST_USE ds_result ds_tensor_free(ds_tensor *tensor);
/** Returns DS_TENSOR_READ_ONLY or 0; 0 for a tensor that is not an object. */
DSDEF DS_MUST_USE ds_result ds_tensor_get_flags(const ds_tensor *tensor, unsigned *out);

/* A view shares the memory of another tensor without a copy. If that tensor is an object, the view
   keeps the memory alive. Negative dimensions count from the last: -1 is the last dimension. */

/** Returns the same elements in the same order with another shape. One size may be -1 and is
    computed from the others. DS_ERR_INVALID_VALUE: the strides need a copy. */
DSDEF DS_MUST_USE ds_result ds_tensor_view(const ds_tensor *tensor, int ndim, const int64_t *shape,
                                           ds_tensor **out);
/** Returns the elements start to start + length - 1 along a dimension. */
DSDEF DS_MUST_USE ds_result ds_tensor_narrow(const ds_tensor *tensor, int dim, int64_t start,
                                             int64_t length, ds_tensor **out);
/** Returns tensor[start:stop:step] along a dimension, by Python's rules: negative numbers count
    from the end, and bounds are clamped. step must be at least 1. stop INT64_MAX: to the end. */
DSDEF DS_MUST_USE ds_result ds_tensor_slice(const ds_tensor *tensor, int dim, int64_t start,
                                            int64_t stop, int64_t step, ds_tensor **out);
/** Returns the elements at one index of a dimension, without that dimension. */
DSDEF DS_MUST_USE ds_result ds_tensor_select(const ds_tensor *tensor, int dim, int64_t index,
                                             ds_tensor **out);
/** Permutes the dimensions: dimension i of the view is dimension order[i] of the tensor. */
DSDEF DS_MUST_USE ds_result ds_tensor_permute(const ds_tensor *tensor, const int *order,
                                              ds_tensor **out);
/** Swaps two dimensions. */
DSDEF DS_MUST_USE ds_result ds_tensor_transpose(const ds_tensor *tensor, int dim0, int dim1,
                                                ds_tensor **out);
/** Returns complex numbers as pairs of real numbers, in an additional last dimension of size 2. */
DSDEF DS_MUST_USE ds_result ds_tensor_as_real(const ds_tensor *tensor, ds_tensor **out);
/** Returns memory of a CPU device, pinned or managed memory as plain host memory, for libraries
    without support for these types. The caller must wait for the stream before using it. */
DSDEF DS_MUST_USE ds_result ds_tensor_as_host(const ds_tensor *tensor, ds_tensor **out);

#endif
