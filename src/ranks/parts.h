/* ranks/parts.h - parts of tensors for the ranks of a group.

   Computes the tables of operations with a part for each member (ds__net_parts), and divides
   tensors into slices, one for each member (ds__slices). Packs the tensors of a member
   (ds__tiles_source).

   Invariants: a table has the sizes of all parts, then their offsets. The parts of the devices of a
   member lie one behind the other, in the order of the group.
   Locks: none.
   Threads: any. */
#ifndef DS__RANKS_PARTS_H
#define DS__RANKS_PARTS_H

#include "types.h"
#include "stage.h"
#include "stage_memory.h"

/* Runs of elements of a contiguous tensor, one for each member: that of member r begins at begin[r]
   and ends at begin[r + 1]. */
typedef struct ds__slices {
    size_t *begin;
    size_t item;
} ds__slices;

/* Returns the bytes of a table. */
static size_t ds__parts_bytes(const ds__stage *st) {
    return 2 * (size_t)st->size * sizeof(size_t);
}

/* Writes a table of parts that lie one behind the other: `bytes` for each device of a member. */
static ds__net_parts ds__parts_even(const ds__stage *st, void *table, size_t bytes) {
    size_t *list = table;
    size_t n = (size_t)st->size;
    for (size_t r = 0; r < n; r++) {
        list[r] = (st->first[r + 1] - st->first[r]) * bytes;
        list[n + r] = st->first[r] * bytes;
    }
    return (ds__net_parts){ list, list + n };
}

/* Writes a table of the slices of `count` tensors: those of a member lie one behind the other. */
static ds__net_parts ds__parts_of_slices(const ds__stage *st, void *table, size_t count) {
    const ds__slices *s = st->slices;
    size_t *list = table;
    size_t n = (size_t)st->size;
    for (size_t r = 0; r < n; r++) {
        list[r] = count * (s->begin[r + 1] - s->begin[r]) * s->item;
        list[n + r] = count * s->begin[r] * s->item;
    }
    return (ds__net_parts){ list, list + n };
}

static size_t ds__slice_count(const ds__slices *s, int member) {
    return s->begin[member + 1] - s->begin[member];
}

/* Returns the bytes of the slice of the selected member. */
static size_t ds__slice_bytes(const ds__stage *st) {
    return ds__slice_count(st->slices, st->me) * st->slices->item;
}

/* Allocates the slices of the call, which lie in st->slices. */
static ds_result ds__slices_alloc(ds__stage *st) {
    size_t n = (size_t)st->size;
    st->slices = ds__stage_alloc(st, sizeof *st->slices + (n + 1) * sizeof *st->slices->begin);
    if (!st->slices)
        return DS_ERR_OUT_OF_MEMORY;
    st->slices->item = (ds_dtype_get_size)(st->call.dtype);
    st->slices->begin = (size_t *)(void *)(st->slices + 1);
    return DS_OK;
}

/* Divides `count` elements evenly among the members. */
static ds_result ds__slices_even(ds__stage *st, size_t count) {
    size_t n = (size_t)st->size;
    DS__TRY(ds__slices_alloc(st));
    for (size_t r = 0; r <= n; r++)
        st->slices->begin[r] = r * (count / n) + (r < count % n ? r : count % n);
    return DS_OK;
}

/* Gives each member the parts of its devices: sizes[k] rows of `row` elements for device k of the
   group, or `rows` of them each. */
static ds_result ds__slices_of_devices(ds__stage *st, const int64_t *sizes, int64_t rows,
                                       size_t row) {
    size_t at = 0;
    DS__TRY(ds__slices_alloc(st));
    for (int r = 0; r < st->size; r++) {
        st->slices->begin[r] = at;
        for (size_t k = st->first[r]; k < st->first[r + 1]; k++)
            at += (size_t)(sizes ? sizes[k] : rows) * row;
    }
    st->slices->begin[st->size] = at;
    return DS_OK;
}

/* Packs the slices of all inputs in the order of the members: for each member one slice of each
   input. */
static ds_result ds__slices_pack(ds__stage *st, ds__smem *out) {
    const ds__slices *s = st->slices;
    ds_result r = ds__stage_buffer(st, st->ins * st->in[0].d.bytes, out);
    for (size_t i = 0; i < st->ins && r == DS_OK; i++) {
        ds__smem in;
        r = ds__stage_source(st, &st->in[i], &in);
        for (int k = 0; k < st->size && r == DS_OK; k++) {
            int64_t size = (int64_t)ds__slice_count(s, k);
            size_t at = st->ins * s->begin[k] + i * (size_t)size;
            ds_tensor to = ds__smem_flat(st, *out, at * s->item, &size);
            ds_tensor from = ds__smem_flat(st, in, s->begin[k] * s->item, &size);
            if (size)
                r = ds__stage_copy(st, &to, out->device, &from, in.device);
        }
    }
    return r;
}

/* Checks the sizes of parts for the devices of the group, and their sum. */
static ds_result ds__sizes_check(const ds__stage *st, const int64_t *sizes, int64_t all,
                                 const char *words) {
    int64_t n = (int64_t)st->g->devices;
    int64_t sum = 0;
    if (!sizes) {
        DS__REQUIRE(all % n == 0, "%s has %lld rows, which are no multiple of %lld devices", words,
                    (long long)all, (long long)n);
        return DS_OK;
    }
    for (size_t k = 0; k < st->g->devices; k++) {
        DS__REQUIRE(
            sizes[k] >= 0 && sizes[k] <= all - sum,
            "ranks_options->sizes[%zu] is %lld; the sizes must be at least 0, and their sum %lld",
            k, (long long)sizes[k], (long long)all);
        sum += sizes[k];
    }
    DS__REQUIRE(sum == all, "the sum of ranks_options->sizes is %lld, but %s has %lld rows",
                (long long)sum, words, (long long)all);
    return DS_OK;
}

/* Returns the size of the part of device k of the group; all: the sum. */
static int64_t ds__size_of(const ds__stage *st, const int64_t *sizes, int64_t all, size_t k) {
    return sizes ? sizes[k] : all / (int64_t)st->g->devices;
}

/* Returns the bytes of `count` tensors. */
static size_t ds__tiles_bytes(const ds__stile *tile, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += tile[i].d.bytes;
    return bytes;
}

/* Gives memory of the engine with these tensors of the member, one behind the other: the memory of
   a single tensor if that is possible. */
static ds_result ds__tiles_source(ds__stage *st, const ds__stile *tile, size_t count,
                                  ds__smem *out) {
    if (count == 1)
        return ds__stage_source(st, tile, out);
    DS__TRY(ds__stage_buffer(st, ds__tiles_bytes(tile, count), out));
    for (size_t i = 0; i < count; i++)
        DS__TRY(ds__stage_pack(st, &tile[i], ds__smem_at(*out, ds__tiles_bytes(tile, i))));
    return DS_OK;
}

#endif
