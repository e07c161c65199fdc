/* debug.kernels.h - block kernels with the checks of DEVSTREAM_KERNEL_DEBUG: the program defines
   it, and tools/kernels.sh calls devstream-kernels --debug. */
#ifndef DEBUG_KERNELS_H
#define DEBUG_KERNELS_H
#include "devstream_kernel.h"
#include "debug.ptx.h"

/* Breaks a rule: `own` is no DS_PRIVATE but has another value in each thread. In the CUDA form the
   threads below `split` are then in another thread loop than the rest. */
DS_BLOCK_KERNEL_1D(debug_split, 8, DS_VALUE(uint32_t, split), DS_WRITE(uint32_t, out, 8)) {
    uint32_t own = 0;
    DS_THREADS {
        own = DS_THREAD_X;
    }
    if (own < split) {
        DS_THREADS {
            out[DS_THREAD_X] = 1;
        }
    } else {
        DS_THREADS {
            out[DS_THREAD_X] = 2;
        }
    }
}

/* The CPU form reads what no thread wrote. */
DS_BLOCK_KERNEL_1D(debug_unwritten, 8, DS_WRITE(float, out, 8)) {
    DS_PRIVATE(float, unwritten);
    DS_THREADS {
        out[DS_THREAD_X] = DS_OWN(unwritten);
    }
}
#endif
