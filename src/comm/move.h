/* comm/move.h - copies between strided tensors.

   Translates a copy between two tensors of one shape into steps (ds__copy_add,
   ds__copy_participant). The copy becomes one plain copy, one copy of rows, one strided copy by a
   kernel, or several of these. If kernels of the lane cannot use both memories, ds__copy_add packs
   the elements at the source, copies one block and unpacks at the destination.
   ds__participant_slice describes a part of a participant along one dimension.

   Invariants: the lane belongs to the source or to the destination. Strides are in elements. A
   strided copy has at most eight dimensions. A copy of rows has no pitch above INT32_MAX,
   because cudaMemcpy2DAsync accepts none (cudaDevAttrMaxPitch).
   Locks: takes none and expects none; ds__step_reaches asks the driver for peer access.
   Threads: caller's threads, each with its own ds__work. */
#ifndef DS__COMM_MOVE_H
#define DS__COMM_MOVE_H

#include "../tensor/internal.h"
#include "runs.h"
#include "types.h"
#include "step.h"

/* A copy that is translated into steps. */
typedef struct ds__moves {
    ds__runs runs;
    uint32_t lane;
    uint32_t last; /* the last step; DS__NO_INDEX: none */
    size_t item;
    int kernel; /* 1: kernels of the lane can use both memories */
} ds__moves;

/* Returns 1 if the dimension may be the rows of a driver's copy. */
static int ds__moves_has_rows(const ds__moves *m, int dim) {
    int64_t dst = m->runs.dst[dim];
    int64_t src = m->runs.src[dim];
    int64_t width = (int64_t)m->runs.width;
    return dst >= width && src >= width && dst <= INT32_MAX && src <= INT32_MAX;
}

/* Returns 1 if one step of the driver does the whole copy, except for the limit of the pitch. */
static int ds__moves_is_simple(const ds__moves *m) {
    const ds__runs *n = &m->runs;
    return n->ndim == 0 ||
           (n->ndim == 1 && n->dst[0] >= (int64_t)n->width && n->src[0] >= (int64_t)n->width);
}

/* Appends a copy of the rows of the last dimension. */
static void ds__moves_add_rows(ds__work *w, ds__moves *m, ds__location dst, ds__location src) {
    int dim = m->runs.ndim - 1;
    uint32_t i = m->last = ds__step_add(w, DS__STEP_ROWS, m->lane, dst, src);
    if (i == DS__NO_INDEX)
        return;
    w->step[i].width = m->runs.width;
    w->step[i].height = (size_t)m->runs.shape[dim];
    w->step[i].dst_pitch = (size_t)m->runs.dst[dim];
    w->step[i].src_pitch = (size_t)m->runs.src[dim];
}

/* Appends a strided copy of the dimensions from `dim` on. A run of several elements is its last
   dimension. */
static void ds__moves_add_pack(ds__work *w, ds__moves *m, int dim, ds__location dst,
                               ds__location src) {
    int64_t item = (int64_t)m->item;
    ds__strided *k = DS__MORE(w, strided);
    uint32_t i = m->last = k ? ds__step_add(w, DS__STEP_PACK, m->lane, dst, src) : DS__NO_INDEX;
    if (i == DS__NO_INDEX)
        return;
    w->step[i].strided = (uint32_t)w->strideds - 1;
    k->ndim = 0;
    k->item = m->item;
    for (int d = dim; d < m->runs.ndim; d++, k->ndim++) {
        k->shape[k->ndim] = m->runs.shape[d];
        k->dst[k->ndim] = m->runs.dst[d] / item;
        k->src[k->ndim] = m->runs.src[d] / item;
    }
    if (m->runs.width > m->item) {
        k->shape[k->ndim] = (int64_t)m->runs.width / item;
        k->dst[k->ndim] = k->src[k->ndim] = 1;
        k->ndim++;
    }
}

/* Appends the steps for the dimensions from `dim` on. A dimension that no step can take becomes one
   copy for each of its indices. */
static void ds__moves_add(ds__work *w, ds__moves *m, int dim, ds__location dst, ds__location src) {
    enum { WIDE_ROW = 256 }; /* bytes; kernels copy only shorter rows */

    int n = m->runs.ndim - dim;
    if (w->r < 0)
        return;
    if (n == 0) {
        m->last = ds__step_copy_add(w, m->lane, dst, src, m->runs.width);
        return;
    }
    if (n == 1 && ds__moves_has_rows(m, dim) && (!m->kernel || m->runs.width >= WIDE_ROW)) {
        ds__moves_add_rows(w, m, dst, src);
        return;
    }
    if (m->kernel && n + (m->runs.width > m->item) <= 8) {
        ds__moves_add_pack(w, m, dim, dst, src);
        return;
    }
    for (int64_t i = 0; i < m->runs.shape[dim] && w->r == DS_OK; i++) {
        ds__moves_add(w, m, dim + 1, dst, src);
        dst.offset += (ptrdiff_t)m->runs.dst[dim];
        src.offset += (ptrdiff_t)m->runs.src[dim];
    }
}

