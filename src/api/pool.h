/* api/pool.h - memory pools.

   Declares pools of the caching allocator with their own policy, limit and upstream. Also declares
   the pool of a capture, and checkpoints of a pool.

   Threads: any. A pushed pool applies to the calling thread only. */
#ifndef DS__API_POOL_H
#define DS__API_POOL_H

#include "mem_config.h"
#include "mem.h"

/* ---- pools ----------------------------------------------------------------------------------- */

/** Allocates memory for a pool, with the signature of torch.cuda.memory.CUDAPluggableAllocator.
    `stream` is the native stream, or NULL if it has ended. Returns memory aligned to 512 bytes, or
    NULL. May call ds_device_alloc and allocate from other pools; pools pushed by the thread are
    ignored. During the call the thread's capture mode is relaxed (ds_capture_exchange_mode).
    DS_ERR_NOT_PERMITTED: an allocation from the function's own pool. */
typedef void *(*ds_upstream_alloc_fn)(ptrdiff_t size, int device, void *stream);
/** Frees memory of ds_upstream_alloc_fn after the last use of it is complete. */
typedef void (*ds_upstream_free_fn)(void *ptr, ptrdiff_t size, int device, void *stream);

typedef struct ds_resource ds_resource; /* below */

/** Parameters of ds_pool_create; zero means default. */
typedef struct ds_pool_desc {
    ds_device device; /**< device of the memory */
    /** NULL: the device's policy. If set, its backend must be DS_MEM_NATIVE, and its limit and
        memory_fraction (of the device's memory) limit the pool */
    const ds_mem_config *config;
    ds_upstream_alloc_fn alloc_fn; /**< source of segments; NULL: the device */
    ds_upstream_free_fn free_fn;   /**< required with alloc_fn */
    /** source of segments (copied); NULL: the device. Must outlive them and must not take its
        memory from pools */
    const ds_resource *upstream;
    /** 1: if the device is out of memory, other allocations may use the pool's free blocks */
    int use_on_oom;
    int no_split; /**< 1: one block per segment */
    /** 1: blocks can be exported to other processes (ds_mem_export) */
    int shareable;
    /** limit of the reserved bytes; 0: only the limits of config and the device. The smallest
        applies */
    size_t limit;
    const char *label;    /**< shown in reports; copied */
    uint64_t reserved[8]; /**< 0 */
} ds_pool_desc;

/** Creates a pool without memory. desc NULL: current device, with its policy. */
DSDEF DS_MUST_USE ds_result ds_pool_create(const ds_pool_desc *desc, ds_pool *out);
/** Destroys a pool. Frees its cached memory at once. Memory of remaining blocks or graphs is freed
    after their end, at the next ds_mem_empty_cache or shortage. */
DSDEF DS_MUST_USE ds_result ds_pool_destroy(ds_pool pool);
/** Makes the thread's allocations on the pool's device use the pool until the matching pop. The
    innermost push applies. DS_ERR_ILLEGAL_STATE: 32 pools are already pushed. */
DSDEF DS_MUST_USE ds_result ds_pool_push(ds_pool pool);
/** Undoes the thread's innermost ds_pool_push. DS_ERR_ILLEGAL_STATE if no push is open. */
DSDEF DS_MUST_USE ds_result ds_pool_pop(void);
/** Sets the pool of a capture that has just begun on the stream. Graphs that share a pool must not
    run at the same time. Must be called before the capture allocates; by default each capture has
    its own pool. DS_ERR_ILLEGAL_STATE: the stream does not capture, or its capture has already
    allocated. DS_ERR_DEVICE_MISMATCH: the pool belongs to another device. */
DSDEF DS_MUST_USE ds_result ds_capture_set_pool(ds_stream stream, ds_pool pool);
/** Returns the number of owners of a pool: its handle, pushes, captures and graphs. */
DSDEF DS_MUST_USE ds_result ds_pool_get_use_count(ds_pool pool, int *out);
/** Returns torch's id of the pool: (0, n) for a created pool, (n, 0) for a capture's own pool, (0,
    0) for the default pool. */
DSDEF DS_MUST_USE ds_result ds_pool_get_id(ds_pool pool, uint64_t out_id[2]);
/** Frees the pool's cached memory, except segments or pages with live blocks. Waits and fails as
    ds_mem_empty_cache does. *out_released (may be NULL): bytes. */
DSDEF DS_MUST_USE ds_result ds_pool_empty_cache(ds_pool pool, size_t *out_released);

/** Positions of the live blocks of a pool. */
typedef struct ds_pool_checkpoint ds_pool_checkpoint;
/** Saves the positions of the pool's live blocks for ds_pool_restore. Use it to capture several
    graphs on one pool: after a launch, restore the state at the end of that graph's capture.
    DS_ERR_ILLEGAL_STATE: another stream or process uses a block, or a freed block is still in use.
    The error names the block; free it and synchronize first. */
DSDEF DS_MUST_USE ds_result ds_pool_save(ds_pool pool, ds_pool_checkpoint **out);
/** Restores the live blocks of the checkpoint. Blocks that are live now but not in the checkpoint
    are freed; their pointers become invalid. Blocks of the checkpoint that were freed become live
    again at their addresses; their contents are undefined, and ds_mem_free frees them. Does not
    wait for uses of the freed memory: order the streams before the call. The checkpoint can be
    restored any number of times.

    Invokes fn (may be NULL) for each changed block, freed blocks first, with state DS_BLOCK_FREE or
    DS_BLOCK_LIVE. fn may call devstream. No other thread may allocate from the pool or free its
    blocks during the call (DS_ERR_ILLEGAL_STATE, with the pool partly restored). Other errors leave
    the pool unchanged: DS_ERR_ILLEGAL_STATE as for ds_pool_save, or if memory of the checkpoint has
    been freed to the driver. */
DSDEF DS_MUST_USE ds_result ds_pool_restore(ds_pool pool, const ds_pool_checkpoint *checkpoint,
                                            ds_mem_block_fn fn, void *user);
/** Frees a checkpoint, also after the pool's destruction. NULL is allowed. */
DSDEF void ds_pool_checkpoint_destroy(ds_pool_checkpoint *checkpoint);
/** Returns DS_OK if `ptrs` are the starts of all live blocks of the pool, in any order.
    DS_ERR_ILLEGAL_STATE: the error names the first extra or missing block. */
DSDEF DS_MUST_USE ds_result ds_pool_check_live(ds_pool pool, void *const *ptrs, size_t count);

#endif
