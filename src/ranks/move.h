/* ranks/move.h - collectives of a group that move data.

   Implements broadcast, scatter, gather, all_gather and all_to_all between ranks.

   Policy: the engine exchanges parts between ranks, each of which has the parts of the devices of
   the rank, one behind the other, in contiguous memory. With one device per rank, and parts along
   dimension 0 of contiguous tensors, that is the memory of the tensors. Otherwise parts are copied
   on the streams.

   Invariants: see ranks/stage.h.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */
#ifndef DS__RANKS_MOVE_H
#define DS__RANKS_MOVE_H

#include "types.h"
#include "stage.h"
#include "stage_memory.h"
#include "parts.h"
#include "arguments.h"
#include "pieces.h"

/* ---- broadcast ------------------------------------------------------------------------------- */

/* A broadcast of memory that the engine does not reach. */
static ds_result ds__broadcast_in_pieces(ds__stage *st, int root, int here) {
    const ds__stile *tile = here ? &st->in[0] : &st->out[0];
    ds__smem none = { NULL, 0, 0 };
    ds__smem mem = ds__stile_memory(tile);
    if (mem.host || !(ds_tensor_is_contiguous)(&tile->t))
        DS__TRY(ds__stage_lead_buffer(st, tile->d.bytes, &mem));
    if (here)
        DS__TRY(ds__stage_pack(st, tile, mem));
    DS__TRY(ds__stage_pieces(st, DS__NET_BROADCAST, root, here ? mem : none, here ? none : mem,
                             tile->d.count));
    return ds__stage_spread(st, mem);
}

static ds_result ds__across_broadcast(ds__stage *st, const ds__comm_call *c) {
    int root;
    int here;
    ds__smem mem;
    size_t device = ds__stage_root(st, &root, &here);
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_check_single(st, c->in[0], here, "the tensor"));
    DS__TRY(ds__stage_tensors(st, c->in, here ? 1 : 0, c->out, c->out_count, device));
    DS__TRY(ds__stage_check_shapes(st, 0, st->ins + st->outs));
    ds__stage_count(st, &st->in[0], 0);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_ANY_SAME));
    if (!st->in[0].d.count)
        return DS_OK;
    DS__TRY(ds__stage_begin(st));
    if (ds__stage_is_in_pieces(st, st->in[0].d.bytes))
        return ds__broadcast_in_pieces(st, root, here);
    DS__TRY(here ? ds__stage_source(st, &st->in[0], &mem)
                 : ds__stage_target(st, &st->out[0], &mem));
    ds__rop *op = ds__stage_op(st, DS__NET_BROADCAST, 0);
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.out = mem.at;
    op->net.count = st->in[0].d.bytes;
    op->net.root = root;
    DS__TRY(ds__stage_net(st, op, op->net.count));
    return ds__stage_spread(st, mem);
}

/* ---- parts of one tensor --------------------------------------------------------------------- */

/* Parts of one tensor along a dimension: those of all devices of the group, or of this rank. */
typedef struct ds__division_of {
    const ds__stile *whole;
    const int64_t *sizes;
    int64_t all; /* size of the dimension */
    int dim;
    int64_t other; /* elements of a part of size 1 */
} ds__division_of;

/* Returns the elements of the part of device k of the group. */
static size_t ds__division_count(const ds__stage *st, const ds__division_of *v, size_t k) {
    return (size_t)(ds__size_of(st, v->sizes, v->all, k) * v->other);
}

/* Returns 1 if all parts lie one behind the other in memory of the engine. */
static int ds__division_is_direct(const ds__stage *st, const ds__division_of *v) {
    int64_t outer = 1;
    for (int k = 0; k < v->dim; k++)
        outer *= v->whole->d.shape[k];
    return ds__stile_is_direct(st, v->whole) && outer == 1;
}

/* Copies between the parts of a tensor and a buffer with all parts, one behind the other. */
static ds_result ds__division_copy(ds__stage *st, const ds__division_of *v, ds__smem buffer,
                                   int to_buffer) {
    size_t at = 0;
    ds__stile *part = ds__stage_alloc(st, sizeof *part);
    if (!part)
        return DS_ERR_OUT_OF_MEMORY;
    *part = *v->whole;
    part->t.shape = part->d.shape;
    part->t.strides = part->d.strides;
    part->t.data = v->whole->d.first;
    part->t.byte_offset = 0;
    for (size_t k = 0; k < st->g->devices; k++) {
        int64_t size = ds__size_of(st, v->sizes, v->all, k);
        part->d.shape[v->dim] = size;
        part->d.count = size * v->other;
        ds__smem mem = ds__smem_at(buffer, at);
        if (part->d.count)
            DS__TRY(to_buffer ? ds__stage_pack(st, part, mem) : ds__stage_unpack(st, part, mem));
        at += (size_t)part->d.count * part->d.item;
        if (part->d.count)
            part->t.data =
                (char *)part->t.data + size * part->d.strides[v->dim] * (int64_t)part->d.item;
        part->d.first = part->t.data;
    }
    return DS_OK;
}

