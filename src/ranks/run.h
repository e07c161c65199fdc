/* ranks/run.h - operations of the engine on streams.

   Takes an operation of a group (ds__rop_take) and enqueues it on a stream (ds__rop_submit).

   Invariants: an operation that was taken is submitted, or given back (ds__rop_give_back). If it
   cannot be enqueued, the group fails, since the other ranks will wait for this one.
   Locks: `calls` of the group is held.
   Threads: any. */
#ifndef DS__RANKS_RUN_H
#define DS__RANKS_RUN_H

#include "types.h"
#include "failure.h"
#include "progress.h"
#include "record.h"

/* Returns an operation with room for tables at `tables`; NULL: no memory; the error is stored. */
static ds__rop *ds__rop_take(ds__group *g, size_t table_bytes) {
    ds__spinlock_lock(&g->list_lock);
    ds__rop *op = g->free_ops;
    if (op)
        g->free_ops = op->next;
    ds__spinlock_unlock(&g->list_lock);
    if (!op)
        op = ds__host_alloc(sizeof *op);
    if (op && op->table_bytes < table_bytes) {
        ds__host_free(op->tables);
        op->tables = ds__host_alloc(table_bytes);
        op->table_bytes = op->tables ? table_bytes : 0;
    }
    if (!op || op->table_bytes < table_bytes) {
        ds__host_free(op);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an operation of group \"%s\"",
                 ds__group_name(g));
        return NULL;
    }
    op->used_bytes = table_bytes;
    op->remote = (ds__remote){ .begin_fn = ds__rop_begin };
    op->group = g;
    op->next = NULL;
    op->arrived = 0;
    op->state = DS__ROP_LISTED;
    op->spin = 0;
    op->dropped = 0;
    op->arrival = 0;
    op->word = NULL;
    op->members = NULL;
    op->streams = NULL;
    ds__host_free(op->signatures);
    op->signatures = NULL;
    memset(&op->net, 0, sizeof op->net);
    return op;
}

/* Adds an operation to its group, and gives it its number. */
static void ds__rop_add(ds__rop *op) {
    ds__group *g = op->group;
    op->enqueued = ds__now_ns();
    ds__spinlock_lock(&g->list_lock);
    op->number = ++g->listed;
    g->operations++;
    if (op->call.kind != DS__NET_EXCHANGE)
        g->collectives++;
    op->ticket = ds__rop_record(g, op);
    if (g->last_fresh)
        g->last_fresh->next = op;
    else
        g->fresh = op;
    g->last_fresh = op;
    ds__spinlock_unlock(&g->list_lock);
}

/* Returns the text of an error without its call, which stands before it. */
static const char *ds__error_reason(const ds__kept_error *error) {
    const char *call = strstr(error->text, ": ds_");
    const char *reason = call ? strstr(call + 2, ": ") : NULL;
    return reason ? reason + 2 : error->text;
}

/* Fails the group, since an operation could not be enqueued. */
static ds_result ds__rop_refused(ds__rop *op, ds_result r) {
    ds__group *g = op->group;
    int taken = atomic_load(&op->remote.taken);
    ds__kept_error error;
    ds__error_save(&error);
    ds__mutex_lock(&g->lock);
    ds__group_fail_op(g, op, r, "%s", ds__error_reason(&error));
    ds__mutex_unlock(&g->lock);
    if (op->number && !taken)
        (void)ds__rop_begin(&op->remote, DS__REMOTE_FAILED);
    ds__error_restore(&error);
    return r;
}

/* Submits the work of an operation; the stream must not capture. */
static ds_result ds__rop_enqueue(ds__stream *s, const ds__op *o) {
    ds_result r = ds__stream_submit(s, o);
    return r == DS__CHANGED
               ? ds__fail(DS_ERR_CAPTURE_UNSUPPORTED, "another thread began to capture the stream")
               : r;
}

/* Lets the engine enqueue an operation on a native stream (base/operation.h). */
static ds_result ds__rop_enqueue_native(ds__remote *remote, void *native) {
    ds__rop *op = (ds__rop *)(void *)remote;
    ds_result r = op->group->engine->enqueue(op->group->comm, &op->net, native, op->members,
                                             ds__rop_deadline(op));
    op->ended = r < 0;
    return r;
}

