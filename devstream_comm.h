/* devstream_comm.h - tensors, and collectives over several devices: broadcast, scatter, gather, reduce.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_comm.h"
   in exactly one C file, and #include "devstream_comm.h" wherever else it is used. devstream.h, devstream_cpu.h and
   devstream_alloc.h must lie beside it; link as devstream.h says.

   A tensor is a DLPack tensor: what PyTorch, CuPy, JAX or Paddle export is taken as it is, without a copy. A collective is one
   call for all devices of the process: it checks everything first, then puts copies and sums on the streams and returns.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_comm.h"
       #include <stdio.h>
       int main(void) {
           ds_tensor *t;
           int64_t shape[2] = { 4, 1000 };
           ds_stream s;
           if (ds_stream_current(ds_device_current(), &s) < 0 || ds_tensor_alloc(ds_float32(), 2, shape, s, &t) < 0 ||
               ds_fill(t->data, 0, 4, 4000, s) < 0) { fprintf(stderr, "%s\n", ds_last_error()); return 1; }
           printf("%lld elements\n", (long long)ds_tensor_count(t));
           return ds_tensor_free(t) < 0 || ds_shutdown() < 0;
       }

   Contents: data types; tensors; exchange with other libraries; reductions; collectives; implementation (tensors, kernels, collectives).

   Known gaps: pageable host memory whose elements do not lie in rows is copied piece by piece. Sparse tensors have no form in
   DLPack and none here. Types of less than a byte are taken only where whole bytes hold their elements (float4 in pairs, for
   example). On CUDA a stream that waits for a device that has failed may go on without a word. A tensor of the CPU driver's devices has DLPack's extension type 12, which
   other libraries do not know: export a view of it as host memory (ds_tensor_as_host). */

#ifndef DEVSTREAM_COMM_H_INCLUDED
#define DEVSTREAM_COMM_H_INCLUDED

#include "devstream_alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data types ------------------------------------------------------------------------------------------------ */

/** What an element is, with DLPack's numbers. */
typedef enum ds_type_code {
    DS_CODE_INT = 0, DS_CODE_UINT = 1, DS_CODE_FLOAT = 2, DS_CODE_OPAQUE = 3, DS_CODE_BFLOAT = 4, DS_CODE_COMPLEX = 5, DS_CODE_BOOL = 6,
    DS_CODE_FLOAT8_E3M4 = 7, DS_CODE_FLOAT8_E4M3 = 8, DS_CODE_FLOAT8_E4M3B11FNUZ = 9, DS_CODE_FLOAT8_E4M3FN = 10, DS_CODE_FLOAT8_E4M3FNUZ = 11,
    DS_CODE_FLOAT8_E5M2 = 12, DS_CODE_FLOAT8_E5M2FNUZ = 13, DS_CODE_FLOAT8_E8M0FNU = 14, DS_CODE_FLOAT6_E2M3FN = 15, DS_CODE_FLOAT6_E3M2FN = 16,
    DS_CODE_FLOAT4_E2M1FN = 17
} ds_type_code;

/** A data type; the same bytes as DLPack's DLDataType. */
typedef struct ds_dtype {
    uint8_t code;   /**< a ds_type_code */
    uint8_t bits;   /**< of one lane */
    uint16_t lanes; /**< 1, or more for vectors */
} ds_dtype;

/* X(name, code, bits, lanes): torch's types and their names, and the rest of DLPack's 8-bit ones. */
#define DS_DTYPES(X) \
    X(bool, DS_CODE_BOOL, 8, 1) X(int8, DS_CODE_INT, 8, 1) X(int16, DS_CODE_INT, 16, 1) X(int32, DS_CODE_INT, 32, 1) X(int64, DS_CODE_INT, 64, 1) \
    X(uint8, DS_CODE_UINT, 8, 1) X(uint16, DS_CODE_UINT, 16, 1) X(uint32, DS_CODE_UINT, 32, 1) X(uint64, DS_CODE_UINT, 64, 1) \
    X(float16, DS_CODE_FLOAT, 16, 1) X(bfloat16, DS_CODE_BFLOAT, 16, 1) X(float32, DS_CODE_FLOAT, 32, 1) X(float64, DS_CODE_FLOAT, 64, 1) \
    X(complex32, DS_CODE_COMPLEX, 32, 1) X(complex64, DS_CODE_COMPLEX, 64, 1) X(complex128, DS_CODE_COMPLEX, 128, 1) \
    X(float8_e3m4, DS_CODE_FLOAT8_E3M4, 8, 1) X(float8_e4m3, DS_CODE_FLOAT8_E4M3, 8, 1) X(float8_e4m3b11fnuz, DS_CODE_FLOAT8_E4M3B11FNUZ, 8, 1) \
    X(float8_e4m3fn, DS_CODE_FLOAT8_E4M3FN, 8, 1) X(float8_e4m3fnuz, DS_CODE_FLOAT8_E4M3FNUZ, 8, 1) X(float8_e5m2, DS_CODE_FLOAT8_E5M2, 8, 1) \
    X(float8_e5m2fnuz, DS_CODE_FLOAT8_E5M2FNUZ, 8, 1) X(float8_e8m0fnu, DS_CODE_FLOAT8_E8M0FNU, 8, 1) X(float4_e2m1fn_x2, DS_CODE_FLOAT4_E2M1FN, 4, 2)

/* ds_bool(), ds_int8(), ds_float32() and so on. */
#define DS_DTYPE_FUNCTION_(name, c, b, l) \
    static inline ds_dtype ds_##name(void) { ds_dtype t; t.code = (uint8_t)(c); t.bits = (b); t.lanes = (l); return t; }
DS_DTYPES(DS_DTYPE_FUNCTION_)
#undef DS_DTYPE_FUNCTION_

/** Bytes of an element; 0 when that is no whole number. Callable anywhere. */
DSDEF size_t ds_dtype_size(ds_dtype dtype);
/** 1 when both are the same type. Callable anywhere. */
DSDEF int ds_dtype_equal(ds_dtype a, ds_dtype b);
/** Longest text that ds_dtype_print writes, with the terminating zero. */
#define DS_DTYPE_NAME_SIZE 32
/** Writes torch's name ("float32"); a type without one is written as "code:bits:lanes". DS_ERR_INVALID_VALUE when size is too small. */
DSDEF DS_MUST_USE ds_result ds_dtype_print(ds_dtype dtype, char *out, size_t size);
/** Reads such a name, or one of torch's others: float, double, half, short, int, long, chalf, cfloat, cdouble. */
DSDEF DS_MUST_USE ds_result ds_dtype_parse(const char *text, ds_dtype *out);

/* ---- tensors --------------------------------------------------------------------------------------------------- */

/** Most dimensions of a tensor (torch's limit). */
#define DS_TENSOR_MAX_DIMS 64

/** Types of device that a tensor may have beside those of ds_device_type; DLPack's numbers. */
enum {
    DS_TENSOR_CUDA_HOST = 3,    /**< pinned host memory */
    DS_TENSOR_CUDA_MANAGED = 13 /**< managed memory of a GPU */
};

/** A tensor: the same bytes as DLPack's DLTensor, so that a pointer to one is a pointer to the other. Every function takes tensors that others filled in. */
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
static inline ds_tensor ds_tensor_of(void *data, ds_device device, ds_dtype dtype, int ndim, int64_t *shape) {
    ds_tensor t; t.data = data; t.device = device; t.ndim = ndim; t.dtype = dtype; t.shape = shape; t.strides = NULL; t.byte_offset = 0; return t;
}
/** The first element. */
static inline void *ds_tensor_address(const ds_tensor *tensor) { return (char *)tensor->data + tensor->byte_offset; }

/** DS_OK when devstream can use the tensor; else the sentence says what is wrong. A type whose elements are no whole bytes is DS_ERR_UNSUPPORTED. */
DSDEF DS_MUST_USE ds_result ds_tensor_check(const ds_tensor *tensor);
/** Elements; -1 when a size is negative or the product does not fit. Callable anywhere. */
DSDEF int64_t ds_tensor_count(const ds_tensor *tensor);
/** Bytes that so many elements take; 0 too when they do not fit or are no whole bytes. Callable anywhere. */
DSDEF size_t ds_tensor_size(const ds_tensor *tensor);
/** 1 when the elements lie row by row without gaps (sizes of 1 and empty tensors are no obstacle), 0 when not. Callable anywhere. */
DSDEF int ds_tensor_is_contiguous(const ds_tensor *tensor);
/** 1 when the elements fill their memory without gaps or overlap in some order of the dimensions. Callable anywhere. */
DSDEF int ds_tensor_is_dense(const ds_tensor *tensor);

/* Tensors that devstream makes are objects: the description, shape and strides included, is devstream's until ds_tensor_free, and the memory stays until the
   last object that shows it is freed. The members may be read and not changed. Different objects may be used by different threads at once. */

/** Allocates a tensor on the stream's device, as ds_mem_alloc does: row-major, uninitialised, for what is enqueued on the stream from now on. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc(ds_dtype dtype, int ndim, const int64_t *shape, ds_stream stream, ds_tensor **out);
/** The same in pinned host memory, for all devices. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc_host(ds_dtype dtype, int ndim, const int64_t *shape, ds_tensor **out);
/** A tensor of the same type and shape, and with the dimensions in the same order in memory (torch.empty_like): so channels_last stays channels_last.
    A zeroed stream: in pinned host memory. */
DSDEF DS_MUST_USE ds_result ds_tensor_alloc_like(const ds_tensor *like, ds_stream stream, ds_tensor **out);
enum { DS_TENSOR_READ_ONLY = 1 /**< nothing is written to it; views have the flag too */ };
/** Makes an object of a description, which is copied: of memory of the caller's. release_fn(user), when given, runs once when no object shows the memory any more, on
    the thread that freed the last; also when this call fails. It must not block. flags: DS_TENSOR_READ_ONLY or 0. */
DSDEF DS_MUST_USE ds_result ds_tensor_wrap(const ds_tensor *tensor, unsigned flags, void (*release_fn)(void *user), void *user, ds_tensor **out);
/** Frees an object. Its memory goes with the last object that shows it, in the order of the stream that it was allocated on (ds_mem_free). NULL is allowed. What is no object of
    devstream's is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_tensor_free(ds_tensor *tensor);
/** DS_TENSOR_READ_ONLY or 0; of a tensor that is no object 0. */
DSDEF DS_MUST_USE ds_result ds_tensor_flags(const ds_tensor *tensor, unsigned *out);

/* Views show memory of another tensor and copy nothing. Where that is an object, the memory stays as long as the view. Dimensions count from 0, or from -1 backwards. */

/** The same elements in the same order as another shape, of which one size may be -1: whatever is left. DS_ERR_INVALID_VALUE when the strides do not allow it without a copy. */
DSDEF DS_MUST_USE ds_result ds_tensor_view(const ds_tensor *tensor, int ndim, const int64_t *shape, ds_tensor **out);
/** Elements start to start + length - 1 along a dimension. */
DSDEF DS_MUST_USE ds_result ds_tensor_narrow(const ds_tensor *tensor, int dim, int64_t start, int64_t length, ds_tensor **out);
/** tensor[start:stop:step] along a dimension, as in Python: negative numbers count from the end, what is outside is cut off; step is at least 1. INT64_MAX: to the end. */
DSDEF DS_MUST_USE ds_result ds_tensor_slice(const ds_tensor *tensor, int dim, int64_t start, int64_t stop, int64_t step, ds_tensor **out);
/** One index of a dimension, which disappears. */
DSDEF DS_MUST_USE ds_result ds_tensor_select(const ds_tensor *tensor, int dim, int64_t index, ds_tensor **out);
/** The dimensions in another order: dimension i of the view is dimension order[i]. */
DSDEF DS_MUST_USE ds_result ds_tensor_permute(const ds_tensor *tensor, const int *order, ds_tensor **out);
/** Two dimensions change places. */
DSDEF DS_MUST_USE ds_result ds_tensor_transpose(const ds_tensor *tensor, int dim0, int dim1, ds_tensor **out);
/** Complex numbers as pairs of real ones: one more dimension, of size 2. */
DSDEF DS_MUST_USE ds_result ds_tensor_as_real(const ds_tensor *tensor, ds_tensor **out);
/** Memory of a device of the CPU driver, or pinned memory, as plain host memory: for libraries that know no other. Whoever uses it there must wait for the stream first. */
DSDEF DS_MUST_USE ds_result ds_tensor_as_host(const ds_tensor *tensor, ds_tensor **out);

/* ---- exchange with other libraries ------------------------------------------------------------------------------- */

/** DLPack's DLManagedTensor (capsule "dltensor"): a tensor with the function that ends it. */
typedef struct ds_managed_tensor {
    ds_tensor tensor;                                  /**< what it is */
    void *manager_ctx;                                 /**< the maker's */
    void (*deleter)(struct ds_managed_tensor *self);   /**< ends it; may be NULL */
} ds_managed_tensor;
/** DLPack's DLPackVersion. */
typedef struct ds_dlpack_version {
    uint32_t major; /**< another one is another layout */
    uint32_t minor; /**< adds only */
} ds_dlpack_version;
/** What devstream writes: 1.1. */
#define DS_DLPACK_MAJOR 1
#define DS_DLPACK_MINOR 1
/** Flags of ds_managed_tensor_versioned. */
enum {
    DS_DLPACK_READ_ONLY = 1,      /**< must not be written to */
    DS_DLPACK_IS_COPIED = 2,      /**< it was copied for the taker */
    DS_DLPACK_SUBBYTE_PADDED = 4  /**< elements of less than a byte have one each */
};
/** DLPack's DLManagedTensorVersioned (capsule "dltensor_versioned"). */
typedef struct ds_managed_tensor_versioned {
    ds_dlpack_version version;                                 /**< of what follows */
    void *manager_ctx;                                         /**< the maker's */
    void (*deleter)(struct ds_managed_tensor_versioned *self); /**< ends it; may be NULL */
    uint64_t flags;                                            /**< DS_DLPACK_* */
    ds_tensor tensor;                                          /**< what it is */
} ds_managed_tensor_versioned;

/** Takes over a managed tensor: its deleter is called once, when no object shows its memory any more. When the call fails it is still the caller's. The caller's stream
    must be ordered behind the maker's work, which is the business of the maker's library (in Python the stream argument of __dlpack__). */
DSDEF DS_MUST_USE ds_result ds_tensor_import(ds_managed_tensor *managed, ds_tensor **out);
/** The same of a versioned one. DS_ERR_UNSUPPORTED: a major version other than 1, or elements of less than a byte that are padded. */
DSDEF DS_MUST_USE ds_result ds_tensor_import_versioned(ds_managed_tensor_versioned *managed, ds_tensor **out);
/** Makes a managed tensor that shows an object's memory and keeps it until its deleter is called; that may be done by any thread, also inside a host function, and after
    ds_shutdown, which ends the memory. data is the first element and byte_offset 0, as some libraries read it so. It is made with malloc.
    DS_ERR_UNSUPPORTED for read-only tensors, of which this form cannot tell. */
DSDEF DS_MUST_USE ds_result ds_tensor_export(const ds_tensor *tensor, ds_managed_tensor **out);
/** The same in the versioned form. */
DSDEF DS_MUST_USE ds_result ds_tensor_export_versioned(const ds_tensor *tensor, ds_managed_tensor_versioned **out);

/* ---- reductions ------------------------------------------------------------------------------------------------ */

/** How elements are put together; the numbers are NCCL's. */
typedef enum ds_reduce_op {
    DS_REDUCE_SUM = 0,     /**< bool: or */
    DS_REDUCE_PRODUCT = 1, /**< bool: and */
    DS_REDUCE_MAX = 2,     /**< NaN if one of them is; not of complex numbers */
    DS_REDUCE_MIN = 3,     /**< the same */
    DS_REDUCE_AVERAGE = 4  /**< the sum divided by the number of tensors; not of bool; integers: towards zero */
} ds_reduce_op;

/* ---- collectives ------------------------------------------------------------------------------------------------ */

/* A collective is one call for all that take part. It checks everything, then puts copies and sums on the streams and returns: it is asynchronous, and begins on
   a stream when all work put on that before has been done. Every stream that takes part goes on when the whole collective is done; if a part of it fails at run time, that is why
   every one of them reports it. Results are valid for what is put on their streams afterwards. On failure of the call nothing was put on a stream (unless the sentence says so),
   and results are NULL.
   Tensors may be of any shape and strides and on any device of one driver, several on one device too, and in host memory: in pinned memory the host does not
   wait, in pageable memory as in ds_copy. Data types must agree. Host memory is read and written on the stream that the options give for it, else on the first one that takes part.
   Results that a collective makes are freed with ds_tensor_free; those in host memory are pinned. */

enum {
    DS_COMM_ALIAS = 1 /**< a result that would equal a tensor which is where it is wanted shows that tensor's memory instead of a copy (torch) */
};
/** What may be said of every collective; NULL and zero mean the default. */
typedef struct ds_comm_options {
    const ds_stream *streams; /**< stream i is that of the i-th device or tensor of the list; zeroed and missing ones: the thread's current stream of the device */
    size_t stream_count;      /**< how many there are */
    ds_stream stream;         /**< that of the single tensor: of what is sent by broadcast and scatter, of the result of gather and reduce */
    unsigned flags;           /**< DS_COMM_* */
} ds_comm_options;

/** Copies a tensor to each device of the list: out[i] is a new tensor on devices[i], like the tensor in shape and order of dimensions. A device may stand there several
    times, the tensor's own too, and DS_DEVICE_HOST. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast(const ds_tensor *tensor, const ds_device *devices, size_t count, const ds_comm_options *options, ds_tensor **out);
/** Copies a tensor into each of these, which must have its shape and data type. One that is the tensor itself is left alone. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast_into(const ds_tensor *tensor, const ds_tensor *const *outs, size_t count, const ds_comm_options *options);
/** Broadcasts many tensors, which must be on one device or on the host, in as few copies as buffers of buffer_size bytes (0: 10 MiB) allow: tensors of one data type travel together until
    that is reached. out[i * count + k] is tensor k on devices[i]; results of one buffer share its memory. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast_coalesced(const ds_tensor *const *tensors, size_t count, const ds_device *devices, size_t device_count, size_t buffer_size,
                                                        const ds_comm_options *options, ds_tensor **out);
/** Cuts a tensor along a dimension and copies the pieces to the devices, piece i as out[i] to devices[i]. chunk_sizes, one for each device, must add up to the size of the
    dimension; NULL: torch.chunk's rule, pieces of the size divided by count, rounded up, as long as there is something left: so there may be fewer than devices.
    *out_count (NULL allowed) is how many there are, the rest of out is NULL. */
DSDEF DS_MUST_USE ds_result ds_comm_scatter(const ds_tensor *tensor, const ds_device *devices, size_t count, const int64_t *chunk_sizes, int dim,
                                            const ds_comm_options *options, ds_tensor **out, size_t *out_count);
/** Cuts a tensor along a dimension into pieces as large as these tensors are, and copies them there. */
DSDEF DS_MUST_USE ds_result ds_comm_scatter_into(const ds_tensor *tensor, const ds_tensor *const *outs, size_t count, int dim, const ds_comm_options *options);
/** Puts tensors together along a dimension, in one new tensor on the destination (DS_DEVICE_HOST: pinned memory). They agree in all other sizes. */
DSDEF DS_MUST_USE ds_result ds_comm_gather(const ds_tensor *const *tensors, size_t count, int dim, ds_device destination, const ds_comm_options *options, ds_tensor **out);
/** The same into a tensor that is there. */
DSDEF DS_MUST_USE ds_result ds_comm_gather_into(const ds_tensor *const *tensors, size_t count, int dim, const ds_tensor *out, const ds_comm_options *options);
/** Puts tensors of one shape together element by element, in the order of the list, in a new tensor on the destination, where one of them must be (zeroed: the current device).
    The result is the same on every run and every driver, bit for bit; float16 and bfloat16 are summed in float32. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce(const ds_tensor *const *tensors, size_t count, ds_reduce_op op, ds_device destination, const ds_comm_options *options, ds_tensor **out);
/** The same into a tensor that is there, on any device; it may be one of the tensors. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_into(const ds_tensor *const *tensors, size_t count, ds_reduce_op op, const ds_tensor *out, const ds_comm_options *options);
/** torch.cuda.comm.reduce_add: ds_comm_reduce with DS_REDUCE_SUM. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_add(const ds_tensor *const *tensors, size_t count, ds_device destination, const ds_comm_options *options, ds_tensor **out);
/** Sums many tensors: tensors[i * count + k] is tensor k of list i of `lists`; out[k] is the sum of the k-th ones. Each is read where it is and no buffer is filled, so
    that buffer_size (torch's) says nothing here; it may be 0. options->streams has one stream for each list. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_add_coalesced(const ds_tensor *const *tensors, size_t lists, size_t count, ds_device destination, size_t buffer_size,
                                                         const ds_comm_options *options, ds_tensor **out);
/** Every outs[i] becomes what ds_comm_reduce makes of all tensors; outs[i] may be tensors[i]. All have one shape. */
DSDEF DS_MUST_USE ds_result ds_comm_all_reduce(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, ds_reduce_op op, const ds_comm_options *options);
/** Every outs[i] becomes all tensors, put together along its dimension 0 in the order of the list; they have one shape. In place: tensors[i] is the i-th part of outs[i]. */
DSDEF DS_MUST_USE ds_result ds_comm_all_gather(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, const ds_comm_options *options);
/** outs[i] becomes the sum (or what op says) of the i-th parts of all tensors, which are cut into `count` equal parts along dimension 0. In place: outs[i] is the i-th
    part of tensors[i]. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_scatter(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, ds_reduce_op op, const ds_comm_options *options);
/** All are cut into `count` equal parts along dimension 0: part j of outs[i] becomes part i of tensors[j]. Not in place. */
DSDEF DS_MUST_USE ds_result ds_comm_all_to_all(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, const ds_comm_options *options);
/** What is put on any of the streams afterwards begins when what was put on all of them before is done. Returns at once. */
DSDEF DS_MUST_USE ds_result ds_comm_barrier(const ds_stream *streams, size_t count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES
#define ds_tensor_check(...) (DS_HERE_, ds_tensor_check(__VA_ARGS__))
#define ds_tensor_alloc(...) (DS_HERE_, ds_tensor_alloc(__VA_ARGS__))
#define ds_tensor_alloc_host(...) (DS_HERE_, ds_tensor_alloc_host(__VA_ARGS__))
#define ds_tensor_alloc_like(...) (DS_HERE_, ds_tensor_alloc_like(__VA_ARGS__))
#define ds_tensor_wrap(...) (DS_HERE_, ds_tensor_wrap(__VA_ARGS__))
#define ds_tensor_free(...) (DS_HERE_, ds_tensor_free(__VA_ARGS__))
#define ds_tensor_flags(...) (DS_HERE_, ds_tensor_flags(__VA_ARGS__))
#define ds_tensor_view(...) (DS_HERE_, ds_tensor_view(__VA_ARGS__))
#define ds_tensor_narrow(...) (DS_HERE_, ds_tensor_narrow(__VA_ARGS__))
#define ds_tensor_slice(...) (DS_HERE_, ds_tensor_slice(__VA_ARGS__))
#define ds_tensor_select(...) (DS_HERE_, ds_tensor_select(__VA_ARGS__))
#define ds_tensor_permute(...) (DS_HERE_, ds_tensor_permute(__VA_ARGS__))
#define ds_tensor_transpose(...) (DS_HERE_, ds_tensor_transpose(__VA_ARGS__))
#define ds_tensor_as_real(...) (DS_HERE_, ds_tensor_as_real(__VA_ARGS__))
#define ds_tensor_as_host(...) (DS_HERE_, ds_tensor_as_host(__VA_ARGS__))
#define ds_tensor_import(...) (DS_HERE_, ds_tensor_import(__VA_ARGS__))
#define ds_tensor_import_versioned(...) (DS_HERE_, ds_tensor_import_versioned(__VA_ARGS__))
#define ds_tensor_export(...) (DS_HERE_, ds_tensor_export(__VA_ARGS__))
#define ds_tensor_export_versioned(...) (DS_HERE_, ds_tensor_export_versioned(__VA_ARGS__))
#define ds_comm_broadcast(...) (DS_HERE_, ds_comm_broadcast(__VA_ARGS__))
#define ds_comm_broadcast_into(...) (DS_HERE_, ds_comm_broadcast_into(__VA_ARGS__))
#define ds_comm_broadcast_coalesced(...) (DS_HERE_, ds_comm_broadcast_coalesced(__VA_ARGS__))
#define ds_comm_scatter(...) (DS_HERE_, ds_comm_scatter(__VA_ARGS__))
#define ds_comm_scatter_into(...) (DS_HERE_, ds_comm_scatter_into(__VA_ARGS__))
#define ds_comm_gather(...) (DS_HERE_, ds_comm_gather(__VA_ARGS__))
#define ds_comm_gather_into(...) (DS_HERE_, ds_comm_gather_into(__VA_ARGS__))
#define ds_comm_reduce(...) (DS_HERE_, ds_comm_reduce(__VA_ARGS__))
#define ds_comm_reduce_into(...) (DS_HERE_, ds_comm_reduce_into(__VA_ARGS__))
#define ds_comm_reduce_add(...) (DS_HERE_, ds_comm_reduce_add(__VA_ARGS__))
#define ds_comm_reduce_add_coalesced(...) (DS_HERE_, ds_comm_reduce_add_coalesced(__VA_ARGS__))
#define ds_comm_all_reduce(...) (DS_HERE_, ds_comm_all_reduce(__VA_ARGS__))
#define ds_comm_all_gather(...) (DS_HERE_, ds_comm_all_gather(__VA_ARGS__))
#define ds_comm_reduce_scatter(...) (DS_HERE_, ds_comm_reduce_scatter(__VA_ARGS__))
#define ds_comm_all_to_all(...) (DS_HERE_, ds_comm_all_to_all(__VA_ARGS__))
#define ds_comm_barrier(...) (DS_HERE_, ds_comm_barrier(__VA_ARGS__))
#endif /* DEVSTREAM_NO_SITES */

#endif /* DEVSTREAM_COMM_H_INCLUDED */

/* ================================================================================================================ */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_COMM_H_IMPLEMENTED)
#define DEVSTREAM_COMM_H_IMPLEMENTED
#ifndef __cplusplus

/* ---- >>tensors --------------------------------------------------------------------------------------------------- */

/* Policy.
    1. A tensor of devstream's is an object that a table knows by its address, so that it is told from what others made; its description does not change.
    2. Objects share a storage, which counts them and gives the memory back. Other libraries may have one longer than ds_shutdown: it is made with malloc.
    3. What is freed where devstream cannot be called (by a deleter inside a host function) waits in a list for the next call.
    4. A function reads a description once, into a ds__dims: everything is checked there, and nothing after it can overflow. */

/* A description that was checked. */
typedef struct ds__dims {
    char *first;               /* the element whose indices are all 0 */
    ds_device device;          /* DS_DEVICE_HOST, or one of a driver */
    ds_device given;           /* as the description has it */
    ds_dtype dtype;
    int ndim;
    size_t item;               /* bytes of an element */
    int64_t count;             /* elements */
    size_t bytes;              /* of so many elements */
    ptrdiff_t low, high;       /* from `first`: where the bytes of all elements begin and end */
    int64_t shape[DS_TENSOR_MAX_DIMS], strides[DS_TENSOR_MAX_DIMS];
} ds__dims;

enum { DS__OF_ALLOCATOR, DS__OF_PINNED, DS__OF_OTHERS, DS__OF_MANAGED, DS__OF_VERSIONED };
typedef struct ds__storage {
    struct ds__storage *next;  /* in the list of those that wait */
    _Atomic int users;
    int kind;                  /* DS__OF_* */
    uint32_t epoch;            /* ds__g.epoch in which the memory is valid */
    void *ptr;                 /* memory, or what is handed to release_fn, or the managed tensor */
    void (*release_fn)(void *user);
} ds__storage;

typedef struct ds__tensor {
    ds_tensor t;               /* first: the user's pointer */
    struct ds__tensor *next;   /* in its bucket */
    ds__storage *storage;      /* NULL: a view of what is no object */
    unsigned flags;
    ds_site made;
    int64_t dims[];            /* sizes, then strides */
} ds__tensor;

#define DS__TENSOR_BUCKETS 1024
static struct {
    _Atomic int ready;
    ds__lock lock;             /* of what follows */
    ds__tensor *bucket[DS__TENSOR_BUCKETS];
    ds__storage *waiting;
    _Atomic int waits;
} ds__c;

static void ds__comm_shutdown(void);
static ds_result ds__comm_setup(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__c.ready, memory_order_acquire))) return DS_OK;
    ds_result r = ds__mem_setup();
    if (r < 0) return r;
    ds__lock_take(&ds__c.lock);
    atomic_store(&ds__upper.shutdown_fn, ds__comm_shutdown); /* which goes on to the allocator's */
    atomic_store_explicit(&ds__c.ready, 1, memory_order_release);
    ds__lock_give(&ds__c.lock);
    return DS_OK;
}

/* ---- data types ---- */

static const struct { const char *name; uint8_t code, bits; uint16_t lanes; } ds__dtypes[] = {
#define DS__DTYPE(name, code, bits, lanes) { #name, (uint8_t)(code), bits, lanes },
    DS_DTYPES(DS__DTYPE)
#undef DS__DTYPE
};
#define DS__DTYPE_COUNT (sizeof ds__dtypes / sizeof ds__dtypes[0])

DSDEF size_t (ds_dtype_size)(ds_dtype dtype) {
    size_t bits = (size_t)dtype.bits * dtype.lanes;
    return bits % 8 == 0 ? bits / 8 : 0;
}
DSDEF int (ds_dtype_equal)(ds_dtype a, ds_dtype b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

/* Into a buffer of DS_DTYPE_NAME_SIZE. */
static const char *ds__dtype_name(ds_dtype dtype, char *out) {
    for (size_t i = 0; i < DS__DTYPE_COUNT; i++)
        if (ds__dtypes[i].code == dtype.code && ds__dtypes[i].bits == dtype.bits && ds__dtypes[i].lanes == dtype.lanes) return ds__dtypes[i].name;
    snprintf(out, DS_DTYPE_NAME_SIZE, "%d:%d:%d", dtype.code, dtype.bits, dtype.lanes);
    return out;
}
DSDEF ds_result (ds_dtype_print)(ds_dtype dtype, char *out, size_t size) {
    char text[DS_DTYPE_NAME_SIZE];
    if (out && size) out[0] = 0;
    DS__ENTER("ds_dtype_print");
    const char *name = ds__dtype_name(dtype, text);
    DS__REQUIRE(out && strlen(name) < size, "out is NULL or has no room for \"%s\"", name);
    memcpy(out, name, strlen(name) + 1);
    return DS_OK;
}
DSDEF ds_result (ds_dtype_parse)(const char *text, ds_dtype *out) {
    static const struct { const char *name, *is; } more[] = { { "float", "float32" }, { "double", "float64" }, { "half", "float16" }, { "short", "int16" },
        { "int", "int32" }, { "long", "int64" }, { "chalf", "complex32" }, { "cfloat", "complex64" }, { "cdouble", "complex128" } };
    unsigned n[3];
    int end = 0;
    if (out) memset(out, 0, sizeof *out);
    DS__ENTER("ds_dtype_parse");
    DS__REQUIRE(text && out, "%s is NULL", text ? "out" : "text");
    const char *name = text;
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        if (strcmp(text, more[i].name) == 0) name = more[i].is;
    for (size_t i = 0; i < DS__DTYPE_COUNT; i++)
        if (strcmp(name, ds__dtypes[i].name) == 0) {
            *out = (ds_dtype){ ds__dtypes[i].code, ds__dtypes[i].bits, ds__dtypes[i].lanes };
            return DS_OK;
        }
    DS__REQUIRE(sscanf(text, "%3u:%3u:%5u%n", &n[0], &n[1], &n[2], &end) == 3 && !text[end] && n[0] < 256 && n[1] < 256 && n[2] < 65536,
                "there is no data type \"%.60s\"", text);
    *out = (ds_dtype){ (uint8_t)n[0], (uint8_t)n[1], (uint16_t)n[2] };
    return DS_OK;
}

/* ---- reading descriptions ---- */

/* "input tensor at index 3"; of index -1 only the words. */
static const char *ds__nth(const char *what, int64_t index) {
    static __thread char text[100];
    if (index < 0) snprintf(text, sizeof text, "%s", what);
    else snprintf(text, sizeof text, "%s at index %lld", what, (long long)index);
    return text;
}

/* Row-major strides. Of empty tensors a size of 0 counts as 1, and what does not fit is 0: nobody follows them. */
static void ds__row_major(int ndim, const int64_t *shape, int64_t *strides) {
    int64_t step = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        strides[d] = step;
        if (__builtin_mul_overflow(step, shape[d] > 1 ? shape[d] : 1, &step)) step = 0;
    }
}

