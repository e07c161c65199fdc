/* The CPU forms of the generators' kernels alone, so that they can be built once more with all
   that this processor and the optimiser have. */
#include "rng/kernel_cpu.h"

void native_rng_part(const ds__rng_args *args, uint64_t at, uint64_t end, int vector);
int native_rng_items(size_t first, size_t count, const void *args);
int native_rng_permutation(size_t first, size_t count, const void *args);
void native_rng_cache(size_t bytes);

/* The cache that this form sees; 0: the processor's. */
void native_rng_cache(size_t bytes) {
    ds__os_cache_state = bytes;
}

void native_rng_part(const ds__rng_args *args, uint64_t at, uint64_t end, int vector) {
    ds__rng_part(args, at, end, vector);
}

int native_rng_items(size_t first, size_t count, const void *args) {
    return ds__rng_items(first, count, args);
}

int native_rng_permutation(size_t first, size_t count, const void *args) {
    return ds__rng_permutation_items(first, count, args);
}
