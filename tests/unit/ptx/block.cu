/* The threads of a block together. */
#include "device.h"

KERNEL identity(u32 *out) {
    u32 x = (u32)__nvvm_read_ptx_sreg_tid_x(), y = (u32)__nvvm_read_ptx_sreg_tid_y(),
        z = (u32)__nvvm_read_ptx_sreg_tid_z();
    u32 nx = (u32)__nvvm_read_ptx_sreg_ntid_x(), ny = (u32)__nvvm_read_ptx_sreg_ntid_y(),
        nz = (u32)__nvvm_read_ptx_sreg_ntid_z();
    u32 bx = (u32)__nvvm_read_ptx_sreg_ctaid_x(), by = (u32)__nvvm_read_ptx_sreg_ctaid_y(),
        bz = (u32)__nvvm_read_ptx_sreg_ctaid_z();
    u32 gx = (u32)__nvvm_read_ptx_sreg_nctaid_x(), gy = (u32)__nvvm_read_ptx_sreg_nctaid_y();
    u32 block = (bz * gy + by) * gx + bx, thread = (z * ny + y) * nx + x;
    u32 *p = out + (block * (nx * ny * nz) + thread) * 3;
    p[0] = x | y << 8 | z << 16;
    p[1] = bx | by << 8 | bz << 16;
    p[2] = (u32)__nvvm_read_ptx_sreg_laneid() + 32u * (thread / 32u) +
           (u32)__nvvm_read_ptx_sreg_nctaid_z();
}

__attribute__((launch_bounds(64))) KERNEL bounded(u32 *out) {
    out[ITEM] = NTID;
}

KERNEL barriers(u32 *out) {
    u32 t = TID;
    out[t] = (u32)__nvvm_bar0_popc((int)(t & 1));
    out[t] += (u32)__nvvm_bar0_and(t < 1000) << 8;
    out[t] += (u32)__nvvm_bar0_or(t == 5) << 9;
    __nvvm_bar_sync(1);
    if (t >= 16)
        return;
    BARRIER;
    out[t] += 1u << 16;
}

KERNEL histogram(u32 *bins, const u8 *data, u64 n) {
    __shared__ u32 local[256];
    for (u32 b = TID; b < 256; b += NTID)
        local[b] = 0;
    BARRIER;
    for (u64 i = ITEM; i < n; i += (u64)NTID * NCTAID)
        __atomic_fetch_add(&local[data[i]], 1u, __ATOMIC_RELAXED);
    BARRIER;
    for (u32 b = TID; b < 256; b += NTID)
        if (local[b])
            __sync_fetch_and_add(&bins[b], local[b]);
}

extern __shared__ float dynamic[];

KERNEL reduce(float *out, const float *in, u32 n) {
    __shared__ float extra[4];
    u32 t = TID;
    if (t < 4)
        extra[t] = (float)t;
    dynamic[t] = ITEM < n ? in[ITEM] : 0.0f;
    BARRIER;
    for (u32 half = NTID / 2; half; half /= 2) {
        if (t < half)
            dynamic[t] += dynamic[t + half];
        BARRIER;
    }
    if (!t)
        out[CTAID] = dynamic[0] + extra[CTAID & 3];
}

/* Threads that leave early, and a barrier that the others meet many times. */
KERNEL rounds(u32 *out, u32 n) {
    __shared__ u32 turn[64];
    u32 t = TID;
    turn[t] = t;
    if (t >= n)
        return;
    for (u32 k = 0; k < 40; k++) {
        BARRIER;
        u32 next = turn[(t + 1) % n];
        BARRIER;
        turn[t] = next + 1;
    }
    out[t] = turn[t];
}
