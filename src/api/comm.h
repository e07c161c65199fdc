/* api/comm.h - collectives over several devices of a process.

   Declares the options of collectives and the functions that broadcast, scatter, gather, reduce
   and exchange tensors. */
#ifndef DS__API_COMM_H
#define DS__API_COMM_H

#include "tensor.h"
#include "reduce_op.h"

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

#endif
