/* once.kernels.h - kernels of tests/conformance/test_kernel_once.c, written for both drivers. */
#ifndef ONCE_KERNELS_H
#define ONCE_KERNELS_H
#include "devstream_kernel.h"
#include "once.ptx.h"

/* ---- elementwise ---- */

DS_KERNEL_1D(once_saxpy, i, n, DS_VALUE(float, a), DS_READ(float, x, n),
             DS_READ_WRITE(float, y, n)) {
    y[i] = a * x[i] + y[i];
}

/* Each item adds 1 + n to its place, so an item that runs twice or with another n shows. */
DS_KERNEL_1D(once_touch, i, n, DS_READ_WRITE(uint64_t, seen, n)) {
    seen[i] += 1 + n;
}

DS_KERNEL_2D(once_number_2d, x, y, nx, ny, DS_READ_WRITE(uint64_t, out, nx *ny)) {
    out[y * nx + x] += 1 + x + 1000 * y + 1000000 * nx + 1000000000 * ny;
}

DS_KERNEL_3D(once_number_3d, x, y, z, nx, ny, nz, DS_READ_WRITE(uint64_t, out, nx *ny *nz)) {
    out[(z * ny + y) * nx + x] += 1 + x + 100 * y + 10000 * z + 1000000 * (nx + 10 * ny + 100 * nz);
}

/* return ends an item; every kind of value arrives. */
typedef struct once_pair {
    uint8_t small;
    double large;
} once_pair;

DS_KERNEL_1D(once_values, i, n, DS_VALUE(uint8_t, byte), DS_VALUE(int16_t, half),
             DS_VALUE(once_pair, pair), DS_VALUE(uint64_t, word), DS_WRITE(double, out, 4 * n)) {
    if (i % 2)
        return;
    out[4 * i] = byte;
    out[4 * i + 1] = half;
    out[4 * i + 2] = pair.small + pair.large;
    out[4 * i + 3] = (double)word;
}

DS_KERNEL_2D(once_stencil, x, y, nx, ny, DS_READ(float, in, nx *ny), DS_WRITE(float, out, nx *ny)) {
    size_t at = y * nx + x;
    if (x == 0 || y == 0 || x + 1 == nx || y + 1 == ny) {
        out[at] = in[at];
        return;
    }
    out[at] = 0.25f * ((in[at - 1] + in[at + 1]) + (in[at - nx] + in[at + nx]));
}

/* Every item changes the same numbers, of which the last values do not depend on the order. */
DS_KERNEL_FN uint32_t once_mix(uint32_t i) {
    i = (i ^ i >> 15) * 0x2c1b3c6du;
    return i ^ i >> 12;
}

DS_KERNEL_1D(once_atomics, i, n, DS_READ_WRITE(uint32_t, words, 10),
             DS_READ_WRITE(int32_t, ints, 3), DS_READ_WRITE(uint64_t, longs, 4),
             DS_READ_WRITE(float, floats, 1), DS_READ_WRITE(double, doubles, 1)) {
    const uint32_t k = (uint32_t)i;
    const uint64_t high = (uint64_t)once_mix(k) << 20;
    (void)ds_atomic_add_u32(&words[0], once_mix(k));
    (void)ds_atomic_min_u32(&words[1], once_mix(k));
    (void)ds_atomic_max_u32(&words[2], once_mix(k));
    (void)ds_atomic_and_u32(&words[3], ~(k & 0xf0u));
    (void)ds_atomic_or_u32(&words[4], k << 8);
    (void)ds_atomic_xor_u32(&words[5], once_mix(k));
    (void)ds_atomic_add_u32(&words[7], ds_atomic_exchange_u32(&words[6], k));
    if (ds_atomic_cas_u32(&words[8], 0, k + 1) == 0)
        (void)ds_atomic_add_u32(&words[9], 1);
    (void)ds_atomic_add_i32(&ints[0], (int32_t)once_mix(k) / 2);
    (void)ds_atomic_min_i32(&ints[1], (int32_t)once_mix(k));
    (void)ds_atomic_max_i32(&ints[2], (int32_t)once_mix(k));
    (void)ds_atomic_add_u64(&longs[0], high);
    (void)ds_atomic_min_u64(&longs[1], high);
    (void)ds_atomic_max_u64(&longs[2], high);
    uint64_t old = 0;
    uint64_t seen = ds_atomic_cas_u64(&longs[3], old, old + high);
    while (seen != old) {
        old = seen;
        seen = ds_atomic_cas_u64(&longs[3], old, old + high);
    }
    (void)ds_atomic_add_f32(floats, (float)(k % 16));
    (void)ds_atomic_add_f64(doubles, (double)k);
}

