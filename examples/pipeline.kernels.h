/* pipeline.kernels.h - the kernels of pipeline.c, for the CPU and for GPUs.

   After a change, `tools/devstream-kernels examples/pipeline.kernels.h` writes the CUDA form. */
#ifndef PIPELINE_KERNELS_H
#define PIPELINE_KERNELS_H
#include "devstream_kernel.h"
#if __has_include("pipeline.ptx.h")
#include "pipeline.ptx.h"
#endif

enum { RADIUS = 2 };

/* Weights 1 4 6 4 1 over 16, in both directions. Integers: nothing is rounded before the end. */
DS_KERNEL_FN uint32_t weigh(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e) {
    return a + e + 4 * (b + d) + 6 * c;
}

/* Sums along rows. Rows have a border of RADIUS more bytes on both sides. */
DS_KERNEL_2D(blur_rows, x, y, nx, ny, DS_READ(uint8_t, in, (nx + 2 * RADIUS) * ny),
             DS_WRITE(uint16_t, out, nx *ny)) {
    const uint8_t *at = in + y * (nx + 2 * RADIUS) + x;
    out[y * nx + x] = (uint16_t)weigh(at[0], at[1], at[2], at[3], at[4]);
}

/* Sums along columns, rounded. The input has RADIUS more rows above and below. */
DS_KERNEL_2D(blur_columns, x, y, nx, ny, DS_READ(uint16_t, in, nx *(ny + 2 * RADIUS)),
             DS_WRITE(uint8_t, out, nx *ny)) {
    const uint16_t *at = in + y * nx + x;
    uint32_t sum = weigh(at[0], at[nx], at[2 * nx], at[3 * nx], at[4 * nx]);
    out[y * nx + x] = (uint8_t)((sum + 128) / 256);
}
#endif
