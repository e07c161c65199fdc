/* comm/kernel_pack.h - CPU form of the strided copy.

   Implements the CPU function of the strided copy (ds__comm_pack_items). Rows are copied one by
   one, very short rows by columns, and some transpositions in tiles of whole cache lines
   (ds__comm_tile).

   Invariants: source and destination do not overlap. An element has 1, 2, 4, 8 or 16 bytes, and
   a copy has one to DS__COMM_DIMS dimensions. An item writes only its own elements, so items may
   run in parallel.
   Locks: takes none, but may run under the locks of the driver's run_together.
   Threads: workers of the CPU driver, and threads that run steps or help the driver. */
#ifndef DS__COMM_KERNEL_PACK_H
#define DS__COMM_KERNEL_PACK_H

#include "kernel_args.h"

/* Copies n elements of a constant size. */
DS__COMM_FN void ds__comm_copy_elements(char *dst, int64_t dst_step, const char *src,
                                        int64_t src_step, size_t size, uint64_t n) {
    for (; n >= 4; n -= 4, dst += 4 * dst_step, src += 4 * src_step) {
        memcpy(dst, src, size);
        memcpy(dst + dst_step, src + src_step, size);
        memcpy(dst + 2 * dst_step, src + 2 * src_step, size);
        memcpy(dst + 3 * dst_step, src + 3 * src_step, size);
    }
    for (; n > 0; n--, dst += dst_step, src += src_step)
        memcpy(dst, src, size);
}

static void ds__comm_copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step,
                              uint32_t size, uint64_t n) {
    if (dst_step == (int64_t)size && src_step == (int64_t)size)
        memcpy(dst, src, (size_t)(n * size));
    else if (size == 1)
        ds__comm_copy_elements(dst, dst_step, src, src_step, 1, n);
    else if (size == 2)
        ds__comm_copy_elements(dst, dst_step, src, src_step, 2, n);
    else if (size == 4)
        ds__comm_copy_elements(dst, dst_step, src, src_step, 4, n);
    else if (size == 8)
        ds__comm_copy_elements(dst, dst_step, src, src_step, 8, n);
    else
        ds__comm_copy_elements(dst, dst_step, src, src_step, 16, n);
}

/* Transposition: a row of the result lies in a column of the source. Tiles of DS__COMM_LINE by
   DS__COMM_LINE bytes are transposed, so that both sides are accessed by whole cache lines. The
   tiles follow the columns, since each column may be in a page of its own. */
enum { DS__COMM_LINE = 64, DS__COMM_TILES = 8 };

/* A transposition of `columns` elements per row of the result. */
typedef struct ds__comm_turn {
    int64_t dst_row;    /* bytes from a row of the result to the next */
    int64_t src_column; /* bytes from a column of the source to the next */
    uint64_t columns;
} ds__comm_turn;

/* Transposes the first `count` columns of a tile to `to`, whose rows are `pitch` bytes apart. */
DS__COMM_FN void ds__comm_turn_tile(const ds__comm_turn *t, char *to, int64_t pitch,
                                    const char *from, int count, size_t size) {
    const int rows = DS__COMM_LINE / (int)size;
    for (int column = 0; column < count; column++, from += t->src_column) {
        char *at = to + (size_t)column * size;
        for (int r = 0; r < rows; r += 4, at += 4 * pitch) {
            const char *element = from + (size_t)r * size;
            memcpy(at, element, size);
            memcpy(at + pitch, element + size, size);
            memcpy(at + 2 * pitch, element + 2 * size, size);
            memcpy(at + 3 * pitch, element + 3 * size, size);
        }
    }
}

/* Transposes rows of elements of a constant size. Whole tiles are assembled in a buffer; narrower
   ones, at the end of the rows, are written in place. */
DS__COMM_FN void ds__comm_turn_elements(const ds__comm_turn *t, char *dst, const char *src,
                                        uint64_t rows, size_t size) {
    char tile[DS__COMM_LINE * DS__COMM_LINE];
    const uint64_t side = DS__COMM_LINE / size;
    for (uint64_t column = 0; column < t->columns; column += side) {
        uint64_t left = t->columns - column;
        for (uint64_t row = 0; row < rows; row += side) {
            const char *from = src + (int64_t)column * t->src_column + row * size;
            char *to = dst + (int64_t)row * t->dst_row + column * size;
            if (left < side) {
                ds__comm_turn_tile(t, to, t->dst_row, from, (int)left, size);
                continue;
            }
            ds__comm_turn_tile(t, tile, DS__COMM_LINE, from, (int)side, size);
            for (uint64_t r = 0; r < side; r++)
                memcpy(to + (int64_t)r * t->dst_row, tile + r * DS__COMM_LINE, DS__COMM_LINE);
        }
    }
}

/* Transposes rows, a multiple of DS__COMM_LINE / size. */
static void ds__comm_turn_rows(const ds__comm_turn *t, char *dst, const char *src, uint64_t rows,
                               uint32_t size) {
    if (size == 1)
        ds__comm_turn_elements(t, dst, src, rows, 1);
    else if (size == 2)
        ds__comm_turn_elements(t, dst, src, rows, 2);
    else if (size == 4)
        ds__comm_turn_elements(t, dst, src, rows, 4);
    else
        ds__comm_turn_elements(t, dst, src, rows, 8);
}

/* Returns the rows of a tile, or 0 if the rows are better copied one by one. A cache line of a
   column has elements of the next rows, and mostly stays in the cache until they are read. It does
   not stay if there are many columns, or if their distance maps them to the same cache sets. */
