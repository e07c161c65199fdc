/* ranks/pieces.h - large operations of a GPU in pieces.

   Runs an operation on elements of memory of the leading device that the engine does not reach
   (ds__stage_pieces): each piece is copied to pinned memory, exchanged, and copied back. While the
   engine works on a piece, the next ones are copied to the host, and earlier ones back.

   Invariants: the operations of the pieces are enqueued without a wait. The waits follow, each
   before the copy of its result.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */
#ifndef DS__RANKS_PIECES_H
#define DS__RANKS_PIECES_H

#include "types.h"
#include "stage.h"
#include "stage_memory.h"
#include "steps.h"

enum { DS__PIECE_BYTES = 4 << 20 };

typedef struct ds__net_piece {
    ds__smem mem; /* pinned */
    uint64_t number;
    size_t at; /* bytes */
    int64_t elements;
} ds__net_piece;

/* Returns 1 if an operation on this many bytes is done in pieces. */
static int ds__stage_is_in_pieces(const ds__stage *st, size_t bytes) {
    return st->reach == DS__REACH_HOST && !st->capturing && bytes >= 2 * DS__PIECE_BYTES;
}

/* Copies between a piece and its place in memory of the leading device. */
static ds_result ds__piece_copy(ds__stage *st, ds__net_piece *p, ds__smem mem, int to_host) {
    ds_tensor host = ds__smem_flat(st, p->mem, 0, &p->elements);
    ds_tensor device = ds__smem_flat(st, mem, p->at, &p->elements);
    return to_host ? ds__stage_copy(st, &host, st->leading, &device, mem.device)
                   : ds__stage_copy(st, &device, mem.device, &host, st->leading);
}

/* Enqueues the operation of a piece. */
static ds_result ds__piece_begin(ds__stage *st, ds__net_piece *p, ds__net_kind kind) {
    size_t item = (ds_dtype_get_size)(st->call.dtype);
    ds__rop *op = ds__stage_op(st, kind, 0);
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    op->net.in = op->net.out = p->mem.at;
    op->net.root = st->root;
    op->net.count = (size_t)p->elements * (kind == DS__NET_BROADCAST ? item : 1);
    st->enqueued = 1;
    return ds__rop_submit(op, st->lead, (size_t)p->elements * item, &p->number);
}

/* Runs a reduction or broadcast of `elements` from `in` to `out`; at NULL: this rank has none. */
static ds_result ds__stage_pieces(ds__stage *st, ds__net_kind kind, ds__smem in, ds__smem out,
                                  int64_t elements) {
    size_t item = (ds_dtype_get_size)(st->call.dtype);
    int64_t most = (int64_t)(DS__PIECE_BYTES / item);
    size_t count = (size_t)((elements + most - 1) / most);
    ds__net_piece *piece = ds__stage_alloc(st, count * sizeof *piece);
    ds_result r = piece ? ds__stage_join(st) : DS_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        piece[i].at = i * (size_t)most * item;
        piece[i].elements = i + 1 < count ? most : elements - (int64_t)i * most;
        r = ds__stage_buffer(st, (size_t)piece[i].elements * item, &piece[i].mem);
    }
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        if (in.at)
            r = ds__piece_copy(st, &piece[i], in, 1);
        if (r == DS_OK)
            r = ds__piece_begin(st, &piece[i], kind);
    }
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__rop_wait(st->g, st->lead, &st->call, piece[i].number);
        if (r == DS_OK && out.at)
            r = ds__piece_copy(st, &piece[i], out, 0);
    }
    return r;
}

#endif
