/* ranks/reduce.h - reductions of a group.

   Implements all_reduce, reduce and reduce_scatter between ranks.

   Policy:
   1. In the engine's order (integers or DS_COMM_ANY_ORDER, and the engine knows the reduction): the
      tensors of a member of the communicator are reduced in the process, the engine reduces between
      the members, and the result is copied to the devices of the member.
   2. In fixed order each element is the same chain of operations as in one process: all tensors of
      the group, in the order of its devices, by one step of devstream_comm.h. Small tensors are
      gathered on each member that needs the result. Of large ones each member reduces a slice: it
      receives the slice of all tensors, and then the slices are gathered. This moves as many bytes
      as a ring.

   Invariants: see ranks/stage.h. A slice is a run of elements of contiguous tensors.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */
#ifndef DS__RANKS_REDUCE_H
#define DS__RANKS_REDUCE_H

#include "types.h"
#include "stage.h"
#include "stage_memory.h"
#include "parts.h"
#include "arguments.h"
#include "pieces.h"
#include "steps.h"

enum { DS__REDUCE_SMALL = 32768 }; /* bytes of all tensors that are gathered */

/* Reduces `count` runs of elements at `in`, `stride` bytes apart, to `out`; both are memory of the
   leading device. */
static ds_result ds__stage_reduce(ds__stage *st, ds__smem in, size_t stride, size_t count,
                                  ds__smem out, int64_t elements) {
    ds_result r;
    ds_stream lead = st->stream[st->leading];
    ds_tensor to = ds__smem_flat(st, out, 0, &elements);
    ds_tensor *from = ds__stage_alloc(st, count * (sizeof *from + 2 * sizeof(void *)));
    if (!from)
        return DS_ERR_OUT_OF_MEMORY;
    const ds_tensor **list = (const ds_tensor **)(void *)(from + count);
    ds_stream *streams = (ds_stream *)(void *)(list + count);
    for (size_t i = 0; i < count; i++) {
        from[i] = ds__smem_flat(st, in, i * stride, &elements);
        list[i] = &from[i];
        streams[i] = lead;
    }
    ds_comm_options o = { .streams = streams, .stream_count = count, .stream = lead };
    DS__KEEPING(r, (ds_comm_reduce_into)(list, count, st->call.op, &to, &o));
    return r;
}

/* Gives the tile's elements in memory of its device: inputs of a reduction must be there. */
static ds_result ds__stile_on_device(ds__stage *st, const ds__stile *tile, ds_tensor *out) {
    ds__smem mem = { NULL, 0, tile->device };
    *out = tile->t;
    if (tile->d.device.type != DS_DEVICE_HOST)
        return DS_OK;
    DS__TRY(ds__stage_temp(st, tile->device, tile->d.bytes, 0, &mem.at));
    *out = ds__smem_like(st, mem, tile);
    return ds__stage_pack(st, tile, mem);
}

/* Reduces the tensors of a rank, which is one member, to memory of the leading device. */
static ds_result ds__reduce_own(ds__stage *st, ds__smem out) {
    ds_tensor *in = ds__stage_alloc(st, st->ins * (sizeof *in + sizeof(void *)));
    if (!in)
        return DS_ERR_OUT_OF_MEMORY;
    const ds_tensor **list = (const ds_tensor **)(void *)(in + st->ins);
    for (size_t i = 0; i < st->ins; i++) {
        DS__TRY(ds__stile_on_device(st, &st->in[i], &in[i]));
        list[i] = &in[i];
    }
    ds_tensor to = ds__smem_like(st, out, &st->in[0]);
    ds_comm_options o = { .streams = st->stream,
                          .stream_count = st->count,
                          .stream = st->stream[0] };
    ds_result r;
    DS__KEEPING(r, (ds_comm_reduce_into)(list, st->ins, st->call.op, &to, &o));
    return r;
}

/* Returns 1 if the tile is contiguous memory of the leading device. */
static int ds__stile_is_on_lead(const ds__stage *st, const ds__stile *tile) {
    return tile->device == st->leading && tile->d.device.type != DS_DEVICE_HOST &&
           (ds_tensor_is_contiguous)(&tile->t);
}

