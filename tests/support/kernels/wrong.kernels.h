/* wrong.kernels.h - kernels without a CUDA form, which break rules of block kernels. */
#ifndef WRONG_KERNELS_H
#define WRONG_KERNELS_H
#include "devstream_kernel.h"

DS_KERNEL_1D(wrong_no_ptx, i, n, DS_WRITE(uint32_t, out, n)) {
    out[i] = 1;
}

DS_BLOCK_KERNEL_1D(wrong_return, 8, DS_VALUE(uint32_t, when),
                   DS_WRITE(uint32_t, out, 8 * DS_GRID_X)) {
    DS_THREADS {
        if (DS_BLOCK_X == when)
            return;
        out[DS_BLOCK_X * 8 + DS_THREAD_X] = 1;
    }
}

typedef struct wrong_large {
    uint32_t words[1024];
} wrong_large;

DS_BLOCK_KERNEL_1D(wrong_size, 512, DS_WRITE(uint32_t, out, 8 * DS_GRID_X)) {
    DS_PRIVATE(wrong_large, much);
    DS_THREADS {
        DS_OWN(much).words[0] = 1;
        out[DS_BLOCK_X] = DS_OWN(much).words[0];
    }
}
#endif
