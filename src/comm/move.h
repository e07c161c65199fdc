/* comm/move.h - copies between strided tensors.

   Translates a copy between two tensors of one shape into steps (ds__copy_add,
   ds__copy_participant). The copy becomes one plain copy, one copy of rows, one strided copy by a
   kernel, or several of these. If kernels of the lane cannot use both memories, ds__copy_add packs
   the elements at the source, copies one block and unpacks at the destination. ds__party_part
   describes a part of a participant along one dimension.

   Invariants: the lane belongs to the source or to the destination. Strides are in elements. A
   strided copy has at most eight dimensions. A copy of rows has no pitch above INT32_MAX,
   because cudaMemcpy2DAsync accepts none (cudaDevAttrMaxPitch).
   Locks: takes none and expects none; ds__step_reaches asks the driver for peer access.
   Threads: caller's threads, each with its own ds__work. */
#ifndef DS__COMM_MOVE_H
#define DS__COMM_MOVE_H

#include "../tensor/internal.h"
#include "types.h"
#include "step.h"

/* A copy between strides in bytes: `width` bytes that lie together on both sides, ndim times. */
typedef struct ds__moves {
    ds__location dst;
    ds__location src;
    uint32_t lane;
    uint32_t last; /* the last step that was made */
    size_t item;
    size_t width;
    int ndim;
    int kernel; /* 1: a kernel may do the copy */
    int64_t shape[DS_TENSOR_MAX_DIMS];
    int64_t to[DS_TENSOR_MAX_DIMS];
    int64_t from[DS_TENSOR_MAX_DIMS];
} ds__moves;

/* Sorted by the distances of the destination, and as few dimensions as there can be. */
static void ds__moves_plan(ds__moves *m, int ndim, const int64_t *shape, const int64_t *to,
                           const int64_t *from, size_t item) {
    int n = 0;
    m->item = m->width = item;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 1)
            continue;
        int at = n++;
        int64_t t = to[d] * (int64_t)item;
        int64_t f = from[d] * (int64_t)item;
        for (; at > 0 && llabs(m->to[at - 1]) < llabs(t); at--) {
            m->shape[at] = m->shape[at - 1];
            m->to[at] = m->to[at - 1];
            m->from[at] = m->from[at - 1];
        }
        m->shape[at] = shape[d];
        m->to[at] = t;
        m->from[at] = f;
    }
    int kept = 0; /* what is one with the dimension inside of it is merged */
    for (int d = 0; d < n; d++) {
        if (kept && m->to[kept - 1] == m->to[d] * m->shape[d] &&
            m->from[kept - 1] == m->from[d] * m->shape[d]) {
            m->shape[kept - 1] *= m->shape[d];
        } else {
            m->shape[kept] = m->shape[d];
            kept++;
        }
        m->to[kept - 1] = m->to[d];
        m->from[kept - 1] = m->from[d];
    }
    if (kept && m->to[kept - 1] == (int64_t)item && m->from[kept - 1] == (int64_t)item)
        m->width = item * (size_t)m->shape[--kept];
    m->ndim = kept;
}

/* 1: one copy does it, of rows at most. */
static int ds__moves_simple(const ds__moves *m) {
    return m->ndim == 0 ||
           (m->ndim == 1 && m->to[0] >= (int64_t)m->width && m->from[0] >= (int64_t)m->width);
}

/* Dimensions from `dim` on, with the others at fixed indices. */
static void ds__moves_make(ds__work *w, ds__moves *m, int dim, ptrdiff_t to, ptrdiff_t from) {
    int n = m->ndim - dim;
    int rows = n == 1 && m->to[dim] >= (int64_t)m->width && m->from[dim] >= (int64_t)m->width;
    /* cudaMemcpy2DAsync takes no larger pitch (cudaDevAttrMaxPitch) */
    rows = rows && m->to[dim] <= INT32_MAX && m->from[dim] <= INT32_MAX;
    ds__location dst = { m->dst.region, m->dst.offset + to };
    ds__location src = { m->src.region, m->src.offset + from };
    if (w->r < 0)
        return;
    if (n == 0 || (rows && (!m->kernel || m->width >= 256))) {
        uint32_t i = m->last =
            ds__step_add(w, n ? DS__STEP_ROWS : DS__STEP_COPY, m->lane, dst, src);
        if (i == DS__NO_INDEX)
            return;
        w->step[i].width = m->width;
        w->step[i].height = n ? (size_t)m->shape[dim] : 1;
        w->step[i].dst_pitch = n ? (size_t)m->to[dim] : m->width;
        w->step[i].src_pitch = n ? (size_t)m->from[dim] : m->width;
        return;
    }
    int inner = m->width > m->item;
    int64_t item = (int64_t)m->item;
    if (m->kernel && n + inner <= 8) {
        ds__strided *k = DS__MORE(w, strided);
        uint32_t i = m->last = k ? ds__step_add(w, DS__STEP_PACK, m->lane, dst, src) : DS__NO_INDEX;
        if (i == DS__NO_INDEX)
            return;
        w->step[i].strided = (uint32_t)w->strideds - 1;
        k->ndim = n + inner;
        k->item = m->item;
        for (int d = 0; d < n; d++) {
            k->shape[d] = m->shape[dim + d];
            k->dst[d] = m->to[dim + d] / item;
            k->src[d] = m->from[dim + d] / item;
        }
        if (inner) {
            k->shape[n] = (int64_t)m->width / item;
            k->dst[n] = k->src[n] = 1;
        }
        return;
    }
    for (int64_t i = 0; i < m->shape[dim] && w->r == DS_OK; i++)
        ds__moves_make(w, m, dim + 1, to + (ptrdiff_t)(i * m->to[dim]),
                       from + (ptrdiff_t)(i * m->from[dim]));
}

