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

#endif
