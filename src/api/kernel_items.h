/* api/kernel_items.h - elementwise kernels.

   Defines DS_KERNEL_1D, DS_KERNEL_2D and DS_KERNEL_3D. Each macro takes a parameter list and the
   body of one item. For the CPU, the macro defines the argument struct, the parameter table, the
   loop and the launch function; for a GPU, the kernel function. The body follows the macro, so the
   function of the item is declared before the loop and defined last.

   Threads: the functions of a kernel run on the threads of its driver. */
#ifndef DS__API_KERNEL_ITEMS_H
#define DS__API_KERNEL_ITEMS_H

#include "kernel_params.h"
#include "kernel_common.h"

/* ---- elementwise kernels --------------------------------------------------------------------- */

/** Defines the kernel `name` over items i = 0 .. n-1. The body of one item follows:

        DS_KERNEL_1D(saxpy, i, n, DS_VALUE(float, a), DS_READ(float, x, n),
                     DS_READ_WRITE(float, y, n)) {
            y[i] = a * x[i] + y[i];
        }

    Parameters, 1 to 24: DS_READ(type, name, extent), DS_WRITE and DS_READ_WRITE are pointers to
    memory of the device. The extent is the number of elements that a launch uses, an expression of
    the other parameters and n. DS_VALUE(type, name) is a value. `return` ends the item. Items run
    in any order and at the same time. DS_LAUNCH(saxpy, stream, n, a, x, y) launches the kernel. */
#define DS_KERNEL_1D(name, i, n, ...)                                                            \
    DS__ITEM_KERNEL(name, 1D, (size_t i DS__UNUSED, size_t n DS__UNUSED), (size_t n DS__UNUSED), \
                    (n), (n, 1, 1), __VA_ARGS__)

/** Defines a kernel over items (x, y), x = 0 .. nx-1, y = 0 .. ny-1, otherwise as DS_KERNEL_1D
   does. Item (x, y) has the number x + nx y. DS_LAUNCH(name, stream, nx, ny, ...) launches it. */
#define DS_KERNEL_2D(name, x, y, nx, ny, ...)                                                   \
    DS__ITEM_KERNEL(                                                                            \
        name, 2D,                                                                               \
        (size_t x DS__UNUSED, size_t y DS__UNUSED, size_t nx DS__UNUSED, size_t ny DS__UNUSED), \
        (size_t nx DS__UNUSED, size_t ny DS__UNUSED), (nx, ny), (nx, ny, 1), __VA_ARGS__)

/** Defines a kernel over items (x, y, z), otherwise as DS_KERNEL_2D does. */
#define DS_KERNEL_3D(name, x, y, z, nx, ny, nz, ...)                                    \
    DS__ITEM_KERNEL(name, 3D,                                                           \
                    (size_t x DS__UNUSED, size_t y DS__UNUSED, size_t z DS__UNUSED,     \
                     size_t nx DS__UNUSED, size_t ny DS__UNUSED, size_t nz DS__UNUSED), \
                    (size_t nx DS__UNUSED, size_t ny DS__UNUSED, size_t nz DS__UNUSED), \
                    (nx, ny, nz), (nx, ny, nz), __VA_ARGS__)

#define DS__ITEM_FUNCTION(name, index, ...)    \
    DS_KERNEL_FN DS__UNUSED void name##__item( \
        DS__LIST index DS__EACH(DS__AS_PARAMETER, 0, __VA_ARGS__))

#ifdef DEVSTREAM_KERNEL_DEVICE
#define DS__ITEM_KERNEL(name, rank, index, counts, numbers, dims, ...)                          \
    DS__ITEM_FUNCTION(name, index, __VA_ARGS__);                                                \
    DS__GLOBAL name(DS__EACH(DS__AS_DEVICE_PARAMETER, 0, __VA_ARGS__) ds_kernel_dims dsk__dims, \
                    uint64_t dsk__first, uint64_t dsk__count) {                                 \
        uint64_t dsk__i = (uint64_t)DS__CTAID * DS__NTID + DS__TID;                             \
        if (dsk__i >= dsk__count)                                                               \
            return;                                                                             \
        dsk__i += dsk__first;                                                                   \
        DS__ITEM_CALL_##rank(name, DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__))                   \
    }                                                                                           \
    DS__ITEM_FUNCTION(name, index, __VA_ARGS__)

#define DS__ITEM_CALL_1D(name, ...) name##__item((size_t)dsk__i, dsk__dims.n[0] __VA_ARGS__);
#define DS__ITEM_CALL_2D(name, ...)                                        \
    uint64_t dsk__y = dsk__dims_divide(&dsk__dims, 0, dsk__i);             \
    name##__item(dsk__i - dsk__y * dsk__dims.n[0], dsk__y, dsk__dims.n[0], \
                 dsk__dims.n[1] __VA_ARGS__);
