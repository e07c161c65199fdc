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
#ifndef DS__RANKS_ENGINE_H
#define DS__RANKS_ENGINE_H

#include "../api/ranks.h"

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

#endif
