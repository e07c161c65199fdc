/* base/extent.h - memory that a launch accesses through its pointers.

   Checks the extents that a kernel states (ds__extent_check_form, ds__extent_check_param), and
   computes from them and from the arguments of a launch the memory of each pointer parameter
   (ds__kernel_ranges). Only layers need these ranges, so a launch without a layer computes none.

   Invariants: an exact range ends at UINTPTR_MAX at the latest. A range that would exceed this
   address is not known, nor is the range of a parameter without an extent. The pitch of a range is
   at least its width.
   Locks: none; a kernel's extents_fn is called.
   Threads: any. The caller keeps the kernel (a pin, or a node's reference). */
#ifndef DS__BASE_EXTENT_H
#define DS__BASE_EXTENT_H

#include "../api/kernel.h"
#include "error.h"
#include "object.h"

/* Memory that a launch accesses through one pointer. */
typedef struct ds__extent_range {
    size_t param;       /* index of the parameter */
    ds_param_kind kind; /* DS_PARAM_READ, _WRITE or _READ_WRITE */
    int exact;          /* 0: the extent is not known; the four numbers below are 0 */
    int atomic;         /* 1: by atomic operations only */
    const char *ptr;    /* the argument, never NULL */
    size_t offset;      /* bytes from ptr to the first row */
    size_t width;       /* bytes of a row, at least 1 */
    size_t pitch;       /* bytes from one row to the next; of one row: width */
    size_t rows;        /* at least 1 */
} ds__extent_range;

static int ds__param_is_pointer(const ds_param *p) {
    return p->kind == DS_PARAM_READ || p->kind == DS_PARAM_WRITE || p->kind == DS_PARAM_READ_WRITE;
}

/* Returns 1 if the parameter may be the number of elements of a DS_EXTENT_COUNT. */
static int ds__param_is_count(const ds_param *p) {
    return p->kind == DS_PARAM_VALUE && (p->size == 4 || p->size == 8);
}

/* Refuses an extent that no parameter may have. Members that its kind does not use must be 0. i:
   index of the parameter, for the sentence. */
DS__SEAM static ds_result ds__extent_check_form(const ds_extent *e, size_t i) {
    DS__REQUIRE((unsigned)e->kind <= DS_EXTENT_ITEMS,
                "extent %zu has the kind %d; use a DS_EXTENT_* kind", i, (int)e->kind);
    DS__REQUIRE(e->atomic == 0 || e->atomic == 1, "extent %zu: atomic is %d; 0 or 1 is allowed", i,
                e->atomic);
    DS__REQUIRE(e->kind == DS_EXTENT_COUNT || !e->count_param,
                "extent %zu: count_param is %zu; only DS_EXTENT_COUNT may have one", i,
                e->count_param);
    DS__REQUIRE(e->kind == DS_EXTENT_ITEMS || !e->stride,
                "extent %zu: stride is %zu; only DS_EXTENT_ITEMS may have one", i, e->stride);
    if (e->kind == DS_EXTENT_NONE) {
        DS__REQUIRE(!e->bytes && !e->offset,
                    "extent %zu has %zu bytes at offset %zu, but the kind DS_EXTENT_NONE; state "
                    "another kind, or 0 bytes at offset 0",
                    i, e->bytes, e->offset);
        return DS_OK;
    }
    DS__REQUIRE(e->bytes, "extent %zu has 0 bytes; for no access, let the parameter be a value", i);
    DS__REQUIRE(!e->stride || e->stride >= e->bytes,
                "extent %zu: stride is %zu; 0 or at least the %zu bytes of an item is allowed", i,
                e->stride, e->bytes);
    return DS_OK;
}

/* Refuses an extent, of a correct form, that does not fit parameter i of the list. */
DS__SEAM static ds_result ds__extent_check_param(const ds_extent *e, size_t i,
                                                 const ds_param *params, size_t param_count) {
    DS__REQUIRE(ds__param_is_pointer(&params[i]) || (e->kind == DS_EXTENT_NONE && !e->atomic),
                "extent %zu: parameter %zu is no pointer; its extent must be zeroed", i, i);
    if (e->kind != DS_EXTENT_COUNT)
        return DS_OK;
    DS__REQUIRE(e->count_param < param_count,
                "extent %zu: count_param is %zu, but the kernel has %zu parameters", i,
                e->count_param, param_count);
    const ds_param *count = &params[e->count_param];
    DS__REQUIRE(ds__param_is_count(count),
                "extent %zu: parameter %zu, the number of elements, has the kind %d and %zu bytes; "
                "a DS_PARAM_VALUE of 4 or 8 bytes is allowed",
                i, e->count_param, (int)count->kind, count->size);
    return DS_OK;
}