/* Elements of a shape; -1: a negative size, -2: too many. */
static int64_t ds__count_of(int ndim, const int64_t *shape) {
    int64_t count = 1, empty = 0, wide = 0;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0) return -1;
        empty |= shape[d] == 0;
        wide |= __builtin_mul_overflow(count, shape[d], &count);
    }
    return empty ? 0 : wide ? -2 : count;
}

/* Type and shape, and the strides when there are some. */
static ds_result ds__dims_read(ds_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides, const char *what, int64_t index, ds__dims *out) {
    out->dtype = dtype;
    out->ndim = ndim;
    out->item = (ds_dtype_size)(dtype);
    DS__REQUIRE(ndim >= 0 && ndim <= DS_TENSOR_MAX_DIMS, "%s has %d dimensions, not 0 to %d", ds__nth(what, index), ndim, DS_TENSOR_MAX_DIMS);
    DS__REQUIRE(!ndim || shape, "%s has no shape", ds__nth(what, index));
    DS__REQUIRE(dtype.bits && dtype.lanes, "%s has a data type of %d bits in %d lanes", ds__nth(what, index), dtype.bits, dtype.lanes);
    if (!out->item)
        return ds__fail(DS_ERR_UNSUPPORTED, "%s has elements of %d bits, which are no whole bytes", ds__nth(what, index), dtype.bits * dtype.lanes);
    if (ndim) memcpy(out->shape, shape, (size_t)ndim * sizeof *shape);
    out->count = ds__count_of(ndim, shape);
    for (int d = 0; out->count == -1 && d < ndim; d++)
        DS__REQUIRE(shape[d] >= 0, "%s has the size %lld in dimension %d", ds__nth(what, index), (long long)shape[d], d);
    DS__REQUIRE(out->count >= 0 && out->count <= PTRDIFF_MAX / (int64_t)out->item, "%s is larger than the address space", ds__nth(what, index));
    out->bytes = (size_t)out->count * out->item;
    if (!strides) ds__row_major(ndim, shape, out->strides);
    else if (ndim) memcpy(out->strides, strides, (size_t)ndim * sizeof *strides);
    int64_t low = 0, high = 0, by, wide = 0;
    for (int d = 0; out->count && d < ndim; d++) {
        wide |= __builtin_mul_overflow(out->shape[d] - 1, out->strides[d], &by);
        wide |= by < 0 ? __builtin_add_overflow(low, by, &low) : __builtin_add_overflow(high, by, &high);
    }
    wide |= __builtin_mul_overflow(low, (int64_t)out->item, &low) || __builtin_add_overflow(high, out->count > 0, &high) ||
            __builtin_mul_overflow(high, (int64_t)out->item, &high);
    DS__REQUIRE(!wide, "%s has strides that lead out of the address space", ds__nth(what, index));
    out->low = (ptrdiff_t)low;
    out->high = (ptrdiff_t)high;
    return DS_OK;
}

static ds_result ds__tensor_device(ds_device given, const char *what, int64_t index, ds_device *out) {
    if (given.type == DS_DEVICE_HOST || given.type == DS_TENSOR_CUDA_HOST) {
        *out = (ds_device){ DS_DEVICE_HOST, 0 };
        return DS_OK;
    }
    if (given.type == DS_TENSOR_CUDA_MANAGED) given.type = DS_DEVICE_CUDA;
    if (given.type != DS_DEVICE_CURRENT && given.type != DS_DEVICE_CUDA && given.type != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_UNSUPPORTED, "%s is on a device of DLPack's type %d, which devstream does not have", ds__nth(what, index), given.type);
    ds_result r = ds__resolve(given, out);
    return r < 0 ? ds__also(r, " (%s)", ds__nth(what, index)) : r;
}

static ds_result ds__tensor_read(const ds_tensor *t, const char *what, int64_t index, ds__dims *out) {
    DS__REQUIRE(t, "%s is NULL", ds__nth(what, index));
    ds_result r = ds__dims_read(t->dtype, t->ndim, t->shape, t->strides, what, index, out);
    if (r == DS_OK) r = ds__tensor_device(t->device, what, index, &out->device);
    if (r < 0) return r;
    out->given = t->device.type == DS_DEVICE_CURRENT ? out->device : t->device;
    out->first = (char *)((uintptr_t)t->data + t->byte_offset);
    DS__REQUIRE(t->data || !out->count, "%s has %lld elements and its data is NULL", ds__nth(what, index), (long long)out->count);
    DS__REQUIRE(!out->count || (t->byte_offset <= UINTPTR_MAX - (uintptr_t)t->data && (uintptr_t)out->first >= (uintptr_t)0 - (uintptr_t)out->low &&
                (size_t)out->high <= UINTPTR_MAX - (uintptr_t)out->first), "%s reaches beyond the address space", ds__nth(what, index));
    return DS_OK;
}

/* The dimensions that matter, those with more than one index, from the longest stride to the shortest; gives their number. */
static int ds__by_stride(const ds__dims *d, int *order) {
    int n = 0;
    for (int i = 0; i < d->ndim; i++) {
        if (d->shape[i] == 1) continue;
        int at = n++;
        for (; at > 0 && llabs(d->strides[order[at - 1]]) < llabs(d->strides[i]); at--) order[at] = order[at - 1];
        order[at] = i;
    }
    return n;
}
static int ds__is_dense(const ds__dims *d) {
    int order[DS_TENSOR_MAX_DIMS], n = ds__by_stride(d, order);
    int64_t step = 1;
    while (d->count && n-- > 0) {
        if (d->strides[order[n]] != step) return 0;
        step *= d->shape[order[n]];
    }
    return 1;
}
static int ds__is_row_major(const ds__dims *d) {
    int64_t step = 1;
    for (int i = d->ndim - 1; d->count && i >= 0; i--) {
        if (d->shape[i] == 1) continue;
        if (d->strides[i] != step) return 0;
        step *= d->shape[i];
    }
    return 1;
}
/* Strides without gaps, in the order in which the dimensions lie in memory now. */
static void ds__dense_like(const ds__dims *d, int64_t *strides) {
    int order[DS_TENSOR_MAX_DIMS], n = ds__by_stride(d, order);
    int64_t step = 1;
    if (!d->count) { ds__row_major(d->ndim, d->shape, strides); return; }
    while (n-- > 0) {
        strides[order[n]] = step;
        step *= d->shape[order[n]];
    }
    /* Sizes of 1 stand as they would if they were more. */
    for (int i = d->ndim - 1; i >= 0; i--)
        if (d->shape[i] == 1) strides[i] = ds__is_dense(d) ? d->strides[i] : i + 1 < d->ndim ? strides[i + 1] * d->shape[i + 1] : 1;
}

/* ---- storages ---- */

static int ds__of_now(uint32_t epoch) { return atomic_load_explicit(&ds__g.state, memory_order_acquire) == DS__READY && epoch == ds__g.epoch; }

static ds__storage *ds__storage_new(int kind, void *ptr, void (*release_fn)(void *)) {
    ds__storage *s = calloc(1, sizeof *s);
    if (!s) { ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a tensor"); return NULL; }
    atomic_store(&s->users, 1);
    s->kind = kind;
    s->epoch = ds__g.epoch;
    s->ptr = ptr;
    s->release_fn = release_fn;
    return s;
}

/* Ends what belongs to others. */
static void ds__storage_release(const ds__storage *s) {
    ds_managed_tensor *m = s->kind == DS__OF_MANAGED ? s->ptr : NULL;
    ds_managed_tensor_versioned *v = s->kind == DS__OF_VERSIONED ? s->ptr : NULL;
    if (m && m->deleter) m->deleter(m);
    if (v && v->deleter) v->deleter(v);
    if (s->release_fn) s->release_fn(s->ptr);
}

/* One user less; the last one gives the memory back. */
static ds_result ds__storage_drop(ds__storage *s) {
    ds_result r = DS_OK;
    if (!s || atomic_fetch_sub(&s->users, 1) != 1) return r;
    int now = ds__of_now(s->epoch);
    if (s->kind == DS__OF_ALLOCATOR || s->kind == DS__OF_PINNED) {
        if (now && ds__tls.in_callback) {
            ds__lock_take(&ds__c.lock);
            s->next = ds__c.waiting;
            ds__c.waiting = s;
            atomic_store(&ds__c.waits, 1);
            ds__lock_give(&ds__c.lock);
            return r;
        }
        if (now && s->kind == DS__OF_ALLOCATOR) DS__KEEPING(r, (ds_mem_free)(s->ptr));
        if (now && s->kind == DS__OF_PINNED) DS__KEEPING(r, (ds_pinned_free)(s->ptr));
    } else if (now && !ds__tls.in_callback) {
        ds__outside o = ds__leave();
        ds__storage_release(s);
        ds__return(o);
    } else {
        ds__storage_release(s);
    }
    free(s);
    return r;
}

/* What was freed inside of callbacks. */
static void ds__storages_catch_up(void) {
    if (DS__LIKELY(!atomic_load_explicit(&ds__c.waits, memory_order_relaxed)) || ds__tls.in_callback) return;
    ds__lock_take(&ds__c.lock);
    ds__storage *s = ds__c.waiting;
    ds__c.waiting = NULL;
    atomic_store(&ds__c.waits, 0);
    ds__lock_give(&ds__c.lock);
    while (s) {
        ds__storage *next = s->next;
        atomic_store(&s->users, 1);
        DS_IGNORE(ds__storage_drop(s));
        s = next;
    }
}

/* ---- objects ---- */

static ds__tensor **ds__tensor_place(const void *t) { /* locked: where it hangs, or where its bucket ends */
    uintptr_t n = (uintptr_t)t >> 5;
    ds__tensor **at = &ds__c.bucket[(n ^ n >> 10) % DS__TENSOR_BUCKETS];
    while (*at && *at != t) at = &(*at)->next;
    return at;
}

/* Who else shows the memory of a tensor gets a use of its storage. NULL: it is no object, or its memory is nobody's. 1: it is one. */
static int ds__tensor_share(const ds_tensor *t, ds__storage **out, unsigned *out_flags) {
    ds__lock_take(&ds__c.lock);
    const ds__tensor *o = *ds__tensor_place(t);
    if (out) *out = o ? o->storage : NULL;
    if (out && *out) atomic_fetch_add(&(*out)->users, 1);
    *out_flags = o ? o->flags : 0;
    ds__lock_give(&ds__c.lock);
    return o != NULL;
}

/* An object of what `d` says, which takes over a use of the storage; that is dropped when it fails. */
static ds_result ds__tensor_new(const ds__dims *d, ds__storage *storage, unsigned flags, ds_tensor **out) {
    size_t n = (size_t)d->ndim;
    ds__storages_catch_up();
    ds__tensor *o = ds__alloc(sizeof *o + 2 * n * sizeof(int64_t));
    if (!o) { DS_IGNORE(ds__storage_drop(storage)); return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a tensor"); }
    o->t = (ds_tensor){ d->count ? d->first : NULL, d->given, d->ndim, d->dtype, o->dims, o->dims + n, 0 };
    if (n) memcpy(o->dims, d->shape, n * sizeof(int64_t));
    if (n) memcpy(o->dims + n, d->strides, n * sizeof(int64_t));
    o->storage = storage;
    o->flags = flags;
    o->made = ds__tls.site;
    ds__lock_take(&ds__c.lock);
    ds__tensor **at = ds__tensor_place(o);
    o->next = NULL;
    *at = o;
    ds__lock_give(&ds__c.lock);
    *out = &o->t;
    return DS_OK;
}

/* Takes new memory for what `d` says but for the address. */
static ds_result ds__tensor_make(ds__dims *d, ds_stream stream, ds_tensor **out) {
    void *ptr = NULL;
    ds_result r = DS_OK;
    d->device = d->given = (ds_device){ DS_DEVICE_HOST, 0 };
    if (stream.id) {
        ds__stream *s = ds__stream_pin(stream);
        if (!s) return DS_ERR_INVALID_HANDLE;
        d->device = d->given = s->device;
        ds__stream_unpin(s);
    } else if (ds__g.driver[0]) {
        d->given.type = DS_TENSOR_CUDA_HOST; /* pinned for cudart */
    }
    if (d->bytes && stream.id) DS__KEEPING(r, (ds_mem_alloc)(d->bytes, stream, &ptr));
    if (d->bytes && !stream.id) DS__KEEPING(r, (ds_pinned_alloc)(d->bytes, &ptr));
    if (r < 0) return r;
    ds__storage *storage = ptr ? ds__storage_new(stream.id ? DS__OF_ALLOCATOR : DS__OF_PINNED, ptr, NULL) : NULL;
    if (ptr && !storage) {
        if (stream.id) DS__KEEPING(r, (ds_mem_free)(ptr));
        else DS__KEEPING(r, (ds_pinned_free)(ptr));
        return DS_ERR_OUT_OF_MEMORY;
    }
    d->first = ptr;
    return ds__tensor_new(d, storage, 0, out);
}

#define DS__TENSOR_BEGIN(name) \
    if (out) *out = NULL; \
    DS__ENTER(name); \
    DS__REQUIRE(out, "out is NULL"); \
    do { ds_result ds__r = ds__comm_setup(); if (DS__UNLIKELY(ds__r < 0)) return ds__r; } while (0)

DSDEF ds_result (ds_tensor_check)(const ds_tensor *tensor) {
    ds__dims d;
    DS__ENTER("ds_tensor_check");
    return ds__tensor_read(tensor, "the tensor", -1, &d);
}
DSDEF int64_t (ds_tensor_count)(const ds_tensor *tensor) {
    int64_t n = tensor->ndim < 0 || (tensor->ndim && !tensor->shape) ? -1 : ds__count_of(tensor->ndim, tensor->shape);
    return n < 0 ? -1 : n;
}
DSDEF size_t (ds_tensor_size)(const ds_tensor *tensor) {
    int64_t n = (ds_tensor_count)(tensor);
    size_t size = 0;
    return n < 0 || __builtin_mul_overflow((size_t)n, (ds_dtype_size)(tensor->dtype), &size) ? 0 : size;
}

/* Without a word and without devstream: a description that is wrong is neither. */
static int ds__tensor_is(const ds_tensor *t, int (*is)(const ds__dims *)) {
    ds__dims d;
    d.ndim = t->ndim;
    d.count = (ds_tensor_count)(t);
    if (d.count < 0 || d.ndim > DS_TENSOR_MAX_DIMS) return 0;
    if (d.ndim) memcpy(d.shape, t->shape, (size_t)d.ndim * sizeof(int64_t));
    if (!t->strides) return 1;
    if (d.ndim) memcpy(d.strides, t->strides, (size_t)d.ndim * sizeof(int64_t));
    return is(&d);
}
DSDEF int (ds_tensor_is_contiguous)(const ds_tensor *tensor) { return ds__tensor_is(tensor, ds__is_row_major); }
DSDEF int (ds_tensor_is_dense)(const ds_tensor *tensor) { return ds__tensor_is(tensor, ds__is_dense); }

DSDEF ds_result (ds_tensor_alloc)(ds_dtype dtype, int ndim, const int64_t *shape, ds_stream stream, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_alloc");
    ds_result r = ds__dims_read(dtype, ndim, shape, NULL, "the tensor", -1, &d);
    if (r == DS_OK && !stream.id) r = ds__fail(DS_ERR_INVALID_HANDLE, "no stream was given (the handle is zero)");
    return r < 0 ? r : ds__tensor_make(&d, stream, out);
}
DSDEF ds_result (ds_tensor_alloc_host)(ds_dtype dtype, int ndim, const int64_t *shape, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_alloc_host");
    ds_result r = ds__dims_read(dtype, ndim, shape, NULL, "the tensor", -1, &d);
    return r < 0 ? r : ds__tensor_make(&d, (ds_stream){ 0 }, out);
}
static ds_result ds__tensor_like(const ds__dims *like, ds_stream stream, ds_tensor **out) {
    ds__dims d = *like;
    ds__dense_like(like, d.strides);
    return ds__tensor_make(&d, stream, out);
}
DSDEF ds_result (ds_tensor_alloc_like)(const ds_tensor *like, ds_stream stream, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_alloc_like");
    ds_result r = ds__tensor_read(like, "the tensor", -1, &d);
    return r < 0 ? r : ds__tensor_like(&d, stream, out);
}

DSDEF ds_result (ds_tensor_wrap)(const ds_tensor *tensor, unsigned flags, void (*release_fn)(void *user), void *user, ds_tensor **out) {
    ds__dims d;
    ds_result r = DS_OK;
    if (out) *out = NULL;
    DS__ENTER("ds_tensor_wrap");
    if (!out) r = ds__fail(DS_ERR_INVALID_VALUE, "out is NULL");
    else if (flags & ~(unsigned)DS_TENSOR_READ_ONLY) r = ds__fail(DS_ERR_INVALID_VALUE, "unknown flags %#x", flags);
    if (r == DS_OK) r = ds__comm_setup();
    if (r == DS_OK) r = ds__tensor_read(tensor, "the tensor", -1, &d);
    ds__storage *storage = r == DS_OK ? ds__storage_new(DS__OF_OTHERS, user, release_fn) : NULL;
    if (storage) return ds__tensor_new(&d, storage, flags, out);
    if (release_fn) {
        ds__outside o = ds__leave();
        release_fn(user);
        ds__return(o);
    }
    return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
}

DSDEF ds_result (ds_tensor_free)(ds_tensor *tensor) {
    DS__ENTER("ds_tensor_free");
    if (!tensor) return DS_OK;
    ds__lock_take(&ds__c.lock);
    ds__tensor **at = ds__tensor_place(tensor), *o = *at;
    if (o) *at = o->next;
    ds__lock_give(&ds__c.lock);
    DS__REQUIRE(o, "%p is no tensor of devstream's, or was freed already", (void *)tensor);
    ds_result r = ds__storage_drop(o->storage);
    ds__release(o);
    ds__storages_catch_up();
    return r;
}
DSDEF ds_result (ds_tensor_flags)(const ds_tensor *tensor, unsigned *out) {
    if (out) *out = 0;
    DS__ENTER("ds_tensor_flags");
    DS__REQUIRE(tensor && out, "%s is NULL", tensor ? "out" : "the tensor");
    (void)ds__tensor_share(tensor, NULL, out);
    return DS_OK;
}

/* ---- views ---- */

/* A dimension from the front; -1 and the sentence: there is none. */
static int ds__tensor_dim(int dim, int ndim) {
    if (dim >= -ndim && dim < ndim) return dim < 0 ? dim + ndim : dim;
    ds__fail(DS_ERR_INVALID_VALUE, ndim ? "dimension %d is outside of [%d, %d]" : "dimension %d of a tensor that has none", dim, -ndim, ndim - 1);
    return -1;
}
static ds_result ds__tensor_show(const ds_tensor *base, const ds__dims *d, ds_tensor **out) {
    ds__storage *storage;
    unsigned flags;
    (void)ds__tensor_share(base, &storage, &flags);
    return ds__tensor_new(d, storage, flags, out);
}
/* An index along a dimension becomes part of the address. */
static void ds__dims_move(ds__dims *d, int dim, int64_t by) {
    if (d->count) d->first += by * d->strides[dim] * (int64_t)d->item;
}
static void ds__dims_recount(ds__dims *d) { d->count = ds__count_of(d->ndim, d->shape); }

/* Strides with which the elements in their order have another shape; 0: there are none. Runs of dimensions that lie in memory like one are cut anew,
   from the last one on. */
static int ds__reshape(const ds__dims *d, int ndim, const int64_t *shape, int64_t *strides) {
    int v = ndim - 1;
    if (!d->count) { ds__row_major(ndim, shape, strides); return 1; }
    int64_t step = d->ndim ? d->strides[d->ndim - 1] : 1, run = 1;
    for (int i = d->ndim - 1; i >= 0; i--) {
        run *= d->shape[i];
        if (i > 0 && (d->shape[i - 1] == 1 || d->strides[i - 1] == run * step)) continue;
        int64_t cut = 1;
        for (; v >= 0 && (cut < run || shape[v] == 1); v--) {
            strides[v] = cut * step;
            cut *= shape[v];
        }
        if (cut != run) return 0;
        if (i > 0) step = d->strides[i - 1];
        run = 1;
    }
    for (; v >= 0 && shape[v] == 1; v--) strides[v] = 1;
    return v < 0;
}

static const char *ds__shape_text(int ndim, const int64_t *shape, char *out, size_t size) {
    size_t at = 0;
    int n = snprintf(out, size, "[");
    for (int d = 0; d < ndim && n > 0 && (at += (size_t)n) + 24 < size; d++)
        n = snprintf(out + at, size - at, "%s%lld", d ? ", " : "", (long long)shape[d]);
    if (n > 0 && ndim <= 0) at += (size_t)n;
    if (n > 0 && ndim > 0 && at + (size_t)n < size && at + 24 < size) at += (size_t)n;
    snprintf(out + at, size - at, "]");
    return out;
}
#define DS__SHAPE_TEXT 200

DSDEF ds_result (ds_tensor_view)(const ds_tensor *tensor, int ndim, const int64_t *shape, ds_tensor **out) {
    ds__dims d, v;
    char one[DS__SHAPE_TEXT], other[DS__SHAPE_TEXT];
    int open = -1;
    DS__TENSOR_BEGIN("ds_tensor_view");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0) return r;
    DS__REQUIRE(ndim >= 0 && ndim <= DS_TENSOR_MAX_DIMS && (!ndim || shape), "a shape of %d dimensions at %p", ndim, (const void *)shape);
    v = d;
    v.ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        DS__REQUIRE(shape[i] >= -1, "the size %lld in dimension %d", (long long)shape[i], i);
        DS__REQUIRE(shape[i] >= 0 || open < 0, "more than one size is -1: dimensions %d and %d", open, i);
        v.shape[i] = shape[i];
        if (shape[i] < 0) { open = i; v.shape[i] = 1; }
    }
    int64_t known = ds__count_of(ndim, v.shape);
    if (open >= 0 && known > 0) v.shape[open] = d.count / known;
    DS__REQUIRE(open < 0 || known != 0, "nothing says what the size in dimension %d, -1, is: there are no elements", open);
    DS__REQUIRE(ds__count_of(ndim, v.shape) == d.count, "%lld elements do not make the shape %s", (long long)d.count, ds__shape_text(ndim, shape, one, sizeof one));
    DS__REQUIRE(ds__reshape(&d, ndim, v.shape, v.strides), "the strides %s of the shape %s do not allow that without a copy",
                ds__shape_text(d.ndim, d.strides, one, sizeof one), ds__shape_text(d.ndim, d.shape, other, sizeof other));
    return ds__tensor_show(tensor, &v, out);
}
static ds_result ds__narrow(ds__dims *d, int dim, int64_t start, int64_t length) {
    DS__REQUIRE(start >= 0 && length >= 0 && start <= d->shape[dim] && length <= d->shape[dim] - start,
                "indices from %lld on, %lld of them, are outside of dimension %d, which has %lld", (long long)start, (long long)length, dim, (long long)d->shape[dim]);
    ds__dims_move(d, dim, start);
    d->shape[dim] = length;
    ds__dims_recount(d);
    return DS_OK;
}
DSDEF ds_result (ds_tensor_narrow)(const ds_tensor *tensor, int dim, int64_t start, int64_t length, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_narrow");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0) return r;
    if ((dim = ds__tensor_dim(dim, d.ndim)) < 0) return DS_ERR_INVALID_VALUE;
    r = ds__narrow(&d, dim, start, length);
    return r < 0 ? r : ds__tensor_show(tensor, &d, out);
}
DSDEF ds_result (ds_tensor_slice)(const ds_tensor *tensor, int dim, int64_t start, int64_t stop, int64_t step, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_slice");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0) return r;
    if ((dim = ds__tensor_dim(dim, d.ndim)) < 0) return DS_ERR_INVALID_VALUE;
    DS__REQUIRE(step >= 1, "a step of %lld is not at least 1", (long long)step);
    int64_t n = d.shape[dim];
    start = start < -n ? 0 : start < 0 ? start + n : start > n ? n : start;
    stop = stop < -n ? 0 : stop < 0 ? stop + n : stop > n ? n : stop;
    if (stop < start) stop = start;
    r = ds__narrow(&d, dim, start, stop - start);
    if (r < 0) return r;
    d.shape[dim] = (stop - start) / step + ((stop - start) % step != 0);
    if (d.shape[dim] > 1) d.strides[dim] *= step; /* two indices so far apart are inside, so this fits */
    ds__dims_recount(&d);
    return ds__tensor_show(tensor, &d, out);
}
DSDEF ds_result (ds_tensor_select)(const ds_tensor *tensor, int dim, int64_t index, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_select");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0) return r;
    if ((dim = ds__tensor_dim(dim, d.ndim)) < 0) return DS_ERR_INVALID_VALUE;
    int64_t n = d.shape[dim];
    DS__REQUIRE(index >= -n && index < n, "index %lld is outside of dimension %d, which has %lld", (long long)index, dim, (long long)n);
    ds__dims_move(&d, dim, index < 0 ? index + n : index);
    d.ndim--;
    for (int i = dim; i < d.ndim; i++) {
        d.shape[i] = d.shape[i + 1];
        d.strides[i] = d.strides[i + 1];
    }
    ds__dims_recount(&d);
    return ds__tensor_show(tensor, &d, out);
}
static ds_result ds__permute(const ds_tensor *tensor, const ds__dims *d, const int *order, ds_tensor **out) {
    ds__dims v = *d;
    for (int i = 0; i < d->ndim; i++) {
        v.shape[i] = d->shape[order[i]];
        v.strides[i] = d->strides[order[i]];
    }
    return ds__tensor_show(tensor, &v, out);
}
DSDEF ds_result (ds_tensor_permute)(const ds_tensor *tensor, const int *order, ds_tensor **out) {
    ds__dims d;
    int from[DS_TENSOR_MAX_DIMS];
    uint64_t seen = 0;
    DS__TENSOR_BEGIN("ds_tensor_permute");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0) return r;
    DS__REQUIRE(order || !d.ndim, "order is NULL");
    for (int i = 0; i < d.ndim; i++) {
        if ((from[i] = ds__tensor_dim(order[i], d.ndim)) < 0) return DS_ERR_INVALID_VALUE;
        DS__REQUIRE(!(seen >> from[i] & 1), "dimension %d stands twice in the order", from[i]);
        seen |= (uint64_t)1 << from[i];
    }
    return ds__permute(tensor, &d, from, out);
}
DSDEF ds_result (ds_tensor_transpose)(const ds_tensor *tensor, int dim0, int dim1, ds_tensor **out) {
    ds__dims d;
    int from[DS_TENSOR_MAX_DIMS];
    DS__TENSOR_BEGIN("ds_tensor_transpose");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0) return r;
    if ((dim0 = ds__tensor_dim(dim0, d.ndim)) < 0 || (dim1 = ds__tensor_dim(dim1, d.ndim)) < 0) return DS_ERR_INVALID_VALUE;
    for (int i = 0; i < d.ndim; i++) from[i] = i == dim0 ? dim1 : i == dim1 ? dim0 : i;
    return ds__permute(tensor, &d, from, out);
}
DSDEF ds_result (ds_tensor_as_real)(const ds_tensor *tensor, ds_tensor **out) {
    ds__dims d;
    char name[DS_DTYPE_NAME_SIZE];
    DS__TENSOR_BEGIN("ds_tensor_as_real");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0) return r;
    DS__REQUIRE(d.dtype.code == DS_CODE_COMPLEX && d.dtype.bits % 16 == 0, "elements of type %s are not complex", ds__dtype_name(d.dtype, name));
    DS__REQUIRE(d.ndim < DS_TENSOR_MAX_DIMS && d.dtype.lanes == 1, "%d dimensions and one more are more than %d", d.ndim, DS_TENSOR_MAX_DIMS);
    for (int i = 0; i < d.ndim; i++) /* of a size of 1 or an empty tensor nobody follows it */
        if (__builtin_mul_overflow(d.strides[i], 2, &d.strides[i])) d.strides[i] = 0;
    d.shape[d.ndim] = 2;
    d.strides[d.ndim++] = 1;
    d.dtype = (ds_dtype){ DS_CODE_FLOAT, (uint8_t)(d.dtype.bits / 2), 1 };
    ds__dims_recount(&d);
    return ds__tensor_show(tensor, &d, out);
}
DSDEF ds_result (ds_tensor_as_host)(const ds_tensor *tensor, ds_tensor **out) {
    ds__dims d;
    DS__TENSOR_BEGIN("ds_tensor_as_host");
    ds_result r = ds__tensor_read(tensor, "the tensor", -1, &d);
    if (r < 0) return r;
    if (d.device.type == DS_DEVICE_CUDA) return ds__fail(DS_ERR_INVALID_DEVICE, "the tensor is on cuda:%d, whose memory the host cannot reach", d.device.index);
    d.given = (ds_device){ DS_DEVICE_HOST, 0 };
    return ds__tensor_show(tensor, &d, out);
}

/* ---- exchange ---- */

static ds_result ds__import(const ds_tensor *t, int kind, void *managed, unsigned flags, ds_tensor **out) {
    ds__dims d;
    ds_result r = ds__tensor_read(t, "the managed tensor", -1, &d);
    ds__storage *storage = r == DS_OK ? ds__storage_new(kind, managed, NULL) : NULL;
    if (!storage) return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
    atomic_fetch_add(&storage->users, 1); /* ours until it is known that the caller's is taken over */
    r = ds__tensor_new(&d, storage, flags, out);
    if (r < 0) free(storage);
    else DS_IGNORE(ds__storage_drop(storage));
    return r;
}
DSDEF ds_result (ds_tensor_import)(ds_managed_tensor *managed, ds_tensor **out) {
    DS__TENSOR_BEGIN("ds_tensor_import");
    DS__REQUIRE(managed, "managed is NULL");
    return ds__import(&managed->tensor, DS__OF_MANAGED, managed, 0, out);
}
DSDEF ds_result (ds_tensor_import_versioned)(ds_managed_tensor_versioned *managed, ds_tensor **out) {
    DS__TENSOR_BEGIN("ds_tensor_import_versioned");
    DS__REQUIRE(managed, "managed is NULL");
    if (managed->version.major != DS_DLPACK_MAJOR)
        return ds__fail(DS_ERR_UNSUPPORTED, "the managed tensor is of DLPack %u.%u, and %d.x is what devstream reads", managed->version.major,
                        managed->version.minor, DS_DLPACK_MAJOR);
    if (managed->flags & DS_DLPACK_SUBBYTE_PADDED && managed->tensor.dtype.bits % 8)
        return ds__fail(DS_ERR_UNSUPPORTED, "the managed tensor has padded elements of %d bits", managed->tensor.dtype.bits);
    return ds__import(&managed->tensor, DS__OF_VERSIONED, managed, managed->flags & DS_DLPACK_READ_ONLY ? DS_TENSOR_READ_ONLY : 0, out);
}

