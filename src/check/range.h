/* check/range.h - strided ranges.

   ds__race_range_overlaps tells whether two ranges have a byte in common, ds__race_range_covers
   whether one has all bytes of the other one.

   Invariants: a range has at least one row of at least one byte; with several rows, the pitch is at
   least the width.
   Locks: none.
   Threads: any. */
#ifndef DS__CHECK_RANGE_H
#define DS__CHECK_RANGE_H

#include "types.h"

static ds__race_range ds__race_range_row(const void *ptr, size_t bytes) {
    return (ds__race_range){ (uintptr_t)ptr, bytes, bytes, 1 };
}

/* Returns rows as a range; rows without gaps are one row. */
static ds__race_range ds__race_range_rows(const void *ptr, size_t width, size_t pitch,
                                          size_t rows) {
    if (rows <= 1 || pitch == width)
        return ds__race_range_row(ptr, width * (rows ? rows : 1));
    return (ds__race_range){ (uintptr_t)ptr, width, pitch, rows };
}

/* Returns the rows of an operand of a copy or fill; at: DS__OP_DST or DS__OP_SRC. */
static ds__race_range ds__race_range_of(const ds__op *op, int at) {
    if (op->kind == DS__OP_FILL)
        return ds__race_range_rows(op->u.fill.dst, op->u.fill.width * op->u.fill.value_size,
                                   op->u.fill.pitch, op->u.fill.height);
    if (at == DS__OP_DST)
        return ds__race_range_rows(op->u.copy.dst, op->u.copy.width, op->u.copy.dst_pitch,
                                   op->u.copy.height);
    return ds__race_range_rows(op->u.copy.src, op->u.copy.width, op->u.copy.src_pitch,
                               op->u.copy.height);
}

/* Returns the address behind the last byte. */
static uintptr_t ds__race_range_end(const ds__race_range *r) {
    return r->at + (r->rows - 1) * r->pitch + r->width;
}

/* Returns 1 if a row of the range has a byte of [at, end). */
static int ds__race_range_meets(const ds__race_range *r, uintptr_t at, uintptr_t end) {
    if (at >= ds__race_range_end(r) || end <= r->at)
        return 0;
    if (r->rows == 1)
        return 1;
    /* the first row that ends behind `at` */
    size_t row = at < r->at + r->width ? 0 : (at - r->at - r->width) / r->pitch + 1;
    return row < r->rows && r->at + row * r->pitch < end;
}

static int ds__race_range_overlaps(const ds__race_range *a, const ds__race_range *b) {
    uintptr_t a_end = ds__race_range_end(a);
    uintptr_t b_end = ds__race_range_end(b);
    if (a->at >= b_end || b->at >= a_end)
        return 0;
    if (a->rows == 1)
        return ds__race_range_meets(b, a->at, a_end);
    if (b->rows == 1)
        return ds__race_range_meets(a, b->at, b_end);
    if (a->pitch == b->pitch) {
        /* the distance of the first rows, within a pitch: a row of b begins `shift` bytes behind a
           row of a; rows that could meet exist because the whole ranges do */
        const ds__race_range *low = a->at <= b->at ? a : b;
        const ds__race_range *high = a->at <= b->at ? b : a;
        size_t distance = high->at - low->at;
        size_t shift = distance % low->pitch;
        size_t rows = distance / low->pitch;
        if (shift < low->width && rows < low->rows)
            return 1;
        return shift + high->width > low->pitch && rows + 1 < low->rows;
    }
    const ds__race_range *few = a->rows <= b->rows ? a : b;
    const ds__race_range *many = few == a ? b : a;
    for (size_t i = 0; i < few->rows; i++) {
        uintptr_t at = few->at + i * few->pitch;
        if (ds__race_range_meets(many, at, at + few->width))
            return 1;
    }
    return 0;
}

/* Returns 1 if each byte of b is known to be in a. */
static int ds__race_range_covers(const ds__race_range *a, const ds__race_range *b) {
    if (a->rows == 1)
        return a->at <= b->at && ds__race_range_end(b) <= ds__race_range_end(a);
    if (b->rows == 1) {
        /* within one row */
        if (b->at < a->at)
            return 0;
        size_t distance = b->at - a->at;
        return distance / a->pitch < a->rows && distance % a->pitch + b->width <= a->width;
    }
    return a->at == b->at && a->pitch == b->pitch && a->width >= b->width && a->rows >= b->rows;
}

#endif