/* Reads the number of elements of a DS_EXTENT_COUNT. Returns 0 if the parameter holds none. */
static int ds__extent_count(const ds__kernel *k, size_t param, const void *args, size_t *out) {
    if (param >= k->param_count || !ds__param_is_count(&k->params[param]))
        return 0;

    const char *from = (const char *)args + k->params[param].offset;
    uint32_t narrow;
    uint64_t wide;
    if (k->params[param].size == sizeof narrow) {
        memcpy(&narrow, from, sizeof narrow);
        wide = narrow;
    } else {
        memcpy(&wide, from, sizeof wide);
    }
    *out = (size_t)wide;
    return wide <= SIZE_MAX;
}

/* Sets the rows of a range with pointer and offset. Rows without a gap become one row. Returns 0 if
   the range exceeds the address space. No bytes: rows is set to 0. */
static int ds__extent_set_rows(ds__extent_range *r, size_t rows, size_t width, size_t pitch) {
    size_t span;
    size_t end;
    if (rows == 0 || width == 0)
        return 1;
    int overflow = __builtin_mul_overflow(rows - 1, pitch, &span);
    overflow |= __builtin_add_overflow(span, width, &span);
    overflow |= __builtin_add_overflow(span, r->offset, &end);
    overflow |= __builtin_add_overflow(end, (uintptr_t)r->ptr, &end);
    if (overflow)
        return 0;

    int gaps = rows > 1 && pitch > width;
    r->rows = gaps ? rows : 1;
    r->width = gaps ? width : span;
    r->pitch = gaps ? pitch : span;
    return 1;
}

/* Computes a range from an extent, which need not be correct. Returns 0 if it is not known. */
static int ds__extent_resolve(const ds__kernel *k, const ds_extent *e, size_t items,
                              const void *args, ds__extent_range *r) {
    size_t count = 1;
    size_t pitch = e->bytes;
    switch (e->kind) {
    case DS_EXTENT_BYTES:
        break;
    case DS_EXTENT_COUNT:
        if (!ds__extent_count(k, e->count_param, args, &count))
            return 0;
        break;
    case DS_EXTENT_ITEMS:
        count = items;
        if (e->stride)
            pitch = e->stride;
        break;
    default:
        return 0;
    }
    r->offset = e->offset;
    return ds__extent_set_rows(r, count, e->bytes, pitch);
}

/* Writes the range of every pointer that a launch accesses, in order of the parameters, and returns
   their number. A pointer that is NULL, or whose extent has 0 bytes, has no range. out: has
   place for param_count ranges. replaced: extents in place of the kernel's first ones; they need
   not be checked, the range of a wrong one is not exact. */
DS__SEAM static size_t ds__kernel_ranges(const ds__kernel *k, const ds_extent *replaced,
                                         size_t replaced_count, size_t items, const void *args,
                                         ds__extent_range *out) {
    size_t bytes[DS_KERNEL_MAX_PARAMS];
    size_t n = 0;
    if (k->extents_fn) {
        memset(bytes, 0xff, k->param_count * sizeof *bytes);
        k->extents_fn(args, bytes);
    }

    for (size_t i = 0; i < k->param_count; i++) {
        const ds_param *p = &k->params[i];
        if (!ds__param_is_pointer(p))
            continue;
        const ds_extent *e = k->extents ? &k->extents[i] : NULL;
        if (i < replaced_count)
            e = &replaced[i];
        /* in its place: a copy would wait for the stores of the members */
        ds__extent_range *r = &out[n];
        r->param = i;
        r->kind = p->kind;
        r->atomic = e && e->atomic == 1;
        r->offset = r->width = r->pitch = r->rows = 0;
        memcpy(&r->ptr, (const char *)args + p->offset, sizeof r->ptr);
        size_t rows[3];
        if (k->rows_fn && i >= replaced_count)
            r->exact =
                k->rows_fn(args, i, rows) && ds__extent_set_rows(r, rows[2], rows[0], rows[1]);
        else if (e)
            r->exact = ds__extent_resolve(k, e, items, args, r);
        else /* SIZE_MAX bytes, of a parameter that extents_fn leaves out, are too many */
            r->exact = k->extents_fn && ds__extent_set_rows(r, 1, bytes[i], bytes[i]);
        if (!r->exact)
            r->offset = 0;
        if (r->ptr && (!r->exact || r->rows))
            n++;
    }
    return n;
}

#endif
