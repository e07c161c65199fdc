/* ranks/nccl_comm.h - communicators of NCCL.

   Creates, splits, shrinks and destroys communicators of the engine "nccl". A rank is NCCL's rank
   with its leading device.

   Policy: communicators do not block. A call that needs other ranks, such as the first operation,
   returns ncclInProgress and is waited for here until the deadline, so that an abort or the time
   limit ends it. When a group fails, its communicator is revoked, so that it can be shrunk; NCCL
   before 2.29 cannot do that, and its communicator is aborted.

   Invariants: one thread at a time calls NCCL for a communicator. An aborted communicator is NULL.
   Locks: `lock` of a communicator, held during the calls of NCCL; `stop` only tries it.
   Threads: any. */
#ifndef DS__RANKS_NCCL_COMM_H
#define DS__RANKS_NCCL_COMM_H

#include "types.h"
#include "nccl_load.h"
#include "nccl_id.h"

typedef struct ds__nccl_link {
    ds__nccl_comm comm; /* NULL: aborted */
    int rank;
    int size;
    ds_device device; /* that of this rank */
    ds__mutex lock;
    _Atomic int stopped; /* 1: the group has failed */
    int revoked;
    ds_stream stream;                   /* of operations between hosts */
    void *scratch;                      /* memory of the device, of a barrier */
    struct ds__nccl_host_op *abandoned; /* operations between hosts */
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

/* Ends the work of a communicator whose group has failed. `lock` is held. */
static void ds__nccl_end_work(ds__nccl_link *link) {
    ds__library_scope scope;
    if (!link->comm || link->revoked)
        return;
    ds__nccl_begin(link->device, &scope);
    if (ds__nccl.CommRevoke) {
        link->revoked = 1;
        (void)ds__nccl.CommRevoke(link->comm, 0);
    } else {
        (void)ds__nccl.CommAbort(link->comm);
        link->comm = NULL;
    }
    ds__nccl_end(link->device, &scope);
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

static void ds__nccl_destroy(void *comm, int failed) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    uint64_t deadline = ds__now_ns() + DS__RANKS_TIMEOUT_S * 1000000000ull;
    ds_result r = DS_OK;
    if (link->scratch)
        DS__KEEPING(r, (ds_mem_free)(link->scratch));
    if (link->stream.id)
        DS__KEEPING(r, (ds_stream_destroy)(link->stream));
    DS_IGNORE(r);
    ds__nccl_begin(link->device, &scope);
    if (link->comm && (failed || link->revoked)) {
        (void)ds__nccl.CommAbort(link->comm);
    } else if (link->comm) {
        ds__nccl_result code = ds__nccl.CommFinalize(link->comm);
        DS__KEEPING(r, ds__nccl_wait(link->comm, code, "CommFinalize", deadline, NULL));
        (void)(r == DS_OK ? ds__nccl.CommDestroy(link->comm) : ds__nccl.CommAbort(link->comm));
    }
    if (link->child) /* of a split that was given up; the parent has ended its job */
        (void)ds__nccl.CommAbort(link->child);
    ds__nccl_end(link->device, &scope);
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
        (void)ds__nccl.CommAbort(comm);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a communicator");
    }
    *link = (ds__nccl_link){ .comm = comm, .rank = rank, .size = size, .device = device };
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

/* Returns rank and size of the options or, without them, of the launcher. */
static ds_result ds__nccl_place(const ds_ranks_desc *desc, int *out_rank, int *out_size) {
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
    ds__nccl_id id;
    ds__nccl_config config = ds__nccl_config_default();
    ds__nccl_comm comm = NULL;
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
        r = ds__nccl_place(desc, &rank, &size);
    if (r == DS_OK)
        r = ds__nccl_id_find(desc->id, rank, deadline, &id);
    if (r < 0)
        return r;

    ds__nccl_begin(device, &scope);
    ds__nccl_result code = ds__nccl.CommInitRankConfig(&comm, size, id, rank, &config);
    r = ds__nccl_wait(comm, code, "CommInitRankConfig", deadline, NULL);
    if (r < 0 && comm)
        (void)ds__nccl.CommAbort(comm);
    ds__nccl_end(device, &scope);
    ds__nccl_id_done(desc->id, rank);
    return r < 0 ? r : ds__nccl_link_create(comm, rank, size, device, out);
}

/* Waits until NCCL has made link->child; `lock` is held. wanted 0: this rank is in no new
   communicator. */
static ds_result ds__nccl_derive(ds__nccl_link *link, ds__nccl_result code, const char *call,
                                 uint64_t deadline, int wanted, ds__net_comm *out) {
    const _Atomic int *stopped = link->revoked ? NULL : &link->stopped;
    ds_result r = ds__nccl_wait(link->comm, code, call, deadline, stopped);
    if (r < 0)
        return r;
    ds__nccl_comm child = __atomic_exchange_n(&link->child, NULL, __ATOMIC_ACQUIRE);
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
    return made.comm ? ds__nccl_link_create(made.comm, made.rank, made.size, link->device, out) : r;
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
    ds__nccl_begin(link->device, &scope);
    ds__nccl_result code = ds__nccl.CommSplit(link->comm, color < 0 ? DS__NCCL_NO_COLOR : color,
                                              key, &link->child, &config);
    r = ds__nccl_derive(link, code, "CommSplit", deadline, color >= 0, out);
    ds__nccl_end(link->device, &scope);
    ds__nccl_unlock(link);
    return ds__nccl_complete(link, r, out);
}

/* Shrinks a communicator, whose work NCCL ends first if its group has failed. `lock` is held. */
static ds_result ds__nccl_shrink_comm(ds__nccl_link *link, int *excluded, int count,
                                      uint64_t deadline, ds__net_comm *out) {
    ds__nccl_config config = ds__nccl_config_default();
    ds_result r = DS_OK;
    int flags = atomic_load(&link->stopped) ? DS__NCCL_SHRINK_ABORT : 0;
    if (!link->comm)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the group has failed, and this NCCL (%d) cannot revoke a communicator; "
                        "2.29 or newer can",
                        ds__nccl_state.version);
    if (link->revoked) /* the revoke must be complete */
        r = ds__nccl_wait(link->comm, DS__NCCL_IN_PROGRESS, "CommRevoke", deadline, NULL);
    if (r < 0)
        return r;
    if (!count) { /* NCCL does not shrink without a rank to exclude */
        ds__nccl_result code = ds__nccl.CommSplit(link->comm, 0, link->rank, &link->child, &config);
        return ds__nccl_derive(link, code, "CommSplit", deadline, 1, out);
    }
    ds__nccl_result code =
        ds__nccl.CommShrink(link->comm, excluded, count, &link->child, &config, flags);
    return ds__nccl_derive(link, code, "CommShrink", deadline, 1, out);
}

static ds_result ds__nccl_shrink(void *comm, const int *excluded, size_t count, uint64_t deadline,
                                 ds__net_comm *out) {
    ds__nccl_link *link = comm;
    ds__library_scope scope;
    *out = (ds__net_comm){ NULL, 0, 0 };
    if (!ds__nccl.CommShrink)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "this NCCL (%d) cannot shrink a communicator; 2.27 or newer can",
                        ds__nccl_state.version);
    int *list = ds__host_alloc((count + 1) * sizeof *list);
    if (!list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a list of %zu ranks", count);
    for (size_t i = 0; i < count; i++)
        list[i] = excluded[i];
    ds__mutex_lock(&link->lock);
    ds__nccl_begin(link->device, &scope);
    ds_result r = ds__nccl_shrink_comm(link, list, (int)count, deadline, out);
    ds__nccl_end(link->device, &scope);
    ds__nccl_unlock(link);
    ds__host_free(list);
    return ds__nccl_complete(link, r, out);
}

#endif
