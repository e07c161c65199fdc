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

   Contents: data types; tensors; exchange with other libraries; reductions; implementation (tensors, kernels, collectives).

   Known gaps: sparse tensors have no form in DLPack and none here. Types of less than a byte are taken only where whole bytes
   hold their elements (float4 in pairs, for example). A tensor of the CPU driver's devices has DLPack's extension type 12, which
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
    ds__handed *e;
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
    ds__handed *e;
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

/* ---- >>collectives ----------------------------------------------------------------------------------------------- */

/* Called by ds_shutdown when all work is done. */
static void ds__comm_shutdown(void) {
    ds__tensors_end();
    atomic_store(&ds__c.ready, 0);
    ds__mem_shutdown();
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; the texts stand at the end of devstream.h. */