typedef struct ds__handed {
    union { ds_managed_tensor plain; ds_managed_tensor_versioned versioned; } u;
    ds__storage *storage;
    int64_t dims[];
} ds__handed;
static void ds__handed_end(ds__handed *e) {
    ds__tls.mute++; /* whoever calls a deleter did not call devstream */
    DS_IGNORE(ds__storage_drop(e->storage));
    ds__tls.mute--;
    free(e);
}
static void ds__handed_delete(ds_managed_tensor *self) { ds__handed_end(self->manager_ctx); }
static void ds__handed_delete_versioned(ds_managed_tensor_versioned *self) { ds__handed_end(self->manager_ctx); }

static ds_result ds__handed_new(const ds_tensor *tensor, int versioned, ds__handed **out, unsigned *out_flags) {
    DS__REQUIRE(tensor, "the tensor is NULL");
    ds__storage *storage;
    int known = ds__tensor_share(tensor, &storage, out_flags);
    DS__REQUIRE(known, "%p is no tensor of devstream's; ds_tensor_wrap makes one", (const void *)tensor);
    size_t n = (size_t)tensor->ndim;
    ds__handed *e = NULL;
    ds_result r = DS_OK;
    if (!versioned && *out_flags & DS_TENSOR_READ_ONLY) r = ds__fail(DS_ERR_UNSUPPORTED, "the tensor is read-only, which only the versioned form tells");
    else if (!(e = calloc(1, sizeof *e + 2 * n * sizeof(int64_t)))) r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a managed tensor");
    if (r < 0) { DS_IGNORE(ds__storage_drop(storage)); return r; }
    ds_tensor *t = versioned ? &e->u.versioned.tensor : &e->u.plain.tensor;
    *t = *tensor;
    if (n) memcpy(e->dims, tensor->shape, n * sizeof(int64_t));
    if (n) memcpy(e->dims + n, tensor->strides, n * sizeof(int64_t));
    t->shape = e->dims;
    t->strides = e->dims + n;
    e->storage = storage;
    *out = e;
    return DS_OK;
}
DSDEF ds_result (ds_tensor_export)(const ds_tensor *tensor, ds_managed_tensor **out) {
    unsigned flags;
    ds__handed *e = NULL;
    DS__TENSOR_BEGIN("ds_tensor_export");
    ds_result r = ds__handed_new(tensor, 0, &e, &flags);
    if (r < 0) return r;
    e->u.plain.manager_ctx = e;
    e->u.plain.deleter = ds__handed_delete;
    *out = &e->u.plain;
    return DS_OK;
}
DSDEF ds_result (ds_tensor_export_versioned)(const ds_tensor *tensor, ds_managed_tensor_versioned **out) {
    unsigned flags;
    ds__handed *e = NULL;
    DS__TENSOR_BEGIN("ds_tensor_export_versioned");
    ds_result r = ds__handed_new(tensor, 1, &e, &flags);
    if (r < 0) return r;
    e->u.versioned.version = (ds_dlpack_version){ DS_DLPACK_MAJOR, DS_DLPACK_MINOR };
    e->u.versioned.manager_ctx = e;
    e->u.versioned.deleter = ds__handed_delete_versioned;
    e->u.versioned.flags = flags & DS_TENSOR_READ_ONLY ? DS_DLPACK_READ_ONLY : 0;
    *out = &e->u.versioned;
    return DS_OK;
}

/* Tells what was not freed. The allocator's memory goes with the allocator; what belongs to others is given back now. */
static void ds__tensors_end(void) {
    for (size_t i = 0; i < DS__TENSOR_BUCKETS; i++)
        for (ds__tensor *o = ds__c.bucket[i], *next; o; o = next) {
            next = o->next;
            ds__warn("tensor made at %s:%d was not freed", o->made.file ? o->made.file : "?", o->made.line);
            if (o->storage && o->storage->kind <= DS__OF_PINNED) o->storage->epoch--; /* it is not given back one by one */
            ds__tls.in_callback++;
            DS_IGNORE(ds__storage_drop(o->storage));
            ds__tls.in_callback--;
            ds__release(o);
        }
    memset(ds__c.bucket, 0, sizeof ds__c.bucket);
    while (ds__c.waiting) { ds__storage *next = ds__c.waiting->next; free(ds__c.waiting); ds__c.waiting = next; }
    atomic_store(&ds__c.waits, 0);
}

/* ---- >>comm kernels ---------------------------------------------------------------------------------------------- */

/* >>device-code kernels/comm.cu: written by make kernels */

/* What a reduction gives, bit for bit, on every device:
   - ((in[0] op in[1]) op in[2]) op ...: each step rounded as IEEE 754 says, nothing fused. f16 and bf16 are widened to f32 and
     rounded once, at the end, to nearest even. Integers wrap. bool is or (sum, max) and and (product, min).
   - Largest and smallest are NaN if one of the numbers is; +0 is larger than -0.
   - The average is the sum divided by the number of inputs, rounded; that of integers is cut towards zero.
   - Whatever is NaN is written as one and the same: positive, quiet, no payload.
   More inputs than a launch takes are cut into several; then in[0] of a later launch is what the one before gave, which for f16
   and bf16 is kept in f32 (DS__COMM_WIDE_*), and only the last divides. So the result does not depend on how it was cut. */
enum { DS__COMM_SUM, DS__COMM_PRODUCT, DS__COMM_MAX, DS__COMM_MIN };
enum { DS__COMM_U8, DS__COMM_U16, DS__COMM_U32, DS__COMM_U64, DS__COMM_I8, DS__COMM_I16, DS__COMM_I32, DS__COMM_I64,
       DS__COMM_F16, DS__COMM_BF16, DS__COMM_F32, DS__COMM_F64, DS__COMM_C64, DS__COMM_C128 }; /* complex: only the product */
enum { DS__COMM_WIDE_IN = 1, DS__COMM_WIDE_OUT = 2 };
enum { DS__COMM_INPUTS = 8, DS__COMM_DIMS = 8 };

typedef struct ds__comm_inputs { const void *at[DS__COMM_INPUTS]; } ds__comm_inputs;

/* Of a copy, the innermost dimension last; distances in bytes. */
typedef struct ds__comm_dims {
    uint64_t size[DS__COMM_DIMS];
    int64_t dst[DS__COMM_DIMS], src[DS__COMM_DIMS];
} ds__comm_dims;

/* How the device compares numbers of `bits` that lie side by side in a word, and adds integers. */
typedef struct ds__comm_masks {
    uint64_t top;   /* the highest bit of each */
    uint64_t sign;  /* the same of floats, else 0 */
    uint64_t flip;  /* what is turned over so that they compare as without a sign, and the other way round for the smallest */
    uint64_t room;  /* added to a float without its sign it reaches the highest bit if, and only if, that is NaN; else 0 */
    uint64_t quiet; /* NaN; else 0 */
    uint32_t shift; /* bits - 1 */
    uint32_t skew;  /* 16 - bytes of a number */
} ds__comm_masks;

#ifndef DS__COMM_FN
#define DS__COMM_FN static inline __attribute__((always_inline))
/* A product that is not to be fused with the sum it goes into, whatever the compiler was told about contraction. */
#if defined(__x86_64__)
#define DS__COMM_ROUNDED(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define DS__COMM_ROUNDED(x) __asm__("" : "+w"(x))
#else
#define DS__COMM_ROUNDED(x) __asm__("" : "+m"(x))
#endif
#endif

static inline float ds__f32_of(uint32_t bits) { union { uint32_t u; float f; } x; x.u = bits; return x.f; }
static inline double ds__f64_of(uint64_t bits) { union { uint64_t u; double f; } x; x.u = bits; return x.f; }
static inline uint32_t ds__f32_bits(float value) { union { uint32_t u; float f; } x; x.f = value; return x.u; }
static inline uint64_t ds__f64_bits(double value) { union { uint64_t u; double f; } x; x.f = value; return x.u; }

/* The arithmetic, for single numbers and for vectors of them. U holds the bits of an F, T is one number of F, TRUTH makes ones of
   a true comparison and zeros of a false one. */
#define DS__COMM_MATH(FN, SET, U, F, T, FLOAT, BITS, TRUTH, NOT_A_NUMBER) \
    FN void ds__comm_step_##SET(uint32_t op, U *a, const U *x) { \
        F f = FLOAT(*a), g = FLOAT(*x); \
        if (op == DS__COMM_SUM) { \
            *a = BITS(f + g); \
        } else if (op == DS__COMM_PRODUCT) { \
            *a = BITS(f * g); \
        } else { /* what is equal differs at most in the sign of a zero */ \
            U same = TRUTH(g == f), take = op == DS__COMM_MAX ? TRUTH(g > f) : TRUTH(g < f); \
            take |= TRUTH(g != g); \
            *a = (*x & take) | (~take & (op == DS__COMM_MAX ? *a & (*x | ~same) : *a | (*x & same))); \
        } \
    } \
    FN void ds__comm_end_##SET(uint32_t divisor, U *a) { \
        F f = FLOAT(*a); \
        if (divisor > 1) f = f / (T)divisor; \
        U nan = TRUTH(f != f); \
        *a = (BITS(f) & ~nan) | (nan & (NOT_A_NUMBER)); \
    }

/* bf16 in the low half of a word, to f32 and back. S is U with a sign. */
#define DS__COMM_BF16_MATH(FN, SET, U, S) \
    FN void ds__comm_widen_bf16_##SET(U *x) { *x = *x << 16; } \
    FN void ds__comm_narrow_bf16_##SET(U *x) { \
        U nan = (U)((S)(0x7f800000u - (*x & 0x7fffffffu)) >> 31); \
        *x = (nan & 0x7fc0u) | (~nan & ((*x + 0x7fffu + (*x >> 16 & 1u)) >> 16)); \
    }

#define DS__COMM_TRUTH_32(c) (0u - (uint32_t)(c))
#define DS__COMM_TRUTH_64(c) ((uint64_t)0 - (uint64_t)(c))
DS__COMM_MATH(DS__COMM_FN, f32, uint32_t, float, float, ds__f32_of, ds__f32_bits, DS__COMM_TRUTH_32, 0x7fc00000u)
DS__COMM_MATH(DS__COMM_FN, f64, uint64_t, double, double, ds__f64_of, ds__f64_bits, DS__COMM_TRUTH_64, 0x7ff8000000000000u)
DS__COMM_BF16_MATH(DS__COMM_FN, f32, uint32_t, int32_t)

/* Of an average of integers; v is zero above the number's bits, and what is returned means nothing there. */
DS__COMM_FN uint64_t ds__comm_quotient(uint64_t v, uint32_t kind, uint32_t divisor) {
    uint32_t bits = 8u << (kind & 3);
    uint64_t sign = kind >= DS__COMM_I8 ? 0 - (v >> (bits - 1)) : 0;
    v = ((v ^ sign) - sign) << (64 - bits) >> (64 - bits);
    return ((v / divisor) ^ sign) - sign;
}

/* a *= x, as the definition has it: of infinities it may make NaN. */
#define DS__COMM_MULTIPLY(NAME, T) \
    DS__COMM_FN void NAME(T *a, const T *x) { \
        T rr = a[0] * x[0], ii = a[1] * x[1], ri = a[0] * x[1], ir = a[1] * x[0]; \
        DS__COMM_ROUNDED(rr); DS__COMM_ROUNDED(ii); DS__COMM_ROUNDED(ri); DS__COMM_ROUNDED(ir); \
        a[0] = rr - ii; \
        a[1] = ri + ir; \
    }
DS__COMM_MULTIPLY(ds__comm_multiply_c64, float)
DS__COMM_MULTIPLY(ds__comm_multiply_c128, double)

/* f16 in the low half of a word, to f32 and back, which on a GPU are instructions. What is subnormal in f16 is brought in place by
   an addition or subtraction of floats in which nothing is subnormal, so that no flushing of those to zero can be seen. */
#define DS__COMM_F16_MATH(FN, SET, U, S, FLOAT, BITS) \
    FN void ds__comm_widen_f16_##SET(U *x) { \
        U sign = (*x & 0x8000u) << 16, m = (*x & 0x7fffu) << 13; \
        U special = (U)((S)(0x0f7fffffu - m) >> 31), small = (U)((S)(m - 0x00800000u) >> 31); \
        m += 0x38000000u + (special & 0x38000000u) + (small & 0x00800000u); \
        *x = sign | BITS(FLOAT(m) - FLOAT(small & 0x38800000u)); \
    } \
    FN void ds__comm_narrow_f16_##SET(U *x) { \
        U sign = *x >> 16 & 0x8000u, m = *x & 0x7fffffffu, tiny; \
        U nan = (U)((S)(0x7f800000u - m) >> 31), big = (U)((S)(0x47800000u - m) >> 31), small = (U)((S)(m - 0x38800000u) >> 31); \
        m = (m & ~big) | (big & 0x47800000u); \
        tiny = BITS(FLOAT(m) + FLOAT((m & 0u) + 0x3f000000u)) - 0x3f000000u; \
        m = (m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13; \
        *x = (nan & 0x7e00u) | (~nan & (sign | (small & tiny) | (~small & m))); \
    }
DS__COMM_F16_MATH(DS__COMM_FN, f32, uint32_t, int32_t, ds__f32_of, ds__f32_bits)

/* The arguments of both forms. An item of the CPU's is DS__COMM_ITEM bytes of the result. */
enum { DS__COMM_ITEM = 16 << 10 };

typedef struct ds__comm_reduce_args {
    void *out;             /* may be one of the inputs, but with DS__COMM_WIDE_OUT none after the first */
    ds__comm_inputs in;
    uint64_t bytes;        /* of the result; in halves, even if it is wide */
    ds__comm_masks masks;
    uint32_t inputs;       /* 1 to DS__COMM_INPUTS */
    uint32_t op;
    uint32_t divisor;      /* 0 and 1: none; of integers always */
    uint32_t kind;
    uint32_t wide;         /* DS__COMM_WIDE_*, of halves only */
} ds__comm_reduce_args;

typedef struct ds__comm_divide_args {
    void *out;
    uint64_t bytes;
    uint32_t kind;
    uint32_t divisor;
} ds__comm_divide_args;

typedef struct ds__comm_pack_args {
    char *dst;
    const char *src;
    ds__comm_dims dims;
    uint64_t elements;
    uint32_t ndim;         /* 1 to DS__COMM_DIMS */
    uint32_t size;         /* bytes of an element: 1, 2, 4, 8 or 16 */
} ds__comm_pack_args;

static const unsigned char ds__comm_size[] = { 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16 }; /* by kind */

static ds__comm_masks ds__comm_masks_of(uint32_t kind, uint32_t op) {
    uint32_t size = ds__comm_size[kind], mantissa = kind == DS__COMM_F16 ? 10 : kind == DS__COMM_BF16 ? 7 : kind == DS__COMM_F32 ? 23 : 52;
    ds__comm_masks m = { 0, 0, 0, 0, 0, 8 * size - 1, 16 - size };
    uint64_t each;
    if (size > 8 || kind == DS__COMM_C64) return m; /* complex numbers are not compared */
    each = UINT64_MAX / (UINT64_MAX >> (64 - 8 * size));
    m.top = each << (8 * size - 1);
    if (kind >= DS__COMM_F16) {
        m.sign = m.top;
        m.room = each * (((uint64_t)1 << mantissa) - 1);
        m.quiet = m.top - each - each * (((uint64_t)1 << (mantissa - 1)) - 1);
    }
    m.flip = kind >= DS__COMM_I8 && kind <= DS__COMM_I64 ? m.top : 0;
    if (op == DS__COMM_MIN) m.flip = ~m.flip;
    return m;
}

#define DS__COMM_TYPES(W) \
    typedef uint8_t ds__vu8_##W __attribute__((vector_size(W))); \
    typedef uint16_t ds__vu16_##W __attribute__((vector_size(W))); \
    typedef uint32_t ds__vu32_##W __attribute__((vector_size(W))); \
    typedef uint64_t ds__vu64_##W __attribute__((vector_size(W))); \
    typedef int8_t ds__vi8_##W __attribute__((vector_size(W))); \
    typedef int16_t ds__vi16_##W __attribute__((vector_size(W))); \
    typedef int32_t ds__vi32_##W __attribute__((vector_size(W))); \
    typedef int64_t ds__vi64_##W __attribute__((vector_size(W))); \
    typedef float ds__vf32_##W __attribute__((vector_size(W))); \
    typedef double ds__vf64_##W __attribute__((vector_size(W))); \
    typedef struct ds__halves_##W { ds__vu32_##W x, y; } ds__halves_##W;

/* Stores that go around the caches, for results that do not fit there. */
#if defined(__x86_64__) && !defined(DS__SANITIZED)
#define DS__COMM_CAN_STREAM 1
#ifdef __clang__
#define DS__COMM_STREAM_16(to, v) __builtin_nontemporal_store((ds__vf32_16)(v), (ds__vf32_16 *)(void *)(to))
#define DS__COMM_STREAM_32(to, v) __builtin_nontemporal_store((ds__vf32_32)(v), (ds__vf32_32 *)(void *)(to))
#else
#define DS__COMM_STREAM_16(to, v) __builtin_ia32_movntps((float *)(void *)(to), (ds__vf32_16)(v))
#define DS__COMM_STREAM_32(to, v) __builtin_ia32_movntps256((float *)(void *)(to), (ds__vf32_32)(v))
#endif
#else
#define DS__COMM_CAN_STREAM 0
#define DS__COMM_STREAM_16(to, v) memcpy((to), &(v), 16)
#define DS__COMM_STREAM_32(to, v) memcpy((to), &(v), 32)
#endif
enum { DS__COMM_STREAM_BYTES = 32 << 20 };

/* 1: a mask is not empty. */
#if defined(__x86_64__)
#define DS__COMM_ANY_16(mask) (__builtin_ia32_movmskps((ds__vf32_16)(mask)) != 0)
#define DS__COMM_ANY_32(mask) (__builtin_ia32_movmskps256((ds__vf32_32)(mask)) != 0)
#else
#define DS__COMM_ANY_16(mask) ((((ds__vu64_16)(mask))[0] | ((ds__vu64_16)(mask))[1]) != 0)
#endif

/* All inputs side by side, so that they stream, and the results stay in registers. Every input is read before its place in `out`
   is written. take makes of memory what the arithmetic works on, of type A; step puts two of them together; give turns them back.
   ORDER: only for the largest and smallest. bytes is a multiple of DS__COMM_BLOCK. */
enum { DS__COMM_BLOCK = 128 };
#define DS__COMM_LOOP(RUN, FN, KIND, W, A, BYTES, ORDER) \
    FN void ds__comm_loop_##KIND##_##W(uint32_t op, char *out, const char *const *in, uint32_t inputs, uint32_t divisor, size_t bytes, \
                                       int around) { \
        for (size_t at = 0; at < bytes; at += 2 * (BYTES)) { \
            A a, b, x, y; \
            ds__comm_take_##KIND##_##W(&a, in[0] + at); \
            ds__comm_take_##KIND##_##W(&b, in[0] + at + (BYTES)); \
            for (uint32_t k = 1; k < inputs; k++) { \
                ds__comm_take_##KIND##_##W(&x, in[k] + at); \
                ds__comm_take_##KIND##_##W(&y, in[k] + at + (BYTES)); \
                ds__comm_step_##KIND##_##W(op, &a, &x); \
                ds__comm_step_##KIND##_##W(op, &b, &y); \
            } \
            ds__comm_give_##KIND##_##W(out + at, &a, divisor, around); \
            ds__comm_give_##KIND##_##W(out + at + (BYTES), &b, divisor, around); \
        } \
    } \
    RUN void ds__comm_run_##KIND##_##W(uint32_t op, char *out, const char *const *in, uint32_t inputs, uint32_t divisor, size_t bytes, \
                                       int around) { \
        if (op == DS__COMM_MAX) ds__comm_loop_##KIND##_##W(DS__COMM_MAX, out, in, inputs, divisor, bytes, around); \
        else if (op == DS__COMM_MIN) ds__comm_loop_##KIND##_##W(DS__COMM_MIN, out, in, inputs, divisor, bytes, around); \
        else if (!(ORDER) && op == DS__COMM_SUM) ds__comm_loop_##KIND##_##W(DS__COMM_SUM, out, in, inputs, divisor, bytes, around); \
        else if (!(ORDER)) ds__comm_loop_##KIND##_##W(DS__COMM_PRODUCT, out, in, inputs, divisor, bytes, around); \
    }

#define DS__COMM_PUT(W, to, v, around) \
    do { \
        if (around) DS__COMM_STREAM_##W(to, v); \
        else memcpy((to), &(v), (W)); \
    } while (0)

/* Of floats of type F whose bits are in x and y; most of the time there is nothing left to do. */
#define DS__COMM_END(KIND, W, F, divisor, x, y) \
    do { \
        if ((divisor) > 1 || DS__COMM_ANY_##W(((F)(x) != (F)(x)) | ((F)(y) != (F)(y)))) { \
            ds__comm_end_##KIND##_##W(divisor, &(x)); \
            ds__comm_end_##KIND##_##W(divisor, &(y)); \
        } \
    } while (0)

/* Two vectors as they are. */
#define DS__COMM_PAIR(FN, KIND, W, V) \
    typedef struct ds__pair_##KIND##_##W { V x, y; } ds__pair_##KIND##_##W; \
    FN void ds__comm_take_##KIND##_##W(ds__pair_##KIND##_##W *a, const char *p) { \
        memcpy(&a->x, p, (W)); \
        memcpy(&a->y, p + (W), (W)); \
    }

