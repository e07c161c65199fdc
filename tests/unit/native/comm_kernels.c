/* The CPU forms of the collectives' kernels alone, so that they can be built once more with all
   that this processor and the optimiser have. */
#include "comm/kernel_cpu.h"
#include "comm/kernel_pack.h"

void native_reduce_part(const ds__comm_reduce_args *args, uint64_t first, uint64_t end, int vector);
int native_reduce_items(size_t first, size_t count, const void *args);
int native_divide_items(size_t first, size_t count, const void *args);
int native_pack_items(size_t first, size_t count, const void *args);

void native_reduce_part(const ds__comm_reduce_args *args, uint64_t first, uint64_t end,
                        int vector) {
    (void)ds__comm_masks_of; /* only the device's form wants them */
    ds__comm_reduce_part(args, first, end, vector);
}

int native_reduce_items(size_t first, size_t count, const void *args) {
    return ds__comm_reduce_items(first, count, args);
}

int native_divide_items(size_t first, size_t count, const void *args) {
    return ds__comm_divide_items(first, count, args);
}

int native_pack_items(size_t first, size_t count, const void *args) {
    return ds__comm_pack_items(first, count, args);
}
