/* Floating point and conversions. */
#include "device.h"

#define FLOATING(name, T, s, half_of)                                                          \
    KERNEL name(T *out, const T *a, const T *b, const T *c, u32 n) {                           \
        u32 i = ITEM;                                                                          \
        if (i >= n)                                                                            \
            return;                                                                            \
        T x = a[i], y = b[i], z = c[i];                                                        \
        out += (u64)i * 20;                                                                    \
        out[0] = x + y;                                                                        \
        out[1] = x - y;                                                                        \
        out[2] = x * y;                                                                        \
        out[3] = x / y;                                                                        \
        out[4] = __builtin_fma##s(x, y, z);                                                    \
        out[5] = x * y + z;                                                                    \
        out[6] = __nvvm_sqrt_rn_##half_of(x);                                                  \
        out[7] = __nvvm_rcp_rn_##half_of(x);                                                   \
        out[8] = -x;                                                                           \
        out[9] = __builtin_fabs##s(x);                                                         \
        out[10] = __builtin_fmin##s(x, y);                                                     \
        out[11] = __builtin_fmax##s(x, y);                                                     \
        out[12] = __builtin_copysign##s(x, y);                                                 \
        out[13] = __builtin_floor##s(x);                                                       \
        out[14] = __builtin_ceil##s(x);                                                        \
        out[15] = __builtin_trunc##s(x);                                                       \
        out[16] = __builtin_rint##s(x);                                                        \
        out[17] = x < y ? (T)1 : x > y ? (T)2 : x == y ? (T)3 : (T)4;                          \
        out[18] = (T)((x >= y) + 2 * (x <= y) + 4 * (x != y) + 8 * !(x < y) + 16 * !(x >= y) + \
                      32 * __builtin_isunordered(x, y));                                       \
        out[19] = x != x ? y : __builtin_round##s(x);                                          \
    }
FLOATING(floating_f32, float, f, f)
FLOATING(floating_f64, double, , d)

KERNEL directed_f32(float *out, const float *a, const float *b, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    float x = a[i], y = b[i];
    out += (u64)i * 18;
    out[0] = __nvvm_add_rz_f(x, y);
    out[1] = __nvvm_add_rm_f(x, y);
    out[2] = __nvvm_add_rp_f(x, y);
    out[3] = __nvvm_mul_rz_f(x, y);
    out[4] = __nvvm_mul_rm_f(x, y);
    out[5] = __nvvm_mul_rp_f(x, y);
    out[6] = __nvvm_div_rz_f(x, y);
    out[7] = __nvvm_div_rm_f(x, y);
    out[8] = __nvvm_div_rp_f(x, y);
    out[9] = __nvvm_fma_rz_f(x, y, 1.5f);
    out[10] = __nvvm_fma_rm_f(x, y, 1.5f);
    out[11] = __nvvm_fma_rp_f(x, y, 1.5f);
    out[12] = __nvvm_sqrt_rz_f(x);
    out[13] = __nvvm_sqrt_rm_f(x);
    out[14] = __nvvm_sqrt_rp_f(x);
    out[15] = __nvvm_rcp_rz_f(x);
    out[16] = __nvvm_add_rn_f(x, y);
    out[17] = __nvvm_saturate_f(x);
}

KERNEL directed_f64(double *out, const double *a, const double *b, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    double x = a[i], y = b[i];
    out += (u64)i * 10;
    out[0] = __nvvm_add_rz_d(x, y);
    out[1] = __nvvm_add_rp_d(x, y);
    out[2] = __nvvm_mul_rz_d(x, y);
    out[3] = __nvvm_mul_rm_d(x, y);
    out[4] = __nvvm_div_rz_d(x, y);
    out[5] = __nvvm_div_rp_d(x, y);
    out[6] = __nvvm_fma_rm_d(x, y, 1.5);
    out[7] = __nvvm_sqrt_rp_d(x);
    out[8] = __nvvm_rcp_rm_d(x);
    out[9] = __nvvm_saturate_d(x);
}

