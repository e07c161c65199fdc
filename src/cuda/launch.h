/* cuda/launch.h - kernel launches.

   Launches kernels over items or over a grid (ds__cuda_launch). Points CUDA to the parameters
   (ds__cuda_params), computes the grid of a number of items (ds__cuda_items_grid), and splits too
   many items into several launches (ds__cuda_launch_items).

   Invariants: The limit of dynamic shared memory of a function on a device only grows, because a
   launch of another thread may need it. Items are split only if the kernel takes FIRST and COUNT
   and both have 8 bytes. ds__cuda_launch_one expects a kernel that is loaded on the device.
   Locks: ds__cuda_allow_shared takes ds__cuda.mutex across cudaFuncSetAttribute or
   cuFuncSetAttribute; the caller may hold the capture lock. A launch without a new limit takes
   none.
   Threads: any. */
#ifndef DS__CUDA_LAUNCH_H
#define DS__CUDA_LAUNCH_H

#include "types.h"
#include "call.h"
#include "module.h"
#include "launch_attributes.h"

/* Points to the parameters: in the argument struct, from which cuLaunchKernel copies, or in first
   and count, whose offset in the kernel's list is 0. A parameter of 4 bytes is the low half of
   these, which comes first. */
static inline void ds__cuda_params(const ds__kernel *k, const void *args, const uint64_t *first,
                                   const uint64_t *count, void **out) {
    const void *const base[] = { args, args, args, args, first, count }; /* by kind */
    for (size_t i = 0; i < k->param_count; i++)
        out[i] = (void *)((uintptr_t)base[k->params[i].kind] + k->params[i].offset);
}

/* Raises the limit of dynamic shared memory to this many bytes, which CUDA requires for large sizes
   (CUDA C++ Programming Guide, "Shared Memory"). A function has one limit on a device. It only
   grows, because a launch of another thread may need the present one. */
