/* ranks/steps.h - the operations of a collective.

   A collective is one or several steps (ds__stage_step). In each, the members of this rank prepare
   their parts of one operation of the engine, which is then enqueued for all of them.

   Invariants: between two steps, and at the end, the work of a member is on its streams.
   Locks: `calls` of the group is held.
   Threads: caller's threads. */
#ifndef DS__RANKS_STEPS_H
#define DS__RANKS_STEPS_H

#include "types.h"
#include "stage.h"
#include "stage_memory.h"
#include "parts.h"

/* Prepares the operation of the selected member: gives it its memory, root and parts, and adds the
   bytes that it moves to st->moved. */
typedef ds_result ds__step_fn(ds__stage *st, ds__net_op *net, void *tables);

/* Returns the bytes of the list of members at the begin of the tables. */
static size_t ds__stage_lists(const ds__stage *st) {
    return st->each ? st->members * sizeof(ds__net_member) : 0;
}

/* Returns an operation whose call is that of the stage, with room for tables of this many bytes;
   NULL: no memory. */
static ds__rop *ds__stage_op(ds__stage *st, ds__net_kind kind, size_t tables) {
    ds__rop *op = ds__rop_take(st->g, ds__stage_lists(st) + tables);
    if (!op)
        return NULL;
    op->call = st->call;
    op->call.step = st->step++;
    op->net.kind = kind;
    op->net.dtype = st->call.dtype;
    op->net.reduce_op = st->call.op;
    op->net.nccl = st->more->nccl;
    op->net.on_gpu = st->g->gpu && st->reach != DS__REACH_HOST;
    op->members = st->each ? op->tables : NULL;
    for (size_t m = 0; m < st->members && op->members; m++)
        op->members[m] = (ds__net_member){ op->net, NULL };
    return op;
}

/* Gives a member's operation the native form of its stream. */
static ds_result ds__stage_native(const ds__stage *st, size_t m, ds__net_member *out) {
    size_t i = st->member[m].leading;
    if (i == DS__STAGE_NONE)
        return DS_OK;
    ds__stream *s = ds__stream_pin(st->stream[i]);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = s->driver->stream_native(s->native, &out->native);
    ds__stream_unpin(s);
    return r;
}

/* Enqueues an operation and the wait for it. bytes: how much it moves on this rank. */
static ds_result ds__stage_net(ds__stage *st, ds__rop *op, size_t bytes) {
    ds_result r = ds__stage_join(st);
    for (size_t m = 0; op->members && m < st->members && r == DS_OK; m++)
        r = ds__stage_native(st, m, &op->members[m]);
    if (r < 0) {
        ds__rop_give_back(op);
        return r;
    }
    if (DS__UNLIKELY(st->capturing && st->g->engine->enqueue))
        return ds__capture_native(st->stream[st->whole.leading], st->lead, op, bytes);
    if (DS__UNLIKELY(st->capturing))
        return ds__capture_rop(st->stream[st->whole.leading], op, op->used_bytes);
    st->enqueued = 1;
    if (st->members > 1) {
        op->streams = st->stream;
        op->stream_count = st->count;
    }
    return ds__rop_submit(op, st->lead, bytes, NULL);
}

/* Runs a step. tables: tables of parts that each member needs. */
static ds_result ds__stage_step(ds__stage *st, ds__net_kind kind, size_t tables,
                                ds__step_fn *prepare_fn) {
    size_t bytes = tables * ds__parts_bytes(st);
    ds_result r = DS_OK;
    ds__rop *op = ds__stage_op(st, kind, st->members * bytes);
    if (!op)
        return DS_ERR_OUT_OF_MEMORY;
    void *at = ds__behind(op->tables, ds__stage_lists(st));
    st->moved = 0;
    for (size_t m = 0; m < st->members && r == DS_OK; m++) {
        ds__stage_select(st, &st->member[m]);
        r = prepare_fn(st, op->members ? &op->members[m].op : &op->net, ds__behind(at, m * bytes));
    }
    ds__stage_select(st, &st->whole);
    if (r == DS_OK)
        return ds__stage_net(st, op, st->moved);
    ds__rop_give_back(op);
    return r;
}

/* Runs a function for each member, with it selected. */
static ds_result ds__stage_finish(ds__stage *st, ds_result (*finish_fn)(ds__stage *st)) {
    ds_result r = DS_OK;
    for (size_t m = 0; m < st->members && r == DS_OK; m++) {
        ds__stage_select(st, &st->member[m]);
        r = finish_fn(st);
    }
    ds__stage_select(st, &st->whole);
    return r;
}

/* The same for a collective of one step. */
static ds_result ds__stage_run(ds__stage *st, ds__net_kind kind, size_t tables,
                               ds__step_fn *prepare_fn, ds_result (*finish_fn)(ds__stage *st)) {
    ds_result r = ds__stage_step(st, kind, tables, prepare_fn);
    return r == DS_OK ? ds__stage_finish(st, finish_fn) : r;
}

/* Copies the memory of the operation to all outputs of the selected member. */
static ds_result ds__stage_finish_all(ds__stage *st) {
    return ds__stage_spread(st, st->at->to);
}

/* Copies its parts, one behind the other, to the outputs of the selected member. */
static ds_result ds__stage_finish_parts(ds__stage *st) {
    for (size_t i = 0; i < st->outs; i++)
        DS__TRY(ds__stage_unpack(st, &st->out[i],
                                 ds__smem_at(st->at->to, ds__tiles_bytes(st->out, i))));
    return DS_OK;
}

#endif
