/* comm/reduce.h - launches of a reduction.

   ds__comm_reduce combines any number of inputs by kernels, in stream order. It divides them
   into launches of at most DS__COMM_INPUTS inputs. ds__comm_can_reduce tells whether there is a
   reduction of a data type.

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

/* 1: there is a reduction of this type. */
__attribute__((unused)) static int ds__comm_can_reduce(ds_reduce_op op, ds_dtype dtype) {
    uint32_t o = op == DS_REDUCE_AVERAGE ? DS__COMM_SUM : (uint32_t)op;
    uint64_t per;
    return ds__comm_kind(dtype, &o, op == DS_REDUCE_AVERAGE, &per) >= 0;
}

/* The first of the inputs after `first` that is `out`, or may overlap it. */
static int ds__comm_overlaps(const void *out, const void *const *in, size_t first, size_t inputs,
                             uint64_t bytes) {
    for (size_t i = first; i < inputs; i++) {
        uintptr_t a = (uintptr_t)out;
        uintptr_t b = (uintptr_t)in[i];
        if (a < b ? b - a < bytes : a - b < bytes)
            return 1;
    }
    return 0;
}

/* out = in[0] op in[1] op ..., elements next to each other, in stream order on the stream's
   device; out may be one of the inputs. Numbers lie on multiples of their size. What there is no
   reduction of is DS_ERR_UNSUPPORTED. Every launch takes as many inputs as it can; what one
   gives to the next lies in `out`, or, when that is still to be read or too narrow, in memory of
   the allocator's. */
static ds_result ds__comm_reduce(ds_stream stream, ds_reduce_op op, ds_dtype dtype, void *out,
                                 const void *const *in, size_t inputs, size_t count) {
    ds__comm_reduce_args a;
    uint64_t per_element;
    uint64_t bytes;
    uint32_t divisor = op == DS_REDUCE_AVERAGE ? (uint32_t)inputs : 0;
    uint32_t o = divisor ? DS__COMM_SUM : (uint32_t)op;
    int kind = ds__comm_kind(dtype, &o, divisor, &per_element);
    void *partial = NULL;
    ds_result r = DS_OK;
    if (kind < 0)
        return ds__fail(DS_ERR_UNSUPPORTED, "this reduction is not supported for the type");
    if (inputs == 0 || inputs > UINT32_MAX)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the reduction has %zu tensors; 1 to 2^32 - 1 are allowed", inputs);
    if (count == 0)
        return DS_OK;
    bytes = count * per_element * ds__comm_size[kind];
    int half = (kind == DS__COMM_F16 || kind == DS__COMM_BF16) && o <= DS__COMM_PRODUCT;
    if (inputs > DS__COMM_INPUTS &&
        (half || ds__comm_overlaps(out, in, DS__COMM_INPUTS, inputs, bytes))) {
        DS__KEEPING(r, (ds_mem_alloc)((size_t)(half ? 2 * bytes : bytes), stream, &partial));
        if (r < 0)
            return r;
    }
    memset(&a, 0, sizeof a);
    a.bytes = bytes;
    a.masks = ds__comm_masks_of((uint32_t)kind, o);
    a.op = o;
    a.kind = (uint32_t)kind;
    for (size_t done = 0; done < inputs && r == DS_OK;) {
        a.inputs = 0;
        a.wide = 0;
        if (done) {
            a.in.at[a.inputs++] = a.out;
            if (half)
                a.wide = DS__COMM_WIDE_IN;
        }
        while (a.inputs < DS__COMM_INPUTS && done < inputs)
            a.in.at[a.inputs++] = in[done++];
        for (uint32_t i = a.inputs; i < DS__COMM_INPUTS; i++)
            a.in.at[i] = NULL;
        if (done < inputs && half)
            a.wide |= DS__COMM_WIDE_OUT;
        if (done == inputs && kind > DS__COMM_I64)
            a.divisor = divisor;
        a.out = done < inputs && partial ? partial : out;
        int which = ds__comm_which(a.kind, a.op, a.wide);
        r = ds__comm_launch(which, stream, bytes,
                            which == DS__COMM_HALVES_CUT || which == DS__COMM_COMPLEX
                                ? bytes / ds__comm_size[kind]
                                : 0,
                            &a, sizeof a);
    }
    if (r == DS_OK && divisor > 1 && kind <= DS__COMM_I64) {
        ds__comm_divide_args d = { out, bytes, (uint32_t)kind, divisor };
        r = ds__comm_launch(DS__COMM_DIVIDE, stream, bytes, bytes / ds__comm_size[kind], &d,
                            sizeof d);
    }
    if (partial) {
        ds_result freed;
        DS__KEEPING(freed, (ds_mem_free)(partial));
        if (r == DS_OK)
            r = freed;
    }
    return r;
}

#endif
