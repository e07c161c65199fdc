/* alloc/poison.h - poison in freed blocks.

   Overwrites freed blocks of pools with poison: ds__poison_on on a stream that has passed all
   uses of the block, ds__poison_late on the block's own stream or, if the stream has ended, on a
   stream of the allocator. ds__may_write tells whether the allocator may write to a pool.

   Invariants: Poison is a fill in stream order. Blocks are not poisoned while a capture is open,
   because a capture must contain the program's work only, nor in a pool that a graph uses, because
   its launches write to the pool's memory at any time. A block with `stale` set must be poisoned
   before it is free.
   Locks: expects no lock; the block is claimed and in no list. New captures are held back
   (ds__g.begin) around the fills.
   Threads: caller's threads. With `wait`, ds__poison_late blocks the host. */
#ifndef DS__ALLOC_POISON_H
#define DS__ALLOC_POISON_H

#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "stream_use.h"
#include "arena.h"

#define DS__POISON 0xDBDBDBDBu

/* Returns whether the allocator may write to memory of a pool now. */
static int ds__may_write(const ds__mem_pool *p) {
    return !ds__captures_open() && !p->graphs;
}

/* Overwrites a freed block on a stream that has passed all uses of the block. No lock is held. */
static void ds__poison_on(ds__mem_block *b, ds_stream stream) {
    const ds__mem_pool *p = atomic_load(&b->seg->arena)->pool;
    ds__tls.mute++;
    ds__hold_captures();
    if (ds__may_write(p))
        DS_IGNORE(ds__own_fill(stream, b->ptr, DS__POISON, b->size));
    ds__let_captures();
    ds__tls.mute--;
    b->stale = 0;
}

/* Poisons a block, which is in no list and whose uses are done, on its stream. If the stream has
   ended, poisons the block on the allocator's own stream once the work of the ended stream is done,
   and records the event of that end again. Returns 0 if that work is not done. No lock is held. */
static int ds__poison_late(ds__arena *a, ds__mem_block *b, int wait) {
    ds__owner o = ds__owner_of(a);
    ds_result r = DS_ERR_FAILED;
    if (!o.orphan) {
        ds__poison_on(b, o.stream);
        return 1;
    }
    ds__tls.mute++;
    if (o.end.id && !ds__captures_open())
        r = wait ? ds__event_sync(o.end, DS__FOREVER) : ds__event_ask(o.end);
    ds__stream *s = r == DS_OK ? ds__direct_giver(a->dev) : NULL;
    if (s) {
        ds_stream giver = { ds__handle_of(&s->slot) };
        /* holding back captures also keeps fills and records of two threads in the same order */
        ds__hold_captures();
        if (ds__may_write(a->pool) && ds__own_fill(giver, b->ptr, DS__POISON, b->size) == DS_OK &&
            ds__event_record(o.end, giver, DS__OP_RECORD) < 0)
            DS_IGNORE(ds__stream_sync(giver, DS__FOREVER));
        ds__let_captures();
        ds__stream_unpin(s);
    }
    ds__tls.mute--;
    if (r != DS_NOT_READY)
        b->stale = 0;
    return r != DS_NOT_READY;
}

#endif