static ds_result ds__rop_enqueue_nothing(ds__remote *remote, void *native) {
    (void)remote;
    (void)native;
    return DS_OK;
}

/* Passes the number of an operation on several streams when all of them are behind it. */
static ds_result ds__rop_pass_late(ds__rop *op, ds__stream *s, ds__op *o) {
    ds_stream lead = { ds__handle_of(&s->slot) };
    ds_result r = DS_OK;
    for (size_t i = 0; i < op->stream_count && r == DS_OK; i++)
        if (op->streams[i].id != lead.id)
            r = ds__wait_stream(lead, op->streams[i]);
    if (r < 0)
        return r;
    op->remote.enqueue_fn = ds__rop_enqueue_nothing;
    o->u.remote.timeline = op->group->timeline;
    o->u.remote.bytes = 0;
    return ds__rop_enqueue(s, o);
}

/* Enqueues an operation of an engine that enqueues its operations itself. captures: it becomes a
   part of a graph, and the group does not know its launches. */
static ds_result ds__rop_submit_native(ds__rop *op, ds__stream *s, size_t bytes, int captures) {
    ds__group *g = op->group;
    ds_result r = DS_OK;
    op->remote.enqueue_fn = ds__rop_enqueue_native;
    op->ended = 0;
    op->number = 0;
    if (captures)
        op->enqueued = ds__now_ns();
    else
        ds__rop_add(op);
    if (!captures && g->flags & DS_RANKS_COMPARE && op->call.kind != DS__NET_EXCHANGE)
        r = ds__rop_compare(g, op);
    ds__op o = ds__op_init(DS__OP_REMOTE | (captures ? 0 : DS__OP_OUTSIDE << 8));
    o.u.remote.begin = &op->remote;
    o.u.remote.timeline = captures || op->streams ? NULL : g->timeline;
    o.u.remote.upto = op->number;
    o.u.remote.name = ds__net_names[op->call.kind];
    o.u.remote.bytes = bytes;
    if (r == DS_OK)
        r = ds__rop_enqueue(s, &o);
    if (r == DS_OK && op->streams)
        r = ds__rop_pass_late(op, s, &o);
    if (captures) {
        if (r < 0 && op->ended)
            DS_IGNORE(ds__rop_refused(op, r));
        ds__rop_give_back(op);
        return r;
    }
    if (r < 0)
        return ds__rop_refused(op, r);
    atomic_fetch_add(&ds__drive.open, 1);
    atomic_store(&op->arrived, 1);
    atomic_fetch_add(&g->news, 1);
    ds__ranks_wake(1);
    return DS_OK;
}

/* Enqueues an operation, which moves this many bytes, on a stream, and the wait for it. number:
   NULL, or the operation is enqueued without the wait, and *number is for ds__rop_wait. */
static ds_result ds__rop_submit(ds__rop *op, ds__stream *s, size_t bytes, uint64_t *number) {
    ds__group *g = op->group;
    if (g->engine->enqueue)
        return ds__rop_submit_native(op, s, bytes, 0);
    op->spin = bytes <= DS__RANKS_SPIN_BYTES;
    ds__rop_add(op);
    ds__op o = ds__op_init(DS__OP_REMOTE | (DS__OP_OUTSIDE | DS__OP_PROMPT) << 8);
    o.u.remote.begin = &op->remote;
    o.u.remote.timeline = number ? NULL : g->timeline;
    o.u.remote.upto = op->number;
    o.u.remote.name = ds__net_names[op->call.kind];
    o.u.remote.bytes = bytes;
    if (number)
        *number = op->number;
    ds_result r = ds__rop_enqueue(s, &o);
    return r < 0 ? ds__rop_refused(op, r) : DS_OK;
}

/* Makes a stream wait for the operations of the group up to a number, which belong to a call. */
static ds_result ds__rop_wait(const ds__group *g, ds__stream *s, const ds__rcall *call,
                              uint64_t number) {
    ds__op o = ds__op_init(DS__OP_REMOTE | DS__OP_OUTSIDE << 8);
    o.u.remote.begin = NULL;
    o.u.remote.timeline = g->timeline;
    o.u.remote.upto = number;
    o.u.remote.name = ds__net_names[call->kind];
    return ds__rop_enqueue(s, &o);
}

#endif
