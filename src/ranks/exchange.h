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
#include "steps.h"

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

#endif