/* Integers; the division of an average comes afterwards. U is V without a sign. */
#define DS__COMM_INTEGER(RUN, FN, KIND, W, V, U, ORDER) \
    DS__COMM_PAIR(FN, KIND, W, V) \
    FN void ds__comm_one_##KIND##_##W(uint32_t op, V *a, const V *x) { \
        if (op == DS__COMM_SUM) { \
            *a = (V)((U)*a + (U)*x); \
        } else if (op == DS__COMM_PRODUCT) { \
            *a = (V)((U)*a * (U)*x); \
        } else { \
            V more = (V)(*x > *a); \
            *a = op == DS__COMM_MAX ? (*x & more) | (*a & ~more) : (*a & more) | (*x & ~more); \
        } \
    } \
    FN void ds__comm_step_##KIND##_##W(uint32_t op, ds__pair_##KIND##_##W *a, const ds__pair_##KIND##_##W *x) { \
        ds__comm_one_##KIND##_##W(op, &a->x, &x->x); \
        ds__comm_one_##KIND##_##W(op, &a->y, &x->y); \
    } \
    FN void ds__comm_give_##KIND##_##W(char *to, const ds__pair_##KIND##_##W *a, uint32_t divisor, int around) { \
        (void)divisor; \
        DS__COMM_PUT(W, to, a->x, around); \
        DS__COMM_PUT(W, to + (W), a->y, around); \
    } \
    DS__COMM_LOOP(RUN, FN, KIND, W, ds__pair_##KIND##_##W, 2 * (W), ORDER)

#define DS__COMM_REAL(RUN, FN, KIND, W, V, F) \
    DS__COMM_PAIR(FN, KIND##s, W, V) \
    FN void ds__comm_step_##KIND##s_##W(uint32_t op, ds__pair_##KIND##s_##W *a, const ds__pair_##KIND##s_##W *x) { \
        ds__comm_step_##KIND##_##W(op, &a->x, &x->x); \
        ds__comm_step_##KIND##_##W(op, &a->y, &x->y); \
    } \
    FN void ds__comm_give_##KIND##s_##W(char *to, ds__pair_##KIND##s_##W *a, uint32_t divisor, int around) { \
        DS__COMM_END(KIND, W, F, divisor, a->x, a->y); \
        DS__COMM_PUT(W, to, a->x, around); \
        DS__COMM_PUT(W, to + (W), a->y, around); \
    } \
    DS__COMM_LOOP(RUN, FN, KIND##s, W, ds__pair_##KIND##s_##W, 2 * (W), 0)

/* The two halves of a word are taken apart and put together by shifts, so no number leaves its lane. */
#define DS__COMM_HALF(RUN, FN, KIND, W) \
    FN void ds__comm_take_##KIND##_##W(ds__halves_##W *a, const char *p) { \
        ds__vu32_##W v; \
        memcpy(&v, p, (W)); \
        a->x = v & 0xffffu; \
        a->y = v >> 16; \
        ds__comm_widen_##KIND##_f32_##W(&a->x); \
        ds__comm_widen_##KIND##_f32_##W(&a->y); \
    } \
    FN void ds__comm_step_##KIND##_##W(uint32_t op, ds__halves_##W *a, const ds__halves_##W *x) { \
        ds__comm_step_f32_##W(op, &a->x, &x->x); \
        ds__comm_step_f32_##W(op, &a->y, &x->y); \
    } \
    FN void ds__comm_give_##KIND##_##W(char *to, ds__halves_##W *a, uint32_t divisor, int around) { \
        ds__vu32_##W v; \
        if (divisor > 1) { ds__comm_end_f32_##W(divisor, &a->x); ds__comm_end_f32_##W(divisor, &a->y); } /* NaN narrow sees to */ \
        ds__comm_narrow_##KIND##_f32_##W(&a->x); \
        ds__comm_narrow_##KIND##_f32_##W(&a->y); \
        v = a->x | a->y << 16; \
        DS__COMM_PUT(W, to, v, around); \
    } \
    DS__COMM_LOOP(RUN, FN, KIND, W, ds__halves_##W, W, 0)

/* f16 by instructions, which give what the arithmetic gives. */
#define DS__COMM_HALF_NATIVE(RUN, FN) \
    FN void ds__comm_take_f16_32(ds__halves_32 *a, const char *p) { \
        ds__vi16_16 low, high; \
        memcpy(&low, p, 16); \
        memcpy(&high, p + 16, 16); \
        a->x = (ds__vu32_32)__builtin_ia32_vcvtph2ps256(low); \
        a->y = (ds__vu32_32)__builtin_ia32_vcvtph2ps256(high); \
    } \
    FN void ds__comm_step_f16_32(uint32_t op, ds__halves_32 *a, const ds__halves_32 *x) { \
        ds__comm_step_f32_32(op, &a->x, &x->x); \
        ds__comm_step_f32_32(op, &a->y, &x->y); \
    } \
    FN void ds__comm_give_f16_32(char *to, ds__halves_32 *a, uint32_t divisor, int around) { \
        ds__vi16_16 low, high; \
        DS__COMM_END(f32, 32, ds__vf32_32, divisor, a->x, a->y); \
        low = __builtin_ia32_vcvtps2ph256((ds__vf32_32)a->x, 0); \
        high = __builtin_ia32_vcvtps2ph256((ds__vf32_32)a->y, 0); \
        DS__COMM_PUT(16, to, low, around); \
        DS__COMM_PUT(16, to + 16, high, around); \
    } \
    DS__COMM_LOOP(RUN, FN, f16, 32, ds__halves_32, 32, 0)

#define DS__COMM_FLOAT_16(x) ((ds__vf32_16)(x))
#define DS__COMM_FLOAT_32(x) ((ds__vf32_32)(x))
#define DS__COMM_DOUBLE_16(x) ((ds__vf64_16)(x))
#define DS__COMM_DOUBLE_32(x) ((ds__vf64_32)(x))
#define DS__COMM_BITS_16(x) ((ds__vu32_16)(x))
#define DS__COMM_BITS_32(x) ((ds__vu32_32)(x))
#define DS__COMM_LONG_16(x) ((ds__vu64_16)(x))
#define DS__COMM_LONG_32(x) ((ds__vu64_32)(x))

/* All of it for vectors of W bytes; F16: that of f16. */
#define DS__COMM_SET(RUN, FN, W, F16) \
    DS__COMM_MATH(FN, f32_##W, ds__vu32_##W, ds__vf32_##W, float, DS__COMM_FLOAT_##W, DS__COMM_BITS_##W, DS__COMM_BITS_##W, 0x7fc00000u) \
    DS__COMM_MATH(FN, f64_##W, ds__vu64_##W, ds__vf64_##W, double, DS__COMM_DOUBLE_##W, DS__COMM_LONG_##W, DS__COMM_LONG_##W, \
                  0x7ff8000000000000u) \
    DS__COMM_BF16_MATH(FN, f32_##W, ds__vu32_##W, ds__vi32_##W) \
    DS__COMM_INTEGER(RUN, FN, u8, W, ds__vu8_##W, ds__vu8_##W, 0) \
    DS__COMM_INTEGER(RUN, FN, u16, W, ds__vu16_##W, ds__vu16_##W, 0) \
    DS__COMM_INTEGER(RUN, FN, u32, W, ds__vu32_##W, ds__vu32_##W, 0) \
    DS__COMM_INTEGER(RUN, FN, u64, W, ds__vu64_##W, ds__vu64_##W, 0) \
    DS__COMM_INTEGER(RUN, FN, i8, W, ds__vi8_##W, ds__vu8_##W, 1) \
    DS__COMM_INTEGER(RUN, FN, i16, W, ds__vi16_##W, ds__vu16_##W, 1) \
    DS__COMM_INTEGER(RUN, FN, i32, W, ds__vi32_##W, ds__vu32_##W, 1) \
    DS__COMM_INTEGER(RUN, FN, i64, W, ds__vi64_##W, ds__vu64_##W, 1) \
    DS__COMM_REAL(RUN, FN, f32, W, ds__vu32_##W, ds__vf32_##W) \
    DS__COMM_REAL(RUN, FN, f64, W, ds__vu64_##W, ds__vf64_##W) \
    F16 \
    DS__COMM_HALF(RUN, FN, bf16, W) \
    RUN void ds__comm_reduce_##W(const ds__comm_reduce_args *r, char *out, const char *const *in, size_t bytes, int around) { \
        uint32_t op = r->op, inputs = r->inputs, divisor = r->divisor; \
        switch (op <= DS__COMM_PRODUCT && r->kind <= DS__COMM_I64 ? r->kind & 3 : r->kind) { /* to those the sign is nothing */ \
        case DS__COMM_U8: ds__comm_run_u8_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_U16: ds__comm_run_u16_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_U32: ds__comm_run_u32_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_U64: ds__comm_run_u64_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_I8: ds__comm_run_i8_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_I16: ds__comm_run_i16_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_I32: ds__comm_run_i32_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_I64: ds__comm_run_i64_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_F16: ds__comm_run_f16_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_BF16: ds__comm_run_bf16_##W(op, out, in, inputs, divisor, bytes, around); break; \
        case DS__COMM_F32: ds__comm_run_f32s_##W(op, out, in, inputs, divisor, bytes, around); break; \
        default: ds__comm_run_f64s_##W(op, out, in, inputs, divisor, bytes, around); break; \
        } \
    }

DS__COMM_TYPES(16)
#define DS__COMM_RUN_16 static __attribute__((noinline))
#define DS__COMM_FN_16 static inline __attribute__((always_inline))
#define DS__COMM_HALF_16 \
    DS__COMM_F16_MATH(DS__COMM_FN_16, f32_16, ds__vu32_16, ds__vi32_16, DS__COMM_FLOAT_16, DS__COMM_BITS_16) \
    DS__COMM_HALF(DS__COMM_RUN_16, DS__COMM_FN_16, f16, 16)
DS__COMM_SET(DS__COMM_RUN_16, DS__COMM_FN_16, 16, DS__COMM_HALF_16)

/* Every processor with AVX2 and FMA has the conversions of f16; gcc and clang have no common name to ask for those. */
#if defined(__x86_64__)
DS__COMM_TYPES(32)
#define DS__COMM_RUN_32 static __attribute__((noinline, target("avx2,f16c")))
#define DS__COMM_FN_32 static inline __attribute__((always_inline, target("avx2,f16c")))
DS__COMM_SET(DS__COMM_RUN_32, DS__COMM_FN_32, 32, DS__COMM_HALF_NATIVE(DS__COMM_RUN_32, DS__COMM_FN_32))
static int ds__comm_has_32(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
static int ds__comm_has_32(void) { return 0; }
#endif

/* Halves of which the first input or the result is in f32: numbers first to end - 1, one by one. */
static void ds__comm_reduce_wide(const ds__comm_reduce_args *r, uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; i++) {
        uint32_t a = 0, x;
        uint16_t half;
        for (uint32_t k = 0; k < r->inputs; k++) {
            if (k == 0 && (r->wide & DS__COMM_WIDE_IN)) {
                memcpy(&a, (const char *)r->in.at[0] + 4 * i, 4);
                continue;
            }
            memcpy(&half, (const char *)r->in.at[k] + 2 * i, 2);
            x = half;
            if (r->kind == DS__COMM_F16) ds__comm_widen_f16_f32(&x); else ds__comm_widen_bf16_f32(&x);
            if (k == 0) a = x; else ds__comm_step_f32(r->op, &a, &x);
        }
        ds__comm_end_f32(r->divisor, &a);
        if (r->wide & DS__COMM_WIDE_OUT) { memcpy((char *)r->out + 4 * i, &a, 4); continue; }
        if (r->kind == DS__COMM_F16) ds__comm_narrow_f16_f32(&a); else ds__comm_narrow_bf16_f32(&a);
        half = (uint16_t)a;
        memcpy((char *)r->out + 2 * i, &half, 2);
    }
}

/* Products of complex numbers. */
#define DS__COMM_PRODUCTS(NAME, T, U, MULTIPLY, END) \
    static void NAME(const ds__comm_reduce_args *r, uint64_t first, uint64_t end) { \
        for (uint64_t i = first; i < end; i++) { \
            T a[2], x[2]; \
            U bits[2]; \
            memcpy(a, (const char *)r->in.at[0] + sizeof a * i, sizeof a); \
            for (uint32_t k = 1; k < r->inputs; k++) { \
                memcpy(x, (const char *)r->in.at[k] + sizeof x * i, sizeof x); \
                MULTIPLY(a, x); \
            } \
            memcpy(bits, a, sizeof a); \
            END(0, &bits[0]); \
            END(0, &bits[1]); \
            memcpy((char *)r->out + sizeof bits * i, bits, sizeof bits); \
        } \
    }
DS__COMM_PRODUCTS(ds__comm_products_c64, float, uint32_t, ds__comm_multiply_c64, ds__comm_end_f32)
DS__COMM_PRODUCTS(ds__comm_products_c128, double, uint64_t, ds__comm_multiply_c128, ds__comm_end_f64)

static void ds__comm_reduce_blocks(const ds__comm_reduce_args *r, char *out, const char *const *in, size_t bytes, int around, int vector) {
#if defined(__x86_64__)
    if (vector == 32) ds__comm_reduce_32(r, out, in, bytes, around);
    else
#endif
    ds__comm_reduce_16(r, out, in, bytes, around);
    (void)vector;
#if DS__COMM_CAN_STREAM
    if (around) __asm__ __volatile__("sfence" ::: "memory");
#endif
}

/* Bytes first to end - 1 of the result. vector: bytes of the vectors to use, 16 or, where they exist, 32. */
static void ds__comm_reduce_part(const ds__comm_reduce_args *r, uint64_t first, uint64_t end, int vector) {
    const char *in[DS__COMM_INPUTS];
    char *out = (char *)r->out + first;
    int around = DS__COMM_CAN_STREAM && r->bytes >= DS__COMM_STREAM_BYTES && ((uintptr_t)out & 31) == 0;
    if (first >= end) return;
    if (r->wide) { ds__comm_reduce_wide(r, first / 2, end / 2); return; }
    if (r->kind == DS__COMM_C64) { ds__comm_products_c64(r, first / 8, end / 8); return; }
    if (r->kind == DS__COMM_C128) { ds__comm_products_c128(r, first / 16, end / 16); return; }
    for (uint32_t k = 0; k < r->inputs; k++) {
        in[k] = (const char *)r->in.at[k] + first;
        if (in[k] == out) around = 0; /* its lines are in the cache anyway */
    }
    size_t rest = (size_t)(end - first) % DS__COMM_BLOCK, whole = (size_t)(end - first) - rest;
    ds__comm_reduce_blocks(r, out, in, whole, around, vector);
    if (rest) {
        char block[DS__COMM_INPUTS][DS__COMM_BLOCK];
        for (uint32_t k = 0; k < r->inputs; k++) {
            memset(block[k], 0, sizeof block[k]);
            memcpy(block[k], in[k] + whole, rest);
            in[k] = block[k];
        }
        ds__comm_reduce_blocks(r, block[0], in, DS__COMM_BLOCK, 0, vector);
        memcpy(out + whole, block[0], rest);
    }
}

static int ds__comm_reduce_items(size_t first, size_t count, const void *args) {
    const ds__comm_reduce_args *r = args;
    uint64_t end = (uint64_t)(first + count) * DS__COMM_ITEM;
    ds__comm_reduce_part(r, (uint64_t)first * DS__COMM_ITEM, end < r->bytes ? end : r->bytes, ds__comm_has_32() ? 32 : 16);
    return 0;
}

/* An average of integers is their sum, divided by this one. */
static int ds__comm_divide_items(size_t first, size_t count, const void *args) {
    const ds__comm_divide_args *d = args;
    uint64_t end = (uint64_t)(first + count) * DS__COMM_ITEM, size = ds__comm_size[d->kind];
    if (end > d->bytes) end = d->bytes;
    for (uint64_t at = (uint64_t)first * DS__COMM_ITEM; at < end; at += size) {
        uint64_t v = 0;
        memcpy(&v, (char *)d->out + at, size); /* little endian */
        v = ds__comm_quotient(v, d->kind, d->divisor);
        memcpy((char *)d->out + at, &v, size);
    }
    return 0;
}

#define DS__COMM_COPY_ROW(BYTES) \
    for (; n > 0; n--, dst += dst_step, src += src_step) memcpy(dst, src, (BYTES))
static void ds__comm_copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step, uint32_t size, uint64_t n) {
    if (dst_step == (int64_t)size && src_step == (int64_t)size) memcpy(dst, src, (size_t)(n * size));
    else if (size == 1) DS__COMM_COPY_ROW(1);
    else if (size == 2) DS__COMM_COPY_ROW(2);
    else if (size == 4) DS__COMM_COPY_ROW(4);
    else if (size == 8) DS__COMM_COPY_ROW(8);
    else DS__COMM_COPY_ROW(16);
}

/* Row by row; the position is computed once and then counted on. */
static int ds__comm_pack_items(size_t first, size_t count, const void *args) {
    const ds__comm_pack_args *p = args;
    const ds__comm_dims *d = &p->dims;
    uint64_t block = DS__COMM_ITEM / p->size, i = first * block, end = (first + count) * block, rest = i, index[DS__COMM_DIMS];
    int64_t to = 0, from = 0;
    uint32_t last = p->ndim - 1;
    if (end > p->elements) end = p->elements;
    if (i >= end) return 0;
    for (uint32_t k = p->ndim; k-- > 0; rest /= d->size[k]) {
        index[k] = rest % d->size[k];
        to += (int64_t)index[k] * d->dst[k];
        from += (int64_t)index[k] * d->src[k];
    }
    while (i < end) {
        uint64_t n = d->size[last] - index[last] < end - i ? d->size[last] - index[last] : end - i;
        ds__comm_copy_row(p->dst + to, d->dst[last], p->src + from, d->src[last], p->size, n);
        i += n;
        to -= (int64_t)index[last] * d->dst[last];
        from -= (int64_t)index[last] * d->src[last];
        index[last] = 0;
        for (uint32_t k = last; k-- > 0; index[k] = 0) {
            to += d->dst[k];
            from += d->src[k];
            if (++index[k] < d->size[k]) break;
            to -= (int64_t)d->size[k] * d->dst[k];
            from -= (int64_t)d->size[k] * d->src[k];
        }
    }
    return 0;
}

static const char ptx_ds__comm_select[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_select( .param .u64 p0, .param .align 8 .b8 p1[64], .param .u64 p2, .param .u32 p3,\n"
    ".param .align 8 .b8 p4[48] ) { .reg .pred %p<19>; .reg .b32 %r<13>; .reg .b64 %d<161>; ld.param.u64 %d69,[p2];\n"
    "ld.param.u64 %d68,[p0]; ld.param.u32 %d72,[p4+44]; and.b64 %d4,%d72,%d68; mov.u32 %r5,%ctaid.x;\n"
    "mul.wide.u32 %d73,%r5,256; mov.u32 %r6,%tid.x; cvt.u64.u32 %d6,%r6; add.s64 %d74,%d73,%d6; shl.b64 %d75,%d74,4;\n"
    "sub.s64 %d141,%d75,%d4; setp.ge.s64 %p3,%d141,%d69; @%p3 bra L20; ld.param.u32 %r4,[p3]; mov.b64 %d70,p4;\n"
    "mov.u64 %d1,%d70; mov.b64 %d71,p1; mov.u64 %d2,%d71; cvta.to.global.u64 %d3,%d68; cvt.u64.u32 %d5,%r5;\n"
    "mov.u32 %r7,%nctaid.x; mul.wide.u32 %d8,%r7,4096; setp.lt.u64 %p2,%d69,16; add.s64 %d76,%d69,-15;\n"
    "selp.b64 %d9,0,%d76,%p2; ld.param.u64 %d10,[%d1+16]; ld.param.u64 %d11,[%d1]; ld.param.u64 %d12,[%d1+8];\n"
    "ld.param.u64 %d13,[%d1+24]; ld.param.u64 %d14,[%d1+32]; ld.param.u32 %d16,[%d1+40]; not.b64 %d15,%d11;\n"
    "max.u32 %r1,%r4,1; shl.b64 %d77,%d5,12; shl.b64 %d78,%d6,4; add.s64 %d79,%d77,%d78; sub.s64 %d80,%d79,%d4;\n"
    "add.s64 %d140,%d80,15; add.s64 %d139,%d3,%d141; mov.u32 %r8,0; mov.pred %p9,-1; cvt.u32.u64 %r10,%d16;\n"
    "mov.pred %p10,0; bra.uni L2;\n"
    "L18: add.s64 %d57,%d3,%d141; st.global.v2.u64 [%d57],{%d159,%d155};\n"
    "L19: add.s64 %d141,%d141,%d8; add.s64 %d140,%d140,%d8; add.s64 %d139,%d139,%d8; setp.lt.s64 %p17,%d141,%d69;\n"
    "@%p17 bra L2; bra.uni L20;\n"
    "L2: mov.u64 %d156,0; mov.u64 %d142,%d10; mov.u64 %d155,%d10; mov.u32 %r12,%r8; mov.u64 %d145,%d156;\n"
    "L3: setp.lt.u64 %p4,%d141,%d9; mul.wide.u32 %d82,%r12,8; add.s64 %d83,%d2,%d82; ld.param.u64 %d84,[%d83];\n"
    "cvta.to.global.u64 %d26,%d84; add.s64 %d85,%d141,%d84; and.b64 %d86,%d85,15; setp.eq.s64 %p5,%d86,0;\n"
    "and.pred %p6,%p4,%p5; @%p6 bra L8; add.s64 %d28,%d26,%d140; mov.u64 %d148,0; mov.u64 %d149,%d148; mov.u64 %d150,%d148;\n"
    "bra.uni L5;\n"
    "L7: shr.u64 %d90,%d149,56; shl.b64 %d91,%d150,8; or.b64 %d150,%d91,%d90; add.s64 %d148,%d148,-1;\n"
    "cvt.u32.u64 %r9,%d148; setp.eq.s32 %p8,%r9,-16; mov.u64 %d149,%d146; @%p8 bra L9;\n"
    "L5: shl.b64 %d146,%d149,8; add.s64 %d92,%d141,%d148; add.s64 %d93,%d92,15; setp.ge.u64 %p7,%d93,%d69; @%p7 bra L7;\n"
    "add.s64 %d39,%d28,%d148; ld.global.u8 %d94,[%d39]; or.b64 %d146,%d146,%d94; bra.uni L7;\n"
    "L8: add.s64 %d27,%d26,%d141; ld.global.v2.u64 {%d146,%d150},[%d27];\n"
    "L9: mov.pred %p18,%p9;\n"
    "L10: mov.u64 %d49,%d156; mov.u64 %d159,%d155; mov.pred %p1,%p18; and.b64 %d95,%d146,%d15; add.s64 %d96,%d13,%d95;\n"
    "and.b64 %d97,%d96,%d11; shl.b64 %d98,%d97,1; shr.u64 %d99,%d97,%r10; sub.s64 %d100,%d98,%d99; not.b64 %d101,%d100;\n"
    "and.b64 %d102,%d146,%d101; and.b64 %d103,%d100,%d14; or.b64 %d104,%d102,%d103; and.b64 %d105,%d104,%d12;\n"
    "shl.b64 %d106,%d105,1; shr.u64 %d107,%d105,%r10; sub.s64 %d108,%d106,%d107; or.b64 %d109,%d108,%d12;\n"
    "xor.b64 %d110,%d104,%d10; xor.b64 %d111,%d110,%d109; or.b64 %d112,%d111,%d100; not.b64 %d113,%d145;\n"
    "and.b64 %d114,%d112,%d113; xor.b64 %d115,%d145,%d112; not.b64 %d116,%d115; or.b64 %d117,%d11,%d145;\n"
    "and.b64 %d118,%d112,%d15; not.b64 %d119,%d117; add.s64 %d120,%d118,%d119; and.b64 %d121,%d120,%d116;\n"
    "or.b64 %d122,%d121,%d114; and.b64 %d123,%d122,%d11; shl.b64 %d124,%d123,1; shr.u64 %d125,%d123,%r10;\n"
    "sub.s64 %d126,%d124,%d125; and.b64 %d127,%d126,%d112; not.b64 %d128,%d126; and.b64 %d129,%d145,%d128;\n"
    "or.b64 %d156,%d127,%d129; and.b64 %d130,%d126,%d104; and.b64 %d131,%d142,%d128; or.b64 %d155,%d130,%d131;\n"
    "mov.u64 %d145,%d49; mov.pred %p18,%p10; mov.u64 %d146,%d150; mov.u64 %d142,%d159; @%p1 bra L10; add.s32 %r12,%r12,1;\n"
    "setp.eq.s32 %p11,%r12,%r1; mov.u64 %d142,%d159; mov.u64 %d145,%d49; @%p11 bra L12; bra.uni L3;\n"
    "L12: add.s64 %d132,%d141,%d68; and.b64 %d133,%d132,15; setp.eq.s64 %p13,%d133,0; and.pred %p14,%p4,%p13;\n"
    "@%p14 bra L18; mov.u64 %d158,0;\n"
    "L14: add.s64 %d135,%d141,%d158; setp.ge.u64 %p15,%d135,%d69; @%p15 bra L16; add.s64 %d136,%d139,%d158;\n"
    "st.global.u8 [%d136],%d159;\n"
    "L16: cvt.u32.u64 %r11,%d158; setp.eq.s32 %p16,%r11,15; @%p16 bra L19; shr.u64 %d137,%d159,8; shl.b64 %d138,%d155,56;\n"
    "or.b64 %d159,%d138,%d137; shr.u64 %d155,%d155,8; add.s64 %d158,%d158,1; bra.uni L14;\n"
    "L20: ret; }\n"; /* 4080 characters */
static const char ptx_ds__comm_integers[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_integers( .param .u64 p0, .param .align 8 .b8 p1[64], .param .u64 p2, .param .u32 p3,\n"
    ".param .align 8 .b8 p4[48], .param .u32 p5 ) { .reg .pred %p<19>; .reg .b32 %r<26>; .reg .b64 %d<131>;\n"
    "ld.param.u64 %d66,[p2]; ld.param.u64 %d65,[p0]; ld.param.v2.u32 {%r1,%r12},[p4+40]; cvt.u64.u32 %d68,%r12;\n"
    "and.b64 %d3,%d68,%d65; mov.u32 %r13,%ctaid.x; mul.wide.u32 %d69,%r13,256; mov.u32 %r14,%tid.x; cvt.u64.u32 %d5,%r14;\n"
    "add.s64 %d70,%d69,%d5; shl.b64 %d71,%d70,4; sub.s64 %d113,%d71,%d3; setp.ge.s64 %p2,%d113,%d66; @%p2 bra L23;\n"
    "ld.param.u32 %r11,[p5]; ld.param.u32 %r10,[p3]; mov.b64 %d67,p1; mov.u64 %d1,%d67; cvta.to.global.u64 %d2,%d65;\n"
    "cvt.u64.u32 %d4,%r13; mov.u32 %r15,%nctaid.x; mul.wide.u32 %d7,%r15,4096; setp.lt.u64 %p1,%d66,16;\n"
    "add.s64 %d72,%d66,-15; selp.b64 %d8,0,%d72,%p1; ld.param.u64 %d9,[p4]; setp.eq.s32 %p3,%r11,0; shr.u64 %d73,%d9,%r1;\n"
    "selp.b64 %d11,0,%d73,%p3; mov.u32 %r16,63; sub.s32 %r17,%r16,%r1; mov.u64 %d74,-1; shr.u64 %d12,%d74,%r17;\n"
    "add.s32 %r2,%r1,1; not.b64 %d13,%d9; max.u32 %r3,%r10,1; shl.b64 %d75,%d4,12; shl.b64 %d76,%d5,4;\n"
    "add.s64 %d77,%d75,%d76; sub.s64 %d78,%d77,%d3; add.s64 %d112,%d78,15; add.s64 %d111,%d2,%d113; mov.u32 %r18,0;\n"
    "bra.uni L2;\n"
    "L21: add.s64 %d54,%d2,%d113; st.global.v2.u64 [%d54],{%d129,%d127};\n"
    "L22: add.s64 %d113,%d113,%d7; add.s64 %d112,%d112,%d7; add.s64 %d111,%d111,%d7; setp.lt.s64 %p18,%d113,%d66;\n"
    "@%p18 bra L2; bra.uni L23;\n"
    "L2: mov.u32 %r23,%r18; mov.u64 %d122,%d11; mov.u64 %d127,%d11; bra.uni L3;\n"
    "L14: add.s32 %r23,%r23,1; setp.eq.s32 %p12,%r23,%r3; mov.u64 %d122,%d129; @%p12 bra L15;\n"
    "L3: setp.lt.u64 %p4,%d113,%d8; mul.wide.u32 %d79,%r23,8; add.s64 %d80,%d1,%d79; ld.param.u64 %d81,[%d80];\n"
    "cvta.to.global.u64 %d21,%d81; add.s64 %d82,%d113,%d81; and.b64 %d83,%d82,15; setp.eq.s64 %p5,%d83,0;\n"
    "and.pred %p6,%p4,%p5; @%p6 bra L8; add.s64 %d23,%d21,%d112; mov.u64 %d118,0; mov.u64 %d119,%d118; mov.u64 %d120,%d118;\n"
    "bra.uni L5;\n"
    "L7: shr.u64 %d87,%d119,56; shl.b64 %d88,%d120,8; or.b64 %d120,%d88,%d87; add.s64 %d118,%d118,-1;\n"
    "cvt.u32.u64 %r19,%d118; setp.eq.s32 %p8,%r19,-16; mov.u64 %d119,%d116; @%p8 bra L9;\n"
    "L5: shl.b64 %d116,%d119,8; add.s64 %d89,%d113,%d118; add.s64 %d90,%d89,15; setp.ge.u64 %p7,%d90,%d66; @%p7 bra L7;\n"
    "add.s64 %d34,%d23,%d118; ld.global.u8 %d91,[%d34]; or.b64 %d116,%d116,%d91; bra.uni L7;\n"
    "L8: add.s64 %d22,%d21,%d113; ld.global.v2.u64 {%d116,%d120},[%d22];\n"
    "L9: mov.u64 %d110,0; mov.u32 %r24,0; bra.uni L10;\n"
    "L24: and.b64 %d98,%d122,%d13; and.b64 %d99,%d116,%d13; add.s64 %d100,%d98,%d99; xor.b64 %d101,%d122,%d116;\n"
    "and.b64 %d102,%d101,%d9; xor.b64 %d127,%d100,%d102;\n"
    "L13: add.s32 %r24,%r24,1; setp.eq.s32 %p11,%r24,2; mov.u64 %d122,%d129; mov.u64 %d116,%d120; @%p11 bra L14;\n"
    "L10: mov.u64 %d129,%d127; @%p3 bra L24; mov.u32 %r25,0; mov.u64 %d127,%d110;\n"
    "L12: shr.u64 %d93,%d122,%r25; shr.u64 %d94,%d116,%r25; mul.lo.s64 %d95,%d93,%d94; and.b64 %d96,%d95,%d12;\n"
    "shl.b64 %d97,%d96,%r25; or.b64 %d127,%d97,%d127; add.s32 %r25,%r25,%r2; setp.lt.u32 %p10,%r25,64; @%p10 bra L12;\n"
    "bra.uni L13;\n"
    "L15: add.s64 %d103,%d113,%d65; and.b64 %d104,%d103,15; setp.eq.s64 %p14,%d104,0; and.pred %p15,%p4,%p14;\n"
    "@%p15 bra L21; mov.u64 %d128,0;\n"
    "L17: add.s64 %d106,%d113,%d128; setp.ge.u64 %p16,%d106,%d66; @%p16 bra L19; add.s64 %d107,%d111,%d128;\n"
    "st.global.u8 [%d107],%d129;\n"
    "L19: cvt.u32.u64 %r22,%d128; setp.eq.s32 %p17,%r22,15; @%p17 bra L22; shr.u64 %d108,%d129,8; shl.b64 %d109,%d127,56;\n"
    "or.b64 %d129,%d109,%d108; shr.u64 %d127,%d127,8; add.s64 %d128,%d128,1; bra.uni L17;\n"
    "L23: ret; }\n"; /* 3514 characters */
static const char ptx_ds__comm_divide[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_divide( .param .u64 p0, .param .u64 p1, .param .u32 p2, .param .u32 p3 ) { .reg .pred %p<11>;\n"
    ".reg .b32 %r<16>; .reg .b64 %d<66>; ld.param.u32 %r2,[p2]; ld.param.u64 %d37,[p1]; and.b32 %r1,%r2,3;\n"
    "mov.u32 %r5,%ctaid.x; mul.wide.u32 %d38,%r5,256; mov.u32 %r6,%tid.x; cvt.u64.u32 %d5,%r6; add.s64 %d63,%d38,%d5;\n"
    "shr.u64 %d7,%d37,%r1; setp.ge.u64 %p1,%d63,%d7; @%p1 bra L20; ld.param.u32 %r3,[p3]; ld.param.u64 %d36,[p0];\n"
    "cvta.to.global.u64 %d1,%d36; mov.u32 %r4,%nctaid.x; cvt.u64.u32 %d2,%r4; mul.wide.u32 %d3,%r4,256;\n"
    "cvt.u64.u32 %d4,%r5; mov.u32 %r7,8; shl.b32 %r8,%r7,%r1; add.s32 %r9,%r8,-1; cvt.u64.u32 %d8,%r9; mov.u32 %r10,64;\n"
    "sub.s32 %r11,%r10,%r8; mov.u64 %d39,-1; shr.u64 %d9,%d39,%r11; cvt.u64.u32 %d10,%r3; shl.b64 %d40,%d4,9;\n"
    "shl.b64 %d41,%d5,1; add.s64 %d62,%d40,%d41; shl.b64 %d12,%d2,9; shl.b64 %d42,%d4,10; shl.b64 %d43,%d5,2;\n"
    "add.s64 %d61,%d42,%d43; shl.b64 %d14,%d2,10; shl.b64 %d44,%d4,11; shl.b64 %d45,%d5,3; add.s64 %d60,%d44,%d45;\n"
    "shl.b64 %d16,%d2,11; setp.ne.s32 %p2,%r1,0; setp.gt.u32 %p5,%r2,3; cvt.u32.u64 %r12,%d8; setp.eq.s32 %p8,%r1,2;\n"
    "setp.ne.s32 %p9,%r1,1; bra.uni L2;\n"
    "L13: add.s64 %d59,%d1,%d63; st.global.u8 [%d59],%d31;\n"
    "L19: add.s64 %d63,%d63,%d3; add.s64 %d62,%d62,%d12; add.s64 %d61,%d61,%d14; add.s64 %d60,%d60,%d16;\n"
    "setp.lt.u64 %p10,%d63,%d7; @%p10 bra L2; bra.uni L20;\n"
    "L2: @%p2 bra L4; bra.uni L3;\n"
    "L4: @%p8 bra L7; @%p9 bra L8; add.s64 %d47,%d1,%d62; ld.global.u16 %d64,[%d47]; bra.uni L9;\n"
    "L3: add.s64 %d49,%d1,%d63; ld.global.u8 %d64,[%d49]; bra.uni L9;\n"
    "L7: add.s64 %d46,%d1,%d61; ld.global.u32 %d64,[%d46]; bra.uni L9;\n"
    "L8: add.s64 %d48,%d1,%d60; ld.global.u64 %d64,[%d48];\n"
    "L9: shr.u64 %d50,%d64,%r12; neg.s64 %d51,%d50; selp.b64 %d26,%d51,0,%p5; xor.b64 %d52,%d26,%d64;\n"
    "sub.s64 %d53,%d52,%d26; and.b64 %d27,%d53,%d9; and.b64 %d54,%d27,-4294967296; setp.ne.s64 %p6,%d54,0; @%p6 bra L11;\n"
    "bra.uni L10;\n"
    "L11: div.u64 %d65,%d27,%d10; bra.uni L12;\n"
    "L10: cvt.u32.u64 %r13,%d10; cvt.u32.u64 %r14,%d27; div.u32 %r15,%r14,%r13; cvt.u64.u32 %d65,%r15;\n"
    "L12: xor.b64 %d55,%d26,%d65; sub.s64 %d31,%d55,%d26; @%p2 bra L14; bra.uni L13;\n"
    "L14: @%p8 bra L17; @%p9 bra L18; add.s64 %d57,%d1,%d62; st.global.u16 [%d57],%d31; bra.uni L19;\n"
    "L17: add.s64 %d56,%d1,%d61; st.global.u32 [%d56],%d31; bra.uni L19;\n"
    "L18: add.s64 %d58,%d1,%d60; st.global.u64 [%d58],%d31; bra.uni L19;\n"
    "L20: ret; }\n"; /* 2372 characters */
static const char ptx_ds__comm_f32[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_f32( .param .u64 p0, .param .align 8 .b8 p1[64], .param .u64 p2, .param .u32 p3,\n"
    ".param .u32 p4, .param .u32 p5 ) { .reg .pred %p<24>; .reg .b32 %r<100>; .reg .f32 %f<28>; .reg .b64 %d<44>;\n"
    "ld.param.u64 %d20,[p2]; ld.param.u64 %d19,[p0]; and.b64 %d22,%d19,12; mov.u32 %r58,%ctaid.x;\n"
    "mul.wide.u32 %d23,%r58,256; mov.u32 %r59,%tid.x; cvt.u64.u32 %d24,%r59; add.s64 %d25,%d23,%d24; shl.b64 %d26,%d25,4;\n"
    "sub.s64 %d41,%d26,%d22; setp.ge.s64 %p3,%d41,%d20; @%p3 bra L18; ld.param.u32 %r57,[p5]; ld.param.u32 %r56,[p4];\n"
    "ld.param.u32 %r55,[p3]; mov.b64 %d21,p1; mov.u64 %d1,%d21; cvta.to.global.u64 %d2,%d19; mov.u32 %r60,%nctaid.x;\n"
    "mul.wide.u32 %d4,%r60,4096; setp.lt.u64 %p1,%d20,16; add.s64 %d27,%d20,-15; selp.b64 %d5,0,%d27,%p1;\n"
    "setp.eq.s32 %p2,%r56,0; selp.b32 %r1,-2147483648,1065353216,%p2; cvt.rn.f32.u32 %f1,%r57; max.u32 %r2,%r55,1;\n"
    "add.s64 %d40,%d2,%d41; mov.u32 %r61,0; setp.lt.u32 %p11,%r57,2; bra.uni L2;\n"
    "L20: add.s64 %d13,%d2,%d41; st.global.v4.u32 [%d13],{%r97,%r98,%r99,%r51};\n"
    "L17: add.s64 %d41,%d41,%d4; add.s64 %d40,%d40,%d4; setp.lt.s64 %p23,%d41,%d20; @%p23 bra L2; bra.uni L18;\n"
    "L2: mov.u32 %r93,%r1; mov.u32 %r94,%r1; mov.u32 %r95,%r1; mov.u32 %r96,%r1; mov.u32 %r76,%r61; bra.uni L3;\n"
    "L19: ld.global.v4.u32 {%r84,%r85,%r86,%r87},[%d9];\n"
    "L8: mov.b32 %f2,%r87; mov.b32 %f3,%r86; mov.b32 %f4,%r85; mov.b32 %f5,%r84; mov.b32 %f6,%r96; mul.rn.f32 %f7,%f5,%f6;\n"
    "add.rn.f32 %f8,%f5,%f6; selp.f32 %f9,%f8,%f7,%p2; mov.b32 %r96,%f9; mov.b32 %f10,%r95; mul.rn.f32 %f11,%f4,%f10;\n"
    "add.rn.f32 %f12,%f4,%f10; selp.f32 %f13,%f12,%f11,%p2; mov.b32 %r95,%f13; mov.b32 %f14,%r94; mul.rn.f32 %f15,%f3,%f14;\n"
    "add.rn.f32 %f16,%f3,%f14; selp.f32 %f17,%f16,%f15,%p2; mov.b32 %r94,%f17; mov.b32 %f18,%r93; mul.rn.f32 %f19,%f2,%f18;\n"
    "add.rn.f32 %f20,%f2,%f18; selp.f32 %f21,%f20,%f19,%p2; mov.b32 %r93,%f21; add.s32 %r76,%r76,1;\n"
    "setp.ne.s32 %p10,%r76,%r2; @%p10 bra L3; bra.uni L9;\n"
    "L3: setp.lt.u64 %p4,%d41,%d5; mul.wide.u32 %d28,%r76,8; add.s64 %d29,%d1,%d28; ld.param.u64 %d30,[%d29];\n"
    "cvta.to.global.u64 %d31,%d30; add.s64 %d9,%d31,%d41; add.s64 %d32,%d41,%d30; and.b64 %d33,%d32,15;\n"
    "setp.eq.s64 %p5,%d33,0; and.pred %p6,%p4,%p5; @%p6 bra L19; mov.u32 %r65,0; mov.u64 %d42,0; mov.u32 %r80,%r65;\n"
    "mov.u32 %r81,%r65; mov.u32 %r82,%r65; bra.uni L5;\n"
    "L7: mov.u32 %r86,%r82; mov.u32 %r85,%r81; mov.u32 %r84,%r80; add.s64 %d42,%d42,4; cvt.u32.u64 %r66,%d42;\n"
    "add.s32 %r67,%r66,-4; setp.lt.u32 %p8,%r67,12; mov.u32 %r80,%r85; mov.u32 %r81,%r86; mov.u32 %r82,%r87; @%p8 bra L5;\n"
    "bra.uni L8;\n"
    "L5: add.s64 %d35,%d41,%d42; setp.ge.u64 %p7,%d35,%d20; mov.u32 %r87,%r65; @%p7 bra L7; add.s64 %d11,%d9,%d42;\n"
    "ld.global.u32 %r87,[%d11]; bra.uni L7;\n"
    "L9: @%p11 bra L12; mov.u32 %r88,4; mov.u32 %r89,%r96; mov.u32 %r90,%r95; mov.u32 %r91,%r94;\n"
    "L11: mov.u32 %r94,%r93; mov.u32 %r95,%r91; mov.u32 %r96,%r90; mov.b32 %f22,%r89; div.rn.f32 %f23,%f22,%f1;\n"
    "setp.nan.f32 %p12,%f23,%f23; mov.b32 %r69,%f23; selp.b32 %r93,2143289344,%r69,%p12; add.s32 %r88,%r88,-1;\n"
    "setp.ne.s32 %p13,%r88,0; mov.u32 %r89,%r96; mov.u32 %r90,%r95; mov.u32 %r91,%r94; @%p13 bra L11;\n"
    "L12: mov.b32 %f24,%r96; setp.nan.f32 %p15,%f24,%f24; selp.b32 %r97,2143289344,%r96,%p15; mov.b32 %f25,%r95;\n"
    "setp.nan.f32 %p16,%f25,%f25; selp.b32 %r98,2143289344,%r95,%p16; mov.b32 %f26,%r94; setp.nan.f32 %p17,%f26,%f26;\n"
    "selp.b32 %r99,2143289344,%r94,%p17; mov.b32 %f27,%r93; setp.nan.f32 %p18,%f27,%f27;\n"
    "selp.b32 %r51,2143289344,%r93,%p18; add.s64 %d36,%d41,%d19; and.b64 %d37,%d36,15; setp.eq.s64 %p19,%d37,0;\n"
    "and.pred %p20,%p4,%p19; @%p20 bra L20; mov.u64 %d43,0; bra.uni L14;\n"
    "L16: add.s64 %d43,%d43,4; cvt.u32.u64 %r70,%d43; add.s32 %r71,%r70,-4; setp.lt.u32 %p22,%r71,12; mov.u32 %r97,%r98;\n"
    "mov.u32 %r98,%r99; mov.u32 %r99,%r51; @%p22 bra L14; bra.uni L17;\n"
    "L14: add.s64 %d39,%d41,%d43; setp.ge.u64 %p21,%d39,%d20; @%p21 bra L16; add.s64 %d15,%d40,%d43;\n"
    "st.global.u32 [%d15],%r97; bra.uni L16;\n"
    "L18: ret; }\n"; /* 3897 characters */
static const char ptx_ds__comm_f64[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_f64( .param .u64 p0, .param .align 8 .b8 p1[64], .param .u64 p2, .param .u32 p3,\n"
    ".param .u32 p4, .param .u32 p5 ) { .reg .pred %p<25>; .reg .b32 %r<16>; .reg .b64 %d<80>; .reg .f64 %fd<16>;\n"
    "ld.param.u64 %d45,[p2]; ld.param.u64 %d44,[p0]; and.b64 %d3,%d44,8; mov.u32 %r9,%ctaid.x; mul.wide.u32 %d47,%r9,256;\n"
    "mov.u32 %r10,%tid.x; cvt.u64.u32 %d5,%r10; add.s64 %d48,%d47,%d5; shl.b64 %d49,%d48,4; sub.s64 %d67,%d49,%d3;\n"
    "setp.ge.s64 %p4,%d67,%d45; @%p4 bra L18; ld.param.u32 %r8,[p5]; ld.param.u32 %r7,[p4]; ld.param.u32 %r6,[p3];\n"
    "mov.b64 %d46,p1; mov.u64 %d1,%d46; cvta.to.global.u64 %d2,%d44; cvt.u64.u32 %d4,%r9; mov.u32 %r11,%nctaid.x;\n"
    "mul.wide.u32 %d7,%r11,4096; setp.lt.u64 %p2,%d45,16; add.s64 %d50,%d45,-15; selp.b64 %d8,0,%d50,%p2;\n"
    "setp.eq.s32 %p3,%r7,0; selp.b64 %d9,-9223372036854775808,4607182418800017408,%p3; cvt.rn.f64.u32 %fd1,%r8;\n"
    "max.u32 %r1,%r6,1; shl.b64 %d51,%d4,12; shl.b64 %d52,%d5,4; add.s64 %d53,%d51,%d52; sub.s64 %d54,%d53,%d3;\n"
    "add.s64 %d66,%d54,8; mov.u32 %r12,0; mov.u32 %r13,-16; setp.lt.u32 %p12,%r8,2; mov.pred %p13,-1; mov.pred %p14,0;\n"
    "bra.uni L2;\n"
    "L20: st.global.v2.u64 [%d41],{%d39,%d40};\n"
    "L17: add.s64 %d67,%d67,%d7; add.s64 %d66,%d66,%d7; setp.lt.s64 %p23,%d67,%d45; @%p23 bra L2; bra.uni L18;\n"
    "L2: mov.u64 %d78,%d9; mov.u64 %d79,%d9; mov.u32 %r14,%r12; bra.uni L3;\n"
    "L19: add.s64 %d16,%d15,%d67; ld.global.v2.u64 {%d74,%d75},[%d16];\n"
    "L8: mov.b64 %fd2,%d79; mov.b64 %fd3,%d75; mov.b64 %fd4,%d74; mul.rn.f64 %fd5,%fd4,%fd2; add.rn.f64 %fd6,%fd4,%fd2;\n"
    "selp.f64 %fd7,%fd6,%fd5,%p3; mov.b64 %d79,%fd7; mov.b64 %fd8,%d78; mul.rn.f64 %fd9,%fd3,%fd8;\n"
    "add.rn.f64 %fd10,%fd3,%fd8; selp.f64 %fd11,%fd10,%fd9,%p3; mov.b64 %d78,%fd11; add.s32 %r14,%r14,1;\n"
    "setp.ne.s32 %p11,%r14,%r1; @%p11 bra L3; bra.uni L9;\n"
    "L3: setp.lt.u64 %p5,%d67,%d8; mul.wide.u32 %d55,%r14,8; add.s64 %d56,%d1,%d55; ld.param.u64 %d57,[%d56];\n"
    "cvta.to.global.u64 %d15,%d57; add.s64 %d58,%d67,%d57; and.b64 %d59,%d58,15; setp.eq.s64 %p6,%d59,0;\n"
    "and.pred %p7,%p5,%p6; @%p7 bra L19; mov.u64 %d61,0; mov.u64 %d70,%d66; mov.u32 %r15,%r13; mov.u64 %d73,%d61;\n"
    "bra.uni L5;\n"
    "L7: mov.u64 %d75,%d73; add.s32 %r15,%r15,8; add.s64 %d70,%d70,-8; setp.ne.s32 %p9,%r15,0; mov.u64 %d73,%d74;\n"
    "@%p9 bra L5; bra.uni L8;\n"
    "L5: setp.ge.u64 %p8,%d70,%d45; mov.u64 %d74,%d61; @%p8 bra L7; add.s64 %d24,%d15,%d70; ld.global.u64 %d74,[%d24];\n"
    "bra.uni L7;\n"
    "L9: @%p12 bra L12; mov.pred %p24,%p13; mov.u64 %d76,%d79;\n"
    "L11: mov.u64 %d79,%d78; mov.pred %p1,%p24; mov.b64 %fd12,%d76; div.rn.f64 %fd13,%fd12,%fd1;\n"
    "setp.nan.f64 %p15,%fd13,%fd13; mov.b64 %d62,%fd13; selp.b64 %d78,9221120237041090560,%d62,%p15; mov.pred %p24,%p14;\n"
    "mov.u64 %d76,%d79; @%p1 bra L11;\n"
    "L12: mov.b64 %fd14,%d79; setp.nan.f64 %p17,%fd14,%fd14; selp.b64 %d39,9221120237041090560,%d79,%p17;\n"
    "mov.b64 %fd15,%d78; setp.nan.f64 %p18,%fd15,%fd15; selp.b64 %d40,9221120237041090560,%d78,%p18; add.s64 %d41,%d2,%d67;\n"
    "add.s64 %d63,%d67,%d44; and.b64 %d64,%d63,15; setp.eq.s64 %p19,%d64,0; and.pred %p20,%p5,%p19; @%p20 bra L20;\n"
    "setp.lt.u64 %p21,%d67,%d45; @%p21 bra L14; bra.uni L15;\n"
    "L14: st.global.u64 [%d41],%d39;\n"
    "L15: add.s64 %d65,%d67,8; setp.ge.u64 %p22,%d65,%d45; @%p22 bra L17; st.global.u64 [%d41+8],%d40; bra.uni L17;\n"
    "L18: ret; }\n"; /* 3219 characters */
static const char ptx_ds__comm_halves[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_halves( .param .u64 p0, .param .align 8 .b8 p1[64], .param .u64 p2, .param .u32 p3,\n"
    ".param .u32 p4, .param .u32 p5, .param .u32 p6 ) { .reg .pred %p<24>; .reg .b16 %h<3>; .reg .b16 %rs<4>;\n"
    ".reg .b32 %r<46>; .reg .f32 %f<11>; .reg .b64 %d<86>; .shared .align 4 .b8 s_sums[8192]; ld.param.u64 %d42,[p2];\n"
    "ld.param.u64 %d41,[p0]; mov.u32 %r23,%tid.x; cvt.u64.u32 %d3,%r23; and.b64 %d44,%d41,14; mov.u32 %r24,%ctaid.x;\n"
    "mul.wide.u32 %d45,%r24,256; add.s64 %d46,%d45,%d3; shl.b64 %d47,%d46,4; sub.s64 %d73,%d47,%d44;\n"
    "setp.ge.s64 %p5,%d73,%d42; @%p5 bra L29; ld.param.u32 %r22,[p6]; ld.param.u32 %r21,[p5]; ld.param.u32 %r20,[p4];\n"
    "ld.param.u32 %r19,[p3]; mov.b64 %d43,p1; mov.u64 %d1,%d43; cvta.to.global.u64 %d2,%d41; mov.u32 %r25,%nctaid.x;\n"
    "mul.wide.u32 %d5,%r25,4096; setp.lt.u64 %p3,%d42,16; add.s64 %d48,%d42,-15; selp.b64 %d6,0,%d48,%p3;\n"
    "setp.eq.s32 %p4,%r20,0; selp.b32 %r1,-2147483648,1065353216,%p4; cvt.rn.f32.u32 %f1,%r21; max.u32 %r2,%r19,1;\n"
    "shl.b64 %d49,%d3,2; mov.u64 %d50,s_sums; add.s64 %d28,%d50,%d49; add.s64 %d72,%d2,%d73; mov.u32 %r26,0;\n"
    "setp.ne.s32 %p10,%r22,8; setp.lt.u32 %p16,%r21,2; bra.uni L2;\n"
    "L28: add.s64 %d73,%d73,%d5; add.s64 %d72,%d72,%d5; setp.lt.s64 %p23,%d73,%d42; @%p23 bra L2; bra.uni L29;\n"
    "L2: mov.u64 %d76,0; mov.u32 %r40,%r26; mov.u64 %d77,%d76; bra.uni L3;\n"
    "L15: add.s32 %r40,%r40,1; setp.eq.s32 %p13,%r40,%r2; @%p13 bra L16;\n"
    "L3: setp.lt.u64 %p6,%d73,%d6; mul.wide.u32 %d53,%r40,8; add.s64 %d54,%d1,%d53; ld.param.u64 %d55,[%d54];\n"
    "cvta.to.global.u64 %d56,%d55; add.s64 %d13,%d56,%d73; add.s64 %d57,%d73,%d55; and.b64 %d58,%d57,15;\n"
    "setp.eq.s64 %p7,%d58,0; and.pred %p1,%p6,%p7; @!%p1 bra L5; bra.uni L4;\n"
    "L4: ld.global.v2.u64 {%d76,%d77},[%d13];\n"
    "L5: mov.u64 %d79,0; mov.u64 %d78,%d28; bra.uni L6;\n"
    "L13: shl.b32 %r43,%r42,16;\n"
    "L14: shr.u64 %d60,%d76,16; shl.b64 %d61,%d77,48; or.b64 %d76,%d61,%d60; shr.u64 %d77,%d77,16; mov.b32 %f3,%r41;\n"
    "mov.b32 %f4,%r43; mul.rn.f32 %f5,%f3,%f4; add.rn.f32 %f6,%f3,%f4; selp.f32 %f7,%f6,%f5,%p4; st.shared.f32 [%d78],%f7;\n"
    "add.s64 %d79,%d79,2; cvt.u32.u64 %r29,%d79; add.s32 %r30,%r29,-2; add.s64 %d78,%d78,1024; setp.lt.u32 %p12,%r30,14;\n"
    "@%p12 bra L6; bra.uni L15;\n"
    "L6: setp.eq.s32 %p8,%r40,0; mov.u32 %r41,%r1; @%p8 bra L8; ld.shared.u32 %r41,[%d78];\n"
    "L8: cvt.u32.u64 %r27,%d76; and.b32 %r42,%r27,65535; @%p1 bra L11; add.s64 %d62,%d73,%d79; setp.ge.u64 %p9,%d62,%d42;\n"
    "mov.u32 %r42,0; @%p9 bra L11; add.s64 %d25,%d13,%d79; ld.global.u16 %r42,[%d25];\n"
    "L11: @%p10 bra L13; cvt.u16.u32 %rs2,%r42; mov.b16 %h1,%rs2; cvt.f32.f16 %f2,%h1; mov.b32 %r43,%f2; bra.uni L14;\n"
    "L16: add.s64 %d29,%d2,%d73; add.s64 %d64,%d73,%d41; and.b64 %d65,%d64,15; setp.eq.s64 %p15,%d65,0;\n"
    "and.pred %p2,%p6,%p15; mov.u64 %d83,0; mov.u64 %d82,%d28; bra.uni L17;\n"
    "L25: shr.u64 %d67,%d76,16; shl.b64 %d68,%d77,48; or.b64 %d76,%d68,%d67; cvt.u64.u32 %d69,%r45; shr.u64 %d70,%d77,16;\n"
    "shl.b64 %d71,%d69,48; or.b64 %d77,%d71,%d70; add.s64 %d83,%d83,2; cvt.u32.u64 %r38,%d83; add.s32 %r39,%r38,-2;\n"
    "add.s64 %d82,%d82,1024; setp.lt.u32 %p22,%r39,14; @%p22 bra L17; bra.uni L26;\n"
    "L17: ld.shared.u32 %r44,[%d82]; @%p16 bra L19; mov.b32 %f8,%r44; div.rn.f32 %f9,%f8,%f1; setp.nan.f32 %p17,%f9,%f9;\n"
    "mov.b32 %r31,%f9; selp.b32 %r44,2143289344,%r31,%p17;\n"
    "L19: @%p10 bra L21; mov.b32 %f10,%r44; cvt.rn.f16.f32 %h2,%f10; mov.b16 %rs3,%h2; setp.nan.f32 %p20,%f10,%f10;\n"
    "cvt.u32.u16 %r37,%rs3; selp.b32 %r45,32256,%r37,%p20; bra.uni L22;\n"
    "L21: and.b32 %r32,%r44,2147483647; setp.gt.u32 %p19,%r32,2139095040; bfe.u32 %r33,%r44,16,1; add.s32 %r34,%r44,%r33;\n"
    "add.s32 %r35,%r34,32767; shr.u32 %r36,%r35,16; selp.b32 %r45,32704,%r36,%p19;\n"
    "L22: @%p2 bra L25; add.s64 %d66,%d73,%d83; setp.ge.u64 %p21,%d66,%d42; @%p21 bra L25; add.s64 %d34,%d72,%d83;\n"
    "cvt.u16.u32 %rs1,%r45; st.global.u16 [%d34],%rs1; bra.uni L25;\n"
    "L26: @%p2 bra L27; bra.uni L28;\n"
    "L27: st.global.v2.u64 [%d29],{%d76,%d77}; bra.uni L28;\n"
    "L29: ret; }\n"; /* 3882 characters */
static const char ptx_ds__comm_halves_cut[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_halves_cut( .param .u64 p0, .param .align 8 .b8 p1[64], .param .u64 p2, .param .u32 p3,\n"
    ".param .u32 p4, .param .u32 p5, .param .u32 p6, .param .u32 p7 ) { .reg .pred %p<16>; .reg .b16 %h<3>;\n"
    ".reg .b16 %rs<3>; .reg .b32 %r<40>; .reg .f32 %f<11>; .reg .b64 %d<31>; ld.param.u64 %d14,[p2]; mov.u32 %r23,%ctaid.x;\n"
    "mul.wide.u32 %d15,%r23,256; mov.u32 %r24,%tid.x; cvt.u64.u32 %d16,%r24; add.s64 %d29,%d15,%d16; shr.u64 %d5,%d14,1;\n"
    "setp.ge.u64 %p1,%d29,%d5; @%p1 bra L17; ld.param.u32 %r21,[p7]; ld.param.u32 %r20,[p6]; ld.param.u32 %r19,[p5];\n"
    "ld.param.u32 %r18,[p4]; ld.param.u32 %r17,[p3]; ld.param.u64 %d12,[p0]; mov.b64 %d13,p1; mov.u64 %d1,%d13;\n"
    "cvta.to.global.u64 %d2,%d12; mov.u32 %r22,%nctaid.x; mul.wide.u32 %d3,%r22,256; setp.eq.s32 %p2,%r18,0;\n"
    "selp.b32 %r1,-2147483648,1065353216,%p2; and.b32 %r2,%r21,1; ld.param.u64 %d17,[%d1]; cvta.to.global.u64 %d6,%d17;\n"
    "max.u32 %r25,%r19,1; cvt.rn.f32.u32 %f1,%r25; and.b32 %r3,%r21,2; setp.eq.s32 %p3,%r17,0; setp.eq.s32 %p10,%r3,0;\n"
    "setp.ne.s32 %p12,%r20,8; setp.eq.s32 %p4,%r2,0; bra.uni L2;\n"
    "L11: add.s64 %d24,%d2,%d27; st.global.u32 [%d24],%r5;\n"
    "L16: add.s64 %d29,%d29,%d3; setp.lt.u64 %p15,%d29,%d5; @%p15 bra L2; bra.uni L17;\n"
    "L2: shl.b64 %d27,%d29,2; shl.b64 %d28,%d29,1; mov.u32 %r37,%r1; @%p3 bra L10; add.s64 %d8,%d6,%d27; mov.u32 %r36,0;\n"
    "mov.u64 %d30,%d1; mov.u32 %r37,%r1; bra.uni L4;\n"
    "L5: ld.global.u32 %r38,[%d8];\n"
    "L9: mov.b32 %f3,%r37; mov.b32 %f4,%r38; mul.rn.f32 %f5,%f3,%f4; add.rn.f32 %f6,%f3,%f4; selp.f32 %f7,%f6,%f5,%p2;\n"
    "mov.b32 %r37,%f7; add.s32 %r36,%r36,1; add.s64 %d30,%d30,8; setp.eq.s32 %p9,%r17,%r36; @%p9 bra L10;\n"
    "L4: setp.ne.s32 %p5,%r36,0; or.pred %p6,%p4,%p5; @%p6 bra L6; bra.uni L5;\n"
    "L6: ld.param.u64 %d19,[%d30]; cvta.to.global.u64 %d20,%d19; add.s64 %d22,%d20,%d28; ld.global.u16 %rs1,[%d22];\n"
    "@%p12 bra L8; mov.b16 %h1,%rs1; cvt.f32.f16 %f2,%h1; mov.b32 %r38,%f2; bra.uni L9;\n"
    "L8: cvt.u32.u16 %r27,%rs1; shl.b32 %r38,%r27,16; bra.uni L9;\n"
    "L10: mov.b32 %f8,%r37; div.rn.f32 %f9,%f8,%f1; setp.nan.f32 %p11,%f9,%f9; mov.b32 %r28,%f9;\n"
    "selp.b32 %r5,2143289344,%r28,%p11; @%p10 bra L12; bra.uni L11;\n"
    "L12: @%p12 bra L14; mov.b32 %f10,%r5; cvt.rn.f16.f32 %h2,%f10; mov.b16 %rs2,%h2; setp.nan.f32 %p14,%f10,%f10;\n"
    "cvt.u32.u16 %r34,%rs2; selp.b32 %r39,32256,%r34,%p14; bra.uni L15;\n"
    "L14: and.b32 %r29,%r5,2147483647; setp.gt.u32 %p13,%r29,2139095040; bfe.u32 %r30,%r5,16,1; add.s32 %r31,%r5,%r30;\n"
    "add.s32 %r32,%r31,32767; shr.u32 %r33,%r32,16; selp.b32 %r39,32704,%r33,%p13;\n"
    "L15: add.s64 %d26,%d2,%d28; st.global.u16 [%d26],%r39; bra.uni L16;\n"
    "L17: ret; }\n"; /* 2585 characters */
static const char ptx_ds__comm_complex[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_complex( .param .u64 p0, .param .align 8 .b8 p1[64], .param .u64 p2, .param .u32 p3,\n"
    ".param .u32 p4 ) { .reg .pred %p<14>; .reg .b32 %r<18>; .reg .f32 %f<19>; .reg .b64 %d<56>; .reg .f64 %fd<19>;\n"
    "ld.param.u32 %r7,[p3]; ld.param.u64 %d23,[p2]; ld.param.u64 %d24,[p0]; mov.b64 %d25,p1; mov.u64 %d1,%d25;\n"
    "cvta.to.global.u64 %d2,%d24; mov.u32 %r8,%nctaid.x; ld.param.u32 %r9,[p4]; mul.wide.u32 %d3,%r8,256;\n"
    "mov.u32 %r10,%ctaid.x; mul.wide.u32 %d26,%r10,256; mov.u32 %r11,%tid.x; cvt.u64.u32 %d27,%r11; add.s64 %d52,%d26,%d27;\n"
    "setp.eq.s32 %p1,%r9,12; @%p1 bra L5; bra.uni L1;\n"
    "L5: shr.u64 %d8,%d23,3; setp.ge.u64 %p8,%d52,%d8; @%p8 bra L13; ld.param.u64 %d41,[%d1]; cvta.to.global.u64 %d9,%d41;\n"
    "add.s32 %r2,%r7,-1; add.s64 %d13,%d1,8; setp.lt.u32 %p9,%r7,2; bra.uni L7;\n"
    "L10: mov.b32 %r12,%f18; mov.b32 %r13,%f17; setp.nan.f32 %p11,%f18,%f18; selp.b32 %r14,2143289344,%r12,%p11;\n"
    "setp.nan.f32 %p12,%f17,%f17; selp.b32 %r15,2143289344,%r13,%p12; add.s64 %d49,%d2,%d51; st.global.u32 [%d49],%r14;\n"
    "st.global.u32 [%d49+4],%r15; add.s64 %d52,%d52,%d3; setp.lt.u64 %p13,%d52,%d8; @%p13 bra L7; bra.uni L13;\n"
    "L7: shl.b64 %d12,%d52,1; shl.b64 %d42,%d52,3; add.s64 %d43,%d9,%d42; ld.global.f32 %f18,[%d43];\n"
    "ld.global.f32 %f17,[%d43+4]; shl.b64 %d51,%d12,2; @%p9 bra L10; mov.u64 %d53,%d13; mov.u32 %r16,%r2;\n"
    "L9: ld.param.u64 %d44,[%d53]; cvta.to.global.u64 %d45,%d44; add.s64 %d47,%d45,%d51; ld.global.f32 %f9,[%d47];\n"
    "ld.global.f32 %f10,[%d47+4]; mul.rn.f32 %f11,%f18,%f9; mul.rn.f32 %f12,%f17,%f10; mul.rn.f32 %f13,%f18,%f10;\n"
    "mul.rn.f32 %f14,%f17,%f9; sub.rn.f32 %f18,%f11,%f12; add.rn.f32 %f17,%f14,%f13; add.s32 %r16,%r16,-1;\n"
    "add.s64 %d53,%d53,8; setp.eq.s32 %p10,%r16,0; @%p10 bra L10; bra.uni L9;\n"
    "L1: shr.u64 %d5,%d23,4; setp.ge.u64 %p2,%d52,%d5; @%p2 bra L13; ld.param.u64 %d28,[%d1]; cvta.to.global.u64 %d6,%d28;\n"
    "add.s32 %r1,%r7,-1; add.s64 %d7,%d1,8; setp.lt.u32 %p3,%r7,2; bra.uni L3;\n"
    "L12: mov.b64 %d35,%fd18; mov.b64 %d36,%fd17; setp.nan.f64 %p5,%fd18,%fd18; selp.b64 %d37,9221120237041090560,%d35,%p5;\n"
    "setp.nan.f64 %p6,%fd17,%fd17; selp.b64 %d38,9221120237041090560,%d36,%p6; add.s64 %d40,%d2,%d50;\n"
    "st.global.u64 [%d40],%d37; st.global.u64 [%d40+8],%d38; add.s64 %d52,%d52,%d3; setp.lt.u64 %p7,%d52,%d5; @%p7 bra L3;\n"
    "bra.uni L13;\n"
    "L3: shl.b64 %d18,%d52,1; shl.b64 %d29,%d52,4; add.s64 %d30,%d6,%d29; ld.global.f64 %fd18,[%d30];\n"
    "ld.global.f64 %fd17,[%d30+8]; shl.b64 %d50,%d18,3; @%p3 bra L12; mov.u64 %d55,%d7; mov.u32 %r17,%r1;\n"
    "L11: ld.param.u64 %d31,[%d55]; cvta.to.global.u64 %d32,%d31; add.s64 %d34,%d32,%d50; ld.global.f64 %fd9,[%d34];\n"
    "ld.global.f64 %fd10,[%d34+8]; mul.rn.f64 %fd11,%fd18,%fd9; mul.rn.f64 %fd12,%fd17,%fd10; mul.rn.f64 %fd13,%fd18,%fd10;\n"
    "mul.rn.f64 %fd14,%fd17,%fd9; sub.rn.f64 %fd18,%fd11,%fd12; add.rn.f64 %fd17,%fd14,%fd13; add.s32 %r17,%r17,-1;\n"
    "add.s64 %d55,%d55,8; setp.eq.s32 %p4,%r17,0; @%p4 bra L12; bra.uni L11;\n"
    "L13: ret; }\n"; /* 2916 characters */
static const char ptx_ds__comm_pack[] =
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_pack( .param .u64 p0, .param .u64 p1, .param .align 8 .b8 p2[192], .param .u64 p3,\n"
    ".param .u32 p4, .param .u32 p5 ) { .reg .pred %p<11>; .reg .b16 %rs<3>; .reg .b32 %r<14>; .reg .b64 %d<55>;\n"
    "ld.param.u64 %d28,[p3]; mov.u32 %r7,%ctaid.x; mul.wide.u32 %d32,%r7,256; mov.u32 %r8,%tid.x; cvt.u64.u32 %d33,%r8;\n"
    "add.s64 %d49,%d32,%d33; setp.ge.u64 %p1,%d49,%d28; @%p1 bra L18; ld.param.u32 %r5,[p5]; ld.param.u32 %r4,[p4];\n"
    "ld.param.u64 %d29,[p0]; mov.b64 %d30,p2; mov.u64 %d1,%d30; ld.param.u64 %d31,[p1]; cvta.to.global.u64 %d2,%d31;\n"
    "cvta.to.global.u64 %d3,%d29; mov.u32 %r6,%nctaid.x; mul.wide.u32 %d4,%r6,256; add.s32 %r1,%r4,-1;\n"
    "ld.param.u64 %d6,[%d1+64]; ld.param.u64 %d7,[%d1+128]; mul.wide.u32 %d34,%r1,8; add.s64 %d35,%d34,%d1;\n"
    "add.s64 %d8,%d35,128; setp.eq.s32 %p2,%r1,0; setp.gt.s32 %p5,%r5,3; setp.eq.s32 %p8,%r5,1; setp.eq.s32 %p9,%r5,2;\n"
    "bra.uni L2;\n"
    "L16: ld.global.v2.u64 {%d47,%d48},[%d15]; st.global.v2.u64 [%d14],{%d47,%d48};\n"
    "L17: add.s64 %d49,%d49,%d4; setp.lt.u64 %p10,%d49,%d28; @%p10 bra L2; bra.uni L18;\n"
    "L2: mov.u64 %d50,%d49; mov.u64 %d51,%d3; mov.u64 %d52,%d2; mov.u64 %d53,%d8; mov.u32 %r13,%r1; @%p2 bra L3;\n"
    "bra.uni L10;\n"
    "L3: mul.lo.s64 %d44,%d6,%d50; add.s64 %d14,%d51,%d44; mul.lo.s64 %d45,%d7,%d50; add.s64 %d15,%d52,%d45; @%p5 bra L7;\n"
    "@%p8 bra L14; @%p9 bra L6; bra.uni L16;\n"
    "L6: ld.global.u16 %rs1,[%d15]; st.global.u16 [%d14],%rs1; bra.uni L17;\n"
    "L12: div.u64 %d54,%d50,%d20;\n"
    "L13: mul.lo.s64 %d38,%d54,%d20; sub.s64 %d39,%d50,%d38; ld.param.u64 %d40,[%d53+-64]; mul.lo.s64 %d41,%d39,%d40;\n"
    "add.s64 %d51,%d51,%d41; ld.param.u64 %d42,[%d53]; mul.lo.s64 %d43,%d39,%d42; add.s64 %d52,%d52,%d43;\n"
    "add.s32 %r13,%r13,-1; add.s64 %d53,%d53,-8; setp.eq.s32 %p4,%r13,0; mov.u64 %d50,%d54; @%p4 bra L3;\n"
    "L10: ld.param.u64 %d20,[%d53+-128]; or.b64 %d36,%d50,%d20; and.b64 %d37,%d36,-4294967296; setp.ne.s64 %p3,%d37,0;\n"
    "@%p3 bra L12; cvt.u32.u64 %r9,%d20; cvt.u32.u64 %r10,%d50; div.u32 %r11,%r10,%r9; cvt.u64.u32 %d54,%r11; bra.uni L13;\n"
    "L7: setp.eq.s32 %p6,%r5,4; @%p6 bra L15; setp.eq.s32 %p7,%r5,8; @%p7 bra L9; bra.uni L16;\n"
    "L9: ld.global.u64 %d46,[%d15]; st.global.u64 [%d14],%d46; bra.uni L17;\n"
    "L14: ld.global.u8 %rs2,[%d15]; st.global.u8 [%d14],%rs2; bra.uni L17;\n"
    "L15: ld.global.u32 %r12,[%d15]; st.global.u32 [%d14],%r12; bra.uni L17;\n"
    "L18: ret; }\n"; /* 2326 characters */
/* <<device-code kernels/comm.cu */

/* One module, and one kernel, for each way to compute; made when first used, for all devices. On a GPU a block of threads walks
   over 4 KiB of the result at a time, or over 256 numbers; both forms do any number of items. The inputs are one parameter of the
   CUDA form, an array. They stand in the list again behind all that it takes, for those who look for pointers there. */
enum { DS__COMM_SELECT, DS__COMM_INTEGERS, DS__COMM_DIVIDE, DS__COMM_REAL32, DS__COMM_REAL64, DS__COMM_HALVES, DS__COMM_HALVES_CUT,
       DS__COMM_COMPLEX, DS__COMM_PACK, DS__COMM_KERNELS };

static struct {
    pthread_mutex_t mutex;
    _Atomic uint64_t id[DS__COMM_KERNELS]; /* 0: not made yet */
} ds__comm_made = { .mutex = PTHREAD_MUTEX_INITIALIZER };

#define DS__COMM_P(kind, args, member) { DS_PARAM_##kind, offsetof(args, member), sizeof(((args *)0)->member) }
#define DS__COMM_R(kind, member) DS__COMM_P(kind, ds__comm_reduce_args, member)
#define DS__COMM_OPERANDS DS__COMM_R(WRITE, out), DS__COMM_R(VALUE, in), DS__COMM_R(VALUE, bytes), DS__COMM_R(VALUE, inputs)
#define DS__COMM_IN(i) DS__COMM_R(READ, in.at[i])
#define DS__COMM_POINTERS \
    DS__COMM_IN(0), DS__COMM_IN(1), DS__COMM_IN(2), DS__COMM_IN(3), DS__COMM_IN(4), DS__COMM_IN(5), DS__COMM_IN(6), DS__COMM_IN(7)

static const ds_param ds__comm_select_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, masks), DS__COMM_POINTERS };
static const ds_param ds__comm_integer_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, masks), DS__COMM_R(VALUE, op), DS__COMM_POINTERS };
static const ds_param ds__comm_real_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, op), DS__COMM_R(VALUE, divisor), DS__COMM_POINTERS };
static const ds_param ds__comm_half_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, op), DS__COMM_R(VALUE, divisor), DS__COMM_R(VALUE, kind),
                                                 DS__COMM_POINTERS };
static const ds_param ds__comm_cut_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, op), DS__COMM_R(VALUE, divisor), DS__COMM_R(VALUE, kind),
                                                DS__COMM_R(VALUE, wide), DS__COMM_POINTERS };
static const ds_param ds__comm_complex_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, kind), DS__COMM_POINTERS };
static const ds_param ds__comm_divide_params[] = {
    DS__COMM_P(READ_WRITE, ds__comm_divide_args, out), DS__COMM_P(VALUE, ds__comm_divide_args, bytes),
    DS__COMM_P(VALUE, ds__comm_divide_args, kind), DS__COMM_P(VALUE, ds__comm_divide_args, divisor)
};
static const ds_param ds__comm_pack_params[] = {
    DS__COMM_P(WRITE, ds__comm_pack_args, dst), DS__COMM_P(READ, ds__comm_pack_args, src), DS__COMM_P(VALUE, ds__comm_pack_args, dims),
    DS__COMM_P(VALUE, ds__comm_pack_args, elements), DS__COMM_P(VALUE, ds__comm_pack_args, ndim), DS__COMM_P(VALUE, ds__comm_pack_args, size)
};

static ds_kernel_desc ds__comm_desc(int which) {
#define DS__COMM_DESC(text, image_, cpu, args, list) \
    { .name = text, .cpu_fn = cpu, .args_size = sizeof(args), .params = list, .param_count = sizeof(list) / sizeof *(list), \
      .cuda = { .image = ptx_ds__comm_##image_, .entry = "ds__comm_" #image_, .block = 256, .items_per_block = 1, .blocks_per_multiprocessor = 8 } }
    static const ds_kernel_desc desc[DS__COMM_KERNELS] = {
        [DS__COMM_SELECT] = DS__COMM_DESC("select", select, ds__comm_reduce_items, ds__comm_reduce_args, ds__comm_select_params),
        [DS__COMM_INTEGERS] = DS__COMM_DESC("reduce", integers, ds__comm_reduce_items, ds__comm_reduce_args, ds__comm_integer_params),
        [DS__COMM_DIVIDE] = DS__COMM_DESC("divide", divide, ds__comm_divide_items, ds__comm_divide_args, ds__comm_divide_params),
        [DS__COMM_REAL32] = DS__COMM_DESC("reduce", f32, ds__comm_reduce_items, ds__comm_reduce_args, ds__comm_real_params),
        [DS__COMM_REAL64] = DS__COMM_DESC("reduce", f64, ds__comm_reduce_items, ds__comm_reduce_args, ds__comm_real_params),
        [DS__COMM_HALVES] = DS__COMM_DESC("reduce", halves, ds__comm_reduce_items, ds__comm_reduce_args, ds__comm_half_params),
        [DS__COMM_HALVES_CUT] = DS__COMM_DESC("reduce", halves_cut, ds__comm_reduce_items, ds__comm_reduce_args, ds__comm_cut_params),
        [DS__COMM_COMPLEX] = DS__COMM_DESC("reduce", complex, ds__comm_reduce_items, ds__comm_reduce_args, ds__comm_complex_params),
        [DS__COMM_PACK] = DS__COMM_DESC("pack", pack, ds__comm_pack_items, ds__comm_pack_args, ds__comm_pack_params),
    };
#undef DS__COMM_DESC
    return desc[which];
}

static ds_result ds__comm_kernel(int which, ds_kernel *out) {
    ds_result r = DS_OK;
    out->id = atomic_load_explicit(&ds__comm_made.id[which], memory_order_acquire);
    if (DS__LIKELY(out->id)) return DS_OK;
    pthread_mutex_lock(&ds__comm_made.mutex);
    out->id = atomic_load(&ds__comm_made.id[which]);
    if (!out->id) {
        ds_kernel_desc desc = ds__comm_desc(which);
        r = (ds_kernel_create)(&desc, out);
        if (r == DS_OK) atomic_store_explicit(&ds__comm_made.id[which], out->id, memory_order_release);
    }
    pthread_mutex_unlock(&ds__comm_made.mutex);
    return r;
}

/* When the library ends, and nothing is pending. */
static void ds__comm_kernels_end(void) {
    for (int i = 0; i < DS__COMM_KERNELS; i++) {
        uint64_t id = atomic_exchange(&ds__comm_made.id[i], 0);
        ds__kernel *k = id ? ds__pin(&ds__g.kernels, id) : NULL;
        if (!k) continue;
        ds__table_kill(&ds__g.kernels, k);
        ds__unpin(&ds__g.kernels, k);
    }
}

/* numbers: what the GPU's threads take one each of; 0: they take 16 bytes. */
static ds_result ds__comm_launch(int which, ds_stream stream, uint64_t bytes, uint64_t numbers, const void *args, size_t args_size) {
    ds_device device;
    ds_kernel kernel;
    ds_result r = (ds_stream_device)(stream, &device);
    if (r == DS_OK) r = ds__comm_kernel(which, &kernel);
    if (r < 0) return r;
    uint64_t items = device.type != DS_DEVICE_CUDA ? (bytes + DS__COMM_ITEM - 1) / DS__COMM_ITEM : numbers ? (numbers + 255) / 256 : (bytes + 15 + 4095) / 4096;
    return (ds_launch)(kernel, (size_t)items, args, args_size, stream);
}

/* The kind of a type's numbers, and how many an element has; for bool the operation changes too. -1: there is no such reduction. */
static int ds__comm_kind(ds_dtype dtype, uint32_t *op, uint32_t divisor, uint64_t *per_element) {
    int log = dtype.bits == 8 ? 0 : dtype.bits == 16 ? 1 : dtype.bits == 32 ? 2 : dtype.bits == 64 ? 3 : dtype.bits == 128 ? 4 : -1;
    *per_element = 1;
    if (dtype.lanes != 1 || log < 0) return -1;
    switch (dtype.code) {
    case DS_CODE_BOOL:
        if (log > 0 || divisor) return -1;
        if (*op == DS__COMM_SUM) *op = DS__COMM_MAX;
        if (*op == DS__COMM_PRODUCT) *op = DS__COMM_MIN;
        return DS__COMM_U8;
    case DS_CODE_UINT: return log < 4 ? DS__COMM_U8 + log : -1;
    case DS_CODE_INT: return log < 4 ? DS__COMM_I8 + log : -1;
    case DS_CODE_BFLOAT: return log == 1 ? DS__COMM_BF16 : -1;
    case DS_CODE_FLOAT: return log == 1 ? DS__COMM_F16 : log == 2 ? DS__COMM_F32 : log == 3 ? DS__COMM_F64 : -1;
    case DS_CODE_COMPLEX:
        if (*op == DS__COMM_PRODUCT) return log == 3 ? DS__COMM_C64 : log == 4 ? DS__COMM_C128 : -1;
        *per_element = 2;
        return *op != DS__COMM_SUM ? -1 : log == 2 ? DS__COMM_F16 : log == 3 ? DS__COMM_F32 : log == 4 ? DS__COMM_F64 : -1;
    default: return -1;
    }
}

static int ds__comm_which(uint32_t kind, uint32_t op, uint32_t wide) {
    if (op >= DS__COMM_MAX) return DS__COMM_SELECT;
    if (kind <= DS__COMM_I64) return DS__COMM_INTEGERS;
    if (kind <= DS__COMM_BF16) return wide ? DS__COMM_HALVES_CUT : DS__COMM_HALVES;
    return kind == DS__COMM_F32 ? DS__COMM_REAL32 : kind == DS__COMM_F64 ? DS__COMM_REAL64 : DS__COMM_COMPLEX;
}

/* 1: there is a reduction of this type. */
__attribute__((unused)) static int ds__comm_can_reduce(ds_reduce_op op, ds_dtype dtype) {
    uint32_t o = op == DS_REDUCE_AVERAGE ? DS__COMM_SUM : (uint32_t)op;
    uint64_t per;
    return ds__comm_kind(dtype, &o, op == DS_REDUCE_AVERAGE, &per) >= 0;
}

/* The first of the inputs after `first` that is `out`, or may overlap it. */
static int ds__comm_overlaps(const void *out, const void *const *in, size_t first, size_t inputs, uint64_t bytes) {
    for (size_t i = first; i < inputs; i++) {
        uintptr_t a = (uintptr_t)out, b = (uintptr_t)in[i];
        if (a < b ? b - a < bytes : a - b < bytes) return 1;
    }
    return 0;
}

/* out = in[0] op in[1] op ..., elements next to each other, in stream order on the stream's device; out may be one of the inputs. Numbers lie on
   multiples of their size. What there is no reduction of is DS_ERR_UNSUPPORTED. Every launch takes as many inputs as it can; what one gives to
   the next lies in `out`, or, when that is still to be read or too narrow, in memory of the allocator's. */
static ds_result ds__comm_reduce(ds_stream stream, ds_reduce_op op, ds_dtype dtype, void *out, const void *const *in, size_t inputs, size_t count) {
    ds__comm_reduce_args a;
    uint64_t per_element, bytes;
    uint32_t divisor = op == DS_REDUCE_AVERAGE ? (uint32_t)inputs : 0, o = divisor ? DS__COMM_SUM : (uint32_t)op;
    int kind = ds__comm_kind(dtype, &o, divisor, &per_element);
    void *partial = NULL;
    ds_result r = DS_OK;
    if (kind < 0) return ds__fail(DS_ERR_UNSUPPORTED, "there is no such reduction of this type");
    if (inputs == 0 || inputs > UINT32_MAX) return ds__fail(DS_ERR_INVALID_VALUE, "a reduction of %zu tensors", inputs);
    if (count == 0) return DS_OK;
    bytes = count * per_element * ds__comm_size[kind];
    int half = (kind == DS__COMM_F16 || kind == DS__COMM_BF16) && o <= DS__COMM_PRODUCT;
    if (inputs > DS__COMM_INPUTS && (half || ds__comm_overlaps(out, in, DS__COMM_INPUTS, inputs, bytes))) {
        r = (ds_mem_alloc)((size_t)(half ? 2 * bytes : bytes), stream, &partial);
        if (r < 0) return r;
    }
    memset(&a, 0, sizeof a);
    a.bytes = bytes;
    a.masks = ds__comm_masks_of((uint32_t)kind, o);
    a.op = o;
    a.kind = (uint32_t)kind;
    for (size_t done = 0; done < inputs && r == DS_OK; ) {
        a.inputs = 0;
        a.wide = 0;
        if (done) {
            a.in.at[a.inputs++] = a.out;
            if (half) a.wide = DS__COMM_WIDE_IN;
        }
        while (a.inputs < DS__COMM_INPUTS && done < inputs) a.in.at[a.inputs++] = in[done++];
        for (uint32_t i = a.inputs; i < DS__COMM_INPUTS; i++) a.in.at[i] = NULL;
        if (done < inputs && half) a.wide |= DS__COMM_WIDE_OUT;
        if (done == inputs && kind > DS__COMM_I64) a.divisor = divisor;
        a.out = done < inputs && partial ? partial : out;
        int which = ds__comm_which(a.kind, a.op, a.wide);
        r = ds__comm_launch(which, stream, bytes, which == DS__COMM_HALVES_CUT || which == DS__COMM_COMPLEX ? bytes / ds__comm_size[kind] : 0, &a, sizeof a);
    }
    if (r == DS_OK && divisor > 1 && kind <= DS__COMM_I64) {
        ds__comm_divide_args d = { out, bytes, (uint32_t)kind, divisor };
        r = ds__comm_launch(DS__COMM_DIVIDE, stream, bytes, bytes / ds__comm_size[kind], &d, sizeof d);
    }
    if (partial) {
        ds_result freed = (ds_mem_free)(partial);
        if (r == DS_OK) r = freed;
    }
    return r;
}

/* The dimensions of a copy, while they are made as few and wide as they can be. */
typedef struct ds__comm_shape {
    int ndim;
    uint64_t size[DS_TENSOR_MAX_DIMS + 1];
    int64_t dst[DS_TENSOR_MAX_DIMS + 1], src[DS_TENSOR_MAX_DIMS + 1]; /* in bytes */
} ds__comm_shape;

/* Those of one element go; the others are ordered so that the result is written forwards as far as can be, and those that lie without a gap
   one after the other, on both sides, become one. The innermost is the bytes of an element. */
static void ds__comm_merge(ds__comm_shape *s) {
    int n = 0;
    for (int i = 0; i < s->ndim; i++) {
        uint64_t size = s->size[i];
        int64_t dst = s->dst[i], src = s->src[i];
        int at = n;
        if (size == 1) continue;
        /* insertion, among those that are there; the innermost stays */
        if (i < s->ndim - 1)
            for (; at > 0 && (s->dst[at - 1] < 0 ? -s->dst[at - 1] : s->dst[at - 1]) < (dst < 0 ? -dst : dst); at--) {
                s->size[at] = s->size[at - 1];
                s->dst[at] = s->dst[at - 1];
                s->src[at] = s->src[at - 1];
            }
        s->size[at] = size;
        s->dst[at] = dst;
        s->src[at] = src;
        n++;
    }
    s->ndim = 0;
    for (int i = 0; i < n; i++) {
        int last = s->ndim - 1;
        if (last >= 0 && s->dst[last] == (int64_t)s->size[i] * s->dst[i] && s->src[last] == (int64_t)s->size[i] * s->src[i]) {
            s->size[last] *= s->size[i];
            s->dst[last] = s->dst[i];
            s->src[last] = s->src[i];
        } else {
            s->size[s->ndim] = s->size[i];
            s->dst[s->ndim] = s->dst[i];
            s->src[s->ndim++] = s->src[i];
        }
    }
}

/* Bytes that are copied at once: 16, or fewer where a run, a distance or an address is no multiple. Shortens the innermost dimension. */
static uint32_t ds__comm_widen(ds__comm_shape *s, const void *dst, const void *src) {
    int last = s->ndim - 1;
    uint64_t bits = (uintptr_t)dst | (uintptr_t)src | 16;
    uint32_t size = 1;
    if (last < 0 || s->dst[last] != 1 || s->src[last] != 1) return 1;
    bits |= s->size[last];
    for (int i = 0; i < last; i++) bits |= (uint64_t)s->dst[i] | (uint64_t)s->src[i];
    while (!(bits & size)) size *= 2;
    s->size[last] /= size;
    s->dst[last] = s->src[last] = (int64_t)size;
    if (s->size[last] == 1) s->ndim--;
    return size;
}

/* dst = src, of one shape, element by element: strides in elements, any, elements of any size; not overlapping. In stream order on the stream's
   device. A pointer that a graph puts in the place of one of these later must lie as far from a multiple of 16 as that. */
static ds_result ds__comm_pack(ds_stream stream, size_t size, void *dst, const int64_t *dst_strides, const void *src, const int64_t *src_strides,
                               const int64_t *shape, int ndim) {
    ds__comm_shape s;
    ds__comm_pack_args a;
    uint64_t launches = 1, elements = 1;
    ds_result r = DS_OK;
    s.ndim = ndim + 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0) return DS_OK;
        s.size[i] = (uint64_t)shape[i];
        s.dst[i] = dst_strides[i] * (int64_t)size;
        s.src[i] = src_strides[i] * (int64_t)size;
    }
    s.size[ndim] = size;
    s.dst[ndim] = s.src[ndim] = 1;
    ds__comm_merge(&s);
    memset(&a, 0, sizeof a);
    a.size = ds__comm_widen(&s, dst, src);
    int outer = s.ndim > DS__COMM_DIMS ? s.ndim - DS__COMM_DIMS : 0; /* a launch for each place of these */
    for (int i = 0; i < outer; i++) launches *= s.size[i];
    if (s.ndim == 0) { s.size[0] = 1; s.dst[0] = s.src[0] = 0; s.ndim = 1; }
    a.ndim = (uint32_t)(s.ndim - outer);
    for (int i = outer; i < s.ndim; i++) {
        a.dims.size[i - outer] = s.size[i];
        a.dims.dst[i - outer] = s.dst[i];
        a.dims.src[i - outer] = s.src[i];
        elements *= s.size[i];
    }
    a.elements = elements;
    for (uint64_t n = 0; n < launches && r == DS_OK; n++) {
        uint64_t rest = n;
        a.dst = dst;
        a.src = src;
        for (int i = outer; i-- > 0; rest /= s.size[i]) {
            a.dst += (int64_t)(rest % s.size[i]) * s.dst[i];
            a.src += (int64_t)(rest % s.size[i]) * s.src[i];
        }
        r = ds__comm_launch(DS__COMM_PACK, stream, elements * a.size, elements, &a, sizeof a);
    }
    return r;
}

/* ---- >>collectives ----------------------------------------------------------------------------------------------- */

/* Policy.
    1. A collective reads all descriptions into parties, checks them, makes its results and writes a list of steps. Until then nothing was put on a stream.
    2. A step is a copy, a strided copy or a reduction. It runs on one lane, a stream; what it reads and writes are regions, each of which belongs to a lane. Steps of a lane run
       in their order, and may come after steps of other lanes. Which way data takes, and who adds, stands in the list only.
    3. The list is put on the streams as: a lane waits for those whose regions it touches, as they are now; then the steps; then the first lane waits for all others, and they for it.
       So whatever belongs to a lane can be freed in that lane's order at once, temporary memory too, and the failure of one lane reaches all.
    4. A failure while that is done leaves out the rest of the steps, but not the waits at the end. */

#define DS__NO_INDEX UINT32_MAX
enum { DS__STEP_COPY, DS__STEP_ROWS, DS__STEP_PACK, DS__STEP_REDUCE };

typedef struct ds__clane {
    ds__stream *s;
    ds_stream stream;
    ds_device device;
    uint32_t pending;           /* what the next step comes after: the first of a list, or DS__NO_INDEX */
} ds__clane;
typedef struct ds__region {
    char *at;                   /* NULL: to be allocated */
    size_t bytes;
    uint32_t lane;
    int direct, temporary;      /* direct: kernels may use it, which is not pageable */
    ds_device device;
} ds__region;
typedef struct ds__spot { uint32_t region; ptrdiff_t offset; } ds__spot;
/* Distances in elements. */
typedef struct ds__strided { int ndim; size_t item; int64_t shape[8], dst[8], src[8]; } ds__strided;
typedef struct ds__cstep {
    uint8_t kind, op;
    ds_dtype dtype;
    uint32_t lane, after;       /* after: the first of the steps of other lanes that come before, or DS__NO_INDEX */
    int watched;                /* 1: it is one of those */
    ds_event done;
    ds__spot dst, src;
    size_t width, height, dst_pitch, src_pitch; /* copy: bytes; reduction: width elements */
    uint32_t strided, first, count; /* strided copy: its form; reduction: its inputs among the spots */
} ds__cstep;
typedef struct ds__link { uint32_t step, next; } ds__link;

typedef struct ds__work {
    ds__clane *lane;
    ds__region *region;
    ds__cstep *step;
    ds__link *link;
    ds__spot *spot;
    ds__strided *strided;
    size_t lanes, lane_room, regions, region_room, steps, step_room, links, link_room, spots, spot_room, strideds, strided_room;
    ds_result r;                /* the first failure */
} ds__work;

/* A tensor that takes part. */
typedef struct ds__party {
    ds__dims d;
    uint32_t lane, region;      /* lane: DS__NO_INDEX until it is known for memory of the host */
    unsigned flags;
} ds__party;

static const ds_comm_options ds__comm_usual;

#define DS__SPARE_EVENTS 16
typedef struct ds__spare { ds_event at[DS__SPARE_EVENTS]; int count; } ds__spare;
static ds__spare ds__spares[DS_BACKEND_COUNT][DS__MAX_DEVICES];

/* ---- lists ---- */

/* One more element of an array that grows; NULL: no memory. */
static void *ds__one_more(ds__work *w, void *array, size_t *count, size_t *room, size_t size) {
    void *at;
    memcpy(&at, array, sizeof at);
    if (*count == *room) {
        size_t n = *room ? 2 * *room : 8;
        void *fresh = n < UINT32_MAX ? ds__alloc(n * size) : NULL;
        if (!fresh) {
            if (w->r == DS_OK) w->r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the steps");
            return NULL;
        }
        if (at) memcpy(fresh, at, *count * size);
        ds__release(at);
        memcpy(array, &fresh, sizeof fresh);
        at = fresh;
        *room = n;
    }
    return (char *)at + (*count)++ * size;
}
#define DS__MORE(w, what) ds__one_more((w), &(w)->what, &(w)->what##s, &(w)->what##_room, sizeof *(w)->what)

static void ds__work_end(ds__work *w) {
    for (size_t i = 0; i < w->lanes; i++) ds__unref(&ds__g.streams, w->lane[i].s);
    ds__release(w->lane);
    ds__release(w->region);
    ds__release(w->step);
    ds__release(w->link);
    ds__release(w->spot);
    ds__release(w->strided);
}

/* The lane of a party: the stream that the options give, which must be on its device, else the device's current one. */
static ds_result ds__lane_find(ds__work *w, ds_stream given, const char *what, int64_t index, ds_device device, uint32_t *out) {
    *out = DS__NO_INDEX;
    if (!given.id && device.type == DS_DEVICE_HOST) return DS_OK;
    ds_result r = DS_OK;
    if (!given.id) {
        ds__thread *t = ds__thread_state();
        r = t ? ds__current(t, device, &given) : DS_ERR_OUT_OF_MEMORY;
        if (r < 0) return r;
    }
    for (uint32_t i = 0; i < w->lanes; i++)
        if (w->lane[i].stream.id == given.id && (device.type == DS_DEVICE_HOST || memcmp(&w->lane[i].device, &device, sizeof device) == 0)) {
            *out = i;
            return DS_OK;
        }
    ds__stream *s = ds__stream_pin(given);
    if (!s) return ds__also(DS_ERR_INVALID_HANDLE, " (the stream of the %s)", ds__nth(what, index));
    if (device.type != DS_DEVICE_HOST && (s->device.type != device.type || s->device.index != device.index))
        r = ds__fail(DS_ERR_DEVICE_MISMATCH, "the stream of the %s is on %s:%d, not on %s:%d", ds__nth(what, index), ds__type_name(s->device.type), s->device.index,
                     ds__type_name(device.type), device.index);
    else if (w->lanes && w->lane[0].device.type != s->device.type)
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the %s is on %s:%d, others are on %s:%d", ds__nth(what, index), ds__type_name(s->device.type), s->device.index,
                     ds__type_name(w->lane[0].device.type), w->lane[0].device.index);
    ds__clane *lane = r == DS_OK ? DS__MORE(w, lane) : NULL;
    if (lane) {
        *lane = (ds__clane){ s, given, s->device, DS__NO_INDEX };
        ds__ref(s); /* a thread has few pins */
    }
    ds__stream_unpin(s);
    if (!lane) return r < 0 ? r : w->r;
    *out = (uint32_t)w->lanes - 1;
    return DS_OK;
}
static ds_stream ds__given_stream(const ds_comm_options *o, int64_t index) {
    return index < 0 ? o->stream : (size_t)index < o->stream_count ? o->streams[index] : (ds_stream){ 0 };
}

/* What devstream knows of the memory must agree with the description. */
static ds_result ds__party_memory(const ds__dims *d, const char *what, int64_t index, int *direct) {
    ds_pointer_info info;
    *direct = d->device.type != DS_DEVICE_HOST;
    if (!d->count || !ds__known(d->first + d->low, &info)) return DS_OK;
    size_t offset = (size_t)((uintptr_t)(d->first + d->low) - (uintptr_t)info.base), span = (size_t)(d->high - d->low);
    DS__REQUIRE(span <= info.size - offset, "%s: %zu bytes at offset %zu leave an allocation of %zu bytes", ds__nth(what, index), span, offset, info.size);
    if (info.kind == DS_MEMORY_DEVICE && d->device.type != DS_DEVICE_HOST && (info.device.type != d->device.type || info.device.index != d->device.index))
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "%s says that it is on %s:%d, and its memory is on %s:%d", ds__nth(what, index), ds__type_name(d->device.type),
                        d->device.index, ds__type_name(info.device.type), info.device.index);
    if (info.kind == DS_MEMORY_DEVICE && d->device.type == DS_DEVICE_HOST && info.device.type != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "%s says that it is on the host, and its memory is on %s:%d", ds__nth(what, index), ds__type_name(info.device.type),
                        info.device.index);
    *direct = 1; /* known memory of the host is pinned */
    return DS_OK;
}

/* A party of what p->d says. */
static ds_result ds__party_enter(ds__work *w, const ds_comm_options *o, const char *what, int64_t index, int64_t stream_index, ds__party *p) {
    int direct;
    ds_result r = ds__party_memory(&p->d, what, index, &direct);
    if (r == DS_OK) r = ds__lane_find(w, ds__given_stream(o, stream_index), what, index, p->d.device, &p->lane);
    if (r < 0) return r;
    ds__region *g = DS__MORE(w, region);
    if (!g) return w->r;
    *g = (ds__region){ p->d.first, p->d.bytes, p->lane, direct, 0, p->d.device };
    p->region = (uint32_t)w->regions - 1;
    return DS_OK;
}
static ds_result ds__party_open(ds__work *w, const ds_comm_options *o, const ds_tensor *t, const char *what, int64_t index, int64_t stream_index, int written, ds__party *p) {
    ds_result r = ds__tensor_read(t, what, index, &p->d);
    if (r < 0) return r;
    (void)ds__tensor_share(t, NULL, &p->flags);
    DS__REQUIRE(!written || !(p->flags & DS_TENSOR_READ_ONLY), "%s is read-only", ds__nth(what, index));
    return ds__party_enter(w, o, what, index, stream_index, p);
}

/* All parties are known: memory of the host that nobody gave a stream goes with the first lane. */
static ds_result ds__work_settle(ds__work *w) {
    if (w->r < 0) return w->r;
    if (!w->lanes) return ds__fail(DS_ERR_INVALID_DEVICE, "none of the tensors is on a device, and no stream was given");
    for (size_t i = 0; i < w->regions; i++)
        if (w->region[i].lane == DS__NO_INDEX) w->region[i].lane = 0;
    return DS_OK;
}

static uint32_t ds__temporary(ds__work *w, uint32_t lane, size_t bytes) {
    ds__region *g = DS__MORE(w, region);
    if (!g) return 0;
    *g = (ds__region){ NULL, bytes, lane, 1, 1, w->lane[lane].device };
    return (uint32_t)w->regions - 1;
}

/* A step at the end of the list; DS__NO_INDEX: no memory. */
static uint32_t ds__step_add(ds__work *w, int kind, uint32_t lane, ds__spot dst, ds__spot src) {
    ds__cstep *s = DS__MORE(w, step);
    if (!s) return DS__NO_INDEX;
    memset(s, 0, sizeof *s);
    s->kind = (uint8_t)kind;
    s->lane = lane;
    s->after = w->lane[lane].pending;
    w->lane[lane].pending = DS__NO_INDEX;
    s->dst = dst;
    s->src = src;
    return (uint32_t)w->steps - 1;
}
/* The next step that the lane is given, and so all later ones, comes after the step. */
static void ds__come_after(ds__work *w, uint32_t lane, uint32_t step) {
    if (step == DS__NO_INDEX || w->r < 0 || w->step[step].lane == lane) return;
    ds__link *n = DS__MORE(w, link);
    if (!n) return;
    *n = (ds__link){ step, w->lane[lane].pending };
    w->lane[lane].pending = (uint32_t)w->links - 1;
    w->step[step].watched = 1;
}

/* Kernels of a lane can use the region. */
static int ds__reaches(ds__work *w, uint32_t lane, uint32_t region) {
    const ds__region *g = &w->region[region];
    const ds__clane *l = &w->lane[lane];
    int reach = 0;
    if (g->device.type == DS_DEVICE_HOST) return g->direct;
    if (g->device.index == l->device.index) return 1;
    ds_result r = l->s->driver->device_peer(l->device.index, g->device.index, &reach);
    if (r < 0 && w->r == DS_OK) w->r = r;
    return r == DS_OK && reach;
}

/* ---- moving tensors ---- */

/* A copy between strides in bytes: `width` bytes that lie together on both sides, ndim times. */
typedef struct ds__moves {
    ds__spot dst, src;
    uint32_t lane, last;        /* last: the last step that was made */
    size_t item, width;
    int ndim, kernel;           /* kernel: 1: it may be done by one */
    int64_t shape[DS_TENSOR_MAX_DIMS], to[DS_TENSOR_MAX_DIMS], from[DS_TENSOR_MAX_DIMS];
} ds__moves;

/* Sorted by the distances of the destination, and as few dimensions as there can be. */
static void ds__moves_plan(ds__moves *m, int ndim, const int64_t *shape, const int64_t *to, const int64_t *from, size_t item) {
    int n = 0;
    m->item = m->width = item;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 1) continue;
        int at = n++;
        int64_t t = to[d] * (int64_t)item, f = from[d] * (int64_t)item;
        for (; at > 0 && llabs(m->to[at - 1]) < llabs(t); at--) { m->shape[at] = m->shape[at - 1]; m->to[at] = m->to[at - 1]; m->from[at] = m->from[at - 1]; }
        m->shape[at] = shape[d];
        m->to[at] = t;
        m->from[at] = f;
    }
    int kept = 0; /* what is one with the dimension inside of it is merged */
    for (int d = 0; d < n; d++) {
        if (kept && m->to[kept - 1] == m->to[d] * m->shape[d] && m->from[kept - 1] == m->from[d] * m->shape[d]) {
            m->shape[kept - 1] *= m->shape[d];
        } else {
            m->shape[kept] = m->shape[d];
            kept++;
        }
        m->to[kept - 1] = m->to[d];
        m->from[kept - 1] = m->from[d];
    }
    if (kept && m->to[kept - 1] == (int64_t)item && m->from[kept - 1] == (int64_t)item) m->width = item * (size_t)m->shape[--kept];
    m->ndim = kept;
}
/* 1: one copy does it, of rows at most. */
static int ds__moves_simple(const ds__moves *m) {
    return m->ndim == 0 || (m->ndim == 1 && m->to[0] >= (int64_t)m->width && m->from[0] >= (int64_t)m->width);
}

/* Dimensions from `dim` on, with the others at fixed indices. */
static void ds__moves_make(ds__work *w, ds__moves *m, int dim, ptrdiff_t to, ptrdiff_t from) {
    int n = m->ndim - dim, rows = n == 1 && m->to[dim] >= (int64_t)m->width && m->from[dim] >= (int64_t)m->width;
    ds__spot dst = { m->dst.region, m->dst.offset + to }, src = { m->src.region, m->src.offset + from };
    if (w->r < 0) return;
    if (n == 0 || (rows && (!m->kernel || m->width >= 256))) {
        uint32_t i = m->last = ds__step_add(w, n ? DS__STEP_ROWS : DS__STEP_COPY, m->lane, dst, src);
        if (i == DS__NO_INDEX) return;
        w->step[i].width = m->width;
        w->step[i].height = n ? (size_t)m->shape[dim] : 1;
        w->step[i].dst_pitch = n ? (size_t)m->to[dim] : m->width;
        w->step[i].src_pitch = n ? (size_t)m->from[dim] : m->width;
        return;
    }
    int inner = m->width > m->item;
    int64_t item = (int64_t)m->item;
    if (m->kernel && n + inner <= 8) {
        ds__strided *k = DS__MORE(w, strided);
        uint32_t i = m->last = k ? ds__step_add(w, DS__STEP_PACK, m->lane, dst, src) : DS__NO_INDEX;
        if (i == DS__NO_INDEX) return;
        w->step[i].strided = (uint32_t)w->strideds - 1;
        k->ndim = n + inner;
        k->item = m->item;
        for (int d = 0; d < n; d++) { k->shape[d] = m->shape[dim + d]; k->dst[d] = m->to[dim + d] / item; k->src[d] = m->from[dim + d] / item; }
        if (inner) { k->shape[n] = (int64_t)m->width / item; k->dst[n] = k->src[n] = 1; }
        return;
    }
    for (int64_t i = 0; i < m->shape[dim] && w->r == DS_OK; i++)
        ds__moves_make(w, m, dim + 1, to + (ptrdiff_t)(i * m->to[dim]), from + (ptrdiff_t)(i * m->from[dim]));
}

/* Copies a tensor of this shape from one place with its strides to another, on the lane, which is that of one of the two. The last step, or DS__NO_INDEX. */
static uint32_t ds__move(ds__work *w, uint32_t lane, ds__spot dst, const int64_t *to, ds__spot src, const int64_t *from, int ndim, const int64_t *shape, size_t item) {
    ds__moves m;
    int64_t row[DS_TENSOR_MAX_DIMS], count = ds__count_of(ndim, shape);
    if (w->r < 0 || !count) return DS__NO_INDEX;
    ds__moves_plan(&m, ndim, shape, to, from, item);
    m.dst = dst;
    m.src = src;
    m.lane = lane;
    m.last = DS__NO_INDEX;
    m.kernel = ds__reaches(w, lane, dst.region) && ds__reaches(w, lane, src.region);
    const ds__region *d = &w->region[dst.region], *s = &w->region[src.region];
    uint32_t at_dst = d->lane, at_src = s->lane;
    if (ds__moves_simple(&m) || m.kernel || d->device.type == DS_DEVICE_HOST || s->device.type == DS_DEVICE_HOST) {
        ds__moves_make(w, &m, 0, 0, 0);
        return m.last;
    }
    /* Devices that cannot reach each other: packed here, copied, unpacked there. */
    size_t bytes = (size_t)count * item;
    ds__row_major(ndim, shape, row);
    ds__moves_plan(&m, ndim, shape, row, from, item);
    if (m.ndim) {
        ds__spot packed = { ds__temporary(w, at_src, bytes), 0 };
        ds__come_after(w, lane, ds__move(w, at_src, packed, row, src, from, ndim, shape, item));
        src = packed;
    }
    ds__moves_plan(&m, ndim, shape, to, row, item);
    ds__spot there = m.ndim ? (ds__spot){ ds__temporary(w, at_dst, bytes), 0 } : dst;
    uint32_t i = ds__step_add(w, DS__STEP_COPY, lane, there, src);
    if (i == DS__NO_INDEX) return i;
    w->step[i].width = w->step[i].dst_pitch = w->step[i].src_pitch = bytes;
    w->step[i].height = 1;
    if (!m.ndim) return i;
    ds__come_after(w, at_dst, i);
    return ds__move(w, at_dst, dst, to, there, row, ndim, shape, item);
}
static ds__spot ds__spot_of(const ds__party *p) { return (ds__spot){ p->region, 0 }; }
/* One party's tensor to another party's, which has the same shape. */
static uint32_t ds__move_party(ds__work *w, uint32_t lane, const ds__party *to, const ds__party *from) {
    return ds__move(w, lane, ds__spot_of(to), to->d.strides, ds__spot_of(from), from->d.strides, to->d.ndim, to->d.shape, to->d.item);
}
static uint32_t ds__lane_of(const ds__work *w, const ds__party *p) { return w->region[p->region].lane; }

/* ---- submission ---- */

static char *ds__spot_at(const ds__work *w, ds__spot s) { return w->region[s.region].at + s.offset; }

static ds_result ds__step_run(const ds__work *w, const ds__cstep *s, const void **in) {
    const ds__clane *l = &w->lane[s->lane];
    char *dst = ds__spot_at(w, s->dst);
    ds_result r = DS_OK;
    switch (s->kind) {
    case DS__STEP_COPY:
        if (ds__copy_plain(l->s, dst, ds__spot_at(w, s->src), s->width, &r)) return r;
        return ds__copy_between(l->s, dst, s->width, ds__spot_at(w, s->src), s->width, s->width, 1, NULL, NULL, 0);
    case DS__STEP_ROWS:
        return ds__copy_between(l->s, dst, s->dst_pitch, ds__spot_at(w, s->src), s->src_pitch, s->width, s->height, NULL, NULL, 0);
    case DS__STEP_PACK: {
        const ds__strided *k = &w->strided[s->strided];
        DS__KEEPING(r, ds__comm_pack(l->stream, k->item, dst, k->dst, ds__spot_at(w, s->src), k->src, k->shape, k->ndim));
        return r;
    }
    default:
        for (uint32_t i = 0; i < s->count; i++) in[i] = ds__spot_at(w, w->spot[s->first + i]);
        DS__KEEPING(r, ds__comm_reduce(l->stream, (ds_reduce_op)s->op, s->dtype, dst, in, s->count, s->width));
        return r;
    }
}

static ds_result ds__join(const ds__work *w) {
    ds_result r = DS_OK;
    for (size_t i = 1; i < w->lanes; i++) {
        ds_result one = ds__wait_stream(w->lane[0].stream, w->lane[i].stream);
        if (r == DS_OK) r = one;
    }
    for (size_t i = 1; i < w->lanes; i++) {
        ds_result one = ds__wait_stream(w->lane[i].stream, w->lane[0].stream);
        if (r == DS_OK) r = one;
    }
    return r;
}

/* While a stream captures, the others come into its capture before anything is allocated on them: the graph has that memory. */
static ds_result ds__fork_capture(const ds__work *w) {
    size_t n = w->lanes;
    ds_result r = DS_OK;
    ds_capture_info info[2];
    for (size_t i = 0; i < w->lanes && n == w->lanes && r == DS_OK; i++) {
        memset(&info[0], 0, sizeof info[0]);
        r = w->lane[i].s->driver->capture_query(w->lane[i].s->native, &info[0]);
        if (info[0].status == DS_CAPTURE_ACTIVE) n = i;
    }
    for (size_t i = 0; n < w->lanes && i < w->lanes && r == DS_OK; i++) {
        memset(&info[1], 0, sizeof info[1]);
        r = w->lane[i].s->driver->capture_query(w->lane[i].s->native, &info[1]);
        if (r == DS_OK && info[1].status == DS_CAPTURE_NONE) r = ds__wait_stream(w->lane[i].stream, w->lane[n].stream);
    }
    return r;
}

/* Lanes wait for those whose regions they touch. */
static ds_result ds__begin_lanes(const ds__work *w) {
    ds_result r = DS_OK;
    size_t n = w->lanes;
    unsigned char *touches = ds__alloc(n * n);
    if (!touches) return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the steps");
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        touches[s->lane * n + w->region[s->dst.region].lane] = 1;
        if (s->kind != DS__STEP_REDUCE) touches[s->lane * n + w->region[s->src.region].lane] = 1;
        for (uint32_t k = 0; k < s->count; k++) touches[s->lane * n + w->region[w->spot[s->first + k].region].lane] = 1;
    }
    for (size_t i = 0; i < n * n && r == DS_OK; i++)
        if (touches[i] && i / n != i % n) r = ds__wait_stream(w->lane[i / n].stream, w->lane[i % n].stream);
    ds__release(touches);
    return r;
}

/* Pinned memory of the allocator is not given away before the collective is done. */
static ds_result ds__note_pinned(const ds__work *w) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < w->regions && r == DS_OK; i++) {
        const ds__region *g = &w->region[i];
        if (g->device.type == DS_DEVICE_HOST && g->direct && g->bytes && ds__pinned_known(g->at)) DS__KEEPING(r, (ds_pinned_record_use)(g->at, w->lane[g->lane].stream));
    }
    return r;
}

/* Events stay with their device, and are used again: a wait keeps the record that it found. */
static ds_result ds__event_take(ds_device device, ds_event *out) {
    ds__spare *e = &ds__spares[device.type == DS_DEVICE_CUDA ? 0 : 1][device.index];
    ds__lock_take(&ds__c.lock);
    *out = e->count ? e->at[--e->count] : (ds_event){ 0 };
    ds__lock_give(&ds__c.lock);
    return out->id ? DS_OK : ds__event_new(0, NULL, out);
}
static void ds__event_give(ds_device device, ds_event event) {
    ds__spare *e = &ds__spares[device.type == DS_DEVICE_CUDA ? 0 : 1][device.index];
    if (!event.id) return;
    ds__lock_take(&ds__c.lock);
    int kept = e->count < DS__SPARE_EVENTS;
    if (kept) e->at[e->count++] = event;
    ds__lock_give(&ds__c.lock);
    if (!kept) ds__event_drop(event);
}
static void ds__events_end(void) {
    for (size_t b = 0; b < DS_BACKEND_COUNT; b++)
        for (size_t i = 0; i < DS__MAX_DEVICES; i++)
            while (ds__spares[b][i].count) ds__event_drop(ds__spares[b][i].at[--ds__spares[b][i].count]);
}

static ds_result ds__work_run(ds__work *w) {
    size_t most = 1, begun = 0;
    ds_result r = w->r;
    if (r < 0 || !w->steps) return r;
    for (size_t i = 0; i < w->steps; i++)
        if (w->step[i].count > most) most = w->step[i].count;
    const void **in = ds__alloc(most * sizeof *in);
    if (!in) return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the steps");
    if (DS__UNLIKELY(ds__captures_open())) r = ds__fork_capture(w);
    for (size_t i = 0; i < w->regions && r == DS_OK; i++) {
        if (!w->region[i].temporary) continue;
        void *ptr = NULL;
        DS__KEEPING(r, (ds_mem_alloc)(w->region[i].bytes, w->lane[w->region[i].lane].stream, &ptr));
        w->region[i].at = ptr;
    }
    if (r == DS_OK) {
        begun = w->lanes > 1;
        r = begun ? ds__begin_lanes(w) : DS_OK;
    }
    for (size_t i = 0; i < w->steps && r == DS_OK; i++) {
        ds__cstep *s = &w->step[i];
        for (uint32_t k = s->after; k != DS__NO_INDEX && r == DS_OK; k = w->link[k].next)
            r = ds__wait_event(w->lane[s->lane].stream, w->step[w->link[k].step].done, DS__OP_WAIT);
        if (r == DS_OK) r = ds__step_run(w, s, in);
        if (r == DS_OK && s->watched) r = ds__event_take(w->lane[s->lane].device, &s->done);
        if (r == DS_OK && s->watched) r = ds__event_record(s->done, w->lane[s->lane].stream, DS__OP_RECORD);
    }
    /* What follows is done in any case; the first failure is the one that is told. */
    ds__tls.mute += r < 0;
    ds_result end = begun ? ds__join(w) : DS_OK, noted = ds__note_pinned(w);
    for (size_t i = 0; i < w->regions; i++)
        if (w->region[i].temporary && w->region[i].at) DS__KEEPING(noted, (ds_mem_free)(w->region[i].at));
    ds__tls.mute -= r < 0;
    for (size_t i = 0; i < w->steps; i++) ds__event_give(w->lane[w->step[i].lane].device, w->step[i].done);
    ds__release(in);
    return r < 0 ? r : end < 0 ? end : noted;
}

/* ---- results and checks ---- */

/* A dimension of a party's tensor, or the sentence. */
static ds_result ds__comm_dim(int *dim, int ndim) { return (*dim = ds__tensor_dim(*dim, ndim)) < 0 ? DS_ERR_INVALID_VALUE : DS_OK; }

static ds_result ds__same_dtype(const ds__party *p, const char *what, int64_t index, const ds__party *like) {
    char one[DS_DTYPE_NAME_SIZE], other[DS_DTYPE_NAME_SIZE];
    DS__REQUIRE(ds_dtype_equal(p->d.dtype, like->d.dtype), "%s has elements of type %s, not %s", ds__nth(what, index), ds__dtype_name(p->d.dtype, one),
                ds__dtype_name(like->d.dtype, other));
    return DS_OK;
}
/* `except`: a dimension that may differ, or -1. */
static ds_result ds__same_shape(const ds__party *p, const char *what, int64_t index, const ds__party *like, int except) {
    char one[DS__SHAPE_TEXT], other[DS__SHAPE_TEXT];
    int same = p->d.ndim == like->d.ndim;
    for (int d = 0; same && d < p->d.ndim; d++) same = d == except || p->d.shape[d] == like->d.shape[d];
    if (same) return DS_OK;
    ds__shape_text(p->d.ndim, p->d.shape, one, sizeof one);
    ds__shape_text(like->d.ndim, like->d.shape, other, sizeof other);
    return except < 0 ? ds__fail(DS_ERR_INVALID_VALUE, "%s has the shape %s, not %s", ds__nth(what, index), one, other)
                      : ds__fail(DS_ERR_INVALID_VALUE, "%s has the shape %s, which differs from %s in more than dimension %d", ds__nth(what, index), one, other, except);
}
static int ds__same_strides(const ds__dims *d, const int64_t *strides) {
    for (int i = 0; i < d->ndim; i++)
        if (d->shape[i] != 1 && d->strides[i] != strides[i]) return 0;
    return 1;
}
/* 1: the same elements in the same places. */
static int ds__same_place(const ds__party *a, const ds__party *b) {
    return a->d.first == b->d.first && a->d.device.type == b->d.device.type && ds__same_strides(&a->d, b->d.strides);
}
/* Elements without gaps, which share bytes. */
static int ds__collides(const ds__dims *a, const ds__dims *b) {
    return a->count && b->count && ds__is_dense(a) && ds__is_dense(b) && (uintptr_t)a->first < (uintptr_t)b->first + b->bytes &&
           (uintptr_t)b->first < (uintptr_t)a->first + a->bytes;
}
static ds_result ds__apart(const ds__party *a, const char *what, int64_t index, const ds__party *b, const char *other, int64_t other_index) {
    char name[100];
    if (!ds__collides(&a->d, &b->d)) return DS_OK;
    snprintf(name, sizeof name, "%s", ds__nth(other, other_index));
    return ds__fail(DS_ERR_INVALID_VALUE, "%s shares memory with the %s", ds__nth(what, index), name);
}
/* Parties that are written share nothing with each other. */
static ds_result ds__all_apart(const ds__party *p, const char *what, size_t count) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i && r == DS_OK; k++) r = ds__apart(&p[i], what, (int64_t)i, &p[k], what, (int64_t)k);
    return r;
}

/* A new tensor like `like`, on a device, which takes part. */
static ds_result ds__result_make(ds__work *w, const ds_comm_options *o, const ds__dims *like, ds_device device, int64_t index, int64_t stream_index, ds__party *p, ds_tensor **out) {
    ds_result r = ds__lane_find(w, ds__given_stream(o, stream_index), "result", index, device, &p->lane);
    if (r == DS_OK) r = ds__tensor_like(like, device.type == DS_DEVICE_HOST ? (ds_stream){ 0 } : w->lane[p->lane].stream, out);
    return r < 0 ? r : ds__party_open(w, o, *out, "result", index, stream_index, 0, p);
}
static void ds__results_drop(ds_tensor **out, size_t count) {
    ds__tls.mute++;
    for (size_t i = 0; i < count; i++) {
        if (out[i]) {
            ds_result r;
            DS__KEEPING(r, (ds_tensor_free)(out[i]));
            (void)r;
        }
        out[i] = NULL;
    }
    ds__tls.mute--;
}
static ds_result ds__comm_device(ds_device device, const char *what, int64_t index, ds_device *out) {
    if (device.type == DS_DEVICE_HOST) { *out = (ds_device){ DS_DEVICE_HOST, 0 }; return DS_OK; }
    ds_result r = ds__resolve(device, out);
    return r < 0 ? ds__also(r, " (%s)", ds__nth(what, index)) : r;
}
static int ds__same_device(ds_device a, ds_device b) { return a.type == b.type && a.index == b.index; }

static ds_result ds__comm_options_check(const ds_comm_options **o) {
    if (!*o) *o = &ds__comm_usual;
    DS__REQUIRE(!((*o)->flags & ~(unsigned)DS_COMM_ALIAS), "unknown flags %#x", (*o)->flags);
    DS__REQUIRE((*o)->streams || !(*o)->stream_count, "streams is NULL, and stream_count is %zu", (*o)->stream_count);
    return DS_OK;
}
/* Parties for so many tensors. */
static ds__party *ds__parties(size_t count) {
    ds__party *p = count < SIZE_MAX / sizeof *p ? ds__alloc((count + !count) * sizeof *p) : NULL;
    if (!p) ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu tensors", count);
    return p;
}
#define DS__COMM_BEGIN(name) \
    DS__ENTER(name); \
    DS__COMM_READY()
#define DS__COMM_READY() \
    do { \
        ds_result ds__r = ds__comm_setup(); \
        if (ds__r == DS_OK) ds__r = ds__comm_options_check(&options); \
        if (ds__r < 0) return ds__r; \
    } while (0)

/* ---- broadcast ---- */

/* The source as every result wants it: without gaps. From then on it is copied as it lies; more than one result, and it is packed once. */
static void ds__broadcast_steps(ds__work *w, const ds__party *from, const ds__party *to, size_t count) {
    int64_t dense[DS_TENSOR_MAX_DIMS];
    ds__spot src = ds__spot_of(from);
    const int64_t *strides = from->d.strides;
    uint32_t lane = ds__lane_of(w, from), packed = DS__NO_INDEX;
    if (count > 1 && !ds__is_dense(&from->d) && w->region[from->region].device.type != DS_DEVICE_HOST) {
        ds__dense_like(&from->d, dense);
        src = (ds__spot){ ds__temporary(w, lane, from->d.bytes), 0 };
        packed = ds__move(w, lane, src, dense, ds__spot_of(from), strides, from->d.ndim, from->d.shape, from->d.item);
        strides = dense;
    }
    for (size_t i = 0; i < count && w->r == DS_OK; i++) {
        uint32_t mine = ds__lane_of(w, &to[i]);
        if (ds__same_place(from, &to[i])) continue;
        ds__come_after(w, mine, packed);
        ds__move(w, mine, ds__spot_of(&to[i]), to[i].d.strides, src, strides, to[i].d.ndim, to[i].d.shape, to[i].d.item);
    }
}

DSDEF ds_result (ds_comm_broadcast)(const ds_tensor *tensor, const ds_device *devices, size_t count, const ds_comm_options *options, ds_tensor **out) {
    ds__work w = { 0 };
    ds__party from;
    if (out) memset(out, 0, count * sizeof *out);
    DS__COMM_BEGIN("ds_comm_broadcast");
    DS__REQUIRE(!count || (devices && out), "%s is NULL", devices ? "out" : "devices");
    ds__party *to = ds__parties(count);
    ds_result r = to ? ds__party_open(&w, options, tensor, "the tensor", -1, -1, 0, &from) : DS_ERR_OUT_OF_MEMORY;
    size_t made = 0;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds_device device = { 0, 0 };
        r = ds__comm_device(devices[i], "the device", (int64_t)i, &device);
        if (r == DS_OK && options->flags & DS_COMM_ALIAS && ds__same_device(device, from.d.device)) r = ds__tensor_show(tensor, &from.d, &out[i]);
        else if (r == DS_OK) r = ds__result_make(&w, options, &from.d, device, (int64_t)i, (int64_t)i, &to[made++], &out[i]);
    }
    if (r == DS_OK && made) r = ds__work_settle(&w);
    if (r == DS_OK && made) {
        ds__broadcast_steps(&w, &from, to, made);
        r = ds__work_run(&w);
    }
    if (r < 0) ds__results_drop(out, count);
    ds__work_end(&w);
    ds__release(to);
    return r;
}

DSDEF ds_result (ds_comm_broadcast_into)(const ds_tensor *tensor, const ds_tensor *const *outs, size_t count, const ds_comm_options *options) {
    ds__work w = { 0 };
    ds__party from;
    DS__COMM_BEGIN("ds_comm_broadcast_into");
    DS__REQUIRE(!count || outs, "outs is NULL");
    ds__party *to = ds__parties(count);
    ds_result r = to ? ds__party_open(&w, options, tensor, "the tensor", -1, -1, 0, &from) : DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__party_open(&w, options, outs[i], "output tensor", (int64_t)i, (int64_t)i, 1, &to[i]);
        if (r == DS_OK) r = ds__same_dtype(&to[i], "output tensor", (int64_t)i, &from);
        if (r == DS_OK) r = ds__same_shape(&to[i], "output tensor", (int64_t)i, &from, -1);
        if (r == DS_OK && !ds__same_place(&from, &to[i])) r = ds__apart(&to[i], "output tensor", (int64_t)i, &from, "tensor that is sent", -1);
    }
    if (r == DS_OK) r = ds__all_apart(to, "output tensor", count);
    if (r == DS_OK && count) r = ds__work_settle(&w);
    if (r == DS_OK && count) {
        ds__broadcast_steps(&w, &from, to, count);
        r = ds__work_run(&w);
    }
    ds__work_end(&w);
    ds__release(to);
    return r;
}

/* ---- scatter and gather ---- */

/* A part of a party along a dimension, which moves on by its size. */
static ds__party ds__part(const ds__party *p, int dim, int64_t *at, int64_t size) {
    ds__party part = *p;
    ds__dims_move(&part.d, dim, *at);
    part.d.shape[dim] = size;
    ds__dims_recount(&part.d);
    part.d.bytes = (size_t)part.d.count * part.d.item;
    *at += size;
    return part;
}
static ds__spot ds__spot_in(const ds__work *w, const ds__party *part) {
    return (ds__spot){ part->region, part->d.count ? part->d.first - w->region[part->region].at : 0 };
}

/* torch.chunk: how many pieces, and how long they are. */
static size_t ds__chunks(int64_t size, size_t count, int64_t *out_length) {
    int64_t n = (int64_t)count;
    *out_length = size / n + (size % n != 0);
    return size ? (size_t)(size / *out_length + (size % *out_length != 0)) : count;
}
static ds_result ds__chunk_sizes_check(const int64_t *sizes, size_t count, int64_t size, int dim) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        DS__REQUIRE(sizes[i] >= 0, "chunk_sizes[%zu] is %lld", i, (long long)sizes[i]);
        DS__REQUIRE(sizes[i] <= size - sum, "chunk_sizes add up to more than %lld, the size of dimension %d: at index %zu", (long long)size, dim, i);
        sum += sizes[i];
    }
    DS__REQUIRE(sum == size, "chunk_sizes add up to %lld, and the size of dimension %d is %lld", (long long)sum, dim, (long long)size);
    return DS_OK;
}

DSDEF ds_result (ds_comm_scatter)(const ds_tensor *tensor, const ds_device *devices, size_t count, const int64_t *chunk_sizes, int dim, const ds_comm_options *options,
                                  ds_tensor **out, size_t *out_count) {
    ds__work w = { 0 };
    ds__party from;
    int64_t at = 0, length = 0;
    if (out) memset(out, 0, count * sizeof *out);
    if (out_count) *out_count = 0;
    DS__COMM_BEGIN("ds_comm_scatter");
    DS__REQUIRE(count, "there is no device to scatter to");
    DS__REQUIRE(devices && out, "%s is NULL", devices ? "out" : "devices");
    DS__REQUIRE(count <= INT64_MAX, "%zu devices", count);
    ds__party *to = ds__parties(2 * count), *part = to + count; /* results, and the pieces they come from */
    if (!to) return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__party_open(&w, options, tensor, "the tensor", -1, -1, 0, &from);
    if (r == DS_OK) r = ds__comm_dim(&dim, from.d.ndim);
    if (r == DS_OK && chunk_sizes) r = ds__chunk_sizes_check(chunk_sizes, count, from.d.shape[dim], dim);
    size_t pieces = r < 0 ? 0 : chunk_sizes ? count : ds__chunks(from.d.shape[dim], count, &length), made = 0;
    for (size_t i = 0; i < pieces && r == DS_OK; i++) {
        ds_device device = { 0, 0 };
        int64_t rest = from.d.shape[dim] - at;
        part[made] = ds__part(&from, dim, &at, chunk_sizes ? chunk_sizes[i] : length < rest ? length : rest);
        r = ds__comm_device(devices[i], "the device", (int64_t)i, &device);
        if (r == DS_OK && options->flags & DS_COMM_ALIAS && ds__same_device(device, from.d.device)) r = ds__tensor_show(tensor, &part[made].d, &out[i]);
        else if (r == DS_OK) {
            r = ds__result_make(&w, options, &part[made].d, device, (int64_t)i, (int64_t)i, &to[made], &out[i]);
            made++;
        }
    }
    if (r == DS_OK && made) r = ds__work_settle(&w);
    for (size_t i = 0; i < made && r == DS_OK; i++) {
        ds__move(&w, ds__lane_of(&w, &to[i]), ds__spot_of(&to[i]), to[i].d.strides, ds__spot_in(&w, &part[i]), from.d.strides, from.d.ndim, to[i].d.shape, to[i].d.item);
        r = w.r;
    }
    if (r == DS_OK) r = ds__work_run(&w);
    if (r < 0) ds__results_drop(out, count);
    else if (out_count) *out_count = pieces;
    ds__work_end(&w);
    ds__release(to);
    return r;
}

/* Tensors that together have the size of `whole` along a dimension. */
static ds_result ds__parts_check(const ds__party *p, size_t count, const char *what, const ds__party *whole, int dim) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        ds_result r = ds__same_dtype(&p[i], what, (int64_t)i, whole);
        if (r == DS_OK) r = ds__same_shape(&p[i], what, (int64_t)i, whole, dim);
        if (r < 0) return r;
        DS__REQUIRE(!__builtin_add_overflow(sum, p[i].d.shape[dim], &sum), "the sizes in dimension %d are too large", dim);
    }
    DS__REQUIRE(sum == whole->d.shape[dim], "the sizes in dimension %d add up to %lld, not to %lld", dim, (long long)sum, (long long)whole->d.shape[dim]);
    return DS_OK;
}

DSDEF ds_result (ds_comm_scatter_into)(const ds_tensor *tensor, const ds_tensor *const *outs, size_t count, int dim, const ds_comm_options *options) {
    ds__work w = { 0 };
    ds__party from, part;
    int64_t at = 0;
    DS__COMM_BEGIN("ds_comm_scatter_into");
    DS__REQUIRE(count && outs, "there is no output tensor to scatter to");
    ds__party *to = ds__parties(count);
    ds_result r = to ? ds__party_open(&w, options, tensor, "the tensor", -1, -1, 0, &from) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK) r = ds__comm_dim(&dim, from.d.ndim);
    for (size_t i = 0; i < count && r == DS_OK; i++) r = ds__party_open(&w, options, outs[i], "output tensor", (int64_t)i, (int64_t)i, 1, &to[i]);
    if (r == DS_OK) r = ds__parts_check(to, count, "output tensor", &from, dim);
    if (r == DS_OK) r = ds__all_apart(to, "output tensor", count);
    if (r == DS_OK) r = ds__work_settle(&w);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        part = ds__part(&from, dim, &at, to[i].d.shape[dim]);
        if (ds__same_place(&part, &to[i])) continue;
        if ((r = ds__apart(&to[i], "output tensor", (int64_t)i, &from, "tensor that is sent", -1)) < 0) break;
        ds__move(&w, ds__lane_of(&w, &to[i]), ds__spot_of(&to[i]), to[i].d.strides, ds__spot_in(&w, &part), from.d.strides, from.d.ndim, to[i].d.shape, to[i].d.item);
        r = w.r;
    }
    if (r == DS_OK) r = ds__work_run(&w);
    ds__work_end(&w);
    ds__release(to);
    return r;
}