/* Writes the table of the parts of all ranks. */
static ds__net_parts ds__division_parts(const ds__stage *st, const ds__division_of *v,
                                        void *table) {
    const ds__group *g = st->g;
    size_t *list = table;
    size_t n = (size_t)g->size;
    size_t item = v->whole->d.item;
    size_t at = 0;
    for (size_t r = 0; r < n; r++) {
        list[n + r] = at;
        for (size_t k = g->first[r]; k < g->first[r + 1]; k++)
            at += ds__division_count(st, v, k) * item;
        list[r] = at - list[n + r];
    }
    return (ds__net_parts){ list, list + n };
}

/* Gives memory of the engine for the tiles of this rank: that of a single one, or a buffer.
   *out_direct 1: nothing is left to copy. */
static ds_result ds__tiles_target(ds__stage *st, const ds__stile *tile, size_t count, ds__smem *out,
                                  int *out_direct) {
    *out_direct = count == 1 && ds__stile_is_direct(st, tile);
    *out = ds__stile_memory(tile);
    return *out_direct ? DS_OK : ds__stage_buffer(st, ds__tiles_bytes(tile, count), out);
}

/* Describes the parts of a tensor; NULL: another rank has it. */
static ds__division_of ds__division_open(const ds__stage *st, const ds__stile *whole, int dim) {
    ds__division_of v = { whole, st->more->sizes, 0, dim, 0 };
    if (whole) {
        v.all = whole->d.shape[dim];
        v.other = v.all ? whole->d.count / v.all : 0;
    }
    return v;
}

/* Gives memory of the engine with all parts of the tensor, one behind the other, or for them
   (`copies` 0). */
static ds_result ds__division_memory(ds__stage *st, const ds__division_of *v, int copies,
                                     ds__smem *out) {
    *out = (ds__smem){ NULL, 0, 0 };
    if (!v->whole)
        return DS_OK;
    *out = ds__stile_memory(v->whole);
    if (ds__division_is_direct(st, v))
        return DS_OK;
    DS__TRY(ds__stage_buffer(st, v->whole->d.bytes, out));
    return copies ? ds__division_copy(st, v, *out, 1) : DS_OK;
}

/* Enqueues a gather or scatter between the tensor on the root, with memory `all`, and the tiles of
   this rank, with memory `own`. */
static ds_result ds__division_net(ds__stage *st, ds__net_kind kind, const ds__division_of *v,
                                  ds__smem all, ds__smem own) {
    int gathers = kind == DS__NET_GATHER;
    ds__rop *op = ds__stage_op(st, kind, ds__parts_bytes(st->g));
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.in = gathers ? own.at : all.at;
    op->net.out = gathers ? all.at : own.at;
    op->net.root = ds__group_rank_of(st->g, st->options->root);
    op->net.count = gathers ? ds__tiles_bytes(st->in, st->ins) : ds__tiles_bytes(st->out, st->outs);
    if (v->whole)
        op->net.parts = ds__division_parts(st, v, op->tables);
    return ds__stage_net(st, op, op->net.count);
}

static ds_result ds__across_gather(ds__stage *st, const ds__comm_call *c) {
    int root;
    int here;
    ds__smem in;
    ds__smem all;
    int dim = c->dim;
    size_t device = ds__stage_root(st, &root, &here);
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_single(st, c->out[0], here, "out"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, here ? 1 : 0, device));
    DS__TRY(ds__dim_resolve(&dim, st->in[0].d.ndim));
    const ds__stile *whole = here ? &st->out[0] : NULL;
    DS__TRY(ds__stage_check_parts(st, here ? &whole->d : NULL, st->in, st->more->sizes, dim));
    ds__stage_count(st, &st->in[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, dim ? DS__STAGE_NEVER : DS__STAGE_PART_OF_OUTPUT));
    DS__TRY(ds__stage_begin(st));
    ds__division_of v = ds__division_open(st, whole, dim);
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &in));
    DS__TRY(ds__division_memory(st, &v, 0, &all));
    DS__TRY(ds__division_net(st, DS__NET_GATHER, &v, all, in));
    return here && all.at != (void *)whole->d.first ? ds__division_copy(st, &v, all, 0) : DS_OK;
}

