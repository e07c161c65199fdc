/* api/comm.h - collectives over several devices of a process.

   Declares the options of collectives and the functions that broadcast, scatter, gather, reduce
   and exchange tensors. */
#ifndef DS__API_COMM_H
#define DS__API_COMM_H

#include "tensor.h"
#include "reduce_op.h"

/* ---- collectives ----------------------------------------------------------------------------- */

/* A collective is one call for all tensors and streams that take part. The call checks everything,
   enqueues copies and sums on the streams, and returns: it is asynchronous. On each stream the
   collective begins when all work enqueued there before is done. Every stream that takes part
   continues when the whole collective is done. So if a part of it fails at run time, every one of
   these streams reports the failure. Results are valid for work that is enqueued on their streams
   afterwards. If the call fails, nothing was enqueued on a stream (unless the error message says
   so), and results are NULL.

   Rules:
   - Tensors may have any shape and strides. They may be on any device of one driver, several on
     one device too, and in host memory. For pinned memory the host does not wait; for pageable
     memory ds_copy's rules apply.
   - Data types must agree.
   - Host memory is read and written on the stream that the options give for it, else on the first
     stream that takes part.
   - Results that a collective makes are freed with ds_tensor_free. Results in host memory are
     pinned.
   - In C an array of results (ds_tensor *[]) must be cast before it can be an array of inputs:
     (const ds_tensor *const *)out.
   - Tensors that are written must not share memory with other tensors, unless a function allows
     it. Shared memory is refused if both tensors are dense; otherwise the caller must avoid it.
   - A call that has nothing to do, because everything is empty, orders nothing.

   Errors common to all collectives; the error message names the tensor and the numbers:
       DS_ERR_INVALID_VALUE    shapes, types or sizes do not agree; the dimension does not exist;
                               memory is shared; the plan does not fit
       DS_ERR_INVALID_HANDLE   a stream does not exist any more
       DS_ERR_INVALID_DEVICE   a tensor is on the host where it must be on a device; no device and
                               no stream at all
       DS_ERR_DEVICE_MISMATCH  a stream is not on its tensor's device; memory is not where its
                               tensor says; no input is on the destination
       DS_ERR_CROSS_DRIVER     devices of both drivers in one collective
       DS_ERR_UNSUPPORTED      elements of less than a byte; a type that cannot be reduced
       DS_ERR_OUT_OF_MEMORY    no memory for a result or for data that is packed on the way
       DS_ERR_LIMIT_EXCEEDED   a result, or data that is packed on the way, would pass a memory
                               limit */

enum {
    /** a result that would equal a tensor which is where it is wanted shows that tensor's memory
        instead of a copy (torch); its stream takes no part then */
    DS_COMM_ALIAS = 1,
    /** with a topology: sums and products of floats may be made in any order, also from parts
        that were rounded to their type: faster, and other bits */
    DS_COMM_ANY_ORDER = 2
};
struct ds_topology;
struct ds_plan;

/** What may be said of every collective; NULL and zero mean the default. */
typedef struct ds_comm_options {
    /** stream i is that of the i-th device or tensor of the list (of tensors[i] and outs[i]);
        zeroed and missing ones: the thread's current stream of the device */
    const ds_stream *streams;
    size_t stream_count; /**< how many there are */
    /** that of the single tensor: of what is sent by broadcast and scatter, of the result of
        gather and reduce */
    ds_stream stream;
    unsigned flags; /**< DS_COMM_* */
    /** NULL: the direct way; else data takes the way that is planned for it (below) */
    const struct ds_topology *topology;
    /** this plan of the topology and no other; it must fit. NULL: ds_plan_get's */
    const struct ds_plan *plan;
    uint64_t reserved[4]; /**< 0 */
} ds_comm_options;

/* By plan. With options->topology a collective does the steps of the plan that ds_plan_get
   gives for it: the same results, bit for bit (DS_COMM_ANY_ORDER takes that back), in the same
   order with other work. It needs one tensor on each rank: entry i of a list is on the i-th
   device that the topology was made of (of a described one: on device i of the driver); the
   single tensor on one of them; the results of a broadcast anywhere, if no rank but the tensor's
   is left out. Pieces must be of equal size. What is otherwise takes the direct way, unless a
   plan is given: then it is DS_ERR_INVALID_VALUE. Each rank has further streams, devstream's
   own, and temporary memory as ds_plan.scratch says, taken from the allocator for as long as the
   work takes. While a stream captures, the steps become part of the graph. */

/** Copies a tensor to each device of the list: out[i] is a new tensor on devices[i], like the
    tensor in shape and order of dimensions. A device may stand there several times, the tensor's
    own too, and DS_DEVICE_HOST. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast(const ds_tensor *tensor, const ds_device *devices,
                                              size_t count, const ds_comm_options *options,
                                              ds_tensor **out);
/** Copies a tensor into each of these, which must have its shape and data type. One that is the
    tensor itself is left alone. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast_into(const ds_tensor *tensor,
                                                   const ds_tensor *const *outs, size_t count,
                                                   const ds_comm_options *options);
/** Broadcasts many tensors, which must be on one device or on the host, in as few copies as
    buffers of buffer_size bytes (0: 10 MiB) allow: tensors of one data type travel together
    until that is reached. out[i * count + k] is tensor k on devices[i]; results of one buffer
    share its memory. */
