/* comm/reduce.h - launches of a reduction.

   ds__comm_reduce combines any number of inputs by kernels, in stream order. It divides them
   into launches of at most DS__COMM_INPUTS inputs. ds__comm_can_reduce returns whether a reduction
   of a data type is supported.

   Invariants: the bits of the result do not depend on the division into launches. Partial
   results lie in the output. If the output is an input of a later launch or too narrow, partial
   results lie in memory of the allocator. That memory is freed in stream order before return.
   With a zero stream handle there are at most DS__COMM_INPUTS inputs (ds__steps_small).
   Locks: takes none; calls the allocator and the driver without a lock. With a zero stream
   handle, ds__comm_reduce may run under the locks of run_together and makes no driver call.
   Threads: any caller's thread. */
#ifndef DS__COMM_REDUCE_H
#define DS__COMM_REDUCE_H

#include "../api/reduce_op.h"
#include "../alloc/internal.h"
#include "kernel_arith.h"
#include "kernel.h"
#include "kernel_all.h"
#include "types.h"

/* Returns 1 if the reduction is supported. */
__attribute__((unused)) static int ds__comm_can_reduce(ds_reduce_op op, ds_dtype dtype) {
    uint32_t o = op == DS_REDUCE_AVERAGE ? DS__COMM_SUM : (uint32_t)op;
    uint64_t per;
    return ds__comm_kind(dtype, &o, op == DS_REDUCE_AVERAGE, &per) >= 0;
}

/* A reduction that is divided into launches. A later launch reads the result of the launch before
   as its first input. */
typedef struct ds__comm_launches {
    ds__comm_reduce_args a; /* of the current launch */
    void *out;
    void *partial; /* memory of partial results; NULL: they are written to `out` */
    const void *const *in;
    size_t inputs;
    size_t done; /* inputs of the launches so far */
    uint32_t divisor;
    int half; /* 1: partial results of f16 and bf16 are f32 */
} ds__comm_launches;

/* Returns 1 if an input from `first` on is the output, or may overlap it. */
static int ds__comm_overlaps(const ds__comm_launches *c, size_t first) {
    for (size_t i = first; i < c->inputs; i++) {
        uintptr_t a = (uintptr_t)c->out;
        uintptr_t b = (uintptr_t)c->in[i];
        if (a < b ? b - a < c->a.bytes : a - b < c->a.bytes)
            return 1;
    }
    return 0;
}

/* Fills in the arguments of the next launch, with as many inputs as it can take. */
static void ds__comm_launch_next(ds__comm_launches *c) {
    ds__comm_reduce_args *a = &c->a;
    a->inputs = 0;
    a->wide = 0;
    if (c->done) {
        a->in.at[a->inputs++] = a->out;
        if (c->half)
            a->wide = DS__COMM_WIDE_IN;
    }
    while (a->inputs < DS__COMM_INPUTS && c->done < c->inputs)
        a->in.at[a->inputs++] = c->in[c->done++];
    for (uint32_t i = a->inputs; i < DS__COMM_INPUTS; i++)
        a->in.at[i] = NULL;
    int is_last = c->done == c->inputs;
    if (!is_last && c->half)
        a->wide |= DS__COMM_WIDE_OUT;
    if (is_last && a->kind > DS__COMM_I64)
        a->divisor = c->divisor;
    a->out = !is_last && c->partial ? c->partial : c->out;
}

/* Runs all launches and, for an average of integers, the division. */
static ds_result ds__comm_launch_all(ds__comm_launches *c, ds_stream stream) {
    const uint64_t bytes = c->a.bytes;
    const uint64_t numbers = bytes / ds__comm_size[c->a.kind];
    ds_result r = DS_OK;
    while (c->done < c->inputs && r == DS_OK) {
        ds__comm_launch_next(c);
        int which = ds__comm_which(c->a.kind, c->a.op, c->a.wide);
        int each = which == DS__COMM_HALVES_CUT || which == DS__COMM_COMPLEX;
        r = ds__comm_launch(which, stream, bytes, each ? numbers : 0, &c->a, sizeof c->a);
    }
    if (r == DS_OK && c->divisor > 1 && c->a.kind <= DS__COMM_I64) {
        ds__comm_divide_args d = { c->out, bytes, c->a.kind, c->divisor };
        r = ds__comm_launch(DS__COMM_DIVIDE, stream, bytes, numbers, &d, sizeof d);
    }
    return r;
}

