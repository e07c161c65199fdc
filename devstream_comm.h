/* Generated from src/devstream_comm.h by `make headers`. Edit the files in src/, not this one. */
/* devstream_comm.h - tensors, and collectives over several devices.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_comm.h"
   in exactly one C file, and #include "devstream_comm.h" in all other files that use it. Put
   devstream.h and devstream_alloc.h beside it, and link as described in devstream.h.

   A tensor is a DLPack tensor: tensors that PyTorch, CuPy, JAX or Paddle export are imported
   without a copy. A collective is one call for all devices of the process. It checks all arguments
   first, then enqueues copies and sums on the streams and returns.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_comm.h"
       #include <stdio.h>
       int main(void) {
           ds_tensor *t;
           int64_t shape[2] = { 4, 1000 };
           ds_stream s;
           if (ds_stream_get_current(ds_device_current(), &s) < 0 ||
               ds_tensor_alloc(ds_float32(), 2, shape, s, &t) < 0 ||
               ds_fill(t->data, 0, 4, 4000, s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           printf("%lld elements\n", (long long)ds_tensor_get_count(t));
           return ds_tensor_free(t) < 0 || ds_shutdown() < 0;
       }

   Contents: tensors; exchange with other libraries; reductions; collectives; topologies; plans;
   implementation.

   Known gaps: a plan needs one tensor on each of its ranks, and pieces of one size. Pageable
   host memory is copied piece by piece if its elements are not in rows. Sparse tensors are not
   supported, as in DLPack. Types of less than a byte are supported only where whole bytes hold
   their elements (float4 in pairs, for example). On CUDA, a stream that waits for a failed
   device may continue without an error. A tensor of a CPU device has DLPack's extension type 12,
   unknown to other libraries: export a view of the tensor as host memory (ds_tensor_as_host). */
#include "devstream_alloc.h"

#ifndef DEVSTREAM_COMM_H_INCLUDED
#define DEVSTREAM_COMM_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

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

/* ---- exchange with other libraries ----------------------------------------------------------- */

/** DLPack's DLManagedTensor (capsule "dltensor"): a tensor with its deleter. */
typedef struct ds_managed_tensor {
    ds_tensor tensor;                                /**< description of the memory */
    void *manager_ctx;                               /**< context of the producer */
    void (*deleter)(struct ds_managed_tensor *self); /**< releases the tensor; may be NULL */
} ds_managed_tensor;

/** DLPack's DLPackVersion. */
typedef struct ds_dlpack_version {
    uint32_t major; /**< versions with another number have another layout */
    uint32_t minor; /**< versions with another number only add members */
} ds_dlpack_version;

/** DLPack version that devstream writes, 1.1: the major number, */
#define DS_DLPACK_MAJOR 1
/** and the minor number. */
#define DS_DLPACK_MINOR 1

/** Flags of ds_managed_tensor_versioned. */
enum {
    DS_DLPACK_READ_ONLY = 1,     /**< the memory must not be written */
    DS_DLPACK_IS_COPIED = 2,     /**< the memory was copied for the consumer */
    DS_DLPACK_SUBBYTE_PADDED = 4 /**< elements of less than a byte are padded to one byte each */
};

/** DLPack's DLManagedTensorVersioned (capsule "dltensor_versioned"). */
typedef struct ds_managed_tensor_versioned {
    ds_dlpack_version version; /**< version of the members below */
    void *manager_ctx;         /**< context of the producer */
    /** releases the tensor; may be NULL */
    void (*deleter)(struct ds_managed_tensor_versioned *self);
    uint64_t flags;   /**< DS_DLPACK_* */
    ds_tensor tensor; /**< description of the memory */
} ds_managed_tensor_versioned;

/** Imports a managed tensor without a copy. Its deleter is invoked once, after the last object that
    shares the memory is freed. On failure, the caller still owns it. The producer's library must
    order the caller's stream after the producer's work (in Python: the stream argument of
    __dlpack__). */
DSDEF DS_MUST_USE ds_result ds_tensor_import(ds_managed_tensor *managed, ds_tensor **out);
/** Imports a versioned managed tensor, as ds_tensor_import does. DS_ERR_UNSUPPORTED: a major
    version other than 1, or padded elements of less than a byte. */
DSDEF DS_MUST_USE ds_result ds_tensor_import_versioned(ds_managed_tensor_versioned *managed,
                                                       ds_tensor **out);
/** Exports an object as a managed tensor that shares the memory and keeps it alive until its
    deleter is invoked. Any thread may invoke the deleter, also inside a host function and after
    ds_shutdown. ds_shutdown frees the memory itself. data is the first element and byte_offset is
    0, because some libraries ignore byte_offset. Allocated by malloc. DS_ERR_UNSUPPORTED: a
    read-only tensor, since this form has no such flag. */
DSDEF DS_MUST_USE ds_result ds_tensor_export(const ds_tensor *tensor, ds_managed_tensor **out);
/** Exports an object, as ds_tensor_export does, in the versioned form. Supports read-only
    tensors. */
DSDEF DS_MUST_USE ds_result ds_tensor_export_versioned(const ds_tensor *tensor,
                                                       ds_managed_tensor_versioned **out);

/* ---- reductions ------------------------------------------------------------------------------ */

/** Operators of reductions; the values are NCCL's. */
typedef enum ds_reduce_op {
    DS_REDUCE_SUM = 0,     /**< sum; bool: logical or */
    DS_REDUCE_PRODUCT = 1, /**< product; bool: logical and */
    /** maximum; NaN if an operand is NaN; complex numbers are not supported */
    DS_REDUCE_MAX = 2,
    /** minimum; NaN if an operand is NaN; complex numbers are not supported */
    DS_REDUCE_MIN = 3,
    /** sum divided by the number of tensors; integers round towards zero; bool is not supported */
    DS_REDUCE_AVERAGE = 4
} ds_reduce_op;

/* ---- collectives ----------------------------------------------------------------------------- */

/* A collective is one call for all participating tensors and streams. The call checks all
   arguments, enqueues copies and sums on the streams, and returns without waiting. On each stream,
   the collective begins after all work enqueued before. Each participating stream continues after
   the whole collective is complete. On CPU devices, if all streams are idle, steps of up to 64 KiB
   may complete before the call returns; the call then takes some microseconds. If a part fails at
   run time, all these streams report the failure. Results are valid for work enqueued on their
   streams afterwards. If the call fails, nothing was enqueued (unless the error message states it),
   and results are NULL.

   Rules:
   - Tensors may have any shape and strides. They may be on any device of one driver, also several
     on one device, and in host memory. For pinned memory the host does not wait; for pageable
     memory ds_copy's rules apply.
   - Data types must agree.
   - Host memory is read and written on the stream that the options name for it, or on the first
     participating stream.
   - New results must be freed with ds_tensor_free. Results in host memory are pinned.
   - In C, an array of results (ds_tensor *[]) must be cast before its use as an array of inputs:
     (const ds_tensor *const *)out.
   - Tensors that are written must not share memory with other tensors, unless a function allows
     it. Shared memory is refused if both tensors are dense; otherwise the caller must avoid it.
   - If all tensors are empty, the call does nothing and orders no streams.

   Errors common to all collectives; the error message names the tensor and the numbers:
       DS_ERR_INVALID_VALUE    shapes, types or sizes do not agree; the dimension does not exist;
                               memory is shared; the plan does not fit
       DS_ERR_INVALID_HANDLE   a stream was destroyed
       DS_ERR_INVALID_DEVICE   a tensor is on the host and must be on a device; neither a device
                               nor a stream was passed
       DS_ERR_DEVICE_MISMATCH  a stream is not on its tensor's device; memory is not on the device
                               of its tensor; no input is on the destination
       DS_ERR_CROSS_DRIVER     devices of both drivers in one collective
       DS_ERR_UNSUPPORTED      elements of less than a byte; a type that cannot be reduced
       DS_ERR_OUT_OF_MEMORY    no memory for a result or for packed temporary data
       DS_ERR_LIMIT_EXCEEDED   a result or packed temporary data would exceed a memory limit */

/** A process group (devstream_ranks.h). A zeroed handle is no group. */
typedef struct ds_ranks {
    uint64_t id; /**< index and generation; 0: none */
} ds_ranks;

enum {
    /** a result equal to a tensor on its destination shares that tensor's memory instead of a copy
        (torch); its stream then does not participate */
    DS_COMM_ALIAS = 1,
    /** with a topology or a process group: floating-point sums and products may use any order, also
        of partial results rounded to their type. Faster, but not bit-identical */
    DS_COMM_ANY_ORDER = 2
};
struct ds_topology;
struct ds_plan;

/** How NCCL runs an operation (ds_ranks_options.nccl). The members are those of ncclCollConfig_t;
    NULL and zero: NCCL decides. All ranks must pass the same. */
typedef struct ds_ranks_nccl {
    int min_ctas;          /**< thread blocks, at least */
    int max_ctas;          /**< thread blocks, at most */
    int nvls_ctas;         /**< those of NVLink SHARP */
    int cga_cluster_size;  /**< thread blocks of a cluster */
    const char *algorithm; /**< selection of algorithms, in NCCL's form (algSelection) */
    int is_hint;           /**< 1: a selection that is not possible is ignored, else it fails */
    int cta_policy;        /**< NCCL_CTA_POLICY_* */
    uint64_t reserved[4];  /**< 0 */
} ds_ranks_nccl;

/** Further options of collectives with a process group (devstream_ranks.h, "Process groups"). */
typedef struct ds_ranks_options {
    /** sizes of the parts in the dimension that is split or joined; NULL: equal parts */
    const int64_t *sizes;
    const int64_t *out_sizes; /**< all_to_all: sizes of the parts of the outputs */
    uint64_t timeout_ns;      /**< time limit of the operation; 0: that of the group */
    /** engine "nccl", 2.31 or newer: how NCCL runs a broadcast, all_gather, or a reduction
        that it computes (integers, or DS_COMM_ANY_ORDER), or NULL. Others return
        DS_ERR_UNSUPPORTED */
    const ds_ranks_nccl *nccl;
    uint64_t reserved[4]; /**< 0 */
} ds_ranks_options;

/** Options of all collectives; NULL and zero mean the default. */
typedef struct ds_comm_options {
    /** streams[i] belongs to device or tensor i of the list (tensors[i] and outs[i]). Zeroed or
        missing: the thread's current stream of the device */
    const ds_stream *streams;
    size_t stream_count; /**< number of streams */
    /** stream of the single tensor: the input of broadcast and scatter, the result of gather and
        reduce */
    ds_stream stream;
    unsigned flags; /**< DS_COMM_* */
    /** NULL: direct copies; otherwise a plan for the topology (see below) */
    const struct ds_topology *topology;
    /** plan of the topology, which must fit; NULL: the plan of ds_plan_get */
    const struct ds_plan *plan;
    /** process group: the collective spans the devices of all its ranks (devstream_ranks.h) */
    ds_ranks ranks;
    /** with a group: index in it of the device that has the single tensor, which is the input of
        broadcast and scatter, and the result of gather and reduce */
    size_t root;
    const ds_ranks_options *ranks_options; /**< with a group: further options, or NULL */
    /** without a group: NULL, or "nccl" (see below) */
    const char *engine;
    uint64_t reserved[2]; /**< 0 */
} ds_comm_options;

/* NCCL in one process. With options->engine "nccl", NCCL runs a collective that writes into tensors
   of the caller, if it can: there are two or more GPUs, each with one tensor of a list; the single
   tensor is on one of them; a reduction is of integers, or a sum or product with
   DS_COMM_ANY_ORDER. Otherwise, and without NCCL, the collective runs as without the option.
   ds_plan_desc.engine tells which, and why. The implementation must be that of devstream_ranks.h,
   else DS_ERR_UNSUPPORTED. Each GPU begins and continues with its own stream, when its data are
   there. The communicators of a list of devices are created by its first collective, which takes
   long, and kept until ds_shutdown. */

/* Planned collectives. With options->topology, a collective runs the steps of the plan from
   ds_plan_get. Results are bit-identical to the direct form, unless DS_COMM_ANY_ORDER is set. The
   order relative to other work is the same, too.

   A plan needs one tensor on each rank and pieces of equal size. Entry i of a list must be on the
   i-th device of the topology (for a parsed topology: device i of the driver). The single tensor
   must be on a device of the topology. The results of a broadcast may have any order. Each rank
   except the tensor's own needs one result; further results on the tensor's device are allowed. In
   other cases the direct form is used; if options->plan is set, the call returns
   DS_ERR_INVALID_VALUE.

   Each rank uses internal streams and ds_plan.scratch bytes of temporary memory from the allocator
   until the work is complete. While a stream captures, the steps become part of the graph. */

/** Copies a tensor to each device of the list. out[i] is a new tensor on devices[i] with the
    tensor's shape and order of dimensions. The list may repeat devices, and may contain the
    tensor's own device and DS_DEVICE_HOST. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast(const ds_tensor *tensor, const ds_device *devices,
                                              size_t count, const ds_comm_options *options,
                                              ds_tensor **out);
/** Copies a tensor into each of `outs`, which must have its shape and data type. An entry that is
    the tensor itself is skipped. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast_into(const ds_tensor *tensor,
                                                   const ds_tensor *const *outs, size_t count,
                                                   const ds_comm_options *options);
/** Broadcasts many tensors, all on one device or on the host, through buffers of buffer_size bytes
    (0: 10 MiB). Tensors of one data type share a buffer until it is full. out[i * count + k] is
    tensor k on devices[i]. Results of one buffer share its memory. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast_coalesced(const ds_tensor *const *tensors,
                                                        size_t count, const ds_device *devices,
                                                        size_t device_count, size_t buffer_size,
                                                        const ds_comm_options *options,
                                                        ds_tensor **out);
/** Splits a tensor along a dimension and copies piece i to devices[i] as out[i]. chunk_sizes has
    one size per device; their sum must be the size of the dimension. NULL: torch.chunk's rule, the
    size divided by count, rounded up. There may then be fewer pieces than devices: *out_count (may
    be NULL) is their number, and the rest of out is NULL. */
DSDEF DS_MUST_USE ds_result ds_comm_scatter(const ds_tensor *tensor, const ds_device *devices,
                                            size_t count, const int64_t *chunk_sizes, int dim,
                                            const ds_comm_options *options, ds_tensor **out,
                                            size_t *out_count);
/** Splits a tensor along a dimension into pieces of the sizes of `outs`, and copies them there. */
DSDEF DS_MUST_USE ds_result ds_comm_scatter_into(const ds_tensor *tensor,
                                                 const ds_tensor *const *outs, size_t count,
                                                 int dim, const ds_comm_options *options);
/** Concatenates tensors along a dimension into a new tensor on the destination (DS_DEVICE_HOST:
    pinned memory). All other sizes must agree. */
DSDEF DS_MUST_USE ds_result ds_comm_gather(const ds_tensor *const *tensors, size_t count, int dim,
                                           ds_device destination, const ds_comm_options *options,
                                           ds_tensor **out);
/** Concatenates tensors along a dimension, as ds_comm_gather does, into an existing tensor. */
DSDEF DS_MUST_USE ds_result ds_comm_gather_into(const ds_tensor *const *tensors, size_t count,
                                                int dim, const ds_tensor *out,
                                                const ds_comm_options *options);
/** Reduces tensors of one shape element by element, in the order of the list, into a new tensor on
    the destination. One of the tensors must be there. Zeroed destination: the current device.
    float16 and bfloat16 are summed in float32.

    In all reductions, inputs and outputs must be aligned to their element size, else
    DS_ERR_INVALID_VALUE. Results are bit-identical on every run and driver. DS_ERR_UNSUPPORTED:
    non-integer elements, if the implementation was compiled with -ffast-math. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce(const ds_tensor *const *tensors, size_t count,
                                           ds_reduce_op op, ds_device destination,
                                           const ds_comm_options *options, ds_tensor **out);
/** Reduces tensors, as ds_comm_reduce does, into an existing tensor on any device, which may be one
    of the tensors. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_into(const ds_tensor *const *tensors, size_t count,
                                                ds_reduce_op op, const ds_tensor *out,
                                                const ds_comm_options *options);
/** Sums tensors, as torch.cuda.comm.reduce_add does: ds_comm_reduce with DS_REDUCE_SUM. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_add(const ds_tensor *const *tensors, size_t count,
                                               ds_device destination,
                                               const ds_comm_options *options, ds_tensor **out);
/** Sums lists of tensors: tensors[i * count + k] is tensor k of list i of `lists`; out[k] is the
    sum over the lists. Tensors are read in place. buffer_size (torch's parameter) has no effect and
    may be 0. options->streams has one stream per list. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_add_coalesced(const ds_tensor *const *tensors,
                                                         size_t lists, size_t count,
                                                         ds_device destination, size_t buffer_size,
                                                         const ds_comm_options *options,
                                                         ds_tensor **out);
/** Reduces all tensors, as ds_comm_reduce does, into every outs[i]. All have one shape. In place:
    outs[i] may be tensors[i]. */
DSDEF DS_MUST_USE ds_result ds_comm_all_reduce(const ds_tensor *const *tensors,
                                               const ds_tensor *const *outs, size_t count,
                                               ds_reduce_op op, const ds_comm_options *options);
/** Concatenates all tensors along dimension 0, in the order of the list, into every outs[i]. The
    tensors have one shape. In place: tensors[i] may be the i-th part of outs[i], as in NCCL. */
DSDEF DS_MUST_USE ds_result ds_comm_all_gather(const ds_tensor *const *tensors,
                                               const ds_tensor *const *outs, size_t count,
                                               const ds_comm_options *options);
/** Reduces the i-th parts of all tensors into outs[i]. Tensors are split into `count` equal parts
    along dimension 0. In place: outs[i] may be the i-th part of tensors[i], as in NCCL. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_scatter(const ds_tensor *const *tensors,
                                                   const ds_tensor *const *outs, size_t count,
                                                   ds_reduce_op op, const ds_comm_options *options);
/** Exchanges parts: part i of tensors[j] is copied to part j of outs[i]. All tensors are split into
    `count` equal parts along dimension 0. In-place operation is not supported. */
DSDEF DS_MUST_USE ds_result ds_comm_all_to_all(const ds_tensor *const *tensors,
                                               const ds_tensor *const *outs, size_t count,
                                               const ds_comm_options *options);
/** Makes later work on each of the streams wait for all earlier work on all of them. Does not
    block. */
DSDEF DS_MUST_USE ds_result ds_comm_barrier(const ds_stream *streams, size_t count);

/* ---- topologies ------------------------------------------------------------------------------ */

/* A topology describes devices and the links between them, with their rates and latencies. Plans
   are made for a topology. It describes the present machine, or any other machine by a text.

   A text has one statement per line. Words are separated by blanks. A word that begins with #
   begins a comment. gpu0..7 stands for the names gpu0 to gpu7:
       device NAME...             devices; rank i of a plan is the i-th of them
       switch NAME...             forwards data
       socket NAME...             forwards data; host memory (name: host) is linked to sockets
       link A B KIND [RATE [RATE]] [TIME] [half]
                                  a link: from A to B and from B to A at the first rate, or back
                                  at the second rate; half: one direction at a time. Lists of
                                  names: each with each. KIND is pcie, nvlink, nvswitch, socket,
                                  network or host, with default rate and latency
       peer A B on|off|KIND       direct access between the devices of the two lists, without the
                                  host (default: on); KIND: only if all links between them are of
                                  that kind
       peer A B push|pull RATE    rate of copies from A to B that A (push) or B (pull) makes, if
                                  less than the rate of the links
       peer A B both RATE         total rate of concurrent copies from A to B and from B to A, if
                                  less than the rate of the links
       peer A B latency TIME      latency of copies from A to B, instead of the latency of every
                                  copy and of the links
       engines N                  copy engines of a device (3)
       start TIME                 time that a copy holds an engine besides the transfer (1.5us)
       latency TIME               latency of every copy in addition to its links (6us)
       memory RATE                rate at which kernels read and write memory (2000GB/s)
   RATE is a number with B/s, KB/s, MB/s, GB/s or TB/s (powers of 1000). TIME is a number with ns,
   us or ms, at most 1000 seconds.
   A copy takes the route of the least latency; among several, the route of the highest rate.
   Devices do not forward data. */

/** X(NAME, word, bytes per second and direction, nanoseconds of latency): defaults of a link. */
/* clang-format off */
#define DS_LINK_KINDS(X) \
    X(PCIE, "pcie", 25e9, 500) \
    X(NVLINK, "nvlink", 25e9, 500) \
    X(NVSWITCH, "nvswitch", 370e9, 500) \
    X(SOCKET, "socket", 40e9, 300) \
    X(NETWORK, "network", 50e9, 3000) \
    X(HOST, "host", 100e9, 100)

/* clang-format on */
/** Kinds of links. */
typedef enum ds_link_kind {

#define DS_LINK_KIND_(name, word, rate, latency) DS_LINK_##name,
    DS_LINK_KINDS(DS_LINK_KIND_)
#undef DS_LINK_KIND_
        DS_LINK_KIND_COUNT /**< number of kinds */
} ds_link_kind;

/** A topology; immutable. ds_topology_destroy frees it with its plans. */
typedef struct ds_topology ds_topology;

/** Parses a topology text. DS_ERR_INVALID_VALUE: the error names the line and the word. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_text(const char *text, ds_topology **out);
/** Parses a topology file of up to 1 MiB. DS_ERR_SYSTEM: the file cannot be read. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_file(const char *path, ds_topology **out);

enum {
    /** measure each pair by short copies: below 200 ms for 8 devices, once per process */
    DS_TOPOLOGY_PROBE = 1
};

/** Creates the topology of present devices. The driver reports peer access, NVLink, copy engines
    and the memory rate. The system (/sys, or DEVSTREAM_SYSFS) reports PCIe switches, link rates and
    sockets. If the system has no data, each device is a card on a PCIe link of one socket. flags:
    DS_TOPOLOGY_PROBE or 0.

    DS_TOPOLOGY_PROBE measures rate and latency of each pair in both directions, and the rate of
    both at once. It waits for its copies (blocks). DS_ERR_CROSS_DRIVER: devices of both drivers. */
DSDEF DS_MUST_USE ds_result ds_topology_create_of_devices(const ds_device *devices, size_t count,
                                                          unsigned flags, ds_topology **out);
/** Frees a topology and its plans; NULL is allowed. */
DSDEF void ds_topology_destroy(ds_topology *topology);
/** Returns the number of devices; 0 for NULL. Callable anywhere. */
DSDEF int ds_topology_get_size(const ds_topology *topology);

/** Output formats of a topology. */
typedef enum ds_topology_format {
    /** table for people: rate from each device to each other device and host memory in GB/s (* if
        through the host), and latency in us */
    DS_TOPOLOGY_MATRIX,
    DS_TOPOLOGY_DOT, /**< drawing for dot -Tsvg */
    DS_TOPOLOGY_TEXT /**< text for ds_topology_create_of_text */
} ds_topology_format;

/** Writes a topology by calls of write_fn until it returns a value other than 0. */
DSDEF DS_MUST_USE ds_result ds_topology_write(const ds_topology *topology,
                                              ds_topology_format format, ds_write_fn write_fn,
                                              void *user);
/** Returns the configuration by which the CPU driver's virtual clock models the topology
    (ds_cpu_desc.fabric). Device i of the driver is rank i. *out points into the topology; ds_init
    copies it, then the topology may be freed. flags is set to 0; the caller may add DS_CPU_DRY. */
DSDEF DS_MUST_USE ds_result ds_topology_get_fabric(const ds_topology *topology, ds_cpu_fabric *out);

/* ---- plans ----------------------------------------------------------------------------------- */

/* A plan is a schedule of copies and sums for a collective on the devices of a topology. The
   planner chooses the algorithm and the number of pieces with the shortest predicted time for the
   given size.

   The prediction models the CPU driver's virtual clock. A copy occupies a copy engine of the device
   that makes it, and all links of its route. A link is occupied for the bytes divided by its rate,
   the engine for `start` longer. The copy is complete after its latency, too. Sums and copies
   inside a device use the rate of its memory.

   Each rank (device of the topology, in its order) has an input, an output and scratch memory. Host
   memory is an additional rank with scratch memory only. S bytes are split into p blocks, as equal
   as whole elements allow: block i begins at element count * i / p. */

/** Collectives, with the meaning of S bytes. */
typedef enum ds_collective {
    DS_BROADCAST,  /**< the root's input (S bytes) is copied to the output of all other ranks */
    DS_SCATTER,    /**< block i of the root's input (S bytes) is copied to the output of rank i */
    DS_GATHER,     /**< the inputs are copied to the blocks of the root's output (S bytes) */
    DS_REDUCE,     /**< the sum of all inputs (S bytes each) is written to the root's output */
    DS_ALL_REDUCE, /**< the sum of all inputs (S bytes each) is written to all outputs */
    DS_ALL_GATHER, /**< the inputs are copied to the blocks of every output (S bytes) */
    /** block i of the sum of all inputs (S bytes each) is written to the output of rank i */
    DS_REDUCE_SCATTER,
    /** block i of rank j's input is copied to block j of rank i's output, S bytes each */
    DS_ALL_TO_ALL,
    DS_COLLECTIVE_COUNT /**< number of collectives */
} ds_collective;

/** Allowed orders of a sum, in addition to the order of the ranks. */
typedef enum ds_plan_order {
    /** one sum over all inputs only: for types summed in a wider type (float16, bfloat16) and for
        averages */
    DS_ORDER_AT_ONCE,
    /** also pairwise in list order, ((x0 + x1) + x2) + ...: bit-identical if sums are not kept in a
        wider type */
    DS_ORDER_LIST,
    /** any order: for integers, minimum, maximum, or if bit-identical results are not needed */
    DS_ORDER_ANY
} ds_plan_order;

/** Parameters of ds_plan_get; a zeroed desc is a broadcast of 0 bytes from rank 0. */
typedef struct ds_plan_desc {
    ds_collective what;  /**< the collective */
    size_t bytes;        /**< S */
    int root;            /**< root rank of broadcast, scatter, gather and reduce */
    size_t item;         /**< bytes of an element, which is never split; 0: 1 */
    ds_plan_order order; /**< allowed orders of sums */
    /** required algorithm: "direct", "binomial", "chain", "spread", "islands", "trees" or "staged";
        NULL: the fastest */
    const char *algorithm;
    /** number of pieces per independently routed part; 0: the fastest number */
    size_t pieces;
    /** ds_comm_options.engine of the collective: ds_plan_write tells whether NCCL runs it in place
        of the plan, and why. NULL, or "nccl" */
    const char *engine;
    uint64_t reserved[3]; /**< 0 */
} ds_plan_desc;

/** Buffers of a rank. */
enum {
    DS_PLAN_INPUT,  /**< its input */
    DS_PLAN_OUTPUT, /**< its output */
    DS_PLAN_SCRATCH /**< temporary memory */
};

/** A buffer location. */
typedef struct ds_plan_location {
    int rank;      /**< owner of the buffer; the number of ranks means the host */
    int buffer;    /**< DS_PLAN_* */
    size_t offset; /**< offset of the first byte */
} ds_plan_location;

/** A step: a copy or a sum. Steps of one lane of a rank run in order. */
typedef struct ds_plan_step {
    int rank;            /**< rank that runs the step */
    int lane;            /**< lane of the rank */
    ds_plan_location to; /**< location written */
    size_t bytes;        /**< bytes written */
    uint32_t from;       /**< locations read: index of the first in ds_plan.location */
    /** 1: a copy; more: a sum of so many operands in this order, all on the step's own rank */
    uint32_t from_count;
    /** steps of other lanes to wait for: index of the first in ds_plan.before */
    uint32_t after;
    uint32_t after_count; /**< number of steps to wait for */
    int64_t start_ns;     /**< predicted begin */
    int64_t done_ns;      /**< predicted end */
} ds_plan_step;

/** A plan. Members are read-only for the caller. */
typedef struct ds_plan {
    ds_plan_desc desc;    /**< request; algorithm is the chosen one */
    int ranks;            /**< number of ranks of the topology */
    int ways;             /**< independently routed parts per root */
    int lanes;            /**< maximum number of lanes per rank */
    size_t pieces;        /**< pieces per part */
    size_t piece_bytes;   /**< size of the largest piece */
    int64_t predicted_ns; /**< predicted duration */
    /** estimated bound: S over the narrowest cut of the links, plus ceil(log2 p) times the shortest
        latency (all_reduce: twice that) */
    int64_t bound_ns;
    size_t steps;                     /**< number of steps */
    const ds_plan_step *step;         /**< steps in the order of their begin */
    const ds_plan_location *location; /**< locations read by the steps */
    const uint32_t *before;           /**< indices of steps to wait for */
    const size_t *scratch; /**< bytes of scratch memory of each rank and, last, of the host */
} ds_plan;

/** Creates a plan, or returns an existing plan of the same request. Plans are read-only and kept
    until their topology is freed; threads may share them. DS_ERR_UNSUPPORTED: the requested
    algorithm does not support the collective on this topology, or the order. DS_ERR_INVALID_VALUE:
    an invalid member, or more bytes than the slowest link carries in 100 days. */
DSDEF DS_MUST_USE ds_result ds_plan_get(const ds_topology *topology, const ds_plan_desc *desc,
                                        const ds_plan **out);
/** Writes the plan's figures and those of the other algorithms, with the reason for the choice. */
DSDEF DS_MUST_USE ds_result ds_plan_write(const ds_topology *topology, const ds_plan *plan,
                                          ds_write_fn write_fn, void *user);
/** Returns the name of a collective. Callable anywhere. */
DSDEF const char *ds_collective_get_name(ds_collective what);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES

static inline DS_MUST_USE ds_result ds_at_tensor_check(const char *file_, int line_,
        const ds_tensor *tensor_) {
    return ds_site_set(file_, line_), (ds_tensor_check)(tensor_);
}
#define ds_tensor_check(...) ds_at_tensor_check(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_alloc(const char *file_, int line_,
        ds_dtype dtype_, int ndim_, const int64_t *shape_, ds_stream stream_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_alloc)(dtype_, ndim_, shape_, stream_, out_);
}
#define ds_tensor_alloc(...) ds_at_tensor_alloc(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_alloc_pinned(const char *file_, int line_,
        ds_dtype dtype_, int ndim_, const int64_t *shape_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_alloc_pinned)(dtype_, ndim_, shape_, out_);
}
#define ds_tensor_alloc_pinned(...) ds_at_tensor_alloc_pinned(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_alloc_like(const char *file_, int line_,
        const ds_tensor *like_, ds_stream stream_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_alloc_like)(like_, stream_, out_);
}
#define ds_tensor_alloc_like(...) ds_at_tensor_alloc_like(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_wrap(const char *file_, int line_,
        const ds_tensor *tensor_, unsigned flags_, void (*release_fn_)(void *user), void *user_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_wrap)(tensor_, flags_, release_fn_, user_, out_);
}
#define ds_tensor_wrap(...) ds_at_tensor_wrap(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_free(const char *file_, int line_,
        ds_tensor *tensor_) {
    return ds_site_set(file_, line_), (ds_tensor_free)(tensor_);
}
#define ds_tensor_free(...) ds_at_tensor_free(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_get_flags(const char *file_, int line_,
        const ds_tensor *tensor_, unsigned *out_) {
    return ds_site_set(file_, line_), (ds_tensor_get_flags)(tensor_, out_);
}
#define ds_tensor_get_flags(...) ds_at_tensor_get_flags(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_view(const char *file_, int line_,
        const ds_tensor *tensor_, int ndim_, const int64_t *shape_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_view)(tensor_, ndim_, shape_, out_);
}
#define ds_tensor_view(...) ds_at_tensor_view(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_narrow(const char *file_, int line_,
        const ds_tensor *tensor_, int dim_, int64_t start_, int64_t length_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_narrow)(tensor_, dim_, start_, length_, out_);
}
#define ds_tensor_narrow(...) ds_at_tensor_narrow(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_slice(const char *file_, int line_,
        const ds_tensor *tensor_, int dim_, int64_t start_, int64_t stop_, int64_t step_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_slice)(tensor_, dim_, start_, stop_, step_, out_);
}
#define ds_tensor_slice(...) ds_at_tensor_slice(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_select(const char *file_, int line_,
        const ds_tensor *tensor_, int dim_, int64_t index_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_select)(tensor_, dim_, index_, out_);
}
#define ds_tensor_select(...) ds_at_tensor_select(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_permute(const char *file_, int line_,
        const ds_tensor *tensor_, const int *order_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_permute)(tensor_, order_, out_);
}
#define ds_tensor_permute(...) ds_at_tensor_permute(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_transpose(const char *file_, int line_,
        const ds_tensor *tensor_, int dim0_, int dim1_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_transpose)(tensor_, dim0_, dim1_, out_);
}
#define ds_tensor_transpose(...) ds_at_tensor_transpose(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_as_real(const char *file_, int line_,
        const ds_tensor *tensor_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_as_real)(tensor_, out_);
}
#define ds_tensor_as_real(...) ds_at_tensor_as_real(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_as_host(const char *file_, int line_,
        const ds_tensor *tensor_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_as_host)(tensor_, out_);
}
#define ds_tensor_as_host(...) ds_at_tensor_as_host(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_import(const char *file_, int line_,
        ds_managed_tensor *managed_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_import)(managed_, out_);
}
#define ds_tensor_import(...) ds_at_tensor_import(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_import_versioned(const char *file_, int line_,
        ds_managed_tensor_versioned *managed_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_import_versioned)(managed_, out_);
}
#define ds_tensor_import_versioned(...) ds_at_tensor_import_versioned(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_export(const char *file_, int line_,
        const ds_tensor *tensor_, ds_managed_tensor **out_) {
    return ds_site_set(file_, line_), (ds_tensor_export)(tensor_, out_);
}
#define ds_tensor_export(...) ds_at_tensor_export(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_tensor_export_versioned(const char *file_, int line_,
        const ds_tensor *tensor_, ds_managed_tensor_versioned **out_) {
    return ds_site_set(file_, line_), (ds_tensor_export_versioned)(tensor_, out_);
}
#define ds_tensor_export_versioned(...) ds_at_tensor_export_versioned(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_broadcast(const char *file_, int line_,
        const ds_tensor *tensor_, const ds_device *devices_, size_t count_, const ds_comm_options *options_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_comm_broadcast)(tensor_, devices_, count_, options_, out_);
}
#define ds_comm_broadcast(...) ds_at_comm_broadcast(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_broadcast_into(const char *file_, int line_,
        const ds_tensor *tensor_, const ds_tensor *const *outs_, size_t count_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_comm_broadcast_into)(tensor_, outs_, count_, options_);
}
#define ds_comm_broadcast_into(...) ds_at_comm_broadcast_into(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_broadcast_coalesced(const char *file_, int line_,
        const ds_tensor *const *tensors_, size_t count_, const ds_device *devices_, size_t device_count_, size_t buffer_size_, const ds_comm_options *options_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_comm_broadcast_coalesced)(tensors_, count_, devices_, device_count_, buffer_size_, options_, out_);
}
#define ds_comm_broadcast_coalesced(...) ds_at_comm_broadcast_coalesced(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_scatter(const char *file_, int line_,
        const ds_tensor *tensor_, const ds_device *devices_, size_t count_, const int64_t *chunk_sizes_, int dim_, const ds_comm_options *options_, ds_tensor **out_, size_t *out_count_) {
    return ds_site_set(file_, line_), (ds_comm_scatter)(tensor_, devices_, count_, chunk_sizes_, dim_, options_, out_, out_count_);
}
#define ds_comm_scatter(...) ds_at_comm_scatter(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_scatter_into(const char *file_, int line_,
        const ds_tensor *tensor_, const ds_tensor *const *outs_, size_t count_, int dim_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_comm_scatter_into)(tensor_, outs_, count_, dim_, options_);
}
#define ds_comm_scatter_into(...) ds_at_comm_scatter_into(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_gather(const char *file_, int line_,
        const ds_tensor *const *tensors_, size_t count_, int dim_, ds_device destination_, const ds_comm_options *options_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_comm_gather)(tensors_, count_, dim_, destination_, options_, out_);
}
#define ds_comm_gather(...) ds_at_comm_gather(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_gather_into(const char *file_, int line_,
        const ds_tensor *const *tensors_, size_t count_, int dim_, const ds_tensor *out_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_comm_gather_into)(tensors_, count_, dim_, out_, options_);
}
#define ds_comm_gather_into(...) ds_at_comm_gather_into(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_reduce(const char *file_, int line_,
        const ds_tensor *const *tensors_, size_t count_, ds_reduce_op op_, ds_device destination_, const ds_comm_options *options_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_comm_reduce)(tensors_, count_, op_, destination_, options_, out_);
}
#define ds_comm_reduce(...) ds_at_comm_reduce(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_reduce_into(const char *file_, int line_,
        const ds_tensor *const *tensors_, size_t count_, ds_reduce_op op_, const ds_tensor *out_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_comm_reduce_into)(tensors_, count_, op_, out_, options_);
}
#define ds_comm_reduce_into(...) ds_at_comm_reduce_into(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_reduce_add(const char *file_, int line_,
        const ds_tensor *const *tensors_, size_t count_, ds_device destination_, const ds_comm_options *options_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_comm_reduce_add)(tensors_, count_, destination_, options_, out_);
}
#define ds_comm_reduce_add(...) ds_at_comm_reduce_add(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_reduce_add_coalesced(const char *file_, int line_,
        const ds_tensor *const *tensors_, size_t lists_, size_t count_, ds_device destination_, size_t buffer_size_, const ds_comm_options *options_, ds_tensor **out_) {
    return ds_site_set(file_, line_), (ds_comm_reduce_add_coalesced)(tensors_, lists_, count_, destination_, buffer_size_, options_, out_);
}
#define ds_comm_reduce_add_coalesced(...) ds_at_comm_reduce_add_coalesced(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_all_reduce(const char *file_, int line_,
        const ds_tensor *const *tensors_, const ds_tensor *const *outs_, size_t count_, ds_reduce_op op_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_comm_all_reduce)(tensors_, outs_, count_, op_, options_);
}
#define ds_comm_all_reduce(...) ds_at_comm_all_reduce(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_all_gather(const char *file_, int line_,
        const ds_tensor *const *tensors_, const ds_tensor *const *outs_, size_t count_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_comm_all_gather)(tensors_, outs_, count_, options_);
}
#define ds_comm_all_gather(...) ds_at_comm_all_gather(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_reduce_scatter(const char *file_, int line_,
        const ds_tensor *const *tensors_, const ds_tensor *const *outs_, size_t count_, ds_reduce_op op_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_comm_reduce_scatter)(tensors_, outs_, count_, op_, options_);
}
#define ds_comm_reduce_scatter(...) ds_at_comm_reduce_scatter(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_all_to_all(const char *file_, int line_,
        const ds_tensor *const *tensors_, const ds_tensor *const *outs_, size_t count_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_comm_all_to_all)(tensors_, outs_, count_, options_);
}
#define ds_comm_all_to_all(...) ds_at_comm_all_to_all(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_comm_barrier(const char *file_, int line_,
        const ds_stream *streams_, size_t count_) {
    return ds_site_set(file_, line_), (ds_comm_barrier)(streams_, count_);
}
#define ds_comm_barrier(...) ds_at_comm_barrier(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_topology_create_of_text(const char *file_, int line_,
        const char *text_, ds_topology **out_) {
    return ds_site_set(file_, line_), (ds_topology_create_of_text)(text_, out_);
}
#define ds_topology_create_of_text(...) ds_at_topology_create_of_text(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_topology_create_of_file(const char *file_, int line_,
        const char *path_, ds_topology **out_) {
    return ds_site_set(file_, line_), (ds_topology_create_of_file)(path_, out_);
}
#define ds_topology_create_of_file(...) ds_at_topology_create_of_file(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_topology_create_of_devices(const char *file_, int line_,
        const ds_device *devices_, size_t count_, unsigned flags_, ds_topology **out_) {
    return ds_site_set(file_, line_), (ds_topology_create_of_devices)(devices_, count_, flags_, out_);
}
#define ds_topology_create_of_devices(...) ds_at_topology_create_of_devices(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_topology_write(const char *file_, int line_,
        const ds_topology *topology_, ds_topology_format format_, ds_write_fn write_fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_topology_write)(topology_, format_, write_fn_, user_);
}
#define ds_topology_write(...) ds_at_topology_write(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_topology_get_fabric(const char *file_, int line_,
        const ds_topology *topology_, ds_cpu_fabric *out_) {
    return ds_site_set(file_, line_), (ds_topology_get_fabric)(topology_, out_);
}
#define ds_topology_get_fabric(...) ds_at_topology_get_fabric(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_plan_get(const char *file_, int line_,
        const ds_topology *topology_, const ds_plan_desc *desc_, const ds_plan **out_) {
    return ds_site_set(file_, line_), (ds_plan_get)(topology_, desc_, out_);
}
#define ds_plan_get(...) ds_at_plan_get(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_plan_write(const char *file_, int line_,
        const ds_topology *topology_, const ds_plan *plan_, ds_write_fn write_fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_plan_write)(topology_, plan_, write_fn_, user_);
}
#define ds_plan_write(...) ds_at_plan_write(__FILE__, __LINE__, __VA_ARGS__)

#endif

#endif /* DEVSTREAM_COMM_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_COMM_H_IMPLEMENTED)
#define DEVSTREAM_COMM_H_IMPLEMENTED
#ifndef __cplusplus

/* tensor/types.h - types and state of tensors.

   Defines the checked description of a tensor (ds__dims), the counted storage (ds__storage),
   the tensor object (ds__tensor) and the process-wide state ds__c. ds__tensor_setup prepares
   the allocator and enters the module.

   Policy:
   1. A tensor that devstream creates is an object. A table finds objects by their address. All
      other descriptions were filled in by the program. The description of an object never changes.
   2. Objects share a storage. The storage counts its users; the last user frees the memory.
      Other libraries may keep a storage longer than ds_shutdown, so storages are allocated with
      malloc.
   3. A deleter may run inside a host function. The allocator postpones a free there.
   4. A function reads a description once, into a ds__dims. All members are checked there, and
      later arithmetic with the ds__dims cannot overflow.

   Invariants: each object holds at most one use of a storage, and so does each exported managed
   tensor. An object without a storage is a
   view of a description that is not an object, or has no bytes.
   Locks: ds__c.lock guards the table, and process-wide lists of topology/,
   plan/ and comm/. No other lock of devstream is taken under it. ds__tensor_setup calls
   ds__mem_setup before it takes the lock.
   Threads: any; deleters may also drop a storage on threads that run host functions. `ready`
   and the number of users are atomic; all other members of ds__c need the lock. */

/* The name of a tensor in error messages: words, such as "input tensor", and the tensor's index in
   its list. Without a list the index is DS__NO_LIST. */
typedef struct ds__name {
    const char *words;
    size_t index;
} ds__name;

#define DS__NO_LIST SIZE_MAX

static inline ds__name ds__name_of(const char *words, size_t index) {
    return (ds__name){ words, index };
}

/* A tensor description, checked by ds__tensor_read. */
typedef struct ds__dims {
    char *first;      /* the element whose indices are all 0 */
    ds_device device; /* DS_DEVICE_HOST, or one of a driver */
    ds_device given;  /* as in the description */
    ds_dtype dtype;
    int ndim;
    size_t item;    /* bytes of an element */
    int64_t count;  /* elements */
    size_t bytes;   /* count * item */
    ptrdiff_t low;  /* begin of the bytes of all elements, relative to `first` */
    ptrdiff_t high; /* end of the bytes of all elements, relative to `first` */
    int64_t shape[DS_TENSOR_MAX_DIMS];
    int64_t strides[DS_TENSOR_MAX_DIMS];
} ds__dims;

/* Source of a storage's memory: device memory or pinned memory of the allocator, memory that the
   program wrapped, or a managed tensor of another library in either form. */
enum { DS__OF_ALLOCATOR, DS__OF_PINNED, DS__OF_OTHERS, DS__OF_MANAGED, DS__OF_VERSIONED };

typedef struct ds__storage {
    _Atomic int users;
    int kind;       /* DS__OF_* */
    uint32_t epoch; /* ds__g.epoch in which the memory is valid */
    void *ptr;      /* the memory, the argument of release_fn, or the managed tensor */
    void (*release_fn)(void *user);
} ds__storage;

typedef struct ds__tensor {
    ds_tensor t;             /* first member: the address of the object is the program's pointer */
    struct ds__tensor *next; /* in its bucket */
    ds__storage *storage;    /* NULL: no memory, or memory of a description that is not an object */
    unsigned flags;
    ds_site made;
    int64_t dims[]; /* sizes, then strides */
} ds__tensor;

#define DS__TENSOR_BUCKETS 1024

static struct {
    _Atomic int ready;
    ds__spinlock lock; /* protects the members below */
    ds__tensor *bucket[DS__TENSOR_BUCKETS];
} ds__c;

static void ds__tensors_deinit(void);

static const ds__module ds__tensor_module = { .shutdown = ds__tensors_deinit };

/* Prepares the allocator and the tensor module; without effect after the first call. */
static ds_result ds__tensor_setup(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__c.ready, memory_order_acquire)))
        return DS_OK;
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__c.lock);
    ds__module_add(DS__MODULE_TENSOR, &ds__tensor_module);
    atomic_store_explicit(&ds__c.ready, 1, memory_order_release);
    ds__spinlock_unlock(&ds__c.lock);
    return DS_OK;
}

/* tensor/internal.h - functions of tensors that other layers use.

   Declares the private functions of tensors that topologies, plans and collectives call: reading
   descriptions, arithmetic with shapes, and creation of tensors.

   Invariants: a function that fails stores the error message. A ds__name names the tensor in
   messages.
   Locks: callers do not hold ds__c.lock.
   Threads: any. */

/* Prepares the allocator and tensors. */
static ds_result ds__tensor_setup(void);

/* ---- descriptions ---------------------------------------------------------------------------- */

/* Returns a name as text, such as "input tensor at index 3". The text is valid until the thread's
   next call. */
static const char *ds__name_text(ds__name name);
/* Reads and checks a description. */
static ds_result ds__tensor_read(const ds_tensor *t, ds__name name, ds__dims *out);
/* Reads and checks data type, shape and strides; strides NULL: row-major. The address is NULL. */
static ds_result ds__dims_read(ds_dtype dtype, int ndim, const int64_t *shape,
                               const int64_t *strides, ds__name name, ds__dims *out);
/* Returns the number of elements of a shape; -1: a size is negative, -2: the number overflows. */
static int64_t ds__count_of(int ndim, const int64_t *shape);
/* Computes row-major strides. */
static void ds__row_major(int ndim, const int64_t *shape, int64_t *strides);
/* Computes strides without gaps that keep the order of the dimensions in memory. */
static void ds__dense_like(const ds__dims *d, int64_t *strides);
static int ds__is_dense(const ds__dims *d);
/* Lists the dimensions whose size is not 1, from the longest stride to the shortest; returns their
   number. */
static int ds__by_stride(const ds__dims *d, int *order);
/* Moves the address by an index along a dimension, unless the tensor is empty. */
static void ds__dims_move(ds__dims *d, int dim, int64_t by);
/* Computes count again. */
static void ds__dims_recount(ds__dims *d);
/* Replaces a negative dimension, which counts from the end; DS_ERR_INVALID_VALUE: out of range. */
static ds_result ds__dim_resolve(int *dim, int ndim);
#define DS__SHAPE_TEXT 200
/* Writes a shape as "[2, 3]" into DS__SHAPE_TEXT bytes; a long shape is cut. Returns `out`. */
static const char *ds__shape_text(int ndim, const int64_t *shape, char *out, size_t size);

/* ---- objects --------------------------------------------------------------------------------- */

/* Creates a tensor without gaps in memory of the stream's device; zero stream: in pinned memory. */
static ds_result ds__tensor_like(const ds__dims *like, ds_stream stream, ds_tensor **out);
/* Creates a view of `base` with the address, shape and strides of `d`. */
static ds_result ds__tensor_show(const ds_tensor *base, const ds__dims *d, ds_tensor **out);
/* Adds a user to the storage of a tensor; *out NULL: the tensor has no storage. Returns 1 if the
   tensor is an object. */
static int ds__tensor_share(const ds_tensor *t, ds__storage **out, unsigned *out_flags);

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

/* tensor/storage.h - storages, the memory that tensors share.

   Creates storages (ds__storage_create) and drops uses of them (ds__storage_unref). The last drop
   frees memory of the allocator, or invokes the release function or deleter of foreign memory.

   Invariants: memory of the allocator is freed only while devstream runs in the storage's
   epoch; otherwise ds_shutdown has freed it. A release function or deleter is invoked once, on
   the thread that drops the last use, also after ds_shutdown.
   Locks: none. Memory is freed and foreign functions are invoked without a lock.
   Threads: ds__storage_unref may run on any thread, also inside a host function, where the
   allocator postpones the free. */

/* Returns 1 if the memory of this epoch is still valid: no ds_shutdown has ended it. */
static int ds__of_now(uint32_t epoch) {
    return atomic_load_explicit(&ds__g.state, memory_order_acquire) == DS__READY &&
           epoch == ds__g.epoch;
}

static ds__storage *ds__storage_create(int kind, void *ptr, void (*release_fn)(void *)) {
    ds__storage *s = calloc(1, sizeof *s);
    if (!s) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a tensor");
        return NULL;
    }
    atomic_store(&s->users, 1);
    s->kind = kind;
    s->epoch = ds__g.epoch;
    s->ptr = ptr;
    s->release_fn = release_fn;
    return s;
}

/* Frees a storage's memory of the allocator, device or pinned memory. */
static ds_result ds__storage_free_memory(int kind, void *ptr) {
    ds_result r;
    if (kind == DS__OF_ALLOCATOR)
        DS__KEEPING(r, (ds_mem_free)(ptr));
    else
        DS__KEEPING(r, (ds_mem_pinned_free)(ptr));
    return r;
}

/* Invokes the deleter or release function of foreign memory. */
static void ds__storage_release(const ds__storage *s) {
    ds_managed_tensor *m = s->kind == DS__OF_MANAGED ? s->ptr : NULL;
    ds_managed_tensor_versioned *v = s->kind == DS__OF_VERSIONED ? s->ptr : NULL;
    if (m && m->deleter)
        m->deleter(m);
    if (v && v->deleter)
        v->deleter(v);
    if (s->release_fn)
        s->release_fn(s->ptr);
}

/* Removes a user; the last one frees the memory. NULL is allowed. */
static ds_result ds__storage_unref(ds__storage *s) {
    ds_result r = DS_OK;
    if (!s || atomic_fetch_sub(&s->users, 1) != 1)
        return r;
    int now = ds__of_now(s->epoch);
    if (s->kind == DS__OF_ALLOCATOR || s->kind == DS__OF_PINNED) {
        if (now)
            r = ds__storage_free_memory(s->kind, s->ptr);
    } else if (now && !ds__tls.in_callback) {
        ds__outside o = ds__outside_begin();
        ds__storage_release(s);
        ds__outside_end(o);
    } else {
        ds__storage_release(s);
    }
    free(s);
    return r;
}

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

/* tensor/dlpack.h - exchange of tensors by DLPack.

   Imports managed tensors of other libraries and exports objects as managed tensors, in the
   plain and the versioned form. Also frees all tensors that are left at shutdown
   (ds__tensors_deinit).

   Invariants: if an import fails, the managed tensor still belongs to the caller. An exported
   managed tensor (ds__handed) holds one use of the storage until its deleter is called. It is
   allocated with malloc and has copies of shape and strides, so it remains valid after
   ds_shutdown. A read-only tensor is exported in the versioned form only.
   Locks: the functions of tensor/tensor.h take ds__c.lock. ds__tensors_deinit takes no lock for
   the table; ds_shutdown calls it with ds__g.mutex held, and foreign deleters run inside.
   Threads: imports and exports run on threads of the caller. The deleters of exported tensors
   may run on any thread, also inside a host function, and do not change ds_error_get_last. */

static ds_result ds__dlpack_import(const ds_tensor *t, int kind, void *managed, unsigned flags,
                                   ds_tensor **out) {
    ds__dims d;
    ds_result r = ds__tensor_read(t, ds__name_of("the managed tensor", DS__NO_LIST), &d);
    ds__storage *storage = r == DS_OK ? ds__storage_create(kind, managed, NULL) : NULL;
    if (!storage)
        return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
    /* A second user, so that a failure of ds__tensor_create does not invoke the caller's deleter.
       */
    atomic_fetch_add(&storage->users, 1);
    r = ds__tensor_create(&d, storage, flags, out);
    if (r < 0)
        free(storage);
    else
        DS_IGNORE(ds__storage_unref(storage));
    return r;
}

DSDEF ds_result(ds_tensor_import)(ds_managed_tensor *managed, ds_tensor **out) {
    DS__TENSOR_BEGIN("ds_tensor_import");
    DS__REQUIRE(managed, "managed is NULL");
    return ds__dlpack_import(&managed->tensor, DS__OF_MANAGED, managed, 0, out);
}

DSDEF ds_result(ds_tensor_import_versioned)(ds_managed_tensor_versioned *managed, ds_tensor **out) {
    DS__TENSOR_BEGIN("ds_tensor_import_versioned");
    DS__REQUIRE(managed, "managed is NULL");
    if (managed->version.major != DS_DLPACK_MAJOR)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the managed tensor has DLPack version %u.%u; %d.x is supported",
                        managed->version.major, managed->version.minor, DS_DLPACK_MAJOR);
    if (managed->flags & DS_DLPACK_SUBBYTE_PADDED && managed->tensor.dtype.bits % 8)
        return ds__fail(DS_ERR_UNSUPPORTED, "the managed tensor has padded elements of %d bits",
                        managed->tensor.dtype.bits);
    return ds__dlpack_import(&managed->tensor, DS__OF_VERSIONED, managed,
                             managed->flags & DS_DLPACK_READ_ONLY ? DS_TENSOR_READ_ONLY : 0, out);
}

typedef struct ds__handed {
    union {
        ds_managed_tensor plain;
        ds_managed_tensor_versioned versioned;
    } u;

    ds__storage *storage;
    int64_t dims[];
} ds__handed;

static void ds__handed_end(ds__handed *e) {
    ds__tls.mute++; /* the caller of a deleter does not expect an error of devstream */
    DS_IGNORE(ds__storage_unref(e->storage));
    ds__tls.mute--;
    free(e);
}

static void ds__handed_destroy(ds_managed_tensor *self) {
    ds__handed_end(self->manager_ctx);
}

static void ds__handed_delete_versioned(ds_managed_tensor_versioned *self) {
    ds__handed_end(self->manager_ctx);
}

/* Allocates a managed tensor, which holds a use of the tensor's storage, and copies the description
   to it. */
static ds_result ds__handed_create(const ds_tensor *tensor, int versioned, ds__handed **out,
                                   unsigned *out_flags) {
    DS__REQUIRE(tensor, "the tensor is NULL");
    ds__storage *storage;
    int known = ds__tensor_share(tensor, &storage, out_flags);
    DS__REQUIRE(known, "%p is not a tensor of devstream; create one by ds_tensor_wrap",
                (const void *)tensor);
    if (!versioned && *out_flags & DS_TENSOR_READ_ONLY) {
        DS_IGNORE(ds__storage_unref(storage));
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the tensor is read-only; use ds_tensor_export_versioned");
    }
    size_t n = (size_t)tensor->ndim;
    ds__handed *e = calloc(1, sizeof *e + 2 * n * sizeof(int64_t));
    if (!e) {
        DS_IGNORE(ds__storage_unref(storage));
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a managed tensor");
    }
    ds_tensor *t = versioned ? &e->u.versioned.tensor : &e->u.plain.tensor;
    *t = *tensor;
    if (n)
        memcpy(e->dims, tensor->shape, n * sizeof(int64_t));
    if (n)
        memcpy(e->dims + n, tensor->strides, n * sizeof(int64_t));
    t->shape = e->dims;
    t->strides = e->dims + n;
    e->storage = storage;
    *out = e;
    return DS_OK;
}

DSDEF ds_result(ds_tensor_export)(const ds_tensor *tensor, ds_managed_tensor **out) {
    unsigned flags;
    ds__handed *e = NULL;
    DS__TENSOR_BEGIN("ds_tensor_export");
    ds_result r = ds__handed_create(tensor, 0, &e, &flags);
    if (r < 0)
        return r;
    e->u.plain.manager_ctx = e;
    e->u.plain.deleter = ds__handed_destroy;
    *out = &e->u.plain;
    return DS_OK;
}

DSDEF ds_result(ds_tensor_export_versioned)(const ds_tensor *tensor,
                                            ds_managed_tensor_versioned **out) {
    unsigned flags;
    ds__handed *e = NULL;
    DS__TENSOR_BEGIN("ds_tensor_export_versioned");
    ds_result r = ds__handed_create(tensor, 1, &e, &flags);
    if (r < 0)
        return r;
    e->u.versioned.version = (ds_dlpack_version){ DS_DLPACK_MAJOR, DS_DLPACK_MINOR };
    e->u.versioned.manager_ctx = e;
    e->u.versioned.deleter = ds__handed_delete_versioned;
    e->u.versioned.flags = flags & DS_TENSOR_READ_ONLY ? DS_DLPACK_READ_ONLY : 0;
    *out = &e->u.versioned;
    return DS_OK;
}

/* Called by ds_shutdown. Warns of tensors that were not freed. Foreign memory is released now; the
   allocator frees its own memory later. */
static void ds__tensors_deinit(void) {
    for (size_t i = 0; i < DS__TENSOR_BUCKETS; i++)
        for (ds__tensor *o = ds__c.bucket[i], *next; o; o = next) {
            next = o->next;
            ds__log_warn("tensor created at %s:%d was not freed", o->made.file ? o->made.file : "?",
                         o->made.line);
            /* an epoch that has ended: the drop below does not free the memory */
            if (o->storage && o->storage->kind <= DS__OF_PINNED)
                o->storage->epoch--;
            ds__tls.in_callback++;
            DS_IGNORE(ds__storage_unref(o->storage));
            ds__tls.in_callback--;
            ds__host_free(o);
        }
    memset(ds__c.bucket, 0, sizeof ds__c.bucket);
    atomic_store(&ds__c.ready, 0);
}

/* comm/kernel_arith.h - arithmetic of reductions on both drivers.

   Defines the operations, the kinds of numbers and the arithmetic of the reduction kernels. The
   CPU form and the device code (kernels/comm.cu) include this room.

   Policy: the result of a reduction has the same bits on every device.
   1. The value is ((in[0] op in[1]) op in[2]) op ... Each step is rounded as IEEE 754 says, and
      nothing is fused. Integers wrap. f16 and bf16 are widened to f32 and rounded once, at the
      end, to nearest even. For bool, sum and maximum are `or`; product and minimum are `and`.
   2. Maximum and minimum are NaN if one of the numbers is NaN; +0 is larger than -0.
   3. The average is the sum divided by the number of inputs, rounded. The average of integers is
      truncated towards zero.
   4. Every NaN is written as the same value: positive, quiet, without payload.
   5. If there are more inputs than one launch takes, there are several launches. Then in[0] of a
      later launch is the result of the launch before. That result is kept in f32 for f16 and
      bf16 (DS__COMM_WIDE_*), and only the last launch divides. The result therefore does not
      depend on the division into launches.

   Invariants: enums and structs here are part of the interface to the device code. A change
   needs `make kernels`.
   Locks: none.
   Threads: any; the functions have no state. */

enum { DS__COMM_SUM, DS__COMM_PRODUCT, DS__COMM_MAX, DS__COMM_MIN };

enum {
    DS__COMM_U8,
    DS__COMM_U16,
    DS__COMM_U32,
    DS__COMM_U64,
    DS__COMM_I8,
    DS__COMM_I16,
    DS__COMM_I32,
    DS__COMM_I64,
    DS__COMM_F16,
    DS__COMM_BF16,
    DS__COMM_F32,
    DS__COMM_F64,
    DS__COMM_C64, /* complex: only the product */
    DS__COMM_C128 /* complex: only the product */
};

enum { DS__COMM_WIDE_IN = 1, DS__COMM_WIDE_OUT = 2 };

enum { DS__COMM_INPUTS = 8, DS__COMM_DIMS = 8 };

typedef struct ds__comm_inputs {
    const void *at[DS__COMM_INPUTS];
} ds__comm_inputs;

/* A dimension with the factor and the shift that take the place of a division by its size. For
   n < 2^31, n / size is (n + (n magic >> 32)) >> shift (Granlund, Montgomery: Division by invariant
   integers using multiplication, 1994). */
typedef struct ds__comm_narrow_dim {
    uint32_t magic, shift, size;
    int32_t dst, src;
} ds__comm_narrow_dim;

/* Dimensions of a strided copy, the innermost last; strides in bytes. */
typedef struct ds__comm_dims {
    uint64_t size[DS__COMM_DIMS];
    int64_t dst[DS__COMM_DIMS], src[DS__COMM_DIMS];
    /* the same, if ds__comm_pack_args.narrow is 1; the outermost, without factor and shift, then
       the others from the innermost on */
    ds__comm_narrow_dim narrow[DS__COMM_DIMS];
} ds__comm_dims;

/* Masks with which the device code compares numbers that are packed into a word, and adds integers.
   Each is repeated for all numbers of the word. */
typedef struct ds__comm_masks {
    uint64_t top;  /* the highest bit of each */
    uint64_t sign; /* floats: the highest bit; else 0 */
    /* bits to invert so that numbers compare like unsigned ones; for the minimum all others, too */
    uint64_t flip;
    /* floats: added to a number without its sign, the sum reaches the highest bit if and only if
       the number is NaN; else 0 */
    uint64_t room;
    uint64_t quiet; /* floats: the NaN that is written; else 0 */
    uint32_t shift; /* bits - 1 */
    uint32_t skew;  /* 16 - bytes of a number */
} ds__comm_masks;

#ifndef DS__COMM_FN
#define DS__COMM_FN static inline __attribute__((always_inline))
#endif

DS__DEVICE float ds__f32_of(uint32_t bits) {
    union {
        uint32_t u;
        float f;
    } x;

    x.u = bits;
    return x.f;
}

DS__DEVICE double ds__f64_of(uint64_t bits) {
    union {
        uint64_t u;
        double f;
    } x;

    x.u = bits;
    return x.f;
}

DS__DEVICE uint32_t ds__f32_bits(float value) {
    union {
        uint32_t u;
        float f;
    } x;

    x.f = value;
    return x.u;
}

DS__DEVICE uint64_t ds__f64_bits(double value) {
    union {
        uint64_t u;
        double f;
    } x;

    x.f = value;
    return x.u;
}

/* The end of a reduction: divides an average, and replaces every NaN by the same NaN. */
DS__COMM_FN void ds__comm_end_f32(uint32_t divisor, uint32_t *a) {
    float f = ds__f32_of(*a);
    if (divisor > 1)
        f = f / (float)divisor;
    uint32_t nan = 0u - (uint32_t)(f != f);
    *a = (ds__f32_bits(f) & ~nan) | (nan & 0x7fc00000u);
}

DS__COMM_FN void ds__comm_end_f64(uint32_t divisor, uint64_t *a) {
    double f = ds__f64_of(*a);
    if (divisor > 1)
        f = f / (double)divisor;
    uint64_t nan = (uint64_t)0 - (uint64_t)(f != f);
    *a = (ds__f64_bits(f) & ~nan) | (nan & 0x7ff8000000000000u);
}

/* Convert bf16 in the low half of a word to f32 and back. */
DS__COMM_FN void ds__comm_widen_bf16_f32(uint32_t *x) {
    *x = *x << 16;
}

DS__COMM_FN void ds__comm_narrow_bf16_f32(uint32_t *x) {
    uint32_t nan = (uint32_t)((int32_t)(0x7f800000u - (*x & 0x7fffffffu)) >> 31);
    *x = (nan & 0x7fc0u) | (~nan & ((*x + 0x7fffu + (*x >> 16 & 1u)) >> 16));
}

/* a *= x by the definition of the product, without C's special rules for infinities. */
#define DS__COMM_MULTIPLY(NAME, T)                                                \
    DS__COMM_FN void NAME(T *a, const T *x) {                                     \
        T rr = a[0] * x[0], ii = a[1] * x[1], ri = a[0] * x[1], ir = a[1] * x[0]; \
        DS__ROUNDED(rr);                                                          \
        DS__ROUNDED(ii);                                                          \
        DS__ROUNDED(ri);                                                          \
        DS__ROUNDED(ir);                                                          \
        a[0] = rr - ii;                                                           \
        a[1] = ri + ir;                                                           \
    }
DS__COMM_MULTIPLY(ds__comm_multiply_c64, float)
DS__COMM_MULTIPLY(ds__comm_multiply_c128, double)

/* comm/kernel_args.h - kernel arguments and f16 conversions.

   Defines the argument structs of the kernels (ds__comm_reduce_args, ds__comm_divide_args,
   ds__comm_pack_args) and computes the masks of a kind of numbers (ds__comm_masks_of).
   DS__COMM_F16_MATH generates the conversions between f16 and f32 for single words and for
   vectors.

   Invariants: the members of a struct match its parameter list in kernel.h and the parameters in
   kernels/comm.cu. ds__comm_size follows the order of the kinds in kernel_arith.h. An item of
   the CPU form is DS__COMM_ITEM bytes of the result. The conversions give the same bits even if
   the processor flushes subnormal numbers to zero.
   Locks: none.
   Threads: any; the functions have no state. */

/* Conversions of f16 in the low half of a word to f32 and back; a GPU has instructions for them. U
   and S are unsigned and signed words, or vectors of words. Subnormal numbers of f16 are shifted by
   an addition or subtraction of floats that are not subnormal. The result is therefore the same if
   the processor flushes subnormal numbers to zero. */
#define DS__COMM_F16_MATH(FN, SET, U, S, FLOAT, BITS)                                       \
    FN void ds__comm_widen_f16_##SET(U *x) {                                                \
        U sign = (*x & 0x8000u) << 16, m = (*x & 0x7fffu) << 13;                            \
        U special = (U)((S)(0x0f7fffffu - m) >> 31), low = (U)((S)(m - 0x00800000u) >> 31); \
        m += 0x38000000u + (special & 0x38000000u) + (low & 0x00800000u);                   \
        *x = sign | BITS(FLOAT(m) - FLOAT(low & 0x38800000u));                              \
    }                                                                                       \
    FN void ds__comm_narrow_f16_##SET(U *x) {                                               \
        U sign = *x >> 16 & 0x8000u, m = *x & 0x7fffffffu, tiny;                            \
        U nan = (U)((S)(0x7f800000u - m) >> 31), big = (U)((S)(0x47800000u - m) >> 31),     \
          low = (U)((S)(m - 0x38800000u) >> 31);                                            \
        m = (m & ~big) | (big & 0x47800000u);                                               \
        tiny = BITS(FLOAT(m) + FLOAT((m & 0u) + 0x3f000000u)) - 0x3f000000u;                \
        m = (m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13;                              \
        *x = (nan & 0x7e00u) | (~nan & (sign | (low & tiny) | (~low & m)));                 \
    }
DS__COMM_F16_MATH(DS__COMM_FN, f32, uint32_t, int32_t, ds__f32_of, ds__f32_bits)

/* Arguments of both forms. An item of the CPU form is DS__COMM_ITEM bytes of the result. */
enum { DS__COMM_ITEM = 16 << 10 };

typedef struct ds__comm_reduce_args {
    /* may be one of the inputs; with DS__COMM_WIDE_OUT only the first */
    void *out;
    ds__comm_inputs in;
    uint64_t bytes; /* of the result; f16 and bf16: as if the result were not wide */
    ds__comm_masks masks;
    uint32_t inputs; /* 1 to DS__COMM_INPUTS */
    uint32_t op;
    uint32_t divisor; /* 0 or 1: no division; integers: always 0 */
    uint32_t kind;
    uint32_t wide; /* DS__COMM_WIDE_*; f16 and bf16 only */
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
    uint32_t ndim;   /* 1 to DS__COMM_DIMS */
    uint32_t size;   /* bytes of an element: 1, 2, 4, 8 or 16 */
    uint32_t narrow; /* 1: ds__comm_pack_narrow has filled in dims.narrow */
} ds__comm_pack_args;

/* by kind */
static const unsigned char ds__comm_size[] = { 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16 };

/* Returns the masks with which the device code computes numbers of a kind. */
static ds__comm_masks ds__comm_masks_of(uint32_t kind, uint32_t op) {
    static const unsigned char mantissas[] = { 10, 7, 23, 52 }; /* from DS__COMM_F16 on */
    uint32_t size = ds__comm_size[kind];
    ds__comm_masks m = { 0, 0, 0, 0, 0, 8 * size - 1, 16 - size };
    uint64_t each;
    /* complex numbers are not compared */
    if (size > 8 || kind == DS__COMM_C64)
        return m;
    each = UINT64_MAX / (UINT64_MAX >> (64 - 8 * size));
    m.top = each << (8 * size - 1);
    if (kind >= DS__COMM_F16) {
        uint32_t mantissa = mantissas[kind - DS__COMM_F16];
        m.sign = m.top;
        m.room = each * (((uint64_t)1 << mantissa) - 1);
        m.quiet = m.top - each - each * (((uint64_t)1 << (mantissa - 1)) - 1);
    }
    m.flip = kind >= DS__COMM_I8 && kind <= DS__COMM_I64 ? m.top : 0;
    if (op == DS__COMM_MIN)
        m.flip = ~m.flip;
    return m;
}

/* comm/kernel_vector.h - steps of the vector code of reductions on the CPU.

   Has the steps that the functions of kernel_vector.gen.h consist of: loads, conversions, stores,
   comparisons. kernel_vector.tmpl has these functions, which combine the numbers of several
   inputs: sums and products, and maximum and minimum. Kinds with the same arithmetic share a
   function. The vectors have 16 bytes and, on x86-64, also 32 bytes. kernel_cpu.h calls the
   functions through the tables ds__comm_runs_16 and ds__comm_runs_32.

   Invariants: a function takes a multiple of DS__COMM_BLOCK bytes. Every input is read before
   its place in the result is written, so the result may be one of the inputs. If `around` is
   set, the result starts at a multiple of the vector size, and the caller executes the store
   fence. Functions with 32-byte vectors run only if ds__os_vector returns at least 32. Complex
   products are not in the tables.
   Locks: none.
   Threads: any; the functions have no state. */

enum { DS__COMM_BLOCK = 128 }; /* bytes; the functions process multiples of a block */

typedef void (*ds__comm_run_fn)(const ds__comm_reduce_args *r, char *out, const char *const *in,
                                size_t bytes, int around);

#define DS__COMM_PUT(W, V, to, v)        \
    do {                                 \
        if (around)                      \
            DS__VECTOR_STREAM(W, to, v); \
        else                             \
            *(V *)(void *)(to) = (v);    \
    } while (0)

/* The end of a sum or product of floats of type T, whose bits are a U: divides an average, and
   replaces every NaN by the same NaN. Most vectors have no NaN. */
#define DS__COMM_ONE_NAN(V, U, x, value) \
    x = (V)(((U)(x) & ~(U)((x) != (x))) | ((U)((x) != (x)) & (value)));
#define DS__COMM_END(W, V, U, T, value, divisor)                          \
    if (divisor > 1) {                                                    \
        T n = (T)divisor;                                                 \
        a /= n, b /= n, c /= n, d /= n;                                   \
    }                                                                     \
    if (DS__VECTOR_ANY_##W((a != a) | (b != b) | (c != c) | (d != d))) {  \
        DS__COMM_ONE_NAN(V, U, a, value)                                  \
        DS__COMM_ONE_NAN(V, U, b, value)                                  \
        DS__COMM_ONE_NAN(V, U, c, value) DS__COMM_ONE_NAN(V, U, d, value) \
    }

#define DS__COMM_END_F32(W, divisor) \
    DS__COMM_END(W, ds__vf32_##W, ds__vu32_##W, float, 0x7fc00000u, divisor)
#define DS__COMM_END_F64(W, divisor) \
    DS__COMM_END(W, ds__vf64_##W, ds__vu64_##W, double, 0x7ff8000000000000u, divisor)
#define DS__COMM_END_INTEGER(W, divisor) (void)(divisor);

/* f16 and bf16: TAKE loads W bytes as two vectors of floats, GIVE stores two vectors. The two
   numbers of a word are separated and combined in place, so no number leaves its lane. Rounding a
   NaN cannot carry into its sign. */
#define DS__COMM_TAKE_BF16(W, from, x, y)                                \
    {                                                                    \
        ds__vu32_##W word = *(const ds__vu32_##W *)(const void *)(from); \
        x = (ds__vf32_##W)(word << 16);                                  \
        y = (ds__vf32_##W)(word & 0xffff0000u);                          \
    }
#define DS__COMM_GIVE_BF16(W, to, x, y)                                 \
    {                                                                   \
        ds__vu32_##W low = (ds__vu32_##W)(x), high = (ds__vu32_##W)(y); \
        low += 0x7fffu + (low >> 16 & 1u);                              \
        high += 0x7fffu + (high >> 16 & 1u);                            \
        low = low >> 16 | (high & 0xffff0000u);                         \
        DS__COMM_PUT(W, ds__vu32_##W, to, low);                         \
    }

#define DS__COMM_TAKE_F16(W, from, x, y)                                                  \
    {                                                                                     \
        ds__vu32_##W low = *(const ds__vu32_##W *)(const void *)(from), high = low >> 16; \
        low &= 0xffffu;                                                                   \
        ds__comm_widen_f16_f32_##W(&low);                                                 \
        ds__comm_widen_f16_f32_##W(&high);                                                \
        x = (ds__vf32_##W)low;                                                            \
        y = (ds__vf32_##W)high;                                                           \
    }
#define DS__COMM_GIVE_F16(W, to, x, y)                                  \
    {                                                                   \
        ds__vu32_##W low = (ds__vu32_##W)(x), high = (ds__vu32_##W)(y); \
        ds__comm_narrow_f16_f32_##W(&low);                              \
        ds__comm_narrow_f16_f32_##W(&high);                             \
        low |= high << 16;                                              \
        DS__COMM_PUT(W, ds__vu32_##W, to, low);                         \
    }

/* f16 by instructions, with the same results as the arithmetic. */
#define DS__COMM_TAKE_NATIVE(W, from, x, y)                                        \
    x = (ds__vf32_32)DS__VECTOR_WIDEN(*(const ds__vi16_16 *)(const void *)(from)); \
    y = (ds__vf32_32)DS__VECTOR_WIDEN(*(const ds__vi16_16 *)(const void *)((from) + 16));
#define DS__COMM_GIVE_NATIVE(W, to, x, y)                                    \
    {                                                                        \
        ds__vi16_16 low = DS__VECTOR_NARROW(x), high = DS__VECTOR_NARROW(y); \
        DS__COMM_PUT(16, ds__vi16_16, to, low);                              \
        DS__COMM_PUT(16, ds__vi16_16, (to) + 16, high);                      \
    }

/* Maximum and minimum of integers, f16 and bf16: the numbers become signed keys, and the largest
   key is the result. The key of NaN is larger than all others. S is a signed type, U an unsigned
   one. */
typedef struct ds__comm_order {
    uint64_t fold;     /* bits to invert in a negative f16 or bf16 */
    uint64_t flip;     /* bits to invert in every number afterwards */
    uint64_t infinity; /* f16, bf16: a larger number without its sign is NaN */
    uint64_t quiet;    /* f16, bf16: the NaN that is written */
} ds__comm_order;

static ds__comm_order ds__comm_order_of(uint32_t kind, uint32_t op) {
    uint32_t bits = 8u * ds__comm_size[kind];
    uint64_t all = ~(uint64_t)0 >> (64 - bits), top = all - (all >> 1);
    ds__comm_order o = { 0, kind <= DS__COMM_U64 ? top : 0, 0, 0 };
    if (kind == DS__COMM_F16)
        o.fold = 0x7fff, o.infinity = 0x7c00, o.quiet = 0x7e00;
    if (kind == DS__COMM_BF16)
        o.fold = 0x7fff, o.infinity = 0x7f80, o.quiet = 0x7fc0;
    if (op == DS__COMM_MIN)
        o.flip ^= all;
    return o;
}

#define DS__COMM_KEY(U, S, from, key) key = (S)(*(const U *)(const void *)(from) ^ flip);
#define DS__COMM_UNKEY(W, U, S, to, key) \
    {                                    \
        U v = (U)(key) ^ flip;           \
        DS__COMM_PUT(W, U, to, v);       \
    }
#define DS__COMM_KEY_HALF(U, S, from, key)                                          \
    {                                                                               \
        U v = *(const U *)(const void *)(from), nan = (U)((S)(v & abs) > infinity); \
        v ^= ((U)((S)v < 0) & fold) ^ flip;                                         \
        key = (S)((v & ~nan) | (nan & abs));                                        \
    }
#define DS__COMM_UNKEY_HALF(W, U, S, to, key)               \
    {                                                       \
        U v = (U)(key) ^ flip, nan = (U)((key) > infinity); \
        v ^= (U)((S)v < 0) & fold;                          \
        v = (v & ~nan) | (nan & quiet);                     \
        DS__COMM_PUT(W, U, to, v);                          \
    }
#define DS__COMM_LARGER(U, S, a, x)                \
    {                                              \
        U more = (U)((x) > (a));                   \
        a = (S)(((U)(x)&more) | ((U)(a) & ~more)); \
    }
/* Maximum of floats of type V, whose bits are a U; for the minimum all signs are inverted. +0 and
   -0 compare as equal: if the maximum is a zero, it is -0 only if all zeros are negative. `all` has
   the bits that are set in all numbers; for zeros that is the sign. */
#define DS__COMM_LARGER_REAL(V, U, from, a, all, nan)           \
    {                                                           \
        U bits = *(const U *)(const void *)(from) ^ flip, more; \
        V x = (V)bits;                                          \
        more = (U)(x > a);                                      \
        all &= bits;                                            \
        nan |= (U)(x != x);                                     \
        a = (V)((bits & more) | ((U)a & ~more));                \
    }

/* comm/kernel_vector.gen.h - generated from comm/kernel_vector.tmpl by `make headers`. Edit that file. */

#if DS__VECTOR_HAS_16
/* Vectors of 16 bytes that may lie anywhere, over any memory. */
typedef uint8_t ds__vu8_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t ds__vu16_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t ds__vu32_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t ds__vu64_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef int16_t ds__vi16_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef float ds__vf32_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef double ds__vf64_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t ds__vi8_16 __attribute__((vector_size(16)));
typedef int32_t ds__vi32_16 __attribute__((vector_size(16)));
typedef int64_t ds__vi64_16 __attribute__((vector_size(16)));
typedef float ds__vf32_whole_16 __attribute__((vector_size(16)));
#endif

#if DS__VECTOR_HAS_32
/* Vectors of 32 bytes that may lie anywhere, over any memory. */
typedef uint8_t ds__vu8_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint16_t ds__vu16_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint32_t ds__vu32_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint64_t ds__vu64_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef int16_t ds__vi16_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef float ds__vf32_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef double ds__vf64_32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef int8_t ds__vi8_32 __attribute__((vector_size(32)));
typedef int32_t ds__vi32_32 __attribute__((vector_size(32)));
typedef int64_t ds__vi64_32 __attribute__((vector_size(32)));
typedef float ds__vf32_whole_32 __attribute__((vector_size(32)));
#endif

DS__COMM_F16_MATH(DS__COMM_FN, f32_16, ds__vu32_16, ds__vi32_16, (ds__vf32_16), (ds__vu32_16))

#if DS__VECTOR_HAS_16
/* Sums and products of kinds whose numbers are computed as they lie in memory. */
static DS__VECTOR_16 void ds__comm_run_u8_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vu8_16 *p = (const ds__vu8_16 *)(const void *)(in[0] + at);
        ds__vu8_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu8_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(16, divisor)
        DS__COMM_PUT(16, ds__vu8_16, out + at, a);
        DS__COMM_PUT(16, ds__vu8_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vu8_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vu8_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_u16_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vu16_16 *p = (const ds__vu16_16 *)(const void *)(in[0] + at);
        ds__vu16_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu16_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(16, divisor)
        DS__COMM_PUT(16, ds__vu16_16, out + at, a);
        DS__COMM_PUT(16, ds__vu16_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vu16_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vu16_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_u32_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vu32_16 *p = (const ds__vu32_16 *)(const void *)(in[0] + at);
        ds__vu32_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu32_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(16, divisor)
        DS__COMM_PUT(16, ds__vu32_16, out + at, a);
        DS__COMM_PUT(16, ds__vu32_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vu32_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vu32_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_u64_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vu64_16 *p = (const ds__vu64_16 *)(const void *)(in[0] + at);
        ds__vu64_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu64_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(16, divisor)
        DS__COMM_PUT(16, ds__vu64_16, out + at, a);
        DS__COMM_PUT(16, ds__vu64_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vu64_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vu64_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_f32_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vf32_16 *p = (const ds__vf32_16 *)(const void *)(in[0] + at);
        ds__vf32_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vf32_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_F32(16, divisor)
        DS__COMM_PUT(16, ds__vf32_16, out + at, a);
        DS__COMM_PUT(16, ds__vf32_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vf32_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vf32_16, out + at + 3 * 16, d);
    }
}

static DS__VECTOR_16 void ds__comm_run_f64_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 16) {
        const ds__vf64_16 *p = (const ds__vf64_16 *)(const void *)(in[0] + at);
        ds__vf64_16 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vf64_16 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_F64(16, divisor)
        DS__COMM_PUT(16, ds__vf64_16, out + at, a);
        DS__COMM_PUT(16, ds__vf64_16, out + at + 16, b);
        DS__COMM_PUT(16, ds__vf64_16, out + at + 2 * 16, c);
        DS__COMM_PUT(16, ds__vf64_16, out + at + 3 * 16, d);
    }
}

/* Sums and products of halves, computed as floats. */
static DS__VECTOR_16 void ds__comm_run_f16_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        ds__vf32_16 a, b, c, d, x, y;
        DS__COMM_TAKE_F16(16, in[0] + at, a, b)
        DS__COMM_TAKE_F16(16, in[0] + at + 16, c, d)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_TAKE_F16(16, in[k] + at, x, y)
            if (sum)
                a += x, b += y;
            else
                a *= x, b *= y;
            DS__COMM_TAKE_F16(16, in[k] + at + 16, x, y)
            if (sum)
                c += x, d += y;
            else
                c *= x, d *= y;
        }
        DS__COMM_END_F32(16, divisor)
        DS__COMM_GIVE_F16(16, out + at, a, b)
        DS__COMM_GIVE_F16(16, out + at + 16, c, d)
    }
}

static DS__VECTOR_16 void ds__comm_run_bf16_16(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        ds__vf32_16 a, b, c, d, x, y;
        DS__COMM_TAKE_BF16(16, in[0] + at, a, b)
        DS__COMM_TAKE_BF16(16, in[0] + at + 16, c, d)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_TAKE_BF16(16, in[k] + at, x, y)
            if (sum)
                a += x, b += y;
            else
                a *= x, b *= y;
            DS__COMM_TAKE_BF16(16, in[k] + at + 16, x, y)
            if (sum)
                c += x, d += y;
            else
                c *= x, d *= y;
        }
        DS__COMM_END_F32(16, divisor)
        DS__COMM_GIVE_BF16(16, out + at, a, b)
        DS__COMM_GIVE_BF16(16, out + at + 16, c, d)
    }
}

/* Maximum and minimum of integers and of halves, which are compared as keys (ds__comm_order). */
static DS__VECTOR_16 void ds__comm_run_largest_i8_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu8_16 U;
    typedef ds__vi8_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint8_t)o.fold, flip = zero + (uint8_t)o.flip;
    U quiet = zero + (uint8_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint8_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(16, U, S, out + at, a)
        DS__COMM_UNKEY(16, U, S, out + at + 16, b)
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_i16_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu16_16 U;
    typedef ds__vi16_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint16_t)o.fold, flip = zero + (uint16_t)o.flip;
    U quiet = zero + (uint16_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint16_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(16, U, S, out + at, a)
        DS__COMM_UNKEY(16, U, S, out + at + 16, b)
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_f16_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu16_16 U;
    typedef ds__vi16_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint16_t)o.fold, flip = zero + (uint16_t)o.flip;
    U quiet = zero + (uint16_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint16_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY_HALF(U, S, in[0] + at, a)
        DS__COMM_KEY_HALF(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY_HALF(U, S, in[k] + at, x)
            DS__COMM_KEY_HALF(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY_HALF(16, U, S, out + at, a)
        DS__COMM_UNKEY_HALF(16, U, S, out + at + 16, b)
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_i32_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu32_16 U;
    typedef ds__vi32_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint32_t)o.fold, flip = zero + (uint32_t)o.flip;
    U quiet = zero + (uint32_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint32_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(16, U, S, out + at, a)
        DS__COMM_UNKEY(16, U, S, out + at + 16, b)
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_i64_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu64_16 U;
    typedef ds__vi64_16 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint64_t)o.fold, flip = zero + (uint64_t)o.flip;
    U quiet = zero + (uint64_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint64_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 16, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 16, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(16, U, S, out + at, a)
        DS__COMM_UNKEY(16, U, S, out + at + 16, b)
    }
}

/* Maximum and minimum of floats. */
static DS__VECTOR_16 void ds__comm_run_largest_f32_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vf32_16 V;
    typedef ds__vu32_16 U;
    const uint32_t inputs = r->inputs;
    const uint32_t top = ~((uint32_t)~(uint32_t)0 >> 1);
    U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        U first = *(const U *)(const void *)(in[0] + at) ^ flip;
        U second = *(const U *)(const void *)(in[0] + at + 16) ^ flip;
        V a = (V)first, b = (V)second;
        U nan = (U)(a != a), not = (U)(b != b);
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)
            DS__COMM_LARGER_REAL(V, U, in[k] + at + 16, b, second, not)
        }
        first = ((U)a & (first | (U)(a != 0))) ^ flip;
        second = ((U)b & (second | (U)(b != 0))) ^ flip;
        if (DS__VECTOR_ANY_16(nan | not)) {
            first = (first & ~nan) | (nan & 0x7fc00000u);
            second = (second & ~not) | (not & 0x7fc00000u);
        }
        DS__COMM_PUT(16, U, out + at, first);
        DS__COMM_PUT(16, U, out + at + 16, second);
    }
}

static DS__VECTOR_16 void ds__comm_run_largest_f64_16(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vf64_16 V;
    typedef ds__vu64_16 U;
    const uint32_t inputs = r->inputs;
    const uint64_t top = ~((uint64_t)~(uint64_t)0 >> 1);
    U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);
    for (size_t at = 0; at < bytes; at += 2 * 16) {
        U first = *(const U *)(const void *)(in[0] + at) ^ flip;
        U second = *(const U *)(const void *)(in[0] + at + 16) ^ flip;
        V a = (V)first, b = (V)second;
        U nan = (U)(a != a), not = (U)(b != b);
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)
            DS__COMM_LARGER_REAL(V, U, in[k] + at + 16, b, second, not)
        }
        first = ((U)a & (first | (U)(a != 0))) ^ flip;
        second = ((U)b & (second | (U)(b != 0))) ^ flip;
        if (DS__VECTOR_ANY_16(nan | not)) {
            first = (first & ~nan) | (nan & 0x7ff8000000000000u);
            second = (second & ~not) | (not & 0x7ff8000000000000u);
        }
        DS__COMM_PUT(16, U, out + at, first);
        DS__COMM_PUT(16, U, out + at + 16, second);
    }
}

/* By operation (sums and products, maximum and minimum) and kind. */
static const ds__comm_run_fn ds__comm_runs_16[][DS__COMM_F64 + 1] = {
    {
        ds__comm_run_u8_16,
        ds__comm_run_u16_16,
        ds__comm_run_u32_16,
        ds__comm_run_u64_16,
        ds__comm_run_u8_16,
        ds__comm_run_u16_16,
        ds__comm_run_u32_16,
        ds__comm_run_u64_16,
        ds__comm_run_f16_16,
        ds__comm_run_bf16_16,
        ds__comm_run_f32_16,
        ds__comm_run_f64_16,
    },
    {
        ds__comm_run_largest_i8_16,
        ds__comm_run_largest_i16_16,
        ds__comm_run_largest_i32_16,
        ds__comm_run_largest_i64_16,
        ds__comm_run_largest_i8_16,
        ds__comm_run_largest_i16_16,
        ds__comm_run_largest_i32_16,
        ds__comm_run_largest_i64_16,
        ds__comm_run_largest_f16_16,
        ds__comm_run_largest_f16_16,
        ds__comm_run_largest_f32_16,
        ds__comm_run_largest_f64_16,
    }
};
#endif
#if DS__VECTOR_HAS_32
/* Sums and products of kinds whose numbers are computed as they lie in memory. */
static DS__VECTOR_32 void ds__comm_run_u8_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vu8_32 *p = (const ds__vu8_32 *)(const void *)(in[0] + at);
        ds__vu8_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu8_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(32, divisor)
        DS__COMM_PUT(32, ds__vu8_32, out + at, a);
        DS__COMM_PUT(32, ds__vu8_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vu8_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vu8_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_u16_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vu16_32 *p = (const ds__vu16_32 *)(const void *)(in[0] + at);
        ds__vu16_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu16_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(32, divisor)
        DS__COMM_PUT(32, ds__vu16_32, out + at, a);
        DS__COMM_PUT(32, ds__vu16_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vu16_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vu16_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_u32_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vu32_32 *p = (const ds__vu32_32 *)(const void *)(in[0] + at);
        ds__vu32_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu32_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(32, divisor)
        DS__COMM_PUT(32, ds__vu32_32, out + at, a);
        DS__COMM_PUT(32, ds__vu32_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vu32_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vu32_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_u64_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vu64_32 *p = (const ds__vu64_32 *)(const void *)(in[0] + at);
        ds__vu64_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vu64_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_INTEGER(32, divisor)
        DS__COMM_PUT(32, ds__vu64_32, out + at, a);
        DS__COMM_PUT(32, ds__vu64_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vu64_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vu64_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_f32_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vf32_32 *p = (const ds__vf32_32 *)(const void *)(in[0] + at);
        ds__vf32_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vf32_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_F32(32, divisor)
        DS__COMM_PUT(32, ds__vf32_32, out + at, a);
        DS__COMM_PUT(32, ds__vf32_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vf32_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vf32_32, out + at + 3 * 32, d);
    }
}

static DS__VECTOR_32 void ds__comm_run_f64_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 4 * 32) {
        const ds__vf64_32 *p = (const ds__vf64_32 *)(const void *)(in[0] + at);
        ds__vf64_32 a = p[0], b = p[1], c = p[2], d = p[3];
        for (uint32_t k = 1; k < inputs; k++) {
            p = (const ds__vf64_32 *)(const void *)(in[k] + at);
            if (sum)
                a += p[0], b += p[1], c += p[2], d += p[3];
            else
                a *= p[0], b *= p[1], c *= p[2], d *= p[3];
        }
        DS__COMM_END_F64(32, divisor)
        DS__COMM_PUT(32, ds__vf64_32, out + at, a);
        DS__COMM_PUT(32, ds__vf64_32, out + at + 32, b);
        DS__COMM_PUT(32, ds__vf64_32, out + at + 2 * 32, c);
        DS__COMM_PUT(32, ds__vf64_32, out + at + 3 * 32, d);
    }
}

/* Sums and products of halves, computed as floats. */
static DS__VECTOR_32 void ds__comm_run_f16_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        ds__vf32_32 a, b, c, d, x, y;
        DS__COMM_TAKE_NATIVE(32, in[0] + at, a, b)
        DS__COMM_TAKE_NATIVE(32, in[0] + at + 32, c, d)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_TAKE_NATIVE(32, in[k] + at, x, y)
            if (sum)
                a += x, b += y;
            else
                a *= x, b *= y;
            DS__COMM_TAKE_NATIVE(32, in[k] + at + 32, x, y)
            if (sum)
                c += x, d += y;
            else
                c *= x, d *= y;
        }
        DS__COMM_END_F32(32, divisor)
        DS__COMM_GIVE_NATIVE(32, out + at, a, b)
        DS__COMM_GIVE_NATIVE(32, out + at + 32, c, d)
    }
}

static DS__VECTOR_32 void ds__comm_run_bf16_32(const ds__comm_reduce_args *r, char *out,
                                                    const char *const *in, size_t bytes, int around) {
    const uint32_t inputs = r->inputs, divisor = r->divisor, sum = r->op == DS__COMM_SUM;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        ds__vf32_32 a, b, c, d, x, y;
        DS__COMM_TAKE_BF16(32, in[0] + at, a, b)
        DS__COMM_TAKE_BF16(32, in[0] + at + 32, c, d)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_TAKE_BF16(32, in[k] + at, x, y)
            if (sum)
                a += x, b += y;
            else
                a *= x, b *= y;
            DS__COMM_TAKE_BF16(32, in[k] + at + 32, x, y)
            if (sum)
                c += x, d += y;
            else
                c *= x, d *= y;
        }
        DS__COMM_END_F32(32, divisor)
        DS__COMM_GIVE_BF16(32, out + at, a, b)
        DS__COMM_GIVE_BF16(32, out + at + 32, c, d)
    }
}

/* Maximum and minimum of integers and of halves, which are compared as keys (ds__comm_order). */
static DS__VECTOR_32 void ds__comm_run_largest_i8_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu8_32 U;
    typedef ds__vi8_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint8_t)o.fold, flip = zero + (uint8_t)o.flip;
    U quiet = zero + (uint8_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint8_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(32, U, S, out + at, a)
        DS__COMM_UNKEY(32, U, S, out + at + 32, b)
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_i16_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu16_32 U;
    typedef ds__vi16_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint16_t)o.fold, flip = zero + (uint16_t)o.flip;
    U quiet = zero + (uint16_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint16_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(32, U, S, out + at, a)
        DS__COMM_UNKEY(32, U, S, out + at + 32, b)
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_f16_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu16_32 U;
    typedef ds__vi16_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint16_t)o.fold, flip = zero + (uint16_t)o.flip;
    U quiet = zero + (uint16_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint16_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY_HALF(U, S, in[0] + at, a)
        DS__COMM_KEY_HALF(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY_HALF(U, S, in[k] + at, x)
            DS__COMM_KEY_HALF(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY_HALF(32, U, S, out + at, a)
        DS__COMM_UNKEY_HALF(32, U, S, out + at + 32, b)
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_i32_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu32_32 U;
    typedef ds__vi32_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint32_t)o.fold, flip = zero + (uint32_t)o.flip;
    U quiet = zero + (uint32_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint32_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(32, U, S, out + at, a)
        DS__COMM_UNKEY(32, U, S, out + at + 32, b)
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_i64_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vu64_32 U;
    typedef ds__vi64_32 S;
    const uint32_t inputs = r->inputs;
    ds__comm_order o = ds__comm_order_of(r->kind, r->op);
    U zero = { 0 }, fold = zero + (uint64_t)o.fold, flip = zero + (uint64_t)o.flip;
    U quiet = zero + (uint64_t)o.quiet, abs = ~zero >> 1;
    S infinity = (S)(zero + (uint64_t)o.infinity);
    (void)fold, (void)quiet, (void)abs, (void)infinity;
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        S a, b, x, y;
        DS__COMM_KEY(U, S, in[0] + at, a)
        DS__COMM_KEY(U, S, in[0] + at + 32, b)
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_KEY(U, S, in[k] + at, x)
            DS__COMM_KEY(U, S, in[k] + at + 32, y)
            DS__COMM_LARGER(U, S, a, x)
            DS__COMM_LARGER(U, S, b, y)
        }
        DS__COMM_UNKEY(32, U, S, out + at, a)
        DS__COMM_UNKEY(32, U, S, out + at + 32, b)
    }
}

/* Maximum and minimum of floats. */
static DS__VECTOR_32 void ds__comm_run_largest_f32_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vf32_32 V;
    typedef ds__vu32_32 U;
    const uint32_t inputs = r->inputs;
    const uint32_t top = ~((uint32_t)~(uint32_t)0 >> 1);
    U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        U first = *(const U *)(const void *)(in[0] + at) ^ flip;
        U second = *(const U *)(const void *)(in[0] + at + 32) ^ flip;
        V a = (V)first, b = (V)second;
        U nan = (U)(a != a), not = (U)(b != b);
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)
            DS__COMM_LARGER_REAL(V, U, in[k] + at + 32, b, second, not)
        }
        first = ((U)a & (first | (U)(a != 0))) ^ flip;
        second = ((U)b & (second | (U)(b != 0))) ^ flip;
        if (DS__VECTOR_ANY_32(nan | not)) {
            first = (first & ~nan) | (nan & 0x7fc00000u);
            second = (second & ~not) | (not & 0x7fc00000u);
        }
        DS__COMM_PUT(32, U, out + at, first);
        DS__COMM_PUT(32, U, out + at + 32, second);
    }
}

static DS__VECTOR_32 void ds__comm_run_largest_f64_32(const ds__comm_reduce_args *r, char *out,
                                                            const char *const *in, size_t bytes, int around) {
    typedef ds__vf64_32 V;
    typedef ds__vu64_32 U;
    const uint32_t inputs = r->inputs;
    const uint64_t top = ~((uint64_t)~(uint64_t)0 >> 1);
    U zero = { 0 }, flip = zero + (r->op == DS__COMM_MIN ? top : 0);
    for (size_t at = 0; at < bytes; at += 2 * 32) {
        U first = *(const U *)(const void *)(in[0] + at) ^ flip;
        U second = *(const U *)(const void *)(in[0] + at + 32) ^ flip;
        V a = (V)first, b = (V)second;
        U nan = (U)(a != a), not = (U)(b != b);
        for (uint32_t k = 1; k < inputs; k++) {
            DS__COMM_LARGER_REAL(V, U, in[k] + at, a, first, nan)
            DS__COMM_LARGER_REAL(V, U, in[k] + at + 32, b, second, not)
        }
        first = ((U)a & (first | (U)(a != 0))) ^ flip;
        second = ((U)b & (second | (U)(b != 0))) ^ flip;
        if (DS__VECTOR_ANY_32(nan | not)) {
            first = (first & ~nan) | (nan & 0x7ff8000000000000u);
            second = (second & ~not) | (not & 0x7ff8000000000000u);
        }
        DS__COMM_PUT(32, U, out + at, first);
        DS__COMM_PUT(32, U, out + at + 32, second);
    }
}

/* By operation (sums and products, maximum and minimum) and kind. */
static const ds__comm_run_fn ds__comm_runs_32[][DS__COMM_F64 + 1] = {
    {
        ds__comm_run_u8_32,
        ds__comm_run_u16_32,
        ds__comm_run_u32_32,
        ds__comm_run_u64_32,
        ds__comm_run_u8_32,
        ds__comm_run_u16_32,
        ds__comm_run_u32_32,
        ds__comm_run_u64_32,
        ds__comm_run_f16_32,
        ds__comm_run_bf16_32,
        ds__comm_run_f32_32,
        ds__comm_run_f64_32,
    },
    {
        ds__comm_run_largest_i8_32,
        ds__comm_run_largest_i16_32,
        ds__comm_run_largest_i32_32,
        ds__comm_run_largest_i64_32,
        ds__comm_run_largest_i8_32,
        ds__comm_run_largest_i16_32,
        ds__comm_run_largest_i32_32,
        ds__comm_run_largest_i64_32,
        ds__comm_run_largest_f16_32,
        ds__comm_run_largest_f16_32,
        ds__comm_run_largest_f32_32,
        ds__comm_run_largest_f64_32,
    }
};
#endif

/* comm/kernel_cpu.h - CPU form of reductions and averages.

   Implements the CPU functions of the reduction kernels: ds__comm_reduce_items for sums,
   products, maximum and minimum, and ds__comm_divide_items for averages of integers.

   Invariants: an item writes only its own bytes of the result, so items may run in parallel. A
   part of a block is computed in a padded copy. On x86-64 and AArch64, ds__comm_reduce_items
   sets the floating-point state of the thread to its defaults and restores the state. The result
   therefore does not depend on the program's rounding mode, flushing and traps. The functions
   return 0 and call no driver entry.
   Locks: takes none, but may run under the locks of the driver's run_together.
   Threads: workers of the CPU driver, and threads that run steps or help the driver. */

/* Reduces whole blocks. around: 1 to write around the caches. vector: bytes of the vectors to use,
   16 or 32. */
static void ds__comm_reduce_blocks(const ds__comm_reduce_args *r, char *out, const char *const *in,
                                   size_t bytes, int around, int vector) {
#if DS__VECTOR_HAS_32
    if (vector == 32)
        ds__comm_runs_32[r->op >= DS__COMM_MAX][r->kind](r, out, in, bytes, around);
    else
#endif
        ds__comm_runs_16[r->op >= DS__COMM_MAX][r->kind](r, out, in, bytes, around);
    (void)vector;
    if (around)
        DS__VECTOR_FENCE();
}

/* Reduces numbers first to end - 1 of f16 or bf16 if the first input or the result is f32, as in
   reductions of several launches. Widens the numbers, computes in f32 and narrows, block by
   block. */
static void ds__comm_reduce_wide(const ds__comm_reduce_args *r, uint64_t first, uint64_t end,
                                 int vector) {
    enum { NUMBERS = 256 };

    uint32_t block[DS__COMM_INPUTS][NUMBERS];
    uint16_t halves[NUMBERS];
    const char *in[DS__COMM_INPUTS];
    ds__comm_reduce_args whole = *r;
    whole.kind = DS__COMM_F32;
    memset(block, 0, sizeof block);
    memset(halves, 0, sizeof halves);
    for (; first < end; first += NUMBERS) {
        size_t n = end - first < NUMBERS ? (size_t)(end - first) : NUMBERS;
        for (uint32_t k = 0; k < r->inputs; k++) {
            uint32_t *b = block[k];
            in[k] = (const char *)b;
            if (k == 0 && (r->wide & DS__COMM_WIDE_IN)) {
                memcpy(b, (const char *)r->in.at[0] + 4 * first, 4 * n);
                continue;
            }
            memcpy(halves, (const char *)r->in.at[k] + 2 * first, 2 * n);
            for (int i = 0; i < NUMBERS; i++)
                b[i] = halves[i];
            if (r->kind == DS__COMM_F16)
                for (int i = 0; i < NUMBERS; i++)
                    ds__comm_widen_f16_f32(&b[i]);
            else
                for (int i = 0; i < NUMBERS; i++)
                    ds__comm_widen_bf16_f32(&b[i]);
        }
        ds__comm_reduce_blocks(&whole, (char *)block[0], in, sizeof block[0], 0, vector);
        if (r->wide & DS__COMM_WIDE_OUT) {
            memcpy((char *)r->out + 4 * first, block[0], 4 * n);
            continue;
        }
        if (r->kind == DS__COMM_F16)
            for (int i = 0; i < NUMBERS; i++)
                ds__comm_narrow_f16_f32(&block[0][i]);
        else
            for (int i = 0; i < NUMBERS; i++)
                ds__comm_narrow_bf16_f32(&block[0][i]);
        for (int i = 0; i < NUMBERS; i++)
            halves[i] = (uint16_t)block[0][i];
        memcpy((char *)r->out + 2 * first, halves, 2 * n);
    }
}

/* Computes products of complex numbers first to end - 1. */
#define DS__COMM_PRODUCTS(NAME, T, U, MULTIPLY, END)                                \
    static void NAME(const ds__comm_reduce_args *r, uint64_t first, uint64_t end) { \
        for (uint64_t i = first; i < end; i++) {                                    \
            T a[2], x[2];                                                           \
            U bits[2];                                                              \
            memcpy(a, (const char *)r->in.at[0] + sizeof a * i, sizeof a);          \
            for (uint32_t k = 1; k < r->inputs; k++) {                              \
                memcpy(x, (const char *)r->in.at[k] + sizeof x * i, sizeof x);      \
                MULTIPLY(a, x);                                                     \
            }                                                                       \
            memcpy(bits, a, sizeof a);                                              \
            END(0, &bits[0]);                                                       \
            END(0, &bits[1]);                                                       \
            memcpy((char *)r->out + sizeof bits * i, bits, sizeof bits);            \
        }                                                                           \
    }
DS__COMM_PRODUCTS(ds__comm_products_c64, float, uint32_t, ds__comm_multiply_c64, ds__comm_end_f32)
DS__COMM_PRODUCTS(ds__comm_products_c128, double, uint64_t, ds__comm_multiply_c128,
                  ds__comm_end_f64)

/* Computes bytes first to end - 1 of the result; vector: as in ds__comm_reduce_blocks. */
static __attribute__((noinline)) void ds__comm_reduce_part(const ds__comm_reduce_args *r,
                                                           uint64_t first, uint64_t end,
                                                           int vector) {
    const char *in[DS__COMM_INPUTS];
    char *out = (char *)r->out + first;
    int around = DS__VECTOR_CAN_STREAM &&
                 ds__stream_pays(r->inputs * (size_t)r->bytes, (size_t)r->bytes) &&
                 ((uintptr_t)out & 31) == 0;
    if (first >= end)
        return;
    if (r->wide) {
        ds__comm_reduce_wide(r, first / 2, end / 2, vector);
        return;
    }
    if (r->kind == DS__COMM_C64) {
        ds__comm_products_c64(r, first / 8, end / 8);
        return;
    }
    if (r->kind == DS__COMM_C128) {
        ds__comm_products_c128(r, first / 16, end / 16);
        return;
    }
    for (uint32_t k = 0; k < r->inputs; k++) {
        in[k] = (const char *)r->in.at[k] + first;
        /* the cache lines of an input are in the cache anyway */
        if (in[k] == out)
            around = 0;
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

/* The CPU form of a reduction. */
static int ds__comm_reduce_items(size_t first, size_t count, const void *args) {
    const ds__comm_reduce_args *r = args;
    uint64_t end = (uint64_t)(first + count) * DS__COMM_ITEM, state = ds__os_float_state();
    int plain = (state & DS__FLOAT_STATE) == DS__FLOAT_USUAL;
    if (!plain)
        ds__os_set_float_state(DS__FLOAT_USUAL);
    ds__comm_reduce_part(r, (uint64_t)first * DS__COMM_ITEM, end < r->bytes ? end : r->bytes,
                         ds__os_vector() >= 32 ? 32 : 16);
    if (!plain)
        ds__os_set_float_state(state);
    return 0;
}

/* Divides integers by a multiplication with 1 / divisor, whose result may be 1 too small. */
__extension__ typedef unsigned __int128 ds__comm_u128;
#define DS__COMM_DIVIDE(T)                                            \
    for (; at < end; at += sizeof(T)) {                               \
        T v, sign;                                                    \
        memcpy(&v, p + at, sizeof v);                                 \
        sign = (T)(0 - (v >> (8 * sizeof v - 1) & is_signed));        \
        v = (T)((v ^ sign) - sign);                                   \
        uint64_t q = (uint64_t)((ds__comm_u128)v * reciprocal >> 64); \
        q += v - q * divisor >= divisor;                              \
        v = (T)(((T)q ^ sign) - sign);                                \
        memcpy(p + at, &v, sizeof v);                                 \
    }

/* The CPU form of the division after a sum of integers. */
static int ds__comm_divide_items(size_t first, size_t count, const void *args) {
    const ds__comm_divide_args *d = args;
    uint64_t at = (uint64_t)first * DS__COMM_ITEM, end = (uint64_t)(first + count) * DS__COMM_ITEM;
    uint64_t divisor = d->divisor, reciprocal = UINT64_MAX / divisor;
    unsigned is_signed = d->kind >= DS__COMM_I8;
    char *p = d->out;
    if (end > d->bytes)
        end = d->bytes;
    switch (d->kind & 3) {
    case DS__COMM_U8:
        DS__COMM_DIVIDE(uint8_t) break;
    case DS__COMM_U16:
        DS__COMM_DIVIDE(uint16_t) break;
    case DS__COMM_U32:
        DS__COMM_DIVIDE(uint32_t) break;
    default:
        DS__COMM_DIVIDE(uint64_t) break;
    }
    return 0;
}

/* comm/kernel_spread.h - kernel that copies one source to several places.

   Reads a source once and writes it to up to DS__SPREAD destinations (ds__spread_kernel), where
   kernels run on the processor. An item is a piece of DS__SPREAD_ITEM bytes.

   Invariants: an item writes only its own piece of each destination, so items may run in parallel.
   Locks: none.
   Threads: those that run kernels. */

enum { DS__SPREAD = 8, DS__SPREAD_ITEM = 16 << 10 };

typedef struct ds__spread_args {
    char *dst[DS__SPREAD];
    const char *src;
    size_t count;
    size_t bytes;
} ds__spread_args;

static int ds__spread_items(size_t first, size_t count, const void *args) {
    const ds__spread_args *a = args;
    size_t at = first * DS__SPREAD_ITEM;
    size_t end = at + count * DS__SPREAD_ITEM < a->bytes ? at + count * DS__SPREAD_ITEM : a->bytes;
    if (ds__stream_pays(a->bytes, a->count * a->bytes))
        at += ds__stream_spread(a->dst, a->count, at, a->src + at, end - at);
    while (at < end) {
        size_t n = end - at < DS__SPREAD_ITEM ? end - at : DS__SPREAD_ITEM;
        for (size_t d = 0; d < a->count; d++)
            memcpy(a->dst[d] + at, a->src + at, n);
        at += n;
    }
    return 0;
}

static ds__kernel ds__spread_kernel = { .cpu_fn = ds__spread_items,
                                        .args_size = sizeof(ds__spread_args),
                                        .grain = 1,
                                        .name = "copy to several devices",
                                        .ours = 1 };

/* comm/kernel_pack.h - CPU form of the strided copy.

   Implements the CPU function of the strided copy (ds__comm_pack_items). Rows are copied one by
   one, very short rows by columns, and some transpositions in tiles of whole cache lines
   (ds__comm_tile).

   Invariants: source and destination do not overlap. An element has 1, 2, 4, 8 or 16 bytes, and
   a copy has one to DS__COMM_DIMS dimensions. An item writes only its own elements, so items may
   run in parallel.
   Locks: takes none, but may run under the locks of the driver's run_together.
   Threads: workers of the CPU driver, and threads that run steps or help the driver. */

/* Copies n elements of a constant size. */
DS__COMM_FN void ds__comm_copy_elements(char *dst, int64_t dst_step, const char *src,
                                        int64_t src_step, size_t size, uint64_t n) {
    for (; n >= 4; n -= 4, dst += 4 * dst_step, src += 4 * src_step) {
        memcpy(dst, src, size);
        memcpy(dst + dst_step, src + src_step, size);
        memcpy(dst + 2 * dst_step, src + 2 * src_step, size);
        memcpy(dst + 3 * dst_step, src + 3 * src_step, size);
    }
    for (; n > 0; n--, dst += dst_step, src += src_step)
        memcpy(dst, src, size);
}

static void ds__comm_copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step,
                              uint32_t size, uint64_t n) {
    if (dst_step == (int64_t)size && src_step == (int64_t)size)
        memcpy(dst, src, (size_t)(n * size));
    else if (size == 1)
        ds__comm_copy_elements(dst, dst_step, src, src_step, 1, n);
    else if (size == 2)
        ds__comm_copy_elements(dst, dst_step, src, src_step, 2, n);
    else if (size == 4)
        ds__comm_copy_elements(dst, dst_step, src, src_step, 4, n);
    else if (size == 8)
        ds__comm_copy_elements(dst, dst_step, src, src_step, 8, n);
    else
        ds__comm_copy_elements(dst, dst_step, src, src_step, 16, n);
}

/* Transposition: a row of the result lies in a column of the source. Tiles of DS__COMM_LINE by
   DS__COMM_LINE bytes are transposed, so that both sides are accessed by whole cache lines. The
   tiles follow the columns, since each column may be in a page of its own. */
enum { DS__COMM_LINE = 64, DS__COMM_TILES = 8 };

/* A transposition of `columns` elements per row of the result. */
typedef struct ds__comm_turn {
    int64_t dst_row;    /* bytes from a row of the result to the next */
    int64_t src_column; /* bytes from a column of the source to the next */
    uint64_t columns;
} ds__comm_turn;

/* Transposes the first `count` columns of a tile to `to`, whose rows are `pitch` bytes apart. */
DS__COMM_FN void ds__comm_turn_tile(const ds__comm_turn *t, char *to, int64_t pitch,
                                    const char *from, int count, size_t size) {
    const int rows = DS__COMM_LINE / (int)size;
    for (int column = 0; column < count; column++, from += t->src_column) {
        char *at = to + (size_t)column * size;
        for (int r = 0; r < rows; r += 4, at += 4 * pitch) {
            const char *element = from + (size_t)r * size;
            memcpy(at, element, size);
            memcpy(at + pitch, element + size, size);
            memcpy(at + 2 * pitch, element + 2 * size, size);
            memcpy(at + 3 * pitch, element + 3 * size, size);
        }
    }
}

/* Transposes rows of elements of a constant size. Whole tiles are assembled in a buffer; narrower
   ones, at the end of the rows, are written in place. */
DS__COMM_FN void ds__comm_turn_elements(const ds__comm_turn *t, char *dst, const char *src,
                                        uint64_t rows, size_t size) {
    char tile[DS__COMM_LINE * DS__COMM_LINE];
    const uint64_t side = DS__COMM_LINE / size;
    for (uint64_t column = 0; column < t->columns; column += side) {
        uint64_t left = t->columns - column;
        for (uint64_t row = 0; row < rows; row += side) {
            const char *from = src + (int64_t)column * t->src_column + row * size;
            char *to = dst + (int64_t)row * t->dst_row + column * size;
            if (left < side) {
                ds__comm_turn_tile(t, to, t->dst_row, from, (int)left, size);
                continue;
            }
            ds__comm_turn_tile(t, tile, DS__COMM_LINE, from, (int)side, size);
            for (uint64_t r = 0; r < side; r++)
                memcpy(to + (int64_t)r * t->dst_row, tile + r * DS__COMM_LINE, DS__COMM_LINE);
        }
    }
}

/* Transposes rows, a multiple of DS__COMM_LINE / size. */
static void ds__comm_turn_rows(const ds__comm_turn *t, char *dst, const char *src, uint64_t rows,
                               uint32_t size) {
    if (size == 1)
        ds__comm_turn_elements(t, dst, src, rows, 1);
    else if (size == 2)
        ds__comm_turn_elements(t, dst, src, rows, 2);
    else if (size == 4)
        ds__comm_turn_elements(t, dst, src, rows, 4);
    else
        ds__comm_turn_elements(t, dst, src, rows, 8);
}

/* Returns the rows of a tile, or 0 if the rows are better copied one by one. A cache line of a
   column has elements of the next rows, and mostly stays in the cache until they are read. It does
   not stay if there are many columns, or if their distance maps them to the same cache sets. */
static uint64_t ds__comm_tile(const ds__comm_pack_args *p) {
    int last = (int)p->ndim - 1;
    if (last == 0 || p->size > 8 || p->dims.dst[last] != (int64_t)p->size ||
        p->dims.src[last - 1] != (int64_t)p->size)
        return 0;
    uint64_t side = DS__COMM_LINE / p->size, columns = p->dims.size[last],
             apart = (uint64_t)p->dims.src[last];
    apart &= 0 - apart;
    if (apart < DS__COMM_LINE)
        apart = DS__COMM_LINE;
    return columns > ((uint64_t)512 << 10) / apart ? side : 0;
}

enum { DS__COMM_SHORT = 8, DS__COMM_ROWS = 256 };

/* The rows that are copied together: rows of a transposition in tiles, or very short rows by
   columns. */
typedef struct ds__comm_rows {
    uint64_t tile; /* rows of a tile; 0: no tiles */
    uint64_t most; /* 0: rows are copied one by one */
} ds__comm_rows;

static ds__comm_rows ds__comm_rows_of(const ds__comm_pack_args *p) {
    ds__comm_rows rows = { ds__comm_tile(p), 0 };
    if (rows.tile)
        rows.most = rows.tile * DS__COMM_TILES;
    else if (p->dims.size[p->ndim - 1] < DS__COMM_SHORT && p->ndim > 1)
        rows.most = DS__COMM_ROWS;
    return rows;
}

/* Place of an element: its indices, and its offsets in bytes. */
typedef struct ds__comm_position {
    int64_t dst;
    int64_t src;
    uint64_t index[DS__COMM_DIMS];
} ds__comm_position;

static void ds__comm_position_set(ds__comm_position *at, const ds__comm_pack_args *p,
                                  uint64_t element) {
    at->dst = at->src = 0;
    for (uint32_t k = p->ndim; k-- > 0; element /= p->dims.size[k]) {
        at->index[k] = element % p->dims.size[k];
        at->dst += (int64_t)at->index[k] * p->dims.dst[k];
        at->src += (int64_t)at->index[k] * p->dims.src[k];
    }
}

/* Moves from the begin of a row to the begin of a later row of the same plane or of the next
   plane. */
static inline void ds__comm_position_advance(ds__comm_position *at, const ds__comm_pack_args *p,
                                             uint64_t rows) {
    const ds__comm_dims *d = &p->dims;
    for (uint32_t k = p->ndim - 1; k-- > 0; at->index[k] = 0, rows = 1) {
        at->dst += (int64_t)rows * d->dst[k];
        at->src += (int64_t)rows * d->src[k];
        at->index[k] += rows;
        if (at->index[k] < d->size[k])
            break;
        at->dst -= (int64_t)d->size[k] * d->dst[k];
        at->src -= (int64_t)d->size[k] * d->src[k];
    }
}

/* Returns the number of whole rows of one plane to copy together, of `left` elements; 0: none. */
static inline uint64_t ds__comm_rows_together(const ds__comm_rows *together,
                                              const ds__comm_pack_args *p,
                                              const ds__comm_position *at, uint64_t left) {
    uint32_t last = p->ndim - 1;
    if (!together->most || at->index[last] != 0)
        return 0;
    uint64_t rows = p->dims.size[last - 1] - at->index[last - 1];
    if (rows > left / p->dims.size[last])
        rows = left / p->dims.size[last];
    if (rows > together->most)
        rows = together->most;
    return together->tile ? rows - rows % together->tile : rows;
}

static void ds__comm_copy_rows(const ds__comm_pack_args *p, const ds__comm_position *at, int tiled,
                               uint64_t rows) {
    const ds__comm_dims *d = &p->dims;
    const uint32_t last = p->ndim - 1;
    char *dst = p->dst + at->dst;
    const char *src = p->src + at->src;
    if (tiled) {
        ds__comm_turn t = { d->dst[last - 1], d->src[last], d->size[last] };
        ds__comm_turn_rows(&t, dst, src, rows, p->size);
        return;
    }
    for (uint64_t c = 0; c < d->size[last]; c++, dst += d->dst[last], src += d->src[last])
        ds__comm_copy_row(dst, d->dst[last - 1], src, d->src[last - 1], p->size, rows);
}

/* Copies the rest of a row, at most `left` elements, and returns their number. Moves back to the
   begin of the row. */
static inline uint64_t ds__comm_copy_rest(const ds__comm_pack_args *p, ds__comm_position *at,
                                          uint64_t left) {
    const uint32_t last = p->ndim - 1;
    uint64_t n = p->dims.size[last] - at->index[last];
    if (n > left)
        n = left;
    ds__comm_copy_row(p->dst + at->dst, p->dims.dst[last], p->src + at->src, p->dims.src[last],
                      p->size, n);
    at->dst -= (int64_t)at->index[last] * p->dims.dst[last];
    at->src -= (int64_t)at->index[last] * p->dims.src[last];
    at->index[last] = 0;
    return n;
}

/* The CPU form. The position is computed once, and then advanced. */
static int ds__comm_pack_items(size_t first, size_t count, const void *args) {
    const ds__comm_pack_args *p = args;
    const uint64_t block = DS__COMM_ITEM / p->size;
    const ds__comm_rows together = ds__comm_rows_of(p);
    ds__comm_position at;
    uint64_t i = first * block;
    uint64_t end = (first + count) * block;
    if (end > p->elements)
        end = p->elements;
    if (i >= end)
        return 0;
    ds__comm_position_set(&at, p, i);
    while (i < end) {
        uint64_t rows = ds__comm_rows_together(&together, p, &at, end - i);
        if (rows) {
            ds__comm_copy_rows(p, &at, together.tile != 0, rows);
            i += rows * p->dims.size[p->ndim - 1];
        } else {
            i += ds__comm_copy_rest(p, &at, end - i);
            rows = 1;
        }
        ds__comm_position_advance(&at, p, rows);
    }
    return 0;
}

/* >>device-code kernels/comm.cu: written by make kernels */
static const char ds__ptx_comm_select[] =
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
static const char ds__ptx_comm_integers[] =
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
static const char ds__ptx_comm_divide[] =
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
static const char ds__ptx_comm_f32[] =
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
static const char ds__ptx_comm_f64[] =
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
static const char *const ds__ptx_comm_halves[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_halves( .param .u64 p0, .param .align 8 .b8 p1[64], .param .u64 p2, .param .u32 p3,\n"
    ".param .u32 p4, .param .u32 p5, .param .u32 p6 ) { .reg .pred %p<39>; .reg .b16 %h<17>; .reg .b16 %rs<17>;\n"
    ".reg .b32 %r<146>; .reg .f32 %f<108>; .reg .b64 %d<135>; ld.param.u64 %d62,[p2]; ld.param.u64 %d61,[p0];\n"
    "and.b64 %d3,%d61,14; mov.u32 %r48,%ctaid.x; mul.wide.u32 %d64,%r48,256; mov.u32 %r49,%tid.x; cvt.u64.u32 %d5,%r49;\n"
    "add.s64 %d65,%d64,%d5; shl.b64 %d66,%d65,4; sub.s64 %d122,%d66,%d3; setp.ge.s64 %p3,%d122,%d62; @%p3 bra L24;\n"
    "ld.param.u32 %r47,[p6]; ld.param.u32 %r46,[p5]; ld.param.u32 %r45,[p4]; ld.param.u32 %r44,[p3]; mov.b64 %d63,p1;\n"
    "mov.u64 %d1,%d63; cvta.to.global.u64 %d2,%d61; cvt.u64.u32 %d4,%r48; mov.u32 %r50,%nctaid.x;\n"
    "mul.wide.u32 %d7,%r50,4096; setp.lt.u64 %p1,%d62,16; add.s64 %d67,%d62,-15; selp.b64 %d8,0,%d67,%p1;\n"
    "setp.eq.s32 %p2,%r45,0; selp.b32 %r1,-2147483648,1065353216,%p2; cvt.rn.f32.u32 %f1,%r46; max.u32 %r2,%r44,1;\n"
    "shl.b64 %d68,%d4,12; shl.b64 %d69,%d5,4; add.s64 %d70,%d68,%d69; sub.s64 %d71,%d70,%d3; add.s64 %d121,%d71,14;\n"
    "add.s64 %d120,%d2,%d122; setp.ne.s32 %p9,%r47,8; setp.lt.u32 %p13,%r46,2; bra.uni L2;\n"
    "L26: add.s64 %d51,%d2,%d122; st.global.v2.u64 [%d51],{%d131,%d134};\n"
    "L23: add.s64 %d122,%d122,%d7; add.s64 %d121,%d121,%d7; add.s64 %d120,%d120,%d7; setp.lt.s64 %p38,%d122,%d62;\n"
    "@%p38 bra L2; bra.uni L24;\n"
    "L2: mov.u32 %r128,0; mov.u32 %r138,%r1; mov.u32 %r139,%r1; mov.u32 %r140,%r1; mov.u32 %r141,%r1; mov.u32 %r142,%r1;\n"
    "mov.u32 %r143,%r1; mov.u32 %r144,%r1; mov.u32 %r145,%r1; bra.uni L3;\n"
    "L10: cvt.u32.u64 %r12,%d127; cvt.u32.u64 %r13,%d34; cvt.u32.u64 %r14,%d128; cvt.u32.u64 %r15,%d36;\n"
    "shl.b32 %r53,%r12,16; and.b32 %r54,%r12,-65536; mov.b32 %f26,%r145; mov.b32 %f27,%r53; mul.rn.f32 %f28,%f26,%f27;\n"
    "add.rn.f32 %f29,%f26,%f27; selp.f32 %f107,%f29,%f28,%p2; mov.b32 %f30,%r144; mov.b32 %f31,%r54;\n"
    "mul.rn.f32 %f32,%f30,%f31; add.rn.f32 %f33,%f30,%f31; selp.f32 %f106,%f33,%f32,%p2; shl.b32 %r55,%r13,16;\n"
    "and.b32 %r56,%r13,-65536; mov.b32 %f34,%r143; mov.b32 %f35,%r55; mul.rn.f32 %f36,%f34,%f35; add.rn.f32 %f37,%f34,%f35;\n"
    "selp.f32 %f105,%f37,%f36,%p2; mov.b32 %f38,%r142; mov.b32 %f39,%r56; mul.rn.f32 %f40,%f38,%f39;\n"
    "add.rn.f32 %f41,%f38,%f39; selp.f32 %f104,%f41,%f40,%p2; shl.b32 %r57,%r14,16; and.b32 %r58,%r14,-65536;\n"
    "mov.b32 %f42,%r141; mov.b32 %f43,%r57; mul.rn.f32 %f44,%f42,%f43; add.rn.f32 %f45,%f42,%f43;\n"
    "selp.f32 %f103,%f45,%f44,%p2; mov.b32 %f46,%r140; mov.b32 %f47,%r58; mul.rn.f32 %f48,%f46,%f47;\n"
    "add.rn.f32 %f49,%f46,%f47; selp.f32 %f102,%f49,%f48,%p2; shl.b32 %r59,%r15,16; and.b32 %r60,%r15,-65536;\n"
    "mov.b32 %f50,%r139; mov.b32 %f51,%r59; mul.rn.f32 %f52,%f50,%f51; add.rn.f32 %f53,%f50,%f51;\n"
    "selp.f32 %f101,%f53,%f52,%p2; mov.b32 %f54,%r138; mov.b32 %f55,%r60; mul.rn.f32 %f56,%f54,%f55;\n"
    "add.rn.f32 %f57,%f54,%f55; selp.f32 %f100,%f57,%f56,%p2;\n"
    "L11: mov.b32 %r145,%f107; mov.b32 %r144,%f106; mov.b32 %r143,%f105; mov.b32 %r142,%f104; mov.b32 %r141,%f103;\n"
    "mov.b32 %r140,%f102; mov.b32 %r139,%f101; mov.b32 %r138,%f100; add.s32 %r128,%r128,1; setp.ne.s32 %p12,%r128,%r2;\n"
    "@%p12 bra L3; bra.uni L12;\n"
    "L3: setp.lt.u64 %p4,%d122,%d8; mul.wide.u32 %d72,%r128,8; add.s64 %d73,%d1,%d72; ld.param.u64 %d74,[%d73];\n"
    "cvta.to.global.u64 %d14,%d74; add.s64 %d75,%d122,%d74; and.b64 %d76,%d75,15; setp.eq.s64 %p5,%d76,0;\n"
    "and.pred %p6,%p4,%p5; @%p6 bra L25; add.s64 %d16,%d14,%d121; mov.u64 %d123,0; mov.u64 %d124,%d123;\n"
    "mov.u64 %d128,%d123; bra.uni L5;\n"
    "L7: shr.u64 %d80,%d124,48; shl.b64 %d81,%d128,16; or.b64 %d128,%d81,%d80; add.s64 %d123,%d123,-2;\n"
    "cvt.u32.u64 %r52,%d123; setp.ne.s32 %p8,%r52,-16; mov.u64 %d124,%d127; @%p8 bra L5; bra.uni L8;\n"
    "L5: shl.b64 %d127,%d124,16; add.s64 %d82,%d122,%d123; add.s64 %d83,%d82,14; setp.ge.u64 %p7,%d83,%d62; @%p7 bra L7;\n"
    "add.s64 %d25,%d16,%d123; ld.global.u16 %d84,[%d25]; or.b64 %d127,%d127,%d84; bra.uni L7;\n"
    "L25: add.s64 %d15,%d14,%d122; ld.global.v2.u64 {%d127,%d128},[%d15];\n"
    "L8: shr.u64 %d34,%d127,32; shr.u64 %d36,%d128,32; @%p9 bra L10; cvt.u16.u64 %rs1,%d127; mov.b16 %h1,%rs1;\n", /* 4033 characters */
    "cvt.f32.f16 %f58,%h1; shr.u64 %d85,%d127,16; cvt.u16.u64 %rs2,%d85; mov.b16 %h2,%rs2; cvt.f32.f16 %f59,%h2;\n"
    "mov.b32 %f60,%r145; mul.rn.f32 %f61,%f58,%f60; add.rn.f32 %f62,%f58,%f60; selp.f32 %f107,%f62,%f61,%p2;\n"
    "mov.b32 %f63,%r144; mul.rn.f32 %f64,%f59,%f63; add.rn.f32 %f65,%f59,%f63; selp.f32 %f106,%f65,%f64,%p2;\n"
    "cvt.u16.u64 %rs3,%d34; mov.b16 %h3,%rs3; cvt.f32.f16 %f66,%h3; shr.u64 %d86,%d127,48; cvt.u16.u64 %rs4,%d86;\n"
    "mov.b16 %h4,%rs4; cvt.f32.f16 %f67,%h4; mov.b32 %f68,%r143; mul.rn.f32 %f69,%f66,%f68; add.rn.f32 %f70,%f66,%f68;\n"
    "selp.f32 %f105,%f70,%f69,%p2; mov.b32 %f71,%r142; mul.rn.f32 %f72,%f67,%f71; add.rn.f32 %f73,%f67,%f71;\n"
    "selp.f32 %f104,%f73,%f72,%p2; cvt.u16.u64 %rs5,%d128; mov.b16 %h5,%rs5; cvt.f32.f16 %f74,%h5; shr.u64 %d87,%d128,16;\n"
    "cvt.u16.u64 %rs6,%d87; mov.b16 %h6,%rs6; cvt.f32.f16 %f75,%h6; mov.b32 %f76,%r141; mul.rn.f32 %f77,%f74,%f76;\n"
    "add.rn.f32 %f78,%f74,%f76; selp.f32 %f103,%f78,%f77,%p2; mov.b32 %f79,%r140; mul.rn.f32 %f80,%f75,%f79;\n"
    "add.rn.f32 %f81,%f75,%f79; selp.f32 %f102,%f81,%f80,%p2; cvt.u16.u64 %rs7,%d36; mov.b16 %h7,%rs7;\n"
    "cvt.f32.f16 %f82,%h7; shr.u64 %d88,%d128,48; cvt.u16.u64 %rs8,%d88; mov.b16 %h8,%rs8; cvt.f32.f16 %f83,%h8;\n"
    "mov.b32 %f84,%r139; mul.rn.f32 %f85,%f82,%f84; add.rn.f32 %f86,%f82,%f84; selp.f32 %f101,%f86,%f85,%p2;\n"
    "mov.b32 %f87,%r138; mul.rn.f32 %f88,%f83,%f87; add.rn.f32 %f89,%f83,%f87; selp.f32 %f100,%f89,%f88,%p2; bra.uni L11;\n"
    "L12: @%p13 bra L15; mov.u32 %r129,8; mov.u32 %r137,%r145;\n"
    "L14: mov.u32 %r145,%r144; mov.u32 %r144,%r143; mov.u32 %r143,%r142; mov.u32 %r142,%r141; mov.u32 %r141,%r140;\n"
    "mov.u32 %r140,%r139; mov.u32 %r139,%r138; mov.b32 %f90,%r137; div.rn.f32 %f91,%f90,%f1; mov.b32 %r62,%f91;\n"
    "setp.nan.f32 %p14,%f91,%f91; selp.b32 %r138,2143289344,%r62,%p14; add.s32 %r129,%r129,-1; setp.ne.s32 %p15,%r129,0;\n"
    "mov.u32 %r137,%r145; @%p15 bra L14;\n"
    "L15: @%p9 bra L17; mov.b32 %f92,%r145; mov.b32 %f93,%r144; cvt.rn.f16.f32 %h9,%f92; mov.b16 %rs9,%h9;\n"
    "setp.nan.f32 %p25,%f92,%f92; cvt.u64.u16 %d92,%rs9; selp.b64 %d93,32256,%d92,%p25; cvt.rn.f16.f32 %h10,%f93;\n"
    "mov.b16 %rs10,%h10; setp.nan.f32 %p26,%f93,%f93; mov.b32 %f94,%r143; mov.b32 %f95,%r142; cvt.rn.f16.f32 %h11,%f94;\n"
    "mov.b16 %rs11,%h11; setp.nan.f32 %p27,%f94,%f94; cvt.u64.u16 %d94,%rs11; selp.b64 %d95,32256,%d94,%p27;\n"
    "cvt.rn.f16.f32 %h12,%f95; mov.b16 %rs12,%h12; setp.nan.f32 %p28,%f95,%f95; cvt.u64.u16 %d96,%rs12; mov.b32 %f96,%r141;\n"
    "mov.b32 %f97,%r140; cvt.rn.f16.f32 %h13,%f96; mov.b16 %rs13,%h13; setp.nan.f32 %p29,%f96,%f96; cvt.u64.u16 %d97,%rs13;\n"
    "selp.b64 %d98,32256,%d97,%p29; cvt.rn.f16.f32 %h14,%f97; mov.b16 %rs14,%h14; setp.nan.f32 %p30,%f97,%f97;\n"
    "mov.b32 %f98,%r139; mov.b32 %f99,%r138; cvt.rn.f16.f32 %h15,%f98; mov.b16 %rs15,%h15; setp.nan.f32 %p31,%f98,%f98;\n"
    "cvt.u64.u16 %d99,%rs15; selp.b64 %d100,32256,%d99,%p31; cvt.rn.f16.f32 %h16,%f99; mov.b16 %rs16,%h16;\n"
    "setp.nan.f32 %p32,%f99,%f99; cvt.u32.u16 %r115,%rs14; mul.wide.u32 %d101,%r115,65536;\n"
    "selp.b64 %d102,2113929216,%d101,%p30; or.b64 %d130,%d98,%d102; shl.b64 %d103,%d96,16;\n"
    "selp.b64 %d104,2113929216,%d103,%p28; or.b64 %d105,%d104,%d95; cvt.u32.u16 %r116,%rs10;\n"
    "mul.wide.u32 %d106,%r116,65536; selp.b64 %d107,2113929216,%d106,%p26; or.b64 %d108,%d93,%d107;\n"
    "cvt.u32.u16 %r117,%rs16; mul.wide.u32 %d109,%r117,65536; selp.b64 %d110,2113929216,%d109,%p32;\n"
    "or.b64 %d129,%d110,%d100; shl.b64 %d111,%d105,32; or.b64 %d131,%d111,%d108; bra.uni L18;\n"
    "L17: and.b32 %r63,%r145,2147483647; setp.gt.u32 %p17,%r63,2139095040; bfe.u32 %r64,%r145,16,1;\n"
    "add.s32 %r65,%r145,%r64; add.s32 %r66,%r65,32767; shr.u32 %r67,%r66,16; selp.b32 %r68,32704,%r67,%p17;\n"
    "and.b32 %r69,%r144,2147483647; setp.gt.u32 %p18,%r69,2139095040; bfe.u32 %r70,%r144,16,1; add.s32 %r71,%r144,%r70;\n"
    "add.s32 %r72,%r71,32767; and.b32 %r73,%r72,-65536; selp.b32 %r74,2143289344,%r73,%p18; and.b32 %r75,%r143,2147483647;\n"
    "setp.gt.u32 %p19,%r75,2139095040; bfe.u32 %r76,%r143,16,1; add.s32 %r77,%r143,%r76; add.s32 %r78,%r77,32767;\n"
    "shr.u32 %r79,%r78,16; selp.b32 %r80,32704,%r79,%p19; and.b32 %r81,%r142,2147483647; setp.gt.u32 %p20,%r81,2139095040;\n", /* 4016 characters */
    "bfe.u32 %r82,%r142,16,1; add.s32 %r83,%r142,%r82; add.s32 %r84,%r83,32767; and.b32 %r85,%r84,-65536;\n"
    "selp.b32 %r86,2143289344,%r85,%p20; and.b32 %r87,%r141,2147483647; setp.gt.u32 %p21,%r87,2139095040;\n"
    "bfe.u32 %r88,%r141,16,1; add.s32 %r89,%r141,%r88; add.s32 %r90,%r89,32767; shr.u32 %r91,%r90,16;\n"
    "selp.b32 %r92,32704,%r91,%p21; and.b32 %r93,%r140,2147483647; setp.gt.u32 %p22,%r93,2139095040;\n"
    "bfe.u32 %r94,%r140,16,1; add.s32 %r95,%r140,%r94; add.s32 %r96,%r95,32767; and.b32 %r97,%r96,-65536;\n"
    "selp.b32 %r98,2143289344,%r97,%p22; and.b32 %r99,%r139,2147483647; setp.gt.u32 %p23,%r99,2139095040;\n"
    "bfe.u32 %r100,%r139,16,1; add.s32 %r101,%r139,%r100; add.s32 %r102,%r101,32767; shr.u32 %r103,%r102,16;\n"
    "selp.b32 %r104,32704,%r103,%p23; and.b32 %r105,%r138,2147483647; setp.gt.u32 %p24,%r105,2139095040;\n"
    "bfe.u32 %r106,%r138,16,1; add.s32 %r107,%r138,%r106; add.s32 %r108,%r107,32767; and.b32 %r109,%r108,-65536;\n"
    "selp.b32 %r110,2143289344,%r109,%p24; or.b32 %r111,%r98,%r92; or.b32 %r112,%r86,%r80; or.b32 %r113,%r74,%r68;\n"
    "or.b32 %r114,%r110,%r104; cvt.u64.u32 %d89,%r113; cvt.u64.u32 %d90,%r112; shl.b64 %d91,%d90,32;\n"
    "or.b64 %d131,%d91,%d89; cvt.u64.u32 %d130,%r111; cvt.u64.u32 %d129,%r114;\n"
    "L18: shl.b64 %d112,%d129,32; or.b64 %d134,%d112,%d130; add.s64 %d113,%d122,%d61; and.b64 %d114,%d113,15;\n"
    "setp.eq.s64 %p34,%d114,0; and.pred %p35,%p4,%p34; @%p35 bra L26; mov.u64 %d132,0; bra.uni L20;\n"
    "L22: shr.u64 %d118,%d131,16; shl.b64 %d119,%d134,48; or.b64 %d131,%d119,%d118; shr.u64 %d134,%d134,16;\n"
    "add.s64 %d132,%d132,2; cvt.u32.u64 %r118,%d132; add.s32 %r119,%r118,-2; setp.lt.u32 %p37,%r119,14; @%p37 bra L20;\n"
    "bra.uni L23;\n"
    "L20: add.s64 %d116,%d122,%d132; setp.ge.u64 %p36,%d116,%d62; @%p36 bra L22; add.s64 %d117,%d120,%d132;\n"
    "st.global.u16 [%d117],%d131; bra.uni L22;\n"
    "L24: ret; }\n", /* 1776 characters */
    0 };
static const char ds__ptx_comm_halves_cut[] =
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
static const char ds__ptx_comm_complex[] =
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
static const char *const ds__ptx_comm_pack[] = {
    ".version 5.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry ds__comm_pack( .param .u64 p0, .param .u64 p1, .param .align 8 .b8 p2[352], .param .u64 p3,\n"
    ".param .u32 p4, .param .u32 p5, .param .u32 p6 ) { .reg .pred %p<21>; .reg .b16 %rs<5>; .reg .b32 %r<78>;\n"
    ".reg .b64 %d<95>; ld.param.u32 %r28,[p5]; ld.param.u32 %r27,[p4]; ld.param.u64 %d48,[p3]; ld.param.u64 %d49,[p0];\n"
    "mov.b64 %d50,p2; mov.u64 %d1,%d50; ld.param.u64 %d51,[p1]; cvta.to.global.u64 %d2,%d51; cvta.to.global.u64 %d3,%d49;\n"
    "ld.param.u32 %r29,[p6]; setp.eq.s32 %p1,%r29,0; @%p1 bra L21; cvt.u32.u64 %r1,%d48; mov.u32 %r31,%ctaid.x;\n"
    "shl.b32 %r32,%r31,8; mov.u32 %r33,%tid.x; add.s32 %r71,%r32,%r33; setp.ge.u32 %p2,%r71,%r1; @%p2 bra L20;\n"
    "mov.u32 %r30,%nctaid.x; shl.b32 %r2,%r30,8; and.b32 %r4,%r28,12; and.b32 %r5,%r28,4; and.b32 %r6,%r28,16;\n"
    "and.b32 %r7,%r28,2; add.s32 %r8,%r27,-3; add.s64 %d13,%d1,268; setp.lt.u32 %p3,%r27,2; setp.lt.u32 %p4,%r27,3;\n"
    "setp.lt.u32 %p5,%r27,4; setp.eq.s32 %p7,%r4,0; bra.uni L3;\n"
    "L12: ld.global.u32 %r63,[%d17]; st.global.u32 [%d16],%r63;\n"
    "L19: add.s32 %r71,%r71,%r2; setp.lt.u32 %p11,%r71,%r1; @%p11 bra L3; bra.uni L20;\n"
    "L3: mov.u64 %d88,%d3; mov.u64 %d87,%d2; mov.u32 %r73,%r71; @%p3 bra L5; ld.param.u32 %r34,[%d1+212];\n"
    "mul.hi.u32 %r35,%r34,%r71; add.s32 %r36,%r71,%r35; ld.param.u32 %r37,[%d1+216]; shr.u32 %r73,%r36,%r37;\n"
    "ld.param.u32 %r38,[%d1+220]; mul.lo.s32 %r39,%r73,%r38; sub.s32 %r40,%r71,%r39; ld.param.u32 %r41,[%d1+224];\n"
    "mul.wide.s32 %d52,%r40,%r41; add.s64 %d88,%d3,%d52; ld.param.u32 %r42,[%d1+228]; mul.wide.s32 %d53,%r40,%r42;\n"
    "add.s64 %d87,%d2,%d53;\n"
    "L5: @%p4 bra L7; ld.param.v2.u32 {%r43,%r44},[%d1+232]; mul.hi.u32 %r45,%r43,%r73; add.s32 %r46,%r73,%r45;\n"
    "shr.u32 %r12,%r46,%r44; ld.param.v2.u32 {%r47,%r48},[%d1+240]; mul.lo.s32 %r49,%r12,%r47; sub.s32 %r50,%r73,%r49;\n"
    "mul.wide.s32 %d54,%r50,%r48; add.s64 %d88,%d88,%d54; ld.param.u32 %r51,[%d1+248]; mul.wide.s32 %d55,%r50,%r51;\n"
    "add.s64 %d87,%d87,%d55; mov.u32 %r73,%r12;\n"
    "L7: @%p5 bra L10; mov.u64 %d86,%d13; mov.u32 %r75,%r8; mov.u32 %r76,%r73;\n"
    "L9: ld.param.u32 %r52,[%d86+-16]; mul.hi.u32 %r53,%r52,%r76; add.s32 %r54,%r76,%r53; ld.param.u32 %r55,[%d86+-12];\n"
    "shr.u32 %r73,%r54,%r55; ld.param.u32 %r56,[%d86+-8]; mul.lo.s32 %r57,%r73,%r56; sub.s32 %r58,%r76,%r57;\n"
    "ld.param.u32 %r59,[%d86+-4]; mul.wide.s32 %d56,%r58,%r59; add.s64 %d88,%d88,%d56; ld.param.u32 %r60,[%d86];\n"
    "mul.wide.s32 %d57,%r58,%r60; add.s64 %d87,%d87,%d57; add.s32 %r75,%r75,-1; add.s64 %d86,%d86,20;\n"
    "setp.eq.s32 %p6,%r75,0; mov.u32 %r76,%r73; @%p6 bra L10; bra.uni L9;\n"
    "L10: ld.param.u32 %r61,[%d1+204]; mul.wide.s32 %d58,%r61,%r73; add.s64 %d16,%d88,%d58; ld.param.u32 %r62,[%d1+208];\n"
    "mul.wide.s32 %d59,%r62,%r73; add.s64 %d17,%d87,%d59; @%p7 bra L14; setp.eq.s32 %p8,%r5,0; @%p8 bra L13; bra.uni L12;\n"
    "L13: ld.global.u64 %d60,[%d17]; st.global.u64 [%d16],%d60; bra.uni L19;\n"
    "L14: setp.eq.s32 %p9,%r6,0; @%p9 bra L16; bra.uni L15;\n"
    "L16: setp.eq.s32 %p10,%r7,0; @%p10 bra L18; bra.uni L17;\n"
    "L18: ld.global.u8 %rs2,[%d17]; st.global.u8 [%d16],%rs2; bra.uni L19;\n"
    "L15: ld.global.v2.u64 {%d61,%d62},[%d17]; st.global.v2.u64 [%d16],{%d61,%d62}; bra.uni L19;\n"
    "L17: ld.global.u16 %rs1,[%d17]; st.global.u16 [%d16],%rs1; bra.uni L19;\n"
    "L21: mov.u32 %r65,%ctaid.x; mul.wide.u32 %d63,%r65,256; mov.u32 %r66,%tid.x; cvt.u64.u32 %d64,%r66;\n"
    "add.s64 %d89,%d63,%d64; setp.ge.u64 %p12,%d89,%d48; @%p12 bra L20; mov.u32 %r64,%nctaid.x; mul.wide.u32 %d24,%r64,256;\n"
    "add.s32 %r20,%r27,-1; ld.param.u64 %d26,[%d1+64]; ld.param.u64 %d27,[%d1+128]; and.b32 %r21,%r28,12;\n"
    "and.b32 %r22,%r28,4; and.b32 %r23,%r28,16; and.b32 %r24,%r28,2; mul.wide.u32 %d65,%r20,8; add.s64 %d66,%d65,%d1;\n"
    "add.s64 %d28,%d66,128; setp.ne.s32 %p13,%r20,0; setp.eq.s32 %p16,%r21,0; setp.eq.s32 %p18,%r23,0;\n"
    "setp.eq.s32 %p19,%r24,0; bra.uni L23;\n"
    "L26: ld.global.u32 %r70,[%d35]; st.global.u32 [%d34],%r70;\n"
    "L33: add.s64 %d89,%d89,%d24; setp.lt.u64 %p20,%d89,%d48; @%p20 bra L23; bra.uni L20;\n"
    "L23: mov.u64 %d90,%d89; mov.u64 %d91,%d3; mov.u64 %d92,%d2; mov.u64 %d93,%d28; mov.u32 %r77,%r20; @%p13 bra L34;\n"
    "L24: mul.lo.s64 %d75,%d26,%d90; add.s64 %d34,%d91,%d75; mul.lo.s64 %d76,%d27,%d90; add.s64 %d35,%d92,%d76;\n", /* 4092 characters */
    "@%p16 bra L28; setp.eq.s32 %p17,%r22,0; @%p17 bra L27; bra.uni L26;\n"
    "L27: ld.global.u64 %d77,[%d35]; st.global.u64 [%d34],%d77; bra.uni L33;\n"
    "L36: div.u64 %d94,%d90,%d41;\n"
    "L37: mul.lo.s64 %d69,%d94,%d41; sub.s64 %d70,%d90,%d69; ld.param.u64 %d71,[%d93+-64]; mul.lo.s64 %d72,%d70,%d71;\n"
    "add.s64 %d91,%d91,%d72; ld.param.u64 %d73,[%d93]; mul.lo.s64 %d74,%d70,%d73; add.s64 %d92,%d92,%d74;\n"
    "add.s32 %r77,%r77,-1; add.s64 %d93,%d93,-8; setp.eq.s32 %p15,%r77,0; mov.u64 %d90,%d94; @%p15 bra L24;\n"
    "L34: ld.param.u64 %d41,[%d93+-128]; or.b64 %d67,%d90,%d41; and.b64 %d68,%d67,-4294967296; setp.ne.s64 %p14,%d68,0;\n"
    "@%p14 bra L36; cvt.u32.u64 %r67,%d41; cvt.u32.u64 %r68,%d90; div.u32 %r69,%r68,%r67; cvt.u64.u32 %d94,%r69;\n"
    "bra.uni L37;\n"
    "L28: @%p18 bra L30; bra.uni L29;\n"
    "L30: @%p19 bra L32; bra.uni L31;\n"
    "L32: ld.global.u8 %rs4,[%d35]; st.global.u8 [%d34],%rs4; bra.uni L33;\n"
    "L29: ld.global.v2.u64 {%d78,%d79},[%d35]; st.global.v2.u64 [%d34],{%d78,%d79}; bra.uni L33;\n"
    "L31: ld.global.u16 %rs3,[%d35]; st.global.u16 [%d34],%rs3; bra.uni L33;\n"
    "L20: ret; }\n", /* 1034 characters */
    0 };
/* <<device-code kernels/comm.cu */

/* comm/runs.h - a strided copy as runs of bytes.

   Translates a copy between two tensors of one shape (ds__comm_copy) into runs of consecutive bytes
   with as few dimensions as possible (ds__runs_of). move.h chooses the steps of a collective from
   the runs, and pack.h the form of a kernel launch. ds__runs_observe describes the memory of a
   tensor for observers.

   Invariants: no dimension has the size 1. The dimensions are sorted by the strides of the
   destination, the largest first, so that the destination is written forwards. No two adjacent
   dimensions lie like a single one on both sides.
   Locks: none.
   Threads: any; the functions have no state. */

/* A copy of ndim dimensions of elements of `item` bytes; strides in elements. */
typedef struct ds__comm_copy {
    size_t item;
    int ndim;
    const int64_t *shape;
    const int64_t *dst;
    const int64_t *src;
} ds__comm_copy;

/* The same copy as ndim dimensions of runs of `width` bytes; strides in bytes. */
typedef struct ds__runs {
    size_t width;
    int ndim;
    int64_t shape[DS_TENSOR_MAX_DIMS];
    int64_t dst[DS_TENSOR_MAX_DIMS];
    int64_t src[DS_TENSOR_MAX_DIMS];
} ds__runs;

/* Sorts the dimensions by insertion, without those of size 1. */
static inline void ds__runs_sort(const ds__comm_copy *c, ds__runs *m) {
    int64_t item = (int64_t)c->item;
    m->ndim = 0;
    for (int d = 0; d < c->ndim; d++) {
        if (c->shape[d] == 1)
            continue;
        int at = m->ndim++;
        int64_t dst = c->dst[d] * item;
        for (; at > 0 && llabs(m->dst[at - 1]) < llabs(dst); at--) {
            m->shape[at] = m->shape[at - 1];
            m->dst[at] = m->dst[at - 1];
            m->src[at] = m->src[at - 1];
        }
        m->shape[at] = c->shape[d];
        m->dst[at] = dst;
        m->src[at] = c->src[d] * item;
    }
}

/* Merges each dimension with the next inner one if both sides allow it, and the innermost one with
   the run. */
static inline void ds__runs_merge(ds__runs *m, size_t item) {
    int kept = 0;
    for (int d = 0; d < m->ndim; d++) {
        if (kept && m->dst[kept - 1] == m->dst[d] * m->shape[d] &&
            m->src[kept - 1] == m->src[d] * m->shape[d])
            m->shape[kept - 1] *= m->shape[d];
        else
            m->shape[kept++] = m->shape[d];
        m->dst[kept - 1] = m->dst[d];
        m->src[kept - 1] = m->src[d];
    }
    m->width = item;
    if (kept && m->dst[kept - 1] == (int64_t)item && m->src[kept - 1] == (int64_t)item)
        m->width *= (size_t)m->shape[--kept];
    m->ndim = kept;
}

static void ds__runs_of(const ds__comm_copy *c, ds__runs *out) {
    ds__runs_sort(c, out);
    ds__runs_merge(out, c->item);
}

/* Describes the memory of a tensor whose first element is at `first` as runs of bytes, with strides
   greater than 0. tensor: its shape, and its strides as those of the source. m: memory of the
   description. */
__attribute__((cold, noinline)) static void ds__runs_observe(const ds__comm_copy *tensor,
                                                             const char *first, ds__runs *m,
                                                             ds__seen_operand *o) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    int64_t shape[DS_TENSOR_MAX_DIMS];
    ptrdiff_t low = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        int64_t stride = tensor->src[i];
        shape[i] = stride ? tensor->shape[i] : 1; /* elements at one address are one */
        strides[i] = stride < 0 ? -stride : stride;
        if (stride < 0)
            low += (shape[i] - 1) * stride * (int64_t)tensor->item;
    }
    ds__comm_copy copy = { tensor->item, tensor->ndim, shape, strides, strides };
    ds__runs_of(&copy, m);
    o->ptr = first + low;
    o->width = m->width;
    o->ndim = m->ndim;
    o->shape = m->shape;
    o->strides = m->dst;
}

/* comm/kernel.h - kernels of the collectives.

   Describes the kernels of reductions and strided copies (ds__comm_desc), creates them, and
   launches them (ds__comm_launch). ds__comm_kind and ds__comm_which select the kernel for a data
   type and an operation. There is one kernel with one module for each way to compute. A kernel
   is created at first use, for all devices. On a GPU, a block of threads processes 4 KiB of the
   result at a time, or 256 numbers. The CPU form and the CUDA form accept any number of items.

   Invariants: the inputs are one parameter of the CUDA form, an array. The parameter list names
   each input again at its end, for code that looks for pointers in the list. The id of a kernel
   is 0 until its creation and does not change before ds_shutdown. A zero stream handle makes
   ds__comm_launch run the CPU form at once.
   Locks: ds__comm_made.mutex is held while a kernel is created, and the lock of the kernel table
   is taken under that mutex. No driver call runs under the mutex.
   Threads: caller's threads, several at the same time. ds__comm_kernels_deinit runs in ds_shutdown
   only. */

enum {
    DS__COMM_SELECT,
    DS__COMM_INTEGERS,
    DS__COMM_DIVIDE,
    DS__COMM_REAL32,
    DS__COMM_REAL64,
    DS__COMM_HALVES,
    DS__COMM_HALVES_CUT,
    DS__COMM_COMPLEX,
    DS__COMM_PACK,
    DS__COMM_KERNELS
};

static struct {
    ds__mutex mutex;
    _Atomic uint64_t id[DS__COMM_KERNELS]; /* 0: not created yet */
} ds__comm_made = { .mutex = DS__MUTEX_INIT };

#define DS__COMM_P(kind, args, member) \
    { DS_PARAM_##kind, offsetof(args, member), sizeof(((args *)0)->member) }
#define DS__COMM_R(kind, member) DS__COMM_P(kind, ds__comm_reduce_args, member)
#define DS__COMM_OPERANDS                                                    \
    DS__COMM_R(WRITE, out), DS__COMM_R(VALUE, in), DS__COMM_R(VALUE, bytes), \
        DS__COMM_R(VALUE, inputs)
#define DS__COMM_IN(i) DS__COMM_R(READ, in.at[i])
#define DS__COMM_POINTERS                                                           \
    DS__COMM_IN(0), DS__COMM_IN(1), DS__COMM_IN(2), DS__COMM_IN(3), DS__COMM_IN(4), \
        DS__COMM_IN(5), DS__COMM_IN(6), DS__COMM_IN(7)

static const ds_param ds__comm_select_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, masks),
                                                   DS__COMM_POINTERS };
static const ds_param ds__comm_integer_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, masks),
                                                    DS__COMM_R(VALUE, op), DS__COMM_POINTERS };
static const ds_param ds__comm_real_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, op),
                                                 DS__COMM_R(VALUE, divisor), DS__COMM_POINTERS };
static const ds_param ds__comm_half_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, op),
                                                 DS__COMM_R(VALUE, divisor),
                                                 DS__COMM_R(VALUE, kind), DS__COMM_POINTERS };
static const ds_param ds__comm_cut_params[] = { DS__COMM_OPERANDS,          DS__COMM_R(VALUE, op),
                                                DS__COMM_R(VALUE, divisor), DS__COMM_R(VALUE, kind),
                                                DS__COMM_R(VALUE, wide),    DS__COMM_POINTERS };
static const ds_param ds__comm_complex_params[] = { DS__COMM_OPERANDS, DS__COMM_R(VALUE, kind),
                                                    DS__COMM_POINTERS };
static const ds_param ds__comm_divide_params[] = {
    DS__COMM_P(READ_WRITE, ds__comm_divide_args, out),
    DS__COMM_P(VALUE, ds__comm_divide_args, bytes), DS__COMM_P(VALUE, ds__comm_divide_args, kind),
    DS__COMM_P(VALUE, ds__comm_divide_args, divisor)
};
static const ds_param ds__comm_pack_params[] = {
    DS__COMM_P(WRITE, ds__comm_pack_args, dst),   DS__COMM_P(READ, ds__comm_pack_args, src),
    DS__COMM_P(VALUE, ds__comm_pack_args, dims),  DS__COMM_P(VALUE, ds__comm_pack_args, elements),
    DS__COMM_P(VALUE, ds__comm_pack_args, ndim),  DS__COMM_P(VALUE, ds__comm_pack_args, size),
    DS__COMM_P(VALUE, ds__comm_pack_args, narrow)
};

/* Extents of the parameters: `bytes` bytes, parameter 2, for the result and each input. The
   arguments stand for values between the operands and the pointers. */
#define DS__COMM_EXTENT \
    { .kind = DS_EXTENT_COUNT, .bytes = 1, .count_param = 2 }
#define DS__COMM_VALUE \
    { .kind = DS_EXTENT_NONE }
#define DS__COMM_EXTENTS_OF_INPUTS                                                       \
    DS__COMM_EXTENT, DS__COMM_EXTENT, DS__COMM_EXTENT, DS__COMM_EXTENT, DS__COMM_EXTENT, \
        DS__COMM_EXTENT, DS__COMM_EXTENT, DS__COMM_EXTENT
#define DS__COMM_EXTENTS(...)                                                         \
    {                                                                                 \
        DS__COMM_EXTENT, DS__COMM_VALUE, DS__COMM_VALUE, DS__COMM_VALUE, __VA_ARGS__, \
            DS__COMM_EXTENTS_OF_INPUTS                                                \
    }
static const ds_extent ds__comm_select_extents[] = DS__COMM_EXTENTS(DS__COMM_VALUE);
static const ds_extent ds__comm_integer_extents[] =
    DS__COMM_EXTENTS(DS__COMM_VALUE, DS__COMM_VALUE);
static const ds_extent ds__comm_real_extents[] = DS__COMM_EXTENTS(DS__COMM_VALUE, DS__COMM_VALUE);
static const ds_extent ds__comm_half_extents[] =
    DS__COMM_EXTENTS(DS__COMM_VALUE, DS__COMM_VALUE, DS__COMM_VALUE);
static const ds_extent ds__comm_cut_extents[] =
    DS__COMM_EXTENTS(DS__COMM_VALUE, DS__COMM_VALUE, DS__COMM_VALUE, DS__COMM_VALUE);
static const ds_extent ds__comm_complex_extents[] = DS__COMM_EXTENTS(DS__COMM_VALUE);
static const ds_extent ds__comm_divide_extents[] = {
    { .kind = DS_EXTENT_COUNT, .bytes = 1, .count_param = 1 }, { 0 }, { 0 }, { 0 }
};
/* of a strided copy: ds__comm_pack_rows */
static const ds_extent ds__comm_pack_extents[sizeof ds__comm_pack_params / sizeof(ds_param)];

/* Bytes that a launch reads and writes. On a virtual clock they determine its duration. */
static uint64_t ds__comm_reduce_bytes(size_t items, const void *args) {
    const ds__comm_reduce_args *a = args;
    uint64_t numbers =
        a->inputs + 1u + ((a->wide & DS__COMM_WIDE_IN) != 0) + ((a->wide & DS__COMM_WIDE_OUT) != 0);
    (void)items;
    return numbers * a->bytes;
}

static uint64_t ds__comm_divide_bytes(size_t items, const void *args) {
    (void)items;
    return 2 * ((const ds__comm_divide_args *)args)->bytes;
}

static uint64_t ds__comm_pack_bytes(size_t items, const void *args) {
    const ds__comm_pack_args *a = args;
    (void)items;
    return 2 * a->elements * a->size;
}

/* Writes the rows of one side of a strided copy; see ds__kernel.rows_fn. */
static int ds__comm_pack_rows(const void *args, size_t param, size_t out_rows[3]) {
    const ds__comm_pack_args *a = args;
    int64_t shape[DS__COMM_DIMS + 1];
    int64_t strides[DS__COMM_DIMS + 1];
    for (uint32_t i = 0; i < a->ndim; i++) {
        strides[i] = param == 0 ? a->dims.dst[i] : a->dims.src[i];
        shape[i] = strides[i] ? (int64_t)a->dims.size[i] : 1; /* elements at one address are one */
    }
    shape[a->ndim] = a->size;
    strides[a->ndim] = 1;
    ds__comm_copy side = { 1, (int)a->ndim + 1, shape, strides, strides };
    ds__runs m;
    ds__runs_of(&side, &m);
    if (m.ndim > 1 || (m.ndim && m.dst[0] < (int64_t)m.width)) /* not of one pitch, or backwards */
        return 0;
    out_rows[0] = m.width;
    out_rows[1] = m.ndim ? (size_t)m.dst[0] : m.width;
    out_rows[2] = m.ndim ? (size_t)m.shape[0] : 1;
    return 1;
}

static ds_kernel_desc ds__comm_desc(int which) {
#define DS__COMM_DESC(text, form, code, what, args, list)                                          \
    {                                                                                              \
        .name = text, .cpu_fn = ds__comm_##what##_items, .bytes_fn = ds__comm_##what##_bytes,      \
        .args_size = sizeof(args), .params = list##_params,                                        \
        .param_count = sizeof(list##_params) / sizeof *(list##_params), .extents = list##_extents, \
        .cuda = {                                                                                  \
            .form = ds__ptx_comm_##code,                                                           \
            .entry = "ds__comm_" #code,                                                            \
            .block = 256,                                                                          \
            .items_per_block = 1,                                                                  \
            .blocks_per_multiprocessor = 8                                                         \
        }                                                                                          \
    }
    static const ds_kernel_desc desc[DS__COMM_KERNELS] = {
        [DS__COMM_SELECT] = DS__COMM_DESC("largest or smallest of tensors", image, select, reduce,
                                          ds__comm_reduce_args, ds__comm_select),
        [DS__COMM_INTEGERS] = DS__COMM_DESC("sum or product of tensors", image, integers, reduce,
                                            ds__comm_reduce_args, ds__comm_integer),
        [DS__COMM_DIVIDE] = DS__COMM_DESC("average of integer tensors", image, divide, divide,
                                          ds__comm_divide_args, ds__comm_divide),
        [DS__COMM_REAL32] = DS__COMM_DESC("sum or product of tensors", image, f32, reduce,
                                          ds__comm_reduce_args, ds__comm_real),
        [DS__COMM_REAL64] = DS__COMM_DESC("sum or product of tensors", image, f64, reduce,
                                          ds__comm_reduce_args, ds__comm_real),
        [DS__COMM_HALVES] = DS__COMM_DESC("sum or product of tensors", image_pieces, halves, reduce,
                                          ds__comm_reduce_args, ds__comm_half),
        [DS__COMM_HALVES_CUT] = DS__COMM_DESC("sum or product of tensors", image, halves_cut,
                                              reduce, ds__comm_reduce_args, ds__comm_cut),
        [DS__COMM_COMPLEX] = DS__COMM_DESC("product of complex tensors", image, complex, reduce,
                                           ds__comm_reduce_args, ds__comm_complex),
        [DS__COMM_PACK] = DS__COMM_DESC("strided copy of a tensor", image_pieces, pack, pack,
                                        ds__comm_pack_args, ds__comm_pack),
    };
#undef DS__COMM_DESC
    return desc[which];
}

static void ds__comm_set_rows(ds_kernel kernel) {
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    k->rows_fn = ds__comm_pack_rows;
    ds__unpin(&ds__g.kernels, k);
}

/* Returns the handle of a kernel, which is created at first use. */
static ds_result ds__comm_kernel(int which, ds_kernel *out) {
    ds_result r = DS_OK;
    out->id = atomic_load_explicit(&ds__comm_made.id[which], memory_order_acquire);
    if (DS__LIKELY(out->id))
        return DS_OK;
    ds__mutex_lock(&ds__comm_made.mutex);
    out->id = atomic_load(&ds__comm_made.id[which]);
    if (!out->id) {
        ds_kernel_desc desc = ds__comm_desc(which);
        r = ds__kernel_create(&desc, out);
        if (r == DS_OK && which == DS__COMM_PACK)
            ds__comm_set_rows(*out);
        if (r == DS_OK)
            atomic_store_explicit(&ds__comm_made.id[which], out->id, memory_order_release);
    }
    ds__mutex_unlock(&ds__comm_made.mutex);
    return r;
}

/* Destroys the kernels. Called by ds_shutdown, when no launch is pending. */
static void ds__comm_kernels_deinit(void) {
    for (int i = 0; i < DS__COMM_KERNELS; i++) {
        uint64_t id = atomic_exchange(&ds__comm_made.id[i], 0);
        ds__kernel *k = id ? ds__pin(&ds__g.kernels, id) : NULL;
        if (!k)
            continue;
        ds__table_invalidate(&ds__g.kernels, k);
        ds__unpin(&ds__g.kernels, k);
    }
}

/* Returns the items of a launch: parts of DS__COMM_ITEM bytes on a CPU device, else blocks of 256
   threads. A GPU's thread processes one of `numbers`; if `numbers` is 0, 16 bytes. */
static uint64_t ds__comm_items(ds_device device, uint64_t bytes, uint64_t numbers) {
    if (device.type != DS_DEVICE_CUDA)
        return (bytes + DS__COMM_ITEM - 1) / DS__COMM_ITEM;
    return numbers ? (numbers + 255) / 256 : (bytes + 15 + 4095) / 4096;
}

/* Launches a kernel for `bytes` of the result; zero stream: the calling thread runs the CPU form.
   numbers: as in ds__comm_items. */
static ds_result ds__comm_launch(int which, ds_stream stream, uint64_t bytes, uint64_t numbers,
                                 const void *args, size_t args_size) {
    ds_device device;
    ds_kernel kernel;
    if (!stream.id) {
        device = (ds_device){ DS_DEVICE_CPU, 0 };
        (void)ds__comm_desc(which).cpu_fn(0, (size_t)ds__comm_items(device, bytes, 0), args);
        return DS_OK;
    }
    ds_result r;
    DS__KEEPING(r, (ds_stream_get_device)(stream, &device));
    if (r == DS_OK)
        r = ds__comm_kernel(which, &kernel);
    if (r < 0)
        return r;
    size_t items = (size_t)ds__comm_items(device, bytes, numbers);
    DS__KEEPING(r, (ds_kernel_launch)(kernel, items, args, args_size, stream));
    return r;
}

/* Kinds of the numbers of a data type, plus 1, by DS_CODE_* and the logarithm of the bytes; 0: not
   supported. A sum of complex elements adds real numbers, so its row has their kinds. */
static const unsigned char ds__comm_kinds[][5] = {
    [DS_CODE_INT] = { 1 + DS__COMM_I8, 1 + DS__COMM_I16, 1 + DS__COMM_I32, 1 + DS__COMM_I64, 0 },
    [DS_CODE_UINT] = { 1 + DS__COMM_U8, 1 + DS__COMM_U16, 1 + DS__COMM_U32, 1 + DS__COMM_U64, 0 },
    [DS_CODE_FLOAT] = { 0, 1 + DS__COMM_F16, 1 + DS__COMM_F32, 1 + DS__COMM_F64, 0 },
    [DS_CODE_BFLOAT] = { 0, 1 + DS__COMM_BF16, 0, 0, 0 },
    [DS_CODE_COMPLEX] = { 0, 0, 1 + DS__COMM_F16, 1 + DS__COMM_F32, 1 + DS__COMM_F64 },
    [DS_CODE_BOOL] = { 1 + DS__COMM_U8, 0, 0, 0, 0 }
};

static const unsigned char ds__comm_complex_products[5] = { 0, 0, 0, 1 + DS__COMM_C64,
                                                            1 + DS__COMM_C128 };

/* Returns the kind of a data type's numbers, and their count per element; -1: the reduction is not
   supported. For bool, sum and product become maximum and minimum. divisor: not 0 for an
   average. */
static int ds__comm_kind(ds_dtype dtype, uint32_t *op, uint32_t divisor, uint64_t *per_element) {
    int complex = dtype.code == DS_CODE_COMPLEX;
    *per_element = complex && *op != DS__COMM_PRODUCT ? 2 : 1;
    if (dtype.lanes != 1 || dtype.code > DS_CODE_BOOL || dtype.bits < 8 ||
        dtype.bits & (dtype.bits - 1))
        return -1;
    int log = __builtin_ctz(dtype.bits) - 3;
    if (complex && *op == DS__COMM_PRODUCT)
        return ds__comm_complex_products[log] - 1;
    if (complex && *op != DS__COMM_SUM)
        return -1;
    if (dtype.code == DS_CODE_BOOL) {
        if (divisor)
            return -1;
        if (*op == DS__COMM_SUM)
            *op = DS__COMM_MAX;
        if (*op == DS__COMM_PRODUCT)
            *op = DS__COMM_MIN;
    }
    return ds__comm_kinds[dtype.code][log] - 1;
}

/* Returns the kernel (DS__COMM_SELECT and so on) of a kind, operation and DS__COMM_WIDE_*. */
static int ds__comm_which(uint32_t kind, uint32_t op, uint32_t wide) {
    if (op >= DS__COMM_MAX)
        return DS__COMM_SELECT;
    if (kind <= DS__COMM_I64)
        return DS__COMM_INTEGERS;
    if (kind <= DS__COMM_BF16)
        return wide ? DS__COMM_HALVES_CUT : DS__COMM_HALVES;
    if (kind >= DS__COMM_C64)
        return DS__COMM_COMPLEX;
    return kind == DS__COMM_F32 ? DS__COMM_REAL32 : DS__COMM_REAL64;
}

/* With these compiler options, the compiler may reorder sums and assume that there is no NaN, so
   the results would not be bit-identical. */
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    defined(__NO_SIGNED_ZEROS__) || __FINITE_MATH_ONLY__ + 0
enum { DS__COMM_EXACT = 0 };
#else
enum { DS__COMM_EXACT = 1 };
#endif

/* comm/types.h - types of a collective: lanes, regions, steps.

   Defines the working state of one collective call (ds__work) and its parts: lanes (ds__clane),
   regions (ds__region), steps (ds__cstep), buffer locations (ds__location) and participants
   (ds__participant). Also defines the process-wide stocks of events (ds__spares) and of streams for
   plans (ds__sides_of).

   Policy:
   1. A collective reads all tensor descriptions into participants, checks them, creates its
      results and writes a list of steps. Until ds__work_run no step is enqueued; only a stream
      capture is extended earlier (ds__fork_capture).
   2. A step is a copy, a strided copy or a reduction. It runs on one lane, a stream. Its
      operands are regions, and each region belongs to a lane. The steps of a lane run in list
      order and may wait for steps of other lanes. Only the list decides the path of the data and
      the place of each sum. If a plan is followed, the list has the plan's steps, and its
      additional lanes are streams of the library.
   3. To run the list, each lane first waits for the pending work of the lanes whose regions it
      touches. Then the steps are enqueued. At the end, the lane of the last step waits for all
      lanes with steps, and all lanes wait for that lane. Memory of a lane can therefore be freed
      in that lane's order at once, temporary memory included. For the same reason, a failure of
      one lane reaches all lanes.
   4. If enqueueing fails, the remaining steps are left out, but the waits at the end are still
      enqueued.
   5. If the steps are small and no lane has pending work, the calling thread runs the steps
      (DS__STEPS_INLINE, and inline_bytes and run_together of the driver). Nothing is enqueued then.

   Invariants: arrays of a ds__work move when they grow, so lanes, regions, steps and locations are
   named by index. A step waits only for earlier steps of the list. A temporary region has no
   address until ds__work_run allocates its memory.
   Locks: ds__c.lock protects ds__spares, ds__sides_of and the tables behind ds__sides_of. No
   driver call runs under that lock. ds_shutdown works without the lock. ds__side_ref reads the
   handle of a stream without the lock after marking the stream as taken.
   Threads: several threads may run collectives at the same time. A ds__work lies on the stack of
   the calling thread and is used by that thread only. */

#define DS__NO_INDEX UINT32_MAX
#define DS__INLINE_LANES 16

/* A reduction: the operator and the data type of its elements. */
typedef struct ds__reduction {
    ds_reduce_op op;
    ds_dtype dtype;
} ds__reduction;

/* A part of consecutive elements. */
typedef struct ds__slice {
    int64_t begin;
    int64_t size;
} ds__slice;

/* DS__STEP_REDUCE_ALL: a reduction to as many outputs as inputs; the second half of its locations
   are the outputs, the first of which is `dst` */
enum { DS__STEP_COPY, DS__STEP_ROWS, DS__STEP_PACK, DS__STEP_REDUCE, DS__STEP_REDUCE_ALL };

typedef struct ds__clane {
    ds__stream *s;
    ds_stream stream;
    ds_device device;
    /* links to the steps that the next step of the lane waits for; DS__NO_INDEX: none */
    uint32_t pending;
    int pinned; /* 1: protected by a hazard pointer; 0: by a reference */
    int busy;   /* 1: the lane has steps */
    int side;   /* a stream of the library: its number in ds__sides, from 1; 0: another stream */
} ds__clane;

/* Layout of a tensor, for observers. */
typedef struct ds__layout {
    size_t item;
    int ndim;
    int64_t dims[]; /* sizes, then strides in elements */
} ds__layout;

typedef struct ds__region {
    char *at; /* NULL: not allocated yet */
    size_t bytes;
    const ds__layout *layout; /* NULL: no observer is set, or no elements */
    uint32_t lane; /* DS__NO_INDEX until ds__work_settle: host memory without a stream of its own */
    int direct;    /* 1: kernels can use the memory, because it is not pageable */
    int temporary;
    ds_device device;
} ds__region;

typedef struct ds__location {
    uint32_t region;
    ptrdiff_t offset;
} ds__location;

/* An operand of a copy: the location of its first element, and strides in elements. */
typedef struct ds__operand {
    ds__location at;
    const int64_t *strides;
} ds__operand;

/* Data for a later step to read: its location, and the step after which it is complete. */
typedef struct ds__source {
    ds__location at;
    uint32_t ready; /* DS__NO_INDEX: complete at the begin of the collective */
} ds__source;

/* Form of a strided copy; strides in elements. */
typedef struct ds__strided {
    int ndim;
    size_t item;
    int64_t shape[8];
    int64_t dst[8];
    int64_t src[8];
} ds__strided;

typedef struct ds__cstep {
    uint8_t kind;
    uint32_t lane;
    /* links to the steps of other lanes that this step waits for; DS__NO_INDEX: none */
    uint32_t after;
    int watched; /* 1: a step of another lane waits for this step */
    ds_event done;
    ds__location dst;
    ds__location src;
    size_t width;            /* copy: bytes; reduction: elements */
    size_t height;           /* copy: rows */
    size_t dst_pitch;        /* copy: bytes */
    size_t src_pitch;        /* copy: bytes */
    ds__reduction reduction; /* reduction */
    uint32_t strided;        /* strided copy: index of its form */
    uint32_t first;          /* reduction: index of the first one of its locations */
    uint32_t count;          /* reduction: number of locations */
} ds__cstep;

typedef struct ds__link {
    uint32_t step;
    uint32_t next;
} ds__link;

/* Progress of ds__work_steps. */
enum {
    DS__WORK_LISTED,  /* nothing was enqueued */
    DS__WORK_WAITING, /* waits between the lanes were enqueued */
    DS__WORK_STARTED, /* steps were enqueued, or may have been */
    DS__WORK_RAN      /* the calling thread has run the steps */
};

/* One call of a collective. */
typedef struct ds__work {
    const ds_comm_options *options;
    ds__clane *lane;
    ds__region *region;
    ds__cstep *step;
    ds__link *link;
    ds__location *location;
    ds__strided *strided;
    const void **in; /* addresses of the inputs of the reduction that is being launched */
    size_t lanes, lane_room, regions, region_room, steps, step_room, links, link_room, locations,
        location_room, strideds, strided_room;
    ds_result r;        /* the first failure */
    size_t most;        /* largest number of inputs of a reduction */
    size_t temporaries; /* number of temporary regions */
    int forked;         /* 1: lanes were forked into a capture, and have not joined again */
    int progress;       /* DS__WORK_* */
    /* memory beyond `first`; each chunk begins with the address of the previous chunk */
    void **chunks;
    char *at;    /* free memory of the current chunk */
    size_t left; /* bytes of the free memory */
    /* The arrays begin here, on the caller's stack, as does other memory: enough for a dozen
       tensors. */
    ds__clane lane_first[8];
    ds__region region_first[12];
    ds__cstep step_first[8];
    ds__location location_first[8];
    const void *in_first[8];
    _Alignas(16) char first[16 << 10];
} ds__work;

/* A tensor of a collective, or a part of one. */
typedef struct ds__participant {
    ds__location at; /* the first element; the region covers the whole tensor */
    ds__dims d;      /* last: a copy may leave out the dimensions that are not in use */
} ds__participant;

static const ds_comm_options ds__comm_usual;

#define DS__SPARE_EVENTS 16

typedef struct ds__spare {
    ds_event at[DS__SPARE_EVENTS];
    int count;
} ds__spare;

static ds__spare ds__spares[DS_BACKEND_COUNT][DS__MAX_DEVICES];

/* Streams of the library for the additional lanes of plans, per device. */
#define DS__SIDES 64

typedef struct ds__sides {
    ds_stream at[DS__SIDES];
    unsigned char taken[DS__SIDES];
    int count;
} ds__sides;

/* Protected by ds__c.lock, with the tables. */
static ds__sides *ds__sides_of[DS_BACKEND_COUNT][DS__MAX_DEVICES];

/* comm/kernel_all.h - kernel that reduces to several places.

   Reduces the inputs once and writes the result to all outputs (ds__reduce_all_kernel), where
   kernels run on the processor. A block of the result is computed in the cache, in the first output
   or, for stores around the caches, on the stack. From there it is copied to the outputs. Memory is
   read once for each input and written once for each output. An
   item is DS__COMM_ITEM bytes of the result.

   Invariants: an item reads all inputs of a block before it writes the block, so an output may be
   one of the inputs. It writes only its own piece of each output, so items may run in parallel.
   Locks: none. May run under the locks of the driver's run_together.
   Threads: those that run kernels. */

enum { DS__REDUCE_ALL_BLOCK = 4096 }; /* bytes of a block; DS__COMM_ITEM is a multiple */

typedef struct ds__reduce_all_args {
    ds__comm_reduce_args reduce; /* its output is not used */
    char *out[DS__COMM_INPUTS];
    size_t outs;
} ds__reduce_all_args;

static int ds__reduce_all_items(size_t first, size_t count, const void *args) {
    const ds__reduce_all_args *a = args;
    _Alignas(64) char block[DS__REDUCE_ALL_BLOCK];
    const size_t bytes = (size_t)a->reduce.bytes;
    size_t at = first * DS__COMM_ITEM;
    size_t end = at + count * DS__COMM_ITEM < bytes ? at + count * DS__COMM_ITEM : bytes;
    int around = ds__stream_pays(a->reduce.inputs * bytes, a->outs * bytes);
    ds__comm_reduce_args r = a->reduce;
    for (; at < end; at += DS__REDUCE_ALL_BLOCK) {
        size_t n = end - at < DS__REDUCE_ALL_BLOCK ? end - at : DS__REDUCE_ALL_BLOCK;
        for (uint32_t k = 0; k < r.inputs; k++)
            r.in.at[k] = (const char *)a->reduce.in.at[k] + at;
        char *result = around ? block : a->out[0] + at;
        r.out = result;
        r.bytes = n;
        (void)ds__comm_reduce_items(0, 1, &r);
        size_t done = around ? ds__stream_spread(a->out, a->outs, at, block, n) : 0;
        for (size_t d = around ? 0 : 1; d < a->outs; d++)
            memcpy(a->out[d] + at + done, result + done, n - done);
    }
    return 0;
}

static ds__kernel ds__reduce_all_kernel = { .cpu_fn = ds__reduce_all_items,
                                            .args_size = sizeof(ds__reduce_all_args),
                                            .grain = 1,
                                            .name = "reduction to several devices",
                                            .ours = 1 };

/* comm/reduce.h - launches of a reduction.

   ds__comm_reduce combines any number of inputs by kernels, in stream order. It divides them
   into launches of at most DS__COMM_INPUTS inputs. ds__comm_can_reduce returns whether a reduction
   of a data type is supported.

   Invariants: the bits of the result do not depend on the division into launches. Partial
   results lie in the output. If the output is an input of a later launch or too narrow, partial
   results lie in memory of the allocator. That memory is freed in stream order before return.
   With a zero stream handle there are at most DS__COMM_INPUTS inputs (ds__steps_small).
   Locks: takes none; calls the allocator and the driver without a lock. With a zero stream
   handle, ds__comm_reduce may run under the locks of run_together and makes no driver call.
   Threads: any caller's thread. */

/* Returns 1 if the reduction is supported. */
__attribute__((unused)) static int ds__comm_can_reduce(ds_reduce_op op, ds_dtype dtype) {
    uint32_t o = op == DS_REDUCE_AVERAGE ? DS__COMM_SUM : (uint32_t)op;
    uint64_t per;
    return ds__comm_kind(dtype, &o, op == DS_REDUCE_AVERAGE, &per) >= 0;
}

/* A reduction that is divided into launches. A later launch reads the result of the launch before
   as its first input. */
typedef struct ds__comm_launches {
    ds__comm_reduce_args a; /* of the current launch */
    void *out;
    void *partial; /* memory of partial results; NULL: they are written to `out` */
    const void *const *in;
    size_t inputs;
    size_t done; /* inputs of the launches so far */
    uint32_t divisor;
    int half; /* 1: partial results of f16 and bf16 are f32 */
} ds__comm_launches;

/* Returns 1 if an input from `first` on is the output, or may overlap it. */
static int ds__comm_overlaps(const ds__comm_launches *c, size_t first) {
    for (size_t i = first; i < c->inputs; i++) {
        uintptr_t a = (uintptr_t)c->out;
        uintptr_t b = (uintptr_t)c->in[i];
        if (a < b ? b - a < c->a.bytes : a - b < c->a.bytes)
            return 1;
    }
    return 0;
}

/* Fills in the arguments of the next launch, with as many inputs as it can take. */
static void ds__comm_launch_next(ds__comm_launches *c) {
    ds__comm_reduce_args *a = &c->a;
    a->inputs = 0;
    a->wide = 0;
    if (c->done) {
        a->in.at[a->inputs++] = a->out;
        if (c->half)
            a->wide = DS__COMM_WIDE_IN;
    }
    while (a->inputs < DS__COMM_INPUTS && c->done < c->inputs)
        a->in.at[a->inputs++] = c->in[c->done++];
    for (uint32_t i = a->inputs; i < DS__COMM_INPUTS; i++)
        a->in.at[i] = NULL;
    int is_last = c->done == c->inputs;
    if (!is_last && c->half)
        a->wide |= DS__COMM_WIDE_OUT;
    if (is_last && a->kind > DS__COMM_I64)
        a->divisor = c->divisor;
    a->out = !is_last && c->partial ? c->partial : c->out;
}

/* Runs all launches and, for an average of integers, the division. */
static ds_result ds__comm_launch_all(ds__comm_launches *c, ds_stream stream) {
    const uint64_t bytes = c->a.bytes;
    const uint64_t numbers = bytes / ds__comm_size[c->a.kind];
    ds_result r = DS_OK;
    while (c->done < c->inputs && r == DS_OK) {
        ds__comm_launch_next(c);
        int which = ds__comm_which(c->a.kind, c->a.op, c->a.wide);
        int each = which == DS__COMM_HALVES_CUT || which == DS__COMM_COMPLEX;
        r = ds__comm_launch(which, stream, bytes, each ? numbers : 0, &c->a, sizeof c->a);
    }
    if (r == DS_OK && c->divisor > 1 && c->a.kind <= DS__COMM_I64) {
        ds__comm_divide_args d = { c->out, bytes, c->a.kind, c->divisor };
        r = ds__comm_launch(DS__COMM_DIVIDE, stream, bytes, numbers, &d, sizeof d);
    }
    return r;
}

/* Writes in[0] op in[1] op ... to `out`, in stream order on the stream's device. All operands have
   `count` consecutive elements, aligned to the size of their numbers; `out` may be one of the
   inputs. DS_ERR_UNSUPPORTED: no kernel for the data type. Partial results are written to `out`; if
   a later launch reads `out`, or the partial results are wider, to memory of the allocator. */
static ds_result ds__comm_reduce(ds_stream stream, ds__reduction reduction, void *out,
                                 const void *const *in, size_t inputs, size_t count) {
    ds__comm_launches c = { .out = out, .in = in, .inputs = inputs };
    uint64_t per_element;
    uint32_t divisor = reduction.op == DS_REDUCE_AVERAGE ? (uint32_t)inputs : 0;
    uint32_t op = divisor ? DS__COMM_SUM : (uint32_t)reduction.op;
    int kind = ds__comm_kind(reduction.dtype, &op, divisor, &per_element);
    ds_result r = DS_OK;
    if (kind < 0)
        return ds__fail(DS_ERR_UNSUPPORTED, "this reduction is not supported for the type");
    if (inputs == 0 || inputs > UINT32_MAX)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the reduction has %zu tensors; 1 to 2^32 - 1 are allowed", inputs);
    if (count == 0)
        return DS_OK;
    c.a.bytes = count * per_element * ds__comm_size[kind];
    c.a.masks = ds__comm_masks_of((uint32_t)kind, op);
    c.a.op = op;
    c.a.kind = (uint32_t)kind;
    c.divisor = divisor;
    c.half = (kind == DS__COMM_F16 || kind == DS__COMM_BF16) && op <= DS__COMM_PRODUCT;
    if (inputs > DS__COMM_INPUTS && (c.half || ds__comm_overlaps(&c, DS__COMM_INPUTS))) {
        DS__KEEPING(
            r, (ds_mem_alloc)((size_t)(c.half ? 2 * c.a.bytes : c.a.bytes), stream, &c.partial));
        if (r < 0)
            return r;
    }
    r = ds__comm_launch_all(&c, stream);
    if (c.partial) {
        ds_result freed;
        DS__KEEPING(freed, (ds_mem_free)(c.partial));
        if (r == DS_OK)
            r = freed;
    }
    return r;
}

/* Writes in[0] op in[1] op ... to all outputs by one kernel, in stream order. stream NULL: on the
   calling thread. At most DS__COMM_INPUTS inputs, and as many outputs; no average of integers.
   Otherwise as ds__comm_reduce. */
static ds_result ds__comm_reduce_all(ds__stream *stream, ds__reduction reduction,
                                     const void *const *in, const void *const *out, size_t n,
                                     size_t count) {
    ds__reduce_all_args a = { .outs = n };
    uint64_t per_element;
    uint32_t divisor = reduction.op == DS_REDUCE_AVERAGE ? (uint32_t)n : 0;
    uint32_t op = divisor ? DS__COMM_SUM : (uint32_t)reduction.op;
    int kind = ds__comm_kind(reduction.dtype, &op, divisor, &per_element);
    a.reduce.bytes = count * per_element * ds__comm_size[kind];
    a.reduce.masks = ds__comm_masks_of((uint32_t)kind, op);
    a.reduce.inputs = (uint32_t)n;
    a.reduce.op = op;
    a.reduce.divisor = divisor;
    a.reduce.kind = (uint32_t)kind;
    for (size_t i = 0; i < n; i++) {
        a.reduce.in.at[i] = in[i];
        a.out[i] = (char *)(uintptr_t)out[i];
    }
    size_t items = (size_t)((a.reduce.bytes + DS__COMM_ITEM - 1) / DS__COMM_ITEM);
    if (!stream) {
        (void)ds__reduce_all_items(0, items, &a);
        return DS_OK;
    }
    ds__op kernel = ds__op_init(DS__OP_KERNEL);
    kernel.u.kernel.kernel = &ds__reduce_all_kernel;
    kernel.u.kernel.items = items;
    kernel.u.kernel.args_size = sizeof a;
    kernel.u.kernel.args = &a;
    kernel.u.kernel.grid = NULL;
    return ds__stream_submit(stream, &kernel);
}

/* comm/pack.h - launch of the strided copy.

   ds__comm_pack copies elements of any size between any strides by a kernel, in stream order. It
   chooses the widest possible element for the kernel before it launches. For device code, it also
   prepares factors that take the place of divisions (ds__comm_pack_narrow).

   Invariants: source and destination do not overlap. Dimensions beyond DS__COMM_DIMS, the
   outermost ones, cost one launch for each of their positions. If a stream handle is zero, the
   calling thread copies at once.
   Locks: takes none. With a zero stream handle, ds__comm_pack may run under the locks of
   run_together and makes no driver call.
   Threads: any caller's thread. */

/* Dimensions of a copy, the innermost last; strides in bytes. */
typedef struct ds__comm_shape {
    int ndim;
    uint64_t size[DS_TENSOR_MAX_DIMS + 1];
    int64_t dst[DS_TENSOR_MAX_DIMS + 1];
    int64_t src[DS_TENSOR_MAX_DIMS + 1];
} ds__comm_shape;

/* The dimensions of the runs and, last, the bytes of a run. */
static void ds__comm_shape_of(const ds__comm_copy *c, ds__comm_shape *s) {
    ds__runs m;
    ds__runs_of(c, &m);
    for (int i = 0; i < m.ndim; i++) {
        s->size[i] = (uint64_t)m.shape[i];
        s->dst[i] = m.dst[i];
        s->src[i] = m.src[i];
    }
    s->ndim = m.ndim + (m.width > 1);
    s->size[m.ndim] = m.width;
    s->dst[m.ndim] = s->src[m.ndim] = 1;
}

/* Returns the bytes of the kernel's element: 16, or less if a run, a stride or an address is not a
   multiple of 16. Divides the innermost dimension by it. */
static uint32_t ds__comm_widen(ds__comm_shape *s, const void *dst, const void *src) {
    int last = s->ndim - 1;
    uint64_t bits = (uintptr_t)dst | (uintptr_t)src | 16;
    uint32_t size = 1;
    if (last < 0 || s->dst[last] != 1 || s->src[last] != 1)
        return 1;
    bits |= s->size[last];
    for (int i = 0; i < last; i++)
        bits |= (uint64_t)s->dst[i] | (uint64_t)s->src[i];
    while (!(bits & size))
        size *= 2;
    s->size[last] /= size;
    s->dst[last] = s->src[last] = (int64_t)size;
    if (s->size[last] == 1)
        s->ndim--;
    return size;
}

/* Fills in the inner dimensions of the kernel's arguments, from `outer` on; at least one. */
static void ds__comm_pack_dims(ds__comm_pack_args *a, const ds__comm_shape *s, int outer) {
    a->elements = 1;
    a->ndim = (uint32_t)(s->ndim - outer);
    for (int i = outer; i < s->ndim; i++) {
        a->dims.size[i - outer] = s->size[i];
        a->dims.dst[i - outer] = s->dst[i];
        a->dims.src[i - outer] = s->src[i];
        a->elements *= s->size[i];
    }
    if (s->ndim == 0) {
        a->dims.size[0] = 1;
        a->ndim = 1;
    }
}

/* Fills in dims.narrow for the device code that does not divide, if there are fewer than 2^31
   elements and the strides have 32 bits. The divisor d has the shift s = ceil(log2 d) and the
   factor 2^32 (2^s - d) / d + 1. The outermost size is no divisor. */
static void ds__comm_pack_narrow(ds__comm_pack_args *a) {
    a->narrow = a->elements >> 31 == 0;
    for (uint32_t k = 0; k < a->ndim && a->narrow; k++) {
        ds__comm_narrow_dim *n = &a->dims.narrow[k ? a->ndim - k : 0];
        uint64_t d = a->dims.size[k];
        n->size = (uint32_t)d;
        n->dst = (int32_t)a->dims.dst[k];
        n->src = (int32_t)a->dims.src[k];
        if (n->dst != a->dims.dst[k] || n->src != a->dims.src[k])
            a->narrow = 0;
        if (k == 0)
            continue;
        n->shift = d > 1 ? 64 - (uint32_t)__builtin_clzll(d - 1) : 0;
        n->magic = (uint32_t)(((((uint64_t)1 << n->shift) - d) << 32) / d + 1);
    }
}

/* Copies in stream order on the stream's device. Strides may have any value and elements any size.
   If a graph replaces one of the addresses later, the new address must have the same distance to a
   multiple of 16. */
static ds_result ds__comm_pack(ds_stream stream, void *dst, const void *src,
                               const ds__comm_copy *copy) {
    ds__comm_shape s;
    ds__comm_pack_args a;
    uint64_t launches = 1;
    ds_result r = DS_OK;
    for (int i = 0; i < copy->ndim; i++)
        if (copy->shape[i] == 0)
            return DS_OK;
    ds__comm_shape_of(copy, &s);
    memset(&a, 0, sizeof a);
    a.size = ds__comm_widen(&s, dst, src);
    int outer = s.ndim > DS__COMM_DIMS ? s.ndim - DS__COMM_DIMS : 0;
    for (int i = 0; i < outer; i++)
        launches *= s.size[i];
    ds__comm_pack_dims(&a, &s, outer);
    ds__comm_pack_narrow(&a);
    for (uint64_t n = 0; n < launches && r == DS_OK; n++) {
        uint64_t rest = n;
        a.dst = dst;
        a.src = src;
        for (int i = outer; i-- > 0; rest /= s.size[i]) {
            a.dst += (int64_t)(rest % s.size[i]) * s.dst[i];
            a.src += (int64_t)(rest % s.size[i]) * s.src[i];
        }
        r = ds__comm_launch(DS__COMM_PACK, stream, a.elements * a.size, a.elements, &a, sizeof a);
    }
    return r;
}

/* topology/types.h - nodes, links and routes of a topology.

   Defines ds_topology and its parts: nodes (ds__tnode), links (ds__tlink) and routes
   (ds__troute). ds__route_of finds a route; ds__array_add grows an array.

   Policy:
   1. Nodes are devices, switches, sockets and host memory. Links join nodes; a link is one wire
      for each direction, or one wire for both. Only switches and sockets forward data.
   2. A route is the list of wires from a device or the host to another one. A route has the least
      latency and, of several such paths, the highest rate. Plans and the predictor take paths
      and rates from the table of routes. A measured rate is one more wire of the pair's route.
   3. If the rates of copies by the source (push) and by the destination (pull) are known, the
      faster side makes the copies of a pair.

   Invariants: node 0 is the host. The table of routes has devices + 1 rows and columns, and the
   last of both is the host. A topology does not change after ds__routes_build.
   Locks: none.
   Threads: a topology under construction belongs to one thread. Later, any number of threads may
   read it, but none may free it at the same time. */

enum { DS__NODE_DEVICE, DS__NODE_SWITCH, DS__NODE_SOCKET, DS__NODE_HOST };

#define DS__TOPOLOGY_MAX 1024 /* devices, and other nodes */

typedef struct ds__tnode {
    char name[32];
    int kind;
} ds__tnode;

typedef struct ds__tlink {
    int a;
    int b;
    int kind;
    int half;
    int wire[2];
    double rate[2];
    int64_t latency;
} ds__tlink;

typedef struct ds__troute {
    int64_t latency_ns;
    int direct;  /* 1: the two access each other; 0: copies go through the host */
    size_t hops; /* wires; 0: there is no route */
    const int *wire;
    double rate; /* of the slowest wire */
    int push;    /* 1: the source should make the copy */
    int only;    /* the kind of all links, or -1 */
} ds__troute;

struct ds_topology {
    int devices;
    int nodes;
    int links;
    int wires;
    int engines;
    size_t node_room;
    size_t link_room;
    size_t wire_room;
    size_t peer_room;
    int64_t start_ns;
    int64_t latency_ns;
    double memory;   /* bytes per second */
    ds__tnode *node; /* 0 is the host */
    ds__tlink *link;
    double *wire;      /* bytes per second */
    int *rank;         /* nodes of the devices */
    int *group[3];     /* of each device, by level; see ds__groups_find */
    int *island;       /* of each device: the number of its group of level 1, from 0 on */
    int *seat;         /* of each device: its number in that group */
    ds__troute *route; /* from row to column, devices + 1 of each, the last is the host */
    int *hop;          /* the wires of all routes */

    /* the peer lines, pair by pair */
    struct ds__tpeer {
        int from;
        int to;
        int what;    /* '1' on, '0' off, 'k' kind, 'u' push, 'd' pull, 'b' both, 'l' latency */
        int kind;    /* of the links for which the pair is on */
        double rate; /* of a latency: nanoseconds */
    } * peer;

    int peers;
    uint64_t id;            /* names the topology in the list of plans */
    ds_allocator allocator; /* of all its memory */
    ds_device *device;      /* the ranks' devices on this machine; NULL: rank i is device i */
    ds_cpu_route *way;      /* the routes in the form of the CPU driver */
};

static const struct {
    const char *word;
    double rate;
    int64_t latency;
} ds__link_kinds[] = {

#define DS__LINK_KIND(name, word, rate, latency) { word, rate, latency },
    DS_LINK_KINDS(DS__LINK_KIND)
#undef DS__LINK_KIND
};

/* Adds a zeroed element to an array, which may move. Returns the element; if memory is exhausted,
   reports the error and returns NULL. */
static void *ds__array_add(void *array, size_t count, size_t *room, size_t size) {
    char *at;
    if (count >= UINT32_MAX || !ds__array_reserve(array, size, count, 1, room)) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu elements", count + 1);
        return NULL;
    }
    memcpy(&at, array, sizeof at);
    return at + count * size;
}

/* Returns the route from one rank to another; rank `devices` is the host. */
static ds__troute *ds__route_of(const ds_topology *t, int from, int to) {
    return &t->route[from * (t->devices + 1) + to];
}

/* Called before a topology is freed; NULL before the first plan. */
static void (*_Atomic ds__topology_gone_fn)(const ds_topology *t);

/* topology/route.h - routes and groups of devices.

   ds__routes_build computes the table of routes, the groups and the islands, as the last step of
   a construction. ds__route_ways_find finds the paths from one node; ds__groups_find assigns the
   devices to groups.

   Invariants: nodes, links and peer lines are complete. If several peer lines set the same value
   of a pair, the last line counts. A route has room for one wire more than there are switches and
   sockets, and for two measured ones. A measured rate below that of the links adds a wire to one
   route. A measured rate of both directions at once adds one wire to two routes. Every device
   reaches every other directly or through the host, or ds__routes_build fails.
   Locks: none.
   Threads: the thread that constructs the topology. */

/* The best path to a node. */
typedef struct ds__way {
    int64_t latency; /* INT64_MAX: no path was found */
    double rate;
    int link; /* the last link, or -1 */
    int from; /* the node before the last link */
    int done; /* 1: no other path is better */
} ds__way;

/* Returns the node with the best path among those that are not done, or -1. */
static int ds__route_way_next(const ds_topology *t, const ds__way *way) {
    int at = -1;
    for (int i = 0; i < t->nodes; i++) {
        if (way[i].done || way[i].latency == INT64_MAX)
            continue;
        if (at < 0 || way[i].latency < way[at].latency ||
            (way[i].latency == way[at].latency && way[i].rate > way[at].rate))
            at = i;
    }
    return at;
}

/* Extends the path to node `at` by a link of that node, if no path to the link's other end is as
   good. */
static void ds__route_way_extend(const ds_topology *t, int link, int at, ds__way *way) {
    const ds__tlink *k = &t->link[link];
    int back = k->a != at;
    ds__way *to = &way[back ? k->a : k->b];
    int64_t latency = way[at].latency + k->latency;
    double rate = k->rate[back] < way[at].rate ? k->rate[back] : way[at].rate;
    if (to->done || latency > to->latency || (latency == to->latency && rate <= to->rate))
        return;
    *to = (ds__way){ latency, rate, link, at, 0 };
}

/* Finds the best paths from a node to all others (Dijkstra). Devices and the host do not forward
   data. */
static void ds__route_ways_find(const ds_topology *t, int from, ds__way *way) {
    for (int i = 0; i < t->nodes; i++)
        way[i] = (ds__way){ INT64_MAX, 0, -1, -1, 0 };
    way[from].latency = 0;
    way[from].rate = 1e300;
    for (;;) {
        int at = ds__route_way_next(t, way);
        if (at < 0)
            return;
        way[at].done = 1;
        int kind = t->node[at].kind;
        if (at != from && (kind == DS__NODE_DEVICE || kind == DS__NODE_HOST))
            continue;
        for (int l = 0; l < t->links; l++)
            if (t->link[l].a == at || t->link[l].b == at)
                ds__route_way_extend(t, l, at, way);
    }
}

/* Returns the switch or socket that a device is linked to with the highest rate, or the device. */
static int ds__group_switch(const ds_topology *t, int device) {
    int group = device;
    double best = 0;
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        if (k->a != device && k->b != device)
            continue;
        int to = k->a == device ? k->b : k->a;
        if (to == 0 || t->node[to].kind == DS__NODE_DEVICE || k->rate[0] <= best)
            continue;
        best = k->rate[0];
        group = to;
    }
    return group;
}

/* Returns 1 if a link joins two nodes of one side: all links but those to the host, between
   sockets and of networks. */
static int ds__group_joins(const ds__tlink *k) {
    return k->a && k->b && k->kind != DS_LINK_SOCKET && k->kind != DS_LINK_NETWORK;
}

/* Finds the side of the slow links on which each node is: the lowest node of that side. */
static void ds__group_sides(const ds_topology *t, int *part) {
    int again = 1;
    for (int i = 0; i < t->nodes; i++)
        part[i] = i;
    while (again) {
        again = 0;
        for (int l = 0; l < t->links; l++) {
            const ds__tlink *k = &t->link[l];
            if (!ds__group_joins(k) || part[k->a] == part[k->b])
                continue;
            int low = part[k->a] < part[k->b] ? part[k->a] : part[k->b];
            part[k->a] = low;
            part[k->b] = low;
            again = 1;
        }
    }
}

/* Assigns the devices to groups: all in one (level 0), those of one switch (1), or those of one
   side of the slow links (2). */
static void ds__groups_find(const ds_topology *t, int level, int *group) {
    int part[DS__TOPOLOGY_MAX];
    if (level == 2)
        ds__group_sides(t, part);
    for (int i = 0; i < t->devices; i++) {
        group[i] = 0;
        if (level == 1)
            group[i] = ds__group_switch(t, t->rank[i]);
        else if (level == 2)
            group[i] = part[t->rank[i]];
    }
}

/* Adds a wire at the end of a route. Returns 0 if memory is exhausted. */
static int ds__route_wire(ds_topology *t, ds__troute *r, double rate) {
    double *w = ds__array_add(&t->wire, (size_t)t->wires, &t->wire_room, sizeof *w);
    if (!w)
        return 0;
    *w = rate;
    if (rate < r->rate)
        r->rate = rate;
    t->hop[r->wire - t->hop + (ptrdiff_t)r->hops++] = t->wires++;
    return 1;
}

/* Values that peer lines give for one pair. */
typedef struct ds__pair_rates {
    double push;
    double pull;
    int both; /* the last line with a rate of both directions at once, plus 1 */
} ds__pair_rates;

/* Reads the peer lines. Returns an array with an element for each route, or NULL if memory is
   exhausted. */
static ds__pair_rates *ds__pair_rates_read(ds_topology *t) {
    size_t p = (size_t)t->devices + 1;
    ds__pair_rates *rates = ds__host_alloc(p * p * sizeof *rates);
    for (int i = 0; rates && i < t->peers; i++) {
        const struct ds__tpeer *e = &t->peer[i];
        ds__troute *r = ds__route_of(t, e->from, e->to);
        ds__pair_rates *pair = &rates[r - t->route];
        if (e->what == 'k')
            r->direct = r->only == e->kind;
        else if (e->what == '0' || e->what == '1')
            r->direct = e->what == '1';
        else if (e->what == 'u')
            pair->push = e->rate;
        else if (e->what == 'd')
            pair->pull = e->rate;
        else if (e->what == 'l' && r->hops)
            r->latency_ns = (int64_t)e->rate;
        else if (e->what == 'b')
            pair->both = i + 1;
    }
    return rates;
}

/* Adds a wire for the measured rate of copies if the links are faster. The side that copies faster
   makes the copies. Returns 0 if memory is exhausted. */
static int ds__route_measured(ds_topology *t, ds__troute *r, double push, double pull) {
    if (!r->hops) {
        r->direct = 0;
        return 1;
    }
    if (push <= 0 || push > r->rate)
        push = r->rate;
    if (pull <= 0 || pull > r->rate)
        pull = r->rate;
    r->push = push > pull;
    double rate = r->push ? push : pull;
    return rate >= r->rate || ds__route_wire(t, r, rate);
}

/* Adds one wire to the routes of both directions for the measured rate of copies in both at once,
   if the two routes are faster. Returns 0 if memory is exhausted. */
static int ds__route_both(ds_topology *t, ds__troute *there, ds__troute *back, double rate) {
    if (!there->hops || !back->hops || rate >= there->rate + back->rate)
        return 1;
    double alone = there->rate > back->rate ? there->rate : back->rate;
    if (!ds__route_wire(t, there, rate > alone ? rate : alone))
        return 0;
    t->hop[back->wire - t->hop + (ptrdiff_t)back->hops++] = t->wires - 1;
    return 1;
}

/* Applies the peer lines to the routes. */
static ds_result ds__routes_peers(ds_topology *t) {
    ds__pair_rates *rates = ds__pair_rates_read(t);
    int routes = (t->devices + 1) * (t->devices + 1);
    int ok = 1;
    if (!rates)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the routes of %d devices", t->devices);
    for (int i = 0; i < routes && ok; i++)
        ok = ds__route_measured(t, &t->route[i], rates[i].push, rates[i].pull);
    for (int i = 0; i < t->peers && ok; i++) {
        const struct ds__tpeer *e = &t->peer[i];
        ds__troute *there = ds__route_of(t, e->from, e->to);
        if (e->what == 'b' && rates[there - t->route].both == i + 1 && e->from <= e->to)
            ok = ds__route_both(t, there, ds__route_of(t, e->to, e->from), e->rate);
    }
    ds__host_free(rates);
    return ok ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Returns the most wires that a route has room for. Only switches and sockets forward data, and the
   host only ends a route. */
static int ds__route_most(const ds_topology *t) {
    int most = 1 + 2; /* and a wire for each of two measured rates */
    for (int i = 0; i < t->nodes; i++)
        most += t->node[i].kind == DS__NODE_SWITCH || t->node[i].kind == DS__NODE_SOCKET;
    return most;
}

/* Makes the routes in the form that the virtual clock of the CPU driver takes. */
static ds_result ds__ways_build(ds_topology *t) {
    size_t n = (size_t)t->devices + 1;
    t->way = ds__host_alloc(n * n * sizeof *t->way);
    if (!t->way)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the routes of %d devices", t->devices);
    for (size_t i = 0; i < n * n; i++)
        if (i / n != i % n)
            t->way[i] = (ds_cpu_route){ t->route[i].latency_ns, t->route[i].direct,
                                        t->route[i].hops, t->route[i].wire };
    return DS_OK;
}

/* Assigns the devices to the groups of all levels. Returns 0 if memory is exhausted. */
static int ds__groups_build(ds_topology *t) {
    for (int level = 0; level < 3; level++) {
        t->group[level] = ds__host_alloc(((size_t)t->devices + 1) * sizeof **t->group);
        if (!t->group[level])
            return 0;
        ds__groups_find(t, level, t->group[level]);
    }
    return 1;
}

/* Numbers the switches' groups and the members of each. Returns 0 if memory is exhausted. */
static int ds__islands_build(ds_topology *t) {
    size_t n = (size_t)t->devices + 1;
    int islands = 0;
    t->island = ds__host_alloc(2 * n * sizeof *t->island);
    if (!t->island)
        return 0;
    t->seat = t->island + n;
    for (int i = 0; i < t->devices; i++) {
        int last = i - 1;
        while (last >= 0 && t->group[1][last] != t->group[1][i])
            last--;
        t->island[i] = last < 0 ? islands++ : t->island[last];
        t->seat[i] = last < 0 ? 0 : t->seat[last] + 1;
    }
    return 1;
}

/* Lists the wires of a path between two nodes in `hop`. Returns the route. */
static ds__troute ds__route_build(const ds_topology *t, const ds__way *way, int from, int to,
                                  int *hop) {
    ds__troute r = { t->latency_ns, 1, 0, hop, way[to].rate, 0, -1 };
    if (from == to || way[to].link < 0)
        return r;
    r.latency_ns += way[to].latency;
    r.only = t->link[way[to].link].kind;
    for (int n = to; n != from; n = way[n].from)
        r.hops++;
    for (size_t h = r.hops; h-- > 0; to = way[to].from) {
        const ds__tlink *l = &t->link[way[to].link];
        hop[h] = l->wire[l->a != way[to].from];
        if (l->kind != r.only)
            r.only = -1;
    }
    return r;
}

/* Makes all routes from one row of the table to the columns. `most` is the room of a route. */
static void ds__routes_from(ds_topology *t, int row, int most, ds__way *way) {
    int p = t->devices;
    int from = row < p ? t->rank[row] : 0;
    ds__route_ways_find(t, from, way);
    for (int k = 0; k <= p; k++) {
        ds__troute *r = ds__route_of(t, row, k);
        *r = ds__route_build(t, way, from, k < p ? t->rank[k] : 0,
                             t->hop + (r - t->route) * (ptrdiff_t)most);
    }
}

/* Returns DS_OK if every device reaches every other one, directly or through the host. */
static ds_result ds__routes_check(const ds_topology *t) {
    int host = t->devices;
    for (int i = 0; i < t->devices; i++)
        for (int k = 0; k < t->devices; k++) {
            if (i == k || ds__route_of(t, i, k)->direct)
                continue;
            DS__REQUIRE(ds__route_of(t, i, host)->hops && ds__route_of(t, host, k)->hops,
                        "there is no route from %s to %s, neither directly nor through host memory",
                        t->node[t->rank[i]].name, t->node[t->rank[k]].name);
        }
    return DS_OK;
}

/* Makes the table of routes and the groups of a topology whose nodes, links and peer lines are
   complete. */
static ds_result ds__routes_build(ds_topology *t) {
    size_t p = (size_t)t->devices + 1;
    int most = ds__route_most(t);
    ds__way *way = ds__host_alloc((size_t)t->nodes * sizeof *way);
    t->route = ds__host_alloc(p * p * sizeof *t->route);
    t->hop = ds__host_alloc(p * p * (size_t)most * sizeof *t->hop);
    if (!way || !t->route || !t->hop || !ds__groups_build(t) || !ds__islands_build(t)) {
        ds__host_free(way);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the routes of %d devices", t->devices);
    }
    for (int i = 0; i <= t->devices; i++)
        ds__routes_from(t, i, most, way);
    ds__host_free(way);
    if (ds__routes_peers(t) < 0)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__routes_check(t);
    return r == DS_OK ? ds__ways_build(t) : r;
}

/* topology/build.h - construction and release of topologies.

   ds__topology_create creates a topology with the host as its only node. ds__tnode_add,
   ds__tlink_add and ds__tpeer_add extend it for parse.h and here.h. Also implements
   ds_topology_destroy and ds_topology_get_size.

   Invariants: names are unique and have at most 31 characters. There are at most
   DS__TOPOLOGY_MAX nodes. Rank i is the i-th added device, and the id is unique in the process.
   All devices must be added before the first peer line, because such a line names the host by
   the number of devices. After a failure the topology may be incomplete and must be freed. A
   topology outlives ds_shutdown; its memory returns to the allocator that it was made with.
   Locks: ds_topology_destroy calls ds__topology_gone_fn, which takes ds__c.lock.
   Threads: a topology under construction belongs to one thread. ds_topology_destroy and
   ds_topology_get_size do not call DS__ENTER and do not start the library. */

/* Returns the node of a name, or -1. */
static int ds__tnode_find(const ds_topology *t, const char *name) {
    for (int i = 0; i < t->nodes; i++)
        if (strcmp(t->node[i].name, name) == 0)
            return i;
    return -1;
}

/* Adds a node. A device becomes the next rank. */
static ds_result ds__tnode_add(ds_topology *t, const char *name, int kind) {
    DS__REQUIRE(strlen(name) < sizeof t->node->name,
                "the name \"%.40s\" is longer than %zu characters", name, sizeof t->node->name - 1);
    DS__REQUIRE(ds__tnode_find(t, name) < 0, "the name \"%s\" is already used", name);
    DS__REQUIRE(t->nodes < DS__TOPOLOGY_MAX, "the topology has more than %d nodes",
                DS__TOPOLOGY_MAX);
    ds__tnode *n = ds__array_add(&t->node, (size_t)t->nodes, &t->node_room, sizeof *n);
    if (!n)
        return DS_ERR_OUT_OF_MEMORY;
    strcpy(n->name, name);
    n->kind = kind;
    if (kind == DS__NODE_DEVICE)
        t->rank[t->devices++] = t->nodes;
    t->nodes++;
    return DS_OK;
}

/* Adds a link and its wires: one for each direction, or one for both. */
static ds_result ds__tlink_add(ds_topology *t, ds__tlink link) {
    DS__REQUIRE(link.a != link.b, "%s cannot be linked to itself", t->node[link.a].name);
    ds__tlink *l = ds__array_add(&t->link, (size_t)t->links, &t->link_room, sizeof *l);
    if (!l)
        return DS_ERR_OUT_OF_MEMORY;
    *l = link;
    t->links++;
    for (int i = 0; i < 2; i++) {
        l->wire[i] = l->wire[0];
        if (i && l->half)
            continue;
        double *w = ds__array_add(&t->wire, (size_t)t->wires, &t->wire_room, sizeof *w);
        if (!w)
            return DS_ERR_OUT_OF_MEMORY;
        *w = l->rate[i];
        l->wire[i] = t->wires++;
    }
    return DS_OK;
}

static ds_result ds__tpeer_add(ds_topology *t, struct ds__tpeer peer) {
    struct ds__tpeer *one = ds__array_add(&t->peer, (size_t)t->peers, &t->peer_room, sizeof *one);
    if (!one)
        return DS_ERR_OUT_OF_MEMORY;
    *one = peer;
    t->peers++;
    return DS_OK;
}

/* Returns a topology with the host only, or NULL if memory is exhausted. */
static ds_topology *ds__topology_create(void) {
    static _Atomic uint64_t ids;
    ds_topology *t = ds__host_alloc(sizeof *t);
    if (t)
        t->rank = ds__host_alloc(DS__TOPOLOGY_MAX * sizeof *t->rank);
    if (!t || !t->rank) {
        ds__host_free(t);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a topology");
        return NULL;
    }
    t->allocator = ds__allocator;
    t->engines = 3;
    t->start_ns = 1500;
    t->latency_ns = 6000;
    t->memory = 2e12;
    t->id = atomic_fetch_add(&ids, 1) + 1;
    if (ds__tnode_add(t, "host", DS__NODE_HOST) == DS_OK)
        return t;
    ds__host_free(t->rank);
    ds__host_free(t);
    return NULL;
}

DSDEF void(ds_topology_destroy)(ds_topology *t) {
    if (!t)
        return;
    ds_allocator allocator = t->allocator; /* `t` is freed too */
    const ds_allocator *from = &allocator;
    void (*gone_fn)(const ds_topology *) = atomic_load(&ds__topology_gone_fn);
    if (gone_fn)
        gone_fn(t);
    ds__release_to(from, t->node);
    ds__release_to(from, t->link);
    ds__release_to(from, t->wire);
    ds__release_to(from, t->rank);
    for (int level = 0; level < 3; level++)
        ds__release_to(from, t->group[level]);
    ds__release_to(from, t->island);
    ds__release_to(from, t->route);
    ds__release_to(from, t->hop);
    ds__release_to(from, t->way);
    ds__release_to(from, t->peer);
    ds__release_to(from, t->device);
    ds__release_to(from, t);
}

DSDEF int(ds_topology_get_size)(const ds_topology *t) {
    return t ? t->devices : 0;
}

/* topology/parse.h - reading the text form of a topology.

   Implements ds_topology_create_of_text and ds_topology_create_of_file. ds__topology_parse splits
   the text into lines and words (ds__twords), and ds__parse_line adds the nodes, links, peers and
   values of one line.

   Invariants: a name is declared before its use, and every device before the first peer line. A
   line has at most 4095 characters and 512 words, and a file is smaller than one MiB. Numbers do
   not depend on the locale. An error in a word names the line and the word. On failure the
   topology is freed and *out is NULL.
   Locks: takes none itself; freeing a topology after a failure takes ds__c.lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */

#define DS__TWORDS 512

typedef struct ds__twords {
    ds_topology *t;
    char line[4096];
    char *word[DS__TWORDS];
    int words;                     /* of the line */
    int number;                    /* of the line */
    int list[2][DS__TOPOLOGY_MAX]; /* nodes of the two lists of a line */
    int count[2];                  /* how many nodes each list has */
} ds__twords;

/* Reports an error in a word of the line, or at its end. Returns the error. */
static ds_result ds__tword_fail(const ds__twords *w, int word, const char *what) {
    return ds__fail(DS_ERR_INVALID_VALUE, "line %d, word %d (\"%.60s\"): %s", w->number, word + 1,
                    word < w->words ? w->word[word] : "the end", what);
}

/* Reads a number with a unit; the decimal point does not depend on the locale. Returns 'r' for a
   rate, 't' for a time in nanoseconds, 'n' for a number without unit, and 0 for other text. */
static int ds__parse_quantity(const char *s, double *out) {
    static const struct {
        const char *unit;
        double by;
        int kind;
    } units[] = { { "B/s", 1, 'r' },    { "KB/s", 1e3, 'r' },  { "MB/s", 1e6, 'r' },
                  { "GB/s", 1e9, 'r' }, { "TB/s", 1e12, 'r' }, { "ns", 1, 't' },
                  { "us", 1e3, 't' },   { "ms", 1e6, 't' },    { "", 1, 'n' } };

    double n = 0;
    double place = 1;
    int digits = 0;
    int point = 0;
    for (; (*s >= '0' && *s <= '9') || (*s == '.' && !point); s++) {
        if (*s == '.') {
            point = 1;
            continue;
        }
        n = n * 10 + (*s - '0');
        if (point)
            place *= 10;
        if (++digits > 15)
            return 0;
    }
    for (size_t i = 0; digits && i < sizeof units / sizeof units[0]; i++)
        if (strcmp(s, units[i].unit) == 0) {
            *out = n / place * units[i].by;
            /* sums of thousands of times still fit */
            return units[i].kind == 't' && *out > 1e12 ? 0 : units[i].kind;
        }
    return 0;
}

/* Reads a number of 1 to 4 digits, without a sign. Returns the text after the number, or NULL. */
static const char *ds__parse_digits(const char *s, int *out) {
    int digits = 0;
    *out = 0;
    for (; *s >= '0' && *s <= '9' && digits < 5; s++, digits++)
        *out = *out * 10 + (*s - '0');
    return digits >= 1 && digits <= 4 ? s : NULL;
}

/* Writes the k-th name of a word into a buffer; "gpu0..7" has eight names. Returns the number of
   names, or 0 if the word is too long or its numbers are not in order. */
static int ds__parse_name(const char *word, int k, char *out, size_t size) {
    const char *dots = strstr(word, "..");
    size_t stem = dots ? (size_t)(dots - word) : strlen(word);
    if (stem + 8 > size)
        return 0;
    if (!dots) {
        memcpy(out, word, stem + 1);
        return 1;
    }
    while (stem && word[stem - 1] >= '0' && word[stem - 1] <= '9')
        stem--;
    int first;
    int last;
    const char *end = ds__parse_digits(word + stem, &first);
    if (end != dots)
        return 0;
    end = ds__parse_digits(dots + 2, &last);
    if (!end || *end || last < first)
        return 0;
    memcpy(out, word, stem);
    snprintf(out + stem, size - stem, "%d", first + k);
    return last - first + 1;
}

/* Lists the nodes that a word names. `devices`: only devices and the host are allowed. */
static ds_result ds__parse_names(ds__twords *w, int word, int which, int devices) {
    char name[64];
    int n = word < w->words ? ds__parse_name(w->word[word], 0, name, sizeof name) : 0;
    if (!n)
        return ds__tword_fail(w, word, "no name");
    w->count[which] = 0;
    for (int i = 0; i < n; i++) {
        (void)ds__parse_name(w->word[word], i, name, sizeof name);
        int at = ds__tnode_find(w->t, name);
        if (at < 0)
            return ds__tword_fail(w, word,
                                  "no device, switch or socket of this name was declared before");
        if (devices && w->t->node[at].kind != DS__NODE_DEVICE &&
            w->t->node[at].kind != DS__NODE_HOST)
            return ds__tword_fail(w, word, "not a device");
        w->list[which][w->count[which]++] = at;
    }
    return DS_OK;
}

/* Adds the nodes of a line that declares devices, switches or sockets. */
static ds_result ds__parse_declare(ds__twords *w, int kind) {
    ds_result r = DS_OK;
    char name[64];
    if (w->words < 2)
        return ds__tword_fail(w, 1, "a name is expected");
    for (int i = 1; i < w->words; i++) {
        int n = ds__parse_name(w->word[i], 0, name, sizeof name);
        if (!n)
            return ds__tword_fail(w, i, "no name");
        for (int k = 0; k < n && r == DS_OK; k++) {
            (void)ds__parse_name(w->word[i], k, name, sizeof name);
            r = ds__tnode_add(w->t, name, kind);
        }
        if (r < 0)
            return ds__fail_append(r, " (line %d, word %d)", w->number, i + 1);
    }
    return r;
}

/* Returns the kind of link that a word names, or -1. */
static int ds__link_kind_of(const char *word) {
    for (int i = 0; i < DS_LINK_KIND_COUNT; i++)
        if (strcmp(word, ds__link_kinds[i].word) == 0)
            return i;
    return -1;
}

/* Reads the words after the kind of a link: rates, latency and "half". */
static ds_result ds__tlink_values(ds__twords *w, ds__tlink *link) {
    int rates = 0;
    for (int i = 4; i < w->words; i++) {
        double n = 0;
        int is = ds__parse_quantity(w->word[i], &n);
        if (strcmp(w->word[i], "half") == 0)
            link->half = 1;
        else if (is == 't')
            link->latency = (int64_t)n;
        else if (is == 'r' && rates < 2 && n >= 1) {
            link->rate[1] = n;
            if (!rates++)
                link->rate[0] = n;
        } else
            return ds__tword_fail(w, i,
                                  "neither a rate above 0 (\"25GB/s\", two at most), nor a time "
                                  "(\"500ns\"), nor \"half\"");
    }
    return DS_OK;
}

/* Adds the links of a line. */
static ds_result ds__tlink_line(ds__twords *w) {
    ds_result r = ds__parse_names(w, 1, 0, 0);
    if (r == DS_OK)
        r = ds__parse_names(w, 2, 1, 0);
    if (r < 0)
        return r;
    int kind = w->words > 3 ? ds__link_kind_of(w->word[3]) : -1;
    if (kind < 0)
        return ds__tword_fail(
            w, 3, "not a kind of link: pcie, nvlink, nvswitch, socket, network or host");
    double rate = ds__link_kinds[kind].rate;
    ds__tlink l = {
        .kind = kind,
        .rate = { rate, rate },
        .latency = ds__link_kinds[kind].latency,
    };
    r = ds__tlink_values(w, &l);
    if (r < 0)
        return r;
    for (int i = 0; i < w->count[0]; i++)
        for (int k = 0; k < w->count[1] && r == DS_OK; k++) {
            l.a = w->list[0][i];
            l.b = w->list[1][k];
            r = ds__tlink_add(w->t, l);
        }
    return r < 0 ? ds__fail_append(r, " (line %d)", w->number) : r;
}

/* Returns the rank of a device's node; for the host the number of devices. */
static int ds__rank_of(const ds_topology *t, int node) {
    for (int i = 0; i < t->devices; i++)
        if (t->rank[i] == node)
            return i;
    return t->devices;
}

/* The words of a peer line before its value. */
static const struct {
    const char *word;
    int what;   /* as in ds__tpeer */
    int value;  /* what ds__parse_quantity returns for the value; 0: the word has no value */
    int mutual; /* 1: the line holds for both directions */
} ds__tpeer_words[] = {
    { "on", '1', 0, 1 },     { "off", '0', 0, 1 },    { "push", 'u', 'r', 0 },
    { "pull", 'd', 'r', 0 }, { "both", 'b', 'r', 1 }, { "latency", 'l', 't', 0 },
};

enum { DS__TPEER_WORDS = sizeof ds__tpeer_words / sizeof ds__tpeer_words[0] };

/* Returns the word of a peer line as an index of ds__tpeer_words; DS__TPEER_WORDS for other
   words. */
static int ds__tpeer_word(const char *word) {
    int i = 0;
    while (i < DS__TPEER_WORDS && strcmp(word, ds__tpeer_words[i].word) != 0)
        i++;
    return i;
}

/* Reads the value of a peer line, a rate or a time, and checks that the line ends after it. */
static ds_result ds__tpeer_value(ds__twords *w, int value, double *out) {
    int timed = value == 't';
    if (value && (w->words < 5 || ds__parse_quantity(w->word[4], out) != value || *out < !timed))
        return ds__tword_fail(w, 4,
                              timed ? "a time is expected (\"8us\")"
                                    : "a rate above 0 is expected (\"25GB/s\")");
    int end = value ? 5 : 4;
    if (w->words > end)
        return ds__tword_fail(w, end, "text after the end of the statement");
    return DS_OK;
}

/* Adds the peer line of one pair of nodes, in one direction or in both. */
static ds_result ds__tpeer_pair(ds__twords *w, struct ds__tpeer peer, const int *node, int mutual) {
    ds_result r = DS_OK;
    for (int back = 0; back <= mutual && r == DS_OK; back++) {
        if (node[0] == node[1])
            continue;
        peer.from = ds__rank_of(w->t, node[back]);
        peer.to = ds__rank_of(w->t, node[!back]);
        r = ds__tpeer_add(w->t, peer);
    }
    return r;
}

/* Reads a peer line, which holds for each pair of a node of its first list and one of its second
   list. */
static ds_result ds__tpeer_line(ds__twords *w) {
    ds_result r = ds__parse_names(w, 1, 0, 1);
    if (r == DS_OK)
        r = ds__parse_names(w, 2, 1, 1);
    if (r < 0)
        return r;
    const char *word = w->words > 3 ? w->word[3] : "";
    struct ds__tpeer peer = { 0, 0, 'k', ds__link_kind_of(word), 0 };
    int known = ds__tpeer_word(word);
    int value = 0;
    int mutual = 1;
    if (known < DS__TPEER_WORDS) {
        peer.what = ds__tpeer_words[known].what;
        value = ds__tpeer_words[known].value;
        mutual = ds__tpeer_words[known].mutual;
    } else if (peer.kind < 0) {
        return ds__tword_fail(w, 3,
                              "neither on, off, push, pull, both, latency nor a kind of link");
    }
    r = ds__tpeer_value(w, value, &peer.rate);
    int hosts = !w->list[0][0] + !w->list[1][0];
    if (r == DS_OK && !value && hosts == 1)
        return ds__tword_fail(w, w->list[0][0] ? 2 : 1, "host memory is not a device");
    for (int i = 0; i < w->count[0] && r == DS_OK; i++)
        for (int k = 0; k < w->count[1] && r == DS_OK; k++) {
            const int node[2] = { w->list[0][i], w->list[1][k] };
            r = ds__tpeer_pair(w, peer, node, mutual);
        }
    return r;
}

/* Reads a line with a value of the whole topology. */
static ds_result ds__tvalue_line(ds__twords *w) {
    double n = 0;
    int is = w->words == 2 ? ds__parse_quantity(w->word[1], &n) : 0;
    if (strcmp(w->word[0], "engines") == 0 && is == 'n' && n >= 1 && n <= 64 && n == (int)n)
        w->t->engines = (int)n;
    else if (strcmp(w->word[0], "start") == 0 && is == 't' && n >= 1)
        w->t->start_ns = (int64_t)n;
    else if (strcmp(w->word[0], "latency") == 0 && is == 't')
        w->t->latency_ns = (int64_t)n;
    else if (strcmp(w->word[0], "memory") == 0 && is == 'r' && n >= 1)
        w->t->memory = n;
    else
        return ds__tword_fail(w, w->words > 2 ? 2 : 1,
                              "expected: engines 1 to 64, start TIME, latency TIME or memory RATE");
    return DS_OK;
}

/* Reads a line that has words. */
static ds_result ds__parse_line(ds__twords *w) {
    static const char *const kinds[] = {
        [DS__NODE_DEVICE] = "device", [DS__NODE_SWITCH] = "switch", [DS__NODE_SOCKET] = "socket"
    };
    for (int kind = 0; kind < 3; kind++)
        if (strcmp(w->word[0], kinds[kind]) == 0) {
            DS__REQUIRE(kind != DS__NODE_DEVICE || !w->t->peers,
                        "line %d: a device after the first peer line", w->number);
            return ds__parse_declare(w, kind);
        }
    if (strcmp(w->word[0], "link") == 0)
        return ds__tlink_line(w);
    if (strcmp(w->word[0], "peer") == 0)
        return ds__tpeer_line(w);
    if (strcmp(w->word[0], "engines") == 0 || strcmp(w->word[0], "start") == 0 ||
        strcmp(w->word[0], "latency") == 0 || strcmp(w->word[0], "memory") == 0)
        return ds__tvalue_line(w);
    return ds__tword_fail(
        w, 0, "expected: device, switch, socket, link, peer, engines, start, latency or memory");
}

/* Divides the line into words; a word that begins with # begins a comment. */
static ds_result ds__parse_words(ds__twords *w) {
    w->words = 0;
    for (char *s = w->line;;) {
        s += strspn(s, " \t\r");
        if (!*s || *s == '#')
            return DS_OK;
        DS__REQUIRE(w->words < DS__TWORDS, "line %d has more than %d words", w->number, DS__TWORDS);
        w->word[w->words++] = s;
        s += strcspn(s, " \t\r");
        if (*s)
            *s++ = 0;
    }
}

/* Reads all lines of a text into a topology, and makes its routes. */
static ds_result ds__topology_parse(const char *text, ds_topology *t) {
    ds_result r = DS_OK;
    ds__twords *w = ds__host_alloc(sizeof *w);
    if (!w)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a topology");
    w->t = t;
    while (*text && r == DS_OK) {
        size_t n = strcspn(text, "\n");
        w->number++;
        if (n >= sizeof w->line) {
            r = ds__fail(DS_ERR_INVALID_VALUE, "line %d is longer than %zu characters", w->number,
                         sizeof w->line - 1);
            break;
        }
        memcpy(w->line, text, n);
        w->line[n] = 0;
        text += n + (text[n] == '\n');
        r = ds__parse_words(w);
        if (r == DS_OK && w->words)
            r = ds__parse_line(w);
    }
    if (r == DS_OK && !t->devices)
        r = ds__fail(DS_ERR_INVALID_VALUE, "line %d: the topology has no devices", w->number);
    ds__host_free(w);
    return r == DS_OK ? ds__routes_build(t) : r;
}

/* Creates a topology of a text. */
static ds_result ds__topology_of_text(const char *text, ds_topology **out) {
    ds_topology *t = ds__topology_create();
    ds_result r = t ? ds__topology_parse(text, t) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        *out = t;
    else
        (ds_topology_destroy)(t);
    return r;
}

DSDEF ds_result(ds_topology_create_of_text)(const char *text, ds_topology **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_topology_create_of_text");
    DS__REQUIRE(text && out, "%s is NULL", text ? "out" : "text");
    return ds__topology_of_text(text, out);
}

/* Reads a whole text file into a buffer of so many bytes and ends it with a zero. */
static ds_result ds__topology_read(const char *path, char *text, size_t size) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return ds__fail(DS_ERR_SYSTEM, "%s cannot be read: %s", path, strerror(errno));
    ds_result r = DS_OK;
    size_t n = fread(text, 1, size - 1, f);
    text[n] = 0;
    if (ferror(f))
        r = ds__fail(DS_ERR_SYSTEM, "%s cannot be read: %s", path, strerror(errno));
    else if (n == size - 1)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%s is longer than a MiB", path);
    else if (memchr(text, 0, n))
        r = ds__fail(DS_ERR_INVALID_VALUE, "%s is not a text file", path);
    fclose(f);
    return r;
}

DSDEF ds_result(ds_topology_create_of_file)(const char *path, ds_topology **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_topology_create_of_file");
    DS__REQUIRE(path && out, "%s is NULL", path ? "out" : "path");

    enum { MOST = 1 << 20 };

    char *text = ds__host_alloc(MOST);
    if (!text)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a topology");
    ds_result r = ds__topology_read(path, text, MOST);
    if (r == DS_OK) {
        r = ds__topology_of_text(text, out);
        if (r < 0)
            r = ds__fail_append(r, " (in %s)", path);
    }
    ds__host_free(text);
    return r;
}

/* topology/write.h - output of topologies, and the CPU fabric.

   Implements ds_topology_write: a matrix, a DOT graph or the text form, printed by the text
   writer (ds__text_writer). Also implements ds_topology_get_fabric, the topology as the virtual
   clock of the CPU driver takes it.

   Invariants: the tables of functions, words and shapes follow the order of ds_topology_format
   and of the node kinds. The text form has rates in whole bytes per second. A peer line that
   holds for both directions is written once. A fabric points into the topology.
   Locks: none; write_fn, which is user code, runs without a lock.
   Threads: caller's threads, several at the same time, also for one topology; refused in
   callbacks (DS__ENTER). */

/* Returns the name of a rank, or of the host. */
static const char *ds__topology_rank_name(const ds_topology *t, int rank) {
    return rank < t->devices ? t->node[t->rank[rank]].name : "host";
}

/* Writes rate and latency of each pair; * for pairs that do not access each other. */
static void ds__topology_matrix(const ds_topology *t, ds__text_writer *writer) {
    ds__text_writer_print(writer, "%-10s", "GB/s us");
    for (int k = 0; k <= t->devices; k++)
        ds__text_writer_print(writer, " %11.11s", ds__topology_rank_name(t, k));
    ds__text_writer_print(writer, "\n");
    for (int i = 0; i <= t->devices; i++) {
        ds__text_writer_print(writer, "%-10.10s", ds__topology_rank_name(t, i));
        for (int k = 0; k <= t->devices; k++) {
            const ds__troute *r = ds__route_of(t, i, k);
            if (i == k)
                ds__text_writer_print(writer, " %11s", "-");
            else if (!r->direct && i < t->devices && k < t->devices)
                ds__text_writer_print(writer, " %11s", "*");
            else
                ds__text_writer_print(writer, " %6.1f %4.1f", r->rate / 1e9,
                                      (double)r->latency_ns / 1e3);
        }
        ds__text_writer_print(writer, "\n");
    }
}

/* Writes a graph for dot. The host is left out if it has no link. */
static void ds__topology_dot(const ds_topology *t, ds__text_writer *writer) {
    static const char *const shapes[] = { "box", "ellipse", "hexagon", "cylinder" };
    ds__text_writer_print(writer, "graph \"topology\" {\n");
    for (int i = 0; i < t->nodes; i++) {
        int linked = 0;
        for (int l = 0; l < t->links; l++)
            linked |= t->link[l].a == i || t->link[l].b == i;
        if (!linked && t->node[i].kind == DS__NODE_HOST)
            continue;
        ds__text_writer_print(writer, "\"");
        ds__text_writer_quote(writer, t->node[i].name);
        ds__text_writer_print(writer, "\" [shape=%s];\n", shapes[t->node[i].kind]);
    }
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        ds__text_writer_print(writer, "\"");
        ds__text_writer_quote(writer, t->node[k->a].name);
        ds__text_writer_print(writer, "\" -- \"");
        ds__text_writer_quote(writer, t->node[k->b].name);
        ds__text_writer_print(writer, "\" [label=\"%s %g\"];\n", ds__link_kinds[k->kind].word,
                              k->rate[0] / 1e9);
    }
    ds__text_writer_print(writer, "}\n");
}

/* Writes a peer line. A line that holds for both directions is written once. */
static void ds__topology_peer(const ds_topology *t, ds__text_writer *writer,
                              const struct ds__tpeer *e) {
    const char *from = ds__topology_rank_name(t, e->from);
    const char *to = ds__topology_rank_name(t, e->to);
    const char *word = e->what == '1' ? "on" : "off";
    switch (e->what) {
    case 'u':
        ds__text_writer_print(writer, "peer %s %s push %.0fB/s\n", from, to, e->rate);
        return;
    case 'd':
        ds__text_writer_print(writer, "peer %s %s pull %.0fB/s\n", from, to, e->rate);
        return;
    case 'l':
        ds__text_writer_print(writer, "peer %s %s latency %.0fns\n", from, to, e->rate);
        return;
    case 'b':
        if (e->from < e->to)
            ds__text_writer_print(writer, "peer %s %s both %.0fB/s\n", from, to, e->rate);
        return;
    case 'k':
        word = ds__link_kinds[e->kind].word;
        break;
    default:
        break;
    }
    if (e->from < e->to)
        ds__text_writer_print(writer, "peer %s %s %s\n", from, to, word);
}

/* Writes the form that ds_topology_create_of_text reads. */
static void ds__topology_text(const ds_topology *t, ds__text_writer *writer) {
    static const char *const kinds[] = { "device", "switch", "socket" };
    ds__text_writer_print(writer, "engines %d\nstart %lldns\nlatency %lldns\nmemory %.0fB/s\n",
                          t->engines, (long long)t->start_ns, (long long)t->latency_ns, t->memory);
    for (int i = 1; i < t->nodes; i++)
        ds__text_writer_print(writer, "%s %s\n", kinds[t->node[i].kind], t->node[i].name);
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        ds__text_writer_print(writer, "link %s %s %s %.0fB/s %.0fB/s %lldns%s\n",
                              t->node[k->a].name, t->node[k->b].name, ds__link_kinds[k->kind].word,
                              k->rate[0], k->rate[1], (long long)k->latency,
                              k->half ? " half" : "");
    }
    for (int i = 0; i < t->peers; i++)
        ds__topology_peer(t, writer, &t->peer[i]);
}

DSDEF ds_result(ds_topology_write)(const ds_topology *topology, ds_topology_format format,
                                   ds_write_fn write_fn, void *user) {
    static void (*const forms[])(const ds_topology *, ds__text_writer *) = { ds__topology_matrix,
                                                                             ds__topology_dot,
                                                                             ds__topology_text };
    DS__ENTER("ds_topology_write");
    DS__REQUIRE(topology && write_fn, "%s is NULL", topology ? "write_fn" : "topology");
    DS__REQUIRE((unsigned)format < sizeof forms / sizeof forms[0],
                "format is %d; use a DS_TOPOLOGY_* format", (int)format);
    ds__text_writer writer = { write_fn, user, 0, 0 };
    forms[format](topology, &writer);
    return writer.stopped ? ds__fail(DS_ERR_SYSTEM, "the writer stopped with %d", writer.stopped)
                          : DS_OK;
}

DSDEF ds_result(ds_topology_get_fabric)(const ds_topology *topology, ds_cpu_fabric *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_topology_get_fabric");
    DS__REQUIRE(topology && out, "%s is NULL", topology ? "out" : "topology");
    *out = (ds_cpu_fabric){ topology->devices,
                            (size_t)topology->wires,
                            topology->wire,
                            topology->way,
                            topology->engines,
                            topology->start_ns,
                            topology->memory,
                            0,
                            { 0 } };
    return DS_OK;
}

/* topology/sysfs.h - PCIe tree and sockets, read from /sys.

   Finds the position of a device in the PCIe tree (ds__tplace_find) and the rate of its links
   (ds__tplace_rate) for here.h. ds__tplace_parts tells whether a bridge is a switch.

   Policy:
   1. The PCIe tree is read from /sys, or from the folder in DEVSTREAM_SYSFS. A bridge is a
      switch if paths to several of the devices part there and it is not the root port. A NUMA
      node is a socket.
   2. The rate of a link is the highest that both of its ends support. The current rate is not
      used, because an idle GPU saves power. If a bridge promises less than its link runs at now,
      the machine is a virtual one, and no value of a bridge is used.
   3. Devices are attached to an NVSwitch if NVLink joins all of them and one more condition
      holds. Either an NVSwitch is among the PCI devices, or there are more devices than could be
      wired pair by pair. Otherwise each joined pair has its own link.
   4. Nothing reports the number of lanes of an NVLink, so a measured rate becomes its rate. All
      other measurements are peer lines of a pair.

   Invariants: up[0] is the root port and up[deep - 1] the device itself, for paths of at most
   DS__TPLACE_DEEP entries. Unknown values are deep 0, socket -1, and speed or width 0.
   Locks: none.
   Threads: any; nothing is cached. The environment must not change at the same time (getenv). */

#define DS__TPLACE_DEEP 16

/* Position of a device in the PCIe tree. */
typedef struct ds__tplace {
    /* PCI addresses: the bridges above the device from the root port on, then the device */
    char up[DS__TPLACE_DEEP][24];
    int deep;   /* number of addresses in `up`; 0: unknown */
    int socket; /* NUMA node, or -1 */
    int plain;  /* 1: the values of the bridges are not used */
} ds__tplace;

/* Speed of a port in GT/s and its number of lanes; 0: unknown. */
typedef struct ds__sysfs_port {
    double speed;
    double width;
} ds__sysfs_port;

/* Writes the path of a file of a PCI device, of its folder (empty `file`), or of the folder of all
   devices (empty `pci`). Returns 0 if the path is too long. */
static int ds__sys_path(char *out, size_t size, const char *pci, const char *file) {
    const char *root = getenv("DEVSTREAM_SYSFS");
    return (size_t)snprintf(out, size, "%s/bus/pci/devices%s%s%s%s", root && *root ? root : "/sys",
                            *pci ? "/" : "", pci, *file ? "/" : "", file) < size;
}

/* Reads the first line of a file of a PCI device. Returns 0 if the file cannot be read. */
static int ds__sys_line(const char *pci, const char *file, char *out, size_t size) {
    char path[512];
    if (!ds__sys_path(path, sizeof path, pci, file))
        return 0;
    FILE *f = fopen(path, "r");
    int got = f && fgets(out, (int)size, f) != NULL;
    if (f)
        fclose(f);
    return got;
}

/* Returns the greatest ("max") or the current ("current") values of a port. */
static ds__sysfs_port ds__sysfs_port_read(const char *pci, const char *which) {
    ds__sysfs_port port = { 0, 0 };
    char file[32];
    char line[64];
    unsigned n = 0;
    unsigned tenth = 0;
    snprintf(file, sizeof file, "%s_link_speed", which);
    if (ds__sys_line(pci, file, line, sizeof line) && sscanf(line, "%4u.%1u", &n, &tenth) > 0 &&
        n < 10000) /* "-7" is read as a large number */
        port.speed = n + tenth / 10.0;
    snprintf(file, sizeof file, "%s_link_width", which);
    if (ds__sys_line(pci, file, line, sizeof line) && sscanf(line, "%3u", &n) > 0 && n <= 32)
        port.width = n;
    return port;
}

/* Lists the PCI addresses of a path such as
   ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0, from the root port on. */
static void ds__tplace_parse(const char *at, ds__tplace *out) {
    while (*at) {
        size_t length = strcspn(at, "/");
        if (strncmp(at, "pci", 3) == 0) {
            out->deep = 0;
        } else if (memchr(at, ':', length) && length < sizeof out->up[0] &&
                   out->deep < DS__TPLACE_DEEP) {
            memcpy(out->up[out->deep], at, length);
            out->up[out->deep++][length] = 0;
        }
        at += length + (at[length] == '/');
    }
}

/* Returns 1 if the bridge above the device promises less than the device's link runs at now: the
   bridges are those of a virtual machine. */
static int ds__tplace_is_plain(const ds__tplace *p, const char *address) {
    if (p->deep < 2)
        return 0;
    ds__sysfs_port most = ds__sysfs_port_read(p->up[p->deep - 2], "max");
    ds__sysfs_port now = ds__sysfs_port_read(address, "current");
    return (most.speed > 0 && most.speed < now.speed) || (most.width > 0 && most.width < now.width);
}

/* Finds the position of a PCI device. If the device or its files are missing, all values are
   unknown. */
static void ds__tplace_find(const char *pci, ds__tplace *out) {
    char address[24];
    char path[512];
    char real[1024];
    char line[64];
    size_t n = strlen(pci);
    out->deep = 0;
    out->socket = -1;
    out->plain = 0;
    if (!n || n >= sizeof address)
        return;
    /* CUDA writes capitals, /sys does not */
    for (size_t i = 0; i <= n; i++)
        address[i] = (char)(pci[i] >= 'A' && pci[i] <= 'F' ? pci[i] + ('a' - 'A') : pci[i]);
    if (!ds__sys_path(path, sizeof path, address, "") || !ds__os_link(path, real, sizeof real))
        return;
    ds__tplace_parse(real, out);
    if (ds__sys_line(address, "numa_node", line, sizeof line) &&
        sscanf(line, "%4d", &out->socket) != 1)
        out->socket = -1;
    out->plain = ds__tplace_is_plain(out, address);
}

/* Returns the lesser of two values, of which 0 is unknown. */
static double ds__sysfs_lesser(double a, double b) {
    return a <= 0 || (b > 0 && b < a) ? b : a;
}

/* Returns the bytes per second of the link above entry `at` of the path: four fifths of what both
   ends support; 0: unknown. Links of up to 5 GT/s lose a fifth to their code, faster ones 2 of 130
   bits. */
static double ds__tplace_link_rate(const ds__tplace *p, int at) {
    ds__sysfs_port port = ds__sysfs_port_read(p->up[at], "max");
    if (at > 0 && !p->plain) {
        ds__sysfs_port other = ds__sysfs_port_read(p->up[at - 1], "max");
        port.speed = ds__sysfs_lesser(port.speed, other.speed);
        port.width = ds__sysfs_lesser(port.width, other.width);
    }
    return port.speed * port.width * 1e9 / 8 * (port.speed > 5 ? 128.0 / 130 : 0.8) * 0.8;
}

/* Returns the bytes per second from entry `low` of the path up to, but without, entry `high`: the
   rate of the slowest link. Upwards from the device, every second step is inside of a switch. */
static double ds__tplace_rate(const ds__tplace *p, int low, int high) {
    double rate = 0;
    for (int at = low; at > high; at--) {
        if ((p->deep - 1 - at) % 2 || (p->plain && at != p->deep - 1))
            continue;
        rate = ds__sysfs_lesser(rate, ds__tplace_link_rate(p, at));
    }
    return rate > 0 ? (double)(uint64_t)rate : ds__link_kinds[DS_LINK_PCIE].rate;
}

/* Returns 1 if a PCI device is an NVSwitch: a device of NVIDIA in the class "other bridge". Not all
   generations of NVSwitches are PCI devices. */
static int ds__sys_nvswitch(const char *pci) {
    char line[64];
    return ds__sys_line(pci, "class", line, sizeof line) && strncmp(line, "0x0680", 6) == 0 &&
           ds__sys_line(pci, "vendor", line, sizeof line) && strncmp(line, "0x10de", 6) == 0;
}

/* Returns 1 if paths to several devices part at entry `at` above device i. Entry 0, the root port,
   has one link, to one card. */
static int ds__tplace_parts(const ds__tplace *place, size_t count, size_t i, int at) {
    for (size_t k = 0; k < count; k++)
        if (at < place[k].deep - 1 && strcmp(place[k].up[at], place[i].up[at]) == 0 &&
            strcmp(place[k].up[at + 1], place[i].up[at + 1]) != 0)
            return 1;
    return 0;
}

/* topology/measure.h - measured rates of pairs of devices.

   ds__measure_probe measures each pair of a list by short copies and keeps the results in a table
   of the process (ds__measured). ds__measured_find looks up a pair in either direction.

   Invariants: a pair in the table is not measured again before ds_shutdown. After 150 ms no
   further pair is measured, and the missing pairs keep the rates of the link kinds. Rates are
   whole bytes per second, so the text form keeps them exactly. `both` is 0 if copies in both
   directions at once were not measured or not slower.
   Locks: ds__c.lock protects the table. No driver call runs under that lock. ds__measures_end
   takes no lock.
   Threads: caller's threads, which wait for the copies. Two threads may measure the same pair at
   the same time; the older entry counts then. ds__measures_end runs in ds_shutdown only. */

#define DS__PROBE_BYTES ((size_t)2 << 20)

/* Measured values of two devices; [0] is from the first to the second, [1] back. */
typedef struct ds__measured {
    ds_device device[2];
    double push[2];
    double pull[2];
    double both;          /* 0: as fast as one after the other */
    uint64_t least_ns[2]; /* of a copy of 64 bytes, with the wait for it */
} ds__measured;

/* The table of this process; ds__c.lock protects all three. */
static ds__measured *ds__measures;
static size_t ds__measure_count, ds__measure_room;

/* Looks up a pair in either direction. Returns 1 if the pair was measured. */
static int ds__measured_find(ds_device from, ds_device to, ds__measured *out) {
    int found = 0;
    ds__spinlock_lock(&ds__c.lock);
    for (size_t i = 0; i < ds__measure_count && !found; i++)
        for (int back = 0; back < 2 && !found; back++) {
            const ds__measured *m = &ds__measures[i];
            if (memcmp(&m->device[back], &from, sizeof from) != 0 ||
                memcmp(&m->device[!back], &to, sizeof to) != 0)
                continue;
            *out = (ds__measured){ { from, to },
                                   { m->push[back], m->push[!back] },
                                   { m->pull[back], m->pull[!back] },
                                   m->both,
                                   { m->least_ns[back], m->least_ns[!back] } };
            found = 1;
        }
    ds__spinlock_unlock(&ds__c.lock);
    return found;
}

static void ds__measures_end(void) {
    ds__host_free(ds__measures);
    ds__measures = NULL;
    ds__measure_count = ds__measure_room = 0;
}

static const ds__module ds__topology_module = { .shutdown = ds__measures_end };

/* Measures the nanoseconds of one or two simultaneous copies and the wait for them: the shortest of
   three times. */
static ds_result ds__probe_copies(int copies, void *const *dst, void *const *src, size_t bytes,
                                  const ds_stream *stream, uint64_t *out_ns) {
    ds_result r = DS_OK;
    *out_ns = UINT64_MAX;
    for (int i = 0; i < 3 && r == DS_OK; i++) {
        uint64_t begin = ds__now_ns();
        uint64_t ns;
        for (int n = 0; n < copies && r == DS_OK; n++)
            DS__KEEPING(r, (ds_copy)(dst[n], src[n], bytes, stream[n]));
        for (int n = 0; n < copies && r == DS_OK; n++)
            DS__KEEPING(r, (ds_stream_synchronize)(stream[n]));
        ns = ds__now_ns() - begin;
        if (ns < *out_ns)
            *out_ns = ns;
    }
    return r;
}

/* Returns the rate in whole bytes per second, which the text form keeps. `little` is the time of 64
   bytes, which is not part of the transfer. */
static double ds__probe_rate(size_t bytes, uint64_t whole, uint64_t little) {
    uint64_t ns = whole > little ? whole - little : 0;
    uint64_t least = bytes / 10000; /* 10 TB/s: more is noise */
    return (double)(uint64_t)((double)bytes * 1e9 / (double)(ns > least ? ns : least));
}

/* Streams and memory of the devices that are measured. */
typedef struct ds__probes {
    const ds_device *device;
    size_t count;
    ds_stream *stream;
    void **memory; /* of each device: DS__PROBE_BYTES to read, then as many to write */
} ds__probes;

/* Adds measured values to the table. */
static ds_result ds__measured_add(const ds__measured *m) {
    ds__spinlock_lock(&ds__c.lock);
    ds__measured *one =
        ds__array_add(&ds__measures, ds__measure_count, &ds__measure_room, sizeof *one);
    if (one) {
        *one = *m;
        ds__measure_count++;
        ds__module_add(DS__MODULE_TOPOLOGY, &ds__topology_module);
    }
    ds__spinlock_unlock(&ds__c.lock);
    return one ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Measures two devices: copies on the stream of the source (push) and of the destination (pull), in
   each direction, then in both directions at once. */
static ds_result ds__probe_pair(const ds__probes *p, size_t a, size_t b) {
    ds__measured m = {
        { p->device[a], p->device[b] }, { 0, 0 }, { 0, 0 }, 0, { UINT64_MAX, UINT64_MAX }
    };
    ds_stream on[2] = { p->stream[a], p->stream[b] };
    void *src[2] = { p->memory[a], p->memory[b] };
    void *dst[2] = { (char *)p->memory[b] + DS__PROBE_BYTES,
                     (char *)p->memory[a] + DS__PROBE_BYTES };
    uint64_t whole = 0;
    uint64_t little = 0;
    uint64_t shortest = UINT64_MAX;
    ds_result r = DS_OK;
    for (int way = 0; way < 2; way++)
        for (int pull = 0; pull < 2 && r == DS_OK; pull++) {
            r = ds__probe_copies(1, &dst[way], &src[way], DS__PROBE_BYTES, &on[way ^ pull], &whole);
            if (r == DS_OK)
                r = ds__probe_copies(1, &dst[way], &src[way], 64, &on[way ^ pull], &little);
            *(pull ? &m.pull[way] : &m.push[way]) = ds__probe_rate(DS__PROBE_BYTES, whole, little);
            if (little < m.least_ns[way])
                m.least_ns[way] = little;
            if (whole < shortest)
                shortest = whole;
        }
    /* In a shorter time the second copy begins too late for a result. Links that carry one
       direction at a time are slower than that. */
    if (r == DS_OK && shortest > 50000) {
        double alone = m.push[0] + m.push[1];
        r = ds__probe_copies(2, dst, src, DS__PROBE_BYTES, on, &whole);
        m.both = ds__probe_rate(2 * DS__PROBE_BYTES, whole, little);
        if (m.both > alone * 0.9)
            m.both = 0;
    }
    return r == DS_OK ? ds__measured_add(&m) : r;
}

/* Creates a stream and memory for each device. */
static ds_result ds__probes_init(ds__probes *p, const ds_device *device, size_t count) {
    *p = (ds__probes){ device, count, NULL, NULL };
    p->stream = ds__host_alloc(count * sizeof *p->stream);
    p->memory = ds__host_alloc(count * sizeof *p->memory);
    if (!p->stream || !p->memory)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to measure %zu devices", count);
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds_stream_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.device = device[i];
        DS__KEEPING(r, (ds_stream_create)(&desc, &p->stream[i]));
        if (r == DS_OK)
            DS__KEEPING(r, (ds_mem_alloc)(2 * DS__PROBE_BYTES, p->stream[i], &p->memory[i]));
    }
    return r;
}

/* Frees streams and memory; returns the first error. */
static ds_result ds__probes_deinit(ds__probes *p) {
    ds_result end = DS_OK;
    for (size_t i = 0; p->stream && p->memory && i < p->count; i++) {
        ds_result one = DS_OK;
        if (p->memory[i])
            DS__KEEPING(one, (ds_mem_free)(p->memory[i]));
        if (end == DS_OK)
            end = one;
        if (p->stream[i].id)
            DS__KEEPING(one, (ds_stream_destroy)(p->stream[i]));
        if (end == DS_OK)
            end = one;
    }
    ds__host_free(p->stream);
    ds__host_free(p->memory);
    return end;
}

/* Measures the pairs that are not in the table, for 150 ms. Neighbours of the list come first. */
static ds_result ds__probes_run(const ds__probes *p) {
    uint64_t begin = ds__now_ns();
    ds_result r = DS_OK;
    for (size_t turn = 1; turn <= p->count / 2; turn++)
        for (size_t i = 0; i < p->count && r == DS_OK; i++) {
            ds__measured known;
            size_t k = (i + turn) % p->count;
            if (memcmp(&p->device[i], &p->device[k], sizeof *p->device) == 0 ||
                ds__measured_find(p->device[i], p->device[k], &known))
                continue;
            if (ds__now_ns() - begin > 150000000u)
                return DS_OK;
            r = ds__probe_pair(p, i, k);
        }
    return r;
}

/* Measures the pairs of a list that were not measured before. The first use of a device, which
   takes long, is not part of the 150 ms. */
static ds_result ds__measure_probe(const ds_device *device, size_t count) {
    ds__probes p;
    ds_result r = ds__probes_init(&p, device, count);
    if (r == DS_OK)
        r = ds__probes_run(&p);
    ds__tls.mute += r < 0;
    ds_result end = ds__probes_deinit(&p);
    ds__tls.mute -= r < 0;
    return r < 0 ? r : end;
}

/* topology/here.h - topology of the devices of this machine.

   Implements ds_topology_create_of_devices. The function asks the driver for NVLinks, copy engines,
   memory rate and peer access, and reads PCIe and sockets from sysfs.h. DS_TOPOLOGY_PROBE adds
   measured rates.

   Invariants: all devices belong to one driver, and the host is not among them. A device may be in
   the list several times; each occurrence is a node of its own, without an NVLink between them.
   Sockets are added before switches and devices, because ds__here_sockets takes every node but
   the host for a socket. The policy is in sysfs.h.
   Locks: takes none itself and calls the driver without a lock; the table of measurements takes
   ds__c.lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */

/* Adds a link with a rate for each direction. */
static ds_result ds__here_link(ds_topology *t, int a, int b, int kind, double there, double back) {
    return ds__tlink_add(
        t, (ds__tlink){ a, b, kind, 0, { 0, 0 }, { there, back }, ds__link_kinds[kind].latency });
}

static int ds__here_same(ds_device a, ds_device b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Asks each device for its position, and takes the fewest copy engines, the lowest memory rate and
   the lowest compute capability (*out_major) of all devices. */
static ds_result ds__here_ask(ds_topology *t, const ds_device *device, size_t count,
                              ds__tplace *place, int *out_major) {
    ds_result r = DS_OK;
    int most = 64;
    double memory = 0;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds_device_properties p;
        int engines = 0;
        double rate = 0;
        DS__KEEPING(r, (ds_device_get_properties)(device[i], &p));
        if (r == DS_OK)
            r = ds__driver_of(device[i])->device_speed(device[i].index, &engines, &rate);
        if (r < 0)
            return r;
        ds__tplace_find(p.pci, &place[i]);
        if (i == 0 || p.major < *out_major)
            *out_major = p.major;
        if (engines > 0 && engines < most)
            t->engines = most = engines;
        if (rate >= 1 && (memory <= 0 || rate < memory))
            t->memory = memory = rate;
    }
    return r;
}

/* Adds a node for a socket, linked to the other sockets and to the host's memory. */
static ds_result ds__here_socket(ds_topology *t, const char *name) {
    int at = t->nodes;
    ds_result r = ds__tnode_add(t, name, DS__NODE_SOCKET);
    for (int k = 0; k < at && r == DS_OK; k++) {
        int kind = k ? DS_LINK_SOCKET : DS_LINK_HOST;
        double rate = ds__link_kinds[kind].rate;
        r = ds__here_link(t, at, k, kind, rate, rate);
    }
    return r;
}

/* Adds the sockets of the devices, and replaces the number of each device's socket by the node.
   Devices whose socket is unknown belong to the first one. */
static ds_result ds__here_sockets(ds_topology *t, ds__tplace *place, size_t count) {
    ds_result r = DS_OK;
    int first = -1;
    char name[32];
    for (size_t i = 0; i < count && first < 0; i++)
        first = place[i].socket;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        if (place[i].socket < 0)
            place[i].socket = first;
        snprintf(name, sizeof name, first < 0 ? "socket" : "socket%d", place[i].socket);
        place[i].socket = ds__tnode_find(t, name);
        if (place[i].socket >= 0)
            continue;
        place[i].socket = t->nodes;
        r = ds__here_socket(t, name);
    }
    return r;
}

/* Adds the switches above device i that are not in the topology yet. *out_at is the lowest switch,
   or the socket, and *out_high its entry in the path, or -1. */
static ds_result ds__here_switches(ds_topology *t, const ds__tplace *place, size_t count, size_t i,
                                   int *out_at, int *out_high) {
    const ds__tplace *p = &place[i];
    int at = p->socket;
    int high = -1;
    ds_result r = DS_OK;
    for (int n = 1; n < p->deep - 1 && r == DS_OK; n++) {
        char name[32];
        if (!ds__tplace_parts(place, count, i, n))
            continue;
        snprintf(name, sizeof name, "pci:%s", p->up[n]);
        int is = ds__tnode_find(t, name);
        if (is < 0) {
            double rate = ds__tplace_rate(p, n, high);
            is = t->nodes;
            r = ds__tnode_add(t, name, DS__NODE_SWITCH);
            if (r == DS_OK)
                r = ds__here_link(t, is, at, DS_LINK_PCIE, rate, rate);
        }
        at = is;
        high = n;
    }
    *out_at = at;
    *out_high = high;
    return r;
}

/* Adds device i and the switches above it. */
static ds_result ds__here_device(ds_topology *t, const ds_device *device, const ds__tplace *place,
                                 size_t count, size_t i) {
    const ds__tplace *p = &place[i];
    char name[32];
    int at;
    int high;
    ds_result r = ds__here_switches(t, place, count, i, &at, &high);
    if (r < 0)
        return r;
    snprintf(name, sizeof name, "%s:%d", ds__type_name(device[i].type), device[i].index);
    for (int n = 2; ds__tnode_find(t, name) >= 0; n++)
        snprintf(name, sizeof name, "%s:%d#%d", ds__type_name(device[i].type), device[i].index, n);
    double rate = ds__tplace_rate(p, p->deep - 1, high);
    r = ds__tnode_add(t, name, DS__NODE_DEVICE);
    return r == DS_OK ? ds__here_link(t, t->nodes - 1, at, DS_LINK_PCIE, rate, rate) : r;
}

/* Devices and the NVLinks between them. */
typedef struct ds__nvlinks {
    const ds_device *device;
    size_t count;
    unsigned flags; /* DS_TOPOLOGY_PROBE or 0 */
    char *joined;   /* of each pair: 1 if NVLinks join the two */
    size_t pairs;   /* pairs of different devices */
    size_t joins;   /* pairs that are joined */
    size_t unlike;  /* devices, each counted once */
} ds__nvlinks;

/* Returns the measured rate from one device to another, or `table` if nothing was measured. */
static double ds__here_rate(const ds__nvlinks *n, size_t from, size_t to, double table) {
    ds__measured m;
    if (!(n->flags & DS_TOPOLOGY_PROBE) || !ds__measured_find(n->device[from], n->device[to], &m))
        return table;
    double rate = m.push[0] > m.pull[0] ? m.push[0] : m.pull[0];
    return rate >= 1 ? rate : table;
}

/* Asks the driver which pairs are joined by NVLinks. */
static ds_result ds__nvlinks_find(ds__nvlinks *n) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < n->count && r == DS_OK; i++) {
        const ds_device *d = &n->device[i];
        int again = 0;
        for (size_t k = 0; k < i && r == DS_OK; k++) {
            int is = 0;
            if (ds__here_same(*d, n->device[k])) {
                again = 1;
                continue;
            }
            r = ds__driver_of(*d)->device_link(d->index, n->device[k].index, &is);
            n->joined[i * n->count + k] = n->joined[k * n->count + i] = is == 1;
            n->pairs++;
            n->joins += is == 1;
        }
        n->unlike += !again;
    }
    return r;
}

/* Returns 1 if the NVLinks lead to an NVSwitch. NVSwitches came with compute capability 7.0. Up to
   four devices may be wired pair by pair, so an NVSwitch must be a PCI device then. */
static int ds__nvlinks_switched(const ds__nvlinks *n, int major) {
    char path[512];
    if (!n->joins || n->joins < n->pairs || major < 7)
        return 0;
    if (n->unlike > 4)
        return 1;
    return ds__sys_path(path, sizeof path, "", "") && ds__os_any(path, ds__sys_nvswitch);
}

/* Links each joined pair. */
static ds_result ds__nvlinks_pairs(const ds__nvlinks *n, ds_topology *t) {
    double table = ds__link_kinds[DS_LINK_NVLINK].rate;
    ds_result r = DS_OK;
    for (size_t i = 0; i < n->count; i++)
        for (size_t k = i + 1; k < n->count && r == DS_OK; k++)
            if (n->joined[i * n->count + k])
                r = ds__here_link(t, t->rank[i], t->rank[k], DS_LINK_NVLINK,
                                  ds__here_rate(n, i, k, table), ds__here_rate(n, k, i, table));
    return r;
}

/* Links each device to a switch, with the highest rates that were measured of its pairs. */
static ds_result ds__nvlinks_hub(const ds__nvlinks *n, ds_topology *t) {
    double table = ds__link_kinds[DS_LINK_NVSWITCH].rate;
    int hub = t->nodes;
    ds_result r = ds__tnode_add(t, "nvswitch", DS__NODE_SWITCH);
    for (size_t i = 0; i < n->count && r == DS_OK; i++) {
        double out = 0;
        double in = 0;
        for (size_t k = 0; k < n->count; k++) {
            if (!n->joined[i * n->count + k])
                continue;
            double there = ds__here_rate(n, i, k, 0);
            double back = ds__here_rate(n, k, i, 0);
            out = there > out ? there : out;
            in = back > in ? back : in;
        }
        r = ds__here_link(t, t->rank[i], hub, DS_LINK_NVSWITCH, out > 0 ? out : table,
                          in > 0 ? in : table);
    }
    return r;
}

/* Adds the NVLinks, pair by pair or through an NVSwitch. `major` is the lowest compute capability
   of the devices. */
static ds_result ds__here_nvlinks(ds_topology *t, const ds_device *device, size_t count,
                                  unsigned flags, int major) {
    ds__nvlinks n = { .device = device, .count = count, .flags = flags };
    n.joined = ds__host_alloc(count * count);
    if (!n.joined)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the links of %zu devices", count);
    ds_result r = ds__nvlinks_find(&n);
    if (r == DS_OK)
        r = ds__nvlinks_switched(&n, major) ? ds__nvlinks_hub(&n, t) : ds__nvlinks_pairs(&n, t);
    ds__host_free(n.joined);
    return r;
}

/* Adds the measured values from one rank to another; `way` is 1 if the measurement has the ranks in
   the opposite order. */
static ds_result ds__here_values(ds_topology *t, int from, int to, const ds__measured *m, int way) {
    double least = (double)m->least_ns[way] - (double)t->start_ns;
    const struct ds__tpeer values[] = {
        { from, to, 'u', -1, m->push[way] },
        { from, to, 'd', -1, m->pull[way] },
        { from, to, 'l', -1, least > 0 ? least : 0 },
        { from, to, 'b', -1, m->both },
    };
    ds_result r = DS_OK;
    for (int i = 0; i < (m->both >= 1 ? 4 : 3) && r == DS_OK; i++)
        r = ds__tpeer_add(t, values[i]);
    return r;
}

/* Adds the peer lines of ranks i and k: peer access, and the measured values. One of two devices
   that accesses the other suffices for copies in both directions. */
static ds_result ds__here_pair(ds_topology *t, const ds_device *device, int i, int k,
                               unsigned flags) {
    ds__measured m;
    int there = 1;
    int back = 1;
    ds_result r = DS_OK;
    if (!ds__here_same(device[i], device[k])) {
        DS__KEEPING(r, (ds_device_can_access_peer)(device[i], device[k], &there));
        if (r == DS_OK)
            DS__KEEPING(r, (ds_device_can_access_peer)(device[k], device[i], &back));
    }
    if (r < 0)
        return r;

    int known = flags & DS_TOPOLOGY_PROBE && ds__measured_find(device[i], device[k], &m);
    for (int way = 0; way < 2 && r == DS_OK; way++) {
        int from = way ? k : i;
        int to = way ? i : k;
        if (!there && !back)
            r = ds__tpeer_add(t, (struct ds__tpeer){ from, to, '0', -1, 0 });
        if (r == DS_OK && known)
            r = ds__here_values(t, from, to, &m, way);
    }
    return r;
}

/* Adds nodes, links and peer lines of the devices to an empty topology, and makes its routes. */
static ds_result ds__topology_here(ds_topology *t, const ds_device *device, size_t count,
                                   unsigned flags) {
    int major = 0;
    ds__tplace *place = ds__host_alloc(count * sizeof *place);
    ds_result r =
        place ? ds__here_ask(t, device, count, place, &major)
              : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a topology of %zu devices", count);
    if (r == DS_OK)
        r = ds__here_sockets(t, place, count);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__here_device(t, device, place, count, i);
    ds__host_free(place);
    if (r == DS_OK)
        r = ds__here_nvlinks(t, device, count, flags, major);
    for (int i = 0; i < (int)count && r == DS_OK; i++)
        for (int k = i + 1; k < (int)count && r == DS_OK; k++)
            r = ds__here_pair(t, device, i, k, flags);
    return r == DS_OK ? ds__routes_build(t) : r;
}

/* Resolves the devices of a list, which does not allow the host. Returns an error if they belong to
   two drivers. */
static ds_result ds__here_resolve(const ds_device *devices, size_t count, ds_device *out) {
    ds_result r = ds__tensor_setup();
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__device_resolve(devices[i], &out[i]);
        if (r == DS_OK && out[i].type != out[0].type)
            r = ds__fail(DS_ERR_CROSS_DRIVER, "the devices belong to two drivers");
        if (r < 0)
            r = ds__fail_append(r, " (device %zu of the list)", i);
    }
    return r;
}

DSDEF ds_result(ds_topology_create_of_devices)(const ds_device *devices, size_t count,
                                               unsigned flags, ds_topology **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_topology_create_of_devices");
    DS__REQUIRE(devices && out, "%s is NULL", devices ? "out" : "devices");
    DS__REQUIRE(count && count < DS__TOPOLOGY_MAX - 2,
                "%zu devices are requested; 1 to %d are allowed", count, DS__TOPOLOGY_MAX - 3);
    DS__REQUIRE(!(flags & ~(unsigned)DS_TOPOLOGY_PROBE),
                "unknown flags %#x; use DS_TOPOLOGY_PROBE or 0", flags);
    ds_topology *t = ds__topology_create();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    t->device = ds__host_alloc(count * sizeof *t->device);
    ds_result r = t->device ? ds__here_resolve(devices, count, t->device)
                            : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu devices", count);
    if (r == DS_OK && flags & DS_TOPOLOGY_PROBE)
        r = ds__measure_probe(t->device, count);
    if (r == DS_OK)
        r = ds__topology_here(t, t->device, count, flags);
    if (r == DS_OK)
        *out = t;
    else
        (ds_topology_destroy)(t);
    return r;
}

/* plan/types.h - drafts of plans.

   Defines the draft of a plan (ds__draft) with its flows, steps, links and rings, and the
   growth of its arrays (DS__ADD). All other rooms of plan/ fill or read a draft. Public types
   are in api/plan.h.

   Policy:
   1. A collective is a set of flows. A flow sends bytes up a tree to its owner and sums on the
      way, or starts with the owner's input. Then it sends the bytes from the owner down a tree.
      A tree is a list of parents. An algorithm is a way to make trees; all later work is the
      same for every algorithm. Only grids, for many ranks, have no flows: they make steps
      themselves.
   2. A flow is cut into pieces. Each edge of a tree is one copy of each piece, or two copies
      through the host if the devices do not reach each other. Data that a rank passes on goes
      through a ring of a few pieces.
   3. Copies are ordered as if each copy that can start did start, earlier pieces first. For few
      ranks, rounds on a circle are tried as well. In that order each step gets a lane. With
      this lane it becomes ready after the earlier steps of the same wires, engine or memory.
   4. The predictor runs the result; its model is that of the virtual clock and no other. The
      fastest of all algorithms and piece counts is the plan. An algorithm is skipped if its
      busiest wire alone takes longer than the best plan so far.
   5. Sums: a tree is used only if the requested order permits its additions.

   Invariants: steps, trees and links refer to each other by index, because arrays move when
   they grow. If memory or the limit of steps is exhausted, `failed` is set and stays set, and
   nothing more is added.
   Locks: none.
   Threads: the thread that makes the plan; a draft has no other user. ds_collective_get_name may be
   called anywhere. */

#define DS__PLAN_LANES 32     /* most of a rank */
#define DS__PLAN_FEW_LANES 16 /* of few ranks */
#define DS__PLAN_SLOTS 8      /* pieces of a ring */
#define DS__PLAN_STEPS 60000
#define DS__PLAN_WAYS 32
/* for more ranks, only what is guessed to be the fastest is looked at */
#define DS__PLAN_LARGE 32
#define DS__PLAN_LARGE_STEPS 120000 /* at most, for more ranks than DS__PLAN_LARGE */
/* the same for copies; where there are sums 90000, or 72000 in one group, since their steps wait
   for many */
#define DS__PLAN_LARGE_COPIES 108000
#define DS__PLAN_WORK 110000 /* copies, over all that is looked at */
#define DS__ALONE (-1)       /* the tree's root */
#define DS__APART (-2)       /* not in the tree */

typedef struct ds__flow {
    size_t bytes;
    size_t in;  /* where it lies in the inputs */
    size_t out; /* where it lies in the outputs */
    int owner;
    int dest;       /* whose outputs are written; -1: those of all but (broadcast) the owner */
    ptrdiff_t up;   /* a tree, or -1 */
    ptrdiff_t down; /* a tree, or -1 */
    /* more than 1: these are the blocks of so many ranks from dest on, and each has a tree to
       it, one after the other */
    int parts;
    size_t first; /* its first step */
    size_t each;  /* how many steps a piece has */
} ds__flow;

typedef struct ds__ring {
    size_t offset;
    size_t slot;
    uint32_t head; /* in ds__draft.head: of the lists of steps that read the slots */
} ds__ring;

typedef struct ds__dstep {
    uint64_t key;
    ds_plan_location to;
    size_t bytes;
    uint32_t from;
    uint32_t from_count;
    uint32_t after; /* list of links: the steps before it */
    uint32_t need;
    uint32_t next; /* list of links: the steps after it */
    int rank;
    int source; /* of a copy from elsewhere, or -1 */
    int lane;
    int64_t start;
    int64_t done;
    int64_t ready;
} ds__dstep;

typedef struct ds__dlink {
    uint32_t step;
    uint32_t next;
} ds__dlink;

typedef struct ds__draft {
    const ds_topology *t;
    const ds_plan_desc *want;
    int p;
    int failed;
    int ways;
    int largest; /* size of the largest group of level 1 */
    int pull;    /* 1: as many sums are made by each rank, so what is summed may be fetched */
    int run;     /* leads of a grid that stand in one row; 0: it is flows */
    const char *name;
    size_t pieces;
    size_t piece_bytes;
    int *tree; /* parents, p + 1 of each */
    ds__flow *flow;
    ds__dstep *step;
    ds_plan_location *location;
    ds__dlink *link;
    uint32_t *head;
    ds__ring *ring;
    size_t trees, flows, steps, locations, links, heads, rings, tree_room, flow_room, step_room,
        location_room, link_room, head_room, ring_room;
    size_t *scratch;
    int *place; /* rings of a flow: 5 for each rank */
    int64_t end;
    size_t slots;  /* pieces of a ring */
    int64_t bound; /* of the time */
    int lanes;
    /* 0: earlier pieces come first; 1: pieces that are behind by a copy come with those before
       that have one more */
    int wave;
} ds__draft;

#define DS__NONE UINT32_MAX
#define DS__PLACES 5

static const char *const ds__collective_names[] = { "broadcast",      "scatter",    "gather",
                                                    "reduce",         "all_reduce", "all_gather",
                                                    "reduce_scatter", "all_to_all" };

DSDEF const char *(ds_collective_get_name)(ds_collective what) {
    return (unsigned)what < DS_COLLECTIVE_COUNT ? ds__collective_names[what] : "none";
}

/* A plan. */
#define DS__ALGO_NAMES 7

typedef struct ds__planned {
    ds_plan plan; /* first: the user's pointer */
    struct ds__planned *next;
    uint64_t topology;
    ds_allocator allocator; /* of all its memory */
    ds_plan_desc asked;
    char algorithm[16]; /* of what was asked for; empty: none */

    /* of each algorithm; ns 0: it was not looked at to the end */
    struct {
        int64_t ns;
        size_t pieces;
        int ways;
    } best[DS__ALGO_NAMES];
} ds__planned;

#define DS__ADD(d, what) \
    ds__draft_add((d), &(d)->what, &(d)->what##s, &(d)->what##_room, sizeof *(d)->what)

static void *ds__draft_add(ds__draft *d, void *array, size_t *count, size_t *room, size_t size) {
    void *at = d->failed ? NULL : ds__array_add(array, *count, room, size);
    if (!at)
        d->failed = 1;
    else
        ++*count;
    return at;
}

static void ds__draft_clear(ds__draft *d) {
    d->steps = d->locations = d->links = d->heads = d->rings = 0;
}

static void ds__draft_end(ds__draft *d) {
    ds__host_free(d->tree);
    ds__host_free(d->flow);
    ds__host_free(d->step);
    ds__host_free(d->location);
    ds__host_free(d->link);
    ds__host_free(d->head);
    ds__host_free(d->ring);
    ds__host_free(d->scratch);
    ds__host_free(d->place);
}

static int ds__collective_is_sum(ds_collective what) {
    return what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
}

/* A collective for which NCCL was asked. */
typedef struct ds__engine_question {
    int reduces;
    int any_order; /* of a reduction */
    const ds_device *devices;
    size_t count;
} ds__engine_question;

/* Writes whether NCCL runs a collective, and why. NULL without the layer of process groups, which
   declares it again with its value. */
static void (*ds__plan_explain_fn)(const ds__engine_question *q, char *out, size_t size);

/* plan/heap.h - heap of events.

   Provides a binary heap of events, ordered by time, then rank, then id. The scheduler and the
   predictor use it (ds__due_put, ds__due_take).

   Invariants: `due[0]` is the earliest event. ds__due_take must not be called for an empty
   heap. The owner frees `due`. If ds__due_put returns 0, the heap is unchanged and the error is
   reported.
   Locks: none.
   Threads: the thread that makes the plan. */

typedef struct ds__due {
    int64_t at;
    uint32_t rank;
    uint32_t id;
} ds__due; /* by time, then rank, then id */

typedef struct ds__dues {
    ds__due *due;
    size_t dues;
    size_t due_room;
} ds__dues;

static inline int ds__due_before(const ds__due *a, const ds__due *b) {
    if (a->at != b->at)
        return a->at < b->at;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    return a->id < b->id;
}

static int ds__due_put(ds__dues *h, int64_t at, uint32_t rank, uint32_t id) {
    if (!ds__array_add(&h->due, h->dues, &h->due_room, sizeof *h->due))
        return 0;
    size_t i = h->dues++;
    ds__due one = { at, rank, id };
    for (; i && ds__due_before(&one, &h->due[(i - 1) / 2]); i = (i - 1) / 2)
        h->due[i] = h->due[(i - 1) / 2];
    h->due[i] = one;
    return 1;
}

static ds__due ds__due_take(ds__dues *h) {
    ds__due first = h->due[0];
    ds__due last = h->due[--h->dues];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= h->dues)
            break;
        if (k + 1 < h->dues && ds__due_before(&h->due[k + 1], &h->due[k]))
            k++;
        if (!ds__due_before(&h->due[k], &last))
            break;
        h->due[i] = h->due[k];
        i = k;
    }
    h->due[i] = last;
    return first;
}

/* plan/cost_model.h - cost model and predictor.

   Computes the time of single steps (ds__cost_ns, ds__memory_ns) and predicts the end of a draft
   whose steps have lanes (ds__cost_predict). ds__cost_followers_count lists the steps that wait for
   each step.

   Invariants: ds__cost_predict follows the rule and the rounding of the CPU driver's virtual clock
   (cpu/clock.h), so both give the same time. A change of one needs the same change in the
   other. The lists that begin with `next` are valid until the caller resets d->links to its
   former value. Steps that wait for each other are an error.
   Locks: none.
   Threads: the thread that makes the plan. */

/* Nanoseconds for so many bytes: the nearest, but for any at least one. */
static int64_t ds__cost_ns(double bytes, double rate) {
    double ns = bytes * 1e9 / rate;
    return ns < 1 ? bytes > 0 : (int64_t)(ns + 0.5);
}

/* What a step takes: its route, or NULL for what takes memory only. */
static const ds__troute *ds__step_route(const ds__draft *d, const ds__dstep *s) {
    return s->source < 0 ? NULL : ds__route_of(d->t, s->source, s->to.rank);
}

/* Streams are made lane by lane: the first one of each rank, then the second ones. */
static uint32_t ds__cost_step_turn(const ds__draft *d, const ds__dstep *s) {
    return (uint32_t)(s->lane * (d->p + 1) + s->rank);
}

static int64_t ds__memory_ns(const ds__draft *d, const ds__dstep *s) {
    return ds__cost_ns((double)s->bytes * (s->from_count + 1), d->t->memory);
}

/* Returns the engine that is free first. */
static inline int64_t *ds__engine_first(int64_t *engine, size_t engines) {
    int64_t *first = engine;
    for (size_t i = 1; i < engines; i++)
        if (engine[i] < *first)
            first = &engine[i];
    return first;
}

/* Who waits for a step, from its `after` lists and, when lanes are given, from the order in the
   lanes: lists that begin with `next`. */
static int ds__cost_followers_count(ds__draft *d, int lanes) {
    /* of a lane, plus 1 */
    uint32_t *last = ds__host_alloc(((size_t)d->p + 1) * DS__PLAN_LANES * sizeof *last);
    for (size_t i = 0; i < d->steps; i++) {
        d->step[i].next = DS__NONE;
        d->step[i].need = 0;
        d->step[i].ready = 0;
    }
    for (uint32_t i = 0; last && !d->failed && i < d->steps; i++) {
        ds__dstep *s = &d->step[i];
        uint32_t *l = &last[s->rank * DS__PLAN_LANES + s->lane];
        uint32_t k = s->after;
        int again = lanes && *l;
        while (again || k != DS__NONE) {
            ds__dstep *before = &d->step[again ? *l - 1 : d->link[k].step];
            if (!again)
                k = d->link[k].next;
            again = 0;
            ds__dlink *one = DS__ADD(d, link);
            if (!one)
                break;
            *one = (ds__dlink){ i, before->next };
            before->next = (uint32_t)d->links - 1;
            s->need++;
        }
        if (lanes)
            *l = i + 1;
    }
    ds__host_free(last);
    return last && !d->failed;
}

/* Times at which the wires, engines and memories of the virtual clock are free. */
typedef struct ds__plan_clock {
    int64_t *engine;
    int64_t *memory;
    int64_t *wire;
} ds__plan_clock;

/* Runs a step that is ready: it begins when an engine and all its wires are free. */
static void ds__plan_clock_run(const ds__plan_clock *c, const ds__draft *d, ds__dstep *s) {
    const ds_topology *t = d->t;
    const ds__troute *r = ds__step_route(d, s);
    size_t engines = (size_t)t->engines;
    s->start = s->ready;
    if (!r) {
        if (c->memory[s->rank] > s->start)
            s->start = c->memory[s->rank];
        s->done = c->memory[s->rank] = s->start + ds__memory_ns(d, s);
        return;
    }

    int64_t *e = ds__engine_first(&c->engine[(size_t)s->rank * engines], engines);
    if (*e > s->start)
        s->start = *e;
    for (size_t i = 0; i < r->hops; i++)
        if (c->wire[r->wire[i]] > s->start)
            s->start = c->wire[r->wire[i]];
    for (size_t i = 0; i < r->hops; i++)
        c->wire[r->wire[i]] = s->start + ds__cost_ns((double)s->bytes, t->wire[r->wire[i]]);
    *e = s->start + t->start_ns + ds__cost_ns((double)s->bytes, r->rate);
    s->done = *e + r->latency_ns;
}

/* Puts the steps that a finished step lets become ready into the heap. Returns 0 if memory is
   exhausted. */
static int ds__plan_clock_finish(const ds__draft *d, ds__dues *h, const ds__dstep *s) {
    for (uint32_t k = s->next; k != DS__NONE; k = d->link[k].next) {
        ds__dstep *f = &d->step[d->link[k].step];
        if (s->done > f->ready)
            f->ready = s->done;
        if (!--f->need && !ds__due_put(h, f->ready, ds__cost_step_turn(d, f), d->link[k].step))
            return 0;
    }
    return 1;
}

/* The virtual clock's rule, word for word: steps that are ready, in the order of that time, then
   of their lanes. Returns 0 if memory is exhausted or if steps wait for each other. */
static int ds__cost_predict(ds__draft *d) {
    size_t engines = (size_t)d->t->engines;
    size_t n = (size_t)d->p + 1;
    size_t links = d->links;
    size_t run = 0;
    ds__plan_clock c = { NULL, NULL, NULL };
    ds__dues h = { NULL, 0, 0 };
    c.engine = ds__host_alloc((n * engines + n + (size_t)d->t->wires) * sizeof *c.engine);
    int ok = c.engine && ds__cost_followers_count(d, 1);
    if (ok) {
        c.memory = c.engine + n * engines;
        c.wire = c.memory + n;
    }
    for (uint32_t i = 0; ok && i < d->steps; i++)
        if (!d->step[i].need)
            ok = ds__due_put(&h, 0, ds__cost_step_turn(d, &d->step[i]), i);

    d->end = 0;
    for (; ok && h.dues; run++) {
        ds__dstep *s = &d->step[ds__due_take(&h).id];
        ds__plan_clock_run(&c, d, s);
        if (s->done > d->end)
            d->end = s->done;
        ok = ds__plan_clock_finish(d, &h, s);
    }
    d->links = links;
    ds__host_free(c.engine);
    ds__host_free(h.due);
    if (ok && run != d->steps) {
        ds__fail(DS_ERR_INVALID_VALUE, "the steps of a plan wait for each other");
        ok = 0;
    }
    return ok;
}

/* plan/schedule.h - order of the steps.

   Puts the steps of a draft in order. ds__schedule_sort orders them by key. ds__schedule_arrange
   starts each step as soon as its inputs, wires and engine are free, and orders the steps by start.
   With many ranks a copy between groups may reserve its wires. Lanes are not considered yet.
   ds__schedule_step_after makes a step wait for another one.

   Invariants: ds__schedule_sort changes the numbers of steps, so it updates all links.
   ds__schedule_arrange needs keys that order the steps by urgency, and replaces them by the start
   times. A heap of waiting steps (ds__waits) holds step numbers plus 1, and 0 is the empty heap.
   Locks: none.
   Threads: the thread that makes the plan. */

typedef struct ds__sorted {
    uint64_t key;
    uint32_t id;
} ds__sorted;

static int ds__sorted_compare(const void *a, const void *b) {
    const ds__sorted *x = a;
    const ds__sorted *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The steps by their keys. */
static int ds__schedule_sort(ds__draft *d) {
    ds__sorted *order = ds__host_alloc((d->steps + 1) * sizeof *order);
    ds__dstep *fresh = ds__host_alloc((d->steps + 1) * sizeof *fresh);
    uint32_t *now = ds__host_alloc((d->steps + 1) * sizeof *now);
    int ok = order && fresh && now;
    for (uint32_t i = 0; ok && i < d->steps; i++)
        order[i] = (ds__sorted){ d->step[i].key, i };
    if (ok)
        qsort(order, d->steps, sizeof *order, ds__sorted_compare);
    for (uint32_t i = 0; ok && i < d->steps; i++) {
        fresh[i] = d->step[order[i].id];
        now[order[i].id] = i;
    }
    for (size_t i = 0; ok && i < d->links; i++)
        d->link[i].step = now[d->link[i].step];
    if (ok && d->steps)
        memcpy(d->step, fresh, d->steps * sizeof *fresh);
    ds__host_free(order);
    ds__host_free(fresh);
    ds__host_free(now);
    return ok;
}

typedef struct ds__waits {
    uint32_t *head; /* of wires, then engines and memory of each rank: heaps of steps, plus 1 */
    uint32_t *child;
    uint32_t *next;
    uint32_t *kept; /* of the same: the step that each is kept for, plus 1 */
    int *busy;
} ds__waits;

static uint32_t ds__wait_meld(ds__waits *w, uint32_t a, uint32_t b) {
    if (!a || !b)
        return a ? a : b;
    if (b < a) {
        uint32_t c = a;
        a = b;
        b = c;
    }
    w->next[b - 1] = w->child[a - 1];
    w->child[a - 1] = b;
    return a;
}

static uint32_t ds__wait_take(ds__waits *w, uint32_t what) {
    uint32_t first = w->head[what];
    uint32_t k = w->child[first - 1];
    uint32_t pairs = 0;
    uint32_t all = 0;
    while (k) { /* by twos, then all */
        uint32_t a = k;
        uint32_t b = w->next[a - 1];
        uint32_t rest = b ? w->next[b - 1] : 0;
        uint32_t both = ds__wait_meld(w, a, b);
        w->next[both - 1] = pairs;
        pairs = both;
        k = rest;
    }
    while (pairs) {
        uint32_t rest = w->next[pairs - 1];
        all = ds__wait_meld(w, all, pairs);
        pairs = rest;
    }
    w->head[what] = all;
    return first - 1;
}

static void ds__wait_for(ds__waits *w, size_t what, uint32_t step) {
    w->child[step] = w->next[step] = 0;
    w->head[what] = ds__wait_meld(w, w->head[what], step + 1);
}

/* Steps that wait for wires, engines or memory, and events of those that run. */
typedef struct ds__arrangement {
    ds__draft *d;
    ds__waits w;
    size_t wires;
    size_t all;     /* wires, engines and memories; the heap behind them has steps that can begin */
    ds__dues h;     /* what is over, by time */
    ds__dues freed; /* what is free again, by the first step that waits for it */
} ds__arrangement;

/* Returns 1 if a step copies between groups of many ranks. Its wires would rarely be free all
   at once, so it may reserve them. */
static int ds__step_is_far(const ds__draft *d, const ds__dstep *s) {
    if (d->p <= DS__PLAN_LARGE || d->run || s->source < 0 || s->source >= d->p ||
        s->to.rank >= d->p)
        return 0;
    return d->t->island[s->source] != d->t->island[s->to.rank];
}

/* Makes step i wait if its engine, its memory or one of its wires is not free. Returns 1 if the
   step waits. */
static int ds__step_waits(ds__arrangement *x, uint32_t i, size_t own, int kept) {
    ds__draft *d = x->d;
    ds__waits *w = &x->w;
    const ds__dstep *s = &d->step[i];
    const ds__troute *r = ds__step_route(d, s);
    size_t hops = r ? r->hops : 0;
    if (!kept && w->busy[own] >= (r ? d->t->engines : 1)) {
        ds__wait_for(w, own, i);
        return 1;
    }
    for (size_t k = 0; !kept && k < hops; k++)
        if (w->kept[r->wire[k]]) {
            ds__wait_for(w, (size_t)r->wire[k], i);
            return 1;
        }
    for (size_t k = 0; k < hops; k++) {
        if (!w->busy[r->wire[k]])
            continue;
        int remote = ds__step_is_far(d, s);
        /* no other step may begin on its wires, which would rarely be free all at once */
        if (remote && !kept) {
            for (size_t m = 0; m < hops; m++)
                w->kept[r->wire[m]] = i + 1;
            w->busy[own]++;
        } else if (!remote) {
            ds__wait_for(w, (size_t)r->wire[k], i);
        }
        return 1;
    }
    return 0;
}

/* Begins step i if all it uses is free; else the step waits. Returns 0 if memory is exhausted. */
static int ds__begin_step(ds__arrangement *x, uint32_t i, int64_t now) {
    ds__draft *d = x->d;
    ds__waits *w = &x->w;
    ds__dues *h = &x->h;
    ds__dstep *s = &d->step[i];
    const ds__troute *r = ds__step_route(d, s);
    size_t own = x->wires + (r ? 0 : (size_t)d->p + 1) + (size_t)s->rank;
    int kept = r && r->hops && w->kept[*r->wire] == i + 1;
    if (ds__step_waits(x, i, own, kept))
        return 1;

    for (size_t k = 0; kept && k < r->hops; k++)
        w->kept[r->wire[k]] = 0;
    if (kept)
        w->busy[own]--;
    int64_t held =
        r ? d->t->start_ns + ds__cost_ns((double)s->bytes, r->rate) : ds__memory_ns(d, s);
    int ok = 1;
    w->busy[own]++;
    for (size_t k = 0; ok && r && k < r->hops; k++) {
        w->busy[r->wire[k]] = 1;
        ok = ds__due_put(h, now + ds__cost_ns((double)s->bytes, d->t->wire[r->wire[k]]), 1,
                         (uint32_t)r->wire[k]);
    }
    s->start = now;
    s->done = now + held + (r ? r->latency_ns : 0);
    return ok && ds__due_put(h, s->done, 0, i) && ds__due_put(h, now + held, 1, (uint32_t)own);
}

/* Takes all that is over at this time: notes what is free again, and the steps that can begin.
   Returns 0 if memory is exhausted. */
static int ds__arrange_finish(ds__arrangement *x, int64_t now) {
    ds__draft *d = x->d;
    ds__waits *w = &x->w;
    int ok = 1;
    while (x->h.dues && x->h.due[0].at == now) {
        ds__due e = ds__due_take(&x->h);
        if (e.rank) {
            w->busy[e.id]--;
            if (ok && (w->head[e.id] || w->kept[e.id]))
                ok = ds__due_put(&x->freed, w->kept[e.id] ? 0 : w->head[e.id], 0, e.id);
            continue;
        }
        for (uint32_t k = d->step[e.id].next; k != DS__NONE; k = d->link[k].next)
            if (!--d->step[d->link[k].step].need)
                ds__wait_for(w, x->all, d->link[k].step);
    }
    /* those that wait for nothing any more */
    if (ok && w->head[x->all])
        ok = ds__due_put(&x->freed, w->head[x->all], 0, (uint32_t)x->all);
    return ok;
}

/* Returns 1 if a wire, engine or memory cannot take one more step. */
static int ds__arrange_is_busy(const ds__arrangement *x, uint32_t id) {
    const ds__draft *d = x->d;
    int engine = id >= x->wires && id <= x->wires + (size_t)d->p;
    return id < x->all && x->w.busy[id] >= (engine ? d->t->engines : 1);
}

/* Begins the steps that wait for what is free again, in their order. Returns 0 if memory is
   exhausted. */
static int ds__arrange_begin(ds__arrangement *x, int64_t now) {
    ds__waits *w = &x->w;
    while (x->freed.dues) {
        uint32_t id = ds__due_take(&x->freed).id;
        int ok = 1;
        /* a step that reserved the wire comes before all others */
        if (w->kept[id]) {
            ok = ds__begin_step(x, w->kept[id] - 1, now);
        } else if (w->head[id] && !ds__arrange_is_busy(x, id)) {
            ok = ds__begin_step(x, ds__wait_take(w, id), now) &&
                 (!w->head[id] || ds__due_put(&x->freed, w->head[id], 0, id));
        }
        if (!ok)
            return 0;
    }
    return 1;
}

/* Returns 0 if memory is exhausted. */
static int ds__arrangement_init(ds__arrangement *x, ds__draft *d) {
    ds__waits *w = &x->w;
    memset(x, 0, sizeof *x);
    x->d = d;
    x->wires = (size_t)d->t->wires;
    x->all = x->wires + 2 * ((size_t)d->p + 1);
    w->head = ds__host_alloc((x->all + 1) * sizeof *w->head);
    w->child = ds__host_alloc((d->steps + 1) * sizeof *w->child);
    w->next = ds__host_alloc((d->steps + 1) * sizeof *w->next);
    w->kept = ds__host_alloc((x->all + 1) * sizeof *w->kept);
    w->busy = ds__host_alloc(x->all * sizeof *w->busy);
    return w->head && w->child && w->next && w->kept && w->busy;
}

static void ds__arrangement_deinit(ds__arrangement *x) {
    ds__host_free(x->w.head);
    ds__host_free(x->w.child);
    ds__host_free(x->w.next);
    ds__host_free(x->w.kept);
    ds__host_free(x->w.busy);
    ds__host_free(x->freed.due);
    ds__host_free(x->h.due);
}

/* Starts each step as soon as it can start, in the order of the list, and notes the times. No step
   waits for a wire that is only reserved by steps that wait themselves. Then the steps stand in
   the order of their starts. Returns 0 if memory is exhausted. */
static int ds__schedule_arrange(ds__draft *d) {
    ds__arrangement x;
    size_t links = d->links;
    int ok = ds__arrangement_init(&x, d) && ds__schedule_sort(d) && ds__cost_followers_count(d, 0);
    for (uint32_t i = 0; ok && i < d->steps; i++)
        if (!d->step[i].need)
            ok = ds__begin_step(&x, i, 0);
    /* all that is over at this time, then those that it lets begin, in their order */
    while (ok && x.h.dues) {
        int64_t now = x.h.due[0].at;
        ok = ds__arrange_finish(&x, now) && ds__arrange_begin(&x, now);
    }
    d->links = links;
    for (size_t i = 0; i < d->steps; i++)
        d->step[i].key = (uint64_t)d->step[i].start;
    ds__arrangement_deinit(&x);
    return ok && ds__schedule_sort(d);
}

static void ds__schedule_step_after(ds__draft *d, uint32_t step, uint32_t before) {
    if (before == DS__NONE || step == DS__NONE)
        return;
    ds__dlink *one = DS__ADD(d, link);
    if (!one)
        return;
    *one = (ds__dlink){ before, d->step[step].after };
    d->step[step].after = (uint32_t)d->links - 1;
}

/* plan/settle.h - lanes of the steps.

   Gives each step a lane, and if needed one more step to wait for. With them the virtual clock
   serves the steps in the chosen order where possible. ds__settle_plan does this after
   ds__schedule_arrange or after a modulo schedule.

   Invariants: the steps stand in the chosen order, and each waits only for earlier ones.
   `ready`, `start` and `done` follow the rule of the virtual clock; ds__cost_predict computes the
   final times. At most one link per step is added. A lane is less than DS__PLAN_LANES, with few
   ranks less than DS__PLAN_FEW_LANES.
   Locks: none.
   Threads: the thread that makes the plan. */

/* Times of all that steps use, in the order in which lanes are given. */
typedef struct ds__settling {
    ds__draft *d;
    size_t engines;
    size_t ranks;
    size_t wires;
    int64_t *lane;    /* of each rank: when its lanes are free */
    int64_t *engine;  /* of each rank: when its engines are free */
    int64_t *free_at; /* of wires, engines (unused) and memories */
    uint32_t *last;   /* of the same: the last step that used it, plus 1 */
    ds__due *ended;   /* steps that have a lane, by the time at which they are done */
    size_t count;
} ds__settling;

/* A step that gets a lane. */
typedef struct ds__placing {
    ds__dstep *s;
    const ds__troute *r;
    uint32_t i;
    size_t own;       /* its engine or memory in `last` and `free_at` */
    int64_t *engine;  /* the first that is free */
    int64_t *lane;    /* lanes of its rank */
    int64_t input;    /* when its inputs are there */
    int64_t room;     /* when all that it uses is free */
    int64_t start;    /* the later of both */
    int64_t earliest; /* it must be ready after a step that is ready then ... */
    int64_t before;   /* ... in this turn */
} ds__placing;

/* Returns 0 if memory is exhausted. */
static int ds__settling_init(ds__settling *x, ds__draft *d) {
    x->d = d;
    x->engines = (size_t)d->t->engines;
    x->ranks = (size_t)d->p + 1;
    x->wires = (size_t)d->t->wires;
    x->count = 0;
    size_t n = x->wires + 2 * x->ranks;
    x->lane = ds__host_alloc(x->ranks * DS__PLAN_LANES * sizeof *x->lane);
    x->engine = ds__host_alloc((x->ranks * x->engines + n) * sizeof *x->engine);
    x->free_at = x->engine ? x->engine + x->ranks * x->engines : NULL;
    x->last = ds__host_alloc(n * sizeof *x->last);
    x->ended = ds__host_alloc((d->steps + 1) * sizeof *x->ended);
    d->lanes = 0;
    return x->lane && x->engine && x->last && x->ended;
}

static void ds__settling_deinit(ds__settling *x) {
    ds__host_free(x->lane);
    ds__host_free(x->engine);
    ds__host_free(x->last);
    ds__host_free(x->ended);
}

/* Returns the k-th wire of a step, or behind the wires its engine or memory. */
static inline size_t ds__placing_use(const ds__placing *o, size_t k) {
    if (o->r && k < o->r->hops)
        return (size_t)o->r->wire[k];
    return o->own;
}

static inline size_t ds__placing_uses(const ds__placing *o) {
    return o->r ? o->r->hops + 1 : 1;
}

static inline int64_t ds__placing_turn(const ds__settling *x, const ds__placing *o, int lane) {
    return (int64_t)lane * (int64_t)x->ranks + o->s->rank;
}

/* Returns 1 if a step that is ready then, in this turn, is served before the steps that use the
   same and should come first. */
static inline int ds__placing_early(const ds__placing *o, int64_t ready, int64_t turn) {
    return ready < o->earliest || (ready == o->earliest && turn < o->before);
}

/* Finds out when step i can start, and after which steps it must be ready. */
static void ds__placing_init(const ds__settling *x, ds__placing *o, uint32_t i) {
    const ds__draft *d = x->d;
    ds__dstep *s = &d->step[i];
    const ds__troute *r = ds__step_route(d, s);
    size_t rank = (size_t)s->rank;
    *o = (ds__placing){ .s = s, .r = r, .i = i, .earliest = -1, .before = -1 };
    o->own = x->wires + (r ? 0 : x->ranks) + rank;
    o->lane = &x->lane[rank * DS__PLAN_LANES];
    o->engine = ds__engine_first(&x->engine[rank * x->engines], x->engines);
    o->room = r ? *o->engine : x->free_at[o->own];
    for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next)
        if (d->step[d->link[k].step].done > o->input)
            o->input = d->step[d->link[k].step].done;

    for (size_t k = 0; k < ds__placing_uses(o); k++) {
        size_t what = ds__placing_use(o, k);
        if (what != o->own && x->free_at[what] > o->room)
            o->room = x->free_at[what];
        if (!x->last[what])
            continue;
        const ds__dstep *other = &d->step[x->last[what] - 1];
        int64_t turn = ds__cost_step_turn(d, other);
        if (other->ready > o->earliest || (other->ready == o->earliest && turn > o->before)) {
            o->earliest = other->ready;
            o->before = turn;
        }
    }
    o->start = o->input > o->room ? o->input : o->room;
}

/* Returns the first of the ended steps that is done after that time. */
static size_t ds__settling_after(const ds__settling *x, int64_t than) {
    size_t low = 0;
    size_t high = x->count;
    while (low < high) {
        size_t m = (low + high) / 2;
        if (x->ended[m].at > than)
            high = m;
        else
            low = m + 1;
    }
    return low;
}

/* Runs a step that has its lane and the time at which it is ready. */
static void ds__placing_run(ds__settling *x, const ds__placing *o) {
    ds__draft *d = x->d;
    const ds_topology *t = d->t;
    const ds__troute *r = o->r;
    ds__dstep *s = o->s;
    if (s->lane >= d->lanes)
        d->lanes = s->lane + 1;
    s->start = s->ready > o->start ? s->ready : o->start;
    if (r) {
        for (size_t k = 0; k < r->hops; k++)
            x->free_at[r->wire[k]] = s->start + ds__cost_ns((double)s->bytes, t->wire[r->wire[k]]);
        *o->engine = s->start + t->start_ns + ds__cost_ns((double)s->bytes, r->rate);
        s->done = *o->engine + r->latency_ns;
    } else {
        s->done = s->start + ds__memory_ns(d, s);
        x->free_at[o->own] = s->done;
    }
    for (size_t k = 0; k < ds__placing_uses(o); k++)
        x->last[ds__placing_use(o, k)] = o->i + 1;
    o->lane[s->lane] = s->done;

    size_t at = x->count++;
    for (; at && x->ended[at - 1].at > s->done; at--)
        x->ended[at] = x->ended[at - 1];
    x->ended[at] = (ds__due){ s->done, 0, o->i };
}

/* Gives the step the lane that delays it least, and among those one in which it is ready after
   the steps that come first. */
static void ds__settle_lane(const ds__settling *x, const ds__placing *o, int lanes) {
    const int64_t *l = o->lane;
    ds__dstep *s = o->s;
    int best = -1;
    int best_own = 0;
    int least = 0;
    for (int k = 0; k < lanes; k++) {
        int64_t ready = l[k] > o->input ? l[k] : o->input;
        int64_t turn = ds__placing_turn(x, o, k);
        int in_turn = ready > o->earliest || (ready == o->earliest && turn > o->before);
        if (l[k] < l[least])
            least = k;
        if (ready > o->start)
            continue;
        if (best < 0 || in_turn > best_own || (in_turn == best_own && l[k] > l[best])) {
            best = k;
            best_own = in_turn;
        }
    }
    s->lane = best >= 0 ? best : least;
    s->ready = l[s->lane] > o->input ? l[s->lane] : o->input;
}

/* Returns a lane whose turn is after those that come first, for a step that is ready at the same
   time; -1: there is none. */
static int ds__settle_later(const ds__settling *x, const ds__placing *o, int lanes) {
    const int64_t *l = o->lane;
    int later = -1;
    for (int k = 0; k < lanes; k++)
        if (l[k] <= o->start && ds__placing_turn(x, o, k) > o->before &&
            (later < 0 || l[k] > l[later]))
            later = k;
    return later;
}

/* Makes a step that is ready too early wait for one more step. With few ranks only if the step is
   delayed little; with many ranks always, since a step out of turn delays thousands of others. */
static void ds__settle_wait(const ds__settling *x, const ds__placing *o, int lanes) {
    ds__dstep *s = o->s;
    const ds__troute *r = o->r;
    const ds__due *ended = x->ended;
    int large = x->d->p > DS__PLAN_LARGE;
    int64_t patience = x->d->t->start_ns / 4 + (r ? ds__cost_ns((double)s->bytes, r->rate) / 2 : 0);
    int in_turn = large && ds__placing_turn(x, o, s->lane) > o->before;
    size_t low = ds__settling_after(x, o->earliest - in_turn);
    int later = -1;
    if (!in_turn && low && ended[low - 1].at == o->earliest &&
        (low == x->count || ended[low].at > o->start))
        later = ds__settle_later(x, o, lanes);
    if (later >= 0) {
        s->lane = later;
        low--;
    }
    if (low < x->count && (large || ended[low].at <= o->start + patience)) {
        ds__schedule_step_after(x->d, o->i, ended[low].id);
        s->ready = ended[low].at > o->lane[s->lane] ? ended[low].at : o->lane[s->lane];
    }
}

/* Gives each step a lane, in the chosen order. The virtual clock serves the step that is ready
   first, and a served step holds its wires, engine or memory from then on. If needed, a step waits
   for one more step: it is then ready after the earlier steps of the same wires, engine or memory.
   Returns 0 if memory is exhausted. */
static int ds__settle_plan(ds__draft *d) {
    int lanes = d->p > DS__PLAN_LARGE ? DS__PLAN_LANES : DS__PLAN_FEW_LANES;
    ds__settling x;
    int ok = ds__settling_init(&x, d);
    for (uint32_t i = 0; ok && !d->failed && i < d->steps; i++) {
        ds__placing o;
        ds__placing_init(&x, &o, i);
        ds__settle_lane(&x, &o, lanes);
        if (ds__placing_early(&o, o.s->ready, ds__placing_turn(&x, &o, o.s->lane)))
            ds__settle_wait(&x, &o, lanes);
        ds__placing_run(&x, &o);
    }
    ds__settling_deinit(&x);
    return ok && !d->failed;
}

/* plan/emit.h - steps of a piece.

   Turns one piece of a flow into steps: sums and copies up a tree (ds__emit_up), copies down a
   tree (ds__emit_down, ds__emit_parts). ds__emit_copy makes one copy, or two through the host
   if the devices do not reach each other. ds__emit_block_of and ds__emit_slice_of cut bytes into
   blocks and slices. ds__pieces_emit in plan/pieces.h calls this room for all pieces.

   Invariants: a step waits only for steps that were added before. A step that writes a slot of
   a ring waits for all readers of its former content. The inputs of a sum stand in the order of
   their lowest ranks. A key orders the steps by piece and wave, then depth, then turn of the
   ranks.
   Locks: none.
   Threads: the thread that makes the plan. */

/* Bytes of a part: from begin up to, but without, end. */
typedef struct ds__extent {
    size_t begin;
    size_t end;
} ds__extent;

/* Returns where block i of `of` blocks begins. */
static size_t ds__emit_block_of(const ds_plan_desc *w, size_t i, size_t of) {
    size_t item = w->item ? w->item : 1;
    size_t n = w->bytes / item;
    return (n / of * i + n % of * i / of) * item;
}

/* Returns where slice j of `of` slices begins in a part of so many bytes. */
static size_t ds__emit_slice_of(const ds_plan_desc *w, size_t bytes, size_t j, size_t of) {
    size_t unit = w->item && 256 % w->item ? w->item : 256;
    size_t n = bytes / unit;
    return j == of ? bytes : (n / of * j + n % of * j / of) * unit;
}

static ds__extent ds__slice_span(const ds_plan_desc *w, size_t bytes, size_t j, size_t of) {
    return (ds__extent){ ds__emit_slice_of(w, bytes, j, of),
                         ds__emit_slice_of(w, bytes, j + 1, of) };
}

/* Adds a step with the key, destination, bytes, rank and source of `step`, which reads `count`
   places. Returns its number, or DS__NONE if memory or the limit of steps is exhausted. */
static uint32_t ds__dstep_add(ds__draft *d, ds__dstep step, const ds_plan_location *from,
                              uint32_t count) {
    size_t most = d->p > DS__PLAN_LARGE ? DS__PLAN_LARGE_STEPS : DS__PLAN_STEPS;
    step.from = (uint32_t)d->locations;
    step.from_count = count;
    step.after = DS__NONE;

    for (uint32_t i = 0; i < count; i++) {
        ds_plan_location *location = DS__ADD(d, location);
        if (!location)
            return DS__NONE;
        *location = from[i];
    }

    ds__dstep *s = d->steps < most ? DS__ADD(d, step) : NULL;
    if (!s) {
        d->failed = 1;
        return DS__NONE;
    }
    *s = step;
    return (uint32_t)d->steps - 1;
}

/* Adds a ring of so many slots to the scratch memory of a rank. Returns 0 if memory is
   exhausted. */
static int ds__ring_add(ds__draft *d, int rank, size_t slot, size_t slots) {
    ds__ring *r = DS__ADD(d, ring);
    if (!r)
        return 0;
    *r = (ds__ring){ d->scratch[rank], (slot + 255) & ~(size_t)255, (uint32_t)d->heads };
    d->scratch[rank] += r->slot * slots;
    for (size_t i = 0; i < slots; i++) {
        uint32_t *head = DS__ADD(d, head);
        if (head)
            *head = DS__NONE;
    }
    return 1;
}

/* Returns the slot of piece q in a ring of the rank; the pieces of a flow share the ring. *place
   is the number of the ring plus 1. If *place is 0, the ring is added. */
static ds_plan_location ds__ring_location(ds__draft *d, int *place, int rank, size_t slot,
                                          size_t slots, size_t q) {
    if (!*place) {
        if (!ds__ring_add(d, rank, slot, slots))
            return (ds_plan_location){ 0, 0, 0 };
        *place = (int)d->rings;
    }
    const ds__ring *r = &d->ring[*place - 1];
    return (ds_plan_location){ rank, DS_PLAN_SCRATCH, r->offset + q % slots * r->slot };
}

/* Makes a step that writes a slot wait for all readers of its former content. */
static void ds__ring_write(ds__draft *d, int place, size_t slots, size_t q, uint32_t step) {
    if (!place || d->failed)
        return;
    uint32_t *head = &d->head[d->ring[place - 1].head + q % slots];
    for (uint32_t k = *head; k != DS__NONE; k = d->link[k].next)
        ds__schedule_step_after(d, step, d->link[k].step);
    *head = DS__NONE;
}

/* Adds a step to the readers of a slot. */
static void ds__ring_read(ds__draft *d, int place, size_t slots, size_t q, uint32_t step) {
    if (!place || d->failed)
        return;
    ds__dlink *one = DS__ADD(d, link);
    if (!one)
        return;
    uint32_t *head = &d->head[d->ring[place - 1].head + q % slots];
    *one = (ds__dlink){ step, *head };
    *head = (uint32_t)d->links - 1;
}

/* Where a rank's part of a piece is: its place, the step that puts it there, the ring it is in. */
typedef struct ds__held {
    ds_plan_location at;
    uint32_t step;
    int ring;
} ds__held;

typedef struct ds__piece {
    const ds__flow *f;
    size_t q;
    size_t slots;
    size_t slot;
    size_t offset;
    size_t bytes;
    uint64_t key;
    int *place;
} ds__piece;

/* Returns the turn of a copy among the steps of its depth. `by` is the rank that makes it. */
static uint64_t ds__key_turn(const ds__draft *d, int from, int to, int by) {
    int p = d->p;
    /* no two from the same one at the same time */
    if (p <= DS__PLAN_LARGE || from >= p || to >= p)
        return (uint64_t)(((to - from) % p + p) % p);

    /* copies that leave the group first, since they take the longest; then around the members */
    int away = d->t->island[to] - d->t->island[from];
    int round = by == to ? d->t->seat[to] - d->t->seat[from] : d->t->seat[from] - d->t->seat[to];
    if (round < 0)
        round += d->largest;
    int turn = round + (away < 0 ? -away : away);
    if (!away)
        turn += p;
    return turn < 4095 ? (uint64_t)turn : 4095;
}

static uint64_t ds__emit_step_key(const ds__draft *d, const ds__piece *c, int depth, int from,
                                  int to, int by) {
    return (c->key + ((uint64_t)(depth / 2 * d->wave) << 48) + ((uint64_t)depth << 32)) |
           ds__key_turn(d, from, to, by) << 20;
}

/* Returns 1 if a copy goes through the host, since the two ranks do not reach each other. */
static inline int ds__copy_staged(const ds__draft *d, int from, int to) {
    return from != d->p && to != d->p && !ds__route_of(d->t, from, to)->direct;
}

/* Returns the rank whose engine makes a copy: a device, and the source if it pushes. */
static inline int ds__copy_maker(const ds__draft *d, int from, int to, int push) {
    if (from == d->p)
        return to;
    return to == d->p || ds__route_of(d->t, from, to)->push || push ? from : to;
}

/* A copy of a piece from a rank to another. */
typedef struct ds__copy {
    ds__held from;
    ds__held to; /* without a step */
    int *stage;  /* of the host: the ring of copies through it, plus 1 */
    int push;    /* 1: the source makes the copy, since the destination gets many */
    int depth;
} ds__copy;

/* Adds one copy, or two through the host if the ranks do not reach each other. Returns the last
   step, or DS__NONE. */
static uint32_t ds__emit_copy(ds__draft *d, const ds__piece *c, const ds__copy *copy) {
    ds__held h = copy->from;
    ds_plan_location to = copy->to.at;
    uint32_t step = DS__NONE;
    int host = d->p;

    for (int leg = !ds__copy_staged(d, h.at.rank, to.rank); leg < 2; leg++) {
        ds_plan_location dst =
            leg ? to : ds__ring_location(d, copy->stage, host, c->slot, c->slots, c->q);
        int a = h.at.rank;
        int b = dst.rank;
        int by = ds__copy_maker(d, a, b, copy->push);
        int into = leg ? copy->to.ring : *copy->stage;

        ds__dstep one = {
            .key = ds__emit_step_key(d, c, 2 * copy->depth + leg, a, b, by),
            .to = dst,
            .bytes = c->bytes,
            .rank = by,
            .source = a,
        };
        step = ds__dstep_add(d, one, &h.at, 1);
        if (step == DS__NONE)
            return step;

        ds__schedule_step_after(d, step, h.step);
        ds__ring_read(d, h.ring, c->slots, c->q, step);
        ds__ring_write(d, into, c->slots, c->q, step);
        h = (ds__held){ dst, step, into };
    }
    return step;
}

/* A sum of parts that lie in the memory of one rank; of one part, a copy. */
typedef struct ds__sum {
    const ds__held *in;
    int count;
    int depth;                  /* twice that of a copy, since a copy may have two legs */
    ds_plan_location *location; /* room for `count` places */
} ds__sum;

/* Adds a sum of the inputs, in their order, to the rank and ring of `to`. Returns `to` with the
   step. */
static ds__held ds__emit_sum(ds__draft *d, const ds__piece *c, const ds__sum *sum, ds__held to) {
    int rank = to.at.rank;
    for (int i = 0; i < sum->count; i++)
        sum->location[i] = sum->in[i].at;
    ds__dstep one = {
        .key = ds__emit_step_key(d, c, sum->depth, rank, rank, rank),
        .to = to.at,
        .bytes = c->bytes,
        .rank = rank,
        .source = -1,
    };
    to.step = ds__dstep_add(d, one, sum->location, (uint32_t)sum->count);
    for (int i = 0; i < sum->count && !d->failed; i++) {
        ds__schedule_step_after(d, to.step, sum->in[i].step);
        ds__ring_read(d, sum->in[i].ring, c->slots, c->q, to.step);
    }
    ds__ring_write(d, to.ring, c->slots, c->q, to.step);
    return to;
}

static int ds__emit_tree_depth(const int *tree, int v) {
    int n = 0;
    for (; tree[v] >= 0; v = tree[v])
        n++;
    return n;
}

/* Lists the nodes of a tree from the root down. Returns their number. */
static int ds__by_depth(const int *tree, int n, int *order) {
    int count = 0;
    int depth[DS__TOPOLOGY_MAX + 1];
    for (int v = 0; v < n; v++) {
        if (tree[v] == DS__APART)
            continue;
        depth[v] = ds__emit_tree_depth(tree, v);
        int at = count++;
        for (; at > 0 && depth[order[at - 1]] > depth[v]; at--)
            order[at] = order[at - 1];
        order[at] = v;
    }
    return count;
}

/* A tree, and its nodes from the root down. */
typedef struct ds__nodes {
    const int *tree;
    const int *order;
    int count;
} ds__nodes;

/* Returns the place of a node's output of the piece, or a slot of its ring `which` if the piece
   is not part of its output. */
static ds__held ds__held_place(ds__draft *d, const ds__piece *c, int v, int output, int which) {
    ds__held to = { { v, DS_PLAN_OUTPUT, c->f->out + c->offset }, DS__NONE, 0 };
    int *place = &c->place[DS__PLACES * v + which];
    if (output)
        return to;
    to.at = ds__ring_location(d, place, v, c->slot, c->slots, c->q);
    to.ring = *place;
    return to;
}

/* Parts of a piece on their way up a tree. */
typedef struct ds__rise {
    ds__held *sent;             /* by each node to its parent */
    ds__held *in;               /* inputs of a sum */
    ds_plan_location *location; /* places of these inputs */
    int *low;                   /* lowest ranks of these inputs */
    int *lowest;                /* of each node: the lowest rank in its part of the tree */
} ds__rise;

static int ds__rise_init(ds__rise *r, size_t n) {
    r->sent = ds__host_alloc(n * sizeof *r->sent);
    r->in = ds__host_alloc(n * sizeof *r->in);
    r->location = ds__host_alloc(n * sizeof *r->location);
    r->low = ds__host_alloc(2 * n * sizeof *r->low);
    r->lowest = r->low ? r->low + n : NULL;
    return r->sent && r->in && r->location && r->low;
}

static void ds__rise_deinit(ds__rise *r) {
    ds__host_free(r->sent);
    ds__host_free(r->in);
    ds__host_free(r->location);
    ds__host_free(r->low);
}

/* Collects the inputs of the i-th node: its own and those that its children sent, in the order
   of their lowest ranks. The host has no input. Returns their number. */
static int ds__rise_inputs(const ds__draft *d, const ds__piece *c, const ds__nodes *nodes, int i,
                           ds__rise *r) {
    const int *order = nodes->order;
    int v = order[i];
    int k = 0;
    if (v < d->p) {
        r->in[k] = (ds__held){ { v, DS_PLAN_INPUT, c->f->in + c->offset }, DS__NONE, 0 };
        r->low[k++] = v;
    }
    for (int j = i + 1; j < nodes->count; j++) {
        if (nodes->tree[order[j]] != v)
            continue;
        int l = r->lowest[order[j]];
        int at = k++;
        for (; at > 0 && r->low[at - 1] > l; at--) {
            r->low[at] = r->low[at - 1];
            r->in[at] = r->in[at - 1];
        }
        r->low[at] = l;
        r->in[at] = r->sent[order[j]];
    }
    return k;
}

/* Up: each node sums its own input and the parts of its children, in the order of the ranks; the
   host only passes on. Returns the root's part. */
static ds__held ds__emit_up(ds__draft *d, const ds__piece *c, const ds__nodes *nodes) {
    const int *tree = nodes->tree;
    const int *order = nodes->order;
    int height = ds__emit_tree_depth(tree, order[nodes->count - 1]);
    ds__held result = { { 0, 0, 0 }, DS__NONE, 0 };
    ds__rise r;
    if (!ds__rise_init(&r, (size_t)d->p + 1))
        d->failed = 1;

    for (int i = nodes->count - 1; i >= 0 && !d->failed; i--) {
        int v = order[i];
        int depth = height - ds__emit_tree_depth(tree, v);
        int k = ds__rise_inputs(d, c, nodes, i, &r);
        result = r.in[0];
        r.lowest[v] = r.low[0];
        if (k > 1) {
            int wanted = tree[v] < 0 && c->f->parts < 2 && (c->f->dest < 0 || c->f->dest == v);
            ds__sum sum = { r.in, k, 2 * depth, r.location };
            result = ds__emit_sum(d, c, &sum, ds__held_place(d, c, v, wanted, 0));
        }
        if (tree[v] < 0 || d->failed)
            break;

        int *place = &c->place[DS__PLACES * v];
        ds__held to = { { 0, 0, 0 }, DS__NONE, 0 };
        to.at = ds__ring_location(d, &place[1], tree[v], c->slot, c->slots, c->q);
        to.ring = place[1];
        ds__copy copy = { result, to, &place[2], !d->pull, depth };
        r.sent[v] = to;
        r.sent[v].step = ds__emit_copy(d, c, &copy);
    }
    ds__rise_deinit(&r);
    return result;
}

/* Returns 1 if copies down a tree are pushed, since the root gets them from all. */
static int ds__emit_gives(const ds__draft *d) {
    return d->want->what == DS_GATHER || (d->want->what == DS_REDUCE && d->p > DS__PLAN_LARGE);
}

/* Copies the owner's part to its output, if the output should have it and does not have it yet. */
static void ds__emit_own(ds__draft *d, const ds__piece *c, ds__held first, int owner, int depth0) {
    int copied = d->want->what == DS_BROADCAST || first.at.buffer == DS_PLAN_OUTPUT;
    if (copied || (c->f->dest >= 0 && c->f->dest != owner))
        return;
    ds__dstep one = {
        .key = ds__emit_step_key(d, c, 2 * (depth0 + 1), owner, owner, owner),
        .to = { owner, DS_PLAN_OUTPUT, c->f->out + c->offset },
        .bytes = c->bytes,
        .rank = owner,
        .source = -1,
    };
    uint32_t step = ds__dstep_add(d, one, &first.at, 1);
    ds__schedule_step_after(d, step, first.step);
    ds__ring_read(d, first.ring, c->slots, c->q, step);
}

/* Down: from the owner to all nodes of the tree. A node passes on its output, if it has one. */
static void ds__emit_down(ds__draft *d, const ds__piece *c, const ds__nodes *nodes, ds__held first,
                          int depth0) {
    const int *tree = nodes->tree;
    ds__held *held = ds__host_alloc(((size_t)d->p + 1) * sizeof *held);
    if (!held) {
        d->failed = 1;
        return;
    }
    held[nodes->order[0]] = first;
    ds__emit_own(d, c, first, nodes->order[0], depth0);

    for (int i = 1; i < nodes->count && !d->failed; i++) {
        int v = nodes->order[i];
        int wanted = v < d->p && (c->f->dest < 0 || c->f->dest == v);
        ds__held to = ds__held_place(d, c, v, wanted, 3);
        ds__copy copy = {
            .from = held[tree[v]],
            .to = to,
            .stage = &c->place[DS__PLACES * v + 4],
            .push = ds__emit_gives(d),
            .depth = depth0 + ds__emit_tree_depth(tree, v),
        };
        held[v] = to;
        held[v].step = ds__emit_copy(d, c, &copy);
    }
    ds__host_free(held);
}

/* A piece of the blocks of several ranks: copies to each rank its part. */
static void ds__emit_parts(ds__draft *d, const ds__piece *c, int *order, ds__held held,
                           int depth0) {
    for (int i = 0; i < c->f->parts && !d->failed; i++) {
        const int *tree = d->tree + c->f->down + (ptrdiff_t)i * (d->p + 1);
        size_t own = ds__emit_block_of(d->want, (size_t)(c->f->dest + i), (size_t)d->p);
        size_t end = ds__emit_block_of(d->want, (size_t)(c->f->dest + i + 1), (size_t)d->p);
        size_t begin = c->f->in + c->offset;
        size_t from = begin > own ? begin : own;
        size_t to = begin + c->bytes < end ? begin + c->bytes : end;
        ds__flow f = *c->f;
        ds__piece part = *c;
        ds__held h = held;
        if (from >= to)
            continue;

        f.out = 0;
        f.dest += i;
        part.f = &f;
        part.offset = from - own;
        part.bytes = to - from;
        h.at.offset += from - begin;
        ds__nodes nodes = { tree, order, ds__by_depth(tree, d->p + 1, order) };
        ds__emit_down(d, &part, &nodes, h, depth0);
    }
}

/* plan/grid.h - grids of many ranks.

   Emits the steps of a grid (ds__emit_grid), for many ranks in groups of one size without use
   of the host. The leads of a group stand in rows of `run`, and each lead has a slice of its
   own. Sums are made in three stages. A column is summed first, each lead for the slices of its
   row. Then a row is summed, each lead for its slice. Then the leads at the same place of all
   groups are summed. Data for all ranks takes the opposite way. The wires carry as much as if
   all others sent each lead its slice, with a fifth of the copies. Blocks of ranks are slices
   that are given. The slices of a row are then not adjacent over all groups, but in spans.

   Invariants: all groups have d->largest ranks. In broadcast and reduce the root leads nothing.
   Sums need DS_ORDER_ANY. A slice is never empty. A rank has at most `most` recorded steps per
   span and at most `places` rings.
   Locks: none.
   Threads: the thread that makes the plan. */

typedef struct ds__grid {
    ds__draft *d;
    ds__piece c;
    int groups;
    int size;
    int leads;
    int run;
    int spans;
    int places;
    int most;
    int depth;
    int *rank;     /* of each group the leads, then the others */
    int *place;    /* rings of each rank */
    int *have;     /* of each rank and span: how many steps `got` has */
    ds__held *sum; /* of each rank and span; then the same after the next stage */
    /* of each rank and span: the steps that bring what is passed on, `most` at the most */
    uint32_t *got;
    ds__held *in; /* of a sum, whose inputs are not more than there are ranks */
    int count;    /* of these inputs */
    int rings;    /* of the rank that sums */
    ds_plan_location *location;
    size_t begin; /* of the piece */
    size_t bytes; /* of the piece */
} ds__grid;

/* Returns 1 if the slices are the blocks of the ranks. */
static int ds__grid_blocks(const ds_plan_desc *w) {
    return w->what == DS_ALL_GATHER || w->what == DS_REDUCE_SCATTER;
}

/* Returns 1 if the root leads nothing. */
static int ds__grid_rooted(const ds_plan_desc *w) {
    return w->what == DS_BROADCAST || w->what == DS_REDUCE;
}

/* Returns where a lead's slice begins, or the part of a group in it. */
static size_t ds__grid_at(const ds__grid *g, int span, int lead, int group) {
    const ds_plan_desc *w = g->d->want;
    if (ds__grid_blocks(w))
        return ds__emit_block_of(w, (size_t)(span * g->leads + lead), (size_t)g->d->p);
    return g->begin + ds__emit_slice_of(w, g->bytes, (size_t)(lead * g->groups + group),
                                        (size_t)(g->leads * g->groups));
}

/* Returns the bytes that leads of several groups exchange: in all_reduce the part of a group in
   the slice of the lead, else the slice. */
static ds__extent ds__grid_share(const ds__grid *g, int span, int lead, int group) {
    if (g->d->want->what == DS_ALL_REDUCE)
        return (ds__extent){ ds__grid_at(g, span, lead, group),
                             ds__grid_at(g, span, lead, group + 1) };
    return (ds__extent){ ds__grid_at(g, span, lead, 0), ds__grid_at(g, span, lead + 1, 0) };
}

static int ds__grid_rank(const ds__grid *g, int group, int seat) {
    return g->rank[group * g->size + seat];
}

static ds__held ds__grid_input(int rank, size_t at) {
    return (ds__held){ { rank, DS_PLAN_INPUT, at }, DS__NONE, 0 };
}

/* Returns a place in the rank's output, or in its ring `which` if that is not negative. */
static ds__held ds__grid_room(ds__grid *g, int rank, int which, size_t at, size_t bytes) {
    ds__held to = { { rank, DS_PLAN_OUTPUT, at }, DS__NONE, 0 };
    size_t item = g->d->want->item;
    size_t unit = item > 256 ? item : 256; /* pieces differ by a unit at either end */
    if (which < 0)
        return to;
    to.at = ds__ring_location(g->d, &g->place[rank * g->places + which], rank, bytes + 3 * unit,
                              g->c.slots, g->c.q);
    to.ring = g->place[rank * g->places + which];
    return to;
}

static ds__held ds__grid_copy(ds__grid *g, ds__held from, size_t skip, size_t bytes, ds__held to,
                              int push) {
    ds__copy copy = { from, to, NULL, push, g->depth };
    copy.from.at.offset += skip;
    g->c.bytes = bytes;
    to.step = ds__emit_copy(g->d, &g->c, &copy);
    return to;
}

/* Copies one more input of a sum to the next ring of the rank that sums. */
static void ds__grid_fetch(ds__grid *g, ds__held from, size_t skip, size_t bytes, int rank) {
    ds__held to = ds__grid_room(g, rank, g->rings++, 0, bytes);
    g->in[g->count++] = ds__grid_copy(g, from, skip, bytes, to, 0);
}

/* Sums the inputs that were fetched. */
static ds__held ds__grid_sum(ds__grid *g, size_t bytes, ds__held to) {
    ds__sum sum = { g->in, g->count, 2 * g->depth + 1, g->location };
    g->c.bytes = bytes;
    return ds__emit_sum(g->d, &g->c, &sum, to);
}

/* Records a step that brings a part of a span to the output of a rank. */
static void ds__grid_got(ds__grid *g, int rank, int span, uint32_t step) {
    int at = rank * g->spans + span;
    g->got[at * g->most + g->have[at]++] = step;
}

/* Copies from output to output, after the first so many steps that brought the data there. */
static uint32_t ds__grid_pass(ds__grid *g, int from, int to, int span, ds__extent part, int after) {
    size_t begin = part.begin;
    ds__held here = { { from, DS_PLAN_OUTPUT, begin }, DS__NONE, 0 };
    uint32_t step =
        ds__grid_copy(g, here, 0, part.end - begin, ds__grid_room(g, to, -1, begin, 0), 0).step;
    for (int i = 0; i < after && !g->d->failed; i++)
        ds__schedule_step_after(g->d, step, g->got[(from * g->spans + span) * g->most + i]);
    return step;
}

/* Sums the slices of a lead's row over its column. */
static void ds__grid_sum_column(ds__grid *g, int group, int l, int e) {
    int n = g->leads;
    int run = g->run;
    int row = l / run * run;
    int r = ds__grid_rank(g, group, l);
    size_t at = ds__grid_at(g, e, row, 0);
    size_t bytes = ds__grid_at(g, e, row + run, 0) - at;

    g->in[0] = ds__grid_input(r, at);
    g->count = 1;
    for (int k = 1; k < n / run; k++) {
        int other = ds__grid_rank(g, group, (l + k * run) % n);
        ds__grid_fetch(g, ds__grid_input(other, at), 0, bytes, r);
    }
    ds__held to = ds__grid_room(g, r, g->rings++, 0, bytes);
    g->sum[r * g->spans + e] = ds__grid_sum(g, bytes, to);
}

/* Sums a lead's slice over its row and those that lead nothing. The sum is kept apart from the
   sum of the column, which others still need. */
static void ds__grid_sum_row(ds__grid *g, int group, int l, int e) {
    int n = g->leads;
    int run = g->run;
    int row = l / run * run;
    int r = ds__grid_rank(g, group, l);
    int what = (int)g->d->want->what;
    size_t at = ds__grid_at(g, e, l, 0);
    size_t bytes = ds__grid_at(g, e, l + 1, 0) - at;
    size_t skip = at - ds__grid_at(g, e, row, 0);

    g->in[0] = g->sum[r * g->spans + e];
    g->in[0].at.offset += skip;
    g->count = 1;
    for (int k = 1; k < run; k++) {
        int other = ds__grid_rank(g, group, row + (l + k) % run);
        ds__grid_fetch(g, g->sum[other * g->spans + e], skip, bytes, r);
    }
    for (int k = n; k < g->size; k++)
        ds__grid_fetch(g, ds__grid_input(ds__grid_rank(g, group, k), at), 0, bytes, r);

    int over = g->groups == 1 && what != DS_REDUCE;
    ds__held to =
        ds__grid_room(g, r, over ? -1 : g->rings++, what == DS_REDUCE_SCATTER ? 0 : at, bytes);
    to = ds__grid_sum(g, bytes, to);
    g->sum[(g->d->p + r) * g->spans + e] = to;
    if (over && what == DS_ALL_REDUCE)
        ds__grid_got(g, r, e, to.step);
}

/* Sums a lead's slice over the leads at the same place of all groups. */
static void ds__grid_sum_groups(ds__grid *g, int group, int l) {
    ds__draft *d = g->d;
    int what = (int)d->want->what;
    int r = ds__grid_rank(g, group, l);
    int e = what == DS_REDUCE_SCATTER ? group : 0;
    ds__extent part = ds__grid_share(g, e, l, group);
    size_t bytes = part.end - part.begin;
    size_t skip = part.begin - ds__grid_at(g, e, l, 0);
    if (what == DS_REDUCE && group != d->t->island[d->want->root])
        return;

    g->in[0] = g->sum[r * g->spans + e];
    g->in[0].at.offset += skip;
    g->count = 1;
    for (int k = 1; k < g->groups; k++) {
        int other = ds__grid_rank(g, (group + k) % g->groups, l);
        ds__grid_fetch(g, g->sum[other * g->spans + e], skip, bytes, r);
    }

    int ring = what == DS_REDUCE ? g->rings : -1;
    size_t at = what == DS_ALL_REDUCE ? part.begin : 0;
    ds__held to = ds__grid_sum(g, bytes, ds__grid_room(g, r, ring, at, bytes));
    if (what == DS_ALL_REDUCE)
        ds__grid_got(g, r, e, to.step);
    else
        g->sum[(d->p + r) * g->spans + e] = to;
}

/* Copies the slices of the leads of the root's group to the root. */
static void ds__grid_reduce_root(ds__grid *g) {
    ds__draft *d = g->d;
    int root = d->want->root;
    for (int l = 0; l < g->leads && !d->failed; l++) {
        int r = ds__grid_rank(g, d->t->island[root], l);
        size_t at = ds__grid_at(g, 0, l, 0);
        size_t bytes = ds__grid_at(g, 0, l + 1, 0) - at;
        ds__held from = g->sum[g->groups > 1 ? d->p + r : r];
        ds__grid_copy(g, from, 0, bytes, ds__grid_room(g, root, -1, at, 0), 1);
    }
}

/* Sums of a piece: columns, rows, groups, then the root. */
static void ds__grid_up(ds__grid *g) {
    ds__draft *d = g->d;
    int n = g->leads;
    size_t sums = (size_t)(d->p * g->spans);
    int first = 0;
    for (int stage = 0; stage < 2; stage++, g->depth++) {
        for (int i = 0; i < g->groups * n; i++) {
            g->rings = first; /* each rank has rings of its own */
            for (int e = 0; e < g->spans && !d->failed; e++) {
                if (stage)
                    ds__grid_sum_row(g, i / n, i % n, e);
                else
                    ds__grid_sum_column(g, i / n, i % n, e);
            }
        }
        first = g->rings;
    }
    memcpy(g->sum, g->sum + sums, sums * sizeof *g->sum);

    for (int i = 0; g->groups > 1 && i < g->groups * n && !d->failed; i++) {
        g->rings = first;
        ds__grid_sum_groups(g, i / n, i % n);
    }
    g->depth++;
    if (d->want->what == DS_REDUCE)
        ds__grid_reduce_root(g);
    g->depth++;
}

/* Copies slices of the root's input to the leads of its group. */
static void ds__grid_broadcast_root(ds__grid *g) {
    ds__draft *d = g->d;
    int root = d->want->root;
    for (int l = 0; l < g->leads && !d->failed; l++) {
        int r = ds__grid_rank(g, d->t->island[root], l);
        size_t at = ds__grid_at(g, 0, l, 0);
        size_t bytes = ds__grid_at(g, 0, l + 1, 0) - at;
        ds__held to = ds__grid_room(g, r, -1, at, 0);
        to = ds__grid_copy(g, ds__grid_input(root, at), 0, bytes, to, 0);
        ds__grid_got(g, r, 0, to.step);
    }
}

/* Copies each rank's input to its own block of its output. */
static void ds__grid_own_blocks(ds__grid *g) {
    ds__draft *d = g->d;
    for (int r = 0; r < d->p && !d->failed; r++) {
        ds_plan_location from = { r, DS_PLAN_INPUT, 0 };
        size_t begin = ds__emit_block_of(d->want, (size_t)r, (size_t)d->p);
        size_t end = ds__emit_block_of(d->want, (size_t)r + 1, (size_t)d->p);
        ds__dstep one = {
            .key = ds__emit_step_key(d, &g->c, 2 * g->depth, r, r, r),
            .to = { r, DS_PLAN_OUTPUT, begin },
            .bytes = end - begin,
            .rank = r,
            .source = -1,
        };
        ds__grid_got(g, r, d->t->island[r], ds__dstep_add(d, one, &from, 1));
    }
}

/* Passes slices to a lead from the leads at the same place of the other groups. */
static void ds__grid_pass_groups(ds__grid *g, int group, int l) {
    ds__draft *d = g->d;
    int r = ds__grid_rank(g, group, l);
    int home = d->t->island[d->want->root];
    for (int k = 1; k < g->groups && !d->failed; k++) {
        int from = (group + k) % g->groups;
        int e = g->spans > 1 ? from : 0;
        ds__extent part = ds__grid_share(g, e, l, from);
        if (d->want->what == DS_BROADCAST && (from != home || group == home))
            continue;
        ds__grid_got(g, r, e, ds__grid_pass(g, ds__grid_rank(g, from, l), r, e, part, 1));
    }
}

/* Returns how many steps bring a lead's slice to the lead. */
static int ds__grid_slice_steps(const ds__grid *g) {
    return g->d->want->what == DS_ALL_REDUCE ? g->groups : 1;
}

/* Passes slices of a row to a lead of the row. */
static void ds__grid_pass_row(ds__grid *g, int group, int l, int e) {
    int r = ds__grid_rank(g, group, l);
    int row = l / g->run * g->run;
    for (int k = 1; k < g->run && !g->d->failed; k++) {
        int from = row + (l + k) % g->run;
        int other = ds__grid_rank(g, group, from);
        ds__extent part = { ds__grid_at(g, e, from, 0), ds__grid_at(g, e, from + 1, 0) };
        ds__grid_got(g, r, e, ds__grid_pass(g, other, r, e, part, ds__grid_slice_steps(g)));
    }
}

/* Passes rows to a rank: to a lead from the leads of its column, to another rank from one lead of
   each row. */
static void ds__grid_pass_column(ds__grid *g, int group, int l, int e) {
    int run = g->run;
    int n = g->leads;
    int r = ds__grid_rank(g, group, l);
    int after = ds__grid_slice_steps(g) + run - 1;
    for (int k = l < n; k < n / run && !g->d->failed; k++) {
        int from = l < n ? (l + k * run) % n : k * run + l % run;
        int first = from / run * run;
        int other = ds__grid_rank(g, group, from);
        ds__extent part = { ds__grid_at(g, e, first, 0), ds__grid_at(g, e, first + run, 0) };
        (void)ds__grid_pass(g, other, r, e, part, after);
    }
}

/* Passes spans to a rank from its group: slices of its row in stage 1, other rows in stage 2. */
static void ds__grid_pass_spans(ds__grid *g, int stage, int group, int l) {
    const ds_plan_desc *w = g->d->want;
    if (w->what == DS_BROADCAST && ds__grid_rank(g, group, l) == w->root)
        return;
    for (int e = 0; e < g->spans; e++) {
        if (stage == 2)
            ds__grid_pass_column(g, group, l, e);
        else if (l < g->leads)
            ds__grid_pass_row(g, group, l, e);
    }
}

/* Data for all ranks of a piece: to the leads, over the groups, rows and columns. */
static void ds__grid_down(ds__grid *g) {
    int what = (int)g->d->want->what;
    if (what == DS_BROADCAST)
        ds__grid_broadcast_root(g);
    if (what == DS_ALL_GATHER)
        ds__grid_own_blocks(g);
    g->depth += what == DS_BROADCAST;

    for (int stage = 0; stage < 3; stage++, g->depth++)
        for (int i = 0; i < g->groups * g->size; i++) {
            int group = i / g->size;
            int l = i % g->size;
            if (stage)
                ds__grid_pass_spans(g, stage, group, l);
            else if (l < g->leads)
                ds__grid_pass_groups(g, group, l);
        }
}

/* Returns 1 if a grid can do the collective in the requested order of sums. */
static int ds__grid_fits_what(const ds_plan_desc *w) {
    if (w->what == DS_BROADCAST || w->what == DS_ALL_GATHER)
        return 1;
    if (w->what == DS_SCATTER || w->what == DS_GATHER || w->what == DS_ALL_TO_ALL)
        return 0;
    return w->order == DS_ORDER_ANY;
}

/* Returns 1 if no slice is empty and the steps of a piece are not too many. */
static int ds__grid_fits_bytes(const ds__draft *d, int run, int rows) {
    const ds_plan_desc *w = d->want;
    size_t p = (size_t)d->p;
    size_t steps = p * (size_t)(rows + run + d->largest - run * rows + 4);
    size_t unit = w->item > 256 ? w->item : 256;
    if (ds__grid_blocks(w)) {
        unit = w->item ? w->item : 1;
        steps *= (size_t)(d->p / d->largest);
    } else if (w->what == DS_ALL_REDUCE) {
        steps *= 2;
    }
    return w->bytes / unit >= p && steps <= DS__PLAN_LARGE_STEPS;
}

/* Returns 1 if rank i has a route to all others without the host. */
static int ds__grid_fits_routes(const ds__draft *d, int i) {
    for (int k = 0; k < d->p; k++) {
        const ds__troute *r = ds__route_of(d->t, i, k);
        if (i != k && (!r->direct || !r->hops))
            return 0;
    }
    return 1;
}

/* Returns 1 if there is such a grid: groups of one size, all joined without the host. */
static int ds__grid_fits(ds__draft *d, int run, int rows) {
    const ds_plan_desc *w = d->want;
    int p = d->p;
    int n = run * rows;
    int blocks = ds__grid_blocks(w);
    if (run < 2 || rows < 2 || p % d->largest || n > d->largest - ds__grid_rooted(w) ||
        (blocks && n != d->largest))
        return 0;
    if (!ds__grid_fits_what(w) || !ds__grid_fits_bytes(d, run, rows))
        return 0;

    int full = 0; /* ranks of full groups */
    for (int i = 0; i < p; i++) {
        if (d->t->seat[i] == d->largest - 1)
            full += d->largest;
        if (blocks && d->t->island[i] != i / d->largest)
            return 0;
        if (!ds__grid_fits_routes(d, i))
            return 0;
    }
    return full == p;
}

/* Allocates the arrays of a grid and lists its leads. Returns 0 if memory is exhausted. */
static int ds__grid_init(ds__grid *g, ds__draft *d) {
    const ds_plan_desc *w = d->want;
    size_t n = (size_t)d->p;
    memset(g, 0, sizeof *g);
    g->d = d;
    g->groups = d->p / d->largest;
    g->size = d->largest;
    g->leads = d->ways;
    g->run = d->run;
    g->spans = ds__grid_blocks(w) ? g->groups : 1;
    g->most = g->groups + g->run;
    g->places = (g->leads / g->run + g->run + g->size - g->leads + 2) * g->spans + g->groups + 1;
    size_t spans = (size_t)g->spans;

    g->rank = ds__host_alloc(n * sizeof *g->rank);
    g->place = ds__host_alloc(n * (size_t)g->places * sizeof *g->place);
    g->have = ds__host_alloc(n * spans * sizeof *g->have);
    g->sum = ds__host_alloc(2 * n * spans * sizeof *g->sum);
    g->got = ds__host_alloc(n * spans * (size_t)g->most * sizeof *g->got);
    g->in = ds__host_alloc(n * sizeof *g->in);
    g->location = ds__host_alloc(n * sizeof *g->location);
    if (!g->rank || !g->place || !g->have || !g->sum || !g->got || !g->in || !g->location)
        return 0;

    int turn = ds__grid_rooted(w) ? d->t->seat[w->root] + 1 : 0;
    for (int i = 0; i < d->p; i++) {
        int seat = (d->t->seat[i] - turn + g->size) % g->size;
        g->rank[d->t->island[i] * g->size + seat] = i;
    }
    return 1;
}

static void ds__grid_deinit(ds__grid *g) {
    ds__host_free(g->rank);
    ds__host_free(g->place);
    ds__host_free(g->have);
    ds__host_free(g->sum);
    ds__host_free(g->got);
    ds__host_free(g->in);
    ds__host_free(g->location);
}

/* Emits piece q. */
static void ds__grid_emit_piece(ds__grid *g, size_t q, size_t pieces) {
    ds__draft *d = g->d;
    const ds_plan_desc *w = d->want;
    int what = (int)w->what;
    g->c.q = q;
    g->c.key = (uint64_t)q << 48;
    g->begin = ds__emit_slice_of(w, w->bytes, q, pieces);
    g->bytes = ds__emit_slice_of(w, w->bytes, q + 1, pieces) - g->begin;
    g->depth = 0;
    memset(g->have, 0, (size_t)d->p * (size_t)g->spans * sizeof *g->have);
    if (what != DS_BROADCAST && what != DS_ALL_GATHER)
        ds__grid_up(g);
    if (what != DS_REDUCE && what != DS_REDUCE_SCATTER)
        ds__grid_down(g);
    if (g->bytes > d->piece_bytes)
        d->piece_bytes = g->bytes;
}

/* Emits all pieces of a grid. Returns 0 if memory or the limit of steps is exhausted. */
static int ds__emit_grid(ds__draft *d, size_t pieces) {
    const ds_plan_desc *w = d->want;
    size_t unit = w->item > 256 ? w->item : 256;
    ds__grid g;
    if (!ds__grid_init(&g, d))
        d->failed = 1;

    /* no slice is empty */
    while (pieces > 1 && (ds__grid_blocks(w) || w->bytes / pieces / unit <= (size_t)d->p))
        pieces--;
    /* more, and leads would begin what they cannot pass on yet */
    g.c.slots = pieces < 3 ? pieces : 3;
    for (size_t q = 0; q < pieces && !d->failed; q++)
        ds__grid_emit_piece(&g, q, pieces);
    d->pieces = pieces;
    ds__grid_deinit(&g);
    return !d->failed;
}

/* plan/pieces.h - steps of all pieces.

   Emits all pieces of a draft (ds__pieces_emit), as flows or as a grid. A flow is cut into pieces
   of whole units, which differ by at most one unit. Pieces pass a rank in a ring of slots.

   Invariants: a flow has at least one piece, and no more than it has units. `first` and `each`
   of a flow number its steps: piece q begins with step first + q * each. Trees must not be added
   while steps are emitted.
   Locks: none.
   Threads: the thread that makes the plan. */

/* Returns the nodes of a tree of the draft; none if `at` is negative. */
static ds__nodes ds__nodes_of(const ds__draft *d, ptrdiff_t at, int *order) {
    if (at < 0)
        return (ds__nodes){ NULL, order, 0 };
    const int *tree = d->tree + at;
    return (ds__nodes){ tree, order, ds__by_depth(tree, d->p + 1, order) };
}

/* Emits one piece of a flow: up a tree, then down a tree or to the ranks of its parts. */
static void ds__emit_piece(ds__draft *d, const ds__piece *c, const ds__nodes *ups,
                           const ds__nodes *downs, int *order) {
    const ds__flow *f = c->f;
    ds__held held = { { f->owner, DS_PLAN_INPUT, f->in + c->offset }, DS__NONE, 0 };
    int height = 0;
    if (ups->count) {
        height = ds__emit_tree_depth(ups->tree, ups->order[ups->count - 1]);
        held = ds__emit_up(d, c, ups);
    }
    if (f->parts > 1)
        ds__emit_parts(d, c, order, held, height);
    else if (downs->count)
        ds__emit_down(d, c, downs, held, height);
}

/* Emits all pieces of a flow. `up` and `down` have room for the nodes of a tree. */
static void ds__emit_flow(ds__draft *d, ds__flow *f, size_t pieces, int *up, int *down) {
    size_t item = d->want->item ? d->want->item : 1;
    size_t unit = item < 64 && 64 % item == 0 ? 64 : item;
    size_t units = f->bytes / unit;
    size_t k = units < pieces ? units : pieces;
    if (!k)
        k = 1;
    f->first = d->steps;
    f->each = 0;
    if (!f->bytes)
        return;

    ds__nodes ups = ds__nodes_of(d, f->up, up);
    ds__nodes downs = ds__nodes_of(d, f->down, down);
    ds__piece c = {
        .f = f,
        .slots = k < d->slots ? k : d->slots,
        .slot = k == 1 ? f->bytes : units / k * unit + unit + f->bytes % unit,
        .place = d->place,
    };
    if (k > d->pieces)
        d->pieces = k;
    memset(d->place, 0, DS__PLACES * ((size_t)d->p + 1) * sizeof *d->place);

    for (c.q = 0; c.q < k && !d->failed; c.q++) {
        size_t end = f->bytes;
        if (c.q + 1 < k)
            end = (units / k * (c.q + 1) + units % k * (c.q + 1) / k) * unit;
        c.bytes = end - c.offset;
        c.key = (uint64_t)c.q << 48;
        if (c.bytes > d->piece_bytes)
            d->piece_bytes = c.bytes;
        ds__emit_piece(d, &c, &ups, &downs, down);
        c.offset = end;
        if (!c.q)
            f->each = d->steps - f->first;
    }
}

/* Emits all pieces of all flows, or of a grid. Returns 0 if memory or the limit of steps is
   exhausted. */
static int ds__pieces_emit(ds__draft *d, size_t pieces, int wave) {
    size_t n = (size_t)d->p + 1;
    int *up = ds__host_alloc(2 * n * sizeof *up);
    int *down = up ? up + n : NULL;
    ds__draft_clear(d);
    d->wave = wave;
    d->pieces = 1;
    d->piece_bytes = 0;
    memset(d->scratch, 0, n * sizeof *d->scratch);
    if (!up)
        d->failed = 1;

    if (d->run && !d->failed)
        ds__emit_grid(d, pieces);
    for (size_t i = 0; i < d->flows && !d->failed; i++)
        ds__emit_flow(d, &d->flow[i], pieces, up, down);
    ds__host_free(up);
    return !d->failed;
}

/* plan/cycle.h - rounds on a circle.

   Makes a modulo schedule of the pieces (ds__cycle_build), for few ranks. A round has one piece
   of each flow, and all rounds are alike. The steps of one round are put on a circle. Its
   length is the time of the busiest wire, engine or memory, or somewhat more. Rounds follow
   each other at this distance, and no step waits for a wire, engine or memory. Several orders
   of the steps and numbers of pieces are tried, and the best is kept.

   Invariants: the arcs of a wire, engine or memory (ds__orbit) do not overlap on the circle.
   Times of the schedule are targets: ds__settle_plan and ds__cost_predict give the final ones. The
   random numbers have a fixed seed, so the same request gives the same plan. `work` limits the time
   of the search.
   Locks: none.
   Threads: the thread that makes the plan. */

/* A part of the circle in which a wire, an engine or a memory is in use. */
typedef struct ds__arc {
    int64_t from;
    int64_t ns;
} ds__arc;

/* A wire, an engine or a memory, with its arcs of a round. */
typedef struct ds__orbit {
    ds__arc *arc;
    size_t arcs;
} ds__orbit;

typedef struct ds__cycle {
    ds__draft *d;
    size_t steps;
    size_t lines;
    size_t wires;
    ds__orbit *orbit; /* of wires, then of engines, then of memories */
    ds__arc *arc;
    int64_t *start; /* of each step */
    int64_t *best;  /* of each step: its start in the best order */
    int64_t *held;  /* of each step: the time for which it holds its engine or memory */
    int64_t *tail; /* of each step: from its begin to the end of the last step that depends on it */
    uint32_t *need;
    uint32_t *ready;
    size_t work;      /* steps that were put on a circle */
    size_t work_most; /* the search ends after so many */
    int64_t enough;   /* the result must take less than this */
    size_t copies;    /* of a round */
    double *rank;     /* the order of the steps */
    double *rank_best;
    uint64_t seed;
    int64_t turn; /* of the best order: time from round to round */
    int64_t end;  /* of the best order: time of one round */
    int64_t grid; /* the longest arc of the busiest wires */
    size_t pieces;
} ds__cycle;

/* Returns a random number. */
static uint32_t ds__cycle_any(ds__cycle *r) {
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->seed >> 33);
}

/* Returns the size of the largest of k pieces of a step, as ds__pieces_emit cuts them. */
static size_t ds__cycle_bytes(const ds__cycle *r, size_t i, size_t k) {
    size_t item = r->d->want->item ? r->d->want->item : 1;
    size_t unit = item < 64 && 64 % item == 0 ? 64 : item;
    size_t bytes = r->d->step[i].bytes;
    size_t units = bytes / unit;
    return k < 2 || !units ? bytes : (units + k - 1) / k * unit + bytes % unit;
}

/* Returns the first time from t on at which so many nanoseconds of the circle are free, or -1. */
static int64_t ds__orbit_find(const ds__orbit *o, int64_t t, int64_t ns, int64_t turn) {
    int64_t first = t;
    for (size_t i = 0, free = 0; free < o->arcs; i = i + 1 < o->arcs ? i + 1 : 0) {
        int64_t since = (t - o->arc[i].from) % turn;
        if (since < 0)
            since += turn;
        free++;
        if (since >= o->arc[i].ns && turn - since >= ns)
            continue;
        t += since < o->arc[i].ns ? o->arc[i].ns - since : turn - since + o->arc[i].ns;
        free = 0;
        if (t - first > turn)
            return -1;
    }
    return t;
}

/* Returns the index of the orbit of a step's memory, or of its rank's first engine. */
static size_t ds__cycle_own(const ds__cycle *r, const ds__dstep *s, const ds__troute *route) {
    size_t engines = (size_t)r->d->t->engines;
    if (route)
        return r->wires + (size_t)s->rank * engines;
    return r->wires + ((size_t)r->d->p + 1) * engines + (size_t)s->rank;
}

/* A step that is put on the circle. */
typedef struct ds__lap {
    const ds_topology *t;
    const ds__troute *route; /* NULL: a sum */
    ds__orbit *own;          /* its rank's engines, or its memory */
    size_t engines;          /* number of entries of `own` */
    size_t whole;            /* engines that are held for all of the circle */
    int64_t rest;            /* time for which one more engine is held */
    size_t engine;           /* index of that engine */
    double bytes;
    int64_t turn;
} ds__lap;

/* Returns the nanoseconds for which the step uses the wire of a hop. */
static int64_t ds__lap_wire_ns(const ds__lap *l, size_t hop) {
    return ds__cost_ns(l->bytes, l->t->wire[l->route->wire[hop]]);
}

/* Returns a time from `begin` on at which the last wire is free, after looking at each wire once.
   Returns -1 if a wire is never free. */
static int64_t ds__lap_wires_find(const ds__cycle *r, const ds__lap *l, int64_t begin) {
    for (size_t h = 0; l->route && h < l->route->hops && begin >= 0; h++)
        begin = ds__orbit_find(&r->orbit[l->route->wire[h]], begin, ds__lap_wire_ns(l, h), l->turn);
    return begin;
}

/* Chooses the engine that is free first. Returns the time from `begin` on at which it is free, or
   -1. */
static int64_t ds__lap_engine_find(ds__lap *l, int64_t begin) {
    int64_t first = -1;
    for (size_t n = 0; n < l->engines; n++) {
        int64_t one = l->rest ? ds__orbit_find(&l->own[n], begin, l->rest, l->turn) : begin;
        if (one >= 0 && (first < 0 || one < first)) {
            first = one;
            l->engine = n;
        }
    }
    return first;
}

/* Adds the step's arcs. Returns 0 if fewer engines than it needs are idle for all of the circle. */
static int ds__lap_occupy(ds__cycle *r, const ds__lap *l, int64_t begin) {
    size_t whole = l->whole;
    int64_t from = begin % l->turn;
    for (size_t n = 0; n < l->engines && whole; n++) {
        ds__orbit *o = &l->own[n];
        if (o->arcs || (n == l->engine && l->rest))
            continue;
        o->arc[o->arcs++] = (ds__arc){ 0, l->turn };
        whole--;
    }
    for (size_t h = 0; l->route && h < l->route->hops; h++) {
        ds__orbit *o = &r->orbit[l->route->wire[h]];
        o->arc[o->arcs++] = (ds__arc){ from, ds__lap_wire_ns(l, h) };
    }
    if (l->rest) {
        ds__orbit *o = &l->own[l->engine];
        o->arc[o->arcs++] = (ds__arc){ from, l->rest };
    }
    return !whole;
}

/* Puts a step of k pieces on the circle, at the first multiple of `grid` from its start on at which
   its wires and an engine or the memory are free. Returns 0 if there is none in two rounds. */
static int ds__cycle_put(ds__cycle *r, uint32_t i, size_t k, int64_t turn, int64_t grid) {
    const ds__dstep *s = &r->d->step[i];
    int64_t begin = r->start[i];
    int64_t before;
    int64_t limit = begin + 2 * turn;
    ds__lap l = {
        .t = r->d->t,
        .route = ds__step_route(r->d, s),
        .engines = 1,
        .whole = (size_t)(r->held[i] / turn),
        .rest = r->held[i] % turn,
        .bytes = (double)ds__cycle_bytes(r, i, k),
        .turn = turn,
    };
    l.own = &r->orbit[ds__cycle_own(r, s, l.route)];
    if (l.route)
        l.engines = (size_t)l.t->engines;
    do {
        begin = (begin + grid - 1) / grid * grid;
        before = begin;
        begin = ds__lap_wires_find(r, &l, begin);
        if (begin >= 0)
            begin = ds__lap_engine_find(&l, begin);
        if (begin < 0 || begin > limit)
            return 0;
    } while (begin != before);
    r->start[i] = begin;
    return ds__lap_occupy(r, &l, begin);
}

/* Puts one round on the circle in the order of `rank`. Returns its end, or -1. */
static int64_t ds__cycle_try(ds__cycle *r, size_t k, int64_t turn, int64_t grid) {
    ds__draft *d = r->d;
    size_t n = 0;
    size_t done = 0;
    int64_t end = 0;
    for (size_t i = 0; i < r->lines; i++)
        r->orbit[i].arcs = 0;
    for (uint32_t i = 0; i < r->steps; i++) {
        r->start[i] = 0;
        if (!(r->need[i] = d->step[i].need))
            r->ready[n++] = i;
    }
    for (; n; done++) {
        size_t at = 0;
        for (size_t i = 1; i < n; i++)
            if (r->rank[r->ready[i]] < r->rank[r->ready[at]])
                at = i;
        uint32_t i = r->ready[at];
        r->ready[at] = r->ready[--n];
        r->work += 1 + n / 16;
        if (!ds__cycle_put(r, i, k, turn, grid))
            return -1;
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        int64_t over = r->start[i] + r->held[i] + (route ? route->latency_ns : 0);
        if (over > end)
            end = over;
        for (uint32_t l = d->step[i].next; l != DS__NONE; l = d->link[l].next) {
            uint32_t f = d->link[l].step;
            if (over > r->start[f])
                r->start[f] = over;
            if (!--r->need[f])
                r->ready[n++] = f;
        }
    }
    return done == r->steps ? end : -1;
}

/* Computes the step's `held`, and adds its load to that of its orbits, which are in r->start.
   Returns the largest load among them. */
static int64_t ds__cycle_load(ds__cycle *r, uint32_t i, size_t k) {
    const ds_topology *t = r->d->t;
    const ds__dstep *s = &r->d->step[i];
    const ds__troute *route = ds__step_route(r->d, s);
    double bytes = (double)ds__cycle_bytes(r, i, k);
    int64_t *own = &r->start[ds__cycle_own(r, s, route)];
    r->held[i] = route ? t->start_ns + ds__cost_ns(bytes, route->rate)
                       : ds__cost_ns(bytes * (s->from_count + 1), t->memory);
    *own += r->held[i];
    int64_t most = *own / (route ? t->engines : 1);
    for (size_t h = 0; route && h < route->hops; h++) {
        int64_t *wire = &r->start[route->wire[h]];
        *wire += ds__cost_ns(bytes, t->wire[route->wire[h]]);
        if (*wire > most)
            most = *wire;
    }
    return most;
}

/* Finds the longest arc of the busiest wires, whose load is about `most`. */
static void ds__cycle_grid_find(ds__cycle *r, size_t k, int64_t most) {
    const ds_topology *t = r->d->t;
    r->grid = 1;
    for (uint32_t i = 0; i < r->steps; i++) {
        const ds__troute *route = ds__step_route(r->d, &r->d->step[i]);
        for (size_t h = 0; route && h < route->hops; h++) {
            int64_t ns = ds__cost_ns((double)ds__cycle_bytes(r, i, k), t->wire[route->wire[h]]);
            if (r->start[route->wire[h]] >= most - most / 16 && ns > r->grid)
                r->grid = ns;
        }
    }
}

/* Returns the time of the busiest wire, engine or memory in a round of k pieces. */
static int64_t ds__cycle_least(ds__cycle *r, size_t k) {
    int64_t most = 1;
    for (size_t i = 0; i < r->lines; i++) {
        r->orbit[i].arcs = 0;
        r->start[i] = 0;
    }
    for (uint32_t i = 0; i < r->steps; i++) {
        int64_t load = ds__cycle_load(r, i, k);
        if (load > most)
            most = load;
    }
    ds__cycle_grid_find(r, k, most);
    return most;
}

/* The order is the best so far. */
static void ds__cycle_keep(ds__cycle *r, size_t k, int64_t turn, int64_t end) {
    r->pieces = k;
    r->turn = turn;
    r->end = end;
    memcpy(r->best, r->start, r->steps * sizeof *r->best);
    memcpy(r->rank_best, r->rank, r->steps * sizeof *r->rank);
}

/* Returns the time of all rounds in the best order. */
static int64_t ds__cycle_time(const ds__cycle *r) {
    return r->pieces ? r->end + (int64_t)(r->pieces - 1) * r->turn : INT64_MAX;
}

/* Tries the order of `rank` with k pieces on longer and longer circles, and keeps the fastest
   result. Steps start at multiples of `grid`. */
static void ds__cycle_order_on(ds__cycle *r, size_t k, int64_t least, int64_t path, int64_t grid) {
    for (int more = 0; more <= 32; more = more ? 2 * more : 1) {
        int64_t turn = (least + least * more / 64 + grid - 1) / grid * grid;
        if (path + (int64_t)(k - 1) * turn >= ds__cycle_time(r))
            return;
        int64_t end = ds__cycle_try(r, k, turn, grid);
        if (end < 0)
            continue;
        if (end + (int64_t)(k - 1) * turn < ds__cycle_time(r))
            ds__cycle_keep(r, k, turn, end);
        return;
    }
}

/* Tries the order of `rank` with k pieces: at multiples of the longest arc, since the busiest wires
   are full only if their arcs are adjacent, and at any time. `least` and `path`: the results of
   ds__cycle_least and ds__cycle_path. */
static void ds__cycle_order(ds__cycle *r, size_t k, int64_t least, int64_t path) {
    ds__cycle_order_on(r, k, least, path, r->grid);
    if (r->grid > 1)
        ds__cycle_order_on(r, k, least, path, 1);
}

/* Returns the time of the longest chain of dependent steps of a round, and sets `tail`. */
static int64_t ds__cycle_path(ds__cycle *r) {
    const ds__draft *d = r->d;
    int64_t most = 0;
    for (size_t i = r->steps; i-- > 0;) { /* steps come after those that they wait for */
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        int64_t rest = 0;
        for (uint32_t l = d->step[i].next; l != DS__NONE; l = d->link[l].next)
            if (r->tail[d->link[l].step] > rest)
                rest = r->tail[d->link[l].step];
        r->tail[i] = rest + r->held[i] + (route ? route->latency_ns : 0);
        if (r->tail[i] > most)
            most = r->tail[i];
    }
    return most;
}

/* Gives each orbit room for the arcs of all steps that use it. Returns 0 if memory is exhausted. */
static int ds__cycle_arcs_init(ds__cycle *r) {
    const ds__draft *d = r->d;
    size_t arcs = 0;
    for (uint32_t i = 0; i < d->steps; i++) {
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        size_t own = ds__cycle_own(r, &d->step[i], route);
        size_t engines = route ? (size_t)d->t->engines : 1;
        for (size_t h = 0; route && h < route->hops; h++)
            r->orbit[route->wire[h]].arcs++;
        for (size_t e = 0; e < engines; e++)
            r->orbit[own + e].arcs++;
    }
    for (size_t i = 0; i < r->lines; i++)
        arcs += r->orbit[i].arcs;
    r->arc = ds__host_alloc((arcs + 1) * sizeof *r->arc);
    if (!r->arc)
        return 0;
    arcs = 0;
    for (size_t i = 0; i < r->lines; i++) {
        r->orbit[i].arc = r->arc + arcs;
        arcs += r->orbit[i].arcs;
    }
    return 1;
}

/* Prepares a search for the steps of the draft, which are one round. The memory of `r` is zero.
   Returns 0 if memory is exhausted. */
static int ds__cycle_init(ds__cycle *r, ds__draft *d) {
    size_t ranks = (size_t)d->p + 1;
    r->d = d;
    r->seed = 1;
    r->steps = d->steps;
    r->wires = (size_t)d->t->wires;
    r->lines = r->wires + ranks * (size_t)d->t->engines + ranks;
    size_t n = r->steps > r->lines ? r->steps : r->lines;
    r->orbit = ds__host_alloc(r->lines * sizeof *r->orbit);
    r->start = ds__host_alloc(4 * n * sizeof *r->start);
    r->rank = ds__host_alloc(2 * n * sizeof *r->rank);
    r->need = ds__host_alloc(2 * n * sizeof *r->need);
    if (!r->orbit || !r->start || !r->rank || !r->need)
        return 0;
    r->best = r->start + n;
    r->held = r->best + n;
    r->tail = r->held + n;
    r->rank_best = r->rank + n;
    r->ready = r->need + n;
    return ds__cycle_arcs_init(r);
}

static void ds__cycle_deinit(ds__cycle *r) {
    ds__host_free(r->orbit);
    ds__host_free(r->start);
    ds__host_free(r->rank);
    ds__host_free(r->need);
    ds__host_free(r->arc);
}

enum { DS__CYCLE_BY_KEY, DS__CYCLE_BY_TAIL, DS__CYCLE_AS_MADE, DS__CYCLE_ORDERS };

/* Sets `rank` to one of the orders that are tried first. */
static void ds__cycle_rank_set(ds__cycle *r, int order) {
    for (uint32_t i = 0; i < r->steps; i++) {
        if (order == DS__CYCLE_BY_KEY)
            r->rank[i] = (double)r->d->step[i].key;
        else if (order == DS__CYCLE_BY_TAIL)
            r->rank[i] = -(double)r->tail[i];
        else
            r->rank[i] = (double)i;
    }
}

/* Tries an order with all numbers of pieces; if there is a best number, only with those near
   it. */
static void ds__cycle_try_counts(ds__cycle *r, int order) {
    static const size_t counts[] = { 2,  3,  4,  5,  6,  8,   10,  12,  14,  16,  20,  24,  28,  32,
                                     40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024 };
    const ds__draft *d = r->d;
    for (size_t n = 0; n < sizeof counts / sizeof counts[0] && r->work < r->work_most; n++) {
        size_t k = counts[n];
        if (r->copies * k > DS__PLAN_STEPS / 2 || d->want->bytes / ((size_t)d->ways * k) < 1024)
            break;
        if (order && (k < r->pieces / 2 || k > r->pieces * 2))
            continue;
        int64_t least = ds__cycle_least(r, k);
        int64_t path = ds__cycle_path(r);
        int64_t fastest = path + (int64_t)(k - 1) * least;
        if (fastest >= ds__cycle_time(r) || fastest >= r->enough)
            continue;
        ds__cycle_rank_set(r, order);
        ds__cycle_order(r, k, least, path);
    }
}

/* Changes the best order at random until it is as fast as possible or the work is used up. */
static void ds__cycle_improve(ds__cycle *r) {
    int64_t least = ds__cycle_least(r, r->pieces);
    int64_t path = ds__cycle_path(r);
    int64_t fastest = path + (int64_t)(r->pieces - 1) * least;
    while (r->work < r->work_most && ds__cycle_time(r) > fastest) {
        memcpy(r->rank, r->rank_best, r->steps * sizeof *r->rank);
        for (int i = 0; i < 3; i++) {
            double x = r->rank[ds__cycle_any(r) % r->steps];
            r->rank[ds__cycle_any(r) % r->steps] = x;
        }
        ds__cycle_order(r, r->pieces, least, path);
    }
}

/* Returns the longest time in the best order from the end of a copy or sum to the end of a step
   that depends on it. */
static int64_t ds__cycle_life(const ds__cycle *r) {
    const ds__draft *d = r->d;
    int64_t longest = 0;
    for (uint32_t i = 0; i < r->steps; i++) {
        const ds__troute *route = ds__step_route(d, &d->step[i]);
        int64_t done = r->best[i] + r->held[i] + (route ? route->latency_ns : 0);
        for (uint32_t k = d->step[i].after; k != DS__NONE; k = d->link[k].next)
            if (done - r->best[d->link[k].step] > longest)
                longest = done - r->best[d->link[k].step];
    }
    return longest;
}

/* Makes all pieces, with rings that are as long as the best order needs. Returns 0 if they are too
   long, or if memory or steps are exhausted. */
static int ds__cycle_emit(const ds__cycle *r) {
    ds__draft *d = r->d;
    size_t slots = d->slots;
    d->slots = (size_t)(ds__cycle_life(r) / r->turn) + 3;
    int ok = d->slots <= 64 && ds__pieces_emit(d, r->pieces, 0);
    d->slots = slots;
    return ok;
}

/* Gives the steps of all pieces their times of the schedule. */
static void ds__cycle_times_set(const ds__cycle *r) {
    ds__draft *d = r->d;
    size_t first = 0; /* of the flow, in a round */
    for (size_t f = 0; f < d->flows; f++) {
        const ds__flow *w = &d->flow[f];
        size_t end = f + 1 < d->flows ? d->flow[f + 1].first : d->steps;
        for (size_t i = w->first; i < end; i++) {
            ds__dstep *s = &d->step[i];
            const ds__troute *route = ds__step_route(d, s);
            s->start = r->best[first + (i - w->first) % w->each] +
                       (int64_t)((i - w->first) / w->each) * r->turn;
            int64_t ns = route ? d->t->start_ns + ds__cost_ns((double)s->bytes, route->rate) +
                                     route->latency_ns
                               : ds__memory_ns(d, s);
            s->done = s->start + ns;
            s->key = (uint64_t)s->start;
        }
        first += w->each;
    }
}

/* Finds the best of some orders and numbers of pieces for the flows of the draft, and predicts it.
   `copies`: those of a piece; `work`: the steps that may be put on circles. Returns 0 if no result
   takes less than `enough`. */
static int ds__cycle_build(ds__draft *d, int64_t enough, size_t copies, size_t work) {
    ds__cycle r = { .copies = copies, .work_most = work, .enough = enough };
    int ok = 0;
    if (!ds__pieces_emit(d, 1, 0))
        return 0;
    size_t links = d->links;
    if (d->steps && ds__cost_followers_count(d, 0) && ds__cycle_init(&r, d)) {
        for (int order = 0; order < DS__CYCLE_ORDERS; order++)
            ds__cycle_try_counts(&r, order);
        if (r.pieces && ds__cycle_time(&r) < enough + enough / 8)
            ds__cycle_improve(&r);
        ok = r.pieces && ds__cycle_time(&r) < enough;
    }
    d->links = links;
    ok = ok && ds__cycle_emit(&r);
    if (ok)
        ds__cycle_times_set(&r);
    ok = ok && ds__schedule_sort(d) && ds__settle_plan(d) && ds__cost_predict(d);
    ds__cycle_deinit(&r);
    return ok;
}

/* plan/tree.h - trees of copies.

   Describes an algorithm (ds__algo) and makes trees from it: chains, heaps of any arity, stars,
   and trees that go from group to group (ds__tree_build). ds__tree_add adds an empty tree to a
   draft, ds__tree_line_build sorts the ranks by their distance from the root.

   Invariants: a tree has an entry for each rank and a last one for the host. An entry is the
   parent, DS__ALONE for the root, or DS__APART for a node outside the tree. A tree is named by
   its index in d->tree, because a new tree may move the array.
   Locks: none.
   Threads: the thread that makes the plan. */

/* How trees are made. A group is all ranks (level 0), those of one switch (1) or of one side of
   the slow links (2). */
enum { DS__WITH_TREES, DS__WITH_MESH, DS__WITH_HOST, DS__WITH_WIRES, DS__WITH_GRID };

enum { DS__ROOTED, DS__BY_OWNERS, DS__IN_LIST, DS__ONE_SHOT };

/* Copies between groups: from group to group; from the root's group to all others; from each rank
   of the root's group to one of each other group. */
enum { DS__GROUPS_CHAIN, DS__GROUPS_STAR, DS__GROUPS_TWINS };

typedef struct ds__algo {
    const char *name;
    int with; /* DS__WITH_* */
    int mode; /* DS__ROOTED...: which ranks sum */
    int level;
    int ways;
    int arity; /* copies that each node makes */
    /* the root copies to its group itself, else through a member that differs from way to way */
    int own;
    int shape; /* DS__GROUPS_*: from group to group */
} ds__algo;

static ptrdiff_t ds__tree_add(ds__draft *d, int root) {
    ptrdiff_t at = (ptrdiff_t)d->trees;
    size_t n = (size_t)d->p + 1;
    while (!d->failed && d->trees + n > d->tree_room) { /* room for all at once */
        size_t full = d->tree_room;
        int *grown = ds__array_add(&d->tree, full, &d->tree_room, sizeof *d->tree);
        if (!grown)
            d->failed = 1;
    }
    for (size_t i = 0; i < n && !d->failed; i++)
        d->tree[d->trees++] = i == (size_t)root ? DS__ALONE : DS__APART;
    return at;
}

static void ds__tree_groups_of(const ds_topology *t, int level, int *group) {
    memcpy(group, t->group[level], (size_t)t->devices * sizeof *group);
}

/* The ranks, those of a switch and of a side together, the root and those near to it first. */
static void ds__tree_line_build(const ds__draft *d, int root, int *line) {
    int island[DS__TOPOLOGY_MAX];
    int side[DS__TOPOLOGY_MAX];
    int n = d->p;
    ds__tree_groups_of(d->t, 1, island);
    ds__tree_groups_of(d->t, 2, side);
    for (int i = 0; i < n; i++) {
        int v = (root + i) % n;
        int at = i;
        for (; at > 0; at--) {
            int u = line[at - 1];
            int a = side[u] == side[root] ? -1 : side[u];
            int b = side[v] == side[root] ? -1 : side[v];
            if (a == b) {
                a = island[u] == island[root] ? -1 : island[u];
                b = island[v] == island[root] ? -1 : island[v];
            }
            if (a <= b)
                break;
            line[at] = u;
        }
        line[at] = v;
    }
}

/* A group of ranks in a tree, nearest to the root first. */
typedef struct ds__tree_group {
    int first; /* of its ranks in the line */
    int size;
    int entry; /* the member that gets the data from another group */
} ds__tree_group;

/* A tree that is made from group to group. */
typedef struct ds__tree_maker {
    const ds__algo *a;
    int *tree;
    int root;
    int j;     /* the number of the tree among those of the root */
    int alone; /* 1: the root copies to its group itself */
    int shift; /* roots of one group take different ways */
    int groups;
    int line[DS__TOPOLOGY_MAX];
    ds__tree_group group[DS__TOPOLOGY_MAX];
} ds__tree_maker;

/* Makes a heap of the members of a group: the parent of its entry is given. `skip`: copies that
   the entry makes to other groups. */
static void ds__tree_heap_add(const ds__tree_maker *m, const int *member, int count, int entry,
                              int parent, int skip) {
    int arity = m->a->arity;
    int top = arity > skip ? arity - skip : 1;
    for (int i = 0; i < count; i++) {
        int from = 0;
        if (i > top)
            from = 1 + (i - 1 - top) / arity;
        int above = i ? member[(entry + from) % count] : parent;
        m->tree[member[(entry + i) % count]] = above;
    }
}

/* Returns the member that gets the data from another group: of n members, another for each way. */
static int ds__tree_entry(const ds__tree_maker *m, int n) {
    int way = m->a->ways >= n ? m->j % n : m->j * n / m->a->ways;
    return (way + m->shift) % n;
}

/* Returns the rank that copies to group g: the entry of the group before, or of the root's. */
static int ds__tree_parent(const ds__tree_maker *m, int g) {
    int via = m->a->shape == DS__GROUPS_CHAIN ? g - 1 : 0;
    const ds__tree_group *o = &m->group[via];
    int lead = via == 0 && !m->alone;
    return m->line[o->first + lead + o->entry];
}

/* Returns how many copies to other groups the entry of group g makes. */
static int ds__tree_skip(const ds__tree_maker *m, int g) {
    if (m->a->shape == DS__GROUPS_CHAIN)
        return g + 1 < m->groups;
    if (g || m->groups == 1)
        return 0;
    return m->a->shape == DS__GROUPS_STAR ? m->groups - 1 : 1;
}

/* Adds the members of group g to the tree. */
static void ds__tree_group_add(ds__tree_maker *m, int g) {
    ds__tree_group *o = &m->group[g];
    int lead = g == 0 && !m->alone;
    int n = o->size - lead;
    int *member = m->line + o->first + lead;
    int parent = m->root;
    o->entry = g == 0 && m->alone ? 0 : ds__tree_entry(m, n);
    if (g && m->a->shape == DS__GROUPS_TWINS) {
        for (int i = 0; i < n; i++)
            m->tree[member[i]] = m->line[i % m->group[0].size];
        return;
    }
    if (g)
        parent = ds__tree_parent(m, g);
    else if (m->alone)
        parent = DS__ALONE;
    ds__tree_heap_add(m, member, n, o->entry, parent, ds__tree_skip(m, g));
}

/* Returns the j-th tree from a root; -1 if memory is exhausted. */
static ptrdiff_t ds__tree_build(ds__draft *d, const ds__algo *a, int root, int j) {
    int group[DS__TOPOLOGY_MAX];
    ds__tree_maker m;
    ptrdiff_t at = ds__tree_add(d, root);
    if (d->failed)
        return -1;
    int *tree = d->tree + at;
    if (a->with == DS__WITH_HOST) {
        for (int i = 0; i < d->p; i++)
            tree[i] = i == root ? DS__ALONE : d->p;
        tree[d->p] = root;
        return at;
    }

    ds__tree_groups_of(d->t, a->level, group);
    ds__tree_line_build(d, root, m.line);
    m.groups = 0;
    for (int i = 0; i < d->p; i++) {
        if (i == 0 || group[m.line[i]] != group[m.line[i - 1]])
            m.group[m.groups++] = (ds__tree_group){ i, 0, 0 };
        m.group[m.groups - 1].size++;
    }
    m.shift = 0;
    for (int i = 0; i < root; i++)
        m.shift += group[i] == group[root];
    m.a = a;
    m.tree = tree;
    m.root = root;
    m.j = j;
    m.alone = a->own || m.group[0].size == 1;
    for (int g = 0; g < m.groups; g++)
        ds__tree_group_add(&m, g);
    return at;
}

/* plan/mesh.h - trees on a mesh of direct links.

   Makes as many trees from a root as possible on devices that are joined by links of their own
   (ds__mesh_init, ds__mesh_trees). The number of trees is that of the links through the
   narrowest cut (Edmonds). The construction follows Lovasz's proof: an edge is taken if the
   remaining edges still reach every node often enough. Edges that trees of other roots have
   used less come first. ds__in_order tells whether a tree may be used for sums.

   Invariants: a mesh has 2 to DS__MESH ranks. Link rates are whole units, chosen such that
   there are at most as many trees as requested. All trees of a root together use a link at most
   as often as it has units.
   Locks: none.
   Threads: the thread that makes the plan. */

#define DS__MESH 16

/* The direct links between devices. */
typedef struct ds__mesh {
    int p;
    int cap[DS__MESH][DS__MESH];  /* rate in units */
    int used[DS__MESH][DS__MESH]; /* number of trees, of all roots */
} ds__mesh;

/* Returns the maximum flow between two ranks, or `enough` if the flow is larger. */
static int ds__mesh_flow(const ds__mesh *m, int from, int to, int enough) {
    int cap[DS__MESH][DS__MESH];
    int back[DS__MESH];
    int queue[DS__MESH];
    int flow = 0;
    memcpy(cap, m->cap, sizeof cap);
    for (; flow < enough; flow++) {
        int head = 0;
        int tail = 0;
        for (int i = 0; i < m->p; i++)
            back[i] = -1;
        back[from] = from;
        queue[tail++] = from;
        while (head < tail && back[to] < 0) {
            int u = queue[head++];
            for (int v = 0; v < m->p; v++)
                if (back[v] < 0 && cap[u][v] > 0) {
                    back[v] = u;
                    queue[tail++] = v;
                }
        }
        if (back[to] < 0)
            break;
        for (int v = to; v != from; v = back[v]) {
            cap[back[v]][v]--;
            cap[v][back[v]]++;
        }
    }
    return flow;
}

/* Returns the narrowest cut between the root and another rank, or `enough` if the cut is wider. */
static int ds__mesh_cut(const ds__mesh *m, int root, int enough) {
    for (int v = 0; v < m->p; v++)
        if (v != root)
            enough = ds__mesh_flow(m, root, v, enough);
    return enough;
}

/* Returns the rate of a direct link from i to k in bytes per second, or 0. */
static double ds__mesh_link_rate(const ds_topology *t, int i, int k) {
    const ds__troute *r = ds__route_of(t, i, k);
    return i != k && r->direct && r->hops == 1 ? r->rate : 0;
}

/* Sets the links' rates in units of so many bytes per second. Returns the narrowest cut of all
   roots. */
static int ds__mesh_unit_set(ds__mesh *m, const ds_topology *t, double unit) {
    int cut = INT32_MAX;
    for (int i = 0; i < m->p; i++)
        for (int k = 0; k < m->p; k++) {
            double units = ds__mesh_link_rate(t, i, k) / unit + 1e-6;
            m->cap[i][k] = units > 1000 ? 1000 : (int)units; /* `units` may exceed an int */
        }
    for (int i = 0; i < m->p; i++) {
        int c = ds__mesh_cut(m, i, 1000);
        if (c < cut)
            cut = c;
    }
    return cut;
}

/* Makes the mesh of a topology, in units that allow at most so many trees of a root. Returns the
   number of trees; 0: the links are no mesh. */
static int ds__mesh_init(const ds_topology *t, ds__mesh *m, int most) {
    double unit = 1e300;
    memset(m, 0, sizeof *m);
    m->p = t->devices;
    if (m->p > DS__MESH || m->p < 2)
        return 0;
    for (int i = 0; i < m->p; i++)
        for (int k = 0; k < m->p; k++) {
            double rate = ds__mesh_link_rate(t, i, k);
            if (rate > 0 && rate < unit)
                unit = rate;
        }
    for (int tries = 0; tries < 7; tries++) {
        int cut = ds__mesh_unit_set(m, t, unit);
        if (cut <= most)
            return cut;
        double coarser = (double)(cut + most) / (2.0 * most);
        unit *= coarser > 1.1 ? coarser : 1.1;
    }
    return 0;
}

/* A tree on a mesh that is being made. */
typedef struct ds__mesh_growth {
    ds__mesh *mesh;
    ds__mesh left; /* links that no tree of the root uses */
    int *tree;
    int depth[DS__MESH];
    char tried[DS__MESH][DS__MESH]; /* 1: without this link, later trees lack links */
} ds__mesh_growth;

/* Returns 1 if the link from u to v is better for the tree than another one: nearer to the root, or
   used by fewer trees in relation to its rate. */
static int ds__mesh_link_is_better(const ds__mesh_growth *g, int u, int v, int other_u,
                                   int other_v) {
    const ds__mesh *m = g->mesh;
    if (g->depth[u] != g->depth[other_u])
        return g->depth[u] < g->depth[other_u];
    return m->used[u][v] * m->cap[other_u][other_v] < m->used[other_u][other_v] * m->cap[u][v];
}

/* Finds the best link from the tree to a rank outside that was not tried. Returns 0 if there is
   none. */
static int ds__mesh_link_find(const ds__mesh_growth *g, int *from, int *to) {
    int found = 0;
    for (int u = 0; u < g->mesh->p; u++)
        for (int v = 0; v < g->mesh->p; v++) {
            if (g->tree[u] == DS__APART || g->tree[v] != DS__APART || g->left.cap[u][v] < 1 ||
                g->tried[u][v])
                continue;
            if (found && !ds__mesh_link_is_better(g, u, v, *from, *to))
                continue;
            *from = u;
            *to = v;
            found = 1;
        }
    return found;
}

/* Adds one rank to the tree of a root, so that `more` trees remain possible. Returns 0 if no link
   allows that. */
static int ds__mesh_tree_grow(ds__mesh_growth *g, int root, int more) {
    int u = 0;
    int v = 0;
    memset(g->tried, 0, sizeof g->tried);
    while (ds__mesh_link_find(g, &u, &v)) {
        g->tried[u][v] = 1;
        g->left.cap[u][v]--;
        if (ds__mesh_cut(&g->left, root, more) >= more) {
            g->tree[v] = u;
            g->depth[v] = g->depth[u] + 1;
            g->mesh->used[u][v]++;
            return 1;
        }
        g->left.cap[u][v]++;
    }
    return 0;
}

/* Makes `count` trees from a root that together use no link more often than it has units. Returns 0
   if it cannot, or if memory is exhausted. */
static int ds__mesh_trees(ds__draft *d, ds__mesh *m, int root, int count, ptrdiff_t *out) {
    ds__mesh_growth g = { .mesh = m, .left = *m };
    for (int j = 0; j < count; j++) {
        out[j] = ds__tree_add(d, root);
        if (d->failed)
            return 0;
        g.tree = d->tree + out[j];
        for (int n = 1; n < m->p; n++)
            if (!ds__mesh_tree_grow(&g, root, count - j - 1))
                return 0;
    }
    return 1;
}

/* Returns 1 if the requested order permits the sums of a tree. */
static int ds__in_order(const ds__draft *d, ptrdiff_t at) {
    const int *tree = d->tree + at;
    int n = d->p + 1;
    int order[DS__TOPOLOGY_MAX + 1];
    int low[DS__TOPOLOGY_MAX + 1];
    int high[DS__TOPOLOGY_MAX + 1];
    int size[DS__TOPOLOGY_MAX + 1];
    int count = ds__by_depth(tree, n, order);
    int children = 0;
    for (int v = 0; v < n; v++)
        children += tree[v] == d->p;
    /* the host cannot sum */
    if (children > 1)
        return 0;
    if (d->want->order == DS_ORDER_ANY)
        return 1;
    for (int i = count - 1; i >= 0; i--) {
        int v = order[i];
        int own = v < d->p;
        int items = own;
        low[v] = high[v] = v;
        size[v] = own;
        if (!own) {
            low[v] = n;
            high[v] = -1;
        }
        for (int j = i + 1; j < count; j++) {
            int u = order[j];
            if (tree[u] != v)
                continue;
            items++;
            if (low[u] < low[v])
                low[v] = low[u];
            if (high[u] > high[v])
                high[v] = high[u];
            size[v] += size[u];
        }
        /* A sum below the root must be that of the first ranks. It is then the first operand of
           its parent, and the only sum among the operands. */
        if (items > 1 && tree[v] >= 0 &&
            (low[v] != 0 || high[v] + 1 != size[v] || d->want->order == DS_ORDER_AT_ONCE))
            return 0;
    }
    return 1;
}

/* plan/flow.h - flows and lists of groups.

   Adds flows to a draft (ds__flow_add) and takes a path out of a tree (ds__flow_path_find).
   ds__list_tree makes trees that sum in the order of the ranks, from group to group.
   ds__flows_leads uses them for sums over many ranks.

   Invariants: an empty flow is not added. Trees are named by their index in d->tree. In
   ds__flows_leads each group, or part of a group, has at least one lead.
   Locks: none.
   Threads: the thread that makes the plan. */

/* Adds a flow of a part of the bytes. `in` and `out` of the flow are where the bytes lie of which
   `part` is a part. An empty part is left out. */
static void ds__flow_add(ds__draft *d, ds__extent part, ds__flow flow) {
    if (part.end <= part.begin || d->failed)
        return;
    ds__flow *f = DS__ADD(d, flow);
    if (!f)
        return;
    flow.bytes = part.end - part.begin;
    flow.in += part.begin;
    flow.out += part.begin;
    flow.parts = 1;
    *f = flow;
}

/* Returns the path from the root of a tree to a node as a tree of its own, forwards or
   backwards. */
static ptrdiff_t ds__flow_path_find(ds__draft *d, ptrdiff_t tree, int to, int backwards) {
    int root = to;
    if (d->failed)
        return -1;
    while (d->tree[tree + root] >= 0)
        root = d->tree[tree + root];
    ptrdiff_t at = ds__tree_add(d, backwards ? to : root);
    for (int v = to; !d->failed && v != root; v = d->tree[tree + v]) {
        if (backwards)
            d->tree[at + d->tree[tree + v]] = v;
        else
            d->tree[at + v] = d->tree[tree + v];
    }
    return at;
}

/* Returns a tree of the owner and one more rank that it copies to, if that is another. */
static ptrdiff_t ds__tree_of_two(ds__draft *d, int owner, int to) {
    ptrdiff_t at = ds__tree_add(d, owner);
    if (!d->failed && owner != to)
        d->tree[at + to] = owner;
    return at;
}

/* Returns how many neighbours of rank i, with itself, are in its part of its group. A group is
   cut into `split` parts. */
static int ds__list_run(const ds__draft *d, const int *group, int i, int split) {
    const int *seat = d->t->seat;
    int n = 1;
    while (i + n < d->p && group[i + n] == group[i]) {
        int part = seat[i] * split / d->largest;
        if (split >= 2 && seat[i + n] * split / d->largest != part)
            break;
        n++;
    }
    return n;
}

/* Sums in the order of the list over groups of neighbours, each cut into `split`. Each group adds
   its own sum to the sum of the groups before. A member of the last one is the owner. */
static ptrdiff_t ds__list_tree(ds__draft *d, const ds__algo *a, int j, int split, int *owner) {
    int group[DS__TOPOLOGY_MAX];
    int before = -1;
    ds__tree_groups_of(d->t, a->level, group);
    ptrdiff_t at = ds__tree_add(d, -1);
    for (int i = 0; i < d->p && !d->failed;) {
        int n = a->level ? ds__list_run(d, group, i, split) : 1;
        int lead = i + j % n;
        for (int k = i; k < i + n; k++)
            d->tree[at + k] = lead;
        d->tree[at + lead] = DS__ALONE;
        if (before >= 0)
            d->tree[at + before] = lead;
        before = *owner = lead;
        i += n;
    }
    return at;
}

/* Leads that sum slices for many ranks. */
typedef struct ds__leads {
    int count; /* of each part of a group, hence of slices */
    int each;  /* blocks of a slice in reduce_scatter */
    int spare; /* the lead that is skipped, since it is the root of a reduce */
    int split; /* parts of a group */
} ds__leads;

/* Chooses the leads. Returns 0 if a part of the largest group has none, or if the ranks cannot be
   divided among them. */
static int ds__leads_init(ds__leads *o, const ds__draft *d, int split) {
    const ds_plan_desc *w = d->want;
    int p = d->p;
    int rooted = w->what == DS_REDUCE;
    int run = d->largest / split;
    int n = run - rooted;
    if (n < 1)
        return 0;
    int each = p / n;
    int spare = rooted ? d->t->seat[w->root] % run : n;
    if (split > 1 && (d->largest % split || p % d->largest))
        return 0;
    if (w->what == DS_REDUCE_SCATTER && (p % n || each < 2))
        return 0;
    *o = (ds__leads){ n, each, spare, split };
    return 1;
}

/* Returns the tree from the owner of a slice to the root, through the member of the root's group
   that has the owner's seat. */
static ptrdiff_t ds__leads_to_root(ds__draft *d, int owner) {
    const int *island = d->t->island;
    const int *seat = d->t->seat;
    int root = d->want->root;
    int via = owner;
    ptrdiff_t down = ds__tree_add(d, owner);
    for (int i = 0; i < d->p && island[owner] != island[root]; i++)
        if (island[i] == island[root] && seat[i] == seat[owner])
            via = i;
    if (!d->failed && via != owner)
        d->tree[down + via] = owner;
    if (!d->failed && via != root)
        d->tree[down + root] = via;
    return down;
}

/* Returns the first of the adjacent trees from the owner to each rank of a slice. */
static ptrdiff_t ds__leads_to_blocks(ds__draft *d, const ds__leads *o, int j, int owner) {
    ptrdiff_t down = (ptrdiff_t)d->trees;
    for (int i = j * o->each; i < (j + 1) * o->each && !d->failed; i++)
        (void)ds__tree_of_two(d, owner, i);
    return down;
}

/* Adds the flow of the j-th slice. Returns 0 if the order of the sums forbids its tree. */
static int ds__leads_add(ds__draft *d, const ds__leads *o, int j) {
    static const ds__algo star = { NULL, DS__WITH_TREES, DS__ROOTED, 1,
                                   1,    1 << 20,        1,          DS__GROUPS_CHAIN };
    const ds_plan_desc *w = d->want;
    ds__algo level = { NULL, DS__WITH_TREES, DS__IN_LIST, 1, o->count, 1, 0, 0 };
    ds__flow flow = { .owner = 0 };
    flow.up = ds__list_tree(d, &level, j + (j >= o->spare), o->split, &flow.owner);
    ds__extent part = ds__slice_span(w, w->bytes, (size_t)j, (size_t)o->count);
    if (d->failed || !ds__in_order(d, flow.up))
        return 0;

    if (w->what == DS_ALL_REDUCE) {
        flow.dest = -1;
        flow.down = ds__tree_build(d, &star, flow.owner, 0);
    } else if (w->what == DS_REDUCE) {
        flow.dest = w->root;
        flow.down = ds__leads_to_root(d, flow.owner);
    } else {
        part.begin = ds__emit_block_of(w, (size_t)(j * o->each), (size_t)d->p);
        part.end = ds__emit_block_of(w, (size_t)((j + 1) * o->each), (size_t)d->p);
        flow.dest = j * o->each;
        flow.down = ds__leads_to_blocks(d, o, j, flow.owner);
    }

    size_t flows = d->flows;
    ds__flow_add(d, part, flow);
    if (w->what == DS_REDUCE_SCATTER && d->flows > flows)
        d->flow[flows].parts = o->each;
    return 1;
}

/* Many ranks: slices are summed in the order of the list from group to group, each by the leads
   that have the same seat, and go on from the last one. The root of a reduce leads nothing,
   since it gets all results. A group may be cut into several: then there are fewer slices, hence
   fewer copies for as many pieces. Returns 0 if a part of the largest group has no lead. */
static int ds__flows_leads(ds__draft *d, int split) {
    ds__leads leads;
    if (!ds__leads_init(&leads, d, split))
        return 0;
    d->ways = leads.count;
    for (int j = 0; j < leads.count; j++)
        if (!ds__leads_add(d, &leads, j))
            return 0;
    return !d->failed;
}

/* plan/packed_tree.h - trees by the load of the wires.

   Makes trees and paths over any topology of at most DS__MESH ranks, one after the other
   (ds__pack_flows). Each takes the cheapest routes; a route costs more if its wires are already
   busy for longer. Then each tree is made again, with the load of all others known. Data may
   pass through ranks and host memory.

   Invariants: k.load is the time for which the trees of all wants use each wire. The trees of
   the wants are adjacent in d->tree, so the best state of all is one copy. The trees of the
   pass with the least load of the busiest wire are used. Sums need DS_ORDER_ANY, and the host
   never sums.
   Locks: none.
   Threads: the thread that makes the plan. */

typedef struct ds__pack {
    ds__draft *d;
    double *load; /* seconds of each wire */
    double whole; /* seconds that a load may be */
    int n;
} ds__pack;

/* What a tree is wanted for. */
typedef struct ds__want {
    int root;
    int to; /* a rank, or -1: all */
    int up;
    double bytes;
    ptrdiff_t tree;
} ds__want;

static const ds__troute *ds__pack_route(const ds__pack *k, int u, int v, int up) {
    const ds__troute *r = up ? ds__route_of(k->d->t, v, u) : ds__route_of(k->d->t, u, v);
    return r->hops && (r->direct || u == k->d->p || v == k->d->p) ? r : NULL;
}

static double ds__pack_cost(const ds__pack *k, const ds__troute *r, double bytes) {
    double cost = 1e-4 + (double)r->latency_ns * 1e-9;
    for (size_t h = 0; h < r->hops; h++) {
        double more = bytes / k->d->t->wire[r->wire[h]] / k->whole;
        double x = k->load[r->wire[h]] / k->whole;
        double y = x + more;
        x *= x;
        x *= x;
        y *= y;
        y *= y;
        cost += y * y - x * x + more * 1e-3;
    }
    return cost;
}

static void ds__pack_add(const ds__pack *k, const ds__want *w, double sign) {
    const int *tree = k->d->tree + w->tree;
    for (int v = 0; v < k->n; v++) {
        if (tree[v] < 0)
            continue;
        const ds__troute *r = ds__pack_route(k, tree[v], v, w->up);
        for (size_t h = 0; h < r->hops; h++)
            k->load[r->wire[h]] += sign * w->bytes / k->d->t->wire[r->wire[h]];
    }
}

/* A search for the cheapest path from the nodes of a tree to one more rank. */
typedef struct ds__pack_search {
    double cost[DS__MESH + 1];
    int from[DS__MESH + 1]; /* the node before, or -1 */
    int done[DS__MESH + 1];
} ds__pack_search;

static void ds__pack_search_init(const ds__pack *k, const ds__want *w, ds__pack_search *s) {
    const int *tree = k->d->tree + w->tree;
    memset(s->done, 0, sizeof s->done);
    for (int v = 0; v < k->n; v++) {
        /* the host does not sum */
        s->cost[v] = tree[v] == DS__APART || (v == k->d->p && w->up) ? 1e300 : 0;
        s->from[v] = -1;
        /* nearer to the root is better */
        for (int u = v; s->cost[v] < 1 && tree[u] >= 0; u = tree[u])
            s->cost[v] += 1e-5;
    }
}

/* Returns the cheapest node that was not looked at, or -1. */
static int ds__pack_search_next(const ds__pack *k, const ds__pack_search *s) {
    int at = -1;
    for (int v = 0; v < k->n; v++)
        if (!s->done[v] && s->cost[v] < 1e299 && (at < 0 || s->cost[v] < s->cost[at]))
            at = v;
    return at;
}

/* Updates the costs of the nodes that are reached from node `at`. */
static void ds__pack_search_from(const ds__pack *k, const ds__want *w, ds__pack_search *s, int at) {
    const int *tree = k->d->tree + w->tree;
    for (int v = 0; v < k->n; v++) {
        if (s->done[v] || tree[v] != DS__APART)
            continue;
        const ds__troute *r = ds__pack_route(k, at, v, w->up);
        if (!r)
            continue;
        double c = s->cost[at] + ds__pack_cost(k, r, w->bytes);
        if (c < s->cost[v]) {
            s->cost[v] = c;
            s->from[v] = at;
        }
    }
}

/* Returns the next rank to add to the tree, or -1 if no other rank can be reached. */
static int ds__pack_search_run(const ds__pack *k, const ds__want *w, ds__pack_search *s) {
    const int *tree = k->d->tree + w->tree;
    int host = k->d->p;
    ds__pack_search_init(k, w, s);
    for (;;) {
        int at = ds__pack_search_next(k, s);
        if (at < 0)
            return -1;
        s->done[at] = 1;
        int fresh = tree[at] == DS__APART && at != host;
        if (fresh && (w->to < 0 || w->to == at))
            return at;
        /* sums are not passed on by ranks outside the tree */
        if (w->up && w->to < 0 && fresh)
            continue;
        ds__pack_search_from(k, w, s, at);
    }
}

/* Makes the tree of a want, node by node, the nearest first. Returns 0 if a rank cannot be
   reached. */
static int ds__pack_tree(const ds__pack *k, const ds__want *w) {
    int *tree = k->d->tree + w->tree;
    for (int v = 0; v < k->n; v++)
        tree[v] = v == w->root ? DS__ALONE : DS__APART;
    for (;;) {
        ds__pack_search s;
        int at = ds__pack_search_run(k, w, &s);
        if (at < 0)
            break;
        for (int v = at; s.from[v] >= 0 && tree[v] == DS__APART; v = s.from[v]) {
            const ds__troute *r = ds__pack_route(k, s.from[v], v, w->up);
            for (size_t h = 0; h < r->hops; h++)
                k->load[r->wire[h]] += w->bytes / k->d->t->wire[r->wire[h]];
            tree[v] = s.from[v];
        }
        if (w->to >= 0)
            break;
    }
    for (int v = 0; v < k->d->p; v++)
        if (tree[v] == DS__APART && (w->to < 0 || w->to == v))
            return 0;
    return 1;
}

/* The wants of a collective: for each way and root, one or one for each rank; for all_reduce
   one up and one down. */
typedef struct ds__wants {
    ds__want *want;
    size_t count;
    int ways;
    int what;   /* the collective */
    int rooted; /* 1: there is one root */
    int each;   /* 1: each rank has a part of its own */
    int sides;
} ds__wants;

/* Returns the bytes of one want. */
static double ds__wants_bytes(const ds__wants *o, const ds__draft *d) {
    double ways = (double)(size_t)o->ways;
    int p = d->p;
    if (o->what == DS_ALL_TO_ALL)
        return (double)d->want->bytes / ways / p;
    return (double)d->want->bytes / ways / (double)(o->rooted ? 1 : p) /
           (double)(o->each && o->rooted ? p : 1);
}

/* Adds the wants of a root. */
static void ds__wants_add(ds__wants *o, ds__draft *d, int root) {
    int sums = o->what == DS_REDUCE || o->what == DS_ALL_REDUCE || o->what == DS_REDUCE_SCATTER;
    int first = o->each ? 0 : -1;
    int end = o->each ? d->p : 0;
    for (int to = first; to < end; to++)
        for (int side = 0; side < o->sides; side++) {
            int up = o->what == DS_GATHER || (sums && !side);
            ptrdiff_t tree = ds__tree_add(d, root);
            o->want[o->count++] = (ds__want){ root, to, up, ds__wants_bytes(o, d), tree };
        }
}

/* Lists the wants, each with an empty tree. Returns 0 if memory is exhausted. */
static int ds__wants_init(ds__wants *o, ds__draft *d, const ds__algo *a) {
    int what = (int)d->want->what;
    size_t p = (size_t)d->p;
    o->count = 0;
    o->ways = a->ways;
    o->what = what;
    o->rooted = what <= DS_REDUCE;
    o->each = what == DS_SCATTER || what == DS_GATHER || what == DS_ALL_TO_ALL;
    o->sides = what == DS_ALL_REDUCE ? 2 : 1;
    size_t room = (o->rooted ? 1 : p) * (o->each ? p : 1) * (size_t)o->sides * (size_t)o->ways;
    o->want = ds__host_alloc(room * sizeof *o->want);
    if (!o->want)
        return 0;
    for (int j = 0; j < o->ways && !d->failed; j++)
        for (int i = 0; i < (o->rooted ? 1 : d->p); i++)
            ds__wants_add(o, d, o->rooted ? d->want->root : i);
    return !d->failed;
}

/* Makes each tree of the wants again. Returns 0 if a rank cannot be reached. */
static int ds__wants_pack(const ds__wants *o, const ds__pack *k, int again) {
    for (size_t i = 0; i < o->count; i++) {
        const ds__want *want = &o->want[i];
        if (again)
            ds__pack_add(k, want, -1);
        if (want->to != want->root && !ds__pack_tree(k, want))
            return 0;
    }
    return 1;
}

/* Makes the trees in several passes and keeps those of the pass with the least load of the
   busiest wire. Returns 0 if a rank cannot be reached. */
static int ds__wants_improve(const ds__wants *o, const ds__pack *k) {
    ds__draft *d = k->d;
    double least = 1e300;
    size_t nodes = o->count * (size_t)k->n;
    int passes = o->count > 16 ? 8 : 32;
    int *best = ds__host_alloc((nodes + 1) * sizeof *best);
    int *tree = o->count ? d->tree + o->want[0].tree : d->tree;
    int ok = 1;
    if (o->count > 100)
        passes = 4;
    if (!best) {
        d->failed = 1;
        return 0;
    }

    for (int pass = 0; ok && pass < passes; pass++) {
        double most = 0;
        ok = ds__wants_pack(o, k, pass > 0);
        for (int i = 0; i < d->t->wires; i++)
            if (k->load[i] > most)
                most = k->load[i];
        if (most < least * 0.999) {
            least = most;
            memcpy(best, tree, nodes * sizeof *best);
        }
    }
    if (ok && nodes)
        memcpy(tree, best, nodes * sizeof *best);
    ds__host_free(best);
    return ok;
}

/* Returns the bytes of the whole that a want is a part of. */
static ds__extent ds__want_block(const ds__wants *o, const ds_plan_desc *w, const ds__want *n,
                                 size_t p) {
    size_t block = (size_t)(o->each && o->rooted ? n->to : n->root);
    if (o->what == DS_BROADCAST || o->what == DS_REDUCE)
        return (ds__extent){ 0, w->bytes };
    if (o->what == DS_ALL_TO_ALL)
        block = (size_t)n->to;
    return (ds__extent){ ds__emit_block_of(w, block, p), ds__emit_block_of(w, block + 1, p) };
}

/* Returns the flow of a want whose block begins at `begin`. */
static ds__flow ds__want_flow(const ds__wants *o, ds__draft *d, const ds__want *n, size_t begin) {
    ds__flow f = { .owner = n->root, .dest = -1, .up = -1, .down = n->tree };
    switch (o->what) {
    case DS_ALL_GATHER:
        f.out = begin;
        break;
    case DS_ALL_REDUCE:
        f.in = begin;
        f.out = begin;
        f.up = n->tree;
        f.down = n[1].tree;
        break;
    case DS_REDUCE:
    case DS_REDUCE_SCATTER:
        f.in = begin; /* 0 in reduce */
        f.dest = n->root;
        f.up = n->tree;
        f.down = ds__tree_add(d, n->root);
        break;
    case DS_SCATTER:
        f.in = begin;
        f.dest = n->to;
        break;
    case DS_ALL_TO_ALL:
        f.in = begin;
        f.out = ds__emit_block_of(d->want, (size_t)n->root, (size_t)d->p);
        f.dest = n->to;
        break;
    case DS_GATHER:
        f.out = begin;
        f.owner = n->to;
        f.dest = n->root;
        f.down = ds__flow_path_find(d, n->tree, n->to, 1);
        break;
    default: /* broadcast */
        break;
    }
    return f;
}

static void ds__wants_flows(const ds__wants *o, ds__draft *d) {
    const ds_plan_desc *w = d->want;
    size_t ways = (size_t)o->ways;
    for (size_t i = 0; !d->failed && i < o->count; i += (size_t)o->sides) {
        const ds__want *n = &o->want[i];
        size_t j = i / (o->count / ways);
        ds__extent block = ds__want_block(o, w, n, (size_t)d->p);
        ds__extent part = ds__slice_span(w, block.end - block.begin, j, ways);
        ds__flow_add(d, part, ds__want_flow(o, d, n, block.begin));
    }
}

/* Makes the flows of packed trees. Returns 0 if the algorithm does not fit. */
static int ds__pack_flows(ds__draft *d, const ds__algo *a) {
    const ds_plan_desc *w = d->want;
    int sums = w->what == DS_REDUCE || w->what == DS_ALL_REDUCE || w->what == DS_REDUCE_SCATTER;
    int ok = 0;
    if (sums && w->order != DS_ORDER_ANY)
        return 0;

    ds__wants wants;
    ds__pack k = { d, NULL, 0, d->p + 1 };
    k.load = ds__host_alloc(((size_t)d->t->wires + 1) * sizeof *k.load);
    k.whole = w->bytes ? (double)d->bound * 1e-9 + 1e-9 : 1;
    if (ds__wants_init(&wants, d, a) && k.load)
        ok = ds__wants_improve(&wants, &k);
    else
        d->failed = 1;
    if (ok)
        ds__wants_flows(&wants, d);
    ds__host_free(wants.want);
    ds__host_free(k.load);
    d->ways = a->ways;
    return ok && !d->failed;
}

/* plan/flows.h - flows of an algorithm.

   Turns a collective and an algorithm into flows (ds__flows_build), for trees, meshes, packed trees
   and copies through the host. Grids are only checked here, since they have no flows.
   ds__flows_load gives the time of the busiest wire and the number of copies of one piece.

   Invariants: ds__flows_build discards the trees and flows of the draft first. It returns 0 if the
   algorithm does not fit or if memory is exhausted, and sets `failed` only in the second case.
   Every tree of sums satisfies ds__in_order. ds__flows_load counts one tree of a flow in each
   direction.
   Locks: none.
   Threads: the thread that makes the plan. */

/* What the flows of a collective and an algorithm are made of. */
typedef struct ds__flow_maker {
    ds__draft *d;
    const ds__algo *a;
    int what; /* the collective */
    int ways;
    int sums; /* 1: the collective sums */
    int each; /* 1: every rank is the root of a part */
    int cut;  /* trees of a root of a mesh */
    ds__mesh mesh;
} ds__flow_maker;

static const ds__algo ds__flow_star = { "direct", DS__WITH_TREES, DS__ROOTED, 0, 1, 1 << 20, 1, 0 };

/* Returns the tree from the owner of a sum in the order of the list to its destinations. */
static ptrdiff_t ds__flow_list_down(const ds__flow_maker *m, int owner, int j) {
    ds__draft *d = m->d;
    const ds__algo *a = m->a;
    if (m->what != DS_ALL_REDUCE)
        return ds__tree_of_two(d, owner, d->want->root);
    if (a->level == 0) { /* back the way it came */
        ptrdiff_t down = ds__tree_add(d, owner);
        for (int v = 0; v < owner && !d->failed; v++)
            d->tree[down + v] = v + 1;
        return down;
    }
    ds__algo back = {
        .with = DS__WITH_TREES,
        .mode = DS__ROOTED,
        .level = a->level,
        .ways = m->ways,
        .arity = 1 << 20,
        .own = 1,
        .shape = a->shape,
    };
    return ds__tree_build(d, &back, owner, j);
}

/* Adds sums in the order of the list, for reduce and all_reduce. */
static int ds__flow_list_add(const ds__flow_maker *m) {
    ds__draft *d = m->d;
    const ds_plan_desc *w = d->want;
    if (m->what == DS_REDUCE_SCATTER)
        return 0;
    for (int j = 0; j < m->ways; j++) {
        ds__flow flow = { .dest = m->what == DS_REDUCE ? w->root : -1 };
        flow.up = ds__list_tree(d, m->a, j, 1, &flow.owner);
        if (d->failed || !ds__in_order(d, flow.up))
            return 0;
        flow.down = ds__flow_list_down(m, flow.owner, j);
        ds__flow_add(d, ds__slice_span(w, w->bytes, (size_t)j, (size_t)m->ways), flow);
    }
    return !d->failed;
}

/* Adds a reduce in which each rank but the root, which sums nothing, owns a slice. */
static int ds__flow_owners_add(ds__draft *d) {
    const ds_plan_desc *w = d->want;
    size_t p = (size_t)d->p;
    size_t n = p > 1 ? p - 1 : 1;
    size_t k = 0;
    for (int i = 0; i < d->p; i++) {
        if (i == w->root && p > 1)
            continue;
        ds__flow flow = { .owner = i, .dest = w->root };
        flow.up = ds__tree_build(d, &ds__flow_star, i, 0);
        flow.down = ds__flow_path_find(d, ds__tree_build(d, &ds__flow_star, i, 0), w->root, 0);
        ds__flow_add(d, ds__slice_span(w, w->bytes, k, n), flow);
        k++;
    }
    return !d->failed;
}

/* Adds a sum from group to group, which then goes to its root. Returns 0 if the order of the
   sums forbids its tree. */
static int ds__flow_groups_add(const ds__flow_maker *m, int root, int j, ds__extent part,
                               size_t begin) {
    ds__draft *d = m->d;
    int all = m->what == DS_ALL_REDUCE;
    int group[DS__TOPOLOGY_MAX];
    int turn = 0;
    ds__tree_groups_of(d->t, m->a->level, group);
    for (int k = 0; k < root; k++)
        turn += group[k] == group[root];

    ds__flow flow = { .in = begin, .out = all ? begin : 0, .dest = all ? -1 : root };
    flow.up = ds__list_tree(d, m->a, turn, 1, &flow.owner);
    flow.down = all ? ds__tree_build(d, m->a, flow.owner, j) : ds__tree_add(d, flow.owner);
    if (d->failed || !ds__in_order(d, flow.up))
        return 0;
    if (m->what == DS_REDUCE_SCATTER && flow.owner != root)
        d->tree[flow.down + root] = flow.owner;
    ds__flow_add(d, part, flow);
    return 1;
}

/* Adds the flow of rank v in a scatter, gather or all_to_all: a path of the tree of the root. */
static void ds__flow_path_add(const ds__flow_maker *m, int root, int j, ptrdiff_t tree, int v) {
    ds__draft *d = m->d;
    const ds_plan_desc *w = d->want;
    size_t p = (size_t)d->p;
    size_t at = ds__emit_block_of(w, (size_t)v, p);
    size_t n = ds__emit_block_of(w, (size_t)v + 1, p) - at;
    ds__extent part = ds__slice_span(w, n, (size_t)j, (size_t)m->ways);
    ds__flow flow = { .in = at, .owner = root, .dest = v, .up = -1 };
    flow.down = ds__flow_path_find(d, tree, v, m->what == DS_GATHER);
    if (m->what == DS_GATHER) {
        flow.in = 0;
        flow.out = at;
        flow.owner = v;
        flow.dest = root;
    } else if (m->what == DS_ALL_TO_ALL) {
        flow.out = ds__emit_block_of(w, (size_t)root, p);
    }
    ds__flow_add(d, part, flow);
}

/* Adds the flows of a scatter, gather or all_to_all: a path for each rank. */
static void ds__flow_paths_add(const ds__flow_maker *m, int root, int j, ptrdiff_t tree) {
    for (int v = 0; v < m->d->p && !m->d->failed; v++)
        ds__flow_path_add(m, root, j, tree, v);
}

/* Returns the flow of a tree: up, down or both ways. `begin` is where the root's block begins. */
static ds__flow ds__flow_of_tree(const ds__flow_maker *m, int root, ptrdiff_t tree, size_t begin) {
    ds__draft *d = m->d;
    ds__flow flow = { .owner = root, .dest = -1, .up = -1, .down = tree };
    int at_root = m->what == DS_REDUCE || m->what == DS_REDUCE_SCATTER ||
                  (m->what == DS_ALL_REDUCE && m->a->mode == DS__ONE_SHOT);
    if (at_root) {
        flow.in = m->what == DS_REDUCE_SCATTER ? begin : 0;
        flow.dest = root;
        flow.up = tree;
        flow.down = ds__tree_add(d, root);
    } else if (m->what == DS_ALL_REDUCE) {
        flow.in = begin;
        flow.out = begin;
        flow.up = tree;
    } else if (m->what == DS_ALL_GATHER) {
        flow.out = begin;
    }
    return flow;
}

/* Adds the flows of the j-th tree of a root. Returns 0 if the order of the sums forbids the
   tree. */
static int ds__flow_tree_add(const ds__flow_maker *m, int root, int j, ptrdiff_t tree,
                             ds__extent block) {
    ds__draft *d = m->d;
    const ds__algo *a = m->a;
    ds_plan_order order = d->want->order;
    size_t begin = block.begin;
    ds__extent part = ds__slice_span(d->want, block.end - begin, (size_t)j, (size_t)m->ways);
    int forbidden = m->sums && !ds__in_order(d, tree);

    if (forbidden && m->each && a->level && a->own && order == DS_ORDER_LIST)
        return ds__flow_groups_add(m, root, j, part, begin);
    if (forbidden && m->what == DS_ALL_REDUCE && a->mode == DS__BY_OWNERS &&
        order != DS_ORDER_ANY) {
        /* summed at once, and handed on as the algorithm has it */
        ds__flow flow = {
            .in = begin,
            .out = begin,
            .owner = root,
            .dest = -1,
            .down = tree,
        };
        flow.up = ds__tree_build(d, &ds__flow_star, root, 0);
        ds__flow_add(d, part, flow);
        return 1;
    }
    if (forbidden)
        return 0;

    if (m->what == DS_SCATTER || m->what == DS_GATHER || m->what == DS_ALL_TO_ALL)
        ds__flow_paths_add(m, root, j, tree);
    else
        ds__flow_add(d, part, ds__flow_of_tree(m, root, tree, begin));
    return 1;
}

/* Adds the flows of all trees of a root. Returns 0 if the algorithm does not fit. */
static int ds__flow_root_add(ds__flow_maker *m, int root) {
    ds__draft *d = m->d;
    const ds_plan_desc *w = d->want;
    size_t p = (size_t)d->p;
    ptrdiff_t tree[DS__MESH]; /* of a mesh */
    int meshed = m->a->with == DS__WITH_MESH;
    ds__extent block = { 0, w->bytes };
    if (meshed && !ds__mesh_trees(d, &m->mesh, root, m->cut, tree))
        return 0;
    if (m->each) {
        block.begin = ds__emit_block_of(w, (size_t)root, p);
        block.end = ds__emit_block_of(w, (size_t)root + 1, p);
    }
    for (int j = 0; j < m->ways && !d->failed; j++) {
        ptrdiff_t t = meshed ? tree[j] : ds__tree_build(d, m->a, root, j);
        if (d->failed || !ds__flow_tree_add(m, root, j, t, block))
            return 0;
    }
    return 1;
}

/* Adds the flows of trees from one root, or from every rank. Returns 0 if the algorithm does not
   fit. */
static int ds__flow_roots_add(ds__flow_maker *m) {
    ds__draft *d = m->d;
    int all = m->each || m->a->mode == DS__ONE_SHOT;
    int only = m->what == DS_ALL_REDUCE ? 0 : d->want->root;
    for (int i = 0; i < d->p && !d->failed; i++)
        if ((all || i == only) && !ds__flow_root_add(m, i))
            return 0;
    return !d->failed;
}

/* Counts the trees of a mesh, which are the ways. Returns 0 if the links are no mesh. */
static int ds__flow_mesh_init(ds__flow_maker *m) {
    ds__draft *d = m->d;
    m->cut = ds__mesh_init(d->t, &m->mesh, m->each ? 6 : DS__MESH);
    if (!m->cut)
        return 0;
    d->ways = m->cut;
    m->ways = m->cut;
    return 1;
}

/* Adds the flows of an algorithm whose flows are trees. Returns 0 if it does not fit. */
static int ds__flow_trees_add(ds__flow_maker *m) {
    ds__draft *d = m->d;
    const ds__algo *a = m->a;
    if (a->with == DS__WITH_MESH && !ds__flow_mesh_init(m))
        return 0;
    if (a->mode != DS__ROOTED && !m->sums)
        return 0;
    if (a->mode == DS__IN_LIST && d->p > DS__PLAN_LARGE && a->level)
        return ds__flows_leads(d, a->arity);
    if (a->mode == DS__IN_LIST)
        return ds__flow_list_add(m);
    if (a->mode == DS__ONE_SHOT && m->what != DS_ALL_REDUCE)
        return 0;
    if (m->what == DS_REDUCE && a->mode == DS__BY_OWNERS)
        return ds__flow_owners_add(d);
    return ds__flow_roots_add(m);
}

/* Makes the flows of the draft. Returns 1 for flows, 0 if this algorithm does not fit here. */
static int ds__flows_build(ds__draft *d, const ds__algo *a) {
    int what = (int)d->want->what;
    ds__flow_maker m = { .d = d, .a = a, .what = what, .ways = a->ways };
    m.sums = what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
    m.each = what == DS_ALL_GATHER || what == DS_REDUCE_SCATTER || what == DS_ALL_TO_ALL ||
             (what == DS_ALL_REDUCE && a->mode == DS__BY_OWNERS);
    d->trees = d->flows = 0;
    d->name = a->name;
    d->ways = a->ways;
    d->run = a->with == DS__WITH_GRID ? a->arity : 0;
    if (d->run)
        return ds__grid_fits(d, d->run, a->ways / d->run);

    d->pull = d->p > DS__PLAN_LARGE && (m.each || a->ways > 1);
    if (a->with == DS__WITH_HOST && d->p < 2)
        return 0;
    if (a->with == DS__WITH_WIRES)
        return d->p > 1 && d->p <= DS__MESH ? ds__pack_flows(d, a) : 0;
    return ds__flow_trees_add(&m);
}

/* Loads of the wires by the flows of a draft. */
typedef struct ds__wire_loads {
    double *load; /* bytes of each wire */
    size_t copies;
    int cut_off; /* 1: some copy has no route */
} ds__wire_loads;

/* Adds one copy to the loads, or two through the host. */
static void ds__load_copy(const ds__draft *d, ds__wire_loads *o, int from, int to, double bytes) {
    int staged = ds__copy_staged(d, from, to);
    for (int leg = !staged; leg < 2; leg++) {
        int a = staged && leg ? d->p : from;
        int b = staged && !leg ? d->p : to;
        const ds__troute *r = ds__route_of(d->t, a, b);
        for (size_t h = 0; h < r->hops; h++)
            o->load[r->wire[h]] += bytes;
        o->copies++;
        if (!r->hops)
            o->cut_off = 1;
    }
}

/* Returns the time of the busiest wire for all flows, and the number of copies of a piece of
   each. `load` has room for all wires. */
static int64_t ds__flows_load(const ds__draft *d, double *load, size_t *copies) {
    const ds_topology *t = d->t;
    ds__wire_loads loads = { load, 0, 0 };
    memset(load, 0, (size_t)t->wires * sizeof *load);
    for (size_t i = 0; i < d->flows; i++)
        for (int side = 0; side < 2; side++) {
            ptrdiff_t at = side ? d->flow[i].down : d->flow[i].up;
            for (int v = 0; at >= 0 && v <= d->p; v++) {
                int u = d->tree[at + v];
                if (u >= 0)
                    ds__load_copy(d, &loads, side ? u : v, side ? v : u, (double)d->flow[i].bytes);
            }
        }

    double most = loads.cut_off ? 1e18 : 0;
    for (int i = 0; i < t->wires; i++)
        if (load[i] / t->wire[i] * 1e9 > most)
            most = load[i] / t->wire[i] * 1e9;
    *copies = loads.copies;
    return (int64_t)most;
}

/* plan/bound.h - bound of a collective's time.

   Computes bound_ns of a plan (ds__bound_compute): the bytes over the narrowest cut of the links,
   and the shortest latency ceil(log2 p) times, for all_reduce twice. The narrowest cut is found by
   maximum flow (Dinic) and Dinkelbach's iteration. ds__search_one skips further algorithms once a
   plan reaches the bound.

   Invariants: the first part is a lower bound of every plan. The second part is an estimate:
   ranks start several copies at once, so small collectives can be faster. Ranks with the same
   links are computed once (ds__bound_alike_find). If memory is exhausted, a cut counts as 0 and no
   error is reported.
   Locks: none.
   Threads: the thread that makes the plan. */

/* A flow network of the links (Dinic's algorithm). Devices and the host forward data. */
typedef struct ds__net {
    int nodes;
    int edges;
    int *head;
    int *next;
    int *to;
    int *level;
    int *at;
    double *cap;
} ds__net;

/* Adds an edge and its reverse, which has no capacity. */
static void ds__net_edge(ds__net *n, int a, int b, double cap) {
    for (int i = 0; i < 2; i++) {
        n->to[n->edges] = i ? a : b;
        n->cap[n->edges] = i ? 0 : cap;
        n->next[n->edges] = n->head[i ? b : a];
        n->head[i ? b : a] = n->edges++;
    }
}

/* Pushes at most `most` bytes along one path of rising levels. Returns the bytes that reached the
   sink. */
static double ds__net_push(ds__net *n, int v, int sink, double most) {
    if (v == sink)
        return most;
    for (int *e = &n->at[v]; *e >= 0; *e = n->next[*e]) {
        int u = n->to[*e];
        int edge = *e;
        if (n->level[u] != n->level[v] + 1 || n->cap[edge] <= 1e-3)
            continue;
        double got = ds__net_push(n, u, sink, n->cap[edge] < most ? n->cap[edge] : most);
        if (got > 0) {
            n->cap[edge] -= got;
            n->cap[edge ^ 1] += got;
            return got;
        }
    }
    return 0;
}

/* Returns the maximum flow. Afterwards the nodes on the source's side of a narrowest cut have a
   level of 0 or more, and all others -1. */
static double ds__net_flow(ds__net *n, int source, int sink) {
    double sum = 0;
    double got;
    int *queue = n->at + n->nodes;
    for (;;) {
        int first = 0;
        int last = 0;
        for (int i = 0; i < n->nodes; i++)
            n->level[i] = -1;
        n->level[source] = 0;
        queue[last++] = source;
        while (first < last)
            for (int v = queue[first++], e = n->head[v]; e >= 0; e = n->next[e])
                if (n->cap[e] > 1e-3 && n->level[n->to[e]] < 0) {
                    n->level[n->to[e]] = n->level[v] + 1;
                    queue[last++] = n->to[e];
                }
        if (n->level[sink] < 0)
            return sum;
        memcpy(n->at, n->head, (size_t)n->nodes * sizeof *n->at);
        while ((got = ds__net_push(n, source, sink, 1e30)) > 0)
            sum += got;
    }
}

/* Data that must move: each rank v outside of `from` needs need[v] bytes from ranks inside. */
typedef struct ds__demand {
    double *need;
    char *from; /* of each rank: 1 if it has the data */
    int back;   /* 1: the bytes move the other way, from the ranks outside to those inside */
} ds__demand;

/* Allocates a network for the topology, with a source and a sink. Returns 0 if memory is
   exhausted. */
static int ds__net_init(ds__net *n, const ds_topology *t) {
    size_t most = 4 * (size_t)t->links + 4 * (size_t)t->devices + 8;
    size_t nodes = (size_t)t->nodes + 2;
    memset(n, 0, sizeof *n);
    n->nodes = t->nodes + 2;
    n->head = ds__host_alloc((nodes * 4 + 2 * most) * sizeof *n->head);
    n->cap = ds__host_alloc(most * sizeof *n->cap);
    if (!n->head || !n->cap)
        return 0;
    n->level = n->head + nodes;
    n->at = n->level + nodes;
    n->next = n->at + 2 * nodes;
    n->to = n->next + most;
    return 1;
}

static void ds__net_deinit(ds__net *n) {
    ds__host_free(n->head);
    ds__host_free(n->cap);
}

/* Makes the edges: links carry as much as in `time` seconds, and each rank's demand flows into the
   sink. */
static void ds__net_fill(ds__net *n, const ds_topology *t, const ds__demand *w, double time) {
    int source = t->nodes;
    int sink = source + 1;
    n->edges = 0;
    for (int i = 0; i < n->nodes; i++)
        n->head[i] = -1;
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        ds__net_edge(n, k->a, k->b, k->rate[w->back] * time);
        ds__net_edge(n, k->b, k->a, k->rate[!w->back] * time);
    }
    for (int i = 0; i < t->devices; i++) {
        if (w->from[i])
            ds__net_edge(n, source, t->rank[i], 1e30);
        else
            ds__net_edge(n, t->rank[i], sink, w->need[i]);
    }
}

/* Returns the seconds that the cut takes which the last ds__net_flow found; 0: no link crosses the
   cut. */
static double ds__net_cut_time(const ds__net *n, const ds_topology *t, const ds__demand *w) {
    double out = 0;  /* bytes that must leave the side of the source */
    double rate = 0; /* bytes that leave it in a second */
    for (int i = 0; i < t->devices; i++)
        out += !w->from[i] && n->level[t->rank[i]] < 0 ? w->need[i] : 0;
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        if (n->level[k->a] >= 0 && n->level[k->b] < 0)
            rate += k->rate[w->back];
        if (n->level[k->b] >= 0 && n->level[k->a] < 0)
            rate += k->rate[!w->back];
    }
    return rate > 0 ? out / rate : 0;
}

/* Returns the least number of seconds in which the links can move a demand: that of the narrowest
   cut (Dinkelbach). Returns 0 if memory is exhausted. */
static double ds__demand_time(const ds_topology *t, const ds__demand *w) {
    ds__net n;
    double total = 0;
    double time = 0;
    int ok = ds__net_init(&n, t);
    for (int i = 0; i < t->devices; i++)
        total += w->from[i] ? 0 : w->need[i];
    for (int round = 0; ok && total > 0 && round < 64; round++) {
        ds__net_fill(&n, t, w, time);
        if (ds__net_flow(&n, t->nodes, t->nodes + 1) > total * (1 - 1e-9) - 1)
            break;
        double longer = ds__net_cut_time(&n, t, w);
        if (longer <= time)
            break;
        time = longer;
    }
    ds__net_deinit(&n);
    return time;
}

/* Returns the shortest latency of a copy, without the time for which it holds an engine. */
static int64_t ds__bound_latency(const ds_topology *t) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < t->devices; i++)
        for (int k = 0; k < t->devices; k++)
            if (i != k && ds__route_of(t, i, k)->hops && ds__route_of(t, i, k)->latency_ns < least)
                least = ds__route_of(t, i, k)->latency_ns;
    return least == INT64_MAX ? 0 : least;
}

/* Returns how many links with this link's rates rank i has more than rank j to the node `other`.
   `end`: the side of the link that is a rank's. */
static int ds__bound_link_surplus(const ds_topology *t, const ds__tlink *like, int end, int i,
                                  int j) {
    int other = end ? like->a : like->b;
    int surplus = 0;
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *o = &t->link[l];
        for (int side = 0; side < 2; side++) {
            int at = side ? o->b : o->a;
            if ((side ? o->a : o->b) != other || o->rate[side] != like->rate[end] ||
                o->rate[!side] != like->rate[!end])
                continue;
            surplus += (at == t->rank[i]) - (at == t->rank[j]);
        }
    }
    return surplus;
}

/* Returns 1 if ranks i and j have the same links to the same nodes. */
static int ds__bound_is_alike(const ds_topology *t, int i, int j) {
    int links = 0; /* of i, less those of j */
    for (int l = 0; l < t->links; l++) {
        const ds__tlink *k = &t->link[l];
        int first = k->a == t->rank[i];
        links -= k->a == t->rank[j] || k->b == t->rank[j];
        if (!first && k->b != t->rank[i])
            continue;
        links++;
        if (ds__bound_link_surplus(t, k, !first, i, j))
            return 0;
    }
    return links == 0;
}

/* Finds for each rank the first one with the same links: a time that holds for one holds for
   both. */
static void ds__bound_alike_find(const ds_topology *t, int *as) {
    for (int i = 0; i < t->devices; i++)
        for (as[i] = 0; as[i] < i; as[i]++)
            if (as[as[i]] == as[i] && ds__bound_is_alike(t, i, as[i]))
                break;
}

/* A bound that is being computed. */
typedef struct ds__bound {
    const ds_topology *t;
    const ds_plan_desc *w;
    ds__demand move;
    int as[DS__TOPOLOGY_MAX]; /* see ds__bound_alike_find */
} ds__bound;

static inline double ds__bound_longer(double a, double b) {
    return b > a ? b : a;
}

/* Returns the seconds in which all bytes can move between rank `from` and the farthest other rank.
   Of several ranks with the same links only one is computed. */
static double ds__bound_whole_time(ds__bound *b, int from) {
    double most = 0;
    for (int k = 0; k < b->t->devices; k++) {
        int first = 0;
        while (first < k && (first == from || b->as[first] != b->as[k]))
            first++;
        if (k == from || first < k)
            continue;
        memset(b->move.need, 0, (size_t)b->t->devices * sizeof *b->move.need);
        b->move.need[k] = (double)b->w->bytes;
        most = ds__bound_longer(most, ds__demand_time(b->t, &b->move));
    }
    return most;
}

/* Returns the seconds in which rank i can exchange its data with all others; `second`: in the
   second half of an all_reduce. */
static double ds__bound_rank_time(ds__bound *b, int i, int second) {
    int what = (int)b->w->what;
    int p = b->t->devices;
    memset(b->move.from, 0, (size_t)p);
    b->move.from[i] = 1;
    /* Into each rank: all_gather. Out of each rank: reduce_scatter, all_to_all. */
    if (what <= DS_REDUCE)
        b->move.back = what == DS_REDUCE || what == DS_GATHER;
    else
        b->move.back = what == DS_ALL_GATHER || second;
    if (what == DS_BROADCAST || what == DS_REDUCE)
        return ds__bound_whole_time(b, i);
    for (int k = 0; k < p; k++)
        b->move.need[k] = (double)b->w->bytes / p;
    return ds__demand_time(b->t, &b->move);
}

/* Returns the seconds in which each group can send its blocks of an all_to_all to all others. */
static double ds__bound_groups_time(ds__bound *b, int level) {
    double most = 0;
    int p = b->t->devices;
    int group[DS__TOPOLOGY_MAX];
    ds__tree_groups_of(b->t, level, group);
    b->move.back = 0;
    for (int g = 0; g < p; g++) {
        int n = 0;
        int first = 0;
        while (group[first] != group[g])
            first++;
        if (first < g)
            continue;
        for (int i = 0; i < p; i++) {
            b->move.from[i] = group[i] == group[g];
            n += b->move.from[i];
        }
        for (int i = 0; i < p; i++)
            b->move.need[i] = (double)b->w->bytes / p * n;
        most = ds__bound_longer(most, ds__demand_time(b->t, &b->move));
    }
    return most;
}

/* Returns the bound of a collective in nanoseconds. `need` and `from` have room for an entry of
   each rank. */
static int64_t ds__bound_compute(const ds_topology *t, const ds_plan_desc *w, double *need,
                                 char *from) {
    ds__bound b = { .t = t, .w = w, .move = { need, from, 0 } };
    double worst = 0;
    int rounds = 0;
    int halves = w->what == DS_ALL_REDUCE ? 2 : 1;
    ds__bound_alike_find(t, b.as);
    while (1 << rounds < t->devices)
        rounds++;
    for (int half = 0; half < halves; half++) {
        double most = 0;
        for (int i = 0; i < t->devices; i++)
            if (w->what <= DS_REDUCE ? i == w->root : b.as[i] == i)
                most = ds__bound_longer(most, ds__bound_rank_time(&b, i, half));
        for (int level = 1; level <= 2 && w->what == DS_ALL_TO_ALL; level++)
            most = ds__bound_longer(most, ds__bound_groups_time(&b, level));
        worst += most;
    }
    return (int64_t)(worst * 1e9) + rounds * ds__bound_latency(t) * halves;
}

/* plan/search.h - trying one algorithm.

   Tries one algorithm with several numbers of pieces and keeps the fastest draft
   (ds__search_one, ds__search_keep). Also defines the finished plan with its search results
   (ds__planned) and the list of all plans. plan/search_large.h decides which algorithms are
   tried.

   Invariants: the drafts `now` and `best` share no memory; `best` has only steps, locations, links
   and scratch sizes. Both passes must try the same algorithms in the same order, because `turn`
   is the index of their times. `time[0]` is the best prediction, `time[1]` the time of the
   busiest wire.
   Locks: ds__c.lock guards ds__planned_list. The functions of this room need no lock.
   Threads: the thread that makes the plan. */

static const char *const ds__algo_names[DS__ALGO_NAMES] = { "direct", "binomial", "chain",
                                                            "spread", "islands",  "trees",
                                                            "staged" };

static ds__planned *ds__planned_list; /* under ds__c.lock */

static int ds__algo_at(const char *name) {
    for (int i = 0; i < DS__ALGO_NAMES; i++)
        if (strcmp(name, ds__algo_names[i]) == 0)
            return i;
    return -1;
}

#define DS__TRIES 160

typedef struct ds__search {
    ds__draft now;
    ds__draft best;
    ds__planned *out;
    double *load;
    size_t work;
    int64_t enough;             /* no faster plan than this is looked for */
    int64_t retry[2];           /* up to these values of `time` they are looked at again */
    int64_t time[2][DS__TRIES]; /* of each algorithm: its best prediction; its busiest wire */
    int pass;
    int turn;
} ds__search;

/* The draft is the best one; the next has its trees and flows and the other's memory. */
static void ds__search_keep(ds__search *s) {
    ds__draft *d = &s->now;
    ds__draft other = s->best;
    s->best = *d;
    d->step = other.step;
    d->step_room = other.step_room;
    d->steps = 0;
    d->location = other.location;
    d->location_room = other.location_room;
    d->locations = 0;
    d->link = other.link;
    d->link_room = other.link_room;
    d->links = 0;
    d->scratch = other.scratch;
    s->best.tree = NULL;
    s->best.flow = NULL;
    s->best.head = NULL;
    s->best.ring = NULL;
    s->best.place = NULL;
}

/* Records the draft if it is the fastest of its algorithm. */
static void ds__search_best(ds__search *s, int id) {
    const ds__draft *d = &s->now;
    if (s->out->best[id].ns && d->end >= s->out->best[id].ns)
        return;
    s->out->best[id].ns = d->end;
    s->out->best[id].pieces = d->pieces;
    s->out->best[id].ways = d->ways;
}

/* Records the time of the draft, and keeps the draft if it is the fastest of all. */
static void ds__search_note(ds__search *s, int id) {
    ds__draft *d = &s->now;
    ds__search_best(s, id);
    if (d->end < s->time[0][s->turn])
        s->time[0][s->turn] = d->end;
    if (!s->best.name || d->end < s->best.end)
        ds__search_keep(s);
}

/* Returns 1 if the algorithm of this turn came too far from the best in the first pass. */
static int ds__search_is_far(const ds__search *s) {
    if (s->time[0][s->turn] <= s->retry[0])
        return 0;
    return s->time[1][s->turn] > s->retry[1] ||
           s->time[1][s->turn] > s->best.end - s->best.end / 32;
}

/* Returns 1 if the flows of the draft cannot be faster than the best plan, or need not be. Sets
   `copies` to the number of copies of a piece. */
static int ds__search_is_slow(ds__search *s, int id, size_t *copies) {
    int64_t least = ds__flows_load(&s->now, s->load, copies);
    s->time[1][s->turn] = least;
    if (id && s->best.name && s->best.end <= s->enough)
        return 1;
    return least >= (int64_t)1e17 || (s->best.end && least >= s->best.end);
}

/* Returns 1 if so many pieces make too many steps, or are too small. */
static int ds__search_too_many(const ds__draft *d, size_t copies, size_t k) {
    size_t most = d->p > 32 ? 30000 : DS__PLAN_STEPS / 2;
    if (copies * k > DS__PLAN_STEPS / 2)
        return 1;
    if (k <= 1 || d->want->pieces)
        return 0;
    return copies * k > most || d->want->bytes / ((size_t)d->ways * k) < 4096;
}

/* Returns how many waves are tried for so many pieces. */
static int ds__search_waves(const ds__search *s, size_t copies, size_t k) {
    const ds__draft *d = &s->now;
    if (k <= 1 || d->p > DS__PLAN_LARGE || copies <= (size_t)d->p)
        return 1;
    return s->pass || d->p > DS__MESH ? 3 : 1;
}

enum { DS__SEARCH_FAILED, DS__SEARCH_DONE, DS__SEARCH_SPENT };

/* Predicts the flows of the draft in k pieces, in several waves. Sets `fastest` to the best time.
   DS__SEARCH_SPENT: the work of a plan is used up. */
static int ds__search_pieces(ds__search *s, int id, size_t copies, size_t k, int64_t *fastest) {
    ds__draft *d = &s->now;
    int large = d->p > DS__PLAN_LARGE;
    size_t most = large ? DS__PLAN_WORK : DS__PLAN_WORK / 2;
    int first = large && k > 1;
    int waves = ds__search_waves(s, copies, k);
    *fastest = INT64_MAX;
    for (int wave = first; wave < first + waves; wave++) {
        if ((large || s->pass) && s->best.name) {
            s->work += copies * k;
            if (s->work > most)
                return DS__SEARCH_SPENT;
        }
        if (!ds__pieces_emit(d, k, wave) || !ds__schedule_arrange(d) || !ds__settle_plan(d) ||
            !ds__cost_predict(d))
            return DS__SEARCH_FAILED;
        if (d->end < *fastest)
            *fastest = d->end;
        ds__search_note(s, id);
    }
    return DS__SEARCH_DONE;
}

/* Predicts the flows of the draft in more and more pieces, twice as many as long as that helps. */
static int ds__search_more_pieces(ds__search *s, int id, size_t copies) {
    ds__draft *d = &s->now;
    size_t given = d->want->pieces;
    size_t few = d->p > DS__MESH ? 1024 : 4;
    size_t last = s->pass ? 1024 : few;
    size_t k = s->pass ? 2 * few : 1;
    int64_t best = INT64_MAX;
    int worse = 0;
    if (given)
        k = given;
    for (; (given || k <= last) && worse < 2; k *= 2) {
        int64_t fastest;
        if (ds__search_too_many(d, copies, k))
            break;
        int state = ds__search_pieces(s, id, copies, k, &fastest);
        if (state != DS__SEARCH_DONE)
            return state;
        worse = fastest >= best ? worse + 1 : 0;
        if (fastest < best)
            best = fastest;
        if (given || d->pieces < k)
            break;
    }
    return DS__SEARCH_DONE;
}

/* Tries an algorithm in as many pieces as are the fastest. Few ranks: first all algorithms in few
   pieces and in rounds; then those that came near the best in more. Returns 0 if memory or steps
   are exhausted. */
static int ds__search_one(ds__search *s, const ds__algo *a) {
    ds__draft *d = &s->now;
    const char *asked = d->want->algorithm;
    size_t copies;
    int id = ds__algo_at(a->name);
    if (++s->turn >= DS__TRIES)
        return 1;
    if (s->pass == 0)
        s->time[0][s->turn] = s->time[1][s->turn] = INT64_MAX;
    else if (ds__search_is_far(s))
        return 1;
    if (asked && strcmp(asked, a->name) != 0)
        return 1;
    if (!ds__flows_build(d, a))
        return !d->failed;
    if (ds__search_is_slow(s, id, &copies))
        return 1;

    int state = ds__search_more_pieces(s, id, copies);
    if (state != DS__SEARCH_DONE)
        return state == DS__SEARCH_SPENT;
    if (!d->want->pieces && d->p <= DS__MESH &&
        ds__cycle_build(d, s->best.name ? s->best.end : INT64_MAX, copies, s->pass ? 8000 : 2000))
        ds__search_note(s, id);
    return !d->failed;
}

/* plan/guess.h - estimates for many ranks.

   Estimates the time of an algorithm for several numbers of pieces, without ordering its steps
   (ds__guess_add). ds__search_large sorts these estimates and predicts the best ones with
   ds__search_this. Only topologies of more than DS__PLAN_LARGE ranks use this room.

   Invariants: an estimate only selects candidates; predicted times decide. Each algorithm adds
   at most three estimates. If the list of estimates is full, further ones are dropped. Levels
   from DS__GUESS_LEVELS on count as the last level.
   Locks: none.
   Threads: the thread that makes the plan. */

#define DS__GUESS_LEVELS 16

typedef struct ds__guess {
    ds__algo algo;
    size_t pieces;
    size_t copies;
    int64_t ns;
} ds__guess;

typedef struct ds__guesses {
    ds__guess guess[96];
    int count;
} ds__guesses;

/* Loads of one piece of each flow. */
typedef struct ds__loads {
    double *wire; /* ns of each wire, by level */
    double *sum;  /* ns of each rank's sums, by level */
    double *hold; /* ns of each rank's engines */
    char *inner;  /* of each node: 1 if it has children in the tree that is added */
    size_t *made; /* copies of each rank's engines */
    size_t copies;
    int64_t latency[DS__GUESS_LEVELS];
} ds__loads;

/* Returns 0 if memory is exhausted. */
static int ds__loads_init(ds__loads *o, const ds__draft *d) {
    size_t p = (size_t)d->p;
    size_t wires = (size_t)d->t->wires;
    memset(o, 0, sizeof *o);
    o->wire = ds__host_alloc(((wires + p) * DS__GUESS_LEVELS + p) * sizeof *o->wire);
    o->inner = ds__host_alloc(p + 1);
    o->made = ds__host_alloc(p * sizeof *o->made);
    if (!o->wire || !o->inner || !o->made)
        return 0;
    o->sum = o->wire + wires * DS__GUESS_LEVELS;
    o->hold = o->sum + p * DS__GUESS_LEVELS;
    return 1;
}

static void ds__loads_deinit(ds__loads *o) {
    ds__host_free(o->wire);
    ds__host_free(o->inner);
    ds__host_free(o->made);
}

/* Returns the level that a level counts as. */
static inline int ds__loads_level(int level) {
    return level < DS__GUESS_LEVELS ? level : DS__GUESS_LEVELS - 1;
}

/* A copy of a piece. */
typedef struct ds__edge {
    int level;
    int from;
    int to;
    int push; /* 1: the source makes it */
    double bytes;
} ds__edge;

/* Adds one copy to the loads, or two through the host. */
static void ds__loads_edge(const ds__draft *d, ds__loads *o, const ds__edge *e) {
    const ds_topology *t = d->t;
    int64_t *latency = &o->latency[e->level];
    double bytes = e->bytes;
    int staged = ds__copy_staged(d, e->from, e->to);
    for (int leg = !staged; leg < 2; leg++) {
        int a = staged && leg ? d->p : e->from;
        int b = staged && !leg ? d->p : e->to;
        const ds__troute *r = ds__route_of(t, a, b);
        int by = ds__copy_maker(d, a, b, e->push);
        if (!r->hops)
            *o->wire = 1e30;
        for (size_t h = 0; h < r->hops; h++)
            o->wire[e->level * t->wires + r->wire[h]] += bytes / t->wire[r->wire[h]] * 1e9;
        o->hold[by] += bytes / (r->rate > 0 ? r->rate : 1) * 1e9;
        o->made[by]++;
        o->copies++;
        if (r->latency_ns + t->start_ns > *latency)
            *latency = r->latency_ns + t->start_ns;
    }
}

/* Adds the steps of a grid. */
static void ds__loads_grid(const ds__draft *d, ds__loads *o) {
    for (size_t i = 0; i < d->steps; i++) {
        const ds__dstep *s = &d->step[i];
        int level = ds__loads_level((int)(s->key >> 33 & 0x7fff));
        if (s->source < 0) {
            o->sum[level * d->p + s->rank] += (double)ds__memory_ns(d, s);
            continue;
        }
        ds__edge e = {
            .level = level,
            .from = s->source,
            .to = s->to.rank,
            .push = s->rank == s->source,
            .bytes = (double)s->bytes,
        };
        ds__loads_edge(d, o, &e);
    }
}

/* A tree of a flow. */
typedef struct ds__loads_side {
    const int *tree;
    int down;
    int height; /* of the tree up */
    double bytes;
} ds__loads_side;

/* Adds the copy between a node and its parent, and its part of the sum of the parent. */
static void ds__loads_node(const ds__draft *d, ds__loads *o, const ds__loads_side *side, int v,
                           int depth) {
    int u = side->tree[v];
    int below = side->height - depth;
    ds__edge e = {
        .level = ds__loads_level(below),
        .from = v,
        .to = u,
        .push = !d->pull,
        .bytes = side->bytes,
    };
    if (side->down) {
        e.level = ds__loads_level(side->height + depth - 1);
        e.from = u;
        e.to = v;
        e.push = ds__emit_gives(d);
    } else if (!o->inner[v]) {
        e.level = 0; /* an input is there from the beginning */
    }
    ds__loads_edge(d, o, &e);
    if (!side->down && u < d->p)
        o->sum[ds__loads_level(below) * d->p + u] += side->bytes / d->t->memory * 1e9;
}

/* Adds all copies of a tree. */
static void ds__loads_tree(const ds__draft *d, ds__loads *o, const ds__loads_side *side) {
    const int *tree = side->tree;
    int64_t *last = &o->latency[DS__GUESS_LEVELS - 1];
    int deepest = 0;
    memset(o->inner, 0, (size_t)d->p + 1);
    for (int v = 0; v <= d->p; v++)
        if (tree[v] >= 0)
            o->inner[tree[v]] = 1;

    for (int v = 0; v <= d->p; v++) {
        if (tree[v] < 0)
            continue;
        int depth = ds__emit_tree_depth(tree, v);
        if (depth > deepest)
            deepest = depth;
        ds__loads_node(d, o, side, v, depth);
    }
    if (deepest >= DS__GUESS_LEVELS)
        *last += (deepest - DS__GUESS_LEVELS) * *last / deepest;
}

/* Adds the trees of a flow, up and then down. */
static void ds__loads_flow(const ds__draft *d, ds__loads *o, const ds__flow *f) {
    ds__loads_side up = { NULL, 0, 0, (double)f->bytes };
    if (f->up >= 0) {
        up.tree = d->tree + f->up;
        for (int v = 0; v <= d->p; v++) {
            int depth = up.tree[v] < 0 ? 0 : ds__emit_tree_depth(up.tree, v);
            if (depth > up.height)
                up.height = depth;
        }
        ds__loads_tree(d, o, &up);
    }
    for (int part = 0; f->down >= 0 && part < f->parts; part++) {
        ds__loads_side down = { NULL, 1, up.height, (double)f->bytes / f->parts };
        down.tree = d->tree + f->down + part * (ptrdiff_t)(d->p + 1);
        ds__loads_tree(d, o, &down);
    }
}

/* Returns the most that one of `count` columns of a row of the loads has. */
static double ds__loads_most(const double *row, int count) {
    double most = 0;
    for (int i = 0; i < count; i++)
        if (row[i] > most)
            most = row[i];
    return most;
}

/* Returns the sum of column i over all levels. */
static double ds__loads_all(const double *rows, int count, int i) {
    double all = 0;
    for (int l = 0; l < DS__GUESS_LEVELS; l++)
        all += rows[l * count + i];
    return all;
}

/* Returns the nanoseconds that the flows are guessed to take in so many pieces. They are the time
   of the busiest wire, of the busiest rank's engines or its memory, of the first piece from step
   to step, and the latency of each. INT64_MAX: some copy has no route. */
static int64_t ds__guess_of(const ds__draft *d, const ds__loads *o, size_t pieces) {
    const ds_topology *t = d->t;
    double wires = 0;
    for (int i = 0; i < t->wires; i++) {
        double all = ds__loads_all(o->wire, t->wires, i);
        if (all > wires)
            wires = all;
    }

    double busy = wires;
    for (int i = 0; i < d->p; i++) {
        double all = ds__loads_all(o->sum, d->p, i);
        double engines =
            ((double)(o->made[i] * pieces) * (double)t->start_ns + o->hold[i]) / t->engines;
        if (engines > busy)
            busy = engines;
        if (all > busy)
            busy = all;
    }
    if (busy >= 1e17)
        return INT64_MAX;

    double first = 0;
    double sums = 0;
    int64_t latency = 0;
    for (int l = 0; l < DS__GUESS_LEVELS; l++) {
        first += ds__loads_most(o->wire + l * t->wires, t->wires);
        sums += ds__loads_most(o->sum + l * d->p, d->p);
        latency += o->latency[l];
    }
    double more = first > wires ? first - wires : 0;
    return (int64_t)(busy + (more + sums) / (double)pieces) + latency;
}

#define DS__GUESS_TRIES 16

static const size_t ds__guess_tries[DS__GUESS_TRIES] = { 1,  2,  3,  4,  6,  8,  10, 12,
                                                         16, 20, 24, 32, 48, 64, 96, 128 };

/* Returns 1 if a number of pieces makes too many steps, or pieces that are too small. */
static int ds__guess_too_many(const ds__draft *d, size_t copies, size_t k) {
    const ds_plan_desc *w = d->want;
    size_t most = DS__PLAN_LARGE_COPIES;
    if (w->what == DS_REDUCE || w->what == DS_ALL_REDUCE || w->what == DS_REDUCE_SCATTER)
        most = DS__PLAN_LARGE_COPIES / 6 * (d->largest < d->p ? 5 : 4);
    if (copies * k > most || (d->run && d->steps * k > DS__PLAN_LARGE_STEPS))
        return 1;
    return k > 1 && !w->pieces && w->bytes / ((size_t)d->ways * k) < 4096;
}

/* Finds the two numbers of pieces that are guessed to be the fastest. ns_of gets the guesses of
   all numbers that were tried. */
static void ds__guess_two(const ds__draft *d, const ds__loads *o, ds__guess *out, int64_t *ns_of) {
    const ds_plan_desc *w = d->want;
    for (size_t i = 0; i < DS__GUESS_TRIES; i++) {
        size_t k = w->pieces ? w->pieces : ds__guess_tries[i];
        int64_t ns = ds__guess_of(d, o, k);
        /* copies of different sizes wait for each other */
        if (d->run && k > 2)
            ns += ns / (w->what == DS_BROADCAST ? 8 : 12);
        if (ds__guess_too_many(d, o->copies, k))
            return;
        ns_of[i] = ns;
        if (ns < out[0].ns) {
            out[1] = out[0];
            out[0].ns = ns;
            out[0].pieces = k;
        } else if (ns < out[1].ns) {
            out[1].ns = ns;
            out[1].pieces = k;
        }
        if (w->pieces || (d->run && ds__grid_blocks(w)))
            return;
    }
}

/* Finds the fewest pieces that are guessed to be nearly as fast as the fastest. */
static void ds__guess_third(const ds__draft *d, ds__guess *out, const int64_t *ns_of) {
    if (d->want->pieces)
        return;
    for (size_t i = 0; i < DS__GUESS_TRIES && ds__guess_tries[i] < out[0].pieces; i++) {
        size_t k = ds__guess_tries[i];
        if (ns_of[i] > out[0].ns + out[0].ns / 16 || k == out[1].pieces)
            continue;
        out[2].pieces = k;
        out[2].ns = ns_of[i];
        return;
    }
}

/* Adds the guesses for the loads of an algorithm to the list. */
static void ds__guess_choose(const ds__draft *d, const ds__loads *o, ds__algo a, ds__guesses *all) {
    int what = (int)d->want->what;
    int64_t ns_of[DS__GUESS_TRIES] = { 0 };
    ds__guess out[3];
    for (int i = 0; i < 3; i++)
        out[i] = (ds__guess){ a, 0, o->copies, INT64_MAX };
    ds__guess_two(d, o, out, ns_of);
    if (what == DS_SCATTER || what == DS_GATHER)
        ds__guess_third(d, out, ns_of);
    for (int i = 0; i < 3; i++)
        if (out[i].pieces && all->count < (int)(sizeof all->guess / sizeof all->guess[0]))
            all->guess[all->count++] = out[i];
}

/* Adds the two numbers of pieces that are guessed to be the fastest. For a scatter or a gather, it
   may add a third: the fewest pieces that are guessed to be nearly as fast. Returns 0 if memory or
   the limit of steps is exhausted. */
static int ds__guess_add(ds__search *s, ds__guesses *all, ds__algo a) {
    ds__draft *d = &s->now;
    ds__loads o;
    if (!ds__flows_build(d, &a))
        return !d->failed;
    if (!ds__loads_init(&o, d)) {
        d->failed = 1;
        goto fail;
    }
    if (d->run && !ds__pieces_emit(d, 1, 0))
        goto fail;
    if (d->run)
        ds__loads_grid(d, &o);
    for (size_t i = 0; i < d->flows; i++)
        ds__loads_flow(d, &o, &d->flow[i]);
    ds__guess_choose(d, &o, a, all);
    ds__loads_deinit(&o);
    return 1;
fail:
    ds__loads_deinit(&o);
    return 0;
}

/* The fastest first; then those with fewer pieces, then with fewer copies. */
static int ds__guess_compare(const void *a, const void *b) {
    const ds__guess *x = a;
    const ds__guess *y = b;
    if (x->ns != y->ns)
        return x->ns < y->ns ? -1 : 1;
    if (x->pieces != y->pieces)
        return x->pieces < y->pieces ? -1 : 1;
    return (x->copies > y->copies) - (x->copies < y->copies);
}

/* Predicts one algorithm in so many pieces to the end. Returns 0 if memory or the limit of steps
   is exhausted. */
static int ds__search_this(ds__search *s, const ds__guess *g) {
    ds__draft *d = &s->now;
    int id = ds__algo_at(g->algo.name);
    if (!ds__flows_build(d, &g->algo) || !ds__pieces_emit(d, g->pieces, g->pieces > 1) ||
        !ds__schedule_arrange(d) || !ds__settle_plan(d) || !ds__cost_predict(d))
        return 0;
    s->work += g->copies * g->pieces;
    ds__search_best(s, id);
    if (!s->best.name || d->end < s->best.end)
        ds__search_keep(s);
    return 1;
}

/* plan/search_large.h - candidates of the search.

   Lists the algorithms to try and runs the search for a plan; ds__search_twice is the entry.
   With up to 32 ranks, or if an algorithm is requested, ds__search_all hands every algorithm to
   ds__search_one. With more ranks ds__search_large estimates each algorithm first
   (plan/guess.h) and predicts only the best ones.

   Invariants: with up to 16 ranks and a free number of pieces there is a second pass. It looks
   again at the algorithms near the best, in the same order. A function returns 0 only if memory
   or steps are exhausted, or a prediction failed.
   Locks: none.
   Threads: the thread that makes the plan. */

#define DS__ALL_RANKS (1 << 20) /* an arity that no rank's children reach */

/* The collective and the topology of a search for many ranks. */
typedef struct ds__guesser {
    ds__search *s;
    ds__guesses all;
    ds_collective what;
    int order;
    int n;      /* size of the largest group */
    int level;  /* 1: there are several groups */
    int sums;   /* 1: the collective sums */
    int rooted; /* 1: scatter or gather */
    int trees;  /* 1: data, or sums in any order, can take any trees */
} ds__guesser;

static void ds__guesser_init(ds__guesser *g, ds__search *s) {
    const ds_plan_desc *w = s->now.want;
    memset(g, 0, sizeof *g);
    g->s = s;
    g->what = w->what;
    g->order = (int)w->order;
    g->n = s->now.largest;
    g->level = g->n < s->now.p;
    g->sums = g->what == DS_REDUCE || g->what == DS_ALL_REDUCE || g->what == DS_REDUCE_SCATTER;
    g->rooted = g->what == DS_SCATTER || g->what == DS_GATHER;
    g->trees = g->what == DS_BROADCAST ||
               (g->order == DS_ORDER_ANY && g->sums && g->what != DS_REDUCE_SCATTER);
}

/* Estimates one algorithm. Returns 0 if memory or the limit of steps is exhausted. */
static int ds__guesser_add(ds__guesser *g, ds__algo a) {
    return ds__guess_add(g->s, &g->all, a);
}

/* Estimates direct copies, and sums that continue in the order of the list. */
static int ds__guesser_lists(ds__guesser *g) {
    ds__algo direct = { .name = "direct", .ways = 1, .arity = DS__ALL_RANKS, .own = 1 };
    int ok = ds__guesser_add(g, direct);
    for (int split = 1; split <= 6 && g->sums && g->n / split > 1; split++) {
        ds__algo list = {
            .name = "islands", .mode = DS__IN_LIST, .level = 1, .ways = g->n, .arity = split
        };
        ok = ok && ds__guesser_add(g, list);
    }
    return ok;
}

/* Estimates one tree for all data, from group to group. */
static int ds__guesser_islands(ds__guesser *g) {
    ds__algo a = { .name = "islands",
                   .level = 1,
                   .ways = 1,
                   .arity = DS__ALL_RANKS,
                   .own = 1,
                   .shape = g->rooted ? DS__GROUPS_TWINS : DS__GROUPS_CHAIN };
    return !g->level || g->what == DS_ALL_TO_ALL || ds__guesser_add(g, a);
}

/* Estimates several trees at once, each for a part of the data. */
static int ds__guesser_spreads(ds__guesser *g) {
    static const struct {
        int ways;
        int arity;
    } spreads[] = { { 2, 2 },
                    { 3, 3 },
                    { 4, 4 },
                    { 6, 6 },
                    { 8, 8 },
                    { 12, 6 },
                    { 16, 16 },
                    { 24, 8 },
                    { 24, 24 },
                    { 36, 9 },
                    { 1000, DS__ALL_RANKS } };

    int ok = 1;
    for (size_t i = 0; g->trees && i < sizeof spreads / sizeof spreads[0]; i++) {
        ds__algo a = { .name = g->level ? "islands" : "spread",
                       .level = g->level,
                       .ways = spreads[i].ways < g->n - 1 ? spreads[i].ways : g->n - 1,
                       .arity = spreads[i].arity };
        if (a.ways > 1 && (!g->level || a.arity < DS__ALL_RANKS))
            ok = ok && ds__guesser_add(g, a);
    }
    return ok;
}

/* Estimates grids. Longer rows than six are tried only for collectives of small copies, since
   large copies delay each other. */
static int ds__guesser_grids(ds__guesser *g) {
    int leads = g->n - (g->what == DS_BROADCAST || g->what == DS_REDUCE);
    int one_way = g->what == DS_ALL_GATHER || g->what == DS_REDUCE_SCATTER;
    int longest = one_way ? leads / 2 : 6;
    int ok = 1;
    for (int run = 2; run <= longest; run++) {
        ds__algo a = { .name = g->level ? "islands" : "spread",
                       .with = DS__WITH_GRID,
                       .level = 1,
                       .ways = leads / run * run,
                       .arity = run };
        if (leads % run < 4 && run + leads / run <= leads / 2)
            ok = ok && ds__guesser_add(g, a);
    }
    return ok;
}

/* Predicts the best estimates: the best of flows and the best of grids in any case, the others
   while there is work left and they are not far from the best plan. */
static int ds__guesser_predict(ds__guesser *g) {
    ds__search *s = g->s;
    size_t most = g->sums && g->order == DS_ORDER_ANY ? DS__PLAN_WORK / 4 * 3 : DS__PLAN_WORK;
    int seen[2] = { 0, 0 }; /* flows, grids: 1 after the first prediction */
    qsort(g->all.guess, (size_t)g->all.count, sizeof *g->all.guess, ds__guess_compare);
    for (int i = 0; i < g->all.count; i++) {
        const ds__guess *one = &g->all.guess[i];
        int grid = one->algo.with == DS__WITH_GRID;
        int spent = seen[grid] && s->work + one->copies * one->pieces > most;
        if (s->best.name && (spent || s->best.end <= one->ns / 20 * (seen[grid] ? 18 : 17)))
            continue;
        seen[grid] = 1;
        if (!ds__search_this(s, one))
            return 0;
    }
    return 1;
}

/* Searches for a plan of many ranks. */
static int ds__search_large(ds__search *s) {
    ds__guesser g;
    ds__guesser_init(&g, s);
    return ds__guesser_lists(&g) && ds__guesser_islands(&g) && ds__guesser_spreads(&g) &&
           ds__guesser_grids(&g) && ds__guesser_predict(&g);
}

/* Tries algorithms one after the other. */
static int ds__search_each(ds__search *s, const ds__algo *a, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!ds__search_one(s, &a[i]))
            return 0;
    return 1;
}

/* Tries copies from group to group in one shape, with data and sums divided among several
   members of a group. */
static int ds__search_shape(ds__search *s, int level, int shape, int largest) {
    ds__algo owners = {
        "islands", DS__WITH_TREES, DS__BY_OWNERS, level, 1, DS__ALL_RANKS, 1, shape
    };
    ds__algo one = { "islands", DS__WITH_TREES, DS__ROOTED, level, 1, DS__ALL_RANKS, 1, shape };
    if (!ds__search_one(s, &owners) || !ds__search_one(s, &one))
        return 0;
    for (int ways = 1; ways <= DS__PLAN_WAYS && ways <= largest; ways++) {
        int all = ways >= largest - 1;
        if (!all && (ways & (ways - 1)))
            continue;
        /* for many ranks the arity is the number of parts of a group */
        int parts = s->now.p > DS__PLAN_LARGE ? ways : DS__ALL_RANKS;
        int arity = all ? DS__ALL_RANKS : ways;
        ds__algo list = { "islands", DS__WITH_TREES, DS__IN_LIST, level, ways, parts, 1, shape };
        ds__algo spread = { "islands", DS__WITH_TREES, DS__ROOTED, level, ways, arity, 0, shape };
        if (!ds__search_one(s, &list) || !ds__search_one(s, &spread))
            return 0;
    }
    return 1;
}

/* Tries copies from group to group, if there are several groups of more than one rank. */
static int ds__search_islands(ds__search *s, int level) {
    int size[DS__TOPOLOGY_MAX] = { 0 }; /* of each group, at its first rank */
    int group[DS__TOPOLOGY_MAX];
    int groups = 0;
    int largest = 0;
    ds__tree_groups_of(s->now.t, level, group);
    for (int i = 0; i < s->now.p; i++) {
        int first = 0;
        while (group[first] != group[i])
            first++;
        groups += first == i;
        size[first]++;
        if (size[first] > largest)
            largest = size[first];
    }
    if (groups < 2 || largest < 2)
        return 1;

    int last = groups == 2 ? DS__GROUPS_CHAIN : DS__GROUPS_STAR; /* two groups have one shape */
    for (int shape = DS__GROUPS_CHAIN; shape <= last; shape++)
        if (!ds__search_shape(s, level, shape, largest))
            return 0;
    return 1;
}

/* Tries trees in which each rank forwards one of several parts. */
static int ds__search_spreads(ds__search *s) {
    static const int few[] = { 2, 3, 4, 6, 8, 12, 16, 32 };
    int most = s->now.p - 1;
    ds__algo a = { .name = "spread" };
    for (size_t i = 0; i < sizeof few / sizeof few[0] && few[i] < most; i++) {
        a.ways = few[i];
        a.arity = few[i];
        if (!ds__search_one(s, &a))
            return 0;
    }
    a.ways = most;
    a.arity = most;
    return most < 2 || most > DS__PLAN_WAYS || ds__search_one(s, &a);
}

/* Tries trees over the wires with the least load. */
static int ds__search_packed(ds__search *s) {
    static const int packed[] = { 1, 2, 3, 5, 7, 13, 26, 62 };
    int what = (int)s->now.want->what;
    int single = what == DS_BROADCAST || what == DS_REDUCE;
    for (size_t i = 0; i < sizeof packed / sizeof packed[0] && (packed[i] < 8 || single); i++) {
        ds__algo a = { "trees", DS__WITH_WIRES, DS__ROOTED, 0, packed[i], 1, 1, 0 };
        if (!ds__search_one(s, &a))
            return 0;
    }
    return 1;
}

/* Searches for a plan once: all algorithms, or those that the first pass left. */
static int ds__search_all(ds__search *s) {
    enum { ALL = DS__ALL_RANKS };

    static const ds__algo simple[] = {
        { "direct", DS__WITH_TREES, DS__ROOTED, 0, 1, ALL, 1, 0 },
        { "direct", DS__WITH_TREES, DS__ONE_SHOT, 0, 1, ALL, 1, 0 },
        { "spread", DS__WITH_TREES, DS__BY_OWNERS, 0, 1, ALL, 1, 0 },
        { "chain", DS__WITH_TREES, DS__IN_LIST, 0, 1, 1, 1, 0 },
    };
    static const ds__algo trees[] = {
        { "trees", DS__WITH_MESH, DS__ROOTED, 0, 1, 1, 1, 0 },
        { "chain", DS__WITH_TREES, DS__ROOTED, 0, 1, 1, 1, 0 },
        { "binomial", DS__WITH_TREES, DS__ROOTED, 0, 1, 2, 1, 0 },
        { "trees", DS__WITH_MESH, DS__BY_OWNERS, 0, 1, 1, 1, 0 },
        { "chain", DS__WITH_TREES, DS__BY_OWNERS, 0, 1, 1, 1, 0 },
        { "staged", DS__WITH_HOST, DS__ROOTED, 0, 1, 1, 1, 0 },
    };
    if (s->now.p > DS__PLAN_LARGE && !s->now.want->algorithm)
        return ds__search_large(s);

    s->turn = -1;
    return ds__search_each(s, simple, sizeof simple / sizeof simple[0]) &&
           ds__search_islands(s, 1) && ds__search_islands(s, 2) && ds__search_spreads(s) &&
           ds__search_each(s, trees, sizeof trees / sizeof trees[0]) && ds__search_packed(s);
}

/* Sets the limits of `near` for the second pass: a few of the best times of the first one. */
static void ds__search_near_set(ds__search *s) {
    for (int what = 0; what < 2; what++) {
        int64_t time[DS__TRIES];
        int n = 0;
        int most = what ? 3 : 4;
        for (int i = 0; i <= s->turn && i < DS__TRIES; i++) {
            int at = n++;
            for (; at > 0 && time[at - 1] > s->time[what][i]; at--)
                time[at] = time[at - 1];
            time[at] = s->time[what][i];
        }
        s->retry[what] = time[n > most ? most - 1 : n - 1];
    }
    if (s->retry[0] > s->best.end * 2)
        s->retry[0] = s->best.end * 2;
}

/* Searches for a plan; few ranks: a second pass tries the algorithms near the best in more
   pieces. */
static int ds__search_twice(ds__search *s) {
    if (!ds__search_all(s))
        return 0;
    if (s->now.p > DS__MESH || s->now.want->pieces || !s->best.name)
        return 1;
    ds__search_near_set(s);
    s->pass = 1;
    return ds__search_all(s);
}

/* plan/plan.h - making and keeping plans.

   Implements ds_plan_get and ds_plan_write. ds__plan_build searches for the best draft and
   ds__plan_fill copies it into the arrays of the public plan. Plans are kept in a list, and an
   equal request returns the same plan.

   Invariants: a plan never changes and lives until ds_topology_destroy frees its topology
   (ds__plans_forget), also after ds_shutdown. Its memory returns to the allocator that it was made
   with, which may not be the topology's. A plan is identified by the topology's id and all members
   of the description. Of the steps that a step waits for, the plan names only the last one of each
   lane.
   Locks: takes ds__c.lock to read and change the list; ds__planned_find expects it. The search
   runs without a lock.
   Threads: threads of the caller. Two threads may build the same plan at once; the later one is
   freed and both get the first. */

/* Copies a draft into the arrays of a plan. Of the steps that a step waits for, only the last one
   of each lane is kept. On failure the error is set. */
static ds_result ds__plan_fill(ds__draft *d, ds__planned *o) {
    ds_plan *n = &o->plan;
    size_t ranks = (size_t)d->p + 1;
    size_t lanes = ranks * DS__PLAN_LANES;
    ds_plan_step *step = ds__host_alloc((d->steps + 1) * sizeof *step);
    ds_plan_location *location = ds__host_alloc((d->locations + 1) * sizeof *location);
    /* last: plus 1 */
    uint32_t *before = ds__host_alloc((d->links + 1) * sizeof *before);
    uint32_t *last = ds__host_alloc(lanes * sizeof *last);
    uint32_t count = 0;
    size_t *scratch = ds__host_alloc(ranks * sizeof *scratch);
    n->step = step;
    n->location = location;
    n->before = before;
    n->scratch = scratch;
    if (!step || !location || !before || !last || !scratch) {
        ds__host_free(last);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a plan of %zu steps", d->steps);
    }
    if (d->locations)
        memcpy(location, d->location, d->locations * sizeof *location);
    memcpy(scratch, d->scratch, ranks * sizeof *scratch);
    for (uint32_t i = 0; i < d->steps; i++) {
        const ds__dstep *s = &d->step[i];
        step[i] = (ds_plan_step){ s->rank,       s->lane, s->to, s->bytes, s->from,
                                  s->from_count, count,   0,     s->start, s->done };
        for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next) {
            uint32_t b = d->link[k].step;
            uint32_t *l = &last[d->step[b].rank * DS__PLAN_LANES + d->step[b].lane];
            if (b + 1 > *l)
                *l = b + 1;
        }
        last[s->rank * DS__PLAN_LANES + s->lane] = 0;
        for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next) {
            uint32_t b = d->link[k].step;
            uint32_t *l = &last[d->step[b].rank * DS__PLAN_LANES + d->step[b].lane];
            if (*l == b + 1)
                before[count++] = b;
            if (*l == b + 1)
                *l = 0;
        }
        for (uint32_t k = s->after; k != DS__NONE; k = d->link[k].next)
            last[d->step[d->link[k].step].rank * DS__PLAN_LANES + d->step[d->link[k].step].lane] =
                0;
        step[i].after_count = count - step[i].after;
    }
    ds__host_free(last);
    n->ranks = d->p;
    n->ways = d->ways;
    n->lanes = d->lanes;
    n->pieces = d->pieces;
    n->piece_bytes = d->piece_bytes;
    n->predicted_ns = d->end;
    n->steps = d->steps;
    return DS_OK;
}

/* Frees a plan, or NULL. */
static void ds__planned_free(ds__planned *o) {
    if (!o)
        return;
    ds_allocator allocator = o->allocator; /* `o` is freed too */
    ds__release_to(&allocator, (void *)(uintptr_t)o->plan.step);
    ds__release_to(&allocator, (void *)(uintptr_t)o->plan.location);
    ds__release_to(&allocator, (void *)(uintptr_t)o->plan.before);
    ds__release_to(&allocator, (void *)(uintptr_t)o->plan.scratch);
    ds__release_to(&allocator, o);
}

/* Frees all plans of a topology. */
static void ds__plans_forget(const ds_topology *t) {
    ds__planned *gone = NULL;
    ds__spinlock_lock(&ds__c.lock);
    for (ds__planned **at = &ds__planned_list; *at;) {
        ds__planned *o = *at;
        if (o->topology != t->id) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        o->next = gone;
        gone = o;
    }
    ds__spinlock_unlock(&ds__c.lock);
    while (gone) {
        ds__planned *next = gone->next;
        ds__planned_free(gone);
        gone = next;
    }
}

/* Returns the kept plan of an equal request, or NULL. ds__c.lock is held. */
static ds__planned *ds__planned_find(const ds_topology *t, const ds_plan_desc *w) {
    for (ds__planned *o = ds__planned_list; o; o = o->next)
        if (o->topology == t->id && o->asked.what == w->what && o->asked.bytes == w->bytes &&
            o->asked.root == w->root && o->asked.item == w->item && o->asked.order == w->order &&
            o->asked.pieces == w->pieces && !o->asked.engine == !w->engine &&
            strcmp(o->algorithm, w->algorithm ? w->algorithm : "") == 0)
            return o;
    return NULL;
}

/* Prepares a search. Returns 0 if memory is exhausted. */
static int ds__search_init(ds__search *s, const ds_topology *t, const ds_plan_desc *w) {
    size_t n = (size_t)t->devices + 1;
    memset(s, 0, sizeof *s);
    s->now.t = t;
    s->now.want = w;
    s->now.p = t->devices;
    for (int i = 0; i < t->devices; i++)
        if (t->seat[i] >= s->now.largest)
            s->now.largest = t->seat[i] + 1;
    s->now.slots = DS__PLAN_SLOTS;
    s->load = ds__host_alloc(((size_t)t->wires + 1) * sizeof *s->load);
    s->now.scratch = ds__host_alloc(n * sizeof *s->now.scratch);
    s->best.scratch = ds__host_alloc(n * sizeof *s->best.scratch);
    s->now.place = ds__host_alloc(DS__PLACES * n * sizeof *s->now.place);
    s->out = ds__host_alloc(sizeof *s->out);
    if (s->out)
        s->out->allocator = ds__allocator;
    return s->load && s->now.scratch && s->best.scratch && s->now.place && s->out;
}

static void ds__search_deinit(ds__search *s) {
    ds__host_free(s->load);
    ds__draft_end(&s->now);
    ds__draft_end(&s->best);
}

/* Computes the bound of the search. Returns 0 if memory is exhausted. */
static int ds__search_bound_set(ds__search *s) {
    size_t n = (size_t)s->now.p + 1;
    const ds_plan_desc *w = s->now.want;
    double *need = ds__host_alloc(n * sizeof *need);
    char *from = ds__host_alloc(n);
    int ok = need && from;
    if (ok)
        s->now.bound = ds__bound_compute(s->now.t, w, need, from);
    s->enough = w->pieces || w->algorithm ? 0 : s->now.bound;
    ds__host_free(need);
    ds__host_free(from);
    return ok;
}

/* Makes the public plan of the best draft. */
static ds_result ds__search_finish(ds__search *s) {
    const ds_plan_desc *w = s->now.want;
    ds__planned *o = s->out;
    if (!s->best.name && w->bytes)
        return ds__fail(DS_ERR_UNSUPPORTED, "%s does not support %s on this topology%s",
                        w->algorithm ? w->algorithm : "no algorithm", ds__collective_names[w->what],
                        w->order == DS_ORDER_ANY ? "" : ", or not in the given order");
    o->plan.desc = o->asked = *w;
    o->plan.desc.algorithm = s->best.name ? s->best.name : "direct";
    snprintf(o->algorithm, sizeof o->algorithm, "%s", w->algorithm ? w->algorithm : "");
    o->asked.algorithm = NULL;
    o->plan.desc.engine = o->asked.engine = w->engine ? "nccl" : NULL;
    o->topology = s->now.t->id;
    o->plan.bound_ns = s->now.bound;
    s->best.p = s->now.p;
    return ds__plan_fill(&s->best, o);
}

/* Makes a new plan. On failure the error is set. */
static ds_result ds__plan_build(const ds_topology *t, const ds_plan_desc *w, ds__planned **out) {
    ds__search s;
    int ok = ds__search_init(&s, t, w) && ds__search_bound_set(&s) && ds__search_twice(&s);
    ds_result r =
        ok ? ds__search_finish(&s) : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a plan");
    if (r == DS_OK)
        *out = s.out;
    else
        ds__planned_free(s.out);
    ds__search_deinit(&s);
    return r;
}

/* Returns 1 if times in nanoseconds are far from the end of an int64_t, and of the estimates of
   guess.h, 10^17: all ranks may send their bytes over the slowest link, and several times. */
static int ds__plan_times_fit(const ds_topology *t, size_t bytes) {
    double slowest = t->memory;
    for (int i = 0; i < t->wires; i++)
        if (t->wire[i] < slowest)
            slowest = t->wire[i];
    return (double)bytes * t->devices / slowest < 100 * 86400.0;
}

DSDEF ds_result(ds_plan_get)(const ds_topology *t, const ds_plan_desc *desc, const ds_plan **out) {
    static const ds_plan_desc usual;
    if (out)
        *out = NULL;
    DS__ENTER("ds_plan_get");
    DS__REQUIRE(t && out, "%s is NULL", t ? "out" : "topology");
    if (!desc)
        desc = &usual;
    DS__REQUIRE_RESERVED("ds_plan_desc", desc);
    DS__REQUIRE((unsigned)desc->what < DS_COLLECTIVE_COUNT,
                "collective is %d; use a ds_collective value", (int)desc->what);
    DS__REQUIRE((unsigned)desc->order <= DS_ORDER_ANY, "order is %d; use a ds_plan_order value",
                (int)desc->order);
    DS__REQUIRE(desc->root >= 0 && desc->root < t->devices,
                "root is rank %d; it must be from 0 to below %d", desc->root, t->devices);
    DS__REQUIRE(!desc->item || desc->bytes % desc->item == 0,
                "%zu bytes are not a multiple of the element size of %zu bytes", desc->bytes,
                desc->item);
    DS__REQUIRE(desc->bytes <= (size_t)1 << 50, "%zu bytes exceed the address space", desc->bytes);
    DS__REQUIRE(
        ds__plan_times_fit(t, desc->bytes),
        "%zu bytes of each of %d ranks take more than 100 days over the slowest link of the "
        "topology",
        desc->bytes, t->devices);
    DS__REQUIRE(desc->pieces <= 1024, "pieces is %zu; at most 1024 are allowed", desc->pieces);
    DS__REQUIRE(!desc->engine || strcmp(desc->engine, "nccl") == 0,
                "engine is \"%.40s\"; use NULL or \"nccl\"", desc->engine);
    DS__REQUIRE(!desc->algorithm || ds__algo_at(desc->algorithm) >= 0,
                "there is no algorithm \"%.40s\"", desc->algorithm);
    DS__REQUIRE(desc->what != DS_ALL_TO_ALL ||
                    desc->bytes / (desc->item ? desc->item : 1) % (size_t)t->devices == 0,
                "%zu bytes cannot be split into %d equal blocks", desc->bytes, t->devices);
    ds__spinlock_lock(&ds__c.lock);
    ds__planned *o = ds__planned_find(t, desc);
    ds__planned *fresh = NULL;
    ds__spinlock_unlock(&ds__c.lock);
    ds_result r = o ? DS_OK : ds__plan_build(t, desc, &fresh);
    if (r < 0)
        return r;
    if (fresh) {
        ds__spinlock_lock(&ds__c.lock);
        o = ds__planned_find(t, desc);
        if (!o) { /* no other thread made the plan meanwhile */
            fresh->next = ds__planned_list;
            ds__planned_list = o = fresh;
            atomic_store(&ds__topology_gone_fn, ds__plans_forget);
            fresh = NULL;
        }
        ds__spinlock_unlock(&ds__c.lock);
        ds__planned_free(fresh);
    }
    *out = &o->plan;
    return DS_OK;
}

/* Writes whether NCCL runs the collective in place of the plan, and why. */
static void ds__plan_write_engine(const ds_topology *t, const ds_plan *plan,
                                  ds__text_writer *writer) {
    char text[300] = "not used: the implementation is not that of devstream_ranks.h";
    ds_device *devices = ds__host_alloc((size_t)t->devices * sizeof *devices);
    for (int i = 0; devices && i < t->devices; i++)
        devices[i] = t->device ? t->device[i] : (ds_device){ DS_DEVICE_CUDA, i };
    ds__engine_question q = { ds__collective_is_sum(plan->desc.what),
                              plan->desc.order == DS_ORDER_ANY, devices, (size_t)t->devices };
    if (!devices)
        snprintf(text, sizeof text, "not used: out of memory");
    else if (ds__plan_explain_fn)
        ds__plan_explain_fn(&q, text, sizeof text);
    ds__host_free(devices);
    ds__text_writer_print(writer, "NCCL: %s\n", text);
}

DSDEF ds_result(ds_plan_write)(const ds_topology *t, const ds_plan *plan, ds_write_fn write_fn,
                               void *user) {
    DS__ENTER("ds_plan_write");
    DS__REQUIRE(t, "topology is NULL");
    DS__REQUIRE(plan, "plan is NULL");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    const ds__planned *o = (const ds__planned *)plan;
    ds__text_writer writer = { write_fn, user, 0, 0 };
    size_t copies = 0;
    for (size_t i = 0; i < plan->steps; i++)
        copies += plan->step[i].from_count == 1;
    ds__text_writer_print(&writer, "%s of %zu bytes over %d ranks",
                          ds__collective_names[plan->desc.what], plan->desc.bytes, plan->ranks);
    if (plan->desc.what <= DS_REDUCE)
        ds__text_writer_print(&writer, ", root %s", t->node[t->rank[plan->desc.root]].name);
    ds__text_writer_print(
        &writer,
        ": %s, %d way%s, %zu piece%s of at most %zu bytes, %zu copies and %zu sums on %d lane%s\n",
        plan->desc.algorithm, plan->ways, plan->ways == 1 ? "" : "s", plan->pieces,
        plan->pieces == 1 ? "" : "s", plan->piece_bytes, copies, plan->steps - copies, plan->lanes,
        plan->lanes == 1 ? "" : "s");
    ds__text_writer_print(
        &writer, "predicted %.1f us, bound %.1f us: %.1f %% of it\n",
        (double)plan->predicted_ns / 1e3, (double)plan->bound_ns / 1e3,
        plan->predicted_ns ? 100.0 * (double)plan->bound_ns / (double)plan->predicted_ns : 100.0);
    for (int i = 0; i < DS__ALGO_NAMES; i++)
        if (o->best[i].ns)
            ds__text_writer_print(&writer, "  %-8s %12.1f us  %d way%s, %zu piece%s\n",
                                  ds__algo_names[i], (double)o->best[i].ns / 1e3, o->best[i].ways,
                                  o->best[i].ways == 1 ? "" : "s", o->best[i].pieces,
                                  o->best[i].pieces == 1 ? "" : "s");
    if (plan->desc.engine)
        ds__plan_write_engine(t, plan, &writer);
    return writer.stopped ? ds__fail(DS_ERR_SYSTEM, "the writer stopped with %d", writer.stopped)
                          : DS_OK;
}

/* comm/internal.h - functions of the collectives that other layers use.

   ds__comm_leave passes a collective to the layer of process groups, if it has a group or engine.
   That layer includes this one, and may be missing.

   Invariants: ds__comm_elsewhere_fn never changes. The layer of groups, if it is there, declares it
   again with its value.
   Locks: none.
   Threads: any. */

typedef enum ds__comm_verb {
    DS__VERB_ALL_REDUCE,
    DS__VERB_REDUCE,
    DS__VERB_BROADCAST,
    DS__VERB_ALL_GATHER,
    DS__VERB_GATHER,
    DS__VERB_REDUCE_SCATTER,
    DS__VERB_SCATTER,
    DS__VERB_ALL_TO_ALL
} ds__comm_verb;

/* A collective of a group. One tensor in `in` or `out` of a verb with a root may be NULL. */
typedef struct ds__comm_call {
    ds__comm_verb verb;
    const ds_tensor *const *in;
    const ds_tensor *const *out;
    size_t in_count;
    size_t out_count;
    ds_reduce_op op;
    int dim;
    const ds_comm_options *options;
} ds__comm_call;

/* Runs a collective with a group or an engine; NULL without the layer of process groups. Returns 0
   if this layer has to do it. */
static int (*ds__comm_elsewhere_fn)(const ds__comm_call *call, ds_result *out);

/* Returns 1 if the layer of process groups has done what the call asks for. */
__attribute__((cold, noinline)) static int ds__comm_leave_for(const ds__comm_call *call,
                                                              ds_result *out) {
    if (ds__comm_elsewhere_fn)
        return ds__comm_elsewhere_fn(call, out);
    *out = call->options->ranks.id
               ? ds__fail(DS_ERR_INVALID_HANDLE,
                          "options->ranks is not a process group; see ds_ranks_init")
               : ds__fail(DS_ERR_UNSUPPORTED,
                          "options->engine is \"nccl\"; define DEVSTREAM_IMPLEMENTATION before the "
                          "inclusion of devstream_ranks.h");
    return 1;
}

static int ds__comm_leave(const ds__comm_call *call, ds_result *out) {
    const ds_comm_options *o = call->options;
    return DS__UNLIKELY(o->ranks.id || o->engine) && ds__comm_leave_for(call, out);
}

/* Refuses a group for a collective that creates its results. instead: the function to use. */
static ds_result ds__comm_refuse_across(const ds_comm_options *options, const char *instead) {
    return DS__LIKELY(!options->ranks.id)
               ? DS_OK
               : ds__fail(DS_ERR_UNSUPPORTED,
                          "with a process group, results are written into tensors of the caller, "
                          "since a rank does not know shapes of other ranks; use %s",
                          instead);
}

/* Checks that the operator is valid and supported for the data type. */
static ds_result ds__reduction_check(ds__reduction reduction);
/* Loads the kernels of collectives on a device. If one cannot be loaded, its first launch reports
   the reason. */
DS__SEAM static void ds__comm_load(ds_device device);
/* Reduces consecutive elements in stream order; zero stream: on the calling thread, at most
   DS__COMM_INPUTS inputs. */
static ds_result ds__comm_reduce(ds_stream stream, ds__reduction reduction, void *out,
                                 const void *const *in, size_t inputs, size_t count);
/* Describes the memory of a tensor for observers. */
static void ds__runs_observe(const ds__comm_copy *tensor, const char *first, ds__runs *m,
                             ds__seen_operand *o);

/* comm/step.h - participants and the list of steps.

   Builds the list of steps of a collective. ds__work_begin opens a ds__work; ds__work_alloc
   returns memory that lasts until ds__work_end (join.h). ds__participant_open checks a tensor and
   finds its lane and region. ds__step_add appends a step, and ds__come_after makes the next step
   of a lane wait for an earlier step.

   Invariants: all lanes of a list belong to one driver. A lane keeps its stream alive until
   ds__work_end. ds__lane_add uses a hazard pointer (pin) for the first three lanes and a
   reference for the others, because a thread has eight hazard pointers. After out-of-memory,
   w->r holds the first failure, and functions that return an index return DS__NO_INDEX
   (ds__step_temporary_add: 0).
   Locks: expects no lock. ds__side_unref and the look-up of a tensor take ds__c.lock for a few
   instructions. No driver call runs under a lock of this room.
   Threads: caller's threads, each with its own ds__work. */

/* Opens a ds__work. Assigns each member, here and in ds__step_add: a memset of this size takes
   longer than a small step. */
static void ds__work_begin(ds__work *w, const ds_comm_options *options) {
    w->options = options;
    w->lane = w->lane_first;
    w->region = w->region_first;
    w->step = w->step_first;
    w->location = w->location_first;
    w->link = NULL;
    w->strided = NULL;
    w->in = w->in_first;
    w->lane_room = w->step_room = w->location_room = 8;
    w->region_room = 12;
    w->lanes = w->regions = w->steps = w->links = w->link_room = w->locations = w->strideds =
        w->strided_room = w->most = w->temporaries = 0;
    w->forked = 0;
    w->progress = DS__WORK_LISTED;
    w->r = DS_OK;
    w->chunks = NULL;
    w->at = w->first;
    w->left = sizeof w->first;
}

/* Returns memory until ds__work_end, not initialised. NULL: out of memory, also in w->r. */
static void *ds__work_alloc(ds__work *w, size_t count, size_t size) {
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes < PTRDIFF_MAX / 2) {
        bytes = (bytes + 15) & ~(size_t)15;
        if (DS__UNLIKELY(bytes > w->left)) {
            size_t room = bytes > 2 * sizeof w->first ? bytes : 2 * sizeof w->first;
            void **chunk = ds__host_alloc(16 + room);
            w->left = 0;
            if (chunk) {
                *chunk = w->chunks;
                w->chunks = chunk;
                w->at = (char *)chunk + 16;
                w->left = room;
            }
        }
        if (DS__LIKELY(bytes <= w->left)) {
            void *at = w->at;
            w->at += bytes;
            w->left -= bytes;
            return at;
        }
    }
    if (w->r == DS_OK)
        w->r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the steps");
    return NULL;
}

/* Doubles the room of an array of the list; 0: out of memory. `array` is the address of the array's
   pointer. */
__attribute__((noinline)) static int ds__more_room(ds__work *w, void *array, size_t count,
                                                   size_t *room, size_t size) {
    void *at;
    size_t n = *room ? 2 * *room : 8;
    void *fresh = ds__work_alloc(w, n < UINT32_MAX ? n : SIZE_MAX, size);
    if (!fresh)
        return 0;
    memcpy(&at, array, sizeof at);
    if (count)
        memcpy(fresh, at, count * size);
    memcpy(array, &fresh, sizeof fresh);
    *room = n;
    return 1;
}

/* Appends an element to an array of the list, not initialised; NULL: out of memory. */
#define DS__MORE(w, what)                                                                       \
    (DS__LIKELY((w)->what##s < (w)->what##_room) ||                                             \
             ds__more_room((w), &(w)->what, (w)->what##s, &(w)->what##_room, sizeof *(w)->what) \
         ? &(w)->what[(w)->what##s++]                                                           \
         : NULL)

/* Returns a stream of ds__side_ref to the table. */
static void ds__side_unref(ds_device device, int number) {
    ds__spinlock_lock(&ds__c.lock);
    ds__sides_of[ds__backend_of(device)][device.index]->taken[number] = 0;
    ds__spinlock_unlock(&ds__c.lock);
}

static int ds__same_device(ds_device a, ds_device b) {
    return a.type == b.type && a.index == b.index;
}

/* Returns a name as text, without a leading "the". */
static const char *ds__name_text_bare(ds__name name) {
    if (strncmp(name.words, "the ", 4) == 0)
        name.words += 4;
    return ds__name_text(name);
}

/* Returns the lane with this stream; DS__NO_INDEX: there is none, or it is on another device than
   the tensor (ds__lane_check reports that). */
static uint32_t ds__lane_index(const ds__work *w, ds_stream stream, ds_device device) {
    for (uint32_t i = 0; i < w->lanes; i++)
        if (w->lane[i].stream.id == stream.id &&
            (device.type == DS_DEVICE_HOST || ds__same_device(w->lane[i].device, device)))
            return i;
    return DS__NO_INDEX;
}

/* Checks that a stream is on the device of its tensor, and its driver that of the other lanes. */
static inline ds_result ds__lane_check(const ds__work *w, const ds__stream *s, ds__name name,
                                       ds_device device) {
    if (device.type != DS_DEVICE_HOST && !ds__same_device(s->device, device))
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "the stream of the %s is on %s:%d, not on %s:%d",
                        ds__name_text_bare(name), ds__type_name(s->device.type), s->device.index,
                        ds__type_name(device.type), device.index);
    if (w->lanes && w->lane[0].device.type != s->device.type)
        return ds__fail(DS_ERR_CROSS_DRIVER, "the %s is on %s:%d, but others are on %s:%d",
                        ds__name_text_bare(name), ds__type_name(s->device.type), s->device.index,
                        ds__type_name(w->lane[0].device.type), w->lane[0].device.index);
    return DS_OK;
}

/* Appends a lane and returns its index; DS__NO_INDEX: out of memory. Takes over the pin of the
   stream. side: the number of a stream of ds__side_ref plus 1, or 0. */
static inline uint32_t ds__lane_add(ds__work *w, ds__stream *s, ds_stream stream, int side) {
    ds__clane *lane = DS__MORE(w, lane);
    int pinned = lane && !side && w->lanes <= DS__PINS / 2 - 1;
    if (lane)
        *lane = (ds__clane){ s, stream, s->device, DS__NO_INDEX, pinned, 0, side };
    if (lane && !pinned)
        ds__ref(s);
    if (!pinned)
        ds__stream_unpin(s);
    return lane ? (uint32_t)w->lanes - 1 : DS__NO_INDEX;
}

/* Finds or appends the lane of a tensor on a device: the given stream, else the current stream of
   the device. *out is DS__NO_INDEX for a tensor on the host without a stream. */
static ds_result ds__lane_find(ds__work *w, ds_stream given, ds__name name, ds_device device,
                               uint32_t *out) {
    *out = DS__NO_INDEX;
    if (!given.id && device.type == DS_DEVICE_HOST)
        return DS_OK;
    ds_result r = given.id ? DS_OK : ds__stream_current(device, &given);
    if (r < 0)
        return r;
    *out = ds__lane_index(w, given, device);
    if (*out != DS__NO_INDEX)
        return DS_OK;
    ds__stream *s = ds__stream_pin(given);
    if (!s)
        return ds__fail_append(DS_ERR_INVALID_HANDLE, " (the stream of the %s)",
                               ds__name_text_bare(name));
    r = ds__lane_check(w, s, name, device);
    if (r < 0) {
        ds__stream_unpin(s);
        return r;
    }
    *out = ds__lane_add(w, s, given, 0);
    return *out == DS__NO_INDEX ? w->r : DS_OK;
}

/* Returns the stream that the options have for a tensor of a list, or (DS__NO_LIST) for the single
   tensor; a zero handle if they have none. */
static ds_stream ds__given_stream(const ds_comm_options *o, size_t index) {
    if (index == DS__NO_LIST)
        return o->stream;
    return index < o->stream_count ? o->streams[index] : (ds_stream){ 0 };
}

/* Checks that a description agrees with the allocation that contains its memory, if devstream knows
   one. *direct: 1 if kernels can use the memory. */
static ds_result ds__participant_memory(const ds__dims *d, ds__name name, int *direct) {
    ds_pointer_info info;
    *direct = d->device.type != DS_DEVICE_HOST;
    if (!d->count || !ds__memory_table_find(d->first, &info))
        return DS_OK;
    ptrdiff_t at = (ptrdiff_t)((uintptr_t)d->first - (uintptr_t)info.base);
    DS__REQUIRE(at >= -d->low && d->high <= (ptrdiff_t)info.size - at,
                "%s: %td bytes at offset %td exceed the allocation of %zu bytes",
                ds__name_text(name), d->high - d->low, at + d->low, info.size);
    if (info.kind == DS_MEMORY_DEVICE && d->device.type != DS_DEVICE_HOST &&
        !ds__same_device(info.device, d->device))
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "the device of %s is %s:%d, but its memory is on %s:%d",
                        ds__name_text(name), ds__type_name(d->device.type), d->device.index,
                        ds__type_name(info.device.type), info.device.index);
    if (info.kind == DS_MEMORY_DEVICE && d->device.type == DS_DEVICE_HOST &&
        info.device.type != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "the device of %s is the host, but its memory is on %s:%d",
                        ds__name_text(name), ds__type_name(info.device.type), info.device.index);
    *direct = 1; /* known memory of the host is pinned */
    return DS_OK;
}

/* Returns the layout of a tensor, or NULL. */
__attribute__((cold, noinline)) static const ds__layout *ds__layout_of(ds__work *w,
                                                                       const ds__dims *d) {
    size_t dims = sizeof(int64_t[2]) * (size_t)d->ndim;
    ds__layout *l = d->count ? ds__work_alloc(w, 1, sizeof *l + dims) : NULL;
    if (!l)
        return NULL;
    l->item = d->item;
    l->ndim = d->ndim;
    memcpy(l->dims, d->shape, dims / 2);
    memcpy(l->dims + d->ndim, d->strides, dims / 2);
    return l;
}

/* Reads and checks a tensor, and finds its lane and region. stream: as in ds__given_stream. */
static ds_result ds__participant_open(ds__work *w, const ds_tensor *t, ds__name name, size_t stream,
                                      int written, ds__participant *p) {
    uint32_t lane;
    int direct;
    unsigned flags = 0;
    ds_result r = ds__tensor_read(t, name, &p->d);
    if (r < 0)
        return r;
    if (written)
        (void)ds__tensor_share(t, NULL, &flags);
    DS__REQUIRE(!(flags & DS_TENSOR_READ_ONLY), "%s is read-only", ds__name_text(name));
    for (int i = 0; i < p->d.ndim && written; i++)
        DS__REQUIRE(p->d.strides[i] || p->d.shape[i] < 2 || !p->d.count,
                    "%s has %lld elements at one address: dimension %d has the stride 0",
                    ds__name_text(name), (long long)p->d.shape[i], i);
    r = ds__participant_memory(&p->d, name, &direct);
    if (r == DS_OK)
        r = ds__lane_find(w, ds__given_stream(w->options, stream), name, p->d.device, &lane);
    if (r < 0)
        return r;
    ds__region *g = DS__MORE(w, region);
    if (!g)
        return w->r;
    *g = (ds__region){ p->d.first, p->d.bytes, NULL, lane, direct, 0, p->d.device };
    if (ds__observer_is_set())
        g->layout = ds__layout_of(w, &p->d);
    p->at = (ds__location){ (uint32_t)w->regions - 1, 0 };
    return DS_OK;
}

/* Opens a tensor that is read. index: its place in its list and in options->streams, or
   DS__NO_LIST. */
static ds_result ds__input_open(ds__work *w, const ds_tensor *t, const char *words, size_t index,
                                ds__participant *p) {
    return ds__participant_open(w, t, ds__name_of(words, index), index, 0, p);
}

/* As ds__input_open, for a tensor that is written. */
static ds_result ds__output_open(ds__work *w, const ds_tensor *t, const char *words, size_t index,
                                 ds__participant *p) {
    return ds__participant_open(w, t, ds__name_of(words, index), index, 1, p);
}

/* Assigns the first lane to host memory without a stream. Called when all participants are open. */
static ds_result ds__work_settle(ds__work *w) {
    if (w->r < 0)
        return w->r;
    if (!w->lanes)
        return ds__fail(DS_ERR_INVALID_DEVICE,
                        "none of the tensors is on a device, and no stream was given");
    for (size_t i = 0; i < w->regions; i++)
        if (w->region[i].lane == DS__NO_INDEX)
            w->region[i].lane = 0;
    return DS_OK;
}

/* Appends a temporary region on the device of a lane, and returns its location. */
static ds__location ds__temporary_add(ds__work *w, uint32_t lane, size_t bytes) {
    ds__region *g = DS__MORE(w, region);
    if (!g)
        return (ds__location){ 0, 0 };
    *g = (ds__region){ NULL, bytes, NULL, lane, 1, 1, w->lane[lane].device };
    w->temporaries++;
    return (ds__location){ (uint32_t)w->regions - 1, 0 };
}

/* Appends a step and returns its index; DS__NO_INDEX: out of memory. */
static uint32_t ds__step_add(ds__work *w, int kind, uint32_t lane, ds__location dst,
                             ds__location src) {
    ds__cstep *s = DS__MORE(w, step);
    if (!s)
        return DS__NO_INDEX;
    s->kind = (uint8_t)kind;
    s->reduction = (ds__reduction){ 0 };
    s->watched = 0;
    s->done.id = 0;
    s->width = s->height = s->dst_pitch = s->src_pitch = 0;
    s->strided = s->first = s->count = 0;
    s->lane = lane;
    s->after = w->lane[lane].pending;
    w->lane[lane].pending = DS__NO_INDEX;
    w->lane[lane].busy = 1;
    s->dst = dst;
    s->src = src;
    return (uint32_t)w->steps - 1;
}

/* Appends a copy of consecutive bytes. Returns the step; DS__NO_INDEX: out of memory, or no
   bytes. */
static uint32_t ds__step_copy_add(ds__work *w, uint32_t lane, ds__location dst, ds__location src,
                                  size_t bytes) {
    uint32_t i = w->r < 0 || !bytes ? DS__NO_INDEX : ds__step_add(w, DS__STEP_COPY, lane, dst, src);
    if (i == DS__NO_INDEX)
        return i;
    w->step[i].width = w->step[i].dst_pitch = w->step[i].src_pitch = bytes;
    w->step[i].height = 1;
    return i;
}

/* Appends a reduction of the inputs at w->location[first] and all later locations. Returns the
   step; DS__NO_INDEX: out of memory. */
static uint32_t ds__step_reduce_add(ds__work *w, uint32_t lane, ds__location dst, uint32_t first,
                                    ds__reduction reduction, size_t elements) {
    uint32_t i = ds__step_add(w, DS__STEP_REDUCE, lane, dst, (ds__location){ 0, 0 });
    if (i == DS__NO_INDEX)
        return i;
    w->step[i].reduction = reduction;
    w->step[i].first = first;
    w->step[i].count = (uint32_t)w->locations - first;
    w->step[i].width = elements;
    if (w->step[i].count > w->most)
        w->most = w->step[i].count;
    return i;
}

/* Makes the next step of the lane, and therefore all later ones, wait for a step. */
static void ds__come_after(ds__work *w, uint32_t lane, uint32_t step) {
    if (step == DS__NO_INDEX || w->r < 0 || w->step[step].lane == lane)
        return;
    ds__link *n = DS__MORE(w, link);
    if (!n)
        return;
    *n = (ds__link){ step, w->lane[lane].pending };
    w->lane[lane].pending = (uint32_t)w->links - 1;
    w->step[step].watched = 1;
}

/* Returns 1 if kernels of a lane can use the region. On a virtual clock, kernels occupy no links,
   so memory of other devices must be copied. */
static int ds__step_reaches(ds__work *w, uint32_t lane, uint32_t region) {
    const ds__region *g = &w->region[region];
    const ds__clane *l = &w->lane[lane];
    int reach = 0;
    if (l->s->driver->fabric())
        return g->device.type == l->device.type && g->device.index == l->device.index;
    if (g->device.type == DS_DEVICE_HOST)
        return g->direct;
    if (g->device.index == l->device.index)
        return 1;
    ds_result r = l->s->driver->device_peer(l->device.index, g->device.index, &reach);
    if (r < 0 && w->r == DS_OK)
        w->r = r;
    return r == DS_OK && reach;
}

/* comm/move.h - copies between strided tensors.

   Translates a copy between two tensors of one shape into steps (ds__copy_add,
   ds__copy_participant). The copy becomes one plain copy, one copy of rows, one strided copy by a
   kernel, or several of these. If kernels of the lane cannot use both memories, ds__copy_add packs
   the elements at the source, copies one block and unpacks at the destination.
   ds__participant_slice describes a part of a participant along one dimension.

   Invariants: the lane belongs to the source or to the destination. Strides are in elements. A
   strided copy has at most eight dimensions. A copy of rows has no pitch above INT32_MAX,
   because cudaMemcpy2DAsync accepts none (cudaDevAttrMaxPitch).
   Locks: takes none and expects none; ds__step_reaches asks the driver for peer access.
   Threads: caller's threads, each with its own ds__work. */

/* A copy that is translated into steps. */
typedef struct ds__moves {
    ds__runs runs;
    uint32_t lane;
    uint32_t last; /* the last step; DS__NO_INDEX: none */
    size_t item;
    int kernel; /* 1: kernels of the lane can use both memories */
} ds__moves;

/* Returns 1 if the dimension may be the rows of a driver's copy. */
static int ds__moves_has_rows(const ds__moves *m, int dim) {
    int64_t dst = m->runs.dst[dim];
    int64_t src = m->runs.src[dim];
    int64_t width = (int64_t)m->runs.width;
    return dst >= width && src >= width && dst <= INT32_MAX && src <= INT32_MAX;
}

/* Returns 1 if one step of the driver does the whole copy, except for the limit of the pitch. */
static int ds__moves_is_simple(const ds__moves *m) {
    const ds__runs *n = &m->runs;
    return n->ndim == 0 ||
           (n->ndim == 1 && n->dst[0] >= (int64_t)n->width && n->src[0] >= (int64_t)n->width);
}

/* Appends a copy of the rows of the last dimension. */
static void ds__moves_add_rows(ds__work *w, ds__moves *m, ds__location dst, ds__location src) {
    int dim = m->runs.ndim - 1;
    uint32_t i = m->last = ds__step_add(w, DS__STEP_ROWS, m->lane, dst, src);
    if (i == DS__NO_INDEX)
        return;
    w->step[i].width = m->runs.width;
    w->step[i].height = (size_t)m->runs.shape[dim];
    w->step[i].dst_pitch = (size_t)m->runs.dst[dim];
    w->step[i].src_pitch = (size_t)m->runs.src[dim];
}

/* Appends a strided copy of the dimensions from `dim` on. A run of several elements is its last
   dimension. */
static void ds__moves_add_pack(ds__work *w, ds__moves *m, int dim, ds__location dst,
                               ds__location src) {
    int64_t item = (int64_t)m->item;
    ds__strided *k = DS__MORE(w, strided);
    uint32_t i = m->last = k ? ds__step_add(w, DS__STEP_PACK, m->lane, dst, src) : DS__NO_INDEX;
    if (i == DS__NO_INDEX)
        return;
    w->step[i].strided = (uint32_t)w->strideds - 1;
    k->ndim = 0;
    k->item = m->item;
    for (int d = dim; d < m->runs.ndim; d++, k->ndim++) {
        k->shape[k->ndim] = m->runs.shape[d];
        k->dst[k->ndim] = m->runs.dst[d] / item;
        k->src[k->ndim] = m->runs.src[d] / item;
    }
    if (m->runs.width > m->item) {
        k->shape[k->ndim] = (int64_t)m->runs.width / item;
        k->dst[k->ndim] = k->src[k->ndim] = 1;
        k->ndim++;
    }
}

/* Appends the steps for the dimensions from `dim` on. A dimension that no step can take becomes one
   copy for each of its indices. */
static void ds__moves_add(ds__work *w, ds__moves *m, int dim, ds__location dst, ds__location src) {
    enum { WIDE_ROW = 256 }; /* bytes; kernels copy only shorter rows */

    int n = m->runs.ndim - dim;
    if (w->r < 0)
        return;
    if (n == 0) {
        m->last = ds__step_copy_add(w, m->lane, dst, src, m->runs.width);
        return;
    }
    if (n == 1 && ds__moves_has_rows(m, dim) && (!m->kernel || m->runs.width >= WIDE_ROW)) {
        ds__moves_add_rows(w, m, dst, src);
        return;
    }
    if (m->kernel && n + (m->runs.width > m->item) <= 8) {
        ds__moves_add_pack(w, m, dim, dst, src);
        return;
    }
    for (int64_t i = 0; i < m->runs.shape[dim] && w->r == DS_OK; i++) {
        ds__moves_add(w, m, dim + 1, dst, src);
        dst.offset += (ptrdiff_t)m->runs.dst[dim];
        src.offset += (ptrdiff_t)m->runs.src[dim];
    }
}

static uint32_t ds__copy_add(ds__work *w, uint32_t lane, ds__operand dst, ds__operand src,
                             const ds__dims *shape);

static int ds__runs_of_operands(const ds__dims *shape, const int64_t *dst, const int64_t *src,
                                ds__runs *out) {
    ds__runs_of(&(ds__comm_copy){ shape->item, shape->ndim, shape->shape, dst, src }, out);
    return out->ndim;
}

/* Copies between devices without peer access: packs at the source, copies one block, and unpacks at
   the destination. A side without gaps is used as it is. */
static uint32_t ds__copy_add_packed(ds__work *w, uint32_t lane, ds__operand dst, ds__operand src,
                                    const ds__dims *shape) {
    int64_t row[DS_TENSOR_MAX_DIMS];
    ds__runs runs;
    size_t bytes = (size_t)shape->count * shape->item;
    ds__location block = src.at;
    uint32_t at_src = w->region[src.at.region].lane;
    uint32_t at_dst = w->region[dst.at.region].lane;
    ds__row_major(shape->ndim, shape->shape, row);
    if (ds__runs_of_operands(shape, row, src.strides, &runs)) {
        block = ds__temporary_add(w, at_src, bytes);
        ds__come_after(w, lane, ds__copy_add(w, at_src, (ds__operand){ block, row }, src, shape));
    }
    if (!ds__runs_of_operands(shape, dst.strides, row, &runs))
        return ds__step_copy_add(w, lane, dst.at, block, bytes);
    ds__operand there = { ds__temporary_add(w, at_dst, bytes), row };
    ds__come_after(w, at_dst, ds__step_copy_add(w, lane, there.at, block, bytes));
    return ds__copy_add(w, at_dst, dst, there, shape);
}

/* Appends the steps of a copy on a lane, which is that of the source or of the destination. Shape
   and data type are those of `shape`. Returns the last step; DS__NO_INDEX: none, or out of
   memory. */
static uint32_t ds__copy_add(ds__work *w, uint32_t lane, ds__operand dst, ds__operand src,
                             const ds__dims *shape) {
    ds__moves m;
    if (w->r < 0 || !shape->count)
        return DS__NO_INDEX;
    m.lane = lane;
    m.last = DS__NO_INDEX;
    m.item = shape->item;
    m.kernel = ds__runs_of_operands(shape, dst.strides, src.strides, &m.runs) &&
               ds__step_reaches(w, lane, dst.at.region) && ds__step_reaches(w, lane, src.at.region);
    if (!ds__moves_is_simple(&m) && !m.kernel &&
        w->region[dst.at.region].device.type != DS_DEVICE_HOST &&
        w->region[src.at.region].device.type != DS_DEVICE_HOST)
        return ds__copy_add_packed(w, lane, dst, src, shape);
    ds__moves_add(w, &m, 0, dst.at, src.at);
    return m.last;
}

static ds__operand ds__operand_of(const ds__participant *p) {
    return (ds__operand){ p->at, p->d.strides };
}

/* Copies one participant to another one of the same shape. */
static uint32_t ds__copy_participant(ds__work *w, uint32_t lane, const ds__participant *to,
                                     const ds__participant *from) {
    return ds__copy_add(w, lane, ds__operand_of(to), ds__operand_of(from), &to->d);
}

static uint32_t ds__lane_of(const ds__work *w, const ds__participant *p) {
    return w->region[p->at.region].lane;
}

/* Copies a participant, on its lane, to new temporary memory with these strides. */
static ds__source ds__participant_pack(ds__work *w, const ds__participant *p,
                                       const int64_t *strides) {
    uint32_t lane = ds__lane_of(w, p);
    ds__operand packed = { ds__temporary_add(w, lane, p->d.bytes), strides };
    return (ds__source){ packed.at, ds__copy_add(w, lane, packed, ds__operand_of(p), &p->d) };
}

/* The part of a participant that has the indices of `slice` in a dimension. Member by member, since
   most of a participant is dimensions that are not in use. */
static ds__participant ds__participant_slice(const ds__participant *p, int dim, ds__slice slice) {
    ds__participant part;
    part.at = p->at;
    part.d.first = p->d.first;
    part.d.device = p->d.device;
    part.d.given = p->d.given;
    part.d.dtype = p->d.dtype;
    part.d.ndim = p->d.ndim;
    part.d.item = p->d.item;
    part.d.low = p->d.low;
    part.d.high = p->d.high;
    for (int i = 0; i < p->d.ndim; i++) {
        part.d.shape[i] = p->d.shape[i];
        part.d.strides[i] = p->d.strides[i];
    }
    part.d.shape[dim] = slice.size;
    ds__dims_recount(&part.d);
    part.d.bytes = (size_t)part.d.count * part.d.item;
    ds__dims_move(&part.d, dim, slice.begin);
    part.at.offset += part.d.first - p->d.first;
    return part;
}

/* comm/submit.h - execution of single steps.

   Runs the steps of a list in one of three ways for ds__work_run. ds__step_run enqueues one step
   on the stream of its lane, ds__steps_run_together several copies as a batch. ds__steps_at_once
   lets the calling thread run all steps. ds__spread_run replaces copies of one source by one
   kernel.

   Invariants: temporary regions have their addresses before a step runs. ds__steps_spread
   changes the lanes of steps, so ds__work_run calls it before any wait is enqueued. Steps run at
   once only if no capture is open and no copy needs staging through the host. Each step then has
   at most DS__STEPS_INLINE times the driver's inline_bytes, and all steps together have at most
   four times as many bytes.
   Locks: takes none itself. ds__steps_now runs under the locks of the driver's run_together and
   must not call a driver entry. Functions that call the driver expect no lock; ds__join_here
   blocks until a stream is idle.
   Threads: caller's threads, each with its own ds__work. The kernel of ds__spread_run runs on
   workers of the CPU driver. */

static char *ds__location_at(const ds__work *w, ds__location s) {
    return w->region[s.region].at + s.offset;
}

/* Runs a strided copy or a reduction by kernels; zero stream: on the calling thread. */
static ds_result ds__step_kernel(const ds__work *w, const ds__cstep *s, ds_stream stream) {
    char *dst = ds__location_at(w, s->dst);
    if (s->kind == DS__STEP_PACK) {
        const ds__strided *k = &w->strided[s->strided];
        return ds__comm_pack(stream, dst, ds__location_at(w, s->src),
                             &(ds__comm_copy){ k->item, k->ndim, k->shape, k->dst, k->src });
    }
    for (uint32_t i = 0; i < s->count; i++)
        w->in[i] = ds__location_at(w, w->location[s->first + i]);
    return ds__comm_reduce(stream, s->reduction, dst, w->in, s->count, s->width);
}

/* Runs a reduction to several outputs; stream NULL: on the calling thread. */
static ds_result ds__step_reduce_all(const ds__work *w, const ds__cstep *s, ds__stream *stream) {
    uint32_t half = s->count / 2;
    for (uint32_t i = 0; i < s->count; i++)
        w->in[i] = ds__location_at(w, w->location[s->first + i]);
    return ds__comm_reduce_all(stream, s->reduction, w->in, w->in + half, half, s->width);
}

/* Enqueues a step on the stream of its lane. */
static ds_result ds__step_run(const ds__work *w, const ds__cstep *s) {
    const ds__clane *l = &w->lane[s->lane];
    char *dst = ds__location_at(w, s->dst);
    ds_result r = DS_OK;
    switch (s->kind) {
    case DS__STEP_COPY:
        if (ds__copy_plain(l->s, dst, ds__location_at(w, s->src), s->width, &r))
            return r;
        return ds__copy_between(l->s, &DS__COPY_ROW(dst, ds__location_at(w, s->src), s->width));
    case DS__STEP_ROWS:
        return ds__copy_between(l->s, &(ds__copy_request){ .dst = dst,
                                                           .src = ds__location_at(w, s->src),
                                                           .dst_pitch = s->dst_pitch,
                                                           .src_pitch = s->src_pitch,
                                                           .width = s->width,
                                                           .height = s->height });
    case DS__STEP_REDUCE_ALL:
        return ds__step_reduce_all(w, s, l->s);
    default:
        DS__KEEPING(r, ds__step_kernel(w, s, l->stream));
        return r;
    }
}

enum { DS__STEPS_TOGETHER = 32 }; /* the most copies of a batch */

static int ds__bytes_overlap(const char *a, size_t a_size, const char *b, size_t b_size) {
    return a < b + b_size && b < a + a_size;
}

/* Returns 1 if two copies may run in any order. */
static int ds__copies_independent(const ds__work *w, const ds__cstep *a, const ds__cstep *b) {
    const char *a_dst = ds__location_at(w, a->dst);
    const char *b_dst = ds__location_at(w, b->dst);
    return !ds__bytes_overlap(a_dst, a->width, b_dst, b->width) &&
           !ds__bytes_overlap(a_dst, a->width, ds__location_at(w, b->src), b->width) &&
           !ds__bytes_overlap(b_dst, b->width, ds__location_at(w, a->src), a->width);
}

/* Returns 1 if step i may be enqueued together with the steps from `first` to the one before it:
   all are copies of one lane, it waits for no other lane, none of the others is waited for, and
   they may run in any order. */
static int ds__step_joins(const ds__work *w, size_t first, size_t i) {
    const ds__cstep *s = &w->step[i];
    if (s->kind != DS__STEP_COPY || s->lane != w->step[first].lane || s->after != DS__NO_INDEX ||
        w->step[i - 1].watched)
        return 0;
    for (size_t k = first; k < i; k++)
        if (!ds__copies_independent(w, &w->step[k], s))
            return 0;
    return 1;
}

/* Returns the number of steps from `first` on that are enqueued together. On a GPU a batch of
   copies is one call of cudart; elsewhere it gains nothing. */
static size_t ds__steps_together(const ds__work *w, size_t first) {
    const ds__cstep *s = &w->step[first];
    size_t n = 1;
    if (s->kind != DS__STEP_COPY || w->lane[s->lane].device.type != DS_DEVICE_CUDA)
        return 1;
    while (n < DS__STEPS_TOGETHER && first + n < w->steps && ds__step_joins(w, first, first + n))
        n++;
    return n;
}

/* Enqueues copies of one lane, of which there are at most DS__STEPS_TOGETHER, as a batch. */
static ds_result ds__steps_run_together(const ds__work *w, const ds__cstep *s, size_t count) {
    void *dst[DS__STEPS_TOGETHER];
    const void *src[DS__STEPS_TOGETHER];
    size_t sizes[DS__STEPS_TOGETHER];
    for (size_t i = 0; i < count; i++) {
        dst[i] = ds__location_at(w, s[i].dst);
        src[i] = ds__location_at(w, s[i].src);
        sizes[i] = s[i].width;
    }
    return ds__copy_batch(w->lane[s->lane].s, &(ds__copy_list){ dst, src, sizes, count });
}

/* Runs all steps on the calling thread, in list order. */
static void ds__steps_now(void *user) {
    const ds__work *w = user;
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        if (s->kind == DS__STEP_REDUCE_ALL) {
            DS_IGNORE(ds__step_reduce_all(w, s, NULL));
            continue;
        }
        if (s->kind != DS__STEP_COPY && s->kind != DS__STEP_ROWS) {
            DS_IGNORE(ds__step_kernel(w, s, (ds_stream){ 0 }));
            continue;
        }
        char *dst = ds__location_at(w, s->dst);
        char *src = ds__location_at(w, s->src);
        for (size_t row = 0; row < s->height; row++)
            memcpy(dst + row * s->dst_pitch, src + row * s->src_pitch, s->width);
    }
}

/* Returns 1 if neither of the step's devices can access the other one, so that the copy goes
   through the host. */
static int ds__step_stages(const ds__work *w, const ds__cstep *s) {
    ds_device to = w->region[s->dst.region].device;
    ds_device from = w->region[s->src.region].device;
    const ds__driver *driver = w->lane[0].s->driver;
    int reach = 1;
    return to.type == from.type && to.index != from.index &&
           (driver->device_peer(to.index, from.index, &reach) < 0 ||
            (!reach && driver->device_peer(from.index, to.index, &reach) < 0) || !reach);
}

/* Returns 1 if a step copies the same bytes as the first step, and a kernel may do both. */
static int ds__step_spreads(const ds__work *w, const ds__cstep *s) {
    const ds__cstep *first = w->step;
    return s->kind == DS__STEP_COPY && s->src.region == first->src.region &&
           s->src.offset == first->src.offset && s->width == first->width &&
           s->after == DS__NO_INDEX && !s->watched && w->region[s->dst.region].direct &&
           w->region[s->src.region].direct && !ds__step_stages(w, s);
}

/* If all steps copy the same bytes, and kernels run on the processor, one kernel can read the bytes
   once. Returns 1 in this case, and moves all steps to the lane of the first step. */
static int ds__steps_spread(ds__work *w) {
    const ds__cstep *first = w->step;
    if (w->steps < 2 || w->steps > DS__SPREAD || !w->lane[0].s->driver->spreads() ||
        ds__captures_open())
        return 0;
    for (size_t i = 0; i < w->steps; i++)
        if (!ds__step_spreads(w, &w->step[i]))
            return 0;
    for (size_t i = 1; i < w->steps; i++) {
        w->lane[w->step[i].lane].busy = 0;
        w->step[i].lane = first->lane;
    }
    w->lane[first->lane].busy = 1;
    return 1;
}

/* Enqueues the kernel of ds__steps_spread. */
static ds_result ds__spread_run(const ds__work *w) {
    ds__stream *s = w->lane[w->step[0].lane].s;
    ds__spread_args a = { .src = ds__location_at(w, w->step[0].src),
                          .count = w->steps,
                          .bytes = w->step[0].width };
    for (size_t i = 0; i < w->steps; i++)
        a.dst[i] = ds__location_at(w, w->step[i].dst);
    ds__op op = ds__op_init(DS__OP_KERNEL);
    op.u.kernel.kernel = &ds__spread_kernel;
    op.u.kernel.items = (a.bytes + DS__SPREAD_ITEM - 1) / DS__SPREAD_ITEM;
    op.u.kernel.args_size = sizeof a;
    op.u.kernel.args = &a;
    op.u.kernel.grid = NULL;
    return ds__stream_submit(s, &op);
}

/* A collective hands over more work at once than a copy and waits for more streams, so the caller
   runs steps of up to so many times the driver's inline_bytes. With 64 KiB, that takes less time
   than to enqueue the steps and to wait for them. */
enum { DS__STEPS_INLINE = 4 };

/* Returns 1 if the calling thread may run the steps: they are small, no capture is open, and no
   copy goes through the host. */
static int ds__steps_small(const ds__work *w) {
    const size_t most = DS__STEPS_INLINE * w->lane[0].s->driver->inline_bytes;
    size_t all = 0;
    size_t bytes;
    if (!most || w->lanes > DS__INLINE_LANES || ds__captures_open())
        return 0;
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        if (s->kind == DS__STEP_REDUCE) {
            /* several launches may need memory for partial results */
            if (s->count > DS__COMM_INPUTS)
                return 0;
            bytes = s->width * (ds_dtype_get_size)(s->reduction.dtype);
        } else if (s->kind == DS__STEP_REDUCE_ALL) {
            bytes = s->width * (ds_dtype_get_size)(s->reduction.dtype);
            all += (s->count / 2 - 1) * bytes;
        } else if (s->kind == DS__STEP_PACK) {
            const ds__strided *k = &w->strided[s->strided];
            bytes = (size_t)ds__count_of(k->ndim, k->shape) * k->item;
        } else {
            bytes = s->width * s->height;
            if (bytes <= most && ds__step_stages(w, s))
                return 0;
        }
        all += bytes;
        if (bytes > most || all > 4 * most)
            return 0;
    }
    return 1;
}

/* Lets the calling thread run the steps if they are small and no lane has pending work; w->progress
   is DS__WORK_RAN then. */
static ds_result ds__steps_at_once(ds__work *w) {
    void *native[DS__INLINE_LANES];
    int ran = 0;
    if (!ds__steps_small(w))
        return DS_OK;
    for (size_t i = 0; i < w->lanes; i++)
        native[i] = w->lane[i].s->native;
    ds_result r = w->lane[0].s->driver->run_together(native, w->lanes, ds__steps_now, w, &ran);
    if (ran)
        w->progress = DS__WORK_RAN;
    return r;
}

/* Waits on the host for a lane, unless a capture is open. Called if the wait of a stream failed,
   because the caller frees memory afterwards that the lane may still write. */
__attribute__((cold, noinline)) static void ds__join_here(const ds__clane *l) {
    if (ds__captures_open())
        return;
    ds__tls.mute++;
    DS_IGNORE(l->s->driver->stream_synchronize(l->s->native, DS__FOREVER));
    ds__tls.mute--;
}

/* comm/join.h - running a list of steps, and its waits.

   ds__work_run runs the list that a collective has written, and notifies observers of its
   operands. ds__work_steps allocates temporary memory, enqueues waits and steps, joins the lanes,
   records uses of memory with the allocator, and frees the temporary memory. ds__join_streams
   makes all lanes wait for each other.
   ds__fork_capture extends a stream capture to all lanes. ds__work_end closes a ds__work.
   ds__join_event_create and ds__join_event_destroy keep a stock of events for each device.

   Invariants: after a successful join, later work on any lane starts after all steps. If a step
   fails, the remaining steps are left out, but the join, the uses and the frees still happen. If
   a wait of that join fails, the host waits for the lane instead, unless a capture is open. The
   first failure is reported. An event returns to the stock as soon as its waits are enqueued,
   because a wait keeps the record of that moment.
   Locks: ds__join_event_create and ds__join_event_destroy take ds__c.lock for the stock alone. No
   driver call runs under it.
   Threads: caller's threads, each with its own ds__work. ds__join_events_deinit runs in ds_shutdown
   only and takes no lock. */

/* The lane of the last step waits for all other lanes with steps, then all lanes wait for that
   lane: often no other lane has steps. all: as if each lane had steps. */
static ds_result ds__join_streams(const ds__work *w, int all) {
    ds_result r = DS_OK;
    uint32_t last = w->steps ? w->step[w->steps - 1].lane : 0;
    for (uint32_t i = 0; i < w->lanes; i++) {
        if (i == last || !(all || w->lane[i].busy))
            continue;
        ds_result one = ds__wait_stream(w->lane[last].stream, w->lane[i].stream);
        if (one < 0 && !all)
            ds__join_here(&w->lane[i]);
        if (r == DS_OK)
            r = one;
    }
    for (uint32_t i = 0; i < w->lanes; i++) {
        ds_result one =
            i == last ? DS_OK : ds__wait_stream(w->lane[i].stream, w->lane[last].stream);
        if (one < 0 && !all)
            ds__join_here(&w->lane[last]);
        if (r == DS_OK)
            r = one;
    }
    return r;
}

/* If a lane captures, extends its capture to the other lanes. Called before memory is allocated on
   them, so that the graph owns the memory. */
static ds_result ds__fork_capture(ds__work *w) {
    size_t n = w->lanes;
    ds_result r = DS_OK;
    ds_capture_info info[2];
    for (size_t i = 0; i < w->lanes && n == w->lanes && r == DS_OK; i++) {
        memset(&info[0], 0, sizeof info[0]);
        r = w->lane[i].s->driver->capture_query(w->lane[i].s->native, &info[0]);
        if (info[0].status == DS_CAPTURE_ACTIVE)
            n = i;
    }
    for (size_t i = 0; n < w->lanes && i < w->lanes && r == DS_OK; i++) {
        memset(&info[1], 0, sizeof info[1]);
        r = w->lane[i].s->driver->capture_query(w->lane[i].s->native, &info[1]);
        if (r < 0 || info[1].status != DS_CAPTURE_NONE)
            continue;
        r = ds__wait_stream(w->lane[i].stream, w->lane[n].stream);
        w->forked |= r == DS_OK;
    }
    return r;
}

/* Joins the lanes that a failed call has forked into a capture; an unjoined lane would invalidate
   the capture. */
__attribute__((cold, noinline)) static void ds__fork_undo(ds__work *w) {
    w->forked = 0;
    ds__tls.mute++;
    DS_IGNORE(ds__join_streams(w, 1));
    ds__tls.mute--;
}

/* Closes a ds__work: joins lanes that a failed call has forked into a capture, and releases all
   lanes and the memory of ds__work_alloc. */
static void ds__work_end(ds__work *w) {
    if (DS__UNLIKELY(w->forked))
        ds__fork_undo(w);
    for (size_t i = w->lanes; i-- > 0;) {
        if (w->lane[i].pinned)
            ds__stream_unpin(w->lane[i].s);
        else
            ds__unref(&ds__g.streams, w->lane[i].s);
        if (w->lane[i].side)
            ds__side_unref(w->lane[i].device, w->lane[i].side - 1);
    }
    while (w->chunks) {
        void **chunk = w->chunks;
        w->chunks = *chunk;
        ds__host_free(chunk);
    }
}

/* Makes each lane wait for the lanes whose regions its steps touch. */
static ds_result ds__begin_lanes(ds__work *w) {
    ds_result r = DS_OK;
    size_t n = w->lanes;
    unsigned char *touches = ds__work_alloc(w, n, n);
    if (!touches)
        return w->r;
    memset(touches, 0, n * n);
    for (size_t i = 0; i < w->steps; i++) {
        const ds__cstep *s = &w->step[i];
        touches[s->lane * n + w->region[s->dst.region].lane] = 1;
        if (s->kind != DS__STEP_REDUCE)
            touches[s->lane * n + w->region[s->src.region].lane] = 1;
        for (uint32_t k = 0; k < s->count; k++)
            touches[s->lane * n + w->region[w->location[s->first + k].region].lane] = 1;
    }
    for (size_t i = 0; i < n * n && r == DS_OK; i++)
        if (touches[i] && i / n != i % n)
            r = ds__wait_stream(w->lane[i / n].stream, w->lane[i % n].stream);
    return r;
}

/* Records the operands' uses with the allocator, which does not reuse their memory before the
   collective is complete. */
static ds_result ds__note_uses(const ds__work *w) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < w->regions; i++) {
        const ds__region *g = &w->region[i];
        const ds__clane *l = &w->lane[g->lane];
        ds_result one = DS_OK;
        if (g->device.type == DS_DEVICE_HOST && g->direct && g->bytes)
            one = ds__pinned_operand(g->at, l->stream);
        else if (g->device.type != DS_DEVICE_HOST && !g->temporary && g->bytes)
            one = ds__mem_operand(g->at, l->s, l->stream);
        /* Without a recorded event the memory could be reused at once. */
        if (one < 0 && !ds__captures_open())
            one = l->s->driver->stream_synchronize(l->s->native, DS__FOREVER);
        if (r == DS_OK)
            r = one;
    }
    return r;
}

/* Takes an event of a device from the stock, or creates one. */
static ds_result ds__join_event_create(ds_device device, ds_event *out) {
    ds__spare *e = &ds__spares[ds__backend_of(device)][device.index];
    ds__spinlock_lock(&ds__c.lock);
    *out = e->count ? e->at[--e->count] : (ds_event){ 0 };
    ds__spinlock_unlock(&ds__c.lock);
    return out->id ? DS_OK : ds__event_create(0, NULL, out);
}

/* Returns an event to the stock, or destroys it if the stock is full. A zero handle is allowed. */
static void ds__join_event_destroy(ds_device device, ds_event event) {
    ds__spare *e = &ds__spares[ds__backend_of(device)][device.index];
    if (!event.id)
        return;
    ds__spinlock_lock(&ds__c.lock);
    int kept = e->count < DS__SPARE_EVENTS;
    if (kept)
        e->at[e->count++] = event;
    ds__spinlock_unlock(&ds__c.lock);
    if (!kept)
        ds__use_event_destroy(event);
}

/* Destroys the stocks. Called by ds_shutdown. */
static void ds__join_events_deinit(void) {
    for (size_t b = 0; b < DS_BACKEND_COUNT; b++)
        for (size_t i = 0; i < DS__MAX_DEVICES; i++)
            while (ds__spares[b][i].count)
                ds__use_event_destroy(ds__spares[b][i].at[--ds__spares[b][i].count]);
}

/* In sync debug mode, warns or fails if the collective makes the host wait. */
__attribute__((cold, noinline)) static ds_result ds__work_watch(const ds__work *w) {
    if (ds__captures_open())
        return DS_OK;
    for (size_t i = 0; i < w->regions; i++) {
        const ds__region *g = &w->region[i];
        if (g->device.type == DS_DEVICE_HOST && !g->direct && !g->temporary && g->bytes)
            return ds__sync_tell("waits for a tensor in pageable memory");
    }
    return DS_OK;
}

/* Describes the memory of a region's tensor. Without memory for the description, the operand has no
   bytes. */
__attribute__((cold, noinline)) static void ds__work_observe_runs(ds__work *w, const ds__region *g,
                                                                  ds__seen_operand *o) {
    const ds__layout *l = g->layout;
    ds__runs *m = l ? ds__work_alloc(w, 1, sizeof *m) : NULL;
    if (!m) {
        o->bytes = 0;
        return;
    }
    ds__comm_copy tensor = { l->item, l->ndim, l->dims, NULL, l->dims + l->ndim };
    ds__runs_observe(&tensor, g->at, m, o);
}

/* Notifies observers of a collective; kind: DS__SEEN_BEGIN or DS__SEEN_END. */
__attribute__((cold, noinline)) static void ds__work_observe(ds__work *w, int kind, ds_result r) {
    ds__seen_operand *list = ds__work_alloc(w, w->regions, sizeof *list);
    size_t n = 0;
    for (size_t i = 0; list && i < w->regions; i++) {
        const ds__region *g = &w->region[i];
        if (g->temporary || !g->bytes)
            continue;
        ds__seen_operand o = { .bytes = g->bytes,
                               .device = g->device,
                               .stream = w->lane[g->lane].stream };
        ds__work_observe_runs(w, g, &o);
        for (size_t k = 0; k < w->steps; k++) {
            const ds__cstep *s = &w->step[k];
            o.writes |= s->dst.region == i;
            o.reads |= s->kind != DS__STEP_REDUCE && s->src.region == i;
            for (uint32_t j = 0; j < s->count; j++)
                o.reads |= w->location[s->first + j].region == i;
        }
        list[n++] = o;
    }
    ds__observer_notify(&(ds__seen){ .kind = kind, .operand = list, .operands = n, .result = r });
}

/* Reports a failure of writing the list; checks and allocates what running it needs. */
static ds_result ds__work_prepare(ds__work *w) {
    if (w->r < 0)
        return w->r;
    if (DS__UNLIKELY(ds__sync_watched())) {
        ds_result r = ds__work_watch(w);
        if (r < 0)
            return r;
    }
    if (w->most > sizeof w->in_first / sizeof *w->in_first) {
        w->in = ds__work_alloc(w, w->most, sizeof *w->in);
        if (!w->in)
            return w->r;
    }
    return DS_OK;
}

/* Allocates the temporary regions, on the streams of their lanes. */
static ds_result ds__temporaries_alloc(ds__work *w) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < w->regions && r == DS_OK; i++) {
        ds__region *g = &w->region[i];
        void *ptr = NULL;
        if (!g->temporary)
            continue;
        if (g->device.type == DS_DEVICE_HOST)
            DS__KEEPING(r, (ds_mem_pinned_alloc)(g->bytes, &ptr));
        else
            DS__KEEPING(r, (ds_mem_alloc)(g->bytes, w->lane[g->lane].stream, &ptr));
        g->at = ptr;
    }
    return r;
}

/* Frees the temporary regions that were allocated, in the order of their lanes. */
static ds_result ds__temporaries_free(ds__work *w) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < w->regions; i++) {
        const ds__region *g = &w->region[i];
        ds_result one;
        if (!g->temporary || !g->at)
            continue;
        if (g->device.type == DS_DEVICE_HOST)
            DS__KEEPING(one, (ds_mem_pinned_free)(g->at));
        else
            DS__KEEPING(one, (ds_mem_free)(g->at));
        if (r == DS_OK)
            r = one;
    }
    return r;
}

/* Enqueues the waits of the first one of `count` steps, the steps, and the event of the last one,
   for which later steps wait. More than one step are copies that run together. */
static ds_result ds__step_enqueue(ds__work *w, ds__cstep *s, size_t count) {
    ds__cstep *last = s + count - 1;
    const ds__clane *l = &w->lane[s->lane];
    ds_result r = DS_OK;
    for (uint32_t k = s->after; k != DS__NO_INDEX && r == DS_OK; k = w->link[k].next)
        r = ds__wait_event(l->stream, w->step[w->link[k].step].done, DS__OP_WAIT);
    if (r < 0)
        return r;
    /* If a reduction has several launches, a part of them may have been enqueued on failure. */
    if (s->kind == DS__STEP_REDUCE &&
        (s->count > DS__COMM_INPUTS || s->reduction.op == DS_REDUCE_AVERAGE))
        w->progress = DS__WORK_STARTED;
    /* so may a part of a batch */
    if (count > 1)
        w->progress = DS__WORK_STARTED;
    r = count > 1 ? ds__steps_run_together(w, s, count) : ds__step_run(w, s);
    if (r < 0)
        return r;
    w->progress = DS__WORK_STARTED;
    if (!last->watched)
        return DS_OK;
    r = ds__join_event_create(l->device, &last->done);
    return r < 0 ? r : ds__event_record(last->done, l->stream, DS__OP_RECORD);
}

/* Enqueues the waits between the lanes, then the steps in list order. */
static ds_result ds__steps_enqueue(ds__work *w) {
    int spread = ds__steps_spread(w); /* changes the lanes of steps, so before the waits */
    w->progress = DS__WORK_WAITING;
    ds_result r = w->lanes > 1 ? ds__begin_lanes(w) : DS_OK;
    if (r == DS_OK && spread) {
        r = ds__spread_run(w);
        if (r == DS_OK)
            w->progress = DS__WORK_STARTED;
        return r;
    }
    for (size_t i = 0; i < w->steps && r == DS_OK;) {
        size_t count = ds__steps_together(w, i);
        r = ds__step_enqueue(w, &w->step[i], count);
        i += count;
    }
    return r;
}

/* Joins the lanes, records the uses of memory, and frees temporary memory, also if steps have
   failed. Returns the first failure. */
static ds_result ds__work_finish(ds__work *w) {
    ds_result joined = DS_OK;
    ds_result noted = DS_OK;
    ds_result freed = DS_OK;
    if (w->progress == DS__WORK_WAITING || w->progress == DS__WORK_STARTED) {
        w->forked = 0;
        joined = ds__join_streams(w, 0);
    }
    if (w->progress != DS__WORK_RAN)
        noted = ds__note_uses(w);
    if (w->temporaries)
        freed = ds__temporaries_free(w);
    if (joined < 0)
        return joined;
    return noted < 0 ? noted : freed;
}

/* Runs the list: on the calling thread if the steps are small, else on the streams. */
static ds_result ds__work_steps(ds__work *w) {
    ds_result r = ds__work_prepare(w);
    if (r < 0)
        return r;
    ds__tls.unwatched++;
    if (DS__UNLIKELY(ds__captures_open()))
        r = ds__fork_capture(w);
    if (r == DS_OK && w->temporaries)
        r = ds__temporaries_alloc(w);
    if (r == DS_OK)
        r = ds__steps_at_once(w);
    if (r == DS_OK && w->progress != DS__WORK_RAN)
        r = ds__steps_enqueue(w);
    /* The first failure is the reported one. */
    ds__tls.mute += r < 0;
    ds_result end = ds__work_finish(w);
    ds__tls.mute -= r < 0;
    for (size_t i = 0; i < w->steps && w->progress != DS__WORK_RAN; i++)
        ds__join_event_destroy(w->lane[w->step[i].lane].device, w->step[i].done);
    ds__tls.unwatched--;
    if (r == DS_OK)
        r = end;
    return r < 0 && w->progress == DS__WORK_STARTED
               ? ds__fail_append(r, " (part of the collective was enqueued)")
               : r;
}

/* Runs the list, if it has steps, between the notifications of observers. */
static ds_result ds__work_run(ds__work *w) {
    if (w->r < 0 || !w->steps)
        return w->r;
    if (ds__observer_is_set())
        ds__work_observe(w, DS__SEEN_BEGIN, DS_OK);
    ds_result r = ds__work_steps(w);
    if (ds__observer_is_set())
        ds__work_observe(w, DS__SEEN_END, r);
    return r;
}

/* comm/result.h - checks, options and results of collectives.

   Compares participants with each other (ds__same_dtype, ds__same_shape,
   ds__memory_check_disjoint), creates and frees the tensors of results (ds__result_create,
   ds__results_destroy), and checks the options. DS__COMM_BEGIN opens a public function;
   DS__COMM_READY does the same without DS__ENTER.

   Invariants: an overlap is found only between tensors without gaps; other overlaps are the
   caller's responsibility. ds__results_destroy sets every result to NULL. DS__COMM_READY expects a
   variable `options` in the calling function and replaces NULL by the default options. While a
   capture is open, ds__results_lanes finds the lanes of all results before the first result is
   allocated.
   Locks: takes none itself. Expects that ds__c.lock is not held, because creating and freeing
   tensors takes the same lock.
   Threads: caller's threads, each with its own ds__work. */

static ds_result ds__same_dtype(const ds__participant *p, ds__name name,
                                const ds__participant *like) {
    char one[DS_DTYPE_NAME_SIZE];
    char other[DS_DTYPE_NAME_SIZE];
    DS__REQUIRE(ds_dtype_equal(p->d.dtype, like->d.dtype), "%s has elements of type %s, not %s",
                ds__name_text(name), ds__dtype_name(p->d.dtype, one),
                ds__dtype_name(like->d.dtype, other));
    return DS_OK;
}

/* except: a dimension that may differ, or -1. */
static ds_result ds__same_shape(const ds__participant *p, ds__name name,
                                const ds__participant *like, int except) {
    char one[DS__SHAPE_TEXT];
    char other[DS__SHAPE_TEXT];
    int same = p->d.ndim == like->d.ndim;
    for (int d = 0; same && d < p->d.ndim; d++)
        same = d == except || p->d.shape[d] == like->d.shape[d];
    if (same)
        return DS_OK;
    ds__shape_text(p->d.ndim, p->d.shape, one, sizeof one);
    ds__shape_text(like->d.ndim, like->d.shape, other, sizeof other);
    return except < 0
               ? ds__fail(DS_ERR_INVALID_VALUE, "%s has the shape %s, not %s", ds__name_text(name),
                          one, other)
               : ds__fail(DS_ERR_INVALID_VALUE,
                          "%s has the shape %s, which differs from %s in more than dimension %d",
                          ds__name_text(name), one, other, except);
}

/* Checks data type and shape. */
static ds_result ds__same_form(const ds__participant *p, ds__name name, const ds__participant *like,
                               int except) {
    ds_result r = ds__same_dtype(p, name, like);
    return r < 0 ? r : ds__same_shape(p, name, like, except);
}

static int ds__same_strides(const ds__dims *d, const int64_t *strides) {
    for (int i = 0; i < d->ndim; i++)
        if (d->shape[i] != 1 && d->strides[i] != strides[i])
            return 0;
    return 1;
}

/* Returns 1 if two participants of one shape have the same elements in the same memory. */
static int ds__same_place(const ds__participant *a, const ds__participant *b) {
    return a->d.first == b->d.first && a->d.device.type == b->d.device.type &&
           ds__same_strides(&a->d, b->d.strides);
}

/* Returns 1 if two tensors without gaps share memory. */
static int ds__dims_collide(const ds__dims *a, const ds__dims *b) {
    return (uintptr_t)a->first < (uintptr_t)b->first + b->bytes &&
           (uintptr_t)b->first < (uintptr_t)a->first + a->bytes && a->count && b->count &&
           ds__is_dense(a) && ds__is_dense(b);
}

static ds_result ds__memory_check_disjoint(const ds__participant *a, ds__name name,
                                           const ds__participant *b, ds__name other) {
    char text[100];
    if (!ds__dims_collide(&a->d, &b->d))
        return DS_OK;
    snprintf(text, sizeof text, "%s", ds__name_text(other));
    return ds__fail(DS_ERR_INVALID_VALUE, "%s shares memory with the %s", ds__name_text(name),
                    text);
}

/* Checks that the outputs share no memory with each other. */
static ds_result ds__outputs_check_disjoint(const ds__participant *p, size_t count) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i && r == DS_OK; k++)
            r = ds__memory_check_disjoint(&p[i], ds__name_of("output tensor", i), &p[k],
                                          ds__name_of("output tensor", k));
    return r;
}

/* Device and stream of a new result. */
typedef struct ds__destination {
    ds_device device;
    size_t index;  /* in the list of results, or DS__NO_LIST; for error messages */
    size_t stream; /* as in ds__given_stream */
} ds__destination;

static ds_result ds__comm_device(ds_device device, ds__name name, ds_device *out) {
    if (device.type == DS_DEVICE_HOST) {
        *out = (ds_device){ DS_DEVICE_HOST, 0 };
        return DS_OK;
    }
    ds_result r = ds__device_resolve(device, out);
    return r < 0 ? ds__fail_append(r, " (%s)", ds__name_text(name)) : r;
}

/* The destination of result i: devices[i] with the stream at this index. */
static ds_result ds__destination_at(const ds_device *devices, size_t i, ds__destination *out) {
    out->index = out->stream = i;
    return ds__comm_device(devices[i], ds__name_of("the device", i), &out->device);
}

static ds_result ds__destination_lane(ds__work *w, const ds__destination *to, uint32_t *lane) {
    return ds__lane_find(w, ds__given_stream(w->options, to->stream),
                         ds__name_of("result", to->index), to->device, lane);
}

/* Creates a tensor like `like` at a destination, and opens it as a participant. */
static ds_result ds__result_create(ds__work *w, const ds__dims *like, const ds__destination *to,
                                   ds__participant *p, ds_tensor **out) {
    ds_stream stream = { 0 };
    uint32_t lane;
    ds_result r = ds__destination_lane(w, to, &lane);
    if (r == DS_OK && like->bytes && DS__UNLIKELY(ds__captures_open()))
        r = ds__fork_capture(w);
    if (r < 0)
        return r;
    if (to->device.type != DS_DEVICE_HOST)
        stream = w->lane[lane].stream;
    r = ds__tensor_like(like, stream, out);
    return r < 0
               ? r
               : ds__participant_open(w, *out, ds__name_of("result", to->index), to->stream, 0, p);
}

/* Returns 1 if a result on the device shows the tensor itself (DS_COMM_ALIAS). */
static int ds__result_is_alias(const ds__work *w, ds_device device, const ds__participant *from) {
    return w->options->flags & DS_COMM_ALIAS && ds__same_device(device, from->d.device);
}

/* Frees results of a failed call, and sets them to NULL. */
static void ds__results_destroy(ds_tensor **out, size_t count) {
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

/* While a capture is open, finds the lanes of all results before the first result is allocated:
   the lane that captures may be one of the last, and ds__fork_capture must know it. */
static ds_result ds__results_lanes(ds__work *w, const ds_device *devices, size_t count,
                                   const ds__participant *from) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK && DS__UNLIKELY(ds__captures_open()); i++) {
        ds__destination to;
        uint32_t lane;
        r = ds__destination_at(devices, i, &to);
        if (r == DS_OK && !ds__result_is_alias(w, to.device, from))
            r = ds__destination_lane(w, &to, &lane);
    }
    return r;
}

/* Replaces NULL by the default options, and checks the options. */
static ds_result ds__comm_options_check(const ds_comm_options **o) {
    if (!*o)
        *o = &ds__comm_usual;
    DS__REQUIRE_RESERVED("ds_comm_options", *o);
    DS__REQUIRE(!((*o)->flags & ~(unsigned)(DS_COMM_ALIAS | DS_COMM_ANY_ORDER)),
                "unknown flags %#x; use DS_COMM_* flags", (*o)->flags);
    DS__REQUIRE((*o)->streams || !(*o)->stream_count, "streams is NULL, but stream_count is %zu",
                (*o)->stream_count);
    DS__REQUIRE((*o)->topology || !(*o)->plan, "options->plan is set without options->topology");
    DS__REQUIRE(!(*o)->plan || ((const ds__planned *)(*o)->plan)->topology == (*o)->topology->id,
                "the plan was created for another topology");
    DS__REQUIRE(!(*o)->engine || strcmp((*o)->engine, "nccl") == 0,
                "options->engine is \"%.40s\"; use NULL or \"nccl\"", (*o)->engine);
    DS__REQUIRE(!(*o)->ranks.id || !(*o)->engine,
                "options->engine is set with options->ranks, which has an engine");
    DS__REQUIRE((*o)->ranks.id || (!(*o)->root && !(*o)->ranks_options),
                "options has root or ranks_options, but no ranks");
    DS__REQUIRE(!(*o)->ranks.id || !(*o)->topology,
                "options->topology is set with options->ranks; a plan is for one process");
    return DS_OK;
}

/* Returns uninitialised participants until ds__work_end; NULL: out of memory, also in w->r. */
static ds__participant *ds__participants_alloc(ds__work *w, size_t count) {
    return ds__work_alloc(w, count, sizeof(ds__participant));
}

/* Destroys the streams of plans. Called by ds_shutdown. */
static void ds__sides_deinit(void) {
    for (size_t b = 0; b < DS_BACKEND_COUNT; b++)
        for (size_t i = 0; i < DS__MAX_DEVICES; i++) {
            ds__sides *all = ds__sides_of[b][i];
            for (int k = 0; all && k < all->count; k++)
                ds__stream_end(all->at[k]);
            ds__host_free(all);
            ds__sides_of[b][i] = NULL;
        }
}

/* Called by ds_shutdown. */
static void ds__comm_deinit(void) {
    ds__sides_deinit();
    ds__join_events_deinit();
    ds__comm_kernels_deinit();
}

static const ds__module ds__comm_module = { .shutdown = ds__comm_deinit };

/* Prepares tensors and the module of collectives. */
static ds_result ds__comm_setup(void) {
    ds_result r = ds__tensor_setup();
    if (r == DS_OK)
        ds__module_add(DS__MODULE_COMM, &ds__comm_module);
    return r;
}

static void ds__comm_load(ds_device device) {
    ds_result r = ds__comm_setup();
    for (int which = 0; r == DS_OK && which < DS__COMM_KERNELS; which++) {
        ds_kernel kernel;
        r = ds__comm_kernel(which, &kernel);
        if (r == DS_OK)
            DS__KEEPING(r, (ds_kernel_load)(kernel, device));
    }
    DS_IGNORE(r);
}

/* Opens a public function: enters it, prepares the module and checks `options`. */
#define DS__COMM_BEGIN(name) \
    DS__ENTER(name);         \
    DS__COMM_READY()
/* The same for a function that creates its results. instead: the function for a group. */
#define DS__COMM_BEGIN_CREATING(name, instead) \
    DS__ENTER(name);                           \
    DS__COMM_READY_CREATING(instead)
#define DS__COMM_READY_CREATING(instead)                            \
    do {                                                            \
        DS__COMM_READY();                                           \
        ds_result ds__r = ds__comm_refuse_across(options, instead); \
        if (ds__r < 0)                                              \
            return ds__r;                                           \
    } while (0)
#define DS__COMM_READY()                              \
    do {                                              \
        ds_result ds__r = ds__comm_setup();           \
        if (ds__r == DS_OK)                           \
            ds__r = ds__comm_options_check(&options); \
        if (ds__r < 0)                                \
            return ds__r;                             \
    } while (0)

/* comm/side_stream.h - streams for the additional lanes of plans.

   Reserves one of the library's own streams as an additional lane of a list (ds__side_lane,
   ds__side_ref). There are at most 64 such streams on each device (ds__sides).

   Invariants: a stream that is marked as taken belongs to one list until ds__side_unref. The
   handle at an index of ds__sides does not change before ds_shutdown. An idle stream is
   preferred to a new one, and a new one to a busy one. A stream that captures is never taken. If
   all streams are taken, the additional lane is the given lane itself.
   Locks: ds__side_ref takes ds__c.lock for the table alone. Streams are queried and created
   without that lock.
   Threads: caller's threads, several at the same time. ds__sides_deinit runs in ds_shutdown only
   and takes no lock. */

/* Returns 1 if the stream has no pending work. While a capture is open, a query could invalidate
   it, so the stream only must not capture. *out_captures: 1 if it does. */
static int ds__side_is_free(ds_stream stream, int *out_captures) {
    ds_capture_info info;
    ds__stream *s = ds__stream_pin(stream);
    int good = 0;
    *out_captures = 0;
    if (!s)
        return 0;
    if (ds__captures_open()) {
        memset(&info, 0, sizeof info);
        *out_captures =
            s->driver->capture_query(s->native, &info) < 0 || info.status != DS_CAPTURE_NONE;
        good = !*out_captures;
    } else {
        good = s->driver->stream_query(s->native) == DS_OK;
    }
    ds__stream_unpin(s);
    return good;
}

/* Returns the table of a device, which is created at first use. NULL: out of memory. */
static ds__sides *ds__sides_get(ds_device device) {
    ds__sides **at = &ds__sides_of[ds__backend_of(device)][device.index];
    ds__spinlock_lock(&ds__c.lock);
    ds__sides *all = *at;
    ds__spinlock_unlock(&ds__c.lock);
    if (all)
        return all;
    ds__sides *fresh = ds__host_alloc(sizeof *fresh);
    if (!fresh) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for streams");
        return NULL;
    }
    ds__spinlock_lock(&ds__c.lock);
    if (!*at) {
        *at = fresh;
        fresh = NULL;
    }
    all = *at;
    ds__spinlock_unlock(&ds__c.lock);
    ds__host_free(fresh); /* another thread was faster */
    return all;
}

/* Marks the first stream from number `first` on that is not taken. Returns its number; -1: none. */
static int ds__side_mark(ds__sides *all, int first) {
    ds__spinlock_lock(&ds__c.lock);
    while (first < all->count && all->taken[first])
        first++;
    if (first == all->count)
        first = -1;
    else
        all->taken[first] = 1;
    ds__spinlock_unlock(&ds__c.lock);
    return first;
}

/* Takes an idle stream. Returns its number; -1: none. *busy: a taken stream with pending work, or
   -1. */
static int ds__side_take_idle(ds_device device, ds__sides *all, int *busy) {
    int captures;
    *busy = -1;
    for (int i = ds__side_mark(all, 0); i >= 0; i = ds__side_mark(all, i + 1)) {
        if (ds__side_is_free(all->at[i], &captures))
            return i;
        if (*busy < 0 && !captures)
            *busy = i;
        else
            ds__side_unref(device, i);
    }
    return -1;
}

/* Takes a new stream. *number stays -1 if the table is full. */
static ds_result ds__side_create(ds_device device, ds__sides *all, int *number) {
    ds_stream fresh = { 0 };
    ds_result r = ds__stream_create(device, DS__STREAM_NEW, 0, 0, "a plan's", &fresh);
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__c.lock);
    if (all->count < DS__SIDES) {
        all->at[all->count] = fresh;
        all->taken[all->count] = 1;
        *number = all->count++;
        fresh.id = 0;
    }
    ds__spinlock_unlock(&ds__c.lock);
    ds__stream_end(fresh);
    return DS_OK;
}

/* Takes a stream of a device: an idle one, else a new one, else a busy one. *out_number -1: all are
   taken. */
static ds_result ds__side_ref(ds_device device, ds_stream *out, int *out_number) {
    int busy;
    ds_result r = DS_OK;
    ds__sides *all = ds__sides_get(device);
    if (!all)
        return DS_ERR_OUT_OF_MEMORY;
    ds__tls.mute++;
    *out_number = ds__side_take_idle(device, all, &busy);
    ds__tls.mute--;
    if (*out_number < 0)
        r = ds__side_create(device, all, out_number);
    if (*out_number < 0)
        *out_number = busy;
    else if (busy >= 0)
        ds__side_unref(device, busy);
    if (*out_number < 0)
        return r;
    *out = all->at[*out_number];
    return DS_OK;
}

/* Appends a lane on the device of lane `like`, and returns its index. If all streams are taken, it
   is `like` itself: two lanes on one stream only take longer. On failure, 0 and w->r. */
static uint32_t ds__side_lane(ds__work *w, uint32_t like) {
    ds_stream stream = { 0 };
    ds_device device = w->lane[like].device;
    uint32_t lane = DS__NO_INDEX;
    int number = -1;
    ds_result r = ds__side_ref(device, &stream, &number);
    if (r == DS_OK && number < 0)
        return like;
    if (r == DS_OK) {
        ds__stream *s = ds__stream_pin(stream);
        if (s)
            lane = ds__lane_add(w, s, stream, number + 1);
        if (lane != DS__NO_INDEX)
            return lane;
        ds__side_unref(device, number);
        r = s ? w->r : DS_ERR_INVALID_HANDLE;
    }
    if (w->r == DS_OK)
        w->r = r;
    return 0;
}

/* comm/follow_plan.h - collectives that follow a plan.

   ds__follow_open decides whether a collective can follow a plan for options->topology.
   ds__side_open locates the input or output of one rank, packed into temporary memory if needed.
   ds__follow_run finds the plan, appends its steps to the list, and unpacks the outputs.

   Invariants: if a plan from the caller does not fit, the call fails; without such a plan, the
   collective takes the direct path (ds__follow_not). The participant at index i must be on the
   device of rank i. If the input and the output of a rank share memory in a reduction, the input
   may be copied first (ds__follow_in_place).
   Locks: takes none itself. ds_plan_get takes ds__c.lock to look up and store a plan, but
   searches for a plan without that lock.
   Threads: caller's threads, each with its own ds__work. The topology owns its plans and must
   not be freed during the call. */

/* Division of a tensor into equal parts along a dimension. The plan expects the parts one after the
   other, each without gaps and with these strides. */
typedef struct ds__division {
    int dim;
    size_t parts;
    const int64_t *strides;
} ds__division;

/* The input or output of a rank. */
typedef struct ds__side {
    const ds__participant *p; /* NULL: the rank has none */
    ds__division division;
    ds__source data; /* the location for the plan, and the step that packs an input */
    int apart;       /* 1: the location is temporary memory */
} ds__side;

/* A collective that follows a plan. The caller of ds__follow_open sets want.what, want.bytes and
   reduction.op. */
typedef struct ds__follow {
    ds_plan_desc want;
    ds__reduction reduction;
    size_t ranks;
    uint32_t *lane; /* of each rank: the lane of its participant */
    ds__side *in;
    ds__side *out;
} ds__follow;

/* A plan, as lanes, regions and steps of a list. Lane l of rank r has the index r * lanes + l. */
typedef struct ds__schedule {
    const ds_plan *plan;
    size_t lanes;
    uint32_t *lane;    /* of each lane of the plan: the lane of the list */
    uint32_t *last;    /* of each lane of the plan: its last step */
    uint32_t *step;    /* of each step of the plan: the step of the list after which it is done */
    uint32_t *scratch; /* of each rank and of the host: its region */
} ds__schedule;

/* Returns 0: the collective does not follow a plan. If the plan is the caller's, stores an
   error. */
__attribute__((format(DS__PRINTF, 2, 3))) static int ds__follow_not(ds__work *w, const char *format,
                                                                    ...) {
    char why[200];
    va_list args;
    if (!w->options->plan || w->r < 0)
        return 0;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    w->r = ds__fail(DS_ERR_INVALID_VALUE, "the plan does not fit: %s", why);
    return 0;
}

static int ds__on_rank(const ds_topology *t, size_t rank, ds_device device) {
    return t->device ? ds__same_device(t->device[rank], device)
                     : device.type != DS_DEVICE_HOST && device.index == (int32_t)rank;
}

/* Returns the rank of the single tensor: the root of the caller's plan if it is on the device, else
   the first rank on the device. Returns the number of ranks if none is on the device. */
static size_t ds__root_of(const ds_comm_options *o, ds_device device) {
    size_t root = 0;
    size_t p = (size_t)o->topology->devices;
    if (o->plan && ds__on_rank(o->topology, (size_t)o->plan->desc.root, device))
        return (size_t)o->plan->desc.root;
    while (root < p && !ds__on_rank(o->topology, root, device))
        root++;
    return root;
}

/* Returns the orders of a sum that give the bits of the direct path. */
static ds_plan_order ds__order_of(ds__reduction reduction, unsigned flags) {
    ds_dtype t = reduction.dtype;
    /* the sum is divided once */
    if (reduction.op == DS_REDUCE_AVERAGE)
        return DS_ORDER_AT_ONCE;
    if (reduction.op == DS_REDUCE_MAX || reduction.op == DS_REDUCE_MIN ||
        flags & DS_COMM_ANY_ORDER || t.code == DS_CODE_INT || t.code == DS_CODE_UINT ||
        t.code == DS_CODE_BOOL)
        return DS_ORDER_ANY;
    /* f16 and bf16 are summed in f32, other types in their own type, in list order */
    return t.bits == 16 ? DS_ORDER_AT_ONCE : DS_ORDER_LIST;
}

/* Returns 1 if there is one tensor on each rank, and the single tensor is on a rank. *root: that
   rank. */
static int ds__follow_matches(ds__work *w, const ds__participant *each, size_t count,
                              const ds__participant *one, size_t *root) {
    const ds_topology *t = w->options->topology;
    size_t ranks = (size_t)t->devices;
    if (count != ranks || count < 2)
        return ds__follow_not(w, "%zu tensors on %zu ranks", count, ranks);
    for (size_t i = 0; i < count; i++)
        if (!ds__on_rank(t, i, each[i].d.device))
            return ds__follow_not(w, "the tensor at index %zu is on %s:%d, which is not rank %zu",
                                  i, ds__type_name(each[i].d.device.type), each[i].d.device.index,
                                  i);
    *root = one ? ds__root_of(w->options, one->d.device) : 0;
    if (*root == ranks)
        return ds__follow_not(w, "the single tensor is on %s:%d, which is not a rank",
                              ds__type_name(one->d.device.type), one->d.device.index);
    return 1;
}

/* Returns 1 if the collective follows a plan, and completes the request. each: a participant on
   each rank; one: the single tensor, or NULL. The options must have a topology. */
static int ds__follow_open(ds__work *w, ds__follow *f, const ds__participant *each, size_t count,
                           const ds__participant *one) {
    size_t root = 0;
    if (w->r < 0 || !f->want.bytes || !ds__follow_matches(w, each, count, one, &root))
        return 0;
    f->ranks = count;
    f->lane = ds__work_alloc(w, count, sizeof *f->lane);
    f->in = f->lane ? ds__work_alloc(w, 2 * count, sizeof *f->in) : NULL;
    if (!f->in)
        return 0;
    f->out = f->in + count;
    memset(f->in, 0, 2 * count * sizeof *f->in);
    for (size_t i = 0; i < 2 * count; i++)
        f->in[i].data.ready = DS__NO_INDEX;
    for (size_t i = 0; i < count; i++)
        f->lane[i] = ds__lane_of(w, &each[i]);
    if (one)
        f->lane[root] = ds__lane_of(w, one);
    f->reduction.dtype = each[0].d.dtype;
    f->want.root = (int)root;
    f->want.item = each[0].d.item;
    if (ds__collective_is_sum(f->want.what))
        f->want.order = ds__order_of(f->reduction, w->options->flags);
    return 1;
}

/* Returns 1 if the parts of a tensor lie as its division says. */
static int ds__division_fits(const ds__participant *p, const ds__division *n) {
    int64_t size = n->parts > 1 ? p->d.shape[n->dim] / (int64_t)n->parts : 0;
    for (int i = 0; i < p->d.ndim; i++) {
        int64_t indices = n->parts > 1 && i == n->dim ? size : p->d.shape[i];
        if (indices != 1 && p->d.strides[i] != n->strides[i])
            return 0;
    }
    return n->parts < 2 || size * p->d.strides[n->dim] == p->d.count / (int64_t)n->parts;
}

enum { DS__TO_TENSOR, DS__FROM_TENSOR };

/* Copies all parts between the tensor and the temporary memory. Returns the last step. */
static uint32_t ds__side_move(ds__work *w, const ds__side *a, int direction) {
    const ds__participant *p = a->p;
    const ds__division *n = &a->division;
    uint32_t lane = ds__lane_of(w, p);
    uint32_t last = DS__NO_INDEX;
    ds__slice slice = { 0, n->parts > 1 ? p->d.shape[n->dim] / (int64_t)n->parts : 0 };
    ds__operand packed = { a->data.at, n->strides };
    for (size_t k = 0; k < n->parts && w->r == DS_OK; k++) {
        ds__participant part = n->parts > 1 ? ds__participant_slice(p, n->dim, slice) : *p;
        ds__operand own = ds__operand_of(&part);
        last = direction == DS__TO_TENSOR ? ds__copy_add(w, lane, own, packed, &part.d)
                                          : ds__copy_add(w, lane, packed, own, &part.d);
        packed.at.offset += (ptrdiff_t)part.d.bytes;
        slice.begin += slice.size;
    }
    return last;
}

/* Locates an input (read: 1) or output of a rank. An input that does not lie as the plan expects is
   packed. */
static void ds__side_open(ds__work *w, ds__side *a, const ds__participant *p,
                          const ds__division *division, int read) {
    a->p = p;
    a->division = *division;
    a->apart = !ds__division_fits(p, division);
    a->data.at = a->apart ? ds__temporary_add(w, ds__lane_of(w, p), p->d.bytes) : p->at;
    if (a->apart && read)
        a->data.ready = ds__side_move(w, a, DS__FROM_TENSOR);
}

/* Copies the input of a rank to temporary memory if its output lies in the same memory, and the
   plan reads a byte of the input or writes a byte of the output more than once. The second access
   could be too late. */
static void ds__follow_in_place(ds__work *w, ds__follow *f, const ds_plan *plan, size_t rank) {
    ds__side *in = &f->in[rank];
    const ds__side *out = &f->out[rank];
    size_t read = 0;
    size_t written = 0;
    if (!ds__collective_is_sum(f->want.what) || !in->p || !out->p || in->apart || out->apart ||
        !ds__dims_collide(&in->p->d, &out->p->d))
        return;
    for (size_t i = 0; i < plan->steps; i++) {
        const ds_plan_step *s = &plan->step[i];
        if (s->to.rank == (int)rank && s->to.buffer == DS_PLAN_OUTPUT)
            written += s->bytes;
        for (uint32_t k = 0; k < s->from_count; k++)
            if (plan->location[s->from + k].rank == (int)rank &&
                plan->location[s->from + k].buffer == DS_PLAN_INPUT)
                read += s->bytes;
    }
    if (read == in->p->d.bytes && written == out->p->d.bytes)
        return;
    ds__location apart = ds__temporary_add(w, f->lane[rank], in->p->d.bytes);
    in->data.ready = ds__step_copy_add(w, f->lane[rank], apart, in->data.at, in->p->d.bytes);
    in->data.at = apart;
}

static int ds__location_same(const ds__work *w, ds__location a, ds__location b) {
    return w->region[a.region].at && w->region[b.region].at &&
           ds__location_at(w, a) == ds__location_at(w, b);
}

static ds__location ds__schedule_location(const ds__schedule *c, const ds__follow *f,
                                          ds_plan_location at) {
    if (at.buffer == DS_PLAN_SCRATCH)
        return (ds__location){ c->scratch[at.rank], (ptrdiff_t)at.offset };
    ds__location side =
        at.buffer == DS_PLAN_INPUT ? f->in[at.rank].data.at : f->out[at.rank].data.at;
    return (ds__location){ side.region, side.offset + (ptrdiff_t)at.offset };
}

/* Finds the lanes of all steps. The first lane of a rank is that of its participant. */
static void ds__schedule_open_lanes(ds__work *w, const ds__follow *f, ds__schedule *c) {
    const ds_plan *plan = c->plan;

    enum { IN_USE = 0 };

    for (size_t i = 0; i < f->ranks * c->lanes; i++)
        c->lane[i] = c->last[i] = DS__NO_INDEX;
    for (size_t i = 0; i < plan->steps; i++)
        c->lane[(size_t)plan->step[i].rank * c->lanes + (size_t)plan->step[i].lane] = IN_USE;
    /* all first lanes, then all second ones: the order that the prediction assumes */
    for (size_t l = 0; l < c->lanes; l++)
        for (size_t r = 0; r < f->ranks && w->r == DS_OK; r++)
            if (c->lane[r * c->lanes + l] == IN_USE)
                c->lane[r * c->lanes + l] = l ? ds__side_lane(w, f->lane[r]) : f->lane[r];
}

/* Appends the scratch memory of the ranks and of the host. */
static void ds__schedule_add_scratch(ds__work *w, const ds__follow *f, ds__schedule *c) {
    const size_t *bytes = c->plan->scratch;
    size_t host = f->ranks;
    for (size_t r = 0; r < f->ranks && w->r == DS_OK; r++)
        c->scratch[r] = bytes[r] ? ds__temporary_add(w, f->lane[r], bytes[r]).region : 0;
    if (w->r < 0 || !bytes[host])
        return;
    c->scratch[host] = ds__temporary_add(w, f->lane[f->want.root], bytes[host]).region;
    w->region[c->scratch[host]].device = (ds_device){ DS_DEVICE_HOST, 0 };
}

/* Appends a sum of the plan. */
static uint32_t ds__schedule_add_sum(ds__work *w, const ds__follow *f, const ds__schedule *c,
                                     const ds_plan_step *s, uint32_t lane) {
    uint32_t first = (uint32_t)w->locations;
    for (uint32_t k = 0; k < s->from_count; k++) {
        ds__location *location = DS__MORE(w, location);
        if (!location)
            return DS__NO_INDEX;
        *location = ds__schedule_location(c, f, c->plan->location[s->from + k]);
    }
    return ds__step_reduce_add(w, lane, ds__schedule_location(c, f, s->to), first, f->reduction,
                               s->bytes / f->want.item);
}

/* Appends step i of the plan. A copy to its own place is left out. */
static void ds__schedule_add_step(ds__work *w, const ds__follow *f, ds__schedule *c, size_t i) {
    const ds_plan_step *s = &c->plan->step[i];
    const ds_plan_location *from = &c->plan->location[s->from];
    size_t at = (size_t)s->rank * c->lanes + (size_t)s->lane;
    uint32_t lane = c->lane[at];
    ds__location dst = ds__schedule_location(c, f, s->to);
    ds__location src = ds__schedule_location(c, f, *from);
    c->step[i] = c->last[at];
    if (s->from_count == 1 && ds__location_same(w, dst, src))
        return;
    for (uint32_t k = 0; k < s->after_count; k++)
        ds__come_after(w, lane, c->step[c->plan->before[s->after + k]]);
    for (uint32_t k = 0; k < s->from_count; k++)
        if (from[k].buffer == DS_PLAN_INPUT)
            ds__come_after(w, lane, f->in[from[k].rank].data.ready);
    if (w->r < 0)
        return;
    uint32_t step = s->from_count == 1 ? ds__step_copy_add(w, lane, dst, src, s->bytes)
                                       : ds__schedule_add_sum(w, f, c, s, lane);
    if (step != DS__NO_INDEX)
        c->step[i] = c->last[at] = step;
}

/* Makes later steps of a lane wait for all steps that write to the output of its rank. */
static void ds__schedule_complete_output(ds__work *w, const ds__schedule *c, size_t rank,
                                         uint32_t lane) {
    const ds_plan *plan = c->plan;
    for (size_t i = 0; i < plan->steps; i++)
        if (plan->step[i].to.rank == (int)rank && plan->step[i].to.buffer == DS_PLAN_OUTPUT)
            ds__come_after(w, lane, c->step[i]);
}

/* Appends the steps of a plan. */
static void ds__follow_steps(ds__work *w, ds__follow *f, const ds_plan *plan) {
    size_t p = f->ranks;
    ds__schedule c = { .plan = plan, .lanes = (size_t)plan->lanes };
    c.lane = ds__work_alloc(w, p * c.lanes, sizeof *c.lane);
    c.last = ds__work_alloc(w, p * c.lanes, sizeof *c.last);
    c.step = ds__work_alloc(w, plan->steps, sizeof *c.step);
    c.scratch = ds__work_alloc(w, p + 1, sizeof *c.scratch);
    if (w->r < 0)
        return;
    ds__schedule_open_lanes(w, f, &c);
    ds__schedule_add_scratch(w, f, &c);
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        ds__follow_in_place(w, f, plan, r);
    for (size_t i = 0; i < plan->steps && w->r == DS_OK; i++)
        ds__schedule_add_step(w, f, &c, i);
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        if (f->out[r].apart)
            ds__schedule_complete_output(w, &c, r, ds__lane_of(w, f->out[r].p));
}

/* Returns 1 if a plan of the caller is one for the request. */
static int ds__follow_accepts(ds__work *w, const ds__follow *f, const ds_plan_desc *d) {
    const ds_plan_desc *want = &f->want;
    if (d->what != want->what)
        return ds__follow_not(w, "it is for %s", ds__collective_names[d->what]);
    if (d->bytes != want->bytes)
        return ds__follow_not(w, "it is for %zu bytes, not %zu", d->bytes, want->bytes);
    if (d->what <= DS_REDUCE && d->root != want->root)
        return ds__follow_not(w, "its root is rank %d, not %d", d->root, want->root);
    if ((d->item ? d->item : 1) % want->item)
        return ds__follow_not(w, "it splits elements of %zu bytes: its item is %zu", want->item,
                              d->item);
    if (d->order > want->order && ds__collective_is_sum(d->what))
        return ds__follow_not(w, "its sums are not in the order of the list");
    return 1;
}

/* Appends the steps of the plan, and copies the outputs from temporary memory. */
static void ds__follow_run(ds__work *w, ds__follow *f) {
    const ds_plan *plan = w->options->plan;
    if (w->r < 0 || (plan && !ds__follow_accepts(w, f, &plan->desc)))
        return;
    if (!plan)
        DS__KEEPING(w->r, (ds_plan_get)(w->options->topology, &f->want, &plan));
    if (w->r == DS_OK)
        ds__follow_steps(w, f, plan);
    for (size_t r = 0; r < f->ranks && w->r == DS_OK; r++)
        if (f->out[r].apart)
            ds__side_move(w, &f->out[r], DS__TO_TENSOR);
}

/* comm/broadcast.h - broadcast.

   Implements ds_comm_broadcast, which creates the results, and ds_comm_broadcast_into for
   tensors of the caller. ds__broadcast_steps writes the steps of the direct path.
   ds__broadcast_follow writes those of a plan, also for coalesced.h.

   Invariants: created results have no gaps. If the source is on a device, has gaps and goes to
   several results, the source is packed once. A result at the place of the source is left alone.
   On failure, all results of ds_comm_broadcast are freed and set to NULL.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */

/* The results of a broadcast on the ranks of a topology. */
typedef struct ds__broadcast_ranks {
    size_t root;
    ds__participant *each;        /* the tensor of each rank, the root's included */
    const ds__participant **to;   /* the result of each rank; NULL: the root */
    const ds__participant **rest; /* further results on the root's device */
    size_t rests;
} ds__broadcast_ranks;

/* Returns 1 if each rank but the root has a result. Results at the place of the source are left
   out. */
static int ds__broadcast_assign(ds__work *w, ds__broadcast_ranks *b, const ds__participant *from,
                                const ds__participant *to, size_t count) {
    const ds_topology *t = w->options->topology;
    size_t p = (size_t)t->devices;
    size_t left = p - 1;
    b->each[b->root] = *from;
    for (size_t i = 0; i < count; i++) {
        size_t r = 0;
        if (ds__same_place(from, &to[i]))
            continue;
        while (r < p && (r == b->root || b->to[r] || !ds__on_rank(t, r, to[i].d.device)))
            r++;
        if (r < p) {
            b->each[r] = to[i];
            b->to[r] = &to[i];
            left--;
            continue;
        }
        if (!ds__on_rank(t, b->root, to[i].d.device))
            return ds__follow_not(w,
                                  "the result at index %zu is on %s:%d, which is not a free rank",
                                  i, ds__type_name(to[i].d.device.type), to[i].d.device.index);
        b->rest[b->rests++] = &to[i];
    }
    return left ? ds__follow_not(w, "%zu of %zu ranks have no result", left, p) : 1;
}

/* Returns 1 if the steps of a plan were appended. ready: the step after which the source is
   complete. Further results on the root's device are copied directly. */
static int ds__broadcast_follow(ds__work *w, const ds__participant *from, uint32_t ready,
                                const ds__participant *to, size_t count) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    const ds__division whole = { 0, 1, strides };
    if (!w->options->topology || w->r < 0 || !from->d.count)
        return 0;
    size_t p = (size_t)w->options->topology->devices;
    ds__broadcast_ranks b = { .root = ds__root_of(w->options, from->d.device) };
    if (b.root == p)
        return ds__follow_not(w, "the single tensor is on %s:%d, which is not a rank",
                              ds__type_name(from->d.device.type), from->d.device.index);
    b.each = ds__participants_alloc(w, p);
    b.to = b.each ? ds__work_alloc(w, p + count, sizeof *b.to) : NULL;
    if (!b.to)
        return 0;
    memset(b.to, 0, (p + count) * sizeof *b.to);
    b.rest = b.to + p;
    ds__follow f = { .want = { .what = DS_BROADCAST, .bytes = from->d.bytes } };
    if (!ds__broadcast_assign(w, &b, from, to, count) || !ds__follow_open(w, &f, b.each, p, from))
        return 0;
    ds__dense_like(&from->d, strides);
    ds__side_open(w, &f.in[b.root], from, &whole, 1);
    if (ready != DS__NO_INDEX)
        f.in[b.root].data.ready = ready;
    for (size_t r = 0; r < p && w->r == DS_OK; r++)
        if (b.to[r])
            ds__side_open(w, &f.out[r], b.to[r], &whole, 0);
    ds__follow_run(w, &f);
    for (size_t i = 0; i < b.rests && w->r == DS_OK; i++) {
        uint32_t lane = ds__lane_of(w, b.rest[i]);
        ds__come_after(w, lane, ready);
        ds__copy_participant(w, lane, b.rest[i], from);
    }
    return 1;
}

/* Appends the steps of a broadcast. A source with gaps is packed once if it has several results;
   the results have no gaps. */
static void ds__broadcast_steps(ds__work *w, const ds__participant *from, const ds__participant *to,
                                size_t count) {
    int64_t dense[DS_TENSOR_MAX_DIMS];
    if (ds__broadcast_follow(w, from, DS__NO_INDEX, to, count))
        return;
    ds__operand src = ds__operand_of(from);
    uint32_t packed = DS__NO_INDEX;
    if (count > 1 && !ds__is_dense(&from->d) &&
        w->region[from->at.region].device.type != DS_DEVICE_HOST) {
        ds__dense_like(&from->d, dense);
        ds__source source = ds__participant_pack(w, from, dense);
        src = (ds__operand){ source.at, dense };
        packed = source.ready;
    }
    for (size_t i = 0; i < count && w->r == DS_OK; i++) {
        uint32_t lane = ds__lane_of(w, &to[i]);
        if (ds__same_place(from, &to[i]))
            continue;
        ds__come_after(w, lane, packed);
        ds__copy_add(w, lane, ds__operand_of(&to[i]), src, &to[i].d);
    }
}

/* Runs a broadcast whose participants are open. */
static ds_result ds__broadcast_run(ds__work *w, const ds__participant *from,
                                   const ds__participant *to, size_t count) {
    ds_result r = count ? ds__work_settle(w) : DS_OK;
    if (r < 0 || !count)
        return r;
    ds__broadcast_steps(w, from, to, count);
    return ds__work_run(w);
}

DSDEF ds_result(ds_comm_broadcast)(const ds_tensor *tensor, const ds_device *devices, size_t count,
                                   const ds_comm_options *options, ds_tensor **out) {
    ds__work w;
    ds__participant from;
    size_t made = 0;
    if (out)
        memset(out, 0, count * sizeof *out);
    DS__COMM_BEGIN_CREATING("ds_comm_broadcast", "ds_comm_broadcast_into");
    ds__work_begin(&w, options);
    DS__REQUIRE(!count || (devices && out), "%s is NULL", devices ? "out" : "devices");
    ds__participant *to = ds__participants_alloc(&w, count);
    ds_result r = to ? ds__input_open(&w, tensor, "the tensor", DS__NO_LIST, &from) : w.r;
    if (r == DS_OK)
        r = ds__results_lanes(&w, devices, count, &from);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds__destination d;
        r = ds__destination_at(devices, i, &d);
        if (r == DS_OK && ds__result_is_alias(&w, d.device, &from))
            r = ds__tensor_show(tensor, &from.d, &out[i]);
        else if (r == DS_OK)
            r = ds__result_create(&w, &from.d, &d, &to[made++], &out[i]);
    }
    if (r == DS_OK)
        r = ds__broadcast_run(&w, &from, to, made);
    if (r < 0)
        ds__results_destroy(out, count);
    ds__work_end(&w);
    return r;
}

/* Opens the outputs, and checks them against the source and each other. */
static ds_result ds__broadcast_open_outputs(ds__work *w, const ds_tensor *const *outs, size_t count,
                                            const ds__participant *from, ds__participant *to) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        ds__name name = ds__name_of("output tensor", i);
        r = ds__output_open(w, outs[i], name.words, i, &to[i]);
        if (r == DS_OK)
            r = ds__same_form(&to[i], name, from, -1);
        if (r == DS_OK && !ds__same_place(from, &to[i]))
            r = ds__memory_check_disjoint(&to[i], name, from,
                                          ds__name_of("tensor to send", DS__NO_LIST));
    }
    return r == DS_OK ? ds__outputs_check_disjoint(to, count) : r;
}

DSDEF ds_result(ds_comm_broadcast_into)(const ds_tensor *tensor, const ds_tensor *const *outs,
                                        size_t count, const ds_comm_options *options) {
    ds__work w;
    ds__participant from;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_broadcast_into");
    if (ds__comm_leave(&(ds__comm_call){ .verb = DS__VERB_BROADCAST,
                                         .in = &tensor,
                                         .out = outs,
                                         .in_count = 1,
                                         .out_count = count,
                                         .options = options },
                       &r))
        return r;
    ds__work_begin(&w, options);
    DS__REQUIRE(!count || outs, "outs is NULL");
    ds__participant *to = ds__participants_alloc(&w, count);
    r = to ? ds__input_open(&w, tensor, "the tensor", DS__NO_LIST, &from) : w.r;
    if (r == DS_OK)
        r = ds__broadcast_open_outputs(&w, outs, count, &from, to);
    if (r == DS_OK)
        r = ds__broadcast_run(&w, &from, to, count);
    ds__work_end(&w);
    return r;
}

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

/* comm/reduction.h - reductions to one tensor.

   Implements ds_comm_reduce, ds_comm_reduce_add, ds_comm_reduce_add_coalesced and
   ds_comm_reduce_into. ds__reduce_steps writes the steps of one reduction; ds__reduce_slice,
   ds__reduce_direct and ds__reduction_check also serve all_to_all.h.

   Invariants: inputs have one shape and one data type, lie on devices, and start at a multiple
   of the size of their numbers. On the direct path, all inputs are combined in list order by one
   step. A plan may use another order only where ds__order_of allows it. Operands are first
   copied to temporary memory if their strides differ from the dense strides of the result. The
   same applies to memory outside the reach of the lane's kernels. If the library was compiled
   with fast-math options, reductions of floating-point and complex numbers are refused.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */

/* Checks that the operator is valid and supported for the data type. */
static ds_result ds__reduction_check(ds__reduction reduction) {
    char name[DS_DTYPE_NAME_SIZE];
    uint32_t sum = DS__COMM_SUM;
    uint64_t per_element;
    ds_reduce_op op = reduction.op;
    int kind = ds__comm_kind(reduction.dtype, &sum, 0, &per_element);
    int complex = reduction.dtype.code == DS_CODE_COMPLEX;
    DS__REQUIRE((unsigned)op <= DS_REDUCE_AVERAGE, "op is %d; use a DS_REDUCE_* operator", (int)op);
    if (kind < 0 || (complex && kind == DS__COMM_F16))
        return ds__fail(DS_ERR_UNSUPPORTED, "elements of type %s can be copied, but not reduced",
                        ds__dtype_name(reduction.dtype, name));
    DS__REQUIRE(!complex || (op != DS_REDUCE_MAX && op != DS_REDUCE_MIN),
                "%s is not supported for complex numbers",
                op == DS_REDUCE_MAX ? "largest" : "smallest");
    DS__REQUIRE(reduction.dtype.code != DS_CODE_BOOL || op != DS_REDUCE_AVERAGE,
                "average is not supported for bool");
    if (!DS__COMM_EXACT && kind >= DS__COMM_F16)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "devstream was compiled with -ffast-math or a part of it, so a reduction "
                        "of %s would not be bit-exact; compile without it",
                        ds__dtype_name(reduction.dtype, name));
    return DS_OK;
}

/* Locates participants with these strides in memory that kernels can use. Others are packed. */
static void ds__sources_of(ds__work *w, const ds__participant *in, size_t count,
                           const int64_t *strides, ds__source *out) {
    for (size_t i = 0; i < count && w->r == DS_OK; i++) {
        if (ds__same_strides(&in[i].d, strides) && w->region[in[i].at.region].direct)
            out[i] = (ds__source){ in[i].at, DS__NO_INDEX };
        else
            out[i] = ds__participant_pack(w, &in[i], strides);
    }
}

/* Returns uninitialised sources until ds__work_end; NULL: out of memory, also in w->r. */
static ds__source *ds__sources_alloc(ds__work *w, size_t count) {
    return ds__work_alloc(w, count, sizeof(ds__source));
}

/* Reduces a slice of all inputs to the same slice of `dst`, on the lane of `dst`. Inputs outside
   the reach of the lane's kernels are copied first. Returns the step; DS__NO_INDEX: out of memory,
   or the slice is empty. */
static uint32_t ds__reduce_slice(ds__work *w, ds__location dst, const ds__source *in, size_t count,
                                 ds__reduction reduction, ds__slice slice) {
    uint32_t lane = w->region[dst.region].lane;
    size_t item = (ds_dtype_get_size)(reduction.dtype);
    size_t bytes = (size_t)slice.size * item;
    ptrdiff_t offset = (ptrdiff_t)(slice.begin * (int64_t)item);
    uint32_t first = (uint32_t)w->locations;
    if (w->r < 0 || !slice.size)
        return DS__NO_INDEX;
    for (size_t i = 0; i < count; i++) {
        ds__location at = { in[i].at.region, in[i].at.offset + offset };
        ds__come_after(w, lane, in[i].ready);
        if (!ds__step_reaches(w, lane, at.region)) {
            ds__location here = ds__temporary_add(w, lane, bytes);
            ds__step_copy_add(w, lane, here, at, bytes);
            at = here;
        }
        ds__location *location = DS__MORE(w, location);
        if (!location)
            return DS__NO_INDEX;
        *location = at;
    }
    dst.offset += offset;
    return ds__step_reduce_add(w, lane, dst, first, reduction, (size_t)slice.size);
}

/* Reduces all inputs to `to` in one step, on its lane. sources: memory for `count` sources. */
static void ds__reduce_direct(ds__work *w, const ds__participant *in, size_t count,
                              const ds__participant *to, ds_reduce_op op, ds__source *sources) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    uint32_t lane = ds__lane_of(w, to);
    ds__dense_like(&to->d, strides);
    int fits = ds__same_strides(&to->d, strides) && w->region[to->at.region].direct;
    ds__sources_of(w, in, count, strides, sources);
    ds__location dst = fits ? to->at : ds__temporary_add(w, lane, to->d.bytes);
    ds__reduce_slice(w, dst, sources, count, (ds__reduction){ op, to->d.dtype },
                     (ds__slice){ 0, to->d.count });
    if (!fits)
        ds__copy_add(w, lane, ds__operand_of(to), (ds__operand){ dst, strides }, &to->d);
}

/* Returns 1 if the steps of a plan were appended. */
static int ds__reduce_follow(ds__work *w, const ds__participant *in, size_t count,
                             const ds__participant *to, ds_reduce_op op) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    const ds__division whole = { 0, 1, strides };
    if (!w->options->topology)
        return 0;
    ds__follow f = { .want = { .what = DS_REDUCE, .bytes = to->d.bytes }, .reduction.op = op };
    if (!ds__follow_open(w, &f, in, count, to))
        return 0;
    ds__dense_like(&to->d, strides);
    for (size_t i = 0; i < count && w->r == DS_OK; i++)
        ds__side_open(w, &f.in[i], &in[i], &whole, 1);
    ds__side_open(w, &f.out[f.want.root], to, &whole, 0);
    ds__follow_run(w, &f);
    return 1;
}

/* Appends the steps of a reduction. sources: as in ds__reduce_direct. */
static void ds__reduce_steps(ds__work *w, const ds__participant *in, size_t count,
                             const ds__participant *to, ds_reduce_op op, ds__source *sources) {
    if (count == 1) {
        if (!ds__same_place(in, to))
            ds__copy_participant(w, ds__lane_of(w, to), to, in);
        return;
    }
    if (!ds__reduce_follow(w, in, count, to, op))
        ds__reduce_direct(w, in, count, to, op, sources);
}

/* Checks that the elements are aligned to their size, else a GPU would fail. A complex element is
   two numbers. */
static ds_result ds__on_multiples(const ds__participant *p, ds__name name) {
    size_t number = p->d.dtype.code == DS_CODE_COMPLEX ? p->d.item / 2 : p->d.item;
    DS__REQUIRE(!p->d.count || (uintptr_t)p->d.first % number == 0,
                "%s begins at %p; a reduction needs a multiple of %zu, the element size",
                ds__name_text(name), (void *)p->d.first, number);
    return DS_OK;
}

/* Opens inputs of one shape and type: tensors[0], tensors[stride] and so on. */
static ds_result ds__reduce_open(ds__work *w, const ds_tensor *const *tensors, size_t count,
                                 size_t stride, ds_reduce_op op, ds__participant *in) {
    DS__REQUIRE(count && tensors, "there are no tensors to reduce");
    DS__REQUIRE(count > 1 || !w->options->plan,
                "the plan does not fit: a single tensor is only copied");
    ds_result r = w->r;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__input_open(w, tensors[i * stride], "input tensor", i, &in[i]);
        if (r == DS_OK && in[i].d.device.type == DS_DEVICE_HOST)
            r = ds__fail(DS_ERR_INVALID_DEVICE,
                         "input tensor at index %zu is on the host, not on a device", i);
        if (r == DS_OK)
            r = ds__same_form(&in[i], ds__name_of("input tensor", i), &in[0], -1);
    }
    if (r == DS_OK)
        r = ds__reduction_check((ds__reduction){ op, in[0].d.dtype });
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__on_multiples(&in[i], ds__name_of("input tensor", i));
    return r;
}

/* Lists of tensors: tensor[i * count + k] is tensor k of list i. */
typedef struct ds__tensor_lists {
    const ds_tensor *const *tensor;
    size_t lists;
    size_t count;
} ds__tensor_lists;

/* Opens the inputs of all sums, side by side for each sum, and checks that each sum has one on the
   destination. */
static ds_result ds__reduce_open_lists(ds__work *w, const ds__tensor_lists *t, ds_reduce_op op,
                                       ds_device destination, ds__participant *in) {
    for (size_t k = 0; k < t->count; k++, in += t->lists) {
        int there = 0;
        const ds_tensor *const *first = t->tensor ? t->tensor + k : NULL;
        ds_result r = ds__reduce_open(w, first, t->lists, t->count, op, in);
        if (r < 0)
            return r;
        for (size_t i = 0; i < t->lists; i++)
            there |= ds__same_device(in[i].d.device, destination);
        if (!there)
            return ds__fail(DS_ERR_DEVICE_MISMATCH,
                            "none of the input tensors is on the destination, %s:%d",
                            ds__type_name(destination.type), destination.index);
    }
    return DS_OK;
}

/* Creates the results, and reduces to them. */
static ds_result ds__reduce_results_create(ds__work *w, const ds__tensor_lists *t, ds_reduce_op op,
                                           ds_device destination, const ds__participant *in,
                                           ds_tensor **out) {
    ds__participant *to = ds__participants_alloc(w, t->count);
    ds__source *sources = ds__sources_alloc(w, t->lists);
    ds_result r = w->r;
    for (size_t k = 0; k < t->count && r == DS_OK; k++) {
        ds__destination at = { destination, k, DS__NO_LIST };
        r = ds__result_create(w, &in[k * t->lists].d, &at, &to[k], &out[k]);
    }
    if (r == DS_OK && t->count)
        r = ds__work_settle(w);
    for (size_t k = 0; k < t->count && r == DS_OK; k++)
        ds__reduce_steps(w, &in[k * t->lists], t->lists, &to[k], op, sources);
    return r == DS_OK ? ds__work_run(w) : r;
}

/* Sums lists of tensors to new results on the destination. With DS_COMM_ALIAS, results of a single
   list show its tensors. */
static ds_result ds__reduce_lists(const ds__tensor_lists *t, ds_reduce_op op, ds_device destination,
                                  const ds_comm_options *o, ds_tensor **out) {
    ds__work w;
    ds_result r =
        ds__comm_device(destination, ds__name_of("the destination", DS__NO_LIST), &destination);
    if (r < 0)
        return r;
    DS__REQUIRE(t->lists < SIZE_MAX / (t->count + 1), "%zu lists of %zu tensors", t->lists,
                t->count);
    ds__work_begin(&w, o);
    ds__participant *in = ds__participants_alloc(&w, t->lists * t->count);
    r = w.r;
    if (r == DS_OK)
        r = ds__reduce_open_lists(&w, t, op, destination, in);
    if (r == DS_OK && !(t->lists == 1 && o->flags & DS_COMM_ALIAS))
        r = ds__reduce_results_create(&w, t, op, destination, in, out);
    else
        for (size_t k = 0; k < t->count && r == DS_OK; k++)
            r = ds__tensor_show(t->tensor[k], &in[k].d, &out[k]);
    if (r < 0)
        ds__results_destroy(out, t->count);
    ds__work_end(&w);
    return r;
}

DSDEF ds_result(ds_comm_reduce)(const ds_tensor *const *tensors, size_t count, ds_reduce_op op,
                                ds_device destination, const ds_comm_options *options,
                                ds_tensor **out) {
    if (out)
        *out = NULL;
    DS__COMM_BEGIN_CREATING("ds_comm_reduce", "ds_comm_reduce_into");
    DS__REQUIRE(out, "out is NULL");
    return ds__reduce_lists(&(ds__tensor_lists){ tensors, count, 1 }, op, destination, options,
                            out);
}

DSDEF ds_result(ds_comm_reduce_add)(const ds_tensor *const *tensors, size_t count,
                                    ds_device destination, const ds_comm_options *options,
                                    ds_tensor **out) {
    if (out)
        *out = NULL;
    DS__COMM_BEGIN_CREATING("ds_comm_reduce_add", "ds_comm_reduce_into");
    DS__REQUIRE(out, "out is NULL");
    return ds__reduce_lists(&(ds__tensor_lists){ tensors, count, 1 }, DS_REDUCE_SUM, destination,
                            options, out);
}

DSDEF ds_result(ds_comm_reduce_add_coalesced)(const ds_tensor *const *tensors, size_t lists,
                                              size_t count, ds_device destination,
                                              size_t buffer_size, const ds_comm_options *options,
                                              ds_tensor **out) {
    (void)buffer_size;
    if (out)
        memset(out, 0, count * sizeof *out);
    DS__COMM_BEGIN_CREATING("ds_comm_reduce_add_coalesced", "ds_comm_reduce_into");
    DS__REQUIRE(!count || (tensors && out), "%s is NULL", tensors ? "out" : "tensors");
    return ds__reduce_lists(&(ds__tensor_lists){ tensors, lists, count }, DS_REDUCE_SUM,
                            destination, options, out);
}

/* Opens the output, and checks it against the inputs. */
static ds_result ds__reduce_open_output(ds__work *w, const ds_tensor *out,
                                        const ds__participant *in, size_t count,
                                        ds__participant *to) {
    ds__name name = ds__name_of("the output tensor", DS__NO_LIST);
    ds_result r = ds__output_open(w, out, name.words, name.index, to);
    if (r == DS_OK)
        r = ds__same_form(to, name, &in[0], -1);
    if (r == DS_OK)
        r = ds__on_multiples(to, name);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        if (!ds__same_place(to, &in[i]))
            r = ds__memory_check_disjoint(to, name, &in[i], ds__name_of("input tensor", i));
    return r == DS_OK ? ds__work_settle(w) : r;
}

DSDEF ds_result(ds_comm_reduce_into)(const ds_tensor *const *tensors, size_t count, ds_reduce_op op,
                                     const ds_tensor *out, const ds_comm_options *options) {
    ds__work w;
    ds__participant to;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_reduce_into");
    if (ds__comm_leave(&(ds__comm_call){ .verb = DS__VERB_REDUCE,
                                         .in = tensors,
                                         .out = &out,
                                         .in_count = count,
                                         .out_count = 1,
                                         .op = op,
                                         .options = options },
                       &r))
        return r;
    ds__work_begin(&w, options);
    ds__participant *in = ds__participants_alloc(&w, count);
    ds__source *sources = ds__sources_alloc(&w, count);
    r = w.r;
    if (r == DS_OK)
        r = ds__reduce_open(&w, tensors, count, 1, op, in);
    if (r == DS_OK)
        r = ds__reduce_open_output(&w, out, in, count, &to);
    if (r == DS_OK) {
        ds__reduce_steps(&w, in, count, &to, op, sources);
        r = ds__work_run(&w);
    }
    ds__work_end(&w);
    return r;
}

/* comm/all_to_all.h - collectives with an output on every device.

   Implements ds_comm_all_reduce, ds_comm_all_gather, ds_comm_reduce_scatter, ds_comm_all_to_all
   and ds_comm_barrier. ds__all_open checks the inputs and outputs (ds__all); ds__all_follow
   writes the steps of a plan.

   Invariants: the input and the output at one index are on the same device, never on the host.
   Outputs share no memory with each other, as far as ds__memory_check_disjoint finds it. An output
   may share memory with its own input only as DS__IN_PLACE_* allows. On the direct path of an
   all-reduce on processors, one kernel writes all outputs. Elsewhere each lane reduces one slice
   and then copies the slices of the others. In each round, no two copies read the same result.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */

/* A call with an input and an output on each of `count` devices. */
typedef struct ds__all {
    ds__participant *in;
    ds__participant *out;
    size_t count;
    ds__work w;
} ds__all;

static ds_result ds__all_check_devices(const ds__participant *in, const ds__participant *out,
                                       size_t i) {
    int host = in->d.device.type == DS_DEVICE_HOST;
    if (host || out->d.device.type == DS_DEVICE_HOST)
        return ds__fail(DS_ERR_INVALID_DEVICE,
                        "%s tensor at index %zu is on the host, not on a device",
                        host ? "input" : "output", i);
    if (!ds__same_device(in->d.device, out->d.device))
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "input tensor at index %zu is on %s:%d, the output tensor on %s:%d", i,
                        ds__type_name(in->d.device.type), in->d.device.index,
                        ds__type_name(out->d.device.type), out->d.device.index);
    return DS_OK;
}

/* Opens input and output i, and compares them with the first ones. */
static ds_result ds__all_open_rank(ds__all *a, const ds_tensor *tensor, const ds_tensor *out,
                                   size_t i) {
    ds__name in_name = ds__name_of("input tensor", i);
    ds__name out_name = ds__name_of("output tensor", i);
    ds_result r = ds__input_open(&a->w, tensor, in_name.words, i, &a->in[i]);
    if (r == DS_OK)
        r = ds__output_open(&a->w, out, out_name.words, i, &a->out[i]);
    if (r == DS_OK)
        r = ds__same_dtype(&a->in[i], in_name, &a->in[0]);
    if (r == DS_OK)
        r = ds__same_dtype(&a->out[i], out_name, &a->in[0]);
    if (r == DS_OK)
        r = ds__same_shape(&a->in[i], in_name, &a->in[0], -1);
    if (r == DS_OK)
        r = ds__same_shape(&a->out[i], out_name, &a->out[0], -1);
    return r == DS_OK ? ds__all_check_devices(&a->in[i], &a->out[i], i) : r;
}

static ds_result ds__all_open(ds__all *a, const ds_comm_options *options,
                              const ds_tensor *const *tensors, const ds_tensor *const *outs,
                              size_t count) {
    ds__work_begin(&a->w, options);
    a->count = count;
    DS__REQUIRE(count, "count is 0 or the list is NULL");
    DS__REQUIRE(tensors && outs, "%s is NULL", tensors ? "outs" : "tensors");
    DS__REQUIRE(count < INT32_MAX, "%zu tensors", count);
    a->in = ds__participants_alloc(&a->w, 2 * count);
    if (!a->in)
        return a->w.r;
    a->out = a->in + count;
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__all_open_rank(a, tensors[i], outs[i], i);
    if (r == DS_OK)
        r = ds__outputs_check_disjoint(a->out, count);
    return r == DS_OK ? ds__work_settle(&a->w) : r;
}

/* Runs the list if r is DS_OK, and closes the call. */
static ds_result ds__all_end(ds__all *a, ds_result r) {
    if (r == DS_OK)
        r = ds__work_run(&a->w);
    ds__work_end(&a->w);
    return r;
}

/* Part i of a tensor of `count` equal parts along dimension 0. */
static ds__participant ds__all_part(const ds__all *a, const ds__participant *p, size_t i) {
    int64_t size = p->d.shape[0] / (int64_t)a->count;
    return ds__participant_slice(p, 0, (ds__slice){ (int64_t)i * size, size });
}

/* Where output i may lie in input i: NCCL's rules of in-place operations. */
enum {
    DS__IN_PLACE_SAME,   /* all-reduce: it is the input */
    DS__IN_PLACE_INPUT,  /* reduce-scatter: it is part i of the input */
    DS__IN_PLACE_OUTPUT, /* all-gather: its part i is the input */
    DS__IN_PLACE_NEVER   /* all-to-all */
};

static int ds__all_is_in_place(const ds__all *a, size_t i, int rule) {
    const ds__participant *out = &a->out[i];
    const ds__participant *in = &a->in[i];
    ds__participant part;
    switch (rule) {
    case DS__IN_PLACE_SAME:
        return ds__same_place(out, in);
    case DS__IN_PLACE_INPUT:
        part = ds__all_part(a, in, i);
        return ds__same_place(&part, out);
    case DS__IN_PLACE_OUTPUT:
        part = ds__all_part(a, out, i);
        return ds__same_place(&part, in);
    default:
        return 0;
    }
}

/* Checks that the outputs share no memory with inputs, unless the rule (DS__IN_PLACE_*) allows
   it. */
static ds_result ds__all_check_disjoint(const ds__all *a, int rule) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count; i++)
        for (size_t k = 0; k < a->count && r == DS_OK; k++)
            if (i != k || !ds__all_is_in_place(a, i, rule))
                r = ds__memory_check_disjoint(&a->out[i], ds__name_of("output tensor", i),
                                              &a->in[k], ds__name_of("input tensor", k));
    return r;
}

static ds_result ds__all_check_reducible(const ds__all *a, ds_reduce_op op) {
    ds_result r = ds__reduction_check((ds__reduction){ op, a->in[0].d.dtype });
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        r = ds__on_multiples(&a->in[i], ds__name_of("input tensor", i));
        if (r == DS_OK)
            r = ds__on_multiples(&a->out[i], ds__name_of("output tensor", i));
    }
    return r;
}

/* Checks that the tensors `many` have `count` times the size of the tensors `one` in dimension
   0. */
static ds_result ds__all_check_sizes(const ds__participant *many, const char *words,
                                     const ds__participant *one, const char *other, size_t count) {
    int64_t n;
    DS__REQUIRE(one->d.ndim > 0 && many->d.ndim > 0,
                "tensors without dimensions cannot be split or concatenated");
    ds_result r = ds__same_shape(many, ds__name_of(words, 0), one, 0);
    if (r < 0)
        return r;
    DS__REQUIRE(
        !__builtin_mul_overflow(one->d.shape[0], (int64_t)count, &n) && many->d.shape[0] == n,
        "%ss have the size %lld in dimension 0; it must be %zu times %lld, the size of the %s",
        words, (long long)many->d.shape[0], count, (long long)one->d.shape[0], other);
    return DS_OK;
}

/* Returns 1 if the steps of a plan were appended. in_parts, out_parts: 1 or `count`, the blocks of
   the plan of which inputs and outputs consist. */
static int ds__all_follow(ds__all *a, ds_collective what, ds_reduce_op op, size_t in_parts,
                          size_t out_parts) {
    ds__work *w = &a->w;
    int64_t strides[DS_TENSOR_MAX_DIMS];
    const ds__division in = { 0, in_parts, strides };
    const ds__division out = { 0, out_parts, strides };
    if (!w->options->topology)
        return 0;
    ds__follow f = { .want = { .what = what }, .reduction.op = op };
    f.want.bytes = out_parts > in_parts ? a->out[0].d.bytes : a->in[0].d.bytes;
    if (!ds__follow_open(w, &f, a->out, a->count, NULL))
        return 0;
    if (out_parts == 1) {
        ds__dense_like(&a->out[0].d, strides);
    } else if (in_parts == 1) {
        ds__dense_like(&a->in[0].d, strides);
    } else {
        ds__participant part = ds__all_part(a, &a->in[0], 0);
        ds__dense_like(&part.d, strides);
    }
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
        ds__side_open(w, &f.in[i], &a->in[i], &in, 1);
        ds__side_open(w, &f.out[i], &a->out[i], &out, 0);
    }
    ds__follow_run(w, &f);
    return 1;
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* Returns slice i of `count` equal slices, in units of 64 elements. */
static ds__slice ds__slice_at(int64_t elements, size_t i, size_t count) {
    int64_t units = elements / 64 + (elements % 64 != 0);
    int64_t n = (int64_t)count;
    int64_t bound[2];
    for (int64_t k = 0; k < 2; k++) {
        int64_t at = (int64_t)i + k;
        bound[k] = (units / n * at + units % n * at / n) * 64;
        if (at == n || bound[k] > elements)
            bound[k] = elements;
    }
    return (ds__slice){ bound[0], bound[1] - bound[0] };
}

/* Finds where the results arise: in the outputs, or in temporary memory if an output has gaps. */
static void ds__all_reduce_open_results(ds__all *a, const int64_t *strides, ds__source *results) {
    ds__work *w = &a->w;
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        results[i].at = ds__same_strides(&a->out[i].d, strides)
                            ? a->out[i].at
                            : ds__temporary_add(w, ds__lane_of(w, &a->out[i]), a->out[i].d.bytes);
}

/* Copies the slices of the other lanes. In each turn, no two lanes read from the same one. */
static void ds__all_reduce_fetch(ds__all *a, const ds__source *results) {
    ds__work *w = &a->w;
    size_t item = a->in[0].d.item;
    for (size_t turn = 1; turn < a->count; turn++)
        for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
            size_t k = (i + turn) % a->count;
            uint32_t lane = ds__lane_of(w, &a->out[i]);
            ds__slice slice = ds__slice_at(a->in[0].d.count, k, a->count);
            ds__location dst = results[i].at;
            ds__location src = results[k].at;
            dst.offset += (ptrdiff_t)(slice.begin * (int64_t)item);
            src.offset += (ptrdiff_t)(slice.begin * (int64_t)item);
            ds__come_after(w, lane, results[k].ready);
            ds__step_copy_add(w, lane, dst, src, (size_t)slice.size * item);
        }
}

/* Returns 1 if one kernel can reduce all inputs to all outputs: it runs on the processor and can
   use all memory as it is. Observers are told of the steps of each lane instead. */
static int ds__all_reduce_is_one(ds__all *a, const ds__source *sources, const ds__source *results,
                                 ds_reduce_op op) {
    ds__work *w = &a->w;
    uint32_t lane = ds__lane_of(w, &a->out[0]);
    int real = a->in[0].d.dtype.code == DS_CODE_FLOAT || a->in[0].d.dtype.code == DS_CODE_BFLOAT;
    if (a->count < 2 || a->count > DS__COMM_INPUTS || !a->in[0].d.count ||
        !w->lane[0].s->driver->spreads() || ds__captures_open() || ds__observer_is_set() ||
        (op == DS_REDUCE_AVERAGE && !real))
        return 0;
    for (size_t i = 0; i < a->count; i++)
        if (sources[i].ready != DS__NO_INDEX || results[i].at.region != a->out[i].at.region ||
            !ds__step_reaches(w, lane, sources[i].at.region) ||
            !ds__step_reaches(w, lane, results[i].at.region))
            return 0;
    return 1;
}

/* Appends one step that reduces all inputs to all outputs. */
static void ds__all_reduce_at_once(ds__all *a, const ds__source *sources, const ds__source *results,
                                   ds__reduction reduction) {
    ds__work *w = &a->w;
    uint32_t first = (uint32_t)w->locations;
    for (size_t i = 0; i < 2 * a->count; i++) {
        ds__location *location = DS__MORE(w, location);
        if (!location)
            return;
        *location = i < a->count ? sources[i].at : results[i - a->count].at;
    }
    uint32_t i = ds__step_reduce_add(w, ds__lane_of(w, &a->out[0]), results[0].at, first, reduction,
                                     (size_t)a->in[0].d.count);
    if (i != DS__NO_INDEX)
        w->step[i].kind = DS__STEP_REDUCE_ALL;
}

/* Appends the steps of the direct path. */
static ds_result ds__all_reduce_steps(ds__all *a, ds_reduce_op op) {
    ds__work *w = &a->w;
    int64_t strides[DS_TENSOR_MAX_DIMS];
    ds__reduction reduction = { op, a->in[0].d.dtype };
    ds__source *sources = ds__sources_alloc(w, 2 * a->count);
    if (!sources)
        return w->r;
    ds__source *results = sources + a->count;
    ds__dense_like(&a->out[0].d, strides);
    ds__sources_of(w, a->in, a->count, strides, sources);
    ds__all_reduce_open_results(a, strides, results);
    if (w->r == DS_OK && ds__all_reduce_is_one(a, sources, results, op)) {
        ds__all_reduce_at_once(a, sources, results, reduction);
        return w->r;
    }
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        results[i].ready = ds__reduce_slice(w, results[i].at, sources, a->count, reduction,
                                            ds__slice_at(a->in[0].d.count, i, a->count));
    ds__all_reduce_fetch(a, results);
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++)
        if (!ds__same_strides(&a->out[i].d, strides))
            ds__copy_add(w, ds__lane_of(w, &a->out[i]), ds__operand_of(&a->out[i]),
                         (ds__operand){ results[i].at, strides }, &a->out[i].d);
    return w->r;
}

/* The call of a collective that has as many outputs as inputs. */
#define DS__ALL_CALL(verb_, op_)                                                            \
    (ds__comm_call) {                                                                       \
        .verb = (verb_), .in = tensors, .out = outs, .in_count = count, .out_count = count, \
        .op = (op_), .options = options                                                     \
    }

DSDEF ds_result(ds_comm_all_reduce)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, ds_reduce_op op, const ds_comm_options *options) {
    ds__all a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_all_reduce");
    if (ds__comm_leave(&DS__ALL_CALL(DS__VERB_ALL_REDUCE, op), &r))
        return r;
    r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__same_shape(&a.out[0], ds__name_of("output tensor", 0), &a.in[0], -1);
    if (r == DS_OK)
        r = ds__all_check_reducible(&a, op);
    if (r == DS_OK)
        r = ds__all_check_disjoint(&a, DS__IN_PLACE_SAME);
    if (r == DS_OK && !ds__all_follow(&a, DS_ALL_REDUCE, op, 1, 1))
        r = ds__all_reduce_steps(&a, op);
    return ds__all_end(&a, r);
}

/* ---- all-gather, reduce-scatter, all-to-all -------------------------------------------------- */

/* Copies input k to part k of all outputs. */
static void ds__all_gather_steps(ds__all *a) {
    ds__work *w = &a->w;
    for (size_t turn = 0; turn < a->count; turn++)
        for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
            size_t k = (i + turn) % a->count;
            ds__participant part = ds__all_part(a, &a->out[i], k);
            if (!ds__same_place(&part, &a->in[k]))
                ds__copy_participant(w, ds__lane_of(w, &part), &part, &a->in[k]);
        }
}

DSDEF ds_result(ds_comm_all_gather)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, const ds_comm_options *options) {
    ds__all a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_all_gather");
    if (ds__comm_leave(&DS__ALL_CALL(DS__VERB_ALL_GATHER, DS_REDUCE_SUM), &r))
        return r;
    r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__all_check_sizes(&a.out[0], "output tensor", &a.in[0], "input tensor", count);
    if (r == DS_OK)
        r = ds__all_check_disjoint(&a, DS__IN_PLACE_OUTPUT);
    if (r == DS_OK && !ds__all_follow(&a, DS_ALL_GATHER, DS_REDUCE_SUM, 1, count))
        ds__all_gather_steps(&a);
    return ds__all_end(&a, r);
}

/* Reduces part i of all inputs to output i. */
static ds_result ds__reduce_scatter_steps(ds__all *a, ds_reduce_op op) {
    ds__work *w = &a->w;
    ds__participant *part = ds__participants_alloc(w, a->count);
    ds__source *sources = ds__sources_alloc(w, a->count);
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
        for (size_t k = 0; k < a->count; k++)
            part[k] = ds__all_part(a, &a->in[k], i);
        ds__reduce_direct(w, part, a->count, &a->out[i], op, sources);
    }
    return w->r;
}

DSDEF ds_result(ds_comm_reduce_scatter)(const ds_tensor *const *tensors,
                                        const ds_tensor *const *outs, size_t count, ds_reduce_op op,
                                        const ds_comm_options *options) {
    ds__all a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_reduce_scatter");
    if (ds__comm_leave(&DS__ALL_CALL(DS__VERB_REDUCE_SCATTER, op), &r))
        return r;
    r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__all_check_sizes(&a.in[0], "input tensor", &a.out[0], "output tensor", count);
    if (r == DS_OK)
        r = ds__all_check_reducible(&a, op);
    if (r == DS_OK)
        r = ds__all_check_disjoint(&a, DS__IN_PLACE_INPUT);
    if (r == DS_OK && !ds__all_follow(&a, DS_REDUCE_SCATTER, op, count, 1))
        r = ds__reduce_scatter_steps(&a, op);
    return ds__all_end(&a, r);
}

static ds_result ds__all_to_all_check(const ds__all *a) {
    const ds__participant *in = &a->in[0];
    ds_result r = ds__same_shape(&a->out[0], ds__name_of("output tensor", 0), in, -1);
    if (r < 0)
        return r;
    DS__REQUIRE(in->d.ndim, "tensors without dimensions cannot be split");
    DS__REQUIRE(in->d.shape[0] % (int64_t)a->count == 0,
                "the size in dimension 0, %lld, cannot be split into %zu equal parts",
                (long long)in->d.shape[0], a->count);
    return ds__all_check_disjoint(a, DS__IN_PLACE_NEVER);
}

/* Copies part i of input k to part k of output i. */
static void ds__all_to_all_steps(ds__all *a) {
    ds__work *w = &a->w;
    for (size_t turn = 0; turn < a->count; turn++)
        for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
            size_t k = (i + turn) % a->count;
            ds__participant to = ds__all_part(a, &a->out[i], k);
            ds__participant from = ds__all_part(a, &a->in[k], i);
            ds__copy_participant(w, ds__lane_of(w, &to), &to, &from);
        }
}

DSDEF ds_result(ds_comm_all_to_all)(const ds_tensor *const *tensors, const ds_tensor *const *outs,
                                    size_t count, const ds_comm_options *options) {
    ds__all a;
    ds_result r;
    DS__COMM_BEGIN("ds_comm_all_to_all");
    if (ds__comm_leave(&DS__ALL_CALL(DS__VERB_ALL_TO_ALL, DS_REDUCE_SUM), &r))
        return r;
    r = ds__all_open(&a, options, tensors, outs, count);
    if (r == DS_OK)
        r = ds__all_to_all_check(&a);
    if (r == DS_OK && !ds__all_follow(&a, DS_ALL_TO_ALL, DS_REDUCE_SUM, count, count))
        ds__all_to_all_steps(&a);
    return ds__all_end(&a, r);
}

/* ---- barrier --------------------------------------------------------------------------------- */

DSDEF ds_result(ds_comm_barrier)(const ds_stream *streams, size_t count) {
    ds__work w;
    const ds_comm_options *options = NULL;
    DS__COMM_BEGIN("ds_comm_barrier");
    ds__work_begin(&w, options);
    DS__REQUIRE(streams || !count, "streams is NULL");
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t lane;
        if (!streams[i].id)
            r = ds__fail(DS_ERR_INVALID_HANDLE,
                         "no stream was given at index %zu (the handle is zero)", i);
        else
            r = ds__lane_find(&w, streams[i], ds__name_of("entry", i),
                              (ds_device){ DS_DEVICE_HOST, 0 }, &lane);
    }
    if (r == DS_OK && ds__captures_open())
        r = ds__fork_capture(&w);
    if (r == DS_OK)
        r = ds__join_streams(&w, 1);
    w.forked &= r < 0;
    ds__work_end(&w);
    return r;
}

/* comm/coalesced.h - broadcast of many tensors in few buffers.

   Implements ds_comm_broadcast_coalesced. The tensors are assigned to buckets, as in PyTorch. The
   tensors of a bucket are packed at the source, each without gaps, into one buffer, and copied to
   one buffer on each device. The results are views of these buffers.

   Invariants: each tensor travels in one bucket, and a bucket has tensors of one data type.
   Each tensor starts at a multiple of 16 bytes in the buffer. The last tensor may exceed the
   buffer size. A tensor that is alone in its bucket and has no gaps is not packed.
   Locks: takes none itself and calls the driver without a lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */

/* One call. Result i on device d is out[d * count + i]. */
typedef struct ds__coalesced {
    const ds_tensor *const *tensors;
    ds__participant *in;
    size_t count;
    uint32_t *bucket;    /* of each tensor: the number of its bucket, from 1; 0: not assigned yet */
    ds__destination *to; /* the devices that get copies; to[k].index is d */
    size_t destinations;
    ds_tensor **out;
    ds__work w;
} ds__coalesced;

typedef struct ds__bucket {
    uint32_t number;
    size_t tensors;
    size_t bytes; /* of the buffer */
} ds__bucket;

/* Returns the bytes of a tensor in a buffer, a multiple of 16. */
static size_t ds__bucket_share(const ds__participant *p) {
    return (p->d.bytes + 15) & ~(size_t)15;
}

/* Assigns tensors to the next bucket: those with the data type of the first unassigned tensor,
   until their sum reaches the buffer size. */
static void ds__bucket_fill(ds__coalesced *a, ds__bucket *b, size_t buffer_size) {
    size_t first = 0;
    b->number++;
    b->tensors = b->bytes = 0;
    while (first < a->count && a->bucket[first])
        first++;
    for (size_t i = first; i < a->count && (!b->tensors || b->bytes < buffer_size); i++) {
        if (a->bucket[i] || !(ds_dtype_equal)(a->in[i].d.dtype, a->in[first].d.dtype))
            continue;
        a->bucket[i] = b->number;
        b->tensors++;
        b->bytes += ds__bucket_share(&a->in[i]);
    }
}

/* Packs the tensors of a bucket at the source. Returns the buffer, which may be the only tensor
   itself. *bytes: the bytes to copy from it. */
static ds__source ds__bucket_pack(ds__coalesced *a, const ds__bucket *b, size_t *bytes) {
    ds__work *w = &a->w;
    int64_t dense[DS_TENSOR_MAX_DIMS];
    ds__source buffer = { { 0, 0 }, DS__NO_INDEX };
    ptrdiff_t at = 0;
    *bytes = b->bytes;
    for (size_t i = 0; i < a->count && w->r == DS_OK; i++) {
        const ds__participant *p = &a->in[i];
        if (a->bucket[i] != b->number || !p->d.bytes)
            continue;
        ds__dense_like(&p->d, dense);
        if (b->tensors == 1 && ds__same_strides(&p->d, dense)) {
            *bytes = p->d.bytes;
            return (ds__source){ p->at, DS__NO_INDEX };
        }
        uint32_t lane = ds__lane_of(w, p);
        if (!at)
            buffer.at = ds__temporary_add(w, lane, b->bytes);
        ds__operand packed = { { buffer.at.region, at }, dense };
        uint32_t step = ds__copy_add(w, lane, packed, ds__operand_of(p), &p->d);
        if (step != DS__NO_INDEX)
            buffer.ready = step;
        at += (ptrdiff_t)ds__bucket_share(p);
    }
    return buffer;
}

/* Creates the results of a bucket as views of a buffer on their device. Each has the dimension
   order of its tensor. The buffer is freed with the last view. */
static ds_result ds__bucket_show(const ds__coalesced *a, const ds__bucket *b, const ds_tensor *flat,
                                 ds_tensor **out) {
    size_t at = 0;
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        if (a->bucket[i] != b->number)
            continue;
        ds__dims d = a->in[i].d;
        d.given = flat->device;
        d.first = (char *)((uintptr_t)flat->data + at); /* NULL if all tensors are empty */
        ds__dense_like(&a->in[i].d, d.strides);
        r = ds__tensor_show(flat, &d, &out[i]);
        at += ds__bucket_share(&a->in[i]);
    }
    return r;
}

/* Creates the buffers of a bucket on all destinations, with the results. Host memory without a
   stream goes to the lane of the tensors. */
static ds_result ds__bucket_create(ds__coalesced *a, const ds__bucket *b, ds__participant *to) {
    ds__work *w = &a->w;
    int64_t size = (int64_t)b->bytes;
    ds__dims like;
    ds_result r =
        ds__dims_read(ds_uint8(), 1, &size, NULL, ds__name_of("the buffer", DS__NO_LIST), &like);
    for (size_t k = 0; k < a->destinations && r == DS_OK; k++) {
        ds_tensor *flat = NULL;
        r = ds__result_create(w, &like, &a->to[k], &to[k], &flat);
        if (r == DS_OK && ds__lane_of(w, &to[k]) == DS__NO_INDEX)
            w->region[to[k].at.region].lane = ds__lane_of(w, &a->in[0]);
        if (r == DS_OK)
            r = ds__bucket_show(a, b, flat, &a->out[a->to[k].index * a->count]);
        ds__results_destroy(&flat, 1);
    }
    return r;
}

/* Appends the steps of a bucket: packs the tensors, and copies the buffer to all destinations. */
static ds_result ds__bucket_send(ds__coalesced *a, const ds__bucket *b) {
    ds__work *w = &a->w;
    size_t bytes;
    ds__participant from = { .at = { 0, 0 } };
    ds__source buffer = ds__bucket_pack(a, b, &bytes);
    ds__participant *to = ds__participants_alloc(w, a->destinations);
    if (!to)
        return w->r;
    ds_result r = ds__bucket_create(a, b, to);
    if (r < 0 || !bytes)
        return r < 0 ? r : w->r;
    int64_t size = (int64_t)bytes;
    r = ds__dims_read(ds_uint8(), 1, &size, NULL, ds__name_of("the buffer", DS__NO_LIST), &from.d);
    from.at = buffer.at;
    from.d.device = a->in[0].d.device;
    if (r < 0 || ds__broadcast_follow(w, &from, buffer.ready, to, a->destinations))
        return r < 0 ? r : w->r;
    for (size_t k = 0; k < a->destinations && w->r == DS_OK; k++) {
        uint32_t lane = ds__lane_of(w, &to[k]);
        ds__come_after(w, lane, buffer.ready);
        ds__step_copy_add(w, lane, to[k].at, buffer.at, bytes);
    }
    return w->r;
}

/* Opens the tensors, which must be on one device. */
static ds_result ds__coalesced_open_inputs(ds__coalesced *a) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count && r == DS_OK; i++) {
        ds__participant *p = &a->in[i];
        r = ds__participant_open(&a->w, a->tensors[i], ds__name_of("the tensor", i), DS__NO_LIST, 0,
                                 p);
        if (r == DS_OK && !ds__same_device(p->d.device, a->in[0].d.device))
            r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                         "the tensor at index %zu is on %s:%d, the first one on %s:%d", i,
                         ds__type_name(p->d.device.type), p->d.device.index,
                         ds__type_name(a->in[0].d.device.type), a->in[0].d.device.index);
    }
    return r;
}

/* Shows the tensors themselves on device d. */
static ds_result ds__coalesced_show(ds__coalesced *a, size_t d) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < a->count && r == DS_OK; i++)
        r = ds__tensor_show(a->tensors[i], &a->in[i].d, &a->out[d * a->count + i]);
    return r;
}

/* Finds the lanes of the devices that get copies, before any memory is allocated. Devices of
   DS_COMM_ALIAS show the tensors, do not participate, and are removed from the destinations. */
static ds_result ds__coalesced_open_outputs(ds__coalesced *a) {
    ds__work *w = &a->w;
    size_t kept = 0;
    ds_result r = DS_OK;
    for (size_t d = 0; d < a->destinations && r == DS_OK; d++) {
        const ds__destination to = a->to[d];
        uint32_t lane;
        if (a->count && ds__result_is_alias(w, to.device, &a->in[0])) {
            r = ds__coalesced_show(a, d);
        } else {
            r = ds__destination_lane(w, &to, &lane);
            a->to[kept++] = to;
        }
    }
    a->destinations = kept;
    return r == DS_OK && a->count && kept ? ds__work_settle(w) : r;
}

/* Runs the call, whose inputs are open, bucket by bucket. */
static ds_result ds__coalesced_run(ds__coalesced *a, size_t buffer_size) {
    ds__bucket b = { 0, 0, 0 };
    ds_result r = DS_OK;
    for (size_t left = a->count; left && r == DS_OK; left -= b.tensors) {
        ds__bucket_fill(a, &b, buffer_size);
        r = ds__bucket_send(a, &b);
    }
    return r == DS_OK ? ds__work_run(&a->w) : r;
}

DSDEF ds_result(ds_comm_broadcast_coalesced)(const ds_tensor *const *tensors, size_t count,
                                             const ds_device *devices, size_t device_count,
                                             size_t buffer_size, const ds_comm_options *options,
                                             ds_tensor **out) {
    enum { USUAL_SIZE = 10 << 20 };

    ds__coalesced a;
    size_t results;
    DS__ENTER("ds_comm_broadcast_coalesced");
    DS__REQUIRE(!__builtin_mul_overflow(count, device_count, &results) &&
                    results < SIZE_MAX / sizeof *out,
                "%zu tensors on %zu devices exceed the address space", count, device_count);
    if (out)
        memset(out, 0, results * sizeof *out);
    DS__COMM_READY_CREATING("ds_comm_broadcast_into");
    DS__REQUIRE(device_count, "there are no devices to broadcast to");
    DS__REQUIRE(devices, "devices is NULL");
    DS__REQUIRE(!count || (tensors && out), "%s is NULL", tensors ? "out" : "tensors");
    ds__work_begin(&a.w, options);
    a.tensors = tensors;
    a.count = count;
    a.destinations = device_count;
    a.out = out;
    a.in = ds__participants_alloc(&a.w, count);
    a.bucket = ds__work_alloc(&a.w, count, sizeof *a.bucket);
    a.to = ds__work_alloc(&a.w, device_count, sizeof *a.to);
    ds_result r = a.w.r;
    if (r == DS_OK)
        memset(a.bucket, 0, count * sizeof *a.bucket);
    for (size_t d = 0; d < device_count && r == DS_OK; d++)
        r = ds__destination_at(devices, d, &a.to[d]);
    if (r == DS_OK)
        r = ds__coalesced_open_inputs(&a);
    if (r == DS_OK)
        r = ds__coalesced_open_outputs(&a);
    if (r == DS_OK && a.destinations)
        r = ds__coalesced_run(&a, buffer_size ? buffer_size : USUAL_SIZE);
    if (r < 0 && out)
        ds__results_destroy(out, results);
    ds__work_end(&a.w);
    return r;
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
