/* comm/kernel_spread.h - kernel that copies one source to several places.

   Reads a source once and writes it to up to DS__SPREAD destinations (ds__spread_kernel), where
   kernels run on the processor. An item is a piece of DS__SPREAD_ITEM bytes.

   Invariants: an item writes only its own piece of each destination, so items may run in parallel.
   Locks: none.
   Threads: those that run kernels. */
#ifndef DS__COMM_KERNEL_SPREAD_H
#define DS__COMM_KERNEL_SPREAD_H

#include "../os/os.h"
#include "../base/object.h"

enum { DS__SPREAD = 8, DS__SPREAD_ITEM = 16 << 10 };

typedef struct ds__spread_args {
    char *dst[DS__SPREAD];
    const char *src;
    size_t count;
    size_t bytes;
} ds__spread_args;

static int ds__spread_items(size_t first, size_t count, const void *args) {
    const ds__spread_args *a = args;
    size_t at = first * DS__SPREAD_ITEM;
    size_t end = at + count * DS__SPREAD_ITEM < a->bytes ? at + count * DS__SPREAD_ITEM : a->bytes;
    if (ds__stream_pays(a->bytes, a->count * a->bytes))
        at += ds__stream_spread(a->dst, a->count, at, a->src + at, end - at);
    while (at < end) {
        size_t n = end - at < DS__SPREAD_ITEM ? end - at : DS__SPREAD_ITEM;
        for (size_t d = 0; d < a->count; d++)
            memcpy(a->dst[d] + at, a->src + at, n);
        at += n;
    }
    return 0;
}

static ds__kernel ds__spread_kernel = { .cpu_fn = ds__spread_items,
                                        .args_size = sizeof(ds__spread_args),
                                        .grain = 1,
                                        .name = "copy to several devices",
                                        .ours = 1 };

#endif
