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
#ifndef DS__RANKS_NCCL_OP_H
#define DS__RANKS_NCCL_OP_H

#include "messages.h"
#include "record.h"
#include "nccl_comm.h"

/* Calls a function of NCCL; gives DS_OK, also for work in progress, or reports its error. */
#define DS__NCCL_CALL(link, function, ...) \
    ds__nccl_check((link)->comm, ds__nccl.function(__VA_ARGS__), #function)

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
    switch (op) {
    case DS_REDUCE_MAX:
        return DS__NCCL_MAX;
    case DS_REDUCE_MIN:
        return DS__NCCL_MIN;
    case DS_REDUCE_PRODUCT:
        return DS__NCCL_PROD;
    case DS_REDUCE_SUM:
    case DS_REDUCE_AVERAGE:
        break;
    }
    return DS__NCCL_SUM;
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

/* Begins a group call, which ds__nccl_put ends. */
static ds_result ds__nccl_group(const ds__nccl_link *link, int *grouped) {
    ds_result r = ds__nccl_check(link->comm, ds__nccl.GroupStart(), "GroupStart");
    *grouped = r == DS_OK;
    return r;
}

static ds_result ds__nccl_all_gather(const ds__nccl_link *link, const ds__net_op *op, void *stream,
                                     int *grouped) {
    const ds__net_parts *parts = &op->parts;
    if (ds__net_parts_equal(parts, link->size))
        return DS__NCCL_CALL(link, AllGather, op->in, op->out, parts->bytes[0], DS__NCCL_INT8,
                             link->comm, stream);
    ds_result r = ds__nccl_group(link, grouped);
    for (int i = 0; r == DS_OK && i < link->size; i++) {
        void *out = ds__behind(op->out, parts->at[i]);
        if (parts->bytes[i])
            r = DS__NCCL_CALL(link, Broadcast, i == link->rank ? op->in : out, out, parts->bytes[i],
                              DS__NCCL_INT8, i, link->comm, stream);
    }
    return r;
}

static ds_result ds__nccl_reduce_scatter(const ds__nccl_link *link, const ds__net_op *op,
                                         void *stream, int *grouped) {
    const ds__net_parts *parts = &op->parts;
    size_t unit = (size_t)op->dtype.bits / 8;
    ds__nccl_type type = ds__nccl_type_of(op->dtype);
    ds__nccl_op combine = ds__nccl_operator(op->reduce_op);
    if (ds__net_parts_equal(parts, link->size))
        return DS__NCCL_CALL(link, ReduceScatter, op->in, op->out, parts->bytes[0] / unit, type,
                             combine, link->comm, stream);
    ds_result r = ds__nccl_group(link, grouped);
    for (int i = 0; r == DS_OK && i < link->size; i++)
        if (parts->bytes[i])
            r = DS__NCCL_CALL(link, Reduce, ds__behind(op->in, parts->at[i]), op->out,
                              parts->bytes[i] / unit, type, combine, i, link->comm, stream);
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

static ds_result ds__nccl_transfers(const ds__nccl_link *link, const ds__net_transfer *list,
                                    size_t count, void *stream, int *grouped) {
    const ds__net_transfer **order = ds__host_alloc((count + 1) * sizeof *order);
    if (!order)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for %zu transfers", count);
    for (size_t i = 0; i < count; i++)
        order[i] = &list[i];
    qsort(order, count, sizeof *order, ds__nccl_transfer_compare);
    ds_result r = ds__nccl_group(link, grouped);
    for (size_t i = 0; r == DS_OK && i < count; i++) {
        const ds__net_transfer *t = order[i];
        if (t->receive)
            r = DS__NCCL_CALL(link, Recv, t->at, t->bytes, DS__NCCL_INT8, t->rank, link->comm,
                              stream);
        else
            r = DS__NCCL_CALL(link, Send, t->at, t->bytes, DS__NCCL_INT8, t->rank, link->comm,
                              stream);
    }
    ds__host_free(order);
    return r;
}

static ds_result ds__nccl_messages(const ds__nccl_link *link, const ds__net_op *op, void *stream,
                                   int *grouped) {
    ds__net_transfer *list = ds__host_alloc(2 * (size_t)link->size * sizeof *list);
    if (!list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "out of host memory for messages to %d ranks",
                        link->size);
    size_t count = ds__net_messages(op, link->rank, link->size, list);
    ds_result r = ds__nccl_transfers(link, list, count, stream, grouped);
    ds__host_free(list);
    return r;
}

/* Calls NCCL for an operation. *grouped 1: a group call has begun. */
static ds_result ds__nccl_call(const ds__nccl_link *link, const ds__net_op *op, void *stream,
                               int *grouped) {
    ds__nccl_type type = ds__nccl_type_of(op->dtype);
    ds__nccl_op combine = ds__nccl_operator(op->reduce_op);
    switch (op->kind) {
    case DS__NET_ALL_REDUCE:
        return DS__NCCL_CALL(link, AllReduce, op->in, op->out, op->count, type, combine, link->comm,
                             stream);
    case DS__NET_REDUCE:
        return DS__NCCL_CALL(link, Reduce, op->in, op->out, op->count, type, combine, op->root,
                             link->comm, stream);
    case DS__NET_REDUCE_SCATTER:
        return ds__nccl_reduce_scatter(link, op, stream, grouped);
    case DS__NET_BROADCAST:
        return DS__NCCL_CALL(link, Broadcast, op->out, op->out, op->count, DS__NCCL_INT8, op->root,
                             link->comm, stream);
    case DS__NET_ALL_GATHER:
        return ds__nccl_all_gather(link, op, stream, grouped);
    case DS__NET_GATHER:
    case DS__NET_SCATTER:
    case DS__NET_ALL_TO_ALL:
        return ds__nccl_messages(link, op, stream, grouped);
    case DS__NET_EXCHANGE:
        return ds__nccl_transfers(link, op->transfers, op->transfer_count, stream, grouped);
    case DS__NET_BARRIER:
    case DS__NET_KINDS:
        break;
    }
    return DS__NCCL_CALL(link, AllReduce, link->scratch, link->scratch, 1, DS__NCCL_INT32,
                         DS__NCCL_SUM, link->comm, stream);
}

/* ---- the functions of the engine ------------------------------------------------------------- */

/* Enqueues an operation, and waits until NCCL has enqueued it. */
static ds_result ds__nccl_enqueue(void *comm, const ds__net_op *op, void *native,
                                  uint64_t deadline) {
    ds__nccl_link *link = comm;
    int grouped = 0;
    ds_result r = ds__nccl_lock(link);
    if (r < 0)
        return r;
    r = ds__nccl_call(link, op, native, &grouped);
    if (grouped) {
        ds__nccl_result code = ds__nccl.GroupEnd();
        if (r == DS_OK)
            r = ds__nccl_check(link->comm, code, "GroupEnd");
    }
    if (r == DS_OK)
        r = ds__nccl_wait(link->comm, DS__NCCL_IN_PROGRESS, "CommGetAsyncError", deadline,
                          &link->stopped);
    ds__nccl_unlock(link);
    return r;
}

static ds_result ds__nccl_host_enqueue(ds__remote *remote, void *native) {
    ds__nccl_host_op *h = (ds__nccl_host_op *)(void *)remote;
    return ds__nccl_enqueue(h->link, &h->net, native, h->net.deadline);
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
    size_t own = op->parts.bytes[link->rank];
    size_t bytes = 0;
    for (int i = 0; i < link->size; i++)
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

/* Asks for an error that NCCL has found by itself. */
static ds_result ds__nccl_hear(void *comm, char reason[DS__RANKS_REASON], int *out_rank) {
    ds__nccl_link *link = comm;
    ds__nccl_result code = DS__NCCL_SUCCESS;
    *out_rank = link->rank;
    if (!ds__mutex_trylock(&link->lock))
        return DS_OK;
    if (link->comm && !atomic_load(&link->stopped) &&
        ds__nccl.CommGetAsyncError(link->comm, &code) != DS__NCCL_SUCCESS)
        code = DS__NCCL_SUCCESS;
    if (code != DS__NCCL_SUCCESS && code != DS__NCCL_IN_PROGRESS) {
        const char *last = ds__nccl.GetLastError(link->comm);
        snprintf(reason, DS__RANKS_REASON, "NCCL reports an error: %s%s%.200s",
                 ds__nccl.GetErrorString(code), last && *last ? ": " : "", last ? last : "");
    }
    ds__mutex_unlock(&link->lock);
    if (code == DS__NCCL_SUCCESS || code == DS__NCCL_IN_PROGRESS)
        return DS_OK;
    return code == DS__NCCL_REMOTE_ERROR ? DS_ERR_ABORTED : DS_ERR_FAILED;
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

#endif
