/* Kernels as programs have them, for clang without CUDA's headers and for nvcc: a tiled matrix
   product, a scan, a histogram, a stencil, a local array, an exponential and a sine; conversions,
   vectors, functions and atomics.
   test_ptx_compilers.c compiles them with every compiler that is installed, and runs them. */
#ifdef __clang__
#include "device.h"
#define TID_X TID
#define TID_Y ((u32)__nvvm_read_ptx_sreg_tid_y())
#define CTAID_X CTAID
#define CTAID_Y ((u32)__nvvm_read_ptx_sreg_ctaid_y())
#define NTID_X NTID
#define NCTAID_X NCTAID
#define ADD(at, value) __atomic_fetch_add(at, value, __ATOMIC_RELAXED)
#define EX2(x) __nvvm_ex2_approx_f(x)
#define SINE(x) __nvvm_sin_approx_f(x)
#define DYNAMIC extern __shared__
#define LEAST(at, value) __atomic_fetch_min(at, value, __ATOMIC_RELAXED)
#define MOST(at, value) __atomic_fetch_max(at, value, __ATOMIC_RELAXED)
#define ANY_BIT(at, value) __atomic_fetch_or(at, value, __ATOMIC_RELAXED)
#define SWAP_IF(at, old, value) (void)__sync_val_compare_and_swap(at, old, value)
#define OUTLINE __attribute__((device, noinline))
#else
typedef signed char s8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int s32;
typedef unsigned u32;
typedef long long s64;
typedef unsigned long long u64;
#define KERNEL extern "C" __global__ void
#define TID_X threadIdx.x
#define TID_Y threadIdx.y
#define CTAID_X blockIdx.x
#define CTAID_Y blockIdx.y
#define NTID_X blockDim.x
#define NCTAID_X gridDim.x
#define BARRIER __syncthreads()
#define ADD(at, value) atomicAdd(at, value)
#define EX2(x) exp2f(x)
#define SINE(x) __sinf(x)
#define DYNAMIC extern __shared__
#define LEAST(at, value) atomicMin(at, value)
#define MOST(at, value) atomicMax(at, value)
#define ANY_BIT(at, value) atomicOr(at, value)
#define SWAP_IF(at, old, value) atomicCAS(at, old, value)
#define OUTLINE __device__ __noinline__
#endif

enum { TILE = 8 };

KERNEL matmul(const float *a, const float *b, float *c, s32 n) {
    __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
    s32 x = (s32)TID_X, y = (s32)TID_Y;
    s32 row = (s32)CTAID_Y * TILE + y, column = (s32)CTAID_X * TILE + x;
    float sum = 0;
    for (s32 t = 0; t < n; t += TILE) {
        tile_a[y][x] = row < n && t + x < n ? a[row * n + t + x] : 0;
        tile_b[y][x] = column < n && t + y < n ? b[(t + y) * n + column] : 0;
        BARRIER;
        for (s32 k = 0; k < TILE; k++)
            sum += tile_a[y][k] * tile_b[k][x];
        BARRIER;
    }
    if (row < n && column < n)
        c[row * n + column] = sum;
}

KERNEL scan(const u32 *in, u32 *out, u32 n) {
    DYNAMIC u32 part[];
    u32 i = TID_X;
    part[i] = i < n ? in[i] : 0;
    BARRIER;
    for (u32 step = 1; step < NTID_X; step *= 2) {
        u32 left = i >= step ? part[i - step] : 0;
        BARRIER;
        part[i] += left;
        BARRIER;
    }
    if (i < n)
        out[i] = part[i];
}

KERNEL histogram(const u8 *in, u32 *bins, u64 n) {
    __shared__ u32 local[256];
    for (u32 i = TID_X; i < 256; i += NTID_X)
        local[i] = 0;
    BARRIER;
    for (u64 i = CTAID_X * NTID_X + TID_X; i < n; i += NCTAID_X * NTID_X)
        ADD(&local[in[i]], 1u);
    BARRIER;
    for (u32 i = TID_X; i < 256; i += NTID_X)
        ADD(&bins[i], local[i]);
}

KERNEL stencil(const double *in, double *out, s32 width, s32 height) {
    s32 x = (s32)(CTAID_X * NTID_X + TID_X), y = (s32)CTAID_Y;
    if (x > 0 && y > 0 && x < width - 1 && y < height - 1)
        out[y * width + x] = 0.25 * (in[y * width + x - 1] + in[y * width + x + 1] +
                                     in[(y - 1) * width + x] + in[(y + 1) * width + x]);
}

KERNEL local_array(u32 *out, u32 rounds) {
    u32 values[32];
    for (u32 i = 0; i < 32; i++)
        values[i] = i + TID_X;
    for (u32 i = 0; i < rounds; i++)
        values[i * 7 % 32] += values[i * 3 % 32];
    out[TID_X] = values[TID_X % 32];
}

KERNEL waves(const float *in, float *out, s32 n) {
    s32 i = (s32)(CTAID_X * NTID_X + TID_X);
    if (i < n)
        out[i] = EX2(in[i]) * SINE(in[i]) / (in[i] * in[i] + 1.0f);
}

KERNEL conversions(const float *in, s64 *out, double *real) {
    u32 i = TID_X;
    float x = in[i];
    s64 *at = out + 8 * i;
    at[0] = (s8)(s32)x;
    at[1] = (u8)(s32)x;
    at[2] = (u16)(s32)x;
    at[3] = (s32)x;
    at[4] = x >= 0 ? (s64)(u32)x : -1;
    at[5] = (s64)x;
    at[6] = (s64)((double)x * 65536);
    at[7] = (s64)(float)at[6];
    real[i] = (double)(float)at[6] + (double)(s32)x + (double)(u32)at[2] + (double)(u64)at[1];
}

struct alignas(16) quad {
    float x, y, z, w;
};

struct alignas(4) bytes {
    u8 x, y, z, w;
};

KERNEL vectors(const quad *in, quad *out, const bytes *from, bytes *to) {
    u32 i = TID_X;
    quad q = in[i];
    bytes b = from[i];
    out[i] = quad{ q.w, q.z, q.y + q.x, q.x };
    to[i] = bytes{ b.y, b.x, b.w, (u8)(b.z + b.w) };
}

OUTLINE u32 fibonacci(u32 n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

OUTLINE quad turned(quad q, u32 by) {
    return by % 2 ? quad{ q.y, q.z, q.w, q.x } : q;
}

KERNEL functions(const quad *in, quad *out, u32 *numbers) {
    u32 i = TID_X;
    out[i] = turned(in[i], i);
    numbers[i] = fibonacci(i % 12);
}

KERNEL atomics(s32 *out, u32 *bits) {
    __shared__ s32 least, most;
    __shared__ u32 seen;
    s32 i = (s32)TID_X;
    if (i == 0) {
        least = 1000;
        most = -1000;
        seen = 0;
    }
    BARRIER;
    LEAST(&least, 7 - i);
    MOST(&most, i * 3);
    ANY_BIT(&seen, 1u << (i & 15));
    SWAP_IF(&out[3], 0, i + 1);
    BARRIER;
    LEAST(&out[0], least);
    MOST(&out[1], most);
    ANY_BIT(bits, seen);
    ADD(&out[2], 1);
}
