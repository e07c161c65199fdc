/* api/kernel_atomic.h - atomic operations of kernels on global and shared memory.

   Policy:
   1. Memory order is relaxed: an atomic operation does not order other accesses.
   2. On a GPU an operation is atomic for all threads of this GPU. For host memory and memory of
      peers see CUDA C++ Programming Guide, "Atomic Functions".
   3. clang compiles each function for GPUs to one instruction (atom). The CPU has instructions or
      short sequences for all but minimum, maximum and sums of floats, which are loops.

   Invariants: an address is aligned to the size of its type. If all operations on an integer
   commute, its last value does not depend on their order. Sums of floats do, since each addition
   is rounded.
   Locks: none.
   Threads: any. */
#ifndef DS__API_KERNEL_ATOMIC_H
#define DS__API_KERNEL_ATOMIC_H

#include "kernel_target.h"

#if DS__HAS_APPROX && !defined(__clang__)
/* device code, nvcc: the pointer's type selects the function */
DS_KERNEL_FN unsigned *dsk__atomic_native(uint32_t *p) {
    return p;
}

DS_KERNEL_FN int *dsk__atomic_native(int32_t *p) {
    return p;
}

DS_KERNEL_FN unsigned long long *dsk__atomic_native(uint64_t *p) {
    return (unsigned long long *)p;
}

#define DS__ATOMIC_ADD(p, value) atomicAdd(dsk__atomic_native(p), value)
#define DS__ATOMIC_AND(p, value) atomicAnd(dsk__atomic_native(p), value)
#define DS__ATOMIC_OR(p, value) atomicOr(dsk__atomic_native(p), value)
#define DS__ATOMIC_XOR(p, value) atomicXor(dsk__atomic_native(p), value)
#define DS__ATOMIC_EXCHANGE(p, value) atomicExch(dsk__atomic_native(p), value)
#define DS__ATOMIC_CAS(p, old, value) ((old) = atomicCAS(dsk__atomic_native(p), old, value))
#define DS__ATOMIC_ADD_BLOCK(p, value) DS__ATOMIC_ADD(p, value)
#define DS__ATOMIC_MIN(type, p, value) atomicMin(dsk__atomic_native(p), value)
#define DS__ATOMIC_MAX(type, p, value) atomicMax(dsk__atomic_native(p), value)
#define DS__ATOMIC_ADD_F32(p, value) atomicAdd(p, value)
#define DS__ATOMIC_ADD_F64(p, value) atomicAdd(p, value)

