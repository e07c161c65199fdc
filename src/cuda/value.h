/* cuda/value.h - waits for values in memory, and writes of values.

   Translates operations on words into those of CUDA's driver (ds__cuda_values_fill), and enqueues a
   batch (ds__cuda_values) or puts it into a node (ds__cuda_put_values).

   Invariants: the core has checked the list. A node has the current context of its device.
   Locks: none. A full hardware queue can make cuStreamBatchMemOp wait.
   Threads: any. */
#ifndef DS__CUDA_VALUE_H
#define DS__CUDA_VALUE_H

#include "types.h"
#include "call.h"
#include "graph_types.h"

static void ds__cuda_values_fill(const ds__op *op, ds__cuda_value *out) {
    /* CUstreamWaitValue_flags: CU_STREAM_WAIT_VALUE_GEQ, EQ, AND, NOR */
    static const unsigned conditions[] = { [DS_VALUE_WAIT_GEQ] = 0,
                                           [DS_VALUE_WAIT_EQ] = 1,
                                           [DS_VALUE_WAIT_AND] = 2,
                                           [DS_VALUE_WAIT_NOR] = 3 };
    for (size_t i = 0; i < op->u.values.count; i++) {
        const ds_value_op *v = &op->u.values.list[i];
        memset(&out[i], 0, sizeof out[i]);
        out[i].operation =
            (v->kind == DS_VALUE_WRITE ? DS__CUDA_WRITE_VALUE : DS__CUDA_WAIT_VALUE) +
            (v->size == 8 ? DS__CUDA_WIDE : 0);
        out[i].address = (uintptr_t)v->address;
        out[i].value = v->value;
        out[i].flags = conditions[v->kind];
    }
}

/* Enqueues operations on words in a scope of the stream. */
static ds_result ds__cuda_values_in(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                    const ds__op *op) {
    ds__cuda_value list[DS_VALUE_BATCH_MAX];
    ds_result r;
    ds__cuda_values_fill(op, list);
    DS__DR(*scope, r, cuStreamBatchMemOp, (s->handle, (unsigned)op->u.values.count, list, 0));
    return r;
}

static ds_result ds__cuda_values(const ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_values_in(&scope, s, op);
    ds__cuda_scope_end(&scope);
    return r;
}

/* Adds a node of operations on words, which *node becomes, or sets *node. The device of the node is
   current. */
static ds_result ds__cuda_put_values(const ds__cuda_scope *scope, const ds__op *op,
                                     const ds__cuda_target *to, cudaGraphNode_t *node) {
    ds__cuda_value list[DS_VALUE_BATCH_MAX];
    ds__cuda_values_params p = { .count = (unsigned)op->u.values.count, .list = list };
    ds_result r;
    ds__cuda_values_fill(op, list);
    DS__DR(*scope, r, cuCtxGetCurrent, (&p.context));
    if (r < 0)
        return r;
    if (to->graph)
        DS__DR(*scope, r, cuGraphAddBatchMemOpNode, (node, to->graph, to->after, to->count, &p));
    else if (to->exec)
        DS__DR(*scope, r, cuGraphExecBatchMemOpNodeSetParams, (to->exec, *node, &p));
    else
        DS__DR(*scope, r, cuGraphBatchMemOpNodeSetParams, (*node, &p));
    return r;
}

#endif
