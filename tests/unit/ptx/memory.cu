/* State spaces, vectors, atomics. */
#include "device.h"

typedef u32 uint4_v __attribute__((ext_vector_type(4)));
typedef float float4_v __attribute__((ext_vector_type(4)));
typedef double double2_v __attribute__((ext_vector_type(2)));
typedef u16 ushort4_v __attribute__((ext_vector_type(4)));
typedef u8 uchar4_v __attribute__((ext_vector_type(4)));
typedef float float2_v __attribute__((ext_vector_type(2)));

KERNEL vectors(uint4_v *out, const uint4_v *a, const double2_v *d, double2_v *dout,
               const ushort4_v *h, ushort4_v *hout, const uchar4_v *c, uchar4_v *cout,
               float2_v *fout, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    out[i] = a[i] + (uint4_v){ 1, 2, 3, 4 };
    dout[i] = d[i] * (double2_v){ 2.0, 0.5 };
    hout[i] = h[i] ^ (ushort4_v) { 0xff, 0xff00, 0xf0f, 1 };
    cout[i] = c[i] + (uchar4_v){ 1, 2, 3, 255 };
    fout[i] = (float2_v){ (float)i, -(float)i };
}

__constant__ u32 table[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };
__constant__ double factor = 2.5;
__device__ s16 global_table[6] = { -1, 2, -3, 4, -5, 6 };
__device__ u32 global_counter = 40;
__device__ u64 zeroed[4];

KERNEL tables(double *out, u32 *counter, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    out[i] = factor * table[i & 7] + global_table[i % 6];
    __sync_fetch_and_add(&global_counter, 1u);
    zeroed[i & 3] = i;
    BARRIER;
    if (i == 0)
        *counter = global_counter + (u32)zeroed[3];
}

KERNEL local_array(u32 *out, const u32 *in, u32 n) {
    u32 i = ITEM, keep[16];
    if (i >= n)
        return;
    for (u32 k = 0; k < 16; k++)
        keep[k] = in[i] * k;
    for (u32 k = 0; k < in[i] % 40; k++)
        keep[(k * 7 + i) & 15] += keep[(k + in[i]) & 15];
    u32 sum = 0;
    for (u32 k = 0; k < 16; k++)
        sum = sum * 31 + keep[(k + i) & 15];
    out[i] = sum;
}

__device__ s32 max_atomics_s32(s32 *p, s32 x) {
    return __atomic_fetch_max(p, x, __ATOMIC_RELAXED);
}

__device__ s32 min_atomics_s32(s32 *p, s32 x) {
    return __atomic_fetch_min(p, x, __ATOMIC_RELAXED);
}

__device__ u64 max_atomics_u64(u64 *p, u64 x) {
    return __nvvm_atom_max_gen_ull(p, x);
}

__device__ u64 min_atomics_u64(u64 *p, u64 x) {
    return __nvvm_atom_min_gen_ull(p, x);
}

#define ATOMICS(name, T)                                                                   \
    KERNEL name(T *c) {                                                                    \
        __sync_fetch_and_add(c + 0, (T)TID);                                               \
        __sync_fetch_and_sub(c + 1, (T)1);                                                 \
        __sync_fetch_and_and(c + 2, ~((T)1 << (TID & 7)));                                 \
        __sync_fetch_and_or(c + 3, (T)1 << (TID & 15));                                    \
        __sync_fetch_and_xor(c + 4, (T)TID * 77);                                          \
        max_##name(c + 5, (T)TID - 9);                                                     \
        min_##name(c + 6, (T)TID - 9);                                                     \
        T old = c[7];                                                                      \
        while (!__atomic_compare_exchange_n(c + 7, &old, old * 3 + 1, 0, __ATOMIC_RELAXED, \
                                            __ATOMIC_RELAXED)) {                           \
        }                                                                                  \
        __atomic_exchange_n(c + 8, (T)5, __ATOMIC_RELAXED);                                \
        T before = __sync_fetch_and_add(c + 9, (T)2);                                      \
        c[16 + TID] = before & 1;                                                          \
    }
ATOMICS(atomics_s32, s32)
ATOMICS(atomics_u64, u64)

KERNEL atomics_u32(u32 *c) {
    __nvvm_atom_max_gen_ui(c + 0, TID - 9);
    __nvvm_atom_min_gen_ui(c + 1, TID + 9);
    __nvvm_atom_inc_gen_ui(c + 2, 10u);
    __nvvm_atom_dec_gen_ui(c + 3, 10u);
    __nvvm_membar_gl();
    __nvvm_membar_cta();
    __nvvm_membar_sys();
}

KERNEL atomics_floating(float *f, double *d) {
    __nvvm_atom_add_gen_f(f, 0.25f);
    __nvvm_atom_add_gen_d(d, (double)TID);
}

KERNEL checksum(u64 *out, const uint4_v *in, u64 count) {
    u64 sum = 0;
    for (u64 i = ITEM; i < count; i += (u64)NTID * NCTAID) {
        uint4_v v = __builtin_nontemporal_load(in + i);
        sum += v.x + (u64)v.y * 3 + (u64)v.z * 5 + (u64)v.w * 7;
    }
    __sync_fetch_and_add(out, sum);
}

KERNEL read_only(float *__restrict__ out, const float *__restrict__ in,
                 const u32 *__restrict__ index, u32 n) {
    u32 i = ITEM;
    if (i < n)
        out[i] = __nvvm_ldg_f(in + index[i]) + (float)__nvvm_ldg_ui(index + i);
}

KERNEL spin(volatile u32 *flag, u32 *out) {
    while (!*flag) {
    }
    *out = 7;
}

KERNEL wait_for_other_block(u32 *flag, u32 *out) {
    if (TID == 0 && CTAID == 0)
        __atomic_store_n(flag, 1u, __ATOMIC_RELAXED);
    if (CTAID == 1)
        while (!__atomic_load_n((volatile u32 *)flag, __ATOMIC_RELAXED)) {
        }
    __sync_fetch_and_add(out, 1u);
}

KERNEL trap(u32 *out, u32 at) {
    if (ITEM == at)
        __builtin_trap();
    out[ITEM] = ITEM;
}

struct pair {
    u32 index;
    double scale;
    u64 counts[3];
};

KERNEL structure(double *out, struct pair p, u8 small, u16 medium, float f) {
    out[ITEM] = p.index + p.scale * (double)p.counts[ITEM % 3] + small + medium + (double)f;
}

__device__ u32 array[4] = { 5, 6, 7, 8 };
__device__ u32 *array_pointer = array;
__constant__ const u32 *table_pointer = table;

__device__ __noinline__ u32 twice(u32 x) {
    return 2 * x;
}

__device__ u32 (*function_pointer)(u32) = twice;

/* Every call moves array_pointer on. A pointer that is shared or global memory by turns is
   generic. */
KERNEL pointers(u32 *out) {
    __shared__ u32 s[4];
    u32 t = TID, *p = t & 1 ? s : out + 8;
    p[t] = t;
    out[t] = p[t] + function_pointer(table_pointer[t]);
    BARRIER;
    if (t == 0)
        out[4] = *array_pointer++;
    if (t == 1)
        out[5] = (u32)__sync_fetch_and_add(p + 1, 4u) + s[1];
}

KERNEL clocks(u64 *out) {
    out[0] = (u64)__nvvm_read_ptx_sreg_clock64();
    for (u32 k = 0; k < 1000; k++)
        ((volatile u64 *)out)[2] = k;
    out[1] = (u64)__nvvm_read_ptx_sreg_clock64();
}
