/* cpu/queue.h - queue memory, and enqueueing of operations.

   Copies an operation into the queue of a stream (ds__cpu_put), and manages the blocks of queue
   memory. ds__cpu_raw allocates the memory of all pools of the driver. ds__cpu_op_bytes is the
   size of an operation in a queue or in the plan of an executable.

   Invariants: an operation never crosses the end of a block. A DS__OP_JUMP follows the last
   operation of a block that has a successor. An operation is complete before `submitted` counts
   it. If there is no memory, ds__cpu_put enqueues nothing, or only a clock note. Memory of
   ds__cpu_raw is zeroed, aligned to 64 bytes, and freed only when the driver stops.
   Locks: ds__cpu_put and ds__cpu_room expect the stream's put lock. ds__cpu_block_alloc and
   ds__cpu_block_free take `block_lock`, ds__cpu_raw takes `raw_lock`. The program's allocator
   may run under the put lock and `block_lock`.
   Threads: submitting threads, one at a time for each stream, while the owner of the stream
   takes operations from the other end. ds__cpu_stays_failed must not run twice at once for a
   stream. */
#ifndef DS__CPU_QUEUE_H
#define DS__CPU_QUEUE_H

#include "types.h"

/* Allocates memory for the pools of streams, events, stamps and blocks: zeroed, aligned to 64
   bytes, and freed when the driver stops. NULL: no memory. */
static void *ds__cpu_raw(size_t size) {
    void **raw = ds__host_alloc(size + 128);
    if (!raw)
        return NULL;
    ds__spinlock_lock(&ds__cpu.raw_lock);
    raw[0] = ds__cpu.raw;
    ds__cpu.raw = raw;
    ds__spinlock_unlock(&ds__cpu.raw_lock);
    return (void *)(((uintptr_t)raw + 64 + 63) & ~(uintptr_t)63);
}

/* Notes that the numbers from `from` to `upto` stay failed. One thread at a time may call this for
   a stream. Without memory, the last range grows up to these numbers, because failed numbers must
   not count as done. */
static void ds__cpu_stays_failed(ds__cpu_stream *s, ds__cpu_failure *f, uint64_t from,
                                 uint64_t upto) {
    ds__cpu_past *last = atomic_load(&s->past);
    ds__cpu_past *p = last ? ds__cpu_raw(sizeof *p) : &s->first_past;
    if (!p) {
        atomic_store(&last->upto, upto);
        return;
    }
    p->failure = f;
    p->from = from;
    atomic_store(&p->upto, upto);
    p->next = last;
    atomic_store(&s->past, p);
}

static ds__cpu_block *ds__cpu_block_alloc(void) {
    ds__spinlock_lock(&ds__cpu.block_lock);
    if (!ds__cpu.free_blocks) {
        ds__cpu_block *slab = ds__cpu_raw(DS__CPU_SLAB_BLOCKS * sizeof *slab);
        for (int i = 0; slab && i < DS__CPU_SLAB_BLOCKS; i++) {
            slab[i].next = ds__cpu.free_blocks;
            ds__cpu.free_blocks = &slab[i];
        }
        if (slab)
            atomic_fetch_add_explicit(&ds__cpu.queue_bytes, DS__CPU_SLAB_BLOCKS * sizeof *slab,
                                      memory_order_relaxed);
    }
    ds__cpu_block *b = ds__cpu.free_blocks;
    if (b)
        ds__cpu.free_blocks = b->next;
    ds__spinlock_unlock(&ds__cpu.block_lock);
    return b;
}

static void ds__cpu_block_free(ds__cpu_block *b) {
    if (!b)
        return;
    ds__spinlock_lock(&ds__cpu.block_lock);
    b->next = ds__cpu.free_blocks;
    ds__cpu.free_blocks = b;
    ds__spinlock_unlock(&ds__cpu.block_lock);
}

/* Offset of a kernel's arguments in a queued operation, of a closure's payload, and of a list of
   operations on words. */
#define DS__CPU_ARGS_AT 48u

_Static_assert(offsetof(ds__op, u) + sizeof(((ds__op *)0)->u.closure) <= DS__CPU_ARGS_AT,
               "the payload follows the head of the operation");
_Static_assert(offsetof(ds__op, u) + sizeof(((ds__op *)0)->u.values) <= DS__CPU_ARGS_AT,
               "the list follows the head of the operation");
_Static_assert(DS__CPU_ARGS_AT + DS_VALUE_BATCH_MAX * sizeof(ds_value_op) + 80 <=
                   sizeof(((ds__cpu_block *)0)->data),
               "a block holds the largest batch, with a note before it");

/* Bytes of a note in a queue. */
#define DS__CPU_NOTE_BYTES 48u

_Static_assert(offsetof(ds__op, u) + sizeof(((ds__op *)0)->u.note) == DS__CPU_NOTE_BYTES,
               "a note has no gap behind it");
_Static_assert((offsetof(ds__op, u) + sizeof(((ds__op *)0)->u.wait)) % 16 == 0,
               "a wait has no gap behind it (ds__cpu_put_usual)");