__attribute__((cold, noinline)) static ds_result ds__cuda_allow_shared(const ds__cuda_scope *scope,
                                                                       const ds__kernel *k,
                                                                       ds__cuda_function *f,
                                                                       unsigned bytes) {
    ds_result r = DS_OK;
    ds__mutex_lock(&ds__cuda.mutex);
    if (bytes > atomic_load(&f->shared)) {
        if (k->cuda.native_fn)
            r = DS__RT(
                *scope, cudaFuncSetAttribute,
                (k->cuda.native_fn, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        else
            DS__DR(*scope, r, cuFuncSetAttribute,
                   (atomic_load(&f->function), DS__CUDA_MAX_SHARED, (int)bytes));
        if (r == DS_OK)
            atomic_store(&f->shared, bytes);
    }
    ds__mutex_unlock(&ds__cuda.mutex);
    return r < 0 ? ds__fail_append(r, " (kernel %s, %u bytes of shared memory)", k->name, bytes)
                 : r;
}

/* Launches a kernel that is loaded on the stream's device. */
static inline ds_result ds__cuda_launch_one(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                            ds__kernel *k, const ds_grid *g, void **params) {
    ds__cuda_function *f =
        (ds__cuda_function *)atomic_load_explicit(&k->native, memory_order_relaxed) + s->device;
    ds_result r;
    if (DS__UNLIKELY(g->shared_bytes > atomic_load_explicit(&f->shared, memory_order_relaxed))) {
        r = ds__cuda_allow_shared(scope, k, f, g->shared_bytes);
        if (r < 0)
            return r;
    }
    if (DS__UNLIKELY(ds__cuda_has_attributes(g))) {
        r = ds__cuda_launch_with(scope, s, k, g, params);
    } else if (k->cuda.native_fn) {
        struct dim3 grid = { g->grid[0], g->grid[1], g->grid[2] };
        struct dim3 block = { g->block[0], g->block[1], g->block[2] };
        r = DS__RT(*scope, cudaLaunchKernel,
                   (k->cuda.native_fn, grid, block, params, g->shared_bytes, s->handle));
    } else {
        DS__DR(*scope, r, cuLaunchKernel,
               (atomic_load_explicit(&f->function, memory_order_relaxed), g->grid[0], g->grid[1],
                g->grid[2], g->block[0], g->block[1], g->block[2], g->shared_bytes, s->handle,
                params, NULL));
    }
    return DS__LIKELY(r == DS_OK) ? DS_OK : ds__fail_append(r, " (kernel %s)", k->name);
}

/* Returns the number of items of a block: that of the description, else one per thread. */
static inline uint64_t ds__cuda_block_items(const ds__kernel *k) {
    if (k->cuda.items_per_block)
        return k->cuda.items_per_block;
    return k->cuda.block ? k->cuda.block : 256;
}

/* Returns the largest number of items of one launch. CUDA counts blocks in 31 bits, and a parameter
   of 4 bytes counts items in 32 bits. *out_can_split: more items can be split into launches. */
static uint64_t ds__cuda_most_items(const ds__kernel *k, int *out_can_split) {
    uint64_t per_block = ds__cuda_block_items(k);
    uint64_t most = UINT64_MAX / 2;
    int first = 0;
    int count = 0;
    int narrow = 0;
    for (size_t i = 0; i < k->param_count; i++) {
        first |= k->params[i].kind == DS_PARAM_FIRST;
        count |= k->params[i].kind == DS_PARAM_COUNT;
        narrow |= k->params[i].kind >= DS_PARAM_FIRST && k->params[i].size == 4;
    }
    if (narrow)
        most = UINT32_MAX;
    if (!k->cuda.blocks_per_multiprocessor && most / per_block > INT_MAX)
        most = (uint64_t)INT_MAX * per_block;
    *out_can_split = first && count && !narrow;
    return most;
}

/* Gives the items of each launch for this many items, all of them if one launch can have them.
   Refuses more items than one launch can have, unless the kernel allows a split. */
static inline ds_result ds__cuda_split(const ds__kernel *k, uint64_t items, uint64_t *most) {
    int can_split;
    *most = items;
    if (DS__LIKELY(items <= INT_MAX))
        return DS_OK;
    *most = ds__cuda_most_items(k, &can_split);
    if (items <= *most || can_split)
        return DS_OK;
    return ds__fail(
        DS_ERR_INVALID_VALUE,
        "kernel %s: %llu items exceed one launch; add DS_PARAM_FIRST and DS_PARAM_COUNT of 8 bytes",
        k->name, (unsigned long long)items);
}

/* Returns the grid of a launch over this many items. */
static inline ds_grid ds__cuda_items_grid(const ds__kernel *k, int device, uint64_t count) {
    unsigned block = k->cuda.block ? k->cuda.block : 256;
    uint64_t per_block = ds__cuda_block_items(k);
    uint64_t limit = (uint64_t)k->cuda.blocks_per_multiprocessor *
                     (unsigned)ds__cuda.properties[device].multiprocessors;
    /* a division of 64 bits takes longer than the rest of the function */
    uint64_t more = count + per_block - 1;
    uint64_t blocks =
        (per_block & (per_block - 1)) == 0 ? more >> __builtin_ctzll(per_block) : more / per_block;
    if (limit && blocks > limit)
        blocks = limit;
    return (ds_grid){ .grid = { (unsigned)blocks, 1, 1 },
                      .block = { block, 1, 1 },
                      .shared_bytes = k->cuda.shared_bytes };
}

/* Launches a kernel over items, in as few launches as possible: one for at most 2^31 - 1 items.
   `params` points to *first and *count. */
static ds_result ds__cuda_launch_items(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       const ds__op *op, void **params, uint64_t *first,
                                       uint64_t *count) {
    ds__kernel *k = op->u.kernel.kernel;
    uint64_t items = op->u.kernel.items;
    uint64_t most;
    ds_result r = ds__cuda_split(k, items, &most);
    for (; items && r == DS_OK; items -= *count, *first += *count) {
        *count = items < most ? items : most;
        ds_grid g = ds__cuda_items_grid(k, s->device, *count);
        r = ds__cuda_launch_one(scope, s, k, &g, params);
    }
    return r;
}

static ds_result ds__cuda_launch(const ds__cuda_stream *s, const ds__op *op) {
    ds__kernel *k = op->u.kernel.kernel;
    void *params[DS_KERNEL_MAX_PARAMS];
    uint64_t first = 0;
    uint64_t count = op->u.kernel.items;
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    if (DS__UNLIKELY(!ds__cuda_loaded(k, s->device)))
        r = ds__cuda_ready(&scope, k);
    if (r == DS_OK)
        ds__cuda_params(k, op->u.kernel.args, &first, &count, params);
    if (r == DS_OK && op->u.kernel.grid) {
        ds_grid g = ds__grid_whole(op->u.kernel.grid);
        r = ds__cuda_launch_one(&scope, s, k, &g, params);
    } else if (r == DS_OK) {
        r = ds__cuda_launch_items(&scope, s, op, params, &first, &count);
    }
    ds__cuda_scope_end(&scope);
    return r;
}

#endif