static ds_result ds__gather_open(ds__work *w, const ds_comm_options *o, const ds_tensor *const *tensors, size_t count, int *dim, ds__party *from, ds__dims *whole) {
    DS__REQUIRE(count && tensors, "there is no tensor to gather from");
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) r = ds__party_open(w, o, tensors[i], "input tensor", (int64_t)i, (int64_t)i, 0, &from[i]);
    if (r == DS_OK) r = ds__comm_dim(dim, from[0].d.ndim);
    if (r < 0) return r;
    *whole = from[0].d;
    int order[DS_TENSOR_MAX_DIMS], other[DS_TENSOR_MAX_DIMS], alike = 1, n = ds__by_stride(&from[0].d, order);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__same_dtype(&from[i], "input tensor", (int64_t)i, &from[0]);
        if (r == DS_OK) r = ds__same_shape(&from[i], "input tensor", (int64_t)i, &from[0], *dim);
        if (r < 0 || !i) continue;
        if (__builtin_add_overflow(whole->shape[*dim], from[i].d.shape[*dim], &whole->shape[*dim]))
            r = ds__fail(DS_ERR_INVALID_VALUE, "the sizes in dimension %d are too large", *dim);
        int m = ds__by_stride(&from[i].d, other);
        alike &= m == n && memcmp(order, other, (size_t)n * sizeof *order) == 0;
    }
    if (r < 0) return r;
    if (!alike) ds__row_major(whole->ndim, whole->shape, whole->strides);
    ds__dims fresh;
    r = ds__dims_read(whole->dtype, whole->ndim, whole->shape, NULL, "the result", -1, &fresh);
    whole->count = fresh.count;
    whole->bytes = fresh.bytes;
    return r;
}
/* The inputs go to their parts of the result, each on its own lane. */
static ds_result ds__gather_steps(ds__work *w, const ds__party *from, size_t count, int dim, const ds__party *to) {
    int64_t at = 0;
    ds_result r = ds__work_settle(w);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds__party part = ds__part(to, dim, &at, from[i].d.shape[dim]);
        if (ds__same_place(&part, &from[i])) continue;
        if ((r = ds__apart(to, "the result", -1, &from[i], "input tensor", (int64_t)i)) < 0) break;
        ds__move(w, ds__lane_of(w, &from[i]), ds__spot_in(w, &part), to->d.strides, ds__spot_of(&from[i]), from[i].d.strides, to->d.ndim, from[i].d.shape, to->d.item);
        r = w->r;
    }
    return r < 0 ? r : ds__work_run(w);
}

