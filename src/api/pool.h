/* api/pool.h - memory pools.

   Declares pools of the caching allocator with their own policy, limit and upstream, the pool of
   a capture, and checkpoints of a pool.

   Threads: any. A pushed pool counts for the calling thread only. */
#ifndef DS__API_POOL_H
#define DS__API_POOL_H

#include "mem_config.h"
#include "mem.h"

/* ---- pools ----------------------------------------------------------------------------------- */

/** Upstream of a pool, with the signatures of torch.cuda.memory.CUDAPluggableAllocator; `stream`
    is the native stream, NULL when that has ended. Memory aligned to 512, or NULL. It may call
    ds_device_alloc, and allocate from other pools, but not from its own (DS_ERR_NOT_PERMITTED), and
    pools that the thread has pushed do not count; the thread is relaxed
    (ds_capture_exchange_mode) meanwhile. */
typedef void *(*ds_upstream_alloc_fn)(ptrdiff_t size, int device, void *stream);
/** Gives back what ds_upstream_alloc_fn gave, when no work uses it any more. */
typedef void (*ds_upstream_free_fn)(void *ptr, ptrdiff_t size, int device, void *stream);

typedef struct ds_resource ds_resource; /* below */

/** What ds_pool_create takes; zero means default. */
typedef struct ds_pool_desc {
    ds_device device; /**< where its memory is */
    /** NULL: the device's; else its limit and memory_fraction (of the device's memory) are
        limits of the pool */
    const ds_mem_config *config;
    ds_upstream_alloc_fn alloc_fn; /**< NULL: the device; else segments come from here */
    ds_upstream_free_fn free_fn;   /**< required with alloc_fn */
    /** NULL: the device; else segments come from this resource (copied), which must outlive them
        and have other memory than pools */
    const ds_resource *upstream;
    /** 1: when the device is out of memory, other allocations may use its free blocks */
    int use_on_oom;
    int no_split; /**< 1: one block per segment */
    /** 1: blocks can be given to other processes (ds_mem_export) */
    int shareable;
    /** bytes reserved; 0: none but config's and the device's. The smallest counts */
    size_t limit;
    const char *label;    /**< shown in reports; copied */
    uint64_t reserved[8]; /**< 0 */
} ds_pool_desc;

/** Makes a pool, which has no memory yet. desc NULL: of the current device, with its policy. */
DSDEF DS_MUST_USE ds_result ds_pool_create(const ds_pool_desc *desc, ds_pool *out);
/** Ends a pool: its cached memory is given back now; what blocks or graphs still have, at the
    next ds_mem_empty_cache or shortage after they are gone. */
DSDEF DS_MUST_USE ds_result ds_pool_destroy(ds_pool pool);
/** The thread's allocations on the pool's device come from the pool, until the matching pop. The
    latest push wins. DS_ERR_ILLEGAL_STATE: 32 are pushed already. */
DSDEF DS_MUST_USE ds_result ds_pool_push(ds_pool pool);
/** Ends the innermost ds_pool_push of the thread. DS_ERR_ILLEGAL_STATE when there is none. */
DSDEF DS_MUST_USE ds_result ds_pool_pop(void);
/** What the capture of a stream that has just begun takes its memory from; so that several
    graphs, which must not run at the same time, share it. Must be called before the capture
    allocates. Without it each capture has a pool of its own. DS_ERR_ILLEGAL_STATE: the stream
    does not capture, or its capture has allocated already; DS_ERR_DEVICE_MISMATCH: the pool is
    of another device. */
DSDEF DS_MUST_USE ds_result ds_capture_set_pool(ds_stream stream, ds_pool pool);
/** Owners of a pool: its handle, pushes, captures and graphs. */
DSDEF DS_MUST_USE ds_result ds_pool_get_use_count(ds_pool pool, int *out);
/** torch's id of the pool, (a, b): (0, n) of a pool that was created, (n, 0) of a capture's own;
    (0, 0) of the default one. */
DSDEF DS_MUST_USE ds_result ds_pool_get_id(ds_pool pool, uint64_t out_id[2]);
/** Gives back the pool's memory that no block stands in the way of; waits and is refused as
    ds_mem_empty_cache. *out_released (NULL allowed): bytes. */
DSDEF DS_MUST_USE ds_result ds_pool_empty_cache(ds_pool pool, size_t *out_released);

/** Where the live blocks of a pool were. */
typedef struct ds_pool_checkpoint ds_pool_checkpoint;
/** Notes where the live blocks of a pool are, for ds_pool_restore. For programs that capture
    several graphs upon one pool: after one was launched, the pool is put back to how that
    graph's capture had left it, and the next capture goes on from there. DS_ERR_ILLEGAL_STATE,
    with the block, when other streams or processes use one of its blocks, or a freed one still
    (free and synchronize first). */
DSDEF DS_MUST_USE ds_result ds_pool_save(ds_pool pool, ds_pool_checkpoint **out);
/** Makes the live blocks of a pool those of the checkpoint: what is live now and was not then is
    freed, without a word to whoever holds it; what was live then and is not now is live again at
    its address, to be freed with ds_mem_free, its contents whatever was written there since. The
    freed memory is taken as done with: order the streams before. Calls fn (NULL allowed) for
    each block that changed, freed ones first, its state DS_BLOCK_FREE or DS_BLOCK_LIVE;
    devstream may be called from it. On failure nothing has changed: DS_ERR_ILLEGAL_STATE as
    ds_pool_save, or when memory of the checkpoint was given back since. Nobody else may allocate
    from the pool or free its blocks meanwhile (then DS_ERR_ILLEGAL_STATE, half done). The
    checkpoint stays, for any number of calls. */
DSDEF DS_MUST_USE ds_result ds_pool_restore(ds_pool pool, const ds_pool_checkpoint *checkpoint,
                                            ds_mem_block_fn fn, void *user);
/** Frees a checkpoint; NULL is allowed. The pool may be gone. */
DSDEF void ds_pool_checkpoint_destroy(ds_pool_checkpoint *checkpoint);
/** DS_OK when these are the starts of all live blocks of the pool, in any order; else
    DS_ERR_ILLEGAL_STATE and a sentence with the first one that is too many or missing. */
DSDEF DS_MUST_USE ds_result ds_pool_check_live(ds_pool pool, void *const *ptrs, size_t count);

#endif
