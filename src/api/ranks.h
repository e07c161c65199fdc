/* api/ranks.h - process groups.

   Declares the groups (ds_ranks) that make the collectives of devstream_comm.h span several
   processes, their creation, failures and flight recorder, and the operations that exist only
   between ranks.

   Threads: any. Calls for one group are enqueued in the order in which they are made. */
#ifndef DS__API_RANKS_H
#define DS__API_RANKS_H

#include "comm.h"

/* ---- process groups -------------------------------------------------------------------------- */

/* A process group consists of ranks. A rank is a process (engine "mpi"), a thread of this process
   (engine "local", for tests) or either (engine "nccl"), and has one or several devices. The
   devices of all ranks are numbered in the order of the group: first those of rank 0 in the order
   of ds_ranks_desc.devices, then those of rank 1, and so on.

   A collective spans the group if ds_comm_options.ranks is set. All ranks make the same calls in
   the same order, each for its own devices: entry i of a list is for device i of the rank, `count`
   is the number of devices of the rank, and streams[i] is the stream of device i. A tensor is on
   its device or in host memory. The order of parts, `root`, and the sizes of ds_ranks_options refer
   to the devices of the group:

       ds_comm_broadcast_into      root: the source; `tensor` is NULL on other ranks
       ds_comm_scatter_into        as above. sizes[k]: size of part k; NULL: equal parts
       ds_comm_reduce_into         root: the destination; `out` is NULL on other ranks
       ds_comm_gather_into         as above. sizes[k]: size of part k; NULL: equal parts
       ds_comm_all_reduce          -
       ds_comm_all_gather          sizes[k]: size of part k in dimension 0; NULL: equal parts
       ds_comm_reduce_scatter      sizes[k]: size of part k in dimension 0; NULL: equal parts
       ds_comm_all_to_all          sizes[i * n + k]: rows that device i of the rank sends to device
                                   k of the group; out_sizes[i * n + k]: rows that it receives
                                   (n: devices of the group). Both or none are NULL

   Collectives that create their results return DS_ERR_UNSUPPORTED: a rank does not know the shapes
   of other ranks' tensors.

   Order of sums: the result has the same bits as one process with the same devices, with any engine
   and any number of ranks. With DS_COMM_ANY_ORDER the engine chooses the order, which is faster.

   Stream order: an operation starts when its streams have reached it, and work enqueued afterwards
   starts when its data is in place. A stream that waits for another rank occupies no thread. The
   operations of one group start in the order of the calls, even if a later stream is ready first.
   Streams that must not wait for each other need a group each (ds_ranks_split). "nccl": if ranks
   have several devices, and none of them twice, each device is one of NCCL's ranks: its part of an
   operation begins when its stream gets there, and its stream continues with its data in place.

   Captures: groups of "local" and "nccl" can be captured. "local": a launch of the graph starts the
   operation when it gets there; the order of the group is the order of these arrivals. A call for
   the group while a launch is pending would come before the operations of the launch, so the
   stream of the launch must be synchronized first. "nccl": a launch repeats the calls of NCCL. The
   group does not count or compare them, and they have no time limit; a graph must not be launched
   after the group has failed. "mpi": DS_ERR_CAPTURE_UNSUPPORTED.

   Failures: if an operation fails, exceeds its time limit or is aborted, its group has failed. All
   waiting operations of the group end within 100 ms, their streams report the cause, and later
   calls for the group return it. "nccl": on this rank only; the others reach their own time limit.
   Memory of an abandoned operation must not be used again: the engine may still write to it.

   Errors common to all calls with a group, beside those of the collective:
       DS_ERR_INVALID_HANDLE   the group was never created, or was finalized
       DS_ERR_TIMEOUT          an operation of the group was not complete in time
       DS_ERR_ABORTED          the group was aborted
       DS_ERR_MISMATCH         the ranks called different operations
       DS_ERR_FAILED           the engine reported an error */

enum {
    /** before each operation, the ranks of the group compare its kind, type, count and root; a
        difference fails the group with DS_ERR_MISMATCH instead of hanging it. An operation that a
        rank calls for another group ends with DS_ERR_TIMEOUT. Costs one more small operation for
        each */
    DS_RANKS_COMPARE = 1,
    /** engine "mpi": the program makes no MPI call while the group exists, so MPI may be
        initialized with less than MPI_THREAD_MULTIPLE */
    DS_RANKS_NO_OTHER_MPI = 2
};

/** Time limit that never ends an operation. */
#define DS_RANKS_FOREVER UINT64_MAX

/** Size of the text of an id, with the zero at its end. */
#define DS_RANKS_ID_SIZE 264

