/* api/mem.h - allocation from the caching allocator.

   Declares ds_mem_alloc and its variants, frees, uses by other streams, labels, and the release
   of cached memory. The room also defines the pool handle (ds_pool).

   Threads: any. Labels belong to the calling thread. */
#ifndef DS__API_MEM_H
#define DS__API_MEM_H

#include "stream.h"

/* ---- allocation ------------------------------------------------------------------------------ */

/** A pool of memory with blocks and segments of its own. 0 is the device's default pool. */
typedef struct ds_pool {
    uint64_t id; /**< 0: none, or the device's default pool */
} ds_pool;

/** Allocates size bytes on the stream's device, for what is enqueued on the stream from now on;
    aligned to 512; uninitialised. size 0 gives NULL and DS_OK. Never waits for the device unless
    memory is short. While the stream captures, the memory belongs to the graph.
    DS_ERR_OUT_OF_MEMORY (DS_ERR_LIMIT_EXCEEDED when only a limit stands in the way) explains
    itself in ds_error_get_last(). */
DSDEF DS_MUST_USE ds_result ds_mem_alloc(size_t size, ds_stream stream, void **out);

/** What ds_mem_alloc_with takes; zero means default. */
typedef struct ds_mem_request {
    size_t size;      /**< bytes */
    ds_stream stream; /**< required */
    ds_pool pool;     /**< 0: the pool in use on this thread (ds_pool_push), else the device's */
    /** power of two, up to 2 MiB; 0: 512, the only one where blocks are not split
        (ds_pool_desc.no_split) */
    size_t alignment;
    /** who owns it; must live as long as the block and as a history that is recorded; NULL: the
        thread's label (ds_mem_label_push) */
    const char *label;
    uint64_t reserved[4]; /**< 0 */
} ds_mem_request;

/** As ds_mem_alloc, with more to say. */
DSDEF DS_MUST_USE ds_result ds_mem_alloc_with(const ds_mem_request *request, void **out);

/** Frees a block: its stream may use the memory again at once, others when they are told to wait
    for it. Never blocks. NULL is allowed. Anything else that is not the start of a block, a
    second free included, is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_mem_free(void *ptr);
/** Says that the stream has just been given its last use of the block (any address inside it):
    once freed, the memory is not used by another stream before the work that is on `stream` now
    is done. Costs an event. Nothing for the block's own stream and for NULL. A pointer of no
    block is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_mem_record_use(void *ptr, ds_stream stream);
/** torch's Tensor.record_stream: as ds_mem_record_use, but what counts is the work that is on
    the stream when the block is freed. A pointer of no block is ignored. */
DSDEF DS_MUST_USE ds_result ds_mem_record_stream(void *ptr, ds_stream stream);

/** State of a block. */
typedef enum ds_mem_state {
    DS_BLOCK_FREE = 0, /**< cached ("inactive") */
    DS_BLOCK_LIVE = 1, /**< allocated ("active_allocated") */
    /** freed, and another stream has not passed it yet ("active_pending_free") */
    DS_BLOCK_PENDING = 2,
    DS_BLOCK_UNMAPPED = 3 /**< a hole in a growing segment */
} ds_mem_state;

/** What is known of a block. */
typedef struct ds_mem_block {
    void *ptr;            /**< start */
    size_t size;          /**< bytes it occupies */
    size_t requested;     /**< bytes that were asked for */
    void *segment;        /**< start of its segment */
    size_t segment_size;  /**< bytes of memory in the segment */
    ds_device device;     /**< where */
    uint64_t stream;      /**< ds_stream_get_id of the stream that allocated it */
    ds_pool pool;         /**< 0: the device's default pool */
    ds_mem_state state;   /**< DS_BLOCK_* */
    const char *label;    /**< or NULL */
    ds_site site;         /**< where it was allocated */
    uint64_t reserved[4]; /**< 0 */
} ds_mem_block;

/** Called with blocks; the description is the call's. */
typedef void (*ds_mem_block_fn)(const ds_mem_block *block, void *user);
/** The live block that an address lies in. DS_ERR_INVALID_VALUE when there is none. */
DSDEF DS_MUST_USE ds_result ds_mem_get_block(const void *ptr, ds_mem_block *out);

/** Blocks that the thread allocates from now on belong to `label` (not copied), until the pop.
    Nests, 32 deep: under further ones blocks belong to the 32nd. Callable anywhere. */
DSDEF void ds_mem_label_push(const char *label);
/** Ends the innermost label. Callable anywhere. */
DSDEF void ds_mem_label_pop(void);

/** Gives back all cached memory of a device that no block stands in the way of: waits for blocks
    that other streams use. Does nothing to devices that were not used, and to pools that someone
    has. What the driver's own pool keeps goes too, behind the work of the streams whose blocks
    it was. *out_released (NULL allowed): bytes. DS_ERR_CAPTURE_UNSUPPORTED while a capture is
    open. */
DSDEF DS_MUST_USE ds_result ds_mem_empty_cache(ds_device device, size_t *out_released);
/** The same of what one stream has cached in its device's default pool. */
DSDEF DS_MUST_USE ds_result ds_mem_empty_stream_cache(ds_stream stream, size_t *out_released);
/** The same as ds_mem_empty_cache until at most `keep` bytes are reserved. */
DSDEF DS_MUST_USE ds_result ds_mem_trim(ds_device device, size_t keep, size_t *out_released);

#endif