/* Returns the bytes of an operation in a queue, a multiple of 16. */
static size_t ds__cpu_op_bytes(const ds__op *op) {
    static const size_t size[] = {
        [DS__OP_COPY] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.copy,
        [DS__OP_FILL] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.fill,
        [DS__OP_HOST] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.host,
        [DS__OP_CALLBACK] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.host,
        [DS__OP_RECORD] = offsetof(ds__op, u.own.size),
        [DS__OP_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_NOTHING] = offsetof(ds__op, u),
        [DS__OP_GRAPH] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.graph,
        [DS__OP_REMOTE] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.remote,
        [DS__CPU_OP_LANE_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__CPU_OP_NODE_RECORD] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__CPU_OP_NODE_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__CPU_OP_SHARED_RECORD] = offsetof(ds__op, u.own.size),
        [DS__CPU_OP_CONDITION] = offsetof(ds__op, u.own.size),
        [DS__CPU_OP_FREE] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.own,
        [DS__CPU_OP_CLOCK] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.own,
        [DS__CPU_OP_NOTE] = DS__CPU_NOTE_BYTES,
    };
    size_t n;
    if (op->kind == DS__OP_KERNEL)
        n = DS__CPU_ARGS_AT + op->u.kernel.args_size;
    else if (op->kind == DS__OP_CLOSURE)
        n = DS__CPU_ARGS_AT + op->u.closure.size;
    else if (op->kind == DS__OP_VALUES)
        n = DS__CPU_ARGS_AT + op->u.values.count * sizeof(ds_value_op);
    else
        n = size[op->kind];
    return (n + 15) & ~(size_t)15;
}

/* Makes room for an operation at the tail. The put lock is held. NULL: no memory; then nothing has
   changed. Always inlined: its other caller, ds__cpu_put_noted, must not make it a call of each
   submission. */
__attribute__((always_inline)) static inline void *ds__cpu_room(ds__cpu_stream *s, size_t bytes) {
    ds__cpu_block *b = s->tail;
    if (DS__UNLIKELY(!b || s->tail_at + bytes + 16 > sizeof b->data)) {
        ds__cpu_block *fresh = atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel);
        if (!fresh)
            fresh = ds__cpu_block_alloc();
        if (!fresh)
            return NULL;
        fresh->next = NULL;
        if (b) {
            b->next = fresh;
            ((ds__op *)(void *)(b->data + s->tail_at))->kind = DS__OP_JUMP;
        } else {
            /* the stream is empty and idle: no other thread reads the head before the operation is
               published */
            s->head = fresh;
            s->head_at = 0;
        }
        s->tail = b = fresh;
        s->tail_at = 0;
    }
    void *at = b->data + s->tail_at;
    s->tail_at += (uint32_t)bytes;
    /* the line of an operation some places ahead */
    ds__own_line((const char *)b + ((s->tail_at + 640) & (DS__CPU_BLOCK_BYTES - 1)));
    return at;
}

/* Copies a small struct in words, as the caller has just written it. Wider loads would wait until
   the caller's stores have reached the cache. */
static inline void ds__cpu_copy_args(char *to, const char *from, size_t size) {
    if (DS__UNLIKELY(size > 64)) {
        memcpy(to, from, size);
        return;
    }
    for (; size >= 8; size -= 8, to += 8, from += 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        memcpy(to, &word, 8);
    }
    for (; size; size--)
        *to++ = *from++;
}

/* Copies a launch to its place in a queue. */
static inline void ds__cpu_fill_kernel(ds__op *q, const ds__op *op) {
    q->kind = op->kind;
    q->flags = op->flags;
    q->places = op->places;
    q->line = op->line;
    q->file = op->file;
    q->u.kernel.kernel = op->u.kernel.kernel;
    q->u.kernel.items = op->u.kernel.items;
    q->u.kernel.args_size = op->u.kernel.args_size;
    ds__cpu_copy_args((char *)q + DS__CPU_ARGS_AT, op->u.kernel.args, op->u.kernel.args_size);
}

/* Copies an operation to its place in a queue. */
static inline void ds__cpu_fill_room(ds__op *q, const ds__op *op) {
    if (op->kind == DS__OP_KERNEL) {
        ds__cpu_fill_kernel(q, op);
    } else if (op->kind == DS__OP_CLOSURE) {
        memcpy(q, op, offsetof(ds__op, u) + sizeof op->u.closure);
        ds__cpu_copy_args((char *)q + DS__CPU_ARGS_AT, op->u.closure.payload, op->u.closure.size);
    } else {
        memcpy(q, op, ds__cpu_op_bytes(op) < sizeof *op ? ds__cpu_op_bytes(op) : sizeof *op);
        if (op->kind == DS__OP_VALUES)
            memcpy((char *)q + DS__CPU_ARGS_AT, op->u.values.list,
                   op->u.values.count * sizeof(ds_value_op));
    }
}

/* Makes the operation that was written behind the last one part of the queue. The put lock is held.
   No barrier is needed: a stream becomes idle only under its put lock. */
static inline void ds__cpu_publish(ds__cpu_stream *s) {
    uint64_t n = atomic_load_explicit(&s->submitted, memory_order_relaxed) + 1;
    atomic_store_explicit(&s->submitted, n, memory_order_release);
}

/* Enqueues a copy of the operation, without notes. The put lock is held. */
static inline ds_result ds__cpu_put_plain(ds__cpu_stream *s, const ds__op *op) {
    ds__op *q = ds__cpu_room(s, ds__cpu_op_bytes(op));
    if (DS__UNLIKELY(!q))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to queue the operation");
    ds__cpu_fill_room(q, op);
    ds__cpu_publish(s);
    return DS_OK;
}

/* Enqueues a copy of the operation. The put lock is held. */
static ds_result ds__cpu_put(ds__cpu_stream *s, const ds__op *op) {
    return DS__UNLIKELY(ds__cpu_modes(DS__CPU_SLOWLY)) ? ds__cpu_put_noted(s, op)
                                                       : ds__cpu_put_plain(s, op);
}

#endif
