/* api/kernel_dims.h - extents of a launch, for both forms of a kernel.

   Declares ds_kernel_dims. Items are numbered row by row, i = x + nx (y + ny z). To get x, y and z
   of an item, a GPU multiplies by reciprocals that the launch computes (Granlund, Montgomery:
   Division by invariant integers using multiplication, PLDI 1994). The reciprocals are exact for
   items below 2^32; larger launches divide.

   Threads: any. */
#ifndef DS__API_KERNEL_DIMS_H
#define DS__API_KERNEL_DIMS_H

#include "kernel_target.h"

/* ---- extents of a launch --------------------------------------------------------------------- */

/** Numbers of items in x, y and z, or of blocks; with reciprocals of the first two. */
typedef struct ds_kernel_dims {
    size_t n[3];            /**< numbers; 1 for dimensions that a kernel does not have */
    uint32_t multiplier[2]; /**< private: reciprocals of n[0] and n[1], less 2^32 */
    uint32_t shift[2];      /**< private */
} ds_kernel_dims;

#ifdef DEVSTREAM_KERNEL_DEVICE
/* Returns i / n[axis]. The upper half of the product, plus i, is below 2^33. */
DS_KERNEL_FN uint64_t dsk__dims_divide(const ds_kernel_dims *d, int axis, uint64_t i) {
    if (i >> 32)
        return i / d->n[axis];
    uint64_t high = (i * d->multiplier[axis]) >> 32;
    return (high + i) >> d->shift[axis];
}
#else
/* Fills a reciprocal: shift is the least s with 2^s >= n, multiplier 2^32 (2^s - n) / n + 1. */
static inline void dsk__dims_reciprocal(ds_kernel_dims *d, int axis) {
    uint64_t n = d->n[axis];
    uint32_t shift = 0;
    d->multiplier[axis] = 0;
    d->shift[axis] = 0;
    if (n == 0 || n >> 32)
        return;
    while (((uint64_t)1 << shift) < n)
        shift++;
    d->shift[axis] = shift;
    d->multiplier[axis] = (uint32_t)(((((uint64_t)1 << shift) - n) << 32) / n + 1);
}

/** Returns the extents of a launch. */
static inline ds_kernel_dims ds_kernel_dims_of(size_t nx, size_t ny, size_t nz) {
    ds_kernel_dims d;
    d.n[0] = nx;
    d.n[1] = ny;
    d.n[2] = nz;
    dsk__dims_reciprocal(&d, 0);
    dsk__dims_reciprocal(&d, 1);
    return d;
}
#endif

#endif
