/* ranks/arguments.h - checks of the tensors of a collective of a group.

   Checks shapes (ds__stage_check_shapes, ds__stage_check_parts) and shared memory
   (ds__stage_check_disjoint) of the tensors of this rank. Other ranks are not asked: with
   DS_RANKS_COMPARE they compare kind, type, count and root.

   Invariants: the tensors were read by ds__stage_tensors.
   Locks: none.
   Threads: any. */
#ifndef DS__RANKS_ARGUMENTS_H
#define DS__RANKS_ARGUMENTS_H

#include "../comm/types.h"
#include "types.h"
#include "stage.h"
#include "parts.h"

/* Where outputs may share memory with inputs; as in devstream_comm.h. */
typedef enum ds__stage_sharing {
    DS__STAGE_SAME,           /* output i may be input i */
    DS__STAGE_ANY_SAME,       /* the output may be one of the inputs */
    DS__STAGE_PART_OF_INPUT,  /* output i may be its part of input i, or of the single input */
    DS__STAGE_PART_OF_OUTPUT, /* input i may be its part of output i, or of the single output */
    DS__STAGE_NEVER
} ds__stage_sharing;

static const char *ds__tile_words(const ds__stage *st, size_t i) {
    return i < st->ins ? "input tensor" : "output tensor";
}

/* Returns the index of tensor i, in the order of the inputs and outputs, in its list. */
static size_t ds__tile_index(const ds__stage *st, size_t i) {
    return i < st->ins ? i : i - st->ins;
}

/* Requires that the tensors from `first` on, `count` of them, have the shape of the first input. */
static ds_result ds__stage_check_shapes(const ds__stage *st, size_t first, size_t count) {
    const ds__dims *a = &st->in[0].d;
    char text[2][DS__SHAPE_TEXT];
    for (size_t i = first; i < first + count; i++) {
        const ds__dims *b = &st->in[i].d;
        if (a->ndim != b->ndim ||
            (a->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) != 0))
            return ds__fail(
                DS_ERR_INVALID_VALUE, "%s has shape %s; it must be %s",
                ds__name_text(ds__name_of(ds__tile_words(st, i), ds__tile_index(st, i))),
                ds__shape_text(b->ndim, b->shape, text[0], sizeof text[0]),
                ds__shape_text(a->ndim, a->shape, text[1], sizeof text[1]));
    }
    return DS_OK;
}

/* Notes which member is the root, and returns 1 if its device is one of this rank: *out_device is
   then its index on the rank. */
static int ds__stage_root(ds__stage *st, size_t *out_device) {
    int rank = ds__group_rank_of(st->g, st->options->root);
    int here = rank == st->g->rank;
    st->root = st->each ? (int)st->options->root : rank;
    *out_device = here ? st->options->root - st->g->first[rank] : 0;
    return here;
}

/* Requires that the single tensor is there on the rank of the root, and NULL elsewhere. */
static ds_result ds__stage_check_single(const ds__stage *st, const ds_tensor *tensor, int here,
                                        const char *words) {
    DS__REQUIRE(here || !tensor,
                "%s must be NULL on this rank: device %zu, the root, is one of rank %d", words,
                st->options->root, ds__group_rank_of(st->g, st->options->root));
    DS__REQUIRE(!here || tensor, "%s is NULL, but device %zu, the root, is one of this rank", words,
                st->options->root);
    return DS_OK;
}

/* Checks one part against the tensor of which it is a part; size: in dimension dim. */
static ds_result ds__part_check(const ds__dims *whole, const ds__stile *part, size_t i,
                                int64_t size, int dim) {
    const ds__dims *p = &part->d;
    char text[2][DS__SHAPE_TEXT];
    DS__REQUIRE(p->ndim == whole->ndim && p->ndim > dim,
                "part %zu has %d dimensions, the whole tensor %d; they must agree, and be more "
                "than %d",
                i, p->ndim, whole->ndim, dim);
    for (int k = 0; k < p->ndim; k++)
        DS__REQUIRE(p->shape[k] == (k == dim ? size : whole->shape[k]),
                    "part %zu has shape %s, the whole tensor %s; in dimension %d the part must "
                    "have size %lld",
                    i, ds__shape_text(p->ndim, p->shape, text[0], sizeof text[0]),
                    ds__shape_text(whole->ndim, whole->shape, text[1], sizeof text[1]), k,
                    (long long)(k == dim ? size : whole->shape[k]));
    return DS_OK;
}