/** Options of ds_ranks_init; NULL and zero mean the default. */
typedef struct ds_ranks_desc {
    /** "mpi", "nccl" or "local". NULL: that of the environment variable DEVSTREAM_RANKS_ENGINE.
        Without it, "mpi" if a launcher started this process (ds_ranks_launch_get), else a group of
        one rank */
    const char *engine;
    /** "local", "nccl": this rank. "mpi": MPI's number, or 0 */
    int rank;
    /** "local", "nccl": number of ranks; "nccl" with 0: rank and size of the launcher. "mpi": MPI's
        number, or 0 */
    int size;
    /** "local", "nccl": text by which the ranks of a group find each other (ds_ranks_id_create), or
        by which this one joins a group that grows (ds_ranks_grow). "local": any text. "nccl": also
        "file:PATH", a file that rank 0 writes and removes; NULL: the environment variable
        DEVSTREAM_RANKS_ID or, if NCCL_COMM_ID is set, NCCL's address */
    const char *id;
    const ds_device *devices; /**< devices of this rank; they may repeat. NULL: the current one */
    size_t device_count;      /**< number of devices; may differ between ranks */
    /** "mpi": a communicator of the program, which is duplicated (an MPI_Comm cast to a pointer).
        NULL: MPI_COMM_WORLD */
    void *mpi_comm;
    unsigned flags; /**< DS_RANKS_* */
    /** time limit of each operation, and of this call; 0: 10 minutes; DS_RANKS_FOREVER: none */
    uint64_t timeout_ns;
    /** flight recorder: path of the file of this rank, in which %r is replaced by the rank and %p
        by the process number. NULL: the environment variable DEVSTREAM_RANKS_RECORD, else no file.
        "": no file */
    const char *record;
    const char *label;    /**< for messages and the recorder; copied */
    uint64_t reserved[8]; /**< 0 */
} ds_ranks_desc;

/** Properties of a group. */
typedef struct ds_ranks_info {
    int rank;             /**< this rank */
    int size;             /**< number of ranks */
    size_t device_count;  /**< devices of the group */
    size_t first_device;  /**< index in the group of the first device of this rank */
    size_t own_devices;   /**< devices of this rank */
    char engine[16];      /**< name of the engine */
    char library[128];    /**< name and version of the engine's library; "" if it has none */
    uint64_t operations;  /**< operations enqueued by this rank */
    uint64_t pending;     /**< operations of this rank that are not complete */
    uint64_t reserved[4]; /**< 0 */
} ds_ranks_info;

/** The launcher that started this process, from its environment. */
typedef struct ds_ranks_launch {
    /** "mpiexec", "slurm" or "torchrun"; "" if none of them started the process */
    char launcher[16];
    int rank;       /**< -1: not known */
    int size;       /**< -1: not known */
    int local_rank; /**< rank among those of this machine; -1: not known */
    int local_size; /**< -1: not known */
} ds_ranks_launch;

/** Creates a group and returns when all ranks have joined it. Must be called by all ranks.
    Loads the kernels of collectives on the GPUs of this rank, which waits for their work
    (docs/cuda.md).

    Errors: DS_ERR_INVALID_VALUE (rank, size or a device is invalid; a launcher started another
    number of ranks than the engine has), DS_ERR_UNSUPPORTED (the engine is not available, or MPI
    was initialized without MPI_THREAD_MULTIPLE), DS_ERR_ILLEGAL_STATE (MPI was finalized; the rank
    has joined already), DS_ERR_TIMEOUT (not all ranks have joined), DS_ERR_DEVICE_MISMATCH. */
DSDEF DS_MUST_USE ds_result ds_ranks_init(const ds_ranks_desc *desc, ds_ranks *out);
/** Waits for all operations of this rank in the group, and destroys the group. Other ranks may use
    their handles further on, but not with this rank. If the group has failed, does not wait and
    returns DS_OK. A zeroed handle is allowed. */
DSDEF DS_MUST_USE ds_result ds_ranks_finalize(ds_ranks ranks);
/** Creates groups of the ranks that pass the same color, ordered by key, then by rank. Must be
    called by all ranks, and returns when all have called. Negative color: the rank is in no new
    group and *out is zero. The new groups have the devices, limits and recorder of the group. */
DSDEF DS_MUST_USE ds_result ds_ranks_split(ds_ranks ranks, int color, int key, ds_ranks *out);
/** Creates a group without the ranks of the list, after a failure too. Must be called by all other
    ranks with the same list. DS_ERR_UNSUPPORTED: the engine cannot do that; the message has the
    reason. */
DSDEF DS_MUST_USE ds_result ds_ranks_shrink(ds_ranks ranks, const int *excluded, size_t count,
                                            ds_ranks *out);
/** Creates the id by which new ranks join a group that grows (ds_ranks_grow): a text, of which the
    program gives a copy to each new rank. Must be called by rank 0, before each ds_ranks_grow.
    size: of out, at least DS_RANKS_ID_SIZE. */
