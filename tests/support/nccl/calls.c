/* The functions that move data: they check their arguments and hand the call to the group. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks ---- */

static ncclResult_t check_pointer(const char *call, const char *name, const sn_comm *comm,
                                  const void *pointer, size_t size) {
    static const char *const wrong[] = {
        [STANDIN_NOT_OF_CUDA] = "is no memory of CUDA",
        [STANDIN_TOO_SHORT] = "has less bytes",
        [STANDIN_UNREACHED] = "cannot be reached from the device",
        [STANDIN_OF_ANOTHER] = "is memory of another device",
    };
    if (!pointer)
        return sn_error(ncclInvalidArgument, "%s: %s is NULL", call, name);
    int seen = sn_cuda()->look(comm->device, pointer, size);
    if (seen == STANDIN_REACHED)
        return ncclSuccess;
    return sn_error(ncclInvalidArgument, "%s: %s: %p with %zu bytes on device %d %s", call, name,
                    pointer, size, comm->device, wrong[seen]);
}

static int overlap(const void *a, size_t a_size, const void *b, size_t b_size) {
    return (uintptr_t)a < (uintptr_t)b + b_size && (uintptr_t)b < (uintptr_t)a + a_size;
}

/* How many elements behind the other buffer one of them may begin: NCCL's in-place rules. */
static int is_in_place(const sn_call *c) {
    size_t size = sn_type_size(c->type), own = (size_t)c->comm->rank * c->count * size;
    uintptr_t send = (uintptr_t)c->send, recv = (uintptr_t)c->recv;
    switch (c->kind) {
    case SN_REDUCE:
    case SN_BROADCAST:
    case SN_ALL_REDUCE:
        return send == recv;
    case SN_REDUCE_SCATTER:
    case SN_SCATTER:
        return recv == send + own;
    case SN_ALL_GATHER:
    case SN_GATHER:
        return send == recv + own;
    default:
        return 0;
    }
}

typedef struct sizes {
    size_t send, recv; /* 0: the rank does not use it */
} sizes;

static sizes sizes_of(const sn_call *c) {
    size_t one = c->count * sn_type_size(c->type), all = one * (size_t)c->comm->nranks;
    int is_root = c->comm->rank == c->root;
    switch (c->kind) {
    case SN_REDUCE:
        return (sizes){ one, is_root ? one : 0 };
    case SN_BROADCAST:
        return (sizes){ is_root ? one : 0, one };
    case SN_REDUCE_SCATTER:
        return (sizes){ all, one };
    case SN_ALL_GATHER:
        return (sizes){ one, all };
    case SN_ALL_TO_ALL:
        return (sizes){ all, all };
    case SN_GATHER:
        return (sizes){ one, is_root ? all : 0 };
    case SN_SCATTER:
        return (sizes){ is_root ? all : 0, one };
    case SN_SEND:
        return (sizes){ one, 0 };
    case SN_RECV:
        return (sizes){ 0, one };
    default:
        return (sizes){ one, one };
    }
}

static ncclResult_t check_buffers(const char *call, const sn_call *c) {
    sizes s = sizes_of(c);
    ncclResult_t result = ncclSuccess;
    if (s.send)
        result = check_pointer(call, "sendbuff", c->comm, c->send, s.send);
    if (!result && s.recv)
        result = check_pointer(call, "recvbuff", c->comm, c->recv, s.recv);
    if (result || !s.send || !s.recv || !overlap(c->send, s.send, c->recv, s.recv) ||
        is_in_place(c))
        return result;
    char text[200];
    snprintf(text, sizeof text, "%s of rank %d: the buffers overlap, and are not in place", call,
             c->comm->rank);
    sn_mismatch(text);
    return ncclInvalidUsage;
}

/* An operation that the program has made: its scalar as it is now. */
static ncclResult_t take_scalar(const char *call, sn_call *c) {
    int index = (int)c->op - (int)ncclNumOps;
    sn_comm *comm = c->comm;
    if ((int)c->op < 0 || index >= comm->redop_count || (index >= 0 && !comm->redops[index].used))
        return sn_error(ncclInvalidArgument, "%s: op %d is no operation of this communicator", call,
                        (int)c->op);
    if (index < 0)
        return ncclSuccess;
    c->scale = comm->redops[index];
    if (c->scale.type == c->type)
        return ncclSuccess;
    return sn_error(ncclInvalidArgument, "%s: op %d was made for type %d, not %d", call, (int)c->op,
                    (int)c->scale.type, (int)c->type);
}