/* Checks the parts of this rank's devices. whole: the tensor of all parts, or NULL if another rank
   has it. */
static ds_result ds__stage_check_parts(const ds__stage *st, const ds__dims *whole,
                                       const ds__stile *part, const int64_t *sizes, int dim) {
    size_t first = st->g->first[st->g->rank];
    ds_result r = DS_OK;
    if (whole) {
        DS__REQUIRE(dim < whole->ndim, "dim is %d, but the tensor has %d dimensions", dim,
                    whole->ndim);
        r = ds__sizes_check(st, sizes, whole->shape[dim], "the tensor of all parts");
    }
    for (size_t i = 0; i < st->count && r == DS_OK; i++) {
        if (whole)
            r = ds__part_check(whole, &part[i], i,
                               ds__size_of(st, sizes, whole->shape[dim], first + i), dim);
        else if (part[i].d.ndim <= dim)
            r = ds__fail(DS_ERR_INVALID_VALUE, "dim is %d, but part %zu has %d dimensions", dim, i,
                         part[i].d.ndim);
        else if (sizes && part[i].d.shape[dim] != sizes[first + i])
            r = ds__fail(
                DS_ERR_INVALID_VALUE,
                "part %zu has size %lld in dimension %d, but ranks_options->sizes[%zu] is %lld", i,
                (long long)part[i].d.shape[dim], dim, first + i, (long long)sizes[first + i]);
    }
    return r;
}

/* Returns 1 if the bytes of two tensors overlap; gaps of strided tensors count. */
static int ds__stage_overlaps(const ds__dims *a, const ds__dims *b) {
    if (!a->count || !b->count)
        return 0;
    const char *a_low = a->first + a->low;
    const char *b_low = b->first + b->low;
    return a_low < b_low + (b->high - b->low) && b_low < a_low + (a->high - a->low);
}

/* Returns 1 if `part` is the part of device i of the rank in a contiguous tensor. */
static int ds__is_part(const ds__stage *st, const ds__stile *whole, const ds__stile *part,
                       size_t i) {
    const int64_t *sizes = st->more->sizes;
    if (!whole->d.ndim || !(ds_tensor_is_contiguous)(&whole->t))
        return 0;
    int64_t rows = whole->d.shape[0];
    int64_t at = 0;
    for (size_t k = 0; k < st->g->first[st->g->rank] + i; k++)
        at += ds__size_of(st, sizes, rows, k);
    return part->d.first == whole->d.first + (size_t)(at * (whole->d.count / rows)) * whole->d.item;
}

/* Returns 1 if output o may share memory with input i. */
static int ds__sharing_is_allowed(const ds__stage *st, size_t i, size_t o, ds__stage_sharing rule) {
    const ds__stile *in = &st->in[i];
    const ds__stile *out = &st->out[o];
    int same = in->d.first == out->d.first && (ds_tensor_is_contiguous)(&in->t) &&
               (ds_tensor_is_contiguous)(&out->t);
    switch (rule) {
    case DS__STAGE_SAME:
        return i == o && same;
    case DS__STAGE_ANY_SAME:
        return same;
    case DS__STAGE_PART_OF_INPUT:
        return (i == o || st->ins == 1) && ds__is_part(st, in, out, o);
    case DS__STAGE_PART_OF_OUTPUT:
        return (i == o || st->outs == 1) && ds__is_part(st, out, in, i);
    default:
        return 0;
    }
}

/* Checks that outputs share no memory with inputs, unless the rule allows it, nor with each
   other. */
static ds_result ds__stage_check_disjoint(const ds__stage *st, ds__stage_sharing rule) {
    for (size_t o = 0; o < st->outs; o++) {
        for (size_t i = 0; i < st->ins; i++)
            DS__REQUIRE(!ds__stage_overlaps(&st->out[o].d, &st->in[i].d) ||
                            ds__sharing_is_allowed(st, i, o, rule),
                        "output tensor at index %zu shares memory with input tensor at index %zu",
                        o, i);
        for (size_t k = 0; k < o; k++)
            DS__REQUIRE(!ds__stage_overlaps(&st->out[o].d, &st->out[k].d),
                        "output tensors at index %zu and %zu share memory", k, o);
    }
    return DS_OK;
}

#endif