DSDEF DS_MUST_USE ds_result ds_ranks_grow_id(ds_ranks ranks, char *out, size_t size);
/** Creates a group of the ranks of this one, which keep their numbers, and of new ranks up to
    `size`. Must be called by all ranks of the group. A new rank calls ds_ranks_init with the id of
    ds_ranks_grow_id, the same size and its number. Returns when all have called. The group of the
    old ranks stays. Errors: DS_ERR_INVALID_VALUE (size is not above that of the group),
    DS_ERR_ILLEGAL_STATE (rank 0 has not created an id), DS_ERR_UNSUPPORTED (engine "mpi"). */
DSDEF DS_MUST_USE ds_result ds_ranks_grow(ds_ranks ranks, int size, ds_ranks *out);
/** Registers memory of a device of this rank with the engine, which may then move the data of
    operations in it without copies of its own: it pays for buffers that many operations use. The
    memory must stay until ds_ranks_deregister or the end of the group. Other ranks should register
    the same parts of their tensors. Errors: DS_ERR_INVALID_VALUE (not memory of a device of this
    rank; registered already), DS_ERR_UNSUPPORTED (engines but "nccl"; NCCL before 2.19). */
DSDEF DS_MUST_USE ds_result ds_ranks_register(ds_ranks ranks, void *ptr, size_t size);
/** Ends a registration; the operations that use the memory must be complete. ptr: as it was
    registered. Errors: DS_ERR_INVALID_VALUE (ptr is not registered). */
DSDEF DS_MUST_USE ds_result ds_ranks_deregister(ds_ranks ranks, void *ptr);
/** Ends all operations of the group on this rank with DS_ERR_ABORTED and the reason, which is
    copied, and reports it to the other ranks, if the engine can. Callable from any thread, also
    while others wait. A second abort has no effect. */
DSDEF DS_MUST_USE ds_result ds_ranks_abort(ds_ranks ranks, const char *reason);
/** Returns DS_OK, or the failure of the group with its cause in ds_error_get_last(). */
DSDEF DS_MUST_USE ds_result ds_ranks_get_status(ds_ranks ranks);
/** Returns the properties of a group. */
DSDEF DS_MUST_USE ds_result ds_ranks_get_info(ds_ranks ranks, ds_ranks_info *out);
/** Creates the id of a new group for ds_ranks_desc.id: a text, of which the program gives a copy to
    each rank. size: of out, at least DS_RANKS_ID_SIZE. engine: "nccl" or "local". Errors:
    DS_ERR_INVALID_VALUE, DS_ERR_UNSUPPORTED (the engine is not available, or needs no id). */
DSDEF DS_MUST_USE ds_result ds_ranks_id_create(const char *engine, char *out, size_t size);
/** Reads the environment of mpiexec (PMI, PMIx, Open MPI), SLURM and torchrun. Callable
    anywhere. */
DSDEF void ds_ranks_launch_get(ds_ranks_launch *out);

/* ---- operations between ranks ---------------------------------------------------------------- */

enum {
    DS_RANKS_SEND = 0,   /**< the tensor is sent */
    DS_RANKS_RECEIVE = 1 /**< the tensor is written */
};

/** A transfer between two devices of a group. */
typedef struct ds_ranks_transfer {
    const ds_tensor *tensor; /**< on device `device` of this rank, or in host memory */
    int kind;                /**< DS_RANKS_SEND or DS_RANKS_RECEIVE */
    size_t device;           /**< device of this rank: index in ds_ranks_desc.devices */
    size_t peer;             /**< device of the other side: index in the group */
} ds_ranks_transfer;

/** Sends and receives tensors as one operation, so that two ranks can send to each other.
    options->streams[i] is the stream of transfer i. Transfers between the same two devices match in
    the order of the lists. Both sides must agree in type and number of elements. */
DSDEF DS_MUST_USE ds_result ds_ranks_exchange(const ds_ranks_transfer *transfers, size_t count,
                                              const ds_comm_options *options);
/** Sends a tensor of the first device of this rank to device `peer` of the group:
    ds_ranks_exchange with one transfer. */
DSDEF DS_MUST_USE ds_result ds_ranks_send(const ds_tensor *tensor, size_t peer,
                                          const ds_comm_options *options);
/** Receives a tensor from device `peer` of the group on the first device of this rank. */
DSDEF DS_MUST_USE ds_result ds_ranks_receive(const ds_tensor *tensor, size_t peer,
                                             const ds_comm_options *options);
/** Makes later work on options->streams wait for all earlier work on the streams of all ranks'
    calls. Does not block. */
DSDEF DS_MUST_USE ds_result ds_ranks_barrier(const ds_comm_options *options);

#endif
