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

#define DS__COMM_COPY_ROW(BYTES)                                           \
    {                                                                      \
        for (; n >= 4; n -= 4, dst += 4 * dst_step, src += 4 * src_step) { \
            memcpy(dst, src, (BYTES));                                     \
            memcpy(dst + dst_step, src + src_step, (BYTES));               \
            memcpy(dst + 2 * dst_step, src + 2 * src_step, (BYTES));       \
            memcpy(dst + 3 * dst_step, src + 3 * src_step, (BYTES));       \
        }                                                                  \
        for (; n > 0; n--, dst += dst_step, src += src_step)               \
            memcpy(dst, src, (BYTES));                                     \
    }

static void ds__comm_copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step,
                              uint32_t size, uint64_t n) {
    if (dst_step == (int64_t)size && src_step == (int64_t)size)
        memcpy(dst, src, (size_t)(n * size));
    else if (size == 1)
        DS__COMM_COPY_ROW(1)
    else if (size == 2)
        DS__COMM_COPY_ROW(2)
    else if (size == 4)
        DS__COMM_COPY_ROW(4)
    else if (size == 8)
        DS__COMM_COPY_ROW(8)
    else
        DS__COMM_COPY_ROW(16)
}

/* Rows of a transposition, a multiple of DS__COMM_LINE / size: where a row of the result lies in
   a column of the source, both are read and written by whole cache lines, in tiles that are
   turned in between; down the columns first, since each may be in a page of its own. */
enum { DS__COMM_LINE = 64, DS__COMM_TILES = 8 };

#define DS__COMM_TURN(BYTES)                                                        \
    for (uint64_t column = 0; column < columns; column += (uint64_t)side) {         \
        int n = columns - column < (uint64_t)side ? (int)(columns - column) : side; \
        for (uint64_t row = 0; row < rows; row += (uint64_t)side) {                 \
            const char *from = src + (int64_t)column * src_column + row * (BYTES);  \
            char *to = dst + (int64_t)row * dst_row + column * (BYTES),             \
                 *turned = n < side ? to : tile;                                    \
            int64_t pitch = n < side ? dst_row : DS__COMM_LINE;                     \
            for (int c = 0; c < n; c++, from += src_column) {                       \
                char *at = turned + c * (BYTES);                                    \
                for (int r = 0; r < DS__COMM_LINE / (BYTES); r += 4) {              \
                    memcpy(at, from + r * (BYTES), (BYTES));                        \
                    memcpy(at + pitch, from + (r + 1) * (BYTES), (BYTES));          \
                    memcpy(at + 2 * pitch, from + (r + 2) * (BYTES), (BYTES));      \
                    memcpy(at + 3 * pitch, from + (r + 3) * (BYTES), (BYTES));      \
                    at += 4 * pitch;                                                \
                }                                                                   \
            }                                                                       \
            for (int r = 0; r < side && n == side; r++)                             \
                memcpy(to + r * dst_row, tile + r * DS__COMM_LINE, DS__COMM_LINE);  \
        }                                                                           \
    }

static void ds__comm_turn_rows(char *dst, int64_t dst_row, const char *src, int64_t src_column,
                               uint32_t size, uint64_t rows, uint64_t columns) {
    char tile[DS__COMM_LINE * DS__COMM_LINE];
    const int side = DS__COMM_LINE / (int)size;
    if (size == 1)
        DS__COMM_TURN(1)
    else if (size == 2)
        DS__COMM_TURN(2)
    else if (size == 4)
        DS__COMM_TURN(4)
    else
        DS__COMM_TURN(8)
}

/* How many rows a tile has, 0 where the rows are better copied one by one: a column's cache line
   holds what the next rows want, and most of the time it stays in the cache until then. It does
   not where there are many columns, or where they are so far apart that they compete for the
   same places. */
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

/* Row by row; rows that are very short by columns, and those of some transpositions by tiles.
   The position is computed once and then counted on. */
enum { DS__COMM_SHORT = 8, DS__COMM_ROWS = 256 };

static int ds__comm_pack_items(size_t first, size_t count, const void *args) {
    const ds__comm_pack_args *p = args;
    const ds__comm_dims *d = &p->dims;
    uint64_t block = DS__COMM_ITEM / p->size, i = first * block, end = (first + count) * block,
             rest = i, index[DS__COMM_DIMS];
    int64_t to = 0, from = 0;
    uint32_t last = p->ndim - 1;
    uint64_t row = d->size[last], tile = ds__comm_tile(p),
             most = tile                               ? tile * DS__COMM_TILES
                    : row < DS__COMM_SHORT && last > 0 ? DS__COMM_ROWS
                                                       : 0;
    if (end > p->elements)
        end = p->elements;
    if (i >= end)
        return 0;
    for (uint32_t k = p->ndim; k-- > 0; rest /= d->size[k]) {
        index[k] = rest % d->size[k];
        to += (int64_t)index[k] * d->dst[k];
        from += (int64_t)index[k] * d->src[k];
    }
    while (i < end) {
        uint64_t rows = 0;
        if (most && index[last] == 0) { /* whole ones, of one plane */
            rows = d->size[last - 1] - index[last - 1];
            if (rows > (end - i) / row)
                rows = (end - i) / row;
            if (rows > most)
                rows = most;
            if (tile)
                rows -= rows % tile;
        }
        if (rows == 0) {
            uint64_t n = row - index[last] < end - i ? row - index[last] : end - i;
            ds__comm_copy_row(p->dst + to, d->dst[last], p->src + from, d->src[last], p->size, n);
            i += n;
            to -= (int64_t)index[last] * d->dst[last];
            from -= (int64_t)index[last] * d->src[last];
            index[last] = 0;
            rows = 1;
        } else {
            i += rows * row;
            if (tile)
                ds__comm_turn_rows(p->dst + to, d->dst[last - 1], p->src + from, d->src[last],
                                   p->size, rows, row);
            else
                for (int64_t c = 0; c < (int64_t)row; c++)
                    ds__comm_copy_row(p->dst + to + c * d->dst[last], d->dst[last - 1],
                                      p->src + from + c * d->src[last], d->src[last - 1], p->size,
                                      rows);
        }
        for (uint32_t k = last; k-- > 0; index[k] = 0, rows = 1) {
            to += (int64_t)rows * d->dst[k];
            from += (int64_t)rows * d->src[k];
            index[k] += rows;
            if (index[k] < d->size[k])
                break;
            to -= (int64_t)d->size[k] * d->dst[k];
            from -= (int64_t)d->size[k] * d->src[k];
        }
    }
    return 0;
}

#endif