#define DS__ITEM_CALL_3D(name, ...)                                                              \
    uint64_t dsk__row = dsk__dims_divide(&dsk__dims, 0, dsk__i);                                 \
    uint64_t dsk__z = dsk__dims_divide(&dsk__dims, 1, dsk__row);                                 \
    name##__item(dsk__i - dsk__row * dsk__dims.n[0], dsk__row - dsk__z * dsk__dims.n[1], dsk__z, \
                 dsk__dims.n[0], dsk__dims.n[1], dsk__dims.n[2] __VA_ARGS__);

#else
#define DS__ITEM_KERNEL(name, rank, index, counts, numbers, dims, ...)                  \
    DS__ITEM_FUNCTION(name, index, __VA_ARGS__);                                        \
    DS__KERNEL_ARGS(name, counts, dims, __VA_ARGS__)                                    \
    DS__KERNEL_EXACT static int name##__cpu(size_t dsk__first, size_t dsk__count,       \
                                            const void *dsk__args) {                    \
        const struct name##_args *dsk__a = (const struct name##_args *)dsk__args;       \
        DS__EACH(DS__AS_LOCAL, dsk__a, __VA_ARGS__)                                     \
        DS__ITEM_LOOP_##rank(name, DS__EACH(DS__AS_ARGUMENT, 0, __VA_ARGS__)) return 0; \
    }                                                                                   \
    DS__KERNEL_BYTES_##rank(name, counts, __VA_ARGS__)                                  \
        DS__KERNEL_DEF(name, counts, numbers, 0, 0, __VA_ARGS__)                        \
            DS__ITEM_FUNCTION(name, index, __VA_ARGS__)

#define DS__ITEM_LOOP_1D(name, ...)                                          \
    const size_t dsk__end = dsk__first + dsk__count;                         \
    const size_t dsk__n = dsk__a->dsk__dims.n[0];                            \
    DS__INDEPENDENT(size_t dsk__i = dsk__first; dsk__i < dsk__end; dsk__i++) \
    name##__item(dsk__i, dsk__n __VA_ARGS__);
#define DS__ITEM_LOOP_2D(name, ...)                                                  \
    const ds_kernel_dims dsk__d = dsk__a->dsk__dims;                                 \
    for (dsk__kernel_row dsk__r = dsk__row_begin(&dsk__d, dsk__first, dsk__count);   \
         dsk__r.begin < dsk__r.end; dsk__row_next(&dsk__d, &dsk__r))                 \
        DS__INDEPENDENT(size_t dsk__x = dsk__r.begin; dsk__x < dsk__r.end; dsk__x++) \
    name##__item(dsk__x, dsk__r.y, dsk__d.n[0], dsk__d.n[1] __VA_ARGS__);
#define DS__ITEM_LOOP_3D(name, ...)                                                  \
    const ds_kernel_dims dsk__d = dsk__a->dsk__dims;                                 \
    for (dsk__kernel_row dsk__r = dsk__row_begin(&dsk__d, dsk__first, dsk__count);   \
         dsk__r.begin < dsk__r.end; dsk__row_next(&dsk__d, &dsk__r))                 \
        DS__INDEPENDENT(size_t dsk__x = dsk__r.begin; dsk__x < dsk__r.end; dsk__x++) \
    name##__item(dsk__x, dsk__r.y, dsk__r.z, dsk__d.n[0], dsk__d.n[1], dsk__d.n[2] __VA_ARGS__);

/* The items of a row that belong to a piece of a launch. */
typedef struct dsk__kernel_row {
    size_t begin; /* items of the row: begin to end - 1 */
    size_t end;
    size_t y;
    size_t z;
    size_t left; /* items of the piece after this row */
} dsk__kernel_row;

static inline void dsk__row_cut(const ds_kernel_dims *d, dsk__kernel_row *r) {
    size_t room = d->n[0] - r->begin;
    size_t take = r->left < room ? r->left : room;
    r->end = r->begin + take;
    r->left -= take;
}

static inline dsk__kernel_row dsk__row_begin(const ds_kernel_dims *d, size_t first, size_t count) {
    dsk__kernel_row r;
    size_t row = first / d->n[0];
    r.begin = first - row * d->n[0];
    r.z = row / d->n[1];
    r.y = row - r.z * d->n[1];
    r.left = count;
    dsk__row_cut(d, &r);
    return r;
}

static inline void dsk__row_next(const ds_kernel_dims *d, dsk__kernel_row *r) {
    r->begin = 0;
    if (++r->y == d->n[1]) {
        r->y = 0;
        r->z++;
    }
    dsk__row_cut(d, r);
}
#endif

#endif