DSDEF ds_result (ds_comm_gather)(const ds_tensor *const *tensors, size_t count, int dim, ds_device destination, const ds_comm_options *options, ds_tensor **out) {
    ds__work w = { 0 };
    ds__party to;
    ds__dims whole;
    if (out) *out = NULL;
    DS__COMM_BEGIN("ds_comm_gather");
    DS__REQUIRE(out, "out is NULL");
    ds__party *from = ds__parties(count);
    if (!from) return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__comm_device(destination, "the destination", -1, &destination);
    if (r == DS_OK) r = ds__gather_open(&w, options, tensors, count, &dim, from, &whole);
    if (r == DS_OK) r = ds__result_make(&w, options, &whole, destination, -1, -1, &to, out);
    if (r == DS_OK) r = ds__gather_steps(&w, from, count, dim, &to);
    if (r < 0) ds__results_drop(out, 1);
    ds__work_end(&w);
    ds__release(from);
    return r;
}
DSDEF ds_result (ds_comm_gather_into)(const ds_tensor *const *tensors, size_t count, int dim, const ds_tensor *out, const ds_comm_options *options) {
    ds__work w = { 0 };
    ds__party to, like;
    DS__COMM_BEGIN("ds_comm_gather_into");
    ds__party *from = ds__parties(count);
    if (!from) return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__gather_open(&w, options, tensors, count, &dim, from, &like.d);
    if (r == DS_OK) r = ds__party_open(&w, options, out, "the output tensor", -1, -1, 1, &to);
    if (r == DS_OK) r = ds__same_dtype(&to, "the output tensor", -1, &from[0]);
    if (r == DS_OK) r = ds__same_shape(&to, "the output tensor", -1, &like, -1);
    if (r == DS_OK) r = ds__gather_steps(&w, from, count, dim, &to);
    ds__work_end(&w);
    ds__release(from);
    return r;
}