static uint32_t ds__copy_add(ds__work *w, uint32_t lane, ds__operand dst, ds__operand src,
                             const ds__dims *shape);

static int ds__runs_of_operands(const ds__dims *shape, const int64_t *dst, const int64_t *src,
                                ds__runs *out) {
    ds__runs_of(&(ds__comm_copy){ shape->item, shape->ndim, shape->shape, dst, src }, out);
    return out->ndim;
}

/* Copies between devices without peer access: packs at the source, copies one block, and unpacks at
   the destination. A side without gaps is used as it is. */
static uint32_t ds__copy_add_packed(ds__work *w, uint32_t lane, ds__operand dst, ds__operand src,
                                    const ds__dims *shape) {
    int64_t row[DS_TENSOR_MAX_DIMS];
    ds__runs runs;
    size_t bytes = (size_t)shape->count * shape->item;
    ds__location block = src.at;
    uint32_t at_src = w->region[src.at.region].lane;
    uint32_t at_dst = w->region[dst.at.region].lane;
    ds__row_major(shape->ndim, shape->shape, row);
    if (ds__runs_of_operands(shape, row, src.strides, &runs)) {
        block = ds__temporary_add(w, at_src, bytes);
        ds__come_after(w, lane, ds__copy_add(w, at_src, (ds__operand){ block, row }, src, shape));
    }
    if (!ds__runs_of_operands(shape, dst.strides, row, &runs))
        return ds__step_copy_add(w, lane, dst.at, block, bytes);
    ds__operand there = { ds__temporary_add(w, at_dst, bytes), row };
    ds__come_after(w, at_dst, ds__step_copy_add(w, lane, there.at, block, bytes));
    return ds__copy_add(w, at_dst, dst, there, shape);
}

/* Appends the steps of a copy on a lane, which is that of the source or of the destination. Shape
   and data type are those of `shape`. Returns the last step; DS__NO_INDEX: none, or out of
   memory. */
static uint32_t ds__copy_add(ds__work *w, uint32_t lane, ds__operand dst, ds__operand src,
                             const ds__dims *shape) {
    ds__moves m;
    if (w->r < 0 || !shape->count)
        return DS__NO_INDEX;
    m.lane = lane;
    m.last = DS__NO_INDEX;
    m.item = shape->item;
    m.kernel = ds__runs_of_operands(shape, dst.strides, src.strides, &m.runs) &&
               ds__step_reaches(w, lane, dst.at.region) && ds__step_reaches(w, lane, src.at.region);
    if (!ds__moves_is_simple(&m) && !m.kernel &&
        w->region[dst.at.region].device.type != DS_DEVICE_HOST &&
        w->region[src.at.region].device.type != DS_DEVICE_HOST)
        return ds__copy_add_packed(w, lane, dst, src, shape);
    ds__moves_add(w, &m, 0, dst.at, src.at);
    return m.last;
}

static ds__operand ds__operand_of(const ds__participant *p) {
    return (ds__operand){ p->at, p->d.strides };
}

/* Copies one participant to another one of the same shape. */
static uint32_t ds__copy_participant(ds__work *w, uint32_t lane, const ds__participant *to,
                                     const ds__participant *from) {
    return ds__copy_add(w, lane, ds__operand_of(to), ds__operand_of(from), &to->d);
}

static uint32_t ds__lane_of(const ds__work *w, const ds__participant *p) {
    return w->region[p->at.region].lane;
}

/* Copies a participant, on its lane, to new temporary memory with these strides. */
static ds__source ds__participant_pack(ds__work *w, const ds__participant *p,
                                       const int64_t *strides) {
    uint32_t lane = ds__lane_of(w, p);
    ds__operand packed = { ds__temporary_add(w, lane, p->d.bytes), strides };
    return (ds__source){ packed.at, ds__copy_add(w, lane, packed, ds__operand_of(p), &p->d) };
}

/* The part of a participant that has the indices of `slice` in a dimension. Member by member, since
   most of a participant is dimensions that are not in use. */
static ds__participant ds__participant_slice(const ds__participant *p, int dim, ds__slice slice) {
    ds__participant part;
    part.at = p->at;
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
    part.d.shape[dim] = slice.size;
    ds__dims_recount(&part.d);
    part.d.bytes = (size_t)part.d.count * part.d.item;
    ds__dims_move(&part.d, dim, slice.begin);
    part.at.offset += part.d.first - p->d.first;
    return part;
}

#endif
