/* ranks/messages.h - collectives as messages between two ranks.

   Gives the messages of a gather, scatter, all-gather or all-to-all (ds__net_messages), for engines
   that send each part for itself.

   Invariants: a message without bytes is left out on both sides.
   Locks: none.
   Threads: any. */
#ifndef DS__RANKS_MESSAGES_H
#define DS__RANKS_MESSAGES_H

#include "engine.h"

/* Returns an address behind `at`, which may be NULL if nothing is there. */
static inline void *ds__behind(const void *at, size_t bytes) {
    return bytes ? (char *)(uintptr_t)at + bytes : (void *)(uintptr_t)at;
}

/* Returns 1 if all parts have the size of the first one. */
static int ds__net_parts_equal(const ds__net_parts *parts, int size) {
    int same = 1;
    for (int i = 1; i < size; i++)
        same &= parts->bytes[i] == parts->bytes[0];
    return same;
}

/* Returns the message from a rank to another one. */
static ds__net_transfer ds__net_message_to(const ds__net_op *op, int rank, int peer) {
    ds__net_transfer t = { (void *)(uintptr_t)op->in, 0, peer, 0, 0 };
    if (op->kind == DS__NET_ALL_GATHER) {
        t.bytes = op->parts.bytes[rank];
    } else if (op->kind == DS__NET_GATHER) {
        t.bytes = peer == op->root ? op->count : 0;
    } else if (op->kind == DS__NET_ALL_TO_ALL || rank == op->root) {
        t.at = ds__behind(op->in, op->parts.at[peer]);
        t.bytes = op->parts.bytes[peer];
    }
    return t;
}

/* Returns the message that a rank receives from another one. */
static ds__net_transfer ds__net_message_from(const ds__net_op *op, int rank, int peer) {
    ds__net_transfer t = { op->out, 0, peer, 0, 1 };
    if (op->kind == DS__NET_SCATTER) {
        t.bytes = peer == op->root ? op->count : 0;
    } else if (op->kind != DS__NET_GATHER || rank == op->root) {
        const ds__net_parts *parts = op->kind == DS__NET_ALL_TO_ALL ? &op->out_parts : &op->parts;
        t.at = ds__behind(op->out, parts->at[peer]);
        t.bytes = parts->bytes[peer];
    }
    return t;
}

/* Writes the messages of a rank, at most two for each rank, and returns their number. */
static size_t ds__net_messages(const ds__net_op *op, int rank, int size, ds__net_transfer *out) {
    size_t count = 0;
    for (int i = 0; i < size; i++) {
        int peer = (rank + i) % size;
        ds__net_transfer from = ds__net_message_from(op, rank, peer);
        ds__net_transfer to = ds__net_message_to(op, rank, peer);
        if (peer == rank && from.at == to.at)
            continue; /* the own part is in its place */
        if (from.bytes)
            out[count++] = from;
        if (to.bytes)
            out[count++] = to;
    }
    return count;
}

#endif