/* ---- order of the engine --------------------------------------------------------------------- */

/* Decides whether the engine reduces: *st is then for memory that it reaches in a reduction.
   Integers have the same result in any order. */
static int ds__reduce_is_by_engine(ds__stage *st) {
    uint8_t code = st->call.dtype.code;
    int any = st->options->flags & DS_COMM_ANY_ORDER || code == DS_CODE_INT || code == DS_CODE_UINT;
    if (!any || !st->g->engine->reduces(st->call.dtype, st->call.op))
        return 0;
    ds__stage_reach(st, DS__NET_ALL_REDUCE);
    return 1;
}

/* Refuses a configuration of an operation that the engine does not compute. */
static ds_result ds__reduce_check_fixed(const ds__stage *st) {
    return st->more->nccl ? ds__fail(DS_ERR_UNSUPPORTED,
                                     "ranks_options->nccl: devstream computes this reduction in "
                                     "fixed order; NCCL computes integers, and sums and products "
                                     "with DS_COMM_ANY_ORDER")
                          : DS_OK;
}

/* Gives the reduction of the member's tensors in memory of the leading device. *out: the memory of
   the single tensor, if that is contiguous there. */
static ds_result ds__reduce_on_lead(ds__stage *st, ds__smem *out) {
    *out = ds__stile_memory(&st->in[0]);
    if (st->ins == 1 && ds__stile_is_on_lead(st, &st->in[0]))
        return DS_OK;
    DS__TRY(ds__stage_lead_buffer(st, st->in[0].d.bytes, out));
    return ds__reduce_own(st, *out);
}

/* A reduction in the order of the engine, of memory that it does not reach. */
static ds_result ds__reduce_in_pieces(ds__stage *st, ds__net_kind kind) {
    ds__smem in;
    ds__smem out = { NULL, 0, 0 };
    DS__TRY(ds__reduce_on_lead(st, &in));
    if (st->outs)
        out = ds__stile_memory(&st->out[0]);
    if (st->outs && !ds__stile_is_on_lead(st, &st->out[0]))
        DS__TRY(ds__stage_lead_buffer(st, st->out[0].d.bytes, &out));
    DS__TRY(ds__stage_pieces(st, kind, in, out, st->in[0].d.count));
    return st->outs ? ds__stage_spread(st, out) : DS_OK;
}

/* Gives the reduction of the member's tensors in memory of the engine. */
static ds_result ds__reduce_local(ds__stage *st, ds__smem *out) {
    ds__smem sum;
    if (st->ins == 1)
        return ds__stage_source(st, &st->in[0], out);
    DS__TRY(ds__stage_lead_buffer(st, st->in[0].d.bytes, &sum));
    DS__TRY(ds__reduce_own(st, sum));
    return ds__stage_move(st, sum, st->in[0].d.count, 0, out);
}

