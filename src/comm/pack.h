/* comm/pack.h - launch of the strided copy.

   ds__comm_pack copies elements of any size between any strides by a kernel, in stream order. It
   merges the dimensions and chooses the widest possible element before it launches.

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

/* The dimensions of a copy, while they are made as few and wide as they can be. */
typedef struct ds__comm_shape {
    int ndim;
    uint64_t size[DS_TENSOR_MAX_DIMS + 1];
    int64_t dst[DS_TENSOR_MAX_DIMS + 1]; /* in bytes */
    int64_t src[DS_TENSOR_MAX_DIMS + 1]; /* in bytes */
} ds__comm_shape;

/* Those of one element go; the others are ordered so that the result is written forwards as far
   as can be, and those that lie without a gap one after the other, on both sides, become one.
   The innermost is the bytes of an element. */
static void ds__comm_merge(ds__comm_shape *s) {
    int n = 0;
    for (int i = 0; i < s->ndim; i++) {
        uint64_t size = s->size[i];
        int64_t dst = s->dst[i];
        int64_t src = s->src[i];
        int at = n;
        if (size == 1)
            continue;
        /* insertion, among those that are there; the innermost stays */
        if (i < s->ndim - 1)
            for (; at > 0 &&
                   (s->dst[at - 1] < 0 ? -s->dst[at - 1] : s->dst[at - 1]) < (dst < 0 ? -dst : dst);
                 at--) {
                s->size[at] = s->size[at - 1];
                s->dst[at] = s->dst[at - 1];
                s->src[at] = s->src[at - 1];
            }
        s->size[at] = size;
        s->dst[at] = dst;
        s->src[at] = src;
        n++;
    }
    s->ndim = 0;
    for (int i = 0; i < n; i++) {
        int last = s->ndim - 1;
        if (last >= 0 && s->dst[last] == (int64_t)s->size[i] * s->dst[i] &&
            s->src[last] == (int64_t)s->size[i] * s->src[i]) {
            s->size[last] *= s->size[i];
            s->dst[last] = s->dst[i];
            s->src[last] = s->src[i];
        } else {
            s->size[s->ndim] = s->size[i];
            s->dst[s->ndim] = s->dst[i];
            s->src[s->ndim++] = s->src[i];
        }
    }
}

/* Bytes that are copied at once: 16, or fewer where a run, a distance or an address is no
   multiple. Shortens the innermost dimension. */
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

/* dst = src, of one shape, element by element: strides in elements, any, elements of any size;
   not overlapping. In stream order on the stream's device. A pointer that a graph puts in the
   place of one of these later must lie as far from a multiple of 16 as that. */
static ds_result ds__comm_pack(ds_stream stream, size_t size, void *dst, const int64_t *dst_strides,
                               const void *src, const int64_t *src_strides, const int64_t *shape,
                               int ndim) {
    ds__comm_shape s;
    ds__comm_pack_args a;
    uint64_t launches = 1;
    uint64_t elements = 1;
    ds_result r = DS_OK;
    s.ndim = ndim + 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0)
            return DS_OK;
        s.size[i] = (uint64_t)shape[i];
        s.dst[i] = dst_strides[i] * (int64_t)size;
        s.src[i] = src_strides[i] * (int64_t)size;
    }
    s.size[ndim] = size;
    s.dst[ndim] = s.src[ndim] = 1;
    ds__comm_merge(&s);
    memset(&a, 0, sizeof a);
    a.size = ds__comm_widen(&s, dst, src);
    /* a launch for each place of these */
    int outer = s.ndim > DS__COMM_DIMS ? s.ndim - DS__COMM_DIMS : 0;
    for (int i = 0; i < outer; i++)
        launches *= s.size[i];
    if (s.ndim == 0) {
        s.size[0] = 1;
        s.dst[0] = s.src[0] = 0;
        s.ndim = 1;
    }
    a.ndim = (uint32_t)(s.ndim - outer);
    for (int i = outer; i < s.ndim; i++) {
        a.dims.size[i - outer] = s.size[i];
        a.dims.dst[i - outer] = s.dst[i];
        a.dims.src[i - outer] = s.src[i];
        elements *= s.size[i];
    }
    a.elements = elements;
    for (uint64_t n = 0; n < launches && r == DS_OK; n++) {
        uint64_t rest = n;
        a.dst = dst;
        a.src = src;
        for (int i = outer; i-- > 0; rest /= s.size[i]) {
            a.dst += (int64_t)(rest % s.size[i]) * s.dst[i];
            a.src += (int64_t)(rest % s.size[i]) * s.src[i];
        }
        r = ds__comm_launch(DS__COMM_PACK, stream, elements * a.size, elements, &a, sizeof a);
    }
    return r;
}

#endif