DSDEF DS_MUST_USE ds_result ds_comm_broadcast_coalesced(const ds_tensor *const *tensors,
                                                        size_t count, const ds_device *devices,
                                                        size_t device_count, size_t buffer_size,
                                                        const ds_comm_options *options,
                                                        ds_tensor **out);
/** Cuts a tensor along a dimension and copies the pieces to the devices, piece i as out[i] to
    devices[i]. chunk_sizes, one for each device, must add up to the size of the dimension; NULL:
    torch.chunk's rule, pieces of the size divided by count, rounded up, as long as there is
    something left: so there may be fewer than devices. *out_count (NULL allowed) is how many
    there are, the rest of out is NULL. */
DSDEF DS_MUST_USE ds_result ds_comm_scatter(const ds_tensor *tensor, const ds_device *devices,
                                            size_t count, const int64_t *chunk_sizes, int dim,
                                            const ds_comm_options *options, ds_tensor **out,
                                            size_t *out_count);
/** Cuts a tensor along a dimension into pieces as large as these tensors are, and copies them
    there. */
DSDEF DS_MUST_USE ds_result ds_comm_scatter_into(const ds_tensor *tensor,
                                                 const ds_tensor *const *outs, size_t count,
                                                 int dim, const ds_comm_options *options);
/** Puts tensors together along a dimension, in one new tensor on the destination
    (DS_DEVICE_HOST: pinned memory). They agree in all other sizes. */
DSDEF DS_MUST_USE ds_result ds_comm_gather(const ds_tensor *const *tensors, size_t count, int dim,
                                           ds_device destination, const ds_comm_options *options,
                                           ds_tensor **out);
/** The same into a tensor that is there. */
DSDEF DS_MUST_USE ds_result ds_comm_gather_into(const ds_tensor *const *tensors, size_t count,
                                                int dim, const ds_tensor *out,
                                                const ds_comm_options *options);
/** Puts tensors of one shape together element by element, in the order of the list, in a new
    tensor on the destination, where one of them must be (zeroed: the current device). Numbers
    must lie on multiples of their size, of outputs too, as in all that reduces: else
    DS_ERR_INVALID_VALUE. The result is the same on every run and every driver, bit for bit;
    float16 and bfloat16 are summed in float32. An implementation that was compiled with
    -ffast-math cannot keep that: DS_ERR_UNSUPPORTED where the elements are no integers, of all
    that reduces. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce(const ds_tensor *const *tensors, size_t count,
                                           ds_reduce_op op, ds_device destination,
                                           const ds_comm_options *options, ds_tensor **out);
/** The same into a tensor that is there, on any device; it may be one of the tensors. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_into(const ds_tensor *const *tensors, size_t count,
                                                ds_reduce_op op, const ds_tensor *out,
                                                const ds_comm_options *options);
/** torch.cuda.comm.reduce_add: ds_comm_reduce with DS_REDUCE_SUM. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_add(const ds_tensor *const *tensors, size_t count,
                                               ds_device destination,
                                               const ds_comm_options *options, ds_tensor **out);
/** Sums many tensors: tensors[i * count + k] is tensor k of list i of `lists`; out[k] is the sum
    of the k-th ones. Each is read where it is and no buffer is filled, so that buffer_size
    (torch's) says nothing here; it may be 0. options->streams has one stream for each list. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_add_coalesced(const ds_tensor *const *tensors,
                                                         size_t lists, size_t count,
                                                         ds_device destination, size_t buffer_size,
                                                         const ds_comm_options *options,
                                                         ds_tensor **out);
/** Every outs[i] becomes what ds_comm_reduce makes of all tensors; outs[i] may be tensors[i].
    All have one shape. */
DSDEF DS_MUST_USE ds_result ds_comm_all_reduce(const ds_tensor *const *tensors,
                                               const ds_tensor *const *outs, size_t count,
                                               ds_reduce_op op, const ds_comm_options *options);
/** Every outs[i] becomes all tensors, put together along its dimension 0 in the order of the
    list; they have one shape. In place: tensors[i] is the i-th part of outs[i]. */
DSDEF DS_MUST_USE ds_result ds_comm_all_gather(const ds_tensor *const *tensors,
                                               const ds_tensor *const *outs, size_t count,
                                               const ds_comm_options *options);
/** outs[i] becomes the sum (or what op says) of the i-th parts of all tensors, which are cut
    into `count` equal parts along dimension 0. In place: outs[i] is the i-th part of tensors[i]. */
DSDEF DS_MUST_USE ds_result ds_comm_reduce_scatter(const ds_tensor *const *tensors,
                                                   const ds_tensor *const *outs, size_t count,
                                                   ds_reduce_op op, const ds_comm_options *options);
/** All are cut into `count` equal parts along dimension 0: part j of outs[i] becomes part i of
    tensors[j]. Not in place. */
DSDEF DS_MUST_USE ds_result ds_comm_all_to_all(const ds_tensor *const *tensors,
                                               const ds_tensor *const *outs, size_t count,
                                               const ds_comm_options *options);
/** What is put on any of the streams afterwards begins when what was put on all of them before
    is done. Returns at once. */
DSDEF DS_MUST_USE ds_result ds_comm_barrier(const ds_stream *streams, size_t count);

#endif