static ds_result ds__reduce_prepare(ds__stage *st, ds__net_op *net, void *unused) {
    ds__stage_member *m = st->at;
    (void)unused;
    DS__TRY(ds__reduce_local(st, &m->from));
    m->to = (ds__smem){ NULL, 0, 0 };
    if (st->outs)
        DS__TRY(ds__stage_target(st, &st->out[0], &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = (size_t)st->in[0].d.count;
    st->moved += st->in[0].d.bytes;
    return DS_OK;
}

/* ---- fixed order ----------------------------------------------------------------------------- */

/* Prepares the gather of all tensors of the group on the root or, with root -1, on all members. */
static ds_result ds__reduce_gather(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    size_t bytes = st->in[0].d.bytes;
    m->to = (ds__smem){ NULL, 0, 0 };
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &m->from));
    if (st->root < 0 || st->root == st->me)
        DS__TRY(ds__stage_buffer(st, st->g->devices * bytes, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = st->ins * bytes;
    net->parts = ds__parts_even(st, tables, bytes);
    st->moved += net->count;
    return DS_OK;
}

/* The end of the small form: every member that has outputs reduces all tensors. */
static ds_result ds__reduce_small_finish(ds__stage *st) {
    ds__smem all = st->at->to;
    ds__smem sum;
    if (!all.at || !st->outs)
        return DS_OK;
    const ds__stile *first = &st->out[0];
    sum = ds__stile_memory(first);
    DS__TRY(ds__stage_move(st, all, (int64_t)st->g->devices * first->d.count, 1, &all));
    if (!ds__stile_is_on_lead(st, first))
        DS__TRY(ds__stage_lead_buffer(st, first->d.bytes, &sum));
    DS__TRY(ds__stage_reduce(st, all, first->d.bytes, st->g->devices, sum, first->d.count));
    return ds__stage_spread(st, sum);
}

/* Prepares the first step of the large form: sends each member its slices of the tensors of this
   one, and receives the slices of all tensors. */
static ds_result ds__reduce_exchange(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    size_t mine = ds__slice_bytes(st);
    DS__TRY(st->ins == 1 ? ds__stage_source(st, &st->in[0], &m->from)
                         : ds__slices_pack(st, &m->from));
    DS__TRY(ds__stage_buffer(st, st->g->devices * mine, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->parts = ds__parts_of_slices(st, tables, st->ins);
    net->out_parts = ds__parts_even(st, (char *)tables + ds__parts_bytes(st), mine);
    st->moved += st->ins * st->in[0].d.bytes;
    return DS_OK;
}

/* Gives the slices of ds__reduce_exchange on the leading device. */
static ds_result ds__reduce_slices(ds__stage *st, ds__smem *out) {
    size_t count = ds__slice_count(st->slices, st->me);
    return ds__stage_move(st, st->at->to, (int64_t)(st->g->devices * count), 1, out);
}

/* Prepares the second step of the large form: reduces the slice of the member, and gathers the
   slices on the root or, with root -1, on all members. The slice may lie at its place there. */
static ds_result ds__reduce_collect(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    const ds__slices *slices = st->slices;
    int64_t elements = (int64_t)ds__slice_count(slices, st->me);
    size_t mine = ds__slice_bytes(st);
    ds__smem all;
    ds__smem slice;
    DS__TRY(ds__reduce_slices(st, &all));
    m->to = (ds__smem){ NULL, 0, 0 };
    if (st->outs)
        DS__TRY(ds__stage_target(st, &st->out[0], &m->to));
    if (m->to.at && !m->to.host && m->to.device == st->leading)
        slice = ds__smem_at(m->to, slices->begin[st->me] * slices->item);
    else
        DS__TRY(ds__stage_lead_buffer(st, mine, &slice));
    if (mine)
        DS__TRY(ds__stage_reduce(st, all, mine, st->g->devices, slice, elements));
    DS__TRY(ds__stage_move(st, slice, elements, 0, &m->from));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = mine;
    net->parts = ds__parts_of_slices(st, tables, 1);
    st->moved += st->in[0].d.bytes;
    return DS_OK;
}

/* The large form: each member reduces a slice, and the slices are gathered. */
static ds_result ds__reduce_large(ds__stage *st) {
    DS__TRY(ds__slices_even(st, (size_t)st->in[0].d.count));
    DS__TRY(ds__stage_step(st, DS__NET_ALL_TO_ALL, 2, ds__reduce_exchange));
    return ds__stage_run(st, st->root < 0 ? DS__NET_ALL_GATHER : DS__NET_GATHER, 1,
                         ds__reduce_collect, ds__stage_finish_all);
}

/* ---- all_reduce and reduce ------------------------------------------------------------------- */

/* Reduces to the root or, with root -1, to all members. */
static ds_result ds__reduce_run(ds__stage *st) {
    ds__net_kind kind = st->root < 0 ? DS__NET_ALL_REDUCE : DS__NET_REDUCE;
    DS__TRY(ds__stage_begin(st));
    if (ds__reduce_is_by_engine(st))
        return ds__stage_is_in_pieces(st, st->in[0].d.bytes)
                   ? ds__reduce_in_pieces(st, kind)
                   : ds__stage_run(st, kind, 0, ds__reduce_prepare, ds__stage_finish_all);
    DS__TRY(ds__reduce_check_fixed(st));
    if (st->g->devices * st->in[0].d.bytes <= DS__REDUCE_SMALL)
        return ds__stage_run(st, st->root < 0 ? DS__NET_ALL_GATHER : DS__NET_GATHER, 1,
                             ds__reduce_gather, ds__reduce_small_finish);
    return ds__reduce_large(st);
}

static ds_result ds__across_all_reduce(ds__stage *st, const ds__comm_call *c) {
    st->root = -1;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins + st->outs));
    DS__TRY(ds__reduction_check((ds__reduction){ c->op, st->call.dtype }));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_SAME));
    return st->in[0].d.count ? ds__reduce_run(st) : DS_OK;
}

