/* ranks/reduce.h - reductions of a group.

   Implements all_reduce, reduce and reduce_scatter between ranks.

   Policy:
   1. In the engine's order (DS_COMM_ANY_ORDER, and the engine knows the reduction): the tensors of
      the rank are reduced in the process, the engine reduces between the ranks, and the result is
      copied to the devices of the rank.
   2. In fixed order each element is the same chain of operations as in one process: all tensors of
      the group, in the order of its devices, by one step of devstream_comm.h. Small tensors are
      gathered on each rank that needs the result. Of large ones each rank reduces a slice: it
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

enum { DS__REDUCE_SMALL = 32768 }; /* bytes of all tensors that are gathered */

/* Reduces `count` runs of elements at `in`, `stride` bytes apart, to `out`; both are memory of the
   leading device. */
static ds_result ds__stage_reduce(ds__stage *st, ds__smem in, size_t stride, size_t count,
                                  ds__smem out, int64_t elements) {
    ds_result r;
    ds_tensor to = ds__smem_flat(st, out, 0, &elements);
    ds_tensor *from = ds__stage_alloc(st, count * (sizeof *from + 2 * sizeof(void *)));
    if (!from)
        return DS_ERR_OUT_OF_MEMORY;
    const ds_tensor **list = (const ds_tensor **)(void *)(from + count);
    ds_stream *streams = (ds_stream *)(void *)(list + count);
    for (size_t i = 0; i < count; i++) {
        from[i] = ds__smem_flat(st, in, i * stride, &elements);
        list[i] = &from[i];
        streams[i] = st->stream[0];
    }
    ds_comm_options o = { .streams = streams, .stream_count = count, .stream = st->stream[0] };
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

/* Reduces the tensors of this rank to memory of the leading device. */
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
static int ds__stile_is_on_lead(const ds__stile *tile) {
    return tile->device == 0 && tile->d.device.type != DS_DEVICE_HOST &&
           (ds_tensor_is_contiguous)(&tile->t);
}

/* ---- order of the engine --------------------------------------------------------------------- */

/* Decides whether the engine reduces: *st is then for memory that it reaches in a reduction. */
static int ds__reduce_is_by_engine(ds__stage *st) {
    if (!(st->options->flags & DS_COMM_ANY_ORDER) ||
        !st->g->engine->reduces(st->call.dtype, st->call.op))
        return 0;
    ds__stage_reach(st, DS__NET_ALL_REDUCE);
    return 1;
}

/* Gives the reduction of this rank's tensors in memory of the leading device. *out: the memory of
   the single tensor, if that is contiguous there. */
static ds_result ds__reduce_on_lead(ds__stage *st, ds__smem *out) {
    *out = ds__stile_memory(&st->in[0]);
    if (st->ins == 1 && ds__stile_is_on_lead(&st->in[0]))
        return DS_OK;
    DS__TRY(ds__stage_lead_buffer(st, st->in[0].d.bytes, out));
    return ds__reduce_own(st, *out);
}

/* The same as ds__reduce_by_engine for memory that the engine does not reach. */
static ds_result ds__reduce_in_pieces(ds__stage *st, ds__net_kind kind, int root) {
    ds__smem in;
    ds__smem out = { NULL, 0, 0 };
    DS__TRY(ds__reduce_on_lead(st, &in));
    if (st->outs)
        out = ds__stile_memory(&st->out[0]);
    if (st->outs && !ds__stile_is_on_lead(&st->out[0]))
        DS__TRY(ds__stage_lead_buffer(st, st->out[0].d.bytes, &out));
    DS__TRY(ds__stage_pieces(st, kind, root, in, out, st->in[0].d.count));
    return st->outs ? ds__stage_spread(st, out) : DS_OK;
}

/* Gives the reduction of this rank's tensors in memory of the engine. */
static ds_result ds__reduce_local(ds__stage *st, ds__smem *out) {
    ds__smem sum;
    if (st->ins == 1)
        return ds__stage_source(st, &st->in[0], out);
    DS__TRY(ds__stage_lead_buffer(st, st->in[0].d.bytes, &sum));
    DS__TRY(ds__reduce_own(st, sum));
    return ds__stage_move(st, sum, st->in[0].d.count, 0, out);
}

/* kind: DS__NET_ALL_REDUCE, or DS__NET_REDUCE with a root. */
static ds_result ds__reduce_by_engine(ds__stage *st, ds__net_kind kind, int root) {
    ds__smem in;
    ds__smem out = { NULL, 0, 0 };
    DS__TRY(ds__reduce_local(st, &in));
    if (st->outs)
        DS__TRY(ds__stage_target(st, &st->out[0], &out));
    ds__rop *op = ds__stage_op(st, kind, 0);
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.in = in.at;
    op->net.out = out.at;
    op->net.root = root;
    op->net.count = (size_t)st->in[0].d.count;
    DS__TRY(ds__stage_net(st, op, st->in[0].d.bytes));
    return st->outs ? ds__stage_spread(st, out) : DS_OK;
}

/* ---- fixed order ----------------------------------------------------------------------------- */

/* Gathers all tensors of the group on the root or, with root -1, on all ranks. out->at NULL: this
   rank receives none. */
static ds_result ds__reduce_gather(ds__stage *st, int root, ds__smem *out) {
    ds__group *g = st->g;
    ds__smem in;
    size_t bytes = st->in[0].d.bytes;
    ds__net_kind kind = root < 0 ? DS__NET_ALL_GATHER : DS__NET_GATHER;
    out->at = NULL;
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &in));
    if (root < 0 || root == g->rank)
        DS__TRY(ds__stage_buffer(st, g->devices * bytes, out));
    ds__rop *op = ds__stage_op(st, kind, ds__parts_bytes(g));
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.in = in.at;
    op->net.out = out->at;
    op->net.root = root;
    op->net.count = st->ins * bytes;
    op->net.parts = ds__parts_even(g, op->tables, bytes);
    return ds__stage_net(st, op, op->net.count);
}

