/* ranks/local_move.h - engine "local": moving data.

   Moves the data of an operation of all ranks on the calling thread (ds__local_move), after a check
   that the ranks agree.

   Policy: sums begin with the last rank, unlike those in fixed order, so that programs that depend
   on an order are found.

   Invariants: a result is written when all inputs are read, since an output may be an input of its
   rank.
   Locks: the lock of the world is held.
   Threads: any. */
#ifndef DS__RANKS_LOCAL_MOVE_H
#define DS__RANKS_LOCAL_MOVE_H

#include "../comm/internal.h"
#include "types.h"

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

#endif