/* ---- blocks ---- */

enum { ONCE_TILE = 16, ONCE_SCAN = 256, ONCE_BINS = 64, ONCE_HALO = 3 };

DS_BLOCK_KERNEL_2D(once_matmul, ONCE_TILE, ONCE_TILE, DS_VALUE(uint32_t, n),
                   DS_READ(float, a, (size_t)n *n), DS_READ(float, b, (size_t)n *n),
                   DS_WRITE(float, c, (size_t)n *n)) {
    DS_SHARED(float, tile_a, ONCE_TILE, ONCE_TILE);
    DS_SHARED(float, tile_b, ONCE_TILE, ONCE_TILE + 1);
    DS_PRIVATE(float, sum);
    DS_THREADS DS_OWN(sum) = 0;
    for (uint32_t k0 = 0; k0 < n; k0 += ONCE_TILE) {
        DS_THREADS {
            uint32_t row = DS_BLOCK_Y * ONCE_TILE + DS_THREAD_Y;
            uint32_t column = DS_BLOCK_X * ONCE_TILE + DS_THREAD_X;
            uint32_t ka = k0 + DS_THREAD_X;
            uint32_t kb = k0 + DS_THREAD_Y;
            tile_a[DS_THREAD_Y][DS_THREAD_X] = row < n && ka < n ? a[row * n + ka] : 0;
            tile_b[DS_THREAD_Y][DS_THREAD_X] = column < n && kb < n ? b[kb * n + column] : 0;
        }
        DS_THREADS {
            for (uint32_t k = 0; k < ONCE_TILE; k++)
                DS_OWN(sum) += tile_a[DS_THREAD_Y][k] * tile_b[k][DS_THREAD_X];
        }
    }
    DS_THREADS {
        uint32_t row = DS_BLOCK_Y * ONCE_TILE + DS_THREAD_Y;
        uint32_t column = DS_BLOCK_X * ONCE_TILE + DS_THREAD_X;
        if (row < n && column < n)
            c[row * n + column] = DS_OWN(sum);
    }
}

/* Inclusive sums of each block's numbers (Hillis, Steele: Data parallel algorithms, 1986). */
DS_BLOCK_KERNEL_1D(once_scan, ONCE_SCAN, DS_VALUE(uint32_t, n), DS_READ(uint32_t, in, n),
                   DS_WRITE(uint32_t, out, n)) {
    DS_SHARED(uint32_t, sums, 2, ONCE_SCAN);
    DS_THREADS {
        uint32_t i = DS_BLOCK_X * ONCE_SCAN + DS_THREAD_X;
        sums[0][DS_THREAD_X] = i < n ? in[i] : 0;
    }
    unsigned from = 0;
    for (unsigned step = 1; step < ONCE_SCAN; step *= 2) {
        DS_THREADS {
            uint32_t sum = sums[from][DS_THREAD_X];
            if (DS_THREAD_X >= step)
                sum += sums[from][DS_THREAD_X - step];
            sums[1 - from][DS_THREAD_X] = sum;
        }
        from = 1 - from;
    }
    DS_THREADS {
        uint32_t i = DS_BLOCK_X * ONCE_SCAN + DS_THREAD_X;
        if (i >= n)
            continue;
        out[i] = sums[from][DS_THREAD_X];
    }
}

