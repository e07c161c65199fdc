/* standins.h - until the arithmetic of kernels and DS_CHECK are in the headers. */
#ifndef STANDINS_H
#define STANDINS_H

DS_KERNEL_FN float ds_absf(float x) {
    return x < 0 ? -x : x;
}

DS_KERNEL_FN float ds_fmaxf(float a, float b) {
    return a < b ? b : a;
}

DS_KERNEL_FN uint64_t ds_atomic_add_u64(uint64_t *p, uint64_t v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

#ifdef DEVSTREAM_KERNEL_DEVICE
DS_KERNEL_FN uint32_t ds_atomic_max_u32(uint32_t *p, uint32_t v) {
    return __atomic_fetch_max(p, v, __ATOMIC_RELAXED);
}

DS_KERNEL_FN uint32_t ds_atomic_add_block_u32(uint32_t *p, uint32_t v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
#else
DS_KERNEL_FN uint32_t ds_atomic_max_u32(uint32_t *p, uint32_t v) {
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v > old && !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, 0))
        continue;
    return old;
}

/* The barrier keeps the compiler from vectorizing the loop over threads. */
DS_KERNEL_FN uint32_t ds_atomic_add_block_u32(uint32_t *p, uint32_t v) {
    uint32_t old = *p;
    *p = old + v;
    __asm__ volatile("" ::: "memory");
    return old;
}

#include <stdio.h>
#include <stdlib.h>
#ifndef DS_CHECK
#define DS_CHECK(...)                                                                \
    do {                                                                             \
        if ((__VA_ARGS__) < 0) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ds_error_get_last()); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)
#endif
#endif
#endif