/* ---- reductions ---- */

static ds_result ds__reducible(ds_dtype t, ds_reduce_op op) {
    char name[DS_DTYPE_NAME_SIZE];
    int whole = (t.code == DS_CODE_INT || t.code == DS_CODE_UINT) && (t.bits == 8 || t.bits == 16 || t.bits == 32 || t.bits == 64);
    int real = (t.code == DS_CODE_FLOAT && (t.bits == 16 || t.bits == 32 || t.bits == 64)) || (t.code == DS_CODE_BFLOAT && t.bits == 16);
    int complex = t.code == DS_CODE_COMPLEX && (t.bits == 64 || t.bits == 128), truth = t.code == DS_CODE_BOOL && t.bits == 8;
    DS__REQUIRE((unsigned)op <= DS_REDUCE_AVERAGE, "there is no reduction %d", (int)op);
    if (t.lanes != 1 || !(whole || real || complex || truth))
        return ds__fail(DS_ERR_UNSUPPORTED, "elements of type %s can be copied, but not reduced", ds__dtype_name(t, name));
    DS__REQUIRE(!complex || (op != DS_REDUCE_MAX && op != DS_REDUCE_MIN), "complex numbers have no %s", op == DS_REDUCE_MAX ? "largest" : "smallest");
    DS__REQUIRE(!truth || op != DS_REDUCE_AVERAGE, "elements of type bool have no average");
    return DS_OK;
}