static uint64_t ds__comm_tile(const ds__comm_pack_args *p) {
    int last = (int)p->ndim - 1;
    if (last == 0 || p->size > 8 || p->dims.dst[last] != (int64_t)p->size ||
        p->dims.src[last - 1] != (int64_t)p->size)
        return 0;
    uint64_t side = DS__COMM_LINE / p->size, columns = p->dims.size[last],
             apart = (uint64_t)p->dims.src[last];
    apart &= 0 - apart;
    if (apart < DS__COMM_LINE)
        apart = DS__COMM_LINE;
    return columns > ((uint64_t)512 << 10) / apart ? side : 0;
}

enum { DS__COMM_SHORT = 8, DS__COMM_ROWS = 256 };

/* The rows that are copied together: rows of a transposition in tiles, or very short rows by
   columns. */
typedef struct ds__comm_rows {
    uint64_t tile; /* rows of a tile; 0: no tiles */
    uint64_t most; /* 0: rows are copied one by one */
} ds__comm_rows;

static ds__comm_rows ds__comm_rows_of(const ds__comm_pack_args *p) {
    ds__comm_rows rows = { ds__comm_tile(p), 0 };
    if (rows.tile)
        rows.most = rows.tile * DS__COMM_TILES;
    else if (p->dims.size[p->ndim - 1] < DS__COMM_SHORT && p->ndim > 1)
        rows.most = DS__COMM_ROWS;
    return rows;
}

/* Place of an element: its indices, and its offsets in bytes. */
typedef struct ds__comm_position {
    int64_t dst;
    int64_t src;
    uint64_t index[DS__COMM_DIMS];
} ds__comm_position;

static void ds__comm_position_set(ds__comm_position *at, const ds__comm_pack_args *p,
                                  uint64_t element) {
    at->dst = at->src = 0;
    for (uint32_t k = p->ndim; k-- > 0; element /= p->dims.size[k]) {
        at->index[k] = element % p->dims.size[k];
        at->dst += (int64_t)at->index[k] * p->dims.dst[k];
        at->src += (int64_t)at->index[k] * p->dims.src[k];
    }
}

/* Moves from the begin of a row to the begin of a later row of the same plane or of the next
   plane. */
static inline void ds__comm_position_advance(ds__comm_position *at, const ds__comm_pack_args *p,
                                             uint64_t rows) {
    const ds__comm_dims *d = &p->dims;
    for (uint32_t k = p->ndim - 1; k-- > 0; at->index[k] = 0, rows = 1) {
        at->dst += (int64_t)rows * d->dst[k];
        at->src += (int64_t)rows * d->src[k];
        at->index[k] += rows;
        if (at->index[k] < d->size[k])
            break;
        at->dst -= (int64_t)d->size[k] * d->dst[k];
        at->src -= (int64_t)d->size[k] * d->src[k];
    }
}

/* Returns the number of whole rows of one plane to copy together, of `left` elements; 0: none. */
static inline uint64_t ds__comm_rows_together(const ds__comm_rows *together,
                                              const ds__comm_pack_args *p,
                                              const ds__comm_position *at, uint64_t left) {
    uint32_t last = p->ndim - 1;
    if (!together->most || at->index[last] != 0)
        return 0;
    uint64_t rows = p->dims.size[last - 1] - at->index[last - 1];
    if (rows > left / p->dims.size[last])
        rows = left / p->dims.size[last];
    if (rows > together->most)
        rows = together->most;
    return together->tile ? rows - rows % together->tile : rows;
}

static void ds__comm_copy_rows(const ds__comm_pack_args *p, const ds__comm_position *at, int tiled,
                               uint64_t rows) {
    const ds__comm_dims *d = &p->dims;
    const uint32_t last = p->ndim - 1;
    char *dst = p->dst + at->dst;
    const char *src = p->src + at->src;
    if (tiled) {
        ds__comm_turn t = { d->dst[last - 1], d->src[last], d->size[last] };
        ds__comm_turn_rows(&t, dst, src, rows, p->size);
        return;
    }
    for (uint64_t c = 0; c < d->size[last]; c++, dst += d->dst[last], src += d->src[last])
        ds__comm_copy_row(dst, d->dst[last - 1], src, d->src[last - 1], p->size, rows);
}

/* Copies the rest of a row, at most `left` elements, and returns their number. Moves back to the
   begin of the row. */
static inline uint64_t ds__comm_copy_rest(const ds__comm_pack_args *p, ds__comm_position *at,
                                          uint64_t left) {
    const uint32_t last = p->ndim - 1;
    uint64_t n = p->dims.size[last] - at->index[last];
    if (n > left)
        n = left;
    ds__comm_copy_row(p->dst + at->dst, p->dims.dst[last], p->src + at->src, p->dims.src[last],
                      p->size, n);
    at->dst -= (int64_t)at->index[last] * p->dims.dst[last];
    at->src -= (int64_t)at->index[last] * p->dims.src[last];
    at->index[last] = 0;
    return n;
}

/* The CPU form. The position is computed once, and then advanced. */
static int ds__comm_pack_items(size_t first, size_t count, const void *args) {
    const ds__comm_pack_args *p = args;
    const uint64_t block = DS__COMM_ITEM / p->size;
    const ds__comm_rows together = ds__comm_rows_of(p);
    ds__comm_position at;
    uint64_t i = first * block;
    uint64_t end = (first + count) * block;
    if (end > p->elements)
        end = p->elements;
    if (i >= end)
        return 0;
    ds__comm_position_set(&at, p, i);
    while (i < end) {
        uint64_t rows = ds__comm_rows_together(&together, p, &at, end - i);
        if (rows) {
            ds__comm_copy_rows(p, &at, together.tile != 0, rows);
            i += rows * p->dims.size[p->ndim - 1];
        } else {
            i += ds__comm_copy_rest(p, &at, end - i);
            rows = 1;
        }
        ds__comm_position_advance(&at, p, rows);
    }
    return 0;
}

#endif
