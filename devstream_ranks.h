/* Generated from src/devstream_ranks.h by `make headers`. Edit the files in src/, not this one. */
/* devstream_ranks.h - process groups: collectives across processes.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_ranks.h"
   in exactly one C file, and #include "devstream_ranks.h" in all other files that use it. Put
   devstream.h, devstream_alloc.h and devstream_comm.h beside it, and link as described in
   devstream.h. MPI is loaded when the first group is created; nothing of it is needed to compile.

   The collectives of devstream_comm.h span a group of processes if their options have one.

   Example (compiles as it stands; one process is a group of one rank, `mpiexec -n 4` starts four):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_ranks.h"
       #include <stdio.h>
       int main(void) {
           ds_ranks ranks;
           ds_ranks_info info;
           ds_tensor *t;
           ds_stream s;
           int64_t shape[1] = { 1000 };
           if (ds_ranks_init(NULL, &ranks) < 0 || ds_ranks_get_info(ranks, &info) < 0 ||
               ds_stream_get_current(ds_device_current(), &s) < 0 ||
               ds_tensor_alloc(ds_float32(), 1, shape, s, &t) < 0 ||
               ds_fill(t->data, 0, 4, 1000, s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           const ds_tensor *one = t;
           ds_comm_options options = { .ranks = ranks };
           if (ds_comm_all_reduce(&one, &one, 1, DS_REDUCE_SUM, &options) < 0 ||
               ds_stream_synchronize(s) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           printf("rank %d of %d\n", info.rank, info.size);
           return ds_tensor_free(t) < 0 || ds_ranks_finalize(ranks) < 0 || ds_shutdown() < 0;
       }

   Defines:
       DEVSTREAM_MPI  with the implementation: uses mpi.h of the MPI that the program is linked
                      with, instead of loading a library with MPI's standard ABI

   Environment, read when a group is created: DEVSTREAM_RANKS_RECORD, the path of the flight
   recorder; DEVSTREAM_MPI_LIBRARY, the MPI library to load.

   Contents: process groups; operations between ranks; implementation.

   Known gaps: groups cannot grow. An operation of MPI that was abandoned may write to its memory
   later. If a group of a graph fails, the graph goes on. A group of a graph must not be called
   while a launch is pending. */
#include "devstream_comm.h"

#ifndef DEVSTREAM_RANKS_H_INCLUDED
#define DEVSTREAM_RANKS_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES

static inline DS_MUST_USE ds_result ds_at_ranks_init(const char *file_, int line_,
        const ds_ranks_desc *desc_, ds_ranks *out_) {
    return ds_site_set(file_, line_), (ds_ranks_init)(desc_, out_);
}
#define ds_ranks_init(...) ds_at_ranks_init(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_finalize(const char *file_, int line_,
        ds_ranks ranks_) {
    return ds_site_set(file_, line_), (ds_ranks_finalize)(ranks_);
}
#define ds_ranks_finalize(...) ds_at_ranks_finalize(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_split(const char *file_, int line_,
        ds_ranks ranks_, int color_, int key_, ds_ranks *out_) {
    return ds_site_set(file_, line_), (ds_ranks_split)(ranks_, color_, key_, out_);
}
#define ds_ranks_split(...) ds_at_ranks_split(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_shrink(const char *file_, int line_,
        ds_ranks ranks_, const int *excluded_, size_t count_, ds_ranks *out_) {
    return ds_site_set(file_, line_), (ds_ranks_shrink)(ranks_, excluded_, count_, out_);
}
#define ds_ranks_shrink(...) ds_at_ranks_shrink(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_grow_id(const char *file_, int line_,
        ds_ranks ranks_, char *out_, size_t size_) {
    return ds_site_set(file_, line_), (ds_ranks_grow_id)(ranks_, out_, size_);
}
#define ds_ranks_grow_id(...) ds_at_ranks_grow_id(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_grow(const char *file_, int line_,
        ds_ranks ranks_, int size_, ds_ranks *out_) {
    return ds_site_set(file_, line_), (ds_ranks_grow)(ranks_, size_, out_);
}
#define ds_ranks_grow(...) ds_at_ranks_grow(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_register(const char *file_, int line_,
        ds_ranks ranks_, void *ptr_, size_t size_) {
    return ds_site_set(file_, line_), (ds_ranks_register)(ranks_, ptr_, size_);
}
#define ds_ranks_register(...) ds_at_ranks_register(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_deregister(const char *file_, int line_,
        ds_ranks ranks_, void *ptr_) {
    return ds_site_set(file_, line_), (ds_ranks_deregister)(ranks_, ptr_);
}
#define ds_ranks_deregister(...) ds_at_ranks_deregister(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_abort(const char *file_, int line_,
        ds_ranks ranks_, const char *reason_) {
    return ds_site_set(file_, line_), (ds_ranks_abort)(ranks_, reason_);
}
#define ds_ranks_abort(...) ds_at_ranks_abort(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_get_status(const char *file_, int line_,
        ds_ranks ranks_) {
    return ds_site_set(file_, line_), (ds_ranks_get_status)(ranks_);
}
#define ds_ranks_get_status(...) ds_at_ranks_get_status(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_get_info(const char *file_, int line_,
        ds_ranks ranks_, ds_ranks_info *out_) {
    return ds_site_set(file_, line_), (ds_ranks_get_info)(ranks_, out_);
}
#define ds_ranks_get_info(...) ds_at_ranks_get_info(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_id_create(const char *file_, int line_,
        const char *engine_, char *out_, size_t size_) {
    return ds_site_set(file_, line_), (ds_ranks_id_create)(engine_, out_, size_);
}
#define ds_ranks_id_create(...) ds_at_ranks_id_create(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_exchange(const char *file_, int line_,
        const ds_ranks_transfer *transfers_, size_t count_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_ranks_exchange)(transfers_, count_, options_);
}
#define ds_ranks_exchange(...) ds_at_ranks_exchange(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_send(const char *file_, int line_,
        const ds_tensor *tensor_, size_t peer_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_ranks_send)(tensor_, peer_, options_);
}
#define ds_ranks_send(...) ds_at_ranks_send(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_receive(const char *file_, int line_,
        const ds_tensor *tensor_, size_t peer_, const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_ranks_receive)(tensor_, peer_, options_);
}
#define ds_ranks_receive(...) ds_at_ranks_receive(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_ranks_barrier(const char *file_, int line_,
        const ds_comm_options *options_) {
    return ds_site_set(file_, line_), (ds_ranks_barrier)(options_);
}
#define ds_ranks_barrier(...) ds_at_ranks_barrier(__FILE__, __LINE__, __VA_ARGS__)

#endif

#endif /* DEVSTREAM_RANKS_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_RANKS_H_IMPLEMENTED)
#define DEVSTREAM_RANKS_H_IMPLEMENTED
#ifndef __cplusplus

/* ranks/engine.h - table of functions of an engine.

   Defines an engine (ds__ranks_engine): the functions by which process groups move data between
   ranks, and the operations that they pass to it (ds__net_op).

   Policy:
   1. An engine knows ranks, not devices. Operations are on contiguous memory of the host or a CPU
      device and, as far as `reaches` says, of a GPU. ranks/stage.h packs tensors, and copies those
      that the engine does not reach.
   2. `start` and `test` never wait for another rank. An operation is complete if `test` returns
      DS_OK; its result is then in place, and its inputs may be overwritten.
   3. All ranks of a communicator start the same operations in the same order.
   4. An engine with `enqueue` enqueues operations on streams of a GPU in the call. Its `enqueue`
      and `start` may wait for other ranks until their deadline, or until `stop`.
   5. If ranks have several devices, an engine with `join` gets a second communicator, whose members
      are the devices of all ranks. The operations of a rank's members come in one call.

   Invariants: the memory of an operation and its tables stay valid until the operation is complete.
   After `abandon` they stay valid for good, since the engine may still use them.
   Locks: callers hold the group's lock, so the functions of one communicator never run at the same
   time; those of two communicators may. The functions take only locks of their own and call no
   public function, except init, split and shrink, which run without the group's lock. Those of an
   engine with `enqueue` are called without the group's lock and have a lock of their own; `stop`
   and `hear` only try that lock.
   Threads: any. */

typedef enum ds__net_kind {
    DS__NET_ALL_REDUCE, /* in, out: `count` elements; in == out is allowed */
    DS__NET_REDUCE,     /* the same; out is used on the root only */
    DS__NET_BROADCAST,  /* out: `count` bytes, read on the root */
    DS__NET_ALL_GATHER, /* in: parts.bytes[rank]; out: all parts. in may be its place in out */
    DS__NET_GATHER,  /* the same; out and parts are used on the root only, `count`: bytes of in */
    DS__NET_SCATTER, /* in: all parts, on the root only; out: `count` bytes */
    DS__NET_REDUCE_SCATTER, /* in: all parts, one behind the other; out: the reduced part [rank] */
    DS__NET_ALL_TO_ALL, /* in: parts, one for each rank; out: out_parts, one from each rank; in and
                           out do not overlap */
    DS__NET_EXCHANGE,   /* transfers */
    DS__NET_BARRIER,
    DS__NET_KINDS
} ds__net_kind;

/* Parts of a buffer, one for each rank. */
typedef struct ds__net_parts {
    const size_t *bytes;
    const size_t *at; /* offsets in bytes */
} ds__net_parts;

/* A message to or from a rank. Messages between two ranks with the same tag match in the order of
   their starts. */
typedef struct ds__net_transfer {
    void *at;
    size_t bytes;
    int rank;
    int tag;     /* 0 to 32766 */
    int receive; /* 1: `at` is written */
} ds__net_transfer;

/* An operation of a communicator. */
typedef struct ds__net_op {
    ds__net_kind kind;
    int root;
    const void *in;
    void *out;
    size_t count;
    ds_dtype dtype; /* of a reduction that `reduces` accepts */
    ds_reduce_op reduce_op;
    ds__net_parts parts;
    ds__net_parts out_parts;
    const ds__net_transfer *transfers;
    size_t transfer_count;
    const ds_ranks_nccl *nccl; /* that `configures` accepts, or NULL */
    int on_gpu;                /* 1: in, out and the transfers may be memory of a GPU */
    uint64_t deadline;         /* of an operation between hosts, as ds__now_ns */
} ds__net_op;

/* The devices of a rank among those of all ranks. */
typedef struct ds__net_devices {
    const ds_device *own;
    size_t count;
    size_t first; /* number of the first one */
    size_t all;
} ds__net_devices;

/* The operation of a device that is a member of the communicator. */
typedef struct ds__net_member {
    ds__net_op op;
    void *native; /* its stream; NULL: the device takes no part */
} ds__net_member;

/* Storage of a started operation for its engine. */
typedef struct ds__net_request {
    void *at[6];
} ds__net_request;

/* A communicator as it was created. */
typedef struct ds__net_comm {
    void *comm; /* the engine's */
    int rank;
    int size;
} ds__net_comm;

enum {
    DS__RANKS_REASON = 384, /* size of the text of a failure */
    DS__RANKS_KEY = 128     /* bytes by which the members of a communicator find each other */
};

typedef struct ds__ranks_engine {
    const char *name;
    int captures; /* 1: a launch of a graph may start an operation again */
    int cancels;  /* 1: after `abandon`, the memory of an operation is not used any more */
    /* Returns 1 if the engine can compute the reduction with devstream's results: the same bits for
       integers, and NaN if an operand of a maximum or minimum is NaN. Never DS_REDUCE_AVERAGE. */
    int (*reduces)(ds_dtype dtype, ds_reduce_op op);
    /* Returns 1 if in, out and the transfers of such an operation may be memory of a GPU. */
    int (*reaches)(ds__net_kind kind);
    /* Creates the communicator of all ranks. deadline: of ds__now_ns. */
    ds_result (*init)(const ds_ranks_desc *desc, uint64_t deadline, ds__net_comm *out);
    /* Creates a communicator of the ranks with the same color; out->comm NULL: it is negative. */
    ds_result (*split)(void *comm, int color, int key, uint64_t deadline, ds__net_comm *out);
    ds_result (*shrink)(void *comm, const int *excluded, size_t count, uint64_t deadline,
                        ds__net_comm *out);
    /* NULL, or creates the id of the ranks that join a communicator, on rank 0. */
    ds_result (*grow_id)(void *comm, char out[DS_RANKS_ID_SIZE]);
    /* Creates a communicator of these ranks and those that join with the id. */
    ds_result (*grow)(void *comm, const char *id, int size, uint64_t deadline, ds__net_comm *out);
    /* NULL, or registers memory of a device, and ends that. */
    ds_result (*enlist)(void *comm, void *ptr, size_t size, ds_device device);
    ds_result (*delist)(void *comm, void *ptr);
    /* NULL, or DS_OK if an operation can be configured; otherwise the sentence is stored. */
    ds_result (*configures)(ds__net_kind kind);
    /* NULL, or makes the key of a communicator of devices, on one rank. */
    ds_result (*key)(char out[DS__RANKS_KEY]);
    /* Makes the devices of all ranks members of a communicator. */
    ds_result (*join)(void *comm, const char key[DS__RANKS_KEY], const ds__net_devices *devices,
                      uint64_t deadline);
    void (*leave)(void *comm); /* undoes join, also one that has failed */
    /* An engine enqueues all operations of streams, or none: `enqueue` is NULL or in place of
       `start`. Work of the native stream that follows sees the data. `start` and `test` are then
       for operations on host memory between hosts. members: NULL, or the operations of this rank's
       devices, in place of `op` and `native`. deadline: of ds__now_ns. */
    ds_result (*enqueue)(void *comm, const ds__net_op *op, void *native,
                         const ds__net_member *members, uint64_t deadline);
    ds_result (*start)(void *comm, const ds__net_op *op, ds__net_request *request);
    /* DS_OK: complete. DS_NOT_READY: pending. Negative: failed; the operation is abandoned. */
    ds_result (*test)(void *comm, ds__net_request *request);
    /* Gives up a pending operation; never waits. */
    void (*abandon)(void *comm, ds__net_request *request);
    /* NULL, or ends all operations that were enqueued: the group has failed. */
    void (*stop)(void *comm);
    /* Reports a failure to the other ranks, as far as that is possible without waiting. */
    void (*tell)(void *comm, ds_result code, const char *reason);
    /* Returns the failure that another rank has reported, with its reason and rank, or DS_OK. */
    ds_result (*hear)(void *comm, char reason[DS__RANKS_REASON], int *out_rank);
    /* Destroys a communicator without pending operations; failed: some were abandoned. */
    void (*destroy)(void *comm, int failed);
    /* Writes name and version of the library. */
    void (*library)(char *out, size_t size);
    void (*shutdown)(void); /* called by ds_shutdown, after all communicators are destroyed */
} ds__ranks_engine;

/* ranks/messages.h - collectives as messages between two ranks.

   Gives the messages of a gather, scatter, all-gather or all-to-all (ds__net_messages), for engines
   that send each part for itself.

   Invariants: a message without bytes is left out on both sides.
   Locks: none.
   Threads: any. */

/* Returns an address behind `at`, which may be NULL if nothing is there. */
static inline void *ds__behind(const void *at, size_t bytes) {
    return bytes ? (char *)(uintptr_t)at + bytes : (void *)(uintptr_t)at;
}

/* Returns 1 if all parts have the size of the first one. */
static int ds__net_parts_equal(const ds__net_parts *parts, int size) {
    int same = 1;
    for (int i = 1; i < size; i++)
        same &= parts->bytes[i] == parts->bytes[0];
    return same;
}

/* Returns the message from a rank to another one. */
static ds__net_transfer ds__net_message_to(const ds__net_op *op, int rank, int peer) {
    ds__net_transfer t = { (void *)(uintptr_t)op->in, 0, peer, 0, 0 };
    if (op->kind == DS__NET_ALL_GATHER) {
        t.bytes = op->parts.bytes[rank];
    } else if (op->kind == DS__NET_GATHER) {
        t.bytes = peer == op->root ? op->count : 0;
    } else if (op->kind == DS__NET_ALL_TO_ALL || rank == op->root) {
        t.at = ds__behind(op->in, op->parts.at[peer]);
        t.bytes = op->parts.bytes[peer];
    }
    return t;
}

/* Returns the message that a rank receives from another one. */
static ds__net_transfer ds__net_message_from(const ds__net_op *op, int rank, int peer) {
    ds__net_transfer t = { op->out, 0, peer, 0, 1 };
    if (op->kind == DS__NET_SCATTER) {
        t.bytes = peer == op->root ? op->count : 0;
    } else if (op->kind != DS__NET_GATHER || rank == op->root) {
        const ds__net_parts *parts = op->kind == DS__NET_ALL_TO_ALL ? &op->out_parts : &op->parts;
        t.at = ds__behind(op->out, parts->at[peer]);
        t.bytes = parts->bytes[peer];
    }
    return t;
}

/* Writes the messages of a rank, at most two for each rank, and returns their number. */
static size_t ds__net_messages(const ds__net_op *op, int rank, int size, ds__net_transfer *out) {
    size_t count = 0;
    for (int i = 0; i < size; i++) {
        int peer = (rank + i) % size;
        ds__net_transfer from = ds__net_message_from(op, rank, peer);
        ds__net_transfer to = ds__net_message_to(op, rank, peer);
        if (peer == rank && from.at == to.at)
            continue; /* the own part is in its place */
        if (from.bytes)
            out[count++] = from;
        if (to.bytes)
            out[count++] = to;
    }
    return count;
}

/* ranks/types.h - types and state of process groups.

   Defines a group (ds__group), an operation of a group on this rank (ds__rop), and the state of the
   process (ds__ranks).

   Policy:
   1. A collective is staged as work of streams and operations of the engine on contiguous memory
      (ranks/stage.h). Each operation of the engine is a ds__rop in the list of its group, in the
      order of the calls, and work of another library on a stream (DS__OP_REMOTE).
   2. When the stream gets there, the operation has arrived. Arrived operations start in the order
      of the list. Complete operations pass in the order of the list: the timeline of the group,
      for which the streams wait, then has their number.
   3. A group is driven (ds__group_drive) by a thread on which an operation arrives, a host thread
      that waits, or the progress thread. A thread that finds the group locked raises
      `news` and leaves: the holder looks again.
   4. The first failure of a group ends all its operations, and every later call.
   5. The members of a group's communicator are its ranks. An engine may add a communicator whose
      members are the devices (`each`); an operation is then one call for all devices of the rank.

   Invariants: an operation is in the list from the call until it has passed, and returns to the
   free list when it has also arrived. After a failure, operations that have not arrived stay listed
   until they arrive. A group lives until its handle is gone and no operation is listed.
   Locks: `calls` of a group orders the calls, and is held while an operation is added and enqueued.
   `lock` guards everything else of a group, and is held during functions of the engine. ds__ranks.
   lock guards the list of groups. Order: calls, ds__ranks.lock, lock. Drivers call begin_fn under a
   put lock of a stream, so `lock` is only tried there.
   Threads: any. */

enum {
    DS__RANKS_TIMEOUT_S = 600,    /* time limit of an operation, if none is given */
    DS__RANKS_ABORT_MS = 1,       /* how often other ranks are asked for a failure */
    DS__RANKS_SPIN_NS = 4000,     /* time that a call tests a small operation that it has begun */
    DS__RANKS_SPIN_BYTES = 65536, /* size of a small operation */
    DS__RANKS_SIGNATURE = 64      /* bytes that ranks compare before an operation */
};

typedef struct ds__group ds__group;

/* States of the progress thread: it runs, sleeps for a limited time, or until it is woken. */
enum { DS__RANKS_AWAKE, DS__RANKS_NAPS, DS__RANKS_SLEEPS };

/* States of an operation. */
enum { DS__ROP_LISTED, DS__ROP_COMPARING, DS__ROP_STARTED };

/* Describes an operation for messages, the recorder and the comparison between ranks. */
typedef struct ds__rcall {
    const char *fn;
    ds_site site;
    int kind;      /* the collective, by its ds__net_kind */
    unsigned step; /* a collective may consist of several operations */
    ds_dtype dtype;
    ds_reduce_op op;
    uint64_t count; /* elements; 0 if they vary */
    int varies;     /* 1: ranks may differ in the number of elements */
    size_t root;    /* device of the group, or that of the other side */
    uint64_t stream;
    uint64_t timeout_ns;
} ds__rcall;

/* A transfer for the recorder. */
typedef struct ds__rtransfer {
    size_t device; /* of the group, on this rank */
    size_t peer;   /* of the group, on the other side */
    uint64_t count;
    uint64_t ticket;
} ds__rtransfer;

typedef struct ds__rop {
    ds__remote remote; /* first member */
    ds__group *group;
    struct ds__rop *next;
    uint64_t number;     /* on the group's timeline */
    _Atomic int arrived; /* 1: its stream has reached it; 2: it never will, since it has failed */
    int state;           /* DS__ROP_* */
    int spin;            /* 1: the thread on which it arrives tests it for a moment */
    int dropped;         /* 1: it has ended with the failure of its group */
    int ended;         /* 1: the engine could not enqueue it, and has ended the work of the group */
    uint64_t enqueued; /* time of the call */
    uint64_t arrival;  /* time of the arrival; 0: not seen yet */
    uint64_t ticket;   /* of the recorder */
    uint64_t *word;    /* of a captured operation: is set when it is complete */
    ds__rcall call;
    ds__net_op net;
    ds__net_request request;
    ds__net_member *members;  /* NULL, or an operation for each device of the rank, in `tables` */
    const ds_stream *streams; /* NULL, or streams that the operation's one waits for at its end */
    size_t stream_count;      /* of `streams`, which are there during the call */
    void *tables;             /* parts and transfers of `net` or of the members */
    ds__rtransfer *transfers; /* of an exchange, in `tables` */
    size_t table_bytes;       /* room of `tables` */
    size_t used_bytes;        /* of these */
    char signature[DS__RANKS_SIGNATURE];
    size_t *signatures; /* parts of the comparison, and the signatures of all ranks */
} ds__rop;

/* Temporary memory of operations up to a number of the timeline. */
typedef struct ds__rtemp {
    struct ds__rtemp *next;
    void *ptr;
    uint64_t number;
    int pinned;
} ds__rtemp;

struct ds__recorder;

struct ds__group {
    ds__slot slot;
    ds__group *next; /* in the list of the process */
    const ds__ranks_engine *engine;
    void *comm;
    int rank;
    int size;
    uint64_t id;                    /* the same on all ranks */
    uint32_t splits;                /* groups that were made of this one */
    char grow_id[DS_RANKS_ID_SIZE]; /* of the next growth; "": rank 0 has not created it */
    const ds__driver *driver;
    int gpu;        /* 1: the engine may call CUDA for the memory of this rank's devices */
    size_t devices; /* of the group */
    size_t *first;  /* size + 1: the first device of each rank */
    size_t *each;   /* devices + 1: 0, 1, 2 ... if the engine has a communicator for each device */
    int *world;     /* of each rank, its number in the flight recorder */
    ds_device *own; /* devices of this rank */
    size_t owns;
    unsigned flags;
    uint64_t timeout_ns;
    char *label;
    struct ds__recorder *recorder;
    ds_site made;
    ds__mutex calls;       /* see above */
    ds__rtemp *temps;      /* under `calls` */
    ds__rtemp *free_temps; /* likewise; without memory */

    ds__spinlock list_lock; /* of the next six; no other lock is taken under it */
    uint64_t listed;        /* number of the last operation */
    uint64_t operations;    /* enqueued on this rank */
    uint64_t collectives;   /* of these, those of all ranks */
    ds__rop *fresh;         /* operations that the driving thread has not listed yet */
    ds__rop *last_fresh;
    ds__rop *free_ops;

    ds__mutex lock;        /* not a spin lock: the engine may call CUDA */
    _Atomic uint32_t news; /* arrivals */
    _Atomic int users;     /* threads that drive it without a pin */
    _Atomic int finalized;
    void *timeline;
    int counted;             /* 1: in `groups` of base/drive.h */
    _Atomic int graphs;      /* captured calls of the engine that graphs have */
    uint64_t base;           /* number of the timeline at the creation */
    _Atomic uint64_t passed; /* the last number that has passed */
    ds__rop *head;           /* operations, in the order of the calls */
    ds__rop *tail;
    ds__rop *start;     /* the first one that has not started */
    uint64_t heard;     /* time at which other ranks were asked for a failure */
    _Atomic int failed; /* 1: `code` and `reason` are set */
    ds_result code;
    char reason[DS__RANKS_REASON];
};

/* A failure that the driver does not report. */
typedef struct ds__rfailure {
    struct ds__rfailure *next;
    ds_device device;
    uint64_t stream;
    ds_result code;
    char reason[DS__RANKS_REASON];
} ds__rfailure;

/* A word in pinned memory, for which a captured operation waits. */
typedef struct ds__rword {
    uint64_t value; /* first member */
    struct ds__rword *next;
} ds__rword;

static struct {
    ds__mutex lock;
    ds__group *groups;
    ds__spinlock failure_lock; /* of `failures` and `words`; no other lock is taken under it */
    ds__rfailure *failures;
    ds__spinlock capture_lock;     /* of `captures` */
    struct ds__rcapture *captures; /* that graphs have */
    ds__rword
        *words; /* without users; freed by ds_shutdown, since CUDA waits for all devices then */
    ds__table table;
    ds__os_thread thread; /* that drives groups */
    int thread_started;
    _Atomic int quit;
    _Atomic uint32_t word;   /* the thread sleeps on it */
    _Atomic uint32_t asleep; /* DS__RANKS_AWAKE ... */
    _Atomic int hosts;       /* host threads that drive groups while they wait */
    _Atomic int stepping;    /* 1: a thread drives all groups */
} ds__ranks = { .lock = DS__MUTEX_INIT };

/* ranks/launch.h - the launcher that started the process.

   Reads rank and size from the environment of mpiexec, SLURM and torchrun (ds_ranks_launch_get).

   Policy: launchers may be nested, and the variables of the outer one are inherited. The launcher
   that started this process is therefore the first of this list that has set its variables:
   1. torchrun, if TORCHELASTIC_RUN_ID is set. srun and mpiexec often start one torchrun on each
      machine; their rank is that of torchrun then.
   2. srun, if SLURM describes a step, PMI_RANK or PMIX_RANK has the rank of SLURM_PROCID, and no
      variable that only mpiexec sets is there: srun sets PMI variables too (--mpi=pmi2, pmix).
   3. mpiexec: MPICH and its relatives (PMI_RANK), Open MPI (OMPI_COMM_WORLD_RANK), another launcher
      with PMIx (PMIX_RANK, which tells no size). In an allocation of SLURM, SLURM_PROCID is that
      of the batch script or of mpiexec's helper, not that of the rank.
   4. srun, if SLURM describes a step. In a batch script without srun SLURM_PROCID is 0 and
      SLURM_NTASKS the number of tasks of the job, but SLURM_STEP_ID is not set.
   5. torchrun, if RANK and MASTER_ADDR are set, for instance by a script in place of torchrun.

   Invariants: a variable that is empty counts as not set. A number that is not one, or not within
   an int, is -1.
   Locks: none.
   Threads: any, while no thread changes the environment. */

/* Returns the value of a variable, or NULL: getenv, or that of a test. */
typedef const char *ds__launch_getenv(const char *name);

static const char *ds__launch_getenv_process(const char *name) {
    return getenv(name);
}

static int ds__launch_has(ds__launch_getenv *get, const char *name) {
    const char *text = get(name);
    return text && *text;
}

/* Reads digits from *at and moves *at behind them. Returns -1 if there are none, or too many. */
static int ds__launch_digits(const char **at) {
    int64_t n = 0;
    const char *begin = *at;
    while (**at >= '0' && **at <= '9') {
        n = n > INT_MAX ? n : n * 10 + (**at - '0');
        ++*at;
    }
    return *at == begin || n > INT_MAX ? -1 : (int)n;
}

/* Returns the number in a variable, or -1. */
static int ds__launch_number(ds__launch_getenv *get, const char *name) {
    const char *text = get(name);
    int n = text ? ds__launch_digits(&text) : -1;
    return text && *text ? -1 : n;
}

/* Returns the first number in one of two variables, or -1. */
static int ds__launch_either(ds__launch_getenv *get, const char *first, const char *second) {
    return ds__launch_number(get, ds__launch_has(get, first) ? first : second);
}

/* Returns the tasks of a machine from a list as "2(x3),1": three machines with 2 tasks, one with 1.
   -1: the list is malformed, or ends before this machine. */
static int ds__launch_tasks(const char *text, int machine) {
    while (text && machine >= 0) {
        int tasks = ds__launch_digits(&text);
        int repeat = 1;
        if (strncmp(text, "(x", 2) == 0) {
            text += 2;
            repeat = ds__launch_digits(&text);
            if (*text++ != ')')
                return -1;
        }
        if (tasks < 0 || repeat < 0 || (*text && *text != ','))
            return -1;
        if (machine < repeat)
            return tasks;
        machine -= repeat;
        text = *text ? text + 1 : NULL;
    }
    return -1;
}

static int ds__launch_is_step(ds__launch_getenv *get) {
    return ds__launch_has(get, "SLURM_PROCID") &&
           (ds__launch_has(get, "SLURM_STEP_ID") || ds__launch_has(get, "SLURM_STEPID"));
}

/* Returns 1 if the variables of PMI are those of srun. */
static int ds__launch_is_srun_pmi(ds__launch_getenv *get) {
    if (!ds__launch_is_step(get) || ds__launch_has(get, "MPI_LOCALRANKID") ||
        ds__launch_has(get, "OMPI_COMM_WORLD_LOCAL_RANK"))
        return 0;
    int pmi = ds__launch_either(get, "PMI_RANK", "PMIX_RANK");
    return pmi >= 0 && pmi == ds__launch_number(get, "SLURM_PROCID");
}

static void ds__launch_read_slurm(ds__launch_getenv *get, ds_ranks_launch *out) {
    int machine = ds__launch_number(get, "SLURM_NODEID");
    strcpy(out->launcher, "slurm");
    out->rank = ds__launch_number(get, "SLURM_PROCID");
    out->size = ds__launch_either(get, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
    out->local_rank = ds__launch_number(get, "SLURM_LOCALID");
    if (ds__launch_has(get, "SLURM_STEP_TASKS_PER_NODE"))
        out->local_size = ds__launch_tasks(get("SLURM_STEP_TASKS_PER_NODE"), machine);
    else
        out->local_size = ds__launch_number(get, "SLURM_NTASKS_PER_NODE");
}

static void ds__launch_read_mpiexec(ds__launch_getenv *get, ds_ranks_launch *out) {
    strcpy(out->launcher, "mpiexec");
    if (ds__launch_has(get, "OMPI_COMM_WORLD_RANK")) {
        out->rank = ds__launch_number(get, "OMPI_COMM_WORLD_RANK");
        out->size = ds__launch_number(get, "OMPI_COMM_WORLD_SIZE");
        out->local_rank = ds__launch_number(get, "OMPI_COMM_WORLD_LOCAL_RANK");
        out->local_size = ds__launch_number(get, "OMPI_COMM_WORLD_LOCAL_SIZE");
        return;
    }
    out->rank = ds__launch_either(get, "PMI_RANK", "PMIX_RANK");
    out->size = ds__launch_number(get, "PMI_SIZE");
    out->local_rank = ds__launch_number(get, "MPI_LOCALRANKID");
    out->local_size = ds__launch_number(get, "MPI_LOCALNRANKS");
}

static void ds__launch_read_torchrun(ds__launch_getenv *get, ds_ranks_launch *out) {
    strcpy(out->launcher, "torchrun");
    out->rank = ds__launch_number(get, "RANK");
    out->size = ds__launch_number(get, "WORLD_SIZE");
    out->local_rank = ds__launch_number(get, "LOCAL_RANK");
    out->local_size = ds__launch_number(get, "LOCAL_WORLD_SIZE");
}

/* Reads the launcher from the variables that `get` returns. */
static void ds__launch_read(ds__launch_getenv *get, ds_ranks_launch *out) {
    int mpiexec = ds__launch_has(get, "PMI_RANK") || ds__launch_has(get, "PMIX_RANK") ||
                  ds__launch_has(get, "OMPI_COMM_WORLD_RANK");
    int torchrun = ds__launch_has(get, "RANK");
    memset(out, 0, sizeof *out);
    out->rank = -1;
    out->size = -1;
    out->local_rank = -1;
    out->local_size = -1;

    if (torchrun && ds__launch_has(get, "TORCHELASTIC_RUN_ID"))
        ds__launch_read_torchrun(get, out);
    else if (mpiexec && !ds__launch_is_srun_pmi(get))
        ds__launch_read_mpiexec(get, out);
    else if (ds__launch_is_step(get))
        ds__launch_read_slurm(get, out);
    else if (torchrun && ds__launch_has(get, "MASTER_ADDR"))
        ds__launch_read_torchrun(get, out);
}

DSDEF void(ds_ranks_launch_get)(ds_ranks_launch *out) {
    ds__launch_read(ds__launch_getenv_process, out);
}

/* ranks/recorder.h - flight recorder: the operations of a rank in a file.

   Writes each operation of a rank to a file that is mapped as shared memory. The file outlives
   kill -9. tools/devstream-ranks compares the files of all ranks.

   Policy:
   1. The file has a fixed size: a header, notes (groups and failures), and a ring of entries.
   2. An entry that is pending is never overwritten. If the ring is full of pending entries, a new
      operation is not recorded, but counted: the oldest pending ones explain a hang.
   3. A note that has no room is counted.
   4. Two groups with the same path share a recorder, if they have the same rank.

   File, little-endian; tools/devstream-ranks reads these offsets:

       header  0 "DSRANKS" and a zero     8 u32 version       12 u32 bytes of an entry
              16 u32 offset of the notes 20 u32 their bytes   24 u32 offset of the entries
              28 u32 number of entries   32 i32 rank          36 i32 size
              40 u32 process             44 u32 1: closed     48 u64 monotonic time at creation
              56 u64 wall time, in ns    64 host name, 64 B  128 u64 number of the last entry
             136 u64 operations not recorded                 144 u64 bytes of notes that were taken
             152 u64 notes without room
       note    0 u32 kind, 0: not complete 4 u32 bytes         8 u64 group
         group   16 i32 rank             20 i32 size          24 u32 devices
                 28 u32 first device     32 u32 own devices   36 u32 number of world ranks
                 40 engine, 16 B         56 label, 64 B      120 i32 world ranks
         failure 16 i32 result           20 u32 0             24 u64 time       32 text, 384 B
       entry   0 u64 number * 256 + status                     8 u64 group
              16 u64 sequence            24 u64 collective    32 u64 count      40 u64 stream
              48 u64 enqueued, ns        56 u64 started       64 u64 ended
              72 i32 root or peer        76 i32 device        80 u32 line
              84 u8 verb  85 u8 reduction, 255: none  86 u8 flags  87 u8 0
              88 ds_dtype                92 u32 0             96 function, 32 B
             128 source file, 64 B

   Invariants: the first word of an entry and of a note is written last, with release order. An
   entry whose status is DS__RECORDER_WRITING, and a note of kind 0, are not complete. Numbers begin
   at 1; entry n is at (n - 1) modulo the number of entries. Texts end with a zero.
   Locks: ds__recorders.lock for open and close. The other functions take none, make no system call
   and allocate nothing; the caller makes calls for one entry one after the other.
   Threads: any. */

typedef enum ds__recorder_verb {
    DS__RECORDER_INIT = 1,
    DS__RECORDER_SPLIT,
    DS__RECORDER_SHRINK,
    DS__RECORDER_FINALIZE,
    DS__RECORDER_ALL_REDUCE,
    DS__RECORDER_REDUCE,
    DS__RECORDER_BROADCAST,
    DS__RECORDER_ALL_GATHER,
    DS__RECORDER_GATHER,
    DS__RECORDER_REDUCE_SCATTER,
    DS__RECORDER_SCATTER,
    DS__RECORDER_ALL_TO_ALL,
    DS__RECORDER_SEND,
    DS__RECORDER_RECEIVE,
    DS__RECORDER_BARRIER
} ds__recorder_verb;

/* The last three are final. */
typedef enum ds__recorder_status {
    DS__RECORDER_WRITING,
    DS__RECORDER_ENQUEUED,
    DS__RECORDER_STARTED,
    DS__RECORDER_COMPLETE,
    DS__RECORDER_FAILED,
    DS__RECORDER_ABANDONED
} ds__recorder_status;

enum {
    DS__RECORDER_VERSION = 1,
    DS__RECORDER_ENTRIES = 4096, /* a power of two */
    DS__RECORDER_NOTES = 1 << 18,
    DS__RECORDER_TRIES = 64, /* pending entries that a new one passes over */
    DS__RECORDER_NO_REDUCE = 255,
    DS__RECORDER_COUNTS_VARY = 1, /* flag: each rank has a count of its own */
    DS__RECORDER_NOTE_GROUP = 1,
    DS__RECORDER_NOTE_FAILURE = 2
};

/* An operation. An exchange is recorded as one operation per transfer, all with the same sequence
   number. */
typedef struct ds__recorder_call {
    uint64_t group;
    uint64_t sequence;   /* number among all operations of this rank in the group, from 1 */
    uint64_t collective; /* number among those that all ranks call, from 1; 0: not one of these */
    ds__recorder_verb verb;
    unsigned flags;  /* DS__RECORDER_COUNTS_VARY */
    ds_dtype dtype;  /* lanes 0: none */
    int reduce;      /* ds_reduce_op, or DS__RECORDER_NO_REDUCE */
    int root;        /* device of the group: root, or peer of a transfer; -1: none */
    int device;      /* device of the group that sends or receives; else -1 */
    uint64_t count;  /* elements */
    uint64_t stream; /* of the first device */
    const char *fn;  /* function of the program's call */
    ds_site site;
    uint64_t now; /* of ds__now_ns */
} ds__recorder_call;

/* A group that this process has joined. */
typedef struct ds__recorder_group {
    uint64_t group; /* the same on all ranks, and of no other group */
    int rank;
    int size;
    uint32_t devices; /* of the group */
    uint32_t first_device;
    uint32_t own_devices;
    const char *engine;
    const char *label;      /* NULL: none */
    const int *world_ranks; /* of the members, in the first group's numbers; NULL: the same */
} ds__recorder_group;

typedef struct ds__recorder_header {
    char magic[8];
    uint32_t version;
    uint32_t entry_bytes;
    uint32_t notes_at;
    uint32_t notes_bytes;
    uint32_t entries_at;
    uint32_t entry_count;
    int32_t rank;
    int32_t size;
    uint32_t process;
    _Atomic uint32_t closed;
    uint64_t monotonic_ns;
    int64_t wall_ns;
    char host[64];
    _Atomic uint64_t last;
    _Atomic uint64_t not_recorded;
    _Atomic uint64_t notes_taken;
    _Atomic uint64_t notes_lost;
} ds__recorder_header;

typedef struct ds__recorder_note {
    _Atomic uint32_t kind;
    uint32_t bytes;
    uint64_t group;
} ds__recorder_note;

typedef struct ds__recorder_group_note {
    ds__recorder_note note;
    int32_t rank;
    int32_t size;
    uint32_t devices;
    uint32_t first_device;
    uint32_t own_devices;
    uint32_t world_count;
    char engine[16];
    char label[64];
    int32_t world_ranks[];
} ds__recorder_group_note;

typedef struct ds__recorder_failure_note {
    ds__recorder_note note;
    int32_t result;
    uint32_t zero;
    uint64_t time_ns;
    char text[384];
} ds__recorder_failure_note;

typedef struct ds__recorder_entry {
    _Atomic uint64_t word;
    uint64_t group;
    uint64_t sequence;
    uint64_t collective;
    uint64_t count;
    uint64_t stream;
    uint64_t enqueued_ns;
    uint64_t started_ns;
    uint64_t ended_ns;
    int32_t root;
    int32_t device;
    uint32_t line;
    uint8_t verb;
    uint8_t reduce;
    uint8_t flags;
    uint8_t zero;
    ds_dtype dtype;
    uint32_t zero_word;
    char fn[32];
    char file[64];
} ds__recorder_entry;

/* tools/devstream-ranks reads these offsets: a change needs another version. */
_Static_assert(offsetof(ds__recorder_header, monotonic_ns) == 48, "layout of the file");
_Static_assert(offsetof(ds__recorder_header, last) == 128, "layout of the file");
_Static_assert(sizeof(ds__recorder_header) == 160, "layout of the file");
_Static_assert(offsetof(ds__recorder_group_note, world_ranks) == 120, "layout of the file");
_Static_assert(sizeof(ds__recorder_failure_note) == 416, "layout of the file");
_Static_assert(offsetof(ds__recorder_entry, root) == 72, "layout of the file");
_Static_assert(offsetof(ds__recorder_entry, dtype) == 88, "layout of the file");
_Static_assert(sizeof(ds__recorder_entry) == 192, "layout of the file");

enum {
    DS__RECORDER_NOTES_AT = 4096,
    DS__RECORDER_ENTRIES_AT = DS__RECORDER_NOTES_AT + DS__RECORDER_NOTES,
    DS__RECORDER_BYTES =
        DS__RECORDER_ENTRIES_AT + DS__RECORDER_ENTRIES * (int)sizeof(ds__recorder_entry)
};

typedef struct ds__recorder {
    ds__recorder_header *header;
    char *notes;
    ds__recorder_entry *entries;
    struct ds__recorder *next;
    int users;
    char path[512];
} ds__recorder;

static struct {
    ds__mutex lock;
    ds__recorder *first;
} ds__recorders = { .lock = DS__MUTEX_INIT };

/* Copies a text without its end, if it is too long. */
static void ds__recorder_put(char *to, size_t room, const char *from) {
    size_t n = from ? strlen(from) : 0;
    if (n >= room)
        n = room - 1;
    if (n)
        memcpy(to, from, n);
    to[n] = 0;
}

/* Copies a text without its beginning, if it is too long. */
static void ds__recorder_put_end(char *to, size_t room, const char *from) {
    size_t n = from ? strlen(from) : 0;
    if (n >= room)
        from += n - (room - 1);
    ds__recorder_put(to, room, from);
}

/* Writes the path of a rank. Returns 0 if there is no room. */
static int ds__recorder_path(char *to, size_t room, const char *pattern, int rank) {
    size_t n = 0;
    while (*pattern && n < room) {
        if (strncmp(pattern, "%r", 2) == 0) {
            n += (size_t)snprintf(to + n, room - n, "%d", rank);
            pattern += 2;
        } else if (strncmp(pattern, "%p", 2) == 0) {
            n += (size_t)snprintf(to + n, room - n, "%u", ds__os_process_id());
            pattern += 2;
        } else {
            to[n++] = *pattern++;
        }
    }
    if (n >= room)
        return 0;
    to[n] = 0;
    return 1;
}

static void ds__recorder_header_init(ds__recorder_header *header, int rank, int size) {
    memcpy(header->magic, "DSRANKS", 8);
    header->version = DS__RECORDER_VERSION;
    header->entry_bytes = sizeof(ds__recorder_entry);
    header->notes_at = DS__RECORDER_NOTES_AT;
    header->notes_bytes = DS__RECORDER_NOTES;
    header->entries_at = DS__RECORDER_ENTRIES_AT;
    header->entry_count = DS__RECORDER_ENTRIES;
    header->rank = rank;
    header->size = size;
    header->process = ds__os_process_id();
    header->monotonic_ns = ds__now_ns();
    header->wall_ns = ds__os_wall_ns();
    ds__os_host_name(header->host, sizeof header->host);
}

/* Finds the recorder of a path, or creates one. ds__recorders.lock is held. */
static ds_result ds__recorder_find(const char *path, int rank, int size, ds__recorder **out) {
    ds__recorder *r = ds__recorders.first;
    while (r && strcmp(r->path, path) != 0)
        r = r->next;
    if (r) {
        DS__REQUIRE(r->header->rank == rank,
                    "recorder: the file \"%.200s\" is that of rank %d, and was named for rank %d, "
                    "too: put %%r (the rank) into the path",
                    path, (int)r->header->rank, rank);
        r->users++;
        *out = r;
        return DS_OK;
    }

    r = ds__host_alloc(sizeof *r);
    if (!r)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for the flight recorder");
    char *at = ds__os_file_map(path, DS__RECORDER_BYTES);
    if (!at) {
        ds__host_free(r);
        return ds__fail(DS_ERR_SYSTEM, "recorder: the file \"%.200s\" cannot be created: %s", path,
                        strerror(errno));
    }
    r->header = (ds__recorder_header *)(void *)at;
    r->notes = at + DS__RECORDER_NOTES_AT;
    r->entries = (ds__recorder_entry *)(void *)(at + DS__RECORDER_ENTRIES_AT);
    r->users = 1;
    strcpy(r->path, path);
    ds__recorder_header_init(r->header, rank, size);
    r->next = ds__recorders.first;
    ds__recorders.first = r;
    *out = r;
    return DS_OK;
}

/* Creates the file of a rank, or shares the recorder that writes it already. In the pattern, %r is
   replaced by the rank, and %p by the number of the process. */
static ds_result ds__recorder_open(const char *pattern, int rank, int size, ds__recorder **out) {
    char path[sizeof(*out)->path];
    *out = NULL;
    DS__REQUIRE(size == 1 || strstr(pattern, "%r") || strstr(pattern, "%p"),
                "recorder: all %d ranks would write the file \"%.200s\": put %%r (the rank) into "
                "the path",
                size, pattern);
    DS__REQUIRE(ds__recorder_path(path, sizeof path, pattern, rank),
                "recorder: the path \"%.60s...\" is too long; at most %zu characters are allowed",
                pattern, sizeof path - 1);
    ds__mutex_lock(&ds__recorders.lock);
    ds_result r = ds__recorder_find(path, rank, size, out);
    ds__mutex_unlock(&ds__recorders.lock);
    return r;
}

/* Adds a use of a recorder; NULL is allowed. */
static ds__recorder *ds__recorder_ref(ds__recorder *r) {
    ds__mutex_lock(&ds__recorders.lock);
    if (r)
        r->users++;
    ds__mutex_unlock(&ds__recorders.lock);
    return r;
}

/* Marks the file as complete and unmaps it, if no other group uses it. NULL is allowed. In a forked
   child, the file stays that of the parent. */
static void ds__recorder_close(ds__recorder *r) {
    if (!r)
        return;
    ds__mutex_lock(&ds__recorders.lock);
    int users = --r->users;
    ds__recorder **link = &ds__recorders.first;
    while (*link != r)
        link = &(*link)->next;
    if (users == 0)
        *link = r->next;
    ds__mutex_unlock(&ds__recorders.lock);
    if (users)
        return;

    if (r->header->process == ds__os_process_id())
        atomic_store_explicit(&r->header->closed, 1, memory_order_release);
    ds__os_unmap(r->header, DS__RECORDER_BYTES);
    ds__host_free(r);
}

/* Returns room for a note, or NULL. Its kind must be written last. */
static void *ds__recorder_note_begin(ds__recorder *r, size_t bytes, uint64_t group) {
    bytes = (bytes + 7) & ~(size_t)7;
    uint64_t at = atomic_load(&r->header->notes_taken);
    do {
        if (at + bytes > DS__RECORDER_NOTES) {
            atomic_fetch_add(&r->header->notes_lost, 1);
            return NULL;
        }
    } while (!atomic_compare_exchange_weak(&r->header->notes_taken, &at, at + bytes));
    ds__recorder_note *note = (ds__recorder_note *)(void *)(r->notes + at);
    note->bytes = (uint32_t)bytes;
    note->group = group;
    return note;
}

/* Records a group that this process has joined. r: NULL is allowed. */
static void ds__recorder_group_add(ds__recorder *r, const ds__recorder_group *group) {
    uint32_t count = group->world_ranks ? (uint32_t)group->size : 0;
    size_t bytes = sizeof(ds__recorder_group_note) + count * sizeof(int32_t);
    ds__recorder_group_note *to = r ? ds__recorder_note_begin(r, bytes, group->group) : NULL;
    if (!to)
        return;
    to->rank = group->rank;
    to->size = group->size;
    to->devices = group->devices;
    to->first_device = group->first_device;
    to->own_devices = group->own_devices;
    to->world_count = count;
    ds__recorder_put(to->engine, sizeof to->engine, group->engine);
    ds__recorder_put(to->label, sizeof to->label, group->label);
    for (uint32_t i = 0; i < count; i++)
        to->world_ranks[i] = group->world_ranks[i];
    atomic_store_explicit(&to->note.kind, DS__RECORDER_NOTE_GROUP, memory_order_release);
}

/* Records the failure of a group. r: NULL is allowed. */
static void ds__recorder_failure_add(ds__recorder *r, uint64_t group, ds_result code,
                                     const char *text) {
    ds__recorder_failure_note *to = r ? ds__recorder_note_begin(r, sizeof *to, group) : NULL;
    if (!to)
        return;
    to->result = code;
    to->time_ns = ds__now_ns();
    ds__recorder_put(to->text, sizeof to->text, text);
    atomic_store_explicit(&to->note.kind, DS__RECORDER_NOTE_FAILURE, memory_order_release);
}

/* Returns the next entry that is not pending, which belongs to the caller then, and its number.
   NULL: there is none near. */
static ds__recorder_entry *ds__recorder_claim(ds__recorder *r, uint64_t *out_number) {
    for (int i = 0; i < DS__RECORDER_TRIES; i++) {
        uint64_t number = atomic_fetch_add_explicit(&r->header->last, 1, memory_order_relaxed) + 1;
        ds__recorder_entry *e = &r->entries[(number - 1) & (DS__RECORDER_ENTRIES - 1)];
        uint64_t word = atomic_load_explicit(&e->word, memory_order_relaxed);
        if (word && (word & 255) < DS__RECORDER_COMPLETE)
            continue;
        *out_number = number;
        if (atomic_compare_exchange_strong_explicit(&e->word, &word,
                                                    number << 8 | DS__RECORDER_WRITING,
                                                    memory_order_acquire, memory_order_relaxed))
            return e;
    }
    atomic_fetch_add_explicit(&r->header->not_recorded, 1, memory_order_relaxed);
    return NULL;
}

/* Records an operation that was enqueued. Returns its number, or 0 if it is not recorded. r: NULL
   is allowed. */
static uint64_t ds__recorder_begin(ds__recorder *r, const ds__recorder_call *call) {
    uint64_t number = 0;
    ds__recorder_entry *e = r ? ds__recorder_claim(r, &number) : NULL;
    if (!e)
        return 0;
    e->group = call->group;
    e->sequence = call->sequence;
    e->collective = call->collective;
    e->count = call->count;
    e->stream = call->stream;
    e->enqueued_ns = call->now;
    e->started_ns = 0;
    e->ended_ns = 0;
    e->root = call->root;
    e->device = call->device;
    e->line = (uint32_t)call->site.line;
    e->verb = (uint8_t)call->verb;
    e->reduce = (uint8_t)call->reduce;
    e->flags = (uint8_t)call->flags;
    e->dtype = call->dtype;
    ds__recorder_put(e->fn, sizeof e->fn, call->fn);
    ds__recorder_put_end(e->file, sizeof e->file, call->site.file);
    atomic_store_explicit(&e->word, number << 8 | DS__RECORDER_ENQUEUED, memory_order_release);
    ds__recorder_entry *next = &r->entries[number & (DS__RECORDER_ENTRIES - 1)];
    for (size_t i = 0; i < sizeof *next; i += 64)
        __builtin_prefetch((char *)next + i, 1);
    return number;
}

/* Changes the status of an entry by its number. A final status stays. r NULL and number 0 are
   allowed. */
static void ds__recorder_set(ds__recorder *r, uint64_t number, ds__recorder_status status,
                             uint64_t now) {
    if (!r || !number)
        return;
    ds__recorder_entry *e = &r->entries[(number - 1) & (DS__RECORDER_ENTRIES - 1)];
    uint64_t word = atomic_load_explicit(&e->word, memory_order_relaxed);
    if (word >> 8 != number || (word & 255) >= DS__RECORDER_COMPLETE)
        return;
    if (status == DS__RECORDER_STARTED)
        e->started_ns = now;
    else
        e->ended_ns = now;
    atomic_store_explicit(&e->word, number << 8 | (uint64_t)status, memory_order_release);
}

/* ranks/record.h - groups and operations in the flight recorder.

   Records a group and its operations: ds__group_record and ds__rop_record fill in what the recorder
   needs. ds__net_names are the names in records of activity and messages.

   Invariants: each transfer of an exchange has an entry of its own.
   Locks: `list_lock` of the group is held in ds__rop_record.
   Threads: any. */

/* Names of operations, by ds__net_kind. */
static const char *const ds__net_names[DS__NET_KINDS] = {
    "all_reduce", "reduce",         "broadcast",  "all_gather", "gather",
    "scatter",    "reduce_scatter", "all_to_all", "exchange",   "barrier"
};

static void ds__group_record(const ds__group *g) {
    ds__recorder_group_add(g->recorder,
                           &(ds__recorder_group){ .group = g->id,
                                                  .rank = g->rank,
                                                  .size = g->size,
                                                  .devices = (uint32_t)g->devices,
                                                  .first_device = (uint32_t)g->first[g->rank],
                                                  .own_devices = (uint32_t)g->owns,
                                                  .engine = g->engine->name,
                                                  .label = g->label,
                                                  .world_ranks = g->world });
}

/* Returns the verb of an operation. */
static ds__recorder_verb ds__rop_verb(const ds__rcall *c) {
    static const ds__recorder_verb verbs[DS__NET_KINDS] = {
        [DS__NET_ALL_REDUCE] = DS__RECORDER_ALL_REDUCE,
        [DS__NET_REDUCE] = DS__RECORDER_REDUCE,
        [DS__NET_BROADCAST] = DS__RECORDER_BROADCAST,
        [DS__NET_ALL_GATHER] = DS__RECORDER_ALL_GATHER,
        [DS__NET_GATHER] = DS__RECORDER_GATHER,
        [DS__NET_SCATTER] = DS__RECORDER_SCATTER,
        [DS__NET_REDUCE_SCATTER] = DS__RECORDER_REDUCE_SCATTER,
        [DS__NET_ALL_TO_ALL] = DS__RECORDER_ALL_TO_ALL,
        [DS__NET_EXCHANGE] = DS__RECORDER_SEND,
        [DS__NET_BARRIER] = DS__RECORDER_BARRIER
    };
    return verbs[c->kind];
}

/* Records an operation that has its numbers. */
static uint64_t ds__rop_record(const ds__group *g, const ds__rop *op) {
    const ds__rcall *c = &op->call;
    int reduces = c->kind == DS__NET_ALL_REDUCE || c->kind == DS__NET_REDUCE ||
                  c->kind == DS__NET_REDUCE_SCATTER;
    int rooted = c->kind == DS__NET_REDUCE || c->kind == DS__NET_BROADCAST ||
                 c->kind == DS__NET_GATHER || c->kind == DS__NET_SCATTER;
    if (!g->recorder)
        return 0;
    ds__recorder_call call = { .group = g->id,
                               .sequence = g->operations,
                               .collective = g->collectives,
                               .verb = ds__rop_verb(c),
                               .flags = c->varies ? DS__RECORDER_COUNTS_VARY : 0,
                               .dtype = c->dtype,
                               .reduce = reduces ? (int)c->op : DS__RECORDER_NO_REDUCE,
                               .root = rooted ? (int)c->root : -1,
                               .device = -1,
                               .count = c->count,
                               .stream = c->stream,
                               .fn = c->fn,
                               .site = c->site,
                               .now = op->enqueued };
    if (c->kind != DS__NET_EXCHANGE)
        return ds__recorder_begin(g->recorder, &call);
    call.collective = 0;
    for (size_t i = 0; i < op->net.transfer_count; i++) {
        ds__rtransfer *t = &op->transfers[i];
        call.verb = op->net.transfers[i].receive ? DS__RECORDER_RECEIVE : DS__RECORDER_SEND;
        call.root = (int)t->peer;
        call.device = (int)t->device;
        call.count = t->count;
        t->ticket = ds__recorder_begin(g->recorder, &call);
    }
    return 0;
}

/* Records the status of an operation. */
static void ds__rop_status(const ds__group *g, const ds__rop *op, ds__recorder_status status,
                           uint64_t now) {
    if (!g->recorder)
        return;
    ds__recorder_set(g->recorder, op->ticket, status, now);
    for (size_t i = 0; i < op->net.transfer_count; i++)
        ds__recorder_set(g->recorder, op->transfers[i].ticket, status, now);
}

/* ranks/failure.h - failures of groups.

   Makes a group fail with a code and a reason (ds__group_fail), reports the failure to callers
   (ds__group_report), and keeps failures that a driver does not report at waits
   (ds__rfailure_of).

   Invariants: a group keeps its first failure. Its timeline has then passed all numbers.
   Locks: ds__group_fail and ds__group_fail_op expect the group's lock. `failure_lock` guards the
   list of failures and, in ranks/capture.h, that of words.
   Threads: any. */

/* ---- failures that drivers do not report ----------------------------------------------------- */

/* Notes that the work of a stream has failed; stream 0: of all streams of the device. */
static void ds__rfailure_add(ds_device device, uint64_t stream, const ds__group *g) {
    ds__rfailure *f = ds__host_alloc(sizeof *f);
    if (!f)
        return;
    f->device = device;
    f->stream = stream;
    f->code = g->code;
    memcpy(f->reason, g->reason, sizeof f->reason);
    ds__spinlock_lock(&ds__ranks.failure_lock);
    f->next = ds__ranks.failures;
    ds__ranks.failures = f;
    ds__spinlock_unlock(&ds__ranks.failure_lock);
    atomic_fetch_add(&ds__drive.failed, 1);
}

/* Returns the failure of a stream, or of any stream of the device (stream 0). */
static ds_result ds__rfailure_of(ds_device device, uint64_t stream) {
    ds_result code = DS_OK;
    char reason[DS__RANKS_REASON];
    ds__spinlock_lock(&ds__ranks.failure_lock);
    const ds__rfailure *f = ds__ranks.failures;
    while (f && (ds__device_key(f->device) != ds__device_key(device) ||
                 (stream && f->stream && stream != f->stream)))
        f = f->next;
    if (f) {
        code = f->code;
        memcpy(reason, f->reason, sizeof reason);
    }
    ds__spinlock_unlock(&ds__ranks.failure_lock);
    return code < 0 ? ds__fail(code, "%s", reason) : DS_OK;
}

/* Forgets the failures of a device, which was reset. */
static void ds__rfailure_forget(ds_device device) {
    ds__spinlock_lock(&ds__ranks.failure_lock);
    for (ds__rfailure **at = &ds__ranks.failures; *at;) {
        ds__rfailure *f = *at;
        if (ds__device_key(f->device) != ds__device_key(device)) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        ds__host_free(f);
        atomic_fetch_sub(&ds__drive.failed, 1);
    }
    ds__spinlock_unlock(&ds__ranks.failure_lock);
}

/* ---- sentences of the engine ----------------------------------------------------------------- */

/* Calls whose errors are no errors of the program's call: their sentences name no call, and are
   kept aside. */
typedef struct ds__quiet {
    const char *fn;
    ds_site site;
} ds__quiet;

static ds__quiet ds__quiet_begin(void) {
    ds__quiet outer = { ds__tls.fn, ds__tls.site };
    ds__tls.fn = NULL;
    ds__tls.site.file = NULL;
    ds__tls.mute++;
    return outer;
}

static void ds__quiet_end(const ds__quiet *outer) {
    ds__tls.mute--;
    ds__tls.fn = outer->fn;
    ds__tls.site = outer->site;
}

/* Returns the last sentence of such calls. */
static const char *ds__quiet_reason(void) {
    const char *text = strstr(ds__tls.aside, ": ");
    return text ? text + 2 : ds__tls.aside;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Returns the name of a group for messages. */
static const char *ds__group_name(const ds__group *g) {
    return g->label ? g->label : "world";
}

/* Ends an operation of a group that fails or has failed, once. `lock` is held. */
static void ds__group_drop_op(ds__group *g, ds__rop *op, uint64_t now) {
    int begun = op->state != DS__ROP_LISTED;
    if (op->dropped)
        return;
    op->dropped = 1;
    if (begun && !g->engine->enqueue)
        g->engine->abandon(g->comm, &op->request);
    ds__rop_status(g, op, begun ? DS__RECORDER_ABANDONED : DS__RECORDER_FAILED, now);
    if (op->word)
        __atomic_store_n(op->word, 1, __ATOMIC_SEQ_CST);
    if (g->driver->type == DS_DEVICE_CUDA)
        ds__rfailure_add(g->own[0], op->call.stream, g);
}

/* Ends the operations of the group. Those that have not arrived stay listed. `lock` is held. */
static void ds__group_drop_ops(ds__group *g) {
    uint64_t now = ds__now_ns();
    for (ds__rop *op = g->head; op; op = op->next)
        ds__group_drop_op(g, op, now);
    for (size_t i = 1; i < g->owns && g->head && g->driver->type == DS_DEVICE_CUDA; i++)
        ds__rfailure_add(g->own[i], 0, g);
}

/* Makes the group fail, unless it has failed. tell: other ranks are told. `lock` is held. */
static void ds__group_fail(ds__group *g, ds_result code, const char *reason, int tell) {
    if (atomic_load(&g->failed))
        return;
    g->code = code;
    snprintf(g->reason, sizeof g->reason, "%s", reason);
    ds__recorder_failure_add(g->recorder, g->id, code, g->reason);
    if (tell)
        g->engine->tell(g->comm, code, g->reason);
    ds__group_drop_ops(g);
    atomic_store(&g->failed, 1);
    if (g->engine->stop)
        g->engine->stop(g->comm);
    if (g->timeline)
        g->driver->timeline_fail(g->timeline, atomic_load(&g->passed) + 1, code, g->reason);
}

/* Makes the group fail because of an operation: the reason begins with its call. An operation of a
   capture has the number 0. */
__attribute__((format(DS__PRINTF, 4, 5))) static void ds__group_fail_op(ds__group *g,
                                                                        const ds__rop *op,
                                                                        ds_result code,
                                                                        const char *format, ...) {
    char text[DS__RANKS_REASON];
    const ds__rcall *c = &op->call;
    char which[40] = "in a capture,";
    if (op->number)
        snprintf(which, sizeof which, "operation %llu", (unsigned long long)(op->number - g->base));
    int n = snprintf(text, sizeof text, "%s at %s:%d, %s of group \"%s\" on rank %d of %d: ", c->fn,
                     c->site.file ? c->site.file : "?", c->site.file ? c->site.line : 0, which,
                     ds__group_name(g), g->rank, g->size);
    size_t used = ds__text_length(n, sizeof text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof text - used, format, args);
    va_end(args);
    ds__group_fail(g, code, text, 1);
}

/* Returns the failure of the group as the result of a call. */
static ds_result ds__group_report(ds__group *g) {
    return DS__LIKELY(!atomic_load(&g->failed)) ? DS_OK : ds__fail(g->code, "%s", g->reason);
}

/* ranks/compare.h - comparison of operations between ranks.

   Writes the signature of an operation, gathers those of all ranks before the operation starts
   (ds__compare_start), and fails the group if they differ (ds__compare_end).

   Invariants: a signature has 16 bytes that must agree, and the call site for the message. Ranks
   whose number of operations differs compare different operations, so a forgotten call is found at
   the next call.
   Locks: the group's lock is held.
   Threads: any. */

/* The part of a signature on which all ranks must agree. */
typedef struct ds__signature {
    uint8_t kind;
    uint8_t op; /* and the step of the collective */
    uint8_t dtype_code;
    uint8_t dtype_bits;
    uint16_t lanes;
    uint16_t root;
    uint64_t count;
} ds__signature;

_Static_assert(sizeof(ds__signature) == 16, "a signature has no gap");

enum { DS__SIGNATURE_SITE = DS__RANKS_SIGNATURE - sizeof(ds__signature) };

/* Writes the signature of an operation and the end of its call site. */
static void ds__compare_write(ds__rop *op) {
    const ds__rcall *c = &op->call;
    ds__signature s = { .kind = (uint8_t)c->kind,
                        .op = (uint8_t)(c->op | c->step << 4),
                        .dtype_code = c->dtype.code,
                        .dtype_bits = c->dtype.bits,
                        .lanes = c->dtype.lanes,
                        .root = (uint16_t)c->root,
                        .count = c->count };
    char site[DS__RANKS_REASON];
    int n = snprintf(site, sizeof site, "%s:%d", c->site.file ? c->site.file : "?",
                     c->site.file ? c->site.line : 0);
    size_t length = ds__text_length(n, sizeof site);
    size_t most = DS__SIGNATURE_SITE - 1;
    size_t kept = length < most ? length : most;
    memset(op->signature, 0, sizeof op->signature);
    memcpy(op->signature, &s, sizeof s);
    memcpy(op->signature + sizeof s, site + length - kept, kept);
}

/* Describes the operation that gathers the signatures of all ranks. */
static ds_result ds__compare_prepare(ds__group *g, ds__rop *op, ds__net_op *out) {
    size_t n = (size_t)g->size;
    size_t *tables = ds__host_alloc(n * (2 * sizeof *tables + DS__RANKS_SIGNATURE));
    if (!tables)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the signatures of %d ranks", g->size);
    for (size_t i = 0; i < n; i++) {
        tables[i] = DS__RANKS_SIGNATURE;
        tables[n + i] = i * DS__RANKS_SIGNATURE;
    }
    ds__compare_write(op);
    op->signatures = tables;
    *out = (ds__net_op){ .kind = DS__NET_ALL_GATHER,
                         .in = op->signature,
                         .out = tables + 2 * n,
                         .parts = { tables, tables + n } };
    return DS_OK;
}

/* Starts to gather the signatures of all ranks. */
static ds_result ds__compare_start(ds__group *g, ds__rop *op) {
    ds__net_op gather;
    ds_result r = ds__compare_prepare(g, op, &gather);
    return r == DS_OK ? g->engine->start(g->comm, &gather, &op->request) : r;
}

/* Writes an operation for messages, such as "all_reduce of 4 float32 at file.c:3". The bytes are
   those of another rank, so the text of the call site may lack its zero. */
static const char *ds__compare_text(const char *signature, char *out, size_t size) {
    ds__signature s;
    char name[DS_DTYPE_NAME_SIZE];
    memcpy(&s, signature, sizeof s);
    ds_dtype dtype = { s.dtype_code, s.dtype_bits, s.lanes };
    const char *kind = s.kind < DS__NET_KINDS ? ds__net_names[s.kind] : "?";
    snprintf(out, size, "%s of %llu %s (operator %u, root %u) at %.*s", kind,
             (unsigned long long)s.count, dtype.bits ? ds__dtype_name(dtype, name) : "elements",
             s.op & 15u, s.root, (int)DS__SIGNATURE_SITE, signature + sizeof s);
    return out;
}

/* Compares the signatures of all ranks with that of rank 0. */
static ds_result ds__compare_end(ds__group *g, ds__rop *op) {
    char mine[160];
    char other[160];
    ds_result r = DS_OK;
    size_t *tables = op->signatures;
    const char *all = (const char *)(tables + 2 * (size_t)g->size);
    for (int i = 1; i < g->size && r == DS_OK; i++) {
        const char *at = all + (size_t)i * DS__RANKS_SIGNATURE;
        if (memcmp(all, at, sizeof(ds__signature)) != 0)
            r = ds__fail(DS_ERR_MISMATCH, "rank 0 calls %s, but rank %d calls %s",
                         ds__compare_text(all, mine, sizeof mine), i,
                         ds__compare_text(at, other, sizeof other));
    }
    ds__host_free(tables);
    op->signatures = NULL;
    return r;
}

/* ranks/progress.h - progress of operations.

   Starts the operations of a group that have arrived, tests them and passes them on
   (ds__group_drive), begins an operation when its stream gets there (ds__rop_begin), and runs the
   progress thread (ds__ranks_main).

   Policy:
   1. Only the first operation that is not complete is tested: operations pass in order, and any
      test lets the engine work on all of them.
   2. The thread on which a small operation arrives starts it, and tests it for up to
      DS__RANKS_SPIN_NS. On an idle stream that is the calling thread, so the operation is often
      complete when the call returns. A large operation is left to the progress thread and to hosts
      that wait: the start alone may take milliseconds, for which the caller can enqueue other work.
   3. A host thread that waits tests until its work is complete, or no test has made progress for
      100 us. The progress thread tests without a pause for 20 us after progress, then at intervals
      that grow to a millisecond. It leaves the work to host threads that drive groups. It sleeps
      20 ms after the last operation; until then the caller of an operation need not wake it.
   4. Once in a millisecond a group looks for operations beyond their time limit, and asks whether
      another rank has told of a failure.

   Invariants: `open` of base/drive.h counts operations that have arrived and are listed. `arrived`
   is the last thing that ds__rop_begin writes to an operation; the group then stays because of
   `users`.
   Locks: see ranks/types.h. ds__rop_begin may run under the put lock of a stream and only tries the
   lock of its group.
   Threads: any; one progress thread, from the first group to ds_shutdown. */

/* Fails the group if another rank has told of a failure. `lock` is held. */
static void ds__group_hear(ds__group *g) {
    char reason[DS__RANKS_REASON];
    char text[DS__RANKS_REASON + 64];
    int rank = 0;
    ds_result r = g->engine->hear(g->comm, reason, &rank);
    if (r == DS_OK)
        return;
    snprintf(text, sizeof text, "rank %d: %s", rank, reason);
    text[DS__RANKS_REASON - 1] = '\0';
    ds__group_fail(g, r, text, 0);
}

/* Fails the group with the error text that the engine has stored for this thread, or with the
   failure of another rank, because of which the engine has failed here. */
static void ds__group_fail_engine(ds__group *g, const ds__rop *op, ds_result code) {
    ds__group_hear(g);
    ds__group_fail_op(g, op, code, "%s", ds__quiet_reason());
}

/* Starts the engine's next step of an operation: the comparison, or the operation itself. */
static ds_result ds__rop_start(ds__group *g, ds__rop *op, uint64_t now) {
    if (g->engine->enqueue) {
        op->state = DS__ROP_STARTED;
        return DS_OK;
    }
    if (op->state == DS__ROP_LISTED && g->flags & DS_RANKS_COMPARE &&
        op->call.kind != DS__NET_EXCHANGE) {
        op->state = DS__ROP_COMPARING;
        return ds__compare_start(g, op);
    }
    op->state = DS__ROP_STARTED;
    ds__rop_status(g, op, DS__RECORDER_STARTED, now);
    return g->engine->start(g->comm, &op->net, &op->request);
}

/* Starts operations that have arrived, in the order of the list. `lock` is held. */
static void ds__group_start_ops(ds__group *g, uint64_t now) {
    while (g->start && !atomic_load(&g->failed)) {
        ds__rop *op = g->start;
        int arrived = atomic_load(&op->arrived);
        if (!arrived)
            return;
        if (arrived == 2) {
            ds__group_fail_op(g, op, DS_ERR_FAILED,
                              "its stream failed before the operation, so this rank cannot take "
                              "part");
            return;
        }
        ds_result r = ds__rop_start(g, op, now);
        if (r < 0) {
            op->state = DS__ROP_LISTED; /* nothing was started */
            ds__group_fail_engine(g, op, r);
            return;
        }
        g->start = op->next;
    }
}

/* Lists the operations that were enqueued since the last time. `lock` is held. */
static void ds__group_list_ops(ds__group *g) {
    ds__spinlock_lock(&g->list_lock);
    ds__rop *first = g->fresh;
    ds__rop *last = g->last_fresh;
    g->fresh = g->last_fresh = NULL;
    ds__spinlock_unlock(&g->list_lock);
    if (!first)
        return;
    if (g->tail)
        g->tail->next = first;
    else
        g->head = first;
    g->tail = last;
    if (!g->start)
        g->start = first;
}

/* DS_OK: complete. DS_NOT_READY: pending. Negative: the engine has failed. */
static ds_result ds__rop_test(ds__group *g, ds__rop *op) {
    if (!g->engine->enqueue)
        return g->engine->test(g->comm, &op->request);
    return g->driver->timeline_get(g->timeline) >= op->number ? DS_OK : DS_NOT_READY;
}

/* Tests the first operation. Returns 1 if it is complete. `lock` is held. */
static int ds__group_test_op(ds__group *g, uint64_t now) {
    ds__rop *op = g->head;
    if (!op || op == g->start || atomic_load(&g->failed))
        return 0;
    ds_result r = ds__rop_test(g, op);
    if (r == DS_NOT_READY)
        return 0;
    if (g->engine->enqueue) {
        ds__group_hear(g); /* the operation may have ended because of an error */
        if (atomic_load(&g->failed))
            return 0;
    }
    if (r == DS_OK && op->state == DS__ROP_COMPARING) {
        r = ds__compare_end(g, op);
        if (r == DS_OK)
            r = ds__rop_start(g, op, now);
        if (r == DS_OK)
            return 0;
    }
    if (r < 0) {
        op->state = DS__ROP_LISTED; /* the engine has abandoned it */
        ds__group_fail_engine(g, op, r);
        return 0;
    }
    ds__rop_status(g, op, DS__RECORDER_COMPLETE, now);
    return 1;
}

/* Returns an operation to the free list. */
static void ds__rop_give_back(ds__rop *op) {
    ds__group *g = op->group;
    ds__spinlock_lock(&g->list_lock);
    op->next = g->free_ops;
    g->free_ops = op;
    ds__spinlock_unlock(&g->list_lock);
}

/* Takes the first operation, which has arrived, from the list. `lock` is held. */
static void ds__group_take_op(ds__group *g, int reusable) {
    ds__rop *op = g->head;
    g->head = op->next;
    if (!g->head)
        g->tail = NULL;
    atomic_fetch_sub(&ds__drive.open, 1);
    if (reusable)
        ds__rop_give_back(op);
}

/* Passes the operations that are complete. `lock` is held. */
static void ds__group_pass_ops(ds__group *g, uint64_t now) {
    uint64_t passed = 0;
    while (ds__group_test_op(g, now)) {
        ds__rop *op = g->head;
        passed = op->number;
        /* If the next test fails, this operation has not failed. */
        atomic_store(&g->passed, passed);
        if (op->word)
            __atomic_store_n(op->word, 1, __ATOMIC_SEQ_CST);
        ds__group_take_op(g, 1);
    }
    if (passed)
        g->driver->timeline_pass(g->timeline, passed);
}

/* After a failure, takes the operations that have arrived from the list. Those on which the engine
   may still work are never used again. `lock` is held. */
static void ds__group_clear_ops(ds__group *g) {
    uint64_t now = ds__now_ns();
    ds__rop *kept = NULL;
    ds__rop *last = NULL;
    while (g->head) {
        ds__rop *op = g->head;
        if (atomic_load(&op->arrived)) {
            ds__group_drop_op(g, op, now);
            ds__group_take_op(g, op->state == DS__ROP_LISTED || g->engine->cancels);
            continue;
        }
        g->head = op->next;
        op->next = NULL;
        if (last)
            last->next = op;
        else
            kept = op;
        last = op;
    }
    g->head = g->start = kept;
    g->tail = last;
}

/* Looks for operations beyond their time limit, and for failures of other ranks. `lock` is held. */
static void ds__group_watch(ds__group *g, uint64_t now) {
    g->heard = now;
    ds__group_hear(g);
    const ds__rop *first = g->head;
    for (ds__rop *op = g->head; op && !atomic_load(&g->failed); op = op->next) {
        if (!op->arrival && atomic_load(&op->arrived))
            op->arrival = now;
        if (!op->arrival || op->call.timeout_ns == DS_RANKS_FOREVER ||
            now - op->arrival < op->call.timeout_ns)
            continue;
        if (op == first || atomic_load(&first->arrived))
            ds__group_fail_op(g, op, DS_ERR_TIMEOUT,
                              "not complete within %llu ms; at least one other rank has not "
                              "arrived, or does not answer",
                              (unsigned long long)(op->call.timeout_ns / 1000000));
        else
            ds__group_fail_op(g, op, DS_ERR_TIMEOUT,
                              "not started within %llu ms, because operation %llu, %s at %s:%d, "
                              "comes first and its stream has not reached it",
                              (unsigned long long)(op->call.timeout_ns / 1000000),
                              (unsigned long long)(first->number - g->base), first->call.fn,
                              first->call.site.file ? first->call.site.file : "?",
                              first->call.site.file ? first->call.site.line : 0);
    }
}

/* Drives the group once. `lock` is held. */
static void ds__group_step(ds__group *g) {
    uint64_t now = ds__now_ns();
    ds__library_scope scope;
    ds__quiet outer = ds__quiet_begin();
    if (g->gpu)
        g->driver->library_begin(g->own[0].index, &scope);
    ds__group_list_ops(g);
    ds__group_start_ops(g, now);
    ds__group_pass_ops(g, now);
    if (!atomic_load(&g->failed) && g->head && now - g->heard > DS__RANKS_ABORT_MS * 1000000u)
        ds__group_watch(g, now);
    if (atomic_load(&g->failed))
        ds__group_clear_ops(g);
    if (g->gpu)
        g->driver->library_end(&scope);
    ds__quiet_end(&outer);
}

/* Drives the group, unless another thread does. The caller has a pin, or has raised `users`. */
static void ds__group_drive(ds__group *g) {
    uint32_t seen;
    do {
        if (!ds__mutex_trylock(&g->lock))
            return;
        seen = atomic_load(&g->news);
        ds__group_step(g);
        ds__mutex_unlock(&g->lock);
    } while (atomic_load(&g->news) != seen);
}

/* Wakes the progress thread. lazily: only if it sleeps without a time limit, since the caller will
   probably wait and drive the groups itself. */
static void ds__ranks_wake(int lazily) {
    uint32_t asleep = atomic_load(&ds__ranks.asleep);
    if (asleep == DS__RANKS_AWAKE || (lazily && asleep == DS__RANKS_NAPS) ||
        atomic_load(&ds__ranks.hosts))
        return;
    atomic_fetch_add(&ds__ranks.word, 1);
    ds__futex_wake(&ds__ranks.word, 1);
}

/* The stream of an operation has reached it (base/operation.h). */
static int ds__rop_begin(ds__remote *remote, int how) {
    ds__rop *op = (ds__rop *)(void *)remote;
    ds__group *g = op->group;
    uint64_t number = op->number;
    uint64_t enqueued = op->enqueued;
    int failed = how == DS__REMOTE_FAILED;
    int in_host_func = g->gpu && how != DS__REMOTE_AT_ONCE; /* CUDA forbids calls there */
    int drives = failed || (op->spin && !in_host_func);
    int spin = drives && !failed;
    atomic_fetch_add(&g->users, 1);
    atomic_fetch_add(&ds__drive.open, 1);
    atomic_store(&op->arrived, failed ? 2 : 1);
    atomic_fetch_add(&g->news, 1);
    if (drives)
        ds__group_drive(g);
    uint64_t since = spin && how != DS__REMOTE_AT_ONCE ? ds__now_ns() : enqueued;
    while (atomic_load(&g->passed) < number && spin && !atomic_load(&g->failed) &&
           ds__now_ns() - since < DS__RANKS_SPIN_NS)
        ds__group_drive(g);
    int over = atomic_load(&g->passed) >= number;
    if (!over)
        ds__ranks_wake(how == DS__REMOTE_AT_ONCE);
    atomic_fetch_sub(&g->users, 1);
    return over;
}

/* Gives groups of the list from `first` on, which stay until `users` is lowered; at most `most`. */
static size_t ds__ranks_collect(size_t first, size_t most, ds__group **out) {
    size_t count = 0;
    ds__mutex_lock(&ds__ranks.lock);
    for (ds__group *g = ds__ranks.groups; g && count < most; g = g->next) {
        if (first) {
            first--;
            continue;
        }
        atomic_fetch_add(&g->users, 1);
        out[count++] = g;
    }
    ds__mutex_unlock(&ds__ranks.lock);
    return count;
}

/* Drives all groups. Returns 0 if another thread does so. No lock of all threads is held, since the
   engine may call CUDA. */
static int ds__ranks_step(void) {
    enum { AT_ONCE = 8 };

    ds__group *list[AT_ONCE];
    size_t first = 0;
    size_t count = AT_ONCE;
    if (atomic_exchange(&ds__ranks.stepping, 1))
        return 0;
    for (; count == AT_ONCE; first += count) {
        count = ds__ranks_collect(first, AT_ONCE, list);
        for (size_t i = 0; i < count; i++) {
            ds__group_drive(list[i]);
            atomic_fetch_sub(&list[i]->users, 1);
        }
    }
    atomic_store(&ds__ranks.stepping, 0);
    return 1;
}

/* Drives all groups once (base/drive.h); waits if another thread does so, which may be noting a
   failure. */
static void ds__ranks_look(void) {
    ds__tls.mute++;
    while (atomic_load(&ds__drive.open) && !ds__ranks_step())
        ds__os_yield();
    ds__tls.mute--;
}

/* Drives all groups, and sets *since to the time if that made progress: an engine that moves data
   needs more time for a test than one that waits. Returns the time. */
static uint64_t ds__ranks_step_timed(uint64_t now, uint64_t *since) {
    enum { BUSY_NS = 3000 };

    int open = atomic_load(&ds__drive.open);
    int stepped = ds__ranks_step();
    uint64_t after = ds__now_ns();
    if ((stepped && after - now > BUSY_NS) || atomic_load(&ds__drive.open) < open)
        *since = after;
    else if (!stepped)
        ds__os_yield();
    return after;
}

/* A host thread waits (base/drive.h). */
static void ds__ranks_wait(ds_result (*query_fn)(void *object), void *object) {
    enum { PATIENCE_NS = 100000 };

    uint64_t now = ds__now_ns();
    uint64_t since = now;
    atomic_fetch_add(&ds__ranks.hosts, 1);
    while (ds__tls.awaited && atomic_load(&ds__drive.open) && now - since < PATIENCE_NS &&
           query_fn(object) == DS_NOT_READY)
        now = ds__ranks_step_timed(now, &since);
    if (atomic_fetch_sub(&ds__ranks.hosts, 1) == 1 && atomic_load(&ds__drive.open))
        ds__ranks_wake(1); /* operations that arrived meanwhile have not woken it */
}

/* Sleeps until it is woken, or for at most this time. open: of base/drive.h, when the caller chose
   the time. */
static void ds__ranks_sleep(int open, uint64_t ns) {
    uint32_t word = atomic_load(&ds__ranks.word);
    atomic_store(&ds__ranks.asleep, ns == DS__FOREVER ? DS__RANKS_SLEEPS : DS__RANKS_NAPS);
    /* an operation that has arrived since then may have found the thread awake */
    if (atomic_load(&ds__drive.open) <= open && !atomic_load(&ds__ranks.quit))
        ds__futex_wait(&ds__ranks.word, word, ns);
    atomic_store(&ds__ranks.asleep, DS__RANKS_AWAKE);
}

static void *ds__ranks_main(void *unused) {
    enum { SPIN_NS = 20000, LINGER_NS = 20000000, SHORT_NAP_NS = 20000, LONG_NAP_NS = 1000000 };

    uint64_t nap = SHORT_NAP_NS;
    uint64_t now = ds__now_ns();
    uint64_t since = now; /* of the last progress */
    int open = 0;
    (void)unused;
    ds__os_library_thread();
    while (!atomic_load(&ds__ranks.quit)) {
        uint64_t before = since;
        int was = open;
        open = atomic_load(&ds__drive.open);
        if (open && !atomic_load(&ds__ranks.hosts))
            now = ds__ranks_step_timed(ds__now_ns(), &since);
        else
            now = ds__now_ns();
        if (open > was)
            since = now;
        if (since != before)
            nap = SHORT_NAP_NS;
        if (open && now - since < SPIN_NS && !atomic_load(&ds__ranks.hosts)) {
            ds__os_yield();
            continue;
        }
        ds__ranks_sleep(open, !open && now - since > LINGER_NS ? DS__FOREVER : nap);
        nap = nap + nap / 4 < LONG_NAP_NS ? nap + nap / 4 : LONG_NAP_NS;
    }
    return NULL;
}

/* Starts the progress thread, unless it runs. ds__ranks.lock is held. */
static ds_result ds__ranks_thread_start(void) {
    if (ds__ranks.thread_started)
        return DS_OK;
    int error = ds__os_thread_start(&ds__ranks.thread, ds__ranks_main, NULL);
    if (error)
        return ds__fail(DS_ERR_SYSTEM, "the progress thread of process groups was not started: %s",
                        strerror(error));
    ds__ranks.thread_started = 1;
    return DS_OK;
}

static void ds__ranks_thread_end(void) {
    if (!ds__ranks.thread_started)
        return;
    atomic_store(&ds__ranks.quit, 1);
    atomic_fetch_add(&ds__ranks.word, 1);
    ds__futex_wake(&ds__ranks.word, 1);
    ds__os_thread_join(ds__ranks.thread);
    ds__ranks.thread_started = 0;
    atomic_store(&ds__ranks.quit, 0);
}

/* Lock a group for an operation between hosts. An engine that enqueues operations has a lock of its
   own, and `start` may wait. */
static void ds__net_lock(ds__group *g) {
    if (!g->engine->enqueue)
        ds__mutex_lock(&g->lock);
}

static void ds__net_unlock(ds__group *g) {
    if (!g->engine->enqueue)
        ds__mutex_unlock(&g->lock);
}

/* Runs an operation of the engine between hosts on this thread. */
static ds_result ds__net_wait(ds__group *g, const ds__net_op *net, uint64_t deadline,
                              const char *what) {
    ds__net_request request = { { NULL } };
    ds__net_op timed = *net;
    uint64_t nap = 1000;
    timed.deadline = deadline;
    ds__net_lock(g);
    ds_result r = g->engine->start(g->comm, &timed, &request);
    ds__net_unlock(g);
    if (r < 0)
        return r;
    for (;;) {
        ds__net_lock(g);
        r = g->engine->test(g->comm, &request);
        int late = r == DS_NOT_READY && ds__now_ns() > deadline;
        if (late)
            g->engine->abandon(g->comm, &request);
        ds__net_unlock(g);
        if (late)
            return ds__fail(DS_ERR_TIMEOUT,
                            "%s: not all %d ranks of group \"%s\" have called within the time "
                            "limit; this is rank %d",
                            what, g->size, ds__group_name(g), g->rank);
        if (r != DS_NOT_READY)
            return r;
        ds__os_sleep(nap);
        nap = nap < 500000 ? nap * 2 : nap;
    }
}

/* Returns the time at which the limit of an operation ends. */
static uint64_t ds__rop_deadline(const ds__rop *op) {
    uint64_t limit = op->call.timeout_ns;
    return limit > UINT64_MAX - op->enqueued ? UINT64_MAX : op->enqueued + limit;
}

/* Compares an operation of an engine that enqueues its operations with those of the other ranks. */
static ds_result ds__rop_compare(ds__group *g, ds__rop *op) {
    ds__net_op gather;
    ds_result r = ds__compare_prepare(g, op, &gather);
    if (r == DS_OK)
        r = ds__net_wait(g, &gather, ds__rop_deadline(op), "comparison");
    return r == DS_OK ? ds__compare_end(g, op) : r;
}

/* ranks/group.h - groups: creation, look-up, end.

   Creates a group of a communicator (ds__group_create), which exchanges the numbers of devices of
   the ranks, finds groups (ds__group_pin), and ends them (ds__group_end).

   Invariants: a group is in the list of the process from its creation to its end. A group that has
   failed is never freed before ds_shutdown: its operations may not have arrived yet, and the engine
   may still use their memory.
   Locks: ds__ranks.lock guards the lists of groups. ds__net_wait takes the group's lock for each
   test, and sleeps without it.
   Threads: any. */

/* Finds a group, which stays until ds__group_unpin. NULL: the handle is not valid; the sentence is
   stored. */
static ds__group *ds__group_pin(ds_ranks handle) {
    ds__group *g = ds__pin(&ds__ranks.table, handle.id);
    if (DS__UNLIKELY(!g))
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the group was finalized or never existed"
                                                  : "no group was given (the handle is zero)");
    return g;
}

static void ds__group_unpin(ds__group *g) {
    ds__unpin(&ds__ranks.table, g);
}

/* Returns the rank that has a device of the group. */
static int ds__group_rank_of(const ds__group *g, size_t device) {
    int rank = 0;
    while (device >= g->first[rank + 1])
        rank++;
    return rank;
}

/* Values that each rank sends when a group is created. */
typedef struct ds__hello {
    uint64_t owns;
    uint64_t type;     /* of its devices */
    uint64_t id;       /* of the group; that of rank 0 counts */
    uint64_t flags;    /* that must agree */
    uint64_t world;    /* rank of the file of the flight recorder, or of the group */
    uint64_t distinct; /* 1: no device repeats */
} ds__hello;

/* Checks that the ranks agree, and numbers the devices of the group. */
static ds_result ds__group_number(ds__group *g, const ds__hello *all) {
    g->id = all[0].id;
    for (int i = 0; i < g->size; i++) {
        if (all[i].type != all[0].type)
            return ds__fail(DS_ERR_CROSS_DRIVER,
                            "rank 0 has devices of type %s, rank %d of type %s",
                            ds__type_name((int)all[0].type), i, ds__type_name((int)all[i].type));
        if (all[i].flags != all[0].flags)
            return ds__fail(DS_ERR_MISMATCH,
                            "rank 0 has flags %#llx, rank %d has %#llx; they must agree",
                            (unsigned long long)all[0].flags, i, (unsigned long long)all[i].flags);
        g->first[i + 1] = g->first[i] + (size_t)all[i].owns;
        g->world[i] = (int)all[i].world;
    }
    g->devices = g->first[g->size];
    return DS_OK;
}

/* Returns 1 if the engine makes the devices members of a communicator: a rank has several, and no
   rank has one twice. */
static int ds__group_has_each(const ds__group *g, const ds__hello *all) {
    int distinct = 1;
    for (int i = 0; i < g->size; i++)
        distinct &= all[i].distinct != 0;
    return g->engine->join && distinct && g->devices > (size_t)g->size;
}

/* Gathers `bytes` of each rank on all ranks. *out: them in the order of the ranks, in memory that
   the caller frees with ds__host_free. */
static ds_result ds__group_gather(ds__group *g, const void *mine, size_t bytes, uint64_t deadline,
                                  void **out) {
    size_t n = (size_t)g->size;
    size_t all = ((n + 1) * bytes + 15) & ~(size_t)15;
    char *at = ds__host_alloc(all + 2 * n * sizeof(size_t));
    *out = NULL;
    if (!at)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", g->size);
    size_t *parts = (size_t *)(void *)(at + all);
    for (size_t i = 0; i < n; i++) {
        parts[i] = bytes;
        parts[n + i] = i * bytes;
    }
    memcpy(at + n * bytes, mine, bytes);
    ds__net_op gather = {
        .kind = DS__NET_ALL_GATHER, .in = at + n * bytes, .out = at, .parts = { parts, parts + n }
    };
    ds_result r = ds__net_wait(g, &gather, deadline, "creation of a group");
    if (r == DS_OK)
        *out = at;
    else if (g->engine->cancels) /* else the engine may still use the memory */
        ds__host_free(at);
    return r;
}

/* Returns in *out_all whether `mine` is 1 on all ranks. */
static ds_result ds__group_agree(ds__group *g, int mine, uint64_t deadline, int *out_all) {
    char own = (char)mine;
    void *all;
    ds_result r = ds__group_gather(g, &own, 1, deadline, &all);
    *out_all = r == DS_OK && !memchr(all, 0, (size_t)g->size);
    ds__host_free(all);
    return r;
}

/* Makes the devices of all ranks members of a communicator. If the engine cannot do that, for
   example since two ranks have one device, the members stay the ranks. */
static ds_result ds__group_join(ds__group *g, uint64_t deadline) {
    char mine[DS__RANKS_KEY] = { 0 };
    void *keys;
    ds_result r = DS_OK;
    g->each = ds__host_alloc((g->devices + 1) * sizeof *g->each);
    if (!g->each)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group of %zu devices", g->devices);
    for (size_t k = 0; k <= g->devices; k++)
        g->each[k] = k;
    if (g->rank == 0)
        r = g->engine->key(mine);
    if (r == DS_OK)
        r = ds__group_gather(g, mine, sizeof mine, deadline, &keys);
    if (r < 0)
        return r;
    ds__net_devices devices = { g->own, g->owns, g->first[g->rank], g->devices };
    int all = 0;
    ds__quiet outer = ds__quiet_begin();
    int joined = g->engine->join(g->comm, keys, &devices, deadline) == DS_OK; /* that of rank 0 */
    ds__quiet_end(&outer);
    ds__host_free(keys);
    r = ds__group_agree(g, joined, deadline, &all);
    if (r < 0 || all)
        return r;
    ds__log_warn("process group \"%s\": the devices of a rank take part through its first one: %s",
                 ds__group_name(g), joined ? "another rank has failed" : ds__quiet_reason());
    g->engine->leave(g->comm);
    ds__host_free(g->each);
    g->each = NULL;
    return DS_OK;
}

/* Returns 1 if no device of this rank repeats. */
static int ds__group_is_distinct(const ds__group *g) {
    int distinct = 1;
    for (size_t i = 0; i < g->owns; i++)
        for (size_t k = 0; k < i; k++)
            distinct &= ds__device_key(g->own[i]) != ds__device_key(g->own[k]);
    return distinct;
}

/* Exchanges the numbers of devices. */
static ds_result ds__group_meet(ds__group *g, uint64_t deadline) {
    size_t n = (size_t)g->size;
    void *all;
    g->first = ds__host_alloc((n + 1) * sizeof *g->first);
    g->world = ds__host_alloc(n * sizeof *g->world);
    if (!g->first || !g->world)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", g->size);
    ds__hello mine = { .owns = g->owns,
                       .type = (uint64_t)g->own[0].type,
                       .id = g->id,
                       .flags = g->flags & DS_RANKS_COMPARE,
                       .distinct = (uint64_t)ds__group_is_distinct(g),
                       .world = (uint64_t)(g->recorder ? g->recorder->header->rank : g->rank) };
    ds_result r = ds__group_gather(g, &mine, sizeof mine, deadline, &all);
    if (r == DS_OK)
        r = ds__group_number(g, all);
    int joins = r == DS_OK && ds__group_has_each(g, all);
    ds__host_free(all);
    return joins ? ds__group_join(g, deadline) : r;
}

static void ds__group_free_op(ds__rop *op) {
    ds__host_free(op->tables);
    ds__host_free(op->signatures);
    ds__host_free(op);
}

static void ds__group_free_list(ds__rtemp *list) {
    while (list) {
        ds__rtemp *next = list->next;
        ds__host_free(list);
        list = next;
    }
}

/* Frees the resources of a group. No operation of its list is used any more. */
static void ds__group_clear(ds__group *g) {
    atomic_fetch_sub(&ds__drive.groups, g->counted);
    if (g->comm && !atomic_load(&g->graphs))
        g->engine->destroy(g->comm, atomic_load(&g->failed));
    else if (g->comm)
        ds__log_warn("graphs still have operations of process group \"%s\", whose communicator is "
                     "leaked; destroy the graphs before ds_shutdown",
                     ds__group_name(g));
    if (g->timeline)
        g->driver->timeline_destroy(g->timeline);
    while (g->free_ops) {
        ds__rop *op = g->free_ops;
        g->free_ops = op->next;
        ds__group_free_op(op);
    }
    while (g->head) {
        ds__rop *op = g->head;
        g->head = op->next;
        ds__group_free_op(op);
    }
    ds__group_free_list(g->temps); /* the allocator frees the memory */
    ds__group_free_list(g->free_temps);
    ds__recorder_close(g->recorder);
    ds__host_free(g->first);
    ds__host_free(g->each);
    ds__host_free(g->world);
    ds__host_free(g->own);
    ds__host_free(g->label);
    ds__mutex_destroy(&g->calls);
    ds__mutex_destroy(&g->lock);
}

/* Copies devices, label and options to a group. */
static ds_result ds__group_describe(ds__group *g, const ds_ranks_desc *desc) {
    g->owns = desc->device_count;
    g->own = ds__host_alloc(g->owns * sizeof *g->own);
    g->label = desc->label ? ds__copy_text(desc->label, 63) : NULL;
    if (!g->own || (desc->label && !g->label))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group");
    for (size_t i = 0; i < g->owns; i++) {
        ds_result r = ds__device_resolve(desc->devices[i], &g->own[i]);
        if (r < 0)
            return r;
    }
    g->driver = ds__driver_of(g->own[0]);
    g->gpu = g->driver->type == DS_DEVICE_CUDA && g->engine->reaches(DS__NET_EXCHANGE);
    g->flags = desc->flags;
    g->timeout_ns = desc->timeout_ns;
    return DS_OK;
}

/* Loads the kernels of collectives on the group's GPUs. Called before the group has operations:
   CUDA loads a module when all work of the device is complete (docs/gpu, R2). If ranks share a GPU,
   this would be never while an operation waits for the rank that loads. */
static void ds__group_load(const ds__group *g) {
    for (size_t i = 0; g->driver->type == DS_DEVICE_CUDA && i < g->owns; i++)
        ds__comm_load(g->own[i]);
}

/* Arguments of ds__group_create. */
typedef struct ds__group_start {
    const ds__ranks_engine *engine;
    ds__net_comm comm;
    uint64_t id;                   /* a proposal; that of rank 0 counts */
    struct ds__recorder *recorder; /* NULL, or with a use for the group */
    uint64_t deadline;
} ds__group_start;

/* Creates a group of a communicator, which becomes the group's also on failure. */
static ds_result ds__group_create(const ds__group_start *start, const ds_ranks_desc *desc,
                                  ds_ranks *out) {
    uint64_t base = 0;
    ds__group *g = ds__table_add(&ds__ranks.table);
    if (!g) {
        start->engine->destroy(start->comm.comm, 1);
        ds__recorder_close(start->recorder);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group");
    }
    g->engine = start->engine;
    g->comm = start->comm.comm;
    g->rank = start->comm.rank;
    g->size = start->comm.size;
    g->id = start->id;
    g->recorder = start->recorder;
    g->made = ds__tls.site;
    ds__mutex_init(&g->calls);
    ds__mutex_init(&g->lock);
    ds_result r = ds__group_describe(g, desc);
    if (r == DS_OK) {
        ds__group_load(g);
        r = ds__group_meet(g, start->deadline);
    }
    if (r == DS_OK)
        r = g->driver->timeline_create(&g->timeline, &base);
    if (r < 0) {
        atomic_store(&g->failed, 1);
        ds__table_invalidate(&ds__ranks.table, g);
        ds__table_reclaim(&ds__ranks.table);
        return r;
    }
    if (g->engine->enqueue)
        atomic_store(&ds__drive.look_fn, ds__ranks_look);
    atomic_fetch_add(&ds__drive.groups, g->size > 1);
    g->counted = g->size > 1;
    g->listed = base;
    g->base = base;
    atomic_store(&g->passed, base);
    ds__group_record(g);
    ds__mutex_lock(&ds__ranks.lock);
    g->next = ds__ranks.groups;
    ds__ranks.groups = g;
    ds__mutex_unlock(&ds__ranks.lock);
    out->id = ds__handle_of(&g->slot);
    return DS_OK;
}

/* Called when no thread has a pin of the group any more. */
static void ds__group_freed(void *object) {
    ds__group_clear(object);
}

/* Frees the temporary memory of operations that have passed. */
static void ds__group_free_temps(ds__group *g, uint64_t passed) {
    for (ds__rtemp **at = &g->temps; *at;) {
        ds__rtemp *t = *at;
        ds_result r;
        if (t->number > passed) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        if (t->pinned)
            DS__KEEPING(r, (ds_mem_pinned_free)(t->ptr));
        else
            DS__KEEPING(r, (ds_mem_free)(t->ptr));
        DS_IGNORE(r);
        t->next = g->free_temps;
        g->free_temps = t;
    }
}

/* Takes a group out of the list of the process. */
static void ds__group_unlist(ds__group *g) {
    ds__mutex_lock(&ds__ranks.lock);
    ds__group **at = &ds__ranks.groups;
    while (*at && *at != g)
        at = &(*at)->next;
    if (*at)
        *at = g->next;
    ds__mutex_unlock(&ds__ranks.lock);
}

/* Returns the number of the last operation of the group. */
static uint64_t ds__group_listed(ds__group *g) {
    ds__spinlock_lock(&g->list_lock);
    uint64_t listed = g->listed;
    ds__spinlock_unlock(&g->list_lock);
    return listed;
}

/* Returns the number of the last operation that is complete. */
static uint64_t ds__group_passed(ds__group *g) {
    int asks = g->engine->enqueue && !atomic_load(&g->failed);
    return asks ? g->driver->timeline_get(g->timeline) : atomic_load(&g->passed);
}

/* Waits until all operations have passed, or the group has failed. Returns 0 at the deadline. */
static int ds__group_drain(ds__group *g, uint64_t deadline) {
    uint64_t nap = 2000;
    while (!atomic_load(&g->failed) && atomic_load(&g->passed) < ds__group_listed(g)) {
        if (ds__now_ns() > deadline)
            return 0;
        ds__group_drive(g);
        ds__os_sleep(nap);
        nap = nap < 500000 ? nap * 2 : nap;
    }
    return 1;
}

/* Waits until all operations of the group have passed, so that the engine can be used between
   them. `calls` is held. */
static ds_result ds__group_settle(ds__group *g, uint64_t deadline) {
    if (!ds__group_drain(g, deadline))
        return ds__fail(DS_ERR_TIMEOUT,
                        "earlier operations of group \"%s\" are not complete within the time "
                        "limit",
                        ds__group_name(g));
    return ds__group_report(g);
}

/* Returns the number of a group that was made of group `parent`; 0: a number of its own. */
static uint64_t ds__ranks_id(uint64_t parent, uint32_t number, int color) {
    if (!parent)
        return ds__os_cookie();
    uint64_t words[3] = { parent, number, (uint64_t)(int64_t)color };
    return ds__hash(words, sizeof words);
}

/* Ends a group whose handle was found; the caller has a pin, which ends, too. A group that has
   failed keeps a reference, and with it its memory, until ds_shutdown: operations may not have
   arrived yet. */
static void ds__group_end(ds__group *g) {
    atomic_store(&g->finalized, 1);
    (void)ds__group_drain(g, UINT64_MAX);
    if (atomic_load(&g->failed))
        ds__ref(g);
    else
        ds__group_free_temps(g, UINT64_MAX);
    ds__group_unlist(g);
    while (atomic_load(&g->users))
        ds__os_yield();
    ds__table_invalidate(&ds__ranks.table, g);
    ds__group_unpin(g);
    ds__table_reclaim(&ds__ranks.table);
}

/* ranks/run.h - operations of the engine on streams.

   Takes an operation of a group (ds__rop_take) and enqueues it on a stream (ds__rop_submit).

   Invariants: an operation that was taken is submitted, or given back (ds__rop_give_back). If it
   cannot be enqueued, the group fails, since the other ranks will wait for this one.
   Locks: `calls` of the group is held.
   Threads: any. */

/* Returns an operation with room for tables at `tables`; NULL: no memory; the error is stored. */
static ds__rop *ds__rop_take(ds__group *g, size_t table_bytes) {
    ds__spinlock_lock(&g->list_lock);
    ds__rop *op = g->free_ops;
    if (op)
        g->free_ops = op->next;
    ds__spinlock_unlock(&g->list_lock);
    if (!op)
        op = ds__host_alloc(sizeof *op);
    if (op && op->table_bytes < table_bytes) {
        ds__host_free(op->tables);
        op->tables = ds__host_alloc(table_bytes);
        op->table_bytes = op->tables ? table_bytes : 0;
    }
    if (!op || op->table_bytes < table_bytes) {
        ds__host_free(op);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an operation of group \"%s\"",
                 ds__group_name(g));
        return NULL;
    }
    op->used_bytes = table_bytes;
    op->remote = (ds__remote){ .begin_fn = ds__rop_begin };
    op->group = g;
    op->next = NULL;
    op->arrived = 0;
    op->state = DS__ROP_LISTED;
    op->spin = 0;
    op->dropped = 0;
    op->arrival = 0;
    op->word = NULL;
    op->members = NULL;
    op->streams = NULL;
    ds__host_free(op->signatures);
    op->signatures = NULL;
    memset(&op->net, 0, sizeof op->net);
    return op;
}

/* Adds an operation to its group, and gives it its number. */
static void ds__rop_add(ds__rop *op) {
    ds__group *g = op->group;
    op->enqueued = ds__now_ns();
    ds__spinlock_lock(&g->list_lock);
    op->number = ++g->listed;
    g->operations++;
    if (op->call.kind != DS__NET_EXCHANGE)
        g->collectives++;
    op->ticket = ds__rop_record(g, op);
    if (g->last_fresh)
        g->last_fresh->next = op;
    else
        g->fresh = op;
    g->last_fresh = op;
    ds__spinlock_unlock(&g->list_lock);
}

/* Returns the text of an error without its call, which stands before it. */
static const char *ds__error_reason(const ds__kept_error *error) {
    const char *call = strstr(error->text, ": ds_");
    const char *reason = call ? strstr(call + 2, ": ") : NULL;
    return reason ? reason + 2 : error->text;
}

/* Fails the group, since an operation could not be enqueued. */
static ds_result ds__rop_refused(ds__rop *op, ds_result r) {
    ds__group *g = op->group;
    int taken = atomic_load(&op->remote.taken);
    ds__kept_error error;
    ds__error_save(&error);
    ds__mutex_lock(&g->lock);
    ds__group_fail_op(g, op, r, "%s", ds__error_reason(&error));
    ds__mutex_unlock(&g->lock);
    if (op->number && !taken)
        (void)ds__rop_begin(&op->remote, DS__REMOTE_FAILED);
    ds__error_restore(&error);
    return r;
}

/* Submits the work of an operation; the stream must not capture. */
static ds_result ds__rop_enqueue(ds__stream *s, const ds__op *o) {
    ds_result r = ds__stream_submit(s, o);
    return r == DS__CHANGED
               ? ds__fail(DS_ERR_CAPTURE_UNSUPPORTED, "another thread began to capture the stream")
               : r;
}

/* Lets the engine enqueue an operation on a native stream (base/operation.h). */
static ds_result ds__rop_enqueue_native(ds__remote *remote, void *native) {
    ds__rop *op = (ds__rop *)(void *)remote;
    ds_result r = op->group->engine->enqueue(op->group->comm, &op->net, native, op->members,
                                             ds__rop_deadline(op));
    op->ended = r < 0;
    return r;
}

static ds_result ds__rop_enqueue_nothing(ds__remote *remote, void *native) {
    (void)remote;
    (void)native;
    return DS_OK;
}

/* Passes the number of an operation on several streams when all of them are behind it. */
static ds_result ds__rop_pass_late(ds__rop *op, ds__stream *s, ds__op *o) {
    ds_stream lead = { ds__handle_of(&s->slot) };
    ds_result r = DS_OK;
    for (size_t i = 0; i < op->stream_count && r == DS_OK; i++)
        if (op->streams[i].id != lead.id)
            r = ds__wait_stream(lead, op->streams[i]);
    if (r < 0)
        return r;
    op->remote.enqueue_fn = ds__rop_enqueue_nothing;
    o->u.remote.timeline = op->group->timeline;
    o->u.remote.bytes = 0;
    return ds__rop_enqueue(s, o);
}

/* Enqueues an operation of an engine that enqueues its operations itself. captures: it becomes a
   part of a graph, and the group does not know its launches. */
static ds_result ds__rop_submit_native(ds__rop *op, ds__stream *s, size_t bytes, int captures) {
    ds__group *g = op->group;
    ds_result r = DS_OK;
    op->remote.enqueue_fn = ds__rop_enqueue_native;
    op->ended = 0;
    op->number = 0;
    if (captures)
        op->enqueued = ds__now_ns();
    else
        ds__rop_add(op);
    if (!captures && g->flags & DS_RANKS_COMPARE && op->call.kind != DS__NET_EXCHANGE)
        r = ds__rop_compare(g, op);
    ds__op o = ds__op_init(DS__OP_REMOTE | (captures ? 0 : DS__OP_OUTSIDE << 8));
    o.u.remote.begin = &op->remote;
    o.u.remote.timeline = captures || op->streams ? NULL : g->timeline;
    o.u.remote.upto = op->number;
    o.u.remote.name = ds__net_names[op->call.kind];
    o.u.remote.bytes = bytes;
    if (r == DS_OK)
        r = ds__rop_enqueue(s, &o);
    if (r == DS_OK && op->streams)
        r = ds__rop_pass_late(op, s, &o);
    if (captures) {
        if (r < 0 && op->ended)
            DS_IGNORE(ds__rop_refused(op, r));
        ds__rop_give_back(op);
        return r;
    }
    if (r < 0)
        return ds__rop_refused(op, r);
    atomic_fetch_add(&ds__drive.open, 1);
    atomic_store(&op->arrived, 1);
    atomic_fetch_add(&g->news, 1);
    ds__ranks_wake(1);
    return DS_OK;
}

/* Enqueues an operation, which moves this many bytes, on a stream, and the wait for it. number:
   NULL, or the operation is enqueued without the wait, and *number is for ds__rop_wait. */
static ds_result ds__rop_submit(ds__rop *op, ds__stream *s, size_t bytes, uint64_t *number) {
    ds__group *g = op->group;
    if (g->engine->enqueue)
        return ds__rop_submit_native(op, s, bytes, 0);
    op->spin = bytes <= DS__RANKS_SPIN_BYTES;
    ds__rop_add(op);
    ds__op o = ds__op_init(DS__OP_REMOTE | (DS__OP_OUTSIDE | DS__OP_PROMPT) << 8);
    o.u.remote.begin = &op->remote;
    o.u.remote.timeline = number ? NULL : g->timeline;
    o.u.remote.upto = op->number;
    o.u.remote.name = ds__net_names[op->call.kind];
    o.u.remote.bytes = bytes;
    if (number)
        *number = op->number;
    ds_result r = ds__rop_enqueue(s, &o);
    return r < 0 ? ds__rop_refused(op, r) : DS_OK;
}

/* Makes a stream wait for the operations of the group up to a number, which belong to a call. */
static ds_result ds__rop_wait(const ds__group *g, ds__stream *s, const ds__rcall *call,
                              uint64_t number) {
    ds__op o = ds__op_init(DS__OP_REMOTE | DS__OP_OUTSIDE << 8);
    o.u.remote.begin = NULL;
    o.u.remote.timeline = g->timeline;
    o.u.remote.upto = number;
    o.u.remote.name = ds__net_names[call->kind];
    return ds__rop_enqueue(s, &o);
}

/* ranks/capture.h - operations of a group in graphs.

   Captures an operation (ds__capture_rop): a host function node that starts it, and a node that
   waits for a word in pinned memory.

   Policy: each launch that gets to the host function makes a new operation of the group, whose
   number and place in the order are those of this moment. If the group has failed or was finalized,
   the operation is skipped and the graph continues; ds_ranks_get_status reports the
   failure.

   Invariants: a graph launches one after the other, so one operation at a time uses the word. The
   group lives as long as the graphs, or until ds_shutdown, which ends groups before graphs.
   Locks: `capture_lock` guards the list of captured operations; under it, only the locks of the
   table of groups and of the list of words are taken. The host function takes the list lock of the
   group.
   Threads: ds__capture_rop: the caller's. The host function runs on threads of the driver. */

typedef struct ds__rcapture {
    struct ds__rcapture *next; /* in ds__ranks.captures */
    ds__group *group;          /* with a reference; NULL after ds_shutdown */
    ds__rcall call;
    ds__net_op net;
    uint64_t *word; /* pinned; NULL: the graph has calls of the engine */
    size_t table_bytes;
    _Alignas(16) char tables[];
} ds__rcapture;

/* Returns an address in a copy of tables. */
static const void *ds__rcapture_moved(const void *at, const void *from, void *to) {
    return at ? (char *)to + ((const char *)at - (const char *)from) : NULL;
}

/* Copies the description of an operation whose tables were copied from `from` to `to`. */
static void ds__rcapture_copy(ds__net_op *net, const void *from, void *to) {
    net->parts.bytes = ds__rcapture_moved(net->parts.bytes, from, to);
    net->parts.at = ds__rcapture_moved(net->parts.at, from, to);
    net->out_parts.bytes = ds__rcapture_moved(net->out_parts.bytes, from, to);
    net->out_parts.at = ds__rcapture_moved(net->out_parts.at, from, to);
    net->transfers = ds__rcapture_moved(net->transfers, from, to);
}

/* The host function: makes and begins the operation. */
static void ds__rcapture_run(void *user) {
    ds__rcapture *c = user;
    ds__rop *op = NULL;
    __atomic_store_n(c->word, 0, __ATOMIC_SEQ_CST);
    if (!atomic_load(&c->group->failed) && !atomic_load(&c->group->finalized))
        op = ds__rop_take(c->group, c->table_bytes);
    if (!op) {
        __atomic_store_n(c->word, 1, __ATOMIC_SEQ_CST);
        return;
    }
    op->call = c->call;
    op->net = c->net;
    op->word = c->word;
    if (c->table_bytes)
        memcpy(op->tables, c->tables, c->table_bytes);
    ds__rcapture_copy(&op->net, c->tables, op->tables);
    if (op->net.transfers)
        op->transfers =
            (ds__rtransfer *)(void *)((ds__net_transfer *)op->tables + op->net.transfer_count);
    ds__rop_add(op);
    (void)ds__rop_begin(&op->remote, DS__REMOTE_ARRIVED);
}

/* Takes a word without users, or allocates one. */
static ds_result ds__rword_take(void **out) {
    ds__spinlock_lock(&ds__ranks.failure_lock);
    ds__rword *word = ds__ranks.words;
    if (word)
        ds__ranks.words = word->next;
    ds__spinlock_unlock(&ds__ranks.failure_lock);
    *out = word;
    return word ? DS_OK : ds__pinned_segment_alloc(sizeof *word, out);
}

static void ds__rword_give_back(void *at) {
    ds__rword *word = at;
    ds__spinlock_lock(&ds__ranks.failure_lock);
    word->next = ds__ranks.words;
    ds__ranks.words = word;
    ds__spinlock_unlock(&ds__ranks.failure_lock);
}

/* Frees the words. Called by ds_shutdown. */
static void ds__rwords_deinit(void) {
    for (ds__rword *word; (word = ds__ranks.words) != NULL;) {
        ds__ranks.words = word->next;
        DS_IGNORE(ds__segment_end(word, DS_MEMORY_PINNED, 1));
    }
}

/* Describes memory of the engine for observers. */
static ds__seen_operand ds__rcapture_operand(const void *at, size_t bytes, int writes) {
    return (ds__seen_operand){
        .ptr = at, .bytes = bytes, .width = bytes, .reads = !writes, .writes = writes
    };
}

/* Returns the bytes of the parts of all ranks. */
static size_t ds__rcapture_bytes(const ds__rcapture *c, const ds__net_parts *parts) {
    size_t bytes = 0;
    for (int i = 0; parts->bytes && i < c->group->size; i++)
        bytes += parts->bytes[i];
    return bytes;
}

/* Describes the memory of a collective on this rank: its input and its output. */
static void ds__rcapture_collective(const ds__rcapture *c, ds__seen_operand *in,
                                    ds__seen_operand *out) {
    const ds__net_op *net = &c->net;
    int root = net->root == c->group->rank;
    size_t item = (ds_dtype_get_size)(net->dtype);
    size_t all = ds__rcapture_bytes(c, &net->parts);
    size_t mine = net->parts.bytes ? net->parts.bytes[c->group->rank] : 0;
    size_t reads = net->count;
    size_t writes = net->count;
    switch (net->kind) {
    case DS__NET_ALL_REDUCE:
    case DS__NET_REDUCE:
        reads = net->count * item;
        writes = net->kind == DS__NET_ALL_REDUCE || root ? reads : 0;
        break;
    case DS__NET_BROADCAST:
        reads = 0;
        break;
    case DS__NET_ALL_GATHER:
        reads = mine;
        writes = all;
        break;
    case DS__NET_GATHER:
        writes = all;
        break;
    case DS__NET_SCATTER:
        reads = all;
        break;
    case DS__NET_REDUCE_SCATTER:
        reads = all;
        writes = mine;
        break;
    case DS__NET_ALL_TO_ALL:
        reads = all;
        writes = ds__rcapture_bytes(c, &net->out_parts);
        break;
    default:
        reads = writes = 0;
        break;
    }
    *in = ds__rcapture_operand(net->in, reads, 0);
    *out = ds__rcapture_operand(net->out, writes, net->kind != DS__NET_BROADCAST || !root);
}

/* Notifies observers of the captured operation. */
__attribute__((cold, noinline)) static void ds__rcapture_observe(const ds__rcapture *c) {
    size_t n = c->net.transfer_count > 2 ? c->net.transfer_count : 2;
    ds__seen_operand *list = ds__host_alloc(n * sizeof *list);
    if (!list)
        return;
    ds__rcapture_collective(c, &list[0], &list[1]);
    for (size_t i = 0; i < c->net.transfer_count; i++) {
        const ds__net_transfer *t = &c->net.transfers[i];
        list[i] = ds__rcapture_operand(t->at, t->bytes, t->receive);
    }
    ds__observer_notify(&(ds__seen){
        .kind = DS__SEEN_CAPTURE, .ptr = c, .word = c->word, .operand = list, .operands = n });
    ds__host_free(list);
}

/* Runs when the last graph is gone; on CUDA, on a thread that may not call CUDA, also after
   ds_shutdown. */
static void ds__rcapture_end(void *user) {
    ds__rcapture *c = user;
    if (c->word && ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_CAPTURE_END, .ptr = c, .word = c->word });
    ds__spinlock_lock(&ds__ranks.capture_lock);
    if (c->group) {
        ds__rcapture **at = &ds__ranks.captures;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        if (c->word)
            ds__rword_give_back(c->word);
        else
            atomic_fetch_sub(&c->group->graphs, 1);
        ds__unref(&ds__ranks.table, c->group);
    }
    ds__spinlock_unlock(&ds__ranks.capture_lock);
    ds__host_free(c);
}

/* Returns 1 if graphs have calls of the engine. */
static int ds__rcaptures_native(void) {
    int found = 0;
    ds__spinlock_lock(&ds__ranks.capture_lock);
    for (const ds__rcapture *c = ds__ranks.captures; c && !found; c = c->next)
        found = !c->word;
    ds__spinlock_unlock(&ds__ranks.capture_lock);
    return found;
}

/* Takes the groups and words of the captured operations that graphs still have. In ds_shutdown,
   which ends groups before graphs. CUDA tells of the end of a graph later, on a thread: the
   communicators of graphs that were destroyed shortly before are not leaked. */
static void ds__rcaptures_deinit(void) {
    uint64_t until = ds__now_ns() + 100000000u;
    while (ds__rcaptures_native() && ds__now_ns() < until)
        ds__os_sleep(200000);
    ds__spinlock_lock(&ds__ranks.capture_lock);
    for (ds__rcapture *c; (c = ds__ranks.captures) != NULL;) {
        ds__ranks.captures = c->next;
        c->group = NULL;
        if (c->word)
            ds__rword_give_back(c->word);
    }
    ds__spinlock_unlock(&ds__ranks.capture_lock);
}

/* Captures an operation, which is given back. tables: bytes of its tables. */
static ds_result ds__capture_rop(ds_stream stream, ds__rop *op, size_t tables) {
    ds_result r;
    void *word = NULL;
    ds__rcapture *c = ds__host_alloc(sizeof *c + tables);
    r = c ? ds__rword_take(&word)
          : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a captured operation");
    if (r < 0) {
        ds__host_free(c);
        ds__rop_give_back(op);
        return r;
    }
    c->group = op->group;
    ds__ref(c->group);
    c->call = op->call;
    c->net = op->net;
    c->word = word;
    c->table_bytes = tables;
    if (tables)
        memcpy(c->tables, op->tables, tables);
    ds__rcapture_copy(&c->net, op->tables, c->tables);
    ds__rop_give_back(op);
    ds__spinlock_lock(&ds__ranks.capture_lock);
    c->next = ds__ranks.captures;
    ds__ranks.captures = c;
    ds__spinlock_unlock(&ds__ranks.capture_lock);
    if (ds__observer_is_set())
        ds__rcapture_observe(c);
    DS__KEEPING(r, (ds_stream_launch_host_func)(stream, ds__rcapture_run, c, ds__rcapture_end));
    if (r == DS_OK)
        DS__KEEPING(r, (ds_stream_wait_value64)(stream, word, 1, DS_VALUE_WAIT_EQ));
    return r;
}

/* Captures an operation of an engine that enqueues its operations. The graph keeps the group, since
   NCCL does not end a communicator that graphs use. */
static ds_result ds__capture_native(ds_stream stream, ds__stream *s, ds__rop *op, size_t bytes) {
    ds_capture_info info;
    ds_result r;
    ds__rcapture *c = NULL;
    memset(&info, 0, sizeof info);
    DS__KEEPING(r, (ds_capture_get_info)(stream, &info));
    if (r == DS_OK && info.graph.id) { /* else another library captures */
        c = ds__host_alloc(sizeof *c);
        r = c ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a captured operation");
    }
    if (c) {
        c->group = op->group;
        ds__ref(c->group);
        atomic_fetch_add(&c->group->graphs, 1);
        ds__spinlock_lock(&ds__ranks.capture_lock);
        c->next = ds__ranks.captures;
        ds__ranks.captures = c;
        ds__spinlock_unlock(&ds__ranks.capture_lock);
        DS__KEEPING(r, (ds_graph_attach)(info.graph, c, ds__rcapture_end));
    }
    if (r == DS_OK)
        return ds__rop_submit_native(op, s, bytes, 1);
    ds__rop_give_back(op);
    return r;
}

/* ranks/stage.h - a collective of a group on the streams of this rank.

   Opens a call (ds__stage_open): group, streams and tensors. Enqueues operations of the engine
   (ds__stage_net). ds__stage_close ends the call. ranks/stage_memory.h has the memory of a call,
   ranks/steps.h its operations.

   Policy:
   1. The rank is one member of the communicator, or each of its devices is one
      (ds__stage_member). The stream of a member's first device leads: operations of the engine are
      on it. Before the first one it waits for the member's other streams, and at the end they wait
      for it.
   2. The engine reads and writes contiguous tensors in place if it reaches their memory
      (ds__reach). Everything else is copied: strided tensors, and memory of a GPU through pinned
      memory if the engine does not reach it.
   3. Temporary memory is freed by a later call, when its operation has passed: an operation that
      was abandoned may still use it.

   Invariants: the engine's memory is ready when the leading stream reaches the operation. Arguments
   are checked before anything is enqueued.
   Locks: `calls` of the group is held from ds__stage_open to ds__stage_close.
   Threads: caller's threads. */

enum { DS__STAGE_DEVICES = 4 }; /* devices of a rank for which a call allocates no memory */

/* A tensor of a call. */
typedef struct ds__stile {
    ds__dims d;
    ds_tensor t;   /* as it was passed */
    size_t device; /* index among those of the rank: whose stream uses it */
    int receives;  /* 1: an input that a transfer writes */
} ds__stile;

/* Contiguous memory of a call. */
typedef struct ds__smem {
    void *at;
    int host;      /* 1: host memory */
    size_t device; /* else: index among those of the rank */
} ds__smem;

/* Memory that an engine can use in an operation. */
typedef enum ds__reach {
    DS__REACH_HOST, /* of the host; pinned for the copies of GPUs */
    DS__REACH_LEAD, /* of the member's leading device */
    DS__REACH_ALL   /* of the host and all devices of the rank */
} ds__reach;

/* A member of the communicator on this rank. */
typedef struct ds__stage_member {
    size_t number;  /* in the communicator */
    size_t leading; /* index of its leading stream; DS__STAGE_NONE: it takes no part */
    ds__stile *in;  /* its tensors */
    ds__stile *out;
    size_t ins;
    size_t outs;
    ds__smem from; /* memory of its operation */
    ds__smem to;
    ds__stile *flat; /* all_to_all: contiguous forms of `in`, then of `out` */
} ds__stage_member;

#define DS__STAGE_NONE SIZE_MAX

typedef struct ds__stage {
    ds__group *g;
    const ds_comm_options *options;
    const ds_ranks_options *more; /* of the options; never NULL */
    ds__rcall call;
    size_t count; /* devices of this rank; of an exchange, transfers */
    const ds_device *own;
    const size_t *device_of; /* of an exchange: the device of each transfer; else NULL */
    ds_stream *stream;
    ds__stream *lead; /* pinned: the operations of the rank are submitted on it */
    ds__reach reach;  /* memory that the engine can use */
    int root;         /* member that has the single tensor */
    int dim;          /* that is split or joined */
    struct ds__slices *slices;
    size_t moved; /* bytes of the step on this rank */

    int size;            /* members of the communicator */
    const size_t *first; /* the first device of each, and their number */
    int each;            /* 1: its members are devices */
    size_t members;      /* those of this rank */
    ds__stage_member *member;
    ds__stage_member one;   /* storage of a single one */
    ds__stage_member whole; /* all tensors, as if the rank were one member */

    /* of the selected member, or of `whole` (ds__stage_select) */
    ds__stage_member *at;
    int me;         /* its number */
    size_t leading; /* index of its leading stream; `count`: one without a tensor */
    ds__stile *in;
    ds__stile *out;
    size_t ins;
    size_t outs;

    int capturing;
    int joined;   /* 1: the leading stream has waited for the others */
    int opened;   /* 1: `calls` is held */
    int observed; /* 1: observers know of the call */
    int enqueued; /* 1: an operation of the engine is */
    unsigned step;
    ds__rtemp *temps; /* of this call */
    void *chunks;     /* memory of the call; each begins with the address of the previous one */
    ds_stream stream_first[DS__STAGE_DEVICES];
    ds__stile tile_first[2];
    size_t used; /* of `room`, in which the first allocations are */
    _Alignas(16) char room[1024];
} ds__stage;

/* A step of a collective: the collective ends if the step fails. The caller of the collective
   closes the stage. */
#define DS__TRY(step)             \
    do {                          \
        ds_result ds__r = (step); \
        if (ds__r < 0)            \
            return ds__r;         \
    } while (0)

/* Returns memory until ds__stage_close, or NULL with the sentence. */
static void *ds__stage_alloc(ds__stage *st, size_t size) {
    if (size <= sizeof st->room - st->used) {
        void *at = st->room + st->used;
        st->used += (size + 15) & ~(size_t)15;
        return at;
    }
    void **chunk = size < SIZE_MAX - 16 ? ds__host_alloc(size + 16) : NULL;
    if (!chunk) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a collective");
        return NULL;
    }
    *chunk = st->chunks;
    st->chunks = chunk;
    return (char *)chunk + 16;
}

/* ---- members --------------------------------------------------------------------------------- */

/* Selects a member, or `whole`. */
static void ds__stage_select(ds__stage *st, ds__stage_member *m) {
    st->at = m;
    st->me = (int)m->number;
    st->leading = m->leading;
    st->in = m->in;
    st->out = m->out;
    st->ins = m->ins;
    st->outs = m->outs;
}

/* Returns the member to which stream i belongs. */
static ds__stage_member *ds__stage_member_of(const ds__stage *st, size_t i) {
    if (!st->each)
        return &st->member[0];
    return &st->member[st->device_of ? st->device_of[i] : i];
}

/* Returns the index of the leading stream of the rank or, if devices are members, of device m. */
static size_t ds__stage_leader(const ds__stage *st, size_t m) {
    const ds__group *g = st->g;
    size_t i = 0;
    if (st->each && !st->device_of)
        return m;
    if (st->each) {
        while (i < st->count && st->device_of[i] != m)
            i++;
        return i < st->count ? i : DS__STAGE_NONE;
    }
    while (g->engine->enqueue && i < st->count &&
           ds__device_key(st->own[i]) != ds__device_key(g->own[0]))
        i++; /* the engine enqueues behind the group's first device */
    return i;
}

/* Describes the members of this rank, and selects them all. */
static ds_result ds__stage_members(ds__stage *st) {
    const ds__group *g = st->g;
    st->size = st->each ? (int)g->devices : g->size;
    st->first = st->each ? g->each : g->first;
    st->members = st->each ? g->owns : 1;
    st->member = &st->one;
    if (st->members > 1)
        st->member = ds__stage_alloc(st, st->members * sizeof *st->member);
    if (!st->member)
        return DS_ERR_OUT_OF_MEMORY;
    memset(st->member, 0, st->members * sizeof *st->member);
    for (size_t m = 0; m < st->members; m++) {
        st->member[m].leading = ds__stage_leader(st, m);
        st->member[m].number = st->each ? g->first[g->rank] + m : (size_t)g->rank;
    }
    st->whole = (ds__stage_member){ .number = st->member[0].number,
                                    .leading = st->each ? 0 : st->member[0].leading };
    ds__stage_select(st, &st->whole);
    return DS_OK;
}

/* Gives each member its tensors, which lie in the order of their devices. */
static void ds__stage_divide(ds__stage *st) {
    const ds__stage_member *all = &st->whole;
    if (!st->each || st->device_of) {
        st->member[0].in = all->in;
        st->member[0].out = all->out;
        st->member[0].ins = all->ins;
        st->member[0].outs = all->outs;
        return;
    }
    for (size_t i = all->ins; i-- > 0;) {
        st->member[all->in[i].device].in = &all->in[i];
        st->member[all->in[i].device].ins++;
    }
    for (size_t i = all->outs; i-- > 0;) {
        st->member[all->out[i].device].out = &all->out[i];
        st->member[all->out[i].device].outs++;
    }
}

/* ---- opening a call -------------------------------------------------------------------------- */

static ds_result ds__stage_stream(ds__stage *st, size_t i) {
    const ds_comm_options *o = st->options;
    ds_device own = st->own[i];
    ds_device on;
    ds_result r = DS_OK;
    st->stream[i] = o->streams && i < o->stream_count ? o->streams[i] : (ds_stream){ 0 };
    if (!st->stream[i].id)
        return ds__stream_current(own, &st->stream[i]);
    DS__KEEPING(r, (ds_stream_get_device)(st->stream[i], &on));
    if (r == DS_OK && ds__device_key(on) != ds__device_key(own))
        r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                     "streams[%zu] is on %s:%d, but device %zu of this rank is %s:%d", i,
                     ds__type_name(on.type), on.index, i, ds__type_name(own.type), own.index);
    return r;
}

/* Requires that the streams of all members capture, or none. */
static ds_result ds__stage_check_captures(const ds__stage *st) {
    ds_result r = DS_OK;
    for (size_t m = 0; m < st->members && r == DS_OK; m++) {
        ds_capture_info info;
        size_t i = st->member[m].leading;
        if (i == DS__STAGE_NONE)
            continue;
        memset(&info, 0, sizeof info);
        DS__KEEPING(r, (ds_capture_get_info)(st->stream[i], &info));
        if (r == DS_OK && (info.status == DS_CAPTURE_ACTIVE) != st->capturing)
            r = ds__fail(DS_ERR_ILLEGAL_STATE,
                         "the stream of device %zu of this rank %s, but that of another device %s; "
                         "bring both into the capture, for example by ds_stream_wait_stream",
                         m, st->capturing ? "does not capture" : "captures",
                         st->capturing ? "does" : "does not");
    }
    return r;
}

/* Finds out whether the leading stream captures, and refuses a capture that the engine cannot
   record. */
static ds_result ds__stage_check_capture(ds__stage *st) {
    ds_capture_info info;
    if (!st->g->engine->enqueue && !atomic_load(&ds__g.capture_count))
        return DS_OK; /* a capture of another library is refused by the driver */
    memset(&info, 0, sizeof info);
    ds_result r = st->lead->driver->capture_query(st->lead->native, &info);
    st->capturing = info.status == DS_CAPTURE_ACTIVE;
    if (r == DS_OK && st->capturing && !st->g->engine->captures)
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "engine \"%s\": an operation belongs to one call, and the order of calls on "
                     "all ranks; a launch of a graph cannot repeat it. End the capture before",
                     st->g->engine->name);
    return r == DS_OK && st->members > 1 ? ds__stage_check_captures(st) : r;
}

/* Prepares a call, so that ds__stage_close may be called. */
static void ds__stage_init(ds__stage *st, const ds_comm_options *options) {
    static const ds_ranks_options usual = { .sizes = NULL };
    st->options = options;
    st->more = options->ranks_options ? options->ranks_options : &usual;
    st->g = NULL;
    st->own = NULL;
    st->device_of = NULL;
    st->temps = NULL;
    st->chunks = NULL;
    st->lead = NULL;
    st->capturing = st->joined = st->opened = st->observed = st->enqueued = 0;
    st->step = 0;
    st->used = 0;
    st->members = 0;
    st->whole = (ds__stage_member){ .number = 0 };
    ds__stage_select(st, &st->whole);
}

/* Finds out whether the engine reaches the memory of the devices in such an operation. */
static void ds__stage_reach(ds__stage *st, ds__net_kind kind) {
    const ds__group *g = st->g;
    if (g->driver->type == DS_DEVICE_CPU)
        st->reach = DS__REACH_ALL;
    else if (!g->gpu || !g->engine->reaches(kind))
        st->reach = DS__REACH_HOST;
    else
        st->reach = g->engine->enqueue ? DS__REACH_LEAD : DS__REACH_ALL;
}

/* Returns the operation that moves the data of a collective in fixed order. */
static ds__net_kind ds__stage_moves(ds__net_kind kind) {
    int reduces =
        kind == DS__NET_ALL_REDUCE || kind == DS__NET_REDUCE || kind == DS__NET_REDUCE_SCATTER;
    return reduces ? DS__NET_ALL_TO_ALL : kind;
}

static ds_result ds__stage_check_options(const ds__stage *st, int kind) {
    const ds_comm_options *options = st->options;
    DS__REQUIRE_RESERVED("ds_ranks_options", st->more);
    DS__REQUIRE(options->root < st->g->devices,
                "options->root is %zu, but the group has %zu devices", options->root,
                st->g->devices);
    DS__REQUIRE(options->stream_count <= st->count, "%zu streams were passed for %zu %s",
                options->stream_count, st->count,
                kind == DS__NET_EXCHANGE ? "transfers" : "devices of this rank");
    if (DS__LIKELY(!st->more->nccl))
        return DS_OK;
    DS__REQUIRE_RESERVED("ds_ranks_nccl", st->more->nccl);
    return st->g->engine->configures
               ? st->g->engine->configures((ds__net_kind)kind)
               : ds__fail(DS_ERR_UNSUPPORTED, "ranks_options->nccl is set for engine \"%s\"",
                          st->g->engine->name);
}

/* Opens a call on the group of the options, which ds__stage_init has prepared. kind: the operation,
   for messages and the recorder. `own` and `count` are the devices of the streams; NULL: those of
   the rank. A barrier is an operation of the rank. */
static ds_result ds__stage_open(ds__stage *st, int kind) {
    const ds_comm_options *options = st->options;
    ds_result r = DS_OK;
    st->g = ds__group_pin(options->ranks);
    if (!st->g)
        return DS_ERR_INVALID_HANDLE;
    if (!st->own) {
        st->own = st->g->own;
        st->count = st->g->owns;
    }
    st->each = st->g->each && kind != DS__NET_BARRIER;
    r = ds__stage_members(st);
    if (r < 0)
        return r;
    ds__stage_reach(st, ds__stage_moves((ds__net_kind)kind));
    st->call = (ds__rcall){ .fn = ds__tls.fn,
                            .site = ds__tls.site,
                            .kind = kind,
                            .root = options->root,
                            .timeout_ns =
                                st->more->timeout_ns ? st->more->timeout_ns : st->g->timeout_ns };
    r = ds__stage_check_options(st, kind);
    if (r < 0)
        return r;
    st->stream = st->stream_first;
    if (st->count >= DS__STAGE_DEVICES)
        st->stream = ds__stage_alloc(st, (st->count + 1) * sizeof *st->stream);
    if (!st->stream)
        return DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < st->count && r == DS_OK; i++)
        r = ds__stage_stream(st, i);
    if (r == DS_OK && st->leading == st->count)
        r = ds__stream_current(st->own[st->count], &st->stream[st->count]);
    if (r < 0)
        return r;
    st->lead = ds__stream_pin(st->stream[st->leading]);
    if (!st->lead)
        return DS_ERR_INVALID_HANDLE;
    st->call.stream = st->stream[st->leading].id;
    return ds__stage_check_capture(st);
}

/* Reads a tensor of device i of the rank. */
static ds_result ds__stile_read(ds__stage *st, const ds_tensor *tensor, const char *words, size_t i,
                                ds__stile *out) {
    ds__name name = ds__name_of(words, i);
    ds_device own = st->own[i];
    DS__REQUIRE(tensor, "%s is NULL", ds__name_text(name));
    ds_result r = ds__tensor_read(tensor, name, &out->d);
    if (r < 0)
        return r;
    if (out->d.device.type != DS_DEVICE_HOST &&
        ds__device_key(out->d.device) != ds__device_key(own))
        return ds__fail(DS_ERR_DEVICE_MISMATCH,
                        "%s is on %s:%d, but device %zu of this rank is %s:%d", ds__name_text(name),
                        ds__type_name(out->d.device.type), out->d.device.index, i,
                        ds__type_name(own.type), own.index);
    out->t = *tensor;
    out->device = i;
    out->receives = 0;
    return DS_OK;
}

/* Requires one data type. */
static ds_result ds__stage_check_types(const ds__stage *st) {
    char name[2][DS_DTYPE_NAME_SIZE];
    ds_dtype a = st->call.dtype;
    for (size_t i = 0; i < st->ins + st->outs; i++) {
        ds_dtype b = st->in[i].d.dtype;
        if (!(ds_dtype_equal)(a, b))
            return ds__fail(DS_ERR_INVALID_VALUE, "%s tensor at index %zu has type %s, others %s",
                            i < st->ins ? "input" : "output", i < st->ins ? i : i - st->ins,
                            ds__dtype_name(b, name[0]), ds__dtype_name(a, name[1]));
    }
    return DS_OK;
}

/* Reads the inputs and outputs of a call: one for each device of the rank, or a single one for
   device `single`. */
static ds_result ds__stage_tensors(ds__stage *st, const ds_tensor *const *in, size_t ins,
                                   const ds_tensor *const *out, size_t outs, size_t single) {
    ds__stile *tile = st->tile_first;
    if (ins + outs > 2)
        tile = ds__stage_alloc(st, (ins + outs) * sizeof *tile);
    if (!tile)
        return DS_ERR_OUT_OF_MEMORY;
    st->whole.in = tile;
    st->whole.out = tile + ins;
    st->whole.ins = ins;
    st->whole.outs = outs;
    ds__stage_select(st, &st->whole);
    for (size_t i = 0; i < ins; i++)
        DS__TRY(ds__stile_read(st, in[i], "input tensor", ins == 1 && st->count > 1 ? single : i,
                               &st->in[i]));
    for (size_t i = 0; i < outs; i++)
        DS__TRY(ds__stile_read(st, out[i], "output tensor", outs == 1 && st->count > 1 ? single : i,
                               &st->out[i]));
    st->call.dtype = st->in[0].d.dtype;
    ds__stage_divide(st);
    return ds__stage_check_types(st);
}

/* Notes the number of elements for the recorder and the comparison. varies: ranks differ in it. */
static void ds__stage_count(ds__stage *st, const ds__stile *tile, int varies) {
    st->call.varies = varies;
    st->call.count = varies ? 0 : (uint64_t)tile->d.count;
}

/* Requires a list with one tensor for each device of the rank. */
static ds_result ds__stage_check_count(const ds__stage *st, const void *list, size_t count,
                                       const char *words) {
    DS__REQUIRE(list, "%s is NULL", words);
    DS__REQUIRE(count == st->count, "%s has %zu tensors, but this rank has %zu devices", words,
                count, st->count);
    return DS_OK;
}

/* Notifies observers of the call; kind: DS__SEEN_BEGIN or DS__SEEN_END. Without memory for their
   description, they see no operands. */
__attribute__((cold, noinline)) static void ds__stage_observe(ds__stage *st, int kind,
                                                              ds_result r) {
    size_t n = st->ins + st->outs;
    ds__seen_operand *list = n ? ds__stage_alloc(st, n * sizeof *list) : NULL;
    ds__runs *runs = list ? ds__stage_alloc(st, n * sizeof *runs) : NULL;
    for (size_t i = 0; runs && i < n; i++) {
        const ds__stile *tile = &st->in[i];
        int writes = tile->receives || i >= st->ins;
        list[i] = (ds__seen_operand){ .bytes = tile->d.bytes,
                                      .device = tile->d.device,
                                      .stream = st->stream[tile->device],
                                      .reads = !writes,
                                      .writes = writes };
        ds__comm_copy tensor = { tile->d.item, tile->d.ndim, tile->d.shape, NULL, tile->d.strides };
        if (tile->d.bytes)
            ds__runs_observe(&tensor, tile->d.first, &runs[i], &list[i]);
    }
    ds__observer_notify(
        &(ds__seen){ .kind = kind, .operand = list, .operands = runs ? n : 0, .result = r });
}

/* Begins to enqueue: everything was checked. */
static ds_result ds__stage_begin(ds__stage *st) {
    ds__mutex_lock(&st->g->calls);
    st->opened = 1;
    ds_result r = ds__group_report(st->g);
    if (DS__UNLIKELY(st->g->temps != NULL) && !st->capturing)
        ds__group_free_temps(st->g, atomic_load(&st->g->passed));
    if (r == DS_OK && ds__observer_is_set()) {
        ds__stage_observe(st, DS__SEEN_BEGIN, DS_OK);
        st->observed = 1;
    }
    ds__tls.unwatched++;
    return r;
}

/* Records the uses of the tensors' blocks with the allocator, which does not reuse their memory
   before the streams have passed the operation. */
static ds_result ds__stage_note_uses(ds__stage *st) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < st->ins + st->outs && r == DS_OK; i++) {
        const ds__stile *tile = &st->in[i];
        if (!tile->d.bytes)
            continue;
        if (tile->d.device.type == DS_DEVICE_HOST) {
            r = ds__pinned_operand(tile->d.first, st->stream[tile->device]);
            continue;
        }
        ds__stream *s = ds__stream_pin(st->stream[tile->device]);
        if (!s)
            return DS_ERR_INVALID_HANDLE;
        r = ds__mem_operand(tile->d.first, s, st->stream[tile->device]);
        ds__stream_unpin(s);
    }
    return r;
}

/* Fails the group after a call that was enqueued in part: the other ranks wait for the rest, and
   later operations would not meet theirs. */
__attribute__((cold, noinline)) static void ds__stage_break(ds__stage *st, ds_result r) {
    ds__group *g = st->g;
    ds__kept_error error;
    ds__error_save(&error);
    ds__rop op = { .call = st->call, .number = ds__group_listed(g) };
    ds__mutex_lock(&g->lock);
    ds__group_fail_op(g, &op, r, "was enqueued in part: %s", ds__error_reason(&error));
    ds__mutex_unlock(&g->lock);
    ds__error_restore(&error);
}

/* Leaves the temporary memory to the group, until the operations of the call have passed. */
static void ds__stage_keep_temps(ds__stage *st) {
    ds__group *g = st->g;
    uint64_t listed = st->temps ? ds__group_listed(g) : 0;
    while (st->temps) {
        ds__rtemp *t = st->temps;
        st->temps = t->next;
        t->number = st->capturing ? 0 : listed;
        t->next = g->temps;
        g->temps = t;
    }
    if (st->capturing)
        ds__group_free_temps(g, 0); /* in the order of the capture */
}

/* Ends the call, and returns its result. */
static ds_result ds__stage_close(ds__stage *st, ds_result r) {
    ds__group *g = st->g;
    ds__stage_select(st, &st->whole);
    if (st->opened) {
        if (DS__UNLIKELY(r < 0 && st->enqueued))
            ds__stage_break(st, r);
        for (size_t i = 0; i < st->count && st->joined; i++) {
            size_t lead = ds__stage_member_of(st, i)->leading;
            ds_result one = i == lead ? DS_OK : ds__wait_stream(st->stream[i], st->stream[lead]);
            r = r < 0 ? r : one;
        }
        if (r == DS_OK)
            r = ds__stage_note_uses(st);
        ds__tls.unwatched--;
        if (st->observed)
            ds__stage_observe(st, DS__SEEN_END, r);
        ds__stage_keep_temps(st);
        ds__mutex_unlock(&g->calls);
    }
    if (r < 0 && st->opened && atomic_load(&g->failed))
        r = ds__group_report(g); /* a step of the call has reported the failure of a stream */
    while (st->chunks) {
        void **chunk = st->chunks;
        st->chunks = *chunk;
        ds__host_free(chunk);
    }
    if (st->lead)
        ds__stream_unpin(st->lead);
    if (g)
        ds__group_unpin(g);
    return r;
}

/* Makes the leading streams wait for the other streams of their members, once. */
static ds_result ds__stage_join(ds__stage *st) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < st->count && !st->joined && r == DS_OK; i++) {
        size_t lead = ds__stage_member_of(st, i)->leading;
        if (i != lead)
            r = ds__wait_stream(st->stream[lead], st->stream[i]);
    }
    st->joined = 1;
    return r;
}

/* ranks/stage_memory.h - memory of a collective.

   Allocates temporary memory of a call (ds__stage_buffer), decides which memory the engine can use
   (ds__stage_reaches), and copies tensors to and from memory of the engine (ds__stage_source,
   ds__stage_target, ds__stage_spread).

   Invariants: temporary memory belongs to the stage, then to the group until the operations of the
   call have passed.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */

/* Allocates temporary memory of device i of the rank or, with `pinned`, pinned memory. */
static ds_result ds__stage_temp(ds__stage *st, size_t i, size_t bytes, int pinned, void **out) {
    ds_result r;
    ds__rtemp *t = st->g->free_temps;
    if (t)
        st->g->free_temps = t->next;
    else
        t = ds__host_alloc(sizeof *t);
    *out = NULL;
    if (!t)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a collective");
    if (pinned)
        DS__KEEPING(r, (ds_mem_pinned_alloc)(bytes ? bytes : 1, &t->ptr));
    else
        DS__KEEPING(r, (ds_mem_alloc)(bytes ? bytes : 1, st->stream[i], &t->ptr));
    if (r < 0) {
        ds__host_free(t);
        return r;
    }
    t->pinned = pinned;
    t->next = st->temps;
    st->temps = t;
    *out = t->ptr;
    return DS_OK;
}

/* Allocates memory that the engine reaches: of the leading device, or pinned. */
static ds_result ds__stage_buffer(ds__stage *st, size_t bytes, ds__smem *out) {
    int pinned = st->reach == DS__REACH_HOST;
    *out = (ds__smem){ NULL, pinned, st->leading };
    return ds__stage_temp(st, st->leading, bytes, pinned, &out->at);
}

/* Allocates memory of the leading device. */
static ds_result ds__stage_lead_buffer(ds__stage *st, size_t bytes, ds__smem *out) {
    *out = (ds__smem){ NULL, 0, st->leading };
    return ds__stage_temp(st, st->leading, bytes, 0, &out->at);
}

/* Copies a tensor to another one of the same shape, on the streams of their devices. */
static ds_result ds__stage_copy(ds__stage *st, const ds_tensor *to, size_t to_device,
                                const ds_tensor *from, size_t from_device) {
    ds_result r;
    ds_comm_options o = { .streams = &st->stream[to_device],
                          .stream_count = 1,
                          .stream = st->stream[from_device] };
    DS__KEEPING(r, (ds_comm_broadcast_into)(from, &to, 1, &o));
    return r;
}

/* Returns the tensor of one dimension at `offset` bytes of memory; size: its elements, which must
   stay. */
static ds_tensor ds__smem_flat(const ds__stage *st, ds__smem mem, size_t offset, int64_t *size) {
    ds_device device = mem.host ? (ds_device){ DS_DEVICE_HOST, 0 } : st->own[mem.device];
    return ds_tensor_of(ds__behind(mem.at, offset), device, st->call.dtype, 1, size);
}

/* Returns a tensor in memory with the shape of a tile. */
static ds_tensor ds__smem_like(const ds__stage *st, ds__smem mem, const ds__stile *tile) {
    ds_device device = mem.host ? (ds_device){ DS_DEVICE_HOST, 0 } : st->own[mem.device];
    return ds_tensor_of(mem.at, device, tile->d.dtype, tile->d.ndim,
                        (int64_t *)(uintptr_t)tile->d.shape);
}

/* Returns the memory of a tile. */
static ds__smem ds__stile_memory(const ds__stile *tile) {
    return (ds__smem){ tile->d.first, tile->d.device.type == DS_DEVICE_HOST, tile->device };
}

/* Returns 1 if the engine can use the memory. */
static int ds__stage_reaches(const ds__stage *st, ds__smem mem) {
    if (st->reach == DS__REACH_LEAD)
        return !mem.host &&
               ds__device_key(st->own[mem.device]) == ds__device_key(st->own[st->leading]);
    return st->reach == DS__REACH_ALL || mem.host;
}

/* Returns 1 if the engine can use the tensor's memory in place. */
static int ds__stile_is_direct(const ds__stage *st, const ds__stile *tile) {
    return ds__stage_reaches(st, ds__stile_memory(tile)) && (ds_tensor_is_contiguous)(&tile->t);
}

static ds__smem ds__smem_at(ds__smem mem, size_t offset) {
    return (ds__smem){ ds__behind(mem.at, offset), mem.host, mem.device };
}

/* Copies a tile to contiguous memory, unless it is there. */
static ds_result ds__stage_pack(ds__stage *st, const ds__stile *tile, ds__smem mem) {
    if (!tile->d.count || mem.at == (void *)tile->d.first)
        return DS_OK;
    ds_tensor to = ds__smem_like(st, mem, tile);
    return ds__stage_copy(st, &to, mem.device, &tile->t, tile->device);
}

/* Copies contiguous memory to a tile, unless it is there. */
static ds_result ds__stage_unpack(ds__stage *st, const ds__stile *tile, ds__smem mem) {
    if (!tile->d.count || mem.at == (void *)tile->d.first)
        return DS_OK;
    ds_tensor from = ds__smem_like(st, mem, tile);
    return ds__stage_copy(st, &tile->t, tile->device, &from, mem.device);
}

/* Gives memory of the engine with the elements of a tile: its own, or a copy. */
static ds_result ds__stage_source(ds__stage *st, const ds__stile *tile, ds__smem *out) {
    *out = ds__stile_memory(tile);
    if (ds__stile_is_direct(st, tile))
        return DS_OK;
    ds_result r = ds__stage_buffer(st, tile->d.bytes, out);
    return r == DS_OK ? ds__stage_pack(st, tile, *out) : r;
}

/* Returns 1 if a copy from the tile's memory to a GPU may read it in the call, before the engine
   has written it: CUDA does so with pageable memory. */
static int ds__stile_is_read_early(const ds__stage *st, const ds__stile *tile) {
    ds_pointer_info info;
    ds_result r;
    if (st->g->driver->type == DS_DEVICE_CPU || tile->d.device.type != DS_DEVICE_HOST)
        return 0;
    DS__KEEPING(r, (ds_pointer_get_info)(tile->d.first, &info));
    return r < 0 || info.kind != DS_MEMORY_PINNED;
}

/* Gives memory of the engine for the elements of a tile: its own, or a buffer from which
   ds__stage_unpack copies. If the call has several outputs, all are copied from that memory. */
static ds_result ds__stage_target(ds__stage *st, const ds__stile *tile, ds__smem *out) {
    *out = ds__stile_memory(tile);
    if (ds__stile_is_direct(st, tile) && (st->outs < 2 || !ds__stile_is_read_early(st, tile)))
        return DS_OK;
    return ds__stage_buffer(st, tile->d.bytes, out);
}

/* Copies `elements` to a buffer that the engine reaches or, with `lead`, to memory of the leading
   device, unless they are there. */
static ds_result ds__stage_move(ds__stage *st, ds__smem mem, int64_t elements, int lead,
                                ds__smem *out) {
    size_t bytes = (size_t)elements * (ds_dtype_get_size)(st->call.dtype);
    int there = lead ? !mem.host && mem.device == st->leading : ds__stage_reaches(st, mem);
    *out = mem;
    if (there || !elements)
        return DS_OK;
    ds_result r = lead ? ds__stage_lead_buffer(st, bytes, out) : ds__stage_buffer(st, bytes, out);
    if (r < 0)
        return r;
    ds_tensor to = ds__smem_flat(st, *out, 0, &elements);
    ds_tensor from = ds__smem_flat(st, mem, 0, &elements);
    return ds__stage_copy(st, &to, out->device, &from, mem.device);
}

/* Copies contiguous memory to all outputs. */
static ds_result ds__stage_spread(ds__stage *st, ds__smem mem) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < st->outs && r == DS_OK; i++)
        r = ds__stage_unpack(st, &st->out[i], mem);
    return r;
}

/* ranks/parts.h - parts of tensors for the ranks of a group.

   Computes the tables of operations with a part for each member (ds__net_parts), and divides
   tensors into slices, one for each member (ds__slices). Packs the tensors of a member
   (ds__tiles_source).

   Invariants: a table has the sizes of all parts, then their offsets. The parts of the devices of a
   member lie one behind the other, in the order of the group.
   Locks: none.
   Threads: any. */

/* Runs of elements of a contiguous tensor, one for each member: that of member r begins at begin[r]
   and ends at begin[r + 1]. */
typedef struct ds__slices {
    size_t *begin;
    size_t item;
} ds__slices;

/* Returns the bytes of a table. */
static size_t ds__parts_bytes(const ds__stage *st) {
    return 2 * (size_t)st->size * sizeof(size_t);
}

/* Writes a table of parts that lie one behind the other: `bytes` for each device of a member. */
static ds__net_parts ds__parts_even(const ds__stage *st, void *table, size_t bytes) {
    size_t *list = table;
    size_t n = (size_t)st->size;
    for (size_t r = 0; r < n; r++) {
        list[r] = (st->first[r + 1] - st->first[r]) * bytes;
        list[n + r] = st->first[r] * bytes;
    }
    return (ds__net_parts){ list, list + n };
}

/* Writes a table of the slices of `count` tensors: those of a member lie one behind the other. */
static ds__net_parts ds__parts_of_slices(const ds__stage *st, void *table, size_t count) {
    const ds__slices *s = st->slices;
    size_t *list = table;
    size_t n = (size_t)st->size;
    for (size_t r = 0; r < n; r++) {
        list[r] = count * (s->begin[r + 1] - s->begin[r]) * s->item;
        list[n + r] = count * s->begin[r] * s->item;
    }
    return (ds__net_parts){ list, list + n };
}

static size_t ds__slice_count(const ds__slices *s, int member) {
    return s->begin[member + 1] - s->begin[member];
}

/* Returns the bytes of the slice of the selected member. */
static size_t ds__slice_bytes(const ds__stage *st) {
    return ds__slice_count(st->slices, st->me) * st->slices->item;
}

/* Allocates the slices of the call, which lie in st->slices. */
static ds_result ds__slices_alloc(ds__stage *st) {
    size_t n = (size_t)st->size;
    st->slices = ds__stage_alloc(st, sizeof *st->slices + (n + 1) * sizeof *st->slices->begin);
    if (!st->slices)
        return DS_ERR_OUT_OF_MEMORY;
    st->slices->item = (ds_dtype_get_size)(st->call.dtype);
    st->slices->begin = (size_t *)(void *)(st->slices + 1);
    return DS_OK;
}

/* Divides `count` elements evenly among the members. */
static ds_result ds__slices_even(ds__stage *st, size_t count) {
    size_t n = (size_t)st->size;
    DS__TRY(ds__slices_alloc(st));
    for (size_t r = 0; r <= n; r++)
        st->slices->begin[r] = r * (count / n) + (r < count % n ? r : count % n);
    return DS_OK;
}

/* Gives each member the parts of its devices: sizes[k] rows of `row` elements for device k of the
   group, or `rows` of them each. */
static ds_result ds__slices_of_devices(ds__stage *st, const int64_t *sizes, int64_t rows,
                                       size_t row) {
    size_t at = 0;
    DS__TRY(ds__slices_alloc(st));
    for (int r = 0; r < st->size; r++) {
        st->slices->begin[r] = at;
        for (size_t k = st->first[r]; k < st->first[r + 1]; k++)
            at += (size_t)(sizes ? sizes[k] : rows) * row;
    }
    st->slices->begin[st->size] = at;
    return DS_OK;
}

/* Packs the slices of all inputs in the order of the members: for each member one slice of each
   input. */
static ds_result ds__slices_pack(ds__stage *st, ds__smem *out) {
    const ds__slices *s = st->slices;
    ds_result r = ds__stage_buffer(st, st->ins * st->in[0].d.bytes, out);
    for (size_t i = 0; i < st->ins && r == DS_OK; i++) {
        ds__smem in;
        r = ds__stage_source(st, &st->in[i], &in);
        for (int k = 0; k < st->size && r == DS_OK; k++) {
            int64_t size = (int64_t)ds__slice_count(s, k);
            size_t at = st->ins * s->begin[k] + i * (size_t)size;
            ds_tensor to = ds__smem_flat(st, *out, at * s->item, &size);
            ds_tensor from = ds__smem_flat(st, in, s->begin[k] * s->item, &size);
            if (size)
                r = ds__stage_copy(st, &to, out->device, &from, in.device);
        }
    }
    return r;
}

/* Checks the sizes of parts for the devices of the group, and their sum. */
static ds_result ds__sizes_check(const ds__stage *st, const int64_t *sizes, int64_t all,
                                 const char *words) {
    int64_t n = (int64_t)st->g->devices;
    int64_t sum = 0;
    if (!sizes) {
        DS__REQUIRE(all % n == 0, "%s has %lld rows, which are no multiple of %lld devices", words,
                    (long long)all, (long long)n);
        return DS_OK;
    }
    for (size_t k = 0; k < st->g->devices; k++) {
        DS__REQUIRE(
            sizes[k] >= 0 && sizes[k] <= all - sum,
            "ranks_options->sizes[%zu] is %lld; the sizes must be at least 0, and their sum %lld",
            k, (long long)sizes[k], (long long)all);
        sum += sizes[k];
    }
    DS__REQUIRE(sum == all, "the sum of ranks_options->sizes is %lld, but %s has %lld rows",
                (long long)sum, words, (long long)all);
    return DS_OK;
}

/* Returns the size of the part of device k of the group; all: the sum. */
static int64_t ds__size_of(const ds__stage *st, const int64_t *sizes, int64_t all, size_t k) {
    return sizes ? sizes[k] : all / (int64_t)st->g->devices;
}

/* Returns the bytes of `count` tensors. */
static size_t ds__tiles_bytes(const ds__stile *tile, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += tile[i].d.bytes;
    return bytes;
}

/* Gives memory of the engine with these tensors of the member, one behind the other: the memory of
   a single tensor if that is possible. */
static ds_result ds__tiles_source(ds__stage *st, const ds__stile *tile, size_t count,
                                  ds__smem *out) {
    if (count == 1)
        return ds__stage_source(st, tile, out);
    DS__TRY(ds__stage_buffer(st, ds__tiles_bytes(tile, count), out));
    for (size_t i = 0; i < count; i++)
        DS__TRY(ds__stage_pack(st, &tile[i], ds__smem_at(*out, ds__tiles_bytes(tile, i))));
    return DS_OK;
}

/* ranks/arguments.h - checks of the tensors of a collective of a group.

   Checks shapes (ds__stage_check_shapes, ds__stage_check_parts) and shared memory
   (ds__stage_check_disjoint) of the tensors of this rank. Other ranks are not asked: with
   DS_RANKS_COMPARE they compare kind, type, count and root.

   Invariants: the tensors were read by ds__stage_tensors.
   Locks: none.
   Threads: any. */

/* Where outputs may share memory with inputs; as in devstream_comm.h. */
typedef enum ds__stage_sharing {
    DS__STAGE_SAME,           /* output i may be input i */
    DS__STAGE_ANY_SAME,       /* the output may be one of the inputs */
    DS__STAGE_PART_OF_INPUT,  /* output i may be its part of input i, or of the single input */
    DS__STAGE_PART_OF_OUTPUT, /* input i may be its part of output i, or of the single output */
    DS__STAGE_NEVER
} ds__stage_sharing;

static const char *ds__tile_words(const ds__stage *st, size_t i) {
    return i < st->ins ? "input tensor" : "output tensor";
}

/* Returns the index of tensor i, in the order of the inputs and outputs, in its list. */
static size_t ds__tile_index(const ds__stage *st, size_t i) {
    return i < st->ins ? i : i - st->ins;
}

/* Requires that the tensors from `first` on, `count` of them, have the shape of the first input. */
static ds_result ds__stage_check_shapes(const ds__stage *st, size_t first, size_t count) {
    const ds__dims *a = &st->in[0].d;
    char text[2][DS__SHAPE_TEXT];
    for (size_t i = first; i < first + count; i++) {
        const ds__dims *b = &st->in[i].d;
        if (a->ndim != b->ndim ||
            (a->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) != 0))
            return ds__fail(
                DS_ERR_INVALID_VALUE, "%s has shape %s; it must be %s",
                ds__name_text(ds__name_of(ds__tile_words(st, i), ds__tile_index(st, i))),
                ds__shape_text(b->ndim, b->shape, text[0], sizeof text[0]),
                ds__shape_text(a->ndim, a->shape, text[1], sizeof text[1]));
    }
    return DS_OK;
}

/* Notes which member is the root, and returns 1 if its device is one of this rank: *out_device is
   then its index on the rank. */
static int ds__stage_root(ds__stage *st, size_t *out_device) {
    int rank = ds__group_rank_of(st->g, st->options->root);
    int here = rank == st->g->rank;
    st->root = st->each ? (int)st->options->root : rank;
    *out_device = here ? st->options->root - st->g->first[rank] : 0;
    return here;
}

/* Requires that the single tensor is there on the rank of the root, and NULL elsewhere. */
static ds_result ds__stage_check_single(const ds__stage *st, const ds_tensor *tensor, int here,
                                        const char *words) {
    DS__REQUIRE(here || !tensor,
                "%s must be NULL on this rank: device %zu, the root, is one of rank %d", words,
                st->options->root, ds__group_rank_of(st->g, st->options->root));
    DS__REQUIRE(!here || tensor, "%s is NULL, but device %zu, the root, is one of this rank", words,
                st->options->root);
    return DS_OK;
}

/* Checks one part against the tensor of which it is a part; size: in dimension dim. */
static ds_result ds__part_check(const ds__dims *whole, const ds__stile *part, size_t i,
                                int64_t size, int dim) {
    const ds__dims *p = &part->d;
    char text[2][DS__SHAPE_TEXT];
    DS__REQUIRE(p->ndim == whole->ndim && p->ndim > dim,
                "part %zu has %d dimensions, the whole tensor %d; they must agree, and be more "
                "than %d",
                i, p->ndim, whole->ndim, dim);
    for (int k = 0; k < p->ndim; k++)
        DS__REQUIRE(p->shape[k] == (k == dim ? size : whole->shape[k]),
                    "part %zu has shape %s, the whole tensor %s; in dimension %d the part must "
                    "have size %lld",
                    i, ds__shape_text(p->ndim, p->shape, text[0], sizeof text[0]),
                    ds__shape_text(whole->ndim, whole->shape, text[1], sizeof text[1]), k,
                    (long long)(k == dim ? size : whole->shape[k]));
    return DS_OK;
}

/* Checks the parts of this rank's devices. whole: the tensor of all parts, or NULL if another rank
   has it. */
static ds_result ds__stage_check_parts(const ds__stage *st, const ds__dims *whole,
                                       const ds__stile *part, const int64_t *sizes, int dim) {
    size_t first = st->g->first[st->g->rank];
    ds_result r = DS_OK;
    if (whole) {
        DS__REQUIRE(dim < whole->ndim, "dim is %d, but the tensor has %d dimensions", dim,
                    whole->ndim);
        r = ds__sizes_check(st, sizes, whole->shape[dim], "the tensor of all parts");
    }
    for (size_t i = 0; i < st->count && r == DS_OK; i++) {
        if (whole)
            r = ds__part_check(whole, &part[i], i,
                               ds__size_of(st, sizes, whole->shape[dim], first + i), dim);
        else if (part[i].d.ndim <= dim)
            r = ds__fail(DS_ERR_INVALID_VALUE, "dim is %d, but part %zu has %d dimensions", dim, i,
                         part[i].d.ndim);
        else if (sizes && part[i].d.shape[dim] != sizes[first + i])
            r = ds__fail(
                DS_ERR_INVALID_VALUE,
                "part %zu has size %lld in dimension %d, but ranks_options->sizes[%zu] is %lld", i,
                (long long)part[i].d.shape[dim], dim, first + i, (long long)sizes[first + i]);
    }
    return r;
}

/* Returns 1 if the bytes of two tensors overlap; gaps of strided tensors count. */
static int ds__stage_overlaps(const ds__dims *a, const ds__dims *b) {
    if (!a->count || !b->count)
        return 0;
    const char *a_low = a->first + a->low;
    const char *b_low = b->first + b->low;
    return a_low < b_low + (b->high - b->low) && b_low < a_low + (a->high - a->low);
}

/* Returns 1 if `part` is the part of device i of the rank in a contiguous tensor. */
static int ds__is_part(const ds__stage *st, const ds__stile *whole, const ds__stile *part,
                       size_t i) {
    const int64_t *sizes = st->more->sizes;
    if (!whole->d.ndim || !(ds_tensor_is_contiguous)(&whole->t))
        return 0;
    int64_t rows = whole->d.shape[0];
    int64_t at = 0;
    for (size_t k = 0; k < st->g->first[st->g->rank] + i; k++)
        at += ds__size_of(st, sizes, rows, k);
    return part->d.first == whole->d.first + (size_t)(at * (whole->d.count / rows)) * whole->d.item;
}

/* Returns 1 if output o may share memory with input i. */
static int ds__sharing_is_allowed(const ds__stage *st, size_t i, size_t o, ds__stage_sharing rule) {
    const ds__stile *in = &st->in[i];
    const ds__stile *out = &st->out[o];
    int same = in->d.first == out->d.first && (ds_tensor_is_contiguous)(&in->t) &&
               (ds_tensor_is_contiguous)(&out->t);
    switch (rule) {
    case DS__STAGE_SAME:
        return i == o && same;
    case DS__STAGE_ANY_SAME:
        return same;
    case DS__STAGE_PART_OF_INPUT:
        return (i == o || st->ins == 1) && ds__is_part(st, in, out, o);
    case DS__STAGE_PART_OF_OUTPUT:
        return (i == o || st->outs == 1) && ds__is_part(st, out, in, i);
    default:
        return 0;
    }
}

/* Checks that outputs share no memory with inputs, unless the rule allows it, nor with each
   other. */
static ds_result ds__stage_check_disjoint(const ds__stage *st, ds__stage_sharing rule) {
    for (size_t o = 0; o < st->outs; o++) {
        for (size_t i = 0; i < st->ins; i++)
            DS__REQUIRE(!ds__stage_overlaps(&st->out[o].d, &st->in[i].d) ||
                            ds__sharing_is_allowed(st, i, o, rule),
                        "output tensor at index %zu shares memory with input tensor at index %zu",
                        o, i);
        for (size_t k = 0; k < o; k++)
            DS__REQUIRE(!ds__stage_overlaps(&st->out[o].d, &st->out[k].d),
                        "output tensors at index %zu and %zu share memory", k, o);
    }
    return DS_OK;
}

/* ranks/steps.h - the operations of a collective.

   A collective is one or several steps (ds__stage_step). In each, the members of this rank prepare
   their parts of one operation of the engine, which is then enqueued for all of them.

   Invariants: between two steps, and at the end, the work of a member is on its streams.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */

/* Prepares the operation of the selected member: gives it its memory, root and parts, and adds the
   bytes that it moves to st->moved. */
typedef ds_result ds__step_fn(ds__stage *st, ds__net_op *net, void *tables);

/* Returns the bytes of the list of members at the begin of the tables. */
static size_t ds__stage_lists(const ds__stage *st) {
    return st->each ? st->members * sizeof(ds__net_member) : 0;
}

/* Returns an operation whose call is that of the stage, with room for tables of this many bytes;
   NULL: no memory. */
static ds__rop *ds__stage_op(ds__stage *st, ds__net_kind kind, size_t tables) {
    ds__rop *op = ds__rop_take(st->g, ds__stage_lists(st) + tables);
    if (!op)
        return NULL;
    op->call = st->call;
    op->call.step = st->step++;
    op->net.kind = kind;
    op->net.dtype = st->call.dtype;
    op->net.reduce_op = st->call.op;
    op->net.nccl = st->more->nccl;
    op->net.on_gpu = st->g->gpu && st->reach != DS__REACH_HOST;
    op->members = st->each ? op->tables : NULL;
    for (size_t m = 0; m < st->members && op->members; m++)
        op->members[m] = (ds__net_member){ op->net, NULL };
    return op;
}

/* Gives a member's operation the native form of its stream. */
static ds_result ds__stage_native(const ds__stage *st, size_t m, ds__net_member *out) {
    size_t i = st->member[m].leading;
    if (i == DS__STAGE_NONE)
        return DS_OK;
    ds__stream *s = ds__stream_pin(st->stream[i]);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = s->driver->stream_native(s->native, &out->native);
    ds__stream_unpin(s);
    return r;
}

/* Enqueues an operation and the wait for it. bytes: how much it moves on this rank. */
static ds_result ds__stage_net(ds__stage *st, ds__rop *op, size_t bytes) {
    ds_result r = ds__stage_join(st);
    for (size_t m = 0; op->members && m < st->members && r == DS_OK; m++)
        r = ds__stage_native(st, m, &op->members[m]);
    if (r < 0) {
        ds__rop_give_back(op);
        return r;
    }
    if (DS__UNLIKELY(st->capturing && st->g->engine->enqueue))
        return ds__capture_native(st->stream[st->whole.leading], st->lead, op, bytes);
    if (DS__UNLIKELY(st->capturing))
        return ds__capture_rop(st->stream[st->whole.leading], op, op->used_bytes);
    st->enqueued = 1;
    if (st->members > 1) {
        op->streams = st->stream;
        op->stream_count = st->count;
    }
    return ds__rop_submit(op, st->lead, bytes, NULL);
}

/* Runs a step. tables: tables of parts that each member needs. */
static ds_result ds__stage_step(ds__stage *st, ds__net_kind kind, size_t tables,
                                ds__step_fn *prepare_fn) {
    size_t bytes = tables * ds__parts_bytes(st);
    ds_result r = DS_OK;
    ds__rop *op = ds__stage_op(st, kind, st->members * bytes);
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    void *at = ds__behind(op->tables, ds__stage_lists(st));
    st->moved = 0;
    for (size_t m = 0; m < st->members && r == DS_OK; m++) {
        ds__stage_select(st, &st->member[m]);
        r = prepare_fn(st, op->members ? &op->members[m].op : &op->net, ds__behind(at, m * bytes));
    }
    ds__stage_select(st, &st->whole);
    if (r == DS_OK)
        return ds__stage_net(st, op, st->moved);
    ds__rop_give_back(op);
    return r;
}

/* Runs a function for each member, with it selected. */
static ds_result ds__stage_finish(ds__stage *st, ds_result (*finish_fn)(ds__stage *st)) {
    ds_result r = DS_OK;
    for (size_t m = 0; m < st->members && r == DS_OK; m++) {
        ds__stage_select(st, &st->member[m]);
        r = finish_fn(st);
    }
    ds__stage_select(st, &st->whole);
    return r;
}

/* The same for a collective of one step. */
static ds_result ds__stage_run(ds__stage *st, ds__net_kind kind, size_t tables,
                               ds__step_fn *prepare_fn, ds_result (*finish_fn)(ds__stage *st)) {
    ds_result r = ds__stage_step(st, kind, tables, prepare_fn);
    return r == DS_OK ? ds__stage_finish(st, finish_fn) : r;
}

/* Copies the memory of the operation to all outputs of the selected member. */
static ds_result ds__stage_finish_all(ds__stage *st) {
    return ds__stage_spread(st, st->at->to);
}

/* Copies its parts, one behind the other, to the outputs of the selected member. */
static ds_result ds__stage_finish_parts(ds__stage *st) {
    for (size_t i = 0; i < st->outs; i++)
        DS__TRY(ds__stage_unpack(st, &st->out[i],
                                 ds__smem_at(st->at->to, ds__tiles_bytes(st->out, i))));
    return DS_OK;
}

/* ranks/pieces.h - large operations of a GPU in pieces.

   Runs an operation on elements of memory of the leading device that the engine does not reach
   (ds__stage_pieces): each piece is copied to pinned memory, exchanged, and copied back. While the
   engine works on a piece, the next ones are copied to the host, and earlier ones back.

   Invariants: the operations of the pieces are enqueued without a wait. The waits follow, each
   before the copy of its result.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */

enum { DS__PIECE_BYTES = 4 << 20 };

typedef struct ds__net_piece {
    ds__smem mem; /* pinned */
    uint64_t number;
    size_t at; /* bytes */
    int64_t elements;
} ds__net_piece;

/* Returns 1 if an operation on this many bytes is done in pieces. */
static int ds__stage_is_in_pieces(const ds__stage *st, size_t bytes) {
    return st->reach == DS__REACH_HOST && !st->capturing && bytes >= 2 * DS__PIECE_BYTES;
}

/* Copies between a piece and its place in memory of the leading device. */
static ds_result ds__piece_copy(ds__stage *st, ds__net_piece *p, ds__smem mem, int to_host) {
    ds_tensor host = ds__smem_flat(st, p->mem, 0, &p->elements);
    ds_tensor device = ds__smem_flat(st, mem, p->at, &p->elements);
    return to_host ? ds__stage_copy(st, &host, st->leading, &device, mem.device)
                   : ds__stage_copy(st, &device, mem.device, &host, st->leading);
}

/* Enqueues the operation of a piece. */
static ds_result ds__piece_begin(ds__stage *st, ds__net_piece *p, ds__net_kind kind) {
    size_t item = (ds_dtype_get_size)(st->call.dtype);
    ds__rop *op = ds__stage_op(st, kind, 0);
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.in = op->net.out = p->mem.at;
    op->net.root = st->root;
    op->net.count = (size_t)p->elements * (kind == DS__NET_BROADCAST ? item : 1);
    st->enqueued = 1;
    return ds__rop_submit(op, st->lead, (size_t)p->elements * item, &p->number);
}

/* Runs a reduction or broadcast of `elements` from `in` to `out`; at NULL: this rank has none. */
static ds_result ds__stage_pieces(ds__stage *st, ds__net_kind kind, ds__smem in, ds__smem out,
                                  int64_t elements) {
    size_t item = (ds_dtype_get_size)(st->call.dtype);
    int64_t most = (int64_t)(DS__PIECE_BYTES / item);
    size_t count = (size_t)((elements + most - 1) / most);
    ds__net_piece *piece = ds__stage_alloc(st, count * sizeof *piece);
    ds_result r = piece ? ds__stage_join(st) : DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        piece[i].at = i * (size_t)most * item;
        piece[i].elements = i + 1 < count ? most : elements - (int64_t)i * most;
        r = ds__stage_buffer(st, (size_t)piece[i].elements * item, &piece[i].mem);
    }
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        if (in.at)
            r = ds__piece_copy(st, &piece[i], in, 1);
        if (r == DS_OK)
            r = ds__piece_begin(st, &piece[i], kind);
    }
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__rop_wait(st->g, st->lead, &st->call, piece[i].number);
        if (r == DS_OK && out.at)
            r = ds__piece_copy(st, &piece[i], out, 0);
    }
    return r;
}

/* ranks/reduce.h - reductions of a group.

   Implements all_reduce, reduce and reduce_scatter between ranks.

   Policy:
   1. In the engine's order (integers or DS_COMM_ANY_ORDER, and the engine knows the reduction): the
      tensors of a member of the communicator are reduced in the process, the engine reduces between
      the members, and the result is copied to the devices of the member.
   2. In fixed order each element is the same chain of operations as in one process: all tensors of
      the group, in the order of its devices, by one step of devstream_comm.h. Small tensors are
      gathered on each member that needs the result. Of large ones each member reduces a slice: it
      receives the slice of all tensors, and then the slices are gathered. This moves as many bytes
      as a ring.

   Invariants: see ranks/stage.h. A slice is a run of elements of contiguous tensors.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */

enum { DS__REDUCE_SMALL = 32768 }; /* bytes of all tensors that are gathered */

/* Reduces `count` runs of elements at `in`, `stride` bytes apart, to `out`; both are memory of the
   leading device. */
static ds_result ds__stage_reduce(ds__stage *st, ds__smem in, size_t stride, size_t count,
                                  ds__smem out, int64_t elements) {
    ds_result r;
    ds_stream lead = st->stream[st->leading];
    ds_tensor to = ds__smem_flat(st, out, 0, &elements);
    ds_tensor *from = ds__stage_alloc(st, count * (sizeof *from + 2 * sizeof(void *)));
    if (!from)
        return DS_ERR_OUT_OF_MEMORY;
    const ds_tensor **list = (const ds_tensor **)(void *)(from + count);
    ds_stream *streams = (ds_stream *)(void *)(list + count);
    for (size_t i = 0; i < count; i++) {
        from[i] = ds__smem_flat(st, in, i * stride, &elements);
        list[i] = &from[i];
        streams[i] = lead;
    }
    ds_comm_options o = { .streams = streams, .stream_count = count, .stream = lead };
    DS__KEEPING(r, (ds_comm_reduce_into)(list, count, st->call.op, &to, &o));
    return r;
}

/* Gives the tile's elements in memory of its device: inputs of a reduction must be there. */
static ds_result ds__stile_on_device(ds__stage *st, const ds__stile *tile, ds_tensor *out) {
    ds__smem mem = { NULL, 0, tile->device };
    *out = tile->t;
    if (tile->d.device.type != DS_DEVICE_HOST)
        return DS_OK;
    DS__TRY(ds__stage_temp(st, tile->device, tile->d.bytes, 0, &mem.at));
    *out = ds__smem_like(st, mem, tile);
    return ds__stage_pack(st, tile, mem);
}

/* Reduces the tensors of a rank, which is one member, to memory of the leading device. */
static ds_result ds__reduce_own(ds__stage *st, ds__smem out) {
    ds_tensor *in = ds__stage_alloc(st, st->ins * (sizeof *in + sizeof(void *)));
    if (!in)
        return DS_ERR_OUT_OF_MEMORY;
    const ds_tensor **list = (const ds_tensor **)(void *)(in + st->ins);
    for (size_t i = 0; i < st->ins; i++) {
        DS__TRY(ds__stile_on_device(st, &st->in[i], &in[i]));
        list[i] = &in[i];
    }
    ds_tensor to = ds__smem_like(st, out, &st->in[0]);
    ds_comm_options o = { .streams = st->stream,
                          .stream_count = st->count,
                          .stream = st->stream[0] };
    ds_result r;
    DS__KEEPING(r, (ds_comm_reduce_into)(list, st->ins, st->call.op, &to, &o));
    return r;
}

/* Returns 1 if the tile is contiguous memory of the leading device. */
static int ds__stile_is_on_lead(const ds__stage *st, const ds__stile *tile) {
    return tile->device == st->leading && tile->d.device.type != DS_DEVICE_HOST &&
           (ds_tensor_is_contiguous)(&tile->t);
}

/* ---- order of the engine --------------------------------------------------------------------- */

/* Decides whether the engine reduces: *st is then for memory that it reaches in a reduction.
   Integers have the same result in any order. */
static int ds__reduce_is_by_engine(ds__stage *st) {
    uint8_t code = st->call.dtype.code;
    int any = st->options->flags & DS_COMM_ANY_ORDER || code == DS_CODE_INT || code == DS_CODE_UINT;
    if (!any || !st->g->engine->reduces(st->call.dtype, st->call.op))
        return 0;
    ds__stage_reach(st, DS__NET_ALL_REDUCE);
    return 1;
}

/* Refuses a configuration of an operation that the engine does not compute. */
static ds_result ds__reduce_check_fixed(const ds__stage *st) {
    return st->more->nccl ? ds__fail(DS_ERR_UNSUPPORTED,
                                     "ranks_options->nccl: devstream computes this reduction in "
                                     "fixed order; NCCL computes integers, and sums and products "
                                     "with DS_COMM_ANY_ORDER")
                          : DS_OK;
}

/* Gives the reduction of the member's tensors in memory of the leading device. *out: the memory of
   the single tensor, if that is contiguous there. */
static ds_result ds__reduce_on_lead(ds__stage *st, ds__smem *out) {
    *out = ds__stile_memory(&st->in[0]);
    if (st->ins == 1 && ds__stile_is_on_lead(st, &st->in[0]))
        return DS_OK;
    DS__TRY(ds__stage_lead_buffer(st, st->in[0].d.bytes, out));
    return ds__reduce_own(st, *out);
}

/* A reduction in the order of the engine, of memory that it does not reach. */
static ds_result ds__reduce_in_pieces(ds__stage *st, ds__net_kind kind) {
    ds__smem in;
    ds__smem out = { NULL, 0, 0 };
    DS__TRY(ds__reduce_on_lead(st, &in));
    if (st->outs)
        out = ds__stile_memory(&st->out[0]);
    if (st->outs && !ds__stile_is_on_lead(st, &st->out[0]))
        DS__TRY(ds__stage_lead_buffer(st, st->out[0].d.bytes, &out));
    DS__TRY(ds__stage_pieces(st, kind, in, out, st->in[0].d.count));
    return st->outs ? ds__stage_spread(st, out) : DS_OK;
}

/* Gives the reduction of the member's tensors in memory of the engine. */
static ds_result ds__reduce_local(ds__stage *st, ds__smem *out) {
    ds__smem sum;
    if (st->ins == 1)
        return ds__stage_source(st, &st->in[0], out);
    DS__TRY(ds__stage_lead_buffer(st, st->in[0].d.bytes, &sum));
    DS__TRY(ds__reduce_own(st, sum));
    return ds__stage_move(st, sum, st->in[0].d.count, 0, out);
}

static ds_result ds__reduce_prepare(ds__stage *st, ds__net_op *net, void *unused) {
    ds__stage_member *m = st->at;
    (void)unused;
    DS__TRY(ds__reduce_local(st, &m->from));
    m->to = (ds__smem){ NULL, 0, 0 };
    if (st->outs)
        DS__TRY(ds__stage_target(st, &st->out[0], &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = (size_t)st->in[0].d.count;
    st->moved += st->in[0].d.bytes;
    return DS_OK;
}

/* ---- fixed order ----------------------------------------------------------------------------- */

/* Prepares the gather of all tensors of the group on the root or, with root -1, on all members. */
static ds_result ds__reduce_gather(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    size_t bytes = st->in[0].d.bytes;
    m->to = (ds__smem){ NULL, 0, 0 };
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &m->from));
    if (st->root < 0 || st->root == st->me)
        DS__TRY(ds__stage_buffer(st, st->g->devices * bytes, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = st->ins * bytes;
    net->parts = ds__parts_even(st, tables, bytes);
    st->moved += net->count;
    return DS_OK;
}

/* The end of the small form: every member that has outputs reduces all tensors. */
static ds_result ds__reduce_small_finish(ds__stage *st) {
    ds__smem all = st->at->to;
    ds__smem sum;
    if (!all.at || !st->outs)
        return DS_OK;
    const ds__stile *first = &st->out[0];
    sum = ds__stile_memory(first);
    DS__TRY(ds__stage_move(st, all, (int64_t)st->g->devices * first->d.count, 1, &all));
    if (!ds__stile_is_on_lead(st, first))
        DS__TRY(ds__stage_lead_buffer(st, first->d.bytes, &sum));
    DS__TRY(ds__stage_reduce(st, all, first->d.bytes, st->g->devices, sum, first->d.count));
    return ds__stage_spread(st, sum);
}

/* Prepares the first step of the large form: sends each member its slices of the tensors of this
   one, and receives the slices of all tensors. */
static ds_result ds__reduce_exchange(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    size_t mine = ds__slice_bytes(st);
    DS__TRY(st->ins == 1 ? ds__stage_source(st, &st->in[0], &m->from)
                         : ds__slices_pack(st, &m->from));
    DS__TRY(ds__stage_buffer(st, st->g->devices * mine, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->parts = ds__parts_of_slices(st, tables, st->ins);
    net->out_parts = ds__parts_even(st, (char *)tables + ds__parts_bytes(st), mine);
    st->moved += st->ins * st->in[0].d.bytes;
    return DS_OK;
}

/* Gives the slices of ds__reduce_exchange on the leading device. */
static ds_result ds__reduce_slices(ds__stage *st, ds__smem *out) {
    size_t count = ds__slice_count(st->slices, st->me);
    return ds__stage_move(st, st->at->to, (int64_t)(st->g->devices * count), 1, out);
}

/* Prepares the second step of the large form: reduces the slice of the member, and gathers the
   slices on the root or, with root -1, on all members. The slice may lie at its place there. */
static ds_result ds__reduce_collect(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    const ds__slices *slices = st->slices;
    int64_t elements = (int64_t)ds__slice_count(slices, st->me);
    size_t mine = ds__slice_bytes(st);
    ds__smem all;
    ds__smem slice;
    DS__TRY(ds__reduce_slices(st, &all));
    m->to = (ds__smem){ NULL, 0, 0 };
    if (st->outs)
        DS__TRY(ds__stage_target(st, &st->out[0], &m->to));
    if (m->to.at && !m->to.host && m->to.device == st->leading)
        slice = ds__smem_at(m->to, slices->begin[st->me] * slices->item);
    else
        DS__TRY(ds__stage_lead_buffer(st, mine, &slice));
    if (mine)
        DS__TRY(ds__stage_reduce(st, all, mine, st->g->devices, slice, elements));
    DS__TRY(ds__stage_move(st, slice, elements, 0, &m->from));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = mine;
    net->parts = ds__parts_of_slices(st, tables, 1);
    st->moved += st->in[0].d.bytes;
    return DS_OK;
}

/* The large form: each member reduces a slice, and the slices are gathered. */
static ds_result ds__reduce_large(ds__stage *st) {
    DS__TRY(ds__slices_even(st, (size_t)st->in[0].d.count));
    DS__TRY(ds__stage_step(st, DS__NET_ALL_TO_ALL, 2, ds__reduce_exchange));
    return ds__stage_run(st, st->root < 0 ? DS__NET_ALL_GATHER : DS__NET_GATHER, 1,
                         ds__reduce_collect, ds__stage_finish_all);
}

/* ---- all_reduce and reduce ------------------------------------------------------------------- */

/* Reduces to the root or, with root -1, to all members. */
static ds_result ds__reduce_run(ds__stage *st) {
    ds__net_kind kind = st->root < 0 ? DS__NET_ALL_REDUCE : DS__NET_REDUCE;
    DS__TRY(ds__stage_begin(st));
    if (ds__reduce_is_by_engine(st))
        return ds__stage_is_in_pieces(st, st->in[0].d.bytes)
                   ? ds__reduce_in_pieces(st, kind)
                   : ds__stage_run(st, kind, 0, ds__reduce_prepare, ds__stage_finish_all);
    DS__TRY(ds__reduce_check_fixed(st));
    if (st->g->devices * st->in[0].d.bytes <= DS__REDUCE_SMALL)
        return ds__stage_run(st, st->root < 0 ? DS__NET_ALL_GATHER : DS__NET_GATHER, 1,
                             ds__reduce_gather, ds__reduce_small_finish);
    return ds__reduce_large(st);
}

static ds_result ds__across_all_reduce(ds__stage *st, const ds__comm_call *c) {
    st->root = -1;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins + st->outs));
    DS__TRY(ds__reduction_check((ds__reduction){ c->op, st->call.dtype }));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_SAME));
    return st->in[0].d.count ? ds__reduce_run(st) : DS_OK;
}

static ds_result ds__across_reduce(ds__stage *st, const ds__comm_call *c) {
    size_t device;
    int here = ds__stage_root(st, &device);
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_single(st, c->out[0], here, "out"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, here ? 1 : 0, device));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins + st->outs));
    DS__TRY(ds__reduction_check((ds__reduction){ c->op, st->call.dtype }));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_ANY_SAME));
    return st->in[0].d.count ? ds__reduce_run(st) : DS_OK;
}

/* ---- reduce_scatter -------------------------------------------------------------------------- */

static ds_result ds__reduce_scatter_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    DS__TRY(ds__reduce_local(st, &m->from));
    m->to = ds__stile_memory(&st->out[0]);
    if (st->outs != 1 || !ds__stile_is_direct(st, &st->out[0]) ||
        ds__stage_overlaps(&st->out[0].d, &st->in[0].d))
        DS__TRY(ds__stage_buffer(st, ds__slice_bytes(st), &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->parts = ds__parts_of_slices(st, tables, 1);
    st->moved += st->in[0].d.bytes;
    return DS_OK;
}

/* The end of the fixed order: reduces the slices of ds__reduce_exchange. */
static ds_result ds__reduce_scatter_fixed(ds__stage *st) {
    ds__smem all;
    ds__smem sum;
    size_t mine = ds__slice_bytes(st);
    DS__TRY(ds__reduce_slices(st, &all));
    for (size_t i = 0; i < st->outs; i++) {
        const ds__stile *to = &st->out[i];
        if (!to->d.count)
            continue;
        sum = ds__stile_memory(to);
        if (!ds__stile_is_on_lead(st, to))
            DS__TRY(ds__stage_lead_buffer(st, to->d.bytes, &sum));
        DS__TRY(ds__stage_reduce(st, ds__smem_at(all, ds__tiles_bytes(st->out, i)), mine,
                                 st->g->devices, sum, to->d.count));
        DS__TRY(ds__stage_unpack(st, to, sum));
    }
    return DS_OK;
}

static ds_result ds__across_reduce_scatter(ds__stage *st, const ds__comm_call *c) {
    const int64_t *sizes = st->more->sizes;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins));
    DS__TRY(ds__stage_check_parts(st, st->in[0].d.ndim ? &st->in[0].d : NULL, st->out, sizes, 0));
    DS__TRY(ds__reduction_check((ds__reduction){ c->op, st->call.dtype }));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_PART_OF_INPUT));
    if (!st->in[0].d.count)
        return DS_OK;
    int64_t rows = st->in[0].d.shape[0];
    DS__TRY(ds__slices_of_devices(st, sizes, rows / (int64_t)st->g->devices,
                                  (size_t)(st->in[0].d.count / rows)));
    DS__TRY(ds__stage_begin(st));
    if (ds__reduce_is_by_engine(st))
        return ds__stage_run(st, DS__NET_REDUCE_SCATTER, 1, ds__reduce_scatter_prepare,
                             ds__stage_finish_parts);
    DS__TRY(ds__reduce_check_fixed(st));
    return ds__stage_run(st, DS__NET_ALL_TO_ALL, 2, ds__reduce_exchange, ds__reduce_scatter_fixed);
}

/* ranks/move.h - collectives of a group that move data.

   Implements broadcast, scatter, gather, all_gather and all_to_all between ranks.

   Policy: the engine exchanges parts between members of the communicator, each of which has the
   parts of its devices, one behind the other, in contiguous memory. With one device per member, and
   parts along dimension 0 of contiguous tensors, that is the memory of the tensors. Otherwise parts
   are copied on the streams.

   Invariants: see ranks/stage.h.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */

/* ---- broadcast ------------------------------------------------------------------------------- */

/* A broadcast of memory that the engine does not reach. */
static ds_result ds__broadcast_in_pieces(ds__stage *st) {
    const ds__stile *tile = st->ins ? &st->in[0] : &st->out[0];
    ds__smem none = { NULL, 0, 0 };
    ds__smem mem = ds__stile_memory(tile);
    if (mem.host || !(ds_tensor_is_contiguous)(&tile->t))
        DS__TRY(ds__stage_lead_buffer(st, tile->d.bytes, &mem));
    if (st->ins)
        DS__TRY(ds__stage_pack(st, tile, mem));
    DS__TRY(ds__stage_pieces(st, DS__NET_BROADCAST, st->ins ? mem : none, st->ins ? none : mem,
                             tile->d.count));
    return ds__stage_spread(st, mem);
}

static ds_result ds__broadcast_prepare(ds__stage *st, ds__net_op *net, void *unused) {
    const ds__stile *tile = st->ins ? &st->in[0] : &st->out[0];
    ds__smem *mem = &st->at->to;
    (void)unused;
    DS__TRY(st->ins ? ds__stage_source(st, tile, mem) : ds__stage_target(st, tile, mem));
    net->out = mem->at;
    net->count = tile->d.bytes;
    net->root = st->root;
    st->moved += tile->d.bytes;
    return DS_OK;
}

static ds_result ds__across_broadcast(ds__stage *st, const ds__comm_call *c) {
    size_t device;
    int here = ds__stage_root(st, &device);
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_check_single(st, c->in[0], here, "the tensor"));
    DS__TRY(ds__stage_tensors(st, c->in, here ? 1 : 0, c->out, c->out_count, device));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins + st->outs));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_ANY_SAME));
    if (!st->in[0].d.count)
        return DS_OK;
    DS__TRY(ds__stage_begin(st));
    if (ds__stage_is_in_pieces(st, st->in[0].d.bytes))
        return ds__broadcast_in_pieces(st);
    return ds__stage_run(st, DS__NET_BROADCAST, 0, ds__broadcast_prepare, ds__stage_finish_all);
}

/* ---- parts of one tensor --------------------------------------------------------------------- */

/* Parts of one tensor along a dimension: those of all devices of the group, or of this rank. */
typedef struct ds__division_of {
    const ds__stile *whole;
    const int64_t *sizes;
    int64_t all; /* size of the dimension */
    int dim;
    int64_t other; /* elements of a part of size 1 */
} ds__division_of;

/* Returns the elements of the part of device k of the group. */
static size_t ds__division_count(const ds__stage *st, const ds__division_of *v, size_t k) {
    return (size_t)(ds__size_of(st, v->sizes, v->all, k) * v->other);
}

/* Returns 1 if all parts lie one behind the other in memory of the engine. */
static int ds__division_is_direct(const ds__stage *st, const ds__division_of *v) {
    int64_t outer = 1;
    for (int k = 0; k < v->dim; k++)
        outer *= v->whole->d.shape[k];
    return ds__stile_is_direct(st, v->whole) && outer == 1;
}

/* Copies between the parts of a tensor and a buffer with all parts, one behind the other. */
static ds_result ds__division_copy(ds__stage *st, const ds__division_of *v, ds__smem buffer,
                                   int to_buffer) {
    size_t at = 0;
    ds__stile *part = ds__stage_alloc(st, sizeof *part);
    if (!part)
        return DS_ERR_OUT_OF_MEMORY;
    *part = *v->whole;
    part->t.shape = part->d.shape;
    part->t.strides = part->d.strides;
    part->t.data = v->whole->d.first;
    part->t.byte_offset = 0;
    for (size_t k = 0; k < st->g->devices; k++) {
        int64_t size = ds__size_of(st, v->sizes, v->all, k);
        part->d.shape[v->dim] = size;
        part->d.count = size * v->other;
        ds__smem mem = ds__smem_at(buffer, at);
        if (part->d.count)
            DS__TRY(to_buffer ? ds__stage_pack(st, part, mem) : ds__stage_unpack(st, part, mem));
        at += (size_t)part->d.count * part->d.item;
        if (part->d.count)
            part->t.data =
                (char *)part->t.data + size * part->d.strides[v->dim] * (int64_t)part->d.item;
        part->d.first = part->t.data;
    }
    return DS_OK;
}

/* Writes the table of the parts of all members. */
static ds__net_parts ds__division_parts(const ds__stage *st, const ds__division_of *v,
                                        void *table) {
    size_t *list = table;
    size_t n = (size_t)st->size;
    size_t item = v->whole->d.item;
    size_t at = 0;
    for (size_t r = 0; r < n; r++) {
        list[n + r] = at;
        for (size_t k = st->first[r]; k < st->first[r + 1]; k++)
            at += ds__division_count(st, v, k) * item;
        list[r] = at - list[n + r];
    }
    return (ds__net_parts){ list, list + n };
}

/* Gives memory of the engine for the tiles of the member: that of a single one, or a buffer. */
static ds_result ds__tiles_target(ds__stage *st, const ds__stile *tile, size_t count,
                                  ds__smem *out) {
    *out = ds__stile_memory(tile);
    if (count == 1 && ds__stile_is_direct(st, tile))
        return DS_OK;
    return ds__stage_buffer(st, ds__tiles_bytes(tile, count), out);
}

/* Describes the parts of a tensor; NULL: another member has it. */
static ds__division_of ds__division_open(const ds__stage *st, const ds__stile *whole) {
    ds__division_of v = { whole, st->more->sizes, 0, st->dim, 0 };
    if (whole) {
        v.all = whole->d.shape[v.dim];
        v.other = v.all ? whole->d.count / v.all : 0;
    }
    return v;
}

/* Gives memory of the engine with all parts of the tensor, one behind the other, or for them
   (`copies` 0). */
static ds_result ds__division_memory(ds__stage *st, const ds__division_of *v, int copies,
                                     ds__smem *out) {
    *out = (ds__smem){ NULL, 0, 0 };
    if (!v->whole)
        return DS_OK;
    *out = ds__stile_memory(v->whole);
    if (ds__division_is_direct(st, v))
        return DS_OK;
    DS__TRY(ds__stage_buffer(st, v->whole->d.bytes, out));
    return copies ? ds__division_copy(st, v, *out, 1) : DS_OK;
}

static ds_result ds__gather_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    ds__division_of v = ds__division_open(st, st->outs ? &st->out[0] : NULL);
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &m->from));
    DS__TRY(ds__division_memory(st, &v, 0, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = ds__tiles_bytes(st->in, st->ins);
    if (v.whole)
        net->parts = ds__division_parts(st, &v, tables);
    st->moved += net->count;
    return DS_OK;
}

static ds_result ds__gather_finish(ds__stage *st) {
    ds__division_of v = ds__division_open(st, st->outs ? &st->out[0] : NULL);
    ds__smem all = st->at->to;
    return v.whole && all.at != (void *)v.whole->d.first ? ds__division_copy(st, &v, all, 0)
                                                         : DS_OK;
}

static ds_result ds__across_gather(ds__stage *st, const ds__comm_call *c) {
    size_t device;
    int here = ds__stage_root(st, &device);
    st->dim = c->dim;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_single(st, c->out[0], here, "out"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, here ? 1 : 0, device));
    DS__TRY(ds__dim_resolve(&st->dim, st->in[0].d.ndim));
    DS__TRY(
        ds__stage_check_parts(st, here ? &st->out[0].d : NULL, st->in, st->more->sizes, st->dim));
    ds__stage_count(st, &st->in[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, st->dim ? DS__STAGE_NEVER : DS__STAGE_PART_OF_OUTPUT));
    DS__TRY(ds__stage_begin(st));
    return ds__stage_run(st, DS__NET_GATHER, 1, ds__gather_prepare, ds__gather_finish);
}

static ds_result ds__scatter_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    ds__division_of v = ds__division_open(st, st->ins ? &st->in[0] : NULL);
    DS__TRY(ds__division_memory(st, &v, 1, &m->from));
    DS__TRY(ds__tiles_target(st, st->out, st->outs, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = ds__tiles_bytes(st->out, st->outs);
    if (v.whole)
        net->parts = ds__division_parts(st, &v, tables);
    st->moved += net->count;
    return DS_OK;
}

static ds_result ds__across_scatter(ds__stage *st, const ds__comm_call *c) {
    size_t device;
    int here = ds__stage_root(st, &device);
    st->dim = c->dim;
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_check_single(st, c->in[0], here, "the tensor"));
    DS__TRY(ds__stage_tensors(st, c->in, here ? 1 : 0, c->out, c->out_count, device));
    DS__TRY(ds__dim_resolve(&st->dim, st->out[0].d.ndim));
    DS__TRY(
        ds__stage_check_parts(st, here ? &st->in[0].d : NULL, st->out, st->more->sizes, st->dim));
    ds__stage_count(st, &st->out[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, st->dim ? DS__STAGE_NEVER : DS__STAGE_PART_OF_INPUT));
    DS__TRY(ds__stage_begin(st));
    return ds__stage_run(st, DS__NET_SCATTER, 1, ds__scatter_prepare, ds__stage_finish_parts);
}

/* ---- all_gather ------------------------------------------------------------------------------ */

static ds_result ds__all_gather_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    ds__division_of v = ds__division_open(st, &st->out[0]);
    DS__TRY(ds__stage_target(st, &st->out[0], &m->to));
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &m->from));
    net->in = m->from.at;
    net->out = m->to.at;
    net->parts = ds__division_parts(st, &v, tables);
    st->moved += st->out[0].d.bytes;
    return DS_OK;
}

static ds_result ds__across_all_gather(ds__stage *st, const ds__comm_call *c) {
    st->dim = 0;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    for (size_t i = 0; i < st->outs; i++)
        DS__TRY(ds__stage_check_parts(st, &st->out[i].d, st->in, st->more->sizes, 0));
    ds__stage_count(st, &st->in[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_PART_OF_OUTPUT));
    if (!st->out[0].d.count)
        return DS_OK;
    DS__TRY(ds__stage_begin(st));
    return ds__stage_run(st, DS__NET_ALL_GATHER, 1, ds__all_gather_prepare, ds__stage_finish_all);
}

/* ---- all_to_all ------------------------------------------------------------------------------ */

/* Rows that the device of a tile exchanges with device k of the group. */
static int64_t ds__exchange_rows(const ds__stage *st, const int64_t *sizes, const ds__stile *tile,
                                 size_t k) {
    return sizes ? sizes[tile->device * st->g->devices + k]
                 : tile->d.shape[0] / (int64_t)st->g->devices;
}

/* Checks the sizes of the parts of one side. */
static ds_result ds__exchange_check(const ds__stage *st, const int64_t *sizes,
                                    const ds__stile *tile, const char *words) {
    for (size_t i = 0; i < st->count; i++) {
        const ds__dims *d = &tile[i].d;
        DS__REQUIRE(d->ndim >= 1, "%s tensor at index %zu has no dimension to divide", words, i);
        DS__TRY(ds__sizes_check(st, sizes ? sizes + i * st->g->devices : NULL, d->shape[0],
                                ds__name_text(ds__name_of(words, i))));
        DS__REQUIRE(
            d->ndim == tile[0].d.ndim && memcmp(d->shape + 1, st->in[0].d.shape + 1,
                                                (size_t)(d->ndim - 1) * sizeof *d->shape) == 0,
            "%s tensor at index %zu differs from the first input in a dimension above 0", words, i);
    }
    return DS_OK;
}

/* Writes the table of one side: for each member the parts of all pairs of devices. */
static ds__net_parts ds__exchange_parts(const ds__stage *st, const int64_t *sizes,
                                        const ds__stile *tile, void *table) {
    size_t *list = table;
    size_t n = (size_t)st->size;
    size_t at = 0;
    for (size_t r = 0; r < n; r++) {
        list[n + r] = at;
        for (size_t i = 0; i < st->ins; i++) {
            const ds__dims *d = &tile[i].d;
            size_t row = d->shape[0] ? d->bytes / (size_t)d->shape[0] : 0;
            for (size_t k = st->first[r]; k < st->first[r + 1]; k++)
                at += (size_t)ds__exchange_rows(st, sizes, &tile[i], k) * row;
        }
        list[r] = at - list[n + r];
    }
    return (ds__net_parts){ list, list + n };
}

/* Copies between the tensors of one side and a buffer with the parts in the order of the engine:
   for each member, for each device of the sender, for each device of the receiver. */
static ds_result ds__exchange_copy(ds__stage *st, const int64_t *sizes, const ds__stile *tile,
                                   ds__smem buffer, int sends) {
    size_t n = (size_t)st->size;
    size_t at = 0;
    for (size_t r = 0; r < n; r++) {
        size_t peers = st->first[r + 1] - st->first[r];
        for (size_t p = 0; p < peers * st->ins; p++) {
            const ds__stile *t = &tile[sends ? p / peers : p % st->ins];
            size_t k = st->first[r] + (sends ? p % peers : p / st->ins);
            size_t row = t->d.shape[0] ? t->d.bytes / (size_t)t->d.shape[0] : 0;
            int64_t before = 0;
            for (size_t j = 0; j < k; j++)
                before += ds__exchange_rows(st, sizes, t, j);
            int64_t rows = ds__exchange_rows(st, sizes, t, k);
            int64_t elements = rows * (int64_t)(row / t->d.item);
            ds__smem mem = ds__stile_memory(t);
            ds_tensor a = ds__smem_flat(st, mem, (size_t)before * row, &elements);
            ds_tensor b = ds__smem_flat(st, buffer, at, &elements);
            if (elements && sends)
                DS__TRY(ds__stage_copy(st, &b, buffer.device, &a, t->device));
            else if (elements)
                DS__TRY(ds__stage_copy(st, &a, t->device, &b, buffer.device));
            at += (size_t)rows * row;
        }
    }
    return DS_OK;
}

/* Makes the tensors of one side contiguous: replaces a strided tile by a temporary one. */
static ds_result ds__exchange_flatten(ds__stage *st, ds__stile *tile, int copies) {
    if ((ds_tensor_is_contiguous)(&tile->t))
        return DS_OK;
    ds__smem mem = { NULL, 0, tile->device };
    DS__TRY(ds__stage_temp(st, tile->device, tile->d.bytes, 0, &mem.at));
    if (copies)
        DS__TRY(ds__stage_pack(st, tile, mem));
    tile->t = ds__smem_like(st, mem, tile);
    tile->d.first = mem.at;
    tile->d.device = tile->t.device;
    return DS_OK;
}

static ds_result ds__all_to_all_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    size_t n = st->ins;
    const int64_t *sizes = st->more->sizes;
    m->flat = ds__stage_alloc(st, 2 * n * sizeof *m->flat);
    if (!m->flat)
        return DS_ERR_OUT_OF_MEMORY;
    ds__stile *in = m->flat;
    ds__stile *out = m->flat + n;
    memcpy(in, st->in, n * sizeof *in);
    memcpy(out, st->out, n * sizeof *out);
    for (size_t i = 0; i < 2 * n; i++)
        DS__TRY(ds__exchange_flatten(st, &m->flat[i], i < n));
    DS__TRY(ds__tiles_target(st, in, n, &m->from));
    if (m->from.at != (void *)in->d.first)
        DS__TRY(ds__exchange_copy(st, sizes, in, m->from, 1));
    DS__TRY(ds__tiles_target(st, out, n, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->parts = ds__exchange_parts(st, sizes, in, tables);
    net->out_parts =
        ds__exchange_parts(st, st->more->out_sizes, out, (char *)tables + ds__parts_bytes(st));
    st->moved += ds__tiles_bytes(in, n);
    return DS_OK;
}

static ds_result ds__all_to_all_finish(ds__stage *st) {
    const ds__stage_member *m = st->at;
    const ds__stile *out = m->flat + st->ins;
    if (m->to.at != (void *)out->d.first)
        DS__TRY(ds__exchange_copy(st, st->more->out_sizes, out, m->to, 0));
    for (size_t i = 0; i < st->outs; i++)
        DS__TRY(ds__stage_unpack(st, &st->out[i], ds__stile_memory(&out[i])));
    return DS_OK;
}

static ds_result ds__across_all_to_all(ds__stage *st, const ds__comm_call *c) {
    const ds_ranks_options *o = st->more;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__REQUIRE(
        !o->sizes == !o->out_sizes,
        "one of ranks_options->sizes and ranks_options->out_sizes is NULL; set both or none");
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    DS__TRY(ds__exchange_check(st, o->sizes, st->in, "input"));
    DS__TRY(ds__exchange_check(st, o->out_sizes, st->out, "output"));
    ds__stage_count(st, &st->in[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_NEVER));
    DS__TRY(ds__stage_begin(st));
    return ds__stage_run(st, DS__NET_ALL_TO_ALL, 2, ds__all_to_all_prepare, ds__all_to_all_finish);
}

/* ranks/exchange.h - transfers between ranks, and barriers.

   Implements ds_ranks_exchange, ds_ranks_send, ds_ranks_receive and ds_ranks_barrier.

   Invariants: all transfers of a call are one operation, so that two ranks can send to each other.
   Transfers between the same two devices have the same tag and match in the order of the calls.
   Locks: `calls` of the group is held while operations are enqueued.
   Threads: caller's threads. */

enum { DS__EXCHANGE_TAGS = 32767 };

/* Checks the numbers of a transfer. */
static ds_result ds__transfer_check(const ds__group *g, const ds_ranks_transfer *t, size_t i) {
    DS__REQUIRE(t->kind == DS_RANKS_SEND || t->kind == DS_RANKS_RECEIVE,
                "transfer %zu has kind %d; use DS_RANKS_SEND or DS_RANKS_RECEIVE", i, t->kind);
    DS__REQUIRE(t->device < g->owns, "transfer %zu is for device %zu, but this rank has %zu", i,
                t->device, g->owns);
    DS__REQUIRE(t->peer < g->devices,
                "transfer %zu has device %zu as its other side, but the group has %zu devices", i,
                t->peer, g->devices);
    return DS_OK;
}

/* Returns the tag of the messages between the devices of a transfer, or -1: there is none. Members
   that are devices need none. */
static int ds__transfer_tag(const ds__stage *st, const ds_ranks_transfer *t) {
    const ds__group *g = st->g;
    if (st->each)
        return 0;
    int rank = ds__group_rank_of(g, t->peer);
    size_t peer = t->peer - g->first[rank];
    size_t peers = g->first[rank + 1] - g->first[rank];
    size_t tag = t->kind == DS_RANKS_SEND ? t->device * peers + peer : peer * g->owns + t->device;
    return tag < DS__EXCHANGE_TAGS ? (int)tag : -1;
}

/* Reads the tensors and gives the streams their devices. */
static ds_result ds__exchange_open(ds__stage *st, const ds_ranks_transfer *list, size_t count) {
    ds__group *g = ds__group_pin(st->options->ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_device *own = ds__stage_alloc(st, (count + 1) * (sizeof *own + sizeof(size_t)));
    ds_result r = own ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    size_t *device_of = own ? (size_t *)(void *)(own + count + 1) : NULL;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__transfer_check(g, &list[i], i);
        if (r < 0)
            break;
        own[i] = g->own[list[i].device];
        device_of[i] = list[i].device;
    }
    if (r == DS_OK)
        own[count] = g->own[0]; /* for ds__stage.leading */
    ds__group_unpin(g);
    if (r < 0)
        return r;
    st->own = own;
    st->device_of = device_of;
    st->count = count;
    r = ds__stage_open(st, DS__NET_EXCHANGE);
    const ds_tensor **tensors = r == DS_OK ? ds__stage_alloc(st, count * sizeof *tensors) : NULL;
    if (!tensors)
        return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        tensors[i] = list[i].tensor;
    r = ds__stage_tensors(st, tensors, count, NULL, 0, 0);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        st->in[i].receives = list[i].kind == DS_RANKS_RECEIVE;
    return r;
}

/* Returns 1 if transfer i is one of the selected member. */
static int ds__transfer_is_mine(const ds__stage *st, size_t i) {
    return ds__stage_member_of(st, i) == st->at;
}

/* Gives the transfers of the selected member their memory, and writes them at `out`. Returns their
   number in *out_count. */
static ds_result ds__exchange_member(ds__stage *st, const ds_ranks_transfer *list, ds__smem *mem,
                                     ds__net_transfer *out, size_t *out_count) {
    const ds__group *g = st->g;
    *out_count = 0;
    for (size_t i = 0; i < st->count; i++) {
        const ds_ranks_transfer *t = &list[i];
        int tag = ds__transfer_tag(st, t);
        if (!ds__transfer_is_mine(st, i))
            continue;
        if (tag < 0)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "transfer %zu: the two ranks have more than %d pairs of devices", i,
                            DS__EXCHANGE_TAGS);
        DS__TRY(t->kind == DS_RANKS_SEND ? ds__stage_source(st, &st->whole.in[i], &mem[i])
                                         : ds__stage_target(st, &st->whole.in[i], &mem[i]));
        int peer = st->each ? (int)t->peer : ds__group_rank_of(g, t->peer);
        out[(*out_count)++] = (ds__net_transfer){ .at = mem[i].at,
                                                  .bytes = st->whole.in[i].d.bytes,
                                                  .rank = peer,
                                                  .tag = tag,
                                                  .receive = t->kind == DS_RANKS_RECEIVE };
    }
    return DS_OK;
}

/* Prepares the operation: the transfers of all members, one member behind the other. */
static ds_result ds__exchange_prepare(ds__stage *st, ds__rop *op, const ds_ranks_transfer *list,
                                      ds__smem *mem) {
    size_t own = st->g->first[st->g->rank];
    ds__net_transfer *at = (ds__net_transfer *)(void *)((char *)op->tables + ds__stage_lists(st));
    op->transfers = (ds__rtransfer *)(void *)(at + st->count);
    for (size_t i = 0; i < st->count; i++)
        op->transfers[i] =
            (ds__rtransfer){ own + list[i].device, list[i].peer, (uint64_t)st->in[i].d.count, 0 };
    for (size_t m = 0; m < st->members; m++) {
        ds__net_op *net = op->members ? &op->members[m].op : &op->net;
        ds__stage_select(st, &st->member[m]);
        net->transfers = at;
        ds_result r = ds__exchange_member(st, list, mem, at, &net->transfer_count);
        at += net->transfer_count;
        ds__stage_select(st, &st->whole);
        if (r < 0)
            return r;
    }
    return DS_OK;
}

static ds_result ds__exchange_run(ds__stage *st, const ds_ranks_transfer *list) {
    size_t bytes = ds__tiles_bytes(st->in, st->count);
    ds__smem *mem = ds__stage_alloc(st, st->count * sizeof *mem);
    if (!mem)
        return DS_ERR_OUT_OF_MEMORY;
    DS__TRY(ds__stage_begin(st));
    ds__rop *op = ds__stage_op(st, DS__NET_EXCHANGE,
                               st->count * (sizeof(ds__net_transfer) + sizeof(ds__rtransfer)));
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__exchange_prepare(st, op, list, mem);
    if (r < 0) {
        ds__rop_give_back(op);
        return r;
    }
    DS__TRY(ds__stage_net(st, op, bytes));
    for (size_t i = 0; i < st->count; i++)
        if (list[i].kind == DS_RANKS_RECEIVE)
            DS__TRY(ds__stage_unpack(st, &st->in[i], mem[i]));
    return DS_OK;
}

/* Runs transfers in the public function `fn`. */
static ds_result ds__exchange(const ds_ranks_transfer *list, size_t count,
                              const ds_comm_options *options) {
    ds__stage st;
    DS__REQUIRE(options, "options is NULL; it must have a group");
    DS__REQUIRE(list || !count, "transfers is NULL");
    if (!count)
        return DS_OK;
    ds__stage_init(&st, options);
    ds_result r = ds__exchange_open(&st, list, count);
    st.call.root = list[0].peer;
    st.call.count = (uint64_t)(r == DS_OK ? st.in[0].d.count : 0);
    if (r == DS_OK)
        r = ds__exchange_run(&st, list);
    return ds__stage_close(&st, r);
}

DSDEF ds_result(ds_ranks_exchange)(const ds_ranks_transfer *transfers, size_t count,
                                   const ds_comm_options *options) {
    DS__ENTER("ds_ranks_exchange");
    return ds__exchange(transfers, count, options);
}

DSDEF ds_result(ds_ranks_send)(const ds_tensor *tensor, size_t peer,
                               const ds_comm_options *options) {
    DS__ENTER("ds_ranks_send");
    return ds__exchange(&(ds_ranks_transfer){ tensor, DS_RANKS_SEND, 0, peer }, 1, options);
}

DSDEF ds_result(ds_ranks_receive)(const ds_tensor *tensor, size_t peer,
                                  const ds_comm_options *options) {
    DS__ENTER("ds_ranks_receive");
    return ds__exchange(&(ds_ranks_transfer){ tensor, DS_RANKS_RECEIVE, 0, peer }, 1, options);
}

DSDEF ds_result(ds_ranks_barrier)(const ds_comm_options *options) {
    ds__stage st;
    DS__ENTER("ds_ranks_barrier");
    DS__REQUIRE(options, "options is NULL; it must have a group");
    ds__stage_init(&st, options);
    ds_result r = ds__stage_open(&st, DS__NET_BARRIER);
    if (r == DS_OK)
        r = ds__stage_begin(&st);
    ds__rop *op = r == DS_OK ? ds__stage_op(&st, DS__NET_BARRIER, 0) : NULL;
    if (r == DS_OK)
        r = op ? ds__stage_net(&st, op, 0) : DS_ERR_OUT_OF_MEMORY;
    return ds__stage_close(&st, r);
}

/* ranks/local_move.h - engine "local": moving data.

   Moves the data of an operation of all ranks on the calling thread (ds__local_move), after a check
   that the ranks agree.

   Policy: sums begin with the last rank, unlike those in fixed order, so that programs that depend
   on an order are found.

   Invariants: a result is written when all inputs are read, since an output may be an input of its
   rank.
   Locks: the lock of the world is held.
   Threads: any. */

static int ds__local_reduces(ds_dtype dtype, ds_reduce_op op) {
    ds__tls.mute++;
    int known =
        op != DS_REDUCE_AVERAGE && ds__reduction_check((ds__reduction){ op, dtype }) == DS_OK;
    ds__tls.mute--;
    return known;
}

/* Moves a transfer. DS_ERR_MISMATCH: the sides differ in size. */
static ds_result ds__local_transfer(const ds__net_transfer *send, int from,
                                    const ds__net_transfer *receive, int to) {
    if (send->bytes != receive->bytes)
        return ds__fail(DS_ERR_MISMATCH, "rank %d sends %zu bytes, but rank %d receives %zu", from,
                        send->bytes, to, receive->bytes);
    if (send->bytes)
        memmove(receive->at, send->at, send->bytes);
    return DS_OK;
}

/* Reduces the first `count` elements of all inputs to `out`. */
static ds_result ds__local_reduce(const ds__net_op *net, int size, size_t count, void *out) {
    enum { INPUTS = 8 };

    const void *in[INPUTS];
    ds__reduction reduction = { net->reduce_op, net->dtype };
    ds_result r = DS_OK;
    int left = size;
    while (left && r == DS_OK) {
        size_t n = 0;
        if (left < size)
            in[n++] = out;
        while (left && n < INPUTS)
            in[n++] = net[--left].in;
        r = ds__comm_reduce((ds_stream){ 0 }, reduction, out, in, n, count);
    }
    return r;
}

/* Reduces to one buffer and copies from there: outputs may be inputs. */
static ds_result ds__local_reduce_to(const ds__net_op *net, int size, int root) {
    size_t bytes = net->count * (ds_dtype_get_size)(net->dtype);
    void *sum = ds__host_alloc(bytes ? bytes : 1);
    if (!sum)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a reduction of %zu bytes", bytes);
    ds_result r = ds__local_reduce(net, size, net->count, sum);
    for (int i = 0; i < size && r == DS_OK && bytes; i++)
        if (root < 0 || root == i)
            memcpy(net[i].out, sum, bytes);
    ds__host_free(sum);
    return r;
}

static ds_result ds__local_reduce_scatter(const ds__net_op *net, int size) {
    size_t item = (ds_dtype_get_size)(net->dtype);
    size_t bytes = net->parts.at[size - 1] + net->parts.bytes[size - 1];
    char *sum = ds__host_alloc(bytes ? bytes : 1);
    if (!sum)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a reduction of %zu bytes", bytes);
    ds_result r = ds__local_reduce(net, size, bytes / item, sum);
    for (int i = 0; i < size && r == DS_OK; i++)
        if (net->parts.bytes[i])
            memcpy(net[i].out, sum + net->parts.at[i], net->parts.bytes[i]);
    ds__host_free(sum);
    return r;
}

static void ds__local_copy(void *to, const void *from, size_t bytes) {
    if (bytes && to != from)
        memmove(to, from, bytes);
}

static void ds__local_gather(const ds__net_op *net, int size, int to) {
    const ds__net_parts *parts = &net[to].parts;
    for (int i = 0; i < size; i++)
        ds__local_copy(ds__behind(net[to].out, parts->at[i]), net[i].in, parts->bytes[i]);
}

static void ds__local_all_to_all(const ds__net_op *net, int size) {
    for (int to = 0; to < size; to++)
        for (int from = 0; from < size; from++)
            ds__local_copy(ds__behind(net[to].out, net[to].out_parts.at[from]),
                           ds__behind(net[from].in, net[from].parts.at[to]),
                           net[to].out_parts.bytes[from]);
}

/* Returns 1 if two ranks agree in what they call. */
static int ds__local_agree(const ds__net_op *a, const ds__net_op *b) {
    int reduces = a->kind <= DS__NET_REDUCE || a->kind == DS__NET_REDUCE_SCATTER;
    int counts = a->kind <= DS__NET_BROADCAST;
    return a->kind == b->kind && a->root == b->root && (!counts || a->count == b->count) &&
           (!reduces || (a->reduce_op == b->reduce_op && a->dtype.code == b->dtype.code &&
                         a->dtype.bits == b->dtype.bits));
}

/* Checks that all ranks agree; the reason names the first two that do not. */
static ds_result ds__local_check(const ds__net_op *net, int size, char *reason) {
    for (int i = 1; i < size; i++) {
        int agree = ds__local_agree(&net[0], &net[i]);
        if (agree && net[0].kind == DS__NET_ALL_TO_ALL)
            for (int k = 0; k < size; k++)
                agree &= net[0].parts.bytes[k] == net[k].out_parts.bytes[0];
        if (agree)
            continue;
        snprintf(reason, DS__RANKS_REASON,
                 "rank 0 and rank %d called operations that differ in kind, count, type, operator "
                 "or root",
                 i);
        return DS_ERR_MISMATCH;
    }
    return DS_OK;
}

/* Moves the data of an operation that all ranks have started. On failure, writes the reason. */
static ds_result ds__local_move(const ds__net_op *net, int size, char *reason) {
    ds_result r = ds__local_check(net, size, reason);
    if (r < 0)
        return r;
    switch (net->kind) {
    case DS__NET_ALL_REDUCE:
        r = ds__local_reduce_to(net, size, -1);
        break;
    case DS__NET_REDUCE:
        r = ds__local_reduce_to(net, size, net->root);
        break;
    case DS__NET_REDUCE_SCATTER:
        r = ds__local_reduce_scatter(net, size);
        break;
    case DS__NET_BROADCAST:
        for (int i = 0; i < size; i++)
            ds__local_copy(net[i].out, net[net->root].out, net->count);
        break;
    case DS__NET_ALL_GATHER:
        for (int i = 0; i < size; i++)
            ds__local_gather(net, size, i);
        break;
    case DS__NET_GATHER:
        ds__local_gather(net, size, net->root);
        break;
    case DS__NET_SCATTER:
        for (int i = 0; i < size; i++)
            ds__local_copy(net[i].out, ds__behind(net[net->root].in, net[net->root].parts.at[i]),
                           net[i].count);
        break;
    case DS__NET_ALL_TO_ALL:
        ds__local_all_to_all(net, size);
        break;
    default:
        break;
    }
    if (r < 0)
        snprintf(reason, DS__RANKS_REASON, "no memory for the operation");
    return r;
}

/* ranks/local.h - engine "local": ranks as threads of one process.

   Implements the table of engines for tests: ranks find each other by an id, and the last rank that
   starts an operation moves the data of all ranks.

   Policy: ranks with the same id meet in a world (ds__world), which has a list of the operations
   that some rank has started. Operation n of one rank meets operation n of the others. Transfers
   meet by their ranks and tags.

   Invariants: an operation of the world has the description of each rank that has started it; when
   all have, its data is moved, and `left` counts the ranks that have not tested it yet. If a rank
   has given it up, its memory is not used any more, and its data is never moved. A world lives as
   long as one of its ranks.
   Locks: `ds__worlds.lock` guards the list of worlds, `lock` of a world everything in it. Data is
   moved under the latter. Both come after the lock of a group.
   Threads: any. */

/* Transfers of one rank that have not met their other side. */
typedef struct ds__local_message {
    struct ds__local_message *next;
    int from;
    int to;
    ds__net_transfer transfer;
    struct ds__local_part *part; /* the operation that waits for it */
} ds__local_message;

/* An exchange that a rank has started. */
typedef struct ds__local_part {
    size_t left; /* transfers that have not met their other side */
    ds_result result;
} ds__local_part;

/* An operation of all ranks. */
typedef struct ds__local_op {
    struct ds__local_op *next;
    uint64_t number;
    int arrived;
    int left;
    ds_result result;
    char reason[DS__RANKS_REASON];
    ds__net_op net[]; /* of each rank */
} ds__local_op;

typedef struct ds__world {
    struct ds__world *next;
    ds__mutex lock;
    int size;
    int joined;     /* ranks that have joined */
    int members;    /* ranks that have not left */
    ds_result code; /* of a failure that a rank has told */
    int teller;
    ds__local_op *ops;
    ds__local_message *sends;
    ds__local_message *receives;
    char reason[DS__RANKS_REASON];
    char *id;
    unsigned char has[]; /* ranks that have joined */
} ds__world;

/* A rank of a world: the communicator. */
typedef struct ds__local_comm {
    ds__world *world;
    int rank;
    uint64_t started; /* operations of all ranks */
    uint64_t splits;
} ds__local_comm;

static struct {
    ds__mutex lock;
    ds__world *first;
} ds__worlds = { .lock = DS__MUTEX_INIT };

/* ---- worlds ---------------------------------------------------------------------------------- */

/* Finds the world of an id that still waits for ranks, or creates it. ds__worlds.lock is held. */
static ds__world *ds__world_get(const char *id, int size) {
    ds__world *w = ds__worlds.first;
    while (w && (strcmp(w->id, id) != 0 || w->joined == w->size))
        w = w->next;
    if (w)
        return w;
    w = ds__host_alloc(sizeof *w + (size_t)size);
    char *name = w ? ds__copy_text(id, SIZE_MAX) : NULL;
    if (!name) {
        ds__host_free(w);
        return NULL;
    }
    ds__mutex_init(&w->lock);
    w->id = name;
    w->size = size;
    w->next = ds__worlds.first;
    ds__worlds.first = w;
    return w;
}

/* No transfer is left: a rank ends when its own are complete or withdrawn. */
static void ds__world_free(ds__world *w) {
    ds__world **at = &ds__worlds.first;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    while (w->ops) {
        ds__local_op *op = w->ops;
        w->ops = op->next;
        ds__host_free(op);
    }
    ds__mutex_destroy(&w->lock);
    ds__host_free(w->id);
    ds__host_free(w);
}

/* Takes a rank out of its world, which ends with its last rank. ds__worlds.lock is not held. */
static void ds__world_leave(ds__world *w) {
    ds__mutex_lock(&ds__worlds.lock);
    if (--w->members == 0)
        ds__world_free(w);
    ds__mutex_unlock(&ds__worlds.lock);
}

/* Enters a rank. ds__worlds.lock is held. */
static ds_result ds__world_enter(ds__world *w, int rank, int size) {
    DS__REQUIRE(w->size == size, "rank %d has joined group \"%s\" with size %d, others with %d",
                rank, w->id, size, w->size);
    if (w->has[rank])
        return ds__fail(DS_ERR_ILLEGAL_STATE, "rank %d has joined group \"%s\" already", rank,
                        w->id);
    w->has[rank] = 1;
    w->joined++;
    w->members++;
    return DS_OK;
}

/* Joins the world of an id and waits for all ranks. */
static ds_result ds__world_join(const char *id, int rank, int size, uint64_t deadline,
                                ds__net_comm *out) {
    ds_result r = DS_OK;
    ds__local_comm *c = ds__host_alloc(sizeof *c);
    ds__mutex_lock(&ds__worlds.lock);
    ds__world *w = c ? ds__world_get(id, size) : NULL;
    if (w)
        r = ds__world_enter(w, rank, size);
    else
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group");
    int joined = r == DS_OK;
    int present = 0; /* the most ranks; some may have given up before this one */
    while (r == DS_OK && w->joined < w->size) {
        present = w->joined > present ? w->joined : present;
        if (ds__now_ns() > deadline) { /* under the lock: no rank joins between this and the end */
            r = ds__fail(DS_ERR_TIMEOUT,
                         "%d of %d ranks have joined group \"%s\" within the time limit", present,
                         size, id);
            break;
        }
        ds__mutex_unlock(&ds__worlds.lock);
        ds__os_sleep(50000);
        ds__mutex_lock(&ds__worlds.lock);
    }
    if (r < 0 && joined) {
        w->has[rank] = 0;
        w->joined--;
        if (--w->members == 0)
            ds__world_free(w);
    }
    ds__mutex_unlock(&ds__worlds.lock);
    if (r < 0) {
        ds__host_free(c);
        return r;
    }
    c->world = w;
    c->rank = rank;
    *out = (ds__net_comm){ c, rank, size };
    return DS_OK;
}

static ds_result ds__local_init(const ds_ranks_desc *desc, uint64_t deadline, ds__net_comm *out) {
    DS__REQUIRE(desc->size >= 1, "size is %d; engine \"local\" needs the number of ranks",
                desc->size);
    DS__REQUIRE(desc->rank >= 0 && desc->rank < desc->size, "rank is %d; it must be 0 to %d",
                desc->rank, desc->size - 1);
    DS__REQUIRE(desc->id && *desc->id, "id is %s; engine \"local\" finds ranks by it",
                desc->id ? "empty" : "NULL");
    DS__REQUIRE(!desc->mpi_comm, "mpi_comm is set for engine \"local\"");
    return ds__world_join(desc->id, desc->rank, desc->size, deadline, out);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Finds or adds operation `number` of the world. `lock` is held. */
static ds__local_op *ds__local_op_get(ds__world *w, uint64_t number) {
    ds__local_op *op = w->ops;
    while (op && op->number != number)
        op = op->next;
    if (op)
        return op;
    op = ds__host_alloc(sizeof *op + (size_t)w->size * sizeof *op->net);
    if (!op)
        return NULL;
    op->number = number;
    op->left = w->size;
    op->result = DS_NOT_READY;
    op->next = w->ops;
    w->ops = op;
    return op;
}

/* Ends this rank's part of an operation. `lock` is held. */
static void ds__local_op_leave(ds__world *w, ds__local_op *op) {
    if (--op->left)
        return;
    ds__local_op **at = &w->ops;
    while (*at != op)
        at = &(*at)->next;
    *at = op->next;
    ds__host_free(op);
}

/* Adds a transfer to one list, unless its other side is in the other one: then the data moves. */
static ds_result ds__local_meet(ds__local_comm *c, const ds__net_transfer *t,
                                ds__local_part *part) {
    ds__world *w = c->world;
    int from = t->receive ? t->rank : c->rank;
    int to = t->receive ? c->rank : t->rank;
    ds__local_message **at = t->receive ? &w->sends : &w->receives;
    while (*at && ((*at)->from != from || (*at)->to != to || (*at)->transfer.tag != t->tag))
        at = &(*at)->next;
    ds__local_message *m = *at;
    if (m) {
        const ds__net_transfer *receive = t->receive ? t : &m->transfer;
        const ds__net_transfer *send = t->receive ? &m->transfer : t;
        ds_result r = ds__local_transfer(send, from, receive, to);
        *at = m->next;
        m->part->left--;
        part->left--;
        if (r < 0) { /* an earlier failure of the other side stays */
            part->result = r;
            m->part->result = r;
        }
        ds__host_free(m);
        return r;
    }
    m = ds__host_alloc(sizeof *m);
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a transfer");
    *m = (ds__local_message){ NULL, from, to, *t, part };
    at = t->receive ? &w->receives : &w->sends;
    while (*at)
        at = &(*at)->next;
    *at = m;
    return DS_OK;
}

/* Takes the transfers of an exchange back. `lock` is held. */
static void ds__local_withdraw(ds__world *w, const ds__local_part *part) {
    for (int k = 0; k < 2; k++)
        for (ds__local_message **at = k ? &w->receives : &w->sends; *at;) {
            ds__local_message *m = *at;
            if (m->part != part) {
                at = &m->next;
                continue;
            }
            *at = m->next;
            ds__host_free(m);
        }
}

static ds_result ds__local_start_exchange(ds__local_comm *c, const ds__net_op *net,
                                          ds__net_request *request) {
    ds_result r = DS_OK;
    ds__local_part *part = ds__host_alloc(sizeof *part);
    if (!part)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an exchange");
    part->left = net->transfer_count;
    ds__mutex_lock(&c->world->lock);
    for (size_t i = 0; i < net->transfer_count && r == DS_OK; i++)
        r = ds__local_meet(c, &net->transfers[i], part);
    if (r < 0)
        ds__local_withdraw(c->world, part);
    ds__mutex_unlock(&c->world->lock);
    if (r < 0) {
        ds__host_free(part);
        return r;
    }
    request->at[0] = NULL;
    request->at[1] = part;
    return DS_OK;
}

static ds_result ds__local_start(void *comm, const ds__net_op *net, ds__net_request *request) {
    ds__local_comm *c = comm;
    ds__world *w = c->world;
    if (net->kind == DS__NET_EXCHANGE)
        return ds__local_start_exchange(c, net, request);
    ds__mutex_lock(&w->lock);
    ds__local_op *op = ds__local_op_get(w, c->started + 1);
    if (op) {
        c->started++;
        op->net[c->rank] = *net;
        if (++op->arrived == w->size && op->result == DS_NOT_READY)
            op->result = ds__local_move(op->net, w->size, op->reason);
    }
    ds__mutex_unlock(&w->lock);
    request->at[0] = op;
    request->at[1] = NULL;
    return op ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an operation");
}

static ds_result ds__local_test(void *comm, ds__net_request *request) {
    ds__world *w = ((ds__local_comm *)comm)->world;
    ds__local_op *op = request->at[0];
    ds__local_part *part = request->at[1];
    ds_result r;
    ds__mutex_lock(&w->lock);
    if (part) {
        r = part->left && part->result == DS_OK ? DS_NOT_READY : part->result;
        if (r < 0) {
            ds__local_withdraw(w, part);
            ds__fail(r, "the two sides of a transfer differ in size");
        }
        if (r != DS_NOT_READY)
            ds__host_free(part);
    } else {
        r = op->result;
        if (r < 0)
            ds__fail(r, "%s", op->reason);
        if (r != DS_NOT_READY)
            ds__local_op_leave(w, op);
    }
    ds__mutex_unlock(&w->lock);
    return r;
}

/* Gives up an operation, which then ends with `code` on the other ranks. */
static void ds__local_give_up(ds__local_comm *c, ds__net_request *request, ds_result code,
                              const char *reason) {
    ds__local_op *op = request->at[0];
    ds__local_part *part = request->at[1];
    ds__mutex_lock(&c->world->lock);
    if (part) {
        ds__local_withdraw(c->world, part);
        ds__host_free(part);
    } else {
        if (op->result == DS_NOT_READY) { /* it will never be complete */
            op->result = code;
            snprintf(op->reason, sizeof op->reason, "rank %d has given up the operation: %s",
                     c->rank, reason);
        }
        ds__local_op_leave(c->world, op);
    }
    ds__mutex_unlock(&c->world->lock);
}

static void ds__local_abandon(void *comm, ds__net_request *request) {
    ds__local_give_up(comm, request, DS_ERR_ABORTED, "its group has failed");
}

/* ---- failures, split and end ----------------------------------------------------------------- */

static void ds__local_tell(void *comm, ds_result code, const char *reason) {
    ds__local_comm *c = comm;
    ds__world *w = c->world;
    ds__mutex_lock(&w->lock);
    if (w->code == DS_OK) {
        w->code = code;
        w->teller = c->rank;
        snprintf(w->reason, sizeof w->reason, "%s", reason);
    }
    ds__mutex_unlock(&w->lock);
}

static ds_result ds__local_hear(void *comm, char reason[DS__RANKS_REASON], int *out_rank) {
    ds__local_comm *c = comm;
    ds__world *w = c->world;
    ds__mutex_lock(&w->lock);
    ds_result r = w->teller == c->rank ? DS_OK : w->code;
    if (r < 0) {
        memcpy(reason, w->reason, DS__RANKS_REASON);
        *out_rank = w->teller;
    }
    ds__mutex_unlock(&w->lock);
    return r;
}

enum { DS__LOCAL_ID = 160 };

/* Writes the id of a world that is made of another one. */
static const char *ds__local_id(const ds__local_comm *c, const char *how, uint64_t number,
                                int color, char out[DS__LOCAL_ID]) {
    snprintf(out, DS__LOCAL_ID, "%p %s %llu %d", (void *)c->world, how, (unsigned long long)number,
             color);
    return out;
}

/* Waits on this thread for an operation of the engine. */
static ds_result ds__local_wait(ds__local_comm *c, ds__net_request *request, uint64_t deadline) {
    for (;;) {
        ds_result r = ds__local_test(c, request);
        if (r != DS_NOT_READY)
            return r;
        if (ds__now_ns() > deadline) {
            const char *reason = "not all ranks have called within the time limit";
            ds__local_give_up(c, request, DS_ERR_TIMEOUT, reason);
            return ds__fail(DS_ERR_TIMEOUT, "%s", reason);
        }
        ds__os_sleep(50000);
    }
}

/* Computes the new rank and size of the rank among those with its color. pairs: color and key. */
static void ds__local_order(const int (*pairs)[2], int count, int me, int *rank, int *size) {
    *rank = *size = 0;
    for (int i = 0; i < count; i++) {
        if (pairs[i][0] != pairs[me][0])
            continue;
        ++*size;
        *rank += pairs[i][1] < pairs[me][1] || (pairs[i][1] == pairs[me][1] && i < me);
    }
}

static ds_result ds__local_split(void *comm, int color, int key, uint64_t deadline,
                                 ds__net_comm *out) {
    ds__local_comm *c = comm;
    int n = c->world->size;
    int pair[2] = { color, key };
    int rank;
    int size;
    char id[DS__LOCAL_ID];
    ds__net_request request = { { NULL } };
    size_t *parts = ds__host_alloc((size_t)n * (2 * sizeof *parts + sizeof pair));
    if (!parts)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a split");
    int(*pairs)[2] = (void *)(parts + 2 * n);
    for (size_t i = 0; i < (size_t)n; i++) {
        parts[i] = sizeof pair;
        parts[(size_t)n + i] = i * sizeof pair;
    }
    ds__net_op gather = {
        .kind = DS__NET_ALL_GATHER, .in = pair, .out = pairs, .parts = { parts, parts + n }
    };
    out->comm = NULL;
    ds_result r = ds__local_start(c, &gather, &request);
    if (r == DS_OK)
        r = ds__local_wait(c, &request, deadline);
    if (r == DS_OK && color >= 0) {
        ds__local_order((const int(*)[2])pairs, n, c->rank, &rank, &size);
        r = ds__world_join(ds__local_id(c, "split", c->splits, color, id), rank, size, deadline,
                           out);
    }
    c->splits++;
    ds__host_free(parts);
    return r;
}

static ds_result ds__local_shrink(void *comm, const int *excluded, size_t count, uint64_t deadline,
                                  ds__net_comm *out) {
    ds__local_comm *c = comm;
    char id[DS__LOCAL_ID];
    int size = 0;
    int rank = 0;
    for (int i = 0; i < c->world->size; i++) {
        int gone = 0;
        for (size_t k = 0; k < count; k++)
            gone |= excluded[k] == i;
        rank += i < c->rank && !gone;
        size += !gone;
    }
    return ds__world_join(ds__local_id(c, "shrink", count, 0, id), rank, size, deadline, out);
}

static ds_result ds__local_grow_id(void *comm, char out[DS_RANKS_ID_SIZE]) {
    (void)comm;
    snprintf(out, DS_RANKS_ID_SIZE, "%016llx", (unsigned long long)ds__os_cookie());
    return DS_OK;
}

static ds_result ds__local_grow(void *comm, const char *id, int size, uint64_t deadline,
                                ds__net_comm *out) {
    const ds__local_comm *c = comm;
    return ds__world_join(id, c->rank, size, deadline, out);
}

static void ds__local_destroy(void *comm, int failed) {
    ds__local_comm *c = comm;
    (void)failed;
    ds__world_leave(c->world);
    ds__host_free(c);
}

/* Its threads copy with the processor. */
static int ds__local_reaches(ds__net_kind kind) {
    (void)kind;
    return 0;
}

static void ds__local_library(char *out, size_t size) {
    if (size)
        *out = '\0';
}

static void ds__local_shutdown(void) {
}

static const ds__ranks_engine ds__local_engine = { .name = "local",
                                                   .captures = 1,
                                                   .cancels = 1,
                                                   .reduces = ds__local_reduces,
                                                   .reaches = ds__local_reaches,
                                                   .init = ds__local_init,
                                                   .split = ds__local_split,
                                                   .shrink = ds__local_shrink,
                                                   .grow_id = ds__local_grow_id,
                                                   .grow = ds__local_grow,
                                                   .start = ds__local_start,
                                                   .test = ds__local_test,
                                                   .abandon = ds__local_abandon,
                                                   .tell = ds__local_tell,
                                                   .hear = ds__local_hear,
                                                   .destroy = ds__local_destroy,
                                                   .library = ds__local_library,
                                                   .shutdown = ds__local_shutdown };

/* ranks/mpi_abi.h - types, constants and functions of MPI.

   Declares the part of MPI that the engine "mpi" uses: by the standard ABI (MPI 5.0, chapter 20) if
   the library is loaded at run time (DS__MPI_LOADED), otherwise from the program's mpi.h.

   Policy:
   1. Names and values of the ABI are declared here, so no header of MPI is needed.
      tests/ranks/mpi_abi_check.c compares all of them with mpi_abi.h.
   2. Functions with counts are those with large counts (MPI_Ibcast_c), which the ABI always has. A
      linked MPI before 4.0 has only counts of int (ds__mpi_count).
   3. mpi.h of MPICH has integers as handles, that of Open MPI has pointers. Other rooms use the
      types of this room, and only assign and pass them.

   Invariants: the parameters of a function are the same in each form but for the type of counts.
   Locks: none.
   Threads: any. */

#if DS__MPI_LOADED

typedef struct ds__mpi_abi_comm *ds__mpi_comm;
typedef struct ds__mpi_abi_group *ds__mpi_group;
typedef struct ds__mpi_abi_request *ds__mpi_request;
typedef struct ds__mpi_abi_datatype *ds__mpi_datatype;
typedef struct ds__mpi_abi_op *ds__mpi_op;
typedef struct ds__mpi_abi_errhandler *ds__mpi_errhandler;
typedef int64_t ds__mpi_count;
typedef intptr_t ds__mpi_offset;

typedef struct ds__mpi_status {
    int source;
    int tag;
    int error;
    int internal[5];
} ds__mpi_status;

#define DS__MPI_COUNT_MAX ((size_t)INT64_MAX)

#define DS__MPI_COMM_NULL ((ds__mpi_comm)0x100)
#define DS__MPI_COMM_WORLD ((ds__mpi_comm)0x101)
#define DS__MPI_COMM_SELF ((ds__mpi_comm)0x102)
#define DS__MPI_REQUEST_NULL ((ds__mpi_request)0x180)
#define DS__MPI_ERRORS_RETURN ((ds__mpi_errhandler)0x143)
#define DS__MPI_IN_PLACE ((void *)1)
#define DS__MPI_STATUS_IGNORE ((ds__mpi_status *)0)

#define DS__MPI_SUM ((ds__mpi_op)0x21)
#define DS__MPI_MIN ((ds__mpi_op)0x22)
#define DS__MPI_MAX ((ds__mpi_op)0x23)
#define DS__MPI_PROD ((ds__mpi_op)0x24)

#define DS__MPI_DATATYPE_NULL ((ds__mpi_datatype)0x200)
#define DS__MPI_FLOAT ((ds__mpi_datatype)0x210)
#define DS__MPI_C_FLOAT_COMPLEX ((ds__mpi_datatype)0x212)
#define DS__MPI_DOUBLE ((ds__mpi_datatype)0x214)
#define DS__MPI_C_DOUBLE_COMPLEX ((ds__mpi_datatype)0x216)
#define DS__MPI_INT8_T ((ds__mpi_datatype)0x240)
#define DS__MPI_UINT8_T ((ds__mpi_datatype)0x241)
#define DS__MPI_BYTE ((ds__mpi_datatype)0x247)
#define DS__MPI_INT16_T ((ds__mpi_datatype)0x248)
#define DS__MPI_UINT16_T ((ds__mpi_datatype)0x249)
#define DS__MPI_INT32_T ((ds__mpi_datatype)0x250)
#define DS__MPI_UINT32_T ((ds__mpi_datatype)0x251)
#define DS__MPI_INT64_T ((ds__mpi_datatype)0x258)
#define DS__MPI_UINT64_T ((ds__mpi_datatype)0x259)

enum {
    DS__MPI_ANY_SOURCE = -1,
    DS__MPI_THREAD_SINGLE = 0,
    DS__MPI_THREAD_FUNNELED = 1024,
    DS__MPI_THREAD_SERIALIZED = 2048,
    DS__MPI_THREAD_MULTIPLE = 4096,
    DS__MPI_MAX_ERROR_STRING = 512,
    DS__MPI_MAX_LIBRARY_VERSION_STRING = 8192
};

#else

#include <mpi.h>

typedef MPI_Comm ds__mpi_comm;
typedef MPI_Group ds__mpi_group;
typedef MPI_Request ds__mpi_request;
typedef MPI_Datatype ds__mpi_datatype;
typedef MPI_Op ds__mpi_op;
typedef MPI_Errhandler ds__mpi_errhandler;
typedef MPI_Status ds__mpi_status;

#if MPI_VERSION >= 4
typedef MPI_Count ds__mpi_count;
typedef MPI_Aint ds__mpi_offset;
#define DS__MPI_COUNT_MAX ((size_t)INT64_MAX)
#define DS__MPI_COUNTED_NAME(name) MPI_##name##_c
#else
typedef int ds__mpi_count;
typedef int ds__mpi_offset;
#define DS__MPI_COUNT_MAX ((size_t)INT_MAX)
#define DS__MPI_COUNTED_NAME(name) MPI_##name
#endif

#define DS__MPI_COMM_NULL MPI_COMM_NULL
#define DS__MPI_COMM_WORLD MPI_COMM_WORLD
#define DS__MPI_COMM_SELF MPI_COMM_SELF
#define DS__MPI_REQUEST_NULL MPI_REQUEST_NULL
#define DS__MPI_ERRORS_RETURN MPI_ERRORS_RETURN
#define DS__MPI_IN_PLACE MPI_IN_PLACE
#define DS__MPI_STATUS_IGNORE MPI_STATUS_IGNORE

#define DS__MPI_SUM MPI_SUM
#define DS__MPI_MIN MPI_MIN
#define DS__MPI_MAX MPI_MAX
#define DS__MPI_PROD MPI_PROD

#define DS__MPI_DATATYPE_NULL MPI_DATATYPE_NULL
#define DS__MPI_FLOAT MPI_FLOAT
#define DS__MPI_C_FLOAT_COMPLEX MPI_C_FLOAT_COMPLEX
#define DS__MPI_DOUBLE MPI_DOUBLE
#define DS__MPI_C_DOUBLE_COMPLEX MPI_C_DOUBLE_COMPLEX
#define DS__MPI_INT8_T MPI_INT8_T
#define DS__MPI_UINT8_T MPI_UINT8_T
#define DS__MPI_BYTE MPI_BYTE
#define DS__MPI_INT16_T MPI_INT16_T
#define DS__MPI_UINT16_T MPI_UINT16_T
#define DS__MPI_INT32_T MPI_INT32_T
#define DS__MPI_UINT32_T MPI_UINT32_T
#define DS__MPI_INT64_T MPI_INT64_T
#define DS__MPI_UINT64_T MPI_UINT64_T

enum {
    DS__MPI_ANY_SOURCE = MPI_ANY_SOURCE,
    DS__MPI_THREAD_SINGLE = MPI_THREAD_SINGLE,
    DS__MPI_THREAD_FUNNELED = MPI_THREAD_FUNNELED,
    DS__MPI_THREAD_SERIALIZED = MPI_THREAD_SERIALIZED,
    DS__MPI_THREAD_MULTIPLE = MPI_THREAD_MULTIPLE,
    DS__MPI_MAX_ERROR_STRING = MPI_MAX_ERROR_STRING,
    DS__MPI_MAX_LIBRARY_VERSION_STRING = MPI_MAX_LIBRARY_VERSION_STRING
};

#endif

/* clang-format off */
/* X(function, parameters): functions without MPI_ in front, which return int. */
#define DS__MPI_FUNCTIONS(X) \
    X(Get_library_version, (char *version, int *length)) \
    X(Initialized, (int *flag)) \
    X(Finalized, (int *flag)) \
    X(Init_thread, (int *argc, char ***argv, int required, int *provided)) \
    X(Query_thread, (int *provided)) \
    X(Finalize, (void)) \
    X(Error_string, (int code, char *text, int *length)) \
    X(Comm_rank, (ds__mpi_comm comm, int *rank)) \
    X(Comm_size, (ds__mpi_comm comm, int *size)) \
    X(Comm_group, (ds__mpi_comm comm, ds__mpi_group *group)) \
    X(Group_incl, (ds__mpi_group group, int n, const int ranks[], ds__mpi_group *out)) \
    X(Group_free, (ds__mpi_group *group)) \
    X(Comm_create_group, (ds__mpi_comm comm, ds__mpi_group group, int tag, ds__mpi_comm *out)) \
    X(Comm_idup, (ds__mpi_comm comm, ds__mpi_comm *out, ds__mpi_request *request)) \
    X(Comm_set_errhandler, (ds__mpi_comm comm, ds__mpi_errhandler errhandler)) \
    X(Comm_free, (ds__mpi_comm *comm)) \
    X(Test, (ds__mpi_request *request, int *flag, ds__mpi_status *status)) \
    X(Cancel, (ds__mpi_request *request)) \
    X(Ibarrier, (ds__mpi_comm comm, ds__mpi_request *request))

/* The same for functions with counts, whose names have _c behind in the ABI. */
#define DS__MPI_COUNTED_FUNCTIONS(X) \
    X(Get_count, (const ds__mpi_status *status, ds__mpi_datatype type, ds__mpi_count *count)) \
    X(Isend, (const void *at, ds__mpi_count count, ds__mpi_datatype type, int to, int tag, \
              ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Irecv, (void *at, ds__mpi_count count, ds__mpi_datatype type, int from, int tag, \
              ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Ibcast, (void *at, ds__mpi_count count, ds__mpi_datatype type, int root, ds__mpi_comm comm, \
               ds__mpi_request *request)) \
    X(Iallreduce, (const void *in, void *out, ds__mpi_count count, ds__mpi_datatype type, \
                   ds__mpi_op op, ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Ireduce, (const void *in, void *out, ds__mpi_count count, ds__mpi_datatype type, \
                ds__mpi_op op, int root, ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Ireduce_scatter, (const void *in, void *out, const ds__mpi_count counts[], \
                        ds__mpi_datatype type, ds__mpi_op op, ds__mpi_comm comm, \
                        ds__mpi_request *request)) \
    X(Ireduce_scatter_block, (const void *in, void *out, ds__mpi_count count, \
                              ds__mpi_datatype type, ds__mpi_op op, ds__mpi_comm comm, \
                              ds__mpi_request *request)) \
    X(Iallgather, (const void *in, ds__mpi_count count, ds__mpi_datatype type, void *out, \
                   ds__mpi_count out_count, ds__mpi_datatype out_type, ds__mpi_comm comm, \
                   ds__mpi_request *request)) \
    X(Iallgatherv, (const void *in, ds__mpi_count count, ds__mpi_datatype type, void *out, \
                    const ds__mpi_count out_counts[], const ds__mpi_offset out_at[], \
                    ds__mpi_datatype out_type, ds__mpi_comm comm, ds__mpi_request *request)) \
    X(Igatherv, (const void *in, ds__mpi_count count, ds__mpi_datatype type, void *out, \
                 const ds__mpi_count out_counts[], const ds__mpi_offset out_at[], \
                 ds__mpi_datatype out_type, int root, ds__mpi_comm comm, \
                 ds__mpi_request *request)) \
    X(Iscatterv, (const void *in, const ds__mpi_count counts[], const ds__mpi_offset at[], \
                  ds__mpi_datatype type, void *out, ds__mpi_count out_count, \
                  ds__mpi_datatype out_type, int root, ds__mpi_comm comm, \
                  ds__mpi_request *request)) \
    X(Ialltoallv, (const void *in, const ds__mpi_count counts[], const ds__mpi_offset at[], \
                   ds__mpi_datatype type, void *out, const ds__mpi_count out_counts[], \
                   const ds__mpi_offset out_at[], ds__mpi_datatype out_type, ds__mpi_comm comm, \
                   ds__mpi_request *request))
/* clang-format on */

#define DS__MPI_MEMBER(function, parameters) int(*function) parameters;

/* The functions. */
typedef struct ds__mpi_table {
    DS__MPI_FUNCTIONS(DS__MPI_MEMBER)
    DS__MPI_COUNTED_FUNCTIONS(DS__MPI_MEMBER)
} ds__mpi_table;

#undef DS__MPI_MEMBER

/* ranks/mpi_load.h - MPI found and loaded at run time.

   Fills the table of MPI's functions (ds__mpi) by ds__mpi_load. Functions are called by
   DS__MPI_CALL, which reports an error of MPI with the name of the call and MPI's text.

   Policy:
   1. A process has one MPI. If the program is linked with MPI, or has loaded one of
      ds__mpi_names, that library is used, and no other one is loaded.
   2. Otherwise the library that DEVSTREAM_MPI_LIBRARY names is loaded, or DS__MPI_ABI_NAME.
   3. The library must have the standard ABI: MPI_Abi_get_version has version 1. libmpi.so.12 of
      MPICH has this function too, and answers -1, because its handles are not those of the ABI.
   4. A program that defines DEVSTREAM_MPI is linked with MPI. Its table is filled from mpi.h.

   Invariants: either all functions are set, or none is. The library is never closed.
   Locks: callers hold ds__mpi_state.mutex (ranks/mpi_comm.h).
   Threads: the table is written before the first communicator is created, then only read. */

static void *ds__mpi_handle; /* of the library; NULL: the process is linked with it */

#if DS__MPI_LOADED

static ds__mpi_table ds__mpi;

/* Libraries of which a process may have loaded one, the ABI's first: Python loads them without
   making their symbols visible. */
static const char *const ds__mpi_names[] = { DS__MPI_ABI_NAME, DS__MPI_OTHER_NAMES };

/* Returns DS_OK if the library has the ABI. library NULL: the process is linked with it. */
static ds_result ds__mpi_abi_check(void *library, const char *name, int in_process) {
    int (*get_version)(int *, int *);
    int major = -1;
    int minor = -1;
    void *found = ds__os_library_symbol(library, "MPI_Abi_get_version");
    memcpy(&get_version, &found, sizeof found);
    if (get_version && get_version(&major, &minor) == 0 && major == 1)
        return DS_OK;

    return ds__fail(DS_ERR_UNSUPPORTED, "%s does not have the standard ABI of MPI (version 1): %s",
                    name,
                    in_process ? "the process has this MPI, so no other one can be loaded; compile "
                                 "the program with DEVSTREAM_MPI and its mpi.h"
                               : "name a library with the ABI in DEVSTREAM_MPI_LIBRARY, for "
                                 "example " DS__MPI_ABI_NAME " of MPICH 5 (pip install mpich)");
}

/* Finds all functions. */
static ds_result ds__mpi_fill(void *library, const char *name) {
#define DS__MPI_NAME(function, parameters) "MPI_" #function,
#define DS__MPI_NAME_COUNTED(function, parameters) "MPI_" #function "_c",
    static const char *const names[] = { DS__MPI_FUNCTIONS(DS__MPI_NAME)
                                             DS__MPI_COUNTED_FUNCTIONS(DS__MPI_NAME_COUNTED) };
#undef DS__MPI_NAME
#undef DS__MPI_NAME_COUNTED
    void *found[sizeof names / sizeof names[0]];
    _Static_assert(sizeof found == sizeof ds__mpi, "the members are the names, in their order");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        found[i] = ds__os_library_symbol(library, names[i]);
        if (!found[i])
            return ds__fail(DS_ERR_UNSUPPORTED, "%s has no function %s", name, names[i]);
    }
    memcpy(&ds__mpi, found, sizeof ds__mpi);
    ds__mpi_handle = library;
    return DS_OK;
}

/* Finds the MPI that the process has. Returns 0 if it has none. */
static int ds__mpi_find(void **out_library, const char **out_name) {
    *out_library = NULL;
    *out_name = "the MPI library of the program";
    if (ds__os_library_symbol(NULL, "MPI_Init"))
        return 1;
    for (size_t i = 0; i < sizeof ds__mpi_names / sizeof ds__mpi_names[0]; i++) {
        *out_library = ds__os_library_loaded(ds__mpi_names[i]);
        *out_name = ds__mpi_names[i];
        if (*out_library)
            return 1;
    }
    return 0;
}

/* Finds or loads MPI, if that has not been done. */
static ds_result ds__mpi_load(void) {
    void *library;
    const char *name;
    const char *error = NULL;
    if (ds__mpi.Initialized)
        return DS_OK;

    int in_process = ds__mpi_find(&library, &name);
    if (!in_process) {
        const char *where = ds__os_environment("DEVSTREAM_MPI_LIBRARY");
        name = where ? where : ds__mpi_names[0];
        library = ds__os_library_share(name, &error);
        if (!library)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "MPI cannot be loaded (%.300s): install a library with the standard "
                            "ABI of MPI (pip install mpich) and name its " DS__MPI_ABI_NAME
                            " in DEVSTREAM_MPI_LIBRARY",
                            error ? error : name);
    }
    ds_result r = ds__mpi_abi_check(library, name, in_process);
    return r < 0 ? r : ds__mpi_fill(library, name);
}

#else

#define DS__MPI_SYMBOL(function, parameters) MPI_##function,
#define DS__MPI_SYMBOL_COUNTED(function, parameters) DS__MPI_COUNTED_NAME(function),
static const ds__mpi_table ds__mpi = { DS__MPI_FUNCTIONS(DS__MPI_SYMBOL)
                                           DS__MPI_COUNTED_FUNCTIONS(DS__MPI_SYMBOL_COUNTED) };
#undef DS__MPI_SYMBOL
#undef DS__MPI_SYMBOL_COUNTED

static ds_result ds__mpi_load(void) {
    return DS_OK;
}

#endif

/* Writes MPI's text of an error code. */
static void ds__mpi_error_format(int code, char out[DS__MPI_MAX_ERROR_STRING + 1]) {
    int length = 0;
    if (ds__mpi.Error_string(code, out, &length) != 0)
        length = snprintf(out, DS__MPI_MAX_ERROR_STRING, "error %d", code);
    out[length] = 0;
}

/* Reports a call of MPI that has failed. */
__attribute__((cold, noinline)) static ds_result ds__mpi_failed(int code, const char *call) {
    char text[DS__MPI_MAX_ERROR_STRING + 1];
    ds__mpi_error_format(code, text);
    return ds__fail(DS_ERR_FAILED, "%s failed: %s", call, text);
}

static inline ds_result ds__mpi_result(int code, const char *call) {
    return DS__LIKELY(code == 0) ? DS_OK : ds__mpi_failed(code, call);
}

/* Calls a function of MPI; gives DS_OK, or reports its error and gives DS_ERR_FAILED. */
#define DS__MPI_CALL(function, ...) ds__mpi_result(ds__mpi.function(__VA_ARGS__), "MPI_" #function)

/* Returns 1 if the library says that it accepts memory of GPUs. MPICH and Open MPI have the
   function, which no standard has. */
static int ds__mpi_asks_cuda(void) {
    int (*query)(void);
    void *found = ds__os_library_symbol(ds__mpi_handle, "MPIX_Query_cuda_support");
    memcpy(&query, &found, sizeof found);
    return query && query() == 1;
}

/* ranks/mpi_comm.h - communicators of MPI.

   Creates, splits, shrinks and destroys the communicators of the engine "mpi" (ds__mpi_link), and
   carries failures between ranks (ds__mpi_tell, ds__mpi_hear).

   Policy:
   1. A link has two communicators. `comm` has the operations of the group. `side` has the messages
      of failures, and the meetings of split and shrink, which run at the same time as operations.
   2. The functions that create communicators wait with a deadline, in steps that do not block:
      MPI_Comm_idup for a copy; a gathering of colors before a split; a message from each remaining
      rank before a shrink. MPI_Comm_create_group is called when all its ranks have arrived.
   3. A failure is a message of fixed size to every other rank. Each rank has a receive posted for
      it, so MPI_Test finds the message.
   4. If MPI was initialized with less than MPI_THREAD_MULTIPLE, one lock orders all calls of MPI
      (ds__mpi_begin). Such a program makes no calls of its own (DS_RANKS_NO_OTHER_MPI).

   Invariants: memory that a pending request of MPI uses is never freed. If a request cannot be
   completed, its memory and its communicator are leaked deliberately, and MPI is never finalized
   (ds__mpi_state.unfinished).
   Locks: ds__mpi_state.mutex, then ds__mpi_state.calls. No lock is held while a function waits.
   Threads: as ranks/engine.h says. */

enum {
    DS__MPI_TAG_FAILURE = 1,
    DS__MPI_TAG_MEETING = 2,
    DS__MPI_TAG_GROUP = 3,
    DS__MPI_TAG_END = 4,
    DS__MPI_TAG_COLLECTIVE = 32767, /* behind those of exchanges; each MPI has it */
    DS__MPI_TELL_ROUNDS = 64 /* tests of each message of a failure before its memory is leaked */
};

/* A failure, as it is sent. */
typedef struct ds__mpi_message {
    int32_t code; /* a ds_result */
    int32_t rank; /* -1: not known */
    char reason[DS__RANKS_REASON];
} ds__mpi_message;

typedef struct ds__mpi_link {
    ds__mpi_comm comm;
    ds__mpi_comm side;
    int rank;
    int size;
    ds__spinlock hearing; /* of the next three */
    int heard;            /* 1: `message` has a failure */
    ds__mpi_request listening;
    ds__mpi_message message;
} ds__mpi_link;

static struct {
    ds__mutex mutex;         /* guards loading, initialisation and end of MPI, and `owned` */
    ds__mutex calls;         /* taken for each call of MPI if `serialized` */
    _Atomic int serialized;  /* 1: MPI has less than MPI_THREAD_MULTIPLE */
    _Atomic int unfinished;  /* 1: a request was given up, so MPI_Finalize might wait for it */
    int owned;               /* 1: devstream has initialized MPI, and has the next two */
    ds__mpi_comm last;       /* a copy of MPI_COMM_WORLD, for the end of MPI */
    ds__mpi_request copying; /* the request of this copy */
    char told;               /* byte of a process that does not finalize MPI */
    int reaches_gpus;        /* 1: messages may be in memory of a GPU */
} ds__mpi_state = { .mutex = DS__MUTEX_INIT, .calls = DS__MUTEX_INIT };

/* Begin and end calls of MPI. */
static inline void ds__mpi_begin(void) {
    if (DS__UNLIKELY(atomic_load_explicit(&ds__mpi_state.serialized, memory_order_relaxed)))
        ds__mutex_lock(&ds__mpi_state.calls);
}

static inline void ds__mpi_end(void) {
    if (DS__UNLIKELY(atomic_load_explicit(&ds__mpi_state.serialized, memory_order_relaxed)))
        ds__mutex_unlock(&ds__mpi_state.calls);
}

/* Notes that a request was given up. */
static void ds__mpi_give_up(void) {
    atomic_store_explicit(&ds__mpi_state.unfinished, 1, memory_order_relaxed);
}

/* Waits for the requests until the deadline. step: the sentence of a failure begins with it. */
static ds_result ds__mpi_wait(ds__mpi_request *requests, int count, uint64_t deadline,
                              const char *step) {
    int done = 0;
    for (unsigned rounds = 0; done < count; rounds++) {
        int flag = 0;
        ds__mpi_begin();
        ds_result r = DS__MPI_CALL(Test, &requests[done], &flag, DS__MPI_STATUS_IGNORE);
        ds__mpi_end();
        if (r == DS_OK && !flag && ds__now_ns() >= deadline)
            r = ds__fail(DS_ERR_TIMEOUT, "%s: not all ranks have called within the time limit",
                         step);
        if (r < 0) {
            ds__mpi_give_up();
            return r;
        }

        done += flag != 0;
        if (!flag && rounds < 1000)
            ds__os_yield();
        else if (!flag)
            ds__os_sleep(100000);
    }
    return DS_OK;
}

/* Posts the receive of a failure. */
static ds_result ds__mpi_listen(ds__mpi_link *link) {
    return DS__MPI_CALL(Irecv, &link->message, (ds__mpi_count)sizeof link->message, DS__MPI_BYTE,
                        DS__MPI_ANY_SOURCE, DS__MPI_TAG_FAILURE, link->side, &link->listening);
}

/* Completes a link that has `comm`, and gives it to the caller. If that fails, the link is leaked,
   since a pending request may write to it. */
static ds_result ds__mpi_link_start(ds__mpi_link *link, uint64_t deadline, const char *step,
                                    ds__net_comm *out) {
    ds__mpi_request copying = DS__MPI_REQUEST_NULL;
    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_set_errhandler, link->comm, DS__MPI_ERRORS_RETURN);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_rank, link->comm, &link->rank);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_size, link->comm, &link->size);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_idup, link->comm, &link->side, &copying);
    ds__mpi_end();
    if (r == DS_OK)
        r = ds__mpi_wait(&copying, 1, deadline, step);
    if (r < 0)
        return r;

    ds__mpi_begin();
    r = DS__MPI_CALL(Comm_set_errhandler, link->side, DS__MPI_ERRORS_RETURN);
    if (r == DS_OK)
        r = ds__mpi_listen(link);
    ds__mpi_end();
    if (r < 0)
        return r;
    *out = (ds__net_comm){ link, link->rank, link->size };
    return DS_OK;
}

/* Returns a link without communicators; NULL, with an error: no memory. */
static ds__mpi_link *ds__mpi_link_alloc(void) {
    ds__mpi_link *link = ds__host_alloc(sizeof *link);
    if (!link) {
        (void)ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for a communicator");
        return NULL;
    }
    link->comm = DS__MPI_COMM_NULL;
    link->side = DS__MPI_COMM_NULL;
    link->listening = DS__MPI_REQUEST_NULL;
    return link;
}

/* Creates a link by a copy of a communicator of the program. */
static ds_result ds__mpi_link_copy(ds__mpi_comm from, uint64_t deadline, ds__net_comm *out) {
    static const char step[] = "copy of the communicator";
    ds__mpi_request copying = DS__MPI_REQUEST_NULL;
    ds__mpi_link *link = ds__mpi_link_alloc();
    if (!link)
        return DS_ERR_OUT_OF_MEMORY;

    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_idup, from, &link->comm, &copying);
    ds__mpi_end();
    if (r == DS_OK)
        r = ds__mpi_wait(&copying, 1, deadline, step);
    return r < 0 ? r : ds__mpi_link_start(link, deadline, step, out);
}

/* Creates a link of some ranks of another one, in the order of the list. All of them must have
   called. */
static ds_result ds__mpi_link_choose(ds__mpi_link *from, const int *ranks, int count,
                                     uint64_t deadline, ds__net_comm *out) {
    ds__mpi_group all;
    ds__mpi_group chosen;
    ds__mpi_link *link = ds__mpi_link_alloc();
    if (!link)
        return DS_ERR_OUT_OF_MEMORY;

    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_group, from->side, &all);
    if (r == DS_OK) {
        r = DS__MPI_CALL(Group_incl, all, count, ranks, &chosen);
        (void)ds__mpi.Group_free(&all);
    }
    if (r == DS_OK) {
        r = DS__MPI_CALL(Comm_create_group, from->side, chosen, DS__MPI_TAG_GROUP, &link->comm);
        (void)ds__mpi.Group_free(&chosen);
    }
    ds__mpi_end();
    return r < 0 ? r : ds__mpi_link_start(link, deadline, "new communicator", out);
}

static ds_result ds__mpi_hear(void *comm, char reason[DS__RANKS_REASON], int *out_rank);

/* ---- split ----------------------------------------------------------------------------------- */

/* A rank that takes part in a split. */
typedef struct ds__mpi_member {
    int32_t color;
    int32_t key;
} ds__mpi_member;

typedef struct ds__mpi_place {
    int key;
    int rank;
} ds__mpi_place;

/* Orders by key, then by rank. */
static int ds__mpi_place_compare(const void *left, const void *right) {
    const ds__mpi_place *a = left;
    const ds__mpi_place *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->rank - b->rank;
}

/* Memory of a split: leaked if the gathering is not complete. */
typedef struct ds__mpi_split_memory {
    ds__mpi_member mine;
    ds__mpi_member *members;
    ds__mpi_place *places;
    int *ranks;
} ds__mpi_split_memory;

static void ds__mpi_split_free(ds__mpi_split_memory *m) {
    ds__host_free(m->members);
    ds__host_free(m->places);
    ds__host_free(m->ranks);
    ds__host_free(m);
}

static ds__mpi_split_memory *ds__mpi_split_alloc(size_t size) {
    ds__mpi_split_memory *m = ds__host_alloc(sizeof *m);
    if (!m)
        return NULL;
    m->members = ds__host_alloc(size * sizeof *m->members);
    m->places = ds__host_alloc(size * sizeof *m->places);
    m->ranks = ds__host_alloc(size * sizeof *m->ranks);
    if (m->members && m->places && m->ranks)
        return m;
    ds__mpi_split_free(m);
    return NULL;
}

/* Lists the ranks of the own color in their new order; returns their number. */
static int ds__mpi_split_list(ds__mpi_split_memory *m, int size) {
    int count = 0;
    for (int i = 0; i < size; i++)
        if (m->members[i].color == m->mine.color)
            m->places[count++] = (ds__mpi_place){ m->members[i].key, i };
    qsort(m->places, (size_t)count, sizeof *m->places, ds__mpi_place_compare);
    for (int i = 0; i < count; i++)
        m->ranks[i] = m->places[i].rank;
    return count;
}

/* Fails if another rank has given up the split, after its color had arrived here: then
   MPI_Comm_create_group would wait for it for ever. */
static ds_result ds__mpi_split_check(ds__mpi_link *link) {
    char reason[DS__RANKS_REASON];
    int rank = 0;
    ds_result r = ds__mpi_hear(link, reason, &rank);
    return r < 0 ? ds__fail(r, "rank %d: %s", rank, reason) : DS_OK;
}

static ds_result ds__mpi_split(void *comm, int color, int key, uint64_t deadline,
                               ds__net_comm *out) {
    ds__mpi_link *link = comm;
    ds__mpi_request gathering = DS__MPI_REQUEST_NULL;
    ds__mpi_split_memory *m = ds__mpi_split_alloc((size_t)link->size);
    *out = (ds__net_comm){ NULL, 0, 0 };
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for a split of %d ranks",
                        link->size);

    m->mine = (ds__mpi_member){ color < 0 ? -1 : color, key };
    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Iallgather, &m->mine, 2, DS__MPI_INT32_T, m->members, 2,
                               DS__MPI_INT32_T, link->side, &gathering);
    ds__mpi_end();
    if (r == DS_OK)
        r = ds__mpi_wait(&gathering, 1, deadline, "split");
    if (r == DS_OK)
        r = ds__mpi_split_check(link);
    if (r < 0)
        return r;

    if (color >= 0) {
        int count = ds__mpi_split_list(m, link->size);
        r = ds__mpi_link_choose(link, m->ranks, count, deadline, out);
    }
    ds__mpi_split_free(m);
    return r;
}

/* ---- shrink ---------------------------------------------------------------------------------- */

/* Memory of a shrink: leaked if a message is pending. */
typedef struct ds__mpi_meeting {
    int count; /* remaining ranks */
    char sent;
    char *received;            /* one for each */
    int *ranks;                /* the remaining ranks in their order */
    ds__mpi_request *requests; /* two for each */
} ds__mpi_meeting;

static void ds__mpi_meeting_free(ds__mpi_meeting *m) {
    ds__host_free(m->received);
    ds__host_free(m->ranks);
    ds__host_free(m->requests);
    ds__host_free(m);
}

/* Returns a meeting of the ranks that are not excluded, or NULL. */
static ds__mpi_meeting *ds__mpi_meeting_alloc(int size, const int *excluded, size_t count) {
    ds__mpi_meeting *m = ds__host_alloc(sizeof *m);
    if (!m)
        return NULL;
    m->received = ds__host_alloc((size_t)size);
    m->ranks = ds__host_alloc((size_t)size * sizeof *m->ranks);
    m->requests = ds__host_alloc(2 * (size_t)size * sizeof *m->requests);
    if (!m->received || !m->ranks || !m->requests) {
        ds__mpi_meeting_free(m);
        return NULL;
    }

    for (int i = 0; i < size; i++) {
        int remains = 1;
        for (size_t k = 0; k < count; k++)
            remains &= excluded[k] != i;
        if (remains)
            m->ranks[m->count++] = i;
    }
    return m;
}

/* Sends a message to each remaining rank, and receives one of each. */
static ds_result ds__mpi_meet(ds__mpi_link *link, ds__mpi_meeting *m, uint64_t deadline) {
    ds_result r = DS_OK;
    ds__mpi_begin();
    for (int i = 0; r == DS_OK && i < m->count; i++) {
        r = DS__MPI_CALL(Irecv, &m->received[i], 1, DS__MPI_BYTE, m->ranks[i], DS__MPI_TAG_MEETING,
                         link->side, &m->requests[2 * i]);
        if (r == DS_OK)
            r = DS__MPI_CALL(Isend, &m->sent, 1, DS__MPI_BYTE, m->ranks[i], DS__MPI_TAG_MEETING,
                             link->side, &m->requests[2 * i + 1]);
    }
    ds__mpi_end();
    return r < 0 ? r : ds__mpi_wait(m->requests, 2 * m->count, deadline, "shrink");
}

/* Needs no MPIX_Comm_shrink, which the ABI has not: the list names the ranks that are gone, and
   MPI_Comm_create_group is called by the remaining ones only. */
static ds_result ds__mpi_shrink(void *comm, const int *excluded, size_t count, uint64_t deadline,
                                ds__net_comm *out) {
    ds__mpi_link *link = comm;
    *out = (ds__net_comm){ NULL, 0, 0 };
    ds__mpi_meeting *m = ds__mpi_meeting_alloc(link->size, excluded, count);
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for a shrink of %d ranks",
                        link->size);

    ds_result r = ds__mpi_meet(link, m, deadline);
    if (r < 0)
        return r;
    r = ds__mpi_link_choose(link, m->ranks, m->count, deadline, out);
    ds__mpi_meeting_free(m);
    return r;
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Sends the message to each other rank; returns the number of requests. */
static int ds__mpi_tell_send(ds__mpi_link *link, const ds__mpi_message *message,
                             ds__mpi_request *requests) {
    int count = 0;
    for (int to = 0; to < link->size; to++) {
        if (to == link->rank)
            continue;
        int code = ds__mpi.Isend(message, (ds__mpi_count)sizeof *message, DS__MPI_BYTE, to,
                                 DS__MPI_TAG_FAILURE, link->side, &requests[count]);
        count += code == 0;
    }
    return count;
}

/* Errors are ignored: the group has failed, and some ranks may be gone. */
static void ds__mpi_tell(void *comm, ds_result code, const char *reason) {
    ds__mpi_link *link = comm;
    ds__mpi_message *message = ds__host_alloc(sizeof *message);
    ds__mpi_request *requests = ds__host_alloc((size_t)link->size * sizeof *requests);
    if (!message || !requests) {
        ds__host_free(message);
        ds__host_free(requests);
        return;
    }
    message->code = (int32_t)code;
    message->rank = (int32_t)link->rank;
    snprintf(message->reason, sizeof message->reason, "%s", reason);

    ds__mpi_begin();
    int count = ds__mpi_tell_send(link, message, requests);
    int done = 0;
    for (int i = 0; i < count; i++) {
        int flag = 0;
        for (int round = 0; round < DS__MPI_TELL_ROUNDS && !flag; round++)
            if (ds__mpi.Test(&requests[i], &flag, DS__MPI_STATUS_IGNORE) != 0)
                break;
        done += flag != 0;
    }
    ds__mpi_end();

    ds__host_free(requests);
    if (done == count)
        ds__host_free(message);
    else
        ds__mpi_give_up();
}

/* A request of the engine fails if MPI knows that a process is gone; the rank is then -1. `hearing`
   is held. */
static ds_result ds__mpi_hear_locked(ds__mpi_link *link, char reason[DS__RANKS_REASON],
                                     int *out_rank) {
    ds__mpi_message *message = &link->message;
    if (!link->heard) {
        ds__mpi_begin();
        int code = ds__mpi.Test(&link->listening, &link->heard, DS__MPI_STATUS_IGNORE);
        ds__mpi_end();
        if (code == 0 && !link->heard)
            return DS_OK;

        if (code != 0) {
            char text[DS__MPI_MAX_ERROR_STRING + 1];
            ds__mpi_error_format(code, text);
            link->heard = 1;
            message->code = DS_ERR_FAILED;
            message->rank = -1;
            snprintf(message->reason, sizeof message->reason, "MPI_Test failed: %.340s", text);
        }
        message->reason[sizeof message->reason - 1] = 0;
    }
    memcpy(reason, message->reason, sizeof message->reason);
    *out_rank = message->rank;
    return (ds_result)message->code;
}

static ds_result ds__mpi_hear(void *comm, char reason[DS__RANKS_REASON], int *out_rank) {
    ds__mpi_link *link = comm;
    ds_result r = DS_OK;
    ds__spinlock_lock(&link->hearing);
    /* MPI may need several tests for a message that has arrived. */
    for (int round = 0; round < 4 && r == DS_OK; round++)
        r = ds__mpi_hear_locked(link, reason, out_rank);
    ds__spinlock_unlock(&link->hearing);
    return r;
}

static void ds__mpi_destroy(void *comm, int failed) {
    ds__mpi_link *link = comm;
    int done = link->heard;
    if (failed)
        ds__mpi_give_up();
    ds__mpi_begin();
    if (!done && ds__mpi.Cancel(&link->listening) == 0)
        (void)ds__mpi.Test(&link->listening, &done, DS__MPI_STATUS_IGNORE);
    if (!failed) {
        (void)ds__mpi.Comm_free(&link->side);
        (void)ds__mpi.Comm_free(&link->comm);
    }
    ds__mpi_end();
    if (done)
        ds__host_free(link);
    else
        ds__mpi_give_up();
}

/* ranks/mpi_op.h - operations of MPI.

   Starts, tests and abandons the operations of the engine "mpi" (ds__mpi_start) by the nonblocking
   calls of MPI.

   Policy:
   1. Data that is not reduced has the type MPI_BYTE. Reductions have MPI's type of the element.
   2. MPI_IN_PLACE is passed where input and output coincide.
   3. An exchange allocates its requests. A reduce-scatter with parts of different sizes allocates
      its counts; with counts of int, all operations with parts do. Others allocate nothing.
   4. A receive that gets fewer bytes than it has room for fails with DS_ERR_MISMATCH.
   5. Memory of a GPU is passed to MPI_Isend and MPI_Irecv only, if the library says that it accepts
      such memory: Open MPI does not in nonblocking collectives (FAQ "Running CUDA-aware Open MPI",
      entries 3 and 4). Reductions and broadcasts are staged in pinned memory, so that they use the
      library's algorithms.

   Invariants: buffers of a reduce-scatter do not overlap, unless in == out.
   Locks: as ranks/engine.h says; calls of MPI are between ds__mpi_begin and ds__mpi_end.
   Threads: any. */

/* A started operation, kept in its ds__net_request. */
typedef struct ds__mpi_pending {
    ds__mpi_request one;
    ds__mpi_request *list;             /* of an exchange: a request for each transfer */
    const ds__net_transfer *transfers; /* of an exchange */
    void *counts;                      /* allocated arrays of counts, or NULL */
    int count;                         /* length of the list */
    int done;                          /* requests of the list that are complete */
} ds__mpi_pending;

_Static_assert(sizeof(ds__mpi_pending) <= sizeof(ds__net_request), "an operation fits into it");

/* Parts as MPI has them. */
typedef struct ds__mpi_parts {
    const ds__mpi_count *counts;
    const ds__mpi_offset *at;
} ds__mpi_parts;

/* Returns MPI's type of an element, or DS__MPI_DATATYPE_NULL. */
static ds__mpi_datatype ds__mpi_type(ds_dtype dtype) {
    switch (dtype.lanes == 1 ? dtype.code << 8 | dtype.bits : 0) {
    case DS_CODE_INT << 8 | 8:
        return DS__MPI_INT8_T;
    case DS_CODE_INT << 8 | 16:
        return DS__MPI_INT16_T;
    case DS_CODE_INT << 8 | 32:
        return DS__MPI_INT32_T;
    case DS_CODE_INT << 8 | 64:
        return DS__MPI_INT64_T;
    case DS_CODE_UINT << 8 | 8:
    case DS_CODE_BOOL << 8 | 8:
        return DS__MPI_UINT8_T;
    case DS_CODE_UINT << 8 | 16:
        return DS__MPI_UINT16_T;
    case DS_CODE_UINT << 8 | 32:
        return DS__MPI_UINT32_T;
    case DS_CODE_UINT << 8 | 64:
        return DS__MPI_UINT64_T;
    case DS_CODE_FLOAT << 8 | 32:
        return DS__MPI_FLOAT;
    case DS_CODE_FLOAT << 8 | 64:
        return DS__MPI_DOUBLE;
    case DS_CODE_COMPLEX << 8 | 64:
        return DS__MPI_C_FLOAT_COMPLEX;
    case DS_CODE_COMPLEX << 8 | 128:
        return DS__MPI_C_DOUBLE_COMPLEX;
    default:
        return DS__MPI_DATATYPE_NULL;
    }
}

/* Returns MPI's operator. The sum of bools is a logical or, their product a logical and. */
static ds__mpi_op ds__mpi_operator(ds_dtype dtype, ds_reduce_op op) {
    int is_bool = dtype.code == DS_CODE_BOOL;
    if (op == DS_REDUCE_MAX)
        return DS__MPI_MAX;
    if (op == DS_REDUCE_MIN)
        return DS__MPI_MIN;
    if (op == DS_REDUCE_PRODUCT)
        return is_bool ? DS__MPI_MIN : DS__MPI_PROD;
    return is_bool ? DS__MPI_MAX : DS__MPI_SUM;
}

/* Not accepted: maximum and minimum of floats, since MPI does not say which result a NaN has; sums
   of integers of 8 and 16 bits, since the vector code of Open MPI (op/avx, 5.0.11) saturates where
   devstream wraps around. */
static int ds__mpi_reduces(ds_dtype dtype, ds_reduce_op op) {
    int integer = dtype.code == DS_CODE_INT || dtype.code == DS_CODE_UINT;
    int ordered = integer || dtype.code == DS_CODE_BOOL;
    if (op == DS_REDUCE_AVERAGE || ds__mpi_type(dtype) == DS__MPI_DATATYPE_NULL)
        return 0;
    if (op == DS_REDUCE_SUM)
        return !integer || dtype.bits >= 32;
    return ordered || op == DS_REDUCE_PRODUCT;
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* Refuses a count that this MPI cannot pass. */
static ds_result ds__mpi_count_check(size_t n) {
    if (DS__LIKELY(n <= DS__MPI_COUNT_MAX))
        return DS_OK;
    return ds__fail(DS_ERR_UNSUPPORTED,
                    "%zu elements or bytes are more than a call of this MPI can pass (%zu): pass "
                    "smaller tensors, or use an MPI library of version 4 or newer",
                    n, DS__MPI_COUNT_MAX);
}

/* Copies sizes that are multiples of `unit` as counts of units. */
static ds_result ds__mpi_counts_copy(const size_t *from, int size, size_t unit,
                                     ds__mpi_count *out) {
    for (int i = 0; i < size; i++) {
        ds_result r = ds__mpi_count_check(from[i] / unit);
        if (r < 0)
            return r;
        out[i] = (ds__mpi_count)(from[i] / unit);
    }
    return DS_OK;
}

/* Gives the parts as MPI has them. place: 0, or 1 for the second parts of an operation. Counts of
   the width of size_t are passed without a copy. */
static ds_result ds__mpi_parts_get(const ds__mpi_link *link, const ds__net_parts *parts, int place,
                                   ds__mpi_pending *p, ds__mpi_parts *out) {
    if (sizeof(ds__mpi_count) == sizeof(size_t)) {
        const void *counts = parts->bytes;
        const void *at = parts->at;
        *out = (ds__mpi_parts){ counts, at };
        return DS_OK;
    }

    size_t size = (size_t)link->size;
    if (!p->counts)
        p->counts = ds__host_alloc(4 * size * sizeof(ds__mpi_count));
    if (!p->counts)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for the counts of %d ranks",
                        link->size);
    ds__mpi_count *counts = (ds__mpi_count *)p->counts + 2 * size * (size_t)place;
    ds__mpi_count *at = counts + size;
    ds_result r = ds__mpi_counts_copy(parts->bytes, link->size, 1, counts);
    if (r == DS_OK)
        r = ds__mpi_counts_copy(parts->at, link->size, 1, at);
    const void *offsets = at; /* of the same type as the counts, if those are int */
    *out = (ds__mpi_parts){ counts, offsets };
    return r;
}

/* ---- kinds of operations --------------------------------------------------------------------- */

static ds_result ds__mpi_start_reduce_scatter(const ds__mpi_link *link, const ds__net_op *op,
                                              ds__mpi_pending *p) {
    ds__mpi_datatype type = ds__mpi_type(op->dtype);
    ds__mpi_op combine = ds__mpi_operator(op->dtype, op->reduce_op);
    const void *in = op->in == op->out ? DS__MPI_IN_PLACE : op->in;
    size_t unit = (size_t)op->dtype.bits / 8;
    const size_t *bytes = op->parts.bytes;
    if (ds__net_parts_equal(&op->parts, link->size)) {
        ds_result r = ds__mpi_count_check(bytes[0] / unit);
        if (r < 0)
            return r;
        return DS__MPI_CALL(Ireduce_scatter_block, in, op->out, (ds__mpi_count)(bytes[0] / unit),
                            type, combine, link->comm, &p->one);
    }

    p->counts = ds__host_alloc((size_t)link->size * sizeof(ds__mpi_count));
    if (!p->counts)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for the counts of %d ranks",
                        link->size);
    ds_result r = ds__mpi_counts_copy(bytes, link->size, unit, p->counts);
    if (r < 0)
        return r;
    return DS__MPI_CALL(Ireduce_scatter, in, op->out, p->counts, type, combine, link->comm,
                        &p->one);
}

static ds_result ds__mpi_start_reduce(const ds__mpi_link *link, const ds__net_op *op,
                                      ds__mpi_pending *p) {
    ds__mpi_datatype type = ds__mpi_type(op->dtype);
    ds__mpi_op combine = ds__mpi_operator(op->dtype, op->reduce_op);
    ds__mpi_count count = (ds__mpi_count)op->count;
    int writes = op->kind == DS__NET_ALL_REDUCE || link->rank == op->root;
    const void *in = writes && op->in == op->out ? DS__MPI_IN_PLACE : op->in;
    ds_result r = ds__mpi_count_check(op->count);
    if (r < 0)
        return r;
    if (op->kind == DS__NET_ALL_REDUCE)
        return DS__MPI_CALL(Iallreduce, in, op->out, count, type, combine, link->comm, &p->one);
    return DS__MPI_CALL(Ireduce, in, writes ? op->out : NULL, count, type, combine, op->root,
                        link->comm, &p->one);
}

static ds_result ds__mpi_start_broadcast(const ds__mpi_link *link, const ds__net_op *op,
                                         ds__mpi_pending *p) {
    ds_result r = ds__mpi_count_check(op->count);
    if (r < 0)
        return r;
    return DS__MPI_CALL(Ibcast, op->out, (ds__mpi_count)op->count, DS__MPI_BYTE, op->root,
                        link->comm, &p->one);
}

/* Returns 1 if `at` is the place of the own part in the buffer of all parts. */
static int ds__mpi_in_place(const ds__mpi_link *link, const ds__net_op *op, const void *at,
                            const void *all) {
    return (uintptr_t)at == (uintptr_t)all + op->parts.at[link->rank];
}

static ds_result ds__mpi_start_gather(const ds__mpi_link *link, const ds__net_op *op,
                                      ds__mpi_pending *p) {
    int to_all = op->kind == DS__NET_ALL_GATHER;
    int writes = to_all || link->rank == op->root;
    const void *in = op->in;
    size_t own = op->count;
    ds__mpi_parts parts = { NULL, NULL };
    ds_result r = DS_OK;
    if (writes) {
        own = op->parts.bytes[link->rank];
        in = ds__mpi_in_place(link, op, op->in, op->out) ? DS__MPI_IN_PLACE : op->in;
        r = ds__mpi_parts_get(link, &op->parts, 0, p, &parts);
    }
    if (r == DS_OK)
        r = ds__mpi_count_check(own);
    if (r < 0)
        return r;
    if (to_all)
        return DS__MPI_CALL(Iallgatherv, in, (ds__mpi_count)own, DS__MPI_BYTE, op->out,
                            parts.counts, parts.at, DS__MPI_BYTE, link->comm, &p->one);
    return DS__MPI_CALL(Igatherv, in, (ds__mpi_count)own, DS__MPI_BYTE, writes ? op->out : NULL,
                        parts.counts, parts.at, DS__MPI_BYTE, op->root, link->comm, &p->one);
}

static ds_result ds__mpi_start_scatter(const ds__mpi_link *link, const ds__net_op *op,
                                       ds__mpi_pending *p) {
    int reads = link->rank == op->root;
    void *out = op->out;
    ds__mpi_parts parts = { NULL, NULL };
    ds_result r = ds__mpi_count_check(op->count);
    if (r == DS_OK && reads) {
        out = ds__mpi_in_place(link, op, op->out, op->in) ? DS__MPI_IN_PLACE : op->out;
        r = ds__mpi_parts_get(link, &op->parts, 0, p, &parts);
    }
    if (r < 0)
        return r;
    return DS__MPI_CALL(Iscatterv, reads ? op->in : NULL, parts.counts, parts.at, DS__MPI_BYTE, out,
                        (ds__mpi_count)op->count, DS__MPI_BYTE, op->root, link->comm, &p->one);
}

static ds_result ds__mpi_start_all_to_all(const ds__mpi_link *link, const ds__net_op *op,
                                          ds__mpi_pending *p) {
    ds__mpi_parts in;
    ds__mpi_parts out;
    ds_result r = ds__mpi_parts_get(link, &op->parts, 0, p, &in);
    if (r == DS_OK)
        r = ds__mpi_parts_get(link, &op->out_parts, 1, p, &out);
    if (r < 0)
        return r;
    return DS__MPI_CALL(Ialltoallv, op->in, in.counts, in.at, DS__MPI_BYTE, op->out, out.counts,
                        out.at, DS__MPI_BYTE, link->comm, &p->one);
}

/* Starts the transfers of p. If one cannot be started, those before it stay with MPI. */
static ds_result ds__mpi_start_transfers(const ds__mpi_link *link, size_t count,
                                         ds__mpi_pending *p) {
    ds_result r = DS_OK;
    for (size_t i = 0; r == DS_OK && i < count; i++) {
        const ds__net_transfer *t = &p->transfers[i];
        ds__mpi_count bytes = (ds__mpi_count)t->bytes;
        r = ds__mpi_count_check(t->bytes);
        if (r == DS_OK && t->receive)
            r = DS__MPI_CALL(Irecv, t->at, bytes, DS__MPI_BYTE, t->rank, t->tag, link->comm,
                             &p->list[i]);
        else if (r == DS_OK)
            r = DS__MPI_CALL(Isend, t->at, bytes, DS__MPI_BYTE, t->rank, t->tag, link->comm,
                             &p->list[i]);
        p->count += r == DS_OK;
    }
    return r;
}

static ds_result ds__mpi_start_exchange(const ds__mpi_link *link, const ds__net_op *op,
                                        ds__mpi_pending *p) {
    DS__REQUIRE(op->transfer_count <= INT_MAX,
                "an exchange has %zu transfers; at most %d are "
                "allowed",
                op->transfer_count, INT_MAX);
    p->list = ds__host_alloc((op->transfer_count + 1) * sizeof *p->list);
    p->transfers = op->transfers;
    if (!p->list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for %zu transfers",
                        op->transfer_count);
    return ds__mpi_start_transfers(link, op->transfer_count, p);
}

/* ---- memory of GPUs -------------------------------------------------------------------------- */

static int ds__mpi_reaches(ds__net_kind kind) {
    int by_messages = kind == DS__NET_ALL_GATHER || kind == DS__NET_GATHER ||
                      kind == DS__NET_SCATTER || kind == DS__NET_ALL_TO_ALL ||
                      kind == DS__NET_EXCHANGE;
    return by_messages && ds__mpi_state.reaches_gpus;
}

/* Starts an operation by a message between each two ranks. */
static ds_result ds__mpi_start_messages(const ds__mpi_link *link, const ds__net_op *op,
                                        ds__mpi_pending *p) {
    size_t most = 2 * (size_t)link->size;
    p->list = ds__host_alloc(most * (sizeof *p->list + sizeof *p->transfers));
    if (!p->list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for messages to %d ranks",
                        link->size);
    void *behind = p->list + most;
    ds__net_transfer *t = behind;
    size_t count = ds__net_messages(op, link->rank, link->size, t);
    for (size_t i = 0; i < count; i++)
        t[i].tag = DS__MPI_TAG_COLLECTIVE;
    p->transfers = t;
    return ds__mpi_start_transfers(link, count, p);
}

/* ---- the functions of the engine ------------------------------------------------------------- */

static ds_result ds__mpi_start_kind(const ds__mpi_link *link, const ds__net_op *op,
                                    ds__mpi_pending *p) {
    if (op->on_gpu && op->kind != DS__NET_EXCHANGE)
        return ds__mpi_start_messages(link, op, p);
    switch (op->kind) {
    case DS__NET_ALL_REDUCE:
    case DS__NET_REDUCE:
        return ds__mpi_start_reduce(link, op, p);
    case DS__NET_REDUCE_SCATTER:
        return ds__mpi_start_reduce_scatter(link, op, p);
    case DS__NET_BROADCAST:
        return ds__mpi_start_broadcast(link, op, p);
    case DS__NET_ALL_GATHER:
    case DS__NET_GATHER:
        return ds__mpi_start_gather(link, op, p);
    case DS__NET_SCATTER:
        return ds__mpi_start_scatter(link, op, p);
    case DS__NET_ALL_TO_ALL:
        return ds__mpi_start_all_to_all(link, op, p);
    case DS__NET_EXCHANGE:
        return ds__mpi_start_exchange(link, op, p);
    default: /* a barrier */
        return DS__MPI_CALL(Ibarrier, link->comm, &p->one);
    }
}

/* Frees the memory of an operation. pending: MPI may still read the counts, which are leaked. */
static void ds__mpi_pending_free(ds__mpi_pending *p, int pending) {
    ds__host_free(p->list);
    if (!pending)
        ds__host_free(p->counts);
    else
        ds__mpi_give_up();
}

static ds_result ds__mpi_start(void *comm, const ds__net_op *op, ds__net_request *request) {
    ds__mpi_pending p = { .one = DS__MPI_REQUEST_NULL };
    ds__mpi_begin();
    ds_result r = ds__mpi_start_kind(comm, op, &p);
    ds__mpi_end();
    if (DS__UNLIKELY(r < 0)) {
        ds__mpi_pending_free(&p, p.count > 0);
        p = (ds__mpi_pending){ .one = DS__MPI_REQUEST_NULL };
    }
    memcpy(request->at, &p, sizeof p);
    return r;
}

/* Checks the size of a message that was received. */
static ds_result ds__mpi_transfer_check(const ds__net_transfer *t, const ds__mpi_status *status) {
    ds__mpi_count count = 0;
    ds_result r = DS__MPI_CALL(Get_count, status, DS__MPI_BYTE, &count);
    if (r < 0 || (size_t)count == t->bytes)
        return r;
    return ds__fail(DS_ERR_MISMATCH,
                    "rank %d has sent %zu bytes where %zu are received: both sides "
                    "must agree in type and number of elements",
                    t->rank, (size_t)count, t->bytes);
}

/* Tests the requests of an exchange in their order. */
static ds_result ds__mpi_exchange_test(ds__mpi_pending *p) {
    while (p->done < p->count) {
        int flag = 0;
        ds__mpi_status status;
        const ds__net_transfer *t = &p->transfers[p->done];
        ds_result r = DS__MPI_CALL(Test, &p->list[p->done], &flag, &status);
        if (r == DS_OK && flag && t->receive)
            r = ds__mpi_transfer_check(t, &status);
        if (r < 0)
            return r;
        if (!flag)
            return DS_NOT_READY;
        p->done++;
    }
    return DS_OK;
}

static ds_result ds__mpi_test(void *comm, ds__net_request *request) {
    ds__mpi_pending p;
    ds_result r;
    (void)comm;
    memcpy(&p, request->at, sizeof p);
    ds__mpi_begin();
    if (p.list) {
        r = ds__mpi_exchange_test(&p);
    } else {
        int flag = 0;
        r = DS__MPI_CALL(Test, &p.one, &flag, DS__MPI_STATUS_IGNORE);
        if (r == DS_OK && !flag)
            r = DS_NOT_READY;
    }
    ds__mpi_end();
    if (r == DS_NOT_READY) {
        memcpy(request->at, &p, sizeof p);
        return r;
    }
    ds__mpi_pending_free(&p, r < 0);
    return r;
}

/* The request stays with MPI: MPI_Request_free is not allowed for collectives. */
static void ds__mpi_abandon(void *comm, ds__net_request *request) {
    ds__mpi_pending p;
    (void)comm;
    memcpy(&p, request->at, sizeof p);
    ds__mpi_pending_free(&p, 1);
}

/* ranks/mpi.h - the engine "mpi".

   Initializes MPI or joins the program's, compares it with the launcher, and defines the engine's
   table (ds__mpi_engine).

   Policy:
   1. devstream initializes MPI only if the program has not, and finalizes it only then, in
      ds_shutdown. If an operation was abandoned, MPI_Finalize might wait for it for ever, so MPI is
      not finalized. MPI_Finalize waits for all processes, so one that does not finalize tells the
      others, which then do not finalize either (Note [End of MPI]).
   2. devstream calls MPI from several threads. MPI_THREAD_MULTIPLE is required, unless the program
      promises that it makes no calls itself (DS_RANKS_NO_OTHER_MPI).
   3. If the launcher started another number of processes than MPI_COMM_WORLD has, MPI is not
      connected with the launcher, and each process would be a group of its own. The call is refused
      unless the program gives a communicator.

   Invariants: after MPI is finalized, no group can be created, since MPI cannot be initialized
   twice.
   Locks: ds__mpi_state.mutex is held while MPI is loaded, initialized or finalized.
   Threads: as ranks/engine.h says. MPI_Init_thread has no time limit: it returns when all processes
   of the launcher have called it. */

static const char *ds__mpi_level_name(int level) {
    switch (level) {
    case DS__MPI_THREAD_SINGLE:
        return "MPI_THREAD_SINGLE";
    case DS__MPI_THREAD_FUNNELED:
        return "MPI_THREAD_FUNNELED";
    case DS__MPI_THREAD_SERIALIZED:
        return "MPI_THREAD_SERIALIZED";
    case DS__MPI_THREAD_MULTIPLE:
        return "MPI_THREAD_MULTIPLE";
    default:
        return "an unknown thread level";
    }
}

/* Accepts the thread level of MPI, or refuses it. */
static ds_result ds__mpi_level_check(int level, unsigned flags) {
    if (level != DS__MPI_THREAD_MULTIPLE && !(flags & DS_RANKS_NO_OTHER_MPI))
        return ds__fail(
            DS_ERR_UNSUPPORTED,
            "MPI was initialized with %s, and devstream calls MPI from several threads: "
            "initialize MPI with MPI_THREAD_MULTIPLE, or, if the program makes no MPI "
            "call while the group exists, pass DS_RANKS_NO_OTHER_MPI",
            ds__mpi_level_name(level));
    if (level != DS__MPI_THREAD_MULTIPLE)
        atomic_store_explicit(&ds__mpi_state.serialized, 1, memory_order_relaxed);
    return DS_OK;
}

/* Initializes MPI, or asks for the level with which the program has. */
static ds_result ds__mpi_join(int *out_level) {
    int initialized = 0;
    int finalized = 0;
    ds_result r = DS__MPI_CALL(Initialized, &initialized);
    if (r == DS_OK)
        r = DS__MPI_CALL(Finalized, &finalized);
    if (r < 0)
        return r;
    if (finalized)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "MPI was finalized%s, and cannot be initialized twice",
                        ds__mpi_state.owned ? " by ds_shutdown" : "");
    if (initialized)
        return DS__MPI_CALL(Query_thread, out_level);

    r = DS__MPI_CALL(Init_thread, NULL, NULL, DS__MPI_THREAD_MULTIPLE, out_level);
    /* for errors that MPI does not assign to a communicator */
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_set_errhandler, DS__MPI_COMM_SELF, DS__MPI_ERRORS_RETURN);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_set_errhandler, DS__MPI_COMM_WORLD, DS__MPI_ERRORS_RETURN);
    ds__mpi_state.copying = DS__MPI_REQUEST_NULL;
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_idup, DS__MPI_COMM_WORLD, &ds__mpi_state.last,
                         &ds__mpi_state.copying);
    ds__mpi_state.owned = r == DS_OK; /* MPI is not finalized without this copy */
    return r;
}

/* Loads MPI and makes it ready for calls. */
static ds_result ds__mpi_prepare(unsigned flags) {
    int level = DS__MPI_THREAD_SINGLE;
    ds__mutex_lock(&ds__mpi_state.mutex);
    ds_result r = ds__mpi_load();
    if (r == DS_OK)
        r = ds__mpi_join(&level);
    if (r == DS_OK)
        r = ds__mpi_level_check(level, flags);
    ds__mpi_state.reaches_gpus = r == DS_OK && ds__mpi_asks_cuda();
    ds__mutex_unlock(&ds__mpi_state.mutex);
    return r;
}

/* Compares MPI_COMM_WORLD with the launcher. */
static ds_result ds__mpi_launch_check(void) {
    int size = 0;
    ds_ranks_launch launch;
    ds_ranks_launch_get(&launch);
    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_size, DS__MPI_COMM_WORLD, &size);
    ds__mpi_end();
    if (r < 0)
        return r;
    DS__REQUIRE(
        launch.size < 1 || launch.size == size,
        "%s started %d processes, but MPI_COMM_WORLD has %d: start the program with mpiexec "
        "of the same MPI library, or with srun --mpi=pmi2 or --mpi=pmix",
        launch.launcher, launch.size, size);
    return DS_OK;
}

/* Compares the communicator with the rank and size of the program, if it gives them. */
static ds_result ds__mpi_numbers_check(ds__mpi_comm comm, const ds_ranks_desc *desc) {
    int rank = 0;
    int size = 0;
    ds__mpi_begin();
    ds_result r = DS__MPI_CALL(Comm_rank, comm, &rank);
    if (r == DS_OK)
        r = DS__MPI_CALL(Comm_size, comm, &size);
    ds__mpi_end();
    if (r < 0 || (desc->rank == 0 && desc->size == 0))
        return r;
    DS__REQUIRE(desc->rank == rank && desc->size == size,
                "desc.rank is %d and desc.size is %d, but MPI has rank %d of %d: pass these "
                "numbers, or 0 for both",
                desc->rank, desc->size, rank, size);
    return DS_OK;
}

static ds_result ds__mpi_init(const ds_ranks_desc *desc, uint64_t deadline, ds__net_comm *out) {
    ds__mpi_comm comm = DS__MPI_COMM_WORLD;
    *out = (ds__net_comm){ NULL, 0, 0 };
    ds_result r = ds__mpi_prepare(desc->flags);
    if (r == DS_OK && !desc->mpi_comm)
        r = ds__mpi_launch_check();
    if (r < 0)
        return r;

    /* an integer in MPICH's own mpi.h */
    if (desc->mpi_comm)
        memcpy(&comm, &desc->mpi_comm, sizeof comm);
    r = ds__mpi_numbers_check(comm, desc);
    return r < 0 ? r : ds__mpi_link_copy(comm, deadline, out);
}

/* Writes the first line of the library's version. */
static void ds__mpi_library(char *out, size_t size) {
    char text[DS__MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    if (ds__mpi.Get_library_version(text, &length) != 0)
        length = 0;
    text[length] = 0;
    text[strcspn(text, "\n")] = 0;
    for (char *at = text; *at; at++)
        if (*at == '\t')
            *at = ' ';
    snprintf(out, size, "%.100s%s", text, DS__MPI_LOADED ? " (ABI 1)" : "");
}

/* Note [End of MPI]: a rank whose group has failed must not call MPI_Finalize, and without it
   MPI_Finalize of the others does not return. Among them may be ranks that know nothing of the
   failure, since they have left out a call and then ended. So each process that ends MPI either
   enters a barrier that does not block, or sends a byte to all others. Processes that receive it do
   not finalize. */

/* Tells the other processes that this one does not finalize MPI. */
static void ds__mpi_end_tell(void) {
    static char gone; /* of requests that may be pending */
    int rank = 0;
    int size = 0;
    if (ds__mpi_wait(&ds__mpi_state.copying, 1, ds__now_ns() + 100000000u, "end of MPI") < 0 ||
        ds__mpi.Comm_rank(ds__mpi_state.last, &rank) != 0 ||
        ds__mpi.Comm_size(ds__mpi_state.last, &size) != 0)
        return;
    (void)ds__mpi.Comm_set_errhandler(ds__mpi_state.last, DS__MPI_ERRORS_RETURN);
    for (int to = 0; to < size; to++) {
        ds__mpi_request sending = DS__MPI_REQUEST_NULL;
        int flag = 0;
        if (to == rank || ds__mpi.Isend(&gone, 1, DS__MPI_BYTE, to, DS__MPI_TAG_END,
                                        ds__mpi_state.last, &sending) != 0)
            continue;
        for (int round = 0; round < DS__MPI_TELL_ROUNDS && !flag; round++)
            if (ds__mpi.Test(&sending, &flag, DS__MPI_STATUS_IGNORE) != 0)
                break;
    }
}

/* Returns 1 when all processes finalize MPI, and 0 if one does not, or does not answer. */
static int ds__mpi_end_agree(void) {
    enum { PATIENCE_S = 600 };

    uint64_t deadline = ds__now_ns() + PATIENCE_S * 1000000000ull;
    ds__mpi_request listening = DS__MPI_REQUEST_NULL;
    ds__mpi_request barrier = DS__MPI_REQUEST_NULL;
    int agreed = 0;
    int told = 0;
    if (ds__mpi_wait(&ds__mpi_state.copying, 1, deadline, "end of MPI") < 0)
        return 0;
    (void)ds__mpi.Comm_set_errhandler(ds__mpi_state.last, DS__MPI_ERRORS_RETURN);
    int failed = ds__mpi.Irecv(&ds__mpi_state.told, 1, DS__MPI_BYTE, DS__MPI_ANY_SOURCE,
                               DS__MPI_TAG_END, ds__mpi_state.last, &listening) != 0 ||
                 ds__mpi.Ibarrier(ds__mpi_state.last, &barrier) != 0;
    while (!failed && !agreed && !told && ds__now_ns() < deadline) {
        failed = ds__mpi.Test(&barrier, &agreed, DS__MPI_STATUS_IGNORE) != 0;
        if (!failed && !agreed)
            failed = ds__mpi.Test(&listening, &told, DS__MPI_STATUS_IGNORE) != 0;
        if (!agreed)
            ds__os_sleep(100000);
    }
    if (failed || !agreed)
        return 0;
    if (ds__mpi.Cancel(&listening) == 0)
        (void)ds__mpi_wait(&listening, 1, ds__now_ns() + 100000000u, "end of MPI");
    return ds__mpi.Comm_free(&ds__mpi_state.last) == 0;
}

static void ds__mpi_shutdown(void) {
    int finalized = 0;
    ds__mutex_lock(&ds__mpi_state.mutex);
    if (ds__mpi_state.owned && ds__mpi.Finalized(&finalized) == 0 && !finalized) {
        if (atomic_load(&ds__mpi_state.unfinished))
            ds__mpi_end_tell();
        else if (ds__mpi_end_agree())
            (void)ds__mpi.Finalize();
    }
    ds__mutex_unlock(&ds__mpi_state.mutex);
}

static const ds__ranks_engine ds__mpi_engine = {
    .name = "mpi",
    .captures = 0,
    .reduces = ds__mpi_reduces,
    .reaches = ds__mpi_reaches,
    .init = ds__mpi_init,
    .split = ds__mpi_split,
    .shrink = ds__mpi_shrink,
    .start = ds__mpi_start,
    .test = ds__mpi_test,
    .abandon = ds__mpi_abandon,
    .tell = ds__mpi_tell,
    .hear = ds__mpi_hear,
    .destroy = ds__mpi_destroy,
    .library = ds__mpi_library,
    .shutdown = ds__mpi_shutdown,
};

/* ranks/nccl_abi.h - NCCL's types, constants and functions.

   Declares what devstream uses of libnccl.so.2: version 2.18 and, as optional functions, of later
   versions. The tests compare the declarations with nccl.h of several versions.

   Source: nccl.h of the wheels nvidia-nccl-cu12 2.18.3 to 2.32.3, and NVIDIA's documentation of
   NCCL.
   Invariants: the layout of a configuration only grew at its end, and the library accepts a shorter
   one.
   Locks: none.
   Threads: any. */

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ds__nccl_handle *ds__nccl_comm;

typedef struct ds__nccl_id {
    char bytes[128];
} ds__nccl_id;

/* Enums of NCCL, and the stream of cudart. */
typedef int ds__nccl_result;
typedef int ds__nccl_type;
typedef int ds__nccl_op;
typedef void *ds__nccl_stream;

enum {
    DS__NCCL_SUCCESS = 0,
    DS__NCCL_REMOTE_ERROR = 6,
    DS__NCCL_IN_PROGRESS = 7,
};

enum { DS__NCCL_SUM = 0, DS__NCCL_PROD = 1, DS__NCCL_MAX = 2, DS__NCCL_MIN = 3 };

enum {
    DS__NCCL_INT8 = 0,
    DS__NCCL_UINT8 = 1,
    DS__NCCL_INT32 = 2,
    DS__NCCL_UINT32 = 3,
    DS__NCCL_INT64 = 4,
    DS__NCCL_UINT64 = 5,
    DS__NCCL_FLOAT16 = 6,
    DS__NCCL_FLOAT32 = 7,
    DS__NCCL_FLOAT64 = 8,
    DS__NCCL_BFLOAT16 = 9
};

/* The configuration of a communicator, as 2.18 has it. */
typedef struct ds__nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
} ds__nccl_config;

/* The configuration of an operation, as 2.31 has it. */
typedef struct ds__nccl_how {
    size_t size;
    unsigned magic;
    unsigned version;
    void *ext;
    int min_ctas;
    int max_ctas;
    int nvls_ctas;
    int cga_cluster_size;
    const char *algorithm;
    int force_algorithm;
    int cta_policy;
    uint64_t tag;
} ds__nccl_how;

#define DS__NCCL_HOW_VERSION 23102
#define DS__NCCL_UNDEFINED INT_MIN
#define DS__NCCL_MAGIC 0xcafebeef
#define DS__NCCL_VERSION 21803
#define DS__NCCL_NO_COLOR (-1)
#define DS__NCCL_SHRINK_ABORT 1

/* X(function, parameters): functions of 2.18 without nccl in front, which return ncclResult_t. Data
   types, operators, results and streams are passed as NCCL does, with other names. */
#define DS__NCCL_FUNCTIONS(X)                                                                      \
    X(GetVersion, (int *version))                                                                  \
    X(GetUniqueId, (ds__nccl_id * id))                                                             \
    X(CommInitRankConfig,                                                                          \
      (ds__nccl_comm * comm, int size, ds__nccl_id id, int rank, ds__nccl_config *config))         \
    X(CommFinalize, (ds__nccl_comm comm))                                                          \
    X(CommDestroy, (ds__nccl_comm comm))                                                           \
    X(CommAbort, (ds__nccl_comm comm))                                                             \
    X(CommSplit,                                                                                   \
      (ds__nccl_comm comm, int color, int key, ds__nccl_comm *out, ds__nccl_config *config))       \
    X(CommGetAsyncError, (ds__nccl_comm comm, ds__nccl_result * error))                            \
    X(CommCount, (ds__nccl_comm comm, int *size))                                                  \
    X(CommUserRank, (ds__nccl_comm comm, int *rank))                                               \
    X(GroupStart, (void))                                                                          \
    X(GroupEnd, (void))                                                                            \
    X(AllReduce, (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op,     \
                  ds__nccl_comm comm, ds__nccl_stream stream))                                     \
    X(Reduce, (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op,        \
               int root, ds__nccl_comm comm, ds__nccl_stream stream))                              \
    X(Broadcast, (const void *in, void *out, size_t count, ds__nccl_type type, int root,           \
                  ds__nccl_comm comm, ds__nccl_stream stream))                                     \
    X(AllGather, (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_comm comm, \
                  ds__nccl_stream stream))                                                         \
    X(ReduceScatter, (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op, \
                      ds__nccl_comm comm, ds__nccl_stream stream))                                 \
    X(Send, (const void *at, size_t count, ds__nccl_type type, int rank, ds__nccl_comm comm,       \
             ds__nccl_stream stream))                                                              \
    X(Recv, (void *at, size_t count, ds__nccl_type type, int rank, ds__nccl_comm comm,             \
             ds__nccl_stream stream))

/* X(function, parameters): functions of later versions, which may be missing: CommRegister since
   2.19, CommShrink since 2.27, CommRevoke since 2.28.7, CommGrow since 2.29, those with Config at
   their end since 2.31. */
#define DS__NCCL_LATER_FUNCTIONS(X)                                                            \
    X(CommRegister, (ds__nccl_comm comm, void *at, size_t size, void **handle))                \
    X(CommDeregister, (ds__nccl_comm comm, void *handle))                                      \
    X(CommShrink, (ds__nccl_comm comm, int *excluded, int count, ds__nccl_comm *out,           \
                   ds__nccl_config *config, int flags))                                        \
    X(CommRevoke, (ds__nccl_comm comm, int flags))                                             \
    X(CommGetUniqueId, (ds__nccl_comm comm, ds__nccl_id * id))                                 \
    X(CommGrow, (ds__nccl_comm comm, int size, const ds__nccl_id *id, int rank,                \
                 ds__nccl_comm *out, ds__nccl_config *config))                                 \
    X(AllReduceConfig,                                                                         \
      (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op,            \
       ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))                   \
    X(ReduceConfig,                                                                            \
      (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op, int root,  \
       ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))                   \
    X(BroadcastConfig, (const void *in, void *out, size_t count, ds__nccl_type type, int root, \
                        ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))  \
    X(AllGatherConfig, (const void *in, void *out, size_t count, ds__nccl_type type,           \
                        ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))  \
    X(ReduceScatterConfig,                                                                     \
      (const void *in, void *out, size_t count, ds__nccl_type type, ds__nccl_op op,            \
       ds__nccl_comm comm, ds__nccl_stream stream, const ds__nccl_how *how))

/* X(function, parameters): functions that return a text. */
#define DS__NCCL_TEXT_FUNCTIONS(X)              \
    X(GetErrorString, (ds__nccl_result result)) \
    X(GetLastError, (ds__nccl_comm comm))

#define DS__NCCL_MEMBER(function, parameters) ds__nccl_result(*function) parameters;
#define DS__NCCL_TEXT_MEMBER(function, parameters) const char *(*function)parameters;

typedef struct ds__nccl_table {
    DS__NCCL_FUNCTIONS(DS__NCCL_MEMBER)
    DS__NCCL_LATER_FUNCTIONS(DS__NCCL_MEMBER)
    DS__NCCL_TEXT_FUNCTIONS(DS__NCCL_TEXT_MEMBER)
} ds__nccl_table;

#undef DS__NCCL_MEMBER
#undef DS__NCCL_TEXT_MEMBER

/* ranks/nccl_load.h - loads NCCL.

   Finds the functions of ranks/nccl_abi.h in the library of the environment variable
   DEVSTREAM_NCCL_LIBRARY, in the program, or in libnccl.so.2 (ds__nccl_load).

   Invariants: the functions of version 2.18 are all there after a successful load; later ones may
   be NULL. The library is never unloaded.
   Locks: ds__nccl_state.mutex.
   Threads: any. */

static ds__nccl_table ds__nccl;

static struct {
    ds__mutex mutex; /* of the load */
    int version;     /* as NCCL codes it, for example 22703; 0: not loaded */
} ds__nccl_state = { .mutex = DS__MUTEX_INIT };

/* Finds all functions. */
static ds_result ds__nccl_fill(void *library, const char *name) {
#define DS__NCCL_NAME(function, parameters) "nccl" #function,
    static const char *const names[] = { DS__NCCL_FUNCTIONS(DS__NCCL_NAME) DS__NCCL_LATER_FUNCTIONS(
        DS__NCCL_NAME) DS__NCCL_TEXT_FUNCTIONS(DS__NCCL_NAME) };
#undef DS__NCCL_NAME
#define DS__NCCL_ONE(function, parameters) +1

    enum {
        NEEDED = 0 DS__NCCL_FUNCTIONS(DS__NCCL_ONE),
        LATER = 0 DS__NCCL_LATER_FUNCTIONS(DS__NCCL_ONE)
    };

#undef DS__NCCL_ONE
    void *found[sizeof names / sizeof names[0]];
    _Static_assert(sizeof found == sizeof ds__nccl, "the members are the names, in their order");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int is_later = i >= NEEDED && i < NEEDED + LATER;
        found[i] = ds__os_library_symbol(library, names[i]);
        if (!found[i] && !is_later)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "%s has no function %s: NCCL 2.18 or newer is required", name,
                            names[i]);
    }
    memcpy(&ds__nccl, found, sizeof ds__nccl);
    return DS_OK;
}

/* Opens the library. *out NULL: the program has its functions. */
static ds_result ds__nccl_open(void **out, const char **out_name) {
    const char *where = ds__os_environment("DEVSTREAM_NCCL_LIBRARY");
    *out = NULL;
    *out_name = "the program";
    if (!where && ds__os_library_symbol(NULL, "ncclGetVersion"))
        return DS_OK;
    *out_name = where ? where : "libnccl.so.2";
    *out = ds__os_library_open(*out_name);
    if (*out)
        return DS_OK;
    return ds__fail(DS_ERR_UNSUPPORTED,
                    "NCCL cannot be loaded (%.200s): install it (for example pip install "
                    "nvidia-nccl-cu12) and name its libnccl.so.2 in DEVSTREAM_NCCL_LIBRARY",
                    *out_name);
}

/* Finds or loads NCCL, if that has not been done. */
static ds_result ds__nccl_load(void) {
    void *library;
    const char *name;
    ds_result r = DS_OK;
    ds__mutex_lock(&ds__nccl_state.mutex);
    if (!ds__nccl_state.version) {
        r = ds__nccl_open(&library, &name);
        if (r == DS_OK)
            r = ds__nccl_fill(library, name);
        if (r == DS_OK && ds__nccl.GetVersion(&ds__nccl_state.version) != DS__NCCL_SUCCESS)
            r = ds__fail(DS_ERR_FAILED, "ncclGetVersion of %s failed", name);
    }
    ds__mutex_unlock(&ds__nccl_state.mutex);
    return r;
}

/* ranks/nccl_id.h - the id by which the ranks of NCCL find each other.

   Reads and writes ids (ds__nccl_id_find, ds__nccl_id_format). An id of NCCL has 128 bytes; its
   text has two hexadecimal digits for each. The text of an id by which a rank joins a communicator
   that grows begins with "grow:".

   Policy: ds_ranks_desc.id or, without it, the environment variable DEVSTREAM_RANKS_ID has the
   text, or "file:PATH". Rank 0 writes the text to a file, for which the others wait, and removes
   the file when all have joined. If NCCL_COMM_ID is set and no id is given, NCCL makes the same id
   on each rank.

   Invariants: a file appears with its whole text.
   Locks: none.
   Threads: any. */

/* An id as the ranks pass it. */
typedef struct ds__nccl_ticket {
    ds__nccl_id id;
    int grows; /* 1: for ncclCommGrow */
} ds__nccl_ticket;

#define DS__NCCL_GROW "grow:"

/* Writes the text of an id, of at most DS_RANKS_ID_SIZE bytes. */
static void ds__nccl_id_format(const ds__nccl_ticket *ticket, char *out) {
    static const char digits[] = "0123456789abcdef";
    const ds__nccl_id *id = &ticket->id;
    if (ticket->grows) {
        strcpy(out, DS__NCCL_GROW);
        out += strlen(out);
    }
    for (size_t i = 0; i < sizeof id->bytes; i++) {
        *out++ = digits[(unsigned char)id->bytes[i] >> 4];
        *out++ = digits[(unsigned char)id->bytes[i] & 15];
    }
    *out = '\0';
}

/* Returns the value of a digit, or -1. */
static int ds__nccl_id_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads the text of an id. Returns 0 if it is not one. */
static int ds__nccl_id_parse(const char *text, ds__nccl_ticket *out_ticket) {
    size_t prefix = strlen(DS__NCCL_GROW);
    ds__nccl_id *out = &out_ticket->id;
    out_ticket->grows = strncmp(text, DS__NCCL_GROW, prefix) == 0;
    if (out_ticket->grows)
        text += prefix;
    for (size_t i = 0; i < sizeof out->bytes; i++) {
        int high = ds__nccl_id_digit(text[2 * i]);
        int low = high < 0 ? -1 : ds__nccl_id_digit(text[2 * i + 1]);
        if (low < 0)
            return 0;
        out->bytes[i] = (char)(high << 4 | low);
    }
    return text[2 * sizeof out->bytes] == '\0';
}

static ds_result ds__nccl_id_create(ds__nccl_ticket *out) {
    out->grows = 0;
    ds__nccl_result code = ds__nccl.GetUniqueId(&out->id);
    if (code == DS__NCCL_SUCCESS)
        return DS_OK;
    return ds__fail(DS_ERR_FAILED, "ncclGetUniqueId: %s", ds__nccl.GetErrorString(code));
}

/* Writes an id to a file that does not exist. */
static ds_result ds__nccl_id_write(const char *path, const ds__nccl_ticket *id) {
    char part[1024];
    char text[DS_RANKS_ID_SIZE];
    int n = snprintf(part, sizeof part, "%s.part", path);
    if (n < 0 || (size_t)n >= sizeof part)
        return ds__fail(DS_ERR_INVALID_VALUE, "the path of the id has more than 1000 characters");
    FILE *file = fopen(path, "r");
    if (file) {
        (void)fclose(file);
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "%.300s exists, from another program or an earlier run; remove it", path);
    }
    ds__nccl_id_format(id, text);
    file = fopen(part, "w");
    int written = file && fputs(text, file) >= 0;
    if (file)
        written &= fclose(file) == 0;
    if (!written || rename(part, path) != 0)
        return ds__fail(DS_ERR_SYSTEM, "%.300s cannot be written", path);
    return DS_OK;
}

/* Waits for the file of another rank, and reads the id. */
static ds_result ds__nccl_id_read(const char *path, uint64_t deadline, ds__nccl_ticket *out) {
    char text[DS_RANKS_ID_SIZE + 1];
    FILE *file;
    while (!(file = fopen(path, "r"))) {
        if (ds__now_ns() > deadline)
            return ds__fail(DS_ERR_TIMEOUT, "rank 0 has not written %.300s within the time limit",
                            path);
        ds__os_sleep(1000000);
    }
    size_t n = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    return ds__nccl_id_parse(text, out)
               ? DS_OK
               : ds__fail(DS_ERR_INVALID_VALUE, "%.300s does not have an id of NCCL", path);
}

/* Returns the text of an id, or of the environment, or NULL. */
static const char *ds__nccl_id_text(const char *text) {
    return text ? text : ds__os_environment("DEVSTREAM_RANKS_ID");
}

/* Returns the path of "file:PATH", or NULL. */
static const char *ds__nccl_id_path(const char *text) {
    return text && strncmp(text, "file:", 5) == 0 ? text + 5 : NULL;
}

/* Finds the id of the ranks. text: ds_ranks_desc.id. */
static ds_result ds__nccl_id_find(const char *text, int rank, uint64_t deadline,
                                  ds__nccl_ticket *out) {
    text = ds__nccl_id_text(text);
    const char *path = ds__nccl_id_path(text);
    if (!text && !ds__os_environment("NCCL_COMM_ID"))
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "id is NULL: pass the text of ds_ranks_id_create or \"file:PATH\", or set "
                        "DEVSTREAM_RANKS_ID or NCCL_COMM_ID");
    if (path && rank > 0)
        return ds__nccl_id_read(path, deadline, out);
    if (!path && text)
        return ds__nccl_id_parse(text, out)
                   ? DS_OK
                   : ds__fail(DS_ERR_INVALID_VALUE,
                              "id \"%.20s...\" is not of ds_ranks_id_create, and does not begin "
                              "with \"file:\"",
                              text);
    ds_result r = ds__nccl_id_create(out);
    return r == DS_OK && path ? ds__nccl_id_write(path, out) : r;
}

/* Removes the file of rank 0: all ranks have joined, or this one has failed. */
static void ds__nccl_id_done(const char *text, int rank) {
    const char *path = ds__nccl_id_path(ds__nccl_id_text(text));
    if (path && rank == 0)
        (void)remove(path);
}

/* ranks/nccl_link.h - communicators of NCCL: calls, failures, end.

   Holds the communicators of a rank (ds__nccl_link), waits for them (ds__nccl_wait), ends their
   work when their group fails (ds__nccl_stop), and destroys them (ds__nccl_destroy).

   Policy: communicators do not block. A call that needs other ranks, such as the first operation,
   returns ncclInProgress and is waited for here until the deadline, so that an abort or the time
   limit ends it. When a group fails, its communicators are revoked, so that they can be shrunk;
   NCCL before 2.28.7 cannot do that, and they are aborted.

   Invariants: one thread at a time calls NCCL for a communicator.
   Locks: `lock` of a communicator, held during the calls of NCCL; `stop` only tries it.
   Threads: any; a thread that aborts, if NCCL cannot revoke. */

/* A rank of NCCL. */
typedef struct ds__nccl_place {
    ds__nccl_comm comm; /* NULL: its abort was left to a thread */
    int rank;
    int size;
    ds_device device;
} ds__nccl_place;

typedef struct ds__nccl_link {
    ds__nccl_place own;     /* this rank */
    ds__nccl_place *places; /* its devices in the second communicator, or NULL */
    size_t count;
    ds__mutex lock;
    _Atomic int stopped; /* 1: the group has failed */
    int revoked;
    ds__nccl_comm
        *aborted; /* communicators that `aborter` aborts, count + 1; NULL: there is none */
    ds__os_thread aborter;
    ds_stream stream;                   /* of operations between hosts */
    void *scratch;                      /* memory of the device, of a barrier */
    struct ds__nccl_host_op *abandoned; /* operations between hosts */
    struct ds__nccl_buffer *buffers;    /* registered memory */
    ds__nccl_comm child; /* a split or shrink; a thread of NCCL writes it at the end */
} ds__nccl_link;

/* Converts a result of NCCL. */
static ds_result ds__nccl_check(ds__nccl_comm comm, ds__nccl_result code, const char *call) {
    if (DS__LIKELY(code == DS__NCCL_SUCCESS || code == DS__NCCL_IN_PROGRESS))
        return DS_OK;
    const char *last = ds__nccl.GetLastError(comm);
    return ds__fail(code == DS__NCCL_REMOTE_ERROR ? DS_ERR_ABORTED : DS_ERR_FAILED,
                    "nccl%s: %s (code %d)%s%.200s", call, ds__nccl.GetErrorString(code), (int)code,
                    last && *last ? ": " : "", last ? last : "");
}

/* Refuses what this NCCL is too old for. */
static ds_result ds__nccl_old(const char *what, const char *version) {
    int v = ds__nccl_state.version;
    return ds__fail(DS_ERR_UNSUPPORTED, "NCCL %d.%d.%d cannot %s; %s or newer can", v / 10000,
                    v / 100 % 100, v % 100, what, version);
}

/* Waits until the communicator has no work in progress. stopped: NULL, or ends the wait when it is
   1. */
static ds_result ds__nccl_wait(ds__nccl_comm comm, ds__nccl_result code, const char *call,
                               uint64_t deadline, const _Atomic int *stopped) {
    uint64_t nap = 1000;
    for (int rounds = 0; code == DS__NCCL_IN_PROGRESS; rounds++) {
        ds__nccl_result asked = ds__nccl.CommGetAsyncError(comm, &code);
        if (asked != DS__NCCL_SUCCESS)
            code = asked;
        if (code != DS__NCCL_IN_PROGRESS)
            break;
        if (stopped && atomic_load(stopped))
            return ds__fail(DS_ERR_ABORTED, "nccl%s: its group has failed", call);
        if (ds__now_ns() > deadline)
            return ds__fail(DS_ERR_TIMEOUT,
                            "nccl%s: not all ranks have called within the time limit", call);
        if (rounds < 1000) { /* a thread of NCCL enqueues each operation */
            ds__os_yield();
            continue;
        }
        ds__os_sleep(nap);
        nap = nap < 200000 ? nap + nap / 2 : nap;
    }
    return ds__nccl_check(comm, code, call);
}

static ds__nccl_config ds__nccl_config_default(void) {
    return (ds__nccl_config){ .size = sizeof(ds__nccl_config),
                              .magic = DS__NCCL_MAGIC,
                              .version = DS__NCCL_VERSION,
                              .blocking = 0,
                              .cga_cluster_size = DS__NCCL_UNDEFINED,
                              .min_ctas = DS__NCCL_UNDEFINED,
                              .max_ctas = DS__NCCL_UNDEFINED,
                              .split_share = DS__NCCL_UNDEFINED };
}

/* Makes the device of a communicator current. */
static void ds__nccl_begin(ds_device device, ds__library_scope *scope) {
    ds__driver_of(device)->library_begin(device.index, scope);
}

static void ds__nccl_end(ds_device device, const ds__library_scope *scope) {
    ds__driver_of(device)->library_end(scope);
}

/* Aborts a communicator on its device. */
static void ds__nccl_abort(ds__nccl_comm comm, ds_device device) {
    ds__library_scope scope;
    if (!comm)
        return;
    ds__nccl_begin(device, &scope);
    (void)ds__nccl.CommAbort(comm);
    ds__nccl_end(device, &scope);
}

/* Revokes a communicator on its device. */
static void ds__nccl_revoke(const ds__nccl_place *place) {
    ds__library_scope scope;
    ds__nccl_begin(place->device, &scope);
    (void)ds__nccl.CommRevoke(place->comm, 0);
    ds__nccl_end(place->device, &scope);
}

/* Returns the rank's place (0), or that of a device. */
static ds__nccl_place *ds__nccl_at(ds__nccl_link *link, size_t i) {
    return i ? &link->places[i - 1] : &link->own;
}

static void *ds__nccl_aborter(void *user) {
    ds__nccl_link *link = user;
    ds__os_library_thread();
    for (size_t i = 0; i <= link->count; i++)
        ds__nccl_abort(link->aborted[i], ds__nccl_at(link, i)->device);
    return NULL;
}

/* Aborts all communicators on a thread: without a revoke, NCCL's abort may wait for work that comes
   first in the streams. */
static void ds__nccl_abort_all(ds__nccl_link *link) {
    link->aborted = ds__host_alloc((link->count + 1) * sizeof *link->aborted);
    if (!link->aborted)
        return; /* ds__nccl_destroy aborts them */
    for (size_t i = 0; i <= link->count; i++)
        link->aborted[i] = ds__nccl_at(link, i)->comm;
    if (ds__os_thread_start(&link->aborter, ds__nccl_aborter, link) != 0) {
        ds__host_free(link->aborted);
        link->aborted = NULL;
        return;
    }
    for (size_t i = 0; i <= link->count; i++)
        ds__nccl_at(link, i)->comm = NULL;
}

/* Ends the work of a communicator whose group has failed, once. `lock` is held. */
static void ds__nccl_end_work(ds__nccl_link *link) {
    if (link->revoked || link->aborted)
        return;
    if (!ds__nccl.CommRevoke) {
        ds__nccl_abort_all(link);
        return;
    }
    link->revoked = 1;
    for (size_t i = 0; i <= link->count; i++)
        if (ds__nccl_at(link, i)->comm)
            ds__nccl_revoke(ds__nccl_at(link, i));
}

static void ds__nccl_stop(void *comm) {
    ds__nccl_link *link = comm;
    atomic_store(&link->stopped, 1);
    if (!ds__mutex_trylock(&link->lock))
        return; /* the holder ends the work */
    ds__nccl_end_work(link);
    ds__mutex_unlock(&link->lock);
}

/* Takes the lock for calls of NCCL. Fails if the group has failed. */
static ds_result ds__nccl_lock(ds__nccl_link *link) {
    ds__mutex_lock(&link->lock);
    if (!atomic_load(&link->stopped))
        return DS_OK;
    ds__mutex_unlock(&link->lock);
    return ds__fail(DS_ERR_ABORTED, "its group has failed");
}

static void ds__nccl_unlock(ds__nccl_link *link) {
    if (atomic_load(&link->stopped))
        ds__nccl_end_work(link);
    ds__mutex_unlock(&link->lock);
    if (atomic_load(&link->stopped))
        ds__nccl_stop(link); /* if the group failed meanwhile */
}

/* An operation on host memory. */
typedef struct ds__nccl_host_op {
    ds__remote remote; /* first member */
    struct ds__nccl_host_op *next;
    ds__nccl_link *link;
    ds__net_op net; /* in memory of the device */
    void *device;
    char *pinned;
    void *out;
    size_t bytes; /* of the result */
} ds__nccl_host_op;

static void ds__nccl_host_free(ds__nccl_host_op *h) {
    ds_result r = DS_OK;
    if (h->device)
        DS__KEEPING(r, (ds_mem_free)(h->device));
    if (h->pinned)
        DS__KEEPING(r, (ds_mem_pinned_free)(h->pinned));
    DS_IGNORE(r);
    ds__host_free(h);
}

static void ds__nccl_free_abandoned(ds__nccl_link *link) {
    while (link->abandoned) {
        ds__nccl_host_op *h = link->abandoned;
        link->abandoned = h->next;
        ds__nccl_host_free(h);
    }
}

/* Memory that the program has registered. */
typedef struct ds__nccl_buffer {
    struct ds__nccl_buffer *next;
    void *ptr;
    void *handle[2]; /* with the rank's communicator, and with that of its device */
    const ds__nccl_place *place[2];
} ds__nccl_buffer;

/* Takes registered memory from the list, and ends the registration if the communicators live. */
static ds_result ds__nccl_buffer_end(ds__nccl_link *link, ds__nccl_buffer **at, int lives) {
    ds__nccl_buffer *b = *at;
    ds_result r = DS_OK;
    for (int k = 0; k < 2 && lives; k++) {
        const ds__nccl_place *p = b->place[k];
        if (!p)
            continue;
        ds__nccl_result code = ds__nccl.CommDeregister(p->comm, b->handle[k]);
        r = r < 0 ? r : ds__nccl_check(link->own.comm, code, "CommDeregister");
    }
    *at = b->next;
    ds__host_free(b);
    return r;
}

/* Ends a communicator without operations, on its device. */
static void ds__nccl_finalize(const ds__nccl_place *place) {
    ds__library_scope scope;
    uint64_t deadline = ds__now_ns() + DS__RANKS_TIMEOUT_S * 1000000000ull;
    ds_result r;
    if (!place->comm)
        return;
    ds__nccl_begin(place->device, &scope);
    ds__nccl_result code = ds__nccl.CommFinalize(place->comm);
    DS__KEEPING(r, ds__nccl_wait(place->comm, code, "CommFinalize", deadline, NULL));
    (void)(r == DS_OK ? ds__nccl.CommDestroy(place->comm) : ds__nccl.CommAbort(place->comm));
    ds__nccl_end(place->device, &scope);
}

static void ds__nccl_destroy(void *comm, int failed) {
    ds__nccl_link *link = comm;
    ds_result r = DS_OK;
    if (link->aborted)
        ds__os_thread_join(link->aborter);
    while (link->buffers)
        (void)ds__nccl_buffer_end(link, &link->buffers, !failed && !link->revoked);
    for (size_t i = link->count + 1; i-- > 0;) {
        if (failed || link->revoked)
            ds__nccl_abort(ds__nccl_at(link, i)->comm, ds__nccl_at(link, i)->device);
        else
            ds__nccl_finalize(ds__nccl_at(link, i));
    }
    ds__nccl_abort(link->child, link->own.device); /* of a split that was given up, and has ended */
    if (link->scratch)
        DS__KEEPING(r, (ds_mem_free)(link->scratch));
    if (link->stream.id)
        DS__KEEPING(r, (ds_stream_destroy)(link->stream));
    DS_IGNORE(r);
    ds__host_free(link->aborted);
    ds__host_free(link->places);
    ds__nccl_free_abandoned(link);
    ds__mutex_destroy(&link->lock);
    ds__host_free(link);
}

/* Makes the link of a communicator, which it owns from now on. */
static ds_result ds__nccl_link_create(ds__nccl_comm comm, int rank, int size, ds_device device,
                                      ds__net_comm *out) {
    ds__nccl_link *link = ds__host_alloc(sizeof *link);
    ds_stream_desc desc = { .device = device, .label = "ds_ranks" };
    ds_result r;
    if (!link) {
        ds__nccl_abort(comm, device);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a communicator");
    }
    *link = (ds__nccl_link){ .own = { comm, rank, size, device } };
    ds__mutex_init(&link->lock);
    DS__KEEPING(r, (ds_stream_create)(&desc, &link->stream));
    if (r == DS_OK)
        DS__KEEPING(r, (ds_mem_alloc)(4, link->stream, &link->scratch));
    if (r < 0) {
        ds__nccl_destroy(link, 1);
        return r;
    }
    *out = (ds__net_comm){ link, rank, size };
    return DS_OK;
}

/* ranks/nccl_comm.h - creation of communicators of NCCL.

   Creates, splits, shrinks and grows communicators of the engine "nccl". A rank is NCCL's rank with
   its leading device. If ranks have several devices, each device is a rank of NCCL in a second
   communicator (ds__nccl_join).

   Invariants: a communicator that a call of NCCL has begun is aborted or has a link in the end.
   Locks: `lock` of the communicator from which another one is made.
   Threads: any. */

/* Returns rank and size of the options or, without them, of the launcher. */
static ds_result ds__nccl_place_find(const ds_ranks_desc *desc, int *out_rank, int *out_size) {
    ds_ranks_launch launch;
    (ds_ranks_launch_get)(&launch);
    *out_rank = desc->size ? desc->rank : launch.rank;
    *out_size = desc->size ? desc->size : launch.size;
    DS__REQUIRE(*out_size > 0 && *out_rank >= 0 && *out_rank < *out_size,
                "rank %d of %d ranks: set rank and size, or start the process with mpiexec, srun "
                "or torchrun",
                *out_rank, *out_size);
    return DS_OK;
}

static ds_result ds__nccl_init(const ds_ranks_desc *desc, uint64_t deadline, ds__net_comm *out) {
    ds_device device = { 0, 0 };
    ds__nccl_ticket ticket;
    ds__nccl_config config = ds__nccl_config_default();
    ds__nccl_comm comm = NULL;
    ds__nccl_result code;
    ds__library_scope scope;
    int rank = 0;
    int size = 0;
    ds_result r = ds__device_resolve(desc->devices[0], &device);
    if (r == DS_OK && device.type != DS_DEVICE_CUDA)
        r = ds__fail(
            DS_ERR_UNSUPPORTED,
            "the engine \"nccl\" needs CUDA devices, but devices[0] is cpu:%d; use \"mpi\"",
            device.index);
    if (r == DS_OK)
        r = ds__nccl_load();
    if (r == DS_OK)
        r = ds__nccl_place_find(desc, &rank, &size);
    if (r == DS_OK)
        r = ds__nccl_id_find(desc->id, rank, deadline, &ticket);
    if (r == DS_OK && ticket.grows && !ds__nccl.CommGrow)
        r = ds__nccl_old("grow a communicator", "2.29");
    if (r < 0)
        return r;

    const char *call = ticket.grows ? "CommGrow" : "CommInitRankConfig";
    ds__nccl_begin(device, &scope);
    if (ticket.grows)
        code = ds__nccl.CommGrow(NULL, size, &ticket.id, rank, &comm, &config);
    else
        code = ds__nccl.CommInitRankConfig(&comm, size, ticket.id, rank, &config);
    r = ds__nccl_wait(comm, code, call, deadline, NULL);
    if (r < 0 && comm)
        (void)ds__nccl.CommAbort(comm);
    ds__nccl_end(device, &scope);
    ds__nccl_id_done(desc->id, rank);
    return r < 0 ? r : ds__nccl_link_create(comm, rank, size, device, out);
}

static ds_result ds__nccl_key(char out[DS__RANKS_KEY]) {
    ds__nccl_ticket ticket = { .grows = 0 };
    _Static_assert(sizeof ticket.id == DS__RANKS_KEY, "a key is an id");
    ds_result r = ds__nccl_id_create(&ticket);
    memcpy(out, &ticket.id, sizeof ticket.id);
    return r;
}

/* Calls NCCL for all devices of the rank, and waits for their communicators. */
static ds_result ds__nccl_join_all(ds__nccl_link *link, ds__nccl_id id, uint64_t deadline) {
    ds__nccl_config config = ds__nccl_config_default();
    ds__library_scope scope;
    ds__nccl_result code = ds__nccl.GroupStart();
    ds_result r = ds__nccl_check(NULL, code, "GroupStart");
    if (r < 0)
        return r;
    for (size_t i = 0; i < link->count && r == DS_OK; i++) {
        ds__nccl_place *p = &link->places[i];
        ds__nccl_begin(p->device, &scope);
        code = ds__nccl.CommInitRankConfig(&p->comm, p->size, id, p->rank, &config);
        r = ds__nccl_check(NULL, code, "CommInitRankConfig");
        ds__nccl_end(p->device, &scope);
    }
    code = ds__nccl.GroupEnd();
    if (r == DS_OK)
        r = ds__nccl_check(NULL, code, "GroupEnd");
    for (size_t i = 0; i < link->count && r == DS_OK; i++)
        r = ds__nccl_wait(link->places[i].comm, DS__NCCL_IN_PROGRESS, "CommInitRankConfig",
                          deadline, NULL);
    return r;
}

static void ds__nccl_leave(void *comm) {
    ds__nccl_link *link = comm;
    for (size_t i = 0; i < link->count; i++)
        ds__nccl_abort(link->places[i].comm, link->places[i].device);
    link->count = 0;
    ds__host_free(link->places);
    link->places = NULL;
}

/* If it fails, ds__nccl_leave or ds__nccl_destroy aborts what is there. */
static ds_result ds__nccl_join(void *comm, const char key[DS__RANKS_KEY],
                               const ds__net_devices *devices, uint64_t deadline) {
    ds__nccl_link *link = comm;
    ds__nccl_id id;
    memcpy(&id, key, sizeof id);
    link->places = ds__host_alloc(devices->count * sizeof *link->places);
    if (!link->places)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu communicators", devices->count);
    link->count = devices->count;
    for (size_t i = 0; i < link->count; i++)
        link->places[i] =
            (ds__nccl_place){ NULL, (int)(devices->first + i), (int)devices->all, devices->own[i] };
    return ds__nccl_join_all(link, id, deadline);
}

/* Waits until NCCL has made link->child; `lock` is held. wanted 0: this rank is in no new
   communicator. */
static ds_result ds__nccl_derive(ds__nccl_link *link, ds__nccl_result code, const char *call,
                                 uint64_t deadline, int wanted, ds__net_comm *out) {
    const _Atomic int *stopped = link->revoked ? NULL : &link->stopped;
    ds_result r = ds__nccl_wait(link->own.comm, code, call, deadline, stopped);
    /* A communicator that has failed keeps its error, also if it was shrunk. */
    if (r < 0 && !(link->revoked && r != DS_ERR_TIMEOUT))
        return r;
    ds__nccl_comm child = __atomic_exchange_n(&link->child, NULL, __ATOMIC_ACQUIRE);
    if (!child && r < 0)
        return r;
    if (!child)
        return wanted ? ds__fail(DS_ERR_FAILED, "nccl%s: there is no new communicator", call)
                      : DS_OK;
    r = ds__nccl_wait(child, DS__NCCL_IN_PROGRESS, call, deadline, stopped);
    if (r == DS_OK)
        r = ds__nccl_check(child, ds__nccl.CommUserRank(child, &out->rank), "CommUserRank");
    if (r == DS_OK)
        r = ds__nccl_check(child, ds__nccl.CommCount(child, &out->size), "CommCount");
    if (r < 0)
        (void)ds__nccl.CommAbort(child);
    else
        out->comm = child;
    return r;
}

/* Makes the link of a communicator of ds__nccl_derive, if there is one. No lock is held, since
   memory is allocated. */
static ds_result ds__nccl_complete(const ds__nccl_link *link, ds_result r, ds__net_comm *out) {
    ds__net_comm made = *out;
    *out = (ds__net_comm){ NULL, 0, 0 };
    return made.comm ? ds__nccl_link_create(made.comm, made.rank, made.size, link->own.device, out)
                     : r;
}

static ds_result ds__nccl_split(void *comm, int color, int key, uint64_t deadline,
                                ds__net_comm *out) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    ds__nccl_config config = ds__nccl_config_default();
    *out = (ds__net_comm){ NULL, 0, 0 };
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    ds__nccl_begin(link->own.device, &scope);
    ds__nccl_result code = ds__nccl.CommSplit(link->own.comm, color < 0 ? DS__NCCL_NO_COLOR : color,
                                              key, &link->child, &config);
    r = ds__nccl_derive(link, code, "CommSplit", deadline, color >= 0, out);
    ds__nccl_end(link->own.device, &scope);
    ds__nccl_unlock(link);
    return ds__nccl_complete(link, r, out);
}

/* Shrinks a communicator, whose work NCCL ends first if its group has failed. `lock` is held. */
static ds_result ds__nccl_shrink_comm(ds__nccl_link *link, int *excluded, int count,
                                      uint64_t deadline, ds__net_comm *out) {
    ds__nccl_config config = ds__nccl_config_default();
    ds_result r = DS_OK;
    int flags = atomic_load(&link->stopped) ? DS__NCCL_SHRINK_ABORT : 0;
    if (!link->own.comm)
        return ds__nccl_old("revoke the communicator of a group that has failed", "2.28.7");
    if (link->revoked) /* the revoke must be complete; the communicator keeps its error */
        r = ds__nccl_wait(link->own.comm, DS__NCCL_IN_PROGRESS, "CommRevoke", deadline, NULL);
    if (r == DS_ERR_TIMEOUT)
        return r;
    if (!count) { /* NCCL does not shrink without a rank to exclude */
        ds__nccl_result code =
            ds__nccl.CommSplit(link->own.comm, 0, link->own.rank, &link->child, &config);
        return ds__nccl_derive(link, code, "CommSplit", deadline, 1, out);
    }
    ds__nccl_result code =
        ds__nccl.CommShrink(link->own.comm, excluded, count, &link->child, &config, flags);
    return ds__nccl_derive(link, code, "CommShrink", deadline, 1, out);
}

static ds_result ds__nccl_shrink(void *comm, const int *excluded, size_t count, uint64_t deadline,
                                 ds__net_comm *out) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    *out = (ds__net_comm){ NULL, 0, 0 };
    if (count && !ds__nccl.CommShrink)
        return ds__nccl_old("shrink a communicator", "2.27");
    int *list = ds__host_alloc((count + 1) * sizeof *list);
    if (!list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a list of %zu ranks", count);
    for (size_t i = 0; i < count; i++)
        list[i] = excluded[i];
    ds__mutex_lock(&link->lock);
    ds__nccl_begin(link->own.device, &scope);
    ds_result r = ds__nccl_shrink_comm(link, list, (int)count, deadline, out);
    ds__nccl_end(link->own.device, &scope);
    ds__nccl_unlock(link);
    ds__host_free(list);
    return ds__nccl_complete(link, r, out);
}

/* NCCL before 2.29 makes the larger communicator anew. */
static ds_result ds__nccl_grow_id(void *comm, char out[DS_RANKS_ID_SIZE]) {
    ds__nccl_link *link = comm;
    ds__nccl_ticket ticket = { .grows = ds__nccl.CommGrow != NULL };
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    if (ticket.grows) {
        ds__nccl_result code = ds__nccl.CommGetUniqueId(link->own.comm, &ticket.id);
        r = ds__nccl_check(link->own.comm, code, "CommGetUniqueId");
    } else {
        r = ds__nccl_id_create(&ticket);
    }
    ds__nccl_unlock(link);
    if (r == DS_OK)
        ds__nccl_id_format(&ticket, out);
    return r;
}

static ds_result ds__nccl_grow(void *comm, const char *id, int size, uint64_t deadline,
                               ds__net_comm *out) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    ds__nccl_config config = ds__nccl_config_default();
    ds__nccl_ticket ticket;
    ds__nccl_result code;
    *out = (ds__net_comm){ NULL, 0, 0 };
    if (!ds__nccl_id_parse(id, &ticket))
        return ds__fail(DS_ERR_INVALID_VALUE, "rank 0 has sent no id of NCCL");
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    ds__nccl_begin(link->own.device, &scope);
    if (ticket.grows)
        code = ds__nccl.CommGrow(link->own.comm, size, link->own.rank ? NULL : &ticket.id, -1,
                                 &link->child, &config);
    else
        code = ds__nccl.CommInitRankConfig(&link->child, size, ticket.id, link->own.rank, &config);
    r = ds__nccl_derive(link, code, ticket.grows ? "CommGrow" : "CommInitRankConfig", deadline, 1,
                        out);
    ds__nccl_end(link->own.device, &scope);
    ds__nccl_unlock(link);
    return ds__nccl_complete(link, r, out);
}

/* ranks/nccl_op.h - operations of NCCL.

   Enqueues operations of the engine "nccl" on native streams (ds__nccl_enqueue), and runs the
   operations between hosts that create and compare groups (ds__nccl_start, ds__nccl_test).

   Policy:
   1. Equal parts are gathered and scattered by ncclAllGather and ncclReduceScatter, unequal ones by
      a broadcast or reduction for each rank, in one group call.
   2. Gathers and scatters with a root, all-to-alls and exchanges are sends and receives in one
      group call. NCCL matches them between two ranks in their order, without tags, so an exchange
      orders its transfers by tag.
   3. A barrier is an all_reduce of four bytes.

   Invariants: the device of the communicator is current in ds__nccl_enqueue.
   Locks: `lock` of the communicator.
   Threads: any. */

/* A call of NCCL for an operation. */
typedef struct ds__nccl_job {
    const ds__nccl_place *place;
    void *stream;
    const ds__nccl_how *how; /* NULL: as NCCL decides */
    void *scratch;           /* memory of a barrier */
    int grouped;             /* 1: a group call has begun */
} ds__nccl_job;

/* Calls a function of NCCL; gives DS_OK, also for work in progress, or reports its error. */
#define DS__NCCL_CALL(job, function, ...) \
    ds__nccl_check((job)->place->comm,    \
                   ds__nccl.function(__VA_ARGS__, (job)->place->comm, (job)->stream), #function)

/* The same for a function that can be configured. */
#define DS__NCCL_COLLECTIVE(job, function, ...)                                             \
    ((job)->how ? ds__nccl_check((job)->place->comm,                                        \
                                 ds__nccl.function##Config(__VA_ARGS__, (job)->place->comm, \
                                                           (job)->stream, (job)->how),      \
                                 #function "Config")                                        \
                : DS__NCCL_CALL(job, function, __VA_ARGS__))

/* Returns NCCL's type of an element, or -1. */
static ds__nccl_type ds__nccl_type_of(ds_dtype dtype) {
    switch (dtype.lanes == 1 ? dtype.code << 8 | dtype.bits : 0) {
    case DS_CODE_INT << 8 | 8:
        return DS__NCCL_INT8;
    case DS_CODE_INT << 8 | 32:
        return DS__NCCL_INT32;
    case DS_CODE_INT << 8 | 64:
        return DS__NCCL_INT64;
    case DS_CODE_UINT << 8 | 8:
        return DS__NCCL_UINT8;
    case DS_CODE_UINT << 8 | 32:
        return DS__NCCL_UINT32;
    case DS_CODE_UINT << 8 | 64:
        return DS__NCCL_UINT64;
    case DS_CODE_FLOAT << 8 | 16:
        return DS__NCCL_FLOAT16;
    case DS_CODE_FLOAT << 8 | 32:
        return DS__NCCL_FLOAT32;
    case DS_CODE_FLOAT << 8 | 64:
        return DS__NCCL_FLOAT64;
    case DS_CODE_BFLOAT << 8 | 16:
        return DS__NCCL_BFLOAT16;
    default:
        return -1;
    }
}

static ds__nccl_op ds__nccl_operator(ds_reduce_op op) {
    if (op == DS_REDUCE_MAX)
        return DS__NCCL_MAX;
    if (op == DS_REDUCE_MIN)
        return DS__NCCL_MIN;
    return op == DS_REDUCE_PRODUCT ? DS__NCCL_PROD : DS__NCCL_SUM;
}

/* Not accepted: maximum and minimum of floats, since NCCL does not say which result a NaN has. */
static int ds__nccl_reduces(ds_dtype dtype, ds_reduce_op op) {
    int integer = dtype.code == DS_CODE_INT || dtype.code == DS_CODE_UINT;
    int compares = op == DS_REDUCE_MAX || op == DS_REDUCE_MIN;
    return op != DS_REDUCE_AVERAGE && ds__nccl_type_of(dtype) >= 0 && (integer || !compares);
}

static int ds__nccl_reaches(ds__net_kind kind) {
    (void)kind;
    return 1;
}

/* ---- kinds of operations --------------------------------------------------------------------- */

/* Begins a group call. */
static ds_result ds__nccl_group(ds__nccl_job *j) {
    ds_result r = ds__nccl_check(j->place->comm, ds__nccl.GroupStart(), "GroupStart");
    j->grouped = r == DS_OK;
    return r;
}

static ds_result ds__nccl_all_gather(ds__nccl_job *j, const ds__net_op *op) {
    const ds__net_parts *parts = &op->parts;
    const ds__nccl_place *p = j->place;
    if (ds__net_parts_equal(parts, p->size))
        return DS__NCCL_COLLECTIVE(j, AllGather, op->in, op->out, parts->bytes[0], DS__NCCL_INT8);
    ds_result r = ds__nccl_group(j);
    for (int i = 0; r == DS_OK && i < p->size; i++) {
        void *out = ds__behind(op->out, parts->at[i]);
        if (parts->bytes[i])
            r = DS__NCCL_COLLECTIVE(j, Broadcast, i == p->rank ? op->in : out, out, parts->bytes[i],
                                    DS__NCCL_INT8, i);
    }
    return r;
}

static ds_result ds__nccl_reduce_scatter(ds__nccl_job *j, const ds__net_op *op) {
    const ds__net_parts *parts = &op->parts;
    const ds__nccl_place *p = j->place;
    size_t unit = (size_t)op->dtype.bits / 8;
    ds__nccl_type type = ds__nccl_type_of(op->dtype);
    ds__nccl_op combine = ds__nccl_operator(op->reduce_op);
    if (ds__net_parts_equal(parts, p->size))
        return DS__NCCL_COLLECTIVE(j, ReduceScatter, op->in, op->out, parts->bytes[0] / unit, type,
                                   combine);
    ds_result r = ds__nccl_group(j);
    for (int i = 0; r == DS_OK && i < p->size; i++)
        if (parts->bytes[i])
            r = DS__NCCL_COLLECTIVE(j, Reduce, ds__behind(op->in, parts->at[i]), op->out,
                                    parts->bytes[i] / unit, type, combine, i);
    return r;
}

/* Orders transfers by tag, then as they are. */
static int ds__nccl_transfer_compare(const void *left, const void *right) {
    const ds__net_transfer *a = *(const ds__net_transfer *const *)left;
    const ds__net_transfer *b = *(const ds__net_transfer *const *)right;
    if (a->tag != b->tag)
        return a->tag < b->tag ? -1 : 1;
    return a < b ? -1 : 1;
}

static ds_result ds__nccl_transfers(ds__nccl_job *j, const ds__net_transfer *list, size_t count) {
    const ds__net_transfer **order = ds__host_alloc((count + 1) * sizeof *order);
    if (!order)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for %zu transfers", count);
    for (size_t i = 0; i < count; i++)
        order[i] = &list[i];
    qsort(order, count, sizeof *order, ds__nccl_transfer_compare);
    ds_result r = ds__nccl_group(j);
    for (size_t i = 0; r == DS_OK && i < count; i++) {
        const ds__net_transfer *t = order[i];
        r = t->receive ? DS__NCCL_CALL(j, Recv, t->at, t->bytes, DS__NCCL_INT8, t->rank)
                       : DS__NCCL_CALL(j, Send, t->at, t->bytes, DS__NCCL_INT8, t->rank);
    }
    ds__host_free(order);
    return r;
}

static ds_result ds__nccl_messages(ds__nccl_job *j, const ds__net_op *op) {
    const ds__nccl_place *p = j->place;
    ds__net_transfer *list = ds__host_alloc(2 * (size_t)p->size * sizeof *list);
    if (!list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for messages to %d ranks",
                        p->size);
    size_t count = ds__net_messages(op, p->rank, p->size, list);
    ds_result r = ds__nccl_transfers(j, list, count);
    ds__host_free(list);
    return r;
}

static ds_result ds__nccl_kind(ds__nccl_job *j, const ds__net_op *op) {
    ds__nccl_type type = ds__nccl_type_of(op->dtype);
    ds__nccl_op combine = ds__nccl_operator(op->reduce_op);
    switch (op->kind) {
    case DS__NET_ALL_REDUCE:
        return DS__NCCL_COLLECTIVE(j, AllReduce, op->in, op->out, op->count, type, combine);
    case DS__NET_REDUCE:
        return DS__NCCL_COLLECTIVE(j, Reduce, op->in, op->out, op->count, type, combine, op->root);
    case DS__NET_REDUCE_SCATTER:
        return ds__nccl_reduce_scatter(j, op);
    case DS__NET_BROADCAST:
        return DS__NCCL_COLLECTIVE(j, Broadcast, op->out, op->out, op->count, DS__NCCL_INT8,
                                   op->root);
    case DS__NET_ALL_GATHER:
        return ds__nccl_all_gather(j, op);
    case DS__NET_GATHER:
    case DS__NET_SCATTER:
    case DS__NET_ALL_TO_ALL:
        return ds__nccl_messages(j, op);
    case DS__NET_EXCHANGE:
        return ds__nccl_transfers(j, op->transfers, op->transfer_count);
    default: /* a barrier */
        return DS__NCCL_CALL(j, AllReduce, j->scratch, j->scratch, 1, DS__NCCL_INT32, DS__NCCL_SUM);
    }
}

/* Returns NCCL's form of a configuration. */
static ds__nccl_how ds__nccl_how_of(const ds_ranks_nccl *n) {
    return (ds__nccl_how){ .size = sizeof(ds__nccl_how),
                           .magic = DS__NCCL_MAGIC,
                           .version = DS__NCCL_HOW_VERSION,
                           .min_ctas = n->min_ctas ? n->min_ctas : DS__NCCL_UNDEFINED,
                           .max_ctas = n->max_ctas ? n->max_ctas : DS__NCCL_UNDEFINED,
                           .nvls_ctas = n->nvls_ctas ? n->nvls_ctas : DS__NCCL_UNDEFINED,
                           .cga_cluster_size =
                               n->cga_cluster_size ? n->cga_cluster_size : DS__NCCL_UNDEFINED,
                           .algorithm = n->algorithm,
                           .force_algorithm = !n->is_hint,
                           .cta_policy = n->cta_policy ? n->cta_policy : DS__NCCL_UNDEFINED };
}

/* Calls NCCL for an operation on a stream. */
static ds_result ds__nccl_call(const ds__nccl_place *place, const ds__net_op *op, void *stream,
                               void *scratch) {
    ds__nccl_how how;
    ds__nccl_job job = { .place = place, .stream = stream, .scratch = scratch };
    if (DS__UNLIKELY(op->nccl != NULL)) {
        how = ds__nccl_how_of(op->nccl);
        job.how = &how;
    }
    ds_result r = ds__nccl_kind(&job, op);
    if (job.grouped) {
        ds__nccl_result code = ds__nccl.GroupEnd();
        r = r == DS_OK ? ds__nccl_check(place->comm, code, "GroupEnd") : r;
    }
    return r;
}

/* ---- the functions of the engine ------------------------------------------------------------- */

/* Waits until NCCL has enqueued the operations of a communicator. */
static ds_result ds__nccl_settle(ds__nccl_link *link, const ds__nccl_place *place,
                                 uint64_t deadline) {
    return ds__nccl_wait(place->comm, DS__NCCL_IN_PROGRESS, "CommGetAsyncError", deadline,
                         &link->stopped);
}

/* Enqueues the operations of all devices of the rank, in one group call. */
static ds_result ds__nccl_enqueue_each(ds__nccl_link *link, const ds__net_member *members,
                                       uint64_t deadline) {
    ds__nccl_result code = ds__nccl.GroupStart();
    ds_result r = ds__nccl_check(link->own.comm, code, "GroupStart");
    if (r < 0)
        return r;
    for (size_t i = 0; i < link->count && r == DS_OK; i++) {
        if (members[i].native)
            r = ds__nccl_call(&link->places[i], &members[i].op, members[i].native, NULL);
    }
    code = ds__nccl.GroupEnd();
    if (r == DS_OK)
        r = ds__nccl_check(link->own.comm, code, "GroupEnd");
    for (size_t i = 0; i < link->count && r == DS_OK; i++)
        if (members[i].native)
            r = ds__nccl_settle(link, &link->places[i], deadline);
    return r;
}

/* Enqueues the operation of the rank. */
static ds_result ds__nccl_enqueue_one(ds__nccl_link *link, const ds__net_op *op, void *native,
                                      uint64_t deadline) {
    ds_result r = ds__nccl_call(&link->own, op, native, link->scratch);
    return r == DS_OK ? ds__nccl_settle(link, &link->own, deadline) : r;
}

/* Ends the work of a communicator whose operation could not be enqueued, and waits until no thread
   of NCCL enqueues any more, since the caller may destroy the stream. `lock` is held. */
__attribute__((cold, noinline)) static void ds__nccl_give_up(ds__nccl_link *link) {
    uint64_t deadline = ds__now_ns() + 300000000u;
    ds__kept_error error;
    ds__error_save(&error);
    atomic_store(&link->stopped, 1);
    ds__nccl_end_work(link);
    for (size_t i = 0; i <= link->count; i++)
        if (ds__nccl_at(link, i)->comm)
            (void)ds__nccl_wait(ds__nccl_at(link, i)->comm, DS__NCCL_IN_PROGRESS, "CommRevoke",
                                deadline, NULL);
    ds__error_restore(&error);
}

/* Enqueues operations, and waits until NCCL has enqueued them. */
static ds_result ds__nccl_enqueue(void *comm, const ds__net_op *op, void *native,
                                  const ds__net_member *members, uint64_t deadline) {
    ds__nccl_link *link = comm;
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    r = members ? ds__nccl_enqueue_each(link, members, deadline)
                : ds__nccl_enqueue_one(link, op, native, deadline);
    if (DS__UNLIKELY(r < 0))
        ds__nccl_give_up(link);
    ds__nccl_unlock(link);
    return r;
}

static ds_result ds__nccl_host_enqueue(ds__remote *remote, void *native) {
    ds__nccl_host_op *h = (ds__nccl_host_op *)(void *)remote;
    return ds__nccl_enqueue(h->link, &h->net, native, NULL, h->net.deadline);
}

/* Enqueues the copies and the operation. */
static ds_result ds__nccl_host_submit(ds__nccl_host_op *h, size_t own) {
    ds_result r;
    char *at = h->device;
    ds_stream stream = h->link->stream;
    DS__KEEPING(r, (ds_copy)(at + h->bytes, h->pinned + h->bytes, own, stream));
    ds__stream *s = r == DS_OK ? ds__stream_pin(stream) : NULL;
    if (!s)
        return r < 0 ? r : DS_ERR_INVALID_HANDLE;
    ds__op o = ds__op_init(DS__OP_REMOTE | DS__OP_OUTSIDE << 8);
    o.u.remote.begin = &h->remote;
    o.u.remote.timeline = NULL;
    o.u.remote.upto = 0;
    o.u.remote.name = ds__net_names[h->net.kind];
    o.u.remote.bytes = h->bytes;
    r = ds__stream_submit(s, &o);
    ds__stream_unpin(s);
    if (r == DS_OK)
        DS__KEEPING(r, (ds_copy)(h->pinned, at, h->bytes, stream));
    return r;
}

/* Gathers host memory of all ranks. */
static ds_result ds__nccl_start(void *comm, const ds__net_op *op, ds__net_request *request) {
    ds__nccl_link *link = comm;
    ds_result r;
    void *pinned = NULL;
    size_t own = op->parts.bytes[link->own.rank];
    size_t bytes = 0;
    for (int i = 0; i < link->own.size; i++)
        bytes += op->parts.bytes[i];
    ds__nccl_host_op *h = ds__host_alloc(sizeof *h);
    if (!h)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for an operation");
    h->remote.enqueue_fn = ds__nccl_host_enqueue;
    h->link = link;
    h->out = op->out;
    h->bytes = bytes;
    DS__KEEPING(r, (ds_mem_pinned_alloc)(bytes + own, &pinned));
    h->pinned = pinned;
    if (r == DS_OK)
        DS__KEEPING(r, (ds_mem_alloc)(bytes + own, link->stream, &h->device));
    if (r == DS_OK) {
        memcpy(h->pinned + bytes, op->in, own);
        h->net = *op;
        h->net.out = h->device;
        h->net.in = (char *)h->device + bytes;
        r = ds__nccl_host_submit(h, own);
    }
    if (r < 0)
        ds__nccl_host_free(h);
    *request = (ds__net_request){ { h } };
    return r;
}

static ds_result ds__nccl_test(void *comm, ds__net_request *request) {
    ds__nccl_link *link = comm;
    ds__nccl_host_op *h = request->at[0];
    ds_result r;
    DS__KEEPING(r, (ds_stream_query)(link->stream));
    if (r == DS_NOT_READY)
        return r;
    if (r == DS_OK && atomic_load(&link->stopped)) /* the result was not written */
        r = ds__fail(DS_ERR_ABORTED, "its group has failed");
    if (r == DS_OK)
        memcpy(h->out, h->pinned, h->bytes);
    ds__nccl_host_free(h);
    return r;
}

/* NCCL may still write to the memory of the device, which stays until the communicator is gone. */
static void ds__nccl_abandon(void *comm, ds__net_request *request) {
    ds__nccl_link *link = comm;
    ds__nccl_host_op *h = request->at[0];
    h->next = link->abandoned;
    link->abandoned = h;
    ds__nccl_stop(comm);
}

/* NCCL has no messages between hosts: the other ranks meet their own time limit. */
static void ds__nccl_tell(void *comm, ds_result code, const char *reason) {
    (void)comm;
    (void)code;
    (void)reason;
}

/* Returns the error that NCCL has found in a communicator by itself, or ncclSuccess. */
static ds__nccl_result ds__nccl_error_of(const ds__nccl_place *place,
                                         char reason[DS__RANKS_REASON]) {
    ds__nccl_result code = DS__NCCL_SUCCESS;
    if (!place->comm || ds__nccl.CommGetAsyncError(place->comm, &code) != DS__NCCL_SUCCESS ||
        code == DS__NCCL_SUCCESS || code == DS__NCCL_IN_PROGRESS)
        return DS__NCCL_SUCCESS;
    const char *last = ds__nccl.GetLastError(place->comm);
    snprintf(reason, DS__RANKS_REASON, "NCCL reports an error: %s%s%.200s",
             ds__nccl.GetErrorString(code), last && *last ? ": " : "", last ? last : "");
    return code;
}

/* Asks for an error that NCCL has found by itself. */
static ds_result ds__nccl_hear(void *comm, char reason[DS__RANKS_REASON], int *out_rank) {
    ds__nccl_link *link = comm;
    ds__nccl_result code = DS__NCCL_SUCCESS;
    *out_rank = link->own.rank;
    if (!ds__mutex_trylock(&link->lock))
        return DS_OK;
    if (!atomic_load(&link->stopped)) {
        code = ds__nccl_error_of(&link->own, reason);
        for (size_t i = 0; i < link->count && code == DS__NCCL_SUCCESS; i++)
            code = ds__nccl_error_of(&link->places[i], reason);
    }
    ds__mutex_unlock(&link->lock);
    if (code == DS__NCCL_SUCCESS)
        return DS_OK;
    return code == DS__NCCL_REMOTE_ERROR ? DS_ERR_ABORTED : DS_ERR_FAILED;
}

/* ---- registered memory, configuration -------------------------------------------------------- */

/* Returns the link of the list that has the memory, or its end. */
static ds__nccl_buffer **ds__nccl_buffer_find(ds__nccl_link *link, const void *ptr) {
    ds__nccl_buffer **at = &link->buffers;
    while (*at && (*at)->ptr != ptr)
        at = &(*at)->next;
    return at;
}

/* Registers the memory with the communicators of its device. `lock` is held. */
static ds_result ds__nccl_buffer_begin(ds__nccl_link *link, ds__nccl_buffer *b, size_t size,
                                       ds_device device) {
    ds_result r = DS_OK;
    int count = 0;
    for (size_t i = 0; i <= link->count && r == DS_OK; i++) {
        const ds__nccl_place *p = ds__nccl_at(link, i);
        if (ds__device_key(p->device) != ds__device_key(device))
            continue;
        r = ds__nccl_check(p->comm, ds__nccl.CommRegister(p->comm, b->ptr, size, &b->handle[count]),
                           "CommRegister");
        if (r == DS_OK)
            b->place[count++] = p;
    }
    return r;
}

static ds_result ds__nccl_enlist(void *comm, void *ptr, size_t size, ds_device device) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    ds__kept_error error;
    if (!ds__nccl.CommRegister || !ds__nccl.CommDeregister)
        return ds__nccl_old("register memory", "2.19");
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    ds__nccl_buffer *b = NULL;
    if (*ds__nccl_buffer_find(link, ptr))
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p is registered already", ptr);
    else if (!(b = ds__host_alloc(sizeof *b)))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a registration");
    if (b) {
        b->ptr = ptr;
        b->next = link->buffers;
        link->buffers = b;
        ds__nccl_begin(device, &scope);
        r = ds__nccl_buffer_begin(link, b, size, device);
        if (r < 0) {
            ds__error_save(&error);
            (void)ds__nccl_buffer_end(link, &link->buffers, 1);
            ds__error_restore(&error);
        }
        ds__nccl_end(device, &scope);
    }
    ds__nccl_unlock(link);
    return r;
}

static ds_result ds__nccl_delist(void *comm, void *ptr) {
    ds__nccl_link *link = comm;
    ds__mutex_lock(&link->lock);
    ds__nccl_buffer **at = ds__nccl_buffer_find(link, ptr);
    ds_result r = *at ? ds__nccl_buffer_end(link, at, !atomic_load(&link->stopped))
                      : ds__fail(DS_ERR_INVALID_VALUE, "%p is not registered", ptr);
    ds__nccl_unlock(link);
    return r;
}

/* Only functions that compute have a form with a configuration. */
static ds_result ds__nccl_configures(ds__net_kind kind) {
    switch (kind) {
    case DS__NET_ALL_REDUCE:
    case DS__NET_REDUCE:
    case DS__NET_REDUCE_SCATTER:
    case DS__NET_BROADCAST:
    case DS__NET_ALL_GATHER:
        return ds__nccl.AllReduceConfig && ds__nccl.ReduceConfig && ds__nccl.BroadcastConfig &&
                       ds__nccl.AllGatherConfig && ds__nccl.ReduceScatterConfig
                   ? DS_OK
                   : ds__nccl_old("configure an operation", "2.31");
    default:
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "ranks_options->nccl: NCCL's messages have no configuration");
    }
}

static void ds__nccl_library(char *out, size_t size) {
    int v = ds__nccl_state.version;
    snprintf(out, size, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

static void ds__nccl_shutdown(void) {
}

static const ds__ranks_engine ds__nccl_engine = {
    .name = "nccl",
    .captures = 1,
    .cancels = 1,
    .reduces = ds__nccl_reduces,
    .reaches = ds__nccl_reaches,
    .init = ds__nccl_init,
    .split = ds__nccl_split,
    .shrink = ds__nccl_shrink,
    .grow_id = ds__nccl_grow_id,
    .grow = ds__nccl_grow,
    .enlist = ds__nccl_enlist,
    .delist = ds__nccl_delist,
    .configures = ds__nccl_configures,
    .key = ds__nccl_key,
    .join = ds__nccl_join,
    .leave = ds__nccl_leave,
    .enqueue = ds__nccl_enqueue,
    .start = ds__nccl_start,
    .test = ds__nccl_test,
    .abandon = ds__nccl_abandon,
    .stop = ds__nccl_stop,
    .tell = ds__nccl_tell,
    .hear = ds__nccl_hear,
    .destroy = ds__nccl_destroy,
    .library = ds__nccl_library,
    .shutdown = ds__nccl_shutdown,
};

/* ranks/derive.h - groups that are made of another group.

   Implements ds_ranks_split, ds_ranks_shrink, ds_ranks_grow_id and ds_ranks_grow.

   Invariants: the new group has the devices, limits and recorder of the group.
   Locks: `calls` of the group is held while other ranks are waited for.
   Threads: caller's threads. */

static uint64_t ds__ranks_deadline(uint64_t timeout_ns) {
    uint64_t now = ds__now_ns();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* Creates a group of a communicator that was made of another group's, if r is DS_OK and there is
   one. Ends the pin. how: for the label, such as "split 1, color 0". */
static ds_result ds__group_derive(ds__group *g, ds_result r, ds__group_start *start,
                                  const char *how, ds_ranks *out) {
    char label[64];
    if (r == DS_OK && start->comm.comm) {
        snprintf(label, sizeof label, "%.30s, %.30s", ds__group_name(g), how);
        ds_ranks_desc desc = { .devices = g->own,
                               .device_count = g->owns,
                               .flags = g->flags,
                               .timeout_ns = g->timeout_ns,
                               .label = label };
        start->engine = g->engine;
        start->recorder = ds__recorder_ref(g->recorder);
        r = ds__group_create(start, &desc, out);
    }
    ds__group_unpin(g);
    return r;
}

/* Splits the communicator of a group. A rank that gives up fails the group: the others must not
   wait for it, and a later split would meet its abandoned part. */
static ds_result ds__group_split(ds__group *g, int color, int key, uint64_t deadline,
                                 ds__net_comm *comm) {
    char text[DS__RANKS_REASON];
    ds_result r = g->engine->split(g->comm, color, key, deadline, comm);
    if (r != DS_ERR_TIMEOUT)
        return r;
    snprintf(text, sizeof text,
             "ds_ranks_split at %s:%d of group \"%s\" on rank %d of %d: not all ranks have called "
             "within the time limit",
             ds__tls.site.file ? ds__tls.site.file : "?", ds__tls.site.file ? ds__tls.site.line : 0,
             ds__group_name(g), g->rank, g->size);
    ds__mutex_lock(&g->lock);
    ds__group_fail(g, r, text, 1);
    ds__mutex_unlock(&g->lock);
    return ds__group_report(g);
}

DSDEF ds_result(ds_ranks_split)(ds_ranks ranks, int color, int key, ds_ranks *out) {
    ds__group_start start = { .engine = NULL };
    char how[40];
    if (out)
        out->id = 0;
    DS__ENTER("ds_ranks_split");
    DS__REQUIRE(out, "out is NULL");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    start.deadline = ds__ranks_deadline(g->timeout_ns);
    ds__mutex_lock(&g->calls);
    uint32_t number = ++g->splits;
    ds_result r = ds__group_report(g);
    if (r == DS_OK)
        r = ds__group_settle(g, start.deadline);
    if (r == DS_OK)
        r = ds__group_split(g, color, key, start.deadline, &start.comm);
    ds__mutex_unlock(&g->calls);
    snprintf(how, sizeof how, "split %u, color %d", number, color);
    start.id = ds__ranks_id(g->id, number, color);
    return ds__group_derive(g, r, &start, how, out);
}

DSDEF ds_result(ds_ranks_shrink)(ds_ranks ranks, const int *excluded, size_t count, ds_ranks *out) {
    ds__group_start start = { .engine = NULL };
    char how[40];
    if (out)
        out->id = 0;
    DS__ENTER("ds_ranks_shrink");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(excluded || !count, "excluded is NULL, but count is %zu", count);
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    for (size_t i = 0; i < count && r == DS_OK; i++)
        if (excluded[i] < 0 || excluded[i] >= g->size || excluded[i] == g->rank)
            r = ds__fail(DS_ERR_INVALID_VALUE,
                         "excluded[%zu] is %d; it must be another rank of the %d ranks", i,
                         excluded[i], g->size);
    start.deadline = ds__ranks_deadline(g->timeout_ns);
    ds__mutex_lock(&g->calls);
    uint32_t number = ++g->splits;
    if (r == DS_OK)
        r = g->engine->shrink(g->comm, excluded, count, start.deadline, &start.comm);
    ds__mutex_unlock(&g->calls);
    snprintf(how, sizeof how, "shrink %u", number);
    start.id = ds__ranks_id(g->id, number, 0);
    return ds__group_derive(g, r, &start, how, out);
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* Refuses an engine whose groups cannot grow. */
static ds_result ds__group_check_grow(const ds__group *g) {
    return g->engine->grow ? DS_OK
                           : ds__fail(DS_ERR_UNSUPPORTED,
                                      "a group of engine \"%s\" cannot grow: MPI's ranks are those "
                                      "that its launcher has started",
                                      g->engine->name);
}

DSDEF ds_result(ds_ranks_grow_id)(ds_ranks ranks, char *out, size_t size) {
    if (out && size)
        *out = '\0';
    DS__ENTER("ds_ranks_grow_id");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(size >= DS_RANKS_ID_SIZE, "out has %zu bytes; DS_RANKS_ID_SIZE (%d) are required",
                size, DS_RANKS_ID_SIZE);
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__mutex_lock(&g->calls);
    ds_result r = ds__group_report(g);
    if (r == DS_OK)
        r = ds__group_check_grow(g);
    if (r == DS_OK && g->rank)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "this is rank %d; rank 0 creates the id", g->rank);
    if (r == DS_OK && *g->grow_id)
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "the group has an id already, which ds_ranks_grow has not used");
    if (r == DS_OK)
        r = g->engine->grow_id(g->comm, g->grow_id);
    if (r == DS_OK)
        memcpy(out, g->grow_id, sizeof g->grow_id);
    ds__mutex_unlock(&g->calls);
    ds__group_unpin(g);
    return r;
}

/* Gives all ranks the id of rank 0, and creates the communicator. `calls` is held. */
static ds_result ds__group_grow(ds__group *g, int size, uint64_t deadline, ds__net_comm *out) {
    void *ids = NULL;
    ds_result r = ds__group_settle(g, deadline);
    if (r == DS_OK)
        r = ds__group_gather(g, g->grow_id, sizeof g->grow_id, deadline, &ids);
    *g->grow_id = '\0';
    const char *id = ids; /* that of rank 0 */
    if (r == DS_OK && !*id)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "rank 0 has not called ds_ranks_grow_id");
    if (r == DS_OK)
        r = g->engine->grow(g->comm, id, size, deadline, out);
    ds__host_free(ids);
    return r;
}

DSDEF ds_result(ds_ranks_grow)(ds_ranks ranks, int size, ds_ranks *out) {
    ds__group_start start = { .engine = NULL };
    char how[40];
    if (out)
        out->id = 0;
    DS__ENTER("ds_ranks_grow");
    DS__REQUIRE(out, "out is NULL");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    start.deadline = ds__ranks_deadline(g->timeout_ns);
    ds__mutex_lock(&g->calls);
    uint32_t number = ++g->splits;
    ds_result r = ds__group_report(g);
    if (r == DS_OK)
        r = ds__group_check_grow(g);
    if (r == DS_OK && size <= g->size)
        r = ds__fail(DS_ERR_INVALID_VALUE, "size is %d; it must be above %d, that of the group",
                     size, g->size);
    if (r == DS_OK)
        r = ds__group_grow(g, size, start.deadline, &start.comm);
    ds__mutex_unlock(&g->calls);
    snprintf(how, sizeof how, "grow %u", number);
    start.id = ds__ranks_id(g->id, number, size);
    return ds__group_derive(g, r, &start, how, out);
}

/* ranks/in_process.h - collectives of one process by NCCL.

   Runs a collective whose options have the engine "nccl" (ds__inproc_run), and tells whether NCCL
   runs one, and why (ds__inproc_explain).

   Policy: a list of devices has a group of one rank, whose devices are ranks of NCCL. It is created
   by the first collective and kept until ds_shutdown or a checkpoint. If NCCL cannot run the
   collective, the layer below does it without NCCL.

   Invariants: a group that has failed is replaced at the next call.
   Locks: ds__inprocs.lock guards the list; no other lock is taken under it.
   Threads: caller's threads. */

/* The group of a list of devices. */
typedef struct ds__inproc {
    struct ds__inproc *next;
    ds_ranks ranks;
    size_t count;
    ds_device device[];
} ds__inproc;

static struct {
    ds__spinlock lock;
    ds__inproc *first;
} ds__inprocs;

/* ---- what NCCL can run ----------------------------------------------------------------------- */

/* DS_OK, or the reason why NCCL does not run a collective. */
static ds_result ds__inproc_check(const ds__engine_question *q) {
    ds_result r = DS_OK;
    if (q->count < 2)
        return ds__fail(DS_ERR_UNSUPPORTED, "there are less than two devices");
    if (q->reduces && !q->any_order)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "devstream computes this reduction; NCCL computes integers, and sums and "
                        "products with DS_COMM_ANY_ORDER");
    for (size_t i = 0; i < q->count && r == DS_OK; i++) {
        ds_device d = q->devices[i];
        if (d.type != DS_DEVICE_CUDA)
            return ds__fail(DS_ERR_UNSUPPORTED, "%s:%d is no GPU", ds__type_name(d.type), d.index);
        for (size_t k = 0; k < i; k++)
            if (d.index == q->devices[k].index)
                return ds__fail(DS_ERR_UNSUPPORTED, "cuda:%d has two tensors", d.index);
        r = ds__device_resolve(d, &d);
    }
    return r == DS_OK ? ds__nccl_load() : r;
}

/* Calls ds__inproc_check without an error of the call. */
static ds_result ds__inproc_ask(const ds__engine_question *q) {
    ds__quiet outer = ds__quiet_begin();
    ds_result r = ds__inproc_check(q);
    ds__quiet_end(&outer);
    return r;
}

static void ds__inproc_explain(const ds__engine_question *q, char *out, size_t size) {
    char library[64];
    if (ds__inproc_ask(q) < 0) {
        snprintf(out, size, "not used: %s", ds__quiet_reason());
        return;
    }
    ds__nccl_library(library, sizeof library);
    snprintf(out, size, "used, %s: each of the %zu GPUs is a rank of its communicator", library,
             q->count);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static ds_result ds__inproc_create(const ds_device *devices, size_t count, ds_ranks *out) {
    char id[DS_RANKS_ID_SIZE];
    ds__nccl_ticket ticket;
    ds_result r = ds__nccl_id_create(&ticket);
    if (r < 0)
        return r;
    ds__nccl_id_format(&ticket, id);
    ds_ranks_desc desc = { .engine = "nccl",
                           .size = 1,
                           .id = id,
                           .devices = devices,
                           .device_count = count,
                           .record = "",
                           .label = "engine nccl" };
    DS__KEEPING(r, (ds_ranks_init)(&desc, out));
    return r;
}

/* Ends groups that were taken out of the list. */
static void ds__inproc_end(ds__inproc *list) {
    ds_result r;
    while (list) {
        ds__inproc *next = list->next;
        DS__KEEPING(r, (ds_ranks_finalize)(list->ranks));
        DS_IGNORE(r);
        ds__host_free(list);
        list = next;
    }
}

/* Ends all groups; ds_shutdown and checkpoints do that first. */
static void ds__inproc_end_all(void) {
    ds__spinlock_lock(&ds__inprocs.lock);
    ds__inproc *list = ds__inprocs.first;
    ds__inprocs.first = NULL;
    ds__spinlock_unlock(&ds__inprocs.lock);
    ds__inproc_end(list);
}

/* Returns the link of the list that has the group of these devices, or its end. The lock is
   held. */
static ds__inproc **ds__inproc_at(const ds_device *devices, size_t count) {
    ds__inproc **at = &ds__inprocs.first;
    while (*at &&
           ((*at)->count != count || memcmp((*at)->device, devices, count * sizeof *devices) != 0))
        at = &(*at)->next;
    return at;
}

/* Returns the group of a list of devices, or a zeroed handle. `made` is added, unless there is a
   group already; it is ended then. */
static ds_ranks ds__inproc_get(const ds_device *devices, size_t count, ds__inproc *made) {
    ds_ranks ranks = { 0 };
    ds__spinlock_lock(&ds__inprocs.lock);
    ds__inproc **at = ds__inproc_at(devices, count);
    if (!*at) {
        *at = made;
        made = NULL;
    }
    if (*at)
        ranks = (*at)->ranks;
    ds__spinlock_unlock(&ds__inprocs.lock);
    ds__inproc_end(made);
    return ranks;
}

/* Takes the group of these devices out of the list, if it is still this one, and ends it. */
static void ds__inproc_drop(const ds_device *devices, size_t count, ds_ranks ranks) {
    ds__inproc *gone = NULL;
    ds__spinlock_lock(&ds__inprocs.lock);
    ds__inproc **at = ds__inproc_at(devices, count);
    if (*at && (*at)->ranks.id == ranks.id) {
        gone = *at;
        *at = gone->next;
        gone->next = NULL;
    }
    ds__spinlock_unlock(&ds__inprocs.lock);
    ds__inproc_end(gone);
}

/* Returns 1 if the group has not failed. */
static int ds__inproc_lives(ds_ranks ranks) {
    ds__group *g = ds__group_pin(ranks);
    int lives = g && !atomic_load(&g->failed);
    if (g)
        ds__group_unpin(g);
    return lives;
}

/* Finds the group of a list of devices, or creates it. */
static ds_result ds__inproc_find(const ds_device *devices, size_t count, ds_ranks *out) {
    *out = ds__inproc_get(devices, count, NULL);
    if (out->id && ds__inproc_lives(*out))
        return DS_OK;
    if (out->id)
        ds__inproc_drop(devices, count, *out);
    ds__inproc *e = ds__host_alloc(sizeof *e + count * sizeof *devices);
    if (!e)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a group of %zu devices", count);
    ds_result r = ds__inproc_create(devices, count, &e->ranks);
    if (r < 0) {
        ds__host_free(e);
        return r;
    }
    e->count = count;
    memcpy(e->device, devices, count * sizeof *devices);
    *out = ds__inproc_get(devices, count, e);
    return DS_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* A call for a group, with a list of one tensor for each device. */
typedef struct ds__inproc_call {
    ds__comm_call call;
    ds_comm_options options;
    ds_ranks_options more;
    size_t count;
    size_t root;
    int64_t *sizes; /* the begin of a block of memory that has the next three, too */
    const ds_tensor **list;
    ds_stream *streams;
    ds_device *devices;
} ds__inproc_call;

/* Returns the single tensor of a call, or NULL: both sides are lists. */
static const ds_tensor *ds__inproc_single(const ds__comm_call *c) {
    switch (c->verb) {
    case DS__VERB_BROADCAST:
    case DS__VERB_SCATTER:
        return c->in[0];
    case DS__VERB_GATHER:
    case DS__VERB_REDUCE:
        return c->out[0];
    default:
        return NULL;
    }
}

/* Returns 1 if all tensors are there, and the lists have the same devices. */
static int ds__inproc_reads(const ds__comm_call *c, int single, int from_outs) {
    const ds_tensor *const *list = from_outs ? c->out : c->in;
    size_t count = from_outs ? c->out_count : c->in_count;
    if (!count || !c->in || !c->out)
        return 0;
    if (single && !ds__inproc_single(c))
        return 0;
    for (size_t i = 0; i < count; i++)
        if (!list[i] || (!single && (!c->out[i] || ds__device_key(c->out[i]->device) !=
                                                       ds__device_key(list[i]->device))))
            return 0;
    return 1;
}

/* Sets the place of the single tensor in the list. Returns 0 if no entry is on its device. */
static int ds__inproc_place(ds__inproc_call *a, const ds_tensor *single) {
    while (a->root < a->count &&
           ds__device_key(a->devices[a->root]) != ds__device_key(single->device))
        a->root++;
    if (a->root < a->count)
        return 1;
    if (a->call.verb != DS__VERB_BROADCAST)
        return 0;
    a->list[a->count] = single; /* a broadcast into itself */
    a->devices[a->count] = single->device;
    a->streams[a->count] = a->options.stream;
    a->count++;
    return 1;
}

/* Gives the sizes of parts that differ. */
static int ds__inproc_divide(ds__inproc_call *a) {
    int dim = a->call.dim;
    if (a->call.verb != DS__VERB_SCATTER && a->call.verb != DS__VERB_GATHER)
        return 1;
    for (size_t i = 0; i < a->count; i++) {
        const ds_tensor *t = a->list[i];
        int k = dim < 0 ? dim + t->ndim : dim;
        if (k < 0 || k >= t->ndim)
            return 0;
        a->sizes[i] = t->shape[k];
    }
    a->more.sizes = a->sizes;
    a->options.ranks_options = &a->more;
    return 1;
}

/* Copies the list of a call, with the devices and streams of its tensors. Returns 0 if memory is
   exhausted. */
static int ds__inproc_list(ds__inproc_call *a, const ds_tensor *const *list, size_t count) {
    const ds_comm_options *o = a->call.options;
    size_t n = count + 1; /* for ds__inproc_place */
    a->sizes = ds__host_alloc(
        n * (sizeof *a->sizes + sizeof *a->list + sizeof *a->streams + sizeof *a->devices));
    if (!a->sizes)
        return 0;
    a->list = (const ds_tensor **)(void *)(a->sizes + n);
    a->streams = (ds_stream *)(void *)(a->list + n);
    a->devices = (ds_device *)(void *)(a->streams + n);
    a->count = count;
    for (size_t i = 0; i < count; i++) {
        a->list[i] = list[i];
        a->devices[i] = list[i]->device;
        a->streams[i] = o->streams && i < o->stream_count ? o->streams[i] : (ds_stream){ 0 };
    }
    return 1;
}

/* Prepares a call for a group. Returns 0 if its tensors are none for NCCL. */
static int ds__inproc_arrange(const ds__comm_call *c, ds__inproc_call *a) {
    int from_outs = c->verb == DS__VERB_BROADCAST || c->verb == DS__VERB_SCATTER;
    int single = from_outs || c->verb == DS__VERB_GATHER || c->verb == DS__VERB_REDUCE;
    memset(a, 0, sizeof *a);
    a->call = *c;
    a->options = *c->options;
    if (!ds__inproc_reads(c, single, from_outs) ||
        !ds__inproc_list(a, from_outs ? c->out : c->in, from_outs ? c->out_count : c->in_count) ||
        (single && !ds__inproc_place(a, ds__inproc_single(c))) || !ds__inproc_divide(a))
        return 0;
    a->options.engine = NULL;
    a->options.topology = NULL;
    a->options.plan = NULL;
    a->options.streams = a->streams;
    a->options.stream_count = a->count;
    a->options.root = a->root;
    a->call.options = &a->options;
    if (from_outs) {
        a->call.out = a->list;
        a->call.out_count = a->count;
    }
    return 1;
}

/* Makes the stream of the root's device and that of the single tensor wait for each other. */
static ds_result ds__inproc_join(const ds__inproc_call *a, int before) {
    ds_stream own = a->streams[a->root];
    ds_stream single = a->options.stream;
    ds_result r = DS_OK;
    if (!ds__inproc_single(&a->call))
        return DS_OK;
    if (!own.id)
        r = ds__stream_current(a->devices[a->root], &own);
    if (r == DS_OK && !single.id)
        r = ds__stream_current(a->devices[a->root], &single);
    if (r < 0 || own.id == single.id)
        return r;
    return before ? ds__wait_stream(own, single) : ds__wait_stream(single, own);
}

/* Returns 1 if NCCL runs the call. */
static int ds__inproc_accepts(const ds__inproc_call *a) {
    ds_reduce_op op = a->call.op;
    ds_dtype t = a->list[0]->dtype;
    int reduces = a->call.verb == DS__VERB_ALL_REDUCE || a->call.verb == DS__VERB_REDUCE ||
                  a->call.verb == DS__VERB_REDUCE_SCATTER;
    int any =
        a->options.flags & DS_COMM_ANY_ORDER || t.code == DS_CODE_INT || t.code == DS_CODE_UINT;
    ds__engine_question q = { reduces, any && ds__nccl_reduces(t, op), a->devices, a->count };
    return ds__inproc_ask(&q) == DS_OK;
}

/* Runs a collective of one process by NCCL. Returns 0 if the layer below has to do it. */
static int ds__inproc_run(const ds__comm_call *c, ds_result (*across_fn)(const ds__comm_call *c),
                          ds_result *out) {
    ds__inproc_call a;
    int runs = ds__inproc_arrange(c, &a) && ds__inproc_accepts(&a);
    if (runs) {
        *out = ds__inproc_find(a.devices, a.count, &a.options.ranks);
        if (*out == DS_OK)
            *out = ds__inproc_join(&a, 1);
        if (*out == DS_OK)
            *out = across_fn(&a.call);
        if (*out == DS_OK)
            *out = ds__inproc_join(&a, 0);
    }
    ds__host_free(a.sizes);
    return runs;
}

/* ranks/api.h - public functions of process groups.

   Implements ds_ranks_init, ds_ranks_finalize, ds_ranks_register, ds_ranks_abort,
   ds_ranks_get_status and ds_ranks_get_info, and sends collectives with a group to the functions
   that run them (ds__across). ds_shutdown ends the remaining groups.

   Invariants: the module and its hooks of base/drive.h are set before the first handle exists, and
   stay.
   Locks: none of its own. init waits for other ranks without a lock.
   Threads: caller's threads. */

static const ds__ranks_engine *const ds__ranks_engines[] = { &ds__mpi_engine, &ds__nccl_engine,
                                                             &ds__local_engine };

enum { DS__RANKS_ENGINES = sizeof ds__ranks_engines / sizeof *ds__ranks_engines };

/* ---- module ---------------------------------------------------------------------------------- */

/* Ends the groups that are left, and those of which handles, graphs or operations were left. Called
   by ds_shutdown, after all work is done. */
static void ds__ranks_deinit(void) {
    ds__inproc_end_all();
    ds__ranks_thread_end();
    ds__rcaptures_deinit();
    for (uint32_t i = 0; i < ds__ranks.table.used; i++) {
        ds__group *g = (ds__group *)(void *)ds__slot_at(&ds__ranks.table, i);
        int state = DS__STATE(atomic_load(&g->slot.word));
        if (state == DS__ALIVE)
            ds__log_warn("process group \"%s\", created at %s:%d, was not finalized",
                         ds__group_name(g), g->made.file ? g->made.file : "?", g->made.line);
        if (state != DS__FREE)
            ds__group_clear(g);
    }
    ds__ranks.groups = NULL;
    for (ds__rfailure *f; (f = ds__ranks.failures) != NULL;) {
        ds__ranks.failures = f->next;
        ds__host_free(f);
    }
    ds__rwords_deinit();
    for (int i = 0; i < DS__RANKS_ENGINES; i++)
        ds__ranks_engines[i]->shutdown();
    ds__table_destroy(&ds__ranks.table);
    atomic_store(&ds__drive.open, 0);
    atomic_store(&ds__drive.failed, 0);
}

/* Refuses a checkpoint while a group ties this process to others. */
static ds_result ds__ranks_quiesce(void) {
    ds_result r = DS_OK;
    ds__inproc_end_all(); /* a collective makes them again */
    ds__mutex_lock(&ds__ranks.lock);
    for (const ds__group *g = ds__ranks.groups; g && r == DS_OK; g = g->next)
        if (g->engine != &ds__local_engine)
            r = ds__fail(DS_ERR_ILLEGAL_STATE,
                         "process group \"%s\", created at %s:%d, ties this process to others; "
                         "finalize it",
                         ds__group_name(g), g->made.file ? g->made.file : "?", g->made.line);
    ds__mutex_unlock(&ds__ranks.lock);
    return r;
}

static const ds__module ds__ranks_module = { .shutdown = ds__ranks_deinit,
                                             .quiesce = ds__ranks_quiesce };

/* Runs a collective whose options have a group. */
static ds_result ds__across(const ds__comm_call *c) {
    static const struct {
        int kind;
        ds_result (*run_fn)(ds__stage *st, const ds__comm_call *c);
    } verbs[] = { [DS__VERB_ALL_REDUCE] = { DS__NET_ALL_REDUCE, ds__across_all_reduce },
                  [DS__VERB_REDUCE] = { DS__NET_REDUCE, ds__across_reduce },
                  [DS__VERB_BROADCAST] = { DS__NET_BROADCAST, ds__across_broadcast },
                  [DS__VERB_ALL_GATHER] = { DS__NET_ALL_GATHER, ds__across_all_gather },
                  [DS__VERB_GATHER] = { DS__NET_GATHER, ds__across_gather },
                  [DS__VERB_REDUCE_SCATTER] = { DS__NET_REDUCE_SCATTER, ds__across_reduce_scatter },
                  [DS__VERB_SCATTER] = { DS__NET_SCATTER, ds__across_scatter },
                  [DS__VERB_ALL_TO_ALL] = { DS__NET_ALL_TO_ALL, ds__across_all_to_all } };

    ds__stage st;
    ds__stage_init(&st, c->options);
    ds_result r = ds__stage_open(&st, verbs[c->verb].kind);
    st.call.op = c->op;
    if (r == DS_OK)
        r = verbs[c->verb].run_fn(&st, c);
    return ds__stage_close(&st, r);
}

/* Runs a collective with a group or an engine. Returns 0 if the layer below has to do it. */
static int ds__elsewhere(const ds__comm_call *c, ds_result *out) {
    if (!c->options->ranks.id)
        return ds__inproc_run(c, ds__across, out);
    *out = ds__across(c);
    return 1;
}

static int (*ds__comm_elsewhere_fn)(const ds__comm_call *call, ds_result *out) = ds__elsewhere;
static void (*ds__plan_explain_fn)(const ds__engine_question *q, char *out,
                                   size_t size) = ds__inproc_explain;

/* Registers the module and its hooks, and starts the progress thread. */
static ds_result ds__ranks_setup(void) {
    ds_result r = ds__tensor_setup();
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__ranks.lock);
    if (!ds__ranks.table.element) {
        ds__ranks.table.what = "process group";
        ds__ranks.table.element = sizeof(ds__group);
        ds__ranks.table.free_fn = ds__group_freed;
        ds__drive.wait_fn = ds__ranks_wait;
        ds__drive.failure_fn = ds__rfailure_of;
        ds__drive.forget_fn = ds__rfailure_forget;
    }
    ds__module_add(DS__MODULE_RANKS, &ds__ranks_module);
    r = ds__ranks_thread_start();
    ds__mutex_unlock(&ds__ranks.lock);
    return r;
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Finds the engine by its name or, without one, by the environment or the launcher. */
static ds_result ds__ranks_engine_find(const ds_ranks_desc *desc, const ds__ranks_engine **out) {
    ds_ranks_launch launch;
    (ds_ranks_launch_get)(&launch);
    const char *name = desc->engine;
    if (!name)
        name = ds__os_environment("DEVSTREAM_RANKS_ENGINE");
    if (!name)
        name = *launch.launcher ? "mpi" : "local";
    for (int i = 0; i < DS__RANKS_ENGINES; i++) {
        *out = ds__ranks_engines[i];
        if (strcmp((*out)->name, name) == 0)
            return DS_OK;
    }
    return ds__fail(DS_ERR_INVALID_VALUE, "engine is \"%.40s\"; use \"mpi\", \"nccl\" or \"local\"",
                    name);
}

/* Completes the options: the devices of the rank, its size without an engine, the time limit. */
static ds_result ds__ranks_desc_resolve(ds_ranks_desc *desc, ds_device *one) {
    DS__REQUIRE_RESERVED("ds_ranks_desc", desc);
    DS__REQUIRE(!(desc->flags & ~(unsigned)(DS_RANKS_COMPARE | DS_RANKS_NO_OTHER_MPI)),
                "unknown flags %#x; use DS_RANKS_* flags", desc->flags);
    DS__REQUIRE(desc->devices || !desc->device_count, "devices is NULL, but device_count is %zu",
                desc->device_count);
    if (!desc->device_count) {
        desc->devices = one;
        desc->device_count = 1;
    }
    ds_device first = { 0, 0 };
    for (size_t i = 0; i < desc->device_count; i++) {
        ds_device d = { 0, 0 };
        ds_result r = ds__device_resolve(desc->devices[i], &d);
        if (r < 0)
            return r;
        if (!i)
            first = d;
        if (d.type != first.type)
            return ds__fail(DS_ERR_CROSS_DRIVER, "devices[0] and devices[%zu] are of two drivers",
                            i);
    }
    if (!desc->timeout_ns)
        desc->timeout_ns = DS__RANKS_TIMEOUT_S * 1000000000ull;
    return DS_OK;
}

/* Opens the recorder that the options or the environment ask for; *out NULL: none does. */
static ds_result ds__ranks_recorder(const ds_ranks_desc *desc, int rank, int size,
                                    ds__recorder **out) {
    const char *path = desc->record ? desc->record : getenv("DEVSTREAM_RANKS_RECORD");
    *out = NULL;
    return path && *path ? ds__recorder_open(path, rank, size, out) : DS_OK;
}

DSDEF ds_result(ds_ranks_init)(const ds_ranks_desc *desc, ds_ranks *out) {
    ds_ranks_desc d = { 0 };
    ds_device one = { 0, 0 };
    const ds__ranks_engine *engine = NULL;
    ds__group_start start = { .recorder = NULL };
    if (out)
        out->id = 0;
    DS__ENTER("ds_ranks_init");
    DS__REQUIRE(out, "out is NULL");
    if (desc)
        d = *desc;
    ds_result r = ds__ranks_setup();
    if (r == DS_OK)
        r = ds__ranks_desc_resolve(&d, &one);
    if (r == DS_OK)
        r = ds__ranks_engine_find(&d, &engine);
    if (r < 0)
        return r;
    if (!d.engine && engine == &ds__local_engine && !d.id) {
        d.id = "alone";
        d.size = 1;
    }
    start.engine = engine;
    start.deadline = ds__ranks_deadline(d.timeout_ns);
    start.id = ds__ranks_id(0, 0, 0);
    r = engine->init(&d, start.deadline, &start.comm);
    if (r < 0)
        return r;
    r = ds__ranks_recorder(&d, start.comm.rank, start.comm.size, &start.recorder);
    if (r < 0) {
        engine->destroy(start.comm.comm, 1);
        return r;
    }
    return ds__group_create(&start, &d, out);
}

DSDEF ds_result(ds_ranks_id_create)(const char *engine, char *out, size_t size) {
    ds__nccl_ticket id;
    if (out && size)
        *out = '\0';
    DS__ENTER("ds_ranks_id_create");
    DS__REQUIRE(engine && out, "engine or out is NULL");
    DS__REQUIRE(size >= DS_RANKS_ID_SIZE, "out has %zu bytes; DS_RANKS_ID_SIZE (%d) are required",
                size, DS_RANKS_ID_SIZE);
    if (strcmp(engine, "local") == 0) {
        snprintf(out, size, "%016llx", (unsigned long long)ds__os_cookie());
        return DS_OK;
    }
    if (strcmp(engine, "nccl") != 0)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the engine \"%.40s\" needs no id; \"nccl\" and \"local\" do", engine);
    ds_result r = ds__nccl_load();
    if (r == DS_OK)
        r = ds__nccl_id_create(&id);
    if (r == DS_OK)
        ds__nccl_id_format(&id, out);
    return r;
}

/* ---- registered memory ----------------------------------------------------------------------- */

DSDEF ds_result(ds_ranks_register)(ds_ranks ranks, void *ptr, size_t size) {
    ds_pointer_info info;
    ds_result r = DS_OK;
    memset(&info, 0, sizeof info);
    DS__ENTER("ds_ranks_register");
    DS__REQUIRE(ptr && size, "ptr is NULL, or size is 0");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    if (!g->engine->enlist)
        r = ds__fail(DS_ERR_UNSUPPORTED, "engine \"%s\" registers no memory; \"nccl\" does",
                     g->engine->name);
    if (r == DS_OK)
        DS__KEEPING(r, (ds_pointer_get_info)(ptr, &info));
    size_t i = 0;
    while (r == DS_OK && i < g->owns && ds__device_key(g->own[i]) != ds__device_key(info.device))
        i++;
    if (r == DS_OK && (info.kind != DS_MEMORY_DEVICE || i == g->owns))
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p is not memory of a device of this rank", ptr);
    if (r == DS_OK)
        r = g->engine->enlist(g->comm, ptr, size, info.device);
    ds__group_unpin(g);
    return r;
}

DSDEF ds_result(ds_ranks_deregister)(ds_ranks ranks, void *ptr) {
    DS__ENTER("ds_ranks_deregister");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = g->engine->delist ? g->engine->delist(g->comm, ptr)
                                    : ds__fail(DS_ERR_INVALID_VALUE, "%p is not registered", ptr);
    ds__group_unpin(g);
    return r;
}

/* ---- end and state --------------------------------------------------------------------------- */

DSDEF ds_result(ds_ranks_finalize)(ds_ranks ranks) {
    DS__ENTER("ds_ranks_finalize");
    if (!ranks.id)
        return DS_OK;
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__group_end(g);
    return DS_OK;
}

DSDEF ds_result(ds_ranks_abort)(ds_ranks ranks, const char *reason) {
    char text[DS__RANKS_REASON];
    DS__ENTER("ds_ranks_abort");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    snprintf(text, sizeof text, "rank %d has aborted group \"%s\" at %s:%d: %.200s", g->rank,
             ds__group_name(g), ds__tls.site.file ? ds__tls.site.file : "?",
             ds__tls.site.file ? ds__tls.site.line : 0, reason ? reason : "no reason was given");
    ds__mutex_lock(&g->lock);
    ds__group_list_ops(g);
    ds__group_fail(g, DS_ERR_ABORTED, text, 1);
    ds__group_clear_ops(g);
    ds__mutex_unlock(&g->lock);
    ds__group_unpin(g);
    return DS_OK;
}

DSDEF ds_result(ds_ranks_get_status)(ds_ranks ranks) {
    DS__ENTER("ds_ranks_get_status");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__group_drive(g);
    if (ds__mutex_trylock(&g->lock)) { /* a group without operations does not ask by itself */
        ds__group_hear(g);
        ds__mutex_unlock(&g->lock);
    }
    ds_result r = ds__group_report(g);
    ds__group_unpin(g);
    return r;
}

DSDEF ds_result(ds_ranks_get_info)(ds_ranks ranks, ds_ranks_info *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_ranks_get_info");
    DS__REQUIRE(out, "out is NULL");
    ds__group *g = ds__group_pin(ranks);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    out->rank = g->rank;
    out->size = g->size;
    out->device_count = g->devices;
    out->first_device = g->first[g->rank];
    out->own_devices = g->owns;
    snprintf(out->engine, sizeof out->engine, "%s", g->engine->name);
    g->engine->library(out->library, sizeof out->library);
    uint64_t passed = ds__group_passed(g); /* before `listed`, which is not smaller */
    ds__spinlock_lock(&g->list_lock);
    out->operations = g->operations;
    out->pending = g->listed - passed;
    ds__spinlock_unlock(&g->list_lock);
    ds__group_unpin(g);
    return DS_OK;
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
