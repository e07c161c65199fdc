/* ptx_ranges.h - the memory that a kernel in the PTX interpreter may read or write. */
#ifndef PTX_RANGES_H
#define PTX_RANGES_H

#include <stddef.h>
#include <stdint.h>

typedef struct range {
    const void *start;
    size_t size; /* in bytes */
    int writable;
} range;

/* Returns the address if one of the ranges contains all bytes of the access, else NULL. */
static inline void *ranges_reach(const range *ranges, int count, uint64_t address, size_t size,
                                 int write) {
    for (int i = 0; i < count; i++) {
        uint64_t start = (uint64_t)(uintptr_t)ranges[i].start;
        if (write && !ranges[i].writable)
            continue;
        if (address >= start && address - start <= ranges[i].size &&
            size <= ranges[i].size - (size_t)(address - start))
            return (void *)(uintptr_t)address;
    }
    return NULL;
}

#endif
