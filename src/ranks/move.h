/* ranks/move.h - collectives of a group that move data.

   Implements broadcast, scatter, gather, all_gather and all_to_all between ranks.

   Policy: the engine exchanges parts between members of the communicator, each of which has the
   parts of its devices, one behind the other, in contiguous memory. With one device per member, and
   parts along dimension 0 of contiguous tensors, that is the memory of the tensors. Otherwise parts
   are copied on the streams.

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
#include "steps.h"

/* ---- broadcast ------------------------------------------------------------------------------- */

/* A broadcast of memory that the engine does not reach. */
static ds_result ds__broadcast_in_pieces(ds__stage *st) {
    const ds__stile *tile = st->ins ? &st->in[0] : &st->out[0];
    ds__smem none = { NULL, 0, 0 };
    ds__smem mem = ds__stile_memory(tile);
    if (mem.host || !(ds_tensor_is_contiguous)(&tile->t))
        DS__TRY(ds__stage_lead_buffer(st, tile->d.bytes, &mem));
    if (st->ins)
        DS__TRY(ds__stage_pack(st, tile, mem));
    DS__TRY(ds__stage_pieces(st, DS__NET_BROADCAST, st->ins ? mem : none, st->ins ? none : mem,
                             tile->d.count));
    return ds__stage_spread(st, mem);
}

static ds_result ds__broadcast_prepare(ds__stage *st, ds__net_op *net, void *unused) {
    const ds__stile *tile = st->ins ? &st->in[0] : &st->out[0];
    ds__smem *mem = &st->at->to;
    (void)unused;
    DS__TRY(st->ins ? ds__stage_source(st, tile, mem) : ds__stage_target(st, tile, mem));
    net->out = mem->at;
    net->count = tile->d.bytes;
    net->root = st->root;
    st->moved += tile->d.bytes;
    return DS_OK;
}

