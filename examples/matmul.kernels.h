/* matmul.kernels.h - the kernels of matmul.c, for the CPU and for GPUs. Matrices are row by row:
   a has m rows of k numbers, b has k rows of n, c = a b has m rows of n.

   After a change, `tools/devstream-kernels examples/matmul.kernels.h` writes the CUDA form. */
#ifndef MATMUL_KERNELS_H
#define MATMUL_KERNELS_H
#include "devstream_kernel.h"
#if __has_include("matmul.ptx.h")
#include "matmul.ptx.h"
#endif

/* One number of c per item, from global memory. */
DS_KERNEL_2D(matmul_plain, x, y, n, m, DS_VALUE(uint32_t, k), DS_READ(float, a, m *k),
             DS_READ(float, b, k *n), DS_WRITE(float, c, m *n)) {
    float sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += a[y * k + i] * b[i * n + x];
    c[y * n + x] = sum;
}

enum { TILE = 16 };

/* One number of c per thread. A block goes through a and b in tiles, which it copies to shared
   memory, so each number is read from global memory once per tile instead of TILE times. Beyond the
   edges of a and b a tile has zeros. */
DS_BLOCK_KERNEL_2D(matmul_tiled, TILE, TILE, DS_VALUE(uint32_t, m), DS_VALUE(uint32_t, n),
                   DS_VALUE(uint32_t, k), DS_READ(float, a, (size_t)m *k),
                   DS_READ(float, b, (size_t)k *n), DS_WRITE(float, c, (size_t)m *n)) {
    DS_SHARED(float, tile_a, TILE, TILE);
    DS_SHARED(float, tile_b, TILE, TILE);
    DS_PRIVATE(float, sum);
    const uint32_t row = DS_BLOCK_Y * TILE;
    const uint32_t column = DS_BLOCK_X * TILE;

    DS_THREADS DS_OWN(sum) = 0;
    for (uint32_t at = 0; at < k; at += TILE) {
        DS_THREADS {
            const uint32_t tx = DS_THREAD_X;
            const uint32_t ty = DS_THREAD_Y;
            const int in_a = row + ty < m && at + tx < k;
            const int in_b = at + ty < k && column + tx < n;
            tile_a[ty][tx] = in_a ? a[(size_t)(row + ty) * k + at + tx] : 0;
            tile_b[ty][tx] = in_b ? b[(size_t)(at + ty) * n + column + tx] : 0;
        }
        DS_THREADS {
            DS_UNROLL
            for (uint32_t i = 0; i < TILE; i++)
                DS_OWN(sum) += tile_a[DS_THREAD_Y][i] * tile_b[i][DS_THREAD_X];
        }
    }
    DS_THREADS {
        if (row + DS_THREAD_Y < m && column + DS_THREAD_X < n)
            c[(size_t)(row + DS_THREAD_Y) * n + column + DS_THREAD_X] = DS_OWN(sum);
    }
}
#endif
