/* comm/kernel_all.h - kernel that reduces to several places.

   Reduces the inputs once and writes the result to all outputs (ds__reduce_all_kernel), where
   kernels run on the processor. A block of the result is computed in the cache, in the first output
   or, for stores around the caches, on the stack. From there it is copied to the outputs. Memory is
   read once for each input and written once for each output. An
   item is DS__COMM_ITEM bytes of the result.

   Invariants: an item reads all inputs of a block before it writes the block, so an output may be
   one of the inputs. It writes only its own piece of each output, so items may run in parallel.
   Locks: none. May run under the locks of the driver's run_together.
   Threads: those that run kernels. */
#ifndef DS__COMM_KERNEL_ALL_H
#define DS__COMM_KERNEL_ALL_H

#include "../os/os.h"
#include "../base/object.h"
#include "kernel_cpu.h"

enum { DS__REDUCE_ALL_BLOCK = 4096 }; /* bytes of a block; DS__COMM_ITEM is a multiple */

typedef struct ds__reduce_all_args {
    ds__comm_reduce_args reduce; /* its output is not used */
    char *out[DS__COMM_INPUTS];
    size_t outs;
} ds__reduce_all_args;

static int ds__reduce_all_items(size_t first, size_t count, const void *args) {
    const ds__reduce_all_args *a = args;
    _Alignas(64) char block[DS__REDUCE_ALL_BLOCK];
    const size_t bytes = (size_t)a->reduce.bytes;
    size_t at = first * DS__COMM_ITEM;
    size_t end = at + count * DS__COMM_ITEM < bytes ? at + count * DS__COMM_ITEM : bytes;
    int around = ds__stream_pays(a->reduce.inputs * bytes, a->outs * bytes);
    ds__comm_reduce_args r = a->reduce;
    for (; at < end; at += DS__REDUCE_ALL_BLOCK) {
        size_t n = end - at < DS__REDUCE_ALL_BLOCK ? end - at : DS__REDUCE_ALL_BLOCK;
        for (uint32_t k = 0; k < r.inputs; k++)
            r.in.at[k] = (const char *)a->reduce.in.at[k] + at;
        char *result = around ? block : a->out[0] + at;
        r.out = result;
        r.bytes = n;
        (void)ds__comm_reduce_items(0, 1, &r);
        size_t done = around ? ds__stream_spread(a->out, a->outs, at, block, n) : 0;
        for (size_t d = around ? 0 : 1; d < a->outs; d++)
            memcpy(a->out[d] + at + done, result + done, n - done);
    }
    return 0;
}

static ds__kernel ds__reduce_all_kernel = { .cpu_fn = ds__reduce_all_items,
                                            .args_size = sizeof(ds__reduce_all_args),
                                            .grain = 1,
                                            .name = "reduction to several devices",
                                            .ours = 1 };

#endif