static ds_result ds__across_broadcast(ds__stage *st, const ds__comm_call *c) {
    size_t device;
    int here = ds__stage_root(st, &device);
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
        return ds__broadcast_in_pieces(st);
    return ds__stage_run(st, DS__NET_BROADCAST, 0, ds__broadcast_prepare, ds__stage_finish_all);
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

/* Writes the table of the parts of all members. */
static ds__net_parts ds__division_parts(const ds__stage *st, const ds__division_of *v,
                                        void *table) {
    size_t *list = table;
    size_t n = (size_t)st->size;
    size_t item = v->whole->d.item;
    size_t at = 0;
    for (size_t r = 0; r < n; r++) {
        list[n + r] = at;
        for (size_t k = st->first[r]; k < st->first[r + 1]; k++)
            at += ds__division_count(st, v, k) * item;
        list[r] = at - list[n + r];
    }
    return (ds__net_parts){ list, list + n };
}

/* Gives memory of the engine for the tiles of the member: that of a single one, or a buffer. */
static ds_result ds__tiles_target(ds__stage *st, const ds__stile *tile, size_t count,
                                  ds__smem *out) {
    *out = ds__stile_memory(tile);
    if (count == 1 && ds__stile_is_direct(st, tile))
        return DS_OK;
    return ds__stage_buffer(st, ds__tiles_bytes(tile, count), out);
}

/* Describes the parts of a tensor; NULL: another member has it. */
static ds__division_of ds__division_open(const ds__stage *st, const ds__stile *whole) {
    ds__division_of v = { whole, st->more->sizes, 0, st->dim, 0 };
    if (whole) {
        v.all = whole->d.shape[v.dim];
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

static ds_result ds__gather_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    ds__division_of v = ds__division_open(st, st->outs ? &st->out[0] : NULL);
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &m->from));
    DS__TRY(ds__division_memory(st, &v, 0, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = ds__tiles_bytes(st->in, st->ins);
    if (v.whole)
        net->parts = ds__division_parts(st, &v, tables);
    st->moved += net->count;
    return DS_OK;
}

static ds_result ds__gather_finish(ds__stage *st) {
    ds__division_of v = ds__division_open(st, st->outs ? &st->out[0] : NULL);
    ds__smem all = st->at->to;
    return v.whole && all.at != (void *)v.whole->d.first ? ds__division_copy(st, &v, all, 0)
                                                         : DS_OK;
}

static ds_result ds__across_gather(ds__stage *st, const ds__comm_call *c) {
    size_t device;
    int here = ds__stage_root(st, &device);
    st->dim = c->dim;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_single(st, c->out[0], here, "out"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, here ? 1 : 0, device));
    DS__TRY(ds__dim_resolve(&st->dim, st->in[0].d.ndim));
    DS__TRY(
        ds__stage_check_parts(st, here ? &st->out[0].d : NULL, st->in, st->more->sizes, st->dim));
    ds__stage_count(st, &st->in[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, st->dim ? DS__STAGE_NEVER : DS__STAGE_PART_OF_OUTPUT));
    DS__TRY(ds__stage_begin(st));
    return ds__stage_run(st, DS__NET_GATHER, 1, ds__gather_prepare, ds__gather_finish);
}

static ds_result ds__scatter_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    ds__division_of v = ds__division_open(st, st->ins ? &st->in[0] : NULL);
    DS__TRY(ds__division_memory(st, &v, 1, &m->from));
    DS__TRY(ds__tiles_target(st, st->out, st->outs, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->root = st->root;
    net->count = ds__tiles_bytes(st->out, st->outs);
    if (v.whole)
        net->parts = ds__division_parts(st, &v, tables);
    st->moved += net->count;
    return DS_OK;
}

static ds_result ds__across_scatter(ds__stage *st, const ds__comm_call *c) {
    size_t device;
    int here = ds__stage_root(st, &device);
    st->dim = c->dim;
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_check_single(st, c->in[0], here, "the tensor"));
    DS__TRY(ds__stage_tensors(st, c->in, here ? 1 : 0, c->out, c->out_count, device));
    DS__TRY(ds__dim_resolve(&st->dim, st->out[0].d.ndim));
    DS__TRY(
        ds__stage_check_parts(st, here ? &st->in[0].d : NULL, st->out, st->more->sizes, st->dim));
    ds__stage_count(st, &st->out[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, st->dim ? DS__STAGE_NEVER : DS__STAGE_PART_OF_INPUT));
    DS__TRY(ds__stage_begin(st));
    return ds__stage_run(st, DS__NET_SCATTER, 1, ds__scatter_prepare, ds__stage_finish_parts);
}

/* ---- all_gather ------------------------------------------------------------------------------ */

static ds_result ds__all_gather_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    ds__division_of v = ds__division_open(st, &st->out[0]);
    DS__TRY(ds__stage_target(st, &st->out[0], &m->to));
    DS__TRY(ds__tiles_source(st, st->in, st->ins, &m->from));
    net->in = m->from.at;
    net->out = m->to.at;
    net->parts = ds__division_parts(st, &v, tables);
    st->moved += st->out[0].d.bytes;
    return DS_OK;
}

static ds_result ds__across_all_gather(ds__stage *st, const ds__comm_call *c) {
    st->dim = 0;
    DS__TRY(ds__stage_check_count(st, c->in, c->in_count, "tensors"));
    DS__TRY(ds__stage_check_count(st, c->out, c->out_count, "outs"));
    DS__TRY(ds__stage_tensors(st, c->in, c->in_count, c->out, c->out_count, 0));
    for (size_t i = 0; i < st->outs; i++)
        DS__TRY(ds__stage_check_parts(st, &st->out[i].d, st->in, st->more->sizes, 0));
    ds__stage_count(st, &st->in[0], st->more->sizes != NULL);
    DS__TRY(ds__stage_check_disjoint(st, DS__STAGE_PART_OF_OUTPUT));
    if (!st->out[0].d.count)
        return DS_OK;
    DS__TRY(ds__stage_begin(st));
    return ds__stage_run(st, DS__NET_ALL_GATHER, 1, ds__all_gather_prepare, ds__stage_finish_all);
}

/* ---- all_to_all ------------------------------------------------------------------------------ */