/* The small form: every rank that has outputs reduces all tensors. */
static ds_result ds__reduce_small(ds__stage *st, int root) {
    ds__smem all;
    ds__smem sum;
    DS__TRY(ds__reduce_gather(st, root, &all));
    if (!all.at || !st->outs)
        return DS_OK;
    const ds__stile *first = &st->out[0];
    sum = ds__stile_memory(first);
    DS__TRY(ds__stage_move(st, all, (int64_t)st->g->devices * first->d.count, 1, &all));
    if (!ds__stile_is_on_lead(first))
        DS__TRY(ds__stage_lead_buffer(st, first->d.bytes, &sum));
    DS__TRY(ds__stage_reduce(st, all, first->d.bytes, st->g->devices, sum, first->d.count));
    return ds__stage_spread(st, sum);
}

/* Sends to each rank its slices of the tensors of this rank. *out: the slices of all tensors of the
   group for this rank, on the leading device. */
static ds_result ds__reduce_exchange(ds__stage *st, const ds__slices *slices, ds__smem *out) {
    ds__group *g = st->g;
    ds__smem in;
    size_t mine = ds__slice_bytes(slices, g->rank);
    DS__TRY(st->ins == 1 ? ds__stage_source(st, &st->in[0], &in)
                         : ds__slices_pack(st, slices, &in));
    DS__TRY(ds__stage_buffer(st, g->devices * mine, out));
    ds__rop *op = ds__stage_op(st, DS__NET_ALL_TO_ALL, 2 * ds__parts_bytes(g));
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    char *tables = op->tables;
    op->net.in = in.at;
    op->net.out = out->at;
    op->net.parts = ds__parts_of_slices(g, tables, slices, st->ins);
    op->net.out_parts = ds__parts_even(g, tables + ds__parts_bytes(g), mine);
    DS__TRY(ds__stage_net(st, op, st->ins * st->in[0].d.bytes));
    int64_t elements = (int64_t)(g->devices * ds__slice_count(slices, g->rank));
    return ds__stage_move(st, *out, elements, 1, out);
}

/* Gathers the reduced slices in memory of the engine at `out`, on the root or, with root -1, on all
   ranks. The slice of this rank may lie at its place there. */
static ds_result ds__reduce_collect(ds__stage *st, const ds__slices *slices, ds__smem slice,
                                    ds__smem out, int root) {
    ds__net_kind kind = root < 0 ? DS__NET_ALL_GATHER : DS__NET_GATHER;
    ds__rop *op = ds__stage_op(st, kind, ds__parts_bytes(st->g));
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.in = slice.at;
    op->net.out = out.at;
    op->net.root = root;
    op->net.count = ds__slice_bytes(slices, st->g->rank);
    op->net.parts = ds__parts_of_slices(st->g, op->tables, slices, 1);
    return ds__stage_net(st, op, st->in[0].d.bytes);
}

/* The large form: each rank reduces a slice, and the slices are gathered. */
static ds_result ds__reduce_large(ds__stage *st, int root) {
    ds__group *g = st->g;
    ds__slices slices;
    ds__smem all;
    ds__smem out = { NULL, 0, 0 };
    ds__smem slice;
    DS__TRY(ds__slices_even(st, (size_t)st->in[0].d.count, st->in[0].d.item, &slices));
    DS__TRY(ds__reduce_exchange(st, &slices, &all));
    if (st->outs)
        DS__TRY(ds__stage_target(st, &st->out[0], &out));
    size_t mine = ds__slice_bytes(&slices, g->rank);
    if (out.at && !out.host && out.device == 0)
        slice = ds__smem_at(out, slices.begin[g->rank] * slices.item);
    else
        DS__TRY(ds__stage_lead_buffer(st, mine, &slice));
    if (mine)
        DS__TRY(ds__stage_reduce(st, all, mine, g->devices, slice,
                                 (int64_t)ds__slice_count(&slices, g->rank)));
    DS__TRY(ds__stage_move(st, slice, (int64_t)ds__slice_count(&slices, g->rank), 0, &slice));
    DS__TRY(ds__reduce_collect(st, &slices, slice, out, root));
    return st->outs ? ds__stage_spread(st, out) : DS_OK;
}