static ds_result ds__across_scatter(ds__stage *st, const ds__comm_call *c) {
    int root;
    int here;
    int direct;
    ds__smem all;
    ds__smem out;
    int dim = c->dim;
    size_t device = ds__stage_root(st, &root, &here);
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_check_single(st, c->in[0], here, "the tensor"));
    DS__TRY(ds__stage_tensors(st, c->in, here ? 1 : 0, c->out, c->out_count, device));
    DS__TRY(ds__dim_resolve(&dim, st->out[0].d.ndim));
    const ds__stile *whole = here ? &st->in[0] : NULL;
    DS__TRY(ds__stage_check_parts(st, here ? &whole->d : NULL, st->out, st->more->sizes, dim));
    ds__stage_count(st, &st->out[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, dim ? DS__STAGE_NEVER : DS__STAGE_PART_OF_INPUT));
    DS__TRY(ds__stage_begin(st));
    ds__division_of v = ds__division_open(st, whole, dim);
    DS__TRY(ds__division_memory(st, &v, 1, &all));
    DS__TRY(ds__tiles_target(st, st->out, st->outs, &out, &direct));
    DS__TRY(ds__division_net(st, DS__NET_SCATTER, &v, all, out));
    for (size_t i = 0; i < st->outs && !direct; i++)
        DS__TRY(ds__stage_unpack(st, &st->out[i], ds__smem_at(out, ds__tiles_bytes(st->out, i))));
    return DS_OK;
}

/* ---- all_gather ------------------------------------------------------------------------------ */

static ds_result ds__across_all_gather(ds__stage *st, const ds__comm_call *c) {
    ds__smem in;
    ds__smem all;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    for (size_t i = 0; i < st->outs; i++)
        DS__TRY(ds__stage_check_parts(st, &st->out[i].d, st->in, st->more->sizes, 0));
    ds__stage_count(st, &st->in[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_PART_OF_OUTPUT));
    if (!st->out[0].d.count)
        return DS_OK;
    int64_t rows = st->out[0].d.shape[0];
    ds__division_of v = { &st->out[0], st->more->sizes, rows, 0, st->out[0].d.count / rows };
    DS__TRY(ds__stage_begin(st));
    DS__TRY(ds__stage_target(st, &st->out[0], &all));
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &in));
    ds__rop *op = ds__stage_op(st, DS__NET_ALL_GATHER, ds__parts_bytes(st->g));
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.in = in.at;
    op->net.out = all.at;
    op->net.parts = ds__division_parts(st, &v, op->tables);
    DS__TRY(ds__stage_net(st, op, st->out[0].d.bytes));
    return ds__stage_spread(st, all);
}

/* ---- all_to_all ------------------------------------------------------------------------------ */

/* Rows that device i of this rank exchanges with device k of the group. */
static int64_t ds__exchange_rows(const ds__stage *st, const int64_t *sizes, const ds__stile *tile,
                                 size_t i, size_t k) {
    return sizes ? sizes[i * st->g->devices + k] : tile->d.shape[0] / (int64_t)st->g->devices;
}

/* Checks the sizes of the parts of one side. */
static ds_result ds__exchange_check(const ds__stage *st, const int64_t *sizes,
                                    const ds__stile *tile, const char *words) {
    for (size_t i = 0; i < st->count; i++) {
        const ds__dims *d = &tile[i].d;
        DS__REQUIRE(d->ndim >= 1, "%s tensor at index %zu has no dimension to divide", words, i);
        DS__TRY(ds__sizes_check(st, sizes ? sizes + i * st->g->devices : NULL, d->shape[0],
                                ds__name_text(ds__name_of(words, i))));
        DS__REQUIRE(
            d->ndim == tile[0].d.ndim && memcmp(d->shape + 1, st->in[0].d.shape + 1,
                                                (size_t)(d->ndim - 1) * sizeof *d->shape) == 0,
            "%s tensor at index %zu differs from the first input in a dimension above 0", words, i);
    }
    return DS_OK;
}

/* Writes the table of one side: for each rank the parts of all pairs of devices. */
static ds__net_parts ds__exchange_parts(const ds__stage *st, const int64_t *sizes,
                                        const ds__stile *tile, void *table) {
    const ds__group *g = st->g;
    size_t *list = table;
    size_t n = (size_t)g->size;
    size_t at = 0;
    for (size_t r = 0; r < n; r++) {
        list[n + r] = at;
        for (size_t i = 0; i < st->count; i++) {
            const ds__dims *d = &tile[i].d;
            size_t row = d->shape[0] ? d->bytes / (size_t)d->shape[0] : 0;
            for (size_t k = g->first[r]; k < g->first[r + 1]; k++)
                at += (size_t)ds__exchange_rows(st, sizes, &tile[i], i, k) * row;
        }
        list[r] = at - list[n + r];
    }
    return (ds__net_parts){ list, list + n };
}

/* Copies between the tensors of one side and a buffer with the parts in the order of the engine:
   for each rank, for each device of the sender, for each device of the receiver. */
