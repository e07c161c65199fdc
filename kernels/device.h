/* device.h - what a kernel's text needs to compile as device code without CUDA's headers, and its
   shared half as C11.

   Device code:  clang-14 -x cuda --cuda-device-only --cuda-gpu-arch=sm_60 -nocudainc -nocudalib ...
                 (tools/kernels.sh)
   C11:          included like any header; only the types, DEVICE and CONSTANT exist then

   A kernel is written  KERNEL(name)(parameters) { ... }  and its entry point is called "name". A
   function that both the device and the CPU form call is marked DEVICE, a table that both read is
   marked CONSTANT. */
#ifndef DEVICE_H_INCLUDED
#define DEVICE_H_INCLUDED

#if defined(__CUDA__)

typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __SIZE_TYPE__ size_t;

#define DEVICE static inline __attribute__((device, always_inline))
#define CONSTANT static __attribute__((constant)) const
#define DS__DEVICE DEVICE /* the same, in rooms of src/ that device code includes */
#define DS__CONSTANT CONSTANT
#define DS__ROUNDED(x) (void)0 /* contraction is off */
#define ds__float_sqrt __nvvm_sqrt_rn_f
#define ds__double_sqrt __nvvm_sqrt_rn_d
#define KERNEL(name) extern "C" __attribute__((global)) void name
/* in front of an array inside of a kernel; not initialised */
#define SHARED static __attribute__((shared))
#define ALIGNED(bytes) __attribute__((aligned(bytes)))

/* All launches over items are one-dimensional. */
#define THREAD_INDEX ((uint32_t)__nvvm_read_ptx_sreg_tid_x())
#define BLOCK_SIZE ((uint32_t)__nvvm_read_ptx_sreg_ntid_x())
#define BLOCK_INDEX ((uint32_t)__nvvm_read_ptx_sreg_ctaid_x())
#define BLOCK_COUNT ((uint32_t)__nvvm_read_ptx_sreg_nctaid_x())
#define GLOBAL_INDEX() ((uint64_t)BLOCK_INDEX * BLOCK_SIZE + THREAD_INDEX)

/* All threads of the block; orders shared and global memory among them. Not __syncthreads(): clang
   14 moves loads of shared variables across it. */
#define BARRIER() __asm__ volatile("bar.sync 0;" ::: "memory")
/* orders this thread's accesses for the whole device */
#define FENCE() __nvvm_membar_gl()
#define FENCE_SYSTEM() __nvvm_membar_sys() /* and for the host and other devices */
#define TRAP() __builtin_trap()            /* fails the device */

/* A new load or store every time, so that a loop sees what the host or another kernel writes. */
#define VOLATILE_LOAD(pointer) (*(const volatile __typeof__(*(pointer)) *)(pointer))
#define VOLATILE_STORE(pointer, value) \
    ((void)(*(volatile __typeof__(*(pointer)) *)(pointer) = (value)))

/* Adds to a uint32_t or uint64_t in shared or global memory and returns what was there; relaxed. */
#define ATOMIC_ADD(pointer, value) __atomic_fetch_add((pointer), (value), __ATOMIC_RELAXED)

/* 16 bytes in one load or store; the address must be a multiple of 16. */
typedef uint32_t vector4 __attribute__((ext_vector_type(4)));
typedef uint64_t pair8 __attribute__((ext_vector_type(2)));

#else

#include <stddef.h>
#include <stdint.h>

#define DEVICE static inline
#define CONSTANT static const

#endif
#endif
