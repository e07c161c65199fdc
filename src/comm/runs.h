/* comm/runs.h - a strided copy as runs of bytes.

   Translates a copy between two tensors of one shape (ds__comm_copy) into runs of consecutive bytes
   with as few dimensions as possible (ds__runs_of). move.h chooses the steps of a collective from
   the runs, and pack.h the form of a kernel launch. ds__runs_observe describes the memory of a
   tensor for observers.

   Invariants: no dimension has the size 1. The dimensions are sorted by the strides of the
   destination, the largest first, so that the destination is written forwards. No two adjacent
   dimensions lie like a single one on both sides.
   Locks: none.
   Threads: any; the functions have no state. */
#ifndef DS__COMM_RUNS_H
#define DS__COMM_RUNS_H

#include "../api/tensor.h"
#include "../base/observe.h"
#include "../os/os.h"

/* A copy of ndim dimensions of elements of `item` bytes; strides in elements. */
typedef struct ds__comm_copy {
    size_t item;
    int ndim;
    const int64_t *shape;
    const int64_t *dst;
    const int64_t *src;
} ds__comm_copy;

/* The same copy as ndim dimensions of runs of `width` bytes; strides in bytes. */
typedef struct ds__runs {
    size_t width;
    int ndim;
    int64_t shape[DS_TENSOR_MAX_DIMS];
    int64_t dst[DS_TENSOR_MAX_DIMS];
    int64_t src[DS_TENSOR_MAX_DIMS];
} ds__runs;

/* Sorts the dimensions by insertion, without those of size 1. */
static inline void ds__runs_sort(const ds__comm_copy *c, ds__runs *m) {
    int64_t item = (int64_t)c->item;
    m->ndim = 0;
    for (int d = 0; d < c->ndim; d++) {
        if (c->shape[d] == 1)
            continue;
        int at = m->ndim++;
        int64_t dst = c->dst[d] * item;
        for (; at > 0 && llabs(m->dst[at - 1]) < llabs(dst); at--) {
            m->shape[at] = m->shape[at - 1];
            m->dst[at] = m->dst[at - 1];
            m->src[at] = m->src[at - 1];
        }
        m->shape[at] = c->shape[d];
        m->dst[at] = dst;
        m->src[at] = c->src[d] * item;
    }
}

/* Merges each dimension with the next inner one if both sides allow it, and the innermost one with
   the run. */
static inline void ds__runs_merge(ds__runs *m, size_t item) {
    int kept = 0;
    for (int d = 0; d < m->ndim; d++) {
        if (kept && m->dst[kept - 1] == m->dst[d] * m->shape[d] &&
            m->src[kept - 1] == m->src[d] * m->shape[d])
            m->shape[kept - 1] *= m->shape[d];
        else
            m->shape[kept++] = m->shape[d];
        m->dst[kept - 1] = m->dst[d];
        m->src[kept - 1] = m->src[d];
    }
    m->width = item;
    if (kept && m->dst[kept - 1] == (int64_t)item && m->src[kept - 1] == (int64_t)item)
        m->width *= (size_t)m->shape[--kept];
    m->ndim = kept;
}

static void ds__runs_of(const ds__comm_copy *c, ds__runs *out) {
    ds__runs_sort(c, out);
    ds__runs_merge(out, c->item);
}

/* Describes the memory of a tensor whose first element is at `first` as runs of bytes, with strides
   greater than 0. tensor: its shape, and its strides as those of the source. m: memory of the
   description. */
__attribute__((cold, noinline)) static void ds__runs_observe(const ds__comm_copy *tensor,
                                                             const char *first, ds__runs *m,
                                                             ds__seen_operand *o) {
    int64_t strides[DS_TENSOR_MAX_DIMS];
    int64_t shape[DS_TENSOR_MAX_DIMS];
    ptrdiff_t low = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        int64_t stride = tensor->src[i];
        shape[i] = stride ? tensor->shape[i] : 1; /* elements at one address are one */
        strides[i] = stride < 0 ? -stride : stride;
        if (stride < 0)
            low += (shape[i] - 1) * stride * (int64_t)tensor->item;
    }
    ds__comm_copy copy = { tensor->item, tensor->ndim, shape, strides, strides };
    ds__runs_of(&copy, m);
    o->ptr = first + low;
    o->width = m->width;
    o->ndim = m->ndim;
    o->shape = m->shape;
    o->strides = m->dst;
}

#endif