static ds_result ds__exchange_copy(ds__stage *st, const int64_t *sizes, const ds__stile *tile,
                                   ds__smem buffer, int sends) {
    const ds__group *g = st->g;
    size_t n = (size_t)g->size;
    size_t at = 0;
    for (size_t rank = 0; rank < n; rank++) {
        size_t peers = g->first[rank + 1] - g->first[rank];
        for (size_t p = 0; p < peers * st->count; p++) {
            size_t i = sends ? p / peers : p % st->count;
            size_t k = g->first[rank] + (sends ? p % peers : p / st->count);
            const ds__stile *t = &tile[i];
            size_t row = t->d.shape[0] ? t->d.bytes / (size_t)t->d.shape[0] : 0;
            int64_t before = 0;
            for (size_t j = 0; j < k; j++)
                before += ds__exchange_rows(st, sizes, t, i, j);
            int64_t rows = ds__exchange_rows(st, sizes, t, i, k);
            int64_t elements = rows * (int64_t)(row / t->d.item);
            ds__smem mem = ds__stile_memory(t);
            ds_tensor a = ds__smem_flat(st, mem, (size_t)before * row, &elements);
            ds_tensor b = ds__smem_flat(st, buffer, at, &elements);
            if (elements && sends)
                DS__TRY(ds__stage_copy(st, &b, buffer.device, &a, t->device));
            else if (elements)
                DS__TRY(ds__stage_copy(st, &a, t->device, &b, buffer.device));
            at += (size_t)rows * row;
        }
    }
    return DS_OK;
}

/* Makes the tensors of one side contiguous: replaces a strided tile by a temporary one. */
static ds_result ds__exchange_flatten(ds__stage *st, ds__stile *tile, int copies) {
    if ((ds_tensor_is_contiguous)(&tile->t))
        return DS_OK;
    ds__smem mem = { NULL, 0, tile->device };
    DS__TRY(ds__stage_temp(st, tile->device, tile->d.bytes, 0, &mem.at));
    if (copies)
        DS__TRY(ds__stage_pack(st, tile, mem));
    tile->t = ds__smem_like(st, mem, tile);
    tile->d.first = mem.at;
    tile->d.device = tile->t.device;
    return DS_OK;
}

static ds_result ds__all_to_all_run(ds__stage *st, ds__stile *in, ds__stile *out) {
    const int64_t *sizes = st->more->sizes;
    const int64_t *out_sizes = st->more->out_sizes;
    ds__smem from = ds__stile_memory(in);
    ds__smem to = ds__stile_memory(out);
    int send_direct = st->count == 1 && ds__stile_is_direct(st, in);
    int receive_direct = st->count == 1 && ds__stile_is_direct(st, out);
    if (!send_direct) {
        DS__TRY(ds__stage_buffer(st, ds__tiles_bytes(in, st->count), &from));
        DS__TRY(ds__exchange_copy(st, sizes, in, from, 1));
    }
    if (!receive_direct)
        DS__TRY(ds__stage_buffer(st, ds__tiles_bytes(out, st->count), &to));
    ds__rop *op = ds__stage_op(st, DS__NET_ALL_TO_ALL, 2 * ds__parts_bytes(st->g));
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    char *tables = op->tables;
    op->net.in = from.at;
    op->net.out = to.at;
    op->net.parts = ds__exchange_parts(st, sizes, in, tables);
    op->net.out_parts = ds__exchange_parts(st, out_sizes, out, tables + ds__parts_bytes(st->g));
    DS__TRY(ds__stage_net(st, op, ds__tiles_bytes(in, st->count)));
    return !receive_direct ? ds__exchange_copy(st, out_sizes, out, to, 0) : DS_OK;
}

static ds_result ds__across_all_to_all(ds__stage *st, const ds__comm_call *c) {
    const ds_ranks_options *o = st->more;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__REQUIRE(
        !o->sizes == !o->out_sizes,
        "one of ranks_options->sizes and ranks_options->out_sizes is NULL; set both or none");
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    DS__TRY(ds__exchange_check(st, o->sizes, st->in, "input"));
    DS__TRY(ds__exchange_check(st, o->out_sizes, st->out, "output"));
    ds__stage_count(st, &st->in[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_NEVER));
    ds__stile *tile = ds__stage_alloc(st, 2 * st->count * sizeof *tile);
    if (!tile)
        return DS_ERR_OUT_OF_MEMORY;
    memcpy(tile, st->in, 2 * st->count * sizeof *tile);
    DS__TRY(ds__stage_begin(st));
    for (size_t i = 0; i < 2 * st->count; i++)
        DS__TRY(ds__exchange_flatten(st, &tile[i], i < st->count));
    DS__TRY(ds__all_to_all_run(st, tile, tile + st->count));
    for (size_t i = 0; i < st->count; i++)
        DS__TRY(ds__stage_unpack(st, &st->out[i], ds__stile_memory(&tile[st->count + i])));
    return DS_OK;
}

#endif