/* Out of range a C conversion is undefined, the builtins are not. */
KERNEL to_integer(s64 *out, const float *a, const double *b, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    float x = a[i];
    double y = b[i];
    out += (u64)i * 18;
    out[0] = __nvvm_f2i_rz(x);
    out[1] = __nvvm_f2i_rn(x);
    out[2] = __nvvm_f2i_rm(x);
    out[3] = __nvvm_f2i_rp(x);
    out[4] = (s64)(u32)__nvvm_f2ui_rz(x);
    out[5] = (s64)(u32)__nvvm_f2ui_rn(x);
    out[6] = __nvvm_f2ll_rz(x);
    out[7] = __nvvm_f2ll_rn(x);
    out[8] = (s64)__nvvm_f2ull_rz(x);
    out[9] = (s64)__nvvm_f2ull_rp(x);
    out[10] = __nvvm_d2i_rz(y);
    out[11] = __nvvm_d2i_rn(y);
    out[12] = __nvvm_d2i_rm(y);
    out[13] = (s64)(u32)__nvvm_d2ui_rp(y);
    out[14] = __nvvm_d2ll_rz(y);
    out[15] = __nvvm_d2ll_rn(y);
    out[16] = (s64)__nvvm_d2ull_rz(y);
    out[17] = (s64)__nvvm_d2ull_rm(y);
}

KERNEL from_integer(double *out, const s64 *a, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    s64 x = a[i];
    out += (u64)i * 20;
    out[0] = (float)x;
    out[1] = (float)(u64)x;
    out[2] = (float)(s32)x;
    out[3] = (float)(u32)x;
    out[4] = (float)(s16)x;
    out[5] = (float)(u8)x;
    out[6] = (double)x;
    out[7] = (double)(u64)x;
    out[8] = (double)(s32)x;
    out[9] = (double)(u16)x;
    out[10] = __nvvm_ll2f_rm(x);
    out[11] = __nvvm_ll2f_rp(x);
    out[12] = __nvvm_ull2f_rm((u64)x);
    out[13] = __nvvm_i2f_rp((s32)x);
    out[14] = __nvvm_ui2f_rp((u32)x);
    out[15] = __nvvm_ll2d_rp(x);
    out[16] = __nvvm_ull2d_rp((u64)x);
    out[17] = __nvvm_ll2d_rm(x);
    out[18] = (double)(s8)x;
    out[19] = (x & 1) ? 1.0 : -0.5;
}

KERNEL narrow(float *out, const double *a, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    double x = a[i];
    out += (u64)i * 8;
    out[0] = (float)x;
    out[1] = __nvvm_d2f_rz(x);
    out[2] = __nvvm_d2f_rm(x);
    out[3] = __nvvm_d2f_rp(x);
    out[4] = (float)(double)(float)x;
    out[5] = (float)((double)(float)x * 3.0);
    out[6] = (float)__builtin_floor(x);
    out[7] = (float)__nvvm_lohi_i2d(__nvvm_d2i_lo(x), __nvvm_d2i_hi(x));
}

/* f16 is a storage type: computed in f32 and rounded. bf16 is done with integers. */
#ifdef __CUDA__
static __device__ float half_at(const u16 *p) {
    return *(const __fp16 *)p;
}

static __device__ void store_half(u16 *p, float x) {
    *(__fp16 *)p = (__fp16)x;
}

static __device__ void store_half_of_double(u16 *p, double x) {
    *(__fp16 *)p = (__fp16)x;
}
#endif

KERNEL halves(u16 *out, const u16 *a, const u16 *b, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    float x = half_at(a + i), y = half_at(b + i);
    out += (u64)i * 6;
    store_half(out, x + y);
    store_half(out + 1, x * y);
    store_half_of_double(out + 2, (double)x * 3.0 / (double)y);
    store_half(out + 3, x < y ? x : y);
    store_half(out + 4, (float)(s16)a[i]);
    u32 w = (u32)a[i] << 16;
    float f;
    __builtin_memcpy(&f, &w, 4);
    f *= 1.01f;
    __builtin_memcpy(&w, &f, 4);
    out[5] = f != f ? (u16)(w >> 16 | 0x40) : (u16)((w + 0x7fff + (w >> 16 & 1)) >> 16);
}