/* ---- all_reduce and reduce ------------------------------------------------------------------- */

/* Reduces to all ranks, or with a root to that rank. */
static ds_result ds__reduce_run(ds__stage *st, int root) {
    ds__net_kind kind = root < 0 ? DS__NET_ALL_REDUCE : DS__NET_REDUCE;
    DS__TRY(ds__stage_begin(st));
    if (ds__reduce_is_by_engine(st))
        return ds__stage_is_in_pieces(st, st->in[0].d.bytes) ? ds__reduce_in_pieces(st, kind, root)
                                                             : ds__reduce_by_engine(st, kind, root);
    if (st->g->devices * st->in[0].d.bytes <= DS__REDUCE_SMALL)
        return ds__reduce_small(st, root);
    return ds__reduce_large(st, root);
}

static ds_result ds__across_all_reduce(ds__stage *st, const ds__comm_call *c) {
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins + st->outs));
    DS__TRY(ds__reduction_check((ds__reduction){ c->op, st->call.dtype }));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_SAME));
    return st->in[0].d.count ? ds__reduce_run(st, -1) : DS_OK;
}

static ds_result ds__across_reduce(ds__stage *st, const ds__comm_call *c) {
    int root;
    int here;
    size_t device = ds__stage_root(st, &root, &here);
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_single(st, c->out[0], here, "out"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, here ? 1 : 0, device));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins + st->outs));
    DS__TRY(ds__reduction_check((ds__reduction){ c->op, st->call.dtype }));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_ANY_SAME));
    return st->in[0].d.count ? ds__reduce_run(st, root) : DS_OK;
}

/* ---- reduce_scatter -------------------------------------------------------------------------- */

static ds_result ds__reduce_scatter_by_engine(ds__stage *st, const ds__slices *slices) {
    ds__smem in;
    ds__smem out;
    DS__TRY(ds__reduce_local(st, &in));
    int direct = st->outs == 1 && ds__stile_is_direct(st, &st->out[0]) &&
                 !ds__stage_overlaps(&st->out[0].d, &st->in[0].d);
    if (direct)
        out = ds__stile_memory(&st->out[0]);
    else
        DS__TRY(ds__stage_buffer(st, ds__slice_bytes(slices, st->g->rank), &out));
    ds__rop *op = ds__stage_op(st, DS__NET_REDUCE_SCATTER, ds__parts_bytes(st->g));
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.in = in.at;
    op->net.out = out.at;
    op->net.parts = ds__parts_of_slices(st->g, op->tables, slices, 1);
    DS__TRY(ds__stage_net(st, op, st->in[0].d.bytes));
    for (size_t i = 0; i < st->outs; i++)
        DS__TRY(ds__stage_unpack(st, &st->out[i], ds__smem_at(out, ds__tiles_bytes(st->out, i))));
    return DS_OK;
}

static ds_result ds__reduce_scatter_fixed(ds__stage *st, const ds__slices *slices) {
    ds__smem all;
    ds__smem sum;
    size_t mine = ds__slice_bytes(slices, st->g->rank);
    DS__TRY(ds__reduce_exchange(st, slices, &all));
    for (size_t i = 0; i < st->outs; i++) {
        const ds__stile *to = &st->out[i];
        if (!to->d.count)
            continue;
        sum = ds__stile_memory(to);
        if (!ds__stile_is_on_lead(to))
            DS__TRY(ds__stage_lead_buffer(st, to->d.bytes, &sum));
        DS__TRY(ds__stage_reduce(st, ds__smem_at(all, ds__tiles_bytes(st->out, i)), mine,
                                 st->g->devices, sum, to->d.count));
        DS__TRY(ds__stage_unpack(st, to, sum));
    }
    return DS_OK;
}

static ds_result ds__across_reduce_scatter(ds__stage *st, const ds__comm_call *c) {
    ds__slices slices;
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
                                  (size_t)(st->in[0].d.count / rows), &slices));
    DS__TRY(ds__stage_begin(st));
    return ds__reduce_is_by_engine(st) ? ds__reduce_scatter_by_engine(st, &slices)
                                       : ds__reduce_scatter_fixed(st, &slices);
}

#endif
