/* api/mem.h - allocation from the caching allocator.

   Declares ds_mem_alloc and its variants, frees, uses by other streams, labels, and the release of
   cached memory. The room also defines the pool handle (ds_pool).

   Threads: any. Labels belong to the calling thread. */
#ifndef DS__API_MEM_H
#define DS__API_MEM_H

#include "stream.h"

/* ---- allocation ------------------------------------------------------------------------------ */

/** A pool of memory with its own blocks and segments. 0: the device's default pool. */
typedef struct ds_pool {
    uint64_t id; /**< 0: none, or the device's default pool */
} ds_pool;

/** Allocates size bytes on the stream's device for work enqueued on the stream after the call.
    Uninitialised, aligned to 512 bytes. size 0 sets *out to NULL and returns DS_OK. Waits for the
    device only if memory is short. If the stream captures, the memory belongs to the graph.
    DS_ERR_OUT_OF_MEMORY, or DS_ERR_LIMIT_EXCEEDED if only a limit prevents the allocation;
    ds_error_get_last() has the figures. */
DSDEF DS_MUST_USE ds_result ds_mem_alloc(size_t size, ds_stream stream, void **out);

/** Parameters of ds_mem_alloc_with; zero means default. */
typedef struct ds_mem_request {
    size_t size;      /**< bytes */
    ds_stream stream; /**< required */
    ds_pool pool;     /**< 0: the thread's pool (ds_pool_push), or the device's default pool */
    /** power of two, up to 2 MiB; 0: 512. A pool with ds_pool_desc.no_split allows at most 512 */
    size_t alignment;
    /** owner, for reports. Must stay valid as long as the block and a recorded history. NULL: the
        thread's label (ds_mem_label_push) */
    const char *label;
    uint64_t reserved[4]; /**< 0 */
} ds_mem_request;

/** Allocates as ds_mem_alloc does, with further parameters. */
DSDEF DS_MUST_USE ds_result ds_mem_alloc_with(const ds_mem_request *request, void **out);

/** Frees a block. Its stream may reuse the memory at once; other streams must wait for that stream
    before they use it. Does not block. Deferred in user code; then the next call that finds no free
    memory, or asks for statistics, makes the free. NULL is allowed.
    DS_ERR_INVALID_VALUE: any other pointer that is not the start of a block, or a second free. */
DSDEF DS_MUST_USE ds_result ds_mem_free(void *ptr);
/** Records a use of the block by the stream (ptr: any address inside the block). If the block is
    freed, no other stream reuses the memory before the work enqueued on `stream` so far is
    complete. Call it after the stream's last use. Costs one event. Does nothing for the block's own
    stream and for NULL. DS_ERR_INVALID_VALUE: ptr is not inside a block. */
DSDEF DS_MUST_USE ds_result ds_mem_record_use(void *ptr, ds_stream stream);
/** Records a use as ds_mem_record_use does, by the rule of torch's Tensor.record_stream: the work
    on the stream at the free counts. Ignores a pointer that is not inside a block. */
DSDEF DS_MUST_USE ds_result ds_mem_record_stream(void *ptr, ds_stream stream);

/** State of a block. */
typedef enum ds_mem_state {
    DS_BLOCK_FREE = 0, /**< cached ("inactive") */
    DS_BLOCK_LIVE = 1, /**< allocated ("active_allocated") */
    /** freed, but still in use by another stream ("active_pending_free") */
    DS_BLOCK_PENDING = 2,
    DS_BLOCK_UNMAPPED = 3 /**< unmapped part of a growing segment */
} ds_mem_state;

/** Description of a block. */
typedef struct ds_mem_block {
    void *ptr;            /**< start */
    size_t size;          /**< size in bytes */
    size_t requested;     /**< requested bytes */
    void *segment;        /**< start of its segment */
    size_t segment_size;  /**< mapped bytes in the segment */
    ds_device device;     /**< device of the memory */
    uint64_t stream;      /**< ds_stream_get_id of the stream that allocated it */
    ds_pool pool;         /**< 0: the device's default pool */
    ds_mem_state state;   /**< DS_BLOCK_* */
    const char *label;    /**< owner, or NULL */
    ds_site site;         /**< call site of the allocation */
    uint64_t reserved[4]; /**< 0 */
} ds_mem_block;

/** Receives a block. The description is valid until the callback returns. */
typedef void (*ds_mem_block_fn)(const ds_mem_block *block, void *user);
/** Returns the live block that contains an address. DS_ERR_INVALID_VALUE: ptr is not inside a live
    block. */
DSDEF DS_MUST_USE ds_result ds_mem_get_block(const void *ptr, ds_mem_block *out);

/** Sets the label of the thread's allocations until the matching pop. The text is not copied: it
    must stay valid as long as the blocks and a recorded history. Nests up to 32 deep; under deeper
    labels, blocks get the 32nd. Callable anywhere. */
DSDEF void ds_mem_label_push(const char *label);
/** Removes the innermost label. Callable anywhere. */
DSDEF void ds_mem_label_pop(void);

/** Frees the cached memory of a device, except segments or pages with live blocks and pools with
    owners. Waits for blocks in use by other streams. Does nothing for a device that was never used.
    Memory kept by the driver's own pool is freed too, after the work of the blocks' streams.
    *out_released (may be NULL): bytes. DS_ERR_CAPTURE_UNSUPPORTED while a capture is open. */
DSDEF DS_MUST_USE ds_result ds_mem_empty_cache(ds_device device, size_t *out_released);
/** Frees, as ds_mem_empty_cache does, the memory cached by one stream in its device's default
    pool. */
DSDEF DS_MUST_USE ds_result ds_mem_empty_stream_cache(ds_stream stream, size_t *out_released);
/** Frees cached memory, as ds_mem_empty_cache does, until at most `keep` bytes are reserved. */
DSDEF DS_MUST_USE ds_result ds_mem_trim(ds_device device, size_t keep, size_t *out_released);

#endif
