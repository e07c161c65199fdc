/* once.kernels.h - kernels of bench/once.c. */
#ifndef BENCH_ONCE_KERNELS_H
#define BENCH_ONCE_KERNELS_H
#include "devstream_kernel.h"

DS_KERNEL_1D(add, i, n, DS_READ(float, a, n), DS_READ(float, b, n), DS_WRITE(float, c, n)) {
    c[i] = a[i] + b[i];
}

DS_KERNEL_1D(saxpy, i, n, DS_VALUE(float, factor), DS_READ(float, a, n),
             DS_READ_WRITE(float, b, n)) {
    b[i] = factor * a[i] + b[i];
}

/* Of an image of nx + 2 columns and ny + 2 rows. */
DS_KERNEL_2D(stencil, x, y, nx, ny, DS_READ(float, a, (nx + 2) * (ny + 2)),
             DS_WRITE(float, c, (nx + 2) * (ny + 2))) {
    size_t row = nx + 2;
    size_t at = (y + 1) * row + x + 1;
    c[at] = 0.25f * ((a[at - 1] + a[at + 1]) + (a[at - row] + a[at + row]));
}
#endif
