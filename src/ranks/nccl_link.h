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
#ifndef DS__RANKS_NCCL_LINK_H
#define DS__RANKS_NCCL_LINK_H

#include "types.h"
#include "nccl_load.h"

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

#endif
