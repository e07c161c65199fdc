/* ranks/exchange.h - transfers between ranks, and barriers.

   Implements ds_ranks_exchange, ds_ranks_send, ds_ranks_receive and ds_ranks_barrier.

   Invariants: all transfers of a call are one operation, so that two ranks can send to each other.
   Transfers between the same two devices have the same tag and match in the order of the calls.
   Locks: `calls` of the group is held while operations are enqueued.
   Threads: caller's threads. */
#ifndef DS__RANKS_EXCHANGE_H
#define DS__RANKS_EXCHANGE_H

#include "types.h"
#include "stage.h"
#include "stage_memory.h"

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

/* Returns the tag of the messages between the devices of a transfer, or -1: there is none. */
static int ds__transfer_tag(const ds__group *g, const ds_ranks_transfer *t) {
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
    ds_device *own = ds__stage_alloc(st, (count + 1) * sizeof *own);
    ds_result r = own ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__transfer_check(g, &list[i], i);
        if (r == DS_OK)
            own[i] = g->own[list[i].device];
    }
    if (r == DS_OK)
        own[count] = g->own[0]; /* for ds__stage.leading */
    ds__group_unpin(g);
    if (r < 0)
        return r;
    st->own = own;
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

/* Writes the messages of the engine. mem[i]: memory of transfer i. */
static ds_result ds__exchange_messages(const ds__stage *st, const ds_ranks_transfer *list,
                                       const ds__smem *mem, ds__net_transfer *out) {
    const ds__group *g = st->g;
    for (size_t i = 0; i < st->count; i++) {
        int tag = ds__transfer_tag(g, &list[i]);
        if (tag < 0)
            return ds__fail(DS_ERR_UNSUPPORTED,
                            "transfer %zu: the two ranks have more than %d pairs of devices", i,
                            DS__EXCHANGE_TAGS);
        out[i] = (ds__net_transfer){ .at = mem[i].at,
                                     .bytes = st->in[i].d.bytes,
                                     .rank = ds__group_rank_of(g, list[i].peer),
                                     .tag = tag,
                                     .receive = list[i].kind == DS_RANKS_RECEIVE };
    }
    return DS_OK;
}

static ds_result ds__exchange_run(ds__stage *st, const ds_ranks_transfer *list) {
    size_t bytes = 0;
    ds__smem *mem = ds__stage_alloc(st, st->count * sizeof *mem);
    ds_result r = mem ? ds__stage_begin(st) : DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < st->count && r == DS_OK; i++) {
        bytes += st->in[i].d.bytes;
        r = list[i].kind == DS_RANKS_SEND ? ds__stage_source(st, &st->in[i], &mem[i])
                                          : ds__stage_target(st, &st->in[i], &mem[i]);
    }
    ds__rop *op = r == DS_OK
                      ? ds__stage_op(st, DS__NET_EXCHANGE,
                                     st->count * (sizeof(ds__net_transfer) + sizeof(ds__rtransfer)))
                      : NULL;
    if (!op)
        return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
    op->net.transfers = op->tables;
    op->net.transfer_count = st->count;
    op->transfers = (ds__rtransfer *)(void *)((ds__net_transfer *)op->tables + st->count);
    for (size_t i = 0; i < st->count; i++)
        op->transfers[i] = (ds__rtransfer){ st->g->first[st->g->rank] + list[i].device,
                                            list[i].peer, (uint64_t)st->in[i].d.count, 0 };
    r = ds__exchange_messages(st, list, mem, op->tables);
    if (r < 0) {
        ds__rop_give_back(op);
        return r;
    }
    r = ds__stage_net(st, op, bytes);
    for (size_t i = 0; i < st->count && r == DS_OK; i++)
        if (list[i].kind == DS_RANKS_RECEIVE)
            r = ds__stage_unpack(st, &st->in[i], mem[i]);
    return r;
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

#endif