static ncclResult_t check_call(const char *call, sn_call *c) {
    ncclResult_t result = sn_comm_check(call, c->comm);
    if (result)
        return result;
    size_t size = sn_type_size(c->type), most;
    if (!size)
        return sn_error(ncclInvalidArgument, "%s: there is no data type %d", call, (int)c->type);
    if (c->root < 0 || c->root >= c->comm->nranks)
        return sn_error(ncclInvalidArgument, "%s: root or peer %d: there are ranks 0 to %d", call,
                        c->root, c->comm->nranks - 1);
    if (__builtin_mul_overflow(c->count, size * (size_t)c->comm->nranks, &most))
        return sn_error(ncclInvalidArgument, "%s: count %zu is too large", call, c->count);
    result = take_scalar(call, c);
    if (!result && c->count)
        result = check_buffers(call, c);
    return result;
}

/* A collective without elements is nothing; a message without elements is one. */
static ncclResult_t put(const char *call, sn_call c) {
    ncclResult_t result = check_call(call, &c);
    if (!result && (c.count || c.kind >= SN_SEND))
        result = sn_group_call(&c);
    sn_group_fails(result);
    return result;
}

#ifndef STANDIN_NCCL_OLD
/* Programs that were compiled with the header of 2.31 pass a configuration without an event. */
static ncclResult_t check_config(const char *call, const ncclCollConfig_t *config) {
    size_t event = offsetof(ncclCollConfig_t, launchCompletionEvent);
    ncclResult_t result = ncclSuccess;
    if (!config)
        return ncclSuccess;
    if (config->magic != NCCL_API_MAGIC || config->size < event)
        result = sn_error(ncclInvalidArgument,
                          "%s: config was not initialised with NCCL_COLLCONFIG_INITIALIZER", call);
    else if (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs != NCCL_CONFIG_UNDEF_INT &&
             config->minCTAs > config->maxCTAs)
        result = sn_error(ncclInvalidArgument, "%s: minCTAs is above maxCTAs", call);
    else if (config->size > event && config->launchCompletionEvent)
        result = sn_error(ncclInvalidUsage,
                          "%s: the stand-in does not record config.launchCompletionEvent", call);
    sn_group_fails(result);
    return result;
}
#endif

/* ---- operations ---- */

/* The arguments that have the same names in all functions, and others. */
#define CALL(...)                                                                 \
    (sn_call) {                                                                   \
        .count = count, .type = type, .comm = comm, .stream = stream, __VA_ARGS__ \
    }
