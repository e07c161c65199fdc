/* api/tensor.h - tensors.

   Declares a tensor (ds_tensor) with DLPack's layout, its checks and sizes, tensor objects that
   own or share memory, and views of tensors. */
#ifndef DS__API_TENSOR_H
#define DS__API_TENSOR_H

#include "stream.h"
#include "dtype.h"

/* ---- tensors --------------------------------------------------------------------------------- */

/** Most dimensions of a tensor (torch's limit). */
#define DS_TENSOR_MAX_DIMS 64

/** Types of device that a tensor may have beside those of ds_device_type; DLPack's numbers. */
enum {
    /** pinned host memory: taken as host memory, which the host waits for if others than
        devstream have pinned it */
    DS_TENSOR_CUDA_HOST = 3,
    DS_TENSOR_CUDA_MANAGED = 13 /**< managed memory: taken as memory of the GPU with that index */
};

/** A tensor: the same bytes as DLPack's DLTensor, so that a pointer to one is a pointer to the
    other. Every function takes tensors that others filled in. */
typedef struct ds_tensor {
    void *data;           /**< memory */
    ds_device device;     /**< where; host memory is DS_DEVICE_HOST or DS_TENSOR_CUDA_HOST */
    int32_t ndim;         /**< dimensions; 0: one element */
    ds_dtype dtype;       /**< type of an element */
    int64_t *shape;       /**< ndim sizes */
    int64_t *strides;     /**< ndim distances in elements; NULL: row-major, without gaps */
    uint64_t byte_offset; /**< of the first element in `data` */
} ds_tensor;

/** Describes memory of the caller's, row-major. The shape is not copied. */
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

/** The first element. */
DSINLINE void *ds_tensor_address(const ds_tensor *tensor) {
    return (void *)((uintptr_t)tensor->data + (uintptr_t)tensor->byte_offset);
}

/** DS_OK when devstream can use the tensor; else the sentence says what is wrong. A type whose
    elements are no whole bytes is DS_ERR_UNSUPPORTED. */
DSDEF DS_MUST_USE ds_result ds_tensor_check(const ds_tensor *tensor);
/** Elements; -1 when a size is negative, the product does not fit, or the tensor is NULL. Callable
    anywhere. */
DSDEF int64_t ds_tensor_get_count(const ds_tensor *tensor);
/** Bytes that so many elements take; 0 too when they do not fit or are no whole bytes. Callable
    anywhere. */
DSDEF size_t ds_tensor_get_size(const ds_tensor *tensor);
/** 1 when the elements lie row by row without gaps (sizes of 1 and empty tensors are no
    obstacle), 0 when not. Callable anywhere. */
DSDEF int ds_tensor_is_contiguous(const ds_tensor *tensor);
/** 1 when the elements fill their memory without gaps or overlap in some order of the
    dimensions. Callable anywhere. */
DSDEF int ds_tensor_is_dense(const ds_tensor *tensor);

/* Tensors that devstream makes are objects: the description, shape and strides included, is
   devstream's until ds_tensor_free, and the memory stays until the last object that shows it is
   freed. The members may be read and not changed. Different objects may be used by different
   threads at once. */

/** Allocates a tensor on the stream's device, as ds_mem_alloc does: row-major, uninitialised,
    for what is enqueued on the stream from now on. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc(ds_dtype dtype, int ndim, const int64_t *shape,
                                            ds_stream stream, ds_tensor **out);
/** The same in pinned host memory, for all devices. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc_pinned(ds_dtype dtype, int ndim, const int64_t *shape,
                                                   ds_tensor **out);
/** A tensor of the same type and shape, and with the dimensions in the same order in memory
    (torch.empty_like): so channels_last stays channels_last. A zeroed stream: in pinned host
    memory. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc_like(const ds_tensor *like, ds_stream stream,
                                                 ds_tensor **out);

enum { DS_TENSOR_READ_ONLY = 1 /**< nothing is written to it; views have the flag too */ };

/** Makes an object of a description, which is copied: of memory of the caller's.
    release_fn(user), when given, runs once when no object shows the memory any more, on the
    thread that freed the last; also when this call fails. It must not block. flags:
    DS_TENSOR_READ_ONLY or 0. */
DSDEF DS_MUST_USE ds_result ds_tensor_wrap(const ds_tensor *tensor, unsigned flags,
                                           void (*release_fn)(void *user), void *user,
                                           ds_tensor **out);
/** Frees an object. Its memory goes with the last object that shows it, in the order of the
    stream that it was allocated on (ds_mem_free). NULL is allowed. What is no object of
    devstream's is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_tensor_free(ds_tensor *tensor);
/** DS_TENSOR_READ_ONLY or 0; of a tensor that is no object 0. */
DSDEF DS_MUST_USE ds_result ds_tensor_get_flags(const ds_tensor *tensor, unsigned *out);

/* Views show memory of another tensor and copy nothing. Where that is an object, the memory
   stays as long as the view. Dimensions count from 0, or from -1 backwards. */

/** The same elements in the same order as another shape, of which one size may be -1: whatever
    is left. DS_ERR_INVALID_VALUE when the strides do not allow it without a copy. */
DSDEF DS_MUST_USE ds_result ds_tensor_view(const ds_tensor *tensor, int ndim, const int64_t *shape,
                                           ds_tensor **out);
/** Elements start to start + length - 1 along a dimension. */
DSDEF DS_MUST_USE ds_result ds_tensor_narrow(const ds_tensor *tensor, int dim, int64_t start,
                                             int64_t length, ds_tensor **out);
/** tensor[start:stop:step] along a dimension, as in Python: negative numbers count from the end,
    what is outside is cut off; step is at least 1. INT64_MAX: to the end. */
DSDEF DS_MUST_USE ds_result ds_tensor_slice(const ds_tensor *tensor, int dim, int64_t start,
                                            int64_t stop, int64_t step, ds_tensor **out);
/** One index of a dimension, which disappears. */
DSDEF DS_MUST_USE ds_result ds_tensor_select(const ds_tensor *tensor, int dim, int64_t index,
                                             ds_tensor **out);
/** The dimensions in another order: dimension i of the view is dimension order[i]. */
DSDEF DS_MUST_USE ds_result ds_tensor_permute(const ds_tensor *tensor, const int *order,
                                              ds_tensor **out);
/** Two dimensions change places. */
DSDEF DS_MUST_USE ds_result ds_tensor_transpose(const ds_tensor *tensor, int dim0, int dim1,
                                                ds_tensor **out);
/** Complex numbers as pairs of real ones: one more dimension, of size 2. */
DSDEF DS_MUST_USE ds_result ds_tensor_as_real(const ds_tensor *tensor, ds_tensor **out);
/** Memory of a device of the CPU driver, or pinned or managed memory, as plain host memory: for
    libraries that know no other. Whoever uses it there must wait for the stream first. */
DSDEF DS_MUST_USE ds_result ds_tensor_as_host(const ds_tensor *tensor, ds_tensor **out);

#endif
