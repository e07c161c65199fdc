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
#ifndef DS__RANKS_MPI_OP_H
#define DS__RANKS_MPI_OP_H

#include "messages.h"
#include "mpi_comm.h"

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

#endif