#define WITH_CONFIG(name, call)                             \
    do {                                                    \
        SN_ENTER(name);                                     \
        ncclResult_t result_ = check_config(#name, config); \
        return result_ ? result_ : put(#name, call);        \
    } while (0)

ncclResult_t ncclReduce(NCCL_REDUCING, int root, NCCL_WHERE) {
    SN_ENTER(ncclReduce);
    return put("ncclReduce",
               CALL(.kind = SN_REDUCE, .send = send, .recv = recv, .op = op, .root = root));
}

ncclResult_t ncclBroadcast(NCCL_MOVING, int root, NCCL_WHERE) {
    SN_ENTER(ncclBroadcast);
    return put("ncclBroadcast",
               CALL(.kind = SN_BROADCAST, .send = send, .recv = recv, .root = root));
}

ncclResult_t ncclAllReduce(NCCL_REDUCING, NCCL_WHERE) {
    SN_ENTER(ncclAllReduce);
    return put("ncclAllReduce", CALL(.kind = SN_ALL_REDUCE, .send = send, .recv = recv, .op = op));
}

ncclResult_t ncclReduceScatter(NCCL_REDUCING, NCCL_WHERE) {
    SN_ENTER(ncclReduceScatter);
    return put("ncclReduceScatter",
               CALL(.kind = SN_REDUCE_SCATTER, .send = send, .recv = recv, .op = op));
}

ncclResult_t ncclAllGather(NCCL_MOVING, NCCL_WHERE) {
    SN_ENTER(ncclAllGather);
    return put("ncclAllGather", CALL(.kind = SN_ALL_GATHER, .send = send, .recv = recv));
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, NCCL_WHERE) {
    SN_ENTER(ncclBcast);
    return put("ncclBcast",
               CALL(.kind = SN_BROADCAST, .send = buffer, .recv = buffer, .root = root));
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, NCCL_WHERE) {
    SN_ENTER(ncclSend);
    return put("ncclSend", CALL(.kind = SN_SEND, .send = send, .root = peer));
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, NCCL_WHERE) {
    SN_ENTER(ncclRecv);
    return put("ncclRecv", CALL(.kind = SN_RECV, .recv = recv, .root = peer));
}

#ifndef STANDIN_NCCL_OLD
ncclResult_t ncclAlltoAll(NCCL_MOVING, NCCL_WHERE) {
    SN_ENTER(ncclAlltoAll);
    return put("ncclAlltoAll", CALL(.kind = SN_ALL_TO_ALL, .send = send, .recv = recv));
}

ncclResult_t ncclGather(NCCL_MOVING, int root, NCCL_WHERE) {
    SN_ENTER(ncclGather);
    return put("ncclGather", CALL(.kind = SN_GATHER, .send = send, .recv = recv, .root = root));
}

ncclResult_t ncclScatter(NCCL_MOVING, int root, NCCL_WHERE) {
    SN_ENTER(ncclScatter);
    return put("ncclScatter", CALL(.kind = SN_SCATTER, .send = send, .recv = recv, .root = root));
}

ncclResult_t ncclReduceConfig(NCCL_REDUCING, int root, NCCL_HOW) {
    WITH_CONFIG(ncclReduceConfig,
                CALL(.kind = SN_REDUCE, .send = send, .recv = recv, .op = op, .root = root));
}

ncclResult_t ncclBroadcastConfig(NCCL_MOVING, int root, NCCL_HOW) {
    WITH_CONFIG(ncclBroadcastConfig,
                CALL(.kind = SN_BROADCAST, .send = send, .recv = recv, .root = root));
}

ncclResult_t ncclAllReduceConfig(NCCL_REDUCING, NCCL_HOW) {
    WITH_CONFIG(ncclAllReduceConfig,
                CALL(.kind = SN_ALL_REDUCE, .send = send, .recv = recv, .op = op));
}

ncclResult_t ncclReduceScatterConfig(NCCL_REDUCING, NCCL_HOW) {
    WITH_CONFIG(ncclReduceScatterConfig,
                CALL(.kind = SN_REDUCE_SCATTER, .send = send, .recv = recv, .op = op));
}

ncclResult_t ncclAllGatherConfig(NCCL_MOVING, NCCL_HOW) {
    WITH_CONFIG(ncclAllGatherConfig, CALL(.kind = SN_ALL_GATHER, .send = send, .recv = recv));
}

ncclResult_t ncclAlltoAllConfig(NCCL_MOVING, NCCL_HOW) {
    WITH_CONFIG(ncclAlltoAllConfig, CALL(.kind = SN_ALL_TO_ALL, .send = send, .recv = recv));
}

ncclResult_t ncclGatherConfig(NCCL_MOVING, int root, NCCL_HOW) {
    WITH_CONFIG(ncclGatherConfig,
                CALL(.kind = SN_GATHER, .send = send, .recv = recv, .root = root));
}

ncclResult_t ncclScatterConfig(NCCL_MOVING, int root, NCCL_HOW) {
    WITH_CONFIG(ncclScatterConfig,
                CALL(.kind = SN_SCATTER, .send = send, .recv = recv, .root = root));
}

#endif

/* ---- operations of reduction ---- */

static ncclResult_t check_scalar(const sn_comm *comm, const void *scalar, ncclDataType_t type,
                                 ncclScalarResidence_t residence) {
    size_t size = sn_type_size(type);
    if (!scalar || !size)
        return sn_error(ncclInvalidArgument,
                        "ncclRedOpCreatePreMulSum: scalar is NULL, or there is no data type %d",
                        (int)type);
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
        return sn_error(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: residence is %d",
                        (int)residence);
    if (residence == ncclScalarHostImmediate)
        return ncclSuccess;
    return check_pointer("ncclRedOpCreatePreMulSum", "scalar", comm, scalar, size);
}

static ncclResult_t create_op(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                              ncclScalarResidence_t residence, sn_comm *comm) {
    ncclResult_t result = sn_comm_check("ncclRedOpCreatePreMulSum", comm);
    if (!result && !op)
        result = sn_error(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: op is NULL");
    if (!result)
        result = check_scalar(comm, scalar, type, residence);
    if (result)
        return result;
    pthread_mutex_lock(&comm->lock);
    int index = 0;
    while (index < comm->redop_count && comm->redops[index].used)
        index++;
    if (index == comm->redop_count) {
        size_t bytes = ((size_t)index + 1) * sizeof *comm->redops;
        comm->redops = realloc(comm->redops, bytes);
        if (!comm->redops)
            sn_fail_test("out of memory");
        comm->redop_count++;
    }
    comm->redops[index] = (sn_redop){
        .used = 1, .on_device = residence == ncclScalarDevice, .type = type, .address = scalar
    };
    if (residence == ncclScalarHostImmediate)
        memcpy(comm->redops[index].value, scalar, sn_type_size(type));
    pthread_mutex_unlock(&comm->lock);
    *op = (ncclRedOp_t)((int)ncclNumOps + index);
    return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
    SN_ENTER(ncclRedOpCreatePreMulSum);
    return create_op(op, scalar, type, residence, comm);
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    ncclResult_t injected = sn_enter(SN_ncclRedOpDestroy);
    ncclResult_t result = sn_comm_exists("ncclRedOpDestroy", comm);
    if (result)
        return result;
    int index = (int)op - (int)ncclNumOps;
    pthread_mutex_lock(&comm->lock);
    int is_there = index >= 0 && index < comm->redop_count && comm->redops[index].used;
    if (is_there)
        comm->redops[index].used = 0;
    pthread_mutex_unlock(&comm->lock);
    if (is_there)
        return injected;
    return sn_error(ncclInvalidArgument, "ncclRedOpDestroy: %d is no operation that was created",
                    (int)op);
}
