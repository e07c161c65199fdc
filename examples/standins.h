/* standins.h - what the kernels of the examples need until devstream_kernel.h has it. */
#ifndef STANDINS_H
#define STANDINS_H

/* Adds to a counter in shared memory. On the CPU one thread runs a block; the barrier keeps the
   compiler from vectorizing the loop over threads. */
DS_KERNEL_FN uint32_t ds_atomic_add_block_u32(uint32_t *p, uint32_t value) {
#ifdef DEVSTREAM_KERNEL_DEVICE
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
#else
    uint32_t old = *p;
    *p = old + value;
    __asm__ volatile("" ::: "memory");
    return old;
#endif
}

#ifndef DS__ATOMIC_ADD
DS_KERNEL_FN float ds_absf(float x) {
    return x < 0 ? -x : x;
}

DS_KERNEL_FN float ds_fmaxf(float a, float b) {
    return a < b ? b : a;
}

DS_KERNEL_FN uint64_t ds_atomic_add_u64(uint64_t *p, uint64_t value) {
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}

DS_KERNEL_FN uint32_t ds_atomic_max_u32(uint32_t *p, uint32_t value) {
#ifdef DEVSTREAM_KERNEL_DEVICE
    return __atomic_fetch_max(p, value, __ATOMIC_RELAXED);
#else
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (value > old && !__atomic_compare_exchange_n(p, &old, value, 0, __ATOMIC_RELAXED, 0))
        continue;
    return old;
#endif
}
#endif

#if !defined(DEVSTREAM_KERNEL_DEVICE) && !defined(DS_CHECK)
#include <stdio.h>
#include <stdlib.h>
#define DS_CHECK(...)                                                                \
    do {                                                                             \
        if ((__VA_ARGS__) < 0) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ds_error_get_last()); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)
#endif
#endif