/* What is to be put together, all in one order of elements: where it lies, and after which step. */
typedef struct ds__addend { ds__spot spot; uint32_t after; } ds__addend;

/* The strides in which it is done: those of `like`, if it has no gaps. */
static void ds__addends_of(ds__work *w, const ds__party *in, size_t count, const int64_t *strides, ds__addend *out) {
    for (size_t i = 0; i < count && w->r == DS_OK; i++) {
        const ds__party *p = &in[i];
        out[i] = (ds__addend){ ds__spot_of(p), DS__NO_INDEX };
        if (ds__same_strides(&p->d, strides) && w->region[p->region].direct) continue;
        uint32_t lane = ds__lane_of(w, p);
        out[i].spot = (ds__spot){ ds__temporary(w, lane, p->d.bytes), 0 };
        out[i].after = ds__move(w, lane, out[i].spot, strides, ds__spot_of(p), p->d.strides, p->d.ndim, p->d.shape, p->d.item);
    }
}

/* Elements `from` to `from + size - 1` of all, on a lane, to the same place in `dst`. The step. */
static uint32_t ds__reduce_slice(ds__work *w, uint32_t lane, ds__spot dst, const ds__addend *in, size_t count, ds_reduce_op op, ds_dtype dtype, int64_t from, int64_t size) {
    size_t item = (ds_dtype_size)(dtype);
    ptrdiff_t offset = (ptrdiff_t)(from * (int64_t)item);
    uint32_t first = (uint32_t)w->spots;
    if (w->r < 0 || !size) return DS__NO_INDEX;
    for (size_t i = 0; i < count; i++) {
        ds__spot at = { in[i].spot.region, in[i].spot.offset + offset };
        ds__come_after(w, lane, in[i].after);
        if (!ds__reaches(w, lane, at.region)) {
            ds__spot here = { ds__temporary(w, lane, (size_t)size * item), 0 };
            uint32_t copy = ds__step_add(w, DS__STEP_COPY, lane, here, at);
            if (copy == DS__NO_INDEX) return copy;
            w->step[copy].width = w->step[copy].dst_pitch = w->step[copy].src_pitch = (size_t)size * item;
            w->step[copy].height = 1;
            at = here;
        }
        ds__spot *s = DS__MORE(w, spot);
        if (!s) return DS__NO_INDEX;
        *s = at;
    }
    uint32_t step = ds__step_add(w, DS__STEP_REDUCE, lane, (ds__spot){ dst.region, dst.offset + offset }, (ds__spot){ 0, 0 });
    if (step == DS__NO_INDEX) return step;
    w->step[step].op = (uint8_t)op;
    w->step[step].dtype = dtype;
    w->step[step].first = first;
    w->step[step].count = (uint32_t)count;
    w->step[step].width = (size_t)size;
    return step;
}

/* All of `in` to `to`, on its lane. */
static void ds__reduce_steps(ds__work *w, const ds__party *in, size_t count, const ds__party *to, ds_reduce_op op, ds__addend *addends) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    uint32_t lane = ds__lane_of(w, to);
    if (count == 1) {
        if (!ds__same_place(in, to)) ds__move_party(w, lane, to, in);
        return;
    }
    ds__dense_like(&to->d, strides);
    int fits = ds__same_strides(&to->d, strides) && w->region[to->region].direct;
    ds__addends_of(w, in, count, strides, addends);
    ds__spot dst = fits ? ds__spot_of(to) : (ds__spot){ ds__temporary(w, lane, to->d.bytes), 0 };
    ds__reduce_slice(w, lane, dst, addends, count, op, to->d.dtype, 0, to->d.count);
    if (!fits) ds__move(w, lane, ds__spot_of(to), to->d.strides, dst, strides, to->d.ndim, to->d.shape, to->d.item);
}

/* Tensors of one shape and type. stride: from one to the next in the array. */
static ds_result ds__reduce_open(ds__work *w, const ds_comm_options *o, const ds_tensor *const *tensors, size_t count, size_t stride, ds_reduce_op op, ds__party *in) {
    DS__REQUIRE(count && tensors, "there is no tensor to reduce");
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__party_open(w, o, tensors[i * stride], "input tensor", (int64_t)i, (int64_t)i, 0, &in[i]);
        if (r == DS_OK && in[i].d.device.type == DS_DEVICE_HOST) r = ds__fail(DS_ERR_INVALID_DEVICE, "input tensor at index %zu is on the host, not on a device", i);
        if (r == DS_OK) r = ds__same_dtype(&in[i], "input tensor", (int64_t)i, &in[0]);
        if (r == DS_OK) r = ds__same_shape(&in[i], "input tensor", (int64_t)i, &in[0], -1);
    }
    return r < 0 ? r : ds__reducible(in[0].d.dtype, op);
}

/* `lists` tensors each, `count` times. */
static ds_result ds__reduce_many(const ds_tensor *const *tensors, size_t lists, size_t count, ds_reduce_op op, ds_device destination, const ds_comm_options *o, ds_tensor **out) {
    ds__work w = { 0 };
    ds_result r = ds__comm_device(destination, "the destination", -1, &destination);
    if (r < 0) return r;
    DS__REQUIRE(lists < SIZE_MAX / (count + 1), "%zu lists of %zu tensors", lists, count);
    ds__party *in = ds__parties((lists + 1) * count), *to = in ? in + lists * count : NULL; /* parties of one sum side by side */
    ds__addend *addends = ds__alloc((lists + !lists) * sizeof *addends);
    if (!in || !addends) r = in ? ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu tensors", lists) : DS_ERR_OUT_OF_MEMORY;
    int alone = lists == 1 && o->flags & DS_COMM_ALIAS;
    for (size_t k = 0; k < count && r == DS_OK; k++) {
        ds__party *p = in + k * lists;
        int there = 0;
        r = ds__reduce_open(&w, o, tensors + k, lists, count, op, p);
        for (size_t i = 0; i < lists && r == DS_OK; i++) there |= ds__same_device(p[i].d.device, destination);
        if (r < 0) break;
        if (!there) {
            r = ds__fail(DS_ERR_DEVICE_MISMATCH, "none of the input tensors is on the destination, %s:%d", ds__type_name(destination.type), destination.index);
            break;
        }
        r = alone ? ds__tensor_show(tensors[k], &p->d, &out[k]) : ds__result_make(&w, o, &p->d, destination, (int64_t)k, -1, &to[k], &out[k]);
    }
    if (r == DS_OK && count && !alone) r = ds__work_settle(&w);
    if (r == DS_OK && !alone) {
        for (size_t k = 0; k < count; k++) ds__reduce_steps(&w, in + k * lists, lists, &to[k], op, addends);
        r = ds__work_run(&w);
    }
    if (r < 0) ds__results_drop(out, count);
    ds__work_end(&w);
    ds__release(addends);
    ds__release(in);
    return r;
}
DSDEF ds_result (ds_comm_reduce)(const ds_tensor *const *tensors, size_t count, ds_reduce_op op, ds_device destination, const ds_comm_options *options, ds_tensor **out) {
    if (out) *out = NULL;
    DS__COMM_BEGIN("ds_comm_reduce");
    DS__REQUIRE(out, "out is NULL");
    return ds__reduce_many(tensors, count, 1, op, destination, options, out);
}
DSDEF ds_result (ds_comm_reduce_add)(const ds_tensor *const *tensors, size_t count, ds_device destination, const ds_comm_options *options, ds_tensor **out) {
    if (out) *out = NULL;
    DS__COMM_BEGIN("ds_comm_reduce_add");
    DS__REQUIRE(out, "out is NULL");
    return ds__reduce_many(tensors, count, 1, DS_REDUCE_SUM, destination, options, out);
}
DSDEF ds_result (ds_comm_reduce_add_coalesced)(const ds_tensor *const *tensors, size_t lists, size_t count, ds_device destination, size_t buffer_size,
                                               const ds_comm_options *options, ds_tensor **out) {
    (void)buffer_size;
    if (out) memset(out, 0, count * sizeof *out);
    DS__COMM_BEGIN("ds_comm_reduce_add_coalesced");
    DS__REQUIRE(!count || (tensors && out), "%s is NULL", tensors ? "out" : "tensors");
    return ds__reduce_many(tensors, lists, count, DS_REDUCE_SUM, destination, options, out);
}
DSDEF ds_result (ds_comm_reduce_into)(const ds_tensor *const *tensors, size_t count, ds_reduce_op op, const ds_tensor *out, const ds_comm_options *options) {
    ds__work w = { 0 };
    ds__party to;
    DS__COMM_BEGIN("ds_comm_reduce_into");
    ds__party *in = ds__parties(count);
    ds__addend *addends = in ? ds__alloc((count + !count) * sizeof *addends) : NULL;
    ds_result r = addends ? ds__reduce_open(&w, options, tensors, count, 1, op, in) : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu tensors", count);
    if (r == DS_OK) r = ds__party_open(&w, options, out, "the output tensor", -1, -1, 1, &to);
    if (r == DS_OK) r = ds__same_dtype(&to, "the output tensor", -1, &in[0]);
    if (r == DS_OK) r = ds__same_shape(&to, "the output tensor", -1, &in[0], -1);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        if (!ds__same_place(&to, &in[i])) r = ds__apart(&to, "the output tensor", -1, &in[i], "input tensor", (int64_t)i);
    if (r == DS_OK) r = ds__work_settle(&w);
    if (r == DS_OK) {
        ds__reduce_steps(&w, in, count, &to, op, addends);
        r = ds__work_run(&w);
    }
    ds__work_end(&w);
    ds__release(addends);
    ds__release(in);
    return r;
}

/* ---- everyone with everyone ---- */

/* Inputs and outputs, one of each for every device. */
typedef struct ds__all { ds__work w; ds__party *in, *out; ds__addend *addends, *results; size_t count; } ds__all;

static ds_result ds__all_open(ds__all *a, const ds_comm_options *o, const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count) {
    memset(a, 0, sizeof *a);
    a->count = count;
    DS__REQUIRE(count && tensors && outs, "%s", !count ? "there is no tensor" : tensors ? "outs is NULL" : "tensors is NULL");
    DS__REQUIRE(count < INT32_MAX, "%zu tensors", count);
    a->in = ds__parties(2 * count);
    if (!a->in) return DS_ERR_OUT_OF_MEMORY;
    a->out = a->in + count;
    a->addends = ds__alloc(2 * count * sizeof *a->addends);
    if (!a->addends) return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu tensors", count);
    a->results = a->addends + count;
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        int64_t n = (int64_t)i;
        r = ds__party_open(&a->w, o, tensors[i], "input tensor", n, n, 0, &a->in[i]);
        if (r == DS_OK) r = ds__party_open(&a->w, o, outs[i], "output tensor", n, n, 1, &a->out[i]);
        if (r == DS_OK) r = ds__same_dtype(&a->in[i], "input tensor", n, &a->in[0]);
        if (r == DS_OK) r = ds__same_dtype(&a->out[i], "output tensor", n, &a->in[0]);
        if (r == DS_OK) r = ds__same_shape(&a->in[i], "input tensor", n, &a->in[0], -1);
        if (r == DS_OK) r = ds__same_shape(&a->out[i], "output tensor", n, &a->out[0], -1);
        if (r == DS_OK && (a->in[i].d.device.type == DS_DEVICE_HOST || a->out[i].d.device.type == DS_DEVICE_HOST))
            r = ds__fail(DS_ERR_INVALID_DEVICE, "%s tensor at index %zu is on the host, not on a device", a->in[i].d.device.type == DS_DEVICE_HOST ? "input" : "output", i);
        if (r == DS_OK && !ds__same_device(a->in[i].d.device, a->out[i].d.device))
            r = ds__fail(DS_ERR_DEVICE_MISMATCH, "input tensor at index %zu is on %s:%d, the output tensor on %s:%d", i, ds__type_name(a->in[i].d.device.type),
                         a->in[i].d.device.index, ds__type_name(a->out[i].d.device.type), a->out[i].d.device.index);
    }
    if (r == DS_OK) r = ds__all_apart(a->out, "output tensor", count);
    return r == DS_OK ? ds__work_settle(&a->w) : r;
}
static ds_result ds__all_end(ds__all *a, ds_result r) {
    if (r == DS_OK) r = ds__work_run(&a->w);
    ds__work_end(&a->w);
    ds__release(a->addends);
    ds__release(a->in);
    return r;
}
/* Output i shares nothing with inputs, but may have the place of its own (`own`: 0: in whole; 1: the i-th part of the input; 2: the input is its i-th part; 3: not at all). */
static ds_result ds__all_overlaps(const ds__all *a, int own) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count; i++)
        for (size_t k = 0; k < a->count && r == DS_OK; k++) {
            const ds__party *out = &a->out[i], *in = &a->in[k];
            if (i == k && own < 3) {
                int64_t at = 0, n = own == 1 ? out->d.shape[0] : own == 2 ? in->d.shape[0] : 0;
                at = (int64_t)i * n;
                ds__party part = own == 1 ? ds__part(in, 0, &at, n) : own == 2 ? ds__part(out, 0, &at, n) : *out;
                if (ds__same_place(&part, own == 1 ? out : in)) continue;
            }
            r = ds__apart(out, "output tensor", (int64_t)i, in, "input tensor", (int64_t)k);
        }
    return r;
}
/* `many` is `one` so many times along dimension 0. */
static ds_result ds__all_sizes(const ds__party *many, const char *what, const ds__party *one, const char *other, size_t count) {
    int64_t n;
    DS__REQUIRE(one->d.ndim > 0 && many->d.ndim > 0, "tensors without dimensions cannot be cut or put together");
    ds_result r = ds__same_shape(many, what, 0, one, 0);
    if (r < 0) return r;
    DS__REQUIRE(!__builtin_mul_overflow(one->d.shape[0], (int64_t)count, &n) && many->d.shape[0] == n, "%ss have the size %lld in dimension 0, not %zu times %lld, the %s's",
                what, (long long)many->d.shape[0], count, (long long)one->d.shape[0], other);
    return DS_OK;
}

/* Where slice i of so many elements begins: slices are equal, in units of 64 elements. */
static int64_t ds__slice_begin(int64_t elements, size_t i, size_t count) {
    int64_t units = elements / 64 + (elements % 64 != 0), n = (int64_t)count, k = (int64_t)i;
    int64_t at = (units / n * k + units % n * k / n) * 64;
    return i == count || at > elements ? elements : at;
}

DSDEF ds_result (ds_comm_all_reduce)(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, ds_reduce_op op, const ds_comm_options *options) {
    ds__all a;
    int64_t strides[DS_TENSOR_MAX_DIMS];
    DS__COMM_BEGIN("ds_comm_all_reduce");
    ds_result r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK) r = ds__same_shape(&a.out[0], "output tensor", 0, &a.in[0], -1);
    if (r == DS_OK) r = ds__reducible(a.in[0].d.dtype, op);
    if (r == DS_OK) r = ds__all_overlaps(&a, 0);
    if (r < 0) return ds__all_end(&a, r);
    ds__work *w = &a.w;
    ds_dtype dtype = a.in[0].d.dtype;
    size_t item = a.in[0].d.item;
    int64_t elements = a.in[0].d.count;
    ds__dense_like(&a.out[0].d, strides);
    ds__addends_of(w, a.in, count, strides, a.addends);
    for (size_t i = 0; i < count && w->r == DS_OK; i++) /* where the results arise */
        a.results[i].spot = ds__same_strides(&a.out[i].d, strides) ? ds__spot_of(&a.out[i])
                                                                   : (ds__spot){ ds__temporary(w, ds__lane_of(w, &a.out[i]), a.out[i].d.bytes), 0 };
    for (size_t i = 0; i < count && w->r == DS_OK; i++) { /* each lane does a slice of all */
        int64_t begin = ds__slice_begin(elements, i, count), size = ds__slice_begin(elements, i + 1, count) - begin;
        a.results[i].after = ds__reduce_slice(w, ds__lane_of(w, &a.out[i]), a.results[i].spot, a.addends, count, op, dtype, begin, size);
    }
    for (size_t turn = 1; turn < count; turn++) /* and fetches the others; no two from the same one at the same time */
        for (size_t i = 0; i < count && w->r == DS_OK; i++) {
            size_t k = (i + turn) % count;
            int64_t begin = ds__slice_begin(elements, k, count), size = ds__slice_begin(elements, k + 1, count) - begin;
            uint32_t lane = ds__lane_of(w, &a.out[i]);
            ds__spot dst = { a.results[i].spot.region, a.results[i].spot.offset + (ptrdiff_t)(begin * (int64_t)item) };
            ds__spot src = { a.results[k].spot.region, a.results[k].spot.offset + (ptrdiff_t)(begin * (int64_t)item) };
            ds__come_after(w, lane, a.results[k].after);
            ds__move(w, lane, dst, (int64_t[]){ 1 }, src, (int64_t[]){ 1 }, 1, &size, item);
        }
    for (size_t i = 0; i < count && w->r == DS_OK; i++)
        if (!ds__same_strides(&a.out[i].d, strides))
            ds__move(w, ds__lane_of(w, &a.out[i]), ds__spot_of(&a.out[i]), a.out[i].d.strides, a.results[i].spot, strides, a.out[i].d.ndim, a.out[i].d.shape, item);
    return ds__all_end(&a, r);
}

DSDEF ds_result (ds_comm_all_gather)(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, const ds_comm_options *options) {
    ds__all a;
    DS__COMM_BEGIN("ds_comm_all_gather");
    ds_result r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK) r = ds__all_sizes(&a.out[0], "output tensor", &a.in[0], "input tensor", count);
    if (r == DS_OK) r = ds__all_overlaps(&a, 2);
    for (size_t turn = 0; turn < count && r == DS_OK; turn++)
        for (size_t i = 0; i < count && a.w.r == DS_OK; i++) {
            size_t k = (i + turn) % count;
            int64_t at = (int64_t)k * a.in[0].d.shape[0];
            ds__party part = ds__part(&a.out[i], 0, &at, a.in[0].d.shape[0]);
            if (ds__same_place(&part, &a.in[k])) continue;
            ds__move(&a.w, ds__lane_of(&a.w, &a.out[i]), ds__spot_in(&a.w, &part), part.d.strides, ds__spot_of(&a.in[k]), a.in[k].d.strides, part.d.ndim, part.d.shape, part.d.item);
        }
    return ds__all_end(&a, r);
}

DSDEF ds_result (ds_comm_reduce_scatter)(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, ds_reduce_op op, const ds_comm_options *options) {
    ds__all a;
    DS__COMM_BEGIN("ds_comm_reduce_scatter");
    ds_result r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK) r = ds__all_sizes(&a.in[0], "input tensor", &a.out[0], "output tensor", count);
    if (r == DS_OK) r = ds__reducible(a.in[0].d.dtype, op);
    if (r == DS_OK) r = ds__all_overlaps(&a, 1);
    ds__party *part = r == DS_OK ? ds__parties(count) : NULL;
    if (r == DS_OK && !part) r = DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && r == DS_OK && a.w.r == DS_OK; i++) {
        for (size_t k = 0; k < count; k++) {
            int64_t at = (int64_t)i * a.out[0].d.shape[0];
            part[k] = ds__part(&a.in[k], 0, &at, a.out[0].d.shape[0]);
        }
        /* As ds__reduce_steps, but the parts begin inside of their regions. */
        int64_t strides[DS_TENSOR_MAX_DIMS];
        const ds__party *to = &a.out[i];
        uint32_t lane = ds__lane_of(&a.w, to);
        ds__dense_like(&to->d, strides);
        int fits = ds__same_strides(&to->d, strides);
        for (size_t k = 0; k < count && a.w.r == DS_OK; k++) {
            a.addends[k] = (ds__addend){ ds__spot_in(&a.w, &part[k]), DS__NO_INDEX };
            if (ds__same_strides(&part[k].d, strides)) continue;
            uint32_t there = ds__lane_of(&a.w, &part[k]);
            ds__spot packed = { ds__temporary(&a.w, there, part[k].d.bytes), 0 };
            a.addends[k].after = ds__move(&a.w, there, packed, strides, a.addends[k].spot, part[k].d.strides, to->d.ndim, to->d.shape, to->d.item);
            a.addends[k].spot = packed;
        }
        ds__spot dst = fits ? ds__spot_of(to) : (ds__spot){ ds__temporary(&a.w, lane, to->d.bytes), 0 };
        ds__reduce_slice(&a.w, lane, dst, a.addends, count, op, to->d.dtype, 0, to->d.count);
        if (!fits) ds__move(&a.w, lane, ds__spot_of(to), to->d.strides, dst, strides, to->d.ndim, to->d.shape, to->d.item);
    }
    ds__release(part);
    return ds__all_end(&a, r);
}

DSDEF ds_result (ds_comm_all_to_all)(const ds_tensor *const *tensors, const ds_tensor *const *outs, size_t count, const ds_comm_options *options) {
    ds__all a;
    DS__COMM_BEGIN("ds_comm_all_to_all");
    ds_result r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK) r = ds__same_shape(&a.out[0], "output tensor", 0, &a.in[0], -1);
    if (r == DS_OK && (!a.in[0].d.ndim || a.in[0].d.shape[0] % (int64_t)count))
        r = !a.in[0].d.ndim ? ds__fail(DS_ERR_INVALID_VALUE, "tensors without dimensions cannot be cut")
                            : ds__fail(DS_ERR_INVALID_VALUE, "the size in dimension 0, %lld, cannot be cut into %zu equal parts", (long long)a.in[0].d.shape[0], count);
    if (r == DS_OK) r = ds__all_overlaps(&a, 3);
    int64_t n = r == DS_OK ? a.in[0].d.shape[0] / (int64_t)count : 0;
    for (size_t turn = 0; turn < count && r == DS_OK; turn++)
        for (size_t i = 0; i < count && a.w.r == DS_OK; i++) {
            size_t k = (i + turn) % count;
            int64_t to_at = (int64_t)k * n, from_at = (int64_t)i * n;
            ds__party to = ds__part(&a.out[i], 0, &to_at, n), from = ds__part(&a.in[k], 0, &from_at, n);
            ds__move(&a.w, ds__lane_of(&a.w, &a.out[i]), ds__spot_in(&a.w, &to), to.d.strides, ds__spot_in(&a.w, &from), from.d.strides, to.d.ndim, to.d.shape, to.d.item);
        }
    return ds__all_end(&a, r);
}

DSDEF ds_result (ds_comm_barrier)(const ds_stream *streams, size_t count) {
    ds__work w = { 0 };
    const ds_comm_options *options = NULL;
    DS__COMM_BEGIN("ds_comm_barrier");
    DS__REQUIRE(streams || !count, "streams is NULL");
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t lane;
        if (!streams[i].id) r = ds__fail(DS_ERR_INVALID_HANDLE, "no stream was given at index %zu (the handle is zero)", i);
        else r = ds__lane_find(&w, streams[i], "entry", (int64_t)i, (ds_device){ DS_DEVICE_HOST, 0 }, &lane);
    }
    if (r == DS_OK && ds__captures_open()) r = ds__fork_capture(&w);
    if (r == DS_OK) r = ds__join(&w);
    ds__work_end(&w);
    return r;
}

/* ---- many tensors at once ---- */

/* Tensors that travel in one buffer are packed at the source, each without gaps, and copied to a buffer on each device, of which the results are parts. */
/* The tensors that a buffer takes: those of the type of the first one that is left, until their sum reaches the size. batch[i]: 0: left. */
static size_t ds__batch_next(const ds__party *in, size_t count, uint32_t *batch, uint32_t number, size_t buffer_size, size_t *bytes) {
    size_t first = 0, n = 0;
    *bytes = 0;
    while (first < count && batch[first]) first++;
    for (size_t i = first; i < count && (!n || *bytes < buffer_size); i++) {
        if (batch[i] || !(ds_dtype_equal)(in[i].d.dtype, in[first].d.dtype)) continue;
        batch[i] = number;
        n++;
        *bytes += (in[i].d.bytes + 15) & ~(size_t)15; /* each on a multiple of 16 */
    }
    return n;
}

/* Views of one flat tensor, which goes when they go; each like its original. */
static ds_result ds__batch_views(const ds__party *in, size_t count, const uint32_t *batch, uint32_t number, const ds_tensor *flat, ds_tensor **out) {
    size_t at = 0;
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        if (batch[i] != number) continue;
        ds__dims d = in[i].d;
        d.given = flat->device;
        d.first = (char *)((uintptr_t)flat->data + at); /* NULL when all are empty */
        ds__dense_like(&in[i].d, d.strides);
        r = ds__tensor_show(flat, &d, &out[i]);
        at += (in[i].d.bytes + 15) & ~(size_t)15;
    }
    return r;
}

/* One buffer to all devices. */
static ds_result ds__batch_send(ds__work *w, const ds_comm_options *o, const ds__party *in, size_t count, const uint32_t *batch, uint32_t number, size_t n, size_t bytes,
                                const ds_device *devices, size_t device_count, const ds_device *skip, ds_tensor **out) {
    int64_t size = (int64_t)bytes, one[1] = { 1 }, dense[DS_TENSOR_MAX_DIMS];
    ds__spot src = { 0, 0 };
    uint32_t packed = DS__NO_INDEX, home = 0;
    size_t at = 0;
    ds__dims like;
    ds_result r = ds__dims_read(ds_uint8(), 1, &size, NULL, "the buffer", -1, &like);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        if (batch[i] != number) continue;
        if (!at) home = in[i].lane;
        const ds__party *p = &in[i];
        ds__dense_like(&p->d, dense);
        if (n == 1 && ds__same_strides(&p->d, dense)) { /* it is its own buffer */
            src = ds__spot_of(p);
            size = (int64_t)p->d.bytes;
            break;
        }
        home = ds__lane_of(w, p);
        if (!at) src = (ds__spot){ ds__temporary(w, home, bytes), 0 };
        uint32_t step = ds__move(w, home, (ds__spot){ src.region, (ptrdiff_t)at }, dense, ds__spot_of(p), p->d.strides, p->d.ndim, p->d.shape, p->d.item);
        if (step != DS__NO_INDEX) packed = step;
        at += (p->d.bytes + 15) & ~(size_t)15;
        r = w->r;
    }
    for (size_t d = 0; d < device_count && r == DS_OK; d++) {
        ds__party to;
        ds_tensor *flat = NULL;
        if (skip && ds__same_device(devices[d], *skip)) continue;
        r = ds__result_make(w, o, &like, devices[d], (int64_t)d, (int64_t)d, &to, &flat);
        if (r < 0) { if (flat) ds__results_drop(&flat, 1); break; }
        if (to.lane == DS__NO_INDEX) w->region[to.region].lane = home;
        uint32_t lane = w->region[to.region].lane;
        ds__come_after(w, lane, packed);
        if (size) ds__move(w, lane, ds__spot_of(&to), one, src, one, 1, &size, 1);
        r = ds__batch_views(in, count, batch, number, flat, &out[d * count]);
        ds__results_drop(&flat, 1);
        if (r == DS_OK) r = w->r;
    }
    return r;
}

DSDEF ds_result (ds_comm_broadcast_coalesced)(const ds_tensor *const *tensors, size_t count, const ds_device *devices, size_t device_count, size_t buffer_size,
                                              const ds_comm_options *options, ds_tensor **out) {
    ds__work w = { 0 };
    size_t results;
    DS__ENTER("ds_comm_broadcast_coalesced");
    DS__REQUIRE(!__builtin_mul_overflow(count, device_count, &results) && results < SIZE_MAX / sizeof *out, "%zu tensors on %zu devices", count, device_count);
    if (out) memset(out, 0, results * sizeof *out);
    DS__COMM_READY();
    DS__REQUIRE(device_count, "there is no device to broadcast to");
    DS__REQUIRE(devices && (!count || (tensors && out)), "%s is NULL", !devices ? "devices" : tensors ? "out" : "tensors");
    if (!buffer_size) buffer_size = (size_t)10 << 20;
    ds__party *in = ds__parties(count);
    uint32_t *batch = in ? ds__alloc((count + 1) * sizeof *batch) : NULL;
    ds_device *where = batch ? ds__alloc(device_count * sizeof *where) : NULL;
    ds_result r = !in ? DS_ERR_OUT_OF_MEMORY : where ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu tensors", count);
    for (size_t i = 0; i < device_count && r == DS_OK; i++) r = ds__comm_device(devices[i], "the device", (int64_t)i, &where[i]);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__party_open(&w, options, tensors[i], "the tensor", (int64_t)i, -1, 0, &in[i]);
        if (r == DS_OK && !ds__same_device(in[i].d.device, in[0].d.device))
            r = ds__fail(DS_ERR_DEVICE_MISMATCH, "the tensor at index %zu is on %s:%d, the first one on %s:%d", i, ds__type_name(in[i].d.device.type), in[i].d.device.index,
                         ds__type_name(in[0].d.device.type), in[0].d.device.index);
    }
    int alias = count && options->flags & DS_COMM_ALIAS;
    for (size_t d = 0; d < device_count && r == DS_OK; d++) { /* streams of all devices, before anything is laid out */
        uint32_t lane;
        if (where[d].type != DS_DEVICE_HOST) r = ds__lane_find(&w, ds__given_stream(options, (int64_t)d), "result", (int64_t)d, where[d], &lane);
        for (size_t i = 0; i < count && alias && r == DS_OK && ds__same_device(where[d], in[0].d.device); i++) r = ds__tensor_show(tensors[i], &in[i].d, &out[d * count + i]);
    }
    if (r == DS_OK && count) r = ds__work_settle(&w);
    uint32_t number = 0;
    for (size_t left = count; left && r == DS_OK;) {
        size_t bytes, n = ds__batch_next(in, count, batch, ++number, buffer_size, &bytes);
        r = ds__batch_send(&w, options, in, count, batch, number, n, bytes, where, device_count, alias ? &in[0].d.device : NULL, out);
        left -= n;
    }
    if (r == DS_OK) r = ds__work_run(&w);
    if (r < 0 && out) ds__results_drop(out, results);
    ds__work_end(&w);
    ds__release(where);
    ds__release(batch);
    ds__release(in);
    return r;
}

/* Called by ds_shutdown when all work is done. */
static void ds__comm_shutdown(void) {
    ds__tensors_end();
    ds__events_end();
    ds__comm_kernels_end();
    atomic_store(&ds__c.ready, 0);
    ds__mem_shutdown();
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; the texts stand at the end of devstream.h. */