DS_BLOCK_KERNEL_1D(once_histogram, 128, DS_VALUE(uint32_t, n), DS_READ(uint8_t, in, n),
                   DS_READ_WRITE(uint32_t, bins, ONCE_BINS)) {
    DS_SHARED(uint32_t, own, ONCE_BINS);
    DS_THREADS {
        if (DS_THREAD_X < ONCE_BINS)
            own[DS_THREAD_X] = 0;
    }
    DS_THREADS {
        for (uint32_t i = DS_BLOCK_X * 128 + DS_THREAD_X; i < n; i += DS_GRID_X * 128)
            (void)ds_atomic_add_block_u32(&own[in[i] % ONCE_BINS], 1);
    }
    DS_THREADS {
        if (DS_THREAD_X < ONCE_BINS)
            (void)ds_atomic_add_u32(&bins[DS_THREAD_X], own[DS_THREAD_X]);
    }
}

/* Every thread adds to one of three numbers, in a loop that compilers would like to vectorize. */
DS_BLOCK_KERNEL_1D(once_clash, 256, DS_WRITE(uint32_t, sums, 3 * DS_GRID_X),
                   DS_WRITE(uint32_t, places, 256 * DS_GRID_X)) {
    DS_SHARED(uint32_t, own, 4);
    DS_THREADS if (DS_THREAD_X < 4) own[DS_THREAD_X] = 0;
    DS_THREADS(void) ds_atomic_add_block_u32(&own[DS_THREAD_X % 3], DS_THREAD_X);
    DS_THREADS places[DS_BLOCK_X * 256 + DS_THREAD_X] = ds_atomic_add_block_u32(&own[3], 1);
    DS_THREADS if (DS_THREAD_X < 3) sums[DS_BLOCK_X * 3 + DS_THREAD_X] = own[DS_THREAD_X];
}

/* One thread writes, all threads read. LLVM must not move the load across the barrier. */
DS_BLOCK_KERNEL_1D(once_broadcast, 64, DS_WRITE(uint32_t, out, 64 * DS_GRID_X)) {
    DS_SHARED(uint32_t, first, 1);
    DS_THREADS if (DS_THREAD_RANK == 63) first[0] = 7;
    DS_THREADS out[DS_BLOCK_X * 64 + DS_THREAD_X] = first[0];
}

/* Sums of 2 ONCE_HALO + 1 neighbours; the block's numbers and a halo are in shared memory. */
DS_BLOCK_KERNEL_1D(once_halo, 64, DS_VALUE(uint32_t, n), DS_READ(int32_t, in, n),
                   DS_WRITE(int32_t, out, n)) {
    DS_SHARED(int32_t, near, 64 + 2 * ONCE_HALO);
    DS_THREADS {
        for (uint32_t k = DS_THREAD_X; k < 64 + 2 * ONCE_HALO; k += 64) {
            int64_t i = (int64_t)DS_BLOCK_X * 64 + k - ONCE_HALO;
            near[k] = i >= 0 && i < n ? in[i] : 0;
        }
    }
    DS_THREADS {
        uint32_t i = DS_BLOCK_X * 64 + DS_THREAD_X;
        int32_t sum = 0;
        for (uint32_t k = 0; k <= 2 * ONCE_HALO; k++)
            sum += near[DS_THREAD_X + k];
        if (i < n)
            out[i] = sum;
    }
}

/* Indices of blocks and threads in three dimensions, through private values. */
DS_BLOCK_KERNEL_3D(once_indices, 4, 3, 2,
                   DS_WRITE(uint32_t, out, (size_t)24 * DS_GRID_X * DS_GRID_Y * DS_GRID_Z)) {
    DS_PRIVATE(uint32_t, mine);
    DS_SHARED(uint32_t, all, 2, 3, 4);
    const uint32_t block = (DS_BLOCK_Z * DS_GRID_Y + DS_BLOCK_Y) * DS_GRID_X + DS_BLOCK_X;
    DS_THREADS DS_OWN(mine) = 1000 * block + DS_THREAD_RANK;
    DS_THREADS all[DS_THREAD_Z][DS_THREAD_Y][DS_THREAD_X] = DS_OWN(mine);
    DS_THREADS {
        uint32_t rank = (DS_THREAD_Z * 3 + DS_THREAD_Y) * 4 + DS_THREAD_X;
        out[block * 24 + rank] = all[1 - DS_THREAD_Z][2 - DS_THREAD_Y][3 - DS_THREAD_X];
    }
}
#endif