static ds_result ds__across_reduce(ds__stage *st, const ds__comm_call *c) {
    size_t device;
    int here = ds__stage_root(st, &device);
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_single(st, c->out[0], here, "out"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, here ? 1 : 0, device));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins + st->outs));
    DS__TRY(ds__reduction_check((ds__reduction){ c->op, st->call.dtype }));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_ANY_SAME));
    return st->in[0].d.count ? ds__reduce_run(st) : DS_OK;
}

/* ---- reduce_scatter -------------------------------------------------------------------------- */

static ds_result ds__reduce_scatter_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    DS__TRY(ds__reduce_local(st, &m->from));
    m->to = ds__stile_memory(&st->out[0]);
    if (st->outs != 1 || !ds__stile_is_direct(st, &st->out[0]) ||
        ds__stage_overlaps(&st->out[0].d, &st->in[0].d))
        DS__TRY(ds__stage_buffer(st, ds__slice_bytes(st), &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->parts = ds__parts_of_slices(st, tables, 1);
    st->moved += st->in[0].d.bytes;
    return DS_OK;
}

/* The end of the fixed order: reduces the slices of ds__reduce_exchange. */
static ds_result ds__reduce_scatter_fixed(ds__stage *st) {
    ds__smem all;
    ds__smem sum;
    size_t mine = ds__slice_bytes(st);
    DS__TRY(ds__reduce_slices(st, &all));
    for (size_t i = 0; i < st->outs; i++) {
        const ds__stile *to = &st->out[i];
        if (!to->d.count)
            continue;
        sum = ds__stile_memory(to);
        if (!ds__stile_is_on_lead(st, to))
            DS__TRY(ds__stage_lead_buffer(st, to->d.bytes, &sum));
        DS__TRY(ds__stage_reduce(st, ds__smem_at(all, ds__tiles_bytes(st->out, i)), mine,
                                 st->g->devices, sum, to->d.count));
        DS__TRY(ds__stage_unpack(st, to, sum));
    }
    return DS_OK;
}

static ds_result ds__across_reduce_scatter(ds__stage *st, const ds__comm_call *c) {
    const int64_t *sizes = st->more->sizes;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins));
    DS__TRY(ds__stage_check_parts(st, st->in[0].d.ndim ? &st->in[0].d : NULL, st->out, sizes, 0));
    DS__TRY(ds__reduction_check((ds__reduction){ c->op, st->call.dtype }));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_PART_OF_INPUT));
    if (!st->in[0].d.count)
        return DS_OK;
    int64_t rows = st->in[0].d.shape[0];
    DS__TRY(ds__slices_of_devices(st, sizes, rows / (int64_t)st->g->devices,
                                  (size_t)(st->in[0].d.count / rows)));
    DS__TRY(ds__stage_begin(st));
    if (ds__reduce_is_by_engine(st))
        return ds__stage_run(st, DS__NET_REDUCE_SCATTER, 1, ds__reduce_scatter_prepare,
                             ds__stage_finish_parts);
    DS__TRY(ds__reduce_check_fixed(st));
    return ds__stage_run(st, DS__NET_ALL_TO_ALL, 2, ds__reduce_exchange, ds__reduce_scatter_fixed);
}

#endif
