/* comm/pack.h - launch of the strided copy.

   ds__comm_pack copies elements of any size between any strides by a kernel, in stream order. It
   chooses the widest possible element for the kernel before it launches. For device code, it also
   prepares factors that take the place of divisions (ds__comm_pack_narrow).

   Invariants: source and destination do not overlap. Dimensions beyond DS__COMM_DIMS, the
   outermost ones, cost one launch for each of their positions. If a stream handle is zero, the
   calling thread copies at once.
   Locks: takes none. With a zero stream handle, ds__comm_pack may run under the locks of
   run_together and makes no driver call.
   Threads: any caller's thread. */
#ifndef DS__COMM_PACK_H
#define DS__COMM_PACK_H

#include "../api/tensor.h"
#include "kernel_arith.h"
#include "kernel.h"
#include "runs.h"

/* Dimensions of a copy, the innermost last; strides in bytes. */
typedef struct ds__comm_shape {
    int ndim;
    uint64_t size[DS_TENSOR_MAX_DIMS + 1];
    int64_t dst[DS_TENSOR_MAX_DIMS + 1];
    int64_t src[DS_TENSOR_MAX_DIMS + 1];
} ds__comm_shape;

/* The dimensions of the runs and, last, the bytes of a run. */
static void ds__comm_shape_of(const ds__comm_copy *c, ds__comm_shape *s) {
    ds__runs m;
    ds__runs_of(c, &m);
    for (int i = 0; i < m.ndim; i++) {
        s->size[i] = (uint64_t)m.shape[i];
        s->dst[i] = m.dst[i];
        s->src[i] = m.src[i];
    }
    s->ndim = m.ndim + (m.width > 1);
    s->size[m.ndim] = m.width;
    s->dst[m.ndim] = s->src[m.ndim] = 1;
}

/* Returns the bytes of the kernel's element: 16, or less if a run, a stride or an address is not a
   multiple of 16. Divides the innermost dimension by it. */
static uint32_t ds__comm_widen(ds__comm_shape *s, const void *dst, const void *src) {
    int last = s->ndim - 1;
    uint64_t bits = (uintptr_t)dst | (uintptr_t)src | 16;
    uint32_t size = 1;
    if (last < 0 || s->dst[last] != 1 || s->src[last] != 1)
        return 1;
    bits |= s->size[last];
    for (int i = 0; i < last; i++)
        bits |= (uint64_t)s->dst[i] | (uint64_t)s->src[i];
    while (!(bits & size))
        size *= 2;
    s->size[last] /= size;
    s->dst[last] = s->src[last] = (int64_t)size;
    if (s->size[last] == 1)
        s->ndim--;
    return size;
}

/* Fills in the inner dimensions of the kernel's arguments, from `outer` on; at least one. */
static void ds__comm_pack_dims(ds__comm_pack_args *a, const ds__comm_shape *s, int outer) {
    a->elements = 1;
    a->ndim = (uint32_t)(s->ndim - outer);
    for (int i = outer; i < s->ndim; i++) {
        a->dims.size[i - outer] = s->size[i];
        a->dims.dst[i - outer] = s->dst[i];
        a->dims.src[i - outer] = s->src[i];
        a->elements *= s->size[i];
    }
    if (s->ndim == 0) {
        a->dims.size[0] = 1;
        a->ndim = 1;
    }
}

/* Fills in dims.narrow for the device code that does not divide, if there are fewer than 2^31
   elements and the strides have 32 bits. The divisor d has the shift s = ceil(log2 d) and the
   factor 2^32 (2^s - d) / d + 1. The outermost size is no divisor. */
static void ds__comm_pack_narrow(ds__comm_pack_args *a) {
    a->narrow = a->elements >> 31 == 0;
    for (uint32_t k = 0; k < a->ndim && a->narrow; k++) {
        ds__comm_narrow_dim *n = &a->dims.narrow[k ? a->ndim - k : 0];
        uint64_t d = a->dims.size[k];
        n->size = (uint32_t)d;
        n->dst = (int32_t)a->dims.dst[k];
        n->src = (int32_t)a->dims.src[k];
        if (n->dst != a->dims.dst[k] || n->src != a->dims.src[k])
            a->narrow = 0;
        if (k == 0)
            continue;
        n->shift = d > 1 ? 64 - (uint32_t)__builtin_clzll(d - 1) : 0;
        n->magic = (uint32_t)(((((uint64_t)1 << n->shift) - d) << 32) / d + 1);
    }
}

/* Copies in stream order on the stream's device. Strides may have any value and elements any size.
   If a graph replaces one of the addresses later, the new address must have the same distance to a
   multiple of 16. */
static ds_result ds__comm_pack(ds_stream stream, void *dst, const void *src,
                               const ds__comm_copy *copy) {
    ds__comm_shape s;
    ds__comm_pack_args a;
    uint64_t launches = 1;
    ds_result r = DS_OK;
    for (int i = 0; i < copy->ndim; i++)
        if (copy->shape[i] == 0)
            return DS_OK;
    ds__comm_shape_of(copy, &s);
    memset(&a, 0, sizeof a);
    a.size = ds__comm_widen(&s, dst, src);
    int outer = s.ndim > DS__COMM_DIMS ? s.ndim - DS__COMM_DIMS : 0;
    for (int i = 0; i < outer; i++)
        launches *= s.size[i];
    ds__comm_pack_dims(&a, &s, outer);
    ds__comm_pack_narrow(&a);
    for (uint64_t n = 0; n < launches && r == DS_OK; n++) {
        uint64_t rest = n;
        a.dst = dst;
        a.src = src;
        for (int i = outer; i-- > 0; rest /= s.size[i]) {
            a.dst += (int64_t)(rest % s.size[i]) * s.dst[i];
            a.src += (int64_t)(rest % s.size[i]) * s.src[i];
        }
        r = ds__comm_launch(DS__COMM_PACK, stream, a.elements * a.size, a.elements, &a, sizeof a);
    }
    return r;
}

#endif
