/* The arithmetic of kernels on a GPU: kernel_math.h as device code. */
#define DEVSTREAM_KERNEL_DEVICE
#include "../../src/devstream_kernel.h"

#include "kernel_math.h"

DS__GLOBAL math_floats(uint32_t which, uint32_t n, const float *px, const float *py,
                       const float *pz, float *out) {
    uint32_t i = (uint32_t)__nvvm_read_ptx_sreg_tid_x();
    i += (uint32_t)__nvvm_read_ptx_sreg_ctaid_x() * (uint32_t)__nvvm_read_ptx_sreg_ntid_x();
    if (i >= n)
        return;
    float x = px[i];
    float y = py[i];
    float z = pz[i];
    switch (which) {
#define X(name, expression)  \
    case MATH_##name:        \
        out[i] = expression; \
        break;
        MATH_FLOATS(X)
#undef X
    }
}

DS__GLOBAL math_doubles(uint32_t which, uint32_t n, const double *px, const double *py,
                        const double *pz, double *out) {
    uint32_t i = (uint32_t)__nvvm_read_ptx_sreg_tid_x();
    i += (uint32_t)__nvvm_read_ptx_sreg_ctaid_x() * (uint32_t)__nvvm_read_ptx_sreg_ntid_x();
    if (i >= n)
        return;
    double x = px[i];
    double y = py[i];
    double z = pz[i];
    switch (which) {
#define X(name, expression)  \
    case MATH_##name:        \
        out[i] = expression; \
        break;
        MATH_DOUBLES(X)
#undef X
    }
}

/* Each atomic operation once on global memory: the old values go to `old`. Then sums over all
   threads, in global and in shared memory. */
DS__GLOBAL math_atomics(math_numbers *m, math_numbers *old) {
    __attribute__((shared)) static uint32_t sum;
    uint32_t i = (uint32_t)__nvvm_read_ptx_sreg_tid_x();
    if (i == 0) {
        math_use_atomics(m, old);
        sum = 0;
    }
    __syncthreads();
    ds_atomic_add_u32(&sum, i);
    ds_atomic_max_u64(&m->last, i);
    __syncthreads();
    if (i == 0)
        m->sum = sum;
}