/* Writes in[0] op in[1] op ... to `out`, in stream order on the stream's device. All operands have
   `count` consecutive elements, aligned to the size of their numbers; `out` may be one of the
   inputs. DS_ERR_UNSUPPORTED: no kernel for the data type. Partial results are written to `out`; if
   a later launch reads `out`, or the partial results are wider, to memory of the allocator. */
static ds_result ds__comm_reduce(ds_stream stream, ds__reduction reduction, void *out,
                                 const void *const *in, size_t inputs, size_t count) {
    ds__comm_launches c = { .out = out, .in = in, .inputs = inputs };
    uint64_t per_element;
    uint32_t divisor = reduction.op == DS_REDUCE_AVERAGE ? (uint32_t)inputs : 0;
    uint32_t op = divisor ? DS__COMM_SUM : (uint32_t)reduction.op;
    int kind = ds__comm_kind(reduction.dtype, &op, divisor, &per_element);
    ds_result r = DS_OK;
    if (kind < 0)
        return ds__fail(DS_ERR_UNSUPPORTED, "this reduction is not supported for the type");
    if (inputs == 0 || inputs > UINT32_MAX)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the reduction has %zu tensors; 1 to 2^32 - 1 are allowed", inputs);
    if (count == 0)
        return DS_OK;
    c.a.bytes = count * per_element * ds__comm_size[kind];
    c.a.masks = ds__comm_masks_of((uint32_t)kind, op);
    c.a.op = op;
    c.a.kind = (uint32_t)kind;
    c.divisor = divisor;
    c.half = (kind == DS__COMM_F16 || kind == DS__COMM_BF16) && op <= DS__COMM_PRODUCT;
    if (inputs > DS__COMM_INPUTS && (c.half || ds__comm_overlaps(&c, DS__COMM_INPUTS))) {
        DS__KEEPING(
            r, (ds_mem_alloc)((size_t)(c.half ? 2 * c.a.bytes : c.a.bytes), stream, &c.partial));
        if (r < 0)
            return r;
    }
    r = ds__comm_launch_all(&c, stream);
    if (c.partial) {
        ds_result freed;
        DS__KEEPING(freed, (ds_mem_free)(c.partial));
        if (r == DS_OK)
            r = freed;
    }
    return r;
}

/* Writes in[0] op in[1] op ... to all outputs by one kernel, in stream order. stream NULL: on the
   calling thread. At most DS__COMM_INPUTS inputs, and as many outputs; no average of integers.
   Otherwise as ds__comm_reduce. */
static ds_result ds__comm_reduce_all(ds__stream *stream, ds__reduction reduction,
                                     const void *const *in, const void *const *out, size_t n,
                                     size_t count) {
    ds__reduce_all_args a = { .outs = n };
    uint64_t per_element;
    uint32_t divisor = reduction.op == DS_REDUCE_AVERAGE ? (uint32_t)n : 0;
    uint32_t op = divisor ? DS__COMM_SUM : (uint32_t)reduction.op;
    int kind = ds__comm_kind(reduction.dtype, &op, divisor, &per_element);
    a.reduce.bytes = count * per_element * ds__comm_size[kind];
    a.reduce.masks = ds__comm_masks_of((uint32_t)kind, op);
    a.reduce.inputs = (uint32_t)n;
    a.reduce.op = op;
    a.reduce.divisor = divisor;
    a.reduce.kind = (uint32_t)kind;
    for (size_t i = 0; i < n; i++) {
        a.reduce.in.at[i] = in[i];
        a.out[i] = (char *)(uintptr_t)out[i];
    }
    size_t items = (size_t)((a.reduce.bytes + DS__COMM_ITEM - 1) / DS__COMM_ITEM);
    if (!stream) {
        (void)ds__reduce_all_items(0, items, &a);
        return DS_OK;
    }
    ds__op kernel = ds__op_init(DS__OP_KERNEL);
    kernel.u.kernel.kernel = &ds__reduce_all_kernel;
    kernel.u.kernel.items = items;
    kernel.u.kernel.args_size = sizeof a;
    kernel.u.kernel.args = &a;
    kernel.u.kernel.grid = NULL;
    return ds__stream_submit(stream, &kernel);
}

#endif
