/* jacobi.kernels.h - the kernels of jacobi.c, for the CPU and for GPUs.

   After a change, `tools/devstream-kernels examples/jacobi.kernels.h` writes the CUDA form. */
#ifndef JACOBI_KERNELS_H
#define JACOBI_KERNELS_H
#include "devstream_kernel.h"
#if __has_include("jacobi.ptx.h")
#include "jacobi.ptx.h"
#endif

/* A sweep over ny rows of nx inner points: the mean of the four neighbours. A row has two points
   more, which are never written. `in` begins at the row above, `out` at the first inner point: the
   halo rows, which another stream copies at the same time, are not part of it. */
DS_KERNEL_2D(sweep, x, y, nx, ny, DS_READ(float, in, (nx + 2) * (ny + 2)),
             DS_WRITE(float, out, (nx + 2) * ny - 2)) {
    size_t row = nx + 2;
    size_t at = (y + 1) * row + x + 1;
    out[y * row + x] = 0.25f * ((in[at - 1] + in[at + 1]) + (in[at - row] + in[at + row]));
}

/* The bits of a float; those of numbers from 0 up are in the order of the numbers. */
DS_KERNEL_FN uint32_t bits_of(float x) {
    union {
        float number;
        uint32_t bits;
    } u;

    u.number = x;
    return u.bits;
}

enum { CHANGE_THREADS = 128 };

/* The largest change of a point: a block finds that of its row. A maximum has the same bits in any
   order. */
DS_BLOCK_KERNEL_1D(largest_change, CHANGE_THREADS, DS_VALUE(uint32_t, nx),
                   DS_READ(float, a, (size_t)nx *DS_GRID_X),
                   DS_READ(float, b, (size_t)nx *DS_GRID_X), DS_READ_WRITE(uint32_t, largest, 1)) {
    DS_SHARED(float, most, CHANGE_THREADS);
    const size_t row = (size_t)DS_BLOCK_X * nx;
    DS_THREADS {
        float mine = 0;
        for (uint32_t x = DS_THREAD_X; x < nx; x += CHANGE_THREADS)
            mine = ds_fmaxf(mine, ds_absf(a[row + x] - b[row + x]));
        most[DS_THREAD_X] = mine;
    }
    for (uint32_t half = CHANGE_THREADS / 2; half > 0; half /= 2) {
        DS_THREADS {
            if (DS_THREAD_X < half)
                most[DS_THREAD_X] = ds_fmaxf(most[DS_THREAD_X], most[DS_THREAD_X + half]);
        }
    }
    DS_THREADS {
        if (DS_THREAD_X == 0)
            (void)ds_atomic_max_u32(largest, bits_of(most[0]));
    }
}
#endif
