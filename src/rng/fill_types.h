/* rng/fill_types.h - creation and submission of the generators' kernels.

   Creates a generator kernel at its first use (ds__rng_kernel) and puts a fill on a stream
   (ds__rng_submit). DS__RNG_EXACT is 0 in a build with -ffast-math, where logarithms and sums
   would not have the promised bits.

   Invariants: a kernel is created once and stays until ds_shutdown. A fill is submitted either
   for one capture or for no capture; if the stream's capture is another one, nothing is enqueued
   and ds__rng_submit returns DS__CHANGED.
   Locks: ds__rng_kernel takes ds__rng.making, only until the kernel exists; a generator's lock
   is taken before it. The user's allocator runs under it. ds__rng_submit takes none; it calls
   the driver under the locks of the caller.
   Threads: threads that call the public functions. */
#ifndef DS__RNG_FILL_TYPES_H
#define DS__RNG_FILL_TYPES_H

#include "../core/internal.h"
#include "kernel_arith.h"
#include "kernel.h"
#include "generator.h"

/* With these options, logarithms and sums of floats would not have the promised bits. */
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    defined(__NO_SIGNED_ZEROS__) || __FINITE_MATH_ONLY__ + 0
enum { DS__RNG_EXACT = 0 };
#else
enum { DS__RNG_EXACT = 1 };
#endif

/* Creates a kernel. The lock `making` is held. */
static ds_result ds__rng_kernel_create(int which, ds_kernel *out) {
    ds_kernel_desc desc = { .name = ds__rng_forms[which].name,
                            .cpu_fn = ds__rng_forms[which].cpu_fn,
                            .bytes_fn = ds__rng_bytes,
                            .args_size = sizeof(ds__rng_args),
                            .params = ds__rng_forms[which].params,
                            .param_count = ds__rng_forms[which].count,
                            .extents_fn = which == DS__RNG_STATE ? NULL : ds__rng_extents,
                            .grain = 16,
                            .cuda = { .image = ds__rng_forms[which].text,
                                      .image_pieces = ds__rng_forms[which].pieces,
                                      .entry = ds__rng_forms[which].entry,
                                      .block = 256,
                                      .items_per_block = 256,
                                      .blocks_per_multiprocessor = 8 } };
    return ds__kernel_create(&desc, out);
}

/* Returns a kernel, which the first call creates. */
static ds_result ds__rng_kernel(int which, ds_kernel *out) {
    ds_result r = DS_OK;
    out->id = atomic_load_explicit(&ds__rng.kernel[which], memory_order_acquire);
    if (DS__LIKELY(out->id))
        return DS_OK;
    ds__mutex_lock(&ds__rng.making);
    out->id = atomic_load(&ds__rng.kernel[which]);
    if (!out->id) {
        r = ds__rng_kernel_create(which, out);
        if (r == DS_OK)
            atomic_store_explicit(&ds__rng.kernel[which], out->id, memory_order_release);
    }
    ds__mutex_unlock(&ds__rng.making);
    return r;
}

/* Enqueues a kernel for the capture `inside`, or for none if that is 0. Returns DS__CHANGED if the
   stream's capture is another one, and enqueues nothing. */
static ds_result ds__rng_submit(ds__stream *s, ds_kernel kernel, size_t items,
                                const ds__rng_args *a, uint64_t inside) {
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    if (!k)
        return ds__fail(DS_ERR_INVALID_HANDLE, "the kernel of a fill was destroyed");
    ds__op op = ds__op_init(DS__OP_KERNEL | (inside ? DS__OP_INSIDE : DS__OP_OUTSIDE) << 8);
    op.u.kernel.kernel = k;
    op.u.kernel.items = items;
    op.u.kernel.args_size = sizeof *a;
    op.u.kernel.args = a;
    op.u.kernel.grid = NULL;
    op.u.kernel.capture = inside;
    ds_result r = ds__stream_submit(s, &op);
    ds__unpin(&ds__g.kernels, k);
    return r;
}

#endif