/* Copies a tensor of this shape from one place with its strides to another, on the lane, which
   is that of one of the two. The last step, or DS__NO_INDEX. */
static uint32_t ds__copy_add(ds__work *w, uint32_t lane, ds__location dst, const int64_t *to,
                             ds__location src, const int64_t *from, int ndim, const int64_t *shape,
                             size_t item) {
    ds__moves m;
    int64_t row[DS_TENSOR_MAX_DIMS];
    int64_t count = ds__count_of(ndim, shape);
    if (w->r < 0 || !count)
        return DS__NO_INDEX;
    ds__moves_plan(&m, ndim, shape, to, from, item);
    m.dst = dst;
    m.src = src;
    m.lane = lane;
    m.last = DS__NO_INDEX;
    m.kernel =
        m.ndim && ds__step_reaches(w, lane, dst.region) && ds__step_reaches(w, lane, src.region);
    const ds__region *d = &w->region[dst.region];
    const ds__region *s = &w->region[src.region];
    uint32_t at_dst = d->lane;
    uint32_t at_src = s->lane;
    if (ds__moves_simple(&m) || m.kernel || d->device.type == DS_DEVICE_HOST ||
        s->device.type == DS_DEVICE_HOST) {
        ds__moves_make(w, &m, 0, 0, 0);
        return m.last;
    }
    /* Devices that cannot reach each other: packed here, copied, unpacked there. */
    size_t bytes = (size_t)count * item;
    ds__row_major(ndim, shape, row);
    ds__moves_plan(&m, ndim, shape, row, from, item);
    if (m.ndim) {
        ds__location packed = { ds__step_temporary_add(w, at_src, bytes), 0 };
        ds__come_after(w, lane, ds__copy_add(w, at_src, packed, row, src, from, ndim, shape, item));
        src = packed;
    }
    ds__moves_plan(&m, ndim, shape, to, row, item);
    ds__location there =
        m.ndim ? (ds__location){ ds__step_temporary_add(w, at_dst, bytes), 0 } : dst;
    uint32_t i = ds__step_add(w, DS__STEP_COPY, lane, there, src);
    if (i == DS__NO_INDEX)
        return i;
    w->step[i].width = w->step[i].dst_pitch = w->step[i].src_pitch = bytes;
    w->step[i].height = 1;
    if (!m.ndim)
        return i;
    ds__come_after(w, at_dst, i);
    return ds__copy_add(w, at_dst, dst, to, there, row, ndim, shape, item);
}

static ds__location ds__location_of(const ds__participant *p) {
    return (ds__location){ p->region, 0 };
}

/* One party's tensor to another party's, which has the same shape. */
static uint32_t ds__copy_participant(ds__work *w, uint32_t lane, const ds__participant *to,
                                     const ds__participant *from) {
    return ds__copy_add(w, lane, ds__location_of(to), to->d.strides, ds__location_of(from),
                        from->d.strides, to->d.ndim, to->d.shape, to->d.item);
}

static uint32_t ds__lane_of(const ds__work *w, const ds__participant *p) {
    return w->region[p->region].lane;
}

/* A part of a party along a dimension, which moves on by its size. */
static ds__participant ds__party_part(const ds__participant *p, int dim, int64_t *at,
                                      int64_t size) {
    ds__participant part;
    part.lane = p->lane;
    part.region = p->region;
    part.flags = p->flags;
    part.d.first = p->d.first;
    part.d.device = p->d.device;
    part.d.given = p->d.given;
    part.d.dtype = p->d.dtype;
    part.d.ndim = p->d.ndim;
    part.d.item = p->d.item;
    part.d.low = p->d.low;
    part.d.high = p->d.high;
    for (int i = 0; i < p->d.ndim; i++) {
        part.d.shape[i] = p->d.shape[i];
        part.d.strides[i] = p->d.strides[i];
    }
    part.d.shape[dim] = size;
    ds__dims_recount(&part.d);
    part.d.bytes = (size_t)part.d.count * part.d.item;
    ds__dims_move(&part.d, dim, *at);
    *at += size;
    return part;
}

static ds__location ds__location_in(const ds__work *w, const ds__participant *part) {
    return (ds__location){ part->region,
                           part->d.count ? part->d.first - w->region[part->region].at : 0 };
}

#endif