#else
/* gcc and clang */
#define DS__ATOMIC_ADD(p, value) __atomic_fetch_add(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_AND(p, value) __atomic_fetch_and(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_OR(p, value) __atomic_fetch_or(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_XOR(p, value) __atomic_fetch_xor(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_EXCHANGE(p, value) __atomic_exchange_n(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_CAS(p, old, value) \
    __atomic_compare_exchange_n(p, &(old), value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

#if DS__HAS_APPROX
/* device code, clang */
#define DS__ATOMIC_ADD_BLOCK(p, value) DS__ATOMIC_ADD(p, value)
#define DS__ATOMIC_MIN(type, p, value) __atomic_fetch_min(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_MAX(type, p, value) __atomic_fetch_max(p, value, __ATOMIC_RELAXED)
#define DS__ATOMIC_ADD_F32(p, value) __nvvm_atom_add_gen_f(p, value)
#define DS__ATOMIC_ADD_F64(p, value) __nvvm_atom_add_gen_d(p, value)

#else
/* the CPU */
#define DS__ATOMIC_ADD_BLOCK(p, value) dsk__atomic_add_block(p, value)
#define DS__ATOMIC_MIN(type, p, value) dsk__atomic_min_##type(p, value)
#define DS__ATOMIC_MAX(type, p, value) dsk__atomic_max_##type(p, value)
#define DS__ATOMIC_ADD_F32(p, value) dsk__atomic_add_float(p, value)
#define DS__ATOMIC_ADD_F64(p, value) dsk__atomic_add_double(p, value)

/* Replaces the value at p by `value` while that is on the given side of it. */
#define DS__ATOMIC_REPLACE(name, type, side)                       \
    DS_KERNEL_FN type name(type *p, type value) {                  \
        type old = __atomic_load_n(p, __ATOMIC_RELAXED);           \
        while (value side old && !DS__ATOMIC_CAS(p, old, value)) { \
        }                                                          \
        return old;                                                \
    }
DS__ATOMIC_REPLACE(dsk__atomic_min_uint32_t, uint32_t, <)
DS__ATOMIC_REPLACE(dsk__atomic_min_int32_t, int32_t, <)
DS__ATOMIC_REPLACE(dsk__atomic_min_uint64_t, uint64_t, <)
DS__ATOMIC_REPLACE(dsk__atomic_max_uint32_t, uint32_t, >)
DS__ATOMIC_REPLACE(dsk__atomic_max_int32_t, int32_t, >)
DS__ATOMIC_REPLACE(dsk__atomic_max_uint64_t, uint64_t, >)
#undef DS__ATOMIC_REPLACE

/* A thread loop's iterations are declared independent, so a compiler may read the numbers of
   several threads before it writes one. It does not reorder or combine atomic accesses, nor does it
   vectorize a loop with assembly. gcc needs three instructions for the accesses, also if the old
   value is not used. */
DS_KERNEL_FN uint32_t dsk__atomic_add_block(uint32_t *p, uint32_t value) {
#ifdef __x86_64__
    uint32_t old = *p;
    __asm__ volatile("addl %1, %0" : "+m"(*p) : "re"(value) : "cc");
#else
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    __atomic_store_n(p, old + value, __ATOMIC_RELAXED);
#endif
    return old;
}

DS_KERNEL_FN float dsk__atomic_add_float(float *p, float value) {
    float old;
    float sum;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        sum = old + value;
    } while (!__atomic_compare_exchange(p, &old, &sum, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

DS_KERNEL_FN double dsk__atomic_add_double(double *p, double value) {
    double old;
    double sum;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        sum = old + value;
    } while (!__atomic_compare_exchange(p, &old, &sum, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
#endif
#endif

/* ---- atomic operations ---------------------------------------------------------------------- */

/** Adds to the number at p, modulo 2^32; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_add_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_ADD(p, value);
}

/** Adds to the number at p, modulo 2^32; returns the previous value. Atomic for the threads of one
    block, for numbers in shared memory: on the CPU, where one thread runs a block, the addition is
    a plain one. In block kernels only. */
DS_KERNEL_FN uint32_t ds_atomic_add_block_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_ADD_BLOCK(p, value);
}

/** Adds to the number at p, modulo 2^32; returns the previous value. */
DS_KERNEL_FN int32_t ds_atomic_add_i32(int32_t *p, int32_t value) {
    return DS__ATOMIC_ADD(p, value);
}

/** Adds to the number at p, modulo 2^64; returns the previous value. */
DS_KERNEL_FN uint64_t ds_atomic_add_u64(uint64_t *p, uint64_t value) {
    return DS__ATOMIC_ADD(p, value);
}

/** Adds to the number at p; returns the previous value. The sum of several additions depends on
    their order, so its bits differ between runs and drivers. */
DS_KERNEL_FN float ds_atomic_add_f32(float *p, float value) {
    return DS__ATOMIC_ADD_F32(p, value);
}

/** Adds to the number at p; returns the previous value. The sum of several additions depends on
    their order, so its bits differ between runs and drivers. */
DS_KERNEL_FN double ds_atomic_add_f64(double *p, double value) {
    return DS__ATOMIC_ADD_F64(p, value);
}

/** Replaces the number at p by the smaller of both; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_min_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_MIN(uint32_t, p, value);
}

/** Replaces the number at p by the smaller of both; returns the previous value. */
DS_KERNEL_FN int32_t ds_atomic_min_i32(int32_t *p, int32_t value) {
    return DS__ATOMIC_MIN(int32_t, p, value);
}

/** Replaces the number at p by the smaller of both; returns the previous value. */
DS_KERNEL_FN uint64_t ds_atomic_min_u64(uint64_t *p, uint64_t value) {
    return DS__ATOMIC_MIN(uint64_t, p, value);
}

/** Replaces the number at p by the larger of both; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_max_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_MAX(uint32_t, p, value);
}

/** Replaces the number at p by the larger of both; returns the previous value. */
DS_KERNEL_FN int32_t ds_atomic_max_i32(int32_t *p, int32_t value) {
    return DS__ATOMIC_MAX(int32_t, p, value);
}

/** Replaces the number at p by the larger of both; returns the previous value. */
DS_KERNEL_FN uint64_t ds_atomic_max_u64(uint64_t *p, uint64_t value) {
    return DS__ATOMIC_MAX(uint64_t, p, value);
}

/** Keeps the bits at p that are set in `value` too; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_and_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_AND(p, value);
}

/** Sets the bits at p that are set in `value`; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_or_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_OR(p, value);
}

/** Inverts the bits at p that are set in `value`; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_xor_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_XOR(p, value);
}

/** Replaces the number at p; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_exchange_u32(uint32_t *p, uint32_t value) {
    return DS__ATOMIC_EXCHANGE(p, value);
}

/** Replaces the number at p if it is `expected`; returns the previous value. */
DS_KERNEL_FN uint32_t ds_atomic_cas_u32(uint32_t *p, uint32_t expected, uint32_t value) {
    DS__ATOMIC_CAS(p, expected, value);
    return expected;
}

/** Replaces the number at p if it is `expected`; returns the previous value. */
DS_KERNEL_FN uint64_t ds_atomic_cas_u64(uint64_t *p, uint64_t expected, uint64_t value) {
    DS__ATOMIC_CAS(p, expected, value);
    return expected;
}

#endif
