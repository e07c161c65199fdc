/* ranks/parts.h - parts of tensors for the ranks of a group.

   Computes the tables of operations with a part for each rank (ds__net_parts), and divides tensors
   into slices, one for each rank (ds__slices). Packs the tensors of this rank (ds__tiles_source).

   Invariants: a table has the sizes of all parts, then their offsets. The parts of the devices of a
   rank lie one behind the other, in the order of the group.
   Locks: none.
   Threads: any. */
#ifndef DS__RANKS_PARTS_H
#define DS__RANKS_PARTS_H

#include "types.h"
#include "stage.h"
#include "stage_memory.h"

/* Runs of elements of a contiguous tensor, one for each rank: that of rank r begins at begin[r] and
   ends at begin[r + 1]. */
typedef struct ds__slices {
    size_t *begin;
    size_t item;
} ds__slices;

/* Returns the bytes of a table. */
static size_t ds__parts_bytes(const ds__group *g) {
    return 2 * (size_t)g->size * sizeof(size_t);
}

/* Writes a table of parts that lie one behind the other: `bytes` for each device of a rank. */
static ds__net_parts ds__parts_even(const ds__group *g, void *table, size_t bytes) {
    size_t *list = table;
    size_t n = (size_t)g->size;
    for (size_t r = 0; r < n; r++) {
        list[r] = (g->first[r + 1] - g->first[r]) * bytes;
        list[n + r] = g->first[r] * bytes;
    }
    return (ds__net_parts){ list, list + n };
}

/* Writes a table of the slices of `count` tensors: those of a rank lie one behind the other. */
static ds__net_parts ds__parts_of_slices(const ds__group *g, void *table, const ds__slices *s,
                                         size_t count) {
    size_t *list = table;
    size_t n = (size_t)g->size;
    for (size_t r = 0; r < n; r++) {
        list[r] = count * (s->begin[r + 1] - s->begin[r]) * s->item;
        list[n + r] = count * s->begin[r] * s->item;
    }
    return (ds__net_parts){ list, list + n };
}

static size_t ds__slice_count(const ds__slices *s, int rank) {
    return s->begin[rank + 1] - s->begin[rank];
}

static size_t ds__slice_bytes(const ds__slices *s, int rank) {
    return ds__slice_count(s, rank) * s->item;
}

/* Divides `count` elements evenly among the ranks. */
static ds_result ds__slices_even(ds__stage *st, size_t count, size_t item, ds__slices *out) {
    size_t n = (size_t)st->g->size;
    out->item = item;
    out->begin = ds__stage_alloc(st, (n + 1) * sizeof *out->begin);
    if (!out->begin)
        return DS_ERR_OUT_OF_MEMORY;
    for (size_t r = 0; r <= n; r++)
        out->begin[r] = r * (count / n) + (r < count % n ? r : count % n);
    return DS_OK;
}

/* Gives each rank the parts of its devices: sizes[k] rows of `row` elements for device k of the
   group, or `rows` of them each. */
static ds_result ds__slices_of_devices(ds__stage *st, const int64_t *sizes, int64_t rows,
                                       size_t row, ds__slices *out) {
    const ds__group *g = st->g;
    out->item = (ds_dtype_get_size)(st->call.dtype);
    out->begin = ds__stage_alloc(st, ((size_t)g->size + 1) * sizeof *out->begin);
    if (!out->begin)
        return DS_ERR_OUT_OF_MEMORY;
    size_t at = 0;
    for (int r = 0; r < g->size; r++) {
        out->begin[r] = at;
        for (size_t k = g->first[r]; k < g->first[r + 1]; k++)
            at += (size_t)(sizes ? sizes[k] : rows) * row;
    }
    out->begin[g->size] = at;
    return DS_OK;
}

/* Packs the slices of all inputs in the order of the ranks: for each rank one slice of each
   input. */
static ds_result ds__slices_pack(ds__stage *st, const ds__slices *s, ds__smem *out) {
    ds_result r = ds__stage_buffer(st, st->ins * st->in[0].d.bytes, out);
    for (size_t i = 0; i < st->ins && r == DS_OK; i++) {
        ds__smem in;
        r = ds__stage_source(st, &st->in[i], &in);
        for (int rank = 0; rank < st->g->size && r == DS_OK; rank++) {
            int64_t size = (int64_t)ds__slice_count(s, rank);
            size_t at = st->ins * s->begin[rank] + i * (size_t)size;
            ds_tensor to = ds__smem_flat(st, *out, at * s->item, &size);
            ds_tensor from = ds__smem_flat(st, in, s->begin[rank] * s->item, &size);
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

/* Gives memory of the engine with these tensors of the rank, one behind the other: the memory of a
   single tensor if that is possible. */
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