/* Rows that the device of a tile exchanges with device k of the group. */
static int64_t ds__exchange_rows(const ds__stage *st, const int64_t *sizes, const ds__stile *tile,
                                 size_t k) {
    return sizes ? sizes[tile->device * st->g->devices + k]
                 : tile->d.shape[0] / (int64_t)st->g->devices;
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

/* Writes the table of one side: for each member the parts of all pairs of devices. */
static ds__net_parts ds__exchange_parts(const ds__stage *st, const int64_t *sizes,
                                        const ds__stile *tile, void *table) {
    size_t *list = table;
    size_t n = (size_t)st->size;
    size_t at = 0;
    for (size_t r = 0; r < n; r++) {
        list[n + r] = at;
        for (size_t i = 0; i < st->ins; i++) {
            const ds__dims *d = &tile[i].d;
            size_t row = d->shape[0] ? d->bytes / (size_t)d->shape[0] : 0;
            for (size_t k = st->first[r]; k < st->first[r + 1]; k++)
                at += (size_t)ds__exchange_rows(st, sizes, &tile[i], k) * row;
        }
        list[r] = at - list[n + r];
    }
    return (ds__net_parts){ list, list + n };
}

/* Copies between the tensors of one side and a buffer with the parts in the order of the engine:
   for each member, for each device of the sender, for each device of the receiver. */
static ds_result ds__exchange_copy(ds__stage *st, const int64_t *sizes, const ds__stile *tile,
                                   ds__smem buffer, int sends) {
    size_t n = (size_t)st->size;
    size_t at = 0;
    for (size_t r = 0; r < n; r++) {
        size_t peers = st->first[r + 1] - st->first[r];
        for (size_t p = 0; p < peers * st->ins; p++) {
            const ds__stile *t = &tile[sends ? p / peers : p % st->ins];
            size_t k = st->first[r] + (sends ? p % peers : p / st->ins);
            size_t row = t->d.shape[0] ? t->d.bytes / (size_t)t->d.shape[0] : 0;
            int64_t before = 0;
            for (size_t j = 0; j < k; j++)
                before += ds__exchange_rows(st, sizes, t, j);
            int64_t rows = ds__exchange_rows(st, sizes, t, k);
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

static ds_result ds__all_to_all_prepare(ds__stage *st, ds__net_op *net, void *tables) {
    ds__stage_member *m = st->at;
    size_t n = st->ins;
    const int64_t *sizes = st->more->sizes;
    m->flat = ds__stage_alloc(st, 2 * n * sizeof *m->flat);
    if (!m->flat)
        return DS_ERR_OUT_OF_MEMORY;
    ds__stile *in = m->flat;
    ds__stile *out = m->flat + n;
    memcpy(in, st->in, n * sizeof *in);
    memcpy(out, st->out, n * sizeof *out);
    for (size_t i = 0; i < 2 * n; i++)
        DS__TRY(ds__exchange_flatten(st, &m->flat[i], i < n));
    DS__TRY(ds__tiles_target(st, in, n, &m->from));
    if (m->from.at != (void *)in->d.first)
        DS__TRY(ds__exchange_copy(st, sizes, in, m->from, 1));
    DS__TRY(ds__tiles_target(st, out, n, &m->to));
    net->in = m->from.at;
    net->out = m->to.at;
    net->parts = ds__exchange_parts(st, sizes, in, tables);
    net->out_parts =
        ds__exchange_parts(st, st->more->out_sizes, out, (char *)tables + ds__parts_bytes(st));
    st->moved += ds__tiles_bytes(in, n);
    return DS_OK;
}

static ds_result ds__all_to_all_finish(ds__stage *st) {
    const ds__stage_member *m = st->at;
    const ds__stile *out = m->flat + st->ins;
    if (m->to.at != (void *)out->d.first)
        DS__TRY(ds__exchange_copy(st, st->more->out_sizes, out, m->to, 0));
    for (size_t i = 0; i < st->outs; i++)
        DS__TRY(ds__stage_unpack(st, &st->out[i], ds__stile_memory(&out[i])));
    return DS_OK;
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
    DS__TRY(ds__stage_begin(st));
    return ds__stage_run(st, DS__NET_ALL_TO_ALL, 2, ds__all_to_all_prepare, ds__all_to_all_finish);
}

#endif
